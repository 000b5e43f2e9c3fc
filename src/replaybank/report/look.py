"""What a report looks at: episodes, from whatever they come, in one form.

Three kinds of data are looked at: converted datasets (:mod:`replaybank.report.converted`), published ones
(:mod:`replaybank.report.published`) and checkpoints of buffers (:mod:`replaybank.report.buffers`). Each is a
:class:`Subject`, which gives :class:`Look` after :class:`Look`; nothing behind this module knows which it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from replaybank.datasets.openx.catalog import datasets
from replaybank.datasets.openx.sources.base import Key
from replaybank.datasets.openx.ted import (
    EPISODE,
    IS_INIT,
    NEXT_DONE,
    NEXT_REWARD,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    STEP,
)
from replaybank.datasets.openx.verify import Problem

Frames: TypeAlias = Callable[[Sequence[int]], npt.NDArray[Any]]
"""Gives the frames of a camera at some steps of an episode, ascending: ``[n, H, W, C]``."""
Progress: TypeAlias = Callable[[int, int], None]
"""Is told how many episodes have been looked at, and of how many."""

MOST_ITEM_BYTES: Final = 1 << 14
"""Of a step's entry whose values are looked at. Depth images and point clouds are larger: only listed."""
MOST_STEPS: Final = 20_000
"""Of one episode that are looked at: a stream without ends may be as long as the disk."""
LOOKED_STEPS: Final = 100_000
"""Of all episodes together: quantiles of so many are as sharp as a plot can show them."""

LARGEST: Final = 1e100
"""Of a number whose square, and the sum of many, is still a number: beyond it is as good as infinite."""

MOST_LETTERS: Final = 400
"""Of a text that are shown."""

COUNTED: Final = frozenset({EPISODE, STEP, IS_INIT, ("index",), ("next", "valid")})
"""Entries that only number steps."""
ENDS: Final = frozenset(
    {NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED, ("done",), ("terminated",), ("truncated",)}
)
REWARDS: Final[tuple[Key, ...]] = (NEXT_REWARD, ("reward",))
"""Where a reward may be, the first that there is."""
STATES: Final = frozenset({"observation", "obs", "state", "observations"})
"""What people call what is observed."""
_TIMES: Final = frozenset({"timestamp", "timestamps", "time"})


@dataclass(frozen=True)
class Entry:
    """One entry of a step.

    Args:
        key: where it is.
        kind: ``"tensor"``, ``"text"`` or ``"image"``.
        shape: of one value; of images as they are stored.
        dtype: its name, ``"str"`` for text.
        form: how it is stored, where that is worth a word: ``"JPEG"``.
        looked: whether its values are looked at: not where they are large, or made from other ones.
    """

    key: Key
    kind: Literal["tensor", "text", "image"]
    shape: tuple[int, ...]
    dtype: str
    form: str = ""
    looked: bool = True

    @property
    def name(self) -> str:
        """As people write it."""
        return name_of(self.key)


@dataclass(frozen=True)
class Look:
    """One episode.

    Args:
        number: in the data.
        where: its place, in words.
        length: its steps.
        columns: arrays ``[T, ...]`` and lists of ``T`` strings; ``T`` is ``length``, or ``MOST_STEPS``.
        frames: of each camera.
        missing: entries that other episodes have.
        ended: False where it goes on behind what is there: the newest steps of a buffer.
    """

    number: int
    where: str
    length: int
    columns: Mapping[Key, npt.NDArray[Any] | list[str]]
    frames: Mapping[Key, Frames] = field(default_factory=dict)
    missing: frozenset[Key] = frozenset()
    ended: bool = True

    @property
    def steps(self) -> int:
        """How many of its steps are looked at."""
        return min(self.length, MOST_STEPS)

    def first_of(self, keys: Sequence[Key]) -> npt.NDArray[Any] | None:
        """The values of the first of these entries that there is, flat ``[T]`` if it is one number a step."""
        for key in keys:
            found = self.numbers(key)
            if found is not None and found.size == len(found):
                return found.reshape(-1)
        return None

    def numbers(self, key: Key) -> npt.NDArray[Any] | None:
        """The values of an entry, if it has one of numbers."""
        column = self.columns.get(key)
        return column if isinstance(column, np.ndarray) else None


@dataclass(frozen=True)
class Priorities:
    """What a prioritized sampler keeps of each item.

    Args:
        weights: float64 ``[N]``: an item is drawn in proportion to it.
        alpha: exponent that made weights of priorities.
        beta: exponent of the importance weights.
        eps: added to each priority.
    """

    weights: npt.NDArray[np.float64]
    alpha: float
    beta: float
    eps: float


@dataclass(frozen=True)
class Sampling:
    """What a checkpoint tells of the sampler.

    Args:
        name: of its class.
        facts: names and values.
        priorities: of the items, where it has some.
        drawn: how often each item was drawn, int64 ``[N]``, where that is kept.
        capacity: most often that an item can be drawn, where there is such a limit.
    """

    name: str
    facts: tuple[tuple[str, str], ...] = ()
    priorities: Priorities | None = None
    drawn: npt.NDArray[np.int64] | None = None
    capacity: int | None = None


@dataclass(frozen=True)
class About:
    """What is known of the data as a whole, before or after looking.

    Args:
        name: of the dataset or buffer.
        form: ``"RLDS"``, ``"converted"``, ``"checkpoint of a buffer"`` ...
        path: where it is.
        facts: names and values of anything else.
        entries: of a step.
        lengths: steps of each episode: of all, or of those looked at.
        episodes: in all; None where nobody says.
        steps: in all, likewise.
        bytes: on disk; None behind a URL.
        looked: in words, which part was looked at.
        rate: steps a second, where it is known.
        names: of the numbers of an entry, where the data has names for them.
        notes: anything else a reader should know, the catalog's known defects first.
        problems: what could not be read.
        samplings: of a buffer, or of the buffers of an ensemble.
        episodic: False where nothing says where trajectories end.
        rewarded: False where the data has no rewards.
        expected: episodes that will be looked at, about.
    """

    name: str
    form: str
    path: str
    facts: tuple[tuple[str, str], ...]
    entries: tuple[Entry, ...]
    lengths: npt.NDArray[np.int64]
    episodes: int | None
    steps: int | None
    bytes: int | None
    looked: str
    rate: float | None = None
    names: Mapping[Key, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    samplings: tuple[Sampling, ...] = ()
    episodic: bool = True
    rewarded: bool = True
    expected: int = 0


class Subject(Protocol):
    """Data that a report is about."""

    def looks(self, seed: int, progress: Progress) -> Iterator[Look]:
        """Some episodes, each once; which, the seed says."""
        ...

    def about(self) -> About:
        """What is known once :meth:`looks` has been gone through."""
        ...


@dataclass(frozen=True)
class Roles:
    """Which entries mean what.

    Args:
        action: numbers that the robot was told.
        state: numbers that were observed.
        other: numbers beside them.
        texts: entries of text.
        cameras: entries of images.
        times: entries that say when a step was.
    """

    action: tuple[Key, ...]
    state: tuple[Key, ...]
    other: tuple[Key, ...]
    texts: tuple[Key, ...]
    cameras: tuple[Key, ...]
    times: tuple[Key, ...]

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Roles:
        """By the names that TED has, and those that people give.

        >>> roles = Roles.of([Entry(("action",), "tensor", (7,), "float32"),
        ...                   Entry(("observation", "state"), "tensor", (7,), "float32"),
        ...                   Entry(("next", "done"), "tensor", (1,), "bool")])
        >>> roles.action, roles.state, roles.other
        ((('action',),), (('observation', 'state'),), ())
        """
        numbers = [e.key for e in entries if e.kind == "tensor" and e.looked and e.key not in COUNTED | ENDS]
        numbers = [key for key in numbers if not _is_next(key)]
        times = [key for key in numbers if key and key[-1] in _TIMES]
        numbers = [key for key in numbers if key not in times and key not in REWARDS]
        action = [key for key in numbers if key and key[0] == "action"]
        state = [key for key in numbers if key and key[0] in STATES]
        return cls(
            tuple(action),
            tuple(state),
            tuple(key for key in numbers if key not in action and key not in state),
            tuple(e.key for e in entries if e.kind == "text" and e.looked and not _is_next(e.key)),
            _counted_up([e.key for e in entries if e.kind == "image" and e.looked and not _is_next(e.key)]),
            tuple(times),
        )


def _counted_up(keys: Sequence[Key]) -> tuple[Key, ...]:
    """Keys in their order, but those that differ in a number only together and in the order of that."""
    stems = [tuple(re.sub(r"\d+", "0", part) for part in key) for key in keys]
    places = {stem: stems.index(stem) for stem in stems}
    return tuple(sorted(keys, key=lambda key: (places[stems[keys.index(key)]], key)))


def _is_next(key: Key) -> bool:
    """Whether an entry is the observation of the next step, which is looked at there."""
    return len(key) > 1 and key[0] == "next" and key[1] in STATES


def name_of(key: Key) -> str:
    """A key as people write it.

    >>> name_of(("observation", "state")), name_of(())
    ('observation/state', 'value')
    """
    return "/".join(key) or "value"


def short_name(key: Key) -> str:
    """A key without the word that all observations begin with.

    >>> short_name(("observation", "state")), short_name(("action",))
    ('state', 'action')
    """
    return name_of(key[1:] if len(key) > 1 and key[0] in STATES else key)


def clip(text: str) -> str:
    """Text that is not longer than anybody reads.

    >>> len(clip("a" * 5000))
    400
    """
    return text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 1] + "\N{HORIZONTAL ELLIPSIS}"


def expected_of(lengths: npt.NDArray[np.int64], most: int) -> int:
    """How many of these episodes are looked at, about, if they are drawn at random.

    >>> expected_of(np.full(5000, 10), 2000), expected_of(np.full(5000, 1000), 2000)
    (2000, 100)
    """
    if not len(lengths):
        return 0
    mean = float(np.minimum(lengths, MOST_STEPS).mean())
    return min(len(lengths), most, max(1, int(LOOKED_STEPS / max(mean, 1))))


def without_missing(notes: Iterable[str]) -> tuple[str, ...]:
    """The notes of a summary but those on missing entries, which are looked for in the episodes themselves.

    >>> without_missing(["action is missing in 2 episodes", "known defect: old"])
    ('known defect: old',)
    """
    return tuple(note for note in notes if not re.fullmatch(r".* is missing in \d+ episodes", note))


def hz_of(name: str) -> float | None:
    """Steps a second of a dataset, if the catalog knows."""
    facts = datasets().get(name)
    return None if facts is None else facts.hz


def spread(count: int, most: int) -> npt.NDArray[np.int64]:
    """At most ``most`` numbers of ``range(count)``, evenly spread, the first and the last among them.

    >>> spread(10, 4).tolist(), spread(3, 4).tolist()
    ([0, 3, 6, 9], [0, 1, 2])
    """
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def summable(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same values, but infinite ones for those that are too large to be summed or squared.

    >>> summable(np.array([1.0, -1.5e308])).tolist()
    [1.0, -inf]
    """
    if values.dtype != np.float64 or not (np.abs(values) > LARGEST).any():
        return values
    return np.where(np.abs(values) > LARGEST, np.copysign(np.inf, values), values)


def as_pixels(frames: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Frames of any kind as something to look at: uint8 RGB ``[n, H, W, 3]``.

    Depth and other numbers are spread over the range from black to white, each frame by itself.

    Args:
        frames: ``[n, H, W, C]``.
    """
    if frames.dtype != np.uint8:
        values = np.nan_to_num(frames.astype(np.float64), posinf=0.0, neginf=0.0)
        low = values.min(axis=(1, 2, 3), keepdims=True)
        high = values.max(axis=(1, 2, 3), keepdims=True)
        frames = ((values - low) * (255 / np.maximum(high - low, 1e-12))).astype(np.uint8)
    channels = frames.shape[-1]
    shown = frames[..., :3] if channels >= 3 else np.repeat(frames[..., :1], 3, axis=-1)
    return np.ascontiguousarray(shown)
