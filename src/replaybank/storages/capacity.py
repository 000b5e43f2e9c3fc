"""Is there room? Asked before memory or disk is taken: the answer is an error, not a killed process."""

from __future__ import annotations

import errno
import operator
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60  # cgroup v1 writes a huge number where there is no limit

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
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            allowed = int((_CGROUP_ROOT / limit).read_text())
            used = int((_CGROUP_ROOT / usage).read_text())
        except (OSError, ValueError):  # no such file, or "max"
            continue
        if allowed < _NO_LIMIT:
            return max(allowed - used, 0)
    return None


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
