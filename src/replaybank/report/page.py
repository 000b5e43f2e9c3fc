"""The page: what was gathered, laid out by a template; all text of the data is escaped."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any, Final

import numpy as np

from replaybank.datasets.openx.sources.base import Key
from replaybank.report.findings import LEVELS, MOST_PLACES
from replaybank.report.frames import Sheet
from replaybank.report.gather import Gathered
from replaybank.report.look import About, Entry, Roles
from replaybank.report.players import Player, View
from replaybank.report.plots import Plotter, histogram
from replaybank.report.sections import Draws, Numbers, Texts, draws_section, numbers_section, texts_section
from replaybank.terminal import size

DEFAULT_RATE: Final = 10.0
"""Steps a second at which an episode plays whose rate nobody knows."""
_SLOWEST, _FASTEST = 2.0, 30.0


@dataclass(frozen=True)
class Plotted:
    """All of the page that takes time to make, and none of the frames.

    Args:
        numbers: sections of distributions.
        texts: sections of texts.
        draws: sections of samplers.
        figures: of lengths and rewards: title, text and plot.
    """

    numbers: tuple[Numbers, ...]
    texts: tuple[Texts, ...]
    draws: tuple[Draws, ...]
    figures: tuple[Mapping[str, str], ...]


def plotted(about: About, roles: Roles, found: Gathered) -> Plotted:
    """Draw all plots. O(N log N) a number.

    Raises:
        ImportError: matplotlib is not installed.
    """
    with Plotter() as plotter:
        sections = (
            (("actions", "Actions"), roles.action),
            (("state", "State"), roles.state),
            (("other", "Other numbers"), roles.other),
        )
        numbers = [
            numbers_section(name, keys, found.values, about.names, found.left_out, plotter)
            for name, keys in sections
        ]
        return Plotted(
            tuple(section for section in numbers if section is not None),
            tuple(texts_section(found.texts)),
            tuple(draws_section(sampling, plotter) for sampling in about.samplings),
            tuple(_figures(about, found, plotter)),
        )


def _figures(about: About, found: Gathered, plotter: Plotter) -> list[dict[str, str]]:
    figures = []
    lengths = about.lengths
    data = histogram(lengths)
    if data is not None and about.episodic:
        text = f"All have {lengths[0]:,} steps."
        plot = ""
        if data.single is None:
            text = f"From {lengths.min():,} to {lengths.max():,} steps, median {np.median(lengths):,g}."
            plot = plotter.wide(data, f"Lengths of episodes. {text}", "steps of an episode")
        figures.append({"title": "Lengths of episodes", "text": text, "plot": plot})
    good = found.rewards[np.isfinite(found.rewards)]
    if len(good) and good.any():
        text = f"From {good.min():.4g} to {good.max():.4g}; {np.mean(good != 0):.1%} of the steps have one."
        data = histogram(good)
        if data is not None:
            plot = plotter.wide(data, f"Rewards of steps. {text}", "reward of a step")
            figures.append({"title": "Rewards", "text": text, "plot": plot})
        data = histogram(found.returns)
        if data is not None and about.episodic:
            finite = found.returns[np.isfinite(found.returns)]
            text, plot = f"All are {finite[0]:.4g}.", ""
            if data.single is None:
                text = f"Mean {finite.mean():.4g}, deviation {finite.std():.4g}."
                plot = plotter.wide(data, f"Returns of episodes. {text}", "sum of an episode's rewards")
            figures.append({"title": "Returns", "text": text, "plot": plot})
    return figures


def render(
    about: About,
    roles: Roles,
    found: Gathered,
    made: Plotted,
    *,
    players: Sequence[Player],
    sheets: Mapping[tuple[int, Key], Sheet],
    frames_words: str,
    seed: int,
) -> str:
    """The whole page as HTML.

    Args:
        about: the data as a whole.
        roles: of its entries.
        found: what was gathered.
        made: the plots.
        players: the episodes to be played.
        sheets: their frames.
        frames_words: how these were made to fit.
        seed: what was drawn by.

    Raises:
        ImportError: Jinja2 is not installed.
    """
    from replaybank import __version__

    rate = min(max(about.rate or DEFAULT_RATE, _SLOWEST), _FASTEST)
    here = about.path.rstrip("/") + "/"
    players = [
        replace(player, where=player.where.replace(here, ""), data={**player.data, "rate": rate})
        for player in players
    ]
    cameras = _cameras(about.entries, roles, players)
    counts = Counter(finding.level for finding in found.findings)
    script = _text("page.js")
    more = [max(0, f.count - len(f.where)) if len(f.where) >= MOST_PLACES else 0 for f in found.findings]
    page: str = _template().render(
        about=about,
        version=__version__,
        css=_safe(_text("page.css")),
        script=_safe(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        sheets=[
            {"css": f"s{number}", "uri": sheet.uri, "size": sheet.size}
            for number, sheet in enumerate(sheets.values())
        ],
        tiles=_tiles(about, found),
        sections=_sections(made, players, cameras, found, about),
        findings=[
            {**vars(f), "more": n, "where": [place.replace(here, "") for place in f.where]}
            for f, n in zip(found.findings, more, strict=True)
        ],
        levels=[(level, counts[level]) for level in LEVELS if counts[level]],
        draws=made.draws,
        players=players,
        shown_words=_shown_words(len(players), len(found.lengths), seed),
        thing="episode" if about.episodic else "stretch",
        cameras=cameras,
        figures=made.figures,
        ends=_ends(found) if about.episodic else [],
        numbers=made.numbers,
        texts=made.texts,
        seed=seed,
        frames_words=frames_words,
    )
    return page


def _shown_words(shown: int, of: int, seed: int) -> str:
    if shown == of:
        return "All of them." if shown > 1 else ""
    return f"{shown:,} of {of:,} that were looked at, drawn at random (seed {seed})."


def _tiles(about: About, found: Gathered) -> list[tuple[str, str, str]]:
    lengths = about.lengths
    episodes = "episodes" if about.episodic else "stretches"
    tiles = []
    if about.episodes is not None or len(lengths):
        known = about.episodes is not None
        tiles.append(
            (episodes, f"{about.episodes if known else len(lengths):,}", "" if known else "looked at")
        )
    if about.steps is not None:
        tiles.append(("steps", f"{about.steps:,}", ""))
    elif len(lengths):
        tiles.append(("steps", f"{int(lengths.sum()):,}", "of the episodes looked at"))
    if len(lengths) and about.episodic:
        spread = f"{lengths.min():,} to {lengths.max():,}" if lengths.min() < lengths.max() else "all alike"
        tiles.append(("median length", f"{np.median(lengths):,g}", spread))
    if about.bytes is not None:
        tiles.append(("on disk", size(about.bytes), ""))
    cameras = sum(entry.kind == "image" for entry in about.entries)
    if cameras:
        tiles.append(("cameras", str(cameras), ""))
    texts = max((len(counter) for counter in found.texts.values()), default=0)
    if texts:
        tiles.append(("instructions", f"{texts:,}", "different ones"))
    if about.rate:
        tiles.append(("rate", f"{about.rate:g} Hz", ""))
    return tiles


def _sections(
    made: Plotted,
    players: Sequence[Player],
    cameras: Sequence[Mapping[str, Any]],
    found: Gathered,
    about: About,
) -> list[tuple[str, str]]:
    """Ids and titles, in order."""
    sections = [("wrong", f"What is wrong ({len(found.findings)})")]
    sections += [(f"draws{n}", draw.name) for n, draw in enumerate(made.draws)]
    if players:
        sections.append(("episodes", "Episodes" if about.episodic else "Stretches"))
    if cameras:
        sections.append(("cameras", "Cameras"))
    if made.figures or about.episodic:
        sections.append(("lengths", "Lengths and rewards"))
    sections += [(section.id, section.title) for section in made.numbers]
    if made.texts:
        sections.append(("texts", "Instructions"))
    if about.entries:
        sections.append(("entries", "Entries"))
    return sections


def _cameras(entries: Sequence[Entry], roles: Roles, players: Sequence[Player]) -> list[dict[str, Any]]:
    """Contact sheets: for each camera the views of all players."""
    forms = {entry.key: entry for entry in entries}
    cameras = []
    for key in roles.cameras:
        entry = forms[key]
        rows: list[tuple[int, View]] = [
            (player.number, view) for player in players for view in player.views if view.key == key
        ]
        facts = " x ".join(map(str, entry.shape)) + f" {entry.dtype}"
        cameras.append({"name": entry.name, "facts": f"{entry.form} {facts}".strip(), "rows": rows})
    return cameras


def _ends(found: Gathered) -> list[dict[str, Any]]:
    total = sum(found.ends.values())
    return [
        {"name": name, "count": count, "part": count / total} for name, count in found.ends.items() if count
    ]


@cache
def _template() -> Any:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_text), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("page.html.jinja")


def _safe(text: str) -> Any:
    """Our own text, which is not to be escaped."""
    from markupsafe import Markup

    return Markup(text)


def _text(name: str) -> str:
    return resources.files("replaybank.report").joinpath(name).read_text(encoding="utf-8")
