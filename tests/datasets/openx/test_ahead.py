"""Work ahead of the reader: bounded, in order, errors in their place, and nothing left running."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from memory_source import MemorySource, episode
from patience import PATIENCE
from replaybank.datasets.openx.ahead import Ahead
from replaybank.datasets.openx.replay import OpenXExperienceReplay
from replaybank.datasets.openx.sources.base import Episode, Shard
from replaybank.errors import CorruptRecordError, DataFormatError


def ours() -> list[str]:
    """Threads that a stream has started and that live."""
    return [t.name for t in threading.enumerate() if t.name.startswith("replaybank")]


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    yield
    gc.collect()
    assert ours() == []


def line(items: Any, **arguments: Any) -> Ahead[Any, Any]:
    settings: dict[str, Any] = {"depth": 3, "limit": 1000, "threads": 2, "size": lambda _: 1}
    settings.update(arguments)
    prepare = settings.pop("prepare", lambda item: -item)
    return Ahead(iter(items), prepare, settings.pop("size"), **settings)


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_results_come_in_the_order_of_the_items(threads: int) -> None:
    ahead = line(range(100), threads=threads)
    results = [ahead.next() for _ in range(101)]
    assert results == [(n, -n) for n in range(100)] + [None]
    assert ahead.next() is None
    ahead.close()


def test_no_more_is_taken_than_fits() -> None:
    taken = []

    def items() -> Iterator[int]:
        for n in range(50):
            taken.append(n)
            yield n

    ahead = line(items(), depth=10, limit=100, size=lambda _: 40)
    for n in range(20):
        assert ahead.next() == (n, -n)
        assert len(taken) <= n + 4  # given: one; in the line: two of 40 bytes; waiting: one
    ahead.close()
    one_at_a_time = line(range(5), limit=10, size=lambda _: 40)
    assert [one_at_a_time.next() for _ in range(6)] == [*((n, -n) for n in range(5)), None]
    one_at_a_time.close()


@pytest.mark.parametrize("threads", [0, 2])
def test_an_error_comes_in_its_place_with_its_cause(threads: int) -> None:
    def items() -> Iterator[int]:
        yield from range(3)
        raise OSError("gone") from ConnectionResetError("by peer")

    ahead = line(items(), threads=threads)
    assert [ahead.next() for _ in range(3)] == [(n, -n) for n in range(3)]
    for _ in range(2):
        with pytest.raises(OSError, match="gone") as caught:
            ahead.next()
        assert isinstance(caught.value.__cause__, ConnectionResetError)
    ahead.close()
    failing = line([1, 0, 2], prepare=lambda n: 1 / n, threads=threads)
    assert failing.next() == (1, 1.0)
    with pytest.raises(ZeroDivisionError):
        failing.next()
    assert failing.next() == (2, 0.5)
    failing.close()


def test_a_closed_line_gives_nothing_and_its_items_are_closed() -> None:
    closed = threading.Event()

    def items() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    ahead = line(items())
    ahead.next()
    ahead.close()
    assert closed.is_set()
    assert not ahead.usable
    with pytest.raises(RuntimeError, match="has been closed"):
        ahead.next()
    ahead.close()


def assert_closing_wakes_its_reader(
    ahead: Ahead[int, Any], began: threading.Event, blocked: threading.Event
) -> None:
    """Once something ``began`` that lasts until ``blocked`` is set."""
    errors = []

    def read() -> None:
        try:
            ahead.next()
        except RuntimeError as error:
            errors.append(str(error))

    reader = threading.Thread(target=read)
    reader.start()
    began.wait()
    closer = threading.Thread(target=ahead.close)
    closer.start()
    reader.join()
    assert errors == ["This stream has been closed."]
    blocked.set()
    closer.join()


def test_closing_wakes_who_waits() -> None:
    started, blocked = threading.Event(), threading.Event()

    def items() -> Iterator[int]:
        started.set()
        blocked.wait()
        yield 1

    ahead = line(items())
    assert_closing_wakes_its_reader(ahead, started, blocked)


def test_what_is_ready_is_prepared_again_in_another_way() -> None:
    ahead = line(range(10))
    assert ahead.next() == (0, 0)
    ahead.renew(lambda item: item * 100, lambda _: 1)
    assert [ahead.next() for _ in range(9)] == [(n, n * 100) for n in range(1, 10)]
    ahead.close()


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("more", [0, 4, 200])
def test_asking_for_several_gives_the_same_items(threads: int, more: int) -> None:
    ahead = line(range(100), depth=5, threads=threads)
    assert [ahead.next(more) for _ in range(101)] == [(n, -n) for n in range(100)] + [None]
    assert ahead.next(more) is None
    ahead.close()


def test_asking_for_several_waits_for_none_that_does_not_come() -> None:
    blocked = threading.Event()

    def items() -> Iterator[int]:
        yield from (1, 2)
        blocked.wait()
        raise OSError("gone")

    ahead = line(items(), prepare=lambda n: 1 // (n - 1))
    with pytest.raises(ZeroDivisionError):
        ahead.next(9)
    assert ahead.next(8) == (2, 1)
    blocked.set()
    with pytest.raises(OSError, match="gone"):
        ahead.next(7)
    ahead.close()


def test_an_error_among_several_comes_in_its_place() -> None:
    ahead = line([1, 0, 2], prepare=lambda n: 1 / n, threads=1)
    assert ahead.next(2) == (1, 1.0)
    with pytest.raises(ZeroDivisionError):
        ahead.next(1)
    assert ahead.next() == (2, 0.5)
    ahead.close()


def test_small_items_are_made_by_who_asks_for_them() -> None:
    sizes = [1, 5, 2, 3, 9, 0]
    ahead = line(sizes, prepare=lambda _: threading.current_thread(), size=lambda n: n, small=2, threads=2)
    for size in sizes:
        found = ahead.next()
        assert found is not None
        assert (found[1] is threading.current_thread()) == (size <= 2)
    ahead.close()


def test_closing_wakes_who_waits_for_a_result() -> None:
    began, blocked = threading.Event(), threading.Event()

    def prepare(_: int) -> None:
        began.set()
        blocked.wait()

    ahead = line([1], prepare=prepare, threads=1)
    assert_closing_wakes_its_reader(ahead, began, blocked)


# --- the dataset -------------------------------------------------------------------------------------------


def stream(batch_size: int | None = None, **arguments: Any) -> OpenXExperienceReplay:
    if "source" not in arguments:
        arguments["source"] = MemorySource([[episode(n, 3) for n in range(20)]] * 2)
    arguments.setdefault("buffer_bytes", 10_000)
    arguments.setdefault("generator", torch.Generator().manual_seed(0))
    return OpenXExperienceReplay("arm", batch_size, **arguments)


def test_leaving_a_loop_ends_its_threads() -> None:
    streamed = stream()
    for _ in streamed:
        assert ours()
        break
    assert not ours()
    running = iter(streamed)
    next(running)
    running.close()  # type: ignore[attr-defined]
    assert not ours()
    with contextlib.suppress(KeyError):
        for _ in streamed:
            raise KeyError
    gc.collect()
    assert not ours()


def test_closing_and_forgetting_a_stream_ends_its_threads() -> None:
    streamed = stream(2)
    streamed.sample()
    assert ours()
    streamed.close()
    assert not ours()
    streamed.sample()
    assert ours()
    del streamed
    gc.collect()
    assert not ours()


def test_a_corrupt_record_is_an_error_behind_the_episodes_before_it() -> None:
    bad = CorruptRecordError("/data/shard-0", 3, 77, "cut short")
    source = MemorySource([[*(episode(n, 3) for n in range(3)), bad, episode(4, 3)]])
    streamed = stream(3, source=source, shuffle=False)
    assert [int(streamed.sample()["episode"][0]) for _ in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match="record 3 at byte 77"):
            streamed.sample()
    assert not ours()
    running = iter(streamed)
    assert [int(next(running)["episode"][0]) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(CorruptRecordError):
        next(running)


def test_after_an_error_that_passes_the_stream_goes_on_where_it_was() -> None:
    class Flaky(MemorySource):
        broken = True

        def episodes(self, shard: Shard, start: int = 0) -> Iterator[Episode]:
            for number, made in enumerate(super().episodes(shard, start), start):
                if number == 7 and Flaky.broken:
                    raise ConnectionError("reset")
                yield made

    shards = [[episode(n, 3) for n in range(20)]]
    streamed = stream(3, source=Flaky(shards))
    given: list[int] = []
    with contextlib.suppress(ConnectionError):
        while len(given) < 20:
            given.append(int(streamed.sample()["episode"][0]))
    assert len(given) < 20
    Flaky.broken = False
    given += [int(streamed.sample()["episode"][0]) for _ in range(20 - len(given))]
    undisturbed = stream(3, source=MemorySource(shards))
    assert given == [int(undisturbed.sample()["episode"][0]) for _ in range(20)]


def test_a_shard_that_has_other_records_than_declared_is_an_error() -> None:
    class Lying(MemorySource):
        declared = 0

        def shards(self) -> list[Shard]:
            return [Shard(0, "/data/shard-0", self.declared)]

    source = Lying([[episode(n, 3) for n in range(4)]])
    for declared, words in ((5, "ends after 4 episodes, 5 are declared"), (3, "more than the 3 episodes")):
        source.declared = declared
        with pytest.raises(DataFormatError, match=words):
            list(stream(source=source))


_SCRIPT = """
import sys, threading
sys.path[:0] = {path!r}
from memory_source import MemorySource, episode
from replaybank import OpenXExperienceReplay
dataset = OpenXExperienceReplay("arm", 2, source=MemorySource([[episode(n, 3) for n in range(9)]]))
dataset.sample()
running = iter(dataset)
next(running)
"""


def script(rest: str) -> list[str]:
    text = _SCRIPT.format(path=[str(Path(__file__).resolve().parents[2])]) + rest
    return [sys.executable, "-c", text]


def test_python_ends_while_a_stream_runs() -> None:
    done = subprocess.run(
        script('print("ready")'), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ready\n", "")


def test_control_c_ends_a_loop_and_its_threads() -> None:
    rest = """
try:
    print("ready", flush=True)
    while True:
        for batch in dataset:
            pass
except KeyboardInterrupt:
    running.close()
    dataset.close()
    print([t.name for t in threading.enumerate()], flush=True)
"""
    with subprocess.Popen(script(rest), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGINT)
        try:
            assert process.communicate(timeout=PATIENCE) == ("['MainThread']\n", "")
        finally:
            process.kill()
    assert process.returncode == 0


_LARGE = """
import sys
sys.path[:0] = {path!r}
import numpy as np
from memory_source import MemorySource
from replaybank import OpenXExperienceReplay
from replaybank.datasets.openx.sources.base import Episode, FieldSpec, Shard

class Large:
    name = "large"
    fields = {{("observation", "state"): FieldSpec("tensor", (10_000,), np.dtype("float32"))}}
    def shards(self):
        return [Shard(n, f"/data/{{n}}", 40) for n in range(4)]
    def episodes(self, shard, start=0):
        for n in range(start, 40):
            steps = {{("observation", "state"): np.full((100, 10_000), n, np.float32)}}
            yield Episode(steps, 100, f"record {{n}}")

def memory(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) >> 10 for line in file if line.startswith(name))

dataset = OpenXExperienceReplay("large", source=Large(), buffer_bytes=32 << 20, num_workers=2)
before = memory("VmRSS")
print(sum(len(batch) for batch in dataset), memory("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_memory_is_bounded_by_the_reservoir_and_what_is_ready_not_by_the_data() -> None:
    """640 MB go through; 32 wait to be drawn; four trajectories of 4 + 8 MB each are under way at a time."""
    text = _LARGE.format(path=[str(Path(__file__).resolve().parents[2])])
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    steps, megabytes = map(int, done.stdout.split())
    assert steps == 16_000
    assert megabytes < 32 + 5 * 12 + 64  # and what the allocator keeps
