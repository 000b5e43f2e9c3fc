"""Uniform batches of steps and of images, and writing: what they cost beside other libraries.

python benchmarks/buffers.py                  # N = 1e6 steps, 2e4 pairs of images: 6 GB of memory
python benchmarks/buffers.py --images 5e4     # 14 GB of memory
python benchmarks/buffers.py --quick          # to see that it runs
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from contenders import CONTENDERS, LIBRARIES, Replay, steps
from rounds import Call, Medians, Parts, Skipped, against_peers, measure, options, setting

BATCHES = (32, 256, 4096)
IMAGE_BATCHES = (32, 256)
WRITES = (1, 64, 1000)
ENVIRONMENTS = (1, 8, 64)
FLOOR = "floor (NumPy)"


def timed(call: Callable[[], Any]) -> Parts:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return {"": time.perf_counter() - start}


class Floor(Replay):
    """NumPy alone, an array a leaf, outputs used again: no objects around a batch, no checks."""

    def make(self) -> None:
        if self.prioritized:
            raise Skipped("it has no priorities")
        self.columns: dict[str, npt.NDArray[Any]] = {}
        self.outputs: dict[int, dict[str, npt.NDArray[Any]]] = {}
        self.rng = np.random.default_rng(0)
        self.cursor = 0

    def write(self, data: dict[str, npt.NDArray[Any]], first: int) -> None:
        for name, value in data.items():
            if name not in self.columns:
                self.columns[name] = np.zeros((self.capacity, *value.shape[1:]), value.dtype)
            self.columns[name][first : first + len(value)] = value

    def sample(self, size: int) -> Any:
        out = self.outputs.get(size)
        if out is None:
            out = {
                name: np.zeros((size, *value.shape[1:]), value.dtype) for name, value in self.columns.items()
            }
            self.outputs[size] = out
        index = self.rng.integers(self.capacity, size=size)
        for name, value in self.columns.items():
            np.take(value, index, axis=0, out=out[name], mode="clip")
        return out

    def arrays(self, batch: Any) -> dict[str, npt.NDArray[Any]]:
        return dict(batch)

    def extend(self, data: dict[str, npt.NDArray[Any]]) -> None:
        count = len(data["obs"])
        if self.cursor + count > self.capacity:
            self.cursor = 0
        for name, value in data.items():
            self.columns[name][self.cursor : self.cursor + count] = value
        self.cursor += count


ALL: dict[str, type[Replay]] = {**CONTENDERS, FLOOR: Floor}


def sampling(name: str, capacity: int, pixels: bool) -> dict[str, Call]:
    """Uniform batches of one contender, made in its own process."""
    replay = ALL[name](capacity, pixels=pixels)
    replay.check()
    kind = "images" if pixels else "uniform"
    sizes = IMAGE_BATCHES if pixels else BATCHES
    return {f"{kind}, B {size}": partial(timed, partial(replay.sample, size)) for size in sizes}


def writing(name: str, capacity: int, prioritized: bool) -> dict[str, Call]:
    """Writing of one contender into a full replay, made in its own process."""
    if name in ("tianshou", "Stable-Baselines3"):
        raise Skipped("it takes one step at a time, of a fixed number of environments")
    replay: Any = ALL[name](capacity, prioritized=prioritized)
    replay.check()
    kind = "prioritized writing" if prioritized else "writing"
    calls: dict[str, Call] = {}
    for count in WRITES:
        data = steps(capacity, count)
        write: Callable[[], Any]
        if name in ("replaybank", "torchrl"):
            batch = replay.convert(data)
            write = (
                partial(replay.buffer.add, batch[0]) if count == 1 else partial(replay.buffer.extend, batch)
            )
        elif name == "cpprb":
            single = {key: value[0] for key, value in data.items()}
            write = partial(replay.buffer.add, **(single if count == 1 else data))
        elif name == "flashbax":
            write = partial(
                _flashbax, replay, {key: replay.numpy.asarray(value) for key, value in data.items()}
            )
        else:
            write = partial(replay.extend, data)
        calls[f"{kind}, {count}"] = partial(timed, write)
    return calls


def recording(name: str, environments: int) -> dict[str, Call]:
    """A step of vector environments recorded, in the layouts there are for it."""
    if name != "replaybank":
        raise Skipped("it has no recorder of environments")
    from replaybank import LazyTensorStorage, TensorDictReplayBuffer, TrajectoryRecorder

    calls: dict[str, Call] = {}
    for mode, ndim in itertools.product(("same_step", "next_step"), (2, 1)):
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100_000, ndim=ndim))
        recorder = TrajectoryRecorder(buffer, num_envs=environments, autoreset=mode)
        steps = _steps_of_environments(environments, mode)
        calls[f"recording {environments} envs, {mode}, ndim={ndim}"] = partial(_record, recorder, steps)
    return calls


def _steps_of_environments(count: int, mode: str) -> Iterator[dict[str, Any]]:
    """What environments with episodes of 50 to 100 steps give, with nothing computed in them."""
    rng = np.random.default_rng(0)
    left, resets = rng.integers(1, 100, count), np.zeros(count, np.bool_)
    obs = rng.normal(size=(count, 17)).astype(np.float32)
    fixed = {"action": np.ones((count, 6), np.float32), "reward": np.ones(count)}
    while True:
        after = obs + np.float32(1)
        left = left - ~resets
        ended = ~resets & (left <= 0)
        left = np.where(ended, rng.integers(50, 100, count), left)
        resets = ended & (mode == "next_step")
        flags = {"terminated": ended, "truncated": np.zeros(count, np.bool_)}
        yield {"obs": obs, **fixed, **flags, "next_obs": after, "info": {"final_obs": after + np.float32(1)}}
        obs = after


def _record(recorder: Any, steps: Iterator[dict[str, Any]]) -> Parts:
    step = next(steps)
    return timed(partial(recorder.record, **step))


def _flashbax(replay: Any, data: dict[str, Any]) -> None:
    replay.state = replay.add(replay.state, data)
    replay.jax.block_until_ready(replay.state)


def main() -> None:
    """Measure and print."""
    pairs = 20_000
    if "--images" in sys.argv:  # the one option that the other scripts do not have
        at = sys.argv.index("--images")
        pairs = int(float(sys.argv[at + 1]))
        del sys.argv[at : at + 2]
    chosen = options(__doc__, ALL, [1e6])
    if chosen.quick:
        pairs = 1000
    print(
        f"Medians of single calls in microseconds, {chosen.rounds} rounds, one thread.\n{setting(LIBRARIES)}"
    )

    def compared(make: Callable[[str], Callable[[], Mapping[str, Call]]], cases: list[str]) -> None:
        wanted = [case for case in cases if not chosen.cases or case.startswith(tuple(chosen.cases))]
        if wanted:
            names = list(chosen.only)
            medians: Medians = measure(make, names, wanted, chosen)
            print(against_peers(wanted, names, medians))

    for size in chosen.sizes:
        print(f"\nN = {size:.0e}, steps of 165 bytes")
        cases = [f"uniform, B {batch}" for batch in BATCHES]
        compared(partial(partial, sampling, capacity=size, pixels=False), cases)
        for prioritized, kind in ((False, "writing"), (True, "prioritized writing")):
            cases = [f"{kind}, {count}" for count in WRITES]
            compared(partial(partial, writing, capacity=size, prioritized=prioritized), cases)
    print("\nA step of vector environments, into 100,000 steps of 165 bytes")
    for count in ENVIRONMENTS:
        cases = [
            f"recording {count} envs, {mode}, ndim={ndim}"
            for mode, ndim in itertools.product(("same_step", "next_step"), (2, 1))
        ]
        compared(partial(partial, recording, environments=count), cases)
    print(f"\n{pairs:,} pairs of images, uint8 [4, 84, 84] each")
    cases = [f"images, B {batch}" for batch in IMAGE_BATCHES]
    compared(partial(partial, sampling, capacity=pairs, pixels=True), cases)


if __name__ == "__main__":
    main()
