"""The frames of one camera of a converted dataset, kept as JPEG or PNG bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from replaybank.datasets.openx.files import ANEW
from replaybank.datasets.openx.planes import PASSING_BYTES
from replaybank.datasets.openx.sources.base import FieldSpec
from replaybank.datasets.openx.sources.images import decode_frames, jpeg_color
from replaybank.errors import DataFormatError
from replaybank.storages.batch_memory import BatchMemory
from replaybank.storages.channels import put_each
from replaybank.storages.frames import jpegs_into, share_out
from replaybank.storages.layout import LeafSpec
from replaybank.storages.room import GROUP_BYTES, room_for


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
        self._dtype = torch.empty(0, dtype=leaf.dtype).numpy().dtype
        self._spec = FieldSpec("image", (height, width, channels), self._dtype)
        self._color = jpeg_color(self._spec.shape, self._dtype)
        self._bytes = memoryview(content.numpy())  # type: ignore[arg-type]
        self._ends: npt.NDArray[np.int64] = ends.view(torch.int64).numpy()
        self._folder = folder
        self._bgr = bgr
        self._memory = BatchMemory()

    def read(self, steps: Tensor) -> Tensor:
        """Frames ``[*steps, C, H, W]``; zeros where there is none. O(pixels), each decoded once.

        Args:
            steps: int64, each the number of a step.

        Raises:
            DataFormatError: a frame cannot be decoded.
        """
        wanted = steps.reshape(-1).numpy()
        out = self._empty(len(wanted))
        self._decode(wanted, np.arange(len(wanted)), out.numpy())
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
        return self._contents(steps.numpy())

    def _contents(self, steps: npt.NDArray[np.int64]) -> list[memoryview]:
        ends = self._ends[steps]
        starts = np.where(steps > 0, self._ends[steps - 1], 0)
        good = (starts >= 0) & (starts <= ends) & (ends <= len(self._bytes))
        if not good.all():
            number = steps[int(good.argmin())]
            raise DataFormatError(f"{self._folder}: step {number}: its frame lies nowhere; {ANEW}")
        view = self._bytes
        return [view[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def with_next(self, steps: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Frames of steps and of the steps behind them, each decoded once. O(pixels).

        Args:
            steps: int64, each the number of a step.
            last: bool of the same shape: there is none behind; its frame is zero.

        Raises:
            DataFormatError: a frame cannot be decoded.
        """
        now, end = steps.reshape(-1).numpy(), last.reshape(-1).numpy()
        count = len(now)
        here, after = self._empty(count), self._empty(count)
        pixels = after.numpy()
        pixels[end] = 0
        known = np.flatnonzero(~end)
        wanted = np.concatenate([now, now[known] + 1])
        self._decode(wanted, np.concatenate([np.arange(count), count + known]), here.numpy(), pixels)
        shape = (*steps.shape, *self._leaf.shape)
        return here.view(shape), after.view(shape)

    def _empty(self, count: int) -> Tensor:
        return self._memory.any_size((count, *self._leaf.shape), self._leaf.dtype)

    def _decode(
        self,
        wanted: npt.NDArray[np.int64],
        places: npt.NDArray[np.int64],
        out: npt.NDArray[Any],
        after: npt.NDArray[Any] | None = None,
    ) -> None:
        """Put the frame of each step wanted into its place, ``[C, H, W]``.

        Steps are gone through as they lie in the file, each once, however often it is wanted.

        Args:
            wanted: ``[n]``, steps.
            places: ``[n]``, counted through ``out`` and then ``after``.
            out: ``[m, C, H, W]``.
            after: the same.
        """
        order = np.argsort(wanted, kind="stable")
        wanted, places = wanted[order], places[order]
        begins = np.flatnonzero(np.diff(wanted, prepend=-1))
        ends = np.append(begins, len(wanted))
        steps = wanted[begins]
        contents = self._contents(steps)
        group = max(1, GROUP_BYTES // max(self._leaf.bytes, 1))
        passing = self._leaf.bytes >= PASSING_BYTES

        def decode(start: int, stop: int) -> None:
            for first in range(start, stop, group):
                last = min(first + group, stop)
                pixels = room_for("pixels", (last - first, *self._spec.shape), self._dtype)
                self._decode_run(contents[first:last], steps[first:last], pixels)
                put_each(pixels, ends, first, places, out, after, swapped=self._bgr, passing=passing)

        share_out(len(steps), self._leaf.bytes, decode)

    def _decode_run(
        self, contents: Sequence[memoryview], steps: npt.NDArray[np.int64], pixels: npt.NDArray[Any]
    ) -> None:
        """Decode frames into ``pixels``, ``[n, H, W, C]``; zeros where there is none."""
        k = 0
        while k < len(contents):
            if self._color is not None:
                k = jpegs_into(contents, pixels, self._color, k)
            if k < len(contents):  # none, no JPEG, or something is wrong with it
                if contents[k]:
                    where = f"{self._folder}: {'/'.join(self._leaf.key)}: step {steps[k]}"
                    decode_frames([contents[k]], self._spec, where, room=pixels[k : k + 1])
                else:
                    pixels[k] = 0
                k += 1
