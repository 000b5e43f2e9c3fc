"""Steps of several environments that wait to be written, a queue for each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from replaybank.storages.layout import Key

Steps = dict[Key, Tensor]
"""A step of n environments: each leaf ``[n, ...]``. Or several of one: ``[k, ...]``."""

_FIRST_PLACES = 16


class Lanes:
    """A queue of steps for each of n environments, in one ring of places for all.

    Not thread-safe.

    Args:
        count: number of environments, n.

    Example:
        >>> lanes = Lanes(2)
        >>> lanes.put({("x",): torch.tensor([1, 2])}, np.array([True, False]))
        >>> lanes.put({("x",): torch.tensor([3, 4])}, np.array([True, True]))
        >>> lanes.waiting.tolist(), lanes.firsts()["x",].tolist(), lanes.of(0, 2)["x",].tolist()
        ([2, 1], [1, 4], [1, 3])
    """

    def __init__(self, count: int) -> None:
        self.waiting: npt.NDArray[np.int64] = np.zeros(count, dtype=np.int64)
        self._heads: npt.NDArray[np.int64] = np.zeros(count, dtype=np.int64)
        self._every = torch.arange(count)
        self._ring: Steps = {}
        self._places = 0

    def put(self, steps: Mapping[Key, Tensor], there: npt.NDArray[np.bool_]) -> None:
        """Queue a step of the environments that have one. O(bytes of it), now and then of all that waits.

        Args:
            steps: leaves ``[n, ...]``, always of the same keys, shapes and dtypes.
            there: which environments have a step.
        """
        if not self._ring or self.waiting[there].max(initial=0) >= self._places:
            self._grow(steps)
        env = torch.from_numpy(np.flatnonzero(there))
        place = torch.from_numpy((self._heads + self.waiting)[there] % self._places)
        for key, leaf in steps.items():
            ring = self._ring[key]
            ring[env.to(ring.device), place.to(ring.device)] = leaf[env.to(leaf.device)]
        self.waiting[there] += 1

    def take_back(self, there: npt.NDArray[np.bool_]) -> None:
        """Undo the last :meth:`put`. O(n)."""
        self.waiting[there] -= 1

    def firsts(self) -> Steps:
        """The oldest waiting step of each environment, ``[n, ...]``; each must have one. O(bytes)."""
        heads = torch.from_numpy(self._heads)
        return {
            key: ring[self._every.to(ring.device), heads.to(ring.device)] for key, ring in self._ring.items()
        }

    def of(self, env: int, count: int) -> Steps:
        """The oldest ``count`` waiting steps of one environment, ``[count, ...]``. O(bytes)."""
        places = torch.from_numpy((self._heads[env] + np.arange(count)) % self._places)
        return {key: ring[env, places.to(ring.device)] for key, ring in self._ring.items()}

    def set_first(self, env: int, key: Key, value: float) -> None:
        """Replace an entry of the oldest waiting step of one environment. O(1)."""
        self._ring[key][env, int(self._heads[env])] = value

    def forget(self, env: int | slice, count: int) -> None:
        """Drop the oldest ``count`` waiting steps of one environment, or of each. O(1), or O(n)."""
        self._heads[env] = (self._heads[env] + count) % self._places
        self.waiting[env] -= count

    def _grow(self, steps: Mapping[Key, Tensor]) -> None:
        places = max(2 * self._places, _FIRST_PLACES)
        old, count = self._ring, len(self.waiting)
        self._ring = {
            key: torch.empty((count, places, *leaf.shape[1:]), dtype=leaf.dtype, device=leaf.device)
            for key, leaf in steps.items()
        }
        if old:
            order = torch.from_numpy((self._heads[:, None] + np.arange(self._places)) % self._places)
            for key, ring in old.items():
                self._ring[key][:, : self._places] = ring[
                    self._every[:, None].to(ring.device), order.to(ring.device)
                ]
        self._heads[:] = 0
        self._places = places
