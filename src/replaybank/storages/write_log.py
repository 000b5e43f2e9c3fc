"""The write log: what was written to a storage, and which slots follow each other in time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from replaybank.sending import Sendable
from replaybank.storages.log_events import FIELDS, RING, EventRing, LogChanges, LogMark
from replaybank.storages.log_header import (
    BASE,
    CONTINUES,
    CURSOR,
    EPOCH,
    EPOCH_EVENTS,
    EPOCH_SEEN,
    HEADER,
    HISTORY,
    LENGTH,
    MARKED,
    PENDING,
    PENDING_CURSOR,
    PENDING_LENGTH,
    PENDING_START,
    REPLACING,
    SAVED,
    TOTAL,
    TOUCHES,
    UNSEEN,
    checked_state,
)

__all__ = ["RING", "LogChanges", "LogMark", "WriteLog"]

_NO_ROWS: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)

_process = 0  # another in every forked child: a write that was under way when it was forked is not its own
_process_name = os.urandom(8).hex()  # likewise, and another in every process


def _renew() -> None:
    global _process, _process_name
    _process += 1
    _process_name = os.urandom(8).hex()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


class WriteLog(Sendable):
    """What was written to a storage and which slots follow each other.

    Whoever derives something from a storage keeps a :class:`LogMark` and asks for the :meth:`changes` since,
    so that it is right whoever wrote. The state is two tensors: ``state`` (int64, a header and a ring of the
    last events) and ``cut`` (bool ``[rows]``: slot ``t`` does not continue slot ``t - 1`` modulo ``rows``;
    of no meaning for slots never written). Writes that continue each other are one event.

    Not thread-safe: the buffer's lock guards it. Shared between processes after :meth:`share_memory_`.

    A write has two phases: :meth:`begin` or :meth:`begin_replacing` notes what is about to change before a
    byte of it does, :meth:`commit` that it is done. Whoever takes the lock and finds a write ``unfinished``,
    because the writer was killed or interrupted, is told by :meth:`torn` which slots cannot be relied on,
    makes them whole, and calls :meth:`settle`.

    Args:
        rows: capacity along time, at least 1.

    Example:
        >>> log = WriteLog(rows=4)
        >>> mark = log.mark()
        >>> log.append(0, 3)
        >>> log.append(3, 2)
        >>> log.cursor, log.length, log.total
        (1, 4, 5)
        >>> log.changes(mark).runs
        [(1, 4)]
        >>> log.cut.tolist()
        [False, True, False, False]
    """

    _writing = -1  # the ``_process`` in which this object is writing
    _marked = _NO_ROWS  # what this object has marked

    def __init__(self, rows: int) -> None:
        if rows < 1:
            raise ValueError(f"A write log needs at least 1 row, got rows={rows}.")
        self.rows = rows
        self.state = torch.zeros(HEADER + RING * FIELDS, dtype=torch.int64)
        self.cut = torch.zeros(rows, dtype=torch.bool)
        self._view()
        self._cut[0] = True
        _name_anew(self.state)

    def _view(self) -> None:
        # A tensor element takes microseconds to read, a memoryview's 40 ns; other processes' writes show too.
        self._ints = memoryview(self.state.numpy())  # type: ignore[arg-type]
        self._cuts = self.cut.numpy()
        self._cut = memoryview(self._cuts)  # type: ignore[arg-type]
        self._events = EventRing(self.state, self._ints, self.rows)

    @property
    def epoch(self) -> int:
        """Changes when all that was known is void."""
        return int(self._ints[EPOCH])

    @property
    def total(self) -> int:
        """Rows ever written; never falls."""
        return int(self._ints[TOTAL])

    @property
    def touches(self) -> int:
        """Rows ever replaced in their places; tells two states of one log apart, as ``total`` does."""
        return int(self._ints[TOUCHES])

    @property
    def cursor(self) -> int:
        """Slot of the next regular write."""
        return int(self._ints[CURSOR])

    @property
    def length(self) -> int:
        """Number of valid rows: slots ``[0, length)``."""
        ints = self._ints
        length = ints[LENGTH]
        return int(min(length, ints[PENDING_LENGTH]) if ints[PENDING] else length)

    def is_at(self, epoch: int, total: int) -> bool:
        """Whether nothing was appended since the log was at this ``epoch`` and ``total``. O(1)."""
        ints = self._ints
        return bool(ints[TOTAL] == total and ints[EPOCH] == epoch)

    @property
    def history(self) -> str | None:
        """Names the sequence of changes that marks are places in; None if changes may go unseen.

        Two logs have one name only if they share their memory.
        """
        ints = self._ints
        if ints[UNSEEN] & 1:
            return None
        name = f"{ints[HISTORY]:016x}{ints[HISTORY + 1]:016x}"
        # The copy that a forked child has of a log that is not shared goes its own way.
        return name if self.state.is_shared() else f"{name}-{_process_name}"

    def hand_out(self) -> None:
        """Note that items may from now on be changed without the log being told. O(1)."""
        self._ints[UNSEEN] |= 1

    def mended(self, epoch: int) -> bool:
        """Whether since ``epoch`` nothing became void but a broken-off write, which was made good.

        Then the rows there were then are the ones there are now, and some of them copies of others.
        """
        ints = self._ints
        return epoch >= 0 and epoch + 1 == ints[EPOCH] == ints[UNSEEN] >> 1

    @property
    def unfinished(self) -> bool:
        """Whether a write has begun that nobody will finish, given that the caller holds the lock."""
        return self._ints[PENDING] != 0 and self._writing != _process

    def begin(self, start: int, count: int) -> None:
        """Note that ``count`` slots from ``start`` (modulo ``rows``) are about to be written. O(1)."""
        self._writing = _process
        ints = self._ints
        ints[PENDING_START] = start
        ints[PENDING_LENGTH] = ints[LENGTH]
        ints[PENDING_CURSOR] = ints[CURSOR]
        ints[PENDING] = count  # last: it makes the others count

    def begin_replacing(self, rows: Tensor) -> None:
        """Note that the content of valid slots is about to be replaced, in their places. O(k).

        Args:
            rows: int64 ``[k]``, each in ``[0, length)``.
        """
        self._marked = rows.numpy()
        self.begin(0, REPLACING)
        self._cuts.view(np.uint8)[self._marked] |= MARKED

    def commit(self) -> None:
        """Note that the write is done and :meth:`append` or :meth:`touch` has noted it.

        O(1), or O(k) after :meth:`begin_replacing` of k rows.
        """
        ints = self._ints
        if ints[PENDING] < 0:
            # All marks there are: whoever finds those of a write that was broken off has to settle it first.
            self._cuts.view(np.uint8)[self._marked] &= 1
            self._marked = _NO_ROWS
        ints[PENDING] = 0
        self._writing = -1

    def resume(self) -> None:
        """Note that this object is writing: what is unfinished is its own. O(1)."""
        self._writing = _process

    def stop(self) -> None:
        """Note that this object does not go on writing. O(1)."""
        self._writing = -1

    def torn(self) -> tuple[list[int], int]:
        """What an unfinished write may have left half written. O(rows).

        Returns:
            The slots that were valid before it; and a valid slot that it did not touch, -1 if there is none.
        """
        ints, rows = self._ints, self.rows
        start, count, length = ints[PENDING_START], ints[PENDING], ints[PENDING_LENGTH]
        if count < 0:
            torn = np.flatnonzero(self._cuts.view(np.uint8) & MARKED)
        else:
            torn = (start + np.arange(count)) % rows
        torn = torn[torn < length]
        whole = np.ones(length, dtype=np.bool_)
        whole[torn] = False
        if not whole.any():
            return torn.tolist(), -1
        before = (start - 1) % rows
        return torn.tolist(), before if before < length and whole[before] else int(whole.argmax())

    def settle(self, torn: list[int]) -> None:
        """Note that an unfinished write has been made good: a new epoch. O(rows).

        Slots that were not valid before it are not; nothing joins across the others, nor across the gap.

        Args:
            torn: from :meth:`torn`; their content is whole again, and continues nothing.
        """
        ints, cuts = self._ints, self._cuts
        cuts.view(np.uint8)[:] &= 1
        slots = np.array(torn, dtype=np.int64)
        cuts[slots] = True
        cuts[(slots + 1) % self.rows] = True
        length, cursor = ints[PENDING_LENGTH], ints[PENDING_CURSOR]
        if length < self.rows:
            cuts[0] = True
        cuts[cursor] = True
        ints[LENGTH], ints[CURSOR], ints[CONTINUES] = length, cursor, 0
        ints[EPOCH] += 1
        ints[UNSEEN] = ints[UNSEEN] & 1 | ints[EPOCH] << 1
        ints[BASE] = ints[TOTAL]
        self._begin_epoch()
        ints[PENDING] = 0  # last: who is interrupted before has the same to do again

    def is_cut(self, row: int) -> bool:
        """Whether a row does not continue the one before it: ``bool(cut[row])``, without torch's overhead."""
        return bool(self._cut[row])

    def append(self, start: int, count: int, *, set_cursor: bool = True) -> None:
        """Note that ``count`` rows from ``start`` (modulo ``rows``) hold new items, in time order. O(count).

        They continue slot ``start - 1`` if ``start`` is the cursor, the cursor moves, and the slot before it
        still holds what was appended there. The slot behind the run does not continue it.

        Args:
            start: first slot, in ``[0, rows)`` and not beyond ``length``.
            count: number of slots, at most ``rows``.
            set_cursor: the next regular write goes behind this one.

        Raises:
            ValueError: ``count`` is negative or exceeds ``rows``, or a slot never written would become valid.
            IndexError: ``start`` is out of range.
        """
        ints, rows = self._ints, self.rows
        length = ints[LENGTH]
        if not 0 <= start <= length or start == rows or not 0 < count <= rows:
            if count == 0:
                return
            self._refuse(start, count)
        end = start + count
        regular = set_cursor and start == ints[CURSOR]
        joined = regular and ints[CONTINUES] == 1
        if end < rows:
            if count > 1:
                self._cuts[start + 1 : end] = False
            if end > length:
                ints[LENGTH] = end
        else:
            self._cuts[start + 1 :] = False
            end -= rows
            self._cuts[:end] = False
            ints[LENGTH] = rows
        self._cut[start] = not joined
        self._cut[end] = True
        if set_cursor:
            ints[CURSOR] = end
            ints[CONTINUES] = 1
        elif (ints[CURSOR] - 1 - start) % rows < count:
            # What stood before the cursor is gone: the next regular write has nothing to continue.
            ints[CONTINUES] = 0
        ints[TOTAL] += count
        self._events.appended(start, count)

    def interrupt(self) -> None:
        """Note that the next write continues nothing: what was written last is the end of something. O(1).

        Example:
            >>> log = WriteLog(rows=4)
            >>> log.append(0, 2)
            >>> log.interrupt()
            >>> log.append(2, 1)
            >>> log.cut.tolist()
            [True, False, True, True]
        """
        self._ints[CONTINUES] = 0

    def _refuse(self, start: int, count: int) -> None:
        if not 0 < count <= self.rows:
            raise ValueError(
                f"Cannot append {count} rows to a log of {self.rows}: give between 0 and {self.rows}."
            )
        if not 0 <= start < self.rows:
            raise IndexError(f"Row {start} is out of range for a log of {self.rows} rows.")
        raise ValueError(
            f"Cannot append at row {start}: only {self.length} rows have been written, and the rows between "
            "would become valid without ever being written."
        )

    def touch(self, rows: Tensor) -> None:
        """Note that the content of valid rows was replaced and they kept their places. O(k log k).

        Args:
            rows: int64 ``[k]``, each in ``[0, length)``, in any order, repeated or not.

        Raises:
            IndexError: a row is not valid.
        """
        wanted = np.unique(rows.detach().cpu().numpy().reshape(-1))
        if not wanted.size:
            return
        if wanted[0] < 0 or wanted[-1] >= self.length:
            bad = wanted[0] if wanted[0] < 0 else wanted[-1]
            raise IndexError(f"Row {bad} is out of range: {self.length} rows are valid.")
        firsts = np.flatnonzero(np.diff(wanted, prepend=wanted[0] - 2) != 1)
        counts = np.diff(firsts, append=wanted.size)
        self._events.touched(wanted[firsts], counts)
        self._ints[TOUCHES] += int(wanted.size)

    def fill(self, *, wraps: bool = False, count: int | None = None) -> None:
        """Note that rows ``[0, count)`` are there from the start: data that was given, not written. O(rows).

        Args:
            wraps: slot 0 continues the last slot; only for ``count == rows``.
            count: number of valid rows; all of them by default.

        Raises:
            ValueError: ``count`` is not in ``[0, rows]``, or ``wraps`` with rows missing.
        """
        count = self.rows if count is None else count
        if not 0 <= count <= self.rows:
            raise ValueError(f"Cannot fill {count} rows of a log of {self.rows}.")
        if wraps and count != self.rows:
            raise ValueError(f"Only a full storage wraps: {count} of {self.rows} rows are there.")
        self.clear()
        self._cuts[:] = False
        self._ints[LENGTH] = count
        self._ints[CURSOR] = count % self.rows
        self._ints[TOTAL] += count
        self._ints[BASE] = self._ints[TOTAL]
        self._cut[count % self.rows] = True
        self._cut[0] = not wraps

    def clear(self) -> None:
        """Note that the storage was emptied: a new epoch. O(1)."""
        ints = self._ints
        ints[EPOCH] += 1
        ints[CURSOR] = ints[LENGTH] = ints[CONTINUES] = 0
        self._cut[0] = True
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        _, self._ints[EPOCH_EVENTS], self._ints[EPOCH_SEEN] = self.mark()

    def mark(self) -> LogMark:
        """Where the log stands now. O(1)."""
        return self._events.mark()

    def epoch_mark(self) -> LogMark:
        """Where the log stood when its epoch began: its changes are those since loading or emptying. O(1)."""
        ints = self._ints
        return LogMark(ints[EPOCH], ints[EPOCH_EVENTS], ints[EPOCH_SEEN])

    def changes(self, mark: LogMark | None) -> LogChanges:
        """What was written since ``mark``. O(events since).

        Args:
            mark: where the follower stood, ``None`` if it knows nothing.

        Returns:
            Runs in the order they were written, those that continue each other as one; ``everything`` where
            the mark is of another epoch or older than the ring.
        """
        return self._events.changes(mark)

    def changed_since(self, mark: tuple[int, ...]) -> list[tuple[int, int]] | None:
        """The runs of rows within ``[0, rows)`` that have changed since a mark of this history.

        Args:
            mark: a :class:`LogMark`, as it was then.

        Returns:
            Runs ``(start, count)``, which may overlap; None if that is not known.
        """
        if len(mark) != len(LogMark._fields):
            return None
        changes = self.changes(LogMark(*mark))
        if changes.everything:
            return None
        runs = []
        for start, count in changes.runs:
            runs.append((start, min(count, self.rows - start)))
            if start + count > self.rows:
                runs.append((0, start + count - self.rows))
        return runs

    def appended_since(self, total: int) -> list[tuple[int, int, int]] | None:
        """The rows appended after the first ``total`` ever. O(events since).

        Returns:
            Runs ``(start, count, number)``, the newest last: ``count`` rows (more than ``rows`` if they went
            round) from slot ``start`` (modulo ``rows``) on, of which the first was the ``number``-th ever
            written, from 0. None if that is not remembered.
        """
        return self._events.since(total)

    def share_memory_(self) -> WriteLog:
        """Move the state to shared memory, so that processes it is sent to see one log."""
        self.state.share_memory_()
        self.cut.share_memory_()
        self._view()
        return self

    def state_dict(self) -> dict[str, Any]:
        """The state, as copies. O(rows). Events are left out: loading makes every follower read anew."""
        return {"header": self.state[:SAVED].clone(), "cut": self.cut.clone()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state and start a new epoch. O(rows).

        Raises:
            ValueError: the state is of a log with another number of rows; nothing has been changed.
            DataFormatError: it is damaged; nothing has been changed.
        """
        values, cut = checked_state(state_dict)
        if len(cut) != self.rows:
            raise ValueError(f"The state is of a log of {len(cut)} rows, this one has {self.rows}.")
        self.cut.copy_(cut)
        ints = self._ints
        # The ring is this log's own: the events in it stay numbered as they were.
        for place in (TOTAL, CURSOR, LENGTH, CONTINUES, TOUCHES):
            ints[place] = values[place]
        ints[EPOCH] = max(ints[EPOCH], values[EPOCH]) + 1
        ints[BASE] = ints[TOTAL]
        self._begin_epoch()

    def __getstate__(self) -> dict[str, Any]:
        if self.state.is_shared():
            return {"rows": self.rows, "state": self.state, "cut": self.cut}
        state = self.state.clone()
        _name_anew(state)
        return {"rows": self.rows, "state": state, "cut": self.cut.clone()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._view()

    def __repr__(self) -> str:
        return f"WriteLog(rows={self.rows}, length={self.length}, cursor={self.cursor}, total={self.total})"


def _name_anew(state: Tensor) -> None:
    for place in (HISTORY, HISTORY + 1):
        state[place] = int.from_bytes(os.urandom(7), "little")
