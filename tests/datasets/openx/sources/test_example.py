from __future__ import annotations

import math
import random
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference import tfrecord as twin
from reference.tfrecord import delimited, varint
from replaybank import _native
from replaybank.datasets.openx.sources.example import (
    DTYPE_CODES,
    KIND_FLOAT,
    KIND_INT64,
    FeatureValue,
    PayloadIndex,
    parse_example,
    serialize_example,
)
from replaybank.datasets.openx.sources.tfrecord import read_records
from replaybank.errors import DataFormatError
from shared_data import bridge_path

FLOAT32 = st.floats(width=32)
INT64 = st.integers(-(2**63), 2**63 - 1)
MISMATCH = -(2**63)


def same(found: FeatureValue, expected: twin.Feature) -> bool:
    if expected is None or found is None:
        return expected is None and found is None
    kind, values = expected
    if kind == "bytes":
        return found == values
    assert isinstance(found, np.ndarray)
    dtype = np.float32 if kind == "float" else np.int64
    # Python's floats do not keep what a NaN carries, so NaNs are only compared as such.
    return found.dtype == dtype and np.array_equal(
        found, np.array(values, dtype=dtype), equal_nan=kind == "float"
    )


def agree(payload: bytes) -> bool:
    """Whether the payload is well-formed, once both readers say the same of it."""
    try:
        expected = twin.parse_example(payload)
    except twin.BadPayload:
        with pytest.raises(DataFormatError):
            parse_example(payload)
        return False
    found = parse_example(payload)
    assert list(found) == list(expected)
    assert all(same(found[name], expected[name]) for name in expected)
    return True


def feature(kind: int, content: bytes) -> bytes:
    return delimited(2, delimited(kind, content))


def example(*entries: bytes) -> bytes:
    return delimited(1, b"".join(delimited(1, entry) for entry in entries))


def named(name: str, *parts: bytes) -> bytes:
    return delimited(1, name.encode()) + b"".join(parts)


FEATURES = st.dictionaries(
    st.text(max_size=12),
    st.one_of(
        st.none(),
        st.lists(st.binary(max_size=30), max_size=6),
        st.lists(FLOAT32, max_size=20).map(lambda v: np.array(v, dtype=np.float32)),
        st.lists(INT64, max_size=20).map(lambda v: np.array(v, dtype=np.int64)),
        st.lists(st.booleans(), max_size=20).map(lambda v: np.array(v, dtype=np.bool_)),
    ),
    max_size=8,
)


@given(FEATURES)
def test_what_was_serialised_is_parsed_and_the_twin_agrees(features: dict[str, Any]) -> None:
    payload = serialize_example(features)
    assert agree(payload)
    found = parse_example(payload)
    assert list(found) == list(features)
    for name, value in features.items():
        read = found[name]
        if isinstance(value, np.ndarray):
            assert isinstance(read, np.ndarray)
            np.testing.assert_array_equal(read, value)
        else:
            assert read == value


@given(st.binary(max_size=80))
def test_any_bytes_are_read_as_the_twin_reads_them(payload: bytes) -> None:
    agree(payload)


def seeds() -> list[bytes]:
    values = struct.pack("<3f", 1.0, -2.5, math.inf)
    return [
        serialize_example(
            {
                "steps/action": np.arange(6, dtype=np.float32),
                "steps/n": np.array([3, -1, 300, 2**40], dtype=np.int64),
                "steps/image": [b"\xff\xd8\xff", b"", b"\x89PNG"],
                "empty": None,
                "none": np.array([], dtype=np.float32),
            }
        ),
        example(
            named("unpacked", feature(2, b"".join(b"\x0d" + values[i : i + 4] for i in (0, 4, 8)))),
            named("ints", feature(3, b"".join(varint(1 << 3) + varint(v) for v in (5, -5, 1 << 62)))),
            named("twice", feature(2, delimited(1, values)), feature(2, delimited(1, values))),
            named("switch", feature(2, delimited(1, values)), feature(3, delimited(1, b"\x01\x02"))),
            named("twice", feature(1, delimited(1, b"last"))),
        ),
        varint(7 << 3 | 3) + varint(1 << 3 | 3) + varint(1 << 3 | 4) + varint(7 << 3 | 4)  # unknown groups
        + example(named("a", feature(3, delimited(1, varint(-1))))) + delimited(9, b"??")
        + example(named("b"), feature(1, delimited(1, b"unnamed"))),
    ]  # fmt: skip


@pytest.mark.parametrize("which", range(3))
def test_mutated_payloads_are_read_as_the_twin_reads_them_or_refused_by_both(which: int) -> None:
    draw = random.Random(which)
    seed = seeds()[which]
    assert agree(seed)
    well_formed = 0
    for _ in range(3000):
        data = bytearray(seed)
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(len(data))
            match draw.randrange(4):
                case 0:
                    data[at] = draw.randrange(256)
                case 1:
                    data[at] ^= 1 << draw.randrange(8)
                case 2:
                    del data[at : at + draw.randint(1, 4)]
                case _:
                    data[at:at] = draw.choice((b"\xff" * 9, b"\x80", b"\x00", data[at : at + 9]))
            if not data:
                break
        well_formed += agree(bytes(data))
    assert 100 < well_formed < 2900


def test_every_truncation_of_a_payload_is_read_as_the_twin_reads_it() -> None:
    for seed in seeds():
        for size in range(len(seed)):
            agree(seed[:size])


def test_a_malformed_payload_says_where() -> None:
    with pytest.raises(DataFormatError, match=r"not a tf\.train\.Example: malformed at its byte 2"):
        parse_example(b"\x0a\x05\x01")


def test_of_repeated_names_the_last_counts_and_lists_of_one_kind_merge() -> None:
    one, two = struct.pack("<f", 1), struct.pack("<f", 2)
    payload = example(
        named("x", feature(1, delimited(1, b"dropped"))),
        named("merged", feature(2, delimited(1, one)), feature(2, delimited(1, two))),
        named("switched", feature(2, delimited(1, one)), feature(3, varint(8) + varint(-7))),
        named("back", feature(2, delimited(1, one * 9)), feature(1, b""), feature(2, delimited(1, two))),
        named("x", feature(2, delimited(1, two))),
    )
    assert agree(payload)
    found = {name: np.asarray(value).tolist() for name, value in parse_example(payload).items()}
    assert found == {"x": [2.0], "merged": [1.0, 2.0], "switched": [-7], "back": [2.0]}


def test_features_that_come_in_two_messages_merge() -> None:
    payload = example(named("a", feature(3, varint(8) + varint(1)))) + example(named("b"))
    assert agree(payload)
    assert list(parse_example(payload)) == ["a", "b"]


@pytest.mark.parametrize(("depth", "good"), [(100, True), (101, False), (50_000, False)])
def test_unknown_groups_are_skipped_to_a_bounded_depth(depth: int, good: bool) -> None:
    group = varint(7 << 3 | 3) * depth + varint(7 << 3 | 4) * depth
    if depth < 1000:
        assert agree(group) == good
    else:
        with pytest.raises(DataFormatError):
            parse_example(group)


def test_many_entries_are_all_read() -> None:
    features: dict[str, Any] = {f"f{i}": np.array([i], dtype=np.int64) for i in range(1000)}
    assert {
        name: int(np.asarray(v)[0]) for name, v in parse_example(serialize_example(features)).items()
    } == {f"f{i}": i for i in range(1000)}


def test_a_real_payload_serialises_to_the_same_features() -> None:
    for record in read_records(bridge_path() / "bridge_dataset-train.tfrecord-00000-of-00001"):
        found = parse_example(record.payload)
        again = serialize_example(found)
        assert len(again) == len(record.payload)  # packed the same way, only the order of names is free
        expected = twin.parse_example(again)
        assert list(expected) == list(found)
        assert all(same(found[name], expected[name]) for name in found)


# ------------------------------------------------------------------------------- the index of known names


@given(FEATURES, st.lists(st.text(max_size=12), max_size=5), st.randoms(use_true_random=False))
def test_known_names_are_found_whatever_their_order(
    features: dict[str, Any], absent: list[str], draw: random.Random
) -> None:
    wanted = list(dict.fromkeys([*features, *absent]))
    draw.shuffle(wanted)
    index = PayloadIndex(wanted)
    payload = serialize_example(features)
    for row, which in zip(index.find(payload), index.order, strict=False):
        name = wanted[which]
        value = features.get(name)
        if value is None:
            assert row[:2] == [0, 0]
        else:
            kind = 1 if isinstance(value, list) else KIND_FLOAT if value.dtype == np.float32 else KIND_INT64
            assert row[:2] == [kind, len(value)]
    assert sorted(index.order) == list(range(len(wanted)))


def test_an_index_refuses_malformed_payloads() -> None:
    with pytest.raises(DataFormatError, match="malformed at its byte"):
        PayloadIndex(["a"]).find(b"\x0a\xff")


# ------------------------------------------------------------------------------------------- target dtypes


def decode(payload: bytes, dtype: str) -> tuple[int, npt.NDArray[Any]]:
    ((_, count, offset, length),) = PayloadIndex(["x"]).find(payload)
    out = np.empty(count, dtype=dtype)
    return _native.decode_numbers(payload, offset, length, DTYPE_CODES[out.dtype], out, count), out


@given(
    st.lists(st.one_of(INT64, st.integers(0, 1), st.integers(0, 127)), min_size=1, max_size=40), st.booleans()
)
def test_ints_are_decoded_into_every_int_dtype_or_the_first_that_does_not_fit_is_named(
    values: list[int], packed: bool
) -> None:
    content = b"".join(map(varint, values))
    listed = delimited(1, content) if packed else b"".join(varint(8) + varint(v) for v in values)
    payload = example(named("x", feature(3, listed)))
    for dtype in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"):
        info = np.iinfo(dtype)
        unfit = [i for i, value in enumerate(values) if not info.min <= value <= info.max]
        status, out = decode(payload, dtype)
        if unfit:
            assert status == -1 - unfit[0]
        else:
            assert status == len(values)
            assert out.tolist() == values
    assert decode(payload, "uint64")[1].tolist() == [value % 2**64 for value in values]
    assert decode(payload, "bool")[1].tolist() == [value != 0 for value in values]


@given(st.lists(FLOAT32, min_size=1, max_size=10), st.booleans())
def test_floats_are_decoded_into_every_float_dtype(values: list[float], packed: bool) -> None:
    stored = np.array(values, dtype=np.float32)
    listed = (
        delimited(1, stored.tobytes())
        if packed
        else b"".join(varint(1 << 3 | 5) + v.tobytes() for v in stored)
    )
    payload = example(named("x", feature(2, listed)))
    with np.errstate(over="ignore"):
        for dtype in ("float16", "float32", "float64"):
            status, out = decode(payload, dtype)
            assert status == len(values)
            np.testing.assert_array_equal(out, stored.astype(dtype))


def test_halves_are_rounded_to_nearest_even_everywhere() -> None:
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (halves[:-1] + halves[1:]) / 2
    edges = [halves, middles]
    for value in (halves, middles):
        edges += [np.nextafter(value, np.float32(np.inf)), np.nextafter(value, np.float32(-np.inf))]
    edge = np.concatenate([*edges, np.array([65519.996, 65520, 1e30, np.inf, 1e-40], dtype=np.float32)])
    values = np.concatenate([edge, -edge])
    status, out = decode(serialize_example({"x": values}), "float16")
    with np.errstate(over="ignore", under="ignore"):
        expected = values.astype(np.float16)
    assert status == len(values)
    assert out.tobytes() == expected.tobytes()


def test_nan_stays_nan_as_a_half() -> None:
    values = np.array([0x7F800001, 0x7FC00000, 0xFFFFFFFF], dtype=np.uint32).view(np.float32)
    assert np.isnan(decode(serialize_example({"x": values}), "float16")[1]).all()


def test_a_decoder_given_a_wrong_place_count_or_kind_writes_nothing_beyond_and_says_so() -> None:
    payload = serialize_example({"x": np.arange(8, dtype=np.float32)})
    ((_, count, offset, length),) = PayloadIndex(["x"]).find(payload)
    out = np.full(16, 7.0, dtype=np.float32)
    code = DTYPE_CODES[out.dtype]
    for bad in ((-1, length), (offset, 10**9), (10**9, 1), (offset, -1), (offset + 1, length - 1)):
        assert _native.decode_numbers(payload, *bad, code, out, count) == MISMATCH
        assert _native.decode_bytes(payload, *bad, out, 2) == MISMATCH
        assert _native.same_bytes(payload, *bad, 2) is None
    assert _native.decode_numbers(payload, offset, length, 99, out, count) == MISMATCH
    int64 = DTYPE_CODES[np.dtype("int64")]
    assert _native.decode_numbers(payload, offset, length, int64, out, 8) == MISMATCH
    assert (out == 7.0).all()
    assert _native.decode_numbers(payload, offset, length, code, out, 4) == MISMATCH
    assert (out[4:] == 7.0).all()
    assert _native.decode_numbers(payload, offset, length, code, out, 9) == MISMATCH
    assert (out[8:] == 7.0).all()


def test_a_decoder_given_too_little_room_writes_nothing() -> None:
    payload = serialize_example({"x": np.arange(8, dtype=np.float32), "y": [b"a", b"b"]})
    (_, count, offset, length), (_, texts, texts_at, texts_length) = PayloadIndex(["x", "y"]).find(payload)
    out = np.full(8, 7.0, dtype=np.float32)
    for code in (*DTYPE_CODES.values(), 99, -1):
        assert _native.decode_numbers(payload, offset, length, code, out[:0], count) == MISMATCH
        assert _native.decode_numbers(payload, offset, length, code, out, 2**62) == MISMATCH
    assert _native.decode_numbers(payload, offset, length, 10, out[:7], count) == MISMATCH
    assert _native.decode_bytes(payload, texts_at, texts_length, out[:7], texts) == MISMATCH
    assert (out == 7.0).all()
    with pytest.raises(ValueError, match="read-only"):
        _native.decode_numbers(payload, offset, length, 10, np.frombuffer(payload, np.uint8), count)
    with pytest.raises(ValueError, match="contiguous"):
        _native.decode_numbers(payload, offset, length, 10, np.zeros(16, np.float32)[::2], count)


# ------------------------------------------------------------------------------- the numbers of an episode


COLUMN = st.tuples(
    st.sampled_from(list(DTYPE_CODES)),
    st.integers(0, 3),  # numbers a step
    st.sampled_from(["right", "right", "right", "right", "absent", "one more", "other steps", "other kind"]),
)


@given(st.lists(COLUMN, max_size=6), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_the_numbers_of_an_episode_are_laid_and_filled_as_the_twin_does(
    given_columns: list[tuple[np.dtype[Any], int, str]], steps: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    features: dict[str, Any] = {}
    for number, (dtype, per_step, fault) in enumerate(given_columns):
        count = {"absent": 0, "one more": steps * per_step + 1, "other steps": (steps + 1) * per_step}.get(
            fault, steps * per_step
        )
        floats = (dtype.kind == "f") != (fault == "other kind")
        values = rng.integers(0, 300, count) * rng.integers(0, 2)
        features[str(number)] = values.astype(np.float32 if floats else np.int64)
    payload = serialize_example(features)
    index = PayloadIndex(list(features))
    rows = index.find(payload)
    row_of = {which: row for row, which in enumerate(index.order)}
    columns = [
        (row_of[number], KIND_FLOAT if dtype.kind == "f" else KIND_INT64, per_step, DTYPE_CODES[dtype])
        for number, (dtype, per_step, _) in enumerate(given_columns)
    ]
    plan = np.array(columns, np.int64).reshape(-1, 4)
    places = np.full(len(columns) + 1, -7, np.int64)
    tables = (index.address, plan.ctypes.data, len(columns), places.ctypes.data)
    expected = twin.lay_numbers(rows, columns, [dtype.itemsize for dtype in DTYPE_CODES])
    assert _native.lay_numbers(*tables) == expected.status
    assert places[: len(expected.places)].tolist() == expected.places
    if expected.status < 0:
        return

    arena = np.full(int(places[-1]) + 8, 7, np.uint8)
    bad = len(columns)
    for number, (dtype, _, _) in enumerate(given_columns):
        wanted = features[str(number)]
        kind = KIND_FLOAT if wanted.dtype == np.float32 else KIND_INT64
        small = dtype.kind in "iu" and wanted.size and wanted.max() > np.iinfo(dtype).max
        if wanted.size and (kind != columns[number][1] or small):
            bad = number
            break
    assert _native.fill_numbers(payload, *tables, arena) == bad
    assert (arena[int(places[-1]) :] == 7).all()
    for number, (dtype, _, _) in enumerate(given_columns[:bad]):
        wanted = features[str(number)]
        if wanted.size:
            found = np.ndarray(wanted.shape, dtype, arena, int(places[number]))
            np.testing.assert_array_equal(found, wanted.astype(dtype))
    for size in {0, 1, int(places[-1]) // 2, max(int(places[-1]) - 16, 0)}:
        room = np.full(size + 64, 7, np.uint8)
        _native.fill_numbers(payload, *tables, room[:size])
        assert (room[size:] == 7).all()


def test_numbers_that_are_filled_at_a_place_beyond_their_room_are_not() -> None:
    payload = serialize_example({"x": np.arange(4, dtype=np.float32)})
    index = PayloadIndex(["x"])
    index.find(payload)
    plan = np.array([[0, KIND_FLOAT, 1, DTYPE_CODES[np.dtype("float32")]]], np.int64)
    arena = np.full(16, 7, np.uint8)
    for place in (1, 15, 16, 17, 2**62):
        places = np.array([place, 16], np.int64)
        tables = (index.address, plan.ctypes.data, 1, places.ctypes.data)
        assert _native.fill_numbers(payload, *tables, arena) == 0
        assert (arena == 7).all()


def test_only_numbers_and_bytes_can_be_written() -> None:
    with pytest.raises(TypeError, match="bool, int or float values or bytes, not complex64"):
        serialize_example({"x": np.zeros(1, dtype=np.complex64)})


# ---------------------------------------------------------------------------------------- equal strings


@given(
    st.lists(st.sampled_from([b"", b"a", b"b", b"ab", b"x" * 200]), max_size=4), st.integers(1, 3), st.data()
)
def test_strings_that_are_all_the_same_are_given_once(
    texts: list[bytes], times: int, data: st.DataObject
) -> None:
    texts = texts * times if data.draw(st.booleans()) else texts[:1] * times
    payload = serialize_example({"x": texts, "y": np.arange(3)})
    (_, count, offset, length), (_, numbers, numbers_at, numbers_length) = PayloadIndex(["x", "y"]).find(
        payload
    )
    assert _native.same_bytes(payload, offset, length, count) == (texts[0] if len(set(texts)) == 1 else None)
    assert _native.same_bytes(payload, offset, length, count + 1) is None
    assert _native.same_bytes(payload, numbers_at, numbers_length, numbers) is None


def test_of_lists_that_follow_one_of_another_kind_only_the_last_strings_count() -> None:
    strings = delimited(1, delimited(1, b"a") + delimited(1, b"b"))
    last = delimited(1, delimited(1, b"c") * 2)
    payload = example(named("x", delimited(2, strings + delimited(3, b"") + last)))
    ((_, count, offset, length),) = PayloadIndex(["x"]).find(payload)
    assert count == 2
    assert _native.same_bytes(payload, offset, length, count) == b"c"
