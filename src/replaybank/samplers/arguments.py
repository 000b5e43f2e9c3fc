"""What is said to samplers, checked where it is said."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from replaybank.samplers.base import InfoKey


def whole(name: str, value: Any, least: int = 1) -> int:
    """A whole number of at least ``least``, as an int: anything with ``__index__`` but a bool.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is too small.

    Example:
        >>> whole("slice_len", np.int64(8))
        8
        >>> whole("slice_len", 2.0)
        Traceback (most recent call last):
        TypeError: slice_len=2.0: give an int, of at least 1.
    """
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}: give an int, of at least {least}.") from None
    if number < least:
        raise ValueError(f"{name}={number}: give at least {least}.")
    return number


def batch_of(value: Any) -> int:
    """A number of items in a batch, at least 0; see :func:`whole`."""
    return value if type(value) is int and value >= 0 else whole("batch_size", value, 0)


def key_of(name: str, key: Any) -> InfoKey:
    """A key, its path as a tuple where it is a list.

    Raises:
        TypeError: it is neither a string nor a path of strings.

    Example:
        >>> key_of("end_key", ["next", "done"])
        ('next', 'done')
    """
    if isinstance(key, str):
        return key
    path = tuple(key) if isinstance(key, (tuple, list)) else ()
    if not path or not all(isinstance(part, str) for part in path):
        raise TypeError(f"{name}={key!r}: give a string, or a tuple of strings for what is nested.")
    return path


def takes_generation(method: Callable[..., Any]) -> bool:
    """Whether a sampler's method, perhaps a user's, has that argument."""
    kinds = {name: argument.kind for name, argument in inspect.signature(method).parameters.items()}
    return "generation" in kinds or inspect.Parameter.VAR_KEYWORD in kinds.values()


def real(name: str, value: Any) -> float:
    """A finite number of at least 0, as a float; also from a tensor of one element.

    Raises:
        TypeError: it is no number.
        ValueError: it is negative, infinite or NaN.

    Example:
        >>> import torch
        >>> real("alpha", np.float32(0.5)), real("alpha", torch.tensor(1))
        (0.5, 1.0)
        >>> real("alpha", "0.5")
        Traceback (most recent call last):
        TypeError: alpha='0.5': give a number.
    """
    if isinstance(value, (bool, np.bool_, str, bytes)):
        raise TypeError(f"{name}={value!r}: give a number.")
    if isinstance(value, Tensor) and value.numel() != 1:
        raise ValueError(f"{name} is a tensor of shape {tuple(value.shape)}: give one number.")
    try:
        number = float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}={value!r}: give a number.") from None
    if not 0 <= number < math.inf:
        raise ValueError(f"{name}={number}: give a finite number of at least 0.")
    return number
