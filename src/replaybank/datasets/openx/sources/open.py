"""Opens a dataset of robot episodes, whatever form it is in and wherever it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from replaybank.checkpoint import is_checkpoint
from replaybank.datasets.openx.catalog import LastStep, datasets, facts_of, is_name
from replaybank.datasets.openx.corrections import corrected
from replaybank.datasets.openx.files import is_converted
from replaybank.datasets.openx.sources.base import EpisodeSource
from replaybank.datasets.openx.sources.files import is_url
from replaybank.datasets.openx.sources.hub_tar import HubTarSource, is_hub_tar
from replaybank.datasets.openx.sources.lerobot import LeRobotSource, is_lerobot
from replaybank.datasets.openx.sources.lerobot_info import INFO_FILE as LEROBOT_INFO
from replaybank.datasets.openx.sources.origins import (
    ORIGINS,
    is_repository,
    public_url,
    repository_url,
    url_of,
)
from replaybank.datasets.openx.sources.rlds import RLDSSource, is_rlds

LEVELS: Final = 2
"""How far below a folder without a dataset one is looked for, to be named."""
MOST_FOLDERS: Final = 200
"""Folders that are looked at for that, of each level."""
MOST_SHOWN: Final = 5
"""Datasets that are named."""


class Form(NamedTuple):
    """A form in which datasets are published.

    Args:
        origin: as ``source=`` calls it.
        name: as people call it.
        sign: what is found in a folder of that form.
        matches: whether a path or URL, for a dataset's id, holds one.
        open: makes the source of a path, split and id; the flag allows missing files, the number is that of
            threads of a video decoder.
    """

    origin: str
    name: str
    sign: str
    matches: Callable[[str, str | None], bool]
    open: Callable[[str, str, str | None, bool, int], EpisodeSource]


FORMS: Final = (
    Form(
        "rlds",
        "RLDS",
        "dataset_info.json",
        lambda path, _: is_rlds(path),
        lambda path, split, _, missing, __: RLDSSource(path, split, allow_missing_shards=missing),
    ),
    Form(
        "lerobot",
        "LeRobot",
        LEROBOT_INFO,
        lambda path, _: is_lerobot(path),
        lambda path, split, _, missing, threads: LeRobotSource(
            path, split, allow_missing=missing, video_threads=threads
        ),
    ),
    Form(
        "hub",
        "tar shards",
        "<id>_00000.tar",
        lambda path, name: is_hub_tar(path, name) or (name is not None and is_hub_tar(path)),
        lambda path, split, name, missing, _: HubTarSource(
            path,
            split,
            dataset_id=name if is_hub_tar(path, name) else None,
            allow_missing_shards=missing,
        ),
    ),
)
"""In the order in which they are looked for."""


def open_source(
    source: str | os.PathLike[str] | None = None,
    dataset_id: str | None = None,
    split: str = "train",
    *,
    allow_missing_shards: bool = False,
    video_threads: int = 0,
    bgr: Sequence[str] | None = None,
    last_step: LastStep | None = None,
) -> EpisodeSource:
    """The episodes of a dataset, given by its place or by its name, with its known faults put right.

    Args:
        source: a path or URL; ``"rlds"`` or ``"hub"``: where ``dataset_id`` is published in that form;
            ``"lerobot"``: the LeRobot dataset ``dataset_id``, a repository of the hub (``"user/name"``), a
            path or a URL; ``None``: where the catalog says that it is best taken from. An id of the catalog
            alone means the same.
        dataset_id: id in the catalog, which says what is to be put right; by default the dataset's own name.
        split: which split.
        allow_missing_shards: read the shards that are there when others are missing.
        video_threads: of each video decoder; 0: as many as there are cores.
        bgr: cameras whose frames have blue first; by default those that the catalog names.
        last_step: ``"keep"`` or ``"drop"`` the last step of each episode; by default what the catalog says.

    Raises:
        ValueError: there is no such dataset (the nearest names are given), split or camera; or the path holds
            a converted dataset.
        FileNotFoundError: there is nothing that can be read at that place, or shards are missing.
        ConnectionError: the server cannot be reached.

    Example:
        >>> import tempfile
        >>> from replaybank.demo.arm import write_arm_dataset
        >>> folder = tempfile.TemporaryDirectory()
        >>> open_source(write_arm_dataset(folder.name + "/arm", episodes=1)).name
        'two_link_arm'
        >>> folder.cleanup()
    """
    known = dataset_id if dataset_id in datasets() else None
    found = open_published(
        source, dataset_id, split, allow_missing_shards=allow_missing_shards, video_threads=video_threads
    )
    return corrected(found, known, bgr=bgr, last_step=last_step)


def open_published(
    source: str | os.PathLike[str] | None = None,
    dataset_id: str | None = None,
    split: str = "train",
    *,
    allow_missing_shards: bool = False,
    video_threads: int = 0,
) -> EpisodeSource:
    """The episodes as they are published, faults and all; otherwise as :func:`open_source`."""
    origin, path = _locate(source, dataset_id)
    for form in FORMS:
        if form.origin == origin or (origin is None and form.matches(path, dataset_id)):
            return form.open(path, split, dataset_id, allow_missing_shards, video_threads)
    if is_converted(path):
        raise ValueError(f"{path} is a converted dataset already; it can be used as it is")
    raise FileNotFoundError(_nothing_at(path))


def _locate(source: str | os.PathLike[str] | None, dataset_id: str | None) -> tuple[str | None, str]:
    """In which form of publication a dataset is, where that is known from its name; and its path or URL.

    Raises:
        ValueError: there is no such dataset, or not in that form.
    """
    if source is None or is_origin(source):
        if dataset_id is None:
            raise ValueError("a dataset is given by source=, its path or URL, or by dataset_id=")
        if source == "lerobot" or (source is None and is_repository(dataset_id)):
            return "lerobot", _lerobot_place(dataset_id)
        facts = facts_of(dataset_id)
        origin = facts.origin if source is None else os.fspath(source)
        return origin, url_of(facts, origin)
    path = os.fspath(source)
    if is_url(path):
        return None, public_url(path)
    if is_name(path):
        return _locate(None, path)
    return None, os.path.expanduser(path)


def _lerobot_place(given: str) -> str:
    """The path or URL of a LeRobot dataset.

    Raises:
        ValueError: a name was given that is no repository.
    """
    if is_url(given):
        return public_url(given)
    path = os.path.expanduser(given)
    if os.path.exists(path) or os.path.isabs(path):
        return path
    if is_repository(given):
        return repository_url(given)
    if given in datasets():
        return url_of(facts_of(given), "lerobot")
    raise ValueError(
        "a LeRobot dataset is given by its repository on the hub ('user/name'), a path or a URL, "
        f"got {given!r}"
    )


def is_origin(source: str | os.PathLike[str]) -> bool:
    """Whether a form of publication was given, and not a path of this machine."""
    return isinstance(source, str) and source in ORIGINS and not Path(source).exists()


def _nothing_at(path: str) -> str:
    if not is_url(path) and not Path(path).exists():
        near = ""
        if not os.path.dirname(path):  # it may have been meant as a name
            try:
                facts_of(path)
            except ValueError as error:
                near = f", and {error}"
        elif is_repository(path):
            near = f"; a LeRobot dataset of the hub is given as source='lerobot', dataset_id='{path}'"
        return f"{path}: there is no such file or folder{near}"
    if not is_url(path) and is_checkpoint(path):
        return (
            f"{path}: it is a checkpoint of a buffer, no dataset; `replaybank info`, `view` and `report` "
            "show what is in it, and loads() of a buffer reads it"
        )
    forms = ", ".join(f"{form.name} ({form.sign})" for form in FORMS)
    return (
        f"{path}: it is neither a converted dataset (manifest.json) nor one of {forms}; "
        f"give the folder that holds one of these{_below(path)}"
    )


def _below(path: str) -> str:
    """Where the datasets are that lie below a folder, as words for an error; nothing if there are none."""
    if is_url(path) or not Path(path).is_dir():
        return ""
    found = datasets_below(path)
    if not found:
        return ""
    more = f" and {len(found) - MOST_SHOWN} more" if len(found) > MOST_SHOWN else ""
    return f"; below it: {', '.join(found[:MOST_SHOWN])}{more}"


def datasets_below(folder: str | os.PathLike[str]) -> list[str]:
    """Folders of datasets, converted or as published, up to ``LEVELS`` below one of this machine.

    >>> datasets_below("/nowhere")
    []
    """
    found: list[str] = []
    level = [os.fspath(folder)]
    for _ in range(LEVELS):
        inner = []
        for path in (each for above in level for each in _folders(above)):
            if is_converted(path) or any(form.matches(path, None) for form in FORMS):
                found.append(path)
            else:
                inner.append(path)
        level = inner[:MOST_FOLDERS]
    return found


def _folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(entry.path for entry in entries if entry.is_dir())[:MOST_FOLDERS]
    except OSError:  # it cannot be read: then nothing can be said of what is in it
        return []
