"""Slices of trajectories whose starts are drawn in proportion to priorities."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from replaybank.samplers.base import InfoKey, SampledStorage, completed, refuse_empty
from replaybank.samplers.priorities import PriorityTable
from replaybank.samplers.prioritized import PrioritizedSampler
from replaybank.samplers.priority_sampler import GENERATION, PRIORITY_WEIGHT, PrioritySampler
from replaybank.samplers.slice import SliceSampler
from replaybank.samplers.slice_starts import SliceStarts
from replaybank.samplers.slicing import (
    Slicing,
    none_long_enough,
    pair_of,
    reach_of,
    shape_of,
    sizes_of,
    slices_told,
    truncated_of,
)
from replaybank.trajectories.index import repeat


class PrioritizedSliceSampler(PrioritySampler):
    """Slices of trajectories; the start of each in proportion to its weight among the allowed starts.

    Allowed are the steps from which ``slice_len`` steps fit before their trajectory's end; less with a right
    span, and with ``strict_length=False`` also the first step of a shorter trajectory. They are kept current
    by the storage's write log: O(k + L) for k steps written, O(S log N) for a batch, nothing that grows with
    the storage. Priorities of other steps are remembered, and count as soon as their step is allowed.

    Thread-safe. Pickled, it is copied, or shared after :meth:`share_memory_`; between processes the buffer's
    lock guards it.

    Args:
        max_capacity: number of steps there is room for, at least what the storage holds; None: as many as the
            storage has room for, whichever that comes to be.
        alpha: exponent of priorities, a number or 0-d tensor >= 0.
        beta: exponent of importance weights, a number or 0-d tensor >= 0.
        eps: added to priorities.
        dtype: of the weights, torch.float32 or torch.float64.
        reduction: how the priorities of a stored trajectory become one; the buffer applies it.
        num_slices: slices in a batch, S. Exactly one of this and ``slice_len`` is given.
        slice_len: steps in a slice, L.
        end_key: key of the bool that ends a trajectory; as for :class:`SliceSampler`, as are the next three.
        traj_key: key of the trajectory's identity.
        ends: bool ``[T, *columns]``, the ends of a storage that does not change, instead of keys.
        trajectories: the same as identities.
        cache_values: accepted for the sake of existing code; nothing needs to be cached.
        truncated_key: key of the last steps of slices in the info; ``None`` for none.
        strict_length: only starts from which a whole slice fits (or what the span leaves of it).
        compile: accepted for the sake of existing code.
        span: how far slices may stick out of their trajectory's end, ``(left, right)`` or one for both; what
            does is cut. ``True``: so far that 1 step stays; an int ``i``: that ``L - i`` stay. A left span is
            not defined here: it is turned off, with a warning.
        max_priority_within_buffer: new items get the largest weight of the items now there.

    Raises:
        TypeError: not exactly one of ``num_slices`` and ``slice_len``; a ``span`` of another type.
        ValueError: a number is out of range.
        RuntimeError: ``ends`` or ``trajectories`` together, or with keys.

    Example:
        >>> from replaybank.storages import TensorStorage
        >>> storage = TensorStorage({"episode": torch.tensor([0, 0, 0, 0, 1, 1])})
        >>> sampler = PrioritizedSliceSampler(6, alpha=1.0, beta=1.0, eps=0.0, slice_len=3)
        >>> sampler.update_priority([0, 1, 2], [0.0, 1.0, 9.0], storage=storage)
        >>> (time,), info = sampler.sample(storage, 6)
        >>> time.tolist(), info["priority_weight"].tolist()  # step 2 is too near the end
        ([1, 2, 3, 1, 2, 3], [1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    """

    def __init__(
        self,
        max_capacity: int | None,
        alpha: float | Tensor,
        beta: float | Tensor,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float,
        reduction: str = "max",
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        end_key: InfoKey | None = None,
        traj_key: InfoKey | None = None,
        ends: Tensor | None = None,
        trajectories: Tensor | None = None,
        cache_values: bool = False,
        truncated_key: InfoKey | None = ("next", "truncated"),
        strict_length: bool = True,
        compile: bool | dict[str, Any] = False,
        span: bool | int | tuple[bool | int, bool | int] = False,
        max_priority_within_buffer: bool = False,
    ) -> None:
        num_slices, slice_len = sizes_of(num_slices, slice_len)
        within_buffer = max_priority_within_buffer
        table = PriorityTable(max_capacity, alpha, beta, eps, dtype, within_buffer, on_cpu=True)
        super().__init__(table, reduction)
        self._slicing = Slicing(end_key, traj_key, ends, trajectories)
        self.num_slices = num_slices
        self.slice_len = slice_len
        self.end_key = self._slicing.end_key
        self.traj_key = self._slicing.traj_key
        self.ends = self._slicing.ends
        self.trajectories = self._slicing.trajectories
        self.cache_values = cache_values
        self.truncated_key = truncated_of(truncated_key)
        self.strict_length = strict_length
        self.compile = compile
        left, right = pair_of(span)
        if left:
            warnings.warn(
                f"span={span!r}: slices are drawn by their start, which lies in the trajectory, so the left "
                "span is turned off. Use span=(False, right).",
                stacklevel=2,
            )
        self.span: tuple[bool | int, bool | int] = (0, right)
        if slice_len is not None:
            reach_of(self.span, slice_len)
        self._starts = SliceStarts(self._table)

    def sample(
        self, storage: SampledStorage, batch_size: int
    ) -> tuple[tuple[Tensor, ...], dict[InfoKey, Any]]:
        """Draw slices with replacement, one behind the other. O(S log N + B).

        Args:
            storage: at least one step.
            batch_size: steps, B; divisible by ``num_slices`` or ``slice_len``.

        Returns:
            A tuple of int64 ``[B]``, one a dimension of the storage. Of each step ``"priority_weight"``
            ``[B]``: (weight of its slice's start / smallest positive weight of an allowed start)^-beta;
            ``"_generation"`` ``[B]``; and bools as :class:`SliceSampler` gives them.

        Raises:
            RuntimeError: the storage is empty or gives no TensorDict; ``batch_size`` does not divide; no
                trajectory is long enough; the weights of all allowed starts are 0.
            KeyError: the storage has none of the keys asked for.
            ValueError: the span is not below the length of slices; the storage has outgrown the sampler.
        """
        index, info = self.draw(storage, batch_size)
        return index, completed(storage, info, index)

    def draw(self, storage: SampledStorage, batch_size: int) -> tuple[tuple[Tensor, ...], dict[InfoKey, Any]]:
        """As :meth:`sample`, but ``done`` and ``terminated`` are left to whoever reads the items."""
        refuse_empty(storage)
        count, slice_len = shape_of(batch_size, self.num_slices, self.slice_len)
        _, right = reach_of(self.span, slice_len)
        with self._lock:
            table, starts = self._table, self._starts
            if table.follow(storage):
                starts.take_all()
            index = self._slicing.index_of(storage)
            index.sync(storage)
            starts.follow(storage, index, slice_len - right, first_steps=not self.strict_length)
            if not starts.tree.total > 0 and not bool(starts.allowed.any()):
                raise none_long_enough(index, slice_len)
            items, importance, _ = starts.tree.draw(
                table.uniforms(count, self.generator), beta=table.exponents.beta()
            )
            slices = index.slices_from(items, slice_len)
            where, info = self._slicing.draw_of(storage, index, slices, self.truncated_key)
            weight = repeat(importance, slices)
            generation = torch.full((slices.total,), table.stamp())
        device = storage.device
        if device is not None and device.type != "cpu":
            weight, generation = weight.to(device), generation.to(device)
        return where, {**info, PRIORITY_WEIGHT: weight, GENERATION: generation}

    def _changed(self, items: Tensor | None) -> None:
        if items is None:
            self._starts.take_all()
        else:
            self._starts.take(items)

    def empty(self) -> None:
        """Forget all steps and priorities. O(N)."""
        with self._lock:
            self._table.clear()
            self._starts.clear()
            self._slicing.forget()

    def share_memory_(self) -> PrioritizedSliceSampler:
        """Move the state to shared memory, so that processes it is sent to share it."""
        with self._lock:
            self._table.share_memory_()
            self._starts.share_memory_()
        return self

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state; ``state_dict`` itself is not changed. O(N).

        The weights are those of the storage that is sampled next; what it was given since is new.
        """
        with self._lock:
            super().load_state_dict(state_dict)
            self._starts.forget()

    def _facts(self) -> dict[str, Any]:
        told = slices_told(self.num_slices, self.slice_len, self._slicing, self.strict_length)
        return {**super()._facts(), **told}


SliceSampler.register(PrioritizedSliceSampler)
PrioritizedSampler.register(PrioritizedSliceSampler)
