"""Histograms count right, and plots carry the page's colours and no ids of others."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import matplotlib as mpl
import numpy as np

from replaybank.report.plots import BINS, Plotter, histogram, log_histogram


def test_a_histogram_counts_every_finite_value_once() -> None:
    values = np.concatenate([np.random.default_rng(0).normal(size=500), [np.nan, np.inf, -np.inf]])
    made = histogram(values, (-2.0, 2.0))
    assert made is not None
    assert (len(made.counts), made.counts.sum()) == (BINS, 500)
    assert made.marks == (-2.0, 2.0)


def test_whole_numbers_get_a_bar_each() -> None:
    made = histogram(np.array([3, 3, 5, 4, 3]))
    assert made is not None
    assert made.whole
    assert made.counts.tolist() == [3, 1, 1]
    assert made.edges.tolist() == [2.5, 3.5, 4.5, 5.5]


def test_a_value_that_never_changes_is_one_bar() -> None:
    made = histogram(np.full(7, 0.25))
    assert made is not None
    assert (made.single, made.counts.tolist()) == (0.25, [0, 7, 0])
    near = histogram(np.array([1.0, np.nextafter(1.0, 2.0)]))
    assert near is not None
    assert near.counts.sum() == 2


def test_values_that_are_no_numbers_make_no_histogram() -> None:
    assert histogram(np.array([np.nan])) is None
    assert log_histogram(np.array([0.0, -1.0])) is None


def test_powers_of_ten_are_spread_evenly() -> None:
    made = log_histogram(np.logspace(-6, 6, 80))
    assert made is not None
    assert made.counts.tolist() == [2] * BINS


def test_plots_are_whole_svgs_in_the_colours_of_the_page() -> None:
    made = histogram(np.random.default_rng(0).normal(size=500), (-2.0, 2.0))
    assert made is not None
    with Plotter() as plotter:
        plots = [plotter.small(made, 'a "<b>" & c'), plotter.wide(made, "lengths", "steps")]
    for plot in plots:
        root = ET.fromstring(plot.replace("<svg ", '<svg xmlns:xlink="http://www.w3.org/1999/xlink" ', 1))
        assert root.get("role") == "img"
        assert "#0102" not in plot
        assert "var(--plot-fill)" in plot
        assert "DejaVu" not in plot
        assert "http" not in plot
    assert 'aria-label="a &#34;&lt;b&gt;&#34; &amp; c"' in plots[0]
    ids = [name for plot in plots for name in re.findall(r' id="([^"]*)"', plot)]
    assert len(set(ids)) == len(ids)
    assert all(f"(#{name})" in "".join(plots) for name in ids)


def test_the_settings_of_matplotlib_are_the_users_again_afterwards() -> None:
    with mpl.rc_context({"font.size": 33}):
        with Plotter():
            assert mpl.rcParams["font.size"] != 33
        assert mpl.rcParams["font.size"] == 33
