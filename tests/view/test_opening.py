"""An episode to be looked at is the same, whatever form it is in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from hub_shards import pixels, write_hub
from lerobot_files import CAMERA, FPS, TASKS, shown_numbers, write_lerobot
from replaybank import (
    CompressedListStorage,
    EncodedFrames,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    ReplayBufferEnsemble,
    convert,
)
from replaybank.datasets.openx.sources.base import FieldSpec
from replaybank.datasets.openx.sources.images import decode_frames
from replaybank.demo import arm
from replaybank.errors import DataFormatError
from replaybank.view.episode import Camera, RecordedEpisode, chosen_cameras
from replaybank.view.opening import open_episode
from shared_data import bridge_path, lerobot_g1_path

IMAGE = ("observation", "image")


@pytest.fixture(scope="module")
def arm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rlds") / arm.NAME / arm.VERSION
    return arm.write_arm_dataset(folder, episodes=3, shards=2)


def frames_of(camera: Camera) -> Any:
    """All frames of a camera as pixels, each part where it says that it belongs."""
    parts: list[Any] = []
    for start, frames in camera.parts():
        assert start == sum(len(part) for part in parts)
        if not isinstance(frames, np.ndarray):
            spec = FieldSpec("image", (-1, -1, -1), np.dtype(np.uint8))
            frames = decode_frames([memoryview(frame) for frame in frames], spec, "test")
        parts.append(frames)
    return np.concatenate(parts)


def assert_same(one: RecordedEpisode, other: RecordedEpisode) -> None:
    assert (one.name, one.number, one.length) == (other.name, other.number, other.length)
    assert one.numbers.keys() == other.numbers.keys()
    for key, values in one.numbers.items():
        np.testing.assert_array_equal(values, other.numbers[key])
    assert one.texts == other.texts
    assert one.cameras.keys() == other.cameras.keys()
    for key, camera in one.cameras.items():
        np.testing.assert_array_equal(frames_of(camera), frames_of(other.cameras[key]))


@pytest.mark.parametrize("images", ["raw", "encoded"])
def test_a_converted_episode_is_the_published_one(arm_folder: Path, tmp_path: Path, images: Any) -> None:
    convert(arm_folder, tmp_path / "made", images=images, progress=False)
    for number in range(3):
        published = open_episode(arm_folder, number)
        assert_same(published, open_episode(tmp_path / "made", number))
        reach = arm.simulate((0, 2, 1)[number])  # dealt out over the shards
        assert published.length == len(reach)
        np.testing.assert_array_equal(published.numbers["action",], reach.actions)
        assert set(published.texts["language_instruction",]) == {reach.instruction}
        assert published.numbers["next", "done"][:, 0].tolist() == [False] * (len(reach) - 1) + [True]


def test_a_camera_of_stored_frames_hands_out_their_bytes(arm_folder: Path, tmp_path: Path) -> None:
    convert(arm_folder, tmp_path / "made", images="encoded", progress=False)
    for path in (arm_folder, tmp_path / "made"):
        ((start, frames),) = open_episode(path, 1).cameras[IMAGE].parts()
        assert start == 0
        assert all(isinstance(frame, bytes) and frame[:3] == b"\xff\xd8\xff" for frame in frames)


def test_frames_with_blue_first_are_shown_as_they_were_seen(tmp_path: Path) -> None:
    folder = write_hub(tmp_path / "utaustin_mutex", "utaustin_mutex")
    convert(folder, tmp_path / "made", images="encoded", progress=False)
    for path in (folder, tmp_path / "made"):
        episode = open_episode(path, 1)
        shown = frames_of(episode.cameras[IMAGE])
        np.testing.assert_array_equal(shown, [pixels(1000 + step)[..., ::-1] for step in range(3)])
        assert episode.texts["language_instruction",] == ["do 1"] * 3
        assert episode.facts["episode_metadata/file_path"] == "/logs/1"
        assert episode.seconds is not None, "the catalog knows the rate"


def test_videos_are_decoded_and_their_steps_have_times(tmp_path: Path) -> None:
    write_lerobot(tmp_path, "v2.1", [5, 40])
    episode = open_episode(tmp_path, 1)
    camera = episode.cameras[tuple(CAMERA.split("."))]
    assert camera.lossy
    assert shown_numbers(frames_of(camera)) == list(range(5, 45))
    assert episode.seconds is not None
    np.testing.assert_allclose(episode.seconds, np.arange(40) / FPS, atol=1e-5)
    assert set(episode.texts["task",]) <= set(TASKS)


def test_joints_of_a_converted_episode_keep_their_names(tmp_path: Path) -> None:
    write_lerobot(tmp_path / "lerobot", "v2.1", [5])
    convert(tmp_path / "lerobot", tmp_path / "made", image_keys=[], progress=False)
    published, made = open_episode(tmp_path / "lerobot", 0), open_episode(tmp_path / "made", 0)
    state = ("observation", "state")
    assert made.names == {state: published.names[state]}


def test_an_episode_that_is_not_there_is_an_error_with_the_range(arm_folder: Path, tmp_path: Path) -> None:
    convert(arm_folder, tmp_path / "made", progress=False)
    for path in (arm_folder, tmp_path / "made"):
        for number in (3, -1):
            with pytest.raises(IndexError, match=f"there is no episode {number}: .* has 3 episodes, 0 to 2"):
                open_episode(path, number)
    with pytest.raises(ValueError, match="there is no split 'val': 'train' was converted"):
        open_episode(tmp_path / "made", split="val")
    with pytest.raises(FileNotFoundError, match="there is no such file or folder"):
        open_episode(tmp_path / "nothing")


def test_an_episode_is_found_where_shards_do_not_say_how_many_they_have() -> None:
    path = bridge_path()
    first, last = open_episode(path, 0), open_episode(path, 24)
    assert first.length > 0
    assert last.facts["from"].endswith("record 24")
    with pytest.raises(IndexError, match="0 to 24"):
        open_episode(path, 25)


def test_of_a_dataset_with_missing_files_those_that_are_there_are_shown() -> None:
    episode = open_episode(lerobot_g1_path(), 1)
    assert episode.facts["episode_index"] == "20"
    assert episode.rate == 30
    assert len(episode.names["action",]) == 26
    with pytest.raises(IndexError, match="0 to 1"):
        open_episode(lerobot_g1_path(), 2)


# --- buffers -----------------------------------------------------------------------------------------------


def steps(count: int, length: int, start: int = 0) -> TensorDict:
    """Steps of episodes of ``length``, which end terminated, numbered."""
    number = torch.arange(start, start + count)
    done = ((number + 1) % length == 0)[:, None]
    return TensorDict(
        {
            "observation": number[:, None].float(),
            "done": torch.zeros(count, 1, dtype=torch.bool),
            "next": {
                "observation": number[:, None].float() + 1,
                "reward": -number.float(),
                "done": done,
                "terminated": done.clone(),
            },
        },
        [count],
    )


@pytest.mark.parametrize("derive", [None, "derive"])
def test_the_trajectories_of_a_checkpointed_buffer_are_episodes(tmp_path: Path, derive: str | None) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(50, next_observation=derive))
    buffer.extend(steps(62, 10))  # goes round: 12 to 61 are there, of which 12 to 19 are the rest of one
    buffer.dumps(tmp_path)
    lengths = [open_episode(tmp_path, number).length for number in range(6)]
    assert sorted(lengths) == [2, 8, 10, 10, 10, 10]
    found = {}
    for number in range(6):
        episode = open_episode(tmp_path, number)
        first = int(episode.numbers["observation",][0, 0])
        found[first] = episode.length
        expected = np.arange(first, first + episode.length, dtype=np.float32)
        np.testing.assert_array_equal(episode.numbers["observation",][:, 0], expected)
        np.testing.assert_array_equal(episode.numbers["next", "reward"], -expected)
        assert ("next", "observation") not in episode.numbers
        assert ("done",) not in episode.numbers
    assert found == {12: 8, 20: 10, 30: 10, 40: 10, 50: 10, 60: 2}
    with pytest.raises(IndexError, match="has 6 episodes, 0 to 5"):
        open_episode(tmp_path, 6)


def test_columns_of_a_buffer_are_kept_apart(tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(60, ndim=2), dim_extend=0)
    data = torch.stack([steps(20, 10), steps(20, 10, 1000)], 1)
    buffer.extend(data)
    buffer.dumps(tmp_path)
    firsts = [int(open_episode(tmp_path, number).numbers["observation",][0, 0]) for number in range(4)]
    assert firsts == [0, 10, 1000, 1010]
    assert open_episode(tmp_path, 3).facts["column"] == "1"


def test_an_ensembles_buffers_are_numbered_through(tmp_path: Path) -> None:
    parts = [ReplayBuffer(storage=LazyTensorStorage(40)) for _ in range(2)]
    for place, part in enumerate(parts):
        part.extend(steps(20, 10, 100 * place))
    ReplayBufferEnsemble(*parts, batch_size=4).dumps(tmp_path)
    firsts = [int(open_episode(tmp_path, number).numbers["observation",][0, 0]) for number in range(4)]
    assert firsts == [0, 10, 100, 110]
    assert open_episode(tmp_path, 3).name.endswith("buffer 1 of 2")


@pytest.mark.parametrize(
    ("shape", "shown"), [((16, 16, 3), "HWC"), ((3, 16, 16), "CHW"), ((16, 16), "HW"), ((4, 16, 16), "stack")]
)
def test_bytes_in_the_form_of_images_are_images(tmp_path: Path, shape: tuple[int, ...], shown: str) -> None:
    generator = torch.Generator().manual_seed(0)
    frames = torch.randint(0, 256, (12, *shape), dtype=torch.uint8, generator=generator)
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    small = frames[:, :2, :2]
    buffer.extend(TensorDict({"pixels": frames, "small": small, "episode": torch.zeros(12)}, [12]))
    buffer.dumps(tmp_path)
    episode = open_episode(tmp_path)
    assert list(episode.cameras) == [("pixels",)]
    expected = {
        "HWC": lambda x: x,
        "CHW": lambda x: x.permute(0, 2, 3, 1),
        "HW": lambda x: x[..., None],
        "stack": lambda x: x[:, -1, :, :, None],
    }[shown](frames)
    np.testing.assert_array_equal(frames_of(episode.cameras["pixels",]), expected)
    np.testing.assert_array_equal(episode.numbers["small",], small)


def test_encoded_images_of_a_buffer_are_decoded(tmp_path: Path) -> None:
    frames = torch.arange(10 * 8 * 8 * 3, dtype=torch.int64).to(torch.uint8).view(10, 8, 8, 3)
    buffer = ReplayBuffer(storage=LazyTensorStorage(20, encoded={"pixels": EncodedFrames("png")}))
    buffer.extend(TensorDict({"pixels": frames, "episode": torch.zeros(10)}, [10]))
    buffer.dumps(tmp_path)
    np.testing.assert_array_equal(frames_of(open_episode(tmp_path).cameras["pixels",]), frames)


def test_a_buffer_without_ends_or_tensors_says_so(tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    buffer.extend(TensorDict({"x": torch.zeros(3)}, [3]))
    buffer.dumps(tmp_path / "endless")
    with pytest.raises(DataFormatError, match=r"nothing says where episodes end.* its entries x"):
        open_episode(tmp_path / "endless")
    objects = ReplayBuffer(storage=ListStorage(20))
    objects.extend(["a"])
    objects.dumps(tmp_path / "objects")
    with pytest.raises(DataFormatError, match=r"nothing says where episodes end.*a tensor without a name"):
        open_episode(tmp_path / "objects")
    for kind in (LazyTensorStorage, ListStorage):
        ReplayBuffer(storage=kind(20)).dumps(tmp_path / "empty")
        with pytest.raises(IndexError, match="has no episodes"):
            open_episode(tmp_path / "empty")


@pytest.mark.parametrize("compressed", [False, True])
def test_items_of_a_list_are_steps_of_episodes(tmp_path: Path, compressed: bool) -> None:
    if compressed:
        pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    buffer = ReplayBuffer(storage=CompressedListStorage(30) if compressed else ListStorage(30))
    for k in range(26):
        image = torch.full((3, 8, 8), k, dtype=torch.uint8)
        item = {"action": torch.tensor([k, -k]), "done": k % 10 == 9, "pixels": image}
        buffer.add(item if compressed else {**item, "say": f"go {k // 10}"})
    buffer.dumps(tmp_path)
    episode = open_episode(tmp_path, 2)
    assert episode.length == 6
    assert episode.numbers["action",].tolist() == [[k, -k] for k in range(20, 26)]
    assert episode.texts == ({} if compressed else {("say",): ["go 2"] * 6})
    assert frames_of(episode.cameras["pixels",])[:, 0, 0, 0].tolist() == list(range(20, 26))


def test_items_of_a_list_that_lack_an_image_are_an_error_that_names_it(tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=ListStorage(300))
    image = torch.zeros(3, 8, 8, dtype=torch.uint8)
    for k in range(300):
        buffer.add({"done": k % 100 == 99, **({} if k == 1 else {"pixels": image})})
    buffer.dumps(tmp_path)
    assert list(open_episode(tmp_path, 1).cameras) == [("pixels",)]
    with pytest.raises(DataFormatError, match="do not all have an image pixels of one shape"):
        open_episode(tmp_path, 0)


def test_an_episode_does_not_hold_the_checkpoint_it_is_from(tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    pixels = torch.arange(10, dtype=torch.uint8)[:, None, None].expand(10, 8, 8)
    buffer.extend(TensorDict({"pixels": pixels, "episode": torch.zeros(10)}, [10]))
    buffer.dumps(tmp_path)
    episode = open_episode(tmp_path)
    buffer.empty()
    buffer.extend(TensorDict({"pixels": pixels + 100, "episode": torch.zeros(10)}, [10]))
    buffer.dumps(tmp_path)
    buffer.dumps(tmp_path)
    assert frames_of(episode.cameras["pixels",])[:, 0, 0, 0].tolist() == list(range(10))


def test_many_frames_wait_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replaybank.view.buffer.IN_MEMORY", 100)
    monkeypatch.setattr("replaybank.view.buffer.READ_BYTES", 300)
    buffer = ReplayBuffer(storage=LazyTensorStorage(8, ndim=2), dim_extend=0)
    frames = torch.arange(11 * 2, dtype=torch.uint8).reshape(11, 2, 1, 1).expand(11, 2, 8, 8)
    ids = torch.zeros(11, 2)
    for k in range(11):
        buffer.extend(TensorDict({"pixels": frames[k : k + 1], "episode": ids[k : k + 1]}, [1, 2]))
    buffer.dumps(tmp_path)
    camera = open_episode(tmp_path, 1).cameras["pixels",]
    assert frames_of(camera)[:, 0, 0, 0].tolist() == [2 * k + 1 for k in range(7, 11)]


# --- what an episode says ----------------------------------------------------------------------------------


def test_times_are_those_of_the_steps_where_there_are_such() -> None:
    times = np.array([10.0, 10.5, 11.5], np.float32)[:, None]
    episode = RecordedEpisode("arm", 0, 3, {("observation", "timestamp"): times}, rate=1.0)
    assert episode.seconds is not None
    assert episode.seconds.tolist() == [0.0, 0.5, 1.5]
    for odd in (times[::-1], times * np.nan, times * 1000, times.astype(int)):
        other = RecordedEpisode("arm", 0, 3, {("timestamp",): odd}, rate=2.0)
        assert other.seconds is not None
        assert other.seconds.tolist() == [0.0, 0.5, 1.0]
    assert RecordedEpisode("arm", 0, 3, {}).seconds is None


def test_cameras_are_chosen_by_path_or_name() -> None:
    cameras = [("observation", "top"), ("observation", "wrist"), ("goal", "top")]
    assert chosen_cameras(cameras, None) == cameras
    assert chosen_cameras(cameras, ["wrist", "observation/top", "wrist"]) == [cameras[1], cameras[0]]
    with pytest.raises(ValueError, match=r"'top' is several cameras.*goal/top"):
        chosen_cameras(cameras, ["top"])
    with pytest.raises(ValueError, match="'nose' is no camera of this episode; there are: none"):
        chosen_cameras([], ["nose"])
