"""Pictures of shapes whose pixels are known."""

from __future__ import annotations

import numpy as np
import pytest

from replaybank.demo.drawing import Camera, Canvas


def test_a_disc_covers_its_area_to_within_the_softness_of_its_edge() -> None:
    canvas = Canvas(np.zeros(3), frames=1, size=64)
    canvas.disc(np.array([[31.3, 30.8]], dtype=np.float32), radius=10.0, colour=(255, 255, 255))
    covered = canvas.pixels()[0, :, :, 0].sum() / 255
    # The coverage of an edge pixel is linear in its distance, not the exact cut area: below one in a hundred.
    assert covered == pytest.approx(np.pi * 100, rel=0.01)


def test_a_thick_line_covers_a_rectangle_and_two_half_discs() -> None:
    canvas = Canvas(np.zeros(3), frames=1, size=64)
    start, end = np.array([[20.0, 20.0]], dtype=np.float32), np.array([[40.0, 35.0]], dtype=np.float32)
    canvas.line(start, end, radius=4.0, colour=(255, 255, 255))
    covered = canvas.pixels()[0, :, :, 0].sum() / 255
    assert covered == pytest.approx(25 * 8 + np.pi * 16, rel=0.01)


def test_a_line_of_no_length_is_a_disc() -> None:
    point = np.array([[5.0, 6.0]], dtype=np.float32)
    line, disc = (Canvas(np.zeros(3), frames=1, size=16) for _ in range(2))
    line.line(point, point, radius=3.0, colour=(9, 99, 199))
    disc.disc(point, radius=3.0, colour=(9, 99, 199))
    np.testing.assert_array_equal(line.pixels(), disc.pixels())


def test_what_is_painted_later_lies_above() -> None:
    canvas = Canvas(np.full(3, 50.0), frames=1, size=9)
    point = np.array([[4.0, 4.0]], dtype=np.float32)
    canvas.disc(point, radius=3.0, colour=(255, 0, 0))
    canvas.disc(point, radius=1.0, colour=(0, 0, 255))
    pixels = canvas.pixels()[0]
    assert pixels[4, 4].tolist() == [0, 0, 255]
    assert pixels[4, 6].tolist() == [255, 0, 0]
    assert pixels[0, 0].tolist() == [50, 50, 50]


def test_each_frame_has_its_own_shapes() -> None:
    canvas = Canvas(np.zeros(3), frames=2, size=8)
    canvas.disc(np.array([[1.0, 2.0], [6.0, 5.0]], dtype=np.float32), radius=0.5, colour=(255, 255, 255))
    rows, columns = (canvas.pixels()[..., 0] == 255).nonzero()[1:]
    assert list(zip(columns.tolist(), rows.tolist(), strict=True)) == [(1, 2), (6, 5)]


def test_projecting_and_unprojecting_are_inverse() -> None:
    rng = np.random.default_rng(0)
    camera = Camera(rng.normal(size=(5, 2)), rng.uniform(-3, 3, 5), span=1.7, size=64)
    plane = camera.unproject()
    for row, column in ((0, 0), (13, 50), (63, 31)):
        pixels = camera.project(plane[:, row, column])
        np.testing.assert_allclose(pixels, np.tile([column, row], (5, 1)), atol=1e-4)


def test_the_heading_points_up_in_the_image() -> None:
    camera = Camera(np.zeros((1, 2)), np.zeros(1), span=2.0, size=65)
    assert camera.project(np.array([[0.5, 0.0]])).tolist() == [[32.0, 32.0 - 65 / 4]]
    # Left of the heading is left in the image: no mirror.
    assert camera.project(np.array([[0.0, 0.5]])).tolist() == [[32.0 - 65 / 4, 32.0]]
