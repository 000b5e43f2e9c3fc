"""Copies shared out over threads: the same bytes, from any thread, after a fork, with nothing to wait for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import numpy.typing as npt
import pytest

from patience import PATIENCE
from replaybank import _native

ITEMS, BYTES = 300, 40_000

Bytes = npt.NDArray[np.uint8]


def _table() -> tuple[Bytes, npt.NDArray[np.int64]]:
    leaf = np.random.default_rng(0).integers(0, 256, (ITEMS, BYTES), dtype=np.uint8)
    return leaf, np.array([[leaf.ctypes.data, BYTES, BYTES, 0]], dtype=np.int64)


def _gather(plan: npt.NDArray[np.int64], index: npt.NDArray[np.int64], threads: int) -> Bytes:
    out = np.zeros((len(index), BYTES), dtype=np.uint8)
    address = [out.ctypes.data]
    assert _native.gather(plan.ctypes.data, ITEMS, index.ctypes.data, len(index), address, threads) == -1
    return out


@pytest.mark.parametrize("threads", [1, 2, 3, 100])
@pytest.mark.parametrize("count", [1, 2, 7, 300])
def test_any_number_of_threads_copies_the_same(threads: int, count: int) -> None:
    leaf, plan = _table()
    for seed in range(5):
        index = np.random.default_rng(seed).integers(-ITEMS, ITEMS, count)
        assert np.array_equal(_gather(plan, index, threads), leaf[index])


def test_several_callers_at_once_get_what_they_asked_for() -> None:
    leaf, plan = _table()
    wrong: list[int] = []

    def call(seed: int) -> None:
        for step in range(20):
            index = np.random.default_rng([seed, step]).integers(0, ITEMS, 50)
            if not np.array_equal(_gather(plan, index, 3), leaf[index]):
                wrong.append(seed)

    callers = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own() -> None:
    leaf, plan = _table()
    index = np.arange(ITEMS)
    _gather(plan, index, 3)
    child = os.fork()
    if child == 0:
        good = all(np.array_equal(_gather(plan, index, 3), leaf[index]) for _ in range(3))
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.array_equal(_gather(plan, index, 3), leaf[index])


def test_the_threads_do_not_keep_the_interpreter() -> None:
    program = (
        "import torch; torch.set_num_threads(4)\n"
        "from replaybank.storages import LazyTensorStorage\n"
        "storage = LazyTensorStorage(100)\n"
        "storage.set(range(100), torch.zeros(100, 100_000))\n"
        "assert storage.get(torch.arange(50)).shape == (50, 100_000)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)
