"""Episodes of checkpointed buffers: the trajectories of their storages."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from replaybank.buffers.checkpointed import CheckpointedBuffer
from replaybank.buffers.stored_items import Items, items_of
from replaybank.buffers.stored_trajectories import rows_of, run_of, trajectories_of
from replaybank.errors import DataFormatError
from replaybank.view.episode import Camera, Frames, Key, RecordedEpisode, no_such_episode

READ_BYTES = 1 << 24
"""Of pixels that are read at a time."""
IN_MEMORY = 1 << 30
"""Bytes of a camera's frames from which on they wait in a temporary file instead of memory."""

_BEFORE = ("done", "terminated", "truncated")
_DAMAGE = (LookupError, TypeError, AttributeError, ValueError, RuntimeError)


def buffer_episode(buffers: Sequence[CheckpointedBuffer], where: str, number: int) -> RecordedEpisode:
    """A trajectory of a checkpointed buffer; of an ensemble, those of its buffers one after the other.

    O(rows) for where trajectories end, and the bytes of this one, which are read at once: the checkpoint is
    not needed afterwards.

    Args:
        buffers: as they were saved.
        where: the checkpoint, for messages.
        number: of the trajectory, from 0, in the order of the storage.

    Raises:
        IndexError: there is no such trajectory.
        DataFormatError: nothing in the buffer says where trajectories end; it is damaged.
    """
    parts = [(saved, state) for saved in buffers for state in saved.storages]
    before = 0
    for part, (saved, state) in enumerate(parts):
        try:
            items = items_of(state)
            if items is None:
                if saved.capacity is None or state.get("initialized") is not False:
                    raise DataFormatError(f"{where}: there are no episodes to look at: {_instead(saved)}")
                continue
            found = trajectories_of(items) if items.log.length else None
        except _DAMAGE as error:
            raise DataFormatError(f"{where} is damaged: {error!r}") from error
        if found is None:
            if not items.log.length:
                continue
            keys = ", ".join("/".join(entry.key) for entry in items.entries)
            raise DataFormatError(
                f"{where}: nothing says where episodes end: there is neither ('next', 'done') nor 'episode' "
                f"among its entries {keys or '(a tensor without a name)'}"
            )
        if 0 <= number - before < found.runs.shape[1]:
            column, row, length = found.runs[:, number - before].tolist()
            of = f"{where}, buffer {part} of {len(parts)}" if len(parts) > 1 else where
            return _episode(items, column, row, length, number, of)
        before += found.runs.shape[1]
    raise no_such_episode(where, number, before)


def _instead(saved: CheckpointedBuffer) -> str:
    what = f"the dataset {saved.dataset!r}" if saved.dataset else f"a {saved.kind('storage')}"
    return f"the buffer's storage is {what}, which has no items in the checkpoint"


def _episode(items: Items, column: int, row: int, length: int, number: int, where: str) -> RecordedEpisode:
    rows = rows_of(row, length, items.log.length)
    numbers: dict[Key, npt.NDArray[np.generic]] = {}
    texts: dict[Key, Sequence[str]] = {}
    cameras: dict[Key, Camera] = {}
    keys = {entry.key for entry in items.entries}
    for entry in items.entries:
        key = entry.key
        if key[:-1] == () and key and key[0] in _BEFORE and ("next", key[0]) in keys:
            continue  # of the step before
        if key and key[0] == "next" and key[1:] in keys and key[-1] not in _BEFORE:
            continue  # the next step has it too
        name = key or ("data",)
        if entry.kind == "image":
            cameras[name] = BufferCamera(items, key, rows, column)
        elif entry.readable:
            try:
                values = run_of(items, key, rows, column)
            except (KeyError, ValueError):  # items of a list may differ from each other
                continue
            if isinstance(values, np.ndarray):
                numbers[name] = values
            else:
                texts[name] = values
    last = (row + length - 1) % items.log.rows
    facts = {"from": where, "rows": f"{row} to {last} of {items.log.rows}"}
    if items.columns:
        facts["column"] = str(column)
    return RecordedEpisode(where, number, length, numbers, texts, cameras, facts=facts)


class BufferCamera:
    """The frames of an entry over a trajectory, read when this is made; of stacked frames the last one.

    Args:
        items: in which they are.
        key: of the entry.
        rows: of the trajectory, from :func:`~replaybank.buffers.stored_trajectories.rows_of`.
        column: in which it lies.

    Raises:
        DataFormatError: a frame cannot be decoded.
    """

    depth = lossy = False

    def __init__(self, items: Items, key: Key, rows: Sequence[slice], column: int) -> None:
        steps = [row for run in rows for row in range(run.start, run.stop)]
        first = items.frames(key, steps[:1], column)
        self._at_a_time = max(1, READ_BYTES // max(1, first.nbytes))
        self._pixels = _room((len(steps), *first.shape[1:]), first.dtype)
        for start in range(0, len(steps), self._at_a_time):
            chosen = steps[start : start + self._at_a_time]
            self._pixels[start : start + len(chosen)] = items.frames(key, chosen, column)

    def parts(self) -> Iterator[tuple[int, Frames]]:
        """All frames, as pixels."""
        for start in range(0, len(self._pixels), self._at_a_time):
            yield start, self._pixels[start : start + self._at_a_time]


def _room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Memory, or a file that goes away with it."""
    if np.prod(shape) * dtype.itemsize <= IN_MEMORY:
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype, "w+", shape=shape)
