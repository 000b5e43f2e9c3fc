"""Options that storages and writers share with those of other libraries."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replaybank import ReplayBuffer, TensorDictReplayBuffer
from replaybank.errors import DataFormatError
from replaybank.storages import (
    CompressedListStorage,
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    Storage,
    TensorStorage,
)
from replaybank.writers import (
    ImmutableDatasetWriter,
    RoundRobinWriter,
    TensorDictMaxValueWriter,
    TensorDictRoundRobinWriter,
)


def _data(first: int, count: int = 8) -> TensorDict:
    ids = torch.arange(float(first), float(first + count))
    pixels = ids.to(torch.uint8).view(-1, 1, 1).expand(-1, 40, 30)
    return TensorDict({"a": ids.view(-1, 1), "pixels": pixels, "next": {"r": ids}}, [count])


@pytest.mark.parametrize(
    "make",
    [
        lambda: ReplayBuffer(
            storage=LazyTensorStorage(20, compilable=True),
            writer=RoundRobinWriter(compilable=True),
            batch_size=6,
            compilable=True,
        ),
        lambda: TensorDictReplayBuffer(
            storage=LazyMemmapStorage(20, compilable=True),
            writer=TensorDictRoundRobinWriter(compilable=True),
            batch_size=6,
        ),
        lambda: ReplayBuffer(storage=ListStorage(20, compilable=True), batch_size=6),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
def test_code_that_writes_and_samples_can_be_compiled(make: Callable[[], ReplayBuffer]) -> None:
    buffer = make()

    def step(data: TensorDict) -> Any:
        index = buffer.extend(data)
        batch = buffer.sample()
        return index + 0, batch, batch["a"].sum() * 2

    torch.compiler.reset()
    compiled = torch.compile(step, backend="eager")
    for number in range(4):
        index, batch, total = compiled(_data(8 * number))
        assert index.tolist() == [(8 * number + k) % 20 for k in range(8)]
        assert torch.equal(batch["a"].squeeze(-1), batch["next", "r"])
        assert torch.equal(batch["pixels"][:, 0, 0], batch["next", "r"].to(torch.uint8))
        assert float(total) == 2 * float(batch["a"].sum())
        assert float(batch["a"].max()) < 8 * (number + 1)
    assert buffer.write_count == 32


@pytest.mark.parametrize(
    "part",
    [
        LazyStackStorage(2, compilable=True),
        CompressedListStorage(2, compilable=True),
        TensorStorage(torch.zeros(2), compilable=True),
        ImmutableDatasetWriter(compilable=True),
        TensorDictMaxValueWriter(compilable=True),
    ],
)
def test_every_part_takes_the_argument(part: Any) -> None:
    assert part.compilable


@pytest.mark.parametrize("derive", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_a_consolidated_storage_is_one_block_of_memory(shared: bool, derive: bool) -> None:
    storage = LazyTensorStorage(
        10, shared_init=shared, consolidated=True, next_observation="derive" if derive else None
    )
    data = _data(0)
    if derive:
        data["observation"] = data["pixels"]
        data["next", "observation"] = data["pixels"].roll(-1, 0)
    storage.set(range(8), data)
    keys = [key for key in storage.leaf_keys() if key != ("next", "observation")]
    blocks = {storage.read_leaf(key, slice(0, 1)).untyped_storage().data_ptr() for key in keys}
    assert len(blocks) == 1
    other = LazyTensorStorage(10)
    other.load_state_dict(storage.state_dict())
    content = pickle.dumps(storage)
    for found in (storage, other, pickle.loads(content)):
        assert torch.equal(found[:]["next", "r"], torch.arange(8.0))
        assert torch.equal(found[:]["pixels"], data["pixels"])
    if not derive and not shared:
        plain = LazyTensorStorage(10)
        plain.set(range(8), data)
        assert len(content) < 1.1 * len(pickle.dumps(plain))


class Thing:
    """An object that only pickle can save."""

    def __init__(self, value: int) -> None:
        self.value = value


@pytest.mark.parametrize("whole", [False, True])
def test_objects_are_saved_and_loaded_only_where_pickle_is_allowed(tmp_path: Path, whole: bool) -> None:
    def fresh() -> tuple[Any, Storage]:
        storage = ListStorage(5)
        return (ReplayBuffer(storage=storage), storage) if whole else (storage, storage)

    saved, storage = fresh()
    writer = RoundRobinWriter()
    writer.register_storage(storage)
    writer.extend([Thing(1), {"a": torch.ones(2), 3: Thing(2)}, "text", (1, Thing(3))])
    with pytest.raises(TypeError, match="allow_pickle"):
        saved.dumps(tmp_path)
    saved.dumps(tmp_path, allow_pickle=True)
    loaded, other = fresh()
    with pytest.raises(DataFormatError, match="allow_pickle"):
        loaded.loads(tmp_path)
    assert len(other) == 0
    loaded.loads(tmp_path, allow_pickle=True)
    assert other[0].value == 1
    assert other[1][3].value == 2
    assert torch.equal(other[1]["a"], torch.ones(2))
    assert other[2] == "text"
    assert other[3][1].value == 3
