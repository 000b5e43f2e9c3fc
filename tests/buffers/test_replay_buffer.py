"""The buffer: what it is composed of, what goes in, what comes out."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from buffers.doubles import InOrder, Remembers
from buffers.numbered import seeded, steps, tensor_buffer
from replaybank.buffers.replay_buffer import ReplayBuffer
from replaybank.samplers.random import RandomSampler
from replaybank.storages import LazyTensorStorage
from replaybank.storages.list import ListStorage
from replaybank.writers.round_robin import RoundRobinWriter

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
