"""Generation stamps: telling an item from a later one in its slot, without keeping anything a slot."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from replaybank import _native
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


def stale_items(log: WriteLog, width: int, items: Tensor, generation: Any) -> Tensor | None:
    """Which items have been overwritten since they were stamped; None if the log has not moved since. O(B).

    Args:
        log: of the storage.
        width: items a row.
        items: int64 ``[B]``, on any device.
        generation: stamps ``[B]``.

    Raises:
        RuntimeError: there is not one stamp an item.
    """
    stamps = torch.as_tensor(generation)
    if stamps.dtype is not torch.int64 or not stamps.is_cpu or not stamps.is_contiguous():
        stamps = stamps.to("cpu", torch.int64).contiguous()
    if stamps.numel() != items.numel():
        raise RuntimeError(f"{stamps.numel()} generations for {items.numel()} items: give one for each.")
    if _native.all_are(stamps.data_ptr(), stamps.numel(), log.total):
        return None
    return overwritten(log, items.cpu() // width, stamps.reshape(-1))
