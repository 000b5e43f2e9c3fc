"""Cameras that are black, frozen or broken are told, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from replaybank.errors import DataFormatError
from replaybank.report.check_cameras import BLACK, EPISODES, Cameras
from replaybank.report.look import Look
from report_looks import CAMERA, found, look

MOVING = np.random.default_rng(0).integers(0, 255, (4, 8, 8, 3)).astype(np.uint8)
BLACKISH = np.full((4, 8, 8, 3), BLACK, np.uint8)
FROZEN = np.repeat(MOVING[:1], 4, axis=0)


def test_a_camera_that_shows_something_is_not_told() -> None:
    assert found(Cameras([CAMERA]), [look(n, image=MOVING) for n in range(3)]) == []


@pytest.mark.parametrize(("black", "level"), [((1,), "warning"), ((0, 1, 2), "problem")])
def test_a_black_camera_is_a_problem_if_it_is_always_black(black: tuple[int, ...], level: str) -> None:
    looks = [look(n, image=BLACKISH if n in black else MOVING) for n in range(3)]
    (finding,) = found(Cameras([CAMERA]), looks)
    how_many = "all 3 episodes" if len(black) == 3 else "1 of 3 episodes"
    assert finding.title == f"Camera observation/image is black in {how_many} that were looked at."
    assert (finding.level, finding.count) == (level, len(black))
    assert finding.where == tuple(f"episode {n} (place {n})" for n in black)


def test_a_frame_that_is_hardly_brighter_is_not_black() -> None:
    bright = BLACKISH.copy()
    bright[2, 3, 3, 0] = BLACK + 1  # the middle frame of four is the third
    assert found(Cameras([CAMERA]), [look(0, image=bright)]) == []


def test_a_frozen_camera_is_told() -> None:
    (finding,) = found(Cameras([CAMERA]), [look(0, image=MOVING), look(1, image=FROZEN)])
    assert finding.title == (
        "Camera observation/image does not change in 1 of 2 episodes that were looked at."
    )
    assert finding.where == ("episode 1 (place 1)",)


def test_an_episode_of_two_steps_is_too_short_to_be_frozen() -> None:
    assert found(Cameras([CAMERA]), [look(0, 2, image=FROZEN[:2])]) == []


def test_frames_that_cannot_be_decoded_are_told() -> None:
    def broken(steps: Sequence[int]) -> npt.NDArray[Any]:
        raise DataFormatError("frame 0: not a JPEG")

    bad = Look(0, "", 4, {}, {CAMERA: broken})
    (finding,) = found(Cameras([CAMERA]), [bad, look(1, image=MOVING)])
    assert finding.title == "Camera observation/image cannot be decoded in 1 of 2 episodes."
    assert (finding.level, finding.where) == ("problem", ("frame 0: not a JPEG",))


def test_cameras_are_looked_at_in_few_of_many_episodes() -> None:
    asked: list[int] = []

    def of(number: int) -> Look:
        def frames(steps: Sequence[int]) -> npt.NDArray[Any]:
            asked.append(number)
            return BLACKISH[list(steps)]

        return Look(number, "", 4, {}, {CAMERA: frames})

    (finding,) = found(Cameras([CAMERA], every=100), [of(n) for n in range(100 * EPISODES + 50)])
    assert asked == list(range(0, 100 * EPISODES, 100))
    assert finding.count == EPISODES
