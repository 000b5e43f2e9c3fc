"""Reading on behind records that cannot be read, and keeping count of them."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from replaybank.datasets.openx.files import Skipped
from replaybank.datasets.openx.sources.base import Episode, EpisodeSource, Shard
from replaybank.errors import CorruptRecordError, DataFormatError

OnError: TypeAlias = Literal["raise", "skip"]
"""What to do about a record that cannot be read."""


def check_on_error(on_error: str) -> bool:
    """Whether to go on behind records that cannot be read.

    Raises:
        ValueError: it is neither ``"raise"`` nor ``"skip"``.
    """
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error must be 'raise' or 'skip', got {on_error!r}")
    return on_error == "skip"


@dataclass(frozen=True)
class LeftOut:
    """A record that could not be read, in place of its episode.

    Args:
        reason: what is wrong with it.
    """

    reason: str


def records(
    source: EpisodeSource, shard: Shard, start: int = 0, *, skip: bool
) -> Generator[tuple[int, Episode | LeftOut], None, None]:
    """Episodes of a shard with the numbers of their records, from ``start`` on.

    With ``skip``, a record that fails comes as :class:`LeftOut`, and reading goes on behind it; where the way
    to what lies behind is lost, the first record that cannot be reached is the last to come, unless the shard
    is said to end before it.

    Raises:
        DataFormatError: a record cannot be read, and is not to be skipped.
        IndexError: the shard has fewer than ``start`` records.
    """
    record = start
    skipped = False
    while True:
        episodes = source.episodes(shard, record)
        try:
            for episode in episodes:
                yield record, episode
                record += 1
            return
        except DataFormatError as error:
            if not skip:
                raise
            failed = error.record if isinstance(error, CorruptRecordError) else record
            if failed < record:
                # The reader cannot even step over an earlier record: its length is gone, and with it the
                # way to all records behind it, where there are any.
                if shard.episodes is not None and record >= shard.episodes:
                    return
                rest = "" if shard.episodes is None else f": {shard.episodes - record} declared episodes"
                yield record, LeftOut(f"the rest of the shard cannot be reached{rest}")
                return
            yield failed, LeftOut(str(error))
            record = failed + 1
            skipped = True
        except IndexError:
            if not skipped:
                raise
            return  # the record skipped last was the last one
        finally:
            close = getattr(episodes, "close", None)
            if close is not None:
                close()


def good_episodes(source: EpisodeSource, shard: Shard, *, skip: bool) -> Iterator[Episode]:
    """The episodes of a shard that can be read. Raises what :func:`records` raises."""
    with contextlib.closing(records(source, shard, skip=skip)) as found:
        for _, episode in found:
            if isinstance(episode, Episode):
                yield episode


def name_of(shard: Shard) -> str:
    """File name of a shard, without its folder."""
    return shard.path.rstrip("/").rpartition("/")[2]


class SkippedRecords:
    """Records that a stream has left out, each counted once, however often epochs come by it.

    Warns of the first one of each shard. Thread-safe. Pickles with what it holds.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], Skipped] = {}
        self._lock = threading.Lock()

    def note(self, shard: Shard, record: int, reason: str) -> None:
        """Count a record. O(records of it so far)."""
        name = name_of(shard)
        with self._lock:
            if (name, record) in self._found:
                return
            first = all(other.shard != name for other in self._found.values())
            self._found[name, record] = Skipped(name, record, reason)
        if first:
            where = "" if name in reason else f"{shard.path}, record {record}: "
            warnings.warn(
                f"left out: {where}{reason} (of this shard no more is told; .skipped has all)", stacklevel=2
            )

    def all(self) -> tuple[Skipped, ...]:
        """All of them, in the order in which they were found."""
        with self._lock:
            return tuple(self._found.values())

    def state(self) -> list[list[Any]]:
        """Plain values."""
        return [[skipped.shard, skipped.record, skipped.reason] for skipped in self.all()]

    @staticmethod
    def check(state: Any) -> list[Skipped]:
        """What a state holds.

        Raises:
            ValueError: it is none.
        """
        good = isinstance(state, list) and all(
            isinstance(entry, (list, tuple)) and [type(value) for value in entry] == [str, int, str]
            for entry in state
        )
        if not good:
            raise ValueError(f"The state is damaged: it counts {state!r:.80} as skipped records.")
        return [Skipped(*entry) for entry in state]

    def take_over(self, skipped: Iterable[Skipped]) -> None:
        """Begin with what another stream has left out, and has warned of."""
        with self._lock:
            self._found = {(each.shard, each.record): each for each in skipped}

    def __getstate__(self) -> dict[str, Any]:
        return {"_found": dict(self._found)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self._found = state["_found"]
