"""What is checked of a state of tensors before anything of it is taken over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from replaybank.checkpoint import StoredField, StoredRows
from replaybank.errors import DataFormatError
from replaybank.storages.base import entry
from replaybank.storages.layout import LeafSpec


def check_columns(columns: tuple[Any, ...], ndim: int) -> None:
    if len(columns) != ndim - 1 or not all(type(size) is int and 0 < size < 1 << 48 for size in columns):
        raise DataFormatError(
            f"The state's columns are {columns!r:.80}, this storage has {ndim - 1} dimension(s) behind time. "
            "Make it with that ndim, unless the state is damaged. Nothing has been changed."
        )


def check_data(
    data: list[Any], specs: Sequence[LeafSpec], columns: tuple[int, ...], state: Mapping[str, Any]
) -> int:
    """The number of rows in a state's data, the same in all of its leaves. O(leaves).

    A leaf that is kept in another form is None; the table that takes it checks that.
    """
    lengths = {
        len(leaf)
        if isinstance(leaf, (Tensor, StoredRows, StoredField))
        and leaf.ndim
        and leaf.shape[1:] == (*columns, *spec.shape)
        else -1
        for leaf, spec in zip(data, specs, strict=False)
        if leaf is not None
    }
    if data and not lengths:  # images alone, which lie end to end
        length = entry(state, "length", int)
        lengths = {-1 if isinstance(length, bool) else length}
    if len(data) != len(specs) or len(lengths) != 1 or min(lengths) < 0:
        shapes = [getattr(leaf, "shape", None) for leaf in data]
        found = [
            type(leaf).__name__ if shape is None else list(shape)
            for leaf, shape in zip(data, shapes, strict=True)
        ]
        raise DataFormatError(
            f"The state is damaged: its data is {found!s:.200}, and it speaks of {len(specs)} leaves of "
            f"{[list(spec.shape) for spec in specs]!s:.200} an item in columns {columns}. Nothing has been "
            "changed."
        )
    return lengths.pop()


def renumbered(state: Mapping[str, Any], numbers: Mapping[int, int]) -> dict[str, Any]:
    """What a dump holds beside its leaves, in another order of leaves."""
    out: dict[str, Any] = {}
    if "next" in state:
        links = [[numbers[number], numbers[source]] for number, source in state["next"]["links"]]
        out["next"] = {**state["next"], "links": links}
    if "frames" in state:
        out["frames"] = [{**entry, "leaf": numbers[entry["leaf"]]} for entry in state["frames"]]
    return out
