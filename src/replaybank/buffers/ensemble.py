"""Several buffers sampled as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from tensordict import TensorDict, is_tensor_collection

from replaybank.buffers import view
from replaybank.buffers.ensemble_base import ComposedEnsemble
from replaybank.buffers.ensemble_priorities import Shares, rows_by_part, take_priorities
from replaybank.buffers.prefetch import Batch
from replaybank.buffers.tensordict import INDEX, put_info
from replaybank.samplers.ensemble_index import places_of, refuse_empty_parts
from replaybank.storages._tensordict import build, entries_to_set
from replaybank.storages.indexing import pick

if TYPE_CHECKING:
    from replaybank.transforms.base import SampleTransform

BUFFER_IDS = "buffer_ids"
"""Entry beside the index that says which buffer an item is from."""


class ReplayBufferEnsemble(ComposedEnsemble):
    """Several buffers sampled as one: a batch is drawn from some of them, in equal parts.

    A sample has the shape ``[K, B / K, ...]``, K the number of buffers it was drawn from. Of each item,
    ``("index", "buffer_ids")`` says which buffer it is from and ``("index", "index")`` where it is there.
    What the buffers draw goes through their own ``collate_fn`` and transforms, then through those of the
    ensemble. A :class:`SampleTransform` of the ensemble is applied within each buffer, together with the
    buffer's own: it reads the trajectories that an item came from. Where keys or shapes differ between
    buffers the sample is a lazy stack, and a list if they hold
    no tensors.

    The buffers stay what they were: they are written to, and may be sampled, by themselves, at any time.
    ``ensemble[i]`` is the i-th, ``ensemble[1:]`` or ``ensemble[[0, 2]]`` an ensemble of some, and
    ``ensemble[:, :3]`` reads the first three items of each.

    Thread-safe: what is read of a buffer is read under its own lock. Can be pickled, buffers and all; between
    processes use ``shared=True`` for the ensemble and its buffers.

    Args:
        *buffers: the buffers.
        storages: in place of buffers, a :class:`StorageEnsemble` or a list of storages; its ``transforms``
            are those of the buffers that are made.
        samplers: with ``storages``, a :class:`SamplerEnsemble` or a list of samplers.
        writers: with ``storages``, a :class:`WriterEnsemble` or a list of writers.
        transform: a callable, an ``nn.Module``, or a list, called on samples of the ensemble.
        batch_size: items of a batch, unless :meth:`sample` is told otherwise.
        collate_fn: makes a batch of the list of what the buffers gave; they are stacked by default.
        collate_fns: one a buffer, used in place of its own; None keeps that.
        p: how likely each buffer is, normalised here; uniform by default.
        sample_from_all: each buffer comes once, in order, instead of being drawn.
        num_buffer_sampled: how many buffers a batch is drawn from, with replacement; as many as there are by
            default. Ignored with ``sample_from_all``.
        generator: source of every random draw, in the buffers too; by default each keeps its own.
        shared: the ensemble is used by several processes at once.

    Raises:
        TypeError: buffers and their parts are both given, or neither; something is no buffer.
        ValueError: numbers of parts differ; ``p`` is no distribution.
        RuntimeError: ``p`` with ``sample_from_all``; ``shared`` with a buffer that is not.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from replaybank import LazyTensorStorage, TensorDictReplayBuffer
        >>> parts = [TensorDictReplayBuffer(storage=LazyTensorStorage(10)) for _ in range(2)]
        >>> for number, part in enumerate(parts):
        ...     _ = part.extend(TensorDict({"x": torch.arange(5) + 10 * number}, batch_size=5))
        >>> ensemble = ReplayBufferEnsemble(*parts, sample_from_all=True, batch_size=8)
        >>> sample = ensemble.sample()
        >>> sample["x"].shape, sample["index", "buffer_ids"].tolist()
        (torch.Size([2, 4]), [[0, 0, 0, 0], [1, 1, 1, 1]])
        >>> ensemble[1] is parts[1], ensemble[:, :2]["x"].tolist()
        (True, [[0, 1], [10, 11]])
    """

    # --- writing -------------------------------------------------------------------------------------------

    def add(self, data: Any) -> NoReturn:
        """Refuse.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(_REFUSAL)

    def extend(self, data: Any, *, update_priority: bool | None = None) -> NoReturn:
        """Refuse.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(_REFUSAL)

    def __setitem__(self, index: Any, data: Any) -> NoReturn:
        raise RuntimeError(_REFUSAL)

    def empty(self, empty_write_count: bool = True) -> None:
        """Have all buffers forget all items.

        Args:
            empty_write_count: count writes from zero again.
        """
        self._ready()
        with self._lock.lock:
            for part in self._buffers:
                part.empty(empty_write_count)
            self._sampler.ran_out = False

    # --- priorities ----------------------------------------------------------------------------------------

    def update_priority(self, index: Any, priority: Any, *, generation: Any = None) -> None:
        """Give items another priority, in the buffers they came from; those without priorities ignore it.

        Args:
            index: ``info["index"]``, or the entry ``"index"`` of a sample, whole or indexed: with
                ``"buffer_ids"`` and ``"index"``.
            priority: a number, or one an item, in the form of the index or flat.
            generation: ``info["_generation"]`` or that entry of a sample: an item that has been overwritten
                since keeps its own priority.

        Raises:
            TypeError: the index does not say which buffers.
            RuntimeError: the number of priorities is not that of the items.
            IndexError: there is no such buffer or item; nothing has been changed.
            ValueError: a priority is negative, NaN or infinite; nothing has been changed.
        """
        Shares(self._buffers, index, priority, generation).update_priorities()

    def mark_update(self, index: Any, *, generation: Any = None) -> None:
        """Tell the samplers that items have changed: one that has priorities gives them that of new ones.

        Args:
            index: as for :meth:`update_priority`.
            generation: as for :meth:`update_priority`.
        """
        Shares(self._buffers, index, None, generation).mark_updates()

    def update_tensordict_priority(self, data: Any) -> None:
        """Take priorities over from samples, each into the buffer it came from.

        They are read from that buffer's ``priority_key``, ``"td_error"`` where it has none. Buffers without
        priorities are left alone.

        Args:
            data: a TensorDict with ``"index"`` as a sample has it, whole, reshaped or indexed.

        Raises:
            KeyError: there is no index in it.
            TypeError: the index does not say which buffers.
        """
        for part, rows in rows_by_part(data, self._buffers):
            take_priorities(part, rows)

    # --- reading -------------------------------------------------------------------------------------------

    def _draw(
        self,
        size: int,
        info_in_sample: bool,
        collate_fn: Callable[[Any], Any] | None = None,
        also: tuple[SampleTransform, ...] = (),
    ) -> Batch:
        self._ready()
        with self._lock.lock:
            sampler, parts = self._ensemble_sampler, self._buffers
            ids, count = sampler.choose(size)
            refuse_empty_parts(ids, [len(part) for part in parts])
            also = (*self._transform.sampling, *also)  # they read the trajectories of the part
            batches = [
                parts[number]._draw(count, info_in_sample, self._collate_of(number), also) for number in ids
            ]
            drawn = [
                (info.pop("index"), info, batch.ran_out) for batch in batches for info in (dict(batch.info),)
            ]
            index, info = sampler.join(ids, drawn)
            data = [batch.data for batch in batches]
            if info_in_sample:
                _put_parts(data, index, info)
            joined = (self._collate_fn if collate_fn is None else collate_fn)(data)
            if len(self._transform):
                joined = self._transform(joined)
            return Batch(joined, {**info, "index": index}, sampler.ran_out)

    def _put_info(self, batch: Batch) -> None:
        """The parts of a sample have theirs before they are put together."""

    def _collate_of(self, number: int) -> Callable[[Any], Any] | None:
        return None if self._collate_fns is None else self._collate_fns[number]

    def __len__(self) -> int:
        """Number of items stored in all buffers."""
        return sum(len(part) for part in self._buffers)

    def __getitem__(self, index: Any) -> Any:
        """A buffer, an ensemble of some, or items of them.

        Args:
            index: which buffers: an integer for the buffer itself, a slice, list, range, array, tensor, mask
                or ``...`` for an ensemble of those, their ``p`` normalised; or a tuple of which buffers and
                which items of each, to read these; or the ``"index"`` of a sample, to read its items again;
                or a key of the data, to read that entry of all items.

        Returns:
            The buffer; the ensemble, with the transforms and the batch size of this one; or the items,
            through the transforms of sampling: of one buffer as it gives them, of several put together as in
            a sample.

        Raises:
            IndexError: there is no such buffer or item.
            TypeError: no index.
            ValueError: no buffer is chosen, or only such of ``p`` 0.
        """
        if view.is_key(index):
            return self[:, :][index]
        if is_tensor_collection(index) or isinstance(index, Mapping):
            return self._read_parts(
                places_of(index, [part.storage.ndim for part in self._buffers]), single=False, stored=True
            )
        if isinstance(index, tuple):
            if not index:
                raise TypeError("An empty tuple is no index.")
            if len(index) == 1:
                return self[index[0]]
            inner = index[1] if len(index) == 2 else index[1:]
            found = pick(index[0], len(self._buffers), "Buffer")
            numbers = [found] if isinstance(found, int) else found
            return self._read_parts([(n, inner) for n in numbers], single=isinstance(found, int))
        found = pick(index, len(self._buffers), "Buffer")
        return self._buffers[found] if isinstance(found, int) else self._of(found)

    def _read_parts(self, wanted: Sequence[tuple[int, Any]], *, single: bool, stored: bool = False) -> Any:
        data = [
            self._buffers[number]._read(index, self._collate_of(number), stored=stored)
            for number, index in wanted
        ]
        with self._lock.lock:
            joined = data[0] if single else self._collate_fn(data)
            return self._transform(joined) if len(self._transform) else joined

    def _of(self, numbers: list[int]) -> ReplayBufferEnsemble:
        self._ready()
        drawing = self._ensemble_sampler[numbers].arguments
        collate_fns = self._collate_fns
        return ReplayBufferEnsemble(
            *(self._buffers[number] for number in numbers),
            transform=self._transform if len(self._transform) else None,
            batch_size=self._batch_size,
            collate_fn=self._collate_fn,
            collate_fns=None if collate_fns is None else [collate_fns[number] for number in numbers],
            generator=self._generator,
            shared=self._shared,
            **drawing,
        )


_REFUSAL = "An ensemble is not written to: write to one of its buffers, ensemble[i].extend(data)."


def _put_parts(data: Sequence[Any], index: TensorDict, info: Mapping[Any, Any]) -> None:
    """Set in the TensorDicts of parts where their items are, and the samplers' entries."""
    places, ids = index["index"].unbind(), index[BUFFER_IDS].tolist()
    extras = {key: value.unbind() for key, value in info.items()}
    for k, (part, place, number) in enumerate(zip(data, places, ids, strict=True)):
        if not is_tensor_collection(part):
            continue
        device = part.device
        numbers = torch.full(place.shape[:1], number)
        if device is not None and device.type != "cpu":
            numbers, place = numbers.to(device), place.to(device)
        where = build({BUFFER_IDS: numbers, "index": place}, place.shape[:1], device)
        if part.batch_dims > 1:  # items that are trajectories have theirs at every step
            where = where.reshape(-1, *(1,) * (part.batch_dims - 1)).expand(part.batch_size)
        entries = entries_to_set(part)
        own = {key: values[k] for key, values in extras.items()}
        if entries is None:
            put_info(Batch(part, {INDEX: where, **own}, False))
        else:
            entries[INDEX] = where
            put_info(Batch(part, own, False))
