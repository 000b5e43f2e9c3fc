"""The buffer for TensorDicts: it puts into a sample where its items are, and takes priorities from data."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import torch
from tensordict import is_tensor_collection, is_tensorclass
from torch import Tensor

from replaybank.buffers import view
from replaybank.buffers.collate import collate
from replaybank.buffers.prefetch import Batch
from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.samplers.base import Sampler
from replaybank.storages._tensordict import entries_to_set
from replaybank.writers.round_robin import TensorDictRoundRobinWriter

INDEX = "index"
"""Entry of a sample that says where its items are."""

GENERATION = "_generation"
"""Entry of a sample that tells an item from a later one in the same slot."""

_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda p: p.amax(-1),
    "min": lambda p: p.amin(-1),
    "mean": lambda p: p.double().mean(-1),
    "median": lambda p: p.median(-1).values,
    "sum": lambda p: p.sum(-1),
}


class TensorDictReplayBuffer(ReplayBuffer):
    """A :class:`ReplayBuffer` of TensorDicts.

    A sample has an entry ``"index"`` (int64 ``[B]``, or ``[B, ndim]`` where the sampler gives one index a
    dimension) and the sampler's own entries. It says where the items are in ``storage``, time first; with an
    n-d storage ``buffer[...]`` numbers them otherwise, see :meth:`ReplayBuffer.__getitem__`. Priorities are
    read from the data, on :meth:`extend` and :meth:`update_tensordict_priority`. A sample of tensorclasses
    has the entries that they have fields for; ``sample(return_info=True)`` gives all.

    Thread-safe as :class:`ReplayBuffer` is.

    Args:
        priority_key: entry that holds priorities.
        **kwargs: as for :class:`ReplayBuffer`; the default writer also writes ``"index"`` into the data.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from replaybank.storages import LazyTensorStorage
        >>> buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4)
        >>> _ = buffer.extend(TensorDict({"reward": torch.arange(3.0)}, batch_size=3))
        >>> sample = buffer.sample()
        >>> bool((sample["reward"] == sample["index"]).all())
        True
    """

    _default_writer = TensorDictRoundRobinWriter
    _info_in_sample = True

    def __init__(self, *, priority_key: str | tuple[str, ...] = "td_error", **kwargs: Any) -> None:
        self._priority_key = priority_key
        super().__init__(**kwargs)

    @property
    def priority_key(self) -> str | tuple[str, ...]:
        """Entry that holds priorities."""
        return self._priority_key

    def add(self, data: Any) -> Any:
        """Write one TensorDict and its priority, if it has one; for an n-d storage one step of all columns.

        Args:
            data: the TensorDict; for an n-d storage ``[*columns]``.

        Returns:
            Where it went, as the writer gives it; an empty int64 tensor if a transform gave nothing to write.

        Raises:
            TypeError: ``data`` is no TensorDict, or of dtypes that do not fit; nothing has been written.
            ValueError: its keys or shapes do not fit what is stored; nothing has been written.
        """
        with self._writing:
            index, written = self._add(_without_generation(data))
            if written is not None and index is not None and self._has_priorities(written):
                priority = written.get(self._priority_key)
                self.update_priority(index, self._reduced(priority, self._storage.ndim - 1).reshape(-1))
            return index

    def extend(self, data: Any, *, update_priority: bool | None = None) -> Tensor:
        """Write TensorDicts.

        Args:
            data: a TensorDict ``[B]`` (n-d storage: ``[columns, T]`` with time at ``dim_extend``) or a list
                of them.
            update_priority: False leaves priorities in the data alone; by default they are taken over where
                there are any. True warns where that cannot be.

        Returns:
            Where each item went: int64 ``[B]``, or ``[items, ndim]`` time-major for n-d storages; empty if a
            transform gave nothing to write.

        Raises:
            TypeError: ``data`` is no TensorDict, or of dtypes that do not fit; nothing has been written.
            ValueError: its keys or shapes do not fit what is stored; nothing has been written.

        Complexity:
            O(B).

        Example:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> from replaybank.samplers import PrioritizedSampler
            >>> from replaybank.storages import LazyTensorStorage
            >>> sampler = PrioritizedSampler(None, alpha=1.0, beta=1.0, eps=0.0)
            >>> buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4), sampler=sampler)
            >>> steps = TensorDict({"x": torch.arange(3), "td_error": torch.tensor([0.0, 0.0, 1.0])}, [3])
            >>> buffer.extend(steps)
            tensor([0, 1, 2])
            >>> buffer.sample(2)["x"]
            tensor([2, 2])
        """
        if isinstance(data, list) and data and is_tensor_collection(data[0]):
            data = collate(data)
        with self._writing:
            index, written = self._extend(_without_generation(data))
            if written is None or update_priority is False:
                return index
            if update_priority and not self._has_priorities(written):
                self._warn_of_priorities()
            if self._has_priorities(written):
                priority = self._reduced(written.get(self._priority_key), self._storage.ndim).reshape(-1)
                kept = slice(None) if self._writer.keeps_all else index >= 0
                if index[kept].numel():
                    self._sampler.update_priority(index[kept], priority[kept], storage=self._storage)
            return index

    def __setitem__(self, index: Any, data: Any) -> None:
        """Replace items in their places; their entry ``"index"`` is kept if ``data`` has none.

        Args:
            index: as for ``buffer[index]``, but no key.
            data: the new items, whole but for ``"index"``.

        Raises:
            IndexError, TypeError, ValueError: as for a :class:`ReplayBuffer`; nothing has been changed.
        """
        with self._writing:
            indexed = (INDEX,) in self._storage.leaf_keys() and is_tensor_collection(data)
            if indexed and data.get(INDEX, None) is None:
                stored = view.read(self._storage, index, self._dim_extend)
                data = data.copy().set(INDEX, stored.get(INDEX))
            super().__setitem__(index, data)

    def update_tensordict_priority(self, data: Any) -> None:
        """Take priorities over from samples.

        Items whose sample has no entry ``priority_key`` get the default weight. Items that have been
        overwritten since they were sampled, or have gone when the buffer was emptied, are left alone. Does
        nothing with a sampler that has no priorities.

        Args:
            data: a TensorDict with ``"index"`` as a sample has it.

        Raises:
            KeyError: there is no index in it.

        Example:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> from replaybank.samplers import PrioritizedSampler
            >>> from replaybank.storages import LazyTensorStorage
            >>> sampler = PrioritizedSampler(None, alpha=1.0, beta=1.0, eps=0.0)
            >>> buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4), sampler=sampler)
            >>> _ = buffer.extend(TensorDict({"x": torch.arange(3)}, [3]))
            >>> batch = buffer[:]
            >>> batch["td_error"] = torch.tensor([0.0, 5.0, 0.0])
            >>> buffer.update_tensordict_priority(batch)
            >>> buffer.sample(2)["x"]
            tensor([1, 1])
        """
        self._ready()
        if not takes_priorities(self._sampler):
            return
        index = data.get(INDEX, None)
        if index is None:
            raise KeyError(
                f"The TensorDict has no entry 'index', only {sorted(map(str, data.keys()))}: give one that "
                "came from sample(), or use update_priority(index, priority)."
            )
        index, dims = _item_index(index, data)
        generation = data.get(GENERATION, None)
        if generation is not None:
            generation = generation[(slice(None),) * dims + (0,) * (generation.ndim - dims)].reshape(-1)
        priority = data.get(self._priority_key, None)
        if priority is None:
            self.mark_update(index, generation=generation)
            return
        priority = self._reduced(priority, dims).reshape(-1)
        self.update_priority(index, priority, generation=generation)

    def sample(
        self, batch_size: int | None = None, return_info: bool = False, include_info: bool | None = None
    ) -> Any:
        """Draw a batch.

        Args:
            batch_size: number of items; that of the buffer by default.
            return_info: return ``(batch, info)``.
            include_info: False leaves the index and the sampler's entries out of the batch.

        Raises:
            RuntimeError: nothing is stored, there is no batch size, or a transform has changed the batch so
                that the index no longer goes with it.

        Example:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> from replaybank.samplers import PrioritizedSampler
            >>> from replaybank.storages import LazyTensorStorage
            >>> sampler = PrioritizedSampler(None, alpha=1.0, beta=1.0, eps=0.0)
            >>> buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4), sampler=sampler)
            >>> _ = buffer.extend(TensorDict({"x": torch.arange(3)}, [3]))
            >>> sorted(buffer.sample(2).keys())
            ['_generation', 'index', 'priority_weight', 'x']
            >>> buffer.sample(2, include_info=False).keys() == {"x", "index"}
            True
        """
        if include_info is False and self._prefetcher is None:
            batch = self._next_batch(batch_size, info_in_sample=False)
        else:
            batch = self._next_batch(batch_size)
        if include_info is not False:
            self._put_info(batch)
        return (batch.data, batch.info) if return_info else batch.data

    def _sample_and_end(self) -> tuple[Any, bool]:
        batch = self._next_batch(None)
        self._put_info(batch)
        return batch.data, batch.ran_out

    def _put_info(self, batch: Batch) -> None:
        put_info(batch)

    def _check_batch(self, batch: Batch) -> None:
        if is_tensor_collection(batch.data):
            self._put_info(batch._replace(data=batch.data.copy()))

    def _has_priorities(self, data: Any) -> bool:
        return (
            takes_priorities(self._sampler)
            and is_tensor_collection(data)
            and data.get(self._priority_key, None) is not None
        )

    def _warn_of_priorities(self) -> None:
        if takes_priorities(self._sampler):
            why = f"the data has no entry {self._priority_key!r}, the buffer's priority_key"
        else:
            why = f"a {type(self._sampler).__name__} has no priorities; use a PrioritizedSampler"
        warnings.warn(f"extend(update_priority=True) changes no priority: {why}.", stacklevel=3)

    def _reduced(self, priority: Any, dims: int) -> Tensor:
        """Priorities with one number an item: what lies behind the first ``dims`` dimensions is reduced."""
        tensor = torch.as_tensor(priority)
        if tensor.ndim <= dims:
            return tensor
        name = getattr(self._sampler, "reduction", "max")
        if name not in _REDUCTIONS:
            raise ValueError(f"reduction={name!r} of the sampler: give one of {', '.join(_REDUCTIONS)}.")
        return _REDUCTIONS[name](tensor.flatten(dims))


def takes_priorities(sampler: Sampler) -> bool:
    """Whether a sampler has priorities."""
    return type(sampler).update_priority is not Sampler.update_priority


def _without_generation(data: Any) -> Any:
    """Data that was sampled before is new where it is written now: its stamp would tell a lie."""
    if is_tensor_collection(data) and GENERATION in data.keys():  # noqa: SIM118 (a TensorDict iterates over items)
        return data.exclude(GENERATION)
    return data


def _item_index(index: Tensor, data: Any) -> tuple[Tensor, int]:
    """The index with one row an item, and the number of leading dimensions that count items.

    A sample of trajectories kept as one item each has its index repeated over their steps.
    """
    dims = data.batch_dims
    if dims == 0:
        return index.reshape(1, -1) if index.ndim else index.reshape(1), 0
    if dims > 1:
        first = index[(slice(None),) + (slice(0, 1),) * (dims - 1)]
        if bool((index == first).all()):
            return first.reshape(index.shape[0], *index.shape[dims:]), 1
    return index.reshape(-1, *index.shape[dims:]), dims


def put_info(batch: Batch) -> None:
    """Set where the items of a batch are, and the sampler's entries, in its TensorDict. O(entries).

    A tensorclass gets those that it has fields for.
    """
    data = batch.data
    if not is_tensor_collection(data):
        return
    if is_tensorclass(data):
        fields = {field.name for field in dataclasses.fields(data)}
        for key, value in batch.info.items():
            path = (key,) if type(key) is str else key
            if path[0] in fields and (len(path) == 1 or is_tensor_collection(getattr(data, path[0]))):
                _put_checked(data, key, torch.stack(value, -1) if type(value) is tuple else value)
        return
    shape, device = data.batch_size, data.device
    flat = len(shape) == 1 and (device is None or device.type == "cpu")
    count = shape[0] if flat else -1
    parent, among = (), entries_to_set(data)
    for key, value in batch.info.items():
        if type(value) is tuple:
            value = value[0].unsqueeze(-1) if len(value) == 1 else torch.stack(value, -1)
        # Checks of what is seen to fit would take longer than the draw.
        fits = flat and type(value) is Tensor and value.is_cpu and value.dim() > 0 and value.size(0) == count
        if not fits:
            _put_checked(data, key, value)
            continue
        above, name = ((), key) if type(key) is str else (key[:-1], key[-1])
        if above != parent:  # entries of one TensorDict come one after the other
            parent, among = above, _entries_above(data, key)
        if among is None:
            _put_checked(data, key, value)
            parent, among = (), entries_to_set(data)
        else:
            among[name] = value


def _entries_above(data: Any, key: Any) -> dict[str, Any] | None:
    """The entries among which ``key`` is, if tensors that are seen to fit may be set there."""
    entries = entries_to_set(data)
    if type(key) is str or entries is None:
        return entries
    for part in key[:-1]:
        inner = entries.get(part)
        entries = None if inner is None or inner.batch_size != data.batch_size else entries_to_set(inner)
        if entries is None:
            return None
    return entries


def _put_checked(data: Any, key: Any, value: Any) -> None:
    dims = data.batch_dims
    if data.is_locked:
        data.unlock_()
    if isinstance(value, Tensor):
        if data.device is not None:
            value = value.to(data.device)
        if dims > 1:
            value = value.view(value.shape[0], *[1] * (dims - 1), *value.shape[1:])
            value = value.expand(*data.batch_size, *value.shape[dims:])
    data.set(key, value)
