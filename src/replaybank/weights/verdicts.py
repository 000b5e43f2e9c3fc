"""What can be wrong with weights that a tree is given, and how it is said."""

from __future__ import annotations

import torch
from torch import Tensor

GOOD, BAD_INDEX, BAD_WEIGHT, OVERFLOW = range(4)
"""The kinds of ``Verdict`` in ``csrc/sum_tree.hpp``."""


def first_wrong(
    index: Tensor, value: Tensor, weight: Tensor, kept: Tensor, limit: int
) -> tuple[int, int] | None:
    """The kind of what is wrong, and its position; None if nothing is. By torch ops, as the kernel. O(B).

    Args:
        index: int64 ``[B]``.
        value: ``[B]``, what was given.
        weight: ``[B]``, what it comes to, in the tree's dtype.
        kept: bool ``[B]``, false for what is not to be looked at.
        limit: indices must be below it.
    """
    wrong = (
        (BAD_INDEX, kept & ((index < 0) | (index >= limit))),
        (BAD_WEIGHT, kept & ~((value >= 0) & (value < torch.inf))),
        (OVERFLOW, kept & ~(weight < torch.inf)),
    )
    for kind, where in wrong:
        if bool(where.any()):
            return kind, int(where.nonzero()[0])
    return None


def refusal(
    kind: int, position: int, index: Tensor, value: Tensor, alpha: float, limit: int, dtype: torch.dtype
) -> Exception:
    """The error for what is wrong at a position."""
    item = int(index.reshape(-1)[position])
    if kind == BAD_INDEX:
        return IndexError(
            f"Index {item} (position {position}) is out of range: there are {limit} items. "
            "Nothing has been changed."
        )
    given = float(value.reshape(-1)[position if value.numel() > 1 else 0])
    if kind == BAD_WEIGHT:
        return ValueError(
            f"{given} (position {position}, for item {item}) is no weight or priority: give finite "
            "numbers >= 0. Nothing has been changed."
        )
    return ValueError(
        f"{given} (position {position}, for item {item}) to the power of {alpha} is too large for "
        f"{dtype}. Nothing has been changed."
    )
