"""Rows of Parquet files: only those asked for, in bounded memory, with our errors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from replaybank.datasets.openx.sources.files import is_url, open_binary, size_of
from replaybank.errors import DataFormatError

BATCH_BYTES: Final = 1 << 23
"""Decoded at a time, as far as the file's own figures can be trusted."""
MAX_BATCH_ROWS: Final = 4096
FREE_BYTES: Final = 1 << 26
EXPANSION: Final = 16
"""An episode may take 64 MiB, or 16 times its file: real columns never compress better, bombs do."""
_LIMITS: Final[dict[str, Any]] = {
    "thrift_string_size_limit": 1 << 27,  # of the file's description of itself, before it is believed
    "thrift_container_size_limit": 1 << 22,
    "page_checksum_verification": True,
}


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow: pip install 'replaybank[openx]'") from error
    return pyarrow, pyarrow.parquet


@contextmanager
def open_parquet(path: str, texts: Sequence[str] = ()) -> Iterator[Any]:
    """A ``pyarrow.parquet.ParquetFile``. Whatever pyarrow finds wrong in the body is ours afterwards.

    Args:
        path: file or URL.
        texts: columns whose repeated strings are kept once.

    Raises:
        OSError: the file cannot be opened or read.
        DataFormatError: it is damaged or no Parquet file.
        ImportError: pyarrow is not installed.
    """
    pa, pq = _pyarrow()
    with open_binary(path) as file:
        try:
            where = file if is_url(path) else os.path.abspath(path)
            parquet = pq.ParquetFile(where, **_LIMITS)
            schema = parquet.schema
            columns = {schema.column(i).path for i in range(len(schema.names))}
            once = [name for name in texts if name in columns]  # others are an error to it
            if once:
                parquet = pq.ParquetFile(where, metadata=parquet.metadata, read_dictionary=once, **_LIMITS)
            with parquet:
                yield parquet
        except DataFormatError:
            raise
        except (pa.ArrowException, OSError, MemoryError, ValueError, KeyError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno:
                raise  # of the disk or the network, not of the file
            what = "needs more memory than there is" if isinstance(error, MemoryError) else "is damaged"
            raise DataFormatError(f"{path} {what}, or no Parquet file: {str(error) or 'empty'}") from error


def row_batches(file: Any, path: str, columns: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
    """All rows as plain values, some at a time.

    Raises:
        DataFormatError: the columns need far more memory than the file has bytes.
    """
    names = [name for name in columns if name in file.schema_arrow.names]
    limit = FREE_BYTES + EXPANSION * (size_of(path) or 0)
    for batch in file.iter_batches(batch_size=_batch_rows(file), columns=names):
        if batch.nbytes > limit:
            raise DataFormatError(f"{path} expands to {batch.nbytes} bytes, which no real file does")
        yield batch.select([name for name in names if name in batch.schema.names]).to_pylist()


def read_rows(
    path: str, ranges: Sequence[tuple[int, int]], columns: Sequence[str] | None, texts: Sequence[str] = ()
) -> Iterator[Any]:
    """Ranges of rows as ``pyarrow.Table``, one after the other; the groups between them are not read.

    O(rows from the first one's group to the last), in the memory of one range and one batch.

    Args:
        path: file or URL.
        ranges: first row and the row to stop before, each; none empty, later ones behind earlier ones.
        columns: to read; ``None`` for all. Absent ones are left out.
        texts: columns whose repeated strings are kept once.

    Raises:
        DataFormatError: the file is damaged, ends before a range does, or expands beyond reason.
        OSError: it cannot be read.
    """
    pa, _ = _pyarrow()
    if not ranges:
        return
    with open_parquet(path, texts) as file:
        rows = file.metadata.num_rows
        stop = max(stop for _, stop in ranges)
        if stop > rows:
            raise DataFormatError(f"{path} has {rows} rows; row {stop - 1} is wanted")
        there = file.schema_arrow.names
        names = None if columns is None else [name for name in columns if name in there]
        limit = FREE_BYTES + EXPANSION * (size_of(path) or 0)
        groups, at = _groups(file, ranges)
        batches = file.iter_batches(batch_size=_batch_rows(file), row_groups=groups, columns=names)
        batch, used = None, 0
        for first, last in ranges:
            parts = []
            size = 0
            while at < last:
                if batch is None or used == batch.num_rows:
                    batch, used = next(batches, None), 0
                    if batch is None:
                        raise DataFormatError(f"{path} ends at row {at}; row {last - 1} is wanted")
                    continue
                skip = min(max(first - at, 0), batch.num_rows - used)
                take = min(last - at - skip, batch.num_rows - used - skip)
                if take:
                    part = batch.slice(used + skip, take)
                    parts.append(part)
                    size += part.nbytes
                    if size > limit:
                        raise DataFormatError(
                            f"{path}: rows {first} to {last} expand to more than {limit} bytes, "
                            "which no real file does"
                        )
                at, used = at + skip + take, used + skip + take
            yield pa.Table.from_batches(parts)


def _groups(file: Any, ranges: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
    """The row groups from the first row wanted to the last one, and the first row of them."""
    first, last = min(start for start, _ in ranges), max(stop for _, stop in ranges)
    groups: list[int] = []
    begin, at = 0, 0
    for number in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(number).num_rows
        if rows > 0 and at < last and at + rows > first:
            if not groups:
                begin = at
            groups.append(number)
        at += rows
    return groups, begin


def _batch_rows(file: Any) -> int:
    """Rows that take about :data:`BATCH_BYTES`, by the file's own figures."""
    groups = range(file.metadata.num_row_groups)
    size = sum(max(0, file.metadata.row_group(i).total_byte_size) for i in groups)
    a_row = max(1, size // max(1, file.metadata.num_rows))
    return int(min(MAX_BATCH_ROWS, max(1, BATCH_BYTES // a_row)))
