"""Locks on files that end with the process that took them, whatever it has forked."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

AVAILABLE = fcntl is not None
"""Whether this system has such locks. Where it has none, every lock is given to everybody."""


class FileLock:
    """A lock of the system (``flock``) on a file or folder, held by the process that takes it alone.

    The system frees it when that process ends, even when it is killed. A forked child has a copy of the
    descriptor, with which it would hold the lock as well, for as long as it lives, and could free it: so that
    copy is closed as soon as there is a child, which then holds nothing. A lock that is forgotten is free.

    Each is for one thread at a time; two locks of one file keep threads apart just as processes.

    Args:
        path: what to lock; it is opened.
        flags: as for :func:`os.open`: a folder takes ``O_RDONLY``; on files some network file systems want
            ``O_RDWR`` for an exclusive lock.

    Raises:
        OSError: it cannot be opened.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     first, second = FileLock(folder, os.O_RDONLY), FileLock(folder, os.O_RDONLY)
        ...     first.take()
        ...     first.release()
        ...     second.take(wait=False)
        ...     second.held
        True
    """

    _descriptor: int | None = None

    def __init__(self, path: str | os.PathLike[str], flags: int) -> None:
        self._process = os.getpid()
        self._open = True
        if fcntl is None:
            return
        with _forking:  # no child has a descriptor that nobody has written down
            self._descriptor = os.open(path, flags, 0o666)
            _opened.add(self)

    @property
    def held(self) -> bool:
        """Whether it is open still, and this process's own: no forked child's, and not released."""
        return self._open and self._process == os.getpid()

    def take(self, *, exclusive: bool = True, wait: bool = True) -> None:
        """Take the lock, or exchange a shared one for an exclusive one. Only one thread waits.

        Args:
            exclusive: for this holder alone; ``False``: beside others that do not want it for themselves.
            wait: until the others have let go.

        Raises:
            BlockingIOError: somebody else holds it, and ``wait`` is false. What was held before is lost then.
            OSError: the file system has no locks.
            RuntimeError: it was released, or made by the process that this one was forked from.
        """
        if not self.held:
            raise RuntimeError("This lock was released, or is of another process: make a new one.")
        if fcntl is not None and self._descriptor is not None:
            how = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
            fcntl.flock(self._descriptor, how if wait else how | fcntl.LOCK_NB)

    def is_of(self, path: str | os.PathLike[str]) -> bool:
        """Whether a path names what is locked; who held it before may have removed or renamed that."""
        if self._descriptor is None:
            return True
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Let others have it. Does nothing the second time, nor in a forked child."""
        mine, self._open = self.held, False
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None and fcntl is not None:
            if mine:  # by hand: a child that is forked just now may still have its copy
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def __del__(self) -> None:
        if self._descriptor is not None:
            self.release()


_forking = threading.RLock()
_opened: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _close_copies() -> None:
    """In a forked child: close what is another process's."""
    for lock in list(_opened):
        lock.release()
    _forking.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_close_copies
    )
