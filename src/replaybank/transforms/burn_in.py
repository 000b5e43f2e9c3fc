"""The first steps of slices marked: a recurrent network warms up on them, and is not trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from replaybank.samplers.arguments import whole
from replaybank.samplers.base import InfoKey
from replaybank.storages.layout import LeafPlace
from replaybank.trajectories.signals import Key
from replaybank.transforms.base import Drawn, SampleTransform, StepView, path_of, shown


class BurnIn(SampleTransform):
    """Marks the first ``n`` steps of each slice, and counts on a slice sampler for the slices.

    A recurrent network that starts a slice with a state that is not that of the time is run over these steps
    to get one, and learns from the steps behind them. A slice of ``n`` steps or fewer is marked whole: ask
    for longer ones.

    Thread-safe. Can be pickled.

    Args:
        n: number of steps, at least 1.
        mask_key: where the mark is put, bool ``[B, 1]``, True in the first ``n`` steps of each slice.

    Raises:
        ValueError: ``n`` is less than 1.
        TypeError: ``n`` is no integer, or the key is none.

    References:
        Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning", ICLR 2019.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from replaybank import BurnIn, LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(10),
        ...     sampler=SliceSampler(slice_len=4),
        ...     transform=BurnIn(2),
        ...     batch_size=8,
        ... )
        >>> _ = buffer.extend(TensorDict({"episode": torch.zeros(10)}, [10]))
        >>> buffer.sample()["burn_in"].squeeze(-1).tolist()
        [True, True, False, False, True, True, False, False]
    """

    level = 0

    def __init__(self, n: int, *, mask_key: InfoKey = "burn_in") -> None:
        super().__init__()
        self.n = whole("n", n)
        self._mask = path_of("mask_key", mask_key)

    @property
    def mask_key(self) -> InfoKey:
        """Where the mark is put."""
        return shown(self._mask)

    def over(self, below: StepView, drawn: Drawn) -> StepView:
        """The view of a batch with the marks.

        Raises:
            RuntimeError: the batch is not made of slices.
        """
        ends = drawn.ends
        if ends is None:
            raise RuntimeError(
                f"{self!r} marks the first steps of slices, and the sampler does not say where they end. Use "
                "a SliceSampler, or one of its kin, with a truncated_key."
            )
        place = torch.arange(ends.numel())
        last = torch.where(ends, place, -1).cummax(0).values.roll(1)  # of the slice before
        last[0] = -1
        return _Marked(below, self._mask, (place - last <= self.n).unsqueeze(-1))

    def _facts(self) -> dict[str, Any]:
        return {"n": self.n}


class _Marked(StepView):
    """Steps with one more entry, which is known for those of the batch."""

    def __init__(self, below: StepView, key: Key, marks: Tensor) -> None:
        self._below, self._key, self._marks = below, key, marks
        self.keys: Sequence[Key] = [*below.keys, *([] if key in below.keys else [key])]
        self.changed = [key]
        self.terminal = below.terminal

    def place_of(self, key: Key) -> LeafPlace | None:
        """Where what is below lies."""
        return None if key in self.changed else self._below.place_of(key)

    def read(self, key: Key, slots: Tensor, of: Tensor) -> Tensor:
        """The marks, else what is below."""
        return self._marks[of] if key == self._key else self._below.read(key, slots, of)
