"""Episodes as a report looks at them, made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from replaybank.datasets.openx.sources.base import Key
from replaybank.report.findings import Check, Finding
from replaybank.report.look import Look

CAMERA: Key = ("observation", "image")
TERMINATED: Key = ("next", "terminated")
TRUNCATED: Key = ("next", "truncated")
DONE: Key = ("next", "done")
REWARD: Key = ("next", "reward")
ACTION: Key = ("action",)


def look(
    number: int,
    length: int = 4,
    *,
    columns: dict[Key, Any] | None = None,
    image: npt.NDArray[Any] | None = None,
    missing: Iterable[Key] = (),
    terminal: bool = True,
    ended: bool = True,
) -> Look:
    """An episode that ends with its last step, with an action that no other has."""
    last = np.arange(length) == length - 1
    values: dict[Key, Any] = {
        ACTION: np.arange(length, dtype=np.float32)[:, None] + number,
        REWARD: last.astype(np.float32)[:, None],
        DONE: last[:, None],
        TERMINATED: (last & terminal)[:, None],
        TRUNCATED: (last & (not terminal))[:, None],
        **(columns or {}),
    }

    def frames(steps: Sequence[int]) -> npt.NDArray[Any]:
        assert image is not None
        return image[list(steps)]

    return Look(
        number,
        f"place {number}",
        length,
        values,
        {} if image is None else {CAMERA: frames},
        frozenset(missing),
        ended,
    )


def found(check: Check, looks: Iterable[Look]) -> list[Finding]:
    """What a check finds in episodes."""
    for one in looks:
        check.see(one)
    return list(check.findings())
