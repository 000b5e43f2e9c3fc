"""What an ensemble of buffers saves, and how it takes a state over: in all buffers, or in none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from replaybank import checkpoint
from replaybank.buffers import saving
from replaybank.buffers.prefetch import copied
from replaybank.errors import add_note

if TYPE_CHECKING:
    from replaybank.buffers.ensemble_base import ComposedEnsemble

_FORM: dict[str, tuple[type, ...]] = {
    "buffers": (list,),
    "drawing": (Mapping,),
    "transforms": (Mapping,),
    "generator": (Tensor, type(None)),
    "tied": (list,),
}
"""Entries of a state and what they may be."""


def tied(ensemble: ComposedEnsemble) -> list[bool]:
    """Which buffers take their random numbers from the ensemble's generator."""
    generator = ensemble.generator
    return [generator is not None and part.generator is generator for part in ensemble.buffers]


def tie(ensemble: ComposedEnsemble, which: Sequence[bool]) -> None:
    """Have buffers take their random numbers from the ensemble's generator."""
    generator = ensemble.generator
    ensemble._sampler.generator = generator  # in all parts, so that the others need theirs again
    for part, is_tied in zip(ensemble.buffers, which, strict=True):
        if is_tied:
            part._generator = generator
        part._sampler.generator = part._generator


def state_of(ensemble: ComposedEnsemble, *, copy: bool = True) -> dict[str, Any]:
    """The state of an ensemble; the caller holds all locks.

    Args:
        ensemble: whose.
        copy: False: the storages' tensors themselves where they can give them, to be saved before the next
            write.
    """
    generator = ensemble.generator
    return {
        "buffers": [saving.state_of(part, copy=copy) for part in ensemble.buffers],
        "drawing": ensemble._ensemble_sampler.own_state(),
        "transforms": copied(ensemble._transform.state_dict()),
        "generator": None if generator is None else generator.get_state(),
        "tied": tied(ensemble),
    }


def take_over(ensemble: ComposedEnsemble, state: Mapping[str, Any]) -> None:
    """Hand a state to the buffers; the caller holds all locks.

    Raises:
        ValueError: the state is damaged, or of other parts; nothing has been changed.
    """
    _check(ensemble, state)
    generator, sampler = ensemble.generator, ensemble._ensemble_sampler
    random = None if generator is None else generator.get_state()
    drawing, transforms = sampler.own_state(), copied(ensemble._transform.state_dict())
    was_tied = tied(ensemble)
    ahead = [[] if part._prefetcher is None else part._prefetcher.state() for part in ensemble.buffers]
    undo: list[Callable[[], None]] = []
    try:
        for number, (part, saved) in enumerate(zip(ensemble.buffers, state["buffers"], strict=True)):
            try:
                undo.append(saving.take_over(part, saved))
            except (ValueError, TypeError) as error:
                add_note(error, f"That is buffer {number} of the ensemble.")
                raise
        with saving._explained("way of drawing buffers", None, None):
            sampler.check_own_state(state["drawing"])
            sampler.load_own_state(state["drawing"])
        with saving._explained("transforms", None, None):
            ensemble._transform.load_state_dict(state["transforms"])
        with saving._explained("generator", None, None):
            if state["generator"] is not None:
                if ensemble._generator is None:
                    ensemble._generator = torch.Generator()
                ensemble._generator.set_state(state["generator"])
                tie(ensemble, state["tied"])
        ensemble._join()
    except BaseException:
        for undone in reversed(undo):
            undone()
        for part, batches in zip(ensemble.buffers[: len(undo)], ahead, strict=False):
            part._take_ahead(batches)
        ensemble._generator = generator
        if generator is not None and random is not None:
            generator.set_state(random)
        tie(ensemble, was_tied)
        sampler.load_own_state(drawing)
        ensemble._transform.load_state_dict(transforms)
        ensemble._join()
        raise


def dump(ensemble: ComposedEnsemble, path: checkpoint.StrPath, *, keep: int, allow_pickle: bool) -> None:
    """Save an ensemble; the caller holds writers back."""
    with ensemble._held(lambda lock: lock.lock):
        hooked = bool(ensemble._save_hooks) or any(part._save_hooks for part in ensemble.buffers)
        state = state_of(ensemble, copy=hooked)
    _through_hooks(ensemble, state, "save")
    checkpoint.save(path, state, keep=keep, allow_pickle=allow_pickle)


def restore(ensemble: ComposedEnsemble, path: checkpoint.StrPath, *, allow_pickle: bool) -> None:
    """Load an ensemble; the caller holds all locks for writing."""
    hooked = bool(ensemble._load_hooks) or any(part._load_hooks for part in ensemble.buffers)
    stored = not hooked and all(part._storage.takes_stored_rows for part in ensemble.buffers)
    with checkpoint.opened(path, allow_pickle=allow_pickle, stored=stored) as state:
        _check(ensemble, state)
        _through_hooks(ensemble, state, "load")
        take_over(ensemble, state)


def _through_hooks(ensemble: ComposedEnsemble, state: dict[str, Any], when: str) -> None:
    def through(owner: Any, stored: Any) -> Any:
        return saving._through(owner._save_hooks if when == "save" else owner._load_hooks, stored, when)

    def of_parts() -> None:
        for part, saved in zip(ensemble.buffers, state["buffers"], strict=True):
            saved["storage"] = through(part, saved["storage"])

    def of_all() -> None:
        stored = through(ensemble, {"storages": [saved["storage"] for saved in state["buffers"]]})
        for saved, one in zip(state["buffers"], stored["storages"], strict=True):
            saved["storage"] = one

    for step in (of_parts, of_all) if when == "save" else (of_all, of_parts):
        step()


def _check(ensemble: ComposedEnsemble, state: Any) -> None:
    """See to it that a state has the form of an ensemble's."""
    saving.check_form(state, _FORM, "an ensemble")
    count = len(ensemble.buffers)
    for name in ("buffers", "tied"):
        if len(state[name]) != count:
            raise ValueError(
                f"The state is of {len(state[name])} buffers, the ensemble has {count}. Nothing has been "
                "changed."
            )
    for part, saved in zip(ensemble.buffers, state["buffers"], strict=True):
        saving._check(part, saved, storage=True)
