"""Items as tensors, allocated at the first write."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from replaybank import showing
from replaybank.storages.arena import Arena, MemoryArena, SharedArena
from replaybank.storages.base import Batch, Storage
from replaybank.storages.capacity import check_memory, whole_number
from replaybank.storages.encoded import EncodedTable, check_encoded
from replaybank.storages.frames import EncodedFrames
from replaybank.storages.layout import Key, LeafSpec, RowLayout
from replaybank.storages.leaf_table import LeafTable
from replaybank.storages.leaves import common_lead, is_empty, leaf_specs
from replaybank.storages.log_states import resize_log
from replaybank.storages.next_table import NextTable, links_of
from replaybank.storages.structure import Structure
from replaybank.storages.table import Table
from replaybank.storages.tensor import TensorStorage


class LazyTensorStorage(TensorStorage):
    """Items as tensors, allocated at the first write from what is written.

    Small leaves of an item share a row of memory (:class:`~replaybank.storages.layout.RowLayout`), so that a
    random item costs two or three cache misses. Memory is taken by the system as it is first written, not
    at allocation. :meth:`get` always copies, ints and slices included; :meth:`view` does not.

    Not thread-safe: the buffer's lock guards it. With ``shared_init`` the data and the log lie in shared
    memory, once they are allocated: sent to other processes after the first write, all see one storage.

    Args:
        max_size: capacity in items, over all dimensions; rounded up to whole rows of columns.
        device: where the items are to be; ``"auto"``: where the first ones are.
        ndim: number of batch dimensions.
        shared_init: allocate in shared memory.
        consolidated: take one block of memory for all leaves.
        compilable: see :class:`~replaybank.storages.base.Storage`.
        next_observation: ``"derive"``: store ``observation`` only, and make ``("next", "observation")`` from
            the next step when it is read. Where they differ, at the ends of episodes and at the newest step,
            it is kept aside; the data that is read is bit by bit what was written. Costs 8 bytes a step:
            it pays from about a dozen float32 numbers in an observation on, and halves the memory of frames.
            CPU only.
        encoded: entries that are images and are kept as JPEG or PNG bytes, by key. CPU only.

    Raises:
        MemoryError: at the first write: more is asked for than there is.

    Example:
        >>> storage = LazyTensorStorage(3)
        >>> storage.set(range(2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        >>> len(storage), storage.get(-1)
        (2, tensor([3., 4.]))
    """

    _structure: Structure | None
    _table: Table | None

    def __init__(
        self,
        max_size: int,
        *,
        device: torch.device | str = "cpu",
        ndim: int = 1,
        shared_init: bool = False,
        consolidated: bool = False,
        compilable: bool = False,
        next_observation: str | None = None,
        encoded: Mapping[Any, EncodedFrames] | None = None,
    ) -> None:
        ndim, max_size = whole_number(ndim, "ndim"), whole_number(max_size, "max_size")
        # A byte a row is what the log takes, wherever the items are; those are checked at the first write.
        check_memory(
            max_size if ndim == 1 else 1,
            f"The log of a storage of {max_size} items",
            advice="Ask for fewer items: every storage keeps its log in memory.",
        )
        _check_next(next_observation)
        where = None if device == "auto" else torch.device(device)
        Storage.__init__(self, max_size if ndim == 1 else 1, ndim, where, compilable=compilable)
        self._wanted = max_size
        self._structure = None
        self._table = None
        self.shared_init = shared_init
        self.consolidated = consolidated
        self.next_observation = next_observation
        self.encoded: dict[Key, EncodedFrames] = {
            (key,) if isinstance(key, str) else tuple(key): frames for key, frames in (encoded or {}).items()
        }
        if where is not None:
            self._check_device(where)
        if shared_init and where is not None and where.type != "cpu":
            raise ValueError(f"shared_init is for the CPU's memory, not for device={device!r}.")

    @property
    def rows(self) -> int:
        """Capacity along time; before the first write, an upper bound for more dimensions than one."""
        return self._log.rows if self.initialized or self.ndim == 1 else self._wanted

    def rows_with(self, columns: tuple[int, ...]) -> int:
        """The capacity along time that it has, or will have once it holds items in such columns."""
        return self.rows if self.initialized else -(-self._wanted // max(math.prod(columns), 1))

    def prepare(self, data: Any, *, single: bool = False) -> Batch:
        """Check data to be written, and allocate if it is the first; see :meth:`Storage.prepare`."""
        return (
            self._prepare_first(data, single) if self._table is None else super().prepare(data, single=single)
        )

    def _prepare_first(self, data: Any, single: bool) -> Batch:
        if type(data) is list and not single:
            return self._prepare_list(data)
        if not single and is_empty(data):
            return Batch(0, [])
        batch_dims = self.ndim - single
        structure, leaves = Structure.of(data, batch_dims)
        lead = common_lead(structure, leaves, batch_dims)
        if not single and lead[0] == 0:
            return Batch(0, [])
        device = self.device if self.device is not None else leaves[0].device
        columns = lead[1 - single :]
        self._initialize(structure, leaf_specs(structure.keys, leaves, batch_dims), columns, device)
        table, _ = self._parts()
        return Batch(1 if single else lead[0], table.fit(list(leaves), lead), single)

    def _initialize(
        self, structure: Structure, specs: list[LeafSpec], columns: tuple[int, ...], device: torch.device
    ) -> None:
        width = torch.Size(columns).numel()
        if width == 0:
            raise ValueError(f"The data has no items in a row: its columns are {columns}.")
        rows = -(-self._wanted // width)
        self._check_device(device)
        table = self._allocate(specs, (rows, *columns), device)
        if rows != self.log.rows:
            resize_log(self.log, rows)
        if self.shared_init:
            self.log.share_memory_()
        self.columns, self.device = columns, device
        self._structure, self._table = structure, table

    def _check_device(self, device: torch.device) -> None:
        if device.type != "cpu" and (self.next_observation is not None or self.encoded):
            what = "next_observation='derive'" if self.next_observation is not None else "encoded="
            raise ValueError(
                f"{what} is for the CPU's memory, got device={device}: move the batches instead."
            )

    def _allocate(self, specs: list[LeafSpec], dims: tuple[int, ...], device: torch.device) -> Table:
        arena: Arena = SharedArena() if self.shared_init else MemoryArena(device)
        return self._table_in(arena, specs, self._plan(specs, device), dims, device, fresh=True)

    def _plan(self, specs: list[LeafSpec], device: torch.device) -> RowLayout:
        """Where the leaves are to lie that are stored as they are."""
        check_encoded(specs, self.encoded)
        specs = [spec for spec in specs if spec.key not in self.encoded]
        if self.next_observation is not None:
            made = {number for number, _ in links_of(specs)}
            specs = [spec for number, spec in enumerate(specs) if number not in made]
        # Rows that mix leaves are for cache lines and pages; a GPU reads columns just as well.
        return RowLayout.plan(specs) if device.type == "cpu" else RowLayout(specs, [None] * len(specs), 0)

    def _table_in(
        self,
        arena: Arena,
        specs: Sequence[LeafSpec],
        stored: RowLayout,
        dims: tuple[int, ...],
        device: torch.device,
        *,
        fresh: bool,
    ) -> Table:
        """The table for leaves, in buffers of an arena; ``fresh``: without items."""
        grows = isinstance(arena, MemoryArena)
        plain = [spec for spec in specs if spec.key not in self.encoded]
        if self.next_observation is None:
            table: Table = LeafTable.allocate(stored, dims, arena, device, consolidated=self.consolidated)
        else:
            layout = RowLayout(plain, [None] * len(plain), 0)
            table = NextTable.allocate(
                layout, stored, dims, arena, grows=grows, fresh=fresh, consolidated=self.consolidated
            )
        if self.encoded:
            layout = RowLayout(specs, [None] * len(specs), 0)
            table = EncodedTable.allocate(layout, table, self.encoded, arena, grows=grows, fresh=fresh)
        return table

    def _make_place(
        self, state_dict: Mapping[str, Any], specs: Sequence[LeafSpec], columns: tuple[int, ...]
    ) -> None:
        if self._table is not None:
            return
        structure = Structure.from_json(state_dict.get("structure"), [spec.key for spec in specs])
        self._initialize(structure, list(specs), columns, self.device or torch.device("cpu"))

    def _widen(self, table: Table, specs: list[LeafSpec]) -> Table:
        if self.shared_init:
            raise ValueError(
                f"New keys {[spec.key for spec in specs]}: a shared storage cannot take them, as other "
                "processes would not see them. Write all keys with the first items. Nothing has been written."
            )
        return super()._widen(table, specs)

    def _facts(self) -> dict[str, Any]:
        told = super()._facts()
        if self.encoded and self._table is not None:
            told["memory"] = showing.Words(f"{told['memory']} and images as bytes")
        if self.encoded:
            told["encoded"] = showing.keys(list(self.encoded))
        if self.next_observation is not None:
            told["next_observation"] = self.next_observation
        return {**told, "shared_init": True} if self.shared_init else told


def _check_next(next_observation: str | None) -> None:
    if next_observation not in (None, "derive"):
        raise ValueError(f"next_observation={next_observation!r}: give 'derive', or None to store it.")
