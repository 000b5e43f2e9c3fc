"""Recording Gymnasium environments (C70), in all autoreset modes, against what they must have done."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from tensordict import TensorDict

from buffers.counting_envs import CountingEnv, Transition, counting_envs, length_of
from replaybank import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSliceSampler,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
    TrajectoryRecorder,
)
from replaybank.buffers.step_sinks import ColumnSink

MODES = ["next_step", "same_step", "disabled"]
LAYOUTS = ["columns", "episodes", "buffers"]
ENVS = 3
DONE = ("next", "done")


def true_steps(env: int, calls: int, mode: str) -> list[Transition]:
    """The transitions that an environment makes in so many calls of ``step``."""
    made: list[Transition] = []
    episode = 0
    while calls > 0:
        steps = min(length_of(env, episode), calls)
        made += [Transition(env, episode, step) for step in range(steps)]
        calls -= length_of(env, episode) + (mode == "next_step")  # a call in which it resets
        episode += 1
    return made


def buffers_for(layout: str, capacity: int = 4096, **options: Any) -> list[ReplayBuffer]:
    """Buffers with room for ``capacity`` rows of each environment."""
    if layout == "columns":
        return [TensorDictReplayBuffer(storage=LazyTensorStorage(capacity * ENVS, ndim=2, **options))]
    if layout == "episodes":
        return [TensorDictReplayBuffer(storage=LazyTensorStorage(capacity * ENVS, **options))]
    return [TensorDictReplayBuffer(storage=LazyTensorStorage(capacity, **options)) for _ in range(ENVS)]


def recorder_for(buffers: list[ReplayBuffer], envs: Any, **options: Any) -> TrajectoryRecorder:
    return TrajectoryRecorder(buffers[0] if len(buffers) == 1 else buffers, envs, **options)


def run(recorder: TrajectoryRecorder, envs: Any, calls: int, obs: Any = None) -> Any:
    """Step the environments, as their user does; gives the last observation."""
    if obs is None:
        obs, _ = envs.reset(seed=0)
    for _ in range(calls):
        action = envs.action_space.sample()
        after, reward, terminated, truncated, info = envs.step(action)
        recorder.record(obs, action, reward, terminated, truncated, after, info)
        if recorder.autoreset == "disabled" and (terminated | truncated).any():
            after, _ = envs.reset(options={"reset_mask": terminated | truncated})
        obs = after
    return obs


def vector(observation: Any) -> Any:
    """The entry that says what an observation is of."""
    return observation if isinstance(observation, torch.Tensor) else observation["vector"]


def transition_of(step: TensorDict) -> Transition:
    """What a stored step is; all of it must belong together."""
    env, episode, number = (int(part) for part in vector(step["observation"]))
    made = Transition(env, episode, number)
    assert vector(step["next", "observation"]).tolist() == [env, episode, number + 1]
    assert step["next", "reward"].dtype is torch.float32
    assert step["next", "reward"].tolist() == [made.reward]
    assert step["next", "terminated"].tolist() == [made.terminated]
    assert step["next", "truncated"].tolist() == [made.truncated]
    assert step[DONE].tolist() == [made.last]
    assert bool(step["is_init"]) == (number == 0)
    assert int(step["step"]) == number
    if "env" in step.keys():  # noqa: SIM118 (a TensorDict iterates over items)
        assert int(step["env"]) == env
    return made


def stored(buffers: list[ReplayBuffer]) -> list[Transition]:
    """All stored steps, checked."""
    return [transition_of(step) for buffer in buffers for step in buffer.storage[:].reshape(-1)]


def check_slices(buffer: ReplayBuffer, slice_len: int, **keys: Any) -> int:
    """Every slice is consecutive steps of one episode of one environment; gives how many episodes came."""
    capacity = buffer.storage.max_size
    generator = torch.Generator().manual_seed(0)
    samplers = [
        SliceSampler(slice_len=slice_len, **keys),
        PrioritizedSliceSampler(capacity, alpha=0.7, beta=0.5, slice_len=slice_len, **keys),
    ]
    seen: set[tuple[int, int]] = set()
    for sampler in samplers:
        reader = TensorDictReplayBuffer(
            storage=buffer.storage, sampler=sampler, batch_size=64 * slice_len, generator=generator
        )
        batch = reader.sample().reshape(64, slice_len)
        for piece in batch:
            first = transition_of_sample(piece[0])
            expected = [(first[0], first[1], first[2] + k) for k in range(slice_len)]
            assert [transition_of_sample(step) for step in piece] == expected
            assert len(set(piece["episode"].tolist())) == 1
            seen.add(first[:2])
    return len(seen)


def transition_of_sample(step: TensorDict) -> tuple[int, int, int]:
    env, episode, number = (int(part) for part in vector(step["observation"]))
    assert vector(step["next", "observation"]).tolist() == [env, episode, number + 1]
    return env, episode, number


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("kind", ["box", "dict"])
@pytest.mark.parametrize("derive", [False, True])
def test_c70_every_true_transition_is_stored_and_nothing_else(
    mode: str, layout: str, kind: str, derive: bool
) -> None:
    envs = counting_envs(ENVS, mode, kind)
    buffers = buffers_for(layout, next_observation="derive" if derive else None)
    recorder = recorder_for(buffers, envs)
    run(recorder, envs, 90)
    recorder.flush()
    made = [step for env in range(ENVS) for step in true_steps(env, 90, mode)]
    found = stored(buffers)
    assert len(set(found)) == len(found)
    assert set(found) <= set(made)
    assert len(found) + recorder.waiting == len(made) == recorder.steps
    assert recorder.episodes == sum(step.last for step in made)
    if layout == "columns":
        columns = [true_steps(env, 90, mode) for env in range(ENVS)]
        rows = min(map(len, columns))
        assert len(buffers[0].storage) == rows * ENVS
        for env, column in enumerate(buffers[0].storage[:].unbind(1)):
            assert [transition_of(step) for step in column] == columns[env][:rows]
    else:
        assert recorder.waiting == 0


@pytest.mark.parametrize("keys", [{}, {"traj_key": "episode"}, {"end_key": DONE}])
@pytest.mark.parametrize("capacity", [13, 4096])
def test_c70_slices_are_consecutive_steps_of_one_episode_of_one_environment(
    mode: str, layout: str, keys: dict[str, Any], capacity: int
) -> None:
    envs = counting_envs(ENVS, mode)
    buffers = buffers_for(layout, capacity, next_observation="derive")
    recorder = recorder_for(buffers, envs, max_waiting=64)
    run(recorder, envs, 60)
    recorder.flush()
    for buffer in buffers:
        assert check_slices(buffer, 3, **keys) > 1


def test_without_resets_in_steps_all_are_in_the_buffer_at_once(layout: str) -> None:
    envs = counting_envs(ENVS, "same_step")
    buffers = buffers_for(layout)
    recorder = recorder_for(buffers, envs)
    obs = None
    for call in range(1, 15):
        obs = run(recorder, envs, 1, obs)
        if layout != "episodes":
            assert recorder.waiting == 0
            assert sum(map(len, buffers)) == call * ENVS


def test_whole_episodes_lie_together_in_one_dimension(mode: str) -> None:
    envs = counting_envs(ENVS, mode)
    buffers = buffers_for("episodes")
    recorder = recorder_for(buffers, envs)
    run(recorder, envs, 50)
    steps = stored(buffers)
    for one, other in pairwise(steps):
        assert (other.env, other.episode, other.step) == (one.env, one.episode, one.step + 1) or (
            one.last and other.step == 0
        )
    assert recorder.waiting == sum(
        len(true) - sum(step.env == env for step in steps)
        for env, true in enumerate(true_steps(env, 50, mode) for env in range(ENVS))
    )


def test_long_episodes_are_written_in_parts_that_slices_do_not_join(mode: str) -> None:
    envs = counting_envs(ENVS, mode)
    buffers = buffers_for("episodes")
    recorder = recorder_for(buffers, envs, max_waiting=2)
    run(recorder, envs, 50)
    assert recorder.waiting <= ENVS
    assert max(step.step for step in stored(buffers)) > 2
    for keys in ({"end_key": DONE}, {"traj_key": "episode"}):
        check_slices(buffers[0], 2, **keys)


def test_flushing_in_mid_episode_joins_nothing(layout: str, mode: str) -> None:
    envs = counting_envs(ENVS, mode)
    buffers = buffers_for(layout)
    recorder = recorder_for(buffers, envs)
    obs = None
    for _ in range(20):
        obs = run(recorder, envs, 2, obs)
        recorder.flush()
    for buffer in buffers:
        check_slices(buffer, 2, end_key=DONE)
        check_slices(buffer, 2)


def test_a_reset_by_hand_in_mid_episode_joins_nothing(layout: str, mode: str) -> None:
    envs = counting_envs(ENVS, mode)
    buffers = buffers_for(layout)
    with recorder_for(buffers, envs) as recorder:
        for calls in (4, 1, 3, 2, 7, 5, 1, 1, 6, 8, 9):
            run(recorder, envs, calls)
            recorder.reset()
    found = stored(buffers)
    assert len(set(found)) == len(found)
    assert len(found) + recorder.waiting == recorder.steps
    for buffer in buffers:
        check_slices(buffer, 2, end_key=DONE)
        check_slices(buffer, 2)


def test_a_reset_of_some_environments_by_hand_joins_nothing(layout: str) -> None:
    envs = counting_envs(ENVS, "disabled")
    buffers = buffers_for(layout)
    recorder = recorder_for(buffers, envs)
    obs = None
    for call in range(30):
        obs = run(recorder, envs, 1, obs)
        mask = np.array([(call + env) % 4 == 0 for env in range(ENVS)])
        if mask.any():
            obs, _ = envs.reset(options={"reset_mask": mask})
            recorder.reset(mask)
    recorder.flush()
    for buffer in buffers:
        check_slices(buffer, 2, end_key=DONE)
        check_slices(buffer, 2)


def test_a_reset_that_was_not_told_is_an_error_and_nothing_is_recorded(layout: str, mode: str) -> None:
    envs = counting_envs(ENVS, mode)
    buffers = buffers_for(layout)
    recorder = recorder_for(buffers, envs)
    run(recorder, envs, 7)
    before = recorder.steps, recorder.waiting, stored(buffers)
    with pytest.raises(ValueError, match=r"obs of environment \d is not the next_obs .* recorder.reset\(\)"):
        run(recorder, envs, 1)
    assert (recorder.steps, recorder.waiting, stored(buffers)) == before


def test_an_environment_far_ahead_gives_its_oldest_steps_up_with_one_warning() -> None:
    class Uneven(CountingEnv):
        def step(self, action: Any) -> Any:
            obs, reward, _, _, info = super().step(action)
            return obs, reward, self.number == 0 and self.step_number == 2, False, info

    envs = SyncVectorEnv([lambda n=n: Uneven(n) for n in range(2)])  # type: ignore[misc]
    buffer = ReplayBuffer(storage=LazyTensorStorage(2000, ndim=2))
    recorder = TrajectoryRecorder(buffer, envs, max_waiting=10)
    with pytest.warns(RuntimeWarning, match="a buffer for each environment") as caught:
        run(recorder, envs, 150)
    assert len(caught) == 1
    assert recorder.waiting <= 2 * 10
    columns = buffer.storage[:].unbind(1)
    assert [len(column) for column in columns] == [100, 100]  # two steps of three calls
    numbers = columns[1]["observation"][:, 2].tolist()
    assert numbers == sorted(numbers)
    cuts = buffer.storage.log.cut[1:100]
    gaps = torch.tensor(numbers).diff() != 1
    assert gaps.any()
    assert torch.equal(cuts, gaps)
    reader = TensorDictReplayBuffer(
        storage=buffer.storage, sampler=SliceSampler(slice_len=2, end_key=DONE), batch_size=400
    )
    assert (reader.sample().reshape(-1, 2)["step"].diff(dim=1) == 1).all()


def test_a_step_whose_warning_is_an_error_was_not_taken() -> None:
    sink = ColumnSink(ReplayBuffer(storage=LazyTensorStorage(10, ndim=2)), 2, most=3)
    first, none = np.array([True, False]), np.zeros(2, np.bool_)
    for number in range(3):
        sink.write({("x",): torch.full((2,), number)}, first, none, none)
    with pytest.raises(RuntimeWarning, match="raise max_waiting"):  # warnings are errors in tests
        sink.write({("x",): torch.full((2,), 3)}, first, none, none)
    assert sink.waiting == 3
    sink.write({("x",): torch.full((2,), 3)}, first, none, none)
    assert sink.waiting == 2


def test_a_buffer_that_holds_data_keeps_it_apart(layout: str, mode: str) -> None:
    buffers = buffers_for(layout)
    for _ in range(3):
        envs = counting_envs(ENVS, mode)
        with recorder_for(buffers, envs) as recorder:
            run(recorder, envs, 5)
    ids = torch.cat([buffer.storage[:]["episode"].reshape(-1) for buffer in buffers])
    first = torch.cat([buffer.storage[:]["observation"].reshape(-1, 3) for buffer in buffers])
    by_id: dict[int, set[tuple[float, ...]]] = {}
    for number, observation in zip(ids.tolist(), first.tolist(), strict=True):
        by_id.setdefault(number, set()).add(tuple(observation))
    assert sum(map(len, by_id.values())) == ids.numel()  # no id names two episodes of the same numbers
    for buffer in buffers:
        check_slices(buffer, 2, end_key=DONE)
        check_slices(buffer, 2)


def test_two_recorders_on_one_buffer_in_turn_join_nothing() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(1000, ndim=2))
    pairs = []
    for _ in range(2):
        envs = counting_envs(ENVS, "same_step")
        pairs.append((TrajectoryRecorder(buffer, envs), envs, envs.reset(seed=0)[0]))
    for _ in range(20):
        pairs = [(recorder, envs, run(recorder, envs, 2, obs)) for recorder, envs, obs in pairs]
    check_slices(buffer, 2, end_key=DONE)
    check_slices(buffer, 2)


@pytest.mark.parametrize("storage", [lambda: ListStorage(500), lambda: LazyMemmapStorage(500)])
def test_other_storages_hold_the_same(mode: str, storage: Any) -> None:
    envs = counting_envs(ENVS, mode, "dict")
    buffers = [ReplayBuffer(storage=storage()) for _ in range(ENVS)]
    run(TrajectoryRecorder(buffers, envs), envs, 30)
    for env, buffer in enumerate(buffers):
        steps = [buffer.storage[k] for k in range(len(buffer))]
        assert [transition_of(step) for step in steps] == true_steps(env, 30, mode)
    whole = ReplayBuffer(storage=storage())
    envs = counting_envs(ENVS, mode, "dict")
    with TrajectoryRecorder(whole, envs) as recorder:
        run(recorder, envs, 30)
    steps = [whole.storage[k] for k in range(len(whole))]
    made = [step for env in range(ENVS) for step in true_steps(env, 30, mode)]
    assert sorted(map(str, map(transition_of, steps))) == sorted(map(str, made))


def test_asynchronous_environments_are_recorded_alike() -> None:
    makers = [lambda n=n: CountingEnv(n, "dict") for n in range(2)]
    envs = AsyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    try:
        buffer = ReplayBuffer(storage=LazyTensorStorage(500, ndim=2))
        run(TrajectoryRecorder(buffer, envs), envs, 25)
        for env, column in enumerate(buffer.storage[:].unbind(1)):
            assert [transition_of(step) for step in column] == true_steps(env, 25, "same_step")
    finally:
        envs.close()


def test_a_single_environment_is_recorded_without_a_dimension_for_it() -> None:
    env = CountingEnv(4, "dict")
    buffer = ReplayBuffer(storage=LazyTensorStorage(500, next_observation="derive"))
    recorder = TrajectoryRecorder(buffer, env)
    for _ in range(6):
        obs, _ = env.reset()
        ended = False
        while not ended:
            action = env.action_space.sample()
            after, reward, terminated, truncated, info = env.step(action)
            recorder.record(obs, action, reward, terminated, truncated, after, info)
            obs, ended = after, terminated or truncated
    steps = [transition_of(step) for step in buffer.storage[:]]
    assert steps == [Transition(4, k, t) for k in range(6) for t in range(length_of(4, k))]
    assert buffer.storage[0]["observation", "inner", "0"].shape == ()
    assert buffer.storage[0]["action", "b"].shape == (2,)


def test_a_single_environment_that_resets_itself_is_seen_through() -> None:
    env = gymnasium.wrappers.Autoreset(CountingEnv(1))
    buffer = ReplayBuffer(storage=LazyTensorStorage(500))
    recorder = TrajectoryRecorder(buffer, env)
    assert recorder.autoreset == "next_step"
    obs, _ = env.reset()
    for _ in range(30):
        after, reward, terminated, truncated, info = env.step(env.action_space.sample())
        recorder.record(obs, 0, reward, terminated, truncated, after, info)
        obs = after
    assert [transition_of(step) for step in buffer.storage[:]] == true_steps(1, 30, "next_step")


@pytest.mark.parametrize("autoreset", list(AutoresetMode))
def test_cartpole_is_recorded_in_its_true_steps(autoreset: AutoresetMode) -> None:
    envs = gymnasium.make_vec(
        "CartPole-v1", num_envs=4, vectorization_mode="sync", vector_kwargs={"autoreset_mode": autoreset}
    )
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4000, ndim=2, next_observation="derive"))
    recorder = TrajectoryRecorder(buffer, envs)
    assert recorder.autoreset == autoreset.name.lower()
    envs.action_space.seed(0)
    run(recorder, envs, 200)
    envs.close()
    data = buffer.storage[:]
    assert recorder.episodes > 12
    after, done = data["next", "observation"], data["next", "done"]
    inside = (after[..., 0].abs() <= 2.4) & (after[..., 2].abs() <= 0.2095)
    assert torch.equal(~inside, data["next", "terminated"].squeeze(-1))
    start = data["observation"][data["is_init"]]
    assert (start.abs() <= 0.05).all()
    goes_on = ~done[:-1].squeeze(-1)
    assert torch.equal(data["observation"][1:][goes_on], after[:-1][goes_on])
    assert torch.equal(data["is_init"][1:], done[:-1].squeeze(-1))
    assert torch.equal(data["episode"][1:] == data["episode"][:-1], goes_on)


def test_rewards_and_more_entries_keep_what_they_hold() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10, ndim=2))
    recorder = TrajectoryRecorder(buffer, num_envs=2, autoreset="disabled")
    obs, after = torch.zeros(2, 3, dtype=torch.float64), np.ones((2, 3))
    flags = [False, True]
    recorder.record(
        obs, [1, 2], [0.5, np.float64(1e-3)], flags, [0, 0], after, extra={"td_error": [3.0, 4.0]}
    )
    row = buffer.storage[0]
    assert row["next", "reward"].dtype is torch.float32
    assert torch.equal(row["next", "reward"], torch.tensor([[0.5], [1e-3]]))
    assert row["td_error"].tolist() == [3.0, 4.0]
    assert row["observation"].dtype is row["next", "observation"].dtype is torch.float64
    assert row["next", "truncated"].dtype is torch.bool
    recorder.record(
        after, np.array([1, 2], np.int32), [1.0, 2.0], flags, flags, obs, extra={"td_error": [1, 2.0]}
    )
    assert buffer.storage[1]["action"].dtype is torch.int64


def good() -> dict[str, Any]:
    return {
        "obs": np.zeros((2, 3)),
        "action": np.zeros(2, np.int64),
        "reward": np.zeros(2),
        "terminated": np.zeros(2, bool),
        "truncated": np.zeros(2, bool),
        "next_obs": np.zeros((2, 3)),
    }


SAME = np.zeros((2, 3))
BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"obs": np.zeros((3, 3))}, ValueError, r"'observation' has shape \[3, 3\]: of 2 environments"),
    ({"action": np.int64(3)}, ValueError, r"'action' has shape \[\]"),
    ({"obs": ()}, ValueError, "nothing in 'observation'"),
    ({"obs": ("go", "stop")}, TypeError, r"\('observation', '0'\) is a string.*Text, Graph or Sequence"),
    ({"obs": np.array([{}, None], object)}, TypeError, "Text, Graph or Sequence"),
    ({"reward": np.zeros(3)}, ValueError, "'reward' has shape"),
    ({"reward": {"a": np.zeros(2)}}, TypeError, "reward must be an array of 2 numbers"),
    ({"terminated": np.zeros(1, bool)}, ValueError, r"terminated must be bool \[2\]"),
    ({"truncated": np.zeros((2, 1), bool)}, ValueError, r"truncated must be bool \[2\]"),
    ({"truncated": np.zeros(2)}, ValueError, r"truncated must be bool \[2\].*float64"),
    ({"next_obs": np.zeros((2, 4))}, ValueError, "'observation'"),
    ({"obs": SAME, "next_obs": SAME}, ValueError, "same memory.*copy=True"),
    ({"extra": {"action": np.zeros(2)}}, ValueError, "extra='action'"),
    ({"extra": {"new": np.zeros(2)}}, ValueError, "'new' is torch.float64 .* and was None"),
    ({"action": np.zeros(2)}, ValueError, "'action' is torch.float64 .* and was torch.int64"),
]


@pytest.mark.parametrize(("wrong", "error", "message"), BAD)
def test_a_wrong_step_is_an_error_that_says_so_and_leaves_no_trace(
    wrong: dict[str, Any], error: type[Exception], message: str
) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10, ndim=2))
    recorder = TrajectoryRecorder(buffer, num_envs=2, autoreset="disabled")
    recorder.record(**good())
    with pytest.raises(error, match=message):
        recorder.record(**{**good(), **wrong})
    assert (len(buffer), recorder.steps) == (2, 2)
    recorder.record(**good())
    assert buffer.storage[:]["step"].tolist() == [[0, 0], [1, 1]]
    assert buffer.storage[:]["episode"].tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize(
    "info",
    [
        None,
        {},
        {"final_obs": np.array([None, None], object)},
        {"final_obs": np.zeros((2, 3)), "_final_obs": np.array([True, False])},
        {"final_obs": np.zeros((2, 4))},
        {"final_obs": {"a": np.zeros((2, 3))}},
    ],
)
def test_a_last_observation_that_is_lost_is_an_error(info: Any) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10, ndim=2))
    recorder = TrajectoryRecorder(buffer, num_envs=2, autoreset="same_step")
    with pytest.raises(ValueError, match="nvironment 1"):
        recorder.record(**{**good(), "terminated": np.array([False, True]), "info": info})
    assert len(buffer) == 0


@pytest.mark.parametrize("name", ["final_obs", "final_observation"])
def test_last_observations_are_taken_in_every_form(name: str) -> None:
    last = np.full((2, 3), 7.0)
    forms: list[Any] = [last, np.array([None, last[1]], object), [None, last[1]]]
    for form in forms:
        buffer = ReplayBuffer(storage=LazyTensorStorage(10, ndim=2))
        recorder = TrajectoryRecorder(buffer, num_envs=2, autoreset="same_step")
        step = {**good(), "terminated": np.array([False, True]), "info": {name: form}}
        recorder.record(**step)
        assert buffer.storage[0]["next", "observation"].tolist() == [[0.0] * 3, [7.0] * 3]
        assert step["next_obs"].sum() == 0  # the user's array is the user's


def test_what_cannot_be_recorded_into_is_refused() -> None:
    one, two = (
        ReplayBuffer(storage=LazyTensorStorage(10)),
        ReplayBuffer(storage=LazyTensorStorage(10, ndim=2)),
    )
    three = ReplayBuffer(storage=LazyTensorStorage(10, ndim=3))
    with pytest.raises(ValueError, match="autoreset='next_step'"):
        TrajectoryRecorder(two, num_envs=2)
    with pytest.raises(ValueError, match=r"autoreset='later'.*'same_step'"):
        TrajectoryRecorder(two, num_envs=2, autoreset="later")
    with pytest.raises(ValueError, match="2 buffers were given for 3"):
        TrajectoryRecorder([one, one], num_envs=3, autoreset="disabled")
    for storage in (three, [two, two]):
        with pytest.raises(ValueError, match="Use ndim=2"):
            TrajectoryRecorder(storage, num_envs=2, autoreset="disabled")
    with pytest.raises(ValueError, match="ndim=1 for a single"):
        TrajectoryRecorder(two)
    with pytest.raises(TypeError, match="got a LazyTensorStorage"):
        TrajectoryRecorder(LazyTensorStorage(10))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_envs"):
        TrajectoryRecorder(two, num_envs=0, autoreset="disabled")


def test_a_write_that_fails_leaves_the_step_to_be_recorded_again(layout: str) -> None:
    envs = counting_envs(ENVS, "next_step")
    buffers = buffers_for(layout)
    recorder = recorder_for(buffers, envs)
    obs = run(recorder, envs, 12)
    waiting, steps = recorder.waiting, recorder.steps
    extends = [buffer.extend for buffer in buffers], [buffer.add for buffer in buffers]

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError("no room")

    for call in range(12):
        action = envs.action_space.sample()
        after, reward, terminated, truncated, info = envs.step(action)
        for buffer in buffers:
            buffer.extend = buffer.add = fail  # type: ignore[method-assign, assignment]
        failed = False
        try:
            recorder.record(obs, action, reward, terminated, truncated, after, info)
        except OSError:
            failed = True
            assert (recorder.waiting, recorder.steps) == (waiting, steps), call
        for buffer, extend, add in zip(buffers, *extends, strict=True):
            buffer.extend, buffer.add = extend, add  # type: ignore[method-assign]
        if failed:
            recorder.record(obs, action, reward, terminated, truncated, after, info)
        waiting, steps, obs = recorder.waiting, recorder.steps, after
    recorder.flush()
    made = [step for env in range(ENVS) for step in true_steps(env, 24, "next_step")]
    found = stored(buffers)
    assert len(set(found)) == len(found) == len(made) - recorder.waiting


def test_nothing_of_gymnasium_is_imported_by_the_recorder() -> None:
    code = (
        "import sys, replaybank.buffers.recorder, replaybank\n"
        "replaybank.TrajectoryRecorder\n"
        "assert not any(name.startswith('gymnasium') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="gymnasium")
        yield
