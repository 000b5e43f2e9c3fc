"""Sizes, devices, sharing and other arguments; every form of data."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from buffers.doubles import InOrder
from buffers.numbered import seeded, steps, tensor_buffer
from contracts import KINDS, DataKind, items_for
from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.buffers.tensordict import TensorDictReplayBuffer
from replaybank.storages import LazyTensorStorage, TensorStorage
from replaybank.storages.list import ListStorage

# --- batch size ------------------------------------------------------------------------------------------


def test_without_a_batch_size_the_error_says_where_to_give_one() -> None:
    buffer = ReplayBuffer()
    buffer.add(1)
    with pytest.raises(RuntimeError, match=r"batch_size=B.*sample\(B\)"):
        buffer.sample()
    with pytest.raises(RuntimeError, match=r"batch_size=B.* before iterating"):
        iter(buffer)
    assert len(buffer.sample(3)) == 3


def test_of_two_batch_sizes_the_calls_wins_with_a_warning() -> None:
    buffer = ReplayBuffer(batch_size=2)
    buffer.add(1)
    with pytest.warns(UserWarning, match=r"has batch_size=2 and sample\(\) was given 5"):
        assert len(buffer.sample(5)) == 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(buffer.sample(2)) == 2


@pytest.mark.parametrize(
    ("batch_size", "error"), [(0, ValueError), (-1, ValueError), (2.0, TypeError), (True, TypeError)]
)
def test_a_batch_size_that_is_none_is_refused(batch_size: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"batch_size={batch_size}"):
        ReplayBuffer(batch_size=batch_size)


def test_prefetch_needs_a_batch_size_and_one_process() -> None:
    with pytest.raises(ValueError, match="prefetch=3 needs a batch_size"):
        ReplayBuffer(prefetch=3)
    with pytest.raises(ValueError, match="shared=True"):
        ReplayBuffer(prefetch=3, batch_size=2, shared=True)


def test_a_sampler_with_drop_last_needs_a_batch_size() -> None:
    with pytest.raises(ValueError, match=r"^Samplers with drop_last=True"):
        ReplayBuffer(sampler=InOrder(drop_last=True))
    with pytest.raises(ValueError, match=r"^Samplers with drop_last=True"):
        ReplayBuffer().set_sampler(InOrder(drop_last=True))
    ReplayBuffer(sampler=InOrder(drop_last=True), batch_size=2)


# --- devices and sharing ---------------------------------------------------------------------------------


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator here")
def test_pin_memory_is_ignored_with_one_warning_without_an_accelerator() -> None:
    with pytest.warns(UserWarning, match="pin_memory=True is ignored"):
        buffer = tensor_buffer(pin_memory=True, batch_size=2)
    buffer.extend(steps(0, 3))
    buffer.sample()  # warns no more: a warning is an error here


def test_storages_that_cannot_be_shared_say_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"ListStorage holds Python objects.* Use a LazyTensorStorage"):
        ReplayBuffer(shared=True)
    with pytest.raises(RuntimeError, match=r"or has none yet.* shared_init=True"):
        tensor_buffer(shared=True)
    with pytest.raises(RuntimeError, match=r"this process alone: .*share_memory_\(\)"):
        ReplayBuffer(storage=TensorStorage(steps(0, 4)), shared=True)
    buffer = ReplayBuffer(storage=TensorStorage(steps(0, 4).share_memory_()), shared=True)
    assert buffer.storage.log.state.is_shared()
    with pytest.raises(RuntimeError, match="ListStorage"):
        buffer.set_storage(ListStorage(3))
    unwritten = ReplayBuffer(storage=LazyTensorStorage(4, shared_init=True), shared=True)
    with pytest.raises(RuntimeError, match="no memory yet when it came to another process"):
        pickle.dumps(unwritten)


# --- every form of data ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("make", [LazyTensorStorage, ListStorage])
@pytest.mark.filterwarnings("ignore:add.. was given a TensorDict of batch size")
def test_every_form_of_data_is_sampled_as_it_was_written(kind: DataKind, make: Any, tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=make(7), batch_size=20, generator=seeded())
    buffer.extend(items_for(buffer.storage, kind, torch.arange(5)))
    buffer.add(kind.make(torch.tensor(5)))
    batch, info = buffer.sample(return_info=True)
    assert torch.equal(kind.ids(batch), info["index"])
    assert torch.equal(kind.ids(buffer[:]), torch.arange(6))
    if make is LazyTensorStorage:
        buffer.dumps(tmp_path)
        other = ReplayBuffer(storage=make(7), batch_size=20)
        if kind.name in ("tensorclass", "namedtuple"):
            other.extend(items_for(other.storage, kind, torch.arange(1)))  # classes are not named in files
        other.loads(tmp_path)
        assert torch.equal(kind.ids(other.sample()), kind.ids(buffer.sample()))


@pytest.mark.parametrize("size", [2.5, "3", True, [1], torch.tensor(1.5)])
@pytest.mark.parametrize("name", ["batch_size", "prefetch", "dim_extend"])
def test_sizes_that_are_no_integers_are_refused_by_the_constructor(name: str, size: Any) -> None:
    make: Any = ReplayBuffer
    with pytest.raises(TypeError, match=f"{name}=.*give an integer"):
        make(**{"batch_size": 2, name: size})


@pytest.mark.parametrize("name", ["batch_size", "prefetch", "dim_extend"])
def test_sizes_that_are_too_small_are_refused_by_the_constructor(name: str) -> None:
    make: Any = ReplayBuffer
    with pytest.raises(ValueError, match=f"{name}=-1: give [01] or more"):
        make(**{"batch_size": 2, name: -1})


@pytest.mark.parametrize("integer", [np.int64, np.uint8, torch.tensor])
def test_integers_of_numpy_and_torch_are_sizes(integer: Any) -> None:
    buffer = ReplayBuffer(batch_size=integer(3), prefetch=integer(1), dim_extend=integer(0))
    buffer.extend(torch.arange(5))
    assert buffer.sample().shape == (3,)
    buffer.close()
    assert buffer.batch_size == 3
    with pytest.warns(UserWarning, match="batch_size=3"):
        assert buffer.sample(integer(2)).shape == (2,)


@pytest.mark.parametrize(
    ("size", "error"),
    [(-1, ValueError), (0, ValueError), (2.5, TypeError), ("3", TypeError), (True, TypeError)],
)
def test_a_batch_size_that_is_none_is_refused_by_sample(size: Any, error: type[Exception]) -> None:
    buffer = ReplayBuffer()
    buffer.extend(torch.arange(5))
    with pytest.raises(error, match="batch_size="):
        buffer.sample(size)


def test_a_seed_is_no_generator() -> None:
    seed: Any = 0
    with pytest.raises(TypeError, match=r"generator=0 is a int.*torch.Generator\(\).manual_seed"):
        ReplayBuffer(generator=seed)
    buffer = ReplayBuffer()
    with pytest.raises(TypeError, match="generator=0"):
        buffer.set_rng(seed)
    assert buffer.generator is None


def test_wrong_arguments_are_named_with_the_class_that_was_called() -> None:
    make: Any = ReplayBuffer
    with pytest.raises(TypeError, match=r"^ReplayBuffer.__init__\(\).* positional"):
        make(10)
    with pytest.raises(TypeError, match=r"^ReplayBuffer.__init__\(\).*'size'"):
        make(size=10)


@pytest.mark.parametrize("method", ["add", "extend"])
def test_none_is_nothing_to_write(method: str) -> None:
    buffer = tensor_buffer()
    with pytest.raises(TypeError, match="the data is None"):
        getattr(buffer, method)(None)


def test_an_index_of_a_sample_is_one_of_the_storage_and_the_buffer_has_the_users_order() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(12, ndim=2), batch_size=8)
    buffer.extend(TensorDict({"n": torch.arange(12).view(3, 4)}, [3, 4]))
    sample = buffer.sample()
    time, column = sample["index"].unbind(-1)
    assert buffer.storage[time, column]["n"].tolist() == sample["n"].tolist()
    assert buffer[column, time]["n"].tolist() == sample["n"].tolist()


@pytest.mark.parametrize("keep", [1.5, "1", True])
def test_a_number_of_saves_to_keep_is_an_integer(keep: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"keep=.*give an integer"):
        tensor_buffer().dumps(tmp_path, keep=keep)
    assert list(tmp_path.iterdir()) == []
