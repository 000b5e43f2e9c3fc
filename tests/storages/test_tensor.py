"""Tensor storages: what they refuse, how they convert, and that a refused write leaves nothing behind."""

from __future__ import annotations

import multiprocessing
import pickle
import warnings
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict
from torch import Tensor, nn

from patience import PATIENCE
from replaybank.storages import LazyTensorStorage, ListStorage, TensorStorage
from replaybank.storages import capacity as capacity_module
from replaybank.writers import RoundRobinWriter


def _writer(storage: Any) -> RoundRobinWriter:
    writer = RoundRobinWriter()
    writer.register_storage(storage)
    return writer


def _steps(count: int) -> TensorDict:
    return TensorDict(
        {
            "obs": torch.arange(count * 3, dtype=torch.float32).view(count, 3),
            "next": {"obs": torch.ones(count, 3), "done": torch.zeros(count, 1, dtype=torch.bool)},
            "pixels": torch.full((count, 50, 50), 7, dtype=torch.uint8),
        },
        [count],
    )


# --- cases ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", [LazyTensorStorage(10), ListStorage(10), TensorStorage(torch.zeros(10))])
def test_c60_of_a_batch_2_5_times_the_capacity_the_last_steps_stay_in_order_at_their_slots(
    storage: Any,
) -> None:
    writer = _writer(storage)
    before = writer.write_count
    index = writer.extend(list(torch.arange(25.0)))
    assert index.tolist() == [k % 10 for k in range(25)]
    assert torch.as_tensor(storage[:]).tolist() == [20, 21, 22, 23, 24, 15, 16, 17, 18, 19]
    assert writer.cursor == 5
    assert writer.write_count == before + 25
    # Time goes on from slot 9 to slot 0, and the cursor is the only cut.
    assert storage.log.cut.tolist() == [slot == 5 for slot in range(10)]


def test_c60_from_the_middle_of_a_full_storage() -> None:
    writer = _writer(LazyTensorStorage(4))
    writer.extend(torch.arange(6))
    assert writer.extend(torch.arange(6, 16)).tolist() == [2, 3, 0, 1, 2, 3, 0, 1, 2, 3]
    assert writer.storage[:].tolist() == [12, 13, 14, 15]
    assert writer.cursor == 0


@pytest.mark.parametrize(
    "nothing",
    [[], torch.empty(0, 3), TensorDict({}, [0]), _steps(0), np.empty((0, 2))],
    ids=lambda x: str(type(x)),
)
def test_c61_writing_nothing_does_nothing_and_gives_an_empty_index(nothing: Any) -> None:
    storage = LazyTensorStorage(10)
    index = _writer(storage).extend(nothing)
    assert index.shape == (0,)
    assert index.dtype == torch.int64
    assert not storage.initialized
    assert (storage.log.total, len(storage)) == (0, 0)


def test_c61_writing_nothing_to_a_storage_that_holds_something() -> None:
    storage = LazyTensorStorage(10)
    writer = _writer(storage)
    writer.extend(_steps(3))
    assert writer.extend(_steps(0)).shape == (0,)
    assert writer.extend([]).shape == (0,)
    assert (len(storage), writer.write_count, writer.cursor) == (3, 3, 3)


def test_c61_an_empty_index_of_a_2d_storage_has_a_column_a_dimension() -> None:
    assert _writer(LazyTensorStorage(10, ndim=2)).extend(torch.empty(0, 2)).shape == (0, 2)


@pytest.mark.parametrize("ndim", [1, 2])
def test_c66_an_empty_lazy_storage_is_saved_loaded_and_then_written(ndim: int, tmp_path: Path) -> None:
    LazyTensorStorage(4, ndim=ndim).dumps(tmp_path)
    storage = LazyTensorStorage(4, ndim=ndim)
    storage.loads(tmp_path)
    _writer(storage).extend(torch.arange(8).view(4, 2))
    assert storage[-1].tolist() == [6, 7]


def test_an_empty_state_empties_a_storage_that_holds_something() -> None:
    storage = LazyTensorStorage(4)
    _writer(storage).extend(torch.arange(3))
    storage.load_state_dict(LazyTensorStorage(4).state_dict())
    assert len(storage) == 0
    _writer(storage).extend(torch.arange(2))
    assert storage[:].tolist() == [0, 1]


DTYPES: list[tuple[Any, torch.dtype]] = [
    (np.array([True, False, True]), torch.bool),
    (np.array([1.5, 2.5, -1], dtype=np.float16), torch.float16),
    (np.array([1, 2, 3], dtype=np.uint16), torch.uint16),
    (np.array([1, 2, 3], dtype=">i4"), torch.int32),
    (np.array([1.5, 2.5, -1])[::-1], torch.float64),
    (torch.tensor([1.5, 2.5, -1], dtype=torch.bfloat16), torch.bfloat16),
    (torch.tensor([1 + 2j, 3j, -1]), torch.complex64),
    (torch.tensor([1 + 2j, 3j, -1]).conj(), torch.complex64),
    (torch.tensor([1 + 2j, 3j, -1]).conj().imag, torch.float32),
    (torch.arange(12).view(3, 4).T[:3, 1], torch.int64),
    (torch.ones(1, 3).expand(3, 3), torch.float32),
    (nn.Parameter(torch.ones(3)), torch.float32),
    (torch.ones(3, 0), torch.float32),
]


@pytest.mark.parametrize(("data", "dtype"), DTYPES)
@pytest.mark.parametrize("beside", [False, True])
def test_c68_all_dtypes_and_strides_are_stored_as_they_are(
    data: Any, dtype: torch.dtype, beside: bool
) -> None:
    expected = torch.as_tensor(np.ascontiguousarray(data).astype(np.int32)) if dtype == torch.int32 else None
    if expected is None:
        expected = torch.as_tensor(data.copy() if isinstance(data, np.ndarray) else data).detach()
    written = {"x": data, "flag": torch.ones(3, dtype=torch.bool)} if beside else {"x": data}
    storage = LazyTensorStorage(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _writer(storage).extend(written)
        for read in (storage[:]["x"], storage[[0, 1, 2]]["x"], storage[torch.arange(3)]["x"]):
            assert read.dtype == dtype
            assert read.is_contiguous()
            assert not read.requires_grad
            assert torch.equal(read.resolve_conj().resolve_neg(), expected.resolve_conj().resolve_neg())


def test_c68_read_only_arrays_are_stored_without_a_warning() -> None:
    array = np.arange(6, dtype=np.float32).reshape(3, 2)
    array.flags.writeable = False
    storage = LazyTensorStorage(3)
    _writer(storage).extend(array)
    assert storage[:].tolist() == array.tolist()


@pytest.mark.parametrize("size", [10 * 2**40, 2**45])
def test_c69_more_memory_than_there_is_is_refused_with_both_numbers(size: int) -> None:
    with pytest.raises(MemoryError, match=r"TiB.*available") as caught:
        LazyTensorStorage(size)
    assert "GiB" in str(caught.value) or "MiB" in str(caught.value)


def test_c69_is_worked_out_from_the_item_at_the_first_write() -> None:
    storage = LazyTensorStorage(10_000_000)
    with pytest.raises(MemoryError, match=r"10000000 items of 1048576 bytes needs 9\.5 TiB.*available"):
        storage.set(0, torch.zeros(2**20, dtype=torch.uint8).expand(2**20))
    assert not storage.initialized
    storage.set(0, torch.zeros(3))
    assert len(storage) == 1


def test_c69_a_copy_of_more_than_there_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = TensorStorage(torch.zeros(1, 1024).expand(100_000, 1024))
    monkeypatch.setattr(capacity_module, "available_memory", lambda: 1000)
    with pytest.raises(MemoryError, match=r"390\.6 MiB.*1000 bytes"):
        storage[:]


def test_c19_a_storage_of_one_item() -> None:
    storage = LazyTensorStorage(1)
    writer = _writer(storage)
    for number in range(3):
        assert writer.add({"x": torch.tensor([number]), "y": torch.tensor(True)}) == 0
        assert storage[torch.zeros(4, dtype=torch.int64)]["x"].tolist() == [[number]] * 4
    assert (writer.cursor, writer.write_count, len(storage)) == (0, 3, 1)
    assert writer.extend({"x": torch.tensor([[7], [8]]), "y": torch.tensor([True, False])}).tolist() == [0, 0]
    assert storage[0]["x"].tolist() == [8]


# --- what does not fit ---------------------------------------------------------------------------------


BAD_WRITES: list[tuple[Any, type[Exception], list[str]]] = [
    (lambda s: s.set("obs", torch.ones(2, 4)), ValueError, ["obs", "[2, 4]", "[2, 3]", "torch.float32"]),
    (lambda s: s.set("obs", torch.ones(2, 3, dtype=torch.int64)), TypeError, ["obs", "int64", "float32"]),
    (lambda s: s.set(("next", "done"), torch.ones(2, 1)), TypeError, ["('next', 'done')", "float32", "bool"]),
    (lambda s: s.set(("next", "done"), torch.ones(2, 1, dtype=torch.uint8)), TypeError, ["uint8", "bool"]),
    (lambda s: s.exclude("pixels"), ValueError, ["pixels", "missing"]),
    (lambda s: s.exclude("pixels").set("new", torch.ones(2)), ValueError, ["pixels", "new"]),
    (lambda s: s.set("next", torch.ones(2)), ValueError, ["next", "done"]),
    (lambda s: s.set("obs", NonTensorData("text", batch_size=[2])), TypeError, ["obs", "ListStorage"]),
    (lambda s: s.set("obs", torch.ones(2, 3).to_sparse()), TypeError, ["obs", "sparse"]),
    (lambda s: s.to_dict() | {"obs": "text"}, ValueError, ["obs"]),
    (lambda s: s.to_dict() | {"obs": np.array(["a", "b"])}, TypeError, ["obs"]),
    (lambda s: torch.ones(2, 3), ValueError, ["obs", "missing"]),
    (lambda s: [s[0], s[1].set("obs", torch.ones(4))], ValueError, ["obs", "[4]", "[3]"]),
]


@pytest.mark.parametrize(("change", "error", "named"), BAD_WRITES)
def test_a_write_that_does_not_fit_names_what_is_wrong_and_writes_nothing(
    change: Any, error: type[Exception], named: list[str]
) -> None:
    storage = LazyTensorStorage(8)
    writer = _writer(storage)
    writer.extend(_steps(3))
    before, mark = storage[:].clone(), storage.log.mark()
    with pytest.raises(error) as caught:
        writer.extend(change(_steps(2)))
    for part in named:
        assert part in str(caught.value)
    assert (storage[:] == before).all()
    assert storage.log.mark() == mark
    assert len(storage) == 3


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ({"a": torch.ones(2), "b": torch.ones(3)}, "share their first 1"),
        ({"a": torch.ones(2), "b": torch.ones(())}, "share their first 1"),
        (torch.ones(()), "share their first 1"),
        ({}, "no leaves"),
        (TensorDict({"a": torch.ones(2)}, []), "batch size"),
        ({1: torch.ones(2), "1": torch.ones(2)}, "'1'"),
    ],
)
def test_a_first_write_without_items_in_common_is_refused(data: Any, match: str) -> None:
    storage = LazyTensorStorage(8)
    with pytest.raises(ValueError, match=match):
        _writer(storage).extend(data)
    assert not storage.initialized


@pytest.mark.parametrize("data", ["text", None, object(), {"a": torch.ones(2), "b": None}, np.array(["a"])])
def test_a_first_write_of_no_numbers_says_what_to_do(data: Any) -> None:
    with pytest.raises(TypeError, match=r"ListStorage|numbers"):
        _writer(LazyTensorStorage(8)).add(data)


def test_dtypes_are_cast_within_a_kind() -> None:
    storage = LazyTensorStorage(4)
    writer = _writer(storage)
    writer.extend({"f": torch.ones(1, dtype=torch.float16), "i": torch.ones(1, dtype=torch.int8)})
    writer.extend({"f": torch.full((1,), 2.0, dtype=torch.float64), "i": torch.full((1,), 3)})
    writer.extend({"f": np.array([4.0]), "i": np.array([5], dtype=np.uint8)})
    writer.add({"f": 6, "i": 7})
    data = storage[:]
    assert data["f"].dtype == torch.float16
    assert data["f"].tolist() == [1, 2, 4, 6]
    assert data["i"].dtype == torch.int8
    assert data["i"].tolist() == [1, 3, 5, 7]


def test_new_keys_become_columns_that_are_zero_elsewhere_with_one_warning() -> None:
    storage = LazyTensorStorage(5)
    writer = _writer(storage)
    writer.extend(_steps(3))
    wider = _steps(1).set("extra", torch.full((1, 2), 9)).set(("next", "more"), torch.ones(1))
    with pytest.warns(UserWarning, match="New keys.*extra") as caught:
        writer.extend(wider)
    assert len(caught) == 1
    writer.extend(wider)
    data = storage[:]
    assert data["extra"].tolist() == [[0, 0]] * 3 + [[9, 9]] * 2
    assert data["next", "more"].tolist() == [0, 0, 0, 1, 1]
    assert torch.equal(data["obs"][:3], _steps(3)["obs"])
    with pytest.raises(ValueError, match=r"missing.*extra"):
        writer.extend(_steps(1))


def test_new_keys_beside_data_that_does_not_fit_are_not_taken() -> None:
    storage = LazyTensorStorage(5)
    _writer(storage).extend(_steps(3))
    with pytest.raises(ValueError, match="obs"):
        _writer(storage).extend(_steps(1).set("extra", torch.ones(1)).set("obs", torch.ones(1, 4)))
    assert ("extra",) not in storage.leaf_keys()


def test_a_shared_storage_refuses_new_keys() -> None:
    storage = LazyTensorStorage(5, shared_init=True)
    _writer(storage).extend(_steps(3))
    with pytest.raises(ValueError, match="extra"):
        _writer(storage).extend(_steps(1).set("extra", torch.ones(1)))
    assert len(storage) == 3


# --- forms of data -------------------------------------------------------------------------------------


def test_lists_are_items_and_tuples_are_trees() -> None:
    storage = LazyTensorStorage(5)
    assert _writer(storage).extend([(1, 2.0), (3, 4.0), (5, 6.0)]).tolist() == [0, 1, 2]
    numbers, floats = storage[:]
    assert numbers.tolist() == [1, 3, 5]
    assert floats.tolist() == [2.0, 4.0, 6.0]


def test_a_list_inside_an_item_is_part_of_it() -> None:
    storage = LazyTensorStorage(5)
    _writer(storage).extend({"pair": [torch.arange(3), torch.ones(3)]})
    item = storage[1]
    assert isinstance(item["pair"], list)
    assert [int(part) for part in item["pair"]] == [1, 1]


def test_dicts_and_tensordicts_take_each_others_data() -> None:
    storage = LazyTensorStorage(5)
    writer = _writer(storage)
    writer.extend(_steps(1))
    writer.extend(_steps(2).to_dict())
    assert isinstance(storage[:], TensorDict)
    assert storage[:].shape == (3,)


def test_a_lazily_stacked_tensordict_is_stored_densely() -> None:
    stack = LazyStackedTensorDict.lazy_stack([_steps(2)[0], _steps(2)[1]])
    storage = LazyTensorStorage(5)
    _writer(storage).extend(stack)
    assert torch.equal(storage[:]["obs"], _steps(2)["obs"])


def test_batch_dimensions_beyond_the_items_belong_to_the_item() -> None:
    storage = LazyTensorStorage(5)
    data = TensorDict(
        {"a": torch.ones(2, 4, 3), "n": TensorDict({"b": torch.ones(2, 4, 3)}, [2, 4, 3])}, [2, 4]
    )
    _writer(storage).extend(data)
    assert storage[[0]].batch_size == (1, 4)
    assert storage[0].batch_size == (4,)
    assert storage[[0]]["n"].batch_size == (1, 4, 3)


def test_named_tuples_of_a_state_come_back_without_importing_anything() -> None:
    state = _filled_with_pairs().state_dict()
    other = LazyTensorStorage(3)
    other.load_state_dict(state)
    assert isinstance(other[0], Pair)
    state["structure"]["class"] = "os:system"
    with pytest.raises(ValueError, match="os:system"):
        LazyTensorStorage(3).load_state_dict(state)


Pair = namedtuple("Pair", ["left", "right"])


def _filled_with_pairs() -> LazyTensorStorage:
    storage = LazyTensorStorage(3)
    _writer(storage).extend(Pair(torch.arange(3), torch.ones(3)))
    return storage


def test_states_of_other_sizes_or_keys_are_refused_and_change_nothing() -> None:
    state = _filled_with_pairs().state_dict()
    other = LazyTensorStorage(2)
    with pytest.raises(ValueError, match=r"3 rows.*2"):
        other.load_state_dict(state)
    assert not other.initialized
    _writer(other).extend(_steps(2))
    with pytest.raises(ValueError, match="3 rows"):
        other.load_state_dict(state)
    third = LazyTensorStorage(3)
    _writer(third).extend(_steps(2))
    with pytest.raises(ValueError, match="left"):
        third.load_state_dict(state)
    assert len(third) == 2


@pytest.mark.parametrize("storage", [LazyTensorStorage(4), ListStorage(4)])
def test_a_state_with_fewer_items_than_its_log_says_is_refused(storage: Any) -> None:
    _writer(storage).extend(list(torch.arange(3)))
    state = storage.state_dict()
    if "data" in state:
        state["data"] = [leaf[:2] for leaf in state["data"]]
    else:
        state["items"] = state["items"][:2]
    other = type(storage)(4)
    with pytest.raises(ValueError, match=r"3 rows.*2"):
        other.load_state_dict(state)
    assert len(other) == 0


def test_dumps_and_loads_bring_data_log_and_cursor_back(tmp_path: Path) -> None:
    storage = LazyTensorStorage(4)
    _writer(storage).extend(_steps(6))
    storage.dumps(tmp_path)
    other = LazyTensorStorage(4)
    other.loads(tmp_path)
    assert (other[:] == storage[:]).all()
    assert other.log.cursor == 2
    assert other.log.cut.tolist() == storage.log.cut.tolist()


# --- places --------------------------------------------------------------------------------------------


def test_storage_i_equals_v_moves_neither_cursor_nor_length() -> None:
    storage = LazyTensorStorage(6)
    _writer(storage).extend(torch.arange(4))
    mark = storage.log.mark()
    storage[[0, -1]] = torch.tensor([10, 30])
    storage[1:3] = torch.tensor([11, 12])
    storage[torch.tensor([True, False, False, False])] = torch.tensor([20])
    storage.set(3, torch.tensor(33), set_cursor=False)
    assert storage[:].tolist() == [20, 11, 12, 33]
    assert (storage.log.cursor, storage.log.length, storage.log.total) == (4, 4, 4)
    assert storage.log.changes(mark).touched == [(0, 1), (3, 1), (1, 2), (0, 1), (3, 1)]


@pytest.mark.parametrize("index", [4, -5, [0, 4], torch.tensor([-5])])
def test_replacing_what_was_never_written_is_an_index_error(index: Any) -> None:
    storage = LazyTensorStorage(6)
    _writer(storage).extend(torch.arange(4))
    with pytest.raises(IndexError, match="4"):
        storage[index] = torch.zeros(len(index) if not isinstance(index, int) else (), dtype=torch.int64)
    assert storage[:].tolist() == [0, 1, 2, 3]


def test_new_rows_may_not_leave_garbage_before_them() -> None:
    storage = LazyTensorStorage(6)
    for cursor in (1, 6, -1, [0, 2], [3], range(1, 3)):
        with pytest.raises((IndexError, ValueError), match="row"):
            storage.set(cursor, torch.zeros(() if isinstance(cursor, int) else len(cursor)))
    assert len(storage) == 0
    storage.set([0, 1, 2], torch.tensor([0.0, 1, 2]))
    storage.set([2, 3, 0], torch.tensor([5.0, 6, 7]))
    assert storage[:].tolist() == [7, 1, 5, 6]
    assert storage.log.cursor == 1


def test_rows_and_data_of_different_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"2 rows.*3 rows"):
        LazyTensorStorage(6).set(range(2), torch.zeros(3))


def test_data_taken_from_the_storage_itself_can_be_written_to_it() -> None:
    storage = LazyTensorStorage(6)
    _writer(storage).extend(torch.arange(6))
    storage[1:6] = storage.view()[0:5]
    assert storage[:].tolist() == [0, 0, 1, 2, 3, 4]
    storage[[5, 4, 3]] = storage.view()[0:3]
    assert storage[:].tolist() == [0, 0, 1, 1, 0, 0]


def test_view_shares_memory_and_shows_valid_rows_only() -> None:
    storage = LazyTensorStorage(6)
    _writer(storage).extend(_steps(2))
    view = storage.view()
    assert view.shape == (2,)
    view["obs"][0] = 5.0
    assert storage[0]["obs"].tolist() == [5, 5, 5]


def test_reading_before_anything_was_written_is_an_index_error() -> None:
    for index in (0, [0], slice(None), torch.tensor([0])):
        with pytest.raises(IndexError, match="written"):
            LazyTensorStorage(3)[index]


def test_emptied_slots_cannot_be_read() -> None:
    storage = LazyTensorStorage(3)
    _writer(storage).extend(torch.arange(3))
    storage.empty()
    with pytest.raises(IndexError, match="0"):
        storage[torch.tensor([0])]
    assert storage[:].shape == (0,)


def test_contains_says_which_items_are_there() -> None:
    storage = LazyTensorStorage(5)
    _writer(storage).extend(torch.arange(3))
    assert storage.contains(2)
    assert storage.contains(-3)
    assert not storage.contains(3)
    assert storage.contains(torch.tensor([[0, 3], [-3, -4]])).tolist() == [[True, False], [True, False]]


# --- sizes ---------------------------------------------------------------------------------------------


def test_capacity_counts_items_over_all_dimensions() -> None:
    storage = LazyTensorStorage(10, ndim=2)
    assert storage.max_size == 10
    _writer(storage).extend(torch.zeros(2, 4))
    assert (storage.rows, storage.columns, storage.max_size, len(storage)) == (3, (4,), 12, 8)
    assert storage.shape == (2, 4)


@pytest.mark.parametrize("make", [LazyTensorStorage, ListStorage])
@pytest.mark.parametrize("size", [0, -1])
def test_a_storage_of_nothing_is_refused(make: Any, size: int) -> None:
    with pytest.raises(ValueError, match=str(size)):
        make(size)


def test_a_given_storage_is_full_from_the_start_and_stays_where_it_is() -> None:
    data = {"a": torch.arange(4), "b": torch.zeros(4, 2).t().contiguous().t()}
    storage = TensorStorage(data)
    assert len(storage) == storage.max_size == 4
    _writer(storage).extend({"a": torch.tensor([9]), "b": torch.ones(1, 2)})
    assert data["a"].tolist() == [9, 1, 2, 3]
    assert data["b"][0].tolist() == [1, 1]
    assert storage[torch.tensor([0, 3])]["b"].tolist() == [[1, 1], [0, 0]]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"storage": None}, "LazyTensorStorage"),
        ({"storage": torch.zeros(0)}, "no items"),
        ({"storage": torch.zeros(4), "max_size": 5}, "max_size=5"),
        ({"storage": torch.zeros(4), "ndim": 2}, "first 2"),
        ({"storage": torch.zeros(4), "ndim": 0}, "ndim=0"),
        ({"storage": {"a": torch.zeros(4), "b": torch.zeros(3)}}, "'b'"),
    ],
)
def test_a_given_storage_without_common_items_is_refused(arguments: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        TensorStorage(**arguments)


def test_memory_is_not_touched_when_it_is_allocated() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    if not Path("/proc/self/statm").exists():
        pytest.skip("needs /proc")
    before = resident()
    storages = [LazyTensorStorage(1_000_000), LazyTensorStorage(1_000_000, shared_init=True)]
    for storage in storages:
        storage.set(0, torch.zeros(64))
    assert resident() - before < 64 << 20  # of 2 * 256 MB


def test_batches_allocated_like_expanded_blanks_are_contiguous() -> None:
    storage = LazyTensorStorage(3)
    _writer(storage).extend({"a": torch.zeros(3, 2, 1, 5), "b": torch.zeros(3, 1), "c": torch.zeros(3)})
    for index in (torch.zeros(7, dtype=torch.int64), torch.zeros(1, 4, dtype=torch.int64)):
        for leaf in storage[index].values():
            assert leaf.is_contiguous()
            assert leaf.stride() == torch.empty(leaf.shape).stride()


def test_large_copies_on_several_threads_are_right() -> None:
    data = torch.randint(
        0, 256, (300, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    storage = LazyTensorStorage(300)
    _writer(storage).extend(data)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(storage[:], data)
        index = torch.randperm(300, generator=torch.Generator().manual_seed(1))
        assert torch.equal(storage[index], data[index])
        _writer(storage).extend(data.flip(0))
        assert torch.equal(storage[:], data.flip(0))
    finally:
        torch.set_num_threads(threads)


def test_a_pickle_carries_the_data_once_and_the_log() -> None:
    storage = LazyTensorStorage(100)
    _writer(storage).extend(_steps(3))
    item = len(pickle.dumps(storage))
    other: LazyTensorStorage = pickle.loads(pickle.dumps(storage))
    assert item < 100 * (64 + 2500) + 120_000  # the arena once; 98 KiB are the log's ring
    _writer(other).extend(_steps(1))
    assert (len(other), len(storage)) == (4, 3)


def test_repr_says_what_there_is() -> None:
    storage = LazyTensorStorage(5)
    assert "max_size=5" in repr(storage)
    assert "len=0" in repr(storage)


def test_index_tensors_need_not_be_contiguous() -> None:
    storage = LazyTensorStorage(10)
    _writer(storage).extend(torch.arange(10))
    index = torch.arange(10).view(5, 2).T
    assert storage[index].tolist() == index.tolist()
    assert storage[index[0]].tolist() == [0, 2, 4, 6, 8]


def _is_view(leaf: Tensor, of: Tensor) -> bool:
    return leaf.untyped_storage().data_ptr() == of.untyped_storage().data_ptr()


def test_read_leaf_of_a_slice_is_a_view() -> None:
    storage = LazyTensorStorage(4)
    _writer(storage).extend(_steps(3))
    leaf = storage.read_leaf(("next", "done"), slice(0, 3))
    assert _is_view(leaf, storage.view()["next", "done"])
    assert leaf.shape == (3, 1)


def _write_rows(storage: LazyTensorStorage) -> None:
    _writer(storage).extend(_steps(2))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_shared_storage_is_one_storage_in_all_processes(method: str) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system cannot {method}")
    storage = LazyTensorStorage(8, shared_init=True)
    _writer(storage).extend(_steps(3))
    context: Any = multiprocessing.get_context(method)
    process = context.Process(target=_write_rows, args=(storage,))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 0
    assert (len(storage), storage.log.cursor, storage.log.total) == (5, 5, 5)
    assert torch.equal(storage[3:]["obs"], _steps(2)["obs"])
    assert (storage[3:]["pixels"] == 7).all()


def test_a_storage_says_what_its_items_take() -> None:
    storage = LazyTensorStorage(8)
    assert storage.stored_bytes() == 0
    writer = _writer(storage)
    writer.extend(_steps(3))
    assert storage.stored_bytes() == 3 * (32 + 2500)  # two observations and a flag: 25 bytes, rows of 32
    writer.extend(_steps(8))
    assert storage.stored_bytes() == 8 * (32 + 2500)  # round once: as many items as there is room for
    storage.empty()
    assert storage.stored_bytes() == 0
    assert TensorStorage(torch.zeros(10, 4)).stored_bytes() == 160


def test_of_derived_observations_a_storage_counts_those_that_it_keeps() -> None:
    for dims in ((10,), (5, 2)):
        frames = torch.arange(11 * 2000).view(11, 2000).to(torch.uint8)
        data = TensorDict({"observation": frames[:-1], "next": {"observation": frames[1:]}}, [10])
        storage = LazyTensorStorage(10, ndim=len(dims), next_observation="derive")
        _writer(storage).extend(data.reshape(dims))
        # In one column the newest step's is kept aside; in two, where neighbours differ, every step's.
        kept = 1 if dims == (10,) else 10
        assert storage.stored_bytes() == 10 * (2000 + 8) + kept * 2000
