"""Atomic, checked saving of named tensors and plain values.

A checkpoint is a directory::

    CURRENT              which saves are complete, newest first; replaced in one step, last of all
    state-00000007/      one save: manifest.json, and one file of raw little-endian bytes a tensor

Reading runs no code from the files: they hold JSON and raw bytes only, and every size is compared
with the file it describes before memory is taken for it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import stat
import sys
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import torch
from tensordict import NonTensorData, TensorDict, is_tensor_collection
from torch import Tensor

from replaybank.errors import DataFormatError

try:
    import fcntl
except ImportError:  # no file locks on this system: two savers of one path must then not meet
    fcntl = None  # type: ignore[assignment]

StrPath: TypeAlias = "str | os.PathLike[str]"

FORMAT_VERSION = 1
POINTER = "CURRENT"
MANIFEST = "manifest.json"

_CHUNK = 1 << 24  # bytes read, written and summed at a time: large beside a system call, small beside RAM
_MAX_DIMS = 64  # torch's own limit on the dimensions of a tensor that its iterators accept
_STATE_NAME = re.compile(r"state-[0-9]{8,18}")
_POINTER_LINE = re.compile(rb"(state-[0-9]{8,18}) ([0-9]{1,18}) ([0-9a-f]{8})\n")
_POINTER_TEXT = re.compile(rb"((?:" + _POINTER_LINE.pattern + rb")+)([0-9a-f]{8})\n")

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
        *(torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
        *(torch.float8_e4m3fn, torch.float8_e5m2),
    )
}


def save(path: StrPath, state: Mapping[str, Any], *, keep: int = 0) -> None:
    """Save a state as the newest one of the checkpoint at ``path``.

    Killed at any instant, the directory holds the state before or the state after, whole. Saves of several
    threads or processes to one path wait for each other.

    Args:
        path: directory; made if missing. Files in it that are not a checkpoint's are left alone.
        state: nested dicts with string keys, lists, tuples and TensorDicts of tensors, int, float, bool, str
            and None.
        keep: number of earlier saves that stay readable (see ``load(back=)``).

    Raises:
        TypeError: the state holds something else, or a key that is no string; nothing has been saved.
        ValueError: ``keep`` is negative.

    Complexity:
        O(bytes); bound by the disk.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(folder, {"weights": torch.ones(2), "steps": 3})
        ...     load(folder)
        {'weights': tensor([1., 1.]), 'steps': 3}
    """
    if keep < 0:
        raise ValueError(f"keep={keep}: give the number of earlier saves to keep, 0 or more.")
    _refuse_big_endian()
    tensors: list[tuple[str, Tensor]] = []
    tree = _encode(state, "state", tensors)
    root = Path(path)
    root.mkdir(parents=True, exist_ok=True)
    with _lock(root, exclusive=True):
        complete = _complete_saves(root)
        number = max((int(name.removeprefix("state-")) for name in _state_folders(root)), default=0) + 1
        folder = root / f"state-{number:08d}"
        folder.mkdir()
        try:
            entry = _write_state(folder, tree, tensors)
            fsync_directory(root)
            kept = [entry, *complete[:keep]]
            lines = "".join(f"{save.folder} {save.size} {save.crc32:08x}\n" for save in kept)
            _replace_file(root / POINTER, f"{lines}{zlib.crc32(lines.encode()):08x}\n".encode())
        except BaseException:
            # Not once the pointer names it: an interrupt may come between the two.
            if all(save.folder != folder.name for save in _complete_saves(root)):
                shutil.rmtree(folder, ignore_errors=True)
            raise
        for name in _state_folders(root) - {save.folder for save in kept}:
            shutil.rmtree(root / name, ignore_errors=True)


def load(path: StrPath, *, back: int = 0) -> dict[str, Any]:
    """Read the newest complete state of a checkpoint, or an earlier one that was kept.

    Warns if a later save had been begun and not finished.

    Args:
        path: the directory given to :func:`save`.
        back: how many saves to go back; 0 is the newest.

    Returns:
        What was saved, tensors on the CPU.

    Raises:
        FileNotFoundError: there is no checkpoint at ``path``.
        IndexError: fewer saves than ``back`` were kept.
        DataFormatError: a file is missing, damaged, cut short or hostile; the message names it.
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
                stacklevel=2,
            )
        return _read_state(root / complete[back].folder, complete[back])


class Stateful(ABC):
    """A part whose whole state is named tensors and plain values, so that saving is written once.

    Thread-safety: as that of the part.
    """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """The full state: nested dicts and lists of tensors, int, float, bool, str and None."""

    @abstractmethod
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state that :meth:`state_dict` gave; ``state_dict`` itself is not changed."""

    def dumps(self, path: StrPath) -> None:
        """Save the state into the directory ``path``, atomically (see :func:`save`)."""
        save(path, self.state_dict())

    def loads(self, path: StrPath) -> None:
        """Take over the state that :meth:`dumps` left in ``path`` (see :func:`load`)."""
        self.load_state_dict(load(path))


def write_json_atomically(path: StrPath, obj: Any) -> None:
    """Replace a file by ``obj`` as JSON in one step: a reader finds the old text or the new one, whole.

    Raises:
        TypeError, ValueError: ``obj`` is no JSON (NaN is none); the file is as it was.
    """
    text = json.dumps(obj, indent=1, allow_nan=False)
    _replace_file(Path(path), (text + "\n").encode())


def fsync_directory(path: StrPath) -> None:
    """Have the names in a directory on the disk: without it, a file made or renamed may be lost."""
    if os.name == "nt":  # a directory cannot be opened there; renames are journalled
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- the pointer -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Save:
    """A line of the pointer: a complete save, and what its manifest must look like."""

    folder: str
    size: int
    crc32: int


def _read_pointer(root: Path) -> list[_Save]:
    file = root / POINTER
    text = _POINTER_TEXT.fullmatch(file.read_bytes())
    # The digits are compared, not their value: an upper-case one is damage too.
    if text is None or b"%08x" % zlib.crc32(text[1]) != text[5]:
        raise DataFormatError(f"{file} is damaged: its checksum or form is wrong.")
    return [_Save(m[1].decode(), int(m[2]), int(m[3], 16)) for m in _POINTER_LINE.finditer(text[1])]


def _complete_saves(root: Path) -> list[_Save]:
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
    if fcntl is None:
        yield
        return
    descriptor = os.open(root, os.O_RDONLY)
    try:
        # A file system without locks (some network ones) still serves a single saver.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield
    finally:
        # Freed by hand: a child forked meanwhile holds a copy of the descriptor.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _replace_file(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def _refuse_big_endian() -> None:
    if sys.byteorder != "little":
        raise RuntimeError("Checkpoints hold little-endian bytes; this machine is big-endian.")


# --- one save --------------------------------------------------------------------------------------------


def _encode(value: Any, where: str, tensors: list[tuple[str, Tensor]]) -> Any:
    """JSON for a value: objects have one key, which says what they stand for; tensors are put aside."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Tensor):
        plain = value.detach()
        name = str(plain.dtype).removeprefix("torch.")
        if name not in _DTYPES or plain.layout != torch.strided or plain.is_nested or plain.is_meta:
            raise TypeError(
                f"{where}: a tensor of dtype {plain.dtype}, layout {plain.layout} on {plain.device} cannot "
                f"be saved; dense tensors of {', '.join(_DTYPES)} can."
            )
        tensors.append((where, plain))
        return {"tensor": len(tensors) - 1}
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if type(value) is TensorDict:
        entries = {key: _encode(item, f"{where}.{key}", tensors) for key, item in value.items()}
        return {"tensordict": {"batch_size": list(value.batch_size), "entries": entries}}
    if type(value) is NonTensorData:
        data = _encode(value.data, where, tensors)
        return {"nontensor": {"batch_size": list(value.batch_size), "data": data}}
    if isinstance(value, Mapping) and not is_tensor_collection(value):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where}: the key {key!r} is a {type(key).__name__}; keys must be strings.")
        return {"dict": {str(key): _encode(item, f"{where}.{key}", tensors) for key, item in value.items()}}
    if isinstance(value, (list, tuple)):
        items = [_encode(item, f"{where}[{i}]", tensors) for i, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    raise TypeError(
        f"{where} is a {type(value).__name__}; tensors, int, float, bool, str, None, and dicts, lists, "
        "tuples and TensorDicts of them can be saved."
    )


def _write_state(folder: Path, tree: Any, tensors: list[tuple[str, Tensor]]) -> _Save:
    entries = []
    for number, (name, tensor) in enumerate(tensors):
        file = f"{number}.bin"
        size, checksum = _write_tensor(folder / file, tensor)
        entries.append(
            {
                "file": file,
                "name": name,
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "shape": list(tensor.shape),
                "bytes": size,
                "crc32": checksum,
            }
        )
    manifest = {"format": "replaybank-state", "version": FORMAT_VERSION, "tensors": entries, "state": tree}
    content = json.dumps(manifest, allow_nan=False).encode()
    with open(folder / MANIFEST, "xb") as out:
        out.write(content)
        os.fsync(out.fileno())
    fsync_directory(folder)
    return _Save(folder.name, len(content), zlib.crc32(content))


def _write_tensor(path: Path, tensor: Tensor) -> tuple[int, int]:
    size, checksum = 0, 0
    with open(path, "xb", buffering=0) as out:
        for block in _blocks(tensor):
            content = _bytes_of(block)
            while content:
                piece = content[:_CHUNK]
                checksum = zlib.crc32(piece, checksum)
                written = 0
                while written < len(piece):
                    written += out.write(piece[written:])
                size += len(piece)
                content = content[_CHUNK:]
        os.fsync(out.fileno())
    return size, checksum


def _blocks(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor in contiguous CPU pieces along its first dimension, so that a strided one is not doubled."""
    if tensor.numel() == 0:
        return
    if tensor.dim() == 0 or (tensor.is_contiguous() and tensor.device.type == "cpu"):
        yield tensor.resolve_conj().resolve_neg().cpu().contiguous()
        return
    rows = max(1, _CHUNK // max(1, tensor[0].numel() * tensor.element_size()))
    for start in range(0, tensor.shape[0], rows):
        yield tensor[start : start + rows].resolve_conj().resolve_neg().cpu().contiguous()


def _bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor of at least one element."""
    # Strides of dimensions of size 1 may be anything in a contiguous tensor; views as bytes want them to be 1.
    array: Any = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
    return memoryview(array)


def _read_state(folder: Path, expected: _Save) -> dict[str, Any]:
    file = folder / MANIFEST
    with _regular_file(file, expected.size) as source:
        content = source.read()
    if zlib.crc32(content) != expected.crc32:
        raise DataFormatError(f"{file} is damaged: its checksum is wrong.")
    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataFormatError(f"{file} is not JSON that can be read: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != "replaybank-state":
        raise DataFormatError(f"{file} is no manifest of a replaybank state.")
    if manifest.get("version") != FORMAT_VERSION:
        raise DataFormatError(
            f"{file} has version {manifest.get('version')!r}; this replaybank reads {FORMAT_VERSION}. "
            "Load it with the release that wrote it."
        )
    entries = manifest.get("tensors")
    if not isinstance(entries, list):
        raise DataFormatError(f"{file}: 'tensors' is no list.")
    # All are checked before memory is taken for the first.
    checked = [_check_entry(folder, file, number, entry) for number, entry in enumerate(entries)]
    try:
        state = _decode(manifest.get("state"), file, [_read_tensor(entry) for entry in checked])
    except RecursionError:
        raise DataFormatError(f"{file}: the state is nested too deeply.") from None
    if not isinstance(state, dict):
        raise DataFormatError(f"{file}: the state is no dict.")
    return state


@dataclass(frozen=True)
class _Entry:
    """A tensor of a manifest, found plausible."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    size: int
    crc32: int


def _check_entry(folder: Path, manifest: Path, number: int, entry: Any) -> _Entry:
    def bad(what: str) -> DataFormatError:
        return DataFormatError(f"{manifest}: {what} in the tensor entry {str(entry)[:200]}.")

    if not isinstance(entry, dict):
        raise bad("no object")
    name, shape, size, checksum = (entry.get(key) for key in ("dtype", "shape", "bytes", "crc32"))
    # Each file once: a small folder must not ask for much memory by naming one file often.
    if entry.get("file") != f"{number}.bin":
        raise bad(f"a file name that is not {number}.bin")
    if not isinstance(name, str) or name not in _DTYPES:
        raise bad("an unknown dtype")
    if not isinstance(shape, list) or len(shape) > _MAX_DIMS or not all(_is_size(n) for n in shape):
        raise bad("a bad shape")
    # Strides are made from the sizes with zeros counted as ones, and must fit too.
    if not _is_size(math.prod(max(n, 1) for n in shape) * _DTYPES[name].itemsize):
        raise bad("a shape beyond every memory")
    if type(size) is not int or size != math.prod(shape) * _DTYPES[name].itemsize:
        raise bad("a size that is not that of the shape")
    if type(checksum) is not int:
        raise bad("a bad checksum")
    path = folder / f"{number}.bin"
    _regular_file(path, size).close()
    return _Entry(path, _DTYPES[name], tuple(shape), size, checksum)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _regular_file(path: Path, size: int) -> Any:
    """Open a file that must be a plain one of ``size`` bytes."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        raise DataFormatError(f"{path} is missing from the checkpoint.") from None
    if not stat.S_ISREG(found.st_mode):
        raise DataFormatError(f"{path} is no plain file.")
    if found.st_size != size:
        raise DataFormatError(
            f"{path} has {found.st_size} bytes and should have {size}: cut short or damaged."
        )
    return open(path, "rb", buffering=0)


def _read_tensor(entry: _Entry) -> Tensor:
    tensor = torch.empty(entry.shape, dtype=entry.dtype)
    checksum = 0
    if tensor.numel():
        memory = _bytes_of(tensor)
        with _regular_file(entry.path, entry.size) as source:
            while memory:
                count = source.readinto(memory[:_CHUNK])
                if not count:
                    raise DataFormatError(f"{entry.path} was cut short while it was read.")
                checksum = zlib.crc32(memory[:count], checksum)
                memory = memory[count:]
    if checksum != entry.crc32:
        raise DataFormatError(f"{entry.path} is damaged: its checksum is wrong.")
    if entry.dtype == torch.bool and tensor.numel() and bool((tensor.view(torch.uint8) > 1).any()):
        raise DataFormatError(f"{entry.path} holds bytes that are no bools.")
    return tensor


def _decode(value: Any, file: Path, tensors: list[Tensor]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [_decode(item, file, tensors) for item in value]
    if isinstance(value, dict) and len(value) == 1:
        ((kind, content),) = value.items()
        if kind == "dict" and isinstance(content, dict):
            return {key: _decode(item, file, tensors) for key, item in content.items()}
        if kind == "tuple" and isinstance(content, list):
            return tuple(_decode(item, file, tensors) for item in content)
        if kind == "float" and content in ("nan", "inf", "-inf"):
            return float(content)
        if kind == "tensor" and _is_size(content) and content < len(tensors):
            return tensors[content]
        if kind in ("tensordict", "nontensor") and isinstance(content, dict):
            return _decode_tensordict(kind, content, file, tensors)
    raise DataFormatError(f"{file}: {str(value)[:200]} stands for no value.")


def _decode_tensordict(kind: str, content: dict[str, Any], file: Path, tensors: list[Tensor]) -> Any:
    batch_size, entries = content.get("batch_size"), content.get("entries")
    if isinstance(batch_size, list) and all(_is_size(size) for size in batch_size):
        if kind == "nontensor":
            return NonTensorData(data=_decode(content.get("data"), file, tensors), batch_size=batch_size)
        if isinstance(entries, dict):
            decoded = {key: _decode(item, file, tensors) for key, item in entries.items()}
            try:
                return TensorDict(decoded, batch_size=batch_size)
            except (RuntimeError, ValueError, TypeError) as error:
                raise DataFormatError(f"{file}: a TensorDict that contradicts itself: {error}") from None
    raise DataFormatError(f"{file}: {str(content)[:200]} is no TensorDict.")
