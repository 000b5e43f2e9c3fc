"""Episodes of checkpointed buffers: the trajectories of their storages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from replaybank.buffers.checkpointed import CheckpointedBuffer
from replaybank.errors import DataFormatError
from replaybank.samplers.slicing import Slicing
from replaybank.storages.base import Storage
from replaybank.view.episode import Camera, Frames, Key, RecordedEpisode, no_such_episode

SMALLEST_IMAGE = 8
"""Pixels a side: smaller arrays of bytes are taken for something else."""
DECODED_BYTES = 1 << 24
"""Pixels read at a time."""

_BEFORE = ("done", "terminated", "truncated")


def buffer_episode(buffers: Sequence[CheckpointedBuffer], where: str, number: int) -> RecordedEpisode:
    """A trajectory of a checkpointed buffer; of an ensemble, those of its buffers one after the other.

    O(items): everything is loaded.

    Args:
        buffers: as they were saved.
        where: the checkpoint, for messages.
        number: of the trajectory, from 0, in the order of the storage.

    Raises:
        IndexError: there is no such trajectory.
        DataFormatError: nothing in the buffer says where trajectories end.
    """
    before = 0
    for part, saved in enumerate(buffers):
        try:
            storage = saved.load_storage()
        except TypeError as error:
            raise DataFormatError(f"{where}: there are no episodes to look at: {error}") from None
        runs = _trajectories(storage, where)
        if 0 <= number - before < runs.shape[1]:
            column, row, length = runs[:, number - before].tolist()
            of = f"{where}, buffer {part} of {len(buffers)}" if len(buffers) > 1 else where
            return _episode(storage, column, row, length, number, of)
        before += runs.shape[1]
    raise no_such_episode(where, number, before)


def _trajectories(storage: Storage, where: str) -> Tensor:
    """Column, first row and length of each trajectory, int64 ``[3, n]``, in the order of the storage."""
    if not len(storage):
        return torch.empty(3, 0, dtype=torch.int64)
    try:
        index = Slicing(None, None, None, None).index_of(storage)
    except (KeyError, RuntimeError) as error:
        keys = ", ".join("/".join(key) for key in storage.leaf_keys())
        raise DataFormatError(
            f"{where}: nothing says where episodes end: there is neither ('next', 'done') nor 'episode' "
            f"among its entries {keys or '(a tensor without a name)'}"
        ) from error
    index.sync(storage)
    return index.eligible().runs


def _episode(
    storage: Storage, column: int, row: int, length: int, number: int, where: str
) -> RecordedEpisode:
    rows = (row + torch.arange(length)) % storage.rows
    numbers: dict[Key, npt.NDArray[np.generic]] = {}
    cameras: dict[Key, Camera] = {}
    keys = storage.leaf_keys()
    for key in keys:
        if key[:-1] == () and key[0] in _BEFORE and ("next", key[0]) in keys:
            continue  # of the step before
        if key[0] == "next" and key[1:] in keys and key[-1] not in _BEFORE:
            continue  # the next step has it too
        columns = storage.columns
        one = storage.read_leaf(key, rows[:1])
        shape = one.shape[1 + len(columns) :]
        how = image_form(tuple(shape), one.dtype)
        if how is None:
            values = _column(storage.read_leaf(key, rows), columns, column)
            numbers[key or ("data",)] = _as_numpy(values)
        else:
            cameras[key] = BufferCamera(storage, key, rows, column, how)
    facts = {"from": where, "rows": f"{row} to {int(rows[-1])} of {storage.rows}"}
    if storage.columns:
        facts["column"] = str(column)
    return RecordedEpisode(where, number, length, numbers, cameras=cameras, facts=facts)


def _column(values: Tensor, columns: tuple[int, ...], column: int) -> Tensor:
    """``[T, *shape]`` of one column of ``[T, *columns, *shape]``."""
    return values.reshape(values.shape[0], -1, *values.shape[1 + len(columns) :])[:, column]


def _as_numpy(values: Tensor) -> npt.NDArray[np.generic]:
    plain = values.detach()
    if plain.dtype in (torch.bfloat16,) or (plain.element_size() == 1 and plain.is_floating_point()):
        plain = plain.float()
    return plain.numpy()


def image_form(shape: tuple[int, ...], dtype: torch.dtype) -> str | None:
    """How an entry of bytes is an image: ``"HW"``, ``"HWC"``, ``"CHW"``, ``"stack"`` of grey ones, or not.

    >>> image_form((3, 64, 64), torch.uint8), image_form((4, 84, 84), torch.uint8)
    ('CHW', 'stack')
    >>> image_form((64, 64, 3), torch.uint8), image_form((64, 64, 3), torch.float32)
    ('HWC', None)
    """
    if dtype != torch.uint8:
        return None
    if len(shape) == 2 and min(shape) >= SMALLEST_IMAGE:
        return "HW"
    if len(shape) != 3:
        return None
    if shape[2] in (1, 3, 4) and min(shape[:2]) >= SMALLEST_IMAGE:
        return "HWC"
    if min(shape[1:]) < SMALLEST_IMAGE:
        return None
    return "CHW" if shape[0] in (1, 3) else "stack" if shape[0] < SMALLEST_IMAGE else None


class BufferCamera:
    """The frames of an entry over a trajectory; of stacked frames the last one.

    Args:
        storage: in which they are.
        key: of the entry.
        rows: int64 ``[T]``, the trajectory.
        column: in which it lies.
        how: from :func:`image_form`.
    """

    depth = lossy = False

    def __init__(self, storage: Storage, key: Key, rows: Tensor, column: int, how: str) -> None:
        self._storage, self._key, self._rows, self._place, self._how = storage, key, rows, column, how

    def parts(self) -> Iterator[tuple[int, Frames]]:
        """All frames, as pixels."""
        one = self._storage.read_leaf(self._key, self._rows[:1])
        count = max(1, DECODED_BYTES // max(one.nbytes, 1))
        for first in range(0, len(self._rows), count):
            values = self._storage.read_leaf(self._key, self._rows[first : first + count])
            pixels = _column(values, self._storage.columns, self._place).numpy()
            if self._how == "HW":
                pixels = pixels[..., None]
            elif self._how == "CHW":
                pixels = pixels.transpose(0, 2, 3, 1)
            elif self._how == "stack":
                pixels = pixels[:, -1, :, :, None]
            yield first, np.ascontiguousarray(pixels)
