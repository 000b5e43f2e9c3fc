"""How a recording is laid out on the screen when it is opened."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from replaybank.view.episode import Key, RecordedEpisode
from replaybank.view.recording import EVENTS, FACTS, STEP, entity, rerun, sayable

if TYPE_CHECKING:
    import rerun.blueprint as rrb

MOST_PLOTS = 4
"""Plots below each other; more of them lie behind tabs in the last place."""
MOST_NAMED = 8
"""Curves of a plot with a legend: a longer one would hide them."""
DEFAULT_RATE = 10.0
"""Steps shown in a second where an episode does not say how fast it was."""

_NOT_DRAWN = frozenset({"done", "terminated", "truncated", "timestamp", "discount", "task_index"})
"""Entries that have no view of their own: what they say stands elsewhere, or is the same all the time."""
_FIRST = ("action", "observation", "next")
"""Entries in the order of their curves: actions, states, what came of them, then everything else."""


def layout(
    episode: RecordedEpisode, cameras: Sequence[Key] | None = None, left_out: Sequence[Key] = ()
) -> rrb.Blueprint:
    """Cameras and texts on the left, curves on the right, ends below.

    Args:
        episode: what has been recorded.
        cameras: those of them; None: all.
        left_out: entries that were not recorded.
    """
    rerun()
    import rerun.blueprint as rrb

    shown = sorted(episode.cameras if cameras is None else cameras)
    drawn = [key for key in episode.numbers if key not in left_out and key[-1] not in _NOT_DRAWN]
    drawn.sort(key=lambda key: _FIRST.index(key[0]) if key[0] in _FIRST else len(_FIRST))
    images: list[Any] = [rrb.Spatial2DView(origin=entity(key), name=sayable("/".join(key))) for key in shown]
    texts: list[Any] = [
        rrb.TextDocumentView(origin=entity(key), name=sayable("/".join(key))) for key in episode.texts
    ]
    texts.append(rrb.TextDocumentView(origin=FACTS, name="episode"))
    curves = [_curves(key, episode.numbers[key].size // episode.length) for key in drawn]
    ends = rrb.TextLogView(origin=EVENTS, name="ends")
    left: list[Any] = []
    if images:
        left.append(rrb.Grid(*images, grid_columns=math.ceil(math.sqrt(len(images)))))
    left.append(rrb.Horizontal(rrb.Tabs(*texts), ends))
    shares = [4, 1] if images else [1]
    body: list[Any] = [rrb.Vertical(*left, row_shares=shares)]
    if len(curves) > MOST_PLOTS:
        curves = [*curves[: MOST_PLOTS - 1], rrb.Tabs(*curves[MOST_PLOTS - 1 :])]
    if curves:
        body.append(rrb.Vertical(*curves))
    playing = rrb.TimePanel(
        state="collapsed",
        timeline=STEP,
        fps=episode.rate or DEFAULT_RATE,
        play_state="playing",
        loop_mode="all",
    )
    return rrb.Blueprint(rrb.Horizontal(*body), playing, collapse_panels=True)


def _curves(key: Key, series: int) -> Any:
    import rerun.blueprint as rrb

    legend = rrb.PlotLegend(visible=1 < series <= MOST_NAMED)
    return rrb.TimeSeriesView(origin=entity(key), name=sayable("/".join(key)), plot_legend=legend)
