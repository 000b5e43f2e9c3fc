"""What is wrong with data is told in a sentence, with how often and where; what is right is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from replaybank.datasets.openx.sources.base import Key
from replaybank.report.checks import (
    Doubles,
    Ends,
    Finite,
    Instructions,
    Lengths,
    MissingEntries,
    Rewards,
    Times,
)
from replaybank.report.findings import MOST_PLACES, Check
from replaybank.report.look import Entry
from report_looks import ACTION, CAMERA, DONE, REWARD, TERMINATED, found, look

STATE = ("observation", "state")
TEXT = ("language_instruction",)
TIME = ("timestamp",)


@pytest.mark.parametrize(
    "check",
    [
        MissingEntries([]),
        Rewards(True),
        Ends(True),
        Finite(),
        Times([TIME]),
        Lengths(),
        Doubles([ACTION]),
        Instructions([TEXT]),
    ],
    ids=lambda check: type(check).__name__,
)
def test_nothing_is_found_where_nothing_is_wrong(check: Check) -> None:
    good: dict[Key, Any] = {TEXT: ["go"] * 4, TIME: np.arange(4) / 30}
    assert found(check, [look(n, columns=good) for n in range(3)]) == []


@pytest.mark.parametrize(("key", "kind", "what"), [(CAMERA, "image", "Camera"), (STATE, "tensor", "Entry")])
def test_missing_entries_are_counted_and_named(key: tuple[str, ...], kind: str, what: str) -> None:
    entries = [Entry(key, kind, (1,), "uint8")]  # type: ignore[arg-type]
    (finding,) = found(MissingEntries(entries), [look(0), look(1, missing=[key]), look(2, missing=[key])])
    assert finding.title == f"{what} {'/'.join(key)} is missing in 2 of 3 episodes."
    assert (finding.level, finding.count) == ("warning", 2)
    assert finding.where == ("episode 1 (place 1)", "episode 2 (place 2)")


def test_rewards_that_are_all_zero_are_told() -> None:
    zero = {REWARD: np.zeros((4, 1), np.float32)}
    (finding,) = found(Rewards(True), [look(n, columns=zero) for n in range(2)])
    assert finding.title == "Every reward is zero: all 8 steps."
    assert (finding.level, finding.count) == ("warning", 8)
    assert found(Rewards(True), [look(0, columns=zero), look(1)]) == []


def test_data_without_rewards_are_no_data_with_zero_rewards() -> None:
    (finding,) = found(Rewards(False), [look(0, columns={REWARD: np.zeros((4, 1))})])
    assert (finding.level, finding.title) == ("note", "The data has no rewards.")


def test_ends_that_are_never_set_are_told() -> None:
    (finding,) = found(Ends(True), [look(n, terminal=False) for n in range(3)])
    assert finding.title == "No episode is marked as terminated: all 3 episodes ended by truncation."
    assert found(Ends(True), [look(0, terminal=False), look(1)]) == []


def test_an_episode_that_goes_on_says_nothing_about_ends() -> None:
    open_one = look(
        1, columns={TERMINATED: np.zeros((4, 1), bool), DONE: np.zeros((4, 1), bool)}, ended=False
    )
    assert found(Ends(True), [look(0), open_one]) == []


def test_ends_before_the_last_step_are_told() -> None:
    early = np.array([[True], [False], [True], [True]])
    (finding,) = found(Ends(True), [look(0), look(1, columns={TERMINATED: early})])
    assert finding.title == "An end is set before the last step in 1 of 2 episodes."
    assert (finding.count, finding.where) == (2, ("episode 1 (place 1)",))


def test_data_that_say_nowhere_where_trajectories_end_are_told() -> None:
    titles = [finding.title for finding in found(Ends(False), [look(0)])]
    assert titles == ["Nothing says where trajectories end."]


def test_nan_and_infinite_values_are_counted_with_their_first_step() -> None:
    bad = np.zeros((4, 3), np.float32)
    bad[2, 1], bad[3, 0] = np.nan, -np.inf
    (finding,) = found(Finite(), [look(0), look(7, columns={STATE: bad})])
    assert finding.title == "2 values are NaN or infinite in observation/state, in 1 episode."
    assert (finding.level, finding.count) == ("problem", 2)
    assert finding.where == ("episode 7 (place 7), from step 2 on",)


def test_jumps_in_timestamps_are_counted_with_their_step() -> None:
    steady, late = np.arange(4) / 10, np.array([0.0, 0.1, 0.5, 0.6])
    backwards = np.array([0.3, 0.2, 0.3, 0.3])
    looks = [look(n, columns={TIME: times}) for n, times in enumerate([steady, late, backwards])]
    (finding,) = found(Times([TIME]), looks)
    assert finding.title == "timestamp jumps 3 times in 2 of 3 episodes."
    assert finding.count == 3
    assert finding.where == (
        "episode 1 (place 1), step 2: +0.4 after the step before",
        "episode 2 (place 2), step 1: -0.1 after the step before",
    )


def test_a_clock_that_trembles_does_not_jump() -> None:
    trembling = np.cumsum([0.0, 0.1, 0.13, 0.08, 0.1])
    assert found(Times([TIME]), [look(0, 5, columns={TIME: trembling})]) == []


def test_episodes_without_steps_or_with_one_are_told() -> None:
    findings = found(Lengths(), [look(0), look(1, 1), look(2, 1), look(3, 0), look(4, 1, ended=False)])
    assert [(f.level, f.title, f.count) for f in findings] == [
        ("problem", "1 of 5 episodes have no steps.", 1),
        ("warning", "2 of 5 episodes have a single step.", 2),
    ]


def test_episodes_that_are_there_twice_are_told_with_the_first_one() -> None:
    same = {ACTION: np.arange(4, dtype=np.float32)[:, None]}
    (finding,) = found(Doubles([ACTION]), [look(3, columns=same), look(5), look(8, columns=same)])
    assert finding.title == "1 of 3 episodes is there twice."
    assert finding.where == ("episode 8 (place 8) is as episode 3",)


def test_episodes_in_which_nothing_changes_are_no_doubles() -> None:
    still = {ACTION: np.zeros((4, 1), np.float32)}
    assert found(Doubles([ACTION]), [look(n, columns=still) for n in range(3)]) == []


def test_empty_instructions_are_told() -> None:
    looks = [look(0, columns={TEXT: ["go"] * 4}), look(1, columns={TEXT: ["", " ", "", ""]})]
    (finding,) = found(Instructions([TEXT]), looks)
    assert finding.title == "language_instruction is empty in 1 of 2 episodes."
    assert finding.where == ("episode 1 (place 1)",)


def test_the_places_of_a_finding_are_bounded_and_all_counted() -> None:
    looks = [look(n, columns={TEXT: [""] * 4}) for n in range(MOST_PLACES + 10)]
    (finding,) = found(Instructions([TEXT]), looks)
    assert (finding.count, len(finding.where)) == (MOST_PLACES + 10, MOST_PLACES)
