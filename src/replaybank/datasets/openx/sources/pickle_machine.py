"""The stack machine that a pickle is written for, without a way out of it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from replaybank import _native
from replaybank.datasets.openx.sources.pickled_values import NAMES, Refused
from replaybank.errors import UnsafePickleError

OBJECT_BYTES: Final = 64
"""What an object is counted with, at least; instructions of one byte make objects."""
ROOM: Final = 48 << 20
"""Bytes of objects that any pickle may make, however short."""
ROOM_PER_BYTE: Final = 8
"""Bytes of objects that it may make for each byte of its own: an array of one number takes as much."""
MAX_NAME: Final = 256
"""Bytes of a name or number in the text instructions of protocol 0."""
STOP: Final = ord(".")

NOTHING_THERE: Final = "an instruction for a value that is not there"
NOT_REMEMBERED: Final = "a reference to a value that was not remembered"
_UNKNOWN, _END, _CUT_SHORT, _NOTHING_THERE, _NOT_REMEMBERED, _NO_ROOM = range(6)
"""Why the native loop stopped: as in csrc/pickle_loop.hpp."""
_REASONS: Final = {
    _CUT_SHORT: "no end: it is cut short",
    _NOTHING_THERE: NOTHING_THERE,
    _NOT_REMEMBERED: NOT_REMEMBERED,
}


class Machine:
    """One run over one pickle: a stack, a memo, and where it is. Not thread-safe."""

    def __init__(self, data: bytes, where: str) -> None:
        self.data = data
        self.where = where
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.floor = 0
        """Values below this belong to outer containers."""
        self.memo: dict[int, Any] = {}
        self.room = ROOM + ROOM_PER_BYTE * len(data)

    def run(self, handlers: Sequence[Handler | None], *, native: bool = True) -> Any:
        """The value that is on top at the end. Handlers by the byte of their instruction.

        The instructions that most of a pickle of arrays consists of are carried out by the native loop, which
        comes back for all others; without it, by their handlers too.
        """
        data, stack, marks, memo = self.data, self.stack, self.marks, self.memo
        why = _UNKNOWN
        while True:
            if native:
                why, self.at, self.floor, self.room = _native.run_pickle(
                    data, self.at, stack, marks, memo, self.floor, self.room
                )
            elif self.at < len(data):
                self.at += 1
                why = _END if data[self.at - 1] == STOP else _UNKNOWN
            else:
                why = _CUT_SHORT
            if why != _UNKNOWN:
                break
            code = data[self.at - 1]
            handler = handlers[code]
            if handler is None:
                raise Refused(f"the instruction {code:#04x}, which no pickle of data has")
            handler(self)
            if self.room < 0:
                self.charge(0)
        if why == _END:
            return self.pop()
        if why == _NO_ROOM:
            self.charge(0)
        raise Refused(_REASONS[why])

    # --- what instructions need ------------------------------------------------------------------------

    def charge(self, size: int) -> None:
        """Count memory that an instruction takes beyond the bytes it has."""
        self.room -= size
        if self.room < 0:
            raise Refused(f"more objects than {len(self.data)} bytes can stand for")

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes; the length is checked before anything is allocated."""
        start = self.at
        if size > len(self.data) - start:
            raise Refused(f"a value of {size} bytes where {len(self.data) - start} are left")
        self.at = start + size
        self.charge(OBJECT_BYTES)
        return self.data[start : self.at]

    def number(self, form: struct.Struct) -> Any:
        try:
            (value,) = form.unpack_from(self.data, self.at)
        except struct.error:
            raise Refused("no end: it is cut short") from None
        self.at += form.size
        return value

    def line(self, limit: int = MAX_NAME) -> bytes:
        end = self.data.find(b"\n", self.at, self.at + limit)
        if end < 0:
            raise Refused(f"a line without an end in {limit} bytes")
        found = self.data[self.at : end]
        self.at = end + 1
        return found

    def pop(self) -> Any:
        if len(self.stack) <= self.floor:
            raise Refused(NOTHING_THERE)
        return self.stack.pop()

    def top(self) -> Any:
        if len(self.stack) <= self.floor:
            raise Refused(NOTHING_THERE)
        return self.stack[-1]

    def pop_to_mark(self) -> list[Any]:
        """The values since the last mark."""
        if not self.marks:
            raise Refused("an end of a container that has no beginning")
        at = self.marks.pop()
        self.floor = self.marks[-1] if self.marks else 0
        values = self.stack[at:]
        del self.stack[at:]
        return values

    def push_container(self, value: Any, items: int = 0) -> None:
        self.charge(OBJECT_BYTES + 8 * items)
        self.stack.append(value)

    def name(self, module: str, name: str) -> None:
        known = NAMES.get((module, name))
        if known is None:
            raise UnsafePickleError(
                f"{self.where}: the pickle names {printable(module)}.{printable(name)} at byte {self.at}, "
                "which is not data: only plain values, NumPy arrays and images are read, and nothing of it "
                "was run"
            )
        self.stack.append(known)


Handler = Callable[[Machine], None]


def printable(text: str) -> str:
    """A name from a pickle for a message."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:MAX_NAME])
