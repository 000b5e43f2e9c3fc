"""Double DQN on CartPole, with prioritized replay and returns over three steps.

    python examples/dqn_cartpole.py                     # until it is solved: ten seconds on one core
    python examples/dqn_cartpole.py --replay uniform    # the same, each step as likely as any other
    python examples/dqn_cartpole.py --compare           # both, three seeds each, and a plot: one minute
    python examples/dqn_cartpole.py --quick             # a few seconds: better than chance?

What the buffer does here: eight environments are recorded as they come, a column of the storage each; batches
are drawn by priority; rewards are summed over three steps when a batch is drawn, never across the end of an
episode; and where the time limit cut an episode off, the value of its true last observation counts.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from replaybank import (
    LazyTensorStorage,
    NStep,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    TrajectoryRecorder,
)

ENVIRONMENTS = 8
GAMMA = 0.99
WARM_UP = 1_000  # steps before the first update, with random actions
EXPLORE = 10_000  # steps in which the share of random actions falls to a twentieth
UPDATES = 2  # for every step of the eight environments
EVERY = 1_000  # steps between evaluations
SOLVED = 475.0  # the mean return from which on Gymnasium calls CartPole-v1 solved; 500 is the most

Curve = list[tuple[int, float]]  # steps of experience, and the mean return of the greedy policy after them


def make_buffer(replay: str, seed: int) -> TensorDictReplayBuffer:
    """What is kept, and what a batch is: the part that replaybank plays."""
    common: dict[str, Any] = {
        "storage": LazyTensorStorage(100_000, ndim=2),  # time, and a column for each environment
        "transform": NStep(3, gamma=GAMMA),
        "batch_size": 128,
        "generator": torch.Generator().manual_seed(seed),
    }
    if replay == "prioritized":
        return TensorDictPrioritizedReplayBuffer(alpha=0.6, beta=0.4, priority_key="td_error", **common)
    return TensorDictReplayBuffer(**common)


class QNetwork(nn.Module):
    """Of observations ``[B, 4]`` the values of both actions, ``[B, 2]``."""

    def __init__(self) -> None:
        super().__init__()
        hidden = nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()
        self.values = nn.Sequential(*hidden, nn.Linear(128, 2))

    def forward(self, obs: Tensor) -> Tensor:
        """The angle is a small number, and matters as much as the place and the speeds."""
        values: Tensor = self.values(obs * torch.tensor([0.5, 0.5, 5.0, 0.5]))
        return values


def update(batch: TensorDictBase, network: QNetwork, target: QNetwork, adam: torch.optim.Adam) -> None:
    """Make one gradient step, and put the TD errors, which become priorities, into the batch."""
    after = batch["next", "observation"]  # three steps on, or as many as there were
    with torch.no_grad():
        best = network(after).argmax(-1, keepdim=True)  # double: one network chooses, the other one judges
        value = target(after).gather(-1, best)
        # "nonterminal" is False only where the pole fell: what the time limit cut off would have gone on.
        goal = batch["next", "reward"] + batch["gamma"] * batch["nonterminal"] * value
    error = network(batch["observation"]).gather(-1, batch["action"].unsqueeze(-1)) - goal
    loss = nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none").squeeze(-1)
    weight = batch.get("priority_weight", torch.ones(()))  # what is drawn more often counts less
    adam.zero_grad()
    (loss * weight).mean().backward()
    nn.utils.clip_grad_norm_(network.parameters(), 10.0)
    adam.step()
    batch["td_error"] = error.detach().abs()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), network.parameters(), strict=True):
            slow.lerp_(fast, 0.05)


def greedy(network: QNetwork, obs: np.ndarray) -> np.ndarray:
    """The better action for each observation."""
    with torch.no_grad():
        best: np.ndarray = network(torch.from_numpy(obs)).argmax(-1).numpy()
    return best


def evaluate(network: QNetwork, episodes: int, seed: int) -> float:
    """The mean return of the greedy policy, in episodes of its own."""
    envs = gymnasium.make_vec("CartPole-v1", num_envs=episodes)
    obs, _ = envs.reset(seed=seed)
    returns, alive = np.zeros(episodes), np.ones(episodes, dtype=np.bool_)
    while alive.any():
        obs, reward, terminated, truncated, _ = envs.step(greedy(network, obs))
        returns += reward * alive
        alive &= ~(terminated | truncated)
    envs.close()
    return float(returns.mean())


def train(replay: str, seed: int, steps: int, *, until_solved: bool) -> Curve:
    """Learn from so many steps of experience, or until it is solved."""
    began = time.process_time()
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    network = QNetwork()
    target = copy.deepcopy(network)
    adam = torch.optim.Adam(network.parameters(), lr=2e-3)
    envs = gymnasium.make_vec("CartPole-v1", num_envs=ENVIRONMENTS)
    buffer = make_buffer(replay, seed)
    recorder = TrajectoryRecorder(buffer, envs)
    curve: Curve = []
    obs, _ = envs.reset(seed=seed)
    for step in range(ENVIRONMENTS, steps + 1, ENVIRONMENTS):
        chance = 1.0 if step <= WARM_UP else max(0.05, 1.0 - step / EXPLORE)
        at_random = random.random(ENVIRONMENTS) < chance
        action = np.where(at_random, random.integers(2, size=ENVIRONMENTS), greedy(network, obs))
        after, reward, terminated, truncated, info = envs.step(action)
        recorder.record(obs, action, reward, terminated, truncated, after, info)
        obs = after
        for _ in range(UPDATES if step > WARM_UP else 0):
            batch = buffer.sample()
            update(batch, network, target, adam)
            buffer.update_tensordict_priority(batch)  # nothing to do for uniform replay
        if step % EVERY == 0:
            score = evaluate(network, 20, seed=step)
            curve.append((step, score))
            print(f"{replay}, seed {seed}, {step:6,d} steps: mean return {score:5.1f}", flush=True)
            if until_solved and score >= SOLVED:
                score = evaluate(network, 100, seed=step + 1)  # was it luck?
                print(f"    in 100 more episodes {score:5.1f}, {time.process_time() - began:.0f} s of CPU")
                if score >= SOLVED:
                    break
    envs.close()
    return curve


def plot(curves: dict[str, list[Curve]], path: str) -> None:
    """Draw the learning curves, each seed thin and their mean thick."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for color, (replay, runs) in zip(("tab:blue", "tab:orange"), curves.items(), strict=True):
        for run in runs:
            axes.plot(*zip(*run, strict=True), color=color, alpha=0.3, linewidth=1)
        means = [
            (same[0][0], statistics.fmean(score for _, score in same)) for same in zip(*runs, strict=True)
        ]
        axes.plot(*zip(*means, strict=True), color=color, label=f"{replay} replay, mean of {len(runs)} seeds")
    axes.axhline(SOLVED, color="gray", linestyle=":")
    axes.set(xlabel="steps of experience", ylabel="mean return of 20 episodes", ylim=(0, 510))
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=100)
    print(f"the curves are in {path}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description="Double DQN on CartPole-v1")
    parser.add_argument("--replay", choices=["prioritized", "uniform"], default="prioritized")
    parser.add_argument(
        "--compare", action="store_true", help="both kinds of replay, three seeds each, and a plot"
    )
    parser.add_argument("--plot", default="dqn_cartpole.png", help="where --compare draws the curves")
    parser.add_argument("--seed", type=int, default=0, help="the first one of --compare")
    parser.add_argument("--quick", action="store_true", help="a few seconds: is it better than chance?")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # networks this small are fastest on one
    steps = 3_000 if options.quick else 12_000 if options.compare else 30_000
    kinds = ["prioritized", "uniform"] if options.compare else [options.replay]
    seeds = range(options.seed, options.seed + (3 if options.compare and not options.quick else 1))
    curves = {
        kind: [train(kind, seed, steps, until_solved=not options.compare) for seed in seeds] for kind in kinds
    }
    if options.compare:
        plot(curves, options.plot)
    wanted = 60.0 if options.quick else SOLVED  # chance gets 22, an untrained network 10
    for kind, runs in curves.items():
        worst = min(max(score for _, score in run) for run in runs)
        if worst < wanted:
            raise SystemExit(f"With {kind} replay the mean return is {worst:.0f} at best, not {wanted:.0f}.")


if __name__ == "__main__":
    main()
