"""What a buffer saves, and in which order it is taken over."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from replaybank import checkpoint

if TYPE_CHECKING:
    from replaybank.buffers.base import ComposedBuffer


def beside_storage(buffer: ComposedBuffer) -> dict[str, Any]:
    """The state of everything but the storage; the caller holds the lock."""
    generator, prefetcher = buffer._generator, buffer._prefetcher
    return {
        "sampler": buffer._sampler.state_dict(),
        "writer": buffer._writer.state_dict(),
        "transforms": buffer._transform.state_dict(),
        "generator": None if generator is None else generator.get_state(),
        "ahead": [] if prefetcher is None else prefetcher.state(),
    }


def take_over(buffer: ComposedBuffer, state: Mapping[str, Any]) -> None:
    """Hand a state to the parts, the storage first: the others look at it."""
    if "storage" in state:
        buffer._storage.load_state_dict(state["storage"])
    buffer._join()
    buffer._writer.load_state_dict(state["writer"])
    buffer._sampler.load_state_dict(state["sampler"])
    buffer._transform.load_state_dict(state["transforms"])
    if state["generator"] is not None:
        if buffer._generator is None:
            buffer._generator = buffer._sampler.generator = torch.Generator()
        buffer._generator.set_state(state["generator"])
    buffer._take_ahead(state["ahead"])


def dump(buffer: ComposedBuffer, path: checkpoint.StrPath, *, keep: int, allow_pickle: bool) -> None:
    """Save a buffer; the caller holds writers back."""
    if buffer._checkpointer is None:
        state = buffer.state_dict()
        for hook in buffer._save_hooks:
            state["storage"] = hook(state["storage"])
    else:
        buffer._checkpointer.dumps(buffer._storage, Path(path) / "storage")
        with buffer._lock.lock:
            state = beside_storage(buffer)
    checkpoint.save(path, state, keep=keep, allow_pickle=allow_pickle)


def restore(buffer: ComposedBuffer, path: checkpoint.StrPath, *, allow_pickle: bool) -> None:
    """Load a buffer; the caller holds the lock for writing."""
    state = checkpoint.load(path, allow_pickle=allow_pickle)
    if buffer._checkpointer is None:
        for hook in buffer._load_hooks:
            state["storage"] = hook(state["storage"])
    else:
        buffer._checkpointer.loads(buffer._storage, Path(path) / "storage")
    take_over(buffer, state)
