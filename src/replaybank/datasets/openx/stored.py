"""How a stored dataset is drawn from: the sampler that arguments ask for, and whole trajectories in turn."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from replaybank.datasets.openx.options import Slicing
from replaybank.samplers.base import Sampler
from replaybank.samplers.random import RandomSampler
from replaybank.samplers.slice import SliceSampler
from replaybank.samplers.slice_without_replacement import SliceSamplerWithoutReplacement
from replaybank.samplers.without_replacement import SamplerWithoutReplacement

OURS = frozenset({RandomSampler, SamplerWithoutReplacement, SliceSampler, SliceSamplerWithoutReplacement})
"""The samplers that arguments ask for."""


def sampler_for(slicing: Slicing, *, shuffle: bool, replacement: bool) -> Sampler:
    """The sampler that the arguments ask for."""
    if slicing.num_slices is None and slicing.slice_len is None:
        return RandomSampler() if replacement else SamplerWithoutReplacement(shuffle=shuffle)
    if replacement:
        return SliceSampler(
            num_slices=slicing.num_slices,
            slice_len=slicing.slice_len,
            traj_key="episode",
            strict_length=slicing.strict_length,
        )
    return SliceSamplerWithoutReplacement(
        num_slices=slicing.num_slices,
        slice_len=slicing.slice_len,
        traj_key="episode",
        strict_length=slicing.strict_length,
        shuffle=shuffle,
    )


def trajectories(
    bounds: Tensor, slicing: Slicing, *, shuffle: bool, generator: torch.Generator | None
) -> Iterator[list[Tensor]]:
    """Each trajectory once, some at a time: the steps of each, whole, or a random slice of it.

    Args:
        bounds: first step and length of each, int64 ``[episodes, 2]``.
        slicing: how many at a time, and what length is cut out of each.
        shuffle: in random order.
        generator: source of the random draws.

    Raises:
        RuntimeError: each is shorter than a slice.
    """
    lengths = bounds[:, 1]
    numbers = torch.arange(len(bounds))
    if slicing.slice_len is not None and slicing.strict_length:
        numbers = numbers[lengths >= slicing.slice_len]
        if not len(numbers):
            raise RuntimeError(
                f"No episode has slice_len={slicing.slice_len} steps: they have {int(lengths.min())} to "
                f"{int(lengths.max())}. Ask for shorter slices, or pass strict_length=False."
            )
    numbers = numbers[order(len(numbers), shuffle, generator)]
    for group in numbers.split(slicing.num_slices or 1):
        yield [_steps_of(bounds[int(number)], slicing.slice_len, generator) for number in group]


def order(count: int, shuffle: bool, generator: torch.Generator | None) -> Tensor:
    """The numbers ``[0, count)``, in random order if asked for."""
    return torch.randperm(count, generator=generator) if shuffle else torch.arange(count)


def _steps_of(bound: Tensor, slice_len: int | None, generator: torch.Generator | None) -> Tensor:
    start, length = bound.tolist()
    if slice_len is None or length <= slice_len:
        return torch.arange(start, start + length)
    start += int(torch.randint(length - slice_len + 1, (), generator=generator))
    return torch.arange(start, start + slice_len)
