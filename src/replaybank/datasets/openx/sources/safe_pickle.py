"""Reads pickles of plain data and arrays, and cannot be made to run anything.

A machine for the instructions of a pickle that imports nothing and calls nothing: the few names it knows
stand for objects of :mod:`~replaybank.datasets.openx.sources.pickled_values`, any other is an error before
anything is made of it. Written out instead of a restricted ``pickle.Unpickler``, because that one would still
hand hostile states to NumPy's own functions, and takes whatever memory a pickle tells it to.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from replaybank.datasets.openx.sources.pickle_instructions import HANDLERS
from replaybank.datasets.openx.sources.pickle_machine import Machine
from replaybank.datasets.openx.sources.pickled_values import Array, Dtype, Known, Picture, Refused
from replaybank.errors import DataFormatError

MAX_DEPTH: Final = 32
"""Of containers in containers; an episode has five or six."""
_AS_THEY_ARE: Final = frozenset({bytes, str, int, float, bool, type(None), np.float32, np.float64, np.bool_})
"""Types of values in which there is nothing to be settled."""


def loads(data: bytes, where: str) -> Any:
    """The value that a pickle describes. O(bytes); memory is about that of the pickle again.

    Containers are dicts, lists, tuples and sets; dicts have ``str`` or ``bytes`` as keys. Arrays are
    read-only views of the bytes in the pickle; Pillow images come as arrays ``[H, W, C]``; an array of one
    object is that object.

    Args:
        data: the pickle.
        where: what is read, for messages.

    Raises:
        UnsafePickleError: the pickle names something that is not data; nothing of it has been run.
        DataFormatError: the pickle is broken, or larger than its bytes can account for.

    >>> import pickle
    >>> loads(pickle.dumps({"steps": [np.float32(1.5)]}), "a.pickle")
    {'steps': [np.float32(1.5)]}
    >>> loads(pickle.dumps(print), "a.pickle")
    Traceback (most recent call last):
        ...
    replaybank.errors.UnsafePickleError: a.pickle: the pickle names builtins.print at byte ..., ...
    """
    machine = Machine(data, where)
    try:
        return _Settler().settle(machine.run(HANDLERS))
    except Refused as error:
        raise DataFormatError(f"{where}: the pickle holds {error} (byte {machine.at})") from error


class _Settler:
    """Puts arrays in the place of what stood for them; each container once, however often it is there."""

    def __init__(self) -> None:
        self.done: dict[int, Any] = {}
        self.open: set[int] = set()

    def settle(self, value: Any, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise Refused(f"containers in each other, more than {MAX_DEPTH} deep")
        if isinstance(value, (Array, Picture)):
            if value.value is None:
                raise Refused("an array that was never filled")
            value = value.value
            return value if isinstance(value, np.ndarray) else self.settle(value, depth + 1)
        if isinstance(value, (Known, Dtype)):
            raise Refused("a class or a dtype in the place of a value")
        if not isinstance(value, (list, dict, tuple)):
            return value
        known = id(value)
        if known in self.done:
            return self.done[known][1]
        if known in self.open:
            raise Refused("a container that holds itself")
        self.open.add(known)
        made: Any = value
        if isinstance(value, list):
            for i, item in enumerate(value):
                if type(item) not in _AS_THEY_ARE:
                    value[i] = self.settle(item, depth + 1)
        elif isinstance(value, dict):
            for key, item in value.items():
                if type(item) not in _AS_THEY_ARE:
                    value[key] = self.settle(item, depth + 1)
        else:
            made = tuple([self.settle(item, depth + 1) for item in value])
        self.open.discard(known)
        self.done[known] = value, made  # kept alive: another object must not get its number
        return made
