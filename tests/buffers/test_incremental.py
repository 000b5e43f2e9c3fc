"""Saves that write what has changed: right after anything that can happen to a buffer between two of them."""

from __future__ import annotations

import copy
import errno
import json
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from patience import PATIENCE
from replaybank import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ReplayBuffer,
    TensorDictMaxValueWriter,
    TensorStorage,
)
from replaybank.checkpoint import load, opened, save
from replaybank.checkpoint_rows import FANOUT
from replaybank.errors import DataFormatError

ROWS = 64
ITEM_BYTES = 4 * 256 + 8 + 1


def items(first: int, count: int) -> TensorDict:
    """Items that say who they are: a large leaf, and two small ones that share a row."""
    number = torch.arange(first, first + count)
    return TensorDict(
        {
            "frame": number[:, None].expand(count, 256).to(torch.float32).clone(),
            "n": number,
            "odd": number % 2 == 1,
        },
        batch_size=[count],
    )


def new(storage: Callable[..., Any] = LazyTensorStorage, rows: int = ROWS, **given: Any) -> ReplayBuffer:
    return ReplayBuffer(storage=storage(rows), batch_size=4, **given)


def held(buffer: ReplayBuffer) -> list[int]:
    """The numbers of the items, slot by slot; all leaves of each must agree."""
    if not len(buffer):
        return []
    data = buffer[:]
    assert torch.equal(data["frame"], data["n"][:, None].expand(-1, 256).to(torch.float32))
    assert torch.equal(data["odd"], data["n"] % 2 == 1)
    numbers: list[int] = data["n"].tolist()
    return numbers


def saved(path: Path, back: int = 0) -> list[int]:
    buffer = new()
    buffer.load_state_dict(load(path, back=back))
    return held(buffer)


def newest(path: Path) -> Path:
    return max(path.glob("state-*"))


def written(path: Path) -> int:
    """Bytes of the newest save that no other save has."""
    return sum(file.stat().st_size for file in newest(path).glob("*.*.bin") if file.stat().st_nlink == 1)


@pytest.mark.parametrize("storage", [LazyMemmapStorage, LazyTensorStorage])
def test_a_second_save_writes_only_the_slots_written_since(storage: Any, tmp_path: Path) -> None:
    buffer = new(storage)
    buffer.extend(items(0, ROWS))
    buffer.dumps(tmp_path, keep=1)
    assert written(tmp_path) == ROWS * ITEM_BYTES
    buffer.extend(items(100, 5))
    buffer.dumps(tmp_path, keep=1)
    assert written(tmp_path) == 5 * ITEM_BYTES
    buffer[40] = items(7, 1)[0]
    buffer.extend(items(200, 2))
    buffer.dumps(tmp_path, keep=1)
    assert written(tmp_path) == 3 * ITEM_BYTES
    buffer.dumps(tmp_path, keep=1)
    assert written(tmp_path) == 0
    assert saved(tmp_path) == held(buffer)
    assert saved(tmp_path, back=1) == held(buffer)


@pytest.mark.parametrize("storage", [LazyMemmapStorage, LazyTensorStorage])
def test_a_buffer_that_wrapped_since_or_was_emptied_is_saved_whole(storage: Any, tmp_path: Path) -> None:
    buffer = new(storage)
    buffer.extend(items(0, 50))
    buffer.dumps(tmp_path)
    buffer.extend(items(1000, 3 * ROWS + 5))
    buffer.dumps(tmp_path)
    assert saved(tmp_path) == held(buffer)
    buffer.empty()
    buffer.dumps(tmp_path)
    assert saved(tmp_path) == []
    buffer.extend(items(5, 10))
    buffer.dumps(tmp_path)
    assert saved(tmp_path) == list(range(5, 15))


changes = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), st.integers(1, 90)),
        st.tuples(st.just("replace"), st.integers(0, 63)),
        st.tuples(st.just("empty"), st.just(0)),
        st.tuples(st.just("load"), st.just(0)),
        st.tuples(st.just("copy"), st.just(0)),
        st.tuples(st.just("save"), st.integers(0, 3)),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(changes=changes)
def test_whatever_happens_between_saves_each_holds_what_was_there(
    changes: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A model of plain lists beside it; with ``keep``, the earlier saves stay what they were."""
    path = tmp_path_factory.mktemp("saves")
    buffer, count = new(), 0
    model: list[list[int]] = []
    for what, number in [*changes, ("save", 1)]:
        if what == "extend":
            buffer.extend(items(count, number))
            count += number
        elif what == "replace" and len(buffer):
            buffer[number % len(buffer)] = items(count, 1)[0]
            count += 1
        elif what == "empty":
            buffer.empty()
        elif what == "load" and model:
            buffer.loads(path)
            assert held(buffer) == model[0]
        elif what == "copy":
            buffer = copy.deepcopy(buffer)
        elif what == "save":
            buffer.dumps(path, keep=number)
            model = [held(buffer), *model[:number]]
    for back, numbers in enumerate(model):
        assert saved(path, back) == numbers


def test_many_small_saves_leave_few_files_and_write_a_row_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # what is on the disk is not asked here
    buffer = new(rows=4096)
    buffer.extend(items(0, 4096))
    buffer.dumps(tmp_path, keep=1)
    total, saves = 0, 200
    for number in range(saves):
        buffer.extend(items(5000 + 4 * number, 4))
        buffer.dumps(tmp_path, keep=1)
        total += written(tmp_path)
        pieces = list(newest(tmp_path).glob("*.*.bin"))
        assert len(pieces) <= 3 * (1 + 3 * FANOUT)
        assert sum(file.stat().st_size for file in pieces) <= 2 * 4096 * ITEM_BYTES
    # Three tiers: each row is written once for each, where saves in whole would have written it 200 times.
    assert total <= 3 * saves * 4 * ITEM_BYTES
    assert saved_in(tmp_path, 4096) == held(buffer)


def saved_in(path: Path, rows: int) -> list[int]:
    buffer = new(rows=rows)
    buffer.loads(path)
    return held(buffer)


def test_rows_in_columns_are_saved_as_rows_along_time(tmp_path: Path) -> None:
    def steps(first: int, count: int) -> TensorDict:
        number = torch.arange(first, first + count).expand(3, count)
        return TensorDict({"n": number, "x": number[..., None] + torch.arange(3)}, batch_size=[3, count])

    def make() -> ReplayBuffer:
        return ReplayBuffer(storage=LazyTensorStorage(60, ndim=2), batch_size=4)

    buffer, other = make(), make()
    buffer.extend(steps(0, 18))
    buffer.dumps(tmp_path, keep=1)
    buffer.extend(steps(100, 7))
    buffer.dumps(tmp_path, keep=1)
    assert written(tmp_path) == 7 * 3 * (8 + 24)
    other.loads(tmp_path)
    assert torch.equal(other[:]["x"], buffer[:]["x"])


def test_a_writer_that_writes_anywhere_is_saved_right(tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(32), writer=TensorDictMaxValueWriter(rank_key="n"))
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    for number in order.split(25):
        buffer.extend(items(0, 400)[number])
        buffer.dumps(tmp_path)
        assert saved_in(tmp_path, 32) == held(buffer)


def test_derived_next_observations_are_saved_right(tmp_path: Path) -> None:
    def steps(first: int, count: int) -> TensorDict:
        number = torch.arange(first, first + count, dtype=torch.float32)[:, None]
        done = (number % 7 == 6).to(torch.bool)
        following = {"observation": number + 1 + 100 * done, "done": done}
        return TensorDict({"observation": number, "next": TensorDict(following, [count])}, batch_size=[count])

    def make() -> ReplayBuffer:
        return ReplayBuffer(storage=LazyTensorStorage(40, next_observation="derive"), batch_size=4)

    buffer, other = make(), make()
    for number in range(12):
        buffer.extend(steps(13 * number, 13))
        buffer.dumps(tmp_path)
        other.loads(tmp_path)
        assert torch.equal(other[:]["next", "observation"], buffer[:]["next", "observation"])
        assert torch.equal(other[:]["observation"], buffer[:]["observation"])


def test_c63_two_copies_stay_as_they_are_when_the_buffer_is_written(tmp_path: Path) -> None:
    """A memory-mapped buffer saved twice to two places, then written: neither copy changes."""
    buffer = new(LazyMemmapStorage)
    buffer.extend(items(0, ROWS))
    buffer.dumps(tmp_path / "a")
    buffer.extend(items(100, 3))
    before = held(buffer)
    buffer.dumps(tmp_path / "a")
    buffer.dumps(tmp_path / "b")
    contents = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    buffer.extend(items(200, ROWS))
    assert contents == {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert saved(tmp_path / "a") == saved(tmp_path / "b") == before


def test_a_buffer_saved_over_the_checkpoint_of_another_is_saved_whole(tmp_path: Path) -> None:
    one, other = new(), new()
    one.extend(items(0, 30))
    other.extend(items(1000, 30))
    for buffer in (one, other, one):
        buffer.dumps(tmp_path)
        assert saved(tmp_path) == held(buffer)
        buffer.extend(items(500, 2))


@pytest.mark.parametrize("way", [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_a_copy_that_goes_its_own_way_shares_no_history(way: Any, tmp_path: Path) -> None:
    buffer = new()
    buffer.extend(items(0, 30))
    buffer.dumps(tmp_path)
    other = way(buffer)
    buffer.extend(items(100, 5))
    other.extend(items(200, 5))
    other.dumps(tmp_path)
    assert saved(tmp_path) == held(other)
    buffer.dumps(tmp_path)
    assert saved(tmp_path) == held(buffer)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_and_its_parent_share_no_history(tmp_path: Path) -> None:
    """Unless the storage is shared, both have one of their own."""
    script = """
import os, sys, torch
from replaybank import LazyTensorStorage, ReplayBuffer
torch.set_num_threads(1)  # a forked child has none of its parent's kernel threads
buffer = ReplayBuffer(storage=LazyTensorStorage(50))
buffer.extend(torch.arange(40))
buffer.dumps(sys.argv[1])
child = os.fork()
if child == 0:
    buffer.extend(torch.arange(100, 105))
    buffer.dumps(sys.argv[1])
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
buffer.extend(torch.arange(200, 205))
buffer.dumps(sys.argv[1])
other = ReplayBuffer(storage=LazyTensorStorage(50))
other.loads(sys.argv[1])
assert other[:].tolist() == buffer[:].tolist()
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, timeout=PATIENCE)


@pytest.mark.parametrize("how", ["view", "given"])
def test_tensors_that_others_may_change_are_saved_whole(how: str, tmp_path: Path) -> None:
    buffer = new() if how == "view" else ReplayBuffer(storage=TensorStorage(items(0, 30)))
    if how == "view":
        buffer.extend(items(0, 30))
        buffer.dumps(tmp_path)
    assert isinstance(buffer.storage, TensorStorage)
    inside = buffer.storage.view()
    if how == "given":
        buffer.dumps(tmp_path)
    inside["frame"][3], inside["n"][3], inside["odd"][3] = 77.0, 77, True
    buffer.dumps(tmp_path)
    assert load(tmp_path)["storage"]["data"][1][3] == 77


@pytest.mark.parametrize("error", [errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP])
def test_where_there_are_no_hard_links_all_is_written(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = new()
    buffer.extend(items(0, 30))
    buffer.dumps(tmp_path, keep=1)

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "link", refuse)
    buffer.extend(items(100, 3))
    buffer.dumps(tmp_path, keep=1)
    assert written(tmp_path) == 33 * ITEM_BYTES
    assert saved(tmp_path) == held(buffer)


def test_a_save_over_a_damaged_one_writes_all(tmp_path: Path) -> None:
    buffer = new()
    buffer.extend(items(0, 30))
    buffer.dumps(tmp_path)
    os.truncate(next(newest(tmp_path).glob("*.0.bin")), 5)
    buffer.extend(items(100, 3))
    buffer.dumps(tmp_path)
    assert saved(tmp_path) == held(buffer)


def test_c65_a_flipped_byte_in_any_file_is_found_and_the_buffer_stays_as_it_is(tmp_path: Path) -> None:
    """Base and later pieces, everything beside them, the manifest and the pointer."""
    buffer, other = new(), new()
    buffer.extend(items(0, 60))
    other.extend(items(500, 9))
    for first in (100, 200):
        buffer.dumps(tmp_path)
        buffer.extend(items(first, 3))
    buffer.dumps(tmp_path)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert sum(file.name.count(".") == 2 for file in files) == 9, "three pieces of three leaves"
    for file in files:
        content = file.read_bytes()
        for place in {0, len(content) // 2, len(content) - 1}:
            damaged = bytearray(content)
            damaged[place] ^= 1
            file.write_bytes(damaged)
            with pytest.raises(DataFormatError, match=file.name.replace(".", r"\.")):
                other.loads(tmp_path)
            with pytest.raises(DataFormatError, match=file.name.replace(".", r"\.")):
                load(tmp_path)
        file.write_bytes(content)
    assert held(other) == list(range(500, 509))
    other.loads(tmp_path)
    assert held(other) == held(buffer)


def test_rows_are_read_from_their_files_when_asked_for(tmp_path: Path) -> None:
    buffer = new()
    buffer.extend(items(0, 60))
    for first in (100, 200):
        buffer.dumps(tmp_path)
        buffer.extend(items(first, 7))
    buffer.dumps(tmp_path)
    numbers = torch.tensor(held(buffer))
    with opened(tmp_path) as state:
        rows = state["storage"]["data"][1]
        assert (rows.shape, rows.dtype, rows.ndim, len(rows)) == (torch.Size([64]), torch.int64, 1, 64)
        for first in range(0, 64, 5):
            for stop in range(first, 65, 7):
                assert torch.equal(rows[first:stop], numbers[first:stop])
        with pytest.raises(ValueError, match="step 1"):
            rows[::2]


KILLED = """
import os, random, signal, sys, time, torch, warnings
from replaybank import LazyMemmapStorage, ReplayBuffer
warnings.simplefilter("ignore")
torch.set_num_threads(1)  # a forked child has none of its parent's kernel threads
path, moments = sys.argv[1], random.Random(0)

def step(buffer, number):
    # Every item is the number of the step that wrote it: 7 slots a step, round and round.
    buffer.extend(torch.full((7, 50), number))
    buffer.dumps(path, keep=number % 3)

def check(number, buffer):
    found = buffer[:][:, 0].tolist()
    assert bool((buffer[:] == buffer[:][:, :1]).all())
    expected = [None] * 100
    for at in range(7 * number):
        expected[at % 100] = at // 7 + 1
    assert found == [one for one in expected if one is not None], (number, found)

number = 0
buffer = ReplayBuffer(storage=LazyMemmapStorage(100))
for _ in range(50):
    said, say = os.pipe()
    pid = os.fork()
    if pid == 0:
        buffer = ReplayBuffer(storage=LazyMemmapStorage(100))
        if number:
            buffer.loads(path)
        while True:
            number += 1
            step(buffer, number)
            os.write(say, b"%d\\n" % number)
    os.close(say)
    lines = os.fdopen(said)
    announced = [int(lines.readline())]  # however slow the machine, one save was finished
    time.sleep(moments.uniform(0, 0.02))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    announced += [int(line) for line in lines]
    lines.close()
    other = ReplayBuffer(storage=LazyMemmapStorage(100))
    other.loads(path)
    number = int(other[:][:, 0].max())
    assert number in (announced[-1], announced[-1] + 1), (number, announced)
    check(number, other)
print(number)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_c64_killed_at_fifty_random_moments_the_state_is_that_before_or_after(tmp_path: Path) -> None:
    """Saves that write what has changed, each over the one before it."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 50


def test_a_save_without_pieces_is_of_the_first_version_and_loads(tmp_path: Path) -> None:
    """Files of an earlier replaybank are those; what is loaded from them can be saved in pieces."""
    buffer, other = new(), new()
    buffer.extend(items(0, 20))
    save(tmp_path, buffer.state_dict())
    assert json.loads((newest(tmp_path) / "manifest.json").read_text())["version"] == 1
    other.loads(tmp_path)
    assert held(other) == list(range(20))
    other.extend(items(20, 2))
    other.dumps(tmp_path)
    assert json.loads((newest(tmp_path) / "manifest.json").read_text())["version"] == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert saved(tmp_path) == list(range(22))
