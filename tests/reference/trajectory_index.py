"""The trajectory index by brute force: every question is answered from the slots themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from reference.write_log import SlotLog

Found = tuple[int, int, int]
"""Column, first row, steps."""


def trajectories(log: SlotLog, signals: Sequence[Sequence[Any]], by_change: bool) -> list[Found]:
    """All trajectories, ordered by column, then by the row of their last step.

    Args:
        log: which slots follow each other.
        signals: value of each row and column; a true one ends a trajectory, or a change does.
        by_change: which of the two.
    """
    found: list[Found] = []
    n_columns = len(signals[0])
    valid = [t for t in range(log.rows) if log.stamp[t] is not None]
    for column in range(n_columns):

        def ends(t: int, column: int = column) -> bool:
            after = (t + 1) % log.rows
            if log.stamp[after] is None or log.cut(after):
                return True
            if by_change:
                return bool(signals[t][column] != signals[after][column])
            return bool(signals[t][column])

        last = [t for t in valid if ends(t)] or valid[-1:]
        for t in last:
            steps = 1
            while steps < len(valid) and (t - steps) % log.rows not in last:
                if log.stamp[(t - steps) % log.rows] is None:
                    break
                steps += 1
            found.append((column, (t - steps + 1) % log.rows, steps))
    return found


def n_windows(steps: int, slice_len: int, left: int, right: int) -> list[tuple[int, int]]:
    """Every equally likely slice of a trajectory: its offset and its number of steps."""
    if steps < slice_len:
        return [(0, steps)]
    windows = []
    for begin in range(-left, steps - slice_len + right + 1):
        inside = [k for k in range(begin, begin + slice_len) if 0 <= k < steps]
        windows.append((inside[0], len(inside)))
    return windows


def changes_in_place(
    values: npt.NDArray[np.int64], start: int, count: int, *, goes_on: bool
) -> npt.NDArray[np.bool_]:
    """Whether the row before ``start``, and each of ``count`` rows from it on, differs from the next one."""
    rows = (start - 1 + np.arange(count + 2)) % len(values)
    found: npt.NDArray[np.bool_] = values[rows[:-1]] != values[rows[1:]]
    found[-1] &= goes_on
    return found
