"""How much of each dataset a mixture has: weights, and the numbers of steps that they are multiplied by."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np

from replaybank.datasets.openx.catalog import mixtures
from replaybank.datasets.openx.replay import OpenXExperienceReplay

LENGTHS_SEEN = 8
"""Episodes whose mean length stands for that of a dataset that does not say how many steps it has."""


def weights_of(datasets: Any) -> dict[str, float]:
    """The weights that are asked for, by id.

    Args:
        datasets: ids with weights, or the name of a published mixture.

    Raises:
        ValueError: it is neither, or a weight is not above 0 and finite.
    """
    if isinstance(datasets, str):
        datasets = published(datasets)
    if not isinstance(datasets, Mapping) or not datasets:
        raise ValueError(f"datasets={datasets!r}: give ids with weights, or the name of a published mixture")
    weights = {}
    for name, weight in datasets.items():
        value = float(weight)
        if not 0 < value < float("inf"):
            raise ValueError(f"the weight of {name!r} is {weight}: give a finite number above 0")
        weights[name] = value
    return weights


def published(name: str) -> Mapping[str, float]:
    """The weights of a published mixture.

    Raises:
        ValueError: there is none of this name; those there are are named.
    """
    known = mixtures()
    if name not in known:
        raise ValueError(f"there is no published mixture {name!r}: there are {sorted(known)}")
    return known[name]


def steps_of(dataset: OpenXExperienceReplay) -> float:
    """Number of steps of a dataset, as well as can be known without reading it."""
    if not dataset.streaming:
        return float(dataset.dataset.rows)
    stream: Any = dataset.sampler.stream  # type: ignore[attr-defined]
    declared = [shard.steps for shard in stream.shards]
    if None not in declared and stream.selected is None:
        return float(sum(declared))
    episodes = stream.episodes if stream.selected is None else len(stream.selected)
    lengths = [episode.length for episode in islice(stream.first_episodes(), LENGTHS_SEEN)]
    if episodes is None or not lengths:
        raise ValueError(
            f"{stream.source.name} does not say how many steps it has: pass balance_weights=False, and "
            "weights that are proportions of steps"
        )
    return float(episodes * np.mean(lengths))
