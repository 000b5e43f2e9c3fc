"""Buffers in forked and spawned processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replaybank.buffers.locks import ProcessLock
from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.buffers.tensordict import TensorDictReplayBuffer
from replaybank.storages.tensor import LazyTensorStorage

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
            let_go.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)

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
        process.join(60)
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
    with lock, lock:
        pid = os.fork()
        if pid == 0:
            start = time.monotonic()
            with lock:
                waited = time.monotonic() - start
            os._exit(0 if waited > 0.1 else 1)
        thread = threading.Thread(target=note, args=(lock, order))
        thread.start()
        time.sleep(0.2)
        order.append("main")
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
