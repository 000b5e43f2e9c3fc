"""Buffers of an ensemble that are exchanged, emptied and written to, and its passes."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from buffers.ensembles import check, parts_of, passes, prioritized, seeded, steps
from patience import PATIENCE
from replaybank.buffers import (
    ReplayBufferEnsemble,
    TensorDictReplayBuffer,
)
from replaybank.samplers import (
    PrioritizedSampler,
    RandomSampler,
    SamplerEnsemble,
    SamplerWithoutReplacement,
)
from replaybank.storages import LazyTensorStorage, StorageEnsemble
from replaybank.writers import RoundRobinWriter, TensorDictRoundRobinWriter, WriterEnsemble

# --- passes ----------------------------------------------------------------------------------------------


def test_c54_iterating_ends_when_all_exhaustible_buffers_have() -> None:
    """C54: the short one starts again while the long one ends its pass."""
    ensemble = seeded(*passes(4, 10, shuffle=False), sample_from_all=True, batch_size=4)
    seen = [sample["n"].tolist() for sample in ensemble]
    assert [rows[1] for rows in seen] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert [rows[0] for rows in seen] == [[0, 1], [2, 3], [0, 1], [2, 3], [0, 1]]
    assert len(list(ensemble)) == 5
    assert len(list(seeded(*passes(4, 10), *parts_of(3), sample_from_all=True, batch_size=6))) == 5


def test_c54_iterating_goes_on_with_the_rest_of_the_pass() -> None:
    """C54: what a part has ended before the loop counts."""
    ensemble = seeded(*passes(4, 10, shuffle=False), sample_from_all=True, batch_size=4)
    for _ in range(2):
        ensemble.sample()
    assert not ensemble.sampler.ran_out
    assert len(list(ensemble)) == 3
    assert ensemble.sampler.ran_out
    seen = 0
    while ensemble.next() is not None:
        seen += 1
    assert seen == 5


def test_a_short_last_batch_makes_a_row_shorter() -> None:
    ensemble = seeded(*passes(3, 4, shuffle=False), sample_from_all=True, batch_size=4)
    first, second = list(ensemble)
    assert first.batch_size == (2, 2)
    one, two = second.unbind(0)
    assert (one["n"].tolist(), two["n"].tolist()) == ([2], [2, 3])
    second.unbind(0)
    _, info = ensemble.sample(return_info=True)
    assert info["index"]["index"].shape == (2, 2)


def test_iterating_without_passes_goes_on() -> None:
    ensemble = seeded(*parts_of(4, 4), batch_size=4)
    for number, _ in enumerate(ensemble):
        if number == 20:
            break
    with pytest.raises(RuntimeError, match="No batch size"):
        iter(seeded(*parts_of(4)))


# --- living parts ----------------------------------------------------------------------------------------


def test_parts_that_are_exchanged_in_a_buffer_are_those_of_the_ensemble() -> None:
    buffers = parts_of(4, 4)
    ensemble = seeded(*buffers, sample_from_all=True, batch_size=4)
    sampler = PrioritizedSampler(20, 1.0, 1.0, eps=0.0)
    buffers[1].set_sampler(sampler)
    samplers: Any = ensemble.sampler
    assert samplers[1] is sampler
    assert sampler.generator is ensemble.generator
    sampler.update_priority([0, 1, 2, 3], [0.0, 0.0, 1.0, 0.0], storage=buffers[1].storage)
    assert ensemble.sample()["n"][1].tolist() == [2, 2]
    storage = LazyTensorStorage(3)
    buffers[0].set_storage(storage)
    buffers[0].extend(steps(0, 3, start=50))
    assert set(ensemble.sample()["n"][0].tolist()) <= {50, 51, 52}
    stored: Any = ensemble.storage
    assert stored[0] is storage
    buffers[0].append_transform(lambda td: td.set("n", -td["n"]))
    assert max(ensemble.sample()["n"][0].tolist()) < 0


def test_all_parts_can_be_exchanged_at_once_or_none() -> None:
    ensemble = seeded(*parts_of(4, 4), sample_from_all=True, batch_size=4)
    before = ensemble.sampler
    new = SamplerEnsemble(
        SamplerWithoutReplacement(shuffle=False), RandomSampler(), p=[1.0, 0.0], num_buffer_sampled=1
    )
    assert ensemble.set_sampler(new) is before
    assert ensemble.sampler is new
    assert new.generator is ensemble.generator
    assert ensemble.sample()["n"].tolist() == [[0, 1, 2, 3]]
    with pytest.raises(ValueError, match="max_capacity=2 and the storage 4 items"):
        ensemble.set_sampler(SamplerEnsemble(RandomSampler(), PrioritizedSampler(2, 1.0, 1.0)))
    assert ensemble.sampler is new
    assert ensemble[0].sampler is new[0]
    for setter, wrong, kind in (
        (ensemble.set_sampler, RandomSampler(), "SamplerEnsemble"),
        (ensemble.set_storage, LazyTensorStorage(3), "StorageEnsemble"),
        (ensemble.set_writer, RoundRobinWriter(), "WriterEnsemble"),
    ):
        with pytest.raises(TypeError, match=f"give a {kind}"):
            setter(wrong)
    with pytest.raises(ValueError, match="has 1 parts; there are 2"):
        ensemble.set_storage(StorageEnsemble(LazyTensorStorage(3)))
    old = ensemble.set_storage(StorageEnsemble(LazyTensorStorage(3), LazyTensorStorage(5)))
    assert len(old) == 8
    assert len(ensemble) == 0
    writers = WriterEnsemble(TensorDictRoundRobinWriter(), RoundRobinWriter())
    assert len(ensemble.set_writer(writers)) == 2
    ensemble[1].extend(steps(1, 2))
    assert (len(ensemble[1]), ensemble[1].writer) == (2, writers[1])


def test_the_generator_is_handed_to_all_parts_and_else_each_keeps_its_own() -> None:
    own = torch.Generator().manual_seed(3)
    buffers = [
        TensorDictReplayBuffer(storage=LazyTensorStorage(9), generator=own),
        TensorDictReplayBuffer(storage=LazyTensorStorage(9)),
    ]
    ensemble = ReplayBufferEnsemble(*buffers)
    assert buffers[0].generator is buffers[0].sampler.generator is own
    assert buffers[1].generator is None
    shared = torch.Generator().manual_seed(1)
    ensemble.set_rng(shared)
    for buffer in buffers:
        assert buffer.generator is buffer.sampler.generator is shared
    assert ensemble.sampler.generator is ensemble.generator is shared
    with pytest.raises(TypeError, match="generator=0"):
        ensemble.set_rng(0)  # type: ignore[arg-type]


def test_an_emptied_ensemble_has_emptied_buffers() -> None:
    ensemble = seeded(*prioritized(5, 5), *passes(5), sample_from_all=True, batch_size=6)
    ensemble.update_priority({"buffer_ids": torch.tensor([0]), "index": torch.tensor([[1]])}, 9.0)
    ensemble.empty()
    assert len(ensemble) == ensemble.write_count == 0
    for number, buffer in enumerate(ensemble.buffers):
        buffer.extend(steps(number, 3))
    assert ensemble[0].sampler.weights.tolist() == [1.0] * 3
    check(ensemble.sample())


def test_buffers_that_draw_ahead_are_sampled_beside_it() -> None:
    buffers = parts_of(
        12, 12, sampler=lambda: SamplerWithoutReplacement(shuffle=False), batch_size=3, prefetch=2
    )
    ensemble = ReplayBufferEnsemble(*buffers, sample_from_all=True, batch_size=6)
    first = buffers[0].sample()
    check(ensemble.sample())
    rest = [buffers[0].sample() for _ in range(2)]
    taken = torch.cat([first["n"], *(sample["n"] for sample in rest)])
    assert len(taken.unique()) == 9
    for buffer in buffers:
        buffer.close()


def test_buffers_made_later_are_made_by_the_ensemble() -> None:
    late = TensorDictReplayBuffer(
        storage=lambda: LazyTensorStorage(5), transform_factory=lambda: lambda td: td.set("n", td["n"] + 7)
    )
    assert not late.initialized
    ensemble = seeded(late, batch_size=2)
    late.extend(steps(0, 3))
    assert int(ensemble.sample()["n"].min()) >= 7


def test_a_thread_writes_to_a_buffer_while_the_ensemble_samples() -> None:
    """Each item is whole: its two entries belong together, and it is where its index says."""

    def items(part: int, start: int) -> TensorDict:
        n = torch.arange(start, start + 5)
        return TensorDict({"part": torch.full((5,), part), "a": n, "b": n[:, None].expand(5, 50) * 3}, [5])

    buffers = [TensorDictReplayBuffer(storage=LazyTensorStorage(32)) for _ in range(2)]
    for number, buffer in enumerate(buffers):
        buffer.extend(items(number, 0))
    ensemble = seeded(*buffers, batch_size=32)
    backwards = seeded(*reversed(buffers), batch_size=32, seed=1)
    wrong: list[Any] = []
    stop = threading.Event()

    def write(part: int) -> None:
        for start in range(0, 1000, 5):
            buffers[part].extend(items(part, start))

    def sample(from_: ReplayBufferEnsemble) -> None:
        try:
            while not stop.is_set():
                batch = from_.sample()
                assert torch.equal(batch["a"][..., None] * 3, batch["b"][..., :1])
                assert bool((batch["b"] == batch["b"][..., :1]).all())
                assert bool((batch["part"] == batch["part"][:, :1]).all())
        except BaseException as error:
            wrong.append(error)

    readers = [threading.Thread(target=sample, args=(from_,)) for from_ in (ensemble, backwards, ensemble)]
    writers = [threading.Thread(target=write, args=(part,)) for part in range(2)]
    for thread in readers + writers:
        thread.start()
    for thread in writers:
        thread.join(PATIENCE)
    state = ensemble.state_dict()
    stop.set()
    for thread in readers:
        thread.join(PATIENCE)
    assert not wrong
    assert len(state["buffers"]) == 2
