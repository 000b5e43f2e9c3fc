"""From what a sampler drew to a batch as the sampling transforms show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from tensordict import TensorDictBase, is_leaf_nontensor, is_tensor_collection, is_tensorclass
from torch import Tensor

from replaybank import _native
from replaybank.samplers.base import Index, InfoKey, SampledStorage, Sampler, unravel_columns
from replaybank.samplers.slicing import Slicing, lengthened_info, slice_ends, slicing_of
from replaybank.storages._tensordict import leaf_of, set_leaves
from replaybank.storages.layout import LeafPlace
from replaybank.storages.tensor import TensorStorage
from replaybank.trajectories.signals import Key
from replaybank.trajectories.windows import lengthen
from replaybank.transforms.base import Drawn, SampleTransform, StepView, ends_of, shown

Slicings: TypeAlias = "dict[tuple[InfoKey | None, InfoKey | None], Slicing]"
"""Trajectory indices by the keys that say where trajectories end."""


class Related:
    """Applies sampling transforms to the batches of a buffer.

    Transforms that name the same ends share one trajectory index, which follows the storage's write log;
    those that name none have that of a slice sampler.

    Not thread-safe: the buffer's lock guards it. Pickles without its indices.

    Args:
        transforms: any number, in any order.
        slicings: indices that others have made for the same storage; those that are missing are added.

    Raises:
        ValueError: several of them put steps before slices.
    """

    def __init__(self, transforms: Sequence[SampleTransform], slicings: Slicings) -> None:
        self._transforms = sorted(transforms, key=lambda transform: transform.level)
        extending = [each for each in self._transforms if each.steps_before]
        if len(extending) > 1:
            raise ValueError(
                f"{extending} would each put steps before the slices of a batch: give one of them."
            )
        self._extending = extending[0] if extending else None
        self._slicings = slicings
        self._range = torch.empty(0, dtype=torch.int64)

    def lengthened(
        self, index: Index, info: dict[InfoKey, Any], storage: Any, sampler: Sampler
    ) -> tuple[Index, dict[InfoKey, Any]]:
        """What a sampler drew, with the steps before slices that are asked for. O(B).

        Args:
            index: int64 ``[B]``, or a tuple of them, one a dimension of the storage.
            info: the sampler's, of a batch; as it is if the steps are there already.
            storage: where the steps are.
            sampler: who drew them.

        Raises:
            RuntimeError: the batch is not made of slices.
        """
        transform = self._extending
        if transform is None or transform.padded_key in info:
            return index, info
        ends = ends_of(transform, _flags(slice_ends(sampler, info)))
        found = self._slicing(transform, sampler).index_of(storage)
        found.sync(storage, found.min_length)
        slots, source, padded = lengthen(found, _slots_of(index, storage.shape), ends, transform.steps_before)
        return _index_like(index, slots, storage), {
            **lengthened_info(sampler, info, source, ends.numel()),
            transform.padded_key: padded.unsqueeze(-1).to(storage.device or "cpu"),
        }

    def __call__(
        self,
        items: Any,
        index: Index,
        storage: Any,
        *,
        sampler: Sampler,
        info: Mapping[InfoKey, Any],
        generator: torch.Generator | None = None,
    ) -> Any:
        """Make of the items of a batch what the transforms show. O(B) steps for each.

        Args:
            items: what the storage has at ``index``, a TensorDict ``[B]``; changed.
            index: int64 ``[B]``, or a tuple of them, one a dimension of the storage.
            storage: where they are.
            sampler: who drew them.
            info: what it says of them, as :meth:`lengthened` gives it.
            generator: source of random draws.

        Raises:
            KeyError: the storage lacks an entry that a transform needs.
            RuntimeError: the storage gives no TensorDict.
            TypeError: its items are no TensorDicts, or the index is not one a step.
        """
        trajectories = []
        for transform in self._transforms:
            found = self._slicing(transform, sampler).index_of(storage)
            found.sync(storage, found.min_length)
            trajectories.append(found)
        items = self._together(items)
        slots = _slots_of(index, storage.shape)
        if slots.numel() != items.batch_size.numel():
            raise TypeError(
                f"{self._transforms[0]!r} is for batches of steps, and the sampler gave {slots.numel()} "
                f"places of items {list(items.batch_size)}."
            )
        if not slots.numel():
            return items
        ends = _flags(slice_ends(sampler, info))
        padded = None if self._extending is None else _flags(info.get(self._extending.padded_key))
        columns = slots_in_a_row(storage)
        view: StepView = StoredSteps(storage, slots, items)
        of = self._range
        if of.numel() != slots.numel():
            of = self._range = torch.arange(slots.numel())
        below: dict[Key, None] = {}
        for transform, found in zip(self._transforms, trajectories, strict=True):
            below.update(dict.fromkeys(view.changed))
            view = transform.over(view, Drawn(slots, columns, found, ends, generator, padded, of))
        made = view.made(slots, of)
        if below:
            own = dict(made)
            made += [(key, view.read(key, slots, of)) for key in below if key not in own]
        for key, value in set_leaves(items, made):
            _put(items, key, value)
        return items

    def _together(self, items: Any) -> Any:
        if isinstance(items, list) and items and is_tensor_collection(items[0]):
            return torch.stack(items)
        if not is_tensor_collection(items):
            raise TypeError(
                f"{self._transforms[0]!r} makes entries of TensorDicts, and the storage gives a "
                f"{type(items).__name__}. Write TensorDicts."
            )
        return items

    def _slicing(self, transform: SampleTransform, sampler: Sampler | None) -> Slicing:
        keys = (transform.end_key, transform.traj_key)
        if keys == (None, None):
            found = slicing_of(sampler)
            if found is not None:
                return found
        found = self._slicings.get(keys)
        if found is None:
            found = self._slicings[keys] = Slicing(*keys, None, None)
        return found


class StoredSteps(StepView):
    """Steps as they are stored.

    Args:
        storage: where.
        slots: int64 ``[B]``, those of the batch.
        items: the same, read already.
    """

    def __init__(self, storage: Any, slots: Tensor, items: TensorDictBase) -> None:
        # Of other storages what is read may have more entries than what is stored.
        self._plain = isinstance(storage, TensorStorage)
        self.keys = storage.leaf_keys() if self._plain else _paths_of(items)
        self._storage, self._slots, self._items = storage, slots, items
        self._others: list[tuple[Tensor, dict[Key, Any]]] = []

    def read(self, key: Key, slots: Tensor, of: Tensor) -> Tensor:
        """What is stored."""
        if slots is self._slots:
            found: Tensor = leaf_of(self._items, key)
            return found
        known = self._known(slots)
        if key not in known:
            self._read_into(known, [key], slots)
        made: Tensor = known[key]
        return made

    def expect(self, keys: Sequence[Key], slots: Tensor, of: Tensor) -> None:
        """Read them, all at once."""
        if slots is not self._slots:
            known = self._known(slots)
            missing = [key for key in keys if key not in known]
            if missing:
                self._read_into(known, missing, slots)

    def place_of(self, key: Key) -> LeafPlace | None:
        """Where an entry of all steps lies, if kernels can read it there."""
        return self._storage.items_of(key) if self._plain else None

    def read_all(self, keys: Sequence[Key], slots: Tensor, of: Tensor) -> list[Any]:
        """Several entries, read at once if none of them has been."""
        self.expect(keys, slots, of)
        if slots is self._slots:
            return [leaf_of(self._items, key) for key in keys]
        known = self._known(slots)
        return [known[key] for key in keys]

    def _known(self, slots: Tensor) -> dict[Key, Any]:
        for of, known in self._others:
            if of is slots:
                return known
        known = {}
        self._others.append((slots, known))
        return known

    def _read_into(self, known: dict[Key, Any], keys: Sequence[Key], slots: Tensor) -> None:
        known.update(zip(keys, self._storage.get_leaves(keys, slots), strict=True))


def slots_in_a_row(storage: SampledStorage) -> int:
    """Number of columns."""
    columns = storage.columns
    return torch.Size(columns).numel() if columns else 1


def _slots_of(index: Index, shape: torch.Size) -> Tensor:
    """Places numbered row by row, int64 ``[B]``, contiguous; negative ones count from the end."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if len(parts) != len(shape):
        raise TypeError(
            f"Sampling transforms need an index for each of the {len(shape)} dimensions of the storage, and "
            f"the sampler gave {len(parts)}."
        )
    for k, part in enumerate(parts):
        if not (part.dtype is torch.int64 and part.is_cpu and part.is_contiguous()):
            parts[k] = part.to("cpu", torch.int64).contiguous()
    if len(parts) > 1 and any(part.shape != parts[0].shape for part in parts):
        parts = [part.contiguous() for part in torch.broadcast_tensors(*parts)]
    count = parts[0].numel()
    slots = torch.empty_like(parts[0])
    if slots.dim() != 1:
        slots = slots.view(-1)
    bad = _native.flatten_index([part.data_ptr() for part in parts], list(shape), count, slots.data_ptr())
    if bad >= 0:
        dim = bad % len(parts)
        raise IndexError(
            f"Index {int(parts[dim].reshape(-1)[bad // len(parts)])} is out of range: dimension {dim} of the "
            f"storage has {shape[dim]} written."
        )
    return slots


def _index_like(index: Index, slots: Tensor, storage: SampledStorage) -> Index:
    """Places numbered row by row in the form of another index."""
    if not isinstance(index, tuple):
        return slots
    if len(index) == 1:
        return (slots,)
    columns = slots_in_a_row(storage)
    return (slots // columns, *unravel_columns(slots % columns, storage.columns))


def _flags(values: Any) -> Tensor | None:
    """Flags of steps, bool ``[B]``, on the CPU and contiguous, if there are any."""
    return values.reshape(-1).cpu().contiguous() if isinstance(values, Tensor) else None


def _paths_of(items: TensorDictBase) -> list[Key]:
    """Paths of all entries, texts included."""
    found = items.keys(True, True, is_leaf=is_leaf_nontensor)
    return [(key,) if isinstance(key, str) else tuple(key) for key in found]


def _put(items: Any, key: Key, value: Tensor) -> None:
    """Set an entry; a tensorclass gets those that it has fields for."""
    if is_tensorclass(items):
        below: Any = items
        for part in key:
            if not is_tensor_collection(below) or part not in below.keys():  # noqa: SIM118
                return
            below = below.get(part)
    items.set(shown(key), value.to(items.device) if items.device is not None else value)
