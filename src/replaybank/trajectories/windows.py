"""Steps around given ones in their trajectories, for what is made of several steps."""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from replaybank import _native
from replaybank.storages.batch_memory import BatchMemory
from replaybank.storages.forms import Shapes
from replaybank.storages.layout import LeafPlace, LeafSpec
from replaybank.trajectories.index import TrajectoryIndex

Which = Literal["future", "final", "episode"]
"""Steps of a trajectory to choose from: a step and later ones, the last one, all."""

_WHICH = {"future": 0, "final": 1, "episode": 2}


class Windows(NamedTuple):
    """Steps around some steps.

    Args:
        slots: int64 ``[K, back + 1 + ahead]``: the steps; beyond the ends of a trajectory its first or last
            one again.
        before: int64 ``[K]``, how many before each are there, at most ``back``.
        left: int64 ``[K]``, how many there are from it on, itself counted, at most ``ahead + 1``.
    """

    slots: Tensor
    before: Tensor
    left: Tensor


class Lengthened(NamedTuple):
    """Slices with steps put before each.

    Args:
        slots: int64 ``[B + n * slices]``: the steps; a slice whose trajectory has fewer before it begins with
            the first that there is, several times.
        source: int64, as many: the step among those given that each is, or before whose slice it was put.
        padded: bool, as many: whether it is such a repetition.
    """

    slots: Tensor
    source: Tensor
    padded: Tensor


def windows(index: TrajectoryIndex, items: Tensor, back: int, ahead: int) -> Windows:
    """Steps around given ones, as far as their trajectories go. O(back + ahead + log) each.

    Args:
        index: current.
        items: int64 ``[K]``, slots numbered row by row, contiguous.
        back: number of steps before each.
        ahead: number of steps behind each.

    Raises:
        IndexError: a slot is out of range.

    Example:
        >>> index = TrajectoryIndex.of_flags(torch.tensor([[False], [False], [True], [True]]))
        >>> windows(index, torch.tensor([1, 3]), 2, 1).slots.tolist()
        [[0, 0, 1, 2], [3, 3, 3, 3]]
    """
    count = items.numel()
    slots = torch.empty((count, back + 1 + ahead), dtype=torch.int64)
    before, left = torch.empty_like(items), torch.empty_like(items)
    bad = _native.step_windows(
        *index.view,
        items.data_ptr(),
        count,
        back,
        ahead,
        slots.data_ptr(),
        before.data_ptr(),
        left.data_ptr(),
    )
    if bad < 0:
        raise out_of_range(items, -1 - bad)
    return Windows(slots, before, left)


def choose(index: TrajectoryIndex, items: Tensor, which: Which, randoms: Tensor) -> Tensor:
    """One step of the trajectory of each of some steps. O(log) each.

    Args:
        index: current.
        items: int64 ``[K]``, slots numbered row by row, contiguous.
        which: those to choose from, each equally likely.
        randoms: int64 ``[K]`` in ``[0, 2^63)``, contiguous.

    Returns:
        int64 ``[K]``, slots.

    Raises:
        IndexError: a slot is out of range.
    """
    count = items.numel()
    out = torch.empty(count, dtype=torch.int64)
    bad = _native.step_choices(
        *index.view, items.data_ptr(), count, _WHICH[which], randoms.data_ptr(), out.data_ptr()
    )
    if bad < 0:
        raise out_of_range(items, -1 - bad)
    return out


def lengthen(index: TrajectoryIndex, slots: Tensor, ends: Tensor, n: int) -> Lengthened:
    """Slices with the steps before them in front. O(steps + slices * log).

    Args:
        index: current.
        slots: int64 ``[B]``, the steps of slices, one slice behind the other, numbered row by row;
            contiguous.
        ends: bool ``[B]``, true at the last step of each; contiguous.
        n: number of steps to put before each slice.

    Raises:
        IndexError: a slot is out of range.

    Example:
        >>> index = TrajectoryIndex.of_flags(torch.tensor([[False], [False], [False], [True]]))
        >>> made = lengthen(index, torch.tensor([1, 2]), torch.tensor([False, True]), 2)
        >>> made.slots.tolist(), made.padded.tolist()
        ([0, 0, 1, 2], [True, False, False, False])
    """
    count = slots.numel()
    slices = int(ends.sum()) + int(count > 0 and not bool(ends[-1]))
    total = count + n * slices
    numbers = torch.empty((2, total), dtype=torch.int64)
    padded = torch.empty(total, dtype=torch.bool)
    at = numbers.data_ptr()
    found = _native.slice_lengthened(
        *index.view, slots.data_ptr(), ends.data_ptr(), count, n, at, at + 8 * total, padded.data_ptr()
    )
    if found < 0:
        raise out_of_range(slots, -1 - found)
    return Lengthened(numbers[0], numbers[1], padded)


def first_steps(ends: Tensor, n: int) -> Tensor:
    """Whether each step is one of the first ``n`` of its slice. O(steps).

    Args:
        ends: bool ``[B]``, true at the last step of each slice; contiguous.
        n: number of steps.

    Returns:
        bool ``[B, 1]``.
    """
    out = torch.empty((ends.numel(), 1), dtype=torch.bool)
    _native.slice_first_steps(ends.data_ptr(), ends.numel(), n, out.data_ptr())
    return out


class Returns(NamedTuple):
    """Several steps as one.

    Args:
        sums: ``[K, *shape]``, the discounted sums of their rewards.
        steps: int64 ``[K, 1, ...]``, how many they are; with as many dimensions as ``sums``.
        discounts: the same shape, ``gamma ** steps``, in the dtype of the rewards.
        last: int64 ``[K]``, the slot of the last one.
    """

    sums: Tensor
    steps: Tensor
    discounts: Tensor
    last: Tensor


def returns(
    index: TrajectoryIndex, items: Tensor, most: int, rewards: LeafPlace, gamma: float, powers: Tensor
) -> Returns:
    """Returns over up to ``most`` steps from each item on, summed in float64. O(steps + log) each.

    Args:
        index: current.
        items: int64 ``[K]``, slots numbered row by row, contiguous.
        most: number of steps, at least 1; fewer are taken where a trajectory ends.
        rewards: where those of all items lie, float32 or float64.
        gamma: the discount.
        powers: float64, its first powers; contiguous.

    Raises:
        IndexError: a slot is out of range.
    """
    count = items.numel()
    sums, steps, discounts = _blanks(count, rewards.shape, rewards.dtype).empty()
    last = torch.empty_like(items)
    bad = _native.step_returns(
        *index.view,
        items.data_ptr(),
        count,
        most,
        rewards.address,
        rewards.step,
        rewards.dtype is torch.float64,
        rewards.bytes // rewards.dtype.itemsize,
        gamma,
        powers.data_ptr(),
        powers.numel(),
        sums.data_ptr(),
        steps.data_ptr(),
        discounts.data_ptr(),
        last.data_ptr(),
    )
    if bad < 0:
        raise out_of_range(items, -1 - bad)
    return Returns(sums, steps, discounts, last)


@functools.lru_cache(maxsize=64)
def _blanks(count: int, shape: tuple[int, ...], dtype: torch.dtype) -> Shapes:
    """What sums, numbers of steps and discounts look like."""
    one_each = (1,) * len(shape)
    kinds = [(dtype, shape), (torch.int64, one_each), (dtype, one_each)]
    leaves = [LeafSpec((str(k),), kind, sizes) for k, (kind, sizes) in enumerate(kinds)]
    return Shapes((count,), leaves, torch.device("cpu"), BatchMemory())


def discounted_sums(values: Tensor, steps: Tensor, powers: Tensor) -> Tensor:
    """Sums of the first of several values, each with its weight, summed in float64. O(values).

    Args:
        values: float32 or float64 ``[K, most, *shape]``, contiguous.
        steps: int64 ``[K]`` in ``[0, most]``, contiguous: how many are summed; others may hold anything.
        powers: float64 ``[most]``, the weights; contiguous.

    Returns:
        ``[K, *shape]``, of the dtype of ``values``.

    Example:
        >>> values, powers = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1.0, 0.5]).double()
        >>> discounted_sums(values, torch.tensor([2, 1]), powers)
        tensor([2., 3.])
    """
    count, most, *shape = values.shape
    out = torch.empty((count, *shape), dtype=values.dtype)
    width = out.numel() // count if count else 0
    _native.discounted_sums(
        values.data_ptr(),
        values.dtype is torch.float64,
        count,
        most,
        width,
        steps.data_ptr(),
        powers.data_ptr(),
        out.data_ptr(),
    )
    return out


def out_of_range(items: Tensor, position: int) -> IndexError:
    """The error for a slot that is not there."""
    return IndexError(f"Slot {int(items[position])} is out of range.")
