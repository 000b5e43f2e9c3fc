"""``replaybank report``: one page about a dataset or a checkpointed buffer."""

from __future__ import annotations

from typing import Annotated

import typer

from replaybank.cli.arguments import data_path, output_file
from replaybank.cli.progress import reading


def report(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="Folder of a dataset, converted or not, or of a buffer's checkpoint; a URL; or an id of "
            "`replaybank list`.",
        ),
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The page to write.")
    ] = "report.html",
    episodes: Annotated[int, typer.Option(min=0, help="Episodes that can be played.")] = 6,
    max_size: Annotated[
        float,
        typer.Option(min=0.001, metavar="MB", help="Megabytes of the page at most; frames are made to fit."),
    ] = 8.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of what is drawn.")] = 0,
    split: Annotated[
        str | None, typer.Option(help="Which split of a dataset as published.", show_default="train")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Write one page about a dataset or a buffer: figures, cameras, episodes to play, what is wrong.

    It is a single file that needs no network. Of what is large a part is looked at, drawn at random.
    """
    from replaybank.report import write_report
    from replaybank.terminal import line, size

    page = output_file(output, "--output")
    with reading("part", quiet=quiet, title="Looking") as show:
        written = write_report(
            data_path(path),
            page,
            split=split,
            episodes=episodes,
            max_megabytes=max_size,
            seed=seed,
            on_progress=show,
        )
    if not quiet:
        line(f"{written}: {size(written.stat().st_size)}")
