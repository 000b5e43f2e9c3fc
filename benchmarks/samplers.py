"""Draws by priority, and slices: what one costs beside other libraries, and how much memory priorities take.

python benchmarks/samplers.py                 # N = 1e4 and 1e6
python benchmarks/samplers.py --sizes 1e7     # 20 GB of memory for all contenders
python benchmarks/samplers.py --quick         # to see that it runs
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

import slices
from contenders import CONTENDERS, LIBRARIES, Replay, module
from rounds import Call, Medians, Parts, Skipped, against_peers, measure, options, setting

BATCHES = (32, 256, 4096)
TURNS = 64
"""Sets of indices and priorities that updates take in turn: one alone would stay in the cache."""

DRAW, UPDATE, CYCLE, MEMORY = "indices + weights", "update", "full cycle", "memory"
SLICES = ("slices", "prioritized slices")


def timed(call: Callable[[], Any]) -> Parts:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return {"": time.perf_counter() - start}


def with_priorities(name: str, capacity: int) -> dict[str, Call]:
    """The calls of one contender that draw by priority, made in its own process."""
    replay = CONTENDERS[name](capacity, prioritized=True)
    replay.check()
    calls: dict[str, Call] = {}
    for size in BATCHES:
        calls[f"{UPDATE}, B {size}"] = _updates(replay, size)
        calls[f"{CYCLE}, B {size}"] = _cycles(replay, size)
        if type(replay).draw is not Replay.draw:
            calls[f"{DRAW}, B {size}"] = partial(timed, partial(replay.draw, size))
    if name == "replaybank":
        calls[MEMORY] = partial(_memory, replay)
    return calls


def _updates(replay: Replay, size: int) -> Call:
    rng = np.random.default_rng(size)
    turns = [
        (
            replay.as_index(rng.integers(replay.capacity, size=size)),
            replay.as_priority(rng.random(size, np.float32) + 0.01),
        )
        for _ in range(TURNS)
    ]
    count = 0

    def call() -> Parts:
        nonlocal count
        count += 1
        return timed(partial(replay.update, *turns[count % TURNS]))

    return call


def _cycles(replay: Replay, size: int) -> Call:
    priority = replay.as_priority(np.random.default_rng(size).random(size, np.float32) + 0.01)
    return partial(timed, partial(replay.cycle, size, priority))


def _memory(replay: Any) -> Parts:
    """Bytes a step that the tree takes, leaves included."""
    return {"": replay.sampler._table.tree.nbytes / replay.capacity}


def of_slices(name: str, capacity: int, kind: str) -> dict[str, Call]:
    """The calls of one contender that draw slices."""
    library = slices.ours() if name == "replaybank" else module("torchrl.data")
    given: tuple[Any, ...] = (capacity, 0.6, 0.4) if kind == SLICES[1] else ()
    sampler = "PrioritizedSliceSampler" if given else "SliceSampler"
    try:
        replay = slices.Buffers(capacity, library, sampler, given, cache_values=True)
    except RuntimeError as error:
        raise Skipped(f"torchrl's extension does not load with this torch ({error})"[:200]) from None
    replay.fill()
    replay.check()

    def call(shape: str, write: bool) -> Parts:
        return {"": replay.timed(shape, write)["sample"]}

    return {
        f"{kind}, {slices.case_name(shape, write)}": partial(call, shape, writes)
        for write, writes in slices.WRITES.items()
        for shape in slices.SHAPES
    }


def cases_of(*kinds: str) -> list[str]:
    """Names of the cases of some kinds."""
    names = [f"{kind}, B {size}" for kind in kinds if kind not in (MEMORY, *SLICES) for size in BATCHES]
    for kind in kinds:
        if kind in SLICES:
            names += [
                f"{kind}, {slices.case_name(shape, write)}"
                for write in slices.WRITES
                for shape in slices.SHAPES
            ]
    return names


def main() -> None:
    """Measure and print."""
    able = [name for name in CONTENDERS if name != "Stable-Baselines3"]
    chosen = options(__doc__, able, [1e4, 1e6])
    print(
        f"Medians of single calls in microseconds, {chosen.rounds} rounds, one thread.\n{setting(LIBRARIES)}"
    )
    for size in chosen.sizes:
        draws = cases_of(DRAW, UPDATE, CYCLE)
        names = list(chosen.only)

        def make(name: str, capacity: int = size) -> Callable[[], Mapping[str, Call]]:
            return partial(with_priorities, name, capacity)

        print(f"\nN = {size:.0e}, steps of 165 bytes")
        medians: Medians = measure(make, names, [*draws, MEMORY], chosen)
        print(against_peers(draws, names, medians))
        took = medians.get(("replaybank", MEMORY, ""))
        if took is not None:
            print(f"Memory of replaybank's priorities: {took:.2f} bytes a step in float32.")
        if size < slices.WRITTEN:
            continue
        for kind in SLICES:
            names = [name for name in chosen.only if name in ("replaybank", "torchrl")]

            def make_slices(
                name: str, capacity: int = size, wanted: str = kind
            ) -> Callable[[], Mapping[str, Call]]:
                return partial(of_slices, name, capacity, wanted)

            medians = measure(make_slices, names, cases_of(kind), chosen) if names else {}
            print(against_peers(cases_of(kind), names, medians) if medians else "")


if __name__ == "__main__":
    main()
