"""Returns over several steps, summed when a batch is sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from replaybank.errors import MissingKeyError
from replaybank.samplers.arguments import real, whole
from replaybank.samplers.base import InfoKey
from replaybank.trajectories.signals import Key
from replaybank.transforms.base import NEXT, Drawn, SampleTransform, StepView, over_items, path_of, shown

STEPS: Key = ("steps_to_next_obs",)
GAMMA: Key = ("gamma",)
NONTERMINAL: Key = ("nonterminal",)

_REWARD: Key = (NEXT, "reward")
_DONE: Key = (NEXT, "done")
_TERMINATED: Key = (NEXT, "terminated")
_TRUNCATED: Key = (NEXT, "truncated")


class NStep(SampleTransform):
    """Returns over ``n_steps`` steps, bootstrapped from what comes after the last of them.

    A step of the batch becomes ``m`` steps in one: as many as ``n_steps``, or fewer where its trajectory ends
    or the newest step is reached before. The reward is ``r_0 + gamma r_1 + ... + gamma^(m-1) r_(m-1)``, and
    all else under ``"next"`` is that of the last of them: the observation after it (at a truncation the true
    last one), and its ``done``, ``terminated`` and ``truncated``. The target of a value is then::

        reward + batch["gamma"] * batch["nonterminal"] * value(batch["next"])

    Added are, each ``[B, 1, ...]`` so that it goes with the reward: ``"steps_to_next_obs"``, the number
    ``m`` (int64; torchrl's losses raise their own gamma to it); ``"gamma"``, ``gamma^m``; ``"nonterminal"``,
    False where the last step is terminal, be it truncated too; and ``("next", "original_reward")``, that of
    the step alone.

    Rewards are read from the storage for each batch: ``n_steps`` and ``gamma`` can be changed at any time.
    The index of the batch stays that of the first steps, whose priorities are meant.

    Thread-safe. Can be pickled.

    Args:
        n_steps: the most steps, at least 1.
        gamma: the discount, in ``[0, 1]``.
        reward_keys: entries to sum, under ``"next"`` whether they say so or not; ``["reward"]`` by default.
        end_key: where trajectories end, as for :class:`~replaybank.SliceSampler`.
        traj_key: as for :class:`~replaybank.SliceSampler`.

    Raises:
        ValueError: ``n_steps`` or ``gamma`` is out of range.
        TypeError: ``n_steps`` is no integer, ``gamma`` no number, or a key no key.

    Complexity:
        O(B * n_steps) rewards are read, and O(B) of what else is under ``"next"``.

    References:
        Sutton, "Learning to predict by the methods of temporal differences", Machine Learning 3 (1988).

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from replaybank import LazyTensorStorage, NStep, SamplerWithoutReplacement, TensorDictReplayBuffer
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(10),
        ...     sampler=SamplerWithoutReplacement(shuffle=False),
        ...     transform=NStep(3, gamma=0.5),
        ...     batch_size=4,
        ... )
        >>> after = {
        ...     "observation": torch.tensor([1, 2, 3, 4]),
        ...     "reward": torch.ones(4),
        ...     "done": torch.tensor([False, False, False, True]),
        ... }
        >>> _ = buffer.extend(TensorDict({"observation": torch.arange(4), "next": after}, [4]))
        >>> batch = buffer.sample()
        >>> batch["next", "reward"].tolist(), batch["next", "observation"].tolist()
        ([1.75, 1.75, 1.5, 1.0], [3, 4, 4, 4])
        >>> batch["gamma"].tolist(), batch["nonterminal"].tolist()
        ([0.125, 0.125, 0.25, 0.5], [True, False, False, False])
    """

    level = 30

    def __init__(
        self,
        n_steps: int,
        gamma: float,
        *,
        reward_keys: Sequence[InfoKey] | None = None,
        end_key: InfoKey | None = None,
        traj_key: InfoKey | None = None,
    ) -> None:
        super().__init__(end_key, traj_key)
        self.n_steps = n_steps
        self.gamma = gamma
        given = ["reward"] if reward_keys is None else reward_keys
        if isinstance(given, str) or not len(given):
            raise TypeError(f"reward_keys={given!r}: give a list with at least one key.")
        paths = [path_of("reward_keys", key) for key in given]
        self._rewards = [path if path[0] == NEXT and len(path) > 1 else (NEXT, *path) for path in paths]

    @property
    def n_steps(self) -> int:
        """The most steps that are summed."""
        return self._n_steps

    @n_steps.setter
    def n_steps(self, value: int) -> None:
        self._n_steps = whole("n_steps", value)

    @property
    def gamma(self) -> float:
        """The discount."""
        return self._gamma

    @gamma.setter
    def gamma(self, value: float) -> None:
        gamma = real("gamma", value)
        if gamma > 1:
            raise ValueError(f"gamma={value}: a discount is a number from 0 to 1.")
        self._gamma = gamma

    @property
    def reward_keys(self) -> list[InfoKey]:
        """The entries that are summed."""
        return [shown(path) for path in self._rewards]

    def over(self, below: StepView, drawn: Drawn) -> StepView:
        """The view of a batch in which each step is several."""
        missing = [key for key in self._rewards if key not in below.keys]
        if missing:
            raise MissingKeyError(
                f"There is no reward {shown(missing[0])!r} to sum; the keys are "
                f"{', '.join(str(shown(key)) for key in sorted(below.keys))}. Name it with reward_keys."
            )
        return _Returns(below, drawn, self._n_steps, self._gamma, self._rewards)

    def _facts(self) -> dict[str, Any]:
        return {"n_steps": self._n_steps, "gamma": self._gamma}


class _Run:
    """The steps that some steps become.

    Args:
        slots: int64 ``[n, K]``: the steps; behind the last one that is used, it again.
        steps: int64 ``[K]``, how many are used.
        last: int64 ``[K]``, the last one.
    """

    def __init__(self, below: StepView, drawn: Drawn, slots: Tensor, of: Tensor, n_steps: int) -> None:
        steps = drawn.trajectories.slices_from(slots.contiguous(), n_steps).runs[2]
        most = int(steps.max()) if steps.numel() else 0
        self.steps = steps
        self._among(drawn, slots, most)
        if below.terminal is not None and most > 1:
            # A trajectory that ends earlier than it did, since its goal is another.
            count = slots.numel()
            ended = below.read(below.terminal, self.slots.view(-1), of.repeat(most)).cpu() != 0
            first = ended.view(most, count, -1).any(-1).cumsum(0).eq(0).sum(0) + 1
            self.steps = torch.minimum(steps, first)
            self._among(drawn, slots, most)

    def _among(self, drawn: Drawn, slots: Tensor, most: int) -> None:
        ahead = torch.minimum(torch.arange(most).unsqueeze(-1), self.steps - 1)
        self.slots = drawn.moved(slots, ahead)
        self.last = drawn.moved(slots, self.steps - 1)


class _Returns(StepView):
    """Several steps as one."""

    def __init__(
        self, below: StepView, drawn: Drawn, n_steps: int, gamma: float, rewards: Sequence[Key]
    ) -> None:
        self._below, self._drawn, self._n_steps, self._gamma = below, drawn, n_steps, gamma
        self._rewards = rewards
        self._alone = {_original(key): key for key in rewards}
        self._after = {key for key in below.keys if key[0] == NEXT} - set(rewards)
        added = [*self._alone, STEPS, GAMMA]
        self._ends = _ends_in(below.keys)
        if self._ends:
            added.append(NONTERMINAL)
        self.keys = [*below.keys, *(key for key in added if key not in below.keys)]
        self.changed = [*rewards, *(key for key in below.keys if key in self._after), *added]
        self._known: tuple[Tensor, _Run] | None = None
        self._reward = below.read(rewards[0], drawn.slots[:1], torch.zeros(1, dtype=torch.int64))

    def read(self, key: Key, slots: Tensor, of: Tensor) -> Tensor:
        """What is changed, else what is below."""
        below = self._below
        if key in self._alone:
            return below.read(self._alone[key], slots, of)
        if key in self._rewards:
            return self._return(key, slots, of)
        if key == NONTERMINAL and self._ends:
            return self._nonterminal(slots, of)
        if key == STEPS:
            return self._like_rewards(self._run(slots, of).steps)
        if key == GAMMA:
            discounts = self._powers(self._run(slots, of).steps)
            return self._like_rewards(discounts.to(_floating(self._reward.dtype)))
        if key in self._after:
            return below.read(key, self._run(slots, of).last, of)
        return below.read(key, slots, of)

    def _run(self, slots: Tensor, of: Tensor) -> _Run:
        known = self._known
        if known is None or known[0] is not slots:
            known = slots, _Run(self._below, self._drawn, slots, of, self._n_steps)
            self._known = known
        return known[1]

    def _powers(self, exponents: Tensor) -> Tensor:
        return torch.pow(torch.tensor(self._gamma, dtype=torch.float64), exponents)

    def _return(self, key: Key, slots: Tensor, of: Tensor) -> Tensor:
        run = self._run(slots, of)
        most, count = run.slots.shape
        reward = self._below.read(key, run.slots.reshape(-1), of.repeat(most))
        weights = self._powers(torch.arange(most)).unsqueeze(-1) * (
            torch.arange(most).unsqueeze(-1) < run.steps
        )
        # In float64: the order of the sum is then of no account.
        wide = reward.to(torch.float64) * over_items(weights.view(-1), reward)
        # A step that is not used may hold anything, and 0 * inf is no number.
        wide = wide.masked_fill(over_items(weights.view(-1) == 0, reward), 0.0)
        return wide.view(most, count, *reward.shape[1:]).sum(0).to(_floating(reward.dtype))

    def _nonterminal(self, slots: Tensor, of: Tensor) -> Tensor:
        last = self._run(slots, of).last
        terminal = self._below.read(self._ends[0], last, of) != 0
        for key in self._ends[1:]:
            unless = self._below.read(key, last, of) != 0
            terminal = terminal & ~unless.reshape(terminal.shape)
        one_each = terminal.numel() == slots.numel()
        return self._like_rewards(~terminal.reshape(-1)) if one_each else ~terminal

    def _like_rewards(self, values: Tensor) -> Tensor:
        """One value a step ``[K]`` as ``[K, 1, ...]``, with as many dimensions as the reward."""
        return over_items(values, self._reward)


def _original(key: Key) -> Key:
    return (*key[:-1], f"original_{key[-1]}")


def _ends_in(keys: Sequence[Key]) -> tuple[Key, ...]:
    """What says that a step is terminal: an entry, unless a second one is true."""
    if _TERMINATED in keys:
        return (_TERMINATED,)
    if _DONE in keys:
        return (_DONE, _TRUNCATED) if _TRUNCATED in keys else (_DONE,)
    return ()


def _floating(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.is_floating_point else torch.float32
