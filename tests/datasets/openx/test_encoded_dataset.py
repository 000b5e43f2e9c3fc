"""Datasets whose frames are kept as JPEG or PNG bytes: what is read is what decoded ones give."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch

from memory_source import Frames
from replaybank.datasets.openx import stored_frames
from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.files import MANIFEST, ends_name, frames_name, read_manifest
from replaybank.datasets.openx.replay import OpenXExperienceReplay
from replaybank.datasets.openx.sources.base import Episode, FieldSpec, Key, Shard
from replaybank.datasets.openx.sources.images import EncodedImages, encode_frame
from replaybank.datasets.openx.sources.rlds import RLDSSource
from replaybank.datasets.openx.storage import DatasetStorage
from replaybank.datasets.openx.summary import summarise
from replaybank.demo.arm import write_arm_dataset
from replaybank.errors import DataFormatError
from replaybank.storages import frames
from shared_data import bridge_path


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One dataset, with decoded frames and with encoded ones."""
    folder = tmp_path_factory.mktemp("both")
    source = RLDSSource(write_arm_dataset(str(folder / "arm"), episodes=7))
    convert(source, folder / "raw")
    convert(source, folder / "encoded", images="encoded")
    return folder / "raw", folder / "encoded"


def same(left: Any, right: Any) -> None:
    assert set(left.keys(True, True)) == set(right.keys(True, True))
    for key in left.keys(True, True):
        one, other = left[key], right[key]
        if isinstance(one, torch.Tensor):
            assert one.dtype == other.dtype, key
            assert torch.equal(one, other), key
        else:
            assert one == other, key


@pytest.mark.parametrize(
    "index",
    [slice(None), slice(3, 40, 7), [5, 5, 4, 6], -1, 0, torch.tensor([[9, 8], [7, 6]]), slice(4, 4)],
)
def test_what_is_read_is_what_decoded_frames_give(both: tuple[Path, Path], index: Any) -> None:
    same(DatasetStorage(both[0])[index], DatasetStorage(both[1])[index])


def test_next_frames_are_those_of_the_next_step_and_zero_at_the_end(both: tuple[Path, Path]) -> None:
    storage = DatasetStorage(both[1])
    steps = storage[:]
    last = steps["next", "done"].squeeze(1)
    after, frames = steps["next", "observation", "image"], steps["observation", "image"]
    assert not after[last].any()
    assert torch.equal(after[~last], frames[1:][~last[:-1]])


def test_one_leaf_is_read_alone(both: tuple[Path, Path]) -> None:
    raw, encoded = map(DatasetStorage, both)
    key = ("observation", "image")
    assert key in encoded.leaf_keys()
    for rows in (slice(2, 9), torch.tensor([4, 0, 4])):
        assert torch.equal(raw.read_leaf(key, rows), encoded.read_leaf(key, rows))


def test_batches_of_slices_are_the_same(both: tuple[Path, Path]) -> None:
    def draw(path: Path) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(3)
        replay = OpenXExperienceReplay(
            "arm", 32, slice_len=8, streaming=False, source=path, generator=generator
        )
        return (replay.sample() for _ in range(5))

    for left, right in zip(draw(both[0]), draw(both[1]), strict=True):
        same(left, right)


def test_it_takes_a_fraction_of_the_room(both: tuple[Path, Path]) -> None:
    raw, encoded = (sum(f.stat().st_size for f in path.iterdir()) for path in both)
    assert encoded < raw / 4


def test_the_real_bridge_file_reads_the_same_either_way(tmp_path: Path) -> None:
    path = bridge_path()
    convert(path, tmp_path / "raw")
    convert(path, tmp_path / "encoded", images="encoded")
    raw, encoded = DatasetStorage(tmp_path / "raw"), DatasetStorage(tmp_path / "encoded")
    same(raw[:], encoded[:])
    assert [image.form for image in summarise(tmp_path / "encoded").images] == ["JPEG"] * 4


def test_a_summary_tells_the_form_of_encoded_frames(both: tuple[Path, Path]) -> None:
    raw, encoded = map(summarise, both)
    assert {field.key for field in raw.fields} == {field.key for field in encoded.fields}
    assert [(i.height, i.width, i.channels) for i in raw.images] == [
        (i.height, i.width, i.channels) for i in encoded.images
    ]
    assert {image.form for image in encoded.images} <= {"JPEG", "PNG"}
    assert all(i.bytes_per_frame < j.bytes_per_frame for i, j in zip(encoded.images, raw.images, strict=True))


FIELDS: dict[Key, FieldSpec] = {
    ("observation", "depth"): FieldSpec("image", (24, 20, 1), np.dtype("float32")),
    ("observation", "range"): FieldSpec("image", (24, 20, 1), np.dtype("uint16")),
    ("observation", "image"): FieldSpec("image", (24, 20, 3), np.dtype("uint8")),
    ("action",): FieldSpec("tensor", (2,), np.dtype("float32")),
}


class Kept(Frames):
    """Frames that are there as PNG bytes."""

    def encoded(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        return [encode_frame(frame, "png") for frame in self.frames[start:stop]]


class Cameras:
    """Two episodes of three kinds of cameras; the second lacks one of them."""

    name = "cameras"
    fields: Mapping[Key, FieldSpec] = FIELDS

    def shards(self) -> list[Shard]:
        return [Shard(0, "/data/shard-0", 2)]

    def episodes(self, shard: Shard, start: int = 0) -> Iterator[Episode]:
        for number in range(start, 2):
            rng = np.random.default_rng(number)
            steps: dict[Key, Any] = {("action",): rng.normal(size=(3, 2)).astype(np.float32)}
            for key, spec in FIELDS.items():
                if spec.kind == "image" and (number, key[1]) != (1, "range"):
                    values = rng.integers(0, 250, (3, *spec.shape))
                    steps[key] = Kept(values.astype(spec.dtype))
            missing = frozenset(FIELDS) - frozenset(steps)
            yield Episode(steps, 3, f"record {number}", missing=missing)


def test_depth_and_absent_cameras_are_kept_too(tmp_path: Path) -> None:
    convert(Cameras(), tmp_path / "raw")
    convert(Cameras(), tmp_path / "encoded", images="encoded")
    raw, encoded = DatasetStorage(tmp_path / "raw")[:], DatasetStorage(tmp_path / "encoded")[:]
    same(raw, encoded)
    assert encoded["observation", "depth"].dtype == torch.float32
    assert encoded["mask", "observation", "range"].tolist() == [True] * 3 + [False] * 3
    assert not encoded["observation", "range"].view(torch.int16)[3:].any()


class Films:
    """Episodes of several lengths with cameras of several kinds: JPEG, PNG, and some are not there."""

    name = "films"
    fields: Mapping[Key, FieldSpec] = {
        ("observation", "top"): FieldSpec("image", (24, 20, 3), np.dtype("uint8")),
        ("observation", "gray"): FieldSpec("image", (9, 33, 1), np.dtype("uint8")),
        ("observation", "range"): FieldSpec("image", (24, 20, 1), np.dtype("uint16")),
        ("goal",): FieldSpec("image", (16, 16, 3), np.dtype("uint8")),
        ("action",): FieldSpec("tensor", (2,), np.dtype("float32")),
    }

    def shards(self) -> list[Shard]:
        return [Shard(0, "/data/shard-0", 6)]

    def episodes(self, shard: Shard, start: int = 0) -> Iterator[Episode]:
        for number in range(start, 6):
            length = (1, 5, 2, 9, 1, 4)[number]
            steps: dict[Key, Any] = {("action",): np.zeros((length, 2), np.float32)}
            missing = set()
            for at, (key, spec) in enumerate(self.fields.items()):
                if spec.kind != "image":
                    continue
                if (number + at) % 4 == 1:
                    missing.add(key)
                    continue
                ramp = np.arange(np.prod(spec.shape)).reshape(spec.shape)
                frames = [(ramp + 7 * number + 31 * k) % 250 for k in range(length)]
                forms = ["png" if k % 3 == 2 or spec.dtype != np.uint8 else "jpeg" for k in range(length)]
                contents = [
                    encode_frame(frame.astype(spec.dtype), form)
                    for frame, form in zip(frames, forms, strict=True)
                ]
                spans = [[sum(map(len, contents[:k])), len(content)] for k, content in enumerate(contents)]
                steps[key] = EncodedImages(b"".join(contents), np.array(spans), spec, f"episode {number}")
            yield Episode(steps, length, f"record {number}", missing=frozenset(missing))


@pytest.fixture(scope="module", params=[None, ["top"]], ids=["rgb", "bgr"])
def films(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("films")
    for images in ("raw", "encoded"):
        convert(Films(), folder / images, images=images, bgr=request.param)
    return folder / "raw", folder / "encoded"


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("group", [1, 4000, 1 << 18])
def test_frames_drawn_in_any_order_are_those_of_the_decoded_dataset(
    films: tuple[Path, Path], threads: int, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, encoded = map(DatasetStorage, films)
    monkeypatch.setattr(stored_frames, "GROUP_BYTES", group)
    monkeypatch.setattr(frames, "THREADED_PIXELS", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    generator = torch.Generator().manual_seed(group)
    steps = len(raw)
    same(raw[:], encoded[:])
    for batch in (
        torch.randperm(steps, generator=generator),
        torch.randint(steps, (3, 17), generator=generator),  # with many twice and more
        torch.tensor([4, 4, 4, 5, 5, 3, 21, 0]),
        torch.arange(steps - 1, -1, -1),
        torch.tensor([9, 10, 11, 12, 2, 3, 4, 5, 11, 12, 13, 14]),  # slices that overlap
    ):
        same(raw[batch], encoded[batch])
        for key in (("observation", "top"), ("observation", "range"), ("goal",)):
            assert torch.equal(
                raw.read_leaf(key, batch).view(torch.uint8), encoded.read_leaf(key, batch).view(torch.uint8)
            )


def test_each_frame_drawn_is_decoded_once(films: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    decode = simplejpeg.decode_jpeg

    def counted(content: Any, *arguments: Any, **more: Any) -> Any:
        seen.append(bytes(content))
        return decode(content, *arguments, **more)

    monkeypatch.setattr(simplejpeg, "decode_jpeg", counted)
    storage = DatasetStorage(films[1], image_keys=["top"])
    storage[torch.tensor([9, 10, 11, 12, 10, 11, 12, 13, 9])]
    seen = [content for content in seen if content[:3] == b"\xff\xd8\xff"]
    assert len(seen) == len(set(seen)) > 1


def test_a_frame_of_another_shape_is_found_when_it_is_converted(tmp_path: Path) -> None:
    class Odd(Cameras):
        def episodes(self, shard: Shard, start: int = 0) -> Iterator[Episode]:
            for number, episode in enumerate(super().episodes(shard, start)):
                wide = Kept(np.zeros((3, 24, 21, 3), np.uint8))
                steps = {**episode.steps, ("observation", "image"): wide} if number else episode.steps
                yield Episode(steps, 3, episode.where, missing=episode.missing)

    with pytest.raises(
        DataFormatError, match=r"observation/image: frame 0 has 24 x 21 pixels, expected 24 x 20"
    ):
        convert(Odd(), tmp_path / "raise", images="encoded")
    made = convert(Odd(), tmp_path / "skip", images="encoded", on_error="skip")
    assert (made.episodes, [s.record for s in made.skipped]) == (1, [1])


@pytest.mark.parametrize("keep", [0, 12])
def test_a_damaged_frame_is_named_when_it_is_read(tmp_path: Path, keep: int) -> None:
    convert(Cameras(), tmp_path, images="encoded")
    file = tmp_path / frames_name(2)
    content = file.read_bytes()
    file.write_bytes(content[:keep] + bytes(len(content) - keep))
    with pytest.raises(DataFormatError, match="observation/image: step 1"):
        DatasetStorage(tmp_path)[1]


def test_frames_that_lie_nowhere_are_an_error(tmp_path: Path) -> None:
    convert(Cameras(), tmp_path, images="encoded")
    ends = np.fromfile(tmp_path / ends_name(0), "<i8")
    for damaged in (-1, 1 << 40):
        np.array([damaged, *ends[1:]], "<i8").tofile(tmp_path / ends_name(0))
        with pytest.raises(DataFormatError, match="its frame lies nowhere"):
            DatasetStorage(tmp_path)[0]


@pytest.mark.parametrize("entry", [{"key": []}, {"shape": [3, 4]}, {"dtype": "int"}, {"key": ["action"]}, 5])
def test_a_manifest_whose_encoded_entries_are_no_images_is_damaged(tmp_path: Path, entry: Any) -> None:
    convert(Cameras(), tmp_path, images="encoded")
    manifest = json.loads((tmp_path / MANIFEST).read_bytes())
    first = manifest["encoded"][0]
    manifest["encoded"][0] = {**first, **entry} if isinstance(entry, dict) else entry
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(DataFormatError):
        DatasetStorage(tmp_path)


def test_cameras_are_chosen_by_name_or_path(tmp_path: Path) -> None:
    ways: tuple[Any, ...] = (["depth"], ["observation/depth"], [("observation", "depth")])
    for number, chosen in enumerate(ways):
        convert(Cameras(), tmp_path / str(number), image_keys=chosen)
        storage = DatasetStorage(tmp_path / str(number))
        cameras = [key for key in storage.leaf_keys() if key[0] == "observation"]
        assert cameras == [("observation", "depth")]
    convert(Cameras(), tmp_path / "none", image_keys=[])
    assert [k for k in DatasetStorage(tmp_path / "none").leaf_keys() if k[0] == "observation"] == []


def test_a_camera_that_is_not_there_is_an_error_that_names_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'wrist' is no camera .*'observation/depth'"):
        convert(Cameras(), tmp_path / "out", image_keys=["wrist"])
    with pytest.raises(TypeError, match=r"give \['depth'\]"):
        convert(Cameras(), tmp_path / "out", image_keys="depth")
    assert not (tmp_path / "out").exists()


def test_images_takes_two_words_only(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'raw' or 'encoded', got 'jpeg'"):
        convert(Cameras(), tmp_path / "out", images="jpeg")  # type: ignore[arg-type]


def test_a_conversion_does_not_go_on_in_another_form(tmp_path: Path) -> None:
    convert(Cameras(), tmp_path)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        convert(Cameras(), tmp_path, images="encoded")


def test_datasets_of_the_first_version_are_read(tmp_path: Path) -> None:
    convert(Cameras(), tmp_path)
    before = DatasetStorage(tmp_path)[:]
    manifest = json.loads((tmp_path / MANIFEST).read_bytes())
    del manifest["encoded"], manifest["checksums"]
    (tmp_path / MANIFEST).write_text(json.dumps({**manifest, "version": 1}))
    os.unlink(tmp_path / "checksums.bin")
    same(DatasetStorage(tmp_path)[:], before)
    assert convert(Cameras(), tmp_path) == read_manifest(tmp_path)
