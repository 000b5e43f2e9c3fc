"""Items on disk, mapped into memory."""

from __future__ import annotations

import json
import os
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from replaybank.storages.frames import EncodedFrames
from replaybank.storages.layout import LeafSpec
from replaybank.storages.lazy_tensor import LazyTensorStorage
from replaybank.storages.scratch import FileArena, ScratchFolder
from replaybank.storages.table import Table

_LAYOUT_FILE = "layout.json"


class LazyMemmapStorage(LazyTensorStorage):
    """Items in files that are mapped into memory, made at the first write from what is written.

    The folder holds ``rows.bin`` (the small leaves of an item side by side), ``column-<n>.bin`` (a large
    leaf each) and ``layout.json``, which says what lies where
    (:class:`~replaybank.storages.layout.RowLayout`). Their room on the disk is reserved when they
    are made, so that a disk that others fill up is an error then and no killed process later; where the file
    system cannot reserve, they take it as they are written. Ask for no more items than are to be kept.
    Pickling sends the path, not the data: the copy maps the same files, with the write log
    as it was.

    Not thread-safe: the buffer's lock guards it. Processes that share it need ``shared_init`` for the log.

    Args:
        max_size: capacity in items, over all dimensions; rounded up to whole rows of columns.
        scratch_dir: folder for the files; made if it is not there. By default a temporary one.
        device: only the CPU.
        ndim: number of batch dimensions.
        existsok: files of this layout and size that are in ``scratch_dir`` may be used; their content counts
            as not written. Otherwise they are an error.
        shared_init: keep the write log in shared memory.
        auto_cleanup: remove the files when the last user goes; by default for a temporary folder only, where
            it works across processes and, at the next use, after a crash (see
            :class:`~replaybank.storages.scratch.ScratchFolder`). In a given folder the maker removes its own
            files.
        compilable: see :class:`~replaybank.storages.base.Storage`.
        next_observation: see :class:`LazyTensorStorage`.
        encoded: see :class:`LazyTensorStorage`.

    Raises:
        ValueError: another device than the CPU.
        OSError: at the first write: more is asked for than is free on the disk.

    Example:
        >>> storage = LazyMemmapStorage(1000)
        >>> storage.set(range(3), {"x": torch.arange(3)})
        >>> storage[-1]
        {'x': tensor(2)}
        >>> storage.cleanup()
    """

    def __init__(
        self,
        max_size: int,
        *,
        scratch_dir: str | os.PathLike[str] | None = None,
        device: torch.device | str = "cpu",
        ndim: int = 1,
        existsok: bool = False,
        shared_init: bool = False,
        auto_cleanup: bool | None = None,
        compilable: bool = False,
        next_observation: str | None = None,
        encoded: Mapping[Any, EncodedFrames] | None = None,
    ) -> None:
        if torch.device("cpu" if device == "auto" else device).type != "cpu":
            raise ValueError(
                f"Files are mapped into the CPU's memory, not onto device={str(device)!r}: use device='cpu' "
                "and move batches, or LazyTensorStorage(device=...)."
            )
        super().__init__(
            max_size,
            device="cpu",
            ndim=ndim,
            shared_init=shared_init,
            compilable=compilable,
            next_observation=next_observation,
            encoded=encoded,
        )
        self.scratch_dir = None if scratch_dir is None else Path(scratch_dir)
        self.existsok = existsok
        self.auto_cleanup = scratch_dir is None if auto_cleanup is None else auto_cleanup
        self._scratch: ScratchFolder | None = None
        self._files: list[Path] = []
        self._remover: weakref.finalize[[list[Path], int], LazyMemmapStorage] | None = None

    @property
    def folder(self) -> Path | None:
        """Where the files are; None before the first write to a temporary folder."""
        return self.scratch_dir if self._scratch is None else self._scratch.path

    def _allocate(self, specs: list[LeafSpec], dims: tuple[int, ...], device: torch.device) -> Table:
        layout = self._plan(specs, device)
        if self.scratch_dir is not None:
            folder = self.scratch_dir
            folder.mkdir(parents=True, exist_ok=True)
        elif self.auto_cleanup:
            self._scratch = ScratchFolder.temporary()
            folder = self._scratch.path
        else:
            folder = self.scratch_dir = Path(tempfile.mkdtemp(prefix="replaybank-kept-"))
        arena = FileArena(folder, "reuse" if self.existsok else "create")
        description: dict[str, Any] = {"layout": layout.to_json(), "dims": list(dims)}
        if self.next_observation is not None:
            description["next_observation"] = self.next_observation
        if self.encoded:
            description["encoded"] = [[list(key), asdict(how)] for key, how in self.encoded.items()]
        try:
            self._describe(folder / _LAYOUT_FILE, description, arena)
            table = self._table_in(arena, specs, layout, dims, device, fresh=True)
        except BaseException:
            arena.undo()
            if self._scratch is not None:
                self._scratch.leave()
                self._scratch = None
            raise
        if self._scratch is None:
            self._files = list(arena.created)
            if self.auto_cleanup:
                self._remover = weakref.finalize(self, _remove, self._files, os.getpid())
        return table

    def _describe(self, path: Path, description: dict[str, Any], arena: FileArena) -> None:
        """Write what lies where, or compare it with what is there."""
        try:
            with path.open("x") as file:
                arena.created.append(path)
                json.dump(description, file)
        except FileExistsError:
            if not self.existsok:
                raise FileExistsError(
                    f"{path} exists: the folder is another storage's. To use its files, pass existsok=True; "
                    "else choose another folder."
                ) from None
            if json.loads(path.read_text()) != description:
                raise ValueError(
                    f"{path} describes other items or another size. Choose another folder, or remove it."
                ) from None

    def _widen(self, table: Table, specs: list[LeafSpec]) -> Table:
        raise ValueError(
            f"New keys {[spec.key for spec in specs]}: the files of a memory-mapped storage are made once. "
            "Write all keys with the first items. Nothing has been written."
        )

    def _drop(self, table: Table) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        """Give the files up and remove those that nobody else uses; the storage is as new.

        Copies of it in a given ``scratch_dir`` must not be used any more.
        """
        self._table = self._structure = None
        self.log.clear()
        if self._scratch is not None:
            self._scratch.leave()
            self._scratch = None
        if self._remover is not None:
            self._remover.detach()
            self._remover = None
        _remove(self._files, os.getpid())
        self._files = []

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        table = state.pop("_table")
        state["_opened"] = (
            None if table is None else (table.layout.leaves, table.stored_layout, tuple(table.dims))
        )
        state["_scratch"] = None if self._scratch is None else self._scratch.path
        state["_files"], state["_remover"] = [], None  # the maker's to remove
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        opened, path = state.pop("_opened"), state.pop("_scratch")
        vars(self).update(state, _table=None, _scratch=None)
        if path is not None:
            self._scratch = ScratchFolder(path)
        if opened is not None:
            specs, layout, dims = opened
            folder = self.folder
            if folder is None:
                raise ValueError("The pickled storage names no folder.")
            arena = FileArena(folder, "open")
            self._table = self._table_in(arena, specs, layout, dims, torch.device("cpu"), fresh=False)

    def _facts(self) -> dict[str, Any]:
        told = super()._facts()
        told["disk"] = told.pop("memory")
        folder = self.folder
        return told if folder is None else {**told, "folder": str(folder)}


def _remove(files: Iterable[Path], process: int) -> None:
    if os.getpid() == process:  # not in a forked child
        for path in files:
            path.unlink(missing_ok=True)
