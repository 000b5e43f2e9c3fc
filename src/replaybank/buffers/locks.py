"""The lock of a buffer: between threads, between processes, after a fork, while a checkpoint is written."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Protocol

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]


class ProcessLock:
    """A reentrant lock between threads and between the processes it is pickled or forked to.

    A lock of the system on a temporary file: the system frees it when its holder is killed. In one process
    all copies of a lock are one object. The file's name goes with the process that made it, or, if that was
    killed, when the next lock is made; forked processes go on without it.

    Thread-safe and process-safe.

    Raises:
        RuntimeError: this system has no locks on files.
    """

    _orphaned = False  # forked where the file could not be opened anew

    def __init__(self) -> None:
        _sweep()
        descriptor, path = tempfile.mkstemp(prefix=f"{_PREFIX}{os.getpid()}-{_process_space()}-")
        self._begin(path, descriptor)
        weakref.finalize(self, _remove, path, os.getpid())

    def _begin(self, path: str, descriptor: int) -> None:
        self._path = path
        self._threads = threading.RLock()
        self._depth = 0
        self._descriptor = descriptor
        _in_this_process[path] = self
        renew_after_fork(self)

    @property
    def name(self) -> str:
        """What it is called in all processes."""
        return self._path

    def acquire(self) -> bool:
        """Wait for the lock and take it."""
        self._threads.acquire()
        if self._depth == 0:
            try:
                if self._orphaned:
                    raise RuntimeError(
                        "The process that made this shared buffer is gone, and its lock with it. Let it live"
                        " as long as those that use the buffer."
                    )
                _flock(self._descriptor, take=True)
            except BaseException:
                self._threads.release()
                raise
        self._depth += 1
        return True

    def release(self) -> None:
        """Give the lock back."""
        if not self._is_owned():
            raise RuntimeError("Only the thread that holds the lock can release it.")
        self._depth -= 1
        if self._depth == 0:
            _flock(self._descriptor, take=False)
        self._threads.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    # What threading.Condition asks of a reentrant lock.

    def _is_owned(self) -> bool:
        return bool(self._threads._is_owned())  # type: ignore[attr-defined]

    def _release_save(self) -> int:
        depth = self._depth
        for _ in range(depth):
            self.release()
        return depth

    def _acquire_restore(self, depth: int) -> None:
        for _ in range(depth):
            self.acquire()

    def renew_after_fork(self) -> None:
        """In a forked child: the parent may hold the lock that was copied, so ask for it anew."""
        # The copied descriptor is the parent's lock itself; one opened here is this process's own. The name
        # may be gone with its maker: Linux opens the file anew by way of the copy.
        inherited = self._descriptor
        for path in (self._path, f"/proc/self/fd/{inherited}"):
            with contextlib.suppress(OSError):
                opened = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                if os.path.samestat(os.fstat(opened), os.fstat(inherited)):
                    os.close(inherited)
                    self._begin(self._path, opened)
                    return
                os.close(opened)
        self._begin(self._path, inherited)
        self._orphaned = True

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return _attached, (self._path,)

    def __del__(self) -> None:
        descriptor = getattr(self, "_descriptor", None)
        if descriptor is not None:
            os.close(descriptor)


def _flock(descriptor: int, *, take: bool) -> None:
    if fcntl is None:
        raise RuntimeError("shared=True needs locks on files, which this system does not have.")
    fcntl.flock(descriptor, fcntl.LOCK_EX if take else fcntl.LOCK_UN)


_in_this_process: weakref.WeakValueDictionary[str, ProcessLock] = weakref.WeakValueDictionary()


def _attached(path: str) -> ProcessLock:
    lock = _in_this_process.get(path)
    if lock is None:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise RuntimeError(
                f"The lock {path} of this shared buffer is gone, with the process that made it. Let "
                "that process live until the others have the buffer."
            ) from None
        lock = ProcessLock.__new__(ProcessLock)
        lock._begin(path, descriptor)
    return lock


def _remove(path: str, maker: int) -> None:
    if os.getpid() == maker:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


_PREFIX = "replaybank-lock-"
_MADE_BY = re.compile(re.escape(_PREFIX) + "([0-9]+)-([0-9]+)-.*")


def _process_space() -> int:
    """Which numbering of processes this one is in: containers may share a folder and not their numbers."""
    with contextlib.suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino
    return 0


def _sweep() -> None:
    """Remove the files of locks whose makers were killed."""
    folder, space = tempfile.gettempdir(), str(_process_space())
    for name in os.listdir(folder):
        made_by = _MADE_BY.fullmatch(name)
        if made_by and made_by[2] == space and not _is_alive(int(made_by[1])):
            with contextlib.suppress(OSError):  # another user's, or another sweeper was first
                os.unlink(os.path.join(folder, name))


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # another user's
    return True


class BufferLock:
    """One reentrant lock, ``lock``, under which a buffer does everything.

    ``with writing:`` takes it for a write, once no checkpoint is being written; ``with paused_writing():``
    holds writers back, and lets everybody else in. Who has waited for a checkpoint writes before the next.

    Args:
        shared: between processes too. Another process's writers are held back by the lock itself, which is
            then kept as long as a checkpoint is written.
    """

    def __init__(self, shared: ProcessLock | bool) -> None:
        self.shared = ProcessLock() if shared is True else shared or None
        self._start(self.shared or threading.RLock())
        renew_after_fork(self)

    @property
    def order(self) -> tuple[str, int]:
        """What those who take several locks at once sort them by, in all processes alike."""
        return "" if self.shared is None else self.shared.name, id(self)

    def _start(self, lock: Any) -> None:
        self.lock = lock
        self.writing = _Writing(self)
        self._saved = threading.Condition(lock)
        self._saver: int | None = None
        self._held_back = 0  # writers that wait for the saver

    @contextlib.contextmanager
    def paused_writing(self) -> Iterator[None]:
        """Hold writers back, except in this thread."""
        me, nested = threading.get_ident(), self.lock._is_owned()
        with self.lock:
            if self.shared or self._saver == me:  # the latter in a hook of this thread's own saving
                yield
                return
            # A thread that saves again and again would take the lock before those it has woken. Who saves in
            # the middle of a write lets nobody in.
            self._saved.wait_for(lambda: self._saver is None and (nested or not self._held_back))
            self._saver = me
        try:
            yield
        finally:
            with self.lock:
                self._saver = None
                self._saved.notify_all()

    def wait_for_saver(self) -> None:
        """Wait, with the lock held, until no other thread writes a checkpoint; lets the lock go meanwhile."""
        if self._saver == threading.get_ident():
            return
        self._held_back += 1
        try:
            self._saved.wait_for(lambda: self._saver is None)
        finally:
            self._held_back -= 1
            if not self._held_back:
                self._saved.notify_all()

    def renew_after_fork(self) -> None:
        """In a forked child: another thread of the parent may hold the lock that was copied."""
        if self.shared or self.lock._is_owned():
            self._start(self.lock)  # the first renews itself, the second is this very thread's
        else:
            self._start(threading.RLock())


class _Writing:
    """The lock, taken for a write; one object for all writes, since it keeps no state."""

    __slots__ = ("_owner",)

    def __init__(self, owner: BufferLock) -> None:
        self._owner = owner

    def __enter__(self) -> None:
        owner = self._owner
        owner.lock.acquire()
        if owner._saver is not None:
            owner.wait_for_saver()

    def __exit__(self, *error: object) -> None:
        self._owner.lock.release()


class _Renewable(Protocol):
    def renew_after_fork(self) -> None: ...


_renewables: weakref.WeakSet[_Renewable] = weakref.WeakSet()


def renew_after_fork(obj: _Renewable) -> None:
    """Have ``obj.renew_after_fork()`` called in every forked child."""
    _renewables.add(obj)


def _renew() -> None:
    for obj in list(_renewables):
        obj.renew_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
