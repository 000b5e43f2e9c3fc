"""The command as a function: arguments in, an exit status out."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Sequence

import typer

from replaybank.cli.commands import app
from replaybank.cli.errors import FAILED, INTERRUPTED, MISUSED, drop_output, fail, say, warn


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and give back its exit status; every error is one line on standard error.

    Args:
        arguments: what follows the program's name; ``None`` takes them from ``sys.argv``.

    Returns:
        0, ``FAILED``, ``MISUSED`` or ``INTERRUPTED``.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if sys.stdout is None:  # closed by whoever started this
        return say("standard output is closed", FAILED)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a dataset's letters shows others: better than an error.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = warn
            status = app(given or ["--help"], prog_name="replaybank", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted(given)
    except SystemExit:
        return FAILED  # typer's way when whoever read the output has gone
    except BrokenPipeError:
        drop_output()
        return FAILED
    except Exception as error:
        status = fail(error, debug="--debug" in given)
        drop_output()
        return status
    if status == INTERRUPTED:  # some versions of typer give this status instead of raising
        return _interrupted(given)
    if not given:
        return MISUSED
    return status if isinstance(status, int) else 0


def _interrupted(given: Sequence[str]) -> int:
    goes_on = "convert" in given and "--overwrite" not in given
    what = "; the same command goes on where it stopped" if goes_on else ""
    return say(f"interrupted{what}", INTERRUPTED, "")
