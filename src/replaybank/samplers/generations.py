"""Generation stamps: telling an item from a later one in its slot, without keeping anything a slot."""

from __future__ import annotations

import torch
from torch import Tensor

from replaybank.storages.write_log import WriteLog


def overwritten(log: WriteLog, rows: Tensor, stamps: Tensor) -> Tensor:
    """Which rows have been written anew since they were stamped. O(B * writes apart since).

    A stamp is the log's ``total`` when the item was sampled.

    Args:
        log: of the storage.
        rows: int64 ``[B]``, on the CPU.
        stamps: int64 ``[B]``, on the CPU.

    Returns:
        bool ``[B]``. Where it is too long ago to tell, all have: rather no update than
        a wrong one.
    """
    now = log.total
    runs = log.appended_since(int(stamps.min()))
    if runs is None:
        return torch.ones(stamps.shape, dtype=torch.bool)
    found = stamps > now  # of a history that was given up when another was loaded
    for start, count, number in runs:
        offset = (rows - start) % log.rows
        # A row may have been written several times in a run that went round: the last time counts.
        offset += (count - 1 - offset).clamp(min=0) // log.rows * log.rows
        found |= (offset < count) & (number + offset >= stamps)
    return found
