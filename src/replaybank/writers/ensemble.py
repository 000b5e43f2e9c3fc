"""The writers of several buffers as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from replaybank import showing
from replaybank.storages.base import Storage
from replaybank.storages.indexing import pick
from replaybank.writers.base import Writer


class WriterEnsemble(Writer):
    """The writers of an ensemble of buffers. Data is written to its parts, not to it.

    Not thread-safe: the buffer's lock guards it.

    Args:
        writers: one a part.

    Example:
        >>> from replaybank.writers import RoundRobinWriter
        >>> ensemble = WriterEnsemble(RoundRobinWriter(), RoundRobinWriter())
        >>> len(ensemble), len(ensemble[:1])
        (2, 1)
    """

    def __init__(self, *writers: Writer) -> None:
        super().__init__()
        self._writers = writers

    @property
    def writers(self) -> tuple[Writer, ...]:
        """The parts."""
        return self._writers

    def register_storage(self, storage: Storage) -> None:
        """Nothing to do: each part has its own storage."""
        self._storage = storage

    @property
    def cursor(self) -> int:
        """There is none.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("An ensemble has a cursor a part: ensemble[i].cursor.")

    @property
    def write_count(self) -> int:
        """Rows ever written to all parts together."""
        return sum(writer.write_count for writer in self._writers)

    def add(self, data: Any) -> Any:
        """Refuse.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(_REFUSAL)

    def extend(self, data: Any) -> Tensor:
        """Refuse.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(_REFUSAL)

    def empty(self, empty_write_count: bool = True) -> None:
        """All storages were emptied."""
        for writer in self._writers:
            writer.empty(empty_write_count)

    def state_dict(self) -> dict[str, Any]:
        """The states of the parts."""
        return {"parts": [writer.state_dict() for writer in self._writers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over the states of as many parts, wholly or not at all.

        Raises:
            ValueError: of another number; nothing has been changed.
        """
        states = state_dict["parts"]
        if len(states) != len(self._writers):
            raise ValueError(f"The state is of {len(states)} writers, the ensemble has {len(self._writers)}.")
        before = [writer.state_dict() for writer in self._writers]
        try:
            for writer, state in zip(self._writers, states, strict=True):
                writer.load_state_dict(state)
        except BaseException:
            for writer, state in zip(self._writers, before, strict=True):
                writer.load_state_dict(state)
            raise

    def __len__(self) -> int:
        return len(self._writers)

    def __iter__(self) -> Iterator[Writer]:
        return iter(self._writers)

    def __getitem__(self, index: Any) -> Any:
        """The writer of a part, or an ensemble of several."""
        found = pick(index, len(self._writers), "Writer")
        if isinstance(found, int):
            return self._writers[found]
        return WriterEnsemble(*(self._writers[number] for number in found))

    def _facts(self) -> dict[str, Any]:
        return {"": showing.Parts(self._writers)}


_REFUSAL = "An ensemble is not written to: write to one of its buffers, ensemble[i].extend(data)."
