"""Files behind HTTP(S), read through connections that break.

A connection that is dropped, times out or ends early is opened again after a pause, and reading goes on at
the byte where it stopped (RFC 9110, sections 13 and 14: ``Range``, ``If-Range``). What cannot be had is an
error that names the URL.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, Final

from replaybank.datasets.openx.sources.connection import RETRY, Broken, Connection, Retry, content_range

if TYPE_CHECKING:
    import requests

PIECE: Final = 1 << 20
"""Bytes asked of a connection at once; to read so many and throw them away is faster than a new request."""
_BEYOND: Final = 416


class ChangedError(OSError):
    """A file is another one than when reading it began."""


def is_http(path: str) -> bool:
    """Whether a path is read by this module.

    >>> is_http("https://host/file"), is_http("gs://bucket/file")
    (True, False)
    """
    return path.startswith(("http://", "https://"))


def open_http(url: str, retry: Retry = RETRY) -> HttpFile:
    """Open a URL for reading; it is known to be there when this returns.

    Raises:
        FileNotFoundError: the server has no such file.
        PermissionError: the server does not give it.
        ConnectionError: no answer, after all attempts.
        ImportError: requests is not installed.
    """
    file = HttpFile(url, retry)
    try:
        file.connect()
    except BaseException:
        file.close()
        raise
    return file


def http_size(url: str, retry: Retry = RETRY) -> int | None:
    """Bytes of the file at a URL; None where the server does not say.

    Asks for one byte of it: servers that pass a request on to another one often sign that for reading only.

    Raises:
        FileNotFoundError, PermissionError, ConnectionError: as for :func:`open_http`.
    """
    connection = Connection(url, retry)
    while True:
        with connection.trying(), connection.request({"Range": "bytes=0-0"}) as answer:
            if answer.status_code == _BEYOND:  # of a file of no bytes there is no first one
                return 0
            connection.check(answer)
            return content_range(answer)[1]


def http_exists(url: str, retry: Retry = RETRY) -> bool:
    """Whether there is a file at a URL.

    Raises:
        PermissionError, ConnectionError: as for :func:`open_http`.
    """
    try:
        http_size(url, retry)
    except FileNotFoundError:
        return False
    return True


class HttpFile(io.RawIOBase):
    """A file behind a URL, read in order; a broken connection is resumed at the byte.

    Seeking works where the server says how long the file is; reading on from elsewhere than a short way
    forward is a new request. Not thread-safe.

    Args:
        url: where it is.
        retry: how long to go on trying.

    Raises:
        ConnectionError: the connection broke and could not be resumed; names the URL and the byte.
        OSError: the file is another one than when reading began.
    """

    def __init__(self, url: str, retry: Retry = RETRY) -> None:
        self.name = url
        self.size: int | None = None
        """Bytes of the file; None where the server does not say, and before the first answer."""
        self.tag: str | None = None
        """What tells one version of the file from another, where the server gives it."""
        self._connection = Connection(url, retry)
        self._answer: requests.Response | None = None
        self._at = 0
        self._arrived = 0
        """The byte that the answer gives next."""
        self._known = False
        """Whether size and tag are those of a first answer."""
        self._ended = False

    def expect(self, at: int, size: int | None, tag: str | None) -> None:
        """Go on where an earlier reader stopped, at byte ``at`` of what must still be the same file."""
        self._at, self.size, self.tag, self._known = at, size, tag, True

    def connect(self) -> None:
        """Ask for the file from where reading stands, and look at the answer."""
        while self._answer is None and not self._at_end():
            with self._connection.trying():
                self._ask()

    def _ask(self) -> None:
        headers = {"Range": f"bytes={self._at}-"} if self._at else {}
        if self._at and self.tag is not None and not self.tag.startswith("W/"):
            headers["If-Range"] = self.tag
        answer = self._connection.request(headers)
        try:
            self._connection.check(answer)
            first, size = content_range(answer)
            tag = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
            if self._known and (size != self.size or (tag and self.tag and tag != self.tag)):
                raise ChangedError(
                    f"{self.name} changed while it was read: it had {self.size} bytes, now {size}"
                )
            if first not in (0, self._at):
                raise Broken(f"asked for byte {self._at}, the server sent byte {first}")
        except BaseException:
            answer.close()
            raise
        self.size, self.tag, self._known = size, tag, True
        # A server that knows no ranges begins at the first byte: what was read already is read again.
        self._answer, self._arrived = answer, first

    def _at_end(self) -> bool:
        return self._ended or (self._known and self.size is not None and self._at >= self.size)

    def read(self, size: int | None = -1, /) -> bytes:
        """Up to ``size`` bytes, exactly so many unless the file ends; all that is left by default."""
        if self.closed:
            raise ValueError("read of a closed file")
        wanted = -1 if size is None else size
        pieces = []
        while wanted:
            piece = self._next(min(wanted, PIECE) if wanted > 0 else PIECE)
            if not piece:
                break
            pieces.append(piece)
            wanted -= len(piece) if wanted > 0 else 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read1(self, size: int = PIECE, /) -> bytes:
        """Some of the next bytes, up to ``size``; none at the end. What came before an error is not lost."""
        if self.closed:
            raise ValueError("read of a closed file")
        return self._next(min(size, PIECE))

    def readinto(self, buffer: Any, /) -> int:
        """Read into a buffer; how many bytes."""
        view = memoryview(buffer).cast("B")
        found = self.read(len(view))
        view[: len(found)] = found
        return len(found)

    def _next(self, size: int) -> bytes:
        """Some of the next bytes, none at the end."""
        while not self._at_end():
            with self._connection.trying(f" at byte {self._at}"):
                piece = self._try(size)
                self._connection.works()
                self._at += len(piece)
                self._ended = not piece
                return piece
        return b""

    def _try(self, size: int) -> bytes:
        if self._answer is not None and not 0 <= self._at - self._arrived <= PIECE:
            self._drop()
        if self._answer is None:
            self._ask()
        while self._arrived < self._at:
            if not self._some(min(self._at - self._arrived, PIECE)):
                raise Broken(f"the connection ended at byte {self._arrived}")
        piece = self._some(size)
        if not piece and self.size is not None:
            raise Broken(f"the connection ended at byte {self._at} of {self.size}")
        return piece

    def _some(self, size: int) -> bytes:
        assert self._answer is not None
        try:
            piece: bytes = self._answer.raw.read(size, decode_content=False)
        except BaseException:
            self._drop()
            raise
        self._arrived += len(piece)
        if not piece:
            self._drop()
        return piece

    def _drop(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.close()

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """Whether the server says how long the file is."""
        if not self._known:
            self.connect()
        return self.size is not None

    def tell(self) -> int:
        """Where reading stands."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a byte. Nothing is asked for before it is read."""
        if not self.seekable():
            raise io.UnsupportedOperation(f"{self.name}: the server does not say how long the file is")
        assert self.size is not None
        target = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        if target < 0:
            raise ValueError(f"there is no byte {target}")
        self._at = target
        return target

    def close(self) -> None:
        """Let the connection go."""
        if not self.closed:
            self._drop()
        super().close()
