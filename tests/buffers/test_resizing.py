"""A state in a buffer of another capacity or dtype: the items, their order, what the parts know of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replaybank import (
    CompressedListStorage,
    ConsumingSampler,
    EncodedFrames,
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    StalenessAwareSampler,
    TensorDictMaxValueWriter,
)
from replaybank.samplers.base import Sampler
from replaybank.samplers.random import RandomSampler
from replaybank.storages.base import Storage
from sampler_contracts import SAMPLERS, SamplerCase

EPISODE = 7


def steps(first: int, count: int) -> TensorDict:
    number = torch.arange(first, first + count)
    frame = number[:, None, None, None].expand(count, 8, 8, 3).remainder(256).to(torch.uint8)
    following = {
        "observation": (number + 1.0 + 1000.0 * (number % EPISODE == EPISODE - 1))[:, None],
        "done": (number % EPISODE == EPISODE - 1)[:, None],
    }
    return TensorDict(
        {
            "number": number,
            "observation": number[:, None].to(torch.float32),
            "frame": frame.contiguous(),
            "next": TensorDict(following, batch_size=[count]),
        },
        batch_size=[count],
    )


STORAGES: dict[str, Callable[[int], Storage]] = {
    "memory": LazyTensorStorage,
    "memmap": LazyMemmapStorage,
    "list": ListStorage,
    "stack": LazyStackStorage,
    "compressed": CompressedListStorage,
    "derived": lambda rows: LazyTensorStorage(rows, next_observation="derive"),
    "encoded": lambda rows: LazyTensorStorage(rows, encoded={"frame": EncodedFrames("png")}),
    "encoded, derived": lambda rows: LazyTensorStorage(
        rows, next_observation="derive", encoded={"frame": EncodedFrames("png")}
    ),
}


def numbers_of(storage: Storage, rows: Any) -> list[int]:
    """The numbers of the items in rows; every entry of an item must be that item's."""
    found = []
    for row in rows:
        item = storage[row]
        number = int(item["number"])
        right = steps(number, 1)[0]
        for key in ("observation", "frame", ("next", "observation"), ("next", "done")):
            assert torch.equal(item[key].to(right[key].dtype), right[key]), (key, number)
        found.append(number)
    return found


def history(storage: Storage) -> list[tuple[int, bool]]:
    """The items from the oldest on, and whether each continues the one before it."""
    log = storage.log
    first = log.cursor if log.length == log.rows else 0
    rows = [(first + k) % log.rows for k in range(log.length)]
    numbers = numbers_of(storage, rows)
    joins = [not log.is_cut(row) for row in rows]
    return list(zip(numbers, [False, *joins[1:]][: len(numbers)], strict=True))


@pytest.mark.parametrize("kind", STORAGES)
@pytest.mark.parametrize(
    ("before", "written", "after"),
    [(20, 13, 33), (20, 20, 33), (20, 33, 34), (20, 40, 21), (20, 13, 15), (20, 13, 13), (20, 0, 9)],
)
@pytest.mark.parametrize("fresh", [True, False])
def test_items_keep_their_order_and_go_on(
    kind: str, before: int, written: int, after: int, fresh: bool, tmp_path: Path
) -> None:
    small = ReplayBuffer(storage=STORAGES[kind](before), batch_size=2)
    other = ReplayBuffer(storage=STORAGES[kind](after), batch_size=2)
    for first in range(0, written, 10):
        small.extend(steps(first, min(10, written - first)))
    if not fresh:
        other.extend(steps(500, 4))
    small.dumps(tmp_path)
    other.loads(tmp_path)
    wanted = history(small.storage)
    assert history(other.storage) == wanted
    assert other.write_count == small.write_count == written
    # What is written next follows the newest item, and replaces the oldest when the room is used up.
    wanted += [(written + k, len(wanted) + k > 0) for k in range(6)]
    wanted = wanted[-after:]
    other.extend(steps(written, 6))
    assert history(other.storage) == [(wanted[0][0], False), *wanted[1:]]


@pytest.mark.parametrize("kind", STORAGES)
def test_more_items_than_there_is_room_for_are_refused_with_both_numbers(kind: str, tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=STORAGES[kind](20), batch_size=2)
    other = ReplayBuffer(storage=STORAGES[kind](9), batch_size=2)
    buffer.extend(steps(0, 12))
    other.extend(steps(50, 3))
    buffer.dumps(tmp_path)
    with pytest.raises(ValueError, match=r"holds 12 rows, this storage has room for 9.*Nothing has been"):
        other.loads(tmp_path)
    assert [number for number, _ in history(other.storage)] == [50, 51, 52]


def test_a_list_without_a_bound_goes_on_growing_after_a_full_one_was_loaded(tmp_path: Path) -> None:
    buffer, other = ReplayBuffer(storage=ListStorage(4)), ReplayBuffer(storage=ListStorage())
    buffer.extend(list(range(6)))
    buffer.dumps(tmp_path)
    other.loads(tmp_path)
    other.extend(list(range(6, 10)))
    assert other[:].tolist() == [2, 3, 4, 5, 6, 7, 8, 9]


def test_columns_stay_and_rows_move(tmp_path: Path) -> None:
    def make(items: int) -> ReplayBuffer:
        return ReplayBuffer(storage=LazyTensorStorage(items, ndim=2), batch_size=4)

    buffer, other, wrong = make(30), make(60), make(60)
    buffer.extend(torch.arange(3)[:, None] * 1000 + torch.arange(17))
    buffer.dumps(tmp_path)
    other.loads(tmp_path)
    assert other[:].tolist() == [[1000 * c + t for t in range(7, 17)] for c in range(3)]
    other.extend(torch.arange(3)[:, None] * 1000 + torch.arange(17, 20))
    assert other[:].tolist() == [[1000 * c + t for t in range(7, 20)] for c in range(3)]
    wrong.extend(torch.zeros(4, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="columns"):
        wrong.loads(tmp_path)


def wrapped(sampler: Sampler, rows: int = 20, count: int = 33, batch: int = 4) -> ReplayBuffer:
    generator = torch.Generator().manual_seed(0)
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(rows), sampler=sampler, batch_size=batch, generator=generator
    )
    buffer.extend(steps(0, count).select("number", ("next", "done")))
    return buffer


def test_priorities_stay_with_their_items(tmp_path: Path) -> None:
    buffer = wrapped(PrioritizedSampler(200, 1.0, 1.0, eps=0.0))
    buffer.update_priority(torch.arange(20), buffer.storage[:]["number"].to(torch.float32))
    buffer.dumps(tmp_path)
    other = wrapped(PrioritizedSampler(200, 1.0, 1.0, eps=0.0), 50, 0)
    other.loads(tmp_path)
    sampler = other.sampler
    assert isinstance(sampler, PrioritizedSampler)
    assert sampler._table.weights()[:20].tolist() == [float(number) for number in range(13, 33)]
    other.extend(steps(33, 1).select("number", ("next", "done")))
    assert sampler._table.weights()[:21].tolist() == [*map(float, range(13, 33)), 32.0]


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_pass_goes_on_over_the_items_that_are_left(shuffle: bool, tmp_path: Path) -> None:
    buffer = wrapped(SamplerWithoutReplacement(shuffle=shuffle))
    seen = [buffer.sample()["number"] for _ in range(2)]
    buffer.dumps(tmp_path)
    other = wrapped(SamplerWithoutReplacement(shuffle=shuffle), 50, 0)
    other.loads(tmp_path)
    rest = [other.sample()["number"] for _ in range(3)]
    assert other.sampler.ran_out
    assert torch.cat(seen + rest).sort().values.tolist() == list(range(13, 33))
    assert torch.equal(torch.cat(rest), torch.cat([buffer.sample()["number"] for _ in range(3)]))


def test_uses_stay_with_their_items(tmp_path: Path) -> None:
    buffer = wrapped(ConsumingSampler(1))
    seen = [buffer.sample()["number"] for _ in range(2)]
    buffer.dumps(tmp_path)
    other = wrapped(ConsumingSampler(1), 50, 0)
    other.loads(tmp_path)
    rest = [other.sample()["number"] for _ in range(3)]
    assert torch.cat(seen + rest).sort().values.tolist() == list(range(13, 33))


@pytest.mark.parametrize("elsewhere", [False, True])
def test_ages_stay_with_their_items(elsewhere: bool, tmp_path: Path) -> None:
    buffer = wrapped(StalenessAwareSampler(2, decay=0), batch=100)
    buffer.sample()
    if elsewhere:  # from then on, the sampler keeps an age for each row
        buffer.storage.set([5, 6], steps(90, 2).select("number", ("next", "done")))
        buffer.sample()
    newest = set(buffer.sample()["number"].tolist())
    assert len(newest) == 3
    buffer.dumps(tmp_path)
    other = wrapped(StalenessAwareSampler(2, decay=0), 50, 0, 100)
    other.loads(tmp_path)
    assert set(other.sample()["number"].tolist()) == newest
    other.extend(steps(200, 3).select("number", ("next", "done")))
    assert set(other.sample()["number"].tolist()) == {200, 201, 202}


@pytest.mark.parametrize("sampler", [SliceSampler, PrioritizedSliceSampler, SliceSamplerWithoutReplacement])
def test_slices_go_across_where_the_smaller_storage_went_round(sampler: Any, tmp_path: Path) -> None:
    def make() -> Sampler:
        given = (200, 0.6, 0.4) if sampler is PrioritizedSliceSampler else ()
        made: Sampler = sampler(*given, slice_len=4)
        return made

    buffer = wrapped(make(), batch=16)
    buffer.sample()
    buffer.dumps(tmp_path)
    other = wrapped(make(), 50, 0, 16)
    other.loads(tmp_path)
    other.extend(steps(33, 5).select("number", ("next", "done")))
    found = torch.cat([other.sample()["number"] for _ in range(60)]).view(-1, 4)
    assert bool((found.diff(dim=1) == 1).all())
    assert bool((found[:, 0] // EPISODE == found[:, 3] // EPISODE).all())
    # Every slice there is, and those across row 19 and 32 among them.
    wanted = {s for s in range(13, 35) if s // EPISODE == (s + 3) // EPISODE}
    assert set(found[:, 0].tolist()) == wanted


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in SAMPLERS])
@pytest.mark.parametrize("count", [15, 33])
@pytest.mark.parametrize("prefetch", [None, 2])
def test_every_sampler_goes_on_in_a_larger_buffer(
    case: SamplerCase, count: int, prefetch: int | None, tmp_path: Path
) -> None:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(20), sampler=case.make(), batch_size=10, prefetch=prefetch
    )
    other = ReplayBuffer(storage=LazyTensorStorage(60), sampler=case.make(), batch_size=10, prefetch=prefetch)
    short = torch.arange(count)
    data = TensorDict(
        {"number": short, "next": TensorDict({"done": (short % 5 == 4)[:, None]}, [count])}, [count]
    )
    buffer.extend(data)
    buffer.sample()
    buffer.dumps(tmp_path)
    other.loads(tmp_path)
    valid = set(range(max(count - 20, 0), count))
    for _ in range(3):
        sample, info = other.sample(return_info=True)
        assert set(sample["number"].tolist()) <= valid
        index = info["index"][0] if isinstance(info["index"], tuple) else info["index"]
        assert torch.equal(other.storage[index]["number"], sample["number"])
    buffer.close()
    other.close()


def test_a_max_value_writer_keeps_the_highest_in_more_room(tmp_path: Path) -> None:
    def make(rows: int) -> ReplayBuffer:
        return ReplayBuffer(
            storage=LazyTensorStorage(rows), writer=TensorDictMaxValueWriter(rank_key="number"), batch_size=2
        )

    buffer, other = make(5), make(8)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    buffer.extend(steps(0, 40)[order])
    buffer.dumps(tmp_path)
    other.loads(tmp_path)
    other.extend(steps(100, 2))
    other.extend(steps(0, 1))
    other.extend(steps(90, 1))
    assert sorted(other[:]["number"].tolist()) == [35, 36, 37, 38, 39, 90, 100, 101]


class Odd(RandomSampler):
    """A user's own, that keeps something of each item."""

    def state_dict(self) -> dict[str, Any]:
        return {"of each": torch.zeros(20)}


def test_a_sampler_that_cannot_follow_is_named(tmp_path: Path) -> None:
    buffer, other = wrapped(Odd()), wrapped(Odd(), 50, 3)
    buffer.dumps(tmp_path)
    with pytest.raises(ValueError, match="state of a Odd cannot follow"):
        other.loads(tmp_path)
    assert len(other) == 3


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage])
def test_dtypes_are_cast_within_a_kind_and_refused_across(storage: Any, tmp_path: Path) -> None:
    buffer, other = (ReplayBuffer(storage=storage(10), batch_size=2) for _ in range(2))
    buffer.extend(TensorDict({"x": torch.linspace(0, 1, 7, dtype=torch.float64), "n": torch.arange(7)}, [7]))
    buffer.dumps(tmp_path / "wide")
    other.extend(TensorDict({"x": torch.zeros(2), "n": torch.zeros(2, dtype=torch.int16)}, [2]))
    other.loads(tmp_path / "wide")
    assert (other[:]["x"].dtype, other[:]["n"].dtype) == (torch.float32, torch.int16)
    assert torch.equal(other[:]["x"], torch.linspace(0, 1, 7, dtype=torch.float64).to(torch.float32))
    crossed = ReplayBuffer(storage=storage(10), batch_size=2)
    crossed.extend(TensorDict({"x": torch.zeros(2, dtype=torch.int64), "n": torch.ones(2)}, [2]))
    with pytest.raises((TypeError, ValueError), match="float64"):
        crossed.loads(tmp_path / "wide")
    assert crossed[:]["n"].tolist() == [1.0, 1.0]
