"""Memory of a thread's own: nobody else's, and its own only until it asks again."""

from __future__ import annotations

import threading

import numpy as np

from replaybank.storages import room
from replaybank.storages.room import room_for


def test_threads_and_purposes_have_memory_of_their_own() -> None:
    mine = room_for("one", (4,), np.dtype(np.uint8))
    mine[:] = 1
    room_for("other", (4,), np.dtype(np.uint8))[:] = 2

    def elsewhere() -> None:
        room_for("one", (4,), np.dtype(np.uint8))[:] = 3

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert (mine == 1).all()
    assert room_for("one", (2, 2), np.dtype(np.uint8)).tolist() == [[1, 1], [1, 1]]
    assert room_for("one", (room.MOST_KEPT + 1,), np.dtype(np.uint8)).nbytes == room.MOST_KEPT + 1


def test_decoders_keep_rows_in_the_caches() -> None:
    """No row of the usual widths begins where libjpeg-turbo would write past them."""
    for shape in ((2, 64, 64, 3), (1, 224, 224, 3), (1, 480, 640, 3), (1, 1080, 1920, 3)):
        pixels = room_for("pixels", shape, np.dtype(np.uint8))
        assert pixels.flags.c_contiguous
        assert {row.ctypes.data % 16 for frame in pixels for row in frame} == {8}
