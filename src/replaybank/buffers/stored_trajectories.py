"""The trajectories of a checkpointed storage, and the rows of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from replaybank.buffers.stored_items import Items
from replaybank.storages.layout import Key
from replaybank.trajectories.index import TrajectoryIndex
from replaybank.trajectories.signals import ChangeSignal, DoneSignal, EndSignal

SIGNALS: Final[tuple[EndSignal, ...]] = (
    ChangeSignal(("episode",)),
    DoneSignal(("next", "done")),
    DoneSignal(("done",)),
    ChangeSignal(("collector", "traj_ids")),
)
"""What slices go by, the one that counts first; then what other libraries write."""


class Trajectories(NamedTuple):
    """Where the trajectories of a storage are, column by column.

    Args:
        runs: int64 ``[3, S]``: column, first row and number of rows of each.
        ends: the entry that tells whether a trajectory is over, if there is one.
    """

    runs: npt.NDArray[np.int64]
    ends: Key | None


def trajectories_of(items: Items) -> Trajectories | None:
    """The trajectories of a storage; None where nothing says where they end. O(rows).

    Args:
        items: from :func:`~replaybank.buffers.stored_items.items_of`.
    """
    keys = {entry.key for entry in items.entries if entry.readable}
    for signal in SIGNALS:
        if signal.key not in keys:
            continue
        index = TrajectoryIndex(signal)
        try:
            index.sync(items)
        except (RuntimeError, KeyError, TypeError, ValueError):  # of that name, but no signal
            continue
        if index.n_trajectories:
            runs = index.eligible().runs.numpy()
            order = np.lexsort((runs[1], runs[0]))
            done = next((key for key in (("next", "done"), ("done",)) if key in keys), None)
            return Trajectories(runs[:, order], done)
    return None


def rows_of(first: int, number: int, length: int) -> list[slice]:
    """A run of rows, which may go on at row 0.

    >>> rows_of(2, 3, 10), rows_of(8, 3, 10)
    ([slice(2, 5, None)], [slice(8, 10, None), slice(0, 1, None)])
    """
    if first + number <= length:
        return [slice(first, first + number)]
    return [slice(first, length), slice(0, first + number - length)]


def run_of(items: Items, key: Key, rows: Sequence[slice], column: int) -> npt.NDArray[Any] | list[str]:
    """Values of an entry over rows from :func:`rows_of`: an array ``[T, ...]``, or ``T`` texts.

    Raises:
        KeyError: an item does not have the entry.
        ValueError: items differ in its shape.
    """
    parts = [items.column(key, run, column) for run in rows]
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], list):
        return [text for part in parts for text in part]
    return np.concatenate(parts)
