"""Published and converted datasets are looked at in part, and the page says in which."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hub_shards import pixels, write_hub
from lerobot_files import shown_numbers, write_lerobot
from memory_source import MemorySource, episode
from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.sources.base import Episode
from replaybank.datasets.openx.sources.open import open_source
from replaybank.demo.arm import simulate, write_arm_dataset
from replaybank.errors import DataFormatError
from replaybank.report import published
from replaybank.report.converted import ConvertedSubject
from replaybank.report.look import About, Look, Subject
from replaybank.report.published import PublishedSubject
from shared_data import bridge_path, lerobot_g1_path

EPISODES = 6


def looked(subject: Subject, seed: int = 0) -> tuple[list[Look], About]:
    told: list[tuple[int, int]] = []
    looks = list(subject.looks(seed, lambda done, of: told.append((done, of))))
    assert [done for done, _ in told] == list(range(1, len(looks) + 1))
    return looks, subject.about()


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_arm_dataset(tmp_path_factory.mktemp("arm") / "1.0.0", episodes=EPISODES, shards=2)


@pytest.mark.parametrize("form", ["RLDS", "converted", "encoded"])
def test_a_small_dataset_is_looked_at_whole_in_every_form(form: str, arm: Path, tmp_path: Path) -> None:
    if form != "RLDS":
        convert(arm, tmp_path / "made", images="encoded" if form == "encoded" else "raw")
    looks, about = looked(
        PublishedSubject(open_source(arm)) if form == "RLDS" else ConvertedSubject(tmp_path / "made")
    )
    reaches = [simulate(number) for number in (0, 2, 4, 1, 3, 5)]  # dealt out to two shards
    assert [one.number for one in looks] == list(range(EPISODES))
    assert [one.length for one in looks] == [len(reach) for reach in reaches]
    for one, reach in zip(looks, reaches, strict=True):
        np.testing.assert_array_equal(one.numbers(("action",)), reach.actions)
        assert one.columns["language_instruction",] == [reach.instruction] * len(reach)
        assert one.first_of([("next", "terminated")]).tolist()[-1] == reach.reached  # type: ignore[union-attr]
        frames = one.frames["observation", "image"]([0, len(reach) - 1])
        assert (frames.shape, frames.dtype) == ((2, 64, 64, 3), np.dtype(np.uint8))
    assert (about.name, about.episodes, about.steps) == ("two_link_arm", EPISODES, sum(map(len, reaches)))
    assert about.looked == f"all {EPISODES} episodes"
    assert about.rewarded
    assert about.bytes
    forms = {entry.name: entry.form for entry in about.entries if entry.kind == "image"}
    assert set(forms.values()) == {"raw" if form == "converted" else "JPEG"}


def test_of_many_shards_some_are_read_from_their_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "LOOKED_EPISODES", 6)
    monkeypatch.setattr(published, "LOOKED_SHARDS", 3)
    source = MemorySource([[episode(10 * shard + n, 2) for n in range(10)] for shard in range(8)])
    looks, about = looked(PublishedSubject(source), seed=3)
    numbers = [one.number for one in looks]
    assert len(numbers) == 6
    assert [number % 10 for number in numbers] == [0, 1] * 3
    assert len({number // 10 for number in numbers}) == 3
    assert about.looked == "6 of 80 episodes: the first ones of 3 of 8 shards drawn at random (seed 3)"
    assert (about.episodes, about.steps, about.expected) == (80, None, 6)


def test_long_episodes_make_fewer_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "LOOKED_STEPS", 40)
    source = MemorySource([[episode(n, 15) for n in range(20)]])
    looks, about = looked(PublishedSubject(source))
    assert len(looks) == 3
    assert about.looked == "3 of 20 episodes: the first ones of 1 of 1 shards"


def test_what_cannot_be_read_is_told_and_the_rest_looked_at() -> None:
    records: list[Episode | Exception] = [episode(0, 2), DataFormatError("checksum"), episode(2, 3)]
    looks, about = looked(PublishedSubject(MemorySource([records])))
    assert [one.length for one in looks] == [2, 3]
    assert [(p.where, p.what) for p in about.problems] == [("/data/shard-0 record 1", "checksum")]


def test_an_episode_of_another_shape_is_told() -> None:
    odd = episode(1, 2)
    odd = replace(odd, steps={**odd.steps, ("action",): np.zeros((2, 5))})
    looks, about = looked(PublishedSubject(MemorySource([[episode(0, 2), odd]])))
    assert len(looks) == 1
    (problem,) = about.problems
    assert "action has shape (5,), the dataset has (2,)" in problem.what


def test_entries_that_an_episode_lacks_are_missing() -> None:
    one = episode(1, 2)
    lacking = replace(
        one,
        steps={key: column for key, column in one.steps.items() if key != ("observation", "image")},
        missing=frozenset({("observation", "image")}),
    )
    looks, about = looked(PublishedSubject(MemorySource([[episode(0, 2), lacking]])))
    assert [one.missing for one in looks] == [frozenset(), {("observation", "image")}]
    assert about.notes == ()


def test_data_without_rewards_is_known_to_have_none() -> None:
    fields = {key: spec for key, spec in MemorySource([]).fields.items() if key != ("reward",)}
    one = episode(0, 2)
    steps = {key: column for key, column in one.steps.items() if key != ("reward",)}
    _, about = looked(PublishedSubject(MemorySource([[replace(one, steps=steps)]], fields)))
    assert not about.rewarded


def test_the_last_step_of_rlds_that_is_not_marked_is_told() -> None:
    one = episode(0, 3)
    unmarked = replace(one, steps={**one.steps, ("is_last",): np.zeros(3, bool)})
    _, about = looked(PublishedSubject(MemorySource([[unmarked, unmarked]])))
    assert about.notes == ("is_last is not set on the last step of an episode (2 times)",)


def test_of_a_large_converted_dataset_some_episodes_are_drawn(
    arm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    convert(arm, made)
    monkeypatch.setattr("replaybank.report.converted.LOOKED_EPISODES", 3)
    looks, about = looked(ConvertedSubject(made))
    assert len(looks) == 3
    assert [one.number for one in looks] == sorted({one.number for one in looks})
    assert about.looked == f"3 of {EPISODES} episodes, drawn at random (seed 0)"
    assert len(about.lengths) == EPISODES
    assert about.expected == 3


def test_what_the_catalog_knows_is_among_the_notes(arm: Path, tmp_path: Path) -> None:
    from replaybank.datasets.openx.sources.rlds import RLDSSource

    source = RLDSSource(arm)
    source.name = "bridge"
    _, about = looked(PublishedSubject(source))
    assert about.notes[:1] == ("known defect: outdated copy of BridgeData",)
    assert about.rate == 5.0


def test_the_bridge_sample_is_looked_at(tmp_path: Path) -> None:
    looks, about = looked(PublishedSubject(open_source(bridge_path())))
    assert (len(looks), about.episodes, about.steps) == (25, 25, 250)
    assert [entry.name for entry in about.entries if entry.kind == "image"] == [
        f"observation/image_{n}" for n in (1, 0, 2, 3)
    ]


def test_joints_of_lerobot_have_the_names_that_the_data_gives() -> None:
    looks, about = looked(PublishedSubject(open_source(lerobot_g1_path(), allow_missing_shards=True)))
    assert [one.number for one in looks] == [10, 20]
    assert len(about.names["action",]) == 26
    assert about.rate == 30.0
    assert not about.rewarded
    frames = looks[1].frames["observation", "images", "cam_high"]([100])
    assert frames.shape == (1, 480, 640, 3)


def test_tar_shards_and_new_lerobot_files_are_looked_at(tmp_path: Path) -> None:
    looks, about = looked(PublishedSubject(open_source(write_hub(tmp_path / "hub"))))
    assert [(one.number, one.length) for one in looks] == [(0, 4), (1, 3), (2, 5)]
    assert looks[1].frames["observation", "image"]([2])[0].tolist() == pixels(1002).tolist()
    assert about.form == "tar shards dataset"
    folder = write_lerobot(tmp_path / "lerobot", "v3.0", [6, 4])
    looks, about = looked(PublishedSubject(open_source(folder)))
    assert [(one.number, one.length) for one in looks] == [(0, 6), (1, 4)]
    assert shown_numbers(looks[1].frames["observation", "images", "top"]([0, 3])) == [6, 9]
    assert about.form == "LeRobot dataset"
