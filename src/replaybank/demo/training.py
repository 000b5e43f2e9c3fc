"""Behaviour cloning on slices of a robot dataset, judged on episodes that training never saw."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from tensordict import TensorDictBase
from torch import Tensor

from replaybank.demo.network import Cloner, Layout, Scale, Steps

HELD_OUT = 0.2
"""Part of the episodes that training does not see; at least one, and never all."""
MAX_JUDGED = 4096
"""Steps at most from which scales and losses are worked out: enough for two digits, and quick to read."""

_CHUNK = 256  # steps read or judged at once, which bounds memory whatever the frames' size
_LEARNING_RATE, _WEIGHT_DECAY = 2e-3, 1e-2


class Experience(Protocol):
    """What training needs of a dataset: :class:`OpenXExperienceReplay`, or anything that samples like it."""

    def sample(self, batch_size: int) -> TensorDictBase:
        """Steps ``[batch_size]`` in TED layout."""
        ...

    def __getitem__(self, index: Tensor) -> TensorDictBase:
        """The steps at int64 positions ``[B]``."""
        ...


@dataclass(frozen=True)
class Training:
    """What a training run did. Losses are mean squared errors of normalised actions on held-out episodes.

    Args:
        held_out: numbers of the episodes that training did not see.
        layout: which entries were used.
        updates: number of gradient steps.
        steps: number of steps of experience in them.
        seconds: how long they took.
        start: loss before the first update.
        end: loss after the last one.
        mean_action: loss of always predicting the training episodes' mean action.
    """

    held_out: tuple[int, ...]
    layout: Layout
    updates: int
    steps: int
    seconds: float
    start: float
    end: float
    mean_action: float

    @property
    def ratio(self) -> float:
        """Loss at the end over that of the mean action; NaN if held-out actions are all the mean."""
        return self.end / self.mean_action if self.mean_action > 0 else math.nan


def train(
    experience: Experience,
    episodes: Tensor,
    *,
    seconds: float = 60.0,
    max_updates: int | None = None,
    batch_size: int = 256,
    seed: int = 0,
    on_progress: Callable[[float, float], None] | None = None,
) -> Training:
    """Train a network to act like the dataset's robots, for a given time.

    Batches are drawn from the whole dataset; their steps of held-out episodes are dropped before the network
    sees them.

    Args:
        experience: where batches come from.
        episodes: number of the episode of each step, int ``[N]``, as in ``"episode"``.
        seconds: how long to train; at least one update is made.
        max_updates: stop after so many updates, if that comes first. With it and enough time, the result is
            the same on every run.
        batch_size: steps to draw at once.
        seed: for the choice of held-out episodes and the network's first weights.
        on_progress: called after each update with the part of the training that was over before it and the
            batch's loss.

    Returns:
        Losses before and after.

    Raises:
        ValueError: fewer than two episodes, nothing to learn from, or an action that never varies.
    """
    generator = torch.Generator().manual_seed(seed)
    held_out = choose_held_out(episodes, generator)
    is_held_out = torch.isin(episodes, held_out)
    layout, known = _read(experience, _some((~is_held_out).nonzero()[:, 0], generator))
    _, judged = _read(experience, _some(is_held_out.nonzero()[:, 0], generator), layout)
    target = Scale.of(known.actions)
    if not bool(target.varies.any()):
        msg = "the actions of the training episodes are all the same: there is nothing to learn"
        raise ValueError(msg)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Cloner(known, Scale.of(known.numbers))
    optimiser = torch.optim.AdamW(network.parameters(), lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
    start = judge(network, judged, target)
    updates = steps = 0
    began = time.perf_counter()
    passed = 0.0
    while updates == 0 or passed < 1.0:
        batch = experience.sample(batch_size)
        batch = batch[~torch.isin(batch.get("episode").reshape(-1), held_out)]
        if len(batch):
            loss = _update(network, optimiser, Steps.of(batch, layout), target, passed)
            updates, steps = updates + 1, steps + len(batch)
            if on_progress is not None:
                on_progress(min(passed, 1.0), loss)
        passed = (time.perf_counter() - began) / seconds if seconds > 0 else 1.0
        if max_updates is not None:
            passed = max(passed, updates / max_updates)
    elapsed = time.perf_counter() - began
    return Training(
        held_out=tuple(held_out.tolist()),
        layout=layout,
        updates=updates,
        steps=steps,
        seconds=elapsed,
        start=start,
        end=judge(network, judged, target),
        mean_action=_loss(torch.zeros_like(judged.actions), judged.actions, target).item(),
    )


def choose_held_out(episodes: Tensor, generator: torch.Generator) -> Tensor:
    """Numbers of the episodes to hold out: a fifth of them, at least one, sorted.

    Args:
        episodes: number of the episode of each step, int ``[N]``.
        generator: where the choice comes from.

    Raises:
        ValueError: there are fewer than two episodes.

    Example:
        >>> choose_held_out(torch.tensor([0, 0, 1, 1, 1]), torch.Generator().manual_seed(0)).numel()
        1
    """
    numbers = episodes.unique()
    if len(numbers) < 2:
        msg = f"holding episodes out needs at least 2 of them; this dataset has {len(numbers)}"
        raise ValueError(msg)
    count = max(1, round(HELD_OUT * len(numbers)))
    chosen: Tensor = numbers[torch.randperm(len(numbers), generator=generator)[:count]].sort().values
    return chosen


def judge(network: Cloner, steps: Steps, target: Scale) -> float:
    """Mean squared error of normalised actions. O(steps), in chunks."""
    total = 0.0
    with torch.no_grad():
        for part in steps.split(_CHUNK):
            total += _loss(network(part), part.actions, target).item() * len(part)
    return total / len(steps)


def _loss(predicted: Tensor, actions: Tensor, target: Scale) -> Tensor:
    """Mean over those dimensions of the action that vary in training: a padded one says nothing."""
    difference = (predicted - target(actions))[:, target.varies]
    loss: Tensor = difference.square().mean()
    return loss


def _update(
    network: Cloner, optimiser: torch.optim.Optimizer, steps: Steps, target: Scale, passed: float
) -> float:
    """One gradient step, with a learning rate that rises for a twentieth of the training and then falls."""
    rate = min(passed * 20 + 0.05, 1.0) * (1 + math.cos(math.pi * min(passed, 1.0))) / 2
    for group in optimiser.param_groups:
        group["lr"] = _LEARNING_RATE * rate
    loss = _loss(network(steps), steps.actions, target)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    return loss.item()


def _some(rows: Tensor, generator: torch.Generator) -> Tensor:
    """At most ``MAX_JUDGED`` of the rows, in order."""
    if len(rows) <= MAX_JUDGED:
        return rows
    return rows[torch.randperm(len(rows), generator=generator)[:MAX_JUDGED]].sort().values


def _read(experience: Experience, rows: Tensor, layout: Layout | None = None) -> tuple[Layout, Steps]:
    """The steps at some positions, at least one, and their layout, looked for unless it is given."""
    parts: list[Steps] = []
    for index in rows.split(_CHUNK):
        batch = experience[index]
        layout = Layout.of(batch) if layout is None else layout
        parts.append(Steps.of(batch, layout))
    if layout is None:
        msg = "a network cannot learn from no steps"
        raise ValueError(msg)
    return layout, Steps.joined(parts)
