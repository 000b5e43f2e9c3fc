"""Random order that can be taken up again anywhere: draws by number, and a reservoir bounded in bytes.

No generator's state has to be kept: the ``k``-th draw of an epoch is a function of the seed, the epoch and
``k``. The numbers are those of NumPy's ``SeedSequence``, which are the same in every version and on every
machine (NEP 19).
"""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from replaybank import _native

T = TypeVar("T")

_MOST = (1 << 64) - 1  # of a part of a key that the native twin of NumPy's numbers takes


def below(n: int, *key: int) -> int:
    """A number in ``[0, n)`` that depends on the key alone. O(1).

    Of two numbers neither is more likely than the other by more than ``n / 2**64`` of its probability.

    >>> [below(10, 0, k) for k in range(8)]
    [8, 3, 9, 3, 2, 6, 3, 5]
    """
    if max(key) <= _MOST:
        return _native.seed_word(key) * n >> 64
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0]) * n >> 64


def permutation(n: int, *key: int) -> npt.NDArray[np.int64]:
    """The numbers ``[0, n)`` in an order that depends on the key alone. O(n log n).

    >>> permutation(5, 0).tolist()
    [4, 2, 3, 1, 0]
    """
    return np.random.SeedSequence(key).generate_state(n, np.uint64).argsort(kind="stable")


def swap_out(items: list[T], place: int) -> T:
    """Take an item out of a list; the last one comes to lie in its place. O(1)."""
    items[place], items[-1] = items[-1], items[place]
    return items.pop()


class Reservoir(Generic[T]):
    """Items waiting to be drawn, bounded in bytes and not in number: episodes differ a thousandfold.

    Not thread-safe: the thread that reads has it for itself.

    Args:
        limit: bytes at which it is full. With 0 it is full with one item.

    Example:
        >>> reservoir = Reservoir(100)
        >>> for name in "abc":
        ...     reservoir.add(name, 40)
        >>> reservoir.full, reservoir.take(0), reservoir.full, len(reservoir)
        (True, 'a', False, 2)
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        """Bytes of what is in it."""
        self._items: list[tuple[T, int]] = []

    def __len__(self) -> int:
        return len(self._items)

    @property
    def full(self) -> bool:
        """Whether one has to be taken before the next is added."""
        return len(self._items) > 0 and self.size >= self.limit

    def add(self, item: T, size: int) -> None:
        """Put an item of so many bytes behind the others."""
        self._items.append((item, size))
        self.size += size

    def take(self, place: int) -> T:
        """Take out the item in a place; the last one comes to lie there."""
        item, size = swap_out(self._items, place)
        self.size -= size
        return item
