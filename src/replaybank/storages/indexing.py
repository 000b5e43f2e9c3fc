"""Every form of index a storage takes, brought to two: a run of items, or numbers of items."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from replaybank import _native

_LARGEST = (1 << 63) - 1
"""Stands for all numbers that int64 does not hold, which would turn up as negative ones, taken for items from
the end. It is out of range itself."""


class Run(NamedTuple):
    """Items ``start, start + 1, ...``, to be shaped ``lead``.

    Args:
        start: number of the first item.
        size: number of items.
        lead: shape of the batch, ``()`` for one item.
    """

    start: int
    size: int
    lead: tuple[int, ...]


def resolve(index: Any, shape: torch.Size) -> Run | Tensor:
    """An index as a run or as int64 item numbers of the batch's shape. O(size of the index).

    Items are numbered in C order over ``shape``; indices on the first dimension alone take all columns.
    Integers and slices behave as in ``torch``; a mask covers the leading dimensions of ``shape``.

    Args:
        index: int, slice, range, list, NumPy or torch integers, bool mask, tuple of these (one a dimension).
        shape: number of items along each dimension, ``[length, *columns]``.

    Raises:
        IndexError: out of range, or a mask of another shape.
        TypeError: no index.
    """
    if isinstance(index, tuple):
        return _resolve_tuple(index, shape)
    if isinstance(index, slice) or index is Ellipsis:
        start, stop, step = (index if isinstance(index, slice) else slice(None)).indices(shape[0])
        if step == 1:
            return _run(start, max(stop - start, 0), shape, scalar=False)
        return _all_columns(torch.arange(start, stop, step) if (stop - start) * step > 0 else _none(), shape)
    number = _as_int(index)
    if number is not None:
        return _run(_wrap(number, shape[0]), 1, shape, scalar=True)
    tensor = as_index(index)
    if tensor.dtype == torch.bool:
        return _resolve_tuple(_mask(tensor, shape), shape)
    if len(shape) == 1:
        return tensor  # checked where it is used: a native kernel reads every number anyway
    return _all_columns(_checked(tensor, shape[0]), shape)


def as_index(index: Any) -> Tensor:
    """Integers or bools of any kind as a tensor, int64 or bool.

    Raises:
        TypeError: something else.
    """
    if isinstance(index, Tensor):
        tensor = index
    elif isinstance(index, range):
        tensor = torch.arange(index.start, index.stop, index.step) if len(index) else _none()
    elif isinstance(index, np.ndarray | np.generic | list):
        array = np.asarray(index)
        if array.size == 0 and not isinstance(index, np.ndarray):
            array = array.astype(np.int64)
        if array.dtype.kind not in "biu":
            raise TypeError(f"An index holds whole numbers or bools, got {_describe(index)}.")
        if array.dtype == np.uint64:
            array = np.asarray(np.minimum(array, np.uint64(_LARGEST)))
        tensor = torch.from_numpy(array.astype(np.int64 if array.dtype.kind != "b" else np.bool_))
    else:
        raise TypeError(
            "An index is an int, a slice, a range, a list, an array or tensor of whole numbers, a bool mask "
            f"or a tuple of these, got {_describe(index)}."
        )
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        raise TypeError(f"An index holds whole numbers or bools, got {_describe(index)}.")
    if tensor.dtype is torch.uint64:
        tensor = tensor.view(torch.int64)
        return torch.where(tensor < 0, _LARGEST, tensor)
    return tensor if tensor.dtype in (torch.int64, torch.bool) else tensor.to(torch.int64)


def _describe(index: Any) -> str:
    dtype = getattr(index, "dtype", None)
    return f"{index!r:.60} of type {type(index).__name__}" if dtype is None else f"dtype {dtype}"


def _none() -> Tensor:
    return torch.empty(0, dtype=torch.int64)


def _as_int(index: Any) -> int | None:
    if isinstance(index, bool | np.bool_ | Tensor | np.ndarray):
        return None
    try:
        return operator.index(index)
    except TypeError:
        return None


def _wrap(number: int, size: int) -> int:
    if not -size <= number < size:
        raise IndexError(f"Index {number} is out of range: {size} row(s) have been written.")
    return number + size if number < 0 else number


def _run(start: int, count: int, shape: torch.Size, *, scalar: bool) -> Run:
    columns = tuple(shape[1:])
    width = columns_count(shape)
    return Run(start * width, count * width, columns if scalar else (count, *columns))


def columns_count(shape: torch.Size | Sequence[int]) -> int:
    """Items a row of time."""
    width = 1
    for size in shape[1:]:
        width *= size
    return width


def _checked(tensor: Tensor, size: int) -> Tensor:
    bad = (tensor >= size) | (tensor < -size)
    if bad.any():
        raise IndexError(f"Index {int(tensor[bad][0])} is out of range: the size of the dimension is {size}.")
    return torch.where(tensor < 0, tensor + size, tensor)


def _all_columns(rows: Tensor, shape: torch.Size) -> Tensor:
    if len(shape) == 1:
        return rows
    width = columns_count(shape)
    items = rows.reshape(-1, 1) * width + torch.arange(width, device=rows.device)
    return items.view(*rows.shape, *shape[1:])


def _mask(mask: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
    if mask.ndim == 0 or mask.shape != shape[: mask.ndim]:
        raise IndexError(f"A mask of shape {list(mask.shape)} does not fit items of shape {list(shape)}.")
    return tuple(mask.nonzero(as_tuple=True))


def _resolve_tuple(index: tuple[Any, ...], shape: torch.Size) -> Run | Tensor:
    if len(index) == len(shape) and all(_is_plain(part, index[0]) for part in index):
        return index[0] if len(shape) == 1 else _flatten(index, shape)
    constant = 0
    terms: list[Tensor] = []  # each with axes of its own; index tensors side by side share theirs
    listed = -1  # which of the terms the index tensors make
    stride = shape.numel()
    for part, size in zip(_expand(index, shape), shape, strict=True):
        stride = stride // size if size else 0
        if isinstance(part, slice):
            numbers = range(*part.indices(size))
            terms.append(as_index(numbers) * stride)
            continue
        number = _as_int(part)
        tensor = torch.tensor(number) if number is not None else as_index(part)
        if tensor.ndim == 0:
            constant += _wrap(int(tensor), size) * stride
            continue
        offsets = _checked(tensor, size) * stride
        if listed < 0:
            listed = len(terms)
            terms.append(offsets)
        elif listed == len(terms) - 1:
            terms[listed] = _add(terms[listed], offsets)
        else:
            raise IndexError("Index tensors with a slice between them: give a tensor for every dimension.")
    items = torch.tensor(constant)
    for term in terms:
        items = items.reshape((*items.shape, *([1] * term.ndim))) + term
    return items


def _is_plain(part: Any, first: Any) -> bool:
    """Whether it is what samplers give: int64 tensors of one shape."""
    return (
        type(part) is Tensor
        and part.dtype is torch.int64
        and part.is_cpu
        and part.shape == first.shape
        and part.is_contiguous()
    )


def _flatten(index: tuple[Tensor, ...], shape: torch.Size) -> Tensor:
    items = torch.empty_like(index[0])
    addresses = [part.data_ptr() for part in index]
    bad = _native.flatten_index(addresses, list(shape), items.numel(), items.data_ptr())
    if bad >= 0:
        position, dim = divmod(bad, len(shape))
        raise IndexError(
            f"Index {int(index[dim].reshape(-1)[position])} of dimension {dim} is out of range for items of "
            f"shape {list(shape)}."
        )
    return items


def _add(left: Tensor, right: Tensor) -> Tensor:
    try:
        return left + right
    except RuntimeError:
        raise IndexError(
            f"Index tensors of shapes {list(left.shape)} and {list(right.shape)} do not fit together."
        ) from None


def _expand(index: tuple[Any, ...], shape: torch.Size) -> list[Any]:
    """One part a dimension: masks become numbers, an ellipsis and what is missing become slices."""
    parts: list[Any] = []
    used = 0
    for part in index:
        if part is None:
            raise IndexError("A storage's dimensions are fixed: None cannot add one.")
        tensor = part if isinstance(part, Tensor | np.ndarray | list) else None
        if tensor is not None and as_index(tensor).dtype == torch.bool:
            mask = as_index(tensor)
            parts.extend(_mask(mask, torch.Size(shape[used : used + mask.ndim])))
            used += mask.ndim
        else:
            parts.append(part)
            used += part is not Ellipsis
    if used > len(shape):
        raise IndexError(f"{used} indices for items of shape {list(shape)}: give at most {len(shape)}.")
    rest = [slice(None)] * (len(shape) - used)
    for at, part in enumerate(parts):
        if part is Ellipsis:
            parts[at : at + 1] = rest
            rest = []
            break
    if any(part is Ellipsis for part in parts):
        raise IndexError("An index has at most one ellipsis.")
    return parts + rest


def pick(index: Any, count: int, what: str) -> int | list[int]:
    """Which of ``count`` parts an index means: one, or several in order. O(chosen).

    Args:
        index: an integer, also as a 0-d tensor; or a slice, list, range, array, tensor or mask.
        count: number of parts.
        what: what a part is, for errors.

    Raises:
        IndexError: out of range.
        TypeError: no integers.
        RuntimeError: more than one dimension.
        ValueError: no part is meant.
    """
    if isinstance(index, Tensor | np.ndarray) and index.ndim == 0 and as_index(index).dtype == torch.int64:
        index = int(index)
    number = _as_int(index)
    if number is not None:
        if not -count <= number < count:
            raise IndexError(f"{what} {number} is out of range: there are {count}.")
        return number % count
    found = resolve(index, torch.Size((count,)))
    if isinstance(found, Run):
        picked = list(range(found.start, found.start + found.size))
    else:
        if found.ndim != 1:
            raise RuntimeError(f"An index of {found.ndim} dimensions: parts lie in one, give a flat one.")
        picked = _checked(found, count).tolist()
    if not picked:
        raise ValueError(f"{index!r} means none of {count} parts.")
    return picked
