"""The native gather and scatter do what their NumPy twins do, for every size and index."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import gather as twin
from replaybank import _native

Bytes = npt.NDArray[np.uint8]
SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 24, 31, 32, 33, 63, 64, 65, 68, 100, 511, 512, 513, 1500]


class Table:
    """``n`` items with some leaves side by side in rows and some in columns of their own."""

    def __init__(self, n: int, in_row: list[int], in_columns: list[int], seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.n = n
        self.rows = rng.integers(0, 256, (n, sum(in_row) + 3), dtype=np.uint8)  # rows with a gap behind
        self.leaves: list[Bytes] = []
        self.plan: list[list[int]] = []
        offset = 0
        for size in in_row:
            self._leaf(self.rows[:, offset : offset + size], size, -1)
            offset += size
        for number, size in enumerate(in_columns):
            self._leaf(rng.integers(0, 256, (n, size), dtype=np.uint8), size, number)
        self._plan = np.array(self.plan, dtype=np.int64)
        self.address = self._plan.ctypes.data
        self.sizes = in_row + in_columns

    def _leaf(self, leaf: Bytes, size: int, group: int) -> None:
        self.leaves.append(leaf)
        self.plan.append([leaf.ctypes.data, leaf.strides[0], size, group])

    def batches(self, count: int, seed: int | None = None) -> list[Bytes]:
        rng = np.random.default_rng(seed)
        return [
            np.full((count, size), 7, np.uint8)
            if seed is None
            else rng.integers(0, 256, (count, size), dtype=np.uint8)
            for size in self.sizes
        ]


def addresses(batches: list[Bytes]) -> list[int]:
    return [batch.ctypes.data for batch in batches]


def same(left: list[Bytes], right: list[Bytes]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


sizes = st.lists(st.sampled_from(SIZES), max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    n=st.integers(1, 80),
    in_row=sizes,
    in_columns=sizes,
    count=st.integers(0, 150),
    threads=st.integers(1, 3),
)
def test_gather_copies_the_items_that_the_index_names(
    data: st.DataObject, n: int, in_row: list[int], in_columns: list[int], count: int, threads: int
) -> None:
    table = Table(n, in_row, in_columns)
    index = np.array(data.draw(st.lists(st.integers(-n, n - 1), min_size=count, max_size=count)), np.int64)
    out = table.batches(count)
    status = _native.gather(table.address, n, index.ctypes.data, count, addresses(out), threads)
    assert status == -1
    assert same(out, twin.gather(table.leaves, index))


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 80),
    in_row=sizes,
    in_columns=sizes,
    start=st.integers(0, 79),
    count=st.integers(0, 80),
    threads=st.integers(1, 3),
)
def test_runs_go_round_the_end(
    n: int, in_row: list[int], in_columns: list[int], start: int, count: int, threads: int
) -> None:
    start, count = start % n, min(count, n)
    table, expected = Table(n, in_row, in_columns), Table(n, in_row, in_columns)
    out = table.batches(count)
    assert _native.gather_run(table.address, n, start, count, addresses(out), threads) == -1
    assert same(out, twin.gather(table.leaves, twin.run(n, start, count)))

    batches = table.batches(count, seed=1)
    assert _native.scatter_run(table.address, n, start, count, addresses(batches), threads) == -1
    twin.scatter(expected.leaves, twin.run(n, start, count), batches)
    assert same(table.leaves, expected.leaves)
    assert np.array_equal(table.rows, expected.rows), "bytes between the leaves of a row were touched"


@settings(max_examples=60, deadline=None)
@given(data=st.data(), n=st.integers(1, 80), in_row=sizes, in_columns=sizes, count=st.integers(0, 150))
def test_of_repeated_places_the_last_write_wins(
    data: st.DataObject, n: int, in_row: list[int], in_columns: list[int], count: int
) -> None:
    table, expected = Table(n, in_row, in_columns), Table(n, in_row, in_columns)
    index = np.array(data.draw(st.lists(st.integers(-n, n - 1), min_size=count, max_size=count)), np.int64)
    batches = table.batches(count, seed=1)
    assert _native.scatter(table.address, n, index.ctypes.data, count, addresses(batches)) == -1
    twin.scatter(expected.leaves, index, batches)
    assert same(table.leaves, expected.leaves)
    assert np.array_equal(table.rows, expected.rows)


@pytest.mark.parametrize("bad", [5, -6, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("position", [0, 1, 39])
def test_the_first_bad_index_is_reported_and_nothing_is_copied(bad: int, position: int) -> None:
    table, untouched = Table(5, [4, 9], [16]), Table(5, [4, 9], [16])
    index = np.zeros(40, np.int64)
    index[position] = bad
    index[39] = bad
    assert twin.first_bad(index, 5) == position
    out = table.batches(40)
    assert _native.gather(table.address, 5, index.ctypes.data, 40, addresses(out), 1) == position
    assert same(out, table.batches(40))
    batches = table.batches(40, seed=1)
    assert _native.scatter(table.address, 5, index.ctypes.data, 40, addresses(batches)) == position
    assert same(table.leaves, untouched.leaves)


@pytest.mark.parametrize(("start", "count"), [(-1, 1), (5, 1), (0, 6), (0, -1)])
def test_runs_that_do_not_fit_are_refused(start: int, count: int) -> None:
    table, untouched = Table(5, [4], [16]), Table(5, [4], [16])
    batches = table.batches(8, seed=1)
    assert _native.scatter_run(table.address, 5, start, count, addresses(batches), 1) == 0
    assert _native.gather_run(table.address, 5, start, count, addresses(batches), 1) == 0
    assert same(table.leaves, untouched.leaves)
    assert same(batches, table.batches(8, seed=1))


def test_an_index_into_nothing_is_bad() -> None:
    table = Table(1, [4], [])
    index = np.zeros(1, np.int64)
    assert _native.gather(table.address, 0, index.ctypes.data, 1, addresses(table.batches(1)), 1) == 0


def test_a_batch_that_lies_in_the_table_itself_is_refused() -> None:
    table, untouched = Table(8, [], [16]), Table(8, [], [16])
    index = np.arange(4)
    inside = [table.leaves[0].ctypes.data + 16]
    assert _native.scatter(table.address, 8, index.ctypes.data, 4, inside) == -2
    assert _native.scatter_run(table.address, 8, 0, 4, inside, 1) == -2
    assert same(table.leaves, untouched.leaves)


def test_asking_for_large_pages_leaves_the_content_as_it_is() -> None:
    memory = np.arange(1 << 20, dtype=np.int64)
    assert _native.ask_large_pages(memory.ctypes.data, memory.nbytes) in (0, -1)
    assert np.array_equal(memory, np.arange(1 << 20))
    assert _native.ask_large_pages(memory.ctypes.data, 0) == -1


@settings(max_examples=60, deadline=None)
@given(data=st.data(), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), count=st.integers(0, 40))
def test_indices_of_several_dimensions_become_numbers_of_items(
    data: st.DataObject, sizes: list[int], count: int
) -> None:
    indices = [
        np.array(data.draw(st.lists(st.integers(-n, n - 1), min_size=count, max_size=count)), np.int64)
        for n in sizes
    ]
    out = np.full(count, -7)
    places = [index.ctypes.data for index in indices]
    assert _native.flatten_index(places, sizes, count, out.ctypes.data) == -1
    assert np.array_equal(out, twin.flatten_index(indices, sizes))


@pytest.mark.parametrize("bad", [3, -4, 2**63 - 1, -(2**63)])
def test_the_first_bad_index_of_several_dimensions_is_reported(bad: int) -> None:
    first, second = np.array([0, 1, 4]), np.array([0, bad, bad])
    out = np.zeros(3, np.int64)
    assert (
        _native.flatten_index([first.ctypes.data, second.ctypes.data], [5, 3], 3, out.ctypes.data)
        == 1 * 2 + 1
    )
