"""Items as tensors: given ones, or allocated at the first write."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from replaybank.checkpoint import Rows, StoredRows
from replaybank.errors import DataFormatError
from replaybank.storages.arena import Arena, MemoryArena, SharedArena
from replaybank.storages.base import Batch, Storage, check_log, entry, resize_log
from replaybank.storages.capacity import check_memory, whole_number
from replaybank.storages.encoded import EncodedTable, check_encoded
from replaybank.storages.frames import EncodedFrames
from replaybank.storages.indexing import Run, columns_count
from replaybank.storages.layout import DTYPES, Key, LeafSpec, RowLayout
from replaybank.storages.next_table import NextTable, links_of
from replaybank.storages.resize import Move, move_to, resized
from replaybank.storages.structure import Differs, Structure, show
from replaybank.storages.table import Leaf, LeafTable, Table, checked
from replaybank.storages.write_log import checked_state


class TensorStorage(Storage):
    """A given tensor, TensorDict, tensorclass or tree of tensors: full from the start.

    The tensors stay where and as they are; writes go into them. :meth:`get` always copies, ints and slices
    included; :meth:`view` gives the tensors themselves.

    Not thread-safe: the buffer's lock guards it.

    Args:
        storage: the data, ``[rows, *columns, ...]``.
        max_size: number of items over all dimensions, if it is to be checked.
        device: where the items are to be; data elsewhere is copied there. ``"auto"``: where they are.
        ndim: number of batch dimensions.
        compilable: see :class:`~replaybank.storages.base.Storage`.

    Raises:
        ValueError: the data has other sizes, or nothing in it.

    Example:
        >>> storage = TensorStorage({"x": torch.arange(4), "y": torch.ones(4, 2)})
        >>> len(storage), storage.get([3, -4])["x"]
        (4, tensor([3, 0]))
    """

    def __init__(
        self,
        storage: Any,
        max_size: int | None = None,
        *,
        device: torch.device | str | None = "cpu",
        ndim: int = 1,
        compilable: bool = False,
    ) -> None:
        ndim = whole_number(ndim, "ndim")
        if storage is None:
            raise ValueError(
                "TensorStorage needs data; LazyTensorStorage(max_size) makes it at the first write."
            )
        structure, leaves = Structure.of(storage, ndim)
        dims = _common_lead(structure, leaves, ndim)
        if 0 in dims:
            raise ValueError(f"The data holds no items: its batch dimensions are {list(dims)}.")
        if max_size is not None and whole_number(max_size, "max_size") != torch.Size(dims).numel():
            raise ValueError(
                f"max_size={max_size}, but the data holds {torch.Size(dims).numel()} items {list(dims)}. "
                "Leave max_size out, or use LazyTensorStorage."
            )
        where = leaves[0].device if device in ("auto", None) else torch.device(str(device))
        super().__init__(dims[0], ndim, where, compilable=compilable)
        self.columns = dims[1:]
        leaves = [leaf.detach().to(where) for leaf in leaves]
        specs = _specs(structure.keys, leaves, ndim)
        layout = RowLayout(specs, [None] * len(specs), 0)
        self._structure: Structure | None = structure
        self._table: Table | None = LeafTable(layout, dims, leaves, where, given=True)
        self.log.fill()
        self.log.hand_out()

    @property
    def initialized(self) -> bool:
        """Whether it is known what items look like."""
        return self._table is not None

    def leaf_keys(self) -> list[Key]:
        """Keys of the tensors an item consists of; ``()`` is an item that is itself a tensor."""
        return [] if self._structure is None else list(self._structure.keys)

    def read_leaf(self, key: Key, rows: Tensor | slice) -> Tensor:
        """One leaf of some rows: a view for slices, else a copy. O(rows)."""
        keys = self.leaf_keys()
        if self._table is None or key not in keys:
            raise KeyError(f"No leaf {key!r} in this storage; there are {keys}.")
        return self._table.read(keys.index(key), rows, self.log.length)

    def view(self) -> Any:
        """The valid items ``[length, *columns, ...]``, not copied: what is written into them is stored."""
        table, structure = self._parts()
        self._log.hand_out()
        return structure.build(table.valid_views(self.log.length), self.shape, self.device)

    def _parts(self) -> tuple[Table, Structure]:
        if self._table is None or self._structure is None:
            raise IndexError("Nothing has been written to this storage yet.")
        return self._table, self._structure

    # --- reading ---------------------------------------------------------------------------------------

    def _read_items(self, items: Tensor) -> Any:
        table, structure = self._parts()
        leaves = table.gather(items, len(self))
        return structure.build(leaves, items.shape, self.device)

    def _read_run(self, run: Run) -> Any:
        table, structure = self._parts()
        wanted = run.size * table.layout.item_bytes
        if wanted >= CHECKED_COPY_BYTES:
            check_memory(wanted, f"A copy of {run.size} items", self.device)
        leaves = table.gather_run(run.start, run.size, run.lead)
        return structure.build(leaves, torch.Size(run.lead), self.device)

    # --- writing ---------------------------------------------------------------------------------------

    def prepare(self, data: Any, *, single: bool = False) -> Batch:
        """Check data to be written; see :meth:`Storage.prepare`."""
        structure, table = self._structure, self._table
        if structure is None or table is None:
            return self._prepare_first(data, single)
        if type(data) is list and not single:
            return self._prepare_list(data)
        try:
            leaves = structure.collect(data)
        except Differs:
            return self._prepare_other(data, single)
        if single:
            return Batch(1, table.fit(leaves, self.columns), single=True)
        count = _count(leaves[0], structure.keys[0])
        return Batch(count, table.fit(leaves, (count, *self.columns)) if count else leaves)

    def _prepare_first(self, data: Any, single: bool) -> Batch:
        raise NotImplementedError  # lazy storages only

    def _prepare_list(self, data: Sequence[Any]) -> Batch:
        """Items one by one, each a time row."""
        if not data:
            return Batch(0, [])
        before = self._before_change()
        try:
            rows = [self.prepare(item, single=True).content for item in data]
            for number, row in enumerate(rows):
                if len(row) != len(rows[-1]):
                    raise ValueError(
                        f"The items of a list must have the same keys: item {len(rows) - 1} has "
                        f"{self.leaf_keys()}, item {number} has {self.leaf_keys()[: len(row)]} only. Nothing "
                        "has been written."
                    )
            return Batch(len(data), [torch.stack(leaves) for leaves in zip(*rows, strict=True)])
        except BaseException:
            self._undo_change(before)
            raise

    def _prepare_other(self, data: Any, single: bool) -> Batch:
        """Data of another structure: new keys become columns, anything else is an error."""
        table, structure = self._parts()
        if not single and _is_empty(data):
            return Batch(0, [])
        missing, extra = structure.compare(data)
        if missing or not extra:
            raise ValueError(
                f"The data does not have the storage's keys: missing {missing}, unknown {extra}; the storage "
                f"has {structure.keys}. Nothing has been written."
            )
        batch_dims = self.ndim - single
        wider, leaves = Structure.of(data, batch_dims, structure.keys)
        lead = _common_lead(wider, leaves, batch_dims)
        known = len(structure.keys)
        table.fit(list(leaves[:known]), lead)
        if not single and lead[0] == 0:
            return Batch(0, [])
        if lead[1 - single :] != self.columns:
            raise ValueError(f"The data has batch dimensions {list(lead)}; the columns are {self.columns}.")
        self._table = self._widen(table, _specs(extra_keys := wider.keys[known:], leaves[known:], batch_dims))
        self._structure = wider
        warnings.warn(
            f"New keys {extra_keys}: they become columns of the storage, zero for the items that are there.",
            stacklevel=4,
        )
        fitted = self._table.fit(list(leaves), lead)
        return Batch(1 if single else lead[0], fitted, single)

    def _widen(self, table: Table, specs: list[LeafSpec]) -> Table:
        return table.with_columns(specs, MemoryArena(table.device))

    def _store_run(self, start: int, batch: Batch, skip: int) -> None:
        table, _ = self._parts()
        leaves = [leaf[skip:] for leaf in batch.content] if skip else batch.content
        width = columns_count((1, *self.columns)) if self.columns else 1
        table.scatter_run(start * width, (batch.rows - skip) * width, leaves)

    def _part(self, batch: Batch, first: int, count: int) -> Batch:
        return Batch(count, [leaf[first : first + count] for leaf in batch.content])

    def _store_items(self, items: Run | Tensor, data: Any) -> None:
        table, structure = self._parts()
        lead = items.lead if isinstance(items, Run) else tuple(items.shape)
        try:
            leaves = table.fit(structure.collect(data), lead)
        except Differs:
            missing, extra = structure.compare(data)
            raise ValueError(
                f"Items are replaced whole: missing {missing}, unknown {extra}. Nothing has been written."
            ) from None
        if isinstance(items, Run):
            self._replacing(items)
            table.scatter_run(items.start, items.size, leaves)
        else:
            items = checked(items.cpu(), len(self))
            self._replacing(items)
            table.scatter(items, leaves, len(self))

    def empty(self) -> None:
        """Forget all items; capacity and structure stay."""
        super().empty()
        if self._table is not None:
            self._table.clear()

    # --- state -----------------------------------------------------------------------------------------

    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        """The state as tensors and plain values. O(N), or O(rows) without copies.

        Args:
            copy: False gives views of the valid items, to be saved at once: they are right only as long as
                nobody writes.
        """
        state: dict[str, Any] = {"initialized": self.initialized, "log": self.log.state_dict()}
        if self.initialized:
            table, structure = self._parts()
            state["columns"], state["length"] = list(self.columns), self.log.length
            specs = table.layout.leaves
            state["leaves"] = RowLayout(specs, [None] * len(specs), 0).to_json()["leaves"]
            state["structure"] = structure.to_json()
            state.update(table.dump(len(self), tuple(self.shape), copy=copy))
        return state

    def state_to_save(self) -> dict[str, Any]:
        """The state with views of the items, and what the log tells of them; see the base class.

        Given tensors, and those that :meth:`view` has handed out, may change without the log being told.
        """
        state = self.state_dict(copy=False)
        log, table = self.log, self._table
        history = log.history
        if table is not None and history is not None:
            keys = [show(spec.key) for spec in table.layout.leaves]
            state["data"] = [
                leaf if leaf is None else Rows(leaf, history, key, log.mark(), log.changed_since)
                for leaf, key in zip(state["data"], keys, strict=True)
            ]
        return state

    @property
    def takes_stored_rows(self) -> bool:
        """Whether a state may hold ``checkpoint.StoredRows``: here, always."""
        return True

    def move_of(self, state_dict: Mapping[str, Any]) -> Move | None:
        """Where the rows of a state come to lie; see the base class."""
        if not state_dict.get("initialized"):
            return None
        columns = tuple(entry(state_dict, "columns", list))
        _check_columns(columns, self.ndim)
        checked_state(state_dict.get("log"))
        return move_to(state_dict["log"], self.rows_with(columns), columns_count((1, *columns)))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state; ``state_dict`` stays the caller's. O(N).

        It may be of another capacity: items keep their places if there is room for them; where they had gone
        round a smaller storage they come to lie in order, the oldest first. Dtypes may differ within a kind.

        Raises:
            ValueError: items of another structure, or more than there is room for; nothing has been changed.
            DataFormatError: the state is damaged; nothing has been changed.
        """
        if not entry(state_dict, "initialized", bool):
            self.empty()
            return
        leaves = entry(state_dict, "leaves", list)
        data: list[Leaf | None] = entry(state_dict, "data", list)
        columns = tuple(entry(state_dict, "columns", list))
        _check_columns(columns, self.ndim)
        specs = RowLayout.from_json(
            {"format": "replaybank.row-layout", "version": 1, "row_bytes": 0, "leaves": leaves}
        ).leaves
        length = _check_data(data, specs, columns, state_dict)
        rows = check_log(entry(state_dict, "log", dict), length)
        move = self.move_of(state_dict)
        before = self._before_change()
        try:
            if self._table is None:
                structure = Structure.from_json(state_dict.get("structure"), [spec.key for spec in specs])
                self._initialize(structure, list(specs), columns, self.device or torch.device("cpu"))
            if move is not None:
                state_dict, rows = resized(state_dict, move), move.rows
            self._take_over(state_dict, rows, columns, specs, length)
        except BaseException as error:
            self._give_up(self._log, error)
            self._undo_change(before)
            raise

    def _take_over(
        self,
        state_dict: Mapping[str, Any],
        rows: int,
        columns: tuple[int, ...],
        specs: Sequence[LeafSpec],
        length: int,
    ) -> None:
        """The rest of loading, once it is known what items look like."""
        data: list[Leaf | None] = state_dict["data"]
        table, structure = self._parts()
        if columns != self.columns or rows != self.rows:
            raise ValueError(
                f"The state is of columns {columns}; this storage has columns {self.columns}. Make the "
                "storage with those columns. Nothing has been changed."
            )
        numbers = {spec.key: number for number, spec in enumerate(specs)}
        if set(numbers) != set(structure.keys):
            raise ValueError(
                f"The state has the keys {sorted(numbers)}, the storage {sorted(structure.keys)}."
            )
        mine = {numbers[key]: number for number, key in enumerate(structure.keys)}
        log = self.log
        log.begin(0, rows)
        try:
            given = [data[numbers[key]] for key in structure.keys]
            table.load(given, renumbered(state_dict, mine), (length, *columns))
        except (ValueError, TypeError):  # refused before anything was written
            log.commit()
            raise
        except (LookupError, AttributeError) as error:
            log.commit()
            raise DataFormatError(
                f"The state is damaged: {type(error).__name__}: {error!s:.200}. Nothing has been changed."
            ) from error
        log.load_state_dict(state_dict["log"])
        log.commit()

    def _before_change(self) -> Any:
        """What :meth:`_undo_change` goes back to, should a change of what items look like fail."""
        return self._table, self._structure, self.columns, self.device, self.log.rows

    def _undo_change(self, before: Any) -> None:
        table = self._table
        self._table, self._structure, self.columns, self.device, rows = before
        if rows != self.log.rows:
            resize_log(self.log, rows)
        if table is not None and self._table is None:
            self._drop(table)

    def _drop(self, table: Table) -> None:
        """Give up a table that was just allocated."""

    def _initialize(
        self, structure: Structure, specs: list[LeafSpec], columns: tuple[int, ...], device: torch.device
    ) -> None:
        raise NotImplementedError  # lazy storages only


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
            it is kept aside; the data that is read is bit by bit what was written. Halves the memory of
            frames. CPU only.
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

    def _prepare_first(self, data: Any, single: bool) -> Batch:
        if type(data) is list and not single:
            return self._prepare_list(data)
        if not single and _is_empty(data):
            return Batch(0, [])
        batch_dims = self.ndim - single
        structure, leaves = Structure.of(data, batch_dims)
        lead = _common_lead(structure, leaves, batch_dims)
        if not single and lead[0] == 0:
            return Batch(0, [])
        device = self.device if self.device is not None else leaves[0].device
        columns = lead[1 - single :]
        self._initialize(structure, _specs(structure.keys, leaves, batch_dims), columns, device)
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

    def _widen(self, table: Table, specs: list[LeafSpec]) -> Table:
        if self.shared_init:
            raise ValueError(
                f"New keys {[spec.key for spec in specs]}: a shared storage cannot take them, as other "
                "processes would not see them. Write all keys with the first items. Nothing has been written."
            )
        return super()._widen(table, specs)


CHECKED_COPY_BYTES = 1 << 26
"""Copies of at least this size ask first how much memory there is: asking takes 80 microseconds."""

_STORABLE = frozenset(DTYPES.values())


def _check_columns(columns: tuple[Any, ...], ndim: int) -> None:
    if len(columns) != ndim - 1 or not all(type(size) is int and 0 < size < 1 << 48 for size in columns):
        raise DataFormatError(
            f"The state's columns are {columns!r:.80}, this storage has {ndim - 1} dimension(s) behind time. "
            "Make it with that ndim, unless the state is damaged. Nothing has been changed."
        )


def _check_data(
    data: list[Any], specs: Sequence[LeafSpec], columns: tuple[int, ...], state: Mapping[str, Any]
) -> int:
    """The number of rows in a state's data, the same in all of its leaves. O(leaves).

    A leaf that is kept in another form is None; the table that takes it checks that.
    """
    lengths = {
        len(leaf)
        if isinstance(leaf, (Tensor, StoredRows)) and leaf.ndim and leaf.shape[1:] == (*columns, *spec.shape)
        else -1
        for leaf, spec in zip(data, specs, strict=False)
        if leaf is not None
    }
    if data and not lengths:  # images alone, which lie end to end
        length = entry(state, "length", int)
        lengths = {-1 if isinstance(length, bool) else length}
    if len(data) != len(specs) or len(lengths) != 1 or min(lengths) < 0:
        found = [
            list(leaf.shape) if isinstance(leaf, (Tensor, StoredRows)) else type(leaf).__name__
            for leaf in data
        ]
        raise DataFormatError(
            f"The state is damaged: its data is {found!s:.200}, and it speaks of {len(specs)} leaves of "
            f"{[list(spec.shape) for spec in specs]!s:.200} an item in columns {columns}. Nothing has been "
            "changed."
        )
    return lengths.pop()


def _check_next(next_observation: str | None) -> None:
    if next_observation not in (None, "derive"):
        raise ValueError(f"next_observation={next_observation!r}: give 'derive', or None to store it.")


def renumbered(state: Mapping[str, Any], numbers: Mapping[int, int]) -> dict[str, Any]:
    """What a dump holds beside its leaves, in another order of leaves."""
    out: dict[str, Any] = {}
    if "next" in state:
        links = [[numbers[number], numbers[source]] for number, source in state["next"]["links"]]
        out["next"] = {**state["next"], "links": links}
    if "frames" in state:
        out["frames"] = [{**entry, "leaf": numbers[entry["leaf"]]} for entry in state["frames"]]
    return out


def _specs(keys: Sequence[Key], leaves: Sequence[Tensor], batch_dims: int) -> list[LeafSpec]:
    for key, leaf in zip(keys, leaves, strict=True):
        if leaf.dtype not in _STORABLE or leaf.layout is not torch.strided:
            raise TypeError(
                f"The tensor at {show(key)} has dtype {leaf.dtype} and layout {leaf.layout}: only dense "
                "tensors of plain dtypes can be stored."
            )
    return [
        LeafSpec(key, leaf.dtype, tuple(leaf.shape[batch_dims:]))
        for key, leaf in zip(keys, leaves, strict=True)
    ]


def _common_lead(structure: Structure, leaves: Sequence[Tensor], batch_dims: int) -> tuple[int, ...]:
    """The first ``batch_dims`` sizes, which all leaves must share."""
    lead = tuple(leaves[0].shape[:batch_dims])
    for key, leaf in zip(structure.keys, leaves, strict=True):
        if leaf.ndim < batch_dims or tuple(leaf.shape[:batch_dims]) != lead:
            raise ValueError(
                f"All leaves must share their first {batch_dims} size(s): {show(structure.keys[0])} has "
                f"shape {list(leaves[0].shape)}, {show(key)} {list(leaf.shape)}. Nothing has been written."
            )
    return lead


def _is_empty(data: Any) -> bool:
    """Whether it is a TensorDict, tensor or array of no items, which need not have keys or columns."""
    sizes: Sequence[int] = getattr(data, "batch_size", getattr(data, "shape", ()))
    return len(sizes) > 0 and sizes[0] == 0


def _count(leaf: Any, key: Key) -> int:
    shape: Sequence[int] = getattr(leaf, "shape", ())
    if len(shape) == 0:
        raise ValueError(f"The data at {show(key)} has no dimension that counts items; `add` takes one item.")
    return int(shape[0])
