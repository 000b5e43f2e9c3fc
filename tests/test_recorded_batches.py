"""From environments to batches: what is recorded into a small ring, and what transforms make of it.

Each observation of the counting environments says which environment, episode and step it is of. So a batch
can be held against what is in the storage, without knowing where it lies there.
"""

from __future__ import annotations

import random
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from buffers.counting_envs import counting_envs, length_of, reward_of
from depth import examples
from replaybank import (
    FrameStack,
    HindsightRelabel,
    LazyMemmapStorage,
    LazyTensorStorage,
    NStep,
    TensorDictReplayBuffer,
    TrajectoryRecorder,
)
from stream_world import SAMPLERS

GAMMA = 0.5
NO_GOAL = -7.0

STRATEGIES: list[Literal["future", "final", "episode"] | None] = [None, "future", "final", "episode"]

Step = tuple[int, int, int]


def paid(achieved: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
    """A reward that tells the step and the goal."""
    return achieved[:, 2] * 100.0 + goal[:, 2]


def at_goal(achieved: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
    return (achieved == goal).all(-1)


class World:
    """Some environments, recorded into one or several rings that may be smaller than an episode."""

    def __init__(self, seed: int) -> None:
        choose = random.Random(seed)
        self.choose = choose
        self.mode = choose.choice(["next_step", "same_step", "disabled"])
        self.envs: Any = counting_envs(choose.randint(1, 3), self.mode)
        layout = choose.choice(["columns", "in one", "a buffer each"])
        self.n = choose.choice([0, 1, 2, 3, 8])
        self.frames = choose.choice([0, 1, 2, 4])
        self.strategy = choose.choice(STRATEGIES)
        self.ends = choose.random() < 0.5
        self.sampler = choose.choice(list(SAMPLERS))
        transforms: list[Any] = []
        if self.n:
            transforms.append(NStep(self.n, GAMMA))
        if self.frames:
            transforms.append(FrameStack(self.frames, dim=None))
        if self.strategy:
            transforms.append(
                HindsightRelabel(
                    paid,
                    strategy=self.strategy,
                    ratio=0.7,
                    terminated_fn=at_goal if self.ends else None,
                    achieved_goal="observation",
                )
            )
        choose.shuffle(transforms)
        columns, rows = self.envs.num_envs, choose.randint(1, 15)
        kind: Any = choose.choice([LazyTensorStorage, LazyTensorStorage, LazyMemmapStorage])
        derive = choose.choice([None, "derive"])
        self.buffers = [
            TensorDictReplayBuffer(
                storage=kind(
                    size, ndim=ndim, **({} if kind is LazyMemmapStorage else {"next_observation": derive})
                ),
                sampler=SAMPLERS[self.sampler](size),
                transform=transforms,
                batch_size=9,
                generator=torch.Generator().manual_seed(seed + number),
            )
            for number, (size, ndim) in enumerate(
                [(rows * columns, 2)]
                if layout == "columns"
                else [(rows * columns, 1)]
                if layout == "in one"
                else [(rows, 1)] * columns
            )
        ]
        self.recorder = TrajectoryRecorder(
            self.buffers if layout == "a buffer each" else self.buffers[0],
            self.envs,
            max_waiting=100,  # neither are episodes written in parts, nor steps given up
        )
        # Where columns run behind each other, what cuts one off cuts the others off too, in mid-episode.
        self.may_reset = self.mode != "next_step" or layout != "columns"
        self.obs, _ = self.envs.reset(seed=0)

    def go_on(self, calls: int) -> None:
        """Step the environments, and now and then reset them in mid-episode."""
        for _ in range(calls):
            if self.may_reset and self.choose.random() < 0.05:
                self.obs, _ = self.envs.reset()
                self.recorder.reset()
            action = self.envs.action_space.sample()
            after, reward, terminated, truncated, info = self.envs.step(action)
            goal = np.full((self.envs.num_envs, 3), NO_GOAL, np.float32)
            extra = {"desired_goal": goal}
            self.recorder.record(self.obs, action, reward, terminated, truncated, after, info, extra=extra)
            if self.mode == "disabled" and (terminated | truncated).any():
                after, _ = self.envs.reset(options={"reset_mask": terminated | truncated})
            self.obs = after

    def check(self, buffer: TensorDictReplayBuffer) -> None:
        """A batch holds what follows from what is in the storage."""
        stored = buffer.storage[:].reshape(-1)
        there: set[Step] = {tuple(step) for step in stored["observation"].int().tolist()}
        assert len(there) == len(buffer)
        batch = buffer.sample()
        terminated = batch["next", "terminated"].reshape(-1).tolist()
        for k in range(len(batch)):
            now = batch["observation"][k]
            frames = now.int().tolist() if self.frames else [now.int().tolist()]
            env, episode, step = frames[-1]
            assert frames == _stack(there, (env, episode, step), self.frames or 1)
            last = step
            while last - step + 1 < self.n and (env, episode, last + 1) in there:
                last += 1
            goal = [int(number) for number in batch["desired_goal"][k].tolist()]
            if goal[0] == NO_GOAL:
                rewards = [reward_of(env, episode, at) for at in range(step, last + 1)]
                terminal = _terminated(env, episode, last)
            else:
                assert goal[:2] == [env, episode]
                first, newest = _reach(there, (env, episode, step))
                allowed: dict[str | None, Any] = {
                    "future": range(step + 1, newest + 2),
                    "final": [newest + 1],
                    "episode": range(first + 1, newest + 2),
                }
                assert "slices" in self.sampler or goal[2] in allowed[self.strategy]
                assert first < goal[2] <= newest + 1
                if self.ends and step < goal[2] <= last + 1:
                    last = goal[2] - 1
                terminal = last + 1 == goal[2] if self.ends else _terminated(env, episode, last)
                rewards = [(at + 1) * 100.0 + goal[2] for at in range(step, last + 1)]
            expected = sum(GAMMA**power * reward for power, reward in enumerate(rewards))
            assert float(batch["next", "reward"][k]) == pytest.approx(expected, rel=1e-6)
            assert terminated[k] is terminal
            after = batch["next", "observation"][k].int().tolist()
            behind = _stack(there | {(env, episode, last + 1)}, (env, episode, last + 1), self.frames or 1)
            oldest = _reach(there, (env, episode, step))[0]
            behind = [frame if frame[2] >= oldest else [env, episode, oldest] for frame in behind]
            assert after == (behind if self.frames else behind[-1])
            if self.n:
                assert int(batch["steps_to_next_obs"][k]) == last - step + 1
                assert float(batch["gamma"][k]) == GAMMA ** (last - step + 1)
                assert bool(batch["nonterminal"][k]) is not terminal
        if "prioritized" in self.sampler:
            batch["td_error"] = batch["index"].reshape(len(batch), -1).float().sum(-1) + 0.5
            buffer.update_tensordict_priority(batch)


def _reach(there: set[Step], step: Step) -> tuple[int, int]:
    """The oldest and the newest step of an episode that are there in one piece with a step."""
    env, episode, first = step
    last = first
    while (env, episode, first - 1) in there:
        first -= 1
    while (env, episode, last + 1) in there:
        last += 1
    return first, last


def _stack(there: set[Step], step: Step, count: int) -> list[list[int]]:
    env, episode, number = step
    first = _reach(there, step)[0]
    return [[env, episode, max(number - back, first)] for back in range(count - 1, -1, -1)]


def _terminated(env: int, episode: int, step: int) -> bool:
    return step == length_of(env, episode) - 1 and (env + episode) % 3 != 0


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_batches_of_recorded_steps_follow_from_what_is_stored(seed: int) -> None:
    world = World(seed)
    for _ in range(4):
        world.go_on(world.choose.randint(1, 12))
        for buffer in world.buffers:
            if len(buffer):
                world.check(buffer)
                world.check(buffer)
    world.envs.close()
