from __future__ import annotations

import errno
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from reference import tfrecord as twin
from replaybank.datasets.openx.sources.base import Episode, FieldSpec, Key
from replaybank.datasets.openx.sources.rlds import RLDSSource, is_rlds
from replaybank.datasets.openx.sources.rlds_writer import RLDSWriter
from replaybank.errors import DataFormatError
from shared_data import bridge_path

REWARD: dict[Key, FieldSpec] = {("reward",): FieldSpec("tensor", (), np.dtype("float32"))}
NOTE = FieldSpec("text", (), None)


def numbers(shape: tuple[int, ...], dtype: str) -> FieldSpec:
    return FieldSpec("tensor", shape, np.dtype(dtype))


def episodes_of(path: Path | str, split: str = "train") -> list[Episode]:
    source = RLDSSource(path, split)
    return [episode for shard in source.shards() for episode in source.episodes(shard)]


def rewards(length: int) -> dict[Key, Any]:
    return {("reward",): np.arange(length, dtype=np.float32)}


def same_column(found: Any, given: Any) -> bool:
    if isinstance(given, list):
        return bool((found if isinstance(found, list) else found.encoded()) == given)
    return bool(
        found.dtype == given.dtype and np.array_equal(found, given, equal_nan=given.dtype.kind == "f")
    )


def test_the_real_dataset_written_again_reads_the_same_and_has_the_same_payload_lengths(
    tmp_path: Path,
) -> None:
    source = RLDSSource(bridge_path())
    given = episodes_of(bridge_path())
    with RLDSWriter(
        tmp_path,
        source.name,
        fields=source.fields,
        metadata_fields=source.metadata_fields,
        description=source.description,
    ) as writer:
        for episode in given:
            steps = {
                key: column if isinstance(column, (list, np.ndarray)) else column.encoded()
                for key, column in episode.steps.items()
            }
            writer.write(steps, episode.metadata)
    again = RLDSSource(tmp_path)
    assert (again.name, again.version, again.description) == (source.name, source.version, source.description)
    assert again.fields == source.fields
    assert again.metadata_fields == source.metadata_fields
    name = "bridge_dataset-train.tfrecord-00000-of-00001"
    # Feature by feature the real file: only the order of names within a payload is free.
    for real, ours in zip(
        twin.read_file((bridge_path() / name).read_bytes()),
        twin.read_file((tmp_path / name).read_bytes()),
        strict=True,
    ):
        assert (ours.offset, len(ours.payload)) == (real.offset, len(real.payload))
        assert twin.parse_example(ours.payload) == twin.parse_example(real.payload)
    real_info = json.loads((bridge_path() / "dataset_info.json").read_text())
    info = json.loads((tmp_path / "dataset_info.json").read_text())
    assert info["splits"] == real_info["splits"][:1]  # template, numBytes and shardLengths as strings
    assert info["fileFormat"] == real_info["fileFormat"]


def undescribed(node: Any) -> Any:
    """A feature without its prose."""
    if isinstance(node, dict):
        return {name: undescribed(value) for name, value in node.items() if name != "description"}
    return node


def test_the_real_features_file_is_written_again_but_for_its_prose(tmp_path: Path) -> None:
    source = RLDSSource(bridge_path())
    writer = RLDSWriter(tmp_path, "x", fields=source.fields, metadata_fields=source.metadata_fields)
    writer.close()
    real = json.loads((bridge_path() / "features.json").read_text())
    assert json.loads((tmp_path / "features.json").read_text()) == undescribed(real)


DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
]


@st.composite
def datasets(draw: st.DrawFn) -> tuple[dict[Key, FieldSpec], list[dict[Key, Any]]]:
    parts = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=4)
    names = draw(st.lists(parts, min_size=1, max_size=4, unique=True))
    fields: dict[Key, FieldSpec] = {}
    for number, name in enumerate(names):
        key: Key = (name,) if number % 2 else (name, draw(parts))
        if draw(st.booleans()):
            shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, -1]), max_size=2)))
            fields[key] = numbers(shape, draw(st.sampled_from(DTYPES)))
        else:
            fields[key] = NOTE
    episodes = []
    for _ in range(draw(st.integers(0, 4))):
        length = draw(st.integers(1, 5))
        steps: dict[Key, Any] = {}
        for key, spec in fields.items():
            if spec.dtype is None:
                steps[key] = draw(st.lists(st.text(max_size=5), min_size=length, max_size=length))
            else:
                shape = (length, *(draw(st.integers(1, 3)) if n < 0 else n for n in spec.shape))
                steps[key] = draw(arrays.arrays(spec.dtype, shape))
        episodes.append(steps)
    return fields, episodes


@given(datasets(), st.integers(1, 3))
def test_what_was_written_is_read_and_the_plain_reader_agrees(
    dataset: tuple[dict[Key, FieldSpec], list[dict[Key, Any]]], shards: int
) -> None:
    fields, episodes = dataset
    with tempfile.TemporaryDirectory() as folder:
        with RLDSWriter(folder, "toy", fields=fields, shards=shards) as writer:
            for steps in episodes:
                writer.write(steps)
        assert writer.episodes == len(episodes)
        source = RLDSSource(folder)
        assert source.fields == fields
        for shard in source.shards():
            given = episodes[shard.number :: shards]
            found = list(source.episodes(shard))
            records = list(twin.read_file(Path(shard.path).read_bytes()))
            assert shard.episodes == len(given) == len(found) == len(records)
            for steps, episode, record in zip(given, found, records, strict=True):
                assert episode.steps.keys() == steps.keys()
                assert all(same_column(episode.steps[key], steps[key]) for key in steps)
                assert twin.parse_example(record.payload)


def test_frames_are_encoded_as_asked_and_depth_always_without_loss(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    rgb = np.broadcast_to(np.arange(0, 240, 10, dtype=np.uint8)[:, None], (2, 16, 24, 3)).copy()
    depth = draw.integers(0, 2**16, (2, 4, 4, 1), dtype=np.uint16)
    metres = draw.normal(size=(2, 4, 4, 1)).astype(np.float32)
    fields: dict[Key, FieldSpec] = {
        ("rgb",): FieldSpec("image", (16, 24, 3), np.dtype("uint8")),
        ("depth",): FieldSpec("image", (4, 4, 1), np.dtype("uint16")),
        ("metres",): FieldSpec("image", (4, 4, 1), np.dtype("float32")),
    }
    for kind, start in (("jpeg", b"\xff\xd8\xff"), ("png", b"\x89PNG")):
        folder = tmp_path / kind
        with RLDSWriter(folder, "toy", fields=fields, image_format=kind) as writer:  # type: ignore[arg-type]
            writer.write({("rgb",): rgb, ("depth",): depth, ("metres",): metres})
        steps: Mapping[Key, Any] = episodes_of(folder)[0].steps
        assert all(frame.startswith(start) for frame in steps["rgb",].encoded())
        assert np.abs(steps["rgb",].decode().astype(int) - rgb).max() <= (0 if kind == "png" else 8)
        np.testing.assert_array_equal(steps["depth",].decode(), depth)
        np.testing.assert_array_equal(steps["metres",].decode(), metres)


def test_values_of_an_episode_are_written_beside_its_steps(tmp_path: Path) -> None:
    metadata: dict[Key, FieldSpec] = {
        ("meta", "id"): numbers((), "int32"),
        ("meta", "path"): NOTE,
        ("box",): numbers((2,), "float64"),
        ("free",): numbers((-1,), "int64"),
        ("grid",): numbers((-1, -1), "int64"),
        ("gone",): numbers((), "int64"),
    }
    with RLDSWriter(tmp_path, "toy", fields=REWARD, metadata_fields=metadata) as writer:
        values = {
            ("meta", "id"): 7,
            ("meta", "path"): "/x",
            ("box",): [0.5, 2],
            ("free",): [1, -2, 3],
            ("grid",): [[1], [2]],
            ("gone",): None,
        }
        writer.write(rewards(2), values)
    found = episodes_of(tmp_path)[0].metadata
    assert {key: np.asarray(value).tolist() for key, value in found.items()} == {
        key: value for key, value in values.items() if value is not None
    }


def test_a_field_given_as_none_is_missing_from_the_episode(tmp_path: Path) -> None:
    with RLDSWriter(tmp_path, "toy", fields={**REWARD, ("note",): NOTE}) as writer:
        writer.write({**rewards(2), ("note",): None})
    (episode,) = episodes_of(tmp_path)
    assert episode.missing == {("note",)}


def test_nothing_of_a_dataset_is_there_before_it_is_closed_nor_after_an_error(tmp_path: Path) -> None:
    writer = RLDSWriter(tmp_path, "toy", fields=REWARD, shards=2)
    writer.write(rewards(2))
    assert not is_rlds(tmp_path)
    assert all(path.name.endswith((".partial", ".lock")) for path in tmp_path.iterdir())
    writer.abort()
    writer.abort()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyError), RLDSWriter(tmp_path, "toy", fields=REWARD):
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeError, match="the writer is closed"):
        writer.write(rewards(2))


def test_dataset_info_appears_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    appeared = []
    real = os.replace

    def noted(old: Path, new: Path) -> None:
        appeared.append(Path(new).name)
        real(old, new)

    monkeypatch.setattr(os, "replace", noted)
    writer = RLDSWriter(tmp_path, "toy", fields=REWARD, shards=2)
    writer.close()
    writer.close()
    shards = [f"toy-train.tfrecord-{i:05d}-of-00002" for i in range(2)]
    assert appeared == [*shards, "features.json", "dataset_info.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(appeared)


def test_a_second_split_joins_the_dataset(tmp_path: Path) -> None:
    for split, lengths in (("train", (1, 2)), ("val", (3,))):
        with RLDSWriter(tmp_path, "toy", fields=REWARD, split=split) as writer:
            for length in lengths:
                writer.write(rewards(length))
    assert RLDSSource(tmp_path).splits == {"train": 2, "val": 1}
    assert [episode.length for episode in episodes_of(tmp_path)] == [1, 2]
    assert [episode.length for episode in episodes_of(tmp_path, "val")] == [3]
    with pytest.raises(FileExistsError, match="has a split 'val' already"):
        RLDSWriter(tmp_path, "toy", fields=REWARD, split="val")
    with pytest.raises(ValueError, match="has other fields"):
        RLDSWriter(tmp_path, "toy", fields={("x",): NOTE}, split="test")
    with pytest.raises(ValueError, match="has name 'toy', not 'other'"):
        RLDSWriter(tmp_path, "other", fields=REWARD, split="test")
    with pytest.raises(ValueError, match=r"has version '1\.0\.0', not '2\.0\.0'"):
        RLDSWriter(tmp_path, "toy", fields=REWARD, split="test", version="2.0.0")


FIELDS: dict[Key, FieldSpec] = {
    ("x",): numbers((2,), "int8"),
    ("note",): NOTE,
    ("rgb",): FieldSpec("image", (4, 4, 3), np.dtype("uint8")),
}
GOOD: dict[Key, Any] = {
    ("x",): np.zeros((1, 2), dtype=np.int8),
    ("note",): ["a"],
    ("rgb",): np.zeros((1, 4, 4, 3), dtype=np.uint8),
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({("x",): np.zeros((1, 3))}, r"field \('x',\) needs values of shape \(2,\), got \(3,\)"),
        ({("x",): np.zeros((1, 2))}, "needs int8, got float64"),
        ({("x",): np.array([[1, 128]])}, "has values beyond the range of int8"),
        ({("x",): np.zeros((2, 2), dtype=np.int8)}, "every field needs the same number of steps"),
        ({("note",): "a"}, "needs one string a step"),
        ({("note",): [b"a"]}, "needs one string a step"),
        ({("rgb",): [b"GIF89a"]}, "frame 0: bytes that are neither JPEG nor PNG"),
        (
            {("rgb",): np.zeros((1, 4, 5, 3), dtype=np.uint8)},
            r"needs values of shape \(4, 4, 3\), got \(4, 5, 3\)",
        ),
        ({("rgb",): np.zeros((1, 4, 4, 3))}, "needs frames of uint8, got float64"),
        ({("y",): np.zeros(1)}, r"steps: missing \[\] .*, unknown \[\"\('y',\)\"\]"),
        ({("x",): np.zeros((0, 2)), ("note",): [], ("rgb",): []}, "the same number of steps, at least 1"),
    ],
)
def test_an_episode_that_is_not_as_declared_is_refused_and_nothing_is_written(
    tmp_path: Path, change: Mapping[Key, Any], words: str
) -> None:
    with RLDSWriter(tmp_path, "toy", fields=FIELDS) as writer:
        with pytest.raises(ValueError, match=words):
            writer.write({**GOOD, **change})
        writer.write(GOOD)
    assert len(episodes_of(tmp_path)) == writer.episodes == 1


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    with RLDSWriter(tmp_path, "toy", fields=REWARD, metadata_fields={("id",): NOTE}) as writer:
        with pytest.raises(ValueError, match=r"steps: missing \[\('reward',\)\]"):
            writer.write({})
        with pytest.raises(ValueError, match=r"metadata: missing \[\('id',\)\]"):
            writer.write(rewards(1))


@pytest.mark.parametrize(
    ("fields", "more", "words"),
    [
        (REWARD, {"shards": 0}, "shards must be at least 1, got 0"),
        (REWARD, {"image_format": "gif"}, "image_format must be 'jpeg' or 'png', got 'gif'"),
        (REWARD, {"metadata_fields": {("steps", "x"): NOTE}}, "'steps' is where the steps lie"),
        ({("a",): NOTE, ("a", "b"): NOTE}, {}, r"field \('a', 'b'\) lies inside another field"),
        ({("a", "b"): NOTE, ("a",): NOTE}, {}, r"field \('a',\) holds other fields"),
        ({("a", "b"): NOTE, ("a/b",): NOTE}, {}, "are stored under one name"),
        ({(): NOTE}, {}, "a field's key is a tuple of names"),
        ({("x",): FieldSpec("tensor", (), np.dtype("complex64"))}, {}, "dtype complex64 cannot be stored"),
        ({("x",): FieldSpec("image", (4, 4), np.dtype("uint8"))}, {}, r"images need shape \(H, W, C\)"),
    ],
)
def test_fields_that_cannot_be_written_are_refused_at_once(
    tmp_path: Path, fields: Mapping[Key, FieldSpec], more: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        RLDSWriter(tmp_path / "new", "toy", fields=fields, **more)
    assert not (tmp_path / "new").exists()


def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataFormatError, match="which is not a file of the folder"):
        RLDSWriter(tmp_path / "new", "../toy", fields=REWARD)


@pytest.mark.parametrize("split", ["train", "val"])
def test_two_writers_never_work_in_one_folder(tmp_path: Path, split: str) -> None:
    with RLDSWriter(tmp_path, "toy", fields=REWARD) as first:
        first.write(rewards(2))
        with pytest.raises(BlockingIOError, match="another RLDSWriter is writing"):
            RLDSWriter(tmp_path, "toy", fields=REWARD, split=split)
    with RLDSWriter(tmp_path, "toy", fields=REWARD, split="val") as second:
        second.write(rewards(3))
    assert RLDSSource(tmp_path).splits == {"train": 1, "val": 1}
    assert not list(tmp_path.glob(".*"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("when", ["writing", "closing"])
def test_a_full_disk_names_the_folder(when: str, tmp_path: Path) -> None:
    (tmp_path / ".toy-train.tfrecord-00000-of-00001.partial").symlink_to("/dev/full")
    with (
        pytest.raises(OSError, match="the disk is full") as refused,
        RLDSWriter(tmp_path, "toy", fields=REWARD) as writer,
    ):
        writer.write(rewards(1_000_000 if when == "writing" else 2))
    assert (refused.value.errno, refused.value.filename) == (errno.ENOSPC, str(tmp_path))
    assert not is_rlds(tmp_path)
