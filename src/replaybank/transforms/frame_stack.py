"""The last frames of a trajectory side by side, put together when a batch is sampled."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from replaybank.errors import MissingKeyError
from replaybank.samplers.arguments import whole
from replaybank.samplers.base import InfoKey
from replaybank.storages.layout import LeafPlace
from replaybank.storages.torch_indexing import movable
from replaybank.trajectories.signals import Key
from replaybank.transforms.base import NEXT, Drawn, SampleTransform, StepView, over_items, path_of, shown

PADDINGS = ("same", "constant")


class FrameStack(SampleTransform):
    """The last ``n`` frames of each step's trajectory, oldest first, from frames that are stored once.

    An entry of the batch becomes those of the step and of the ``n - 1`` steps before it in its trajectory.
    Before the first step there are none: there stands the first frame again, or a number. The entry of the
    same name under ``"next"`` goes with it: there the frames end with the one after the step, so that it is
    what the entry of the next step will be, also at the end of a trajectory. Where a trajectory's oldest
    steps have been overwritten, the oldest one that is left counts as the first.

    Storages with ``next_observation="derive"`` and with encoded images are read as they are.

    Thread-safe. Can be pickled.

    Args:
        n: number of frames, at least 1.
        dim: dimension of a frame along which they are joined, counted from the end: ``-3`` for ``[C, H, W]``
            gives ``[B, n * C, H, W]``. None makes a new one: ``[B, n, ...]``.
        in_keys: entries to stack, each with the one under ``"next"`` where there is one.
        out_keys: where to put them, one for each of ``in_keys``; in their place by default.
        padding: ``"same"``, the first frame, or ``"constant"``, before the first step.
        padding_value: the number for ``"constant"``.
        end_key: where trajectories end, as for :class:`~replaybank.SliceSampler`.
        traj_key: as for :class:`~replaybank.SliceSampler`.

    Raises:
        ValueError: ``n``, ``dim`` or ``padding`` is none of these, or there is not one of ``out_keys`` for
            each of ``in_keys``.
        TypeError: a key is none, ``n`` or ``dim`` is no integer.

    Complexity:
        O(B * n) frames are read.

    References:
        Mnih et al., "Human-level control through deep reinforcement learning", Nature 518 (2015).

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from replaybank import FrameStack, LazyTensorStorage, TensorDictReplayBuffer
        >>> from replaybank import SamplerWithoutReplacement
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(10),
        ...     sampler=SamplerWithoutReplacement(shuffle=False),
        ...     transform=FrameStack(3),
        ...     batch_size=4,
        ... )
        >>> frames, episode = torch.arange(4.0)[:, None], torch.tensor([0, 0, 0, 1])
        >>> _ = buffer.extend(TensorDict({"observation": frames, "episode": episode}, [4]))
        >>> buffer.sample()["observation"].tolist()
        [[0.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 2.0], [3.0, 3.0, 3.0]]
    """

    level = 20

    def __init__(
        self,
        n: int,
        dim: int | None = -1,
        *,
        in_keys: Sequence[InfoKey] = ("observation",),
        out_keys: Sequence[InfoKey] | None = None,
        padding: Literal["same", "constant"] = "same",
        padding_value: float = 0,
        end_key: InfoKey | None = None,
        traj_key: InfoKey | None = None,
    ) -> None:
        super().__init__(end_key, traj_key)
        self.n = whole("n", n)
        self.dim = None if dim is None else operator.index(dim)
        if self.dim is not None and self.dim >= 0:
            raise ValueError(
                f"dim={dim}: frames are joined along a dimension of theirs, counted from the end. Give a "
                "negative number, or None for a new dimension."
            )
        if padding not in PADDINGS:
            raise ValueError(f"padding={padding!r}: give one of {', '.join(map(repr, PADDINGS))}.")
        self.padding = padding
        self.padding_value = padding_value
        self._sources = _paths("in_keys", in_keys)
        self._targets = self._sources if out_keys is None else _paths("out_keys", out_keys)
        if len(self._sources) != len(self._targets):
            raise ValueError(
                f"{len(self._sources)} in_keys and {len(self._targets)} out_keys: give one for each."
            )

    @property
    def in_keys(self) -> list[InfoKey]:
        """The entries that are stacked."""
        return [shown(path) for path in self._sources]

    @property
    def out_keys(self) -> list[InfoKey]:
        """Where they are put."""
        return [shown(path) for path in self._targets]

    def over(self, below: StepView, drawn: Drawn) -> StepView:
        """The view of a batch with the frames before it."""
        stacks: dict[Key, _Stack] = {}
        for source, target in zip(self._sources, self._targets, strict=True):
            if source not in below.keys:
                raise MissingKeyError(
                    f"There are no frames {shown(source)!r} to stack; the keys are "
                    f"{', '.join(str(shown(key)) for key in sorted(below.keys))}. Name them with in_keys."
                )
            stacks[target] = _stack_of(source, below.keys)
            if source[0] != NEXT and (NEXT, *source) in below.keys:
                stacks.setdefault((NEXT, *target), _stack_of((NEXT, *source), below.keys))
        value = None if self.padding == "same" else self.padding_value
        return _Frames(below, drawn, self.n, self.dim, value, stacks)

    def _facts(self) -> dict[str, Any]:
        return {"n": self.n, "dim": self.dim, "in_keys": self.in_keys}


class _Stack(NamedTuple):
    """Where frames are.

    Args:
        newest: the entry of the newest one.
        older: that of those before it: the same, or that of the step itself where the newest comes after it.
    """

    newest: Key
    older: Key


def _stack_of(source: Key, keys: Sequence[Key]) -> _Stack:
    if source[0] == NEXT and source[1:] in keys:
        return _Stack(source, source[1:])
    return _Stack(source, source)


class _Frames(StepView):
    """Steps with the frames before them."""

    def __init__(
        self,
        below: StepView,
        drawn: Drawn,
        n: int,
        dim: int | None,
        value: float | None,
        stacks: dict[Key, _Stack],
    ) -> None:
        self._below, self._drawn, self._stacks = below, drawn, stacks
        self._n, self._dim, self._value = n, dim, value
        self.keys = [*below.keys, *(key for key in stacks if key not in below.keys)]
        self.changed = list(stacks)
        self.terminal = below.terminal
        self._known: dict[Key, tuple[Tensor, Tensor]] = {}

    def read(self, key: Key, slots: Tensor, of: Tensor) -> Tensor:
        """Frames where they are asked for, else what is below."""
        stack = self._stacks.get(key)
        if stack is None:
            return self._below.read(key, slots, of)
        if stack.newest == stack.older:
            frames = self._frames(stack.older, slots, of)
        else:
            newest = self._below.read(stack.newest, slots, of).unsqueeze(1)
            # As many as are in front of the newest one: those of the step itself but the oldest.
            older = self._frames(stack.older, slots, of)[:, 1:] if self._n > 1 else newest[:, :0]
            frames = torch.cat([older, newest], 1)
        return self._joined(frames, stack)

    def place_of(self, key: Key) -> LeafPlace | None:
        """Where what is below lies."""
        return None if key in self._stacks else self._below.place_of(key)

    def expect(self, keys: Sequence[Key], slots: Tensor, of: Tensor) -> None:
        """What of them is below is read at once."""
        stacks = self._stacks
        below = [stacks[key].newest if key in stacks else key for key in keys]
        # Of a frame that has no other one as its newest, all are read together later.
        self._below.expect(
            [name for name in below if name not in [stack.older for stack in stacks.values()]], slots, of
        )

    def _frames(self, key: Key, slots: Tensor, of: Tensor) -> Tensor:
        """The frames up to each step, ``[K, n, ...]``."""
        known = self._known.get(key)
        if known is not None and known[0] is slots:
            return known[1]
        n = self._n
        places, before, _ = self._drawn.windows(slots, n - 1, 0)
        each = of.unsqueeze(1).expand(-1, n).reshape(-1) if n > 1 else of
        read = self._below.read(key, places.view(-1) if n > 1 else slots, each)
        frames = read.view(slots.numel(), n, *read.shape[1:])
        if self._value is not None and n > 1:
            missing = torch.arange(n - 1, -1, -1) > before.unsqueeze(1)
            value = movable(torch.full((1,), self._value, dtype=torch.float64).to(read.device, read.dtype))
            filled = movable(read).masked_fill(over_items(missing.view(-1), read), value[0])
            frames = filled.view(read.dtype).view(frames.shape)
        self._known[key] = slots, frames
        return frames

    def _joined(self, frames: Tensor, stack: _Stack) -> Tensor:
        """Frames ``[K, n, ...]`` as they are to be in the batch."""
        if self._dim is None:
            return frames
        at = frames.ndim + self._dim  # of the dimension in front of which the frames are to be
        if at < 2:
            raise RuntimeError(
                f"Frames {shown(stack.newest)!r} of shape {list(frames.shape[2:])} have no dimension "
                f"{self._dim} to be joined along. Give FrameStack another dim, or None for a new one."
            )
        return frames.movedim(1, at - 1).flatten(at - 1, at)


def _paths(name: str, keys: Sequence[InfoKey]) -> list[Key]:
    if isinstance(keys, str) or not len(keys):
        raise TypeError(f"{name}={keys!r}: give a list with at least one key.")
    return [path_of(name, key) for key in keys]
