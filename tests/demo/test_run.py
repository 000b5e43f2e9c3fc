"""The whole job, on the simulated arm and on real files, shortened."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from hub_shards import write_hub
from lerobot_files import write_lerobot
from replaybank import convert
from replaybank.demo.arm import write_arm_dataset
from replaybank.demo.run import ARM_BYTES, MARKER, claim, run_demo
from shared_data import bridge_path


def test_the_demo_runs_from_nothing_and_again_over_its_own_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    first = run_demo(output=output, seconds=0.5)
    printed = capsys.readouterr().out
    assert first.dataset.episodes == 40
    assert first.converted_bytes > 0
    assert first.batches_per_second > 0
    assert first.training.start == pytest.approx(first.training.mean_action, rel=1e-5)
    for fact in ("40, 8 of them held out", f"{first.dataset.steps:,}", "image (64 x 64)", str(output)):
        assert fact in printed
    taken = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
    assert 0.9 * ARM_BYTES < taken <= ARM_BYTES
    own = output / "mine.txt"
    own.write_text("kept")
    second = run_demo(output=output, seconds=0.0, quiet=True)
    assert second.dataset.lengths == first.dataset.lengths
    assert own.read_text() == "kept"


def test_the_demo_runs_on_real_bridge_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_demo(bridge_path(), output=tmp_path / "out", seconds=0.5)
    assert (result.dataset.episodes, result.dataset.steps) == (25, 250)
    assert len(result.dataset.images) == 4
    assert len(result.training.held_out) == 5
    assert not (tmp_path / "out" / "rlds").exists()
    printed = capsys.readouterr().out
    assert "bridge_dataset 1.0.0" in printed
    for camera in range(4):
        assert f"image_{camera} (64 x 64)" in printed


def test_a_disk_without_room_is_named_with_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = SimpleNamespace(total=10**9, used=10**9 - ARM_BYTES // 2, free=ARM_BYTES // 2)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: there)
    with pytest.raises(OSError, match=r"files take 45\.0 MB, and 22\.5 MB are free there: make r") as refused:
        run_demo(output=tmp_path / "out", seconds=0.0, quiet=True)
    assert (refused.value.errno, refused.value.filename) == (errno.ENOSPC, str(tmp_path / "out"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == [MARKER]


def test_a_folder_that_the_demo_did_not_make_is_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "rlds" / "precious.txt"
    theirs.parent.mkdir()
    theirs.write_text("kept")
    with pytest.raises(FileExistsError, match="did not make: choose a new folder with --output"):
        run_demo(output=tmp_path, seconds=0.0)
    assert theirs.read_text() == "kept"
    assert not (tmp_path / MARKER).exists()


def test_an_empty_folder_may_be_used(tmp_path: Path) -> None:
    claim(tmp_path)
    assert (tmp_path / MARKER).exists()


@pytest.mark.parametrize("form", ["converted", "tar shards", "LeRobot"])
def test_the_demo_takes_data_in_any_form(
    tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    if form == "converted":
        convert(write_arm_dataset(tmp_path / "arm", episodes=3, shards=1), data, progress=False)
    elif form == "tar shards":
        write_hub(data, "data", [(30, 20, 25)])
    else:
        write_lerobot(data, "v2.1", [30, 20, 25])
    result = run_demo(data, output=tmp_path / "out", seconds=0.0)
    assert result.dataset.form == form
    assert result.dataset.episodes == 3
    assert result.training.updates >= 0
    printed = capsys.readouterr().out
    if form == "converted":
        assert result.converted == data
        assert "none: it is converted already" in printed
        assert not (tmp_path / "out" / "converted").exists()
    else:
        assert result.converted == tmp_path / "out" / "converted" / "data"
        assert f"size as {form}" in printed


def test_data_that_are_no_dataset_leave_no_output_behind(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(FileNotFoundError, match="it is neither a converted dataset"):
        run_demo(tmp_path / "data", output=tmp_path / "out", seconds=0.0)
    assert not (tmp_path / "out").exists()
