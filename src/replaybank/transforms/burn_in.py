"""The first steps of slices marked: a recurrent network warms up on them, and is not trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from replaybank.samplers.arguments import whole
from replaybank.samplers.base import InfoKey
from replaybank.storages.layout import LeafPlace
from replaybank.trajectories.signals import Key
from replaybank.trajectories.windows import first_steps
from replaybank.transforms.base import (
    NEXT,
    Drawn,
    SampleTransform,
    StepView,
    ends_of,
    over_items,
    path_of,
    shown,
)

_ENDS = ("done", "terminated", "truncated")


class BurnIn(SampleTransform):
    """Marks the first ``n`` steps of each slice, and counts on a slice sampler for the slices.

    A recurrent network that starts a slice with a state that is not that of the time is run over these steps
    to get one, and learns from the steps behind them. A slice of ``n`` steps or fewer is marked whole: ask
    for longer ones, or have them extended.

    With ``extend`` the steps come on top: in front of each slice come the ``n`` steps before it in its
    trajectory, so that all that the sampler drew is left to learn from. A batch of ``S`` slices, ``B`` steps
    in all, becomes one of ``B + S * n`` steps, slice behind slice, each with its ``n`` steps first; slices of
    one length ``L`` are ``batch.reshape(S, n + L)``. Where the trajectory has fewer steps before a slice, the
    first that it has stands there again, as often as steps are missing, with its index and without its ends;
    ``padded_key`` marks these. Of what the sampler says of a slice (its weight, say) the steps before it have
    what its first step has. All other sampling transforms see these steps as steps of the slice.

    Thread-safe. Can be pickled.

    Args:
        n: number of steps, at least 1.
        extend: put the steps before each slice, instead of taking them from it.
        mask_key: where the mark is put, bool ``[B, 1]``, True in the first ``n`` steps of each slice.
        padded_key: with ``extend``, where the second mark is put, bool ``[B, 1]``, True at steps that only
            stand for ones that are not there. They are marked as burn-in as well.
        first_key: where a third mark is put, bool ``[B, 1]``, True at the first step of each slice that the
            sampler drew, behind the steps that came on top: whose priority is the slice's.
        end_key: where trajectories end, as for :class:`~replaybank.SliceSampler`; by default as the sampler
            of the buffer was told.
        traj_key: the same.

    Raises:
        ValueError: ``n`` is less than 1, or two marks are one.
        TypeError: ``n`` is no integer, or a key is none.

    Complexity:
        ``extend``: O(S * n) more steps are read, whatever is stored.

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
        >>> _ = buffer.extend(TensorDict({"episode": torch.zeros(10), "step": torch.arange(10)}, [10]))
        >>> buffer.sample()["burn_in"].squeeze(-1).tolist()
        [True, True, False, False, True, True, False, False]

        With the steps before each slice, of which there may be none:

        >>> buffer = TensorDictReplayBuffer(
        ...     storage=buffer.storage,
        ...     sampler=SliceSampler(slice_len=9),
        ...     transform=BurnIn(2, extend=True),
        ...     batch_size=9,
        ...     generator=torch.Generator().manual_seed(5),
        ... )
        >>> batch = buffer.sample()
        >>> batch["step"].tolist()
        [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
        >>> batch["padded"].squeeze(-1).tolist()[:3], batch["burn_in"].squeeze(-1).tolist()[:3]
        ([True, False, False], [True, True, False])
    """

    level = 0

    def __init__(
        self,
        n: int,
        extend: bool = False,
        *,
        mask_key: InfoKey = "burn_in",
        padded_key: InfoKey = "padded",
        first_key: InfoKey | None = None,
        end_key: InfoKey | None = None,
        traj_key: InfoKey | None = None,
    ) -> None:
        super().__init__(end_key, traj_key)
        self.n = whole("n", n)
        self.extend = bool(extend)
        self._mask = path_of("mask_key", mask_key)
        self._padded = path_of("padded_key", padded_key)
        self._first = None if first_key is None else path_of("first_key", first_key)
        if self._mask == self._padded:
            raise ValueError(f"mask_key and padded_key are both {mask_key!r}: give each its own.")
        if self._first in (self._mask, self._padded):
            raise ValueError(f"first_key={first_key!r} is the key of another mark: give each its own.")

    @property
    def mask_key(self) -> InfoKey:
        """Where the mark is put."""
        return shown(self._mask)

    @property
    def steps_before(self) -> int:
        """How many steps are to be read in front of each slice."""
        return self.n if self.extend else 0

    @property
    def padded_key(self) -> InfoKey:
        """Where the mark of steps is put that only stand for others."""
        return shown(self._padded)

    @property
    def first_key(self) -> InfoKey | None:
        """Where the mark of the first step is put that the sampler drew; None: nowhere."""
        return None if self._first is None else shown(self._first)

    def over(self, below: StepView, drawn: Drawn) -> StepView:
        """The view of a batch with the marks.

        Raises:
            RuntimeError: the batch is not made of slices.
        """
        ends = ends_of(self, drawn.ends)
        marks = {self._mask: first_steps(ends, self.n)}
        if self._first is not None:
            before = self.steps_before
            first = first_steps(ends, before + 1)
            marks[self._first] = first & ~first_steps(ends, before) if before else first
        if self.extend and drawn.padded is not None:
            marks[self._padded] = drawn.padded.unsqueeze(-1)
        return _Marked(below, marks, drawn.padded)

    def _facts(self) -> dict[str, Any]:
        return {"n": self.n, **({"extend": True} if self.extend else {})}


class _Marked(StepView):
    """Steps with marks, which are known for those of the batch; what only stands for a step ends nothing."""

    def __init__(self, below: StepView, marks: dict[Key, Tensor], padded: Tensor | None) -> None:
        self._below, self._marks, self._padded = below, marks, padded
        self.keys: Sequence[Key] = [*below.keys, *(key for key in marks if key not in below.keys)]
        self._ends = [] if padded is None else [key for key in below.keys if _ends_a_step(key)]
        self.changed = [*marks, *self._ends]
        self.terminal = below.terminal

    def read(self, key: Key, slots: Tensor, of: Tensor) -> Tensor:
        """The marks, else what is below."""
        if key in self._marks:
            return self._marks[key][of]
        found = self._below.read(key, slots, of)
        if self._padded is not None and key in self._ends:
            return found.masked_fill(over_items(self._padded[of], found), 0)
        return found

    def place_of(self, key: Key) -> LeafPlace | None:
        """Where what is below lies."""
        return None if key in self.changed else self._below.place_of(key)

    def expect(self, keys: Sequence[Key], slots: Tensor, of: Tensor) -> None:
        """What of them is below is read at once."""
        self._below.expect([key for key in keys if key not in self._marks], slots, of)


def _ends_a_step(key: Key) -> bool:
    return key[-1] in _ENDS and key[:-1] in ((), (NEXT,))
