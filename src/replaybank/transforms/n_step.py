"""Returns over several steps, summed when a batch is sampled."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from replaybank.errors import MissingKeyError
from replaybank.samplers.arguments import real, whole
from replaybank.samplers.base import InfoKey
from replaybank.trajectories.signals import Key
from replaybank.trajectories.windows import discounted_sums, returns
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
        self._entries: _Entries | None = None  # of the keys of the last batch
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
        entries = self._entries
        if entries is None or entries.of != below.keys:
            entries = self._entries = _Entries(list(below.keys), self._rewards)
        missing = [key for key in self._rewards if key not in entries.of]
        if missing:
            raise MissingKeyError(
                f"There is no reward {shown(missing[0])!r} to sum; the keys are "
                f"{', '.join(str(shown(key)) for key in sorted(below.keys))}. Name it with reward_keys."
            )
        return _Returns(below, drawn, self._n_steps, self._gamma, self._rewards, entries)

    def _facts(self) -> dict[str, Any]:
        return {"n_steps": self._n_steps, "gamma": self._gamma}


class _Run:
    """The steps that some steps become.

    Args:
        slots: int64 ``[K, most]``: the steps; behind the last one that is used, another one.
        steps: int64 ``[K]``, how many are used.
        last: int64 ``[K]``, the last one.
    """

    def __init__(self, below: StepView, drawn: Drawn, slots: Tensor, of: Tensor, n_steps: int) -> None:
        if n_steps > _SHORT:  # most trajectories may be much shorter
            left = drawn.trajectories.slices_from(slots.contiguous(), n_steps).runs[2]
            n_steps = int(left.max()) if left.numel() else 1
        self.slots, _, self.steps = drawn.windows(slots, 0, n_steps - 1)
        self.each = self.slots.view(-1)
        self.of = of.unsqueeze(1).expand(-1, n_steps).reshape(-1) if n_steps > 1 else of
        if below.terminal is not None and n_steps > 1:
            # A trajectory that ends earlier than it did, since its goal is another.
            ended = below.read(below.terminal, self.each, self.of).cpu() != 0
            first = ended.view(*self.slots.shape, -1).any(-1).cumsum(1).eq(0).sum(1) + 1
            self.steps = torch.minimum(self.steps, first)
            self.last = self.slots.gather(1, self.steps.unsqueeze(1) - 1).view(-1)
        else:
            self.last = self.slots[:, -1].contiguous()


class _Entries:
    """Which entries returns change, of steps with some keys."""

    def __init__(self, keys: Sequence[Key], rewards: Sequence[Key]) -> None:
        self.of = keys
        self.alone = {_original(key): key for key in rewards}
        self.after = [key for key in keys if key[0] == NEXT and key not in rewards]
        self.ends = _ends_in(keys)
        added = [*self.alone, STEPS, GAMMA, *([NONTERMINAL] if self.ends else [])]
        self.all = [*keys, *(key for key in added if key not in keys)]
        self.changed = [*rewards, *self.after, *added]
        self.made = {*rewards, *self.after, *added} - set(self.alone)


class _Returns(StepView):
    """Several steps as one."""

    def __init__(
        self,
        below: StepView,
        drawn: Drawn,
        n_steps: int,
        gamma: float,
        rewards: Sequence[Key],
        entries: _Entries,
    ) -> None:
        self._below, self._drawn, self._n_steps, self._gamma = below, drawn, n_steps, gamma
        self._rewards, self._entries = rewards, entries
        self.keys, self.changed = entries.all, entries.changed
        self._known: tuple[Tensor, dict[Key, Tensor], Tensor] | None = None

    def read(self, key: Key, slots: Tensor, of: Tensor) -> Tensor:
        """What is changed, else what is below."""
        below = self._below
        entries = self._entries
        if key not in entries.made:
            return below.read(entries.alone.get(key, key), slots, of)
        sums, last = self._of(slots, of)
        if key in sums:
            return sums[key]
        if key == NONTERMINAL:
            return self._nonterminal(last, of, sums[STEPS])
        return below.read(key, last, of)

    def made(self, slots: Tensor, of: Tensor) -> list[tuple[Key, Any]]:
        """All of them, each once."""
        below, entries = self._below, self._entries
        sums, last = self._of(slots, of)
        found: list[tuple[Key, Any]] = list(sums.items())
        found += zip(entries.after, below.read_all(entries.after, last, of), strict=True)
        found += [(key, below.read(reward, slots, of)) for key, reward in entries.alone.items()]
        if entries.ends:
            found.append((NONTERMINAL, self._nonterminal(last, of, sums[STEPS])))
        return found

    def _of(self, slots: Tensor, of: Tensor) -> tuple[dict[Key, Tensor], Tensor]:
        """Returns, numbers of steps and discounts of some steps, and the last steps of each."""
        known = self._known
        if known is None or known[0] is not slots:
            sums, last = self._made(slots, of)
            known = self._known = slots, sums, last
            self._below.expect(self._entries.after, last, of)
        return known[1], known[2]

    def _made(self, slots: Tensor, of: Tensor) -> tuple[dict[Key, Tensor], Tensor]:
        """Returns, numbers of steps and discounts, and the last steps."""
        below, first = self._below, self._rewards[0]
        place = below.place_of(first) if len(self._rewards) == 1 and below.terminal is None else None
        if place is None or place.dtype not in _SUMMED:
            return self._made_of(_Run(below, self._drawn, slots, of, self._n_steps), slots, of)
        found = returns(
            self._drawn.trajectories,
            slots.contiguous(),
            self._n_steps,
            place,
            self._gamma,
            powers_of(self._gamma, min(self._n_steps, _SHORT)),
        )
        return {first: found.sums, STEPS: found.steps, GAMMA: found.discounts}, found.last

    def _made_of(self, run: _Run, slots: Tensor, of: Tensor) -> tuple[dict[Key, Tensor], Tensor]:
        """The same of rewards that have to be read."""
        below, most = self._below, run.slots.shape[1]
        powers = powers_of(self._gamma, most)
        below.expect(self._rewards, run.each, run.of)
        made = {}
        for key in self._rewards:
            reward = below.read(key, run.each, run.of)
            if reward.dtype.is_complex:
                raise TypeError(
                    f"{shown(key)!r} is {reward.dtype}: a return is a sum of real rewards. Name others with "
                    "reward_keys."
                )
            # In float64, whatever the dtype: the order of the sum is then of no account.
            wide = reward if reward.dtype in _SUMMED and reward.is_cpu else reward.to("cpu", torch.float64)
            wide = wide.reshape(-1, most, *reward.shape[1:]).contiguous()
            sums = discounted_sums(wide, run.steps, powers)
            made[key] = sums.to(reward.device, _floating(reward.dtype))
        like = made[self._rewards[0]]
        made[STEPS] = over_items(run.steps, like)
        made[GAMMA] = over_items(powers.to(like.dtype)[run.steps], like)
        return made, run.last

    def _nonterminal(self, last: Tensor, of: Tensor, steps: Tensor) -> Tensor:
        terminal = _true(self._below.read(self._entries.ends[0], last, of))
        for key in self._entries.ends[1:]:
            unless = _true(self._below.read(key, last, of))
            terminal = terminal & ~unless.reshape(terminal.shape)
        return ~terminal.reshape(steps.shape) if terminal.numel() == steps.numel() else ~terminal


_SHORT = 16
"""Most steps that are looked up without asking first how many there are."""

_SUMMED = frozenset((torch.float32, torch.float64))


@functools.lru_cache(maxsize=64)
def powers_of(gamma: float, most: int) -> Tensor:
    """``gamma^0`` to ``gamma^most``, float64; to be read only."""
    return torch.pow(torch.tensor(gamma, dtype=torch.float64), torch.arange(most + 1))


def _true(values: Tensor) -> Tensor:
    return values if values.dtype is torch.bool else values != 0


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
