"""What a checkpoint tells of a sampler: weights, and how often items were drawn where somebody counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from replaybank.report.look import Priorities, Sampling
from replaybank.samplers.priority_state import checked_state
from replaybank.terminal import count


def samplings_of(state: Any, name: str, items: list[int]) -> Iterator[Sampling]:
    """What is known of a sampler, or of each sampler of an ensemble.

    Args:
        state: of the sampler.
        name: of its class.
        items: number of items of each storage.

    Raises:
        ValueError: the state is damaged.
    """
    if isinstance(state, Mapping) and isinstance(state.get("samplers"), list):
        for number, (part, held) in enumerate(zip(state["samplers"], items, strict=False)):
            yield sampling_of(part, f"{name}, part {number}", held)
        return
    yield sampling_of(state, name, items[0] if items else 0)


def sampling_of(state: Any, name: str, items: int) -> Sampling:
    """What is known of one sampler.

    Raises:
        ValueError: the state is damaged.
    """
    if not isinstance(state, Mapping):
        return Sampling(name)
    if "weights" in state:
        return _prioritized(state, name, items)
    facts: list[tuple[str, str]] = []
    if "pass" in state:
        left, of = int(state["pass"]["left"]), int(state["pass"]["n"])
        facts.append(("left of this pass", f"{count(left)} of {count(of)}"))
    if "max_staleness" in state and "decay" in state:
        facts += [("max_staleness", str(state["max_staleness"])), ("decay", str(state["decay"]))]
    if "uses" in state and "max_times_sampled" in state:
        most = int(state["max_times_sampled"])
        drawn = np.full(items, most, np.int64)
        available = state["available"].numpy().astype(np.int64)
        known = (available >= 0) & (available < items)
        drawn[available[known]] = most - state["uses"].numpy()[known]
        facts += [
            ("drawn at most", f"{count(most)} times"),
            ("used up", f"{count((drawn >= most).sum())} items"),
        ]
        return Sampling(name, tuple(facts), drawn=drawn, capacity=most)
    return Sampling(name, tuple(facts))


def _prioritized(state: Mapping[str, Any], name: str, items: int) -> Sampling:
    found, _ = checked_state(state)
    weights = found.numpy().astype(np.float64)[:items]
    alpha, beta, eps = (float(state[key]) for key in ("alpha", "beta", "eps"))
    facts = [("alpha", f"{alpha:g}"), ("beta", f"{beta:g}"), ("eps", f"{eps:g}")]
    return Sampling(name, tuple(facts), Priorities(weights, alpha, beta, eps) if len(weights) else None)
