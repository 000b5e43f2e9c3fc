"""What stands for the storage of a stream, and the refusal of what only a stored dataset has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from replaybank.datasets.openx.sources.base import Key
from replaybank.storages.base import Batch, Storage
from replaybank.storages.indexing import Run


class StreamError(RuntimeError, TypeError):
    """Asked of a stream what only a stored dataset has.

    A TypeError too: Python takes that from ``__len__`` as: there is no length. So ``list(ds)`` works.
    """


def refusal(
    what: str,
    advice: str = "Download and store it to have that: pass download=True, or streaming=False for what is on "
    "disk.",
) -> StreamError:
    """The error for what a stream cannot do."""
    return StreamError(f"{what}: this dataset is streamed. {advice}")


def refuse_parts(**parts: Any) -> None:
    """Raise RuntimeError if something was given that only a stored dataset has."""
    for name, part in parts.items():
        if part is not None:
            raise RuntimeError(f"{name} is for a stored dataset: pass streaming=False, or leave {name} out")


class StreamedStorage(Storage):
    """Stands for the storage of a stream, which has none: it refuses everything.

    Safe in any thread.

    Args:
        leaves: keys of the entries of a step.
    """

    def __init__(self, leaves: Collection[Key]) -> None:
        super().__init__(1, 1, torch.device("cpu"))
        self._leaves = list(leaves)

    @property
    def initialized(self) -> bool:
        """Always: what a step looks like is known."""
        return True

    def leaf_keys(self) -> list[Key]:
        """Keys of the entries of a step."""
        return list(self._leaves)

    def __len__(self) -> int:
        raise refusal("The number of steps is not known")

    @property
    def shape(self) -> torch.Size:
        """Refuses: there is none."""
        raise refusal("The number of steps is not known")

    def get(self, index: Any) -> NoReturn:
        """Refuses: steps have no numbers."""
        raise refusal("Steps cannot be read by their number")

    def prepare(self, data: Any, *, single: bool = False) -> Batch:
        """Refuses: nothing can be written."""
        raise refusal("Nothing can be written")

    def _part(self, batch: Batch, first: int, count: int) -> Batch:
        raise refusal("Nothing can be written")

    def _store_run(self, start: int, batch: Batch, skip: int) -> None:
        raise refusal("Nothing can be written")

    def _store_items(self, items: Run | Tensor, data: Any) -> None:
        raise refusal("Nothing can be written")

    def _read_run(self, run: Run) -> NoReturn:
        raise refusal("Steps cannot be read by their number")

    def _read_items(self, items: Tensor) -> NoReturn:
        raise refusal("Steps cannot be read by their number")

    def empty(self) -> None:
        """Refuses: nothing is stored."""
        raise refusal("It cannot be emptied")

    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        """Nothing: where the stream stands is its sampler's state."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Nothing to take over."""

    def __reduce__(self) -> tuple[type[StreamedStorage], tuple[list[Key]]]:
        return type(self), (self._leaves,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
