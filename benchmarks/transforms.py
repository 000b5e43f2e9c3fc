"""Returns over several steps and goals in hindsight: what a batch costs beside other libraries.

python benchmarks/transforms.py                 # N = 1e4 and 1e6
python benchmarks/transforms.py --quick         # to see that it runs

replaybank, tianshou and Stable-Baselines3 make them when a batch is sampled; cpprb when steps are written, so
that its batches are plain ones, and writing is what is to be compared.
"""

from __future__ import annotations

import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from contenders import Arrays, module
from rounds import Call, Parts, against_peers, measure, options, setting

BATCHES = (32, 256, 4096)
EPISODE = 50
N_STEPS, GAMMA, GOALS = 3, 0.99, 4
"""Steps of a return, its discount, and goals in hindsight for each one that was aimed at."""

PLAIN, RETURNS, HINDSIGHT, WRITING = "plain batch", "return over 3 steps", "hindsight", "writing an episode"
LIBRARIES = ("torch", "numpy", "cpprb", "tianshou", "stable_baselines3")


def reward_of(achieved: npt.NDArray[Any], goal: npt.NDArray[Any], info: Any = None) -> npt.NDArray[Any]:
    """The distance, as goal environments have it: of NumPy arrays ``[K, 3]``, float32 ``[K]``."""
    distance: npt.NDArray[Any] = np.sqrt(((achieved - goal) ** 2).sum(-1), dtype=np.float32)
    return -distance


def steps(first: int, count: int) -> Arrays:
    """Steps numbered from ``first`` on (exact up to 2^24), in episodes of 50; `goal` is what was achieved."""
    number = np.arange(first, first + count, dtype=np.float32)
    made: Arrays = {
        "obs": np.zeros((count, 10), np.float32),
        "goal": np.zeros((count, 3), np.float32),
        "desired": np.full((count, 3), -1, np.float32),
        "act": np.zeros((count, 4), np.float32),
        "rew": (number * 7 % 11)[:, None],
        "next_obs": np.zeros((count, 10), np.float32),
        "next_goal": np.zeros((count, 3), np.float32),
        "done": (number % EPISODE == EPISODE - 1)[:, None],
    }
    made["obs"][:, 0] = made["goal"][:, 0] = made["act"][:, 0] = number
    made["next_obs"][:, 0] = made["next_goal"][:, 0] = number + 1
    return made


class Replay(ABC):
    """A full replay that makes one of the two, or neither.

    Args:
        capacity: number of steps, a multiple of 50.
        what: which.
    """

    def __init__(self, capacity: int, what: str) -> None:
        self.capacity, self.what = capacity, what
        self.make()
        self.fill()

    @abstractmethod
    def make(self) -> None:
        """Make an empty replay."""

    @abstractmethod
    def fill(self) -> None:
        """Fill it; not timed."""

    @abstractmethod
    def sample(self, size: int) -> Any:
        """A batch in the library's own form; what is timed."""

    @abstractmethod
    def arrays(self, batch: Any) -> Arrays:
        """``obs``, ``rew`` and ``next_obs``, with goals ``desired`` and ``next_goal``; not timed."""

    def check(self) -> None:
        """Raise unless a batch is what was asked for."""
        found = self.arrays(self.sample(512))
        number, reward = found["obs"].reshape(512, -1)[:, 0], found["rew"].reshape(512)
        if self.what == HINDSIGHT:
            goal = found["desired"][:, 0]
            old = goal == -1
            last = number // EPISODE * EPISODE + EPISODE
            assert 0.1 < old.mean() < 0.3
            assert ((goal >= number) & (goal <= last))[~old].all()
            assert np.allclose(reward[~old], reward_of(found["next_goal"], found["desired"])[~old])
            return
        most = N_STEPS if self.what == RETURNS else 1
        many = np.minimum(most, EPISODE - number % EPISODE)
        expected = sum(GAMMA**j * ((number + j) * 7 % 11) * (j < many) for j in range(most))
        assert np.allclose(reward, expected)
        # What comes after an end is of no account where it is terminal; cpprb gives another step's there.
        after = found["next_obs"].reshape(512, -1)[:, 0]
        assert (after == number + many)[many == most].all()

    def write(self, episode: Arrays) -> None:
        """Write an episode; what is timed."""
        raise NotImplementedError


class Ours(Replay):
    """replaybank: a transform of the buffer."""

    def make(self) -> None:
        bank, self.torch = module("replaybank"), importlib.import_module("torch")
        self.torch.set_num_threads(1)
        torch = self.torch

        def reward(achieved: Any, goal: Any) -> Any:
            return -(achieved - goal).square().sum(-1).sqrt()

        transform = {
            RETURNS: bank.NStep(N_STEPS, GAMMA),
            HINDSIGHT: bank.HindsightRelabel(reward, ratio=1 - 1 / (GOALS + 1)),
        }.get(self.what)
        torch.manual_seed(0)
        self.buffer = bank.ReplayBuffer(
            storage=bank.LazyTensorStorage(self.capacity),
            sampler=bank.RandomSampler(),
            transform=transform,
        )

    def convert(self, data: Arrays) -> Any:
        """Steps as a TensorDict, the way TED lays them out."""
        tensordict = importlib.import_module("tensordict")
        t = {name: self.torch.from_numpy(value) for name, value in data.items()}
        count = len(data["obs"])
        after = {
            "observation": t["next_obs"],
            "achieved_goal": t["next_goal"],
            "reward": t["rew"],
            "done": t["done"],
        }
        made = {"observation": t["obs"], "achieved_goal": t["goal"], "desired_goal": t["desired"]}
        return tensordict.TensorDict(
            {**made, "action": t["act"], "next": tensordict.TensorDict(after, [count])}, [count]
        )

    def fill(self) -> None:
        for first in range(0, self.capacity, 100 * EPISODE):
            self.write(steps(first, min(100 * EPISODE, self.capacity - first)))

    def write(self, episode: Arrays) -> None:
        self.buffer.extend(self.convert(episode))

    def sample(self, size: int) -> Any:
        return self.buffer.sample(size)

    def arrays(self, batch: Any) -> Arrays:
        return {
            "obs": batch["observation"].numpy(),
            "rew": batch["next", "reward"].numpy(),
            "next_obs": batch["next", "observation"].numpy(),
            "desired": batch["desired_goal"].numpy(),
            "next_goal": batch["next", "achieved_goal"].numpy(),
        }


class Cpprb(Replay):
    """cpprb: ``Nstep`` and ``HindsightReplayBuffer``, which make them when steps are written."""

    def make(self) -> None:
        cpprb = module("cpprb")
        described: dict[str, Any] = {"obs": {"shape": 10}, "act": {"shape": 4}, "next_obs": {"shape": 10}}
        if self.what == HINDSIGHT:
            self.buffer = cpprb.HindsightReplayBuffer(
                self.capacity,
                {name: {"shape": 3} if name != "act" else {"shape": 4} for name in described},
                EPISODE,
                lambda obs, act, goal: reward_of(act[:, :3], goal),
                additional_goals=GOALS,
                prioritized=False,
            )
            return
        described |= {"rew": {}, "done": {}}
        n_step = {"size": N_STEPS, "gamma": GAMMA, "rew": "rew", "next": "next_obs"}
        self.buffer = cpprb.ReplayBuffer(
            self.capacity, described, **({"Nstep": n_step} if self.what == RETURNS else {})
        )

    def fill(self) -> None:
        share = GOALS + 1 if self.what == HINDSIGHT else 1
        for first in range(0, self.capacity // share, EPISODE):
            self.write(steps(first, EPISODE))

    def write(self, episode: Arrays) -> None:
        if self.what == HINDSIGHT:
            # States are goals here, and what a reward sees is the state before and the action.
            act = np.concatenate([episode["next_goal"], episode["act"][:, :1]], 1)
            self.buffer.add(obs=episode["goal"], act=act, next_obs=episode["next_goal"])
            self.buffer.on_episode_end(np.full(3, -1, np.float32))
            return
        self.buffer.add(**{name: episode[name] for name in ("obs", "act", "rew", "next_obs", "done")})
        self.buffer.on_episode_end()

    def sample(self, size: int) -> Any:
        return self.buffer.sample(size)

    def arrays(self, batch: Any) -> Arrays:
        if self.what != HINDSIGHT:
            return {name: batch[name] for name in ("obs", "rew", "next_obs")}
        return {
            **{name: batch[name] for name in ("obs", "rew", "next_obs")},
            "desired": batch["goal"],
            "next_goal": batch["next_obs"],
        }


class Tianshou(Replay):
    """tianshou: ``compute_nstep_return`` of what was sampled, and ``HERReplayBuffer``."""

    def make(self) -> None:
        self.data, self.torch = module("tianshou.data"), importlib.import_module("torch")
        self.torch.set_num_threads(1)
        if self.what == HINDSIGHT:
            self.buffer = self.data.HERReplayBuffer(
                self.capacity, compute_reward_fn=reward_of, horizon=EPISODE, future_k=GOALS
            )
        else:
            self.buffer = self.data.ReplayBuffer(self.capacity)
        if self.what == RETURNS:
            base = module("tianshou.algorithm.algorithm_base")
            owner = next(each for each in vars(base).values() if hasattr(each, "compute_nstep_return"))
            self.returns = owner.compute_nstep_return

    def fill(self) -> None:
        # It takes one step at a time; so its arrays are filled directly.
        data, batch = steps(0, self.capacity), self.data.Batch
        seen, behind = data["obs"], data["next_obs"]
        if self.what == HINDSIGHT:
            seen = batch(observation=data["obs"], achieved_goal=data["goal"], desired_goal=data["desired"])
            behind = batch(
                observation=data["next_obs"],
                achieved_goal=data["next_goal"],
                desired_goal=data["desired"].copy(),
            )
        done = data["done"][:, 0]
        self.buffer.set_batch(
            batch(
                obs=seen,
                act=data["act"],
                rew=data["rew"][:, 0],
                terminated=done,
                truncated=np.zeros_like(done),
                done=done,
                obs_next=behind,
            )
        )
        self.buffer._size = self.capacity

    def sample(self, size: int) -> Any:
        batch, index = self.buffer.sample(size)
        if self.what != RETURNS:
            return batch
        found: list[Any] = []

        def value(buffer: Any, at: Any) -> Any:
            found.append(buffer[at].obs_next)  # what a network would be shown
            return self.torch.zeros(len(at), 1)

        made = self.returns(batch, self.buffer, index, value, GAMMA, N_STEPS)
        made.obs_next = found[0]
        return made

    def arrays(self, batch: Any) -> Arrays:
        if self.what == HINDSIGHT:
            return {
                "obs": batch.obs.observation,
                "rew": batch.rew,
                "next_obs": batch.obs_next.observation,
                "desired": batch.obs.desired_goal,
                "next_goal": batch.obs_next.achieved_goal,
            }
        returns = batch.returns.numpy() if self.what == RETURNS else batch.rew
        return {"obs": batch.obs, "rew": returns, "next_obs": batch.obs_next}


class StableBaselines(Replay):
    """Stable-Baselines3: ``NStepReplayBuffer`` and ``HerReplayBuffer``."""

    def make(self) -> None:
        buffers, spaces = module("stable_baselines3.common.buffers"), module("gymnasium.spaces")
        importlib.import_module("torch").set_num_threads(1)

        def box(size: int) -> Any:
            return spaces.Box(-np.inf, np.inf, (size,), np.float32)

        plain = {"device": "cpu", "handle_timeout_termination": False}
        if self.what == HINDSIGHT:
            her = module("stable_baselines3.her.her_replay_buffer")
            space = spaces.Dict(observation=box(10), achieved_goal=box(3), desired_goal=box(3))
            self.buffer = her.HerReplayBuffer(
                self.capacity, space, box(4), Rewards(), n_sampled_goal=GOALS, **plain
            )
        elif self.what == RETURNS:
            self.buffer = buffers.NStepReplayBuffer(
                self.capacity, box(10), box(4), n_steps=N_STEPS, gamma=GAMMA, **plain
            )
        else:
            self.buffer = buffers.ReplayBuffer(self.capacity, box(10), box(4), **plain)

    def fill(self) -> None:
        # It takes one step of each environment at a time; so its arrays are filled directly.
        data, buffer = steps(0, self.capacity), self.buffer
        buffer.actions[:, 0], buffer.rewards[:], buffer.dones[:] = data["act"], data["rew"], data["done"]
        if self.what == HINDSIGHT:
            for name, key in (("observation", "obs"), ("achieved_goal", "goal")):
                buffer.observations[name][:, 0] = data[key]
                buffer.next_observations[name][:, 0] = data[f"next_{key}"]
            buffer.observations["desired_goal"][:, 0] = data["desired"]
            buffer.next_observations["desired_goal"][:, 0] = data["desired"]
            buffer.ep_start[:, 0] = np.arange(self.capacity) // EPISODE * EPISODE
            buffer.ep_length[:] = EPISODE
        else:
            buffer.observations[:, 0], buffer.next_observations[:, 0] = data["obs"], data["next_obs"]
        buffer.full = True

    def sample(self, size: int) -> Any:
        return self.buffer.sample(size)

    def arrays(self, batch: Any) -> Arrays:
        if self.what != HINDSIGHT:
            seen = {"obs": batch.observations, "rew": batch.rewards, "next_obs": batch.next_observations}
        else:
            seen = {
                "obs": batch.observations["observation"],
                "rew": batch.rewards,
                "next_obs": batch.next_observations["observation"],
                "desired": batch.observations["desired_goal"],
                "next_goal": batch.next_observations["achieved_goal"],
            }
        return {name: value.numpy() for name, value in seen.items()}


class Rewards:
    """Stands for the environment that Stable-Baselines3 asks for rewards."""

    def env_method(self, name: str, achieved: Any, goal: Any, info: Any, indices: Any) -> list[Any]:
        """``compute_reward`` of one environment."""
        return [reward_of(achieved, goal)]


CONTENDERS: dict[str, type[Replay]] = {
    "replaybank": Ours,
    "cpprb": Cpprb,
    "tianshou": Tianshou,
    "Stable-Baselines3": StableBaselines,
}
CASES = [f"{what}, B {size}" for what in (PLAIN, RETURNS, HINDSIGHT) for size in BATCHES]
WRITES = [f"{WRITING}, {what}" for what in (PLAIN, RETURNS, HINDSIGHT)]


def calls_of(name: str, capacity: int) -> dict[str, Call]:
    """The calls of one contender, made in its own process."""
    calls: dict[str, Call] = {}
    for what in (PLAIN, RETURNS, HINDSIGHT):
        replay = CONTENDERS[name](capacity, what)
        replay.check()
        for size in BATCHES:
            calls[f"{what}, B {size}"] = partial(_timed, partial(replay.sample, size))
        if type(replay).write is not Replay.write:
            calls[f"{WRITING}, {what}"] = partial(_timed, partial(replay.write, steps(0, EPISODE)))
    return calls


def _timed(call: Callable[[], Any]) -> Parts:
    start = time.perf_counter()
    call()
    return {"": time.perf_counter() - start}


def main() -> None:
    """Measure and print."""
    chosen = options(__doc__, CONTENDERS, [1e4, 1e6])
    print(
        f"Medians of single calls in microseconds, {chosen.rounds} rounds, one thread.\n{setting(LIBRARIES)}"
    )
    for size in chosen.sizes:
        names, capacity = list(chosen.only), max(size // EPISODE, 20) * EPISODE

        def make(name: str, capacity: int = capacity) -> Callable[[], Mapping[str, Call]]:
            return partial(calls_of, name, capacity)

        print(f"\nN = {size:.0e}, steps of 137 bytes, episodes of {EPISODE} steps")
        medians = measure(make, names, [*CASES, *WRITES], chosen)
        print(against_peers([*CASES, *WRITES], names, medians))


if __name__ == "__main__":
    main()
