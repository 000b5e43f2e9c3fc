"""Tensors saved in pieces: what is written, and what is believed of what is read."""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from replaybank.checkpoint import Rows, load, save
from replaybank.checkpoint_rows import MAX_RUNS, merged
from replaybank.errors import DataFormatError


def rows(tensor: torch.Tensor, mark: int, changed: list[tuple[int, int]] | None, key: str = "x") -> Rows:
    return Rows(tensor, "history", key, (mark,), lambda mark: changed)


@given(runs=st.lists(st.tuples(st.integers(-3, 30), st.integers(0, 9))))
def test_merged_runs_are_the_same_rows_in_order_and_apart(runs: list[tuple[int, int]]) -> None:
    found = merged(runs, 25)
    wanted = {row for start, count in runs for row in range(start, start + count) if 0 <= row < 25}
    assert [row for start, count in found for row in range(start, start + count)] == sorted(wanted)
    assert all(start + count < after for (start, count), (after, _) in itertools.pairwise(found))


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64]
)
def test_every_dtype_is_saved_in_pieces(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.arange(40).remainder(2).view(20, 2).to(dtype)
    save(tmp_path, {"x": rows(tensor, 0, None)})
    changed = (1 - torch.arange(40).remainder(2)).view(20, 2).to(dtype)
    for start, count in [(3, 2), (9, 1), (19, 1)]:
        tensor.view(torch.uint8)[start : start + count] = changed.view(torch.uint8)[start : start + count]
    save(tmp_path, {"x": rows(tensor, 1, [(9, 1), (3, 2), (19, 1)])})
    assert (tmp_path / "state-00000002" / "0.1.bin").stat().st_size == 4 * 2 * dtype.itemsize
    back = load(tmp_path)["x"]
    assert back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), tensor.view(torch.uint8))


def test_strided_rows_come_out_by_value(tmp_path: Path) -> None:
    tensor = torch.arange(60).view(20, 3)[:, ::2]
    for mark, changed in enumerate([None, [(4, 3)]]):
        save(tmp_path, {"x": rows(tensor, mark, changed)})
        assert torch.equal(load(tmp_path)["x"], tensor)


def test_a_tensor_that_grew_is_saved_with_its_new_rows_and_one_that_shrank_anew(tmp_path: Path) -> None:
    tensor = torch.arange(100)
    save(tmp_path, {"x": rows(tensor[:60], 0, None)})
    save(tmp_path, {"x": rows(tensor[:70], 1, [])})
    assert torch.equal(load(tmp_path)["x"], tensor[:70])
    save(tmp_path, {"x": rows(tensor[:50], 2, [])})
    assert torch.equal(load(tmp_path)["x"], tensor[:50])


@pytest.mark.parametrize(
    "other",
    [
        lambda: rows(torch.arange(20, dtype=torch.int32), 1, []),
        lambda: rows(torch.arange(40).view(20, 2), 1, []),
        lambda: rows(torch.arange(20) + 1, 1, [], key="y"),
        lambda: Rows(torch.arange(20) + 1, "another", "x", (1,), lambda mark: []),
        lambda: rows(torch.arange(20) + 1, 1, None),
    ],
)
def test_what_is_no_later_state_of_the_same_tensor_is_saved_anew(tmp_path: Path, other: Any) -> None:
    save(tmp_path, {"x": rows(torch.arange(20), 0, None)})
    later = other()
    save(tmp_path, {"x": later})
    assert torch.equal(load(tmp_path)["x"], later.tensor)


def test_so_many_runs_that_naming_them_would_cost_more_are_saved_as_a_whole(tmp_path: Path) -> None:
    count = 4 * MAX_RUNS
    save(tmp_path, {"x": rows(torch.zeros(count), 0, None)})
    tensor = torch.zeros(count)
    tensor[:: count // (MAX_RUNS + 1)] = 1
    places = tensor.nonzero()[:, 0].tolist()
    assert len(places) > MAX_RUNS
    save(tmp_path, {"x": rows(tensor, 1, [(place, 1) for place in places])})
    assert not (tmp_path / "state-00000002" / "0.1.bin").exists()
    assert torch.equal(load(tmp_path)["x"], tensor)


def forge(path: Path, change: Mapping[str, Any], piece: int | None) -> None:
    """Two pieces, and a manifest with valid checksums that says something of them that it must not."""
    save(path, {"x": rows(torch.arange(8), 0, None)})
    save(path, {"x": rows(torch.arange(8) + 1, 1, [(2, 3), (6, 1)])})
    folder = path / "state-00000002"
    manifest = json.loads((folder / "manifest.json").read_bytes())
    entry = manifest["tensors"][0]
    (entry if piece is None else entry["pieces"][piece]).update(change)
    content = json.dumps(manifest).encode()
    (folder / "manifest.json").write_bytes(content)
    line = f"state-00000002 {len(content)} {zlib.crc32(content):08x}\n"
    (path / "CURRENT").write_text(f"{line}{zlib.crc32(line.encode()):08x}\n")


@pytest.mark.parametrize(
    ("piece", "change"),
    [
        (None, {"shape": [9]}),
        (None, {"shape": [1 << 50]}),
        (None, {"shape": [8, 1 << 40]}),
        (None, {"shape": [8, 0]}),
        (None, {"shape": []}),
        (None, {"dtype": "int32"}),
        (None, {"pieces": []}),
        (None, {"pieces": None}),
        (None, {"pieces": [0]}),
        (None, {"pieces": [{}] * 100_000}),
        (0, {"runs": [[0, 4]]}),
        (0, {"runs": [[0, 4]], "bytes": 32}),
        (0, {"runs": [[4, 4], [0, 4]]}),
        (0, {"runs": [[0, 4], [3, 4]]}),
        (0, {"runs": [[0, 9]]}),
        (0, {"runs": [[1, 8]]}),
        (0, {"runs": [[0, 1 << 62]], "bytes": 1 << 65}),
        (0, {"runs": [[-1, 8]]}),
        (0, {"runs": [[0, 8, 0]]}),
        (0, {"runs": [[0.0, 8]]}),
        (0, {"runs": [[False, 8]]}),
        (0, {"runs": []}),
        (0, {"runs": "08"}),
        (1, {"runs": [[2, 0], [2, 4]]}),
        (1, {"tier": "0"}),
        (1, {"tier": 1 << 70}),
        (1, {"tier": True}),
        (1, {"bytes": 31}),
        (1, {"bytes": 32.0}),
        (1, {"crc32": "0"}),
        (1, {"crc32": None}),
    ],
    ids=str,
)
def test_hostile_pieces_are_refused_before_memory_is_taken(
    tmp_path: Path, piece: int | None, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    forge(tmp_path, change, piece)

    def no_memory(*args: Any, **kwargs: Any) -> torch.Tensor:
        raise AssertionError("memory was asked for")

    monkeypatch.setattr(torch, "empty", no_memory)
    with pytest.raises(DataFormatError):
        load(tmp_path)


@pytest.mark.parametrize(
    "history",
    [None, 0, {}, {"history": 1}, {"history": "history", "key": "x"}, {"mark": "0"}, {"mark": [0.5]}],
    ids=str,
)
def test_a_strange_history_makes_the_next_save_a_whole_one(tmp_path: Path, history: Any) -> None:
    forge(tmp_path, {"rows": history}, None)
    assert load(tmp_path)["x"].tolist() == [0, 1, 3, 4, 5, 5, 7, 7]
    save(tmp_path, {"x": rows(torch.arange(8) + 5, 2, [])})
    assert torch.equal(load(tmp_path)["x"], torch.arange(8) + 5)


def test_bytes_that_are_no_bools_are_refused_in_every_piece(tmp_path: Path) -> None:
    tensor = torch.zeros(8, dtype=torch.bool)
    save(tmp_path, {"x": rows(tensor, 0, None)})
    tensor.view(torch.uint8)[3] = 7
    save(tmp_path, {"x": rows(tensor, 1, [(3, 1)])})
    with pytest.raises(DataFormatError, match=r"0\.1\.bin holds bytes that are no bools"):
        load(tmp_path)
