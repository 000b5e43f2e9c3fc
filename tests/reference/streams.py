"""Steps of environments by brute force: a list a column of what was written, a loop for every question."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from tensordict import TensorDict


@dataclass(frozen=True)
class Step:
    """One step: where it is in its column's stream, its episode, and what is stored of it."""

    column: int
    place: int
    episode: int
    reward: float
    terminated: bool
    truncated: bool

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated

    @property
    def observation(self) -> list[float]:
        return [float(self.place), float(self.column)]

    @property
    def after(self) -> list[float]:
        """The observation after it: the next step's, but a true last one where an episode ends."""
        return [-1.0 - self.place if self.done else self.place + 1.0, float(self.column)]


class Streams:
    """What environments did, and which of it a storage of ``rows`` rows still has."""

    def __init__(self, seed: int, columns: int, rows: int) -> None:
        self.random = random.Random(seed)
        self.rows = rows
        self.streams: list[list[Step]] = [[] for _ in range(columns)]

    def steps(self, count: int) -> TensorDict:
        """The next ``count`` steps of all columns, ``[columns, count]``."""
        new = [[self._step(column) for _ in range(count)] for column in range(len(self.streams))]

        def each(name: str, dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor([[getattr(step, name) for step in row] for row in new], dtype=dtype)

        flags = {name: each(name, torch.bool).unsqueeze(-1) for name in ("terminated", "truncated", "done")}
        after = {
            "observation": each("after", torch.float32),
            "achieved_goal": each("place", torch.int64).unsqueeze(-1) + 1,
            "reward": each("reward", torch.float32).unsqueeze(-1),
            **flags,
        }
        data = {
            "observation": each("observation", torch.float32),
            "achieved_goal": each("place", torch.int64).unsqueeze(-1),
            "desired_goal": torch.full((len(new), count, 1), -7),
            "place": each("place", torch.int64),
            "column": each("column", torch.int64),
            "next": TensorDict(after, [len(new), count]),
        }
        return TensorDict(data, [len(new), count])

    def _step(self, column: int) -> Step:
        stream, chance = self.streams[column], self.random.random
        episode = 0 if not stream else stream[-1].episode + stream[-1].done
        step = Step(
            column, len(stream), episode, self.random.uniform(-1, 1), chance() < 0.15, chance() < 0.15
        )
        stream.append(step)
        return step

    def trajectory(self, column: int, place: int) -> list[Step]:
        """All steps that are still there of the episode of a step."""
        stream = self.streams[column]
        episode = stream[place].episode
        return [step for step in stream[-self.rows :] if step.episode == episode]

    def run(self, column: int, place: int, n: int) -> list[Step]:
        """At most ``n`` steps from one on, as far as its episode goes."""
        return [step for step in self.trajectory(column, place) if place <= step.place < place + n]

    def frames(self, column: int, place: int, n: int, pad: list[float] | None) -> list[list[float]]:
        """The observations of a step and of those before it, ``pad`` or the first one before the first."""
        trajectory = self.trajectory(column, place)
        first = trajectory[0].place
        stream = self.streams[column]
        return [
            stream[max(k, first)].observation if pad is None or k >= first else pad
            for k in range(place - n + 1, place + 1)
        ]

    def next_frames(self, column: int, place: int, n: int, pad: list[float] | None) -> list[list[float]]:
        """The observations that the step after it would have."""
        after = self.streams[column][place].after
        return [*self.frames(column, place, n - 1, pad), after] if n > 1 else [after]


def discounted(rewards: list[float], gamma: float) -> float:
    """Their sum, each a factor ``gamma`` less."""
    return sum(gamma**k * reward for k, reward in enumerate(rewards))
