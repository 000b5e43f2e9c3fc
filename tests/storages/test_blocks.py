"""Byte strings in blocks: what is read is what was written, and what is freed is used again."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replaybank.storages import blocks as module
from replaybank.storages.arena import MemoryArena, SharedArena
from replaybank.storages.blocks import BLOCK_BYTES, BLOCK_PAYLOAD, ByteBlocks
from replaybank.storages.scratch import FileArena

SIZES = st.sampled_from(
    [1, 2, BLOCK_PAYLOAD - 1, BLOCK_PAYLOAD, BLOCK_PAYLOAD + 1, 1000, 5000, 3 * BLOCK_PAYLOAD]
)


def _content(size: int, seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def _blocks_of(size: int) -> int:
    return -(-size // BLOCK_PAYLOAD)


@pytest.mark.parametrize("grows", [True, False])
@settings(max_examples=60, deadline=None)
@given(
    operations=st.lists(st.tuples(st.sampled_from(["write", "write", "free", "pickle"]), SIZES), max_size=40)
)
def test_strings_come_back_and_freed_blocks_are_used_again(
    grows: bool, operations: list[tuple[str, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_BLOCKS", 8)  # so that chains lie in several chunks
        arena = MemoryArena(torch.device("cpu")) if grows else SharedArena()
        strings = ByteBlocks.allocate(arena, "test", 10_000, grows=grows, fresh=True)
        there: dict[int, bytes] = {}
        most = 0
        for number, (operation, size) in enumerate(operations):
            if operation == "write":
                content = _content(size, number)
                strings.make_room([size])
                there[strings.write(content)] = content
                most = max(most, sum(_blocks_of(len(one)) for one in there.values()))
            elif operation == "free" and there:
                string = sorted(there)[size % len(there)]
                strings.free(string, len(there.pop(string)))
            elif operation == "pickle":
                strings = pickle.loads(pickle.dumps(strings))
            for string, content in there.items():
                assert bytes(strings.read(string, len(content))) == content
            assert strings.used_bytes == sum(_blocks_of(len(one)) for one in there.values()) * BLOCK_BYTES
            assert strings.taken_bytes == most * BLOCK_BYTES


def test_writing_in_a_ring_takes_no_more_than_what_is_there() -> None:
    strings = ByteBlocks.allocate(MemoryArena(torch.device("cpu")), "test", 0, grows=True, fresh=True)
    rng = np.random.default_rng(0)
    ring: list[tuple[int, int]] = []
    most = 0
    for _ in range(3000):
        size = int(rng.integers(1, 4000))
        if len(ring) == 100:
            strings.free(*ring.pop(0))
        strings.make_room([size])
        ring.append((strings.write(b"x" * size), size))
        most = max(most, sum(_blocks_of(one) for _, one in ring))
    assert strings.taken_bytes <= most * BLOCK_BYTES


def test_no_room_is_said_before_anything_is_taken(tmp_path: Path) -> None:
    strings = ByteBlocks.allocate(FileArena(tmp_path, "create"), "test", 4, grows=False, fresh=True)
    with pytest.raises(MemoryError, match="at most 1024"):
        strings.make_room([5 * BLOCK_PAYLOAD])
    assert strings.taken_bytes == 0
    strings.make_room([4 * BLOCK_PAYLOAD])
    string = strings.write(b"y" * 4 * BLOCK_PAYLOAD)
    with pytest.raises(MemoryError, match="make_room"):
        strings.write(b"z")
    again = ByteBlocks.allocate(FileArena(tmp_path, "open"), "test", 4, grows=False, fresh=False)
    assert bytes(again.read(string, 4 * BLOCK_PAYLOAD)) == b"y" * 4 * BLOCK_PAYLOAD


def test_a_damaged_chain_is_an_error() -> None:
    strings = ByteBlocks.allocate(MemoryArena(torch.device("cpu")), "test", 0, grows=True, fresh=True)
    strings.make_room([300])
    string = strings.write(b"x" * 300)
    for number, size in ((string, 3000), (-1, 10), (99, 10)):
        with pytest.raises(ValueError, match="damaged"):
            strings.read(number, size)
