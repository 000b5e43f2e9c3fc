"""What every sampler must do, whatever else it does: one harness that all of them pass.

Add a :class:`SamplerCase` to :data:`SAMPLERS`; ``tests/samplers/test_contracts.py`` runs every check for it,
on storages of one and of several dimensions, partly filled, exactly full and wrapped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.samplers.base import Sampler
from replaybank.samplers.consuming import ConsumingSampler
from replaybank.samplers.prioritized import PrioritizedSampler
from replaybank.samplers.prioritized_slice import PrioritizedSliceSampler
from replaybank.samplers.random import RandomSampler
from replaybank.samplers.slice import SliceSampler
from replaybank.samplers.slice_without_replacement import SliceSamplerWithoutReplacement
from replaybank.samplers.staleness import StalenessAwareSampler
from replaybank.samplers.without_replacement import SamplerWithoutReplacement
from replaybank.storages import LazyTensorStorage

EPISODE = 5
"""Steps of every episode in :func:`steps`; a whole number of them is in :data:`BATCH`."""

BATCH = 10
"""Items of a batch."""


class SamplerCase(NamedTuple):
    """A sampler under test.

    Args:
        name: shows in the names of tests.
        make: a new one, the same each time, for storages of at most 200 items.
        slices: it gives slices: its index is a tuple always, and a storage of one item needs ``one``.
        one: the same with slices of one step, for storages of one item.
    """

    name: str
    make: Callable[[], Sampler]
    slices: bool = False
    one: Callable[[], Sampler] | None = None


SAMPLERS = [
    SamplerCase("random", RandomSampler),
    SamplerCase("prioritized", lambda: PrioritizedSampler(200, 0.6, 0.4)),
    SamplerCase(
        "prioritized within the buffer, stratified",
        lambda: PrioritizedSampler(
            200, 0.6, 0.4, dtype=torch.float64, max_priority_within_buffer=True, stratified=True
        ),
    ),
    SamplerCase(
        "prioritized slices",
        lambda: PrioritizedSliceSampler(200, 0.6, 0.4, slice_len=2),
        True,
        lambda: PrioritizedSliceSampler(200, 0.6, 0.4, slice_len=1),
    ),
    SamplerCase(
        "prioritized slices with a span",
        lambda: PrioritizedSliceSampler(200, 0.6, 0.4, num_slices=2, span=(False, True), strict_length=False),
        True,
        lambda: PrioritizedSliceSampler(200, 0.6, 0.4, num_slices=1),
    ),
    SamplerCase("without replacement", SamplerWithoutReplacement),
    SamplerCase("without replacement, stored order", lambda: SamplerWithoutReplacement(shuffle=False)),
    SamplerCase("without replacement, drop last", lambda: SamplerWithoutReplacement(drop_last=True)),
    SamplerCase("slices", lambda: SliceSampler(slice_len=2), True, lambda: SliceSampler(slice_len=1)),
    SamplerCase(
        "slices with a span",
        lambda: SliceSampler(num_slices=2, span=True, strict_length=False),
        True,
        lambda: SliceSampler(num_slices=1),
    ),
    SamplerCase(
        "slices without replacement",
        lambda: SliceSamplerWithoutReplacement(slice_len=2),
        True,
        lambda: SliceSamplerWithoutReplacement(slice_len=1),
    ),
    SamplerCase(
        "slices without replacement, drop last",
        lambda: SliceSamplerWithoutReplacement(num_slices=2, drop_last=True),
        True,
        lambda: SliceSamplerWithoutReplacement(num_slices=1, drop_last=True),
    ),
    SamplerCase("consuming", lambda: ConsumingSampler(100)),
    SamplerCase("staleness", StalenessAwareSampler),
    SamplerCase("staleness, the newest", lambda: StalenessAwareSampler(7, decay=0)),
]


def steps(start: int, count: int, columns: tuple[int, ...] = ()) -> TensorDict:
    """Steps ``start, start + 1, ...``, every one numbered, in episodes of :data:`EPISODE`."""
    number = (start + torch.arange(count)).reshape(count, *[1 for _ in columns]).expand(count, *columns)
    done = (number % EPISODE == EPISODE - 1).unsqueeze(-1)
    return TensorDict(
        {"number": number.clone(), "episode": number // EPISODE, "next": {"done": done}},
        batch_size=[count, *columns],
    )


class World:
    """A storage and a sampler that hears of every write, as in a buffer.

    Args:
        case: which sampler.
        columns: dimensions behind time.
        rows: capacity along time.
        seed: of the sampler's generator; None: it has none.
    """

    def __init__(
        self, case: SamplerCase, columns: tuple[int, ...] = (), rows: int = 20, seed: int | None = 0
    ) -> None:
        self.columns = columns
        self.written = 0
        self.storage = LazyTensorStorage(rows * torch.Size(columns).numel(), ndim=1 + len(columns))
        self.sampler = case.make()
        if seed is not None:
            self.sampler.generator = torch.Generator().manual_seed(seed)

    def write(self, count: int) -> None:
        start = self.storage.log.cursor
        self.storage.write(start, self.storage.prepare(steps(self.written, count, self.columns)))
        self.written += count
        rows = (start + torch.arange(count)) % self.storage.rows
        if not self.columns:
            self.sampler.extend(rows)
            return
        grids = torch.meshgrid(rows, *map(torch.arange, self.columns), indexing="ij")
        self.sampler.extend(torch.stack(grids, -1).reshape(-1, self.storage.ndim))

    def sample(self, size: int = BATCH) -> tuple[list[Any], bool]:
        """A batch in plain values, and whether the sampler ran out with it."""
        index, info = self.sampler.sample(self.storage, size)
        return [plain(index), {str(key): plain(value) for key, value in info.items()}], self.sampler.ran_out


def plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value.tolist() if isinstance(value, Tensor) else value


def history(world: World, calls: int = 3) -> list[Any]:
    """Batches between writes: partly filled, then exactly full, then wrapped."""
    batches = []
    for count in (12, 8, 3, 30):
        world.write(min(count, world.storage.rows))
        batches += [world.sample() for _ in range(calls)]
    return batches


# ---- checks


def check_index(case: SamplerCase, columns: tuple[int, ...]) -> None:
    """What comes is int64, in its form, and there: items were written, and are the newest in their slots."""
    world = World(case, columns)
    n_dims = 1 + len(columns)
    for count in (12, 8, 3, 18):
        world.write(count)
        for _ in range(4):
            index, info = world.sampler.sample(world.storage, BATCH)
            assert isinstance(index, tuple) == (case.slices or n_dims > 1)
            parts = index if isinstance(index, tuple) else (index,)
            assert len(parts) == n_dims
            for part, size in zip(parts, world.storage.shape, strict=True):
                assert part.dtype == torch.int64
                assert part.shape == parts[0].shape == (len(part),)
                assert int(part.min()) >= 0
                assert int(part.max()) < size
            assert len(parts[0]) <= BATCH
            for value in info.values():
                assert len(value) == len(parts[0])
            numbers = world.storage.get(index if n_dims > 1 else parts[0])["number"]
            assert int(numbers.min()) >= world.written - world.storage.log.length
            if case.slices:
                ends = info["next", "truncated"].squeeze(-1)[:-1]
                assert torch.equal(torch.diff(numbers)[~ends], torch.ones_like(numbers[1:])[~ends])


def check_seed(case: SamplerCase, columns: tuple[int, ...]) -> None:
    """Same seed, same data, same calls: same batches; a generator of its own leaves the global one alone."""
    before = torch.get_rng_state()
    first = history(World(case, columns))
    assert torch.equal(before, torch.get_rng_state())
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if threads > 1 else 2)
    try:
        assert history(World(case, columns)) == first
    finally:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    assert history(World(case, columns, seed=None)) == first, "the global generator gives the same"


def check_state(case: SamplerCase, columns: tuple[int, ...], copied: Callable[[Sampler], Sampler]) -> None:
    """A sampler copied in mid-way, before and after the storage wraps, goes on as the first one does."""
    for writes in ((12,), (20,), (20, 3)):
        world = World(case, columns)
        for count in writes:
            world.write(count)
        world.sample()
        other = copied(world.sampler)
        assert type(other) is type(world.sampler)
        assert world.sampler.generator is not None
        other.generator = torch.Generator()
        other.generator.set_state(world.sampler.generator.get_state())
        right, world.sampler = [world.sample() for _ in range(4)], other
        assert [world.sample() for _ in range(4)] == right


def check_state_is_plain(case: SamplerCase) -> None:
    """State is tensors and plain values, a copy, and loading leaves it alone."""
    world = World(case)
    world.write(20)
    world.sample()
    state = world.sampler.state_dict()
    known = repr(state)
    world.sample()
    assert repr(state) == known
    other = case.make()
    other.load_state_dict(state)
    other.generator = torch.Generator().manual_seed(1)
    other.sample(world.storage, BATCH)
    assert repr(state) == known


def check_base(case: SamplerCase) -> None:
    """The members that every sampler has."""
    sampler = case.make()
    assert isinstance(sampler, Sampler)
    assert sampler.generator is None
    assert sampler.ran_out is False
    sampler.ran_out = True
    sampler.ran_out = False
    assert sampler.ran_out is False
    assert isinstance(sampler.exhaustible, bool)
    assert float(sampler.default_priority) > 0
    assert type(sampler).__name__ in repr(sampler)
    if type(sampler).update_priority is Sampler.update_priority:
        with pytest.warns(UserWarning, match="has no priorities"):
            sampler.update_priority(torch.tensor([0]), torch.tensor([1.0]))


def check_empty(case: SamplerCase) -> None:
    """An empty storage is an error, always the same; so is one that was emptied; filled again it is none."""
    world = World(case)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^Cannot sample from an empty storage\.$"):
            world.sample()
        world.write(20)
        world.sample()
        world.storage.empty()
        world.sampler.empty()
        assert not world.sampler.ran_out
    world.write(12)
    index, _ = world.sampler.sample(world.storage, 4)
    assert int((index[0] if isinstance(index, tuple) else index).max()) < 12


def check_one_item(case: SamplerCase, rows: int) -> None:
    """A storage of one item, and one of capacity 1 that was written over and over, give that item."""
    one = case._replace(make=case.one or case.make)
    world = World(one, rows=rows)
    for _ in range(3 if rows == 1 else 1):
        world.write(1)
        for _ in range(2):
            index, _ = world.sampler.sample(world.storage, 1)
            assert plain(index) == ([[0]] if case.slices else [0])


def check_exhaustion(case: SamplerCase) -> None:
    """Only an exhaustible sampler runs out, and one that has passes does so again and again."""
    world = World(case)
    world.write(20)
    ends = [world.sample()[1] for _ in range(12)]
    if any(ends) or not isinstance(world.sampler, ConsumingSampler):
        assert any(ends) == world.sampler.exhaustible
    if any(ends):
        first = ends.index(True) + 1
        assert ends == ([False] * (first - 1) + [True]) * (12 // first) + [False] * (12 % first)


def check_threads(case: SamplerCase) -> None:
    """In a buffer, threads that sample and one that writes do not disturb each other; no item is torn."""
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(40),
        sampler=case.make(),
        batch_size=BATCH,
        generator=torch.Generator().manual_seed(0),
    )
    buffer.extend(steps(0, 20))
    errors: list[BaseException] = []

    def run(work: Callable[[int], None]) -> None:
        try:
            for k in range(30):
                work(k)
        except BaseException as error:
            errors.append(error)

    def read(_: int) -> None:
        batch = buffer.sample()
        assert torch.equal(batch["number"] // EPISODE, batch["episode"])

    def write(k: int) -> None:
        buffer.extend(steps(20 + 7 * k, 7))

    threads = [threading.Thread(target=run, args=(work,)) for work in (read, read, read, write)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


# ---- in another process


def go_on(folder: Path) -> dict[str, Any]:
    """Of every sampler saved in ``folder`` the batches that come next."""
    found = {}
    for case in SAMPLERS:
        world = World(case)
        world.write(20)
        world.sampler.loads(folder / case.name / "sampler")
        assert world.sampler.generator is not None
        world.sampler.generator.set_state(torch.load(folder / case.name / "generator"))
        found[case.name] = [world.sample() for _ in range(3)]
    return found


def save_all(folder: Path) -> dict[str, Any]:
    """Save every sampler in mid-way, and give the batches that come next."""
    found = {}
    for case in SAMPLERS:
        world = World(case)
        world.write(20)
        world.sample()
        world.sampler.dumps(folder / case.name / "sampler")
        assert world.sampler.generator is not None
        torch.save(world.sampler.generator.get_state(), folder / case.name / "generator")
        found[case.name] = [world.sample() for _ in range(3)]
    return found
