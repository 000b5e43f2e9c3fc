from __future__ import annotations

import pickle
import resource
import subprocess
import sys
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from depth import examples
from reference.chi_square import assert_fits
from reference.storage import PlainStorage
from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.samplers.passes import Pass
from replaybank.samplers.without_replacement import SamplerWithoutReplacement
from replaybank.storages import LazyTensorStorage


def grow(storage: PlainStorage, count: int) -> None:
    storage.extend({("x",): torch.ones(count, *storage.columns)})


def filled(rows: int, written: int, columns: tuple[int, ...] = ()) -> PlainStorage:
    storage = PlainStorage(rows, columns)
    for start in range(0, written, 3):
        grow(storage, min(3, written - start))
    return storage


def sampler_of(seed: int = 0, *, drop_last: bool = False, shuffle: bool = True) -> SamplerWithoutReplacement:
    sampler = SamplerWithoutReplacement(drop_last, shuffle)
    sampler.generator = torch.Generator().manual_seed(seed)
    return sampler


def draw(sampler: SamplerWithoutReplacement, storage: PlainStorage, size: int) -> list[int]:
    """The items of a batch, numbered time-major."""
    index, info = sampler.sample(storage, size)
    assert info == {}
    if not storage.columns:
        assert isinstance(index, Tensor)
        assert index.dtype == torch.int64
        return index.tolist()
    assert isinstance(index, tuple)
    assert len(index) == storage.ndim
    assert all(part.dtype == torch.int64 for part in index)
    numbers: Tensor = torch.arange(len(storage)).reshape(storage.shape)[index]
    return list(map(int, numbers))


def batches(sampler: SamplerWithoutReplacement, storage: PlainStorage, sizes: Sequence[int]) -> list[int]:
    return [len(draw(sampler, storage, size)) for size in sizes]


# ---- passes


def test_the_last_batch_holds_what_is_left_and_only_it_runs_out() -> None:  # C21
    storage, sampler = filled(10, 10), sampler_of()
    for _ in range(3):
        seen: list[int] = []
        for size, ran_out in ((4, False), (4, False), (2, True)):
            items = draw(sampler, storage, 4)
            assert (len(items), sampler.ran_out) == (size, ran_out)
            seen += items
        assert sorted(seen) == list(range(10))


def test_with_drop_last_no_batch_is_short_and_no_item_comes_twice_in_a_pass() -> None:  # C22
    storage, sampler = filled(10, 10), sampler_of(drop_last=True)
    first = draw(sampler, storage, 4)
    assert not sampler.ran_out
    second = draw(sampler, storage, 3)
    assert not sampler.ran_out
    third = draw(sampler, storage, 3)
    assert sampler.ran_out
    assert sorted(first + second + third) == list(range(10))
    assert len(draw(sampler, storage, 4)) == len(draw(sampler, storage, 4)) == 4
    assert sampler.ran_out, "2 are left, which is fewer than 4"
    assert len(draw(sampler, storage, 3)) == 3


def test_with_drop_last_a_larger_batch_than_what_is_left_begins_a_new_pass() -> None:
    storage, sampler = filled(10, 10), sampler_of(drop_last=True)
    assert batches(sampler, storage, [3, 3]) == [3, 3]
    first = draw(sampler, storage, 5)
    assert len(first) == 5
    assert not sampler.ran_out
    second = draw(sampler, storage, 5)
    assert sampler.ran_out
    assert sorted(first + second) == list(range(10))


def test_a_batch_larger_than_the_storage_is_an_error_or_a_whole_pass() -> None:  # C24
    storage = filled(10, 10)
    with pytest.raises(ValueError, match=r"batch of 11 items .* there are 10.*drop_last=False"):
        sampler_of(drop_last=True).sample(storage, 11)
    sampler = sampler_of()
    assert sorted(draw(sampler, storage, 11)) == list(range(10))
    assert sampler.ran_out
    assert draw(sampler_of(shuffle=False), storage, 11) == list(range(10))


def test_a_refused_batch_does_not_change_the_pass() -> None:
    storage, sampler = filled(10, 10), sampler_of(drop_last=True)
    seen = draw(sampler, storage, 5)
    for size, text in ((11, "batch of 11 items"), (-1, "batch_size=-1")):
        with pytest.raises(ValueError, match=text):
            sampler.sample(storage, size)
    assert sorted(seen + draw(sampler, storage, 5)) == list(range(10))


def test_a_batch_of_nothing_ends_no_pass() -> None:
    storage, sampler = filled(4, 4), sampler_of()
    assert batches(sampler, storage, [0, 2, 0]) == [0, 2, 0]
    assert not sampler.ran_out
    assert batches(sampler, storage, [2]) == [2]
    assert sampler.ran_out


@pytest.mark.parametrize("columns", [(), (1,), (3,), (2, 2)])
def test_without_shuffling_items_come_in_the_order_of_their_slots(columns: tuple[int, ...]) -> None:
    storage, sampler = filled(5, 7, columns), sampler_of(shuffle=False)
    for _ in range(2):
        seen: list[int] = []
        while not seen or not sampler.ran_out:
            seen += draw(sampler, storage, 3)
        assert seen == list(range(len(storage)))


def test_a_change_in_the_number_of_items_begins_a_new_pass() -> None:
    storage, sampler = filled(20, 10), sampler_of()
    draw(sampler, storage, 8)
    grow(storage, 1)
    assert sorted(draw(sampler, storage, 11)) == list(range(11))
    assert sampler.ran_out


def test_overwriting_items_of_a_full_storage_goes_on_with_the_pass() -> None:
    storage, sampler = filled(10, 10), sampler_of()
    seen = draw(sampler, storage, 4)
    grow(storage, 3)
    storage.replace(torch.tensor([1, 2]), {("x",): torch.zeros(2)})
    assert sorted(seen + draw(sampler, storage, 6)) == list(range(10))


def test_an_emptied_storage_that_was_filled_anew_begins_a_new_pass() -> None:
    storage, sampler = filled(10, 10), sampler_of()
    draw(sampler, storage, 4)
    storage.log.clear()
    grow(storage, 10)
    assert sorted(draw(sampler, storage, 10)) == list(range(10))


def test_an_emptied_sampler_begins_a_new_pass() -> None:
    storage, sampler = filled(10, 10), sampler_of()
    draw(sampler, storage, 4)
    sampler.empty()
    assert sorted(draw(sampler, storage, 10)) == list(range(10))
    sampler.empty()
    assert not sampler.ran_out


def test_ran_out_can_be_set_and_does_not_change_the_pass() -> None:
    storage, sampler = filled(10, 10), sampler_of()
    seen = draw(sampler, storage, 4)
    sampler.ran_out = True
    assert sampler.ran_out
    sampler.ran_out = False
    seen += draw(sampler, storage, 6)
    assert sorted(seen) == list(range(10))
    assert sampler.ran_out
    sampler.ran_out = False
    assert not sampler.ran_out


# ---- distribution


@pytest.mark.parametrize("columns", [(), (2,)])
@pytest.mark.parametrize("written", [2, 3, 4])
def test_every_order_is_equally_likely(columns: tuple[int, ...], written: int) -> None:
    storage = filled(3, written, columns) if not columns else filled(2, min(written, 2), columns)
    n = len(storage)
    sampler = sampler_of(seed=1)
    drawn = [(*draw(sampler, storage, n - 1), *draw(sampler, storage, n - 1)) for _ in range(12_000)]
    orders = list(permutations(range(n)))
    assert_fits(drawn, dict.fromkeys(orders, 1 / len(orders)))


@pytest.mark.parametrize(("rows", "written"), [(30, 20), (20, 20), (20, 33)])
def test_every_item_is_equally_likely_at_every_place_of_a_pass(rows: int, written: int) -> None:
    storage, sampler = filled(rows, written), sampler_of(seed=2, drop_last=True)
    places: dict[int, list[int]] = {0: [], 1: []}
    for _ in range(4000):
        places[0] += draw(sampler, storage, 7)
        places[1] += draw(sampler, storage, 7)
        assert sampler.ran_out
    n = len(storage)
    for drawn in places.values():
        # Draws of one batch exclude each other, which makes the counts vary less: no more false alarms.
        assert_fits(drawn, dict.fromkeys(range(n), 1 / n))


# ---- against a model


class PlainPass:
    """What is left, as a set."""

    def __init__(self, drop_last: bool) -> None:
        self.drop_last = drop_last
        self.n = 0
        self.left: set[int] = set()

    def check(self, n: int, size: int, items: list[int]) -> bool:
        """Whether a batch is right, and if the pass ends with it."""
        if n != self.n or not self.left or (self.drop_last and len(self.left) < size):
            self.n, self.left = n, set(range(n))
        assert len(items) == min(size, len(self.left))
        assert len(set(items)) == len(items)
        assert set(items) <= self.left
        self.left -= set(items)
        ended = not self.left or (self.drop_last and len(self.left) < size)
        if ended:
            self.left = set()
        return ended


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("sample"), st.integers(1, 15)),
        st.tuples(st.just("write"), st.integers(1, 6)),
        st.tuples(st.sampled_from(["empty", "pickle", "state", "replace"]), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=examples(1000), deadline=None)
@given(
    actions=ACTIONS,
    rows=st.integers(1, 12),
    columns=st.sampled_from([(), (1,), (2,), (2, 2)]),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
)
def test_any_history_agrees_with_a_set_of_what_is_left(
    actions: list[tuple[str, int]], rows: int, columns: tuple[int, ...], drop_last: bool, shuffle: bool
) -> None:
    storage, model = PlainStorage(rows, columns), PlainPass(drop_last)
    sampler = sampler_of(drop_last=drop_last, shuffle=shuffle)
    for action, number in actions:
        if action == "write":
            grow(storage, min(number, rows))
        elif action == "empty":
            storage.log.clear()
            sampler.empty()
            model.n = 0
        elif action == "replace" and len(storage):
            storage.replace(torch.tensor([0]), {("x",): torch.zeros(1, *columns)})
        elif action == "pickle":
            generator, sampler.generator = sampler.generator, None
            sampler = pickle.loads(pickle.dumps(sampler))
            sampler.generator = generator
        elif action == "state":
            other = sampler_of(drop_last=not drop_last, shuffle=not shuffle)
            other.generator = sampler.generator
            other.load_state_dict(sampler.state_dict())
            sampler = other
            assert (sampler.drop_last, sampler.shuffle) == (drop_last, shuffle)
        elif action == "sample" and len(storage):
            n = len(storage)
            if drop_last and number > n:
                with pytest.raises(ValueError, match="drop_last"):
                    sampler.sample(storage, number)
                continue
            items = draw(sampler, storage, number)
            assert sampler.ran_out == model.check(n, number, items)
            if not shuffle:
                assert items == sorted(items)


# ---- state


CHILD = """
import sys, torch
from replaybank.samplers import SamplerWithoutReplacement
from replaybank.storages import TensorStorage
sampler = SamplerWithoutReplacement()
sampler.loads(sys.argv[1])
storage = TensorStorage(torch.zeros(10))
print([sampler.sample(storage, 4)[0].tolist() for _ in range(2)], sampler.ran_out)
"""


def test_a_pass_goes_on_in_another_process(tmp_path: Path) -> None:  # C23
    storage, sampler = filled(10, 10), sampler_of()
    first = draw(sampler, storage, 4)
    sampler.dumps(tmp_path)
    rest = [draw(sampler, storage, 4), draw(sampler, storage, 4)]
    assert sorted(first + rest[0] + rest[1]) == list(range(10))
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert child.stdout.strip() == f"{rest} True"


def test_a_state_is_a_copy_and_loading_leaves_it_alone() -> None:
    storage, sampler = filled(10, 10), sampler_of()
    draw(sampler, storage, 4)
    state = sampler.state_dict()
    order = state["pass"]["order"].clone()
    assert order.shape == (6,)
    rest = draw(sampler, storage, 6)
    for _ in range(2):
        other = sampler_of(seed=9)
        other.load_state_dict(state)
        assert draw(other, storage, 4) + draw(other, storage, 4) == rest
    assert torch.equal(state["pass"]["order"], order)


def test_a_state_taken_between_two_passes_begins_the_next_one() -> None:
    storage, sampler, other = filled(5, 5), sampler_of(), sampler_of(seed=1)
    draw(sampler, storage, 5)
    other.load_state_dict(sampler.state_dict())
    assert other.ran_out
    assert sorted(draw(other, storage, 5)) == list(range(5))


@pytest.mark.parametrize(
    "change",
    [{"left": 7}, {"left": -1}, {"order": torch.arange(6.0)}, {"order": torch.tensor([0, 1, 2, 3, 4, 10])}],
)
def test_a_state_of_no_pass_is_refused_and_changes_nothing(change: dict[str, object]) -> None:
    storage, sampler = filled(10, 10), sampler_of()
    seen = draw(sampler, storage, 4)
    state = sampler.state_dict()
    with pytest.raises(ValueError, match="state is that of no pass"):
        sampler.load_state_dict({**state, "drop_last": True, "pass": {**state["pass"], **change}})
    assert not sampler.drop_last
    assert sorted(seen + draw(sampler, storage, 6)) == list(range(10))


# ---- memory


def test_a_permutation_takes_4_bytes_an_item() -> None:
    numbers = Pass()
    numbers.take(1000, 10, shuffle=True)
    order = numbers.state_dict()["order"]
    assert order.dtype == torch.int32
    numbers.take(1000, 10, shuffle=False)
    assert numbers._order is not None, "the pass that has begun goes on in its order"
    numbers.restart()
    numbers.take(1000, 10, shuffle=False)
    assert numbers._order is None


PEAK = """
import resource, torch
from replaybank.samplers.passes import Pass
torch.randperm(10)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before, n, numbers = peak(), 8_000_000, Pass()
for size in (n, n + 1, n + 1):
    numbers.take(size, 1000, shuffle=True)
print((peak() - before) / n)
"""


@pytest.mark.skipif(not hasattr(resource, "RUSAGE_SELF"), reason="no peak memory on this system")
def test_there_is_never_more_than_one_permutation() -> None:
    child = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert float(child.stdout) < 6


# ---- in a buffer


def flat(batches: list[list[int]]) -> list[int]:
    return [item for batch in batches for item in batch]


def buffer_of(size: int | None, n: int = 10, **options: bool) -> ReplayBuffer:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(20),
        sampler=SamplerWithoutReplacement(**options),
        batch_size=size,
        generator=torch.Generator().manual_seed(0),
    )
    buffer.extend(torch.arange(n))
    return buffer


@pytest.mark.parametrize("prefetch", [None, 3])
def test_iterating_gives_the_rest_of_the_pass_and_then_a_new_one(prefetch: int | None) -> None:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(20), sampler=SamplerWithoutReplacement(), batch_size=4, prefetch=prefetch
    )
    buffer.extend(torch.arange(10))
    first = buffer.sample().tolist()
    rest = [batch.tolist() for batch in buffer]
    assert [len(batch) for batch in rest] == [4, 2]
    assert sorted(first + rest[0] + rest[1]) == list(range(10))
    for _ in range(2):
        again = [batch.tolist() for batch in buffer]
        assert [len(batch) for batch in again] == [4, 4, 2]
        assert sorted(flat(again)) == list(range(10))
    for batch in buffer:
        first = batch.tolist()
        break
    rest = [batch.tolist() for batch in buffer]
    assert sorted(first + flat(rest)) == list(range(10))
    buffer.close()


def test_iterating_with_drop_last_gives_full_batches_only() -> None:
    buffer = buffer_of(4, drop_last=True)
    for _ in range(2):
        batches = [batch.tolist() for batch in buffer]
        assert [len(batch) for batch in batches] == [4, 4]
        assert len({item for batch in batches for item in batch}) == 8


def test_drop_last_without_a_batch_size_is_refused_by_the_buffer() -> None:
    with pytest.raises(ValueError, match=r"^Samplers with drop_last=True"):
        buffer_of(None, drop_last=True)


def test_a_buffer_saved_in_mid_pass_goes_on_with_it(tmp_path: Path) -> None:
    buffer, other = buffer_of(4), buffer_of(4, n=1)
    first = buffer.sample().tolist()
    buffer.dumps(tmp_path)
    rest = [batch.tolist() for batch in buffer]
    other.loads(tmp_path)
    assert [batch.tolist() for batch in other] == rest
    assert sorted(first + flat(rest)) == list(range(10))
    buffer.loads(tmp_path)
    assert [batch.tolist() for batch in buffer] == rest
    assert [batch.tolist() for batch in pickle.loads(pickle.dumps(other))] != rest


def test_a_buffer_pickled_in_mid_pass_goes_on_with_it() -> None:
    buffer = buffer_of(4)
    buffer.sample()
    other = pickle.loads(pickle.dumps(buffer))
    assert [batch.tolist() for batch in other] == [batch.tolist() for batch in buffer]
