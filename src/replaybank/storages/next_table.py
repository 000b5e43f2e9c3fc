"""Observations once: that after a step is that of the next one, made when it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from replaybank import _native
from replaybank.storages.arena import Arena
from replaybank.storages.batch_memory import BatchMemory
from replaybank.storages.forms import BatchForms
from replaybank.storages.layout import Key, LeafPlace, LeafSpec, RowLayout
from replaybank.storages.leaf_table import PLAN_BYTES, LeafTable
from replaybank.storages.next_state import FIRST_SLOT, PENDING, check_next
from replaybank.storages.packed import PackedRows
from replaybank.storages.table import Leaf, read, whole
from replaybank.storages.torch_indexing import checked, out_of_range

OBSERVATION: Key = ("observation",)
NEXT_OBSERVATION: Key = ("next", "observation")

MOST_ITEMS = (1 << 31) - 3
"""Items of such a table: where the observation after each of them lies is an int32."""

_FIRST_SLOTS = 64  # kept aside at the start, where memory can grow
_HEADER_BYTES = 64


def links_of(specs: Sequence[LeafSpec]) -> list[tuple[int, int]]:
    """Which leaves are made, and from which: pairs of numbers.

    Raises:
        ValueError: there are none, or one differs from the leaf that it is to be made from.
    """
    numbers = {spec.key: number for number, spec in enumerate(specs)}
    links = []
    for number, spec in enumerate(specs):
        depth = len(NEXT_OBSERVATION)
        source = numbers.get((*OBSERVATION, *spec.key[depth:]))
        if spec.key[:depth] != NEXT_OBSERVATION or source is None:
            continue
        like = specs[source]
        if (like.dtype, like.shape) != (spec.dtype, spec.shape):
            raise ValueError(
                f"next_observation='derive': {spec.key} is {spec.dtype} {list(spec.shape)} and {like.key} "
                f"{like.dtype} {list(like.shape)}, so one is not made from the other. Write them alike, or "
                "leave next_observation out. Nothing has been written."
            )
        links.append((number, source))
    if not links:
        raise ValueError(
            f"next_observation='derive' needs {OBSERVATION} and {NEXT_OBSERVATION} in the data, there are "
            f"{[spec.key for spec in specs]}. Write both, or leave next_observation out. Nothing has been "
            "written."
        )
    return links


class NextTable:
    """A table that stores ``observation`` and makes ``("next", "observation")`` from the next step's.

    When items are written, what is to be their next observation is compared, byte by byte, with the
    observation of the item behind them; where they differ (ends of episodes, the newest step, a step whose
    successor was overwritten) it is kept aside, until its item is overwritten or the successor comes. So what
    is read is what was written, whatever the flags of the items say.

    Not thread-safe: the buffer's lock guards it. Shareable between processes where its buffers are.

    Args:
        layout: all leaves, made ones too.
        main: the stored ones.
        aside: made leaves, a slot each; as many slots as items, or it grows.
        state: uint8: a header, where each item's made leaves are, and free slots (``csrc/next_leaves.hpp``).
        arena: where more slots come from.
    """

    given = False

    def __init__(
        self, layout: RowLayout, main: LeafTable, aside: LeafTable, state: Tensor, arena: Arena
    ) -> None:
        self.layout = layout
        self._main = main
        self._aside = aside
        self._state = state
        self._arena = arena
        self.dims, self.items, self.device = main.dims, main.items, main.device
        self._links = links_of(layout.leaves)
        made = {number for number, _ in self._links}
        self._stored = [number for number in range(len(layout.leaves)) if number not in made]
        self._sources = [self._stored.index(source) for _, source in self._links]
        self._slot_bytes = sum(layout.leaves[number].bytes for number, _ in self._links)
        self._width = main.items // main.dims[0]
        self._forms = BatchForms(layout.leaves, main.device, native=True)
        self._memory = BatchMemory()
        words = state[_HEADER_BYTES:].view(torch.int32)
        self._header = state[:16].view(torch.int64)
        self._counts = memoryview(self._header.numpy())  # type: ignore[arg-type]
        self._place, self._freed = words[: self.items], words[self.items :]
        self._assured = aside.items if aside.items < self.items else 0
        self._prepare()

    @classmethod
    def allocate(
        cls,
        layout: RowLayout,
        stored: RowLayout,
        dims: tuple[int, ...],
        arena: Arena,
        *,
        grows: bool,
        fresh: bool,
        consolidated: bool = False,
    ) -> NextTable:
        """Take buffers. O(leaves).

        Args:
            layout: all leaves.
            stored: where those lie that are stored.
            dims: number of items along each batch dimension.
            arena: where buffers come from.
            grows: buffers may be exchanged for larger ones; if not, as many slots are made as there are
                items: memory and files take room only as they are written.
            fresh: nothing has been written; False: the buffers are there already and hold items.
            consolidated: take one buffer for all stored leaves.
        """
        items = torch.Size(dims).numel()
        if items > MOST_ITEMS:
            raise ValueError(f"next_observation='derive' is for at most {MOST_ITEMS} items, got {items}.")
        device = torch.device("cpu")
        main = LeafTable.allocate(stored, dims, arena, device, consolidated=consolidated)
        slots = min(_FIRST_SLOTS, items) if grows else items
        made = [layout.leaves[number] for number, _ in links_of(layout.leaves)]
        aside = _slots_of(made, slots, arena)
        state = arena.take("next", _HEADER_BYTES + 8 * items, zero=True)
        if fresh and not grows:
            state.zero_()  # files that are used again may hold anything
        return cls(layout, main, aside, state, arena)

    def _prepare(self) -> None:
        """The arguments that all kernels take."""
        sources = [_plan_of(self._main.views[number], self.items) for number in self._sources]
        aside = [_plan_of(view, self._aside.items) for view in self._aside.views]
        buffers = (*self._main.buffers, *self._aside.buffers)
        self._own = {buffer.untyped_storage().data_ptr() for buffer in buffers}
        self._plans = torch.tensor([sources, aside], dtype=torch.int64)
        self._next = [
            self._plans[0].data_ptr(),
            self._plans[1].data_ptr(),
            len(self._links),
            self._place.data_ptr(),
            self.items,
            self._width,
            self._header.data_ptr(),
            self._freed.data_ptr(),
            self._aside.items,
        ]

    @property
    def stored_layout(self) -> RowLayout:
        """Where the stored leaves lie."""
        return self._main.layout

    @property
    def kept_aside(self) -> int:
        """Items whose next observation is kept aside now."""
        return int(self._counts[0] - self._counts[1])

    def taken_bytes(self, items: int) -> int:
        """Bytes of the stored leaves, what tells where the others are, and the most ever kept aside. O(1)."""
        return self._main.taken_bytes(items) + 8 * items + int(self._counts[0]) * self._slot_bytes

    # --- reading ---------------------------------------------------------------------------------------

    def gather(self, index: Tensor, valid: int) -> list[Tensor]:
        """Copies of items; as :meth:`LeafTable.gather`."""
        index = index.to("cpu").contiguous()
        return self._with_next(self._main.gather(index, valid), index, valid)

    def gather_leaves(self, numbers: Sequence[int], index: Tensor, valid: int) -> list[Tensor]:
        """Copies of some leaves of items; as :meth:`LeafTable.gather_leaves`."""
        index = index.to("cpu").contiguous()
        stored = [number for number in numbers if number in self._stored]
        found: dict[int, Tensor] = {}
        if stored:
            places = [self._stored.index(number) for number in stored]
            found.update(zip(stored, self._main.gather_leaves(places, index, valid), strict=True))
        for number in numbers:
            if number not in found:
                found[number] = self._made(number, index, valid)
        return [found[number] for number in numbers]

    def items_of(self, number: int) -> LeafPlace | None:
        """Where a stored leaf of all items lies; None for a made one. See :meth:`Table.items_of`."""
        return self._main.items_of(self._stored.index(number)) if number in self._stored else None

    def _made(self, number: int, index: Tensor, valid: int) -> Tensor:
        """One made leaf of items, ``[*index, *shape]``."""
        leaf = self.layout.leaves[number]
        out = self._memory.any_size((*index.shape, *leaf.shape), leaf.dtype)
        link = [made for made, _ in self._links].index(number)
        sources, aside, _, *rest = self._next
        one = [sources + link * PLAN_BYTES, aside + link * PLAN_BYTES, 1, *rest]
        count = index.numel()
        threads = self._main.threads(count)
        bad = _native.next_gather(one, valid, index.data_ptr(), count, [out.data_ptr()], threads)
        if bad >= 0:
            raise out_of_range(int(index.reshape(-1)[bad]), valid)
        return out

    def gather_run(self, start: int, count: int, lead: tuple[int, ...]) -> list[Tensor]:
        """Copies of items ``start, start + 1, ...``; as :meth:`LeafTable.gather_run`."""
        stored = self._main.gather_run(start, count, lead)
        return self._with_next(stored, torch.arange(start, start + count), self.items)

    def _with_next(self, stored: list[Tensor], index: Tensor, valid: int) -> list[Tensor]:
        made = [
            self._memory.any_size(tuple(stored[number].shape), stored[number].dtype)
            for number in self._sources
        ]
        count = index.numel()
        threads = self._main.threads(count)
        bad = _native.next_gather(
            self._next, valid, index.data_ptr(), count, [leaf.data_ptr() for leaf in made], threads
        )
        if bad >= 0:
            raise out_of_range(int(index.reshape(-1)[bad]), valid)
        return self._joined(stored, made)

    def _joined(self, stored: list[Any], made: list[Any]) -> list[Any]:
        leaves: list[Any] = [None] * len(self.layout.leaves)
        for number, leaf in zip(self._stored, stored, strict=True):
            leaves[number] = leaf
        for (number, _), leaf in zip(self._links, made, strict=True):
            leaves[number] = leaf
        return leaves

    def read(self, number: int, rows: Tensor | slice, length: int) -> Tensor:
        """One leaf of some of the first ``length`` rows; a view of a stored one if ``rows`` is a slice."""
        if number in self._stored:
            return self._main.read(self._stored.index(number), rows, length)
        if isinstance(rows, slice):
            rows = torch.arange(*rows.indices(length))
        elif bool(((rows < -length) | (rows >= length)).any()):
            raise IndexError(f"A row is out of range: {length} have been written, got {rows.tolist()[:10]}.")
        rows = torch.where(rows < 0, rows + length, rows)
        items = rows.reshape(-1, 1) * self._width + torch.arange(self._width)
        made = self._made(number, items, self.items)
        return made.view(items.shape[0], *self.dims[1:], *self.layout.leaves[number].shape)

    def valid_views(self, length: int) -> list[Tensor]:
        """Refused: made leaves lie nowhere.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            "With next_observation='derive' the next observations lie nowhere as they are read, so there is "
            "no view of the items: use storage[:], a copy, or read_leaf(key, slice) for a single leaf."
        )

    # --- writing ---------------------------------------------------------------------------------------

    def fit(self, values: list[Any], lead: tuple[int, ...]) -> list[Tensor]:
        """Leaves as they can be stored; as :meth:`LeafTable.fit`."""
        return self._forms.fit(values, lead)

    def _split(self, leaves: list[Tensor]) -> tuple[list[Tensor], list[Tensor], list[int]]:
        """Stored leaves, made ones, and the addresses of these."""
        mine = self._own
        made = [leaves[number] for number, _ in self._links]
        made = [leaf.clone() if leaf.untyped_storage().data_ptr() in mine else leaf for leaf in made]
        return [leaves[number] for number in self._stored], made, [leaf.data_ptr() for leaf in made]

    def scatter_run(self, start: int, count: int, leaves: list[Tensor]) -> None:
        """Write the items ``start, start + 1, ...`` modulo their number, whole rows; O(count * bytes).

        Raises:
            MemoryError: there is none for what must be kept aside; nothing has been written.
        """
        stored, made, addresses = self._split(leaves)
        derived = torch.empty(count, dtype=torch.uint8)
        sources = [stored[number].data_ptr() for number in self._sources]
        others = _native.next_compare(self._next, start, count, sources, addresses, derived.data_ptr())
        self._make_room(others + self._width)
        index = torch.arange(start, start + count)
        if start + count > self.items:
            index.remainder_(self.items)
        _native.next_release(self._next, index.data_ptr(), count)
        self._main.scatter_run(start, count, stored)
        _native.next_settle(self._next, index.data_ptr(), count, addresses, derived.data_ptr())
        del made

    def scatter(self, index: Tensor, leaves: list[Tensor], valid: int) -> None:
        """Write items; of repeated ones the last wins. O(count * bytes).

        Raises:
            IndexError: an index is out of range; nothing has been written.
            MemoryError: there is none for what must be kept aside; nothing has been written.
        """
        index = checked(index.reshape(-1), valid).contiguous()
        stored, made, addresses = self._split(leaves)
        count = index.numel()
        self._make_room(2 * count)
        _native.next_release(self._next, index.data_ptr(), count)
        self._main.scatter(index, stored, valid)
        _native.next_settle(self._next, index.data_ptr(), count, addresses, 0)
        del made

    def _make_room(self, wanted: int) -> None:
        """See to it that ``wanted`` slots can be taken, or raise. O(1), where no memory is needed."""
        taken, freed = self._counts
        wanted = min(wanted, self.items - (taken - freed))  # an item has one at most
        top = taken + max(wanted - freed, 0)
        if top <= self._assured:
            return
        slots = self._aside.items
        if slots == self.items:  # there, but no memory has been taken for them
            self._arena.check(
                (top - taken) * self._slot_bytes, f"Keeping {top - taken} next observations aside"
            )
        else:
            larger = min(max(top, 2 * slots), self.items)
            self._arena.check(
                (larger - slots) * self._slot_bytes, f"Keeping {larger} next observations aside"
            )
            aside = _slots_of([self.layout.leaves[number] for number, _ in self._links], larger, self._arena)
            for old, new in zip(self._aside.views, aside.views, strict=True):
                new[:taken] = old[:taken]
            self._aside = aside
            self._prepare()
            top = larger
        self._assured = top

    def with_columns(self, leaves: Sequence[LeafSpec], arena: Arena) -> NextTable:
        """The table with more leaves, zero everywhere."""
        layout = RowLayout(
            (*self.layout.leaves, *leaves), [None] * (len(self.layout.leaves) + len(leaves)), 0
        )
        if len(links_of(layout.leaves)) != len(self._links):
            raise ValueError(
                "next_observation='derive': observations are written from the start, with what comes next. "
                f"New are {[leaf.key for leaf in leaves]}. Nothing has been written."
            )
        return NextTable(
            layout, self._main.with_columns(leaves, arena), self._aside, self._state, self._arena
        )

    def clear(self) -> None:
        """Nothing is written any more. O(N), 8 bytes an item."""
        self._state.zero_()

    def mend(self, torn: Tensor, valid: int) -> None:
        """See :meth:`Table.mend`: which slots are free is found out from those that items refer to. O(N)."""
        place = self._place
        place[torn] = PENDING
        place[valid:] = 0
        used = (place[place >= FIRST_SLOT] - FIRST_SLOT).to(torch.int64)
        taken = max(int(self._counts[0]), int(used.max()) + 1 if used.numel() else 0)
        free = torch.ones(taken, dtype=torch.bool)
        free[used] = False
        numbers = free.nonzero().reshape(-1)
        self._freed[: numbers.numel()] = numbers.to(torch.int32)
        self._counts[0], self._counts[1] = taken, numbers.numel()

    # --- state -----------------------------------------------------------------------------------------

    def dump(self, count: int, lead: tuple[int, ...], *, copy: bool = True) -> dict[str, Any]:
        """The first ``count`` items, observations once; see :meth:`Table.dump`. O(count * bytes)."""
        place = self._place[:count].clone()
        held = place >= FIRST_SLOT
        slots = (place[held] - FIRST_SLOT).to(torch.int64)
        place[held] = torch.arange(FIRST_SLOT, FIRST_SLOT + slots.numel(), dtype=torch.int32)
        stored = self._main.dump(count, lead, copy=copy)["data"]
        return {
            "data": self._joined(stored, [None] * len(self._links)),
            "next": {
                "links": [list(link) for link in self._links],
                "place": place,
                "aside": self._aside.gather(slots, self._aside.items),
            },
        }

    def packed(self, lead: tuple[int, ...]) -> PackedRows | None:
        """The rows of the stored leaves; see :meth:`Table.packed`."""
        packed = self._main.packed(lead)
        return None if packed is None else packed.renumbered(self._stored)

    def load(self, data: Sequence[Leaf | None], state: Mapping[str, Any], dims: tuple[int, ...]) -> None:
        """Take over a dump; see :meth:`Table.load`. O(items * bytes)."""
        count = torch.Size(dims).numel()
        compact = state.get("next")
        if compact is None or sorted(map(tuple, compact["links"])) != sorted(self._links):
            leaves = self.fit(whole(read(data), state, dims, self.items), dims)
            self.clear()
            if count:
                self.scatter_run(0, count, leaves)
            return
        check_next(compact, dims, self.items)
        stored = [data[number] for number in self._stored]
        self._main.check(stored, dims)
        kept = int(compact["aside"][0].shape[0])
        by_leaf = {tuple(link): leaf for link, leaf in zip(compact["links"], compact["aside"], strict=True)}
        aside = self._aside.forms.fit([by_leaf[link] for link in self._links], (kept,))
        self.clear()
        self._make_room(kept)
        if count:
            self._main.load(stored, {}, dims)
        if kept:
            self._aside.scatter_run(0, kept, aside)
        self._counts[0] = kept
        self._place[:count] = compact["place"].reshape(-1)

    def __getstate__(self) -> dict[str, Any]:
        names = ("layout", "_main", "_aside", "_state", "_arena")
        return {name.removeprefix("_"): getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def _slots_of(made: Sequence[LeafSpec], count: int, arena: Arena) -> LeafTable:
    """Columns of ``count`` slots, of which no memory is taken yet."""
    buffers = [
        arena.take(f"aside-{number}", count * leaf.bytes, zero=False) for number, leaf in enumerate(made)
    ]
    layout = RowLayout(made, [None] * len(made), 0)
    return LeafTable(layout, (count,), buffers, torch.device("cpu"))


def _plan_of(view: Tensor, items: int) -> list[int]:
    """A leaf as ``csrc/gather.hpp`` describes it."""
    size = view.element_size()
    count = max(view.numel() // items, 1)
    flat = view.view(items, -1) if view.numel() else view.reshape(items, 0)
    stride = flat.stride(0) * size if items > 1 else count * size
    return [view.data_ptr(), stride, flat.shape[1] * size, 0]
