"""Atomic, checked saving of named tensors and plain values.

A checkpoint is a directory::

    CURRENT              which saves are complete, newest first; replaced in one step, last of all
    state-00000007/      one save: manifest.json, and one file of raw little-endian bytes a tensor

Tensors that change a few rows at a time have several files (:mod:`replaybank.checkpoint_rows`): a save writes
the rows that have changed since the one before it, and shares the other files with it, as hard links. Every
folder of a save is complete by itself, and no file is changed once it is written.

Reading runs no code from the files: they hold JSON and raw bytes only, and every size is compared
with the file it describes before memory is taken for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from replaybank.checkpoint_fields import Field, FieldSpec, StoredField
from replaybank.checkpoint_files import fsync_directory, write_atomically
from replaybank.checkpoint_rows import Rows, StoredRows
from replaybank.checkpoint_state import Earlier, Saved, SaveEntry, encode, read_state, write_state
from replaybank.errors import DataFormatError
from replaybank.file_lock import FileLock
from replaybank.progress import watched_bytes
from replaybank.sending import Sendable

__all__ = [
    "Field",
    "FieldSpec",
    "Rows",
    "Stateful",
    "StoredField",
    "StoredRows",
    "StrPath",
    "fsync_directory",
    "is_checkpoint",
    "load",
    "opened",
    "save",
    "write_json_atomically",
]

StrPath: TypeAlias = "str | os.PathLike[str]"

POINTER = "CURRENT"

_STATE_NAME = re.compile(r"state-[0-9]{8,18}")
_POINTER_LINE = re.compile(rb"(state-[0-9]{8,18}) ([0-9]{1,18}) ([0-9a-f]{8})\n")
_POINTER_TEXT = re.compile(rb"((?:" + _POINTER_LINE.pattern + rb")+)([0-9a-f]{8})\n")


def save(
    path: StrPath,
    state: Mapping[str, Any],
    *,
    keep: int = 0,
    allow_pickle: bool = False,
    progress: bool | None = None,
) -> None:
    """Save a state as the newest one of the checkpoint at ``path``.

    Killed at any instant, the directory holds the state before or the state after, whole. Saves of several
    threads or processes to one path wait for each other.

    Args:
        path: directory; made if missing. Files in it that are not a checkpoint's are left alone.
        state: nested dicts with string keys, lists, tuples and TensorDicts of tensors, int, float, bool, str
            and None. Of :class:`Rows`, tensors that know what has changed, only that is written if the newest
            save at ``path`` holds the rest.
        keep: number of earlier saves that stay readable (see ``load(back=)``).
        allow_pickle: pickle what is none of these; such a state loads only with ``allow_pickle`` again.
        progress: show the bytes written, once that takes longer than two seconds; by default where the error
            output is a terminal.

    Raises:
        TypeError: the state holds something else, or a key that is no string, or ``keep`` is no integer;
            nothing has been saved.
        ValueError: ``keep`` is negative.

    Complexity:
        O(bytes written); bound by the disk.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(folder, {"weights": torch.ones(2), "steps": 3})
        ...     load(folder)
        {'weights': tensor([1., 1.]), 'steps': 3}
    """
    if isinstance(keep, bool) or not hasattr(keep, "__index__"):
        raise TypeError(f"keep={keep!r} is a {type(keep).__name__}; give an integer.")
    keep = keep.__index__()
    if keep < 0:
        raise ValueError(f"keep={keep}: give the number of earlier saves to keep, 0 or more.")
    _refuse_big_endian()
    tensors: list[tuple[str, Saved]] = []
    tree = encode(state, "state", tensors, allow_pickle)
    root = Path(path)
    if (root.exists() or root.is_symlink()) and not root.is_dir():
        raise FileExistsError(f"{root} is a file: a checkpoint is a folder, choose another name.")
    root.mkdir(parents=True, exist_ok=True)
    with _lock(root, exclusive=True):
        # What a killed saver left: with the lock held, no other can be about to use it.
        for left in root.glob(f".{POINTER}.*.tmp"):
            left.unlink(missing_ok=True)
        complete = _complete_saves(root)
        number = max((int(name.removeprefix("state-")) for name in _state_folders(root)), default=0) + 1
        folder = root / f"state-{number:08d}"
        folder.mkdir()
        try:
            some_know = any(isinstance(tensor, Rows) for _, tensor in tensors)
            earlier = Earlier.of(root / complete[0].folder, complete[0]) if some_know and complete else None
            with watched_bytes("Saving", progress):
                entry = write_state(folder, tree, tensors, earlier)
            fsync_directory(root)
            kept = [entry, *complete[:keep]]
            lines = "".join(f"{save.folder} {save.size} {save.crc32:08x}\n" for save in kept)
            write_atomically(root / POINTER, f"{lines}{zlib.crc32(lines.encode()):08x}\n".encode())
        except BaseException:
            # Not once the pointer names it: an interrupt may come between the two.
            if all(save.folder != folder.name for save in _complete_saves(root)):
                shutil.rmtree(folder, ignore_errors=True)
            raise
        for name in _state_folders(root) - {save.folder for save in kept}:
            shutil.rmtree(root / name, ignore_errors=True)


def load(
    path: StrPath, *, back: int = 0, allow_pickle: bool = False, progress: bool | None = None
) -> dict[str, Any]:
    """Read the newest complete state of a checkpoint, or an earlier one that was kept.

    Warns if a later save had been begun and not finished.

    Args:
        path: the directory given to :func:`save`.
        back: how many saves to go back; 0 is the newest.
        allow_pickle: unpickle objects that were pickled. This can run any code: only for files you trust.
        progress: show the bytes read, once that takes longer than two seconds; by default where the error
            output is a terminal.

    Returns:
        What was saved, tensors on the CPU.

    Raises:
        FileNotFoundError: there is no checkpoint at ``path``.
        IndexError: fewer saves than ``back`` were kept.
        DataFormatError: a file is missing, damaged, cut short or hostile, or holds a pickle that is not
            allowed; the message names it.
    """
    with (
        watched_bytes("Loading", progress),
        opened(path, back=back, allow_pickle=allow_pickle, stored=False) as state,
    ):
        return state


@contextlib.contextmanager
def opened(
    path: StrPath, *, back: int = 0, allow_pickle: bool = False, stored: bool = True
) -> Iterator[dict[str, Any]]:
    """As :func:`load`, with what was saved of :class:`Rows` as :class:`StoredRows`, read when asked for.

    Checksums are compared beforehand. The state is good within the ``with`` block, where savers to ``path``
    wait.

    Args:
        path: as for :func:`load`, with what it raises.
        back: likewise.
        allow_pickle: likewise.
        stored: False: read all at once.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(folder, {"x": Rows(torch.arange(4), "h", "x", (0,), lambda mark: None)})
        ...     with opened(folder) as state:
        ...         state["x"][1:3]
        tensor([1, 2])
    """
    _refuse_big_endian()
    root = Path(path)
    if not (root / POINTER).is_file():
        raise FileNotFoundError(f"{root} holds no checkpoint: there is no file {POINTER} in it.")
    with _lock(root, exclusive=False):
        complete = _read_pointer(root)
        if not 0 <= back < len(complete):
            raise IndexError(
                f"back={back}, but {root} keeps {len(complete)} saves: 0 to {len(complete) - 1}."
            )
        unfinished = sorted(name for name in _state_folders(root) if name > complete[0].folder)
        if unfinished:
            warnings.warn(
                f"{root / unfinished[-1]} was begun and not finished; the last complete state, "
                f"{complete[back].folder}, is loaded.",
                stacklevel=4,
            )
        yield read_state(root / complete[back].folder, complete[back], allow_pickle, stored=stored)


def is_checkpoint(path: StrPath) -> bool:
    """Whether a folder holds a checkpoint.

    >>> is_checkpoint("/nowhere")
    False
    """
    return (Path(path) / POINTER).is_file()


class Stateful(Sendable, ABC):
    """A part whose whole state is named tensors and plain values, so that saving is written once.

    Thread-safety: as that of the part.
    """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The full state: nested dicts and lists of tensors, int, float, bool, str and None."""

    @abstractmethod
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state that :meth:`state_dict` gave; ``state_dict`` itself is not changed."""

    def state_to_save(self) -> dict[str, Any]:
        """The state to be saved at once, before anything changes: it may hold views, and :class:`Rows`."""
        return self.state_dict()

    @property
    def takes_stored_rows(self) -> bool:
        """Whether :meth:`load_state_dict` takes :class:`StoredRows` in place of tensors."""
        return False

    def dumps(
        self, path: StrPath, *, keep: int = 0, allow_pickle: bool = False, progress: bool | None = None
    ) -> None:
        """Save the state into the directory ``path``, atomically (see :func:`save`)."""
        save(path, self.state_to_save(), keep=keep, allow_pickle=allow_pickle, progress=progress)

    def loads(self, path: StrPath, *, allow_pickle: bool = False, progress: bool | None = None) -> None:
        """Take over the state that :meth:`dumps` left in ``path`` (see :func:`load`)."""
        with (
            watched_bytes("Loading", progress),
            opened(path, allow_pickle=allow_pickle, stored=self.takes_stored_rows) as state,
        ):
            self.load_state_dict(state)


def write_json_atomically(path: StrPath, obj: Any) -> None:
    """Replace a file by ``obj`` as JSON in one step: a reader finds the old text or the new one, whole.

    Raises:
        TypeError, ValueError: ``obj`` is no JSON (NaN is none); the file is as it was.
    """
    text = json.dumps(obj, indent=1, allow_nan=False)
    write_atomically(Path(path), (text + "\n").encode())


# --- the pointer -----------------------------------------------------------------------------------------


def _read_pointer(root: Path) -> list[SaveEntry]:
    file = root / POINTER
    text = _POINTER_TEXT.fullmatch(file.read_bytes())
    # The digits are compared, not their value: an upper-case one is damage too.
    if text is None or b"%08x" % zlib.crc32(text[1]) != text[5]:
        raise DataFormatError(f"{file} is damaged: its checksum or form is wrong.")
    return [SaveEntry(m[1].decode(), int(m[2]), int(m[3], 16)) for m in _POINTER_LINE.finditer(text[1])]


def _complete_saves(root: Path) -> list[SaveEntry]:
    """The saves that the pointer names; none if it is missing or damaged."""
    try:
        return _read_pointer(root)
    except (OSError, DataFormatError):
        return []


def _state_folders(root: Path) -> set[str]:
    return {name for name in os.listdir(root) if _STATE_NAME.fullmatch(name)}


@contextlib.contextmanager
def _lock(root: Path, *, exclusive: bool) -> Iterator[None]:
    """Keep savers apart from each other and from readers; freed by the system when its holder dies."""
    lock = FileLock(root, os.O_RDONLY)
    try:
        # A file system without locks (some network ones) still serves a single saver.
        with contextlib.suppress(OSError):
            lock.take(exclusive=exclusive)
        yield
    finally:
        lock.release()


def _refuse_big_endian() -> None:
    if sys.byteorder != "little":
        raise RuntimeError("Checkpoints hold little-endian bytes; this machine is big-endian.")
