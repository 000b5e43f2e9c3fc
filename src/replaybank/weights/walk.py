"""The walk over the weight tree as torch ops, for accelerators; bit for bit what the kernels do."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FAN = 16
"""Children of a node: one cache line of float32."""


class Level(NamedTuple):
    """A level above the leaves, as views ``[blocks, 16]`` of one block of memory.

    Args:
        sums: float64.
        minima: of the positive leaves below, 0 if there are none.
        maxima: of the leaves below.
    """

    sums: Tensor
    minima: Tensor
    maxima: Tensor


class Draw(NamedTuple):
    """What was drawn.

    Args:
        items: int64 ``[B]``.
        importance: ``[B]``, in the tree's dtype: (weight / smallest positive weight)^-beta.
        stamps: int64 ``[B]``, all the same.
    """

    items: Tensor
    importance: Tensor
    stamps: Tensor


def scan(values: Tensor) -> Tensor:
    """Sums of 16 numbers up to each, float64 ``[..., 16]``, in the order of ``csrc/sum_tree_simd.hpp``."""
    halves = values.double().unflatten(-1, (2, 8))
    for step in (1, 2, 4):
        halves = torch.cat((halves[..., :step], halves[..., step:] + halves[..., :-step]), -1)
    low, high = halves.unbind(-2)
    return torch.cat((low, high + low[..., -1:]), -1)


def recompute(children: Tensor | Level) -> tuple[Tensor, Tensor, Tensor]:
    """Sum, smallest positive one and largest of each block of 16 siblings."""
    sums, minima, maxima = children if isinstance(children, Level) else (children,) * 3
    none = torch.full_like(minima, torch.inf)
    smallest = torch.where(minima > 0, minima, none).amin(-1)
    smallest = torch.where(smallest == torch.inf, torch.zeros_like(smallest), smallest)
    return scan(sums)[..., -1], smallest, maxima.amax(-1)


def refresh(leaves: Tensor, levels: list[Level], blocks: Tensor) -> None:
    """Bring the ancestors of blocks of leaves up to date. O(blocks * levels).

    Args:
        leaves: ``[blocks, 16]``.
        levels: those above, from the leaves up.
        blocks: int64, which blocks of leaves changed; repeated ones do no harm.
    """
    for number, level in enumerate(levels):
        blocks = torch.unique(blocks)
        if number == 0:
            found = recompute(leaves[blocks])
        else:
            below = levels[number - 1]
            found = recompute(Level(*(part[blocks] for part in below)))
        parents, places = blocks // FAN, blocks % FAN
        for part, value in zip(level, found, strict=True):
            part[parents, places] = value.to(part.dtype)
        blocks = parents


def put(leaves: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """Set leaves; of repeated ones the last wins. Gives the blocks that changed."""
    ordered, origin = torch.sort(index, stable=True)
    last = torch.ones_like(ordered, dtype=torch.bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    chosen, blocks = ordered[last], ordered[last] // FAN
    leaves[blocks, chosen % FAN] = weight[origin[last]]
    return blocks


def descend(leaves: Tensor, levels: list[Level], masses: Tensor) -> Tensor:
    """Items on which masses fall. O(B * levels)."""
    node = torch.zeros_like(masses, dtype=torch.int64)
    rows = torch.arange(masses.numel(), device=masses.device)
    numbers = torch.arange(FAN, device=masses.device)
    for siblings in (*(level.sums for level in reversed(levels)), leaves):
        children = siblings[node].double()
        up_to = scan(children)
        weighted = children > 0
        open_ones = weighted & (up_to > masses.unsqueeze(-1))
        first = torch.where(open_ones, numbers, FAN).amin(-1)
        last = torch.where(weighted, numbers, 0).amax(-1)
        child = torch.where(first < FAN, first, last)
        before = torch.where(child > 0, up_to[rows, (child - 1).clamp(min=0)], torch.zeros_like(masses))
        masses = masses - before
        node = node * FAN + child
    return node
