"""Reading over HTTP: the right bytes through connections that break, or an error that names the URL."""

from __future__ import annotations

import errno
import io
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from http_server import WebServer, serving
from replaybank.datasets.openx.sources import connection
from replaybank.datasets.openx.sources.connection import Retry
from replaybank.datasets.openx.sources.files import exists, list_names, open_binary, size_of
from replaybank.datasets.openx.sources.http import HttpFile, open_http
from replaybank.datasets.openx.sources.tfrecord import read_records, write_record

CONTENT = bytes(range(256)) * 4000
"""1 MB, so that no answer fits a socket's buffers."""


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses that would have been made; none is."""
    made: list[float] = []
    monkeypatch.setattr(connection, "pause", made.append)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return made


@pytest.fixture
def server(tmp_path: Path, pauses: list[float]) -> Iterator[WebServer]:
    (tmp_path / "file").write_bytes(CONTENT)
    (tmp_path / "empty").write_bytes(b"")
    with serving(tmp_path) as running:
        yield running


def test_a_file_is_read_in_one_request(server: WebServer) -> None:
    with open_binary(f"{server.url}/file") as file:
        assert file.read(3) == CONTENT[:3]
        assert file.tell() == 3
        assert file.read() == CONTENT[3:]
        assert file.read(5) == b""
    assert len(server.log) == 1


def test_the_records_of_a_file_are_read_in_one_request(server: WebServer, tmp_path: Path) -> None:
    payloads = [bytes([size % 251]) * size for size in (5, 0, 40_000, 200_000, 3_000_000, 7, 7)]
    (tmp_path / "records").write_bytes(b"".join(map(write_record, payloads)))
    assert [record.payload for record in read_records(f"{server.url}/records")] == payloads
    assert len(server.log) == 1


def test_going_to_the_end_and_back_asks_for_nothing(server: WebServer) -> None:
    with open_binary(f"{server.url}/file") as file:
        assert file.seek(0, os.SEEK_END) == len(CONTENT)
        assert file.seek(0) == 0
        assert file.read(10) == CONTENT[:10]
        assert file.seek(1000, os.SEEK_CUR) == 1010
        assert file.read(10) == CONTENT[1010:1020]
        assert len(server.log) == 1
        file.seek(-5, os.SEEK_END)
        assert file.read() == CONTENT[-5:]
        assert server.log[1:] == [("/file", f"bytes={len(CONTENT) - 5}-")] or len(server.log) == 1
        file.seek(7)
        assert file.read(2) == CONTENT[7:9]
        assert server.log[-1] == ("/file", "bytes=7-")
        with pytest.raises(ValueError, match="no byte -1"):
            file.seek(-1)


def test_files_are_looked_for_without_reading_them(server: WebServer) -> None:
    assert exists(f"{server.url}/file")
    assert not exists(f"{server.url}/other")
    assert size_of(f"{server.url}/file") == len(CONTENT)
    assert size_of(f"{server.url}/empty") == 0
    assert size_of(f"{server.url}/other") is None
    assert list_names(server.url) is None
    with open_binary(f"{server.url}/empty") as file:
        assert file.read() == b""


@pytest.mark.parametrize("fault", ["drop", "end_early"])
@pytest.mark.parametrize("ranges", [True, False])
def test_a_connection_that_ends_early_is_resumed_at_the_byte(
    server: WebServer, pauses: list[float], fault: str, ranges: bool
) -> None:
    server.faults.ranges = ranges
    server.faults.drop_after = 300_000
    setattr(server.faults, fault, 2)
    with open_binary(f"{server.url}/file") as file:
        assert file.read() == CONTENT
    expected = ["", "bytes=300000-", "bytes=600000-" if ranges else "bytes=300000-"]
    assert [asked for _, asked in server.log] == expected
    assert len(pauses) == 2


def test_a_busy_server_is_waited_for_as_long_as_it_asks(server: WebServer, pauses: list[float]) -> None:
    server.faults.busy, server.faults.retry_after = 2, "7"
    with open_binary(f"{server.url}/file") as file:
        assert file.read(4) == CONTENT[:4]
    assert pauses == [7.0, 7.0]


def test_pauses_grow_and_then_the_error_names_the_url(server: WebServer, pauses: list[float]) -> None:
    server.faults.busy = 100
    with pytest.raises(ConnectionError, match=rf"{server.url}/file: the server answers 503; tried 6 times"):
        open_binary(f"{server.url}/file")
    assert len(pauses) == 5
    assert all(0.5 * 2**n <= pause <= 0.75 * 2**n for n, pause in enumerate(pauses))


def test_a_connection_that_breaks_without_progress_is_given_up(
    server: WebServer, pauses: list[float]
) -> None:
    server.faults.drop, server.faults.drop_after = 100, 0
    file = HttpFile(f"{server.url}/file", Retry(attempts=3))
    with pytest.raises(ConnectionError, match=rf"{server.url}/file: .* at byte 0.*tried 3 times"):
        file.read()
    assert len(pauses) == 2


def test_attempts_are_counted_anew_after_each_byte(server: WebServer) -> None:
    server.faults.drop, server.faults.drop_after = 20, 50_000
    with open_http(f"{server.url}/file", Retry(attempts=2)) as file:
        assert file.read() == CONTENT


def test_an_asked_pause_of_hours_is_a_refusal(server: WebServer, pauses: list[float]) -> None:
    server.faults.busy, server.faults.retry_after = 1, "86400"
    with pytest.raises(ConnectionError, match="asks to wait 86400 seconds"):
        open_binary(f"{server.url}/file")
    assert pauses == []


@pytest.mark.parametrize(
    ("status", "error"), [(401, PermissionError), (403, PermissionError), (400, OSError)]
)
def test_what_waiting_cannot_mend_is_an_error_at_once(
    server: WebServer, pauses: list[float], status: int, error: type[OSError]
) -> None:
    server.faults.busy, server.faults.busy_status = 1, status
    with pytest.raises(error, match=f"{server.url}/file: .*{status}"):
        open_binary(f"{server.url}/file")
    assert pauses == []


def test_a_file_that_is_not_there_is_file_not_found(server: WebServer) -> None:
    with pytest.raises(FileNotFoundError, match=f"{server.url}/other"):
        open_binary(f"{server.url}/other")


@pytest.mark.parametrize("tags", [True, False])
def test_a_file_that_changes_while_it_is_read_is_an_error(
    server: WebServer, tmp_path: Path, tags: bool
) -> None:
    server.faults.tags = tags
    server.faults.drop, server.faults.drop_after = 1, 300_000
    with open_binary(f"{server.url}/file") as file:
        assert file.read(1000) == CONTENT[:1000]
        (tmp_path / "file").write_bytes(CONTENT[::-1] if tags else CONTENT[:-1])
        with pytest.raises(OSError, match=r"/file changed while it was read"):
            file.read()


def test_a_server_that_says_no_lengths_is_read_to_its_end(server: WebServer) -> None:
    server.faults.lengths = False
    with open_binary(f"{server.url}/file") as file:
        assert not file.seekable()
        assert file.read() == CONTENT
        assert file.read() == b""
        with pytest.raises(io.UnsupportedOperation, match="how long"):
            file.seek(0)


def test_a_compressed_answer_is_not_taken_for_the_file(server: WebServer) -> None:
    server.faults.coding = "gzip"
    with pytest.raises(OSError, match=f"{server.url}/file: the server sends it as gzip"):
        open_binary(f"{server.url}/file")


def test_nobody_at_home_is_one_clear_error(pauses: list[float]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/file"
        reason = os.strerror(errno.ECONNREFUSED)
        with pytest.raises(ConnectionError, match=f"{url}: the connection failed: {reason}; tried 6 times"):
            open_binary(url)


def test_an_unknown_host_is_not_waited_for(pauses: list[float]) -> None:
    with pytest.raises(
        ConnectionError, match=r"http://nowhere\.invalid/x: the name .* \(is there a network\?\)"
    ):
        open_binary("http://nowhere.invalid/x")
    assert len(pauses) == 1
