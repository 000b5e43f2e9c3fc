"""Slices of streamed episodes: what the kernel writes, and batches as single columns would make them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_source import Frames, MemorySource
from reference import cuts as reference
from replaybank.datasets.openx.cut import Cutter, texts
from replaybank.datasets.openx.nest import unnest
from replaybank.datasets.openx.options import Slicing
from replaybank.datasets.openx.replay import OpenXExperienceReplay
from replaybank.datasets.openx.slabs import Entries, Slab
from replaybank.datasets.openx.sources.base import Episode, FieldSpec, Key
from replaybank.datasets.openx.stream import Pick
from replaybank.datasets.openx.ted import ted_leaves
from replaybank.errors import DataFormatError
from replaybank.storages import _tensordict
from replaybank.storages.batch_memory import BatchMemory

DTYPES = ("float32", "float64", "float16", "int8", "uint8", "int32", "int64", "bool")
MARKS: tuple[Key, ...] = (
    *(("step",), ("episode",), ("is_init",), *reference.FLAGS),
    *(("next", name) for name in ("done", "terminated", "truncated", "valid")),
)


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    return rng.integers(0, 2 if dtype == np.bool_ else 100, shape).astype(dtype)


SHAPES = st.lists(st.integers(0, 5), max_size=2).map(tuple)


@settings(max_examples=100, deadline=None)
@given(
    observed=st.lists(st.tuples(st.sampled_from(DTYPES), SHAPES), max_size=3),
    others=st.lists(st.tuples(st.sampled_from(DTYPES), SHAPES), max_size=3),
    data=st.data(),
)
def test_the_kernel_writes_what_indexing_gives_and_nothing_beside_it(
    observed: list[tuple[str, tuple[int, ...]]],
    others: list[tuple[str, tuple[int, ...]]],
    data: st.DataObject,
) -> None:
    fields: dict[Key, FieldSpec] = {("action",): FieldSpec("tensor", (2,), np.dtype("float32"))}
    for part, forms in (("observation", observed), ("other", others)):
        for number, (kind, shape) in enumerate(forms):
            fields[part, str(number)] = FieldSpec("tensor", shape, np.dtype(kind))
    leaves = ted_leaves(fields)
    count, length = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    place, steps = data.draw(st.integers(0, count - 1)), data.draw(st.integers(1, length))
    there = steps + data.draw(st.integers(0, 4))
    start = data.draw(st.integers(0, there - steps))
    number, terminated = data.draw(st.integers(0, 2**31 - 1)), data.draw(st.booleans())

    rng = np.random.default_rng(number)
    slab = Slab(Entries(leaves, filled=False), count, length, BatchMemory())
    wanted = {}
    for key, tensor in slab.tensors.items():
        tensor.numpy().view(np.uint8)[...] = 7 if tensor.numel() and tensor.ndim > 1 else 0
        wanted[key] = tensor.numpy().copy()
    arrays, entries = [], []
    for key, dtype, is_observed, _ in slab.entries.numbers:
        column = values(rng, (there, *leaves[key].shape), dtype)
        arrays.append(column[start : min(start + steps + is_observed, there)])
        entries.append((wanted[key], wanted[("next", *key)] if is_observed else None, column))
    reference.cut_slice(
        entries, [wanted[key] for key in MARKS], place * length, start, steps, number, terminated, there
    )
    where: dict[str, Any] = {
        "start": start,
        "steps": steps,
        "there": there,
        "number": number,
        "terminated": terminated,
    }
    assert slab.write(place, arrays, **where)
    for key, tensor in slab.tensors.items():
        assert tensor.numpy().tobytes() == wanted[key].tobytes(), key


def test_arrays_that_do_not_fit_are_refused_before_anything_is_written() -> None:
    leaves = ted_leaves({("observation", "x"): FieldSpec("tensor", (2,), np.dtype("float32"))})
    slab = Slab(Entries(leaves, filled=False), 2, 3, BatchMemory())
    for tensor in slab.tensors.values():
        tensor.zero_()
    where: dict[str, Any] = {"start": 1, "steps": 3, "there": 5, "number": 1, "terminated": False}
    good, reward = np.ones((4, 2), np.float32), np.ones((3, 1), np.float32)
    bad: tuple[tuple[list[Any], dict[str, int]], ...] = (
        ([good[:3], reward], {}),
        ([np.ones((5, 2), np.float32), reward], {}),
        ([np.ones((8, 2), np.float32)[::2], reward], {}),
        ([[1.0], reward], {}),
        ([good], {}),
        ([good, reward, reward], {}),
        ([good, reward], {"steps": 4}),
        ([good, reward], {"steps": 0}),
        ([good, reward], {"start": 3}),
        ([good, reward], {"start": -1}),
        ([good, reward], {"there": 2}),
    )
    for arrays, changes in bad:
        assert not slab.write(1, arrays, **{**where, **changes}), (arrays, changes)
    assert not any(tensor.any() for tensor in slab.tensors.values())
    assert slab.write(1, [good, reward], **where)
    assert slab.tensors["observation", "x"].sum(1).tolist() == [0, 0, 0, 2, 2, 2]


# --- batches -----------------------------------------------------------------------------------------------

IMAGE, DEPTH, STATE = ("observation", "image"), ("wrist",), ("observation", "state")
FIELDS: dict[Key, FieldSpec] = {
    IMAGE: FieldSpec("image", (6, 5, 3), np.dtype("uint8")),
    DEPTH: FieldSpec("image", (4, 4, 1), np.dtype("uint16")),
    STATE: FieldSpec("tensor", (3,), np.dtype("float32")),
    ("observation", "points"): FieldSpec("tensor", (4, 2), np.dtype("int16"), ragged=1),
    ("observation", "note"): FieldSpec("text", (), None),
    ("action", "arm"): FieldSpec("tensor", (2,), np.dtype("float64")),
    ("action", "grip"): FieldSpec("tensor", (), np.dtype("bool")),
    ("is_terminal",): FieldSpec("tensor", (), np.dtype("bool")),
    ("language_instruction",): FieldSpec("text", (), None),
}
REWARD: dict[Key, FieldSpec] = {("reward",): FieldSpec("tensor", (), np.dtype("float32"))}
MAY_LACK = (IMAGE, DEPTH, STATE, ("observation", "note"), ("action", "grip"))


@st.composite
def episodes(draw: st.DrawFn, fields: dict[Key, FieldSpec]) -> list[Episode]:
    made = []
    for number in range(draw(st.integers(1, 7))):
        length = draw(st.sampled_from([1, 2, 3, 4, 5, 9]))
        rng = np.random.default_rng(draw(st.integers(0, 1000)))
        lacking = draw(st.frozensets(st.sampled_from(MAY_LACK), max_size=2)) if number else frozenset()
        steps: dict[Key, Any] = {}
        for key, spec in fields.items():
            if key in lacking:
                continue
            assert isinstance(spec, FieldSpec)
            if spec.kind == "text":
                same = draw(st.booleans())
                steps[key] = ["put it down"] * length if same else [f"{key[-1]} {k}" for k in range(length)]
                continue
            shape = spec.shape
            if spec.ragged:
                shape = (draw(st.integers(0, shape[0])), *shape[1:])
            array = values(rng, (length, *shape), spec.dtype)
            if spec.kind == "image":
                array = Frames(array)
            elif draw(
                st.booleans()
            ):  # as some origins have them: other dtypes, values that are not contiguous
                array = np.asfortranarray(array) if draw(st.booleans()) else array.astype(np.float64)
            steps[key] = array
        steps["is_terminal",] = np.arange(length) == (length - 1 if draw(st.booleans()) else length)
        made.append(Episode(steps, length, f"record {number}", missing=lacking))
    return made


def assert_is(batch: Any, wanted: reference.Columns) -> None:
    found = unnest(batch)
    assert sorted(found) == sorted(wanted)
    for key, column in wanted.items():
        if isinstance(column, list):
            assert found[key].tolist() == column, key
            continue
        array = found[key].numpy()
        assert (array.dtype, array.shape) == (column.dtype, column.shape), key
        assert np.array_equal(array, column, equal_nan=array.dtype.kind == "f"), key
        assert found[key].is_contiguous(), key
        assert found[key].untyped_storage().nbytes() == found[key].nbytes, key


@pytest.mark.parametrize("threads", [0, 2])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_batch_is_what_single_columns_make(threads: int, data: st.DataObject) -> None:
    fields = FIELDS | (REWARD if data.draw(st.booleans()) else {})
    made = data.draw(episodes(fields))
    count = data.draw(st.integers(1, 4))
    length = data.draw(st.sampled_from([None, 1, 3, 4]))
    pad = None if length is None else data.draw(st.sampled_from([None, 0, 3]))
    slicing = Slicing(count, None, False, pad)
    dataset = OpenXExperienceReplay(
        "memory",
        None if length is None else count * length,
        source=MemorySource([made[:3], made[3:]] if len(made) > 3 else [made], fields),
        num_slices=count,
        strict_length=False,
        pad=pad,
        shuffle=data.draw(st.booleans()),
        num_workers=threads,
        prefetch=data.draw(st.integers(0, 2)),
        generator=torch.Generator().manual_seed(data.draw(st.integers(0, 9))),
    )
    leaves = dataset.sampler.leaves  # type: ignore[attr-defined]
    batches, kept = [], []
    for batch in dataset:
        kept.append(batch)  # all are held: none may be written over
        batches.append(unnest(batch.clone()))
    seen = []
    for batch, copied in zip(kept, batches, strict=True):
        step, number = batch["step"], batch["episode"]
        begins = [0, *(k for k in range(1, len(step)) if number[k] != number[k - 1]), len(step)]
        slices, lacking = [], []
        for begin, end in pairwise(begins):
            record = int(number[begin])
            seen.append(record)
            real = int((step[begin:end] >= 0).sum())
            slices.append(
                reference.slice_of(
                    made[record],
                    leaves,
                    record,
                    int(step[begin]),
                    real,
                    wanted=end - begin,
                    pad=slicing.pad,
                )
            )
            steps = made[record].length
            assert real == (steps if length is None else min(steps, length))
            assert end - begin == (length if pad is not None else real)
            lacking.append(
                frozenset(leaf.key for leaf in leaves.values() if leaf.source in made[record].missing)
            )
        assert len(slices) <= count
        assert_is(batch, reference.joined(slices, lacking))
        # Each entry of each batch is memory of its own: what is written to one is seen nowhere else.
        for key, entry in unnest(batch).items():
            if isinstance(entry, torch.Tensor):
                assert torch.equal(entry, copied[key]), key
                entry.fill_(1)
    assert sorted(seen) == list(range(len(made)))
    dataset.close()


def test_fields_of_another_length_than_the_episode_are_an_error() -> None:
    fields: dict[Key, FieldSpec] = {("action",): FieldSpec("tensor", (2,), np.dtype("float32"))}
    cutter = Cutter(ted_leaves(fields), "arm", 0, Slicing())
    short = Episode({("action",): np.zeros((3, 2), np.float32)}, 4, "record 0")
    with pytest.raises(
        DataFormatError, match=r"record 0. has 4 steps, and fields of other lengths: .'action': 3"
    ):
        cutter.cut(Pick(short, 0, (0, 0), 0, (), 0, 0, 0), None)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["", "a", "b", "put the cup down"]), min_size=1, max_size=20))
def test_texts_are_those_given_and_a_change_of_one_entry_changes_no_other_batch(strings: list[str]) -> None:
    made, other = texts(strings), texts(strings)
    assert made.tolist() == strings
    assert made.batch_size == (len(strings),)
    assert not {id(value) for value in made.tensordicts} & {id(value) for value in other.tensordicts}


def test_another_release_of_tensordict_gives_the_same_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    made = texts(["a", "b", "a"])
    monkeypatch.setattr(_tensordict, "_flat_data", None)
    monkeypatch.setattr(_tensordict, "_flat", None)
    other = texts(["a", "b", "a"])
    assert made.tolist() == other.tolist() == ["a", "b", "a"]
    for one, two in zip(made.tensordicts, other.tensordicts, strict=True):
        assert (type(one), one.batch_size, one.device, one.data) == (
            type(two),
            two.batch_size,
            two.device,
            two.data,
        )
