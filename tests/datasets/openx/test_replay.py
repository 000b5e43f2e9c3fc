"""The robot dataset as a buffer: what comes out of it, and what it refuses."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch

import memory_source
from memory_source import MemorySource
from reference.tfrecord import parse_example, read_file
from replaybank.buffers.transforms import TransformChain
from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.files import MANIFEST, PROGRESS
from replaybank.datasets.openx.replay import OpenXExperienceReplay
from replaybank.datasets.openx.streamed_storage import StreamError
from replaybank.errors import IncompleteDatasetError
from replaybank.samplers.random import RandomSampler
from replaybank.samplers.slice import SliceSampler
from replaybank.transforms import FrameStack, NStep
from shared_data import bridge_path

LENGTHS = (4, 1, 6, 3, 8)
STEPS = sum(LENGTHS)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of converted datasets with one in it, ``arm``."""
    folder = tmp_path_factory.mktemp("root")
    episodes = [memory_source.episode(number, length) for number, length in enumerate(LENGTHS)]
    convert(MemorySource([episodes[:2], episodes[2:]]), folder / "arm")
    return folder


def open_arm(root: Path, batch_size: int | None = None, **arguments: Any) -> OpenXExperienceReplay:
    arguments.setdefault("streaming", False)
    arguments.setdefault("generator", torch.Generator().manual_seed(0))
    return OpenXExperienceReplay("arm", batch_size, root=root, **arguments)


def slices(batch: Any, length: int) -> Iterator[tuple[int, list[int]]]:
    """Episode and steps of each slice of a batch."""
    for episode, step in zip(
        batch["episode"].view(-1, length).tolist(), batch["step"].view(-1, length).tolist(), strict=True
    ):
        assert len(set(episode)) == 1
        yield episode[0], step


def test_slices_are_consecutive_steps_of_one_episode(root: Path) -> None:
    dataset = open_arm(root, 12, slice_len=3)
    seen = set()
    for _ in range(100):
        for episode, steps in slices(dataset.sample(), 3):
            assert steps == list(range(steps[0], steps[0] + 3))
            assert steps[-1] < LENGTHS[episode]
            seen.add((episode, steps[0]))
    assert seen == {(e, s) for e, length in enumerate(LENGTHS) for s in range(length - 2)}


def test_num_slices_sets_the_number_instead_of_the_length(root: Path) -> None:
    batch = open_arm(root, 8, num_slices=2).sample()
    assert [len(steps) for _, steps in slices(batch, 4)] == [4, 4]


def test_short_episodes_come_whole_when_lengths_need_not_be_kept(root: Path) -> None:
    dataset = open_arm(root, slice_len=8, strict_length=False)
    lengths = {tuple(b["episode"].tolist()) for b in (dataset.sample(8) for _ in range(200))}
    assert {len(episodes) for episodes in lengths} == set(LENGTHS)


def test_every_start_of_a_slice_is_equally_likely(root: Path) -> None:
    """C80. Chi-square with 5 degrees of freedom: a false alarm once in 10^4 runs, and the seed is fixed."""
    dataset = open_arm(root, 3 * 1000, slice_len=3)
    starts = torch.zeros(6)
    for _ in range(100):
        batch = dataset.sample()
        longest = batch["step"][::3][batch["episode"][::3] == 4]
        starts += torch.bincount(longest, minlength=6)
    expected = starts.sum() / 6
    assert starts.sum() > 20_000
    assert ((starts - expected) ** 2 / expected).sum() < 25.74


def test_without_slices_steps_are_drawn_uniformly(root: Path) -> None:
    dataset = open_arm(root, 64)
    assert isinstance(dataset.sampler, RandomSampler)
    drawn = torch.cat([dataset.sample()["index"] for _ in range(20)])
    assert set(drawn.ravel().tolist()) == set(range(STEPS))


def test_a_sampler_of_ones_own_is_used(root: Path) -> None:
    dataset = open_arm(root, 4, sampler=SliceSampler(slice_len=2, traj_key="episode"))
    assert [len(steps) for _, steps in slices(dataset.sample(), 2)] == [2, 2]


def test_the_same_seed_gives_the_same_batches(root: Path) -> None:
    first, second = (open_arm(root, 12, slice_len=3) for _ in range(2))
    for _ in range(5):
        assert (first.sample() == second.sample()).all()


def test_iterating_without_a_batch_size_gives_each_trajectory_once_whole(root: Path) -> None:
    dataset = open_arm(root)
    epochs = [[(batch["episode"].tolist(), batch["step"].tolist()) for batch in dataset] for _ in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == [([e] * n, list(range(n))) for e, n in enumerate(LENGTHS)]
    assert epochs[0] != epochs[1]  # each in another order: 1 in 120 would agree, and the seed is fixed


def test_in_order_when_not_shuffled(root: Path) -> None:
    assert [batch["episode"][0].item() for batch in open_arm(root, shuffle=False)] == [0, 1, 2, 3, 4]


def test_several_whole_trajectories_a_batch(root: Path) -> None:
    """C83."""
    dataset = open_arm(root, num_slices=3)
    counts = [len(batch["episode"].unique()) for batch in dataset]
    assert counts == [3, 2]


def test_a_random_slice_of_each_long_enough_trajectory(root: Path) -> None:
    dataset = open_arm(root, slice_len=4)
    for _ in range(3):
        drawn = [next(slices(batch, 4)) for batch in dataset]
        assert sorted(episode for episode, _ in drawn) == [0, 2, 4]
        assert all(steps == list(range(steps[0], steps[0] + 4)) for _, steps in drawn)
    lengths = sorted(len(batch) for batch in open_arm(root, slice_len=4, strict_length=False))
    assert lengths == [1, 3, 4, 4, 4]


def test_slices_longer_than_every_trajectory_are_an_error(root: Path) -> None:
    """C86."""
    dataset = open_arm(root, slice_len=9)
    with pytest.raises(RuntimeError, match=r"slice_len=9 .* 1 to 8"):
        next(iter(dataset))
    with pytest.raises(RuntimeError, match="9"):
        open_arm(root, 18, slice_len=9).sample()


def test_one_for_is_one_epoch_with_a_batch_size_too(root: Path) -> None:
    assert [len(batch) for batch in open_arm(root, 6, slice_len=3)] == [6, 6, 6]
    assert len(list(open_arm(root, 600, slice_len=3))) == 1


def test_without_replacement_a_for_gives_a_slice_of_each_long_enough_trajectory(root: Path) -> None:
    dataset = open_arm(root, 6, slice_len=3, replacement=False)
    for _ in range(3):
        drawn = [part for batch in dataset for part in slices(batch, 3)]
        assert sorted(episode for episode, _ in drawn) == [0, 2, 3, 4]
    dataset.sample()
    assert len(list(dataset)) == 1  # the rest of the pass that sample() began


def test_without_replacement_and_slices_a_for_gives_each_step_once(root: Path) -> None:
    dataset = open_arm(root, 5, replacement=False)
    drawn = [batch["index"].ravel().tolist() for batch in dataset]
    assert [len(batch) for batch in drawn] == [5, 5, 5, 5, 2]
    assert sorted(index for batch in drawn for index in batch) == list(range(STEPS))


def test_in_order_without_replacement(root: Path) -> None:
    steps = [
        batch["index"].ravel().tolist() for batch in open_arm(root, 11, replacement=False, shuffle=False)
    ]
    assert steps == [list(range(11)), list(range(11, 22))]
    drawn = open_arm(root, 6, slice_len=3, replacement=False, shuffle=False)
    assert [batch["episode"][::3].tolist() for batch in drawn] == [[0, 2], [3, 4]]


def test_iterating_and_sampling_do_not_disturb_each_other(root: Path) -> None:
    """C84."""
    dataset = open_arm(root, slice_len=3)
    outer = []
    for batch in dataset:
        inner = [other["episode"][0].item() for other in dataset]
        assert sorted(inner) == [0, 2, 3, 4]
        assert len(dataset.sample(6)) == 6
        outer.append(batch["episode"][0].item())
    assert sorted(outer) == [0, 2, 3, 4]
    assert (dataset.batch_size, dataset.slice_len, dataset.num_slices) == (None, 3, None)


def test_one_episode_is_read_by_its_number(root: Path) -> None:
    dataset = open_arm(root)
    assert dataset.num_episodes == 5
    assert dataset.episode(2)["step"].tolist() == [0, 1, 2, 3, 4, 5]
    assert dataset.episode(-1)["episode"].tolist() == [4] * 8
    for number in (5, -6):
        with pytest.raises(IndexError, match=f"Episode {number} is out of range: there are 5"):
            dataset.episode(number)


def test_transforms_apply_in_every_mode(root: Path) -> None:
    def scaled(batch: Any) -> Any:
        return batch.set("action", batch["action"] * 0 + 7)

    dataset = open_arm(root, 6, slice_len=3, transform=scaled)
    whole = open_arm(root, transform=scaled)
    for batch in (dataset.sample(), next(iter(dataset)), next(iter(whole)), whole.episode(0), dataset[:3]):
        assert (batch["action"] == 7).all()


def test_it_pickles_and_copies_as_paths(root: Path) -> None:
    dataset = open_arm(root, 6, slice_len=3)
    other = pickle.loads(pickle.dumps(dataset))
    assert (other.sample() == dataset.sample()).all()
    assert len(pickle.dumps(dataset)) < 20_000


def test_nothing_can_be_written_to_it(root: Path) -> None:
    dataset = open_arm(root, 6)
    with pytest.raises(RuntimeError):
        dataset.add(dataset[0])
    with pytest.raises(RuntimeError):
        dataset.extend(dataset[:2])
    with pytest.raises(RuntimeError):
        dataset[0] = dataset[1]
    with pytest.raises(RuntimeError):
        dataset.empty()
    assert len(dataset) == STEPS


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"num_slices": 2, "slice_len": 3}, ValueError, "num_slices=2 and slice_len=3"),
        ({"slice_len": 3, "sampler": RandomSampler()}, ValueError, "sampler"),
        ({"streaming": True, "download": True}, ValueError, "streaming and download"),
        ({"streaming": True, "replacement": True}, RuntimeError, "replacement"),
        ({"pad": 0}, RuntimeError, "pad"),
        ({"pad": True}, RuntimeError, "pad"),
        ({"slice_len": 3, "shuffle": False}, RuntimeError, "replacement=False"),
        ({"shuffle": False}, RuntimeError, "replacement=False"),
        ({"download": "again"}, ValueError, "'again'"),
        ({"streaming": None}, ValueError, "no Open X-Embodiment dataset 'arm'"),
        ({"split_trajs": True, "slice_len": 3}, ValueError, "leave num_slices and slice_len out"),
        ({"images": "jpeg"}, ValueError, "images must be 'raw' or 'encoded', got 'jpeg'"),
        ({"slice_len": 4}, ValueError, "6 steps cannot be made of slices with slice_len=4"),
        ({"num_slices": 4}, ValueError, "6 steps cannot be made of slices with num_slices=4"),
        (
            {"streaming": True, "slice_len": 4},
            ValueError,
            "6 steps cannot be made of slices with slice_len=4",
        ),
        ({"streaming": True, "generator": 5}, TypeError, "generator=5 is a int; give a torch.Generator"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(
    root: Path, arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        open_arm(root, 6, **arguments)


def test_pad_false_is_none(root: Path) -> None:
    assert len(open_arm(root, 6, pad=False).sample()) == 6


@pytest.mark.parametrize("dataset_id", ["", "a/b/c", "a/..", "..", "/tmp"])
def test_a_dataset_id_is_no_path(root: Path, dataset_id: str) -> None:
    with pytest.raises(ValueError, match="pass paths as source="):
        OpenXExperienceReplay(dataset_id, streaming=False, root=root)


def test_a_dataset_that_is_not_there_says_where_it_was_looked_for(root: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"'leg' in {root}"):
        OpenXExperienceReplay("leg", streaming=False, root=root)
    with pytest.raises(FileNotFoundError, match=r"neither a converted dataset .* nor one of RLDS"):
        OpenXExperienceReplay("leg", streaming=False, root=root, source=root)


def test_a_half_converted_dataset_is_never_opened(root: Path, tmp_path: Path) -> None:
    """C82."""
    half = tmp_path / "arm"
    half.mkdir()
    for file in (root / "arm").iterdir():
        (half / (PROGRESS if file.name == MANIFEST else file.name)).write_bytes(file.read_bytes())
    with pytest.raises(IncompleteDatasetError):
        OpenXExperienceReplay("arm", streaming=False, root=tmp_path)
    with pytest.raises(IncompleteDatasetError):
        OpenXExperienceReplay("arm", streaming=False, source=half)


def test_deleting_removes_the_files(root: Path, tmp_path: Path) -> None:
    episodes = [memory_source.episode(0, 3)]
    convert(MemorySource([episodes]), tmp_path / "arm")
    OpenXExperienceReplay("arm", streaming=False, root=tmp_path).delete()
    assert list(tmp_path.iterdir()) == []


def test_a_dataset_that_was_given_is_not_deleted(root: Path) -> None:
    dataset = OpenXExperienceReplay("arm", streaming=False, source=root / "arm")
    with pytest.raises(RuntimeError, match="given as source="):
        dataset.delete()
    assert len(open_arm(root)) == STEPS


def test_another_split_than_the_one_that_is_there_is_refused(root: Path) -> None:
    with pytest.raises(ValueError, match="holds the split 'train' of 'memory', not split='val'"):
        OpenXExperienceReplay("arm", streaming=False, source=root / "arm", split="val")


def test_what_the_origin_says_of_an_episode_is_kept(
    bridge: OpenXExperienceReplay, slow_reading: list[dict[str, Any]]
) -> None:
    for number in (0, 13, -1):
        metadata = bridge.metadata(number)
        record = slow_reading[number]
        assert metadata["episode_metadata", "file_path"] == record["episode_metadata/file_path"][0].decode()
        assert metadata["episode_metadata", "episode_id"] == record["episode_metadata/episode_id"][0]
        assert metadata["where"].endswith(f"record {number % 25}")
    with pytest.raises(IndexError, match="Episode 25 is out of range"):
        bridge.metadata(25)


def test_the_ends_of_slices_are_marked_however_they_are_drawn(root: Path) -> None:
    for batch in open_arm(root, slice_len=3):
        assert batch["next", "truncated"].ravel().tolist() == [False, False, True]
        assert batch["next", "done"].ravel().tolist() == [False, False, True]
    whole = next(iter(open_arm(root, num_slices=5, shuffle=False, replacement=False)))
    ends = [n - 1 for n in np.cumsum(LENGTHS)]
    assert whole["next", "truncated"].ravel().nonzero().ravel().tolist() == ends


def test_the_cache_folder_follows_the_users_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    convert(MemorySource([[memory_source.episode(0, 3)]]), tmp_path / "replaybank" / "openx" / "arm")
    assert len(OpenXExperienceReplay("arm", streaming=False)) == 3


# --- the real BridgeData file ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> OpenXExperienceReplay:
    return OpenXExperienceReplay(
        "bridge_dataset",
        40,
        slice_len=4,
        streaming=False,
        source=bridge_path(),
        root=tmp_path_factory.mktemp("bridge"),
        generator=torch.Generator().manual_seed(0),
    )


@pytest.fixture(scope="module")
def slow_reading() -> list[dict[str, Any]]:
    """The episodes of the real file, read in pure Python from the description of the format."""
    data = (bridge_path() / "bridge_dataset-train.tfrecord-00000-of-00001").read_bytes()
    records = [parse_example(record.payload) for record in read_file(data)]
    return [{name: entry[1] for name, entry in record.items() if entry is not None} for record in records]


def test_the_real_file_has_its_episodes_steps_cameras_and_instructions(
    bridge: OpenXExperienceReplay, slow_reading: list[dict[str, Any]]
) -> None:
    assert (bridge.num_episodes, len(bridge)) == (25, 250)
    whole = bridge[:]
    cameras = [f"image_{i}" for i in range(4)]
    assert {key for key in whole["observation"].keys() if "image" in key} == set(cameras)  # noqa: SIM118
    for number, record in enumerate(slow_reading):
        told = [text.decode() for text in record["steps/language_instruction"]]
        assert bridge.episode(number)["language_instruction"] == told
    assert whole["next", "done"].sum() == 25  # is_last is never set in the file
    assert whole["next", "truncated"].sum() == 25


def test_slices_of_the_real_file_equal_a_slow_reading_of_it(
    bridge: OpenXExperienceReplay, slow_reading: list[dict[str, Any]]
) -> None:
    checked = set()
    for _ in range(25):
        batch = bridge.sample()
        for position in range(40):
            item = batch[position]
            episode, step = item["episode"].item(), item["step"].item()
            record = slow_reading[episode]
            last = step == 9
            for camera in range(4):
                frames = record[f"steps/observation/image_{camera}"]
                expected = simplejpeg.decode_jpeg(frames[step]).transpose(2, 0, 1)
                assert np.array_equal(item["observation", f"image_{camera}"], expected)
                following = item["next", "observation", f"image_{camera}"]
                if last:
                    assert not following.any()
                else:
                    after = simplejpeg.decode_jpeg(frames[step + 1]).transpose(2, 0, 1)
                    assert np.array_equal(following, after)
            for key, name, width in (
                ("action", "steps/action", 7),
                (("observation", "state"), "steps/observation/state", 7),
                ("language_embedding", "steps/language_embedding", 512),
                ("discount", "steps/discount", 1),
                (("next", "reward"), "steps/reward", 1),
            ):
                given = np.array(record[name][step * width : (step + 1) * width], np.float32)
                assert np.array_equal(item[key].ravel(), given), key
            assert item["language_instruction"] == record["steps/language_instruction"][step].decode()
            assert item["next", "valid"].item() is not last
            assert item["next", "done"].item() is (last or position % 4 == 3)  # or the end of its slice
            checked.add((episode, step))
    assert len(checked) > 200


def test_returns_move_all_that_is_made_when_steps_are_read(root: Path) -> None:
    moved = open_arm(root, 300, slice_len=3, transform=[NStep(2, 1.0), FrameStack(1, in_keys=["action"])])
    batch, stored = moved.sample(), moved.storage[:]
    first = {
        (int(e), int(s)): k for k, (e, s) in enumerate(zip(stored["episode"], stored["step"], strict=True))
    }
    for k, (episode, step) in enumerate(zip(batch["episode"].tolist(), batch["step"].tolist(), strict=True)):
        count = min(2, LENGTHS[episode] - step)
        last = first[episode, step + count - 1]
        assert int(batch["steps_to_next_obs"][k]) == count
        for name in ("image", "state"):
            key = ("next", "observation", name)
            assert torch.equal(batch[key][k], stored[key][last])
        assert batch["next", "observation"][k].get("note") == stored["next", "observation"][last].get("note")


def test_a_stream_refuses_transforms_that_read_other_steps(root: Path) -> None:
    source = MemorySource([[memory_source.episode(0, 3)]])
    arguments: dict[str, Any] = {"source": source, "slice_len": 2}
    for given in (NStep(2, 1.0), [len, NStep(2, 1.0)], TransformChain([NStep(2, 1.0)])):
        with pytest.raises(StreamError, match="NStep reads other steps than those that were drawn"):
            OpenXExperienceReplay("arm", 2, transform=given, **arguments)
    stream = OpenXExperienceReplay("arm", 2, **arguments)
    with pytest.raises(StreamError, match="FrameStack reads other steps"):
        stream.append_transform(FrameStack(2))
    with pytest.raises(StreamError, match="FrameStack reads other steps"):
        stream.insert_transform(0, FrameStack(2))
    assert len(stream.transform) == 0
    stream.transform.insert(0, NStep(2, 1.0))  # behind its back
    with pytest.raises(StreamError, match="reads other steps"):
        stream.sample()
    with pytest.raises(StreamError, match="reads other steps"):
        next(iter(stream))
