"""Sampling transforms against brute force, with every sampler and storage, at the cursor and over ends."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from depth import examples
from reference.streams import discounted
from replaybank import FrameStack, HindsightRelabel, NStep
from stream_world import SAMPLERS, World


def close(found: torch.Tensor, expected: list[float]) -> bool:
    return bool(torch.allclose(found.squeeze(-1), torch.tensor(expected), atol=1e-6))


def joined(frames: list[list[float]]) -> list[float]:
    return [number for frame in frames for number in frame]


def check_ends(world: World, batch: TensorDict, last: list[Any]) -> None:
    """The flags are those of the last steps; of slices ``truncated`` says where they end."""
    assert batch["next", "terminated"].squeeze(-1).tolist() == [step.terminated for step in last]
    truncated = batch["next", "truncated"].squeeze(-1).tolist()
    done = [step.done for step in last]
    if world.slices:
        done = [ended or cut for ended, cut in zip(done, truncated, strict=True)]
    else:
        assert truncated == [step.truncated for step in last]
    assert batch["next", "done"].squeeze(-1).tolist() == done


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_n_step_returns_are_those_of_the_twin(seed: int, n: int, gamma: float) -> None:
    world = World(seed, NStep(n, gamma))
    streams, batch = world.streams, world.batch
    runs = [streams.run(column, place, n) for column, place in world.steps(batch)]
    assert close(batch["next", "reward"], [discounted([s.reward for s in run], gamma) for run in runs])
    assert close(batch["next", "original_reward"], [run[0].reward for run in runs])
    assert batch["next", "observation"].tolist() == [run[-1].after for run in runs]
    assert batch["steps_to_next_obs"].tolist() == [[len(run)] for run in runs]
    assert close(batch["gamma"], [gamma ** len(run) for run in runs])
    assert batch["nonterminal"].tolist() == [[not run[-1].terminated] for run in runs]
    assert batch["observation"].tolist() == [run[0].observation for run in runs]
    check_ends(world, batch, [run[-1] for run in runs])


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.sampled_from([None, -1.0, 0.5]))
def test_stacked_frames_are_those_of_the_twin(seed: int, n: int, value: float | None) -> None:
    padding: Any = "same" if value is None else "constant"
    world = World(seed, FrameStack(n, dim=None, padding=padding, padding_value=value or 0))
    streams, batch = world.streams, world.batch
    pad = None if value is None else [value, value]
    steps = world.steps(batch)
    assert batch["observation"].tolist() == [streams.frames(*step, n, pad) for step in steps]
    assert batch["next", "observation"].tolist() == [streams.next_frames(*step, n, pad) for step in steps]


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_frames_and_returns_go_together_in_either_order(seed: int, n: int, m: int, swapped: bool) -> None:
    transforms = [NStep(n, 0.9), FrameStack(m, dim=-1)]
    world = World(seed, transforms[::-1] if swapped else transforms)
    streams, batch = world.streams, world.batch
    steps = world.steps(batch)
    last = [(column, streams.run(column, place, n)[-1].place) for column, place in steps]
    assert batch["observation"].tolist() == [joined(streams.frames(*step, m, None)) for step in steps]
    assert batch["next", "observation"].tolist() == [
        joined(streams.next_frames(*step, m, None)) for step in last
    ]


def multiple(achieved: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
    """A reward that tells which two numbers it was made of."""
    return achieved * 1000.0 + goal


@settings(max_examples=examples(40), deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["future", "final", "episode"]),
    st.integers(1, 4),
    st.booleans(),
)
def test_goals_of_hindsight_are_reached_in_the_trajectory(
    seed: int, strategy: Any, n: int, frames: bool
) -> None:
    relabel = HindsightRelabel(multiple, strategy=strategy, ratio=0.7)
    world = World(seed, [NStep(n, 0.5), *([FrameStack(2)] if frames else []), relabel])
    streams, batch = world.streams, world.batch
    for k, (column, place) in enumerate(world.steps(batch)):
        goal = int(batch["desired_goal"][k])
        run = streams.run(column, place, n)
        if goal == -7:
            expected = [step.reward for step in run]
        else:
            trajectory = [step.place for step in streams.trajectory(column, place)]
            allowed = {
                "future": [at for at in trajectory if at >= place],
                "final": trajectory[-1:],
                "episode": trajectory,
            }[strategy]
            assert goal - 1 in allowed
            expected = [(step.place + 1) * 1000.0 + goal for step in run]
        found = float(batch["next", "reward"][k])
        assert math.isclose(found, discounted(expected, 0.5), rel_tol=1e-5, abs_tol=1e-5)


def ends_at_goal(achieved: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
    return achieved == goal


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.sampled_from(["future", "final", "episode"]))
def test_a_return_ends_where_the_new_goal_is_reached(seed: int, n: int, strategy: Any) -> None:
    relabel = HindsightRelabel(multiple, strategy=strategy, ratio=0.7, terminated_fn=ends_at_goal)
    world = World(seed, [relabel, NStep(n, 0.5)])
    streams, batch = world.streams, world.batch
    for k, (column, place) in enumerate(world.steps(batch)):
        goal, run = int(batch["desired_goal"][k]), streams.run(column, place, n)
        terminal = run[-1].terminated
        if goal != -7:
            until = [step for step in run if step.place + 1 <= goal] if goal > place else run
            terminal = until[-1].place + 1 == goal
            run = until
        assert int(batch["steps_to_next_obs"][k]) == len(run)
        assert bool(batch["next", "terminated"][k]) is terminal
        assert bool(batch["nonterminal"][k]) is not terminal
        assert batch["next", "observation"][k].tolist() == run[-1].after


@settings(max_examples=examples(30), deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["slices", "slices without replacement", "prioritized slices"]),
)
def test_the_steps_of_a_slice_share_a_goal_reached_after_it(seed: int, sampler: str) -> None:
    world = World(seed, HindsightRelabel(multiple, ratio=0.5), sampler)
    streams, batch = world.streams, world.batch
    goals, ends = batch["desired_goal"].squeeze(-1).tolist(), batch["next", "truncated"].squeeze(-1).tolist()
    steps = world.steps(batch)
    first = 0
    for k, end in enumerate(ends):
        if end:
            assert len(set(goals[first : k + 1])) == 1
            column, place = steps[k]
            later = [s.place + 1 for s in streams.trajectory(column, place) if s.place >= place]
            assert goals[k] == -7 or goals[k] in later
            first = k + 1


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_index_and_the_weights_stay_as_sampled(sampler: str) -> None:
    plain, changed = World(3, None, sampler), World(3, [NStep(3, 0.9), FrameStack(2)], sampler)
    for key in ("index", "place", "column", *(key for key in plain.batch.keys() if "priority" in str(key))):  # noqa: SIM118
        assert torch.equal(plain.batch[key], changed.batch[key])
