"""The instructions of pickle protocols 0 to 5, described in the standard library's ``pickletools``."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import Any, Final

from replaybank.datasets.openx.sources.pickle_machine import (
    NOT_REMEMBERED,
    NOTHING_THERE,
    OBJECT_BYTES,
    Handler,
    Machine,
)
from replaybank.datasets.openx.sources.pickled_values import (
    Array,
    Dtype,
    Known,
    Picture,
    Refused,
    encoded,
    no_bytes,
    scalar,
)
from replaybank.errors import UnsafePickleError

MAX_NUMBER_BYTES: Final = 32
"""Of an integer: Python's grow without limit, and so does the time to print one."""

HANDLERS: Final[list[Handler | None]] = [None] * 256
"""By the byte of the instruction; None for those that no pickle has."""


def _on(code: bytes) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        HANDLERS[code[0]] = handler
        return handler

    return register


# --- plain values --------------------------------------------------------------------------------------

_U1, _U2, _I4, _U4, _U8 = (struct.Struct(form) for form in ("<B", "<H", "<i", "<I", "<Q"))
_BIG_DOUBLE = struct.Struct(">d")


def _value(code: bytes, value: Any) -> None:
    HANDLERS[code[0]] = lambda m: m.stack.append(value)


def _integer(code: bytes, form: struct.Struct) -> None:
    HANDLERS[code[0]] = lambda m: m.push_container(m.number(form))


def _text(code: bytes, form: struct.Struct) -> None:
    def handler(m: Machine) -> None:
        text = _decoded(m.take(m.number(form)))
        m.charge(sys.getsizeof(text))
        m.stack.append(text)

    HANDLERS[code[0]] = handler


def _bytes(code: bytes, form: struct.Struct) -> None:
    HANDLERS[code[0]] = lambda m: m.stack.append(m.take(m.number(form)))


def _old_string(code: bytes, form: struct.Struct) -> None:
    """Strings of Python 2 are bytes; those that are names and texts read as text."""

    def handler(m: Machine) -> None:
        size = m.number(form)
        if size < 0:
            raise Refused(f"a text of {size} bytes")
        raw = m.take(size)
        m.stack.append(raw.decode("ascii") if raw.isascii() else raw)

    HANDLERS[code[0]] = handler


def _long(code: bytes, form: struct.Struct) -> None:
    def handler(m: Machine) -> None:
        size = m.number(form)
        if not 0 <= size <= MAX_NUMBER_BYTES:
            raise Refused(f"an integer of {size} bytes")
        m.stack.append(int.from_bytes(m.take(size), "little", signed=True))

    HANDLERS[code[0]] = handler


for _code, _constant in ((b"N", None), (b"\x88", True), (b"\x89", False)):
    _value(_code, _constant)
for _code, _form in ((b"J", _I4), (b"K", _U1), (b"M", _U2), (b"G", _BIG_DOUBLE)):
    _integer(_code, _form)
for _code, _form in ((b"\x8c", _U1), (b"X", _U4), (b"\x8d", _U8)):
    _text(_code, _form)
for _code, _form in ((b"C", _U1), (b"B", _U4), (b"\x8e", _U8), (b"\x96", _U8)):
    _bytes(_code, _form)  # a bytearray reads as bytes
for _code, _form in ((b"U", _U1), (b"T", _I4)):
    _old_string(_code, _form)
for _code, _form in ((b"\x8a", _U1), (b"\x8b", _I4)):
    _long(_code, _form)


def _parsed(line: bytes, kind: type[int] | type[float]) -> Any:
    if len(line) > 2 * MAX_NUMBER_BYTES:
        raise Refused(f"a number of {len(line)} digits")
    try:
        return kind(line)
    except ValueError:
        raise Refused(f"a number written as {line!r}") from None


@_on(b"I")
def _int_line(m: Machine) -> None:
    line = m.line()
    booleans: dict[bytes, Any] = {b"00": False, b"01": True}
    m.push_container(booleans[line] if line in booleans else _parsed(line, int))


@_on(b"L")
def _long_line(m: Machine) -> None:
    m.push_container(_parsed(m.line().removesuffix(b"L"), int))


@_on(b"F")
def _float_line(m: Machine) -> None:
    m.push_container(_parsed(m.line(), float))


@_on(b"V")
def _unicode_line(m: Machine) -> None:
    line = m.line(len(m.data))
    m.charge(OBJECT_BYTES + 4 * len(line))
    try:
        m.stack.append(line.decode("raw-unicode-escape"))
    except UnicodeDecodeError as error:
        raise Refused(f"a text that cannot be read: {error.reason}") from None


# --- the stack and the memo ----------------------------------------------------------------------------


@_on(b"\x80")
def _protocol(m: Machine) -> None:
    version = m.number(_U1)
    if version > 5:
        raise Refused(f"instructions of protocol {version}; 0 to 5 are known")


@_on(b"\x95")
def _frame(m: Machine) -> None:
    m.number(_U8)  # only helps readers of streams


@_on(b"(")
def _mark(m: Machine) -> None:
    m.charge(OBJECT_BYTES)
    m.floor = len(m.stack)
    m.marks.append(m.floor)


@_on(b"0")
def _pop(m: Machine) -> None:
    if len(m.stack) > m.floor:
        m.stack.pop()
    else:
        m.pop_to_mark()


@_on(b"1")
def _pop_mark(m: Machine) -> None:
    m.pop_to_mark()


@_on(b"2")
def _duplicate(m: Machine) -> None:
    m.charge(8)
    m.stack.append(m.top())


def _numbered(m: Machine) -> int:
    """The number of a value in the memo, as a line of text.

    They count up, so none is as large as the pickle: larger ones could all have the same hash.
    """
    number = int(_parsed(m.line(), int))
    if not 0 <= number < len(m.data):
        raise Refused(f"a value remembered under a number that {len(m.data)} bytes do not need")
    return number


def _remember(code: bytes, number: Callable[[Machine], int]) -> None:
    def handler(m: Machine) -> None:
        m.charge(OBJECT_BYTES)
        m.memo[number(m)] = m.top()

    HANDLERS[code[0]] = handler


def _recall(code: bytes, number: Callable[[Machine], int]) -> None:
    def handler(m: Machine) -> None:
        try:
            m.stack.append(m.memo[number(m)])
        except KeyError:
            raise Refused(NOT_REMEMBERED) from None

    HANDLERS[code[0]] = handler


_remember(b"\x94", lambda m: len(m.memo))
_remember(b"q", lambda m: int(m.number(_U1)))
_remember(b"r", lambda m: int(m.number(_U4)))
_remember(b"p", _numbered)
_recall(b"h", lambda m: int(m.number(_U1)))
_recall(b"j", lambda m: int(m.number(_U4)))
_recall(b"g", _numbered)


# --- containers ----------------------------------------------------------------------------------------


def _tuple_of(code: bytes, size: int) -> None:
    def handler(m: Machine) -> None:
        if len(m.stack) - m.floor < size:
            raise Refused(NOTHING_THERE)
        values = tuple(m.stack[len(m.stack) - size :])
        del m.stack[len(m.stack) - size :]
        m.push_container(values, size)

    HANDLERS[code[0]] = handler


for _code, _size in ((b")", 0), (b"\x85", 1), (b"\x86", 2), (b"\x87", 3)):
    _tuple_of(_code, _size)
HANDLERS[ord("]")] = lambda m: m.push_container([])
HANDLERS[ord("}")] = lambda m: m.push_container({})
HANDLERS[0x8F] = lambda m: m.push_container(set())


@_on(b"t")
def _tuple(m: Machine) -> None:
    values = m.pop_to_mark()
    m.push_container(tuple(values), len(values))


@_on(b"l")
def _list(m: Machine) -> None:
    values = m.pop_to_mark()
    m.push_container(values, len(values))


@_on(b"d")
def _dict(m: Machine) -> None:
    values = m.pop_to_mark()
    m.push_container({})
    _set_items(m, values)


@_on(b"\x91")
def _frozenset(m: Machine) -> None:
    values = m.pop_to_mark()
    m.push_container(frozenset(map(_key, values)), len(values))


def _container(m: Machine, kind: type) -> Any:
    found = m.top()
    if type(found) is not kind:
        raise Refused(f"items for a {kind.__name__} that is of type {type(found).__name__}")
    return found


def _key(value: Any) -> Any:
    """Texts only: their hashes cannot be made to collide."""
    if not isinstance(value, (str, bytes)):
        raise Refused(f"a key of type {type(value).__name__}; keys are texts")
    return value


def _set_items(m: Machine, values: list[Any]) -> None:
    if len(values) % 2:
        raise Refused("a key without a value")
    found = _container(m, dict)
    m.charge(OBJECT_BYTES * len(values))
    for key, value in zip(values[::2], values[1::2], strict=True):
        found[_key(key)] = value


@_on(b"a")
def _append(m: Machine) -> None:
    value = m.pop()
    m.charge(8)
    _container(m, list).append(value)


@_on(b"e")
def _appends(m: Machine) -> None:
    values = m.pop_to_mark()
    m.charge(8 * len(values))
    _container(m, list).extend(values)


@_on(b"s")
def _set_item(m: Machine) -> None:
    value = m.pop()
    key = m.pop()
    _set_items(m, [key, value])


@_on(b"u")
def _many_items(m: Machine) -> None:
    _set_items(m, m.pop_to_mark())


@_on(b"\x90")
def _add_items(m: Machine) -> None:
    values = m.pop_to_mark()
    m.charge(OBJECT_BYTES * len(values))
    _container(m, set).update(map(_key, values))


# --- names and what is made with them ------------------------------------------------------------------


def _decoded(line: bytes) -> str:
    return line.decode("utf-8", "backslashreplace")


@_on(b"c")
def _global(m: Machine) -> None:
    module, name = m.line(), m.line()
    m.name(_decoded(module), _decoded(name))


@_on(b"\x93")
def _stack_global(m: Machine) -> None:
    name, module = m.pop(), m.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise Refused("a name that is no text")
    m.name(module, name)


@_on(b"i")
def _instance(m: Machine) -> None:
    _global(m)
    raise Refused("an instance made in the manner of Python 2")


def _unnamed(code: bytes, what: str) -> None:
    """Instructions that reach outside the pickle: there is no name to show, and nothing to look up."""

    def handler(m: Machine) -> None:
        raise UnsafePickleError(
            f"{m.where}: the pickle asks for {what} at byte {m.at}, which lies outside it: only plain "
            "values, NumPy arrays and images are read, and nothing of it was run"
        )

    HANDLERS[code[0]] = handler


for _code, _what in (
    (b"P", "a persistent object"),
    (b"Q", "a persistent object"),
    (b"\x82", "a registered class"),
    (b"\x83", "a registered class"),
    (b"\x84", "a registered class"),
    (b"\x97", "a buffer"),
    (b"\x98", "a buffer"),
):
    _unnamed(_code, _what)


_CALLS: Final[dict[int, Callable[[tuple[Any, ...]], Any]]] = {
    id(known): make  # found by identity: the hash of an enum's member is Python code
    for known, make in (
        (Known.RECONSTRUCT, Array.called),
        (Known.FROM_BUFFER, Array.from_buffer),
        (Known.SCALAR, scalar),
        (Known.DTYPE, Dtype.called),
        (Known.ENCODE, encoded),
        (Known.BYTES, no_bytes),
    )
}


@_on(b"R")
def _reduce(m: Machine) -> None:
    stack = m.stack
    if len(stack) < m.floor + 2:
        raise Refused(NOTHING_THERE)
    arguments, called = stack.pop(), stack[-1]
    make = _CALLS.get(id(called))  # the members live for ever: nothing else gets their numbers
    if make is None or not isinstance(arguments, tuple):
        raise Refused(f"a call of a {type(called).__name__}")
    stack[-1] = made = make(arguments)
    m.charge(4 * OBJECT_BYTES + (len(made) if isinstance(made, bytes) else getattr(made, "copied", 0)))


@_on(b"\x81")
def _new(m: Machine) -> None:
    arguments, made = m.pop(), m.pop()
    if made is not Known.IMAGE or arguments != ():
        raise Refused("an object that is neither an array nor an image")
    m.push_container(Picture())


@_on(b"b")
def _build(m: Machine) -> None:
    stack = m.stack
    if len(stack) < m.floor + 2:
        raise Refused(NOTHING_THERE)
    state, found = stack.pop(), stack[-1]
    if not isinstance(found, (Array, Dtype, Picture)):
        raise Refused(f"a state for a value of type {type(found).__name__}")
    found.build(state)
    m.charge(2 * OBJECT_BYTES + getattr(found, "copied", 0))
