"""Memory for large batches: taken again when nobody sees it, and never before."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import random
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from replaybank import LazyTensorStorage, ReplayBuffer
from replaybank.storages import batch_memory
from replaybank.storages.batch_memory import BatchMemory, recyclable

SHAPE = (64, 4096)


def made(memory: BatchMemory) -> Tensor:
    return memory.empty(SHAPE, torch.float32)


def saved_by_autograd(tensor: Tensor) -> Any:
    weight = torch.ones(SHAPE, requires_grad=True)
    return (weight * tensor).sum()


def over_bytes_of(tensor: Tensor) -> Tensor:
    array: Any = tensor.numpy()
    return torch.frombuffer(memoryview(array), dtype=torch.float32)


HOLDERS: dict[str, Callable[[Tensor], Any]] = {
    "the tensor": lambda tensor: tensor,
    "a row": lambda tensor: tensor[3],
    "a view": lambda tensor: tensor.view(-1),
    "a detached tensor": Tensor.detach,
    "an array": Tensor.numpy,
    "a row of an array": lambda tensor: tensor.numpy()[3],
    "a memoryview": lambda tensor: memoryview(tensor.numpy()),  # type: ignore[arg-type]
    "its storage": Tensor.untyped_storage,
    "autograd": saved_by_autograd,
    "another library": lambda tensor: np.from_dlpack(tensor),
    "a parameter": torch.nn.Parameter,
    "a capsule": Tensor.__dlpack__,
    "a tensor over its bytes": over_bytes_of,
    "its rows, unbound": lambda tensor: tensor.unbind()[3],
    "a tensor set to its storage": lambda tensor: torch.empty(0).set_(tensor.untyped_storage()),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_is_not_taken_while_anything_of_the_tensor_is_held(holder: str) -> None:
    memory = BatchMemory()
    first = made(memory)
    where = first.data_ptr()
    held = HOLDERS[holder](first)
    del first
    others = [made(memory) for _ in range(3)]
    assert where not in [other.data_ptr() for other in others]
    del held
    gc.collect()
    assert made(memory).data_ptr() == where


def test_a_view_in_inference_mode_holds_the_memory() -> None:
    memory = BatchMemory()
    first = made(memory)
    where = first.data_ptr()
    with torch.inference_mode():
        row = first[0]
    del first
    assert made(memory).data_ptr() != where
    del row


def test_batches_that_are_kept_at_random_stay_as_they_were() -> None:
    memory, chance = BatchMemory(), random.Random(0)
    kept: list[tuple[Tensor, int]] = []
    for number in range(500):
        tensor = memory.empty((chance.choice((32, 33, 64)), 8192), torch.uint8 if number % 2 else torch.int16)
        tensor.fill_(number % 100)
        kept.append((tensor[1:] if chance.random() < 0.5 else tensor, number % 100))
        while len(kept) > chance.randrange(1, 12):
            kept.pop(chance.randrange(len(kept)))
        assert all(bool((tensor == value).all()) for tensor, value in kept)
    assert memory.nbytes < 40 << 20


def test_no_two_get_the_same_memory_though_one_comes_while_the_other_is_served() -> None:
    # Buffers that share a storage have a lock each. Another thread may come at any call; here one does.
    came = 0
    for when in range(40):
        memory, events, others = BatchMemory(), 0, []
        made(memory)

        def another(frame: Any, event: str, arg: Any, when: int = when) -> None:
            nonlocal events
            if frame.f_code.co_filename == batch_memory.__file__:
                events += 1
                if events == when:
                    sys.setprofile(None)
                    others.append(made(memory))  # noqa: B023

        sys.setprofile(another)
        try:
            mine = made(memory)
        finally:
            sys.setprofile(None)
        came += len(others)
        assert mine.data_ptr() not in [other.data_ptr() for other in others]
    assert came > 6


@pytest.mark.parametrize("bytes_", [1 << 10, 1 << 20])
def test_a_default_device_is_not_where_memory_is_made(bytes_: int) -> None:
    with torch.device("meta"):
        assert BatchMemory().any_size((bytes_,), torch.uint8).is_cpu


def test_a_tensor_is_saved_with_its_own_bytes_only() -> None:
    tensor = made(BatchMemory())
    file = io.BytesIO()
    torch.save(tensor, file)
    assert tensor.untyped_storage().nbytes() == tensor.nbytes
    assert len(file.getvalue()) < tensor.nbytes + 4096


def test_a_tensor_moved_to_shared_memory_gives_its_own_back() -> None:
    memory = BatchMemory()
    tensor = made(memory).fill_(3)
    where = tensor.data_ptr()
    tensor.share_memory_()
    assert made(memory).data_ptr() == where
    assert bool((tensor == 3).all())


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.complex64])
def test_tensors_are_contiguous_and_of_the_shape_and_dtype_asked_for(dtype: torch.dtype) -> None:
    tensor = BatchMemory().empty((1 << 10, 1 << 10), dtype)
    assert (tensor.shape, tensor.dtype) == ((1 << 10, 1 << 10), dtype)
    assert tensor.is_contiguous()
    assert tensor.data_ptr() % 64 == 0
    assert tensor.requires_grad is False


def test_what_is_too_small_too_large_or_unknown_to_numpy_is_not_made_here() -> None:
    assert recyclable(torch.uint8, batch_memory.LEAST_BYTES)
    assert not recyclable(torch.uint8, batch_memory.LEAST_BYTES - 1)
    assert not recyclable(torch.uint8, batch_memory.MOST_BYTES + 1)
    assert not recyclable(torch.bfloat16, 1 << 20)


def test_memory_that_is_not_wanted_any_more_is_freed() -> None:
    memory = BatchMemory()
    many = [made(memory) for _ in range(8)]
    small = memory.empty((1 << 19,), torch.uint8)
    del many, small
    for _ in range(2 * 64 + 1):
        made(memory)
    assert memory.nbytes < 2 * 64 * 4096 * 4


def test_memory_goes_with_its_owner_and_its_last_tensor() -> None:
    memory = BatchMemory()
    tensor = made(memory).fill_(5)
    owner = weakref.ref(next(iter(memory._blocks.values()))[0].owner)
    del memory
    assert owner() is not None
    assert bool((tensor == 5).all())
    del tensor
    assert owner() is None


def test_batches_of_a_buffer_that_are_kept_are_never_written_over() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(64), batch_size=32)
    buffer.extend({"pixels": torch.arange(64, dtype=torch.uint8).view(-1, 1).expand(64, 1 << 14)})
    kept, places, firsts = [], set(), []
    for number in range(40):
        batch = buffer.sample()
        places.add(batch["pixels"].data_ptr())
        if number % 8 == 0:
            kept.append(batch["pixels"])
            firsts.append(batch["pixels"][:, 0].clone())
        del batch
    assert len(places) <= len(kept) + 2
    assert all(bool((pixels == first.view(-1, 1)).all()) for pixels, first in zip(kept, firsts, strict=True))


def test_a_copy_and_a_pickle_have_no_memory_of_it() -> None:
    memory = BatchMemory()
    tensor = made(memory)
    assert pickle.loads(pickle.dumps(memory)).nbytes == copy.deepcopy(memory).nbytes == 0
    assert memory.nbytes >= tensor.nbytes


def test_tensors_of_any_size_and_dtype_are_made() -> None:
    memory = BatchMemory()
    for shape, dtype in (((0, 3), torch.float32), ((2, 3), torch.bool), ((1 << 18,), torch.bfloat16)):
        tensor = memory.any_size(shape, dtype)
        assert (tuple(tensor.shape), tensor.dtype) == (shape, dtype)
    assert memory.nbytes == 0
