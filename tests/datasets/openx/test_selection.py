"""``episodes=``: a dataset of some episodes alone, stored and streamed."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from lerobot_files import write_lerobot
from memory_source import MemorySource, episode
from patience import PATIENCE
from replaybank import LeRobotSource, NStep, OpenXExperienceReplay, OpenXMixture, RLDSSource, convert
from replaybank.datasets.openx.chosen import RECORD_GAP, chosen_records
from replaybank.datasets.openx.nest import unnest
from replaybank.datasets.openx.selection import Runs, joined, selected
from replaybank.datasets.openx.skipping import LeftOut
from replaybank.datasets.openx.sources.base import Episode, Shard
from replaybank.demo.arm import write_arm_dataset
from replaybank.errors import CorruptRecordError, DataFormatError

LENGTHS = (4, 1, 6, 3, 8, 5, 7, 9, 2, 10, 11, 12, 6)
CHOSEN = [11, 2, 3, 4, 12, 8, 0]
SHARDS = ((0, 5), (5, 8), (8, 13))
"""First episode of each, and the one behind its last."""


class Recorded(MemorySource):
    """A source that says which records were asked for; episodes that are not chosen cannot be decoded."""

    def __init__(self, declared: bool = True, *, broken: frozenset[int] = frozenset()) -> None:
        made: list[Episode | Exception] = [
            DataFormatError(f"record {number} is broken")
            if number in broken
            else episode(number, length, bad=number not in CHOSEN)
            for number, length in enumerate(LENGTHS)
        ]
        super().__init__([made[first:stop] for first, stop in SHARDS])
        self.declared = declared
        self.opened: list[int] = []

    def shards(self) -> list[Shard]:
        return [
            Shard(shard.number, shard.path, shard.episodes if self.declared else None)
            for shard in super().shards()
        ]

    def episodes(self, shard: Shard, start: int = 0) -> Iterator[Episode]:
        self.opened.append(shard.number)
        return super().episodes(shard, start)


def numbered(numbers: list[int], *, declared: bool) -> list[int]:
    """Numbers of episodes as a stream of :class:`Recorded` has them."""
    if declared:
        return numbers
    place = {n: (shard, n - first) for shard, (first, stop) in enumerate(SHARDS) for n in range(first, stop)}
    return [(place[n][0] << 16) + place[n][1] for n in numbers]


@pytest.fixture(params=["raw", "encoded", "plain"])
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, plain: Path) -> Path:
    if request.param == "plain":
        return plain
    rlds = write_arm_dataset(tmp_path_factory.mktemp("rlds") / "arm", episodes=len(LENGTHS), shards=3)
    path = tmp_path_factory.mktemp("stored") / "arm"
    convert(rlds, path, images=request.param)
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small ones of the lengths above, one of them without an entry that the others have."""
    made = [episode(number, length) for number, length in enumerate(LENGTHS)]
    lacking = {key: value for key, value in made[3].steps.items() if key != ("observation", "state")}
    made[3] = Episode(lacking, 3, "record 3", missing=frozenset({("observation", "state")}))
    path = tmp_path_factory.mktemp("plain") / "arm"
    convert(MemorySource([made]), path)
    return path


def stored(path: Path, batch_size: int | None = None, **arguments: Any) -> OpenXExperienceReplay:
    arguments.setdefault("generator", torch.Generator().manual_seed(0))
    return OpenXExperienceReplay("arm", batch_size, streaming=False, source=path, **arguments)


def streamed(source: Any, batch_size: int | None = None, **arguments: Any) -> OpenXExperienceReplay:
    arguments.setdefault("generator", torch.Generator().manual_seed(0))
    arguments.setdefault("buffer_bytes", 20_000)
    return OpenXExperienceReplay("arm", batch_size, source=source, num_workers=0, **arguments)


def numbers(batches: Any) -> list[int]:
    """Of the episodes that came, one a batch."""
    return [int(batch["episode"].reshape(-1)[0]) for batch in batches]


def as_it_is(batch: Any) -> Any:
    return batch


def assert_same(found: Any, wanted: Any) -> None:
    one, other = unnest(found), unnest(wanted)
    assert one.keys() == other.keys()
    for key, value in one.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, other[key]), key
        else:
            assert value.tolist() == other[key].tolist(), key


# --- what may be given -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_", "wanted"),
    [
        ([4, 0, 2], [0, 2, 4]),
        (range(3, 0, -1), [1, 2, 3]),
        (slice(None, None, 2), [0, 2, 4]),
        (slice(-2, None), [3, 4]),
        ([-1, 0], [0, 4]),
        ({3, 1}, [1, 3]),
        (np.array([3, 1], np.uint8), [1, 3]),
        (torch.tensor([3, 1], dtype=torch.int32), [1, 3]),
        ([np.int64(3), torch.tensor(1), 2], [1, 2, 3]),
        ((number for number in (1, 0)), [0, 1]),
    ],
)
def test_numbers_come_in_any_form_and_order(given_: Any, wanted: list[int]) -> None:
    assert selected(given_, 5).tolist() == wanted


@pytest.mark.parametrize(
    ("given_", "count", "error", "said"),
    [
        ([0, 5], 5, IndexError, "Episode 5 is out of range: there are 5."),
        ([-6], 5, IndexError, "Episode -6 is out of range: there are 5."),
        ([3, 1, 3], 5, ValueError, "names episode 3 more than once"),
        ([4, -1], 5, ValueError, "names episode 4 more than once"),
        ([], 5, ValueError, "No episode is selected"),
        (slice(9, None), 5, ValueError, "No episode is selected by .*: there are 5"),
        (slice(None, None, 0), 5, ValueError, "episodes=.*step cannot be zero"),
        (slice("a"), 5, TypeError, "episodes=.*indices must be integers"),
        (range(10**15), 5, IndexError, "Episode 5 is out of range: there are 5."),
        (range(4, -(10**15), -4), 5, IndexError, "Episode -8 is out of range: there are 5."),
        (range(10**15), None, IndexError, "Episode 2147483648 is out of range"),
        (range(3, 3), 5, ValueError, "No episode is selected"),
        ([2**70], 5, IndexError, f"Episode {2**70} is out of range: there are 5."),
        (np.array([2**64 - 1], np.uint64), 5, IndexError, f"Episode {2**64 - 1} is out of range"),
        (torch.ones(2, dtype=torch.bfloat16), 5, TypeError, "picked by whole numbers, got 1.0"),
        (torch.ones(2, requires_grad=True), 5, TypeError, "picked by whole numbers, got 1.0"),
        (slice(2), None, ValueError, "is not known, so there is no slice"),
        ([-1], None, IndexError, "how many there are is not known"),
        (3, 5, TypeError, "episodes=3: give the numbers of episodes, such as"),
        ("12", 5, TypeError, "episodes='12': give the numbers"),
        (np.array(3), 5, TypeError, "give the numbers"),
        ([1.0], 5, TypeError, "picked by whole numbers, got 1.0"),
        ([True, False], 5, TypeError, "picked by whole numbers, got True"),
        (torch.ones(5, dtype=torch.bool), 5, TypeError, "picked by whole numbers"),
        (np.array([[1], [2]]), 5, TypeError, "picked by whole numbers"),
        ([None], 5, TypeError, "picked by whole numbers, got None"),
    ],
)
def test_what_picks_no_episodes_is_refused(given_: Any, count: int | None, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        selected(given_, count)


@pytest.mark.parametrize("make", ["stored", "streamed"])
def test_statistics_are_of_episodes_that_are_picked_alike(make: str, plain: Path) -> None:
    replay = stored(plain) if make == "stored" else streamed(Recorded())
    wanted = replay.stats(["action"], episodes=[2, 3])["action",]
    for same in (slice(2, 4), [3, 2, 3], np.array([2, 3], np.uint64), {2, 3}):
        assert torch.equal(replay.stats(["action"], episodes=same)["action",].mean, wanted.mean)  # type: ignore[arg-type]
    for wrong in ([2.9], torch.tensor([2.9]), [False, True], torch.ones(len(LENGTHS), dtype=torch.bool)):
        with pytest.raises(TypeError, match="picked by whole numbers, got"):
            replay.stats(["action"], episodes=wrong)  # type: ignore[arg-type]
    replay.close()


@given(st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=20))
def test_runs_are_the_rows_of_the_chosen_episodes(episodes: list[tuple[int, bool]]) -> None:
    lengths = torch.tensor([length for length, _ in episodes])
    bounds = torch.stack([lengths.cumsum(0) - lengths, lengths], 1)
    chosen = bounds[torch.tensor([taken for _, taken in episodes])]
    rows = [row for first, length in chosen.tolist() for row in range(first, first + length)]
    for runs in (chosen, joined(chosen)):
        found = Runs(runs)
        assert found.size == len(rows)
        assert found.places(torch.arange(found.size)).tolist() == rows


# --- stored ------------------------------------------------------------------------------------------------


def test_a_stored_selection_is_the_steps_of_its_episodes_one_behind_the_other(converted: Path) -> None:
    whole, some = stored(converted), stored(converted, episodes=CHOSEN)
    wanted: Any = torch.cat([whole.episode(number) for number in sorted(CHOSEN)])
    assert (len(some), some.num_episodes) == (len(wanted), len(CHOSEN))
    assert some.selected_episodes is not None
    assert some.selected_episodes.tolist() == sorted(CHOSEN)
    assert whole.selected_episodes is None
    assert_same(some[:], wanted)
    assert_same(some[[-1, 3]], wanted[[-1, 3]])
    assert_same(some[5], wanted[5])
    with pytest.raises(IndexError, match="out of range"):
        some[len(wanted)]
    entries = unnest(wanted)
    for key in some.dataset.leaf_keys():
        if key not in entries or not isinstance(entries[key], torch.Tensor):
            continue
        parts: list[Any] = [slice(None), slice(3, 9), torch.tensor([0, len(wanted) - 2])]
        for part in parts:
            assert torch.equal(some.dataset.read_leaf(key, part), entries[key][part]), key
    assert_same(pickle.loads(pickle.dumps(some))[:], wanted)
    assert_same(some.episode(3), whole.episode(3))
    assert some.metadata(-1) == whole.metadata(12)
    for of in (some.episode, some.metadata):
        with pytest.raises(IndexError, match="Episode 1 is not among the 7 of 13 that were selected"):
            of(1)
        with pytest.raises(IndexError, match="Episode 13 is out of range: there are 13"):
            of(13)


def test_a_stored_selection_is_drawn_from_and_gone_through_alone(plain: Path) -> None:
    some = stored(plain, 12, slice_len=3, episodes=CHOSEN)
    drawn = Counter(number for _ in range(60) for number in some.sample()["episode"].tolist())
    assert set(drawn) == {number for number in CHOSEN if LENGTHS[number] >= 3}
    assert sorted(numbers(stored(plain, episodes=CHOSEN))) == sorted(CHOSEN)
    assert numbers(stored(plain, episodes=CHOSEN, shuffle=False)) == sorted(CHOSEN)
    rows = stored(plain, episodes=CHOSEN, split_trajs=True, shuffle=False)
    assert len(rows) == len(CHOSEN)
    assert rows[:].shape == (len(CHOSEN), 12)
    assert rows[:]["mask"].sum(1).tolist() == [LENGTHS[number] for number in sorted(CHOSEN)]
    assert numbers(rows) == sorted(CHOSEN)
    once = stored(plain, 5, episodes=CHOSEN, replacement=False)
    assert sum(map(len, once)) == len(once) == sum(LENGTHS[number] for number in CHOSEN)
    ahead = stored(plain, 8, episodes=[4, 7, 9], transform=NStep(3, 0.9))
    assert set(ahead.sample()["episode"].tolist()) <= {4, 7, 9}


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_stored_ranks_and_workers_share_a_selection(plain: Path, world_size: int) -> None:
    found: list[int] = []
    for rank in range(world_size):
        replay = stored(plain, episodes=CHOSEN, rank=rank, world_size=world_size)
        loader: Any = DataLoader(
            Iterated(replay), batch_size=None, num_workers=2, collate_fn=as_it_is, timeout=PATIENCE
        )
        found += numbers(loader) if world_size == 2 else numbers(replay)
    assert sorted(found) == sorted(CHOSEN)
    with pytest.raises(ValueError, match="has 7 episodes, which cannot be shared among world_size=8"):
        stored(plain, episodes=CHOSEN, rank=0, world_size=8)


class Iterated(torch.utils.data.IterableDataset[Any]):
    def __init__(self, replay: OpenXExperienceReplay) -> None:
        self.replay = replay

    def __iter__(self) -> Iterator[Any]:
        return iter(self.replay)


def test_a_stored_state_is_of_the_same_selection(plain: Path, tmp_path: Path) -> None:
    def of(episodes: Any) -> OpenXExperienceReplay:
        return stored(plain, 6, slice_len=2, replacement=False, episodes=episodes)

    replay = of(CHOSEN)
    replay.sample()
    state = pickle.loads(pickle.dumps(replay.state_dict()))
    replay.dumps(tmp_path / "state")
    wanted = [replay.sample()["action"] for _ in range(2)]
    for saved in (True, False):
        other = of(sorted(CHOSEN))  # the order in which they are named does not matter
        if saved:
            other.loads(tmp_path / "state")
        else:
            other.load_state_dict(state)
        assert all(torch.equal(other.sample()["action"], batch) for batch in wanted)
    others = ([0, 1], "2 selected ones, 0, 1"), (None, "all episodes"), (range(12), "selected ones, 0, 1")
    for episodes, said in others:
        with pytest.raises(ValueError, match=rf"7 selected ones, 0, 2, 3, .*dataset has .*{said}"):
            of(episodes).load_state_dict(state)
    with pytest.raises(ValueError, match="The state is of all episodes, this dataset has 7 selected ones"):
        of(CHOSEN).load_state_dict(of(None).state_dict())


def test_statistics_are_of_the_selection(plain: Path) -> None:
    whole, some = stored(plain), stored(plain, episodes=CHOSEN)
    for key, stats in some.stats().items():
        values = whole.stats([key], episodes=CHOSEN)[key]
        assert stats.count == values.count
        assert torch.equal(stats.mean, values.mean)
    assert some.stats(["action"], episodes=[2, 4])["action",].count == LENGTHS[2] + LENGTHS[4]
    assert some.stats(["action"])["action",].count == len(some)
    with pytest.raises(IndexError, match="Episode 1 is not among the 7 of 13"):
        some.stats(["action"], episodes=[2, 1])
    stream = streamed(Recorded(), episodes=CHOSEN)
    found, wanted = stream.stats(["action"])["action",], whole.stats(["action"], episodes=CHOSEN)["action",]
    assert torch.equal(found.q99, wanted.q99)
    assert stream.stats(["action"], episodes=[2, 4])["action",].count == LENGTHS[2] + LENGTHS[4]
    with pytest.raises(IndexError, match="Episode 1 is not among the 7 of 13"):
        stream.stats(["action"], episodes=[1])


def test_what_only_a_whole_dataset_can_do_is_refused(plain: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="a changed copy is made of a whole dataset: leave episodes= out"):
        stored(plain, episodes=CHOSEN).preprocess(as_it_is, dest=tmp_path / "copy")
    with pytest.raises(IndexError, match="Episode 13 is out of range: there are 13"):
        stored(plain, episodes=[13])
    with pytest.raises(IndexError, match="Episode 13 is out of range: there are 13"):
        streamed(Recorded(), episodes=[13])


def test_a_selection_is_told(plain: Path) -> None:
    assert "episodes=7 of 13" in repr(stored(plain, episodes=CHOSEN).dataset)
    assert "episodes=13," in repr(stored(plain).dataset)
    assert "episodes=7 of 13" in repr(streamed(Recorded(), episodes=CHOSEN))
    unknown = streamed(Recorded(declared=False), episodes=numbered(CHOSEN, declared=False))
    assert "episodes=7 of an unknown number" in repr(unknown)
    assert unknown.num_episodes == 7


# --- streamed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_every_selected_episode_is_streamed_once_an_epoch(
    declared: bool, shuffle: bool, world_size: int
) -> None:
    wanted = numbered(CHOSEN, declared=declared)
    streams = [
        streamed(Recorded(declared), episodes=wanted, shuffle=shuffle, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    for _ in range(3):
        parts = [numbers(stream) for stream in streams]
        assert sorted(number for part in parts for number in part) == sorted(wanted)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    if not shuffle and world_size == 1:
        assert numbers(streams[0]) == sorted(wanted)


def test_workers_share_a_streamed_selection() -> None:
    stream = streamed(Recorded(), episodes=CHOSEN)
    loader: Any = DataLoader(stream, batch_size=None, num_workers=2, collate_fn=as_it_is, timeout=PATIENCE)
    for _ in range(2):
        assert sorted(numbers(loader)) == sorted(CHOSEN)


def test_a_streamed_selection_is_that_of_the_stored_dataset(plain: Path) -> None:
    stream = streamed(
        MemorySource([[episode(n, length) for n, length in enumerate(LENGTHS)]]), episodes=[4, 7]
    )
    whole = stored(plain)
    for batch in stream:
        wanted = whole.episode(int(batch["episode"][0]))
        assert torch.equal(batch["action"], wanted["action"])
        assert torch.equal(batch["observation", "image"], wanted["observation", "image"])


@pytest.mark.parametrize("declared", [True, False])
def test_shards_without_a_selected_episode_are_not_opened(declared: bool) -> None:
    source = Recorded(declared)
    stream = streamed(source, episodes=numbered([2, 4, 11], declared=declared))
    assert sorted(numbers(stream)) == sorted(numbered([2, 4, 11], declared=declared))
    stream.sample(2)
    assert set(source.opened) == {0, 2}


def test_what_is_wrong_with_episodes_that_are_not_selected_is_no_matter() -> None:
    broken = Recorded(broken=frozenset({1, 9, 10}))
    stream = streamed(broken, 4, slice_len=2, strict_length=False, episodes=CHOSEN)
    list(stream)
    assert stream.skipped == ()
    left = streamed(broken, episodes=CHOSEN, buffer_bytes=1 << 20)
    batches = iter(left)
    next(batches)
    again = streamed(broken, episodes=CHOSEN, buffer_bytes=1 << 20)
    again.load_state_dict(left.state_dict())
    assert numbers(again) == numbers(batches)
    with pytest.raises(DataFormatError, match="record 9 is broken"):
        list(streamed(broken, episodes=[8, 9]))
    kept = streamed(broken, episodes=[8, 9, 12], on_error="skip")
    with pytest.warns(UserWarning, match="record 9 is broken"):
        assert sorted(numbers(kept)) == [8, 12]
    assert [(skipped.shard, skipped.record) for skipped in kept.skipped] == [("shard-2", 1)]


@pytest.mark.parametrize("form", ["for", "sample"])
@pytest.mark.parametrize("rank", [None, 1])
def test_a_stream_of_a_selection_goes_on_from_any_batch(form: str, rank: int | None) -> None:
    share: Any = {} if rank is None else {"rank": rank, "world_size": 2}

    def of(episodes: Any) -> OpenXExperienceReplay:
        return streamed(Recorded(), 4, slice_len=2, pad=0, episodes=episodes, **share)

    def batches(stream: OpenXExperienceReplay) -> Iterator[Any]:
        return iter(stream) if form == "for" else iter(stream.sample, None)

    stream = of(CHOSEN)
    states, wanted = [], []
    for batch in islice(batches(stream), 6):
        wanted.append(batch["episode"].tolist())
        states.append(pickle.loads(pickle.dumps(stream.state_dict())))
    assert len(wanted) > 1
    for number, state in enumerate(states):
        other = of(sorted(CHOSEN))
        other.load_state_dict(state)
        following = [batch["episode"].tolist() for batch in islice(batches(other), 5 - number)]
        assert following[: len(wanted) - number - 1] == wanted[number + 1 :]
    for episodes, said in (([0, 2], "2 selected ones, 0, 2"), (None, "all episodes")):
        with pytest.raises(ValueError, match=rf"7 selected ones, .*, this dataset has {said}: give the ep"):
            of(episodes).load_state_dict(states[0])
    with pytest.raises(ValueError, match="The state is of all episodes, this dataset has 7"):
        of(CHOSEN).load_state_dict(of(None).state_dict())
    with pytest.raises(ValueError, match="damaged: its selected episodes are 'all'"):
        of(CHOSEN).load_state_dict({**states[0], "sampler": {**states[0]["sampler"], "episodes": "all"}})


def test_an_episode_behind_the_end_of_a_shard_of_unknown_length_is_an_error() -> None:
    source = Recorded(declared=False)
    with pytest.raises(IndexError, match="shard-0 has no record 7"):
        list(streamed(source, episodes=[0, 7]))
    with pytest.raises(IndexError, match="out of range: there are 3 shards"):
        streamed(source, episodes=[3 << 16])


# --- files -------------------------------------------------------------------------------------------------


def test_records_of_files_are_found_near_and_far(tmp_path: Path) -> None:
    count = 3 * RECORD_GAP
    rlds = RLDSSource(write_arm_dataset(tmp_path / "arm", episodes=count, shards=1))
    (shard,) = rlds.shards()
    whole = list(rlds.episodes(shard))
    for chosen in ([0], [count - 1], [1, 3, 3 + RECORD_GAP + 1, count - 1], list(range(count))):
        found = list(chosen_records(rlds, shard, chosen, skip=False))
        assert [record for record, _ in found] == chosen
        for record, one in found:
            assert isinstance(one, Episode)
            assert one.where == whole[record].where
    with pytest.raises(DataFormatError, match="ends before record 99"):
        list(chosen_records(rlds, shard, [1, 99], skip=False))
    assert [record for record, _ in chosen_records(rlds, shard, [1, 99], skip=True)] == [1]


def test_an_error_of_a_chosen_record_is_that_of_the_file(tmp_path: Path) -> None:
    rlds = RLDSSource(write_arm_dataset(tmp_path / "arm", episodes=4, shards=1))
    (shard,) = rlds.shards()
    content = bytearray(Path(shard.path).read_bytes())
    second = 16 + int.from_bytes(content[:8], "little")
    content[second + 500] ^= 1
    Path(shard.path).write_bytes(content)
    assert [record for record, _ in chosen_records(rlds, shard, [0, 2, 3], skip=False)] == [0, 2, 3]
    with pytest.raises(CorruptRecordError, match="record 1 at byte"):
        list(chosen_records(rlds, shard, [0, 1], skip=False))
    assert isinstance(dict(chosen_records(rlds, shard, [0, 1, 2], skip=True))[1], LeftOut)
    content[second] ^= 1  # the length: what is behind cannot be reached
    Path(shard.path).write_bytes(content)
    assert [record for record, _ in chosen_records(rlds, shard, [0], skip=False)] == [0]
    with pytest.raises(CorruptRecordError, match="record 1 at byte"):
        list(chosen_records(rlds, shard, [0, 2], skip=False))


def test_no_file_of_a_lerobot_episode_is_opened_that_is_not_selected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lerobot(tmp_path / "push", "v2.1", [5, 6, 7, 4])
    opened: list[str] = []
    reader = "replaybank.datasets.openx.sources.lerobot.read_rows"
    monkeypatch.setattr(reader, noted(LeRobotSource.episodes.__globals__["read_rows"], opened))
    stream = streamed(path, image_keys=[], episodes=[0, 2])
    opened.clear()
    assert sorted(numbers(stream)) == [0, 2]
    assert sorted(Path(name).stem for name in opened) == ["episode_000000", "episode_000002"]


def noted(function: Any, names: list[str]) -> Any:
    def called(path: str, *rest: Any) -> Any:
        names.append(path)
        return function(path, *rest)

    return called


@pytest.mark.parametrize("streaming", [True, False])
def test_a_mixture_has_a_selection_of_each_dataset(streaming: bool, plain: Path) -> None:
    if streaming:
        sources: Any = {"a": Recorded(), "b": Recorded()}
    else:
        sources = {"a": plain, "b": plain}
    arguments: Any = {"batch_size": 12, "slice_len": 2, "streaming": streaming, "strict_length": streaming}
    arguments |= {"source": sources, "balance_weights": True, "generator": torch.Generator().manual_seed(0)}
    mixture = OpenXMixture({"a": 1.0, "b": 1.0}, episodes={"a": [4, 8, 11], "b": [12, 3]}, **arguments)
    seen: dict[int, set[int]] = {0: set(), 1: set()}
    for batch in islice(mixture, 40):
        for dataset, number in zip(batch["dataset"].tolist(), batch["episode"].tolist(), strict=True):
            seen[dataset].add(number)
    assert seen == {0: {4, 8, 11}, 1: {3, 12}}
    assert 0 < mixture.proportions["b"] < mixture.proportions["a"]
    assert mixture.stats(["action"])["b"]["action",].count == LENGTHS[12] + LENGTHS[3]
    mixture.close()
    both = OpenXMixture({"a": 1.0, "b": 1.0}, episodes=[4, 8], **arguments)
    assert [dataset.num_episodes for dataset in both.datasets] == [2, 2]
    both.close()
