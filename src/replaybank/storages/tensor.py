"""Items as tensors that are there from the start."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from replaybank import showing
from replaybank.checkpoint import Field, Rows
from replaybank.errors import DataFormatError
from replaybank.storages.arena import MemoryArena
from replaybank.storages.base import Batch, Storage, entry
from replaybank.storages.capacity import check_memory, whole_number
from replaybank.storages.indexing import Run, columns_count
from replaybank.storages.layout import Key, LeafPlace, LeafSpec, RowLayout
from replaybank.storages.leaf_table import LeafTable
from replaybank.storages.leaves import common_lead, count_of, is_empty, leaf_specs
from replaybank.storages.log_header import checked_state
from replaybank.storages.log_states import check_log, resize_log
from replaybank.storages.resize import Move, move_to, resized
from replaybank.storages.structure import Differs, Structure, show
from replaybank.storages.table import Leaf, Table
from replaybank.storages.tensor_state import check_columns, check_data, renumbered
from replaybank.storages.torch_indexing import checked

CHECKED_COPY_BYTES = 1 << 26
"""Copies of at least this size ask first how much memory there is: asking takes 80 microseconds."""


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
        dims = common_lead(structure, leaves, ndim)
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
        specs = leaf_specs(structure.keys, leaves, ndim)
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
        keys = [] if self._structure is None else self._structure.keys
        if self._table is None or key not in keys:
            raise KeyError(f"No leaf {key!r} in this storage; there are {keys}.")
        return self._table.read(keys.index(key), rows, self.log.length)

    def get_leaves(self, keys: Sequence[Key], items: Tensor) -> list[Any]:
        """Copies of some leaves of items, read in one go. O(B * bytes of these)."""
        table, structure = self._parts()
        try:
            wanted = [structure.numbers[key] for key in keys]
        except KeyError as error:
            raise KeyError(
                f"No leaf {error.args[0]!r} in this storage; there are {structure.keys}."
            ) from None
        return list(table.gather_leaves(wanted, items, len(self)))

    def items_of(self, key: Key) -> LeafPlace | None:
        """Where a leaf of all items lies, numbered over all dimensions, for kernels that read it there.

        None if none can. Right until the next write.
        """
        table, structure = self._parts()
        number = structure.numbers.get(key)
        return None if number is None or table.items < self.max_size else table.items_of(number)

    def stored_bytes(self) -> int:
        """What the items there are take, in memory or on disk, padding of rows included. O(leaves).

        Where it varies from item to item (derived observations, encoded images), the most that they took.
        """
        return 0 if self._table is None else self._table.taken_bytes(len(self))

    def place_of(self, key: Key) -> LeafPlace | None:
        """Where a leaf lies, for kernels that read it there; None if none can. Right until the next write."""
        keys = [] if self._structure is None else self._structure.keys
        table = self._table
        if not isinstance(table, LeafTable) or key not in keys or table.items < self.rows:
            return None
        return table.place_of(keys.index(key))

    def view(self) -> Any:
        """The valid items ``[length, *columns, ...]``, not copied: what is written into them is stored.

        Example:
            >>> storage = TensorStorage(torch.zeros(3))
            >>> storage.view()[1] = 5
            >>> storage[:]
            tensor([0., 5., 0.])
        """
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
        return structure.build(table.gather(items, len(self)), items.shape, self.device)

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
        table, structure = self._parts()
        if type(data) is list and not single:
            return self._prepare_list(data)
        try:
            leaves = structure.collect(data)
        except Differs:
            return self._prepare_other(data, single)
        if single:
            return Batch(1, table.fit(leaves, self.columns), single=True)
        count = count_of(leaves[0], structure.keys[0])
        return Batch(count, table.fit(leaves, (count, *self.columns)) if count else leaves)

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
        if not single and is_empty(data):
            return Batch(0, [])
        missing, extra = structure.compare(data)
        if missing or not extra:
            raise ValueError(
                f"The data does not have the storage's keys: missing {missing}, unknown {extra}; the storage "
                f"has {structure.keys}. Nothing has been written."
            )
        batch_dims = self.ndim - single
        wider, leaves = Structure.of(data, batch_dims, structure.keys)
        lead = common_lead(wider, leaves, batch_dims)
        known = len(structure.keys)
        table.fit(list(leaves[:known]), lead)
        if not single and lead[0] == 0:
            return Batch(0, [])
        if lead[1 - single :] != self.columns:
            raise ValueError(f"The data has batch dimensions {list(lead)}; the columns are {self.columns}.")
        new_keys = wider.keys[known:]
        self._table = self._widen(table, leaf_specs(new_keys, leaves[known:], batch_dims))
        self._structure = wider
        warnings.warn(
            f"New keys {new_keys}: they become columns of the storage, zero for the items that are there.",
            stacklevel=5,
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

    def _mend(self, torn: list[int]) -> None:
        if self._table is not None:
            width = columns_count((1, *self.columns))
            items = torch.tensor(torn, dtype=torch.int64)[:, None] * width + torch.arange(width)
            self._table.mend(items.reshape(-1), len(self))

    def empty(self) -> None:
        """Forget all items; capacity and structure stay."""
        log = self.log
        try:
            log.begin(0, log.rows)  # who is killed in the middle leaves nothing that is relied on
            if self._table is not None:
                self._table.clear()
            log.clear()
            log.commit()
        except BaseException as error:
            self._give_up(log, error)
            raise

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
            data: list[Any] = [
                leaf if leaf is None else Rows(leaf, history, key, log.mark(), log.changed_since)
                for leaf, key in zip(state["data"], keys, strict=True)
            ]
            packed = table.packed(tuple(self.shape)) if len(self) else None
            if packed is not None:
                rows = Rows(packed.rows, history, packed.key, log.mark(), log.changed_since, packed.fields)
                for place, number in enumerate(packed.numbers):
                    data[number] = Field(rows, place)
            state["data"] = data
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
        check_columns(columns, self.ndim)
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
        check_columns(columns, self.ndim)
        specs = RowLayout.from_json(
            {"format": "replaybank.row-layout", "version": 1, "row_bytes": 0, "leaves": leaves}
        ).leaves
        length = check_data(data, specs, columns, state_dict)
        rows = check_log(entry(state_dict, "log", dict), length)
        move = self.move_of(state_dict)
        before = self._before_change()
        try:
            self._make_place(state_dict, specs, columns)
            if move is not None:
                state_dict, rows = resized(state_dict, move), move.rows
            self._take_over(state_dict, rows, columns, specs, length)
        except BaseException as error:
            self._give_up(self._log, error)
            self._undo_change(before)
            raise

    def _make_place(
        self, state_dict: Mapping[str, Any], specs: Sequence[LeafSpec], columns: tuple[int, ...]
    ) -> None:
        """Have a place for the items of a state: given tensors are one."""

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

    def _facts(self) -> dict[str, Any]:
        table = self._table
        if table is None:
            return {**super()._facts(), "memory": showing.Words("none yet")}
        layout = table.layout
        told = {**super()._facts(), "item": showing.memory(sum(leaf.bytes for leaf in layout.leaves))}
        if len(layout.leaves) > 1:
            told["leaves"] = len(layout.leaves)
        return {**told, "memory": showing.memory(table.stored_layout.item_bytes * table.items)}
