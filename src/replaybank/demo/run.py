"""The main job from end to end: robot episodes in, a trained network out, every number printed."""

from __future__ import annotations

import errno
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.files import is_converted
from replaybank.datasets.openx.replay import OpenXExperienceReplay
from replaybank.datasets.openx.sources.open import open_published
from replaybank.datasets.openx.summary import DatasetSummary, folder_bytes, summarise
from replaybank.demo.arm import NAME, VERSION, write_arm_dataset
from replaybank.demo.training import Training, train
from replaybank.show import show_summary
from replaybank.terminal import count, line, short, size, table

MARKER = ".replaybank-demo"
"""Name of the file by which the demo knows a folder as its own."""
SLICE = 8
"""Steps a slice, fewer where the shortest episode has fewer."""
BATCH = 256
"""Steps a batch, rounded down to whole slices."""
ARM_BYTES = 45_000_000
"""What the simulated arm's files take, as published and converted (a test compares)."""

_MEASURED = 2.0  # seconds for which batches are drawn to measure their rate


@dataclass(frozen=True)
class DemoResult:
    """What the demo did.

    Args:
        dataset: what the episodes are.
        converted: folder of the converted dataset.
        converted_bytes: size of its files.
        conversion_seconds: how long the conversion took.
        batch_size: steps a batch.
        batches_per_second: how fast batches were drawn, before training.
        training: losses.
    """

    dataset: DatasetSummary
    converted: Path
    converted_bytes: int
    conversion_seconds: float
    batch_size: int
    batches_per_second: float
    training: Training


def run_demo(
    data: str | Path | None = None,
    *,
    output: Path = Path("demo-output"),
    seconds: float = 60.0,
    seed: int = 0,
    quiet: bool = False,
) -> DemoResult:
    """Write or take a dataset, look at it, convert it, draw from it, learn from it.

    Args:
        data: folder, URL or id of a dataset in any form, converted or not; ``None`` writes the simulated
            arm's.
        output: folder for all files; its former contents are replaced only where the demo made them.
        seconds: how long to train.
        seed: of the simulated arm, the draws and the network.
        quiet: print the result only.

    Returns:
        All figures, as printed.

    Raises:
        FileExistsError: ``output`` holds something that the demo did not make.
        FileNotFoundError: there is no dataset at ``data``.
        ValueError: a network cannot learn from the data.
        DataFormatError: a file is not what its format says.
        OSError: a file cannot be read or written, or the disk has no room for what is made.
    """
    progress = False if quiet else None
    if data is not None and not is_converted(data):
        open_published(data, allow_missing_shards=True)  # before anything is made
    claim(output)
    if data is None:
        check_room(output)
        folder = output / "rlds" / NAME / VERSION
        _say(quiet, f"Writing episodes of a simulated arm to {folder}")
        shutil.rmtree(folder, ignore_errors=True)
        data = write_arm_dataset(folder, seed=seed)
    dataset = summarise(data, progress=progress)
    if not quiet:
        show_summary(dataset)
    began = time.perf_counter()
    if is_converted(data):
        destination = Path(data)
    else:
        destination = output / "converted" / dataset.name
        _say(quiet, f"Converting {count(dataset.episodes)} episodes into memory-mapped tensors")
        convert(data, destination, overwrite=True, progress=progress, allow_missing=True)
    conversion_seconds = time.perf_counter() - began
    slice_len = min(SLICE, dataset.length_range[0])
    batch_size = BATCH // slice_len * slice_len
    replay = OpenXExperienceReplay(
        dataset.name,
        batch_size,
        slice_len=slice_len,
        streaming=False,
        source=destination,
        generator=torch.Generator().manual_seed(seed),
    )
    rate = batches_per_second(replay, batch_size, min(_MEASURED, seconds))
    _say(quiet, f"Training a behaviour-cloning network for {seconds:g} s on slices of {slice_len} steps")
    lengths = replay.dataset.bounds[:, 1]
    episodes = torch.arange(len(lengths)).repeat_interleave(lengths)
    with _training_bar(not quiet and sys.stderr.isatty()) as on_progress:
        training = train(
            replay, episodes, seconds=seconds, batch_size=batch_size, seed=seed, on_progress=on_progress
        )
    result = DemoResult(
        dataset, destination, folder_bytes(destination) or 0, conversion_seconds, batch_size, rate, training
    )
    show_result(result)
    return result


def check_room(output: Path) -> None:
    """See to it that the simulated arm's files have room.

    Raises:
        OSError: with ``errno.ENOSPC``: there is less than they take; both are named.
    """
    free = shutil.disk_usage(output).free + (folder_bytes(output) or 0)  # what is there is replaced
    if free < ARM_BYTES:
        raise OSError(
            errno.ENOSPC,
            f"the demo's files take {size(ARM_BYTES)}, and {size(free)} are free there: make room, or choose "
            "another folder with --output",
            str(output),
        )


def claim(folder: Path) -> None:
    """Make a folder the demo's own, or see that it is.

    Raises:
        FileExistsError: it holds something that the demo did not make.
        OSError: it cannot be made.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as somewhere:
        ...     claim(Path(somewhere, "new"))
        ...     claim(Path(somewhere, "new"))
        ...     claim(Path(somewhere))
        Traceback (most recent call last):
        FileExistsError: ... holds something that the demo did not make: choose a new folder with --output
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: choose a new folder with --output")
    folder.mkdir(parents=True, exist_ok=True)
    marker = folder / MARKER
    if marker.exists():
        return
    if any(folder.iterdir()):
        raise FileExistsError(
            f"{folder} holds something that the demo did not make: choose a new folder with --output"
        )
    marker.write_text("`replaybank demo` made this folder and replaces what is in rlds and converted.\n")


def batches_per_second(replay: OpenXExperienceReplay, batch_size: int, seconds: float) -> float:
    """How many batches are drawn in a second, measured for some seconds after a first one."""
    replay.sample(batch_size)
    drawn = 0
    began = time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds or not drawn:
        replay.sample(batch_size)
        drawn += 1
    return drawn / max(passed, 1e-9)


def show_result(result: DemoResult) -> None:
    """Print the figures that a user wants to see."""
    dataset, training = result.dataset, result.training
    instructions = next((texts for texts in dataset.texts.values() if texts), None)
    cameras = ", ".join(f"{image.key[-1]} ({image.width} x {image.height})" for image in dataset.images)
    facts = [
        ("dataset", f"{dataset.name} {dataset.version}"),
        ("episodes", f"{count(dataset.episodes)}, {len(training.held_out)} of them held out of training"),
        ("steps", count(dataset.steps)),
        ("cameras", cameras or "none"),
        ("an instruction", short(instructions.most_common(1)[0][0]) if instructions else "none"),
        *_conversion(result),
        (
            "sampling",
            f"{result.batches_per_second:,.1f} batches/s of {result.batch_size} steps, "
            f"{count(result.batches_per_second * result.batch_size)} steps/s",
        ),
        (
            "training",
            f"{count(training.updates)} updates on {count(training.steps)} steps in {training.seconds:.0f} s",
        ),
    ]
    table("The data", facts)
    judged = [
        ("predicting the mean action", f"{training.mean_action:.4f}"),
        ("the network before training", f"{training.start:.4f}"),
        ("the network after training", f"{training.end:.4f}"),
        ("after training / mean action", f"{training.ratio:.3f}"),
    ]
    table("Loss on held-out episodes (mean squared error of normalised actions)", judged)
    if training.layout.left_out:
        left_out = ", ".join("/".join(key) for key in training.layout.left_out)
        line(f"Not shown to the network: {left_out}")
    files = [(dataset.form, dataset.path)] if dataset.form != "converted" else []
    table("The files", [*files, ("converted", str(result.converted))])


def _conversion(result: DemoResult) -> list[tuple[str, str]]:
    """How fast the dataset was converted, if it was not yet."""
    dataset, spent = result.dataset, max(result.conversion_seconds, 1e-9)
    if dataset.form == "converted":
        return [("size", size(result.converted_bytes)), ("conversion", "none: it is converted already")]
    published = size(dataset.bytes) if dataset.bytes is not None else "not known behind a URL"
    rates = f"{count(dataset.steps / spent)} steps/s, {size((dataset.bytes or 0) / spent)}/s read, "
    return [
        (f"size as {dataset.form}", published),
        ("size converted", size(result.converted_bytes)),
        ("conversion", f"{rates}{size(result.converted_bytes / spent)}/s written"),
    ]


def _say(quiet: bool, text: str) -> None:
    if not quiet:
        line(text)


@contextmanager
def _training_bar(shown: bool) -> Iterator[Callable[[float, float], None]]:
    """A progress bar over the time that training may take."""
    form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}{postfix}"
    with tqdm(total=1.0, desc="Training", disable=not shown, bar_format=form) as bar:

        def show(passed: float, loss: float) -> None:
            bar.update(passed - bar.n)
            bar.set_postfix(loss=f"{loss:.4f}", refresh=False)

        yield show
