"""What lies in a recording for Rerun, read back with its own reader."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replaybank.datasets.openx.sources.images import encode_frame, image_format
from replaybank.demo import arm
from replaybank.view import (
    RecordedEpisode,
    open_episode,
    refuse_without_display,
    save_recording,
    show_recording,
)
from replaybank.view.episode import Frames

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    rr = pytest.importorskip("rerun", reason="rerun-sdk is not installed: pip install 'replaybank[view]'")
    chunk = pytest.importorskip("rerun.chunk", reason="this version of Rerun cannot read recordings")


_ORIGIN = "ViewBlueprint:space_origin"


class Recorded:
    """A recording as rows: component by entity and step."""

    def __init__(self, path: Path) -> None:
        reader = chunk.RrdReader(path)
        self.static: dict[tuple[str, str], Any] = {}
        self.rows: dict[tuple[str, str], dict[int, Any]] = {}
        self.times: dict[str, list[float]] = {}
        for part in reader.stream():
            table = part.to_record_batch()
            for name in table.schema.names:
                if ":" not in name:
                    continue
                key, values = (part.entity_path, name), table.column(name).to_pylist()
                if part.is_static:
                    self.static[key] = values[0]
                    continue
                self.rows.setdefault(key, {}).update(
                    zip(table.column("step").to_pylist(), values, strict=True)
                )
            if not part.is_static and "time" in table.schema.names:
                nanoseconds = table.column("time").cast("int64").to_pylist()
                self.times[part.entity_path] = [time / 1e9 for time in nanoseconds]
        self.origins: set[str] = set()
        """What the views of the layout show."""
        for store in reader.blueprints():
            for part in reader.stream(store=store):
                table = part.to_record_batch()
                if _ORIGIN in table.schema.names:
                    self.origins.update(*filter(None, table.column(_ORIGIN).to_pylist()))

    def series(self, entity: str) -> list[Any]:
        rows = self.rows[entity, "Scalars:scalars"]
        assert list(rows) == list(range(len(rows)))
        return list(rows.values())


class Pixels:
    """A camera for tests."""

    def __init__(self, frames: Frames, *, lossy: bool = False, depth: bool = False) -> None:
        self._frames, self.lossy, self.depth = frames, lossy, depth

    def parts(self) -> Any:
        middle = len(self._frames) // 2
        yield 0, self._frames[:middle]
        yield middle, self._frames[middle:]


def made(length: int, numbers: Any, **given: Any) -> RecordedEpisode:
    return RecordedEpisode("a", 0, length, numbers, **given)


@pytest.fixture(scope="module")
def arm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rlds") / arm.NAME / arm.VERSION
    return arm.write_arm_dataset(folder, episodes=2, shards=1)


def test_an_episode_is_recorded_step_by_step(arm_folder: Path, tmp_path: Path) -> None:
    episode = open_episode(arm_folder, 1)
    assert save_recording(episode, tmp_path / "arm.rrd") == []
    recorded = Recorded(tmp_path / "arm.rrd")
    for key, values in episode.numbers.items():
        flat = values.reshape(episode.length, -1)
        np.testing.assert_array_equal(recorded.series("/" + "/".join(key)), flat.astype(float))
    assert recorded.static["/action", "SeriesLines:names"] == ["0", "1"]
    assert recorded.static["/next/reward", "SeriesLines:names"] == ["reward"]
    texts = recorded.rows["/language_instruction", "TextDocument:text"]
    assert texts == {0: [arm.simulate(1).instruction]}
    ends = recorded.rows["/ends", "TextLog:text"]
    assert list(ends) == [episode.length - 1]
    (facts,) = recorded.static["/episode", "TextDocument:text"]
    assert facts.startswith(f"{arm.NAME}, episode 1: {episode.length} steps\nfrom: ")
    for key, camera in episode.cameras.items():
        ((_, frames),) = camera.parts()
        stored = recorded.rows["/" + "/".join(key), "EncodedImage:blob"]
        assert [bytes(row[0]) for row in stored.values()] == list(frames)
        kinds = recorded.rows["/" + "/".join(key), "EncodedImage:media_type"]
        assert set(map(tuple, kinds.values())) == {("image/jpeg",)}
    assert {"/observation/image", "/action", "/next/reward", "/ends"} <= {
        "/" + origin.strip("/") for origin in recorded.origins
    }


def test_steps_have_seconds_where_they_are_known(tmp_path: Path) -> None:
    values = {("action",): np.zeros((3, 2))}
    save_recording(made(3, values, rate=4.0), tmp_path / "a.rrd")
    assert Recorded(tmp_path / "a.rrd").times["/action"] == [0.0, 0.25, 0.5]
    save_recording(made(3, values), tmp_path / "b.rrd")
    assert Recorded(tmp_path / "b.rrd").times == {}


def test_pixels_are_recorded_as_they_are_unless_compressed(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (5, 8, 10, 3), dtype=np.uint8)
    episode = RecordedEpisode(
        "a", 0, 5, {}, cameras={("top",): Pixels(frames), ("dim",): Pixels(frames[..., :1])}
    )
    save_recording(episode, tmp_path / "a.rrd")
    recorded = Recorded(tmp_path / "a.rrd")
    for entity, expected in (("/top", frames), ("/dim", frames[..., :1])):
        rows = recorded.rows[entity, "Image:buffer"]
        assert list(rows) == [0, 1, 2, 3, 4]
        for step, row in rows.items():
            assert bytes(row[0]) == expected[step].tobytes()
        (form,) = recorded.static[entity, "Image:format"]
        assert (form["width"], form["height"]) == (10, 8)
    save_recording(episode, tmp_path / "small.rrd", compress=True, cameras=["top"])
    compressed = Recorded(tmp_path / "small.rrd")
    blobs = compressed.rows["/top", "EncodedImage:blob"]
    assert [image_format(bytes(row[0])) for row in blobs.values()] == ["jpeg"] * 5
    assert not any(entity == "/dim" for entity, _ in compressed.rows)


def test_frames_of_a_video_become_jpeg_and_steps_without_a_frame_have_none(tmp_path: Path) -> None:
    frames = np.full((4, 8, 8, 3), 100, np.uint8)
    stored = [encode_frame(frames[0], "png"), b"", encode_frame(frames[0], "png"), b""]
    cameras = {("film",): Pixels(frames, lossy=True), ("stored",): Pixels(stored)}
    save_recording(made(4, {}, cameras=cameras), tmp_path / "a.rrd")
    recorded = Recorded(tmp_path / "a.rrd")
    assert len(recorded.rows["/film", "EncodedImage:blob"]) == 4
    assert list(recorded.rows["/stored", "EncodedImage:blob"]) == [0, 2]
    assert list(recorded.rows["/stored", "EncodedImage:media_type"].values()) == [["image/png"]] * 2


def test_distances_are_recorded_as_depth(tmp_path: Path) -> None:
    metres = np.random.default_rng(0).random((4, 6, 5, 1), dtype=np.float32)
    sixteen = (metres * 1000).astype(np.uint16)
    cameras = {
        ("metres",): Pixels(metres, depth=True),
        ("png",): Pixels([encode_frame(frame, "png") for frame in sixteen], depth=True),
    }
    save_recording(made(4, {}, cameras=cameras), tmp_path / "a.rrd")
    recorded = Recorded(tmp_path / "a.rrd")
    rows = recorded.rows["/metres", "DepthImage:buffer"]
    assert [bytes(row[0]) for row in rows.values()] == [frame.tobytes() for frame in metres]
    assert len(recorded.rows["/png", "EncodedDepthImage:blob"]) == 4


def test_texts_are_recorded_where_they_change(tmp_path: Path) -> None:
    texts = {("task",): ["a", "a", "b", "b", "a"]}
    save_recording(made(5, {}, texts=texts), tmp_path / "a.rrd")
    assert Recorded(tmp_path / "a.rrd").rows["/task", "TextDocument:text"] == {0: ["a"], 2: ["b"], 4: ["a"]}


def test_ends_are_events(tmp_path: Path) -> None:
    flags = {name: np.zeros((4, 1), bool) for name in ("done", "terminated", "truncated")}
    flags["done"][[1, 3]] = flags["terminated"][1] = flags["truncated"][1] = True
    episode = made(4, {("next", name): flag for name, flag in flags.items()})
    save_recording(episode, tmp_path / "a.rrd")
    assert Recorded(tmp_path / "a.rrd").rows["/ends", "TextLog:text"] == {
        1: ["terminated and truncated"],
        3: ["done"],
    }
    save_recording(made(4, {("x",): np.zeros(4)}), tmp_path / "b.rrd")
    assert list(Recorded(tmp_path / "b.rrd").rows["/ends", "TextLog:text"]) == [3]


def test_odd_names_stay_apart_and_what_is_too_wide_is_told(tmp_path: Path) -> None:
    numbers = {
        ("a/b",): np.zeros(2),
        ("a", "b"): np.ones(2),
        ("wide",): np.zeros((2, 65)),
        ("none",): np.zeros((2, 0)),
    }
    left_out = save_recording(made(2, numbers), tmp_path / "a.rrd")
    assert left_out == [("wide",), ("none",)]
    recorded = Recorded(tmp_path / "a.rrd")
    assert recorded.series("/a\\/b") == [[0.0], [0.0]]
    assert recorded.series("/a/b") == [[1.0], [1.0]]


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    class Broken(Pixels):
        def parts(self) -> Any:
            yield 0, self._frames
            raise OSError("the disk is gone")

    cameras = {("top",): Broken(np.zeros((2, 8, 8, 3), np.uint8))}
    (tmp_path / "a.rrd").write_bytes(b"before")
    with pytest.raises(OSError, match="the disk is gone"):
        save_recording(made(2, {}, cameras=cameras), tmp_path / "a.rrd")
    assert [file.name for file in tmp_path.iterdir()] == ["a.rrd"]
    assert (tmp_path / "a.rrd").read_bytes() == b"before"
    episode = made(2, {})
    with pytest.raises(ValueError, match=r"files that end in .rrd: give .*a.txt.rrd"):
        save_recording(episode, tmp_path / "a.txt")
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        save_recording(episode, tmp_path / "gone" / "a.rrd")
    (tmp_path / "b.rrd").mkdir()
    with pytest.raises(IsADirectoryError, match="is a folder"):
        save_recording(episode, tmp_path / "b.rrd")
    save_recording(episode, tmp_path / "a.rrd")
    assert (tmp_path / "a.rrd").read_bytes()[:4] == b"RRF2"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full on this system")
def test_a_full_disk_is_an_error_and_no_file_that_ends_in_the_middle(tmp_path: Path) -> None:
    (tmp_path / "full.rrd").symlink_to("/dev/full")
    episode = RecordedEpisode("arm", 0, 3, {("action",): np.zeros((3, 2))})
    with pytest.raises(OSError, match=r"No space left.*full\.rrd"):
        save_recording(episode, tmp_path / "full.rrd")


def test_texts_with_halves_of_letters_are_recorded(tmp_path: Path) -> None:
    texts = ["go \ud800", "go \ud800", "stop"]
    episode = RecordedEpisode("\udcff", 0, 3, {("\udcff",): np.arange(3.0)}, {("say",): texts})
    save_recording(episode, tmp_path / "arm.rrd")
    rows = Recorded(tmp_path / "arm.rrd").rows
    assert {step: row[0] for step, row in rows["/say", "TextDocument:text"].items()} == {
        0: "go ?",
        2: "stop",
    }
    assert len(rows["/\\?", "Scalars:scalars"]) == 3


def test_a_window_needs_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OSError, match=r"there is no display .* --save episode.rrd"):
        show_recording(made(2, {}))
    monkeypatch.setenv("DISPLAY", ":0")
    refuse_without_display()


def test_what_is_shown_is_what_would_be_saved(
    arm_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(rr, "spawn", lambda **_: None)
    monkeypatch.setattr(rr.RecordingStream, "connect_grpc", lambda self: self.save(tmp_path / "shown.rrd"))
    episode = open_episode(arm_folder, 0)
    show_recording(episode, cameras=["image"])
    save_recording(episode, tmp_path / "saved.rrd", cameras=["image"])
    shown, saved = Recorded(tmp_path / "shown.rrd"), Recorded(tmp_path / "saved.rrd")
    assert shown.rows == saved.rows
    assert shown.origins == saved.origins

    def fails(**_: object) -> None:
        raise RuntimeError("no viewer")

    monkeypatch.setattr(rr, "spawn", fails)
    with pytest.raises(OSError, match=r"Rerun's viewer did not start: no viewer; --save"):
        show_recording(episode)
