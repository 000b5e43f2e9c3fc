"""Progress of what takes long, for a person at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def reading(
    unit: str, *, quiet: bool = False, title: str = "Reading"
) -> Iterator[Callable[[int, int], None]]:
    """A progress bar, which is told how many are done, and of how many."""
    from tqdm import tqdm

    with ExitStack() as closing:
        bars: list[tqdm[Any]] = []  # one, once something has been read: none flashes up before an error

        def show(done: int, of: int) -> None:
            if not bars:
                shown = not quiet and sys.stderr.isatty() and of > 1
                bars.append(tqdm(desc=title, total=of, unit=unit, leave=False, disable=not shown))
                closing.callback(bars[0].close)
            bars[0].update(done - bars[0].n)

        yield show
