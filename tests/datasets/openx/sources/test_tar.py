"""Tar archives are read from end to end, with no size believed and nothing extracted."""

from __future__ import annotations

import io
import random
import tarfile
import tracemalloc
from collections.abc import Callable

import pytest

from replaybank.datasets.openx.sources.tar import BLOCK, TarFault, members
from replaybank.datasets.openx.sources.tfrecord import BinaryReader

LONG = "folder/" + "long" * 60 + ".data.pickle"
FILES = {"a.data.pickle": b"a" * 700, LONG: b"", "\u00fcber": b"c" * 512, "../../etc/passwd": b"d"}
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


class Stream:
    """A file that only reads on, in small pieces, as from a socket."""

    def __init__(self, raw: bytes) -> None:
        self.file = io.BytesIO(raw)

    def read(self, size: int = -1, /) -> bytes:
        return self.file.read(min(size, 100) if size >= 0 else -1)


def contents(file: BinaryReader) -> list[bytes]:
    return [member.read() for member in members(file)]


def archive(form: int = tarfile.PAX_FORMAT, **members: tarfile.TarInfo) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, content in FILES.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            if form != tarfile.USTAR_FORMAT or len(name) < 100:
                tar.addfile(info, io.BytesIO(content))
        for info in members.values():
            tar.addfile(info)
    return file.getvalue()


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("kind", [io.BytesIO, Stream])
def test_every_file_is_found_with_its_name_and_bytes(
    form: int, kind: Callable[[bytes], BinaryReader]
) -> None:
    expected = {n: c for n, c in FILES.items() if form != tarfile.USTAR_FORMAT or len(n) < 100}
    assert {member.name: member.read() for member in members(kind(archive(form)))} == expected
    # what is not read is stepped over
    assert [member.name for member in members(kind(archive(form)))] == list(expected)


def test_a_size_that_only_pax_can_hold_is_believed_if_it_is_there() -> None:
    raw = b"\0" * 10
    info = tarfile.TarInfo("x")
    info.size = len(raw)
    info.pax_headers = {"size": "10"}
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        tar.addfile(info, io.BytesIO(raw))
    assert [member.read() for member in members(io.BytesIO(file.getvalue()))] == [raw]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused_by_name(kind: bytes) -> None:
    info = tarfile.TarInfo("evil.data.pickle")
    info.type, info.linkname = kind, "/etc/passwd"
    with pytest.raises(TarFault, match=r"'evil\.data\.pickle' is a link or a device"):
        list(members(io.BytesIO(archive(evil=info))))


def test_sparse_members_are_refused() -> None:
    sparse = tarfile.TarInfo("holes")
    sparse.type = tarfile.GNUTYPE_SPARSE
    with pytest.raises(TarFault, match="'holes' is sparse"):
        list(members(io.BytesIO(archive(holes=sparse))))
    sparse = tarfile.TarInfo("holes")
    sparse.pax_headers = {"GNU.sparse.major": "1"}
    with pytest.raises(TarFault, match="sparse"):
        list(members(io.BytesIO(archive(holes=sparse))))


def huge(size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo("huge")
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT) + b"x" * 100


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
@pytest.mark.parametrize("size", [2**40, 2**62, 2**63 + 5])
def test_a_declared_size_allocates_nothing(stream: bool, kind: bytes, size: int) -> None:
    raw = huge(size, kind)
    tracemalloc.start()
    try:
        with pytest.raises(TarFault):
            contents(Stream(raw) if stream else io.BytesIO(raw))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_headers_without_end_are_refused() -> None:
    header = huge(0, tarfile.GNUTYPE_LONGNAME)[:BLOCK]
    with pytest.raises(TarFault, match="more than 16 extension headers"):
        list(members(io.BytesIO(header * 1000)))


@pytest.mark.parametrize("size", [0, 100, 512, 1000, 1536, 2000])
def test_an_archive_that_is_cut_short_is_an_error(size: int) -> None:
    for file in (io.BytesIO(archive()[:size]), Stream(archive()[:size])):
        with pytest.raises(TarFault, match="cut short"):
            contents(file)


def test_mutated_archives_are_read_or_refused() -> None:
    rng = random.Random(0)
    originals = [archive(form) for form in FORMATS.values()]
    outcomes = {"read": 0, "refused": 0}
    for _ in range(3000):
        raw = bytearray(rng.choice(originals))
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(4096)
            what = rng.randrange(4)
            if what == 0:
                raw[at] ^= 1 << rng.randrange(8)
            elif what == 1:
                raw[at : at + 8] = bytes(rng.randrange(256) for _ in range(8))
            elif what == 2:
                del raw[at : at + rng.choice((1, 512))]
            else:
                start = rng.randrange(0, 4096, 512)
                raw[at:at] = raw[start : start + 512]
        # Headers with a right checksum get further than those without.
        for start in range(0, min(len(raw), 8192) - 511, 512):
            if rng.random() < 0.7 and raw[start + 257 : start + 262] == b"ustar":
                checksum = 256 + sum(raw[start : start + 148]) + sum(raw[start + 156 : start + 512])
                raw[start + 148 : start + 156] = b"%06o\0 " % checksum
        try:
            found = contents(io.BytesIO(bytes(raw)))
            assert sum(map(len, found)) <= len(raw)
            outcomes["read"] += 1
        except TarFault:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 100, outcomes
