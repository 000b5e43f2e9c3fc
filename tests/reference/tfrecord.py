"""TFRecord files and tf.train.Example payloads, read one byte at a time in plain Python.

Written from the format's description and from nothing else, so that the compiled reader has a witness.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

CRC_POLYNOMIAL = 0x82F63B78  # Castagnoli, bits reversed
MASK_DELTA = 0xA282EAD8
WORD = 0xFFFFFFFF
MAX_GROUP_DEPTH = 100


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (CRC_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    crc = WORD
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ WORD


def masked_crc(data: bytes) -> int:
    crc = crc32c(data)
    return ((((crc >> 15) | (crc << 17)) & WORD) + MASK_DELTA) & WORD


class BadFile(Exception):
    """Framing or a checksum is wrong."""


class BadPayload(Exception):
    """The bytes are not an Example."""


class RawRecord(NamedTuple):
    offset: int
    payload: bytes


def read_file(data: bytes) -> Iterator[RawRecord]:
    at = 0
    while at < len(data):
        header = data[at : at + 12]
        if len(header) < 12:
            raise BadFile(at)
        length, stored = struct.unpack("<QI", header)
        if masked_crc(header[:8]) != stored:
            raise BadFile(at)
        payload = data[at + 12 : at + 12 + length]
        footer = data[at + 12 + length : at + 16 + length]
        if len(payload) < length or len(footer) < 4:
            raise BadFile(at)
        if struct.unpack("<I", footer)[0] != masked_crc(payload):
            raise BadFile(at)
        yield RawRecord(at, payload)
        at += 16 + length


def cut(block: bytes) -> list[tuple[bytes, bytes, int, int]]:
    """The whole records at the beginning of a block: length, payload and the two stored CRCs, unchecked."""

    def unmasked(stored: bytes) -> int:
        rotated = (int.from_bytes(stored, "little") - MASK_DELTA) & WORD
        return ((rotated >> 17) | (rotated << 15)) & WORD

    records = []
    while len(block) >= 16:
        length = int.from_bytes(block[:8], "little")
        if len(block) < length + 16:
            break
        payload, behind = block[12 : 12 + length], block[12 + length :]
        records.append((block[:8], payload, unmasked(block[8:12]), unmasked(behind[:4])))
        block = behind[4:]
    return records


def frame(payload: bytes) -> bytes:
    header = struct.pack("<Q", len(payload))
    return header + struct.pack("<I", masked_crc(header)) + payload + struct.pack("<I", masked_crc(payload))


Content: TypeAlias = "int | bytes | None"
Feature: TypeAlias = "tuple[str, list[bytes] | list[float] | list[int]] | None"
"""``("bytes" | "float" | "int64", values)``, or None for a feature without a kind."""


class Cursor:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def done(self) -> bool:
        return self.at == len(self.data)

    def byte(self) -> int:
        if self.done():
            raise BadPayload("ends inside a varint")
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        value = 0
        for position in range(10):
            byte = self.byte()
            value |= (byte & 0x7F) << (7 * position)
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF
        raise BadPayload("varint of more than ten bytes")

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise BadPayload("a field reaches beyond its message")
        self.at += count
        return self.data[self.at - count : self.at]

    def tag(self) -> tuple[int, int]:
        before = self.at
        tag = self.varint()
        if self.at - before > 5 or tag > WORD or tag >> 3 == 0:
            raise BadPayload("bad tag")
        return tag >> 3, tag & 7

    def content(self, number: int, wire: int, depth: int = 0) -> Content:
        if wire == 0:
            return self.varint()
        if wire == 1:
            return self.take(8)
        if wire == 2:
            return self.take(self.varint())
        if wire == 5:
            return self.take(4)
        if wire == 3:
            if depth == MAX_GROUP_DEPTH:
                raise BadPayload("groups too deep")
            while True:
                inner, inner_wire = self.tag()
                if inner_wire == 4:
                    if inner != number:
                        raise BadPayload("wrong end of group")
                    return None
                self.content(inner, inner_wire, depth + 1)
        raise BadPayload("bad wire type")


def fields(message: bytes) -> Iterator[tuple[int, int, Content]]:
    cursor = Cursor(message)
    while not cursor.done():
        number, wire = cursor.tag()
        yield number, wire, cursor.content(number, wire)


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def read_list(kind: int, message: bytes) -> list[bytes] | list[float] | list[int]:
    texts: list[bytes] = []
    floats: list[float] = []
    ints: list[int] = []
    for number, wire, content in fields(message):
        if number != 1:
            continue
        if kind == 1 and wire == 2:
            assert isinstance(content, bytes)
            texts.append(content)
        elif kind == 2 and wire in (2, 5):
            assert isinstance(content, bytes)
            if len(content) % 4:
                raise BadPayload("packed floats of a broken length")
            floats.extend(struct.unpack(f"<{len(content) // 4}f", content))
        elif kind == 3 and wire == 0:
            assert isinstance(content, int)
            ints.append(signed(content))
        elif kind == 3 and wire == 2:
            assert isinstance(content, bytes)
            cursor = Cursor(content)
            while not cursor.done():
                ints.append(signed(cursor.varint()))
    return (texts, floats, ints)[kind - 1]


def parse_example(payload: bytes) -> dict[str, Feature]:
    features: dict[str, Feature] = {}
    for number, wire, content in fields(payload):
        if (number, wire) != (1, 2):
            continue
        assert isinstance(content, bytes)
        for entry_number, entry_wire, entry in fields(content):
            if (entry_number, entry_wire) != (1, 2):
                continue
            assert isinstance(entry, bytes)
            name, feature = read_entry(entry)
            features[name] = feature
    return features


class Laid(NamedTuple):
    """Where the numbers of an episode lie in one buffer: what ``lay_numbers`` gives."""

    status: int
    places: list[int]


def lay_numbers(rows: list[list[int]], columns: list[tuple[int, int, int, int]], sizes: list[int]) -> Laid:
    """By entries ``[kind, count, ...]`` and columns (row, kind, numbers a step, code); ``sizes`` by code."""
    steps, end, places = 0, 0, []
    for number, (row, kind, per_step, code) in enumerate(columns):
        found, count = rows[row][:2]
        if per_step and not count:
            places.append(-1)
            continue
        if per_step:
            if found != kind or count % per_step or steps not in (0, count // per_step):
                return Laid(-1 - number, places)
            steps = count // per_step
        places.append(end)
        end += (count * sizes[code] + 15) // 16 * 16
    return Laid(steps, [*places, end])


def read_entry(entry: bytes) -> tuple[str, Feature]:
    name = b""
    kind = 0
    values: list[bytes] | list[float] | list[int] = []
    for number, wire, content in fields(entry):
        if wire != 2:
            continue
        assert isinstance(content, bytes)
        if number == 1:
            name = content
        elif number == 2:
            for list_kind, list_wire, message in fields(content):
                if list_wire != 2 or list_kind not in (1, 2, 3):
                    continue
                assert isinstance(message, bytes)
                found = read_list(list_kind, message)
                if list_kind != kind:
                    kind, values = list_kind, []
                values = values + found  # type: ignore[operator,assignment]
    try:
        text = name.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadPayload("name is not UTF-8") from error
    if kind == 0:
        return text, None
    return text, (("bytes", "float", "int64")[kind - 1], values)


def varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def delimited(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content
