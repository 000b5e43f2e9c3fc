"""From what a sampler drew to a batch as the sampling transforms show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection, is_tensorclass
from torch import Tensor

from replaybank.samplers.base import Index, InfoKey, SampledStorage, unravel_columns
from replaybank.samplers.slicing import Slicing
from replaybank.storages._tensordict import leaf_of
from replaybank.trajectories.signals import Key
from replaybank.transforms.base import Drawn, SampleTransform, StepView, shown


class Related:
    """Applies sampling transforms to the batches of a buffer.

    Transforms that name the same ends share one trajectory index, which follows the storage's write log.

    Not thread-safe: the buffer's lock guards it. Pickles without its indices.

    Args:
        transforms: any number, in any order.
    """

    def __init__(self, transforms: Sequence[SampleTransform]) -> None:
        self._transforms = sorted(transforms, key=lambda transform: transform.level)
        found: dict[tuple[InfoKey | None, InfoKey | None], Slicing] = {}
        for transform in self._transforms:
            ends = (transform.end_key, transform.traj_key)
            if ends not in found:
                found[ends] = Slicing(*ends, None, None)
        self._slicings = found

    def __call__(
        self,
        items: Any,
        index: Index,
        storage: Any,
        *,
        ends: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Any:
        """Make of the items of a batch what the transforms show. O(B) steps for each.

        Args:
            items: what the storage has at ``index``, a TensorDict ``[B]``; changed.
            index: int64 ``[B]``, or a tuple of them, one a dimension of the storage.
            storage: where they are.
            ends: bool ``[B]`` or ``[B, 1]``, true at the last step of each slice, if slices were drawn.
            generator: source of random draws.

        Raises:
            KeyError: the storage lacks an entry that a transform needs.
            RuntimeError: the storage gives no TensorDict.
            TypeError: its items are no TensorDicts, or the index is not one a step.
        """
        trajectories = []
        for transform in self._transforms:
            found = self._slicings[transform.end_key, transform.traj_key].index_of(storage)
            found.sync(storage)
            trajectories.append(found)
        if not is_tensor_collection(items):
            raise TypeError(
                f"{self._transforms[0]!r} makes entries of TensorDicts, and the storage gives a "
                f"{type(items).__name__}. Write TensorDicts."
            )
        slots = _slots_of(index, storage.shape)
        if slots.numel() != items.batch_size.numel():
            raise TypeError(
                f"{self._transforms[0]!r} is for batches of steps, and the sampler gave {slots.numel()} "
                f"places of items {list(items.batch_size)}."
            )
        if not slots.numel():
            return items
        ends = None if ends is None else ends.reshape(-1).cpu()
        view: StepView = StoredSteps(storage, slots, items)
        changed: dict[Key, None] = {}
        for transform, found in zip(self._transforms, trajectories, strict=True):
            columns = slots_in_a_row(storage)
            view = transform.over(view, Drawn(slots, columns, found, ends, generator))
            changed.update(dict.fromkeys(view.changed))
        of = torch.arange(slots.numel())
        made = {key: view.read(key, slots, of) for key in changed}
        for key, value in made.items():
            _put(items, key, value)
        return items


_SMALL_BYTES = 1024
"""Of an item without images."""


class StoredSteps(StepView):
    """Steps as they are stored.

    Args:
        storage: where.
        slots: int64 ``[B]``, those of the batch.
        items: the same, read already.
    """

    def __init__(self, storage: SampledStorage, slots: Tensor, items: TensorDictBase) -> None:
        self.keys = storage.leaf_keys()
        self._storage, self._slots, self._items = storage, slots, items
        self._others: tuple[Tensor, Any] | None = None
        self._before: Tensor | None = None

    def read(self, key: Key, slots: Tensor, of: Tensor) -> Tensor:
        """What is stored."""
        if slots is self._slots:
            found: Tensor = leaf_of(self._items, key)
            return found
        storage = self._storage
        if self._others is not None and self._others[0] is slots:
            known: Tensor = leaf_of(self._others[1], key)
            return known
        again, self._before = self._before is slots, slots
        if storage.ndim == 1:
            if not (again and self._are_small()):
                return storage.read_leaf(key, slots)
            index: Index = slots
        else:
            index = _index_of(slots, storage)
            if self._is_seen_through(key):
                return storage.read_leaf(key, slice(0, storage.shape[0]))[index]
            # Entries made when they are read come with all columns if they are read alone.
        items = storage.get(index)  # type: ignore[attr-defined]
        self._others = slots, items
        made: Tensor = leaf_of(items, key)
        return made

    def _are_small(self) -> bool:
        """Whether all entries are read at once in the time that two take by themselves."""
        taken = sum(leaf_of(self._items, key).nbytes for key in self.keys)
        return bool(taken <= _SMALL_BYTES * self._slots.numel())

    def _is_seen_through(self, key: Key) -> bool:
        """Whether slices of rows are views of the storage, however many they are."""
        one, again = (self._storage.read_leaf(key, slice(0, 1)) for _ in range(2))
        return one.data_ptr() == again.data_ptr()


def slots_in_a_row(storage: SampledStorage) -> int:
    """Number of columns."""
    return torch.Size(storage.columns).numel()


def _slots_of(index: Index, shape: torch.Size) -> Tensor:
    parts = index if isinstance(index, tuple) else (index,)
    if len(parts) != len(shape):
        raise TypeError(
            f"Sampling transforms need an index for each of the {len(shape)} dimensions of the storage, and "
            f"the sampler gave {len(parts)}."
        )
    slots = parts[0].cpu()
    for part, size in zip(parts[1:], shape[1:], strict=True):
        slots = slots * size + part.cpu()
    return slots.reshape(-1)


def _index_of(slots: Tensor, storage: SampledStorage) -> tuple[Tensor, ...]:
    columns = slots_in_a_row(storage)
    return (slots // columns, *unravel_columns(slots % columns, storage.columns))


def _put(items: Any, key: Key, value: Tensor) -> None:
    """Set an entry; a tensorclass gets those that it has fields for."""
    if is_tensorclass(items):
        below: Any = items
        for part in key:
            if not is_tensor_collection(below) or part not in below.keys():  # noqa: SIM118
                return
            below = below.get(part)
    items.set(shown(key), value.to(items.device) if items.device is not None else value)
