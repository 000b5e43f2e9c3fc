"""Every storage with every writer, sampler and kind of data in one buffer, against a plain model.

What goes together does what the model says; what does not is refused with the error that says why, and
nothing is written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import LazyStackedTensorDict
from torch import Tensor

from contracts import COLUMNS, IMAGES, KINDS, LISTS, STORAGES, TRANSITIONS, DataKind, Model, items_in
from replaybank import (
    ConsumingSampler,
    ImmutableDatasetWriter,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBuffer,
    RoundRobinWriter,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    StalenessAwareSampler,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    Writer,
)
from replaybank.storages import CompressedListStorage, LazyStackStorage

ROWS = 5

OBJECTS = DataKind("objects", lambda ids: [f"item {i}" for i in ids.tolist()], lambda data: data)
"""Python objects, for lists."""

SAMPLERS: dict[str, Callable[[Any], Sampler]] = {
    "random": lambda keys: RandomSampler(),
    "without": lambda keys: SamplerWithoutReplacement(),
    "prioritized": lambda keys: PrioritizedSampler(64, alpha=1.0, beta=1.0, eps=0.0),
    "consuming": lambda keys: ConsumingSampler(50),
    "staleness": lambda keys: StalenessAwareSampler(),
    "slices": lambda keys: SliceSampler(slice_len=2, strict_length=False, truncated_key=None, **keys),
    "slices without": lambda keys: SliceSamplerWithoutReplacement(
        slice_len=2, strict_length=False, truncated_key=None, **keys
    ),
    "prioritized slices": lambda keys: PrioritizedSliceSampler(
        64, alpha=1.0, beta=1.0, eps=0.0, slice_len=2, strict_length=False, truncated_key=None, **keys
    ),
}

# Where a kind of data says that its trajectories end: after each even number, but for images, of which each
# is a trajectory of its own. Kinds that are not here have no entries to say it with.
KEYS: dict[str, dict[str, Any]] = {
    "tensordict": {"end_key": ("next", "flag")},
    "tensorclass": {"end_key": "flag"},
    "dict": {"end_key": ("inner", "flag")},
    "tuple": {"traj_key": ("1", "0")},
    "namedtuple": {"traj_key": "number"},
    "transitions": {"end_key": ("next", "flag")},
    "images": {"traj_key": "number"},
}
OF_TENSORDICTS = ("tensordict", "tensorclass", "transitions", "images")

CASES = [
    pytest.param(storage, kind, columns, sampler, id=f"{storage}-{kind}-{len(columns) + 1}d-{sampler}")
    for storage in STORAGES
    for kind in (*KINDS, TRANSITIONS, IMAGES, OBJECTS)
    for columns in COLUMNS[:2]
    for sampler in SAMPLERS
    if not (storage in LISTS and (columns or "slices" in sampler))
    if (kind is TRANSITIONS) == storage.startswith("derived")
    if (kind is IMAGES) == storage.startswith("images")
    if kind is not OBJECTS or storage == "list"
    if not (storage == "stack" and kind.name not in OF_TENSORDICTS)
    if storage in (*LISTS, "given", "lazy") or kind in (TRANSITIONS, IMAGES) or kind.name == "tensordict"
    if "slices" not in sampler or kind.name in KEYS
]


@pytest.fixture(autouse=True)
def _no_scratch_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


class Run:
    """A buffer and its model, and what both are told."""

    def __init__(
        self, storage: str, kind: DataKind, columns: tuple[int, ...], sampler: str, writer: type[Writer]
    ) -> None:
        self.kind, self.columns, self.lists = kind, columns, storage in LISTS
        self.sampler, self.slices = sampler, "slices" in sampler
        self.next_id = 1
        self.model = Model(ROWS, columns)
        self.make: Callable[[], ReplayBuffer] = lambda: self._buffer(storage, sampler, writer)
        self.buffer = self.make()
        if storage == "given":
            self.model.write(torch.zeros((ROWS, *columns), dtype=torch.int64))

    def _buffer(self, storage: str, sampler: str, writer: type[Writer]) -> ReplayBuffer:
        cls = TensorDictReplayBuffer if writer is TensorDictRoundRobinWriter else ReplayBuffer
        return cls(
            storage=STORAGES[storage](ROWS, self.columns, self.kind),
            sampler=SAMPLERS[sampler](KEYS.get(self.kind.name, {})),
            writer=writer(),
            batch_size=6,
            dim_extend=0,
            generator=torch.Generator().manual_seed(0),
        )

    def ids(self, rows: int) -> Tensor:
        count = items_in(rows, self.columns)
        self.next_id += count
        return torch.arange(self.next_id - count, self.next_id).view(rows, *self.columns)

    def item(self, ids: Tensor) -> Any:
        return self.kind.make(ids) if self.kind is not OBJECTS else f"item {int(ids)}"

    def items(self, ids: Tensor) -> Any:
        if self.lists and self.kind is not OBJECTS:
            return [self.kind.make(row) for row in ids]
        return self.kind.make(ids)

    def read(self, data: Any) -> Tensor:
        """Ids of a batch; all of each item must belong together."""
        if self.kind is OBJECTS:
            return torch.tensor([int(text.removeprefix("item ")) for text in data], dtype=torch.int64)
        if isinstance(data, LazyStackedTensorDict):
            return torch.stack([self.kind.ids(item.exclude("index")) for item in data.unbind(0)])
        if self.kind.name in OF_TENSORDICTS and self.kind.name != "tensorclass" and not self.lists:
            data = data.exclude("index", *(key for key in data.keys() if key[0] == "_"))  # noqa: SIM118
        return self.kind.ids(data)

    def extend(self, rows: int) -> None:
        ids = self.ids(rows)
        index = self.buffer.extend(self.items(ids))
        slots = self.model.write(ids)
        rows_of = index[:, 0] if index.ndim > 1 else index
        assert rows_of.tolist() == [slot for slot in slots for _ in range(items_in(1, self.columns))]

    def add(self) -> None:
        ids = self.ids(1)
        self.buffer.add(self.item(ids[0]))
        self.model.write(ids)

    def replace(self, slot: int) -> None:
        ids = self.ids(1)
        self.buffer.storage[slot] = self.item(ids[0])
        self.model.rows[slot] = ids[0]

    def check(self, buffer: ReplayBuffer | None = None) -> None:
        buffer = self.buffer if buffer is None else buffer
        expected = self.model.all()
        assert len(buffer) == expected.numel()
        assert buffer.write_count == self.model.total
        if not len(buffer):
            return
        for k in range(len(self.model.rows)):
            item = buffer.storage[k]
            assert torch.equal(self.read([item])[0] if self.kind is OBJECTS else self.read(item), expected[k])

    def sample(self, buffer: ReplayBuffer | None = None) -> list[int]:
        """Draw a batch and give its ids: they are what the model has where the batch is said to be from."""
        batch, info = (self.buffer if buffer is None else buffer).sample(return_info=True)
        index = info["index"]
        index = index if isinstance(index, tuple) else (index,)
        expected = self.model.all()[index]
        found = self.read(batch)
        assert torch.equal(found, expected)
        assert found.numel() > 0
        return [int(number) for number in found.reshape(-1)]

    def check_priorities(self) -> None:
        """Of items whose priority is zero none comes."""
        index = torch.cartesian_prod(*(torch.arange(size) for size in self.model.all().shape))
        priorities = torch.zeros(len(index))
        chosen = len(index) // 2
        priorities[chosen] = 3.0
        self.buffer.update_priority(index, priorities)
        only = int(self.model.all().reshape(-1)[chosen])
        if not self.slices:
            assert set(self.sample()) == {only}
        self.buffer.update_priority(index, torch.ones(len(index)))


@pytest.mark.parametrize(("storage", "kind", "columns", "sampler"), CASES)
def test_what_goes_together_does_what_the_model_does(
    storage: str, kind: DataKind, columns: tuple[int, ...], sampler: str, tmp_path: Path
) -> None:
    writers: list[type[Writer]] = [RoundRobinWriter]
    if kind.name in OF_TENSORDICTS and kind.name != "tensorclass":
        writers.append(TensorDictRoundRobinWriter)
    # Lists of other objects than plain ones say that they must be pickled to be saved.
    pickled = storage in LISTS and kind.name in ("objects", "tensorclass", "namedtuple")
    for writer in writers:
        if storage == "given" and writer is TensorDictRoundRobinWriter:
            continue  # the given data has no entry "index"
        run = Run(storage, kind, columns, sampler, writer)
        run.extend(3)
        run.add()
        run.check()
        run.sample()
        run.extend(4)  # around the end
        run.extend(0) if not run.lists else run.buffer.extend([])
        run.check()
        run.sample()
        if writer is RoundRobinWriter:
            run.replace(2)
            run.check()
            run.sample()
        if "prioritized" in sampler:
            run.check_priorities()
        other = run.make()
        if sampler == "random":
            run.buffer.dumps(tmp_path / f"saved-{writer.__name__}", allow_pickle=pickled)
            other.loads(tmp_path / f"saved-{writer.__name__}", allow_pickle=pickled)
        else:
            other.load_state_dict(run.buffer.state_dict())
        run.check(other)
        assert run.sample() == run.sample(other)
        run.buffer.empty()
        run.model.empty()
        run.model.total = 0
        run.check()
        with pytest.raises(RuntimeError):
            run.buffer.sample()
        run.extend(2 * ROWS + 1)  # the last ones stay, where they would have come to lie
        run.check()
        run.sample()


HIGHEST = [
    (storage, kind)
    for storage in STORAGES
    for kind in (*KINDS, TRANSITIONS, IMAGES)
    if kind.name in ("tensordict", "transitions", "images")
    if (kind is TRANSITIONS) == storage.startswith("derived")
    if (kind is IMAGES) == storage.startswith("images")
    if storage != "given"
]


@pytest.mark.parametrize(("storage", "kind"), HIGHEST)
@pytest.mark.parametrize("sampler", ["random", "without", "prioritized", "staleness", "consuming"])
def test_the_writer_of_the_highest_keeps_them_in_every_storage(
    storage: str, kind: DataKind, sampler: str
) -> None:
    buffer = TensorDictReplayBuffer(
        storage=STORAGES[storage](ROWS, (), kind),
        writer=TensorDictMaxValueWriter(rank_key="number"),
        sampler=SAMPLERS[sampler]({}),
        batch_size=6,
    )
    ids = torch.randperm(20, generator=torch.Generator().manual_seed(0)) + 1
    for part in ids.split(4):
        data = kind.make(part)
        buffer.extend(list(data.unbind(0)) if storage in LISTS else data)
    assert sorted(int(buffer.storage[k]["number"]) for k in range(ROWS)) == [16, 17, 18, 19, 20]
    assert set(buffer.sample()["number"].tolist()) <= {16, 17, 18, 19, 20}
    assert buffer.extend([] if storage in LISTS else kind.make(ids[:0])).numel() == 0
    assert len(buffer) == ROWS


# --- what does not go together -----------------------------------------------------------------------------

KIND = {kind.name: kind for kind in (*KINDS, OBJECTS)}
ids = torch.arange(3)


def _extend(storage: Any, data: Any, *, then_sample: bool = False, **parts: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(storage=storage, batch_size=2, dim_extend=0, **parts)
    buffer.extend(data)
    if then_sample:
        buffer.sample()
    return buffer


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name not in OF_TENSORDICTS], ids=str)
@pytest.mark.parametrize("storage", [name for name in STORAGES if name not in (*LISTS, "given")])
def test_writers_of_tensordicts_refuse_other_data(storage: str, kind: DataKind) -> None:
    if storage.startswith(("derived", "images")):
        return
    for writer, error in ((TensorDictRoundRobinWriter, TypeError), (TensorDictMaxValueWriter, RuntimeError)):
        made = STORAGES[storage](ROWS, (), kind)
        with pytest.raises(error, match="TensorDict"):
            _extend(made, kind.make(ids), writer=writer())
        assert len(made) == 0


@pytest.mark.parametrize("storage", [name for name in STORAGES if name not in (*LISTS, "given")])
def test_the_writer_of_the_highest_refuses_more_dimensions(storage: str) -> None:
    kind = (
        TRANSITIONS if storage.startswith("derived") else IMAGES if storage.startswith("images") else KINDS[1]
    )
    made = STORAGES[storage](ROWS, (3,), kind)
    with pytest.raises(ValueError, match="ndim=2: use ndim=1"):
        _extend(
            made, kind.make(torch.arange(6).view(2, 3)), writer=TensorDictMaxValueWriter(rank_key="number")
        )
    assert len(made) == 0


@pytest.mark.parametrize("kind", [*KINDS, OBJECTS], ids=str)
def test_the_writer_of_read_only_data_refuses_all(kind: DataKind) -> None:
    for storage in ("list", "lazy"):
        made = STORAGES[storage](ROWS, (), kind)
        with pytest.raises(RuntimeError, match="read-only"):
            _extend(made, list(ids) if storage == "list" else kind.make(ids), writer=ImmutableDatasetWriter())
        assert len(made) == 0


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if "slices" in name])
@pytest.mark.parametrize("storage", ["list", "compressed", "lazy"])
def test_slices_need_entries_that_say_where_trajectories_end(storage: str, sampler: str) -> None:
    made = STORAGES[storage](ROWS, (), KINDS[0])
    data = [torch.tensor(k) for k in range(3)] if storage in LISTS else ids
    with pytest.raises(RuntimeError, match="Could not get a tensordict out of the storage"):
        _extend(made, data, then_sample=True, sampler=SAMPLERS[sampler]({}))


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if "prioritized" in name])
def test_c11_more_items_than_the_sampler_has_room_for_are_refused_before_anything_is_written(
    sampler: str,
) -> None:
    for columns in ((), (3,)):
        made = LazyTensorStorage(300, ndim=1 + len(columns))
        data = KIND["tensordict"].make(torch.arange(99).view(-1, *columns))
        with pytest.raises(ValueError, match=r"64.*(99|300|100)"):
            _extend(made, data, sampler=SAMPLERS[sampler](KEYS["tensordict"]))
        assert len(made) == 0


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name not in OF_TENSORDICTS], ids=str)
def test_a_storage_of_stacks_takes_tensordicts_only(kind: DataKind) -> None:
    with pytest.raises(TypeError, match="TensorDict"):
        _extend(LazyStackStorage(ROWS), [kind.make(row) for row in ids])


@pytest.mark.parametrize("make", [ListStorage, LazyStackStorage, CompressedListStorage])
def test_lists_are_not_shared_between_processes(make: Any) -> None:
    with pytest.raises(RuntimeError, match="shared_init=True"):
        ReplayBuffer(storage=make(ROWS), shared=True)
    with pytest.raises(RuntimeError, match="shared_init=True"):
        ReplayBuffer(storage=LazyTensorStorage(ROWS), shared=True)


@pytest.mark.parametrize("columns", [(), (3,)])
@pytest.mark.parametrize("name", [name for name in STORAGES if name not in LISTS])
def test_objects_and_text_are_refused_by_tensors(name: str, columns: tuple[int, ...]) -> None:
    made = STORAGES[name](ROWS, columns, KINDS[0])
    before = len(made)
    for data in (["text"], [object()], {"a": "text"}, None):
        with pytest.raises((TypeError, ValueError), match=r"text|string|object|None|numbers|keys"):
            _extend(made, data)
        assert len(made) == before
