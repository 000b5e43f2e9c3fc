"""Writes LeRobot datasets whose every frame shows its own number, so that any wrong frame is seen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SIDE = 64
BITS = 16
FPS = 30
CAMERA = "observation.images.top"
TASKS = ("pick up the cube", "put it down")

H264_LONG = ("libx264", {"g": "250", "bf": "3", "preset": "veryfast", "x264-params": "scenecut=0:b-adapt=0"})
H264_OPEN = ("libx264", {"g": "12", "bf": "3", "preset": "veryfast", "x264-params": "open-gop=1:scenecut=0"})
HEVC_OPEN = (
    "libx265",
    {"preset": "ultrafast", "x265-params": "log-level=none:keyint=20:bframes=3:open-gop=1:scenecut=0"},
)
AV1 = ("libsvtav1", {"preset": "10", "g": "30", "crf": "8", "svtav1-params": "lp=1"})
CODECS: dict[str, tuple[str, dict[str, str]]] = {
    "h264 long": H264_LONG,
    "h264 open": H264_OPEN,
    "hevc open": HEVC_OPEN,
    "av1": AV1,
}


def numbered_frame(number: int) -> npt.NDArray[np.uint8]:
    """A frame that shows its number as sixteen black or white blocks, ``[64, 64, 3]``."""
    bits = (number >> np.arange(BITS)) & 1
    blocks = bits.reshape(4, 4).astype(np.uint8) * 255
    return np.repeat(np.kron(blocks, np.ones((16, 16), np.uint8))[:, :, None], 3, axis=2)


def shown_numbers(frames: npt.NDArray[Any]) -> list[int]:
    """The numbers that frames ``[n, H, W, C]`` show."""
    blocks = frames[..., 0].reshape(len(frames), 4, 16, 4, 16).mean((2, 4)) > 127
    values: list[int] = (blocks.reshape(len(frames), BITS) @ (1 << np.arange(BITS))).tolist()
    return values


def write_video(
    path: Path,
    numbers: Sequence[int],
    codec: tuple[str, Mapping[str, str]] = H264_LONG,
    *,
    fps: int = FPS,
    pts: Sequence[int] | None = None,
) -> None:
    """Write frames that show ``numbers``; ``pts`` counts frame periods, from 0 on by default."""
    from fractions import Fraction

    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec[0], rate=fps, options=dict(codec[1]))
        stream.width = stream.height = SIDE
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = Fraction(1, fps)
        stream.codec_context.thread_count = 1
        for at, number in zip(pts if pts is not None else range(len(numbers)), numbers, strict=True):
            frame = av.VideoFrame.from_ndarray(numbered_frame(number), format="rgb24")
            frame.pts, frame.time_base = at, Fraction(1, fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def info_json(version: str, lengths: Sequence[int], **changes: Any) -> dict[str, Any]:
    """What meta/info.json says of the datasets written here."""
    three = version.startswith("v3")
    number = {"shape": [1], "names": None}
    info = {
        "codebase_version": version,
        "robot_type": "test",
        "total_episodes": len(lengths),
        "total_frames": sum(lengths),
        "total_tasks": len(TASKS),
        "chunks_size": 1000,
        "fps": FPS,
        "splits": {"train": f"0:{len(lengths)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
        if three
        else "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
        if three
        else "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        "features": {
            "observation.state": {"dtype": "float32", "shape": [3], "names": {"motors": ["a", "b", "c"]}},
            "action": {"dtype": "float32", "shape": [2], "names": None},
            CAMERA: {
                "dtype": "video",
                "shape": [SIDE, SIDE, 3],
                "names": ["height", "width", "channels"],
                "info": {"video.fps": FPS},
            },
            "next.reward": {"dtype": "float32", **number},
            "next.done": {"dtype": "bool", **number},
            "timestamp": {"dtype": "float32", **number},
            **{
                n: {"dtype": "int64", **number}
                for n in ("frame_index", "episode_index", "index", "task_index")
            },
        },
    }
    return {**info, **changes}


def columns(episode: int, length: int, first: int) -> dict[str, Any]:
    """The columns of one episode; ``first`` is the number of its first step in the dataset."""
    rng = np.random.default_rng(episode)
    done = np.zeros(length, bool)
    done[-1] = episode % 2 == 0
    return {
        "observation.state": list(rng.normal(size=(length, 3)).astype(np.float32)),
        "action": list(rng.normal(size=(length, 2)).astype(np.float32)),
        "next.reward": rng.normal(size=length).astype(np.float32),
        "next.done": done,
        "timestamp": (np.arange(length) / FPS).astype(np.float32),
        "frame_index": np.arange(length),
        "episode_index": np.full(length, episode),
        "index": np.arange(first, first + length),
        "task_index": (np.arange(length) > length // 2).astype(np.int64),
    }


def write_lerobot(
    folder: Path,
    version: str,
    lengths: Sequence[int],
    codec: tuple[str, Mapping[str, str]] | None = H264_LONG,
    *,
    data_files: Sequence[int] = (),
    video_files: Sequence[int] = (),
    info: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    row_group: int | None = None,
) -> Path:
    """Write a dataset; step ``i`` of the whole dataset has the frame that shows ``i``.

    Args:
        folder: where to.
        version: ``"v2.0"``, ``"v2.1"`` or ``"v3.0"``.
        lengths: steps of each episode.
        codec: of the videos; ``None`` writes none and declares no camera.
        data_files: number of the data file of each episode, of version 3.
        video_files: number of the video of each episode, of version 3.
        info: replaces entries of info.json.
        extra: more columns, each a function of (episode, length).
        row_group: rows in a group of the data files.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    three = version.startswith("v3")
    meta = folder / "meta"
    meta.mkdir(parents=True)
    said = info_json(version, lengths)
    if codec is None:
        del said["features"][CAMERA]
    (meta / "info.json").write_text(json.dumps({**said, **(info or {})}))
    starts = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    tables = []
    for episode, length in enumerate(lengths):
        values = columns(episode, length, starts[episode])
        values.update({name: make(episode, length) for name, make in (extra or {}).items()})
        tables.append(pa.table(values))
    texts = [list(TASKS)] * len(lengths)
    if not three:
        for name, entries in (
            ("tasks", [{"task_index": i, "task": task} for i, task in enumerate(TASKS)]),
            (
                "episodes",
                [{"episode_index": e, "tasks": texts[e], "length": n} for e, n in enumerate(lengths)],
            ),
        ):
            (meta / f"{name}.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
        for episode, length in enumerate(lengths):
            path = folder / f"data/chunk-000/episode_{episode:06d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(tables[episode], path, row_group_size=row_group)
            if codec is not None:
                numbers = range(starts[episode], starts[episode] + length)
                write_video(folder / f"videos/chunk-000/{CAMERA}/episode_{episode:06d}.mp4", numbers, codec)
        return folder
    data_files = data_files or [0] * len(lengths)
    video_files = video_files or [0] * len(lengths)
    for file in sorted(set(data_files)):
        path = folder / f"data/chunk-000/file-{file:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        there = [table for table, where in zip(tables, data_files, strict=True) if where == file]
        pq.write_table(pa.concat_tables(there), path, row_group_size=row_group)
    offsets = []
    for episode, file in enumerate(video_files):
        offsets.append(
            sum(n for n, f in zip(lengths[:episode], video_files, strict=False) if f == file) / FPS
        )
    if codec is not None:
        for file in sorted(set(video_files)):
            shown = [starts[e] + i for e, n in enumerate(lengths) if video_files[e] == file for i in range(n)]
            write_video(folder / f"videos/{CAMERA}/chunk-000/file-{file:03d}.mp4", shown, codec)
    listed = {
        "episode_index": list(range(len(lengths))),
        "tasks": texts,
        "length": list(lengths),
        "data/chunk_index": [0] * len(lengths),
        "data/file_index": list(data_files),
        "dataset_from_index": starts[:-1],
        "dataset_to_index": starts[1:],
        f"videos/{CAMERA}/chunk_index": [0] * len(lengths),
        f"videos/{CAMERA}/file_index": list(video_files),
        f"videos/{CAMERA}/from_timestamp": offsets,
        # Without the duration of the last frame, as some writers have it.
        f"videos/{CAMERA}/to_timestamp": [o + (n - 1) / FPS for o, n in zip(offsets, lengths, strict=True)],
        "stats/action/mean": [[0.0, 0.0]] * len(lengths),
    }
    if codec is None:
        listed = {name: values for name, values in listed.items() if not name.startswith("videos/")}
    (meta / "episodes/chunk-000").mkdir(parents=True)
    pq.write_table(pa.table(listed), meta / "episodes/chunk-000/file-000.parquet")
    tasks = pa.table({"task_index": [0, 1], "__index_level_0__": list(TASKS)})
    pq.write_table(tasks, meta / "tasks.parquet")
    return folder
