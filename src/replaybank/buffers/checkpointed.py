"""What is in a checkpoint of a buffer, read without the buffer that saved it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from replaybank import checkpoint
from replaybank.errors import DataFormatError
from replaybank.progress import watched_bytes
from replaybank.storages.base import Storage
from replaybank.storages.frames import EncodedFrames
from replaybank.storages.layout import Key, LeafSpec, RowLayout
from replaybank.storages.lazy_tensor import LazyTensorStorage
from replaybank.storages.log_header import CURSOR, LENGTH, TOTAL, checked_state
from replaybank.storages.memmap import LazyMemmapStorage

IN_MEMORY = 1 << 30
"""Bytes of items from which on they are loaded into a temporary file instead of memory."""


@contextmanager
def opened_buffers(
    path: checkpoint.StrPath, *, progress: bool | None = None
) -> Iterator[list[CheckpointedBuffer]]:
    """The buffers of a checkpoint: one, or those of an ensemble. Checks all files: O(bytes).

    What they say and load is good within the ``with`` block, where savers to ``path`` wait.

    Args:
        path: what ``dumps`` was given.
        progress: show the bytes read, if it takes long; by default where the error output is a terminal.

    Raises:
        FileNotFoundError: there is no checkpoint.
        DataFormatError: a file is damaged, or the checkpoint is of something else than a buffer.

    Example:
        >>> import tempfile, torch
        >>> from replaybank import LazyTensorStorage, ReplayBuffer
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(10))
        >>> _ = buffer.extend(torch.zeros(3, 2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     buffer.dumps(folder)
        ...     with opened_buffers(folder) as (saved,):
        ...         saved.kind("storage"), saved.length, saved.capacity, saved.load_storage()[2]
        ('LazyTensorStorage', 3, 10, tensor([0., 0.]))
    """
    with ExitStack() as stack:
        with watched_bytes("Reading", progress):
            state = stack.enter_context(checkpoint.opened(path))
        parts = state.get("buffers")
        states = parts if isinstance(parts, list) and parts else [state]
        for part in states:
            if not isinstance(part, Mapping) or not isinstance(part.get("writer"), Mapping):
                raise DataFormatError(
                    f"{path} is a checkpoint, but not of a buffer: it holds {sorted(map(str, state))!s:.200}"
                )
        yield [CheckpointedBuffer(part) for part in states]


class CheckpointedBuffer:
    """A buffer as it was saved. Immutable, so safe in any thread.

    Args:
        state: of a buffer, its items perhaps still in their files.

    Raises:
        DataFormatError: it is damaged.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state
        stored = state.get("storage")
        self._stored: Mapping[str, Any] = stored if isinstance(stored, Mapping) else {}
        self.length, self.capacity, self.written, self.cursor = 0, None, 0, 0
        log = self._stored.get("log")
        self.columns: tuple[int, ...] = tuple(self._stored.get("columns", ()))
        """Sizes of the batch dimensions behind time."""
        if log is not None:
            header, cut = checked_state(log)
            width = math.prod(self.columns)
            self.length = header[LENGTH] * width
            self.capacity = len(cut) * width
            self.written, self.cursor = header[TOTAL], header[CURSOR]
        elif isinstance(self._stored.get("steps"), int):  # a dataset, of which a checkpoint has the name only
            self.length = self._stored["steps"]
        self.leaves: tuple[LeafSpec, ...] = self._leaves()
        """What an item consists of; nothing of a list of objects."""

    length: int
    """Items."""
    capacity: int | None
    """Items that there is room for; None where the storage is a dataset."""
    written: int
    """Rows along time ever written."""
    cursor: int
    """The row that is written next."""

    def kind(self, part: str) -> str:
        """The class of its ``"storage"``, ``"sampler"`` or ``"writer"``; ``"?"`` where it was not noted."""
        kinds = self._state.get("kinds")
        found = kinds.get(part) if isinstance(kinds, Mapping) else None
        return found if isinstance(found, str) else "?"

    def settings(self, part: str) -> dict[str, int | float | str | bool]:
        """The plain values in the state of its sampler or writer."""
        state = self._state.get(part)
        if not isinstance(state, Mapping):
            return {}
        return {name: v for name, v in state.items() if isinstance(v, (int, float, str))}

    @property
    def weights(self) -> Tensor | None:
        """Priorities, each to the power of ``alpha``, float ``[items]``, where the sampler has them."""
        sampler = self._state.get("sampler")
        found = sampler.get("weights") if isinstance(sampler, Mapping) else None
        return found if isinstance(found, Tensor) else None

    @property
    def dataset(self) -> str | None:
        """The name of the dataset that is its storage, if it is one."""
        name = self._stored.get("name")
        return name if isinstance(name, str) else None

    @property
    def derived(self) -> bool:
        """Whether next observations are made from the next step (``next_observation="derive"``)."""
        return "next" in self._stored

    @property
    def encoded(self) -> dict[Key, EncodedFrames]:
        """How the images are kept that are kept as JPEG or PNG bytes."""
        frames: dict[Key, EncodedFrames] = {}
        for entry in self._stored.get("frames", ()):
            how = EncodedFrames(entry["format"], entry["quality"], entry["channels_first"])
            frames[self.leaves[entry["leaf"]].key] = how
        return frames

    @property
    def bytes(self) -> int:
        """Bytes of the items, as they are read."""
        return self.length * sum(leaf.bytes for leaf in self.leaves)

    def load_storage(self) -> Storage:
        """The items as a storage of its own, in a temporary file where they are large. O(bytes).

        Raises:
            DataFormatError: the state is damaged.
            TypeError: the items are no tensors.
        """
        if not self.leaves or self.capacity is None:
            what = f"the dataset {self.dataset!r}" if self.dataset else f"a {self.kind('storage')}"
            raise TypeError(f"the buffer's storage is {what}, which has no tensors in the checkpoint")
        make = LazyTensorStorage if self.bytes < IN_MEMORY else LazyMemmapStorage
        storage = make(
            self.capacity,
            ndim=1 + len(self.columns),
            next_observation="derive" if self.derived else None,
            encoded=self.encoded,
        )
        storage.load_state_dict(self._stored)
        return storage

    def _leaves(self) -> tuple[LeafSpec, ...]:
        leaves = self._stored.get("leaves")
        if not isinstance(leaves, list):
            return ()
        form = {"format": "replaybank.row-layout", "version": 1, "row_bytes": 0, "leaves": leaves}
        try:
            return tuple(RowLayout.from_json(form).leaves)
        except (ValueError, TypeError, KeyError) as error:
            raise DataFormatError(f"the checkpoint is damaged: {error}") from error
