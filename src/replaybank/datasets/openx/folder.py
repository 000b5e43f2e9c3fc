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
_FIXED = frozenset({MANIFEST, PROGRESS, ROWS, EPISODES, STRINGS, METADATA, CHECKSUMS, STATS})


def discard(folder: str | Path) -> None:
    """Remove the files of a converted dataset, complete or not, and nothing else.

    Raises:
        FileExistsError: something else is in the folder; nothing was removed.
    """
    folder = Path(folder)
    ours = check_ours(folder)
    # The manifest first: without it, what is left is no dataset, whenever this is interrupted.
    for name in (MANIFEST, *sorted(ours - {MANIFEST, PROGRESS}), PROGRESS):
        (folder / name).unlink(missing_ok=True)


def check_ours(folder: Path) -> set[str]:
    """Names of the files of a conversion in a folder, which holds nothing else.

    Another conversion may be at work there: what comes, or gets its final name, meanwhile is no stranger.

    Raises:
        FileExistsError: something else is in the folder.
    """
    with os.scandir(folder) as entries:
        files = {entry.name: entry.is_file() for entry in entries if entry.name != LOCK}
    ours = {name for name, is_file in files.items() if is_file and _is_ours(name)}
    strangers = set(files) - ours
    # The lock before the rest: it goes when there is a manifest, and not before.
    if strangers or (ours and not (folder / LOCK).exists() and not is_converted(folder)):
        found = ", ".join(sorted(strangers or ours)[:3])
        raise FileExistsError(
            f"{folder} holds files that are not of a converted dataset ({found}): choose another folder"
        )
    return ours


def _is_ours(name: str) -> bool:
    """Whether only a conversion gives a file this name."""
    return name in _FIXED or _is_temporary(name) or (name.startswith(_NUMBERED) and name.endswith(".bin"))


def _is_temporary(name: str) -> bool:
    return name.startswith((f".{PROGRESS}.", f".{STATS}.")) and name.endswith(".tmp")


def temporary(folder: Path) -> set[str]:
    """Names of new versions of files that have not replaced the old one."""
    return {name for name in os.listdir(folder) if _is_temporary(name)}


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
