"""Logs and their states for a storage that gets other rows: checked, moved, resized."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from replaybank.errors import DataFormatError
from replaybank.storages.log_header import CURSOR, LENGTH, checked_state
from replaybank.storages.write_log import WriteLog


def check_log(state: Any, length: int) -> int:
    """Check the log of a state: its numbers must fit each other and ``length`` valid rows. O(rows).

    Returns:
        The capacity that it speaks of.

    Raises:
        DataFormatError: it is damaged.
    """
    _, cut = checked_state(state)
    log = WriteLog(len(cut))
    log.load_state_dict(state)
    if log.length != length:
        raise DataFormatError(
            f"The state is damaged: its log speaks of {log.length} rows, and it holds {length}. Nothing has "
            "been changed."
        )
    return log.rows


def cursor_and_length(state: Mapping[str, Any]) -> tuple[int, int]:
    """Where the next regular write goes, and the number of valid rows, of a checked state."""
    header = state["header"]
    return int(header[CURSOR]), int(header[LENGTH])


def moved_state(state: Mapping[str, Any], rows: int, first: int) -> dict[str, Any]:
    """The checked state of a log, for one with another number of rows. O(rows).

    Args:
        state: its rows, if not all of them are valid, stay where they are.
        rows: capacity along time, at least the number of valid rows.
        first: the row that becomes row 0, with the others behind it in a circle; where all rows are valid
            and the next write replaces the oldest, the row that it replaces.
    """
    header, length = state["header"].clone(), int(state["header"][LENGTH])
    cut = torch.zeros(rows, dtype=torch.bool)
    cut[:length] = state["cut"][:length].roll(-first, 0)
    full = length == len(state["cut"])
    header[CURSOR] = length % rows if full else header[CURSOR] % rows
    # Nothing joins across the write cursor, and what has room left has not gone round.
    cut[int(header[CURSOR])] = True
    cut[0] = True
    return {"header": header, "cut": cut}


def resize_log(log: WriteLog, rows: int) -> None:
    """Give a log that has not wrapped another number of rows; its followers stay right. O(rows)."""
    cut = torch.zeros(rows, dtype=torch.bool)
    kept = min(log.rows, rows)
    cut[:kept] = log.cut[:kept]
    if rows > log.rows:
        cut[0] = True  # what has more room than before is not full: it cannot have wrapped
    log.__setstate__({"rows": rows, "state": log.state, "cut": cut})
