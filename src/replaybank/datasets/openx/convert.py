"""Converts the episodes of a source into memory-mapped tensors, shard by shard."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from replaybank.datasets.openx.builder import DatasetBuilder
from replaybank.datasets.openx.catalog import LastStep
from replaybank.datasets.openx.conveyor import Conveyor, threads_for
from replaybank.datasets.openx.corrections import Corrections, corrected
from replaybank.datasets.openx.files import MANIFEST, PROGRESS, Manifest, read_begun, read_manifest
from replaybank.datasets.openx.frames import extend_crc32c
from replaybank.datasets.openx.planning import plan
from replaybank.datasets.openx.room import check_room
from replaybank.datasets.openx.skipping import (
    LeftOut,
    OnError,
    check_on_error,
    good_episodes,
    name_of,
    records,
)
from replaybank.datasets.openx.sources.base import (
    EpisodeSource,
    Key,
    Shard,
    declared_episodes,
    kind_of,
    metadata_fields_of,
    notes_of,
)
from replaybank.datasets.openx.sources.download import DownloadedSource
from replaybank.datasets.openx.sources.files import is_url, sizes_of
from replaybank.datasets.openx.sources.http import is_http
from replaybank.datasets.openx.sources.images import EncodedImages
from replaybank.datasets.openx.sources.lerobot import LeRobotSource
from replaybank.datasets.openx.sources.open import open_source
from replaybank.datasets.openx.ted import Leaf, select_images, settle_shapes, ted_leaves, to_ted, widen_shapes
from replaybank.errors import DataFormatError
from replaybank.progress import Bar

DEFAULT_MEMORY = 1 << 30
"""Bytes that a conversion holds unless told otherwise: episodes of every published dataset fit many times."""


DOWNLOADS = ".download"
"""Behind the name of the converted dataset: the folder of raw shards while it is made."""


def convert(
    source: EpisodeSource | str | os.PathLike[str] | None,
    dest: str | os.PathLike[str],
    *,
    split: str = "train",
    overwrite: bool = False,
    progress: bool | None = None,
    on_error: OnError = "raise",
    images: Literal["raw", "encoded"] = "raw",
    image_keys: Sequence[str | Key] | None = None,
    num_workers: int | None = None,
    max_memory: int = DEFAULT_MEMORY,
    allow_missing: bool = False,
    dataset_id: str | None = None,
    bgr: Sequence[str] | None = None,
    last_step: LastStep | None = None,
) -> Manifest:
    """Convert robot episodes into a memory-mapped dataset. O(bytes); frames are decoded on all cores.

    The dataset is usable once this has returned; killed before, at any instant, the same call goes on behind
    the last shard that was made permanent (one a second at least, where shards end), with the same result to
    the byte, whatever the number of workers. A finished one is left as it is. Whether the disk has room is
    worked out first.

    Faults that the catalog of the Open X-Embodiment datasets knows of are put right, and the manifest's
    origin says which. Shards behind HTTP are downloaded into ``<dest>.download``, each while the one before
    is converted, resumed where that was interrupted, and removed once they were read.

    Args:
        source: path or URL of an RLDS or LeRobot dataset or of the hub's tar shards, an id of the catalog,
            ``"rlds"``, ``"hub"`` or ``"lerobot"`` with ``dataset_id``, or any episode source. ``None``: where
            the catalog says that ``dataset_id`` is published.
        dest: folder to write to; made if missing, else empty or holding this conversion.
        split: split to convert, where ``source`` is a folder.
        overwrite: replace a converted dataset, or begin anew one that is unfinished.
        progress: show a progress bar; by default where the error output is a terminal.
        on_error: ``"raise"`` stops at a record that cannot be read; ``"skip"`` leaves it out and counts it.
        images: ``"raw"``: frames are decoded now, and sampled as fast as memory allows. ``"encoded"``: their
            JPEG or PNG bytes are kept, ten to twenty times smaller, and what is sampled is decoded then.
        image_keys: cameras to keep, by name (``"wrist_image"``) or path (``("observation", "wrist_image")``);
            all by default.
        num_workers: threads that decode (decoders let others run); by default one a core.
        max_memory: bytes of episodes and decoded frames that are held at a time, beside what the process
            takes anyway.
        allow_missing: convert what is there of a dataset that lacks files which it declares.
        dataset_id: id in the catalog, where it is not the dataset's own name.
        bgr: cameras whose frames have blue first and are put right; by default those that the catalog names.
        last_step: ``"drop"`` leaves out the last step of each episode, ``"keep"`` does not; by default what
            the catalog says.

    Returns:
        What the dataset holds, what was put right in it and what was left out.

    Raises:
        CorruptRecordError: a record fails its checksum or is cut short; names file, record and offset.
        DataFormatError: an episode is not what the dataset declares, or there are no episodes.
        FileExistsError: ``dest`` holds something else.
        ValueError: ``dest`` is a URL, ``source`` is converted already, has no such camera, or is no dataset's
            name; the nearest ones are given.
        FileNotFoundError: there is nothing to read at ``source``, or files of it are missing.
        ConnectionError: the server cannot be reached.
        OSError: the disk has no room for the dataset (``errno.ENOSPC``); both sizes are named.
        MemoryError: one episode takes more than ``max_memory``.
        BlockingIOError: another conversion is writing to ``dest``.

    Example:
        >>> import tempfile
        >>> from replaybank.demo.arm import write_arm_dataset
        >>> folder = tempfile.TemporaryDirectory()
        >>> made = convert(write_arm_dataset(folder.name + "/arm", episodes=3), folder.name + "/converted")
        >>> made.name, made.episodes, made.skipped
        ('two_link_arm', 3, ())
        >>> folder.cleanup()
    """
    check_on_error(on_error)
    if images not in ("raw", "encoded"):
        raise ValueError(f"images must be 'raw' or 'encoded', got {images!r}")
    options = _Options(
        overwrite=overwrite,
        progress=progress,
        on_error=on_error,
        encoded=images == "encoded",
        image_keys=image_keys,
        threads=threads_for(num_workers, max_memory),
        max_memory=max_memory,
    )
    extend_crc32c(0, b"")  # raises here, with nothing begun, where the package for it is not installed
    target = os.fspath(dest)
    if not target or is_url(target):
        raise ValueError(
            f"dest={target!r}: datasets are converted into a folder of this machine; give its path"
        )
    folder = Path(target).expanduser()
    if source is not None and not isinstance(source, (str, os.PathLike)):
        opened = corrected(source, dataset_id, bgr=bgr, last_step=last_step)
        split = getattr(source, "split", split)
    else:
        opened = open_source(
            source,
            dataset_id,
            split,
            allow_missing_shards=allow_missing,
            # Cameras are decoded side by side: more threads for each would only be in each other's way.
            video_threads=0 if options.threads == 1 or options.encoded else 1,
            bgr=bgr,
            last_step=last_step,
        )
    # Of LeRobot datasets a shard needs parts of several files.
    if kind_of(opened) == LeRobotSource.__name__ or not any(is_http(shard.path) for shard in opened.shards()):
        return _convert(opened, split, folder, options)
    fetched = DownloadedSource(opened, os.path.abspath(folder) + DOWNLOADS, progress=progress)
    with fetched.ahead():
        made = _convert(fetched, split, folder, options)
    fetched.clear()
    return made


@dataclass(frozen=True)
class _Options:
    """How to convert; see :func:`convert`."""

    overwrite: bool
    progress: bool | None
    on_error: OnError
    encoded: bool
    image_keys: Sequence[str | Key] | None
    threads: int
    max_memory: int


def _convert(source: EpisodeSource, split: str, folder: Path, options: _Options) -> Manifest:
    shards = list(source.shards())
    on_error = options.on_error
    leaves = select_images(ted_leaves(source.fields), options.image_keys)
    if not options.overwrite:
        leaves = _as_before(folder, leaves)
    # What is looked at now is read once more when it is converted: it need not be fetched again.
    with getattr(source, "keeping", nullcontext)():
        leaves = _leaves(source, leaves, shards, on_error)
    origin: dict[str, Any] = {
        "kind": kind_of(source),
        "version": getattr(source, "version", ""),
        # Names and versions alone do not tell a dataset from one that was made anew under the same name.
        "shards": [
            [name_of(shard), shard.episodes, size]
            for shard, size in zip(shards, sizes_of([shard.path for shard in shards]), strict=True)
        ],
    }
    corrections = getattr(source, "corrections", None)
    if isinstance(corrections, Corrections):
        origin["corrections"] = corrections.to_json()
    wanted = plan(source.name, split, origin, leaves, encoded=options.encoded)
    wanted = replace(
        wanted,
        faults=dict.fromkeys((*notes_of(source), *_not_kept(source)), 1),
        metadata_label_names={
            key: spec.labels for key, spec in metadata_fields_of(source).items() if spec.labels
        },
    )
    if not options.overwrite and (folder / MANIFEST).is_file():
        done = read_manifest(folder)
        if done.same_conversion(wanted):
            return done  # else the builder says what is wrong
    with (
        DatasetBuilder(folder, wanted, leaves, overwrite=options.overwrite) as builder,
        _bar(shards, builder, options.progress) as bar,
        Conveyor(
            builder,
            lambda episode, number: to_ted(episode, leaves, number, source.name),
            lambda episode, shard, record: {"where": f"{shard} record {record}", **_plain(episode.metadata)},
            threads=options.threads,
            max_memory=options.max_memory,
            skip=on_error == "skip",
            settled=lambda steps: bar.update(steps=steps),
        ) as conveyor,
    ):
        rest = shards[len(builder.manifest.shards) :]
        check_room(source, rest, builder.manifest, folder, on_error)
        for shard in rest:
            name = name_of(shard)
            for record, found in records(source, shard, skip=on_error == "skip"):
                if isinstance(found, LeftOut):
                    conveyor.skipped(name, record, found.reason)
                else:
                    conveyor.episode(name, record, found)
            conveyor.end_of_shard(name)
        conveyor.finish()
        if builder.manifest.episodes == 0:
            raise DataFormatError(f"{source.name}: there are no episodes in split {split!r} to convert")
        return builder.finish()


def _as_before(folder: Path, leaves: dict[Key, Leaf]) -> dict[Key, Leaf]:
    """The leaves with the shapes that an earlier run of this conversion found, if there was one.

    If it was another conversion, that is told later, whatever the shapes.
    """
    begun = next((name for name in (MANIFEST, PROGRESS) if (folder / name).is_file()), None)
    if begun is None or not any(-1 in leaf.shape for leaf in leaves.values()):
        return leaves
    known = {leaf.key: leaf.shape for leaf in read_begun(folder / begun).leaves}
    return {
        key: replace(leaf, shape=known[key])
        if key in known
        and len(known[key]) == len(leaf.shape)
        and all(one in (-1, other) for one, other in zip(leaf.shape, known[key], strict=True))
        else leaf
        for key, leaf in leaves.items()
    }


def _leaves(
    source: EpisodeSource, leaves: dict[Key, Leaf], shards: list[Shard], on_error: OnError
) -> dict[Key, Leaf]:
    """The leaves of the dataset; shapes not declared are those of the first episodes that show them.

    Where lists differ in length all records are looked at, their frames excepted, for the longest.
    """
    ragged = any(leaf.ragged and -1 in leaf.shape for leaf in leaves.values())
    for shard in shards:
        if not ragged and all(-1 not in leaf.shape for leaf in leaves.values()):
            break
        for episode in good_episodes(source, shard, skip=on_error == "skip"):
            leaves = widen_shapes(settle_shapes(leaves, episode), episode)
            if not ragged and all(-1 not in leaf.shape for leaf in leaves.values()):
                break
    leaves = {  # where no episode has a list at all, they are all empty
        key: replace(leaf, shape=tuple(max(size, 0) for size in leaf.shape)) if leaf.ragged else leaf
        for key, leaf in leaves.items()
    }
    unknown = {"/".join(leaf.key): leaf.shape for leaf in leaves.values() if -1 in leaf.shape}
    if unknown:
        raise DataFormatError(f"{source.name}: no episode shows the shapes that are not declared: {unknown}")
    return leaves


def _not_kept(source: EpisodeSource) -> Iterator[str]:
    """What is left behind of the episodes as wholes."""
    for key, spec in metadata_fields_of(source).items():
        if spec.kind == "image":
            yield f"the frames of {'/'.join(key)}, which is of the episode as a whole, are not kept"


def _plain(metadata: Mapping[Key, Any]) -> dict[str, Any]:
    """Metadata of an episode as JSON values: arrays as lists, bytes and numbers that JSON lacks as text.

    Frames are left out.
    """

    def value(x: Any) -> Any:
        if isinstance(x, (np.ndarray, np.generic)):
            return value(x.tolist())
        if isinstance(x, bytes):
            return x.decode("utf-8", "backslashreplace")
        if isinstance(x, float) and not math.isfinite(x):
            return str(x)
        if isinstance(x, (list, tuple)):
            return [value(item) for item in x]
        return x if isinstance(x, (bool, int, float, str)) or x is None else str(x)

    kept = [[list(key), value(x)] for key, x in metadata.items() if not isinstance(x, EncodedImages)]
    return {"metadata": kept} if kept else {}


def _bar(shards: Sequence[Shard], builder: DatasetBuilder, show: bool | None) -> Bar:
    """The progress bar of a conversion: episodes, with steps a second."""
    total = declared_episodes(shards)
    return Bar(builder.manifest.name, "episode", total, show=show, done=builder.episodes)
