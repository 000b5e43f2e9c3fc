"""TFRecord files: a stream of payloads, each with a checksum of its length and one of its bytes.

A record is a little-endian u64 length, the masked CRC-32C of those eight bytes, the payload, and the
payload's masked CRC-32C. Masked means: rotated right by 15 bits, plus 0xa282ead8.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable, Iterator
from typing import IO, Any, Final, NamedTuple, Protocol

from replaybank import _native
from replaybank.datasets.openx.sources.files import open_unbuffered
from replaybank.errors import CorruptRecordError

HEADER_SIZE = 12
FOOTER_SIZE = 4
BLOCK_SIZE = 1 << 20
"""Bytes asked at once of what is behind a network: few questions, and little beside an episode of images."""
READ_PIECE = 1 << 24
"""A length may lie: a stream of unknown size is read in pieces, so that memory follows what really comes."""
SMALL_RECORD: Final = 1 << 15
"""Bytes of a payload: to copy it once more costs less than two calls of the file."""
ROOM: Final = (1 << 17) - (1 << 10)
"""Of small records: as much as stays in a core's own cache."""
_HEADER: Final = struct.Struct("<QI")
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

    Memory is one block and one record. Records before ``start`` are stepped over: their lengths are verified,
    their payloads are not read. So after an error in a payload one can go on with the record after it; after
    an error in a length there is no way to find the next one.

    Args:
        source: a path, a URL that fsspec knows, or an open binary file positioned at a record's header.
        start: number of the first record wanted, from 0.
        path: name for messages; by default the source's own.
        block_size: bytes to ask at once of a file that is not local and has no buffer of its own.

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
        with open_unbuffered(os.fspath(source)) as file:
            yield from _Reader(file, path or os.fspath(source), block_size).records(start)
    else:
        name = path or str(getattr(source, "name", "<stream>"))
        yield from _Reader(source, name, block_size).records(start)


class _Reader:
    """State of one pass over a file. Not thread-safe.

    Small records are cut from a buffer that is filled again and again. The payload of a large one is read
    straight into the ``bytes`` that it is given as, and nothing here holds it while the next one is read: so
    the allocator gives the same pages again, and none have to be cleared first.
    """

    def __init__(self, file: BinaryReader, path: str, block_size: int) -> None:
        self.file: Any = file
        self.path = path
        self.block_size = max(block_size, HEADER_SIZE + FOOTER_SIZE)
        self.crc = crc32c()
        self.number = 0
        self.offset = 0
        """Byte offset of record ``number`` in the file."""
        self.left = bytes_left(file)
        """Bytes that the file has from ``offset`` on; None where it cannot be known."""
        self.header = b""
        """Of record ``number``: what was read of it."""
        self.ahead = b""
        """What was read behind that."""
        self.ended = False
        """Whether the file has nothing behind that."""
        self.room = bytearray(ROOM)

    def records(self, start: int) -> Iterator[Record]:
        while self.number < start:
            self.step_over(start)
        if not isinstance(self.file, (io.FileIO, io.BufferedIOBase)):
            self.file = io.BufferedReader(_Raw(self.file), self.block_size)
        self.header = self.read(HEADER_SIZE)
        while self.header:
            length = self.trusted_length(self.header)
            if length > SMALL_RECORD or self.ended:
                yield self.large(length)
            else:
                yield from self.small()

    def large(self, length: int) -> Record:
        """The record whose header was read."""
        payload = self.read(length)
        behind = self.read(FOOTER_SIZE + HEADER_SIZE)
        if len(behind) < FOOTER_SIZE:
            raise self.cut_short(length, len(payload) + len(behind))
        stored = int.from_bytes(behind[:FOOTER_SIZE], "little")
        if self.crc(payload) != unmask(stored):
            raise self.payload_fault(payload, stored)
        self.header = behind[FOOTER_SIZE:]
        record = Record(self.number, self.offset, payload)
        self.advance(length)
        return record

    def small(self) -> Iterator[Record]:
        """Records from the one whose header was read, up to a large one or the end."""
        crc, make, room = self.crc, Record, self.room
        view = memoryview(room)
        have = HEADER_SIZE
        room[:have] = self.header
        while not self.ended:
            came = self.file.readinto(view[have:]) or 0
            have += came
            used = 0
            for head, payload, length_crc, payload_crc in _native.cut_records(room, have):
                if crc(head) != length_crc:
                    raise self.length_fault(bytes(view[used : used + HEADER_SIZE]))
                if crc(payload) != payload_crc:
                    raise self.payload_fault(payload, mask(payload_crc))
                record = make(self.number, self.offset, payload)
                self.advance(len(payload))
                used += HEADER_SIZE + len(payload) + FOOTER_SIZE
                yield record
            rest = bytes(view[used:have])
            have = len(rest)
            self.header, self.ahead, self.ended = rest[:HEADER_SIZE], rest[HEADER_SIZE:], not came
            if have >= HEADER_SIZE and self.trusted_length(self.header) > SMALL_RECORD:
                return
            room[:have] = rest

    def advance(self, length: int) -> None:
        whole = HEADER_SIZE + length + FOOTER_SIZE
        self.number += 1
        self.offset += whole
        if self.left is not None:
            self.left -= whole

    def trusted_length(self, header: bytes) -> int:
        """The length in a header, once its checksum and the file's size agree with it."""
        if len(header) < HEADER_SIZE:
            raise self.fault(f"cut short: {len(header)} bytes of its {HEADER_SIZE}-byte header are there")
        length, stored = _HEADER.unpack(header)
        if self.crc(header[:8]) != unmask(stored):
            raise self.length_fault(header)
        if self.left is not None and length > self.left - HEADER_SIZE - FOOTER_SIZE:
            raise self.cut_short(length, max(self.left - HEADER_SIZE, 0))
        return int(length)

    def step_over(self, start: int) -> None:
        header = self.read(HEADER_SIZE)
        if not header:
            raise IndexError(f"{self.path} has {self.number} records, cannot start at record {start}")
        length = self.trusted_length(header)
        rest = length + FOOTER_SIZE
        if self.left is not None:
            self.file.seek(rest, os.SEEK_CUR)  # a known size means seekable
            rest = 0
        while rest:
            piece = self.file.read(min(rest, READ_PIECE))
            if not piece:
                raise self.cut_short(length, length + FOOTER_SIZE - rest)
            rest -= len(piece)
        self.advance(length)

    def read(self, size: int) -> bytes:
        """``size`` bytes, fewer only at the end of the file."""
        if not size:
            return b""
        if self.ahead:
            given, self.ahead = self.ahead[:size], self.ahead[size:]
            return given + self.read(size - len(given))
        piece: bytes = self.file.read(size if self.left is not None else min(size, self.block_size)) or b""
        if len(piece) == size:
            return piece
        pieces, have = [piece], len(piece)
        while piece and have < size:
            left = size - have
            if self.left is None:  # what is asked for is allocated before it comes: no more than came already
                left = min(left, max(have, self.block_size), READ_PIECE)
            piece = self.file.read(left) or b""
            pieces.append(piece)
            have += len(piece)
        return b"".join(pieces)

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


class _Raw(io.RawIOBase):
    """What gives bytes of some kind, as ``io.BufferedReader`` wants it. It stays open when this is closed."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.into: Callable[[memoryview], int] = file.readinto if isinstance(file, io.FileIO) else self.copy

    def copy(self, buffer: memoryview) -> int:
        piece = self.file.read(len(buffer)) or b""
        buffer[: len(piece)] = piece
        return len(piece)

    def readinto(self, buffer: Any, /) -> int:
        return self.into(buffer)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return is_seekable(self.file)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return int(self.file.seek(offset, whence))

    def tell(self) -> int:
        return int(self.file.tell())


def is_seekable(file: BinaryReader) -> bool:
    """Whether a file says that it can seek; one that says nothing cannot."""
    seekable = getattr(file, "seekable", None)
    return seekable is not None and bool(seekable())


def bytes_left(file: BinaryReader) -> int | None:
    """Bytes from where a file stands to its end; None where it cannot seek."""
    if not is_seekable(file):
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
