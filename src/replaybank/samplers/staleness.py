"""Sampling that prefers what was written lately."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from replaybank.samplers.arguments import batch_of, real, whole
from replaybank.samplers.base import Index, InfoKey, SampledStorage, Sampler, refuse_empty, unravel_columns
from replaybank.samplers.follow import Follower
from replaybank.storages.resize import Move
from replaybank.storages.write_log import WriteLog


class StalenessAwareSampler(Sampler):
    """Items with replacement, by age: of two items the one written later is at least as likely.

    The age of an item is the number of rows written to the storage after its own; the newest has age 0, all
    columns of a row have the same. An item of age ``a`` is drawn with weight ``(1 + a) ** -decay``, one older
    than ``max_staleness`` never. Content replaced in its place (``storage[i] = v``) keeps its age.

    O(B log N) a batch. Memory: 8 bytes a row that can be drawn. If rows are ever written elsewhere than
    behind the newest one (``storage.set``, a max-value writer), 24 bytes a row, and O(N log N) for the first
    batch after each write. What was written before the sampler first saw the storage counts as written in
    a circle that ends at the cursor.

    Not thread-safe: the buffer's lock guards it.

    Args:
        max_staleness: largest age that is drawn, at least 0; None: any.
        decay: how fast likelihood falls with age, at least 0; 0 is uniform, 1 is inverse to ``1 + age``.
            Both are settable.

    Raises:
        ValueError: one of them is negative, or ``decay`` is not finite.

    Example:
        >>> from replaybank.storages import TensorStorage
        >>> storage, sampler = TensorStorage(torch.zeros(100)), StalenessAwareSampler(max_staleness=9)
        >>> index, _ = sampler.sample(storage, 1000)
        >>> index.min().item(), index.max().item()  # the newest ten of what was given
        (90, 99)
    """

    def __init__(self, max_staleness: int | None = None, *, decay: float = 1.0) -> None:
        self.max_staleness = max_staleness
        self.decay = decay
        self._forget()

    @property
    def max_staleness(self) -> int | None:
        """Largest age that is drawn."""
        return self._max_staleness

    @max_staleness.setter
    def max_staleness(self, value: int | None) -> None:
        self._max_staleness = None if value is None else whole("max_staleness", value, 0)
        self._bounds = torch.empty(0)

    @property
    def decay(self) -> float:
        """How fast likelihood falls with age."""
        return self._decay

    @decay.setter
    def decay(self, value: float) -> None:
        self._decay = real("decay", value)
        self._bounds = torch.empty(0)

    def _forget(self) -> None:
        self._follower = Follower()
        # While rows are written in a circle: the row behind the newest one, and how many there are. From the
        # first other write on: the number of the write that each row came with, and that of the last write.
        self._next = self._length = 0
        self._stamps: Tensor | None = None
        self._clock = 0
        # Sums of the weights of what can be drawn, newest first, and its rows (None: back from `_next`).
        self._bounds = torch.empty(0, dtype=torch.float64)
        self._rows: Tensor | None = None

    def sample(self, storage: SampledStorage, batch_size: int) -> tuple[Index, dict[InfoKey, Any]]:
        """Draw items by age. O(B log N), and what is said above of writes.

        Args:
            storage: at least one item.
            batch_size: number of items, B.

        Returns:
            int64 ``[B]`` for 1-d storages, a tuple of them for others, and no extras.

        Raises:
            RuntimeError: the storage is empty.
        """
        refuse_empty(storage)
        batch_size = batch_of(batch_size)
        self._take_in(storage.log)
        bounds = self._cumulated(storage.log)
        generator = self.generator
        device = None if generator is None else generator.device
        at = (
            torch.rand(batch_size, generator=generator, device=device, dtype=torch.float64).cpu() * bounds[-1]
        )
        # The last one with weight takes what rounding leaves over.
        place = torch.searchsorted(bounds, at, right=True).clamp_(
            max=int(torch.searchsorted(bounds, bounds[-1]))
        )
        row = (self._next - 1 - place).remainder_(self._length) if self._rows is None else self._rows[place]
        if storage.ndim == 1:
            return row, {}
        n_columns = math.prod(storage.columns)
        column = torch.randint(n_columns, (batch_size,), generator=generator, device=device).cpu()
        return (row, *unravel_columns(column, storage.columns)), {}

    # ---- ages

    def _take_in(self, log: WriteLog) -> None:
        news = self._follower.look(log)
        if news.everything:
            self._next, self._length, self._stamps, self._clock = log.cursor, log.length, None, log.total
            self._bounds = torch.empty(0)
            return
        for start, count in news.appended:
            if self._stamps is None and start == self._next:
                self._next = (start + count) % log.rows
                self._length = min(max(self._length, start + count), log.rows)
                continue
            if self._stamps is None:
                self._stamps = self._circle(log.rows)
            rows = torch.arange(start, start + count).remainder_(log.rows)
            self._stamps[rows] = torch.arange(self._clock + 1, self._clock + 1 + count)
            self._clock += count
            self._bounds = torch.empty(0)

    def _circle(self, rows: int) -> Tensor:
        """The stamps of rows that were written in a circle."""
        stamps = torch.zeros(rows, dtype=torch.int64)
        ages = (self._next - 1 - torch.arange(self._length)).remainder_(max(self._length, 1))
        stamps[: self._length] = self._clock - ages
        return stamps

    def _cumulated(self, log: WriteLog) -> Tensor:
        if self._stamps is None:
            count = log.length if self.max_staleness is None else min(log.length, self.max_staleness + 1)
            if len(self._bounds) < count:
                limit = log.rows if self.max_staleness is None else min(log.rows, self.max_staleness + 1)
                self._bounds, self._rows = self._weights(torch.arange(limit)).cumsum_(0), None
            return self._bounds[:count]
        if not len(self._bounds):
            rows = self._stamps[: log.length].argsort(descending=True)
            ages = self._clock - self._stamps[rows]
            if self.max_staleness is not None:
                rows = rows[ages <= self.max_staleness]
            self._bounds, self._rows = self._weights(ages[: len(rows)]).cumsum_(0), rows
        return self._bounds

    def _weights(self, ages: Tensor) -> Tensor:
        return (1 + ages.to(torch.float64)).pow_(-self.decay)

    # ---- state

    def empty(self) -> None:
        """Forget the ages: the buffer was emptied. O(1)."""
        self._forget()

    def state_dict(self) -> dict[str, Any]:
        """The arguments, and the ages where they are not those of a circle. O(rows) then."""
        return {
            "max_staleness": self.max_staleness,
            "decay": self.decay,
            "next": self._next,
            "length": self._length,
            "clock": self._clock,
            "stamps": None if self._stamps is None else self._stamps.clone(),
            "follower": self._follower.state_dict(),
        }

    def moved(self, state_dict: Mapping[str, Any], move: Move) -> Mapping[str, Any]:
        """A state for a storage whose rows have moved: every row keeps its age."""
        stamps, behind = state_dict["stamps"], int(state_dict["next"])
        if move.first:
            behind = (behind - move.first) % move.length or move.length
        if stamps is not None:
            fresh = stamps.new_zeros(move.rows)
            fresh[: move.length] = move.turned(stamps[: move.length])
            stamps = fresh
        return {
            **state_dict,
            "next": behind % move.rows,
            "stamps": stamps,
            "follower": Follower.moved(state_dict["follower"], move),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state.

        Raises:
            ValueError: the state is damaged.
        """
        stamps = state_dict["stamps"]
        at, length, clock = (int(state_dict[name]) for name in ("next", "length", "clock"))
        good = all(0 <= number < 1 << 62 for number in (at, length, clock))
        if stamps is not None:
            good = good and stamps.dtype == torch.int64 and stamps.dim() == 1 and length <= stamps.numel()
        if not good:
            raise ValueError(f"The state is that of no ages: next={at}, length={length}, clock={clock}.")
        self.max_staleness, self.decay = state_dict["max_staleness"], state_dict["decay"]
        self._next, self._length, self._clock = at, length, clock
        self._stamps = None if stamps is None else stamps.detach().cpu().clone()
        self._follower.load_state_dict(state_dict["follower"])

    def _facts(self) -> dict[str, Any]:
        return {"max_staleness": self.max_staleness, "decay": self.decay}
