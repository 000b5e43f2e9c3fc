"""Sampling slices of trajectories."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from replaybank.samplers.base import InfoKey, SampledStorage, Sampler, completed, refuse_empty
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


class SliceSampler(Sampler):
    """Slices of trajectories: trajectories uniformly with replacement, then a start uniformly in each.

    Where trajectories lie comes from an index that follows the storage's write log: O(steps written since
    the last batch) to update, O(S) to draw, nothing that grows with the storage. It is right whoever wrote,
    so there is no cache to switch on or to clear.

    A trajectory ends where the ``traj_key`` value changes from one step to the next, or where ``end_key`` is
    true. If only one of the two keys is named, it alone counts; if both are, ``traj_key`` counts if it is
    stored, else ``end_key``; if neither is, ``"episode"`` counts if it is stored, else ``("next",
    "done")``. Neighbouring slots are joined only if they were written one after the other. The trajectory
    that is being written is sampled too.

    Not thread-safe: the buffer's lock guards it. Each process that samples keeps an index of its own.

    Args:
        num_slices: slices in a batch, S; each has ``batch_size / S`` steps.
        slice_len: steps in a slice, L; a batch has ``batch_size / L`` slices. Exactly one of the two is
            given.
        end_key: key of the bool that ends a trajectory, ``("next", "done")`` by default.
        traj_key: key of the trajectory's identity (any dtype), ``"episode"`` by default.
        ends: bool ``[T, *columns]``, the ends of a storage that does not change; the last step of a
            full one is followed by the first one. Instead of keys.
        trajectories: the same as identities, of any dtype. NaN equals NaN.
        cache_values: accepted for the sake of existing code; the index makes it unnecessary.
        truncated_key: key under which the sample says where slices end, with its siblings ``done`` and
            ``terminated``; ``None`` for none of the three.
        strict_length: only trajectories of at least L steps are drawn from. Otherwise a shorter one is taken
            whole, and the batch has fewer steps than asked for.
        compile: accepted for the sake of existing code; the index makes it unnecessary.
        span: how far windows may stick out of their trajectory, ``(left, right)`` or one for both:
            ``False`` not at all, ``True`` so far that 1 step stays, an int ``i`` so far that ``L - i``
            stay. What sticks out is cut.
        use_gpu: accepted for the sake of existing code; the index makes it unnecessary.

    Raises:
        TypeError: not exactly one of ``num_slices`` and ``slice_len``; a ``span`` of another type.
        ValueError: one of them is not positive; a ``span`` is negative or not below ``slice_len``.
        RuntimeError: ``ends`` or ``trajectories`` together, or with keys.

    Example:
        >>> from replaybank.storages import TensorStorage
        >>> storage = TensorStorage({"episode": torch.tensor([0, 0, 0, 1, 1]), "action": torch.zeros(5, 2)})
        >>> (time,), info = SliceSampler(slice_len=3, traj_key="episode").sample(storage, 6)
        >>> time.tolist()
        [0, 1, 2, 0, 1, 2]
        >>> info["next", "truncated"].squeeze(-1).tolist()
        [False, False, True, False, False, True]
    """

    def __init__(
        self,
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
        use_gpu: torch.device | bool = False,
    ) -> None:
        num_slices, slice_len = sizes_of(num_slices, slice_len)
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
        self.use_gpu = use_gpu
        self.span = pair_of(span)
        if slice_len is not None:
            reach_of(self.span, slice_len)

    def sample(
        self, storage: SampledStorage, batch_size: int
    ) -> tuple[tuple[Tensor, ...], dict[InfoKey, Any]]:
        """Draw slices, one behind the other.

        Args:
            storage: at least one step.
            batch_size: steps, B; divisible by ``num_slices`` or ``slice_len``.

        Returns:
            A tuple of int64 ``[B]``, one a dimension of the storage, and bools ``[B, 1]``: under
            ``truncated_key`` the last step of each slice; under its sibling ``done`` that or the stored one;
            under its sibling ``terminated`` the stored one, False if there is none.

        Raises:
            RuntimeError: the storage is empty or gives no TensorDict; ``batch_size`` does not divide; no
                trajectory is long enough; the end signal has more dimensions than the storage.
            KeyError: the storage has none of the keys asked for.
            ValueError: a ``span`` is not below the length of slices.
        """
        index, info = self.draw(storage, batch_size)
        return index, completed(storage, info, index)

    def draw(self, storage: SampledStorage, batch_size: int) -> tuple[tuple[Tensor, ...], dict[InfoKey, Any]]:
        """As :meth:`sample`, but ``done`` and ``terminated`` are left to whoever reads the items."""
        refuse_empty(storage)
        count, slice_len = shape_of(batch_size, self.num_slices, self.slice_len)
        left, right = reach_of(self.span, slice_len)
        index = self._slicing.index_of(storage)
        index.sync(storage, slice_len if self.strict_length else 1)
        slices = index.draw(count, slice_len, left=left, right=right, generator=self.generator)
        if slices.total == 0 < count:
            raise none_long_enough(index, slice_len)
        return self._slicing.draw_of(storage, index, slices, self.truncated_key)

    def empty(self) -> None:
        """Forget the index: the buffer was emptied. O(1)."""
        self._slicing.forget()

    def _facts(self) -> dict[str, Any]:
        return slices_told(self.num_slices, self.slice_len, self._slicing, self.strict_length)
