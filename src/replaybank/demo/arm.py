"""A two-link arm that reaches coloured dots: a small robot dataset that needs no download."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from replaybank.datasets.openx.sources.base import FieldSpec, Key
from replaybank.demo.drawing import Camera, Canvas, Colour

NAME = "two_link_arm"
VERSION = "1.0.0"
DESCRIPTION = "A simulated planar arm with two joints moves its hand onto a coloured dot. Made by replaybank."

LINKS = (0.5, 0.45)
"""Lengths of the upper arm and the forearm, metres."""
RATE = 20.0
"""Steps a second."""
LAG = 0.1
"""Time constant with which a joint's speed follows the commanded one, seconds."""
MAX_SPEED = 0.9
"""Largest commanded joint speed, radians a second."""
SIZE = 64
"""Width and height of the images, pixels."""
MIN_STEPS, MAX_STEPS = 30, 80
REACHED = 0.03
"""The hand is on the dot when it is nearer than this, metres."""
HOLD = 5
"""Steps for which the hand stays on the dot before an episode ends."""
DOT_RADIUS = 0.075
"""Of the dots, metres."""
TREMBLING = 0.05
"""Standard deviation of what an expert's hand trembles, radians a second."""

_GAIN = 4.0  # commanded speed a radian of error, 1/s
# Joint ranges stay clear of the stretched and the folded elbow, where the inverse kinematics is steep, and
# of a turn of the shoulder beyond half a circle, so that angles never wrap.
_LOW, _HIGH = np.array([-0.3, 0.5]), np.array([2.4, 2.4])
# Joint distance from start to goal: shorter ones would end before MIN_STEPS, longer ones after MAX_STEPS.
_NEAR, _FAR = 1.0, 2.6
_HAND_RADIUS, _LINK_RADIUS = 0.045, 0.035

COLOURS: MappingProxyType[str, Colour] = MappingProxyType(
    {
        "red": (214, 40, 40),
        "green": (30, 150, 60),
        "blue": (40, 80, 210),
        "yellow": (240, 200, 20),
        "purple": (140, 50, 170),
        "orange": (245, 130, 20),
    }
)
PHRASES = (
    "reach the {} dot",
    "move the hand to the {} dot",
    "touch the {} dot",
    "go to the {} target",
    "put the tip of the arm on the {} dot",
)
HAND_COLOUR: Colour = (250, 250, 250)
_LINK_COLOURS: tuple[Colour, Colour] = ((70, 74, 82), (110, 116, 128))

FIELDS: MappingProxyType[Key, FieldSpec] = MappingProxyType(
    {
        ("observation", "image"): FieldSpec("image", (SIZE, SIZE, 3), np.dtype(np.uint8)),
        ("observation", "hand_image"): FieldSpec("image", (SIZE, SIZE, 3), np.dtype(np.uint8)),
        ("observation", "state"): FieldSpec("tensor", (8,), np.dtype(np.float32)),
        ("action",): FieldSpec("tensor", (2,), np.dtype(np.float32)),
        ("reward",): FieldSpec("tensor", (), np.dtype(np.float32)),
        ("discount",): FieldSpec("tensor", (), np.dtype(np.float32)),
        ("is_first",): FieldSpec("tensor", (), np.dtype(np.bool_)),
        ("is_last",): FieldSpec("tensor", (), np.dtype(np.bool_)),
        ("is_terminal",): FieldSpec("tensor", (), np.dtype(np.bool_)),
        ("language_instruction",): FieldSpec("text", (), None),
    }
)
METADATA_FIELDS: MappingProxyType[Key, FieldSpec] = MappingProxyType(
    {
        ("episode_metadata", "target"): FieldSpec("tensor", (2,), np.dtype(np.float32)),
        ("episode_metadata", "colour"): FieldSpec("text", (), None),
    }
)

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Reach:
    """One episode of the arm.

    Args:
        angles: joint angles, radians, ``[T, 2]``; the elbow's is relative to the upper arm.
        speeds: joint speeds, radians a second, ``[T, 2]``.
        actions: commanded joint speeds, float32 ``[T, 2]``.
        target: where the dot is, metres, ``[2]``.
        colour: name of the dot's colour.
        instruction: what the arm is told.
        reached: whether the hand came to rest on the dot.
    """

    angles: Array
    speeds: Array
    actions: npt.NDArray[np.float32]
    target: Array
    colour: str
    instruction: str
    reached: bool

    def __len__(self) -> int:
        return len(self.actions)


def forward(angles: Array) -> tuple[Array, Array]:
    """Positions of the elbow and the hand, metres.

    Args:
        angles: joint angles, radians, ``[..., 2]``.

    Returns:
        Two arrays ``[..., 2]``.

    Example:
        >>> elbow, hand = forward(np.array([0.0, np.pi / 2]))
        >>> elbow.round(6).tolist(), hand.round(6).tolist()
        ([0.5, 0.0], [0.5, 0.45])
    """
    shoulder, wrist = angles[..., 0], angles[..., 0] + angles[..., 1]
    elbow = LINKS[0] * np.stack([np.cos(shoulder), np.sin(shoulder)], axis=-1)
    hand = elbow + LINKS[1] * np.stack([np.cos(wrist), np.sin(wrist)], axis=-1)
    return elbow, hand


def inverse(hand: Array) -> Array:
    """Joint angles that bring the hand to a point, elbow bent to the left; the nearest ones out of reach.

    Args:
        hand: metres, ``[..., 2]``.

    Returns:
        Radians, ``[..., 2]``, the elbow's in [0, pi], the shoulder's in [-pi / 2, 3 pi / 2).

    Example:
        >>> inverse(np.array([0.5, 0.45])).round(6).tolist()
        [0.0, 1.570796]
    """
    first, second = LINKS
    square = (hand**2).sum(axis=-1)
    elbow = np.arccos(np.clip((square - first**2 - second**2) / (2 * first * second), -1.0, 1.0))
    inner = np.arctan2(second * np.sin(elbow), first + second * np.cos(elbow))
    shoulder = np.arctan2(hand[..., 1], hand[..., 0]) - inner
    # The joint's own range lies within one turn from a quarter turn to the right on.
    shoulder = (shoulder + np.pi / 2) % (2 * np.pi) - np.pi / 2
    return np.stack([shoulder, elbow], axis=-1)


def advance(angles: Array, speeds: Array, action: Array, seconds: float = 1 / RATE) -> tuple[Array, Array]:
    """The joints after some time under one command: speeds follow it with a first-order lag, exactly.

    Args:
        angles: radians, ``[..., 2]``.
        speeds: radians a second, ``[..., 2]``.
        action: commanded speeds, radians a second, ``[..., 2]``.
        seconds: how long.

    Returns:
        Angles and speeds then.
    """
    left = np.exp(-seconds / LAG)
    angles = angles + action * seconds + (speeds - action) * LAG * (1 - left)
    return angles, action + (speeds - action) * left


def expert(angles: Array, target: Array) -> Array:
    """The command that moves both joints straight to the target and slows down near it.

    Args:
        angles: radians, ``[2]``.
        target: metres, ``[2]``.

    Returns:
        Joint speeds, radians a second, ``[2]``, none above ``MAX_SPEED``.
    """
    command = _GAIN * (inverse(target) - angles)
    largest = float(np.abs(command).max())
    return command if largest <= MAX_SPEED else command * (MAX_SPEED / largest)


def simulate(episode: int, seed: int = 0, trembling: float = TREMBLING) -> Reach:
    """Run one episode; the same numbers give the same episode, whatever others there are. O(T).

    Args:
        episode: its number, 0 or more.
        seed: seed of the dataset, 0 or more.
        trembling: standard deviation of what the expert's hand trembles, radians a second.
    """
    rng = np.random.default_rng([seed, episode])
    colour = list(COLOURS)[int(rng.integers(len(COLOURS)))]
    instruction = PHRASES[int(rng.integers(len(PHRASES)))].format(colour)
    while True:
        start, goal = rng.uniform(_LOW, _HIGH), rng.uniform(_LOW, _HIGH)
        if _NEAR <= np.abs(goal - start).max() <= _FAR:
            break
    target = forward(goal)[1]
    angles, speeds = start, np.zeros(2)
    rows: list[tuple[Array, Array, Array]] = []
    held = 0
    while len(rows) < MAX_STEPS and not (held > HOLD and len(rows) >= MIN_STEPS):
        action = np.clip(expert(angles, target) + rng.normal(0.0, trembling, 2), -MAX_SPEED, MAX_SPEED)
        rows.append((angles, speeds, action))
        held = held + 1 if float(np.hypot(*(forward(angles)[1] - target))) < REACHED else 0
        angles, speeds = advance(angles, speeds, action)
    columns = [np.stack(column) for column in zip(*rows, strict=True)]
    return Reach(
        angles=columns[0],
        speeds=columns[1],
        actions=columns[2].astype(np.float32),
        target=target,
        colour=colour,
        instruction=instruction,
        reached=held > HOLD,
    )


def cameras(reach: Reach) -> dict[str, Camera]:
    """The two views: ``image`` sees the whole reach of the arm, ``hand_image`` rides on the forearm."""
    hand = forward(reach.angles)[1]
    steps = len(reach)
    return {
        # The arm works in front of its shoulder, so the view's middle lies in front of it too.
        "image": Camera(np.tile([0.0, 0.25], (steps, 1)), np.full(steps, np.pi / 2), 2.0, SIZE),
        "hand_image": Camera(hand, reach.angles.sum(axis=1), 1.2, SIZE),
    }


def render(reach: Reach, camera: Camera) -> npt.NDArray[np.uint8]:
    """Frames of an episode, uint8 ``[T, SIZE, SIZE, 3]``, RGB. O(T SIZE^2)."""
    steps = len(reach)
    floor = np.sin(camera.unproject() * (2 * np.pi / 0.5)).prod(axis=-1, keepdims=True)
    canvas = Canvas(np.array([205.0, 200.0, 190.0]) + 14.0 * floor, steps, camera.size)
    elbow, hand = (camera.project(points) for points in forward(reach.angles))
    shoulder = camera.project(np.zeros((steps, 2)))
    dot = camera.project(np.tile(reach.target, (steps, 1)))
    canvas.disc(dot, DOT_RADIUS * camera.scale, COLOURS[reach.colour])
    canvas.line(shoulder, elbow, _LINK_RADIUS * camera.scale, _LINK_COLOURS[0])
    canvas.line(elbow, hand, _LINK_RADIUS * camera.scale, _LINK_COLOURS[1])
    for joint in (shoulder, elbow):
        canvas.disc(joint, _HAND_RADIUS * camera.scale, _LINK_COLOURS[0])
    canvas.disc(hand, _HAND_RADIUS * camera.scale, HAND_COLOUR)
    return canvas.pixels()


def as_steps(reach: Reach) -> dict[Key, npt.NDArray[np.generic] | list[str]]:
    """The fields of an episode's steps, as ``FIELDS`` declares them; images as uint8 frames."""
    steps = len(reach)
    last = np.arange(steps) == steps - 1
    hand = forward(reach.angles)[1]
    state = [np.sin(reach.angles), np.cos(reach.angles), reach.speeds, hand]
    frames = {name: render(reach, camera) for name, camera in cameras(reach).items()}
    return {
        ("observation", "image"): frames["image"],
        ("observation", "hand_image"): frames["hand_image"],
        ("observation", "state"): np.concatenate(state, axis=1).astype(np.float32),
        ("action",): reach.actions,
        ("reward",): (last & reach.reached).astype(np.float32),
        ("discount",): 1.0 - (last & reach.reached).astype(np.float32),
        ("is_first",): np.arange(steps) == 0,
        ("is_last",): last,
        ("is_terminal",): last & reach.reached,
        ("language_instruction",): [reach.instruction] * steps,
    }


def write_arm_dataset(
    path: str | PathLike[str],
    *,
    episodes: int = 40,
    seed: int = 0,
    shards: int = 4,
    trembling: float = TREMBLING,
) -> Path:
    """Write a dataset of the arm as RLDS files: TFRecords of JPEG frames and their two JSON files.

    Args:
        path: folder to write to.
        episodes: how many, at least 1.
        seed: 0 or more; the same gives the same episodes.
        shards: number of files over which they are spread, at most one an episode.
        trembling: standard deviation of what the expert's hand trembles, radians a second.

    Returns:
        The folder, to be given to :class:`RLDSSource`.

    Raises:
        ValueError: a number is out of range.
    """
    if episodes < 1 or seed < 0 or not 0 <= trembling < np.inf:
        msg = (
            f"episodes={episodes}, seed={seed}, trembling={trembling}: at least 1 episode is needed, and a "
            "seed and a trembling of 0 or more"
        )
        raise ValueError(msg)
    from replaybank.datasets.openx.sources.rlds_writer import RLDSWriter

    writer = RLDSWriter(
        path,
        NAME,
        version=VERSION,
        fields=FIELDS,
        metadata_fields=METADATA_FIELDS,
        shards=min(shards, episodes),
        image_format="jpeg",
        description=DESCRIPTION,
    )
    with writer:
        for number in range(episodes):
            reach = simulate(number, seed, trembling)
            metadata: dict[Key, object] = {
                ("episode_metadata", "target"): reach.target.astype(np.float32),
                ("episode_metadata", "colour"): reach.colour,
            }
            writer.write(as_steps(reach), metadata)
    return Path(path)
