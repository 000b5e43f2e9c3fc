"""``write_report``: one page about a dataset or a checkpointed buffer."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from replaybank import checkpoint
from replaybank.checkpoint_files import write_atomically
from replaybank.datasets.openx.files import is_converted
from replaybank.datasets.openx.sources.base import EpisodeSource
from replaybank.datasets.openx.sources.files import is_url
from replaybank.datasets.openx.sources.open import open_source
from replaybank.report.buffers import BufferSubject
from replaybank.report.converted import ConvertedSubject
from replaybank.report.gather import add_findings, gather
from replaybank.report.look import Progress, Roles, Subject
from replaybank.report.page import plotted, render
from replaybank.report.players import Cast
from replaybank.report.published import PublishedSubject

EPISODES: Final = 6
"""Episodes that can be played, unless asked otherwise."""
MAX_MEGABYTES: Final = 8.0
"""Of the page, unless asked otherwise: it goes through mail, and a phone opens it at once."""
_NEEDED: Final = {"matplotlib": "matplotlib", "jinja2": "Jinja2", "simplejpeg": "simplejpeg", "PIL": "Pillow"}


def write_report(
    path: EpisodeSource | str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    split: str | None = None,
    episodes: int = EPISODES,
    max_megabytes: float = MAX_MEGABYTES,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> Path:
    """Write one HTML page about a dataset or a checkpointed buffer; it needs no other file and no network.

    A part of what is large is looked at, drawn at random by the seed; the page says which. Nothing in the
    data is run. Memory: the values of 100,000 steps, and one episode at a time.

    Args:
        path: folder of a converted dataset or of what ``buffer.dumps`` wrote; folder or URL of a published
            dataset (RLDS, LeRobot, the hub's tar shards), or an id of the catalog; or any episode source.
        output: the file to write. It is replaced in one step, when the page is whole.
        split: which split of a published dataset, ``"train"`` by default.
        episodes: how many can be played, 0 or more.
        max_megabytes: of the page at most; the frames are made to fit.
        seed: of what is drawn.
        on_progress: called with how much has been looked at, episodes and then cameras, and of how much.

    Returns:
        Where it was written.

    Raises:
        ImportError: a package of ``replaybank[report]`` is missing.
        FileNotFoundError: there is nothing at ``path``, or no folder to write into.
        IsADirectoryError: ``output`` is a folder.
        ValueError: a number is out of range; there is no such split; the page cannot be as small as that.
        DataFormatError: the data is damaged so that it cannot be opened.

    Complexity:
        O(steps looked at), and as much for the frames that are decoded.

    Example:
        >>> import tempfile
        >>> from replaybank.demo.arm import write_arm_dataset
        >>> folder = tempfile.TemporaryDirectory()
        >>> arm = write_arm_dataset(folder.name + "/arm", episodes=3)
        >>> page = write_report(arm, folder.name + "/arm.html", episodes=1)
        >>> "What is wrong with the data" in page.read_text(encoding="utf-8")
        True
        >>> folder.cleanup()
    """
    _check_packages()
    target = Path(os.path.expanduser(os.fspath(output)))
    if target.is_dir():
        raise IsADirectoryError(
            f"{target} is a folder: give a file to write, such as {target / 'report.html'}"
        )
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target.parent}: there is no such folder to write {target.name} into")
    if episodes < 0:
        raise ValueError(f"episodes={episodes}: give how many episodes can be played, 0 or more")
    if not 0 < max_megabytes < math.inf:
        raise ValueError(
            f"max_megabytes={max_megabytes}: give the size of the page in megabytes, a number above 0"
        )
    if seed < 0:
        raise ValueError(f"seed={seed}: give a seed of 0 or more")
    # What is too large, or no number, is looked for and told of on the page.
    with _subject(path, split) as subject, np.errstate(over="ignore", invalid="ignore"):
        page = _page(
            subject, episodes, int(max_megabytes * 1e6), seed, on_progress or (lambda done, of: None)
        )
    write_atomically(target, page)
    return target


def _page(subject: Subject, episodes: int, most: int, seed: int, progress: Progress) -> bytes:
    before = subject.about()
    roles = Roles.of(before.entries)
    frames = itertools.count(1)
    done = of = 0

    def looking(now: int, total: int) -> None:
        nonlocal done, of
        done, of = now, total
        progress(now, total + min(episodes, total) * len(roles.cameras))

    def showing() -> None:
        progress(done + next(frames), max(of, done) + min(episodes, of) * len(roles.cameras))

    looks = subject.looks(seed, looking)
    found = gather(looks, roles, before, episodes=episodes, seed=seed, of=before.expected)
    about = subject.about()
    add_findings(found, about)
    made = plotted(about, roles, found)
    cast = Cast(found.shown, roles, about.names, found.values, about.rewarded, most, showing)

    def page_with(room: int) -> bytes:
        sheets, words = cast.sheets(room)
        players = cast.players(sheets)
        return render(
            about, roles, found, made, players=players, sheets=sheets, frames_words=words, seed=seed
        ).encode("utf-8", "replace")

    bare = len(page_with(0))
    if bare > most:
        raise ValueError(
            f"the page has {bare / 1e6:.2f} MB without any frame, more than the {most / 1e6:g} MB that are "
            "allowed: allow more (max_megabytes=, --max-size), or show fewer episodes"
        )
    # A frame on the page also has a few lines that say which it is: they are seen when it is laid out.
    room = most - bare
    page = page_with(room)
    while len(page) > most and room > 0:
        room -= len(page) - most
        page = page_with(max(room, 0))
    return page


@contextlib.contextmanager
def _subject(path: EpisodeSource | str | os.PathLike[str], split: str | None) -> Iterator[Subject]:
    """What is at a path, opened."""
    if not isinstance(path, (str, os.PathLike)):
        yield PublishedSubject(path)
        return
    place = os.fspath(path)
    folder = Path(os.path.expanduser(place))
    if not is_url(place) and folder.is_dir():
        if checkpoint.is_checkpoint(folder):
            _no_split(split, place, "a checkpoint of a buffer")
            buffer = BufferSubject(folder)
            try:
                yield buffer
            finally:
                buffer.close()
            return
        if is_converted(folder):
            converted = ConvertedSubject(folder)
            if split not in (None, converted.split):
                raise ValueError(f"{place}: there is no split {split!r}: {converted.split!r} was converted")
            yield converted
            return
    if not is_url(place) and folder.is_file():
        raise NotADirectoryError(f"{folder} is a file: give the folder of a dataset or of a checkpoint")
    try:
        source = open_source(place, split=split or "train", allow_missing_shards=True)
    except FileNotFoundError as error:
        if folder.is_dir() and not error.filename:
            raise FileNotFoundError(
                f"{error}, nor the checkpoint of a buffer ({checkpoint.POINTER})"
            ) from error
        raise
    yield PublishedSubject(source)


def _no_split(split: str | None, place: str, what: str) -> None:
    if split is not None:
        raise ValueError(f"{place} is {what}, which has no splits: leave split= (--split) out")


def _check_packages() -> None:
    """Say what is missing before anything is read."""
    missing = [name for module, name in _NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise ImportError(
            f"a report needs {', '.join(missing)}: pip install 'replaybank[report]'", name=missing[0]
        )
