"""What is wrong with data: a sentence, how often, and where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from replaybank.report.look import Look

Level = Literal["problem", "warning", "note"]
"""Data that cannot be used as they are; what training will suffer from unless it is known; what to know."""

LEVELS: Final[tuple[Level, ...]] = ("problem", "warning", "note")
MOST_PLACES: Final = 50
"""Places named of one finding; the rest is counted."""


@dataclass(frozen=True)
class Finding:
    """Something that is wrong.

    Args:
        level: how bad it is.
        title: what it is, in a sentence.
        text: what it means, or what to do about it.
        count: how often.
        where: places, the first ``MOST_PLACES`` of them.
    """

    level: Level
    title: str
    text: str
    count: int = 1
    where: tuple[str, ...] = ()


class Check(Protocol):
    """Looks for one thing in episode after episode."""

    def see(self, look: Look) -> None:
        """Look at one more."""
        ...

    def findings(self) -> Iterator[Finding]:
        """What was found."""
        ...


class Places:
    """Counts things, and keeps the first places of them. Not thread-safe.

    Example:
        >>> places = Places()
        >>> places.add("episode 3", 2)
        >>> places.count, places.times, places.named
        (1, 2, ('episode 3',))
    """

    def __init__(self) -> None:
        self.count = 0
        """Number of places."""
        self.times = 0
        """Number of things at all of them."""
        self._named: list[str] = []

    def add(self, place: str, times: int = 1) -> None:
        """Count one more place with so many things."""
        self.count += 1
        self.times += times
        if len(self._named) < MOST_PLACES:
            self._named.append(place)

    @property
    def named(self) -> tuple[str, ...]:
        """The first of them."""
        return tuple(self._named)


def of(count: int, total: int, thing: str) -> str:
    """How many of how many.

    >>> of(2, 25, "episode"), of(25, 25, "episode"), of(1, 1, "episode")
    ('2 of 25 episodes', 'all 25 episodes', 'the only episode')
    """
    if count == total:
        return f"all {total:,} {thing}s" if total > 1 else f"the only {thing}"
    return f"{count:,} of {total:,} {thing}s"
