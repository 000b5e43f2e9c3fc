"""Several buffers sampled as one."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from buffers.ensembles import check, parts_of, prioritized, seeded, steps
from reference.chi_square import assert_fits
from replaybank.buffers import (
    ReplayBuffer,
    ReplayBufferEnsemble,
    TensorDictReplayBuffer,
)
from replaybank.samplers import (
    RandomSampler,
    SamplerEnsemble,
    SamplerWithoutReplacement,
    SliceSampler,
)
from replaybank.storages import LazyTensorStorage, ListStorage, StorageEnsemble
from replaybank.writers import RoundRobinWriter, TensorDictRoundRobinWriter, WriterEnsemble

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
