"""Uniform random numbers for draws by weight."""

from __future__ import annotations

import torch
from torch import Tensor

_CPU = torch.device("cpu")


class Uniforms:
    """Float64 in ``[0, 1)``, in memory that is used again: making it costs as much as filling it.

    Not thread-safe: the sampler's lock guards it.
    """

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.float64)

    def draw(self, count: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        """Numbers ``[count]`` on a device, right until the next call.

        Args:
            count: how many.
            generator: their source, on any device; None is the global one of ``device``.
            device: where they are wanted.
        """
        source = device if generator is None else generator.device
        if source != _CPU or device != _CPU:
            drawn = torch.rand(count, dtype=torch.float64, generator=generator, device=source)
            return drawn.to(device)
        memory = self._memory
        if memory.numel() != count:
            memory = self._memory = torch.empty(count, dtype=torch.float64)
        return memory.uniform_() if generator is None else memory.uniform_(generator=generator)
