"""The frames of one camera of a converted dataset, kept as JPEG or PNG bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from replaybank.datasets.openx.channels import channels_first
from replaybank.datasets.openx.corrections import swapped
from replaybank.datasets.openx.files import ANEW
from replaybank.datasets.openx.sources.base import FieldSpec
from replaybank.datasets.openx.sources.images import decode_frames
from replaybank.errors import DataFormatError
from replaybank.storages.forms import ask_large_pages
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

    def read(self, steps: Tensor) -> Tensor:
        """Frames ``[*steps, C, H, W]``; zeros where there is none. O(pixels).

        Args:
            steps: int64, each the number of a step.

        Raises:
            DataFormatError: a frame cannot be decoded.
        """
        flat = steps.reshape(-1)
        out = torch.empty((len(flat), *self._leaf.shape), dtype=self._leaf.dtype)
        ask_large_pages(out)
        pixels = out.numpy()
        contents = self.contents(flat)
        numbers = flat.tolist()

        def decode(k: int) -> None:
            if not contents[k]:
                pixels[k] = 0
                return
            where = f"{self._folder}: {'/'.join(self._leaf.key)}: step {numbers[k]}"
            decoded = decode_frames([contents[k]], self._spec, where)
            if self._bgr:
                decoded = swapped(decoded)
            channels_first(decoded, pixels[k : k + 1])

        share_out(len(flat), self._leaf.bytes, decode)
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
        ends = last.reshape(-1)
        wanted = torch.cat([flat, torch.where(ends, flat, flat + 1)])
        distinct, places = np.unique(wanted.numpy(), return_inverse=True)
        frames = self.read(torch.from_numpy(distinct))
        at = torch.from_numpy(places)
        here, after = frames.index_select(0, at[: len(flat)]), frames.index_select(0, at[len(flat) :])
        after.numpy()[ends.numpy()] = 0
        shape = (*steps.shape, *self._leaf.shape)
        return here.view(shape), after.view(shape)
