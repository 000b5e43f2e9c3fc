"""Work done ahead of whoever reads its results: one thread takes items, others prepare them, in order."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

P = TypeVar("P")
R = TypeVar("R")

JOIN_SECONDS = 10.0
"""How long closing waits for a thread that hangs in a read; then it is left to end by itself, as a daemon."""

_NAME = "replaybank-stream-"  # of all threads


class _Entry(NamedTuple, Generic[P, R]):
    item: P
    version: int
    size: int
    result: Future[R] | None


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
    ) -> None:
        self._items = items
        self._prepare = prepare
        self._size = size
        self._version = 0
        self._depth = depth
        self.limit = limit
        self._threads = threads
        self._line: deque[_Entry[P, R] | BaseException | None] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._pool: ThreadPoolExecutor | None = None
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
        with self._changed:
            self._depth = depth
            self._changed.notify_all()

    def renew(self, prepare: Callable[[P], R], size: Callable[[P], int]) -> None:
        """Prepare items in another way from now on, those in the line included."""
        with self._changed:
            self._prepare, self._size = prepare, size
            self._version += 1
            self._changed.notify_all()

    def next(self) -> tuple[P, R] | None:
        """The next item and its result; None at the end. Waits for it.

        Raises:
            BaseException: what was raised where the item was taken or prepared.
            RuntimeError: the line is closed.
        """
        if self._thread is None:
            self._start()
        with self._changed:
            self._changed.wait_for(lambda: self._line or self._stopped)
            if self._stopped:
                raise RuntimeError("This stream has been closed.")
            entry = self._line[0]
            if entry is None:
                return None  # stays in the line: the end is the end, however often one asks
            if isinstance(entry, BaseException):
                raise entry
            self._line.popleft()
            self._bytes -= entry.size
            self._changed.notify_all()
        if entry.result is None or entry.version != self._version:
            return entry.item, self._prepare(entry.item)
        return entry.item, entry.result.result()

    def _start(self) -> None:
        if self._threads:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix=f"{_NAME}prepare")
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
        with self._changed:
            self._line.append(end)
            self._changed.notify_all()

    def _put(self, item: P) -> bool:
        """Put an item in line as soon as there is room; False if the line has been closed."""
        with self._changed:
            size = self._size(item)
            self._changed.wait_for(
                lambda: (
                    self._stopped
                    or not self._line
                    or (len(self._line) < self._depth and self._bytes + size <= self.limit)
                )
            )
            if self._stopped:
                return False
            result = None if self._pool is None else self._pool.submit(self._prepare, item)
            self._line.append(_Entry(item, self._version, size, result))
            self._bytes += size
            self._changed.notify_all()
            return True

    def close(self) -> None:
        """End the threads and drop what is in the line. A read that hangs is waited for a little."""
        if self._process != os.getpid():
            return  # the threads are the parent's, and so is the lock's owner
        with self._changed:
            self._stopped = True
            self._line.clear()
            self._changed.notify_all()
        # Forgotten streams are closed by whatever thread collects garbage: it may be one of these.
        if threading.current_thread().name.startswith(_NAME):
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
            return
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)
