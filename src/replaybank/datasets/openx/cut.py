"""Slices of single episodes, decoded, and batches of them, as a stored dataset gives them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from torch import Tensor

from replaybank.datasets.openx.nest import nest
from replaybank.datasets.openx.options import Slicing
from replaybank.datasets.openx.planes import decode_planes
from replaybank.datasets.openx.planning import torch_dtype
from replaybank.datasets.openx.shuffle import below
from replaybank.datasets.openx.slabs import Slab
from replaybank.datasets.openx.sources.base import Column, Episode, EpisodeSource, Key
from replaybank.datasets.openx.stream import Pick
from replaybank.datasets.openx.ted import (
    EPISODE,
    IS_INIT,
    NEXT_DONE,
    NEXT_TRUNCATED,
    STEP,
    Leaf,
    check_shape,
    select_images,
    settle_shapes,
    ted_leaves,
    to_ted,
)
from replaybank.errors import DataFormatError
from replaybank.storages._tensordict import stack_of
from replaybank.storages.batch_memory import BatchMemory

NEXT_VALID: Key = ("next", "valid")
MASK: Key = ("mask",)
ENTRY_MASK = "entry_mask"
"""Where ``("mask", *key)`` goes in a padded batch, whose own mask has that name."""
SHAPES_SEEN = 64
"""Episodes that are looked at for shapes that are not declared; looking at all would read everything."""
FILLED_STEP = -1
"""Number of a step that is none."""

_FLAGS = (("done",), ("terminated",), ("truncated",))
_ENDS = (NEXT_DONE, NEXT_TRUNCATED)
_START = 3  # what a random number is for, beside those of the stream


def stream_leaves(
    source: EpisodeSource, episodes: Iterable[Episode], image_keys: Sequence[str | Key] | None = None
) -> dict[Key, Leaf]:
    """The TED leaves of a source, with the shapes that are not declared taken from its first episodes.

    Args:
        source: of the episodes.
        episodes: its first ones; read as far as they are needed.
        image_keys: the cameras wanted, by path or name; None: all.

    Raises:
        ValueError: there is no such camera.
        DataFormatError: the first episodes do not show those shapes, or a dtype is none of torch's.
    """
    leaves = select_images(ted_leaves(source.fields), image_keys)
    seen = 0
    following = iter(episodes)
    while not _settled(leaves) and seen < SHAPES_SEEN and (episode := next(following, None)) is not None:
        leaves = settle_shapes(leaves, episode)
        seen += 1
    if not _settled(leaves):
        unknown = {"/".join(leaf.key): leaf.shape for leaf in leaves.values() if -1 in leaf.shape}
        raise DataFormatError(
            f"{source.name}: these shapes are not declared, and the first {seen} episodes do not show them: "
            f"{unknown}"
        )
    for leaf in leaves.values():
        if leaf.dtype is not None:
            torch_dtype(leaf)
    return leaves


def _settled(leaves: Mapping[Key, Leaf]) -> bool:
    return all(-1 not in leaf.shape for leaf in leaves.values())


Columns: TypeAlias = "dict[Key, npt.NDArray[Any] | list[str]]"
"""An array ``[T, ...]``, or ``T`` strings, for each entry."""


@dataclass(frozen=True)
class Cut:
    """Some consecutive steps of one episode.

    Args:
        columns: an array ``[T, ...]``, or ``T`` strings, for each entry of a batch.
        length: number of steps ``T``.
        missing: leaves that the episode lacks.
        steps: how many of them are real; the others, behind, are filled.
        slab: where the frames lie, if in the memory of a batch.
        place: of the slice in that batch.
    """

    columns: Columns
    length: int
    missing: frozenset[Key]
    steps: int
    slab: Slab | None = None
    place: int = 0


class Cutter:
    """Cuts slices out of episodes.

    Immutable, so safe in any number of threads.

    Args:
        leaves: what a step has, shapes settled.
        name: of the dataset, for messages.
        seed: fixes where slices start.
        slicing: what is done about trajectories that are too short.

    Raises:
        ValueError: ``slicing.pad`` cannot be had in the dtype of an entry, which is named.
    """

    def __init__(self, leaves: Mapping[Key, Leaf], name: str, seed: int, slicing: Slicing) -> None:
        self.leaves = leaves
        self.name = name
        self.seed = seed
        self.slicing = slicing
        self._texts = frozenset(key for key, leaf in leaves.items() if leaf.kind == "text")
        self._seen = frozenset(key for key in leaves if key[0] == "observation")
        self.memory = BatchMemory()
        """Of the frames: those of a batch that is gone serve another one."""
        self._step_bytes = sum(
            self._bytes(leaf) * (2 if key in self._seen else 1) for key, leaf in leaves.items()
        )
        self._fill = {} if slicing.pad is None else {key: self._filling(leaves[key]) for key in leaves}

    @staticmethod
    def _bytes(leaf: Leaf) -> int:
        return 0 if leaf.dtype is None else leaf.dtype.itemsize * math.prod(leaf.shape)

    def _filling(self, leaf: Leaf) -> Any:
        """What a step of a leaf is filled with."""
        value = self.slicing.pad
        assert value is not None
        if leaf.dtype is None:
            return ""
        if leaf.dtype.kind == "b" or leaf.key in (EPISODE, STEP):
            return FILLED_STEP if leaf.key == STEP else False
        if leaf.dtype.kind in "iu":
            limits = np.iinfo(leaf.dtype)
            if not limits.min <= value <= limits.max or value != int(value):  # also where it is NaN
                raise ValueError(
                    f"pad={value} cannot be had in {'/'.join(leaf.key)}, which is {leaf.dtype}: give a whole "
                    f"number from {limits.min} to {limits.max}, or use strict_length=False"
                )
            return int(value)
        return value

    def size(self, pick: Pick, length: int | None) -> int:
        """Bytes of the slice that :meth:`cut` would give."""
        return self._step_bytes * (pick.episode.length if length is None else length)

    def cut(self, pick: Pick, length: int | None, slab: Slab | None = None, place: int = 0) -> Cut:
        """A slice of an episode, or all of it. O(steps of the slice; numbers of the whole episode).

        Args:
            pick: the episode.
            length: steps wanted; None: all. Where the slice starts depends on the seed, the epoch and the
                number of the episode, each start as likely as any other.
            slab: memory of a batch of such slices, where the frames go if the slice has that length.
            place: of the slice in it.

        Raises:
            RuntimeError: the episode is too short, and nothing was said of what to do then.
            DataFormatError: it is not what the dataset declares, or a frame cannot be decoded.
        """
        there = pick.episode.length
        start, steps = 0, there
        if length is not None and there >= length:
            start = below(there - length + 1, _START, self.seed, pick.epoch, pick.number)
            steps = length
        elif length is not None and self.slicing.pad is None and self.slicing.strict_length:
            raise RuntimeError(
                f"{self.name}: episode {pick.number} ({pick.episode.where}) has {there} steps, a slice has "
                f"{length}: pass pad= to fill it up, strict_length=False to have it as it is, or ask for "
                "shorter slices"
            )
        ted = to_ted(pick.episode, self.leaves, pick.number, self.name)
        if slab is not None and steps != slab.length:
            slab = None
        columns: Columns = {}
        for key, leaf in self.leaves.items():
            column = ted.columns[key]
            if key in self._seen:
                self._observe(columns, leaf, column, start, steps, there, slab, place)
            elif isinstance(column, list):
                columns[key] = column[start : start + steps]
            elif isinstance(column, np.ndarray):
                columns[key] = np.array(column[start : start + steps], dtype=leaf.dtype, order="C")
            else:
                columns[key] = here = self._room(key, leaf, steps, slab, place)
                decode_planes(column, start, here, check=partial(check_shape, leaf, where=self.name))
        self.mark(columns, steps)
        missing = frozenset(key for key in ted.missing if key in self.leaves)
        wanted = steps if length is None else length
        if self.slicing.pad is not None:
            columns = self._filled(columns, wanted - steps)
        else:
            wanted = steps
        return Cut(columns, wanted, missing, steps, slab, place)

    def _room(self, key: Key, leaf: Leaf, steps: int, slab: Slab | None, place: int) -> npt.NDArray[Any]:
        """Memory for the frames of a slice."""
        dtype = torch_dtype(leaf)
        if slab is not None:
            return slab.part(key, leaf.shape, dtype, place)
        found: npt.NDArray[Any] = self.memory.any_size((steps, *leaf.shape), dtype).numpy()
        return found

    def _observe(
        self,
        columns: Columns,
        leaf: Leaf,
        column: Column,
        start: int,
        steps: int,
        there: int,
        slab: Slab | None,
        place: int,
    ) -> None:
        """An entry of the observation, and of the next one, each frame decoded once."""
        stop = min(start + steps + 1, there)
        known = stop - start - 1
        following = ("next", *leaf.key)
        if isinstance(column, list):
            texts = column[start:stop]
            columns[leaf.key] = texts[:steps]
            columns[following] = texts[1:] + [""] * (steps - known)
            return
        if isinstance(column, np.ndarray):
            columns[leaf.key] = np.array(column[start : start + steps], dtype=leaf.dtype, order="C")
            after = np.empty((steps, *column.shape[1:]), leaf.dtype)
            after[:known] = column[start + 1 : stop]
        else:
            columns[leaf.key] = here = self._room(leaf.key, leaf, steps, slab, place)
            after = self._room(following, leaf, steps, slab, place)
            check = partial(check_shape, leaf, where=self.name)
            decode_planes(column, start, here, after[:known], check=check)
        after[known:] = 0
        columns[following] = after

    @staticmethod
    def mark(columns: Columns, steps: int) -> None:
        """The entries that no file has: what a step starts from is never final, and a slice ends."""
        done = columns[NEXT_DONE]
        assert isinstance(done, np.ndarray)
        columns[NEXT_VALID] = ~done
        for flag in _FLAGS:
            columns[flag] = np.zeros((steps, 1), np.bool_)
        for end in _ENDS:
            ends = columns[end]
            assert isinstance(ends, np.ndarray)
            ends[-1] = True

    def _filled(self, columns: Columns, count: int) -> Columns:
        """The same with ``count`` steps behind that are none, and a mask that says so."""
        if not count:
            return {**columns, MASK: np.ones(len(columns[IS_INIT]), np.bool_)}
        filled: Columns = {}
        for key, column in columns.items():
            value = self._fill.get(key[1:] if key[0] == "next" else key, self._fill.get(key, False))
            if isinstance(column, list):
                filled[key] = column + [value] * count
                continue
            if key == EPISODE:
                value = int(column[0])  # filled steps stay with their trajectory
            more = np.full((count, *column.shape[1:]), value, column.dtype)
            filled[key] = np.concatenate([column, more])
        steps = len(columns[IS_INIT])
        filled[MASK] = np.arange(steps + count) < steps
        return filled


def join(cuts: Sequence[Cut]) -> TensorDict:
    """A batch of slices, one behind the other, ``[steps]``. O(bytes).

    Where an episode lacks an entry that the dataset has, ``("mask", *key)`` says which steps have it; in a
    padded batch ``("entry_mask", *key)``.

    Args:
        cuts: of one dataset, at least one.
    """
    entries: dict[Key, Any] = {}
    together = _together(cuts)
    for key, first in cuts[0].columns.items():
        if key in together:
            entries[key] = together[key]
        elif isinstance(first, list):
            entries[key] = texts([text for cut in cuts for text in cut.columns[key]])
        elif len(cuts) == 1:
            entries[key] = torch.from_numpy(first)
        else:
            entries[key] = torch.from_numpy(np.concatenate([cut.columns[key] for cut in cuts]))
    lacking = frozenset[Key]().union(*(cut.missing for cut in cuts))
    for key in sorted(lacking):
        there = [torch.full((cut.length,), key not in cut.missing) for cut in cuts]
        entries[(ENTRY_MASK if MASK in entries else "mask", *key)] = torch.cat(there)
    return nest(entries, torch.Size((sum(cut.length for cut in cuts),)))


def _together(cuts: Sequence[Cut]) -> dict[Key, Tensor]:
    """The entries of a batch whose slices lie one behind the other in its memory already."""
    slab = cuts[0].slab
    if slab is None or any(cut.slab is not slab or cut.place != k for k, cut in enumerate(cuts)):
        return {}
    whole = len(cuts) == slab.count
    return {
        key: t if whole else t[: len(cuts) * slab.length]
        for key, t in slab.tensors.items()
        if all(slab.has(key, cut.columns[key], k) for k, cut in enumerate(cuts))
    }


def example(leaves: Mapping[Key, Leaf], steps: int, *, filled: bool) -> TensorDict:
    """A slice of zeros, with the entries, dtypes and shapes of those that :class:`Cutter` gives.

    Args:
        leaves: what a step has.
        steps: how many.
        filled: with the mask of a padded slice.
    """
    columns: Columns = {}
    for key, leaf in leaves.items():
        twice = [key, ("next", *key)] if key[0] == "observation" else [key]
        for entry in twice:
            if leaf.dtype is None:
                columns[entry] = [""] * steps
            else:
                columns[entry] = np.zeros((steps, *leaf.shape), leaf.dtype)
    Cutter.mark(columns, steps)
    if filled:
        columns[MASK] = np.ones(steps, np.bool_)
    return join([Cut(columns, steps, frozenset(), steps)])


def texts(strings: Sequence[str]) -> NonTensorStack:
    """Strings as an entry of a batch. One object a distinct text: each costs 5 microseconds."""
    made = {text: NonTensorData(text) for text in set(strings)}
    return stack_of(list(map(made.__getitem__, strings)))
