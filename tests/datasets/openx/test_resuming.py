"""A stream left behind any batch goes on in another process with the batch that would have come."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

from patience import PATIENCE
from stream_cases import MORE, Case, batches_of, cases, dataset_of, digest, following, from_workers


def in_another_process(tmp_path: Path, call: str, left: Any) -> Any:
    """What a fresh interpreter makes of states; nothing is handed over but their bytes."""
    path = tmp_path / "left"
    path.write_bytes(pickle.dumps(left))
    tests = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", f"import stream_cases; stream_cases.{call}"],
        env={"PYTHONPATH": str(tests), "PATH": "", "OMP_NUM_THREADS": "1", "LEFT": str(path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((tmp_path / "left.out").read_text())


def left_behind(case: Case) -> list[tuple[Any, list[str]]]:
    """The states behind some batches, before the first one included, and the batches that came after each."""
    dataset = dataset_of(case, seed=1)
    states, given = [dataset.state_dict()], []
    for batch in islice(batches_of(case, dataset), 2 * MORE):
        given.append(digest(batch))
        states.append(dataset.state_dict())
    dataset.close()
    ended = len(given) < 2 * MORE  # then the state behind the last batch is of the end of the epoch
    return [
        (state, given[at : at + MORE])
        for at, state in enumerate(states)
        if (ended and at < len(given)) or at + MORE <= len(given)
        if at in (0, 1, 4) or case["rank"] == 0
    ]


def test_a_stream_goes_on_in_another_process_behind_any_batch(tmp_path: Path) -> None:
    left = [(case, state, expected) for case in cases() for state, expected in left_behind(case)]
    assert len(left) > 150
    found = in_another_process(
        tmp_path, "child(__import__('os').environ['LEFT'])", [(case, state) for case, state, _ in left]
    )
    for (case, _, expected), after in zip(left, found, strict=True):
        assert after == expected, case


WORKERS: list[Case] = [
    {"form": "for", "kind": "MemorySource", "batch_size": 6, "slice_len": 3, "strict_length": False},
    {"form": "for", "kind": "Unsaid", "batch_size": 2, "slice_len": 2, "pad": 0, "rank": 1, "world_size": 2},
    {"form": "sample", "kind": "MemorySource", "batch_size": 6, "num_slices": 2, "strict_length": False},
    {"form": "mixture", "kind": "MemorySource", "batch_size": 8, "slice_len": 2, "pad": 0},
]


def test_two_workers_go_on_in_another_process_each_with_its_own_state(tmp_path: Path) -> None:
    """As a loader does that asks the dataset in each worker for its state (torchdata's)."""
    left, expected = [], []
    for case in WORKERS:
        workers = from_workers(case, None, PATIENCE)
        for at in (0, 1):
            left.append((case, [given[at][1] for given in workers]))
            expected.append([[batch for batch, _ in given[at + 1 :]] for given in workers])
    call = f"child_with_workers(__import__('os').environ['LEFT'], {PATIENCE})"
    assert sum(len(worker) for wanted in expected for worker in wanted) > 30
    for (case, _), after, wanted in zip(
        left, in_another_process(tmp_path, call, left), expected, strict=True
    ):
        for worker in range(2):
            known = len(wanted[worker])
            assert after[worker][:known] == wanted[worker], (case, worker)
            if case["form"] == "for":  # to the end of the epoch
                assert len(after[worker]) == known


def test_a_state_may_be_taken_up_as_often_as_one_likes() -> None:
    case = cases()[0]
    ((_, _), (state, expected), *_) = left_behind(case)
    assert following(case, state) == following(case, pickle.loads(pickle.dumps(state))) == expected
