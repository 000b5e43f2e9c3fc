"""The 55 Open X-Embodiment datasets: what is published, and what is known to be wrong with it."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal

LastStep = Literal["keep", "drop"]
"""What becomes of the last step of an episode, whose action means something, or, as RLDS has it, nothing."""

_UNITS: Final = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_NEAREST: Final = 3
"""Ids that an error proposes."""


@dataclass(frozen=True)
class SplitFacts:
    """One split as published.

    Args:
        episodes: number of episodes.
        shards: number of files.
        size: bytes of them all, rounded as the publisher did.
    """

    episodes: int
    shards: int
    size: int


@dataclass(frozen=True)
class DatasetFacts:
    """What is known of one dataset. The files of the dataset win over it.

    Args:
        id: its name.
        version: the one to use.
        robot: which robot; empty where nobody says.
        hz: steps a second, approximately; None where nobody says.
        splits: by name, ``"train"`` first.
        observation: names of the entries of an observation.
        cameras: those of them that are images, each ``"HxWxC dtype"``.
        action: ``"dtype[shape]"``, or that of each of its parts.
        step: entries of a step beside the usual ones.
        instruction: entries that hold the instruction.
        defects: what is known to be wrong.
        bgr: cameras whose frames have blue first; they are put right when they are read.
        last_step: ``"drop"`` where the action of an episode's last step means nothing.
        origin: where to get it from, unless asked otherwise: ``"rlds"`` or ``"hub"``.
    """

    id: str
    version: str
    robot: str
    hz: float | None
    splits: Mapping[str, SplitFacts]
    observation: tuple[str, ...]
    cameras: Mapping[str, str]
    action: str | Mapping[str, str]
    step: tuple[str, ...]
    instruction: tuple[str, ...]
    defects: tuple[str, ...]
    bgr: tuple[str, ...]
    last_step: LastStep
    origin: str

    @property
    def size(self) -> int:
        """Bytes of all splits."""
        return sum(split.size for split in self.splits.values())

    @property
    def episodes(self) -> int:
        """Episodes of all splits."""
        return sum(split.episodes for split in self.splits.values())


def datasets() -> Mapping[str, DatasetFacts]:
    """All datasets by id, in the order of their publication.

    >>> len(datasets()), datasets()["bridge"].robot
    (55, 'WidowX')
    """
    return _read()[0]


def mixtures() -> Mapping[str, Mapping[str, float]]:
    """The published mixtures: by name, the weight of each dataset.

    >>> mixtures()["rtx"]["taco_play"]
    2.0
    """
    return _read()[1]


def is_name(source: str | os.PathLike[str]) -> bool:
    """Whether what was given is an id of the catalog, and not a path of this machine."""
    path = os.fspath(source)
    return path in datasets() and not Path(path).exists()


def facts_of(dataset_id: str) -> DatasetFacts:
    """What is known of a dataset.

    Raises:
        ValueError: there is none of this id; the nearest ones are named.

    >>> facts_of("brigde")
    Traceback (most recent call last):
        ...
    ValueError: there is no Open X-Embodiment dataset 'brigde'; did you mean bridge? `replaybank list` ...
    """
    known = datasets()
    if dataset_id not in known:
        near = difflib.get_close_matches(dataset_id, known, _NEAREST, 0.5)
        near = near or [name for name in known if dataset_id and dataset_id.lower() in name][:_NEAREST]
        meant = f"; did you mean {', '.join(near)}?" if near else "."
        raise ValueError(
            f"there is no Open X-Embodiment dataset {dataset_id!r}{meant} `replaybank list` names all "
            f"{len(known)}; datasets of your own are given as source=, their path or URL"
        )
    return known[dataset_id]


class AvailableDatasets:
    """The ids as an attribute of a class."""

    def __get__(self, instance: object, owner: type | None = None) -> list[str]:
        return list(datasets())


@cache
def _read() -> tuple[Mapping[str, DatasetFacts], Mapping[str, Mapping[str, float]]]:
    text = resources.files("replaybank.datasets.openx").joinpath("catalog.toml").read_text(encoding="utf-8")
    raw = _toml().loads(text)
    return {name: _facts(name, entry) for name, entry in raw["datasets"].items()}, raw["mixtures"]


def _facts(name: str, entry: Mapping[str, Any]) -> DatasetFacts:
    return DatasetFacts(
        id=name,
        version=entry["version"],
        robot=entry.get("robot", ""),
        hz=entry.get("hz"),
        splits={
            split: SplitFacts(known["episodes"], known["shards"], _bytes(known["size"]))
            for split, known in entry["splits"].items()
        },
        observation=tuple(entry["observation"]),
        cameras=entry["cameras"],
        action=entry["action"],
        step=tuple(entry.get("step", ())),
        instruction=tuple(entry["instruction"]),
        defects=tuple(entry.get("defects", ())),
        bgr=tuple(entry.get("bgr", ())),
        last_step=entry.get("last_step", "keep"),
        origin=entry.get("origin", "rlds"),
    )


def _bytes(size: str) -> int:
    number, unit = size.split()
    return round(float(number) * _UNITS[unit])


def _toml() -> Any:
    if sys.version_info >= (3, 11):
        import tomllib

        return tomllib
    try:
        import tomli
    except ImportError as error:
        raise ImportError(
            "the catalog of datasets needs tomli on Python 3.10: pip install 'replaybank[openx]'"
        ) from error
    return tomli
