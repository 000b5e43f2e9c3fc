"""Behaviour cloning on tensors in memory: what is learnt, from what, and judged on what."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from tensordict import NonTensorStack, TensorDict, TensorDictBase
from torch import Tensor

from replaybank.demo import arm
from replaybank.demo.network import Cloner, Layout, Scale, Steps, shrink
from replaybank.demo.training import choose_held_out, train


class Memory:
    """Steps in memory that are drawn uniformly."""

    def __init__(self, steps: TensorDictBase, seed: int = 0) -> None:
        self.steps = steps
        self.drawn: list[int] = []
        self._generator = torch.Generator().manual_seed(seed)

    def sample(self, batch_size: int) -> TensorDictBase:
        index = torch.randint(len(self.steps), (batch_size,), generator=self._generator)
        return self[index]

    def __getitem__(self, index: Tensor) -> TensorDictBase:
        found: TensorDictBase = self.steps[index]
        return found


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small batches gain nothing from threads, and lose much where other processes want the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def steps_of_vectors(episodes: int = 10, length: int = 20, seed: int = 0) -> TensorDictBase:
    """Episodes in which the action is a simple function of the state."""
    generator = torch.Generator().manual_seed(seed)
    state = torch.randn(episodes * length, 4, generator=generator)
    action = torch.stack([state[:, 0] - state[:, 1], state[:, 2].tanh()], dim=1)
    episode = torch.arange(episodes, dtype=torch.int32).repeat_interleave(length)
    return TensorDict({"observation": {"state": state}, "action": action, "episode": episode}, [len(state)])


def steps_of_arm(episodes: int) -> TensorDictBase:
    parts: list[TensorDictBase] = []
    for number in range(episodes):
        steps = arm.as_steps(arm.simulate(number))
        length = len(steps["action",])
        observation = {
            name: torch.as_tensor(steps["observation", name]).permute(0, 3, 1, 2)
            for name in ("image", "hand_image")
        }
        observation["state"] = torch.as_tensor(steps["observation", "state"])
        entries = {"observation": observation, "action": torch.as_tensor(steps["action",])}
        entries["episode"] = torch.full((length,), number, dtype=torch.int32)
        parts.append(TensorDict(entries, [length]))
    joined: TensorDictBase = TensorDict.cat(parts)
    return joined


def test_the_held_out_loss_of_the_arm_falls_below_that_of_the_mean_action() -> None:
    memory = Memory(steps_of_arm(16))
    result = train(memory, memory.steps["episode"], seconds=math.inf, max_updates=60, batch_size=64)
    assert result.updates == 60
    assert result.start == pytest.approx(result.mean_action, rel=1e-5)
    assert result.end < 0.8 * result.mean_action
    assert len(result.held_out) == 3


def test_a_function_of_the_state_is_learnt() -> None:
    memory = Memory(steps_of_vectors())
    losses: list[float] = []
    parts: list[float] = []

    def note(part: float, loss: float) -> None:
        parts.append(part)
        losses.append(loss)

    result = train(
        memory, memory.steps["episode"], seconds=math.inf, max_updates=300, batch_size=64, on_progress=note
    )
    assert result.ratio < 0.1
    assert len(losses) == result.updates == 300
    assert parts == sorted(parts)
    assert parts[0] == 0.0
    assert parts[-1] <= 1.0


def test_steps_of_held_out_episodes_are_never_trained_on() -> None:
    steps = steps_of_vectors()
    clean = Memory(steps)
    reference = train(clean, steps["episode"], seconds=0.0)
    held_out = torch.isin(steps["episode"], torch.tensor(reference.held_out))
    poisoned = steps.clone()
    poisoned["action"][held_out] = math.nan
    losses: list[float] = []
    memory = Memory(poisoned)
    result = train(
        memory,
        steps["episode"],
        seconds=math.inf,
        max_updates=20,
        on_progress=lambda _, loss: losses.append(loss),
    )
    assert result.held_out == reference.held_out
    assert all(math.isfinite(loss) for loss in losses)


def test_a_number_of_updates_gives_the_same_result_again() -> None:
    steps = steps_of_vectors()
    results = [train(Memory(steps), steps["episode"], seconds=math.inf, max_updates=5) for _ in range(2)]
    assert results[0].end == results[1].end


def test_a_fifth_of_the_episodes_is_held_out_and_at_least_one() -> None:
    for count, expected in ((2, 1), (3, 1), (10, 2), (25, 5), (40, 8)):
        episodes = torch.arange(count).repeat_interleave(3)
        held_out = choose_held_out(episodes, torch.Generator().manual_seed(1))
        assert len(held_out.unique()) == expected
        assert torch.equal(held_out, choose_held_out(episodes, torch.Generator().manual_seed(1)))


def test_one_episode_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 of them; this dataset has 1"):
        train(Memory(steps_of_vectors(1)), torch.zeros(20, dtype=torch.int32), seconds=0.0)


def test_actions_that_never_vary_are_refused() -> None:
    steps = steps_of_vectors()
    steps["action"].fill_(0.1)
    with pytest.raises(ValueError, match="all the same"):
        train(Memory(steps), steps["episode"], seconds=0.0)


def test_a_padded_dimension_of_the_action_does_not_count() -> None:
    steps = steps_of_vectors()
    padded = steps.clone()
    padded["action"] = torch.cat([steps["action"], torch.full((len(steps), 3), 0.1)], dim=1)
    plain, wide = (train(Memory(s), s["episode"], seconds=0.0) for s in (steps, padded))
    assert wide.mean_action == pytest.approx(plain.mean_action)
    assert math.isfinite(wide.end)


def test_the_baseline_is_the_mean_squared_deviation_from_the_training_mean() -> None:
    steps = steps_of_vectors()
    result = train(Memory(steps), steps["episode"], seconds=0.0)
    held_out = torch.isin(steps["episode"], torch.tensor(result.held_out))
    known, judged = steps["action"][~held_out], steps["action"][held_out]
    expected = ((judged - known.mean(0)) / known.std(0, correction=0)).square().mean().item()
    assert result.mean_action == pytest.approx(expected, rel=1e-5)


def test_nested_actions_odd_observations_and_text_are_sorted_out() -> None:
    steps = TensorDict(
        {
            "observation": {
                "wrist": torch.zeros(6, 3, 20, 30, dtype=torch.uint8),
                "grey": torch.zeros(6, 1, 64, 64, dtype=torch.uint8),
                "depth": torch.zeros(6, 100, 100),
                "gripper": torch.tensor([True, False] * 3),
                "pose": {"x": torch.zeros(6), "q": torch.zeros(6, 2, 2, dtype=torch.float64)},
                "text": NonTensorStack(*["reach"] * 6),
            },
            "action": {"world_vector": torch.ones(6, 3), "grip": torch.arange(6)},
            "language_embedding": torch.zeros(6, 512),
        },
        [6],
    )
    layout = Layout.of(steps)
    assert layout.cameras == (("observation", "grey"), ("observation", "wrist"))
    assert layout.numbers == (
        ("observation", "gripper"),
        ("observation", "pose", "q"),
        ("observation", "pose", "x"),
    )
    assert layout.actions == (("action", "grip"), ("action", "world_vector"))
    assert layout.left_out == (("observation", "depth"), ("observation", "text"))
    taken = Steps.of(steps, layout)
    assert [frames.shape[1:] for frames in taken.frames] == [(1, 64, 64), (3, 64, 64)]
    assert taken.numbers.shape == (6, 6)
    assert taken.actions[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert Cloner(taken, Scale.of(taken.numbers))(taken).shape == (6, 4)


def test_steps_without_action_or_observation_are_refused() -> None:
    for steps in (
        TensorDict({"observation": {"state": torch.zeros(3, 2)}}, [3]),
        TensorDict({"action": torch.zeros(3, 2)}, [3]),
    ):
        with pytest.raises(ValueError, match="behaviour cloning needs"):
            Layout.of(steps)


@pytest.mark.parametrize("size", [(64, 64), (32, 48), (256, 320), (480, 640), (65, 200)])
def test_frames_of_any_size_become_64_by_64_and_keep_their_brightness(size: tuple[int, int]) -> None:
    height, width = size
    ramp = torch.linspace(0, 255, width).round().to(torch.uint8).expand(2, 3, height, width)
    small = shrink(ramp)
    assert small.shape == (2, 3, 64, 64)
    assert small.dtype == torch.uint8
    expected = torch.linspace(0, 255, 64)
    torch.testing.assert_close(small[0, 0, 5].float(), expected, atol=9.0, rtol=0.0)


def test_numbers_that_are_not_finite_count_as_zero() -> None:
    steps = TensorDict(
        {"observation": {"s": torch.tensor([[math.nan, 1.0], [math.inf, 2.0]])}, "action": torch.ones(2, 1)},
        [2],
    )
    assert Steps.of(steps, Layout.of(steps)).numbers.tolist() == [[0.0, 1.0], [0.0, 2.0]]


def test_a_value_that_barely_varied_in_training_cannot_swamp_the_others() -> None:
    scale = Scale.of(torch.tensor([[0.0, 1.0], [1e-3, 2.0]]))
    assert scale(torch.tensor([[5.0, 1.5]])).tolist() == [[10.0, 0.0]]


def test_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.get_rng_state()
    steps = steps_of_vectors()
    train(Memory(steps), steps["episode"], seconds=0.0)
    assert torch.equal(torch.get_rng_state(), expected)
