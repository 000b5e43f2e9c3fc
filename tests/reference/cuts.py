"""Slices of episodes and batches of them, by indexing whole columns; and what the kernel of them writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from replaybank.datasets.openx.sources.base import Episode, Key
from replaybank.datasets.openx.ted import Leaf, decode_frames, to_ted

Columns = dict[Key, "npt.NDArray[Any] | list[str]"]

FLAGS: tuple[Key, ...] = (("done",), ("terminated",), ("truncated",))


def cut_slice(
    entries: Sequence[tuple[npt.NDArray[Any], npt.NDArray[Any] | None, npt.NDArray[Any]]],
    marks: Sequence[npt.NDArray[Any]],
    at: int,
    start: int,
    steps: int,
    number: int,
    terminated: bool,
    there: int,
) -> None:
    """Write steps ``start`` to ``start + steps`` of an episode of ``there`` steps at row ``at`` of a batch.

    Args:
        entries: where an entry goes, where that of the next step goes, if anywhere, and the whole column.
        marks: where step, episode, is_init, done, terminated, truncated, and next done, terminated, truncated
            and valid go.
    """
    for k in range(steps):
        step = start + k
        for here, after, column in entries:
            here[at + k] = column[step]
            if after is not None:
                after[at + k] = column[step + 1] if step + 1 < there else 0
        final, ends = step + 1 == there, k + 1 == steps
        values = (
            *(step, number, step == 0, False, False, False),
            *(ends, final and terminated, ends, not final),
        )
        for mark, value in zip(marks, values, strict=True):
            mark[at + k] = value


def slice_of(
    episode: Episode,
    leaves: Mapping[Key, Leaf],
    number: int,
    start: int,
    steps: int,
    *,
    wanted: int,
    pad: float | None,
) -> Columns:
    """A slice of an episode, filled up to ``wanted`` steps."""
    ted = to_ted(episode, leaves, number, "reference")
    found: Columns = {}
    chosen = slice(start, start + steps)
    for key, leaf in leaves.items():
        column = ted.columns[key]
        if isinstance(column, list):
            found[key] = column[chosen]
            if key[0] == "observation":
                found[("next", *key)] = [*column[1:], ""][chosen]
            continue
        values = column if isinstance(column, np.ndarray) else decode_frames(column, 0, ted.length)
        values = np.array(values, leaf.dtype)
        found[key] = values[chosen].copy()
        if key[0] == "observation":
            found[("next", *key)] = np.concatenate([values[1:], np.zeros_like(values[:1])])[chosen]
    done, truncated = found["next", "done"], found["next", "truncated"]
    assert isinstance(done, np.ndarray)
    assert isinstance(truncated, np.ndarray)
    found["next", "valid"] = ~done
    done[-1] = truncated[-1] = True
    for flag in FLAGS:
        found[flag] = np.zeros((steps, 1), bool)
    if pad is None:
        return found
    for key, column in found.items():
        if isinstance(column, list):
            found[key] = column + [""] * (wanted - steps)
        else:
            special: dict[Key, float] = {("episode",): number, ("step",): -1}
            value = special.get(key, False if column.dtype == bool else pad)
            more = np.full((wanted - steps, *column.shape[1:]), value, column.dtype)
            found[key] = np.concatenate([column, more])
    found["mask",] = np.arange(wanted) < steps
    return found


def joined(slices: Sequence[Columns], lacking: Sequence[frozenset[Key]]) -> Columns:
    """Slices one behind the other, with masks of the entries that the episodes of some lack."""
    found: Columns = {}
    for key, first in slices[0].items():
        parts: Any = [columns[key] for columns in slices]
        found[key] = (
            [text for part in parts for text in part] if isinstance(first, list) else np.concatenate(parts)
        )
    name = "entry_mask" if ("mask",) in found else "mask"
    for key in sorted(frozenset[Key]().union(*lacking)):
        lengths = [len(columns["step",]) for columns in slices]
        there = [np.full(n, key not in absent) for n, absent in zip(lengths, lacking, strict=True)]
        found[(name, *key)] = np.concatenate(there)
    return found
