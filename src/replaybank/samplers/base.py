"""What every sampler is: a rule that says which stored items make up a batch."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from replaybank import _native, showing
from replaybank.checkpoint import Stateful
from replaybank.storages.resize import Move
from replaybank.trajectories.signals import Key, StepSource

Index: TypeAlias = "Tensor | tuple[Tensor, ...]"
"""Where items are: int64 ``[B]``, or a tuple of them, one a dimension of the storage."""

InfoKey: TypeAlias = "str | tuple[str, ...]"
"""Key of an extra in a sample; a tuple is nested."""


class FromItems(NamedTuple):
    """An entry of the info that the items themselves hold: whoever reads them takes it from there.

    Looking it up in the storage too would wait for the same memory twice.

    Args:
        key: path of the leaf.
        also: bool ``[B, 1]``, true where the entry is true whatever the items say.
    """

    key: tuple[str, ...]
    also: Tensor | None

    def of(self, stored: Tensor) -> Tensor:
        """The entry, bool ``[B, 1]``, from the leaf of the items, ``[B]`` or ``[B, 1, ...]``.

        Raises:
            RuntimeError: the leaf has more than one value an item.
        """
        value = stored if stored.dtype == torch.bool else stored != 0
        if value.dim() != 2 or value.shape[1] != 1:
            if value[:1].numel() > 1:
                raise RuntimeError(
                    f"The stored {self.key} has values of shape {tuple(value.shape[1:])}, and a slice ends "
                    "with one a step. Give the sampler truncated_key=None to leave the ends of slices out, "
                    'or have them elsewhere, as truncated_key=("slice", "truncated").'
                )
            value = value.reshape(-1, 1)
        also = self.also
        if also is None:
            return value
        if not (value.is_cpu and also.is_cpu and value.is_contiguous() and also.is_contiguous()):
            return value | also
        if value.shape != also.shape:
            return value | also
        out = torch.empty_like(also)  # torch's own takes twice as long for a batch
        _native.slice_either(value.data_ptr(), also.data_ptr(), out.numel(), out.data_ptr())
        return out


class SampledStorage(StepSource, Protocol):
    """What samplers need of a storage."""

    @property
    def ndim(self) -> int:
        """Number of batch dimensions, time included."""
        ...

    @property
    def shape(self) -> torch.Size:
        """Of the valid part: rows written, then the columns."""
        ...

    @property
    def max_size(self) -> int:
        """Capacity in items, over all dimensions."""
        ...

    @property
    def device(self) -> torch.device | None:
        """Where samples come to lie; None if that depends on the item."""
        ...

    def __len__(self) -> int: ...

    def leaf_keys(self) -> list[Key]:
        """Paths of all leaves."""
        ...


class Sampler(Stateful):
    """Says which stored items make up a batch; it never holds the data.

    A subclass has :meth:`sample`, and what of the rest it needs.

    Not thread-safe: the buffer's lock guards it.

    Attributes:
        generator: where every random draw comes from; ``None``: torch's global generator. The buffer hands
            it down; it is not part of the state.

    Example:
        >>> import torch
        >>> from replaybank import LazyTensorStorage, ReplayBuffer
        >>> class Newest(Sampler):
        ...     def sample(self, storage, batch_size):
        ...         back = torch.arange(1, batch_size + 1)
        ...         return (storage.log.cursor - back) % len(storage), {}
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(10), sampler=Newest(), batch_size=3)
        >>> _ = buffer.extend(torch.arange(7))
        >>> buffer.sample()
        tensor([6, 5, 4])
    """

    generator: torch.Generator | None = None
    _guarded = False

    @property
    def guarded(self) -> bool:
        """Whether a lock between processes is held whenever this is used; a shared buffer sets it."""
        return self._guarded

    @guarded.setter
    def guarded(self, value: bool) -> None:
        self._guarded = value

    @abstractmethod
    def sample(self, storage: SampledStorage, batch_size: int) -> tuple[Index, dict[InfoKey, Any]]:
        """Choose the items of a batch.

        Args:
            storage: what is sampled from; at least one item.
            batch_size: number of items, B.

        Returns:
            Their index, int64 ``[B]`` or a tuple of them (one a dimension of the storage), and extras for
            the sample by key.

        Raises:
            RuntimeError: the storage is empty.
        """

    def draw(self, storage: SampledStorage, batch_size: int) -> tuple[Index, dict[InfoKey, Any]]:
        """As :meth:`sample`, for a caller who reads the items: the info may hold :class:`FromItems`.

        Args:
            storage: what is sampled from; at least one item.
            batch_size: number of items, B.
        """
        return self.sample(storage, batch_size)

    def register_storage(self, storage: SampledStorage) -> None:
        """Hear which storage will be sampled.

        Args:
            storage: it may be empty, and not allocated yet.

        Raises:
            ValueError: the sampler has no room for what it holds.
        """

    def check_write(self, storage: Any, data: Any, *, single: bool = False) -> None:
        """Hear what is about to be written: items, or a ``single`` time row.

        Args:
            storage: where to.
            data: the items ``[B, ...]``, as they will be written.
            single: it is one time row, without a time dimension.

        Raises:
            ValueError: the sampler would have no room for it; nothing has been written.
        """

    def add(self, index: Any) -> None:
        """Hear that the writer wrote one item.

        Args:
            index: where it went, as the writer says; None if it was not kept.
        """

    def extend(self, index: Any) -> None:
        """Hear that the writer wrote items.

        Args:
            index: where they went, int64 ``[B]`` or ``[B, ndim]``; -1 for those that were not kept.
        """

    def update_priority(self, index: Any, priority: Any, *, storage: SampledStorage | None = None) -> None:
        """Set priorities; here: warn that there are none, and change nothing.

        Args:
            index: which items, as in the info of a sample.
            priority: a number or ``[B]``.
            storage: what is sampled from.
        """
        warnings.warn(
            f"{type(self).__name__} has no priorities, so update_priority changes nothing. Give the "
            "buffer a PrioritizedSampler, or a PrioritizedSliceSampler, to sample by priority.",
            stacklevel=2,
        )

    def mark_update(self, index: Any, *, storage: SampledStorage | None = None) -> None:
        """Hear that items changed.

        Args:
            index: which items, as in the info of a sample.
            storage: what is sampled from.
        """

    @property
    def default_priority(self) -> float:
        """What new items count."""
        return 1.0

    @property
    def ran_out(self) -> bool:
        """Whether the last call ended a pass; never, unless the sampler is exhaustible."""
        return False

    @ran_out.setter
    def ran_out(self, value: bool) -> None:
        """The buffer's iterator resets it; nothing to reset here."""

    @property
    def exhaustible(self) -> bool:
        """Whether sampling goes in passes: whether :attr:`ran_out` is ever True."""
        return type(self).ran_out is not Sampler.ran_out

    def empty(self) -> None:
        """Forget everything: the buffer was emptied."""

    def share_memory_(self) -> Sampler:
        """Move what processes have to agree on to shared memory. Here: nothing."""
        return self

    def state_dict(self) -> dict[str, Any]:
        """The full state: tensors and plain values. Here: none."""
        return {}

    def moved(self, state_dict: Mapping[str, Any], move: Move) -> Mapping[str, Any]:
        """A state of a sampler of this kind for a storage whose rows have moved; that itself is not changed.

        Args:
            state_dict: what :meth:`state_dict` gave.
            move: where the rows come to lie.

        Raises:
            ValueError: it cannot follow.
        """
        if move.first and state_dict:
            raise ValueError(
                f"The state is of a storage of {move.before} rows that had gone round; in one of {move.rows} "
                f"the items lie elsewhere, which the state of a {type(self).__name__} cannot follow. Load it "
                "into a storage of that size. Nothing has been changed."
            )
        return state_dict

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state; ``state_dict`` itself is not changed.

        Args:
            state_dict: what :meth:`state_dict` gave.
        """

    def _facts(self) -> dict[str, Any]:
        """What its repr tells: its settings."""
        return {}

    def __repr__(self) -> str:
        return showing.text_of(self)

    def _repr_html_(self) -> str:
        return showing.html_of(self)


def refuse_empty(storage: SampledStorage) -> int:
    """Number of items.

    Raises:
        RuntimeError: there are none.
    """
    n = len(storage)
    if n == 0:
        raise RuntimeError("Cannot sample from an empty storage.")
    return n


def completed(storage: SampledStorage, info: dict[InfoKey, Any], index: Index) -> dict[InfoKey, Any]:
    """The info of a ``draw`` as ``sample`` gives it: what the items hold read from the storage. O(B)."""
    for key, value in info.items():
        if isinstance(value, FromItems):
            if storage.ndim == 1:
                stored = storage.read_leaf(value.key, index if isinstance(index, Tensor) else index[0])
            else:
                # A view of all rows: reading whole rows would copy every column.
                stored = storage.read_leaf(value.key, slice(0, storage.shape[0]))[index]
            info[key] = value.of(stored)
    return info


def unravel_columns(column: Tensor, columns: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Flat column numbers as one index a dimension behind time."""
    return (column,) if len(columns) == 1 else torch.unravel_index(column, columns)
