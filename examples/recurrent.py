"""A recurrent agent in a T-maze: Q-learning with a GRU, on slices of episodes with burn-in.

    python examples/recurrent.py                 # ten seconds on one core: turns rightly in every maze
    python examples/recurrent.py --memoryless    # the same without memory: in half of them, at best
    python examples/recurrent.py --quick         # seconds: better than any agent without memory?

What the buffer does here: slices of 12 steps are drawn by priority, none across the end of an episode, each
with the four steps before it in front. It brings the GRU's state from when it was recorded; an older network
made that state, so the four steps only warm it up. Slices of shorter episodes are padded, with a mask.

Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning", ICLR 2019.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict import TensorDictBase
from torch import Tensor, nn

from replaybank import (
    BurnIn,
    LazyTensorStorage,
    PrioritizedSliceSampler,
    TensorDictReplayBuffer,
    TrajectoryRecorder,
    split_trajectories,
)

ENVIRONMENTS = 16
LENGTHS = range(4, 13)  # of the corridor
GAMMA = 0.95
SLICE, BURN_IN = 12, 4
WARM_UP = 500  # steps before the first update
EXPLORE = 3_000  # steps in which the share of random actions falls to a tenth
UPDATES = 2  # for every step of the sixteen environments
EVERY = 1_600  # steps between evaluations


class TMaze(gymnasium.Env[np.ndarray, np.int64]):
    """A corridor that ends in a T. A sign, seen in the first step only, says where to turn at its end.

    Observations are ``[sign, at the end]``: the sign is 1 or -1 in the first step and 0 from then on. Actions
    are to walk on (0), and to turn to either side (1 and 2). The right turn at the end gives 1, the wrong one
    and running into walls -0.1.

    At the end of a corridor the last observation does not tell the two signs apart. So an agent without
    memory turns to the same side after both, and is wrong after one of them, whatever it has learned.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, length: int | None = None, sign: int | None = None) -> None:
        self.fixed = length, sign

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin in a maze of random length and sign, unless they were given."""
        super().reset(seed=seed)
        length, sign = self.fixed
        self.left = int(self.np_random.choice(LENGTHS)) if length is None else length
        self.sign = int(self.np_random.choice([-1, 1])) if sign is None else sign
        self.time = 0
        return np.array([self.sign, 0], np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Walk on or turn."""
        at_end, turned = self.left == 0, action != 0
        right = at_end and action == (1 if self.sign > 0 else 2)
        reward = 1.0 if right else -0.1 if at_end or turned else 0.0
        self.left -= not at_end and not turned
        self.time += 1
        return np.array([0, self.left == 0], np.float32), reward, at_end and turned, self.time == 40, {}


class QNetwork(nn.Module):
    """Values of the actions, given all observations up to now, or the last one only."""

    def __init__(self, memoryless: bool) -> None:
        super().__init__()
        self.memory = nn.GRU(2, 32, batch_first=True)
        self.values = nn.Sequential(nn.Linear(2 if memoryless else 32, 64), nn.ReLU(), nn.Linear(64, 3))
        self.memoryless = memoryless

    def forward(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Values ``[B, L, 3]`` of observations ``[B, L, 2]`` after states ``[B, 32]``; the last states."""
        if self.memoryless:
            return self.values(obs), state
        states, last = self.memory(obs, state.unsqueeze(0))
        return self.values(states), last.squeeze(0)


def update(
    batch: TensorDictBase, network: QNetwork, target: QNetwork, adam: torch.optim.Adam
) -> TensorDictBase:
    """Make one gradient step, and give the first steps of the slices, with the slices' priorities."""
    there = ~batch["padded"].squeeze(-1)  # fewer steps may lie before a slice than it is to warm up on
    slices = split_trajectories(batch[there])  # [slices, steps], with zeros where one is shorter
    burn_in = slices["burn_in"].squeeze(-1)
    obs = torch.cat([slices["observation"][:, :1], slices["next", "observation"]], dim=1)
    state = slices["state"][:, 0]
    values = network(obs, state)[0]
    with torch.no_grad():
        best = values[:, 1:].argmax(-1, keepdim=True)
        after = target(obs, state)[0][:, 1:].gather(-1, best).squeeze(-1)
        goes_on = ~slices["next", "terminated"].squeeze(-1)
        goal = slices["next", "reward"].squeeze(-1) + GAMMA * goes_on * after
    error = values[:, :-1].gather(-1, slices["action"].unsqueeze(-1)).squeeze(-1) - goal
    error = error * (slices["mask"] & ~burn_in)  # nothing is learned from padding and warming up
    loss = nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none")
    adam.zero_grad()
    (loss * slices["priority_weight"]).sum(1).mean().backward()
    nn.utils.clip_grad_norm_(network.parameters(), 10.0)
    adam.step()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), network.parameters(), strict=True):
            slow.lerp_(fast, 0.05)
    first = slices[torch.arange(len(slices)), burn_in.sum(1)]  # by their priorities slices are drawn
    first["td_error"] = 0.9 * error.detach().abs().amax(1) + 0.1 * error.detach().abs().mean(1)
    return first


def evaluate(network: QNetwork) -> float:
    """The share of all mazes, each length with both signs, in which the greedy policy turns rightly."""
    mazes = [partial(TMaze, length, sign) for length in LENGTHS for sign in (-1, 1)]
    envs = SyncVectorEnv(mazes)
    obs, _ = envs.reset()
    state = torch.zeros(len(mazes), 32)
    right, alive = np.zeros(len(mazes), dtype=np.bool_), np.ones(len(mazes), dtype=np.bool_)
    while alive.any():
        with torch.no_grad():
            values, state = network(torch.from_numpy(obs).unsqueeze(1), state)
        obs, reward, terminated, truncated, _ = envs.step(values[:, 0].argmax(-1).numpy())
        right |= alive & (reward == 1.0)
        alive &= ~(terminated | truncated)
    envs.close()
    return float(right.mean())


def train(memoryless: bool, seed: int, steps: int) -> list[float]:
    """Learn from so many steps of experience; gives the share of right turns, evaluated again and again."""
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    network = QNetwork(memoryless)
    target = copy.deepcopy(network)
    adam = torch.optim.Adam(network.parameters(), lr=2e-3)
    envs = SyncVectorEnv([TMaze] * ENVIRONMENTS, autoreset_mode=AutoresetMode.SAME_STEP)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(50_000, ndim=2),  # time, and a column for each environment
        sampler=PrioritizedSliceSampler(None, alpha=0.6, beta=0.4, slice_len=SLICE, strict_length=False),
        transform=BurnIn(BURN_IN, extend=True),
        batch_size=32 * SLICE,
        generator=torch.Generator().manual_seed(seed),
    )
    recorder = TrajectoryRecorder(buffer, envs)
    shares: list[float] = []
    obs, _ = envs.reset(seed=seed)
    state = torch.zeros(ENVIRONMENTS, 32)
    for step in range(ENVIRONMENTS, steps + 1, ENVIRONMENTS):
        with torch.no_grad():
            values, state_after = network(torch.from_numpy(obs).unsqueeze(1), state)
        at_random = random.random(ENVIRONMENTS) < max(0.1, 1.0 - step / EXPLORE)
        action = np.where(at_random, random.integers(3, size=ENVIRONMENTS), values[:, 0].argmax(-1).numpy())
        after, reward, terminated, truncated, info = envs.step(action)
        recorder.record(obs, action, reward, terminated, truncated, after, info, extra={"state": state})
        obs = after
        state = state_after.masked_fill(torch.from_numpy(terminated | truncated).unsqueeze(-1), 0.0)
        for _ in range(UPDATES if step > WARM_UP else 0):
            first = update(buffer.sample(), network, target, adam)
            buffer.update_tensordict_priority(first)
        if step % EVERY == 0:
            shares.append(evaluate(network))
            print(f"{step:6,d} steps: {shares[-1]:4.0%} of the turns are right", flush=True)
            if shares[-2:] == [1.0, 1.0]:
                break
    envs.close()
    return shares


def main(arguments: Sequence[str] | None = None) -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description="A recurrent agent in a T-maze.")
    parser.add_argument("--memoryless", action="store_true", help="a network of the last observation only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a few seconds, then check that it remembers")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # networks this small are fastest on one
    began = time.process_time()
    shares = train(options.memoryless, options.seed, steps=6_400 if options.quick else 12_800)
    print(f"{time.process_time() - began:.0f} s of CPU")
    if options.memoryless and max(shares) > 0.5:
        raise SystemExit("An agent without memory has seen the sign at the end of a corridor: this is wrong.")
    if not options.memoryless and max(shares) < (0.75 if options.quick else 1.0):
        raise SystemExit(f"{max(shares):.0%} right turns at best: it has not learned to remember.")


if __name__ == "__main__":
    main()
