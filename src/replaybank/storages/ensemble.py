"""Several storages read as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import is_tensor_collection, lazy_stack
from torch import Tensor

from replaybank.checkpoint import Stateful
from replaybank.storages.base import Storage, entry


class StorageEnsemble(Stateful):
    """Several storages, read by an index that says which one and where in it.

    It is written to through its parts only.

    Not thread-safe: the locks of the parts' buffers guard it.

    Args:
        *storages: at least one.

    Raises:
        ValueError: there is none.

    Example:
        >>> from tensordict import TensorDict
        >>> from replaybank.storages import TensorStorage
        >>> ensemble = StorageEnsemble(TensorStorage(torch.arange(5)), TensorStorage(torch.arange(5) * 10))
        >>> where = {"buffer_ids": torch.tensor([1, 0]), "index": torch.tensor([[1, 2], [3, 4]])}
        >>> ensemble.get(TensorDict(where, batch_size=[2]))
        tensor([[10, 20],
                [ 3,  4]])
    """

    def __init__(self, *storages: Storage) -> None:
        if not storages:
            raise ValueError("A StorageEnsemble needs at least one storage.")
        self.storages = storages

    @property
    def max_size(self) -> int:
        """Capacity of all parts in items."""
        return sum(storage.max_size for storage in self.storages)

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
                f"gives it, got {type(index).__name__}. Read one part as ensemble.storages[i][...]."
            )
        ids, items = index["buffer_ids"].tolist(), index["index"].unbind()
        return _combined([self._read(k, item) for k, item in zip(ids, items, strict=True)])

    def __getitem__(self, index: Any) -> Any:
        return self.get(index)

    def _read(self, number: int, items: Tensor) -> Any:
        if not 0 <= number < len(self.storages):
            raise IndexError(f"There is no part {number}: the ensemble has {len(self.storages)}.")
        storage = self.storages[number]
        return storage.get(item_index(items, storage.ndim))

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

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state.

        Raises:
            ValueError: it is of another number of parts; nothing has been changed.
        """
        states = entry(state_dict, "storages", list)
        if len(states) != len(self.storages):
            raise ValueError(
                f"The state is of {len(states)} storages, the ensemble has {len(self.storages)}."
            )
        for storage, state in zip(self.storages, states, strict=True):
            storage.load_state_dict(state)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.storages))})"


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


def _combined(parts: list[Any]) -> Any:
    first = parts[0]
    if all(is_tensor_collection(part) for part in parts):
        keys = {frozenset(part.keys(True, True)) for part in parts}
        sizes = {part.batch_size for part in parts}
        return torch.stack(parts) if len(keys) == len(sizes) == 1 else lazy_stack(parts)
    if all(isinstance(part, Tensor) for part in parts) and len({part.shape[1:] for part in parts}) == 1:
        return stacked(parts)
    if isinstance(first, dict) and all(
        isinstance(part, dict) and part.keys() == first.keys() for part in parts
    ):
        return {key: _combined([part[key] for part in parts]) for key in first}
    return parts
