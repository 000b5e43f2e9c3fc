"""One save of a checkpoint: values as JSON, tensors as files, and back, with nothing believed unchecked."""

from __future__ import annotations

import json
import math
import os
import pickle
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, is_tensor_collection
from torch import Tensor

from replaybank.checkpoint_fields import Field, StoredField, read_fields
from replaybank.checkpoint_files import (
    DTYPES,
    MAX_DIMS,
    blocks_of,
    bytes_of,
    fsync_directory,
    in_parallel,
    is_size,
    no_bools,
    read_into,
    regular_file,
)
from replaybank.checkpoint_rows import NewPiece, Piece, Rows, StoredRows, plan_rows, read_pieces
from replaybank.errors import DataFormatError

WHOLE, IN_PIECES, IN_ROWS = 1, 2, 3
"""Versions of the format: every tensor in one file; some in pieces (see ``checkpoint_rows``), perhaps with
several files for a base; some interleaved in rows (see ``checkpoint_fields``)."""
MANIFEST = "manifest.json"

Saved: TypeAlias = "Tensor | Rows"


@dataclass(frozen=True)
class SaveEntry:
    """A line of the pointer: a complete save, and what its manifest must look like."""

    folder: str
    size: int
    crc32: int


def encode(value: Any, where: str, tensors: list[tuple[str, Saved]], pickled: bool) -> Any:
    """JSON for a value: objects have one key, which says what they stand for; tensors are put aside."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Field):
        return {"field": [_number_of(value.rows, where, tensors), value.number]}
    if isinstance(value, (Tensor, Rows)):
        plain = (value if isinstance(value, Tensor) else value.tensor).detach()
        name = str(plain.dtype).removeprefix("torch.")
        if name not in DTYPES or plain.layout != torch.strided or plain.is_nested or plain.is_meta:
            raise TypeError(
                f"{where}: a tensor of dtype {plain.dtype}, layout {plain.layout} on {plain.device} cannot "
                f"be saved; dense tensors of {', '.join(DTYPES)} can."
            )
        tensors.append((where, value if isinstance(value, Rows) and plain.numel() else plain))
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


def _number_of(rows: Rows, where: str, tensors: list[tuple[str, Saved]]) -> int:
    for number in range(len(tensors) - 1, -1, -1):
        if tensors[number][1] is rows:
            return number
    tensors.append((where, rows))
    return len(tensors) - 1


def write_state(
    folder: Path, tree: Any, tensors: list[tuple[str, Saved]], earlier: Earlier | None = None
) -> SaveEntry:
    """Write a save into an empty folder, with all of it on the disk at the end.

    Args:
        folder: the folder.
        tree: from :func:`encode`.
        tensors: from :func:`encode`.
        earlier: a save on the same file system, of which files that have not changed are taken.
    """
    plans = [
        _plan_tensor(folder, number, name, tensor, earlier or Earlier({}))
        for number, (name, tensor) in enumerate(tensors)
    ]
    parts = [part for _, parts in plans for part in parts]
    written = iter(in_parallel(lambda part: part if isinstance(part, Piece) else part.write(), parts))
    entries = [_finished(entry, [next(written) for _ in parts]) for entry, parts in plans]
    version = WHOLE
    if any("pieces" in entry for entry in entries):
        version = IN_ROWS if any("fields" in entry for entry in entries) else IN_PIECES
    manifest = {"format": "replaybank-state", "version": version, "tensors": entries, "state": tree}
    content = json.dumps(manifest, allow_nan=False).encode()
    with open(folder / MANIFEST, "xb") as out:
        out.write(content)
        os.fsync(out.fileno())
    fsync_directory(folder)
    return SaveEntry(folder.name, len(content), zlib.crc32(content))


def _plan_tensor(
    folder: Path, number: int, name: str, saved: Saved, earlier: Earlier
) -> tuple[dict[str, Any], Sequence[Piece | NewPiece]]:
    """The entry of a manifest without what is known once its files are written, and these."""
    tensor = saved.tensor if isinstance(saved, Rows) else saved
    dtype = str(tensor.dtype).removeprefix("torch.")
    entry: dict[str, Any] = {"name": name, "dtype": dtype, "shape": list(tensor.shape)}
    if isinstance(saved, Rows):
        known, stored = earlier.tensors.get((saved.history, saved.key), (None, None))
        history, pieces = plan_rows(saved, known, stored, _namer(folder, number))
        if saved.fields:
            entry["fields"] = [spec.to_json() for spec in saved.fields]
        return {**entry, "rows": history}, pieces
    whole = NewPiece(folder / f"{number}.bin", -1, (), lambda: blocks_of(tensor))
    return {"file": f"{number}.bin", **entry}, [whole]


def _finished(entry: dict[str, Any], pieces: list[Piece]) -> dict[str, Any]:
    if "rows" in entry:
        return {**entry, "pieces": [piece.to_json() for piece in pieces]}
    return {**entry, "bytes": pieces[0].size, "crc32": pieces[0].crc32}


def _namer(folder: Path, number: int) -> Callable[[int], Path]:
    return lambda piece: folder / f"{number}.{piece}.bin"


@dataclass(frozen=True)
class Earlier:
    """The tensors of an earlier save that are in pieces, by history and key: what was said of it, and it."""

    tensors: Mapping[tuple[str, str], tuple[Mapping[str, Any], StoredRows]]

    @classmethod
    def of(cls, folder: Path, expected: SaveEntry) -> Earlier:
        """Of a save; of one that is damaged, or of another version, nothing."""
        found: dict[tuple[str, str], tuple[Mapping[str, Any], StoredRows]] = {}
        try:
            file, entries, _ = _read_manifest(folder, expected)
            for number, entry in enumerate(entries):
                rows = entry.get("rows") if isinstance(entry, dict) else None
                if isinstance(rows, dict) and all(
                    isinstance(rows.get(key), str) for key in ("history", "key")
                ):
                    stored = _check_entry(folder, file, number, entry)
                    if isinstance(stored, StoredRows):
                        found[rows["history"], rows["key"]] = rows, stored
        except (OSError, DataFormatError):
            return cls({})
        return cls(found)


def read_state(
    folder: Path, expected: SaveEntry, allow_pickle: bool, *, stored: bool = False
) -> dict[str, Any]:
    """Read a save, and compare all checksums.

    Args:
        folder: the save's.
        expected: what its manifest must look like.
        allow_pickle: unpickle what was pickled.
        stored: give tensors that are in pieces as :class:`StoredRows`.

    Raises:
        DataFormatError: it is damaged or hostile; the file is named.
    """
    file, entries, tree = _read_manifest(folder, expected)
    # All are checked before memory is taken for the first.
    checked = [_check_entry(folder, file, number, entry) for number, entry in enumerate(entries)]
    try:
        in_parallel(lambda check: check(), [check for entry in checked for check in _checks(entry)])
        whole = iter(in_parallel(_read, [entry for entry in checked if isinstance(entry, _Entry)]))
        tensors = [entry if isinstance(entry, StoredRows) else next(whole) for entry in checked]
        state = _Decoder(file, tensors, allow_pickle, stored)(tree)
    except RecursionError:
        raise DataFormatError(f"{file}: the state is nested too deeply.") from None
    if not isinstance(state, dict):
        raise DataFormatError(f"{file}: the state is no dict.")
    return state


def _read_manifest(folder: Path, expected: SaveEntry) -> tuple[Path, list[Any], Any]:
    """The manifest's path, its entries of tensors, none of them checked yet, and its tree."""
    file = folder / MANIFEST
    with regular_file(file, expected.size) as source:
        content = source.read()
    if zlib.crc32(content) != expected.crc32:
        raise DataFormatError(f"{file} is damaged: its checksum is wrong.")
    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataFormatError(f"{file} is not JSON that can be read: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != "replaybank-state":
        raise DataFormatError(f"{file} is no manifest of a replaybank state.")
    version = manifest.get("version")
    if type(version) is not int or version not in (WHOLE, IN_PIECES, IN_ROWS):
        raise DataFormatError(
            f"{file} has version {version!r}; this replaybank reads {WHOLE} to {IN_ROWS}. "
            "Load it with the release that wrote it."
        )
    entries = manifest.get("tensors")
    if not isinstance(entries, list):
        raise DataFormatError(f"{file}: 'tensors' is no list.")
    return file, entries, manifest.get("state")


@dataclass(frozen=True)
class _Entry:
    """A tensor of a manifest, found plausible."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    size: int
    crc32: int


def _check_entry(folder: Path, manifest: Path, number: int, entry: Any) -> _Entry | StoredRows:
    def bad(what: str) -> DataFormatError:
        return DataFormatError(f"{manifest}: {what} in the tensor entry {str(entry)[:200]}.")

    if not isinstance(entry, dict):
        raise bad("no object")
    name, shape, size, checksum = (entry.get(key) for key in ("dtype", "shape", "bytes", "crc32"))
    if not isinstance(name, str) or name not in DTYPES:
        raise bad("an unknown dtype")
    dtype = DTYPES[name]
    if not isinstance(shape, list) or len(shape) > MAX_DIMS or not all(is_size(n) for n in shape):
        raise bad("a bad shape")
    # Strides are made from the sizes with zeros counted as ones, and must fit too.
    if not is_size(math.prod(max(n, 1) for n in shape) * dtype.itemsize):
        raise bad("a shape beyond every memory")
    if "pieces" in entry:
        width = math.prod(shape[1:]) * dtype.itemsize
        pieces = read_pieces(entry["pieces"], shape, width, _namer(folder, number))
        if isinstance(pieces, str):
            raise bad(pieces)
        fields = read_fields(entry["fields"], dtype, shape[-1]) if "fields" in entry else ()
        if isinstance(fields, str):
            raise bad(fields)
        return StoredRows(dtype, shape, pieces, fields)
    # Each file once: a small folder must not ask for much memory by naming one file often.
    if entry.get("file") != f"{number}.bin":
        raise bad(f"a file name that is not {number}.bin")
    if type(size) is not int or size != math.prod(shape) * dtype.itemsize:
        raise bad("a size that is not that of the shape")
    if type(checksum) is not int:
        raise bad("a bad checksum")
    path = folder / f"{number}.bin"
    regular_file(path, size).close()
    return _Entry(path, dtype, tuple(shape), size, checksum)


def _checks(entry: _Entry | StoredRows) -> list[Callable[[], None]]:
    return entry.checks() if isinstance(entry, StoredRows) else []  # others are compared as they are read


def _read(entry: _Entry) -> Tensor:
    tensor = torch.empty(entry.shape, dtype=entry.dtype)
    read_into(entry.path, entry.size, entry.crc32, bytes_of(tensor))
    if entry.dtype == torch.bool and tensor.numel() and bool((tensor.view(torch.uint8) > 1).any()):
        raise no_bools(entry.path)
    return tensor


@dataclass(frozen=True)
class _Decoder:
    """Values out of the JSON that stands for them."""

    file: Path
    tensors: Sequence[Tensor | StoredRows]
    allow_pickle: bool
    stored: bool
    read: dict[tuple[int, int | None], Any] = field(default_factory=dict)
    """What has been read of tensors and of fields: each once, however often it is named."""

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
            if kind in ("tensor", "pickle") and is_size(content) and content < len(self.tensors):
                tensor = self._of(content, None)
                if kind == "tensor":
                    return tensor
                if isinstance(tensor, Tensor):
                    return self._unpickled(tensor)
            if kind == "field" and isinstance(content, list) and len(content) == 2:
                number, place = content
                if is_size(number) and is_size(place) and number < len(self.tensors):
                    rows = self.tensors[number]
                    if isinstance(rows, StoredRows) and place < len(rows.fields):
                        return self._of(number, place)
            if kind == "nontensorstack" and isinstance(content, dict):
                return self._stack(content)
            if kind in ("tensordict", "nontensor") and isinstance(content, dict):
                return self._tensordict(kind, content)
        raise DataFormatError(f"{self.file}: {str(value)[:200]} stands for no value.")

    def _of(self, number: int, place: int | None) -> Tensor | StoredRows | StoredField:
        found = self.read.get((number, place))
        if found is None:
            found = self.tensors[number]
            if isinstance(found, StoredRows):
                found = found if place is None else StoredField(found, found.fields[place])
                found = found if self.stored else found.read()
            self.read[number, place] = found
        return found

    def _unpickled(self, tensor: Tensor) -> Any:
        if not self.allow_pickle:
            raise DataFormatError(
                f"{self.file} holds pickled objects, and unpickling can run any code. If you trust the file, "
                "load it with allow_pickle=True."
            )
        return pickle.loads(bytes_of(tensor)) if tensor.numel() else None

    def _stack(self, content: dict[str, Any]) -> Any:
        dim, entries = content.get("stack_dim"), content.get("entries")
        if isinstance(dim, int) and is_size(dim) and isinstance(entries, list) and entries:
            decoded = [self(entry) for entry in entries]
            kinds = {(type(entry), getattr(entry, "batch_size", None)) for entry in decoded}
            alike = len(kinds) == 1 and isinstance(decoded[0], (NonTensorData, NonTensorStack))
            if alike and dim <= len(decoded[0].batch_size):
                return NonTensorStack(*decoded, stack_dim=dim)
        raise DataFormatError(f"{self.file}: {str(content)[:200]} is no stack of entries.")

    def _tensordict(self, kind: str, content: dict[str, Any]) -> Any:
        batch_size, entries = content.get("batch_size"), content.get("entries")
        if isinstance(batch_size, list) and all(is_size(size) for size in batch_size):
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
