"""Files of a dataset, on this machine, behind HTTP, or behind any other URL that fsspec knows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, Final, cast

from replaybank.datasets.openx.sources.http import http_exists, http_size, is_http, open_http

QUESTIONS: Final = 8
"""Asked of a server at a time."""


def is_url(path: str) -> bool:
    """Whether ``path`` is no file of this machine.

    >>> is_url("gs://gresearch/robotics"), is_url("/data/robotics")
    (True, False)
    """
    return "://" in path


def _filesystem(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError as error:
        raise ImportError(f"reading {url} needs fsspec: pip install 'replaybank[openx]'") from error
    try:
        filesystem, path = fsspec.core.url_to_fs(url)
    except ImportError as error:  # fsspec names the package that serves this kind of URL
        raise ImportError(f"{url} cannot be read: {error}") from error
    return filesystem, path


def join(folder: str, name: str) -> str:
    """Path of ``name`` in ``folder``.

    >>> join("gs://bucket/a/", "b")
    'gs://bucket/a/b'
    """
    return f"{folder.rstrip('/')}/{name}" if is_url(folder) else os.path.join(folder, name)


def open_binary(path: str) -> IO[bytes]:
    """Open for reading. What comes over HTTP is resumed where a connection breaks.

    Raises:
        FileNotFoundError: there is no such file.
        ConnectionError: the server cannot be reached.
        ImportError: a URL was given, and what reads such ones is not installed.
    """
    if not is_url(path):
        return open(path, "rb")
    if is_http(path):
        return cast("IO[bytes]", open_http(path))
    filesystem, inner = _filesystem(path)
    file: IO[bytes] = filesystem.open(inner, "rb")
    return file


def open_unbuffered(path: str) -> IO[bytes]:
    """The same for whoever reads a file in pieces of its own: a file of this machine has no buffer then.

    Raises:
        FileNotFoundError, ConnectionError, ImportError: as for :func:`open_binary`.
    """
    return open_binary(path) if is_url(path) else cast("IO[bytes]", open(path, "rb", buffering=0))


def is_folder(path: str) -> bool:
    """Whether there is a folder of this name; True for any URL, where that may be unknown."""
    return is_url(path) or os.path.isdir(path)


def exists(path: str) -> bool:
    """Whether there is a file of this name."""
    if not is_url(path):
        return os.path.isfile(path)
    if is_http(path):
        return http_exists(path)
    filesystem, inner = _filesystem(path)
    return bool(filesystem.isfile(inner))


def list_names(folder: str) -> set[str] | None:
    """Names in a folder; None where they cannot be listed, as behind many web servers."""
    if not is_url(folder):
        return set(os.listdir(folder))
    if is_http(folder):
        return None
    filesystem, inner = _filesystem(folder)
    try:
        found = filesystem.ls(inner, detail=False)
    except (OSError, NotImplementedError):
        return None
    return {str(path).rstrip("/").rsplit("/", 1)[-1] for path in found} or None


def size_of(path: str) -> int | None:
    """Bytes of a file; None where that cannot be known.

    Raises:
        ConnectionError, PermissionError: of a file behind HTTP: nobody says whether it is there.
    """
    if is_http(path):
        try:
            return http_size(path)
        except FileNotFoundError:
            return None
    try:
        if not is_url(path):
            return os.path.getsize(path)
        filesystem, inner = _filesystem(path)
        size = filesystem.size(inner)
    except (OSError, NotImplementedError):
        return None
    return None if size is None else int(size)


def sizes_of(paths: Sequence[str]) -> list[int | None]:
    """:func:`size_of` for many files, those behind HTTP side by side: a dataset may have a thousand."""
    if not any(map(is_http, paths)):
        return [size_of(path) for path in paths]
    with ThreadPoolExecutor(QUESTIONS) as threads:
        return list(threads.map(size_of, paths))
