from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import Tensor

from depth import examples
from reference.chi_square import assert_fits
from reference.storage import PlainStorage
from reference.trajectory_index import Found, trajectories
from reference.write_log import SlotLog
from replaybank.buffers.tensordict import TensorDictReplayBuffer
from replaybank.samplers.base import Sampler
from replaybank.samplers.slice import SliceSampler
from replaybank.samplers.slice_without_replacement import SliceSamplerWithoutReplacement
from replaybank.samplers.without_replacement import SamplerWithoutReplacement
from replaybank.storages import LazyTensorStorage, TensorStorage

DONE = ("next", "done")
Key = tuple[str, ...]


def steps(*lengths: int, first: int = 0) -> dict[Key, Tensor]:
    """Whole trajectories one behind the other, each step marked with its trajectory and its number in it."""
    done = torch.zeros(sum(lengths), 1, dtype=torch.bool)
    done[torch.tensor(lengths).cumsum(0) - 1] = True
    return {
        ("id",): torch.cat([torch.full((n,), first + k) for k, n in enumerate(lengths)]),
        ("step",): torch.cat([torch.arange(n) for n in lengths]),
        DONE: done,
    }


def filled(rows: int, *lengths: int) -> PlainStorage:
    storage = PlainStorage(rows)
    storage.extend(steps(*lengths))
    return storage


def sampler_of(seed: int = 0, **options: Any) -> SliceSamplerWithoutReplacement:
    sampler = SliceSamplerWithoutReplacement(**options)
    sampler.generator = torch.Generator().manual_seed(seed)
    return sampler


def slices(
    storage: PlainStorage, sampler: SliceSamplerWithoutReplacement, batch_size: int
) -> list[tuple[int, int, int]]:
    """Of each slice of a batch: trajectory, number of its first step, number of steps. Checks each."""
    where, info = sampler.sample(storage, batch_size)
    assert all(part.dtype == torch.int64 for part in where)
    ids = storage.leaves["id",][where].tolist()
    numbers = storage.leaves["step",][where].tolist()
    last = info["next", "truncated"].squeeze(-1).tolist()
    found, start = [], 0
    for k, ends in enumerate(last):
        if k > start:
            assert ids[k] == ids[start], "a slice crosses a trajectory"
            assert numbers[k] == numbers[k - 1] + 1, "a slice skips steps"
        if ends:
            found.append((ids[start], numbers[start], k + 1 - start))
            start = k + 1
    assert start == len(ids)
    return found


def one_pass(
    storage: PlainStorage, sampler: SliceSamplerWithoutReplacement, batch_size: int
) -> list[list[tuple[int, int, int]]]:
    batches = [slices(storage, sampler, batch_size)]
    while not sampler.ran_out:
        batches.append(slices(storage, sampler, batch_size))
    return batches


# ---- what it is


def test_it_is_a_slice_sampler_and_a_sampler_without_replacement_by_registration() -> None:
    sampler: Sampler = SliceSamplerWithoutReplacement(slice_len=2)
    assert isinstance(sampler, SliceSampler)
    assert isinstance(sampler, SamplerWithoutReplacement)
    assert SliceSamplerWithoutReplacement.__mro__[1] is Sampler, "it inherits behaviour from neither"
    assert not isinstance(SliceSampler(slice_len=2), SliceSamplerWithoutReplacement)
    assert not isinstance(SliceSampler(slice_len=2), SamplerWithoutReplacement)
    assert not isinstance(SamplerWithoutReplacement(), SliceSampler)


def test_arguments_are_readable_attributes_and_those_of_a_slice_sampler_are_checked_alike() -> None:
    given: dict[str, Any] = {
        "num_slices": 3,
        "slice_len": None,
        "drop_last": True,
        "end_key": "stop",
        "traj_key": ("a", "run"),
        "ends": None,
        "trajectories": None,
        "truncated_key": None,
        "strict_length": False,
        "shuffle": False,
        "compile": True,
        "use_gpu": True,
    }
    sampler = SliceSamplerWithoutReplacement(**given)
    assert {name: getattr(sampler, name) for name in given} == given
    assert "num_slices=3" in repr(sampler)
    with pytest.raises(TypeError, match="exactly one of num_slices and slice_len"):
        SliceSamplerWithoutReplacement()
    with pytest.raises(RuntimeError, match="ends or trajectories, not both"):
        SliceSamplerWithoutReplacement(slice_len=1, ends=torch.ones(3), trajectories=torch.ones(3))
    with pytest.raises(RuntimeError, match="batch of 10 steps"):
        sampler.sample(filled(20, 20), 10)
    with pytest.raises(KeyError, match="no episod;"):
        SliceSamplerWithoutReplacement(slice_len=1, traj_key="episod").sample(filled(20, 20), 10)


# ---- passes


@pytest.mark.parametrize("options", [{"slice_len": 8}, {"num_slices": 4}])
def test_short_trajectories_are_skipped_and_batches_are_full_to_the_end_of_a_pass(
    options: dict[str, int],
) -> None:  # C38
    storage, sampler = filled(400, *([3, 20, 3, 3, 20] * 5), 20, 3), sampler_of(**options)
    for _ in range(3):
        batches = one_pass(storage, sampler, 32)
        assert [len(batch) for batch in batches] == [4, 4, 3]
        drawn = [slice_ for batch in batches for slice_ in batch]
        assert sorted(k for k, _, _ in drawn) == [k for k in range(26) if k % 5 in (1, 4) or k == 25]
        assert {n for _, _, n in drawn} == {8}


def test_ran_out_is_true_after_the_call_that_ends_a_pass_only() -> None:
    storage, sampler = filled(50, 5, 5, 5, 5, 5), sampler_of(slice_len=2)
    ran_out = []
    for _ in range(6):
        sampler.sample(storage, 4)
        ran_out.append(sampler.ran_out)
    assert ran_out == [False, False, True] * 2
    sampler.ran_out = False
    assert not sampler.ran_out


def test_with_drop_last_a_batch_of_fewer_slices_is_not_given() -> None:
    storage, sampler = filled(50, 5, 5, 5, 5, 5), sampler_of(slice_len=2, drop_last=True)
    for _ in range(4):
        batches = one_pass(storage, sampler, 4)
        assert [len(batch) for batch in batches] == [2, 2]
        assert len({k for batch in batches for k, _, _ in batch}) == 4


def test_with_drop_last_fewer_steps_do_not_make_a_batch_short() -> None:
    storage = filled(50, 5, 1, 5, 1)
    sampler = sampler_of(slice_len=3, drop_last=True, strict_length=False)
    batches = one_pass(storage, sampler, 6)
    assert [len(batch) for batch in batches] == [2, 2]
    assert sorted((k, n) for batch in batches for k, _, n in batch) == [(0, 3), (1, 1), (2, 3), (3, 1)]


def test_drop_last_with_more_slices_than_eligible_trajectories_is_an_error() -> None:
    storage = filled(50, 5, 1, 5, 1)
    with pytest.raises(ValueError, match=r"batch of 3 trajectories .* there are 2.*drop_last=False"):
        sampler_of(slice_len=3, drop_last=True).sample(storage, 9)
    assert len(slices(storage, sampler_of(slice_len=3), 9)) == 2


def test_no_trajectory_long_enough_is_an_error_with_the_range_of_lengths() -> None:
    sampler = sampler_of(slice_len=8)
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match=r"slices of 8 steps were asked for, and the 2 .* have 3 to 5 steps"
        ):
            sampler.sample(filled(10, 5, 3), 16)
    with pytest.raises(RuntimeError, match=r"^Cannot sample from an empty storage\.$"):
        sampler.sample(PlainStorage(4), 16)


def test_without_shuffling_trajectories_come_in_stored_order() -> None:
    storage, sampler = filled(50, 5, 1, 6, 7, 5), sampler_of(slice_len=2, shuffle=False)
    for _ in range(2):
        assert [[k for k, _, _ in batch] for batch in one_pass(storage, sampler, 6)] == [[0, 2, 3], [4]]


def test_any_write_begins_a_new_pass() -> None:
    storage, sampler = filled(40, 5, 5, 5, 5), sampler_of(slice_len=2, shuffle=False)

    def first() -> int:
        return slices(storage, sampler, 2)[0][0]

    assert [first(), first()] == [0, 1]
    storage.replace(torch.tensor([7]), {("step",): torch.tensor([2])})
    assert [first(), first()] == [0, 1]
    storage.extend(steps(1, first=4))
    assert [first(), first()] == [0, 1]
    storage.log.clear()
    storage.extend(steps(5, 5, 5, 5))
    assert [first(), first()] == [0, 1]
    sampler.empty()
    assert [first(), first(), first(), first()] == [0, 1, 2, 3]
    assert sampler.ran_out


def test_another_length_goes_on_with_the_pass_while_the_same_trajectories_are_long_enough() -> None:
    storage, sampler = filled(40, 5, 9, 9, 9), sampler_of(num_slices=1, shuffle=False)
    assert [slices(storage, sampler, size)[0][0] for size in (6, 7, 9)] == [1, 2, 3]
    assert sampler.ran_out
    assert [slices(storage, sampler, size)[0][0] for size in (6, 5, 5, 2)] == [1, 0, 1, 2]


def test_slices_run_across_the_physical_end_and_never_across_the_cursor() -> None:
    storage = filled(10, 6)
    storage.extend(steps(8, first=1))
    sampler = sampler_of(slice_len=2)
    assert {k for batch in one_pass(storage, sampler, 2) for k, _, _ in batch} == {0, 1}
    assert one_pass(storage, sampler_of(slice_len=8), 16) == [[(1, 0, 8)]]


def test_given_ends_and_trajectories_go_on_at_slot_0() -> None:
    storage = filled(5, 5)
    given: list[dict[str, Any]] = [
        {"ends": torch.tensor([0, 1, 1, 0, 0]).bool()},
        {"trajectories": torch.tensor([7, 7, 2, 7, 7])},
    ]
    for options in given:
        sampler = sampler_of(slice_len=4, **options)
        for same in (sampler, copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
            (time,), _ = same.sample(storage, 8)
            assert time.tolist() == [3, 4, 0, 1]


def test_given_data_has_passes_too() -> None:
    done = torch.zeros(12, 1, dtype=torch.bool)
    done[3::4] = True
    storage = TensorStorage(TensorDict({"next": {"done": done}}, batch_size=[12]))
    sampler = sampler_of(slice_len=3)
    seen = [sampler.sample(storage, 3)[0][0][0].item() // 4 for _ in range(3)]
    assert sorted(seen) == [0, 1, 2]
    assert sampler.ran_out


# ---- distribution


@pytest.mark.parametrize("state", ["partly filled", "exactly full", "wrapped"])
def test_starts_are_uniform_and_trajectories_come_at_every_place_of_a_pass(state: str) -> None:
    lengths = [5, 3, 9, 6, 2]
    storage = PlainStorage(30 if state == "partly filled" else 25)
    if state == "wrapped":
        storage.extend(steps(17, first=90))
    storage.extend(steps(*lengths))
    sampler = sampler_of(slice_len=3)
    drawn: list[list[Any]] = [[], [], [], []]
    for _ in range(4000):
        for place in drawn:
            place += slices(storage, sampler, 3)
        assert sampler.ran_out
    chances: dict[Any, float] = {
        (k, s, 3): 1 / 4 / (n - 2) for k, n in enumerate(lengths) if n > 2 for s in range(n - 2)
    }
    for place in drawn:
        assert_fits(place, chances)


def test_in_several_columns_every_trajectory_of_every_column_comes_once() -> None:
    storage = PlainStorage(12, (2,))
    left, right = steps(4, 8), steps(6, 3, 3, first=10)
    storage.extend({key: torch.stack([left[key], right[key]], 1) for key in left})
    sampler = sampler_of(slice_len=3)
    drawn = []
    for _ in range(3000):
        batches = one_pass(storage, sampler, 6)
        assert [len(batch) for batch in batches] == [2, 2, 1]
        assert sorted(k for batch in batches for k, _, _ in batch) == [0, 1, 10, 11, 12]
        drawn.append(batches[0][0])
    chances: dict[Any, float] = {
        (k, s, 3): 1 / 5 / (n - 2) for k, n in {0: 4, 1: 8, 10: 6, 11: 3, 12: 3}.items() for s in range(n - 2)
    }
    assert_fits(drawn, chances)


# ---- against brute force


class Twin:
    """A storage, its log slot by slot, and what is left of a pass as a set of trajectories."""

    def __init__(self, rows: int, columns: tuple[int, ...]) -> None:
        self.storage = PlainStorage(rows, columns)
        self.log = SlotLog(rows)
        self.n_columns = torch.Size(columns).numel()
        self.left: set[Found] | None = None
        self.known: set[Found] = set()

    def signals(self) -> list[list[bool]]:
        if DONE not in self.storage.leaves:
            return [[False] * self.n_columns for _ in range(self.storage.rows)]
        found: list[list[bool]] = self.storage.leaves[DONE].reshape(self.storage.rows, -1).tolist()
        return found

    def write(self, count: int, ends: list[bool], regular: bool, at: int) -> None:
        count = min(count, self.storage.rows)
        done = torch.tensor([ends[k % len(ends)] for k in range(count * self.n_columns)])
        data: dict[Key, Tensor] = {DONE: done.reshape(count, *self.storage.columns)}
        start = self.storage.log.cursor if regular else at % (self.storage.log.length + 1) % self.storage.rows
        self.storage.write(start, data, set_cursor=regular)
        self.log.append(start, count, set_cursor=regular)
        self.left = None

    def replace(self, row: int, end: bool) -> None:
        if self.storage.log.length:
            rows = torch.tensor([row % self.storage.log.length])
            self.storage.replace(rows, {DONE: torch.full((1, *self.storage.columns), end)})
            self.left = None

    def empty(self) -> None:
        self.storage.log.clear()
        self.log.clear()
        self.left = None

    def check(self, sampler: SliceSamplerWithoutReplacement, count: int, length: int) -> None:
        if not len(self.storage):
            return
        least = length if sampler.strict_length else 1
        eligible = {
            found for found in trajectories(self.log, self.signals(), by_change=False) if found[2] >= least
        }
        if not eligible or (sampler.drop_last and count > len(eligible)):
            with pytest.raises(ValueError if eligible else RuntimeError):
                sampler.sample(self.storage, count * length)
            return
        if not self.left or eligible != self.known or (sampler.drop_last and count > len(self.left)):
            self.left = set(eligible)
        self.known = eligible
        where, info = sampler.sample(self.storage, count * length)
        rows = where[0].tolist()
        flat = torch.arange(self.n_columns).reshape(self.storage.columns or (1,))
        columns = flat[where[1:]].tolist() if where[1:] else [0] * len(rows)
        last = info["next", "truncated"].squeeze(-1).tolist()
        drawn: list[Found] = []
        start = 0
        for k, ends in enumerate(last):
            if not ends:
                continue
            size = k + 1 - start
            home = [found for found in self.left if self.holds(found, columns[start], rows[start : k + 1])]
            assert len(home) == 1, "a slice of no trajectory that is left"
            assert size == min(length, home[0][2])
            self.left -= {home[0]}
            drawn.append(home[0])
            start = k + 1
        assert len(drawn) == count or not self.left
        if not sampler.shuffle:
            assert drawn == sorted(drawn, key=lambda f: (f[0], (f[1] + f[2] - 1) % self.storage.log.length))
        ended = not self.left or (sampler.drop_last and len(self.left) < count)
        assert sampler.ran_out == ended
        if ended:
            self.left = set()

    def holds(self, found: Found, column: int, rows: list[int]) -> bool:
        length = self.storage.log.length
        inside = [(found[1] + k) % length for k in range(found[2])]
        if found[0] != column or rows[0] not in inside:
            return False
        at = inside.index(rows[0])
        return inside[at : at + len(rows)] == rows


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 9), st.integers(1, 255), st.integers(0, 20)),
        st.tuples(st.just("sample"), st.integers(1, 4), st.integers(1, 5), st.just(0)),
        st.tuples(st.just("sample"), st.integers(1, 4), st.integers(1, 5), st.just(0)),
        st.tuples(
            st.sampled_from(["put", "replace"]), st.integers(1, 4), st.integers(1, 255), st.integers(0, 20)
        ),
        st.tuples(
            st.sampled_from(["empty", "pickle", "state", "reload"]), st.just(0), st.just(0), st.just(0)
        ),
    ),
    max_size=30,
)


@settings(max_examples=examples(800), deadline=None)
@given(
    actions=ACTIONS,
    rows=st.integers(1, 20),
    columns=st.sampled_from([(), (1,), (3,), (2, 2)]),
    options=st.fixed_dictionaries(
        {"drop_last": st.booleans(), "shuffle": st.booleans(), "strict_length": st.booleans()}
    ),
)
def test_any_history_agrees_with_a_set_of_the_trajectories_left(
    actions: list[tuple[str, int, int, int]], rows: int, columns: tuple[int, ...], options: dict[str, bool]
) -> None:
    twin = Twin(rows, columns)
    sampler = sampler_of(num_slices=1, **options)
    for action, number, other, at in actions:
        ends = [bool(other >> k & 1) for k in range(8)]
        if action in ("write", "put"):
            twin.write(number, ends, action == "write", at)
        elif action == "replace":
            twin.replace(at, ends[0])
        elif action == "empty":
            twin.empty()
        elif action == "sample":
            sampler.num_slices = number
            twin.check(sampler, number, other)
        else:
            generator, sampler.generator = sampler.generator, None
            if action == "pickle":
                sampler = pickle.loads(pickle.dumps(sampler))
            else:
                loaded = sampler_of(num_slices=1, strict_length=options["strict_length"])
                loaded.load_state_dict(sampler.state_dict())
                sampler = loaded
                if action == "reload":
                    twin.storage.log.load_state_dict(twin.storage.log.state_dict())
            sampler.generator = generator


# ---- state


def test_content_replaced_before_the_storage_was_saved_ends_a_pass_that_was_saved_earlier() -> None:
    storage, sampler = filled(12, 3, 3, 3, 3), sampler_of(slice_len=3, shuffle=False)
    assert slices(storage, sampler, 6) == [(0, 0, 3), (1, 0, 3)]
    sampler.generator = None
    again = pickle.loads(pickle.dumps(sampler))
    again.load_state_dict(sampler.state_dict())
    storage.log.load_state_dict(storage.log.state_dict())
    assert slices(storage, again, 3) == [(2, 0, 3)]  # nothing was written: it goes on
    again.load_state_dict(sampler.state_dict())
    storage.replace(torch.tensor([11]), {DONE: torch.tensor([[True]])})
    storage.log.load_state_dict(storage.log.state_dict())
    assert slices(storage, again, 6) == [(0, 0, 3), (1, 0, 3)]


CHILD = """
import sys, torch
from replaybank.samplers import SliceSamplerWithoutReplacement
from replaybank.storages import TensorStorage
sampler = SliceSamplerWithoutReplacement(slice_len=4)
sampler.loads(sys.argv[1])
storage = TensorStorage({"episode": torch.arange(40) // 4})
print([sampler.sample(storage, 16)[0][0].tolist() for _ in range(2)], sampler.ran_out)
"""


def test_a_pass_goes_on_in_another_process(tmp_path: Path) -> None:  # C23
    storage = TensorStorage({"episode": torch.arange(40) // 4})
    sampler = sampler_of(slice_len=4)
    sampler.sample(storage, 16)
    sampler.dumps(tmp_path)
    rest = [sampler.sample(storage, 16)[0][0].tolist() for _ in range(2)]
    assert [len(batch) for batch in rest] == [16, 8]
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert child.stdout.strip() == f"{rest} True"


def test_a_pass_does_not_go_on_in_a_storage_that_was_written_to_after_the_state_was_taken() -> None:
    storage, sampler, other = filled(60, 5, 5, 5), sampler_of(slice_len=5), sampler_of(slice_len=5)
    slices(storage, sampler, 5)
    other.load_state_dict(sampler.state_dict())
    storage.extend(steps(5, first=3))
    assert sorted(k for batch in one_pass(storage, other, 5) for k, _, _ in batch) == [0, 1, 2, 3]
    slices(storage, sampler, 5)
    storage.replace(torch.tensor([0]), {("step",): torch.tensor([0])})
    for same in (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
        assert sorted(k for batch in one_pass(storage, same, 5) for k, _, _ in batch) == [0, 1, 2, 3]
    other.load_state_dict(sampler.state_dict())
    assert sorted(k for batch in one_pass(storage, other, 5) for k, _, _ in batch) == [0, 1, 2, 3]


def test_content_replaced_between_loading_and_the_next_batch_begins_a_new_pass() -> None:
    storage, sampler, other = filled(60, 5, 5, 5), sampler_of(slice_len=5), sampler_of(slice_len=5)
    slices(storage, sampler, 5)
    state = sampler.state_dict(), storage.log.state_dict()
    for replaced, left in ((False, 2), (True, 3)):
        other.load_state_dict(state[0])
        storage.log.load_state_dict(state[1])
        if replaced:
            storage.replace(torch.tensor([0]), {("step",): torch.tensor([0])})
        assert len(one_pass(storage, other, 5)) == left


# ---- in a buffer


def buffer_of(n: int = 40, **options: Any) -> TensorDictReplayBuffer:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(60),
        sampler=SliceSamplerWithoutReplacement(slice_len=4, **options),
        batch_size=16,
        generator=torch.Generator().manual_seed(0),
    )
    buffer.extend(TensorDict({"episode": torch.arange(n) // 4}, batch_size=[n]))
    return buffer


def test_a_buffer_iterates_over_passes_and_goes_on_after_loading(tmp_path: Path) -> None:
    buffer, other = buffer_of(), buffer_of(4)
    assert [len(batch) for batch in buffer] == [16, 16, 8]
    first = buffer.sample()["episode"]
    buffer.dumps(tmp_path)
    rest = [batch["episode"].tolist() for batch in buffer]
    assert sorted(first.tolist() + rest[0] + rest[1]) == [k // 4 for k in range(40)]
    other.loads(tmp_path)
    assert [batch["episode"].tolist() for batch in other] == rest


def test_another_buffer_that_writes_begins_a_new_pass() -> None:  # C44
    buffer = buffer_of()
    buffer.sample()
    other = TensorDictReplayBuffer(storage=buffer.storage, batch_size=4)
    other.extend(TensorDict({"episode": torch.full((4,), 10)}, batch_size=[4]))
    assert sorted(e for batch in buffer for e in batch["episode"].tolist()) == [k // 4 for k in range(44)]
