"""Sampling slices without replacement: one of every trajectory a pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from replaybank.samplers.base import InfoKey, SampledStorage, Sampler, completed, refuse_empty
from replaybank.samplers.follow import Follower
from replaybank.samplers.passes import Pass
from replaybank.samplers.slice import SliceSampler
from replaybank.samplers.slicing import (
    Slicing,
    none_long_enough,
    shape_of,
    sizes_of,
    slices_told,
    truncated_of,
)
from replaybank.samplers.without_replacement import SamplerWithoutReplacement
from replaybank.storages.resize import Move


@SliceSampler.register
@SamplerWithoutReplacement.register
class SliceSamplerWithoutReplacement(Sampler):
    """A slice of every trajectory once, at a uniform start, in random or stored order; then a new pass.

    A pass ends with the batch that leaves no trajectory, or, with ``drop_last``, fewer than another batch of
    its size needs; :attr:`ran_out` is True after that call, and the next call begins a new pass. Any write to
    the storage begins one too, by whomever, and so does a length of slices for which other trajectories are
    long enough. Within a batch a trajectory comes at most once.

    Where trajectories end is found as :class:`SliceSampler` finds it, in O(steps written since the last
    batch); a batch is O(S), and O(trajectories) where a pass begins. Memory: 4 bytes a trajectory beside the
    index, none with ``shuffle=False``.

    Not thread-safe: the buffer's lock guards it. Each process that samples keeps an index of its own.

    Args:
        num_slices: slices in a batch, S; each has ``batch_size / S`` steps.
        slice_len: steps in a slice, L; a batch has ``batch_size / L`` slices. Exactly one of the two is
            given.
        drop_last: never give a batch of fewer than S slices; the last trajectories of a pass that do not make
            a batch do not come. Otherwise the last batch of a pass holds what is left.
        end_key: key of the bool that ends a trajectory, ``("next", "done")`` by default.
        traj_key: key of the trajectory's identity (any dtype), ``"episode"`` by default.
        ends: bool ``[T, *columns]``, the ends of a storage that does not change; the last step of a
            full one is followed by the first one. Instead of keys.
        trajectories: the same as identities, of any dtype. NaN equals NaN.
        truncated_key: key under which the sample says where slices end, with its siblings ``done`` and
            ``terminated``; ``None`` for none of the three.
        strict_length: trajectories of fewer than L steps are passed over. Otherwise they are taken whole, and
            the batch has fewer steps than asked for.
        shuffle: a random order, another in each pass. False: by column, then by the slot of the last step.
        compile: accepted for the sake of existing code; the index makes it unnecessary.
        use_gpu: accepted for the sake of existing code; the index makes it unnecessary.

    Raises:
        TypeError: not exactly one of ``num_slices`` and ``slice_len``, or it is no int; a key of
            another type.
        ValueError: one of them is not positive.
        RuntimeError: ``ends`` or ``trajectories`` together, or with keys.

    Example:
        >>> from replaybank.storages import TensorStorage
        >>> storage = TensorStorage({"episode": torch.tensor([0, 0, 0, 1, 2, 2])})
        >>> sampler = SliceSamplerWithoutReplacement(slice_len=2, shuffle=False)
        >>> (time,), info = sampler.sample(storage, 2)
        >>> time.tolist() in ([0, 1], [1, 2]), sampler.ran_out  # of episode 0
        (True, False)
        >>> (time,), info = sampler.sample(storage, 2)
        >>> time.tolist(), sampler.ran_out  # of episode 2: episode 1 is too short
        ([4, 5], True)
    """

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        drop_last: bool = False,
        end_key: InfoKey | None = None,
        traj_key: InfoKey | None = None,
        ends: Tensor | None = None,
        trajectories: Tensor | None = None,
        truncated_key: InfoKey | None = ("next", "truncated"),
        strict_length: bool = True,
        shuffle: bool = True,
        compile: bool | dict[str, Any] = False,
        use_gpu: torch.device | bool = False,
    ) -> None:
        num_slices, slice_len = sizes_of(num_slices, slice_len)
        self._slicing = Slicing(end_key, traj_key, ends, trajectories)
        self.num_slices = num_slices
        self.slice_len = slice_len
        self.drop_last = drop_last
        self.end_key = self._slicing.end_key
        self.traj_key = self._slicing.traj_key
        self.ends = self._slicing.ends
        self.trajectories = self._slicing.trajectories
        self.truncated_key = truncated_of(truncated_key)
        self.strict_length = strict_length
        self.shuffle = shuffle
        self.compile = compile
        self.use_gpu = use_gpu
        self._pass = Pass()
        self._follower = Follower()

    def sample(
        self, storage: SampledStorage, batch_size: int
    ) -> tuple[tuple[Tensor, ...], dict[InfoKey, Any]]:
        """Slices of the next trajectories of the pass, one behind the other.

        Args:
            storage: at least one step.
            batch_size: steps, B; divisible by ``num_slices`` or ``slice_len``.

        Returns:
            A tuple of int64 ``[B]``, one a dimension of the storage, and bools ``[B, 1]``: under
            ``truncated_key`` the last step of each slice; under its sibling ``done`` that or the stored one;
            under its sibling ``terminated`` the stored one, False if there is none. With ``drop_last=False``
            the last batch of a pass may be shorter.

        Raises:
            RuntimeError: the storage is empty or gives no TensorDict; ``batch_size`` does not divide; no
                trajectory is long enough; the end signal has more dimensions than the storage.
            KeyError: the storage has none of the keys asked for.
            ValueError: there are fewer eligible trajectories than slices in a batch, with ``drop_last=True``.
        """
        index, info = self.draw(storage, batch_size)
        return index, completed(storage, info, index)

    def draw(self, storage: SampledStorage, batch_size: int) -> tuple[tuple[Tensor, ...], dict[InfoKey, Any]]:
        """As :meth:`sample`, but ``done`` and ``terminated`` are left to whoever reads the items."""
        refuse_empty(storage)
        count, slice_len = shape_of(batch_size, self.num_slices, self.slice_len)
        index = self._slicing.index_of(storage)
        index.sync(storage, slice_len if self.strict_length else 1)
        n = index.n_eligible
        if n == 0:
            raise none_long_enough(index, slice_len)
        if self._follower.look(storage.log).any:
            self._pass.restart()
        ranks = self._pass.take(
            n,
            count,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            generator=self.generator,
            name="trajectories",
        )
        slices = index.slices_of(ranks, slice_len, generator=self.generator)
        return self._slicing.draw_of(storage, index, slices, self.truncated_key)

    @property
    def ran_out(self) -> bool:
        """Whether the last call of :meth:`sample` ended a pass. Setting it does not change the pass."""
        return self._pass.ended

    @ran_out.setter
    def ran_out(self, value: bool) -> None:
        self._pass.ended = bool(value)

    def empty(self) -> None:
        """Forget the index and the pass: the buffer was emptied. O(1)."""
        self._slicing.forget()
        self._pass = Pass()
        self._follower = Follower()

    def state_dict(self) -> dict[str, Any]:
        """The arguments that can change, and what is left of the pass. O(trajectories left)."""
        return {
            "drop_last": self.drop_last,
            "shuffle": self.shuffle,
            "pass": self._current_pass().state_dict(),
            "follower": self._follower.state_dict(),
        }

    def _current_pass(self) -> Pass:
        """The pass that the next call goes on with: another one if the storage was written to since."""
        if not self._follower.is_behind:
            return self._pass
        fresh = Pass()
        fresh.ended = self.ran_out
        return fresh

    def moved(self, state_dict: Mapping[str, Any], move: Move) -> Mapping[str, Any]:
        """A state for a storage whose rows have moved; if they are in another order, a pass begins."""
        fresh = Pass()
        fresh.ended = bool(state_dict["pass"]["ended"])
        return {
            **state_dict,
            "pass": fresh.state_dict() if move.first else state_dict["pass"],
            "follower": Follower.moved(state_dict["follower"], move),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on with what was left when the state was taken, if the storage is as it was then. O(left).

        Raises:
            ValueError: the state is that of no pass; nothing has been changed.
        """
        self._pass.load_state_dict(state_dict["pass"])
        self._follower.load_state_dict(state_dict["follower"])
        self.drop_last, self.shuffle = bool(state_dict["drop_last"]), bool(state_dict["shuffle"])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pass": self._current_pass()}

    def _facts(self) -> dict[str, Any]:
        told = slices_told(self.num_slices, self.slice_len, self._slicing, self.strict_length)
        return {**told, "drop_last": self.drop_last, "shuffle": self.shuffle}
