"""Cameras that show nothing, or always the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from replaybank.datasets.openx.sources.base import Key
from replaybank.errors import DataFormatError
from replaybank.report.checks import episode
from replaybank.report.findings import Finding, Places, of
from replaybank.report.look import Look, name_of, spread

BLACK: Final = 8
"""Brightness of 255 that no pixel of a black frame has more than: JPEG makes small noise of zeros."""
FRAMES: Final = 3
"""Of an episode that are looked at: the first, the middle and the last one."""
EPISODES: Final = 32
"""In which cameras are looked at: a frame of a video takes as long to decode as all others together."""


class Cameras:
    """Cameras that are black, or stand still, or cannot be decoded.

    Args:
        keys: the cameras.
        every: they are looked at in one of so many episodes.
    """

    def __init__(self, keys: Sequence[Key], every: int = 1) -> None:
        self._keys = keys
        self._every = max(1, every)
        self._given = 0
        self._seen: dict[Key, int] = dict.fromkeys(keys, 0)
        self._moving: dict[Key, int] = dict.fromkeys(keys, 0)
        self._black = {key: Places() for key in keys}
        self._still = {key: Places() for key in keys}
        self._broken = {key: Places() for key in keys}

    def see(self, look: Look) -> None:
        """Look at one more episode. O(pixels of three frames a camera)."""
        self._given += 1
        if (self._given - 1) % self._every or (self._given - 1) // self._every >= EPISODES:
            return
        for key in self._keys:
            if key in look.frames and look.steps:
                self._see(look, key)

    def _see(self, look: Look, key: Key) -> None:
        self._seen[key] += 1
        try:
            frames = look.frames[key](spread(look.steps, FRAMES).tolist())
        except DataFormatError as error:
            self._broken[key].add(str(error))
            return
        if frames.size and frames.dtype == np.uint8 and frames.max() <= BLACK:
            self._black[key].add(episode(look))
        elif len(frames) == FRAMES:
            self._moving[key] += 1
            if (frames == frames[:1]).all():
                self._still[key].add(episode(look))

    def findings(self) -> Iterator[Finding]:
        """One a camera and kind."""
        for key in self._keys:
            name, seen = name_of(key), self._seen[key]
            broken, black, still = self._broken[key], self._black[key], self._still[key]
            if broken.count:
                yield Finding(
                    "problem",
                    f"Camera {name} cannot be decoded in {of(broken.count, seen, 'episode')}.",
                    "`replaybank verify` names every frame.",
                    broken.count,
                    broken.named,
                )
            if black.count:
                level = "problem" if black.count == seen else "warning"
                yield Finding(
                    "problem" if level == "problem" else "warning",
                    f"Camera {name} is black in {of(black.count, seen, 'episode')} that were looked at.",
                    "Its first, middle and last frame are black: it was not connected, or is a placeholder. "
                    "image_keys= leaves a camera out.",
                    black.count,
                    black.named,
                )
            if still.count:
                yield Finding(
                    "warning",
                    f"Camera {name} does not change in {of(still.count, self._moving[key], 'episode')} that "
                    "were looked at.",
                    "Its first, middle and last frame are the same to the last bit: it was frozen.",
                    still.count,
                    still.named,
                )
