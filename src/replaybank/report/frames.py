"""Frames on a page: small JPEGs, those of an episode side by side in one picture, within so many bytes."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from replaybank.report.look import Frames, Look, as_pixels, spread

Pixels = npt.NDArray[np.uint8]


class Rung(NamedTuple):
    """How much room frames take.

    Args:
        side: of the longer side, pixels, at most.
        quality: of the JPEG.
        frames: of an episode, at most.
    """

    side: int
    quality: int
    frames: int


LADDER: Final = (
    Rung(320, 92, 60),
    Rung(320, 84, 60),
    Rung(256, 80, 60),
    Rung(224, 72, 48),
    Rung(192, 70, 40),
    Rung(160, 65, 32),
    Rung(128, 60, 24),
    Rung(96, 55, 16),
    Rung(64, 50, 9),
    Rung(48, 40, 5),
    Rung(32, 40, 3),
)
"""From good to small; the first that fits into the page is taken."""
KEPT_QUALITY: Final = 95
"""Of the frames that wait in memory until it is known how much room there is."""
_FINE: Final = 90  # from this quality on colours are kept as sharp as brightness
_TYPICAL: Final = 0.08  # bytes a pixel of a JPEG
_WAITING: Final = 4  # times the room there is on the page
BLOCK: Final = 16
"""Pixels of a JPEG's blocks: cells of whole blocks do not run into each other."""
MARGIN: Final = 4
"""Pixels around a frame at least, copies of its edge: scaling mixes neighbouring pixels."""
DATA_URI: Final = "data:image/jpeg;base64,"


@dataclass(frozen=True)
class Strip:
    """Frames of one camera over an episode, waiting for their size.

    Args:
        steps: which steps they are of, ascending.
        jpegs: one each.
    """

    steps: tuple[int, ...]
    jpegs: tuple[bytes, ...]


@dataclass(frozen=True)
class Sheet:
    """Frames side by side in one picture.

    Args:
        steps: which steps they are of, ascending; the k-th is in column ``k % across``.
        jpeg: the picture.
        width: of a frame, pixels.
        height: of a frame.
        across: frames in a row.
        cell_width: from frame to frame, pixels.
        cell_height: from row to row.
    """

    steps: tuple[int, ...]
    jpeg: bytes
    width: int
    height: int
    across: int
    cell_width: int
    cell_height: int

    @property
    def uri(self) -> str:
        """The picture as the page holds it."""
        return DATA_URI + base64.b64encode(self.jpeg).decode()

    @property
    def size(self) -> tuple[float, float]:
        """Size of the picture in frames: what CSS calls background-size, as parts of one."""
        down = math.ceil(len(self.steps) / self.across)
        return self.across * self.cell_width / self.width, down * self.cell_height / self.height

    def position(self, frame: int) -> tuple[float, float]:
        """Where a frame is, as CSS counts a background's position: parts of the room that is left."""
        places = (frame % self.across * self.cell_width, frame // self.across * self.cell_height)
        margins = ((self.cell_width - self.width) // 2, (self.cell_height - self.height) // 2)
        wide, high = self.size
        room = ((wide - 1) * self.width, (high - 1) * self.height)
        x, y = ((place + margin) / left for place, margin, left in zip(places, margins, room, strict=True))
        return x, y


def first_rung(strips: int, room: int) -> Rung:
    """The best rung that so many strips may come to, so that what waits for its size fits into memory.

    >>> first_rung(6, 8_000_000) == LADDER[0], first_rung(1000, 8_000_000).side
    (True, 128)
    """
    for rung in LADDER:
        if strips * rung.frames * rung.side**2 * _TYPICAL <= _WAITING * room:
            return rung
    return LADDER[-1]


def strip_of(look: Look, frames: Frames, rung: Rung = LADDER[0]) -> Strip:
    """Frames of an episode, as many and as large as there may be room for. O(frames).

    Raises:
        DataFormatError: one cannot be decoded.
    """
    steps = spread(look.steps, rung.frames).tolist()
    jpegs = []
    for step in steps:  # one after the other: large ones need not fit into memory together
        pixels = as_pixels(frames([step]))[0]
        jpegs.append(_jpeg(_shrunk(pixels, rung.side), KEPT_QUALITY))
    return Strip(tuple(steps), tuple(jpegs))


def fit(strips: Sequence[Strip], room: int) -> tuple[list[Sheet], Rung] | None:
    """The strips as sheets, as good as ``room`` bytes of base64 allow; None if nothing fits. O(pixels)."""
    for rung in LADDER:
        sheets: list[Sheet] = []
        taken = 0
        for strip in strips:
            sheets.append(_sheet(strip, rung))
            taken += len(DATA_URI) + 4 * math.ceil(len(sheets[-1].jpeg) / 3)
            if taken > room:
                break
        else:
            return sheets, rung
    return None


def _sheet(strip: Strip, rung: Rung) -> Sheet:
    chosen = spread(len(strip.steps), rung.frames).tolist()
    frames = [_shrunk(_pixels(strip.jpegs[k]), rung.side) for k in chosen]
    height, width = frames[0].shape[:2]
    cell_width, cell_height = (-(-(side + 2 * MARGIN) // BLOCK) * BLOCK for side in (width, height))
    across = max(1, min(len(frames), round(math.sqrt(len(frames) * cell_height / cell_width))))
    down = math.ceil(len(frames) / across)
    sheet = np.zeros((down * cell_height, across * cell_width, 3), np.uint8)
    left, top = (cell_width - width) // 2, (cell_height - height) // 2
    pad = ((top, cell_height - height - top), (left, cell_width - width - left), (0, 0))
    for k, frame in enumerate(frames):
        row, column = k // across * cell_height, k % across * cell_width
        sheet[row : row + cell_height, column : column + cell_width] = np.pad(frame, pad, mode="edge")
    steps = tuple(strip.steps[k] for k in chosen)
    return Sheet(steps, _jpeg(sheet, rung.quality), width, height, across, cell_width, cell_height)


def _shrunk(pixels: Pixels, side: int) -> Pixels:
    """Not larger than ``side`` pixels either way."""
    height, width = pixels.shape[:2]
    longest = max(height, width)
    if longest <= side:
        return pixels
    from PIL import Image

    size = (max(1, round(width * side / longest)), max(1, round(height * side / longest)))
    shrunk: Pixels = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BOX))
    return shrunk


def _jpeg(pixels: Pixels, quality: int) -> bytes:
    import simplejpeg

    colours = "444" if quality >= _FINE else "420"
    made: bytes = simplejpeg.encode_jpeg(
        np.ascontiguousarray(pixels), quality=quality, colorspace="RGB", colorsubsampling=colours
    )
    return made


def _pixels(jpeg: bytes) -> Pixels:
    import simplejpeg

    decoded: Any = simplejpeg.decode_jpeg(jpeg, colorspace="RGB")
    return np.asarray(decoded, np.uint8)
