"""The trajectory index: where the trajectories of a storage lie, kept current by its write log."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from replaybank import _native
from replaybank.sending import Sendable
from replaybank.storages.layout import LeafPlace
from replaybank.storages.write_log import LogMark, WriteLog
from replaybank.trajectories.signals import EndSignal, StepSource

_CHUNK = 1 << 22
"""Rows read at a time when everything is read: memory stays small beside the storage's."""


class Slices(NamedTuple):
    """Runs of steps, each in one column and one trajectory.

    Args:
        runs: int64 ``[3, S]``: column (flat over the storage's columns), row of the first step, and number of
            steps, at least 1; a run may go on at row 0.
        total: number of steps in all.
    """

    runs: Tensor
    total: int


class TrajectoryIndex(Sendable):
    """The trajectories of a storage: synced in O(steps written), drawn from in O(slices).

    Two sets of slots are kept as ranked bitsets (``csrc/trajectory_index.hpp``), 0.4 bytes a slot together:
    the last steps of all trajectories, and those of trajectories of at least ``min_length`` steps. A bitset
    has one order, so the k-th trajectory is the same in every process and after every reload, and nothing
    has to be saved: an index is made anew from its storage.

    Not thread-safe: the buffer's lock guards it. Each process has its own.

    Args:
        signal: where trajectories end.

    Example:
        >>> from replaybank.storages import TensorStorage
        >>> from replaybank.trajectories import DoneSignal
        >>> index = TrajectoryIndex(DoneSignal(("done",)))
        >>> index.sync(TensorStorage({"done": torch.tensor([False, True, False, False, True])}), min_length=3)
        >>> index.n_trajectories, index.n_eligible, index.length_range()
        (2, 1, (2, 3))
        >>> index.eligible().runs.tolist()  # column, first row, steps
        [[0], [2], [3]]

    Attributes:
        signals_read: end signals read so far, one a step and column. A change of value also needs that of the
            neighbours of rows that were replaced.
        min_length: least number of steps of an eligible trajectory.
        length: number of valid rows at the last sync.
        rebuilds: how often everything was read.
    """

    def __init__(self, signal: EndSignal | None) -> None:
        self.signal = signal
        self.signals_read = self.rebuilds = 0
        self.min_length = 1
        self.length = 0
        self._rows = self._columns = 0
        self._log: WriteLog | None = None
        self._mark: LogMark | None = None
        # Everything is one circle that is cut nowhere: then a column without an end gets one at its last row,
        # which the next change may take away, so that any change is reason to read everything.
        self._circle = False
        # The values of one row, mostly the newest: the next write asks for them, and they count as read.
        self._known_row = -1
        self._known = torch.empty(0)
        self._known_bytes = 0
        self._flags = torch.empty(0, dtype=torch.bool)
        self._randoms = torch.empty(0, dtype=torch.int64)
        self._runs_like = torch.empty(3, 0, dtype=torch.int64)
        self._steps_like = (torch.empty(0, dtype=torch.int64), torch.empty(0, 1, dtype=torch.bool))
        self._allocate(1, 1)

    @classmethod
    def of_flags(cls, ends: Tensor) -> TrajectoryIndex:
        """The index of a full static storage that goes on at row 0 after its last row. O(rows).

        Args:
            ends: bool ``[rows, n_columns]``: a trajectory ends with this step. A column without any is one
                trajectory that ends at the last row.
        """
        index = cls(None)
        rows, columns = ends.shape
        index._allocate(rows, columns)
        index.length = rows
        index._set_view()
        index._apply(0, rows, _close(ends), None, None)
        return index

    # ---- following a storage

    def sync(self, storage: StepSource, min_length: int = 1) -> None:
        """Take in what was written since the last call, by whomever. O(steps written).

        O(rows / 64 + trajectories) once when ``min_length`` changes; O(rows) when the storage was emptied or
        loaded, or more happened than its log remembers.

        Args:
            storage: the same one each time; another one is read from the start.
            min_length: least number of steps of an eligible trajectory, at least 1.

        Raises:
            KeyError: the storage lacks the signal's leaf.
            RuntimeError: the signal has more dimensions than the storage, or the storage's log says what
                cannot be.
        """
        if self.signal is not None:
            log = storage.log
            mark = log.mark()
            if mark != self._mark or log is not self._log:
                self._follow(self.signal, storage, log, mark)
        if min_length != self.min_length:
            self.min_length = min_length
            self._set_view()
            _native.trajectory_evaluate(*self._view)

    def _follow(self, signal: EndSignal, storage: StepSource, log: WriteLog, mark: LogMark) -> None:
        changes = log.changes(self._mark if log is self._log else None)
        self._mark = None  # a read that fails leaves an index that knows nothing
        columns = math.prod(storage.columns)
        _check_log(log)
        if changes.everything or self._circle or (log.rows, columns) != (self._rows, self._columns):
            self._rebuild(signal, storage, log, columns)
        else:
            if log.length != self.length:
                self.length = log.length
                self._set_view()
            for start, count in changes.appended:
                self._take(signal, storage, log, start, count, appended=True)
            for start, count in changes.touched:
                self._take(signal, storage, log, start, count, appended=False)
        self._log, self._mark = log, mark

    def _rebuild(self, signal: EndSignal, storage: StepSource, log: WriteLog, columns: int) -> None:
        self.rebuilds += 1
        self._allocate(log.rows, columns)
        self.length = length = log.length
        self._set_view()
        self._known_row, self._known_bytes = -1, 0
        self._circle = length == log.rows and not log.is_cut(0) and not bool(log.cut.any())
        if self._circle:
            values = signal.read(storage, 0, length)
            self.signals_read += length * columns
            flags = signal.flags(values, columns, values).view(length, columns)
            self._apply(0, length, _close(flags), None, log)
            return
        for start in range(0, length, _CHUNK):
            self._take(signal, storage, log, start, min(_CHUNK, length - start), appended=start > 0)

    def _take(
        self, signal: EndSignal, storage: StepSource, log: WriteLog, start: int, count: int, *, appended: bool
    ) -> None:
        """Read the signals of a run of rows and bring both sets up to date."""
        rows, columns, length = self._rows, self._columns, self.length
        if start + count > length < rows:
            raise _damaged(log, f"rows {start} to {start + count - 1} were written")
        in_place = signal.in_place(storage) if columns == 1 else None
        if in_place is not None:
            self._take_in_place(signal, in_place, log, start, count, appended=appended)
            return
        values = signal.read(storage, start, count)
        self.signals_read += count * columns
        before = after = None
        if (
            count < length
            and (start > 0 or length == rows)
            and not log.is_cut(start)
            and (appended or signal.depends_on_next)
        ):
            # The row before may have been the newest one, which is the last step of its trajectory until
            # another continues it.
            row = start - 1 if start else rows - 1
            before = signal.flags_before(self._value(signal, storage, row), values, columns)
        if signal.depends_on_next:
            row = (start + count) % rows
            if count < rows and (length == rows or start + count != length) and not log.is_cut(row):
                after = self._value(signal, storage, row)
            elif count == rows and not log.is_cut(row):
                after = values
        self._apply(start, count, signal.flags(values, columns, after), before, log)
        known = count - 1 if appended or self._known_row < 0 else (self._known_row - start) % rows
        if known < count:
            self._remember((start + known) % rows, values, known)

    def _take_in_place(
        self, signal: EndSignal, place: LeafPlace, log: WriteLog, start: int, count: int, *, appended: bool
    ) -> None:
        """The same where the values of all rows can be used where they are stored."""
        rows = self._rows
        address, step = place.address, place.step
        self.signals_read += count
        self._known_row = -1  # nobody will ask for it
        if signal.depends_on_next:
            if self._flags.numel() <= count:
                self._flags = torch.empty(count + 1, dtype=torch.bool)
            flags, behind = self._flags.data_ptr(), (start + count) % rows
            there = count == rows or self.length == rows or start + count != self.length
            _native.trajectory_changes_in_place(
                address, step, place.bytes, rows, start, count, there and not log.is_cut(behind), flags
            )
            joins = (start > 0 or self.length == rows) and not log.is_cut(start)
            before = flags if joins else 0
            if not _native.trajectory_apply(
                *self._view, rows, start, count, flags + 1, before, log.cut.data_ptr(), 1
            ):
                raise self._beyond(start, count)
            return
        straight = min(count, rows - start)
        for first, size, joins in ((start, straight, appended), (0, count - straight, True)):
            if not size:
                continue
            # The row before may have been the newest one, which is the last step of its trajectory until
            # another continues it.
            joins = joins and (first > 0 or self.length == rows) and not log.is_cut(first)
            before = address + (first - 1 if first else rows - 1) * step if joins else 0
            flags = address + first * step
            if not _native.trajectory_apply(
                *self._view, rows, first, size, flags, before, log.cut.data_ptr(), step
            ):
                raise self._beyond(first, size)

    def _remember(self, row: int, values: Tensor, place: int) -> None:
        """Keep a copy of ``values[place]``, those of ``row``: what was read may be a view."""
        size = values.numel() * values.element_size() // values.shape[0]
        if self._known_bytes != size:
            self._known, self._known_bytes = torch.empty_like(values[:1]), size
        self._known_row = row
        _native.copy_bytes(values.data_ptr() + place * size, size, self._known.data_ptr())

    def _value(self, signal: EndSignal, storage: StepSource, row: int) -> Tensor:
        if row == self._known_row:
            return self._known
        self.signals_read += self._columns
        return signal.read(storage, row, 1)

    def _apply(
        self, start: int, count: int, flags: Tensor, before: Tensor | None, log: WriteLog | None
    ) -> None:
        done = _native.trajectory_apply(
            *self._view,
            self._rows,
            start,
            count,
            flags.data_ptr(),
            0 if before is None else before.data_ptr(),
            0 if log is None else log.cut.data_ptr(),
            self._columns,
        )
        if not done:
            raise self._beyond(start, count)

    def _beyond(self, start: int, count: int) -> RuntimeError:
        return RuntimeError(f"Rows {start} to {start + count - 1} are beyond the {self.length} valid ones.")

    # ---- state

    def _allocate(self, rows: int, columns: int) -> None:
        self._rows, self._columns = rows, columns
        self._padded = (rows + 63) // 64 * 64
        self._n_words = (self._padded // 64 * columns + 7) // 8 * 8
        n_counts = _native.ranked_counts_size(self._n_words)
        self.last_words = torch.zeros(self._n_words, dtype=torch.int64)
        self.last_counts = torch.zeros(n_counts, dtype=torch.int32)
        self.eligible_words = torch.zeros_like(self.last_words)
        self.eligible_counts = torch.zeros_like(self.last_counts)
        self._set_view()

    def _set_view(self) -> None:
        """What every kernel takes: where the two sets are, and their shape."""
        self._view = (
            self.last_words.data_ptr(),
            self.last_counts.data_ptr(),
            self.eligible_words.data_ptr(),
            self.eligible_counts.data_ptr(),
            self._n_words,
            self._padded,
            self._columns,
            self.length,
            self.min_length,
        )

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        # Addresses, and the log of a storage that a copy has not seen: it reads the first one it gets anew.
        for name in ("_view", "_log", "_mark"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _log=None, _mark=None)
        self._set_view()

    # ---- questions

    @property
    def view(self) -> tuple[int, ...]:
        """What every kernel takes: where the two sets are, and their shape. Until the next sync."""
        return self._view

    @property
    def n_trajectories(self) -> int:
        """Number of trajectories. O(1)."""
        return _native.ranked_count(*self._view[:2], self._n_words)

    @property
    def n_eligible(self) -> int:
        """Number of trajectories of at least ``min_length`` steps. O(1)."""
        return _native.ranked_count(*self._view[2:4], self._n_words)

    def length_range(self) -> tuple[int, int]:
        """Steps of the shortest and the longest trajectory, or zeros. O(rows / 64 + trajectories)."""
        out = torch.empty(2, dtype=torch.int64)
        _native.trajectory_lengths(*self._view, out.data_ptr())
        shortest, longest = out.tolist()
        return shortest, longest

    def eligible(self, ranks: Tensor | None = None) -> Slices:
        """Whole eligible trajectories, ordered by column, then by their last row. O(1) each.

        Args:
            ranks: int64 ``[S]``, which ones, each in ``[0, n_eligible)``; all by default.

        Raises:
            IndexError: a rank is out of range.
        """
        ranks = torch.arange(self.n_eligible) if ranks is None else ranks.contiguous()
        count = ranks.numel()
        runs = torch.empty(3, count, dtype=torch.int64)
        at, size = runs.data_ptr(), 8 * count
        bad = _native.trajectory_nth(*self._view, ranks.data_ptr(), count, at, at + size, at + 2 * size)
        if bad >= 0:
            raise IndexError(
                f"Trajectory {int(ranks[bad])} is out of range: {self.n_eligible} trajectories have at least "
                f"{self.min_length} steps."
            )
        return Slices(runs, int(runs[2].sum()))

    def draw(
        self,
        count: int,
        slice_len: int,
        *,
        left: int = 0,
        right: int = 0,
        generator: torch.Generator | None = None,
    ) -> Slices:
        """Slices of eligible trajectories, drawn uniformly with replacement, at uniform starts. O(1) each.

        A slice is what a window of ``slice_len`` steps has in common with its trajectory; all windows that
        stick out by at most ``left`` steps before it or ``right`` behind it are equally likely. Trajectories
        shorter than the window are taken whole. Draws are integers: every start is possible in trajectories
        of any length.

        Args:
            count: number of slices, S.
            slice_len: steps of a window, at least 1.
            left: in ``[0, slice_len)``.
            right: in ``[0, slice_len)``.
            generator: source of the draws, torch's global one by default.

        Returns:
            The slices; ``total`` is 0 if no trajectory is eligible.

        Example:
            >>> from replaybank.storages import TensorStorage
            >>> from replaybank.trajectories import DoneSignal
            >>> index = TrajectoryIndex(DoneSignal(("done",)))
            >>> storage = TensorStorage({"done": torch.tensor([False, True, False, False, True])})
            >>> index.sync(storage, min_length=3)
            >>> slices = index.draw(2, 3)
            >>> slices.runs.tolist(), slices.total  # columns, first rows, steps
            ([[0, 0], [2, 2], [3, 3]], 6)
        """
        randoms = self._draw_randoms(2 * count, generator)
        if self._runs_like.shape[1] != count:
            self._runs_like = torch.empty(3, count, dtype=torch.int64)
        runs = torch.empty_like(self._runs_like)
        at, size = runs.data_ptr(), 8 * count
        total = _native.trajectory_draw(
            *self._view, randoms.data_ptr(), count, slice_len, left, right, at, at + size, at + 2 * size
        )
        return Slices(runs, total)

    def slices_of(self, ranks: Tensor, slice_len: int, *, generator: torch.Generator | None = None) -> Slices:
        """A slice of each of some eligible trajectories, at a uniform start. O(1) each.

        Args:
            ranks: int64 ``[S]``, which ones, each in ``[0, n_eligible)``.
            slice_len: steps of a slice, at least 1; shorter trajectories are taken whole.
            generator: source of the starts, torch's global one by default.

        Raises:
            IndexError: a rank is out of range.
        """
        runs = self.eligible(ranks).runs
        count = ranks.numel()
        randoms = self._draw_randoms(count, generator)
        at, size = runs.data_ptr(), 8 * count
        total = _native.trajectory_cut_windows(
            randoms.data_ptr(), count, slice_len, 0, 0, self.length, at + size, at + 2 * size
        )
        return Slices(runs, total)

    def _draw_randoms(self, count: int, generator: torch.Generator | None) -> Tensor:
        """``count`` integers in ``[0, 2^63)``, in memory that the next call takes again."""
        randoms = self._randoms
        if randoms.numel() != count:
            randoms = self._randoms = torch.empty(count, dtype=torch.int64)
        if generator is None or generator.device.type == "cpu":
            return randoms.random_(generator=generator)
        return randoms.copy_(randoms.to(generator.device).random_(generator=generator))

    def expand(self, slices: Slices) -> tuple[Tensor, Tensor | None, Tensor]:
        """The steps of slices, one slice behind the other. O(steps).

        Returns:
            Rows int64 ``[B]``; columns int64 ``[B]``, ``None`` if there is one only; bool ``[B, 1]``, true at
            the last step of each slice.

        Args:
            slices: what :meth:`draw` and its kin gave.

        Example:
            >>> from replaybank.storages import TensorStorage
            >>> from replaybank.trajectories import DoneSignal
            >>> index = TrajectoryIndex(DoneSignal(("done",)))
            >>> storage = TensorStorage({"done": torch.tensor([False, True, False, False, True])})
            >>> index.sync(storage, min_length=3)
            >>> rows, columns, last = index.expand(index.eligible())
            >>> rows.tolist(), columns, last.squeeze(-1).tolist()
            ([2, 3, 4], None, [False, False, True])
        """
        runs, total = slices
        if len(self._steps_like[0]) != total:
            self._steps_like = (
                torch.empty(total, dtype=torch.int64),
                torch.empty(total, 1, dtype=torch.bool),
            )
        time_like, ends_like = self._steps_like
        time = torch.empty_like(time_like)  # as one that is there: half the cost of torch.empty
        column = torch.empty_like(time_like) if self._columns > 1 else None
        ends = torch.empty_like(ends_like)
        count = runs.shape[1]
        at, size = runs.data_ptr(), 8 * count
        _native.trajectory_expand(
            at,
            at + size,
            at + 2 * size,
            count,
            self.length,
            time.data_ptr(),
            0 if column is None else column.data_ptr(),
            ends.data_ptr(),
        )
        return time, column, ends

    def starts(self, mask: Tensor, needed: int, *, first_steps: bool, start: int, count: int) -> None:
        """Mark the slots where slices may start, in a run of rows. O(count).

        Args:
            mask: bool, one a slot, row by row; written.
            needed: steps that must fit before the trajectory's end.
            first_steps: whether the first step of every trajectory counts too.
            start: the first row, in ``[0, length)``.
            count: number of rows (modulo ``length``), at most ``length``.

        Raises:
            ValueError: the mask has fewer slots than there are valid ones.
        """
        if mask.numel() < self.length * self._columns:
            raise ValueError(
                f"A mask of {mask.numel()} slots was given for {self.length} rows of {self._columns} columns."
            )
        _native.slice_starts(*self._view, start, count, needed, first_steps, mask.data_ptr())

    def slices_from(self, items: Tensor, slice_len: int) -> Slices:
        """Slices from given slots on, of ``slice_len`` steps or up to their trajectory's end. O(1) each.

        Args:
            items: int64 ``[S]``, slots numbered row by row.
            slice_len: at least 1.

        Raises:
            IndexError: a slot is out of range.

        Example:
            >>> from replaybank.storages import TensorStorage
            >>> from replaybank.trajectories import DoneSignal
            >>> index = TrajectoryIndex(DoneSignal(("done",)))
            >>> storage = TensorStorage({"done": torch.tensor([False, True, False, False, True])})
            >>> index.sync(storage, min_length=3)
            >>> index.slices_from(torch.tensor([0, 3]), 3).runs.tolist()  # each up to its trajectory's end
            [[0, 0], [0, 3], [2, 2]]
        """
        count = items.numel()
        runs = torch.empty(3, count, dtype=torch.int64)
        at, size = runs.data_ptr(), 8 * count
        total = _native.slice_spans(
            *self._view, items.data_ptr(), count, slice_len, at, at + size, at + 2 * size
        )
        if total < 0:
            raise IndexError(f"Slot {int(items[-1 - total])} is out of range.")
        return Slices(runs, total)

    def places_of(self, items: Tensor) -> Tensor:
        """Where in their trajectories given slots are. O(1) each.

        Args:
            items: int64 ``[S]``, slots numbered row by row.

        Returns:
            int64 ``[2, S]``: the steps before each, and those from it to the last one, itself counted.

        Raises:
            IndexError: a slot is out of range.

        Example:
            >>> from replaybank.storages import TensorStorage
            >>> from replaybank.trajectories import DoneSignal
            >>> index = TrajectoryIndex(DoneSignal(("done",)))
            >>> storage = TensorStorage({"done": torch.tensor([False, True, False, False, True])})
            >>> index.sync(storage, min_length=3)
            >>> index.places_of(torch.tensor([0, 3])).tolist()
            [[0, 1], [2, 2]]
        """
        items = items.contiguous()
        count = items.numel()
        places = torch.empty(2, count, dtype=torch.int64)
        at = places.data_ptr()
        bad = _native.slice_places(*self._view, items.data_ptr(), count, at, at + 8 * count)
        if bad < 0:
            raise IndexError(f"Slot {int(items[-1 - bad])} is out of range.")
        return places


def repeat(values: Tensor, slices: Slices) -> Tensor:
    """One value ``[S]`` of 4 or 8 bytes a slice for each of its steps, ``[B]``. O(steps).

    (``torch.repeat_interleave`` starts threads for any size, and hangs in a forked child.)
    """
    out = torch.empty(slices.total, dtype=values.dtype)
    at, count = slices.runs.data_ptr(), values.numel()
    _native.slice_repeat(
        values.data_ptr(), values.dtype.itemsize == 8, at + 16 * count, count, out.data_ptr()
    )
    return out


def _check_log(log: WriteLog) -> None:
    """Refuse a log whose state, loaded or shared, is of no storage: the kernels' arrays are of ``rows``."""
    cut = log.cut
    if not 0 <= log.length <= log.rows:
        raise _damaged(log, f"{log.length} rows are valid")
    if cut.numel() != log.rows or cut.dtype != torch.bool or not cut.is_contiguous():
        raise _damaged(log, f"its cuts are {cut.dtype} {tuple(cut.shape)}")


def _damaged(log: WriteLog, what: str) -> RuntimeError:
    return RuntimeError(
        f"The write log of the storage is damaged: {what}, with {log.length} of {log.rows} rows valid. "
        "Load a checkpoint that is whole, or empty the storage."
    )


def _close(ends: Tensor) -> Tensor:
    """Ends of columns that are circles: one without any ends at its last row. Contiguous."""
    ends = ends.clone(memory_format=torch.contiguous_format)
    ends[-1] |= ~ends.any(0)
    return ends
