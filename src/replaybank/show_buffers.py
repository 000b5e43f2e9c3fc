"""What is in a checkpoint of a buffer, printed for a person."""

from __future__ import annotations

from collections.abc import Sequence

from replaybank.buffers.checkpointed import CheckpointedBuffer
from replaybank.terminal import count, line, size, table

_LIMIT = 1 << 62  # of a list without a bound
_INNER = frozenset({"capacity", "total", "largest"})  # of a sampler's state, of no use to a reader


def show_buffers(path: str, buffers: Sequence[CheckpointedBuffer], on_disk: int) -> None:
    """Print what is in a checkpoint: how much, of what, and how it is drawn. O(entries).

    Args:
        path: the checkpoint.
        buffers: in it.
        on_disk: bytes of its files.
    """
    for number, saved in enumerate(buffers):
        of = f", buffer {number} of {len(buffers)}" if len(buffers) > 1 else ""
        table(f"{path}{of}", _facts(saved, on_disk if not number else None))
        if saved.leaves:
            rows = [
                (
                    "/".join(leaf.key) or "(the item)",
                    str(list(leaf.shape)),
                    str(leaf.dtype).removeprefix("torch."),
                )
                for leaf in saved.leaves
            ]
            table("Entries of an item", rows, ("key", "shape", "dtype"))
    if buffers and buffers[0].leaves:
        line(f"`replaybank view {path}` shows an episode, `replaybank report {path}` makes a page about it.")


def _facts(saved: CheckpointedBuffer, on_disk: int | None) -> list[tuple[str, str]]:
    told = {name: value for name, value in saved.settings("sampler").items() if name not in _INNER}
    settings = ", ".join(f"{name} {value}" for name, value in told.items())
    encoded = ", ".join(f"{'/'.join(key)} as {how.format.upper()}" for key, how in saved.encoded.items())
    room = saved.capacity
    facts = [
        ("form", "checkpoint of a buffer"),
        ("items", count(saved.length) + (f" of {count(room)}" if room is not None and room < _LIMIT else "")),
        ("rows written", count(saved.written)),
        ("columns", "x".join(map(str, saved.columns))),
        ("size", f"{size(saved.bytes)} of items" if saved.leaves else ""),
        ("on disk", "" if on_disk is None else size(on_disk)),
        ("storage", saved.kind("storage")),
        ("dataset", saved.dataset or ""),
        ("next observation", "derived from the next step" if saved.derived else ""),
        ("encoded", encoded),
        ("sampler", f"{saved.kind('sampler')}{f' ({settings})' if settings else ''}"),
        ("priorities", _priorities(saved)),
        ("writer", saved.kind("writer")),
    ]
    return [(name, value) for name, value in facts if value]


def _priorities(saved: CheckpointedBuffer) -> str:
    weights = saved.weights
    if weights is None or not weights.numel():
        return ""
    return (
        f"{float(weights.min()):.3g} to {float(weights.max()):.3g}, mean {float(weights.double().mean()):.3g}"
    )
