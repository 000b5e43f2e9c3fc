"""Which episodes are whose: shares of an epoch, disjoint and together complete.

Every reader works out the same division by itself, from the number of the epoch and the number of readers.
It does not depend on the seed: readers that were seeded apart, as the ranks of a training often are, still
never read the same episode twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from replaybank.samplers.arguments import whole


@dataclass(frozen=True)
class Share:
    """One of several readers.

    Args:
        number: which, from 0.
        of: how many there are.
    """

    number: int = 0
    of: int = 1

    def split(self, number: int, of: int) -> Share:
        """The share of one of several readers among whom this one is divided."""
        return Share(self.number * of + number, self.of * of)

    def __str__(self) -> str:
        return f"share {self.number} of {self.of}"


def rank_share(rank: int | None, world_size: int | None) -> Share:
    """The share of this rank: what was said, else what torch.distributed says, else everything.

    Raises:
        ValueError: one of the two is given without the other, or they do not fit each other.
        TypeError: they are no numbers.

    >>> rank_share(1, 4)
    Share(number=1, of=4)
    """
    if rank is None and world_size is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return Share(torch.distributed.get_rank(), torch.distributed.get_world_size())
        return Share()
    if rank is None or world_size is None:
        raise ValueError(f"rank={rank} and world_size={world_size} go together: give both, or neither")
    of = whole("world_size", world_size)
    number = whole("rank", rank, 0)
    if number >= of:
        raise ValueError(f"rank={number} is out of range: with world_size={of} it is 0 to {of - 1}")
    return Share(number, of)


def worker_share(share: Share) -> tuple[Share, int]:
    """The part of a rank's share that is for this process, and the process's number.

    In a worker of a :class:`torch.utils.data.DataLoader` that is the worker's part, and a number from 1 on
    that only this one of so many workers has: what is counted by it is alike for all of them, also after
    passes with more or fewer. Elsewhere the whole share, and 0.
    """
    worker = torch.utils.data.get_worker_info()
    if worker is None:
        return share, 0
    before = worker.num_workers * (worker.num_workers - 1) // 2
    return share.split(worker.id, worker.num_workers), before + worker.id + 1


@dataclass(frozen=True)
class Piece:
    """Some records of a shard.

    Args:
        shard: number of the shard.
        start: first record.
        stop: the record to stop before; None: at the end of the shard.
        stride: every how manieth record.
    """

    shard: int
    start: int
    stop: int | None
    stride: int = 1


def pieces(counts: Sequence[int | None], order: Sequence[int], share: Share) -> list[Piece]:
    """The records of one share, shard by shard. O(shards).

    Where all shards say how many records they have, shares are equal to within one record, and each is a
    run of records: readers read little in common. Otherwise each share gets whole shards, and of those that
    are left over a part of one, every so manieth record.

    Args:
        counts: number of records of each shard, None where it is unknown.
        order: the numbers of all shards, in the order of reading that all shares have in common.
        share: whose.

    >>> pieces([4, 2], [1, 0], Share(0, 2)), pieces([4, 2], [1, 0], Share(1, 2))
    ([Piece(shard=1, start=0, stop=2, stride=1), Piece(shard=0, start=0, stop=1, stride=1)], \
[Piece(shard=0, start=1, stop=4, stride=1)])
    """
    known = [count for count in counts if count is not None]
    if len(known) == len(counts):
        return _runs(known, order, share)
    whole_rounds = len(order) // share.of
    mine = [Piece(shard, 0, None) for shard in order[share.number : whole_rounds * share.of : share.of]]
    left = order[whole_rounds * share.of :]
    if left:
        number, position = divmod(share.number, len(left))
        together = (share.of - position + len(left) - 1) // len(left)
        mine.append(Piece(left[position], number, None, together))
    return mine


def _runs(counts: Sequence[int], order: Sequence[int], share: Share) -> list[Piece]:
    total = sum(counts)
    first, last = (total * number // share.of for number in (share.number, share.number + 1))
    mine = []
    begin = 0
    for shard in order:
        end = begin + counts[shard]
        start, stop = max(first, begin), min(last, end)
        if start < stop:
            mine.append(Piece(shard, start - begin, stop - begin))
        begin = end
    return mine
