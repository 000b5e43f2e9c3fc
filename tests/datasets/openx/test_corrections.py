"""Known faults are put right as episodes are read, and the result says which."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory_source import MemorySource
from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.corrections import CorrectedSource, Corrections, corrected
from replaybank.datasets.openx.files import read_manifest
from replaybank.datasets.openx.replay import OpenXExperienceReplay
from replaybank.datasets.openx.sources.base import Episode, FieldSpec, Key
from replaybank.datasets.openx.sources.rlds import RLDSSource
from replaybank.datasets.openx.sources.rlds_writer import RLDSWriter

BGR = "utaustin_mutex"
"""A dataset whose frames have blue first, in both cameras."""
IMAGE = FieldSpec("image", (16, 16, 3), np.dtype("uint8"))
FIELDS: dict[Key, FieldSpec] = {
    ("observation", "image"): IMAGE,
    ("observation", "wrist_image"): IMAGE,
    ("observation", "other"): IMAGE,
    ("action",): FieldSpec("tensor", (1,), np.dtype("float32")),
    ("language_instruction",): FieldSpec("text", (), None),
    ("is_terminal",): FieldSpec("tensor", (), np.dtype(bool)),
}


def write(folder: Path, name: str = BGR, lengths: tuple[int, ...] = (3, 2)) -> Path:
    with RLDSWriter(folder, name, fields=FIELDS, image_format="png") as writer:
        for number, length in enumerate(lengths):
            frames = np.zeros((length, 16, 16, 3), np.uint8)
            frames[..., 0], frames[..., 2] = 10 + number, 200
            writer.write(
                {
                    ("observation", "image"): frames,
                    ("observation", "wrist_image"): frames,
                    ("observation", "other"): frames,
                    ("action",): np.arange(length, dtype=np.float32)[:, None],
                    ("language_instruction",): [f"step {step}" for step in range(length)],
                    ("is_terminal",): np.arange(length) == length - 1,
                }
            )
    return folder


def colours(replay: OpenXExperienceReplay, name: str) -> list[list[int]]:
    return replay.episode(1)["observation", name][:, :, 0, 0].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("images", ["raw", "encoded"])
def test_cameras_that_the_catalog_knows_to_have_blue_first_are_put_right(tmp_path: Path, images: Any) -> None:
    manifest = convert(write(tmp_path / "rlds"), tmp_path / "out", images=images)
    assert manifest.origin["corrections"] == {
        "bgr": [["observation", "image"], ["observation", "wrist_image"]],
        "last_step": "keep",
    }
    assert manifest.origin["kind"] == "RLDSSource"
    assert read_manifest(tmp_path / "out") == manifest
    replay = OpenXExperienceReplay(BGR, streaming=False, source=tmp_path / "out")
    assert colours(replay, "image") == colours(replay, "wrist_image") == [[200, 0, 11]] * 2
    assert colours(replay, "other") == [[11, 0, 200]] * 2
    following = replay.episode(1)["next", "observation", "image"][0, :, 0, 0]
    assert following.tolist() == [200, 0, 11]


def test_arguments_win_over_the_catalog(tmp_path: Path) -> None:
    rlds = write(tmp_path / "rlds")
    assert "corrections" not in convert(rlds, tmp_path / "a", bgr=[]).origin
    convert(rlds, tmp_path / "b", bgr=["other"])
    replay = OpenXExperienceReplay(BGR, streaming=False, source=tmp_path / "b")
    assert colours(replay, "other") == [[200, 0, 11]] * 2
    assert colours(replay, "image") == [[11, 0, 200]] * 2
    with pytest.raises(
        ValueError, match=r"has no cameras \['top'\]; it has \['image', 'wrist_image', 'other'\]"
    ):
        convert(rlds, tmp_path / "c", bgr=["top"])


def test_an_id_says_what_a_dataset_is_if_its_name_does_not(tmp_path: Path) -> None:
    rlds = write(tmp_path / "rlds", name="mine")
    assert "corrections" not in convert(rlds, tmp_path / "a").origin
    assert convert(rlds, tmp_path / "b", dataset_id=BGR).origin["corrections"]["bgr"]


def test_a_dataset_without_known_faults_is_left_alone(tmp_path: Path) -> None:
    source = RLDSSource(write(tmp_path / "rlds", name="bridge"))
    assert corrected(source) is source


def test_a_copy_in_another_form_is_not_corrected_twice(tmp_path: Path) -> None:
    class Copy(RLDSSource):
        form = "another"  # type: ignore[misc]

    source = Copy(write(tmp_path / "rlds"))
    assert corrected(source) is source
    assert corrected(source, bgr=["image"]) is not source


def test_dropping_the_last_step_keeps_what_it_says_of_the_end(tmp_path: Path) -> None:
    rlds = write(tmp_path / "rlds", name="arm", lengths=(3, 2, 1))
    manifest = convert(rlds, tmp_path / "out", last_step="drop")
    assert [manifest.episodes, manifest.steps] == [3, 2 + 1 + 1]
    assert manifest.origin["corrections"] == {"bgr": [], "last_step": "drop"}
    assert manifest.faults == {"the last step is kept: it is the only one of its episode": 1}
    episode = OpenXExperienceReplay("arm", streaming=False, source=tmp_path / "out").episode(0)
    assert episode["action"][:, 0].tolist() == [0, 1]
    assert episode["next", "terminated"][:, 0].tolist() == [False, True]
    assert list(episode["language_instruction"]) == ["step 0", "step 1"]
    assert episode["observation", "image"].shape == (2, 3, 16, 16)
    with pytest.raises(ValueError, match="last_step must be 'keep' or 'drop', got 'cut'"):
        convert(rlds, tmp_path / "other", last_step="cut")  # type: ignore[arg-type]


@pytest.mark.parametrize("is_last", [[False, False, True], [False, False, False]])
def test_dropping_the_last_step_moves_its_mark_and_invents_none(is_last: list[bool]) -> None:
    flag = FieldSpec("tensor", (), np.dtype(bool))
    fields: dict[Key, FieldSpec] = {
        ("action",): FieldSpec("tensor", (1,), np.dtype("float32")),
        ("is_last",): flag,
    }
    steps: dict[Key, Any] = {("action",): np.zeros((3, 1), np.float32), ("is_last",): np.array(is_last)}
    dropped = corrected(MemorySource([[Episode(steps, 3, "here")]], fields), last_step="drop")
    (episode,) = dropped.episodes(dropped.shards()[0])
    assert np.asarray(episode.steps["is_last",]).tolist() == is_last[1:]


def test_dropping_leaves_the_source_as_it_is_and_goes_to_workers() -> None:
    fields: dict[Key, FieldSpec] = {("action",): FieldSpec("tensor", (1,), np.dtype("float32"))}
    actions = np.zeros((3, 1), np.float32)
    source = MemorySource([[Episode({("action",): actions}, 3, "here")]], fields)
    dropped = corrected(source, last_step="drop")
    assert isinstance(dropped, CorrectedSource)
    assert dropped.corrections == Corrections(last_step="drop")
    (shard,) = pickle.loads(pickle.dumps(dropped)).shards()
    assert shard.steps is None
    assert [episode.length for episode in dropped.episodes(shard)] == [2]
    assert [episode.length for episode in source.episodes(shard)] == [3]
