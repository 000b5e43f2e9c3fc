"""A small network from what a robot sees and feels to what it does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from tensordict import TensorDictBase, is_non_tensor
from torch import Tensor, nn
from torch.nn import functional

Key = tuple[str, ...]

FRAME = 64
"""Width and height to which frames are brought before the network sees them, pixels."""
MAX_NUMBERS = 4096
"""A numeric entry with more values a step than this (a depth image, a point cloud) is left out."""


@dataclass(frozen=True)
class Layout:
    """Which entries of a step the network reads, and which it predicts.

    Args:
        cameras: keys of uint8 images ``[C, H, W]``.
        numbers: keys of the other numeric observations, flattened and put one after the other.
        actions: keys of the action's parts, flattened and put one after the other.
        left_out: keys of observations that are neither: text, and entries above ``MAX_NUMBERS``.
    """

    cameras: tuple[Key, ...]
    numbers: tuple[Key, ...]
    actions: tuple[Key, ...]
    left_out: tuple[Key, ...]

    @classmethod
    def of(cls, batch: TensorDictBase) -> Layout:
        """Find the entries in a batch of steps.

        Args:
            batch: steps ``[B]`` in TED layout.

        Raises:
            ValueError: there is no numeric ``action``, or nothing under ``observation`` that can be used.
        """
        cameras, numbers, left_out = [], [], []
        for key, value in _leaves(batch, "observation"):
            if not isinstance(value, Tensor):
                left_out.append(key)
            elif value.dtype == torch.uint8 and value.ndim == 4 and value.shape[1] in (1, 3, 4):
                cameras.append(key)
            elif value[0].numel() <= MAX_NUMBERS and not value.is_complex():
                numbers.append(key)
            else:
                left_out.append(key)
        actions = [key for key, value in _leaves(batch, "action") if isinstance(value, Tensor)]
        if not actions or not (cameras or numbers):
            msg = (
                "behaviour cloning needs a numeric 'action' and images or numbers under 'observation'; "
                f"this dataset's steps have {sorted(map(str, batch.keys()))}"
            )
            raise ValueError(msg)
        return cls(tuple(cameras), tuple(numbers), tuple(actions), tuple(left_out))


@dataclass(frozen=True)
class Steps:
    """Steps as the network takes them.

    Args:
        frames: uint8 ``[B, C, FRAME, FRAME]``, one a camera.
        numbers: float32 ``[B, D]``, D may be 0.
        actions: float32 ``[B, A]``.
    """

    frames: tuple[Tensor, ...]
    numbers: Tensor
    actions: Tensor

    def __len__(self) -> int:
        return len(self.actions)

    @classmethod
    def of(cls, batch: TensorDictBase, layout: Layout) -> Steps:
        """Take a layout's entries out of a batch ``[B]``. O(B)."""
        return cls(
            tuple(shrink(batch.get(key)) for key in layout.cameras),
            _flat(batch, layout.numbers),
            _flat(batch, layout.actions),
        )

    @classmethod
    def joined(cls, parts: Sequence[Steps]) -> Steps:
        """Several one after the other."""
        cameras = zip(*(part.frames for part in parts), strict=True)
        return cls(
            tuple(torch.cat(frames) for frames in cameras),
            torch.cat([part.numbers for part in parts]),
            torch.cat([part.actions for part in parts]),
        )

    def split(self, size: int) -> Iterator[Steps]:
        """Parts of at most ``size`` steps, in order."""
        for start in range(0, len(self), size):
            rows = slice(start, start + size)
            yield Steps(tuple(f[rows] for f in self.frames), self.numbers[rows], self.actions[rows])


@dataclass(frozen=True)
class Scale:
    """Mean and standard deviation of each value; those that never vary keep their size.

    Args:
        mean: ``[D]``.
        std: ``[D]``, 1 where the value does not vary.
        varies: bool ``[D]``.
    """

    mean: Tensor
    std: Tensor
    varies: Tensor

    @classmethod
    def of(cls, values: Tensor) -> Scale:
        """The scale of values ``[N, D]``.

        Example:
            >>> Scale.of(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
            Scale(mean=tensor([2., 5.]), std=tensor([1., 1.]), varies=tensor([ True, False]))
        """
        mean, std = values.mean(0), values.std(0, correction=0)
        # Relative to the size of the values: the mean of equal float32 values is off by a few last bits.
        varies = std > 1e-6 * values.abs().amax(0)
        return cls(mean, torch.where(varies, std, torch.ones_like(std)), varies)

    def __call__(self, values: Tensor) -> Tensor:
        """Values ``[B, D]`` with mean 0 and standard deviation 1; none beyond ten deviations."""
        # A value that hardly varied in training and does so elsewhere must not swamp all the others.
        return ((values - self.mean) / self.std).clamp(-10.0, 10.0)


def shrink(images: Tensor) -> Tensor:
    """Images of any size as ``FRAME`` x ``FRAME``: rows and columns left out, then areas averaged.

    Args:
        images: uint8 ``[B, C, H, W]``.

    Returns:
        uint8 ``[B, C, FRAME, FRAME]``; the same tensor where that is its size already.
    """
    height, width = images.shape[-2:]
    if (height, width) == (FRAME, FRAME):
        return images
    rows, columns = max(1, height // (2 * FRAME)), max(1, width // (2 * FRAME))
    pooled = functional.adaptive_avg_pool2d(images[..., ::rows, ::columns].float(), FRAME)
    return pooled.round().to(torch.uint8)


class Cloner(nn.Module):
    """Actions from frames and numbers: a convolutional network a camera, a perceptron over all.

    A camera's network ends in the mean positions of its feature maps ("spatial softmax", Levine et al. 2016,
    https://arxiv.org/abs/1504.00702, section 5.1): where things are is what a reaching arm must know, and
    there are few weights with which to learn the frames by heart. Not thread-safe while training.

    Args:
        steps: some steps, for the sizes.
        numbers: scale of the numeric observations.
        width: size of the hidden layers.
    """

    def __init__(self, steps: Steps, numbers: Scale, width: int = 128) -> None:
        super().__init__()
        self._scale = numbers
        self._eyes = nn.ModuleList([_Eye(frames.shape[1]) for frames in steps.frames])
        seen = len(self._eyes) * _Eye.FEATURES + steps.numbers.shape[1]
        # The first prediction is the mean action, so that training starts from the baseline.
        out = nn.Linear(width, steps.actions.shape[1])
        nn.init.zeros_(out.weight)
        nn.init.zeros_(out.bias)
        self._head = nn.Sequential(nn.Linear(seen, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), out)

    def forward(self, steps: Steps) -> Tensor:
        """Normalised actions, float32 ``[B, A]``."""
        seen = [eye(frames) for eye, frames in zip(self._eyes, steps.frames, strict=True)]
        out: Tensor = self._head(torch.cat([*seen, self._scale(steps.numbers)], dim=1))
        return out


class _Eye(nn.Module):
    """Where 24 learned features are in a frame."""

    FEATURES = 48

    def __init__(self, channels: int) -> None:
        super().__init__()
        self._maps = nn.Sequential(
            nn.Conv2d(channels, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, self.FEATURES // 2, 3, padding=1),
        )
        self._sharpness = nn.Parameter(torch.ones(self.FEATURES // 2, 1))

    def forward(self, frames: Tensor) -> Tensor:
        maps = self._maps(frames.float() / 127.5 - 1.0)
        weights = (maps.flatten(2) * self._sharpness).softmax(-1).view_as(maps)
        across = torch.linspace(-1.0, 1.0, maps.shape[-1], device=maps.device)
        down = torch.linspace(-1.0, 1.0, maps.shape[-2], device=maps.device)
        columns = (weights.sum(-2) * across).sum(-1)
        rows = (weights.sum(-1) * down).sum(-1)
        return torch.cat([columns, rows], dim=1)


def _leaves(batch: TensorDictBase, name: str) -> list[tuple[Key, object]]:
    """The entries below ``name``, or the one of that name, sorted by key."""
    if name not in batch.keys():  # noqa: SIM118 - a TensorDict refuses ``in``
        return []
    found: list[tuple[Key, object]] = []
    waiting: list[tuple[Key, object]] = [((name,), batch.get(name))]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, TensorDictBase) and not is_non_tensor(value):
            names = list(value.keys())
            waiting.extend(((*key, below), value.get(below)) for below in names)
        else:
            found.append((key, value))
    return sorted(found, key=lambda item: item[0])


def _flat(batch: TensorDictBase, keys: tuple[Key, ...]) -> Tensor:
    """Entries as float32 columns ``[B, D]``, side by side; what is not finite is 0."""
    count = batch.batch_size[0]
    columns = [torch.empty(count, 0), *(batch.get(key).reshape(count, -1).float() for key in keys)]
    return torch.nan_to_num(torch.cat(columns, dim=1), nan=0.0, posinf=0.0, neginf=0.0)
