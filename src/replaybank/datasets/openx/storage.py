"""A converted dataset as a storage: on disk, read-only, next observations made when they are read."""

from __future__ import annotations

import json
import mmap
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from torch import Tensor

from replaybank import showing
from replaybank.datasets.openx.files import (
    ANEW,
    EPISODE_BYTES,
    EPISODES,
    METADATA,
    ROWS,
    Manifest,
    column_name,
    ends_name,
    frames_name,
    read_manifest,
    read_strings,
)
from replaybank.datasets.openx.nest import nest
from replaybank.datasets.openx.selection import Runs, check_same_episodes, joined, selected, told_selection
from replaybank.datasets.openx.stored_frames import StoredFrames
from replaybank.datasets.openx.ted import EPISODE, NEXT_DONE, Leaf, select_images
from replaybank.errors import DataFormatError
from replaybank.storages._tensordict import stack_of
from replaybank.storages.base import Batch, Storage
from replaybank.storages.indexing import Run
from replaybank.storages.layout import Key
from replaybank.storages.leaf_table import LeafTable
from replaybank.storages.torch_indexing import checked

OBSERVATION = "observation"
NO_TEXT = -1
"""Number that stands for the text of an observation that is not there."""


class DatasetStorage(Storage):
    """The steps of a converted dataset, memory-mapped: nothing is read but what is asked for.

    An item is a TED step (:mod:`replaybank.datasets.openx.ted`). A frame is stored once: the next observation
    is gathered from the following step, and is zero with ``("next", "valid")`` False at the last step of an
    episode. Where some episodes lack an entry that others have, ``("mask", *key)`` says which steps have it.

    Reading is safe from any number of threads. Pickles as its path; every process maps the files itself.

    Args:
        folder: a converted dataset.
        image_keys: cameras to read, by path or name; None: all.
        episodes: numbers of the episodes that are there, each once; None: all.

    Raises:
        ValueError: there is no such camera; or no episode is selected, or one twice.
        IndexError: there is no such episode.
        FileNotFoundError: there is none.
        IncompleteDatasetError: its conversion has not been finished.
        DataFormatError: a file is damaged.
    """

    def __init__(
        self,
        folder: str | Path,
        image_keys: Sequence[str | Key] | None = None,
        episodes: Any = None,
    ) -> None:
        self.folder = Path(folder)
        self._image_keys = image_keys
        self.manifest: Manifest = read_manifest(self.folder)
        self._steps = self.manifest.steps  # on disk
        bounds = self._read_bounds()
        self.episodes = None if episodes is None else selected(episodes, len(bounds))
        """Numbers of the episodes that are selected, int64, ascending; None: all."""
        self._runs = None
        if self.episodes is not None:
            bounds = bounds[self.episodes]
            self._runs = Runs(joined(bounds))
            bounds = torch.stack([bounds[:, 1].cumsum(0) - bounds[:, 1], bounds[:, 1]], 1)
        self.bounds = bounds
        """First item and length of each episode, int64 ``[episodes, 2]``."""
        self._last_steps = bounds.sum(1) - 1
        super().__init__(int(bounds[:, 1].sum()), 1, torch.device("cpu"))
        self.log.fill()
        layout = self.manifest.layout
        buffers = [self._map(ROWS)] if layout.row_bytes else []
        buffers += [self._map(column_name(number)) for number in range(len(layout.columns))]
        whole = LeafTable(layout, (self._steps,), buffers, torch.device("cpu"))
        wanted = self._wanted(image_keys)
        kept = [i for i, leaf in enumerate(layout.leaves) if leaf.key in wanted]
        self._table = whole if len(kept) == len(layout.leaves) else self._part_of(whole, kept)
        self._keys = [layout.leaves[i].key for i in kept]
        self._encoded = {
            leaf.key: StoredFrames(
                leaf,
                self._map(frames_name(number)),
                self._map(ends_name(number)),
                self.folder,
                bgr=leaf.key in self.manifest.bgr,
            )
            for number, leaf in enumerate(self.manifest.encoded)
            if leaf.key in wanted
        }
        self._seen = [i for i, key in enumerate(self._keys) if key[0] == OBSERVATION]
        self._next_table = self._part_of(self._table, self._seen) if self._seen else None
        self._texts = {key for key, kind in self.manifest.kinds.items() if kind == "text"}
        self._done = self._keys.index(NEXT_DONE)
        self._episode = self._keys.index(EPISODE)
        self.strings = read_strings(self.folder, self.manifest)
        """The distinct texts."""
        self._missing = self._missing_table()
        self._lines: Tensor | None = None

    def _map(self, name: str) -> Tensor:
        path = self.folder / name
        with open(path, "rb") as file:
            if not path.stat().st_size:  # leaves without elements: nothing to map
                return torch.empty(0, dtype=torch.uint8)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        with warnings.catch_warnings():
            # torch warns that it cannot keep anybody from writing; nobody gets these tensors.
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            return torch.frombuffer(mapped, dtype=torch.uint8)

    def _wanted(self, image_keys: Sequence[str | Key] | None) -> set[Key]:
        """The leaves that are read: all but the cameras that are not asked for."""
        kinds: Mapping[Key, Any] = self.manifest.kinds
        leaves = {
            leaf.key: Leaf(leaf.key, None, kinds.get(leaf.key, "tensor"), None, tuple(leaf.shape))
            for leaf in [*self.manifest.layout.leaves, *self.manifest.encoded]
        }
        return set(select_images(leaves, image_keys))

    def _part_of(self, table: LeafTable, places: list[int]) -> LeafTable:
        """Some leaves of a table alone."""
        layout = table.layout
        part = type(layout)(
            [layout.leaves[i] for i in places], [layout.offsets[i] for i in places], layout.row_bytes
        )
        return LeafTable(
            part, (self._steps,), [table.views[i] for i in places], torch.device("cpu"), given=True
        )

    def _read_bounds(self) -> Tensor:
        path = self.folder / EPISODES
        bounds = np.fromfile(path, "<i8").reshape(-1, EPISODE_BYTES // 8)
        starts, lengths = bounds.T
        # Each number is compared with the steps there are before any are added up: sums could wrap around.
        steps = self._steps
        sane = ((starts >= 0) & (starts < steps) & (lengths > 0) & (lengths <= steps)).all()
        if not sane or starts[0] != 0 or (starts + lengths != np.append(starts[1:], steps)).any():
            raise DataFormatError(
                f"{path} is damaged: its episodes do not follow each other to the last step"
            )
        return torch.from_numpy(bounds.astype(np.int64))

    def _missing_table(self) -> list[tuple[Key, Tensor]]:
        """For each leaf that some episodes lack: bool ``[episodes]``, True where it is there."""
        table = []
        for key, episodes in self.manifest.missing.items():
            if key not in self._keys and key not in self._encoded:
                continue
            there = torch.ones(self.manifest.episodes, dtype=torch.bool)
            there[torch.tensor(episodes)] = False
            table.append((key, there))
        return table

    def metadata(self, episode: int) -> dict[Any, Any]:
        """One line of ``metadata.jsonl``: values of the whole episode by key, and ``"where"``. O(1).

        The first call finds the lines: O(bytes of the file).

        Raises:
            DataFormatError: the file is damaged.
        """
        path = self.folder / METADATA
        if self._lines is None:
            self._lines = self._map(METADATA)
            self._breaks = (self._lines == ord("\n")).nonzero().squeeze(1)
        if len(self._breaks) != self.manifest.episodes:
            raise DataFormatError(f"{path} is damaged: it should have {self.manifest.episodes} lines; {ANEW}")
        start = int(self._breaks[episode - 1]) + 1 if episode else 0
        try:
            line = json.loads(self._lines[start : int(self._breaks[episode])].numpy().tobytes())
            values = {tuple(key): value for key, value in line.get("metadata", [])}
            return {"where": line["where"], **values}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DataFormatError(f"{path} is damaged at line {episode + 1}: {error!r}; {ANEW}") from error

    # --- what it says of itself ------------------------------------------------------------------------

    @property
    def initialized(self) -> bool:
        """Always: what a step looks like stands in the manifest."""
        return True

    def leaf_keys(self) -> list[Key]:
        """Keys of the stored leaves, text included (as numbers of strings)."""
        return [*self._keys, *self._encoded]

    def encoded_frames(self, key: Key) -> StoredFrames | None:
        """The frames of a camera that are kept as JPEG or PNG bytes, of all episodes; else None."""
        return self._encoded.get(key)

    def read_leaf(self, key: Key, rows: Tensor | slice) -> Tensor:
        """One stored leaf of some steps. O(steps); ends and episode numbers without touching the rows."""
        if key in self._encoded:
            numbers = torch.arange(*rows.indices(self.rows)) if isinstance(rows, slice) else rows
            return self._encoded[key].read(self._places(checked(numbers, self.rows)))
        if key not in self._keys:
            raise KeyError(f"{key!r} is not in {self.manifest.name}, which has {self.leaf_keys()}")
        if key not in (EPISODE, NEXT_DONE) and self._runs is None:
            return self._table.views[self._keys.index(key)][rows]
        if isinstance(rows, slice):
            rows = torch.arange(*rows.indices(self.rows))
        if key not in (EPISODE, NEXT_DONE):
            return self._table.views[self._keys.index(key)][self._places(checked(rows, self.rows))]
        episode = torch.searchsorted(self._last_steps, rows)
        if key == EPISODE:
            return (episode if self.episodes is None else self.episodes[episode]).to(torch.int32)
        return (self._last_steps[episode] == rows)[:, None]

    # --- reading ---------------------------------------------------------------------------------------

    def _places(self, items: Tensor) -> Tensor:
        """Steps on disk of items that are there."""
        return items if self._runs is None else self._runs.places(items)

    def _read_run(self, run: Run) -> TensorDict:
        index = torch.arange(run.start, run.start + run.size).view(run.lead)
        return self._read_items(index)

    def _read_items(self, items: Tensor) -> TensorDict:
        items = self._places(checked(items.cpu(), self.rows))
        leaves = self._table.gather(items, self._steps)
        lead = items.shape
        last = leaves[self._done].view(lead)
        ends = last.numpy()
        entries: dict[Key, Any] = dict(zip(self._keys, leaves, strict=True))
        if self._next_table is not None:
            following = self._next_table.gather(torch.where(last, items, items + 1), self._steps)
            for i, values in zip(self._seen, following, strict=True):
                # Through NumPy: torch's own assignment to some rows of frames takes 60 times as long.
                values.numpy()[ends] = NO_TEXT if self._keys[i] in self._texts else 0
                entries[("next", *self._keys[i])] = values
        for key, frames in self._encoded.items():
            if key[0] == OBSERVATION:
                entries[key], entries[("next", *key)] = frames.with_next(items, last)
            else:
                entries[key] = frames.read(items)
        entries[("next", "valid")] = ~leaves[self._done]
        for name in ("done", "terminated", "truncated"):
            entries[(name,)] = torch.zeros((*lead, 1), dtype=torch.bool)
        episode = leaves[self._episode].long()
        for key, there in self._missing:
            entries[("mask", *key)] = there[episode]
        for key in list(entries):
            if key in self._texts or (key[0] == "next" and key[1:] in self._texts):
                entries[key] = self._text(entries[key])
        return nest(entries, lead)

    def _text(self, codes: Tensor) -> NonTensorData | NonTensorStack:
        """Numbers of strings as strings. O(B)."""
        if codes.ndim == 0:
            return NonTensorData(self._string(int(codes)))
        if codes.ndim > 1:
            return NonTensorStack(*(self._text(part) for part in codes.unbind(0)))
        numbers = codes.tolist()
        # One object a distinct text and batch: making one an item costs 5 microseconds each.
        made = {number: NonTensorData(self._string(number)) for number in set(numbers)}
        return stack_of(list(map(made.__getitem__, numbers)))

    def _string(self, number: int) -> str:
        if number == NO_TEXT:
            return ""
        if not 0 <= number < len(self.strings):
            raise DataFormatError(
                f"{self.folder / ROWS} is damaged: a step names text {number} of {len(self.strings)}"
            )
        return self.strings[number]

    # --- what a read-only storage refuses --------------------------------------------------------------

    def _refuse(self) -> RuntimeError:
        return RuntimeError(
            f"{self.manifest.name} is a stored dataset and cannot be written to; make a changed copy instead"
        )

    def prepare(self, data: Any, *, single: bool = False) -> Batch:
        """Refuses: the dataset is read-only."""
        raise self._refuse()

    def _part(self, batch: Batch, first: int, count: int) -> Batch:
        raise self._refuse()

    def _store_run(self, start: int, batch: Batch, skip: int) -> None:
        raise self._refuse()

    def _store_items(self, items: Run | Tensor, data: Any) -> None:
        raise self._refuse()

    def empty(self) -> None:
        """Refuses: the dataset is read-only."""
        raise self._refuse()

    # --- state -----------------------------------------------------------------------------------------

    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        """Which dataset this is, and which episodes of it; the data stays where it is."""
        state = {"name": self.manifest.name, "split": self.manifest.split, "steps": self._steps}
        return state if self.episodes is None else {**state, "episodes": self.episodes}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Check that a state is of this dataset.

        Raises:
            ValueError: it is of another one.
        """
        given, here = dict(state_dict), self.state_dict()
        chosen = given.pop("episodes", None)
        here.pop("episodes", None)
        if given != here:
            raise ValueError(f"The state is of {given}, this dataset is {here}.")
        check_same_episodes(chosen, self.episodes)

    def __reduce__(self) -> tuple[type[DatasetStorage], tuple[Path, Sequence[str | Key] | None, Any]]:
        # No tensor: one that is sent to a process by itself goes through memory that both share.
        chosen = None if self.episodes is None else self.episodes.numpy()
        return type(self), (self.folder, self._image_keys, chosen)

    def whole(self) -> DatasetStorage:
        """All episodes of the dataset."""
        return self if self.episodes is None else DatasetStorage(self.folder, self._image_keys)

    def _facts(self) -> dict[str, Any]:
        manifest = self.manifest
        cameras = [key for key in self.leaf_keys() if manifest.kinds.get(key) == "image"]
        told: dict[str, Any] = {"name": manifest.name, "split": manifest.split}
        told |= {"episodes": told_selection(self.episodes, self.manifest.episodes), "steps": self.rows}
        if cameras:
            told["cameras"] = showing.keys(
                [key for key in cameras if key in self._encoded or key in self._keys]
            )
        return {**told, "disk": showing.memory(sum(manifest.sizes().values())), "folder": str(self.folder)}
