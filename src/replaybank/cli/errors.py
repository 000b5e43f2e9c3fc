"""How a command ends: its exit status, and one clear line for every error."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import traceback
from collections.abc import Callable
from importlib import metadata

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


_PUBLISHED_AS = {"PIL": "Pillow", "rerun": "rerun-sdk", "backports": "backports.zstd"}
"""Packages that are imported under another name than they are installed."""
_OF_AN_EXTRA = re.compile(r"(?P<name>[\w.-]+)[^;]*;.*extra == ['\"](?P<extra>\w+)['\"]")
"""A requirement in the package's metadata; extras come in the order in which they are declared."""

_WORDS = (
    ("image_keys: ", "--image-key: "),
    ("are given as source=, their path or URL", "are given by their path or URL"),
)
"""What the Python interface calls things in errors, and what a user of the command line does."""


def drop_output() -> None:
    """See to it that what cannot be written is not written again when Python ends, which would fail again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _output_is_full() -> bool:
    """Whether it is standard output that has no room left: a file, or a device made for tests."""
    try:
        output = os.fstat(sys.stdout.fileno())
        if stat.S_ISREG(output.st_mode):
            return os.fstatvfs(sys.stdout.fileno()).f_bavail == 0
        nothing = os.path.samestat(output, os.stat(os.devnull))
    except (OSError, ValueError):  # it has no number
        return False
    return stat.S_ISCHR(output.st_mode) and not nothing and not sys.stdout.isatty()


def say(text: str, status: int, kind: str = "error: ") -> int:
    """Print one line on standard error and give back the exit status."""
    if sys.stderr is not None:
        print(f"replaybank: {kind}{' '.join(text.split())}", file=sys.stderr)
    return status


def warn(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning on one line: where in the sources it arose is nothing to a user."""
    say(str(message), 0, "warning: ")


def _missing_package(error: BaseException) -> str:
    """What an import failed for: the name of the package that is not there, or nothing."""
    found = ""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ImportError) and seen.name:
            found = seen.name.partition(".")[0]
        seen = seen.__cause__ or seen.__context__
    return found


def _normal(name: str) -> str:
    """The name of a package as it is compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def how_to_install(package: str) -> str:
    """What to do for a package that cannot be imported, as the end of an error; nothing of none.

    >>> how_to_install("pyarrow"), how_to_install("gcsfs")
    (": pip install 'replaybank[openx]'", ': pip install gcsfs')
    """
    if package == "replaybank":
        return "; this installation of replaybank is damaged: pip install --force-reinstall replaybank"
    if not package:
        return ""
    name = _normal(_PUBLISHED_AS.get(package, package))
    for requirement in metadata.requires("replaybank") or ():
        of = _OF_AN_EXTRA.match(requirement)
        if of is not None and _normal(of["name"]) == name:
            return f": pip install 'replaybank[{of['extra']}]'"
    return f": pip install {package}"


def fail(error: Exception, debug: bool) -> int:
    """Print an error and give back the exit status for it."""
    if debug:
        traceback.print_exception(error)
    status = FAILED
    if isinstance(error, _UsageError):
        message: Callable[[], str] = getattr(error, "format_message", error.__str__)
        status, text = MISUSED, _usage(message(), error)
    elif isinstance(error, OSError):
        of = error.filename or (
            "standard output" if error.errno == errno.ENOSPC and _output_is_full() else ""
        )
        text = f"{of}: {error.strerror}" if of and error.strerror else error.strerror or str(error)
    elif isinstance(error, ImportError):
        text = str(error)
        if "pip install" not in text:
            text += how_to_install(_missing_package(error))
    elif isinstance(error, ReplaybankError):
        text = str(error)
    elif isinstance(error, ValueError):
        status, text = MISUSED, str(error)
    else:
        text = f"unexpected {type(error).__name__}: {error} (`replaybank --debug ...` shows where)"
    for said, here in _WORDS:
        text = text.replace(said, here)
    return say(text, status)


def _usage(text: str, error: Exception) -> str:
    """What typer says of wrong arguments, without its own words, and where the right ones stand."""
    for words in ("Invalid value: ", "Value error, "):
        text = text.replace(words, "")
    context = getattr(error, "ctx", None)
    if context is None or not text.startswith(("Missing", "No such", "Got unexpected")):
        return text
    return f"{text.rstrip('.')}; see `{context.command_path} --help`"
