"""The leaves of N items as tensors, side by side in rows or each in a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from replaybank import _native
from replaybank.checkpoint_files import rows_in_chunk
from replaybank.storages.arena import Arena
from replaybank.storages.forms import BatchForms
from replaybank.storages.layout import LINE_BYTES, LeafPlace, LeafSpec, RowLayout
from replaybank.storages.packed import PackedRows, packed_rows, read_straight
from replaybank.storages.table import Leaf, read, whole
from replaybank.storages.torch_indexing import checked, movable, out_of_range, unravel

THREADED_BYTES = 1 << 20
"""Copies of at least this size are shared out over torch's threads: waking them takes some 10 microseconds,
as long as one core copies 100 KiB, and they may not get a core at once."""

_OVERLAP = -2
_REMEMBERED_CHOICES = 16  # sets of leaves that are read by themselves: a few a transform

PLAN_BYTES = 32
"""Bytes of a leaf in a plan of ``csrc/gather.hpp``."""


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
        self.views = list(buffers) if given else self._carve()
        self._movable = [movable(view) for view in self.views]
        self._item_bytes = sum(leaf.bytes for leaf in layout.leaves)
        self._plan = self._make_plan()
        self.forms = BatchForms(layout.leaves, device, native=self._plan is not None)
        self._address = 0 if self._plan is None else self._plan.data_ptr()
        self._chosen: dict[tuple[int, ...], LeafTable] = {}

    @classmethod
    def allocate(
        cls,
        layout: RowLayout,
        dims: tuple[int, ...],
        arena: Arena,
        device: torch.device,
        *,
        consolidated: bool = False,
    ) -> LeafTable:
        """Take buffers for a layout, or one that is shared out. O(leaves)."""
        items = torch.Size(dims).numel()
        arena.check(items * layout.item_bytes, f"A storage of {items} items of {layout.item_bytes} bytes")
        sizes = buffer_sizes(layout, items)
        # What lies between the leaves of a row goes into checkpoints too: it must not be another's memory.
        in_rows = bool(layout.row_bytes)
        if consolidated and len(sizes) > 1:
            whole = arena.take("all", sum(map(_aligned, (size for _, size in sizes))), zero=in_rows)
            return cls(layout, dims, _parts_of(whole, [size for _, size in sizes]), device)
        buffers = [
            arena.take(name, size, zero=in_rows and not number) for number, (name, size) in enumerate(sizes)
        ]
        return cls(layout, dims, buffers, device)

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
        self._steps = [stride for _, stride, _, _ in plan]
        # The kernels want the leaves of a group side by side; the numbers say which leaf is which.
        self._order = sorted(range(len(plan)), key=lambda number: plan[number][3])
        self._in_order = self._order == list(range(len(plan)))
        return torch.tensor([plan[number] for number in self._order], dtype=torch.int64)

    def _addresses(self, leaves: list[Tensor]) -> list[int]:
        if self._in_order:
            return [leaf.data_ptr() for leaf in leaves]
        return [leaves[number].data_ptr() for number in self._order]

    def threads(self, count: int) -> int:
        """Over how many threads a copy of ``count`` items is shared out."""
        return torch.get_num_threads() if count * self._item_bytes >= THREADED_BYTES else 1

    @property
    def stored_layout(self) -> RowLayout:
        """Where the leaves lie."""
        return self.layout

    def taken_bytes(self, items: int) -> int:
        """Bytes that the first ``items`` items take. O(1)."""
        return items * self.layout.item_bytes

    # --- reading ---------------------------------------------------------------------------------------

    def read(self, number: int, rows: Tensor | slice, length: int) -> Tensor:
        """One leaf of some of the first ``length`` rows: a view for slices, else a copy. O(rows)."""
        view = self.views[number]
        if isinstance(rows, slice):
            start, stop, step = rows.indices(length)
            return view[start:stop:step]
        view = view[:length]
        return movable(view).index_select(0, rows.to(view.device)).view(view.dtype)

    def place_of(self, number: int) -> LeafPlace | None:
        """Where a leaf lies; None where kernels cannot read it, or the items have several dimensions."""
        return self.items_of(number) if len(self.dims) == 1 else None

    def items_of(self, number: int) -> LeafPlace | None:
        """Where a leaf of all items lies; see :meth:`Table.items_of`. O(1)."""
        if self._plan is None:
            return None
        leaf = self.layout.leaves[number]
        return LeafPlace(
            self.views[number].data_ptr(), self._steps[number], leaf.bytes, leaf.dtype, leaf.shape
        )

    def valid_views(self, length: int) -> list[Tensor]:
        """The leaves of the first ``length`` rows, not copied. O(leaves)."""
        return [view[:length] for view in self.views]

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
        shapes = self.forms.shape(index.shape)
        if self._plan is None or not index.is_cpu:
            return self._indexed(unravel(checked(index, valid), self.dims, self.device))
        if not index.is_contiguous():
            index = index.contiguous()
        out = shapes.batch()
        bad = _native.gather(
            self._address,
            valid,
            index.data_ptr(),
            shapes.count,
            self._addresses(out),
            self.threads(shapes.count),
        )
        if bad >= 0:
            raise out_of_range(int(index.reshape(-1)[bad]), valid)
        return out

    def gather_leaves(self, numbers: Sequence[int], index: Tensor, valid: int) -> list[Tensor]:
        """Copies of some leaves of items; see :meth:`gather`. O(B * bytes of these)."""
        return self.of_leaves(numbers).gather(index, valid)

    def of_leaves(self, numbers: Sequence[int]) -> LeafTable:
        """Some leaves of the table, where they are. O(1) for ones that were asked for lately."""
        wanted = tuple(numbers)
        found = self._chosen.get(wanted)
        if found is None:
            if len(self._chosen) >= _REMEMBERED_CHOICES:
                self._chosen.clear()
            layout = self.layout
            part = RowLayout(
                [layout.leaves[k] for k in wanted], [layout.offsets[k] for k in wanted], layout.row_bytes
            )
            views = [self.views[k] for k in wanted]
            found = self._chosen[wanted] = LeafTable(part, self.dims, views, self.device, given=True)
        return found

    def gather_run(self, start: int, count: int, lead: tuple[int, ...]) -> list[Tensor]:
        """Copies of items ``start, start + 1, ...``, ``[*lead, *shape]`` each. Checked by the caller."""
        shapes = self.forms.shape(lead)
        if self._plan is None:
            index = torch.arange(start, start + count, device=self.device).view(lead)
            return self._indexed(unravel(index, self.dims, self.device))
        out = shapes.empty()
        status = _native.gather_run(
            self._address, self.items, start, count, self._addresses(out), self.threads(count)
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
        """Leaves as they can be stored; see :meth:`BatchForms.fit`."""
        return self.forms.fit(values, lead)

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
        threads = self.threads(count)
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

    def clear(self) -> None:
        """Nothing to forget: the log says what is there."""

    def mend(self, torn: Tensor, valid: int) -> None:
        """Nothing to put right: leaves alone are kept."""

    # --- state -----------------------------------------------------------------------------------------

    def dump(self, count: int, lead: tuple[int, ...], *, copy: bool = True) -> dict[str, Any]:
        """The first ``count`` items, ``[*lead, *shape]``. O(count * bytes), or O(leaves) without copies."""
        return {"data": self.gather_run(0, count, lead) if copy else self.valid_views(lead[0])}

    def packed(self, lead: tuple[int, ...]) -> PackedRows | None:
        """The rows of the first items; see :meth:`Table.packed`. O(leaves)."""
        if self.given or not self.layout.row_bytes:
            return None
        return packed_rows(self.layout, self.buffers[0], lead)

    def load(self, data: Sequence[Leaf | None], state: Mapping[str, Any], dims: tuple[int, ...]) -> None:
        """Take over a dump, some rows at a time; see :meth:`Table.load`. O(items * bytes)."""
        if any(leaf is None for leaf in data):
            data = [*whole(read(data), state, dims, self.items)]
        leaves = self.check(data, dims)
        if self._plan is not None and not self.given and read_straight(self.layout, self.buffers, leaves):
            return
        length, width = dims[0], torch.Size(dims[1:]).numel()
        step = rows_in_chunk(self._item_bytes * width)
        for start in range(0, length, step):
            stop = min(start + step, length)
            fitted = self.fit([leaf[start:stop] for leaf in leaves], (stop - start, *dims[1:]))
            self.scatter_run(start * width, (stop - start) * width, fitted)

    def check(self, data: Sequence[Leaf | None], dims: tuple[int, ...]) -> list[Leaf]:
        """The leaves of a dump, all there; raises ValueError or TypeError if they do not fit. O(leaves)."""
        leaves = [leaf for leaf in data if leaf is not None]
        self.fit([leaf[:0] for leaf in leaves], (0, *dims[1:]))
        if any(tuple(leaf.shape[: len(dims)]) != dims for leaf in leaves):
            raise ValueError(f"The state is damaged: not all of its leaves are of {list(dims)} items.")
        return leaves

    def __getstate__(self) -> dict[str, Any]:
        whole = None if self.given else _whole_of(self.buffers)
        return {
            "layout": self.layout,
            "dims": tuple(self.dims),
            # Parts of one buffer would each be pickled with all of it.
            "buffers": self.buffers if whole is None else [whole],
            "sizes": None if whole is None else [buffer.numel() for buffer in self.buffers],
            "device": self.device,
            "given": self.given,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        buffers, sizes = state["buffers"], state["sizes"]
        if sizes is not None:
            buffers = _parts_of(buffers[0], sizes)
        self.__init__(  # type: ignore[misc]
            state["layout"], state["dims"], buffers, state["device"], given=state["given"]
        )


def buffer_sizes(layout: RowLayout, items: int) -> list[tuple[str, int]]:
    """Names and bytes of the buffers of a table: the rows first, if there are any, then the columns."""
    sizes = [("rows", items * layout.row_bytes)] if layout.row_bytes else []
    for number in layout.columns:
        sizes.append((f"column-{number}", items * layout.leaves[number].bytes))
    return sizes


def _aligned(size: int) -> int:
    return -(-size // LINE_BYTES) * LINE_BYTES


def _parts_of(whole: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Parts of a buffer, each at the start of a cache line."""
    parts, at = [], 0
    for size in sizes:
        parts.append(whole[at : at + size])
        at += _aligned(size)
    return parts


def _whole_of(buffers: Sequence[Tensor]) -> Tensor | None:
    """The buffer that all of these are parts of, if there is one."""
    if len(buffers) < 2 or len({buffer.untyped_storage().data_ptr() for buffer in buffers}) > 1:
        return None
    storage = buffers[0].untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def leaves_lead(leaves: list[Tensor], table: LeafTable) -> tuple[int, ...]:
    """The batch shape of fitted leaves."""
    item_dims = len(table.layout.leaves[0].shape)
    return tuple(leaves[0].shape[: leaves[0].ndim - item_dims])
