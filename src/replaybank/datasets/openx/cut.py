"""Slices of single episodes, decoded, and batches of them, as a stored dataset gives them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tensordict import NonTensorStack, TensorDict

from replaybank.datasets.openx.nest import nest
from replaybank.datasets.openx.options import Slicing
from replaybank.datasets.openx.planes import decode_planes
from replaybank.datasets.openx.planning import torch_dtype
from replaybank.datasets.openx.shuffle import below
from replaybank.datasets.openx.skipping import good_episodes
from replaybank.datasets.openx.slabs import MASK, NEXT_VALID, Entries, Slab, following, is_observed
from replaybank.datasets.openx.sources.base import Column, EpisodeSource, Key
from replaybank.datasets.openx.stream import Pick
from replaybank.datasets.openx.ted import (
    EPISODE,
    NEXT_DONE,
    NEXT_REWARD,
    NEXT_TRUNCATED,
    STEP,
    Leaf,
    check_shape,
    is_terminated,
    select_images,
    settle_shapes,
    sourced,
    ted_leaves,
)
from replaybank.errors import DataFormatError
from replaybank.storages._tensordict import data_of, stack_of
from replaybank.storages.batch_memory import BatchMemory

ENTRY_MASK = "entry_mask"
"""Where ``("mask", *key)`` goes in a padded batch, whose own mask has that name."""
SHAPES_SEEN = 64
"""Episodes that are looked at for shapes that are not declared; looking at all would read everything."""
FILLED_STEP = -1
"""Number of a step that is none."""

_START = 3  # what a random number is for, beside those of the stream


def stream_leaves(
    source: EpisodeSource, image_keys: Sequence[str | Key] | None = None, *, skip: bool = False
) -> dict[Key, Leaf]:
    """The TED leaves of a source, with the shapes that are not declared taken from its first episodes.

    Args:
        source: of the episodes.
        image_keys: the cameras wanted, by path or name; None: all.
        skip: pass over records that cannot be read.

    Raises:
        ValueError: there is no such camera.
        DataFormatError: the first episodes do not show those shapes, or a dtype is none of torch's.
    """
    leaves = select_images(ted_leaves(source.fields), image_keys)
    seen = 0
    for shard in source.shards():
        if _settled(leaves) or seen >= SHAPES_SEEN:
            break
        for episode in good_episodes(source, shard, skip=skip):
            leaves = settle_shapes(leaves, episode)
            seen += 1
            if _settled(leaves) or seen >= SHAPES_SEEN:
                break
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


class Cut(NamedTuple):
    """Some consecutive steps of one episode, in the memory of a batch.

    Args:
        slab: that memory; of a slice that goes with no others, its own.
        place: of the slice in it.
        steps: how many are real; the others, behind, are filled.
        texts: ``slab.length`` strings for each entry of text.
        missing: leaves that the episode lacks.
    """

    slab: Slab
    place: int
    steps: int
    texts: dict[Key, list[str]]
    missing: frozenset[Key]

    @property
    def length(self) -> int:
        """Number of steps, filled ones included."""
        return self.slab.length


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
        self.entries = Entries(leaves, filled=slicing.pad is not None)
        """What a step of a slice has."""
        self.memory = BatchMemory()
        """Of large tensors: those of a batch that is gone serve another one."""
        # Without the entries that the kernel makes.
        self._sourced = {
            key: leaf for key, leaf in leaves.items() if leaf.source is not None or key == NEXT_REWARD
        }
        self._texts = [key for key, leaf in leaves.items() if leaf.dtype is None]
        self._images = [leaf for leaf in leaves.values() if leaf.kind == "image"]
        self._step_bytes = sum(
            self._bytes(leaf) * (2 if is_observed(key) else 1) for key, leaf in leaves.items()
        )
        self._fill = {} if slicing.pad is None else {key: self._filling(leaves[key]) for key in leaves}

    @property
    def decodes(self) -> bool:
        """Whether frames have to be decoded."""
        return bool(self._images)

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
        """A slice of an episode, or all of it. O(bytes of the slice, fields of the episode).

        Args:
            pick: the episode.
            length: steps wanted; None: all. Where the slice starts depends on the seed, the epoch and the
                number of the episode, each start as likely as any other.
            slab: memory of a batch of such slices, where it goes if it has that length.
            place: of the slice in it.

        Raises:
            RuntimeError: the episode is too short, and nothing was said of what to do then.
            DataFormatError: it is not what the dataset declares, or a frame cannot be decoded.
        """
        episode, number = pick.episode, pick.number
        there = episode.length
        start, steps = 0, there
        if length is not None and there >= length:
            start = below(there - length + 1, _START, self.seed, pick.epoch, number)
            steps = length
        elif length is not None and self.slicing.pad is None and self.slicing.strict_length:
            raise RuntimeError(
                f"{self.name}: episode {number} ({episode.where}) has {there} steps, a slice has "
                f"{length}: pass pad= to fill it up, strict_length=False to have it as it is, or ask for "
                "shorter slices"
            )
        wanted = steps if length is None or self.slicing.pad is None else length
        columns, missing = sourced(episode, self._sourced, number, self.name)
        if slab is None or slab.length != wanted:
            slab, place = Slab(self.entries, 1, wanted, self.memory), 0
        stop = start + steps
        after = min(stop + 1, there)
        arrays: list[npt.NDArray[Any]] = []
        for key, dtype, observed, _ in self.entries.numbers:
            array: Any = columns[key][start : after if observed else stop]  # type: ignore[index]
            if array.dtype != dtype or not array.flags.c_contiguous:
                array = np.ascontiguousarray(array, dtype)
            arrays.append(array)
        if not slab.write(
            place,
            arrays,
            start=start,
            steps=steps,
            there=there,
            number=number,
            terminated=is_terminated(episode, self.leaves),
        ):
            raise DataFormatError(
                f"{self.name}: episode {number} ({episode.where}) has {there} steps, and fields of other "
                f"lengths: { {'/'.join(key): len(column) for key, column in columns.items()} }"
            )
        texts = {}
        for key in self._texts:
            strings: list[str] = columns[key]  # type: ignore[assignment]
            texts[key] = strings[start:stop]
            if is_observed(key):
                texts[following(key)] = strings[start + 1 : after] + [""] * (stop + 1 - after)
        for leaf in self._images:
            self._decode(slab, place, leaf, columns[leaf.key], start, steps, there)
        if self.slicing.pad is not None:
            self._pad(slab, place, texts, steps, number)
        return Cut(slab, place, steps, texts, missing)

    def _decode(
        self, slab: Slab, place: int, leaf: Leaf, column: Column, start: int, steps: int, there: int
    ) -> None:
        """The frames of a camera, those of the next observation too, each decoded once."""
        observed = is_observed(leaf.key)
        here = slab.part(leaf.key, place)[:steps]
        after = slab.part(following(leaf.key), place)[:steps] if observed else None
        known = min(steps, there - start - 1)
        if isinstance(column, np.ndarray):  # zeros: the episode lacks the camera
            here[...] = column[start : start + steps]
            if after is not None:
                after[:known] = column[start + 1 : start + 1 + known]
        else:
            check = partial(check_shape, leaf, where=self.name)
            assert not isinstance(column, list)
            decode_planes(column, start, here, None if after is None else after[:known], check=check)
        if after is not None:
            after[known:] = 0

    def _pad(self, slab: Slab, place: int, texts: dict[Key, list[str]], steps: int, number: int) -> None:
        """Fill what lies behind the steps of a slice, and say in its mask that it does."""
        slab.part(MASK, place)[:] = np.arange(slab.length) < steps
        if steps == slab.length:
            return
        for key in texts:
            texts[key] += [""] * (slab.length - steps)
        for key in slab.tensors:
            if key != MASK:
                value = self._fill.get(key[1:] if key[0] == "next" else key, self._fill.get(key, False))
                # Filled steps stay with their trajectory.
                slab.part(key, place)[steps:] = number if key == EPISODE else value


def join(cuts: Sequence[Cut]) -> TensorDict:
    """A batch of slices, one behind the other, ``[steps]``. O(bytes).

    Where an episode lacks an entry that the dataset has, ``("mask", *key)`` says which steps have it; in a
    padded batch ``("entry_mask", *key)``.

    Args:
        cuts: of one dataset, at least one.
    """
    first = cuts[0]
    slab = first.slab
    keys = slab.entries.keys
    if all(cut.slab is slab and cut.place == k for k, cut in enumerate(cuts)):
        steps = len(cuts) * slab.length
        whole = len(cuts) == slab.count
        tensors = slab.tensors if whole else {key: t[:steps].clone() for key, t in slab.tensors.items()}
    else:
        steps = sum(cut.length for cut in cuts)
        tensors = {
            key: torch.from_numpy(np.concatenate([cut.slab.part(key, cut.place) for cut in cuts]))
            for key in slab.tensors
        }
    entries: dict[Key, Any] = {}
    for key in keys:
        strings = first.texts.get(key)
        entries[key] = tensors[key] if strings is None else texts([s for cut in cuts for s in cut.texts[key]])
    lacking = frozenset[Key]().union(*(cut.missing for cut in cuts))
    for key in sorted(lacking):
        there = [torch.full((cut.length,), key not in cut.missing) for cut in cuts]
        entries[(ENTRY_MASK if MASK in entries else "mask", *key)] = torch.cat(there)
    return nest(entries, torch.Size((steps,)))


def example(leaves: Mapping[Key, Leaf], steps: int, *, filled: bool) -> TensorDict:
    """A slice of zeros, with the entries, dtypes and shapes of those that :class:`Cutter` gives.

    Args:
        leaves: what a step has.
        steps: how many.
        filled: with the mask of a padded slice.
    """
    slab = Slab(Entries(leaves, filled=filled), 1, steps, BatchMemory())
    for tensor in slab.tensors.values():
        tensor.zero_()
    for key in (NEXT_VALID, *([MASK] if filled else [])):
        slab.tensors[key].fill_(True)
    for key in (NEXT_DONE, NEXT_TRUNCATED):
        slab.tensors[key][-1] = True
    texts = {key: [""] * steps for key in slab.entries.keys if key not in slab.tensors}
    return join([Cut(slab, 0, steps, texts, frozenset())])


def texts(strings: Sequence[str]) -> NonTensorStack:
    """Strings as an entry of a batch, at least one. One object a distinct text: each costs microseconds."""
    first = strings[0]
    if strings.count(first) == len(strings):  # most slices, and most episodes, repeat one instruction
        return stack_of([data_of(first)] * len(strings))
    made = {text: data_of(text) for text in set(strings)}
    return stack_of(list(map(made.__getitem__, strings)))
