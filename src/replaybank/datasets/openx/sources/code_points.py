"""Texts that were stored as numbers, before there were features for text."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_LAST_CODE_POINT = 0x10FFFF


def texts_of(numbers: npt.NDArray[Any]) -> list[str]:
    r"""Texts that are stored as numbers: the bytes of UTF-8, or code points. Zeros are none.

    Args:
        numbers: ``[T, n]`` of some integer dtype.

    >>> texts_of(np.array([[104, 105, 0, 0], [103, 114, 0x1F600, 0], [0xC3, 0xBC, 0, 0]]))
    ['hi', 'gr\U0001f600', '\xfc']
    """
    known: dict[bytes, str] = {}
    texts = []
    for row in np.ascontiguousarray(numbers):
        text = known.get(row.tobytes())
        if text is None:
            text = known[row.tobytes()] = _text_of([number for number in row.tolist() if number])
        texts.append(text)
    return texts


def _text_of(numbers: list[int]) -> str:
    try:
        return bytes(numbers).decode()
    except ValueError:  # beyond a byte, or bytes that are no UTF-8
        return "".join(
            chr(number) if 0 < number <= _LAST_CODE_POINT and not 0xD800 <= number < 0xE000 else "\ufffd"
            for number in numbers
        )
