"""Several buffers sampled as one."""

from __future__ import annotations

import copy
import inspect
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from buffers.test_processes import in_child
from patience import PATIENCE
from reference.chi_square import assert_fits
from replaybank.buffers import (
    PrioritizedReplayBuffer,
    ReplayBuffer,
    ReplayBufferEnsemble,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from replaybank.samplers import (
    PrioritizedSampler,
    RandomSampler,
    SamplerEnsemble,
    SamplerWithoutReplacement,
    SliceSampler,
)
from replaybank.storages import LazyTensorStorage, ListStorage, StorageEnsemble
from replaybank.writers import RoundRobinWriter, TensorDictRoundRobinWriter, WriterEnsemble


def steps(part: int, count: int, start: int = 0, **more: Any) -> TensorDict:
    """Steps that know which part they are of, and their number in it."""
    n = torch.arange(start, start + count)
    return TensorDict({"part": torch.full((count,), part), "n": n, **more}, batch_size=count)


def parts_of(*sizes: int, kind: Any = TensorDictReplayBuffer, **kwargs: Any) -> list[Any]:
    found = []
    for number, size in enumerate(sizes):
        made = {name: value() if callable(value) else value for name, value in kwargs.items()}
        buffer = kind(storage=LazyTensorStorage(20), **made)
        if size:
            buffer.extend(steps(number, size))
        found.append(buffer)
    return found


def prioritized(*sizes: int, **kwargs: Any) -> list[Any]:
    return parts_of(*sizes, kind=TensorDictPrioritizedReplayBuffer, alpha=1.0, beta=1.0, eps=0.0, **kwargs)


def seeded(*buffers: Any, seed: int = 0, **kwargs: Any) -> Any:
    return ReplayBufferEnsemble(*buffers, generator=torch.Generator().manual_seed(seed), **kwargs)


def check(sample: Any) -> None:
    """Every item is of the part and the place that its index says."""
    assert torch.equal(sample["part"], sample["index", "buffer_ids"])
    assert torch.equal(sample["n"], sample["index", "index"].reshape(sample["n"].shape))


# --- construction ----------------------------------------------------------------------------------------


def test_arguments_have_the_names_order_and_defaults_that_users_know() -> None:
    parameters = inspect.signature(ReplayBufferEnsemble).parameters
    assert {name: parameter.default for name, parameter in list(parameters.items())[1:]} == {
        "storages": None,
        "samplers": None,
        "writers": None,
        "transform": None,
        "batch_size": None,
        "collate_fn": None,
        "collate_fns": None,
        "p": None,
        "sample_from_all": False,
        "num_buffer_sampled": None,
        "generator": None,
        "shared": False,
    }
    assert list(parameters)[1:7] == [
        *("storages", "samplers", "writers", "transform", "batch_size", "collate_fn")
    ]
    assert next(iter(parameters.values())).kind is inspect.Parameter.VAR_POSITIONAL
    with pytest.raises(TypeError, match=r"ReplayBufferEnsemble\.__init__\(\).*'storage'"):
        ReplayBufferEnsemble(storage=1)  # type: ignore[call-arg]


def test_a_batch_has_a_row_for_each_buffer_drawn_and_says_where_its_items_are() -> None:
    ensemble = seeded(*parts_of(5, 9, 3), batch_size=12)
    assert isinstance(ensemble, ReplayBuffer)
    assert len(ensemble) == 17
    assert ensemble.write_count == 17
    for _ in range(5):
        sample = ensemble.sample()
        assert sample.batch_size == (3, 4)
        assert sample["index", "buffer_ids"].shape == sample["index", "index"].shape == (3, 4)
        check(sample)


def test_storages_samplers_and_writers_make_the_buffers() -> None:
    stored = [LazyTensorStorage(10), LazyTensorStorage(10)]
    double = StorageEnsemble(*stored, transforms=[None, lambda td: td.set("n", td["n"] * 2)])
    samplers = SamplerEnsemble(RandomSampler(), SamplerWithoutReplacement(drop_last=True), p=[0.0, 1.0])
    writers = WriterEnsemble(TensorDictRoundRobinWriter(), RoundRobinWriter())
    ensemble = seeded(storages=double, samplers=samplers, writers=writers, batch_size=4)
    assert ensemble.sampler is samplers
    assert list(ensemble.storage.storages) == stored
    for number in range(2):
        assert ensemble[number].storage is stored[number]
        assert ensemble[number].writer is writers[number]
        assert ensemble[number].sampler is samplers[number]
        ensemble[number].extend(steps(number, 6))
    sample = ensemble.sample()
    assert sample["part"].unique().tolist() == [1]
    assert torch.equal(sample["n"], sample["index", "index"] * 2)
    lists = ReplayBufferEnsemble(
        storages=[LazyTensorStorage(3)], samplers=[RandomSampler()], writers=[RoundRobinWriter()], p=[2.0]
    )
    lists[0].extend(torch.arange(3))
    assert lists.sample(2).shape == (1, 2)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (lambda: ((), {}), TypeError, "at least one buffer.*nothing was given"),
        (lambda: ((), {"storages": [ListStorage(3)]}), TypeError, "samplers and writers are missing"),
        (lambda: (parts_of(1), {"writers": [RoundRobinWriter()]}), TypeError, "writers too: give one"),
        (lambda: ((parts_of(1, 1),), {}), TypeError, r"Part 0 is a list.*\*buffers"),
        (lambda: ((*parts_of(1), RandomSampler()), {}), TypeError, "Part 1 is a RandomSampler"),
        (lambda: ((ReplayBufferEnsemble(*parts_of(1)),), {}), TypeError, r"itself.*\*ensemble.buffers"),
        (lambda: (parts_of(1, 1), {"p": [1.0]}), ValueError, "for 2 samplers"),
        (lambda: (parts_of(1), {"p": [1.0], "sample_from_all": True}), RuntimeError, "give one of them"),
        (lambda: (parts_of(1), {"num_buffer_sampled": 0}), ValueError, "num_buffer_sampled"),
        (lambda: (parts_of(1, 1), {"collate_fns": [list]}), ValueError, "1 collate_fns for 2"),
        (lambda: (parts_of(1), {"shared": True}), RuntimeError, r"buffers \[0\] are of this process alone"),
        (lambda: (parts_of(1), {"batch_size": 0}), ValueError, "batch_size=0"),
        (lambda: (parts_of(1), {"generator": 3}), TypeError, "generator=3"),
        (
            lambda: (
                (),
                {"storages": [ListStorage(3)], "samplers": [], "writers": [RoundRobinWriter()]},
            ),
            ValueError,
            "1 storages, 0 samplers and 1 writers",
        ),
        (
            lambda: (
                (),
                {
                    "storages": [ListStorage(3)],
                    "samplers": SamplerEnsemble(RandomSampler()),
                    "writers": [RoundRobinWriter()],
                    "p": [1.0],
                },
            ),
            TypeError,
            "p beside a SamplerEnsemble",
        ),
    ],
)
def test_what_makes_no_ensemble_is_refused(arguments: Any, error: Any, words: str) -> None:
    positional, named = arguments()
    with pytest.raises(error, match=words):
        ReplayBufferEnsemble(*positional, **named)


def test_an_ensemble_is_not_written_to_and_its_buffers_are() -> None:
    called: list[Any] = []
    ensemble = seeded(*parts_of(2, 2), batch_size=4, transform=called.append)
    for method in ("add", "extend"):
        with pytest.raises(RuntimeError, match=r"write to one of its buffers, ensemble\[i\]\.extend"):
            getattr(ensemble, method)(steps(0, 2))
    with pytest.raises(RuntimeError, match="not written to"):
        ensemble[0] = steps(0, 1)
    with pytest.raises(AttributeError, match=r"ensemble\[i\]\.dim_extend"):
        _ = ensemble.dim_extend
    assert called == []
    ensemble[1].extend(steps(1, 5, start=2))
    assert (len(ensemble), len(ensemble[1])) == (9, 7)


# --- which buffers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [None, [1.0, 3.0, 4.0], torch.tensor([1, 3, 4])])
def test_buffers_come_with_their_probabilities_and_items_uniformly(p: Any) -> None:
    """Chi-square with a false-alarm rate of 1e-6, seed fixed."""
    sizes = (2, 5, 3)
    ensemble = seeded(*parts_of(*sizes), p=p, num_buffer_sampled=500, batch_size=6000)
    sample = ensemble.sample()
    weights = [1.0, 1.0, 1.0] if p is None else [float(value) for value in p]
    assert_fits(
        sample["index", "buffer_ids"][:, 0].tolist(), {k: w / sum(weights) for k, w in enumerate(weights)}
    )
    pairs = zip(sample["part"].flatten().tolist(), sample["n"].flatten().tolist(), strict=True)
    drawn = [pair for pair in pairs if pair[0] == 1]
    assert_fits(drawn, {(1, n): 1 / 5 for n in range(5)})
    assert torch.equal(sample["part"], sample["index", "buffer_ids"])


def test_a_subset_or_all_are_drawn_as_asked() -> None:
    buffers = parts_of(3, 3, 3, 3)
    assert seeded(*buffers, num_buffer_sampled=2).sample(6).batch_size == (2, 3)
    everyone = seeded(*buffers, sample_from_all=True, batch_size=8).sample()
    assert everyone["index", "buffer_ids"][:, 0].tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match=r"batch of 9 items .* 4 buffers"):
        seeded(*buffers).sample(9)
    with pytest.raises(RuntimeError, match="No batch size"):
        seeded(*buffers).sample()


@pytest.mark.parametrize("p", [None, [1.0, 2.0]])
def test_c50_the_same_seed_gives_the_same_batches(p: Any) -> None:
    """C50 at the buffer: which buffers, and which items of them."""
    first, second = (
        seeded(*parts_of(7, 9), *prioritized(4), p=None if p is None else [*p, 3.0], batch_size=9)
        for _ in range(2)
    )
    torch.rand(3)
    for _ in range(4):
        assert bool((first.sample() == second.sample()).all())


@pytest.mark.parametrize("p", [None, [1.0, 3.0, 6.0]])
@pytest.mark.parametrize(
    ("index", "chosen"),
    [
        (slice(None, 1), [0]),
        ([1, 0], [1, 0]),
        (..., [0, 1, 2]),
        (slice(None), [0, 1, 2]),
        (torch.tensor([2, 1]), [2, 1]),
        (torch.tensor([True, False, True]), [0, 2]),
        (range(1, 3), [1, 2]),
        ([1, 1], [1, 1]),
    ],
)
def test_c51_several_buffers_are_an_ensemble_of_them(p: Any, index: Any, chosen: list[int]) -> None:
    """C51: as a list would choose, ``p`` normalised anew; transforms and batch size stay."""
    buffers = parts_of(3, 4, 5)
    ensemble = seeded(
        *buffers, p=p, batch_size=4, transform=lambda td: td.set("m", -td["n"]), num_buffer_sampled=1
    )
    some = ensemble[index]
    assert type(some) is ReplayBufferEnsemble
    assert all(part is buffers[number] for part, number in zip(some.buffers, chosen, strict=True))
    assert some.batch_size == 4
    assert some.generator is ensemble.generator
    sampler: Any = some.sampler
    assert sampler.num_buffer_sampled == 1
    if p is None:
        assert sampler.p is None
    else:
        expected = torch.tensor([p[number] for number in chosen])
        torch.testing.assert_close(sampler.p, expected / expected.sum())
    assert "m" in some.sample().keys()  # noqa: SIM118
    some.append_transform(lambda td: td.set("only", td["n"]))
    assert "only" not in ensemble.sample().keys()  # noqa: SIM118


@pytest.mark.parametrize("index", [1, -1, torch.tensor(1), torch.tensor([[1]])[0, 0]])
def test_c51_one_integer_gives_the_buffer_itself(index: Any) -> None:
    buffers = parts_of(3, 4)
    assert ReplayBufferEnsemble(*buffers)[index] is buffers[1]


@pytest.mark.parametrize(
    ("index", "error"),
    [
        (2, IndexError),
        (-3, IndexError),
        ([0, 2], IndexError),
        ([], ValueError),
        (0.5, TypeError),
        ((), TypeError),
        (torch.zeros(1, 1, dtype=torch.int64), RuntimeError),
        (torch.tensor([0.5]), TypeError),
        ((0, 7), IndexError),
        ((slice(None), 7), IndexError),
    ],
)
def test_an_index_that_chooses_nothing_is_refused(index: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        ReplayBufferEnsemble(*parts_of(3, 4))[index]


@pytest.mark.parametrize("p", [[1.0], [1.0, -1.0], [0.0, 0.0], [float("nan"), 1.0]])
def test_c52_a_p_that_is_no_distribution_is_refused(p: Any) -> None:
    """C52 at the buffer."""
    with pytest.raises(ValueError, match="p"):
        ReplayBufferEnsemble(*parts_of(1, 1), p=p)
    ensemble = ReplayBufferEnsemble(*parts_of(1, 1))
    with pytest.raises(ValueError, match="p"):
        ensemble.sampler.p = p  # type: ignore[attr-defined]


def test_an_empty_buffer_that_is_drawn_is_named_and_nothing_is_used_up() -> None:
    buffers = parts_of(4, 0, sampler=lambda: SamplerWithoutReplacement(shuffle=False))
    everyone = seeded(*buffers, sample_from_all=True, batch_size=4)
    with pytest.raises(RuntimeError) as refused:
        everyone.sample()
    assert str(refused.value) == "Cannot sample from an empty storage."
    assert "part 1 of 2" in refused.value.__notes__[0]
    without = seeded(*buffers, p=[1.0, 0.0], num_buffer_sampled=1, batch_size=2)
    assert without.sample()["n"].tolist() == [[0, 1]]
    buffers[1].extend(steps(1, 3))
    assert everyone.sample()["n"].tolist() == [[2, 3], [0, 1]]


# --- reading ---------------------------------------------------------------------------------------------


def test_items_are_read_of_one_of_several_and_of_all_buffers() -> None:
    ensemble = ReplayBufferEnsemble(*parts_of(4, 4), *parts_of(2))
    assert ensemble[:2, :3]["n"].tolist() == [[0, 1, 2], [0, 1, 2]]
    assert ensemble[[1, 0], -1]["part"].tolist() == [1, 0]
    assert ensemble[1, [3, 0]]["n"].tolist() == [3, 0]
    assert int(ensemble[1, 2]["n"]) == 2
    assert ensemble[..., torch.tensor([1, 0])]["n"].tolist() == [[1, 0]] * 3
    assert ensemble[:2]["n"].tolist() == [[0, 1, 2, 3]] * 2
    assert ensemble[:2]["n"].tolist() == ensemble[:2, :]["n"].tolist()
    with pytest.raises(RuntimeError, match="as_nested_tensor"):  # parts of 4 and 2 items are ragged
        ensemble["n"]
    ensemble[0, 1]["n"].fill_(99)
    assert int(ensemble[0, 1]["n"]) == 1


def test_the_index_of_a_sample_reads_its_items_again() -> None:
    ensemble = seeded(*parts_of(5, 9), batch_size=8)
    sample, info = ensemble.sample(return_info=True)
    assert torch.equal(ensemble[sample["index"]]["n"], sample["n"])
    assert torch.equal(ensemble[info["index"]]["n"], sample["n"])
    flat = sample.reshape(-1)
    assert torch.equal(ensemble[flat["index"]]["part"], flat["part"])
    with pytest.raises(IndexError, match="not 0 to 7"):
        ensemble[{"buffer_ids": torch.tensor([0, 7]), "index": torch.tensor([[0], [0]])}]


def test_what_buffers_do_to_data_comes_before_what_the_ensemble_does() -> None:
    def tagged(name: str) -> Any:
        return lambda td: td.set("path", td.get("path", torch.zeros(td.batch_size)) * 10 + int(name))

    buffers = [
        TensorDictReplayBuffer(storage=LazyTensorStorage(9), transform=tagged("1"), collate_fn=tagged("2")),
        TensorDictReplayBuffer(storage=LazyTensorStorage(9), transform=[tagged("3"), tagged("4")]),
    ]
    for number, buffer in enumerate(buffers):
        buffer.extend(steps(number, 5))
    ensemble = seeded(*buffers, transform=tagged("5"), sample_from_all=True, batch_size=4)
    assert ensemble.sample()["path"].tolist() == [[215, 215], [345, 345]]
    assert ensemble[:, :1]["path"].tolist() == [[215], [345]]
    replaced = seeded(*buffers, collate_fns=[tagged("7"), None], sample_from_all=True, batch_size=4)
    assert replaced.sample()["path"].tolist() == [[71, 71], [34, 34]]
    assert buffers[0][:1]["path"].tolist() == [21]
    flat = seeded(*buffers, collate_fn=torch.cat, sample_from_all=True, batch_size=4)
    sample = flat.sample()
    assert sample.batch_size == (4,)
    assert sample["index", "buffer_ids"].tolist() == [0, 0, 1, 1]
    check(sample)


def test_a_transform_of_the_ensemble_may_reshape_the_sample_index_and_all() -> None:
    ensemble = seeded(*prioritized(5, 5), batch_size=8, transform=lambda td: td.reshape(-1))
    sample = ensemble.sample()
    assert sample.batch_size == (8,)
    sample["td_error"] = sample["n"] + 2.0
    ensemble.update_tensordict_priority(sample)
    for part, n in zip(sample["part"].tolist(), sample["n"].tolist(), strict=True):
        assert ensemble[part].sampler.weights[n] == n + 2.0


def test_differing_keys_and_shapes_come_as_a_lazy_stack() -> None:
    wide = TensorDictReplayBuffer(storage=LazyTensorStorage(9))
    wide.extend(steps(0, 5, x=torch.zeros(5, 3), a=torch.ones(5)))
    slim = TensorDictReplayBuffer(storage=LazyTensorStorage(9))
    slim.extend(steps(1, 5, x=torch.zeros(5, 2)))
    sample = seeded(wide, slim, sample_from_all=True, batch_size=6).sample()
    assert sample.batch_size == (2, 3)
    check(sample)
    first, second = sample.unbind(0)
    assert (first["x"].shape, second["x"].shape) == ((3, 3), (3, 2))
    assert "a" in first.keys()  # noqa: SIM118
    assert "a" not in second.keys()  # noqa: SIM118
    same_keys = TensorDictReplayBuffer(storage=LazyTensorStorage(9))
    same_keys.extend(steps(1, 5, x=torch.zeros(5, 4), a=torch.ones(5)))
    shapes = seeded(wide, same_keys, sample_from_all=True, batch_size=6).sample()
    assert [part["x"].shape[-1] for part in shapes.unbind(0)] == [3, 4]
    check(shapes)


def test_tensors_are_stacked_and_objects_come_in_lists() -> None:
    tensors = []
    for number in range(2):
        buffer = ReplayBuffer(storage=LazyTensorStorage(5))
        buffer.extend(torch.arange(4) + 10 * number)
        tensors.append(buffer)
    batch, info = seeded(*tensors, batch_size=6).sample(return_info=True)
    expected = info["index"]["index"] + 10 * info["index"]["buffer_ids"][:, None]
    assert torch.equal(batch, expected)
    objects = [ReplayBuffer(storage=ListStorage(5)) for _ in range(2)]
    for number, buffer in enumerate(objects):
        buffer.extend([f"{number}{letter}" for letter in "abc"])
    batch = seeded(*objects, sample_from_all=True, batch_size=4).sample()
    assert [[text[0] for text in part] for part in batch] == [["0", "0"], ["1", "1"]]
    assert ReplayBufferEnsemble(*objects)[:, :2] == [["0a", "0b"], ["1a", "1b"]]


def test_slices_and_columns_are_sampled_beside_single_steps() -> None:
    slices = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20), sampler=SliceSampler(slice_len=2, end_key=("next", "done"))
    )
    done = (torch.arange(12) % 4 == 3)[:, None]
    slices.extend(steps(0, 12, next=TensorDict({"done": done}, [12])))
    columns = TensorDictReplayBuffer(storage=LazyTensorStorage(12, ndim=2))
    columns.extend(steps(1, 12, next=TensorDict({"done": done}, [12])).view(2, 6))
    sample, info = seeded(slices, columns, sample_from_all=True, batch_size=8).sample(return_info=True)
    assert sample.batch_size == (2, 4)
    assert sample["index", "index"].shape == (2, 4, 2)
    first, second = sample.unbind(0)
    assert bool((first["n"].view(2, 2).diff(dim=1) == 1).all())
    assert torch.equal(first["n"], first["index", "index"][:, 0])
    assert first["next", "truncated"].flatten().tolist() == [False, True, False, True]
    rows, column = second["index", "index"].unbind(-1)
    assert torch.equal(second["n"], column * 6 + rows)
    ensemble = seeded(slices, columns, batch_size=8)
    assert torch.equal(ensemble[info["index"]]["n"], sample["n"])


def test_the_index_can_be_left_out_and_the_info_asked_for() -> None:
    ensemble = seeded(*prioritized(4, 4), batch_size=4)
    bare, info = ensemble.sample(include_info=False, return_info=True)
    assert sorted(bare.keys()) == ["index", "n", "part"]
    assert isinstance(bare["index"], torch.Tensor)  # what the writer stored
    assert info["index"]["buffer_ids"].shape == (2,)
    assert info["priority_weight"].shape == info["_generation"].shape == (2, 2)


# --- priorities ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["whole", "flat", "row", "mask", "one", "reshaped"])
def test_c53_priorities_reach_the_buffer_their_items_came_from(form: str) -> None:
    """C53 through ``update_tensordict_priority``, whatever was done to the sample."""
    ensemble = seeded(
        *prioritized(5, 8), *parts_of(6), p=[1.0, 2.0, 1.0], num_buffer_sampled=4, batch_size=24
    )
    sample = ensemble.sample()
    sample["td_error"] = 10.0 * sample["index", "buffer_ids"] + sample["n"] + 2
    given = {
        "whole": lambda: sample,
        "flat": lambda: sample.reshape(-1),
        "row": lambda: sample[1],
        "mask": lambda: sample[sample["n"] > 2],
        "one": lambda: sample[2, 3],
        "reshaped": lambda: sample.reshape(6, 4),
    }[form]()
    ensemble.update_tensordict_priority(given)
    flat = given.reshape(-1)
    new = {(int(b), int(n)) for b, n in zip(flat["index", "buffer_ids"], flat["n"], strict=True)}
    for number in range(2):
        expected = [10.0 * number + n + 2 if (number, n) in new else 1.0 for n in range(5 + 3 * number)]
        assert ensemble[number].sampler.weights.tolist() == expected


@pytest.mark.parametrize("form", ["info", "sample", "flat", "number", "list"])
def test_c53_priorities_by_index_reach_the_buffer(form: str) -> None:
    """C53 through ``update_priority``."""
    ensemble = seeded(*prioritized(5, 8), sample_from_all=True, batch_size=8)
    sample, info = ensemble.sample(return_info=True)
    priority: Any = sample["n"] + 2.0
    index = info["index"] if form in ("info", "number", "list") else sample["index"]
    if form == "flat":
        index, priority = sample.reshape(-1)["index"], priority.reshape(-1)
    if form == "number":
        priority = 7.0
    if form == "list":
        priority = priority.tolist()[0] + priority.tolist()[1]
    ensemble.update_priority(index, priority)
    for number in range(2):
        weights = ensemble[number].sampler.weights
        for n in range(len(weights)):
            drawn = n in sample["n"][number].tolist()
            assert weights[n] == ((7.0 if form == "number" else n + 2.0) if drawn else 1.0)


def test_c53_priorities_of_slices_columns_and_trajectories_reach_the_buffer() -> None:
    """C53 where an index has more than one number, and where an item has many steps."""
    columns: Any = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, eps=0.0, storage=LazyTensorStorage(12, ndim=2)
    )
    columns.extend(steps(1, 12).view(2, 6))
    ensemble = seeded(*prioritized(6), columns, sample_from_all=True, batch_size=64)
    sample, info = ensemble.sample(return_info=True)
    sample["td_error"] = sample["n"] + 2.0
    ensemble.update_tensordict_priority(sample)
    assert ensemble[0].sampler.weights.tolist() == [2, 3, 4, 5, 6, 7]
    assert columns.sampler.weights.view(6, 2).T.flatten().tolist() == [n + 2 for n in range(12)]
    ensemble.update_priority(info["index"], 1.0, generation=info["_generation"])
    assert columns.sampler.weights.tolist() == [1.0] * 12
    runs: list[Any] = []
    for number in range(2):
        buffer = TensorDictPrioritizedReplayBuffer(
            alpha=1.0, beta=1.0, eps=0.0, storage=LazyTensorStorage(4), reduction="max"
        )
        buffer.extend(TensorDict({"n": torch.arange(12).view(4, 3) + 100 * number}, [4, 3]))
        runs.append(buffer)
    ensemble = seeded(*runs, sample_from_all=True, batch_size=64)
    sample = ensemble.sample()
    assert sample.batch_size == (2, 32, 3)
    assert sample["index", "buffer_ids"].shape == (2, 32, 3)
    sample["td_error"] = sample["n"].float()
    ensemble.update_tensordict_priority(sample)
    assert runs[0].sampler.weights.tolist() == [2, 5, 8, 11]
    assert runs[1].sampler.weights.tolist() == [102, 105, 108, 111]


def test_stale_priorities_are_not_given_to_new_items_of_a_buffer() -> None:
    ensemble = seeded(*prioritized(20, 20), sample_from_all=True, batch_size=400)
    sample = ensemble.sample()
    ensemble[1].extend(steps(1, 7, start=100))  # over slots 0 to 6
    sample["td_error"] = torch.full((2, 200), 5.0)
    ensemble.update_tensordict_priority(sample)
    assert ensemble[0].sampler.weights.tolist() == [5.0] * 20
    assert ensemble[1].sampler.weights.tolist() == [1.0] * 7 + [5.0] * 13


def test_items_overwritten_since_are_left_alone_when_items_are_marked() -> None:
    plain = parts_of(20, kind=PrioritizedReplayBuffer, alpha=1.0, beta=1.0, eps=0.0)
    ensemble = seeded(*plain, *parts_of(20), sample_from_all=True, batch_size=800)
    sample, info = ensemble.sample(return_info=True)
    plain[0].update_priority(range(20), 9.0)
    plain[0].extend(steps(0, 5, start=100))
    plain[0].update_priority(range(20), 2.0)
    ensemble.mark_update(info["index"], generation=info["_generation"])
    assert plain[0].sampler.weights.tolist() == [2.0] * 5 + [9.0] * 15
    plain[0].update_priority(range(20), 2.0)
    ensemble.update_tensordict_priority(sample)  # it has no priorities
    assert plain[0].sampler.weights.tolist() == [2.0] * 5 + [9.0] * 15


def test_each_buffer_has_its_own_priority_key() -> None:
    keyed = prioritized(5, priority_key="mine")
    plain = parts_of(5, kind=PrioritizedReplayBuffer, alpha=1.0, beta=1.0, eps=0.0)
    ensemble = seeded(*keyed, *plain, *parts_of(5), sample_from_all=True, batch_size=300)
    sample = ensemble.sample()
    sample["mine"] = torch.full((3, 100), 3.0)
    sample["td_error"] = torch.full((3, 100, 2), 4.0)
    ensemble.update_tensordict_priority(sample)
    assert keyed[0].sampler.weights.tolist() == [3.0] * 5
    assert plain[0].sampler.weights.tolist() == [4.0] * 5
    ensemble.update_tensordict_priority(sample.exclude("mine", "td_error"))  # the default weight again
    assert keyed[0].sampler.weights.tolist() == [3.0] * 5
    assert plain[0].sampler.weights.tolist() == [4.0] * 5
    plain[0].update_priority(0, 1.0)
    ensemble.mark_update(sample["index"])
    assert plain[0].sampler.weights.tolist() == [4.0] * 5


def test_priorities_that_belong_nowhere_are_refused_and_change_nothing() -> None:
    ensemble = seeded(*prioritized(5, 5), batch_size=4)
    index = {"buffer_ids": torch.tensor([0, 1]), "index": torch.tensor([[0, 1], [2, 3]])}
    for priority in ([1.0, 2.0, 3.0, -1.0], [5.0, 5.0, 5.0, float("nan")], float("inf")):
        with pytest.raises(ValueError, match="finite numbers of at least 0"):
            ensemble.update_priority(index, priority)
    with pytest.raises(RuntimeError, match="3 priorities were given for 4 items"):
        ensemble.update_priority(index, [1.0, 2.0, 3.0])
    with pytest.raises(IndexError, match="no buffer 2: the ensemble has 2"):
        ensemble.update_priority({**index, "buffer_ids": torch.tensor([0, 2])}, 5.0)
    for place in (5, 19, -2):
        wrong = {**index, "index": torch.tensor([[0, 1], [2, place]])}
        with pytest.raises(IndexError, match=rf"{place}\b.*holds \[5\]"):
            ensemble.update_priority(wrong, 5.0)
    with pytest.raises(TypeError, match="'buffer_ids' and 'index', got a Tensor"):
        ensemble.update_priority(torch.tensor([1]), 5.0)
    with pytest.raises(KeyError, match="no entry 'index'"):
        ensemble.update_tensordict_priority(TensorDict({"td_error": torch.ones(3)}, [3]))
    with pytest.raises(TypeError, match="does not say which buffer"):
        ensemble.update_tensordict_priority(TensorDict({"index": torch.arange(3)}, [3]))
    for buffer in ensemble.buffers:
        sampler: Any = buffer.sampler
        assert sampler.weights.tolist() == [1.0] * 5
    ensemble.update_priority({**index, "index": torch.tensor([[0, -1], [2, -1]])}, 5.0)  # -1: not stored
    assert ensemble[0].sampler.weights.tolist() == [5.0, 1.0, 1.0, 1.0, 1.0]


def test_an_ensemble_without_priorities_says_so() -> None:
    ensemble = seeded(*parts_of(4, 4), batch_size=4)
    sample = ensemble.sample()
    with pytest.warns(UserWarning, match="no priorities"):
        ensemble.update_priority(sample["index"], 1.0)
    ensemble.update_tensordict_priority(sample)


# --- passes ----------------------------------------------------------------------------------------------


def passes(*sizes: int, **kwargs: Any) -> list[Any]:
    return parts_of(*sizes, sampler=lambda: SamplerWithoutReplacement(**kwargs))


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


# --- state -----------------------------------------------------------------------------------------------


def mixed(seed: int = 0, **kwargs: Any) -> Any:
    buffers = [*prioritized(9), *passes(7), *parts_of(5)]
    return seeded(*buffers, seed=seed, batch_size=6, **kwargs)


@pytest.mark.parametrize("way", ["state", "disk", "pickle", "copy"])
def test_an_ensemble_goes_on_as_the_one_it_was_saved_from(way: str, tmp_path: Path) -> None:
    ensemble = mixed(p=[1.0, 1.0, 2.0], num_buffer_sampled=2)
    sample = ensemble.sample()
    sample["td_error"] = torch.rand(2, 3)
    ensemble.update_tensordict_priority(sample)
    other: Any
    if way in ("pickle", "copy"):
        other = pickle.loads(pickle.dumps(ensemble)) if way == "pickle" else copy.deepcopy(ensemble)
    else:
        kinds = [*prioritized(0), *passes(0), *parts_of(0)]
        other = ReplayBufferEnsemble(*kinds, batch_size=6)
        if way == "state":
            other.load_state_dict(ensemble.state_dict())
        else:
            ensemble.dumps(tmp_path)
            other.loads(tmp_path)
    for _ in range(5):
        mine, theirs = ensemble.sample(), other.sample()
        assert torch.equal(mine["n"], theirs["n"])
        assert torch.equal(mine["part"], theirs["part"])
    assert other.sampler.ran_out == ensemble.sampler.ran_out
    other[2].extend(steps(2, 3))
    assert (len(other), len(ensemble)) == (24, 21)
    assert other.storage[1] is other[1].storage
    for buffer in other.buffers:
        assert buffer.generator is other.generator


def test_copies_of_buffers_with_generators_of_their_own_keep_them() -> None:
    buffers = [
        TensorDictReplayBuffer(storage=LazyTensorStorage(9), generator=torch.Generator().manual_seed(k))
        for k in range(2)
    ]
    ensemble = ReplayBufferEnsemble(*buffers, sample_from_all=True, batch_size=8)
    for number, buffer in enumerate(buffers):
        buffer.extend(steps(number, 9))
    other = pickle.loads(pickle.dumps(ensemble))
    assert other.generator is None
    assert other[0].generator is not other[1].generator
    assert other[0].sampler.generator is other[0].generator
    for _ in range(3):
        assert torch.equal(ensemble.sample()["n"], other.sample()["n"])


def test_transforms_and_batches_drawn_ahead_by_buffers_are_saved_too(tmp_path: Path) -> None:
    def make() -> ReplayBufferEnsemble:
        scale = torch.nn.Module()
        scale.register_buffer("by", torch.tensor(1.0))
        scale.forward = lambda td: td.set("m", td["n"] * scale.by)
        part = TensorDictReplayBuffer(
            storage=LazyTensorStorage(9),
            transform=scale,
            batch_size=2,
            prefetch=2,
            sampler=SamplerWithoutReplacement(shuffle=False),
        )
        return ReplayBufferEnsemble(part, *parts_of(3), sample_from_all=True, batch_size=4)

    ensemble, other = make(), make()
    ensemble[0].transform[0].by.fill_(5.0)
    ensemble[0].extend(steps(0, 9))
    assert ensemble[0].sample()["n"].tolist() == [0, 1]
    ensemble.dumps(tmp_path)
    other.loads(tmp_path)
    assert other[0].sample()["m"].tolist() == [10.0, 15.0]
    assert ensemble[0].sample()["m"].tolist() == [10.0, 15.0]
    for made in (ensemble, other):
        made[0].close()


def test_a_load_that_fails_at_the_last_buffer_changes_none(tmp_path: Path) -> None:
    """All or nothing over buffers, sampler and generator, from memory and from disk."""
    good = mixed()
    small = seeded(
        *prioritized(9), *passes(7), TensorDictReplayBuffer(storage=LazyTensorStorage(2)), batch_size=6
    )
    small[2].extend(steps(2, 2))
    small.sample()
    before = [buffer.state_dict() for buffer in small.buffers]
    expected = copy.deepcopy(small).sample()
    state = good.state_dict()
    with pytest.raises(ValueError, match="2") as refused:
        small.load_state_dict(state)
    assert "buffer 2 of the ensemble" in " ".join(refused.value.__notes__)
    good.dumps(tmp_path)
    with pytest.raises(ValueError, match="2"):
        small.loads(tmp_path)
    for buffer, saved in zip(small.buffers, before, strict=True):
        now = buffer.state_dict()
        assert now["writer"] == saved["writer"]
        assert torch.equal(buffer[:]["n"], torch.arange(len(buffer)))
    assert torch.equal(small.sample()["n"], expected["n"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: state.pop("drawing"), "lacks .'drawing'"),
        (lambda state: state.update(buffers={}), "'buffers' is a dict"),
        (lambda state: state["buffers"].pop(), "of 2 buffers, the ensemble has 3"),
        (lambda state: state["drawing"].update(p=torch.tensor([1.0])), "p of shape"),
        (lambda state: state["drawing"].update(num_buffer_sampled=-1), "num_buffer_sampled"),
        (lambda state: state["drawing"].pop("spent"), "spent"),
        (lambda state: state["drawing"].update(parts=2), "of 2 samplers"),
        (lambda state: state.update(generator=torch.zeros(3, dtype=torch.uint8)), "generator"),
        (lambda state: state["buffers"][0].pop("sampler"), "lacks"),
        (lambda state: state["buffers"].reverse(), "RandomSampler"),
        (lambda state: state.update(transforms={"0": {}}), "transform 0"),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(change: Any, words: str) -> None:
    ensemble = mixed(seed=1, p=[1.0, 2.0, 3.0])
    state = mixed(num_buffer_sampled=2).state_dict()
    change(state)
    expected = copy.deepcopy(ensemble).sample()
    with pytest.raises(ValueError, match=words):
        ensemble.load_state_dict(state)
    assert torch.equal(ensemble.sample()["n"], expected["n"])
    with pytest.raises(TypeError, match="got a list"):
        ensemble.load_state_dict([])


def test_a_state_of_an_ensemble_is_no_state_of_a_buffer_and_the_other_way_round() -> None:
    ensemble, buffer = mixed(), parts_of(4)[0]
    with pytest.raises(ValueError, match="no state of a buffer"):
        buffer.load_state_dict(ensemble.state_dict())
    with pytest.raises(ValueError, match="no state of an ensemble"):
        ensemble.load_state_dict(buffer.state_dict())


def test_hooks_of_buffers_and_of_the_ensemble_change_states_on_their_way(tmp_path: Path) -> None:
    seen: list[str] = []
    ensemble = seeded(*parts_of(3, 3), batch_size=2)

    def hook(name: str) -> Any:
        def call(state: Any) -> Any:
            seen.append(f"{name} {'storages' in state}")
            return state

        return call

    ensemble[1].register_save_hook(hook("part saves"))
    ensemble.register_save_hook(hook("all save"))
    ensemble[1].register_load_hook(hook("part loads"))
    ensemble.register_load_hook(hook("all load"))
    ensemble.save(tmp_path)
    ensemble.load(tmp_path)
    assert seen == ["part saves False", "all save True", "all load True", "part loads False"]
    ensemble.register_save_hook(lambda state: None)
    with pytest.raises(TypeError, match="save hook"):
        ensemble.save(tmp_path)


def test_objects_ask_for_pickling_to_be_allowed(tmp_path: Path) -> None:
    objects = [ReplayBuffer(storage=ListStorage(5)) for _ in range(2)]
    objects[1].extend([{1, 2}, {3}])
    objects[0].extend([1, 2])
    ensemble = ReplayBufferEnsemble(*objects)
    with pytest.raises(TypeError, match="allow_pickle"):
        ensemble.dumps(tmp_path)
    ensemble.dumps(tmp_path, allow_pickle=True)
    other = ReplayBufferEnsemble(*(ReplayBuffer(storage=ListStorage(5)) for _ in range(2)))
    other.loads(tmp_path, allow_pickle=True)
    assert other[1][:] == [{1, 2}, {3}]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_shared_ensemble_is_used_by_a_forked_process() -> None:
    buffers = [
        TensorDictPrioritizedReplayBuffer(
            alpha=1.0, beta=1.0, eps=0.0, storage=LazyTensorStorage(20, shared_init=True), shared=True
        )
        for _ in range(2)
    ]
    for number, buffer in enumerate(buffers):
        buffer.extend(steps(number, 4))
    ensemble = seeded(*buffers, sample_from_all=True, batch_size=64, shared=True)

    def work() -> None:
        ensemble[1].extend(steps(1, 4, start=4))
        sample = ensemble.sample()
        check(sample)
        sample["td_error"] = sample["n"] + 2.0
        ensemble.update_tensordict_priority(sample)

    in_child(work)
    assert len(ensemble) == 12
    check(ensemble.sample())
    assert ensemble[0].sampler.weights.tolist() == [2, 3, 4, 5]


def test_the_repr_shows_buffers_and_how_they_are_drawn() -> None:
    text = repr(seeded(*parts_of(3, 4), p=[1.0, 3.0], batch_size=2, transform=abs))
    assert text.count("TensorDictReplayBuffer(") == 2
    for words in ("p=[0.25, 0.75]", "batch_size=2", "items=7", "abs"):
        assert words in text


# --- against a model -------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_whatever_is_written_every_item_comes_from_its_buffer(data: st.DataObject) -> None:
    """Random writes to buffers of random capacity, and samples of any subset of them."""
    count = data.draw(st.integers(1, 4))
    capacities = [data.draw(st.integers(1, 9)) for _ in range(count)]
    buffers = [TensorDictReplayBuffer(storage=LazyTensorStorage(capacity)) for capacity in capacities]
    ensemble = ReplayBufferEnsemble(*buffers)
    held: list[list[int]] = [[] for _ in range(count)]
    written = 0
    for _ in range(data.draw(st.integers(1, 8))):
        part = data.draw(st.integers(0, count - 1))
        size = data.draw(st.integers(0, 12))
        buffers[part].extend(steps(part, size, start=written))
        held[part] = (held[part] + list(range(written, written + size)))[-capacities[part] :]
        written += size
        chosen = [k for k in range(count) if held[k]]
        if chosen:
            share = data.draw(st.integers(1, 3))
            sample = ensemble[chosen].sample(share * len(chosen))
            for row in sample.unbind(0):
                part = chosen[int(row["index", "buffer_ids"][0])]
                assert set(row["part"].tolist()) == {part}
                assert set(row["n"].tolist()) <= set(held[part])
                stored = buffers[part].storage[row["index", "index"]]
                assert torch.equal(stored["n"], row["n"])
    assert len(ensemble) == sum(map(len, held))
