"""What batches look like, and bringing data into that form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from replaybank import _native
from replaybank.storages.batch_memory import BatchMemory, recyclable
from replaybank.storages.layout import LeafSpec
from replaybank.storages.structure import as_tensor, show

FRESH_BYTES = 1 << 25
"""Tensors of at least this size come as fresh pages from the system each time, and go back to it: the C
library keeps smaller ones. A fresh page of 4 KiB costs ten times what copying into it does."""

_REMEMBERED_SHAPES = 16  # batch sizes in use at a time: one a caller, a few callers


class Shapes:
    """What a batch of one shape looks like: full shapes, and a blank tensor a leaf to allocate like.

    The blanks hold one element each, expanded: ``torch.empty_like`` of one costs two thirds of
    ``torch.empty`` of a shape, and gives a contiguous tensor.
    """

    def __init__(
        self, lead: tuple[int, ...], leaves: Sequence[LeafSpec], device: torch.device, memory: BatchMemory
    ) -> None:
        self.lead = torch.Size(lead)
        self.count = self.lead.numel()
        self.full = [torch.Size((*lead, *leaf.shape)) for leaf in leaves]
        self.wanted = [(leaf.dtype, shape) for leaf, shape in zip(leaves, self.full, strict=True)]
        sizes = [leaf.bytes * self.count if device.type == "cpu" else 0 for leaf in leaves]
        self._large = [number for number, size in enumerate(sizes) if size >= FRESH_BYTES]
        self._memory = memory
        self._recycled = [
            number for number, leaf in enumerate(leaves) if recyclable(leaf.dtype, sizes[number])
        ]
        self.blanks = [
            # One element and sizes of 1 alone: expanding would give strides of 0, and empty_like keeps those.
            torch.empty(shape if shape.numel() == 1 else (), dtype=leaf.dtype, device=device).expand(shape)
            for leaf, shape in zip(leaves, self.full, strict=True)
        ]

    def empty(self) -> list[Tensor]:
        """A new contiguous tensor a leaf, of any content. O(leaves)."""
        out = [torch.empty_like(blank) for blank in self.blanks]
        for number in self._large:
            ask_large_pages(out[number])
        return out

    def batch(self) -> list[Tensor]:
        """The same for a batch that will be dropped and made again: see :class:`BatchMemory`."""
        recycled = self._recycled
        if not recycled:
            return self.empty()
        out: list[Tensor] = []
        for number, blank in enumerate(self.blanks):
            if number in recycled:
                out.append(self._memory.empty(self.full[number], blank.dtype))
            else:
                out.append(torch.empty_like(blank))
                ask_large_pages(out[-1])
        return out


def ask_large_pages(tensor: Tensor) -> None:
    """Have a large new tensor made of large pages, which take a tenth of the time to come."""
    if tensor.is_cpu and tensor.nbytes >= FRESH_BYTES:
        _native.ask_large_pages(tensor.data_ptr(), tensor.nbytes)


class BatchForms:
    """What batches of some leaves look like, and bringing data into that form.

    Not thread-safe: the buffer's lock guards it.

    Args:
        leaves: the leaves of an item.
        device: where batches are to be.
        native: whether native kernels copy them, which want contiguous memory of the CPU.
    """

    def __init__(self, leaves: Sequence[LeafSpec], device: torch.device, *, native: bool) -> None:
        self.device = device
        self._leaves = tuple(leaves)
        self._native = native
        self._complex = any(leaf.dtype.is_complex for leaf in leaves)
        self._shapes: dict[tuple[int, ...], Shapes] = {}
        self._memory = BatchMemory()

    def shape(self, lead: tuple[int, ...]) -> Shapes:
        """What a batch of shape ``lead`` looks like. O(1) for one that is remembered."""
        shapes = self._shapes.get(lead)
        if shapes is None:
            if len(self._shapes) >= _REMEMBERED_SHAPES:
                self._shapes.clear()
            shapes = self._shapes[lead] = Shapes(lead, self._leaves, self.device, self._memory)
        return shapes

    def fit(self, values: list[Any], lead: tuple[int, ...]) -> list[Tensor]:
        """Leaves as they can be stored: shape, dtype, device right, contiguous. Writes nothing. O(leaves).

        Args:
            values: a value a leaf.
            lead: the batch's shape, before the shape of the item.

        Raises:
            ValueError: a shape is wrong; key, shapes and dtypes are named.
            TypeError: a dtype is of another kind.
        """
        out: list[Tensor] = values
        plain = self._native and not self._complex
        for number, (dtype, shape) in enumerate(self.shape(lead).wanted):
            value = values[number]
            if not (
                plain
                and type(value) is Tensor
                and value.dtype is dtype
                and value.shape == shape
                and value.is_cpu
                and value.is_contiguous()
                and not value.is_neg()
            ):
                out[number] = self._convert(value, self._leaves[number], shape)
        return out

    def _convert(self, value: Any, leaf: LeafSpec, shape: torch.Size) -> Tensor:
        tensor = as_tensor(value, leaf.key)
        number = isinstance(value, bool | int | float | complex)
        if tensor.layout is not torch.strided:
            raise TypeError(f"The tensor at {show(leaf.key)} is {tensor.layout}: make it dense first.")
        kind, wanted = _kind(tensor.dtype), _kind(leaf.dtype)
        # Python's numbers have no dtype of their own: 1 fits a float.
        fits = kind == wanted or (number and not isinstance(value, bool) and 0 < kind < wanted)
        if tensor.shape != shape or not fits:
            message = (
                f"The data at {show(leaf.key)} has shape {list(tensor.shape)} and dtype {tensor.dtype}; "
                f"the storage takes {list(shape)} and {leaf.dtype}. Nothing has been written."
            )
            if tensor.shape != shape:
                raise ValueError(message)
            raise TypeError(message + " Dtypes are cast within a kind only: convert the data first.")
        tensor = tensor.detach().as_subclass(Tensor)
        tensor = tensor.to(device=self.device, dtype=leaf.dtype)
        return tensor.resolve_conj().resolve_neg().contiguous()


def _kind(dtype: torch.dtype) -> int:
    """0 bool, 1 whole numbers, 2 floating point, 3 complex."""
    if dtype is torch.bool:
        return 0
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else 1
