"""A changed copy of a dataset holds what the function gives, whoever ran it, however often it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import memory_source
from memory_source import MemorySource
from patience import PATIENCE
from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.files import MANIFEST, PROGRESS, read_progress
from replaybank.datasets.openx.locks import LOCK, FolderLock
from replaybank.datasets.openx.preprocess import preprocess
from replaybank.datasets.openx.replay import OpenXExperienceReplay
from replaybank.datasets.openx.storage import DatasetStorage
from replaybank.errors import DataFormatError

LENGTHS = (7, 3, 11, 5, 4, 6)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    episodes: Any = [memory_source.episode(number, length) for number, length in enumerate(LENGTHS)]
    convert(MemorySource([episodes[:2], [], episodes[2:5], episodes[5:]]), folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != LOCK}


def unchanged(episode: Any) -> Any:
    return episode


def every_second(episode: Any) -> Any:
    """Half the steps of each, small images, another action; none of episodes of five steps."""
    if len(episode) == 5:
        return None
    out = episode[::2].clone()
    out["observation", "image"] = out["observation", "image"][:, :, ::4, ::4].contiguous()
    out["action"] = out["action"].float() * 2
    out["speed"] = torch.full((len(out),), float(len(episode)))
    del out["observation", "note"]
    return out


def test_a_function_that_changes_nothing_gives_the_same_dataset(source: Path, tmp_path: Path) -> None:
    preprocess(source, unchanged, tmp_path / "out", num_workers=0)
    one, other = contents(source), contents(tmp_path / "out")
    different = {name for name in one if one[name] != other[name]}
    assert different <= {MANIFEST, "metadata.jsonl"}


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_what_is_stored_is_what_the_function_gave(source: Path, tmp_path: Path, workers: int) -> None:
    made = preprocess(source, every_second, tmp_path / "out", num_workers=workers)
    before, after = DatasetStorage(source), DatasetStorage(tmp_path / "out")
    kept = [number for number, length in enumerate(LENGTHS) if length != 5]
    assert made.episodes == len(kept)
    for place, number in enumerate(kept):
        first, length = before.bounds[number].tolist()
        expected = every_second(before[first : first + length])
        start, steps = after.bounds[place].tolist()
        found = after[start : start + steps]
        assert steps == len(expected)
        for key in (
            "action",
            "speed",
            ("observation", "state"),
            ("observation", "image"),
            ("next", "reward"),
        ):
            assert torch.equal(found[key], expected[key]), key
        assert found["language_instruction"] == expected["language_instruction"]
        assert ("observation", "note") not in found.keys(True)
        assert found["next", "done"].squeeze(1).tolist() == [False] * (steps - 1) + [True]
        ends = before[first + length - 1]["next", "terminated"].item() and (length - 1) % 2 == 0
        assert found["next", "terminated"][-1].item() == ends
        assert torch.equal(found["next", "observation", "state"][:-1], found["observation", "state"][1:])
    if workers:
        preprocess(source, every_second, tmp_path / "here", num_workers=0)
        assert contents(tmp_path / "here") == contents(tmp_path / "out")


def test_closures_are_fine_where_processes_are_forked(source: Path, tmp_path: Path) -> None:
    factor = 3.0

    def scaled(episode: Any) -> Any:
        episode["action"] = episode["action"] * factor
        return episode

    preprocess(source, scaled, tmp_path, num_workers=2, mp_start_method="fork")
    assert torch.equal(DatasetStorage(tmp_path)[:]["action"], DatasetStorage(source)[:]["action"] * 3)


def test_spawned_processes_serve_functions_that_can_be_imported(source: Path, tmp_path: Path) -> None:
    made = preprocess(source, every_second, tmp_path, num_workers=1, mp_start_method="spawn")
    assert made.episodes == 5


def test_killed_it_goes_on_to_the_same_bytes(source: Path, tmp_path: Path) -> None:
    preprocess(source, every_second, tmp_path / "whole", num_workers=0)
    for kill_at in (1, 3, 5):
        out = tmp_path / f"killed-{kill_at}"
        child = os.fork()
        if child == 0:
            calls = iter(range(kill_at + 1))  # the first episode is looked at before

            def every_second_but_the_last(episode: Any, calls: Any = calls) -> Any:
                if next(calls, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                return every_second(episode)

            every_second_but_the_last.__qualname__ = every_second.__qualname__
            try:
                preprocess(source, every_second_but_the_last, out, num_workers=0)
            finally:
                os._exit(0)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
        assert not (out / MANIFEST).exists()
        preprocess(source, every_second, out, num_workers=0)
        assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_that_fails_is_named_with_the_episode_and_nothing_is_taken_for_complete(
    source: Path, tmp_path: Path, workers: int
) -> None:
    def fails(episode: Any) -> Any:
        if len(episode) == 11:
            raise ZeroDivisionError("by zero")
        return episode

    with pytest.raises(RuntimeError, match="memory: episode 2: fn failed: ZeroDivisionError: by zero"):
        preprocess(source, fails, tmp_path / "out", num_workers=workers)
    assert (tmp_path / "out" / PROGRESS).exists()
    assert len(read_progress(tmp_path / "out").shards) <= 2


def test_a_process_that_is_killed_is_told_of(source: Path, tmp_path: Path) -> None:
    parent = os.getpid()

    def dies(episode: Any) -> Any:
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return episode

    with pytest.raises(RuntimeError, match="a process that ran fn ended without a word"):
        preprocess(source, dies, tmp_path / "out", num_workers=1, mp_start_method="fork")


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda episode: episode["action"], "must return a TensorDict"),
        (lambda episode: episode[:0], "one step at least"),
        (lambda episode: None, "leaves out all 6 episodes"),
        (lambda episode: episode.set(("next", "speed"), episode["action"]), "under 'next' only"),
        (lambda episode: episode.set_non_tensor("who", 5), "tensors and strings can be stored"),
        (lambda episode: episode.set("odd", episode["action"]) if len(episode) == 3 else episode, "odd"),
        (
            lambda episode: episode.set("action", episode["action"][:, :1]) if len(episode) == 3 else episode,
            r"action has shape \(1,\)",
        ),
    ],
)
def test_what_is_no_episode_is_refused(source: Path, tmp_path: Path, fn: Any, message: str) -> None:
    with pytest.raises(DataFormatError, match=message):
        preprocess(source, fn, tmp_path / "out", num_workers=0)
    assert not (tmp_path / "out" / MANIFEST).exists()


def test_frames_can_be_encoded_anew(source: Path, tmp_path: Path) -> None:
    def smooth(episode: Any) -> Any:
        ramp = torch.arange(0, 200, 10, dtype=torch.uint8) + episode["step"][0]
        episode["observation", "image"] = ramp.expand(len(episode), 3, 20, 20).contiguous()
        return episode

    preprocess(source, smooth, tmp_path / "raw", num_workers=0)
    made = preprocess(source, smooth, tmp_path / "encoded", num_workers=0, images="encoded")
    assert [leaf.key for leaf in made.encoded] == [("observation", "image")]
    raw, encoded = DatasetStorage(tmp_path / "raw")[:], DatasetStorage(tmp_path / "encoded")[:]
    assert torch.equal(raw["action"], encoded["action"])
    difference = raw["observation", "image"].int() - encoded["observation", "image"].int()
    assert (
        int(difference.abs().max()) <= 6
    )  # JPEG of quality 95 keeps smooth pictures within some grey levels


def test_a_dataset_object_makes_a_changed_copy_of_itself(source: Path, tmp_path: Path) -> None:
    dataset = OpenXExperienceReplay("memory", streaming=False, source=source)
    copy = dataset.preprocess(every_second, dest=tmp_path / "out", num_workers=0)
    assert isinstance(copy, OpenXExperienceReplay)
    assert copy.num_episodes == 5
    assert copy.sample(4)["speed"].dtype == torch.float32
    with pytest.raises(ValueError, match="num_workers=-1"):
        dataset.preprocess(unchanged, dest=tmp_path / "no", num_workers=-1)
    assert np.array_equal(np.sort(copy[:]["speed"].unique().numpy()), [3, 4, 6, 7, 11])


KILLED = """
import os, signal, sys
from pathlib import Path
from replaybank.datasets.openx.preprocess import preprocess

def told(episode):
    Path(sys.argv[3], str(os.getpid())).touch()
    return episode

def killer(episode):
    told(episode)
    if os.getpid() != main:
        os.kill(main, signal.SIGKILL)
    return episode

main = os.getpid()
preprocess(sys.argv[1], killer, sys.argv[2], num_workers=2, mp_start_method="fork", progress=False)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_killed_with_its_processes_at_work_it_leaves_neither_them_nor_a_lock(
    source: Path, tmp_path: Path
) -> None:
    script, pids = tmp_path / "killed.py", tmp_path / "pids"
    script.write_text(KILLED)
    pids.mkdir()
    command = [sys.executable, str(script), str(source), str(tmp_path / "out"), str(pids)]
    done = subprocess.run(command, env={"PATH": "", "OMP_NUM_THREADS": "1"}, timeout=PATIENCE, check=False)
    assert done.returncode == -signal.SIGKILL
    FolderLock(tmp_path / "out", "a test").release()  # at once, whether the processes have ended yet or not
    workers = [int(path.name) for path in pids.iterdir()]
    assert len(workers) >= 2
    deadline = time.monotonic() + PATIENCE
    while any(map(alive, workers)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    preprocess(source, unchanged, tmp_path / "out", num_workers=0, overwrite=True)


def alive(process: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return " Z " not in Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
