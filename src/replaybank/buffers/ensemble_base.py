"""The buffers of an ensemble: making it of them, exchanging their parts, saving all of them together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from replaybank import showing
from replaybank.buffers import ensemble_parts, ensemble_saving
from replaybank.buffers.locks import BufferLock
from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.buffers.tensordict import TensorDictReplayBuffer
from replaybank.buffers.transforms import TransformChain
from replaybank.progress import watched_bytes
from replaybank.samplers.ensemble import SamplerEnsemble, drawn
from replaybank.storages.ensemble import StorageEnsemble, combined
from replaybank.writers.ensemble import WriterEnsemble

if TYPE_CHECKING:
    from torch import Tensor

    from replaybank.checkpoint import StrPath
    from replaybank.samplers.base import Sampler
    from replaybank.storages.base import Storage
    from replaybank.writers.base import Writer


class ComposedEnsemble(TensorDictReplayBuffer):
    """What an ensemble is composed of; how it reads is for its subclass to say.

    Thread-safe: its own lock is taken before those of its buffers.
    """

    def __init__(
        self,
        *buffers: ReplayBuffer,
        storages: StorageEnsemble | Sequence[Storage] | None = None,
        samplers: SamplerEnsemble | Sequence[Sampler] | None = None,
        writers: WriterEnsemble | Sequence[Writer] | None = None,
        transform: Any = None,
        batch_size: int | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        collate_fns: Sequence[Callable[[Any], Any] | None] | None = None,
        p: Tensor | Sequence[float] | None = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
        generator: torch.Generator | None = None,
        shared: bool = False,
    ) -> None:
        drawing: dict[str, Any] = {
            "p": p,
            "sample_from_all": sample_from_all,
            "num_buffer_sampled": num_buffer_sampled,
        }
        if buffers or storages is None or samplers is None or writers is None:
            parts = ensemble_parts.checked(buffers, storages, samplers, writers)
        else:
            parts = ensemble_parts.made_of(storages, samplers, writers, batch_size=batch_size, shared=shared)
        for part in parts:
            part._ready()
        if isinstance(samplers, SamplerEnsemble):
            ensemble_parts.refuse_drawing(drawing)
            sampler = samplers
        else:
            sampler = SamplerEnsemble(*(part._sampler for part in parts), **drawing)
        if collate_fns is not None and len(collate_fns) != len(parts):
            raise ValueError(f"{len(collate_fns)} collate_fns for {len(parts)} buffers: give one each.")
        if shared:
            ensemble_parts.check_shared(parts)
        self._buffers = parts
        self._collate_fns = None if collate_fns is None else tuple(collate_fns)
        super().__init__(
            sampler=sampler,
            transform=transform,
            batch_size=batch_size,
            collate_fn=combined if collate_fn is None else collate_fn,
            generator=generator,
            shared=shared,
        )

    def _build(self) -> None:
        recipe = self._recipe
        if recipe is None:
            return
        self._transform = TransformChain(ensemble_parts.links_of(recipe["transform"]))
        self._sampler = recipe["sampler"]
        self._recipe = None
        self._join()
        if self._generator is not None:
            self._hand_generator_down()

    def _join(self) -> None:
        """Have the ensembles of parts be of those that the buffers have now."""
        parts = self._buffers
        transforms = [part._transform if len(part._transform) else None for part in parts]
        stored = [part._storage for part in parts]
        self._storage = cast(Any, StorageEnsemble(*stored, transforms=transforms))
        self._writer = WriterEnsemble(*(part._writer for part in parts))
        self._ensemble_sampler.samplers = tuple(part._sampler for part in parts)
        self._dim_extend, self._index_device, self._shares_later = 0, None, False
        self._keep_out_of_graphs([*stored, *self._writer])

    def _hand_generator_down(self) -> None:
        self._sampler.generator = self._generator
        for part in self._buffers:
            if part.generator is not self._generator:
                part.set_rng(self._generator)

    @property
    def _ensemble_sampler(self) -> SamplerEnsemble:
        return cast(SamplerEnsemble, self._sampler)

    def _ready(self) -> None:
        """See to it that the parts here are those that the buffers have now."""
        self._build()
        for part, storage, sampler, writer in zip(
            self._buffers,
            cast(Any, self._storage).storages,
            self._ensemble_sampler.samplers,
            cast(WriterEnsemble, self._writer).writers,
            strict=True,
        ):
            if part._storage is not storage or part._sampler is not sampler or part._writer is not writer:
                with self._lock.lock:
                    self._join()
                return

    # --- parts ---------------------------------------------------------------------------------------------

    @property
    def buffers(self) -> tuple[ReplayBuffer, ...]:
        """The buffers."""
        return self._buffers

    @property
    def dim_extend(self) -> int:
        """There is none.

        Raises:
            AttributeError: always.
        """
        raise AttributeError("An ensemble has a dim_extend a buffer: ensemble[i].dim_extend.")

    @property
    def priority_key(self) -> str | tuple[str, ...]:
        """Entry that holds priorities for buffers that do not name one."""
        return self._priority_key

    def set_storage(self, storage: Any, collate_fn: Callable[[Any], Any] | None = None) -> Any:
        """Exchange the storages of all buffers.

        Args:
            storage: a :class:`StorageEnsemble` with one a buffer.
            collate_fn: another one for what the buffers give; the one there is by default.

        Returns:
            The ensemble of storages there was.

        Raises:
            TypeError: it is no StorageEnsemble.
            ValueError: it has another number of parts, or one that its sampler has no room for; nothing has
                been changed.
        """
        self._ready()
        with self._lock.lock:
            ensemble_parts.check_kind(storage, StorageEnsemble, len(self._buffers))
            old = self._storage
            ensemble_parts.exchange(
                [part.set_storage for part in self._buffers], storage.storages, cast(Any, old).storages
            )
            if collate_fn is not None:
                self._collate_fn = collate_fn
            self._join()
            return old

    def set_sampler(self, sampler: Any) -> Any:
        """Exchange the samplers of all buffers, and how they are drawn.

        Args:
            sampler: a :class:`SamplerEnsemble` with one a buffer.

        Returns:
            The ensemble of samplers there was.

        Raises:
            TypeError: it is no SamplerEnsemble.
            ValueError: it has another number of parts, or one without room for what is stored; nothing has
                been changed.
        """
        self._ready()
        with self._lock.lock:
            ensemble_parts.check_kind(sampler, SamplerEnsemble, len(self._buffers))
            old = self._ensemble_sampler
            ensemble_parts.exchange(
                [part.set_sampler for part in self._buffers], sampler.samplers, old.samplers
            )
            self._sampler = sampler
            self._join()
            ensemble_saving.tie(self, ensemble_saving.tied(self))
            return old

    def set_writer(self, writer: Any) -> Any:
        """Exchange the writers of all buffers.

        Args:
            writer: a :class:`WriterEnsemble` with one a buffer.

        Returns:
            The ensemble of writers there was.

        Raises:
            TypeError: it is no WriterEnsemble.
            ValueError: it has another number of parts, or one that cannot write to its storage; nothing has
                been changed.
        """
        self._ready()
        with self._lock.lock:
            ensemble_parts.check_kind(writer, WriterEnsemble, len(self._buffers))
            old = cast(WriterEnsemble, self._writer)
            ensemble_parts.exchange([part.set_writer for part in self._buffers], writer.writers, old.writers)
            self._join()
            return old

    def set_rng(self, generator: torch.Generator | None) -> None:
        """Take every random draw from another source, in the buffers too.

        Args:
            generator: the source; None is the global one.

        Raises:
            TypeError: it is something else, such as a seed.
        """
        self._ready()
        with self._lock.lock:
            super().set_rng(generator)
            self._hand_generator_down()

    # --- state ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _held(self, hold: Callable[[BufferLock], contextlib.AbstractContextManager[Any]]) -> Iterator[None]:
        """All locks at once, each buffer's once, in an order that is the same for everybody."""
        self._ready()
        locks = {id(part._lock): part._lock for part in self._buffers}.values()
        with contextlib.ExitStack() as stack:
            stack.enter_context(hold(self._lock))
            for lock in sorted(locks, key=lambda lock: lock.order):
                stack.enter_context(hold(lock))
            yield

    def state_dict(self) -> dict[str, Any]:
        """Everything: the states of the buffers, how they are drawn, transforms, generator."""
        with self._held(lambda lock: lock.lock):
            return ensemble_saving.state_of(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state of an ensemble of the same kinds of buffers, wholly or not at all. O(N).

        Args:
            state_dict: what :meth:`state_dict` gave; it stays the caller's.

        Raises:
            ValueError: the state is of other parts or sizes, or damaged; nothing has been changed.
        """
        with self._held(lambda lock: lock.writing):
            ensemble_saving.take_over(self, state_dict)

    def dumps(
        self, path: StrPath, *, keep: int = 0, allow_pickle: bool = False, progress: bool | None = None
    ) -> None:
        """Save everything, the buffers included, into the directory ``path``, atomically.

        Killed at any instant, ``path`` holds the state before or after. Sampling goes on meanwhile; writing
        waits. Save hooks of the buffers change the states of their storages; one of the ensemble is given
        ``{"storages": [...]}`` with all of them.

        Args:
            path: a directory; made if missing.
            keep: number of earlier saves that stay in it (see :func:`replaybank.checkpoint.load`).
            allow_pickle: pickle items of a :class:`ListStorage` that are no tensors or plain values.
            progress: show the bytes written, if it takes long; by default where the error output is a
                terminal.

        Raises:
            TypeError: there are such items and ``allow_pickle`` is not set, or a save hook returned no state;
                nothing has been saved.
        """
        with watched_bytes("Saving", progress), self._held(lambda lock: lock.paused_writing()):
            ensemble_saving.dump(self, path, keep=keep, allow_pickle=allow_pickle)

    def loads(self, path: StrPath, *, allow_pickle: bool = False, progress: bool | None = None) -> None:
        """Take over what :meth:`dumps` left in ``path``; warns if a later save was not finished.

        Args:
            path: the directory.
            allow_pickle: unpickle what was pickled. This can run any code: only for files you trust.
            progress: show the bytes read, if it takes long; by default where the error output is a terminal.

        Raises:
            FileNotFoundError: nothing was saved there.
            DataFormatError: a file is damaged; nothing has been changed.
            ValueError: the state is of other buffers, or of another capacity; nothing has been changed.
            TypeError: a load hook returned no state; nothing has been changed.
        """
        with watched_bytes("Loading", progress), self._held(lambda lock: lock.writing):
            ensemble_saving.restore(self, path, allow_pickle=allow_pickle)

    def __getstate__(self) -> dict[str, Any]:
        self._ready()
        with self._lock.lock:
            return self._live_state()

    def _live_state(self) -> dict[str, Any]:
        state = super()._live_state()
        # They are made anew of the copies of the buffers, which belong together.
        for name in ("_storage", "_sampler", "_writer"):
            del state[name]
        state["_drawing"] = self._ensemble_sampler.own_state()
        state["_tied"] = ensemble_saving.tied(self)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        drawing, tied = state.pop("_drawing"), state.pop("_tied")
        samplers = (part._sampler for part in state["_buffers"])
        state["_sampler"] = SamplerEnsemble(*samplers)
        state["_sampler"].load_own_state(drawing)
        super().__setstate__(state)
        self._join()
        ensemble_saving.tie(self, tied)

    def _facts(self) -> dict[str, Any]:
        told: dict[str, Any] = {"": showing.Parts(self._buffers), **drawn(self._ensemble_sampler.arguments)}
        if len(self._transform):
            told["transform"] = self._transform
        items = sum(len(part._storage) for part in self._buffers)
        return {**told, **self._settings(), "batch_size": self._batch_size, "items": items}


# What Python says of wrong arguments names this, and those who call it know the class that they call.
ComposedEnsemble.__init__.__qualname__ = "ReplayBufferEnsemble.__init__"
