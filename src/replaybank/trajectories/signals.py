"""Where trajectories end: by a bool of each step, or by a change of value from one step to the next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor

from replaybank import _native
from replaybank.storages.layout import LeafPlace
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

    def read(self, storage: StepSource, start: int, count: int) -> Tensor:
        """The values of ``count`` rows from ``start`` (modulo ``rows``) on. O(count).

        Returns:
            ``[count, *columns, *item]``, contiguous, on the CPU, perhaps a view of the storage.

        Raises:
            KeyError: the storage lacks the leaf.
            RuntimeError: the leaf has more dimensions than the storage.
        """
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
        if not value.is_cpu:
            value = value.cpu()
        columns = storage.columns
        value = side_by_side(self.checked(value, 1 + len(columns)))
        # Kernels count on it; a storage that holds fewer rows than its log says gives what it has.
        if value.shape[0] != count or value.shape[1 : 1 + len(columns)] != columns:
            raise RuntimeError(
                f"{count} rows {tuple(storage.columns)} of {self.key} were asked for, the storage gives "
                f"{tuple(value.shape)}: its write log does not describe it."
            )
        return value

    def in_place(self, storage: StepSource) -> LeafPlace | None:
        """Where the values of a storage without further dimensions lie, if kernels can use them there.

        None where they have to be read, because they are elsewhere or of another form.
        """
        find = getattr(storage, "place_of", None)
        place: LeafPlace | None = None if find is None else find(self.key)
        return place if place is not None and self.usable(place) else None

    @abstractmethod
    def usable(self, place: LeafPlace) -> bool:
        """Whether the bytes of these values are what is looked for."""

    @abstractmethod
    def checked(self, value: Tensor, ndim: int) -> Tensor:
        """``value``, cast if need be, of a storage of ``ndim`` dimensions."""

    @abstractmethod
    def flags(self, values: Tensor, n_columns: int, after: Tensor | None) -> Tensor:
        """Whether a trajectory ends with each step, contiguous bool, ``count * n_columns`` in all. O(count).

        Args:
            values: ``[count, ...]``, what was read.
            n_columns: number of columns.
            after: ``[1, ...]``, the values of the next row, if that continues the last one.
        """

    @abstractmethod
    def flags_before(self, before: Tensor, values: Tensor, n_columns: int) -> Tensor:
        """The same for the row before, contiguous bool of ``n_columns`` elements.

        Args:
            before: ``[1, ...]``, the values of that row.
            values: ``[count, ...]``, those of the rows that continue it.
            n_columns: number of columns.
        """


class DoneSignal(EndSignal):
    """A bool (or number) a step; true ends the trajectory. A trailing dimension of 1 is allowed."""

    depends_on_next = False

    def usable(self, place: LeafPlace) -> bool:
        """A bool a row is the flag itself."""
        return place.dtype is torch.bool and place.shape in ((), (1,))

    def checked(self, value: Tensor, ndim: int) -> Tensor:
        """``value`` as bool."""
        if value.ndim != ndim and (value.ndim != ndim + 1 or value.shape[-1] != 1):
            raise RuntimeError(
                f"Expected the end-of-trajectory signal to be {ndim}-dimensional as the storage is (a "
                f"trailing dimension of 1 is allowed), got {value.ndim} dimensions under {self.key}: "
                f"{tuple(value.shape)}."
            )
        return value if value.dtype == torch.bool else value != 0

    def flags(self, values: Tensor, n_columns: int, after: Tensor | None) -> Tensor:
        """The values are the flags."""
        return values

    def flags_before(self, before: Tensor, values: Tensor, n_columns: int) -> Tensor:
        """The values are the flags."""
        return before


class ChangeSignal(EndSignal):
    """An identity a step, of any dtype and item shape; the trajectory ends where the next step's differs.

    Identities are compared by their bytes: NaN is the same identity as NaN, and -0.0 as 0.0.
    """

    depends_on_next = True

    def usable(self, place: LeafPlace) -> bool:
        """Whole numbers are equal where their bytes are."""
        return place.dtype in _WHOLE and place.bytes > 0

    def checked(self, value: Tensor, ndim: int) -> Tensor:
        """``value`` in a form that equal identities have the same bytes in. NaN equals NaN."""
        return comparable(value)

    def flags(self, values: Tensor, n_columns: int, after: Tensor | None) -> Tensor:
        """Where the bytes change."""
        count = values.shape[0]
        flags = torch.empty(count * n_columns, dtype=torch.bool)
        size = values.numel() * values.element_size() // flags.numel()
        _native.trajectory_changes(
            values.data_ptr(),
            count,
            n_columns,
            size,
            0 if after is None else after.data_ptr(),
            flags.data_ptr(),
        )
        return flags

    def flags_before(self, before: Tensor, values: Tensor, n_columns: int) -> Tensor:
        """Where the bytes change."""
        return self.flags(before, n_columns, values)


_WHOLE = frozenset((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))


def side_by_side(values: Tensor) -> Tensor:
    """The same values, contiguous; a column of rows is copied in a third of the time that torch takes."""
    if values.is_contiguous():
        return values
    if values.numel() != values.shape[0] or values.is_conj() or values.is_neg():
        return values.contiguous()
    out = torch.empty_like(values, memory_format=torch.contiguous_format)
    size = values.element_size()
    _native.copy_spread(values.data_ptr(), values.stride(0) * size, size, values.numel(), out.data_ptr())
    return out


def comparable(identities: Tensor) -> Tensor:
    """Identities in a form that equal ones have the same bytes in.

    Example:
        >>> comparable(torch.tensor([-0.0, 0.0])).view(torch.int32).tolist()
        [0, 0]
    """
    if identities.dtype == torch.bool:
        return identities.view(torch.uint8) != 0  # a bool made by viewing other bytes holds any
    if identities.is_floating_point():
        # Types of one byte know no sums.
        wide = identities.float() if identities.element_size() == 1 else identities
        return wide + 0.0  # -0.0 becomes 0.0
    return identities + 0.0 if identities.is_complex() else identities
