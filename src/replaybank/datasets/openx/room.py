"""Is there room on the disk for a dataset? Worked out before it is converted."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from replaybank.datasets.openx.files import Manifest
from replaybank.datasets.openx.sources.base import Episode, EpisodeSource, Shard
from replaybank.datasets.openx.sources.files import is_url, sizes_of
from replaybank.errors import DataFormatError
from replaybank.storages.capacity import human

SAMPLED_SHARDS = 8
"""Shards whose first episode is looked at where no number of steps is declared: enough that one odd episode
does not decide, few enough to take no time."""

DOUBT = 0.7
"""A dataset is refused if this part of what was worked out from samples does not fit: the episodes looked at
may be larger than others, and a conversion that the disk could hold is not to be refused."""


def check_room(
    source: EpisodeSource, shards: Sequence[Shard], manifest: Manifest, folder: Path, on_error: str
) -> None:
    """Refuse to convert what will not fit onto the disk.

    The number of steps is what the source declares, or else follows from the bytes of the shards and those of
    a step in some of them. Where neither is known, nothing is refused: a disk that is full later stops the
    conversion, which goes on from there once there is room.

    Args:
        source: the dataset.
        shards: those still to be converted.
        manifest: the conversion.
        folder: where it is written.
        on_error: as for :func:`~replaybank.datasets.openx.convert.convert`.

    Raises:
        OSError: with ``errno.ENOSPC``: there is less room than it takes; both numbers are named.
    """
    found = _steps(source, shards, on_error)
    if found is None:
        return
    steps, frame_bytes, exact = found
    row = manifest.layout.item_bytes + 8 * len(manifest.encoded)
    wanted = steps * row + (frame_bytes if manifest.encoded else 0)
    free = shutil.disk_usage(folder).free
    if wanted * (1.0 if exact else DOUBT) > free:
        advice = "Make room, or choose another folder" + (
            "." if manifest.encoded else '; images="encoded" takes a tenth where the cameras are most of it.'
        )
        raise OSError(
            errno.ENOSPC,
            f"{source.name}: {'' if exact else 'about '}{steps:,} steps will take {human(wanted)}, and "
            f"{human(free)} are free there. {advice}",
            os.fspath(folder),
        )


def _steps(source: EpisodeSource, shards: Sequence[Shard], on_error: str) -> tuple[int, int, bool] | None:
    """Steps in all, bytes of encoded frames in all, whether that is declared; None if nothing is known."""
    declared = [shard.steps for shard in shards]
    sizes = sizes_of([shard.path for shard in shards])
    total = sum(size for size in sizes if size is not None)
    if None not in declared:
        return sum(steps for steps in declared if steps is not None), total, True
    if None in sizes or any(is_url(shard.path) for shard in shards):
        return None  # looking at some would fetch them twice
    looked_at = [episode for shard in _spread(shards) if (episode := _first(source, shard, on_error))]
    held = sum(episode.record_bytes for episode in looked_at)
    if not held:
        return None
    steps = sum(episode.length for episode in looked_at)
    return total * steps // held, total, False


def _spread(shards: Sequence[Shard]) -> list[Shard]:
    count = min(len(shards), SAMPLED_SHARDS)
    return [shards[k * len(shards) // count] for k in range(count)]


def _first(source: EpisodeSource, shard: Shard, on_error: str) -> Episode | None:
    try:
        return next(iter(source.episodes(shard)), None)
    except DataFormatError:
        if on_error == "raise":
            raise
        return None
