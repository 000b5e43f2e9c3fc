"""Progress of what takes long, for a person at a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, TypeAlias

import typer

from replaybank.progress import Bar

NoBar: TypeAlias = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar.")]
"""The option of commands that print what they were asked for in any case."""


@contextmanager
def reading(
    unit: str, *, quiet: bool = False, title: str = "Reading"
) -> Iterator[Callable[[int, int], None]]:
    """A progress bar, which is told how many are done, and of how many."""
    with Bar(title, unit, show=shown(quiet)) as bar:
        yield bar.reach


def shown(quiet: bool) -> bool | None:
    """What ``progress=`` is for a command: never a bar, or one where a terminal is looked at."""
    return False if quiet else None
