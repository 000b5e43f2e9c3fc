"""Videos, sequences of images and sound in RLDS features, as TFDS stores them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replaybank import DataFormatError, OpenXExperienceReplay, RLDSSource, UnsupportedFeatureError, convert
from replaybank.datasets.openx.sources.base import Episode
from replaybank.datasets.openx.sources.images import EncodedImages, encode_frame
from rlds_files import CLASSES, action, dict_of, ints, sequence, tensor, write

STEPS, FRAMES, SIDE = 3, 2, 8


def video(*shape: int) -> dict[str, Any]:
    body = {"shape": {"dimensions": list(map(str, shape))}, "encodingFormat": "png"} if shape else {}
    return {"pythonClassName": CLASSES + "video_feature.Video", "video": body}


PIXELS = np.random.default_rng(0).integers(0, 256, (STEPS, FRAMES, SIDE, SIDE, 3)).astype(np.uint8)
STORED = [encode_frame(frame, "png") for step in PIXELS for frame in step]
IMAGE = {"image": {"shape": {"dimensions": ["8", "8", "3"]}}}
FORMS = {
    "video": video(FRAMES, SIDE, SIDE, 3),
    "sequence": sequence(IMAGE, FRAMES),
    "old form": {"type": CLASSES + "video_feature.Video", "content": '{"shape": [2, 8, 8, 3]}'},
}


def read(folder: Path) -> list[Episode]:
    source = RLDSSource(folder)
    return [episode for shard in source.shards() for episode in source.episodes(shard)]


def plain(name: str, frames: list[bytes]) -> dict[str, Any]:
    return {f"steps/{name}": frames}


def ragged(name: str, frames: list[bytes]) -> dict[str, Any]:
    return {
        f"steps/{name}/ragged_flat_values": frames,
        f"steps/{name}/ragged_row_lengths_0": ints(*[FRAMES] * STEPS),
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stored", [plain, ragged])
def test_each_frame_of_a_step_is_an_entry_of_its_own(tmp_path: Path, form: str, stored: Any) -> None:
    folder = write(
        tmp_path,
        {"observation": dict_of(film=FORMS[form])},
        {**action(STEPS), **stored("observation/film", STORED)},
    )
    (episode,) = read(folder)
    for position in range(FRAMES):
        images = episode.steps["observation", "film", str(position)]
        assert isinstance(images, EncodedImages)
        assert np.array_equal(images.decode(), PIXELS[:, position])
        assert images.encoded() == STORED[position::FRAMES]
    assert len(episode.steps) == 1 + FRAMES


@pytest.mark.parametrize("images", ["raw", "encoded"])
def test_they_are_converted_sampled_and_streamed(tmp_path: Path, images: Any) -> None:
    folder = write(
        tmp_path / "films",
        {"observation": dict_of(film=FORMS["video"])},
        {**action(STEPS), **plain("observation/film", STORED)},
    )
    convert(folder, tmp_path / "out", images=images)
    replay = OpenXExperienceReplay("toy", streaming=False, source=tmp_path / "out")
    stream = OpenXExperienceReplay("toy", source=folder)
    for episode in (replay.episode(0), next(iter(stream))):
        for position in range(FRAMES):
            frames = episode["observation", "film", str(position)].permute(0, 2, 3, 1).numpy()
            assert np.array_equal(frames, PIXELS[:, position])
    stream.close()
    one = OpenXExperienceReplay("toy", streaming=False, source=tmp_path / "out", image_keys=["1"])
    assert list(one[:]["observation", "film"].keys()) == ["1"]


def test_frames_that_are_no_whole_steps_are_an_error(tmp_path: Path) -> None:
    folder = write(tmp_path, {"film": FORMS["video"]}, {**action(STEPS), **plain("film", STORED[:-1])})
    with pytest.raises(DataFormatError, match="'film' has 5 values, which are no whole lists"):
        read(folder)


def test_an_episode_without_the_film_lacks_all_its_entries(tmp_path: Path) -> None:
    (episode,) = read(write(tmp_path, {"film": FORMS["video"]}, action(STEPS)))
    assert episode.missing == {("film", "0"), ("film", "1")}


@pytest.mark.parametrize("feature", [video(), video(-1, SIDE, SIDE, 3), sequence(IMAGE)])
def test_as_many_frames_as_a_step_likes_are_an_error_that_names_the_feature(
    tmp_path: Path, feature: Any
) -> None:
    with pytest.raises(UnsupportedFeatureError, match=r"feature 'steps/film'.*frames a step are not read"):
        RLDSSource(write(tmp_path, {"film": feature}, action(STEPS)))


@pytest.mark.parametrize(
    "feature", [video(), video(-1, SIDE, SIDE, 3), video(6, SIDE, SIDE, 3), sequence(IMAGE)]
)
def test_the_film_of_an_episode_is_read_and_not_kept(tmp_path: Path, feature: Any) -> None:
    folder = write(
        tmp_path / "films",
        {},
        {**action(STEPS), "about/film": STORED, "about/id": ints(4)},
        about=dict_of(film=feature, id=tensor([], "int64")),
    )
    (episode,) = read(folder)
    film = episode.metadata["about", "film"]
    assert np.array_equal(film.decode(), PIXELS.reshape(-1, SIDE, SIDE, 3))
    made = convert(folder, tmp_path / "out")
    assert list(made.faults) == ["the frames of about/film, which is of the episode as a whole, are not kept"]
    replay = OpenXExperienceReplay("toy", streaming=False, source=tmp_path / "out")
    assert replay.metadata(0) == {"where": "toy-train.tfrecord-00000-of-00001 record 0", ("about", "id"): 4}


def test_a_film_of_another_length_than_declared_is_an_error(tmp_path: Path) -> None:
    folder = write(
        tmp_path, {}, {**action(1), "about/film": STORED}, about=dict_of(film=video(5, SIDE, SIDE, 3))
    )
    with pytest.raises(DataFormatError, match="has 6 frames, declared are 5"):
        read(folder)


def test_one_image_of_an_episode_leaves_nothing_of_this_run_in_the_files(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "thumb", {}, {**action(2), "thumb": STORED[:1]}, thumb=IMAGE, action_of=tensor([], "int64")
    )
    convert(folder, tmp_path / "one")
    convert(folder, tmp_path / "other")
    content = (tmp_path / "one/metadata.jsonl").read_bytes()
    assert content == (tmp_path / "other/metadata.jsonl").read_bytes()
    assert b"object at 0x" not in content


@pytest.mark.parametrize(
    ("body", "stored", "expected"),
    [
        ({"shape": {"dimensions": ["2"]}}, {"steps/sound": ints(1, -2, 3, 4)}, [[1, -2], [3, 4]]),
        (
            {"shape": {"dimensions": ["-1"]}, "dtype": "float32", "sampleRate": "16000"},
            {"steps/sound/shape": ints(2, 2), "steps/sound/value": np.array([0.5, 1, 2, 3], np.float32)},
            [[0.5, 1], [2, 3]],
        ),
        (
            {"shape": {"dimensions": ["2"]}, "dtype": "int16", "encoding": "bytes"},
            {"steps/sound": [np.array([1, -2], "<i2").tobytes(), np.array([3, 4], "<i2").tobytes()]},
            [[1, -2], [3, 4]],
        ),
    ],
)
def test_sound_is_numbers(tmp_path: Path, body: Any, stored: Any, expected: Any) -> None:
    sound = {"pythonClassName": CLASSES + "audio_feature.Audio", "audio": body}
    (episode,) = read(write(tmp_path, {"sound": sound}, {**action(2), **stored}))
    assert np.asarray(episode.steps["sound",]).tolist() == expected


def test_the_sound_of_an_episode_is_numbers_too(tmp_path: Path) -> None:
    sound = {"pythonClassName": CLASSES + "audio_feature.Audio", "audio": {}}
    folder = write(tmp_path, {}, {**action(1), "about/sound": ints(5, 6, 7)}, about=dict_of(sound=sound))
    assert read(folder)[0].metadata["about", "sound"].tolist() == [5, 6, 7]
