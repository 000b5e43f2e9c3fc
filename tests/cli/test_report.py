"""``replaybank report``, as a person calls it."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import error_of
from replaybank import cli


def test_a_page_is_written_where_it_was_asked_for(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert cli.run(["report", str(arm_folder), "-o", str(page), "--episodes", "1", "--max-size", "0.5"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.startswith(f"{page}: ")
    assert page.stat().st_size <= 500_000
    assert page.read_text(encoding="utf-8").count("<article") == 1


def test_quiet_prints_nothing(arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        cli.run(["report", str(arm_folder), "-o", str(tmp_path / "page.html"), "-q", "--episodes", "0"]) == 0
    )
    assert capsys.readouterr() == ("", "")


def test_a_converted_dataset_that_is_not_finished_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no such file or folder" in error_of(
        capsys, "report", tmp_path / "none", "-o", tmp_path / "page.html", status=cli.FAILED
    )
    assert "is a folder" in error_of(capsys, "report", tmp_path, "-o", tmp_path, status=cli.FAILED)
    assert "give a file" in error_of(capsys, "report", tmp_path, "-o", "s3://page", status=cli.MISUSED)
