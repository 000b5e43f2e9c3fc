"""A storage as it was, for when a load fails half way."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from replaybank.storages.base import Storage
from replaybank.storages.list import ListStorage


class StorageSnapshot:
    """A storage as it is now, to be put back. O(N) copies of what it holds.

    Not thread-safe: the buffer's lock guards it.

    Args:
        storage: whose state is kept.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._stored: Mapping[str, Any] | None = None
        if storage.initialized and storage.log.length and not isinstance(storage, ListStorage):
            self._stored = storage.state_dict()
        else:
            # There is nothing in memory that loading would write into, or it puts another list in its place.
            self._attributes = {
                name: list(value) if type(value) is list else value for name, value in vars(storage).items()
            }
            self._log = copy.deepcopy(storage.log)

    def restore(self) -> None:
        """Put it back. O(N)."""
        storage = self._storage
        if self._stored is not None:
            storage.load_state_dict(self._stored)
        else:
            vars(storage).clear()
            vars(storage).update(self._attributes)
            storage.log.__setstate__(self._log.__getstate__())
            storage.log.load_state_dict(storage.log.state_dict())  # a new epoch, for who has looked meanwhile
