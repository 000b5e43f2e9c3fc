"""What draws from a stream of episodes, in place of a sampler."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch

from replaybank import showing
from replaybank.datasets.openx.ahead import Ahead
from replaybank.datasets.openx.cut import Cut, Cutter, stream_leaves
from replaybank.datasets.openx.options import Slicing
from replaybank.datasets.openx.selection import check_same_episodes, told_selection
from replaybank.datasets.openx.sharding import Share, worker_share
from replaybank.datasets.openx.skipping import SkippedRecords
from replaybank.datasets.openx.slabs import Slabs
from replaybank.datasets.openx.sources.base import EpisodeSource, Key
from replaybank.datasets.openx.stream import Cursor, EpisodeStream, Pick, endless
from replaybank.datasets.openx.streamed_storage import refusal
from replaybank.datasets.openx.ted import Leaf
from replaybank.errors import DataFormatError
from replaybank.samplers.arguments import whole
from replaybank.samplers.base import SampledStorage, Sampler

AHEAD_BYTES = 1 << 28
"""Decoded slices that are ready at a time, at most; a single one always may be."""
SMALL_BYTES = 1 << 16
"""Slices without frames up to which who asks for them makes them: a thread takes longer to wake up."""
BUFFER_BYTES = 1 << 28
"""Encoded episodes to draw from: some thousand short ones with one camera."""
MAX_THREADS = 4
"""Threads that decode where nothing was said: more only help with many cameras."""
WORKERS = 1 << 13
"""Counters of epochs, by the numbers of workers: each one of one worker, of two, and so on up to 127."""

SAMPLED, ITERATED, RESTARTED = 0, 1, 2
"""Series of epochs: those that ``sample`` goes through, those of ``for`` loops, and all beyond: restarts."""


class StreamRun:
    """One pass over a stream, or an endless one, that reads and decodes ahead.

    Not thread-safe. Its threads end with :meth:`close`, with its last reference, and with Python.

    Args:
        stream: the episodes.
        cutter: makes slices of them.
        cursor: where to begin; moved by :meth:`commit`.
        forever: go on into the next epochs.
        threads: how many decode.
    """

    def __init__(
        self, stream: EpisodeStream, cutter: Cutter, cursor: Cursor, *, forever: bool, threads: int
    ) -> None:
        self.cursor = cursor
        self.resumed = cursor.count > 0
        """Whether it began in the midst of an epoch."""
        self._cutter = cutter
        self._form: tuple[int, int | None] | None = (1, None)
        self._slabs: Slabs | None = None
        self._next = 0  # number of the slice that comes next
        self._taken: list[Pick] = []
        self._stream = stream
        self.given = 0
        """Slices so far."""
        picks = endless(stream, cursor.copy()) if forever else stream.epoch(cursor.copy())
        self._line: Ahead[tuple[int, Pick], Cut | None] = Ahead(
            _numbered(picks),
            *self._work(None),
            depth=1,
            limit=AHEAD_BYTES,
            threads=threads,
            small=0 if cutter.decodes else SMALL_BYTES,
        )
        weakref.finalize(self, self._line.close)

    def _work(self, length: int | None) -> tuple[Any, Any]:
        """What makes a slice of an episode, and what says how many bytes it will have."""
        cutter, stream, slabs = self._cutter, self._stream, self._slabs

        def cut(numbered: tuple[int, Pick]) -> Cut | None:
            """A slice; None where an episode's frames or values turn out to be damaged, and are left out."""
            number, pick = numbered
            slab, place = (None, 0) if slabs is None else slabs.place(number)
            try:
                return cutter.cut(pick, length, slab, place)
            except DataFormatError as error:
                if not stream.skip:
                    raise
                shard, record = pick.origin
                stream.skipped.note(stream.shards[shard], record, str(error))
                return None

        return cut, lambda numbered: cutter.size(numbered[1], length)

    @property
    def usable(self) -> bool:
        """Whether it is neither closed nor a copy in a forked process."""
        return self._line.usable

    def take(self, count: int, length: int | None, ahead: int) -> list[Cut]:
        """The slices of the next episodes; fewer at the end of a pass. Waits for them.

        Args:
            count: how many.
            length: steps of each; None: all.
            ahead: how many more to have ready.

        Raises:
            BaseException: what was raised where they were read or cut; the cursor has not moved.
        """
        self._taken.clear()
        self._line.depth = count + ahead
        if (count, length) != self._form:
            self._form = (count, length)
            self._slabs = None
            if count > 1 and length is not None:
                self._slabs = Slabs(self._cutter.entries, self._next, count, length, self._cutter.memory)
            self._line.renew(*self._work(length))
        cuts: list[Cut] = []
        try:
            while len(cuts) < count and (prepared := self._line.next(count - len(cuts) - 1)) is not None:
                (number, pick), cut = prepared
                self._next = number + 1
                self._taken.append(pick)
                if cut is not None:
                    cuts.append(cut)
                    continue
                self._form = None  # batches begin elsewhere from now on
                if not cuts and pick.epoch > self._taken[0].epoch + 1:
                    raise DataFormatError(
                        f"{self._stream.source.name}: no episode of a whole epoch can be read, the last one: "
                        f"{self._stream.skipped.all()[-1].reason}"
                    )
        except BaseException:
            self._taken.clear()
            self.close()
            raise
        if self._slabs is not None:
            self._slabs.done(self._next)
        self.given += len(cuts)
        return cuts

    def commit(self) -> None:
        """Move the cursor over what was taken last."""
        for pick in self._taken:
            self.cursor.advance(pick)
        self._taken.clear()

    def close(self) -> None:
        """End the threads."""
        self._line.close()


def _numbered(picks: Iterator[Pick]) -> Iterator[tuple[int, Pick]]:
    """Picks with their numbers from 0 on; closed with this iterator."""
    with contextlib.closing(picks):  # type: ignore[type-var]  # they come from a generator
        yield from enumerate(picks)


class StreamSampler(Sampler):
    """Draws slices of the episodes of a stream, each episode once an epoch.

    There are two series of epochs: :meth:`slices` goes on from one into the next, and each :meth:`begin` is
    about another one. Neither disturbs the other.

    Where it stands is its state, and no draw depends on anything else: the next slices of another sampler
    that takes the state over are those that would have come. That one reads the episodes again that were
    waiting to be drawn.

    Not thread-safe: the buffer's lock guards it. A copy, in this process or another, goes on from where the
    original stood. In a worker of a ``DataLoader`` it reads the worker's share.

    Args:
        stream: the episodes.
        leaves: what a step has.
        slicing: how they are cut.
        share: what of them this rank reads.
        prefetch: batches to read and decode ahead.
        threads: how many decode; None: as many as torch uses, up to
            ``MAX_THREADS``.
    """

    def __init__(
        self,
        stream: EpisodeStream,
        leaves: Mapping[Key, Leaf],
        slicing: Slicing,
        *,
        share: Share,
        prefetch: int,
        threads: int | None,
    ) -> None:
        self.slicing = slicing
        self.share = share
        self.prefetch = prefetch
        self.threads = threads
        self.leaves = dict(leaves)
        # In shared memory: the workers of a DataLoader that are started anew for an epoch go on counting.
        self._epochs = torch.zeros(1 + WORKERS, dtype=torch.int64).share_memory_()
        self._run: StreamRun | None = None
        self._begin(stream)

    def _begin(self, stream: EpisodeStream) -> None:
        self.close()
        self.stream = stream
        self._cutter = Cutter(self.leaves, stream.source.name, stream.seed, self.slicing)
        self._sampled: Cursor | None = None
        self._iterated: Cursor | None = None
        # Whether the cursor comes from a state, so that it has to be gone on with exactly.
        self._loaded = {SAMPLED: False, ITERATED: False}

    def reseed(self, seed: int) -> None:
        """Begin anew, in another order."""
        self._begin(self.stream.seeded(seed))
        self._epochs.zero_()

    # --- drawing ---------------------------------------------------------------------------------------

    def slices(self, count: int, length: int) -> list[Cut]:
        """The next slices, over the ends of epochs. O(bytes); waits for data.

        Raises:
            RuntimeError: an episode is shorter than ``length``, and nothing was said of what to do then.
            DataFormatError: the data are not what they should be. At an error nothing is lost: the next call
                begins where this one did.
        """
        share, _ = worker_share(self.share)
        if self._sampled is None or self._sampled.share != share:
            self._check_share(SAMPLED, self._sampled, share)
            self._sampled = Cursor(SAMPLED, 0, share)
            self._run = None
        if self._run is None or not self._run.usable:
            self._run = self._start(self._sampled, forever=True)
        cuts = self._run.take(count, length, count * self.prefetch)
        self._run.commit()
        return cuts

    def restart(self, number: int) -> None:
        """Have :meth:`slices` begin anew, with epochs that only a restart of this number has."""
        self.close()
        share, _ = worker_share(self.share)
        self._sampled = Cursor(RESTARTED + number, 0, share)
        self._loaded[SAMPLED] = False

    def begin(self) -> StreamRun:
        """Begin a pass over the next epoch, or go on with the one in the midst of which a state was taken."""
        share, worker = worker_share(self.share)
        resumed = self._iterated
        if self._loaded[ITERATED] and resumed is not None:
            self._check_share(ITERATED, resumed, share)
            self._loaded[ITERATED] = False
            return self._start(resumed, forever=False)
        slot = worker % (1 + WORKERS)
        epoch = int(self._epochs[slot])
        self._epochs[slot] += 1
        return self._start(Cursor(ITERATED, epoch, share), forever=False)

    def _start(self, cursor: Cursor, *, forever: bool) -> StreamRun:
        # torch has one thread in a worker of a DataLoader, and as many as there are CPUs elsewhere.
        threads = min(MAX_THREADS, torch.get_num_threads()) if self.threads is None else self.threads
        return StreamRun(self.stream, self._cutter, cursor, forever=forever, threads=threads)

    def passed(self, run: StreamRun) -> None:
        """Hear that a batch of a pass is handed out: where that stands is the state from now on."""
        run.commit()
        self._iterated = run.cursor
        self._loaded[ITERATED] = False

    def finished(self, run: StreamRun) -> None:
        """Hear that a pass is at its end.

        Raises:
            DataFormatError: it had everything, and that was nothing.
        """
        run.commit()
        if not run.given and not run.resumed and run.cursor.share.of == 1:
            raise DataFormatError(f"{self.stream.source.name}: there are no episodes")
        if self._iterated is run.cursor:
            self._iterated = None

    def _check_share(self, series: int, cursor: Cursor | None, share: Share) -> None:
        if cursor is not None and self._loaded[series] and cursor.share != share:
            raise ValueError(
                f"The state that was loaded is of {cursor.share} of the episodes, this process reads "
                f"{share}: go on with as many ranks and workers as there were"
            )

    def close(self) -> None:
        """End the threads of :meth:`slices`; the next call starts them again."""
        if self._run is not None:
            self._run.close()
            self._run = None

    # --- as a sampler ----------------------------------------------------------------------------------

    def sample(self, storage: SampledStorage, batch_size: int) -> NoReturn:
        """Refuses: what a stream gives has no place in a storage."""
        raise refusal("Steps have no index")

    def update_priority(self, index: Any, priority: Any, *, storage: SampledStorage | None = None) -> None:
        """Refuses: steps come as they come."""
        raise refusal("Steps cannot be given priorities")

    def mark_update(self, index: Any, *, storage: SampledStorage | None = None) -> None:
        """Refuses: steps cannot change."""
        raise refusal("Steps cannot be changed")

    # --- state -----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: numbers, and the records that wait to be drawn. O(reservoir)."""
        _, worker = worker_share(self.share)
        return {
            **self._identity(),
            "seed": self.stream.seed,
            "epochs": int(self._epochs[worker % (1 + WORKERS)]),
            "iterated": None if self._iterated is None else self._iterated.state_dict(),
            "sampled": None if self._sampled is None else self._sampled.state_dict(),
            "skipped": self.stream.skipped.state(),
            **({} if self.stream.selected is None else {"episodes": self.stream.selected}),
        }

    def _identity(self) -> dict[str, Any]:
        """What a state must be of, to be taken over."""
        source, stream = self.stream.source, self.stream
        return {
            "dataset": source.name,
            "split": getattr(source, "split", None),
            "shards": [-1 if count is None else count for count in stream.counts],
            "shuffle": stream.shuffle,
            "buffer_bytes": stream.buffer_bytes,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where the state was taken. O(reservoir); the next draw reads the waiting episodes again.

        Raises:
            ValueError: the state is of another dataset, or of a stream with other ``episodes`` or another
                ``shuffle`` or ``buffer_bytes``; or it is damaged. Nothing has been changed.
        """
        for name, value in self._identity().items():
            if state_dict[name] != value:
                raise ValueError(
                    f"The state is of a stream with {name}={state_dict[name]!r}, this one has {value!r}."
                )
        check_same_episodes(state_dict.get("episodes"), self.stream.selected)
        seed, epochs = state_dict["seed"], state_dict["epochs"]
        if type(seed) is not int or type(epochs) is not int or min(seed, epochs) < 0:
            raise ValueError(f"The state is damaged: seed={seed!r}, epochs={epochs!r}.")
        skipped = SkippedRecords.check(state_dict.get("skipped", []))
        cursors = [
            None if state_dict[name] is None else Cursor.of_state(state_dict[name], self.stream)
            for name in ("sampled", "iterated")
        ]
        self._begin(self.stream.seeded(seed))
        self.stream.skipped.take_over(skipped)
        self._sampled, self._iterated = cursors
        self._loaded = {SAMPLED: True, ITERATED: True}
        self._epochs[worker_share(self.share)[1] % (1 + WORKERS)] = epochs

    def __getstate__(self) -> dict[str, Any]:
        cursors = {name: getattr(self, name) for name in ("_sampled", "_iterated")}
        copies = {name: None if cursor is None else cursor.copy() for name, cursor in cursors.items()}
        # The generator has given the seed and is not used again: the buffer has it.
        return {**vars(self), **copies, "_run": None, "generator": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._epochs.share_memory_()

    def _facts(self) -> dict[str, Any]:
        stream = self.stream
        told: dict[str, Any] = {"source": stream.source.name}
        split = getattr(stream.source, "split", None)
        if split is not None:
            told["split"] = split
        episodes = told_selection(stream.selected, stream.episodes)
        if episodes is not None:
            told["episodes"] = episodes
        for name in ("num_slices", "slice_len", "pad"):
            value = getattr(self.slicing, name)
            if value is not None:
                told[name] = value
        if self.share.of > 1:
            told["share"] = showing.Words(f"{self.share.number} of {self.share.of}")
        told["shuffle"] = stream.shuffle
        if stream.shuffle:
            told["buffer"] = showing.memory(stream.buffer_bytes)
        return told


def seed_of(generator: torch.Generator | None) -> int:
    """A seed drawn from a generator; None is the global one."""
    return int(torch.randint(1 << 62, (), generator=generator))


def stream_sampler(
    source: EpisodeSource,
    slicing: Slicing,
    *,
    shuffle: bool,
    cameras: Sequence[str | Key] | None,
    share: Share,
    prefetch: int | None,
    threads: int | None,
    buffer_bytes: int,
    generator: torch.Generator | None,
    skip: bool,
    episodes: Any,
) -> StreamSampler:
    """What draws from a source as the arguments ask for.

    Raises:
        ValueError: there is no such camera, or a number is out of range.
        IndexError, ValueError, TypeError: ``episodes`` are no episodes of the source.
        DataFormatError: the source has no episodes, or nothing that can be streamed.
    """
    ahead = 1 if prefetch is None else whole("prefetch", prefetch, 0)
    workers = None if threads is None else whole("num_workers", threads, 0)
    size = whole("buffer_bytes", buffer_bytes, 0)
    stream = EpisodeStream(
        source,
        seed=seed_of(generator),
        shuffle=shuffle,
        buffer_bytes=size,
        skip=skip,
        episodes=episodes,
    )
    leaves = stream_leaves(source, stream.first_episodes(), cameras)
    return StreamSampler(stream, leaves, slicing, share=share, prefetch=ahead, threads=workers)
