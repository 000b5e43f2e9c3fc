"""Streams of all kinds, to be left in the midst and taken up again, in this process or in another one."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from memory_source import MemorySource, episode
from replaybank.datasets.openx.mixture import OpenXMixture
from replaybank.datasets.openx.nest import unnest
from replaybank.datasets.openx.replay import OpenXExperienceReplay
from replaybank.datasets.openx.sources.base import Shard

LENGTHS = (4, 1, 6, 3, 8, 5, 7, 9, 2, 10, 11, 12, 6, 5)
MORE = 5
"""Batches that are compared behind the one at which a stream was left."""


class Unsaid(MemorySource):
    """A source that does not say how many episodes its shards have."""

    def shards(self) -> list[Shard]:
        return [Shard(shard.number, shard.path, None) for shard in super().shards()]


def source(kind: type[MemorySource], first: int = 0) -> MemorySource:
    """Three shards."""
    made = [episode(first + number, length) for number, length in enumerate(LENGTHS)]
    return kind([made[:5], made[5:9], made[9:]])


Case = dict[str, Any]
"""``form`` (``"for"``, ``"sample"``, ``"mixture"``), ``kind`` and the arguments of a dataset."""


def cases() -> list[Case]:
    """All kinds of streams. Slices longer than an episode come whole or are filled up."""
    short: Case = {"strict_length": False}
    shapes: list[Case] = [
        {"batch_size": 6, "slice_len": 3, **short},
        {"batch_size": 6, "slice_len": 3, "pad": 0},
        {"batch_size": 8, "num_slices": 2, **short},
        {"batch_size": 5, **short},
    ]
    whole: list[Case] = [{}, {"num_slices": 3}, {"slice_len": 4, "pad": 7}]
    found: list[Case] = []
    for form, of_form in (("for", shapes + whole), ("sample", shapes)):
        for number, shape in enumerate(of_form):
            for shuffle in (True, False):
                for rank, world_size in ((0, 1), (number % 2, 2), (3, 5)):
                    kind = ("MemorySource", "Unsaid")[(number + world_size) % 2]
                    share = {"rank": rank, "world_size": world_size}
                    found.append({"form": form, "kind": kind, "shuffle": shuffle, **shape, **share})
    for rank, world_size in ((0, 1), (1, 3)):
        mixed = {"form": "mixture", "kind": "MemorySource", "batch_size": 12, "slice_len": 2, "pad": 0}
        found.append({**mixed, "rank": rank, "world_size": world_size})
    return found


def dataset_of(case: Case, seed: int) -> Any:
    """The stream of a case; the seed of one that is to take over a state does not matter."""
    arguments = {name: value for name, value in case.items() if name not in ("form", "kind")}
    kind = {"MemorySource": MemorySource, "Unsaid": Unsaid}[case["kind"]]
    arguments.update(generator=torch.Generator().manual_seed(seed), buffer_bytes=30_000, num_workers=1)
    if case["form"] == "mixture":
        sources = {"a": source(kind), "b": source(kind, 50)}
        return OpenXMixture({"a": 1.0, "b": 2.0}, source=sources, **arguments)
    return OpenXExperienceReplay("arm", source=source(kind), **arguments)


def batches_of(case: Case, dataset: Any) -> Iterator[Any]:
    """Batches from where the dataset stands."""
    return iter(dataset) if case["form"] == "for" else iter(dataset.sample, None)


def digest(batch: Any) -> str:
    """The same for batches with the same entries, dtypes, shapes and values."""
    found = hashlib.sha256(repr(list(batch.batch_size)).encode())
    for key, value in sorted(unnest(batch).items()):
        if isinstance(value, torch.Tensor):
            content = np.ascontiguousarray(value.numpy())
            found.update(f"{key} {content.dtype} {content.shape}".encode() + content.tobytes())
        else:
            found.update(json.dumps([list(key), value.tolist()]).encode())
    return found.hexdigest()


def following(case: Case, state: Any) -> list[str]:
    """What comes from a state."""
    dataset = dataset_of(case, seed=99)
    dataset.load_state_dict(state)
    found = [digest(batch) for batch in islice(batches_of(case, dataset), MORE)]
    dataset.close()
    return found


# --- in workers --------------------------------------------------------------------------------------------


class Reported(IterableDataset[Any]):
    """Batches with the state behind each, begun from a state of the same worker where there is one."""

    def __init__(self, case: Case, states: list[Any] | None) -> None:
        self.case = case
        self.dataset = dataset_of(case, seed=1 if states is None else 99)
        self.states = states

    def __iter__(self) -> Iterator[tuple[int, str, bytes]]:
        worker = get_worker_info()
        assert worker is not None
        if self.states is not None:
            self.dataset.load_state_dict(pickle.loads(self.states[worker.id]))
        for batch in islice(batches_of(self.case, self.dataset), 2 * MORE):
            yield worker.id, digest(batch), pickle.dumps(self.dataset.state_dict())


def as_it_is(batch: Any) -> Any:
    return batch


def from_workers(case: Case, states: list[Any] | None, timeout: float) -> list[list[tuple[str, bytes]]]:
    """What each of two workers gives, in its order."""
    found: list[list[tuple[str, bytes]]] = [[], []]
    options: Any = {"num_workers": 2, "collate_fn": as_it_is, "timeout": timeout}
    for worker, batch, state in DataLoader(Reported(case, states), batch_size=None, **options):
        found[worker].append((batch, state))
    return found


# --- in another process ------------------------------------------------------------------------------------


def child(path: str) -> None:
    """Take up every state in a file of ``(case, state)``, and write what comes behind it."""
    left = pickle.loads(Path(path).read_bytes())
    Path(path + ".out").write_text(json.dumps([following(case, state) for case, state in left]))


def child_with_workers(path: str, timeout: float) -> None:
    """The same in two workers of a ``DataLoader``."""
    left = pickle.loads(Path(path).read_bytes())
    found = [
        [[batch for batch, _ in worker] for worker in from_workers(case, states, timeout)]
        for case, states in left
    ]
    Path(path + ".out").write_text(json.dumps(found))
