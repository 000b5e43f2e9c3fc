"""What the arguments of a robot dataset ask for, once they are known to go together."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from replaybank.samplers.arguments import whole
from replaybank.samplers.base import Sampler


@dataclass(frozen=True)
class Slicing:
    """How trajectories are cut.

    Args:
        num_slices: slices in a batch, or None.
        slice_len: steps in a slice, or None.
        strict_length: refuse trajectories shorter than a slice.
        pad: value that fills them instead; None: they are not filled.
    """

    num_slices: int | None = None
    slice_len: int | None = None
    strict_length: bool = True
    pad: float | None = None

    def of(self, steps: int) -> tuple[int, int]:
        """Number and length of the slices in a batch of so many steps.

        Without either number, a batch is one slice.

        Raises:
            ValueError: they do not divide it.

        >>> Slicing(num_slices=4).of(32), Slicing(slice_len=4).of(32), Slicing().of(32)
        ((4, 8), (8, 4), (1, 32))
        """
        for name, part in (("num_slices", self.num_slices), ("slice_len", self.slice_len)):
            if part is not None and steps % part:
                raise ValueError(
                    f"a batch of {steps} steps cannot be made of slices with {name}={part}: give a multiple"
                )
        if self.slice_len is not None:
            return steps // self.slice_len, self.slice_len
        number = self.num_slices or 1
        return number, steps // number


def is_path(source: Any) -> TypeGuard[str | os.PathLike[str]]:
    """Whether a source is named, and not one itself."""
    return isinstance(source, (str, os.PathLike))


def by_dataset(name: str, given: Any, datasets: Sequence[str], default: Any) -> list[Any]:
    """What an argument is for each of several datasets.

    Args:
        name: of the argument.
        given: one value for all, or values by id; an id that is left out has the default.
        datasets: their ids.
        default: that of one dataset.

    Raises:
        ValueError: it names another dataset.

    >>> by_dataset("split", {"b": "test"}, ["a", "b"], "train"), by_dataset("split", "test", ["a", "b"], "")
    (['train', 'test'], ['test', 'test'])
    """
    if not isinstance(given, Mapping):
        return [given] * len(datasets)
    unknown = sorted(set(given) - set(datasets))
    if unknown:
        raise ValueError(f"{name} names {unknown}, the mixture has {list(datasets)}")
    return [given.get(one, default) for one in datasets]


def streams(streaming: bool | None, download: bool | str | None) -> bool:
    """Whether the two arguments together ask for a stream.

    Raises:
        ValueError: both do, or ``download`` is something else.

    >>> streams(None, None), streams(None, False), streams(False, None), streams(None, "force")
    (True, False, False, False)
    """
    if isinstance(download, str) and download != "force":
        raise ValueError(f"download must be a bool or 'force', got {download!r}")
    if streaming and download:
        raise ValueError("streaming and download exclude each other: pass one of them")
    return download is None if streaming is None else bool(streaming)


def slicing_of(
    num_slices: int | None,
    slice_len: int | None,
    pad: float | bool | None,
    strict_length: bool,
    sampler: Sampler | None,
    *,
    streaming: bool,
) -> Slicing:
    """Check what is said about slices.

    Raises:
        ValueError, TypeError: numbers that exclude each other or are none.
        RuntimeError: ``pad`` without a stream.
    """
    if num_slices is not None and slice_len is not None:
        raise ValueError(f"num_slices={num_slices} and slice_len={slice_len} exclude each other")
    if sampler is not None and (num_slices is not None or slice_len is not None):
        raise ValueError("a sampler of your own excludes num_slices and slice_len: give them to the sampler")
    return Slicing(
        None if num_slices is None else whole("num_slices", num_slices),
        None if slice_len is None else whole("slice_len", slice_len),
        bool(strict_length),
        _pad_of(pad, streaming=streaming),
    )


def _pad_of(pad: Any, *, streaming: bool) -> float | None:
    """The value to fill with; True is 0, False is None."""
    if pad is None or pad is False:
        return None
    if not streaming:
        raise RuntimeError("pad fills short trajectories of a stream; pass streaming=True, or leave pad out")
    if pad is True:
        return 0
    try:
        value = pad if isinstance(pad, (int, float)) else pad.item()
        math.isnan(value)
    except (AttributeError, TypeError, ValueError, RuntimeError):
        raise TypeError(f"pad={pad!r}: give a number, True for 0, or None") from None
    number: float = value
    return number


def check_replacement(
    replacement: bool | None,
    *,
    shuffle: bool,
    drawn: bool,
    streaming: bool,
) -> bool:
    """Whether to draw with replacement.

    Args:
        replacement: as the user gave it; None: with, unless it streams.
        shuffle: draw in random order.
        drawn: something is drawn by a sampler that is to be chosen here.
        streaming: the data come as a stream.

    Raises:
        RuntimeError: a stream with replacement, or an order with replacement.
    """
    if streaming:
        if replacement:
            raise RuntimeError("a stream cannot be drawn from with replacement; pass streaming=False")
        return False
    if not shuffle and drawn and replacement is not False:
        raise RuntimeError(
            "shuffle=False takes each trajectory or step once, in order: pass replacement=False with it"
        )
    return replacement is not False
