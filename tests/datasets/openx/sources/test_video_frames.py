from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lerobot_files import CODECS, FPS, H264_LONG, SIDE, shown_numbers, write_video
from replaybank.datasets.openx.sources.base import FieldSpec
from replaybank.datasets.openx.sources.images import image_format
from replaybank.datasets.openx.sources.video import VideoReader
from replaybank.datasets.openx.sources.video_frames import OpenVideos, VideoFrames
from replaybank.errors import DataFormatError
from shared_data import lerobot_g1_path, video_path

SPEC = FieldSpec("image", (SIDE, SIDE, 3), np.dtype(np.uint8))
FRAMES = 300


@pytest.fixture(scope="module", params=sorted(CODECS))
def video(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("video") / "numbered.mp4"
    write_video(path, range(FRAMES), CODECS[request.param])
    return path


@pytest.fixture(scope="module")
def long_video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("video") / "long.mp4"
    write_video(path, range(FRAMES), H264_LONG)
    return path


def frames_of(
    path: Path | str,
    first: int = 0,
    length: int = FRAMES,
    videos: OpenVideos | None = None,
    spec: FieldSpec = SPEC,
    fps: float = FPS,
) -> VideoFrames:
    times = first / fps + np.arange(length).astype(np.float32).astype(np.float64) / fps
    return VideoFrames(videos or OpenVideos(), str(path), times, 1 / fps, spec, "test: episode 7: camera")


def test_every_frame_is_right_to_the_frame_in_one_pass_and_in_parts_of_any_size(video: Path) -> None:
    draw = np.random.default_rng(0)
    frames = frames_of(video)
    assert shown_numbers(frames.decode()) == list(range(FRAMES))
    at = 0
    while at < FRAMES:
        size = int(draw.integers(1, 40))
        assert shown_numbers(frames.decode(at, at + size)) == list(range(FRAMES))[at : at + size]
        at += size


def test_a_frame_is_the_same_however_it_was_reached(video: Path) -> None:
    draw = np.random.default_rng(1)
    frames = frames_of(video)
    whole = frames.decode()
    for start in draw.integers(0, FRAMES, 25).tolist():
        stop = start + int(draw.integers(1, 6))
        assert np.array_equal(frames.decode(start, stop), whole[start:stop])


def test_an_episode_in_the_middle_of_a_file_begins_at_its_own_first_frame(video: Path) -> None:
    for first, length in ((100, 37), (249, 3), (250, 50), (1, 1)):
        assert shown_numbers(frames_of(video, first, length).decode()) == list(range(first, first + length))


def test_frames_are_those_that_pyav_itself_gives() -> None:
    import av

    spec = FieldSpec("image", (180, 320, 3), np.dtype(np.uint8))
    path = video_path("nasa_13013.mp4")
    with av.open(str(path)) as container:
        expected = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    frames = frames_of(path, 0, len(expected), spec=spec, fps=25)
    assert np.array_equal(frames.decode(), np.stack(expected))
    assert np.array_equal(frames.decode(290, 300), np.stack(expected[290:300]))


@pytest.mark.parametrize(
    ("name", "shape", "fps", "length"),
    [("av1_video.mkv", (360, 640, 3), 25, 125), ("h265_video.mp4", (128, 128, 3), 10, 10)],
)
def test_real_videos_are_read_alike_forward_and_after_jumps(
    name: str, shape: tuple[int, int, int], fps: int, length: int
) -> None:
    frames = frames_of(
        video_path(name), 0, length, spec=FieldSpec("image", shape, np.dtype(np.uint8)), fps=fps
    )
    whole = frames.decode()
    for start in (length - 1, length // 2, 3, 0):
        assert np.array_equal(frames.decode(start, start + 2), whole[start : start + 2])


def test_frames_of_the_real_g1_video_are_those_that_pyav_gives() -> None:
    import av

    path = lerobot_g1_path() / "videos/chunk-000/observation.images.cam_high/episode_000010.mp4"
    with av.open(str(path)) as container:
        expected = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    frames = frames_of(path, 0, 290, spec=FieldSpec("image", (480, 640, 3), np.dtype(np.uint8)))
    assert all(np.array_equal(frames.decode(i, i + 29), expected[i : i + 29]) for i in range(0, 290, 29))


def test_reading_on_decodes_no_frame_twice(long_video: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    jumps: list[float] = []
    monkeypatch.setattr(VideoReader, "_jump", lambda self, time: jumps.append(time))
    really_open = VideoReader._open

    def count_and_open(self: VideoReader) -> None:
        opened.append(self.path)
        really_open(self)

    monkeypatch.setattr(VideoReader, "_open", count_and_open)
    videos = OpenVideos()
    for first in (0, 100, 200):  # three episodes in one file, each in parts
        frames = frames_of(long_video, first, 100, videos)
        for start in range(0, 100, 7):
            numbers = shown_numbers(frames.decode(start, start + 7))
            assert numbers == list(range(first + start, first + min(start + 7, 100)))
    assert len(opened) == 1
    assert jumps == []


def test_two_episodes_of_one_file_read_in_turns_do_not_disturb_each_other(long_video: Path) -> None:
    videos = OpenVideos()
    one, two = frames_of(long_video, 0, 150, videos), frames_of(long_video, 150, 150, videos)
    for start in range(0, 150, 10):
        assert shown_numbers(one.decode(start, start + 10)) == list(range(start, start + 10))
        assert shown_numbers(two.decode(start, start + 10)) == list(range(150 + start, 160 + start))


def test_threads_share_open_videos(long_video: Path) -> None:
    videos = OpenVideos(threads=1)
    wrong: list[Any] = []

    def read(seed: int) -> None:
        draw = np.random.default_rng(seed)
        frames = frames_of(long_video, 0, FRAMES, videos)
        for start in draw.integers(0, FRAMES - 5, 8).tolist():
            numbers = shown_numbers(frames.decode(start, start + 5))
            if numbers != list(range(start, start + 5)):
                wrong.append((start, numbers))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(videos._idle) <= videos.limit


def test_no_more_videos_stay_open_than_the_limit(tmp_path: Path) -> None:
    videos = OpenVideos(threads=1, limit=2)
    for number in range(4):
        write_video(tmp_path / f"{number}.mp4", range(5))
        frames_of(tmp_path / f"{number}.mp4", 0, 5, videos).decode(0, 2)
    assert [Path(reader.path).name for reader in videos._idle] == ["2.mp4", "3.mp4"]
    videos.close()
    assert videos._idle == []


def test_frames_and_open_videos_pickle_without_what_is_open(long_video: Path) -> None:
    frames = frames_of(long_video)
    frames.decode(0, 3)
    again = pickle.loads(pickle.dumps(frames))
    assert shown_numbers(again.decode(3, 6)) == [3, 4, 5]


def test_uneven_presentation_times_are_followed_not_counted(tmp_path: Path) -> None:
    pts = [0, 1, 2, 5, 6, 7, 12, 13]  # frames are lacking in between
    write_video(tmp_path / "gaps.mp4", pts, pts=pts)
    times = np.array(pts) / FPS
    frames = VideoFrames(OpenVideos(), str(tmp_path / "gaps.mp4"), times, 1 / FPS, SPEC, "x")
    assert shown_numbers(frames.decode()) == pts
    shifted = VideoFrames(OpenVideos(), str(tmp_path / "gaps.mp4"), times + 0.4 / FPS, 1 / FPS, SPEC, "x")
    assert shown_numbers(shifted.decode()) == pts
    with pytest.raises(DataFormatError, match=r"camera, step 3: .*gaps.mp4 has no frame at 0.1000 s"):
        frames_of(tmp_path / "gaps.mp4", 0, 14).decode()


def test_a_step_between_two_frames_gets_the_nearer_one(tmp_path: Path) -> None:
    write_video(tmp_path / "fast.mp4", range(60), fps=60)
    times = np.arange(30) / 30 + 0.3 / 60
    frames = VideoFrames(OpenVideos(), str(tmp_path / "fast.mp4"), times, 1 / 30, SPEC, "x")
    assert shown_numbers(frames.decode()) == list(range(0, 60, 2))
    times = np.arange(29) / 30 + 0.7 / 60
    frames = VideoFrames(OpenVideos(), str(tmp_path / "fast.mp4"), times, 1 / 30, SPEC, "x")
    assert shown_numbers(frames.decode()) == list(range(1, 59, 2))


def test_a_video_that_starts_late_or_before_zero_starts_with_its_first_step(tmp_path: Path) -> None:
    for name, offset in (("late.mp4", 7), ("late.mkv", 7), ("early.mp4", -4)):
        write_video(tmp_path / name, range(40), pts=[i + offset for i in range(40)])
        frames = frames_of(tmp_path / name, 0, 36)
        numbers = shown_numbers(frames.decode())
        # What an edit list cuts off before zero is not shown; all else is.
        first = numbers[0]
        assert first in (0, -min(offset, 0))
        assert numbers == list(range(first, first + 36))
        assert shown_numbers(frames.decode(20, 25)) == list(range(first + 20, first + 25))


def test_a_video_that_ends_early_is_named_with_step_and_time(tmp_path: Path) -> None:
    write_video(tmp_path / "short.mp4", range(10))
    with pytest.raises(
        DataFormatError,
        match=r"camera, step 10: .*short.mp4 has no frame at 0.3333 s: it ends at 0.3000",
    ):
        frames_of(tmp_path / "short.mp4", 0, 12).decode()
    assert shown_numbers(frames_of(tmp_path / "short.mp4", 0, 12).decode(0, 10)) == list(range(10))


def test_a_truncated_file_is_an_error_that_names_it(long_video: Path, tmp_path: Path) -> None:
    content = long_video.read_bytes()
    for size in (0, 10, len(content) // 2, len(content) - 2000):
        path = tmp_path / f"cut{size}.mp4"
        path.write_bytes(content[:size])
        with pytest.raises(DataFormatError, match=f"cut{size}.mp4"):
            frames_of(path).decode()


def test_a_file_cut_behind_its_index_gives_frames_up_to_the_cut(tmp_path: Path) -> None:
    import av

    write_video(tmp_path / "plain.mp4", range(FRAMES))
    with (
        av.open(str(tmp_path / "plain.mp4")) as source,
        av.open(str(tmp_path / "fast.mp4"), "w", options={"movflags": "faststart"}) as target,
    ):
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    content = (tmp_path / "fast.mp4").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(content[: len(content) * 2 // 3])
    frames = frames_of(tmp_path / "cut.mp4")
    with pytest.raises(DataFormatError, match=r"cut\.mp4"):
        frames.decode()
    assert shown_numbers(frames.decode(0, 100)) == list(range(100))


def test_a_playlist_that_calls_itself_a_video_opens_nothing(long_video: Path, tmp_path: Path) -> None:
    for name, text in (
        ("concat.mp4", f"ffconcat version 1.0\nfile '{long_video}'\n"),
        ("hls.mp4", f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile:{long_video}\n#EXT-X-ENDLIST\n"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(DataFormatError, match=name):
            frames_of(tmp_path / name).decode()


def test_a_colon_in_a_name_is_no_protocol(tmp_path: Path) -> None:
    write_video(tmp_path / "concat:a|b.mp4", range(5))
    assert shown_numbers(frames_of(tmp_path / "concat:a|b.mp4", 0, 5).decode()) == list(range(5))


def test_a_title_in_no_known_encoding_does_not_matter(long_video: Path, tmp_path: Path) -> None:
    content = long_video.read_bytes()
    assert content.count(b"VideoHandler") == 1
    (tmp_path / "titled.mp4").write_bytes(content.replace(b"VideoHandler", b"Vid\xe9oHandler"))
    assert shown_numbers(frames_of(tmp_path / "titled.mp4").decode(0, 5)) == list(range(5))


def test_a_missing_video_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere.mp4"):
        frames_of(tmp_path / "nowhere.mp4").decode()


def test_videos_behind_urls_are_read_and_jumped_in(long_video: Path) -> None:
    import fsspec

    with fsspec.open("memory://videos/long.mp4", "wb") as file:
        file.write(long_video.read_bytes())
    frames = frames_of("memory://videos/long.mp4", 0, FRAMES)
    assert shown_numbers(frames.decode(0, 20)) == list(range(20))
    assert shown_numbers(frames.decode(270, 300)) == list(range(270, 300))
    assert shown_numbers(frames.decode(100, 110)) == list(range(100, 110))


def test_another_size_than_declared_is_an_error(long_video: Path) -> None:
    spec = FieldSpec("image", (SIDE, 32, 3), np.dtype(np.uint8))
    with pytest.raises(DataFormatError, match="has 64 x 64 pixels, expected 64 x 32"):
        frames_of(long_video, spec=spec).decode(0, 1)
    unknown = FieldSpec("image", (-1, -1, -1), np.dtype(np.uint8))
    assert frames_of(long_video, spec=unknown).decode(0, 1).shape == (1, SIDE, SIDE, 3)


def test_frames_wanted_encoded_are_jpegs_of_the_right_frames(long_video: Path) -> None:
    import simplejpeg

    with pytest.warns(UserWarning, match="encoded anew"):
        frames = frames_of(long_video, 40, 35).encoded()
    assert {image_format(frame) for frame in frames} == {"jpeg"}
    assert shown_numbers(np.stack([simplejpeg.decode_jpeg(f) for f in frames])) == list(range(40, 75))


def colour_video(path: Path | io.BytesIO, rgb: npt.NDArray[np.uint8], **changes: Any) -> None:
    import av

    options = {"pix_fmt": "yuv420p", "colorspace": 2, "color_range": 1, **changes}
    with av.open(path if isinstance(path, io.BytesIO) else str(path), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"qp": "0", "preset": "ultrafast"})
        stream.height, stream.width = rgb.shape[:2]
        stream.pix_fmt = options["pix_fmt"]
        stream.codec_context.colorspace = options["colorspace"]
        stream.codec_context.color_range = options["color_range"]
        if options.get("rotation"):
            stream.set_display_rotation(options["rotation"])
        matrix = options["colorspace"] if options["colorspace"] != 2 else 5
        for number in range(3):
            frame = av.VideoFrame.from_ndarray(rgb, format="rgb24").reformat(
                format=options["pix_fmt"],
                dst_colorspace=matrix,
                src_color_range=2,
                dst_color_range=options["color_range"],
            )
            frame.colorspace, frame.color_range = options["colorspace"], options["color_range"]
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


QUARTERS = np.zeros((48, 64, 3), np.uint8)
QUARTERS[:24, :32], QUARTERS[:24, 32:] = (200, 30, 60), (20, 180, 90)
QUARTERS[24:, :32], QUARTERS[24:, 32:] = (40, 60, 220), (128, 128, 128)


@pytest.mark.parametrize("colorspace", [1, 5, 2], ids=["bt709", "bt601", "not told"])
@pytest.mark.parametrize("color_range", [1, 2], ids=["limited", "full"])
def test_colours_come_back_by_the_matrix_and_range_that_the_file_declares(
    tmp_path: Path, colorspace: int, color_range: int
) -> None:
    path = tmp_path / "colours.mp4"
    colour_video(path, QUARTERS, colorspace=colorspace, color_range=color_range)
    spec = FieldSpec("image", (48, 64, 3), np.dtype(np.uint8))
    found = frames_of(path, 0, 3, spec=spec).decode()[1].astype(int)
    for y, x in ((10, 10), (10, 50), (40, 10), (40, 50)):
        assert np.abs(found[y, x] - QUARTERS[y, x]).max() <= 4


def test_a_file_that_says_it_is_turned_is_turned(tmp_path: Path) -> None:
    path = tmp_path / "turned.mp4"
    for rotation in (90, 180, -90):
        colour_video(path, QUARTERS, rotation=rotation)
        turned = np.rot90(QUARTERS, rotation // 90)
        with_info = frames_of(path, 0, 3, spec=FieldSpec("image", turned.shape, np.dtype(np.uint8)))
        info = with_info.info()
        assert (info.height, info.width, info.channels) == turned.shape
        found = with_info.decode()[0].astype(int)
        assert np.abs(found - turned)[::5, ::5].max() <= 40  # chroma is blurred at the quarters' edges
        assert np.abs(found[3, 3] - turned[3, 3]).max() <= 4


def test_odd_sizes_come_whole(tmp_path: Path) -> None:
    colour_video(tmp_path / "odd.mp4", QUARTERS[:47, :63], pix_fmt="yuv444p")
    spec = FieldSpec("image", (47, 63, 3), np.dtype(np.uint8))
    found = frames_of(tmp_path / "odd.mp4", 0, 3, spec=spec).decode()[2].astype(int)
    assert np.abs(found - QUARTERS[:47, :63]).max() <= 4


def test_depth_of_sixteen_bits_comes_as_it_was(tmp_path: Path) -> None:
    import av

    depth = np.random.default_rng(0).integers(0, 1 << 16, (4, 16, 24)).astype(np.uint16)
    with av.open(str(tmp_path / "depth.mkv"), "w") as container:
        stream = container.add_stream("ffv1", rate=FPS)
        stream.height, stream.width, stream.pix_fmt = 16, 24, "gray16le"
        for number, values in enumerate(depth):
            frame = av.VideoFrame.from_ndarray(values, format="gray16le")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    frames = frames_of(
        tmp_path / "depth.mkv", 0, 4, spec=FieldSpec("image", (16, 24, 1), np.dtype(np.uint16))
    )
    assert frames.info().dtype == np.uint16
    assert np.array_equal(frames.decode()[..., 0], depth)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_and_its_parent_both_read_on(long_video: Path) -> None:
    """Decoders have threads, of which a fork keeps none: one that was open would wait for them for ever."""
    frames = frames_of(long_video)
    assert shown_numbers(frames.decode(0, 7)) == list(range(7))
    context = multiprocessing.get_context("fork")
    numbers = context.SimpleQueue()
    child = context.Process(target=lambda: numbers.put(shown_numbers(frames.decode(7, 20))))
    child.start()
    assert numbers.get() == list(range(7, 20))
    child.join()
    assert child.exitcode == 0
    assert shown_numbers(frames.decode(7, 20)) == list(range(7, 20))
