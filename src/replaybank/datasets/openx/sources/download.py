"""Shards are downloaded one by one: resumed at the byte, whole or not there, gone once they were read."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

from replaybank.checkpoint import fsync_directory, write_json_atomically
from replaybank.datasets.openx.sources.base import Episode, EpisodeSource, FieldSpec, Key, Shard, kind_of
from replaybank.datasets.openx.sources.connection import RETRY, Retry
from replaybank.datasets.openx.sources.http import ChangedError, HttpFile, http_size, is_http
from replaybank.file_lock import AVAILABLE, FileLock
from replaybank.progress import Bar
from replaybank.storages.capacity import human

WRITTEN = 1 << 18
"""Bytes that are written at a time: as many are lost when a download is killed."""
PART = ".part"
"""Behind the name of a file that is not whole yet."""
KEPT_PART = 4
"""Of the free disk: what shards that will be read once more may take; the dataset itself needs the rest."""
AHEAD_PART = 16
"""Of the free disk: what a shard may take that is fetched before its turn."""
_THREAD = "replaybank-download"
_JOIN_SECONDS = 10.0
NOTE = ".part.json"
"""Behind the name of what says which file the part is of."""


def download(
    url: str,
    dest: str | os.PathLike[str],
    *,
    retry: Retry = RETRY,
    progress: bool | None = False,
    stop: threading.Event | None = None,
) -> Path:
    """Download a file. It gets its name only when it is whole; one that is there already is left as it is.

    Interrupted at any instant, the same call goes on at the byte where it stopped, unless the file behind the
    URL has changed: then it begins anew. Of two at once, in threads or processes, the second waits.

    Args:
        url: http or https.
        dest: the file to make.
        retry: how long to go on trying.
        progress: show a progress bar; None: where the error output is a terminal.
        stop: set to give up, with what has come left for another time.

    Returns:
        The path of the file.

    Raises:
        FileNotFoundError: the server has no such file.
        PermissionError: the server does not give it.
        ConnectionError: the server cannot be reached, or broke off too often.
        OSError: with ``errno.ENOSPC``: the disk has no room for it.
        InterruptedError: ``stop`` was set.
    """
    target = Path(dest)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _claimed(target) as part:
        if part is None:
            return target
        with Bar(target.name, "B", show=progress) as bar:
            try:
                _fetch(url, target, part, retry, bar, stop)
            except ChangedError:
                part.truncate(0)
                _fetch(url, target, part, retry, bar, stop)
        part.flush()
        os.fsync(part.fileno())
        os.replace(_beside(target, PART), target)
        fsync_directory(target.parent)
        _beside(target, NOTE).unlink(missing_ok=True)
    return target


def _fetch(
    url: str, target: Path, part: IO[bytes], retry: Retry, bar: Bar, stop: threading.Event | None
) -> None:
    note = _beside(target, NOTE)
    have = part.seek(0, os.SEEK_END)
    size, tag = _noted(note, url)
    if size is None or have > size:
        have, size, tag = 0, None, None
        part.truncate(0)
    part.seek(have)
    with HttpFile(url, retry) as source:
        if have:
            source.expect(have, size, tag)
        source.connect()
        write_json_atomically(note, {"url": url, "size": source.size, "tag": source.tag})
        if source.size is not None:
            free = shutil.disk_usage(target.parent).free
            if source.size - have > free:
                raise OSError(
                    errno.ENOSPC,
                    f"{url} takes {human(source.size - have)}, and {human(free)} are free there",
                    os.fspath(target.parent),
                )
        while piece := source.read1(WRITTEN):
            part.write(piece)
            have += len(piece)
            bar.reach(have, source.size)
            if stop is not None and stop.is_set():
                raise InterruptedError(f"{url} is not fetched any further")


def _noted(note: Path, url: str) -> tuple[int | None, str | None]:
    """Size and tag of the file that a part is of; nothing where that is another one, or nobody knows."""
    try:
        found: Any = json.loads(note.read_bytes())
        size, tag = found["size"], found["tag"]
        good = found["url"] == url and type(size) is int and (tag is None or type(tag) is str)
    except (OSError, ValueError, KeyError, TypeError):
        return None, None
    return (size, tag) if good else (None, None)


def _beside(target: Path, suffix: str) -> Path:
    return target.with_name(target.name + suffix)


@contextlib.contextmanager
def _claimed(target: Path) -> Iterator[IO[bytes] | None]:
    """The part of a file, nobody else writing to it; None if the whole file is there."""
    while True:
        if target.is_file():
            yield None
            return
        path = _beside(target, PART)
        lock = FileLock(path, os.O_RDWR | os.O_CREAT)
        try:
            lock.take()
            # Whoever held it may have finished in between: then this is the whole file, or a new part of it.
            if not lock.is_of(path):
                continue
            if target.is_file():
                path.unlink()
                continue
            with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as part:
                yield part
            return
        finally:
            lock.release()


class _Following:
    """The shard that will be read next on its way here, while another is worked on. Not thread-safe."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def fetch(self, url: str, target: Path) -> None:
        """Begin with a shard; the one before has been waited for."""
        self._thread = threading.Thread(target=self._run, args=(url, target), name=_THREAD, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until nothing is under way: a file that was read and removed must not be fetched after that."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, url: str, target: Path) -> None:
        # Whatever is wrong comes again, and is told, when it is the shard's turn.
        with contextlib.suppress(Exception):
            target.parent.mkdir(parents=True, exist_ok=True)
            size = http_size(url)
            if size is not None and size <= shutil.disk_usage(target.parent).free // AHEAD_PART:
                download(url, target, stop=self._stop)

    def end(self) -> None:
        """Give up. A read that hangs is waited for a little."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)


class DownloadedSource:
    """A source whose shards are fetched over HTTP, each when it is read, and removed once it was read.

    So that no more of the raw files is on the disk than is worked on; what is behind other URLs or on this
    machine is read where it is. As thread-safe and picklable as the source.

    Args:
        source: the episodes.
        folder: for the shards; made when it is needed.
        progress: show a progress bar of each download; None: where the error output is a terminal.
    """

    def __init__(
        self, source: EpisodeSource, folder: str | os.PathLike[str], *, progress: bool | None = False
    ) -> None:
        self.source = source
        self.progress = progress
        self.folder = Path(folder)
        self.name: str = source.name
        self.fields: Mapping[Key, FieldSpec] = source.fields
        self.kind: str = kind_of(source)
        self.corrections: Any = getattr(source, "corrections", None)
        self.version: str = getattr(source, "version", "")
        self.split: str = getattr(source, "split", "train")
        self._room = 0
        self._following: _Following | None = None

    @contextlib.contextmanager
    def ahead(self) -> Iterator[None]:
        """Fetch the shard behind the one that is read meanwhile, where the disk has room for many of them."""
        if not AVAILABLE:  # two downloads of one file must not meet
            yield
            return
        self._following = _Following()
        try:
            yield
        finally:
            self._following.end()
            self._following = None

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep shards that are read meanwhile for when they are read again, up to a part of the free disk."""
        folder = next(path for path in self.folder.absolute().parents if path.is_dir())
        self._room = shutil.disk_usage(folder).free // KEPT_PART
        try:
            yield
        finally:
            self._room = 0

    def shards(self) -> Sequence[Shard]:
        """The shards of the source, where they are published."""
        return self.source.shards()

    def episodes(self, shard: Shard, start: int = 0) -> Iterator[Episode]:
        """Episodes of one shard, from record ``start`` on; the shard is downloaded first.

        Raises:
            OSError: it cannot be downloaded; and whatever the source raises.
        """
        if not is_http(shard.path):
            yield from self.source.episodes(shard, start)
            return
        if self._following is not None:
            self._following.wait()
        path = download(shard.path, self._place(shard), progress=self.progress)
        if self._following is not None:
            shards = self.shards()
            if shard.number + 1 < len(shards) and is_http(shards[shard.number + 1].path):
                following = shards[shard.number + 1]
                self._following.fetch(following.path, self._place(following))
        yield from self.source.episodes(replace(shard, path=str(path)), start)
        size = path.stat().st_size
        if size <= self._room:
            self._room -= size
        else:
            path.unlink(missing_ok=True)

    def _place(self, shard: Shard) -> Path:
        """The file that a shard is fetched into."""
        name = unquote(shard.path.partition("?")[0].rpartition("/")[2])
        return self.folder / (name.replace("/", "_") or "shard")

    def clear(self) -> None:
        """Remove what is left of the downloads."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source!r}, {str(self.folder)!r})"
