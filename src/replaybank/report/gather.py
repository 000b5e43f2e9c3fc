"""One walk over the episodes: values, texts, rewards and ends are collected, and every check sees each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from replaybank.datasets.openx.sources.base import Key
from replaybank.report.check_cameras import EPISODES, Cameras
from replaybank.report.check_numbers import number_findings, priority_findings
from replaybank.report.checks import (
    TERMINATED,
    TRUNCATED,
    Doubles,
    Ends,
    Finite,
    Instructions,
    Lengths,
    MissingEntries,
    Rewards,
    Times,
)
from replaybank.report.findings import LEVELS, MOST_PLACES, Check, Finding
from replaybank.report.look import REWARDS, About, Look, Roles, short_name, summable

MOST_NUMBERS: Final = 64
"""Of an entry whose distribution is shown: joints fit, embeddings do not."""
MOST_VALUES: Final = 1 << 24
"""Kept of one entry, for its quantiles."""
KNOWN: Final = "known defect: "
"""How a note begins that tells what the catalog knows."""


@dataclass
class Gathered:
    """What the episodes gave. Not thread-safe.

    Args:
        values: ``[steps, numbers]`` of each entry of few enough numbers.
        left_out: entries that have more.
        texts: in how many episodes each text is.
        rewards: of all steps.
        returns: their sums, an episode each.
        ends: how many episodes terminated, were truncated, and neither.
        lengths: of the episodes looked at.
        shown: the episodes to be shown.
        findings: what is wrong, the worst first.
    """

    values: dict[Key, npt.NDArray[Any]] = field(default_factory=dict)
    left_out: list[Key] = field(default_factory=list)
    texts: dict[Key, Counter[str]] = field(default_factory=dict)
    rewards: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    returns: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    ends: dict[str, int] = field(default_factory=lambda: {"terminated": 0, "truncated": 0, "unmarked": 0})
    lengths: list[int] = field(default_factory=list)
    shown: list[Look] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


class Shown:
    """Some of the episodes, each with the same chance, whatever their number. Not thread-safe.

    Args:
        count: how many at most.
        seed: which.
    """

    def __init__(self, count: int, seed: int) -> None:
        self._count = count
        self._rng = np.random.default_rng([seed, 1])
        self._kept: list[Look] = []
        self._seen = 0

    def see(self, look: Look) -> None:
        """Take one more into account (Vitter's algorithm R)."""
        self._seen += 1
        if len(self._kept) < self._count:
            self._kept.append(look)
        elif self._count:
            place = int(self._rng.integers(self._seen))
            if place < self._count:
                self._kept[place] = look

    @property
    def looks(self) -> list[Look]:
        """Those, in the order of the data."""
        return sorted(self._kept, key=lambda look: look.number)


def gather(
    looks: Iterable[Look], roles: Roles, about: About, *, episodes: int, seed: int, of: int
) -> Gathered:
    """Go through episodes once. O(values); memory: the values of entries with few numbers.

    Args:
        looks: the episodes.
        roles: of the entries.
        about: what is known of the data before.
        episodes: how many to keep for showing.
        seed: which ones.
        of: how many there will be, about.
    """
    found = Gathered(texts={key: Counter() for key in roles.texts})
    shown = Shown(episodes, seed)
    checks: list[Check] = [
        Finite(),
        Cameras(roles.cameras, every=of // EPISODES),
        MissingEntries(about.entries),
        Rewards(about.rewarded),
        Ends(about.episodic),
        Times(roles.times),
        Lengths(),
        Instructions(roles.texts),
    ]
    if about.episodic:
        checks.append(Doubles((*roles.action, *roles.state)))
    numbers = (*roles.action, *roles.state, *roles.other)
    values: dict[Key, list[npt.NDArray[Any]]] = {key: [] for key in numbers}
    room = dict.fromkeys(numbers, MOST_VALUES)
    large: set[Key] = set()
    rewards: list[npt.NDArray[np.float64]] = []
    returns: list[float] = []
    for look in looks:
        shown.see(look)
        for check in checks:
            check.see(look)
        found.lengths.append(look.length)
        for key in numbers:
            column = look.numbers(key)
            if column is None or not column.size:
                continue
            if column.size > MOST_NUMBERS * len(column):
                large.add(key)
            elif room[key] >= column.size:
                room[key] -= column.size
                values[key].append(summable(column.reshape(len(column), -1)).copy())
        for key in roles.texts:
            texts = look.columns.get(key)
            if isinstance(texts, list):
                found.texts[key].update(set(texts))
        _note_ends(look, found.ends)
        reward = look.first_of(REWARDS if about.rewarded else ())
        if reward is not None:
            rewards.append(summable(reward.astype(np.float64)))
            returns.append(float(rewards[-1].sum()))
    found.values = {key: _together(parts) for key, parts in values.items() if parts and key not in large}
    found.left_out = [key for key in numbers if key in large]
    if rewards:
        found.rewards, found.returns = np.concatenate(rewards), np.array(returns)
    found.shown = shown.looks
    found.findings = [finding for check in checks for finding in check.findings()]
    for keys, action in ((roles.action, True), (roles.state, False)):
        for key in keys:
            if key in found.values:
                labels = labels_of(key, found.values[key].shape[1], about.names)
                found.findings += number_findings(labels, found.values[key], action=action)
    return found


def _together(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """One under the other; lists that are longer in some episodes lose what others have not."""
    width = min(part.shape[1] for part in parts)
    return np.concatenate([part[:, :width] for part in parts])


def add_findings(found: Gathered, about: About) -> None:
    """Put what the data says of itself beside what was found in it, and sort: the worst first."""
    if about.problems:
        places = tuple(f"{problem.where}: {problem.what}" for problem in about.problems)
        count = len(places)
        found.findings.append(
            Finding(
                "problem",
                f"{count:,} record{'s' if count > 1 else ''} cannot be read.",
                "They are left out of this page; `replaybank verify` reads everything.",
                count,
                places[:MOST_PLACES],
            )
        )
    for sampling in about.samplings:
        found.findings += priority_findings(sampling)
    for note in about.notes:
        known = note.startswith(KNOWN)
        title, _, rest = note.removeprefix(KNOWN).partition(": ")
        text = "The catalog of datasets knows this of the data as they were published." if known else ""
        if rest:
            text = f"{_sentence(rest)} {text}".rstrip()
        found.findings.append(Finding("warning" if known else "note", _sentence(title), text))
    found.findings.sort(key=lambda finding: LEVELS.index(finding.level))


def _sentence(text: str) -> str:
    """With a capital letter, unless it begins with the name of an entry, and a full stop.

    >>> _sentence("outdated copy"), _sentence("is_last is never set")
    ('Outdated copy.', 'is_last is never set.')
    """
    name = re.match(r"\w*[_./]\w", text)
    start = text if name else text[:1].upper() + text[1:]
    return start if start.endswith(".") else f"{start}."


def labels_of(key: Key, count: int, names: Mapping[Key, Sequence[str]]) -> list[str]:
    """A name for each number of an entry: the data's own where it has as many.

    >>> labels_of(("observation", "state"), 2, {}), labels_of(("action",), 2, {("action",): ("x", "y")})
    (['state[0]', 'state[1]'], ['x', 'y'])
    """
    own = names.get(key, ())
    if len(own) == count:
        return list(own)
    name = short_name(key)
    return [f"{name}[{n}]" for n in range(count)] if count > 1 else [name]


def _note_ends(look: Look, ends: dict[str, int]) -> None:
    """How an episode ended; one that goes on counts nowhere."""
    if not look.ended:
        return
    terminated, truncated = look.first_of(TERMINATED), look.first_of(TRUNCATED)
    if terminated is not None and terminated.any():
        ends["terminated"] += 1
    elif truncated is not None and truncated.any():
        ends["truncated"] += 1
    else:
        ends["unmarked"] += 1
