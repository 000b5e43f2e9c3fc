"""How priorities become weights, and back: ``alpha``, ``beta`` and ``eps``, which can be set at any time."""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableSequence
from typing import Any

import torch
from torch import Tensor

from replaybank.samplers.arguments import real
from replaybank.weights.sum_tree import SumTree

# Places in the state.
ALPHA, BETA, EPS, LARGEST = range(4)


class Exponents:
    """The weight of a priority is ``(priority + eps)^alpha``; ``beta`` is that of importance weights.

    An exponent that was given as a 0-d tensor is read from it whenever it is used. The largest priority ever
    seen is kept beside them, since without an ``alpha`` no weight tells.

    Not thread-safe: the sampler's lock guards it. Shared between processes after :meth:`share_memory_`.

    Args:
        eps: added to priorities.
    """

    def __init__(self, eps: float) -> None:
        self.reals = torch.zeros(4, dtype=torch.float64)
        self.reals[EPS] = real("eps", eps)
        self.given: list[Any] = [0.0, 0.0]
        self._view()
        self.real[LARGEST] = -1.0

    def _view(self) -> None:
        # A tensor element takes microseconds to read, a memoryview's 40 ns; other processes' writes show too.
        self.real: MutableSequence[float] = memoryview(self.reals.numpy())  # type: ignore[arg-type, assignment]

    def exponent(self, which: int) -> Any:
        """``alpha`` or ``beta``, as it was given where that still holds."""
        given = self.given[which]
        return given if isinstance(given, Tensor) else self.real[which]

    def beta(self) -> float:
        """The exponent of importance weights."""
        given = self.given[BETA]
        return float(given) if isinstance(given, Tensor) else self.real[BETA]

    @staticmethod
    def checked(which: int, value: float | Tensor) -> float:
        """The number that ``alpha`` or ``beta`` is to be.

        Raises:
            TypeError: it is no number.
            ValueError: it is negative, infinite or NaN.
        """
        return real("alpha" if which == ALPHA else "beta", value)

    def keep(self, which: int, value: float | Tensor, number: float) -> None:
        """Have ``alpha`` or ``beta`` be what was given, which now is ``number``."""
        self.given[which], self.real[which] = value, number

    def reweight(self, tree: SumTree, limit: int, known: int, alpha: float) -> None:
        """Give items the weights that another ``alpha`` gives them. O(N).

        Args:
            tree: the weights.
            limit: items that may have one.
            known: items of which it is known that they are there.
            alpha: what is not yet, but will be.

        Raises:
            ValueError: the largest weight would be too large for the dtype; nothing has been changed.
        """
        old, leaves = self.real[ALPHA], tree.leaves[:limit]
        if tree.largest > 0 or (alpha == 0 and known):
            if old == 0:  # all weights are 1 and the priorities unknown: they count with the maximum
                weight = _powered(tree, self.largest_seen() + self.real[EPS], alpha)
                weights = (leaves > 0).double() * weight
            elif alpha == 0 and known:
                weights = torch.ones_like(leaves)
            else:
                _powered(tree, tree.largest, alpha / old, alpha)
                weights = torch.where(leaves > 0, leaves.double().pow(alpha / old), 0.0)
            tree.set_leaves(weights)

    def weight(self, priority: float) -> float:
        """The weight of a priority."""
        return float((priority + self.real[EPS]) ** self.real[ALPHA])

    def priority(self, weight: float) -> float:
        """The priority that a weight came from; the largest seen where nobody can know."""
        alpha = self.real[ALPHA]
        return max(weight ** (1 / alpha) - self.real[EPS], 0.0) if alpha else self.largest_seen()

    def priorities(self, weights: Tensor) -> Tensor:
        """The same for float64 ``[B]``. O(B)."""
        alpha = self.real[ALPHA]
        if alpha == 0:
            return torch.full_like(weights, self.largest_seen())
        return (weights.pow(1 / alpha) - self.real[EPS]).clamp(min=0)

    def largest_seen(self) -> float:
        """The largest priority there ever was, 1 if there was none."""
        largest = self.real[LARGEST]
        return largest if largest >= 0 else 1.0

    # ---- state

    def share_memory_(self) -> None:
        """Move the state to shared memory, so that processes it is sent to see one."""
        self.reals.share_memory_()
        self._view()

    def state_dict(self) -> dict[str, float]:
        """All four numbers."""
        return {
            "alpha": self.real[ALPHA],
            "beta": self.beta(),
            "eps": self.real[EPS],
            "largest": self.real[LARGEST],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over the numbers of a checked state."""
        for which, name in ((ALPHA, "alpha"), (BETA, "beta"), (EPS, "eps"), (LARGEST, "largest")):
            self.real[which] = float(state_dict[name])
        self.given = [self.real[ALPHA], self.real[BETA]]

    def __getstate__(self) -> dict[str, Any]:
        return {"reals": self.reals, "given": self.given}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._view()


def _powered(tree: SumTree, value: float, exponent: float, given: float | None = None) -> float:
    """``value ** exponent``, the largest weight there would be.

    Raises:
        ValueError: it is too large for the dtype.
    """
    try:
        weight = float(value**exponent)
    except OverflowError:
        weight = math.inf
    if weight > torch.finfo(tree.dtype).max:
        raise ValueError(
            f"alpha={exponent if given is None else given}: the largest weight would be {weight:.3g}, "
            f"too large for {tree.dtype}. Nothing has been changed."
        )
    return weight
