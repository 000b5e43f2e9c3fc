from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lerobot_files as files
from http_server import serving
from lerobot_files import CAMERA, CODECS, FPS, SIDE, TASKS, columns, shown_numbers, write_lerobot
from replaybank.datasets.openx.sources import connection
from replaybank.datasets.openx.sources.base import Episode, FieldSpec, Key
from replaybank.datasets.openx.sources.images import encode_frame
from replaybank.datasets.openx.sources.lerobot import LeRobotSource, is_lerobot
from replaybank.datasets.openx.sources.lerobot_features import step_keys
from replaybank.datasets.openx.sources.lerobot_info import Feature, file_name
from replaybank.errors import DataFormatError, UnsupportedFeatureError
from shared_data import lerobot_g1_path, lerobot_so101_path

TOP: Key = ("observation", "images", "top")
LENGTHS = (70, 45, 91)
VERSIONS = ("v2.0", "v2.1", "v3.0")


def all_episodes(source: LeRobotSource) -> list[Episode]:
    return [episode for shard in source.shards() for episode in source.episodes(shard)]


def numbers(episode: Episode, start: int = 0, stop: int | None = None) -> list[int]:
    images = episode.steps[TOP]
    assert not isinstance(images, (list, np.ndarray))
    return shown_numbers(images.decode(start, stop))


def edit_json(path: Path, **changes: Any) -> None:
    value = json.loads(path.read_text())
    value.update(changes)
    path.write_text(json.dumps(value))


def check(source: LeRobotSource, lengths: tuple[int, ...] = LENGTHS) -> None:
    episodes = all_episodes(source)
    assert [episode.length for episode in episodes] == list(lengths)
    first = 0
    for number, episode in enumerate(episodes):
        wanted = columns(number, episode.length, first)
        for key, name in ((("observation", "state"), "observation.state"), (("action",), "action")):
            found = episode.steps[key]
            assert isinstance(found, np.ndarray)
            assert found.dtype == np.float32
            assert np.array_equal(found, np.stack(wanted[name]))
        assert np.array_equal(np.asarray(episode.steps[("reward",)])[:, 0], wanted["next.reward"])
        assert np.array_equal(np.asarray(episode.steps[("is_terminal",)])[:, 0], wanted["next.done"])
        assert episode.steps[("task",)] == [TASKS[i] for i in wanted["task_index"]]
        assert episode.metadata[("episode_index",)] == number
        assert episode.faults == {}
        assert episode.missing == frozenset()
        assert numbers(episode) == list(range(first, first + episode.length))
        first += episode.length


@pytest.mark.parametrize("codec", sorted(CODECS))
@pytest.mark.parametrize("version", VERSIONS)
def test_every_step_and_every_frame_is_read_right_from_every_version_and_codec(
    version: str, codec: str, tmp_path: Path
) -> None:
    path = write_lerobot(tmp_path / "set", version, LENGTHS, CODECS[codec])
    source = LeRobotSource(path)
    assert source.notes == ()
    assert source.fields == {
        ("observation", "state"): FieldSpec("tensor", (3,), np.dtype("float32")),
        ("action",): FieldSpec("tensor", (2,), np.dtype("float32")),
        TOP: FieldSpec("image", (SIDE, SIDE, 3), np.dtype("uint8")),
        ("reward",): FieldSpec("tensor", (1,), np.dtype("float32")),
        ("timestamp",): FieldSpec("tensor", (1,), np.dtype("float32")),
        ("task_index",): FieldSpec("tensor", (1,), np.dtype("int64")),
        ("is_terminal",): FieldSpec("tensor", (1,), np.dtype("bool")),
        ("task",): FieldSpec("text", (), None),
    }
    assert source.names[("observation", "state")] == ("a", "b", "c")
    check(source)


@pytest.mark.parametrize("row_group", [None, 1, 30, 70])
def test_data_and_videos_are_cut_into_files_independently(row_group: int | None, tmp_path: Path) -> None:
    lengths = (40, 31, 52, 25, 60)
    path = write_lerobot(
        tmp_path / "set",
        "v3.0",
        lengths,
        data_files=(0, 0, 0, 1, 1),
        video_files=(0, 1, 1, 1, 2),
        row_group=row_group,
    )
    source = LeRobotSource(path)
    assert [shard.episodes for shard in source.shards()] == [3, 2]
    check(source, lengths)


def test_episodes_can_be_read_from_any_on_and_frames_in_any_order(tmp_path: Path) -> None:
    lengths = (40, 31, 52, 25)
    source = LeRobotSource(write_lerobot(tmp_path / "set", "v3.0", lengths))
    (shard,) = source.shards()
    starts = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    for begin in range(5):
        episodes = list(source.episodes(shard, begin))
        assert [e.metadata[("episode_index",)] for e in episodes] == list(range(begin, 4))
        for episode in reversed(episodes):
            first = starts[episode.metadata[("episode_index",)]]
            assert numbers(episode, 20, 25) == list(range(first + 20, first + 25))
            assert numbers(episode, 3, 7) == list(range(first + 3, first + 7))
    with pytest.raises(IndexError, match="4 episodes"):
        next(source.episodes(shard, 5))


def test_sources_pickle_while_videos_are_open(tmp_path: Path) -> None:
    source = LeRobotSource(write_lerobot(tmp_path / "set", "v3.0", LENGTHS))
    shard = source.shards()[0]
    episode = next(source.episodes(shard))
    assert numbers(episode, 0, 5) == list(range(5))
    again = pickle.loads(pickle.dumps(source))
    check(again)
    assert numbers(pickle.loads(pickle.dumps(episode)), 5, 9) == list(range(5, 9))


def test_many_short_episodes_share_a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replaybank.datasets.openx.sources.lerobot.SHARD_STEPS", 100)
    monkeypatch.setattr("replaybank.datasets.openx.sources.lerobot.NUMBERS_SHARD_STEPS", 200)
    for version in ("v2.1", "v3.0"):
        path = write_lerobot(tmp_path / version, version, (40, 31, 52, 25, 130))
        source = LeRobotSource(path)
        assert [(shard.episodes, shard.steps) for shard in source.shards()] == [(2, 71), (2, 77), (1, 130)]
        assert [e.length for e in all_episodes(source)] == [40, 31, 52, 25, 130]
        assert [shard.episodes for shard in LeRobotSource(path, exclude=[CAMERA]).shards()] == [4, 1]


def test_files_behind_urls_are_read(tmp_path: Path) -> None:
    import fsspec

    path = write_lerobot(tmp_path / "set", "v3.0", LENGTHS)
    memory = fsspec.filesystem("memory")
    memory.put(str(path), "/lerobot_set", recursive=True)
    try:
        assert is_lerobot("memory://lerobot_set")
        source = LeRobotSource("memory://lerobot_set")
        assert source.name == "lerobot_set"
        check(source)
    finally:
        memory.rm("/lerobot_set", recursive=True)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_datasets_on_a_web_server_that_drops_connections_are_read(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "pause", lambda _: None)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    write_lerobot(tmp_path / "set", version, LENGTHS)
    with serving(tmp_path) as server:
        server.faults.drop, server.faults.drop_after = 6, 700
        source = LeRobotSource(f"{server.url}/set")
        assert source.name == "set"
        check(source)
        assert server.faults.drop == 0


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_where_folders_cannot_be_listed_few_files_are_asked_for(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind most web servers."""
    path = write_lerobot(tmp_path / "set", version, LENGTHS)
    asked: list[str] = []

    def ask(name: str) -> bool:
        asked.append(name)
        return Path(name).is_file()

    for module in ("lerobot_files", "lerobot_episodes"):
        monkeypatch.setattr(f"replaybank.datasets.openx.sources.{module}.list_names", lambda _: None)
        monkeypatch.setattr(f"replaybank.datasets.openx.sources.{module}.exists", ask)
    check(LeRobotSource(path))
    assert len(asked) <= 10


def test_real_g1_files_are_read_and_the_missing_episodes_named() -> None:
    path = lerobot_g1_path()
    with pytest.raises(
        FileNotFoundError, match=r"98 of 100 episodes .* \(numbers 0-9, 11-19, 21-99\).*allow_missing=True"
    ):
        LeRobotSource(path)
    source = LeRobotSource(path, allow_missing=True)
    assert (source.version, source.splits, len(source.missing)) == ("v2.1", {"train": 100}, 98)
    assert len(source.notes) == 1
    assert source.names[("action",)][0] == "kLeftShoulderPitch"
    one, two = all_episodes(source)
    assert (one.length, two.length) == (290, 297)
    assert one.metadata[("episode_index",)] == 10
    assert set(one.steps[("task",)]) == {"Pick up the yellow bottle on the table."}  # type: ignore[arg-type]
    camera = one.steps[("observation", "images", "cam_high")]
    assert not isinstance(camera, (list, np.ndarray))
    assert camera.decode(285, 290).shape == (5, 480, 640, 3)
    assert one.faults == {}


def test_metadata_of_the_real_so101_dataset_is_read_and_its_absent_files_named() -> None:
    path = lerobot_so101_path()
    assert is_lerobot(path)
    with pytest.raises(FileNotFoundError, match=r"50 of 50 .*data/chunk-000/file-000.parquet.*none is there"):
        LeRobotSource(path, allow_missing=True)


def test_metadata_of_the_real_so101_dataset_agrees_with_itself(tmp_path: Path) -> None:
    """With files of the right names in place, though empty, it says what it holds."""
    path = shutil.copytree(lerobot_so101_path(), tmp_path / "so101")
    for name in (
        "data/chunk-000/file-000.parquet",
        "videos/observation.images.top_phone/chunk-000/file-000.mp4",
    ):
        (path / name).parent.mkdir(parents=True)
        (path / name).touch()
    source = LeRobotSource(path)
    assert source.notes == ()
    assert source.splits == {"train": 50}
    shards = source.shards()
    assert sum(shard.episodes or 0 for shard in shards) == 50
    assert sum(shard.steps or 0 for shard in shards) == 22449
    assert source.fields[("observation", "images", "top_phone")].shape == (480, 640, 3)
    assert source.names[("action",)][-1] == "gripper.pos"
    with pytest.raises(DataFormatError, match=r"file-000.parquet is damaged"):
        next(source.episodes(shards[0]))


def test_a_split_holds_the_episodes_of_its_ranges(tmp_path: Path) -> None:
    splits = {"train": "0:2", "test": "2:4", "both": "0:1, 3:4"}
    path = write_lerobot(tmp_path / "set", "v2.1", (5, 6, 7, 8), None, info={"splits": splits})
    for split, lengths in (("train", [5, 6]), ("test", [7, 8]), ("both", [5, 8])):
        assert [e.length for e in all_episodes(LeRobotSource(path, split))] == lengths
    with pytest.raises(ValueError, match=r"no split 'val'.*'both', 'test', 'train'"):
        LeRobotSource(path, "val")
    edit_json(path / "meta/info.json", splits=None)
    assert LeRobotSource(path).splits == {"train": 4}


def test_wrong_figures_of_info_are_told_and_do_no_harm(tmp_path: Path) -> None:
    path = write_lerobot(tmp_path / "set", "v2.1", LENGTHS)
    said = json.loads((path / "meta/info.json").read_text())
    said["features"][CAMERA]["info"]["video.codec"] = "av1"
    said["features"][CAMERA]["shape"] = [480, 640, 3]
    said["features"]["action"]["shape"] = [7]
    said["features"]["observation.state"]["dtype"] = "float64"
    said["data_path"] = "data/{episode_index}.parquet"
    said["video_path"] = "videos/{video_key}/{episode_index}.mp4"
    said.update(total_episodes=5, total_frames=1, fps=15, splits={"train": "0:9"})
    (path / "meta/info.json").write_text(json.dumps(said))
    source = LeRobotSource(path)
    notes = "\n".join(source.notes)
    for part in (
        "total_episodes: info.json declares 5, found 3 listed",
        "total_frames: info.json declares 1, found 206 listed",
        "split 'train': info.json declares episodes 9, found 3 listed",
        "data_path: info.json declares 'data/{episode_index}.parquet', found 'data/chunk-",
        "video_path: info.json declares 'videos/",
        f"{CAMERA}: info.json declares codec av1, found h264",
        f"{CAMERA}: info.json declares shape (480, 640, 3), found (64, 64, 3)",
        f"{CAMERA}: info.json declares fps 15.0, found 30",
        "action: info.json declares shape (7,), found (2,)",
        "observation.state: info.json declares dtype float64, found float32",
    ):
        assert part in notes
    episodes = all_episodes(source)
    assert numbers(episodes[1]) == list(range(70, 115))
    assert list(episodes[0].faults) == ["timestamps are not 15 a second, as info.json declares"]


@pytest.mark.parametrize(("declared", "written"), [("v2.1", "v3.0"), ("v3.0", "v2.1")])
def test_a_wrong_version_is_found_out_by_the_files(declared: str, written: str, tmp_path: Path) -> None:
    path = write_lerobot(tmp_path / "set", written, LENGTHS)
    edit_json(path / "meta/info.json", codebase_version=declared)
    source = LeRobotSource(path)
    assert source.notes == (
        f"codebase_version: info.json declares {declared}, found the files of version {written[1]}",
    )
    check(source)


def test_episodes_that_share_frames_by_their_listed_times_are_told(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = write_lerobot(tmp_path / "set", "v3.0", (20, 30, 10))
    listed = path / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(listed)
    name = f"videos/{CAMERA}/from_timestamp"
    # As if the last frame of each episode had no duration.
    times = pa.array([0.0, 19 / FPS, 48 / FPS])
    pq.write_table(table.set_column(table.column_names.index(name), name, times), listed)
    assert LeRobotSource(path).notes == ("from_timestamp lies within the episode before: episodes 1, 2",)


def test_lists_of_several_files_are_read_whole(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = write_lerobot(tmp_path / "set", "v3.0", LENGTHS)
    listed = path / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(listed)
    pq.write_table(table.slice(0, 1), listed)
    pq.write_table(table.slice(2, 1), listed.with_name("file-001.parquet"))
    (path / "meta/episodes/chunk-001").mkdir()
    pq.write_table(table.slice(1, 1), path / "meta/episodes/chunk-001/file-000.parquet")
    check(LeRobotSource(path))


def test_an_episode_listed_twice_is_an_error(tmp_path: Path) -> None:
    path = write_lerobot(tmp_path / "set", "v2.1", (5, 6), None)
    lines = path / "meta/episodes.jsonl"
    lines.write_text(lines.read_text() + lines.read_text())
    with pytest.raises(DataFormatError, match="episode 0 is listed twice"):
        LeRobotSource(path)


def test_a_table_that_expands_beyond_reason_is_refused(tmp_path: Path) -> None:
    """Runs of equal values take a few bytes whatever their length."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 1 << 20
    path = write_lerobot(tmp_path / "set", "v2.1", (5,), None)
    data = path / "data/chunk-000/episode_000000.parquet"
    same = pa.array(np.zeros(rows, np.float32))
    names = ["observation.state", "action", "timestamp"]
    table = pa.table(
        {name: pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * 32)), 32) for name in names[:2]}
        | {"timestamp": same}
    )
    pq.write_table(table, data, compression="zstd")
    assert data.stat().st_size < 1 << 20
    with pytest.raises(DataFormatError, match="expand to more than"):
        all_episodes(LeRobotSource(path))


def test_a_wrong_length_in_the_list_of_version_2_is_told(tmp_path: Path) -> None:
    path = write_lerobot(tmp_path / "set", "v2.0", (20, 30))
    lines = path / "meta/episodes.jsonl"
    lines.write_text(lines.read_text().replace('"length": 30', '"length": 28'))
    episodes = all_episodes(LeRobotSource(path))
    assert [e.length for e in episodes] == [20, 30]
    assert list(episodes[1].faults) == ["an episode has another number of steps than the metadata lists"]
    assert numbers(episodes[1]) == list(range(20, 50))


def test_videos_longer_or_shorter_than_the_data_are_told(tmp_path: Path) -> None:
    path = write_lerobot(tmp_path / "set", "v2.1", (20, 30))
    files.write_video(path / f"videos/chunk-000/{CAMERA}/episode_000000.mp4", range(25))
    files.write_video(path / f"videos/chunk-000/{CAMERA}/episode_000001.mp4", range(20, 45))
    one, two = all_episodes(LeRobotSource(path))
    assert list(one.faults) == [f"{CAMERA}: the video has more frames than there are steps"]
    assert numbers(one) == list(range(20))
    assert numbers(two, 0, 25) == list(range(20, 45))
    with pytest.raises(
        DataFormatError,
        match=rf"set: episode 1 .*{CAMERA}, step 25: .*_000001.mp4 has no frame at 0.8333 s: it ends at 0.80",
    ):
        numbers(two)


def test_missing_episodes_are_named_and_the_others_read_when_that_is_allowed(tmp_path: Path) -> None:
    path = write_lerobot(tmp_path / "set", "v2.1", (5, 6, 7, 8))
    (path / "data/chunk-000/episode_000001.parquet").unlink()
    (path / f"videos/chunk-000/{CAMERA}/episode_000003.mp4").unlink()
    with pytest.raises(FileNotFoundError, match=r"2 of 4 episodes .*numbers 1, 3\).*episode_000001.parquet"):
        LeRobotSource(path)
    source = LeRobotSource(path, allow_missing=True)
    assert source.missing == (1, 3)
    assert [numbers(e) for e in all_episodes(source)] == [list(range(5)), list(range(11, 18))]
    without = LeRobotSource(path, allow_missing=True, exclude=[CAMERA])
    assert without.missing == (1,)
    assert TOP not in without.fields
    with pytest.raises(ValueError, match="no feature 'camera' to exclude"):
        LeRobotSource(path, exclude=["camera"])


def test_rows_of_another_episode_are_never_taken_for_an_episodes_own(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = write_lerobot(tmp_path / "set", "v3.0", (20, 30, 10), None)
    listed = path / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(listed)
    for name, values in (
        ("dataset_from_index", [0, 21, 50]),
        ("dataset_to_index", [20, 51, 60]),
    ):
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    pq.write_table(table, listed)
    source = LeRobotSource(path)
    (shard,) = source.shards()
    reader = source.episodes(shard)
    assert next(reader).length == 20
    with pytest.raises(DataFormatError, match=r"set: episode 1 .*rows are of several episodes, 1 to 2"):
        next(reader)
    assert next(source.episodes(shard, 2)).length == 10


def test_a_data_file_that_ends_early_is_named(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = write_lerobot(tmp_path / "set", "v3.0", (20, 30), None)
    data = path / "data/chunk-000/file-000.parquet"
    pq.write_table(pq.read_table(data).slice(0, 45), data)
    source = LeRobotSource(path)
    with pytest.raises(DataFormatError, match=r"file-000.parquet has 45 rows; row 49 is wanted"):
        all_episodes(source)


def test_a_damaged_data_file_is_named(tmp_path: Path) -> None:
    path = write_lerobot(tmp_path / "set", "v2.1", (20, 30), None)
    data = path / "data/chunk-000/episode_000001.parquet"
    data.write_bytes(data.read_bytes()[:-300])
    source = LeRobotSource(path)
    reader = source.episodes(source.shards()[0])
    next(reader)
    with pytest.raises(DataFormatError, match=r"episode_000001.parquet is damaged"):
        next(reader)


def feature(dtype: str, shape: list[int] | None = None, **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape if shape is not None else [1], "names": None, **more}


def with_features(
    path: Path, version: str, lengths: tuple[int, ...], features: Mapping[str, Any], extra: Mapping[str, Any]
) -> LeRobotSource:
    said = files.info_json(version, lengths)["features"]
    del said[CAMERA]
    write_lerobot(path, version, lengths, None, info={"features": {**said, **features}}, extra=extra)
    return LeRobotSource(path)


def test_numbers_flags_texts_and_arrays_of_every_shape_are_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(9, 2, 3))
    features = {
        "observation.scalar": feature("float64"),
        "observation.nothing": feature("int32", []),
        "observation.matrix": feature("float64", [2, 3]),
        "observation.flat": feature("float64", [2, 3]),
        "observation.flags": feature("bool", [4]),
        "observation.note": feature("string"),
        "observation.half": feature("float16", [2]),
        "observation.bytes": feature("uint8", [3]),
        "observation.no_column": feature("float32", [5]),
        "action.gripper": feature("float32"),
        "next.success": feature("bool"),
        "odd/name.with..dots": feature("int64"),
        "episode": feature("int64"),
        "structure": feature("struct", [1]),
    }
    extra: dict[str, Any] = {
        "observation.scalar": lambda e, n: np.arange(n) * 0.5,
        "observation.nothing": lambda e, n: np.arange(n, dtype=np.int32),
        "observation.matrix": lambda e, n: matrix[:n].tolist(),
        "observation.flat": lambda e, n: matrix[:n].reshape(n, 6).tolist(),
        "observation.flags": lambda e, n: [[True, False, True, i % 2 == 0] for i in range(n)],
        "observation.note": lambda e, n: [None if i == 1 else f"note {e} {i % 2}" for i in range(n)],
        "observation.half": lambda e, n: list(np.ones((n, 2), np.float16)),
        "observation.bytes": lambda e, n: list(np.full((n, 3), 255, np.uint8)),
        "action.gripper": lambda e, n: np.full(n, 2.0, np.float32),
        "next.success": lambda e, n: np.arange(n) == n - 1,
        "odd/name.with..dots": lambda e, n: np.arange(n),
        "episode": lambda e, n: np.arange(n),
        "structure": lambda e, n: [{"a": 1}] * n,
        "undeclared": lambda e, n: np.arange(n),
    }
    for version in ("v2.1", "v3.0"):
        source = with_features(tmp_path / version, version, (9, 5), features, extra)
        one, two = all_episodes(source)
        steps = {key: np.asarray(value) for key, value in one.steps.items()}
        assert np.array_equal(steps[("observation", "scalar")], np.arange(9)[:, None] * 0.5)
        assert np.array_equal(steps[("observation", "nothing")], np.arange(9))
        assert np.array_equal(steps[("observation", "matrix")], matrix)
        assert np.array_equal(steps[("observation", "flat")], matrix)
        assert steps[("observation", "flags")][:, 3].tolist() == [i % 2 == 0 for i in range(9)]
        assert one.steps[("observation", "note")] == [
            "note 0 0",
            "",
            *[f"note 0 {i % 2}" for i in range(2, 9)],
        ]
        assert two.steps[("observation", "note")] == [
            "note 1 0",
            "",
            *[f"note 1 {i % 2}" for i in range(2, 5)],
        ]
        assert steps[("observation", "half")].dtype == np.float16
        assert steps[("observation", "bytes")].dtype == np.uint8
        assert steps[("action.gripper",)].shape == (9, 1)
        assert steps[("next", "success")][:, 0].tolist() == [False] * 8 + [True]
        assert np.array_equal(steps[("odd/name.with..dots",)][:, 0], np.arange(9))
        assert one.missing == two.missing == {("observation", "no_column")}
        assert source.notes[:2] == (
            "structure is not read: a column of struct<a: int64>",
            "columns that info.json does not declare are not read: undeclared",
        )


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_embedded_images_and_images_in_files_are_read(version: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    depth = rng.integers(0, 1 << 16, (12, 16, 24, 1)).astype(np.uint16)
    path = tmp_path / "set"
    (path / "images").mkdir(parents=True)
    first = {0: 0, 1: 7}

    def colour(episode: int, length: int) -> list[dict[str, Any]]:
        frames = [files.numbered_frame(first[episode] + i) for i in range(length)]
        return [{"bytes": encode_frame(frame, "png"), "path": None} for frame in frames]

    def in_files(episode: int, length: int) -> list[dict[str, Any]]:
        names = [f"images/{episode}_{i}.jpg" for i in range(length)]
        for i, name in enumerate(names):
            (path / name).write_bytes(encode_frame(files.numbered_frame(first[episode] + i), "jpeg"))
        return [{"bytes": None, "path": name} for name in names]

    def depths(episode: int, length: int) -> list[dict[str, Any]]:
        frames = depth[first[episode] : first[episode] + length]
        return [{"bytes": encode_frame(frame, "png"), "path": "x.png"} for frame in frames]

    features = {
        "observation.images.colour": feature("image", [3, SIDE, SIDE], names=["channels", "height", "width"]),
        "observation.images.files": feature("image", [SIDE, SIDE, 3]),
        "observation.images.depth": feature("image", [16, 24]),
    }
    for name in list(features):
        features[name].pop("names") if features[name]["names"] is None else None
    source = with_features(
        path,
        version,
        (7, 5),
        features,
        {
            "observation.images.colour": colour,
            "observation.images.files": in_files,
            "observation.images.depth": depths,
        },
    )
    assert source.fields[("observation", "images", "colour")].shape == (SIDE, SIDE, 3)
    assert source.fields[("observation", "images", "depth")] == FieldSpec(
        "image", (16, 24, 1), np.dtype("uint16")
    )
    assert source.notes == ()
    for number, episode in enumerate(all_episodes(source)):
        wanted = list(range(first[number], first[number] + episode.length))
        for name in ("colour", "files"):
            images: Any = episode.steps[("observation", "images", name)]
            assert shown_numbers(images.decode()) == wanted
            assert len(images.encoded()) == len(images) == episode.length
        found: Any = episode.steps[("observation", "images", "depth")]
        assert np.array_equal(found.decode(), depth[wanted])


def test_frames_in_files_do_not_lead_out_of_the_dataset(tmp_path: Path) -> None:
    (tmp_path / "secret.jpg").write_bytes(encode_frame(files.numbered_frame(1), "jpeg"))
    for number, name in enumerate(("../secret.jpg", str(tmp_path / "secret.jpg"), "a/../../secret.jpg")):
        extra = {"observation.image": lambda e, n, name=name: [{"bytes": None, "path": name}] * n}
        source = with_features(
            tmp_path / f"set{number}", "v2.1", (3,), {"observation.image": feature("image", [8, 8, 3])}, extra
        )
        with pytest.raises(DataFormatError, match="leads out of the dataset"):
            all_episodes(source)


def test_values_of_changing_shape_or_missing_values_are_errors_that_name_them(tmp_path: Path) -> None:
    cases: list[tuple[Any, str]] = [
        ([[1.0], [1.0, 2.0], [3.0]], "observation.x: values have 1 to 2 entries"),
        ([[1.0, 2.0], None, [3.0, 4.0]], "observation.x: 1 values are missing"),
        ([["a"], ["b"], ["c"]], ""),
    ]
    for number, (values, message) in enumerate(cases):
        extra = {"observation.x": lambda e, n, values=values: values}
        source = with_features(
            tmp_path / f"set{number}", "v2.1", (3,), {"observation.x": feature("float32", [1])}, extra
        )
        if message:
            with pytest.raises(DataFormatError, match=f"set{number}: episode 0 .*{message}"):
                all_episodes(source)
        else:
            assert all_episodes(source)[0].steps[("observation", "x")] == ["a", "b", "c"]


def test_nothing_in_a_column_of_whole_numbers_is_rounded(tmp_path: Path) -> None:
    features = {"observation.x": feature("int64"), "observation.y": feature("uint8")}
    extra = {
        "observation.x": lambda e, n: np.array([1.5, 2.0, 3.0]),
        "observation.y": lambda e, n: np.array([1, 2, 300]),
    }
    source = with_features(tmp_path / "set", "v2.1", (3,), features, extra)
    assert source.fields[("observation", "x")].dtype == np.float64
    with pytest.raises(
        DataFormatError, match=r"observation.y: values of int64 do not fit the declared uint8"
    ):
        all_episodes(source)


def test_what_ended_an_episode_is_read_from_the_flags_that_are_there(tmp_path: Path) -> None:
    done = {"next.done": lambda e, n: np.arange(n) == n - 1}
    cut = {"next.truncated": lambda e, n: (np.arange(n) == n - 1) & (e == 0)}
    flags = {"next.truncated": feature("bool")}
    source = with_features(tmp_path / "a", "v2.1", (4, 4), flags, {**done, **cut})
    assert [bool(np.asarray(e.steps[("is_terminal",)])[-1]) for e in all_episodes(source)] == [False, True]
    flags = {"next.terminated": feature("bool")}
    ends = {"next.terminated": lambda e, n: (np.arange(n) == n - 1) & (e == 0)}
    source = with_features(tmp_path / "b", "v2.1", (4, 4), flags, {**done, **ends})
    assert [bool(np.asarray(e.steps[("is_terminal",)])[-1]) for e in all_episodes(source)] == [True, False]


def test_timestamps_that_run_back_are_an_error(tmp_path: Path) -> None:
    path = write_lerobot(
        tmp_path / "set", "v2.1", (5,), extra={"timestamp": lambda e, n: np.array([0, 1, 2, 1, 4]) / FPS}
    )
    with pytest.raises(DataFormatError, match=r"timestamp .* of step 3 does not follow"):
        all_episodes(LeRobotSource(path))


def test_texts_come_from_task_numbers_else_from_the_episode(tmp_path: Path) -> None:
    path = write_lerobot(
        tmp_path / "set", "v2.1", (4,), None, extra={"task_index": lambda e, n: np.array([0, 1, 7, 0])}
    )
    (episode,) = all_episodes(LeRobotSource(path))
    assert episode.steps[("task",)] == [TASKS[0], TASKS[1], "", TASKS[0]]
    assert episode.faults == {"task_index without a task": 1}
    (path / "meta/tasks.jsonl").unlink()
    (path / "meta/episodes.jsonl").write_text('{"episode_index": 0, "length": 4, "tasks": ["stack"]}\n')
    (episode,) = all_episodes(LeRobotSource(path))
    assert episode.steps[("task",)] == ["stack"] * 4


def test_names_are_split_at_dots_unless_a_feature_stands_before_one() -> None:
    def keys(*names: str, dtype: str = "float32") -> list[Key]:
        return list(step_keys([Feature(name, dtype, (1,)) for name in names]).values())

    assert keys("observation.images.top", "action") == [("observation", "images", "top"), ("action",)]
    assert keys("action", "action.gripper.left") == [("action",), ("action.gripper", "left")]
    assert keys("observation.state", "observation.state.a.b") == [
        ("observation", "state"),
        ("observation", "state.a", "b"),
    ]
    assert keys("action", "observation.a/b") == [("action",), ("observation", "a/b")]
    assert keys("action", ".x", "y.", "a..b") == [("action",), (".x",), ("y.",), ("a..b",)]
    assert keys("reward", "next.reward", "action") == [("source_reward",), ("reward",), ("action",)]
    assert keys("image", "wrist_image", dtype="image") == [
        ("observation", "image"),
        ("observation", "wrist_image"),
    ]
    assert keys("state", "actions", "timestamp") == [("observation", "state"), ("action",), ("timestamp",)]


def test_other_versions_are_refused_by_name(tmp_path: Path) -> None:
    path = write_lerobot(tmp_path / "set", "v2.1", (4,), None)
    for version in ("v1.6", "v4.0", "3", None, 2, "v2.1; rm"):
        edit_json(path / "meta/info.json", codebase_version=version)
        if version == "3":
            continue
        with pytest.raises(UnsupportedFeatureError, match=r"versions 2.x and 3.x are read"):
            LeRobotSource(path)
    with pytest.raises(FileNotFoundError, match="no LeRobot dataset"):
        LeRobotSource(tmp_path)


def test_templates_are_filled_in_and_lead_nowhere_else() -> None:
    values: dict[str, int | str] = {"episode_index": 7, "video_key": "observation.images.a"}
    assert (
        file_name("d/{episode_index:06d}/{video_key}.mp4", values, "x") == "d/000007/observation.images.a.mp4"
    )
    assert file_name("d/{episode_index}", values, "x") == "d/7"
    for template in (
        "/etc/passwd",
        "../{episode_index}",
        "a/../../b",
        "{video_key.__class__}",
        "{video_key:03d}",
        "{unknown}",
        "{episode_index:999d}",
        "{episode_index!r}",
        "http://host/{episode_index}",
        "a\\b",
        "a//b",
        "",
        "{",
    ):
        with pytest.raises(DataFormatError):
            file_name(template, values, "x")
    with pytest.raises(DataFormatError):
        file_name("{video_key}", {"video_key": "../../x"}, "x")


def test_no_code_in_a_parquet_file_is_run(tmp_path: Path) -> None:
    """A column may name a Python class, pickled, as its type."""
    import pyarrow.parquet as pq

    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    path = write_lerobot(tmp_path / "set", "v2.1", (4,), None)
    data = path / "data/chunk-000/episode_000000.parquet"
    table = pq.read_table(data)
    field = table.schema.field("action").with_metadata(
        {
            b"ARROW:extension:name": b"arrow.py_extension_type",
            b"ARROW:extension:metadata": pickle.dumps(Bomb()),
        }
    )
    at = table.column_names.index("action")
    pq.write_table(table.cast(table.schema.set(at, field)), data)
    source = LeRobotSource(path)
    with contextlib.suppress(DataFormatError):
        all_episodes(source)
    assert not (tmp_path / "ran").exists()


def test_damaged_metadata_and_tables_give_an_error_of_ours_or_a_right_result() -> None:
    """The script checks what is read, and the memory that reading takes; a crash would end its process."""
    script = Path(__file__).with_name("fuzz_lerobot.py")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, str(script), "250"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "read" in done.stdout
    assert "DataFormatError" in done.stdout
