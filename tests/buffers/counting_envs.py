"""An environment whose every observation says which environment, episode and step it is of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

SHORTEST, LONGEST = 1, 6


def length_of(env: int, episode: int) -> int:
    """Steps of an episode: between 1 and 6, of no pattern."""
    return SHORTEST + (env * 7 + episode * 5 + episode * episode * 3) % (LONGEST - SHORTEST + 1)


def is_truncated(env: int, episode: int) -> bool:
    """Whether an episode is cut off rather than at its end."""
    return (env + episode) % 3 == 0


@dataclass(frozen=True)
class Transition:
    """What must be stored of a step."""

    env: int
    episode: int
    step: int

    @property
    def last(self) -> bool:
        """Whether it ends its episode."""
        return self.step == length_of(self.env, self.episode) - 1

    @property
    def truncated(self) -> bool:
        return self.last and is_truncated(self.env, self.episode)

    @property
    def terminated(self) -> bool:
        return self.last and not is_truncated(self.env, self.episode)

    @property
    def reward(self) -> float:
        return reward_of(self.env, self.episode, self.step)


def reward_of(env: int, episode: int, step: int) -> float:
    """A number that float32 holds, different for each step."""
    return env * 4096.0 + episode * 16.0 + step


class CountingEnv(gymnasium.Env[Any, Any]):
    """Its episodes are known beforehand; actions change nothing."""

    def __init__(self, number: int, kind: str = "box") -> None:
        self.number = number
        self.kind = kind
        vector = spaces.Box(-1, 1e6, (3,), np.float32)
        self.action_space = spaces.Discrete(5)
        if kind == "box":
            self.observation_space: spaces.Space[Any] = vector
        else:
            inner = spaces.Tuple((spaces.Discrete(1000), spaces.MultiBinary(4)))
            self.observation_space = spaces.Dict(
                {"vector": vector, "inner": inner, "picture": spaces.Box(0, 255, (2, 3), np.uint8)}
            )
            self.action_space = spaces.Dict({"a": spaces.MultiDiscrete([3, 4]), "b": spaces.Box(-1, 1, (2,))})
        self.episode, self.step_number = -1, 0

    def _observation(self) -> Any:
        vector = np.array([self.number, self.episode, self.step_number], dtype=np.float32)
        if self.kind == "box":
            return vector
        bits = np.array([self.step_number >> bit & 1 for bit in range(4)], dtype=np.int8)
        picture = np.full((2, 3), self.step_number, dtype=np.uint8)
        return {"vector": vector, "inner": (np.int64(self.step_number), bits), "picture": picture}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.step_number = self.episode + 1, 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        reward = reward_of(self.number, self.episode, self.step_number)
        now = Transition(self.number, self.episode, self.step_number)
        self.step_number += 1
        return self._observation(), reward, now.terminated, now.truncated, {"at": self.step_number}


def counting_envs(count: int, mode: str, kind: str = "box") -> SyncVectorEnv:
    """Several of them as a real vector environment."""
    return SyncVectorEnv(
        [lambda number=number: CountingEnv(number, kind) for number in range(count)],  # type: ignore[misc]
        autoreset_mode=AutoresetMode[mode.upper()],
    )
