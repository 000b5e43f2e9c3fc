"""What is in a dataset and what its values are like, printed for a person."""

from __future__ import annotations

from collections.abc import Mapping

from replaybank.datasets.openx.stats import EntryStats
from replaybank.datasets.openx.summary import DatasetSummary, FieldSummary, ImageSummary
from replaybank.terminal import count, line, short, size, table

SAMPLES = 5
"""Strings shown of a text entry: the most frequent ones."""


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
    for key, counter in summary.texts.items():
        shown = counter.most_common(SAMPLES)
        title = f"{'/'.join(key)}: {count(len(counter))} different, {len(shown)} of them"
        if shown:
            table(
                title,
                [(count(times), short(text) or "(empty)") for text, times in shown],
                ("episodes", "text"),
            )
    for note in summary.notes:
        line(f"Note: {note}")


def show_stats(stats: Mapping[tuple[str, ...], EntryStats]) -> None:
    """Print statistics, a line for each number of an entry, or channel of a camera. O(numbers)."""
    for key, entry in stats.items():
        note = f", {count(entry.left_out)} values that are no numbers left out" if entry.left_out else ""
        columns = (entry.mean, entry.std, entry.min, entry.q01, entry.q99, entry.max)
        values = [column.reshape(-1).tolist() for column in columns]
        rows = [
            (str(number), *(f"{value:.6g}" for value in row))
            for number, row in enumerate(zip(*values, strict=True))
        ]
        table(f"{'/'.join(key)}: {count(entry.count)} steps{note}", rows, _STATS_HEADER)


_STATS_HEADER = ("number", "mean", "std", "min", "q01", "q99", "max")
_ENTRY_HEADER = ("key", "kind", "shape", "dtype")


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


def _split(name: str, chosen: str) -> str:
    return f"{name} (shown here)" if name == chosen else name


def _entry(field: FieldSummary) -> tuple[str, str, str, str]:
    return "/".join(field.key), field.kind, str(list(field.shape)), field.dtype


def _camera(image: ImageSummary) -> tuple[str, str, str, str]:
    pixels = f"{image.width} x {image.height}"
    return "/".join(image.key), image.form, pixels, count(image.bytes_per_frame)
