"""Progress of what takes long: a bar that appears after two seconds, at a terminal only."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

DELAY = 2.0
"""Seconds after which a bar appears: what is done by then needs none."""
REDRAWN = 0.2
"""Seconds from one drawing to the next."""


class Bar:
    """A progress bar on standard error; silent where not asked for, or where tqdm is not installed.

    Appears after :data:`DELAY` seconds and is gone at the end, however that comes: use it in a ``with``
    statement. Thread-safe.

    Args:
        title: what is being done.
        unit: what is counted; ``"B"`` is shown in kB, MB, ...
        total: how many there are; None where nobody knows.
        show: whether to show it; None: where standard error is a terminal.
        done: how many are done already.

    Example:
        >>> with Bar("Reading", "file", 3) as bar:
        ...     bar.update()
    """

    def __init__(
        self, title: str, unit: str, total: int | None = None, *, show: bool | None = None, done: int = 0
    ) -> None:
        self._lock = threading.Lock()
        self._bar: Any = None
        self._seen = 0
        if show is False or sys.stderr is None or (show is None and not sys.stderr.isatty()):
            return
        try:
            from tqdm import tqdm
        except ImportError:  # it comes with the extras; no work depends on being watched
            return
        # A thread that watches over all bars is of no use with miniters=1, and would be left running.
        kind = type("Bar", (tqdm,), {"monitor_interval": 0})
        self._bar = kind(
            total=total,
            initial=done,
            desc=title,
            unit=unit,
            unit_scale=unit == "B",
            delay=DELAY,
            mininterval=REDRAWN,
            miniters=1,
            leave=False,
            dynamic_ncols=True,
        )

    def update(self, count: int = 1, steps: int = 0) -> None:
        """Say that more is done. Takes a microsecond.

        Args:
            count: how many more.
            steps: of how many steps they consist; their rate is shown as well.
        """
        bar = self._bar
        if bar is None:
            return
        with self._lock:
            if steps:
                self._seen += steps
                passed = bar.format_dict["elapsed"]
                bar.set_postfix_str(f"{self._seen / max(passed, 1e-9):,.0f} steps/s", refresh=False)
            bar.update(count)

    def reach(self, done: int, of: int | None) -> None:
        """Say how many are done by now, and of how many, where that is known."""
        bar = self._bar
        if bar is not None:
            with self._lock:
                bar.total = of
                bar.update(done - bar.n)

    def close(self) -> None:
        """Take it off the screen."""
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_watching: ContextVar[Bar | None] = ContextVar("replaybank_watching", default=None)


@contextmanager
def watched_bytes(title: str, show: bool | None) -> Iterator[None]:
    """Show the bytes that are told of by :func:`moved` in the meantime.

    Args:
        title: what is being done.
        show: as for :class:`Bar`.
    """
    if _watching.get() is not None:  # of something larger that this is a part of
        yield
        return
    with Bar(title, "B", show=show) as bar:
        token = _watching.set(bar)
        try:
            yield
        finally:
            _watching.reset(token)


def moved(count: int) -> None:
    """Tell that so many bytes have been read or written; of use within :func:`watched_bytes` only."""
    bar = _watching.get()
    if bar is not None:
        bar.update(count)
