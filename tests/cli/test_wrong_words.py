"""What a newcomer gets wrong, and what is said then: what is wrong, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from command_line import error_of
from replaybank import LazyTensorStorage, ReplayBuffer

WRONG: list[tuple[list[str], int, str]] = [
    (["inof", "x"], 2, "No such command 'inof'. Did you mean 'info'?; see `replaybank --help`"),
    (["info"], 2, "Missing argument 'PATH'; see `replaybank info --help`"),
    (["info", "a", "b"], 2, "Got unexpected extra argument(s) (b); see `replaybank info --help`"),
    (["list", "--jsn"], 2, "--json"),
    (["info", "/no/such"], 1, "/no/such: there is no such file or folder"),
    (["info", "bridg"], 1, "did you mean bridge? `replaybank list` names all"),
    (["info", "bridg"], 1, "datasets of your own are given by their path or URL"),
    (["convert", "a", "b", "--images", "jpeg"], 2, "'jpeg' is not one of 'raw', 'encoded'"),
    (["stream", "ARM", "--batch-size", "7", "--slice-len", "2"], 2, "give a multiple"),
    (["convert", "ARM", "made", "--image-key", "nose"], 2, "error: --image-key: 'nose' is no camera"),
    (["info", "ARM", "--split", "vall"], 2, "has no split 'vall'; it has ['train']"),
    (["stats", "ARM"], 1, "`replaybank convert SOURCE PATH`"),
    (["view", "ARM", "--episode", "-1"], 2, "--episode"),
    *(
        ([command, "BUFFER", *rest], 1, "is a checkpoint of a buffer, no dataset; `replaybank info`")
        for command, rest in (("verify", []), ("stream", []), ("convert", ["made"]))
    ),
]


@pytest.mark.parametrize(("arguments", "status", "said"), WRONG)
def test_a_mistake_is_one_line_that_says_what_to_do(
    arguments: list[str],
    status: int,
    said: str,
    arm_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if "BUFFER" in arguments:
        buffer = ReplayBuffer(storage=LazyTensorStorage(5))
        buffer.extend(torch.zeros(3, 2))
        buffer.dumps(tmp_path / "buffer")
    places = {"ARM": str(arm_folder), "BUFFER": str(tmp_path / "buffer")}
    text = error_of(capsys, *(places.get(word, word) for word in arguments), status=status)
    assert said in text
    for words in ("Invalid value: ", "Value error", "unexpected ", "source="):
        assert words not in text.replace("Got unexpected extra", "")
