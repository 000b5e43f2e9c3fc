"""Names of classes and of numbers: from the published files into the converted dataset, and out of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlds_files as rlds
from lerobot_files import write_lerobot
from replaybank import DataFormatError, OpenXExperienceReplay, convert
from replaybank.cli import run
from replaybank.datasets.openx.files import MANIFEST, PROGRESS, Manifest, read_manifest
from replaybank.datasets.openx.summary import summarise

KIND = ("observation", "kind")
PLACE = ("about", "place")
CLASSES = ("cup", "plate", "fork")
PLACES = ("table", "sink")
MOTORS = ("a", "b", "c")


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """Two episodes with a class a step and one an episode."""
    label = {"pythonClassName": rlds.CLASSES + "class_label_feature.ClassLabel", "classLabel": {}}
    folder = rlds.write(
        tmp_path / "labelled",
        {"observation": rlds.dict_of(kind=label)},
        *(
            {**rlds.action(3), "steps/observation/kind": rlds.ints(2, 0, 1), "about/place": rlds.ints(place)}
            for place in (1, 0)
        ),
        about=rlds.dict_of(place=label),
    )
    (folder / "steps-observation-kind.labels.txt").write_text("\n".join(CLASSES) + "\n")
    (folder / "about-place.labels.txt").write_text("\n".join(PLACES) + "\n")
    return folder


def stored(path: Path) -> OpenXExperienceReplay:
    return OpenXExperienceReplay("toy", streaming=False, source=path)


def test_the_names_of_classes_are_kept_with_the_converted_dataset(labelled: Path, tmp_path: Path) -> None:
    made = convert(labelled, tmp_path / "out")
    assert read_manifest(tmp_path / "out") == made
    replay = stored(tmp_path / "out")
    assert replay.label_names == {KIND: CLASSES}
    assert replay.dim_names == {}
    names = [replay.label_names[KIND][number] for number in replay.episode(0)[KIND].tolist()]
    assert names == ["fork", "cup", "plate"]
    assert made.metadata_label_names == {PLACE: PLACES}
    assert PLACES[replay.metadata(0)[PLACE]] == "sink"


def test_a_stream_tells_the_same_names(labelled: Path) -> None:
    stream = OpenXExperienceReplay("toy", source=labelled)
    assert stream.label_names == {KIND: CLASSES}
    stream.close()


def test_the_names_of_numbers_of_lerobot_features_are_kept(tmp_path: Path) -> None:
    path = write_lerobot(tmp_path / "set", "v2.1", [5, 4])
    convert(path, tmp_path / "out")
    expected = {("observation", "state"): MOTORS}
    assert stored(tmp_path / "out").dim_names == expected  # and not those of the axes of images
    stream = OpenXExperienceReplay("set", source=path)
    assert (stream.dim_names, stream.label_names) == (expected, {})
    stream.close()


@pytest.mark.parametrize("names", [["x", "y"], ["only"], [], None, {"motors": ["a", "b", "c", "d"]}])
def test_names_that_are_not_one_a_number_are_those_of_axes(names: Any, tmp_path: Path) -> None:
    path = write_lerobot(tmp_path / "set", "v2.1", [4], None)
    info = json.loads((path / "meta/info.json").read_text())
    info["features"]["observation.state"]["names"] = names
    (path / "meta/info.json").write_text(json.dumps(info))
    convert(path, tmp_path / "out")
    assert stored(tmp_path / "out").dim_names == {}


def changed(episode: Any) -> Any:
    """Classes as they are; of the motors one less."""
    state = ("observation", "state")
    return episode.set(state, episode[state][:, :2].contiguous()) if state in episode.keys(True) else episode


def test_a_changed_copy_keeps_the_names_that_still_fit_and_what_is_said_of_episodes(
    labelled: Path, tmp_path: Path
) -> None:
    convert(labelled, tmp_path / "one")
    copy = stored(tmp_path / "one").preprocess(changed, 0, dest=tmp_path / "copy")
    assert copy.label_names == {KIND: CLASSES}
    assert copy.dataset.manifest.metadata_label_names == {PLACE: PLACES}
    assert [copy.metadata(number)[PLACE] for number in range(2)] == [1, 0]
    assert copy.metadata(0)["where"] == "toy-train.tfrecord-00000-of-00001 record 0"
    convert(write_lerobot(tmp_path / "set", "v2.1", [5, 4], None), tmp_path / "two")
    assert stored(tmp_path / "two").dim_names
    assert stored(tmp_path / "two").preprocess(changed, 0, dest=tmp_path / "less").dim_names == {}


def test_floats_are_no_classes_any_more(labelled: Path, tmp_path: Path) -> None:
    convert(labelled, tmp_path / "out")
    copy = stored(tmp_path / "out").preprocess(as_floats, 0, dest=tmp_path / "copy")
    assert copy.label_names == {}


def as_floats(episode: Any) -> Any:
    return episode.set(KIND, episode[KIND].float())


def test_info_shows_them(labelled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(labelled, tmp_path / "out")
    for path in (labelled, tmp_path / "out"):
        summary = summarise(path)
        assert [field.labels for field in summary.fields if field.key == KIND] == [CLASSES]
        assert [field.labels for field in summary.metadata_fields] == [PLACES]
        assert run(["info", str(path)]) == 0
        shown = capsys.readouterr().out
        assert "observation/kind  classes  cup, plate, fork" in shown
        assert "about/place       classes  table, sink" in shown


def test_stats_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(write_lerobot(tmp_path / "set", "v2.1", [5, 4], None), tmp_path / "out")
    assert run(["stats", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "0 a" in shown
    assert "2 c" in shown


def test_a_dataset_of_an_earlier_release_has_no_names_and_is_read_and_continued(
    labelled: Path, tmp_path: Path
) -> None:
    made = convert(labelled, tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    for name in ("label_names", "dim_names", "metadata_label_names"):
        del manifest[name]
    (tmp_path / "out" / MANIFEST).write_text(json.dumps(manifest))
    assert stored(tmp_path / "out").label_names == {}
    assert convert(labelled, tmp_path / "out") == Manifest.from_json(manifest)  # it is there already
    manifest.update(shards=[], steps=0, episodes=0, strings=0, missing=[], checksums={})
    manifest["file_sizes"] = dict.fromkeys(manifest["file_sizes"], 0)
    (tmp_path / "out" / MANIFEST).unlink()
    (tmp_path / "out" / PROGRESS).write_text(json.dumps(manifest))
    assert convert(labelled, tmp_path / "out") == made


@pytest.mark.parametrize(
    "names",
    [
        5,
        {},
        [5],
        [{"key": ["action"]}],
        [{"key": ["nowhere"], "names": []}],
        [{"key": ["action"], "names": [1]}],
    ],
)
def test_damaged_names_are_an_error(labelled: Path, tmp_path: Path, names: Any) -> None:
    convert(labelled, tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    (tmp_path / "out" / MANIFEST).write_text(json.dumps({**manifest, "label_names": names}))
    with pytest.raises(DataFormatError, match="damaged"):
        read_manifest(tmp_path / "out")


def test_numbers_beyond_the_names_are_data_all_the_same(labelled: Path, tmp_path: Path) -> None:
    (labelled / "steps-observation-kind.labels.txt").write_text("cup\n")
    convert(labelled, tmp_path / "out")
    assert stored(tmp_path / "out").episode(0)[KIND].tolist() == np.array([2, 0, 1]).tolist()
