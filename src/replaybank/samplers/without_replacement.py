"""Sampling without replacement: every item once a pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from replaybank import showing
from replaybank.samplers.arguments import batch_of
from replaybank.samplers.base import Index, InfoKey, SampledStorage, Sampler, refuse_empty, unravel_columns
from replaybank.samplers.passes import Pass
from replaybank.storages.resize import Move


class SamplerWithoutReplacement(Sampler):
    """Every stored item once, in random or stored order; then a new pass.

    A pass ends with the batch that leaves nothing of it, or, with ``drop_last``, too little for another one
    of its size; :attr:`ran_out` is True after that call, and the next call begins a new pass. A pass also
    begins where the number of items is not that of the call before, and where the storage was emptied or
    loaded. Items overwritten in a full storage do not change their number: the pass goes on, and slots that
    have not come yet give what they hold by then. The size of batches may change from call to call.

    O(B) a batch, O(N) where a pass begins. Memory: 4 bytes an item (8 beyond 2^31 of them), none with
    ``shuffle=False``.

    Not thread-safe: the buffer's lock guards it.

    Args:
        drop_last: never give a batch with fewer items than asked for; the last ones of a pass that do not
            make a batch do not come. Otherwise the last batch of a pass holds what is left.
        shuffle: a random order, another in each pass. False: the order of the slots, time before columns.

    Example:
        >>> import torch
        >>> from replaybank.storages import TensorStorage
        >>> storage, sampler = TensorStorage(torch.zeros(10)), SamplerWithoutReplacement(shuffle=False)
        >>> for _ in range(3):
        ...     print(sampler.sample(storage, 4)[0].tolist(), sampler.ran_out)
        [0, 1, 2, 3] False
        [4, 5, 6, 7] False
        [8, 9] True
    """

    def __init__(self, drop_last: bool = False, shuffle: bool = True) -> None:
        self.drop_last = drop_last
        self.shuffle = shuffle
        self._pass = Pass()
        # The epoch of the storage's log, None until it is seen: it is not saved, as loading begins a new one.
        self._epoch: int | None = None

    def sample(self, storage: SampledStorage, batch_size: int) -> tuple[Index, dict[InfoKey, Any]]:
        """The next items of the pass. O(B), and O(N) where a pass begins.

        Args:
            storage: at least one item.
            batch_size: number of items, B.

        Returns:
            int64 ``[B]`` for 1-d storages, a tuple of them for others, and no extras. With
            ``drop_last=False`` the last batch of a pass may be shorter. With ``drop_last=True`` a batch that
            is larger than what is left of a pass is the first of a new one.

        Raises:
            RuntimeError: the storage is empty.
            ValueError: ``batch_size`` is negative, or exceeds the number of items with ``drop_last=True``.
        """
        n, batch_size = refuse_empty(storage), batch_of(batch_size)
        epoch = storage.log.epoch
        if epoch != self._epoch:
            if self._epoch is not None:
                self._pass.restart()
            self._epoch = epoch
        flat = self._pass.take(
            n, batch_size, shuffle=self.shuffle, drop_last=self.drop_last, generator=self.generator
        )
        if storage.ndim == 1:
            return flat, {}
        n_columns = math.prod(storage.columns)
        return (flat // n_columns, *unravel_columns(flat % n_columns, storage.columns)), {}

    @property
    def ran_out(self) -> bool:
        """Whether the last call of :meth:`sample` ended a pass. Setting it does not change the pass."""
        return self._pass.ended

    @ran_out.setter
    def ran_out(self, value: bool) -> None:
        self._pass.ended = bool(value)

    def empty(self) -> None:
        """Forget the pass: the buffer was emptied. O(1)."""
        self._pass = Pass()
        self._epoch = None

    def state_dict(self) -> dict[str, Any]:
        """The arguments, and what is left of the pass in its order. O(items left)."""
        return {"drop_last": self.drop_last, "shuffle": self.shuffle, "pass": self._pass.state_dict()}

    def moved(self, state_dict: Mapping[str, Any], move: Move) -> Mapping[str, Any]:
        """A state for a storage whose rows have moved: the pass goes on over the same items."""
        return {**state_dict, "pass": Pass.moved(state_dict["pass"], move)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on with what was left when the state was taken. O(items left).

        Raises:
            ValueError: the state is that of no pass; nothing has been changed.
        """
        self._pass.load_state_dict(state_dict["pass"])
        self.drop_last, self.shuffle = bool(state_dict["drop_last"]), bool(state_dict["shuffle"])
        self._epoch = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_epoch": None}

    def _facts(self) -> dict[str, Any]:
        told: dict[str, Any] = {"drop_last": self.drop_last, "shuffle": self.shuffle}
        return (
            {**told, "left": showing.Words(f"{self._pass.left} of {self._pass.n}")} if self._pass.n else told
        )
