"""The weight tree by brute force, in NumPy: every level is made anew, in the kernels' order of additions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]


def scan(numbers: Floats) -> Floats:
    """Sums up to each of 16 numbers: two halves by doubling, then the first's total to the second."""
    halves = np.asarray(numbers, np.float64).reshape(2, 8).copy()
    for step in (1, 2, 4):
        halves[:, step:] = halves[:, step:] + halves[:, :-step].copy()
    halves[1] += halves[0, 7]
    return halves.reshape(16)


def blocks(values: Floats) -> Floats:
    padded = np.zeros(-(-len(values) // 16) * 16, values.dtype)
    padded[: len(values)] = values
    return padded.reshape(-1, 16)


class Tree:
    """All levels of a tree with given leaves."""

    def __init__(self, leaves: Floats) -> None:
        self.levels: list[tuple[Floats, Floats, Floats]] = []
        sums = minima = maxima = blocks(leaves)
        self.leaves = sums
        while True:
            positive = np.where(minima > 0, minima, np.inf).min(1)
            below = (
                np.array([scan(row)[-1] for row in sums]),
                np.where(np.isinf(positive), 0, positive).astype(leaves.dtype),
                maxima.max(1),
            )
            if len(below[0]) == 1:
                self.total, self.smallest, self.largest = (float(part[0]) for part in below)
                if self.levels:
                    return
            sums, minima, maxima = (blocks(part) for part in below)
            self.levels.append((sums, minima, maxima))

    def find(self, mass: float) -> int:
        """The item on which a mass falls."""
        node = 0
        for siblings in (*(sums for sums, _, _ in reversed(self.levels)), self.leaves):
            children = siblings[node]
            up_to = scan(children)
            child = next((j for j in range(16) if children[j] > 0 and mass < up_to[j]), None)
            if child is None:
                child = max(j for j in range(16) if children[j] > 0)
            mass = mass - (up_to[child - 1] if child else 0.0)
            node = node * 16 + child
        return node


def power(x: Floats, exponent: float) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(x, np.float64) ** exponent
