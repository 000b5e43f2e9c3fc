"""The parts of a buffer: making, joining, exchanging and handing on to other processes."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from replaybank import showing
from replaybank.buffers import parts
from replaybank.buffers.collate import collate
from replaybank.buffers.locks import BufferLock, renew_after_fork
from replaybank.buffers.prefetch import Batch, Prefetcher
from replaybank.checkpoint import Stateful
from replaybank.samplers.base import Sampler
from replaybank.samplers.random import RandomSampler
from replaybank.storages.base import Storage
from replaybank.storages.list import ListStorage
from replaybank.writers.base import Writer
from replaybank.writers.round_robin import RoundRobinWriter

if TYPE_CHECKING:
    from typing_extensions import Self

    from replaybank.buffers.transforms import TransformChain
    from replaybank.transforms.base import SampleTransform

DEFAULT_CAPACITY = 1000
"""Items of the storage that a buffer makes when none is given."""


_CALLED_FROM_GRAPHS = (
    *("add", "extend", "empty", "sample", "next"),
    *("update_priority", "mark_update", "update_tensordict_priority"),
)
"""Methods that ``torch.compile`` does not look into in a buffer with ``compilable=True``."""


class ComposedBuffer(Stateful):
    """What a buffer is composed of; how it writes and reads is for its subclass to say.

    Thread-safe: all is done under one lock.
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
        if dim_extend is not None:
            dim_extend = parts.whole_number("dim_extend", dim_extend, 0)
        ahead = 0 if prefetch is None else parts.whole_number("prefetch", prefetch, 0)
        self._batch_size = parts.batch_size_of(batch_size)
        if ahead and self._batch_size is None:
            raise ValueError(f"prefetch={prefetch} needs a batch_size, so that batches can be drawn ahead.")
        if ahead and shared:
            raise ValueError("prefetch draws ahead in one process and cannot be used with shared=True.")
        self._collate_fn = collate if collate_fn is None else collate_fn
        self._pin = parts.may_pin() if pin_memory else False
        self._given_dim_extend = dim_extend
        self._checkpointer = checkpointer
        self._generator = parts.generator_of(generator)
        self._shared = bool(shared)
        self._compilable = bool(compilable)
        self._save_hooks: list[Callable[[Any], Any]] = []
        self._load_hooks: list[Callable[[Any], Any]] = []
        self._prefetch = ahead
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
        if lock.shared:
            renew_after_fork(self)
        self._prefetcher = Prefetcher(self, self._prefetch) if self._prefetch else None
        self._iterator: Iterator[Any] | None = None

    def renew_after_fork(self) -> None:
        """In a forked child: a shared buffer whose storage is not shared after all must not be used."""
        if self._recipe is None and not self._storage.initialized:
            self._recipe = {}

    def _build(self) -> None:
        with self._lock.lock:
            recipe = self._recipe
            if recipe is None:
                return
            if not recipe:
                parts.refuse_unallocated(self._storage)
            factory = recipe["transform_factory"]
            self._transform: TransformChain = parts.chain_of(
                recipe["transform"] if factory is None else factory()
            )
            self._storage: Storage = parts.storage_of(
                recipe["storage"], lambda: ListStorage(DEFAULT_CAPACITY)
            )
            self._writer: Writer = parts.writer_of(recipe["writer"], self._default_writer)
            self._sampler: Sampler = parts.sampler_of(recipe["sampler"], RandomSampler)
            self._check_drop_last(self._sampler)
            if self._shared:
                parts.check_shareable(self._storage)
            self._join()
            self._recipe = None

    def _join(self) -> None:
        """Let the parts know each other, after one was made or replaced."""
        self._writer.register_storage(self._storage)
        self._sampler.register_storage(self._storage)
        # How many items there are in columns is known with the first write; shared memory cannot grow then.
        self._shares_later = self._shared and self._storage.ndim > 1 and not self._storage.initialized
        self._sampler.guarded = self._shared
        if self._shared and not self._shares_later:
            self._sampler.share_memory_()
        if self._generator is not None:
            self._sampler.generator = self._generator
        given = self._given_dim_extend
        self._dim_extend = self._storage.ndim - 1 if given is None else given
        device = getattr(self._storage, "device", None)
        on_cpu = device is None or not isinstance(device, torch.device) or device.type == "cpu"
        self._index_device = None if on_cpu else device
        self._keep_out_of_graphs((self._storage, self._writer))

    def _keep_out_of_graphs(self, made_of: Sequence[Any]) -> None:
        """Have ``torch.compile`` call this buffer instead of tracing into it, where that is asked for."""
        if self._compilable or any(getattr(part, "compilable", False) for part in made_of):
            for name in _CALLED_FROM_GRAPHS:
                if hasattr(type(self), name):
                    vars(self)[name] = parts.outside_graphs(self, name)

    def _share_sampler(self) -> None:
        """Share the sampler's memory, now that the storage has its own."""
        self._sampler.register_storage(self._storage)
        self._sampler.share_memory_()
        self._shares_later = False

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
        with (
            self._lock.lock
        ):  # while a batch is drawn ahead, its state is not that of the last batch handed out
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
        """Exchange the storage; batches drawn ahead are dropped.

        Args:
            storage: an instance or a callable that makes one.
            collate_fn: another one for it; the one there is by default.

        Returns:
            The storage there was.

        Raises:
            TypeError: it is no storage.
            ValueError: the sampler has no room for what it holds.
            RuntimeError: the buffer is shared and the storage cannot be.
        """
        with self._writing:
            new = parts.storage_of(storage)
            if self._shared:
                parts.check_shareable(new)
            self._sampler.register_storage(new)
            old, self._storage = self._storage, new
            if collate_fn is not None:
                self._collate_fn = collate_fn
            self._join()
            self._drop_ahead()
            return old

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Exchange the sampler; batches drawn ahead are dropped.

        Args:
            sampler: an instance or a callable that makes one.

        Returns:
            The sampler there was.

        Raises:
            TypeError: it is no sampler.
            ValueError: it needs a batch size and the buffer has none, or it has no room for what is stored.
        """
        with self._writing:
            new = parts.sampler_of(sampler)
            self._check_drop_last(new)
            new.register_storage(self._storage)
            old, self._sampler = self._sampler, new
            self._join()
            self._drop_ahead()
            return old

    def set_writer(self, writer: Writer) -> Writer:
        """Exchange the writer.

        Args:
            writer: an instance or a callable that makes one.

        Returns:
            The writer there was.

        Raises:
            TypeError: it is no writer.
        """
        with self._writing:
            old, self._writer = self._writer, parts.writer_of(writer)
            self._join()
            return old

    def set_rng(self, generator: torch.Generator | None) -> None:
        """Take every random draw from another source; batches drawn ahead are dropped.

        Args:
            generator: the source; None is the global one.

        Raises:
            TypeError: it is something else, such as a seed.
        """
        generator = parts.generator_of(generator)
        with self._writing:
            self._generator = generator
            self._sampler.generator = generator
            self._drop_ahead()

    def append_transform(self, transform: Any, *, invert: bool = False) -> Self:
        """Add a transform behind the others.

        Args:
            transform: a callable, an ``nn.Module`` or an object with ``inv``.
            invert: use its ``inv`` on sampling and its forward on writing.

        Returns:
            The buffer.

        Raises:
            TypeError: it cannot be called, or ``invert`` is asked of one without ``inv``.
        """
        return self.insert_transform(len(self.transform), transform, invert=invert)

    def insert_transform(self, index: int, transform: Any, *, invert: bool = False) -> Self:
        """Add a transform between the others. Batches drawn ahead are read once more, and go through it.

        Args:
            index: position before which it comes, as for ``list.insert``.
            transform: a callable, an ``nn.Module`` or an object with ``inv``.
            invert: use its ``inv`` on sampling and its forward on writing.

        Returns:
            The buffer.

        Raises:
            TypeError: it cannot be called, or ``invert`` is asked of one without ``inv``.
        """
        with self._writing:
            self._transform.insert(index, transform, invert=invert)
            if self._prefetcher is not None:
                self._prefetcher.redo()
        return self

    @abstractmethod
    def _draw(
        self,
        size: int,
        info_in_sample: bool,
        collate_fn: Callable[[Any], Any] | None = None,
        also: tuple[SampleTransform, ...] = (),
    ) -> Batch:
        """Draw a batch.

        Args:
            size: of it.
            info_in_sample: it must be such that the sampler's info can be put into it.
            collate_fn: used in place of the buffer's.
            also: sampling transforms beside the buffer's own.
        """

    @abstractmethod
    def _assemble(self, data: Any, keep_batch: bool, collate_fn: Callable[[Any], Any] | None = None) -> Any:
        """Make of items, as the storage gives them, a batch."""

    @abstractmethod
    def _read_again(self, index: Any, info: Mapping[Any, Any]) -> tuple[Any, Any, dict[Any, Any]]:
        """A batch of which index and info are known, as it would be drawn now, with its index and info then.

        Args:
            index: its places.
            info: what the sampler said of it.
        """

    def _check_batch(self, batch: Batch) -> None:
        """Raise if a batch out of a state cannot be handed out."""

    @abstractmethod
    def __len__(self) -> int: ...

    def _ready(self) -> None:
        if self._recipe is not None:
            self._build()

    @property
    def _writing(self) -> AbstractContextManager[None]:
        if self._recipe is not None:
            self._build()
        return self._lock.writing

    def _line(self) -> Prefetcher:
        """What hands out batches that were drawn ahead, here or in the buffer that a state is of."""
        return Prefetcher(self, 0) if self._prefetcher is None else self._prefetcher

    def _take_ahead(self, ahead: Sequence[dict[str, Any]]) -> None:
        """Have batches come next that were drawn ahead, even if this buffer draws none."""
        line = self._line()
        line.load(ahead)
        if ahead or line is self._prefetcher:
            self._prefetcher = line

    def _drop_ahead(self) -> None:
        if self._prefetcher is not None:
            self._prefetcher.drop()

    # --- life ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the background thread, if there is one. The buffer can still be used."""
        prefetcher = self._prefetcher
        if prefetcher is not None:
            prefetcher.stop()

    def __getstate__(self) -> dict[str, Any]:
        with self._lock.lock:
            state = self._live_state()
            # What pickles this goes through it once the lock is free again, while others write.
            if self._recipe is None and not parts.is_shared(self._storage):
                names = ("_storage", "_sampler", "_writer", "_generator")
                state.update(copy.deepcopy({name: state[name] for name in names}))
            return state

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        with self._lock.lock:
            made = type(self).__new__(type(self))
            memo[id(self)] = made
            made.__setstate__(copy.deepcopy(self._live_state(), memo))
            return made

    def _live_state(self) -> dict[str, Any]:
        if self._shared and self._recipe is None:
            parts.refuse_unallocated(self._storage)
        left_out = ("_lock", "_prefetcher", "_iterator", *_CALLED_FROM_GRAPHS)
        state = {name: value for name, value in self.__dict__.items() if name not in left_out}
        state["_process_lock"] = self._lock.shared
        state["_ahead"] = [] if self._prefetcher is None else self._prefetcher.state()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        lock, ahead = state.pop("_process_lock"), state.pop("_ahead")
        for name, value in state.items():
            setattr(self, name, value)
        self._start(BufferLock(lock or False))
        if self._recipe is None and "_storage" in state:
            self._keep_out_of_graphs((self._storage, self._writer))
        self._take_ahead(ahead)

    def _of_another_sampler(self, saved: str, here: str, state: Mapping[str, Any]) -> str:
        """What is said of the state of another kind of sampler than there is here."""
        return (
            f"The state is of a buffer with a {saved}; this one has a {here}. Load it into a buffer with a "
            f"{saved}; set_sampler exchanges it afterwards."
        )

    def _facts(self) -> dict[str, Any]:
        """What its repr tells, without the lock: whoever holds it may hold it long."""
        if self._recipe is not None:
            return {"": showing.Words("not initialized"), "batch_size": self._batch_size}
        told: dict[str, Any] = {"storage": self._storage, "sampler": self._sampler, "writer": self._writer}
        if len(self._transform):
            told["transform"] = self._transform
        return {**told, **self._settings(), "batch_size": self._batch_size, "items": len(self._storage)}

    def _settings(self) -> dict[str, Any]:
        """What was set and is not so by default."""
        settings = {"prefetch": self._prefetch, "pin_memory": self._pin, "shared": self._shared}
        return {name: value for name, value in settings.items() if value}

    def __repr__(self) -> str:
        return showing.text_of(self, lines=getattr(self, "_recipe", {}) is None)

    def _repr_html_(self) -> str:
        return showing.html_of(self)


# What Python says of wrong arguments names this, and those who call it know the class that they call.
ComposedBuffer.__init__.__qualname__ = "ReplayBuffer.__init__"
