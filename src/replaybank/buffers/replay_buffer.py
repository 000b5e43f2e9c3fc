"""The buffer: one conductor for a storage, a sampler, a writer and transforms."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from tensordict import is_tensor_collection
from torch import Tensor

from replaybank.buffers import saving, view
from replaybank.buffers.base import ComposedBuffer
from replaybank.buffers.collate import collate, time_to_front
from replaybank.buffers.parts import batch_size_of, copy_of, draw_of
from replaybank.buffers.prefetch import Batch
from replaybank.progress import watched_bytes
from replaybank.samplers.arguments import takes_generation
from replaybank.samplers.base import FromItems, completed
from replaybank.storages._tensordict import leaf_of

if TYPE_CHECKING:
    from replaybank.checkpoint import StrPath
    from replaybank.transforms.base import SampleTransform

_NO_BATCH_SIZE = (
    "No batch size: give one to the buffer, ReplayBuffer(..., batch_size=B), or to the call, sample(B)."
)


class ReplayBuffer(ComposedBuffer):
    """Stores items and draws batches of them.

    The writer says where items go, the storage keeps them, the sampler says which come back, transforms
    change them on the way. What a sample costs does not grow with the number of items.

    Thread-safe: any number of threads may sample, write and update priorities at once; no torn items. Can be
    pickled; between processes use ``shared=True``.

    Args:
        storage: where the data is; ``ListStorage(1000)`` by default. This, ``sampler`` and ``writer`` are
            each an instance or a callable that makes one.
        sampler: which items come; :class:`RandomSampler` by default.
        writer: where items go; :class:`RoundRobinWriter` by default.
        collate_fn: makes a batch of what a storage of objects gives, a list of items. By default TensorDicts,
            tensors, arrays, numbers, and tuples and dicts of them are stacked.
        pin_memory: give batches in page-locked memory; ignored, with a warning, without an accelerator.
        prefetch: number of batches that a background thread keeps ready; needs ``batch_size``. Batches are
            the same without it, as long as nothing is written in between; without a ``generator``, as long as
            nobody else draws from torch's global one in between, too. If somebody does, a seeded program
            still repeats itself.
        transform: a callable, an ``nn.Module``, an object with ``inv`` (called on writing), or a list.
        transform_factory: makes the transform, at the first use of the buffer.
        batch_size: items of a batch, unless :meth:`sample` is told otherwise.
        dim_extend: dimension of the extended data that is time; ``storage.ndim - 1`` by default.
        checkpointer: an object with ``dumps(storage, path)`` and ``loads(storage, path)`` that saves the
            storage in its own way; the rest of the buffer is saved as always.
        generator: source of every random draw; the global one by default.
        shared: the buffer is used by several processes at once.
        compilable: ``torch.compile`` of code that calls the buffer calls it between two graphs, instead of
            tracing into it; the same where its storage or writer was given it.
        delayed_init: make the parts at the first use; True by default with a ``transform_factory``.

    Raises:
        TypeError: ``transform`` and ``transform_factory`` are both given, or a part is none.
        ValueError: ``prefetch`` without ``batch_size`` or with ``shared``; a sampler with ``drop_last=True``
            without ``batch_size``.

    Example:
        >>> import torch
        >>> buffer = ReplayBuffer(batch_size=2, generator=torch.Generator().manual_seed(0))
        >>> buffer.extend([torch.tensor(10.0), torch.tensor(20.0)])
        tensor([0, 1])
        >>> buffer.sample().shape
        torch.Size([2])
    """

    # --- writing -------------------------------------------------------------------------------------------

    def add(self, data: Any) -> Any:
        """Write one item: for an n-d storage one time step of all columns. O(bytes of it).

        Args:
            data: the item, without a batch dimension; for an n-d storage ``[*columns, ...]``.

        Returns:
            Where it went, as the writer gives it; an empty int64 tensor if a transform gave nothing to write.

        Raises:
            TypeError: ``data`` is None, or of dtypes that do not fit; nothing has been written.
            ValueError: its keys or shapes do not fit what is stored; nothing has been written.

        Example:
            >>> import torch
            >>> from replaybank.storages import LazyTensorStorage
            >>> buffer = ReplayBuffer(storage=LazyTensorStorage(4))
            >>> buffer.add({"x": torch.tensor(1.0)}), buffer.add({"x": torch.tensor(2.0)})
            (0, 1)
        """
        with self._writing:
            return self._add(data)[0]

    def _add(self, data: Any) -> tuple[Any, Any]:
        """Where an item went, and the item as it was written (None: it was not)."""
        _refuse_none(data)
        if is_tensor_collection(data) and data.batch_dims > self._storage.ndim - 1:
            warnings.warn(
                f"add() was given a TensorDict of batch size {list(data.batch_size)}, which becomes one item."
                " Use extend() to write its entries as items of their own.",
                stacklevel=3,
            )
        if len(self._transform):
            data = self._transform.inv(data)
        if data is None:
            return self._no_index(), None
        self._sampler.check_write(self._storage, data, single=True)
        index = self._writer.add(data)
        if self._shares_later and self._storage.initialized:
            self._share_sampler()
        if index is not None:
            self._sampler.add(index)
        return index, data

    def extend(self, data: Any, *, update_priority: bool | None = None) -> Tensor:
        """Write a batch of items.

        Args:
            data: TensorDict, tensor or pytree of tensors ``[B, ...]`` (tuples are pytrees), or a list of
                items; for an n-d storage ``[columns, T, ...]`` with time at ``dim_extend``.
            update_priority: take priorities from the data; only buffers that have a ``priority_key`` can.

        Returns:
            Where each item went: int64 ``[B]``, or ``[items, ndim]`` time-major for n-d storages; empty if a
            transform gave nothing to write.

        Raises:
            TypeError: ``data`` is None or no batch, its dtypes do not fit, or ``update_priority`` is set;
                nothing has been written.
            ValueError: its keys or shapes do not fit what is stored; nothing has been written.

        Complexity:
            O(B).

        Example:
            >>> import torch
            >>> from replaybank.storages import LazyTensorStorage
            >>> buffer = ReplayBuffer(storage=LazyTensorStorage(4))
            >>> buffer.extend({"x": torch.arange(3)}), buffer.extend({"x": torch.arange(3, 6)})
            (tensor([0, 1, 2]), tensor([3, 0, 1]))
            >>> buffer[:]["x"]
            tensor([4, 5, 2, 3])
        """
        if update_priority:
            raise TypeError(
                f"update_priority=True, but a {type(self).__name__} does not know which entry holds "
                "priorities. Use a TensorDictReplayBuffer, or update_priority(index, priority)."
            )
        with self._writing:
            return self._extend(data)[0]

    def _extend(self, data: Any) -> tuple[Tensor, Any]:
        """Where items went, and the items as they were written (None: they were not)."""
        _refuse_none(data)
        if len(self._transform):
            data = self._transform.inv(_as_batch(data))
        if data is None:
            return self._no_index(), None
        if self._dim_extend:
            data = time_to_front(data, self._dim_extend)
        self._sampler.check_write(self._storage, data)
        index = self._writer.extend(data)
        if self._shares_later and self._storage.initialized:
            self._share_sampler()
        kept = index if self._writer.keeps_all else index[index >= 0]
        if kept.numel():
            self._sampler.extend(kept)
        return index, data

    def end_trajectories(self) -> None:
        """Have what is written next continue nothing that is stored: slices do not go across, in any column.

        For trajectories that stop without an end of their own, because an environment was reset or another
        run begins. O(1).

        Example:
            >>> import torch
            >>> from replaybank.storages import LazyTensorStorage
            >>> buffer = ReplayBuffer(storage=LazyTensorStorage(10))
            >>> _ = buffer.extend({"done": torch.zeros(3, dtype=torch.bool)})
            >>> buffer.end_trajectories()
            >>> _ = buffer.extend({"done": torch.zeros(3, dtype=torch.bool)})
            >>> buffer.storage.log.cut[:6].tolist()
            [True, False, False, True, False, False]
        """
        with self._writing:
            self._storage.log.interrupt()

    def _no_index(self) -> Tensor:
        ndim = self._storage.ndim
        return torch.empty((0, ndim) if ndim > 1 else 0, dtype=torch.int64)

    def empty(self, empty_write_count: bool = True) -> None:
        """Forget all items.

        Args:
            empty_write_count: count writes from zero again.

        Example:
            >>> import torch
            >>> from replaybank.storages import LazyTensorStorage
            >>> buffer = ReplayBuffer(storage=LazyTensorStorage(4))
            >>> _ = buffer.extend(torch.arange(3))
            >>> buffer.empty()
            >>> len(buffer), buffer.write_count
            (0, 0)
        """
        with self._writing:
            self._writer.empty(empty_write_count=empty_write_count)
            self._storage.empty()
            self._sampler.empty()
            self._drop_ahead()

    # --- priorities ----------------------------------------------------------------------------------------

    def update_priority(self, index: Any, priority: Any, *, generation: Any = None) -> None:
        """Give items another priority.

        Args:
            index: as in ``info["index"]``, or int, int64 ``[B]`` or ``[B, ndim]``, or a slice.
            priority: number or ``[B]``; with more dimensions, that of time is moved as in :meth:`extend`.
            generation: ``info["_generation"]`` where the sampler gives one: an item that has been overwritten
                since keeps its own priority, and one that has gone when the buffer was emptied is skipped.

        Raises:
            IndexError: an index is out of range; nothing has been changed.
            ValueError: a priority is negative, NaN or infinite; nothing has been changed.

        Example:
            >>> import torch
            >>> from replaybank.storages import LazyTensorStorage
            >>> buffer = ReplayBuffer(storage=LazyTensorStorage(4))
            >>> from replaybank.samplers import PrioritizedSampler
            >>> _ = buffer.set_sampler(PrioritizedSampler(None, alpha=1.0, beta=1.0, eps=0.0))
            >>> _ = buffer.extend(torch.arange(3))
            >>> buffer.update_priority([0, 1], 0.0)
            >>> buffer.sample(4)
            tensor([2, 2, 2, 2])
        """
        self._ready()
        if isinstance(index, tuple):
            index = torch.stack([torch.as_tensor(part) for part in index], -1)
        if self._dim_extend and getattr(priority, "ndim", 0) > 1:
            priority = time_to_front(torch.as_tensor(priority), self._dim_extend).flatten()
        given = {} if generation is None else {"generation": generation}
        with self._lock.lock:
            self._sampler.update_priority(index, priority, storage=self._storage, **given)

    def mark_update(self, index: Any, *, generation: Any = None) -> None:
        """Tell the sampler that items have changed: one that has priorities gives them that of new ones.

        Args:
            index: as for :meth:`update_priority`.
            generation: as for :meth:`update_priority`.

        Example:
            >>> import torch
            >>> from replaybank.storages import LazyTensorStorage
            >>> buffer = ReplayBuffer(storage=LazyTensorStorage(4))
            >>> from replaybank.samplers import PrioritizedSampler
            >>> _ = buffer.set_sampler(PrioritizedSampler(None, alpha=1.0, beta=1.0, eps=0.0))
            >>> _ = buffer.extend(torch.arange(3))
            >>> buffer.update_priority([0, 1, 2], torch.tensor([4.0, 0.0, 1.0]))
            >>> buffer.mark_update([1])  # likely again: as much as a new item
            >>> buffer.sampler.weights[:3].tolist()
            [4.0, 4.0, 1.0]
        """
        self._ready()
        stamped = generation is not None and takes_generation(self._sampler.mark_update)
        given = {"generation": generation} if stamped else {}
        with self._lock.lock:
            self._sampler.mark_update(index, storage=self._storage, **given)

    # --- reading -------------------------------------------------------------------------------------------

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw a batch.

        Args:
            batch_size: number of items; that of the buffer by default.
            return_info: return ``(batch, info)``: ``info["index"]`` is where the items are, the rest is the
                sampler's.

        Raises:
            RuntimeError: nothing is stored, or there is no batch size.
            TypeError: ``batch_size`` is no integer.
            ValueError: ``batch_size`` is less than 1, or one that the sampler cannot give.

        Example:
            >>> import torch
            >>> from replaybank.storages import LazyTensorStorage
            >>> buffer = ReplayBuffer(storage=LazyTensorStorage(4))
            >>> _ = buffer.extend({"x": torch.arange(3)})
            >>> batch, info = buffer.sample(16, return_info=True)
            >>> batch["x"].shape, bool((batch["x"] == info["index"]).all())
            (torch.Size([16]), True)
        """
        batch = self._next_batch(batch_size)
        return (batch.data, batch.info) if return_info else batch.data

    def _next_batch(self, batch_size: int | None, info_in_sample: bool | None = None) -> Batch:
        if self._recipe is not None:
            self._build()
        size = self._batch_size
        if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
            batch_size = batch_size_of(batch_size)
        if batch_size is not None and batch_size != size:
            if size is not None:
                warnings.warn(
                    f"The buffer has batch_size={size} and sample() was given {batch_size}, which is used.",
                    stacklevel=3,
                )
            size = batch_size
        elif size is None:
            raise RuntimeError(_NO_BATCH_SIZE)
        elif (prefetcher := self._prefetcher) is not None:
            return prefetcher.next()
        return self._draw(size, self._info_in_sample if info_in_sample is None else info_in_sample)

    def _draw(
        self,
        size: int,
        info_in_sample: bool,
        collate_fn: Callable[[Any], Any] | None = None,
        also: tuple[SampleTransform, ...] = (),
    ) -> Batch:
        with self._lock.lock:
            sampler, storage = self._sampler, self._storage
            index, info = draw_of(sampler)(storage, size)
            related = self._transform.related_with(also) if also else self._transform.related
            if related is None:
                items = storage.get(index)
            else:
                index, info = related.lengthened(index, info, storage, sampler)
                items = related(
                    storage.get(index),
                    index,
                    storage,
                    sampler=sampler,
                    info=info,
                    generator=sampler.generator,
                )
            if info:
                if is_tensor_collection(items):
                    for key, value in info.items():
                        if type(value) is FromItems:
                            info[key] = value.of(leaf_of(items, value.key))
                else:
                    completed(storage, info, index)
            data = self._assemble(items, info_in_sample, collate_fn)
            if self._index_device is not None:
                index = _to_device(index, self._index_device)
            info["index"] = index
            return Batch(data, info, sampler.ran_out)

    def _read_again(self, index: Any, info: Mapping[Any, Any]) -> tuple[Any, Any, dict[Any, Any]]:
        related, storage, sampler = self._transform.related, self._storage, self._sampler
        if related is None:
            return self._assemble(storage.get(index), self._info_in_sample), index, dict(info)
        index, info = related.lengthened(index, dict(info), storage, sampler)
        generator = copy_of(sampler.generator)  # what comes next is drawn as if this had not been
        items = related(storage.get(index), index, storage, sampler=sampler, info=info, generator=generator)
        return self._assemble(items, self._info_in_sample), index, info

    def _assemble(self, data: Any, keep_batch: bool, collate_fn: Callable[[Any], Any] | None = None) -> Any:
        collate_fn = self._collate_fn if collate_fn is None else collate_fn
        if isinstance(data, list) or collate_fn is not collate:
            data = collate_fn(data)
        if len(self._transform):
            data = self._transform(data, keep_batch=keep_batch)
        if self._pin and hasattr(data, "pin_memory"):
            data = data.pin_memory()
        return data

    def __iter__(self) -> Iterator[Any]:
        """Batches: the rest of the pass with a sampler that has passes, else without end."""
        if self._batch_size is None:
            raise RuntimeError(_NO_BATCH_SIZE.replace(", or to the call, sample(B)", " before iterating"))
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        if self._prefetcher is None and self.sampler.ran_out:
            self.sampler.ran_out = False
        ended = False
        while not ended:
            data, ended = self._sample_and_end()
            yield data

    def _sample_and_end(self) -> tuple[Any, bool]:
        """The next batch as :meth:`sample` gives it, and whether a pass ended with it."""
        batch = self._next_batch(None)
        return batch.data, batch.ran_out

    def next(self) -> Any:
        """The next batch of an iteration; None at its end, after which a new one begins.

        Example:
            >>> import torch
            >>> from replaybank.storages import LazyTensorStorage
            >>> buffer = ReplayBuffer(storage=LazyTensorStorage(4))
            >>> buffer = ReplayBuffer(storage=LazyTensorStorage(4), batch_size=2)
            >>> from replaybank.samplers import SamplerWithoutReplacement
            >>> _ = buffer.set_sampler(SamplerWithoutReplacement(shuffle=False))
            >>> _ = buffer.extend(torch.arange(3))
            >>> buffer.next(), buffer.next(), buffer.next()
            (tensor([0, 1]), tensor([2]), None)
        """
        iterator = self._iterator
        if iterator is None:
            iterator = self._iterator = iter(self)
        try:
            return next(iterator)
        except StopIteration:
            self._iterator = None
            return None

    def __len__(self) -> int:
        """Number of items stored."""
        self._ready()
        return len(self._storage)

    def __getitem__(self, index: Any) -> Any:
        """Read items, as copies, with the transforms of sampling. O(bytes of them).

        Items are numbered as they were given to :meth:`extend`: with an n-d storage ``[columns, T]``, time at
        ``dim_extend``. Samplers and writers number them as they are stored, ``[T, columns]``: what they give,
        ``info["index"]`` or the entry ``"index"`` of a sample, is for ``buffer.storage[...]`` and
        :meth:`update_priority`.

        Args:
            index: int, slice, range, list, NumPy or torch integers, a bool mask, or a tuple of these, one a
                dimension; or a key of the data, a string or a tuple of them.

        Returns:
            The items, which never share memory with what is stored, except an object out of a
            :class:`ListStorage`; or the entry of all items.

        Raises:
            IndexError: out of range, or never written.
            KeyError: there is no such entry.
        """
        self._ready()
        if view.is_key(index):
            return self[:][index]
        return self._read(index)

    def _read(
        self, index: Any, collate_fn: Callable[[Any], Any] | None = None, *, stored: bool = False
    ) -> Any:
        """Items; ``stored``: numbered as they are stored, not as they were given to :meth:`extend`."""
        with self._lock.lock:
            data = self._storage[index] if stored else view.read(self._storage, index, self._dim_extend)
            if view.is_single(index):
                if not len(self._transform):
                    return data
                # A list gives the stored item itself, in which a transform would leave its traces.
                return self._transform(data.copy() if is_tensor_collection(data) else data)
            return self._assemble(data, keep_batch=False, collate_fn=collate_fn)

    def __setitem__(self, index: Any, data: Any) -> None:
        """Replace items in their places: neither the cursor nor the length moves. O(bytes of them).

        Args:
            index: as for ``buffer[index]``, but no key.
            data: the new items, whole.

        Raises:
            IndexError: out of range, or never written; nothing has been changed.
            TypeError: the index is a key, or dtypes do not fit; nothing has been changed.
            ValueError: keys or shapes do not fit; nothing has been changed.
        """
        with self._writing:
            if view.is_key(index):
                raise TypeError(
                    f"buffer[{index!r}] = ... would write one entry of every item. Read items with buffer[i],"
                    " change the entry and write them back, or extend with data that has it."
                )
            if len(self._transform):
                data = self._transform.inv(data)
            if data is not None:
                view.write(self._storage, index, data, self._dim_extend)

    # --- state ---------------------------------------------------------------------------------------------

    def register_save_hook(self, hook: Callable[[Any], Any]) -> None:
        """Have ``hook`` change the storage's state on its way into a checkpoint.

        Hooks are called in the order of registration. They are not saved themselves.

        Args:
            hook: is given the state, a dict that it may change, and returns the one to be saved.

        Example:
            >>> import torch
            >>> from replaybank.storages import LazyTensorStorage
            >>> buffer = ReplayBuffer(storage=LazyTensorStorage(4))
            >>> def note(state):
            ...     return {**state, "note": "before the holidays"}
            >>> buffer.register_save_hook(note)
            >>> buffer.register_load_hook(lambda state: {key: state[key] for key in state if key != "note"})
        """
        self._save_hooks.append(hook)

    def register_load_hook(self, hook: Callable[[Any], Any]) -> None:
        """Have ``hook`` change the storage's state on its way out of a checkpoint.

        Args:
            hook: is given what was saved, a dict that it may change, and returns the one to be loaded.
        """
        self._load_hooks.append(hook)

    def state_dict(self) -> dict[str, Any]:
        """Everything: data, write log, sampler, writer, transforms, generator, batches drawn ahead.

        Example:
            >>> import torch
            >>> from replaybank.storages import LazyTensorStorage
            >>> buffer = ReplayBuffer(storage=LazyTensorStorage(4))
            >>> _ = buffer.extend(torch.arange(3))
            >>> again = ReplayBuffer(storage=LazyTensorStorage(4))
            >>> again.load_state_dict(buffer.state_dict())
            >>> again[:]
            tensor([0, 1, 2])
        """
        self._ready()
        with self._lock.lock:
            return saving.state_of(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state of a buffer with the same kinds of parts, wholly or not at all. O(N).

        A buffer without a generator gets one of its own if the saved one had one, so that the next batches
        are those that would have come; the global generator is never touched. Batches that the saved buffer
        had drawn ahead come first.

        Args:
            state_dict: what :meth:`state_dict` gave; it stays the caller's.

        Raises:
            ValueError: the state is of other parts or sizes, or damaged; nothing has been changed.
        """
        with self._writing:
            saving.take_over(self, state_dict)

    def dumps(
        self, path: StrPath, *, keep: int = 0, allow_pickle: bool = False, progress: bool | None = None
    ) -> None:
        """Save everything into the directory ``path``, atomically.

        Killed at any instant, ``path`` holds the state before or after. Sampling goes on meanwhile (between
        processes it waits, too); writing waits. Of a storage of tensors, in memory or mapped, only the slots
        written since the last save at ``path`` are written again, unless its ``view()`` was asked for, whose
        changes nobody can know.

        Args:
            path: a directory; made if missing.
            keep: number of earlier saves that stay in it (see :func:`replaybank.checkpoint.load`).
            allow_pickle: pickle items of a :class:`ListStorage` that are no tensors or plain values.
            progress: show the bytes written, if it takes long; by default where the error output is a
                terminal.

        Raises:
            TypeError: there are such items and ``allow_pickle`` is not set, or a save hook returned no state;
                nothing has been saved.

        Example:
            >>> import torch
            >>> from replaybank.storages import LazyTensorStorage
            >>> buffer = ReplayBuffer(storage=LazyTensorStorage(4))
            >>> import tempfile
            >>> _ = buffer.extend(torch.arange(3))
            >>> again = ReplayBuffer(storage=LazyTensorStorage(4))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     buffer.dumps(folder)
            ...     again.loads(folder)
            >>> again[:]
            tensor([0, 1, 2])
        """
        self._ready()
        with watched_bytes("Saving", progress), self._lock.paused_writing():
            saving.dump(self, path, keep=keep, allow_pickle=allow_pickle)

    def loads(self, path: StrPath, *, allow_pickle: bool = False, progress: bool | None = None) -> None:
        """Take over what :meth:`dumps` left in ``path``; warns if a later save was not finished.

        The buffer may have another capacity, as long as the items fit: samplers and writers go on as they
        would have (a pass over slices begins anew if the items had gone round a smaller storage). Dtypes may
        differ within a kind, and the device may be another.

        Args:
            path: the directory.
            allow_pickle: unpickle what was pickled. This can run any code: only for files you trust.
            progress: show the bytes read, if it takes long; by default where the error output is a terminal.

        Raises:
            FileNotFoundError: nothing was saved there.
            DataFormatError: a file is damaged; nothing has been changed.
            ValueError: the state is of other parts, or holds more than there is room for; nothing has been
                changed.
            TypeError: a load hook returned no state; nothing has been changed.
        """
        with watched_bytes("Loading", progress), self._writing:
            saving.restore(self, path, allow_pickle=allow_pickle)

    def save(
        self, path: StrPath, *, keep: int = 0, allow_pickle: bool = False, progress: bool | None = None
    ) -> None:
        """The same as :meth:`dumps`.

        Args:
            path: see :meth:`dumps`.
            keep: see there.
            allow_pickle: see there.
            progress: see there.
        """
        self.dumps(path, keep=keep, allow_pickle=allow_pickle, progress=progress)

    def dump(
        self, path: StrPath, *, keep: int = 0, allow_pickle: bool = False, progress: bool | None = None
    ) -> None:
        """The same as :meth:`dumps`.

        Args:
            path: see :meth:`dumps`.
            keep: see there.
            allow_pickle: see there.
            progress: see there.
        """
        self.dumps(path, keep=keep, allow_pickle=allow_pickle, progress=progress)

    def load(self, path: StrPath, *, allow_pickle: bool = False, progress: bool | None = None) -> None:
        """The same as :meth:`loads`.

        Args:
            path: see :meth:`loads`.
            allow_pickle: see there.
            progress: see there.
        """
        self.loads(path, allow_pickle=allow_pickle, progress=progress)


def _refuse_none(data: Any) -> None:
    if data is None:
        raise TypeError(
            "There is nothing to write: the data is None. Give an item to add, or items to extend."
        )


def _as_batch(data: Any) -> Any:
    """A list of TensorDicts as one, since transforms take TensorDicts."""
    return collate(data) if isinstance(data, list) and data and is_tensor_collection(data[0]) else data


def _to_device(index: Any, device: torch.device) -> Any:
    if isinstance(index, tuple):
        return tuple(part.to(device) for part in index)
    return index.to(device) if isinstance(index, Tensor) else index
