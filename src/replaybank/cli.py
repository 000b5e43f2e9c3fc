"""What a person types: ``replaybank demo``, ``convert``, ``info``."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from replaybank.errors import ReplaybankError

FAILED = 1
"""Exit status: data are not what they should be, or cannot be read or written; the output was closed."""
MISUSED = 2
"""Exit status: the command or its arguments make no sense."""
INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 and the signal's number, as shells count."""

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
    output: Annotated[Path, typer.Option(help="Folder for all files that are made.")] = Path("demo-output"),
    seconds: Annotated[float, typer.Option(min=0.0, help="How long to train.")] = 60.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the arm, the draws and the network.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.")] = False,
) -> None:
    """Do the whole job once: inspect, convert, draw slices, train, and show the figures."""
    from replaybank.demo.run import run_demo

    run_demo(data, output=output, seconds=seconds, seed=seed, quiet=quiet)


@app.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Folder of an RLDS dataset.")],
    destination: Annotated[Path, typer.Argument(metavar="DEST", help="Folder of the converted dataset.")],
    split: Annotated[str, typer.Option(help="Which split.")] = "train",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a converted dataset.")] = False,
    on_error: Annotated[
        OnError, typer.Option(help="What to do with a corrupt record: stop, or leave it out and count it.")
    ] = OnError.raise_,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Convert a dataset into memory-mapped tensors, ready to be sampled."""
    from replaybank.datasets.openx.convert import convert as convert_dataset
    from replaybank.terminal import line

    made = convert_dataset(
        source,
        destination,
        split=split,
        overwrite=overwrite,
        progress=not quiet and sys.stderr.isatty(),
        on_error=on_error.value,
    )
    if not quiet:
        left_out = f", {len(made.skipped)} records left out" if made.skipped else ""
        line(f"{made.name}: {made.episodes:,} episodes, {made.steps:,} steps{left_out} in {destination}")


@app.command()
def info(
    path: Annotated[str, typer.Argument(metavar="PATH", help="Folder of an RLDS or a converted dataset.")],
    split: Annotated[str, typer.Option(help="Which split of an RLDS dataset.")] = "train",
) -> None:
    """Show what is in a dataset: entries, episodes, lengths, images, instructions."""
    from tqdm import tqdm

    from replaybank.datasets.openx.summary import summarise
    from replaybank.show import show_summary

    with tqdm(desc="Reading", unit="shard", leave=False, disable=not sys.stderr.isatty()) as bar:

        def show(done: int, of: int) -> None:
            bar.total = of
            bar.update(done - bar.n)

        summary = summarise(path, split, show)
    show_summary(summary)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and give back its exit status; every error is one line on standard error.

    Args:
        arguments: what follows the program's name; ``None`` takes them from ``sys.argv``.

    Returns:
        0, ``FAILED``, ``MISUSED`` or ``INTERRUPTED``.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a dataset's letters shows others: better than an error.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = app(given or ["--help"], prog_name="replaybank", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except SystemExit:
        return FAILED  # typer's way when whoever read the output has gone
    except BrokenPipeError:
        # Python flushes standard output once more when it ends, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        return _fail(error, debug="--debug" in given)
    if not given:
        return MISUSED
    return status if isinstance(status, int) else 0


def _fail(error: Exception, debug: bool) -> int:
    """Print an error and give back the exit status for it."""
    if debug:
        traceback.print_exception(error)
    status = FAILED
    if isinstance(error, _UsageError):
        message: Callable[[], str] = getattr(error, "format_message", error.__str__)
        status, text = MISUSED, message()
    elif isinstance(error, OSError):
        text = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
    elif isinstance(error, ReplaybankError):
        text = str(error)
    elif isinstance(error, ValueError):
        status, text = MISUSED, str(error)
    else:
        text = f"unexpected {type(error).__name__}: {error} (`replaybank --debug ...` shows where)"
    print("replaybank: error:", " ".join(text.split()), file=sys.stderr)
    return status
