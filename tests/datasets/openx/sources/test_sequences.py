"""What a step may hold beside single numbers, texts and frames, as TFDS stores it."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replaybank import OpenXExperienceReplay
from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.corrections import corrected
from replaybank.datasets.openx.sources.base import Episode, FieldSpec, Key
from replaybank.datasets.openx.sources.code_points import texts_of
from replaybank.datasets.openx.sources.ragged import check_lengths, nested, padded
from replaybank.datasets.openx.sources.rlds import RLDSSource
from replaybank.datasets.openx.sources.rlds_writer import RLDSWriter, Values
from replaybank.errors import DataFormatError
from rlds_files import CLASSES, action, dict_of, ints, lists, sequence, tensor, write


def read(folder: Path) -> list[Episode]:
    source = RLDSSource(folder)
    return [episode for shard in source.shards() for episode in source.episodes(shard)]


# ------------------------------------------------------------------------------------------ numbers in lists


def test_lists_of_differing_length_are_padded_to_the_longest_and_their_lengths_told(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        {"seen": sequence(tensor([], "float32"))},
        {**action(3), **lists("seen", [1, 2], [], [3])},
        {**action(1), **lists("seen", [4])},
        {**action(2), **lists("seen", [], [])},
        {**action(2), "steps/seen/ragged_row_lengths_0": ints(0, 0)},
        action(1),
    )
    source = RLDSSource(folder)
    assert source.fields["seen",] == FieldSpec("tensor", (-1,), np.dtype("float32"), ragged=1)
    assert source.fields["seen_length",] == FieldSpec("tensor", (), np.dtype("int32"))
    first, second, empty, without_values, absent = read(folder)
    np.testing.assert_array_equal(np.asarray(first.steps["seen",]), [[1, 2], [0, 0], [3, 0]])
    np.testing.assert_array_equal(np.asarray(first.steps["seen_length",]), [2, 0, 1])
    assert np.asarray(first.steps["seen",]).dtype == np.float32
    assert np.asarray(second.steps["seen",]).tolist() == [[4]]
    assert np.asarray(empty.steps["seen",]).shape == (2, 0)
    assert np.asarray(without_values.steps["seen",]).shape == (2, 0)
    assert absent.missing == {("seen",), ("seen_length",)}


def test_lists_of_declared_length_are_arrays_whichever_way_they_are_stored(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32)
    plain, ragged = read(
        write(
            tmp_path,
            {"pairs": sequence(tensor([3], "float32"), 2)},
            {**action(2), "steps/pairs": values},
            {
                **action(2),
                "steps/pairs/ragged_flat_values": values,
                "steps/pairs/ragged_row_lengths_0": ints(2, 2),
            },
        )
    )
    for episode in (plain, ragged):
        np.testing.assert_array_equal(np.asarray(episode.steps["pairs",]), values.reshape(2, 2, 3))
        assert episode.steps.keys() == {("action",), ("pairs",)}


def test_lists_of_lists_have_a_length_for_each_level(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        {"points": sequence(sequence(tensor([2], "int16")))},
        {
            **action(3),
            "steps/points/ragged_flat_values": np.arange(1, 13),
            "steps/points/ragged_row_lengths_0": ints(2, 0, 1),
            "steps/points/ragged_row_lengths_1": ints(1, 3, 2),
        },
    )
    assert RLDSSource(folder).fields["points_length_1",].shape == (-1,)
    (episode,) = read(folder)
    expected = np.zeros((3, 2, 3, 2), np.int16)
    expected[0, 0, 0] = [1, 2]
    expected[0, 1] = [[3, 4], [5, 6], [7, 8]]
    expected[2, 0, :2] = [[9, 10], [11, 12]]
    np.testing.assert_array_equal(np.asarray(episode.steps["points",]), expected)
    np.testing.assert_array_equal(np.asarray(episode.steps["points_length",]), [2, 0, 1])
    np.testing.assert_array_equal(np.asarray(episode.steps["points_length_1",]), [[1, 3], [0, 0], [2, 0]])


def test_dicts_in_lists_and_encoded_arrays_in_lists(tmp_path: Path) -> None:
    arrays = [np.array(pair, "<i2").tobytes() for pair in ([1, 2], [3, 4], [5, 6])]
    (episode,) = read(
        write(
            tmp_path,
            {"seen": sequence(dict_of(id=tensor([], "int64"), box=tensor([2], "int16", "zlib")))},
            {
                **action(2),
                **lists("seen/id", [7], [8, 9], dtype="int64"),
                "steps/seen/box/ragged_flat_values": [zlib.compress(raw) for raw in arrays],
                "steps/seen/box/ragged_row_lengths_0": ints(1, 2),
            },
        )
    )
    assert np.asarray(episode.steps["seen", "id"]).tolist() == [[7, 0], [8, 9]]
    assert np.asarray(episode.steps["seen", "box"]).tolist() == [[[1, 2], [0, 0]], [[3, 4], [5, 6]]]
    assert np.asarray(episode.steps["seen", "box_length"]).tolist() == [1, 2]


def test_a_length_never_takes_the_name_of_another_field(tmp_path: Path) -> None:
    steps = {"x": sequence(tensor([], "float32")), "x_length": tensor([], "float32")}
    folder = write(
        tmp_path, steps, {**action(1), **lists("x", [1]), "steps/x_length": np.array([0.5], np.float32)}
    )
    (episode,) = read(folder)
    assert np.asarray(episode.steps["x_length",]).tolist() == [0.5]
    assert np.asarray(episode.steps["x_length_",]).tolist() == [1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ragged_row_lengths_0": ints(2, 2)}, "lists of level 0 have 4 elements in all, and 3 are there"),
        ({"ragged_row_lengths_0": ints(-1, 4)}, "list 0 of level 0 has length -1, expected 0 to 3"),
        ({"ragged_row_lengths_0": ints(2**62, 2**62)}, "list 0 of level 0 has length 4611686018427387904"),
        ({"ragged_row_lengths_0": ints(3)}, "field 'x' has 1 steps, field 'action' has 2"),
        ({"ragged_row_lengths_0": ints()}, "has values and no lengths of its lists"),
        ({"ragged_flat_values": ints(1, 2, 3)}, "declared as float32 and stored as ints"),
    ],
)
def test_lengths_that_do_not_fit_are_an_error(tmp_path: Path, change: Mapping[str, Any], words: str) -> None:
    stored = {**action(2), **lists("x", [1, 2], [3]), **{f"steps/x/{key}": v for key, v in change.items()}}
    folder = write(tmp_path, {"x": sequence(tensor([], "float32"))}, stored)
    with pytest.raises(DataFormatError, match=rf"toy: .*record 0: .*{words}"):
        read(folder)


def test_padding_out_of_all_proportion_is_an_error(tmp_path: Path) -> None:
    steps = 100_000
    stored = {
        **action(steps),
        "steps/x/ragged_flat_values": np.zeros(steps, bool),
        "steps/x/ragged_row_lengths_0": np.r_[steps, np.zeros(steps - 1, np.int64)],
    }
    folder = write(tmp_path, {"x": sequence(tensor([], "bool"))}, stored)
    with pytest.raises(DataFormatError, match=r"field 'x': padded .* shape \(100000, 100000\)"):
        read(folder)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.lists(st.integers(1, 99), max_size=3), max_size=3), min_size=1, max_size=4))
def test_padding_undone_by_the_lengths_gives_the_lists(rows: list[list[list[int]]]) -> None:
    outer, inner = ints(*map(len, rows)), ints(*(len(x) for row in rows for x in row))
    flat = ints(*(x for row in rows for part in row for x in part))
    check_lengths([outer, inner], [-1, -1], len(flat))
    array, (first, second) = padded(flat, [outer, inner], [-1, -1], 100)
    found = [[array[t, i, : second[t, i]].tolist() for i in range(first[t])] for t in range(len(rows))]
    assert found == rows == nested(flat.tolist(), [outer, inner])
    assert int((array != 0).sum()) == len(flat)


# -------------------------------------------------------------------------------- datasets, not only episodes

GROWING = ({**action(2), **lists("x", [1], [2])}, action(1), {**action(2), **lists("x", [3, 4, 5], [])})


def test_conversion_pads_to_the_longest_list_of_all_episodes(tmp_path: Path) -> None:
    folder = write(tmp_path / "rlds", {"x": sequence(tensor([], "float32"))}, *GROWING)
    convert(folder, tmp_path / "done")
    data = OpenXExperienceReplay("done", root=tmp_path, streaming=False)[:]
    assert data["x"].tolist() == [[1, 0, 0], [2, 0, 0], [0, 0, 0], [3, 4, 5], [0, 0, 0]]
    assert data["x_length"].tolist() == [1, 1, 0, 3, 0]
    assert data["mask", "x"].reshape(-1).tolist() == [True, True, False, True, True]


def test_a_field_of_which_all_lists_are_empty_can_be_converted(tmp_path: Path) -> None:
    folder = write(tmp_path / "rlds", {"x": sequence(tensor([], "float32"))}, action(2), action(1))
    convert(folder, tmp_path / "done")
    data = OpenXExperienceReplay("done", root=tmp_path, streaming=False)[:]
    assert data["x"].shape == (3, 0)
    assert data["x_length"].tolist() == [0, 0, 0]


def test_streaming_takes_the_width_of_the_first_episode_and_says_what_is_wider(tmp_path: Path) -> None:
    x = {"x": sequence(tensor([], "float32"))}
    narrower = write(
        tmp_path / "a", x, {**action(2), **lists("x", [1, 2], [])}, {**action(1), **lists("x", [3])}
    )
    with closing(OpenXExperienceReplay("toy", source=narrower, streaming=True, shuffle=False)) as stream:
        first, second = stream
    assert first["x"].tolist() == [[1, 2], [0, 0]]
    assert second["x"].tolist() == [[3, 0]]
    assert second["x_length"].tolist() == [1]
    wider = write(tmp_path / "b", x, *GROWING)
    with (
        closing(OpenXExperienceReplay("toy", source=wider, streaming=True, shuffle=False)) as stream,
        pytest.raises(DataFormatError) as error,
    ):
        list(iter(stream))
    told = str(error.value.__cause__ or error.value)
    assert "toy: episode 2" in told
    assert "x has shape (3,), the dataset has (1,), as its first episodes have" in told


# --------------------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize("feature", [tensor([2], "string"), sequence({"text": {}}, 2)])
def test_several_texts_a_step_are_as_many_entries(tmp_path: Path, feature: Any) -> None:
    folder = write(
        tmp_path / "rlds",
        {"words": feature},
        {**action(2), "steps/words": [b"pick", b"cup", b"put", b"down"]},
        action(1),
    )
    source = RLDSSource(folder)
    assert {key for key in source.fields if key[0] == "words"} == {("words", "0"), ("words", "1")}
    episode, absent = read(folder)
    assert episode.steps["words", "0"] == ["pick", "put"]
    assert episode.steps["words", "1"] == ["cup", "down"]
    assert absent.missing == {("words", "0"), ("words", "1")}
    convert(folder, tmp_path / "done")
    data = OpenXExperienceReplay("done", root=tmp_path, streaming=False)[:]
    assert data["words", "1"] == ["cup", "down", ""]


def test_texts_of_varying_number_are_one_text_that_holds_a_list(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        {"seen": sequence({"text": {}}), "said": tensor([-1], "string")},
        {
            **action(2),
            "steps/seen/ragged_flat_values": ["grün".encode(), b"b", b"c"],
            "steps/seen/ragged_row_lengths_0": ints(1, 2),
            "steps/said/shape": ints(2, 2),
            "steps/said/value": [b"1", b"2", b"3", b"4"],
        },
    )
    (episode,) = read(folder)
    assert episode.steps["seen",] == ['["grün"]', '["b", "c"]']
    assert episode.steps["said",] == ['["1", "2"]', '["3", "4"]']


def test_texts_that_are_no_whole_steps_are_an_error(tmp_path: Path) -> None:
    folder = write(tmp_path, {"w": tensor([2], "string")}, {**action(1), "steps/w": [b"a"]})
    with pytest.raises(DataFormatError, match=r"field 'w' has 1 texts, .* shape \(2,\)"):
        read(folder)


def test_text_that_was_stored_as_numbers_is_text(tmp_path: Path) -> None:
    numbers = ints(*b"hi\0\0", 103, 114, 0xFC, 110)
    episode, *_ = read(
        write(
            tmp_path,
            {"t": {"pythonClassName": CLASSES + "text_feature.Text", "text": {}}},
            {**action(2), "steps/t": numbers, "note": ints(*b"done")},
            note={"text": {}},
        )
    )
    assert episode.steps["t",] == ["hi", "grün"]
    assert episode.metadata == {("note",): "done"}
    assert texts_of(np.array([[0xC3, 0xBC, 0], [-5, 0xD800, 2**31 - 1]], np.int32)) == ["ü", "\ufffd" * 3]


def test_the_instruction_of_language_table_is_read_as_text(tmp_path: Path) -> None:
    steps = {"observation": dict_of(instruction=tensor([512], "int32"), state=tensor([], "float32"))}
    row = np.zeros((2, 512), np.int64)
    row[:, :4] = np.frombuffer("grü".encode(), np.uint8)
    stored = {
        **action(2),
        "steps/observation/instruction": row,
        "steps/observation/state": np.array([1, 2], np.float32),
    }
    source = corrected(RLDSSource(write(tmp_path, steps, stored)), "language_table")
    key: Key = ("observation", "instruction")
    assert source.fields[key] == FieldSpec("text", (), None)
    (episode,) = source.episodes(source.shards()[0])
    assert episode.steps[key] == ["grü", "grü"]


# ------------------------------------------------------------------------------ other classes, metadata


def test_boxes_are_numbers_and_what_is_optional_may_be_absent(tmp_path: Path) -> None:
    box = {"pythonClassName": CLASSES + "bounding_boxes.BBoxFeature", "boundingBox": {}}
    optional = {
        "pythonClassName": CLASSES + "optional_feature.Optional",
        "optional": {"feature": tensor([2], "int8")},
    }
    folder = write(
        tmp_path,
        {"box": box, "maybe": optional},
        {**action(1), "steps/box": np.array([0, 0.5, 1, 1], np.float32), "steps/maybe": ints(1, 2)},
        {**action(1), "steps/box": np.zeros(4, np.float32)},
    )
    there, absent = read(folder)
    assert np.asarray(there.steps["box",]).tolist() == [[0, 0.5, 1, 1]]
    assert np.asarray(there.steps["maybe",]).tolist() == [[1, 2]]
    assert absent.missing == {("maybe",)}


def test_the_names_of_classes_stand_beside_the_numbers(tmp_path: Path) -> None:
    label = {"pythonClassName": CLASSES + "class_label_feature.ClassLabel", "classLabel": {"numClasses": "2"}}
    folder = write(
        tmp_path,
        {"observation": dict_of(kind=label)},
        {**action(1), "steps/observation/kind": ints(1)},
        of=label,
    )
    (folder / "steps-observation-kind.labels.txt").write_text("cup\nplate\n")
    source = RLDSSource(folder)
    assert source.label_names == {("observation", "kind"): ("cup", "plate")}
    assert np.asarray(read(folder)[0].steps["observation", "kind"]).tolist() == [1]


def test_what_cannot_be_read_of_the_episode_is_left_out_with_a_note(tmp_path: Path) -> None:
    films = {"pythonClassName": CLASSES + "video_feature.Video", "video": {}}
    folder = write(
        tmp_path,
        {},
        {**action(1), "about/names": [b"a", b"b"], "about/id": ints(3)},
        about=dict_of(films=sequence(films), id=tensor([], "int64"), names=sequence({"text": {}})),
    )
    source = RLDSSource(folder)
    (note,) = source.notes
    assert note.startswith("left out: ")
    assert "feature 'about/films'" in note
    assert "sequences of videos are not read" in note
    assert read(folder)[0].metadata == {("about", "id"): 3, ("about", "names"): ["a", "b"]}


# ---------------------------------------------------------------------------------- arrays of unknown shape


@pytest.mark.parametrize("encoding", ["bytes", "zlib"])
def test_one_unknown_dimension_of_an_encoded_array_follows_from_its_bytes(
    tmp_path: Path, encoding: str
) -> None:
    pack = zlib.compress if encoding == "zlib" else bytes
    values = np.arange(24, dtype="<u2").reshape(2, 4, 3)
    feature = {"x": tensor([-1, 3], "uint16", encoding)}
    (episode,) = read(
        write(tmp_path / "a", feature, {**action(2), "steps/x": [pack(v.tobytes()) for v in values]})
    )
    np.testing.assert_array_equal(np.asarray(episode.steps["x",]), values)
    for bad, words in (
        ([b"1234567"], "value 0: 7 bytes are no whole number of uint16"),
        ([b"123456", b"123456123456"], "value 1: .* bytes"),
    ):
        folder = write(tmp_path / words[:7], feature, {**action(len(bad)), "steps/x": [pack(v) for v in bad]})
        with pytest.raises(DataFormatError, match=words):
            read(folder)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (ints(3, 4, 4, 3), "value 0 has shape \\(3, 4\\), value 1 has \\(4, 3\\)"),
        (ints(3, 4), "2 values of 2 dimensions, and 2 numbers"),
        (ints(-3, -4, -3, -4), "has shape \\(-3, -4\\), declared"),
        (ints(3, 5, 3, 5), "value 0: 12 bytes, .* takes 15"),
    ],
)
def test_several_unknown_dimensions_of_an_encoded_array_are_told(
    tmp_path: Path, shapes: Any, words: str
) -> None:
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    stored = {**action(2), "steps/x/value": [zlib.compress(v.tobytes()) for v in values]}
    feature = {"x": tensor([-1, -1], "uint8", "zlib")}
    (episode,) = read(write(tmp_path / "a", feature, {**stored, "steps/x/shape": ints(3, 4, 3, 4)}))
    np.testing.assert_array_equal(np.asarray(episode.steps["x",]), values)
    with pytest.raises(DataFormatError, match=words):
        read(write(tmp_path / "b", feature, {**stored, "steps/x/shape": shapes}))


# ---------------------------------------------------------------------------------------- what we write


def test_lists_and_lists_of_texts_come_back_as_they_were_written(tmp_path: Path) -> None:
    fields: dict[Key, FieldSpec] = {
        ("action",): FieldSpec("tensor", (), np.dtype("float32")),
        ("x",): FieldSpec("tensor", (-1, -1, 2), np.dtype("int16"), ragged=2),
        ("words",): FieldSpec("text", (2,), None),
    }
    with RLDSWriter(tmp_path, "lists", fields=fields) as writer:
        x = [[[[1, 2]], [[3, 4], [5, 6]]], []]
        steps: dict[Key, Values] = {("action",): np.zeros(2), ("x",): x, ("words",): [["a", "b"], ["c", "d"]]}
        writer.write(steps)
        with pytest.raises(ValueError, match=r"needs values of shape \(2,\)"):
            writer.write({**steps, ("words",): [["a"], ["b"]]})
        writer.write({**steps, ("x",): [[], []]})
    first, empty = read(tmp_path)
    expected = np.zeros((2, 2, 2, 2), np.int16)
    expected[0, 0, 0], expected[0, 1] = [1, 2], [[3, 4], [5, 6]]
    np.testing.assert_array_equal(np.asarray(first.steps["x",]), expected)
    assert np.asarray(first.steps["x_length_1",]).tolist() == [[1, 2], [0, 0]]
    assert first.steps["words", "1"] == ["b", "d"]
    assert np.asarray(empty.steps["x",]).shape == (2, 0, 0, 2)
