"""``replaybank demo``: the whole job once."""

from __future__ import annotations

from typing import Annotated

import typer

from replaybank.cli.arguments import data_path, output_folder


def demo(
    data: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="A dataset in any form to use; without it a simulated arm's is written."
        ),
    ] = None,
    output: Annotated[str, typer.Option(help="Folder for all files that are made.")] = "demo-output",
    seconds: Annotated[float, typer.Option(min=0.0, help="How long to train.")] = 60.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the arm, the draws and the network.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only.")] = False,
) -> None:
    """Do the whole job once: inspect, convert, draw slices, train, and show the figures."""
    from replaybank.demo.run import run_demo

    data = None if data is None else data_path(data)
    run_demo(data, output=output_folder(output, "--output"), seconds=seconds, seed=seed, quiet=quiet)
