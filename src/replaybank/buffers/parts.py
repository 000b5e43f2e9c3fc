"""Making and checking what a buffer is composed of."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from replaybank.buffers.transforms import TransformChain
from replaybank.storages.base import Storage
from replaybank.storages.list import ListStorage

Part = TypeVar("Part")


def part_of(name: str, given: Any, kind: type[Part], default: Callable[[], Part] | None) -> Part:
    """The part that was given, as an instance or as a callable that makes it.

    Raises:
        TypeError: it is neither, or the callable makes something else.
    """
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
    """A batch size, or None.

    Raises:
        TypeError: it is no integer.
        ValueError: it is not positive.
    """
    if given is None:
        return None
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise TypeError(f"batch_size={given!r} is a {type(given).__name__}; give an integer.")
    size = given.__index__()
    if size < 1:
        raise ValueError(f"batch_size={size}: give 1 or more.")
    return int(size)


def check_shareable(storage: Storage) -> None:
    """See to it that other processes will see what this one writes.

    Raises:
        RuntimeError: the storage cannot be shared as it is; the message says what to do.
    """
    if isinstance(storage, ListStorage):
        raise RuntimeError(  # noqa: TRY004 (what spawned workers have always raised here)
            f"shared=True, but a {type(storage).__name__} holds Python objects, which processes cannot "
            "share. Use a TensorStorage, LazyTensorStorage or LazyMemmapStorage."
        )
    if not storage.initialized and not getattr(storage, "shared_init", False):
        raise RuntimeError(
            f"shared=True, but the {type(storage).__name__} has no memory yet, so that each process would "
            "allocate its own. Write to the storage first, or make it with shared_init=True."
        )


def may_pin() -> bool:
    """Whether memory can be page-locked here; warns if not."""
    accelerator = getattr(torch, "accelerator", None)
    there = torch.cuda.is_available() if accelerator is None else accelerator.is_available()
    if not there:
        warnings.warn("pin_memory=True is ignored: there is no accelerator here.", stacklevel=3)
    return bool(there)
