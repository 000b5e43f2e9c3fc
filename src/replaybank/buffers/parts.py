"""Making and checking what a buffer is composed of."""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections.abc import Callable
from typing import Any, cast

import torch

from replaybank.buffers.transforms import TransformChain
from replaybank.samplers.base import Sampler
from replaybank.storages.base import Storage
from replaybank.storages.list import ListStorage
from replaybank.writers.base import Writer


def storage_of(given: Any, default: Callable[[], Storage] | None = None) -> Storage:
    """The storage that was given, as an instance or as a callable that makes it.

    Raises:
        TypeError: it is neither, or the callable makes something else.
    """
    return cast(Storage, _part_of("storage", given, Storage, default))


def sampler_of(given: Any, default: Callable[[], Sampler] | None = None) -> Sampler:
    """The sampler that was given; see :func:`storage_of`."""
    return cast(Sampler, _part_of("sampler", given, Sampler, default))


def writer_of(given: Any, default: Callable[[], Writer] | None = None) -> Writer:
    """The writer that was given; see :func:`storage_of`."""
    return cast(Writer, _part_of("writer", given, Writer, default))


def _part_of(name: str, given: Any, kind: type[Any], default: Callable[[], Any] | None) -> Any:
    if given is None and default is not None:
        return default()
    # A class is callable, and no instance of itself.
    made = given if isinstance(given, kind) or not callable(given) else given()
    if not isinstance(made, kind):
        raise TypeError(
            f"{name}={given!r} {'is' if made is given else 'makes'} a {type(made).__name__}; give a "
            f"{kind.__name__} or a callable that makes one."
        )
    return made


def chain_of(transform: Any) -> TransformChain:
    """The transforms that were given: none, one, or several."""
    if isinstance(transform, TransformChain):
        return transform
    if transform is None:
        return TransformChain()
    return TransformChain(transform if isinstance(transform, (list, tuple)) else [transform])


def batch_size_of(given: Any) -> int | None:
    """A batch size, or None; see :func:`whole_number`."""
    return None if given is None else whole_number("batch_size", given, 1)


def whole_number(name: str, given: Any, least: int) -> int:
    """An integer that was given: Python's, NumPy's or one in a tensor.

    Raises:
        TypeError: it is no integer.
        ValueError: it is less than ``least``.
    """
    number = None
    if not isinstance(given, bool) and hasattr(given, "__index__"):
        with contextlib.suppress(TypeError):  # a tensor has the method, whatever is in it
            number = int(given.__index__())
    if number is None:
        raise TypeError(f"{name}={given!r} is a {type(given).__name__}; give an integer.")
    if number < least:
        raise ValueError(f"{name}={number}: give {least} or more.")
    return number


def generator_of(given: Any) -> torch.Generator | None:
    """A source of random draws, or None.

    Raises:
        TypeError: it is something else, such as a seed.
    """
    if given is not None and not isinstance(given, torch.Generator):
        raise TypeError(
            f"generator={given!r} is a {type(given).__name__}; give a torch.Generator, such as "
            "torch.Generator().manual_seed(0), or None for the global one."
        )
    return given


def check_shareable(storage: Storage) -> None:
    """See to it that other processes will see what this one writes.

    Raises:
        RuntimeError: the storage cannot be shared as it is; the message says what to do.
    """
    name = type(storage).__name__
    if isinstance(storage, ListStorage):
        raise RuntimeError(  # noqa: TRY004 (what spawned workers have always raised here)
            f"shared=True, but a {name} holds Python objects, which processes cannot share. Use a "
            "LazyTensorStorage or LazyMemmapStorage with shared_init=True."
        )
    if getattr(storage, "shared_init", None) is False:
        raise RuntimeError(
            f"shared=True, but the {name} is in memory of this process alone, or has none yet, so that each "
            "process would come to have its own. Make it with shared_init=True."
        )
    if not hasattr(storage, "shared_init"):
        # Data that was given: its log is all that is not the user's.
        alone = [key for key in storage.leaf_keys() if not storage.read_leaf(key, slice(0, 1)).is_shared()]
        if alone:
            raise RuntimeError(
                f"shared=True, but the data of the {name} is in memory of this process alone: {alone}. Call "
                "share_memory_() on it first."
            )
        storage.log.share_memory_()


def is_shared(storage: Storage) -> bool:
    """Whether a copy of a storage in another process is the same storage, not one of its own."""
    return bool(getattr(storage, "shared_init", False)) or storage.log.state.is_shared()


def refuse_unallocated(storage: Storage) -> None:
    """See to it that a storage has its memory before another process gets it.

    Raises:
        RuntimeError: it has none.
    """
    if not storage.initialized:
        raise RuntimeError(
            f"The {type(storage).__name__} of this shared buffer had no memory yet when it came to another "
            "process, so each would allocate its own. Write to the buffer first, then start the processes."
        )


def may_pin() -> bool:
    """Whether memory can be page-locked here; warns if not."""
    accelerator = getattr(torch, "accelerator", None)
    there = torch.cuda.is_available() if accelerator is None else accelerator.is_available()
    if not there:
        warnings.warn("pin_memory=True is ignored: there is no accelerator here.", stacklevel=3)
    return bool(there)


def draw_of(sampler: Sampler) -> Callable[[Any, int], tuple[Any, dict[Any, Any]]]:
    """How a buffer asks a sampler: by ``draw``, unless what its user wrote is a ``sample``."""
    kind = type(sampler)
    if kind.draw is Sampler.draw and "draw" not in sampler.__dict__:
        return sampler.sample  # what it would call
    for owner in (sampler, *kind.__mro__):
        if "draw" in vars(owner):
            return sampler.draw
        if "sample" in vars(owner):
            return sampler.sample
    return sampler.draw


def copy_of(generator: torch.Generator | None) -> torch.Generator:
    """One that draws what another, or torch's global one, would, and leaves that as it is."""
    if generator is None:
        generator = torch.default_generator
    return torch.Generator(generator.device).set_state(generator.get_state())


def outside_graphs(owner: Any, name: str) -> Callable[..., Any]:
    """A method of ``owner`` that ``torch.compile`` calls between two graphs, with nothing in it traced."""
    method = getattr(type(owner), name)
    reference = weakref.ref(owner)  # the owner will hold this: a cycle would keep its memory for a while

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return method(reference(), *args, **kwargs)

    return cast(Callable[..., Any], torch.compiler.disable(call))
