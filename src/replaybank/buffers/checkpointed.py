"""What is in a checkpoint of a buffer, read without the buffer that saved it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from replaybank import checkpoint
from replaybank.errors import DataFormatError
from replaybank.progress import watched_bytes
from replaybank.storages.frames import EncodedFrames
from replaybank.storages.layout import Key, LeafSpec, RowLayout
from replaybank.storages.log_header import CURSOR, LENGTH, TOTAL, checked_state

UNKNOWN = "?"
"""Kind of a part whose class was not noted."""


@contextmanager
def opened_buffers(
    path: checkpoint.StrPath, *, progress: bool | None = None
) -> Iterator[list[CheckpointedBuffer]]:
    """The buffers of a checkpoint: one, or those of an ensemble. Checks all files: O(bytes).

    What they say is good within the ``with`` block, where savers to ``path`` wait.

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
        ...         saved.kind("storage"), saved.length, saved.capacity
        ('LazyTensorStorage', 3, 10)
    """
    with ExitStack() as files:
        with watched_bytes("Reading", progress):
            state = files.enter_context(checkpoint.opened(path))
        parts = state.get("buffers")
        states = parts if isinstance(parts, list) and parts else [state]
        for part in states:
            if not isinstance(part, Mapping) or not isinstance(part.get("writer"), Mapping):
                raise DataFormatError(
                    f"{path} is a checkpoint, but not of a buffer: it holds {sorted(map(str, state))!s:.200}"
                )
        apart = Path(path) / "storage"
        if "storage" not in state and states == [state] and checkpoint.is_checkpoint(apart):
            states = [{**state, "storage": files.enter_context(checkpoint.opened(apart))}]
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
        return found if isinstance(found, str) else UNKNOWN

    def settings(self, part: str) -> dict[str, int | float | str | bool]:
        """The plain values in the state of its sampler or writer."""
        state = self._state.get(part)
        if not isinstance(state, Mapping):
            return {}
        return {name: v for name, v in state.items() if isinstance(v, (int, float, str))}

    @property
    def sampler(self) -> Mapping[str, Any]:
        """The state of its sampler."""
        state = self._state.get("sampler")
        return state if isinstance(state, Mapping) else {}

    @property
    def weights(self) -> Tensor | None:
        """Priorities, each to the power of ``alpha``, float ``[items]``, where the sampler has them."""
        found = self.sampler.get("weights")
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

    @property
    def storages(self) -> list[Mapping[str, Any]]:
        """The states of its storages, of which an ensemble has several."""
        parts = self._stored.get("storages")
        return (
            [part for part in parts if isinstance(part, Mapping)]
            if isinstance(parts, list)
            else [self._stored]
        )

    def _leaves(self) -> tuple[LeafSpec, ...]:
        leaves = self._stored.get("leaves")
        if not isinstance(leaves, list):
            return ()
        form = {"format": "replaybank.row-layout", "version": 1, "row_bytes": 0, "leaves": leaves}
        try:
            return tuple(RowLayout.from_json(form).leaves)
        except (ValueError, TypeError, KeyError) as error:
            raise DataFormatError(f"the checkpoint is damaged: {error}") from error
