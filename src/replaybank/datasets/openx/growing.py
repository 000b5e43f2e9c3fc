"""Files that grow at their ends: small pieces are written together, and the disk is kept at work."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from replaybank import _native
from replaybank.datasets.openx.files import ANEW
from replaybank.datasets.openx.frames import WRITE_BACK, Content, write_at
from replaybank.errors import DataFormatError

TOGETHER = 1 << 18
"""Bytes of a file that are held until they are written at once: a call of the system takes as long as the
numbers of an episode do."""

_LEAST_AHEAD, _MOST_AHEAD = 1 << 20, 1 << 26
"""Bytes of a file that are reserved ahead of what is written; the rest is given back at the end. Writing then
takes two thirds of the time, and half of it where more than ``TOGETHER`` is written at once."""


class GrowingFiles:
    """Files of a folder that are appended to. Not thread-safe.

    Args:
        folder: where they are.
    """

    def __init__(self, folder: Path) -> None:
        self.sizes: dict[str, int] = {}
        """Bytes of each, with those that are still to come from memory or from somebody else."""
        self._folder = folder
        self._opened: dict[str, IO[bytes]] = {}
        self._held: dict[str, bytearray] = {}  # the ends of files, not written yet
        self._reserved: dict[str, int] = {}  # bytes that files have on the disk, what is to come included
        self._begun: dict[str, int] = {}  # bytes that the disk was told to begin with

    def open(self, name: str, size: int) -> None:
        """Open a file, made if it is missing, and cut it to a size.

        Raises:
            DataFormatError: it is shorter.
        """
        path = self._folder / name
        mode = "r+b" if path.exists() else "x+b"
        file = open(path, mode, buffering=0)  # noqa: SIM115  (closed by close())
        self._opened[name] = file
        found = file.seek(0, os.SEEK_END)
        if found < size:
            raise DataFormatError(f"{path} has {found} bytes, the progress says {size}: {ANEW}")
        file.truncate(size)  # of the same size too: gives back what was reserved behind it
        self.sizes[name] = self._begun[name] = size
        self._held[name] = bytearray()

    def append(self, name: str, content: Content) -> None:
        """Put at the end of a file. O(bytes).

        Args:
            name: of the file.
            content: bytes, or an array of uint8.
        """
        held, count = self._held[name], len(content)
        self.sizes[name] += count
        if count < TOGETHER:
            held += memoryview(content)  # type: ignore[arg-type]  # an array alone would add numbers
            if len(held) >= TOGETHER:
                self._write_held(name, self.sizes[name])
        else:
            at = self.sizes[name] - count
            self._write_held(name, at)
            self._reserve_large(name)
            write_at(self.descriptor(name), at, content)
            self.written(name, at + count)

    def claim(self, name: str, size: int) -> int:
        """Where the next bytes of a file go, which somebody else writes there.

        Nothing is to be appended to such a file.

        Args:
            name: of the file.
            size: how many.
        """
        at = self.sizes[name]
        self.sizes[name] = at + size
        self._reserve(name)
        return at

    def written(self, name: str, size: int) -> None:
        """Be told that a file is written up to a size, and have the disk begin with it once that is much."""
        begun = self._begun[name]
        if size - begun >= WRITE_BACK:
            _native.start_write_back(self.descriptor(name), begun, size - begun)
            self._begun[name] = size

    def descriptor(self, name: str) -> int:
        """The descriptor of a file."""
        return self._opened[name].fileno()

    def cut(self, name: str, size: int) -> None:
        """Cut off what is behind a size; nobody else is writing any more."""
        # Anew: the error of a write that failed may still have a view of what is held.
        held = self._held[name][: max(0, len(self._held[name]) - (self.sizes[name] - size))]
        self._held[name] = held
        self._opened[name].truncate(size - len(held))
        self.sizes[name] = size
        self._begun[name] = min(self._begun[name], size)
        self._reserved.pop(name, None)

    def sync(self) -> None:
        """Make all of it permanent."""
        for name, file in self._opened.items():
            self._write_held(name, self.sizes[name])
            # All of them first: the file system then has one thing to note, instead of one for each.
            _native.start_write_back(file.fileno(), self._begun[name], 0)
        for file in self._opened.values():
            os.fsync(file.fileno())

    def trim(self, sizes: Mapping[str, int]) -> None:
        """Give back what was reserved behind these sizes, or written there."""
        for name, size in sizes.items():
            if self.sizes[name] != size or name in self._reserved:
                self._opened[name].truncate(size)

    def close(self) -> None:
        """Close them; what is held is lost."""
        opened, self._opened = self._opened, {}
        with contextlib.ExitStack() as closing:  # all of them, though one may find the disk full
            for file in opened.values():
                closing.callback(file.close)

    def _write_held(self, name: str, size: int) -> None:
        """Write what is held of a file, which then has ``size`` bytes. If it fails, it is still held."""
        held = self._held[name]
        if held:
            self._reserve_large(name)
            with memoryview(held) as content:
                write_at(self.descriptor(name), size - len(held), content)
            held.clear()
            self.written(name, size)

    def _reserve_large(self, name: str) -> None:
        """Have blocks set aside for a file that has become large: for a small one it would take longer."""
        if self.sizes[name] > _LEAST_AHEAD:
            self._reserve(name)

    def _reserve(self, name: str) -> None:
        """Have the disk's blocks set aside ahead of what is written."""
        size = self.sizes[name]
        if size > self._reserved.get(name, 0):
            self._reserved[name] = size + min(max(size, _LEAST_AHEAD), _MOST_AHEAD)
            # Where it cannot be done nothing is lost; a full disk is found out when it is written to.
            _native.reserve_blocks(self.descriptor(name), self._reserved[name])
