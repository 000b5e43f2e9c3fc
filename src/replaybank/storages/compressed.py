"""Compressed items of any shape."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from replaybank.storages.layout import DTYPES, Key, LeafSpec, RowLayout
from replaybank.storages.list import ListStorage
from replaybank.storages.log_states import check_log, moved_state
from replaybank.storages.structure import Structure, show

Codec = Callable[[bytes], bytes]
"""Bytes in, bytes out."""


class _Form(NamedTuple):
    """What items of one kind look like: how their leaves are put together, and what each of them is."""

    structure: Structure
    leaves: tuple[LeafSpec, ...]


class _Packed(NamedTuple):
    """A stored item."""

    form: _Form
    content: bytes


class CompressedListStorage(ListStorage):
    """Tensors, TensorDicts, tensorclasses and trees of tensors of any shape, each compressed for itself.

    ``get`` of several items gives a list. Items are compressed when they are written and decompressed when
    they are read: that takes some milliseconds a megabyte, so it is for data that is large and compresses
    well, like frames. By default with zstd: the standard library's from Python 3.14 on, else the package
    ``backports.zstd`` (the extra ``replaybank[zstd]``). The bytes of all leaves are compressed as one; no
    pickle is made or read.

    Not thread-safe: the buffer's lock guards it.

    Args:
        max_size: capacity.
        compression_fn: compresses bytes; instead of zstd.
        decompression_fn: undoes it.
        compression_level: of zstd, -7 (fast) to 22 (small).
        device: where items are put when they are read; None: the CPU.

    Raises:
        ImportError: zstd is asked for and not installed.
        ValueError: only one of the two functions is given.

    Example:
        >>> from zlib import compress, decompress
        >>> storage = CompressedListStorage(10, compression_fn=compress, decompression_fn=decompress)
        >>> storage.set(range(2), [torch.zeros(1000), torch.zeros(3, 500)])
        >>> storage[1].shape, storage.stored_bytes() < 100
        (torch.Size([3, 500]), True)
    """

    def __init__(
        self,
        max_size: int,
        *,
        compression_fn: Codec | None = None,
        decompression_fn: Codec | None = None,
        compression_level: int = 3,
        device: torch.device | str | None = None,
        compilable: bool = False,
    ) -> None:
        super().__init__(max_size, compilable=compilable)
        self._target = None if device is None else torch.device(device)
        if (compression_fn is None) != (decompression_fn is None):
            raise ValueError("Give compression_fn and decompression_fn, or neither: one must undo the other.")
        self.compression_level = compression_level
        self._functions = None
        if compression_fn is not None and decompression_fn is not None:
            self._functions = (compression_fn, decompression_fn)
        else:
            _zstd()
        self._forms: dict[Any, _Form] = {}

    def stored_bytes(self) -> int:
        """What the items take, compressed. O(N)."""
        return sum(len(item.content) for item in self._items if item is not None)

    # --- in and out ------------------------------------------------------------------------------------

    def _kept(self, items: list[Any]) -> list[Any]:
        return [self._pack(item) for item in items]

    def _pack(self, item: Any) -> _Packed:
        structure, leaves = Structure.of(item, 0)
        leaves = [leaf.detach().to("cpu").resolve_conj().resolve_neg().contiguous() for leaf in leaves]
        for key, leaf in zip(structure.keys, leaves, strict=True):
            if leaf.dtype not in _STORABLE or leaf.layout is not torch.strided:
                raise TypeError(
                    f"The tensor at {show(key)} has dtype {leaf.dtype} and layout {leaf.layout}: only dense "
                    "tensors of plain dtypes can be stored."
                )
        specs = tuple(
            LeafSpec(key, leaf.dtype, tuple(leaf.shape))
            for key, leaf in zip(structure.keys, leaves, strict=True)
        )
        content = b"".join(memoryview(_as_bytes(leaf).numpy()) for leaf in leaves)  # type: ignore[arg-type]
        return _Packed(self._form(structure, specs), self._compress(content))

    def _form(self, structure: Structure, leaves: tuple[LeafSpec, ...]) -> _Form:
        """The form of an item, one object for all items that have it."""
        key = (json.dumps(structure.to_json()), leaves)
        form = self._forms.get(key)
        if form is None:
            if len(self._forms) >= 2 * len(self._items) + _FEW_FORMS:  # forms of items long overwritten
                self._forms.clear()
            form = self._forms[key] = _Form(structure, leaves)
        return form

    def _given(self, kept: list[Any]) -> list[Any]:
        return [self._unpack(item) for item in kept]

    def _unpack(self, item: _Packed) -> Any:
        wanted = sum(leaf.bytes for leaf in item.form.leaves)
        content = self._decompress(item.content, wanted)
        if len(content) != wanted:
            raise ValueError(
                f"An item decompresses to {len(content)} bytes and should have {wanted}: decompression_fn "
                "does not undo compression_fn, or the item is damaged."
            )
        whole = torch.frombuffer(bytearray(content), dtype=torch.uint8) if wanted else torch.empty(0)
        leaves, at = [], 0
        for leaf in item.form.leaves:
            part = whole[at : at + leaf.bytes]
            at += leaf.bytes
            if not leaf.bytes:
                tensor = torch.empty(leaf.shape, dtype=leaf.dtype)
            elif part.storage_offset() % leaf.dtype.itemsize:
                tensor = part.clone().view(leaf.dtype).view(leaf.shape)
            else:
                tensor = part.view(leaf.dtype).view(leaf.shape)
            leaves.append(tensor if self._target is None else tensor.to(self._target))
        return item.form.structure.build(leaves, torch.Size(), self._target)

    def _compress(self, content: bytes) -> bytes:
        if self._functions is not None:
            return self._functions[0](content)
        packed: bytes = _zstd().compress(content, self.compression_level)
        return packed

    def _decompress(self, content: bytes, wanted: int) -> bytes:
        if self._functions is not None:
            return self._functions[1](content)
        # Bounded: a hostile state must not make a small item fill the memory.
        found: bytes = _zstd().ZstdDecompressor().decompress(content, wanted + 1)
        return found

    # --- state -----------------------------------------------------------------------------------------

    def state_dict(self, *, copy: bool = True) -> dict[str, Any]:
        """The state: the compressed items end to end, always copied, and their forms. O(bytes)."""
        items = self._items[: len(self)]
        forms: dict[int, int] = {}
        described: list[dict[str, Any]] = []
        for item in items:
            if id(item.form) not in forms:
                forms[id(item.form)] = len(described)
                leaves = RowLayout(item.form.leaves, [None] * len(item.form.leaves), 0).to_json()
                described.append({"structure": item.form.structure.to_json(), "leaves": leaves})
        content = b"".join(item.content for item in items)
        return {
            "log": self.log.state_dict(),
            "forms": described,
            "form": torch.tensor([forms[id(item.form)] for item in items], dtype=torch.int64),
            "sizes": torch.tensor([len(item.content) for item in items], dtype=torch.int64),
            "content": torch.frombuffer(bytearray(content), dtype=torch.uint8)
            if content
            else torch.empty(0, dtype=torch.uint8),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state; ``state_dict`` stays the caller's. O(bytes).

        Raises:
            ValueError: it is damaged, or holds more than there is room for; nothing has been changed.
        """
        sizes, numbers = state_dict["sizes"].tolist(), state_dict["form"].tolist()
        forms = []
        for entry in state_dict["forms"]:
            leaves = RowLayout.from_json(entry["leaves"]).leaves
            keys: list[Key] = [leaf.key for leaf in leaves]
            forms.append(self._form(Structure.from_json(entry["structure"], keys), leaves))
        content = memoryview(state_dict["content"].cpu().numpy())
        fits = len(sizes) == len(numbers) and sum(sizes) == len(content) and min(sizes, default=0) >= 0
        if not fits or any(not 0 <= number < len(forms) for number in numbers):
            raise ValueError("The state is damaged: its items do not match their sizes and forms.")
        log = state_dict["log"]
        check_log(log, len(sizes))
        items: list[Any] = []
        at = 0
        for size, number in zip(sizes, numbers, strict=True):
            items.append(_Packed(forms[number], bytes(content[at : at + size])))
            at += size
        move = self.move_of(state_dict)
        if move is not None:
            log, items = moved_state(log, move.rows, move.first), items[move.first :] + items[: move.first]
        self.log.load_state_dict(log)
        self._items = items


_STORABLE = frozenset(DTYPES.values())

_FEW_FORMS = 1024  # forms kept beyond those of the items there are: looking for unused ones costs O(N)


def _as_bytes(leaf: Tensor) -> Tensor:
    # A contiguous tensor may have any stride along a dimension of size 1; a view as bytes wants it to be 1.
    return leaf.as_strided((leaf.numel(),), (1,)).view(torch.uint8)


def _zstd() -> Any:
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        try:
            from backports import zstd
        except ImportError:
            raise ImportError(
                "Compressing with zstd needs Python 3.14 or the package backports.zstd: "
                "pip install 'replaybank[zstd]'. Or give compression_fn and decompression_fn."
            ) from None
    return zstd
