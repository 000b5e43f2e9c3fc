"""Recording Gymnasium environments into a buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from replaybank import showing
from replaybank.buffers.env_steps import differing, flags_of, leaves_of, rewards_of, with_final
from replaybank.buffers.parts import whole_number
from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.buffers.step_sinks import BufferSink, ColumnSink, EpisodeSink, StepSink
from replaybank.storages.structure import show

if TYPE_CHECKING:
    from typing_extensions import Self

    from replaybank.storages.layout import Key

AUTORESET_MODES = ("next_step", "same_step", "disabled")
"""Gymnasium's ``AutoresetMode``, as its names in lower case."""

_SHARE_THAT_WAITS = 16
"""By default at most a sixteenth of the storage's rows waits to be written, for each environment."""

_OURS = frozenset({"observation", "action", "next", "episode", "step", "is_init", "env", "index"})


class TrajectoryRecorder:
    """Writes what Gymnasium environments do as TED steps, one for each true transition.

    A step has the entries ``observation`` and ``action`` (nested as the environment's dicts and tuples are),
    ``("next", "observation")``, ``("next", "reward")`` float32 ``[1]``, ``("next", "done")``,
    ``("next", "terminated")`` and ``("next", "truncated")`` bool ``[1]``, ``episode`` (int64, another for
    every episode of any environment), ``step`` (int32, from 0 in each) and ``is_init`` (bool). With several
    environments in a storage of one dimension, ``env`` (int32) says whose it is.

    The observation after the last step of an episode is the true one, never that of the next reset, and what
    an environment gives while it resets is not recorded. Neighbours in the storage are consecutive steps of
    one episode, or nothing joins them: slices, and all that follows trajectories, are right by any key.

    How steps of several environments lie in the storage:

    - ``ndim=2`` is the natural one: a column for each environment, written at once. With ``"next_step"``
      (Gymnasium's default) an environment has no step while it resets; it falls behind by that, and the
      newest steps of the others wait until it has caught up (see :attr:`waiting`).
    - ``ndim=1``: each episode is written when it has ended, so that its steps lie together.
    - a list of buffers, one for each environment: each step is written at once. The choice for environments
      that differ much in the length of episodes.

    Not thread-safe; the buffer may be sampled meanwhile. One recorder a buffer at a time.

    Args:
        buffer: where to, or a list with a buffer for each environment. Data that it holds already stays
            apart from what is recorded.
        env: the environment, to learn ``num_envs`` and ``autoreset`` from; it is not kept.
        num_envs: number of environments, n; None: a single one, whose data has no dimension for them.
        autoreset: ``"next_step"``, ``"same_step"``, ``"disabled"`` or Gymnasium's ``AutoresetMode``.
        max_waiting: steps of an environment that may wait to be written. For ``ndim=2`` of more the oldest
            are given up, with a warning; for ``ndim=1`` longer episodes are written in parts. By default a
            sixteenth of the storage's rows.

    Attributes:
        autoreset: one of ``AUTORESET_MODES``.
        steps: number of steps recorded.
        episodes: number of episodes that ended.

    Raises:
        TypeError: ``buffer`` is none, or holds no TensorDicts.
        ValueError: the autoreset mode of several environments is not known, or is none; the storage has more
            than two dimensions, or two for a single environment; not as many buffers as environments.

    Example:
        >>> import gymnasium
        >>> from replaybank import LazyTensorStorage, TensorDictReplayBuffer
        >>> envs = gymnasium.make_vec("CartPole-v1", num_envs=4)
        >>> buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(1000, ndim=2), batch_size=32)
        >>> recorder = TrajectoryRecorder(buffer, envs)
        >>> obs, info = envs.reset(seed=0)
        >>> for _ in range(20):
        ...     action = np.zeros(4, dtype=np.int64)
        ...     after, reward, terminated, truncated, info = envs.step(action)
        ...     recorder.record(obs, action, reward, terminated, truncated, after, info)
        ...     obs = after
        >>> buffer.sample()["next", "observation"].shape
        torch.Size([32, 4])
        >>> envs.close()
    """

    def __init__(
        self,
        buffer: ReplayBuffer | Sequence[ReplayBuffer],
        env: Any = None,
        *,
        num_envs: int | None = None,
        autoreset: Any = None,
        max_waiting: int | None = None,
    ) -> None:
        if env is not None:
            num_envs = getattr(env, "num_envs", None) if num_envs is None else num_envs
            autoreset = _mode_in(env) if autoreset is None else autoreset
        self._single = num_envs is None
        self._count = 1 if num_envs is None else whole_number("num_envs", num_envs, 1)
        if autoreset is None and self._single:
            autoreset = "disabled"
        self.autoreset = _mode_of(autoreset)
        self._sink = self._sink_for(buffer, max_waiting)
        self._ended = np.zeros(self._count, dtype=np.bool_)  # the last step was that of an episode
        self._fresh = np.ones(self._count, dtype=np.bool_)  # it was reset by hand
        self._begun = np.zeros(self._count, dtype=np.bool_)  # it is in mid-episode
        # Of the steps being recorded, never changed in place: they are what is written.
        self._step: npt.NDArray[np.int32] = np.zeros(self._count, dtype=np.int32)
        self._episode: npt.NDArray[np.int64] = np.zeros(self._count, dtype=np.int64)
        self._envs = torch.arange(self._count, dtype=torch.int32)
        self._next_episode = max(_episodes_in(one) for one in self._buffers)
        self._first = True
        self._given: Any = None  # the last next_obs, and its leaves
        self._after: dict[Key, Tensor] = {}
        self._like: dict[Key, _Form] = {}  # what the leaves of the first step were
        self.steps = 0
        self.episodes = 0

    def _sink_for(self, buffer: ReplayBuffer | Sequence[ReplayBuffer], max_waiting: int | None) -> StepSink:
        count = self._count
        several = isinstance(buffer, list | tuple)
        self._buffers: list[ReplayBuffer] = list(buffer) if several else [buffer]  # type: ignore[list-item]
        for one in self._buffers:
            if not isinstance(one, ReplayBuffer):
                raise TypeError(f"Steps are recorded into a ReplayBuffer, got a {type(one).__name__}.")
        if several and len(self._buffers) != count:
            raise ValueError(f"{len(self._buffers)} buffers were given for {count} environment(s).")
        first = self._buffers[0]
        ndims = {one.storage.ndim for one in self._buffers}
        self._with_env = False
        if max_waiting is not None:
            max_waiting = whole_number("max_waiting", max_waiting, 1)
        if ndims == {1}:
            if several or count == 1:
                return BufferSink(self._buffers)
            self._with_env = True
            return EpisodeSink(first, count, max_waiting or _waiting_by_default(first, count))
        if ndims != {2} or several or self._single:
            raise ValueError(
                f"The storage has ndim={max(ndims)}. Use ndim=2 for the columns of several environments, and "
                "ndim=1 for a single environment or a buffer for each."
            )
        return ColumnSink(first, count, max_waiting or _waiting_by_default(first, count))

    @property
    def waiting(self) -> int:
        """Steps that were recorded and are not yet in the buffer."""
        return self._sink.waiting

    def record(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        next_obs: Any,
        info: Any = None,
        *,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Record a step of all environments. O(bytes of it).

        Args:
            obs: what the action was chosen from: an array ``[n, ...]``, or dicts and tuples of them. For a
                single environment here and below without the n.
            action: the same.
            reward: ``[n]``.
            terminated: bool ``[n]``.
            truncated: bool ``[n]``.
            next_obs: what ``env.step`` gave.
            info: what ``env.step`` gave; needed for ``autoreset="same_step"``.
            extra: more entries of the step, such as log-probabilities: arrays ``[n, ...]`` by name.

        Raises:
            TypeError: something is no array of numbers.
            ValueError: something is not there for n environments; ``obs`` is not the ``next_obs`` of the step
                before, and nothing was said of a reset; there is no last observation in ``info``. Nothing has
                been recorded.

        Example:
            >>> import torch
            >>> from replaybank import LazyTensorStorage, TensorDictReplayBuffer
            >>> buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100))
            >>> recorder = TrajectoryRecorder(buffer)  # of a single environment
            >>> recorder.record(torch.zeros(2), torch.tensor(1), 0.5, False, False, torch.ones(2))
            >>> recorder.record(torch.ones(2), torch.tensor(0), 1.5, True, False, torch.ones(2) * 2)
            >>> buffer[:]["next", "reward"].tolist(), buffer[:]["next", "done"].tolist()
            ([[0.5], [1.5]], [[False], [True]])
        """
        count, single = self._count, self._single
        before = leaves_of(obs, ("observation",), count, single=single)
        after = leaves_of(next_obs, ("observation",), count, single=single)
        self._check_apart(before, after)
        terminated = flags_of(terminated, "terminated", count, single=single)
        truncated = flags_of(truncated, "truncated", count, single=single)
        done = terminated | truncated
        there = self._true_steps(obs, before)
        started = ~self._begun
        last = there & done
        ends = int(np.count_nonzero(last))
        true_after = after
        if ends and self.autoreset == "same_step":
            true_after = with_final(after, info, last, ("observation",), single=single)
        steps = {
            **before,
            **leaves_of(action, ("action",), count, single=single),
            **{("next", *key): leaf for key, leaf in true_after.items()},
            ("next", "reward"): rewards_of(reward, count, single=single),
            ("next", "done"): torch.from_numpy(done[:, None]),
            ("next", "terminated"): torch.from_numpy(terminated[:, None]),
            ("next", "truncated"): torch.from_numpy(truncated[:, None]),
        }
        for name, value in (extra or {}).items():
            if name in _OURS:
                raise ValueError(f"extra={name!r}: that is an entry of every step already.")
            steps.update(leaves_of(value, (name,), count, single=single))
        given, starting = self._of_one_kind(steps), there & started
        made, begins = int(np.count_nonzero(there)), int(np.count_nonzero(starting))
        episode, step = self._numbered(starting, begins)
        steps = {
            **given,
            ("episode",): torch.from_numpy(episode),
            ("step",): torch.from_numpy(step),
            ("is_init",): torch.from_numpy(started),
        }
        if self._with_env:
            steps["env",] = self._envs
        if made:
            self._sink.write(steps, there, there & self._fresh, last)
        self._episode, self._step = episode, step + there
        self._next_episode += begins
        self._fresh &= ~there
        self._begun = np.where(there, ~done, self._begun)
        self._ended = last
        self._given, self._after = next_obs, after
        self._like = self._like or {key: _Form.of(leaf) for key, leaf in given.items()}
        self._first = False
        self.steps += made
        self.episodes += ends

    def _true_steps(self, obs: Any, before: dict[Key, Tensor]) -> npt.NDArray[np.bool_]:
        """Which environments made a step, and did not reset; checks that obs is where the last one led."""
        resets = self._ended if self.autoreset == "next_step" else np.zeros(self._count, dtype=np.bool_)
        if not self._first and (obs is not self._given or isinstance(obs, int | float)):
            strange = self._begun | resets
            if strange.any():
                strange &= differing(before, self._after)
            if strange.any():
                raise ValueError(
                    f"obs of environment {int(strange.argmax())} is not the next_obs of the step before, and "
                    "its episode has not ended. Call recorder.reset() after env.reset(), and give "
                    "observations as the environment gives them. Nothing has been recorded."
                )
        return ~resets

    def _check_apart(self, before: dict[Key, Tensor], after: dict[Key, Tensor]) -> None:
        for key, leaf in before.items():
            other = after.get(key)
            if other is not None and leaf.numel() and leaf.data_ptr() == other.data_ptr():
                raise ValueError(
                    f"obs and next_obs are the same memory at {show(key)}: the environment writes over its "
                    "observations. Make it with copy=True, or record copies. Nothing has been recorded."
                )

    def _of_one_kind(self, steps: dict[Key, Tensor]) -> dict[Key, Tensor]:
        """The step with the dtypes of the first one; it must have the same keys, shapes and kinds."""
        if not self._like:
            return steps
        if steps.keys() == self._like.keys():
            cast = {}
            for key, leaf in steps.items():
                like = self._like[key]
                if leaf.shape != like.shape:
                    break
                if leaf.dtype is not like.dtype or leaf.device != like.device:
                    if _kind(leaf.dtype) != _kind(like.dtype):
                        break
                    leaf = leaf.to(like.device, like.dtype)
                cast[key] = leaf
            else:
                return cast
        had = {key: _Form.of(leaf) for key, leaf in steps.items()}
        ours, theirs = (
            {key: f"{form.dtype} {list(form.shape[1:])}" for key, form in d.items()}
            for d in (had, self._like)
        )
        differ = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
        raise ValueError(
            "A step has other entries than those before it: "
            + "; ".join(f"{show(key)} is {ours.get(key)} and was {theirs.get(key)}" for key in differ)
            + ". Nothing has been recorded."
        )

    def _numbered(
        self, starting: npt.NDArray[np.bool_], begins: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Numbers of episodes and steps, once so many begin."""
        if not begins:
            return self._episode, self._step
        episode = self._episode.copy()
        episode[starting] = self._next_episode + np.arange(begins)
        return episode, np.where(starting, np.int32(0), self._step)

    def reset(self, mask: Any = None) -> None:
        """Note that environments were reset by hand: to be called after ``env.reset()`` in mid-episode. O(n).

        What was recorded stays; the open episodes stop where they are, without an end. Before the first step,
        and after ends with ``autoreset="disabled"``, it may be left out.

        With ``ndim=2`` all columns are cut at the row of the first step after it: slices, returns over
        several steps and stacks of frames of the other environments do not go across it either, and are
        shorter there. Where environments are often reset by hand, one by one, record into a list of buffers.

        Args:
            mask: which environments, bool ``[n]`` (Gymnasium's ``options={"reset_mask": mask}``); all by
                default.

        Raises:
            ValueError: the mask is not of n environments.

        Example:
            >>> import torch
            >>> from replaybank import LazyTensorStorage, TensorDictReplayBuffer
            >>> buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100))
            >>> recorder = TrajectoryRecorder(buffer)
            >>> recorder.record(torch.zeros(2), torch.tensor(1), 0.5, False, False, torch.ones(2))
            >>> recorder.reset()  # the environment was reset in mid-episode
            >>> recorder.record(torch.zeros(2), torch.tensor(1), 0.5, False, False, torch.ones(2))
            >>> buffer[:]["episode"].tolist()
            [0, 1]
        """
        chosen = (
            np.ones(self._count, dtype=np.bool_)
            if mask is None
            else flags_of(mask, "mask", self._count, single=self._single)
        )
        self._fresh |= chosen & self._begun
        self._begun &= ~chosen
        self._ended &= ~chosen

    def flush(self) -> None:
        """Write what waits, as far as it can be: episodes that go on, for ``ndim=1``. O(bytes of it).

        The steps that follow are written apart from it: slices do not run across. With ``ndim=2`` a row
        needs a step of every environment, so steps that wait go on waiting.
        """
        self._sink.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.flush()

    def _facts(self) -> dict[str, Any]:
        """What its repr tells."""
        envs = "1 environment" if self._count == 1 else f"{self._count} environments"
        told = {"": showing.Words(envs), "autoreset": self.autoreset, "steps": self.steps}
        return {**told, "episodes": self.episodes, "waiting": self.waiting}

    def __repr__(self) -> str:
        return showing.text_of(self)

    def _repr_html_(self) -> str:
        return showing.html_of(self)


class _Form(NamedTuple):
    """What a leaf of a step is, but for its content."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, leaf: Tensor) -> _Form:
        return cls(leaf.shape, leaf.dtype, leaf.device)


def _kind(dtype: torch.dtype) -> str:
    if dtype is torch.bool:
        return "bool"
    return "float" if dtype.is_floating_point else "complex" if dtype.is_complex else "int"


def _mode_in(env: Any) -> Any:
    metadata = getattr(env, "metadata", None)
    mode = metadata.get("autoreset_mode") if isinstance(metadata, Mapping) else None
    if mode is not None or hasattr(env, "num_envs"):
        return mode
    while env is not None:  # a single environment resets itself inside such a wrapper only
        if type(env).__name__ == "Autoreset":
            return "next_step"
        env = getattr(env, "env", None)
    return None


def _mode_of(mode: Any) -> str:
    name = str(getattr(mode, "value", mode)).replace("_", "").lower()
    for known in AUTORESET_MODES:
        if known.replace("_", "") == name:
            return known
    what = "The environment does not say what it does" if mode is None else f"autoreset={mode!r}: say what"
    raise ValueError(
        f"{what} when an episode has ended. Give autoreset='next_step' (Gymnasium's default), 'same_step' or "
        "'disabled'."
    )


def _episodes_in(buffer: ReplayBuffer) -> int:
    """A number that no stored episode has, nor a later one. O(N)."""
    storage = buffer.storage
    key = ("episode",)
    if not len(buffer) or key not in storage.leaf_keys():
        return 0
    stored = storage.read_leaf(key, slice(0, storage.shape[0]))
    return 0 if stored.is_floating_point() else int(stored.max()) + 1


def _waiting_by_default(buffer: ReplayBuffer, count: int) -> int:
    return max(buffer.storage.rows_with((count,) if buffer.storage.ndim == 2 else ()) // _SHARE_THAT_WAITS, 1)
