"""The simulated arm: its physics, its pictures and the files it writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replaybank.datasets.openx.sources.rlds import RLDSSource
from replaybank.demo import arm

angle = st.floats(-1.5, 4.5)
elbow = st.floats(0.05, 3.09)


@given(angle, elbow)
def test_inverse_kinematics_undoes_forward_kinematics(first: float, second: float) -> None:
    angles = np.array([first, second])
    np.testing.assert_allclose(arm.inverse(arm.forward(angles)[1]), angles, atol=1e-6)


def test_a_point_out_of_reach_is_approached_with_a_stretched_arm() -> None:
    np.testing.assert_allclose(arm.inverse(np.array([0.0, 5.0])), [np.pi / 2, 0.0], atol=1e-7)


@given(angle, elbow, st.floats(-2, 2), st.floats(-0.9, 0.9), st.floats(0.001, 1.0))
def test_two_short_steps_under_one_command_are_one_long_step(
    first: float, second: float, speed: float, action: float, seconds: float
) -> None:
    angles, speeds, actions = np.array([first, second]), np.array([speed, -speed]), np.full(2, action)
    halfway = arm.advance(angles, speeds, actions, seconds / 2)
    np.testing.assert_allclose(
        arm.advance(*halfway, actions, seconds / 2), arm.advance(angles, speeds, actions, seconds), atol=1e-9
    )


def test_joints_come_to_follow_a_steady_command() -> None:
    speeds = arm.advance(np.zeros(2), np.zeros(2), np.array([0.5, -0.25]), seconds=10 * arm.LAG)[1]
    np.testing.assert_allclose(speeds, [0.5, -0.25], rtol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_every_episode_has_30_to_80_steps_and_ends_on_its_dot(seed: int) -> None:
    for number in range(40):
        reach = arm.simulate(number, seed)
        assert arm.MIN_STEPS <= len(reach) <= arm.MAX_STEPS
        assert reach.reached
        last = arm.forward(reach.angles[-1])[1]
        assert float(np.hypot(*(last - reach.target))) < arm.REACHED


def test_episodes_follow_the_stated_physics() -> None:
    reach = arm.simulate(5)
    angles, speeds = arm.advance(reach.angles[:-1], reach.speeds[:-1], reach.actions[:-1].astype(float))
    # Actions are stored as float32.
    np.testing.assert_allclose(angles, reach.angles[1:], atol=1e-7)
    np.testing.assert_allclose(speeds, reach.speeds[1:], atol=1e-6)
    assert np.abs(reach.actions).max() <= np.float32(arm.MAX_SPEED)
    assert not reach.speeds[0].any()


def test_an_episode_depends_on_its_number_and_the_seed_only() -> None:
    np.testing.assert_array_equal(arm.simulate(7, 3).actions, arm.simulate(7, 3).actions)
    assert arm.simulate(7, 3).target.tolist() != arm.simulate(8, 3).target.tolist()
    assert arm.simulate(7, 3).target.tolist() != arm.simulate(7, 4).target.tolist()


def test_instructions_differ_in_colour_and_phrasing_and_name_the_dot_that_is_seen() -> None:
    reaches = [arm.simulate(number) for number in range(40)]
    assert {reach.colour for reach in reaches} == set(arm.COLOURS)
    phrases = {reach.instruction.replace(reach.colour, "{}") for reach in reaches}
    assert phrases == set(arm.PHRASES)
    for reach in reaches[:6]:
        camera = arm.cameras(reach)["image"]
        column, row = camera.project(np.tile(reach.target, (len(reach), 1)))[0].round().astype(int)
        # At the start the hand is far from the dot; a link may still lie over it.
        dot = arm.render(reach, camera)[0, row, column]
        assert dot.tolist() in ([*arm.COLOURS[reach.colour]], [70, 74, 82], [110, 116, 128])


@pytest.mark.parametrize("name", ["image", "hand_image"])
def test_the_hand_is_drawn_where_kinematics_puts_it(name: str) -> None:
    for number in range(4):
        reach = arm.simulate(number)
        camera = arm.cameras(reach)[name]
        frames = arm.render(reach, camera)
        assert frames.shape == (len(reach), 64, 64, 3)
        assert frames.dtype == np.uint8
        hand = camera.project(arm.forward(reach.angles)[1])
        whiteness = (frames.min(axis=-1) > 235).astype(float)
        rows, columns = np.mgrid[:64, :64]
        found = np.stack([(whiteness * grid).sum((1, 2)) for grid in (columns, rows)], axis=1)
        found /= whiteness.sum((1, 2))[:, None]
        # Nothing else is as white; the centre of its pixels is the hand, to within a pixel.
        np.testing.assert_allclose(found, hand, atol=0.75)


def test_the_hand_camera_keeps_the_hand_in_the_middle() -> None:
    reach = arm.simulate(1)
    hand = arm.cameras(reach)["hand_image"].project(arm.forward(reach.angles)[1])
    np.testing.assert_allclose(hand, 31.5, atol=1e-4)


def test_steps_say_what_they_are() -> None:
    reach = arm.simulate(2)
    steps = arm.as_steps(reach)
    assert set(steps) == set(arm.FIELDS)
    length = len(reach)
    for key, spec in arm.FIELDS.items():
        column = steps[key]
        assert len(column) == length
        if isinstance(column, np.ndarray):
            assert column.dtype == spec.dtype
            assert column.shape[1:] == spec.shape
    last = [False] * (length - 1) + [True]
    assert np.asarray(steps["is_last",]).tolist() == last
    assert np.asarray(steps["is_terminal",]).tolist() == last
    assert np.asarray(steps["is_first",]).tolist() == [True] + [False] * (length - 1)
    assert np.asarray(steps["reward",]).tolist() == [float(flag) for flag in last]
    assert np.asarray(steps["discount",]).tolist() == [1.0 - flag for flag in last]
    state = np.asarray(steps["observation", "state"])
    np.testing.assert_allclose(state[:, :2] ** 2 + state[:, 2:4] ** 2, 1.0, atol=1e-6)
    np.testing.assert_allclose(state[:, 6:], arm.forward(reach.angles)[1], atol=1e-6)


def test_written_episodes_read_back_as_they_were_simulated(tmp_path: Path) -> None:
    folder = arm.write_arm_dataset(tmp_path / "arm" / "1.0.0", episodes=5, seed=9, shards=2)
    source = RLDSSource(folder)
    assert (source.name, source.version) == (arm.NAME, arm.VERSION)
    assert dict(source.fields) == dict(arm.FIELDS)
    assert sum(shard.episodes or 0 for shard in source.shards()) == 5
    episodes = [episode for shard in source.shards() for episode in source.episodes(shard)]
    by_target = {tuple(np.asarray(e.metadata["episode_metadata", "target"]).tolist()): e for e in episodes}
    for number in range(5):
        reach = arm.simulate(number, 9)
        episode = by_target[tuple(reach.target.astype(np.float32).tolist())]
        assert episode.length == len(reach)
        for key, written in arm.as_steps(reach).items():
            read = episode.steps[key]
            if arm.FIELDS[key].kind == "image":
                assert not isinstance(read, (list, np.ndarray))
                assert read.encoded()[0][:2] == b"\xff\xd8"
                error = np.abs(read.decode().astype(float) - np.asarray(written).astype(float)).mean()
                assert error < 6.0  # JPEG's loss, of 255
            elif isinstance(written, list):
                assert read == written
            else:
                np.testing.assert_array_equal(np.asarray(read), written)


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    folders = [arm.write_arm_dataset(tmp_path / name, episodes=2, seed=4, shards=1) for name in "ab"]
    files = [sorted(file.relative_to(folder) for file in folder.iterdir()) for folder in folders]
    assert files[0] == files[1]
    for file in files[0]:
        assert (folders[0] / file).read_bytes() == (folders[1] / file).read_bytes()


@pytest.mark.parametrize(("episodes", "seed"), [(0, 0), (-1, 0), (3, -1)])
def test_impossible_numbers_are_refused_before_anything_is_written(
    tmp_path: Path, episodes: int, seed: int
) -> None:
    with pytest.raises(ValueError, match=f"episodes={episodes}, seed={seed}"):
        arm.write_arm_dataset(tmp_path / "arm", episodes=episodes, seed=seed)
    assert not list(tmp_path.iterdir())


def test_a_hand_may_tremble_more_and_then_moves_less_straight() -> None:
    steady, shaky = (arm.simulate(3, trembling=trembling) for trembling in (0.0, 0.4))
    assert steady.target.tolist() == shaky.target.tolist()
    distance = np.abs(np.diff(steady.angles, axis=0)).sum()
    assert np.abs(np.diff(shaky.angles, axis=0)).sum() > 1.1 * distance
    with pytest.raises(ValueError, match=r"trembling=-1"):
        arm.write_arm_dataset("never", trembling=-1)
