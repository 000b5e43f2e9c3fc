"""One save of a checkpoint: values as JSON, tensors as files, and back, with nothing believed unchecked."""

from __future__ import annotations

import json
import math
import os
import pickle
import stat
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, is_tensor_collection
from torch import Tensor

from replaybank.errors import DataFormatError

FORMAT_VERSION = 1
MANIFEST = "manifest.json"

_CHUNK = 1 << 24  # bytes read, written and summed at a time: large beside a system call, small beside RAM
_MAX_DIMS = 64  # torch's own limit on the dimensions of a tensor that its iterators accept

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
        *(torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
        *(torch.float8_e4m3fn, torch.float8_e5m2),
    )
}


@dataclass(frozen=True)
class SaveEntry:
    """A line of the pointer: a complete save, and what its manifest must look like."""

    folder: str
    size: int
    crc32: int


def fsync_directory(path: str | os.PathLike[str]) -> None:
    """Have the names in a directory on the disk: without it, a file made or renamed may be lost."""
    if os.name == "nt":  # a directory cannot be opened there; renames are journalled
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def encode(value: Any, where: str, tensors: list[tuple[str, Tensor]], pickled: bool) -> Any:
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
        entries = {key: encode(item, f"{where}.{key}", tensors, pickled) for key, item in value.items()}
        return {"tensordict": {"batch_size": list(value.batch_size), "entries": entries}}
    if type(value) is NonTensorData:
        data = encode(value.data, where, tensors, pickled)
        return {"nontensor": {"batch_size": list(value.batch_size), "data": data}}
    if type(value) is NonTensorStack:
        parts = [encode(item, f"{where}[{i}]", tensors, pickled) for i, item in enumerate(value.tensordicts)]
        return {"nontensorstack": {"stack_dim": value.stack_dim, "entries": parts}}
    if isinstance(value, Mapping) and not is_tensor_collection(value):
        odd = [key for key in value if not isinstance(key, str)]
        if not odd:
            return {
                "dict": {key: encode(item, f"{where}.{key}", tensors, pickled) for key, item in value.items()}
            }
        if not pickled:
            raise TypeError(
                f"{where}: the key {odd[0]!r} is a {type(odd[0]).__name__}; keys must be strings."
            )
    # A named tuple, or another class of one's own, would come back as a plain one.
    if type(value) in (list, tuple, torch.Size):
        items = [encode(item, f"{where}[{i}]", tensors, pickled) for i, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if pickled:
        tensors.append((where, torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)))
        return {"pickle": len(tensors) - 1}
    raise TypeError(
        f"{where} is a {type(value).__name__}; tensors, int, float, bool, str, None, and dicts, lists, "
        "tuples and TensorDicts of them can be saved; with allow_pickle=True anything that can be pickled."
    )


def write_state(folder: Path, tree: Any, tensors: list[tuple[str, Tensor]]) -> SaveEntry:
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
    return SaveEntry(folder.name, len(content), zlib.crc32(content))


def _write_tensor(path: Path, tensor: Tensor) -> tuple[int, int]:
    size, checksum = 0, 0
    with open(path, "xb", buffering=0) as out:
        for block in _blocks(tensor):
            content = _bytes_of(block)
            while content:
                piece = bytes(content[:_CHUNK])  # a copy: summed and written bytes are then the same ones
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
    # A contiguous tensor may have any stride along a dimension of size 1; a view as bytes wants it to be 1.
    array: Any = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
    return memoryview(array)


def read_state(folder: Path, expected: SaveEntry, allow_pickle: bool) -> dict[str, Any]:
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
        decode = _Decoder(file, [_read_tensor(entry) for entry in checked], allow_pickle)
        state = decode(manifest.get("state"))
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


@dataclass(frozen=True)
class _Decoder:
    """Values out of the JSON that stands for them."""

    file: Path
    tensors: list[Tensor]
    allow_pickle: bool

    def __call__(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, list):
            return [self(item) for item in value]
        if isinstance(value, dict) and len(value) == 1:
            ((kind, content),) = value.items()
            if kind == "dict" and isinstance(content, dict):
                return {key: self(item) for key, item in content.items()}
            if kind == "tuple" and isinstance(content, list):
                return tuple(self(item) for item in content)
            if kind == "float" and content in ("nan", "inf", "-inf"):
                return float(content)
            if kind in ("tensor", "pickle") and _is_size(content) and content < len(self.tensors):
                tensor = self.tensors[content]
                return tensor if kind == "tensor" else self._unpickled(tensor)
            if kind == "nontensorstack" and isinstance(content, dict):
                return self._stack(content)
            if kind in ("tensordict", "nontensor") and isinstance(content, dict):
                return self._tensordict(kind, content)
        raise DataFormatError(f"{self.file}: {str(value)[:200]} stands for no value.")

    def _unpickled(self, tensor: Tensor) -> Any:
        if not self.allow_pickle:
            raise DataFormatError(
                f"{self.file} holds pickled objects, and unpickling can run any code. If you trust the file, "
                "load it with allow_pickle=True."
            )
        return pickle.loads(_bytes_of(tensor)) if tensor.numel() else None

    def _stack(self, content: dict[str, Any]) -> Any:
        dim, entries = content.get("stack_dim"), content.get("entries")
        if isinstance(dim, int) and _is_size(dim) and isinstance(entries, list) and entries:
            decoded = [self(entry) for entry in entries]
            kinds = {(type(entry), getattr(entry, "batch_size", None)) for entry in decoded}
            alike = len(kinds) == 1 and isinstance(decoded[0], (NonTensorData, NonTensorStack))
            if alike and dim <= len(decoded[0].batch_size):
                return NonTensorStack(*decoded, stack_dim=dim)
        raise DataFormatError(f"{self.file}: {str(content)[:200]} is no stack of entries.")

    def _tensordict(self, kind: str, content: dict[str, Any]) -> Any:
        batch_size, entries = content.get("batch_size"), content.get("entries")
        if isinstance(batch_size, list) and all(_is_size(size) for size in batch_size):
            if kind == "nontensor":
                return NonTensorData(data=self(content.get("data")), batch_size=batch_size)
            if isinstance(entries, dict):
                decoded = {key: self(item) for key, item in entries.items()}
                try:
                    return TensorDict(decoded, batch_size=batch_size)
                except (RuntimeError, ValueError, TypeError) as error:
                    raise DataFormatError(
                        f"{self.file}: a TensorDict that contradicts itself: {error}"
                    ) from None
        raise DataFormatError(f"{self.file}: {str(content)[:200]} is no TensorDict.")
