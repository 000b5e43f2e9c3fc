"""A checkpoint of a buffer, to be looked at where it lies: nothing in it is run, and little of it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from replaybank.buffers.checkpointed import UNKNOWN, CheckpointedBuffer, opened_buffers
from replaybank.buffers.stored_items import Items, StoredEntry, items_of
from replaybank.buffers.stored_trajectories import rows_of, run_of, trajectories_of
from replaybank.datasets.openx.sources.base import Key
from replaybank.datasets.openx.summary import folder_bytes
from replaybank.errors import DataFormatError, UnsafePickleError
from replaybank.report.look import (
    LOOKED_STEPS,
    MOST_ITEM_BYTES,
    MOST_STEPS,
    REWARDS,
    About,
    Entry,
    Frames,
    Look,
    Progress,
    Sampling,
    expected_of,
)
from replaybank.report.sampling import samplings_of
from replaybank.terminal import count, size

LOOKED_TRAJECTORIES: Final = 2000
STRETCH: Final = 200
"""Steps that are looked at together where nothing says where trajectories end."""

_DAMAGE = (LookupError, TypeError, AttributeError, RuntimeError)


@dataclass(frozen=True)
class _Part:
    """One storage.

    Args:
        items: in it.
        entries: of them.
        runs: int64 ``[3, S]``: column, first row and number of rows of each trajectory.
        where: which buffer of an ensemble, in words.
        episodic: whether something says where they end.
        ends: the entry that tells whether a trajectory is over.
    """

    items: Items
    entries: tuple[Entry, ...]
    runs: npt.NDArray[np.int64]
    where: str
    episodic: bool
    ends: Key | None


class BufferSubject:
    """The items of a checkpointed buffer, or of the buffers of an ensemble.

    Holds the checkpoint open: savers wait until :meth:`close`. Not thread-safe.

    Args:
        path: the folder that was given to ``dumps``.

    Raises:
        DataFormatError: a file is damaged, or holds pickled objects.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open = ExitStack()
        self._parts: list[_Part] = []
        self._samplings: list[Sampling] = []
        self._facts: list[tuple[str, str]] = []
        self._notes: list[str] = []
        self._looked = self._trajectories = self._seed = 0
        try:
            self._read(self._opened(path))
        except _DAMAGE as error:
            self.close()
            raise DataFormatError(f"{path} is no checkpoint of a buffer, or is damaged: {error!r}") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the checkpoint."""
        self._open.close()

    def _opened(self, path: Path) -> list[CheckpointedBuffer]:
        try:
            return self._open.enter_context(opened_buffers(path))
        except DataFormatError as error:
            if "pickled objects" not in str(error):
                raise
            raise UnsafePickleError(
                f"{path} holds pickled objects, and a report runs nothing from a checkpoint: save the buffer "
                "without allow_pickle to look at it"
            ) from error

    def _read(self, buffers: Sequence[CheckpointedBuffer]) -> None:
        for number, buffer in enumerate(buffers):
            self._read_buffer(buffer, f"buffer {number}" if len(buffers) > 1 else "")

    def _read_buffer(self, buffer: CheckpointedBuffer, where: str) -> None:
        label = f"{where}, " if where else ""
        kinds = {part: buffer.kind(part) for part in ("storage", "writer", "sampler")}
        states = buffer.storages
        held: list[int] = []
        for number, state in enumerate(states):
            place = f"{label}storage {number}" if len(states) > 1 else where
            held.append(self._read_storage(state, place, kinds["storage"]))
        for kind in ("storage", "writer"):
            if kinds[kind] != UNKNOWN:
                self._facts.append((f"{label}{kind}", kinds[kind]))
        name = kinds["sampler"] if kinds["sampler"] != UNKNOWN else "sampler"
        self._samplings += samplings_of(buffer.sampler, f"{label}{name}", held)

    def _read_storage(self, state: Mapping[str, Any], where: str, kind: str) -> int:
        """Take in a storage; the number of its items."""
        label = f"{where}: " if where else ""
        items = items_of(state)
        if items is None:
            if {"name", "split", "steps"} <= set(state):
                self._notes.append(
                    f"{label}the data are those of the dataset {state['name']!r} and not in the checkpoint: "
                    "look at the dataset itself"
                )
                return int(state["steps"])
            if state.get("initialized") is not False:
                of = f" ({kind})" if kind != UNKNOWN else ""
                self._notes.append(f"{label}the items{of} are not in the checkpoint in a form that is known")
            return 0
        total = items.log.length * torch.Size(items.columns).numel()
        rows = torch.Size((items.log.rows, *items.columns)).numel()
        self._facts += [
            (f"{label}items", f"{count(total)} of at most {count(rows)}"),
            (f"{label}written in all", count(items.log.total * torch.Size(items.columns).numel())),
            (f"{label}in memory", size(items.item_bytes * total)),
        ]
        self._parts.append(_part(items, where))
        return total

    def looks(self, seed: int, progress: Progress) -> Iterator[Look]:
        """Trajectories drawn at random until there are enough; stretches of steps where there are none."""
        self._seed = seed
        rng = np.random.default_rng(seed)
        chosen: list[list[int]] = []
        for part in self._parts:
            lengths = part.runs[2]
            order = rng.permutation(len(lengths))[: max(1, LOOKED_TRAJECTORIES // len(self._parts))]
            steps = np.minimum(lengths[order], MOST_STEPS).cumsum()
            enough = int(np.searchsorted(steps, LOOKED_STEPS // len(self._parts), side="right"))
            chosen.append(np.sort(order[: max(1, enough)]).tolist())
        self._trajectories = sum(part.runs.shape[1] for part in self._parts)
        total, before = sum(map(len, chosen)), 0
        for part, numbers in zip(self._parts, chosen, strict=True):
            for number in numbers:
                look = self._look(part, number, before + number)
                self._looked += 1
                yield look
                progress(self._looked, total)
            before += part.runs.shape[1]

    def _look(self, part: _Part, run: int, number: int) -> Look:
        column, first, length = part.runs[:, run].tolist()
        rows = rows_of(first, min(length, MOST_STEPS), part.items.log.length)
        columns: dict[Key, npt.NDArray[Any] | list[str]] = {}
        frames: dict[Key, Frames] = {}
        missing = set()
        for entry in part.entries:
            if entry.kind == "image":
                frames[entry.key] = _frames(part.items, entry.key, first, column)
            elif entry.looked:
                try:
                    columns[entry.key] = run_of(part.items, entry.key, rows, column)
                except (KeyError, ValueError):  # items of a list may differ from each other
                    missing.add(entry.key)
        ended = True
        if part.ends is not None and part.ends in columns:
            flags = columns[part.ends]
            ended = len(flags) < length or bool(np.any(flags[-1]))
        place = f"{part.where}, " if part.where else ""
        place += f"column {column}, " if part.items.columns else ""
        where = f"{place}rows {first:,} to {(first + length - 1) % part.items.log.length:,}"
        return Look(number, where, length, columns, frames, frozenset(missing), ended)

    def about(self) -> About:
        """What the checkpoint says of itself."""
        entries = {entry.key: entry for part in self._parts for entry in part.entries}
        parts = [part.runs[2] for part in self._parts]
        lengths = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        return About(
            name=self._path.name or str(self._path),
            form="checkpoint of a buffer",
            path=str(self._path),
            facts=tuple(self._facts),
            entries=tuple(entries.values()),
            lengths=lengths,
            episodes=self._trajectories,
            steps=int(lengths.sum()),
            bytes=folder_bytes(self._path),
            looked=self._in_words(),
            notes=tuple(self._notes),
            samplings=tuple(self._samplings),
            episodic=all(part.episodic for part in self._parts),
            rewarded=any(key in entries for key in REWARDS),
            expected=expected_of(lengths, LOOKED_TRAJECTORIES),
        )

    def _in_words(self) -> str:
        episodic = all(part.episodic for part in self._parts)
        what = "trajectories" if episodic else f"stretches of {STRETCH} steps"
        if self._looked == self._trajectories:
            return f"all {self._looked:,} trajectories" if episodic and self._looked != 1 else "everything"
        return f"{self._looked:,} of {self._trajectories:,} {what}, drawn at random (seed {self._seed})"


def _part(items: Items, where: str) -> _Part:
    entries = tuple(_entry(entry) for entry in items.entries)
    found = trajectories_of(items)
    if found is None:
        return _Part(items, entries, _stretches(items), where, False, None)
    return _Part(items, entries, found.runs, where, True, found.ends)


def _entry(stored: StoredEntry) -> Entry:
    kind = "tensor" if stored.kind == "object" else stored.kind
    looked = stored.kind == "image" or (stored.readable and stored.bytes <= MOST_ITEM_BYTES)
    return Entry(stored.key, kind, stored.shape, stored.dtype, stored.note, looked)


def _stretches(items: Items) -> npt.NDArray[np.int64]:
    """Consecutive steps, the oldest first, without going over the place that is written next."""
    length, columns = items.log.length, torch.Size(items.columns).numel()
    oldest = items.log.cursor if length == items.log.rows and length else 0
    starts = np.arange(0, length, STRETCH)
    counts = np.minimum(STRETCH, length - starts)
    firsts = (starts + oldest) % max(length, 1)
    column = np.repeat(np.arange(columns), len(starts))
    return np.stack([column, np.tile(firsts, columns), np.tile(counts, columns)]).astype(np.int64)


def _frames(items: Items, key: Key, first: int, column: int) -> Frames:
    def read(steps: Sequence[int]) -> npt.NDArray[Any]:
        return items.frames(key, [(first + step) % items.log.length for step in steps], column)

    return read
