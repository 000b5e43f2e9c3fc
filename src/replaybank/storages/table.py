"""The leaves of N items as tensors: rows in, rows out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from replaybank import _native
from replaybank.storages.arena import Arena
from replaybank.storages.layout import DTYPES, LeafSpec, RowLayout
from replaybank.storages.structure import as_tensor, show

THREADED_BYTES = 1 << 21
"""Copies of at least this size are shared out over torch's threads: below, starting the threads (some 20
microseconds each, as long as one core copies 200 KiB) costs more than it saves on a busy machine."""

_REMEMBERED_SHAPES = 16  # batch sizes in use at a time: one a caller, a few callers

_OVERLAP = -2

_UNKNOWN = frozenset(
    dtype
    for name, dtype in DTYPES.items()
    if name.startswith("float8") or name in ("uint16", "uint32", "uint64")
)


class _Shapes:
    """What a batch of one shape looks like: full shapes, and a blank tensor a leaf to allocate like.

    The blanks hold one element each, expanded: ``torch.empty_like`` of one costs two thirds of
    ``torch.empty`` of a shape, and gives a contiguous tensor.
    """

    def __init__(self, lead: tuple[int, ...], leaves: Sequence[LeafSpec], device: torch.device) -> None:
        self.lead = torch.Size(lead)
        self.count = self.lead.numel()
        self.full = [torch.Size((*lead, *leaf.shape)) for leaf in leaves]
        self.blanks = [
            # One element and sizes of 1 alone: expanding would give strides of 0, and empty_like keeps those.
            torch.empty(shape if shape.numel() == 1 else (), dtype=leaf.dtype, device=device).expand(shape)
            for leaf, shape in zip(leaves, self.full, strict=True)
        ]


class LeafTable:
    """The leaves of ``prod(dims)`` items, numbered in C order over ``dims``.

    On the CPU, leaves move through the native kernels (``csrc/gather.hpp``): one call for all. Elsewhere, and
    for given tensors whose items are not contiguous, through torch's indexing.

    Not thread-safe: the buffer's lock guards it. Shareable between processes where its buffers are.

    Args:
        layout: where the leaves lie.
        dims: number of items along each batch dimension.
        buffers: a uint8 buffer for the rows if there are any, then one a column; or, for ``given`` tables,
            the leaves themselves, ``[*dims, *shape]``.
        device: where the buffers are.
        given: the buffers are the leaves themselves.
    """

    def __init__(
        self,
        layout: RowLayout,
        dims: tuple[int, ...],
        buffers: list[Tensor],
        device: torch.device,
        *,
        given: bool = False,
    ) -> None:
        self.layout = layout
        self.dims = torch.Size(dims)
        self.items = self.dims.numel()
        self.buffers = buffers
        self.device = device
        self.given = given
        self._shapes: dict[tuple[int, ...], _Shapes] = {}
        self.views = list(buffers) if given else self._carve()
        self._movable = [movable(view) for view in self.views]
        self._item_bytes = sum(leaf.bytes for leaf in layout.leaves)
        self._complex = any(leaf.dtype.is_complex for leaf in layout.leaves)
        self._plan = self._make_plan()
        self._address = 0 if self._plan is None else self._plan.data_ptr()

    @classmethod
    def allocate(
        cls, layout: RowLayout, dims: tuple[int, ...], arena: Arena, device: torch.device
    ) -> LeafTable:
        """Take buffers for a layout. O(leaves)."""
        items = torch.Size(dims).numel()
        arena.check(items * layout.item_bytes, f"A storage of {items} items of {layout.item_bytes} bytes")
        return cls(
            layout,
            dims,
            [arena.take(name, size, zero=False) for name, size in buffer_sizes(layout, items)],
            device,
        )

    def with_columns(self, leaves: Sequence[LeafSpec], arena: Arena) -> LeafTable:
        """The table with more leaves, zero everywhere. O(leaves)."""
        wanted = self.items * sum(leaf.bytes for leaf in leaves)
        arena.check(wanted, f"{len(leaves)} more column(s) of {self.items} items")
        old = self.layout
        layout = RowLayout((*old.leaves, *leaves), (*old.offsets, *(None for _ in leaves)), old.row_bytes)
        fresh = [
            arena.take(f"column-{number}", self.items * leaf.bytes, zero=True)
            for number, leaf in enumerate(leaves, len(old.leaves))
        ]
        if self.given:
            fresh = [self._column(buffer, leaf) for buffer, leaf in zip(fresh, leaves, strict=True)]
        return LeafTable(layout, self.dims, self.buffers + fresh, self.device, given=self.given)

    def _carve(self) -> list[Tensor]:
        buffers = iter(self.buffers)
        views: dict[int, Tensor] = {}
        if self.layout.row_bytes:
            for number, view in self.layout.views(next(buffers), self.items).items():
                views[number] = view.unflatten(0, self.dims) if len(self.dims) > 1 else view
        for number in self.layout.columns:
            views[number] = self._column(next(buffers), self.layout.leaves[number])
        return [views[number] for number in range(len(views))]

    def _column(self, buffer: Tensor, leaf: LeafSpec) -> Tensor:
        if not leaf.bytes:
            return torch.empty((*self.dims, *leaf.shape), dtype=leaf.dtype, device=self.device)
        return buffer[: self.items * leaf.bytes].view(leaf.dtype).view(*self.dims, *leaf.shape)

    def _make_plan(self) -> Tensor | None:
        """The plan of ``csrc/gather.hpp``, or None if the kernels cannot serve these leaves."""
        plan = []
        for number, (view, leaf) in enumerate(zip(self.views, self.layout.leaves, strict=True)):
            if not view.is_cpu or view.is_conj() or view.is_neg():
                return None
            try:
                flat = view.view(self.items, *leaf.shape)
            except RuntimeError:
                return None
            stride = flat.stride(0) if self.items > 1 else max(flat[:1].numel(), 1)
            if leaf.bytes and (not flat[0].is_contiguous() or stride <= 0):
                return None
            group = -1 if self.layout.offsets[number] is not None else number
            plan.append([flat.data_ptr(), stride * leaf.dtype.itemsize, leaf.bytes, group])
        # The kernels want the leaves of a group side by side; the numbers say which leaf is which.
        self._order = sorted(range(len(plan)), key=lambda number: plan[number][3])
        self._in_order = self._order == list(range(len(plan)))
        return torch.tensor([plan[number] for number in self._order], dtype=torch.int64)

    def _shape(self, lead: tuple[int, ...]) -> _Shapes:
        shapes = self._shapes.get(lead)
        if shapes is None:
            if len(self._shapes) >= _REMEMBERED_SHAPES:
                self._shapes.clear()
            shapes = self._shapes[lead] = _Shapes(lead, self.layout.leaves, self.device)
        return shapes

    def _addresses(self, leaves: list[Tensor]) -> list[int]:
        if self._in_order:
            return [leaf.data_ptr() for leaf in leaves]
        return [leaves[number].data_ptr() for number in self._order]

    def _threads(self, count: int) -> int:
        return torch.get_num_threads() if count * self._item_bytes >= THREADED_BYTES else 1

    # --- reading ---------------------------------------------------------------------------------------

    def gather(self, index: Tensor, valid: int) -> list[Tensor]:
        """Copies of items. O(B * bytes of an item).

        Args:
            index: int64 of any shape ``[*batch]``, on any device, each in ``[-valid, valid)``.
            valid: number of items there are.

        Returns:
            A new contiguous tensor ``[*batch, *shape]`` a leaf.

        Raises:
            IndexError: an index is out of range.
        """
        shapes = self._shape(index.shape)
        if self._plan is None or not index.is_cpu:
            return self._indexed(unravel(checked(index, valid), self.dims, self.device))
        if not index.is_contiguous():
            index = index.contiguous()
        out = [torch.empty_like(blank) for blank in shapes.blanks]
        bad = _native.gather(
            self._address,
            valid,
            index.data_ptr(),
            shapes.count,
            self._addresses(out),
            self._threads(shapes.count),
        )
        if bad >= 0:
            raise out_of_range(int(index.reshape(-1)[bad]), valid)
        return out

    def gather_run(self, start: int, count: int, lead: tuple[int, ...]) -> list[Tensor]:
        """Copies of items ``start, start + 1, ...``, ``[*lead, *shape]`` each. Checked by the caller."""
        shapes = self._shape(lead)
        if self._plan is None:
            index = torch.arange(start, start + count, device=self.device).view(lead)
            return self._indexed(unravel(index, self.dims, self.device))
        out = [torch.empty_like(blank) for blank in shapes.blanks]
        status = _native.gather_run(
            self._address, self.items, start, count, self._addresses(out), self._threads(count)
        )
        if status >= 0:
            raise self._no_run(start, count)
        return out

    def _indexed(self, items: tuple[Tensor, ...]) -> list[Tensor]:
        found = [view[items] for view in self._movable]
        return [
            leaf if leaf.dtype is view.dtype else leaf.view(view.dtype)
            for leaf, view in zip(found, self.views, strict=True)
        ]

    # --- writing ---------------------------------------------------------------------------------------

    def fit(self, values: list[Any], lead: tuple[int, ...]) -> list[Tensor]:
        """Leaves as they can be stored: shape, dtype, device right, contiguous. Writes nothing. O(leaves).

        Args:
            values: a value a leaf.
            lead: the batch's shape, before the shape of the item.

        Raises:
            ValueError: a shape is wrong; key, shapes and dtypes are named.
            TypeError: a dtype is of another kind.
        """
        full = self._shape(lead).full
        out: list[Tensor] = values
        for number, (value, leaf, shape) in enumerate(zip(values, self.layout.leaves, full, strict=True)):
            if (
                not (
                    type(value) is Tensor
                    and value.dtype is leaf.dtype
                    and value.shape == shape
                    and value.is_cpu
                    and value.is_contiguous()
                    and not value.is_neg()
                )
                or self._complex
                or self._plan is None
            ):
                out[number] = self._convert(value, leaf, shape)
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

    def scatter(self, index: Tensor, leaves: list[Tensor], valid: int) -> None:
        """Write items; of repeated ones the last wins. O(B * bytes of an item).

        Args:
            index: int64 ``[*batch]`` on the CPU, each in ``[-valid, valid)``.
            leaves: from :meth:`fit`.
            valid: number of items that may be written.

        Raises:
            IndexError: an index is out of range; nothing has been written.
        """
        if self._plan is None:
            self._set_indexed(unravel(checked(index, valid), self.dims, self.device), leaves)
            return
        index = index.contiguous()
        count = index.numel()
        status = _native.scatter(self._address, valid, index.data_ptr(), count, self._addresses(leaves))
        if status == _OVERLAP:
            leaves = [leaf.clone() for leaf in leaves]
            status = _native.scatter(self._address, valid, index.data_ptr(), count, self._addresses(leaves))
        if status >= 0:
            raise out_of_range(int(index.reshape(-1)[status]), valid)

    def scatter_run(self, start: int, count: int, leaves: list[Tensor]) -> None:
        """Write the items ``start, start + 1, ...`` modulo their number. O(count * bytes of an item).

        Args:
            start: first item, checked.
            count: number of items, at most ``items``.
            leaves: from :meth:`fit`.
        """
        if self._plan is None:
            index = torch.arange(start, start + count).remainder_(self.items).view(leaves_lead(leaves, self))
            self._set_indexed(unravel(index, self.dims, self.device), leaves)
            return
        threads = self._threads(count)
        addresses = self._addresses(leaves)
        status = _native.scatter_run(self._address, self.items, start, count, addresses, threads)
        if status == _OVERLAP:
            leaves = [leaf.clone() for leaf in leaves]
            addresses = self._addresses(leaves)
            status = _native.scatter_run(self._address, self.items, start, count, addresses, threads)
        if status >= 0:
            raise self._no_run(start, count)

    def _no_run(self, start: int, count: int) -> IndexError:
        return IndexError(
            f"There are no {count} items from {start} on: the storage has room for {self.items}."
        )

    def _set_indexed(self, items: tuple[Tensor, ...], leaves: list[Tensor]) -> None:
        for view, leaf in zip(self._movable, leaves, strict=True):
            view[items] = leaf if leaf.dtype is view.dtype else leaf.view(view.dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "layout": self.layout,
            "dims": tuple(self.dims),
            "buffers": self.buffers,
            "device": self.device,
            "given": self.given,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(  # type: ignore[misc]
            state["layout"], state["dims"], state["buffers"], state["device"], given=state["given"]
        )


def buffer_sizes(layout: RowLayout, items: int) -> list[tuple[str, int]]:
    """Names and bytes of the buffers of a table: the rows first, if there are any, then the columns."""
    sizes = [("rows", items * layout.row_bytes)] if layout.row_bytes else []
    for number in layout.columns:
        sizes.append((f"column-{number}", items * layout.leaves[number].bytes))
    return sizes


def movable(view: Tensor) -> Tensor:
    """The same memory in a dtype that torch's indexing knows on every device.

    It lacks some (uint32, float8): it would fail at such a leaf, with the leaves before it written.
    """
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(view.dtype.itemsize)
    return view.view(kind) if view.dtype in _UNKNOWN and kind is not None else view


def leaves_lead(leaves: list[Tensor], table: LeafTable) -> tuple[int, ...]:
    """The batch shape of fitted leaves."""
    item_dims = len(table.layout.leaves[0].shape)
    return tuple(leaves[0].shape[: leaves[0].ndim - item_dims])


def _kind(dtype: torch.dtype) -> int:
    """0 bool, 1 whole numbers, 2 floating point, 3 complex."""
    if dtype is torch.bool:
        return 0
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else 1


def out_of_range(index: int, valid: int) -> IndexError:
    """The error for an item that is not there."""
    return IndexError(f"Index {index} is out of range: {valid} item(s) have been written.")


def checked(index: Tensor, valid: int) -> Tensor:
    """The index with negative items counted from the end; raises IndexError as the kernels do."""
    bad = (index >= valid) | (index < -valid)
    if bad.any():
        raise out_of_range(int(index[bad][0]), valid)
    return torch.where(index < 0, index + valid, index)


def unravel(items: Tensor, dims: torch.Size, device: torch.device) -> tuple[Tensor, ...]:
    """Item numbers as one index a dimension, on ``device``."""
    items = items.to(device)
    out: list[Tensor] = []
    for size in reversed(dims[1:]):
        out.append(items % size)
        items = items // size
    return (items, *reversed(out))
