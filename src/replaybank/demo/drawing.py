"""Anti-aliased discs and thick lines on small images, many frames at once, in NumPy alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]
Colour: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True)
class Camera:
    """A camera that looks straight down on the plane, one pose a frame.

    Immutable, so safe to share between threads.

    Args:
        centre: what the middle of the image shows, metres, ``[T, 2]``.
        heading: direction in the plane that points up in the image, radians from the x axis, ``[T]``.
        span: width and height of what is seen, metres.
        size: width and height of the image, pixels.
    """

    centre: npt.NDArray[np.float64]
    heading: npt.NDArray[np.float64]
    span: float
    size: int

    @property
    def scale(self) -> float:
        """Pixels a metre."""
        return self.size / self.span

    def project(self, points: npt.NDArray[np.float64]) -> Floats:
        """Where points of the plane appear. O(T).

        Args:
            points: metres, ``[T, 2]``, one a frame.

        Returns:
            float32 ``[T, 2]``: column and row, pixels; whole numbers are the centres of pixels.

        Example:
            >>> camera = Camera(np.zeros((1, 2)), np.full(1, np.pi / 2), span=2.0, size=64)
            >>> camera.project(np.array([[0.5, 0.25]])).tolist()
            [[47.5, 23.5]]
        """
        offset = points - self.centre
        up = offset[:, 0] * np.cos(self.heading) + offset[:, 1] * np.sin(self.heading)
        right = offset[:, 0] * np.sin(self.heading) - offset[:, 1] * np.cos(self.heading)
        middle = (self.size - 1) / 2
        pixels = np.stack([middle + right * self.scale, middle - up * self.scale], axis=1)
        return pixels.astype(np.float32)

    def unproject(self) -> npt.NDArray[np.float64]:
        """Points of the plane under the pixels, metres, ``[T, size, size, 2]``. O(T size^2)."""
        steps = (np.arange(self.size) - (self.size - 1) / 2) / self.scale
        right, up = steps[None, None, :], -steps[None, :, None]
        cos, sin = np.cos(self.heading)[:, None, None], np.sin(self.heading)[:, None, None]
        x = self.centre[:, 0, None, None] + up * cos + right * sin
        y = self.centre[:, 1, None, None] + up * sin - right * cos
        return np.stack([x, y], axis=-1)


class Canvas:
    """Frames being painted, one shape over the other. Not thread-safe.

    Args:
        background: what to paint on, ``[T, H, W, 3]`` or anything that broadcasts to it, 0 to 255.
        frames: number of frames ``T``.
        size: width and height in pixels.

    Example:
        >>> canvas = Canvas(np.zeros(3), frames=1, size=3)
        >>> canvas.disc(np.array([[1.0, 1.0]], dtype=np.float32), radius=0.5, colour=(200, 100, 0))
        >>> canvas.pixels()[0, :, :, 0].tolist()
        [[0, 0, 0], [0, 200, 0], [0, 0, 0]]
    """

    def __init__(self, background: npt.NDArray[np.float64], frames: int, size: int) -> None:
        self._frames = np.empty((frames, size, size, 3), dtype=np.float32)
        self._frames[:] = background
        self._column, self._row = np.meshgrid(
            np.arange(size, dtype=np.float32), np.arange(size, dtype=np.float32), indexing="xy"
        )

    def disc(self, centre: Floats, radius: float, colour: Colour) -> None:
        """Paint one disc a frame. O(T H W).

        Args:
            centre: column and row, pixels, ``[T, 2]``.
            radius: pixels.
            colour: red, green, blue, 0 to 255.
        """
        across = self._column - centre[:, 0, None, None]
        down = self._row - centre[:, 1, None, None]
        self._blend(np.hypot(across, down) - np.float32(radius), colour)

    def line(self, start: Floats, end: Floats, radius: float, colour: Colour) -> None:
        """Paint one thick line with round ends a frame. O(T H W).

        Args:
            start: column and row, pixels, ``[T, 2]``.
            end: the same, of the other end.
            radius: half the thickness, pixels.
            colour: red, green, blue, 0 to 255.
        """
        along = end - start
        square = np.maximum((along**2).sum(axis=1), np.float32(1e-12))
        across = self._column - start[:, 0, None, None]
        down = self._row - start[:, 1, None, None]
        part = across * along[:, 0, None, None] + down * along[:, 1, None, None]
        part = np.clip(part / square[:, None, None], 0.0, 1.0)
        across -= part * along[:, 0, None, None]
        down -= part * along[:, 1, None, None]
        self._blend(np.hypot(across, down) - np.float32(radius), colour)

    def pixels(self) -> npt.NDArray[np.uint8]:
        """The frames as they are now, uint8 ``[T, H, W, 3]``."""
        return (self._frames + np.float32(0.5)).clip(0, 255).astype(np.uint8)

    def _blend(self, distance: Floats, colour: Colour) -> None:
        # A pixel whose centre lies on the edge is half covered: coverage falls over one pixel.
        cover = np.clip(np.float32(0.5) - distance, 0.0, 1.0)[..., None]
        self._frames += cover * (np.array(colour, dtype=np.float32) - self._frames)
