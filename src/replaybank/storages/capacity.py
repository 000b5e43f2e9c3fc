"""Is there room? Asked before memory or disk is taken: the answer is an error, not a killed process."""

from __future__ import annotations

import errno
import operator
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_NO_LIMIT = 1 << 60  # cgroup v1 writes a huge number where there is no limit

# What counts as used and is given back as soon as somebody asks: copies of files, mostly. After a dataset was
# read they fill a container to its limit.
_RECLAIMABLE = ("inactive_file", "active_file", "slab_reclaimable")

SHARED_MEMORY_DIR = "/dev/shm"
"""Where shared memory lives on Linux; it has a size of its own, beyond which a write kills the process."""


def available_memory() -> int | None:
    """Bytes that can still be taken, the lesser of the machine's and the container's; None if unknown."""
    found = [value for value in (_machine(), _cgroup()) if value is not None]
    return min(found) if found else None


def _machine() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:  # no /proc (macOS): what there is in all is still a bound
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _cgroup() -> int | None:
    """The least of what this process's control groups allow, whether a container's or a cluster job's."""
    found = [
        value
        for folder, limit, usage, prefix in _cgroup_folders()
        if (value := _left_in(folder, limit, usage, prefix)) is not None
    ]
    return min(found, default=None)


def _cgroup_folders() -> Iterator[tuple[Path, str, str, str]]:
    """Folders of the groups that the process is in, the outer ones too, and names of the files in each."""
    try:
        lines = _OWN_CGROUPS.read_text().splitlines()
    except OSError:
        lines = ["0::/", "1:memory:/"]
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:  # version 2
            root, names = _CGROUP_ROOT, ("memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            root, names = (
                _CGROUP_ROOT / "memory",
                ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
            )
        else:
            continue
        own = root / path.lstrip("/")
        # In a container the path may be that of the host, where nothing is: then its own group is the root.
        for folder in (own, *own.parents):
            if folder == root or root in folder.parents:
                yield folder, *names


def _left_in(folder: Path, limit: str, usage: str, prefix: str) -> int | None:
    try:
        allowed = int((folder / limit).read_text())
        used = int((folder / usage).read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return None
    if allowed >= _NO_LIMIT:
        return None
    try:
        lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        stat = {name: int(value) for name, value in lines}
    except (OSError, ValueError):
        stat = {}
    used -= sum(stat.get(prefix + name, 0) for name in _RECLAIMABLE)
    return min(max(allowed - used, 0), allowed)


def human(count: int) -> str:
    """Bytes as people say them.

    Example:
        >>> human(165), human(10 * 2**40)
        ('165 bytes', '10.0 TiB')
    """
    if count < 1024:
        return f"{count} bytes"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} PiB"


def whole_number(value: Any, name: str) -> int:
    """A size that a user gave, as an int: NumPy's whole numbers are ints as well.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is less than 1.

    Example:
        >>> whole_number(np.int32(3), "max_size")
        3
    """
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(
            f"{name} is a whole number, got {value!r:.80} of type {type(value).__name__}: give an int, as in "
            f"{name}=1_000_000."
        )
    if number < 1:
        raise ValueError(f"{name} is at least 1, got {name}={number}.")
    return number


MEMORY_ADVICE = "Ask for fewer items, or use LazyMemmapStorage to keep them on disk."


def check_memory(
    wanted: int, what: str, device: torch.device | None = None, *, advice: str = MEMORY_ADVICE
) -> None:
    """Refuse what does not fit into memory.

    Args:
        wanted: bytes.
        what: what they are for, the start of a sentence.
        device: where; the CPU by default.
        advice: what to do, the end of the message.

    Raises:
        MemoryError: there is less; both numbers are in the message.
    """
    if device is not None and device.type == "cuda":
        free: int | None = torch.cuda.mem_get_info(device)[0]
    elif device is None or device.type == "cpu":
        free = available_memory()
    else:
        free = None
    if free is not None and wanted > free:
        raise MemoryError(f"{what} needs {human(wanted)} of memory and {human(free)} are available. {advice}")


def check_disk(wanted: int, what: str, folder: str | os.PathLike[str]) -> None:
    """Refuse what does not fit onto the disk that ``folder`` is on.

    Raises:
        OSError: with ``errno.ENOSPC``: there is less; both numbers are in the message.
    """
    free = shutil.disk_usage(folder).free
    if wanted > free:
        raise OSError(
            errno.ENOSPC,
            f"{what} needs {human(wanted)} in {os.fspath(folder)} and {human(free)} are free there. "
            "Ask for fewer items, or choose another folder.",
        )


def check_shared_memory(wanted: int, what: str) -> None:
    """Refuse what does not fit into shared memory, as :func:`check_memory` does for memory."""
    check_memory(wanted, what)
    if os.path.isdir(SHARED_MEMORY_DIR):
        check_disk(wanted, what, SHARED_MEMORY_DIR)
