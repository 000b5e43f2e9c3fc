"""Items that share rows of memory are saved as the rows lie, and read into any storage."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replaybank import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer, TensorStorage, checkpoint_rows
from replaybank.checkpoint import Field, FieldSpec, Rows, load, save
from replaybank.errors import DataFormatError
from replaybank.storages.leaf_table import LeafTable


def items(count: int, first: int = 0) -> TensorDict:
    """A column, and four leaves of 55 bytes that share a row of 64."""
    number = torch.arange(first, first + count)
    return TensorDict(
        {
            "column": number[:, None].expand(count, 300).to(torch.float32).clone(),
            "number": number,
            "flag": number % 3 == 0,
            "observation": number[:, None] + torch.arange(10, dtype=torch.float32),
            "half": number[:, None].to(torch.bfloat16).expand(count, 3).clone(),
        },
        batch_size=[count],
    )


def newest(path: Path) -> Path:
    return max(path.glob("state-*"))


def manifest(path: Path) -> Any:
    return json.loads((newest(path) / "manifest.json").read_bytes())


def full(storage: Callable[..., Any] = LazyTensorStorage, count: int = 50, **given: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(storage=storage(50, **given), batch_size=4)
    buffer.extend(items(count))
    return buffer


def same(left: Any, right: Any) -> bool:
    return bool((left == right).all())


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_rows_come_back_straight_into_a_storage_of_the_same_layout(
    storage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = full(storage)
    buffer.dumps(tmp_path)
    assert manifest(tmp_path)["version"] == 3
    other = ReplayBuffer(storage=storage(50), batch_size=4)
    with monkeypatch.context() as patch:
        patch.setattr(LeafTable, "scatter_run", None)  # leaf by leaf would call it
        other.loads(tmp_path)
    assert same(other[:], buffer[:])


def test_only_one_tensor_is_written_for_all_leaves_of_a_row(tmp_path: Path) -> None:
    full().dumps(tmp_path)
    packed = [entry for entry in manifest(tmp_path)["tensors"] if "fields" in entry]
    assert [len(entry["fields"]) for entry in packed] == [4]
    assert packed[0]["dtype"] == "uint8"
    assert packed[0]["shape"] == [50, 64]


@pytest.mark.parametrize("consolidated", [False, True])
def test_bytes_between_leaves_are_zero_in_files_whatever_the_memory_held(
    consolidated: bool, tmp_path: Path
) -> None:
    for _ in range(3):
        dirty = [torch.full((size,), 255, dtype=torch.uint8) for size in (3200, 6400, 63264, 1 << 16)]
        del dirty
        full(consolidated=consolidated).dumps(tmp_path)
        (entry,) = (entry for entry in manifest(tmp_path)["tensors"] if "fields" in entry)
        number = manifest(tmp_path)["tensors"].index(entry)
        content = (newest(tmp_path) / f"{number}.0.bin").read_bytes()
        rows = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(50, 64)
        used = torch.zeros(64, dtype=torch.bool)
        for field in entry["fields"]:
            size = torch.Size(field["shape"]).numel() * getattr(torch, field["dtype"]).itemsize
            used[field["offset"] : field["offset"] + size] = True
        assert not bool(used.all())
        assert not bool(rows[:, ~used].any())


@pytest.mark.parametrize("after", [0, 20])
@pytest.mark.parametrize("rows", [50, 80])
def test_rows_load_into_another_capacity_oldest_first(rows: int, after: int, tmp_path: Path) -> None:
    buffer = full()
    buffer.extend(items(after, 50)) if after else None
    buffer.dumps(tmp_path)
    other = ReplayBuffer(storage=LazyTensorStorage(rows), batch_size=4)
    other.loads(tmp_path)
    wanted = buffer[:] if rows == 50 else items(50, after)
    assert same(other[:], wanted)


def test_rows_load_into_other_dtypes_and_given_tensors(tmp_path: Path) -> None:
    buffer = full()
    buffer.dumps(tmp_path)
    wide = items(50, 7).apply(lambda leaf: leaf.double() if leaf.dtype == torch.float32 else leaf)
    for storage in (LazyTensorStorage(50), TensorStorage(items(50, 7))):
        other = ReplayBuffer(storage=storage, batch_size=4)
        if storage.initialized:
            other.loads(tmp_path)
        else:
            other.extend(wide)
            other.loads(tmp_path)
            assert other[:]["observation"].dtype == torch.float64
        assert same(other[:], buffer[:])


def test_what_is_read_at_once_are_plain_tensors(tmp_path: Path) -> None:
    buffer = full()
    buffer.dumps(tmp_path)
    for leaf, wanted in zip(
        load(tmp_path)["storage"]["data"], buffer.state_dict()["storage"]["data"], strict=True
    ):
        assert leaf.is_contiguous()
        assert leaf.dtype == wanted.dtype
        assert torch.equal(leaf, wanted)


def test_a_load_hook_sees_leaves(tmp_path: Path) -> None:
    full().dumps(tmp_path)
    other = ReplayBuffer(storage=LazyTensorStorage(50), batch_size=4)

    def hook(state: Any) -> Any:
        assert all(isinstance(leaf, torch.Tensor) for leaf in state["data"])
        return state

    other.register_load_hook(hook)
    other.loads(tmp_path)
    assert same(other[:], items(50))


@pytest.mark.parametrize("columns", [(), (3,)])
def test_a_base_in_several_files_and_later_pieces_give_the_rows(
    columns: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_rows, "BASE_BYTES", 300)
    buffer = ReplayBuffer(storage=LazyTensorStorage(60, ndim=1 + len(columns)), batch_size=4)

    def extend(count: int, first: int) -> None:
        data = items(count * torch.Size(columns).numel(), first)
        buffer.extend(data.reshape(*columns, count))

    extend(15, 0)
    buffer.dumps(tmp_path)
    extend(4, 100)
    buffer.dumps(tmp_path)
    entry = next(entry for entry in manifest(tmp_path)["tensors"] if "fields" in entry)
    assert sum(piece["tier"] == -1 for piece in entry["pieces"]) > 1
    assert entry["pieces"][-1]["tier"] == 0
    other = ReplayBuffer(storage=LazyTensorStorage(60, ndim=1 + len(columns)), batch_size=4)
    other.loads(tmp_path)
    assert same(other[:], buffer[:])


def test_next_observations_that_are_made_go_with_rows(tmp_path: Path) -> None:
    steps = items(40)
    steps["next", "observation"] = steps["observation"] + 1
    buffer = ReplayBuffer(storage=LazyTensorStorage(50, next_observation="derive"), batch_size=4)
    buffer.extend(steps)
    buffer.dumps(tmp_path)
    assert any("fields" in entry for entry in manifest(tmp_path)["tensors"])
    for how in ("derive", None):
        other = ReplayBuffer(storage=LazyTensorStorage(50, next_observation=how), batch_size=4)
        other.loads(tmp_path)
        assert same(other[:], buffer[:])


def two_fields(content: list[int]) -> dict[str, Any]:
    fields = (FieldSpec(torch.int32, (1,), 4), FieldSpec(torch.bool, (2,), 0))
    rows = Rows(
        torch.tensor(content, dtype=torch.uint8).view(-1, 8), "h", "rows", (0,), lambda _: None, fields
    )
    return {"a": Field(rows, 0), "b": Field(rows, 1)}


def test_bytes_of_a_row_that_are_no_bools_are_refused(tmp_path: Path) -> None:
    save(tmp_path, two_fields([0, 1, 9, 9, 7, 0, 0, 0] * 3))
    assert load(tmp_path)["a"].tolist() == [[7]] * 3
    assert load(tmp_path)["b"].tolist() == [[False, True]] * 3
    save(tmp_path, two_fields([0, 1, 9, 9, 7, 0, 0, 0] * 2 + [0, 2, 9, 9, 7, 0, 0, 0]))
    with pytest.raises(DataFormatError, match=r"0\.0\.bin holds bytes that are no bools"):
        load(tmp_path)


def replace_manifest(path: Path, made: Any) -> None:
    """With valid checksums, whatever it says."""
    content = json.dumps(made).encode()
    (newest(path) / "manifest.json").write_bytes(content)
    line = f"{newest(path).name} {len(content)} {zlib.crc32(content):08x}\n"
    (path / "CURRENT").write_text(f"{line}{zlib.crc32(line.encode()):08x}\n")


GOOD = {"dtype": "int32", "shape": [1], "offset": 4}


@pytest.mark.parametrize(
    "change",
    [
        {"fields": None},
        {"fields": []},
        {"fields": [0, 0]},
        {"fields": [GOOD] * 100_000},
        {"fields": [GOOD, GOOD, GOOD]},
        {"fields": [GOOD, {**GOOD, "dtype": "object"}]},
        {"fields": [GOOD, {**GOOD, "offset": -4}]},
        {"fields": [GOOD, {**GOOD, "offset": 8}]},
        {"fields": [GOOD, {**GOOD, "offset": 2}]},
        {"fields": [GOOD, {**GOOD, "offset": True}]},
        {"fields": [GOOD, {**GOOD, "offset": None}]},
        {"fields": [GOOD, {**GOOD, "shape": [2]}]},
        {"fields": [GOOD, {**GOOD, "shape": [0]}]},
        {"fields": [GOOD, {**GOOD, "shape": [1] * 65}]},
        {"fields": [GOOD, {**GOOD, "shape": [1 << 62]}]},
        {"fields": [GOOD, {**GOOD, "shape": 1}]},
        {"dtype": "int8"},
    ],
    ids=lambda change: str(change)[:60],
)
def test_hostile_fields_are_refused_before_memory_is_taken(
    change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, two_fields([0] * 24))
    made = manifest(tmp_path)
    made["tensors"][0].update(change)
    replace_manifest(tmp_path, made)

    def no_memory(*args: Any, **kwargs: Any) -> torch.Tensor:
        raise AssertionError("memory was asked for")

    monkeypatch.setattr(torch, "empty", no_memory)
    with pytest.raises(DataFormatError, match=r"manifest\.json"):
        load(tmp_path)


@pytest.mark.parametrize("value", [[0, 2], [1, 0], [0, -1], [0, True], [0], [0, 0, 0], "00", 0, None])
def test_a_field_that_is_not_there_is_refused(value: Any, tmp_path: Path) -> None:
    save(tmp_path, two_fields([0] * 24))
    made = manifest(tmp_path)
    made["state"]["dict"]["a"] = {"field": value}
    replace_manifest(tmp_path, made)
    with pytest.raises(DataFormatError, match="stands for no value"):
        load(tmp_path)
