"""What single sampling transforms make of known steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from reference.chi_square import assert_fits
from replaybank import (
    BurnIn,
    FrameStack,
    HindsightRelabel,
    LazyTensorStorage,
    MissingKeyError,
    NStep,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
)


def in_order(data: TensorDict, transform: Any, size: int | None = None, rows: int = 20) -> TensorDict:
    """All that is stored of some steps, through a transform, in the order of the slots."""
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(rows),
        sampler=SamplerWithoutReplacement(shuffle=False),
        transform=transform,
        batch_size=size or min(len(data), rows),
    )
    buffer.extend(data)
    batch: TensorDict = buffer.sample()
    return batch


def steps(reward: torch.Tensor, **after: torch.Tensor) -> TensorDict:
    count = len(reward)
    after = {"observation": torch.arange(1, count + 1), "reward": reward, **after}
    return TensorDict({"observation": torch.arange(count), "next": TensorDict(after, [count])}, [count])


def flags(*places: int, count: int = 5) -> torch.Tensor:
    made = torch.zeros(count, 1, dtype=torch.bool)
    made[list(places)] = True
    return made


def test_terminal_wins_over_truncated() -> None:
    data = steps(torch.ones(5, 1), done=flags(1, 2, 4), terminated=flags(1, 4), truncated=flags(1, 2))
    batch = in_order(data, NStep(2, 0.5))
    assert batch["nonterminal"].squeeze(-1).tolist() == [False, False, True, False, False]
    assert batch["next", "truncated"].squeeze(-1).tolist() == [True, True, True, False, False]


@pytest.mark.parametrize("truncated", [True, False])
def test_without_terminated_a_step_is_terminal_that_is_done_and_not_truncated(truncated: bool) -> None:
    more = {"truncated": flags(1)} if truncated else {}
    batch = in_order(steps(torch.ones(5, 1), done=flags(1, 4), **more), NStep(2, 0.5))
    assert batch["nonterminal"].squeeze(-1).tolist() == [truncated, truncated, True, False, False]


def test_without_ends_of_that_kind_nothing_is_said_of_them() -> None:
    data = steps(torch.ones(5, 1)).set("episode", torch.tensor([0, 0, 0, 1, 1]))
    batch = in_order(data, NStep(2, 0.5))
    assert "nonterminal" not in batch.keys()  # noqa: SIM118 (a TensorDict iterates over items)
    assert batch["steps_to_next_obs"].squeeze(-1).tolist() == [2, 2, 1, 2, 1]


def test_a_return_does_not_cross_the_cursor() -> None:
    data = steps(torch.arange(7.0), done=torch.zeros(7, dtype=torch.bool))
    batch = in_order(data, NStep(3, 1.0), rows=5)  # slots: 5, 6, 2, 3, 4
    assert batch["next", "reward"].tolist() == [11.0, 6.0, 9.0, 12.0, 15.0]
    assert batch["gamma"].tolist() == [1.0] * 5
    assert batch["steps_to_next_obs"].tolist() == [2, 1, 3, 3, 3]
    assert batch["next", "observation"].tolist() == [7, 7, 5, 6, 7]


def test_rewards_behind_the_end_are_not_looked_at() -> None:
    reward = torch.tensor([1.0, 2.0, math.inf, math.nan])
    batch = in_order(steps(reward, done=torch.tensor([False, True, False, True])), NStep(3, 0.5))
    assert batch["next", "reward"][:2].tolist() == [2.0, 2.0]


def test_a_discount_of_nothing_gives_the_reward_itself() -> None:
    batch = in_order(steps(torch.tensor([1.0, 2.0]), done=torch.tensor([False, True])), NStep(2, 0.0))
    assert batch["next", "reward"].tolist() == [1.0, 2.0]
    assert batch["gamma"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_returns_have_the_dtype_of_rewards(dtype: torch.dtype) -> None:
    batch = in_order(steps(torch.ones(3, 1, dtype=dtype), done=flags(2, count=3)), NStep(2, 0.5))
    assert batch["next", "reward"].dtype is batch["gamma"].dtype is dtype
    assert batch["next", "reward"].squeeze(-1).tolist() == [1.5, 1.5, 1.0]


def test_returns_of_whole_rewards_are_float32() -> None:
    batch = in_order(steps(torch.tensor([1, 2, 3]), done=flags(2, count=3)), NStep(2, 0.5))
    assert batch["next", "reward"].tolist() == [2.0, 3.5, 3.0]
    assert batch["next", "reward"].dtype is torch.float32
    assert batch["next", "original_reward"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n_steps", [7, 16, 17, 100, 10**12])
def test_returns_of_any_length_end_with_the_trajectory(dtype: torch.dtype, n_steps: int) -> None:
    batch = in_order(
        steps(torch.ones(25, 1, dtype=dtype), done=flags(3, 24, count=25)), NStep(n_steps, 1.0), rows=25
    )
    expected = [min(n_steps, left) for left in [*range(4, 0, -1), *range(21, 0, -1)]]
    assert batch["steps_to_next_obs"].squeeze(-1).tolist() == expected
    assert batch["next", "reward"].squeeze(-1).tolist() == expected


def test_returns_of_vectors_have_one_discount() -> None:
    batch = in_order(steps(torch.ones(3, 2, 4), done=flags(2, count=3)), NStep(2, 0.5))
    assert batch["next", "reward"].shape == (3, 2, 4)
    assert batch["next", "reward"][:, 1, 3].tolist() == [1.5, 1.5, 1.0]
    assert batch["gamma"].shape == batch["nonterminal"].shape == (3, 1, 1)


def test_complex_rewards_are_refused() -> None:
    data = steps(torch.ones(3, 1, dtype=torch.complex64), done=flags(2, count=3))
    with pytest.raises(TypeError, match=r"is torch\.complex64: a return is a sum of real rewards"):
        in_order(data, NStep(2, 0.5))


def test_several_rewards_are_summed_each() -> None:
    data = steps(torch.ones(3), done=flags(2, count=3))
    data["next", "cost"] = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    batch = in_order(data, NStep(2, 1.0, reward_keys=["reward", ("next", "cost")]))
    assert batch["next", "cost"].tolist() == [[4.0, 6.0], [8.0, 10.0], [5.0, 6.0]]
    assert batch["next", "reward"].tolist() == [2.0, 2.0, 1.0]
    assert batch["next", "original_cost"].tolist() == data["next", "cost"].tolist()


def test_steps_and_discount_can_be_changed() -> None:
    transform = NStep(1, 0.5)
    data = steps(torch.ones(3), done=torch.tensor([False, False, True]))
    assert in_order(data, transform)["next", "reward"].tolist() == [1.0, 1.0, 1.0]
    transform.n_steps, transform.gamma = 3, 1.0
    assert in_order(data, transform)["next", "reward"].tolist() == [3.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"n_steps": 0, "gamma": 0.9}, "n_steps=0"),
        ({"n_steps": 1, "gamma": 1.5}, r"gamma=1\.5"),
        ({"n_steps": 1, "gamma": -0.1}, r"gamma=-0\.1"),
        ({"n_steps": 1, "gamma": math.nan}, "gamma=nan"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        NStep(**arguments)


def test_missing_entries_are_named_beside_those_there_are() -> None:
    data = steps(torch.ones(2), done=flags(1, count=2))
    with pytest.raises(MissingKeyError, match=r"no reward \('next', 'cost'\).*observation"):
        in_order(data, NStep(2, 0.9, reward_keys=["cost"]))
    with pytest.raises(MissingKeyError, match=r"no frames 'pixels'.*observation"):
        in_order(data, FrameStack(2, in_keys=["pixels"]))
    with pytest.raises(MissingKeyError, match=r"no entry \('next', 'achieved_goal'\)"):
        in_order(data, HindsightRelabel(torch.eq))
    with pytest.raises(MissingKeyError, match="does not say where trajectories end"):
        in_order(data, NStep(2, 0.9, end_key="over"))


# --- frames


def test_frames_are_joined_along_a_dimension_or_a_new_one() -> None:
    images = torch.arange(3 * 2 * 4).view(3, 1, 2, 4)
    data = TensorDict({"pixels": images, "episode": torch.zeros(3)}, [3])
    joined = in_order(data, FrameStack(2, dim=-3, in_keys=["pixels"]))["pixels"]
    assert torch.equal(joined, torch.cat([images[[0, 0, 1]], images], 1))
    wide = in_order(data, FrameStack(2, dim=-1, in_keys=["pixels"]))["pixels"]
    assert torch.equal(wide, torch.cat([images[[0, 0, 1]], images], -1))
    stacked = in_order(data, FrameStack(2, dim=None, in_keys=["pixels"]))["pixels"]
    assert torch.equal(stacked, torch.stack([images[[0, 0, 1]], images], 1))


def test_frames_may_be_put_beside_the_entry() -> None:
    data = steps(torch.ones(2, 1), done=flags(1, count=2))
    batch = in_order(data, FrameStack(2, dim=None, in_keys=["observation"], out_keys=["stacked"]))
    assert batch["observation"].tolist() == [0, 1]
    assert batch["stacked"].tolist() == [[0, 0], [0, 1]]
    assert batch["next", "stacked"].tolist() == [[0, 1], [1, 2]]


def test_an_entry_under_next_alone_is_stacked_by_itself() -> None:
    data = steps(torch.ones(3, 1), done=flags(2, count=3))
    batch = in_order(data, FrameStack(2, dim=None, in_keys=[("next", "reward")]))
    assert batch["next", "reward"].shape == (3, 2, 1)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.float8_e5m2, torch.bool, torch.bfloat16, torch.int8])
def test_frames_of_every_dtype_are_padded(dtype: torch.dtype) -> None:
    data = steps(torch.ones(3, 1), done=flags(2, count=3))
    data["frame"] = torch.zeros(3, 2).to(dtype)
    batch = in_order(data, FrameStack(2, in_keys=["frame"], padding="constant", padding_value=1))
    assert batch["frame"].dtype is dtype
    assert batch["frame"].float().tolist() == [[1.0, 1.0, 0.0, 0.0], [0.0] * 4, [0.0] * 4]


def test_frames_without_that_dimension_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"shape \[\] have no dimension -1"):
        in_order(steps(torch.ones(2), done=flags(1, count=2)), FrameStack(2))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"n": 0}, "n=0"),
        ({"n": 2, "dim": 1}, "dim=1"),
        ({"n": 2, "padding": "zeros"}, "padding='zeros'"),
        ({"n": 2, "out_keys": ["a", "b"]}, "1 in_keys and 2 out_keys"),
    ],
)
def test_frames_that_cannot_be_are_refused(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        FrameStack(**arguments)


# --- goals


def goals(count: int, *ends: int) -> TensorDict:
    places = torch.arange(count)
    after = {"achieved_goal": places + 1, "reward": torch.zeros(count), "done": flags(*ends, count=count)}
    data = {"achieved_goal": places, "desired_goal": torch.full((count,), -7), "next": after}
    return TensorDict(data, [count])


def test_goals_are_uniform_over_what_the_strategy_allows() -> None:
    """False alarms: one in 10^6 for each of the two statistics; the seed is fixed."""
    for strategy, choices in (("future", [3, 4, 5, 6]), ("episode", [2, 3, 4, 5, 6])):
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(8),
            transform=HindsightRelabel(torch.eq, strategy=strategy, ratio=1.0),  # type: ignore[arg-type]
            batch_size=8000,
            generator=torch.Generator().manual_seed(1),
        )
        buffer.extend(goals(8, 0, 5, 7))
        batch = buffer.sample()
        found = batch["desired_goal"][batch["achieved_goal"] == 2]
        assert_fits(found.tolist(), dict.fromkeys(choices, 1 / len(choices)))


def test_the_ratio_is_the_share_of_steps_that_get_another_goal() -> None:
    """Within five standard deviations: a false alarm in 10^6; the seed is fixed."""
    for ratio in (0.0, 0.3, 1.0):
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(8),
            transform=HindsightRelabel(torch.eq, ratio=ratio),
            batch_size=10000,
            generator=torch.Generator().manual_seed(1),
        )
        buffer.extend(goals(8, 7))
        share = float((buffer.sample()["desired_goal"] != -7).double().mean())
        assert abs(share - ratio) <= 5 * math.sqrt(ratio * (1 - ratio) / 10000)


def test_goals_are_found_under_the_observation_as_gymnasium_nests_them() -> None:
    data = goals(4, 3)
    nested = TensorDict(
        {
            "observation": data.select("achieved_goal", "desired_goal"),
            "next": {
                "observation": TensorDict(
                    {
                        "achieved_goal": data["next", "achieved_goal"],
                        "desired_goal": data["desired_goal"],
                    },
                    [4],
                ),
                **data["next"].exclude("achieved_goal"),
            },
        },
        [4],
    )

    def reward(achieved: torch.Tensor, goal: torch.Tensor) -> np.ndarray[Any, Any]:
        made: np.ndarray[Any, Any] = -np.abs(achieved.numpy() - goal.numpy())
        return made  # an array, as compute_reward gives it

    batch = in_order(nested, HindsightRelabel(reward, strategy="final", ratio=1.0))
    assert batch["observation", "desired_goal"].tolist() == [4] * 4
    assert batch["next", "observation", "desired_goal"].tolist() == [4] * 4
    assert batch["next", "reward"].tolist() == [-3.0, -2.0, -1.0, 0.0]


def test_ends_stay_as_stored_without_a_function_for_them() -> None:
    data = goals(4, 1, 3)
    data["next", "terminated"] = data["next", "done"].clone()
    batch = in_order(data, HindsightRelabel(torch.eq, ratio=1.0))
    assert torch.equal(batch["next", "terminated"], data["next", "terminated"])


def test_rewards_of_another_number_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"was given 4 goals and gave values of shape \[1\]"):
        in_order(goals(4, 3), HindsightRelabel(lambda achieved, goal: torch.zeros(1), ratio=1.0))


@pytest.mark.parametrize("value", [None, "one"])
def test_rewards_that_are_no_numbers_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"<lambda> was given 4 goals and gave a .* Give a tensor, an array"):
        in_order(goals(4, 3), HindsightRelabel(lambda achieved, goal: value, ratio=1.0))


def test_rewards_that_a_network_made_carry_no_gradient() -> None:
    weight = torch.ones(1, requires_grad=True)
    batch = in_order(goals(4, 3), HindsightRelabel(lambda achieved, goal: achieved * weight, ratio=1.0))
    assert not batch["next", "reward"].requires_grad


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.uint16, torch.int64, torch.bfloat16, torch.float64]
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 4, 4)])
def test_goals_of_every_form_are_relabelled(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    data = goals(4, 3)
    for key in ("achieved_goal", "desired_goal", ("next", "achieved_goal")):
        number = data[key].view(4, *(1,) * len(shape)).expand(4, *shape)
        data[key] = (number == 4 if dtype is torch.bool else number).clone().to(dtype)

    def reached(achieved: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        assert achieved.dtype is goal.dtype is dtype
        return (achieved == goal).reshape(len(achieved), -1).all(1)

    batch = in_order(data, HindsightRelabel(reached, strategy="final", ratio=1.0))
    assert batch["next", "reward"].tolist() == [0.0, 0.0, 0.0, 1.0]
    assert batch["desired_goal"].dtype is dtype
    assert torch.equal(
        batch["desired_goal"].double(), torch.full((4, *shape), 1.0 if dtype is torch.bool else 4.0).double()
    )


def test_goals_of_another_shape_than_what_is_achieved_are_refused() -> None:
    data = goals(4, 3)
    data["desired_goal"] = torch.zeros(4, 2)
    with pytest.raises(RuntimeError, match=r"is of shape \[\], and the goal 'desired_goal' of shape \[2\]"):
        in_order(data, HindsightRelabel(torch.eq, ratio=1.0))


@pytest.mark.parametrize(("name", "value"), [("strategy", "random"), ("ratio", 1.5), ("ratio", -0.5)])
def test_settings_of_hindsight_that_cannot_be_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}="):
        HindsightRelabel(torch.eq, **{name: value})


# --- burn-in


def test_the_first_steps_of_each_slice_are_marked() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(8),
        sampler=SliceSampler(slice_len=3, strict_length=False),
        transform=[BurnIn(2), NStep(2, 0.9)],
        batch_size=60,
        generator=torch.Generator().manual_seed(0),
    )
    buffer.extend(goals(8, 0, 4, 7))
    batch, place, seen = buffer.sample(), 0, set()
    for marked, end in zip(batch["burn_in"].tolist(), batch["next", "truncated"].tolist(), strict=True):
        assert marked == [place < 2]
        place = 0 if end[0] else place + 1
        seen.add((place, end[0]))
    assert {(0, True), (2, False)} <= seen


def test_burn_in_needs_slices() -> None:
    with pytest.raises(RuntimeError, match=r"BurnIn.*Use a SliceSampler"):
        in_order(goals(4, 3), BurnIn(2))
