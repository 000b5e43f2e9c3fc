"""The state of a table of priorities, checked before it is taken over."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor


def checked_state(state_dict: Mapping[str, Any]) -> tuple[Tensor, int | None]:
    """The weights of a table's state, and how many rows it had seen.

    Raises:
        ValueError: the state is damaged.
    """
    weights, total = state_dict["weights"], state_dict["total"]
    reals = [float(state_dict[name]) for name in ("alpha", "beta", "eps")]
    largest = float(state_dict["largest"])
    good = isinstance(weights, Tensor) and weights.dim() == 1 and weights.is_floating_point()
    good = good and all(math.isfinite(value) and value >= 0 for value in reals)
    good = good and math.isfinite(largest) and (largest >= 0 or largest == -1.0)
    if not good or not (total is None or (type(total) is int and 0 <= total < 1 << 62)):
        raise ValueError(
            f"The state is that of no priorities: exponents and eps {reals}, largest priority {largest}, "
            f"{total} rows seen. Load one that state_dict gave. Nothing has been changed."
        )
    return weights, total
