"""Reading some records of a shard, and as little as possible of what lies between them."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence

from replaybank.datasets.openx.skipping import LeftOut, records
from replaybank.datasets.openx.sources.base import Episode, EpisodeSource, Shard, begins_anywhere
from replaybank.datasets.openx.sources.files import is_url
from replaybank.errors import DataFormatError

RECORD_GAP = 16
"""Records further apart are looked up one by one, instead of reading what lies between."""


def chosen_records(
    source: EpisodeSource, shard: Shard, numbers: Sequence[int], *, skip: bool
) -> Generator[tuple[int, Episode | LeftOut], None, None]:
    """Some records of a shard, read forwards, once each.

    What is wrong with a record that is not among them is no matter. A record that is far behind the one
    before it is looked up; over a network that takes longer than what lies between, which is read instead.

    Args:
        source: of the shard.
        shard: what is read.
        numbers: of the records, from 0, rising.
        skip: give a record that cannot be read as :class:`LeftOut`, and leave out those that are not there.

    Raises:
        DataFormatError: a record cannot be read, or the shard ends before it, though it is declared.
        IndexError: the shard, which does not say how many records it has, has no such one.
    """
    at = 0
    while at < len(numbers):
        stop = _end_of_run(numbers, at, _gap(source, shard))
        run, last = set(numbers[at:stop]), numbers[stop - 1]
        at = stop
        # Errors of records that are passed over come as LeftOut too, and are passed over with them.
        came = False
        with contextlib.closing(records(source, shard, min(run), skip=True)) as found:
            try:
                for record, episode in found:
                    came = True
                    if record in run:
                        if isinstance(episode, LeftOut) and not skip:
                            break
                        run.remove(record)
                        yield record, episode
                    if record >= last:
                        break
            except IndexError:  # the shard ends before
                if came:
                    raise
        if run and not skip:
            _refuse(source, shard, min(run))


def _gap(source: EpisodeSource, shard: Shard) -> int:
    if begins_anywhere(source):
        return 1
    return shard.episodes or (1 << 62) if is_url(shard.path) else RECORD_GAP


def _end_of_run(numbers: Sequence[int], at: int, gap: int) -> int:
    """Where the records end that are read in one go from a place on."""
    stop = at + 1
    while stop < len(numbers) and numbers[stop] - numbers[stop - 1] <= gap:
        stop += 1
    return stop


def _refuse(source: EpisodeSource, shard: Shard, record: int) -> None:
    """Raise what is wrong with a record."""
    again = records(source, shard, record, skip=False)
    with contextlib.closing(again), contextlib.suppress(IndexError):  # it has fewer records: said below
        next(again, None)
    if shard.episodes is None:
        raise IndexError(f"{shard.path} has no record {record}.")
    raise DataFormatError(
        f"{shard.path} ends before record {record}, {shard.episodes} episodes are declared: it is incomplete"
    )
