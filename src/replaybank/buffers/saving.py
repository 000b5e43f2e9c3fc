"""What a buffer saves, and how it takes a state over: wholly, or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from replaybank import checkpoint
from replaybank.buffers.prefetch import copied
from replaybank.storages.resize import Move
from replaybank.storages.snapshot import StorageSnapshot

if TYPE_CHECKING:
    from replaybank.buffers.base import ComposedBuffer

_FORM: dict[str, tuple[type, ...]] = {
    "storage": (Mapping,),
    "sampler": (Mapping,),
    "writer": (Mapping,),
    "transforms": (Mapping,),
    "generator": (Tensor, type(None)),
    "ahead": (list,),
}
"""Entries of a state and what they may be."""

# What comes of a state that is damaged, or that another kind of part has saved.
_UNFIT = (LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError)


def state_of(buffer: ComposedBuffer, *, copy: bool = True) -> dict[str, Any]:
    """The state of a buffer; the caller holds the lock.

    Args:
        buffer: whose.
        copy: False: the storage's tensors themselves where it can give them, to be saved before the next
            write.
    """
    storage = buffer._storage
    return {
        "storage": storage.state_dict() if copy else storage.state_to_save(),
        **beside_storage(buffer),
    }


def beside_storage(buffer: ComposedBuffer) -> dict[str, Any]:
    """The state of everything but the storage; the caller holds the lock."""
    generator, prefetcher = buffer._generator, buffer._prefetcher
    return {
        "sampler": buffer._sampler.state_dict(),
        "writer": buffer._writer.state_dict(),
        "transforms": copied(buffer._transform.state_dict()),  # a module's are its live parameters
        "generator": None if generator is None else generator.get_state(),
        "ahead": [] if prefetcher is None else prefetcher.state(),
        "kinds": _kinds(buffer),
    }


def take_over(buffer: ComposedBuffer, state: Mapping[str, Any]) -> Callable[[], None]:
    """Hand a state to the parts.

    Returns:
        What makes it undone: all parts are then as they were, except for batches drawn ahead.

    Raises:
        ValueError: the state is damaged, or of other parts; nothing has been changed.
    """
    _check(buffer, state, storage=True)
    with _explained("storage", _saved_kind(state, "storage"), _kinds(buffer).get("storage")):
        move = buffer._storage.move_of(state["storage"])
    moved = state if move is None else _moved(buffer, state, move)
    return _hand_over(buffer, moved, lambda: buffer._storage.load_state_dict(state["storage"]))


def _moved(buffer: ComposedBuffer, state: Mapping[str, Any], move: Move) -> dict[str, Any]:
    """The state of everything but the storage, for items that come to lie elsewhere in a larger one."""
    with _explained("sampler", _saved_kind(state, "sampler"), _kinds(buffer).get("sampler")):
        sampler = buffer._sampler.moved(state["sampler"], move)
    with _explained("writer", _saved_kind(state, "writer"), _kinds(buffer).get("writer")):
        writer = buffer._writer.moved(state["writer"], move)
    ahead = state["ahead"]
    if move.first:
        with _explained("batches drawn ahead", None, None):
            # They are read again: an entry "index" in their data says where the items were.
            ahead = [{**one, "index": _moved_index(one["index"], move), "data": None} for one in ahead]
    return {**state, "sampler": sampler, "writer": writer, "ahead": ahead}


def _moved_index(index: Any, move: Move) -> Any:
    return (move.row(index[0]), *index[1:]) if isinstance(index, tuple) else move.row(index)


def dump(buffer: ComposedBuffer, path: checkpoint.StrPath, *, keep: int, allow_pickle: bool) -> None:
    """Save a buffer; the caller holds writers back."""
    if buffer._checkpointer is None:
        with buffer._lock.lock:
            # As writers wait, nothing need be copied, unless for hooks: they may change what they are given.
            state = state_of(buffer, copy=bool(buffer._save_hooks))
        state["storage"] = _through(buffer._save_hooks, state["storage"], "save")
    else:
        buffer._checkpointer.dumps(buffer._storage, Path(path) / "storage")
        with buffer._lock.lock:
            state = beside_storage(buffer)
    checkpoint.save(path, state, keep=keep, allow_pickle=allow_pickle)


def restore(buffer: ComposedBuffer, path: checkpoint.StrPath, *, allow_pickle: bool) -> None:
    """Load a buffer; the caller holds the lock for writing."""
    checkpointer = buffer._checkpointer
    stored = not buffer._load_hooks and buffer._storage.takes_stored_rows  # hooks may do anything to tensors
    with checkpoint.opened(path, allow_pickle=allow_pickle, stored=stored) as state:
        if checkpointer is None:
            _check(buffer, state, storage=True)
            state["storage"] = _through(buffer._load_hooks, state["storage"], "load")
            take_over(buffer, state)
        else:
            _check(buffer, state, storage=False)
            _hand_over(buffer, state, lambda: checkpointer.loads(buffer._storage, Path(path) / "storage"))


def _through(hooks: list[Callable[[Any], Any]], state: Any, when: str) -> Any:
    for hook in hooks:
        state = hook(state)
        if not isinstance(state, Mapping):
            raise TypeError(
                f"The {when} hook {hook!r} returned a {type(state).__name__}; a hook returns the storage's "
                f"state, a dict, even if it changed it in place. Nothing has been {when.rstrip('e')}ed."
            )
    return state


def _kinds(buffer: ComposedBuffer) -> dict[str, str]:
    parts = {"storage": buffer._storage, "sampler": buffer._sampler, "writer": buffer._writer}
    return {name: _kind(part) for name, part in parts.items()}


def _kind(part: Any) -> str:
    """The name of a part's class, and of those in it."""
    inner = getattr(part, "_samplers", None)
    name = type(part).__name__
    return f"{name}({', '.join(map(_kind, inner))})" if isinstance(inner, (list, tuple)) else name


def check_form(state: Any, form: Mapping[str, Any], what: str) -> None:
    """See to it that a state is a dict with the entries of ``what``, each of its type.

    Raises:
        TypeError, ValueError: it is not; says in which entry.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"A state is a dict, as state_dict() gives it; got a {type(state).__name__}.")
    missing = [name for name in form if name not in state]
    if missing:
        raise ValueError(
            f"This is no state of {what}: it has {sorted(map(str, state))[:20]} and lacks {missing}. "
            "Nothing has been changed."
        )
    for name, kinds in form.items():
        if not isinstance(state[name], kinds):
            raise ValueError(  # noqa: TRY004 (what is wrong is in the data)
                f"The state is damaged: its entry {name!r} is a {type(state[name]).__name__}. Nothing has "
                "been changed."
            )


def _check(buffer: ComposedBuffer, state: Mapping[str, Any], *, storage: bool) -> None:
    """See to it that a state has the form of a buffer's, and is of the same kind of sampler."""
    wanted = {name: kinds for name, kinds in _FORM.items() if storage or name != "storage"}
    if isinstance(state, Mapping) and [name for name in wanted if name not in state] == ["storage"]:
        raise ValueError(
            "The state is of a buffer whose checkpointer saved the storage in its own way: give this buffer "
            "the same checkpointer. Nothing has been changed."
        )
    check_form(state, wanted, "a buffer")
    saved, here = _saved_kind(state, "sampler"), _kind(buffer._sampler)
    if saved not in (None, here):
        raise ValueError(
            f"{buffer._of_another_sampler(saved, here, state['sampler'])} Nothing has been changed."
        )
    if state["ahead"] and buffer._batch_size is None:
        raise ValueError(
            f"The state holds {len(state['ahead'])} batches that were drawn ahead; to hand them out, the "
            "buffer needs the batch_size of the saved one. Nothing has been changed."
        )


def _saved_kind(state: Mapping[str, Any], part: str) -> str | None:
    kinds = state.get("kinds")
    kind = kinds.get(part) if isinstance(kinds, Mapping) else None
    return kind if isinstance(kind, str) else None


def _hand_over(
    buffer: ComposedBuffer, state: Mapping[str, Any], load_storage: Callable[[], None]
) -> Callable[[], None]:
    """Load the parts, the storage first, since the others look at it; at an error all are as before."""

    def loading(part: str) -> contextlib.AbstractContextManager[None]:
        return _explained(part, _saved_kind(state, part), _kinds(buffer).get(part))

    before = _Before(buffer)
    try:
        with loading("storage"):
            load_storage()
            buffer._join()
        with loading("writer"):
            buffer._writer.load_state_dict(state["writer"])
        with loading("sampler"):
            buffer._sampler.load_state_dict(state["sampler"])
            buffer._sampler.register_storage(buffer._storage)
        with loading("transforms"):
            buffer._transform.load_state_dict(state["transforms"])
        with loading("generator"):
            if state["generator"] is not None:
                if buffer._generator is None:
                    buffer._generator = buffer._sampler.generator = torch.Generator()
                buffer._generator.set_state(state["generator"])
        with loading("batches drawn ahead"):
            buffer._take_ahead(state["ahead"])
    except BaseException:
        before.restore()
        raise
    return before.restore


@contextlib.contextmanager
def _explained(part: str, saved: str | None, here: str | None) -> Iterator[None]:
    another = bool(saved and here and saved != here)
    try:
        yield
    except (*_UNFIT, ValueError) as error:
        if isinstance(error, ValueError) and not another:
            raise  # it says what is wrong; that the kinds differ it cannot know
        kinds = f" It is of a {saved}; here is a {here}." if saved and here else ""
        raise ValueError(
            f"The saved state of the {part} does not fit or is damaged: {type(error).__name__}: {error}."
            f"{kinds} Nothing has been changed."
        ) from error


class _Before:
    """A buffer's parts as they were before a load, to be put back. O(N) copies of what is stored."""

    def __init__(self, buffer: ComposedBuffer) -> None:
        self._buffer = buffer
        self._sampler = copied(buffer._sampler.state_dict())
        self._writer = copied(buffer._writer.state_dict())
        self._transforms = copied(buffer._transform.state_dict())
        self._generator, self._sampler_generator = buffer._generator, buffer._sampler.generator
        self._random = None if self._generator is None else self._generator.get_state()
        self._stored = StorageSnapshot(buffer._storage)

    def restore(self) -> None:
        buffer = self._buffer
        self._stored.restore()
        buffer._generator, buffer._sampler.generator = self._generator, self._sampler_generator
        buffer._join()
        buffer._writer.load_state_dict(self._writer)
        buffer._sampler.load_state_dict(self._sampler)
        buffer._sampler.register_storage(buffer._storage)
        buffer._transform.load_state_dict(self._transforms)
        if self._generator is not None and self._random is not None:
            self._generator.set_state(self._random)
