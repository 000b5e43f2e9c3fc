"""Hindsight: reaching any of a million states, learnt from rewards that are never seen.

    python examples/her_bitflip.py            # half a minute on one core: nearly every goal is reached
    python examples/her_bitflip.py --plain    # the same without hindsight: no goal is reached, ever
    python examples/her_bitflip.py --quick    # seconds, with fewer bits

Twenty bits are to become twenty others, and each action flips one. Only where all agree does an episode
pay, and one state in a million does: an agent that learns from what it is paid learns nothing. But each
episode reached the states that it went through; drawn with one of those as its goal, it was a success.
``HindsightRelabel`` puts such a goal into four of five steps of a batch, and works out reward and end anew.
What is stored stays what happened.

Andrychowicz et al., "Hindsight Experience Replay", 2017, arXiv 1707.01495, section 4.1.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from tensordict import TensorDictBase
from torch import Tensor, nn

from replaybank import HindsightRelabel, LazyTensorStorage, TensorDictReplayBuffer, TrajectoryRecorder

ENVS, CAPACITY, BATCH, UPDATES = 16, 100_000, 128, 4  # updates for each step of the sixteen environments
GAMMA, TAU, RATE, HIDDEN, EXPLORE, WARM_UP = 0.98, 0.02, 1e-3, 256, 0.1, 1_000

Observation = dict[str, Any]


class BitFlip(gymnasium.Env[Observation, np.int64]):
    """Bits, and those that they are to become, with a step for each. A step costs 1 until they agree."""

    def __init__(self, bits: int) -> None:
        self.observation_space = spaces.Dict(
            {"achieved_goal": spaces.MultiBinary(bits), "desired_goal": spaces.MultiBinary(bits)}
        )
        self.action_space = spaces.Discrete(bits)
        self.count = bits

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Observation, dict[str, Any]]:
        """Other bits, another goal."""
        super().reset(seed=seed)
        self.bits, self.goal = self.np_random.integers(0, 2, (2, self.count), dtype=np.int8)
        self.steps = 0
        return self.seen(), {}

    def seen(self) -> Observation:
        """Named as Gymnasium's goal environments name them, so that HindsightRelabel finds them."""
        return {"achieved_goal": self.bits.copy(), "desired_goal": self.goal}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Flip a bit."""
        self.bits[action] ^= 1
        self.steps += 1
        agree = bool((self.bits == self.goal).all())
        return self.seen(), float(agree) - 1.0, agree, self.steps >= self.count, {}


def reached(achieved: Tensor, desired: Tensor) -> Tensor:
    """Whether goals ``[B, bits]`` are reached, ``[B, 1]``. Such a step is an episode's last."""
    return (achieved == desired).all(-1, keepdim=True)


def reward(achieved: Tensor, desired: Tensor) -> Tensor:
    """What the environment pays, for any goal."""
    return reached(achieved, desired).float() - 1.0


class Values(nn.Module):
    """What flipping each bit is worth, on the way to a goal."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Linear(2 * bits, HIDDEN), nn.ReLU()),
            *(nn.Linear(HIDDEN, HIDDEN), nn.ReLU()),
            nn.Linear(HIDDEN, bits),
        )

    def forward(self, observation: TensorDictBase | Observation) -> Tensor:
        """``[B, bits]``."""
        both = [torch.as_tensor(observation[key]) for key in ("achieved_goal", "desired_goal")]
        values: Tensor = self.layers(torch.cat(both, -1) * 2.0 - 1.0)
        return values


def learn(batch: TensorDictBase, values: Values, slow: Values, optimiser: torch.optim.Optimizer) -> None:
    """One step of double Q-learning."""
    after = batch["next"]
    with torch.no_grad():
        best = values(after["observation"]).argmax(-1, keepdim=True)
        value_after = slow(after["observation"]).gather(-1, best)
        target = after["reward"] + GAMMA * ~after["terminated"] * value_after
        target = target.clamp(-1 / (1 - GAMMA), 0.0)  # no value is worse than never, or better than now
    value = values(batch["observation"]).gather(-1, batch["action"].unsqueeze(-1))
    optimiser.zero_grad()
    nn.functional.mse_loss(value, target).backward()
    optimiser.step()
    with torch.no_grad():
        for late, early in zip(slow.parameters(), values.parameters(), strict=True):
            late.lerp_(early, TAU)


@torch.no_grad()
def success_rate(values: Values, bits: int, episodes: int = 200) -> float:
    """Part of fresh goals that the greedy policy reaches."""
    envs = SyncVectorEnv([lambda: BitFlip(bits)] * episodes)
    obs, _ = envs.reset(seed=1_000)
    won = np.zeros(episodes, dtype=bool)
    for _ in range(bits):
        obs, _, terminated, _, _ = envs.step(values(obs).argmax(-1).numpy())
        won |= terminated
    envs.close()
    return float(won.mean())


def main(arguments: Sequence[str] | None = None) -> None:
    """Learn, and show how many goals are reached."""
    parser = argparse.ArgumentParser(description="Hindsight experience replay on flipping bits")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="without hindsight")
    parser.add_argument("--quick", action="store_true", help="a few seconds: fewer bits")
    options = parser.parse_args(arguments)
    bits, steps, wanted = (10, 4_000, 0.5) if options.quick else (20, 30_000, 0.9)
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # networks this small are fastest on one
    random = np.random.default_rng(options.seed)
    began = time.process_time()

    hindsight = HindsightRelabel(reward, strategy="future", ratio=0.8, terminated_fn=reached)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(CAPACITY),
        transform=None if options.plain else hindsight,
        batch_size=BATCH,
    )
    envs = SyncVectorEnv([lambda: BitFlip(bits)] * ENVS)
    recorder = TrajectoryRecorder(buffer, envs)
    values = Values(bits)
    slow = copy.deepcopy(values)
    optimiser = torch.optim.Adam(values.parameters(), RATE)
    obs, _ = envs.reset(seed=options.seed)
    for taken in range(0, steps, ENVS):
        if taken % (steps // 5) < ENVS:
            print(f"{taken:6,d} steps: {success_rate(values, bits):4.0%} of goals reached", flush=True)
        with torch.no_grad():
            action = values(obs).argmax(-1).numpy()
        action = np.where(random.random(ENVS) < EXPLORE, random.integers(bits, size=ENVS), action)
        after, paid, terminated, truncated, info = envs.step(action)
        recorder.record(obs, action, paid, terminated, truncated, after, info)
        obs = after
        if taken >= WARM_UP:
            for _ in range(UPDATES):
                learn(buffer.sample(), values, slow, optimiser)
    envs.close()
    rate = success_rate(values, bits)
    print(f"{steps:6,d} steps: {rate:4.0%} of goals reached, in {time.process_time() - began:.0f} s of CPU")
    if not options.plain and rate < wanted:
        raise SystemExit(f"{rate:.0%} of the goals are reached, {wanted:.0%} were to be.")


if __name__ == "__main__":
    main()
