"""What the page says of numbers, texts and samplers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from replaybank.datasets.openx.sources.base import Key
from replaybank.datasets.openx.stats import stats_of_values
from replaybank.report.check_numbers import effective
from replaybank.report.gather import labels_of
from replaybank.report.look import Sampling, clip, name_of
from replaybank.report.plots import Plotter, histogram, log_histogram

MOST_PLOTS: Final = 32
"""In a section; the numbers behind them have lines in its table."""
MOST_TEXTS: Final = 500
"""Of an entry, the most frequent ones."""
OPEN_TEXTS: Final = 12
"""Texts that are shown without being asked for."""
SHARES: Final = (0.01, 0.1, 0.5)
"""Parts of the items, those with the largest weights, whose part of the draws is told."""
WIDE_RANGE: Final = 100.0
"""Largest over smallest: beyond it a plot has a logarithmic axis."""


@dataclass(frozen=True)
class Number:
    """One number of an entry, over all steps.

    Args:
        label: its name.
        plot: of its distribution, SVG; empty where there is no room for one.
        row: mean, deviation, smallest, q01, q99 and largest, as text.
        left_out: values that are no numbers.
    """

    label: str
    plot: str
    row: tuple[str, ...]
    left_out: int


@dataclass(frozen=True)
class Numbers:
    """The numbers of a section.

    Args:
        id: of the section.
        title: of it.
        numbers: in it.
        left_out: entries with too many numbers, in words.
    """

    id: str
    title: str
    numbers: tuple[Number, ...]
    left_out: tuple[str, ...]


def numbers_section(
    name: tuple[str, str],
    keys: Sequence[Key],
    values: Mapping[Key, npt.NDArray[Any]],
    names: Mapping[Key, Sequence[str]],
    left_out: Sequence[Key],
    plotter: Plotter,
) -> Numbers | None:
    """Distributions of entries; None if there are none. O(N log N) a number.

    Args:
        name: id and title of the section.
        keys: the entries.
        values: ``[steps, numbers]`` of each.
        names: of numbers, where the data has names.
        left_out: entries of many numbers.
        plotter: draws.
    """
    found: list[Number] = []
    for key in keys:
        if key not in values:
            continue
        stats = stats_of_values(values[key])
        columns = (stats.mean, stats.std, stats.min, stats.q01, stats.q99, stats.max)
        rows = np.stack([column.numpy() for column in columns], axis=1).tolist()
        for n, label in enumerate(labels_of(key, len(rows), names)):
            column, row = values[key][:, n], rows[n]
            data = histogram(column, (row[3], row[4])) if len(found) < MOST_PLOTS else None
            text = tuple(f"{value:.4g}" for value in row)
            said = (
                f"Distribution of {label}: from {text[2]} to {text[5]}, 1% below {text[3]}, "
                f"1% above {text[4]}"
            )
            plot = plotter.small(data, said) if data is not None else ""
            found.append(Number(label, plot, text, int(np.count_nonzero(~np.isfinite(column)))))
    lacking = tuple(name_of(key) for key in keys if key in left_out)
    return Numbers(*name, tuple(found), lacking) if found or lacking else None


@dataclass(frozen=True)
class Texts:
    """The texts of an entry.

    Args:
        name: of the entry.
        different: how many different ones.
        lines: text, episodes, and these as a part of the most frequent one's; the most frequent first.
    """

    name: str
    different: int
    lines: tuple[tuple[str, int, float], ...]

    @property
    def open(self) -> int:
        """How many are shown without being asked for."""
        return OPEN_TEXTS


def texts_section(texts: Mapping[Key, Counter[str]]) -> list[Texts]:
    """The texts of all entries that have some. O(texts log texts)."""
    found = []
    for key, counter in texts.items():
        common = sorted(counter.items(), key=lambda item: (-item[1], item[0]))[:MOST_TEXTS]
        if common:
            lines = tuple((clip(text), times, times / common[0][1]) for text, times in common)
            found.append(Texts(name_of(key), len(counter), lines))
    return found


@dataclass(frozen=True)
class Draws:
    """What is known of a sampler.

    Args:
        name: of its class.
        facts: names and values.
        plots: title and SVG each.
        shares: which part of the items gets which part of the draws, in words.
        note: what is not known.
    """

    name: str
    facts: tuple[tuple[str, str], ...]
    plots: tuple[tuple[str, str], ...]
    shares: tuple[tuple[str, float], ...]
    note: str


def draws_section(sampling: Sampling, plotter: Plotter) -> Draws:
    """What is known of a sampler, in plots and words. O(N log N)."""
    facts, plots, shares = list(sampling.facts), [], []
    note = ""
    if sampling.priorities is not None:
        kept = sampling.priorities
        weights = kept.weights
        total = float(weights.sum())
        facts.append(("effective number of items", f"{effective(weights):,.1f} of {len(weights):,}"))
        if kept.alpha > 0:
            priorities = np.maximum(weights ** (1 / kept.alpha) - kept.eps, 0)
            plots.append(("Priorities", _plot(priorities, "priority", "Priorities of the items", plotter)))
        if total > 0:
            times = weights * len(weights) / total
            facts.append(
                ("likeliest item", f"drawn {times.max():,.3g} times as often as by a uniform sampler")
            )
            plots.append(
                (
                    "Chance of being drawn",
                    _plot(times, "times the uniform chance", "Chances of the items", plotter),
                )
            )
            ordered = np.sort(weights)[::-1].cumsum() / total
            for share in SHARES:
                count = max(1, round(share * len(weights)))
                shares.append((f"{share:.0%} of the items ({count:,})", float(ordered[count - 1])))
        note = (
            "How often each item was drawn is not kept by this sampler, so it is not in the checkpoint: "
            "these are the chances of the next draw."
        )
    if sampling.drawn is not None:
        data = histogram(sampling.drawn)
        if data is not None:
            plots.append(
                ("How often items were drawn", plotter.wide(data, "How often items were drawn", "draws"))
            )
    elif sampling.priorities is None:
        note = "It draws by no priorities, and how often each item was drawn is not kept."
    return Draws(sampling.name, tuple(facts), tuple(plots), tuple(shares), note)


def _plot(values: npt.NDArray[np.float64], axis: str, label: str, plotter: Plotter) -> str:
    positive = values[values > 0]
    log = len(positive) > 0 and float(positive.max()) > WIDE_RANGE * float(positive.min())
    data = log_histogram(values) if log else histogram(values)
    return "" if data is None else plotter.wide(data, label, axis + (", logarithmic" if log else ""), log=log)
