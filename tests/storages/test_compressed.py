"""Compressed items."""

from __future__ import annotations

import builtins
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import Tensor

from contracts import Frame, Step
from replaybank import ReplayBuffer
from replaybank.storages import CompressedListStorage
from replaybank.storages.layout import DTYPES

DTYPE_NAMES = sorted(name for name in DTYPES if not name.startswith("complex"))


def _bits(tensor: Tensor) -> list[int]:
    bits: list[int] = tensor.contiguous().reshape(-1).view(torch.uint8).tolist()
    return bits


@settings(max_examples=60, deadline=None)
@given(
    leaves=st.lists(
        st.tuples(st.sampled_from(DTYPE_NAMES), st.lists(st.integers(0, 4), max_size=3)),
        min_size=1,
        max_size=4,
    ),
    level=st.sampled_from([1, 3, 19]),
    seed=st.integers(0, 999),
)
def test_every_dtype_and_shape_comes_back_bit_by_bit(
    leaves: list[tuple[str, list[int]]], level: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    item: dict[str, Tensor] = {}
    for number, (name, shape) in enumerate(leaves):
        high = 2 if name == "bool" else 256
        count = torch.Size(shape).numel() * DTYPES[name].itemsize
        raw = torch.randint(high, (count,), dtype=torch.uint8, generator=generator)
        item[str(number)] = raw.view(DTYPES[name]).view(shape)
    storage = CompressedListStorage(3, compression_level=level)
    storage.set(0, item)
    back = storage[0]
    for key, value in item.items():
        assert (back[key].dtype, back[key].shape) == (value.dtype, value.shape)
        assert _bits(back[key]) == _bits(value)


def test_what_compresses_well_takes_little() -> None:
    storage = CompressedListStorage(4)
    storage.set(range(4), torch.zeros(4, 100_000, dtype=torch.uint8))
    assert storage.stored_bytes() < 4_000


def test_items_of_all_kinds_and_shapes_lie_side_by_side_and_are_saved(tmp_path: Path) -> None:
    cls: Any = Frame
    items: list[Any] = [
        torch.arange(3),
        TensorDict({"a": torch.ones(2, 3), "b": {"c": torch.zeros(2)}}, [2]),
        cls(torch.tensor([1, 2]), torch.tensor([True, False]), batch_size=[2]),
        Step(torch.tensor(1), torch.zeros(2, 2)),
        {"x": (torch.ones(1), [torch.zeros(0, 2)])},
        7,
    ]
    storage, other = CompressedListStorage(8), CompressedListStorage(8)
    for slot, item in enumerate(items):
        storage.set(slot, item)
    storage.dumps(tmp_path)
    other.loads(tmp_path)
    for found in (storage[:], other[:]):
        assert torch.equal(found[0], items[0])
        assert found[1].batch_size == (2,)
        assert torch.equal(found[1]["b", "c"], torch.zeros(2))
        assert type(found[2]) is Frame
        assert type(found[3]) is Step
        assert found[4]["x"][1][0].shape == (0, 2)
        assert found[5] == torch.tensor(7)


def test_what_is_read_is_a_copy() -> None:
    storage = CompressedListStorage(2)
    storage.set(0, torch.ones(3))
    storage[0].zero_()
    assert storage[0].tolist() == [1, 1, 1]


def test_functions_of_ones_own_are_used_in_place_of_zstd() -> None:
    calls: list[str] = []

    def pack(content: bytes) -> bytes:
        calls.append("pack")
        return zlib.compress(content)

    def unpack(content: bytes) -> bytes:
        calls.append("unpack")
        return zlib.decompress(content)

    storage = CompressedListStorage(2, compression_fn=pack, decompression_fn=unpack)
    storage.set(0, torch.arange(5))
    assert storage[0].tolist() == [0, 1, 2, 3, 4]
    assert calls == ["pack", "unpack"]
    with pytest.raises(ValueError, match="neither"):
        CompressedListStorage(2, compression_fn=pack)
    wrong = CompressedListStorage(2, compression_fn=pack, decompression_fn=lambda content: b"")
    wrong.set(0, torch.arange(5))
    with pytest.raises(ValueError, match="0 bytes and should have 40"):
        wrong[0]


def test_without_zstd_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name in ("compression", "backports"):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"replaybank\[zstd\]"):
        CompressedListStorage(2)


@pytest.mark.parametrize("item", ["text", {"a": object()}, TensorDict({"a": "text"})])
def test_what_is_no_tensor_is_refused(item: Any) -> None:
    storage = CompressedListStorage(2)
    with pytest.raises(TypeError, match="ListStorage"):
        storage.set(0, item)
    assert len(storage) == 0


def test_a_buffer_stacks_what_has_one_shape() -> None:
    buffer = ReplayBuffer(storage=CompressedListStorage(10), batch_size=4)
    buffer.extend(TensorDict({"x": torch.arange(6).view(3, 2)}, [3]))
    batch = buffer.sample()
    assert batch["x"].shape == (4, 2)


@pytest.mark.parametrize("damage", ["sizes", "form", "content"])
def test_a_damaged_state_is_refused_and_changes_nothing(damage: str) -> None:
    storage, other = CompressedListStorage(3), CompressedListStorage(3)
    storage.set(range(2), torch.arange(4).view(2, 2))
    other.set(0, torch.tensor(5))
    state = storage.state_dict()
    state[damage] = state[damage][:-1] if damage != "form" else state[damage] + 5
    with pytest.raises(ValueError, match="damaged"):
        other.load_state_dict(state)
    assert other[:] == [torch.tensor(5)]
