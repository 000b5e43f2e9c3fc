"""The hub's tar shards: every value of every episode, whatever its writer had, and nothing run."""

from __future__ import annotations

import io
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hub_shards import hub_episode, pixels, write_hub, write_tar
from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.files import read_manifest
from replaybank.datasets.openx.replay import OpenXExperienceReplay
from replaybank.datasets.openx.sources.base import Episode, FieldSpec
from replaybank.datasets.openx.sources.hub_tar import HubTarSource, is_hub_tar
from replaybank.datasets.openx.sources.images import encode_frame
from replaybank.datasets.openx.summary import summarise
from replaybank.datasets.openx.verify import verify
from replaybank.errors import CorruptRecordError, DataFormatError, UnsafePickleError, UnsupportedFeatureError

IMAGE = ("observation", "image")


def episodes(source: HubTarSource) -> list[Episode]:
    return [episode for shard in source.shards() for episode in source.episodes(shard)]


def one(tmp_path: Path, *contents: Any) -> HubTarSource:
    return HubTarSource(write_tar(tmp_path / "arm_00000.tar", contents))


def steps(*values: dict[str, Any]) -> dict[str, Any]:
    return {"steps": [{"action": np.float32(0), **value} for value in values]}


def test_every_value_of_every_episode_is_read(tmp_path: Path) -> None:
    source = HubTarSource(write_hub(tmp_path / "arm"))
    assert source.name == "arm"
    assert [shard.path for shard in source.shards()] == [
        str(tmp_path / "arm" / f"arm_0000{n}.tar") for n in (0, 1)
    ]
    assert source.fields == {
        IMAGE: FieldSpec("image", (24, 32, 3), np.dtype("uint8")),
        ("observation", "state"): FieldSpec("tensor", (2,), np.dtype("float32")),
        ("action",): FieldSpec("tensor", (3,), np.dtype("float32")),
        ("language_instruction",): FieldSpec("text", (), None),
        ("is_first",): FieldSpec("tensor", (), np.dtype("bool")),
        ("is_last",): FieldSpec("tensor", (), np.dtype("bool")),
        ("is_terminal",): FieldSpec("tensor", (), np.dtype("bool")),
        ("reward",): FieldSpec("tensor", (), np.dtype("float32")),
    }
    for number, (episode, length) in enumerate(zip(episodes(source), (4, 3, 5), strict=True)):
        assert episode.length == length
        state: Any = episode.steps["observation", "state"]
        assert state.tolist() == [[number, step] for step in range(length)]
        frames: Any = episode.steps[IMAGE]
        expected = np.stack([pixels(1000 * number + step) for step in range(length)])
        assert np.array_equal(frames.decode(), expected)
        assert np.array_equal(frames.decode(1, 3), expected[1:3])
        assert episode.steps["language_instruction",] == [f"do {number}"] * length
        assert episode.metadata == {
            ("episode_metadata", "file_path"): f"/logs/{number}",
            ("episode_metadata", "number"): number,
        }
        assert episode.faults == {}


def test_reading_starts_at_any_episode_of_a_shard(tmp_path: Path) -> None:
    source = HubTarSource(write_hub(tmp_path / "arm", lengths=[[2, 3, 4]]))
    (shard,) = source.shards()
    for start in range(4):
        assert [episode.length for episode in source.episodes(shard, start)] == [2, 3, 4][start:]
    with pytest.raises(IndexError, match="has 3 episodes, cannot start at episode 4"):
        list(source.episodes(shard, 4))


def test_c85_steps_without_flags_and_reward_convert(tmp_path: Path) -> None:
    content = {"steps": [{"observation": {"state": np.zeros(2)}, "action": 1.0} for _ in range(3)]}
    manifest = convert(one(tmp_path, content), tmp_path / "out")
    replay = OpenXExperienceReplay("arm", streaming=False, source=tmp_path / "out")
    episode = replay.episode(0)
    assert episode["next", "done"][:, 0].tolist() == [False, False, True]
    assert episode["next", "truncated"][:, 0].tolist() == [False, False, True]
    assert not episode["next", "reward"].any()
    assert manifest.faults == {}


def test_c85_images_as_bytes_dicts_arrays_and_pil(tmp_path: Path) -> None:
    frames = [pixels(n) for n in range(2)]
    file = io.BytesIO()
    Image.fromarray(frames[1]).save(file, "PNG")
    kinds: dict[str, list[Any]] = {
        "bytes": [encode_frame(frame, "png") for frame in frames],
        "dict": [{"bytes": encode_frame(frame, "png"), "path": None} for frame in frames],
        "array": frames,
        "pil": [Image.fromarray(frames[0]), Image.open(file)],
        "mixed": [encode_frame(frames[0], "png"), frames[1]],
    }
    source = one(tmp_path, steps(*({"observation": {k: v[i] for k, v in kinds.items()}} for i in range(2))))
    (episode,) = episodes(source)
    for name in kinds:
        column: Any = episode.steps["observation", name]
        assert source.fields["observation", name] == FieldSpec("image", (24, 32, 3), np.dtype("uint8"))
        assert len(column) == 2
        assert np.array_equal(column.decode(), np.stack(frames)), name
        assert all(
            np.array_equal(np.asarray(Image.open(io.BytesIO(raw))), frame)
            for raw, frame in zip(column.encoded(), frames, strict=True)
        )
    convert(source, tmp_path / "out")
    replay = OpenXExperienceReplay("arm", streaming=False, source=tmp_path / "out")
    stored = replay.episode(0)["observation"]
    for name in kinds:
        assert np.array_equal(stored[name].permute(0, 2, 3, 1).numpy(), np.stack(frames)), name


def test_c85_an_image_that_is_none_is_black_and_counted_and_one_that_is_always_none_is_missing(
    tmp_path: Path,
) -> None:
    frame = encode_frame(pixels(0), "png")
    first = steps({"observation": {"a": frame, "b": frame}}, {"observation": {"a": None, "b": frame}})
    second = steps({"observation": {"a": None, "b": {"bytes": b"", "path": "lost.png"}}})
    source = one(tmp_path, first, second)
    one_missing, both_missing = episodes(source)
    column: Any = one_missing.steps["observation", "a"]
    assert np.array_equal(column.decode()[0], pixels(0))
    assert not column.decode()[1].any()
    assert one_missing.faults == {"observation/a is missing in some steps of an episode": 1}
    assert both_missing.missing == {("observation", "a"), ("observation", "b")}
    manifest = convert(source, tmp_path / "out")
    assert manifest.faults == {"observation/a is missing in some steps of an episode": 1}
    assert manifest.missing == {("observation", "a"): (1,), ("observation", "b"): (1,)}


def test_depth_keeps_its_dtype(tmp_path: Path) -> None:
    depth = np.arange(24 * 32, dtype=np.uint16).reshape(24, 32, 1)
    metres = depth.astype(np.float32) / 7
    observation = {
        "encoded": encode_frame(depth, "png"),
        "raw": depth,
        "metres": metres,
        "flat": metres[:, :, 0],
    }
    source = one(tmp_path, steps({"observation": observation}))
    assert source.fields["observation", "encoded"] == FieldSpec("image", (24, 32, 1), np.dtype("uint16"))
    assert source.fields["observation", "metres"] == FieldSpec("image", (24, 32, 1), np.dtype("float32"))
    assert source.fields["observation", "flat"] == FieldSpec("tensor", (24, 32), np.dtype("float32"))
    columns: Any = episodes(source)[0].steps
    assert np.array_equal(columns["observation", "encoded"].decode()[0], depth)
    assert np.array_equal(columns["observation", "raw"].decode()[0], depth)
    assert np.array_equal(columns["observation", "metres"].decode()[0], metres)


def test_numbers_of_all_kinds_are_tensors(tmp_path: Path) -> None:
    values = {"int": 3, "float": 0.5, "bool": True, "list": [[1, 2], [3, 4]], "big": np.array([1], ">i2")}
    source = one(tmp_path, steps(values, {**values, "int": np.int32(4)}))
    columns: Any = episodes(source)[0].steps
    assert columns["int",].tolist() == [3, 4]
    assert columns["int",].dtype == np.int64
    assert columns["list",].shape == (2, 2, 2)
    assert columns["big",].dtype == np.int16
    assert columns["bool",].dtype == np.bool_


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (np.zeros(3), np.zeros(4), r"'x': step 1 has shape \(4,\), the dataset has \(3,\)"),
        (np.int32(1), np.float64(0.5), "'x': step 1 has float64, the dataset has int32"),
        (np.int32(1), "text", "'x': step 1 has text, the dataset has numbers"),
        ("text", np.int32(1), "'x': step 1 has int32, the dataset has text"),
        (pixels(0), 7, "'x': step 1 has int, the dataset has images"),
        (np.zeros(2), [1.0, "a"], "'x' holds texts in an array"),
        (np.zeros(2), [[1.0], [1.0, 2.0]], "'x' is a list of unequal parts"),
    ],
)
def test_a_value_of_another_kind_names_episode_field_and_both(
    tmp_path: Path, first: Any, second: Any, message: str
) -> None:
    source = one(tmp_path, steps({"x": first}), steps({"x": first}, {"x": second}))
    with pytest.raises(
        DataFormatError, match=rf"^arm: .*arm_00000\.tar, member arm_00000_1\.data\.pickle.*{message}"
    ):
        episodes(source)


def test_frames_of_another_size_are_an_error_that_names_both(tmp_path: Path) -> None:
    small = pixels(0)[:12]
    source = one(
        tmp_path, steps({"x": pixels(0)}), steps({"x": small}), steps({"x": encode_frame(small, "png")})
    )
    _, raw, encoded = (episode.steps["x",] for episode in episodes(source))
    with pytest.raises(
        DataFormatError, match=r"_1\.data\.pickle: 'x': frame 0 .*\(12, 32, 3\), .*\(24, 32, 3\)"
    ):
        raw.decode()  # type: ignore[union-attr]
    with pytest.raises(DataFormatError, match=r"_2\.data\.pickle: 'x': frame 0 has 12 x 32 .* 24 x 32"):
        encoded.decode()  # type: ignore[union-attr]


def test_a_field_that_only_later_episodes_have_is_left_out_and_counted(tmp_path: Path) -> None:
    source = one(tmp_path, *(steps({}) for _ in range(4)), steps({"new": 1}))
    assert ("new",) not in source.fields
    assert episodes(source)[-1].faults == {"new is not in the dataset's first episodes and is left out": 1}
    source = one(tmp_path, steps({}), steps({"new": 1}))
    assert [("new",) in episode.steps for episode in episodes(source)] == [False, True]


def test_names_that_hold_slashes_are_not_split(tmp_path: Path) -> None:
    step: dict[Any, Any] = {"observation": {"present/xyz": 1.0}, b"raw": 2}
    source = one(tmp_path, steps(step))
    assert {("observation", "present/xyz"), ("raw",)} <= source.fields.keys()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], "an episode is a dict with a list of 'steps', this is a list"),
        ({"a": 1}, "this is a dict with the keys 'a'"),
        ({"steps": []}, "the episode has no steps"),
        ({"steps": [1]}, "step 0 is a int, not a dict"),
        (b"no pickle", "the pickle holds"),
        (b"", "cut short"),
    ],
)
def test_a_member_that_is_no_episode_names_itself(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(
        DataFormatError, match=rf"arm_00000\.tar, member arm_00000_0\.data\.pickle: .*{message}"
    ):
        one(tmp_path, content)


def test_texts_in_arrays_are_not_read(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFeatureError, match="'x' holds texts in an array"):
        one(tmp_path, steps({"x": np.array(["a", "b"])}))


def test_values_referred_to_again_and_again_are_refused(tmp_path: Path) -> None:
    numbers = np.zeros(1 << 20)  # 8 MB, in the pickle once
    with pytest.raises(DataFormatError, match="more numbers than the bytes"):
        episodes(one(tmp_path, {"steps": [{"action": numbers}] * 200}))
    many = {f"k{n}": 0 for n in range(1000)}
    with pytest.raises(DataFormatError, match="more values than"):
        one(tmp_path, {"steps": [many] * 100_000})
    deep: Any = {"a": 1}
    for _ in range(20):
        deep = {"a": deep, "b": deep}
    with pytest.raises(DataFormatError, match="more than 4096 fields"):
        one(tmp_path, {"steps": [deep]})
    wide: Any = [1.0]
    for _ in range(25):
        wide = [wide, wide]
    with pytest.raises(DataFormatError, match="a list of more than"):
        one(tmp_path, steps({"x": wide}))


class Call:
    def __reduce__(self) -> Any:
        return os.system, ("exit 1",)


def test_c87_a_pickle_in_a_tar_that_names_os_system_is_refused_with_its_member(tmp_path: Path) -> None:
    good, evil = hub_episode(0, 3), steps({"observation": Call()})
    source = one(tmp_path, good, evil, hub_episode(2, 2))
    with pytest.raises(
        UnsafePickleError, match=r"arm_00000_1\.data\.pickle: the pickle names (posix|nt)\.system"
    ):
        episodes(source)
    with pytest.raises(UnsafePickleError):
        convert(source, tmp_path / "out")
    manifest = convert(source, tmp_path / "out", on_error="skip")
    assert (manifest.episodes, manifest.steps) == (2, 5)
    assert [(skipped.shard, skipped.record) for skipped in manifest.skipped] == [("arm_00000.tar", 1)]
    with pytest.raises(UnsafePickleError):
        one(tmp_path, evil)


def test_a_shard_that_is_cut_short_is_an_error_and_what_is_whole_is_kept_on_request(tmp_path: Path) -> None:
    folder = write_hub(tmp_path / "arm", lengths=[[4, 3, 2], [5]])
    shard = folder / "arm_00000.tar"
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    source = HubTarSource(folder)
    with pytest.raises(CorruptRecordError, match=r"arm_00000\.tar: record 1 at byte \d+: cut short"):
        episodes(source)
    manifest = convert(source, tmp_path / "out", on_error="skip")
    assert manifest.episodes == 2
    assert [skipped.record for skipped in manifest.skipped] == [1, 2]


def test_c82_a_conversion_killed_after_half_the_episodes_goes_on(tmp_path: Path) -> None:
    folder = write_hub(tmp_path / "arm", lengths=[[4, 3], [5, 2]])
    whole = convert(HubTarSource(folder), tmp_path / "whole")

    class Killed(HubTarSource):
        def episodes(self, shard: Any, start: int = 0) -> Any:
            for number, episode in enumerate(super().episodes(shard, start)):
                if shard.number == 1 and number == 1:
                    raise KeyboardInterrupt
                yield episode

    killed = Killed(folder)
    Killed.__name__ = "HubTarSource"
    with pytest.raises(KeyboardInterrupt):
        convert(killed, tmp_path / "out")
    with pytest.raises(DataFormatError, match="was not finished"):
        read_manifest(tmp_path / "out")
    assert convert(HubTarSource(folder), tmp_path / "out") == whole
    for file in (tmp_path / "whole").iterdir():
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes()


# --- where the shards are ------------------------------------------------------------------------------


def test_a_file_a_folder_and_a_folder_of_folders_are_found(tmp_path: Path) -> None:
    folder = write_hub(tmp_path / "hub" / "arm")
    write_hub(tmp_path / "hub" / "leg", "leg")
    assert is_hub_tar(folder)
    assert is_hub_tar(folder / "arm_00001.tar")
    assert is_hub_tar(tmp_path / "hub", "arm")
    assert not is_hub_tar(tmp_path / "hub")
    assert not is_hub_tar(tmp_path / "nothing")
    assert len(HubTarSource(folder / "arm_00001.tar").shards()) == 1
    assert len(HubTarSource(tmp_path / "hub", dataset_id="arm").shards()) == 2
    assert len(HubTarSource(folder.as_uri()).shards()) == 2


def test_shards_of_several_datasets_must_be_told_apart(tmp_path: Path) -> None:
    write_hub(tmp_path, "arm")
    write_hub(tmp_path, "leg")
    assert is_hub_tar(tmp_path)
    with pytest.raises(DataFormatError, match="several datasets, name one: arm, leg"):
        HubTarSource(tmp_path)
    assert HubTarSource(tmp_path, dataset_id="leg").name == "leg"


def test_missing_shards_are_named_and_left_out_only_on_request(tmp_path: Path) -> None:
    folder = write_hub(tmp_path / "arm", lengths=[[1], [2], [3]])
    (folder / "arm_00001.tar").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of at least 3 shards are missing: arm_00001\.tar"):
        HubTarSource(folder)
    source = HubTarSource(folder, allow_missing_shards=True)
    assert [episode.length for episode in episodes(source)] == [1, 3]
    assert source.notes == ("1 of at least 3 shards are missing",)
    assert [problem.what for problem in verify(folder).problems] == list(source.notes)
    assert source.notes[0] in summarise(folder).notes
    assert convert(folder, tmp_path / "out", allow_missing=True).faults == {source.notes[0]: 1}
    assert HubTarSource(folder / "arm_00002.tar").notes == ()
    shutil.rmtree(folder)
    with pytest.raises(FileNotFoundError, match="no tar shards at"):
        HubTarSource(folder)


def test_there_is_only_the_split_train(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no split 'val'"):
        HubTarSource(write_hub(tmp_path / "arm"), "val")


def test_a_source_goes_to_a_worker(tmp_path: Path) -> None:
    source = HubTarSource(write_hub(tmp_path / "arm"))
    other = pickle.loads(pickle.dumps(source))
    assert [episode.length for episode in episodes(other)] == [4, 3, 5]
    assert repr(other) == repr(source)
