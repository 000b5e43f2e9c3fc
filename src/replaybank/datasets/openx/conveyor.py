"""Episodes on their way into a dataset: read in order, decoded side by side, settled in order."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from time import monotonic
from types import TracebackType
from typing import Any

from replaybank.datasets.openx.builder import Begun, DatasetBuilder, Mark
from replaybank.datasets.openx.frames import FRAME_CHUNK_BYTES
from replaybank.datasets.openx.sources.base import Episode, held_bytes
from replaybank.datasets.openx.ted import TedEpisode
from replaybank.errors import DataFormatError

SAVE_SECONDS = 1.0
"""Shards that follow each other faster are made permanent together: a thousand small ones would spend their
time waiting for the disk. It is what a kill loses at most beside the shards under way."""

_WAITING_FOR_A_THREAD = 8
"""Episodes held for each thread, at most: enough that none waits for work, however short they are."""

_FROM_SOURCE = (DataFormatError, ConnectionError, FileNotFoundError, PermissionError)
"""Errors that say that an episode cannot be had, and nothing of those that came before it."""

_CHUNKS_A_THREAD = 3
"""Decoded frames, those that the decoder has just made, and its own memory: room for more of them."""


def threads_for(num_workers: int | None, max_memory: int) -> int:
    """How many threads are to decode frames.

    Args:
        num_workers: as asked for; None: one a core.
        max_memory: bytes that may be held; few of them allow few threads.

    Raises:
        ValueError: ``num_workers`` or ``max_memory`` is less than 1.
    """
    if max_memory < 1 or (num_workers is not None and num_workers < 1):
        raise ValueError(f"num_workers={num_workers} and max_memory={max_memory} are at least 1")
    if num_workers is not None:
        wanted = num_workers
    elif hasattr(os, "sched_getaffinity"):
        wanted = len(os.sched_getaffinity(0))
    else:
        wanted = os.cpu_count() or 1
    return max(1, min(wanted, max_memory // (2 * _CHUNKS_A_THREAD * FRAME_CHUNK_BYTES)))


@dataclass
class _Entry:
    """Something that came in order: an episode, a record to leave out, or the end of a shard."""

    shard: str
    record: int = -1
    episode: Episode | None = None
    size: int = 0  # bytes that the episode takes
    skipped: str | None = None
    begun: Begun | None = None
    end: Mark | None = None
    futures: list[Future[int]] = field(default_factory=list)


class Conveyor:
    """Hands episodes to a builder, whose frames are decoded in threads, with a limit on the memory held.

    What comes out is as if each episode had been decoded and written when it came: where the frames of one
    turn out to be damaged, what was begun behind it is taken back, and begun again without it.

    Args:
        builder: what they are for. The conveyor commits shards, it does not finish.
        to_ted: an episode in TED layout, under a number.
        metadata: plain values of an episode, given its shard's name and its record.
        threads: frames are decoded in so many; 1: in the calling thread.
        max_memory: bytes of episodes and decoded frames that are held at a time.
        skip: leave out what is damaged, and count it, instead of raising.
        settled: told the number of steps of each episode that is written.
    """

    def __init__(
        self,
        builder: DatasetBuilder,
        to_ted: Callable[[Episode, int], TedEpisode],
        metadata: Callable[[Episode, str, int], Mapping[str, Any]],
        *,
        threads: int,
        max_memory: int,
        skip: bool,
        settled: Callable[[int], None],
    ) -> None:
        self._builder = builder
        self._to_ted = to_ted
        self._metadata = metadata
        self._skip = skip
        self._tell = settled
        self._entries: deque[_Entry] = deque()
        self._pool = ThreadPoolExecutor(threads, "replaybank-convert") if threads > 1 else None
        self._stop = threading.Event()
        self._most = _WAITING_FOR_A_THREAD * threads
        self._max_memory = max_memory
        self._room = max_memory - threads * _CHUNKS_A_THREAD * FRAME_CHUNK_BYTES
        self._held = self._largest = self._episodes = 0
        self._saved = monotonic()

    # --- what comes ------------------------------------------------------------------------------------

    def episode(self, shard: str, record: int, episode: Episode) -> None:
        """The next episode.

        Raises:
            DataFormatError: it, or one before it, is damaged and is not to be skipped.
            MemoryError: it alone takes more than there is to be used.
        """
        size = held_bytes(episode)
        if size > self._max_memory:
            raise MemoryError(
                f"{episode.where} takes {size:,} bytes, max_memory={self._max_memory:,}: an episode is read "
                "as a whole, so allow at least that"
            )
        self._largest = max(self._largest, size)
        self._take(_Entry(shard, record, episode, size))
        # Before the next one is read: it may be as large as any before.
        while self._entries and (
            self._episodes >= self._most or self._held + self._largest > max(self._room, self._largest)
        ):
            self._settle_first()

    def skipped(self, shard: str, record: int, reason: str) -> None:
        """The next record cannot be read and is left out."""
        self._take(_Entry(shard, record, skipped=reason))

    def end_of_shard(self, shard: str) -> None:
        """All of a shard has come."""
        self._take(_Entry(shard))

    def finish(self) -> None:
        """Wait for all that is under way.

        Raises:
            DataFormatError: an episode is damaged and is not to be skipped.
        """
        while self._entries:
            self._settle_first()
        self._builder.save()

    # --- in order --------------------------------------------------------------------------------------

    def _take(self, entry: _Entry) -> None:
        if entry.episode is not None:
            try:
                self._begin(entry, entry.episode)
            except DataFormatError as error:
                if not self._skip:
                    raise
                entry = _Entry(entry.shard, entry.record, skipped=str(error))
        if entry.skipped is not None:
            self._builder.skip(entry.shard, entry.record, entry.skipped)
        elif entry.episode is None:
            entry.end = self._builder.mark()
        self._entries.append(entry)
        if self._pool is None or self._entries[0].episode is None:
            self._settle_first()

    def _begin(self, entry: _Entry, episode: Episode) -> None:
        ted = self._to_ted(episode, self._builder.episodes)
        begun = self._builder.begin(ted, self._metadata(episode, entry.shard, entry.record))
        for column in begun.frames:
            column.stop = self._stop
        entry.begun = begun
        entry.futures = [self._submit(column.write) for column in begun.frames]
        self._held += entry.size
        self._episodes += 1

    def _submit(self, work: Callable[[], int]) -> Future[int]:
        if self._pool is not None:
            return self._pool.submit(work)
        done: Future[int] = Future()
        try:
            done.set_result(work())
        except DataFormatError as error:
            done.set_exception(error)
        return done

    def _settle_first(self) -> None:
        """Wait for what came first of all that is under way."""
        entry = self._entries[0]
        if entry.begun is None or entry.episode is None:
            self._entries.popleft()
            if entry.end is not None:
                self._builder.end_shard(entry.shard, entry.end)
                if monotonic() - self._saved > SAVE_SECONDS:
                    self._builder.save()
                    self._saved = monotonic()
            return
        try:
            checksums = [future.result() for future in entry.futures]
        except DataFormatError as error:
            self._take_back(entry.begun, error)
            return
        self._entries.popleft()
        self._builder.settle(entry.begun, checksums)
        self._tell(entry.episode.length)
        self._let_go(entry)

    def _let_go(self, entry: _Entry) -> None:
        self._held -= entry.size
        self._episodes -= 1

    def _take_back(self, bad: Begun, error: DataFormatError) -> None:
        """The first episode under way is damaged: begin anew what came behind it."""
        self._give_up()
        entries, self._entries = list(self._entries), deque()
        self._stop = threading.Event()
        self._builder.go_back(bad.before)
        for entry in entries:
            if entry.episode is not None:
                self._let_go(entry)
        if not self._skip:
            raise error
        self.skipped(entries[0].shard, entries[0].record, str(error))
        for entry in entries[1:]:
            self._take(_Entry(entry.shard, entry.record, entry.episode, entry.size, entry.skipped))

    # --- the end ---------------------------------------------------------------------------------------

    def _give_up(self) -> None:
        """Have nobody writing frames any more."""
        self._stop.set()
        futures = [future for entry in self._entries for future in entry.futures]
        for future in futures:
            future.cancel()
        for future in futures:
            with contextlib.suppress(CancelledError):
                future.exception()

    def __enter__(self) -> Conveyor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # What came before a damaged record is kept; if it is damaged too, it is named, being the first.
            # So it is with a shard that cannot be fetched: those before it would be fetched again.
            while self._entries and isinstance(error, _FROM_SOURCE):
                self._settle_first()
        finally:
            self._give_up()
            if self._pool is not None:
                self._pool.shutdown()
            if kind is not None:
                with contextlib.suppress(OSError):  # of a full disk that has been told of
                    self._builder.save()
