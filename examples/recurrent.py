"""A recurrent agent in a T-maze, learning from slices of what it did.

    python examples/recurrent.py                # finds out: turns rightly nearly always
    python examples/recurrent.py --memoryless   # cannot: turns rightly half of the time
    python examples/recurrent.py --quick        # a few seconds: does it learn?
"""

from __future__ import annotations

import argparse
import copy
import time
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
CORRIDOR = 8
HIDDEN = 32
GAMMA = 0.95
SLICE, BURN_IN = 8, 2
SLICES = 32
LR, TAU, ALPHA = 2e-3, 0.05, 0.6


class TMaze(gymnasium.Env[np.ndarray, int]):
    """A corridor with a sign at its start, which says where to turn at its end.

    The observation is ``[sign, at the end]``; the sign is +1 (up) or -1 (down) in the first step, and 0 from then on. Actions
    are 0, walk on, 1, turn up, and 2, turn down. 
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.sign = int(self.np_random.integers(2)) * 2 - 1
        self.place = self.time = 0
        return np.array([self.sign, 0], np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        at_end = self.place == CORRIDOR
        terminated = at_end and action != 0
        right = at_end and action == (1 if self.sign > 0 else 2)
        wasted = (action != 0) != at_end  # turned against the wall, or walked into it
        self.place += int(action == 0 and not at_end)
        self.time += 1
        reward = 1.0 if right else -0.1 if wasted else 0.0
        return np.array([0, self.place == CORRIDOR], np.float32), reward, terminated, self.time >= 3 * CORRIDOR, {}


class QNetwork(nn.Module):
    def __init__(self, memoryless: bool) -> None:
        super().__init__()
        self.memory = None if memoryless else nn.GRU(2, HIDDEN, batch_first=True)
        self.body = nn.Sequential(nn.Linear(2 if memoryless else HIDDEN, 64), nn.ReLU(), nn.Linear(64, 3))

    def forward(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Of observations [B, L, 2] and states [B, H] the values [B, L, 3] and the states behind."""
        if self.memory is None:
            return self.body(obs), state
        hidden, last = self.memory(obs, state.unsqueeze(0))
        return self.body(hidden), last.squeeze(0)


def update(batch: TensorDictBase, network: QNetwork, target: QNetwork, optimiser: torch.optim.Optimizer) -> TensorDictBase:
    rows = split_trajectories(batch)  # [slices, steps], padded where a slice is shorter
    obs = torch.cat([rows["observation"][:, :1], rows["next", "observation"]], 1)
    state = rows["state"][:, 0]
    with torch.no_grad():
        value, best = target(obs, state)[0][:, 1:], network(obs, state)[0][:, 1:].argmax(-1, keepdim=True)
        goal = rows["next", "reward"] + GAMMA * ~rows["next", "terminated"] * value.gather(-1, best)
    error = network(obs, state)[0][:, :-1].gather(-1, rows["action"].unsqueeze(-1)) - goal
    exact = rows["is_init"][:, :1]  # slices from the start of an episode: nothing to warm up
    learn = rows["mask"] & (exact | ~rows["burn_in"].squeeze(-1))
    error = error.squeeze(-1) * learn
    loss = (nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none") * rows["priority_weight"]).sum() / learn.sum().clamp(1)
    optimiser.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(network.parameters(), 10.0)
    optimiser.step()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), network.parameters(), strict=True):
            slow.lerp_(fast, TAU)
    size = error.detach().abs()
    first = rows[:, 0]
    first["td_error"] = 0.9 * size.amax(1) + 0.1 * size.sum(1) / learn.sum(1).clamp(1)
    return first


@torch.no_grad()
def evaluate(network: QNetwork, episodes: int, seed: int) -> float:
    """Share of right turns of greedy."""
    envs = SyncVectorEnv([TMaze] * episodes)
    obs, _ = envs.reset(seed=seed)
    state = torch.zeros(episodes, HIDDEN)
    won, alive = np.zeros(episodes, bool), np.ones(episodes, bool)
    while alive.any():
        values, state = network(torch.from_numpy(obs).unsqueeze(1), state)
        obs, reward, terminated, truncated, _ = envs.step(values[:, 0].argmax(-1).numpy())
        won |= (reward == 1.0) & alive
        alive &= ~(terminated | truncated)
    return float(won.mean())


def train(memoryless: bool, seed: int, steps: int):
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    network = QNetwork(memoryless)
    target = copy.deepcopy(network)
    optimiser = torch.optim.Adam(network.parameters(), lr=LR)
    envs = SyncVectorEnv([TMaze] * ENVIRONMENTS, autoreset_mode=AutoresetMode.SAME_STEP)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(50_000, ndim=2),
        sampler=PrioritizedSliceSampler(None, alpha=ALPHA, beta=0.4, slice_len=SLICE, strict_length=False),
        transform=BurnIn(BURN_IN),
        batch_size=SLICES * SLICE,
        generator=torch.Generator().manual_seed(seed),
    )
    recorder = TrajectoryRecorder(buffer, envs)
    curve = []
    obs, _ = envs.reset(seed=seed)
    state = torch.zeros(ENVIRONMENTS, HIDDEN)
    for step in range(ENVIRONMENTS, steps + 1, ENVIRONMENTS):
        with torch.no_grad():
            values, after_state = network(torch.from_numpy(obs).unsqueeze(1), state)
        explore = max(0.1, 1 - step / 5000)
        action = np.where(random.random(ENVIRONMENTS) < explore, random.integers(3, size=ENVIRONMENTS), values[:, 0].argmax(-1).numpy())
        after, reward, terminated, truncated, info = envs.step(action)
        recorder.record(obs, action, reward, terminated, truncated, after, info, extra={"state": state})
        obs, state = after, after_state.masked_fill(torch.from_numpy(terminated | truncated).unsqueeze(-1), 0.0)
        if step >= 1000:
            buffer.update_tensordict_priority(update(buffer.sample(), network, target, optimiser))
        if step % 4000 == 0:
            curve.append((step, evaluate(network, 100, 0)))
    return curve


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--memoryless", action="store_true")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--steps", type=int, default=20_000)
    a = p.parse_args()
    t = time.process_time()
    torch.set_num_threads(1)
    print(train(a.memoryless, a.seed, a.steps))
    print("cpu", time.process_time() - t)
