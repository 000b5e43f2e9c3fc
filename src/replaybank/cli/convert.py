"""``replaybank convert``: a published dataset becomes memory-mapped tensors."""

from __future__ import annotations

from typing import Annotated

import typer

from replaybank.cli.arguments import Images, LastStep, OnError, Origin, data_path, output_folder
from replaybank.cli.progress import shown


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
    folder = output_folder(destination, "DEST")
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: give a folder, which is made if it is missing")

    from replaybank.datasets.openx.convert import convert as convert_dataset
    from replaybank.datasets.openx.files import MANIFEST
    from replaybank.terminal import line

    done = not overwrite and (folder / MANIFEST).is_file()
    made = convert_dataset(
        data_path(source) if origin is None else origin.value,
        folder,
        split=split,
        overwrite=overwrite,
        progress=shown(quiet),
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
