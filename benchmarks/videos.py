"""Robot videos: steps a second from a LeRobot dataset, beside LeRobot's own reader and a bare decoder.

python benchmarks/videos.py                    # needs lerobot, whose writer makes the dataset: AV1, 320 x 240
python benchmarks/videos.py --data path/to/it  # a LeRobot dataset of version 3.0 of yours
python benchmarks/videos.py --quick            # to see that it runs
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from openx import BATCH, CPU, SLICE, WALL, drain, per, some_slices, stream
from replaybank import OpenXExperienceReplay
from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.sources.lerobot import LeRobotSource
from rounds import QUIET, THREADS, Call, Contender, Medians, Skipped, compare, setting, show

IN_ORDER, DRAWN = "every step in order", f"slices of {SLICE}, drawn at random"
CASES = (IN_ORDER, DRAWN)


def steps_of(folder: Path) -> int:
    """Steps of all episodes."""
    source = LeRobotSource(folder)
    return sum(episode.length for shard in source.shards() for episode in source.episodes(shard))


def streamed(folder: Path, _: Path) -> dict[str, Call]:
    """replaybank, from the videos as they are."""
    torch.set_num_threads(1)
    return {
        IN_ORDER: partial(per, steps_of(folder), partial(drain, stream(folder, 1))),
        DRAWN: partial(some_slices, stream(folder, 1, slice_len=SLICE, batch_size=BATCH)),
    }


def stored(images: Literal["raw", "encoded"], folder: Path, scratch: Path) -> dict[str, Call]:
    """replaybank, converted once: to pixels, or to a JPEG a frame."""
    torch.set_num_threads(1)
    convert(folder, scratch / images, images=images, num_workers=1, progress=False)
    replay = OpenXExperienceReplay(
        images, root=scratch, streaming=False, slice_len=SLICE, batch_size=BATCH, strict_length=False
    )
    return {DRAWN: partial(per, BATCH, replay.sample)}


def lerobot(folder: Path, _: Path) -> dict[str, Call]:
    """LeRobot's own dataset, with the decoder that it takes by default."""
    torch.set_num_threads(1)
    reader: Any = import_module("lerobot.datasets.lerobot_dataset").LeRobotDataset
    source = LeRobotSource(folder)
    steps = steps_of(folder)
    cameras = [".".join(key) for key, spec in source.fields.items() if spec.kind == "image"]
    if source.fps is None:
        raise Skipped(f"{folder} does not say its rate")
    ahead = [step / source.fps for step in range(SLICE)]
    one_by_one = reader("benchmark/videos", root=folder)
    in_slices = reader("benchmark/videos", root=folder, delta_timestamps=dict.fromkeys(cameras, ahead))
    rng = np.random.default_rng(0)

    def in_order() -> None:
        drain(one_by_one[step] for step in range(steps))

    def drawn() -> None:
        drain(in_slices[int(step)] for step in rng.integers(steps, size=BATCH // SLICE))

    return {IN_ORDER: partial(per, steps, in_order), DRAWN: partial(per, BATCH, drawn)}


def bare(folder: Path, _: Path) -> dict[str, Call]:
    """PyAV on one thread, each file from beginning to end, to RGB: the ceiling of all that decodes."""
    import av

    files = sorted(folder.glob("videos/**/*.mp4"))
    if not files:
        raise Skipped(f"{folder} has no videos")

    def decode() -> None:
        for file in files:
            with av.open(os.fspath(file)) as container:
                container.streams.video[0].codec_context.thread_count = 1
                drain(frame.to_ndarray(format="rgb24") for frame in container.decode(video=0))

    return {IN_ORDER: partial(per, steps_of(folder), decode)}


CONTENDERS: Mapping[str, Callable[[Path, Path], dict[str, Call]]] = {
    "replaybank, streamed": streamed,
    "replaybank, JPEG": partial(stored, "encoded"),
    "replaybank, raw": partial(stored, "raw"),
    "lerobot": lerobot,
    "bare decoder": bare,
}


def write_videos(folder: Path, episodes: int, length: int = 40) -> Path:
    """A dataset by LeRobot's own writer: a picture that moves, one camera, thirty frames a second."""
    numbers = {"dtype": "float32", "shape": (7,), "names": [f"joint_{number}" for number in range(7)]}
    camera = {"dtype": "video", "shape": (240, 320, 3), "names": ["height", "width", "channels"]}
    writer: Any = import_module("lerobot.datasets.lerobot_dataset").LeRobotDataset.create(
        "benchmark/videos",
        fps=30,
        root=folder,
        features={"observation.state": numbers, "action": numbers, "observation.images.top": camera},
    )
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, (17, 22, 3), np.uint8).repeat(16, 0).repeat(16, 1)
    for _ in range(episodes):
        for step in range(length):
            at = step % 16
            writer.add_frame(
                {
                    "observation.state": rng.normal(size=7).astype(np.float32),
                    "action": rng.normal(size=7).astype(np.float32),
                    "observation.images.top": picture[at : at + 240, at : at + 320].copy(),
                    "task": "reach for the mark",
                }
            )
        writer.save_episode()
    writer.finalize()
    return folder


def table(medians: Medians, names: list[str]) -> str:
    """Steps a second by the clock, and for a second of CPU time."""
    rows = []
    for case in CASES:
        for unit, part in (("a second", WALL), ("a second of CPU", CPU)):
            cells = [medians.get((name, case, part)) for name in names]
            rows.append([f"{case}, {unit}", *("-" if cell is None else f"{1 / cell:,.0f}" for cell in cells)])
    return show(["steps", *names], rows)


def main() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few episodes, one short round")
    parser.add_argument("--data", type=Path, help="folder of a LeRobot dataset of version 3.0")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=5, help="visits to each contender")
    given = parser.parse_args()
    rounds, episodes = (1, 2) if given.quick else (given.rounds, 8)
    for name in THREADS:
        os.environ[name] = "1"  # the contenders' processes read it when they start
    for name, value in {**QUIET, "SVT_LOG": "1"}.items():
        os.environ.setdefault(name, value)
    absent = find_spec("lerobot") is None
    if absent and given.data is None:
        parser.error("lerobot, which writes the dataset, is not installed: give one with --data")
    print(setting(["torch", "tensordict", "numpy", "av", "simplejpeg", "lerobot", "torchcodec"]))
    with tempfile.TemporaryDirectory(prefix="replaybank-benchmark-") as scratch, ExitStack() as stack:
        place = Path(scratch)
        folder = given.data or write_videos(place / "written", episodes)
        ready = []
        for name in given.only:
            if name == "lerobot" and absent:
                print("lerobot is left out: it is not installed (its releases fix other versions of torch)")
                continue
            contender = Contender(name, partial(CONTENDERS[name], folder, place / name))
            try:
                stack.enter_context(contender).ready()
            except Skipped as reason:
                print(f"{name} is left out: {reason}")
            else:
                ready.append(contender)
        found = compare(ready, CASES, rounds=rounds, seconds=0.5, calls=20)
        print(f"\n{folder.name}: {steps_of(folder):,} steps")
        print(table(found, [contender.name for contender in ready]))


if __name__ == "__main__":
    main()
