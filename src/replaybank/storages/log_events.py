"""The events of a write log: the last runs of slots that were written, in a ring."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from replaybank.storages.log_header import BASE, EPOCH, EVENTS, HEADER, TOTAL

RING = 4096
"""Events kept. A follower that is more events behind reads everything: 96 KiB buy 4096 writes apart."""

# An event: its kind, its first slot, its number of slots (it may exceed ``rows``: the writing went round).
FIELDS = 3
_APPENDED, _TOUCHED = 1, 2


class LogMark(NamedTuple):
    """How far a follower has read a log.

    Args:
        epoch: the log's epoch then.
        events: number of events there were.
        seen: number of slots that the last of them had.
    """

    epoch: int
    events: int
    seen: int


class LogChanges(NamedTuple):
    """What was written since a mark.

    Args:
        everything: nothing is known; all valid slots are to be read anew.
        appended: runs ``(start, count)`` of slots modulo ``rows`` that hold new items, ``count <= rows``.
        touched: runs whose content was replaced in its place.
    """

    everything: bool
    appended: list[tuple[int, int]]
    touched: list[tuple[int, int]]

    @property
    def runs(self) -> list[tuple[int, int]]:
        """All runs to read anew; they may overlap."""
        return self.appended + self.touched


class EventRing:
    """The last runs that were written: what a :class:`~replaybank.storages.write_log.WriteLog` remembers.

    Runs that continue each other are one event. Not thread-safe: the buffer's lock guards it.

    Args:
        state: the log's state, int64: the header, and the ring behind it.
        ints: the same memory as a memoryview.
        rows: capacity along time.
    """

    def __init__(self, state: Tensor, ints: memoryview[int], rows: int) -> None:
        self._state = state
        self._ints = ints
        self._rows = rows

    def appended(self, start: int, count: int) -> None:
        """Note a run of new items. O(1)."""
        ints = self._ints
        events = ints[EVENTS]
        last = HEADER + FIELDS * ((events - 1) % RING)
        if events and ints[last] == _APPENDED and (ints[last + 1] + ints[last + 2]) % self._rows == start:
            ints[last + 2] += count
        else:
            last = HEADER + FIELDS * (events % RING)
            ints[last] = _APPENDED
            ints[last + 1] = start
            ints[last + 2] = count
            ints[EVENTS] = events + 1

    def touched(self, starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> None:
        """Note runs whose content was replaced in its place. O(runs)."""
        events = self._ints[EVENTS]
        kept = slice(-RING, None)  # more runs than the ring holds: all followers have fallen behind
        places = (events + np.arange(starts.size)[kept]) % RING
        ring = self._state.numpy()[HEADER:].reshape(RING, FIELDS)
        ring[places, 0] = _TOUCHED
        ring[places, 1] = starts[kept]
        ring[places, 2] = counts[kept]
        self._ints[EVENTS] = events + int(starts.size)

    def mark(self) -> LogMark:
        """Where the log stands now. O(1)."""
        ints = self._ints
        events = ints[EVENTS]
        return LogMark(
            ints[EPOCH], events, ints[HEADER + FIELDS * ((events - 1) % RING) + 2] if events else 0
        )

    def changes(self, mark: LogMark | None) -> LogChanges:
        """What was written since ``mark``. O(events since).

        Args:
            mark: where the follower stood, ``None`` if it knows nothing.

        Returns:
            Runs in the order they were written, those that continue each other as one; ``everything`` where
            the mark is of another epoch or older than the ring.
        """
        ints, rows = self._ints, self._rows
        events = ints[EVENTS]
        if (
            mark is None
            or mark.epoch != ints[EPOCH]
            or not events - RING < max(mark.events, 1) <= max(events, 1)
        ):
            return LogChanges(True, [], [])
        appended: list[tuple[int, int]] = []
        touched: list[tuple[int, int]] = []
        seen = mark.seen
        for event in range(max(mark.events - 1, 0), events):
            at = HEADER + FIELDS * (event % RING)
            start, count = ints[at + 1], ints[at + 2]
            fresh = min(count - seen, rows)
            seen = 0
            if fresh > 0:
                (appended if ints[at] == _APPENDED else touched).append(
                    ((start + count - fresh) % rows, fresh)
                )
        return LogChanges(False, appended, touched)

    def since(self, total: int) -> list[tuple[int, int, int]] | None:
        """The rows appended after the first ``total`` ever. O(events since).

        Returns:
            Runs ``(start, count, number)``, the newest last: ``count`` rows (more than ``rows`` if they went
            round) from slot ``start`` (modulo ``rows``) on, of which the first was the ``number``-th ever
            written, from 0. None if that is not remembered.
        """
        ints = self._ints
        events, number = ints[EVENTS], ints[TOTAL]
        if total < ints[BASE]:
            return None if total < number else []
        runs: list[tuple[int, int, int]] = []
        for event in range(events - 1, max(events - RING, 0) - 1, -1):
            if number <= total:
                break
            at = HEADER + FIELDS * (event % RING)
            if ints[at] == _APPENDED:
                count = min(ints[at + 2], number - total)
                number -= count
                start = (ints[at + 1] + ints[at + 2] - count) % self._rows
                runs.append((start, count, number))
        return None if number > total else runs[::-1]
