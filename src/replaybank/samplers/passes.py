"""Passes: every number once, then again. What samplers without replacement share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from replaybank.storages.resize import Move

_INT32_NUMBERS = 1 << 31
"""Up to so many numbers fit into int32, which halves the permutation."""


class Pass:
    """The numbers below ``n`` in some order, each once, handed out in parts; then from the start.

    Memory: one permutation, 4 bytes a number (8 beyond 2^31 of them), none without shuffling.

    Not thread-safe: the buffer's lock guards it.

    Example:
        >>> numbers = Pass()
        >>> numbers.take(5, 3, shuffle=False).tolist(), numbers.ended
        ([0, 1, 2], False)
        >>> numbers.take(5, 3, shuffle=False).tolist(), numbers.ended
        ([3, 4], True)

    Attributes:
        n: numbers in this pass; 0 before the first one.
        left: how many of them have not come yet; 0 once the pass has ended.
        ended: the last call of :meth:`take` ended a pass.
    """

    def __init__(self) -> None:
        self.ended = False
        self.restart()

    def restart(self) -> None:
        """Have the next call begin a pass. O(1)."""
        self.n = self.left = 0
        # What is left of the pass is at the end of it; None: numbers come by size.
        self._order: Tensor | None = None

    def take(
        self,
        n: int,
        count: int,
        *,
        shuffle: bool,
        drop_last: bool = False,
        generator: torch.Generator | None = None,
        name: str = "items",
    ) -> Tensor:
        """The next ``count`` numbers, or what the pass has left. O(count), and O(n) where a pass begins.

        A pass begins after one has ended, where ``n`` is not that of the pass, and, with ``drop_last``, where
        fewer than ``count`` are left.

        Args:
            n: number of numbers, at least 1.
            count: how many are wanted.
            shuffle: a pass that begins is in random order, else by size.
            drop_last: never give fewer than ``count``; what is left at the end of a pass is passed over.
            generator: source of the order, torch's global one by default.
            name: what is counted, for errors.

        Returns:
            int64 ``[count]`` or shorter, of its own memory.

        Raises:
            ValueError: ``count`` is negative, or exceeds ``n`` with ``drop_last``; nothing has been changed.
        """
        if count < 0:
            raise ValueError(f"A batch of {count} {name} was asked for: give 0 or more.")
        if drop_last and count > n:
            raise ValueError(
                f"A batch of {count} {name} was asked for and there are {n}: with drop_last=True no batch is "
                f"ever full. Ask for at most {n}, or pass drop_last=False."
            )
        if n != self.n or self.left == 0 or (drop_last and self.left < count):
            self._begin(n, shuffle, generator)
        count = min(count, self.left)
        if self._order is None:
            numbers = torch.arange(n - self.left, n - self.left + count)
        else:
            first = self._order.numel() - self.left
            numbers = self._order[first : first + count].to(torch.int64, copy=True)
        self.left -= count
        self.ended = self.left == 0 or (drop_last and self.left < count)
        if self.ended:
            self.left, self._order = 0, None
        return numbers

    def _begin(self, n: int, shuffle: bool, generator: torch.Generator | None) -> None:
        self._order = None  # before the next is made: there is never more than one
        if shuffle:
            dtype = torch.int32 if n <= _INT32_NUMBERS else torch.int64
            device = None if generator is None else generator.device
            self._order = torch.randperm(n, generator=generator, dtype=dtype, device=device).cpu()
        self.n = self.left = n

    def state_dict(self) -> dict[str, Any]:
        """What is left of the pass, in its order, as a copy. O(left)."""
        order = self._order
        return {
            "n": self.n,
            "left": self.left,
            "ended": self.ended,
            "order": None if order is None else order[order.numel() - self.left :].clone(),
        }

    @staticmethod
    def moved(state_dict: Mapping[str, Any], move: Move) -> dict[str, Any]:
        """A state of a pass over items, for a storage whose rows have moved."""
        order, n = state_dict["order"], int(state_dict["n"])
        if order is None and move.first and state_dict["left"]:
            order = torch.arange(n - int(state_dict["left"]), n)
        if order is None or not move.first:
            return dict(state_dict)
        return {**state_dict, "order": move.item(order.to(torch.int64)).to(order.dtype)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where the state was taken. O(left).

        Raises:
            ValueError: the state is that of no pass; nothing has been changed.
        """
        n, left, order = int(state_dict["n"]), int(state_dict["left"]), state_dict["order"]
        good = 0 <= left <= n
        if good and order is not None:
            good = order.dtype in (torch.int32, torch.int64) and order.shape == (left,)
            good = good and (left == 0 or (int(order.min()) >= 0 and int(order.max()) < n))
        if not good:
            raise ValueError(
                f"The state is that of no pass: n={n}, left={left} and order={order!r}. Load one that "
                "state_dict gave."
            )
        self.n, self.left, self.ended = n, left, bool(state_dict["ended"])
        self._order = None if order is None else order.detach().cpu().clone()
