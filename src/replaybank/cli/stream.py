"""``replaybank stream``: how fast a dataset comes without being stored."""

from __future__ import annotations

from typing import Annotated

import typer

from replaybank.cli.arguments import OnError, data_path
from replaybank.cli.progress import NoBar, reading


def stream(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC", help="Folder or URL of a published dataset, or an id of `replaybank list`."
        ),
    ],
    seconds: Annotated[float, typer.Option(min=0.0, help="How long, once batches come.")] = 10.0,
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
    on_error: Annotated[
        OnError, typer.Option(help="Stop at a record that cannot be read, or leave it out and count it.")
    ] = OnError.raise_,
    quiet: NoBar = False,
) -> None:
    """Stream a dataset for a while, without storing it, and show how fast it comes with how much memory."""
    from replaybank.datasets.openx.files import is_converted
    from replaybank.datasets.openx.replay import OpenXExperienceReplay
    from replaybank.datasets.openx.throughput import measure
    from replaybank.show import show_throughput
    from replaybank.terminal import line

    place = data_path(source)
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
        on_error=on_error.value,
    )
    try:
        with reading("s", quiet=quiet, title="Streaming") as show:
            whole = int(seconds)
            measured = measure(dataset, seconds, show=lambda gone: show(min(int(gone), whole), whole))
    finally:
        dataset.close()
    show_throughput(source, measured)
    if dataset.skipped:
        first = dataset.skipped[0]
        line(f"Note: records left out: {len(dataset.skipped)}, the first: {first.reason}")
