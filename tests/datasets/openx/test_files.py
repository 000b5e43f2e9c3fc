"""The manifest of a converted dataset: whole, or an error that says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from replaybank.datasets.openx.files import (
    MANIFEST,
    PROGRESS,
    Manifest,
    ShardRecord,
    Skipped,
    is_converted,
    read_manifest,
)
from replaybank.errors import DataFormatError, IncompleteDatasetError
from replaybank.storages.layout import LeafSpec, RowLayout

LAYOUT = RowLayout.plan(
    [
        LeafSpec(("episode",), torch.int32, ()),
        LeafSpec(("action",), torch.float32, (7,)),
        LeafSpec(("next", "done"), torch.bool, (1,)),
        LeafSpec(("language",), torch.int32, ()),
        LeafSpec(("observation", "image"), torch.uint8, (3, 64, 64)),
    ]
)
WHOLE = Manifest(
    name="arm",
    split="train",
    origin={"kind": "RLDSSource", "version": "1.0.0", "shards": ["a", "b"]},
    layout=LAYOUT,
    kinds={("language",): "text", ("observation", "image"): "image"},
    shards=(ShardRecord("a", 2, 30), ShardRecord("b", 1, 12)),
    strings=2,
    file_sizes={"strings.jsonl": 20, "metadata.jsonl": 33},
    missing={("action",): (0, 2)},
    faults={"is_terminal before the last step": 4},
    skipped=(Skipped("b", 3, "the checksum is wrong"),),
)


def lay_out(folder: Path, manifest: Manifest = WHOLE, name: str = MANIFEST) -> Path:
    folder.mkdir(exist_ok=True)
    for file, size in manifest.sizes().items():
        (folder / file).write_bytes(bytes(size))
    (folder / name).write_text(json.dumps(manifest.to_json()))
    return folder


def test_a_manifest_survives_the_way_to_disk_and_back(tmp_path: Path) -> None:
    read = read_manifest(lay_out(tmp_path))
    assert read == WHOLE
    assert (read.steps, read.episodes) == (42, 3)


def test_the_size_of_every_file_follows_from_the_manifest() -> None:
    assert LAYOUT.row_bytes == 64
    assert WHOLE.sizes() == {
        "rows.bin": 42 * 64,
        "column-000.bin": 42 * 3 * 64 * 64,
        "episodes.bin": 3 * 16,
        "strings.jsonl": 20,
        "metadata.jsonl": 33,
        "checksums.bin": 3 * 2 * 4,
    }


def test_a_folder_without_a_dataset_says_how_to_make_one(tmp_path: Path) -> None:
    assert not is_converted(tmp_path)
    with pytest.raises(FileNotFoundError, match="holds no converted dataset"):
        read_manifest(tmp_path)


def test_an_unfinished_conversion_is_no_dataset(tmp_path: Path) -> None:
    lay_out(tmp_path, name=PROGRESS)
    assert is_converted(tmp_path)
    with pytest.raises(IncompleteDatasetError, match="2 of 2 shards are done"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("file", sorted(WHOLE.sizes()))
@pytest.mark.parametrize("change", [-1, 1, None])
def test_a_file_of_another_size_is_named(tmp_path: Path, file: str, change: int | None) -> None:
    path = lay_out(tmp_path) / file
    if change is None:
        path.unlink()
    else:
        path.write_bytes(bytes(path.stat().st_size + change))
    with pytest.raises(DataFormatError, match=file):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", "something else"),
        ("version", 3),
        ("version", True),
        ("name", 3),
        ("steps", 41),
        ("episodes", 4),
        ("layout", {}),
        ("layout", RowLayout.plan([LeafSpec(("action",), torch.float32, (7,))]).to_json()),
        ("layout", RowLayout.plan([*LAYOUT.leaves, LeafSpec((), torch.float32, ())]).to_json()),
        ("kinds", [{"key": [["language"]], "kind": "text"}]),
        ("kinds", [{"key": ["nowhere"], "kind": "text"}]),
        ("kinds", [{"key": ["language"], "kind": "sound"}]),
        ("shards", [{"name": "a", "episodes": -1, "steps": 2}]),
        ("shards", [{"name": "a", "episodes": 1e3, "steps": 2}]),
        ("strings", 1 << 63),
        ("file_sizes", {}),
        ("missing", [{"key": ["action"], "episodes": [3]}]),
        ("missing", [{"key": ["action"], "episodes": ["1"]}]),
        ("faults", {"x": None}),
        ("skipped", ["x"]),
    ],
)
def test_a_damaged_manifest_is_an_error_that_names_the_file(tmp_path: Path, field: str, value: Any) -> None:
    lay_out(tmp_path)
    (tmp_path / MANIFEST).write_text(json.dumps({**WHOLE.to_json(), field: value}))
    with pytest.raises(DataFormatError, match=r"manifest\.json is damaged"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "nonsense", "[" * 100_000, '{"format": NaN}', "\x00"])
def test_text_that_is_no_manifest_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(DataFormatError, match=r"manifest\.json"):
        read_manifest(tmp_path)


@given(cut=st.integers(0, len(json.dumps(WHOLE.to_json())) - 1))
def test_a_manifest_cut_anywhere_is_never_taken_for_whole(cut: int) -> None:
    text = json.dumps(WHOLE.to_json())[:cut]
    with pytest.raises(ValueError):  # noqa: PT011  (json's own, or ours)
        Manifest.from_json(json.loads(text))


def test_only_conversions_of_one_origin_into_one_layout_go_on_from_each_other() -> None:
    from dataclasses import replace

    blank = replace(WHOLE, shards=(), strings=0, missing={}, faults={}, skipped=())
    assert WHOLE.same_conversion(blank)
    assert not WHOLE.same_conversion(replace(blank, split="val"))
    assert not WHOLE.same_conversion(replace(blank, origin={"shards": ["a"]}))
