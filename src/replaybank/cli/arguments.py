"""What several commands take: paths as people type them, and choices."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path

import typer


class OnError(str, Enum):
    """What to do with a record that cannot be read."""

    raise_ = "raise"
    skip = "skip"


class Images(str, Enum):
    """How the frames of a converted dataset are kept."""

    raw = "raw"
    encoded = "encoded"


class Origin(str, Enum):
    """Where a dataset is published."""

    rlds = "rlds"
    hub = "hub"
    lerobot = "lerobot"


class LastStep(str, Enum):
    """What becomes of the last step of an episode."""

    keep = "keep"
    drop = "drop"


def data_path(text: str) -> str:
    """A path as it was typed, ``~`` for the home folder; a URL as it is."""
    if not text.strip():
        raise typer.BadParameter("the path is empty: give a folder, a URL or an id of `replaybank list`")
    return text if "://" in text else os.path.expanduser(text)


def output_file(text: str, name: str) -> str:
    """A file to write."""
    if not text.strip() or "://" in text:
        raise typer.BadParameter(f"{name} {text!r}: give a file of this machine")
    return data_path(text)


def output_folder(text: str, name: str) -> Path:
    """A folder to write to."""
    if not text.strip():
        raise typer.BadParameter(f"{name} is empty: give a folder")
    if "://" in text:
        raise typer.BadParameter(f"{name} is a URL, {text}: give a folder of this machine")
    return Path(data_path(text))
