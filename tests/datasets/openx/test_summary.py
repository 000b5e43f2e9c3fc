"""What is said about a dataset, against what is known to be in it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.sources.base import Episode, Shard
from replaybank.datasets.openx.sources.rlds import RLDSSource
from replaybank.datasets.openx.summary import summarise, summarise_rlds
from replaybank.demo import arm
from shared_data import bridge_path

EPISODES = 5


@pytest.fixture(scope="module")
def arm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rlds") / arm.NAME / arm.VERSION
    return arm.write_arm_dataset(folder, episodes=EPISODES, shards=2)


def test_an_rlds_folder_is_described_by_its_records(arm_folder: Path) -> None:
    reaches = [arm.simulate(number) for number in range(EPISODES)]
    summary = summarise(arm_folder)
    assert summary.form == "RLDS"
    assert (summary.name, summary.version, summary.split) == (arm.NAME, arm.VERSION, "train")
    assert summary.splits == ("train",)
    assert summary.complete
    assert sorted(summary.lengths) == sorted(map(len, reaches))
    assert summary.steps == sum(map(len, reaches))
    assert summary.bytes == sum(file.stat().st_size for file in arm_folder.iterdir())
    assert {field.key: field.shape for field in summary.fields} == {
        key: spec.shape for key, spec in arm.FIELDS.items()
    }
    assert {field.key for field in summary.metadata_fields} == set(arm.METADATA_FIELDS)
    assert summary.texts == {("language_instruction",): Counter(reach.instruction for reach in reaches)}
    assert [(image.key[-1], image.form, image.height, image.width) for image in summary.images] == [
        ("image", "JPEG", 64, 64),
        ("hand_image", "JPEG", 64, 64),
    ]
    assert all(image.bytes_per_frame > 300 for image in summary.images)


def test_progress_is_told_shard_by_shard(arm_folder: Path) -> None:
    told: list[tuple[int, int]] = []
    summarise_rlds(RLDSSource(arm_folder), on_progress=lambda done, of: told.append((done, of)))
    assert told == [(1, 2), (2, 2)]


def test_a_converted_dataset_says_the_same(arm_folder: Path, tmp_path: Path) -> None:
    converted = tmp_path / "converted"
    convert(RLDSSource(arm_folder), converted, progress=False)
    before, after = summarise(arm_folder), summarise(converted)
    assert after.form == "converted"
    assert after.complete
    assert (after.name, after.episodes, after.steps) == (before.name, before.episodes, before.steps)
    assert sorted(after.lengths) == sorted(before.lengths)
    assert after.texts == before.texts
    assert {image.key: (image.form, image.height, image.width) for image in after.images} == {
        ("observation", "image"): ("raw", 64, 64),
        ("observation", "hand_image"): ("raw", 64, 64),
    }
    shapes = {field.key: (field.shape, field.dtype) for field in after.fields}
    assert shapes["observation", "image"] == ((3, 64, 64), "uint8")
    assert shapes["action",] == ((2,), "float32")
    assert shapes["next", "reward"] == ((1,), "float32")
    assert shapes["language_instruction",][1] == "str"


def test_the_folder_above_the_one_version_stands_for_it(arm_folder: Path) -> None:
    assert summarise(arm_folder.parent) == summarise(arm_folder)


def test_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(FileNotFoundError, match=r"neither an RLDS dataset .* nor a converted one"):
            summarise(path)
    with pytest.raises(FileNotFoundError, match=r"nowhere: there is no such folder"):
        summarise(tmp_path / "nowhere")


def test_an_unfinished_conversion_says_so_and_what_it_has(arm_folder: Path, tmp_path: Path) -> None:
    class Stops(RLDSSource):
        def episodes(self, shard: Shard, start: int = 0) -> Iterator[Episode]:
            for episode in super().episodes(shard, start):
                yield episode
                if shard.number:
                    raise KeyboardInterrupt

    source = RLDSSource(arm_folder)
    with pytest.raises(KeyboardInterrupt):
        convert(Stops(arm_folder), tmp_path / "part", progress=False, num_workers=1)
    summary = summarise(tmp_path / "part")
    assert not summary.complete
    first = source.shards()[0]
    assert summary.lengths == tuple(episode.length for episode in source.episodes(first))
    assert summary.episodes == first.episodes
    assert summary.notes[0].startswith("the conversion was not finished: 1 of 2 shards are done")


def test_the_real_bridge_sample_has_its_25_episodes_and_four_cameras() -> None:
    summary = summarise(bridge_path())
    assert (summary.name, summary.version) == ("bridge_dataset", "1.0.0")
    assert summary.lengths == (10,) * 25
    assert summary.steps == 250
    assert summary.length_range == (10, 10.0, 10)
    assert sorted(image.key[-1] for image in summary.images) == ["image_0", "image_1", "image_2", "image_3"]
    assert {(image.form, image.height, image.width, image.channels) for image in summary.images} == {
        ("JPEG", 64, 64, 3)
    }
    assert sum(summary.texts["language_instruction",].values()) == 25
    declared = json.loads((bridge_path() / "dataset_info.json").read_text())
    assert summary.splits == tuple(split["name"] for split in declared["splits"])


def test_the_median_length_is_numpys() -> None:
    summary = summarise(bridge_path())
    assert summary.length_range[1] == np.median(summary.lengths)
