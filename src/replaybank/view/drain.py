"""Bytes of somebody who does not notice that a disk is full, written by somebody who does."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Final

if TYPE_CHECKING:
    from typing_extensions import Self

PIECE: Final = 1 << 20
"""Bytes that are passed on at a time."""


class Drain:
    """A pipe with a path, of which a thread of ours writes what comes out into a file.

    Rerun only logs an error of writing: the file would end in the middle, or Rerun wait for ever. Errors are
    raised when this is left; until then all is taken in, so that nobody waits. Whoever wrote must have closed
    the path by then. For one thread.

    Args:
        file: open for writing.

    Raises:
        OSError: on leaving: the file could not be written.

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> with Drain(file) as drain, open(drain.path, "wb") as pipe:
        ...     _ = pipe.write(b"frames")
        >>> file.getvalue()
        b'frames'
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._pass_on, daemon=True)

    def __enter__(self) -> Self:
        self._out, self._into = os.pipe()
        self._thread.start()
        return self

    @property
    def path(self) -> str:
        """What the other one writes to."""
        return f"/dev/fd/{self._into}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._into)
        self._thread.join()
        os.close(self._out)
        if self._error is not None:
            raise self._error from error

    def _pass_on(self) -> None:
        while piece := os.read(self._out, PIECE):
            try:
                if self._error is None:
                    self._file.write(piece)
            except OSError as error:
                self._error = error
