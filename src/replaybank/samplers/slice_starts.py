"""Where slices may start, and the weights of these steps: kept current as steps are written."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from replaybank.samplers.base import SampledStorage
from replaybank.samplers.priorities import FIRST_STEPS, NEEDED, REPAIRS, PriorityTable
from replaybank.storages.write_log import LogMark, WriteLog
from replaybank.trajectories.index import TrajectoryIndex
from replaybank.weights.sum_tree import SumTree


class SliceStarts:
    """A tree with the weights of the allowed starts, and nothing for other steps.

    A step is an allowed start if ``needed`` steps fit from it to its trajectory's end; the first step of a
    trajectory may be one in any case. A write of k steps concerns itself and the ``needed`` steps before it:
    O(k + needed). The weights of other steps stay in the table, and count as soon as their step is allowed.

    Not thread-safe: the sampler's lock guards it. Shared between processes after :meth:`share_memory_`; what
    they do twice then comes to the same.

    Args:
        table: all weights.
    """

    def __init__(self, table: PriorityTable) -> None:
        self._table = table
        self._allocate()

    def _allocate(self) -> None:
        tree = self._table.tree
        self.tree = SumTree(tree.capacity, tree.dtype)
        self.allowed = torch.zeros(tree.capacity, dtype=torch.bool)
        self.forget()

    def forget(self) -> None:
        """Look at everything anew next time. O(1)."""
        self._log: WriteLog | None = None
        self._mark: LogMark | None = None
        self._index: TrajectoryIndex | None = None
        self._rebuilds = self._repairs = -1

    def follow(
        self, storage: SampledStorage, index: TrajectoryIndex, needed: int, *, first_steps: bool
    ) -> None:
        """Take in what was written since the last call. O(steps written + needed); O(N) for other arguments.

        Args:
            storage: followed by the table already.
            index: its index, synced.
            needed: steps from a start to its trajectory's end, at least 1.
            first_steps: the first step of every trajectory is allowed too.
        """
        log, number = storage.log, self._table.number
        mark = log.mark()
        if self._table.tree.capacity != self.tree.capacity:
            self._allocate()
        known = (
            log is self._log
            and index is self._index
            and index.rebuilds == self._rebuilds
            and number[NEEDED] == needed
            and number[FIRST_STEPS] == first_steps
            and number[REPAIRS] == self._repairs
        )
        if known and mark == self._mark:
            return
        changes = log.changes(self._mark if known else None)
        self._mark = None
        width, length = math.prod(storage.columns), log.length
        if changes.everything:
            self.allowed[length * width :] = False
            index.starts(self.allowed, needed, first_steps=first_steps, start=0, count=length)
            self.take_all()
        else:
            for start, count in changes.runs:
                # What was the end before may not be one now, so the steps that reach it are looked at too,
                # and the step behind, which may have become a first one.
                begin, end = start - needed, start + count + 1
                if length < log.rows:
                    begin, end = max(begin, 0), min(end, length)
                self._look(index, begin, min(end - begin, length), width, needed, first_steps)
        number[NEEDED], number[FIRST_STEPS] = needed, first_steps
        self._log, self._mark, self._index, self._rebuilds = log, mark, index, index.rebuilds
        self._repairs = number[REPAIRS]

    def _look(
        self, index: TrajectoryIndex, begin: int, count: int, width: int, needed: int, first_steps: bool
    ) -> None:
        length = index.length
        begin %= length
        index.starts(self.allowed, needed, first_steps=first_steps, start=begin, count=count)
        straight = min(count, length - begin)
        self._select(begin * width, straight * width)
        self._select(0, (count - straight) * width)

    def _select(self, start: int, count: int) -> None:
        if count:
            self.tree.select(self._table.tree, self.allowed, start, count)

    def take(self, items: Tensor) -> None:
        """Take over the weights of some items. O(B log N)."""
        if self._table.tree.capacity == self.tree.capacity:  # else there is more to do next time
            self.tree.select_items(self._table.tree, self.allowed, items)

    def take_all(self) -> None:
        """Take over all weights. O(N)."""
        if self._table.tree.capacity == self.tree.capacity:
            self.tree.select(self._table.tree, self.allowed, 0, self.tree.capacity)

    def clear(self) -> None:
        """Forget everything. O(N)."""
        self.tree.clear()
        self.allowed.zero_()
        self.forget()

    def share_memory_(self) -> None:
        """Move the state to shared memory."""
        self.tree.share_memory_()
        self.allowed.share_memory_()

    def __getstate__(self) -> dict[str, object]:
        # What was followed is of this process. A table that is shared takes its weights from all of them.
        return {"table": self._table, "tree": self.tree, "allowed": self.allowed}

    def __setstate__(self, state: dict[str, object]) -> None:
        table, tree, allowed = state["table"], state["tree"], state["allowed"]
        assert isinstance(table, PriorityTable)
        assert isinstance(tree, SumTree)
        assert isinstance(allowed, Tensor)
        self._table, self.tree, self.allowed = table, tree, allowed
        self.forget()
