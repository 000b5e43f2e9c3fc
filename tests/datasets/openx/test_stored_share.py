"""Stored datasets among several ranks and workers: disjoint, together complete, each draw a reader's own."""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

from memory_source import MemorySource, episode
from patience import PATIENCE
from replaybank import OpenXExperienceReplay, OpenXMixture, RandomSampler, convert
from replaybank.datasets.openx.sharding import Share
from replaybank.datasets.openx.stored_share import PartOfItems, ShareSampler, dealt
from replaybank.demo.arm import write_arm_dataset

LENGTHS = (4, 1, 6, 3, 8, 5, 7, 9, 2, 10, 11, 12, 6)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("share") / "arm"
    convert(MemorySource([[episode(number, length) for number, length in enumerate(LENGTHS)]]), path)
    return path


def stored(path: Path, batch_size: int | None = None, **arguments: Any) -> OpenXExperienceReplay:
    arguments.setdefault("generator", torch.Generator().manual_seed(0))
    return OpenXExperienceReplay("arm", batch_size, streaming=False, source=path, **arguments)


def ranks(path: Path, world_size: int, batch_size: int | None = None, **arguments: Any) -> Any:
    return [
        stored(path, batch_size, rank=rank, world_size=world_size, **arguments) for rank in range(world_size)
    ]


def steps(batches: Any) -> list[tuple[int, int]]:
    """Episode and step of all that came."""
    columns = ((batch["episode"].reshape(-1), batch["step"].reshape(-1)) for batch in batches)
    return [pair for one, other in columns for pair in zip(one.tolist(), other.tolist(), strict=True)]


EVERYTHING = Counter((number, step) for number, length in enumerate(LENGTHS) for step in range(length))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 9))
def test_every_episode_is_dealt_to_one_reader_and_steps_evenly(lengths: list[int], readers: int) -> None:
    shares = [dealt(torch.tensor(lengths), Share(reader, readers)) for reader in range(readers)]
    assert sorted(torch.cat(shares).tolist()) == list(range(len(lengths)))
    assert all((share.diff() > 0).all() for share in shares)
    counts = [len(share) for share in shares]
    assert max(counts) - min(counts) <= 1
    held = [sum(lengths[number] for number in share.tolist()) for share in shares]
    assert max(held) - min(held) <= max(lengths)


@pytest.mark.parametrize("world_size", [2, 3, 13])
@pytest.mark.parametrize("shuffle", [True, False])
def test_whole_trajectories_come_to_one_rank_each(converted: Path, world_size: int, shuffle: bool) -> None:
    found = [steps(rank) for rank in ranks(converted, world_size, shuffle=shuffle)]
    assert Counter(pair for part in found for pair in part) == EVERYTHING
    if not shuffle:
        assert all(part == sorted(part) for part in found)


@pytest.mark.parametrize("world_size", [2, 5])
def test_a_pass_without_replacement_gives_each_step_once_over_all_ranks(
    converted: Path, world_size: int
) -> None:
    for _ in range(2):
        found = Counter(
            pair for rank in ranks(converted, world_size, 4, replacement=False) for pair in steps(rank)
        )
        assert found == EVERYTHING


@pytest.mark.parametrize("prefetch", [None, 2])
def test_a_pass_of_slices_gives_one_of_each_episode_over_all_ranks(
    converted: Path, prefetch: int | None
) -> None:
    given = Counter[int]()
    for rank in ranks(converted, 3, 6, slice_len=3, replacement=False, prefetch=prefetch):
        for batch in rank:
            firsts = batch["episode"][::3].tolist()
            assert batch["episode"].tolist() == [number for number in firsts for _ in range(3)]
            assert batch["step"].diff().view(-1)[[0, 1]].tolist() == [1, 1]
            given.update(firsts)
            expected = rank.dataset[batch["index"]] if batch["index"].ndim == 1 else None
            if expected is not None:
                assert (expected["action"] == batch["action"]).all()
    assert given == Counter(number for number, length in enumerate(LENGTHS) if length >= 3)


@pytest.mark.parametrize("arguments", [{}, {"slice_len": 2}, {"num_slices": 2}])
def test_draws_with_replacement_are_of_the_own_episodes_all_of_them(
    converted: Path, arguments: dict[str, int]
) -> None:
    met = []
    for rank in ranks(converted, 3, 8, **arguments):
        batches = [rank.sample() for _ in range(60)]
        met.append({number for number, _ in steps(batches)})
        assert len(list(rank)) == max(1, sum(LENGTHS[n] for n in met[-1]) // 8) or arguments
    assert not met[0] & met[1] and not met[1] & met[2] and not met[0] & met[2]  # noqa: PT018
    least = arguments.get("slice_len", 4) if arguments else 1
    usable = {number for number, length in enumerate(LENGTHS) if length >= least}
    assert set.union(*met) == usable


def test_padded_rows_are_shared_too_and_all_have_one_length(converted: Path) -> None:
    parts = ranks(converted, 4, 2, split_trajs=True, replacement=False)
    batches = [batch for rank in parts for batch in rank]
    assert {batch.shape[1] for batch in batches} == {max(LENGTHS)}
    assert sorted(torch.cat([batch["episode"][:, 0] for batch in batches])) == list(range(len(LENGTHS)))
    singly = [row for rank in ranks(converted, 4, split_trajs=True) for row in rank]
    assert sorted(row["episode"][0].item() for row in singly) == list(range(len(LENGTHS)))


def test_by_number_every_rank_reads_everything(converted: Path) -> None:
    for rank in ranks(converted, 5):
        assert (len(rank), rank.num_episodes) == (sum(LENGTHS), len(LENGTHS))
        assert [len(rank.episode(number)) for number in range(len(LENGTHS))] == list(LENGTHS)
        assert rank.stats()[("action",)].count == sum(LENGTHS)


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_rank_goes_on_from_its_state_exactly(converted: Path, taken: int) -> None:
    arguments = {"slice_len": 3, "replacement": False}
    one = stored(converted, 6, rank=1, world_size=2, **arguments)
    for _ in range(taken):
        one.sample()
    state = one.state_dict()
    other = stored(converted, 6, rank=1, world_size=2, **arguments)
    other.load_state_dict(state)
    for _ in range(5):
        assert (one.sample() == other.sample()).all()
    with pytest.raises(ValueError, match="as many ranks and workers"):
        stored(converted, 6, rank=0, world_size=2, **arguments).load_state_dict(state)


def test_more_ranks_than_episodes_are_refused_with_a_way_out(converted: Path) -> None:
    with pytest.raises(ValueError, match=r"13 episodes.*world_size=14.*rank=0, world_size=1"):
        stored(converted, rank=0, world_size=14)


def test_a_sampler_of_ones_own_excludes_a_rank(converted: Path) -> None:
    with pytest.raises(ValueError, match="leave rank and world_size out"):
        stored(converted, 4, sampler=RandomSampler(), rank=0, world_size=2)


# --- workers -----------------------------------------------------------------------------------------------


class Passing(IterableDataset[Any]):
    """What people write around a dataset to have workers read it."""

    def __init__(self, dataset: OpenXExperienceReplay) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataset)


def as_it_is(batch: Any) -> Any:
    return batch


def loaded(dataset: Any, workers: int, **arguments: Any) -> list[Any]:
    options = {"num_workers": workers, "collate_fn": as_it_is, "timeout": PATIENCE, **arguments}
    return list(DataLoader(dataset, batch_size=None, **options))


@pytest.mark.parametrize(
    ("batch_size", "arguments"), [(None, {}), (4, {"replacement": False}), (None, {"split_trajs": True})]
)
def test_workers_of_two_ranks_give_each_step_once(
    converted: Path, batch_size: int | None, arguments: Any
) -> None:
    found = Counter[tuple[int, int]]()
    for rank in ranks(converted, 2, batch_size, **arguments):
        for batch in loaded(Passing(rank), 2):
            found.update(steps([batch[batch["mask"]] if "mask" in batch.keys() else batch]))  # noqa: SIM118
    assert found == EVERYTHING


def test_workers_without_ranks_divide_the_dataset_and_more_of_them_than_episodes_get_nothing(
    converted: Path, tmp_path: Path
) -> None:
    assert Counter(steps(loaded(Passing(stored(converted)), 2))) == EVERYTHING
    convert(MemorySource([[episode(0, 5)]]), tmp_path / "one")
    assert len(loaded(Passing(stored(tmp_path / "one", 2, replacement=False)), 2)) == 3


def test_workers_draw_other_steps_from_a_generator_that_they_all_have_a_copy_of(converted: Path) -> None:
    batches = loaded(Passing(stored(converted, 40)), 2)
    assert len(batches) == 4
    drawn = [tuple(steps([batch])) for batch in batches]
    assert len(set(drawn)) == 4


def test_items_in_workers_are_those_of_the_whole_dataset(converted: Path) -> None:
    loader = DataLoader(
        stored(converted, rank=1, world_size=2), batch_size=20, num_workers=2, collate_fn=torch.stack
    )
    assert Counter(steps(loader)) == EVERYTHING


# --- mixtures ----------------------------------------------------------------------------------------------


def test_ranks_of_a_stored_mixture_draw_from_other_episodes(converted: Path, tmp_path: Path) -> None:
    convert(MemorySource([[episode(number, 4) for number in range(2)]]), tmp_path / "two")
    met: list[set[tuple[int, int]]] = []
    for rank in range(3):
        mixture = OpenXMixture(
            {"many": 1.0, "two": 1.0},
            24,
            slice_len=2,
            streaming=False,
            source={"many": converted, "two": tmp_path / "two"},
            rank=rank,
            world_size=3,
        )
        batches = [mixture.sample() for _ in range(30)]
        pairs = [zip(b["dataset"].tolist(), b["episode"].tolist(), strict=True) for b in batches]
        met.append({pair for batch in pairs for pair in batch})
    many = [{number for dataset, number in part if dataset == 0} for part in met]
    assert not many[0] & many[1] and not many[1] & many[2] and not many[0] & many[2]  # noqa: PT018
    assert set.union(*many) == {number for number, length in enumerate(LENGTHS) if length >= 2}
    # Of the other dataset there is not one episode for each: two ranks draw from the same one.
    assert [len({number for dataset, number in part if dataset == 1}) for part in met] == [1, 1, 1]


# --- converting --------------------------------------------------------------------------------------------


def test_ranks_that_open_a_dataset_at_once_have_one_convert_it_and_wait(tmp_path: Path) -> None:
    path = write_arm_dataset(tmp_path / "arm_files", episodes=9, shards=3)
    together = threading.Barrier(3)

    def open_one(rank: int) -> list[int]:
        together.wait(PATIENCE)
        dataset = OpenXExperienceReplay(
            "arm", streaming=False, source=path, root=tmp_path / "root", rank=rank, world_size=3
        )
        return sorted({number for number, _ in steps(dataset)})

    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(open_one, range(3)))
    assert sorted(number for part in found for number in part) == list(range(9))
    with pytest.raises(ValueError, match="in one process"):
        OpenXExperienceReplay("arm", source=path, root=tmp_path, download="force", rank=0, world_size=2)


def test_a_part_is_seen_as_a_storage_of_its_own(converted: Path) -> None:
    dataset = stored(converted).dataset
    part = PartOfItems(dataset, dataset.bounds[[2, 5]])
    assert (len(part), part.shape, part.max_size, part.ndim) == (11, torch.Size([11]), 11, 1)
    assert part.read_leaf(("episode",), slice(None)).tolist() == [2] * 6 + [5] * 5
    assert part.read_leaf(("step",), torch.tensor([0, 6, 10])).tolist() == [0, 0, 4]
    assert part.leaf_keys() == dataset.leaf_keys()
    assert "SliceSampler" in repr(stored(converted, 4, slice_len=2, rank=0, world_size=2).sampler)
    assert isinstance(stored(converted, 4, slice_len=2, rank=0, world_size=2).sampler, ShareSampler)


def test_a_state_of_other_readers_is_refused_in_the_words_of_the_arguments(
    converted: Path, tmp_path: Path
) -> None:
    two = stored(converted, 4, slice_len=2, rank=1, world_size=2)
    one = stored(converted, 4, slice_len=2)
    two.dumps(tmp_path / "two")
    said = "The state is of rank=1 of world_size=2; this dataset is read by one.*give rank=1, world_size=2"
    with pytest.raises(ValueError, match=said) as refused:
        one.load_state_dict(two.state_dict())
    assert "Nothing has been changed." in str(refused.value)
    assert "Sampler" not in str(refused.value)
    with pytest.raises(ValueError, match=said):
        one.loads(tmp_path / "two")
    with pytest.raises(
        ValueError, match=r"one alone; this one is rank=1 of world_size=2.*rank=0, world_size=1"
    ):
        two.load_state_dict(one.state_dict())
    within = copy.deepcopy(one)
    within.set_sampler(ShareSampler(within.sampler, Share(), Share(1, 3)))
    with pytest.raises(ValueError, match="The state is of worker 1 of 3 of a DataLoader; this dataset"):
        one.load_state_dict(within.state_dict())
    with pytest.raises(ValueError, match="The state is of a buffer with a RandomSampler"):
        one.load_state_dict(stored(converted, 4).state_dict())
    damaged = two.state_dict()
    damaged["sampler"]["share"] = None
    with pytest.raises(ValueError, match="The state is of a buffer with a ShareSampler"):
        one.load_state_dict(damaged)
