"""Indices of items, in the forms that users have them, as plain numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from replaybank.samplers.base import SampledStorage


def item_numbers(index: Any, storage: SampledStorage | None) -> Tensor:
    """Numbers of items, int64 ``[B]``, row by row; -1 where there is none. O(B).

    Args:
        index: int, ``[B]``, ``[B, ndim]``, or a tuple of ``ndim`` tensors; -1: not stored.
        storage: needed for the last two, whose entries are checked; numbers are not.

    Raises:
        RuntimeError: the storage is needed, or has another number of dimensions.
        IndexError: an entry is out of range along its dimension.
        TypeError: these are no integers.
    """
    if type(index) is Tensor and index.ndim == 1 and index.dtype is torch.int64 and index.is_cpu:
        return index
    if isinstance(index, tuple) and any(isinstance(part, Tensor) for part in index):
        index = torch.stack([torch.as_tensor(part) for part in index], -1)
    numbers = torch.as_tensor(index).detach()
    if not numbers.numel():
        return torch.empty(0, dtype=torch.int64)
    if numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool:
        raise TypeError(f"An index of dtype {numbers.dtype}: give integers.")
    if numbers.ndim > 1:
        shape = tuple(numbers.shape)
        if storage is None:
            raise RuntimeError(
                f"An index of shape {shape} has one entry a dimension of the storage: pass storage= too."
            )
        if shape[-1] != storage.ndim:
            raise RuntimeError(
                f"An index of shape {shape} for a storage of {storage.ndim} dimensions: give "
                f"[B, {storage.ndim}]."
            )
        numbers = numbers.reshape(-1, storage.ndim)
        numbers = numbers.squeeze(-1) if storage.ndim == 1 else _ravel(numbers, storage.shape)
    return numbers.reshape(-1).to(torch.int64)


def _ravel(index: Tensor, shape: torch.Size) -> Tensor:
    """Numbers from ``[B, ndim]``; -1 where a whole row is -1."""
    index = index.to(torch.int64)
    absent = (index == -1).all(-1)
    wrong = ((index < 0) | (index >= torch.tensor(shape, device=index.device))).any(-1) & ~absent
    if bool(wrong.any()):
        position = int(wrong.nonzero()[0])
        raise IndexError(
            f"Index {tuple(index[position].tolist())} (position {position}) is out of range: the items are "
            f"{tuple(shape)}. Nothing has been changed."
        )
    numbers = torch.zeros_like(index[:, 0])
    for dim, size in enumerate(shape):
        numbers = numbers * size + index[:, dim]
    return torch.where(absent, -1, numbers)


def shape_of(index: Any) -> tuple[int, ...]:
    """The shape of an index as :func:`item_numbers` takes it, for an error message."""
    if isinstance(index, tuple) and any(isinstance(part, Tensor) for part in index):
        return (*torch.as_tensor(index[0]).shape, len(index))
    return tuple(torch.as_tensor(index).shape)
