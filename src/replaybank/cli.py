"""What a person types: ``replaybank demo``, ``convert``, ``info``, ``stats``, ``verify``."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from replaybank.errors import ReplaybankError

FAILED = 1
"""Exit status: data are not what they should be, or cannot be read or written; the output was closed."""
MISUSED = 2
"""Exit status: the command or its arguments make no sense."""
INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 and the signal's number, as shells count."""

MOST_NUMBERS = 32
"""Lines that ``stats`` shows of an entry that was not asked for by name: joints fit, embeddings do not."""

# The base of typer's own usage errors. Newer typers no longer share it with click, so it is taken from a
# class that every version exports.
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="replaybank",
    help="Robot-trajectory datasets: look at them, convert them, train on them.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


class OnError(str, Enum):
    """What to do with a record that cannot be read."""

    raise_ = "raise"
    skip = "skip"


class Images(str, Enum):
    """How the frames of a converted dataset are kept."""

    raw = "raw"
    encoded = "encoded"


class Origin(str, Enum):
    """Where a dataset is published."""

    rlds = "rlds"
    hub = "hub"
    lerobot = "lerobot"


class LastStep(str, Enum):
    """What becomes of the last step of an episode."""

    keep = "keep"
    drop = "drop"


def _path(text: str) -> str:
    """A path as it was typed, ``~`` for the home folder; a URL as it is."""
    return text if "://" in text else os.path.expanduser(text)


def _version(wanted: bool) -> None:
    if wanted:
        from replaybank import __version__

        print(f"replaybank {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Robot-trajectory datasets: look at them, convert them, train on them."""


@app.command()
def demo(
    data: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="An RLDS dataset to use; without it a simulated arm's is written."),
    ] = None,
    output: Annotated[str, typer.Option(help="Folder for all files that are made.")] = "demo-output",
    seconds: Annotated[float, typer.Option(min=0.0, help="How long to train.")] = 60.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the arm, the draws and the network.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.")] = False,
) -> None:
    """Do the whole job once: inspect, convert, draw slices, train, and show the figures."""
    from replaybank.demo.run import run_demo

    data = None if data is None else _path(data)
    run_demo(data, output=_folder(output, "--output"), seconds=seconds, seed=seed, quiet=quiet)


@app.command(name="list")
def list_datasets(
    as_json: Annotated[bool, typer.Option("--json", help="Print everything, for programs.")] = False,
) -> None:
    """List the Open X-Embodiment datasets: robot, rate, size, entries, known defects."""
    from replaybank.datasets.openx.catalog import datasets
    from replaybank.show import show_catalog

    if as_json:
        print(json.dumps([asdict(facts) for facts in datasets().values()], indent=1))
    else:
        show_catalog(datasets().values())


@app.command()
def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="Path or URL of an RLDS or LeRobot dataset or of tar shards, or an id of `replaybank list`.",
        ),
    ],
    destination: Annotated[str, typer.Argument(metavar="DEST", help="Folder of the converted dataset.")],
    split: Annotated[str, typer.Option(help="Which split.")] = "train",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a converted dataset.")] = False,
    on_error: Annotated[
        OnError, typer.Option(help="What to do with a corrupt record: stop, or leave it out and count it.")
    ] = OnError.raise_,
    images: Annotated[
        Images,
        typer.Option(help="Decode frames now, or keep their JPEG or PNG bytes: 10 to 20 times smaller."),
    ] = Images.raw,
    image_key: Annotated[
        list[str] | None, typer.Option(help="A camera to keep; may be given several times. [default: all]")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads that decode frames.", show_default="one a core")
    ] = None,
    max_memory: Annotated[float, typer.Option(min=0.001, help="GiB to hold at most.")] = 1.0,
    origin: Annotated[
        Origin | None,
        typer.Option(
            help="Where to fetch an id from; lerobot: SRC is a repository of the hub, user/name.",
            show_default="what the catalog says",
        ),
    ] = None,
    last_step: Annotated[
        LastStep | None,
        typer.Option(help="Last step of each episode.", show_default="what the catalog says"),
    ] = None,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Convert what is there where declared files are not.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Convert a dataset into memory-mapped tensors, ready to be sampled; fetch it first if need be."""
    folder = _folder(destination, "DEST")
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: give a folder, which is made if it is missing")

    from replaybank.datasets.openx.convert import convert as convert_dataset
    from replaybank.datasets.openx.files import MANIFEST
    from replaybank.terminal import line

    done = not overwrite and (folder / MANIFEST).is_file()
    made = convert_dataset(
        _path(source) if origin is None else origin.value,
        folder,
        split=split,
        overwrite=overwrite,
        progress=not quiet and sys.stderr.isatty(),
        on_error=on_error.value,
        images=images.value,
        image_keys=image_key or None,
        num_workers=workers,
        max_memory=int(max_memory * (1 << 30)),
        dataset_id=None if origin is None else source,
        last_step=None if last_step is None else last_step.value,
        allow_missing=allow_missing,
    )
    if not quiet:
        left_out = f", {len(made.skipped):,} records left out" if made.skipped else ""
        declared = [episodes for _, episodes, *_ in made.origin["shards"]]
        # What is cut off the end of a shard was never a record, so it is not counted as left out.
        if made.skipped and None not in declared and made.episodes < sum(declared):
            missing = sum(declared) - made.episodes
            left_out += f", {missing:,} of {sum(declared):,} declared episodes missing"
        already = "already converted " if done else ""
        line(f"{made.name}: {made.episodes:,} episodes, {made.steps:,} steps{left_out} {already}in {folder}")


def _folder(text: str, name: str) -> Path:
    """A folder to write to."""
    if not text.strip():
        raise typer.BadParameter(f"{name} is empty: give a folder")
    if "://" in text:
        raise typer.BadParameter(f"{name} is a URL, {text}: give a folder of this machine")
    return Path(_path(text))


@app.command()
def info(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="Path or URL of a dataset, converted or not, or an id of `replaybank list`."
        ),
    ],
    split: Annotated[
        str | None, typer.Option(help="Which split of a dataset as published.", show_default="train")
    ] = None,
) -> None:
    """Show what is in a dataset: entries, episodes, lengths, images, instructions.

    Of an id that is no path: what the catalog knows.
    """
    from replaybank.datasets.openx.catalog import facts_of
    from replaybank.datasets.openx.sources.open import is_name
    from replaybank.datasets.openx.summary import summarise
    from replaybank.show import show_facts, show_summary

    if is_name(path):
        show_facts(facts_of(path))
        return
    with _reading("shard") as show:
        summary = summarise(_path(path), split, show)
    show_summary(summary)


@contextmanager
def _reading(
    unit: str, *, quiet: bool = False, title: str = "Reading"
) -> Iterator[Callable[[int, int], None]]:
    """A progress bar, which is told how many are done, and of how many."""
    from tqdm import tqdm

    with ExitStack() as closing:
        bars: list[tqdm[Any]] = []  # one, once something has been read: none flashes up before an error

        def show(done: int, of: int) -> None:
            if not bars:
                shown = not quiet and sys.stderr.isatty() and of > 1
                bars.append(tqdm(desc=title, total=of, unit=unit, leave=False, disable=not shown))
                closing.callback(bars[0].close)
            bars[0].update(done - bars[0].n)

        yield show


@app.command()
def stats(
    path: Annotated[str, typer.Argument(metavar="PATH", help="Folder of a converted dataset.")],
    key: Annotated[
        list[str] | None,
        typer.Option(
            help="An entry, its path joined by '/', shown whole; may be given several times. "
            "[default: all that are numbers]"
        ),
    ] = None,
    images: Annotated[bool, typer.Option("--images", help="Look at the cameras too, by channel.")] = False,
) -> None:
    """Show mean, deviation, range and quantiles of a converted dataset's entries, number by number."""
    from replaybank.datasets.openx.stats import dataset_stats
    from replaybank.datasets.openx.storage import DatasetStorage
    from replaybank.show import show_stats

    dataset = DatasetStorage(_path(path))
    there = {"/".join(leaf.key): leaf.key for leaf in dataset.manifest.leaves}
    unknown = [asked for asked in key or () if asked not in there]
    if unknown:
        raise typer.BadParameter(f"--key {unknown[0]}: there is no such entry; there are {', '.join(there)}")
    found = dataset_stats(dataset, [there[asked] for asked in key] if key else None, images=images)
    show_stats(found, most=None if key else MOST_NUMBERS, names=dataset.manifest.dim_names)


@app.command()
def verify(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="Folder of an original or a converted dataset.")
    ],
    split: Annotated[str, typer.Option(help="Which split of an original dataset.")] = "train",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print problems only.")] = False,
) -> None:
    """Read all of a dataset and say what is wrong where; the exit status is 1 if anything is."""
    from replaybank.datasets.openx.verify import verify as verify_dataset
    from replaybank.terminal import line

    with _reading("part", quiet=quiet) as show:
        found = verify_dataset(_path(path), split, show)
    for problem in found.problems:
        line(f"{problem.where}: {problem.what}")
    if not quiet:
        wrong = f"{len(found.problems):,} problem(s)" if found.problems else "nothing is wrong"
        note = f" ({found.unchecked})" if found.unchecked else ""
        line(f"{path}: {found.episodes:,} episodes, {found.steps:,} steps are whole; {wrong}{note}")
    if found.problems:
        raise typer.Exit(FAILED)


@app.command()
def stream(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC", help="Folder or URL of a published dataset, or an id of `replaybank list`."
        ),
    ],
    seconds: Annotated[float, typer.Option(min=0.0, help="How long.")] = 10.0,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Steps in a batch; without it whole trajectories come.")
    ] = None,
    slice_len: Annotated[int | None, typer.Option(min=1, help="Steps in a slice.")] = None,
    split: Annotated[str, typer.Option(help="Which split.")] = "train",
    workers: Annotated[
        int | None, typer.Option(min=0, help="Threads that decode.", show_default="the CPUs, up to 4")
    ] = None,
    buffer: Annotated[
        int, typer.Option(min=0, metavar="MB", help="Encoded megabytes to draw from; more shuffle better.")
    ] = 256,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Stream what is there where declared files are not.")
    ] = False,
) -> None:
    """Stream a dataset for a while, without storing it, and show how fast it comes with how much memory."""
    from replaybank.datasets.openx.files import is_converted
    from replaybank.datasets.openx.replay import OpenXExperienceReplay
    from replaybank.datasets.openx.throughput import measure
    from replaybank.show import show_throughput

    place = _path(source)
    if "://" not in place and is_converted(place):
        raise typer.BadParameter(
            f"{source} is converted already, so there is nothing to stream: give the published dataset"
        )
    dataset = OpenXExperienceReplay(
        place.rstrip("/").rpartition("/")[2] or "dataset",
        batch_size,
        slice_len=slice_len,
        strict_length=False,
        streaming=True,
        source=place,
        split=split,
        num_workers=workers,
        buffer_bytes=buffer << 20,
        allow_missing=allow_missing,
    )
    try:
        with _reading("s", title="Streaming") as show:
            whole = int(seconds)
            measured = measure(dataset, seconds, show=lambda gone: show(min(int(gone), whole), whole))
    finally:
        dataset.close()
    show_throughput(source, measured)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and give back its exit status; every error is one line on standard error.

    Args:
        arguments: what follows the program's name; ``None`` takes them from ``sys.argv``.

    Returns:
        0, ``FAILED``, ``MISUSED`` or ``INTERRUPTED``.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if sys.stdout is None:  # closed by whoever started this
        return _say("standard output is closed", FAILED)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a dataset's letters shows others: better than an error.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            status = app(given or ["--help"], prog_name="replaybank", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted(given)
    except SystemExit:
        return FAILED  # typer's way when whoever read the output has gone
    except BrokenPipeError:
        _drop_output()
        return FAILED
    except Exception as error:
        status = _fail(error, debug="--debug" in given)
        _drop_output()
        return status
    if status == INTERRUPTED:  # some versions of typer give this status instead of raising
        return _interrupted(given)
    if not given:
        return MISUSED
    return status if isinstance(status, int) else 0


def _interrupted(given: Sequence[str]) -> int:
    goes_on = "convert" in given and "--overwrite" not in given
    what = "; the same command goes on where it stopped" if goes_on else ""
    return _say(f"interrupted{what}", INTERRUPTED, "")


def _drop_output() -> None:
    """See to it that what cannot be written is not written again when Python ends, which would fail again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(text: str, status: int, kind: str = "error: ") -> int:
    """Print one line on standard error and give back the exit status."""
    if sys.stderr is not None:
        print(f"replaybank: {kind}{' '.join(text.split())}", file=sys.stderr)
    return status


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning on one line: where in the sources it arose is nothing to a user."""
    _say(str(message), 0, "warning: ")


def _missing_package(error: BaseException) -> str:
    """What an import failed for: the name of the package that is not there, or nothing."""
    found = ""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ImportError) and seen.name:
            found = seen.name.partition(".")[0]
        seen = seen.__cause__ or seen.__context__
    return found


def _fail(error: Exception, debug: bool) -> int:
    """Print an error and give back the exit status for it."""
    if debug:
        traceback.print_exception(error)
    status = FAILED
    if isinstance(error, _UsageError):
        message: Callable[[], str] = getattr(error, "format_message", error.__str__)
        status, text = MISUSED, message()
    elif isinstance(error, OSError):
        of = error.filename or ("standard output" if error.errno == errno.ENOSPC else "")
        text = f"{of}: {error.strerror}" if of and error.strerror else str(error)
    elif isinstance(error, ImportError):
        package, text = _missing_package(error), str(error)
        if package and "pip install" not in text:
            text = f"{text}: pip install {package}"
    elif isinstance(error, ReplaybankError):
        text = str(error)
    elif isinstance(error, ValueError):
        status, text = MISUSED, str(error)
    else:
        text = f"unexpected {type(error).__name__}: {error} (`replaybank --debug ...` shows where)"
    return _say(text, status)
