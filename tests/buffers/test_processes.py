"""Buffers in forked and spawned processes."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from patience import PATIENCE
from replaybank.buffers.locks import ProcessLock
from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.buffers.tensordict import TensorDictReplayBuffer
from replaybank.storages import LazyTensorStorage

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    # What these tests are about: forking a process that has threads.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def steps(start: int, count: int) -> TensorDict:
    return TensorDict({"n": torch.arange(start, start + count)}, batch_size=count)


def in_child(work: Any, *, killed: bool = False) -> None:
    """Run ``work`` in a forked child; fail as it fails."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            torch.set_num_threads(1)
            work()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (-9 if killed else 0)


def test_a_child_forked_while_another_thread_holds_the_lock_can_use_its_copy() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=3, prefetch=2)
    buffer.extend(steps(0, 5))
    buffer.sample()
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with buffer._lock.lock:
            held.set()
            let_go.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(PATIENCE)

    def use() -> None:
        buffer.extend(steps(5, 2))
        assert len(buffer) == 7
        for _ in range(5):
            assert len(buffer.sample()) == 3

    try:
        in_child(use)
    finally:
        let_go.set()
        thread.join()
    assert len(buffer) == 5
    buffer.close()


def shared_buffer(capacity: int = 1000) -> TensorDictReplayBuffer:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity, shared_init=True), batch_size=32, shared=True
    )
    buffer.extend(steps(0, 1))
    return buffer


def write_many(buffer: TensorDictReplayBuffer, start: int) -> None:
    torch.set_num_threads(1)
    for step in range(50):
        buffer.extend(steps(start + 3 * step, 3))
        buffer.sample()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_write_to_one_shared_buffer(method: str) -> None:
    buffer = shared_buffer()
    context = multiprocessing.get_context(method)
    processes = [
        context.Process(target=write_many, args=(buffer, 1000 * number))  # type: ignore[attr-defined]
        for number in (1, 2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE)
    assert [process.exitcode for process in processes] == [0, 0]
    expected = {0} | {1000 * number + k for number in (1, 2) for k in range(150)}
    assert set(buffer[:]["n"].tolist()) == expected
    assert len(buffer) == buffer.write_count == 301
    assert buffer[:]["index"].tolist() == list(range(301))
    assert set(buffer.sample()["n"].tolist()) <= expected


def test_a_killed_child_leaves_the_lock_usable() -> None:
    buffer = shared_buffer()

    def die() -> None:
        buffer._lock.lock.acquire()
        os.kill(os.getpid(), signal.SIGKILL)

    in_child(die, killed=True)
    buffer.extend(steps(1, 2))
    assert len(buffer) == 3


def test_a_shared_buffer_that_was_never_written_to_refuses_in_the_child() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(10, shared_init=True), batch_size=2, shared=True
    )

    def use() -> None:
        with pytest.raises(RuntimeError, match="no memory yet when it came to another process"):
            buffer.extend(steps(0, 2))

    in_child(use)
    buffer.extend(steps(0, 2))
    assert len(buffer) == 2


def note(lock: ProcessLock, order: list[str]) -> None:
    with lock:
        order.append("thread")


def test_a_process_lock_keeps_processes_and_threads_apart() -> None:
    lock = ProcessLock()
    assert pickle.loads(pickle.dumps(lock)) is lock, "one object a process, or its threads would not meet"
    order: list[str] = []
    ready, done = os.pipe(), torch.zeros(1, dtype=torch.int64).share_memory_()
    with lock, lock:
        pid = os.fork()
        if pid == 0:
            os.write(ready[1], b"x")
            with lock:
                os._exit(0 if int(done) else 1)
        thread = threading.Thread(target=note, args=(lock, order))
        thread.start()
        os.read(ready[0], 1)
        time.sleep(0.2)  # time for both to take the lock, if it let them
        order.append("main")
        done[0] = 1
    thread.join()
    assert order == ["main", "thread"]
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with pytest.raises(RuntimeError, match="holds the lock"):
        lock.release()
    path = lock._path
    del lock, thread
    assert not os.path.exists(path)


def test_a_pickled_buffer_is_one_of_its_own() -> None:
    buffer = ReplayBuffer(batch_size=2)
    buffer.extend([1, 2])
    other = pickle.loads(pickle.dumps(buffer))
    other.add(3)
    assert (len(buffer), len(other)) == (2, 3)


ORPHANS = """
import os, sys, torch
from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.storages import LazyTensorStorage
buffer = ReplayBuffer(storage=LazyTensorStorage(10, shared_init=True), shared=True)
buffer.extend(torch.arange(3))
gone, maker_ends = os.pipe()
if os.fork():
    os._exit(0) if sys.argv[1] == "killed" else sys.exit(0)
os.close(maker_ends)
os.read(gone, 1)  # returns once the maker is gone
path = buffer._lock.shared._path
if os.path.exists(path):
    os.unlink(path)
pid = os.fork()
if pid == 0:
    buffer.extend(torch.arange(2))
    os._exit(7 if buffer.sample(4).shape == (4,) else 1)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
buffer.extend(torch.arange(2))
print(status, buffer.write_count, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("end", ["ended", "killed"])
def test_children_can_fork_once_the_maker_of_a_shared_buffer_is_gone(end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ORPHANS, end],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.stdout == "7 7\n", done.stderr


def test_locks_still_keep_forked_processes_apart_once_the_file_has_no_name() -> None:
    lock = ProcessLock()
    os.unlink(lock._path)
    ready, go_on = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        with lock:
            os.write(ready[1], b"x")
            os.read(go_on[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    taken = threading.Event()

    def take() -> None:
        with lock:
            taken.set()

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    assert not taken.wait(0.2)
    os.write(go_on[1], b"x")
    assert taken.wait(PATIENCE)
    os.waitpid(pid, 0)
    thread.join()


def test_a_lock_that_went_with_its_maker_is_named_when_it_is_unpickled() -> None:
    lock = ProcessLock()
    pickled, path = pickle.dumps(lock), lock._path
    del lock
    with pytest.raises(RuntimeError, match=f"{path} of this shared buffer is gone"):
        pickle.loads(pickled)


def test_the_files_of_killed_makers_of_locks_are_removed_by_the_next_one() -> None:
    paths: list[Path] = []
    for _ in range(2):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            lock = ProcessLock()
            os.write(write, lock._path.encode())
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)
        paths.append(Path(os.read(read, 4096).decode()))
    assert not paths[0].exists()
    first, second = ProcessLock(), ProcessLock()
    assert not paths[1].exists()
    assert all(os.path.exists(lock._path) for lock in (first, second)), "their maker lives"


@pytest.mark.parametrize("way", ["pickle", "deepcopy", "copy"])
def test_a_copy_made_while_another_thread_writes_is_whole(way: str) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(16), batch_size=2)

    def items(start: int, count: int) -> dict[str, torch.Tensor]:
        numbers = torch.arange(start, start + count)
        return {"n": numbers, "x": numbers[:, None].expand(count, 50_000).clone()}

    buffer.extend(items(0, 16))
    ended = threading.Event()

    def write() -> None:
        start = 16
        while not ended.is_set():
            buffer.extend(items(start, 11))
            start += 11

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(15):
            if way == "pickle":
                made = pickle.loads(pickle.dumps(buffer))
            else:
                made = copy.deepcopy(buffer) if way == "deepcopy" else copy.copy(buffer)
            stored = made[:]
            assert bool((stored["x"] == stored["n"][:, None]).all())
            in_order = torch.roll(stored["n"], -made.writer.cursor)
            assert in_order.tolist() == list(range(made.write_count - 16, made.write_count))
    finally:
        ended.set()
        thread.join()


def test_the_parts_of_a_copied_buffer_belong_together() -> None:
    generator = torch.Generator().manual_seed(0)
    buffer = ReplayBuffer(storage=LazyTensorStorage(16), batch_size=2, generator=generator)
    buffer.extend(torch.arange(5))
    for made in (pickle.loads(pickle.dumps(buffer)), copy.deepcopy(buffer)):
        assert made.writer.storage is made.storage
        assert made.sampler.generator is made.generator
        made.extend(torch.arange(3))
        assert (len(made), len(buffer)) == (8, 5)
