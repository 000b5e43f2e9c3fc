"""An episode as it is looked at, whatever it came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Key: TypeAlias = tuple[str, ...]
"""Path of an entry of a step."""

LONGEST_STEP = 60.0
"""Seconds from step to step beyond which a ``timestamp`` is taken for something else than seconds."""
NUMBERS_SHOWN = 8
"""Numbers of episodes that an error names."""


class Camera(Protocol):
    """The frames of one camera over an episode."""

    depth: bool
    """They are distances, not colours."""
    lossy: bool
    """They come out of a video, in which pixels are not exact anyway."""

    def parts(self) -> Iterator[tuple[int, Frames]]:
        """All frames, some at a time, each part with the number of its first step."""
        ...


Frames: TypeAlias = "npt.NDArray[Any] | Sequence[bytes]"
"""Pixels ``[n, H, W, C]``, RGB; or the JPEG or PNG bytes of ``n`` frames, none where there is no frame."""


@dataclass(frozen=True)
class RecordedEpisode:
    """One episode of a dataset or of a buffer.

    Args:
        name: of what it is from.
        number: which one it is there, from 0.
        length: its steps, T.
        numbers: entries that are numbers, ``[T, ...]`` each.
        texts: entries that are texts, T each.
        cameras: entries that are images.
        names: of the numbers of an entry, such as the joints of a state.
        rate: steps a second, if that is known.
        facts: what else is known of it, by name.
        origin_number: by which number its origin knows it, where it has numbers of its own.
    """

    name: str
    number: int
    length: int
    numbers: Mapping[Key, npt.NDArray[Any]]
    texts: Mapping[Key, Sequence[str]] = field(default_factory=dict)
    cameras: Mapping[Key, Camera] = field(default_factory=dict)
    names: Mapping[Key, Sequence[str]] = field(default_factory=dict)
    rate: float | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    origin_number: int | None = None

    @property
    def seconds(self) -> npt.NDArray[np.float64] | None:
        """When each step was, seconds from the first one: by an entry ``timestamp``, or by the rate."""
        for key, values in self.numbers.items():
            if key[-1] == "timestamp" and values.size == self.length and values.dtype.kind == "f":
                times: npt.NDArray[np.float64] = values.reshape(-1).astype(np.float64)
                steps = np.diff(times)
                if len(steps) and np.isfinite(times).all() and (steps > 0).all():
                    if np.median(steps) > LONGEST_STEP:
                        continue
                    since: npt.NDArray[np.float64] = times - times[0]
                    return since
        return None if self.rate is None else np.arange(self.length) / self.rate


def chosen_cameras(cameras: Sequence[Key], asked: Sequence[str] | None) -> list[Key]:
    """The cameras that are asked for, by path or by the last part of it; None: all.

    Raises:
        ValueError: there is no such camera, or several; those there are are named.

    >>> chosen_cameras([("observation", "top"), ("observation", "wrist")], ["wrist"])
    [('observation', 'wrist')]
    """
    if asked is None:
        return list(cameras)
    chosen = []
    for name in asked:
        found = [key for key in cameras if name in ("/".join(key), key[-1])]
        if len(found) != 1:
            there = ", ".join("/".join(key) for key in cameras) or "none"
            raise ValueError(
                f"{name!r} is {'several cameras' if found else 'no camera'} of this episode; "
                f"there are: {there}"
            )
        chosen += [key for key in found if key not in chosen]
    return chosen


def place_of(where: str, number: int, count: int, origin_numbers: Callable[[], Sequence[int]]) -> int:
    """The place of an episode among those there are, given that, or a number that only its origin has.

    Args:
        where: of which dataset, for the error.
        number: the place, from 0; a number that is none of the places may be one of the origin's.
        count: how many episodes there are.
        origin_numbers: gives the origin's own numbers, by place; none where it has none.

    Raises:
        IndexError: it is neither.
    """
    if 0 <= number < count:
        return number
    own = list(origin_numbers())
    if number not in own:
        raise no_such_episode(where, number, count, own)
    return own.index(number)


def no_such_episode(where: str, number: int, count: int, own: Sequence[int] = ()) -> IndexError:
    """The error for an episode that is not there, whatever its origin calls those that are."""
    if not count:
        return IndexError(f"{where} has no episodes")
    there = f"has {count:,} episodes, 0 to {count - 1}" if count > 1 else "has one episode, 0"
    if list(own) != list(range(len(own))):
        more = f", ... {own[-1]}" if len(own) > NUMBERS_SHOWN else ""
        there += f"; by the numbers of its origin {', '.join(map(str, own[:NUMBERS_SHOWN]))}{more}"
    return IndexError(f"there is no episode {number}: {where} {there}")
