"""``replaybank list``, ``info``, ``stats`` and ``verify``: what is in a dataset, what is wrong with it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from replaybank.cli.arguments import data_path
from replaybank.cli.errors import FAILED
from replaybank.cli.progress import NoBar, shown

MOST_NUMBERS = 32
"""Lines that ``stats`` shows of an entry that was not asked for by name: joints fit, embeddings do not."""


def list_datasets(
    as_json: Annotated[bool, typer.Option("--json", help="Print everything, for programs.")] = False,
) -> None:
    """List the Open X-Embodiment datasets: robot, rate, size, entries, known defects."""
    from replaybank.datasets.openx.catalog import datasets
    from replaybank.show import show_catalog

    if as_json:
        print(json.dumps([asdict(facts) for facts in datasets().values()], indent=1))
    else:
        show_catalog(datasets().values())


def info(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="Path or URL of a dataset, converted or not, or an id of `replaybank list`; or a "
            "checkpoint of a buffer.",
        ),
    ],
    split: Annotated[
        str | None, typer.Option(help="Which split of a dataset as published.", show_default="train")
    ] = None,
    quiet: NoBar = False,
) -> None:
    """Show what is in a dataset or a checkpoint: entries, episodes, lengths, images, instructions.

    Of an id that is no path: what the catalog knows.
    """
    from replaybank.datasets.openx.catalog import facts_of, is_name
    from replaybank.show import show_facts, show_summary

    if is_name(path):  # before what imports torch, which takes seconds
        show_facts(facts_of(path))
        return

    from replaybank import checkpoint
    from replaybank.datasets.openx.sources.lerobot import NoDataError
    from replaybank.datasets.openx.summary import folder_bytes, summarise

    place = data_path(path)
    if "://" not in place and checkpoint.is_checkpoint(place):
        from replaybank.buffers.checkpointed import opened_buffers
        from replaybank.show_buffers import show_buffers

        with opened_buffers(place, progress=shown(quiet)) as buffers:
            show_buffers(path, buffers, folder_bytes(place) or 0)
    else:
        try:
            summary = summarise(place, split, progress=shown(quiet))
        except NoDataError as error:
            from replaybank.datasets.openx.metadata import summarise_metadata

            summary = summarise_metadata(place, split or "train", error.missing)
        show_summary(summary)


def stats(
    path: Annotated[str, typer.Argument(metavar="PATH", help="Folder of a converted dataset.")],
    key: Annotated[
        list[str] | None,
        typer.Option(
            help="An entry, its path joined by '/', shown whole; may be given several times. "
            "[default: all that are numbers]"
        ),
    ] = None,
    images: Annotated[bool, typer.Option("--images", help="Look at the cameras too, by channel.")] = False,
    quiet: NoBar = False,
) -> None:
    """Show mean, deviation, range and quantiles of a converted dataset's entries, number by number."""
    from replaybank.datasets.openx.stats import dataset_stats
    from replaybank.datasets.openx.storage import DatasetStorage
    from replaybank.show import show_stats

    dataset = DatasetStorage(data_path(path))
    there = {"/".join(leaf.key): leaf.key for leaf in dataset.manifest.leaves}
    unknown = [asked for asked in key or () if asked not in there]
    if unknown:
        raise typer.BadParameter(f"--key {unknown[0]}: there is no such entry; there are {', '.join(there)}")
    keys = [there[asked] for asked in key] if key else None
    found = dataset_stats(dataset, keys, images=images, progress=shown(quiet))
    show_stats(found, most=None if key else MOST_NUMBERS, names=dataset.manifest.dim_names)


def verify(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="Folder of an original or a converted dataset.")
    ],
    split: Annotated[str, typer.Option(help="Which split of an original dataset.")] = "train",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print problems only.")] = False,
) -> None:
    """Read all of a dataset and say what is wrong where; the exit status is 1 if anything is."""
    from replaybank.datasets.openx.verify import verify as verify_dataset
    from replaybank.terminal import line

    found = verify_dataset(data_path(path), split, progress=shown(quiet))
    for problem in found.problems:
        line(f"{problem.where}: {problem.what}")
    if not quiet:
        wrong = f"problems: {len(found.problems):,}" if found.problems else "nothing is wrong"
        note = f" ({found.unchecked})" if found.unchecked else ""
        line(f"{path}: {found.episodes:,} episodes, {found.steps:,} steps are whole; {wrong}{note}")
    if found.problems:
        raise typer.Exit(FAILED)
