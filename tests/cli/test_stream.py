"""``replaybank stream``."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import error_of
from replaybank import cli
from replaybank.demo import arm


@pytest.mark.parametrize("options", [(), ("--batch-size", "16", "--slice-len", "4", "--workers", "1")])
def test_stream_shows_rate_and_memory(
    arm_folder: Path, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["stream", str(arm_folder), "--seconds", "0.05", *options]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    for word in ("steps/s", "slices/s", "decoded", "epochs", "first batch", "memory"):
        assert f"  {word}" in printed.out


def test_stream_says_what_is_wrong_with_the_data(
    broken_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "record 0 at byte 0" in error_of(capsys, "stream", broken_folder, "--seconds", "1", status=1)
    error_of(capsys, "stream", tmp_path / "nothing", status=1)
    odd = ("--batch-size", "9", "--slice-len", "2")
    assert "slice_len=2" in error_of(capsys, "stream", broken_folder, *odd, status=2)


def test_a_converted_dataset_is_not_streamed(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    assert cli.run(["convert", str(arm_folder), str(made), "-q"]) == 0
    assert cli.run(["stream", str(made)]) == cli.MISUSED
    assert f"{made} is converted already, so there is nothing to stream" in capsys.readouterr().err


def test_stream_takes_what_is_there_where_it_is_told_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = arm.write_arm_dataset(tmp_path / "arm", episodes=4, shards=2)
    next(folder.glob("*00001-of-00002")).unlink()
    assert cli.run(["stream", str(folder), "--seconds", "0"]) == cli.FAILED
    assert "--allow-missing" in capsys.readouterr().err
    assert cli.run(["stream", str(folder), "--seconds", "0", "--allow-missing"]) == 0
    assert "steps/s" in capsys.readouterr().out
