"""Numbers that say nothing: constant ones, and those that were cut off at a limit; and odd priorities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from replaybank.report.findings import Finding
from replaybank.report.look import Sampling

CLIPPED: Final = 0.02
"""Part of the values that lie exactly at the smallest or largest one where they were cut off."""
PILED: Final = 10
"""Times as often as other values: whole numbers and coarse readings repeat everywhere."""
_LEAST_DISTINCT: Final = 20
"""Values that differ: an open or closed gripper has two, and is no clipped number."""
_LEAST_VALUES: Final = 50
SMALL_SAMPLE: Final = 0.01
"""Of the items: an effective number of them below means that few are drawn again and again."""


def clipped(values: npt.NDArray[Any]) -> tuple[int, int]:
    """How many values lie exactly at the smallest and at the largest one, if they seem to be cut off there.

    O(N log N).

    Args:
        values: ``[N]``.

    >>> clipped(np.clip(np.linspace(-2, 2, 401), -1, 1))
    (101, 101)
    >>> clipped(np.linspace(-2, 2, 401)), clipped(np.tile([0.0, 1.0], 100))
    ((0, 0), (0, 0))
    """
    good = values[np.isfinite(values)]
    if len(good) < _LEAST_VALUES:
        return 0, 0
    _, counts = np.unique(good, return_counts=True)
    if len(counts) < _LEAST_DISTINCT:
        return 0, 0
    enough = max(CLIPPED * len(good), PILED * float(np.median(counts)))
    low, high = int(counts[0]), int(counts[-1])
    return (low if low >= enough else 0), (high if high >= enough else 0)


def number_findings(labels: Sequence[str], values: npt.NDArray[Any], *, action: bool) -> Iterator[Finding]:
    """What is odd about the numbers of an entry.

    Args:
        labels: a name each.
        values: ``[steps, numbers]``.
        action: whether they are actions: of other numbers only those are told that were cut off.
    """
    steps = len(values)
    constant: list[str] = []
    cut: list[str] = []
    cut_values = 0
    for number, label in enumerate(labels):
        column = values[:, number].astype(np.float64)
        good = column[np.isfinite(column)]
        if len(good) > 1 and good.min() == good.max():
            constant.append(f"{label} is {good[0]:g} in {len(good):,} steps")
            continue
        low, high = clipped(column) if values.dtype.kind == "f" else (0, 0)
        cut_values += low + high
        sides = [(low, good.min() if len(good) else 0), (high, good.max() if len(good) else 0)]
        cut += [
            f"{label} is exactly {side:g} in {n / steps:.1%} of the steps ({n:,})" for n, side in sides if n
        ]
    kind = "action" if action else "state"
    if constant:
        yield Finding(
            "warning" if action else "note",
            f"{len(constant)} of {len(labels)} {kind} number{'s' if len(labels) > 1 else ''} never "
            f"change{'s' if len(constant) == 1 else ''}.",
            "Normalising divides by their deviation, which is zero: leave them out, or keep their scale.",
            len(constant),
            tuple(constant),
        )
    if cut and action:
        yield Finding(
            "warning",
            f"Action numbers were cut off at a limit: {cut_values:,} values lie exactly there.",
            "What was meant beyond the limit is lost. Normalise with the limits, not with the deviation.",
            cut_values,
            tuple(cut),
        )
    elif cut:
        yield Finding(
            "note",
            f"State numbers stop at a limit: {cut_values:,} values lie exactly there.",
            "A joint at its end stop looks like that, and so does a sensor that can show no more.",
            cut_values,
            tuple(cut),
        )


def effective(weights: npt.NDArray[np.float64]) -> float:
    """The effective number of items that draws in proportion to weights choose from (Kish).

    >>> effective(np.ones(5)), effective(np.array([1.0, 0.0, 0.0]))
    (5.0, 1.0)
    """
    most = float(weights.max(initial=0.0))
    if not most > 0:
        return 0.0
    shares = weights / most  # the squares of the weights themselves may be infinite, or all zero
    total = float(shares.sum())
    return total * total / float((shares * shares).sum())


def priority_findings(sampling: Sampling) -> Iterator[Finding]:
    """What is odd about priorities, and about how often items were drawn."""
    if sampling.priorities is not None:
        weights = sampling.priorities.weights
        never = int(np.count_nonzero(weights == 0))
        if never:
            yield Finding(
                "note" if never < len(weights) else "problem",
                f"{never:,} of {len(weights):,} items have the priority 0 and are never drawn "
                f"({sampling.name}).",
                "A priority above 0 brings them back; eps above 0 keeps it from happening.",
                never,
                _places_of(weights == 0),
            )
        ess = effective(weights)
        if len(weights) >= 1 / SMALL_SAMPLE and 0 < ess < SMALL_SAMPLE * len(weights):
            top = np.argsort(-weights, kind="stable")[:5]
            share = weights[top] / weights.sum()
            yield Finding(
                "warning",
                f"Few items are drawn nearly always: draws choose from {ess:,.1f} of {len(weights):,} items, "
                f"effectively ({sampling.name}).",
                "A smaller alpha spreads the draws; a priority that is far too large comes from a loss "
                "that exploded.",
                int(np.ceil(ess)),
                tuple(f"item {i:,}: {p:.1%} of all draws" for i, p in zip(top.tolist(), share, strict=True)),
            )
    if sampling.drawn is not None and len(sampling.drawn) and not sampling.drawn.any():
        yield Finding(
            "note",
            f"No item has been drawn yet ({sampling.name}).",
            "The checkpoint was saved before the first batch, or the items are all new.",
            len(sampling.drawn),
        )


def _places_of(which: npt.NDArray[np.bool_]) -> tuple[str, ...]:
    return tuple(f"item {number:,}" for number in np.nonzero(which)[0][:10].tolist())
