"""A buffer that is saved, loaded, copied, and goes on as it was."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from buffers.doubles import InOrder
from buffers.numbered import seeded, steps, tensor_buffer
from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.checkpoint import load
from replaybank.errors import DataFormatError
from replaybank.storages import LazyTensorStorage


def same_future(a: ReplayBuffer, b: ReplayBuffer) -> bool:
    return all(torch.equal(a.sample()["n"], b.sample()["n"]) for _ in range(3))


@pytest.mark.parametrize("way", ["state_dict", "dumps", "dump", "save", "pickle", "deepcopy"])
def test_a_buffer_goes_on_as_the_one_it_was_saved_from(way: str, tmp_path: Path) -> None:
    def new(seed: int) -> ReplayBuffer:
        return tensor_buffer(7, batch_size=5, generator=seeded(seed), transform=lambda td: td)

    buffer, other = new(0), new(1)
    buffer.extend(steps(0, 10))
    buffer.sample()
    if way == "state_dict":
        state = buffer.state_dict()
        buffer.extend(steps(90, 1))
        buffer[0] = steps(91, 1)[0]
        other.load_state_dict(state)
        buffer = new(2)
        buffer.load_state_dict(state)
    elif way in ("dumps", "dump", "save"):
        getattr(buffer, way)(tmp_path)
        (other.loads if way == "dumps" else other.load)(tmp_path)
    else:
        buffer.set_storage(buffer.storage)
        buffer.transform._links.clear()  # a lambda cannot be pickled
        other = pickle.loads(pickle.dumps(buffer)) if way == "pickle" else copy.deepcopy(buffer)
    assert torch.equal(other[:]["n"], buffer[:]["n"])
    assert (other.write_count, other.writer.cursor) == (buffer.write_count, buffer.writer.cursor) == (10, 3)
    assert same_future(buffer, other)
    assert other.extend(steps(10, 2)).tolist() == buffer.extend(steps(10, 2)).tolist() == [3, 4]
    assert torch.equal(other[:]["n"], buffer[:]["n"])
    assert same_future(buffer, other)


def test_c66_a_buffer_never_written_to_is_saved_loaded_and_extended(tmp_path: Path) -> None:
    tensor_buffer().dumps(tmp_path)
    other = tensor_buffer(batch_size=2)
    other.loads(tmp_path)
    assert other.extend(steps(0, 3)).tolist() == [0, 1, 2]
    assert other[:]["n"].tolist() == [0, 1, 2]


def test_a_state_is_taken_over_twice_and_stays_the_callers() -> None:
    """C16, for the whole buffer."""
    buffer = tensor_buffer(batch_size=4, generator=seeded())
    buffer.extend(steps(0, 6))
    state = buffer.state_dict()
    buffer.extend(steps(50, 3))
    buffer.sample()
    buffer.load_state_dict(state)
    first = [buffer.sample()["n"].tolist() for _ in range(3)]
    buffer.extend(steps(70, 5))
    buffer.load_state_dict(state)
    assert [buffer.sample()["n"].tolist() for _ in range(3)] == first
    assert buffer[:]["n"].tolist() == list(range(6))


def test_loading_brings_a_generator_along_and_never_touches_the_global_one(tmp_path: Path) -> None:
    buffer = tensor_buffer(batch_size=4, generator=seeded())
    buffer.extend(steps(0, 6))
    buffer.dumps(tmp_path)
    state = torch.get_rng_state()
    other = tensor_buffer(batch_size=4)
    other.loads(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert other.generator is not None
    assert same_future(buffer, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_states_of_transforms_and_samplers_are_saved(tmp_path: Path) -> None:
    def new() -> ReplayBuffer:
        return ReplayBuffer(
            storage=LazyTensorStorage(9), sampler=InOrder(), batch_size=4, transform=torch.nn.BatchNorm1d(1)
        )

    buffer, other = new(), new()
    buffer.extend(torch.arange(9.0)[:, None])
    buffer.sample()
    buffer.dumps(tmp_path)
    other.loads(tmp_path)
    assert torch.equal(other.transform[0].running_mean, buffer.transform[0].running_mean)
    assert float(other.transform[0].running_mean) != 0
    assert other.sample(return_info=True)[1]["index"].tolist() == [4, 5, 6, 7]


def test_hooks_change_the_storages_state_on_its_way(tmp_path: Path) -> None:
    buffer, other = tensor_buffer(), tensor_buffer()
    seen: list[str] = []

    def hook(name: str, state: dict[str, Any]) -> dict[str, Any]:
        seen.append(name)
        return {"inner": state} if name == "save" else state["inner"]

    buffer.register_save_hook(partial(hook, "save"))
    other.register_load_hook(partial(hook, "load"))
    buffer.extend(steps(0, 3))
    buffer.dumps(tmp_path)
    other.loads(tmp_path)
    assert seen == ["save", "load"]
    assert other[:]["n"].tolist() == [0, 1, 2]


def test_a_list_of_objects_asks_for_pickling_to_be_allowed(tmp_path: Path) -> None:
    buffer, other = ReplayBuffer(), ReplayBuffer()
    buffer.extend([{"a", "b"}, np.arange(3)])
    with pytest.raises(TypeError, match=r"items\[0\] is a set.*allow_pickle=True"):
        buffer.dumps(tmp_path)
    buffer.save(tmp_path, allow_pickle=True)
    with pytest.raises(DataFormatError, match="allow_pickle=True"):
        other.loads(tmp_path)
    assert len(other) == 0
    other.load(tmp_path, allow_pickle=True)
    assert other.storage[0] == {"a", "b"}
    assert other.storage[1].tolist() == [0, 1, 2]


def test_earlier_saves_are_kept_when_asked_for(tmp_path: Path) -> None:
    buffer = tensor_buffer()
    for step in range(3):
        buffer.extend(steps(step, 1))
        buffer.dumps(tmp_path, keep=1)
    assert [load(tmp_path, back=back)["writer"]["write_count"] for back in (0, 1)] == [3, 2]


def test_a_checkpointer_saves_the_storage_in_its_own_way(tmp_path: Path) -> None:
    class Mine:
        def dumps(self, storage: Any, path: Path) -> None:
            path.mkdir(parents=True)
            torch.save(storage[:]["n"], path / "n.pt")

        def loads(self, storage: Any, path: Path) -> None:
            n = torch.load(path / "n.pt")
            storage.set(range(len(n)), TensorDict({"n": n}, batch_size=len(n)))

    buffer, other = (tensor_buffer(checkpointer=Mine(), sampler=InOrder(), batch_size=2) for _ in range(2))
    buffer.extend(TensorDict({"n": torch.arange(5)}, batch_size=5))
    buffer.sample()
    buffer.dumps(tmp_path)
    other.loads(tmp_path)
    assert other[:]["n"].tolist() == [0, 1, 2, 3, 4]
    assert other.sample()["n"].tolist() == [2, 3]


def test_c65_a_flipped_byte_of_a_saved_buffer_names_the_file_and_changes_nothing(tmp_path: Path) -> None:
    buffer = tensor_buffer()
    buffer.extend(steps(0, 6))
    buffer.dumps(tmp_path)
    buffer.extend(steps(6, 1))
    for file in sorted(path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size):
        good = file.read_bytes()
        file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        with pytest.raises(DataFormatError) as error:
            buffer.loads(tmp_path)
        assert str(file) in str(error.value)
        file.write_bytes(good)
    assert len(buffer) == 7
