"""TFRecord files: a stream of payloads, each with a checksum of its length and one of its bytes.

A record is a little-endian u64 length, the masked CRC-32C of those eight bytes, the payload, and the
payload's masked CRC-32C. Masked means: rotated right by 15 bits, plus 0xa282ead8.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from replaybank import _native
from replaybank.datasets.openx.sources.files import open_binary
from replaybank.errors import CorruptRecordError

HEADER_SIZE = 12
FOOTER_SIZE = 4
BLOCK_SIZE = 1 << 20
"""Bytes asked of a file at once: large enough that calls cost nothing, small beside an episode of images."""
READ_PIECE = 1 << 24
"""A length may lie: a stream of unknown size is read in pieces, so that memory follows what really comes."""
_ROWS = 1024
"""Records looked at in one native call."""
_MASK_DELTA = 0xA282EAD8
_WORD = 0xFFFFFFFF


class BinaryReader(Protocol):
    """What is read from: a binary file object, seekable or not."""

    def read(self, size: int = -1, /) -> bytes:
        """Up to ``size`` bytes; none at the end."""
        ...


class Record(NamedTuple):
    """One payload and where it stands.

    Args:
        number: position in the file, from 0.
        offset: byte offset of the record's header.
        payload: the bytes, their checksum verified.
    """

    number: int
    offset: int
    payload: bytes


def crc32c() -> Callable[[bytes], int]:
    """The native CRC-32C (polynomial of Castagnoli) of a ``bytes`` object.

    Raises:
        ImportError: google-crc32c is not installed.
    """
    try:
        import google_crc32c
    except ImportError as error:
        raise ImportError(
            "TFRecord checksums need google-crc32c: pip install 'replaybank[openx]'",
        ) from error
    compute: Callable[[bytes], int] = google_crc32c.value
    return compute


def mask(crc: int) -> int:
    """Mask a CRC the way TFRecord stores it.

    >>> hex(mask(0))
    '0xa282ead8'
    """
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _WORD


def unmask(stored: int) -> int:
    """Undo :func:`mask`.

    >>> unmask(mask(0x12345678)) == 0x12345678
    True
    """
    rotated = (stored - _MASK_DELTA) & _WORD
    return (rotated >> 17 | rotated << 15) & _WORD


def read_records(
    source: BinaryReader | str | os.PathLike[str],
    *,
    start: int = 0,
    path: str | None = None,
    block_size: int = BLOCK_SIZE,
) -> Iterator[Record]:
    """Read the records of a file in order, every checksum verified before a record is given.

    Memory is one block, or one record where that is larger. Records before ``start`` are stepped over: their
    lengths are verified, their payloads are not read. So after an error in a payload one can go on with the
    record after it; after an error in a length there is no way to find the next one.

    Args:
        source: a path, a URL that fsspec knows, or an open binary file positioned at a record's header.
        start: number of the first record wanted, from 0.
        path: name for messages; by default the source's own.
        block_size: bytes to read at once.

    Raises:
        CorruptRecordError: a record is cut short or a checksum is wrong.
        IndexError: the file has fewer than ``start`` records.
        ImportError: google-crc32c is not installed.

    >>> import io
    >>> [record.payload for record in read_records(io.BytesIO(write_record(b"a") + write_record(b"")))]
    [b'a', b'']
    """
    if start < 0:
        raise ValueError(f"start must not be negative, got {start}")
    if isinstance(source, (str, os.PathLike)):
        with open_binary(os.fspath(source)) as file:
            yield from _Reader(file, path or os.fspath(source), block_size).records(start)
    else:
        name = path or str(getattr(source, "name", "<stream>"))
        yield from _Reader(source, name, block_size).records(start)


class _Reader:
    """State of one pass over a file: what was read and not yet given. Not thread-safe."""

    def __init__(self, file: BinaryReader, path: str, block_size: int) -> None:
        self.file = file
        self.path = path
        self.block_size = max(block_size, HEADER_SIZE + FOOTER_SIZE)
        self.crc = crc32c()
        self.rows: npt.NDArray[np.int64] = np.empty((_ROWS, 4), dtype=np.int64)
        self.number = 0
        self.offset = 0
        """Byte offset of record ``number`` in the file."""
        self.left = bytes_left(file)
        """Bytes that the file has from ``offset`` on; None where it cannot be known."""

    def records(self, start: int) -> Iterator[Record]:
        while self.number < start:
            self.step_over(start)
        block = b""
        while True:
            more = self.read(self.block_size)
            block = block + more if block else more
            used = 0
            for record, end in self.in_block(block):
                yield record
                used = end
            block = block[used:]
            if not block and not more:
                return
            if len(block) < HEADER_SIZE:
                if more:
                    continue
                raise self.fault(f"cut short: {len(block)} bytes of its {HEADER_SIZE}-byte header are there")
            length = self.trusted_length(block[:HEADER_SIZE])
            if length > self.block_size or not more:
                yield self.large(block, length)
                self.advance(length)
                block = b""

    def in_block(self, block: bytes) -> Iterator[tuple[Record, int]]:
        """Whole records of a block, each with the position of its end there."""
        rows = self.rows
        crc, make = self.crc, Record
        at, count = 0, _ROWS
        while count == _ROWS:
            count = _native.scan_records(block, at, rows.ctypes.data, _ROWS)
            for position, length, length_crc, payload_crc in rows[:count].tolist():
                start = position + HEADER_SIZE
                if crc(block[position : position + 8]) != length_crc:
                    raise self.length_fault(block[position:start])
                payload = block[start : start + length]
                if crc(payload) != payload_crc:
                    raise self.payload_fault(payload, mask(payload_crc))
                at = start + length + FOOTER_SIZE
                yield make(self.number, self.offset, payload), at
                self.advance(length)

    def advance(self, length: int) -> None:
        whole = HEADER_SIZE + length + FOOTER_SIZE
        self.number += 1
        self.offset += whole
        if self.left is not None:
            self.left -= whole

    def large(self, beginning: bytes, length: int) -> Record:
        """The record whose first bytes are given; the rest is read straight from the file."""
        body = beginning[HEADER_SIZE:]
        payload = b"".join((body[:length], self.read(length - len(body[:length]))))
        footer = body[length:] + self.read(FOOTER_SIZE - len(body[length:]))
        if len(footer) < FOOTER_SIZE:
            raise self.cut_short(length, len(payload) + len(footer))
        stored = int.from_bytes(footer, "little")
        if self.crc(payload) != unmask(stored):
            raise self.payload_fault(payload, stored)
        return Record(self.number, self.offset, payload)

    def trusted_length(self, header: bytes) -> int:
        """The length in a header, once its checksum and the file's size agree with it."""
        length, stored = struct.unpack("<QI", header)
        if self.crc(header[:8]) != unmask(stored):
            raise self.length_fault(header)
        if self.left is not None and length > self.left - HEADER_SIZE - FOOTER_SIZE:
            raise self.cut_short(length, max(self.left - HEADER_SIZE, 0))
        return int(length)

    def step_over(self, start: int) -> None:
        header = self.read(HEADER_SIZE)
        if not header:
            raise IndexError(f"{self.path} has {self.number} records, cannot start at record {start}")
        if len(header) < HEADER_SIZE:
            raise self.fault(f"cut short: {len(header)} bytes of its {HEADER_SIZE}-byte header are there")
        length = self.trusted_length(header)
        rest = length + FOOTER_SIZE
        if self.left is not None:
            self.file.seek(rest, os.SEEK_CUR)  # type: ignore[attr-defined]  # a known size means seekable
            rest = 0
        while rest:
            piece = self.file.read(min(rest, READ_PIECE))
            if not piece:
                raise self.cut_short(length, length + FOOTER_SIZE - rest)
            rest -= len(piece)
        self.advance(length)

    def read(self, size: int) -> bytes:
        """``size`` bytes, fewer only at the end of the file."""
        pieces = []
        while size > 0:
            piece = self.file.read(min(size, READ_PIECE) if self.left is None else size)
            if not piece:
                break
            pieces.append(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def fault(self, reason: str) -> CorruptRecordError:
        return CorruptRecordError(self.path, self.number, self.offset, reason)

    def cut_short(self, length: int, have: int) -> CorruptRecordError:
        return self.fault(f"cut short: {length + FOOTER_SIZE} bytes should follow its header, {have} do")

    def length_fault(self, header: bytes) -> CorruptRecordError:
        stored = int.from_bytes(header[8:12], "little")
        found = mask(self.crc(header[:8]))
        return self.fault(
            f"the checksum of its length is {stored:#010x}, its eight bytes give {found:#010x}",
        )

    def payload_fault(self, payload: bytes, stored: int) -> CorruptRecordError:
        return self.fault(
            f"the checksum of its payload is {stored:#010x}, "
            f"its {len(payload)} bytes give {mask(self.crc(payload)):#010x}",
        )


def bytes_left(file: BinaryReader) -> int | None:
    """Bytes from where a file stands to its end; None where it cannot seek."""
    seekable = getattr(file, "seekable", None)
    if seekable is None or not seekable():
        return None
    here = file.tell()  # type: ignore[attr-defined]
    end = file.seek(0, os.SEEK_END)  # type: ignore[attr-defined]
    file.seek(here)  # type: ignore[attr-defined]
    return int(end) - int(here)


def write_record(payload: bytes) -> bytes:
    """The bytes of one record.

    Raises:
        ImportError: google-crc32c is not installed.

    >>> write_record(b"").hex()
    '000000000000000029039807d8ea82a2'
    """
    crc = crc32c()
    header = struct.pack("<Q", len(payload))
    return b"".join(
        (
            header,
            struct.pack("<I", mask(crc(header))),
            payload,
            struct.pack("<I", mask(crc(payload))),
        )
    )


class TFRecordWriter:
    """Writes records to an open binary file, one after the other. Not thread-safe.

    Args:
        file: binary file open for writing; it stays the caller's to close.

    >>> import io
    >>> file = io.BytesIO()
    >>> writer = TFRecordWriter(file)
    >>> writer.write(b"abc")
    >>> writer.records, writer.payload_bytes, len(file.getvalue())
    (1, 3, 19)
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.records = 0
        """Records written."""
        self.payload_bytes = 0
        """Sum of their payloads' lengths: what dataset_info.json calls numBytes."""

    def write(self, payload: bytes) -> None:
        """Append one record."""
        self._file.write(write_record(payload))
        self.records += 1
        self.payload_bytes += len(payload)
