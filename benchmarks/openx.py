"""Robot data: what each stage from file to batch gives a second, beside a bare decoder and a plain reader.

python benchmarks/openx.py                        # the arm that replaybank draws itself
python benchmarks/openx.py --data path/to/rlds    # an RLDS dataset of yours
python benchmarks/openx.py --threads 2            # on as many cores: look at the rates by the clock
python benchmarks/openx.py --quick                # to see that it runs
"""

from __future__ import annotations

import argparse
import os
import shutil
import struct
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from replaybank import OpenXExperienceReplay
from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.sources.base import FieldSpec, Images, Key, decoded_into
from replaybank.datasets.openx.sources.columns import EpisodeDecoder
from replaybank.datasets.openx.sources.features import parse_features
from replaybank.datasets.openx.sources.images import encode_frame
from replaybank.datasets.openx.sources.rlds import RLDSSource
from replaybank.datasets.openx.sources.rlds_writer import RLDSWriter
from replaybank.datasets.openx.sources.tfrecord import read_records
from rounds import QUIET, THREADS, Call, Contender, Medians, Parts, Skipped, compare, setting, show

SLICE, BATCH = 8, 64
"""Steps of a slice, and of a batch."""

FRAMING, PARSING, DECODING = "framing + CRC", "and Example parsing", "decoding frames"
READING = (FRAMING, PARSING)
CONVERTING = ("converting, raw", "converting, encoded")
STREAMING = ("streaming, trajectories", "streaming, slices")
SAMPLING = ("sampling, raw", "sampling, encoded")
STAGES = (*READING, DECODING, *CONVERTING, *STREAMING, *SAMPLING)

BESIDE = 1 + 1 / SLICE
"""Frames that are decoded for a step of a slice: the last one's next observation is one more."""
DECODED = {DECODING: 1.0, CONVERTING[0]: 1.0, STREAMING[0]: 1.0, STREAMING[1]: BESIDE, SAMPLING[1]: BESIDE}
"""Frames that a stage decodes for each of a camera's."""

WALL, CPU = "", "CPU"


def per(count: int, work: Callable[[], object]) -> Parts:
    """Seconds that one of ``count`` steps took: by the clock, and of all threads of the process together.

    The second is hardly longer on a machine that others use too, so it is what stages are compared by.
    """
    start, spent = time.perf_counter(), time.process_time()
    work()
    cpu, wall = time.process_time() - spent, time.perf_counter() - start
    return {WALL: wall / max(count, 1), CPU: cpu / max(count, 1)}


def drain(things: Iterable[object]) -> None:
    """Take all, keep none."""
    deque(things, maxlen=0)


def shards_of(folder: Path) -> list[str]:
    """Paths of the files of records."""
    return [shard.path for shard in RLDSSource(folder).shards()]


def steps_of(folder: Path) -> int:
    """Steps of all episodes."""
    source = RLDSSource(folder)
    return sum(episode.length for shard in source.shards() for episode in source.episodes(shard))


def frames_of(folder: Path) -> Iterator[Images]:
    """The cameras of each episode."""
    source = RLDSSource(folder)
    for shard in source.shards():
        for episode in source.episodes(shard):
            for column in episode.steps.values():
                if not isinstance(column, (list, np.ndarray)):
                    yield column


def ours(folder: Path, scratch: Path, threads: int) -> dict[str, Call]:
    """replaybank's stages, each on its own."""
    torch.set_num_threads(threads)
    steps = steps_of(folder)
    paths = shards_of(folder)
    features = parse_features((Path(RLDSSource(folder).path) / "features.json").read_bytes())

    def framing() -> None:
        for path in paths:
            drain(read_records(path))

    def parsing() -> None:
        for path in paths:
            decoder = EpisodeDecoder(features, "")
            drain(decoder.decode(record.payload, "") for record in read_records(path))

    def converted(images: Literal["raw", "encoded"]) -> None:
        target = scratch / f"new-{images}"
        shutil.rmtree(target, ignore_errors=True)
        convert(folder, target, images=images, num_workers=threads, progress=False)

    calls: dict[str, Call] = {
        FRAMING: partial(per, steps, framing),
        PARSING: partial(per, steps, parsing),
        CONVERTING[0]: partial(per, steps, partial(converted, "raw")),
        CONVERTING[1]: partial(per, steps, partial(converted, "encoded")),
        STREAMING[0]: partial(per, steps, partial(drain, stream(folder, threads))),
        STREAMING[1]: partial(some_slices, stream(folder, threads, slice_len=SLICE, batch_size=BATCH)),
    }
    cameras = list(frames_of(folder))
    if cameras:
        calls[DECODING] = partial(per, steps, partial(decode_all, cameras))
    kinds: tuple[Literal["raw", "encoded"], ...] = ("raw", "encoded")
    for case, images in zip(SAMPLING, kinds, strict=True):
        convert(folder, scratch / images, images=images, num_workers=1, progress=False)
        stored = OpenXExperienceReplay(
            images, root=scratch, streaming=False, slice_len=SLICE, batch_size=BATCH, strict_length=False
        )
        calls[case] = partial(per, BATCH, stored.sample)
    return calls


def stream(folder: Path, threads: int, **arguments: Any) -> OpenXExperienceReplay:
    """A stream that stays open: what is timed is what it gives, not that it begins."""
    return OpenXExperienceReplay(
        "data",
        source=os.fspath(folder),
        streaming=True,
        num_workers=threads,
        strict_length=False,
        **arguments,
    )


def some_slices(dataset: OpenXExperienceReplay) -> Parts:
    """Batches of a stream, the first of them untimed: it was decoded while nobody looked at the clock."""
    dataset.sample()
    return per(4 * BATCH, lambda: [dataset.sample() for _ in range(4)])


def decode_all(cameras: list[Images]) -> None:
    """Decode frames into memory that is used again, a few at a time."""
    for camera in cameras:
        height, width, channels = camera.decode(0, 1).shape[1:]
        room = np.empty((max(1, (1 << 18) // (height * width * channels)), height, width, channels), np.uint8)
        for start in range(0, len(camera), len(room)):
            stop = min(start + len(room), len(camera))
            decoded_into(camera, room[: stop - start], start, stop)


def jpegs_of(folder: Path) -> list[bytes]:
    """All frames, in memory.

    Raises:
        Skipped: there are none, or some that simplejpeg does not decode.
    """
    frames = [frame for camera in frames_of(folder) for frame in camera.encoded()]
    if not frames or any(frame[:3] != b"\xff\xd8\xff" for frame in frames):
        raise Skipped("there are no frames, or some are not JPEG")
    return frames


def side_by_side(threads: int, work: Callable[[int], None]) -> Callable[[], None]:
    """Has ``work`` done in each of so many threads, by number; in the calling one if that is all."""
    if threads == 1:
        return partial(work, 0)
    pool = ThreadPoolExecutor(threads)
    return lambda: drain(pool.map(work, range(threads)))


def _room(frame: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Memory where the decoder is fastest: rows that begin at a multiple of 32 it writes past the caches."""
    memory = np.empty(frame.nbytes + 128, np.uint8)
    start = 8 - memory.ctypes.data % 64 + 64
    return memory[start : start + frame.nbytes].reshape(frame.shape)


def bare(folder: Path, _: Path, threads: int) -> dict[str, Call]:
    """The decoder alone: JPEGs from memory into one array, nothing else. The ceiling of all that decodes."""
    import simplejpeg

    frames = jpegs_of(folder)
    first = simplejpeg.decode_jpeg(frames[0], "RGB")
    same = all(simplejpeg.decode_jpeg_header(frame)[:2] == first.shape[:2] for frame in frames)
    rooms = [_room(first) if same else None for _ in range(threads)]

    def decode(number: int) -> None:
        for frame in frames[number::threads]:
            simplejpeg.decode_jpeg(frame, "RGB", buffer=rooms[number])

    call = partial(per, steps_of(folder), side_by_side(threads, decode))
    return dict.fromkeys((DECODING, CONVERTING[0], *STREAMING, SAMPLING[1]), call)


def writing(folder: Path, scratch: Path, threads: int) -> dict[str, Call]:
    """The decoder, and its pixels written to a file that is then on the disk: what no conversion can beat."""
    import simplejpeg

    frames = jpegs_of(folder)

    def decode(number: int) -> None:
        with open(scratch / f"pixels-{number}", "wb", buffering=0) as file:
            for frame in frames[number::threads]:
                file.write(simplejpeg.decode_jpeg(frame, "RGB"))
            os.fsync(file.fileno())

    return {CONVERTING[0]: partial(per, steps_of(folder), side_by_side(threads, decode))}


def plain_records(path: str) -> Iterator[bytes]:
    """Payloads of a TFRecord file, read as a dozen lines of Python do: no checksum is looked at."""
    with open(path, "rb") as file:
        while header := file.read(12):
            (length,) = struct.unpack("<Q", header[:8])
            yield file.read(length)
            file.read(4)


def plain_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def plain_fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and contents of the fields of a protobuf message."""
    at = 0
    while at < len(data):
        tag, at = plain_varint(data, at)
        if tag & 7 == 0:
            value, at = plain_varint(data, at)
            yield tag >> 3, value
        else:
            size, at = (4, at) if tag & 7 == 5 else plain_varint(data, at)
            yield tag >> 3, data[at : at + size]
            at += size


def plain_list(kind: int, body: bytes) -> Any:
    """The values of a feature."""
    values = [value for _, value in plain_fields(body)]
    if kind == 1:
        return values
    packed = b"".join(value for value in values if isinstance(value, bytes))
    if kind == 2:
        return np.frombuffer(packed, "<f4")
    numbers, at = [value for value in values if isinstance(value, int)], 0
    while at < len(packed):
        value, at = plain_varint(packed, at)
        numbers.append(value)
    return np.array(numbers, np.uint64).view(np.int64)


def plain_example(payload: bytes) -> dict[str, Any]:
    """The features of a tf.train.Example."""
    found = {}
    for _, features in plain_fields(payload):
        for _, entry in plain_fields(features):
            parts = dict(plain_fields(entry))
            for kind, body in plain_fields(parts[2]):
                found[parts[1].decode()] = plain_list(kind, body)
    return found


def plain(folder: Path, *_: object) -> dict[str, Call]:
    """A reader in Python, as one writes it from the format's page."""
    steps, paths = steps_of(folder), shards_of(folder)

    def framing() -> None:
        for path in paths:
            drain(plain_records(path))

    def parsing() -> None:
        for path in paths:
            drain(map(plain_example, plain_records(path)))

    return {FRAMING: partial(per, steps, framing), PARSING: partial(per, steps, parsing)}


def tfrecord_package(folder: Path, *_: object) -> dict[str, Call]:
    """The ``tfrecord`` package, which does not look at checksums either."""
    reader: Any = import_module("tfrecord.reader")

    steps, paths = steps_of(folder), shards_of(folder)

    def framing() -> None:
        for path in paths:
            drain(reader.tfrecord_iterator(path))

    def parsing() -> None:
        for path in paths:
            drain(reader.example_loader(path, None))

    return {FRAMING: partial(per, steps, framing), PARSING: partial(per, steps, parsing)}


CONTENDERS: Mapping[str, Callable[[Path, Path, int], dict[str, Call]]] = {
    "replaybank": ours,
    "bare decoder": bare,
    "decoder + file": writing,
    "plain Python": plain,
    "tfrecord": tfrecord_package,
}


NEEDS = {
    "bare decoder": ("simplejpeg", "simplejpeg is not installed"),
    "decoder + file": ("simplejpeg", "simplejpeg is not installed"),
    "tfrecord": ("tfrecord", "the tfrecord package is not installed"),
}
"""What a contender imports, and what to say where it cannot: before a process is started for it."""


def write_numbers(folder: Path, episodes: int, length: int = 200) -> Path:
    """Steps without frames: a state, an action, a reward, the flags, and a text."""
    state, flag = FieldSpec("tensor", (7,), np.dtype("float32")), FieldSpec("tensor", (), np.dtype("bool"))
    fields: dict[Key, FieldSpec] = {
        ("observation", "state"): state,
        ("action",): state,
        ("reward",): FieldSpec("tensor", (), np.dtype("float32")),
        **{(name,): flag for name in ("is_first", "is_last", "is_terminal")},
        ("language_instruction",): FieldSpec("text", (), None),
    }
    rng = np.random.default_rng(0)
    steps = np.arange(length)
    with RLDSWriter(folder, "numbers", fields=fields, shards=4) as writer:
        for number in range(episodes):
            writer.write(
                {
                    ("observation", "state"): rng.normal(size=(length, 7)).astype(np.float32),
                    ("action",): rng.normal(size=(length, 7)).astype(np.float32),
                    ("reward",): rng.random(length, np.float32),
                    ("is_first",): steps == 0,
                    ("is_last",): steps == length - 1,
                    ("is_terminal",): steps == length - 1,
                    ("language_instruction",): [f"reach for the {number % 7} mark"] * length,
                }
            )
    return folder


def write_frames(folder: Path, height: int, width: int, episodes: int, length: int = 40) -> Path:
    """Steps with one camera: a blurred picture that moves, a little noise, as JPEG of quality 90."""
    fields: dict[Key, FieldSpec] = {
        ("observation", "image"): FieldSpec("image", (height, width, 3), np.dtype("uint8")),
        ("action",): FieldSpec("tensor", (7,), np.dtype("float32")),
    }
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (height // 16 + 2, width // 16 + 2, 3)).repeat(16, 0).repeat(16, 1)
    shifts = [(dy, dx) for dy in (0, 4, 8, 12) for dx in (0, 4, 8, 12)]
    wide = np.mean([np.roll(blocks, shift, (0, 1)) for shift in shifts], axis=0)
    frames = []
    for number in range(16):
        part = wide[number : number + height, number : number + width]
        noisy = part + rng.normal(0, 2, (height, width, 3))
        frames.append(encode_frame(noisy.clip(0, 255).astype(np.uint8), "jpeg", 90))
    with RLDSWriter(folder, "frames", fields=fields, shards=2) as writer:
        for number in range(episodes):
            writer.write(
                {
                    ("observation", "image"): [frames[(number + k) % 16] for k in range(length)],
                    ("action",): rng.normal(size=(length, 7)).astype(np.float32),
                }
            )
    return folder


def shares(medians: Medians, names: list[str]) -> str:
    """What of the bare decoder's rate is left in each stage, by CPU time: frame for frame."""
    rows = []
    for case, frames in DECODED.items():
        bare_seconds = medians.get(("bare decoder", case, CPU))
        if bare_seconds is None:
            continue
        cells = []
        for name in names:
            seconds = medians.get((name, case, CPU))
            decoded = frames if name == names[0] else 1.0
            cells.append("-" if seconds is None else f"{bare_seconds * decoded / seconds:.2f}")
        rows.append([case, *cells])
    return show(["of the bare decoder, CPU", *names], rows) if rows else ""


def of_cpu(medians: Medians, name: str) -> str:
    """Steps that each stage of a contender gives for a second of CPU time, whatever else the machine does."""
    rows = [[case, f"{1 / medians[name, case, CPU]:,.0f}"] for case in STAGES if (name, case, CPU) in medians]
    return show(["steps a second of CPU", name], rows)


def rates(medians: Medians, names: list[str], frames: float) -> str:
    """A table of steps and frames a second; in parentheses the share of the first contender's."""
    rows = []
    for case in STAGES:
        found = {
            name: 1 / seconds for (name, of, part), seconds in medians.items() if of == case and part == WALL
        }
        if not found:
            continue
        first = found.get(names[0])
        cells = []
        for name in names:
            if name not in found:
                cells.append("-")
                continue
            share = f" ({found[name] / first:.2f})" if first is not None and name != names[0] else ""
            cells.append(f"{found[name]:,.0f}{share}")
        in_frames = f"{first * frames:,.0f}" if first is not None and frames else "-"
        rows.append([case, *cells, in_frames])
    return show(["steps a second", *names, "frames a second"], rows)


def run(title: str, folder: Path, scratch: Path, given: argparse.Namespace) -> None:
    """Measure one dataset and print its table."""
    steps = steps_of(folder)
    frames = sum(len(camera) for camera in frames_of(folder)) / steps
    size = sum(os.path.getsize(path) for path in shards_of(folder))
    print(f"\n{title}: {steps:,} steps, {frames:.1f} frames a step, {size / 1e6:.1f} MB")
    with ExitStack() as stack:
        ready = []
        for name in given.only:
            needed, absent = NEEDS.get(name, ("torch", ""))
            if find_spec(needed) is None:
                print(f"{name} is left out: {absent}")
                continue
            place = scratch / name
            place.mkdir(parents=True)
            contender = stack.enter_context(
                Contender(name, partial(CONTENDERS[name], folder, place, given.threads))
            )
            try:
                contender.ready()
            except Skipped as reason:
                print(f"{name} is left out: {reason}")
            else:
                ready.append(contender)
        found = compare(
            ready, STAGES, rounds=given.rounds, seconds=given.seconds, calls=given.calls, least=given.least
        )
    names = [contender.name for contender in ready]
    print(rates(found, names, frames))
    print(of_cpu(found, names[0]))
    print(shares(found, [name for name in names if name in (names[0], "bare decoder", "decoder + file")]))


def main() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few episodes, one short round")
    parser.add_argument("--data", type=Path, help="folder of an RLDS dataset")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--threads", type=int, default=1, help="that decode, on as many cores")
    parser.add_argument("--rounds", type=int, default=5, help="visits to each contender")
    parser.add_argument("--seconds", type=float, default=0.5, help="longest stay at a stage in one round")
    parser.add_argument("--calls", type=int, default=50, help="most calls of a stage in one round")
    parser.add_argument("--least", action="store_true", help="5th percentiles: for a machine that others use")
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.seconds, given.calls = 1, 0.05, 3
    for name in THREADS:
        os.environ[name] = "1"  # the contenders' processes read it when they start
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    print(setting(["torch", "tensordict", "numpy", "simplejpeg", "tfrecord"]))
    with tempfile.TemporaryDirectory(prefix="replaybank-benchmark-") as scratch:
        place = Path(scratch)
        if given.data is not None:
            run(str(given.data), given.data, place / "data", given)
        else:
            from replaybank.demo.arm import write_arm_dataset

            arm = write_arm_dataset(place / "arm-rlds", episodes=4 if given.quick else 40)
            run("a drawn arm, two cameras", arm, place / "arm", given)
            if not given.quick:
                for height, width in ((256, 256), (480, 640)):
                    name = f"{width} x {height}"
                    drawn = write_frames(place / f"{name}-rlds", height, width, 3_000_000 // (height * width))
                    run(f"frames of {name}", drawn, place / name, given)
        numbers = write_numbers(place / "numbers-rlds", 20 if given.quick else 1000)
        run("steps without frames", numbers, place / "numbers", given)


if __name__ == "__main__":
    main()
