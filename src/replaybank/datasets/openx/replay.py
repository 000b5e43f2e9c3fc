"""``OpenXExperienceReplay``: robot episodes as a replay buffer."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from replaybank.buffers.parts import batch_size_of, generator_of
from replaybank.buffers.prefetch import Batch
from replaybank.buffers.tensordict import TensorDictReplayBuffer
from replaybank.buffers.transforms import TransformChain
from replaybank.datasets.openx.catalog import AvailableDatasets
from replaybank.datasets.openx.cut import join
from replaybank.datasets.openx.epochs import epoch_of_stored, epoch_of_stream
from replaybank.datasets.openx.files import Skipped, is_converted
from replaybank.datasets.openx.folder import discard
from replaybank.datasets.openx.options import check_replacement, is_path, slicing_of, streams
from replaybank.datasets.openx.places import stored_at, streamed_from
from replaybank.datasets.openx.preprocess import Change, preprocess
from replaybank.datasets.openx.rows import TrajectoryRows
from replaybank.datasets.openx.selection import chosen_of, place_in
from replaybank.datasets.openx.sharding import rank_share
from replaybank.datasets.openx.skipping import OnError, check_on_error
from replaybank.datasets.openx.sources.base import EpisodeSource
from replaybank.datasets.openx.stats import EntryStats, dataset_stats
from replaybank.datasets.openx.storage import DatasetStorage
from replaybank.datasets.openx.stored import order, sampler_for
from replaybank.datasets.openx.stored_share import (
    ShareSampler,
    of_other_readers,
    settle_in_worker,
    shared_sampler,
)
from replaybank.datasets.openx.stream_stats import stream_stats
from replaybank.datasets.openx.streamed import BUFFER_BYTES, StreamSampler, seed_of, stream_sampler
from replaybank.datasets.openx.streamed_storage import StreamedStorage, refusal, refuse_parts
from replaybank.samplers.base import Sampler
from replaybank.storages.base import Storage
from replaybank.storages.layout import Key
from replaybank.transforms.base import SampleTransform
from replaybank.writers.base import Writer
from replaybank.writers.immutable import ImmutableDatasetWriter

if TYPE_CHECKING:
    from typing_extensions import Self


def _identity(batch: Any) -> Any:
    return batch


class OpenXExperienceReplay(TensorDictReplayBuffer, Dataset[Any]):
    """Episodes of an Open X-Embodiment dataset, streamed, or stored memory-mapped, as slices or steps.

    The steps are in TED layout: ``observation``, ``action``, texts and ``episode``, ``step``, ``is_init`` at
    the root; ``observation``, ``reward``, ``done``, ``terminated``, ``truncated``, ``valid`` under
    ``"next"``.
    Images are uint8 ``[C, H, W]``. ``valid`` is False where there is no next observation (it is zero there).

    **Stored** (``streaming=False``), it is converted once, and is a buffer that cannot be written to.

    **Streamed**, the default, it gives the same batches from episodes as they arrive, each episode once an
    epoch, over all ranks and workers of a ``DataLoader`` together: it is an ``IterableDataset`` then
    (``DataLoader(dataset, batch_size=None, collate_fn=lambda batch: batch)``). Every ``for`` is about another
    epoch; :meth:`sample` goes through epochs of its own. Reading and decoding run ahead in threads. A state
    says where the last ``for`` and :meth:`sample` stand, and the first of each goes on from there after
    :meth:`load_state_dict`. There is no length, no index, and nothing to write to.

    Sampling is safe from any number of threads, each iterator from one at a time. Pickles as paths, not data.

    Args:
        dataset_id: name of the dataset, or the hub's repository of a LeRobot dataset (``"user/name"``); with
            ``source`` a path, any name to keep it under.
        batch_size: steps in a batch, a multiple of ``num_slices`` or ``slice_len``. Without it, iterating
            gives each trajectory once: whole, ``num_slices`` at a time, or a random slice of ``slice_len``.
            Streamed without slices, a batch is so many consecutive steps of one episode.
        shuffle: draw in random order. Stored, ``False`` with slices or a batch size needs
            ``replacement=False``.
        num_slices: number of slices in a batch; excludes ``slice_len``.
        slice_len: steps in a slice; excludes ``num_slices``.
        pad: only streamed: fill trajectories shorter than a slice with this number (True: 0), bools with
            False and texts with ``""``. A bool ``"mask"`` is True at the real steps. The steps filled in keep
            the number of the episode, have ``step`` -1, and are never done; :func:`split_trajectories` leaves
            them out, by the mask.
        replacement: stored: draw with replacement, the default there. ``False``: each trajectory (with
            slices) or each step once a pass, and a ``for`` over the dataset is the rest of the pass.
        streaming: stream. ``None``: if ``download`` is None as well.
        root: folder for converted datasets; by default ``replaybank/openx`` in the user's cache directory.
        download: ``True`` fetches and converts what is not in ``root`` yet, from ``source`` or where the
            catalog says that ``dataset_id`` is published; what was interrupted goes on. ``"force"`` does that
            again, over what is there. Raw shards are kept beside the result, in ``<dataset_id>.download``,
            only until they were read. A local ``source`` needs no download; with ``"force"`` it
            is converted again, over what is there.
        sampler: stored: replaces the sampler that the arguments above would give.
        writer: stored: replaces the :class:`ImmutableDatasetWriter`.
        collate_fn: applied to each batch before the transforms; identity by default.
        pin_memory: as for :class:`ReplayBuffer`.
        prefetch: stored as for :class:`ReplayBuffer`; streamed, batches to read and decode ahead, 1 by
            default.
        transform: applied to each batch.
        split_trajs: stored: an item is a whole trajectory, a padded row ``[T_max]`` with a ``"mask"``, made
            when it is read; a batch is ``[B, T_max]``.
        strict_length: with slices, leave out trajectories shorter than a slice (stored), or raise (streamed);
            ``False`` gives those whole.
        source: path or URL of an RLDS or LeRobot dataset, of the hub's tar shards or (stored) of a converted
            dataset, or ``"rlds"``, ``"hub"`` or ``"lerobot"``, where ``dataset_id`` is published in that
            form, or an episode source; ``None``: what is in ``root``, else, to stream or to download it,
            where the catalog says.
        split: split to read.
        images: what a conversion keeps of frames: ``"raw"`` pixels, or ``"encoded"``, ten to twenty times
            smaller and decoded when sampled.
        image_keys: cameras to read, by path or name; all by default.
        num_workers: threads that decode, of a conversion or of a stream (0: the caller itself).
        allow_missing: of a ``source`` that lacks files which it declares, take what is there.
        on_error: ``"raise"`` stops at a record that cannot be read; ``"skip"``, of a conversion or a stream,
            leaves it out: :attr:`skipped` has all such records, and a stream warns of the first of each file.
        generator: source of all random draws; ``None``: torch's global one. A stream draws its seed from it.
        rank: number of this reader among ``world_size``.
        world_size: readers that share the episodes, so that each is one reader's; both by default those of
            ``torch.distributed`` where it is initialised. The division does not depend on the seed. Stored,
            it is fixed, by the lengths of the episodes, and is about what is drawn and iterated over: by
            number, every rank reads everything.
        buffer_bytes: encoded episodes, in bytes, from which a stream draws; more of them shuffle better. They
            are read before the first batch comes, and again after :meth:`load_state_dict`.
        episodes: numbers of the episodes to use, as their ``"episode"`` entry has them, in any order, each
            once: whole numbers, a range or a slice; negative ones count from the end. All by default. The
            dataset is then of those alone, in everything: length, index, draws, ranks, :meth:`stats`.
            Streamed, no other is decoded, and shards that have none of them are not opened. A conversion is
            of all episodes. A state is of the same ones.

    Raises:
        ValueError, RuntimeError: arguments that exclude each other; both are named.
        IndexError, ValueError, TypeError: ``episodes`` has one that is not there (says how many there are),
            one twice, or what is no number.
        FileNotFoundError: there is no such dataset on disk.
        DataFormatError: there are no episodes, or a file is not what it should be.

    Example:
        >>> import tempfile
        >>> from replaybank.demo.arm import write_arm_dataset
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = write_arm_dataset(folder.name + "/arm", episodes=3)
        >>> dataset = OpenXExperienceReplay("arm", 32, slice_len=8, source=path)
        >>> [batch["observation", "image"].shape for batch in dataset]
        [torch.Size([24, 3, 64, 64])]
        >>> dataset.sample()["action"].shape
        torch.Size([32, 2])
        >>> dataset.close()
        >>> stored = OpenXExperienceReplay(
        ...     "arm", 32, slice_len=8, streaming=False, source=path, root=folder.name + "/converted"
        ... )
        >>> batch = stored.sample()
        >>> isinstance(batch["language_instruction"][0], str)
        True
        >>> folder.cleanup()
    """

    available_datasets = AvailableDatasets()
    """Ids of the Open X-Embodiment datasets; ``replaybank list`` says more of them."""

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
        images: Literal["raw", "encoded"] = "raw",
        image_keys: Sequence[str | tuple[str, ...]] | None = None,
        num_workers: int | None = None,
        allow_missing: bool = False,
        on_error: OnError = "raise",
        generator: torch.Generator | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        episodes: Iterable[int] | Tensor | slice | None = None,
    ) -> None:
        streaming = streams(streaming, download)
        if images not in ("raw", "encoded"):
            raise ValueError(f"images must be 'raw' or 'encoded', got {images!r}")
        skip = check_on_error(on_error)
        slicing = slicing_of(num_slices, slice_len, pad, strict_length, sampler, streaming=streaming)
        batch_size, generator = batch_size_of(batch_size), generator_of(generator)
        if batch_size is not None:
            slicing.of(batch_size)
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
        share = rank_share(rank, world_size)
        if sampler is not None and rank is not None:
            raise ValueError("a sampler of your own draws from all episodes: leave rank and world_size out")
        parts: dict[str, Any] = {
            "writer": writer if writer is not None else ImmutableDatasetWriter(),
            "collate_fn": collate_fn if collate_fn is not None else _identity,
            "pin_memory": pin_memory,
            "transform": transform,
            "batch_size": batch_size,
            "generator": generator,
        }
        if split_trajs and (num_slices is not None or slice_len is not None):
            raise ValueError("split_trajs gives whole trajectories: leave num_slices and slice_len out")
        if streaming:
            refuse_parts(sampler=sampler, writer=writer, split_trajs=split_trajs or None)
            self._given = True
            streamed = stream_sampler(
                streamed_from(
                    dataset_id, source, split, num_workers=num_workers, allow_missing=allow_missing
                ),
                slicing,
                shuffle=self.shuffle,
                cameras=image_keys,
                share=share,
                prefetch=prefetch,
                threads=num_workers,
                buffer_bytes=buffer_bytes,
                generator=generator,
                skip=skip,
                episodes=episodes,
            )
            super().__init__(storage=StreamedStorage(streamed.leaves), sampler=streamed, **parts)
            self._refuse_related()
            return
        self._given = is_path(source) and is_converted(Path(source).expanduser())
        self.path = stored_at(
            dataset_id,
            source,
            root,
            split,
            download,
            images=images,
            num_workers=num_workers,
            allow_missing=allow_missing,
            on_error=on_error,
            ranks=share.of,
        )
        self.dataset = DatasetStorage(self.path, image_keys, episodes)
        self._settled = False
        if sampler is None:
            sampler = sampler_for(slicing, shuffle=shuffle, replacement=replacement)
            if share.of > 1:
                sampler = shared_sampler(sampler, share, self.dataset)
        there = self.dataset.manifest
        if there.split != split:
            raise ValueError(
                f"{self.path} holds the split {there.split!r} of {there.name!r}, not split={split!r}"
            )
        storage = TrajectoryRows(self.dataset) if split_trajs else self.dataset
        super().__init__(storage=storage, sampler=sampler, prefetch=prefetch, **parts)

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
        """Number of episodes, of those that are selected.

        Raises:
            RuntimeError: it is a stream whose source does not say.
        """
        if self._streamed is None:
            return len(self.dataset.bounds)
        stream = self._streamed.stream
        number = stream.episodes if stream.selected is None else len(stream.selected)
        if number is None:
            raise refusal("The number of episodes is not known")
        return number

    @property
    def selected_episodes(self) -> Tensor | None:
        """Numbers of the episodes that ``episodes=`` selects, int64, ascending; None: all."""
        return self.dataset.episodes if self._streamed is None else self._streamed.stream.selected

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Records that could not be read and were left out, with ``on_error="skip"``.

        Of a stream those that this process has come by so far, each once; a state has them too.
        """
        if self._streamed is not None:
            return self._streamed.stream.skipped.all()
        return self.dataset.manifest.skipped

    @property
    def label_names(self) -> dict[Key, tuple[str, ...]]:
        """Names of the classes that the numbers of an entry stand for, by key, in the order of the numbers.

        Those of :meth:`metadata` are in ``replay.dataset.manifest.metadata_label_names``.
        """
        if self._streamed is not None:
            return {key: leaf.labels for key, leaf in self._streamed.leaves.items() if leaf.labels}
        return dict(self.dataset.manifest.label_names)

    @property
    def dim_names(self) -> dict[Key, tuple[str, ...]]:
        """Names of the numbers along an entry's last dimension, such as joints, by key."""
        if self._streamed is not None:
            return {key: leaf.names for key, leaf in self._streamed.leaves.items() if leaf.names}
        return dict(self.dataset.manifest.dim_names)

    def episode(self, number: int) -> Any:
        """All steps of one episode, ``[T]``. O(T).

        Args:
            number: its number, the ``"episode"`` entry of its steps; negative ones count from the end.

        Raises:
            IndexError: there is no such episode, or it is not selected.

        Example:
            >>> import tempfile
            >>> from replaybank.demo.arm import write_arm_dataset
            >>> folder = tempfile.TemporaryDirectory()
            >>> path = write_arm_dataset(folder.name + "/rlds", episodes=3)
            >>> replay = OpenXExperienceReplay("arm", streaming=False, source=path, root=folder.name)
            >>> episode = replay.episode(-1)
            >>> episode["episode"][0].item(), episode["next", "done"].sum().item()
            (2, 1)
            >>> folder.cleanup()
        """
        if self.streaming:
            raise refusal("Episodes cannot be read by their number")
        start, length = self.dataset.bounds[self._place_of(number)].tolist()
        with self._lock.lock:
            return self._finish(self.dataset.get(slice(start, start + length)))

    def metadata(self, number: int) -> dict[Any, Any]:
        """What the origin says of one episode as a whole, by key, and ``"where"`` it came from. O(1).

        Args:
            number: its number, as for :meth:`episode`.

        Raises:
            IndexError: there is no such episode, or it is not selected.
        """
        if self.streaming:
            raise refusal("Episodes cannot be read by their number")
        place = self._place_of(number)
        selected = self.dataset.episodes
        return self.dataset.metadata(place if selected is None else int(selected[place]))

    def stats(
        self,
        keys: Iterable[Key | str] | None = None,
        *,
        episodes: Sequence[int] | Tensor | None = None,
        images: bool = False,
        progress: bool | None = None,
    ) -> dict[Key, EntryStats]:
        """Mean, deviation, range and quantiles of entries, to normalise by (see :class:`Normalize`).

        Those over all episodes of a stored dataset are computed once and stored with it. O(steps log steps)
        for each number of an entry. A stream reads the episodes that count, which have to be said, unless
        ``episodes=`` has selected some.

        Args:
            keys: entries; by default all numbers but those that only count steps and mark ends.
            episodes: numbers of the episodes that count, such as those to be trained on; by default those
                that are selected, or, stored, all.
            images: look at the frames of all cameras as well, by channel; not of a stream.
            progress: show a progress bar; by default where the error output is a terminal.

        Raises:
            KeyError: there is no such entry.
            IndexError: there is no such episode, or it is not selected.
            ValueError: an entry is text, no episode is selected, or the frames of a stream are asked for.
            RuntimeError: of a stream it is not said which episodes count.

        Example:
            >>> import tempfile
            >>> from replaybank.demo.arm import write_arm_dataset
            >>> folder = tempfile.TemporaryDirectory()
            >>> path = write_arm_dataset(folder.name + "/rlds", episodes=3)
            >>> replay = OpenXExperienceReplay("arm", streaming=False, source=path, root=folder.name)
            >>> action = replay.stats()["action",]
            >>> action.mean.shape, bool((action.q01 <= action.q99).all()), action.count == len(replay)
            (torch.Size([2]), True, True)
            >>> folder.cleanup()
        """
        selected = self.selected_episodes
        if selected is not None:
            episodes = selected if episodes is None else chosen_of(selected, episodes, self._all_episodes)
        if self._streamed is not None:
            if images:
                raise ValueError("images=True is for a stored dataset: pass streaming=False, or leave it out")
            if episodes is None:
                raise refusal(
                    "Statistics take all steps",
                    "Say which episodes to read for them, such as episodes=range(100), or convert it, which "
                    "is fast without its images: convert(source, folder, image_keys=[]).",
                )
            stream, leaves = self._streamed.stream, self._streamed.leaves
            return stream_stats(stream, leaves, keys, episodes=episodes, progress=progress)
        dataset = self.dataset.whole()
        return dataset_stats(dataset, keys, episodes=episodes, images=images, progress=progress)

    @property
    def _all_episodes(self) -> int | None:
        """How many there are, selected or not; None where that is not known."""
        streamed = self._streamed
        return self.dataset.manifest.episodes if streamed is None else streamed.stream.episodes

    def preprocess(
        self,
        fn: Change,
        num_workers: int | None = None,
        *,
        dest: str | os.PathLike[str],
        overwrite: bool = False,
        progress: bool | None = None,
        images: Literal["raw", "encoded"] = "raw",
        mp_start_method: str | None = None,
    ) -> OpenXExperienceReplay:
        """Make a changed copy of the dataset on the disk. Killed at any instant, the same call goes on.

        Args:
            fn: given each episode, a TensorDict ``[T]``, returns the one to be stored, of any length, or None
                to leave it out. Entries that follow from others are made anew.
            num_workers: processes that run ``fn``; 0 runs it here, by default one a core.
            dest: folder of the copy; made if missing.
            overwrite: replace what is in ``dest``.
            progress: show a progress bar; by default where the error output is a terminal.
            images: ``"raw"`` or, encoded anew, ``"encoded"``.
            mp_start_method: how processes start; by default as Python does here.

        Returns:
            The copy, without a batch size.

        Raises:
            RuntimeError: ``fn`` failed; names the episode.
            RuntimeError: only some ``episodes`` are selected here.
            DataFormatError: what ``fn`` gives is no episode, or not like that of other episodes.
            FileExistsError: ``dest`` holds something else.

        Example:
            >>> import tempfile
            >>> from replaybank.demo.arm import write_arm_dataset
            >>> folder = tempfile.TemporaryDirectory()
            >>> path = write_arm_dataset(folder.name + "/rlds", episodes=3)
            >>> replay = OpenXExperienceReplay("arm", streaming=False, source=path, root=folder.name)
            >>> half = replay.preprocess(lambda steps: steps[::2], num_workers=0, dest=folder.name + "/half")
            >>> [len(half.episode(n)) - (len(replay.episode(n)) + 1) // 2 for n in range(3)]
            [0, 0, 0]
            >>> folder.cleanup()
        """
        if self.streaming:
            raise refusal("A changed copy is made of a stored dataset")
        if self.selected_episodes is not None:
            raise RuntimeError(
                "a changed copy is made of a whole dataset: leave episodes= out, and have fn return None for "
                "the episodes that the copy is to be without"
            )
        made = preprocess(
            self.path,
            fn,
            dest,
            num_workers=num_workers,
            overwrite=overwrite,
            progress=progress,
            images=images,
            mp_start_method=mp_start_method,
        )
        return OpenXExperienceReplay(made.name, streaming=False, source=dest, split=made.split)

    def _place_of(self, number: int) -> int:
        return place_in(self.dataset.episodes, number, self.dataset.manifest.episodes)

    def __iter__(self) -> Iterator[Any]:
        """One epoch.

        Streamed, each episode of this reader's share once; with a batch size as a slice, the last batch
        perhaps smaller.

        Stored: without a batch size, each trajectory once. With one, the rest of the pass where draws are
        without replacement, else as many batches as the steps make.
        """
        if self._streamed is not None:
            self._refuse_related()
            return epoch_of_stream(self._streamed, self.batch_size, lock=self._lock, finish=self._finish)
        self._settle()
        if self._part is not None and not len(self._part):
            return iter(())
        if self.batch_size is None:
            return self._trajectories()
        if self.sampler.exhaustible:
            return super().__iter__()
        steps = len(self) if self._part is None else int(self.dataset.bounds[self._part, 1].sum())
        return (self.sample() for _ in range(max(1, steps // self.batch_size)))

    def insert_transform(self, index: int, transform: Any, *, invert: bool = False) -> Self:
        """As of any buffer; a :class:`SampleTransform` is not for a stream."""
        if self.streaming:
            self._refuse_related(TransformChain([transform]).sampling)
        return super().insert_transform(index, transform, invert=invert)

    def _refuse_related(self, also: tuple[SampleTransform, ...] = ()) -> None:
        """A stream's steps come and go: nothing can be read of those around them."""
        for transform in (*also, *self._transform.sampling):
            raise refusal(f"{type(transform).__name__} reads other steps than those that were drawn")

    def _draw(
        self,
        size: int,
        info_in_sample: bool,
        collate_fn: Callable[[Any], Any] | None = None,
        also: tuple[SampleTransform, ...] = (),
    ) -> Batch:
        sampler = self._streamed
        if sampler is None:
            return super()._draw(size, info_in_sample, collate_fn, also)
        self._refuse_related(also)
        with self._lock.lock:
            cuts = sampler.slices(*sampler.slicing.of(size))
            return Batch(self._assemble(join(cuts), info_in_sample, collate_fn), {}, False)

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
        self._settle()
        super().set_rng(generator)
        if self._streamed is not None:
            with self._lock.lock:
                self._streamed.reseed(seed_of(generator))

    # --- stored, and shared out ------------------------------------------------------------------------

    @property
    def _part(self) -> Tensor | None:
        """Numbers of the episodes that this reader draws from and iterates over; None: all."""
        sampler = self._sampler
        return sampler.numbers(self.dataset.bounds[:, 1]) if isinstance(sampler, ShareSampler) else None

    def _settle(self) -> None:
        """In a worker of a ``DataLoader``, take a part of what is stored, if that has not been done yet."""
        if torch.utils.data.get_worker_info() is not None and not self.streaming and not self._settled:
            self._settled = True
            settle_in_worker(self)

    def _next_batch(self, batch_size: int | None, info_in_sample: bool | None = None) -> Batch:
        self._settle()
        return super()._next_batch(batch_size, info_in_sample)

    def state_dict(self) -> dict[str, Any]:
        """As of any buffer; where a stream or a share stands included."""
        self._settle()
        return super().state_dict()

    def _of_another_sampler(self, saved: str, here: str, state: Mapping[str, Any]) -> str:
        readers = of_other_readers(saved, self._sampler, state)
        return readers or super()._of_another_sampler(saved, here, state)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """As of any buffer; of a share, a state of the same one."""
        self._settle()
        super().load_state_dict(state_dict)

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
        return state

    def _facts(self) -> dict[str, Any]:
        if self._streamed is None:
            return {"dataset_id": self.dataset_id, **super()._facts()}
        told: dict[str, Any] = {"dataset_id": self.dataset_id, "stream": self._streamed}
        if len(self._transform):
            told["transform"] = self._transform
        return {**told, "batch_size": self._batch_size}

    def _trajectories(self) -> Iterator[Any]:
        """Each trajectory once: whole, or a random slice of it where slices have a length."""
        if isinstance(self._storage, TrajectoryRows):
            numbers = torch.arange(self.num_episodes) if self._part is None else self._part
            turns = order(len(numbers), self.shuffle, self.generator)
            return map(self.__getitem__, numbers[turns].tolist())
        return epoch_of_stored(
            self.dataset,
            self._part,
            self._slicing,
            shuffle=self.shuffle,
            generator=self.generator,
            lock=self._lock,
            finish=self._finish,
        )

    def _finish(self, batch: Any) -> Any:
        """What is handed out of steps that were not sampled, with the lock held."""
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

    _known_as = OpenXExperienceReplay.__name__
