"""``OpenXExperienceReplay``: robot episodes as a replay buffer."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from replaybank.buffers.parts import batch_size_of
from replaybank.buffers.prefetch import Batch
from replaybank.buffers.tensordict import TensorDictReplayBuffer
from replaybank.datasets.openx.builder import discard
from replaybank.datasets.openx.cameras import camera_names
from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.cut import join
from replaybank.datasets.openx.files import is_converted
from replaybank.datasets.openx.options import check_replacement, is_path, slicing_of, streams
from replaybank.datasets.openx.sharding import rank_share
from replaybank.datasets.openx.sources.base import EpisodeSource
from replaybank.datasets.openx.sources.rlds import RLDSSource, is_rlds
from replaybank.datasets.openx.storage import DatasetStorage
from replaybank.datasets.openx.stored import sampler_for, trajectories
from replaybank.datasets.openx.streamed import (
    BUFFER_BYTES,
    StreamedStorage,
    StreamSampler,
    packed_generator,
    refusal,
    refuse_parts,
    seed_of,
    stream_sampler,
    unpacked_generator,
)
from replaybank.samplers.base import Sampler
from replaybank.storages.base import Storage
from replaybank.writers.base import Writer
from replaybank.writers.immutable import ImmutableDatasetWriter


def default_root() -> Path:
    """Where converted datasets are kept: ``replaybank/openx`` in the user's cache directory."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "replaybank" / "openx"


def _identity(batch: Any) -> Any:
    return batch


class OpenXExperienceReplay(TensorDictReplayBuffer, Dataset[Any]):
    """Episodes of an Open X-Embodiment dataset, converted once, memory-mapped, sampled as slices or steps.

    The steps are in TED layout: ``observation``, ``action``, texts and ``episode``, ``step``, ``is_init`` at
    the root; ``observation``, ``reward``, ``done``, ``terminated``, ``truncated``, ``valid`` under
    ``"next"``.
    Images are uint8 ``[C, H, W]``. ``valid`` is False where there is no next observation (it is zero there).

    Sampling is safe from any number of threads. Pickles as paths, not data.

    Args:
        dataset_id: name of the dataset; with ``source`` a path, any name to keep it under.
        batch_size: steps in a batch, a multiple of ``num_slices`` or ``slice_len``. Without it, iterating
            gives each trajectory once: whole, ``num_slices`` at a time, or a random slice of ``slice_len``.
        shuffle: draw in random order. ``False`` with slices or a batch size needs
            ``replacement=False``.
        num_slices: number of slices in a batch; excludes ``slice_len``.
        slice_len: steps in a slice; excludes ``num_slices``.
        pad: only for streaming.
        replacement: draw with replacement, the default here. ``False``: each trajectory (with slices) or each
            step once a pass, and a ``for`` over the dataset is the rest of the pass.
        streaming: must be ``False`` in this version, which converts and stores.
        root: folder for converted datasets; by default ``replaybank/openx`` in the user's cache directory.
        download: fetching is not in this version: ``None`` or ``False``. With ``"force"``, a local ``source``
            is converted again, over what is there.
        sampler: replaces the sampler that the arguments above would give.
        writer: replaces the :class:`ImmutableDatasetWriter`.
        collate_fn: applied to each batch before the transforms; identity by default.
        pin_memory: as for :class:`ReplayBuffer`.
        prefetch: as for :class:`ReplayBuffer`.
        transform: applied to each batch.
        split_trajs: not in this version.
        strict_length: with slices, leave out trajectories shorter than a slice; ``False`` gives those whole.
        source: an RLDS folder or a converted dataset; ``None``: what is in ``root``.
        split: split to read.
        generator: source of all random draws; ``None``: torch's global one.

    Raises:
        ValueError, RuntimeError: arguments that exclude each other; both are named.
        FileNotFoundError: there is no such dataset on disk.
        NotImplementedError: streaming, downloading or padded trajectories were asked for.

    Example:
        >>> import tempfile
        >>> from replaybank.demo.arm import write_arm_dataset
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = write_arm_dataset(folder.name + "/arm", episodes=3)
        >>> dataset = OpenXExperienceReplay(
        ...     "arm", 32, slice_len=8, streaming=False, source=path, root=folder.name + "/converted"
        ... )
        >>> batch = dataset.sample()
        >>> batch["observation", "image"].shape
        torch.Size([32, 3, 64, 64])
        >>> isinstance(batch["language_instruction"][0], str)
        True
        >>> folder.cleanup()
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> OpenXExperienceReplay:
        """A stream is of a class of its own, so that a ``DataLoader`` iterates over it.

        Unpickling comes without arguments, and names the class that it wants.
        """
        given = cls is OpenXExperienceReplay and bool(args or kwargs)
        streamed = given and streams(kwargs.get("streaming"), kwargs.get("download"))
        return object.__new__(_StreamedReplay if streamed else cls)

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        shuffle: bool = True,
        num_slices: int | None = None,
        slice_len: int | None = None,
        pad: float | bool | None = None,
        replacement: bool | None = None,
        streaming: bool | None = None,
        root: str | os.PathLike[str] | None = None,
        download: bool | str | None = None,
        sampler: Sampler | None = None,
        writer: Writer | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Any = None,
        split_trajs: bool = False,
        strict_length: bool = True,
        source: str | os.PathLike[str] | EpisodeSource | None = None,
        split: str = "train",
        image_keys: Sequence[str | tuple[str, ...]] | None = None,
        num_workers: int | None = None,
        generator: torch.Generator | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        streaming = streams(streaming, download)
        slicing = slicing_of(num_slices, slice_len, pad, strict_length, sampler, streaming=streaming)
        replacement = check_replacement(
            replacement,
            shuffle=shuffle,
            drawn=sampler is None and (batch_size, num_slices, slice_len) != (None, None, None),
            streaming=streaming,
        )
        self.dataset_id = dataset_id
        self.split = split
        self.shuffle = bool(shuffle)
        self._slicing = slicing
        cameras = None if image_keys is None else camera_names(image_keys)
        share = rank_share(rank, world_size)
        parts: dict[str, Any] = {
            "writer": writer if writer is not None else ImmutableDatasetWriter(),
            "collate_fn": collate_fn if collate_fn is not None else _identity,
            "pin_memory": pin_memory,
            "transform": transform,
            "batch_size": batch_size,
            "generator": generator,
        }
        if streaming:
            refuse_parts(sampler=sampler, writer=writer, split_trajs=split_trajs or None)
            self._given = True
            streamed = stream_sampler(
                _open(dataset_id, source, split),
                slicing,
                batch_size=batch_size_of(batch_size),
                shuffle=self.shuffle,
                cameras=cameras,
                share=share,
                prefetch=prefetch,
                threads=num_workers,
                buffer_bytes=buffer_bytes,
                generator=generator,
            )
            super().__init__(storage=StreamedStorage(streamed.leaves), sampler=streamed, **parts)
            return
        if download is True:
            raise NotImplementedError("this version does not download: pass the folder of a copy as source=")
        if split_trajs:
            raise NotImplementedError(
                "this version does not store padded trajectories; see split_trajectories"
            )
        self._given = is_path(source) and is_converted(Path(source).expanduser())
        self.path = _locate(dataset_id, source, root, split, force=download == "force")
        if sampler is None:
            sampler = sampler_for(slicing, shuffle=shuffle, replacement=replacement)
        self.dataset = DatasetStorage(self.path)
        there = self.dataset.manifest
        if there.split != split:
            raise ValueError(
                f"{self.path} holds the split {there.split!r} of {there.name!r}, not split={split!r}"
            )
        super().__init__(storage=self.dataset, sampler=sampler, prefetch=prefetch, **parts)

    @property
    def _streamed(self) -> StreamSampler | None:
        """What draws from the stream, if this is one."""
        sampler = getattr(self, "_sampler", None)
        return sampler if isinstance(sampler, StreamSampler) else None

    @property
    def streaming(self) -> bool:
        """Whether the episodes come as a stream."""
        return self._streamed is not None

    @property
    def num_slices(self) -> int | None:
        """Slices of a batch, where that was given."""
        return self._slicing.num_slices

    @property
    def slice_len(self) -> int | None:
        """Steps of a slice, where that was given."""
        return self._slicing.slice_len

    @property
    def strict_length(self) -> bool:
        """Whether trajectories shorter than a slice are left out, or refused."""
        return self._slicing.strict_length

    @property
    def num_episodes(self) -> int:
        """Number of episodes.

        Raises:
            RuntimeError: it is a stream whose source does not say.
        """
        if self._streamed is None:
            return len(self.dataset.bounds)
        number = self._streamed.stream.episodes
        if number is None:
            raise refusal("The number of episodes is not known")
        return number

    def episode(self, number: int) -> Any:
        """All steps of one episode, ``[T]``. O(T).

        Args:
            number: its number, the ``"episode"`` entry of its steps; negative ones count from the end.

        Raises:
            IndexError: there is no such episode.
        """
        if self.streaming:
            raise refusal("Episodes cannot be read by their number")
        start, length = self.dataset.bounds[self._episode_number(number)].tolist()
        return self[start : start + length]

    def metadata(self, number: int) -> dict[Any, Any]:
        """What the origin says of one episode as a whole, by key, and ``"where"`` it came from. O(1).

        Args:
            number: its number, as for :meth:`episode`.

        Raises:
            IndexError: there is no such episode.
        """
        if self.streaming:
            raise refusal("Episodes cannot be read by their number")
        return self.dataset.metadata(self._episode_number(number))

    def _episode_number(self, number: int) -> int:
        if not -self.num_episodes <= number < self.num_episodes:
            raise IndexError(f"Episode {number} is out of range: there are {self.num_episodes}.")
        return number % self.num_episodes

    def __iter__(self) -> Iterator[Any]:
        """One epoch.

        Without a batch size, each trajectory once. With one, the rest of the pass where draws are without
        replacement, else as many batches as the steps make.
        """
        if self._streamed is not None:
            return self._pass(self._streamed)
        if self.batch_size is None:
            return self._trajectories()
        if self.sampler.exhaustible:
            return super().__iter__()
        return (self.sample() for _ in range(max(1, len(self) // self.batch_size)))

    def _pass(self, sampler: StreamSampler) -> Iterator[Any]:
        """One epoch of a stream."""
        count, length = sampler.slicing.num_slices or 1, sampler.slicing.slice_len
        if self.batch_size is not None:
            count, length = sampler.slicing.of(self.batch_size)
        with self._lock.lock:
            run = sampler.begin()
        try:
            while cuts := run.take(count, length, count * sampler.prefetch):
                batch: Any = join(cuts)
                with self._lock.lock:
                    sampler.passed(run)
                    batch = self._assemble(batch, keep_batch=False)
                yield batch
            with self._lock.lock:
                sampler.finished(run)
        finally:
            run.close()

    def _draw(self, size: int, info_in_sample: bool) -> Batch:
        sampler = self._streamed
        if sampler is None:
            return super()._draw(size, info_in_sample)
        with self._lock.lock:
            cuts = sampler.slices(*sampler.slicing.of(size))
            return Batch(self._assemble(join(cuts), info_in_sample), {}, False)

    def __getitem__(self, index: Any) -> Any:
        """Read steps, as for :meth:`ReplayBuffer.__getitem__`; not of a stream."""
        if self.streaming:
            raise refusal("Steps cannot be read by their number")
        return super().__getitem__(index)

    def set_storage(self, storage: Storage, collate_fn: Callable[[Any], Any] | None = None) -> Storage:
        """Exchange the storage; not of a stream."""
        if self.streaming:
            raise refusal("There is no storage to exchange")
        return super().set_storage(storage, collate_fn)

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Exchange the sampler; not of a stream."""
        if self.streaming:
            raise refusal("There is no sampler to exchange")
        return super().set_sampler(sampler)

    def set_rng(self, generator: torch.Generator | None) -> None:
        """Take every random draw from another source. A stream begins anew, in the order that it says."""
        super().set_rng(generator)
        if self._streamed is not None:
            with self._lock.lock:
                self._streamed.reseed(seed_of(generator))

    def close(self) -> None:
        """End all background threads but those of iterators in use. The dataset can still be used."""
        super().close()
        if self._streamed is not None:
            with self._lock.lock:
                self._streamed.close()

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if self._streamed is not None:
            with self._lock.lock:  # not a deep copy: the counters of epochs are shared with workers
                state["_sampler"] = copy.copy(self._streamed)
            # Sending a tensor that nothing keeps, as a generator's state, to a spawned process fails.
            state["_generator"] = packed_generator(self._generator)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._streamed is not None:
            self._generator = unpacked_generator(self._generator)

    def __repr__(self) -> str:
        if self._streamed is None:
            return super().__repr__()
        return f"{OpenXExperienceReplay.__name__}({self._streamed!r}, batch_size={self.batch_size})"

    def _trajectories(self) -> Iterator[Any]:
        """Each trajectory once: whole, or a random slice of it where slices have a length."""
        groups = trajectories(
            self.dataset.bounds, self._slicing, shuffle=self.shuffle, generator=self.generator
        )
        return map(self._slices, groups)

    def _slices(self, parts: list[Tensor]) -> Any:
        """The steps of several slices, one behind the other, their last ones marked as a sample has them."""
        ends = torch.cat([torch.arange(len(part)) == len(part) - 1 for part in parts])[:, None]
        with self._lock.lock:
            batch = self.dataset.get(torch.cat(parts))
            for name in ("truncated", "done"):
                batch["next", name] = batch["next", name] | ends
            return self._assemble(batch, keep_batch=False)

    def delete(self) -> None:
        """Remove what was converted into ``root``. The dataset cannot be read afterwards.

        Raises:
            RuntimeError: a converted dataset was given as ``source``: it is the user's to remove.
        """
        if self.streaming:
            raise refusal("There is nothing on disk to delete")
        if self._given:
            raise RuntimeError(
                f"{self.path} was given as source=, so it is not this object's to delete: remove it yourself"
            )
        discard(self.path)
        shutil.rmtree(self.path)


class _StreamedReplay(OpenXExperienceReplay, IterableDataset[Any]):
    """A streamed dataset: nothing but what tells a ``DataLoader`` to iterate, and not to ask for items."""


def _open(
    dataset_id: str, source: str | os.PathLike[str] | EpisodeSource | None, split: str
) -> EpisodeSource:
    """The source to stream from."""
    if source is None:
        raise FileNotFoundError(
            f"this version does not download {dataset_id!r}: pass source=, the folder or URL of an RLDS "
            "dataset"
        )
    if not isinstance(source, (str, os.PathLike)):
        return source
    if is_converted(source):
        raise ValueError(
            f"{os.fspath(source)} is converted already, and need not be streamed: pass streaming=False"
        )
    return RLDSSource(source, split)


def _locate(
    dataset_id: str,
    source: str | os.PathLike[str] | EpisodeSource | None,
    root: str | os.PathLike[str] | None,
    split: str,
    *,
    force: bool,
) -> Path:
    """The folder of the converted dataset, converting it first where a local origin is given."""
    if is_path(source) and "://" not in os.fspath(source):
        source = Path(source).expanduser()
    if is_path(source) and is_converted(source):
        return Path(source)
    if dataset_id in ("", ".", "..") or Path(dataset_id).name != dataset_id:
        raise ValueError(
            f"dataset_id names a dataset, it is no path: got {dataset_id!r}; pass paths as source="
        )
    folder = Path(root).expanduser() if root is not None else default_root()
    folder = folder / (dataset_id if split == "train" else f"{dataset_id}-{split}")
    if source is None:
        if not is_converted(folder):
            raise FileNotFoundError(
                f"there is no converted dataset {dataset_id!r} in {folder.parent}: "
                "pass source=, the folder of an RLDS dataset or of a converted one"
            )
        return folder
    if is_path(source) and not is_rlds(source):
        raise FileNotFoundError(
            f"{os.fspath(source)} is neither a converted dataset nor an RLDS folder "
            "(which has a features.json and a dataset_info.json)"
        )
    convert(source, folder, split=split, overwrite=force)
    return folder
