"""Saving and loading a full prioritized replay of 165-byte steps, beside what else people use.

Claim: a checkpoint that is atomic, checked and complete costs little more than writing the raw columns; and
saving again costs what was written since.

    python benchmarks/checkpoint.py            # a minute
    python benchmarks/checkpoint.py --quick    # seconds, to see that it runs
"""

from __future__ import annotations

import argparse
import importlib
import os
import pickle
import platform
import shutil
import tempfile
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from rounds import Call, Contender, Medians, Parts, Skipped, compare, show

CHANGED = 0.01
"""Part of the steps that is written before a save is made again."""

CASES = {
    "save, no fsync": "a new folder; the system writes it to the disk when it likes",
    "save": "a new folder, on the disk at the end",
    "save again": f"over the last one, {CHANGED:.0%} of the steps written since; on the disk at the end",
    "load": "into a replay of the same size, whose memory has been touched",
}


def steps(count: int) -> TensorDict:
    """Steps of a half-cheetah, 165 bytes each."""
    rng = np.random.default_rng(0)
    return TensorDict(
        {
            "observation": torch.from_numpy(rng.random((count, 17), np.float32)),
            "action": torch.from_numpy(rng.random((count, 6), np.float32)),
            "next": TensorDict(
                {
                    "observation": torch.from_numpy(rng.random((count, 17), np.float32)),
                    "reward": torch.from_numpy(rng.random((count, 1), np.float32)),
                    "done": torch.zeros(count, 1, dtype=torch.bool),
                },
                [count],
            ),
        },
        [count],
    )


class Saver(ABC):
    """One way to save and load; each keeps a full replay of ``size`` steps."""

    syncs = False
    """Whether a save is on the disk without being told to."""

    def __init__(self, size: int) -> None:
        self.size = size

    @abstractmethod
    def save(self, path: Path) -> None:
        """Save everything into a folder."""

    @abstractmethod
    def load(self, path: Path) -> None:
        """Load everything from it."""

    @abstractmethod
    def change(self) -> None:
        """Write some steps."""


class Replaybank(Saver):
    """``dumps`` and ``loads`` of a buffer, memory-mapped or not."""

    syncs = True

    def __init__(self, size: int, storage: str) -> None:
        from replaybank import (
            LazyMemmapStorage,
            LazyTensorStorage,
            PrioritizedSampler,
            TensorDictReplayBuffer,
        )

        super().__init__(size)
        kind = LazyMemmapStorage if storage == "memmap" else LazyTensorStorage
        self.buffer = TensorDictReplayBuffer(
            storage=kind(size), sampler=PrioritizedSampler(size, 0.6, 0.4), batch_size=32
        )
        self.buffer.extend(steps(size))
        self.some = steps(int(size * CHANGED))

    def save(self, path: Path) -> None:
        self.buffer.dumps(path)

    def load(self, path: Path) -> None:
        # Without what a failed load would be undone with: nobody loads into a full replay.
        self.buffer.empty()
        self.buffer.loads(path)

    def change(self) -> None:
        self.buffer.extend(self.some)


class Columns(Saver):
    """The columns and the priorities in NumPy's format: no cursor, no checksums, not atomic."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        flat = steps(size).flatten_keys(".")
        self.columns = {str(key): flat[key].numpy() for key in flat.keys()}  # noqa: SIM118
        self.columns["priority"] = np.ones(size, np.float32)

    def save(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        for name, column in self.columns.items():
            np.save(path / f"{name}.npy", column)

    def load(self, path: Path) -> None:
        for name, column in self.columns.items():
            column[:] = np.load(path / f"{name}.npy")

    def change(self) -> None:
        pass


class TorchSave(Columns):
    """The same in one file of ``torch.save``."""

    def save(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        torch.save({name: torch.from_numpy(column) for name, column in self.columns.items()}, path / "all.pt")

    def load(self, path: Path) -> None:
        for name, column in torch.load(path / "all.pt").items():
            self.columns[name][:] = column.numpy()


class Pickle(Columns):
    """The same in one pickle, as some libraries do; loading it can run any code."""

    def save(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        with (path / "all.pkl").open("wb") as file:
            pickle.dump(self.columns, file, protocol=5)

    def load(self, path: Path) -> None:
        with (path / "all.pkl").open("rb") as file:
            for name, column in pickle.load(file).items():
                self.columns[name][:] = column


class Torchrl(Saver):
    """``dumps`` and ``loads`` of torchrl's buffer."""

    def __init__(self, size: int) -> None:
        try:
            data: Any = importlib.import_module("torchrl.data")
        except ImportError as error:
            raise Skipped(str(error)) from None
        super().__init__(size)
        try:
            sampler = data.PrioritizedSampler(size, alpha=0.6, beta=0.4)
        except RuntimeError as error:  # its compiled part is built for another torch
            raise Skipped(str(error)) from None
        self.buffer = data.TensorDictReplayBuffer(
            storage=data.LazyTensorStorage(size), sampler=sampler, batch_size=32
        )
        self.buffer.extend(steps(size))
        self.some = steps(int(size * CHANGED))

    def save(self, path: Path) -> None:
        self.buffer.dumps(path)

    def load(self, path: Path) -> None:
        self.buffer.loads(path)

    def change(self) -> None:
        self.buffer.extend(self.some)


CONTENDERS: dict[str, Any] = {
    "replaybank": partial(Replaybank, storage="memory"),
    "replaybank, memory-mapped": partial(Replaybank, storage="memmap"),
    "np.save": Columns,
    "torch.save": TorchSave,
    "pickle": Pickle,
    "torchrl": Torchrl,
}


@contextmanager
def without_fsync() -> Iterator[None]:
    """Have nothing wait for the disk."""
    real = os.fsync
    setattr(os, "fsync", lambda _: None)  # noqa: B010 (its type takes no other signature)
    try:
        yield
    finally:
        os.fsync = real


def sync(path: Path) -> None:
    """Have all files of a folder on the disk."""
    for file in path.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())


def calls(make: Any, size: int) -> Mapping[str, Call]:
    """What one contender does, by case."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    saver: Saver = make(size)
    folder = tempfile.TemporaryDirectory(prefix="replaybank-benchmark-")
    fresh, last = Path(folder.name, "fresh"), Path(folder.name, "last")
    with without_fsync():
        saver.save(last)

    def timed(work: Any, *paths: Path) -> Parts:
        start = time.perf_counter()
        for step in work:
            step(*paths)
        return {"": time.perf_counter() - start}

    def save(synced: bool) -> Parts:
        folder.name  # noqa: B018 (the folder lives as long as what is called)
        shutil.rmtree(fresh, ignore_errors=True)
        if not synced:
            with without_fsync():
                return timed([saver.save], fresh)
        return timed([saver.save] if saver.syncs else [saver.save, sync], fresh)

    def again() -> Parts:
        saver.change()
        return timed([saver.save] if saver.syncs else [saver.save, sync], last)

    def load() -> Parts:
        return timed([saver.load], last)

    return dict(zip(CASES, (partial(save, False), partial(save, True), again, load), strict=True))


def report(medians: Medians, names: list[str]) -> str:
    """The table."""
    rows = []
    for case in CASES:
        first = medians[names[0], case, ""]
        cells = [
            f"{medians[name, case, ''] * 1e3:.0f} ({medians[name, case, ''] / first:.1f})" for name in names
        ]
        rows.append([case, *cells])
    return show(["milliseconds", *names], rows)


def main() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few steps, one round")
    parser.add_argument("--size", type=float, default=1e6, help="steps of the replay")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    given = parser.parse_args()
    size = 20_000 if given.quick else int(given.size)
    print(f"{size} steps of 165 bytes; {platform.machine()}, torch {torch.__version__}, one process each\n")
    with ExitStack() as stack:
        ready = []
        for name in given.only:
            contender = stack.enter_context(Contender(name, partial(calls, CONTENDERS[name], size)))
            try:
                contender.ready()
            except Skipped as reason:
                print(f"{name} is left out: {reason}")
            else:
                ready.append(contender)
        found = compare(ready, list(CASES), rounds=1 if given.quick else 7, seconds=0.5, calls=3)
    print(report(found, [contender.name for contender in ready]))
    for case, what in CASES.items():
        print(f"- {case}: {what}")


if __name__ == "__main__":
    main()
