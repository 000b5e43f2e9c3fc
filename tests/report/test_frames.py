"""Frames on the page: the right ones, at the right place of their sheet, within their bytes."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg

from replaybank.report.frames import BLOCK, LADDER, MARGIN, Sheet, Strip, fit, strip_of
from replaybank.report.look import as_pixels, spread
from report_looks import CAMERA, look

LENGTH = 100


def strip(length: int = LENGTH, height: int = 24, width: int = 36) -> Strip:
    """Step ``k`` is of the brightness ``2 k``."""
    frames = np.broadcast_to(
        2 * np.arange(length, dtype=np.uint8)[:, None, None, None], (length, height, width, 3)
    )
    one = look(0, length, image=frames)
    return strip_of(one, one.frames[CAMERA])


def shown(sheet: Sheet, frame: int) -> npt.NDArray[Any]:
    """What a browser shows of a sheet: CSS's rules for a background of that size at that position."""
    picture = simplejpeg.decode_jpeg(sheet.jpeg, colorspace="RGB")
    (wide, high), (x, y) = sheet.size, sheet.position(frame)
    assert (round(wide * sheet.width), round(high * sheet.height)) == picture.shape[1::-1]
    left = round((picture.shape[1] - sheet.width) * x)
    top = round((picture.shape[0] - sheet.height) * y)
    return np.asarray(picture[top : top + sheet.height, left : left + sheet.width])


def test_every_frame_is_where_the_sheet_says() -> None:
    made = fit([strip()], 1 << 24)
    assert made is not None
    (sheet,), rung = made
    assert rung == LADDER[0]
    assert sheet.steps == tuple(spread(LENGTH, rung.frames).tolist())
    for frame, step in enumerate(sheet.steps):
        pixels = shown(sheet, frame)
        assert pixels.shape == (24, 36, 3)
        assert abs(pixels.astype(int) - 2 * step).max() <= 3


def test_cells_are_whole_blocks_with_a_margin() -> None:
    made = fit([strip(9, 16, 64)], 1 << 24)
    assert made is not None
    (sheet,), _ = made
    assert (sheet.cell_width % BLOCK, sheet.cell_height % BLOCK) == (0, 0)
    assert sheet.cell_width >= sheet.width + 2 * MARGIN
    assert sheet.cell_height >= sheet.height + 2 * MARGIN


def test_one_frame_alone_has_a_place() -> None:
    made = fit([strip(1)], 1 << 24)
    assert made is not None
    (sheet,), _ = made
    assert abs(shown(sheet, 0).astype(int)).max() <= 3


def test_large_frames_are_shrunk_and_keep_their_shape() -> None:
    made = fit([strip(2, 480, 640)], 1 << 24)
    assert made is not None
    (sheet,), rung = made
    assert (sheet.width, sheet.height) == (rung.side, rung.side * 3 // 4)


def test_the_best_rung_that_fits_is_taken() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (60, 64, 64, 3)).astype(np.uint8)
    one = look(0, 60, image=noise)
    strips = [strip_of(one, one.frames[CAMERA])]
    sizes = []
    for room in (10_000_000, 200_000, 40_000):
        made = fit(strips, room)
        assert made is not None
        (sheet,), rung = made
        assert len(sheet.uri) <= room
        assert rung in LADDER
        sizes.append(len(sheet.uri))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[2]
    assert fit(strips, 100) is None
    assert base64.b64decode(sheet.uri.partition(",")[2]) == sheet.jpeg


def test_frames_are_asked_for_one_at_a_time() -> None:
    asked: list[int] = []

    def frames(steps: Sequence[int]) -> npt.NDArray[Any]:
        asked.append(len(steps))
        return np.zeros((len(steps), 8, 8, 3), np.uint8)

    strip_of(look(0, 1000), frames)
    assert asked == [1] * LADDER[0].frames


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (np.array([[[7], [9]]], np.uint8), [[7, 7, 7], [9, 9, 9]]),
        (np.array([[[1, 2, 3, 4]]], np.uint8), [[1, 2, 3]]),
        (np.array([[[1000], [3000]]], np.uint16), [[0, 0, 0], [255, 255, 255]]),
        (np.array([[[0.5], [np.nan]]], np.float32), [[255, 255, 255], [0, 0, 0]]),
    ],
    ids=["grey", "with alpha", "depth", "nan"],
)
def test_frames_of_any_kind_become_colours(frame: npt.NDArray[Any], expected: list[list[int]]) -> None:
    assert as_pixels(frame[None])[0].reshape(-1, 3).tolist() == expected
