"""Where trajectories end: by a bool of each step, or by a change of value from one step to the next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor

from replaybank.storages.write_log import WriteLog

Key = tuple[str, ...]
"""Path of a leaf. A part is never split."""


class StepSource(Protocol):
    """What the trajectory index needs of a storage."""

    @property
    def log(self) -> WriteLog:
        """The log of its writes."""
        ...

    @property
    def columns(self) -> tuple[int, ...]:
        """Sizes of the dimensions behind time."""
        ...

    def read_leaf(self, key: Key, rows: Tensor | slice) -> Tensor:
        """Values ``[k, *columns, *item]`` of one leaf at the given rows."""
        ...


class EndSignal(ABC):
    """A leaf of a storage that tells where trajectories end.

    Immutable, so safe in any thread.

    Args:
        key: path of the leaf.
    """

    depends_on_next: bool
    """The flag of a step depends on the value of the step after it."""

    def __init__(self, key: Key) -> None:
        self.key = key

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, EndSignal) and other.key == self.key

    def __hash__(self) -> int:
        return hash((type(self), self.key))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r})"

    def read(self, storage: StepSource, start: int, count: int, n_columns: int) -> Tensor:
        """The values of ``count`` rows from ``start`` on (modulo ``rows``), ``[count, n_columns, ...]``. O(count)."""
        rows = storage.log.rows
        end = start + count
        if end <= rows:
            value = storage.read_leaf(self.key, slice(start, end))
        else:
            parts = (
                storage.read_leaf(self.key, slice(start, rows)),
                storage.read_leaf(self.key, slice(0, end - rows)),
            )
            value = torch.cat(parts)
        if value.device.type != "cpu":
            value = value.cpu()
        return self.per_column(value, count, n_columns, 1 + len(storage.columns))

    @abstractmethod
    def per_column(self, value: Tensor, count: int, n_columns: int, ndim: int) -> Tensor:
        """``[count, *columns, *item]`` in the form the other methods take: ``[count, n_columns, ...]``."""

    @abstractmethod
    def flags(self, values: Tensor, after: Tensor | None) -> Tensor:
        """Whether a trajectory ends with each step, contiguous bool ``[count, n_columns]``. O(count).

        Args:
            values: ``[count, n_columns, ...]``, what was read.
            after: ``[n_columns, ...]``, the values of the next row, if that continues the last one.
        """

    @abstractmethod
    def flags_before(self, before: Tensor, values: Tensor) -> Tensor:
        """The same for the row before, contiguous bool ``[n_columns]``.

        Args:
            before: ``[n_columns, ...]``, the values of that row.
            values: ``[count, n_columns, ...]``, those of the rows that continue it.
        """


class DoneSignal(EndSignal):
    """A bool (or number) a step; one that is true ends the trajectory. A trailing dimension of 1 is allowed."""

    depends_on_next = False

    def per_column(self, value: Tensor, count: int, n_columns: int, ndim: int) -> Tensor:
        if value.dtype != torch.bool:
            value = value != 0
        if value.dim() != ndim and (value.dim() != ndim + 1 or value.shape[-1] != 1):
            raise RuntimeError(
                f"Expected the end-of-trajectory signal to be {ndim}-dimensional as the storage is (a trailing "
                f"dimension of 1 is allowed), got {value.dim()} dimensions of shape {tuple(value.shape)} "
                f"under {self.key}."
            )
        return value.reshape(count, n_columns).contiguous()

    def flags(self, values: Tensor, after: Tensor | None) -> Tensor:
        return values

    def flags_before(self, before: Tensor, values: Tensor) -> Tensor:
        return before


class ChangeSignal(EndSignal):
    """An identity a step, of any dtype and item shape; the trajectory ends where the next step's differs."""

    depends_on_next = True

    def per_column(self, value: Tensor, count: int, n_columns: int, ndim: int) -> Tensor:
        return value.reshape(count, n_columns, -1)

    def flags(self, values: Tensor, after: Tensor | None) -> Tensor:
        ends = torch.zeros(values.shape[:2], dtype=torch.bool)
        torch.any(values[:-1] != values[1:], -1, out=ends[:-1])
        if after is not None:
            ends[-1] = self.flags_before(values[-1], after[None])
        return ends

    def flags_before(self, before: Tensor, values: Tensor) -> Tensor:
        return (before != values[0]).any(-1)
