from __future__ import annotations

import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import Tensor

from reference.chi_square import assert_fits
from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.samplers.base import Index, InfoKey, SampledStorage, Sampler
from replaybank.samplers.ensemble import SamplerEnsemble
from replaybank.samplers.prioritized import PrioritizedSampler
from replaybank.samplers.random import RandomSampler
from replaybank.samplers.slice import SliceSampler
from replaybank.samplers.without_replacement import SamplerWithoutReplacement
from replaybank.storages import LazyTensorStorage, TensorStorage
from replaybank.storages.ensemble import StorageEnsemble


class Recorder(RandomSampler):
    """Takes priorities, and gives an extra."""

    def __init__(self, key: InfoKey | None = None, value: float = 0.5) -> None:
        self.key = key
        self.value = value
        self.taken: list[tuple[Any, Any]] = []
        self.marked: list[Any] = []
        self.stamps: list[Any] = []

    def sample(self, storage: SampledStorage, batch_size: int) -> tuple[Index, dict[InfoKey, Any]]:
        index, info = super().sample(storage, batch_size)
        return index, info if self.key is None else {self.key: torch.full((batch_size,), self.value)}

    def update_priority(
        self, index: Any, priority: Any, *, storage: Any = None, generation: Any = None
    ) -> None:
        self.taken += zip(index.tolist(), priority.tolist(), strict=True)
        self.stamps += [] if generation is None else generation.tolist()

    def mark_update(self, index: Any, *, storage: Any = None) -> None:
        self.marked += index.tolist()


def storages(*sizes: int) -> StorageEnsemble:
    return StorageEnsemble(*(TensorStorage(torch.arange(n) + 100 * k) for k, n in enumerate(sizes)))


def seeded(sampler: SamplerEnsemble, seed: int = 0) -> SamplerEnsemble:
    sampler.generator = torch.Generator().manual_seed(seed)
    return sampler


def uniform(n: int, **options: Any) -> SamplerEnsemble:
    return seeded(SamplerEnsemble(*(RandomSampler() for _ in range(n)), **options))


# ---- what is drawn


def test_a_sample_says_which_parts_and_where_in_them() -> None:
    sampler, storage = uniform(3), storages(5, 6, 7)
    index, info = sampler.sample(storage, 12)
    assert info == {}
    assert isinstance(index, TensorDict)
    assert index.batch_size == (3,)
    assert index["index"].shape == (3, 4)
    assert index["index"].dtype == index["buffer_ids"].dtype == torch.int64
    got = storage.get(index)
    assert got.shape == (3, 4)
    assert torch.equal(got, index["index"] + 100 * index["buffer_ids"].unsqueeze(-1))


@pytest.mark.parametrize("p", [None, [1.0, 2.0, 5.0], torch.tensor([3, 0, 1])])
def test_parts_are_drawn_with_their_probabilities_and_items_uniformly(p: Any) -> None:
    sizes, sampler = (2, 3, 4), uniform(3, p=p, num_buffer_sampled=2)
    drawn = []
    storage = storages(*sizes)
    for _ in range(6000):
        index, _ = sampler.sample(storage, 2)
        drawn += list(zip(index["buffer_ids"].tolist(), index["index"].view(-1).tolist(), strict=True))
    weights = [1.0, 1.0, 1.0] if p is None else [float(w) for w in p]
    assert_fits(
        drawn,
        {
            (k, i): weights[k] / sum(weights) / n
            for k, n in enumerate(sizes)
            for i in range(n)
            if weights[k] > 0
        },
    )


def test_all_parts_come_once_with_sample_from_all_whatever_num_buffer_sampled_says() -> None:
    sampler = uniform(3, sample_from_all=True, num_buffer_sampled=2)
    for _ in range(5):
        index, _ = sampler.sample(storages(5, 6, 7), 6)
        assert index["buffer_ids"].tolist() == [0, 1, 2]
        assert index["index"].shape == (3, 2)


def test_parts_of_probability_0_are_never_drawn() -> None:
    sampler = uniform(4, p=[0.0, 1e-30, 0.0, 0.0], num_buffer_sampled=1000)
    index, _ = sampler.sample(storages(1, 1, 1, 1), 1000)
    assert index["buffer_ids"].unique().tolist() == [1]


def test_indices_of_slices_and_of_several_dimensions_have_one_row_an_item() -> None:
    steps = {"episode": torch.tensor([0, 0, 0, 1, 1, 1])}
    grid = TensorStorage({"episode": torch.zeros(6, 2, dtype=torch.int64)}, ndim=2)
    slices = SamplerEnsemble(SliceSampler(slice_len=2), SliceSampler(slice_len=2), sample_from_all=True)
    index, info = slices.sample(StorageEnsemble(TensorStorage(steps), TensorStorage(steps)), 8)
    assert index["index"].shape == (2, 4, 1)
    assert info["next", "truncated"].shape == (2, 4, 1)
    mixed = SamplerEnsemble(RandomSampler(), SliceSampler(slice_len=2), sample_from_all=True)
    storage = StorageEnsemble(TensorStorage(steps), grid)
    index, info = mixed.sample(storage, 8)
    assert index["index"].shape == (2, 4, 2)
    assert index["index"][0, :, 1].tolist() == [0] * 4
    assert info["next", "truncated"].tolist() == [[[False]] * 4, [[False], [True], [False], [True]]]
    assert storage.get(index)["episode"].shape == (2, 4)


def test_batches_of_differing_lengths_are_nested() -> None:
    sampler = SamplerEnsemble(
        SamplerWithoutReplacement(shuffle=False), Recorder("extra"), sample_from_all=True
    )
    storage = storages(3, 9)
    index, info = sampler.sample(storage, 8)
    assert index["index"].is_nested
    assert [len(part) for part in index["index"].unbind()] == [3, 4]
    assert [part.tolist() for part in info["extra"].unbind()] == [[0.0] * 3, [0.5] * 4]
    assert storage.get(index).unbind()[0].tolist() == [0, 1, 2]


def test_an_extra_that_a_part_lacks_is_filled_neutrally() -> None:
    parts = (
        Recorder("priority_weight"),
        RandomSampler(),
        Recorder(("a", "priority_weight"), 0.2),
        Recorder("x"),
    )
    _, info = SamplerEnsemble(*parts, sample_from_all=True).sample(storages(5, 5, 5, 5), 8)
    assert list(info) == ["priority_weight", ("a", "priority_weight"), "x"]
    assert info["priority_weight"].tolist() == [[0.5, 0.5], [1, 1], [1, 1], [1, 1]]
    assert info["a", "priority_weight"][:, 0].tolist() == pytest.approx([1, 1, 0.2, 1])
    assert info["x"].tolist() == [[0, 0], [0, 0], [0, 0], [0.5, 0.5]]


def test_what_cannot_be_sampled_from_is_named() -> None:
    sampler = uniform(2)
    with pytest.raises(TypeError, match="StorageEnsemble, got a TensorStorage"):
        sampler.sample(TensorStorage(torch.zeros(3)), 2)
    with pytest.raises(ValueError, match="2 samplers and 3 storages"):
        sampler.sample(storages(1, 1, 1), 2)
    for size in (5, 0):
        with pytest.raises(ValueError, match=f"batch of {size} items .* 2 buffers"):
            sampler.sample(storages(3, 3), size)
    with pytest.raises(RuntimeError) as refused:
        sampler.sample(StorageEnsemble(LazyTensorStorage(3), LazyTensorStorage(3)), 2)
    assert str(refused.value) == "Cannot sample from an empty storage."
    assert "of part" in refused.value.__notes__[0]
    with pytest.raises(ValueError, match="at least one sampler"):
        SamplerEnsemble()


# ---- reproducibility


@pytest.mark.parametrize("p", [None, [1.0, 2.0, 5.0]])
@pytest.mark.parametrize("own", [True, False])
def test_the_same_seed_gives_the_same_batches(p: Any, own: bool) -> None:  # C50
    batches = []
    for _ in range(2):
        sampler = SamplerEnsemble(*(RandomSampler() for _ in range(3)), p=p)
        if own:
            sampler.generator = torch.Generator().manual_seed(7)
        before = torch.get_rng_state() if own else torch.manual_seed(7).get_state()
        index = [sampler.sample(storages(50, 60, 70), 12)[0] for _ in range(4)]
        batches.append([(part["buffer_ids"].tolist(), part["index"].tolist()) for part in index])
        assert torch.equal(before, torch.get_rng_state()) == own
    assert batches[0] == batches[1]
    assert len({tuple(ids) for ids, _ in batches[0]}) > 1


def test_the_generator_reaches_all_parts() -> None:
    parts = [RandomSampler(), SamplerWithoutReplacement()]
    sampler = SamplerEnsemble(*parts)
    assert sampler.generator is None
    generator = torch.Generator()
    sampler.generator = generator
    assert all(part.generator is generator for part in (*parts, sampler, sampler[:1]))
    sampler.generator = None
    assert all(part.generator is None for part in parts)


# ---- p and the number of parts


@pytest.mark.parametrize(
    "p",
    [[0.5, 0.5], [1, 1, 1, 1], [1, -1, 1], [0, 0, 0], [1, math.nan, 1], [1, math.inf, 1], 1.0, [[1, 1, 1]]],
)
def test_a_p_that_is_no_distribution_is_refused(p: Any) -> None:  # C52
    with pytest.raises(ValueError, match=r"^p(=| of shape).*give"):
        SamplerEnsemble(RandomSampler(), RandomSampler(), RandomSampler(), p=p)
    sampler = uniform(3, p=[1.0, 2.0, 1.0])
    with pytest.raises(ValueError, match="give"):
        sampler.p = p
    assert sampler.p is not None
    assert sampler.p.tolist() == [0.25, 0.5, 0.25]


def test_p_with_sample_from_all_is_refused() -> None:
    with pytest.raises(RuntimeError, match="sample_from_all=True"):
        uniform(2, p=[0.5, 0.5], sample_from_all=True)
    sampler = uniform(2, sample_from_all=True)
    with pytest.raises(RuntimeError, match="sample_from_all=True"):
        sampler.p = torch.ones(2)


def test_p_and_the_number_of_parts_can_be_set() -> None:
    sampler, storage = uniform(2), storages(5, 5)
    sampler.p = [0, 3]
    assert sampler.sample(storage, 4)[0]["buffer_ids"].tolist() == [1, 1]
    sampler.num_buffer_sampled = 4
    assert sampler.sample(storage, 4)[0]["buffer_ids"].tolist() == [1] * 4
    sampler.num_buffer_sampled = None
    assert sampler.num_buffer_sampled == 2
    sampler.p = None
    assert sampler.p is None
    with pytest.raises(ValueError, match="num_buffer_sampled=0: give at least 1"):
        sampler.num_buffer_sampled = 0


# ---- indexing


@pytest.mark.parametrize("p", [None, [1.0, 2.0, 5.0]])
@pytest.mark.parametrize(
    ("index", "chosen"),
    [
        (slice(None, 1), [0]),
        (slice(None, None, -1), [2, 1, 0]),
        ([1, 0], [1, 0]),
        ([-1], [2]),
        (range(1, 3), [1, 2]),
        (np.array([2, 2]), [2, 2]),
        (torch.tensor([0, 2]), [0, 2]),
        (torch.tensor([1]), [1]),
        (torch.tensor([True, False, True]), [0, 2]),
        (..., [0, 1, 2]),
    ],
)
def test_several_parts_are_an_ensemble_with_their_p(p: Any, index: Any, chosen: list[int]) -> None:  # C51
    sampler = uniform(3, p=p)
    part = sampler[index]
    assert isinstance(part, SamplerEnsemble)
    assert [part[k] for k in range(len(part))] == [sampler[k] for k in chosen]
    if p is None:
        assert part.p is None
    else:
        total = sum(p[k] for k in chosen)
        assert part.p is not None
        assert part.p.tolist() == pytest.approx([p[k] / total for k in chosen])
    assert part.num_buffer_sampled == len(chosen)
    part.sample(storages(*[4] * len(chosen)), 2 * len(chosen))


@pytest.mark.parametrize("index", [1, -2, torch.tensor(1), np.int64(1), np.array(1)])
def test_one_integer_gives_the_part_itself(index: Any) -> None:  # C51
    parts = [RandomSampler() for _ in range(3)]
    assert SamplerEnsemble(*parts)[index] is parts[1]


@pytest.mark.parametrize(
    ("index", "error"),
    [
        (3, IndexError),
        (-4, IndexError),
        ([0, 3], IndexError),
        (torch.tensor(5), IndexError),
        (0.5, TypeError),
        (torch.tensor([0.0]), TypeError),
        ("a", TypeError),
        ([[0, 1]], RuntimeError),
        (torch.zeros(1, 1, dtype=torch.int64), RuntimeError),
        ([], ValueError),
        (slice(3, 3), ValueError),
    ],
)
def test_an_index_that_chooses_nothing_is_refused(index: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        uniform(3)[index]
    assert str(caught.value)
    with pytest.raises(ValueError, match="not all of them 0"):
        uniform(2, p=[0, 1])[:1]


def test_an_explicit_number_of_parts_is_kept_if_it_fits() -> None:
    sampler = uniform(4, num_buffer_sampled=2)
    assert sampler[:3].num_buffer_sampled == sampler[:2].num_buffer_sampled == 2
    assert sampler[:1].num_buffer_sampled == 1
    assert len(sampler) == 4
    assert repr(sampler[:2]) == "SamplerEnsemble(RandomSampler(), RandomSampler(), num_buffer_sampled=2)"


# ---- running out


def test_the_ensemble_runs_out_when_all_exhaustible_parts_have() -> None:  # C54
    parts = (SamplerWithoutReplacement(), RandomSampler(), SamplerWithoutReplacement())
    sampler, storage = SamplerEnsemble(*parts, sample_from_all=True), storages(4, 3, 6)
    ran_out = []
    for _ in range(6):
        sampler.sample(storage, 6)
        ran_out.append(sampler.ran_out)
    # Passes of 2 and of 3 calls.
    assert ran_out == [False, False, True, False, False, True]
    sampler.sample(storage, 6)
    sampler.sample(storage, 6)
    sampler.ran_out = False
    sampler.sample(storage, 6)
    assert not sampler.ran_out, "the first part ran out before the reset"
    sampler.sample(storage, 6)
    sampler.ran_out = True
    assert sampler.ran_out


def test_an_ensemble_without_exhaustible_parts_never_runs_out() -> None:
    sampler = uniform(2)
    assert not sampler.exhaustible
    sampler.sample(storages(1, 1), 2)
    assert not sampler.ran_out
    assert SamplerEnsemble(RandomSampler(), SamplerWithoutReplacement()).exhaustible


# ---- priorities


def recorders(n: int) -> tuple[list[Recorder], SamplerEnsemble]:
    parts = [Recorder() for _ in range(n)]
    return parts, seeded(SamplerEnsemble(*parts))


def expected(index: Any, priority: Tensor) -> list[list[tuple[int, float]]]:
    found: list[list[tuple[int, float]]] = [[], [], []]
    for row, number in enumerate(index["buffer_ids"].tolist()):
        found[number] += zip(index["index"][row].tolist(), priority[row].tolist(), strict=True)
    return found


@pytest.mark.parametrize("form", ["as sampled", "flat priorities", "an id an item", "flattened", "a mapping"])
def test_priorities_reach_the_part_they_came_from(form: str) -> None:  # C53
    parts, sampler = recorders(3)
    index, _ = sampler.sample(storages(9, 8, 7), 12)
    priority = torch.rand(3, 4, generator=torch.Generator().manual_seed(1))
    right = expected(index, priority)
    given: Any = index
    if form in ("an id an item", "flattened"):
        ids = index["buffer_ids"].unsqueeze(-1).expand(3, 4)
        given = TensorDict({"buffer_ids": ids, "index": index["index"]}, batch_size=[3, 4])
        given = given.reshape(-1) if form == "flattened" else given
    elif form == "a mapping":
        given = {"buffer_ids": index["buffer_ids"], "index": index["index"]}
    sampler.update_priority(given, priority if form == "as sampled" else priority.flatten())
    assert [part.taken for part in parts] == right


def test_priorities_of_slices_and_of_several_dimensions_reach_their_part() -> None:
    parts, sampler = recorders(2)
    storage = StorageEnsemble(TensorStorage(torch.zeros(4)), TensorStorage(torch.zeros(4, 3), ndim=2))
    index = TensorDict(
        {"buffer_ids": torch.tensor([1, 0]), "index": torch.tensor([[[1, 2], [3, 0]], [[2, 0], [0, 0]]])},
        batch_size=[2],
    )
    sampler.update_priority(index, [0.1, 0.2, 0.3, 0.4], storage=storage)
    assert [[place for place, _ in part.taken] for part in parts] == [[2, 0], [[1, 2], [3, 0]]]
    sampler.update_priority(index, 0.5, storage=storage)
    assert [priority for _, priority in parts[0].taken] == pytest.approx([0.3, 0.4, 0.5, 0.5])
    flat = {"buffer_ids": torch.tensor([1, 1, 0, 0]), "index": index["index"].reshape(4, 2)}
    sampler.update_priority(flat, torch.arange(4.0), storage=storage)
    assert parts[1].taken[-2:] == [([1, 2], 0.0), ([3, 0], 1.0)]


def test_nested_indices_stamps_and_updates_reach_their_part() -> None:
    parts, sampler = recorders(2)
    nested = torch.nested.nested_tensor_from_jagged(torch.tensor([5, 6, 7]), torch.tensor([0, 1, 3]))
    index = {"buffer_ids": torch.tensor([1, 0]), "index": nested}
    sampler.update_priority(index, torch.tensor([1.0, 2.0, 3.0]), generation=torch.tensor([7, 8, 9]))
    assert [part.taken for part in parts] == [[(6, 2.0), (7, 3.0)], [(5, 1.0)]]
    assert [part.stamps for part in parts] == [[8, 9], [7]]
    sampler.mark_update(index)
    assert [part.marked for part in parts] == [[6, 7], [5]]


def test_parts_without_priorities_are_passed_over_and_an_ensemble_of_them_warns() -> None:
    part = Recorder()
    sampler = SamplerEnsemble(RandomSampler(), part)
    index = {"buffer_ids": torch.tensor([0, 1]), "index": torch.tensor([[3], [4]])}
    sampler.update_priority(index, torch.tensor([1.0, 2.0]))
    assert part.taken == [(4, 2.0)]
    with pytest.warns(UserWarning, match="SamplerEnsemble has no priorities"):
        uniform(2).update_priority(index, torch.tensor([1.0, 2.0]))


def test_priorities_that_belong_nowhere_are_refused_and_change_nothing() -> None:
    parts, sampler = recorders(2)
    index = {"buffer_ids": torch.tensor([0, 1]), "index": torch.tensor([[3, 1, 2], [4, 1, 2]])}
    with pytest.raises(RuntimeError, match="4 priorities were given for 6 items"):
        sampler.update_priority(index, torch.ones(4))
    with pytest.raises(TypeError, match=r"'buffer_ids' and 'index', got a Tensor"):
        sampler.update_priority(torch.tensor([1]), torch.ones(1))
    with pytest.raises(IndexError, match="no part 2: the ensemble has 2"):
        sampler.update_priority({**index, "buffer_ids": torch.tensor([0, 2])}, torch.ones(6))
    assert parts[0].taken == parts[1].taken == []


# ---- state


def passes(**options: Any) -> SamplerEnsemble:
    return seeded(SamplerEnsemble(SamplerWithoutReplacement(), SamplerWithoutReplacement(), **options))


def drawn(sampler: SamplerEnsemble, storage: StorageEnsemble, calls: int) -> list[Any]:
    found = []
    for _ in range(calls):
        index, _ = sampler.sample(storage, 4)
        parts = [part.tolist() for part in index["index"].unbind()]
        found.append((index["buffer_ids"].tolist(), parts, sampler.ran_out))
    return found


@pytest.mark.parametrize("way", ["dumps", "state_dict", "pickle"])
def test_an_ensemble_goes_on_where_its_state_was_taken(way: str, tmp_path: Path) -> None:
    sampler, storage = passes(p=[1.0, 2.0]), storages(7, 5)
    drawn(sampler, storage, 3)
    other = passes(num_buffer_sampled=1)
    if way == "dumps":
        sampler.dumps(tmp_path / "new" / "folder")
        assert {"0", "1"} <= {path.name for path in (tmp_path / "new" / "folder").iterdir()}
        other.loads(tmp_path / "new" / "folder")
    elif way == "state_dict":
        other.load_state_dict(sampler.state_dict())
    else:
        sampler.generator, generator = None, sampler.generator
        other = pickle.loads(pickle.dumps(sampler))
        sampler.generator = generator
    assert sampler.generator is not None
    other.generator = torch.Generator()
    other.generator.set_state(sampler.generator.get_state())
    assert drawn(other, storage, 9) == drawn(sampler, storage, 9)
    assert other.p is not None


def test_a_state_of_another_number_of_parts_is_refused(tmp_path: Path) -> None:
    passes().dumps(tmp_path)
    with pytest.raises(ValueError, match="of 2 samplers, the ensemble has 3"):
        uniform(3).loads(tmp_path)
    with pytest.raises(ValueError, match="of 2 samplers, the ensemble has 3"):
        uniform(3).load_state_dict(passes().state_dict())


def test_emptying_an_ensemble_empties_its_parts() -> None:
    sampler, storage = passes(sample_from_all=True), storages(4, 4)
    drawn(sampler, storage, 1)
    sampler.empty()
    assert [ran_out for *_, ran_out in drawn(sampler, storage, 2)] == [False, True]


# ---- with buffers


class Pair:
    """Two buffers and the ensemble over their parts."""

    def __init__(self) -> None:
        self.buffers = [
            ReplayBuffer(storage=LazyTensorStorage(10), sampler=SamplerWithoutReplacement()) for _ in range(2)
        ]
        self.storage = StorageEnsemble(*(buffer.storage for buffer in self.buffers))
        self.sampler = seeded(SamplerEnsemble(*(buffer.sampler for buffer in self.buffers)))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 8)), max_size=20), st.booleans())
def test_whatever_is_written_every_item_comes_from_its_part(
    actions: list[tuple[int, int]], from_all: bool
) -> None:
    pair = Pair()
    pair.sampler.sample_from_all = from_all
    written: list[list[int]] = [[], []]
    for action, number in actions:
        if action < 2:
            new = [1000 * action + len(written[action]) + k for k in range(number)]
            pair.buffers[action].extend(torch.tensor(new))
            written[action] += new
        elif all(written):
            index, info = pair.sampler.sample(pair.storage, 2 * number)
            assert info == {}
            parts: Mapping[int, Any] = dict(enumerate(pair.storage.get(index).unbind()))
            for row, part in enumerate(index["buffer_ids"].tolist()):
                items = parts[row].tolist()
                assert set(items) <= set(written[part][-10:])
                assert len(set(items)) == len(items) <= number


def test_every_sampler_of_an_ensemble_is_a_sampler() -> None:
    assert isinstance(uniform(2), Sampler)


def test_parts_hear_which_storage_they_sample_and_share_their_memory() -> None:
    small = PrioritizedSampler(3, alpha=1.0, beta=1.0)
    ensemble = SamplerEnsemble(RandomSampler(), small)
    with pytest.raises(ValueError, match="3"):
        ensemble.register_storage(
            StorageEnsemble(TensorStorage(torch.zeros(9)), TensorStorage(torch.zeros(9)))
        )
    with pytest.raises(ValueError, match="2 samplers and 1 storages"):
        ensemble.register_storage(StorageEnsemble(TensorStorage(torch.zeros(3))))
    ensemble.register_storage(StorageEnsemble(TensorStorage(torch.zeros(9)), TensorStorage(torch.zeros(3))))
    assert ensemble.share_memory_() is ensemble
    assert small._table.tree._memory.is_shared()


@pytest.mark.parametrize("way", ["state", "disk"])
def test_a_state_that_one_part_refuses_changes_none(way: str, tmp_path: Path) -> None:
    sampler, other = passes(), passes()
    storage = storages(6, 9)
    drawn(sampler, storage, 2)
    seen = drawn(other, storage, 1)
    state = sampler.state_dict()
    state["samplers"][1] = {"nothing": 1}
    before = pickle.dumps(other)
    if way == "state":
        with pytest.raises((KeyError, ValueError)):
            other.load_state_dict(state)
    else:
        sampler.dumps(tmp_path)
        SamplerEnsemble(RandomSampler())[0].dumps(tmp_path / "1")
        with pytest.raises((KeyError, ValueError)):
            other.loads(tmp_path)
    twin = pickle.loads(before)
    twin.generator = torch.Generator()
    twin.generator.set_state(other.generator.get_state())  # type: ignore[union-attr]
    assert seen
    assert drawn(other, storage, 6) == drawn(twin, storage, 6)


def test_the_parts_can_be_exchanged() -> None:
    sampler = uniform(2)
    parts = (RandomSampler(), SamplerWithoutReplacement())
    sampler.samplers = parts
    assert sampler.samplers == parts
    assert sampler[1] is parts[1]
    assert sampler.exhaustible
    with pytest.raises(ValueError, match="1 samplers were given to an ensemble of 2"):
        sampler.samplers = (RandomSampler(),)


def test_half_a_sample_can_be_done_by_hand() -> None:
    sampler = SamplerEnsemble(RandomSampler(), RandomSampler(), p=[0.0, 1.0], num_buffer_sampled=2)
    ids, count = sampler.choose(6)
    assert (ids, count) == ([1, 1], 3)
    index, info = sampler.join(
        ids, [(torch.arange(3), {"x": torch.zeros(3)}, False), (torch.arange(3) + 3, {}, True)]
    )
    assert index["index"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert info["x"].tolist() == [[0.0] * 3] * 2
