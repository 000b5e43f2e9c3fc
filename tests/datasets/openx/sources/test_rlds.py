from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reference import tfrecord as twin
from replaybank.datasets.openx.sources.base import Episode, EpisodeSource, FieldSpec, Images
from replaybank.datasets.openx.sources.example import DTYPE_CODES, serialize_example
from replaybank.datasets.openx.sources.rlds import RLDSSource, is_rlds
from replaybank.datasets.openx.sources.tfrecord import write_record
from replaybank.errors import CorruptRecordError, DataFormatError, UnsupportedFeatureError
from shared_data import bridge_path


def episodes_of(source: EpisodeSource) -> list[Episode]:
    return [episode for shard in source.shards() for episode in source.episodes(shard)]


def tensor(shape: list[int], dtype: str, encoding: str = "none") -> dict[str, Any]:
    return {"tensor": {"shape": {"dimensions": list(map(str, shape))}, "dtype": dtype, "encoding": encoding}}


def write_dataset(
    folder: Path,
    steps: Mapping[str, Any],
    shards: list[list[Mapping[str, Any]]],
    *,
    metadata: Mapping[str, Any] | None = None,
    lengths: list[int] | None = None,
    template: str | None = None,
    info: Mapping[str, Any] | None = None,
) -> Path:
    """A dataset from raw Example features, with none of the library's own rules in between."""
    folder.mkdir(parents=True, exist_ok=True)
    declared = {"steps": {"sequence": {"feature": {"featuresDict": {"features": steps}}}}, **(metadata or {})}
    (folder / "features.json").write_text(json.dumps({"featuresDict": {"features": declared}}))
    split: dict[str, Any] = {"name": "train", "shardLengths": [str(n) for n in lengths or map(len, shards)]}
    if template is not None:
        split["filepathTemplate"] = template
    content = {"name": "toy", "version": "0.1.0", "splits": [split], **(info or {})}
    (folder / "dataset_info.json").write_text(json.dumps(content))
    for number, episodes in enumerate(shards):
        name = (template or "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}").format(
            DATASET="toy",
            SPLIT="train",
            FILEFORMAT="tfrecord",
            SHARD_INDEX=f"{number:05d}",
            NUM_SHARDS=f"{len(shards):05d}",
            SHARD_X_OF_Y=f"{number:05d}-of-{len(shards):05d}",
        )
        (folder / name).write_bytes(b"".join(write_record(serialize_example(e)) for e in episodes))
    return folder


def floats(*values: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(values, dtype=np.float32)


REWARD = {"reward": tensor([], "float32")}


def rewards(*lengths: int) -> list[Mapping[str, Any]]:
    return [{"steps/reward": np.full(length, i, dtype=np.float32)} for i, length in enumerate(lengths)]


# ----------------------------------------------------------------------------------------------- real files


def test_every_field_of_the_real_file_is_what_the_plain_reader_finds() -> None:
    source = RLDSSource(bridge_path())
    assert (source.name, source.version, source.splits) == (
        "bridge_dataset",
        "1.0.0",
        {"train": 25, "val": 25},
    )
    data = (bridge_path() / "bridge_dataset-train.tfrecord-00000-of-00001").read_bytes()
    expected = [twin.parse_example(record.payload) for record in twin.read_file(data)]
    found = episodes_of(source)
    assert len(found) == len(expected) == 25
    assert sum(episode.length for episode in found) == 250
    for episode, features in zip(found, expected, strict=True):
        assert episode.missing == frozenset()
        assert episode.steps.keys() == source.fields.keys()
        names = set()
        for key, spec in source.fields.items():
            name = "/".join(("steps", *key))
            names.add(name)
            feature = features[name]
            assert feature is not None
            values: Any = feature[1]
            column: Any = episode.steps[key]
            assert len(column) == episode.length == 10
            if spec.kind == "text":
                assert column == [text.decode() for text in values]
            elif spec.kind == "image":
                assert column.encoded() == values
            else:
                assert column.dtype == spec.dtype
                assert column.shape == (10, *spec.shape)
                assert column.reshape(-1).tolist() == values
        for key, spec in source.metadata_fields.items():
            name = "/".join(key)
            names.add(name)
            feature = features[name]
            assert feature is not None
            (value,) = feature[1]
            assert episode.metadata[key] == (value.decode() if isinstance(value, bytes) else value)
            if spec.dtype is not None:
                assert episode.metadata[key].dtype == spec.dtype
        assert names == features.keys()


def test_every_camera_of_the_real_file_is_decoded() -> None:
    source = RLDSSource(bridge_path())
    first = episodes_of(source)[0]
    for camera in range(4):
        frames = first.steps["observation", f"image_{camera}"]
        assert not isinstance(frames, (list, np.ndarray))
        decoded = frames.decode()
        assert decoded.shape == (10, 64, 64, 3)
        assert decoded.dtype == np.uint8
        assert (decoded.max() > 100) == (camera < 3)  # the fourth is black


def test_a_split_that_is_declared_without_its_files_is_named() -> None:
    with pytest.raises(
        FileNotFoundError, match=r"1 of 1 shards of split 'val' are missing: bridge_dataset-val\.tf"
    ):
        RLDSSource(bridge_path(), "val")
    with pytest.raises(FileNotFoundError, match="none is there"):
        RLDSSource(bridge_path(), "val", allow_missing_shards=True)


def test_an_unknown_split_is_answered_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"has no split 'test'; it has \['train', 'val'\]"):
        RLDSSource(bridge_path(), "test")


def test_the_folder_of_versions_is_taken_for_its_one_version() -> None:
    assert is_rlds(bridge_path())
    assert is_rlds(bridge_path().parent)
    assert not is_rlds(bridge_path().parent.parent.parent)
    assert RLDSSource(bridge_path().parent).path == str(bridge_path())


def test_a_url_reads_as_the_folder_does() -> None:
    url = f"file://{bridge_path()}"
    assert is_rlds(url)
    source = RLDSSource(url)
    assert source.shards()[0].path.startswith("file://")
    episodes = source.episodes(source.shards()[0], start=24)
    assert [episode.metadata for episode in episodes] == [episodes_of(RLDSSource(bridge_path()))[24].metadata]


# ------------------------------------------------------------------------------------------- shards, records


def test_reading_starts_at_the_record_asked_for(tmp_path: Path) -> None:
    source = RLDSSource(write_dataset(tmp_path, REWARD, [rewards(1, 2, 3)]))
    (shard,) = source.shards()
    for start in range(4):
        found = list(source.episodes(shard, start))
        assert [episode.length for episode in found] == [1, 2, 3][start:]
        assert [episode.where for episode in found] == [f"{shard.path}, record {i}" for i in range(start, 3)]
    with pytest.raises(IndexError, match="has 3 records, cannot start at record 4"):
        list(source.episodes(shard, 4))


@pytest.mark.parametrize(
    "template",
    [
        None,
        "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "{SPLIT}_{SHARD_INDEX}_{NUM_SHARDS}_{DATASET}.{FILEFORMAT}",
        "data.{SHARD_INDEX}",
    ],
)
def test_every_placeholder_of_a_file_name_is_understood(tmp_path: Path, template: str | None) -> None:
    source = RLDSSource(write_dataset(tmp_path, REWARD, [rewards(1), rewards(2, 3)], template=template))
    assert [shard.episodes for shard in source.shards()] == [1, 2]
    assert [episode.length for episode in episodes_of(source)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{DATASET}{ROOT}", r"has unknown \['ROOT'\]; known are \['DATASET'"),
        ("{DATASET.__class__}", r"has unknown \['DATASET.__class__'\]"),
        ("../{DATASET}", "which is not a file of the folder"),
    ],
)
def test_a_template_that_leads_elsewhere_is_refused(tmp_path: Path, template: str, words: str) -> None:
    write_dataset(tmp_path, REWARD, [])
    split = {"name": "train", "shardLengths": ["1"], "filepathTemplate": template}
    (tmp_path / "dataset_info.json").write_text(json.dumps({"name": "toy", "splits": [split]}))
    with pytest.raises(DataFormatError, match=words):
        RLDSSource(tmp_path)


def test_missing_shards_are_named_and_left_out_only_when_allowed(tmp_path: Path) -> None:
    write_dataset(tmp_path, REWARD, [rewards(i) for i in range(1, 13)])
    for number in (2, 5):
        (tmp_path / f"toy-train.tfrecord-{number:05d}-of-00012").unlink()
    with pytest.raises(FileNotFoundError) as error:
        RLDSSource(tmp_path)
    assert "2 of 12 shards of split 'train' are missing: toy-train.tfrecord-00002-of-00012, " in str(
        error.value
    )
    assert "toy-train.tfrecord-00005-of-00012; pass allow_missing=True (--allow-missing" in str(error.value)
    source = RLDSSource(tmp_path, allow_missing_shards=True)
    assert [shard.number for shard in source.shards()] == [0, 1, 3, 4, 6, 7, 8, 9, 10, 11]
    assert [episode.length for episode in episodes_of(source)] == [1, 2, 4, 5, 7, 8, 9, 10, 11, 12]


def test_shards_of_another_number_than_declared_are_mentioned(tmp_path: Path) -> None:
    write_dataset(tmp_path, REWARD, [rewards(1)], lengths=[1, 1])
    with pytest.raises(
        FileNotFoundError, match=r"none is there; other files .*toy-train.tfrecord-00000-of-00001"
    ):
        RLDSSource(tmp_path)


def test_without_declared_lengths_the_files_tell_how_many_shards_there_are(tmp_path: Path) -> None:
    write_dataset(
        tmp_path, REWARD, [rewards(1), rewards(2), rewards(3)], info={"splits": [{"name": "train"}]}
    )
    source = RLDSSource(tmp_path)
    assert [shard.episodes for shard in source.shards()] == [None] * 3
    assert [episode.length for episode in episodes_of(source)] == [1, 2, 3]
    shutil.copy(
        tmp_path / "toy-train.tfrecord-00000-of-00003", tmp_path / "toy-train.tfrecord-00000-of-00004"
    )
    with pytest.raises(DataFormatError, match=r"declares no shardLengths.*numbers found: \[3, 4\]"):
        RLDSSource(tmp_path)


@pytest.mark.parametrize("declared", [1, 3])
def test_a_shard_of_another_number_of_episodes_than_declared_is_an_error_at_its_end(
    tmp_path: Path, declared: int
) -> None:
    source = RLDSSource(write_dataset(tmp_path, REWARD, [rewards(4, 5)], lengths=[declared]))
    for start in (0, 1, 2):
        found: list[int] = []
        with pytest.raises(
            DataFormatError, match=f"ends after 2 episodes, dataset_info.json declares {declared}"
        ):
            found.extend(episode.length for episode in source.episodes(source.shards()[0], start))
        reading = source.episodes(source.shards()[0], start)
        assert [next(reading).length for _ in range(2 - start)] == [4, 5][start:]


def test_a_corrupt_record_is_named_and_the_next_can_be_read(tmp_path: Path) -> None:
    source = RLDSSource(write_dataset(tmp_path, REWARD, [rewards(1, 2, 3)]))
    (shard,) = source.shards()
    path = Path(shard.path)
    data = bytearray(path.read_bytes())
    size = len(write_record(serialize_example(rewards(1)[0])))
    data[size + 20] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match="checksum of its payload") as error:
        list(source.episodes(shard))
    assert (error.value.path, error.value.record, error.value.offset) == (shard.path, 1, size)
    assert [episode.length for episode in source.episodes(shard, error.value.record + 1)] == [3]


# ------------------------------------------------------------------------------------------------- fields


def test_no_record_is_held_while_the_next_one_is_read(tmp_path: Path) -> None:
    length, size = 2, 4 << 20
    image = {"image": {"shape": {"dimensions": ["-1", "-1", "3"]}, "dtype": "uint8"}}
    episodes: list[Mapping[str, Any]] = [{"steps/x": [bytes([n]) * size] * length} for n in range(4)]
    source = RLDSSource(write_dataset(tmp_path, {"x": image}, [episodes]))
    tracemalloc.start()
    lengths = list(map(lambda episode: episode.length, source.episodes(source.shards()[0])))  # noqa: C417
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert lengths == [length] * 4
    assert peak < 1.5 * length * size  # of the record that is being read, and nothing of the one before


def one(folder: Path, steps: Mapping[str, Any], episode: Mapping[str, Any], **more: Any) -> Episode:
    (found,) = episodes_of(RLDSSource(write_dataset(folder, steps, [[episode]], **more)))
    return found


@pytest.mark.parametrize(
    "dtype",
    [str(dtype) for dtype in DTYPE_CODES],
)
def test_numbers_come_in_their_declared_dtype(tmp_path: Path, dtype: str) -> None:
    given = np.array([[0, 1], [1, 0], [1, 1]], dtype=dtype)
    if dtype != "bool":
        given *= 100
    found = one(tmp_path, {"x": tensor([2], dtype)}, {"steps/x": given}).steps["x",]
    assert isinstance(found, np.ndarray)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, given)
    found[:] = 0  # the caller's to change


def test_a_number_beyond_its_dtype_is_an_error_not_a_wrap(tmp_path: Path) -> None:
    with pytest.raises(
        DataFormatError, match=r"toy: .*record 0: field 'x': number 2 is beyond the range of uint8"
    ):
        one(tmp_path, {"x": tensor([], "uint8")}, {"steps/x": np.array([0, 255, 256])})


def test_negative_numbers_and_names_with_slashes(tmp_path: Path) -> None:
    steps = {"observation": {"featuresDict": {"features": {"present/xyz": tensor([2], "int32")}}}}
    given = np.array([[-1, 2], [-(2**31), 2**31 - 1]])
    found = one(tmp_path, steps, {"steps/observation/present/xyz": given})
    np.testing.assert_array_equal(np.asarray(found.steps["observation", "present/xyz"]), given)


def test_text_images_labels_and_encoded_arrays(tmp_path: Path) -> None:
    array = np.arange(12, dtype="<i2").reshape(2, 3, 2)
    flags = np.array([[True, False], [False, True]])
    episode = {
        "steps/note": ["grüße".encode(), b"\xff!"],
        "steps/label": np.array([3, 1]),
        "steps/zlib": [zlib.compress(value.tobytes()) for value in array],
        "steps/bytes": [value.tobytes() for value in array],
        "steps/flags": [b"\x01\x00", b"\x00\x07"],
        "steps/camera": [b"\xff\xd8\xff1", b"\x89PNG2"],
    }
    steps = {
        "note": {"text": {}},
        "label": {"classLabel": {"numClasses": "4"}},
        "zlib": tensor([3, 2], "int16", "zlib"),
        "bytes": tensor([3, 2], "int16", "bytes"),
        "flags": tensor([2], "bool", "bytes"),
        "camera": {"image": {"shape": {"dimensions": ["4", "4", "3"]}, "dtype": "uint8"}},
    }
    found = one(tmp_path, steps, episode).steps
    assert found["note",] == ["grüße", "\\xff!"]
    np.testing.assert_array_equal(np.asarray(found["label",]), [3, 1])
    for name in ("zlib", "bytes"):
        column = found[name,]
        assert isinstance(column, np.ndarray)
        assert column.dtype == np.int16
        np.testing.assert_array_equal(column, array)
    np.testing.assert_array_equal(np.asarray(found["flags",]), flags)
    camera: Any = found["camera",]
    images: Images = camera
    assert images.encoded() == episode["steps/camera"]


@pytest.mark.parametrize(
    ("encoding", "value", "words"),
    [
        ("bytes", b"123", "value 1: 3 bytes, but int16 of shape .* takes 4"),
        ("zlib", b"123", "value 1: Error -3"),
        ("zlib", zlib.compress(b"1" * 10**7), "value 1: 5 bytes, but int16 .* takes 4"),
        ("zlib", zlib.compress(b"1234")[:-6], "value 1: [0-3] bytes"),
    ],
)
def test_an_encoded_array_of_another_size_is_an_error(
    tmp_path: Path, encoding: str, value: bytes, words: str
) -> None:
    good = b"1234" if encoding == "bytes" else zlib.compress(b"1234")
    with pytest.raises(DataFormatError, match=f"field 'x', {words}"):
        one(tmp_path, {"x": tensor([2], "int16", encoding)}, {"steps/x": [good, value]})


def test_unknown_dimensions_come_from_the_stored_shape(tmp_path: Path) -> None:
    given = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    episode = {"steps/x/shape": np.array([2, 3, 2]), "steps/x/value": given, "steps/reward": floats(0, 1)}
    found = one(tmp_path, {"x": tensor([-1, 2], "float32"), **REWARD}, episode)
    np.testing.assert_array_equal(np.asarray(found.steps["x",]), given)
    for shape in ([2, 3], [2, 2, 3], [-2, -3, 2], [2, 4, 2], [2**62, 2**62, 2]):
        broken = {**episode, "steps/x/shape": np.array(shape)}
        with pytest.raises(DataFormatError, match="field 'x' has 12 numbers and shape"):
            one(tmp_path, {"x": tensor([-1, 2], "float32"), **REWARD}, broken)


def test_values_without_numbers_take_the_length_of_the_others(tmp_path: Path) -> None:
    found = one(tmp_path, {"x": tensor([0, 3], "int8"), **REWARD}, {"steps/reward": floats(0, 1)})
    assert np.asarray(found.steps["x",]).shape == (2, 0, 3)
    assert found.missing == frozenset()


@pytest.mark.parametrize("absent", [{}, {"steps/x": None}, {"steps/x": floats()}, {"steps/x": []}])
def test_a_declared_field_that_an_episode_lacks_is_reported_missing(
    tmp_path: Path, absent: Mapping[str, Any]
) -> None:
    steps = {"x": tensor([2], "float32"), "observation": {"featuresDict": {"features": {"t": {"text": {}}}}}}
    found = one(tmp_path, {**steps, **REWARD}, {"steps/reward": floats(1, 2, 3), **absent})
    assert found.missing == {("x",), ("observation", "t")}
    assert found.steps.keys() == {("reward",)}
    assert found.length == 3


def test_fields_that_the_schema_does_not_have_are_passed_over(tmp_path: Path) -> None:
    found = one(tmp_path, REWARD, {"steps/reward": floats(1), "steps/other": floats(1, 2), "z": [b""]})
    assert found.steps.keys() == {("reward",)}


@pytest.mark.parametrize(
    ("episode", "words"),
    [
        ({"steps/reward": floats(1, 2), "steps/t": [b"a"]}, "field 't' has 1 steps, field 'reward' has 2"),
        (
            {"steps/reward": floats(1), "steps/x": floats(1, 2, 3, 4)},
            "field 'x' has 2 steps, .*'reward' has 1",
        ),
        (
            {"steps/x": floats(1, 2, 3)},
            r"field 'x' has 3 numbers, which are not whole values of shape \(2,\)",
        ),
        ({"steps/x": np.array([1, 2])}, "field 'x' is declared as float32 and stored as ints"),
        ({"steps/t": floats(1)}, "field 't' is declared as text and stored as floats"),
        ({"steps/reward": [b"1"]}, "field 'reward' is declared as float32 and stored as byte strings"),
        (
            {"steps/reward": floats(1), "steps/none": [b"1"]},
            "field 'none' is declared as float32 and stored as byte strings",
        ),
        ({}, "the episode has no steps"),
        ({"steps/reward": floats()}, "the episode has no steps"),
    ],
)
def test_an_episode_whose_fields_do_not_agree_is_an_error_that_names_it(
    tmp_path: Path, episode: Mapping[str, Any], words: str
) -> None:
    steps = {**REWARD, "x": tensor([2], "float32"), "none": tensor([0], "float32"), "t": {"text": {}}}
    shard = tmp_path / "toy-train.tfrecord-00000-of-00001"
    with pytest.raises(DataFormatError, match=f"^toy: {shard}, record 0: {words}"):
        one(tmp_path, steps, episode)


def test_a_payload_that_is_no_example_is_named(tmp_path: Path) -> None:
    write_dataset(tmp_path, REWARD, [rewards(1)])
    (tmp_path / "toy-train.tfrecord-00000-of-00001").write_bytes(write_record(b"\x0a\xff"))
    with pytest.raises(DataFormatError, match=r"toy: .*, record 0: the payload is not a tf\.train\.Example"):
        episodes_of(RLDSSource(tmp_path))


def test_values_of_the_whole_episode_are_kept_apart(tmp_path: Path) -> None:
    metadata = {
        "meta": {
            "featuresDict": {
                "features": {
                    "id": tensor([], "int32"),
                    "path": {"text": {}},
                    "box": tensor([2, 2], "float32"),
                    "free": tensor([-1, 2], "int8"),
                    "gone": tensor([3], "int8"),
                    "thumb": {"image": {"dtype": "uint8"}},
                }
            }
        },
        "list": {"sequence": {"feature": tensor([], "int64")}},
        "void": {"sequence": {"feature": tensor([], "int64")}},
        "two": tensor([-1, -1], "int8"),
    }
    episode = {
        "steps/reward": floats(1),
        "meta/id": np.array([-7]),
        "meta/path": [b"/data/x"],
        "meta/box": np.eye(2, dtype=np.float32),
        "meta/free": np.arange(6),
        "meta/thumb": [b"\x89PNG"],
        "list": np.array([4, 5]),
        "void": np.array([], dtype=np.int64),
        "two/shape": np.array([1, 2]),
        "two/value": np.array([8, 9]),
    }
    found = dict(one(tmp_path, REWARD, episode, metadata=metadata).metadata)
    assert found.pop(("meta", "thumb")).encoded() == [b"\x89PNG"]
    assert {key: value if isinstance(value, str) else value.tolist() for key, value in found.items()} == {
        ("meta", "id"): -7,
        ("meta", "path"): "/data/x",
        ("meta", "box"): [[1.0, 0.0], [0.0, 1.0]],
        ("meta", "free"): [[0, 1], [2, 3], [4, 5]],
        ("list",): [4, 5],
        ("void",): [],
        ("two",): [[8, 9]],
    }
    for name, values, words in (
        ("meta/id", np.array([1, 2]), r"field 'meta/id' has 2 numbers, declared shape \(\)"),
        ("meta/path", [b"a", b"b"], "field 'meta/path' of the episode has 2 values, not 1"),
        ("meta/free", np.arange(5), r"field 'meta/free' has 5 numbers, declared shape \(-1, 2\)"),
    ):
        with pytest.raises(DataFormatError, match=words):
            one(tmp_path, REWARD, {**episode, name: values}, metadata=metadata)


# -------------------------------------------------------------------------------------------- the two files


def test_where_there_is_no_dataset_that_is_said(tmp_path: Path) -> None:
    assert not is_rlds(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there is no dataset_info\.json"):
        RLDSSource(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there is no dataset_info\.json"):
        RLDSSource(tmp_path / "nowhere")
    write_dataset(tmp_path, REWARD, [rewards(1)])
    (tmp_path / "features.json").unlink()
    assert not is_rlds(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there is no features\.json"):
        RLDSSource(tmp_path)


def test_of_several_versions_one_must_be_chosen(tmp_path: Path) -> None:
    for version in ("0.1.0", "1.0.0"):
        write_dataset(tmp_path / version, REWARD, [rewards(1)])
    assert is_rlds(tmp_path)
    with pytest.raises(
        DataFormatError, match=r"holds several datasets, give the folder of one: 0\.1\.0, 1\.0\.0"
    ):
        RLDSSource(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "must be an object with a 'name'"),
        ('{"name": "toy", "splits": 1.5}', "'splits' must be a list"),
        ('{"name": "toy", "splits": {}}', "'splits' must be a list"),
        ('{"name": "toy", "splits": [{"name": "train", "shardLengths": [Infinity]}]}', "must be counts"),
        ('{"name": "toy", "splits": ["train"]}', "a split must be an object with a 'name'"),
        ('{"name": "toy", "splits": [{"name": "train", "shardLengths": ["x"]}]}', "must be counts"),
        ('{"name": "toy", "splits": [{"name": "train", "shardLengths": ["-1"]}]}', "must be counts"),
        (
            '{"name": "../toy", "splits": [{"name": "train", "shardLengths": ["1"]}]}',
            "which is not a file of the folder",
        ),
    ],
)
def test_a_dataset_info_that_is_none_is_refused(tmp_path: Path, text: str, words: str) -> None:
    write_dataset(tmp_path, REWARD, [])
    (tmp_path / "dataset_info.json").write_text(text)
    with pytest.raises(DataFormatError, match=words):
        RLDSSource(tmp_path)


def test_files_that_are_not_tfrecords_are_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path, REWARD, [], info={"fileFormat": "array_record"})
    with pytest.raises(
        UnsupportedFeatureError, match="files of format 'array_record'; only 'tfrecord' is read"
    ):
        RLDSSource(tmp_path)


def test_a_source_survives_pickling(tmp_path: Path) -> None:
    source = RLDSSource(write_dataset(tmp_path, REWARD, [rewards(1), rewards(2)]))
    again = pickle.loads(pickle.dumps(source))
    assert repr(again) == repr(source) == f"RLDSSource({str(tmp_path)!r}, split='train')"
    assert [episode.length for episode in episodes_of(again)] == [1, 2]
    assert source.fields == {("reward",): FieldSpec("tensor", (), np.dtype("float32"))}


def test_what_is_only_needed_for_datasets_is_imported_when_it_is_needed() -> None:
    code = (
        "import sys, replaybank, replaybank.datasets.openx.sources.rlds_writer, "
        "replaybank.datasets.openx.sources.rlds\n"
        "print([m for m in ('fsspec', 'google_crc32c', 'simplejpeg', 'PIL', 'av') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
