"""A saved state for a storage of another capacity: the same items, oldest first where they went round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from replaybank.checkpoint import StoredField, StoredRows
from replaybank.storages.log_states import cursor_and_length, moved_state


class Move(NamedTuple):
    """Where rows come to lie when their storage gets another capacity.

    Args:
        before: capacity along time there was.
        rows: capacity there will be.
        length: number of rows there are.
        first: the row that becomes row 0; all others follow it, round the ring of ``length`` rows. 0 unless
            the storage had gone round and there is more room now.
        width: items in a row.
    """

    before: int
    rows: int
    length: int
    first: int
    width: int

    def row(self, rows: Tensor) -> Tensor:
        """Where rows come to lie."""
        return (rows - self.first).remainder(self.length) if self.first else rows

    def item(self, items: Tensor) -> Tensor:
        """Where items come to lie, by number."""
        return (items - self.first * self.width).remainder(self.length * self.width) if self.first else items

    def turned(self, values: Tensor) -> Tensor:
        """Values ``[length, ...]``, one a row, in their new order."""
        return values.roll(-self.first, 0) if self.first else values

    def turned_items(self, values: Tensor) -> Tensor:
        """Values ``[length * width]``, one an item, in their new order."""
        return values.roll(-self.first * self.width, 0) if self.first else values


def move_to(log: Mapping[str, Any], rows: int, width: int) -> Move | None:
    """How the rows of a log's state move into ``rows`` rows; None if they stay where they are.

    Args:
        log: a checked state of a log.
        rows: capacity along time.
        width: items in a row.

    Raises:
        ValueError: there are more rows than that.
    """
    before, (cursor, length) = len(log["cut"]), cursor_and_length(log)
    if before == rows:
        return None
    if length > rows:
        raise ValueError(
            f"The state holds {length} rows, this storage has room for {rows}: make it at least that large. "
            "Nothing has been changed."
        )
    first = cursor if length == before else 0
    return Move(before, rows, length, first, width)


def resized(state: Mapping[str, Any], move: Move) -> dict[str, Any]:
    """The state of a tensor storage for another capacity. O(rows), and O(items) for leaves in memory."""
    out = {**state, "log": moved_state(state["log"], move.rows, move.first)}
    if not move.first:
        return out
    out["data"] = [_turned(leaf, move.first) for leaf in state["data"]]
    if "next" in state:
        out["next"] = {**state["next"], "place": move.turned_items(state["next"]["place"])}
    if "frames" in state:
        out["frames"] = [_turned_frames(frames, move) for frames in state["frames"]]
    return out


def _turned(
    leaf: Tensor | StoredRows | StoredField | None, first: int
) -> Tensor | StoredRows | StoredField | None:
    if isinstance(leaf, (StoredRows, StoredField)):
        return leaf.turned(first)
    return None if leaf is None else torch.cat([leaf[first:], leaf[:first]])


def _turned_frames(frames: Mapping[str, Any], move: Move) -> dict[str, Any]:
    sizes, content = frames["sizes"], frames["content"]
    first = int(sizes[: move.first * move.width].sum())
    return {**frames, "sizes": move.turned_items(sizes), "content": content.roll(-first, 0)}
