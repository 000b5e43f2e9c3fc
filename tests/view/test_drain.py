"""What somebody else writes arrives whole, or its error does."""

from __future__ import annotations

import io

import pytest

from replaybank.view.drain import PIECE, Drain


class Full(io.BytesIO):
    """A file with room for a few bytes."""

    def write(self, content: object) -> int:
        raise OSError(28, "No space left on device")


def test_all_that_is_written_arrives() -> None:
    content = bytes(range(256)) * (PIECE // 64)
    file = io.BytesIO()
    with Drain(file) as drain, open(drain.path, "wb") as pipe:
        pipe.write(content)
    assert file.getvalue() == content


def test_a_writer_is_not_kept_waiting_by_a_file_that_fails() -> None:
    drain = Drain(Full())

    def write() -> None:
        with drain, open(drain.path, "wb") as pipe:
            pipe.write(bytes(4 * PIECE))

    with pytest.raises(OSError, match="No space left"):
        write()
