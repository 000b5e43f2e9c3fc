"""Reads tar archives from beginning to end: nothing is extracted, and no size is believed.

Headers are parsed by the standard library's ``tarfile.TarInfo``; walking from one to the next is done here,
because ``tarfile`` follows whatever a header says: sparse maps, links, headers before headers of any size.
The formats are those of POSIX.1-2001 (ustar, pax) and GNU tar.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterator
from typing import Final

from replaybank.datasets.openx.sources.tfrecord import READ_PIECE, BinaryReader, bytes_left

BLOCK: Final = 512
MAX_HEADER: Final = 1 << 20
"""Bytes of a long name or of pax records; a path has at most 4096."""
MAX_EXTENSIONS: Final = 16
"""Extension headers in front of one member: two are usual."""
_LAST_CHANCE: Final = 1 << 62
_FILES: Final = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_LINKS: Final = (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)


class TarFault(Exception):
    """The archive is broken or holds what is not read; whoever reads it says which archive.

    Args:
        offset: byte at which the faulty header begins.
        reason: what is wrong.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(offset, reason)
        self.offset = offset
        self.reason = reason


class Member:
    """One file in an archive, to be read before the next one is asked for.

    Args:
        name: its path; no file is ever made of it.
        offset: byte at which its header begins.
        size: bytes that its header declares.
    """

    def __init__(self, name: str, offset: int, size: int, read: Callable[[int], bytes]) -> None:
        self.name = name
        self.offset = offset
        self.size = size
        self._read = read
        self.left = size
        """Bytes not read yet."""

    def read(self) -> bytes:
        """The rest of its bytes. O(size); memory follows what is really there.

        Raises:
            TarFault: the archive ends before.
        """
        content = self._read(self.left)
        self.left -= len(content)
        if self.left:
            raise TarFault(
                self.offset, f"cut short: {self.size} bytes are declared, {len(content)} are there"
            )
        return content


def members(file: BinaryReader) -> Iterator[Member]:
    """The files of an archive, in order; folders are passed over.

    What of a member was not read is stepped over: by seeking where the file's size is known, else by reading.

    Args:
        file: an open binary file, seekable or not, at the beginning of the archive.

    Raises:
        TarFault: a header is broken, the archive is cut short, or a member is a link, a device or sparse.
    """
    return _Walk(file).members()


class _Walk:
    """State of one pass. Not thread-safe."""

    def __init__(self, file: BinaryReader) -> None:
        self.file = file
        self.left = bytes_left(file)
        """Bytes from here to the end of the file; None where it cannot be known."""
        self.at = 0

    def members(self) -> Iterator[Member]:
        while True:
            begin = self.at
            found = self.header()
            if found is None:
                return
            kind, name, size = found
            if kind == tarfile.DIRTYPE:
                self.skip(begin, size)
                continue
            if kind not in _FILES:
                what = "a link or a device" if kind in _LINKS else f"of the type {kind!r}"
                raise TarFault(begin, f"the member {name!r:.200} is {what}; only plain files are read")
            self.check(begin, size)
            end = self.at + size
            member = Member(name, begin, size, self.read)
            yield member
            self.skip(begin, end - self.at)
            self.skip(begin, -size % BLOCK)

    def header(self) -> tuple[bytes, str, int] | None:
        """Type, name and size of the next member, with what its extension headers say; None at the end."""
        begin = self.at
        name: str | None = None
        size: int | None = None
        for _ in range(MAX_EXTENSIONS):
            at = self.at
            raw = self.read(BLOCK)
            if not raw and self.at == begin:
                raise TarFault(at, "cut short: the empty blocks that end an archive are not there")
            if len(raw) < BLOCK:
                raise TarFault(at, f"cut short: {len(raw)} bytes of a header of {BLOCK} are there")
            if at == begin and raw == bytes(BLOCK):
                return None
            try:
                info = tarfile.TarInfo.frombuf(raw, "utf-8", "backslashreplace")
            except (tarfile.HeaderError, ValueError, OverflowError) as error:
                raise TarFault(at, f"no header of a tar archive: {error}") from error
            declared = info.size if size is None else size
            if not 0 <= declared < _LAST_CHANCE or info.size < 0:
                raise TarFault(at, f"a header that declares {info.size} bytes")
            if info.type == tarfile.GNUTYPE_LONGNAME:
                name = self.extension(at, info.size).rstrip(b"\0").decode("utf-8", "backslashreplace")
            elif info.type == tarfile.GNUTYPE_LONGLINK or info.type == tarfile.XGLTYPE:
                self.extension(at, info.size)
            elif info.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
                records = _pax(self.extension(at, info.size), at)
                name = records.get("path", name)
                size = _pax_size(records, at, size)
            elif info.type == tarfile.GNUTYPE_SPARSE:
                raise TarFault(
                    at, f"the member {name or info.name!r:.200} is sparse; only plain files are read"
                )
            else:
                return info.type, info.name if name is None else name, declared
        raise TarFault(begin, f"more than {MAX_EXTENSIONS} extension headers")

    def extension(self, at: int, size: int) -> bytes:
        if size > MAX_HEADER:
            raise TarFault(at, f"an extension header of {size} bytes; at most {MAX_HEADER} are read")
        content = self.read(size)
        if len(content) < size:
            raise TarFault(
                at, f"cut short: {size} bytes of an extension header are declared, {len(content)} are there"
            )
        self.skip(at, -size % BLOCK)
        return content

    def check(self, at: int, size: int) -> None:
        """Refuse a member that is larger than what is left, before any of it is read."""
        if self.left is not None and size > self.left:
            raise TarFault(at, f"cut short: {size} bytes are declared, {self.left} are there")

    def read(self, size: int) -> bytes:
        """``size`` bytes, fewer only at the end of the file."""
        pieces = []
        while size > 0:
            piece = self.file.read(min(size, READ_PIECE) if self.left is None else size)
            if not piece:
                break
            pieces.append(piece)
            self.advance(len(piece))
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def skip(self, at: int, size: int) -> None:
        if size <= 0:
            return
        self.check(at, size)
        if self.left is not None:
            self.file.seek(size, os.SEEK_CUR)  # type: ignore[attr-defined]  # a known size means seekable
            self.advance(size)
            return
        while size:
            piece = self.file.read(min(size, READ_PIECE))
            if not piece:
                raise TarFault(at, f"cut short: {size} more bytes should follow")
            self.advance(len(piece))
            size -= len(piece)

    def advance(self, size: int) -> None:
        self.at += size
        if self.left is not None:
            self.left -= size


def _pax(content: bytes, at: int) -> dict[str, str]:
    r"""Records of a pax header, each ``"LENGTH KEY=VALUE\n"`` with its own length in front."""
    records = {}
    start = 0
    while start < len(content):
        space = content.find(b" ", start, start + 10)
        digits = content[start:space] if space > 0 else b""
        length = int(digits) if digits.isdigit() else 0
        record = content[space + 1 : start + length]
        key, equals, value = record[:-1].partition(b"=")
        if length <= len(digits) + 1 or record[-1:] != b"\n" or not equals or start + length > len(content):
            raise TarFault(at, "pax records that cannot be read")
        if key.startswith(b"GNU.sparse."):
            raise TarFault(at, "a sparse member; only plain files are read")
        if key in (b"path", b"size"):
            records[key.decode()] = value.decode("utf-8", "backslashreplace")
        start += length
    return records


def _pax_size(records: dict[str, str], at: int, known: int | None) -> int | None:
    if "size" not in records:
        return known
    text = records["size"]
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise TarFault(at, f"a size of {text!r:.80}")
    return int(text)
