"""What a buffer is composed of, as others come to see it."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replaybank.buffers import (
    ReplayBuffer,
    ReplayBufferEnsemble,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from replaybank.samplers import SamplerWithoutReplacement, SliceSampler
from replaybank.storages import LazyTensorStorage, ListStorage
from replaybank.writers import RoundRobinWriter


def steps(start: int) -> TensorDict:
    done = (torch.arange(8) % 4 == 3)[:, None]
    return TensorDict({"x": torch.arange(8.0) + start, "next": TensorDict({"done": done}, [8])}, [8])


def _storage() -> LazyTensorStorage:
    return LazyTensorStorage(100, compilable=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ReplayBuffer(storage=LazyTensorStorage(100), batch_size=8, compilable=True),
        lambda: TensorDictReplayBuffer(storage=_storage(), batch_size=8),
        lambda: TensorDictReplayBuffer(
            storage=ListStorage(100), writer=RoundRobinWriter(compilable=True), batch_size=8
        ),
        lambda: TensorDictPrioritizedReplayBuffer(alpha=0.7, beta=0.9, storage=_storage(), batch_size=8),
        lambda: TensorDictReplayBuffer(storage=_storage(), sampler=SliceSampler(slice_len=2), batch_size=8),
        lambda: TensorDictReplayBuffer(storage=_storage(), sampler=SamplerWithoutReplacement(), batch_size=8),
    ],
    ids=["buffer", "storage", "writer", "prioritized", "slices", "passes"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_compiled_code_calls_a_compilable_buffer_without_looking_into_it(make: Callable[[], Any]) -> None:
    """Dynamo warns of what it finds when it traces the writing itself; here are two graphs and no warning."""
    buffer = make()
    graphs: list[Any] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def train(data: TensorDict) -> Any:
        scaled = data["x"] * 1.0
        buffer.extend(data.set("x", scaled))
        batch = buffer.sample()
        if "_generation" in batch.keys():  # noqa: SIM118
            batch["td_error"] = batch["x"] + 1
            buffer.update_tensordict_priority(batch)
        return batch["x"] * 2

    torch.compiler.reset()
    compiled = torch.compile(train, backend=backend)
    for number in range(4):
        out = compiled(steps(8 * number))
        assert set((out / 2).tolist()) <= set(range(8 * number + 8))
    assert len(buffer) == 32
    assert len(graphs) <= 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_compiled_code_calls_an_ensemble_of_compilable_buffers() -> None:
    parts = [TensorDictReplayBuffer(storage=_storage()) for _ in range(2)]
    ensemble = ReplayBufferEnsemble(*parts, batch_size=8)
    for part in parts:
        part.extend(steps(0))
    torch.compiler.reset()
    assert torch.compile(lambda: ensemble.sample()["x"] * 2, backend="eager")().shape == (2, 4)


def test_a_compilable_buffer_is_freed_copied_and_pickled_as_any() -> None:
    buffer = TensorDictReplayBuffer(storage=_storage(), batch_size=4, compilable=True)
    buffer.extend(steps(0))
    assert buffer.sample.__doc__ == TensorDictReplayBuffer.sample.__doc__
    for other in (copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))):
        other.extend(steps(8))
        assert (len(other), len(buffer)) == (16, 8)
    gone = weakref.ref(buffer)
    gc.disable()
    try:
        del buffer, other
        assert gone() is None, "no cycle keeps its memory"
    finally:
        gc.enable()
