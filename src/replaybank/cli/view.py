"""``replaybank view``: an episode in Rerun."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from replaybank.cli.arguments import data_path, output_file
from replaybank.cli.progress import shown

LARGE = 50_000_000
"""Bytes of a recording from which on a smaller one is proposed: viewers hold all of it in memory."""


def view(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A converted or published dataset, its path, URL or id, or a checkpointed buffer.",
        ),
    ],
    episode: Annotated[
        int, typer.Option(min=0, help="Which episode, from 0; or by a number that only its origin has.")
    ] = 0,
    save: Annotated[
        str | None,
        typer.Option(metavar="FILE.rrd", help="Write a file instead of opening a window."),
    ] = None,
    camera: Annotated[
        list[str] | None, typer.Option(help="A camera to show; may be given several times. [default: all]")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Which split of a published dataset.", show_default="train")
    ] = None,
    compress: Annotated[
        bool, typer.Option("--compress", help="Frames that are stored as pixels as JPEG: smaller, not exact.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Look at an episode in Rerun: cameras, curves, texts, ends."""
    from replaybank.terminal import line, size
    from replaybank.view import (
        open_episode,
        refuse_without_display,
        save_recording,
        show_recording,
        smaller_as_jpeg,
    )

    progress = shown(quiet)
    if save is None:
        refuse_without_display()
    file = None if save is None else output_file(save, "--save")
    try:
        found = open_episode(data_path(path), episode, split=split, progress=progress)
    except IndexError as error:
        raise typer.BadParameter(f"--episode: {error}") from None
    if file is None:
        left_out = show_recording(found, cameras=camera or None, compress=compress, progress=progress)
    else:
        left_out = save_recording(found, file, cameras=camera or None, compress=compress, progress=progress)
    if quiet:
        return
    where = f"written to {save}: open it with `rerun {save}`" if save is not None else "shown in Rerun"
    own = "" if found.origin_number in (None, found.number) else f" ({found.origin_number} of its origin)"
    line(f"{found.name}, episode {found.number}{own}: {found.length:,} steps {where}")
    if file is not None and not compress:
        written = os.path.getsize(file)
        if written >= LARGE and any(smaller_as_jpeg(camera) for camera in found.cameras.values()):
            line(f"The file has {size(written)}: --compress makes it smaller, with frames as JPEG, not exact")
    if left_out:
        names = ", ".join("/".join(key) for key in left_out)
        line(f"Not drawn, as they have too many numbers: {names}")
