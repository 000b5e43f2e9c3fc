"""A lock between threads that a forked child finds free."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any


class ThreadLock:
    """A reentrant lock, ``lock``. A forked child and a pickled copy have one of their own, which is free.

    Thread-safe.
    """

    lock: threading.RLock  # a ``with`` of the lock itself costs half of one that goes through this class

    def __init__(self) -> None:
        self.renew()
        _locks.add(self)

    def renew(self) -> None:
        """Forget who holds it: another thread of the parent may have when this process was forked."""
        self.lock = threading.RLock()

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *error: object) -> None:
        self.lock.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return ThreadLock, ()


_locks: weakref.WeakSet[ThreadLock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in list(_locks):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
