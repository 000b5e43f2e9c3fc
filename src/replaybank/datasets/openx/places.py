"""Where a dataset is, or is to be kept, by its name and source."""

from __future__ import annotations

import os
from pathlib import Path
from time import sleep
from typing import Literal

from replaybank.datasets.openx.catalog import datasets
from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.corrections import corrected
from replaybank.datasets.openx.files import MANIFEST, is_converted
from replaybank.datasets.openx.options import is_path
from replaybank.datasets.openx.skipping import OnError
from replaybank.datasets.openx.sources.base import EpisodeSource
from replaybank.datasets.openx.sources.open import is_origin, open_source
from replaybank.datasets.openx.sources.origins import is_repository

WAIT_SECONDS = 0.5
"""Between two looks of a rank that waits for another one's conversion."""


def default_root() -> Path:
    """Where converted datasets are kept: ``replaybank/openx`` in the user's cache directory."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "replaybank" / "openx"


def stored_at(
    dataset_id: str,
    source: str | os.PathLike[str] | EpisodeSource | None,
    root: str | os.PathLike[str] | None,
    split: str,
    download: bool | str | None,
    *,
    images: Literal["raw", "encoded"],
    num_workers: int | None,
    allow_missing: bool,
    on_error: OnError,
    ranks: int,
) -> Path:
    """The folder of the converted dataset, converting it first where an origin is given or to be found.

    Of several ``ranks`` one converts, and the others wait for it.
    """
    if ranks > 1 and download == "force":
        raise ValueError(
            f"download='force' in {ranks} ranks would replace what others read already: do it once, in one "
            "process, before"
        )
    named = source is None or (isinstance(source, str) and is_origin(source))
    place = os.path.expanduser(source) if is_path(source) and not named else source
    if is_path(place) and not named and "://" not in os.fspath(place) and is_converted(place):
        return Path(place)
    one_name = dataset_id not in ("", ".", "..") and Path(dataset_id).name == dataset_id
    one_name = one_name and "\0" not in dataset_id
    if not one_name and not is_repository(dataset_id):
        raise ValueError(
            f"dataset_id names a dataset, it is no path: got {dataset_id!r}; pass paths as source="
        )
    folder = Path(root).expanduser() if root is not None else default_root()
    folder = folder / (dataset_id if split == "train" else f"{dataset_id}-{split}")
    if named and (not download or (download is True and (folder / MANIFEST).is_file())):
        if not is_converted(folder):
            raise FileNotFoundError(
                f"there is no converted dataset {dataset_id!r} in {folder.parent}: pass download=True to "
                "fetch an Open X-Embodiment dataset or a LeRobot dataset of the hub ('user/name'), or "
                "source=, the path of one in any form"
            )
        return folder
    while True:
        try:
            convert(
                place,
                folder,
                split=split,
                overwrite=download == "force",
                dataset_id=dataset_id,
                images=images,
                num_workers=num_workers,
                allow_missing=allow_missing,
                on_error=on_error,
            )
        except BlockingIOError:
            if ranks == 1:
                raise
            sleep(WAIT_SECONDS)
        else:
            return folder


def streamed_from(
    dataset_id: str,
    source: str | os.PathLike[str] | EpisodeSource | None,
    split: str,
    *,
    num_workers: int | None = None,
    allow_missing: bool = False,
) -> EpisodeSource:
    """The episodes of a dataset that is streamed, its known faults put right."""
    if source is not None and not isinstance(source, (str, os.PathLike)):
        return corrected(source, dataset_id if dataset_id in datasets() else None)
    if source is not None and not is_origin(source) and is_converted(os.path.expanduser(source)):
        raise ValueError(
            f"{os.fspath(source)} is converted already, and need not be streamed: pass streaming=False"
        )
    return open_source(
        source,
        dataset_id,
        split,
        allow_missing_shards=allow_missing,
        # Episodes are decoded side by side: more threads for each would only be in each other's way.
        video_threads=0 if num_workers in (0, 1) else 1,
    )
