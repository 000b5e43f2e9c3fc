"""The frames of one camera of a converted dataset, kept as JPEG or PNG bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from replaybank.datasets.openx.corrections import swapped
from replaybank.datasets.openx.files import ANEW
from replaybank.datasets.openx.planes import put, room_for
from replaybank.datasets.openx.sources.base import FieldSpec
from replaybank.datasets.openx.sources.images import decode_frames
from replaybank.errors import DataFormatError
from replaybank.storages.batch_memory import BatchMemory
from replaybank.storages.frames import share_out
from replaybank.storages.layout import LeafSpec


class StoredFrames:
    """Frames by step, decoded when they are read. Immutable, so safe in any thread.

    Args:
        leaf: what they are once decoded: ``[C, H, W]``.
        content: uint8, their bytes end to end.
        ends: uint8 of int64 ``[steps]``: where each ends.
        folder: of the dataset, for messages.
        bgr: they are stored with blue first; read as RGB all the same.
    """

    def __init__(
        self, leaf: LeafSpec, content: Tensor, ends: Tensor, folder: Path, *, bgr: bool = False
    ) -> None:
        channels, height, width = leaf.shape
        self._leaf = leaf
        self._spec = FieldSpec(
            "image", (height, width, channels), torch.empty(0, dtype=leaf.dtype).numpy().dtype
        )
        self._bytes = memoryview(content.numpy())  # type: ignore[arg-type]
        self._ends = ends.view(torch.int64)
        self._folder = folder
        self._bgr = bgr
        self._memory = BatchMemory()

    def read(self, steps: Tensor) -> Tensor:
        """Frames ``[*steps, C, H, W]``; zeros where there is none. O(pixels).

        Args:
            steps: int64, each the number of a step.

        Raises:
            DataFormatError: a frame cannot be decoded.
        """
        flat = steps.reshape(-1)
        out = self._empty(len(flat))
        pixels = out.numpy()
        self._decode(flat.tolist(), [[pixels[k : k + 1]] for k in range(len(flat))])
        return out.view(*steps.shape, *self._leaf.shape)

    @property
    def bgr(self) -> bool:
        """Whether the bytes have blue first."""
        return self._bgr

    def contents(self, steps: Tensor) -> list[memoryview]:
        """The bytes of frames as they are stored, none where there is no frame. O(steps).

        Args:
            steps: int64 ``[n]``, each the number of a step.

        Raises:
            DataFormatError: a frame lies outside its file.
        """
        ends = self._ends[steps].tolist()
        starts = torch.where(steps > 0, self._ends[(steps - 1).clamp(min=0)], 0).tolist()
        spans = list(zip(steps.tolist(), starts, ends, strict=True))
        for number, start, end in spans:
            if not 0 <= start <= end <= len(self._bytes):
                raise DataFormatError(f"{self._folder}: step {number}: its frame lies nowhere; {ANEW}")
        return [self._bytes[start:end] for _, start, end in spans]

    def with_next(self, steps: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Frames of steps and of the steps behind them, each decoded once. O(pixels).

        Args:
            steps: int64, each the number of a step.
            last: bool of the same shape: there is none behind; its frame is zero.
        """
        flat = steps.reshape(-1)
        count = len(flat)
        here, after = self._empty(count), self._empty(count)
        places = [pixels[k : k + 1] for pixels in (here.numpy(), after.numpy()) for k in range(count)]
        wanted: dict[int, list[npt.NDArray[Any]]] = {}
        for k, (step, end) in enumerate(zip(flat.tolist(), last.reshape(-1).tolist(), strict=True)):
            wanted.setdefault(step, []).append(places[k])
            if end:
                places[count + k][...] = 0
            else:
                wanted.setdefault(step + 1, []).append(places[count + k])
        self._decode(list(wanted), list(wanted.values()))
        shape = (*steps.shape, *self._leaf.shape)
        return here.view(shape), after.view(shape)

    def _empty(self, count: int) -> Tensor:
        return self._memory.any_size((count, *self._leaf.shape), self._leaf.dtype)

    def _decode(self, steps: Sequence[int], places: Sequence[Sequence[npt.NDArray[Any]]]) -> None:
        """Put the frame of each step into all of its places, ``[1, C, H, W]``."""
        contents = self.contents(torch.tensor(steps, dtype=torch.int64))
        shape, dtype = (1, *self._spec.shape), self._spec.dtype
        name = f"{self._folder}: {'/'.join(self._leaf.key)}: step "

        def decode(k: int) -> None:
            if not contents[k]:
                for place in places[k]:
                    place[...] = 0
                return
            assert dtype is not None
            room = room_for("pixels", shape, dtype)
            pixels = decode_frames([contents[k]], self._spec, f"{name}{steps[k]}", room=room)
            if self._bgr:
                pixels = swapped(pixels)
            for place in places[k]:
                put(pixels, place)

        share_out(len(steps), self._leaf.bytes, decode)
