"""Hindsight: goals that were reached in place of those that were aimed at, chosen when a batch is sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from replaybank.errors import MissingKeyError
from replaybank.samplers.arguments import real
from replaybank.samplers.base import InfoKey
from replaybank.storages.layout import LeafPlace
from replaybank.trajectories.signals import Key
from replaybank.trajectories.windows import Which, choose
from replaybank.transforms.base import (
    NEXT,
    Drawn,
    SampleTransform,
    StepView,
    path_of,
    rows_of,
    shown,
    with_rows,
)

STRATEGIES = ("future", "final", "episode")

_TERMINATED: Key = (NEXT, "terminated")
_TRUNCATED: Key = (NEXT, "truncated")
_DONE: Key = (NEXT, "done")

GoalFn = Callable[[Tensor, Tensor], Any]
"""Of achieved and desired goals ``[K, ...]``, one value each, ``[K]`` or ``[K, 1]``."""


class HindsightRelabel(SampleTransform):
    """Replaces the goals of a share of the steps by ones that their trajectories reached.

    A goal is what was achieved after a step of the same trajectory: with ``"future"`` after the step itself
    or a later one, each equally likely; with ``"final"`` after the last one; with ``"episode"`` after any. Of
    a trajectory that is still being written, the newest step is the last. The desired goal, that under
    ``"next"`` where there is one, and the reward of such a step are made anew; the others stay as they are
    stored. Under an :class:`NStep` all rewards of a return are for the one goal.

    Goals and achieved goals are looked for as Gymnasium's goal environments name them, at the root or under
    ``"observation"``. Steps of a slice share a goal, so that a sequence has one: with ``"future"`` it is one
    reached after the slice's last step. That needs a sampler with a ``truncated_key``, as they have.

    Random numbers come from the buffer's generator. Holds no state: thread-safe, as far as the functions that
    it is given are. Can be pickled if those can.

    Args:
        reward_fn: of what was achieved after each step and the goals, tensors ``[K, *goal]``, the rewards
            ``[K]`` or ``[K, 1]``, as tensor, array or list. For a Gymnasium environment
            ``lambda achieved, goal: env.unwrapped.compute_reward(achieved.numpy(), goal.numpy(), {})``.
        strategy: ``"future"``, ``"final"`` or ``"episode"``.
        ratio: the share of steps (of slices) that get another goal, each by chance, in ``[0, 1]``.
        terminated_fn: the same as ``reward_fn`` for ``("next", "terminated")``; ``("next", "done")`` is then
            that or ``("next", "truncated")``. None: ends stay as they are stored.
        achieved_goal: the entry at the root; that under ``"next"`` goes with it.
        desired_goal: the entry at the root.
        reward_key: the entry of the reward.
        end_key: where trajectories end, as for :class:`~replaybank.SliceSampler`.
        traj_key: as for :class:`~replaybank.SliceSampler`.

    Raises:
        ValueError: ``strategy`` or ``ratio`` is none of these.
        TypeError: a function cannot be called, or a key is none.

    Complexity:
        O(B) steps are read, whatever the length of trajectories.

    References:
        Andrychowicz et al., "Hindsight Experience Replay", 2017, arXiv 1707.01495.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from replaybank import HindsightRelabel, LazyTensorStorage, TensorDictReplayBuffer
        >>> def reward(achieved, goal):
        ...     return (achieved == goal).float()
        >>> reached = HindsightRelabel(reward, strategy="final", ratio=1.0)
        >>> buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), transform=reached, batch_size=5)
        >>> done = torch.tensor([False, False, True])
        >>> after = {"achieved_goal": torch.tensor([1, 2, 3]), "reward": torch.zeros(3), "done": done}
        >>> steps = {"achieved_goal": torch.arange(3), "desired_goal": torch.full((3,), 9), "next": after}
        >>> _ = buffer.extend(TensorDict(steps, [3]))
        >>> buffer.sample()["desired_goal"].tolist()
        [3, 3, 3, 3, 3]
    """

    level = 10

    def __init__(
        self,
        reward_fn: GoalFn,
        *,
        strategy: Which = "future",
        ratio: float = 0.8,
        terminated_fn: GoalFn | None = None,
        achieved_goal: InfoKey = "achieved_goal",
        desired_goal: InfoKey = "desired_goal",
        reward_key: InfoKey = (NEXT, "reward"),
        end_key: InfoKey | None = None,
        traj_key: InfoKey | None = None,
    ) -> None:
        super().__init__(end_key, traj_key)
        for name, function in (("reward_fn", reward_fn), ("terminated_fn", terminated_fn)):
            if not (callable(function) or (function is None and name == "terminated_fn")):
                raise TypeError(f"{name}={function!r}: give a function of achieved and desired goals.")
        if strategy not in STRATEGIES:
            raise ValueError(f"strategy={strategy!r}: give one of {', '.join(map(repr, STRATEGIES))}.")
        self.reward_fn = reward_fn
        self.terminated_fn = terminated_fn
        self.strategy: Which = strategy
        self.ratio = ratio
        self._achieved = path_of("achieved_goal", achieved_goal)
        self._desired = path_of("desired_goal", desired_goal)
        self._reward = path_of("reward_key", reward_key)

    @property
    def ratio(self) -> float:
        """The share of steps that get another goal."""
        return self._ratio

    @ratio.setter
    def ratio(self, value: float) -> None:
        ratio = real("ratio", value)
        if ratio > 1:
            raise ValueError(f"ratio={value}: a share is a number from 0 to 1.")
        self._ratio = ratio

    def over(self, below: StepView, drawn: Drawn) -> StepView:
        """The view of a batch with other goals."""
        achieved, desired = (_found(path, below.keys) for path in (self._achieved, self._desired))
        after = (NEXT, *achieved)
        for key in (after, desired, self._reward):
            if key not in below.keys:
                raise MissingKeyError(
                    f"There is no entry {shown(key)!r}, which relabelling needs; the keys are "
                    f"{', '.join(str(shown(key)) for key in sorted(below.keys))}. Name what there is with "
                    "achieved_goal, desired_goal and reward_key."
                )
        if self.terminated_fn is not None and _TERMINATED not in below.keys and _DONE not in below.keys:
            raise MissingKeyError(
                f"terminated_fn changes {_TERMINATED}, and the storage has neither that nor {_DONE}. Leave "
                "terminated_fn out."
            )
        sources, relabelled = self._choose(drawn)
        every = torch.arange(sources.numel()) if drawn.every is None else drawn.every
        goals = below.read(after, sources, every)
        return _Relabelled(self, below, after, desired, self._reward, goals, relabelled, every)

    def _choose(self, drawn: Drawn) -> tuple[Tensor, Tensor]:
        """After which step the goal of each is achieved, and which of them get it."""
        slots = drawn.slots
        if drawn.ends is None or not bool(drawn.ends[-1]):
            last, slice_of = slots, None
        else:
            ends = drawn.ends
            slice_of = ends.cumsum(0) - ends.long()
            last = slots[ends]
        relabelled = drawn.uniforms(last.numel()) < self._ratio
        sources = choose(drawn.trajectories, last, self.strategy, drawn.randoms(last.numel()))
        return (sources, relabelled) if slice_of is None else (sources[slice_of], relabelled[slice_of])

    def _facts(self) -> dict[str, Any]:
        return {"strategy": self.strategy, "ratio": self._ratio}


class _Relabelled(StepView):
    """Steps some of which have other goals."""

    def __init__(
        self,
        functions: HindsightRelabel,
        below: StepView,
        achieved: Key,
        desired: Key,
        reward: Key,
        goals: Tensor,
        relabelled: Tensor,
        every: Tensor,
    ) -> None:
        self._functions, self._below = functions, below
        self._achieved, self._desired, self._reward = achieved, desired, reward
        self._goals, self._relabelled, self._every = goals, relabelled, every
        self.keys = list(below.keys)
        self._desired_too = [key for key in (desired, (NEXT, *desired)) if key in below.keys]
        self.changed = [*self._desired_too, reward]
        self.terminal = below.terminal
        if functions.terminated_fn is not None:
            self.terminal = _TERMINATED
            self.changed += [_TERMINATED, _DONE]
            self.keys += [key for key in (_TERMINATED, _DONE) if key not in below.keys]
        self._known: dict[str, tuple[Tensor, Tensor]] = {}
        self._which: tuple[Tensor, Tensor, Tensor] | None = None

    def read(self, key: Key, slots: Tensor, of: Tensor) -> Tensor:
        """What the other goals change, else what is below."""
        below, functions = self._below, self._functions
        if key in self._desired_too:
            stored = below.read(key, slots, of)
            which, goals = self._relabelled_of(of)
            goals = goals.to(stored.device, stored.dtype)
            if goals.shape[1:] != stored.shape[1:]:
                raise RuntimeError(
                    f"What is achieved, {shown(self._achieved)!r}, is of shape {list(goals.shape[1:])}, and "
                    f"the goal {shown(key)!r} of shape {list(stored.shape[1:])}: one cannot stand for the "
                    "other. Store them alike, or name others with achieved_goal and desired_goal."
                )
            return with_rows(stored, which, goals)
        if key == self._reward:
            return self._made("reward", below.read(key, slots, of), slots, of)
        if functions.terminated_fn is not None and key == _TERMINATED:
            return self._terminated(slots, of)
        if functions.terminated_fn is not None and key == _DONE:
            ended = self._terminated(slots, of)
            if _TRUNCATED in below.keys:
                ended = ended | (below.read(_TRUNCATED, slots, of) != 0).reshape(ended.shape)
            return ended
        return below.read(key, slots, of)

    def place_of(self, key: Key) -> LeafPlace | None:
        """Where what is below lies."""
        return None if key in self.changed else self._below.place_of(key)

    def expect(self, keys: Sequence[Key], slots: Tensor, of: Tensor) -> None:
        """What of them is below is read at once, with what is needed for them."""
        wanted = dict.fromkeys(keys)
        if self._functions.terminated_fn is not None and wanted.keys() & {_TERMINATED, _DONE}:
            wanted.pop(_DONE, None)
            wanted.pop(_TERMINATED, None)
            more = [_stored_end(self._below.keys), self._achieved]
            wanted.update(dict.fromkeys(more + [_TRUNCATED] * (_TRUNCATED in self._below.keys)))
        elif self._reward in wanted:
            wanted[self._achieved] = None
        self._below.expect(list(wanted), slots, of)

    def _relabelled_of(self, of: Tensor) -> tuple[Tensor, Tensor]:
        """Which of some steps have other goals, int64 ``[k]``, and these."""
        known = self._which
        if known is None or known[0] is not of:
            if of is self._every:
                which = own = self._relabelled.nonzero().view(-1)
            else:
                which = self._relabelled.index_select(0, of).nonzero().view(-1)
                own = of.index_select(0, which)
            known = self._which = of, which, rows_of(self._goals, own)
        return known[1], known[2]

    def _terminated(self, slots: Tensor, of: Tensor) -> Tensor:
        stored = self._below.read(_stored_end(self._below.keys), slots, of) != 0
        return self._made("terminated", stored, slots, of)

    def _made(self, what: str, stored: Tensor, slots: Tensor, of: Tensor) -> Tensor:
        """What is stored, in its place what a function makes of the other goals."""
        known = self._known.get(what)
        if known is not None and known[0] is slots:
            return known[1]
        which, goals = self._relabelled_of(of)
        found = self._with_goals(what, stored, slots, of, which, goals) if which.numel() else stored
        self._known[what] = slots, found
        return found

    def _with_goals(
        self, what: str, stored: Tensor, slots: Tensor, of: Tensor, which: Tensor, goals: Tensor
    ) -> Tensor:
        achieved = self._below.read(self._achieved, slots, of)
        function: GoalFn = getattr(self._functions, f"{what}_fn")
        made = function(rows_of(achieved, which), goals.clone())  # it may write into what it is given
        name = getattr(function, "__qualname__", None) or repr(function)
        try:
            values = torch.as_tensor(made, device=stored.device).detach()
        except (RuntimeError, TypeError, ValueError) as error:
            raise TypeError(
                f"{name} was given {which.numel()} goals and gave a {type(made).__name__}, {made!r:.80}. "
                "Give a tensor, an array or a list, one value for each goal."
            ) from error
        if values.numel() != stored[:1].numel() * which.numel():
            raise RuntimeError(
                f"{name} was given {which.numel()} goals and gave values of shape {list(values.shape)}; "
                f"stored are {list(stored.shape[1:])} for each step. Give one value for each goal."
            )
        values = values.reshape(which.numel(), *stored.shape[1:]).to(stored.dtype)
        return with_rows(stored, which, values)


def _found(path: Key, keys: Sequence[Key]) -> Key:
    """The entry, or that of the same name under the observation."""
    return path if path in keys or ("observation", *path) not in keys else ("observation", *path)


def _stored_end(keys: Sequence[Key]) -> Key:
    return _TERMINATED if _TERMINATED in keys else _DONE
