"""What is in a dataset and what its values are like, printed for a person."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from replaybank.datasets.openx.catalog import DatasetFacts
from replaybank.datasets.openx.sources.origins import url_of
from replaybank.terminal import count, line, short, size, table

if TYPE_CHECKING:  # the catalog is shown without torch, which takes seconds to import
    from replaybank.datasets.openx.stats import EntryStats
    from replaybank.datasets.openx.summary import DatasetSummary, FieldSummary, ImageSummary
    from replaybank.datasets.openx.throughput import Throughput

SAMPLES = 5
"""Strings shown of a text entry: the most frequent ones."""

NAME_SHOWN = 32
"""Characters of the name of one number that are shown."""
NAMES_SHOWN = 160
"""Characters of an entry's names that are shown."""


def show_summary(summary: DatasetSummary) -> None:
    """Print what is in a dataset: facts, entries, cameras, instructions. O(entries)."""
    table(f"{summary.name} {summary.version}".strip(), _facts(summary))
    if summary.fields:
        table("Entries of a step", [_entry(field) for field in summary.fields], _ENTRY_HEADER)
    if summary.metadata_fields:
        table("Entries of an episode", [_entry(field) for field in summary.metadata_fields], _ENTRY_HEADER)
    if summary.images:
        header = ("key", "stored as", "width x height", "bytes a frame")
        table("Cameras", [_camera(image) for image in summary.images], header)
    named = [named for field in (*summary.fields, *summary.metadata_fields) for named in _names(field)]
    if named:
        table("Names", named, ("key", "of", "names"))
    for key, counter in summary.texts.items():
        shown = counter.most_common(SAMPLES)
        most = f", the {len(shown)} most frequent" if len(shown) < len(counter) else ""
        title = f"{'/'.join(key)}: {count(len(counter))} different{most}"
        if shown:
            table(
                title,
                [(count(times), short(text) or "(empty)") for text, times in shown],
                ("episodes", "text"),
            )
    for note in summary.notes:
        line(f"Note: {note}")


def show_stats(
    stats: Mapping[tuple[str, ...], EntryStats],
    *,
    most: int | None = None,
    names: Mapping[tuple[str, ...], Sequence[str]] | None = None,
) -> None:
    """Print statistics, a line for each number of an entry, or channel of a camera. O(numbers).

    Args:
        stats: what :func:`replaybank.datasets.openx.stats.dataset_stats` gives.
        most: how many numbers of an entry are shown (an embedding has hundreds); ``None`` means all.
        names: of the numbers, by key, where they have some.
    """
    for key, entry in stats.items():
        note = f", {count(entry.left_out)} values that are no numbers left out" if entry.left_out else ""
        columns = (entry.mean, entry.std, entry.min, entry.q01, entry.q99, entry.max)
        values = [column.reshape(-1).tolist() for column in columns]
        named = (names or {}).get(key, ())
        rows = [
            (
                f"{number} {short(named[number], NAME_SHOWN)}" if number < len(named) else str(number),
                *(f"{value:.6g}" for value in row),
            )
            for number, row in enumerate(zip(*values, strict=True))
        ]
        name = "/".join(key)
        if most is not None and len(rows) > most:
            note += f"; {most} of {count(len(rows))} numbers (--key {name} shows all)"
        table(f"{name}: {count(entry.count)} steps{note}", rows[:most], _STATS_HEADER)


_STATS_HEADER = ("number", "mean", "std", "min", "q01", "q99", "max")
_ENTRY_HEADER = ("key", "kind", "shape", "dtype")


def show_throughput(source: str, measured: Throughput) -> None:
    """Print how fast a stream came, and what memory it took."""
    seconds = max(measured.seconds, 1e-9)
    rows = [
        ("steps/s", count(measured.steps / seconds)),
        ("slices/s", f"{measured.slices / seconds:,.1f}"),
        ("decoded", f"{size(measured.size / seconds)}/s"),
        ("steps", f"{count(measured.steps)} in {measured.seconds:.1f} s"),
        ("epochs", count(measured.epochs)),
        ("first batch", f"after {measured.first:.2f} s"),
    ]
    if measured.memory is not None:
        rows.append(("memory", f"{size(measured.memory)} at most, Python and torch included"))
    table(source, rows)


def _facts(summary: DatasetSummary) -> list[tuple[str, str]]:
    shortest, median, longest = summary.length_range
    facts = [
        ("folder", summary.path),
        ("form", summary.form if summary.complete else f"{summary.form}, INCOMPLETE"),
        ("splits", ", ".join(_split(name, summary.split) for name in summary.splits)),
        ("size", size(summary.bytes) if summary.bytes is not None else ""),
        ("episodes", count(summary.episodes)),
        ("steps", count(summary.steps)),
        ("steps an episode", f"{shortest} to {longest}, median {median:g}" if summary.lengths else ""),
    ]
    return [(name, value) for name, value in facts if value]


def show_catalog(known: Iterable[DatasetFacts]) -> None:
    """Print one line a dataset. O(datasets)."""
    header = ("dataset", "robot", "hz", "episodes", "size", "observation", "known defects")
    table("Open X-Embodiment", [_listed(facts) for facts in known], header)


def _listed(facts: DatasetFacts) -> tuple[str, ...]:
    return (
        facts.id,
        facts.robot or "?",
        _rate(facts),
        count(facts.episodes),
        size(facts.size),
        short(", ".join(facts.observation)),
        short("; ".join(_defects(facts))),
    )


def show_facts(facts: DatasetFacts) -> None:
    """Print what is known of one dataset. O(1)."""
    rows = [
        ("version", facts.version),
        ("robot", facts.robot or "?"),
        ("steps a second", _rate(facts)),
        *(
            (f"split {name}", f"{count(s.episodes)} episodes, {count(s.shards)} files, {size(s.size)}")
            for name, s in facts.splits.items()
        ),
        ("action", facts.action if isinstance(facts.action, str) else _parts(facts.action)),
        ("observation", ", ".join(facts.observation)),
        ("cameras", _parts(facts.cameras)),
        ("other entries", ", ".join(facts.step)),
        ("instruction", ", ".join(facts.instruction)),
        ("known defects", "; ".join(_defects(facts))),
        ("last steps", {"keep": "kept", "drop": "left out"}[facts.last_step]),
        *((f"from {origin}", url_of(facts, origin)) for origin in ("rlds", "hub")),
    ]
    table(f"{facts.id}, as it is published", [(name, value) for name, value in rows if value])
    line(f"`replaybank convert {facts.id} DEST` fetches and converts it.")


def _rate(facts: DatasetFacts) -> str:
    return "?" if facts.hz is None else f"{facts.hz:g}"


def _defects(facts: DatasetFacts) -> list[str]:
    swapped = [f"{', '.join(facts.bgr)}: blue first (put right)"] if facts.bgr else []
    return [*facts.defects, *swapped]


def _parts(parts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in parts.items())


def _split(name: str, chosen: str) -> str:
    return f"{name} (shown here)" if name == chosen else name


def _entry(field: FieldSummary) -> tuple[str, str, str, str]:
    return "/".join(field.key), field.kind, str(list(field.shape)), field.dtype


def _names(field: FieldSummary) -> list[tuple[str, str, str]]:
    """The names of an entry's classes and of its numbers, counted from 0."""
    found = (("classes", field.labels), ("numbers", field.names))
    key = "/".join(field.key)
    return [(key, of, short(", ".join(names), NAMES_SHOWN)) for of, names in found if names]


def _camera(image: ImageSummary) -> tuple[str, str, str, str]:
    pixels = f"{image.width} x {image.height}"
    return (
        "/".join(image.key),
        image.form,
        pixels,
        count(image.bytes_per_frame) if image.bytes_per_frame else "?",
    )
