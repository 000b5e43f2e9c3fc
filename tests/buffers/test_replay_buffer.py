"""The buffer: what it is composed of, what goes in, what comes out."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from buffers.doubles import InOrder, Remembers
from contracts import KINDS, DataKind, items_for
from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.buffers.tensordict import TensorDictReplayBuffer
from replaybank.checkpoint import load
from replaybank.errors import DataFormatError
from replaybank.samplers.random import RandomSampler
from replaybank.storages import LazyTensorStorage, TensorStorage
from replaybank.storages.list import ListStorage
from replaybank.writers.round_robin import RoundRobinWriter


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def steps(start: int, count: int) -> TensorDict:
    """Items that carry their number, so that each can be told and checked."""
    n = torch.arange(start, start + count)
    return TensorDict({"n": n, "in": {"half": n[:, None] / 2}}, batch_size=count)


def tensor_buffer(capacity: int = 10, **kwargs: Any) -> ReplayBuffer:
    return ReplayBuffer(storage=LazyTensorStorage(capacity), **kwargs)


# --- composition -----------------------------------------------------------------------------------------


def test_arguments_have_the_names_order_and_defaults_that_users_know() -> None:
    parameters = inspect.signature(ReplayBuffer.__init__).parameters
    assert list(parameters)[1:] == [
        *("storage", "sampler", "writer", "collate_fn", "pin_memory", "prefetch", "transform"),
        *("transform_factory", "batch_size", "dim_extend", "checkpointer", "generator", "shared"),
        *("compilable", "delayed_init"),
    ]
    assert all(p.kind is p.KEYWORD_ONLY for name, p in parameters.items() if name != "self")
    false = ("pin_memory", "shared")
    assert all(p.default is (False if n in false else None) for n, p in parameters.items() if n != "self")
    assert list(inspect.signature(ReplayBuffer.sample).parameters) == ["self", "batch_size", "return_info"]
    assert list(inspect.signature(ReplayBuffer.extend).parameters) == ["self", "data", "update_priority"]


def test_the_default_is_a_list_of_a_thousand_drawn_uniformly_written_in_a_circle() -> None:
    buffer = ReplayBuffer()
    assert type(buffer.storage) is ListStorage
    assert buffer.storage.max_size == 1000
    assert type(buffer.sampler) is RandomSampler
    assert type(buffer.writer) is RoundRobinWriter
    assert buffer.batch_size is None
    assert buffer.initialized
    assert len(buffer.transform) == 0


def test_parts_may_be_instances_classes_or_callables() -> None:
    storage = ListStorage(7)
    buffer = ReplayBuffer(storage=storage, sampler=InOrder, writer=lambda: RoundRobinWriter())
    assert buffer.storage is storage
    assert type(buffer.sampler) is InOrder
    assert type(buffer.writer) is RoundRobinWriter
    assert ReplayBuffer(storage=partial(LazyTensorStorage, 5)).storage.max_size == 5


@pytest.mark.parametrize("name", ["storage", "sampler", "writer"])
def test_what_is_no_part_is_refused(name: str) -> None:
    make: Any = ReplayBuffer
    with pytest.raises(TypeError, match=rf"{name}=3 is a int; give a {name.capitalize()} or a callable"):
        make(**{name: 3})
    with pytest.raises(TypeError, match=rf"{name}=.* makes a int; give a {name.capitalize()} or a callable"):
        make(**{name: lambda: 3})


def test_setters_return_the_part_that_was_replaced() -> None:
    buffer = ReplayBuffer(batch_size=2, generator=seeded())
    old = buffer.storage, buffer.sampler, buffer.writer
    new = ListStorage(3), InOrder(), RoundRobinWriter()
    assert buffer.set_storage(new[0]) is old[0]
    assert buffer.set_sampler(new[1]) is old[1]
    assert buffer.set_writer(new[2]) is old[2]
    assert (buffer.storage, buffer.sampler, buffer.writer) == new
    assert new[1].generator is buffer.generator
    buffer.extend([1, 2, 3, 4])
    assert list(new[0][:]) == [4, 2, 3]
    assert len(old[0]) == 0


def test_a_storage_set_with_a_collate_fn_uses_it() -> None:
    buffer = ReplayBuffer(batch_size=2)
    buffer.set_storage(ListStorage(3), collate_fn=lambda items: ("batch", items))
    buffer.extend(["a"])
    assert buffer.sample() == ("batch", ["a", "a"])


def test_parts_are_made_at_the_first_use_when_wanted() -> None:
    made: list[str] = []

    def make(what: str, part: Any) -> Any:
        made.append(what)
        return part()

    parts: dict[str, Any] = {
        "storage": partial(ListStorage, 5),
        "sampler": RandomSampler,
        "writer": RoundRobinWriter,
    }
    given: dict[str, Any] = {name: partial(make, name, part) for name, part in parts.items()}
    buffer = ReplayBuffer(delayed_init=True, **given)
    assert not buffer.initialized
    assert made == []
    assert repr(buffer) == "ReplayBuffer(not initialized, batch_size=None)"
    buffer.add(1)
    assert buffer.initialized
    assert sorted(made) == ["sampler", "storage", "writer"]


@pytest.mark.parametrize(
    "use",
    [
        lambda b: b.storage,
        lambda b: b.sampler,
        lambda b: b.writer,
        lambda b: b.transform,
        lambda b: b.dim_extend,
        lambda b: b.write_count,
        lambda b: b.extend([1]),
        lambda b: len(b),
        lambda b: b.state_dict(),
        lambda b: b.empty(),
        lambda b: b.set_rng(None),
        lambda b: b.append_transform(lambda x: x),
        lambda b: b.update_priority(torch.empty(0), torch.empty(0)) if b.mark_update(0) else None,
    ],
)
def test_any_use_makes_the_parts(use: Any) -> None:
    buffer = ReplayBuffer(delayed_init=True)
    use(buffer)
    assert buffer.initialized


def test_a_transform_factory_waits_for_the_first_use_and_excludes_a_transform() -> None:
    made: list[int] = []

    def factory() -> Any:
        made.append(1)
        return lambda x: x + 1

    buffer = ReplayBuffer(transform_factory=factory, batch_size=2)
    assert not buffer.initialized
    assert made == []
    buffer.extend([torch.tensor(1)])
    assert buffer.sample().tolist() == [2, 2]
    assert made == [1]
    assert ReplayBuffer(transform_factory=factory, delayed_init=False).initialized
    with pytest.raises(TypeError, match="transform or transform_factory, not both"):
        ReplayBuffer(transform=lambda x: x, transform_factory=factory)


def test_the_repr_shows_the_parts_in_a_few_lines() -> None:
    buffer = ReplayBuffer(storage=ListStorage(5), batch_size=3, transform=torch.nn.Identity())
    buffer.extend([1, 2])
    text = repr(buffer)
    for part in ("ReplayBuffer(", "ListStorage(", "RandomSampler(", "RoundRobinWriter(", "Identity()"):
        assert part in text
    assert "batch_size=3" in text
    assert "items=2" in text
    assert len(text.splitlines()) < 10


# --- batch size ------------------------------------------------------------------------------------------


def test_without_a_batch_size_the_error_says_where_to_give_one() -> None:
    buffer = ReplayBuffer()
    buffer.add(1)
    with pytest.raises(RuntimeError, match=r"batch_size=B.*sample\(B\)"):
        buffer.sample()
    with pytest.raises(RuntimeError, match=r"batch_size=B.* before iterating"):
        iter(buffer)
    assert len(buffer.sample(3)) == 3


def test_of_two_batch_sizes_the_calls_wins_with_a_warning() -> None:
    buffer = ReplayBuffer(batch_size=2)
    buffer.add(1)
    with pytest.warns(UserWarning, match=r"has batch_size=2 and sample\(\) was given 5"):
        assert len(buffer.sample(5)) == 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(buffer.sample(2)) == 2


@pytest.mark.parametrize(
    ("batch_size", "error"), [(0, ValueError), (-1, ValueError), (2.0, TypeError), (True, TypeError)]
)
def test_a_batch_size_that_is_none_is_refused(batch_size: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"batch_size={batch_size}"):
        ReplayBuffer(batch_size=batch_size)


def test_prefetch_needs_a_batch_size_and_one_process() -> None:
    with pytest.raises(ValueError, match="prefetch=3 needs a batch_size"):
        ReplayBuffer(prefetch=3)
    with pytest.raises(ValueError, match="shared=True"):
        ReplayBuffer(prefetch=3, batch_size=2, shared=True)


def test_a_sampler_with_drop_last_needs_a_batch_size() -> None:
    with pytest.raises(ValueError, match=r"^Samplers with drop_last=True"):
        ReplayBuffer(sampler=InOrder(drop_last=True))
    with pytest.raises(ValueError, match=r"^Samplers with drop_last=True"):
        ReplayBuffer().set_sampler(InOrder(drop_last=True))
    ReplayBuffer(sampler=InOrder(drop_last=True), batch_size=2)


# --- writing and reading ---------------------------------------------------------------------------------


def test_items_are_added_extended_and_sampled_with_their_index() -> None:
    buffer = tensor_buffer(batch_size=50)
    assert buffer.add(steps(0, 1)[0]) == 0
    assert buffer.extend(steps(1, 4)).tolist() == [1, 2, 3, 4]
    assert len(buffer) == 5
    assert buffer.write_count == 5
    batch, info = buffer.sample(return_info=True)
    assert torch.equal(batch["n"], info["index"])
    assert info["index"].dtype == torch.int64
    assert set(batch["n"].tolist()) <= set(range(5))
    assert "index" not in batch.keys()  # noqa: SIM118


def test_c60_a_batch_larger_than_the_buffer_leaves_its_last_items_at_the_right_slots() -> None:
    buffer = tensor_buffer(4)
    buffer.extend(steps(0, 1))
    index = buffer.extend(steps(1, 10))
    assert index.tolist() == [(1 + k) % 4 for k in range(10)]
    assert buffer[:]["n"].tolist() == [8, 9, 10, 7]
    assert buffer.write_count == 11


@pytest.mark.parametrize("storage", [ListStorage(4), LazyTensorStorage(4)], ids=["list", "tensor"])
def test_c61_writing_nothing_changes_nothing_and_gives_an_empty_index(storage: Any) -> None:
    buffer = ReplayBuffer(storage=storage)
    buffer.extend(steps(0, 2))
    index = buffer.extend(steps(0, 0))
    assert index.shape == (0,)
    assert index.dtype == torch.int64
    assert len(buffer) == buffer.write_count == 2


def test_lists_are_items_and_tuples_are_trees() -> None:
    buffer = tensor_buffer(batch_size=3)
    buffer.extend((torch.arange(4), {"x": torch.arange(4) * 10}))
    assert len(buffer) == 4
    first, second = buffer.sample()
    assert torch.equal(first * 10, second["x"])
    listed = tensor_buffer()
    listed.extend([torch.tensor(1.0), torch.tensor(2.0)])
    assert listed[:].tolist() == [1, 2]


@pytest.mark.parametrize(
    "value",
    [
        np.array([True, False]),
        np.arange(2, dtype=np.float16),
        np.arange(4, dtype=np.int32)[::2],
        torch.arange(4, dtype=torch.bfloat16)[::2],
        torch.arange(4).reshape(2, 2).T,
    ],
    ids=["bool", "float16", "strided array", "strided tensor", "transposed"],
)
def test_c68_arrays_and_views_are_stored_with_their_dtype(value: Any) -> None:
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    buffer = tensor_buffer()
    buffer.extend({"x": value})
    stored = buffer[:]["x"]
    expected = torch.as_tensor(value.copy() if isinstance(value, np.ndarray) else value)
    assert stored.dtype == expected.dtype
    assert torch.equal(stored, expected)


def test_adding_a_batch_as_one_item_warns() -> None:
    buffer = ReplayBuffer()
    with pytest.warns(UserWarning, match=r"batch size \[3\], which becomes one item. Use extend") as record:
        buffer.add(steps(0, 3))
    assert record[0].filename == __file__
    assert len(buffer) == 1


def test_the_sampler_is_told_of_what_was_written() -> None:
    sampler = Remembers()
    buffer = tensor_buffer(sampler=sampler)
    buffer.add(steps(0, 1)[0])
    buffer.extend(steps(1, 2))
    buffer.extend(steps(0, 0))
    assert sampler.told == [("add", 0), ("extend", [1, 2])]


def test_items_are_read_by_index_and_by_key() -> None:
    buffer = tensor_buffer()
    buffer.extend(steps(0, 6))
    assert int(buffer[2]["n"]) == 2
    assert int(buffer[-1]["n"]) == 5
    for index in (
        slice(1, 3),
        [1, 2],
        torch.tensor([1, 2]),
        np.array([1, 2]),
        range(1, 3),
        (torch.tensor([1, 2]),),
    ):
        assert buffer[index]["n"].tolist() == [1, 2]
    assert buffer[torch.tensor([0, 1, 1, 0, 0, 0], dtype=torch.bool)]["n"].tolist() == [1, 2]
    assert buffer["n"].tolist() == list(range(6))
    assert buffer["in", "half"].shape == (6, 1)
    with pytest.raises(IndexError, match="6"):
        buffer[6]
    objects = ReplayBuffer()
    objects.extend([{"a": 1}, {"a": 2}])
    assert objects[1] == {"a": 2}
    assert objects[:]["a"].tolist() == [1, 2]
    assert objects["a"].tolist() == [1, 2]


def test_items_are_replaced_in_their_places() -> None:
    buffer = tensor_buffer()
    buffer.extend(steps(0, 6))
    buffer[1] = steps(100, 1)[0]
    buffer[[3, 4]] = steps(200, 2)
    assert buffer["n"].tolist() == [0, 100, 2, 200, 201, 5]
    assert (len(buffer), buffer.write_count, buffer.writer.cursor) == (6, 6, 6)
    with pytest.raises(TypeError, match=r"buffer\['n'\] = \.\.\. would write one entry"):
        buffer["n"] = torch.zeros(6)


def test_an_emptied_buffer_forgets_its_items_and_perhaps_its_count() -> None:
    buffer = tensor_buffer(batch_size=2)
    buffer.extend(steps(0, 6))
    buffer.empty(empty_write_count=False)
    assert (len(buffer), buffer.write_count) == (0, 6)
    with pytest.raises(RuntimeError, match=r"Cannot sample from an empty storage\."):
        buffer.sample()
    assert buffer.extend(steps(50, 2)).tolist() == [0, 1]
    buffer.empty()
    assert (len(buffer), buffer.write_count) == (0, 0)


def test_sampling_from_an_empty_buffer_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"^Cannot sample from an empty storage\.$"):
        ReplayBuffer(batch_size=2).sample()


# --- time along another dimension ------------------------------------------------------------------------


def grid(envs: int, time: int) -> TensorDict:
    """``[envs, time]``, each step numbered by both."""
    n = torch.arange(envs)[:, None] * 100 + torch.arange(time)
    return TensorDict({"n": n}, batch_size=[envs, time])


def test_time_moves_to_the_front_on_writing_and_back_on_reading() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(12, ndim=2), batch_size=64)
    assert buffer.dim_extend == 1
    data = grid(2, 3)
    index = buffer.extend(data)
    assert buffer.storage.shape == (3, 2)
    assert index.tolist() == [[t, e] for t in range(3) for e in range(2)]
    assert torch.equal(buffer[:]["n"], data["n"])
    assert torch.equal(buffer[1]["n"], data["n"][1])
    assert torch.equal(buffer[:, 1:]["n"], data["n"][:, 1:])
    assert int(buffer[1, 2]["n"]) == 102
    assert torch.equal(buffer["n"], data["n"])
    batch, info = buffer.sample(return_info=True)
    assert isinstance(info["index"], tuple)
    time, env = info["index"]
    assert torch.equal(batch["n"], env * 100 + time)
    buffer[1, 1:] = TensorDict({"n": torch.tensor([7, 8])}, batch_size=2)
    assert buffer[:]["n"].tolist() == [[0, 1, 2], [100, 7, 8]]
    assert buffer.add(TensorDict({"n": torch.tensor([3, 103])}, batch_size=2)).tolist() == [[3, 0], [3, 1]]
    assert buffer[:, 3]["n"].tolist() == [3, 103]


def test_dim_extend_can_be_given_for_a_storage_of_one_dimension() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(12), dim_extend=1)
    data = grid(2, 3)
    assert buffer.extend(data).tolist() == [0, 1, 2]
    assert torch.equal(buffer.storage[:]["n"], data["n"].T)
    assert torch.equal(buffer[:]["n"], data["n"])
    buffer[0, 1] = TensorDict({"n": torch.tensor(55)}, batch_size=[])
    assert buffer[:]["n"].tolist() == [[0, 55, 2], [100, 101, 102]]
    plain = ReplayBuffer(storage=LazyTensorStorage(12, ndim=2), dim_extend=0)
    plain.extend(data)
    assert plain.storage.shape == (2, 3)
    with pytest.raises(ValueError, match="dim_extend=-1"):
        ReplayBuffer(dim_extend=-1)


def test_priorities_of_several_dimensions_are_moved_like_the_data() -> None:
    sampler = Remembers()
    buffer = ReplayBuffer(storage=LazyTensorStorage(12, ndim=2), sampler=sampler, batch_size=3)
    data = grid(2, 3)
    index = buffer.extend(data)
    buffer.update_priority(index, data["n"].float())
    assert sampler.priorities == {(t, e): 100.0 * e + t for t in range(3) for e in range(2)}
    _, info = buffer.sample(return_info=True)
    buffer.update_priority(info["index"], torch.full((3,), -5.0), generation=info["_generation"])
    assert sampler.told[-1] == ("priority", info["_generation"].tolist())
    for time, env in zip(*info["index"], strict=True):
        assert sampler.priorities[int(time), int(env)] == -5.0


# --- randomness ------------------------------------------------------------------------------------------


def test_c13_the_global_seed_decides_where_no_generator_is_given() -> None:
    buffer = tensor_buffer(batch_size=20)
    buffer.extend(steps(0, 10))
    torch.manual_seed(0)
    first = buffer.sample()["n"]
    torch.manual_seed(0)
    assert torch.equal(buffer.sample()["n"], first)
    assert not torch.equal(buffer.sample()["n"], first)


def test_a_buffers_own_generator_decides_alone() -> None:
    generator = seeded(3)
    buffer = tensor_buffer(batch_size=20, generator=generator)
    assert buffer.generator is generator
    assert buffer.sampler.generator is generator
    buffer.extend(steps(0, 10))
    state = torch.get_rng_state()
    first = buffer.sample()["n"]
    assert torch.equal(torch.get_rng_state(), state)
    buffer.set_rng(seeded(3))
    torch.manual_seed(5)
    assert torch.equal(buffer.sample()["n"], first)
    buffer.set_rng(None)
    assert buffer.generator is buffer.sampler.generator is None


# --- iteration -------------------------------------------------------------------------------------------


def test_iterating_gives_the_rest_of_the_pass_and_the_next_loop_a_new_one() -> None:
    buffer = ReplayBuffer(sampler=InOrder, batch_size=4)
    buffer.extend([torch.tensor(i) for i in range(10)])
    assert [batch.tolist() for batch in buffer] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert buffer.sample().tolist() == [0, 1, 2, 3]
    assert [batch.tolist() for batch in buffer] == [[4, 5, 6, 7], [8, 9]]
    assert [len(batch) for batch in buffer] == [4, 4, 2]


def test_next_gives_none_at_the_end_of_a_pass_and_then_begins_anew() -> None:
    buffer = ReplayBuffer(sampler=InOrder, batch_size=2)
    buffer.extend([torch.tensor(i) for i in range(3)])
    batches = [buffer.next() for _ in range(5)]
    assert [None if batch is None else batch.tolist() for batch in batches] == [
        [0, 1],
        [2],
        None,
        [0, 1],
        [2],
    ]


def test_iterating_with_a_sampler_without_passes_goes_on() -> None:
    buffer = ReplayBuffer(batch_size=2)
    buffer.extend([1])
    for number, batch in enumerate(buffer):
        assert len(batch) == 2
        if number == 50:
            break


# --- transforms ------------------------------------------------------------------------------------------


class Times(torch.nn.Module):
    """Stores a tenth of what it gives back."""

    def forward(self, td: Any) -> Any:
        return td.set("n", td["n"] * 10)

    def inv(self, td: Any) -> Any:
        return td.copy().set("n", td["n"] // 10)


def test_transforms_change_what_is_written_and_what_is_read() -> None:
    buffer = tensor_buffer(transform=Times(), batch_size=4)
    data = TensorDict({"n": torch.tensor([10, 20])}, batch_size=2)
    buffer.extend(data)
    buffer.add(TensorDict({"n": torch.tensor(30)}))
    assert data["n"].tolist() == [10, 20], "what the user handed in is his"
    assert buffer.storage[:]["n"].tolist() == [1, 2, 3]
    assert buffer[:]["n"].tolist() == [10, 20, 30]
    assert set(buffer.sample()["n"].tolist()) <= {10, 20, 30}
    buffer[0] = TensorDict({"n": torch.tensor(50)})
    assert buffer.storage[:]["n"].tolist() == [5, 2, 3]


def test_transforms_are_appended_and_inserted() -> None:
    buffer = ReplayBuffer(transform=lambda x: x * 2, batch_size=1)
    buffer.extend([torch.tensor(3)])
    assert buffer.append_transform(lambda x: x + 1) is buffer
    assert buffer.sample().tolist() == [7]
    assert buffer.insert_transform(0, lambda x: x - 1) is buffer
    assert buffer.sample().tolist() == [5]
    assert len(buffer.transform) == 3
    several = ReplayBuffer(transform=[lambda x: x * 2, lambda x: x + 1])
    assert len(several.transform) == 2


def test_a_list_of_tensordicts_reaches_an_inv_as_one_batch() -> None:
    buffer = tensor_buffer(transform=Times())
    buffer.extend([TensorDict(n=torch.tensor(10)), TensorDict(n=torch.tensor(20))])
    assert buffer.storage[:]["n"].tolist() == [1, 2]


@pytest.mark.parametrize("ndim", [1, 2])
def test_an_inv_that_gives_none_writes_nothing_and_gives_an_empty_index(ndim: int) -> None:
    class Never(torch.nn.Module):
        def inv(self, td: Any) -> None:
            return None

    buffer = ReplayBuffer(storage=LazyTensorStorage(8, ndim=ndim), transform=Never())
    for index in (buffer.extend(grid(2, 3)), buffer.add(TensorDict(n=torch.tensor(1)))):
        assert index.shape == ((0,) if ndim == 1 else (0, 2))
        assert index.dtype == torch.int64
    assert (len(buffer), buffer.write_count) == (0, 0)


def test_a_sample_may_be_reshaped_where_nothing_is_put_into_it() -> None:
    buffer = tensor_buffer(transform=lambda td: td.reshape(2, -1), batch_size=6)
    buffer.extend(steps(0, 4))
    assert buffer.sample().batch_size == (2, 3)


# --- priorities ------------------------------------------------------------------------------------------


def test_priorities_pass_through_to_the_sampler() -> None:
    sampler = Remembers()
    buffer = tensor_buffer(sampler=sampler, batch_size=2)
    buffer.extend(steps(0, 4))
    buffer.update_priority(torch.tensor([1, 2]), torch.tensor([0.5, 0.25]))
    buffer.update_priority(3, 2.0)
    buffer.mark_update(torch.tensor([0]))
    assert sampler.priorities == {(1,): 0.5, (2,): 0.25, (3,): 2.0}
    assert sampler.told[-1] == ("mark", [0])


def test_a_sampler_without_priorities_warns_and_data_has_none_here() -> None:
    buffer = tensor_buffer()
    buffer.extend(steps(0, 4), update_priority=False)
    with pytest.warns(UserWarning, match="no priorities"):
        buffer.update_priority(0, 1.0)
    with pytest.raises(TypeError, match="update_priority=True, but a ReplayBuffer"):
        buffer.extend(steps(0, 4), update_priority=True)
    assert len(buffer) == 4


# --- saving ----------------------------------------------------------------------------------------------


def same_future(a: ReplayBuffer, b: ReplayBuffer) -> bool:
    return all(torch.equal(a.sample()["n"], b.sample()["n"]) for _ in range(3))


@pytest.mark.parametrize("way", ["state_dict", "dumps", "dump", "save", "pickle", "deepcopy"])
def test_a_buffer_goes_on_as_the_one_it_was_saved_from(way: str, tmp_path: Path) -> None:
    def new(seed: int) -> ReplayBuffer:
        return tensor_buffer(7, batch_size=5, generator=seeded(seed), transform=lambda td: td)

    buffer, other = new(0), new(1)
    buffer.extend(steps(0, 10))
    buffer.sample()
    if way == "state_dict":
        state = buffer.state_dict()
        buffer.extend(steps(90, 1))
        buffer[0] = steps(91, 1)[0]
        other.load_state_dict(state)
        buffer = new(2)
        buffer.load_state_dict(state)
    elif way in ("dumps", "dump", "save"):
        getattr(buffer, way)(tmp_path)
        (other.loads if way == "dumps" else other.load)(tmp_path)
    else:
        buffer.set_storage(buffer.storage)
        buffer.transform._links.clear()  # a lambda cannot be pickled
        other = pickle.loads(pickle.dumps(buffer)) if way == "pickle" else copy.deepcopy(buffer)
    assert torch.equal(other[:]["n"], buffer[:]["n"])
    assert (other.write_count, other.writer.cursor) == (buffer.write_count, buffer.writer.cursor) == (10, 3)
    assert same_future(buffer, other)
    assert other.extend(steps(10, 2)).tolist() == buffer.extend(steps(10, 2)).tolist() == [3, 4]
    assert torch.equal(other[:]["n"], buffer[:]["n"])
    assert same_future(buffer, other)


def test_c66_a_buffer_never_written_to_is_saved_loaded_and_extended(tmp_path: Path) -> None:
    tensor_buffer().dumps(tmp_path)
    other = tensor_buffer(batch_size=2)
    other.loads(tmp_path)
    assert other.extend(steps(0, 3)).tolist() == [0, 1, 2]
    assert other[:]["n"].tolist() == [0, 1, 2]


def test_a_state_is_taken_over_twice_and_stays_the_callers() -> None:
    """C16, for the whole buffer."""
    buffer = tensor_buffer(batch_size=4, generator=seeded())
    buffer.extend(steps(0, 6))
    state = buffer.state_dict()
    buffer.extend(steps(50, 3))
    buffer.sample()
    buffer.load_state_dict(state)
    first = [buffer.sample()["n"].tolist() for _ in range(3)]
    buffer.extend(steps(70, 5))
    buffer.load_state_dict(state)
    assert [buffer.sample()["n"].tolist() for _ in range(3)] == first
    assert buffer[:]["n"].tolist() == list(range(6))


def test_loading_brings_a_generator_along_and_never_touches_the_global_one(tmp_path: Path) -> None:
    buffer = tensor_buffer(batch_size=4, generator=seeded())
    buffer.extend(steps(0, 6))
    buffer.dumps(tmp_path)
    state = torch.get_rng_state()
    other = tensor_buffer(batch_size=4)
    other.loads(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert other.generator is not None
    assert same_future(buffer, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_states_of_transforms_and_samplers_are_saved(tmp_path: Path) -> None:
    def new() -> ReplayBuffer:
        return ReplayBuffer(
            storage=LazyTensorStorage(9), sampler=InOrder(), batch_size=4, transform=torch.nn.BatchNorm1d(1)
        )

    buffer, other = new(), new()
    buffer.extend(torch.arange(9.0)[:, None])
    buffer.sample()
    buffer.dumps(tmp_path)
    other.loads(tmp_path)
    assert torch.equal(other.transform[0].running_mean, buffer.transform[0].running_mean)
    assert float(other.transform[0].running_mean) != 0
    assert other.sample(return_info=True)[1]["index"].tolist() == [4, 5, 6, 7]


def test_hooks_change_the_storages_state_on_its_way(tmp_path: Path) -> None:
    buffer, other = tensor_buffer(), tensor_buffer()
    seen: list[str] = []

    def hook(name: str, state: dict[str, Any]) -> dict[str, Any]:
        seen.append(name)
        return {"inner": state} if name == "save" else state["inner"]

    buffer.register_save_hook(partial(hook, "save"))
    other.register_load_hook(partial(hook, "load"))
    buffer.extend(steps(0, 3))
    buffer.dumps(tmp_path)
    other.loads(tmp_path)
    assert seen == ["save", "load"]
    assert other[:]["n"].tolist() == [0, 1, 2]


def test_a_list_of_objects_asks_for_pickling_to_be_allowed(tmp_path: Path) -> None:
    buffer, other = ReplayBuffer(), ReplayBuffer()
    buffer.extend([{"a", "b"}, np.arange(3)])
    with pytest.raises(TypeError, match=r"items\[0\] is a set.*allow_pickle=True"):
        buffer.dumps(tmp_path)
    buffer.save(tmp_path, allow_pickle=True)
    with pytest.raises(DataFormatError, match="allow_pickle=True"):
        other.loads(tmp_path)
    assert len(other) == 0
    other.load(tmp_path, allow_pickle=True)
    assert other.storage[0] == {"a", "b"}
    assert other.storage[1].tolist() == [0, 1, 2]


def test_earlier_saves_are_kept_when_asked_for(tmp_path: Path) -> None:
    buffer = tensor_buffer()
    for step in range(3):
        buffer.extend(steps(step, 1))
        buffer.dumps(tmp_path, keep=1)
    assert [load(tmp_path, back=back)["writer"]["write_count"] for back in (0, 1)] == [3, 2]


def test_a_checkpointer_saves_the_storage_in_its_own_way(tmp_path: Path) -> None:
    class Mine:
        def dumps(self, storage: Any, path: Path) -> None:
            path.mkdir(parents=True)
            torch.save(storage[:]["n"], path / "n.pt")

        def loads(self, storage: Any, path: Path) -> None:
            n = torch.load(path / "n.pt")
            storage.set(range(len(n)), TensorDict({"n": n}, batch_size=len(n)))

    buffer, other = (tensor_buffer(checkpointer=Mine(), sampler=InOrder(), batch_size=2) for _ in range(2))
    buffer.extend(TensorDict({"n": torch.arange(5)}, batch_size=5))
    buffer.sample()
    buffer.dumps(tmp_path)
    other.loads(tmp_path)
    assert other[:]["n"].tolist() == [0, 1, 2, 3, 4]
    assert other.sample()["n"].tolist() == [2, 3]


def test_c65_a_flipped_byte_of_a_saved_buffer_names_the_file_and_changes_nothing(tmp_path: Path) -> None:
    buffer = tensor_buffer()
    buffer.extend(steps(0, 6))
    buffer.dumps(tmp_path)
    buffer.extend(steps(6, 1))
    for file in sorted(path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size):
        good = file.read_bytes()
        file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        with pytest.raises(DataFormatError) as error:
            buffer.loads(tmp_path)
        assert str(file) in str(error.value)
        file.write_bytes(good)
    assert len(buffer) == 7


# --- devices and sharing ---------------------------------------------------------------------------------


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator here")
def test_pin_memory_is_ignored_with_one_warning_without_an_accelerator() -> None:
    with pytest.warns(UserWarning, match="pin_memory=True is ignored"):
        buffer = tensor_buffer(pin_memory=True, batch_size=2)
    buffer.extend(steps(0, 3))
    buffer.sample()  # warns no more: a warning is an error here


def test_storages_that_cannot_be_shared_say_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"ListStorage holds Python objects.* Use a LazyTensorStorage"):
        ReplayBuffer(shared=True)
    with pytest.raises(RuntimeError, match=r"or has none yet.* shared_init=True"):
        tensor_buffer(shared=True)
    with pytest.raises(RuntimeError, match=r"this process alone: .*share_memory_\(\)"):
        ReplayBuffer(storage=TensorStorage(steps(0, 4)), shared=True)
    buffer = ReplayBuffer(storage=TensorStorage(steps(0, 4).share_memory_()), shared=True)
    assert buffer.storage.log.state.is_shared()
    with pytest.raises(RuntimeError, match="ListStorage"):
        buffer.set_storage(ListStorage(3))
    unwritten = ReplayBuffer(storage=LazyTensorStorage(4, shared_init=True), shared=True)
    with pytest.raises(RuntimeError, match="no memory yet when it came to another process"):
        pickle.dumps(unwritten)


# --- every form of data ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("make", [LazyTensorStorage, ListStorage])
@pytest.mark.filterwarnings("ignore:add.. was given a TensorDict of batch size")
def test_every_form_of_data_is_sampled_as_it_was_written(kind: DataKind, make: Any, tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=make(7), batch_size=20, generator=seeded())
    buffer.extend(items_for(buffer.storage, kind, torch.arange(5)))
    buffer.add(kind.make(torch.tensor(5)))
    batch, info = buffer.sample(return_info=True)
    assert torch.equal(kind.ids(batch), info["index"])
    assert torch.equal(kind.ids(buffer[:]), torch.arange(6))
    if make is LazyTensorStorage:
        buffer.dumps(tmp_path)
        other = ReplayBuffer(storage=make(7), batch_size=20)
        if kind.name in ("tensorclass", "namedtuple"):
            other.extend(items_for(other.storage, kind, torch.arange(1)))  # classes are not named in files
        other.loads(tmp_path)
        assert torch.equal(kind.ids(other.sample()), kind.ids(buffer.sample()))


@pytest.mark.parametrize("size", [2.5, "3", True, [1], torch.tensor(1.5)])
@pytest.mark.parametrize("name", ["batch_size", "prefetch", "dim_extend"])
def test_sizes_that_are_no_integers_are_refused_by_the_constructor(name: str, size: Any) -> None:
    make: Any = ReplayBuffer
    with pytest.raises(TypeError, match=f"{name}=.*give an integer"):
        make(**{"batch_size": 2, name: size})


@pytest.mark.parametrize("name", ["batch_size", "prefetch", "dim_extend"])
def test_sizes_that_are_too_small_are_refused_by_the_constructor(name: str) -> None:
    make: Any = ReplayBuffer
    with pytest.raises(ValueError, match=f"{name}=-1: give [01] or more"):
        make(**{"batch_size": 2, name: -1})


@pytest.mark.parametrize("integer", [np.int64, np.uint8, torch.tensor])
def test_integers_of_numpy_and_torch_are_sizes(integer: Any) -> None:
    buffer = ReplayBuffer(batch_size=integer(3), prefetch=integer(1), dim_extend=integer(0))
    buffer.extend(torch.arange(5))
    assert buffer.sample().shape == (3,)
    buffer.close()
    assert buffer.batch_size == 3
    with pytest.warns(UserWarning, match="batch_size=3"):
        assert buffer.sample(integer(2)).shape == (2,)


@pytest.mark.parametrize(
    ("size", "error"),
    [(-1, ValueError), (0, ValueError), (2.5, TypeError), ("3", TypeError), (True, TypeError)],
)
def test_a_batch_size_that_is_none_is_refused_by_sample(size: Any, error: type[Exception]) -> None:
    buffer = ReplayBuffer()
    buffer.extend(torch.arange(5))
    with pytest.raises(error, match="batch_size="):
        buffer.sample(size)


def test_a_seed_is_no_generator() -> None:
    seed: Any = 0
    with pytest.raises(TypeError, match=r"generator=0 is a int.*torch.Generator\(\).manual_seed"):
        ReplayBuffer(generator=seed)
    buffer = ReplayBuffer()
    with pytest.raises(TypeError, match="generator=0"):
        buffer.set_rng(seed)
    assert buffer.generator is None


def test_wrong_arguments_are_named_with_the_class_that_was_called() -> None:
    make: Any = ReplayBuffer
    with pytest.raises(TypeError, match=r"^ReplayBuffer.__init__\(\).* positional"):
        make(10)
    with pytest.raises(TypeError, match=r"^ReplayBuffer.__init__\(\).*'size'"):
        make(size=10)


@pytest.mark.parametrize("method", ["add", "extend"])
def test_none_is_nothing_to_write(method: str) -> None:
    buffer = tensor_buffer()
    with pytest.raises(TypeError, match="the data is None"):
        getattr(buffer, method)(None)


def test_an_index_of_a_sample_is_one_of_the_storage_and_the_buffer_has_the_users_order() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(12, ndim=2), batch_size=8)
    buffer.extend(TensorDict({"n": torch.arange(12).view(3, 4)}, [3, 4]))
    sample = buffer.sample()
    time, column = sample["index"].unbind(-1)
    assert buffer.storage[time, column]["n"].tolist() == sample["n"].tolist()
    assert buffer[column, time]["n"].tolist() == sample["n"].tolist()


@pytest.mark.parametrize("keep", [1.5, "1", True])
def test_a_number_of_saves_to_keep_is_an_integer(keep: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"keep=.*give an integer"):
        tensor_buffer().dumps(tmp_path, keep=keep)
    assert list(tmp_path.iterdir()) == []
