"""Downloads: whole or not there, resumed at the byte, whatever the network does."""

from __future__ import annotations

import errno
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from http_server import WebServer, serving
from replaybank.datasets.openx.sources import connection
from replaybank.datasets.openx.sources.connection import Retry
from replaybank.datasets.openx.sources.download import download
from replaybank.file_lock import FileLock

CONTENT = bytes(range(251)) * 4000


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    monkeypatch.setattr(connection, "pause", lambda seconds: None)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "file").write_bytes(CONTENT)
    (folder / "empty").write_bytes(b"")
    with serving(folder) as running:
        yield running


def interrupt(server: WebServer, dest: Path, after: int = 300_000) -> None:
    """Leave a download after so many bytes."""
    server.faults.drop, server.faults.drop_after = 1, after
    with pytest.raises(ConnectionError, match=f"{server.url}/file: .*tried once"):
        download(f"{server.url}/file", dest, retry=Retry(attempts=1))
    assert not dest.exists()


def test_a_file_is_whole_under_its_name_and_nothing_else_is_left(server: WebServer, tmp_path: Path) -> None:
    dest = tmp_path / "new" / "file"
    assert download(f"{server.url}/file", dest) == dest
    assert dest.read_bytes() == CONTENT
    assert [path.name for path in dest.parent.iterdir()] == ["file"]
    download(f"{server.url}/file", dest)
    assert len(server.log) == 1  # what is there is not asked for again
    assert download(f"{server.url}/empty", dest.with_name("empty")).read_bytes() == b""


def test_a_download_goes_on_at_the_byte_where_another_process_left_it(
    server: WebServer, tmp_path: Path
) -> None:
    dest = tmp_path / "file"
    interrupt(server, dest)
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:300_000]
    download(f"{server.url}/file", dest)
    assert server.log[-1] == ("/file", "bytes=300000-")
    assert dest.read_bytes() == CONTENT
    assert not list(tmp_path.glob("file.part*"))


def test_a_file_that_has_changed_since_is_downloaded_anew(server: WebServer, tmp_path: Path) -> None:
    dest = tmp_path / "file"
    for other in (CONTENT[::-1], CONTENT[:-7]):
        interrupt(server, dest)
        (tmp_path / "served" / "file").write_bytes(other)
        assert download(f"{server.url}/file", dest).read_bytes() == other
        dest.unlink()
        (tmp_path / "served" / "file").write_bytes(CONTENT)


OTHER = b'{"url": "other", "size": 1004000, "tag": null}'


@pytest.mark.parametrize("note", [b"", b"{", b"[]", OTHER])
def test_a_part_of_which_nothing_is_known_is_not_believed(
    server: WebServer, tmp_path: Path, note: bytes
) -> None:
    dest = tmp_path / "file"
    (tmp_path / "file.part").write_bytes(b"x" * 5000)
    (tmp_path / "file.part.json").write_bytes(note)
    assert download(f"{server.url}/file", dest).read_bytes() == CONTENT


def test_a_part_that_was_whole_already_only_gets_its_name(server: WebServer, tmp_path: Path) -> None:
    dest = tmp_path / "file"
    interrupt(server, dest)
    (tmp_path / "file.part").write_bytes(CONTENT)
    asked = len(server.log)
    assert download(f"{server.url}/file", dest).read_bytes() == CONTENT
    assert len(server.log) == asked


def test_two_at_once_make_one_file(server: WebServer, tmp_path: Path) -> None:
    server.faults.delay = 0.001
    threads = [
        threading.Thread(target=download, args=(f"{server.url}/file", tmp_path / "file")) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert not list(tmp_path.glob("file.part*"))
    assert len(server.log) == 1


def test_a_file_that_another_finished_just_before_is_not_fetched_again(
    server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = FileLock.take

    def finished(lock: FileLock) -> None:
        take(lock)
        (tmp_path / "file").write_bytes(CONTENT)

    monkeypatch.setattr(FileLock, "take", finished)
    assert download(f"{server.url}/file", tmp_path / "file").read_bytes() == CONTENT
    assert not server.log
    assert not list(tmp_path.glob("file.part*"))


def test_what_is_not_there_leaves_nothing_of_its_name(server: WebServer, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"{server.url}/other"):
        download(f"{server.url}/other", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_disk_without_room_is_told_before_anything_is_fetched(
    server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(OSError, match=r"/file takes .*, and .* free there") as caught:
        download(f"{server.url}/file", tmp_path / "file")
    assert caught.value.errno == errno.ENOSPC
    assert not (tmp_path / "file").exists()
    assert json.loads((tmp_path / "file.part.json").read_bytes())["size"] == len(CONTENT)
