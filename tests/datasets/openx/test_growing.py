"""Files that grow at their ends: what was appended is what is there, whatever was cut, reserved or begun."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replaybank import _native
from replaybank.datasets.openx import growing
from replaybank.datasets.openx.growing import GrowingFiles
from replaybank.errors import DataFormatError

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 40)),
        st.tuples(st.just("cut"), st.integers(0, 40)),
        st.tuples(st.just("sync"), st.just(0)),
    ),
    max_size=20,
)


@given(steps=STEPS)
def test_a_file_holds_what_was_appended_and_not_cut_off(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as small:
        small.setattr(growing, "TOGETHER", 16)
        small.setattr(growing, "WRITE_BACK", 24)
        small.setattr(growing, "_LEAST_AHEAD", 32)
        files = GrowingFiles(folder)
        files.open("a", 0)
        wanted = b""
        for step, count in steps:
            if step == "append":
                piece = bytes(range(len(wanted) % 100, len(wanted) % 100 + count))
                files.append("a", piece if count % 2 else np.frombuffer(piece, np.uint8))
                wanted += piece
            elif step == "cut":
                wanted = wanted[: max(len(wanted) - count, 0)]
                files.cut("a", len(wanted))
            else:
                files.sync()
                assert (folder / "a").read_bytes()[: len(wanted)] == wanted
            assert files.sizes["a"] == len(wanted)
        files.sync()
        files.trim({"a": len(wanted)})
        files.close()
    assert (folder / "a").read_bytes() == wanted


def test_what_is_claimed_is_written_by_somebody_else(tmp_path: Path) -> None:
    files = GrowingFiles(tmp_path)
    files.open("a", 0)
    places = [files.claim("a", 5), files.claim("a", 3)]
    assert places == [0, 5]
    os.pwrite(files.descriptor("a"), b"fghij"[:3], places[1])
    os.pwrite(files.descriptor("a"), b"abcde", places[0])
    files.sync()
    files.trim({"a": 8})
    files.close()
    assert (tmp_path / "a").read_bytes() == b"abcdefgh"


def test_a_file_that_is_longer_is_cut_and_a_shorter_one_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abcdef")
    files = GrowingFiles(tmp_path)
    files.open("a", 4)
    files.append("a", b"x")
    files.sync()
    files.close()
    assert (tmp_path / "a").read_bytes() == b"abcdx"
    again = GrowingFiles(tmp_path)
    with pytest.raises(DataFormatError, match="has 5 bytes, the progress says 6"):
        again.open("a", 6)
    again.close()


def test_the_disk_is_told_to_begin_while_a_file_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []

    def begin(file: int, offset: int, count: int) -> int:
        told.append((offset, count))
        return -1  # a system that cannot: nothing is lost

    monkeypatch.setattr(_native, "start_write_back", begin)
    files = GrowingFiles(tmp_path)
    files.open("a", 0)
    piece = bytes(3 << 20)
    for _ in range(7):
        files.append("a", piece)
    assert told == [(0, 9 << 20), (9 << 20, 9 << 20)]
    files.sync()
    assert told[2:] == [(18 << 20, 0)]
    files.trim({"a": 21 << 20})
    files.close()
    assert (tmp_path / "a").stat().st_size == 21 << 20


def test_beginning_early_changes_nothing_of_a_file(tmp_path: Path) -> None:
    with (tmp_path / "a").open("w+b", buffering=0) as file:
        file.write(b"abc" * 1000)
        assert _native.start_write_back(file.fileno(), 0, 0) in (0, -1)
        assert _native.start_write_back(file.fileno(), 1000, 5) in (0, -1)
        assert _native.start_write_back(file.fileno(), -1, 5) == -1
    assert (tmp_path / "a").read_bytes() == b"abc" * 1000
    assert _native.start_write_back(-1, 0, 0) == -1


def test_what_a_full_disk_did_not_take_is_still_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = GrowingFiles(tmp_path)
    files.open("a", 0)
    files.append("a", b"abc")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(growing, "write_at", full)
        with pytest.raises(OSError, match="No space left"):
            files.sync()
    files.sync()
    files.close()
    assert (tmp_path / "a").read_bytes() == b"abc"


def test_a_file_is_cut_while_the_error_of_a_write_is_handled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(growing, "TOGETHER", 16)
    files = GrowingFiles(tmp_path)
    found: list[int | None] = []
    files.open("a", 0)
    files.append("a", b"kept")
    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", full)
        try:
            files.append("a", b"a dozen more")
        except OSError as error:
            found.append(error.errno)
            files.cut("a", 4)
    files.append("a", b", and more")
    files.sync()
    files.close()
    assert found == [errno.ENOSPC]
    assert (tmp_path / "a").read_bytes() == b"kept, and more"


def test_what_a_killed_one_reserved_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 100)
    with path.open("r+b") as file:
        if _native.reserve_blocks(file.fileno(), 1 << 20) != 0:
            pytest.skip("this file system sets no blocks aside")
    assert path.stat().st_blocks * 512 >= 1 << 20
    files = GrowingFiles(tmp_path)
    files.open("a", 100)
    files.close()
    assert path.stat().st_blocks * 512 < 1 << 20
    assert path.read_bytes() == b"x" * 100
