"""``OpenXMixture``: several robot datasets as one endless stream of batches, in proportions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.utils.data import IterableDataset

from replaybank import showing
from replaybank.buffers.parts import batch_size_of
from replaybank.buffers.transforms import TransformChain
from replaybank.checkpoint import Stateful
from replaybank.datasets.openx.common import CommonEntries, example_of
from replaybank.datasets.openx.nest import unnest
from replaybank.datasets.openx.normalize import Mode, Normalize
from replaybank.datasets.openx.options import Slicing, by_dataset, slicing_of, streams
from replaybank.datasets.openx.proportions import steps_of, weights_of
from replaybank.datasets.openx.replay import OpenXExperienceReplay
from replaybank.datasets.openx.sharding import Share, rank_share, worker_share
from replaybank.datasets.openx.skipping import OnError
from replaybank.datasets.openx.sources.base import EpisodeSource
from replaybank.datasets.openx.stats import EntryStats
from replaybank.datasets.openx.stored_share import ShareSampler
from replaybank.datasets.openx.streamed import BUFFER_BYTES, WORKERS, seed_of
from replaybank.storages.layout import Key

if TYPE_CHECKING:
    from typing_extensions import Self

Encoding: TypeAlias = Literal["raw", "encoded"]
Episodes: TypeAlias = "Sequence[int] | Tensor"
Selected: TypeAlias = "Iterable[int] | Tensor | slice | None"
Transform: TypeAlias = Callable[[Any], Any]

DATASET = "dataset"
"""Entry of a batch that says which dataset a step is of: its place in ``mixture.names``."""
_CHOICE, _STORED = 7, 8  # what random numbers are for


class OpenXMixture(IterableDataset[Any], Stateful):
    """Slices of several datasets in one batch, each slice of a dataset drawn in proportion to its weight.

    As all slices have one length, the weights are proportions of steps. Batches never end: each dataset goes
    on into its own next epoch. The order depends on the seed alone, :meth:`state_dict` says where it stands,
    and ranks and workers of a ``DataLoader`` get parts of their own, as of a streamed
    :class:`OpenXExperienceReplay`.

    A batch has the entries that all datasets have in common, with one dtype and shape (:attr:`left_out` says
    what is not, and why), and ``"dataset"``, int32: which dataset a step is of.

    Not thread-safe. Pickles as paths, not data.

    Args:
        datasets: ids with weights, or the name of a published mixture (``"rtx"``, ``"oxe_magic_soup"``,
            ...).
        batch_size: steps in a batch.
        num_slices: slices in a batch; excludes ``slice_len``.
        slice_len: steps in a slice; without both, slices are of one step.
        keys: entries wanted, by path; by default all that the datasets have in common.
        balance_weights: multiply the weights by the number of steps of each dataset, so that equal weights
            mean: each step equally often. ``None``: for published mixtures, whose weights are meant so.
            Where a stream does not say how many steps it has, its first episodes stand for all.
        transforms: by id, what is applied to slices of one dataset before they are joined: to bring entries
            to one name or shape. :meth:`append_transform` adds others, :meth:`normalize` brings each dataset
            to its scale.
        transform: applied to each batch.
        source: by id, the datasets' sources; see :class:`OpenXExperienceReplay`.
        pad: as there.
        strict_length: as there.
        streaming: as there.
        download: as there.
        root: as there.
        split: as there; this and the following four one for all datasets, or by id: those that are left out
            have the default.
        images: as there, of a conversion.
        image_keys: cameras to read; ``[]``: none.
        allow_missing: of a source that lacks files which it declares, take what is there.
        on_error: as there.
        num_workers: threads that decode, of each dataset.
        generator: gives the seed; ``None``: torch's global one.
        rank: number of this reader among ``world_size``.
        world_size: readers that share the episodes; both by default those of ``torch.distributed``.
        buffer_bytes: encoded episodes from which streams draw, in bytes, of all datasets together.
        episodes: numbers of the episodes to use, as there; by id, or the same of all datasets.

    Raises:
        ValueError: a weight is not positive, there is no such mixture, or the datasets lack a key.
        TypeError: a transform cannot be called, or is a :class:`SampleTransform`.

    Example:
        >>> import tempfile
        >>> from replaybank.demo.arm import write_arm_dataset
        >>> folder = tempfile.TemporaryDirectory()
        >>> sources = {name: write_arm_dataset(folder.name + f"/{name}", episodes=3) for name in ("a", "b")}
        >>> mixture = OpenXMixture({"a": 1.0, "b": 3.0}, 32, slice_len=8, source=sources)
        >>> batch = mixture.sample()
        >>> batch.shape, sorted(batch["dataset"].unique().tolist())[-1]
        (torch.Size([32]), 1)
        >>> mixture.close()
        >>> folder.cleanup()
    """

    def __init__(
        self,
        datasets: str | Mapping[str, float],
        batch_size: int | None = None,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        keys: Sequence[str | Key] | None = None,
        balance_weights: bool | None = None,
        transforms: Mapping[str, Transform] | None = None,
        transform: Transform | None = None,
        source: Mapping[str, str | os.PathLike[str] | EpisodeSource] | str | None = None,
        pad: float | bool | None = None,
        strict_length: bool = True,
        streaming: bool | None = None,
        download: bool | str | None = None,
        root: str | os.PathLike[str] | None = None,
        split: str | Mapping[str, str] = "train",
        images: Encoding | Mapping[str, Encoding] = "raw",
        image_keys: Sequence[str | Key] | Mapping[str, Sequence[str | Key] | None] | None = None,
        allow_missing: bool | Mapping[str, bool] = False,
        on_error: OnError | Mapping[str, OnError] = "raise",
        num_workers: int | None = None,
        generator: torch.Generator | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        episodes: Selected | Mapping[str, Selected | None] = None,
    ) -> None:
        weights = weights_of(datasets)
        self.names: list[str] = list(weights)
        """The ids, in the order that ``"dataset"`` counts."""
        asked = {
            "source": (source, None),
            "split": (split, "train"),
            "images": (images, "raw"),
            "image_keys": (image_keys, None),
            "allow_missing": (allow_missing, False),
            "on_error": (on_error, "raise"),
            "episodes": (episodes, None),
        }
        options = {
            name: by_dataset(name, given, self.names, default) for name, (given, default) in asked.items()
        }
        given_transforms = by_dataset("transforms", transforms or {}, self.names, None)
        self._transforms: list[list[Transform]] = [[] if one is None else [one] for one in given_transforms]
        for one in (*given_transforms, transform):
            if one is not None:
                _check_transform(one)
        self._normalizers: list[Normalize | None] = [None] * len(self.names)
        streamed = streams(streaming, download)
        self._slicing = slicing_of(num_slices, slice_len, pad, strict_length, None, streaming=streamed)
        self.batch_size = batch_size_of(batch_size)
        self._share = rank_share(rank, world_size)
        self._seed = seed_of(generator)
        self._length = self._slice_length()
        self._batch_transforms: list[Transform] = [] if transform is None else [transform]
        self.datasets: list[OpenXExperienceReplay] = [
            OpenXExperienceReplay(
                name,
                slice_len=self._length,
                pad=pad,
                strict_length=strict_length,
                streaming=streaming,
                download=download,
                root=root,
                num_workers=num_workers,
                generator=torch.Generator().manual_seed(self._seed + place),
                rank=self._share.number if streamed else 0,
                world_size=self._share.of if streamed else 1,
                buffer_bytes=buffer_bytes // len(weights),
                **{option: values[place] for option, values in options.items()},
            )
            for place, name in enumerate(self.names)
        ]
        """The datasets themselves, in the order of :attr:`names`."""
        for dataset in () if streamed or self._share.of == 1 else self.datasets:
            # Ranks may be more than the episodes of one of many datasets: then some draw from the same ones.
            dataset.set_sampler(ShareSampler(dataset.sampler, self._share, overlap=True))
        balanced = isinstance(datasets, str) if balance_weights is None else balance_weights
        sizes = [steps_of(dataset) if balanced else 1.0 for dataset in self.datasets]
        given_weights = np.array(list(weights.values())) * np.array(sizes)
        self.proportions: dict[str, float] = dict(
            zip(self.names, (given_weights / given_weights.sum()).tolist(), strict=True)
        )
        """Part of the steps that is of each dataset, by id."""
        self._wanted = keys
        self._common = self._common_entries()
        self._passes = torch.zeros(1 + WORKERS, dtype=torch.int64).share_memory_()
        self._began: Share | None = None
        self._pass = 0
        self._drawn = 0

    def _slice_length(self) -> int:
        slicing = self._slicing
        if slicing.slice_len is not None:
            if self.batch_size is not None:
                slicing.of(self.batch_size)
            return slicing.slice_len
        if slicing.num_slices is None:
            return 1
        if self.batch_size is None:
            raise ValueError(f"num_slices={slicing.num_slices} needs a batch_size; or give slice_len")
        return slicing.of(self.batch_size)[1]

    def _example(self, place: int) -> TensorDictBase:
        """A slice of one dataset, as far as dtypes and shapes go."""
        dataset = self.datasets[place]
        filled = self._slicing.pad is not None
        return example_of(dataset, self._length, filled=filled)

    def _transformed(self, place: int, data: Any) -> Any:
        normalize = self._normalizers[place]
        for transform in ([] if normalize is None else [normalize]) + self._transforms[place]:
            data = transform(data)
        return data

    def _common_entries(self) -> CommonEntries:
        """What the datasets have in common, once their slices went through what is applied to them."""
        slices = [self._transformed(place, self._example(place)) for place in range(len(self.names))]
        return CommonEntries(self.names, slices, self._wanted)

    @property
    def keys(self) -> list[Key]:
        """Entries of a batch, by path, beside ``"dataset"``."""
        return list(self._common.keys)

    @property
    def left_out(self) -> dict[Key, str]:
        """Entries that only some datasets have, or in other dtypes or shapes, each with what differs."""
        return dict(self._common.left_out)

    def stats(
        self,
        keys: Sequence[str | Key] | None = None,
        *,
        episodes: Episodes | Mapping[str, Episodes] | None = None,
        images: bool = False,
        progress: bool | None = None,
    ) -> dict[str, dict[Key, EntryStats]]:
        """The statistics of each dataset, by id, as the datasets have their entries, whatever transforms do.

        Each by itself: datasets have different robots, so different scales.

        Args:
            keys: entries; by default all numbers but those that only count steps and mark ends.
            episodes: numbers of the episodes that count, by id or the same of each; by default those that
                were selected. Else streams need them said, and of stored datasets all count.
            images: look at the frames of all cameras as well; of stored datasets only.
            progress: show progress bars; by default where the error output is a terminal.

        Raises:
            RuntimeError: of a stream it is not said which episodes count.
            KeyError, IndexError, ValueError: as of :meth:`OpenXExperienceReplay.stats`.
        """
        chosen = by_dataset("episodes", episodes, self.names, None)
        return {
            name: dataset.stats(keys, episodes=chosen[place], images=images, progress=progress)
            for place, (name, dataset) in enumerate(zip(self.names, self.datasets, strict=True))
        }

    def normalize(
        self,
        keys: Sequence[str | Key] | None = None,
        mode: Mode = "mean_std",
        *,
        episodes: Episodes | Mapping[str, Episodes] | None = None,
        mask: Mapping[str, Mapping[Any, Tensor]] | None = None,
        progress: bool | None = None,
    ) -> dict[str, Normalize]:
        """Bring each dataset to its own scale from the next batch on, before all transforms.

        To be called once, before drawing, and before workers or copies are made. Called again, the scale is
        another one instead. It is not part of a state.

        Args:
            keys: entries, by path; by default the floating point numbers under ``action`` and
                ``observation``.
            mode: how; see :class:`Normalize`.
            episodes: numbers of the episodes that count, such as those that are not held out; see
                :meth:`stats`.
            mask: by id, which numbers of an entry to leave as they are; see :class:`Normalize`.
            progress: show progress bars; by default where the error output is a terminal.

        Returns:
            What normalises each dataset, by id. Its ``inv`` is the way back, for what a policy gives.

        Raises:
            RuntimeError, KeyError, IndexError, ValueError: as of :meth:`stats` and :class:`Normalize`; or
                entries that are wanted are not common any more. Nothing has been changed.

        Example:
            >>> import tempfile
            >>> from replaybank.demo.arm import write_arm_dataset
            >>> folder = tempfile.TemporaryDirectory()
            >>> sources = {n: write_arm_dataset(folder.name + f"/{n}", episodes=3) for n in ("a", "b")}
            >>> mixture = OpenXMixture({"a": 1.0, "b": 3.0}, 32, slice_len=8, source=sources)
            >>> normalize = mixture.normalize(["action"], episodes=[0, 1])  # streams: which ones to read
            >>> batch = mixture.sample()
            >>> normalize["b"].inv(batch[batch["dataset"] == 1])["action"].shape[-1]
            2
            >>> mixture.close()
            >>> folder.cleanup()
        """
        chosen = by_dataset("episodes", episodes, self.names, None)
        masks = by_dataset("mask", mask or {}, self.names, None)
        made = []
        for place, dataset in enumerate(self.datasets):
            wanted = self._scalable(place) if keys is None else keys
            stats = dataset.stats(wanted, episodes=chosen[place], progress=progress)
            made.append(Normalize(stats, mode, mask=masks[place]))
        before, self._normalizers = self._normalizers, list(made)
        try:
            self._common = self._common_entries()
        except BaseException:
            self._normalizers = before
            raise
        return dict(zip(self.names, made, strict=True))

    def _scalable(self, place: int) -> list[Key]:
        """Entries of a dataset that are to be brought to one scale unless others are named."""
        entries = unnest(self._example(place))
        return [
            key
            for key, value in entries.items()
            if key[0] in ("action", "observation") and isinstance(value, Tensor) and value.is_floating_point()
        ]

    def append_transform(self, transform: Transform, dataset: str | None = None) -> Self:
        """Apply one more transform from the next batch on, behind those there are.

        Args:
            transform: given slices and returns them.
            dataset: id of the one to whose slices it is applied; by default to each batch.

        Returns:
            The mixture.

        Raises:
            TypeError: it cannot be called, or is a :class:`SampleTransform`, which reads other steps too.
            ValueError: there is no such dataset, or entries that are wanted are not common any more. Nothing
                has been changed.
        """
        _check_transform(transform)
        if dataset is None:
            self._batch_transforms.append(transform)
            return self
        if dataset not in self.names:
            raise ValueError(f"There is no dataset {dataset!r} in the mixture, which has {self.names}.")
        transforms = self._transforms[self.names.index(dataset)]
        transforms.append(transform)
        try:
            self._common = self._common_entries()
        except BaseException:
            transforms.pop()
            raise
        return self

    # --- drawing ---------------------------------------------------------------------------------------

    def sample(self, batch_size: int | None = None) -> Any:
        """Draw a batch. O(bytes); streamed, waits for data.

        Args:
            batch_size: steps, a multiple of the slices' length; that of the mixture by default.

        Raises:
            RuntimeError: there is no batch size, or an episode is shorter than a slice (see ``pad``).
            ValueError: slices do not divide the batch size.
        """
        size = batch_size_of(batch_size) or self.batch_size
        if size is None:
            raise RuntimeError("No batch size: give one to the mixture, or to sample(B).")
        count, _ = Slicing(slice_len=self._length).of(size)
        self._begin()
        parts: list[Any] = []
        for place, slices in enumerate(self._choose(count)):
            if slices:
                data = self._transformed(place, self.datasets[place].sample(slices * self._length))
                parts.append(self._common.of(data).set(DATASET, torch.full(data.batch_size, place).int()))
        self._drawn += count
        batch = parts[0] if len(parts) == 1 else torch.cat(parts)
        for transform in self._batch_transforms:
            batch = transform(batch)
        return batch

    def _choose(self, count: int) -> list[int]:
        """How many of the next slices are of each dataset. O(count)."""
        key = (_CHOICE, self._seed, self._pass, *vars(self._began).values(), self._drawn)
        numbers = np.random.SeedSequence(key).generate_state(count, np.uint64) / 2.0**64
        ends = np.cumsum(list(self.proportions.values()))
        chosen = np.searchsorted(ends, numbers * ends[-1], side="right").clip(max=len(ends) - 1)
        counts: list[int] = np.bincount(chosen, minlength=len(ends)).tolist()
        return counts

    def _begin(self) -> None:
        """At the first draw in a process: what a worker draws is neither the parent's nor its siblings'."""
        share, worker = worker_share(self._share)
        if self._began == share:
            return
        slot = worker % (1 + WORKERS)
        self._start(share, int(self._passes[slot]))
        self._passes[slot] += 1

    def _start(self, share: Share, number: int) -> None:
        self._began, self._pass, self._drawn = share, number, 0
        for place, dataset in enumerate(self.datasets):
            if dataset.streaming:
                dataset.sampler.restart(number)  # type: ignore[attr-defined]
            else:
                key = (_STORED, self._seed, number, share.number, share.of, place)
                seed = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))
                dataset.set_rng(torch.Generator().manual_seed(seed))

    def __iter__(self) -> Iterator[Any]:
        """Batches without end, from where the last one was drawn.

        Raises:
            RuntimeError: the mixture has no batch size.
        """
        if self.batch_size is None:
            raise RuntimeError("No batch size: give one to the mixture before iterating.")
        return iter(self.sample, None)

    def close(self) -> None:
        """End the background threads. The mixture can still be used."""
        for dataset in self.datasets:
            dataset.close()

    # --- state -----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: numbers, and the states of the datasets."""
        began = self._began
        return {
            "proportions": dict(self.proportions),
            "seed": self._seed,
            "began": None if began is None else [began.number, began.of],
            "pass": self._pass,
            "drawn": self._drawn,
            "datasets": {n: d.state_dict() for n, d in zip(self.names, self.datasets, strict=True)},
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where the state was taken.

        Args:
            state_dict: what :meth:`state_dict` gave.

        Raises:
            ValueError: the state is of another mixture, or of another share of the readers.
        """
        if dict(state_dict["proportions"]) != self.proportions:
            raise ValueError(
                f"The state is of a mixture of {state_dict['proportions']}, this one is {self.proportions}."
            )
        began = state_dict["began"]
        here, worker = worker_share(self._share)
        if began is not None and Share(*began) != here:
            raise ValueError(f"The state is of {Share(*began)}, this process reads {here}.")
        for name, dataset in zip(self.names, self.datasets, strict=True):
            dataset.load_state_dict(state_dict["datasets"][name])
        self._seed = state_dict["seed"]
        self._began = None if began is None else here
        self._pass, self._drawn = state_dict["pass"], state_dict["drawn"]
        self._passes[worker % (1 + WORKERS)] = self._pass + (began is not None)

    def _facts(self) -> dict[str, Any]:
        """What its repr tells."""
        told = {name: showing.Words(f"{part:.3g}") for name, part in self.proportions.items()}
        slices = {"num_slices": self._slicing.num_slices, "slice_len": self._slicing.slice_len}
        told_slices = {name: value for name, value in slices.items() if value is not None}
        share = {"share": showing.Words(f"{self._share.number} of {self._share.of}")}
        settings = {**told_slices, **(share if self._share.of > 1 else {}), "batch_size": self.batch_size}
        return {"proportions": told, **settings}

    def __repr__(self) -> str:
        return showing.text_of(self)

    def _repr_html_(self) -> str:
        return showing.html_of(self)


def _check_transform(transform: Any) -> None:
    """See to it that a transform makes do with a batch."""
    if not callable(transform):
        raise TypeError(f"A transform is called with a batch, got a {type(transform).__name__}.")
    for sampling in TransformChain([transform]).sampling:
        raise TypeError(
            f"{type(sampling).__name__} reads other steps than those that were drawn, and a mixture has no "
            "others: give it to stored datasets, each a buffer of its own"
        )
