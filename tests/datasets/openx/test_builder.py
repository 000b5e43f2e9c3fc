"""The builder of a converted dataset: an episode is there whole or not at all, a shard likewise."""

from __future__ import annotations

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memory_source
from memory_source import FIELDS, Frames
from patience import PATIENCE
from replaybank.checkpoint import write_json_atomically
from replaybank.datasets.openx.builder import DatasetBuilder
from replaybank.datasets.openx.files import MANIFEST, PROGRESS, read_manifest, read_progress
from replaybank.datasets.openx.folder import check_ours, claim, discard
from replaybank.datasets.openx.locks import LOCK
from replaybank.datasets.openx.planning import plan
from replaybank.datasets.openx.sources.base import Episode, FieldSpec, Key
from replaybank.datasets.openx.ted import TedEpisode, ted_leaves, to_ted
from replaybank.errors import DataFormatError

LEAVES = ted_leaves(FIELDS)
PLAN = plan("arm", "train", {"kind": "test", "shards": ["a", "b"]}, LEAVES)


def episode(number: int, length: int, **broken: Any) -> TedEpisode:
    return to_ted(memory_source.episode(number, length, **broken), LEAVES, number, "arm")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != LOCK}


def build(folder: Path, *, stop_after: int | None = None) -> None:
    """Two shards of two episodes each; abandoned after some episodes, as by a kill."""
    with DatasetBuilder(folder, PLAN, LEAVES) as builder:
        for shard, first in (("a", 0), ("b", 2)):
            if shard in [record.name for record in builder.manifest.shards]:
                continue
            for number in (first, first + 1):
                if number == stop_after:
                    return
                builder.add(episode(number, 5 + number), {"number": number})
            builder.commit(shard)
        builder.finish()


def test_what_is_written_is_what_was_given(tmp_path: Path) -> None:
    build(tmp_path)
    manifest = read_manifest(tmp_path)
    assert (manifest.steps, manifest.episodes, manifest.strings) == (26, 4, 12)
    rows = np.fromfile(tmp_path / "rows.bin", manifest.layout.numpy_dtype())
    images = np.fromfile(tmp_path / "column-000.bin", np.uint8).reshape(26, 3, 20, 20)
    strings = [json.loads(line) for line in (tmp_path / "strings.jsonl").read_text().splitlines()]
    start = 0
    for number in range(4):
        ted = episode(number, 5 + number)
        part = slice(start, start + ted.length)
        for key, values in ted.columns.items():
            if key == ("observation", "image"):
                assert isinstance(values, Frames)
                assert np.array_equal(images[part], values.frames.transpose(0, 3, 1, 2))
            elif isinstance(values, list):
                assert [strings[i] for i in rows["/".join(key)][part]] == values
            else:
                assert isinstance(values, np.ndarray)
                assert np.array_equal(rows["/".join(key)][part], values), key
        start += ted.length
    bounds = np.fromfile(tmp_path / "episodes.bin", np.int64).reshape(-1, 2)
    assert bounds.tolist() == [[0, 5], [5, 6], [11, 7], [18, 8]]
    lines = (tmp_path / "metadata.jsonl").read_text().splitlines()
    assert [json.loads(line)["number"] for line in lines] == [0, 1, 2, 3]


@pytest.mark.parametrize("stop", range(4))
def test_stopped_after_any_episode_it_goes_on_to_the_same_bytes(tmp_path: Path, stop: int) -> None:
    build(tmp_path / "whole")
    build(tmp_path / "stopped", stop_after=stop)
    assert not (tmp_path / "stopped" / MANIFEST).exists()
    assert len(read_progress(tmp_path / "stopped").shards) == stop // 2
    build(tmp_path / "stopped")
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")


@pytest.mark.parametrize("broken", [{"bad": True}, {"height": 21}])
def test_an_episode_that_fails_leaves_no_trace(tmp_path: Path, broken: dict[str, Any]) -> None:
    build(tmp_path / "clean")
    with DatasetBuilder(tmp_path / "dirty", PLAN, LEAVES) as builder:
        for shard, first in (("a", 0), ("b", 2)):
            for number in (first, first + 1):
                with pytest.raises(DataFormatError):
                    builder.add(episode(100 + number, 9, **broken), {})
                builder.add(episode(number, 5 + number), {"number": number})
            builder.commit(shard)
        builder.finish()
    assert contents(tmp_path / "dirty") == contents(tmp_path / "clean")


def test_long_episodes_are_decoded_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path / "whole")
    monkeypatch.setattr("replaybank.datasets.openx.frames.FRAME_CHUNK_BYTES", 2 * 3 * 20 * 20)
    build(tmp_path / "chunks")
    assert contents(tmp_path / "chunks") == contents(tmp_path / "whole")


def test_two_builders_never_write_to_one_folder(tmp_path: Path) -> None:
    with (
        DatasetBuilder(tmp_path, PLAN, LEAVES),
        pytest.raises(BlockingIOError, match="another conversion is writing"),
    ):
        DatasetBuilder(tmp_path, PLAN, LEAVES)
    DatasetBuilder(tmp_path, PLAN, LEAVES).close()


def test_a_complete_dataset_is_replaced_only_when_asked_to(tmp_path: Path) -> None:
    build(tmp_path)
    with pytest.raises(FileExistsError, match="overwrite=True replaces it"):
        DatasetBuilder(tmp_path, PLAN, LEAVES)
    before = contents(tmp_path)
    DatasetBuilder(tmp_path, PLAN, LEAVES, overwrite=True).close()
    assert not (tmp_path / MANIFEST).exists()
    build(tmp_path)
    assert contents(tmp_path) == before


def test_another_conversion_does_not_go_on_from_an_unfinished_one(tmp_path: Path) -> None:
    build(tmp_path, stop_after=3)
    other = plan("leg", "train", PLAN.origin, LEAVES)
    with pytest.raises(FileExistsError, match=r"unfinished conversion of 'arm' .* 'leg'"):
        DatasetBuilder(tmp_path, other, LEAVES)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_anything_else_is_left_alone(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.tex").write_text("twenty years of work")
    with pytest.raises(FileExistsError, match=r"thesis\.tex"):
        DatasetBuilder(tmp_path, PLAN, LEAVES, overwrite=overwrite)
    assert contents(tmp_path) == {"thesis.tex": b"twenty years of work"}


def test_files_with_our_names_in_a_folder_we_never_made_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "rows.bin").write_text("somebody's")
    with pytest.raises(FileExistsError, match=r"rows\.bin"):
        DatasetBuilder(tmp_path, PLAN, LEAVES, overwrite=True)
    assert contents(tmp_path) == {"rows.bin": b"somebody's"}


def test_discarding_that_was_interrupted_can_be_gone_on_with(tmp_path: Path) -> None:
    build(tmp_path)
    whole = contents(tmp_path)
    (tmp_path / MANIFEST).unlink()  # the first thing that discarding does
    (tmp_path / LOCK).touch()  # held while it was killed
    build(tmp_path)
    assert contents(tmp_path) == whole


def test_discarding_removes_the_dataset_and_nothing_else(tmp_path: Path) -> None:
    build(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError):
        discard(tmp_path)
    (tmp_path / "notes.txt").unlink()
    discard(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} <= {LOCK}


def test_progress_that_claims_more_than_the_files_hold_is_an_error(tmp_path: Path) -> None:
    build(tmp_path, stop_after=3)
    (tmp_path / "rows.bin").write_bytes(b"")
    with pytest.raises(DataFormatError, match=r"rows\.bin has 0 bytes"):
        build(tmp_path)
    assert (tmp_path / PROGRESS).exists()


def test_faults_missing_entries_and_skipped_records_are_kept(tmp_path: Path) -> None:
    columns: dict[Key, Any] = {("action",): np.zeros((2, 2)), ("is_first",): np.ones(2, bool)}
    with DatasetBuilder(tmp_path, PLAN, LEAVES) as builder:
        builder.add(to_ted(Episode(columns, 2, "x"), LEAVES, 0, "arm"), {})
        builder.skip("a", 1, "the checksum is wrong")
        builder.commit("a")
        builder.commit("b")
        builder.finish()
    manifest = read_manifest(tmp_path)
    assert manifest.missing == {
        ("language_instruction",): (0,),
        ("next", "reward"): (0,),
        ("observation", "image"): (0,),
        ("observation", "note"): (0,),
        ("observation", "state"): (0,),
    }
    assert Counter(manifest.faults) == {"is_first after the first step": 1}
    assert [(s.shard, s.record, s.reason) for s in manifest.skipped] == [("a", 1, "the checksum is wrong")]


def test_frames_that_are_small_enough_for_the_rows_lie_there_decoded(tmp_path: Path) -> None:
    fields = {**FIELDS, ("observation", "image"): FieldSpec("image", (16, 20, 3), np.dtype("uint8"))}
    leaves = ted_leaves(fields)
    source = memory_source.episode(0, 4, height=16)
    with DatasetBuilder(tmp_path, plan("arm", "train", {}, leaves), leaves) as builder:
        builder.add(to_ted(source, leaves, 0, "arm"), {})
        with pytest.raises(DataFormatError, match=r"observation/image has shape \(3, 15, 20\)"):
            builder.add(to_ted(memory_source.episode(1, 4, height=15), leaves, 1, "arm"), {})
        builder.commit("a")
        builder.finish()
    rows = np.fromfile(tmp_path / "rows.bin", read_manifest(tmp_path).layout.numpy_dtype())
    frames = source.steps[("observation", "image")]
    assert isinstance(frames, Frames)
    assert np.array_equal(rows["observation/image"], frames.frames.transpose(0, 3, 1, 2))


def test_a_disk_that_is_full_when_the_files_are_closed_does_not_keep_the_folder_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = DatasetBuilder(tmp_path, PLAN, LEAVES)
    opened = builder._files._opened
    whole = opened["rows.bin"].close

    def full() -> None:
        whole()
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(opened, "rows.bin", _Closing(full))
    with pytest.raises(OSError, match="No space left"):
        builder.close()
    build(tmp_path)
    assert read_manifest(tmp_path).episodes == 4


class _Closing:
    def __init__(self, close: Any) -> None:
        self.close = close


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError, match="is a file"):
        DatasetBuilder(tmp_path / "file", PLAN, LEAVES)
    assert (tmp_path / "file").read_text() == "mine"


def test_nothing_but_the_dataset_is_left_in_its_folder(tmp_path: Path) -> None:
    build(tmp_path)
    assert not (tmp_path / LOCK).exists()


def test_a_conversion_that_is_at_work_is_no_stranger_to_others(tmp_path: Path) -> None:
    lock, done = claim(tmp_path), threading.Event()

    def rewrite() -> None:
        while not done.is_set():
            write_json_atomically(tmp_path / PROGRESS, {"any": 1})

    with ThreadPoolExecutor(1) as other:
        written = other.submit(rewrite)
        try:
            for _ in range(2_000):  # one in fourteen said otherwise while files were looked at twice
                check_ours(tmp_path)
        finally:
            done.set()
        written.result(PATIENCE)
    lock.release()
