from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import NonTensorStack, TensorDict, lazy_stack

from replaybank.trajectories.split import split_trajectories


def batch(**entries: Any) -> TensorDict:
    return TensorDict({"x": torch.arange(1, 7), "y": torch.ones(6, 2), **entries}, batch_size=[6])


def bools(*places: int, item: tuple[int, ...] = (1,)) -> torch.Tensor:
    value = torch.zeros(6, *item, dtype=torch.bool)
    value[list(places)] = True
    return value


@pytest.mark.parametrize("item", [(), (1,)])
def test_rows_are_trajectories_and_what_is_missing_is_zero(item: tuple[int, ...]) -> None:
    td = batch(next={"done": bools(1, 4, item=item), "r": torch.ones(6, 1)})
    rows = split_trajectories(td)
    assert rows.batch_size == torch.Size([3, 3])
    assert rows["x"].tolist() == [[1, 2, 0], [3, 4, 5], [6, 0, 0]]
    assert rows["mask"].tolist() == [[True, True, False], [True, True, True], [True, False, False]]
    assert rows["traj_ids"].tolist() == [[0, 0, 0], [1, 1, 1], [2, 0, 0]]
    assert rows["next", "r"].squeeze(-1).tolist() == [[1, 1, 0], [1, 1, 1], [1, 0, 0]]
    assert rows["y"].sum() == 12
    assert set(td.keys()) == {"x", "y", "next"}
    assert td["x"].tolist() == [1, 2, 3, 4, 5, 6]


def test_truncated_or_done_ends_a_trajectory_by_default() -> None:
    rows = split_trajectories(batch(next={"done": bools(0), "truncated": bools(3)}))
    assert rows["x"].tolist() == [[1, 0, 0], [2, 3, 4], [5, 6, 0]]


def test_two_slices_of_one_episode_side_by_side_are_two_rows() -> None:  # C41
    td = batch(episode=torch.zeros(6, dtype=torch.int64), next={"done": bools(), "truncated": bools(2, 5)})
    assert split_trajectories(td, done_key="truncated")["x"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert split_trajectories(td, trajectory_key="episode")["x"].tolist() == [[1, 2, 3, 4, 5, 6]]


def test_the_done_key_is_looked_up_under_next_and_then_at_the_root() -> None:
    assert len(split_trajectories(batch(done=bools(0, 1), next={"done": bools(2)}))) == 2
    assert len(split_trajectories(batch(stop=bools(0, 1), next={"done": bools(2)}), done_key="stop")) == 3


@pytest.mark.parametrize("item", [(), (1,), (2,)])
def test_a_trajectory_key_splits_by_change_of_value_and_stays(item: tuple[int, ...]) -> None:
    ids = torch.tensor([7, 7, 3, 3, 3, 7]).reshape(6, *[1 for _ in item]).expand(6, *item)
    rows = split_trajectories(batch(info={"id": ids}), trajectory_key=("info", "id"))
    assert rows["x"].tolist() == [[1, 2, 0], [3, 4, 5], [6, 0, 0]]
    assert rows["info", "mask"].sum() == 6
    assert rows["info", "id"][1].flatten()[0] == 3
    assert "traj_ids" not in rows.keys(True)


def test_trajectory_numbers_of_a_collector_are_used_and_the_mask_lies_beside_them() -> None:
    ids = torch.tensor([0, 0, 1, 1, 1, 1])
    rows = split_trajectories(batch(collector={"traj_ids": ids}, next={"done": bools(0)}))
    assert rows["collector", "mask"].tolist() == [[True, True, False, False], [True] * 4]
    rows = split_trajectories(batch(meta={"traj_ids": ids}), prefix="meta")
    assert rows["meta", "mask"].shape == (2, 4)


def test_rows_of_a_batch_are_split_on_their_own() -> None:
    td = TensorDict(
        {"x": torch.arange(1, 7).view(2, 3), "done": torch.zeros(2, 3, 1, dtype=torch.bool)}, [2, 3]
    )
    td["done"][0, 0] = True
    assert split_trajectories(td)["x"].tolist() == [[1, 0, 0], [2, 3, 0], [4, 5, 6]]


def test_nested_rows_are_as_long_as_their_trajectories() -> None:
    rows = split_trajectories(batch(next={"done": bools(1, 4)}), as_nested=True)
    assert len(rows) == 3
    assert [row.tolist() for row in rows["x"].unbind()] == [[1, 2], [3, 4, 5], [6]]
    assert [row.shape[0] for row in rows["next", "done"].unbind()] == [2, 3, 1]
    assert "mask" not in rows.keys(True)


def test_entries_that_are_no_tensors_come_along() -> None:
    words = NonTensorStack(*"abcdef")
    rows = split_trajectories(batch(words=words, next={"done": bools(1)}))
    assert rows["words"] == [["a", "b", "b", "b"], ["c", "d", "e", "f"]]


def test_a_lazy_stack_is_split_like_any_other_batch() -> None:
    steps = [TensorDict({"x": torch.tensor(k), "done": torch.tensor([k == 1])}, []) for k in range(3)]
    assert split_trajectories(lazy_stack(steps))["x"].tolist() == [[0, 1], [2, 0]]


def test_nothing_to_go_by_is_an_error_that_names_the_keys() -> None:
    with pytest.raises(KeyError, match=r"truncated.*done.*the keys are \['x', 'y'\]"):
        split_trajectories(batch())
    with pytest.raises(KeyError, match="episod"):
        split_trajectories(batch(next={"done": bools(1)}), trajectory_key="episod")


def test_a_missing_trajectory_key_falls_back_to_a_named_done_key() -> None:
    rows = split_trajectories(batch(next={"done": bools(1)}), trajectory_key="id", done_key="done")
    assert rows["id"].tolist() == [[0, 0, 0, 0], [1, 1, 1, 1]]


@pytest.mark.parametrize("shape", [[], [0]])
def test_a_batch_without_steps_is_refused(shape: list[int]) -> None:
    with pytest.raises(ValueError, match="no steps"):
        split_trajectories(TensorDict({}, shape))


MASK = torch.tensor([True, True, False, True, True, True])


@pytest.mark.parametrize("mask", [MASK, MASK[:, None]])
@pytest.mark.parametrize("done", [(), (1,), (1, 5)])  # filled steps are never done; ends may be unmarked too
def test_filled_steps_are_of_no_trajectory_and_keep_apart_what_they_lie_between(
    mask: torch.Tensor, done: tuple[int, ...]
) -> None:
    td = batch(mask=mask, next={"done": bools(*done)}, text=NonTensorStack(*"ab-def"), word="same")
    rows = split_trajectories(td)
    assert rows["x"].tolist() == [[1, 2, 0], [4, 5, 6]]
    assert rows["mask"].tolist() == [[True, True, False], [True, True, True]]
    assert rows["text"] == [["a", "b", "b"], ["d", "e", "f"]]
    assert rows["word"] == "same"
    assert rows["traj_ids"].tolist() == [[0, 0, 0], [1, 1, 1]]
    assert td["mask"] is mask
    again = split_trajectories(rows)
    assert (again == rows).all()
    assert again["text"] == rows["text"]
    nested = split_trajectories(td.exclude("text", "word", "mask").set("mask", mask), as_nested=True)
    assert [row.tolist() for row in nested["x"].unbind()] == [[1, 2], [4, 5, 6]]


def test_filled_steps_of_an_identity_are_left_out_too() -> None:
    td = batch(mask=MASK, info={"id": torch.tensor([4, 4, 4, 4, 9, 9])})
    assert split_trajectories(td, trajectory_key=("info", "id"))["x"].tolist() == [[1, 2], [4, 0], [5, 6]]


@pytest.mark.parametrize("mask", [MASK.float(), MASK[:, None].expand(6, 3), TensorDict({"y": MASK}, [6])])
def test_a_mask_that_is_no_bool_a_step_is_data(mask: Any) -> None:
    assert split_trajectories(batch(mask=mask, next={"done": bools(1)}))["x"].shape == (2, 4)


def test_a_batch_of_filled_steps_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="says that all of them are filled in"):
        split_trajectories(batch(mask=torch.zeros(6, dtype=torch.bool), next={"done": bools(1)}))


def test_texts_lie_in_rows_wherever_they_are() -> None:
    td = batch(deep={"text": NonTensorStack(*"abcdef")}, next={"done": bools(0)})
    rows = split_trajectories(td)
    assert rows["deep", "text"] == [["a"] * 5, ["b", "c", "d", "e", "f"]]
    assert rows.get(("deep", "text")).batch_size == (2, 5)
    square = TensorDict({"done": torch.zeros(2, 3, 1, dtype=torch.bool)}, [2, 3])
    square["text"] = NonTensorStack(NonTensorStack(*"abc"), NonTensorStack(*"def"))
    assert split_trajectories(square)["text"] == [["a", "b", "c"], ["d", "e", "f"]]


def by_hand(td: TensorDict, ends: torch.Tensor) -> list[TensorDict]:
    """The trajectories, one by one."""
    stops = [int(stop) + 1 for stop in ends.nonzero().squeeze(-1)]
    return [td[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("as_nested", [False, True])
def test_every_leaf_of_any_batch_comes_as_if_cut_by_hand(seed: int, as_nested: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows, steps = 1 + seed % 3, 11
    done = torch.rand(rows, steps, 1, generator=generator) < (0.0 if seed == 7 else 0.3)
    deep = TensorDict({"z": torch.arange(rows * steps * 6).reshape(rows, steps, 2, 3)}, [rows, steps, 2])
    images = torch.randint(256, (rows, 4, steps, 2), dtype=torch.uint8, generator=generator).transpose(1, 2)
    small = torch.rand(rows, steps, generator=generator)
    td = TensorDict(
        {
            "images": images,
            "next": {"done": done, "reward": torch.rand(rows, steps, 1, dtype=torch.float64)},
            "deep": deep,
            "half": small.to(torch.bfloat16),
            "whole": (100 * small).to(torch.int64).to(torch.uint16),
            "none": torch.zeros(rows, steps, 0),
        },
        [rows, steps],
    )
    before = td.clone()
    ends = done.squeeze(-1).clone()
    ends[:, -1] = True
    if as_nested:
        td = td.exclude("none", "whole")  # which torch cannot nest
    found = split_trajectories(td, as_nested=as_nested)
    parts = by_hand(td.reshape(-1), ends.reshape(-1))
    assert found.shape[0] == len(parts)
    for key in td.keys(True, True):
        leaves = found[key].unbind()
        for leaf, part in zip(leaves, parts, strict=True):
            count, wanted = len(part), part[key]
            assert torch.equal(leaf[:count].to(torch.float64), wanted.to(torch.float64))
            assert leaf.dtype is wanted.dtype
            assert as_nested or not leaf[count:].to(torch.float64).any()
    if not as_nested:
        assert found["deep"].batch_size == (*found.batch_size, 2)
        assert [int(length) for length in found["mask"].sum(1)] == [len(part) for part in parts]
        for key in found.keys(True, True):
            found[key].view(torch.uint8)[:] = 1
    for key in td.keys(True, True):
        assert torch.equal(td[key].view(torch.uint8), before[key].view(torch.uint8))


def test_gradients_flow_through_rows() -> None:
    x = torch.ones(6, requires_grad=True)
    rows = split_trajectories(TensorDict({"x": x, "done": bools(1, 4)}, [6]))
    (rows["x"] * torch.arange(1.0, 4.0)).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1, 2, 1, 2, 3, 1]


def test_names_of_dimensions_do_not_hinder() -> None:
    td = TensorDict({"x": torch.arange(6), "done": bools(1, 4)}, [6], names=["time"])
    assert split_trajectories(td)["x"].tolist() == [[0, 1, 0], [2, 3, 4], [5, 0, 0]]


def test_rows_of_equal_length_have_memory_and_texts_of_their_own() -> None:
    td = batch(next={"done": bools(2, 5)}, text=NonTensorStack(*"abcdef"))
    rows = split_trajectories(td)
    assert rows["x"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert rows["mask"].all()
    assert rows["traj_ids"].tolist() == [[0, 0, 0], [1, 1, 1]]
    assert rows["text"] == [["a", "b", "c"], ["d", "e", "f"]]
    rows["x"].zero_()
    rows["next", "done"].zero_()
    assert td["x"].tolist() == [1, 2, 3, 4, 5, 6]
    assert td["next", "done"].squeeze(-1).tolist() == [False, False, True, False, False, True]
