"""Soft actor-critic swings a pendulum up: continuous actions, and each observation stored once.

    python examples/sac_pendulum.py            # half a minute on one core
    python examples/sac_pendulum.py --quick    # seconds: no more than better than chance

Eight environments are stepped together. A ``TrajectoryRecorder`` writes what they do into a buffer whose
storage *derives* the next observation: it is the observation of the step behind it, so it is not stored a
second time. Pendulum's episodes are cut off after 200 steps and never end by themselves, so the value of
their last step comes from the observation after it, with which no step in the buffer begins. The storage
keeps that one aside.

Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", 2018, arXiv 1812.05905.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Sequence

import gymnasium
import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn import functional

from replaybank import LazyTensorStorage, TensorDictReplayBuffer, TrajectoryRecorder

ENVS, CAPACITY, BATCH, UPDATES = 8, 50_000, 256, 4  # updates for each step of the eight environments
GAMMA, TAU, RATE, HIDDEN, MAX_TORQUE = 0.99, 0.01, 1e-3, 64, 2.0
SOLVED, BETTER_THAN_CHANCE = -200.0, -950.0  # chance gets about -1200, the best policies -145


def network(inputs: int, outputs: int) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(
        *(nn.Linear(inputs, HIDDEN), nn.ReLU()),
        *(nn.Linear(HIDDEN, HIDDEN), nn.ReLU()),
        nn.Linear(HIDDEN, outputs),
    )


class Agent:
    """A policy, two critics with slow copies of them, and the price of being predictable."""

    def __init__(self, inputs: int, actions: int) -> None:
        self.policy = network(inputs, 2 * actions)
        self.critics = nn.ModuleList(network(inputs + actions, 1) for _ in range(2))
        self.slow_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.target_entropy = -float(actions)
        learned = (self.policy.parameters(), self.critics.parameters(), [self.log_alpha])
        self.optimisers = [torch.optim.Adam(parameters, RATE) for parameters in learned]

    def act(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Random actions in [-1, 1], ``[B, A]``, and the logarithms of their densities, ``[B, 1]``."""
        mean, log_std = self.policy(observation).chunk(2, -1)
        log_std = log_std.clamp(-5, 2)
        noise = torch.randn_like(mean)
        drawn = mean + log_std.exp() * noise
        log_normal = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)
        log_slope = 2 * (math.log(2) - drawn - functional.softplus(-2 * drawn))  # log(1 - tanh(drawn) ** 2)
        return drawn.tanh(), (log_normal - log_slope).sum(-1, keepdim=True)

    def best(self, observation: Tensor) -> Tensor:
        """The policy's mean, ``[B, A]``."""
        mean: Tensor = self.policy(observation).chunk(2, -1)[0]
        return mean.tanh()

    def value(self, critics: nn.ModuleList, observation: Tensor, action: Tensor) -> Tensor:
        """What the more pessimistic critic says, ``[B, 1]``."""
        pair = torch.cat([observation, action], -1)
        return torch.minimum(critics[0](pair), critics[1](pair))

    def update(self, batch: TensorDictBase) -> None:
        """Learn from steps ``[B]``."""
        alpha = self.log_alpha.exp().detach()
        observation, after = batch["observation"], batch["next"]
        with torch.no_grad():
            action, log_density = self.act(after["observation"])
            value_after = self.value(self.slow_critics, after["observation"], action) - alpha * log_density
            # An episode that was cut off would have gone on: only after a terminated one there is nothing.
            target = after["reward"] / 10 + GAMMA * ~after["terminated"] * value_after
        pair = torch.cat([observation, batch["action"]], -1)
        losses = [functional.mse_loss(critic(pair), target) for critic in self.critics]
        descend(self.optimisers[1], losses[0] + losses[1])

        action, log_density = self.act(observation)
        self.critics.requires_grad_(False)
        value = self.value(self.critics, observation, action)
        descend(self.optimisers[0], (alpha * log_density - value).mean())
        self.critics.requires_grad_(True)
        too_predictable = (log_density + self.target_entropy).mean().detach()
        descend(self.optimisers[2], -self.log_alpha * too_predictable)
        with torch.no_grad():
            for slow, fast in zip(self.slow_critics.parameters(), self.critics.parameters(), strict=True):
                slow.lerp_(fast, TAU)


def descend(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step down a loss."""
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


@torch.no_grad()
def mean_return(agent: Agent, episodes: int = 20, seed: int = 1_000) -> float:
    """Of the policy's mean actions, over whole episodes."""
    envs = gymnasium.make_vec("Pendulum-v1", num_envs=episodes)
    obs, _ = envs.reset(seed=seed)
    total = 0.0
    for _ in range(200):
        obs, reward, *_ = envs.step(agent.best(torch.from_numpy(obs)).numpy() * MAX_TORQUE)
        total += float(reward.sum())
    envs.close()
    return total / episodes


def bytes_a_step(steps: TensorDictBase, observation: Tensor, how: str | None) -> float:
    """What steps ``[envs, T]`` take with such observations, derived (``how="derive"``) or stored (None)."""
    seen = observation.expand(*steps.batch_size, *observation.shape)
    steps = steps.copy().set("observation", seen).set(("next", "observation"), seen)
    storage = LazyTensorStorage(steps.numel(), ndim=2, next_observation=how)
    TensorDictReplayBuffer(storage=storage).extend(steps)
    return storage.stored_bytes() / len(storage)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, watch, and say what deriving saves."""
    parser = argparse.ArgumentParser(description="SAC on Pendulum, each observation stored once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a few seconds: no more than better than chance")
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # networks this small are fastest on one
    steps, warm_up = (4_000, 500) if options.quick else (16_000, 1_000)
    began = time.process_time()

    envs = gymnasium.make_vec("Pendulum-v1", num_envs=ENVS)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(
            CAPACITY, ndim=2, next_observation="derive"
        ),  # a column for each environment
        batch_size=BATCH,
    )
    recorder = TrajectoryRecorder(buffer, envs)
    agent = Agent(inputs=3, actions=1)
    obs, _ = envs.reset(seed=options.seed)
    for taken in range(0, steps, ENVS):
        if taken % 2_000 == 0:
            print(f"{taken:6,d} steps: mean return {mean_return(agent):8.1f}", flush=True)
        with torch.no_grad():
            action, _ = agent.act(torch.from_numpy(obs))
        after, reward, terminated, truncated, info = envs.step(action.numpy() * MAX_TORQUE)
        recorder.record(obs, action, reward, terminated, truncated, after, info)
        obs = after
        if taken >= warm_up:
            for _ in range(UPDATES):
                agent.update(buffer.sample())
    envs.close()
    reached = mean_return(agent)
    print(f"{steps:6,d} steps: mean return {reached:8.1f} in {time.process_time() - began:.0f} s of CPU")

    print("\nBytes a step                      derived    stored")
    frames = torch.zeros(4, 84, 84, dtype=torch.uint8)
    for what, observation in {
        "these, 3 numbers": torch.zeros(3),
        "a Humanoid's, 348 numbers": torch.zeros(348),
        "Atari's, 4 x 84 x 84 pixels": frames,
    }.items():
        derived, stored = (bytes_a_step(buffer[:, :50], observation, how) for how in ("derive", None))
        print(f"{what:30} {derived:10,.0f}{stored:10,.0f}")

    wanted = BETTER_THAN_CHANCE if options.quick else SOLVED
    if reached < wanted:
        raise SystemExit(f"The mean return is {reached:.1f}, {wanted:.0f} was to be reached.")


if __name__ == "__main__":
    main()
