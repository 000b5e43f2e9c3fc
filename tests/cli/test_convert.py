"""``replaybank convert``."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from command_line import EPISODES, error_of
from replaybank import cli
from replaybank.demo import arm


def test_convert_is_silent_when_asked(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["convert", str(arm_folder), str(tmp_path / "made"), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_convert_replaces_a_dataset_only_when_told(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = arm.write_arm_dataset(tmp_path / "other", episodes=2, seed=1, shards=1)
    made = tmp_path / "made"
    assert cli.run(["convert", str(arm_folder), str(made), "-q"]) == 0
    assert cli.run(["convert", str(other), str(made), "-q"]) in (cli.FAILED, cli.MISUSED)
    assert "replaybank: error: " in capsys.readouterr().err
    assert cli.run(["convert", str(other), str(made), "-q", "--overwrite"]) == 0
    assert cli.run(["info", str(made)]) == 0
    assert "episodes          2\n" in capsys.readouterr().out


def test_convert_never_replaces_a_folder_of_something_else(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "precious.txt").write_text("kept")
    assert cli.run(["convert", str(arm_folder), str(tmp_path), "--overwrite"]) in (cli.FAILED, cli.MISUSED)
    assert "replaybank: error: " in capsys.readouterr().err
    assert (tmp_path / "precious.txt").read_text() == "kept"


def test_converting_again_says_that_it_was_done(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    printed = []
    for options in ([], [], ["--overwrite"]):
        assert cli.run(["convert", str(arm_folder), str(made), *options]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[2]
    assert printed[1] == printed[0].replace(" in ", " already converted in ")
    text = error_of(capsys, "convert", made, tmp_path / "again", status=cli.MISUSED)
    assert f"{made} is a converted dataset already" in text


def test_convert_keeps_encoded_frames_of_chosen_cameras(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, small = tmp_path / "raw", tmp_path / "small"
    assert cli.run(["convert", str(arm_folder), str(raw), "-q", "--workers", "1"]) == 0
    chosen = ["--images", "encoded", "--image-key", "hand_image", "--max-memory", "0.1"]
    assert cli.run(["convert", str(arm_folder), str(small), "-q", *chosen]) == 0
    assert capsys.readouterr() == ("", "")
    assert not list(small.glob("column-*"))
    assert (small / "frames-000.bin").stat().st_size < (raw / "column-000.bin").stat().st_size / 4
    assert cli.run(["info", str(small)]) == 0
    shown = capsys.readouterr().out
    assert "observation/hand_image" in shown
    assert "observation/image" not in shown


def test_a_corrupt_record_is_left_out_when_asked(
    broken_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    assert cli.run(["convert", str(broken_folder), str(made), "--on-error", "skip"]) == 0
    assert f"{EPISODES - 1} episodes" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["convert", "SRC"], ["demo", "--output"]])
@pytest.mark.parametrize("folder", ["", " ", "gs://bucket/x"])
def test_a_destination_that_is_no_folder_of_this_machine_is_refused(
    command: list[str],
    folder: str,
    arm_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [str(arm_folder) if word == "SRC" else word for word in command]
    text = error_of(capsys, *given, folder, status=cli.MISUSED)
    assert (folder if folder.strip() else "is empty") in text
    assert list(tmp_path.iterdir()) == []


def test_a_destination_that_is_a_file_is_called_one(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    assert f"{file} is a file" in error_of(capsys, "convert", arm_folder, file, status=cli.FAILED)
    assert file.read_text() == "kept"


def test_a_tilde_is_the_home_folder(
    arm_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree(arm_folder, tmp_path / "rlds")
    assert cli.run(["convert", "~/rlds", "~/made", "-q"]) == 0
    assert (tmp_path / "made").is_dir()
    assert cli.run(["info", "~/made"]) == 0
    assert str(tmp_path / "made") in capsys.readouterr().out


def test_episodes_that_a_shard_was_cut_off_before_are_counted(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cut"
    shutil.copytree(arm_folder, folder)
    shard = sorted(folder.glob("*tfrecord*"))[0]
    os.truncate(shard, 1000)  # in the first record of two
    assert cli.run(["convert", str(folder), str(tmp_path / "made"), "--on-error", "skip"]) == 0
    out = capsys.readouterr().out
    assert "2 episodes" in out
    assert f"2 of {EPISODES} declared episodes missing" in out


def test_a_camera_that_is_not_there_is_misuse(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["convert", str(arm_folder), str(tmp_path / "x"), "--image-key", "nose"]) == cli.MISUSED
    assert "'nose' is no camera of this dataset" in capsys.readouterr().err


def test_a_disk_without_room_is_one_line_that_names_the_folder(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: whole._replace(free=1000))
    assert cli.run(["convert", str(arm_folder), str(tmp_path / "made")]) == cli.FAILED
    said = capsys.readouterr().err
    assert said.startswith(f"replaybank: error: {tmp_path / 'made'}: ")
    assert "1000 bytes are free" in said
