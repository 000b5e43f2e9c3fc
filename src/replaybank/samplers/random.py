"""Uniform sampling with replacement."""

from __future__ import annotations

import math
from typing import Any

import torch

from replaybank.samplers.arguments import batch_of
from replaybank.samplers.base import Index, InfoKey, SampledStorage, Sampler, refuse_empty, unravel_columns


class RandomSampler(Sampler):
    """Every stored item is equally likely, each time anew. O(B).

    Not thread-safe: the buffer's lock guards it. It has no state.

    Example:
        >>> from replaybank.storages import TensorStorage
        >>> index, info = RandomSampler().sample(TensorStorage(torch.zeros(10)), 4)
        >>> index.shape, bool((index < 10).all()), info
        (torch.Size([4]), True, {})
    """

    def sample(self, storage: SampledStorage, batch_size: int) -> tuple[Index, dict[InfoKey, Any]]:
        """Draw ``batch_size`` items uniformly with replacement, over all dimensions of the storage.

        Returns:
            int64 ``[B]`` for 1-d storages, a tuple of them for others, and no extras.

        Raises:
            RuntimeError: the storage is empty.
        """
        n, batch_size = refuse_empty(storage), batch_of(batch_size)
        generator = self.generator
        if generator is None or generator.device.type == "cpu":
            flat = torch.randint(n, (batch_size,), generator=generator)
        else:
            flat = torch.randint(n, (batch_size,), generator=generator, device=generator.device).cpu()
        if storage.ndim == 1:
            return flat, {}
        n_columns = math.prod(storage.columns)
        return (flat // n_columns, *unravel_columns(flat % n_columns, storage.columns)), {}
