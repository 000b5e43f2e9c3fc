"""``replaybank info``, ``stats`` and ``verify``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from command_line import EPISODES, error_of
from replaybank import cli
from replaybank.cli.inspect import MOST_NUMBERS
from replaybank.datasets.openx.stats import EntryStats
from replaybank.demo import arm
from replaybank.show import show_stats


def test_info_on_rlds_and_on_what_convert_made(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reaches = [arm.simulate(number) for number in range(EPISODES)]
    steps = sum(map(len, reaches))
    made = tmp_path / "made"
    assert cli.run(["convert", str(arm_folder), str(made)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out == f"{arm.NAME}: {EPISODES} episodes, {steps} steps in {made}\n"
    for path, form in ((arm_folder, "RLDS"), (made, "converted")):
        assert cli.run(["info", str(path)]) == 0
        out = capsys.readouterr().out
        for fact in (
            arm.NAME,
            form,
            str(EPISODES),
            str(steps),
            "observation/hand_image",
            "float32",
            "64 x 64",
        ):
            assert fact in out, fact
        assert any(reach.instruction in out for reach in reaches)


def test_info_names_the_split_that_was_converted(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    assert cli.run(["convert", str(arm_folder), str(made), "-q"]) == 0
    text = error_of(capsys, "info", made, "--split", "val", status=cli.MISUSED)
    assert "'val'" in text
    assert "'train'" in text
    assert cli.run(["info", str(made), "--split", "train"]) == 0


def test_info_shows_the_entries_of_episodes_on_either_side_of_a_conversion(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    assert cli.run(["convert", str(arm_folder), str(made), "-q"]) == 0
    shown = []
    for path in (arm_folder, made):
        assert cli.run(["info", str(path)]) == 0
        _, _, rest = capsys.readouterr().out.partition("Entries of an episode\n")
        shown.append([row.split()[:2] for row in rest.partition("\n\n")[0].splitlines()])
    assert len(shown[0]) > 1
    assert shown[0] == shown[1]


def test_verify_names_what_is_wrong_and_its_status_tells(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    assert cli.run(["convert", str(arm_folder), str(made), "-q"]) == 0
    for path in (arm_folder, made):
        assert cli.run(["verify", str(path)]) == 0
        assert f"{path}: {EPISODES} episodes" in capsys.readouterr().out
    content = bytearray((made / "rows.bin").read_bytes())
    content[0] ^= 1
    (made / "rows.bin").write_bytes(content)
    assert cli.run(["verify", str(made), "--quiet"]) == cli.FAILED
    assert capsys.readouterr().out == f"{made / 'rows.bin'} episode 0: its content is not what was written\n"
    assert cli.run(["verify", str(made)]) == cli.FAILED
    assert "problems: 1" in capsys.readouterr().out


def test_stats_shows_a_line_for_each_number(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    assert cli.run(["convert", str(arm_folder), str(made), "-q"]) == 0
    assert cli.run(["stats", str(made), "--key", "action", "--key", "observation/hand_image"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line] == [
        *("action:", "number", "0", "1"),
        *("observation/hand_image:", "number", "0", "1", "2"),
    ]
    assert cli.run(["stats", str(made), "--key", "speed"]) == cli.MISUSED
    assert "--key speed: there is no such entry; there are" in capsys.readouterr().err
    assert cli.run(["stats", str(arm_folder)]) == cli.FAILED
    assert "holds no converted dataset" in capsys.readouterr().err


def test_stats_of_an_embedding_are_cut_short_unless_it_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    values = torch.zeros(MOST_NUMBERS + 8)
    stats: dict[tuple[str, ...], EntryStats] = {}
    stats["text", "embedding"] = EntryStats(values, values, values, values, values, values, 5)
    show_stats(stats, most=MOST_NUMBERS)
    title, _, *rows = capsys.readouterr().out.strip().splitlines()
    assert title == "text/embedding: 5 steps; 32 of 40 numbers (--key text/embedding shows all)"
    assert len(rows) == MOST_NUMBERS
    show_stats(stats)
    assert len(capsys.readouterr().out.strip().splitlines()) == len(values) + 2


def test_an_unknown_split_names_those_there_are(arm_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = error_of(capsys, "info", arm_folder, "--split", "test", status=cli.MISUSED)
    assert "'test'" in text
    assert "train" in text


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="nothing is unreadable for root")
def test_an_unreadable_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0)
    try:
        assert str(locked) in error_of(capsys, "info", locked, status=cli.FAILED)
    finally:
        locked.chmod(0o700)


def test_no_progress_bar_flashes_up_before_an_error(
    broken_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for path in (broken_folder, tmp_path / "nowhere"):
        assert "Reading" not in error_of(capsys, "info", path, status=cli.FAILED)
