"""Constant and cut-off numbers, and odd priorities, are told with exact counts."""

from __future__ import annotations

import numpy as np
import pytest

from replaybank.report.check_numbers import clipped, effective, number_findings, priority_findings
from replaybank.report.look import Priorities, Sampling

RNG = np.random.default_rng(0)
SMOOTH = np.linspace(-1.0, 1.0, 200)


def of_weights(weights: np.ndarray) -> Sampling:
    return Sampling("PrioritizedSampler", priorities=Priorities(weights.astype(np.float64), 0.6, 0.4, 1e-8))


def test_constant_actions_are_told_by_name_and_value() -> None:
    values = np.stack([SMOOTH, np.full(200, 0.5), np.zeros(200)], axis=1)
    (finding,) = number_findings(["x", "y", "z"], values, action=True)
    assert finding.title == "2 of 3 action numbers never change."
    assert (finding.level, finding.count) == ("warning", 2)
    assert finding.where == ("y is 0.5 in 200 steps", "z is 0 in 200 steps")


def test_a_constant_state_is_a_note_only() -> None:
    (finding,) = number_findings(["x"], np.zeros((10, 1)), action=False)
    assert (finding.level, finding.title) == ("note", "1 of 1 state number never changes.")


def test_a_number_that_is_nan_or_once_there_is_not_constant() -> None:
    assert list(number_findings(["x"], np.full((5, 1), np.nan), action=True)) == []
    assert list(number_findings(["x"], np.zeros((1, 1)), action=True)) == []


def test_clipped_actions_are_told_with_their_limit() -> None:
    values = np.clip(np.linspace(-2.0, 1.0, 301), -1.0, 3.0)[:, None]
    (finding,) = number_findings(["x"], values, action=True)
    assert finding.title == "Action numbers were cut off at a limit: 101 values lie exactly there."
    assert finding.where == ("x is exactly -1 in 33.6% of the steps (101)",)


@pytest.mark.parametrize(
    "values",
    [
        SMOOTH,
        RNG.normal(size=1000),
        np.repeat([0.0, 1.0], 200),  # a gripper
        np.tile(np.arange(40.0), 10),  # coarse readings
        np.clip(np.linspace(-2, 2, 40), -1, 1),  # too few to tell
        np.full(100, np.nan),
    ],
    ids=["smooth", "normal", "two values", "coarse", "few", "nan"],
)
def test_numbers_that_were_not_cut_off_are_not_told(values: np.ndarray) -> None:
    assert clipped(values) == (0, 0)


def test_the_effective_number_of_items_is_between_one_and_all() -> None:
    assert effective(np.ones(8)) == 8.0
    assert effective(np.array([0.0, 0.0])) == 0.0
    assert effective(np.array([2.0, 1.0, 1.0])) == pytest.approx(16 / 6)


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_the_effective_number_of_items_does_not_depend_on_the_scale(scale: float) -> None:
    assert effective(scale * np.array([1.0, 1.0, 0.0, 2.0])) == pytest.approx(16 / 6)


def test_items_that_are_never_drawn_are_told() -> None:
    weights = np.ones(10)
    weights[[3, 7]] = 0
    (finding,) = priority_findings(of_weights(weights))
    assert finding.title == "2 of 10 items have the priority 0 and are never drawn (PrioritizedSampler)."
    assert (finding.level, finding.where) == ("note", ("item 3", "item 7"))
    (finding,) = priority_findings(of_weights(np.zeros(4)))
    assert finding.level == "problem"


def test_one_item_that_takes_all_draws_is_told_with_its_share() -> None:
    weights = np.full(1000, 1e-6)
    weights[17] = 1.0
    (finding,) = priority_findings(of_weights(weights))
    assert finding.title == (
        "Few items are drawn nearly always: draws choose from 1.0 of 1,000 items, effectively "
        "(PrioritizedSampler)."
    )
    assert finding.where[0] == "item 17: 99.9% of all draws"


def test_priorities_of_every_day_are_not_told() -> None:
    assert list(priority_findings(of_weights(RNG.exponential(size=1000)))) == []


def test_items_that_nobody_has_drawn_are_told() -> None:
    none = Sampling("ConsumingSampler", drawn=np.zeros(5, np.int64), capacity=3)
    assert [f.title for f in priority_findings(none)] == ["No item has been drawn yet (ConsumingSampler)."]
    some = Sampling("ConsumingSampler", drawn=np.array([0, 1]), capacity=3)
    assert list(priority_findings(some)) == []
