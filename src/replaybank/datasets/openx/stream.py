"""Episodes of a source as a stream: shuffled, shared out, and taken up again after any episode.

An epoch goes through every episode of a share once. Shards come in another order in each epoch, and episodes
wait in a reservoir of encoded ones, from which they are drawn at random. Where a stream stands is a
:class:`Cursor`: how far the shards have been read, and which records wait in the reservoir. To go on from
there, those records are read again, however much the epoch has gone through before: about the reservoir's
bytes, once their places in the files have been found.
"""

from __future__ import annotations

import contextlib
import copy
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from replaybank.datasets.openx.chosen import RECORD_GAP, chosen_records
from replaybank.datasets.openx.selection import selected
from replaybank.datasets.openx.sharding import Piece, Share, pieces
from replaybank.datasets.openx.shuffle import Reservoir, below, permutation, swap_out
from replaybank.datasets.openx.skipping import LeftOut, SkippedRecords, good_episodes, records
from replaybank.datasets.openx.sources.base import Episode, EpisodeSource, Shard, held_bytes
from replaybank.errors import DataFormatError

RECORD_BITS = 16
"""Of the number of an episode whose source does not say how many there are; the shard's is the rest."""

_DIVISION, _ORDER, _DRAW = range(3)  # what random numbers are for: no two uses share any


class Pick(NamedTuple):
    """One episode of a stream, and what its being drawn changes in a :class:`Cursor`.

    Args:
        episode: as its source gives it.
        number: of the episode in the dataset.
        origin: its shard and record.
        epoch: in which it was drawn.
        arrived: shard and record of what was read before it was drawn.
        place: where it was in the reservoir.
        piece: which piece of the share is being read.
        record: the next one to read of that.
    """

    episode: Episode
    number: int
    origin: tuple[int, int]
    epoch: int
    arrived: tuple[tuple[int, int], ...]
    place: int
    piece: int
    record: int


@dataclass
class Cursor:
    """Where a stream stands.

    Args:
        series: streams of different series have different orders.
        epoch: the one that is gone through.
        share: whose.
        count: episodes drawn.
        piece: which piece of the share is being read.
        record: the next record to read of it, -1: its first.
        waiting: shard and record of the episodes in the reservoir.
    """

    series: int
    epoch: int
    share: Share
    count: int = 0
    piece: int = 0
    record: int = -1
    waiting: list[tuple[int, int]] = field(default_factory=list)

    def advance(self, pick: Pick) -> None:
        """Step over an episode that was drawn. O(episodes read for it)."""
        if pick.epoch != self.epoch:
            self.epoch = pick.epoch
            self.count = 0
            self.waiting.clear()
        self.waiting.extend(pick.arrived)
        swap_out(self.waiting, pick.place)
        self.count += 1
        self.piece, self.record = pick.piece, pick.record

    def copy(self) -> Cursor:
        """Another one that stands in the same place. O(reservoir)."""
        return Cursor(**{**vars(self), "waiting": list(self.waiting)})

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, and an int64 tensor ``[episodes in the reservoir, 2]``."""
        state = dict(vars(self))
        state["share"] = [self.share.number, self.share.of]
        state["waiting"] = torch.tensor(self.waiting, dtype=torch.int64).view(-1, 2)
        return state

    @staticmethod
    def of_state(state: Any, streamed: EpisodeStream) -> Cursor:
        """The cursor that a state is of.

        Raises:
            ValueError: it is no state of a cursor over this stream.
        """
        try:
            numbers = {name: state[name] for name in ("series", "epoch", "count", "piece", "record")}
            number, of = state["share"]
            waiting = state["waiting"]
            good = all(type(value) is int for value in (*numbers.values(), number, of))
            good = good and min(numbers["series"], numbers["epoch"], numbers["count"], numbers["piece"]) >= 0
            good = good and 0 <= number < of and isinstance(waiting, Tensor)
            good = good and waiting.dtype == torch.int64 and waiting.shape[1:] == (2,)
            places = [(shard, record) for shard, record in waiting.tolist()] if good else []
            good = good and all(0 <= s < len(streamed.shards) and r >= 0 for s, r in places)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ValueError(f"this is no state of a place in a stream: {error!r}") from error
        if not good:
            raise ValueError("this is no state of a place in this stream: a number in it is out of range")
        return Cursor(share=Share(number, of), waiting=places, **numbers)


class EpisodeStream:
    """The episodes of a source in an order that depends on the seed and the epoch.

    Holds no open file and no thread; each call of :meth:`epoch` has a state of its own, so it is safe in any
    number of threads, and can be pickled to workers.

    Args:
        source: of the episodes.
        seed: fixes the order. Which episodes belong to which share does not depend on it.
        shuffle: False: in the order of the files.
        buffer_bytes: encoded bytes that wait in the reservoir, at least: the last one read comes on top.
        skip: leave out records that cannot be read, and count them, instead of raising.
        episodes: numbers of those that are read, each once; None: all. Shards without any are not opened.

    Raises:
        DataFormatError: the source has no episodes, or more than can be numbered.
        IndexError, ValueError, TypeError: ``episodes`` are no episodes of it.
    """

    def __init__(
        self,
        source: EpisodeSource,
        *,
        seed: int,
        shuffle: bool,
        buffer_bytes: int,
        skip: bool = False,
        episodes: Any = None,
    ) -> None:
        self.source = source
        self.skip = skip
        self.skipped = SkippedRecords()
        """Records that were left out so far."""
        self.seed = seed
        self.shuffle = shuffle
        self.buffer_bytes = buffer_bytes if shuffle else 0
        self.shards: list[Shard] = list(source.shards())
        self.counts: list[int | None] = [shard.episodes for shard in self.shards]
        known = [count for count in self.counts if count is not None]
        self.episodes: int | None = sum(known) if len(known) == len(self.counts) else None
        """Number of episodes; None where the source does not say."""
        if self.episodes == 0:
            split = getattr(source, "split", None)
            raise DataFormatError(
                f"{source.name}: there are no episodes" + (f" in split {split!r}" if split else "")
            )
        self._first = list(accumulate(known, initial=0)) if self.episodes is not None else None
        if (self.episodes or 0) > np.iinfo(np.int32).max or len(self.shards) > 1 << (31 - RECORD_BITS):
            raise DataFormatError(f"{source.name}: {len(self.shards)} shards are more than can be numbered")
        self.selected: Tensor | None = None if episodes is None else selected(episodes, self.episodes)
        """Numbers of the episodes that are read, int64, ascending; None: all."""
        self._chosen: list[list[int]] | None = None  # records of each shard
        if self.selected is not None:
            self._chosen = [[] for _ in self.shards]
            for number in self.selected.tolist():
                shard, record = self.place_of(number)
                self._chosen[shard].append(record)

    def seeded(self, seed: int) -> EpisodeStream:
        """The same episodes in another order; what is left out is counted together."""
        other = copy.copy(self)
        other.seed = seed
        return other

    def number_of(self, shard: int, record: int) -> int:
        """Number of an episode in the dataset: the same as in the stored dataset where counts are declared.

        Raises:
            DataFormatError: there are more records than can be numbered.
        """
        if self._first is not None:
            return self._first[shard] + record
        if record >= 1 << RECORD_BITS:
            raise DataFormatError(
                f"{self.shards[shard].path} has more than {1 << RECORD_BITS} episodes and does not say how "
                "many: they cannot be numbered"
            )
        return (shard << RECORD_BITS) + record

    def place_of(self, number: int) -> tuple[int, int]:
        """Shard and record of an episode of a number that :meth:`number_of` gives. O(log shards).

        Raises:
            IndexError: there is no such shard.
        """
        if self._first is not None:
            shard = bisect_right(self._first, number) - 1
            record = number - self._first[min(shard, len(self._first) - 1)]
        else:
            shard, record = number >> RECORD_BITS, number & ((1 << RECORD_BITS) - 1)
        if not 0 <= shard < len(self.shards):
            raise IndexError(f"Episode {number} is out of range: there are {len(self.shards)} shards.")
        return shard, record

    def pieces(self, cursor: Cursor) -> list[Piece]:
        """What a share reads in an epoch, in order. O(shards)."""
        numbers = len(self.shards)
        if not self.shuffle:
            return self._dealt(range(numbers), cursor.share)
        common = permutation(numbers, _DIVISION, cursor.series, cursor.epoch).tolist()
        mine = self._dealt(common, cursor.share)
        order = permutation(len(mine), _ORDER, *self._key(cursor))
        return [mine[place] for place in order.tolist()]

    def _dealt(self, order: Sequence[int], share: Share) -> list[Piece]:
        if self._chosen is None:
            return pieces(self.counts, order, share)
        dealt = pieces([len(chosen) for chosen in self._chosen], order, share)  # places among the chosen ones
        bounds = [(self._chosen[piece.shard][piece.start : piece.stop], piece.shard) for piece in dealt]
        return [Piece(shard, chosen[0], chosen[-1] + 1) for chosen, shard in bounds]

    def first_episodes(self) -> Iterator[Episode]:
        """The episodes that can be read, in the order of the files. Raises what reading them raises."""
        for place, shard in enumerate(self.shards):
            numbers = None if self._chosen is None else self._chosen[place]
            if numbers is None:
                yield from good_episodes(self.source, shard, skip=self.skip)
            elif numbers:
                for _, episode in chosen_records(self.source, shard, numbers, skip=self.skip):
                    if isinstance(episode, Episode):
                        yield episode

    def _key(self, cursor: Cursor) -> tuple[int, ...]:
        return self.seed, cursor.series, cursor.epoch, cursor.share.number, cursor.share.of

    def epoch(self, cursor: Cursor) -> Iterator[Pick]:
        """What a share still has to draw in the epoch of a cursor, which is not moved.

        Raises:
            DataFormatError: a file is not what it should be, or not what it was when the cursor was there.
        """
        mine = self.pieces(cursor)
        epoch, count, place = cursor.epoch, cursor.count, (cursor.piece, cursor.record)
        key = self._key(cursor)
        arrived: list[tuple[int, int]] = []
        reservoir: Reservoir[tuple[int, int, Episode]] = Reservoir(self.buffer_bytes)

        def draw() -> Pick:
            nonlocal count
            taken = below(len(reservoir), _DRAW, *key, count) if self.shuffle else 0
            shard, record, episode = reservoir.take(taken)
            count += 1
            new = tuple(arrived)
            arrived.clear()
            number = self.number_of(shard, record)
            return Pick(episode, number, (shard, record), epoch, new, taken, *place)

        for shard, record, episode in self._again(cursor.waiting):
            reservoir.add((shard, record, episode), held_bytes(episode))
        while reservoir.full:
            yield draw()
        for at in range(cursor.piece, len(mine)):
            piece = mine[at]
            first = cursor.record if at == cursor.piece and cursor.record >= 0 else piece.start
            for record, read in self._read(piece, first):
                place = at, record + piece.stride
                if read is None:
                    continue
                arrived.append((piece.shard, record))
                reservoir.add((piece.shard, record, read), held_bytes(read))
                while reservoir.full:
                    yield draw()
        while len(reservoir):
            yield draw()

    def _read(self, piece: Piece, first: int) -> Iterator[tuple[int, Episode | None]]:
        """The records of a piece from one on; None for those that are left out."""
        shard = self.shards[piece.shard]
        if self._chosen is not None:
            wanted = range(first, first if piece.stop is None else piece.stop)
            yield from self._read_some(shard, [n for n in self._chosen[piece.shard] if n in wanted])
            return
        to_the_end = piece.stop is None or piece.stop == shard.episodes
        if piece.stop is not None and first >= piece.stop:
            return
        following = first
        with contextlib.closing(records(self.source, shard, first, skip=self.skip)) as found:
            try:
                for record, episode in found:
                    if piece.stop is not None and record >= piece.stop:
                        reason = f"{shard.path} has more than the {shard.episodes} episodes that are declared"
                        if not self.skip:
                            raise DataFormatError(reason)
                        self.skipped.note(shard, record, reason)
                        return
                    if (record - piece.start) % piece.stride == 0:
                        if isinstance(episode, LeftOut):
                            self.skipped.note(shard, record, episode.reason)
                        yield record, None if isinstance(episode, LeftOut) else episode
                    following = record + 1
                    if following == piece.stop and not to_the_end:
                        return
            except IndexError:  # there is no record `first`
                if following != first:
                    raise
        if piece.stop is not None and following < piece.stop and not self.skip:
            raise DataFormatError(
                f"{shard.path} ends after {following} episodes, {shard.episodes} are declared: "
                "it is incomplete"
            )

    def _read_some(self, shard: Shard, numbers: list[int]) -> Iterator[tuple[int, Episode | None]]:
        with contextlib.closing(chosen_records(self.source, shard, numbers, skip=self.skip)) as found:
            for record, episode in found:
                if isinstance(episode, LeftOut):
                    self.skipped.note(shard, record, episode.reason)
                yield record, None if isinstance(episode, LeftOut) else episode

    def _again(self, waiting: list[tuple[int, int]]) -> Iterator[tuple[int, int, Episode]]:
        """Records once more, in the given order, each file read forwards."""
        found: dict[tuple[int, int], Episode] = {}
        wanted = sorted(waiting)
        while wanted:
            shard, first = wanted[0]
            run = {first}
            for other, record in wanted[1:]:
                if other != shard or record - max(run) > RECORD_GAP:
                    break
                run.add(record)
            wanted = wanted[len(run) :]
            # Nothing is asked of records that are not selected.
            read = records(self.source, self.shards[shard], first, skip=self.skip or self._chosen is not None)
            with contextlib.closing(read) as again:
                for record, episode in again:
                    if record in run:
                        if isinstance(episode, LeftOut):  # it could be read when the state was taken
                            raise DataFormatError(episode.reason)
                        found[shard, record] = episode
                    if record >= max(run):
                        break
            if (shard, max(run)) not in found:
                raise DataFormatError(
                    f"{self.shards[shard].path} has no record {max(run)} any more: these are not the files "
                    "that the state is of"
                )
        for shard, record in waiting:
            yield shard, record, found[shard, record]


def endless(stream: EpisodeStream, cursor: Cursor) -> Iterator[Pick]:
    """The rest of an epoch and all that follow.

    Raises:
        DataFormatError: there are no episodes.
    """
    empty = 0
    while empty <= cursor.share.of:  # a small dataset may leave a share out of an epoch, not out of all
        empty += 1
        for pick in stream.epoch(cursor):
            empty = 0
            yield pick
        cursor = Cursor(cursor.series, cursor.epoch + 1, cursor.share)
    left_out = len(stream.skipped.all())
    raise DataFormatError(
        f"{stream.source.name}: there are no episodes in {cursor.share}"
        + (f"; {left_out} records that cannot be read were left out" if left_out else "")
    )
