"""What is looked for in every episode: gaps, ends, rewards, times, doubles."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from replaybank.datasets.openx.sources.base import Key
from replaybank.datasets.openx.ted import NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED
from replaybank.report.findings import Finding, Places, of
from replaybank.report.look import LARGEST, REWARDS, Entry, Look, name_of

JUMP: Final = 1.5
"""Times the usual time between two steps: more is a jump. Clocks of robots tremble by less."""

TERMINATED: Final = (NEXT_TERMINATED, ("terminated",))
TRUNCATED: Final = (NEXT_TRUNCATED, ("truncated",))
DONE: Final = (NEXT_DONE, ("done",))


def episode(look: Look) -> str:
    """Where an episode is, in words."""
    return f"episode {look.number:,} ({look.where})" if look.where else f"episode {look.number:,}"


class MissingEntries:
    """Entries that some episodes lack.

    Args:
        entries: of a step.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._kinds = {entry.key: entry.kind for entry in entries}
        self._places: dict[Key, Places] = {}
        self._seen = 0

    def see(self, look: Look) -> None:
        """Look at one more episode."""
        self._seen += 1
        for key in look.missing:
            self._places.setdefault(key, Places()).add(episode(look))

    def findings(self) -> Iterator[Finding]:
        """One an entry."""
        for key, places in sorted(self._places.items()):
            camera = self._kinds.get(key) == "image"
            what = "Camera" if camera else "Entry"
            yield Finding(
                "warning",
                f"{what} {name_of(key)} is missing in {of(places.count, self._seen, 'episode')}.",
                'Zeros stand in its place; ("mask", ...) says at which steps.'
                if not camera
                else 'Black frames stand in its place; ("mask", ...) says at which steps.',
                places.count,
                places.named,
            )


class Rewards:
    """Rewards that say nothing.

    Args:
        there: whether the data has rewards at all.
    """

    def __init__(self, there: bool) -> None:
        self._there = there
        self._steps = 0
        self._some = False

    def see(self, look: Look) -> None:
        """Look at one more episode."""
        rewards = look.first_of(REWARDS)
        if rewards is not None:
            self._steps += len(rewards)
            self._some = self._some or bool(np.any(rewards != 0))

    def findings(self) -> Iterator[Finding]:
        """One at most."""
        if not self._there:
            yield Finding(
                "note", "The data has no rewards.", "Imitation needs none; a value has no target here."
            )
        elif self._steps and not self._some:
            yield Finding(
                "warning",
                f"Every reward is zero: {of(self._steps, self._steps, 'step')}.",
                "A value learned from them is zero everywhere. Rewards may be meant to be made from the end "
                "of the episode, or from the instruction.",
                self._steps,
            )


class Ends:
    """Ends that are not marked, or are in the middle.

    Args:
        episodic: whether something says where trajectories end.
    """

    def __init__(self, episodic: bool) -> None:
        self._episodic = episodic
        self._seen = self._marked = self._terminated = 0
        self._inside = Places()

    def see(self, look: Look) -> None:
        """Look at one more episode."""
        terminated, done = look.first_of(TERMINATED), look.first_of(DONE)
        if terminated is None and done is None:
            return
        self._marked += 1
        if not look.ended:
            return
        self._seen += 1
        self._terminated += bool(terminated is not None and np.any(terminated))
        for flags in (terminated, done):
            if flags is not None and np.any(flags[: look.length - 1]):
                self._inside.add(episode(look), int(np.count_nonzero(flags[: look.length - 1])))
                break

    def findings(self) -> Iterator[Finding]:
        """Ends that are never set; ends within episodes."""
        if not self._episodic:
            yield Finding(
                "warning",
                "Nothing says where trajectories end.",
                'Neither "episode" nor ("next", "done") is there, or no end was ever set: slices cannot be '
                "drawn, and returns run on over the ends of episodes. Stretches of steps are shown instead.",
            )
        if self._seen and not self._terminated and self._episodic:
            yield Finding(
                "warning",
                f"No episode is marked as terminated: {of(self._seen, self._seen, 'episode')} ended by "
                "truncation.",
                "A value is bootstrapped beyond the end of every episode, also of those that reached "
                "their goal. Demonstrations often come without the flag.",
                self._seen,
            )
        if self._inside.count:
            yield Finding(
                "warning",
                f"An end is set before the last step in {of(self._inside.count, self._seen, 'episode')}.",
                "What comes behind it belongs to another episode, or the flag is wrong.",
                self._inside.times,
                self._inside.named,
            )


class Finite:
    """NaN and infinite values, and those that are as good as infinite."""

    def __init__(self) -> None:
        self._places: dict[Key, Places] = {}
        self._beyond: set[Key] = set()

    def see(self, look: Look) -> None:
        """Look at one more episode. O(values)."""
        for key, column in look.columns.items():
            if not isinstance(column, np.ndarray) or column.dtype.kind not in "fc":
                continue
            bad = ~np.isfinite(column)
            if column.dtype == np.float64:
                beyond = ~bad & (np.abs(column) > LARGEST)
                if beyond.any():
                    self._beyond.add(key)
                    bad |= beyond
            if bad.any():
                step = int(np.nonzero(bad.reshape(len(column), -1).any(1))[0][0])
                place = f"{episode(look)}, from step {step:,} on"
                self._places.setdefault(key, Places()).add(place, int(bad.sum()))

    def findings(self) -> Iterator[Finding]:
        """One an entry."""
        for key, places in sorted(self._places.items()):
            values = "value is" if places.times == 1 else "values are"
            what = f"NaN, infinite or beyond {LARGEST:g}" if key in self._beyond else "NaN or infinite"
            yield Finding(
                "problem",
                f"{places.times:,} {values} {what} in {name_of(key)}, in "
                f"{places.count:,} episode{'s' if places.count > 1 else ''}.",
                "One of them makes every loss and every weight NaN: leave the steps out, or fill the values.",
                places.times,
                places.named,
            )


class Times:
    """Jumps in timestamps.

    Args:
        keys: entries that say when a step was.
    """

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = keys
        self._gaps: dict[Key, list[tuple[Look, np.ndarray]]] = {key: [] for key in keys}

    def see(self, look: Look) -> None:
        """Look at one more episode."""
        for key in self._keys:
            column = look.numbers(key)
            if column is not None and column.size == len(column) > 1:
                # The episode itself is not kept: frames and columns would stay in memory with it.
                brief = Look(look.number, look.where, look.length, {})
                self._gaps[key].append((brief, np.diff(column.reshape(-1).astype(np.float64))))

    def findings(self) -> Iterator[Finding]:
        """One an entry."""
        for key, gaps in self._gaps.items():
            if not gaps:
                continue
            usual = float(np.median(np.concatenate([gap for _, gap in gaps])))
            places = Places()
            for look, gap in gaps:
                bad = (
                    np.nonzero((gap > JUMP * usual) | (gap <= 0))[0] if usual > 0 else np.nonzero(gap < 0)[0]
                )
                if len(bad):
                    first = int(bad[0])
                    place = f"{episode(look)}, step {first + 1:,}: {gap[first]:+.4g} after the step before"
                    places.add(place, len(bad))
            if places.count:
                yield Finding(
                    "warning",
                    f"{name_of(key)} jumps {places.times:,} time{'s' if places.times > 1 else ''} in "
                    f"{of(places.count, len(gaps), 'episode')}.",
                    f"The usual time from step to step is {usual:.4g}; a jump is more than {JUMP:g} times "
                    "that, or goes backwards or stands still.",
                    places.times,
                    places.named,
                )


class Lengths:
    """Episodes that are hardly any."""

    def __init__(self) -> None:
        self._seen = 0
        self._empty, self._single = Places(), Places()

    def see(self, look: Look) -> None:
        """Look at one more episode."""
        self._seen += 1
        if look.length == 0:
            self._empty.add(episode(look))
        elif look.length == 1 and look.ended:
            self._single.add(episode(look))

    def findings(self) -> Iterator[Finding]:
        """Empty ones, and those of one step."""
        if self._empty.count:
            yield Finding(
                "problem",
                f"{of(self._empty.count, self._seen, 'episode')} have no steps.".capitalize(),
                "They are counted, and nothing can be drawn from them.",
                self._empty.count,
                self._empty.named,
            )
        if self._single.count and self._seen > 1:
            have = "has" if self._single.count == 1 else "have"
            yield Finding(
                "warning",
                f"{of(self._single.count, self._seen, 'episode')} {have} a single step.".capitalize(),
                "No slice of two steps and no change can be learned from them.",
                self._single.count,
                self._single.named,
            )


class Doubles:
    """Episodes that are there twice.

    Args:
        keys: actions and states: what makes an episode.
    """

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = keys
        self._first: dict[bytes, str] = {}
        self._seen = 0
        self._places = Places()

    def see(self, look: Look) -> None:
        """Look at one more episode. O(values)."""
        self._seen += 1
        digest = hashlib.blake2b(digest_size=16)
        parts = 0
        for key in self._keys:
            column = look.numbers(key)
            if column is not None and column.size and column.max() != column.min():
                digest.update(repr((key, column.shape, str(column.dtype))).encode())
                digest.update(np.ascontiguousarray(column).tobytes())
                parts += 1
        if not parts or look.length < 2:  # nothing in it that differs: then it tells nothing
            return
        earlier = self._first.setdefault(digest.digest(), f"episode {look.number:,}")
        if earlier != f"episode {look.number:,}":
            self._places.add(f"{episode(look)} is as {earlier}")

    def findings(self) -> Iterator[Finding]:
        """One at most."""
        if self._places.count:
            are = "is there" if self._places.count == 1 else "are there"
            yield Finding(
                "warning",
                f"{of(self._places.count, self._seen, 'episode')} {are} twice.".capitalize(),
                "Actions and states are the same to the last bit. Split into training and test data, "
                "they make a test say too much.",
                self._places.count,
                self._places.named,
            )


class Instructions:
    """Episodes that are told nothing.

    Args:
        keys: entries of text.
    """

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = keys
        self._seen = 0
        self._empty: dict[Key, Places] = {key: Places() for key in keys}

    def see(self, look: Look) -> None:
        """Look at one more episode."""
        self._seen += 1
        for key in self._keys:
            column = look.columns.get(key)
            if isinstance(column, list) and not any(text.strip() for text in column):
                self._empty[key].add(episode(look))

    def findings(self) -> Iterator[Finding]:
        """One an entry."""
        for key, places in self._empty.items():
            if places.count:
                yield Finding(
                    "warning",
                    f"{name_of(key)} is empty in {of(places.count, self._seen, 'episode')}.",
                    "A policy that is told what to do learns nothing of use from them.",
                    places.count,
                    places.named,
                )
