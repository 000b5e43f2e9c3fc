"""Times contenders side by side: each in a process of its own, in interleaved rounds.

One contender works at a time, while the others wait. A round visits all of them, so that a machine that
becomes slower or faster does so for all. What is kept of many single calls is the median.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import TypeAlias

Parts: TypeAlias = "Mapping[str, float]"
"""Seconds of one call, by what was done."""
Call: TypeAlias = "Callable[[], Parts]"
Medians: TypeAlias = "dict[tuple[str, str, str], float]"
"""Median seconds by contender, case and part."""

WARM_UP = 3
"""Calls of a case whose times are not kept: code and memory are touched for the first time."""


class Skipped(Exception):
    """A contender that cannot run here, with the reason."""


class Contender:
    """One process that holds one contender's data and makes its calls on request.

    Args:
        name: for the table.
        make: called in the process; gives the calls by case. Must be picklable.
    """

    def __init__(self, name: str, make: Callable[[], Mapping[str, Call]]) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, make), daemon=True)
        self._process.start()
        there.close()

    def ready(self) -> None:
        """Wait until the data is there.

        Raises:
            Skipped: the contender cannot run.
            RuntimeError: it failed.
        """
        self._receive()

    def run(self, case: str, seconds: float, calls: int) -> list[Parts]:
        """Make calls for a time, at least one and at most ``calls``."""
        self._pipe.send((case, seconds, calls))
        return self._receive()

    def _receive(self) -> list[Parts]:
        try:
            what, content = self._pipe.recv()
        except EOFError:
            raise RuntimeError(f"{self.name}: its process ended; was the memory enough?") from None
        if what == "skipped":
            raise Skipped(content)
        if what == "failed":
            raise RuntimeError(f"{self.name} failed:\n{content}")
        found: list[Parts] = content
        return found

    def __enter__(self) -> Contender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()


def _serve(pipe: Connection, make: Callable[[], Mapping[str, Call]]) -> None:
    try:
        calls = make()
        for call in calls.values():
            for _ in range(WARM_UP):
                call()
        pipe.send(("done", []))
        while True:
            case, seconds, most = pipe.recv()
            until = time.perf_counter() + seconds
            times = [calls[case]()]
            while len(times) < most and time.perf_counter() < until:
                times.append(calls[case]())
            pipe.send(("done", times))
    except EOFError:
        return  # whoever asked has gone
    except Skipped as reason:
        pipe.send(("skipped", str(reason)))
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))


def compare(
    contenders: Sequence[Contender], cases: Sequence[str], *, rounds: int, seconds: float, calls: int
) -> Medians:
    """Visit all contenders in turn, round by round.

    Args:
        contenders: ready ones.
        cases: names of what each of them can do.
        rounds: how often.
        seconds: how long each stays at a case in one round.
        calls: how many calls it makes there at most.
    """
    times: dict[tuple[str, str, str], list[float]] = {}
    for _ in range(rounds):
        for case in cases:
            for contender in contenders:
                for parts in contender.run(case, seconds, calls):
                    for part, took in parts.items():
                        times.setdefault((contender.name, case, part), []).append(took)
    return {key: statistics.median(values) for key, values in times.items()}


def show(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, aligned for reading as it is; the first column to the left."""
    table = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        first, *rest = row
        cells = [first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(rest, widths[1:], strict=True))]
        return f"| {' | '.join(cells)} |"

    rule = [":" + "-" * (widths[0] - 1), *("-" * (w - 1) + ":" for w in widths[1:])]
    lines: list[str] = [line(table[0]), line(rule), *map(line, table[1:])]
    return "\n".join(lines)
