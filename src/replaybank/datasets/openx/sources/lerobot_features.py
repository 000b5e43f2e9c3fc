"""From LeRobot's dotted feature names to the fields of a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from replaybank.datasets.openx.sources.base import FieldSpec, Key
from replaybank.datasets.openx.sources.lerobot_info import Feature

NUMBERING: Final = frozenset({"frame_index", "episode_index", "index"})
"""The file's own numbering of steps and episodes: checked, and not repeated in every step."""
TASK: Final = "task_index"
TIMESTAMP: Final = "timestamp"
ENDS: Final = ("next.done", "next.terminated", "next.truncated")
"""Flags of a step's outcome; together they say whether the last step ended in a terminal state."""
NUMBER_DTYPES: Final = frozenset(
    f"{kind}{bits}"
    for kind, widths in (("int", (8, 16, 32, 64)), ("uint", (8, 16, 32, 64)))
    for bits in widths
) | {"bool", "float16", "float32", "float64"}


def step_keys(features: Iterable[Feature]) -> dict[str, Key]:
    """Where each feature goes in a step: its name, split at the dots, ``("observation", "images", "top")``.

    A name is not split where what stands before the dot is a feature itself, so no entry is in another's
    way. ``next.reward`` becomes ``reward``, which is what other sources call it. Where no feature is called
    ``observation...``, as in files made for openpi, cameras and ``state`` are taken for observations; without
    an ``action...``, ``actions`` is the action.

    >>> image, number = Feature("image", "image", None), Feature("actions", "float32", (7,))
    >>> step_keys([image, number, Feature("next.reward", "float32", (1,))])
    {'image': ('observation', 'image'), 'actions': ('action',), 'next.reward': ('reward',)}
    """
    features = list(features)
    names = {feature.name for feature in features}
    observed = any(name.split(".")[0] == "observation" for name in names)
    acting = any(name.split(".")[0] == "action" for name in names)
    keys: dict[str, Key] = {}
    for feature in features:
        name = feature.name
        key = _split(name, names)
        if not observed and (feature.dtype in ("image", "video") or key[0] == "state"):
            key = ("observation", *key)
        elif not acting and name == "actions":
            key = ("action",)
        elif name == "next.reward":
            key = ("reward",)
        elif key == ("reward",) and "next.reward" in names:
            key = ("source_reward",)
        keys[name] = key
    return keys


def _split(name: str, names: set[str]) -> Key:
    parts: list[str] = []
    rest = ""
    for part in name.split("."):
        rest = f"{rest}.{part}" if rest else part
        before = ".".join([*parts, rest])
        if before in names and before != name:
            continue  # a feature stands here: what follows stays in this part
        parts.append(rest)
        rest = ""
    if rest:
        parts.append(rest)
    return tuple(parts) if all(parts) and ".".join(parts) == name else (name,)


def image_spec(feature: Feature) -> FieldSpec:
    """What is declared of a camera, as ``(H, W, C)``; some declare the channels first."""
    shape = feature.shape or ()
    if len(shape) == 2:
        shape = (*shape, 1)
    if len(shape) != 3:
        shape = (-1, -1, -1)
    named_first = len(feature.names) == 3 and feature.names[0].lower().startswith("channel")
    named_last = len(feature.names) == 3 and feature.names[2].lower().startswith("channel")
    few_first = shape[0] in (1, 3, 4) and shape[2] not in (1, 3, 4)
    if named_first or (few_first and not named_last):
        shape = (shape[1], shape[2], shape[0])
    return FieldSpec("image", shape, np.dtype(np.uint8))


def is_flag(spec: FieldSpec | None) -> bool:
    """Whether a field is one number a step."""
    return spec is not None and spec.kind == "tensor" and spec.shape in ((), (1,))


def terminal(ends: Mapping[str, np.ndarray[Any, Any]], length: int) -> np.ndarray[Any, Any] | None:
    """Whether each step ended in a terminal state, of the flags in :data:`ENDS` that are there.

    ``next.terminated`` says it; else ``next.done`` does, which LeRobot's own training takes for terminal,
    less what ``next.truncated`` names.
    """
    flags = {name: np.asarray(values).reshape(length).astype(bool) for name, values in ends.items()}
    if "next.terminated" in flags:
        return flags["next.terminated"]
    if "next.done" not in flags:
        return None
    done = flags["next.done"]
    return done & ~flags["next.truncated"] if "next.truncated" in flags else done


def declared_and_found(name: str, what: str, declared: Any, found: Any) -> str:
    """A line about a figure of info.json that is not so."""
    return f"{name}: info.json declares {what}{' ' if what else ''}{declared}, found {found}"


def some(names: Sequence[str], shown: int = 6) -> str:
    """The first few of many names."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
