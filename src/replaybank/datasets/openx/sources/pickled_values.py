"""What a pickle of episodes may build: NumPy arrays and scalars, and images, put together by our own hands.

A pickle says "call this function with these arguments". Nothing is called here that a pickle names: each name
that is known stands for a small object below, which collects what it is given, checks it, and makes an array
of it over the bytes that are there.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

MAX_DIMENSIONS: Final = 32
"""Of an array; no field of a robot comes near."""

_DTYPE: Final = re.compile(r"[<>=|]?(b1|[iu][1248]|f[248]|c8|c16|[SU][0-9]{0,6}|O[48]?)")
_LONGEST: Final = 1 << 48
"""Of a dimension."""
_LAST_LETTER: Final = 0x10FFFF
"""Of Unicode."""
_ENCODINGS: Final = frozenset({"latin1", "latin-1"})
_PIXELS: Final = {
    "L": ("u1", 1),
    "RGB": ("u1", 3),
    "RGBA": ("u1", 4),
    "P": ("u1", 1),
    "I;16": ("<u2", 1),
    "I": ("<i4", 1),
    "F": ("<f4", 1),
}
"""Numbers and channels of a pixel, by Pillow's modes."""


class Refused(Exception):
    """A value is not what it should be; the message says how, the reader of the pickle says where."""


class Known(Enum):
    """The names that a pickle may mention."""

    RECONSTRUCT = "_reconstruct"
    SCALAR = "scalar"
    FROM_BUFFER = "_frombuffer"
    NDARRAY = "ndarray"
    DTYPE = "dtype"
    ENCODE = "encode"
    BYTES = "bytes"
    IMAGE = "Image"


NAMES: Final = {
    ("numpy", "ndarray"): Known.NDARRAY,
    ("numpy", "dtype"): Known.DTYPE,
    ("_codecs", "encode"): Known.ENCODE,
    ("__builtin__", "bytes"): Known.BYTES,  # how protocol 2 writes an empty string of bytes
    ("builtins", "bytes"): Known.BYTES,
    **{
        (f"numpy.{core}.{module}", known.value): known
        for core in ("core", "_core")
        for module, known in (
            ("multiarray", Known.RECONSTRUCT),
            ("multiarray", Known.SCALAR),
            ("numeric", Known.FROM_BUFFER),  # how NumPy itself is pickled from protocol 5 on
        )
    },
    ("PIL.Image", "Image"): Known.IMAGE,
    ("PIL.PngImagePlugin", "PngImageFile"): Known.IMAGE,
    ("PIL.JpegImagePlugin", "JpegImageFile"): Known.IMAGE,
}
"""Every other name is refused."""


@dataclass(eq=False)
class Dtype:
    """``numpy.dtype`` as a pickle builds it: first a code, then perhaps a byte order."""

    dtype: np.dtype[Any]
    plain: bool = field(init=False)
    """Whether every byte is a value as it stands: numbers, in this machine's byte order."""

    def __post_init__(self) -> None:
        self.plain = self.dtype.kind in "iufc" and self.dtype.isnative

    @classmethod
    def called(cls, arguments: tuple[Any, ...]) -> Dtype:
        code = arguments[0] if arguments else None
        if not isinstance(code, str) or not _DTYPE.fullmatch(code):
            raise Refused(f"numpy.dtype of {_shown(code)}, which is no plain number, text or object")
        return cls(np.dtype(code))

    def build(self, state: Any) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) >= 5 else None
        if not isinstance(order, str) or order not in ("<", ">", "|", "="):
            raise Refused(f"numpy.dtype with the state {_shown(state)}")
        if any(part is not None for part in state[2:5]):
            raise Refused("numpy.dtype with fields or a shape of its own")
        if order == ">":
            self.dtype = self.dtype.newbyteorder(">")
            self.__post_init__()


@dataclass(eq=False, slots=True)
class Array:
    """``numpy.ndarray`` as a pickle builds it: empty first, then with shape, dtype and bytes."""

    value: Any = None
    copied: int = 0
    """Bytes it takes beyond those of the pickle that it lies over."""

    @classmethod
    def called(cls, arguments: tuple[Any, ...]) -> Array:
        """``_reconstruct(ndarray, (0,), b"b")``."""
        if not arguments or arguments[0] is not Known.NDARRAY:
            raise Refused(f"an array of the class {_shown(arguments[:1])}")
        return cls()

    @classmethod
    def from_buffer(cls, arguments: tuple[Any, ...]) -> Array:
        """``_frombuffer(bytes, dtype, shape, order)``."""
        if len(arguments) != 4:
            raise Refused(f"an array of {len(arguments)} arguments")
        content, dtype, shape, order = arguments
        return cls(*_array(shape, dtype, isinstance(order, str) and order == "F", content))

    def build(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) not in (4, 5):
            raise Refused(f"numpy.ndarray with the state {_shown(state)}")
        self.value, self.copied = _array(*state[-4:])


@dataclass(eq=False)
class Picture:
    """A Pillow image as a pickle builds it: mode, size, palette and pixels, no code of Pillow's run."""

    value: Any = None
    copied: int = 0

    def build(self, state: Any) -> None:
        if not isinstance(state, (list, tuple)) or len(state) < 5:
            raise Refused(f"an image with the state {_shown(state)}")
        _, mode, size, palette, content = state[:5]
        if not isinstance(mode, str) or mode not in _PIXELS:
            raise Refused(f"an image of mode {_shown(mode)}; known are {', '.join(_PIXELS)}")
        if not isinstance(size, (list, tuple)) or len(size) != 2:
            raise Refused(f"an image of size {_shown(size)}")
        code, channels = _PIXELS[mode]
        pixels, self.copied = _array((size[1], size[0], channels), Dtype(np.dtype(code)), False, content)
        if mode == "P":
            pixels = _colours(palette)[pixels[:, :, 0]]
            self.copied += pixels.nbytes
        self.value = pixels


def encoded(arguments: tuple[Any, ...]) -> bytes:
    """``_codecs.encode(text, "latin1")``: how bytes are pickled for Python 2."""
    text, encoding = arguments if len(arguments) == 2 else (None, None)
    if not isinstance(text, str) or not isinstance(encoding, str) or encoding not in _ENCODINGS:
        raise Refused(f"_codecs.encode with the arguments {_shown(arguments)}")
    return _latin(text)


def no_bytes(arguments: tuple[Any, ...]) -> bytes:
    """``bytes()``: none."""
    if arguments:
        raise Refused("a call of bytes with arguments")
    return b""


def scalar(arguments: tuple[Any, ...]) -> Any:
    """``scalar(dtype, bytes)``: one number."""
    if len(arguments) != 2 or not isinstance(arguments[0], Dtype):
        raise Refused(f"a NumPy scalar of {_shown(arguments)}")
    dtype, content = arguments
    if dtype.plain and type(content) is bytes and len(content) == dtype.dtype.itemsize:
        return np.frombuffer(content, dtype.dtype)[0]
    if dtype.dtype.hasobject:
        raise Refused("a NumPy scalar that is an object")
    return _array((), dtype, False, content)[0][()]


def _array(shape: Any, dtype: Any, fortran: Any, content: Any) -> tuple[Any, int]:
    """An array over ``content``, read-only, and the bytes copied for it; of objects: the objects."""
    if not isinstance(dtype, Dtype):
        raise Refused(f"an array of dtype {_shown(dtype)}")
    if type(shape) is tuple and len(shape) == 1 and dtype.plain and type(content) is bytes and content:
        (count,) = shape  # nearly all arrays are such
        if type(count) is int and count * dtype.dtype.itemsize == len(content):
            return np.frombuffer(content, dtype.dtype), 0
    if (
        not isinstance(shape, (tuple, list))
        or len(shape) > MAX_DIMENSIONS
        or not all(type(size) is int and 0 <= size < _LONGEST for size in shape)
    ):
        raise Refused(f"an array of shape {_shown(shape)}")
    size, kind = math.prod(shape), dtype.dtype
    if dtype.plain and type(content) is bytes and content and size * kind.itemsize == len(content):
        flat = np.frombuffer(content, kind)
        return (flat if len(shape) == 1 else flat.reshape(shape, order="F" if fortran else "C")), 0
    if kind.hasobject:
        if not isinstance(content, list) or len(content) != size:
            raise Refused(f"an array of objects of shape {_shown(shape)} without that many objects")
        return (content[0] if size == 1 else content), 0
    copied = 0
    if isinstance(content, str):  # bytes of Python 2
        content = _latin(content)
        copied = len(content)
    if not isinstance(content, (bytes, bytearray)):
        raise Refused(f"an array over {type(content).__name__}")
    if size * kind.itemsize != len(content) or (size and not content):
        raise Refused(f"an array of {kind} and shape {_shown(shape)} over {len(content)} bytes")
    if content:
        flat, more = _native(np.frombuffer(content, kind))
        copied += more
    else:
        flat = np.empty(0, kind.newbyteorder("="))
    try:
        return flat.reshape(shape, order="F" if fortran else "C"), copied
    except ValueError as error:  # NumPy has limits of its own on shapes without elements
        raise Refused(f"an array of shape {_shown(shape)}: {error}") from error


def _native(flat: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], int]:
    """Values that exist, in this machine's byte order, and the bytes copied for it."""
    kind = flat.dtype
    if kind.kind == "b":
        flat = flat.view(np.uint8) != 0  # any other byte is no valid bool
        return flat, flat.nbytes
    if kind.kind == "U" and flat.view(kind.str[0] + "u4").max() > _LAST_LETTER:
        raise Refused("an array of text with letters that do not exist")
    if not kind.isnative:
        flat = flat.astype(kind.newbyteorder("="))
        return flat, flat.nbytes
    return flat, 0


def _colours(palette: Any) -> npt.NDArray[np.uint8]:
    """A palette as 256 colours, black where it has fewer."""
    numbers = list(palette) if isinstance(palette, (list, bytes, bytearray)) else None
    if numbers is None or len(numbers) > 768 or len(numbers) % 3 or not all(_is_byte(n) for n in numbers):
        raise Refused("an image with a palette that is not of RGB colours")
    return np.array(numbers + [0] * (768 - len(numbers)), np.uint8).reshape(256, 3)


def _is_byte(number: Any) -> bool:
    return type(number) is int and 0 <= number < 256


def _latin(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError as error:
        raise Refused("bytes written as text that is not Latin-1") from error


def _shown(value: Any) -> str:
    """A value for a message: plain ones in short, others by their type (to print one could take for ever)."""
    if isinstance(value, (tuple, list)):
        inner = ", ".join(
            _shown(item) if not isinstance(item, (tuple, list)) else "..." for item in value[:8]
        )
        return f"({inner}{', ...' if len(value) > 8 else ''})"
    if isinstance(value, Known):
        return value.value
    if value is None or isinstance(value, (bool, float)):
        return repr(value)
    if isinstance(value, int):
        return repr(value) if value.bit_length() < 128 else "a huge number"
    if isinstance(value, str):
        return repr(value[:40])
    return type(value).__name__
