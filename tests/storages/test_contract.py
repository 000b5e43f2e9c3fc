"""All storages, with all kinds of data, in one, two and three dimensions, against plain lists."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from contracts import (
    COLUMNS,
    IMAGES,
    KINDS,
    LISTS,
    STORAGES,
    TRANSITIONS,
    DataKind,
    Model,
    check_state,
    check_storage,
    items_for,
    items_in,
    read_ids,
)
from replaybank.storages import Storage
from replaybank.writers import RoundRobinWriter

CASES = [
    pytest.param(name, kind, columns, id=f"{name}-{kind}-{len(columns) + 1}d")
    for name in STORAGES
    for kind in (*KINDS, TRANSITIONS, IMAGES)
    for columns in COLUMNS
    if not (name in LISTS and columns)
    if (kind is TRANSITIONS) == name.startswith("derived")
    if (kind is IMAGES) == name.startswith("images")
    if not (name == "stack" and kind.name not in ("tensordict", "tensorclass"))
    # Sharing and files change where the bytes lie, not what the data is: one kind with both will do.
    if name in (*LISTS, "given", "lazy") or kind in (TRANSITIONS, IMAGES) or kind.name == "tensordict"
]


@pytest.fixture(autouse=True)
def _no_scratch_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def _ids(first: int, rows: int, columns: tuple[int, ...]) -> Tensor:
    count = items_in(rows, columns)
    return torch.arange(first, first + count).view(rows, *columns)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.just(1)),
        st.tuples(st.just("extend"), st.integers(0, 13)),
        st.tuples(st.just("replace"), st.integers(0, 2**16)),
        st.tuples(st.just("set"), st.integers(0, 2**16)),
        st.tuples(st.just("empty"), st.just(0)),
        st.tuples(st.just("reload"), st.just(0)),
    ),
    max_size=7,
)


@pytest.mark.parametrize(("name", "kind", "columns"), CASES)
@settings(max_examples=12, deadline=None)
@given(rows=st.integers(1, 6), operations=OPERATIONS)
def test_storage_and_writer_do_what_plain_lists_do(
    name: str, kind: DataKind, columns: tuple[int, ...], rows: int, operations: list[tuple[str, int]]
) -> None:
    def fresh() -> Storage:
        return STORAGES[name](rows, columns, kind)

    storage, writer, model, next_id = fresh(), RoundRobinWriter(), Model(rows, columns), 1
    writer.register_storage(storage)
    if name == "given":
        model.write(torch.zeros((rows, *columns), dtype=torch.int64))
    for operation, number in operations:
        ids = _ids(next_id, number, columns) if operation == "extend" else _ids(next_id, 1, columns)
        next_id += ids.numel()
        if operation == "add":
            index = writer.add(kind.make(ids[0]))
            slots = model.write(ids)
            if columns:
                assert index[:, 0].unique().tolist() == slots
            else:
                assert index == slots[0]
        elif operation == "extend":
            index = writer.extend(items_for(storage, kind, ids))
            slots = model.write(ids)
            _check_index(index, slots, columns)
        elif operation == "replace" and model.rows:
            slot = number % len(model.rows)
            storage[slot] = kind.make(ids[0])
            model.rows[slot] = ids[0]
        elif operation == "set":
            slot = number % min(len(model.rows) + 1, rows)
            storage.set(slot, kind.make(ids[0]))
            model.cursor = slot
            model.write(ids)
        elif operation == "empty":
            storage.empty()
            model.empty()
        elif operation == "reload":
            check_state(storage, fresh, kind, model)
        if storage.initialized:
            check_storage(storage, kind, model)
        assert writer.write_count == model.total
        assert writer.cursor == model.cursor


def _check_index(index: Tensor, slots: list[int], columns: tuple[int, ...]) -> None:
    assert index.dtype == torch.int64
    if not columns:
        assert index.tolist() == slots
        return
    grid = torch.cartesian_prod(
        torch.tensor(slots, dtype=torch.int64), *(torch.arange(size) for size in columns)
    )
    assert torch.equal(index, grid.view(-1, 1 + len(columns)) if slots else index[:0])
    assert index.shape == (len(slots) * items_in(1, columns), 1 + len(columns))


def _filled(name: str, kind: DataKind, columns: tuple[int, ...], rows: int = 5) -> tuple[Storage, Tensor]:
    storage = STORAGES[name](rows, columns, kind)
    ids = _ids(1, rows, columns)
    if name == "given":
        storage.set(range(rows), kind.make(ids))
    else:
        writer = RoundRobinWriter()
        writer.register_storage(storage)
        writer.extend(items_for(storage, kind, ids))
    return storage, ids


@pytest.mark.parametrize(("name", "kind", "columns"), [case for case in CASES if "-1d" in str(case.id)])
def test_every_kind_of_index_reads_what_torch_would(
    name: str, kind: DataKind, columns: tuple[int, ...]
) -> None:
    storage, ids = _filled(name, kind, columns)
    mask = torch.tensor([True, False, True, True, False])
    for index, expected in [
        (0, ids[0]),
        (torch.tensor(2), ids[2]),
        (torch.tensor([1, -1]).numpy()[1], ids[-1]),
        (slice(1, 4), ids[1:4]),
        (slice(None, None, 2), ids[::2]),
        (slice(3, 3), ids[3:3]),
        (range(4, 0, -2), ids[[4, 2]]),
        ([0, -1, 0], ids[[0, 4, 0]]),
        (torch.tensor([3, 1], dtype=torch.int32), ids[[3, 1]]),
        (torch.tensor([3, 1]).numpy(), ids[[3, 1]]),
        (mask, ids[mask]),
        (mask.numpy(), ids[mask]),
        (mask.tolist(), ids[mask]),
        ((torch.tensor([3, 1]),), ids[[3, 1]]),
        (Ellipsis, ids),
        ([], ids[:0]),
    ]:
        if isinstance(index, list) and not index and name in LISTS:
            assert len(storage.get(index)) == 0
            continue
        got = read_ids(kind, storage, index)
        assert got.tolist() == expected.tolist(), index


@pytest.mark.parametrize(
    ("name", "kind", "columns"), [case for case in CASES if "-2d" in str(case.id) or "-3d" in str(case.id)]
)
def test_every_kind_of_index_reads_what_torch_would_in_more_dimensions(
    name: str, kind: DataKind, columns: tuple[int, ...]
) -> None:
    storage, ids = _filled(name, kind, columns)
    ndim = 1 + len(columns)
    rows = torch.tensor([4, 0, -1])
    full = (rows, *(torch.tensor([1, 0, -1]) for _ in columns))
    mask = torch.arange(ids.numel()).view(ids.shape) % 3 == 0
    indices: list[Any] = [
        1,
        slice(1, 3),
        [0, 2],
        torch.tensor([[0, 2], [1, 1]]),
        rows,
        full,
        (rows,),
        (2, *([0] * (ndim - 1))),
        (slice(None), 1),
        (slice(1, 4), slice(0, 1)),
        (rows, slice(0, 2)),
        (rows, 1),
        (Ellipsis, 0),
        (0, Ellipsis),
        mask,
        mask[:, 0] if ndim == 2 else mask[..., 0],
        torch.tensor([True, False, True, False, True]),
    ]
    for index in indices:
        expected = ids[index]
        got = read_ids(kind, storage, index)
        assert got.tolist() == expected.tolist(), index


@pytest.mark.parametrize("columns", [(3,), (2, 2)])
def test_indices_beyond_a_column_are_refused(columns: tuple[int, ...]) -> None:
    storage, _ = _filled("lazy", KINDS[1], columns)
    for column in (columns[0], -columns[0] - 1):
        with pytest.raises(IndexError, match=str(column)):
            storage.get((torch.tensor([0]), *(torch.tensor([column]) for _ in columns)))
    for index in ((0,) * (len(columns) + 2), (None,), (torch.tensor([0, 1]), torch.tensor([0, 1, 1]))):
        with pytest.raises(IndexError):
            storage.get(index)


@pytest.mark.parametrize("index", [1.5, "key", True, torch.tensor([0.5]), [0.5], None, {}, torch.tensor(1j)])
def test_what_is_no_index_is_a_type_error(index: Any) -> None:
    storage, _ = _filled("lazy", KINDS[0], ())
    with pytest.raises(TypeError, match="index"):
        storage.get(index)


TENSORS = [
    case for case in CASES if case.values[0] not in LISTS
]  # a list keeps and gives objects, not copies


@pytest.mark.parametrize(("name", "kind", "columns"), TENSORS)
def test_a_batch_never_shares_memory_with_the_storage(
    name: str, kind: DataKind, columns: tuple[int, ...]
) -> None:
    storage, ids = _filled(name, kind, columns)
    for index in (0, slice(0, 3), slice(None), [0, 1], torch.tensor([1, 2])):
        data = storage.get(index)
        for leaf in _tensors(data):
            leaf.zero_()
        assert torch.equal(read_ids(kind, storage, slice(None)), ids)


@pytest.mark.parametrize(("name", "kind", "columns"), TENSORS)
def test_the_data_that_was_written_stays_the_callers(
    name: str, kind: DataKind, columns: tuple[int, ...]
) -> None:
    storage = STORAGES[name](4, columns, kind)
    ids = _ids(1, 4, columns)
    data = kind.make(ids)
    storage.set(range(4), data)
    for leaf in _tensors(data):
        if leaf.is_contiguous():
            leaf.zero_()
    assert torch.equal(read_ids(kind, storage, slice(None)), ids)


@pytest.mark.parametrize(("name", "kind", "columns"), TENSORS)
def test_leaves_can_be_read_one_by_one(name: str, kind: DataKind, columns: tuple[int, ...]) -> None:
    storage, ids = _filled(name, kind, columns)
    found = [storage.read_leaf(key, slice(0, 5)) for key in storage.leaf_keys()]
    assert any(leaf.dtype == torch.int64 and torch.equal(leaf, ids) for leaf in found)
    for key, leaf in zip(storage.leaf_keys(), found, strict=True):
        assert torch.equal(storage.read_leaf(key, torch.tensor([3, 0])), leaf[[3, 0]])
    with pytest.raises(KeyError, match="nowhere"):
        storage.read_leaf(("nowhere",), slice(None))


def _tensors(data: Any) -> list[Tensor]:
    if isinstance(data, Tensor):
        return [data]
    if isinstance(data, tuple | list):
        return [leaf for part in data for leaf in _tensors(part)]
    return [leaf for _, value in data.items() for leaf in _tensors(value)]
