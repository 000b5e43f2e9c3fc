"""The commands there are, in the order in which ``replaybank --help`` lists them."""

from __future__ import annotations

from typing import Annotated

import typer

from replaybank.cli.convert import convert
from replaybank.cli.demo import demo
from replaybank.cli.inspect import info, list_datasets, stats, verify
from replaybank.cli.report import report
from replaybank.cli.stream import stream
from replaybank.cli.view import view

app = typer.Typer(
    name="replaybank",
    help="Robot-trajectory datasets: look at them, convert them, train on them.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from replaybank import __version__

        print(f"replaybank {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Robot-trajectory datasets: look at them, convert them, train on them."""


app.command()(demo)
app.command(name="list")(list_datasets)
for command in (convert, info, stats, verify, report, view, stream):
    app.command()(command)
