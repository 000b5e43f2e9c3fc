"""The most memory that saving and loading take, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENCE

MOST = 1.2
"""Of the buffer's size, all of it included."""

SCRIPT = """
import sys, torch
from tensordict import TensorDict
from replaybank import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

what, storage, path, folder = sys.argv[1:]
rows, width = 1500, 20_000  # 120 MB in a column, some beside it in rows
if storage == "memmap":
    storage = LazyMemmapStorage(rows, scratch_dir=folder)
else:
    storage = LazyTensorStorage(rows)
buffer = ReplayBuffer(storage=storage, batch_size=2)

def items(count):
    x = torch.ones(count, width)
    return TensorDict({"x": x, "n": torch.arange(count), "y": torch.ones(count, 7)}, [count])

buffer.extend(items(100))
buffer.dumps(path + ".small")  # all code is in memory now
other = ReplayBuffer(storage=LazyTensorStorage(rows), batch_size=2)
other.loads(path + ".small")
del other
base = peak()
if what == "save":
    for _ in range(rows // 100):
        buffer.extend(items(100))
    for _ in range(2):
        buffer.dumps(path)
        buffer.extend(items(100))
else:
    buffer.empty()
    buffer.loads(path)
    assert len(buffer) == rows and bool((buffer.storage.view()["x"][::500] == 1).all())
print((peak() - base) / (rows * width * 4))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("storage", ["memory", "memmap"])
def test_saving_and_loading_take_less_than_a_fifth_of_the_buffer_beside_it(
    storage: str, tmp_path: Path
) -> None:
    for what in ("save", "load"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, what, storage, str(tmp_path / "saved"), str(tmp_path / what)],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        assert 0.5 < float(done.stdout) < MOST, f"{what}: {done.stdout} times the buffer"
