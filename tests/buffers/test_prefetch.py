"""Batches drawn ahead are those that would have come."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from buffers.doubles import InOrder
from patience import PATIENCE
from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.buffers.tensordict import TensorDictReplayBuffer
from replaybank.samplers.prioritized import PrioritizedSampler
from replaybank.samplers.random import RandomSampler
from replaybank.samplers.without_replacement import SamplerWithoutReplacement
from replaybank.storages import LazyTensorStorage
from replaybank.storages.list import ListStorage


def steps(start: int, count: int) -> TensorDict:
    return TensorDict({"n": torch.arange(start, start + count)}, batch_size=count)


def new(prefetch: int | None = 3, cls: type[ReplayBuffer] = TensorDictReplayBuffer, **kwargs: Any) -> Any:
    kwargs = {"storage": LazyTensorStorage(100), "generator": torch.Generator().manual_seed(0), **kwargs}
    buffer = cls(batch_size=4, prefetch=prefetch, **kwargs)
    buffer.extend(steps(0, 50))
    return buffer


def all_gone() -> bool:
    """Whether no thread that draws ahead is left, once those that are ending have ended."""
    gc.collect()
    for thread in prefetching():
        thread.join(PATIENCE)
    return not prefetching()


def prefetching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "replaybank-prefetch"]


@pytest.mark.parametrize("prefetch", [1, 3, 20])
def test_order_and_randomness_are_those_without_prefetching(prefetch: int) -> None:
    ahead, plain = new(prefetch), new(None)
    for _ in range(15):
        a, b = ahead.sample(return_info=True), plain.sample(return_info=True)
        assert a[0]["n"].tolist() == b[0]["n"].tolist() == a[0]["index"].tolist() == a[1]["index"].tolist()
    ahead.close()


def test_as_many_batches_as_asked_for_are_kept_ready() -> None:
    drawn: list[int] = []
    ready = threading.Event()

    def note(td: Any) -> Any:
        drawn.append(1)
        if len(drawn) == 4:
            ready.set()
        return td

    buffer = new(3, transform=note)
    buffer.sample()
    assert ready.wait(PATIENCE)
    buffer.close()
    assert len(drawn) == 4, "one handed out, three ready"


def test_a_pass_ends_with_the_batch_that_ends_it() -> None:
    buffer = new(5, sampler=InOrder())
    passes = [[batch["n"].tolist()[0] for batch in buffer] for _ in range(3)]
    assert passes == [list(range(0, 50, 4))] * 3
    for number in range(13):
        assert buffer.sampler.ran_out == (number == 0), "of the batch handed out last"
        buffer.sample()
    assert buffer.sampler.ran_out
    buffer.close()


class Noting(InOrder):
    """Notes what is set."""

    def __init__(self) -> None:
        self.told: list[bool] = []
        super().__init__()

    @property
    def ran_out(self) -> bool:
        return self._ran_out

    @ran_out.setter
    def ran_out(self, value: bool) -> None:
        self.told.append(value)
        self._ran_out = value


def test_a_sampler_is_reset_once_a_pass() -> None:
    # An ensemble forgets at a reset which parts ran out: one in the middle of a pass would make it longer.
    sampler = Noting()
    buffer = new(3, sampler=sampler)
    for _ in range(3):
        assert len(list(buffer)) == 13
    buffer.sample()
    buffer.close()
    assert sampler.told == [False, True] * 3


def test_an_error_reaches_the_caller_at_its_batch_and_drawing_goes_on_behind_it() -> None:
    calls: list[int] = []

    def fails_third(td: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise ArithmeticError("third")
        return td

    buffer, plain = new(3, transform=fails_third), new(None)
    expected = [plain.sample()["n"].tolist() for _ in range(5)]
    assert [buffer.sample()["n"].tolist() for _ in range(2)] == expected[:2]
    with pytest.raises(ArithmeticError, match="third"):
        buffer.sample()
    assert [buffer.sample()["n"].tolist() for _ in range(2)] == expected[3:]
    buffer.close()


def test_an_emptied_buffer_hands_out_nothing_that_was_drawn_before() -> None:
    buffer = new(3)
    for round_ in range(20):
        buffer.sample()
        buffer.empty()
        buffer.extend(steps(1000 * (round_ + 1), 5))
        assert int(buffer.sample()["n"].min()) >= 1000 * (round_ + 1)
    buffer.empty()
    with pytest.raises(RuntimeError, match="Cannot sample from an empty storage"):
        buffer.sample()
    buffer.close()


@pytest.mark.parametrize("change", ["set_rng", "set_sampler", "set_storage", "append_transform"])
def test_what_was_drawn_with_other_parts_is_dropped(change: str) -> None:
    buffer = new(3)
    buffer.sample()
    if change == "set_rng":
        buffer.set_rng(torch.Generator().manual_seed(0))
        assert buffer.sample()["n"].tolist() == new(None).sample()["n"].tolist()
    elif change == "set_sampler":
        buffer.set_sampler(InOrder())
        assert buffer.sample()["n"].tolist() == [0, 1, 2, 3]
    elif change == "set_storage":
        buffer.set_storage(LazyTensorStorage(10))
        buffer.extend(steps(70, 10))
        assert int(buffer.sample()["n"].min()) >= 70
    else:
        buffer.append_transform(lambda td: td.set("new", td["n"]))
        assert "new" in buffer.sample().keys()  # noqa: SIM118
    buffer.close()


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_c62_saved_with_batches_drawn_ahead_the_next_is_the_one_that_would_have_come(
    storage: Any, tmp_path: Path
) -> None:
    buffer, plain = new(3, storage=storage(100)), new(None, storage=storage(100))
    expected = [plain.sample()["n"].tolist() for _ in range(12)]
    assert [buffer.sample()["n"].tolist() for _ in range(5)] == expected[:5]
    buffer.dumps(tmp_path)
    buffer.extend(steps(70, 50))
    for other in (new(3, storage=storage(100)), new(7, storage=storage(100))):
        other.sample()
        other.loads(tmp_path)
        assert [other.sample()["n"].tolist() for _ in range(7)] == expected[5:]
        other.close()
    buffer.close()


def test_a_pickled_buffer_hands_on_what_was_drawn_ahead() -> None:
    buffer, plain = new(3), new(None)
    expected = [plain.sample()["n"].tolist() for _ in range(8)]
    assert [buffer.sample()["n"].tolist() for _ in range(2)] == expected[:2]
    other = pickle.loads(pickle.dumps(buffer))
    assert [other.sample()["n"].tolist() for _ in range(6)] == expected[2:]
    buffer.close()
    other.close()


def test_another_batch_size_is_drawn_at_once() -> None:
    buffer = new(3)
    buffer.sample()
    with pytest.warns(UserWarning, match="batch_size=4"):
        assert len(buffer.sample(9)) == 9
    buffer.close()


def test_a_sample_without_info_is_one_from_the_line() -> None:
    buffer, plain = new(2), new(None)
    assert buffer.sample(include_info=False)["n"].tolist() == plain.sample()["n"].tolist()
    buffer.close()


def test_writing_and_sampling_at_once_is_safe() -> None:
    buffer = new(4)
    for start in range(50, 400, 7):
        buffer.extend(steps(start, 7))
        sample = buffer.sample()
        assert bool((sample["n"] % 100 == sample["index"]).all())
    buffer.close()


def test_no_thread_is_left_when_the_buffer_goes_or_is_closed() -> None:
    assert all_gone()
    buffer = new(3)
    assert not prefetching(), "the thread starts with the first batch"
    buffer.sample()
    assert len(prefetching()) == 1
    buffer.close()
    assert not prefetching()
    first = new(None)
    first.sample()
    assert buffer.sample()["n"].tolist() == first.sample()["n"].tolist(), "a closed buffer goes on"
    assert len(prefetching()) == 1
    del buffer
    assert all_gone()


@pytest.mark.parametrize(
    "end", ["", "raise SystemExit(3)", "import os, signal; os.kill(os.getpid(), signal.SIGINT)"]
)
def test_the_interpreter_ends_with_a_thread_running(end: str) -> None:
    script = f"""
import torch
from replaybank.buffers.replay_buffer import ReplayBuffer
buffer = ReplayBuffer(batch_size=2, prefetch=3)
buffer.extend([torch.ones(3)])
for _ in range(5):
    buffer.sample()
print("sampled", flush=True)
{end}
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.stdout == "sampled\n"
    assert done.returncode == {"": 0, "raise SystemExit(3)": 3}.get(end, -2), done.stderr
    assert "Fatal" not in done.stderr


def wait_until_ready(buffer: Any, count: int) -> None:
    """Let the thread draw until that many batches are in line, and end it."""
    for _ in range(int(PATIENCE / 0.01)):
        with buffer._prefetcher._changed:
            if len(buffer._prefetcher._ready) >= count:
                break
        threading.Event().wait(0.01)
    buffer.close()


@pytest.mark.parametrize("way", ["state_dict", "pickle"])
def test_a_state_holds_copies_of_the_batches_drawn_ahead(way: str) -> None:
    buffer, plain = new(3), new(None)
    buffer.sample(), plain.sample()
    wait_until_ready(buffer, 3)
    expected = [plain.sample()["n"].tolist() for _ in range(3)]
    state = buffer.state_dict() if way == "state_dict" else buffer.__getstate__()
    for _ in range(3):
        batch, info = buffer.sample(return_info=True)
        batch["n"].fill_(-1)
        info["index"].fill_(-1)
        batch["mine"] = torch.zeros(4)
    buffer.close()
    other = new(3)
    if way == "state_dict":
        other.load_state_dict(state)
        for _ in range(3):  # nor do batches handed out write into the state they came from
            other.sample()["n"].fill_(-1)
        other.load_state_dict(state)
    else:
        other = TensorDictReplayBuffer.__new__(TensorDictReplayBuffer)
        other.__setstate__(state)
    batches = [other.sample() for _ in range(3)]
    assert [batch["n"].tolist() for batch in batches] == expected
    assert "mine" not in batches[0].keys()  # noqa: SIM118
    other.close()


def test_a_state_with_batches_drawn_ahead_loads_into_a_buffer_that_draws_none(tmp_path: Path) -> None:
    buffer, plain = new(3), new(None)
    expected = [plain.sample()["n"].tolist() for _ in range(9)]
    assert buffer.sample()["n"].tolist() == expected[0]
    wait_until_ready(buffer, 3)
    buffer.dumps(tmp_path)
    other = new(None)
    other.loads(tmp_path)
    assert other.sample()["n"].tolist() == expected[1]
    copied = pickle.loads(pickle.dumps(other))
    for loaded in (other, copied):
        assert [loaded.sample()["n"].tolist() for _ in range(7)] == expected[2:]
    assert not prefetching()


def test_a_pass_goes_on_where_batches_drawn_ahead_are_loaded_without_prefetching() -> None:
    buffer = new(20, sampler=InOrder())
    buffer.sample()
    wait_until_ready(buffer, 12)
    other = new(None, sampler=InOrder())
    other.load_state_dict(buffer.state_dict())
    assert [batch["n"].tolist()[0] for batch in other] == list(range(4, 50, 4))
    assert other.sampler.ran_out
    assert [batch["n"].tolist()[0] for batch in other] == list(range(0, 50, 4))


def test_texts_in_batches_drawn_ahead_are_saved(tmp_path: Path) -> None:
    def make() -> TensorDictReplayBuffer:
        return TensorDictReplayBuffer(
            storage=ListStorage(8), batch_size=4, prefetch=2, generator=torch.Generator().manual_seed(0)
        )

    def words(batch: TensorDict) -> list[str]:
        return list(batch["in", "text"])

    buffer, other = make(), make()
    buffer.extend([TensorDict({"in": {"text": f"step {i}"}, "n": torch.tensor(i)}) for i in range(8)])
    buffer.sample()
    wait_until_ready(buffer, 2)
    buffer.dumps(tmp_path)
    # What is written afterwards does not come into batches that were drawn before.
    buffer.extend([TensorDict({"in": {"text": "later"}, "n": torch.tensor(9)}) for _ in range(8)])
    other.loads(tmp_path)
    for _ in range(2):
        assert words(other.sample()) == words(buffer.sample())
    buffer.close()
    other.close()


def test_closing_hands_a_batch_to_whoever_waits_for_one() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slow(td: Any) -> Any:
        entered.set()
        go_on.wait(PATIENCE)
        return td

    buffer = new(1, transform=slow)
    got: list[int] = []
    waiting = [
        threading.Thread(target=lambda: got.append(len(buffer.sample())), daemon=True) for _ in range(4)
    ]
    for thread in waiting:
        thread.start()
    assert entered.wait(PATIENCE)
    closing = threading.Thread(target=buffer.close, daemon=True)
    closing.start()
    while not buffer._prefetcher._stopped:
        entered.wait(0.01)
    go_on.set()
    for thread in (closing, *waiting):
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert got == [4] * 4


# --- without a generator of its own -------------------------------------------------------------------------


def _global(prefetch: int | None, sampler: Callable[[], Any]) -> TensorDictReplayBuffer:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(50), sampler=sampler(), batch_size=7, prefetch=prefetch
    )
    buffer.extend(TensorDict({"n": torch.arange(50)}, batch_size=50))
    return buffer


def settle(buffer: TensorDictReplayBuffer) -> None:
    """Wait until as much has been drawn ahead as will be."""
    ahead = buffer._prefetcher
    assert ahead is not None
    with ahead._changed:
        ahead._changed.wait_for(lambda: not ahead._may_draw())


@pytest.mark.parametrize(
    "sampler", [RandomSampler, SamplerWithoutReplacement, lambda: PrioritizedSampler(50, 0.7, 0.5)]
)
def test_the_global_seed_gives_the_same_batches_with_and_without_prefetching(sampler: Any) -> None:
    """And leaves the global generator where it would be, so that what is drawn afterwards is the same."""
    found = []
    for prefetch in (None, 1, 4):
        torch.manual_seed(3)
        buffer = _global(prefetch, sampler)
        batches = [buffer.sample()["n"].tolist() for _ in range(25)]
        found.append((batches, torch.rand(3).tolist()))
        buffer.close()
    assert found[0] == found[1] == found[2]


def test_where_others_draw_between_batches_a_run_is_repeated_by_its_seed() -> None:
    """However far the thread had come each time."""

    def run(settled: bool) -> list[Any]:
        torch.manual_seed(11)
        buffer = _global(3, RandomSampler)
        out: list[Any] = []
        for step in range(40):
            out.append(buffer.sample()["n"].tolist())
            if step >= 5:
                out.append(torch.rand(2).tolist())
            if settled:
                settle(buffer)
        buffer.close()
        return out

    first = run(True)
    assert all(run(settled) == first for settled in (False, True, False, False))


def test_an_emptied_buffer_follows_the_global_generator_again() -> None:
    found = []
    for prefetch in (None, 3):
        buffer = _global(prefetch, RandomSampler)
        buffer.sample()
        torch.rand(5)
        buffer.sample()
        buffer.empty()
        buffer.extend(TensorDict({"n": torch.arange(20)}, batch_size=20))
        torch.manual_seed(4)
        found.append([buffer.sample()["n"].tolist() for _ in range(10)])
        buffer.close()
    assert found[0] == found[1]


def test_the_thread_leaves_the_global_generator_alone() -> None:
    buffer = _global(5, RandomSampler)
    buffer.sample()
    state = torch.get_rng_state()
    settle(buffer)
    assert torch.equal(state, torch.get_rng_state())
    buffer.close()
