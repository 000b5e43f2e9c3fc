from __future__ import annotations

import io
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference import tfrecord as twin
from replaybank.datasets.openx.sources.tfrecord import Record, TFRecordWriter, read_records, write_record
from replaybank.errors import CorruptRecordError
from shared_data import bridge_path


class Stream:
    """A source that cannot seek and gives at most `piece` bytes a call, like a socket."""

    def __init__(self, data: bytes, piece: int) -> None:
        self.file = io.BytesIO(data)
        self.piece = piece

    def read(self, size: int = -1, /) -> bytes:
        return self.file.read(self.piece if size < 0 else min(size, self.piece))


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
