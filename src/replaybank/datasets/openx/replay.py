"""``OpenXExperienceReplay``: robot episodes as a replay buffer."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from replaybank.buffers.tensordict import TensorDictReplayBuffer
from replaybank.datasets.openx.catalog import AvailableDatasets
from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.files import MANIFEST, is_converted
from replaybank.datasets.openx.folder import discard
from replaybank.datasets.openx.options import check_replacement, slicing_of, streams
from replaybank.datasets.openx.preprocess import Change, preprocess
from replaybank.datasets.openx.sources.open import locate
from replaybank.datasets.openx.sources.origins import ORIGINS
from replaybank.datasets.openx.stats import EntryStats, dataset_stats
from replaybank.datasets.openx.storage import DatasetStorage
from replaybank.datasets.openx.stored import sampler_for, trajectories
from replaybank.samplers.base import Sampler
from replaybank.storages.layout import Key
from replaybank.writers.base import Writer
from replaybank.writers.immutable import ImmutableDatasetWriter


def default_root() -> Path:
    """Where converted datasets are kept: ``replaybank/openx`` in the user's cache directory."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "replaybank" / "openx"


def _identity(batch: Any) -> Any:
    return batch


class OpenXExperienceReplay(TensorDictReplayBuffer):
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
        download: ``True`` fetches and converts what is not in ``root`` yet, from ``source`` or where the
            catalog says that ``dataset_id`` is published; what was interrupted goes on. ``"force"`` does that
            again, over what is there. Raw shards are kept beside the result, in ``<dataset_id>.download``,
            only until they were read. A local ``source`` needs no download; with ``"force"`` it
            is converted again, over what is there.
        sampler: replaces the sampler that the arguments above would give.
        writer: replaces the :class:`ImmutableDatasetWriter`.
        collate_fn: applied to each batch before the transforms; identity by default.
        pin_memory: as for :class:`ReplayBuffer`.
        prefetch: as for :class:`ReplayBuffer`.
        transform: applied to each batch.
        split_trajs: not in this version.
        strict_length: with slices, leave out trajectories shorter than a slice; ``False`` gives those whole.
        source: path or URL of a dataset in RLDS form, of the hub's tar shards or of a converted dataset, or
            ``"rlds"`` or ``"hub"``, where ``dataset_id`` is published in that form; ``None``: what is in
            ``root``, else, to download it, where the catalog says.
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

    available_datasets = AvailableDatasets()
    """Ids of the Open X-Embodiment datasets; ``replaybank list`` says more of them."""

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
        source: str | os.PathLike[str] | None = None,
        split: str = "train",
        generator: torch.Generator | None = None,
    ) -> None:
        streaming = streams(streaming, download)
        slicing = slicing_of(num_slices, slice_len, pad, strict_length, sampler, streaming=streaming)
        replacement = check_replacement(
            replacement,
            shuffle=shuffle,
            drawn=sampler is None and (batch_size, num_slices, slice_len) != (None, None, None),
            streaming=streaming,
        )
        if streaming:
            raise NotImplementedError("this version does not stream: pass streaming=False")
        if split_trajs:
            raise NotImplementedError(
                "this version does not store padded trajectories; see split_trajectories"
            )
        self.dataset_id = dataset_id
        self.split = split
        self.shuffle = shuffle
        self._slicing = slicing
        self._given = source is not None and is_converted(Path(source).expanduser())
        self.path = _locate(dataset_id, source, root, split, download)
        if sampler is None:
            sampler = sampler_for(slicing, shuffle=shuffle, replacement=replacement)
        self.dataset = DatasetStorage(self.path)
        there = self.dataset.manifest
        if there.split != split:
            raise ValueError(
                f"{self.path} holds the split {there.split!r} of {there.name!r}, not split={split!r}"
            )
        super().__init__(
            storage=self.dataset,
            sampler=sampler,
            writer=writer if writer is not None else ImmutableDatasetWriter(),
            collate_fn=collate_fn if collate_fn is not None else _identity,
            pin_memory=pin_memory,
            prefetch=prefetch,
            transform=transform,
            batch_size=batch_size,
            generator=generator,
        )

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
        """Number of episodes."""
        return len(self.dataset.bounds)

    def episode(self, number: int) -> Any:
        """All steps of one episode, ``[T]``. O(T).

        Args:
            number: its number, the ``"episode"`` entry of its steps; negative ones count from the end.

        Raises:
            IndexError: there is no such episode.
        """
        start, length = self.dataset.bounds[self._episode_number(number)].tolist()
        return self[start : start + length]

    def metadata(self, number: int) -> dict[Any, Any]:
        """What the origin says of one episode as a whole, by key, and ``"where"`` it came from. O(1).

        Args:
            number: its number, as for :meth:`episode`.

        Raises:
            IndexError: there is no such episode.
        """
        return self.dataset.metadata(self._episode_number(number))

    def stats(
        self,
        keys: Iterable[Key | str] | None = None,
        *,
        episodes: Sequence[int] | Tensor | None = None,
        images: bool = False,
    ) -> dict[Key, EntryStats]:
        """Mean, deviation, range and quantiles of entries, to normalise by (see :class:`Normalize`).

        Those over all episodes are computed once and stored with the dataset. O(steps log steps) for each
        number of an entry.

        Args:
            keys: entries; by default all numbers but those that only count steps and mark ends.
            episodes: numbers of the episodes that count, such as those to be trained on; all by default.
            images: look at the frames of all cameras as well, by channel.

        Raises:
            KeyError: there is no such entry.
            IndexError: there is no such episode.
            ValueError: an entry is text, or no episode is selected.
        """
        return dataset_stats(self.dataset, keys, episodes=episodes, images=images)

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
            DataFormatError: what ``fn`` gives is no episode, or not like that of other episodes.
            FileExistsError: ``dest`` holds something else.
        """
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

    def _episode_number(self, number: int) -> int:
        if not -self.num_episodes <= number < self.num_episodes:
            raise IndexError(f"Episode {number} is out of range: there are {self.num_episodes}.")
        return number % self.num_episodes

    def __iter__(self) -> Iterator[Any]:
        """One epoch.

        Without a batch size, each trajectory once. With one, the rest of the pass where draws are without
        replacement, else as many batches as the steps make.
        """
        if self.batch_size is None:
            return self._trajectories()
        if self.sampler.exhaustible:
            return super().__iter__()
        return (self.sample() for _ in range(max(1, len(self) // self.batch_size)))

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
        if self._given:
            raise RuntimeError(
                f"{self.path} was given as source=, so it is not this object's to delete: remove it yourself"
            )
        discard(self.path)
        shutil.rmtree(self.path)


def _locate(
    dataset_id: str,
    source: str | os.PathLike[str] | None,
    root: str | os.PathLike[str] | None,
    split: str,
    download: bool | str | None,
) -> Path:
    """The folder of the converted dataset, converting it first where an origin is given or to be found."""
    path = None if source is None or source in ORIGINS else os.path.expanduser(os.fspath(source))
    if path is not None and "://" not in path and is_converted(path):
        return Path(path)
    if dataset_id in ("", ".", "..") or Path(dataset_id).name != dataset_id:
        raise ValueError(
            f"dataset_id names a dataset, it is no path: got {dataset_id!r}; pass paths as source="
        )
    folder = Path(root).expanduser() if root is not None else default_root()
    folder = folder / (dataset_id if split == "train" else f"{dataset_id}-{split}")
    if path is None and (not download or (download is True and (folder / MANIFEST).is_file())):
        if not is_converted(folder):
            raise FileNotFoundError(
                f"there is no converted dataset {dataset_id!r} in {folder.parent}: pass download=True to "
                "fetch an Open X-Embodiment dataset, or source=, the path of one in any form"
            )
        return folder
    place = path if path is not None else locate(source, dataset_id)
    convert(place, folder, split=split, overwrite=download == "force", dataset_id=dataset_id)
    return folder
