"""Sampling from several buffers at once."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from replaybank import showing
from replaybank.checkpoint import StrPath, load, save
from replaybank.samplers.arguments import batch_of, takes_generation, whole
from replaybank.samplers.base import InfoKey, Sampler
from replaybank.samplers.ensemble_index import flat_of, items_of, joined, refuse_empty_parts, rows_of
from replaybank.storages.ensemble import StorageEnsemble, item_index, stacked
from replaybank.storages.indexing import Run, resolve


class SamplerEnsemble(Sampler):
    """One sampler a buffer; a batch is drawn from some of the buffers, in equal parts.

    Not thread-safe: the locks of the parts' buffers guard it.

    Args:
        *samplers: one a storage of the :class:`StorageEnsemble` that is sampled from.
        p: how likely each part is, normalised here; uniform by default.
        sample_from_all: every part comes once, in order, instead of being drawn.
        num_buffer_sampled: how many parts a batch is drawn from, with replacement; as many as there are by
            default. Ignored with ``sample_from_all``.

    Raises:
        ValueError: no sampler; ``p`` has another length, a negative or infinite entry, NaN, or only zeros;
            ``num_buffer_sampled`` is not positive.
        RuntimeError: ``p`` with ``sample_from_all``.

    Example:
        >>> from replaybank.samplers import RandomSampler
        >>> from replaybank.storages import StorageEnsemble, TensorStorage
        >>> storage = StorageEnsemble(TensorStorage(torch.zeros(5)), TensorStorage(torch.ones(5)))
        >>> sampler = SamplerEnsemble(RandomSampler(), RandomSampler(), p=[0, 1])
        >>> index, info = sampler.sample(storage, 8)
        >>> index["buffer_ids"].tolist(), index["index"].shape
        ([1, 1], torch.Size([2, 4]))
        >>> storage.get(index).mean()
        tensor(1.)
    """

    def __init__(
        self,
        *samplers: Sampler,
        p: Tensor | Sequence[float] | None = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
    ) -> None:
        if not samplers:
            raise ValueError("A SamplerEnsemble needs at least one sampler.")
        self._samplers = samplers
        self.sample_from_all = sample_from_all
        self._generator: torch.Generator | None = None
        self._ran_out = False
        self._spent: set[int] = set()
        self.p = p
        self.num_buffer_sampled = num_buffer_sampled

    # ---- arguments

    @property
    def samplers(self) -> tuple[Sampler, ...]:
        """The parts. Settable to as many others."""
        return self._samplers

    @samplers.setter
    def samplers(self, value: Sequence[Sampler]) -> None:
        if len(value) != len(self):
            raise ValueError(f"{len(value)} samplers were given to an ensemble of {len(self)}.")
        for number, (old, new) in enumerate(zip(self._samplers, value, strict=True)):
            if new is not old:
                self._spent.discard(number)
        self._samplers = tuple(value)

    @property
    def p(self) -> Tensor | None:
        """How likely each part is, ``[parts]`` of sum 1; None: uniform. Settable."""
        return self._p

    @p.setter
    def p(self, value: Tensor | Sequence[float] | None) -> None:
        self._p = None if value is None else self._checked_p(value)

    def _checked_p(self, value: Tensor | Sequence[float]) -> Tensor:
        if self.sample_from_all:
            raise RuntimeError(
                "p says how parts are drawn and sample_from_all=True draws none: give one of them."
            )
        try:
            p = torch.as_tensor(value).detach().cpu()
        except (TypeError, RuntimeError):
            raise TypeError(f"p={value!r}: give one number a sampler.") from None
        if not p.is_floating_point():
            p = p.to(torch.get_default_dtype())
        if p.shape != (len(self),):
            raise ValueError(f"p of shape {tuple(p.shape)} for {len(self)} samplers: give one number each.")
        if not bool(p.isfinite().all()) or bool((p < 0).any()) or not bool((p > 0).any()):
            raise ValueError(f"p={p.tolist()}: give finite numbers of at least 0, not all of them 0.")
        return p / p.sum()

    @property
    def num_buffer_sampled(self) -> int:
        """How many parts a batch is drawn from. Settable; None: as many as there are."""
        return len(self) if self._num_buffer_sampled is None else self._num_buffer_sampled

    @num_buffer_sampled.setter
    def num_buffer_sampled(self, value: int | None) -> None:
        self._num_buffer_sampled = None if value is None else whole("num_buffer_sampled", value)

    @property
    def generator(self) -> torch.Generator | None:
        """Where the draws of the parts and every draw in them come from. Setting it sets it in all parts."""
        return self._generator

    @generator.setter
    def generator(  # pyright: ignore[reportIncompatibleVariableOverride]
        self, value: torch.Generator | None
    ) -> None:
        self._generator = value
        for sampler in self._samplers:
            sampler.generator = value

    # ---- sampling

    def sample(self, storage: Any, batch_size: int) -> tuple[Any, dict[InfoKey, Any]]:
        """Draw parts, and an equal share of the batch from each.

        Args:
            storage: a :class:`StorageEnsemble` with one storage a sampler.
            batch_size: items in all, B.

        Returns:
            A TensorDict ``[K]``, K the number of parts drawn: ``"buffer_ids"``, int64 ``[K]``, and
            ``"index"``, int64 ``[K, B / K]``, or ``[K, B / K, D]`` where a part's index is a tuple, D being
            the largest number of dimensions and shorter indices padded with zeros; nested where the
            parts give batches of differing lengths. And the extras of the parts, stacked likewise; for a part
            that lacks one it is filled with zeros, ``"priority_weight"`` with ones.

        Raises:
            TypeError: ``storage`` is no StorageEnsemble.
            ValueError: it has another number of parts; ``batch_size`` does not divide.
            RuntimeError: a storage that was drawn is empty.
        """
        if not isinstance(storage, StorageEnsemble):
            raise TypeError(
                f"A SamplerEnsemble samples from a StorageEnsemble, got a {type(storage).__name__}."
            )
        self._check_parts(storage)
        ids, count = self.choose(batch_size)
        refuse_empty_parts(ids, [len(part) for part in storage.storages])
        drawn = []
        for number in ids:
            sampler = self._samplers[number]
            index, info = sampler.sample(storage.storages[number], count)
            drawn.append((index, info, sampler.ran_out))
        return self.join(ids, drawn)

    def choose(self, batch_size: int) -> tuple[list[int], int]:
        """Draw parts, the first half of :meth:`sample`. O(parts).

        Args:
            batch_size: items in all.

        Returns:
            The numbers of the parts that a batch comes from, and how many items of each.

        Raises:
            ValueError: ``batch_size`` does not divide.
        """
        batch_size = batch_of(batch_size)
        n_parts = len(self) if self.sample_from_all else self.num_buffer_sampled
        if batch_size % n_parts or batch_size < n_parts:
            raise ValueError(
                f"A batch of {batch_size} items cannot come in equal shares from {n_parts} buffers: give a "
                f"multiple of {n_parts}, or set num_buffer_sampled."
            )
        if self._ran_out:
            self.ran_out = False
        ids = torch.arange(n_parts) if self.sample_from_all else self._draw_parts(n_parts)
        return ids.tolist(), batch_size // n_parts

    def join(
        self, ids: Sequence[int], drawn: Sequence[tuple[Any, dict[InfoKey, Any], bool]]
    ) -> tuple[TensorDict, dict[InfoKey, Any]]:
        """Make one batch of what was drawn from parts, the second half of :meth:`sample`. O(B).

        Args:
            ids: their numbers, from :meth:`choose`.
            drawn: what each gave: an index, extras, and whether its pass ended with them.
        """
        self._spent.update(number for number, (_, _, ran_out) in zip(ids, drawn, strict=True) if ran_out)
        exhaustible = {number for number, sampler in enumerate(self._samplers) if sampler.exhaustible}
        self._ran_out = bool(exhaustible) and exhaustible <= self._spent
        rows = rows_of([index for index, _, _ in drawn])
        where = TensorDict({"index": stacked(rows), "buffer_ids": torch.tensor(ids)}, batch_size=[len(ids)])
        return where, joined([info for _, info, _ in drawn], [len(row) for row in rows])

    def _check_parts(self, storage: StorageEnsemble) -> None:
        if len(storage.storages) != len(self):
            raise ValueError(f"The ensemble has {len(self)} samplers and {len(storage.storages)} storages.")

    def _draw_parts(self, count: int) -> Tensor:
        generator = self._generator
        device = None if generator is None else generator.device
        if self._p is None:
            return torch.randint(len(self), (count,), generator=generator, device=device).cpu()
        # By hand, since torch.multinomial may round onto a part of probability 0.
        bounds = self._p.double().cumsum(0)
        at = torch.rand(count, generator=generator, device=device, dtype=torch.float64).cpu() * bounds[-1]
        likely = int(self._p.nonzero().max())
        return torch.searchsorted(bounds, at, right=True).clamp_(max=likely)

    @property
    def exhaustible(self) -> bool:
        """Whether one of the parts is."""
        return any(sampler.exhaustible for sampler in self._samplers)

    @property
    def ran_out(self) -> bool:
        """Whether with the last call every exhaustible part has ended a pass since the last reset.

        The call after that, and setting it to False, reset: all parts have to do so again.
        """
        return self._ran_out

    @ran_out.setter
    def ran_out(self, value: bool) -> None:
        self._ran_out = bool(value)
        if not value:
            self._spent = set()

    # ---- priorities

    def update_priority(
        self, index: Any, priority: Any, *, storage: Any = None, generation: Any = None
    ) -> None:
        """Set priorities of sampled items in the parts they came from. O(B), and what the parts take.

        Args:
            index: what :meth:`sample` gave, or the ``"index"`` of a sample: ``"buffer_ids"`` and ``"index"``,
                as they are or flattened together.
            priority: a number, or one an item, in the form of the index or flat.
            storage: the :class:`StorageEnsemble`, where parts have more than one dimension.
            generation: stamps of the items, for parts that give them.

        Raises:
            TypeError: ``index`` does not say which parts.
            RuntimeError: the number of priorities is not that of the items.
            IndexError: there is no such part.
        """
        values = flat_of(priority)
        stamps = None if generation is None else flat_of(generation)
        takers = [type(sampler).update_priority is not Sampler.update_priority for sampler in self._samplers]
        if not any(takers):
            super().update_priority(index, priority)
            return
        ids, items = self._items_of(index, values.numel())
        if values.numel() not in (1, len(items)):
            raise RuntimeError(f"{values.numel()} priorities were given for {len(items)} items.")
        for number in ids.unique().tolist():
            if takers[number]:
                chosen = ids == number
                own = values.expand(len(items))[chosen]
                given = {} if stamps is None else {"generation": stamps[chosen]}
                at, part = self._part(items[chosen], number, storage)
                self._samplers[number].update_priority(at, own, storage=part, **given)

    def mark_update(self, index: Any, *, storage: Any = None, generation: Any = None) -> None:
        """Tell the parts that their items changed; arguments as for :meth:`update_priority`."""
        ids, items = self._items_of(index, None)
        stamps = None if generation is None else flat_of(generation)
        for number in ids.unique().tolist():
            chosen = ids == number
            at, part = self._part(items[chosen], number, storage)
            mark = self._samplers[number].mark_update
            given = {} if stamps is None or not takes_generation(mark) else {"generation": stamps[chosen]}
            mark(at, storage=part, **given)

    def _items_of(self, index: Any, count: int | None) -> tuple[Tensor, Tensor]:
        ids, places = items_of(index, count)
        bad = (ids < 0) | (ids >= len(self))
        if bool(bad.any()):
            raise IndexError(f"There is no part {int(ids[bad][0])}: the ensemble has {len(self)}.")
        return ids, places

    def _part(self, items: Tensor, number: int, storage: Any) -> tuple[Tensor, Any]:
        """Rows of an index as one part takes them, and its storage."""
        if storage is None:
            return (items[:, 0] if items.dim() == 2 and items.shape[1] == 1 else items), None
        part = storage.storages[number]
        at = item_index(items, part.ndim)
        return (at if isinstance(at, Tensor) else torch.stack(at, -1)), part

    # ---- what the parts hear too

    def register_storage(self, storage: Any) -> None:
        """Tell each part which storage it samples.

        Args:
            storage: a :class:`StorageEnsemble` with one storage a sampler; of others the parts do not hear.

        Raises:
            ValueError: it has another number of parts, or a part has no room for what its storage holds.
        """
        if isinstance(storage, StorageEnsemble):
            self._check_parts(storage)
            for sampler, part in zip(self._samplers, storage.storages, strict=True):
                sampler.register_storage(part)

    def share_memory_(self) -> SamplerEnsemble:
        """Move what processes have to agree on to shared memory, in all parts."""
        for sampler in self._samplers:
            sampler.share_memory_()
        return self

    # ---- parts

    def __len__(self) -> int:
        return len(self._samplers)

    def __getitem__(self, index: Any) -> Any:
        """One part, or an ensemble of some.

        Args:
            index: an integer (also as a 0-d tensor) gives the sampler; a slice, list, range, array, int
                tensor or mask gives an ensemble with their ``p`` normalised. A ``num_buffer_sampled`` that
                was given is kept if there are so many parts.

        Raises:
            IndexError: out of range.
            TypeError: no integers.
            RuntimeError: more than one dimension.
            ValueError: no part is chosen, or only such of ``p`` 0.
        """
        picked = self._picked(index)
        if isinstance(picked, int):
            return self._samplers[picked]
        if not picked:
            raise ValueError(f"{index!r} chooses none of {len(self)} samplers.")
        count = self._num_buffer_sampled
        part = SamplerEnsemble(
            *(self._samplers[number] for number in picked),
            p=None if self._p is None else self._p[picked],
            sample_from_all=self.sample_from_all,
            num_buffer_sampled=count if count is not None and count <= len(picked) else None,
        )
        part._generator = self._generator
        return part

    def _picked(self, index: Any) -> int | list[int]:
        if (
            hasattr(index, "__index__") and getattr(index, "ndim", 0) == 0
        ):  # tensors of one element have it too
            with contextlib.suppress(TypeError):  # a float in a tensor
                return self._in_range(operator.index(index))
        picked = resolve(index, torch.Size((len(self),)))
        if isinstance(picked, Run):
            return list(range(picked.start, picked.start + picked.size))
        if picked.dim() != 1:
            raise RuntimeError(
                f"An index of {picked.dim()} dimensions: samplers lie in one, give a flat one."
            )
        return [self._in_range(number) for number in picked.tolist()]

    def _in_range(self, number: int) -> int:
        if not -len(self) <= number < len(self):
            raise IndexError(f"Sampler {number} is out of range: there are {len(self)}.")
        return number % len(self)

    # ---- state

    def empty(self) -> None:
        """Have all parts forget everything."""
        self.ran_out = False
        for sampler in self._samplers:
            sampler.empty()

    @property
    def arguments(self) -> dict[str, Any]:
        """How parts are drawn: ``p``, ``sample_from_all`` and ``num_buffer_sampled``, as they were given."""
        return {
            "p": None if self._p is None else self._p.clone(),
            "sample_from_all": self.sample_from_all,
            "num_buffer_sampled": self._num_buffer_sampled,
        }

    def own_state(self) -> dict[str, Any]:
        """The state without those of the parts."""
        return {
            "parts": len(self),
            **self.arguments,
            "ran_out": self._ran_out,
            "spent": sorted(self._spent),
        }

    def check_own_state(self, state: Mapping[str, Any]) -> None:
        """See to it that a state is of as many parts.

        Raises:
            ValueError: it is not.
        """
        if state["parts"] != len(self):
            raise ValueError(f"The state is of {state['parts']} samplers, the ensemble has {len(self)}.")

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`own_state` gave."""
        self.sample_from_all = bool(state["sample_from_all"])
        self.p = state["p"]
        self.num_buffer_sampled = state["num_buffer_sampled"]
        self._ran_out, self._spent = bool(state["ran_out"]), set(map(int, state["spent"]))

    def state_dict(self) -> dict[str, Any]:
        """The arguments, which parts have run out, and the states of the parts."""
        return {**self.own_state(), "samplers": [sampler.state_dict() for sampler in self._samplers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state, wholly or not at all.

        Raises:
            ValueError: it is of another number of parts; nothing has been changed.
        """
        self.check_own_state(state_dict)
        before = self.state_dict()
        try:
            self._load(state_dict)
        except BaseException:
            self._load(before)
            raise

    def _load(self, state: Mapping[str, Any]) -> None:
        for sampler, part in zip(self._samplers, state["samplers"], strict=True):
            sampler.load_state_dict(part)
        self.load_own_state(state)

    def dumps(
        self, path: StrPath, *, keep: int = 0, allow_pickle: bool = False, progress: bool | None = None
    ) -> None:
        """Save the parts into directories ``0``, ``1``, ... of ``path``, made if missing; the rest beside."""
        for number, sampler in enumerate(self._samplers):
            sampler.dumps(Path(path) / str(number), keep=keep, allow_pickle=allow_pickle)
        save(path, self.own_state(), keep=keep)

    def loads(self, path: StrPath, *, allow_pickle: bool = False, progress: bool | None = None) -> None:
        """Take over what :meth:`dumps` left in ``path``.

        Raises:
            ValueError: it is of another number of parts; nothing has been changed.
        """
        state = load(path)
        self.check_own_state(state)
        before = self.state_dict()
        try:
            for number, sampler in enumerate(self._samplers):
                sampler.loads(Path(path) / str(number), allow_pickle=allow_pickle)
            self.load_own_state(state)
        except BaseException:
            self._load(before)
            raise

    def _facts(self) -> dict[str, Any]:
        return {"": showing.Parts(self._samplers), **drawn(self.arguments)}


def drawn(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """How parts are drawn, as a repr tells it: what differs from the default."""
    told = {name: value for name, value in arguments.items() if value is not None and value is not False}
    return {name: v.tolist() if isinstance(v, Tensor) else v for name, v in told.items()}
