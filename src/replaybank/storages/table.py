"""What a storage asks of what keeps its items: rows in, rows out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from replaybank.checkpoint import StoredField, StoredRows
from replaybank.storages.arena import Arena
from replaybank.storages.frames import decoded_again
from replaybank.storages.layout import LeafPlace, LeafSpec, RowLayout
from replaybank.storages.next_state import made_again
from replaybank.storages.packed import PackedRows

Leaf: TypeAlias = "Tensor | StoredRows | StoredField"
"""A leaf of a state: in memory, or in a checkpoint's files."""


class Table(Protocol):
    """The items of a storage, leaf by leaf: in and out by number, in C order over ``dims``.

    What a table gives and takes are the leaves of its ``layout``; how it keeps them is its own affair.
    """

    layout: RowLayout
    dims: torch.Size
    items: int
    device: torch.device

    @property
    def stored_layout(self) -> RowLayout:
        """Where the leaves lie that are kept as they are."""
        ...

    def taken_bytes(self, items: int) -> int:
        """Bytes that the first ``items`` items take, which are those that have been written."""
        ...

    def gather(self, index: Tensor, valid: int) -> list[Tensor]:
        """Copies of the items ``index``, each in ``[-valid, valid)``; raises IndexError."""
        ...

    def gather_leaves(self, numbers: Sequence[int], index: Tensor, valid: int) -> list[Tensor]:
        """The same of some leaves, by their numbers."""
        ...

    def items_of(self, number: int) -> LeafPlace | None:
        """Where a leaf of all items lies, numbered over all dimensions; None where kernels cannot read it."""
        ...

    def gather_run(self, start: int, count: int, lead: tuple[int, ...]) -> list[Tensor]:
        """Copies of items ``start, start + 1, ...``, shaped ``[*lead, *shape]``."""
        ...

    def read(self, number: int, rows: Tensor | slice, length: int) -> Tensor:
        """One leaf of some of the first ``length`` rows, perhaps a view."""
        ...

    def valid_views(self, length: int) -> list[Tensor]:
        """The first ``length`` rows themselves; RuntimeError where they do not lie as they are read."""
        ...

    def fit(self, values: list[Any], lead: tuple[int, ...]) -> list[Tensor]:
        """Leaves as they can be stored; ValueError or TypeError if they cannot."""
        ...

    def scatter(self, index: Tensor, leaves: list[Tensor], valid: int) -> None:
        """Write the items ``index``; raises IndexError."""
        ...

    def scatter_run(self, start: int, count: int, leaves: list[Tensor]) -> None:
        """Write the items ``start, start + 1, ...`` modulo their number."""
        ...

    def with_columns(self, leaves: Sequence[LeafSpec], arena: Arena) -> Table:
        """The table with more leaves, zero everywhere."""
        ...

    def clear(self) -> None:
        """Forget all items."""
        ...

    def mend(self, torn: Tensor, valid: int) -> None:
        """Put bookkeeping right that a broken-off write may have left half done. O(N).

        Args:
            torn: int64 ``[k]``, items whose content is to be counted as nothing.
            valid: number of items; what lies beyond counts as nothing too.
        """
        ...

    def dump(self, count: int, lead: tuple[int, ...], *, copy: bool = True) -> dict[str, Any]:
        """The first ``count`` items for a state: ``"data"``, a leaf each, and what else it takes.

        Without ``copy`` the leaves may be views.
        """
        ...

    def packed(self, lead: tuple[int, ...]) -> PackedRows | None:
        """The rows of the first ``prod(lead)`` items, if leaves lie in rows that may be saved as they are."""
        ...

    def load(self, data: Sequence[Leaf | None], state: Mapping[str, Any], dims: tuple[int, ...]) -> None:
        """Take over what the ``dump`` of any table left.

        Args:
            data: its leaves in this table's order.
            state: the dump, with numbers in this table's order.
            dims: shape of the items, ``[length, *columns]``.

        Raises:
            ValueError: it does not fit; nothing has been changed.
        """
        ...


def read(data: Sequence[Leaf | None]) -> list[Tensor | None]:
    """The leaves of a dump in memory."""
    return [leaf if leaf is None or isinstance(leaf, Tensor) else leaf.read() for leaf in data]


def whole(
    data: Sequence[Tensor | None], state: Mapping[str, Any], dims: tuple[int, ...], items: int
) -> list[Tensor]:
    """All leaves of a dump as plain tensors, those that it keeps in some other form made.

    Args:
        data: the leaves ``[*dims, *shape]``, None where they are kept otherwise.
        state: the dump.
        dims: shape of the items.
        items: number of items that the table had room for.

    Raises:
        ValueError: the dump is damaged.
    """
    leaves = list(data)
    if "next" in state:
        made_again(leaves, state["next"], dims, items)
    if "frames" in state:
        decoded_again(leaves, state["frames"], dims)
    found = [leaf for leaf in leaves if leaf is not None]
    if len(found) < len(leaves):
        raise ValueError("The state is damaged: it lacks leaves.")
    return found
