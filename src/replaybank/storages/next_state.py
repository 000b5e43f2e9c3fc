"""Next observations in a saved state: where each of them is, and made again as plain tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

# Codes of csrc/next_leaves.hpp: 0 is an item never written, 2 + s one whose next observation is in slot s.
PENDING = -1
DERIVED = 1
FIRST_SLOT = 2


def check_next(state: Mapping[str, Any], dims: tuple[int, ...], items: int) -> None:
    """Raise ValueError unless the ``"next"`` of a dump fits items ``dims``, of ``items`` at most. O(N)."""
    place, aside = state["place"], state["aside"]
    count, width = torch.Size(dims).numel(), torch.Size(dims[1:]).numel()
    kept = int(aside[0].shape[0]) if aside else 0
    good = (
        place.dtype == torch.int32
        and place.shape == (count,)
        and len(aside) == len(state["links"]) > 0
        and all(len(leaf) == kept for leaf in aside)
    )
    if good and count:
        slots = (place[place >= FIRST_SLOT] - FIRST_SLOT).sort().values
        after = (torch.arange(count)[place == DERIVED] + width) % items
        good = (
            bool((place >= DERIVED).all())
            and bool((after < count).all())
            and slots.tolist() == list(range(kept))
        )
    if not good:
        raise ValueError("The state is damaged: its next observations do not match its items.")


def made_again(
    leaves: list[Tensor | None], state: Mapping[str, Any], dims: tuple[int, ...], items: int
) -> None:
    """Put the next observations of a dump among its leaves. O(items * bytes).

    Args:
        leaves: ``[*dims, *shape]``; those that are to be made are None.
        state: ``"next"`` of the dump.
        dims: shape of the items there are, ``[length, *columns]``.
        items: number of items there may be.

    Raises:
        ValueError: the dump is damaged.
    """
    check_next(state, dims, items)
    count, width = torch.Size(dims).numel(), torch.Size(dims[1:]).numel()
    place = state["place"]
    held = place >= FIRST_SLOT
    source_item = torch.where(held, 0, (torch.arange(count) + width) % items)
    for (number, source), aside in zip(state["links"], state["aside"], strict=True):
        observation = leaves[source]
        if observation is None:
            raise ValueError("The state is damaged: its next observations are made from nothing.")
        made = observation.flatten(0, len(dims) - 1)[source_item]
        made[held] = aside[(place[held] - FIRST_SLOT).to(torch.int64)]
        leaves[number] = made.unflatten(0, dims)
