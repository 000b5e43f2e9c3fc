"""Plots in the page's own colours and type: small SVGs that follow light and dark mode."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

BINS: Final = 40
MOST_BARS: Final = 24
"""Whole numbers that differ so little get a bar each."""

WIDTH, HEIGHT = 190, 82
"""Of a small plot, in CSS pixels: at this size its type is as large as the page's small print."""
WIDE: Final = (420, 170)
"""Of a large one."""
_DOTS: Final = 72.0
_COLOURS: Final = {
    "#010203": "var(--plot-fill)",
    "#010204": "var(--plot-line)",
    "#010205": "var(--plot-mark)",
    "#010206": "var(--faint)",
    "#010207": "var(--muted)",
}
"""Colours that nobody uses, and what the page puts in their place."""
_FILL, _LINE, _MARK, _RULE, _TEXT = _COLOURS


@dataclass(frozen=True)
class Histogram:
    """How often values come.

    Args:
        counts: of each bin.
        edges: of the bins, one more.
        marks: values to be marked: the quantiles.
        whole: a bin is one value, and is drawn as a bar.
        single: the only value there is.
    """

    counts: npt.NDArray[np.int64]
    edges: npt.NDArray[np.float64]
    marks: tuple[float, ...] = ()
    whole: bool = False
    single: float | None = None


def histogram(values: npt.NDArray[Any], marks: Sequence[float] = ()) -> Histogram | None:
    """Count values; those that are no numbers are left out, and None comes if there are no others. O(N).

    >>> histogram(np.array([1, 1, 3])).counts.tolist()
    [2, 0, 1]
    """
    good = values[np.isfinite(values)].astype(np.float64)
    if not len(good):
        return None
    low, high = float(good.min()), float(good.max())
    shown = tuple(float(mark) for mark in marks if np.isfinite(mark))
    if low == high:
        return _single(low, len(good))
    whole = high - low < MOST_BARS and bool((good == np.round(good)).all())
    if whole:
        edges = np.arange(low - 0.5, high + 1.0)
    else:
        edges = np.linspace(low, high, BINS + 1)
        if not (np.diff(edges) > 0).all():  # two neighbouring floats
            return _single(low, len(good))
    counts, _ = np.histogram(good, edges)
    return Histogram(counts.astype(np.int64), edges, shown, whole)


def _single(value: float, count: int) -> Histogram:
    """One bar in the middle, for a value that never changes."""
    pad = abs(value) * 0.25 or 0.5
    edges = value + pad * np.array([-3.0, -1.0, 1.0, 3.0])
    return Histogram(np.array([0, count, 0]), edges, (), True, value)


def log_histogram(values: npt.NDArray[Any]) -> Histogram | None:
    """Count positive values in bins that grow, over what may span many powers of ten. Edges are exponents."""
    good = values[np.isfinite(values) & (values > 0)]
    return histogram(np.log10(good)) if len(good) else None


class Plotter:
    """Draws plots, one after the other, on one sheet of matplotlib. Not thread-safe.

    Use it as a context manager: what the user has set for plots of their own is no matter within, nor is what
    is set here for theirs afterwards.

    Raises:
        ImportError: matplotlib is not installed.
    """

    def __init__(self) -> None:
        self._numbers: Iterator[int] = itertools.count()
        self._closing = ExitStack()

    def __enter__(self) -> Plotter:
        import matplotlib as mpl
        from matplotlib.figure import Figure

        self._closing.enter_context(mpl.rc_context())
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        self._figure = Figure()
        self._figure.patch.set_visible(False)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def small(self, data: Histogram, label: str) -> str:
        """A histogram among many, as SVG. ``label`` is what a screen reader says."""
        return self._draw(data, label, (WIDTH, HEIGHT), "", counts=False)

    def wide(self, data: Histogram, label: str, axis: str, *, log: bool = False) -> str:
        """A histogram for itself, as SVG.

        Args:
            data: what to draw.
            label: what a screen reader says.
            axis: what is counted.
            log: the edges are exponents of ten.
        """
        return self._draw(data, label, WIDE, axis, counts=True, log=log)

    def _draw(
        self,
        data: Histogram,
        label: str,
        size: tuple[int, int],
        axis: str,
        *,
        counts: bool,
        log: bool = False,
    ) -> str:
        figure = self._figure
        figure.clear()
        figure.set_size_inches(size[0] / _DOTS, size[1] / _DOTS)
        bottom = (34 if axis else 18) / size[1]
        left = (40 if counts else 6) / size[0]
        axes = figure.add_axes((left, bottom, 1 - left - 8 / size[0], 1 - bottom - 6 / size[1]))
        axes.patch.set_visible(False)
        _bars(axes, data)
        _frame(axes, data, counts=counts, log=log)
        if axis:
            axes.set_xlabel(axis, labelpad=4)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        return _for_page(out.getvalue(), f"p{next(self._numbers)}-", label, size)


def _bars(axes: Any, data: Histogram) -> None:
    if data.whole:
        there = data.counts > 0
        middle = ((data.edges[:-1] + data.edges[1:]) / 2)[there]
        width = 0.8 * float(data.edges[1] - data.edges[0])
        axes.bar(middle, data.counts[there], width, color=_FILL, edgecolor=_LINE, linewidth=1)
    else:
        axes.stairs(data.counts, data.edges, fill=True, color=_FILL, linewidth=0)
        axes.stairs(data.counts, data.edges, color=_LINE, linewidth=1.2, baseline=None)
    for mark in data.marks:
        axes.axvline(mark, color=_MARK, linewidth=1.2, linestyle=(0, (3, 2)))


def _frame(axes: Any, data: Histogram, *, counts: bool, log: bool) -> None:
    """One line to stand on, and few numbers."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

    low, high = data.edges[0], data.edges[-1]
    pad = (high - low) * 0.02
    axes.set_xlim(low - pad, high + pad)
    axes.set_ylim(0, max(1, int(data.counts.max())) * 1.08)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_RULE)
    axes.tick_params(length=0, pad=4)
    if data.single is not None:
        axes.xaxis.set_major_locator(FixedLocator([data.single]))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5 if counts else 3, integer=data.whole or log))
    axes.xaxis.set_major_formatter(
        FuncFormatter(
            lambda value, _: _power(value) if log else f"{value:.4g}".replace("-", "\N{MINUS SIGN}")
        )
    )
    if counts:
        axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short_count(value)))
        axes.grid(axis="y", color=_RULE, linewidth=0.8)
        axes.set_axisbelow(True)
    else:
        axes.yaxis.set_visible(False)


def _power(value: float) -> str:
    return f"1e{value:.0f}".replace("-", "\N{MINUS SIGN}") if abs(value) > 3 else f"{10.0**value:g}"


def short_count(value: float) -> str:
    """A count for an axis.

    >>> short_count(950), short_count(12_300), short_count(4e6)
    ('950', '12k', '4M')
    """
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g}{name}" if value < 10 * unit else f"{value / unit:.0f}{name}"
    return f"{value:g}"


_STYLE: Final[Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "replaybank",
    "font.size": 11,
    "axes.labelcolor": _TEXT,
    "xtick.color": _TEXT,
    "ytick.color": _TEXT,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "figure.dpi": _DOTS,
}


def _for_page(svg: str, prefix: str, label: str, size: tuple[int, int]) -> str:
    """The SVG as a part of the page: no header, no ids of others, colours and type of the page."""
    from markupsafe import escape

    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", svg, flags=re.S)
    body = svg[svg.index(">") + 1 :]
    body = re.sub(r'(<g) id="[^"]*"', r"\1", body)
    body = re.sub(r' id="([^"]*)"', rf' id="{prefix}\1"', body)
    body = re.sub(r'(xlink:href="|url\()#', rf"\1#{prefix}", body)
    body = re.sub(r"font(-family|-size)?: [^;\"]*;? ?", _font, body)
    for colour, variable in _COLOURS.items():
        body = body.replace(colour, variable)
    body = re.sub(r"\n\s*", "\n", body)
    return (
        f'<svg class="plot" viewBox="0 0 {size[0]} {size[1]}" role="img" aria-label="{escape(label)}">{body}'
    )


def _font(match: re.Match[str]) -> str:
    """Of matplotlib's type only the size is kept."""
    found = re.search(r"([\d.]+)px", match[0])
    return f"font-size: {found[1]}px; " if found else ""
