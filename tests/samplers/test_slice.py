from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from depth import examples
from patience import PATIENCE
from reference.chi_square import assert_fits
from reference.storage import PlainStorage
from reference.trajectory_index import n_windows
from replaybank.samplers.slice import SliceSampler

DONE = ("next", "done")
Key = tuple[str, ...]


def steps(*lengths: int, first_episode: int = 0, open_end: bool = False) -> dict[Key, Tensor]:
    """Whole trajectories one behind the other, each step marked with its trajectory and its number in it."""
    episode = torch.cat([torch.full((n,), first_episode + k) for k, n in enumerate(lengths)])
    step = torch.cat([torch.arange(n) for n in lengths])
    done = torch.zeros(len(step), 1, dtype=torch.bool)
    done[torch.tensor(lengths).cumsum(0) - 1] = True
    if open_end:
        done[-1] = False
    return {("id",): episode, ("step",): step, DONE: done}


def filled(rows: int, *lengths: int, **options: Any) -> PlainStorage:
    storage = PlainStorage(rows)
    storage.extend(steps(*lengths, **options))
    return storage


def slice_sampler(seed: int = 0, **options: Any) -> SliceSampler:
    sampler = SliceSampler(**options)
    sampler.generator = torch.Generator().manual_seed(seed)
    return sampler


def runs(storage: PlainStorage, sampler: SliceSampler, batch_size: int) -> list[tuple[int, int, int]]:
    """Of each slice of a batch: trajectory, number of its first step, number of steps. Checks each."""
    where, info = sampler.sample(storage, batch_size)
    assert all(part.dtype == torch.int64 for part in where)
    ids = storage.leaves["id",][where].tolist()
    numbers = storage.leaves["step",][where].tolist()
    columns = [(ids[k], *(part[k].item() for part in where[1:])) for k in range(len(ids))]
    last = info["next", "truncated"].squeeze(-1).tolist()
    found, start = [], 0
    for k, ends in enumerate(last):
        if k > start:
            assert columns[k] == columns[start], "a slice crosses a trajectory or a column"
            assert numbers[k] == numbers[k - 1] + 1, "a slice skips steps"
        if ends:
            found.append((ids[start], numbers[start], k + 1 - start))
            start = k + 1
    assert start == len(ids)
    return found


def exact(lengths: list[int], slice_len: int, left: int = 0, right: int = 0) -> dict[Any, float]:
    """Probability of every slice: trajectories alike, then starts alike."""
    eligible = {k: n for k, n in enumerate(lengths) if n >= slice_len}
    chances: dict[Any, float] = {}
    for k, n in eligible.items():
        windows = n_windows(n, slice_len, left, right)
        for offset, kept in windows:
            place = (k, offset, kept)
            chances[place] = chances.get(place, 0.0) + 1 / len(eligible) / len(windows)
    return chances


# ---- which slices come


@pytest.mark.parametrize("state", ["partly filled", "exactly full", "wrapped"])
def test_trajectories_are_uniform_and_then_starts_are(state: str) -> None:
    lengths = [5, 3, 9, 6, 2]
    rows = 30 if state == "partly filled" else 25
    storage = PlainStorage(rows)
    if state == "wrapped":
        storage.extend(steps(17, first_episode=90))
    storage.extend(steps(*lengths))
    # The wrapped storage has no room for anything older.
    assert_fits(runs(storage, slice_sampler(slice_len=3), 3 * 20_000), exact(lengths, 3))


def test_in_several_columns_all_trajectories_of_all_columns_are_alike() -> None:
    storage = PlainStorage(12, (2,))
    left, right = steps(4, 8), steps(6, 3, 3, first_episode=10)
    storage.extend({key: torch.stack([left[key], right[key]], 1) for key in left})
    chances: dict[Any, float] = {
        (k, s, 3): 1 / 5 / (n - 2) for k, n in {0: 4, 1: 8, 10: 6, 11: 3, 12: 3}.items() for s in range(n - 2)
    }
    assert_fits(runs(storage, slice_sampler(slice_len=3), 3 * 20_000), chances)


@pytest.mark.parametrize(
    ("span", "left", "right"),
    [
        (False, 0, 0),
        (True, 3, 3),
        (2, 2, 2),
        ((0, 2), 0, 2),
        ((True, False), 3, 0),
        ((1, True), 1, 3),
        (0, 0, 0),
    ],
)
def test_a_span_lets_windows_stick_out_evenly_and_cuts_them(span: Any, left: int, right: int) -> None:  # C32
    lengths = [10, 4, 7, 3]
    storage = filled(24, *lengths)
    drawn = runs(storage, slice_sampler(slice_len=4, span=span), 4 * 20_000)
    assert_fits(drawn, exact(lengths, 4, left, right))
    kept = [n for _, _, n in drawn]
    assert (min(kept), max(kept)) == (4 - max(left, right), 4)


def test_a_right_span_of_2_leaves_8_to_10_of_10_steps() -> None:  # C31
    kept = [n for _, _, n in runs(filled(60, 30, 30), slice_sampler(slice_len=10, span=(0, 2)), 10_000)]
    assert set(kept) == {8, 9, 10}


def test_the_open_trajectory_is_sampled_too() -> None:
    storage = filled(20, 4, 5, open_end=True)
    assert {k for k, _, _ in runs(storage, slice_sampler(slice_len=2), 200)} == {0, 1}


def test_no_slice_crosses_the_cursor_or_an_end_after_two_rounds() -> None:  # C30
    storage = PlainStorage(1000)
    for episode in range(3):
        storage.extend(steps(999, first_episode=episode))
    sampler = slice_sampler(slice_len=7)
    for k in range(40):
        storage.extend({key: value[k : k + 1] for key, value in steps(999, first_episode=3).items()})
        runs(storage, sampler, 700)


def test_slices_run_across_the_physical_end_of_a_full_storage() -> None:
    storage = filled(10, 6)
    storage.extend(steps(8, first_episode=1))
    drawn = runs(storage, slice_sampler(slice_len=8), 80)
    assert drawn == [(1, 0, 8)] * 10


def test_given_data_does_not_wrap() -> None:
    storage = PlainStorage(10)
    storage._put(torch.arange(10), steps(10, open_end=True))
    storage.log.fill()
    assert {start for _, start, _ in runs(storage, slice_sampler(slice_len=8), 800)} == {0, 1, 2}


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_slices_stay_in_their_trajectory_whatever_is_written(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=generator))

    columns = [(), (1,), (3,), (2, 2)][number(0, 3)]
    storage = PlainStorage(number(1, 40), columns)
    by_id = number(0, 1)
    sampler = SliceSampler(
        num_slices=8, strict_length=False, span=bool(number(0, 1)), traj_key="id" if by_id else None
    )
    sampler.generator = generator
    n_columns = torch.Size(columns).numel()
    state = [[column * 1000, 0] for column in range(n_columns)]
    for _ in range(number(1, 12)):
        rows: list[list[list[int]]] = []
        for _ in range(number(1, storage.rows)):
            row = []
            for place in state:
                ends = number(0, 5) == 0
                row.append([place[0], place[1], ends])
                place[:] = [place[0] + 1, 0] if ends else [place[0], place[1] + 1]
            rows.append(row)
        data = torch.tensor(rows).reshape(len(rows), *columns, 3)
        storage.extend({("id",): data[..., 0], ("step",): data[..., 1], DONE: data[..., 2].bool()})
        runs(storage, sampler, 8 * number(1, 6))


# ---- lengths


def test_only_trajectories_that_are_long_enough_are_eligible() -> None:
    storage = filled(30, 3, 20, 4)
    assert {k for k, _, _ in runs(storage, slice_sampler(slice_len=5), 500)} == {1}


@pytest.mark.parametrize("options", [{"slice_len": 8}, {"num_slices": 4}])
def test_no_trajectory_long_enough_is_an_error_with_the_range_of_lengths(options: dict[str, int]) -> None:
    with pytest.raises(
        RuntimeError, match=r"slices of 8 steps were asked for, and the 2 .* have 3 to 5 steps"
    ):
        SliceSampler(**options).sample(filled(10, 5, 3), 32)  # type: ignore[arg-type]


def test_without_strict_length_a_short_trajectory_comes_whole() -> None:
    storage = filled(30, 3, 20)
    drawn = runs(storage, slice_sampler(slice_len=5, strict_length=False, span=2), 5000)
    assert {(start, n) for k, start, n in drawn if k == 0} == {(0, 3)}
    assert {n for k, _, n in drawn if k == 1} == {3, 4, 5}
    assert abs(sum(k == 0 for k, _, _ in drawn) - 500) < 100


def test_the_length_of_slices_may_change_from_call_to_call() -> None:
    storage, sampler = filled(30, 3, 20, 7), slice_sampler(num_slices=10)
    for length in (2, 7, 20, 3, 1):
        drawn = runs(storage, sampler, 10 * length)
        assert all(n == length for _, _, n in drawn)


def test_slices_are_so_many_or_so_long() -> None:
    storage = filled(40, 40)
    assert [n for _, _, n in runs(storage, slice_sampler(num_slices=3), 12)] == [4, 4, 4]
    assert [n for _, _, n in runs(storage, slice_sampler(slice_len=3), 12)] == [3, 3, 3, 3]


# ---- who wrote


def test_the_sampler_is_right_after_every_kind_of_write() -> None:  # C44
    storage, sampler = filled(30, 10, 10), slice_sampler(slice_len=4)
    runs(storage, sampler, 400)
    storage.replace(torch.tensor([4]), {DONE: torch.tensor([[True]])})
    starts = {(k, s) for k, s, _ in runs(storage, sampler, 4000)}
    assert not {(0, 2), (0, 3), (0, 4)} & starts
    assert {(0, 1), (0, 5)} <= starts
    storage.extend(steps(25, first_episode=5))
    runs(storage, sampler, 400)
    storage.log.clear()
    with pytest.raises(RuntimeError, match="empty storage"):
        sampler.sample(storage, 400)
    storage.extend(steps(4, first_episode=9))
    assert set(runs(storage, sampler, 400)) == {(9, 0, 4)}


def test_a_reloaded_storage_keeps_its_write_head() -> None:  # C37
    storage = filled(20, 17)
    storage.extend(steps(9, first_episode=1, open_end=True))
    loaded = PlainStorage(20)
    loaded.leaves = {key: value.clone() for key, value in storage.leaves.items()}
    loaded.log.load_state_dict(storage.log.state_dict())
    assert set(runs(loaded, slice_sampler(slice_len=9), 9000)) == {(0, 6, 9), (0, 7, 9), (0, 8, 9), (1, 0, 9)}


def _write_from_elsewhere(storage: PlainStorage) -> None:
    storage.extend(steps(12, first_episode=7))


def test_the_sampler_is_right_after_another_process_wrote() -> None:  # C44
    storage, sampler = filled(20, 16), slice_sampler(slice_len=4)
    for leaf in storage.leaves.values():
        leaf.share_memory_()
    storage.log.share_memory_()
    runs(storage, sampler, 400)
    process = torch.multiprocessing.get_context("fork").Process(target=_write_from_elsewhere, args=(storage,))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 0
    assert {k for k, _, _ in runs(storage, sampler, 400)} == {0, 7}


def test_one_sampler_serves_several_storages() -> None:
    sampler = slice_sampler(slice_len=4)
    for _ in range(2):
        assert set(runs(filled(20, 4), sampler, 40)) == {(0, 0, 4)}
        assert set(runs(filled(20, 2, 4), sampler, 40)) == {(1, 0, 4)}


# ---- where trajectories end


def keyed(*keys: str | Key) -> PlainStorage:
    """A storage whose every signal says something else: its trajectories have as many steps as its place."""
    storage, data = PlainStorage(12), {}
    for k, key in enumerate(keys):
        numbers = torch.arange(12) // (k + 2)
        path = (key,) if isinstance(key, str) else key
        ends = torch.cat([numbers[1:] != numbers[:-1], torch.tensor([True])])
        data[path] = ends if "done" in path[-1] or "stop" in path[-1] else numbers
    storage.extend(data)
    return storage


@pytest.mark.parametrize(
    ("stored", "options", "used"),
    [
        (["episode", DONE, "stop", "run"], {}, "episode"),
        ([DONE, "done", "run"], {}, DONE),
        (["episode", DONE, "stop"], {"end_key": "stop"}, "stop"),
        (["episode", DONE, "run"], {"traj_key": "run"}, "run"),
        (["episode", DONE, "run", "stop"], {"traj_key": "run", "end_key": "stop"}, "run"),
        (["episode", DONE, "stop"], {"traj_key": "run", "end_key": "stop"}, "stop"),
        ([("a", "run"), DONE], {"traj_key": ("a", "run")}, ("a", "run")),
    ],
)
def test_the_key_that_counts(stored: list[Any], options: dict[str, Any], used: Any) -> None:
    storage = keyed(*stored)
    length = stored.index(used) + 2
    sampler = slice_sampler(slice_len=12, strict_length=False, truncated_key="cut", **options)
    where, info = sampler.sample(storage, 120)
    ends = info["cut"].squeeze(-1).nonzero().squeeze(-1)
    whole = {length, 12 % length} - {0}
    assert set(torch.diff(ends, prepend=torch.tensor([-1])).tolist()) <= whole
    assert where[0][0] % length == 0


@pytest.mark.parametrize(
    ("stored", "options", "asked"),
    [
        (["run", DONE], {"traj_key": "episod"}, "episod"),  # C35
        (["episode", DONE], {"end_key": "stop"}, "stop"),
        (["episode", DONE], {"end_key": "stop", "traj_key": "run"}, "run or stop"),
        (["run", "done"], {}, r"episode or \('next', 'done'\)"),
    ],
)
def test_a_key_that_is_not_there_is_an_error_naming_it_and_those_there_are(
    stored: list[Any], options: dict[str, Any], asked: str
) -> None:
    with pytest.raises(KeyError, match=rf"there is no {asked}; its keys are .*{stored[0]}"):
        SliceSampler(slice_len=1, **options).sample(keyed(*stored), 4)


def test_a_key_that_comes_later_counts_from_then_on() -> None:
    storage, sampler = filled(20, 6), slice_sampler(slice_len=3)
    runs(storage, sampler, 30)
    storage.leaves["episode",] = torch.zeros(20, dtype=torch.int64)
    storage.extend({**steps(6, first_episode=1), ("episode",): torch.tensor([1, 1, 1, 2, 2, 2])})
    starts = {s for k, s, _ in runs(storage, sampler, 300) if k == 1}
    assert starts == {0, 3}


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool, torch.uint8])
@pytest.mark.parametrize("item", [(), (1,), (2, 2)])
def test_identities_may_have_any_dtype_and_shape(dtype: torch.dtype, item: tuple[int, ...]) -> None:
    storage = filled(20, 5, 3, 5, 3)
    ids = (storage.leaves["id",][:16] % 2).to(dtype).reshape(16, *[1 for _ in item]).expand(16, *item)
    storage.extend({**steps(4, first_episode=4), ("episode",): ids[:4]})
    storage.leaves["episode",][:16] = ids
    storage.log.touch(torch.arange(16))
    drawn = runs(storage, slice_sampler(slice_len=3, traj_key="episode"), 3000)
    assert {k for k, _, _ in drawn} == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("item", [(), (1,)])
@pytest.mark.parametrize("columns", [(), (1,), (3,)])
@pytest.mark.parametrize("rows", [1, 6])
def test_end_signals_may_have_a_trailing_dimension_or_not(
    item: tuple[int, ...], columns: tuple[int, ...], rows: int
) -> None:  # C33, C34
    storage = PlainStorage(rows, columns)
    done = torch.zeros(rows, *columns, *item, dtype=torch.bool)
    done[rows // 2] = True
    storage.extend({DONE: done, ("next", "terminated"): done})
    where, info = slice_sampler(slice_len=1).sample(storage, 40)
    assert len(where) == 1 + len(columns)
    assert {key: value.shape for key, value in info.items()} == {
        ("next", name): (40, 1) for name in ("truncated", "done", "terminated")
    }
    assert info["next", "truncated"].all()
    assert torch.equal(info["next", "terminated"][:, 0], where[0] == rows // 2)


@pytest.mark.parametrize(("columns", "item"), [((), (2,)), ((), (1, 1)), ((3,), (3,)), ((3,), (1, 1))])
def test_a_signal_with_more_dimensions_than_the_storage_is_an_error(
    columns: tuple[int, ...], item: tuple[int, ...]
) -> None:
    storage = PlainStorage(4, columns)
    storage.extend({DONE: torch.zeros(4, *columns, *item, dtype=torch.bool)})
    n = 1 + len(columns)
    with pytest.raises(
        RuntimeError, match=rf"^Expected the end-of-trajectory signal to be {n}.*got {n + len(item)}"
    ):
        SliceSampler(slice_len=1).sample(storage, 4)


class BareStorage(PlainStorage):
    """Items that are no TensorDicts."""

    def leaf_keys(self) -> list[Key]:
        return []

    def read_leaf(self, key: Key, rows: Tensor | slice) -> Tensor:
        raise KeyError(key)


class TensorItems(BareStorage):
    def leaf_keys(self) -> list[Key]:
        return [()]


@pytest.mark.parametrize("kind", [BareStorage, TensorItems])
def test_items_without_keys_are_an_error_that_says_what_is_needed(kind: type[PlainStorage]) -> None:  # C43
    storage = kind(4)
    storage.log.append(0, 4)
    with pytest.raises(
        RuntimeError, match=r"^Could not get a tensordict out of the storage.*LazyTensorStorage"
    ):
        SliceSampler(slice_len=1).sample(storage, 4)


def test_items_without_keys_can_be_sliced_with_given_ends() -> None:  # C43
    storage = BareStorage(4)
    storage.log.append(0, 4)
    where, info = slice_sampler(slice_len=2, ends=torch.tensor([False, True, False, True])).sample(
        storage, 40
    )
    assert set(map(tuple, where[0].view(-1, 2).tolist())) == {(0, 1), (2, 3)}
    assert torch.equal(info["next", "done"], info["next", "truncated"])
    assert not info["next", "terminated"].any()


# ---- given ends and trajectories


def given_slices(storage: PlainStorage, slice_len: int, **options: Any) -> set[tuple[int, ...]]:
    where, _ = slice_sampler(slice_len=slice_len, **options).sample(storage, 500 * slice_len)
    assert len(where) == 1
    return set(map(tuple, where[0].view(-1, slice_len).tolist()))


def test_given_ends_and_trajectories_say_where_trajectories_end() -> None:
    storage = filled(5, 5)
    expected = {(0, 1), (2, 3), (3, 4)}
    assert given_slices(storage, 2, ends=torch.tensor([0, 1, 0, 0, 1]).bool()) == expected
    assert given_slices(storage, 2, ends=torch.tensor([[0], [1], [0], [0], [1]])) == expected
    assert given_slices(storage, 2, trajectories=torch.tensor([3, 3, 1, 1, 1])) == expected


def test_given_ends_that_do_not_end_go_on_at_slot_0() -> None:
    storage = filled(5, 5)
    expected = {(3, 4), (4, 0), (0, 1)}
    assert given_slices(storage, 2, ends=torch.tensor([0, 1, 1, 0, 0]).bool()) == expected
    assert given_slices(storage, 2, trajectories=torch.tensor([7, 7, 2, 7, 7])) == expected
    assert given_slices(storage, 5, ends=torch.zeros(5).bool()) == {(0, 1, 2, 3, 4)}


def test_given_ends_outlive_extending_pickling_and_deep_copies() -> None:  # C36
    storage = filled(5, 5)
    sampler = slice_sampler(slice_len=2, ends=torch.tensor([0, 1, 0, 0, 1]).bool())
    sampler.sample(storage, 10)
    storage.extend(steps(3))
    for other in (sampler, pickle.loads(pickle.dumps(sampler)), copy.deepcopy(sampler)):
        where, _ = other.sample(storage, 1000)
        assert set(map(tuple, where[0].view(-1, 2).tolist())) == {(0, 1), (2, 3), (3, 4)}


def test_given_ends_of_several_columns() -> None:
    storage = PlainStorage(4, (2,))
    storage.extend({("x",): torch.zeros(4, 2)})
    ends = torch.tensor([[0, 1], [1, 0], [0, 0], [1, 1]]).bool()
    where, _ = slice_sampler(slice_len=2, ends=ends).sample(storage, 2000)
    pairs = set(zip(where[0].view(-1, 2)[:, 0].tolist(), where[1].view(-1, 2)[:, 0].tolist(), strict=True))
    assert pairs == {(0, 0), (2, 0), (1, 1), (2, 1)}


def test_given_ends_that_do_not_describe_the_storage_are_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"ends of shape \(4,\) .* holds \(5,\) steps"):
        SliceSampler(slice_len=1, ends=torch.ones(4).bool()).sample(filled(5, 5), 5)
    with pytest.raises(
        RuntimeError, match=r"^Expected the end-of-trajectory signal to be 1-dim.*3 dimensions"
    ):
        SliceSampler(slice_len=1, trajectories=torch.ones(5, 1, 1)).sample(filled(5, 5), 5)


# ---- what goes into the sample


def test_info_marks_the_last_step_of_slices_and_keeps_what_is_stored() -> None:
    storage = filled(20, 4, 4)
    terminated = torch.zeros(8, 1, dtype=torch.bool)
    terminated[3] = True
    storage.leaves["next", "terminated"] = torch.cat([terminated, terminated])
    where, info = slice_sampler(slice_len=3).sample(storage, 300)
    assert list(info) == [("next", "truncated"), ("next", "done"), ("next", "terminated")]
    truncated = torch.tensor([False, False, True]).repeat(100).unsqueeze(-1)
    assert torch.equal(info["next", "truncated"], truncated)
    assert torch.equal(info["next", "done"], truncated | storage.leaves[DONE][where])
    assert torch.equal(info["next", "terminated"], storage.leaves["next", "terminated"][where])


@pytest.mark.parametrize("key", ["cut", ("cut",), ("a", "b", "cut")])
def test_done_and_terminated_lie_beside_the_truncated_key(key: Any) -> None:
    _, info = slice_sampler(slice_len=2, truncated_key=key).sample(filled(9, 9), 8)
    beside = (lambda name: name) if isinstance(key, str) else (lambda name: (*key[:-1], name))
    assert list(info) == [key, beside("done"), beside("terminated")]
    assert torch.equal(info[beside("done")], info[key])
    assert not info[beside("terminated")].any()
    assert info[key].view(-1).tolist() == [False, True] * 4


def test_no_truncated_key_no_info() -> None:
    assert slice_sampler(slice_len=2, truncated_key=None).sample(filled(9, 9), 8)[1] == {}


def test_stored_signals_of_several_columns_come_from_the_right_column() -> None:
    storage = PlainStorage(4, (3,))
    done = torch.zeros(4, 3, 1, dtype=torch.bool)
    done[1, 2] = done[3, 0] = True
    storage.extend({DONE: done, ("next", "terminated"): done})
    where, info = slice_sampler(slice_len=2).sample(storage, 600)
    assert torch.equal(info["next", "terminated"], done[where])


def test_the_info_does_not_share_memory_with_the_storage() -> None:
    storage = PlainStorage(3)
    storage.extend(
        {DONE: torch.zeros(3, 1, dtype=torch.bool), ("next", "terminated"): torch.zeros(3, 1).bool()}
    )
    _, info = slice_sampler(slice_len=3).sample(storage, 3)
    for value in info.values():
        value.fill_(True)
    assert not storage.leaves[DONE].any()
    assert not storage.leaves["next", "terminated"].any()


# ---- arguments


@pytest.mark.parametrize("options", [{}, {"num_slices": 2, "slice_len": 3}])
def test_exactly_one_of_number_and_length_is_given(options: dict[str, Any]) -> None:
    text = f"num_slices={options.get('num_slices')}, slice_len={options.get('slice_len')}"
    with pytest.raises(TypeError, match=text):
        SliceSampler(**options)


@pytest.mark.parametrize("options", [{"num_slices": 3}, {"slice_len": 3}])
@pytest.mark.parametrize("batch_size", [10, 2, 0])
def test_a_batch_that_cannot_be_made_of_whole_slices_is_an_error(
    options: dict[str, Any], batch_size: int
) -> None:
    with pytest.raises(RuntimeError, match=f"batch of {batch_size} .*=3: give a multiple of 3"):
        SliceSampler(**options).sample(filled(20, 20), batch_size)


@pytest.mark.parametrize("options", [{"num_slices": 0}, {"slice_len": -1}])
def test_numbers_and_lengths_below_1_are_errors(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="give at least 1"):
        SliceSampler(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"ends": torch.ones(3), "trajectories": torch.ones(3)},
        {"ends": torch.ones(3), "end_key": "done"},
        {"trajectories": torch.ones(3), "traj_key": "id"},
    ],
)
def test_ends_trajectories_and_keys_exclude_each_other(options: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match=r"ends (or|and) trajectories"):
        SliceSampler(slice_len=1, **options)


@pytest.mark.parametrize("span", [4, (0, 4), (7, False), (True, 4)])
def test_a_span_that_leaves_no_step_is_an_error(span: Any) -> None:
    with pytest.raises(ValueError, match="at least one step must stay"):
        SliceSampler(slice_len=4, span=span)
    with pytest.raises(ValueError, match="slices of 4 steps: at least one step must stay"):
        SliceSampler(num_slices=2, span=span).sample(filled(20, 20), 8)


def test_a_span_of_another_kind_is_an_error() -> None:
    for span in (1.5, (1, 2, 3), "ab", (1, 0.5), None):
        with pytest.raises(TypeError, match="give a bool or an int"):
            SliceSampler(slice_len=4, span=span)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="negative"):
        SliceSampler(slice_len=4, span=(-1, 0))


def test_arguments_are_readable_attributes_and_true_is_not_1() -> None:
    ends = torch.ones(3).bool()
    given = {
        "slice_len": 5,
        "num_slices": None,
        "ends": ends,
        "trajectories": None,
        "cache_values": True,
        "truncated_key": None,
        "strict_length": False,
        "compile": True,
        "use_gpu": True,
    }
    sampler = SliceSampler(**given)  # type: ignore[arg-type]
    assert all(getattr(sampler, name) is value for name, value in given.items())
    sampler = SliceSampler(slice_len=5, end_key="stop", traj_key=("a", "b"), span=True)
    assert (sampler.end_key, sampler.traj_key) == ("stop", ("a", "b"))
    assert sampler.span[0] is True
    assert sampler.span[1] is True
    right_only = SliceSampler(slice_len=5, span=(False, 1)).span
    assert right_only[0] is False
    assert right_only[1] == 1
    assert right_only[1] is not True
    assert "slice_len=5" in repr(sampler)


# ---- seeds and state


def test_the_same_seed_gives_the_same_slices_with_and_without_a_generator() -> None:  # C13
    storage, batches = filled(50, 20, 30), []
    for generator in (None, None, torch.Generator().manual_seed(3)):
        torch.manual_seed(3)
        sampler = SliceSampler(slice_len=4)
        sampler.generator = generator
        batches.append([sampler.sample(storage, 40)[0][0].tolist() for _ in range(3)])
    assert batches[0] == batches[1] == batches[2]


def test_the_history_of_an_index_does_not_show_in_what_it_draws() -> None:
    storage, early = PlainStorage(40), slice_sampler(slice_len=3, seed=5)
    for k in range(20):
        storage.extend(steps(3, 4, first_episode=2 * k))
        early.sample(storage, 30)
    early.generator = torch.Generator().manual_seed(6)
    late = slice_sampler(slice_len=3, seed=6)
    assert torch.equal(early.sample(storage, 300)[0][0], late.sample(storage, 300)[0][0])


def test_an_emptied_and_a_reloaded_sampler_go_on(tmp_path: Any) -> None:
    storage, sampler = filled(50, 20, 30), slice_sampler(slice_len=4)
    sampler.sample(storage, 40)
    sampler.empty()
    sampler.dumps(tmp_path)
    sampler.loads(tmp_path)
    assert sampler.state_dict() == {}
    sampler.sample(storage, 40)


def test_an_empty_storage_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"^Cannot sample from an empty storage\.$"):
        SliceSampler(slice_len=1).sample(PlainStorage(3), 2)


def test_given_ends_of_a_partly_filled_storage_end_at_its_last_row() -> None:
    storage = filled(9, 3, 3, open_end=True)
    ends = storage.leaves[DONE][:6]
    sampler = slice_sampler(slice_len=3, ends=ends, strict_length=True)
    for _ in range(20):
        assert set(runs(storage, sampler, 12)) <= {(0, 0, 3), (1, 0, 3)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.complex64])
def test_nan_is_one_identity_whether_stored_or_given(dtype: torch.dtype) -> None:
    ids = torch.tensor([torch.nan, torch.nan, 1.0, -0.0, 0.0, 2.0]).to(dtype)
    storage = PlainStorage(7)
    storage.extend({("id",): ids})
    found = []
    for options in ({"traj_key": "id"}, {"trajectories": ids}):
        sampler = slice_sampler(slice_len=2, truncated_key=None, **options)
        time = torch.cat([sampler.sample(storage, 40)[0][0] for _ in range(5)]).view(-1, 2)
        found.append({tuple(slots) for slots in time.tolist()})
    assert found == [{(0, 1), (3, 4)}] * 2


def test_given_ends_may_hold_any_bytes() -> None:
    storage = filled(6, 3, 3)
    ends = torch.tensor([0, 0, 255, 0, 0, 7], dtype=torch.uint8).view(torch.bool)
    sampler = slice_sampler(slice_len=3, ends=ends)
    assert {found for _ in range(5) for found in runs(storage, sampler, 12)} == {(0, 0, 3), (1, 0, 3)}


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("raw", [False, True])
def test_stored_ends_of_one_value_a_step_come_as_one_column(shape: tuple[int, ...], raw: bool) -> None:
    done = torch.tensor([0, 255, 0, 0, 3, 0], dtype=torch.uint8).view(6, *shape)
    stored = done.view(torch.bool) if raw else done != 0
    storage = PlainStorage(6)
    storage.extend({("id",): torch.tensor([0, 0, 0, 1, 1, 1]), DONE: stored})
    (time,), info = slice_sampler(slice_len=3, traj_key="id").sample(storage, 12)
    flags = info["next", "done"]
    assert flags.shape == (12, 1)
    assert flags.squeeze(1).tolist() == [slot in (1, 2, 4, 5) for slot in time.tolist()]
    assert set(flags.view(torch.uint8).unique().tolist()) <= {0, 1}


@pytest.mark.parametrize("shape", [(2,), (3, 1), (1, 2)])
def test_stored_ends_of_several_values_a_step_are_an_error_that_says_what_to_do(
    shape: tuple[int, ...],
) -> None:
    storage = PlainStorage(6)
    done = torch.zeros(6, *shape, dtype=torch.bool)
    storage.extend({("id",): torch.tensor([0, 0, 0, 1, 1, 1]), DONE: done})
    with pytest.raises(RuntimeError, match=r"\('next', 'done'\) has values of shape .*truncated_key=None"):
        slice_sampler(slice_len=3, traj_key="id").sample(storage, 6)
    _, info = slice_sampler(slice_len=3, traj_key="id", truncated_key=("slice", "truncated")).sample(
        storage, 6
    )
    assert info["slice", "done"].shape == (6, 1)
    _, info = slice_sampler(slice_len=3, traj_key="id", truncated_key=None).sample(storage, 6)
    assert info == {}
