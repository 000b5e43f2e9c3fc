"""Shaping data on its way in and out: items into a batch, time to the front and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import is_tensor_collection, lazy_stack
from torch import Tensor


def collate(data: Any) -> Any:
    """Make a batch of a list of items; what is no list is a batch already and is given back.

    TensorDicts and tensors are stacked along a new first dimension (TensorDicts of differing shapes lazily),
    numpy arrays and numbers become a tensor, tuples and dicts are stacked entry by entry. Lists of anything
    else, and of more than one kind, stay lists.

    Raises:
        RuntimeError: tensors of differing shapes.

    Example:
        >>> collate([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}])
        {'a': tensor([1, 2]), 'b': ['x', 'y']}
    """
    if not isinstance(data, list) or not data:
        return data
    first = data[0]
    if all(is_tensor_collection(item) for item in data):
        same = all(item.batch_size == first.batch_size for item in data)
        return _stack_collections(data) if same else _stacked_lazily(data)
    if isinstance(first, Tensor) and all(isinstance(item, Tensor) for item in data):
        shapes = {tuple(item.shape) for item in data}
        if len(shapes) > 1:
            raise RuntimeError(
                f"Items of differing shapes {sorted(shapes)} cannot be stacked into a batch. Give the buffer "
                "a collate_fn that pads them, or store TensorDicts."
            )
        return torch.stack(data)
    if isinstance(first, (np.ndarray, np.generic)) and all(
        isinstance(item, (np.ndarray, np.generic)) for item in data
    ):
        return torch.from_numpy(np.stack(data)) if _is_numeric(first) else data
    if all(isinstance(item, (bool, int, float, complex)) for item in data):
        return torch.tensor(data)
    if isinstance(first, tuple) and all(isinstance(item, tuple) and len(item) == len(first) for item in data):
        columns = [collate(list(column)) for column in zip(*data, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else tuple(columns)
    if isinstance(first, dict) and all(
        isinstance(item, dict) and item.keys() == first.keys() for item in data
    ):
        return {key: collate([item[key] for item in data]) for key in first}
    return data


def _stack_collections(items: list[Any]) -> Any:
    try:
        return torch.stack(items)
    except (RuntimeError, KeyError, ValueError):
        # Differing leaves under one batch size: kept apart, and padded or nested by whoever reads them.
        return _stacked_lazily(items)


def _stacked_lazily(items: list[Any]) -> Any:
    # An entry set in a lazy stack is set in what it stacks: those must not be the stored items themselves.
    return lazy_stack([item.copy() for item in items])


def _is_numeric(value: np.ndarray[Any, Any] | np.generic) -> bool:
    return value.dtype.kind in "biufc"


def time_to_front(data: Any, dim: int) -> Any:
    """Data ``[columns, T, ...]`` as it lies in an n-d storage, ``[T, columns, ...]``; O(1) for tensors.

    Args:
        data: TensorDict, tensor, pytree of tensors, or a list of items to be stacked first.
        dim: the dimension that is time.

    Raises:
        ValueError: the data has no such dimension.
    """
    if isinstance(data, list):
        data = collate(data)
    return _move(data, dim, 0)


def time_back(data: Any, dim: int) -> Any:
    """The inverse of :func:`time_to_front` for what was read."""
    return _move(data, 0, dim)


def _move(data: Any, source: int, destination: int) -> Any:
    if is_tensor_collection(data):
        _check_dims(data.batch_dims, list(data.batch_size), max(source, destination))
        order = list(range(data.batch_dims))
        order.insert(destination, order.pop(source))
        return data.permute(*order)
    if isinstance(data, (Tensor, np.ndarray)):
        _check_dims(data.ndim, list(data.shape), max(source, destination))
        return (
            data.movedim(source, destination)
            if isinstance(data, Tensor)
            else np.moveaxis(data, source, destination)
        )
    return _map(data, lambda leaf: _move(leaf, source, destination))


def _map(data: Any, move: Any) -> Any:
    if isinstance(data, dict):
        return {key: move(value) for key, value in data.items()}
    if isinstance(data, tuple):
        values = [move(value) for value in data]
        return type(data)(*values) if hasattr(data, "_fields") else tuple(values)
    if isinstance(data, list):
        return [move(value) for value in data]
    return data


def _check_dims(found: int, shape: Sequence[int], dim: int) -> None:
    if found <= dim:
        raise ValueError(
            f"dim_extend={dim} asks for data whose dimension {dim} is time, but its batch shape is {shape}. "
            "Give data [columns, T, ...], or another dim_extend."
        )
