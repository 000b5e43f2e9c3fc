"""``replaybank view``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from command_line import error_of
from lerobot_files import write_lerobot
from replaybank import cli
from replaybank.demo import arm

pytest.importorskip("rerun", reason="rerun-sdk is not installed: pip install 'replaybank[view]'")


def test_view_writes_a_file_and_says_how_to_open_it(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "arm.rrd"
    assert cli.run(["view", str(arm_folder), "--episode", "1", "--save", str(file)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.startswith(f"{arm.NAME}, episode 1: ")
    assert printed.out.endswith(f"written to {file}: open it with `rerun {file}`\n")
    assert file.stat().st_size > 1000
    small = tmp_path / "small.rrd"
    assert cli.run(["view", str(arm_folder), "--save", str(small), "--camera", "hand_image", "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    assert small.stat().st_size < file.stat().st_size


def test_a_large_file_of_pixels_says_how_it_becomes_smaller(
    arm_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, file = tmp_path / "made", str(tmp_path / "arm.rrd")
    assert cli.run(["convert", str(arm_folder), str(made), "-q"]) == 0

    def printed(path: Path, *options: str) -> str:
        assert cli.run(["view", str(path), "--save", file, *options]) == 0
        return capsys.readouterr().out

    assert "--compress" not in printed(made)
    monkeypatch.setattr("replaybank.cli.view.LARGE", 10_000)
    assert ": --compress makes it smaller, with frames as JPEG, not exact\n" in printed(made)
    assert "--compress" not in printed(made, "--compress")
    assert "--compress" not in printed(made, "--quiet")
    assert "--compress" not in printed(arm_folder)  # JPEG already


def test_view_says_what_is_wrong_in_one_line(
    arm_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save = ("--save", tmp_path / "a.rrd")
    text = error_of(capsys, "view", arm_folder, "--episode", "9", *save, status=cli.MISUSED)
    assert "there is no episode 9" in text
    assert "has 4 episodes, 0 to 3" in text
    assert "no camera" in error_of(capsys, "view", arm_folder, "--camera", "nose", *save, status=cli.MISUSED)
    assert ".rrd" in error_of(capsys, "view", arm_folder, "--save", tmp_path / "a.txt", status=cli.MISUSED)
    assert "no such file" in error_of(capsys, "view", tmp_path / "gone", *save, status=cli.FAILED)
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert "--save episode.rrd" in error_of(capsys, "view", arm_folder, status=cli.FAILED)
    assert list(tmp_path.iterdir()) == []


def test_episodes_are_found_by_the_numbers_of_their_origin_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_lerobot(tmp_path / "push", "v2.1", [5, 6, 7, 4], codec=None)
    for number in (0, 2):
        (path / f"data/chunk-000/episode_{number:06d}.parquet").unlink()
    made = tmp_path / "made"
    assert cli.run(["convert", str(path), str(made), "--allow-missing", "-q"]) == 0
    for place in (path, made):
        for number, steps in (
            (0, "episode 0 (1 of its origin): 6 steps"),
            (3, "episode 1 (3 of its origin): 4"),
        ):
            save = ["--save", str(tmp_path / "push.rrd")]
            assert cli.run(["view", str(place), "--episode", str(number), *save]) == 0
            assert steps in capsys.readouterr().out
        text = error_of(capsys, "view", place, "--episode", "2", "--save", "a.rrd", status=cli.MISUSED)
        assert "no episode 2:" in text
        assert "has 2 episodes, 0 to 1; by the numbers of its origin 1, 3\n" in text


def test_without_rerun_one_line_says_what_to_install(
    arm_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rerun", None)
    text = error_of(capsys, "view", arm_folder, "--save", tmp_path / "a.rrd", status=cli.FAILED)
    assert text.endswith("Looking at episodes needs Rerun: pip install 'replaybank[view]'\n")
