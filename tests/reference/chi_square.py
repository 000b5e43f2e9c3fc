"""Goodness of fit of counts to exact probabilities."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping

FALSE_ALARMS = 1e-6
"""Share of seeds for which a right sampler fails. The seeds are fixed: what passed once goes on to."""


def assert_fits(drawn: Iterable[Hashable], probabilities: Mapping[Hashable, float]) -> None:
    """Compare outcomes with their probabilities, which sum to 1, by a chi-square test.

    The tail of the distribution is Wilson and Hilferty's cube-root approximation, good to a few per cent of
    the threshold from 3 degrees of freedom on.
    """
    counts: dict[Hashable, int] = {}
    for outcome in drawn:
        counts[outcome] = counts.get(outcome, 0) + 1
    total = sum(counts.values())
    assert set(counts) <= set(probabilities), "an outcome of probability 0 was drawn"
    assert min(probabilities.values()) * total >= 5, "too few draws for the test to hold"
    statistic = sum(
        (counts.get(outcome, 0) - p * total) ** 2 / (p * total) for outcome, p in probabilities.items()
    )
    freedom = len(probabilities) - 1
    quantile = 4.7534  # of the normal distribution at FALSE_ALARMS
    threshold = freedom * (1 - 2 / (9 * freedom) + quantile * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < threshold, (
        f"chi-square {statistic:.1f} of {freedom} degrees of freedom > {threshold:.1f}"
    )
