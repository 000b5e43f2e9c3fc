"""Looking at an episode in Rerun: ``replaybank view``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from replaybank.checkpoint_files import replacing
from replaybank.view.blueprint import layout
from replaybank.view.drain import Drain
from replaybank.view.episode import Key, RecordedEpisode, chosen_cameras
from replaybank.view.opening import open_episode
from replaybank.view.recording import record, rerun, sayable, smaller_as_jpeg

__all__ = [
    "RecordedEpisode",
    "open_episode",
    "refuse_without_display",
    "save_recording",
    "show_recording",
    "smaller_as_jpeg",
]

APPLICATION = "replaybank"
"""Under which name Rerun keeps what its user changes about the layout."""
ENDING = ".rrd"
"""Of the files that Rerun's viewer opens."""

_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
"""Environment variables that name a display, where there is one."""


def save_recording(
    episode: RecordedEpisode,
    path: str | os.PathLike[str],
    *,
    cameras: Sequence[str] | None = None,
    compress: bool = False,
    progress: bool | None = None,
) -> list[Key]:
    """Write an episode into a file for Rerun's viewer; it appears whole, or not at all. O(bytes).

    Args:
        episode: from :func:`open_episode`.
        path: ends in ``.rrd``; a file of that name is replaced.
        cameras: those that are written, by path or the last part of it; None: all.
        compress: write frames as JPEG that are stored as pixels: smaller, and no longer exact.
        progress: show a bar if it takes long; by default where the error output is a terminal.

    Returns:
        The entries that were left out, as they have too many numbers for curves.

    Raises:
        ValueError: the name does not end in ``.rrd``, or there is no such camera.
        ImportError: Rerun is not installed.
        OSError: the file cannot be written.

    Example:
        >>> import tempfile, numpy as np
        >>> from replaybank.view import RecordedEpisode
        >>> episode = RecordedEpisode("arm", 0, 3, {("action",): np.zeros((3, 2))})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_recording(episode, folder + "/arm.rrd")
        []
    """
    file = Path(path)
    if file.suffix != ENDING:
        raise ValueError(f"{file}: Rerun's viewer opens files that end in {ENDING}: give {file}{ENDING}")
    chosen = chosen_cameras(list(episode.cameras), cameras)
    rr = rerun()
    if not file.parent.is_dir():
        raise FileNotFoundError(f"{file.parent}: there is no such folder")
    if file.is_dir():
        raise IsADirectoryError(f"{file} is a folder: give the name of a file")
    recording = rr.RecordingStream(APPLICATION, recording_id=_title(episode))
    with replacing(file) as opened, Drain(opened) as drain:
        try:
            recording.save(drain.path)
            left_out = record(episode, recording, chosen, compress=compress, progress=progress)
            recording.send_blueprint(layout(episode, chosen, left_out))
            recording.flush()
        finally:
            recording.disconnect()  # the drain waits for it
    return left_out


def show_recording(
    episode: RecordedEpisode,
    *,
    cameras: Sequence[str] | None = None,
    compress: bool = False,
    progress: bool | None = None,
) -> list[Key]:
    """Show an episode in Rerun's viewer, which is started unless it runs already. O(bytes).

    Args:
        episode: from :func:`open_episode`.
        cameras: as for :func:`save_recording`.
        compress: likewise.
        progress: likewise.

    Returns:
        The entries that were left out.

    Raises:
        OSError: there is no display, or the viewer does not start.
        ValueError: there is no such camera.
        ImportError: Rerun is not installed.
    """
    chosen = chosen_cameras(list(episode.cameras), cameras)
    rr = rerun()
    refuse_without_display()
    recording = rr.RecordingStream(APPLICATION, recording_id=_title(episode))
    try:
        rr.spawn(connect=False, executable_path=_viewer(), recording=recording)
        recording.connect_grpc()
        recording.send_blueprint(layout(episode, chosen))
        left_out = record(episode, recording, chosen, compress=compress, progress=progress)
        recording.flush()
    except RuntimeError as error:  # Rerun's own are nothing else
        raise OSError(f"Rerun's viewer did not start: {error}; --save episode.rrd writes a file") from error
    finally:
        recording.disconnect()
    return left_out


def refuse_without_display() -> None:
    """See to it that a window can be opened here, as far as that can be known beforehand.

    Raises:
        OSError: it cannot; says what can be done instead.
    """
    if not sys.platform.startswith("linux") or any(os.environ.get(name) for name in _DISPLAYS):
        return
    raise OSError(
        "there is no display on which Rerun's viewer could open a window: write a file with --save "
        "episode.rrd, and open it with `rerun episode.rrd` on a machine that has one"
    )


def _viewer() -> str | None:
    """The viewer that came with the package; None where it is to be looked for."""
    found = find_spec("rerun_cli")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent
    names = ("Rerun.app/Contents/MacOS/Rerun", "rerun", "rerun.exe")
    return next((str(folder / name) for name in names if (folder / name).is_file()), None)


def _title(episode: RecordedEpisode) -> str:
    return sayable(f"{episode.name} episode {episode.number}")
