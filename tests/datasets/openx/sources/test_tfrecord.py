from __future__ import annotations

import io
import os
import random
import struct
import threading
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference import tfrecord as twin
from replaybank import _native
from replaybank.datasets.openx.sources.tfrecord import (
    ROOM,
    SMALL_RECORD,
    Record,
    TFRecordWriter,
    read_records,
    write_record,
)
from replaybank.errors import CorruptRecordError
from shared_data import bridge_path


class Stream:
    """A source that cannot seek and gives at most `piece` bytes a call, like a socket."""

    def __init__(self, data: bytes, piece: int) -> None:
        self.file = io.BytesIO(data)
        self.piece = piece

    def read(self, size: int = -1, /) -> bytes:
        return self.file.read(self.piece if size < 0 else min(size, self.piece))


class Seekable(Stream):
    """The same, of a known size."""

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()


@contextmanager
def forms_of(path: Path, block: int = 4096) -> Iterator[list[Any]]:
    """A file in every form in which it can be given."""
    data = path.read_bytes()
    with path.open("rb") as buffered, path.open("rb", buffering=0) as raw:
        yield [
            *(path, buffered, raw, io.BytesIO(data)),
            *(Stream(data, 1 << 30), Stream(data, 999), Seekable(data, 1 << 30), Seekable(data, 1001)),
        ]
        assert not buffered.closed
        assert not raw.closed


def outcome(source: Any, **arguments: Any) -> tuple[list[Record], tuple[int, int, str] | None]:
    """The records that were given, and the record, offset and reason of the error behind them."""
    found: list[Record] = []
    try:
        found.extend(read_records(source, path="shard", **arguments))
    except CorruptRecordError as error:
        return found, (error.record, error.offset, error.reason)
    return found, None


def payloads_of(sizes: Sequence[int]) -> list[bytes]:
    rng = random.Random(0)
    return [rng.randbytes(size) for size in sizes]


PAYLOADS = [b"", b"a", b"seven..", b"x" * 100, b"", b"y" * 33]
SMALL = b"".join(map(write_record, PAYLOADS))
OFFSETS = [sum(16 + len(p) for p in PAYLOADS[:i]) for i in range(len(PAYLOADS) + 1)]


def record_at(position: int) -> int:
    return next(i for i in range(len(PAYLOADS)) if position < OFFSETS[i + 1])


@given(st.lists(st.binary(max_size=200), max_size=20), st.integers(1, 300), st.integers(1, 70))
def test_what_was_written_is_read_whatever_the_blocks(payloads: list[bytes], block: int, piece: int) -> None:
    file = io.BytesIO()
    writer = TFRecordWriter(file)
    for payload in payloads:
        writer.write(payload)
    data = file.getvalue()
    assert data == b"".join(map(twin.frame, payloads))
    assert writer.payload_bytes == sum(map(len, payloads))
    expected = [Record(i, at, payload) for i, (at, payload) in enumerate(twin.read_file(data))]
    assert list(read_records(io.BytesIO(data), block_size=block)) == expected
    assert list(read_records(Stream(data, piece), block_size=block)) == expected


@pytest.mark.parametrize("start", range(len(PAYLOADS) + 1))
def test_reading_starts_at_the_record_asked_for(start: int) -> None:
    for source in (io.BytesIO(SMALL), Stream(SMALL, 7)):
        found = list(read_records(source, start=start))
        assert [r.payload for r in found] == PAYLOADS[start:]
        assert [r.offset for r in found] == OFFSETS[start:-1]
        assert [r.number for r in found] == list(range(start, len(PAYLOADS)))


def test_starting_beyond_the_last_record_says_how_many_there_are() -> None:
    with pytest.raises(IndexError, match="has 6 records, cannot start at record 7"):
        list(read_records(io.BytesIO(SMALL), start=7))


def test_a_negative_start_is_refused() -> None:
    with pytest.raises(ValueError, match="start must not be negative, got -1"):
        list(read_records(io.BytesIO(SMALL), start=-1))


@pytest.mark.parametrize("block", [16, 64, 1 << 20])
def test_a_flipped_bit_is_found_at_every_byte_and_its_record_named(block: int) -> None:
    """C88, flipped bytes."""
    for position in range(len(SMALL)):
        damaged = bytearray(SMALL)
        damaged[position] ^= 1 << (position % 8)
        record = record_at(position)
        for source in (io.BytesIO(damaged), Stream(bytes(damaged), 50)):
            with pytest.raises(CorruptRecordError) as error:
                list(read_records(source, path="shard", block_size=block))
            assert error.value.path == "shard"
            assert (error.value.record, error.value.offset) == (record, OFFSETS[record])
            within = position - OFFSETS[record]
            assert ("checksum of its length" in error.value.reason) == (within < 12)


@pytest.mark.parametrize("block", [16, 1 << 20])
def test_a_file_cut_inside_a_record_is_found_at_every_position(block: int) -> None:
    """C88, files cut short."""
    for size in range(len(SMALL)):
        for source in (io.BytesIO(SMALL[:size]), Stream(SMALL[:size], 50)):
            given_before: list[Record] = []
            if size in OFFSETS:  # whole records: only a declared count can miss the others
                assert len(list(read_records(source, block_size=block))) == OFFSETS.index(size)
                continue
            with pytest.raises(CorruptRecordError, match="cut short") as error:
                given_before.extend(read_records(source, block_size=block))
            assert error.value.record == record_at(size)
            assert error.value.offset == OFFSETS[record_at(size)]
            assert [r.payload for r in given_before] == PAYLOADS[: record_at(size)]


def test_a_file_cut_inside_a_record_that_is_stepped_over_is_found() -> None:
    for size in range(OFFSETS[3] + 1, OFFSETS[4]):
        for source in (io.BytesIO(SMALL[:size]), Stream(SMALL[:size], 50)):
            with pytest.raises(CorruptRecordError, match="cut short") as error:
                list(read_records(source, start=5))
            assert error.value.record == 3


def test_one_can_go_on_after_a_corrupt_payload() -> None:
    damaged = bytearray(SMALL)
    damaged[OFFSETS[3] + 50] ^= 1
    with pytest.raises(CorruptRecordError) as error:
        list(read_records(io.BytesIO(damaged)))
    after = read_records(io.BytesIO(damaged), start=error.value.record + 1)
    assert [r.payload for r in after] == PAYLOADS[4:]


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**40, 2**31])
@pytest.mark.parametrize("true_checksum", [False, True])
@pytest.mark.parametrize("start", [0, 3])
def test_an_absurd_length_allocates_nothing(length: int, true_checksum: bool, start: int) -> None:
    """C88, lengths."""
    header = struct.pack("<Q", length)
    checksum = struct.pack("<I", twin.masked_crc(header) if true_checksum else 0)
    data = SMALL[: OFFSETS[2]] + header + checksum + b"z" * 500
    tracemalloc.start()
    for source in (io.BytesIO(data), Stream(data, 100)):
        with pytest.raises(CorruptRecordError) as error:
            list(read_records(source, start=start, block_size=4096))
        assert (error.value.record, error.value.offset) == (2, OFFSETS[2])
    assert tracemalloc.get_traced_memory()[1] < 500_000
    tracemalloc.stop()


def test_a_record_larger_than_a_block_is_read_whole() -> None:
    payloads = [bytes([i]) * size for i, size in enumerate((10, 100_000, 5, 70_000, 4096 - 12, 4096))]
    data = b"".join(map(write_record, payloads))
    for source in (io.BytesIO(data), Stream(data, 1000)):
        assert [r.payload for r in read_records(source, block_size=4096)] == payloads


EDGES = [0, 1, 15, SMALL_RECORD - 1, SMALL_RECORD, SMALL_RECORD + 1, ROOM - 17, ROOM - 16, ROOM - 15]
EDGES += [ROOM - 1, ROOM, ROOM + 1, 3 * ROOM + 5]


@pytest.mark.parametrize("order", [EDGES, EDGES[::-1], [*EDGES[::2], *EDGES[1::2]], [5, *EDGES[-1:], 5]])
def test_records_of_every_size_around_the_limits_are_read_as_the_twin_reads_them(
    order: list[int], tmp_path: Path
) -> None:
    data = b"".join(map(write_record, payloads_of(order)))
    (tmp_path / "x").write_bytes(data)
    expected = [Record(i, at, payload) for i, (at, payload) in enumerate(twin.read_file(data))]
    assert len(expected) == len(order)
    for block in (16, 4096, 1 << 20):
        with forms_of(tmp_path / "x") as sources:
            for source in sources:
                assert outcome(source, block_size=block) == (expected, None)
    for start in range(len(order) + 1):
        with forms_of(tmp_path / "x") as sources:
            for source in sources:
                assert outcome(source, start=start) == (expected[start:], None)


def test_the_room_of_small_records_may_end_at_any_byte_of_a_record(tmp_path: Path) -> None:
    quarter = ROOM // 4
    for short in range(50):
        before = [quarter - 16] * 3 + [ROOM - 3 * quarter - 16 - short]
        for then in ([7, 0, 9], [70_000, 3], [SMALL_RECORD + 1]):
            payloads = payloads_of([*before, *then])
            data = b"".join(map(write_record, payloads))
            (tmp_path / "x").write_bytes(data)
            for source in (tmp_path / "x", io.BytesIO(data), Stream(data, 10_000)):
                assert [record.payload for record in read_records(source)] == payloads


MIXED = [10, 0, 50_000, 3, SMALL_RECORD, SMALL_RECORD + 1, 40, ROOM, 200, 3]


def test_a_file_cut_anywhere_in_small_and_large_records_names_the_right_one(tmp_path: Path) -> None:
    payloads = payloads_of(MIXED)
    data = b"".join(map(write_record, payloads))
    records = [Record(i, at, payload) for i, (at, payload) in enumerate(twin.read_file(data))]
    for number, (_, offset, payload) in enumerate(records):
        end = offset + 16 + len(payload)
        for size in {*range(offset + 1, offset + 20), offset + len(payload) // 2, *range(end - 20, end)}:
            if not offset < size < end:
                continue
            (tmp_path / "x").write_bytes(data[:size])
            have, wanted = size - offset, len(payload) + 4
            reason = (
                f"cut short: {have} bytes of its 12-byte header are there"
                if have < 12
                else f"cut short: {wanted} bytes should follow its header, {have - 12} do"
            )
            with forms_of(tmp_path / "x") as sources:
                for source in sources:
                    assert outcome(source) == (records[:number], (number, offset, reason))


def test_a_wrong_byte_anywhere_in_small_and_large_records_names_the_right_one(tmp_path: Path) -> None:
    payloads = payloads_of(MIXED)
    data = b"".join(map(write_record, payloads))
    records = [Record(i, at, payload) for i, (at, payload) in enumerate(twin.read_file(data))]
    for number, (_, offset, payload) in enumerate(records):
        end = offset + 16 + len(payload)
        for at in {
            0,
            7,
            8,
            11,
            12,
            12 + len(payload) // 2,
            end - offset - 5,
            end - offset - 4,
            end - offset - 1,
        }:
            damaged = bytearray(data)
            damaged[offset + at] ^= 0x40
            (tmp_path / "x").write_bytes(damaged)
            stored = damaged[offset + 8 : offset + 12] if at < 12 else damaged[end - 4 : end]
            checked = damaged[offset : offset + 8] if at < 12 else damaged[offset + 12 : end - 4]
            told = f"is {int.from_bytes(stored, 'little'):#010x}, its"
            gives = f"bytes give {masked(bytes(checked)):#010x}"
            with forms_of(tmp_path / "x") as sources:
                for source in sources:
                    given_before, error = outcome(source)
                    assert given_before == records[:number]
                    assert error is not None
                    assert error[:2] == (number, offset)
                    assert told in error[2]
                    assert error[2].endswith(gives)
                    assert ("checksum of its length" in error[2]) == (at < 12)


def masked(content: bytes) -> int:
    """As the writer does it: the twin, which the writer is compared with, takes long for large records."""
    return int.from_bytes(write_record(content)[-4:], "little")


def test_a_pipe_is_read_as_it_is_filled() -> None:
    payloads = payloads_of(MIXED)
    read_end, write_end = os.pipe()

    def fill() -> None:
        with os.fdopen(write_end, "wb") as pipe:
            for payload in payloads:
                pipe.write(write_record(payload))

    thread = threading.Thread(target=fill)
    thread.start()
    with os.fdopen(read_end, "rb", buffering=0) as pipe:
        assert [record.payload for record in read_records(pipe)] == payloads
    thread.join()


def test_no_record_is_kept_while_the_next_one_is_read(tmp_path: Path) -> None:
    size = 4 << 20
    with (tmp_path / "x").open("wb") as file:
        for payload in payloads_of([size] * 5):
            file.write(write_record(payload))
    tracemalloc.start()
    sizes = list(map(lambda record: len(record.payload), read_records(tmp_path / "x")))  # noqa: C417  # nor here
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sizes == [size] * 5
    assert peak < 1.5 * size


def test_what_is_no_file_is_asked_in_blocks_and_no_more_often_than_they_need() -> None:
    class Counted(Stream):
        calls = 0

        def read(self, size: int = -1, /) -> bytes:
            self.calls += 1
            return super().read(size)

    data = b"".join(map(write_record, payloads_of([1000] * 3000 + [50_000] * 60)))
    source = Counted(data, 1 << 30)
    assert len(list(read_records(source))) == 3060
    assert source.calls <= len(data) // (1 << 20) + 3


@given(st.lists(st.binary(max_size=60), max_size=5), st.binary(max_size=40), st.integers(0, 400))
def test_records_are_cut_from_a_buffer_as_the_twin_cuts_them(
    payloads: list[bytes], more: bytes, size: int
) -> None:
    buffer = bytearray(b"".join(map(twin.frame, payloads)) + more)
    assert _native.cut_records(buffer, size) == twin.cut(bytes(buffer[:size]))
    assert _native.cut_records(buffer, len(buffer)) == twin.cut(bytes(buffer))


def test_a_buffer_of_more_records_than_are_looked_at_in_one_go_is_cut_to_its_end() -> None:
    for count in (63, 64, 65, 128, 1000):
        buffer = bytearray(b"".join(map(write_record, [b"ab", b""] * count)))
        assert _native.cut_records(buffer, len(buffer)) == twin.cut(bytes(buffer))
        assert _native.cut_records(buffer, len(buffer) - 1) == twin.cut(bytes(buffer[:-1]))


def test_a_path_is_opened_and_named_in_errors(tmp_path: Path) -> None:
    path = tmp_path / "x.tfrecord"
    path.write_bytes(SMALL)
    assert [r.payload for r in read_records(path)] == PAYLOADS
    path.write_bytes(SMALL[:-1])
    with pytest.raises(CorruptRecordError, match=r"x\.tfrecord: record 5 at byte 188: cut short: 37 .* 36"):
        list(read_records(str(path)))


def test_the_real_file_passes_each_of_its_fifty_checksums_and_is_written_again_byte_for_byte() -> None:
    path = bridge_path() / "bridge_dataset-train.tfrecord-00000-of-00001"
    data = path.read_bytes()
    assert twin.crc32c(b"123456789") == 0xE3069283
    records = list(read_records(path))
    assert len(records) == 25
    assert b"".join(write_record(record.payload) for record in records) == data
    assert sum(len(record.payload) for record in records) == 3474742
    for record in records:
        header = data[record.offset : record.offset + 8]
        stored = struct.unpack_from("<I", data, record.offset + 8)[0]
        assert twin.masked_crc(header) == stored
        stored = struct.unpack_from("<I", data, record.offset + 12 + len(record.payload))[0]
        assert twin.masked_crc(record.payload) == stored
