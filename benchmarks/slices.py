"""Slices of trajectories from a full, wrapped replay: what one batch costs as the replay grows.

Claim: sampling slices costs the same at every size, whether something was written since the last batch or
not. Beside it: NumPy as a careful user writes it by hand, and torchrl where it is installed.

    python benchmarks/slices.py            # a few minutes
    python benchmarks/slices.py --quick    # seconds, to see that it runs
"""

from __future__ import annotations

import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict

from rounds import Call, Medians, Parts, Skipped, measure, options, setting, show

TRAJECTORY = 100
"""Steps of a trajectory."""
WRITTEN = 1000
"""Steps written before a batch, where something is written."""
FILL = 100_000
"""Steps of a batch while the replay is filled."""

SHAPES = {"L 8, B 256": (8, 256), "L 64, B 4096": (64, 4096)}
WRITES = {"nothing written": False, f"{WRITTEN} written": True}


def case_name(shape: str, write: str) -> str:
    """Name of a case."""
    return f"{shape}, {write}"


def steps(first: int, count: int) -> dict[str, npt.NDArray[Any]]:
    """Steps of a half-cheetah, 174 bytes each, numbered from ``first`` on."""
    number = np.arange(first, first + count)
    rng = np.random.default_rng(first)
    return {
        "observation": rng.random((count, 17), np.float32),
        "action": rng.random((count, 6), np.float32),
        "next_observation": rng.random((count, 17), np.float32),
        "next_reward": rng.random((count, 1), np.float32),
        "next_done": (number % TRAJECTORY == TRAJECTORY - 1)[:, None],
        "next_terminated": np.zeros((count, 1), bool),
        "episode": (number // TRAJECTORY).astype(np.int32),
        "step": (number % TRAJECTORY).astype(np.int32),
    }


class Replay(ABC):
    """A contender: a replay of ``capacity`` steps, filled and wrapped."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.written = 0

    def fill(self) -> None:
        """Write until every slot has been written and the first ones twice."""
        size = min(FILL, self.capacity)
        while self.written < self.capacity + size:
            self.extend(self.convert(steps(self.written, size)))
            self.written += size
        self.block = self.convert(steps(self.written, WRITTEN))

    @abstractmethod
    def convert(self, data: dict[str, npt.NDArray[Any]]) -> Any:
        """Steps in the form that the contender takes."""

    @abstractmethod
    def extend(self, data: Any) -> None:
        """Write steps."""

    @abstractmethod
    def sample(self, shape: str) -> Any:
        """A batch of slices."""

    def timed(self, shape: str, write: bool) -> Parts:
        """Seconds of one batch, and of the writing before it."""
        start = time.perf_counter()
        if write:
            self.extend(self.block)
        middle = time.perf_counter()
        self.sample(shape)
        end = time.perf_counter()
        if not write:
            return {"sample": end - middle}
        self.written += WRITTEN
        self.block["episode"] += WRITTEN // TRAJECTORY  # in place: the next trajectories, at no cost in time
        return {"sample": end - middle, "extend": middle - start}

    def check(self) -> None:
        """Slices that are none would be no achievement."""
        for shape, (length, size) in SHAPES.items():
            batch = self.sample(shape)
            episode = np.asarray(batch["episode"]).reshape(-1, length)
            step = np.asarray(batch["step"]).reshape(-1, length)
            if episode.size != size or (np.diff(episode) != 0).any() or (np.diff(step) != 1).any():
                raise RuntimeError("a slice is not made of consecutive steps of one trajectory")


class ByHand(Replay):
    """NumPy: arrays in a circle; before a batch the ends of trajectories are looked for in all of them."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.data = {
            name: np.zeros((capacity, *value.shape[1:]), value.dtype) for name, value in steps(0, 1).items()
        }
        self.cursor = 0
        self.length = 0
        self.rng = np.random.default_rng(0)

    def convert(self, data: dict[str, npt.NDArray[Any]]) -> Any:
        return data

    def extend(self, data: Any) -> None:
        count = len(data["step"])
        fits = min(count, self.capacity - self.cursor)
        for name, values in data.items():
            self.data[name][self.cursor : self.cursor + fits] = values[:fits]
            self.data[name][: count - fits] = values[fits:]
        self.cursor = (self.cursor + count) % self.capacity
        self.length = min(self.length + count, self.capacity)

    def trajectories(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """First steps and lengths of all trajectories. O(N)."""
        done = self.data["next_done"][: self.length, 0]
        stops = np.flatnonzero(done)
        newest = (self.cursor - 1) % self.capacity
        if not done[newest]:
            stops = np.insert(stops, np.searchsorted(stops, newest), newest)
        before = np.roll(stops, 1)
        return (before + 1) % self.capacity, (stops - before - 1) % self.capacity + 1

    def sample(self, shape: str) -> Any:
        length, size = SHAPES[shape]
        first, lengths = self.trajectories()
        fit = np.flatnonzero(lengths >= length)
        drawn = fit[self.rng.integers(len(fit), size=size // length)]
        start = first[drawn] + self.rng.integers(lengths[drawn] - length + 1)
        index = ((start[:, None] + np.arange(length)) % self.capacity).reshape(-1)
        batch = {name: values.take(index, axis=0) for name, values in self.data.items()}
        truncated = np.zeros((size, 1), bool)
        truncated[length - 1 :: length] = True
        batch["next_truncated"] = truncated
        batch["next_done"] |= truncated
        batch["index"] = index
        return batch


class ByHandCached(ByHand):
    """The same, but what was found is kept until something is written."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.found: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None

    def extend(self, data: Any) -> None:
        super().extend(data)
        self.found = None

    def trajectories(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        if self.found is None:
            self.found = super().trajectories()
        return self.found


class Buffers(Replay):
    """A library's TensorDictReplayBuffer with a LazyTensorStorage and slice samplers."""

    def __init__(
        self,
        capacity: int,
        library: Any,
        sampler: str = "SliceSampler",
        given: tuple[Any, ...] = (),
        **options: Any,
    ) -> None:
        super().__init__(capacity)
        self.buffer = library.TensorDictReplayBuffer(storage=library.LazyTensorStorage(capacity))
        self.samplers = {
            shape: getattr(library, sampler)(*given, slice_len=length, traj_key="episode", **options)
            for shape, (length, _) in SHAPES.items()
        }
        self.shape = ""

    def convert(self, data: dict[str, npt.NDArray[Any]]) -> Any:
        flat = {tuple(name.split("_", 1)) if "_" in name else name: value for name, value in data.items()}
        return TensorDict(
            {name: torch.from_numpy(value) for name, value in flat.items()}, batch_size=len(data["step"])
        )

    def extend(self, data: Any) -> None:
        self.buffer.extend(data)

    def sample(self, shape: str) -> Any:
        return self.buffer.sample(SHAPES[shape][1])

    def timed(self, shape: str, write: bool) -> Parts:
        self.use(shape)
        return super().timed(shape, write)

    def check(self) -> None:
        for shape in SHAPES:
            self.use(shape)
        super().check()

    def use(self, shape: str) -> None:
        """Put the sampler of a shape into the buffer; not timed."""
        if shape != self.shape:
            self.buffer.set_sampler(self.samplers[shape])
            self.shape = shape


def ours() -> Any:
    """replaybank, imported in the contender's process only."""
    return importlib.import_module("replaybank")


def _replaybank(capacity: int) -> Replay:
    return Buffers(capacity, ours())


def _torchrl(capacity: int) -> Replay:
    try:
        data = importlib.import_module("torchrl.data")
    except (ImportError, OSError, RuntimeError) as error:
        raise Skipped(f"torchrl cannot be imported ({error})") from None
    # What torchrl's documentation advises for speed; it drops the cache at each write by itself.
    return Buffers(capacity, data, cache_values=True)


CONTENDERS: Mapping[str, Any] = {
    "replaybank": _replaybank,
    "NumPy, rescan": ByHand,
    "NumPy, cached": ByHandCached,
    "torchrl": _torchrl,
}


def make(contender: str, capacity: int) -> dict[str, Call]:
    """The calls of one contender, made in its own process."""
    torch.set_num_threads(1)
    replay: Replay = CONTENDERS[contender](capacity)
    replay.fill()
    replay.check()
    return {
        case_name(shape, write): partial(replay.timed, shape, writes)
        for write, writes in WRITES.items()
        for shape in SHAPES
    }


def table(sizes: list[int], contenders: list[str], medians: dict[int, Medians]) -> str:
    """Microseconds a batch, in parentheses as a multiple of the first contender's."""

    def cell(size: int, contender: str, case: str, part: str) -> str:
        took = medians[size].get((contender, case, part))
        if took is None:
            return "-"
        first = medians[size][(contenders[0], case, part)]
        return f"{took * 1e6:,.0f} ({took / first:.1f})"

    rows = []
    for shape in SHAPES:
        for write, writes in WRITES.items():
            for size in sizes:
                case = case_name(shape, write)
                rows.append([case, f"{size:.0e}", *(cell(size, name, case, "sample") for name in contenders)])
                if writes and shape == next(iter(SHAPES)):
                    cells = (cell(size, name, case, "extend") for name in contenders)
                    rows.append([f"writing {WRITTEN} alone", f"{size:.0e}", *cells])
    rows.sort(key=lambda row: row[0].startswith("writing"))
    return show(["microseconds (ratio)", "N", *contenders], rows)


def main() -> None:
    """Measure and print."""
    chosen = options(__doc__, CONTENDERS, [1e5, 1e6])
    if min(chosen.sizes) < WRITTEN:
        raise SystemExit(f"--sizes: at least {WRITTEN} steps, which are written before a batch")
    contenders = list(chosen.only)
    cases = [case_name(shape, write) for write in WRITES for shape in SHAPES]
    medians: dict[int, Medians] = {}
    for size in chosen.sizes:

        def make_one(name: str, capacity: int = size) -> Any:
            return partial(make, name, capacity)

        medians[size] = measure(make_one, contenders, cases, chosen)
    print(
        f"Medians of single batches, {chosen.rounds} rounds, one thread; steps of 174 bytes, "
        f"trajectories of {TRAJECTORY}.\n{setting(('torch', 'numpy', 'torchrl'))}\n"
    )
    print(table(chosen.sizes, contenders, medians))


if __name__ == "__main__":
    main()
