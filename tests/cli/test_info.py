"""``replaybank info`` on what is no whole dataset: checkpoints of buffers, metadata without its files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from command_line import error_of
from lerobot_files import TASKS, write_lerobot
from replaybank import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    checkpoint,
    cli,
)
from shared_data import lerobot_so101_path


def lines_of(text: str) -> dict[str, str]:
    """What is said of each fact, where it comes first."""
    rows = (line.strip().split("  ", 1) for line in reversed(text.splitlines()))
    return {row[0]: row[1].strip() for row in rows if len(row) == 2}


def test_a_checkpoint_says_how_much_of_what_is_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(50), sampler=PrioritizedSampler(50, alpha=0.5, beta=0.4))
    buffer.extend(TensorDict({"x": torch.zeros(60, 3), "next": {"done": torch.zeros(60, 1).bool()}}, [60]))
    buffer.update_priority(torch.arange(50), torch.arange(50) + 1.0)
    buffer.dumps(tmp_path)
    assert cli.run(["info", str(tmp_path)]) == 0
    facts = lines_of(capsys.readouterr().out)
    assert facts["items"] == "50 of 50"
    assert facts["rows written"] == "60"
    assert facts["size"] == "650 B of items"
    assert facts["storage"] == "LazyTensorStorage"
    assert facts["sampler"].startswith("PrioritizedSampler (alpha 0.5, beta 0.4, ")
    assert facts["priorities"] == "1 to 7.07, mean 4.78"
    assert facts["x"].split() == ["[3]", "float32"]
    assert facts["next/done"].split() == ["[1]", "bool"]


def test_lists_ensembles_and_empty_buffers_are_told_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = ReplayBuffer(storage=ListStorage())
    objects.extend([1, 2])
    empty = ReplayBuffer(storage=LazyTensorStorage(7))
    ReplayBufferEnsemble(objects, empty, batch_size=2).dumps(tmp_path)
    assert cli.run(["info", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert f"{tmp_path}, buffer 0 of 2" in out
    assert f"{tmp_path}, buffer 1 of 2" in out
    assert "0 of 7" in out


def test_a_checkpoint_of_something_else_is_called_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint.save(tmp_path, {"weights": torch.zeros(3)})
    text = error_of(capsys, "info", tmp_path, status=cli.FAILED)
    assert "is a checkpoint, but not of a buffer: it holds ['weights']" in text


def test_metadata_is_shown_where_the_data_files_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_lerobot(tmp_path / "push", "v2.1", [5, 7], None)
    shutil.rmtree(folder / "data")
    assert cli.run(["info", str(folder)]) == 0
    out = capsys.readouterr().out
    facts = lines_of(out)
    assert facts["form"] == "LeRobot, metadata only"
    assert (facts["episodes"], facts["steps"], facts["steps an episode"]) == ("2", "12", "5 to 7, median 6")
    assert TASKS[0] in out
    assert "Note: 2 of 2 episodes of split 'train' are missing (numbers 0-1): there is no data/" in out
    assert "Note: 30 steps a second are declared" in out
    assert "--split" not in error_of(capsys, "info", folder, "--split", "val", status=cli.MISUSED)


def test_metadata_has_no_entries_that_a_conversion_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_lerobot(tmp_path / "push", "v2.1", [5, 7], None)
    entries = []
    for missing in (False, True):
        if missing:
            shutil.rmtree(folder / "data")
        assert cli.run(["info", str(folder)]) == 0
        out = capsys.readouterr().out.partition("Entries of a step")[2]
        entries.append({name for name in ("frame_index", "index", "task_index") if f"\n  {name} " in out})
    assert entries == [{"task_index"}, {"task_index"}]


def test_the_datasets_below_a_folder_are_named(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = write_lerobot(tmp_path / "robots" / "push", "v2.1", [5, 7], None)
    (tmp_path / "robots" / "empty").mkdir()
    shutil.copytree(arm_folder, tmp_path / "arms" / "a" / "two_link_arm" / "1.0.0")
    assert cli.run(["convert", str(arm_folder), str(tmp_path / "converted"), "-q"]) == 0
    text = error_of(capsys, "info", tmp_path, status=cli.FAILED)
    assert text.endswith(f"holds one of these; below it: {tmp_path / 'converted'}, {made}\n")
    text = error_of(capsys, "convert", tmp_path / "arms", tmp_path / "new", status=cli.FAILED)
    assert text.endswith(f"; below it: {tmp_path / 'arms' / 'a' / 'two_link_arm'}\n")
    for number in range(6):
        shutil.copytree(made, tmp_path / "robots" / f"more{number}")
    assert "more4 and 2 more\n" in error_of(capsys, "info", tmp_path / "robots", status=cli.FAILED)
    text = error_of(capsys, "info", tmp_path / "robots" / "empty", status=cli.FAILED)
    assert text.endswith("give the folder that holds one of these\n")


def test_real_metadata_alone_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["info", str(lerobot_so101_path())]) == 0
    out = capsys.readouterr().out
    facts = lines_of(out)
    assert (facts["episodes"], facts["steps"]) == ("50", "22,449")
    assert "640 x 480" in facts["observation/images/top_phone"] or "640 x 480" in out
    assert "Pick the tiger and place near elephant" in out
    assert "there is no data/chunk-000/file-000.parquet" in out
