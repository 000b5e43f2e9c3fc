"""A table some of whose leaves are images, kept as JPEG or PNG bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from replaybank.storages.arena import Arena
from replaybank.storages.batch_memory import BatchMemory
from replaybank.storages.blocks import BLOCK_PAYLOAD, ByteBlocks
from replaybank.storages.forms import BatchForms
from replaybank.storages.frames import EncodedFrames, frames_of
from replaybank.storages.layout import Key, LeafPlace, LeafSpec, RowLayout
from replaybank.storages.packed import PackedRows
from replaybank.storages.structure import show
from replaybank.storages.table import Leaf, Table, read, whole
from replaybank.storages.torch_indexing import checked

_LARGEST_RATIO = 1.5
"""No encoder makes more of pixels than this (noise as JPEG of quality 100 takes 1.3 times as much); files and
shared memory, which cannot grow, are made so large, and take room only as they are written."""


class _Column:
    """The images of one leaf."""

    def __init__(
        self, number: int, leaf: LeafSpec, frames: EncodedFrames, strings: ByteBlocks, places: Tensor
    ):
        self.number = number  # of the leaf
        self.leaf = leaf
        self.frames = frames
        self.strings = strings
        self.memory = BatchMemory()
        self.places = places  # int32 [items, 2]: number of the string, and its size; 0 where there is none

    def encode(self, images: Tensor) -> list[bytes]:
        return self.frames.encode_all(images.reshape(-1, *self.leaf.shape))

    def store(self, items: list[int], contents: list[bytes]) -> None:
        """Replace images; there is room for the new ones."""
        where = torch.tensor(items)
        old = self.places[where].tolist()
        # Referred to no more before they are freed: who is killed between has lost room, until it is mended,
        # and no two items ever share a string.
        self.places[where] = 0
        for string, size in old:
            if size:
                self.strings.free(string, size)
        new = [(self.strings.write(content), len(content)) for content in contents]
        self.places[where] = torch.tensor(new, dtype=torch.int32)

    def read(self, items: Tensor) -> Tensor:
        """Images ``[*items, *shape]`` of items that are there."""
        places = self.places[items.reshape(-1)].tolist()
        out = self.memory.any_size((len(places), *self.leaf.shape), torch.uint8)
        self.frames.decode_all(lambda k: self.strings.read(*places[k]), out)
        return out.view(*items.shape, *self.leaf.shape)


class EncodedTable:
    """A table whose images are kept as bytes: encoded when written, decoded when read.

    The bytes of the images lie in blocks (:class:`~replaybank.storages.blocks.ByteBlocks`), the other leaves
    in a table of any kind.

    Not thread-safe: the buffer's lock guards it. Shareable between processes where its buffers are.

    Args:
        layout: all leaves.
        inner: the table of the others, in their order.
        columns: the images.
    """

    def __init__(self, layout: RowLayout, inner: Table, columns: Sequence[_Column]) -> None:
        self.layout = layout
        self._inner = inner
        self._columns = list(columns)
        self.dims, self.items, self.device = inner.dims, inner.items, inner.device
        encoded = {column.number for column in columns}
        self._others = [number for number in range(len(layout.leaves)) if number not in encoded]
        self._forms = BatchForms(layout.leaves, inner.device, native=True)
        self._width = self.items // self.dims[0]

    @classmethod
    def allocate(
        cls,
        layout: RowLayout,
        inner: Table,
        frames: Mapping[Key, EncodedFrames],
        arena: Arena,
        *,
        grows: bool,
        fresh: bool,
    ) -> EncodedTable:
        """Take buffers for the images. O(leaves).

        Args:
            layout: all leaves.
            inner: the table of the others.
            frames: how images are kept, by key.
            arena: where buffers come from.
            grows: more may be taken later.
            fresh: nothing has been written.
        """
        columns = []
        for number, leaf in enumerate(layout.leaves):
            how = frames.get(leaf.key)
            if how is None:
                continue
            most = inner.items * (int(leaf.bytes * _LARGEST_RATIO) // BLOCK_PAYLOAD + 4)
            strings = ByteBlocks.allocate(arena, f"frames-{number}", most, grows=grows, fresh=fresh)
            places = arena.take(f"frames-{number}-places", inner.items * 8, zero=True)
            if fresh and not grows:
                places.zero_()  # files that are used again may hold anything
            columns.append(_Column(number, leaf, how, strings, places.view(torch.int32).view(-1, 2)))
        return cls(layout, inner, columns)

    @property
    def stored_layout(self) -> RowLayout:
        """Where the leaves lie that are no images."""
        return self._inner.stored_layout

    def taken_bytes(self, items: int) -> int:
        """Bytes of the other leaves, and the most that the encoded images ever took. O(cameras)."""
        images = sum(column.strings.taken_bytes + 8 * items for column in self._columns)
        return self._inner.taken_bytes(items) + images

    # --- reading ---------------------------------------------------------------------------------------

    def _joined(self, others: Sequence[Any], images: Sequence[Any]) -> list[Any]:
        leaves: list[Any] = [None] * len(self.layout.leaves)
        for number, leaf in zip(self._others, others, strict=True):
            leaves[number] = leaf
        for column, leaf in zip(self._columns, images, strict=True):
            leaves[column.number] = leaf
        return leaves

    def gather(self, index: Tensor, valid: int) -> list[Tensor]:
        """Copies of items, images decoded; see :meth:`Table.gather`."""
        index = checked(index.to("cpu"), valid)
        return self._joined(
            self._inner.gather(index, valid), [column.read(index) for column in self._columns]
        )

    def gather_leaves(self, numbers: Sequence[int], index: Tensor, valid: int) -> list[Tensor]:
        """Copies of some leaves of items; see :meth:`Table.gather_leaves`. An image is decoded once."""
        index = checked(index.to("cpu"), valid)
        columns = {column.number: column for column in self._columns}
        others = [number for number in numbers if number not in columns]
        found: dict[int, Tensor] = {}
        if others:
            places = [self._others.index(number) for number in others]
            found.update(zip(others, self._inner.gather_leaves(places, index, valid), strict=True))
        if len(others) < len(numbers):
            once, place = torch.unique(index, return_inverse=True)
            repeated = once.numel() < index.numel()
            for number in numbers:
                if number in columns:
                    images = columns[number].read(once if repeated else index)
                    found[number] = images[place] if repeated else images
        return [found[number] for number in numbers]

    def items_of(self, number: int) -> LeafPlace | None:
        """Where a leaf of all items lies that is no image. See :meth:`Table.items_of`."""
        return self._inner.items_of(self._others.index(number)) if number in self._others else None

    def gather_run(self, start: int, count: int, lead: tuple[int, ...]) -> list[Tensor]:
        """Copies of items ``start, start + 1, ...``; see :meth:`Table.gather_run`."""
        items = torch.arange(start, start + count).view(lead)
        return self._joined(
            self._inner.gather_run(start, count, lead), [column.read(items) for column in self._columns]
        )

    def read(self, number: int, rows: Tensor | slice, length: int) -> Tensor:
        """One leaf of some of the first ``length`` rows; see :meth:`Table.read`."""
        if number in self._others:
            return self._inner.read(self._others.index(number), rows, length)
        if isinstance(rows, slice):
            rows = torch.arange(*rows.indices(length))
        rows = checked(rows.to("cpu"), length)
        items = rows.reshape(-1, 1) * self._width + torch.arange(self._width)
        column = next(column for column in self._columns if column.number == number)
        return column.read(items.view(-1, *self.dims[1:]))

    def valid_views(self, length: int) -> list[Tensor]:
        """Refused: images do not lie as they are read.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            "Encoded images lie nowhere as they are read, so there is no view of the items: use storage[:], "
            "a copy, or read_leaf(key, slice) for a single leaf."
        )

    # --- writing ---------------------------------------------------------------------------------------

    def fit(self, values: list[Any], lead: tuple[int, ...]) -> list[Tensor]:
        """Leaves as they can be stored; see :meth:`Table.fit`."""
        return self._forms.fit(values, lead)

    def scatter_run(self, start: int, count: int, leaves: list[Tensor]) -> None:
        """Write the items ``start, start + 1, ...`` modulo their number. O(count * pixels).

        Raises:
            MemoryError, OSError: there is no room for the images; nothing has been written.
        """
        contents = self._encoded(leaves)
        items = [(start + k) % self.items for k in range(count)]
        self._inner.scatter_run(start, count, [leaves[number] for number in self._others])
        for column, content in zip(self._columns, contents, strict=True):
            column.store(items, content)

    def scatter(self, index: Tensor, leaves: list[Tensor], valid: int) -> None:
        """Write items; of repeated ones the last wins. O(count * pixels).

        Raises:
            IndexError: an index is out of range; nothing has been written.
            MemoryError, OSError: there is no room for the images; nothing has been written.
        """
        items = checked(index.reshape(-1), valid).tolist()
        contents = self._encoded(leaves)
        self._inner.scatter(index, [leaves[number] for number in self._others], valid)
        last = {item: k for k, item in enumerate(items)}
        for column, content in zip(self._columns, contents, strict=True):
            column.store(list(last), [content[k] for k in last.values()])

    def _encoded(self, leaves: list[Tensor]) -> list[list[bytes]]:
        contents = [column.encode(leaves[column.number]) for column in self._columns]
        for column, content in zip(self._columns, contents, strict=True):
            column.strings.make_room([len(one) for one in content])
        return contents

    def with_columns(self, leaves: Sequence[LeafSpec], arena: Arena) -> EncodedTable:
        """The table with more leaves, zero everywhere."""
        layout = RowLayout(
            (*self.layout.leaves, *leaves), [None] * (len(self.layout.leaves) + len(leaves)), 0
        )
        return EncodedTable(layout, self._inner.with_columns(leaves, arena), self._columns)

    def clear(self) -> None:
        """Nothing is written any more. O(N), 8 bytes an image."""
        self._inner.clear()
        for column in self._columns:
            column.strings.clear()
            column.places.zero_()

    def mend(self, torn: Tensor, valid: int) -> None:
        """See :meth:`Table.mend`: which blocks are free is found out from the images that there are. O(N)."""
        self._inner.mend(torn, valid)
        for column in self._columns:
            column.places[torn] = 0
            column.places[valid:] = 0
            there = column.places[column.places[:, 1] > 0].to(torch.int64)
            column.strings.keep_only(there[:, 0], there[:, 1])

    # --- state -----------------------------------------------------------------------------------------

    def dump(self, count: int, lead: tuple[int, ...], *, copy: bool = True) -> dict[str, Any]:
        """The first ``count`` items, images as bytes; see :meth:`Table.dump`."""
        state = self._inner.dump(count, lead, copy=copy)
        images = []
        for column in self._columns:
            contents = [column.strings.read(*place) for place in column.places[:count].tolist()]
            joined = bytearray(b"".join(contents))
            images.append(
                {
                    "leaf": column.number,
                    "format": column.frames.format,
                    "quality": column.frames.quality,
                    "channels_first": column.frames.channels_first,
                    "shape": list(column.leaf.shape),
                    "sizes": torch.tensor([len(one) for one in contents], dtype=torch.int64),
                    "content": torch.frombuffer(joined, dtype=torch.uint8)
                    if joined
                    else torch.empty(0, dtype=torch.uint8),
                }
            )
        out = {**state, "data": self._joined(state["data"], [None] * len(images)), "frames": images}
        if "next" in state:
            links = [
                [self._others[number], self._others[source]] for number, source in state["next"]["links"]
            ]
            out["next"] = {**state["next"], "links": links}
        return out

    def packed(self, lead: tuple[int, ...]) -> PackedRows | None:
        """The rows of the other leaves; see :meth:`Table.packed`."""
        packed = self._inner.packed(lead)
        return None if packed is None else packed.renumbered(self._others)

    def load(self, data: Sequence[Leaf | None], state: Mapping[str, Any], dims: tuple[int, ...]) -> None:
        """Take over a dump; see :meth:`Table.load`. O(items * bytes)."""
        count = torch.Size(dims).numel()
        entries = {entry["leaf"]: entry for entry in state.get("frames", ())}
        if set(entries) != {column.number for column in self._columns} or any(
            tuple(entries[column.number]["shape"]) != column.leaf.shape
            or entries[column.number]["channels_first"] != column.frames.channels_first
            for column in self._columns
        ):
            leaves = self.fit(whole(read(data), state, dims, self.items), dims)
            contents = self._encoded(leaves)
            others: list[Leaf | None] = [leaves[number] for number in self._others]
            self._take_over(others, {}, dims, contents)
            return
        contents = [frames_of(entries[column.number], count)[1] for column in self._columns]
        inner: dict[str, Any] = {}
        if "next" in state:
            mine = {number: at for at, number in enumerate(self._others)}
            if not all(link in mine for pair in state["next"]["links"] for link in pair):
                raise ValueError("The state is damaged: next observations among its images.")
            links = [[mine[number], mine[source]] for number, source in state["next"]["links"]]
            inner["next"] = {**state["next"], "links": links}
        for column, content in zip(self._columns, contents, strict=True):
            column.strings.make_room([len(one) for one in content])
        self._take_over([data[number] for number in self._others], inner, dims, contents)

    def _take_over(
        self,
        others: list[Leaf | None],
        state: Mapping[str, Any],
        dims: tuple[int, ...],
        contents: list[list[bytes]],
    ) -> None:
        self._inner.load(others, state, dims)
        for column, content in zip(self._columns, contents, strict=True):
            column.strings.clear()
            column.places.zero_()
            if content:
                column.store(list(range(len(content))), content)


def check_encoded(specs: Sequence[LeafSpec], frames: Mapping[Key, EncodedFrames]) -> None:
    """Raise ValueError unless the leaves are images where they are to be encoded."""
    by_key = {spec.key: spec for spec in specs}
    for key, how in frames.items():
        if key not in by_key:
            raise ValueError(
                f"encoded={show(key)}: there is no such entry in the data, there are {list(by_key)}. Nothing "
                "has been written."
            )
        how.check(by_key[key])
