"""Files of a checkpoint: tensors' bytes out and in, checksums, and what a file must be to be read."""

from __future__ import annotations

import errno
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from uuid import uuid4

import torch
from torch import Tensor

from replaybank.errors import DataFormatError
from replaybank.progress import moved

A = TypeVar("A")
B = TypeVar("B")

CHUNK = 1 << 22  # bytes of rows put together or read at a time
STEP = 1 << 20  # bytes read, written and summed at a time: large beside a system call, in cache when summed
_LONGEST = 128  # bytes of a name that another one has in it: file systems allow 255
_WORKERS = min(4, os.cpu_count() or 1)
MAX_DIMS = 64  # torch's own limit on the dimensions of a tensor that its iterators accept

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
        *(torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
        *(torch.float8_e4m3fn, torch.float8_e5m2),
    )
}

# What link() says where a file cannot be had under a second name: another file system, one without links,
# too many links, somebody else's file.
_NO_LINK = frozenset(
    getattr(errno, name)
    for name in ("EXDEV", "EPERM", "EACCES", "EMLINK", "ENOSYS", "EOPNOTSUPP", "ENOTSUP", "EINVAL")
)


def in_parallel(work: Callable[[A], B], jobs: Sequence[A]) -> list[B]:
    """Reading, writing and checksums let other threads run: two files take about half the time."""
    if len(jobs) < 2:
        return [work(job) for job in jobs]
    with ThreadPoolExecutor(min(_WORKERS, len(jobs)), thread_name_prefix="replaybank-checkpoint") as pool:
        # Each in a copy of the caller's context, which knows whom to tell of the progress.
        done = [pool.submit(copy_context().run, work, job) for job in jobs]
        try:
            return [one.result() for one in done]
        except BaseException:
            for one in done:
                one.cancel()
            raise


def fsync_directory(path: str | os.PathLike[str]) -> None:
    """Have the names in a directory on the disk: without it, a file made or renamed may be lost."""
    if os.name == "nt":  # a directory cannot be opened there; renames are journalled
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link(old: Path, new: Path) -> bool:
    """Give a file a second name; False where the file system cannot."""
    try:
        os.link(old, new)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return False
    return True


def write_blocks(path: Path, blocks: Iterator[Tensor]) -> tuple[int, int]:
    """Write contiguous CPU tensors one behind the other into a new file, and have it on the disk.

    Returns:
        Its size in bytes and its checksum.
    """
    size, checksum = 0, 0
    memory = memoryview(bytearray(STEP))
    with open(path, "xb", buffering=0) as out:
        for block in blocks:
            content = bytes_of(block)
            while content:
                piece = memory[: min(STEP, len(content))]
                piece[:] = content[: len(piece)]  # a copy: summed and written bytes are then the same ones
                checksum = zlib.crc32(piece, checksum)
                written = 0
                while written < len(piece):
                    written += out.write(piece[written:])
                size += len(piece)
                content = content[len(piece) :]
                moved(len(piece))
        os.fsync(out.fileno())
    return size, checksum


def blocks_of(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor in contiguous CPU pieces along its first dimension, so that a strided one is not doubled."""
    if tensor.numel() == 0:
        return
    if tensor.dim() == 0 or (tensor.is_contiguous() and tensor.device.type == "cpu"):
        yield tensor.resolve_conj().resolve_neg().cpu().contiguous()
        return
    rows = rows_in_chunk(tensor[0].numel() * tensor.element_size())
    for start in range(0, tensor.shape[0], rows):
        yield tensor[start : start + rows].resolve_conj().resolve_neg().cpu().contiguous()


def rows_in_chunk(row_bytes: int) -> int:
    """How many rows are handled at a time, at least one."""
    return max(1, CHUNK // max(1, row_bytes))


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor; of one without elements, none."""
    if tensor.numel() == 0:
        return memoryview(b"")
    # A contiguous tensor may have any stride along a dimension of size 1; a view as bytes wants it to be 1.
    array: Any = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
    return memoryview(array)


def regular_file(path: Path, size: int) -> Any:
    """Open a file that must be a plain one of ``size`` bytes.

    Raises:
        DataFormatError: it is missing, no plain file, or of another size; it is named.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        raise DataFormatError(f"{path} is missing from the checkpoint.") from None
    if not stat.S_ISREG(found.st_mode):
        raise DataFormatError(f"{path} is no plain file.")
    if found.st_size != size:
        raise DataFormatError(
            f"{path} has {found.st_size} bytes and should have {size}: cut short or damaged."
        )
    return open(path, "rb", buffering=0)


def read_into(path: Path, size: int, crc32: int, memory: memoryview) -> None:
    """Read a whole file into memory of its size, and compare its checksum.

    Raises:
        DataFormatError: it is not as it should be; it is named.
    """
    checksum = 0
    with regular_file(path, size) as source:
        while memory:
            count = source.readinto(memory[:STEP])
            if not count:
                raise DataFormatError(f"{path} was cut short while it was read.")
            checksum = zlib.crc32(memory[:count], checksum)
            memory = memory[count:]
            moved(count)
    if checksum != crc32:
        raise DataFormatError(f"{path} is damaged: its checksum is wrong.")


def check_file(path: Path, size: int, crc32: int, *, bools: Sequence[slice] = (), row_bytes: int = 1) -> None:
    """Read a whole file and compare its checksum. O(bytes); takes no memory.

    Args:
        path: the file.
        size: bytes that it must have, a multiple of ``row_bytes``.
        crc32: checksum that it must have.
        bools: which bytes of a row must be 0 or 1.
        row_bytes: bytes of a row.

    Raises:
        DataFormatError: it is not as it should be; it is named.
    """
    checksum, left = 0, size
    memory = bytearray(min(max(STEP // row_bytes, 1) * row_bytes, size))
    with regular_file(path, size) as source:
        while left:
            part = memoryview(memory)[:left]
            fill(source, part, path)
            checksum = zlib.crc32(part, checksum)
            if bools:
                rows = torch.frombuffer(memory, dtype=torch.uint8, count=len(part)).view(-1, row_bytes)
                if any(int(rows[:, which].max()) > 1 for which in bools):
                    raise no_bools(path)
            left -= len(part)
    if checksum != crc32:
        raise DataFormatError(f"{path} is damaged: its checksum is wrong.")


def fill(source: Any, memory: memoryview, path: Path) -> None:
    """Read as many bytes as there is memory; raises DataFormatError if there are fewer."""
    while memory:
        count = source.readinto(memory[:CHUNK])
        if not count:
            raise DataFormatError(f"{path} was cut short while it was read.")
        memory = memory[count:]
        moved(count)


def no_bools(path: Path) -> DataFormatError:
    """The error for a file of bools that holds something else."""
    return DataFormatError(f"{path} holds bytes that are no bools.")


def is_size(value: Any) -> bool:
    """Whether a value of a manifest can be a number of things."""
    return type(value) is int and 0 <= value < 1 << 63


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Replace a file in one step: whoever opens it finds the old content or the new one, whole.

    Of a link that to which it leads is replaced. What is no file, such as ``/dev/stdout`` or a pipe, is
    written to as it is. Nothing is left where the block raises.

    Args:
        path: of the file.

    Raises:
        OSError: it cannot be written; names the file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with replacing(Path(folder, "page")) as file:
        ...         _ = file.write(b"whole")
        ...     Path(folder, "page").read_bytes()
        b'whole'
    """
    target = Path(os.path.realpath(path))
    name = os.fsdecode(os.fsencode(target.name)[:_LONGEST])
    temporary = target.with_name(f".{name}.{uuid4().hex}.tmp")
    try:
        if path.exists() and not path.is_file():
            with open(path, "wb") as file:
                yield file
            return
        try:
            with open(temporary, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        fsync_directory(target.parent)
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(temporary)):
            error.filename, error.filename2 = str(path), None
        raise


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step, as :func:`replacing` does."""
    with replacing(path) as file:
        file.write(content)
