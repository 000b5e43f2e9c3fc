"""What was written to a storage since a sampler last looked, also where saving and loading lie between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from replaybank.storages.resize import Move
from replaybank.storages.write_log import LogMark, WriteLog


class News(NamedTuple):
    """What was written since the last look.

    Args:
        everything: all rows may hold other items, or be others.
        appended: runs ``(start, count)`` of rows, modulo the capacity, that hold new items, oldest first.
        touched: the content of rows was replaced in its place.
    """

    everything: bool
    appended: list[tuple[int, int]]
    touched: bool

    @property
    def any(self) -> bool:
        """Whether there was a write at all."""
        return self.everything or self.touched or bool(self.appended)


_NOTHING = News(False, [], False)


class Follower:
    """Follows a storage's write log; remembers how far when it is saved.

    A log's marks do not outlive the loading of its storage. Then, and where more happened than the log
    remembers, what was written is told from the number of rows ever written: so many rows up to the cursor,
    which is right for writers that go round the storage.

    Not thread-safe: the buffer's lock guards it. Pickles without the log.
    """

    def __init__(self) -> None:
        self._log: WriteLog | None = None
        self._mark: LogMark | None = None
        self._seen: tuple[int, int, int, int] | None = None

    @property
    def total(self) -> int:
        """Rows ever written, at the last look."""
        return 0 if self._seen is None else self._seen[1]

    @property
    def is_behind(self) -> bool:
        """Whether something was written since the last look, as far as can be told without a storage."""
        return self._log is not None and self._log.mark() != self._mark

    def look(self, log: WriteLog) -> News:
        """What was written since the last look, by whomever. O(writes since)."""
        mark = log.mark()
        if log is self._log and mark == self._mark:
            return _NOTHING
        news = self._news(log, mark)
        self._log, self._mark = log, mark
        self._seen = log.rows, log.total, log.length, log.touches
        return news

    def _news(self, log: WriteLog, mark: LogMark) -> News:
        if self._mark is None or self._seen is None or (self._log is not None and self._log is not log):
            return News(True, [], False)
        rows, total, length, touches = self._seen
        if rows != log.rows or log.total < total or log.length < length:  # emptied, or another storage
            return News(True, [], False)
        if mark.epoch == self._mark.epoch:
            changes = log.changes(self._mark)
            if not changes.everything:
                # The log may be another one that has come as far, if this was loaded: in differing parts.
                appended = [] if log.total == total else changes.appended
                return News(False, appended, bool(changes.touched))
            return self._by_total(log)._replace(touched=True)
        # Either the storage was loaded, or it was emptied: then its length is not what it must have become.
        if self._log is not None:
            return News(True, [], False)
        touched = log.touches != touches
        changes = log.changes(log.epoch_mark())
        if not changes.everything and sum(count for _, count in changes.appended) == log.total - total:
            reach = length
            for start, count in changes.appended:
                reach = max(reach, min(start + count, rows))
            if reach == log.length:
                return News(False, changes.appended, touched)
        if log.length != min(rows, length + log.total - total):
            return News(True, [], False)
        return self._by_total(log)._replace(touched=touched)

    def _by_total(self, log: WriteLog) -> News:
        count = min(log.total - self.total, log.rows)
        return News(False, [((log.cursor - count) % log.rows, count)] if count else [], False)

    def state_dict(self) -> dict[str, Any]:
        """How far was read, as plain values."""
        if self._seen is None or self._mark is None:
            return {"seen": None, "mark": None}
        return {"seen": list(self._seen), "mark": list(self._mark)}

    @staticmethod
    def moved(state_dict: Mapping[str, Any], move: Move) -> dict[str, Any]:
        """A state for a storage whose rows have moved."""
        seen = state_dict["seen"]
        return {**state_dict, "seen": None if seen is None else [move.rows, *seen[1:]]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from there, in whichever storage is looked at next."""
        self._log = self._mark = self._seen = None
        if state_dict["seen"] is not None:
            rows, total, length, *touches = map(int, state_dict["seen"])
            self._seen = rows, total, length, touches[0] if touches else 0
            self._mark = LogMark(*map(int, state_dict["mark"]))

    def __getstate__(self) -> dict[str, Any]:
        return self.state_dict()

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.load_state_dict(state)
