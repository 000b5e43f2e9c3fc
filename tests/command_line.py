"""The command as tests run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from replaybank import cli

EPISODES = 4
"""Of the dataset that the commands are tried on."""


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path, status: int) -> str:
    """The one line that a command that fails prints, once its exit status is seen to be right."""
    assert cli.run([str(argument) for argument in arguments]) == status
    printed = capsys.readouterr()
    assert printed.err.startswith("replaybank: error: ")
    assert printed.err.count("\n") == 1
    assert "Traceback" not in printed.err + printed.out
    return printed.err


def in_a_process(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [sys.executable, "-m", "replaybank", *arguments], capture_output=True, text=True, **options
    )


def raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def summarise(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("replaybank.datasets.openx.summary.summarise", summarise)
