"""What every storage does: items in, items out, and a log of what was written."""

from __future__ import annotations

import inspect
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from replaybank import showing
from replaybank.checkpoint import Stateful
from replaybank.errors import DataFormatError
from replaybank.storages._tensordict import leaf_of
from replaybank.storages.indexing import Run, as_index, columns_count, resolve
from replaybank.storages.layout import Key
from replaybank.storages.resize import Move
from replaybank.storages.write_log import WriteLog

T = TypeVar("T")


class Batch(NamedTuple):
    """Data that a storage has checked and will take: nothing has been written yet.

    Args:
        rows: how many, along time.
        content: the storage's own form of the data.
        single: one time row without a time dimension.
    """

    rows: int
    content: Any
    single: bool = False


class Storage(Stateful):
    """Items under numbers, and the log of what was written.

    Rows along time, ``columns`` further batch dimensions. ``log`` is the one home of the write cursor, so
    two buffers on one storage agree. What :meth:`get` returns never shares memory with the storage,
    except where a class says so; :meth:`read_leaf` may give a view.

    Not thread-safe: the buffer's lock guards it.

    Args:
        rows: capacity along time.
        ndim: number of batch dimensions, at least 1.
        device: where the items are; None where items are kept as they come.
        compilable: accepted for code that passes it. ``torch.compile`` of code that writes and samples works
            either way: the storage's own work runs between the compiled parts.
    """

    def __init__(
        self, rows: int, ndim: int, device: torch.device | None, *, compilable: bool = False
    ) -> None:
        self.compilable = compilable
        self.ndim = ndim
        self.device = device
        self.columns: tuple[int, ...] = ()
        self._log = WriteLog(rows)

    # --- what a storage says of itself -----------------------------------------------------------------

    @property
    def log(self) -> WriteLog:
        """The log of what was written, for who holds the buffer's lock.

        A write that another process or an interrupt left unfinished is made good first.
        """
        log = self._log
        if log.unfinished:
            self._make_good(log, warn=True)
        return log

    @property
    def log_as_is(self) -> WriteLog:
        """The log for who does not hold the lock: a write may be under way. Not to be changed."""
        return self._log

    @property
    def rows(self) -> int:
        """Capacity along time."""
        return self._log.rows

    def rows_with(self, columns: tuple[int, ...]) -> int:
        """The capacity along time that it has, or will have once it holds items in such columns.

        Args:
            columns: sizes of the dimensions behind time.
        """
        return self.rows

    @property
    def max_size(self) -> int:
        """Capacity in items, over all dimensions."""
        return self.rows * columns_count((1, *self.columns))

    @property
    @abstractmethod
    def initialized(self) -> bool:
        """Whether it is known what items look like."""

    @property
    def shape(self) -> torch.Size:
        """Number of items along each dimension, the valid ones only: ``[length, *columns]``."""
        return torch.Size((self._log.length, *self.columns))

    def __len__(self) -> int:
        return self._log.length * columns_count((1, *self.columns)) if self.columns else self._log.length

    def leaf_keys(self) -> list[Key]:
        """Keys of the tensors an item consists of; ``()`` is an item that is itself a tensor."""
        return []

    def read_leaf(self, key: Key, rows: Tensor | slice) -> Tensor:
        """One leaf of some rows, perhaps as a view. O(rows).

        Args:
            key: which; one of :meth:`leaf_keys`.
            rows: time rows, int64 ``[k]`` or a slice, all of them written.

        Returns:
            ``[k, *columns, *shape]``.

        Raises:
            KeyError: there is no such leaf; the keys there are are named.
        """
        raise KeyError(f"{key!r}: a {type(self).__name__} has no leaves; {self.leaf_keys()} are there.")

    def get_leaves(self, keys: Sequence[Key], items: Tensor) -> list[Any]:
        """Copies of some leaves of items. O(B * bytes of these), where leaves lie apart; else of whole items.

        Args:
            keys: which; paths of entries that :meth:`get` gives.
            items: int64 ``[B]`` on the CPU, numbered over all dimensions, time-major.

        Returns:
            ``[B, ...]`` each.

        Raises:
            IndexError: out of range, or never written.
            KeyError: there is no such entry.
        """
        found = self._read_items(items)
        if isinstance(found, list):
            return [torch.stack([leaf_of(item, key) for item in found]) for key in keys]
        return [leaf_of(found, key) for key in keys]

    def contains(self, item: Any) -> Any:
        """Whether items are there.

        Args:
            item: an int gives a bool, integers give bools of their shape; numbers on the first dimension.

        Example:
            >>> import torch
            >>> from replaybank import TensorStorage
            >>> TensorStorage(torch.arange(3)).contains(torch.tensor([0, 5, -1]))
            tensor([ True, False,  True])
        """
        if isinstance(item, int):
            return -self._log.length <= item < self._log.length
        index = as_index(item)
        return (index >= -self._log.length) & (index < self._log.length)

    # --- writing ---------------------------------------------------------------------------------------

    @abstractmethod
    def prepare(self, data: Any, *, single: bool = False) -> Batch:
        """Check data to be written, before a writer decides where it goes. Writes nothing. O(B).

        Args:
            data: items ``[B, *columns, ...]``, or one time row ``[*columns, ...]``.
            single: it is one time row.

        Raises:
            ValueError: shapes or keys do not fit; both are named.
            TypeError: dtypes do not fit.
        """

    @abstractmethod
    def _store_run(self, start: int, batch: Batch, skip: int) -> None:
        """Store rows ``skip, skip + 1, ...`` of a batch at rows ``start, ...`` modulo ``rows``."""

    @abstractmethod
    def _store_items(self, items: Run | Tensor, data: Any) -> None:
        """Replace items that are there. Checks the data and the numbers before anything is written."""

    def write(self, start: int, batch: Batch) -> None:
        """Store a batch from row ``start`` on and note it in the log. O(B * bytes of an item).

        Of a batch with more rows than the storage the last ``rows`` stay, where they would have come to lie
        had the rows been written one by one. A write that is interrupted leaves no item half written: those
        that it was to replace become copies of another item, each cut off from its neighbours.

        Args:
            start: first row, at most the number of rows that are there.
            batch: from :meth:`prepare`.

        Raises:
            IndexError: rows before ``start`` were never written.
        """
        count, log = batch.rows, self.log
        if count == 0:
            return
        rows = self.rows
        if not 0 <= start <= log.length or start == rows:
            raise IndexError(
                f"Cannot write at row {start}: {log.length} of {rows} rows have been written, and those "
                "between would be garbage."
            )
        skip = max(count - rows, 0)
        first = (start + skip) % rows if skip else start
        try:
            log.begin(first, count - skip)
            self._store_run(first, batch, skip)
            while count > rows:  # rows that were overwritten at once: they count, and cut what went before
                log.append(start, min(rows, count - rows))
                start = (start + min(rows, count - rows)) % rows
                count -= min(rows, count - rows)
            log.append(start, count)
            log.commit()
        except BaseException as error:
            self._give_up(log, error)
            raise

    def _replacing(self, items: Run | Tensor) -> None:
        """To be called by :meth:`_store_items` when all has been checked, before anything is replaced."""
        self._log.begin_replacing(self._rows_of(items))

    def _rows_of(self, items: Run | Tensor) -> Tensor:
        """The time rows of items, int64 ``[k]`` on the CPU. O(k)."""
        width = columns_count((1, *self.columns))
        if isinstance(items, Run):
            first = items.start // width
            return torch.arange(first, -(-(items.start + items.size) // width))
        numbers = items.cpu().reshape(-1)
        return torch.where(numbers < 0, numbers + len(self), numbers) // width

    def _give_up(self, log: WriteLog, error: BaseException) -> None:
        """After an exception in a write: nothing half written stays."""
        log.stop()
        if log.unfinished and isinstance(error, MemoryError):
            log.commit()  # room is looked for before the first byte is written: all is as it was
        if log.unfinished:
            self._make_good(log, warn=False)

    def _make_good(self, log: WriteLog, *, warn: bool) -> None:
        """Have nothing half written left of a write that was not finished. O(rows).

        There are no holes in a storage, so half-written items become copies of one that is whole; without
        any the storage is emptied.
        """
        torn, whole = log.torn()
        try:
            log.resume()
            self._mend(torn)
            if torn and whole >= 0:
                width = columns_count((1, *self.columns))
                row = self.prepare(self._read_run(Run(whole * width, width, self.columns)), single=True)
                for number in torn:
                    self._store_run(number, row, 0)
            log.settle(torn)
            if torn and whole < 0:
                self.empty()
        finally:
            log.stop()
        if warn:
            warnings.warn(
                "A write to this storage was broken off, perhaps because its process was killed: what it was "
                f"writing is lost, and so are the {len(torn)} row(s) that it was to replace, which are now "
                "copies of another one. Slices do not go across the gap.",
                RuntimeWarning,
                stacklevel=3,
            )

    def _mend(self, torn: list[int]) -> None:
        """Put bookkeeping right that an unfinished write may have left half done. O(rows).

        Args:
            torn: rows whose content is to be counted as nothing; so is what lies beyond the valid rows.
        """

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Store items at given places. O(B * bytes of an item).

        Args:
            cursor: a row (``data`` is one time row, without a time dimension), or rows: a range, list, slice
                or int64 tensor ``[B]``; with ``set_cursor=False`` any index of items that are there.
            data: what to store.
            set_cursor: these rows are new ones, written in this order: the cursor goes behind them and rows
                next to the last written ones become valid. False: content is replaced, places are kept.

        Raises:
            IndexError: a row is out of range, or would leave rows before it that were never written.
            ValueError: the data does not fit; nothing has been written.

        Example:
            >>> import torch
            >>> from replaybank import LazyTensorStorage
            >>> storage = LazyTensorStorage(4)
            >>> storage.set(range(3), {"x": torch.arange(3)})
            >>> storage.set(1, {"x": torch.tensor(7)}, set_cursor=False)  # the same as storage[1] = ...
            >>> storage[:]["x"], storage.log.cursor
            (tensor([0, 7, 2]), 3)
        """
        if not set_cursor:
            self[cursor] = data
            return
        if isinstance(cursor, int) or (isinstance(cursor, Tensor) and cursor.ndim == 0):
            self.write(int(cursor), self.prepare(data, single=True))
            return
        batch = self.prepare(data)
        rows = as_index(range(*cursor.indices(self.rows)) if isinstance(cursor, slice) else cursor).reshape(
            -1
        )
        if rows.dtype == torch.bool:
            raise TypeError("New rows are given by their numbers, not by a mask.")
        if rows.numel() != batch.rows:
            raise ValueError(f"{rows.numel()} rows were given for {batch.rows} rows of data.")
        if not batch.rows:
            return
        runs = _runs(rows.cpu(), self.rows)
        reach = self.log.length
        for start, count in runs:
            if not 0 <= start <= reach or start == self.rows:
                raise IndexError(
                    f"Cannot write at row {start}: {reach} of {self.rows} rows will have been written."
                )
            reach = self.rows if start + count >= self.rows else max(reach, start + count)
        done = 0
        for start, count in runs:
            self.write(start, batch if count == batch.rows else self._part(batch, done, count))
            done += count

    @abstractmethod
    def _part(self, batch: Batch, first: int, count: int) -> Batch:
        """Rows ``first, first + 1, ...`` of a batch that is not single."""

    def __setitem__(self, index: Any, data: Any) -> None:
        """Replace items that are there; they keep their places. O(B * bytes of an item)."""
        log = self.log
        target = self._resolve(index)
        try:
            self._store_items(target, data)
            log.touch(self._rows_of(target))
            log.commit()
        except BaseException as error:
            self._give_up(log, error)
            raise

    # --- reading ---------------------------------------------------------------------------------------

    @abstractmethod
    def _read_run(self, run: Run) -> Any:
        """Items that are there."""

    @abstractmethod
    def _read_items(self, items: Tensor) -> Any:
        """Items by number, negative ones from the end; checks them."""

    def _resolve(self, index: Any) -> Run | Tensor:
        if not self.initialized:
            raise IndexError("Nothing has been written to this storage yet.")
        return resolve(index, self.shape)

    def get(self, index: Any) -> Any:
        """Items. O(B * bytes of an item).

        Args:
            index: int, slice, range, list, NumPy or torch integers, a bool mask over ``shape``, or, for more
                dimensions, a tuple of these; on the first dimension alone it takes all columns.

        Raises:
            IndexError: out of range, or never written.

        Example:
            >>> import torch
            >>> from replaybank import TensorStorage
            >>> storage = TensorStorage(torch.arange(10))
            >>> storage.get(-1), storage.get([0, 3]), storage.get(slice(8, None))
            (tensor(9), tensor([0, 3]), tensor([8, 9]))
        """
        log = self._log
        if log.unfinished:
            self._make_good(log, warn=True)
        if self.ndim == 1 and type(index) is Tensor and index.dtype is torch.int64 and self.initialized:
            return self._read_items(index)
        target = self._resolve(index)
        return self._read_run(target) if isinstance(target, Run) else self._read_items(target)

    def __getitem__(self, index: Any) -> Any:
        return self.get(index)

    # --- state -----------------------------------------------------------------------------------------

    def empty(self) -> None:
        """Forget all items; capacity and structure stay. O(1)."""
        self.log.clear()

    @abstractmethod
    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        """The state as tensors and plain values. O(N), or O(rows) without copies.

        Args:
            copy: False gives views of the items where there can be such, to be saved at once: they are right
                only as long as nobody writes, and take no memory of their own.
        """

    def state_to_save(self) -> dict[str, Any]:
        """The state for a checkpoint, with views of the items where there can be such.

        As ``checkpoint.Rows`` where the log tells what has changed since an earlier save.
        """
        # A storage of a user's own may know nothing of copies.
        views = "copy" in inspect.signature(self.state_dict).parameters
        return self.state_dict(copy=False) if views else self.state_dict()

    def move_of(self, state_dict: Mapping[str, Any]) -> Move | None:
        """Where the rows of a state come to lie when this storage loads it; None: where they were. O(1).

        Args:
            state_dict: what :meth:`state_dict` gave.

        Raises:
            ValueError: there are more than this storage has room for.
        """
        return None

    @abstractmethod
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state; ``state_dict`` stays the caller's. O(N).

        Args:
            state_dict: what :meth:`state_dict` gave.

        Raises:
            ValueError: the state does not fit; nothing has been changed.
        """

    def _facts(self) -> dict[str, Any]:
        """What its repr tells; from the log as it is, as the lock may be another's."""
        told: dict[str, Any] = {"max_size": self.max_size, "len": len(self)}
        if self.columns:
            told["columns"] = list(self.columns)
        elif self.ndim > 1:
            told["ndim"] = self.ndim
        return told if self.device is None else {**told, "device": showing.Words(self.device)}

    def __repr__(self) -> str:
        return showing.text_of(self)

    def _repr_html_(self) -> str:
        return showing.html_of(self)


def entry(state: Any, name: str, kind: type[T]) -> T:
    """An entry of a storage's state.

    Raises:
        DataFormatError: it is not there, or of another type.
    """
    value = state.get(name) if isinstance(state, Mapping) else None
    if not isinstance(value, kind):
        there = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise DataFormatError(
            f"This is no state of such a storage, or it is damaged: {name!r} must be a {kind.__name__}, got "
            f"{value!r:.80}; there is {there!s:.200}. Nothing has been changed."
        )
    return value


def _runs(rows: Tensor, size: int) -> list[tuple[int, int]]:
    """Consecutive rows, modulo ``size``, as runs of at most ``size``."""
    numbers = rows.tolist()
    runs: list[list[int]] = []
    for number in numbers:
        if runs and (runs[-1][0] + runs[-1][1]) % size == number and runs[-1][1] < size:
            runs[-1][1] += 1
        else:
            runs.append([number, 1])
    return [(start, count) for start, count in runs]
