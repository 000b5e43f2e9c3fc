"""Tensors whose rows change a few at a time: saved in pieces, so that the next save writes only those.

The first save of such a tensor writes a base, all of its rows, in one file or in several of equal size, which
are written and read at the same time. A later one writes the rows that have changed
since into a new piece, and keeps the earlier pieces under further names (hard links; a file of a checkpoint
is never changed). Pieces are read one after the other, later ones over earlier ones. So that there are few,
every ``FANOUT`` pieces of a tier are replaced by one of the next, with the rows of all, out of memory; once
the pieces hold more rows than the tensor, a new base is written. So a row is written once, and once more for
each tier: a number of times that is logarithmic in the number of saves; and twice the tensor is the most that
lies on the disk.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from replaybank.checkpoint_fields import FieldSpec, bool_bytes
from replaybank.checkpoint_files import (
    CHUNK,
    blocks_of,
    bytes_of,
    check_file,
    fill,
    in_parallel,
    is_size,
    link,
    regular_file,
    rows_in_chunk,
    write_blocks,
)

FANOUT = 8
"""Pieces of a tier: with 8, a thousand saves leave some 30 files a tensor and write a row about 4 times."""

MAX_RUNS = 1 << 16
"""Runs in a piece: beyond it, the manifest would cost more than rows that are written in vain."""

MAX_PIECES = 4096
"""Pieces of a tensor that are believed: a save leaves ``FANOUT`` a tier, and there are few tiers."""

BASE_FILES, BASE_BYTES = 8, 1 << 24
"""Most files of a base, and the fewest bytes in each if there are several."""

Run = tuple[int, int]
"""A first row and a number of rows, at least 1."""


@dataclass(frozen=True, eq=False)
class Rows:
    """A tensor to be saved, whose owner knows which of its rows have changed since an earlier save.

    Args:
        tensor: ``[rows, ...]``, as it is now.
        history: names the sequence of changes that ``mark`` is a place in; no other one has this name.
        key: which tensor of that history it is.
        mark: where the history stands now.
        since: runs of rows that have changed since a mark, in any order; None if that is not known.
        fields: what lies in each ``tensor[i, ..., :]`` of bytes, where they are rows of several tensors. The
            bytes between them are saved too.
    """

    tensor: Tensor
    history: str
    key: str
    mark: tuple[int, ...]
    since: Callable[[tuple[int, ...]], list[Run] | None]
    fields: tuple[FieldSpec, ...] = ()


@dataclass(frozen=True)
class Piece:
    """A file with some rows of a tensor.

    Args:
        path: the file.
        tier: of which tier it is; -1 is the base.
        runs: the rows, ascending, in the order in which they lie in the file.
        size: bytes.
        crc32: their checksum.
    """

    path: Path
    tier: int
    runs: tuple[Run, ...]
    size: int
    crc32: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(count for _, count in self.runs)

    def to_json(self) -> dict[str, Any]:
        """The entry of a manifest; the file's name follows from its place."""
        runs = [list(run) for run in self.runs]
        return {"tier": self.tier, "runs": runs, "bytes": self.size, "crc32": self.crc32}


class StoredRows:
    """Rows of a tensor in the files of a checkpoint, read when they are asked for: ``stored[a:b]``.

    Has the ``shape``, ``dtype``, ``ndim`` and ``len`` of the tensor. The files must stay as they are as long
    as it is used.

    Thread-safe.
    """

    layout = torch.strided
    device = torch.device("cpu")

    _first = 0  # the row that comes first, with the others behind it in a circle

    def __init__(
        self,
        dtype: torch.dtype,
        shape: Sequence[int],
        pieces: Sequence[Piece],
        fields: Sequence[FieldSpec] = (),
    ) -> None:
        self.dtype = dtype
        self.shape = torch.Size(shape)
        self.ndim = len(self.shape)
        self.pieces = tuple(pieces)
        self.fields = tuple(fields)
        self._row_bytes = math.prod(self.shape[1:]) * dtype.itemsize
        self._starts = [[start for start, _ in piece.runs] for piece in self.pieces]
        self._before = [list(accumulate((n for _, n in piece.runs), initial=0)) for piece in self.pieces]
        self._last: tuple[int, int, Tensor] | None = None

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: slice) -> Tensor:
        first, stop, step = rows.indices(len(self))
        if step != 1:
            raise ValueError("Rows of a checkpoint are read one after the other: give a slice of step 1.")
        last = self._last
        if last is not None and last[:2] == (first, stop):
            return last[2]
        out = torch.empty((max(stop - first, 0), *self.shape[1:]), dtype=self.dtype)
        if out.numel():
            self._read(first, stop, bytes_of(out))
        if self.fields and out.numel() <= CHUNK:  # their fields are asked for one after the other
            self._last = (first, stop, out)
        return out

    def turned(self, first: int) -> StoredRows:
        """The same rows in another order: from ``first`` to the last, then those before it. O(pieces)."""
        other = StoredRows(self.dtype, self.shape, self.pieces, self.fields)
        other._first = (self._first + first) % max(len(self), 1)
        return other

    def is_like(self, other: StoredRows) -> bool:
        """Whether it is the same rows in the same order."""
        return self is other or (self.pieces is other.pieces and self._first == other._first)

    def checks(self) -> list[Callable[[], None]]:
        """What reads a file each and compares its checksum; together they check all. O(bytes).

        They raise DataFormatError: a file is not as it should be; it is named.
        """
        bools, width = bool_bytes(self.fields), self.shape[-1] if self.fields else 1
        if self.dtype == torch.bool:
            bools = [slice(0, 1)]
        return [
            partial(check_file, piece.path, piece.size, piece.crc32, bools=bools, row_bytes=width)
            for piece in self.pieces
        ]

    def read(self) -> Tensor:
        """The whole tensor. O(bytes)."""
        out = torch.empty(self.shape, dtype=self.dtype)
        self.read_into(out)
        return out

    def read_into(self, out: Tensor) -> None:
        """Read all rows into a contiguous CPU tensor of as many bytes. O(bytes)."""
        memory, width = bytes_of(out), self._row_bytes
        step = rows_in_chunk(width)

        def read(first: int) -> None:
            stop = min(first + step, len(self))
            self._read(first, stop, memory[first * width : stop * width])

        in_parallel(read, range(0, len(self), step) if memory else ())

    def _read(self, first: int, stop: int, memory: memoryview) -> None:
        # In a circle: what lies before its end, and what lies behind it.
        first, stop = first + self._first, stop + self._first
        split = min(max(len(self), first), stop)
        self._read_straight(first, split, memory[: (split - first) * self._row_bytes])
        self._read_straight(split - len(self), stop - len(self), memory[(split - first) * self._row_bytes :])

    def _read_straight(self, first: int, stop: int, memory: memoryview) -> None:
        width = self._row_bytes
        if not memory:
            return
        for piece, starts, before in zip(self.pieces, self._starts, self._before, strict=True):
            run = max(bisect_right(starts, first) - 1, 0)
            if starts[run] >= stop or sum(piece.runs[-1]) <= first:
                continue
            with regular_file(piece.path, piece.size) as source:
                while run < len(starts) and starts[run] < stop:
                    begin, count = piece.runs[run]
                    low, high = max(begin, first), min(begin + count, stop)
                    if low < high:
                        source.seek((before[run] + low - begin) * width)
                        fill(source, memory[(low - first) * width : (high - first) * width], piece.path)
                    run += 1


# --- saving ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NewPiece:
    """A piece to be written.

    Args:
        path: its file.
        tier: its tier.
        runs: its rows.
        blocks: gives its content.
    """

    path: Path
    tier: int
    runs: tuple[Run, ...]
    blocks: Callable[[], Iterator[Tensor]]

    def write(self) -> Piece:
        """Write it, and have it on the disk. O(bytes)."""
        size, checksum = write_blocks(self.path, self.blocks())
        return Piece(self.path, self.tier, self.runs, size, checksum)


def plan_rows(
    rows: Rows, known: Mapping[str, Any] | None, earlier: StoredRows | None, name: Callable[[int], Path]
) -> tuple[dict[str, Any], list[Piece | NewPiece]]:
    """What saving a tensor takes, so that only what has changed since an earlier save is written.

    Args:
        rows: the tensor.
        known: what the manifest of the earlier save says of the history; None if there is no such save.
        earlier: the tensor in the files of the earlier save.
        name: the file for the piece of a number.

    Returns:
        What the manifest is to say of the history, and the pieces, oldest first: those that are there
        already, and those to be written.
    """
    history = {"history": rows.history, "key": rows.key, "mark": list(rows.mark)}
    kept, tier, runs = _plan(rows, known, earlier)
    pieces: list[Piece | NewPiece] = []
    for piece in kept:
        path = name(len(pieces))
        if not link(piece.path, path):
            for made in pieces:
                made.path.unlink()
            pieces, tier, runs = [], -1, [(0, len(rows.tensor))]
            break
        pieces.append(Piece(path, piece.tier, piece.runs, piece.size, piece.crc32))
    for some in _base_files(rows.tensor) if tier < 0 else [tuple(runs)] if runs else []:
        blocks = partial(_blocks_of_runs, rows.tensor, some)
        pieces.append(NewPiece(name(len(pieces)), tier, some, blocks))
    return history, pieces


def _base_files(tensor: Tensor) -> Iterator[tuple[Run, ...]]:
    """The rows of a base's files."""
    total = len(tensor)
    files = min(BASE_FILES, max(tensor.numel() * tensor.element_size() // BASE_BYTES, 1), total)
    each = -(-total // files)
    for start in range(0, total, each):
        yield ((start, min(each, total - start)),)


def _plan(
    rows: Rows, known: Mapping[str, Any] | None, earlier: StoredRows | None
) -> tuple[list[Piece], int, list[Run]]:
    """The earlier pieces to keep, and the tier and the rows of a new one."""
    total = len(rows.tensor)
    anew: tuple[list[Piece], int, list[Run]] = ([], -1, [(0, total)])
    if known is None or earlier is None:
        return anew
    mark = _mark_of(known)
    if (known.get("history"), known.get("key")) != (rows.history, rows.key) or mark is None:
        return anew
    if (earlier.dtype, earlier.shape[1:], earlier.fields) != (
        rows.tensor.dtype,
        rows.tensor.shape[1:],
        rows.fields,
    ):
        return anew
    found = rows.since(mark)
    if found is None or len(earlier) > total:
        return anew
    # What was not there is new, whatever is said to have changed.
    runs = merged([*found, *([(len(earlier), total - len(earlier))] if len(earlier) < total else [])], total)
    if not runs:
        return list(earlier.pieces), 0, []
    kept, tier = list(earlier.pieces), 0
    while sum(piece.tier == tier for piece in kept) >= FANOUT - 1:
        runs = merged([*runs, *(run for piece in kept if piece.tier == tier for run in piece.runs)], total)
        kept = [piece for piece in kept if piece.tier != tier]
        tier += 1
    written = sum(count for _, count in runs)
    if written + sum(piece.rows for piece in kept if piece.tier >= 0) > total or len(runs) > MAX_RUNS:
        return anew
    return kept, tier, runs


def merged(runs: Iterable[Run], total: int) -> list[Run]:
    """Runs within ``[0, total)``, ascending and apart. O(k log k).

    Example:
        >>> merged([(8, 4), (0, 2), (2, 1), (9, 1)], 10)
        [(0, 3), (8, 2)]
    """
    out: list[list[int]] = []
    for start, count in sorted(runs):
        start, stop = max(start, 0), min(start + count, total)
        if start >= stop:
            continue
        if out and start <= out[-1][1]:
            out[-1][1] = max(out[-1][1], stop)
        else:
            out.append([start, stop])
    return [(start, stop - start) for start, stop in out]


def _blocks_of_runs(tensor: Tensor, runs: Sequence[Run]) -> Iterator[Tensor]:
    """The rows in contiguous CPU pieces, short runs several to a piece."""
    most = rows_in_chunk(tensor[0].numel() * tensor.element_size())
    waiting: list[Tensor] = []
    held = 0
    for start, count in runs:
        if held and held + count > most:
            yield torch.cat(waiting).cpu()
            waiting, held = [], 0
        part = tensor[start : start + count]
        if count >= most:
            yield from blocks_of(part)
        else:
            waiting.append(part)
            held += count
    if waiting:
        yield torch.cat(waiting).cpu()


# --- what a manifest says ----------------------------------------------------------------------------------


def _mark_of(known: Mapping[str, Any]) -> tuple[int, ...] | None:
    mark = known.get("mark")
    if isinstance(mark, list) and len(mark) < 16 and all(type(number) is int for number in mark):
        return tuple(mark)
    return None


def read_pieces(
    entries: Any, shape: Sequence[int], row_bytes: int, name: Callable[[int], Path]
) -> list[Piece] | str:
    """The pieces that a manifest names, if they are a tensor of that shape; else what is wrong.

    Opens each, so that what is there is known to be of the right size before memory is taken.

    Raises:
        DataFormatError: a file is missing or has another size; it is named.
    """
    if not isinstance(entries, list) or not 0 < len(entries) <= MAX_PIECES or not shape or row_bytes <= 0:
        return "bad pieces"
    pieces = []
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict):
            return "a piece that is no object"
        tier, runs, size, checksum = (entry.get(key) for key in ("tier", "runs", "bytes", "crc32"))
        if type(tier) is not int or not -1 <= tier < 64 or type(checksum) is not int:
            return "a piece with a bad tier or checksum"
        if not isinstance(runs, list) or not _are_runs(runs, shape[0]):
            return "a piece with bad rows"
        if type(size) is not int or size != sum(count for _, count in runs) * row_bytes:
            return "a piece with a size that is not that of its rows"
        path = name(number)
        regular_file(path, size).close()
        pieces.append(Piece(path, tier, tuple((start, count) for start, count in runs), size, checksum))
    if merged([run for piece in pieces for run in piece.runs], shape[0]) != [(0, shape[0])]:
        return "pieces that do not hold all rows"
    return pieces


def _are_runs(runs: list[Any], total: int) -> bool:
    end = 0
    for run in runs:
        if not isinstance(run, list) or len(run) != 2 or not all(is_size(number) for number in run):
            return False
        start, count = run
        if start < end or count < 1 or start + count > total:
            return False
        end = start + count
    return bool(runs)
