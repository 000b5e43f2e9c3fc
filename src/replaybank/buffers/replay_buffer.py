"""The buffer: one conductor for a storage, a sampler, a writer and transforms."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from tensordict import is_tensor_collection
from torch import Tensor

from replaybank.buffers import saving, view
from replaybank.buffers.collate import collate, time_to_front
from replaybank.buffers.locks import BufferLock
from replaybank.buffers.parts import batch_size_of, chain_of, check_shareable, may_pin, part_of
from replaybank.buffers.prefetch import Batch, Prefetcher
from replaybank.checkpoint import Stateful
from replaybank.samplers.base import Sampler
from replaybank.samplers.random import RandomSampler
from replaybank.storages.base import Storage
from replaybank.storages.list import ListStorage
from replaybank.writers.base import Writer
from replaybank.writers.round_robin import RoundRobinWriter

if TYPE_CHECKING:
    from replaybank.buffers.transforms import TransformChain
    from replaybank.checkpoint import StrPath

DEFAULT_CAPACITY = 1000
"""Items of the storage that a buffer makes when none is given."""

_NO_BATCH_SIZE = (
    "No batch size: give one to the buffer, ReplayBuffer(..., batch_size=B), or to the call, sample(B)."
)


class ReplayBuffer(Stateful):
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
        prefetch: number of batches that a background thread keeps ready; needs ``batch_size``.
        transform: a callable, an ``nn.Module``, an object with ``inv`` (called on writing), or a list.
        transform_factory: makes the transform, at the first use of the buffer.
        batch_size: items of a batch, unless :meth:`sample` is told otherwise.
        dim_extend: dimension of the extended data that is time; ``storage.ndim - 1`` by default.
        checkpointer: an object with ``dumps(storage, path)`` and ``loads(storage, path)`` that saves the
            storage in its own way; the rest of the buffer is saved as always.
        generator: source of every random draw; the global one by default.
        shared: the buffer is used by several processes at once.
        compilable: accepted for code that passes it.
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

    _default_writer: Callable[[], Writer] = RoundRobinWriter
    # Whether a sample must keep its batch dimension, because the sampler's info is put into it.
    _info_in_sample = False

    def __init__(
        self,
        *,
        storage: Storage | Callable[[], Storage] | None = None,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        writer: Writer | Callable[[], Writer] | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Any = None,
        transform_factory: Callable[[], Any] | None = None,
        batch_size: int | None = None,
        dim_extend: int | None = None,
        checkpointer: Any = None,
        generator: torch.Generator | None = None,
        shared: bool = False,
        compilable: bool | None = None,
        delayed_init: bool | None = None,
    ) -> None:
        if transform is not None and transform_factory is not None:
            raise TypeError("Give transform or transform_factory, not both.")
        if dim_extend is not None and dim_extend < 0:
            raise ValueError(
                f"dim_extend={dim_extend}: give the dimension of the data that is time, 0 or more."
            )
        self._batch_size = batch_size_of(batch_size)
        if prefetch and self._batch_size is None:
            raise ValueError(f"prefetch={prefetch} needs a batch_size, so that batches can be drawn ahead.")
        if prefetch and shared:
            raise ValueError("prefetch draws ahead in one process and cannot be used with shared=True.")
        self._collate_fn = collate if collate_fn is None else collate_fn
        self._pin = may_pin() if pin_memory else False
        self._given_dim_extend = dim_extend
        self._checkpointer = checkpointer
        self._generator = generator
        self._shared = bool(shared)
        self._compilable = bool(compilable)
        self._save_hooks: list[Callable[[Any], Any]] = []
        self._load_hooks: list[Callable[[Any], Any]] = []
        self._prefetch = int(prefetch or 0)
        self._start(BufferLock(bool(shared)))
        self._recipe: dict[str, Any] | None = {
            "storage": storage,
            "sampler": sampler,
            "writer": writer,
            "transform": transform,
            "transform_factory": transform_factory,
        }
        if delayed_init is None:
            delayed_init = transform_factory is not None
        if not delayed_init:
            self._build()

    def _start(self, lock: BufferLock) -> None:
        self._lock = lock
        self._prefetcher = Prefetcher(self, self._prefetch) if self._prefetch else None
        self._iterator: Iterator[Any] | None = None

    def _build(self) -> None:
        with self._lock.lock:
            recipe = self._recipe
            if recipe is None:
                return
            factory = recipe["transform_factory"]
            self._transform: TransformChain = chain_of(recipe["transform"] if factory is None else factory())
            self._storage: Storage = part_of(
                "storage", recipe["storage"], Storage, lambda: ListStorage(DEFAULT_CAPACITY)
            )
            self._writer: Writer = part_of("writer", recipe["writer"], Writer, self._default_writer)
            self._sampler: Sampler = part_of("sampler", recipe["sampler"], Sampler, RandomSampler)
            self._check_drop_last(self._sampler)
            if self._shared:
                check_shareable(self._storage)
            self._join()
            self._recipe = None

    def _join(self) -> None:
        """Let the parts know each other, after one was made or replaced."""
        self._writer.register_storage(self._storage)
        self._sampler.register_storage(self._storage)
        if self._shared:
            self._sampler.share_memory_()
        if self._generator is not None:
            self._sampler.generator = self._generator
        given = self._given_dim_extend
        self._dim_extend = self._storage.ndim - 1 if given is None else given
        device = getattr(self._storage, "device", None)
        on_cpu = device is None or not isinstance(device, torch.device) or device.type == "cpu"
        self._index_device = None if on_cpu else device

    def _check_drop_last(self, sampler: Sampler) -> None:
        if getattr(sampler, "drop_last", False) and self._batch_size is None:
            raise ValueError(
                "Samplers with drop_last=True need a batch size that is known beforehand: give the buffer a "
                "batch_size."
            )

    # --- parts ---------------------------------------------------------------------------------------------

    @property
    def initialized(self) -> bool:
        """Whether the parts have been made (see ``delayed_init``)."""
        return self._recipe is None

    @property
    def storage(self) -> Storage:
        """Where the data is."""
        self._ready()
        return self._storage

    @property
    def sampler(self) -> Sampler:
        """What says which items come."""
        self._ready()
        return self._sampler

    @property
    def writer(self) -> Writer:
        """What says where items go."""
        self._ready()
        return self._writer

    @property
    def transform(self) -> TransformChain:
        """The transforms, in the order in which they change a sample."""
        self._ready()
        return self._transform

    @property
    def batch_size(self) -> int | None:
        """Items of a batch, if the buffer was given a number."""
        return self._batch_size

    @property
    def dim_extend(self) -> int:
        """Dimension of the extended data that is time."""
        self._ready()
        return self._dim_extend

    @property
    def generator(self) -> torch.Generator | None:
        """Source of the random draws; None is the global one."""
        return self._generator

    @property
    def write_count(self) -> int:
        """Number of rows along time ever written."""
        self._ready()
        return self._writer.write_count

    def set_storage(self, storage: Storage, collate_fn: Callable[[Any], Any] | None = None) -> Storage:
        """Exchange the storage and return the one there was."""
        with self._writing:
            new = part_of("storage", storage, Storage, None)
            if self._shared:
                check_shareable(new)
            old, self._storage = self._storage, new
            if collate_fn is not None:
                self._collate_fn = collate_fn
            self._join()
            self._drop_ahead()
            return old

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Exchange the sampler and return the one there was."""
        with self._writing:
            new = part_of("sampler", sampler, Sampler, None)
            self._check_drop_last(new)
            old, self._sampler = self._sampler, new
            self._join()
            self._drop_ahead()
            return old

    def set_writer(self, writer: Writer) -> Writer:
        """Exchange the writer and return the one there was."""
        with self._writing:
            old, self._writer = self._writer, part_of("writer", writer, Writer, None)
            self._join()
            return old

    def set_rng(self, generator: torch.Generator | None) -> None:
        """Take every random draw from ``generator``; None is the global one."""
        with self._writing:
            self._generator = generator
            self._sampler.generator = generator
            self._drop_ahead()

    def append_transform(self, transform: Any, *, invert: bool = False) -> ReplayBuffer:
        """Add a transform behind the others.

        Args:
            transform: a callable, an ``nn.Module`` or an object with ``inv``.
            invert: use its ``inv`` on sampling and its forward on writing.

        Returns:
            The buffer.
        """
        return self.insert_transform(len(self.transform), transform, invert=invert)

    def insert_transform(self, index: int, transform: Any, *, invert: bool = False) -> ReplayBuffer:
        """Add a transform before position ``index``; otherwise as :meth:`append_transform`."""
        with self._writing:
            self._transform.insert(index, transform, invert=invert)
            if self._prefetcher is not None:
                self._prefetcher.redo()
        return self

    def _ready(self) -> None:
        if self._recipe is not None:
            self._build()

    # --- writing -------------------------------------------------------------------------------------------

    def add(self, data: Any) -> Any:
        """Write one item: for an n-d storage one time step of all columns.

        Returns:
            Where it went, as the writer gives it; an empty int64 tensor if a transform gave nothing to write.
        """
        with self._writing:
            return self._add(data)[0]

    def _add(self, data: Any) -> tuple[Any, Any]:
        """Where an item went, and the item as it was written (None: it was not)."""
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
            Where each item went: int64 ``[B]``, or ``[items, ndim]`` time-major for n-d storages.

        Complexity:
            O(B).
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
        if len(self._transform):
            data = self._transform.inv(_as_batch(data))
        if data is None:
            return self._no_index(), None
        if self._dim_extend:
            data = time_to_front(data, self._dim_extend)
        self._sampler.check_write(self._storage, data)
        index = self._writer.extend(data)
        if index.numel():
            self._sampler.extend(index)
        return index, data

    def _no_index(self) -> Tensor:
        ndim = self._storage.ndim
        return torch.empty((0, ndim) if ndim > 1 else 0, dtype=torch.int64)

    def empty(self, empty_write_count: bool = True) -> None:
        """Forget all items.

        Args:
            empty_write_count: count writes from zero again.
        """
        with self._writing:
            self._writer.empty(empty_write_count=empty_write_count)
            self._storage.empty()
            self._sampler.empty()
            self._drop_ahead()

    @property
    def _writing(self) -> AbstractContextManager[None]:
        if self._recipe is not None:
            self._build()
        return self._lock.writing

    def _drop_ahead(self) -> None:
        if self._prefetcher is not None:
            self._prefetcher.drop()

    # --- priorities ----------------------------------------------------------------------------------------

    def update_priority(self, index: Any, priority: Any, *, generation: Any = None) -> None:
        """Give items another priority.

        Args:
            index: as in ``info["index"]``, or int, or int64 ``[B]`` or ``[B, ndim]``.
            priority: number or ``[B]``; with more dimensions, that of time is moved as in :meth:`extend`.
            generation: ``info["_generation"]`` where the sampler gives one: an item that has been overwritten
                since keeps its own priority.
        """
        self._ready()
        if isinstance(index, tuple):
            index = torch.stack([torch.as_tensor(part) for part in index], -1)
        if self._dim_extend and getattr(priority, "ndim", 0) > 1:
            priority = time_to_front(torch.as_tensor(priority), self._dim_extend).flatten()
        given = {} if generation is None else {"generation": generation}
        with self._lock.lock:
            self._sampler.update_priority(index, priority, storage=self._storage, **given)

    def mark_update(self, index: Any) -> None:
        """Tell the sampler that items have changed."""
        self._ready()
        with self._lock.lock:
            self._sampler.mark_update(index, storage=self._storage)

    # --- reading -------------------------------------------------------------------------------------------

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw a batch.

        Args:
            batch_size: number of items; that of the buffer by default.
            return_info: return ``(batch, info)``: ``info["index"]`` is where the items are, the rest is the
                sampler's.

        Raises:
            RuntimeError: nothing is stored, or there is no batch size.
        """
        batch = self._next_batch(batch_size)
        return (batch.data, batch.info) if return_info else batch.data

    def _next_batch(self, batch_size: int | None, info_in_sample: bool | None = None) -> Batch:
        if self._recipe is not None:
            self._build()
        size = self._batch_size
        if batch_size is not None and batch_size != size:
            if size is not None:
                warnings.warn(
                    f"The buffer has batch_size={size} and sample() was given {batch_size}, which is used.",
                    stacklevel=3,
                )
            size = batch_size
        elif size is None:
            raise RuntimeError(_NO_BATCH_SIZE)
        elif self._prefetcher is not None:
            return self._prefetcher.next()
        return self._draw(size, self._info_in_sample if info_in_sample is None else info_in_sample)

    def _draw(self, size: int, info_in_sample: bool) -> Batch:
        with self._lock.lock:
            sampler, storage = self._sampler, self._storage
            index, info = sampler.sample(storage, size)
            data = self._assemble(storage.get(index), info_in_sample)
            if self._index_device is not None:
                index = _to_device(index, self._index_device)
            return Batch(data, {**info, "index": index}, sampler.ran_out)

    def _assemble(self, data: Any, keep_batch: bool) -> Any:
        if isinstance(data, list) or self._collate_fn is not collate:
            data = self._collate_fn(data)
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
        if self._prefetcher is None:
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
        """The next batch of an iteration; None at its end, after which a new one begins."""
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
        """Read items, with the transforms of sampling: an index of items, or a key of the data."""
        self._ready()
        if view.is_key(index):
            return self[:][index]
        with self._lock.lock:
            data = view.read(self._storage, index, self._dim_extend)
            if view.is_single(index):
                return self._transform(data) if len(self._transform) else data
            return self._assemble(data, keep_batch=False)

    def __setitem__(self, index: Any, data: Any) -> None:
        """Replace items in their places: neither the cursor nor the length moves."""
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

        It is given the state, a dict, and returns what is saved. Hooks are not saved themselves.
        """
        self._save_hooks.append(hook)

    def register_load_hook(self, hook: Callable[[Any], Any]) -> None:
        """Have ``hook`` change the storage's state on its way out of a checkpoint."""
        self._load_hooks.append(hook)

    def state_dict(self) -> dict[str, Any]:
        """Everything: data, write log, sampler, writer, transforms, generator, batches drawn ahead."""
        self._ready()
        with self._lock.lock:
            return {"storage": self._storage.state_dict(), **saving.beside_storage(self)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state of a buffer with the same kinds of parts.

        A buffer without a generator gets one of its own if the saved one had one, so that the next batches
        are those that would have come; the global generator is never touched.
        """
        with self._writing:
            saving.take_over(self, state_dict)

    def dumps(self, path: StrPath) -> None:
        """Save everything into the directory ``path``, atomically (see :func:`replaybank.checkpoint.save`).

        Sampling goes on meanwhile; writing waits.
        """
        self._ready()
        with self._lock.paused_writing():
            saving.dump(self, path)

    def loads(self, path: StrPath) -> None:
        """Take over what :meth:`dumps` left in ``path``.

        Raises:
            DataFormatError: a file is damaged; nothing has been changed.
        """
        with self._writing:
            saving.restore(self, path)

    def save(self, path: StrPath) -> None:
        """The same as :meth:`dumps`."""
        self.dumps(path)

    def load(self, path: StrPath) -> None:
        """The same as :meth:`loads`."""
        self.loads(path)

    def close(self) -> None:
        """End the background thread, if there is one. The buffer can still be used."""
        if self._prefetcher is not None:
            self._prefetcher.stop()

    def __getstate__(self) -> dict[str, Any]:
        with self._lock.lock:
            left_out = ("_lock", "_prefetcher", "_iterator")
            state = {name: value for name, value in self.__dict__.items() if name not in left_out}
            state["_process_lock"] = self._lock.shared
            state["_ahead"] = [] if self._prefetcher is None else self._prefetcher.state()
            return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        lock, ahead = state.pop("_process_lock"), state.pop("_ahead")
        self.__dict__.update(state)
        self._start(BufferLock(lock or False))
        if self._prefetcher is not None:
            self._prefetcher.load(ahead)

    def __repr__(self) -> str:
        name = type(self).__name__
        if self._recipe is not None:
            return f"{name}(not initialized, batch_size={self._batch_size})"
        parts = {"storage": self._storage, "sampler": self._sampler, "writer": self._writer}
        if len(self._transform):
            parts["transform"] = self._transform  # type: ignore[assignment]
        lines = "".join(f"    {key}={value!r},\n" for key, value in parts.items())
        return f"{name}(\n{lines}    batch_size={self._batch_size},\n    items={len(self._storage)},\n)"


def _as_batch(data: Any) -> Any:
    """A list of TensorDicts as one, since transforms take TensorDicts."""
    return collate(data) if isinstance(data, list) and data and is_tensor_collection(data[0]) else data


def _to_device(index: Any, device: torch.device) -> Any:
    if isinstance(index, tuple):
        return tuple(part.to(device) for part in index)
    return index.to(device) if isinstance(index, Tensor) else index
