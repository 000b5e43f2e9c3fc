"""Whole trajectories as items: one padded row each, made when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import NonTensorStack, TensorDict
from torch import Tensor

from replaybank.datasets.openx.cut import ENTRY_MASK, texts
from replaybank.datasets.openx.nest import nest, unnest
from replaybank.datasets.openx.storage import DatasetStorage
from replaybank.storages.base import Batch, Storage
from replaybank.storages.indexing import Run
from replaybank.storages.layout import Key
from replaybank.storages.torch_indexing import checked

MASK = "mask"


class TrajectoryRows(Storage):
    """The episodes of a converted dataset, each an item ``[T_max]``.

    ``T_max`` is the length of the longest one. Behind the end of a shorter one all numbers are zero, texts
    empty, and ``"mask"`` is False. Nothing is stored twice: rows are gathered from the steps. Where some
    episodes lack an entry, ``("entry_mask", *key)`` says which steps have it.

    Reading is safe from any number of threads. Pickles as a path.

    Args:
        steps: the dataset.
    """

    def __init__(self, steps: DatasetStorage) -> None:
        super().__init__(len(steps.bounds), 1, torch.device("cpu"))
        self.steps = steps
        self.longest = int(steps.bounds[:, 1].max())
        """Steps of a row."""
        self.log.fill()

    @property
    def initialized(self) -> bool:
        """Always: what a step looks like stands in the manifest."""
        return True

    def _read_run(self, run: Run) -> TensorDict:
        return self._read_items(torch.arange(run.start, run.start + run.size).view(run.lead))

    def _read_items(self, items: Tensor) -> TensorDict:
        lead = items.shape
        numbers = checked(items.cpu(), self.rows).reshape(-1) % self.rows
        bounds = self.steps.bounds[numbers].tolist()
        data = self.steps.get(torch.cat([torch.arange(first, first + length) for first, length in bounds]))
        rows = self._padded(data, [length for _, length in bounds])
        if len(lead) == 1:
            return rows
        return rows.reshape(*lead, self.longest) if lead else rows[0]

    def _padded(self, data: TensorDict, lengths: list[int]) -> TensorDict:
        """Steps of episodes that lie end to end, as one row an episode."""
        lead = torch.Size((len(lengths), self.longest))
        entries: dict[Key, Any] = {}
        for key, value in unnest(data).items():
            if isinstance(value, Tensor):
                entries[key] = self._rows_of_numbers(value, lengths)
            else:
                entries[key] = self._rows_of_texts(value.tolist(), lengths)
        entries = {(ENTRY_MASK, *key[1:]) if key[0] == MASK else key: v for key, v in entries.items()}
        entries[MASK,] = torch.arange(self.longest) < torch.tensor(lengths)[:, None]
        return nest(entries, lead)

    def _rows_of_numbers(self, values: Tensor, lengths: list[int]) -> Tensor:
        rows = values.new_empty((len(lengths), self.longest, *values.shape[1:]))
        for row, part in zip(rows, values.split(lengths), strict=True):
            row[: len(part)] = part
            row[len(part) :] = 0
        return rows

    def _rows_of_texts(self, strings: list[str], lengths: list[int]) -> NonTensorStack:
        rows = []
        first = 0
        for length in lengths:
            rows.append(texts(strings[first : first + length] + [""] * (self.longest - length)))
            first += length
        return NonTensorStack(*rows)

    # --- what a read-only storage refuses --------------------------------------------------------------

    def prepare(self, data: Any, *, single: bool = False) -> Batch:
        """Refuses: the dataset is read-only."""
        return self.steps.prepare(data, single=single)

    def _part(self, batch: Batch, first: int, count: int) -> Batch:
        return self.steps._part(batch, first, count)

    def _store_run(self, start: int, batch: Batch, skip: int) -> None:
        self.steps._store_run(start, batch, skip)

    def _store_items(self, items: Run | Tensor, data: Any) -> None:
        self.steps._store_items(items, data)

    def empty(self) -> None:
        """Refuses: the dataset is read-only."""
        self.steps.empty()

    # --- state -----------------------------------------------------------------------------------------

    def leaf_keys(self) -> list[Key]:
        """Keys of the stored leaves of a step, and the mask."""
        return [*self.steps.leaf_keys(), (MASK,)]

    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        """Which dataset this is; the data stays where it is."""
        return self.steps.state_dict(copy=copy)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Check that a state is of this dataset.

        Raises:
            ValueError: it is of another one.
        """
        self.steps.load_state_dict(state_dict)

    def __reduce__(self) -> tuple[type[TrajectoryRows], tuple[DatasetStorage]]:
        return type(self), (self.steps,)

    def _facts(self) -> dict[str, Any]:
        return {"len": len(self), "longest": self.longest, "steps": self.steps}
