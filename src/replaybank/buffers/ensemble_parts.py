"""What an ensemble of buffers is made of: checking, making and exchanging its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.buffers.tensordict import TensorDictReplayBuffer
from replaybank.samplers.ensemble import SamplerEnsemble
from replaybank.storages.ensemble import StorageEnsemble
from replaybank.writers.ensemble import WriterEnsemble


def checked(buffers: Sequence[Any], storages: Any, samplers: Any, writers: Any) -> tuple[ReplayBuffer, ...]:
    """The buffers that were given, when no full set of parts was.

    Raises:
        TypeError: there are parts beside them, or no buffers; one is none.
    """
    given = {"storages": storages, "samplers": samplers, "writers": writers}
    named = [name for name, value in given.items() if value is not None]
    if buffers and named:
        raise TypeError(f"Buffers were given, and {' and '.join(named)} too: give one of them.")
    if not buffers:
        missing = [name for name in given if name not in named]
        raise TypeError(
            "An ensemble needs at least one buffer, or storages, samplers and writers; "
            + (f"{' and '.join(missing)} are missing." if named else "nothing was given.")
        )
    for number, buffer in enumerate(buffers):
        if not isinstance(buffer, ReplayBuffer):
            hint = ", or unpack what holds them: ReplayBufferEnsemble(*buffers)"
            raise TypeError(
                f"Part {number} is a {type(buffer).__name__}: give replay buffers"
                f"{hint if isinstance(buffer, (list, tuple)) else ''}."
            )
        if hasattr(buffer, "buffers"):
            raise TypeError(f"Part {number} is an ensemble itself: give its buffers, *ensemble.buffers.")
    return tuple(buffers)


def made_of(
    storages: Any, samplers: Any, writers: Any, *, batch_size: int | None, shared: bool
) -> tuple[ReplayBuffer, ...]:
    """Buffers of given parts.

    Raises:
        ValueError: their numbers differ.
    """
    transforms = storages.transforms if isinstance(storages, StorageEnsemble) else None
    stored = storages.storages if isinstance(storages, StorageEnsemble) else tuple(storages)
    drawn = samplers.samplers if isinstance(samplers, SamplerEnsemble) else tuple(samplers)
    written = writers.writers if isinstance(writers, WriterEnsemble) else tuple(writers)
    if not len(stored) == len(drawn) == len(written):
        raise ValueError(
            f"{len(stored)} storages, {len(drawn)} samplers and {len(written)} writers: give as many of each."
        )
    if transforms is None:
        transforms = (None,) * len(stored)
    return tuple(
        TensorDictReplayBuffer(
            storage=storage,
            sampler=sampler,
            writer=writer,
            transform=transform,
            # Samplers with drop_last ask for one beforehand; what they give is for the ensemble to say.
            batch_size=batch_size if getattr(sampler, "drop_last", False) else None,
            shared=shared,
        )
        for storage, sampler, writer, transform in zip(stored, drawn, written, transforms, strict=True)
    )


def refuse_drawing(arguments: Mapping[str, Any]) -> None:
    """Refuse how to draw parts beside a SamplerEnsemble, which says so itself.

    Raises:
        TypeError: an argument is given.
    """
    given = [name for name, value in arguments.items() if value is not None and value is not False]
    if given:
        raise TypeError(f"{' and '.join(given)} beside a SamplerEnsemble, which has its own: give it those.")


def check_shared(parts: Sequence[ReplayBuffer]) -> None:
    """See to it that all buffers can be used by several processes.

    Raises:
        RuntimeError: one cannot.
    """
    alone = [number for number, part in enumerate(parts) if not part._shared]
    if alone:
        raise RuntimeError(
            f"shared=True, but the buffers {alone} are of this process alone: make them with shared=True too."
        )


def links_of(transform: Any) -> list[Any]:
    """The transforms that were given: none, one, or several."""
    if transform is None:
        return []
    return list(transform) if isinstance(transform, (list, tuple)) else [transform]


def check_kind(given: Any, kind: type[Any], count: int) -> None:
    """See to it that an ensemble of parts is one, with a part for each buffer.

    Raises:
        TypeError: it is of another kind.
        ValueError: it has another number of parts.
    """
    if not isinstance(given, kind):
        raise TypeError(f"{given!r} is a {type(given).__name__}: give a {kind.__name__}.")
    parts = given.storages if isinstance(given, StorageEnsemble) else given
    if len(parts) != count:
        raise ValueError(f"The {kind.__name__} has {len(parts)} parts; there are {count} buffers.")


def exchange(setters: Sequence[Callable[[Any], Any]], new: Sequence[Any], old: Sequence[Any]) -> None:
    """Give each buffer its new part; at an error all have their old ones again."""
    done = 0
    try:
        for setter, part in zip(setters, new, strict=True):
            setter(part)
            done += 1
    except BaseException:
        for setter, part in zip(setters[:done], old, strict=False):
            setter(part)
        raise
