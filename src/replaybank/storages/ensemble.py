"""Several storages read as one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict, is_tensor_collection, lazy_stack
from torch import Tensor

from replaybank import showing
from replaybank.checkpoint import Stateful
from replaybank.storages._tensordict import build, entries
from replaybank.storages.base import Storage, entry
from replaybank.storages.indexing import pick
from replaybank.storages.snapshot import StorageSnapshot

Transform = Callable[[Any], Any]


class StorageEnsemble(Stateful):
    """Several storages, read by an index that says which one and where in it.

    It is written to through its parts only.

    Not thread-safe: the locks of the parts' buffers guard it.

    Args:
        *storages: at least one.
        transforms: what is called on the data that a part gives, one or None a part.

    Raises:
        ValueError: there is none, or another number of transforms.

    Example:
        >>> from tensordict import TensorDict
        >>> from replaybank.storages import TensorStorage
        >>> ensemble = StorageEnsemble(TensorStorage(torch.arange(5)), TensorStorage(torch.arange(5) * 10))
        >>> where = {"buffer_ids": torch.tensor([1, 0]), "index": torch.tensor([[1, 2], [3, 4]])}
        >>> ensemble.get(TensorDict(where, batch_size=[2]))
        tensor([[10, 20],
                [ 3,  4]])
        >>> ensemble[:, :2], ensemble[1, -1], len(ensemble[:1])
        (tensor([[ 0,  1],
                 [ 0, 10]]), tensor(40), 5)
    """

    def __init__(self, *storages: Storage, transforms: Sequence[Transform | None] | None = None) -> None:
        if not storages:
            raise ValueError("A StorageEnsemble needs at least one storage.")
        if transforms is not None and len(transforms) != len(storages):
            raise ValueError(
                f"{len(transforms)} transforms for {len(storages)} storages: give one each, None for none."
            )
        self.storages = storages
        self.transforms = None if transforms is None else tuple(transforms)

    @property
    def max_size(self) -> int:
        """Capacity of all parts in items."""
        return sum(storage.max_size for storage in self.storages)

    @property
    def initialized(self) -> bool:
        """Whether all parts know what their items look like."""
        return all(storage.initialized for storage in self.storages)

    def __len__(self) -> int:
        return sum(len(storage) for storage in self.storages)

    def get(self, index: Any) -> Any:
        """Items of some parts, one part behind the other. O(B * bytes of an item).

        Args:
            index: a TensorDict or mapping with ``"buffer_ids"``, int64 ``[K]``, the numbers of the parts, and
                ``"index"``, int64 ``[K, B]`` or ``[K, B, D]``, where in each; nested if their sizes differ.

        Returns:
            ``[K, B, ...]``: TensorDicts stacked, lazily where sizes or keys differ; tensors stacked, nested
            where sizes differ; a list of what the parts give otherwise.

        Raises:
            TypeError: another form of index.
            IndexError: there is no such part, or no such item in it.
        """
        if not (is_tensor_collection(index) or isinstance(index, Mapping)):
            raise TypeError(
                "A StorageEnsemble is read by an index with 'buffer_ids' and 'index', as a SamplerEnsemble "
                f"gives it, got {type(index).__name__}. Read one part as ensemble[i][...]."
            )
        ids, items = index["buffer_ids"].tolist(), index["index"].unbind()
        return combined([self._read(k, item) for k, item in zip(ids, items, strict=True)])

    def __getitem__(self, index: Any) -> Any:
        """A part, an ensemble of some, or items.

        Args:
            index: as for :meth:`get`; or which parts, an integer for the storage itself, a slice, list,
                range, array, tensor, mask or ``...`` for an ensemble of those; or a tuple: which parts, and
                what in each of them.

        Raises:
            IndexError: there is no such part or item.
            TypeError: no index.
        """
        if is_tensor_collection(index) or isinstance(index, Mapping):
            return self.get(index)
        if isinstance(index, tuple):
            return self._read_parts(index)
        picked = pick(index, len(self.storages), "Storage")
        if isinstance(picked, int):
            return self.storages[picked]
        transforms = None if self.transforms is None else [self.transforms[number] for number in picked]
        return StorageEnsemble(*(self.storages[number] for number in picked), transforms=transforms)

    def _read_parts(self, index: tuple[Any, ...]) -> Any:
        if not index:
            raise TypeError("An empty tuple is no index.")
        picked = pick(index[0], len(self.storages), "Storage")
        if len(index) == 1:
            return self[index[0]]
        inner = index[1] if len(index) == 2 else index[1:]
        if isinstance(picked, int):
            return self._changed(picked, self.storages[picked].get(inner))
        return combined([self._changed(number, self.storages[number].get(inner)) for number in picked])

    def _read(self, number: int, items: Tensor) -> Any:
        if not 0 <= number < len(self.storages):
            raise IndexError(f"There is no part {number}: the ensemble has {len(self.storages)}.")
        storage = self.storages[number]
        return self._changed(number, storage.get(item_index(items, storage.ndim)))

    def _changed(self, number: int, data: Any) -> Any:
        transform = None if self.transforms is None else self.transforms[number]
        return data if transform is None else transform(data)

    def set(self, *args: Any, **kwargs: Any) -> None:
        """Refused.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("A StorageEnsemble is not written to: write to one of its storages.")

    def __setitem__(self, index: Any, data: Any) -> None:
        self.set(index, data)

    def empty(self) -> None:
        """Empty all parts."""
        for storage in self.storages:
            storage.empty()

    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        """The states of the parts; ``copy`` as in :meth:`Storage.state_dict`."""
        return {"storages": [storage.state_dict(copy=copy) for storage in self.storages]}

    def state_to_save(self) -> dict[str, Any]:
        """The states of the parts; see :meth:`Storage.state_to_save`."""
        return {"storages": [storage.state_to_save() for storage in self.storages]}

    @property
    def takes_stored_rows(self) -> bool:
        """Whether all parts do."""
        return all(storage.takes_stored_rows for storage in self.storages)

    def move_of(self, state_dict: Mapping[str, Any]) -> None:
        """Nothing moves: the parts are as large as they were."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state, wholly or not at all. O(N), with copies of what the parts hold.

        Raises:
            ValueError: it is of another number of parts, or does not fit; nothing has been changed.
        """
        states = entry(state_dict, "storages", list)
        if len(states) != len(self.storages):
            raise ValueError(
                f"The state is of {len(states)} storages, the ensemble has {len(self.storages)}."
            )
        for number, (storage, state) in enumerate(zip(self.storages, states, strict=True)):
            if storage.move_of(state) is not None:  # the samplers of the parts would not know
                raise ValueError(
                    f"The state of part {number} is of another capacity than the storage: make it as large. "
                    "Nothing has been changed."
                )
        before: list[StorageSnapshot] = []
        try:
            for storage, state in zip(self.storages, states, strict=True):
                before.append(StorageSnapshot(storage))
                storage.load_state_dict(state)
        except BaseException:
            for snapshot in before:
                snapshot.restore()
            raise

    def _facts(self) -> dict[str, Any]:
        """What its repr tells."""
        return {"": showing.Parts(self.storages)}

    def __repr__(self) -> str:
        return showing.text_of(self)

    def _repr_html_(self) -> str:
        return showing.html_of(self)


def item_index(items: Tensor, ndim: int) -> Tensor | tuple[Tensor, ...]:
    """Rows of an ensemble's index as an index of one part.

    Args:
        items: int64 ``[B]`` or ``[B, D]``; what is beyond ``ndim`` pads the index of a part with fewer
            dimensions than others.
        ndim: number of dimensions of the part.
    """
    if items.dim() < 2:
        return items
    return items[:, 0] if ndim == 1 else tuple(items[:, :ndim].unbind(-1))


def stacked(parts: Sequence[Tensor]) -> Tensor:
    """Tensors ``[B_k, ...]`` as one ``[K, B, ...]``, nested (jagged) where their lengths differ."""
    lengths = [len(part) for part in parts]
    if len(set(lengths)) == 1:
        return torch.stack(tuple(parts))
    offsets = torch.tensor([0, *lengths], device=parts[0].device).cumsum(0)
    nested: Tensor = torch.nested.nested_tensor_from_jagged(torch.cat(tuple(parts)), offsets)
    return nested


def combined(parts: Sequence[Any]) -> Any:
    """Batches of several parts as one, ``[K, B, ...]``. O(bytes).

    TensorDicts are stacked, lazily where their batch sizes, keys or shapes differ; tensors are stacked,
    nested where their lengths differ; dicts of them entry by entry. Anything else comes as a list.
    """
    first = parts[0]
    if all(is_tensor_collection(part) for part in parts):
        if len({part.batch_size for part in parts}) == 1:
            plain = _stacked_plainly(parts)
            if plain is not None:
                return plain
            with contextlib.suppress(RuntimeError, KeyError, ValueError):  # differing leaves
                return torch.stack(tuple(parts))
        return lazy_stack(list(parts))
    if all(isinstance(part, Tensor) for part in parts) and len({part.shape[1:] for part in parts}) == 1:
        return stacked(parts)
    if isinstance(first, dict) and all(
        isinstance(part, dict) and part.keys() == first.keys() for part in parts
    ):
        return {key: combined([part[key] for part in parts]) for key in first}
    return list(parts)


def _stacked_plainly(parts: Sequence[Any]) -> TensorDict | None:
    """TensorDicts of one batch size, stacked in a fraction of the time, if they are but tensors that fit."""
    first = parts[0]
    if any(type(part) is not TensorDict or part.device != first.device for part in parts):
        return None
    sources = [entries(part) for part in parts]
    if any(source.keys() != sources[0].keys() for source in sources):
        return None
    made: dict[str, Any] = {}
    for key, value in sources[0].items():
        column = [source[key] for source in sources]
        if type(value) is TensorDict:
            same = all(type(other) is TensorDict and other.batch_size == value.batch_size for other in column)
            made[key] = _stacked_plainly(column) if same else None
        elif all(type(x) is Tensor and x.shape == value.shape and x.dtype == value.dtype for x in column):
            made[key] = torch.stack(column)
        if made.get(key) is None:
            return None
    return build(made, torch.Size((len(parts), *first.batch_size)), first.device)
