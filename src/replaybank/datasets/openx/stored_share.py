"""The part of a stored dataset that one of several readers draws from: whole episodes, disjoint, complete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from replaybank.datasets.openx.selection import Runs
from replaybank.datasets.openx.sharding import Share
from replaybank.datasets.openx.shuffle import below
from replaybank.datasets.openx.storage import DatasetStorage
from replaybank.datasets.openx.stored import OURS
from replaybank.datasets.openx.streamed import seed_of
from replaybank.samplers.base import Index, InfoKey, SampledStorage, Sampler
from replaybank.storages.layout import Key
from replaybank.storages.write_log import WriteLog


def dealt(lengths: Tensor, share: Share) -> Tensor:
    """Which episodes are a share's, ascending. O(episodes log episodes).

    They are dealt out from the longest to the shortest, to and fro: shares differ by one episode at most, and
    little in steps. Nothing else decides, so that all readers agree.

    Args:
        lengths: steps of each episode, int64 ``[episodes]``.
        share: whose.

    >>> lengths = torch.tensor([5, 9, 7, 6, 8])
    >>> [dealt(lengths, Share(reader, 2)).tolist() for reader in range(2)]
    [[0, 1, 3], [2, 4]]
    """
    order = lengths.argsort(descending=True, stable=True)
    turn = torch.arange(len(order))
    rounds, place = turn // share.of, turn % share.of
    reader = torch.where(rounds % 2 == 0, place, share.of - 1 - place)
    return order[reader == share.number].sort().values


def shared_sampler(sampler: Sampler, share: Share, dataset: DatasetStorage) -> ShareSampler:
    """A sampler that draws from a share of a dataset.

    Raises:
        ValueError: there are fewer episodes than readers.
    """
    if len(dataset.bounds) < share.of:
        raise ValueError(
            f"{dataset.manifest.name!r} has {len(dataset.bounds)} episodes, which cannot be shared among "
            f"world_size={share.of} ranks: pass rank=0, world_size=1 to have each rank draw from all"
        )
    return ShareSampler(sampler, share)


def of_other_readers(saved: str, here: Sampler, state: Mapping[str, Any]) -> str | None:
    """What is said of a state that is of one of several readers, to one that is none; or the other way round.

    Args:
        saved: name of the class of the sampler that the state is of.
        here: the one that should take it over.
        state: of the sampler.

    Returns:
        None if that is not what differs.
    """
    of_share = saved == ShareSampler.__name__
    if of_share == isinstance(here, ShareSampler):
        return None
    readers = state.get("share") if of_share else here._readers() if isinstance(here, ShareSampler) else None
    try:
        rank, world_size, worker, workers = readers  # type: ignore[misc]
    except (TypeError, ValueError):  # damaged
        return None
    one = f"rank={rank} of world_size={world_size}" if world_size > 1 else ""
    if workers > 1:
        one += f"{', ' if one else ''}worker {worker} of {workers} of a DataLoader"
    if of_share:
        said = f"The state is of {one}; this dataset is read by one alone"
    else:
        said = f"The state is of a dataset that was read by one alone; this one is {one}"
        rank, world_size = 0, 1
    advice = f": give rank={rank}, world_size={world_size}" if "rank" in one else ""
    return f"{said}. A state goes on among as many readers as there were{advice}."


def settle_in_worker(dataset: Any) -> None:
    """Have a dataset in a worker of a ``DataLoader`` draw as no other worker does, from a part of its share.

    Where episodes come once a pass, each worker has some of them. Else workers draw from the same ones, each
    by itself. A sampler of the user's own is left alone.

    Args:
        dataset: a stored dataset, as it was copied into the worker.
    """
    worker = torch.utils.data.get_worker_info()
    if worker is None:
        return
    shared = dataset.sampler
    sampler, share = (shared.sampler, shared.share) if isinstance(shared, ShareSampler) else (shared, Share())
    if type(sampler) in OURS and (sampler.exhaustible or dataset.batch_size is None):
        dataset.set_sampler(ShareSampler(sampler, share, Share(worker.id, worker.num_workers)))
    if dataset.generator is not None:  # a copy of the parent's, as the other workers have
        seed = below(1 << 62, seed_of(dataset.generator), worker.id)
        dataset.set_rng(torch.Generator().manual_seed(seed))


class PartOfItems:
    """Some runs of a storage's items, one behind the other, as a sampler sees a storage.

    Immutable but for the log's marks, and as thread-safe as the storage.

    Args:
        whole: the storage, of one dimension.
        runs: first item and length of each run, int64 ``[runs, 2]``, in order.
    """

    ndim = 1
    columns: tuple[int, ...] = ()

    def __init__(self, whole: SampledStorage, runs: Tensor) -> None:
        self._whole = whole
        self._runs = Runs(runs)
        self._size = self._runs.size
        self.log = WriteLog(max(1, self._size))
        """As of a storage that was filled at once."""
        self.log.fill(count=self._size)

    def __len__(self) -> int:
        return self._size

    @property
    def shape(self) -> torch.Size:
        """Of its items."""
        return torch.Size([self._size])

    @property
    def max_size(self) -> int:
        """Its items: none are added."""
        return self._size

    @property
    def device(self) -> torch.device | None:
        """Where samples come to lie."""
        return self._whole.device

    def leaf_keys(self) -> list[Key]:
        """Paths of all leaves."""
        return self._whole.leaf_keys()

    def read_leaf(self, key: Key, rows: Tensor | slice) -> Tensor:
        """One leaf of some items. O(items log runs)."""
        if isinstance(rows, slice):
            rows = torch.arange(*rows.indices(self._size))
        return self._whole.read_leaf(key, self.places(rows))

    def places(self, items: Tensor) -> Tensor:
        """Where items lie in the whole storage. O(items log runs)."""
        return self._runs.places(items)


class ShareSampler(Sampler):
    """Draws as another sampler does, from the episodes of one share of a stored dataset.

    Not thread-safe: the buffer's lock guards it.

    Args:
        sampler: draws within the share; of steps, or of whole episodes.
        share: of the episodes, as :func:`dealt` has it.
        within: the part of that which a worker of a ``DataLoader`` draws from.
        overlap: where there are fewer episodes than readers, let several readers draw from one.
    """

    def __init__(
        self, sampler: Sampler, share: Share, within: Share | None = None, *, overlap: bool = False
    ) -> None:
        self.sampler = sampler
        self.share = share
        self.within = within or Share()
        self.overlap = overlap
        self._of: SampledStorage | None = None
        self._made: PartOfItems | None = None

    def numbers(self, lengths: Tensor) -> Tensor:
        """Numbers of the share's episodes, ascending. O(episodes log episodes)."""
        share = self.share
        if self.overlap and len(lengths) < share.of:
            share = Share(share.number % len(lengths), len(lengths))
        mine = dealt(lengths, share)
        return mine[dealt(lengths[mine], self.within)]

    def _part(self, storage: Any) -> PartOfItems:
        """What of a storage is this share's; O(episodes log episodes) at the first call."""
        if self._made is None or self._of is not storage:
            steps = isinstance(storage, DatasetStorage)
            bounds: Tensor = storage.bounds if steps else storage.steps.bounds
            numbers = self.numbers(bounds[:, 1])
            runs = bounds[numbers] if steps else torch.stack([numbers, torch.ones_like(numbers)], 1)
            self._of, self._made = storage, PartOfItems(storage, runs)
        return self._made

    def sample(self, storage: SampledStorage, batch_size: int) -> tuple[Index, dict[InfoKey, Any]]:
        """Choose items of the share; see the sampler's own ``sample``."""
        return self._drawn(self.sampler.sample, storage, batch_size)

    def draw(self, storage: SampledStorage, batch_size: int) -> tuple[Index, dict[InfoKey, Any]]:
        """As :meth:`sample`, for a caller who reads the items."""
        return self._drawn(self.sampler.draw, storage, batch_size)

    def _drawn(self, draw: Any, storage: Any, batch_size: int) -> tuple[Index, dict[InfoKey, Any]]:
        part = self._part(storage)
        if not len(part):
            raise RuntimeError(f"{self.within} of {self.share} of the dataset has no episode to draw from")
        self.sampler.generator = self.generator
        index, info = draw(part, batch_size)
        if isinstance(index, Tensor):
            return part.places(index), info
        return tuple(part.places(items) for items in index), info

    @property
    def truncated_key(self) -> Any:
        """Under which key the ends of slices are told."""
        return getattr(self.sampler, "truncated_key", None)

    @property
    def ran_out(self) -> bool:
        """Whether the last call ended a pass over the share."""
        return self.sampler.ran_out

    @ran_out.setter
    def ran_out(self, value: bool) -> None:
        self.sampler.ran_out = value

    @property
    def exhaustible(self) -> bool:
        """Whether sampling goes in passes."""
        return self.sampler.exhaustible

    def state_dict(self) -> dict[str, Any]:
        """Whose share it is, and the sampler's own state."""
        return {"share": self._readers(), "sampler": self.sampler.state_dict()}

    def _readers(self) -> list[int]:
        return [self.share.number, self.share.of, self.within.number, self.within.of]

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state of the same share.

        Raises:
            ValueError: it is of another one, or damaged.
        """
        if list(state_dict["share"]) != self._readers():
            raise ValueError(
                f"The state is of a share [rank, world_size, worker, workers] {list(state_dict['share'])}, "
                f"this one is {self._readers()}: go on with as many ranks and workers as there were."
            )
        self.sampler.load_state_dict(state_dict["sampler"])

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_of": None, "_made": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.sampler!r}, {self.share})"
