"""The episodes that can be played: their frames, and the numbers and texts of their steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from replaybank.datasets.openx.sources.base import Key
from replaybank.errors import DataFormatError
from replaybank.report.checks import TERMINATED, TRUNCATED
from replaybank.report.frames import Sheet, Strip, first_rung, fit, strip_of
from replaybank.report.gather import labels_of
from replaybank.report.look import REWARDS, Look, Roles, clip, short_name, spread

MOST_STEPS: Final = 600
"""Of a played episode: a slider on a phone has fewer places."""
MOST_VALUES: Final = 16
"""Numbers of an action that are shown at every step."""
MOST_SCALE: Final = 6
"""Times its own size at which a frame is shown."""
FILM: Final = 8
"""Frames of the strip below a slider."""
MOST_CAMERAS: Final = 8


@dataclass(frozen=True)
class View:
    """A camera of a played episode.

    Args:
        key: of the camera.
        css: class of its sheet.
        sheet: its frames.
    """

    key: Key
    css: str
    sheet: Sheet

    @property
    def name(self) -> str:
        """Of the camera, for people."""
        return short_name(self.key)

    def style(self, frame: int) -> str:
        """What shows one frame of the sheet."""
        x, y = self.sheet.position(frame)
        return f"aspect-ratio:{self.sheet.width}/{self.sheet.height};background-position:{x:.5%} {y:.5%}"

    @property
    def most(self) -> str:
        """How large a frame is shown at most: small ones do not gain by it."""
        return f"max-width:{MOST_SCALE * self.sheet.width}px"

    @property
    def ends(self) -> list[tuple[str, int, int]]:
        """First, middle and last frame: what it is called, its number and its step."""
        last = len(self.sheet.steps) - 1
        places = {0: "first", last // 2: "middle", last: "last"}
        return [(places[k], k, self.sheet.steps[k]) for k in sorted(places)]

    @property
    def film(self) -> list[tuple[int, int]]:
        """Some frames, evenly spread: their numbers and steps."""
        return [(k, self.sheet.steps[k]) for k in spread(len(self.sheet.steps), FILM).tolist()]


@dataclass(frozen=True)
class Player:
    """An episode that can be played.

    Args:
        number: in the data.
        where: its place.
        length: steps.
        end: how it ended, in a word.
        total: sum of its rewards; None where there are none.
        texts: what it was told, at first.
        views: of its cameras.
        data: steps, numbers and frames for the script.
        hidden: numbers of the action that are not shown.
    """

    number: int
    where: str
    length: int
    end: str
    total: float | None
    texts: tuple[str, ...]
    views: tuple[View, ...]
    data: Mapping[str, Any]
    hidden: int


class Cast:
    """Strips of the episodes that are to be shown, until it is known how much room there is.

    Not thread-safe.

    Args:
        looks: the episodes.
        roles: of the entries.
        names: of the numbers of entries.
        values: of all episodes, for the range of each number.
        rewarded: whether the data has rewards.
        most: bytes of the page at most.
        progress: called after each camera of each episode.
    """

    def __init__(
        self,
        looks: Sequence[Look],
        roles: Roles,
        names: Mapping[Key, Sequence[str]],
        values: Mapping[Key, npt.NDArray[Any]],
        rewarded: bool,
        most: int,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._rewards = REWARDS if rewarded else ()
        self._looks, self._roles = looks, roles
        self._names, self._values = names, values
        self._strips: dict[tuple[int, Key], Strip] = {}
        rung = first_rung(len(looks) * min(len(roles.cameras), MOST_CAMERAS), most)
        for place, look in enumerate(looks):
            for key in roles.cameras[:MOST_CAMERAS]:
                progress()
                if key in look.frames and look.steps:
                    try:
                        self._strips[place, key] = strip_of(look, look.frames[key], rung)
                    except DataFormatError:
                        continue  # the check of cameras tells

    def sheets(self, room: int) -> tuple[dict[tuple[int, Key], Sheet], str]:
        """The frames within so many bytes, and in words how they were made to fit."""
        if not self._strips:
            return {}, ""
        made = fit(list(self._strips.values()), room)
        if made is None:
            return {}, "there is no room for frames within --max-size"
        sheets, rung = made
        words = f"at most {rung.frames} frames an episode, of at most {rung.side} pixels"
        return dict(zip(self._strips, sheets, strict=True)), words

    def players(self, sheets: Mapping[tuple[int, Key], Sheet]) -> list[Player]:
        """The episodes, with the frames for which there is room."""
        css = {place: f"s{number}" for number, place in enumerate(sheets)}
        return [
            self._player(
                look,
                tuple(
                    View(key, css[place, key], sheets[place, key])
                    for key in self._roles.cameras
                    if (place, key) in sheets
                ),
            )
            for place, look in enumerate(self._looks)
        ]

    def _player(self, look: Look, views: tuple[View, ...]) -> Player:
        steps = spread(look.steps, MOST_STEPS).tolist()
        numbers: list[dict[str, Any]] = []
        hidden = 0
        for key in self._roles.action:
            column = look.numbers(key)
            if column is None or key not in self._values:
                continue
            of_all = self._values[key]
            flat = column.reshape(len(column), -1)[:, : of_all.shape[1]]
            for n, label in enumerate(labels_of(key, flat.shape[1], self._names)):
                if len(numbers) == MOST_VALUES:
                    hidden += 1
                    continue
                low, high = _range(of_all[:, n])
                values = [_short(value) for value in flat[steps, n].tolist()]
                numbers.append({"name": label, "low": low, "high": high, "values": values})
        reward = look.first_of(self._rewards)
        texts = {key: look.columns.get(key) for key in self._roles.texts}
        told = [_changes(column, steps) for column in texts.values() if isinstance(column, list)]
        data = {
            "steps": steps,
            "length": look.length,
            "numbers": numbers,
            "reward": None if reward is None else [_short(value) for value in reward[steps].tolist()],
            "texts": told,
            "views": [
                {
                    "steps": view.sheet.steps,
                    "places": [
                        [round(100 * p, 3) for p in view.sheet.position(k)]
                        for k in range(len(view.sheet.steps))
                    ],
                }
                for view in views
            ],
        }
        return Player(
            look.number,
            look.where,
            look.length,
            _end(look),
            None if reward is None else float(reward.astype(np.float64).sum()),
            tuple(changes[0][1] for changes in told),
            views,
            data,
            hidden,
        )


def _end(look: Look) -> str:
    if not look.ended:
        return "goes on"
    terminated, truncated = look.first_of(TERMINATED), look.first_of(TRUNCATED)
    if terminated is not None and terminated.any():
        return "terminated"
    return "truncated" if truncated is not None and truncated.any() else ""


def _changes(column: Sequence[str], steps: Sequence[int]) -> list[list[Any]]:
    """From which step on a text is which."""
    found: list[list[Any]] = []
    for place, step in enumerate(steps):
        if not found or found[-1][1] != clip(column[step]):
            found.append([place, clip(column[step])])
    return found


def _range(values: npt.NDArray[Any]) -> tuple[float, float]:
    good = values[np.isfinite(values)]
    if not len(good):
        return 0.0, 1.0
    low, high = float(good.min()), float(good.max())
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _short(value: Any) -> float | int | None:
    """A number of few digits, or nothing: JSON has no NaN."""
    if isinstance(value, (bool, int)):
        return int(value)
    return float(f"{value:.4g}") if math.isfinite(value) else None
