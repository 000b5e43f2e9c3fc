"""What is collected over all episodes is exact, and which are shown is a fair draw."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from reference.chi_square import assert_fits
from replaybank.datasets.openx.verify import Problem
from replaybank.report.gather import MOST_NUMBERS, Shown, add_findings, gather, labels_of
from replaybank.report.look import About, Entry, Roles
from report_looks import ACTION, REWARD, look

TEXT = ("language_instruction",)
LARGE = ("observation", "embedding")
ENTRIES = (
    Entry(ACTION, "tensor", (1,), "float32"),
    Entry(LARGE, "tensor", (MOST_NUMBERS + 1,), "float32"),
    Entry(TEXT, "text", (), "str"),
    Entry(REWARD, "tensor", (1,), "float32"),
)
ABOUT = About("name", "form", "/data", (), ENTRIES, np.zeros(0, np.int64), 3, 12, None, "all")


def test_values_texts_rewards_and_ends_are_collected() -> None:
    looks = [
        look(0, columns={TEXT: ["a", "a", "b", "b"], LARGE: np.zeros((4, MOST_NUMBERS + 1))}),
        look(1, 2, columns={TEXT: ["a", "a"]}, terminal=False),
        look(2, columns={TEXT: ["c"] * 4}, ended=False),
    ]
    roles = Roles.of(ENTRIES)
    found = gather(looks, roles, ABOUT, episodes=2, seed=0, of=3)
    assert found.values[ACTION].reshape(-1).tolist() == [0, 1, 2, 3, 1, 2, 2, 3, 4, 5]
    assert found.left_out == [LARGE]
    assert found.texts[TEXT] == Counter({"a": 2, "b": 1, "c": 1})
    assert found.ends == {"terminated": 1, "truncated": 1, "unmarked": 0}
    assert found.returns.tolist() == [1, 1, 1]
    assert found.rewards.sum() == 3
    assert found.lengths == [4, 2, 4]
    assert len(found.shown) == 2
    assert found.findings == []


def test_the_worst_findings_come_first_and_known_defects_are_among_them() -> None:
    found = gather([look(0, 1), look(1)], Roles.of(ENTRIES), ABOUT, episodes=0, seed=0, of=2)
    about = replace(
        ABOUT,
        notes=("known defect: outdated copy", "something else"),
        problems=(Problem("/data/shard-0 record 3", "checksum"),),
    )
    add_findings(found, about)
    assert [(f.level, f.title) for f in found.findings] == [
        ("problem", "1 record cannot be read."),
        ("warning", "1 of 2 episodes has a single step."),
        ("warning", "Outdated copy."),
        ("note", "Something else."),
    ]
    assert found.findings[0].where == ("/data/shard-0 record 3: checksum",)


def test_every_episode_is_shown_with_the_same_chance() -> None:
    looks = [look(number, 1) for number in range(12)]
    drawn = []
    for seed in range(1200):
        shown = Shown(1, seed)
        for one in looks:
            shown.see(one)
        drawn += [one.number for one in shown.looks]
    assert_fits(drawn, dict.fromkeys(range(12), 1 / 12))


def test_episodes_are_shown_once_each_in_order() -> None:
    shown = Shown(5, 0)
    for number in range(50):
        shown.see(look(number, 1))
    numbers = [one.number for one in shown.looks]
    assert len(numbers) == 5
    assert numbers == sorted(set(numbers))


def test_names_of_the_data_are_used_where_they_fit() -> None:
    assert labels_of(ACTION, 2, {ACTION: ("x", "y")}) == ["x", "y"]
    assert labels_of(ACTION, 3, {ACTION: ("x", "y")}) == ["action[0]", "action[1]", "action[2]"]
    assert labels_of(("observation", "gripper"), 1, {}) == ["gripper"]


def test_entries_have_the_roles_that_their_names_say() -> None:
    keys = [
        ("observation", "state"),
        ("action", "arm"),
        ("next", "observation", "state"),
        ("next", "reward"),
        ("next", "done"),
        ("timestamp",),
        ("discount",),
        ("episode",),
    ]
    roles = Roles.of([Entry(key, "tensor", (1,), "float32") for key in keys])
    assert roles.state == (keys[0],)
    assert roles.action == (keys[1],)
    assert roles.times == (("timestamp",),)
    assert roles.other == (("discount",),)
    cameras = [("observation", "wrist"), ("observation", "front"), ("next", "observation", "front")]
    roles = Roles.of([Entry(key, "image", (3, 8, 8), "uint8") for key in cameras])
    assert roles.cameras == (cameras[0], cameras[1])
    cameras = [("observation", name) for name in ("image_1", "image_0", "wrist", "image_2")]
    roles = Roles.of([Entry(key, "image", (3, 8, 8), "uint8") for key in cameras])
    assert [key[1] for key in roles.cameras] == ["image_0", "image_1", "image_2", "wrist"]
