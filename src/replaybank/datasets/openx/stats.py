"""Statistics of a dataset's entries: mean, deviation, range and quantiles, exact, over what is selected."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from replaybank.checkpoint import write_json_atomically
from replaybank.datasets.openx.files import CHECKSUMS, STATS, Manifest
from replaybank.datasets.openx.selection import episodes_chosen
from replaybank.datasets.openx.storage import DatasetStorage
from replaybank.datasets.openx.ted import EPISODE, IS_INIT, STEP
from replaybank.progress import Bar
from replaybank.storages.layout import Key

QUANTILES = (0.01, 0.99)
"""Those that robot policies are normalised by (Octo, pi0): all but the outliers of a sensor."""

_BLOCK_BYTES = 1 << 26  # of values looked at a time: exact quantiles need all values of a number at once
_FRAMES = 256  # decoded at a time
_FORMAT = "replaybank.stats"
_VERSION = 1
_NO_VALUES = frozenset(
    {EPISODE, STEP, IS_INIT, ("next", "done"), ("next", "terminated"), ("next", "truncated")}
)


@dataclass(frozen=True)
class EntryStats:
    """What the values of one entry are like, number by number; of images, channel by channel.

    NaN and infinite values are left out and counted.

    Args:
        mean: float64, of the entry's shape; ``[C, 1, 1]`` for images.
        std: standard deviation of the values that are there (divided by their number).
        min: smallest.
        max: largest.
        q01: the quantile 0.01, linear between neighbouring values as NumPy has it.
        q99: the quantile 0.99.
        count: steps that have the entry.
        left_out: values that are NaN or infinite.

    Example:
        >>> import torch
        >>> mean, std, low, high = (torch.tensor([value]) for value in (2.0, 0.5, 1.0, 3.0))
        >>> stats = EntryStats(mean, std, min=low, max=high, q01=low, q99=high, count=9)
        >>> ((torch.tensor([2.5]) - stats.mean) / stats.std).tolist()
        [1.0]
    """

    mean: Tensor
    std: Tensor
    min: Tensor
    max: Tensor
    q01: Tensor
    q99: Tensor
    count: int
    left_out: int = 0


def dataset_stats(
    dataset: DatasetStorage,
    keys: Iterable[Key | str] | None = None,
    *,
    episodes: Sequence[int] | Tensor | None = None,
    images: bool = False,
    progress: bool | None = None,
) -> dict[Key, EntryStats]:
    """Statistics over the steps of some episodes. O(steps log steps) for each number of an entry.

    Those over all episodes are stored with the dataset, where its folder can be written to, and found there
    the next time.

    Args:
        dataset: a converted dataset, all of it.
        keys: entries; by default all numbers but those that only count steps and mark ends.
        episodes: numbers of the episodes that count; all by default.
        images: look at the frames of all cameras as well, by channel, which takes as long as reading or
            decoding all of them. Cameras that are among ``keys`` are always looked at.
        progress: show a progress bar; by default where the error output is a terminal.

    Returns:
        By key.

    Raises:
        KeyError: there is no such entry; those there are are named.
        IndexError: there is no such episode.
        ValueError: an entry is text, or no episode is selected.
    """
    kinds = {leaf.key: dataset.manifest.kinds.get(leaf.key, "tensor") for leaf in dataset.manifest.leaves}
    wanted = entries_wanted(dataset.manifest.name, kinds, keys, images=images)
    if episodes is None:
        found = _read(dataset)
        new = _computed(dataset, [key for key in wanted if key not in found], None, progress)
        if new:
            found |= new
            _write(dataset, found)
        return {key: found[key] for key in wanted}
    chosen = episodes_chosen(episodes, len(dataset.bounds))
    return _computed(dataset, wanted, chosen, progress)


def _computed(
    dataset: DatasetStorage, keys: Sequence[Key], episodes: Tensor | None, progress: bool | None
) -> dict[Key, EntryStats]:
    steps = dataset.rows if episodes is None else int(dataset.bounds[episodes, 1].sum())
    with Bar("Statistics", "step", steps * len(keys), show=progress) as bar:
        return {key: _stats_of(dataset, key, episodes, bar) for key in keys}


def entries_wanted(
    name: str, kinds: Mapping[Key, str], keys: Iterable[Key | str] | None, *, images: bool
) -> list[Key]:
    """The entries of which statistics are asked for.

    Args:
        name: of the dataset.
        kinds: what its entries are, by key: ``"tensor"``, ``"image"`` or ``"text"``.
        keys: as for :func:`dataset_stats`.
        images: as there.

    Raises:
        KeyError: there is no such entry; those there are are named.
        ValueError: an entry is text.
    """
    if keys is None:
        taken = {"tensor", "image"} if images else {"tensor"}
        return [key for key, kind in kinds.items() if kind in taken and key not in _NO_VALUES]
    wanted = []
    for asked in keys:
        key = (asked,) if isinstance(asked, str) else tuple(asked)
        if key not in kinds:
            raise KeyError(f"{key!r} is not in {name}, which has {list(kinds)}")
        if kinds[key] == "text":
            raise ValueError(f"{key!r} is text, which has no mean: ask for entries of numbers or images")
        wanted.append(key)
    return wanted


def _stats_of(dataset: DatasetStorage, key: Key, episodes: Tensor | None, bar: Bar) -> EntryStats:
    runs = _runs(dataset, key, episodes)
    count = sum(length for _, length in runs)
    if dataset.manifest.kinds.get(key) == "image":
        return _of_frames(dataset, key, runs, count, bar)
    leaf = next(leaf for leaf in dataset.manifest.leaves if leaf.key == key)
    numbers = math.prod(leaf.shape)
    results = np.zeros((6, numbers))
    left_out = 0
    at_once = max(1, _BLOCK_BYTES // max(8 * count, 1))
    for first in range(0, numbers, at_once):
        part = slice(first, min(first + at_once, numbers))
        values = np.concatenate(
            [_values(dataset, key, run)[:, part] for run in runs] or [np.zeros((0, part.stop - first))]
        )
        left_out += _of_columns(values, results[:, part])
        bar.update(count * (part.stop - first) // numbers)
    return _made(results, leaf.shape, count, left_out)


def stats_of_values(values: npt.NDArray[Any]) -> EntryStats:
    """Statistics of values that are at hand. O(steps log steps) for each number.

    Args:
        values: ``[steps, *shape]``, numbers of any dtype.

    >>> stats_of_values(np.array([[0.0], [1.0], [np.nan]])).mean, stats_of_values(np.zeros((2, 1))).std
    (tensor([0.5000], dtype=torch.float64), tensor([0.], dtype=torch.float64))
    """
    flat = values.reshape(len(values), math.prod(values.shape[1:])).astype(np.float64)
    results = np.zeros((6, flat.shape[1]))
    left_out = _of_columns(flat, results)
    return _made(results, values.shape[1:], len(values), left_out)


def _of_columns(values: npt.NDArray[np.float64], results: npt.NDArray[np.float64]) -> int:
    """Fill ``results[:, n]`` with what ``values[:, n]`` are like; how many of all are no numbers."""
    left_out = 0
    for number in range(values.shape[1]):
        column = values[:, number]
        good = column[np.isfinite(column)]
        left_out += len(column) - len(good)
        results[:, number] = _of_values(good)
    return left_out


def _runs(dataset: DatasetStorage, key: Key, episodes: Tensor | None) -> list[tuple[int, int]]:
    """First step and length of the parts that have an entry, neighbours joined."""
    lacking = torch.tensor(dataset.manifest.missing.get(key, ()), dtype=torch.int64)
    numbers = torch.arange(len(dataset.bounds)) if episodes is None else episodes
    runs: list[tuple[int, int]] = []
    for first, length in dataset.bounds[numbers[~torch.isin(numbers, lacking)]].tolist():
        if runs and sum(runs[-1]) == first:
            runs[-1] = (runs[-1][0], runs[-1][1] + length)
        else:
            runs.append((first, length))
    return runs


def _values(dataset: DatasetStorage, key: Key, run: tuple[int, int]) -> npt.NDArray[np.float64]:
    """Values ``[steps, numbers]`` of a run."""
    leaf = dataset.read_leaf(key, slice(run[0], sum(run)))
    return np.asarray(leaf.reshape(run[1], -1).to(torch.float64).numpy())


def _of_values(values: npt.NDArray[np.float64]) -> tuple[float, ...]:
    if not len(values):
        return (math.nan,) * 6
    q01, q99 = np.quantile(values, QUANTILES)
    # Shifted by a value that is there: huge values that hardly differ keep their deviation.
    shifted = values - values[0]
    return (
        float(values[0] + shifted.mean()),
        float(shifted.std()),
        float(values.min()),
        float(values.max()),
        float(q01),
        float(q99),
    )


def _of_frames(
    dataset: DatasetStorage, key: Key, runs: list[tuple[int, int]], count: int, bar: Bar
) -> EntryStats:
    """By channel, from how often each value comes where there are few, else over all pixels at once."""
    leaf = next(leaf for leaf in dataset.manifest.leaves if leaf.key == key)
    channels = leaf.shape[0]
    if leaf.dtype not in (torch.uint8, torch.uint16):
        frames = [dataset.read_leaf(key, slice(first, first + length)) for first, length in runs]
        values = torch.cat(frames).to(torch.float64).transpose(0, 1).reshape(channels, -1).numpy()
        good = [row[np.isfinite(row)] for row in values]
        results = np.array([_of_values(row) for row in good]).T
        return _made(results, (channels, 1, 1), count, values.size - sum(map(len, good)))
    bins = 256 if leaf.dtype == torch.uint8 else 65536
    counts = np.zeros((channels, bins), np.int64)
    for first, length in runs:
        for start in range(first, first + length, _FRAMES):
            frames_of_run = dataset.read_leaf(key, slice(start, min(start + _FRAMES, first + length)))
            for channel, pixels in enumerate(frames_of_run.numpy().swapaxes(0, 1)):
                counts[channel] += np.bincount(pixels.reshape(-1), minlength=bins)
            bar.update(len(frames_of_run))
    results = np.array([_of_counts(row) for row in counts]).T
    return _made(results, (channels, 1, 1), count, 0)


def _of_counts(counts: npt.NDArray[np.int64]) -> tuple[float, ...]:
    """The same of whole numbers ``0, 1, ...``, given how often each comes."""
    total = int(counts.sum())
    if not total:
        return (math.nan,) * 6
    values = np.arange(len(counts), dtype=np.float64)
    mean = float((counts * values).sum() / total)
    deviation = math.sqrt(float((counts * (values - mean) ** 2).sum() / total))
    there = counts.nonzero()[0]
    below = counts.cumsum()

    def quantile(q: float) -> float:
        place = q * (total - 1)
        low = int(np.searchsorted(below, math.floor(place), side="right"))
        high = int(np.searchsorted(below, math.ceil(place), side="right"))
        return low + (high - low) * (place - math.floor(place))

    return mean, deviation, float(there[0]), float(there[-1]), *map(quantile, QUANTILES)


def _made(results: npt.NDArray[np.float64], shape: Sequence[int], count: int, left_out: int) -> EntryStats:
    mean, std, low, high, q01, q99 = (torch.tensor(row).reshape(tuple(shape)) for row in results)
    return EntryStats(mean, std, low, high, q01, q99, count, left_out)


# --- what is stored with the dataset ---------------------------------------------------------------------


def _identity(manifest: Manifest) -> list[int]:
    """What changes if the content of the dataset does."""
    return [manifest.steps, manifest.episodes, manifest.checksums.get(CHECKSUMS, 0)]


def _read(dataset: DatasetStorage) -> dict[Key, EntryStats]:
    """Statistics that are there and are of this content; anything else counts as not there."""
    try:
        stored = json.loads((dataset.folder / STATS).read_bytes())
        if (stored["format"], stored["version"]) != (_FORMAT, _VERSION):
            return {}
        if stored["of"] != _identity(dataset.manifest):
            return {}
        found = {tuple(entry["key"]): _from_json(entry) for entry in stored["entries"]}
    except (OSError, ValueError, TypeError, KeyError, RecursionError, RuntimeError):
        return {}
    shapes = {leaf.key: leaf.shape for leaf in dataset.manifest.leaves}
    images = {key for key, kind in dataset.manifest.kinds.items() if kind == "image"}
    return {
        key: stats
        for key, stats in found.items()
        if key in shapes and stats.mean.shape == ((shapes[key][0], 1, 1) if key in images else shapes[key])
    }


def _write(dataset: DatasetStorage, stats: Mapping[Key, EntryStats]) -> None:
    """Store them; a folder that cannot be written to goes without."""
    entries = [_to_json(key, entry) for key, entry in stats.items()]
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "of": _identity(dataset.manifest),
        "entries": entries,
    }
    with contextlib.suppress(OSError):
        write_json_atomically(Path(dataset.folder) / STATS, content)


_TENSORS = tuple(field.name for field in fields(EntryStats) if field.name not in ("count", "left_out"))


def _to_json(key: Key, stats: EntryStats) -> dict[str, Any]:
    def plain(tensor: Tensor) -> list[Any]:
        # JSON has no NaN: an entry that no episode has.
        return [None if math.isnan(value) else value for value in tensor.reshape(-1).tolist()]

    return {
        "key": list(key),
        "shape": list(stats.mean.shape),
        "count": stats.count,
        "left_out": stats.left_out,
        **{name: plain(getattr(stats, name)) for name in _TENSORS},
    }


def _from_json(entry: Any) -> EntryStats:
    shape = tuple(entry["shape"])
    tensors = {
        name: torch.tensor(
            [math.nan if value is None else float(value) for value in entry[name]], dtype=torch.float64
        ).reshape(shape)
        for name in _TENSORS
    }
    return EntryStats(**tensors, count=int(entry["count"]), left_out=int(entry["left_out"]))
