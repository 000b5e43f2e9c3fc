"""The writer of data that nobody writes to."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from replaybank.writers.base import Writer


class ImmutableDatasetWriter(Writer):
    """Refuses to write: for datasets that are only read.

    Safe in any thread.

    Args:
        compilable: see :class:`Writer`.

    Example:
        >>> from replaybank import LazyTensorStorage, ReplayBuffer
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(10), writer=ImmutableDatasetWriter())
        >>> buffer.extend([1, 2])
        Traceback (most recent call last):
            ...
        RuntimeError: This dataset is read-only. ...
    """

    def add(self, data: Any) -> Any:
        """Refuse.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(_REFUSAL)

    def extend(self, data: Any) -> Tensor:
        """Refuse.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(_REFUSAL)


_REFUSAL = (
    "This dataset is read-only. To change or add items, copy those that you need into a buffer of your own, "
    "as in ReplayBuffer(storage=LazyTensorStorage(max_size)).extend(dataset[:1000])."
)
