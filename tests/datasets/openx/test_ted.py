"""The TED layout of an episode: which entry goes where, and what the record overrules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from replaybank.datasets.openx.sources.base import Episode, FieldSpec, Key
from replaybank.datasets.openx.ted import decode_frames, settle_shapes, ted_leaves, to_ted
from replaybank.errors import DataFormatError, UnsupportedFeatureError

FLAG = FieldSpec("tensor", (), np.dtype(bool))
SCALAR = FieldSpec("tensor", (), np.dtype("float32"))
VECTOR = FieldSpec("tensor", (2,), np.dtype("float32"))
TEXT = FieldSpec("text", (), None)
CAMERA = FieldSpec("image", (4, 6, 3), np.dtype("uint8"))

FIELDS: dict[Key, FieldSpec] = {
    ("observation", "state"): VECTOR,
    ("observation", "image_0"): CAMERA,
    ("action", "world_vector"): VECTOR,
    ("reward",): SCALAR,
    ("discount",): SCALAR,
    ("is_first",): FLAG,
    ("is_last",): FLAG,
    ("is_terminal",): FLAG,
    ("language_instruction",): TEXT,
}


class Frames:
    """A camera whose frames are known without a codec."""

    def __init__(self, frames: npt.NDArray[Any]) -> None:
        self.frames = frames

    def __len__(self) -> int:
        return len(self.frames)

    def encoded(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        return [frame.tobytes() for frame in self.frames[start:stop]]

    def decode(self, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        return self.frames[start:stop]


def steps(length: int, **flags: list[bool]) -> dict[Key, Any]:
    numbers = np.arange(length, dtype=np.float32)
    columns: dict[Key, Any] = {
        ("observation", "state"): np.stack([numbers, -numbers], axis=1),
        ("observation", "image_0"): Frames(np.arange(length * 72, dtype=np.uint8).reshape(length, 4, 6, 3)),
        ("action", "world_vector"): np.stack([numbers, numbers], axis=1) + 0.5,
        ("reward",): numbers * 10,
        ("discount",): np.ones(length, np.float32),
        ("is_first",): np.arange(length) == 0,
        ("is_last",): np.arange(length) == length - 1,
        ("is_terminal",): np.zeros(length, bool),
        ("language_instruction",): [f"word {i}" for i in range(length)],
    }
    for name, values in flags.items():
        columns[(name,)] = np.array(values)
    return columns


def convert(columns: Mapping[Key, Any], number: int = 3, fields: Mapping[Key, FieldSpec] = FIELDS) -> Any:
    length = len(next(iter(columns.values())))
    return to_ted(Episode(columns, length, "shard 0, record 3"), ted_leaves(fields), number, "arm")


def test_every_entry_of_a_step_has_its_place() -> None:
    ted = convert(steps(3))
    assert set(ted.columns) == set(ted_leaves(FIELDS))
    assert np.array_equal(ted.columns[("next", "reward")], [[0], [10], [20]])
    assert np.array_equal(ted.columns[("next", "done")], [[False], [False], [True]])
    assert np.array_equal(ted.columns[("is_init",)], [True, False, False])
    assert np.array_equal(ted.columns[("episode",)], [3, 3, 3])
    assert np.array_equal(ted.columns[("step",)], [0, 1, 2])
    assert ted.columns[("episode",)].dtype == np.int32
    assert ted.columns[("language_instruction",)] == ["word 0", "word 1", "word 2"]
    assert np.array_equal(ted.columns[("action", "world_vector")][:, 0], [0.5, 1.5, 2.5])
    assert not {("is_first",), ("is_last",), ("is_terminal",), ("reward",)} & set(ted.columns)


def test_frames_are_channels_first_and_otherwise_untouched() -> None:
    columns = steps(2)
    image = decode_frames(convert(columns).columns[("observation", "image_0")], 1, 2)
    assert image.shape == (1, 3, 4, 6)
    assert np.array_equal(image[0, 2], columns[("observation", "image_0")].frames[1, :, :, 2])


UNSET, EARLY = "is_last is not set on the last step of an episode", "is_last before the last step"


@pytest.mark.parametrize(
    ("is_last", "faults"),
    [
        ([False] * 4, {UNSET: 1}),
        ([True, True, False, False], {UNSET: 1, EARLY: 2}),
        ([False, True, False, True], {EARLY: 1}),
        ([False, False, False, True], {}),
        ([[False], [False], [False], [True]], {}),
    ],
)
def test_the_record_is_the_boundary_and_what_is_last_says_otherwise_is_counted(
    is_last: Any, faults: dict[str, int]
) -> None:
    ted = convert(steps(4, is_last=is_last))
    assert ted.columns[("next", "done")].ravel().tolist() == [False, False, False, True]
    assert ted.faults == faults


def test_an_is_last_of_its_own_kind_is_data_and_no_fault() -> None:
    fields = {**FIELDS, ("is_last",): FieldSpec("tensor", (3,), np.dtype(bool))}
    ted = convert({**steps(4), ("is_last",): np.zeros((4, 3), bool)}, fields=fields)
    assert ted.columns["is_last",].shape == (4, 3)
    assert ted.faults == {}


def test_an_end_that_is_not_terminal_is_a_truncation() -> None:
    ended = convert(steps(2, is_terminal=[False, True])).columns
    cut = convert(steps(2)).columns
    assert ended[("next", "terminated")].ravel().tolist() == [False, True]
    assert ended[("next", "truncated")].ravel().tolist() == [False, False]
    assert cut[("next", "terminated")].ravel().tolist() == [False, False]
    assert cut[("next", "truncated")].ravel().tolist() == [False, True]


def test_a_terminal_before_the_last_step_is_a_counted_fault_and_ignored() -> None:
    ted = convert(steps(4, is_terminal=[True, False, True, False]))
    assert not ted.columns[("next", "terminated")].any()
    assert ted.columns[("next", "truncated")].ravel().tolist() == [False, False, False, True]
    assert ted.faults == {"is_terminal before the last step": 2}


def test_a_first_flag_in_mid_episode_is_a_counted_fault_and_ignored() -> None:
    ted = convert(steps(3, is_first=[True, True, False]))
    assert ted.columns[("is_init",)].tolist() == [True, False, False]
    assert ted.faults == {"is_first after the first step": 1}


def test_steps_without_reward_terminal_or_first_get_zeros() -> None:
    fields: dict[Key, FieldSpec] = {("action",): VECTOR}
    ted = convert({("action",): np.ones((2, 2), np.float32)}, fields=fields)
    assert ted.columns[("next", "reward")].tolist() == [[0.0], [0.0]]
    assert ted.columns[("next", "truncated")].ravel().tolist() == [False, True]
    assert ted.missing == frozenset()


def test_what_an_episode_lacks_is_zero_and_named() -> None:
    columns = steps(2)
    for key in (("observation", "state"), ("observation", "image_0"), ("language_instruction",), ("reward",)):
        del columns[key]
    ted = convert(columns)
    assert ted.missing == {
        ("observation", "state"),
        ("observation", "image_0"),
        ("language_instruction",),
        ("next", "reward"),
    }
    assert ted.columns[("observation", "image_0")].shape == (2, 3, 4, 6)
    assert not ted.columns[("observation", "image_0")].any()
    assert ted.columns[("language_instruction",)] == ["", ""]
    assert ted.columns[("next", "reward")].shape == (2, 1)


def test_an_episode_of_one_step_begins_and_ends_at_once() -> None:
    ted = convert(steps(1, is_terminal=[True]))
    assert ted.columns[("is_init",)].tolist() == [True]
    assert ted.columns[("next", "done")].tolist() == [[True]]
    assert ted.columns[("next", "terminated")].tolist() == [[True]]


def test_a_differing_shape_is_an_error_that_names_everything() -> None:
    columns = steps(2)
    columns[("observation", "state")] = np.zeros((2, 5), np.float32)
    with pytest.raises(
        DataFormatError,
        match=r"^arm: episode 3 \(shard 0, record 3\): observation/state has shape \(5,\), .* has \(2,\)$",
    ):
        convert(columns)


def test_an_entry_that_would_hide_one_of_ours_gets_another_name() -> None:
    leaves = ted_leaves({("action",): VECTOR, ("done",): FLAG, ("step", "index"): FLAG})
    assert leaves[("source_done",)].source == ("done",)
    assert leaves[("source_step", "index")].source == ("step", "index")
    assert leaves[("step",)].source is None


def test_names_that_give_way_never_fall_together() -> None:
    fields: dict[Key, FieldSpec] = {("action",): VECTOR, ("done",): FLAG, ("source_done",): SCALAR}
    leaves = ted_leaves(fields)
    assert leaves[("source_source_done",)].source == ("done",)
    assert leaves[("source_done",)].source == ("source_done",)
    turned = ted_leaves(dict(reversed(fields.items())))
    assert turned == {key: leaves[key] for key in turned}


def test_flags_and_rewards_that_are_none_are_data_like_any_other() -> None:
    fields = {**FIELDS, ("is_terminal",): VECTOR, ("is_first",): CAMERA, ("reward",): TEXT}
    leaves = ted_leaves(fields)
    for name in ("is_terminal", "is_first", "reward"):
        assert leaves[(name,)].source == (name,)
    columns = steps(2)
    columns[("is_terminal",)] = np.ones((2, 2), np.float32)
    columns[("is_first",)] = columns[("observation", "image_0")]
    columns[("reward",)] = ["good", "better"]
    ted = convert(columns, fields=fields)
    assert ted.columns[("reward",)] == ["good", "better"]
    assert ted.columns[("next", "reward")].tolist() == [[0.0], [0.0]]
    assert not ted.columns[("next", "terminated")].any()


def test_an_image_without_three_dimensions_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedFeatureError, match=r"observation/depth: .* \(4, 6\)"):
        ted_leaves({("observation", "depth"): FieldSpec("image", (4, 6), np.dtype("uint8"))})


def test_names_with_slashes_stay_one_name() -> None:
    key = ("observation", "clip_function_input/base_pose_tool_reached")
    assert ted_leaves({key: VECTOR})[key].key == key


def test_a_dataset_without_observation_and_action_is_refused() -> None:
    with pytest.raises(UnsupportedFeatureError, match="neither an 'observation' nor an 'action'"):
        ted_leaves({("reward",): SCALAR})


def test_unknown_dimensions_are_taken_from_an_episode() -> None:
    fields = {**FIELDS, ("observation", "image_0"): FieldSpec("image", (-1, -1, 3), np.dtype("uint8"))}
    leaves = settle_shapes(ted_leaves(fields), Episode(steps(2), 2, "shard 0, record 0"))
    assert leaves[("observation", "image_0")].shape == (3, 4, 6)


def test_a_shape_that_an_episode_does_not_show_is_left_for_another_one() -> None:
    fields = {**FIELDS, ("observation", "image_0"): FieldSpec("image", (-1, -1, 3), np.dtype("uint8"))}
    columns = steps(2)
    del columns[("observation", "image_0")]
    leaves = settle_shapes(ted_leaves(fields), Episode(columns, 2, "shard 0, record 0"))
    assert leaves[("observation", "image_0")].shape == (3, -1, -1)


def test_what_else_a_step_led_to_stands_beside_our_entries_under_next() -> None:
    fields: dict[Key, FieldSpec] = {
        ("action",): VECTOR,
        ("next", "success"): FLAG,
        ("next", "reward"): SCALAR,
        ("next", "observation", "state"): VECTOR,
        ("next",): SCALAR,
    }
    leaves = ted_leaves(fields)
    assert leaves[("next", "success")].source == ("next", "success")
    assert leaves[("source_next", "reward")].source == ("next", "reward")
    assert leaves[("source_next", "observation", "state")].source == ("next", "observation", "state")
    assert leaves[("next", "reward")].source is None
