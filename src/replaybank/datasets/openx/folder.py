"""Which files of a folder are a conversion's: removing them and nothing else, and keeping others out."""

from __future__ import annotations

import os
from pathlib import Path

from replaybank.datasets.openx.files import (
    CHECKSUMS,
    EPISODES,
    MANIFEST,
    METADATA,
    PROGRESS,
    ROWS,
    STATS,
    STRINGS,
    is_converted,
)
from replaybank.datasets.openx.locks import LOCK, FolderLock

_NUMBERED = ("column-", "frames-", "ends-")


def discard(folder: str | Path) -> None:
    """Remove the files of a converted dataset, complete or not, and nothing else.

    Raises:
        FileExistsError: something else is in the folder; nothing was removed.
    """
    folder = Path(folder)
    check_ours(folder)
    # The manifest first: without it, what is left is no dataset, whenever this is interrupted.
    for name in (MANIFEST, *sorted(_ours(folder) - {MANIFEST, PROGRESS, LOCK}), PROGRESS):
        (folder / name).unlink(missing_ok=True)


def check_ours(folder: Path) -> None:
    """Raise FileExistsError if a folder holds anything but a conversion."""
    ours = _ours(folder)
    strangers = {entry.name for entry in folder.iterdir()} - ours - {LOCK}
    if strangers or (ours and not is_converted(folder) and not (folder / LOCK).exists()):
        found = ", ".join(sorted(strangers or ours)[:3])
        raise FileExistsError(
            f"{folder} holds files that are not of a converted dataset ({found}): choose another folder"
        )


def _ours(folder: Path) -> set[str]:
    """Names in a folder that only a conversion makes."""
    fixed = {MANIFEST, PROGRESS, ROWS, EPISODES, STRINGS, METADATA, CHECKSUMS, STATS}
    names = {entry.name for entry in folder.iterdir() if entry.is_file()}
    numbered = {name for name in names if name.startswith(_NUMBERED) and name.endswith(".bin")}
    return (names & fixed) | numbered | temporary(folder)


def temporary(folder: Path) -> set[str]:
    """Names of new versions of files that have not replaced the old one."""
    return {path.name for name in (PROGRESS, STATS) for path in folder.glob(f".{name}.*.tmp")}


def claim(folder: Path) -> FolderLock:
    """Keep other conversions out of a folder, which is made if it is missing.

    Raises:
        BlockingIOError: another one is at work there.
        FileExistsError: the path is a file, or a folder that holds something else.
    """
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: a converted dataset is a folder, choose another name")
    if folder.is_symlink() and not folder.exists():
        target = os.readlink(folder)
        raise FileExistsError(f"{folder} is a link to {target}, which is not there: make that first")
    folder.mkdir(parents=True, exist_ok=True)
    check_ours(folder)
    return FolderLock(folder, "another conversion")
