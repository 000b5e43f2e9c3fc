"""A run that is saved in the middle and goes on in a new process gives the batches of one never stopped."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import sampler_contracts
from patience import PATIENCE
from replaybank import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer
from sampler_contracts import SAMPLERS, SamplerCase, steps

ROWS = 120
HALF = 500
"""Batches before the save, and after it."""


def make(case: SamplerCase, prefetch: int | None) -> ReplayBuffer:
    return ReplayBuffer(
        storage=LazyTensorStorage(ROWS) if prefetch else LazyMemmapStorage(ROWS),
        sampler=case.make(),
        batch_size=sampler_contracts.BATCH,
        prefetch=prefetch,
        generator=torch.Generator().manual_seed(7),
    )


def settle(buffer: ReplayBuffer) -> None:
    """Wait until all that is drawn ahead has been: how much it is when something is written is chance."""
    ahead = buffer._prefetcher
    if ahead is not None:
        with ahead._changed:
            ahead._changed.wait_for(lambda: not ahead._may_draw())
        with buffer._lock.lock:  # the thread puts a batch in line while it has this
            pass


def run(buffer: ReplayBuffer, first: int) -> list[str]:
    """A digest of each batch, with writes and priorities between them."""
    digests = []
    for number in range(first, first + HALF):
        data, info = buffer.sample(return_info=True)
        digest = hashlib.blake2b(data["number"].numpy().tobytes(), digest_size=6)
        for key in sorted(info, key=str):
            if isinstance(info[key], torch.Tensor):
                digest.update(info[key].contiguous().numpy().tobytes())
        digests.append(digest.hexdigest())
        if "priority_weight" in info and number % 20 == 7:
            settle(buffer)
            priority = (data["number"] % 11 + 0.5).to(torch.float32)
            buffer.update_priority(info["index"], priority, generation=info["_generation"])
        if number % 50 == 20:
            settle(buffer)
            buffer.extend(steps(1000 + 3 * number, 13))
    settle(buffer)
    return digests


def cases() -> list[tuple[str, SamplerCase, int | None]]:
    return [
        (f"{number}-{prefetch}", case, prefetch)
        for (number, case), prefetch in itertools.product(enumerate(SAMPLERS), (None, 3))
    ]


def go_on(folder: Path) -> dict[str, list[str]]:
    out = {}
    for name, case, prefetch in cases():
        buffer = make(case, prefetch)
        buffer.loads(folder / name)
        out[name] = run(buffer, HALF)
        buffer.close()
    return out


CHILD = """
import json, sys
from pathlib import Path
import test_continuing
print(json.dumps(test_continuing.go_on(Path(sys.argv[1]))))
"""


def test_a_run_saved_in_the_middle_goes_on_in_a_new_process_as_if_it_had_not_been_stopped(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """C62 and more: a thousand batches of every sampler, drawn ahead or not, with writes and priorities."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # what is on the disk is not asked here
    right: dict[str, list[str]] = {}
    for name, case, prefetch in cases():
        buffer = make(case, prefetch)
        buffer.extend(steps(0, 90))
        before = run(buffer, 0)
        buffer.dumps(tmp_path / name)
        right[name] = run(buffer, HALF)
        assert len(set(before + right[name])) > HALF or "order" in case.name, "the batches differ"
        buffer.close()
    tests = Path(sampler_contracts.__file__).parent
    places = [str(tests), str(tests / "buffers"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for name, case, prefetch in cases():
        assert found[name] == right[name], f"{case.name}, prefetch={prefetch}"
