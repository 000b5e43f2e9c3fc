"""Random numbers for batches drawn ahead where a buffer draws from torch's global generator."""

from __future__ import annotations

import torch
from torch import Tensor


class GlobalAhead:
    """A generator for a thread that draws ahead, so that batches are those of drawing from the global one.

    It begins as a copy of the global generator. When a batch is handed out, the global one is moved to where
    it would be had the batch been drawn then: seeding gives the same batches with and without drawing ahead.
    Once somebody else draws from the global generator between two batches, or seeds it, what was drawn ahead
    cannot follow. Then the batches that may have been drawn by then are handed out, as many whatever the
    thread has done, and later ones come from a seed that is drawn from the global generator: that is
    as reproducible as the rest of the program.

    Not thread-safe: the prefetcher's condition guards it. The global generator is only touched by who asks
    for a batch.

    Args:
        depth: most batches that are drawn and not handed out.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self.generator = torch.Generator()
        self.generator.set_state(torch.default_generator.get_state())
        self._drawn = self._handed_out = 0
        self._own: tuple[int, int] | None = None  # from which batch on, and from which seed
        self._follows = True

    def before(self) -> None:
        """To be called before a batch is drawn."""
        if self._own is not None and self._drawn == self._own[0]:
            self.generator.manual_seed(self._own[1])
        self._drawn += 1

    def hand_out(self, before: Tensor, after: Tensor) -> None:
        """To be called with every batch handed out, in order.

        Args:
            before: the state of :attr:`generator` before the batch was drawn.
            after: and behind it.
        """
        number = self._handed_out
        self._handed_out += 1
        if not self._follows:
            return
        if torch.equal(torch.default_generator.get_state(), before):
            torch.default_generator.set_state(after)
            return
        self._follows = False
        # Of the batches drawn before this call, `depth` at most are waiting, this one among them.
        self._own = number + self._depth, int(torch.randint(1 << 62, (), dtype=torch.int64))
