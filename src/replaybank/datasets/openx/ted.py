"""From an episode of any source to the one TED layout of a step.

TED is torchrl's episode data format: what a step starts from lies at the root, what it leads to under
``"next"``. The rules are those of RLDS (https://github.com/google-research/rlds, "Dataset format") with one
difference that real files force on every reader: *the record is the boundary of the episode*, whatever its
``is_last`` says (the Open X-Embodiment datasets contain many where it is never set).

A frame is kept once: ``("next", "observation")`` is made when a step is read, never here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from replaybank.datasets.openx.sources.base import Column, Episode, FieldSpec, Images, Key
from replaybank.errors import DataFormatError, UnsupportedFeatureError
from replaybank.storages.channels import channels_first

NEXT_DONE: Key = ("next", "done")
NEXT_TERMINATED: Key = ("next", "terminated")
NEXT_TRUNCATED: Key = ("next", "truncated")
NEXT_REWARD: Key = ("next", "reward")
EPISODE: Key = ("episode",)
STEP: Key = ("step",)
IS_INIT: Key = ("is_init",)

_NEXT = frozenset({"observation", "reward", "done", "terminated", "truncated", "valid"})
_OURS = frozenset({"next", "done", "terminated", "truncated", "is_init", "episode", "step", "index", "mask"})


@dataclass(frozen=True)
class Leaf:
    """One entry of a TED step.

    Args:
        key: where it is in the step.
        source: field of the source that it is made from, ``None`` for those that every step gets.
        kind: ``"tensor"``, ``"text"`` or ``"image"``.
        dtype: dtype of the values, ``None`` for text.
        shape: shape of one step's value; images are ``(C, H, W)``. -1: known only from an episode.
        ragged: how many of the first dimensions are of lists that differ in length: smaller arrays are padded
            with zeros.
        labels: names of the classes that the numbers stand for, if they are classes.
        names: names of the numbers along the last dimension, if they have some.
    """

    key: Key
    source: Key | None
    kind: Literal["tensor", "text", "image"]
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...]
    ragged: int = 0
    labels: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class TedEpisode:
    """One episode in TED layout.

    Args:
        columns: an array ``[T, ...]``, ``T`` strings, or the encoded frames of a camera, for each leaf.
            Frames are decoded by whoever needs them: an episode's may be larger than memory.
        length: number of steps ``T``.
        missing: leaves that the dataset has and this episode has not; zero (or empty) in ``columns``.
        faults: what was wrong in the data and put right, with how often.
    """

    columns: Mapping[Key, Column]
    length: int
    missing: frozenset[Key]
    faults: Counter[str] = field(default_factory=Counter)


def ted_leaves(fields: Mapping[Key, FieldSpec]) -> dict[Key, Leaf]:
    """The TED leaves that a dataset with these step fields has, without ``("next", "observation")``.

    ``observation`` and ``action`` keep their nesting. ``reward`` and ``is_terminal`` go under ``"next"``;
    ``is_first`` and ``is_last`` are replaced by what the record itself says. Everything else keeps its name,
    or gets ``source_`` in front where it would hide an entry of ours.

    Args:
        fields: step fields of the source.

    Raises:
        UnsupportedFeatureError: there is neither an ``observation`` nor an ``action``.

    >>> vector = FieldSpec("tensor", (7,), np.dtype("float32"))
    >>> flag = FieldSpec("tensor", (), np.dtype(bool))
    >>> fields = {("observation", "state"): vector, ("action",): vector, ("done",): flag}
    >>> [leaf.key for leaf in ted_leaves(fields).values() if leaf.source]
    [('observation', 'state'), ('action',), ('source_done',)]
    """
    if not any(key[0] in ("observation", "action") for key in fields):
        raise UnsupportedFeatureError(
            f"the steps have neither an 'observation' nor an 'action', only {sorted(fields)}: "
            "this is not a dataset of robot episodes"
        )
    flags = {key for key in (("is_first",), ("is_last",), ("is_terminal",)) if _is_flag(fields.get(key))}
    reward = fields.get(("reward",))
    if reward is not None and (reward.kind != "tensor" or reward.dtype is None):
        reward = None
    leaves: dict[Key, Leaf] = {}
    for source, spec in fields.items():
        if source in flags or (source == ("reward",) and reward is not None):
            continue
        if spec.kind == "image" and len(spec.shape) != 3:
            raise UnsupportedFeatureError(
                f"{'/'.join(source)}: images have three dimensions (H, W, C), this one has shape {spec.shape}"
            )
        key = source
        while _hides(key) or key in leaves or (key != source and key in fields):
            key = (f"source_{key[0]}", *key[1:])
        shape = spec.shape
        if spec.kind == "image":
            shape = (shape[2], shape[0], shape[1])
        leaves[key] = Leaf(key, source, spec.kind, spec.dtype, shape, spec.ragged, spec.labels, spec.names)
    leaves[NEXT_REWARD] = Leaf(
        NEXT_REWARD,
        ("reward",) if reward else None,
        "tensor",
        reward.dtype if reward else np.dtype("float32"),
        (reward.shape if reward else ()) or (1,),
    )
    for key, dtype, shape in (
        (NEXT_DONE, "bool", (1,)),
        (NEXT_TERMINATED, "bool", (1,)),
        (NEXT_TRUNCATED, "bool", (1,)),
        (EPISODE, "int32", ()),
        (STEP, "int32", ()),
        (IS_INIT, "bool", ()),
    ):
        leaves[key] = Leaf(key, None, "tensor", np.dtype(dtype), shape)
    return leaves


def _hides(key: Key) -> bool:
    """Whether an entry of this name would be in the way of one of ours."""
    if key[0] == "next":  # what else a step led to, such as a success, may stand beside ours
        return len(key) == 1 or key[1] in _NEXT
    return key[0] in _OURS


def select_images(leaves: Mapping[Key, Leaf], image_keys: Sequence[str | Key] | None) -> dict[Key, Leaf]:
    """The leaves without the cameras that are not asked for.

    Args:
        leaves: those of a dataset.
        image_keys: cameras, by path or by its last part, if that is of one camera only; None: all.

    Raises:
        ValueError: there is no such camera, or several; those there are are named.

    >>> leaves = ted_leaves({("observation", "top"): FieldSpec("image", (8, 8, 3), np.dtype("uint8"))})
    >>> ("observation", "top") in select_images(leaves, ["top"]), len(leaves) - len(select_images(leaves, []))
    (True, 1)
    """
    if image_keys is None:
        return dict(leaves)
    if isinstance(image_keys, str):
        raise TypeError(
            f"image_keys is a list of cameras, got the string {image_keys!r}: give [{image_keys!r}]"
        )
    cameras = [key for key, leaf in leaves.items() if leaf.kind == "image"]
    wanted = set()
    for asked in image_keys:
        path = asked if isinstance(asked, str) else tuple(asked)
        found = [key for key in cameras if path in (key, key[-1], "/".join(key))]
        if len(found) != 1:
            raise ValueError(
                f"image_keys: {asked!r} is {'several cameras' if found else 'no camera'} of this dataset, "
                f"which has {['/'.join(key) for key in cameras]}"
            )
        wanted.add(found[0])
    return {key: leaf for key, leaf in leaves.items() if leaf.kind != "image" or key in wanted}


def _is_flag(spec: FieldSpec | None) -> bool:
    """Whether a field is one number a step, as the flags of RLDS are; others of their names are data."""
    return spec is not None and spec.kind == "tensor" and spec.shape in ((), (1,))


def settle_shapes(leaves: Mapping[Key, Leaf], episode: Episode) -> dict[Key, Leaf]:
    """The same leaves with the dimensions that were declared unknown taken from one episode.

    A leaf that the episode lacks stays as it is: another episode may show it.
    """
    settled = dict(leaves)
    for key, leaf in leaves.items():
        column = episode.steps.get(leaf.source) if leaf.source is not None else None
        if -1 not in leaf.shape or column is None or isinstance(column, list):
            continue
        values = column if isinstance(column, np.ndarray) else decode_frames(column, 0, 1)
        settled[key] = replace(leaf, shape=values.shape[1:])
    return settled


def widen_shapes(leaves: Mapping[Key, Leaf], episode: Episode) -> dict[Key, Leaf]:
    """The same leaves, those of lists of differing length made large enough for one more episode."""
    widened = dict(leaves)
    for key, leaf in leaves.items():
        column = episode.steps.get(leaf.source) if leaf.ragged and leaf.source is not None else None
        if isinstance(column, np.ndarray):
            widened[key] = replace(leaf, shape=tuple(map(max, leaf.shape, column.shape[1:])))
    return widened


def to_ted(episode: Episode, leaves: Mapping[Key, Leaf], number: int, dataset: str) -> TedEpisode:
    """One episode in TED layout. O(steps).

    Args:
        episode: as its source gives it.
        leaves: from :func:`ted_leaves`, shapes settled.
        number: number of the episode in the dataset, its ``"episode"`` entry.
        dataset: name for error messages.

    Raises:
        DataFormatError: an array has another shape than the dataset's other episodes, naming both; or a field
            is absent whose shape is not known.
    """
    length = episode.length
    faults: Counter[str] = Counter(episode.faults) if episode.faults else Counter()
    columns, missing = sourced(episode, leaves, number, dataset)
    terminated = False
    terminal = _terminal(episode, leaves)
    if terminal is not None:
        terminated = bool(terminal[-1])
        _count(faults, "is_terminal before the last step", np.count_nonzero(terminal[:-1]))
    first = _flag(episode, leaves, "is_first")
    if first is not None:
        _count(faults, "is_first after the first step", np.count_nonzero(np.asarray(first)[1:]))
    last = _flag(episode, leaves, "is_last")
    if last is not None:
        marked = np.asarray(last, dtype=bool).reshape(length)
        _count(faults, "is_last before the last step", np.count_nonzero(marked[:-1]))
        _count(faults, "is_last is not set on the last step of an episode", int(not marked[-1]))
    done, never, steps, is_init = (_marks if length <= _OFTEN else _marks.__wrapped__)(length)
    columns[NEXT_DONE] = done
    columns[NEXT_TERMINATED] = done if terminated else never
    columns[NEXT_TRUNCATED] = never if terminated else done
    columns[EPISODE] = numbers = np.empty(length, np.int32)
    numbers.fill(number)  # np.full takes twice as long
    columns[STEP] = steps
    columns[IS_INIT] = is_init
    return TedEpisode(columns, length, missing, faults)


def sourced(
    episode: Episode, leaves: Mapping[Key, Leaf], number: int, dataset: str
) -> tuple[dict[Key, Column], frozenset[Key]]:
    """The columns that an episode's file has, or that are zero in its place, and those it lacks. O(leaves).

    Takes and raises what :func:`to_ted` does; the entries that each step gets are not among them.
    """
    length = episode.length
    columns: dict[Key, Column] = {}
    missing = []
    for key, leaf in leaves.items():
        if leaf.source is None:
            continue
        column = episode.steps.get(leaf.source)
        if column is None:
            if -1 in leaf.shape:
                raise DataFormatError(
                    f"{dataset}: episode {number} ({episode.where}) lacks {'/'.join(leaf.source)}, whose "
                    f"shape {leaf.shape} no episode has shown so far"
                )
            missing.append(key)
            columns[key] = [""] * length if leaf.dtype is None else _zeros(leaf, length)
            continue
        if isinstance(column, np.ndarray):
            if key == NEXT_REWARD and column.ndim == 1:
                column = column[:, None]
            if leaf.ragged:
                column = _padded(leaf, column)
            if column.shape[1:] != leaf.shape:
                check_shape(leaf, column.shape[1:], f"{dataset}: episode {number} ({episode.where})")
        columns[key] = column
    if leaves[NEXT_REWARD].source is None:
        columns[NEXT_REWARD] = _zeros(leaves[NEXT_REWARD], length)
    return columns, frozenset(missing) if missing else _NONE


def is_terminated(episode: Episode, leaves: Mapping[Key, Leaf]) -> bool:
    """Whether an episode's last step is a terminal one."""
    declared = _flag(episode, leaves, "is_terminal")
    if isinstance(declared, np.ndarray) and declared.size == episode.length:
        return bool(declared.item(-1))
    terminal = _terminal(episode, leaves)
    return terminal is not None and bool(terminal[-1])


_NONE: frozenset[Key] = frozenset()


def _terminal(episode: Episode, leaves: Mapping[Key, Leaf]) -> npt.NDArray[np.bool_] | None:
    """What an episode says of each step; None: nothing."""
    declared = _flag(episode, leaves, "is_terminal")
    return None if declared is None else np.asarray(declared, dtype=bool).reshape(episode.length)


_OFTEN = 4096  # steps; what is kept for longer episodes would take memory, and saves them nothing


@lru_cache(maxsize=64)
def _marks(length: int) -> tuple[npt.NDArray[Any], ...]:
    """Columns that depend on the number of steps alone: the end, no end, numbers, the start. Read-only."""
    done = np.zeros((length, 1), bool)
    done[-1] = True
    found = (done, np.zeros((length, 1), bool), np.arange(length, dtype=np.int32), np.arange(length) == 0)
    for column in found:
        column.flags.writeable = False
    return found


def _flag(episode: Episode, leaves: Mapping[Key, Leaf], name: str) -> Column | None:
    """A flag of RLDS, unless the dataset has data of its own under that name."""
    return None if (name,) in leaves else episode.steps.get((name,))


def _count(faults: Counter[str], what: str, times: int | np.integer[Any]) -> None:
    """Note a fault of the data, if it is there at all."""
    if times:
        faults[what] += int(times)


def check_shape(leaf: Leaf, shape: tuple[int, ...], where: str) -> None:
    """Compare the shape of one step's value with what the dataset has.

    Raises:
        DataFormatError: they differ; names the place, the field and both shapes.
    """
    if shape != leaf.shape:
        name = "/".join(leaf.source if leaf.source is not None else leaf.key)
        hint = (
            ", as its first episodes have; a conversion looks at all of them first"
            if leaf.ragged and any(map(int.__gt__, shape, leaf.shape))
            else ""
        )
        raise DataFormatError(f"{where}: {name} has shape {shape}, the dataset has {leaf.shape}{hint}")


def _padded(leaf: Leaf, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Lists with zeros behind, as far as they are shorter than the dataset's longest."""
    shape = (*leaf.shape[: leaf.ragged], *column.shape[1 + leaf.ragged :])
    if column.ndim != 1 + len(leaf.shape) or column.shape[1:] == shape:
        return column
    if any(there > room for there, room in zip(column.shape[1:], shape, strict=True)):
        return column  # too long a list: the caller says so
    wide = np.zeros((len(column), *shape), column.dtype)
    wide[tuple(map(slice, column.shape))] = column
    return wide


def decode_frames(images: Images, start: int, stop: int) -> npt.NDArray[Any]:
    """Frames ``start`` to ``stop`` of a camera, ``[n, C, H, W]``, contiguous."""
    return channels_first(images.decode(start, stop))


def _zeros(leaf: Leaf, length: int) -> npt.NDArray[Any]:
    """Zeros for an absent field, without taking memory for them."""
    return np.broadcast_to(np.zeros((), leaf.dtype), (length, *leaf.shape))
