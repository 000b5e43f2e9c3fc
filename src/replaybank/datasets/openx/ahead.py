"""Work done ahead of whoever reads its results: one thread takes items, others prepare them, in order."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

P = TypeVar("P")
R = TypeVar("R")

JOIN_SECONDS = 10.0
"""How long closing waits for a thread that hangs in a read; then it is left to end by itself, as a daemon."""

GATHER_SECONDS = 0.002
"""How long who asks for several items waits for all of them at once, and not for each. Every wait takes the
lock of Python from whoever reads them; a slow origin makes nobody wait longer than this beyond an item."""

_NAME = "replaybank-stream-"  # of all threads


class _Entry(Generic[P, R]):
    """An item in the line, and what became of it."""

    __slots__ = ("error", "handed", "item", "made", "result", "size", "version")

    def __init__(self, item: P, size: int, handed: bool) -> None:
        self.item = item
        self.size = size
        self.handed = handed  # to the threads that prepare
        self.version = 0
        self.made = False
        self.result: R | None = None
        self.error: BaseException | None = None


class Ahead(Generic[P, R]):
    """A bounded line of prepared items.

    Items come in their order, and an error in the place where it happened, as the same exception object. At
    most ``depth`` items and ``limit`` bytes are in the line, but one item always may be.

    :meth:`next` may be called by one thread at a time. Threads start with it. :meth:`close` is safe in any
    thread. In a forked child it is dead: :attr:`usable` is False there.

    Args:
        items: what is taken from; only the thread of the line touches it.
        prepare: makes the result of an item; called in several threads at once.
        size: bytes of an item's result.
        depth: results in the line, at most.
        limit: bytes of them, at most.
        threads: how many prepare; with 0 :meth:`next` does.
        small: bytes up to which :meth:`next` does it too: handing so little over takes longer than making it.

    Example:
        >>> line = Ahead(iter("abc"), str.upper, len, depth=2, limit=100, threads=1)
        >>> line.next(), line.next(), line.next(), line.next()
        (('a', 'A'), ('b', 'B'), ('c', 'C'), None)
        >>> line.close()
    """

    def __init__(
        self,
        items: Iterator[P],
        prepare: Callable[[P], R],
        size: Callable[[P], int],
        *,
        depth: int,
        limit: int,
        threads: int,
        small: int = 0,
    ) -> None:
        self._items = items
        self._prepare = prepare
        self._size = size
        self._version = 0
        self._depth = depth
        self.limit = limit
        self._threads = threads
        self._small = small
        self._line: deque[_Entry[P, R] | BaseException | None] = deque()
        self._bytes = 0
        self._taken: deque[_Entry[P, R]] = deque()  # out of the line, and not yet asked for
        self._todo: deque[_Entry[P, R]] = deque()
        # Re-entrant: a forgotten line is closed by whatever thread collects garbage, which may have the lock.
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)  # the thread that takes items waits for it
        self._work = threading.Condition(self._lock)  # those that prepare them do
        self._ready = threading.Condition(self._lock)  # who reads the results does
        self._wanted = 0  # items in the line that the reader waits for
        self._awaited: _Entry[P, R] | None = None  # the one whose result it waits for
        self._full = False  # whether there is no room
        self._idle = 0  # threads that wait for work
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._workers: list[threading.Thread] = []
        self._process = os.getpid()

    @property
    def usable(self) -> bool:
        """Whether it is neither closed nor a copy in a forked child, which has no threads."""
        return not self._stopped and self._process == os.getpid()

    @property
    def depth(self) -> int:
        """Results in the line, at most."""
        return self._depth

    @depth.setter
    def depth(self, depth: int) -> None:
        if depth != self._depth:
            with self._lock:
                self._depth = depth
                self._room.notify()

    def renew(self, prepare: Callable[[P], R], size: Callable[[P], int]) -> None:
        """Prepare items in another way from now on, those in the line included."""
        with self._lock:
            self._prepare, self._size = prepare, size
            self._version += 1

    def next(self, more: int = 0) -> tuple[P, R] | None:
        """The next item and its result; None at the end. Waits for it.

        Args:
            more: how many others will be asked for next; what there is of them is waited for together, and
                leaves the line at once.

        Raises:
            BaseException: what was raised where the item was taken or prepared.
            RuntimeError: the line is closed.
        """
        if self._thread is None:
            self._start()
        with self._lock:
            self._check_open()
            if not self._taken and not self._take(1 + more):
                return None
            entry = self._taken.popleft()
            if entry.handed and not entry.made:
                self._finish(entry)
        if not entry.handed or entry.version != self._version:
            return entry.item, self._prepare(entry.item)
        if entry.error is not None:
            raise entry.error
        return entry.item, entry.result  # type: ignore[return-value]

    def _take(self, wanted: int) -> bool:
        """Take at most so many items out of the line, at least one; False at its end."""
        self._arrive(wanted)
        while self._line and len(self._taken) < wanted:
            entry = self._line[0]
            if not isinstance(entry, _Entry):  # it stays: the end is the end, however often one asks
                if entry is not None and not self._taken:
                    raise entry
                break
            self._taken.append(entry)
            self._bytes -= entry.size
            self._line.popleft()
        if self._full:
            self._room.notify()
        return bool(self._taken)

    def _arrive(self, wanted: int) -> None:
        """Wait for the next item, and a moment for so many."""
        if not self._line or (len(self._line) < wanted and not self._done):
            self._wanted = wanted
            self._ready.wait_for(
                lambda: self._done or len(self._line) >= wanted or (self._line and self._full), GATHER_SECONDS
            )
            self._wanted = 1
            self._ready.wait_for(lambda: self._line or self._stopped)
            self._wanted = 0
        self._check_open()

    def _check_open(self) -> None:
        if self._stopped:
            raise RuntimeError("This stream has been closed.")

    @property
    def _done(self) -> bool:
        """Whether nothing else will come."""
        return self._stopped or bool(self._line and not isinstance(self._line[-1], _Entry))

    def _finish(self, entry: _Entry[P, R]) -> None:
        """Wait for a result; but first for that of the last item taken, to wake up once for all of them."""
        last = self._taken[-1] if self._taken else entry
        for awaited in (last, entry) if last.handed else (entry,):
            self._awaited = awaited
            while not awaited.made and not self._stopped:
                self._ready.wait()
        self._awaited = None
        self._check_open()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"{_NAME}read", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        end: BaseException | None = None
        try:
            for item in self._items:
                if not self._put(item):
                    break
        except BaseException as error:
            end = error
        finally:
            close = getattr(self._items, "close", None)
            if close is not None:
                close()
        with self._lock:
            self._line.append(end)
            self._ready.notify()

    def _put(self, item: P) -> bool:
        """Put an item in line as soon as there is room; False if the line has been closed."""
        with self._lock:
            size = self._size(item)
            while not self._stopped and self._line and not self._fits(size):
                self._full = True
                self._ready.notify()
                self._room.wait()
                self._full = False
            if self._stopped:
                return False
            handed = self._threads > 0 and size > self._small
            entry: _Entry[P, R] = _Entry(item, size, handed)
            self._line.append(entry)
            self._bytes += size
            if handed:
                self._hand(entry)
            if 0 < self._wanted <= len(self._line):
                self._ready.notify()
            return True

    def _fits(self, size: int) -> bool:
        return len(self._line) < self._depth and self._bytes + size <= self.limit

    def _hand(self, entry: _Entry[P, R]) -> None:
        """Have an item prepared by another thread, with one more of these if all there are have work."""
        self._todo.append(entry)
        if self._idle:
            self._work.notify()
        elif len(self._workers) < self._threads:
            name = f"{_NAME}prepare_{len(self._workers)}"
            worker = threading.Thread(target=self._make, name=name, daemon=True)
            worker.start()
            self._workers.append(worker)

    def _make(self) -> None:
        """Prepare items until the line is closed."""
        while True:
            with self._lock:
                self._idle += 1
                self._work.wait_for(lambda: self._todo or self._stopped)
                self._idle -= 1
                if self._stopped:
                    return
                entry = self._todo.popleft()
                prepare, entry.version = self._prepare, self._version
            try:
                entry.result = prepare(entry.item)
            except BaseException as error:
                entry.error = error
            with self._lock:
                entry.made = True
                if self._awaited is entry:
                    self._ready.notify()
            del entry, prepare  # an idle thread keeps no batch's memory from the next one

    def close(self) -> None:
        """End the threads and drop what is in the line. A read that hangs is waited for a little."""
        if self._process != os.getpid():
            return  # the threads are the parent's, and so is the lock's owner
        with self._lock:
            self._stopped = True
            for entries in (self._line, self._taken, self._todo):
                entries.clear()
            for waiting in (self._room, self._work, self._ready):
                waiting.notify_all()
        # Forgotten streams are closed by whatever thread collects garbage: it may be one of these.
        if threading.current_thread().name.startswith(_NAME):
            return
        for worker in self._workers:
            worker.join()
        if self._thread is not None and self._thread.ident is not None:  # else Ctrl-C came as it was starting
            self._thread.join(JOIN_SECONDS)
