"""A changed copy of a dataset: a function applied to every episode, in parallel, restartable."""

from __future__ import annotations

import math
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDictBase, is_tensor_collection
from torch import Tensor

from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.files import CHECKSUMS, Manifest, read_manifest
from replaybank.datasets.openx.sources.base import Episode, FieldSpec, Key, Shard
from replaybank.datasets.openx.sources.images import encode_frame
from replaybank.datasets.openx.storage import DatasetStorage
from replaybank.errors import DataFormatError

Change = Callable[[TensorDictBase], "TensorDictBase | None"]

JPEG_QUALITY = 95
"""Of frames that are encoded anew: what robot datasets are published with."""

_AHEAD = 2  # episodes that are being worked on or waiting, for each process
_IMPLIED = frozenset({"done", "terminated", "truncated", "is_init", "episode", "step", "mask", "index"})
_IMPLIED_NEXT = frozenset({"observation", "valid", "done", "truncated"})


def preprocess(
    source: str | os.PathLike[str],
    fn: Change,
    dest: str | os.PathLike[str],
    *,
    num_workers: int | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
    images: Literal["raw", "encoded"] = "raw",
    mp_start_method: str | None = None,
) -> Manifest:
    """Make a changed copy of a converted dataset. Killed at any instant, the same call goes on.

    ``fn`` is given each episode, a TensorDict ``[T]`` in TED layout, and returns the one to be stored, of any
    length and with any entries, alike in all episodes but for their length; or None, and the episode is left
    out. What follows from the rest is made anew: ``("next", "observation")``, ``("next", "done")``, ``done``,
    ``episode``, ``step``, ``is_init``; ``("next", "reward")`` and ``("next", "terminated")`` (of the last
    step) are kept. So is what the origin says of each episode as a whole, and the names of classes and
    numbers, where an entry still has such.

    Args:
        source: folder of a converted dataset.
        fn: the change. It must give the same each time; to go on with another one is not noticed.
        dest: folder to write to, as for :func:`~replaybank.convert`.
        num_workers: processes that run ``fn``; 0 runs it here, by default one a core.
        overwrite: replace what is in ``dest``.
        progress: show a progress bar; by default where the error output is a terminal.
        images: as for :func:`~replaybank.convert`; with ``"encoded"`` frames are encoded anew, uint8 ones of
            one or three channels as JPEG of quality 95.
        mp_start_method: how processes start; by default as Python does here. With ``"spawn"``, ``fn`` must be
            importable.

    Returns:
        What the new dataset holds.

    Raises:
        RuntimeError: ``fn`` failed; names the episode, with its error as the cause.
        DataFormatError: what ``fn`` gives is no episode, or not like that of other episodes.
        ValueError, FileExistsError: as for :func:`~replaybank.convert`.
    """
    folder = Path(source)
    manifest = read_manifest(folder)
    if num_workers is None:
        num_workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if num_workers < 0:
        raise ValueError(f"num_workers={num_workers}: give 0 to work here, or a number of processes")
    changed = ChangedEpisodes(folder, manifest, fn, num_workers, mp_start_method)
    try:
        # One thread: frames are decoded by who runs fn, and processes are not to be forked beside threads.
        return convert(changed, dest, overwrite=overwrite, progress=progress, images=images, num_workers=1)
    finally:
        changed.close()


class ChangedEpisodes:
    """The episodes of a converted dataset with a function applied, as a source. Not thread-safe.

    Args:
        folder: of the dataset.
        manifest: what it holds.
        fn: the change.
        workers: processes that run it; 0: none.
        start_method: how they start.
    """

    def __init__(
        self, folder: Path, manifest: Manifest, fn: Change, workers: int, start_method: str | None
    ) -> None:
        self.name = manifest.name
        self.split = manifest.split
        # What tells this copy from those of other content or by other functions, as far as that can be told.
        made_by = getattr(fn, "__qualname__", type(fn).__qualname__)
        self.version = f"{made_by} of {manifest.steps} steps {manifest.checksums.get(CHECKSUMS, 0):08x}"
        self.metadata_fields: Mapping[Key, FieldSpec] = {
            key: FieldSpec("tensor", (), np.dtype(np.int64), labels=labels)
            for key, labels in manifest.metadata_label_names.items()
        }
        """Fields of whole episodes whose numbers have names; those of an episode are as they were."""
        self._folder = folder
        self._fn = fn
        self._shards = manifest.shards
        self._pool = (
            ProcessPoolExecutor(
                workers, multiprocessing.get_context(start_method), _prepare_worker, (folder, fn)
            )
            if workers
            else None
        )
        self._ahead = _AHEAD * workers
        try:
            self.fields: Mapping[Key, FieldSpec] = self._fields(manifest)
        except BaseException:
            self.close()
            raise

    def _fields(self, manifest: Manifest) -> dict[Key, FieldSpec]:
        """What the first episode that is kept looks like."""
        cameras = {key for key, kind in manifest.kinds.items() if kind == "image"}
        for number in range(manifest.episodes):
            columns = changed_episode(self._folder, self._fn, number)
            if columns is not None:
                return {
                    key: _named(key, _spec(column, key in cameras), manifest)
                    for key, column in columns.items()
                }
        raise DataFormatError(f"{self.name}: fn leaves out all {manifest.episodes} episodes")

    def shards(self) -> Sequence[Shard]:
        """The shards that the dataset was converted from."""
        return [
            Shard(number, str(self._folder / shard.name), None) for number, shard in enumerate(self._shards)
        ]

    def episodes(self, shard: Shard, start: int = 0) -> Iterator[Episode]:
        """Changed episodes of one shard."""
        first = sum(done.episodes for done in self._shards[: shard.number])
        numbers = range(first + start, first + self._shards[shard.number].episodes)
        for number, columns in zip(numbers, self._changed(numbers), strict=True):
            if columns is None:
                continue
            steps: dict[Key, Any] = {
                key: _Frames(column) if self._is_camera(key, column) else column
                for key, column in columns.items()
            }
            length = len(next(iter(columns.values())))
            missing = frozenset(self.fields) - frozenset(columns)
            extra = frozenset(columns) - frozenset(self.fields)
            if extra:
                raise DataFormatError(
                    f"{self.name}: episode {number}: fn gives {sorted(extra)}, which the first episode does "
                    f"not have; it has {sorted(self.fields)}"
                )
            metadata = _opened(self._folder, os.getpid()).metadata(number)
            del metadata["where"]  # this copy has its own
            yield Episode(steps, length, f"{self.name} episode {number}", metadata, missing=missing)

    def _is_camera(self, key: Key, column: Any) -> bool:
        spec = self.fields.get(key)
        return spec is not None and spec.kind == "image" and isinstance(column, np.ndarray)

    def _changed(self, numbers: range) -> Iterator[dict[Key, Any] | None]:
        if self._pool is None:
            for number in numbers:
                yield changed_episode(self._folder, self._fn, number)
            return
        waiting: deque[Future[dict[Key, Any] | None]] = deque()
        for number in numbers:
            waiting.append(self._pool.submit(_changed_by_worker, number))
            if len(waiting) > self._ahead:
                yield self._result(waiting.popleft())
        while waiting:
            yield self._result(waiting.popleft())

    def _result(self, future: Future[dict[Key, Any] | None]) -> dict[Key, Any] | None:
        try:
            return future.result()
        except BrokenProcessPool as error:
            raise RuntimeError(
                "a process that ran fn ended without a word: it was killed, perhaps for want of memory; "
                "the same call goes on"
            ) from error

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


class _Frames:
    """Frames of one camera that are there already, ``[T, C, H, W]``."""

    def __init__(self, frames: npt.NDArray[Any]) -> None:
        self._frames = frames

    def __len__(self) -> int:
        return len(self._frames)

    def encoded(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        """Frames ``start`` to ``stop`` encoded anew."""
        return [encode_frame(frame.transpose(1, 2, 0), *_form(frame)) for frame in self._frames[start:stop]]

    def decode(self, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """The frames, channels last."""
        return self._frames[start:stop].transpose(0, 2, 3, 1)


def _form(frame: npt.NDArray[Any]) -> tuple[str, int]:
    return ("jpeg" if frame.dtype == np.uint8 and len(frame) in (1, 3) else "png"), JPEG_QUALITY


def _spec(column: Any, camera: bool) -> FieldSpec:
    if isinstance(column, list):
        return FieldSpec("text", (), None)
    shape = column.shape[1:]
    if camera and len(shape) == 3:
        channels, height, width = shape
        return FieldSpec("image", (height, width, channels), column.dtype)
    return FieldSpec("tensor", shape, column.dtype)


def _named(key: Key, spec: FieldSpec, manifest: Manifest) -> FieldSpec:
    """A field with the names that it had before, as far as its dtype and shape still bear them."""
    labels, names = manifest.label_names.get(key, ()), manifest.dim_names.get(key, ())
    whole = spec.kind == "tensor" and spec.dtype is not None and spec.dtype.kind in "iu"
    as_many = spec.kind == "tensor" and len(spec.shape) < 2 and math.prod(spec.shape) == len(names)
    return replace(spec, labels=labels if whole else (), names=names if as_many else ())


# --- in the processes ------------------------------------------------------------------------------------


_task: tuple[Path, Change] | None = None  # of this process: what is sent to it with each episode is a number


def _prepare_worker(folder: Path, fn: Change) -> None:
    global _task
    _task = folder, fn
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    torch.set_num_threads(1)  # one core each; and threads that the parent had are gone after a fork


def _end_with_the_parent() -> None:
    """A process of a pool does not notice by itself that its parent was killed, and would wait forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _changed_by_worker(number: int) -> dict[Key, Any] | None:
    if _task is None:
        raise RuntimeError("this process was not prepared")
    return changed_episode(*_task, number)


@lru_cache(maxsize=1)
def _opened(folder: Path, process: int) -> DatasetStorage:
    return DatasetStorage(folder)


def changed_episode(folder: Path, fn: Change, number: int) -> dict[Key, Any] | None:
    """One changed episode as arrays and lists of strings by key, reward and end named as in RLDS.

    Raises:
        RuntimeError: ``fn`` failed.
        DataFormatError: what it gave is no episode.
    """
    dataset = _opened(folder, os.getpid())
    first, length = dataset.bounds[number].tolist()
    where = f"{dataset.manifest.name}: episode {number}"
    episode = dataset[first : first + length]
    try:
        changed = fn(episode)
    except Exception as error:
        raise RuntimeError(f"{where}: fn failed: {type(error).__name__}: {error}") from error
    if changed is None:
        return None
    if not is_tensor_collection(changed) or changed.ndim < 1 or not len(changed):
        shown = list(changed.batch_size) if is_tensor_collection(changed) else type(changed).__name__
        raise DataFormatError(
            f"{where}: fn must return a TensorDict [T] of one step at least, or None to leave the episode "
            f"out; got {shown}"
        )
    return _columns(changed, where)


def _columns(changed: Any, where: str) -> dict[Key, Any]:
    columns: dict[Key, Any] = {}
    for path in changed.keys(True, True, is_leaf=_is_leaf):
        key: Key = tuple([path] if isinstance(path, str) else path)
        top = key[0]
        if top in _IMPLIED or (top == "next" and len(key) > 1 and key[1] in _IMPLIED_NEXT):
            continue
        value = changed.get(path)
        if key == ("next", "terminated"):
            columns[("is_terminal",)] = value.reshape(len(changed), -1).any(1).numpy()
        elif key == ("next", "reward"):
            columns[("reward",)] = value.detach().cpu().numpy()
        elif top == "next":
            raise DataFormatError(
                f"{where}: fn gives {key!r}; under 'next' only 'reward' and 'terminated' are stored, the "
                "observation follows from the next step"
            )
        else:
            columns[key] = _column(value, len(changed), key, where)
    return columns


def _is_leaf(cls: type) -> bool:
    return issubclass(cls, (NonTensorData, NonTensorStack)) or not is_tensor_collection(cls)


def _column(value: Any, length: int, key: Key, where: str) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().contiguous().numpy()
    texts = value.tolist() if isinstance(value, NonTensorStack) else [value.data] * length
    if not all(isinstance(text, str) for text in texts):
        raise DataFormatError(f"{where}: {key!r} holds {texts[0]!r:.80}: tensors and strings can be stored")
    return texts
