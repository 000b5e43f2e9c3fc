"""Times contenders side by side: each in a process of its own, in interleaved rounds.

One contender works at a time, while the others wait. A round visits all of them, so that a machine that
becomes slower or faster does so for all. What is kept of many single calls is the median.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import statistics
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from importlib import metadata
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
            if case not in calls:
                pipe.send(("done", []))
                continue
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

    Returns:
        Medians; of a contender without a case there are none.
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


THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
"""What says how many threads libraries start: one, so that contenders do the same."""

QUIET = {"RL_LOGGING_LEVEL": "WARNING", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
"""What keeps the contenders' libraries from talking into the table, and from looking for accelerators."""


def options(title: str | None, contenders: Iterable[str], sizes: Sequence[float]) -> argparse.Namespace:
    """The command line that all scripts share."""
    parser = argparse.ArgumentParser(description=title, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", type=float, nargs="+", default=list(sizes), help="items stored, N")
    parser.add_argument("--rounds", type=int, default=7, help="visits to each contender")
    parser.add_argument("--seconds", type=float, default=0.3, help="longest stay at a case in one round")
    parser.add_argument("--calls", type=int, default=200, help="most calls of a case in one round")
    parser.add_argument("--only", nargs="+", choices=list(contenders), default=list(contenders))
    parser.add_argument("--cases", nargs="+", help="only cases whose names begin so")
    parser.add_argument("--quick", action="store_true", help="small, one short round: to see that it runs")
    found = parser.parse_args()
    if found.quick:
        found.sizes, found.rounds, found.seconds, found.calls = [1e4], 1, 0.05, 5
    for name in THREADS:
        os.environ[name] = "1"  # the contenders' processes read it when they start
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    found.sizes = [int(size) for size in found.sizes]
    return found


def measure(
    make: Callable[[str], Callable[[], Mapping[str, Call]]],
    contenders: list[str],
    cases: Sequence[str],
    chosen: argparse.Namespace,
) -> Medians:
    """Start all contenders, compare those that can run, and say which cannot.

    Args:
        make: gives, by the contender's name, what makes its calls in its own process.
        contenders: their names; those that cannot run are removed.
        cases: names of the calls.
        chosen: from :func:`options`.
    """
    if chosen.cases:
        cases = [case for case in cases if case.startswith(tuple(chosen.cases))]
    with ExitStack() as stack:
        processes = []
        for name in list(contenders):
            contender = stack.enter_context(Contender(name, make(name)))
            try:
                contender.ready()
            except Skipped as reason:
                print(f"{name} is left out: {reason}")
                contenders.remove(name)
                continue
            processes.append(contender)
        return compare(processes, cases, rounds=chosen.rounds, seconds=chosen.seconds, calls=chosen.calls)


def against_peers(
    cases: Sequence[str], contenders: Sequence[str], medians: Medians, scale: float = 1e6
) -> str:
    """A table of the first part of every case: the first contender, the others, and the best of these.

    In parentheses the multiple of the first contender.
    """
    rows = []
    for case in cases:
        found = {name: value for (name, of, _), value in medians.items() if of == case}
        if not found:
            continue
        first, cells = found.get(contenders[0]), []
        for name in contenders:
            if name not in found:
                cells.append("-")
            elif name == contenders[0] or first is None:
                cells.append(f"{found[name] * scale:,.1f}")
            else:
                cells.append(f"{found[name] * scale:,.1f} ({found[name] / first:.1f})")
        peers = {
            name: value for name, value in found.items() if name in contenders[1:] and "floor" not in name
        }
        best = min(peers, key=lambda name: peers[name]) if peers else "-"
        rows.append([case, *cells, best])
    return show(["", *contenders, "best peer"], rows)


def setting(libraries: Iterable[str]) -> str:
    """What a table was measured with: versions and the machine."""
    found = []
    for name in libraries:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    return f"Python {platform.python_version()}, {', '.join(found)}; {machine}."
