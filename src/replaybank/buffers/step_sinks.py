"""How steps of several environments are laid into a buffer, so that those of an episode stay neighbours."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict

from replaybank.buffers.lanes import Lanes, Steps
from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.storages._tensordict import build
from replaybank.storages.layout import Key
from replaybank.storages.list import ListStorage

Flags = npt.NDArray[np.bool_]

CUT: Key = ("", "cut")
"""A leaf that is not written: the step does not continue the one before it, though that was no end."""


class StepSink(Protocol):
    """Takes the steps of n environments, one of each at a time, and writes them to a buffer."""

    @property
    def waiting(self) -> int:
        """Steps taken and not yet written."""
        ...

    def write(self, steps: Steps, there: Flags, cut: Flags, ended: Flags) -> None:
        """Take a step of each environment that has one.

        Args:
            steps: leaves ``[n, ...]``.
            there: which environments have a step.
            cut: whose step does not continue the one before, though that was no end.
            ended: whose step is the last one of its episode.
        """
        ...

    def flush(self) -> None:
        """Write what waits, as far as it can be."""
        ...


class Target:
    """A buffer, and whether what goes there now continues what went there last.

    Args:
        buffer: to be written to.
    """

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer = buffer
        self._count = -1
        # A list keeps the very tensors that it is given, which may be the environment's own.
        self._keeps = isinstance(buffer.storage, ListStorage)

    def cut_if(self, cut: bool) -> None:
        """Have the next write continue nothing, if it is not to, or if somebody else wrote meanwhile."""
        if cut or self.buffer.write_count != self._count:
            self.buffer.end_trajectories()

    def add(self, steps: Steps, batch: Sequence[int]) -> None:
        """Write one row, ``[*batch, ...]``."""
        self.buffer.add(self._data(steps, batch))
        self._count = self.buffer.write_count

    def extend(self, steps: Steps, count: int) -> None:
        """Write items ``[count, ...]``."""
        self.buffer.extend(self._data(steps, [count]))
        self._count = self.buffer.write_count

    def _data(self, steps: Steps, batch: Sequence[int]) -> TensorDict:
        root: dict[str, Any] = {}
        among: dict[Key, dict[str, Any]] = {(): root}  # the entries at a path; those above stand before it
        for key, leaf in steps.items():
            if key is CUT:
                continue
            inner = among.get(key[:-1])
            if inner is None:
                inner = _entries_at(key[:-1], among)
            inner[key[-1]] = leaf.clone() if self._keeps else leaf
        # Leaves that are known to fit: checking them would take longer than writing them.
        size = torch.Size(batch)
        for path, inner in reversed(among.items()):
            if path:
                among[path[:-1]][path[-1]] = build(inner, size, None)
        return build(root, size, None)


def _entries_at(path: Key, among: dict[Key, dict[str, Any]]) -> dict[str, Any]:
    found = among.get(path)
    if found is None:
        above = _entries_at(path[:-1], among)
        found = among[path] = above[path[-1]] = {}
    return found


class ColumnSink:
    """One column of a ``[T, n]`` storage for each environment.

    While all have a step each time they are written at once. Where one has none, it falls behind, and the
    others' steps wait for it: rows are written when every environment has a step for them.

    Args:
        buffer: with a storage of two dimensions.
        count: number of environments, n.
        most: steps of an environment that may wait; of more the oldest are given up, with a warning.
    """

    def __init__(self, buffer: ReplayBuffer, count: int, most: int) -> None:
        self._target = Target(buffer)
        self._lanes = Lanes(count)
        self._count = count
        self._most = most
        self._warned = False

    @property
    def waiting(self) -> int:
        """Steps taken and not yet written."""
        return int(self._lanes.waiting.sum())

    def write(self, steps: Steps, there: Flags, cut: Flags, ended: Flags) -> None:
        """Take a step; see :class:`StepSink`. O(bytes of it)."""
        lanes, target = self._lanes, self._target
        if not np.count_nonzero(lanes.waiting) and np.count_nonzero(there) == self._count:
            target.cut_if(bool(np.count_nonzero(cut)))
            target.add(steps, [self._count])
            return
        lanes.put({**steps, CUT: torch.from_numpy(cut)}, there)
        try:
            if np.count_nonzero(lanes.waiting) < self._count:
                if int(lanes.waiting.max()) > self._most:
                    self._give_up()
                return
            row = lanes.firsts()
            target.cut_if(bool(np.count_nonzero(row[CUT].numpy())))
            target.add(row, [self._count])
            lanes.forget(slice(None), 1)  # so nobody has more waiting than before
        except BaseException:
            lanes.take_back(there)
            raise

    def _give_up(self) -> None:
        lanes = self._lanes
        late = np.flatnonzero(lanes.waiting > self._most).tolist()
        if not self._warned:  # first: where warnings are errors, nothing has been given up yet
            self._warned = True
            warnings.warn(
                f"Environment {late[0]} has made so many more steps than another that {self._most} of them "
                "waited for a row of the storage; the oldest half was given up, as will be those that "
                "follow. Columns hold equally many steps: give the recorder a buffer for each "
                "environment, let the environments reset in the same step, or raise max_waiting.",
                RuntimeWarning,
                stacklevel=4,
            )
        for env in late:
            lanes.forget(env, max(int(lanes.waiting[env]) // 2, 1))
            lanes.set_first(env, CUT, True)

    def flush(self) -> None:
        """Nothing can be written: a row needs a step of every environment."""


class EpisodeSink:
    """Whole episodes, one behind the other, in a storage of one dimension.

    Args:
        buffer: with a storage of one dimension.
        count: number of environments, n.
        most: steps of an environment that may wait; an episode that is longer is written in parts, between
            which slices do not run.
    """

    def __init__(self, buffer: ReplayBuffer, count: int, most: int) -> None:
        self._target = Target(buffer)
        self._lanes = Lanes(count)
        self._most = most
        self._open = -1  # whose steps were written last, if those were not the end of an episode

    @property
    def waiting(self) -> int:
        """Steps taken and not yet written."""
        return int(self._lanes.waiting.sum())

    def write(self, steps: Steps, there: Flags, cut: Flags, ended: Flags) -> None:
        """Take a step; see :class:`StepSink`. O(bytes of it), and of the episodes that end with it."""
        lanes = self._lanes
        for env in np.flatnonzero(there & cut & (lanes.waiting > 0)).tolist():
            self._write(env, ended=False)
        lanes.put({**steps, CUT: torch.from_numpy(cut)}, there)
        left = there.copy()
        try:
            for env in np.flatnonzero(there & (ended | (lanes.waiting >= self._most))).tolist():
                self._write(env, ended=bool(ended[env]))
                left[env] = False
        except BaseException:
            lanes.take_back(left)
            raise

    def _write(self, env: int, *, ended: bool) -> None:
        count = int(self._lanes.waiting[env])
        steps = self._lanes.of(env, count)
        self._target.cut_if(bool(steps[CUT][0]) or self._open not in (-1, env))
        self._target.extend(steps, count)
        self._lanes.forget(env, count)
        self._open = -1 if ended else env

    def flush(self) -> None:
        """Write what waits, though its episodes go on. O(bytes of it)."""
        for env in np.flatnonzero(self._lanes.waiting > 0).tolist():
            self._write(env, ended=False)


class BufferSink:
    """A buffer for each environment.

    Args:
        buffers: with storages of one dimension, one an environment.
    """

    waiting = 0

    def __init__(self, buffers: Sequence[ReplayBuffer]) -> None:
        self._targets = [Target(buffer) for buffer in buffers]

    def write(self, steps: Steps, there: Flags, cut: Flags, ended: Flags) -> None:
        """Write a step; see :class:`StepSink`. O(bytes of it)."""
        envs = {key: leaf.unbind(0) for key, leaf in steps.items()}
        for env in np.flatnonzero(there).tolist():
            target = self._targets[env]
            target.cut_if(bool(cut[env]))
            target.add({key: leaves[env] for key, leaves in envs.items()}, [])

    def flush(self) -> None:
        """Nothing waits."""
