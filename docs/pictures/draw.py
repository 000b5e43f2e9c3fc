"""Draws the pictures of the documentation: ``python docs/pictures/draw.py`` writes the files beside it."""

from __future__ import annotations

import sys
from math import log10
from pathlib import Path

from canvas import Canvas, css


def parts() -> Canvas:
    """Storage, writer, sampler, buffer."""
    page = Canvas(
        "parts",
        452,
        "A buffer holds a writer, a sampler and a storage. Steps that are written go where the writer says, "
        "the sampler picks steps, and what was picked passes through transforms and leaves as a batch.",
    )
    page.box(8, 50, 464, 346, fill="none", edge="line", round=12)
    page.text(240, 76, "buffer", look="bold")
    page.text(240, 94, "one lock, one generator", look="small", fill="soft")

    page.text(118, 24, "extend(steps)", look="code", fill="orange-ink")
    page.arrow((118, 34), (118, 110), edge="orange-ink")
    page.text(350, 24, "update_priority(index, p)", look="code", fill="blue-ink")
    page.arrow((362, 34), (362, 110), edge="blue-ink")

    page.box(34, 112, 168, 54, fill="orange", edge="orange-ink")
    page.text(118, 135, "writer", look="bold", fill="orange-ink")
    page.text(118, 154, "where do new steps go?", look="small")
    page.box(278, 112, 168, 54, fill="blue", edge="blue-ink")
    page.text(362, 135, "sampler", look="bold", fill="blue-ink")
    page.text(362, 154, "which make a batch?", look="small")

    left, size, top = 34, 412 / 12, 236
    new, drawn = {4, 5}, {1, 7, 8, 10}

    def middle(slot: int) -> float:
        return left + size * (slot + 0.5)

    page.arrow(
        (118, 166),
        (118, 190),
        ((middle(4) + middle(5)) / 2, 190),
        ((middle(4) + middle(5)) / 2, top - 3),
        edge="orange-ink",
    )
    page.line((362, 166), (362, 206), edge="blue-ink")
    page.line((middle(1), 206), (middle(10), 206), edge="blue-ink")
    for slot in sorted(drawn):
        page.arrow((middle(slot), 206), (middle(slot), top - 3), edge="blue-ink")
    for slot in range(12):
        fill, edge = (
            ("orange", "orange-ink")
            if slot in new
            else ("blue", "blue-ink")
            if slot in drawn
            else ("box", "line")
        )
        page.box(left + size * slot + 1, top, size - 2, 34, fill=fill, edge=edge, round=4)
        page.text(middle(slot), top + 22, str(slot), look="small")
    for slot in sorted(drawn):
        page.line((middle(slot), top + 34), (middle(slot), 286), edge="blue-ink")
    page.line((middle(1), 286), (middle(10), 286), edge="blue-ink")
    page.arrow((240, 286), (240, 334), edge="blue-ink")
    page.text(34, 312, "storage", look="bold", at="start")
    page.text(34, 330, "where is the data?", look="small", at="start")
    page.text(446, 312, "write log", look="bold", at="end")
    page.text(446, 330, "what was written", look="small", at="end")
    page.box(160, 336, 160, 36, fill="violet", edge="violet-ink", round=18)
    page.text(240, 359, "transforms", look="bold", fill="violet-ink")
    page.arrow((240, 372), (240, 418), edge="violet-ink")
    page.text(240, 440, "batch = sample()", look="code", fill="violet-ink")
    return page


def trajectories() -> Canvas:
    """The trajectory index over a storage that has gone round."""
    page = Canvas(
        "trajectories",
        372,
        "Sixteen slots of a full storage hold four trajectories. The write cursor stands before slot 6: the "
        "oldest step lies behind it, the newest before it. One row of bits marks the last steps of "
        "trajectories, another those of trajectories with at least four steps. Slices are drawn within "
        "these, also across the physical end.",
    )
    left, size, top = 16, 28, 66
    colours = {"A": "green", "B": "blue", "C": "violet", "D": "orange"}
    of = "CCCDDDAAABBBBBCC"
    page.text(left, 24, "what is stored", look="bold", at="start")
    page.text(464, 24, "four trajectories, A to D", look="small", fill="soft", at="end")
    for slot, name in enumerate(of):
        page.box(
            left + size * slot + 1,
            top,
            size - 2,
            32,
            fill=colours[name],
            edge=f"{colours[name]}-ink",
            round=4,
        )
        page.text(left + size * (slot + 0.5), top + 21, name, look="bold small", fill=f"{colours[name]}-ink")
        page.text(left + size * (slot + 0.5), top + 49, str(slot), look="small", fill="soft")
    cursor = left + size * 6
    page.line((cursor, 48), (cursor, top + 38), edge="ink", width=2.4)
    page.text(cursor - 7, 57, "newest", look="small", at="end")
    page.text(cursor + 7, 57, "oldest: written over next", look="small", at="start")

    rows = [
        (150, "last steps", "1 bit a slot", {2, 5, 8, 13}),
        (222, "of those long enough for 4 steps", "1 bit a slot", {2, 13}),
    ]
    for y, name, cost, ones in rows:
        page.text(left, y, name, look="bold", at="start")
        page.text(464, y, cost, look="small", fill="soft", at="end")
        for slot in range(16):
            on = slot in ones
            tone = colours[of[slot]] if on else "box"
            page.box(
                left + size * slot + 1,
                y + 9,
                size - 2,
                26,
                fill=tone,
                edge=f"{tone}-ink" if on else "line",
                round=4,
            )
            page.text(
                left + size * (slot + 0.5),
                y + 27,
                "1" if on else "0",
                look="small",
                fill="ink" if on else "soft",
            )

    page.text(left, 294, "slices that may come", look="bold", at="start")

    def bracket(
        first: float, last: float, y: float, tone: str, *, begins: bool = True, ends: bool = True
    ) -> None:
        a, b = left + size * first + 3, left + size * (last + 1) - 3
        points = ([(a, y - 6)] if begins else []) + [(a, y), (b, y)] + ([(b, y - 6)] if ends else [])
        page.line(*points, edge=f"{tone}-ink", width=2.6)

    bracket(9, 12, 312, "blue")
    bracket(10, 13, 324, "blue")
    bracket(14, 15.1, 312, "violet", ends=False)
    bracket(-0.1, 1, 312, "violet", begins=False)
    bracket(15, 15.1, 324, "violet", ends=False)
    bracket(-0.1, 2, 324, "violet", begins=False)
    page.text(
        240,
        356,
        "never across an end, never across the cursor; across slot 15, yes",
        look="small",
        fill="soft",
    )
    return page


def tree() -> Canvas:
    """The weight tree: one draw, one update."""
    page = Canvas(
        "tree",
        392,
        "A tree of sums over sixteen weights. A draw takes a random share of the total down to one leaf. "
        "A changed leaf has the sums above it added up again from their children.",
    )
    weights = [1, 0, 3, 1, 2, 2, 0, 1, 4, 1, 0, 2, 0, 1, 1, 1]
    left, size, base = 20, 27.5, 300
    drawn, changed = 8, 13

    def middle(slot: float) -> float:
        return left + size * (slot + 0.5)

    groups = [sum(weights[4 * k : 4 * k + 4]) for k in range(4)]
    root = (240, 46)
    page.text(20, 28, "a draw", look="bold", fill="blue-ink", at="start")
    page.text(20, 47, "0.62 of 20 = 12.4", look="small", fill="blue-ink", at="start")
    page.text(20, 65, "comes down to slot 8", look="small", fill="blue-ink", at="start")
    page.text(460, 28, "an update", look="bold", fill="orange-ink", at="end")
    page.text(460, 47, "slot 13 changes, then", look="small", fill="orange-ink", at="end")
    page.text(460, 65, "the sums above it", look="small", fill="orange-ink", at="end")
    for k in range(4):
        tone = "blue-ink" if k == drawn // 4 else "orange-ink" if k == changed // 4 else "line"
        page.line(
            (root[0], root[1] + 17),
            (middle(4 * k + 1.5), 118),
            edge=tone,
            width=2.6 if tone != "line" else 1.4,
        )
        for slot in range(4 * k, 4 * k + 4):
            tone = "blue-ink" if slot == drawn else "orange-ink" if slot == changed else "line"
            page.line(
                (middle(4 * k + 1.5), 152),
                (middle(slot), 186),
                edge=tone,
                width=2.6 if tone != "line" else 1.4,
            )
    page.box(root[0] - 30, root[1] - 17, 60, 34)
    page.text(root[0], root[1] + 6, str(sum(weights)), look="bold")
    for k, total in enumerate(groups):
        tone = "blue" if k == drawn // 4 else "orange" if k == changed // 4 else "box"
        page.box(
            middle(4 * k + 1.5) - 26, 118, 52, 34, fill=tone, edge="line" if tone == "box" else f"{tone}-ink"
        )
        page.text(middle(4 * k + 1.5), 141, str(total), look="bold")
    for slot, weight in enumerate(weights):
        tone = "blue" if slot == drawn else "orange" if slot == changed else "box"
        edge = "line" if tone == "box" else f"{tone}-ink"
        page.box(middle(slot) - 12.5, 186, 25, 30, fill=tone, edge=edge, round=4)
        page.text(middle(slot), 206, str(weight), look="small", fill="ink" if weight else "soft")
        if weight:
            page.box(middle(slot) - 8, base - 17 * weight, 16, 17 * weight, fill=tone, edge=edge, round=2)
        page.text(middle(slot), base + 17, str(slot), look="small", fill="soft")
    page.line((left, base), (left + 16 * size, base), edge="line")
    page.text(240, 342, "weight of each slot; zero is never drawn", look="small", fill="soft")
    page.text(240, 372, "drawn with 4 branches a node; the real tree has 16", look="small", fill="soft")
    return page


def ted() -> Canvas:
    """The layout of steps."""
    page = Canvas(
        "ted",
        330,
        "Four steps of an episode. Each has an observation and an action at its root, and under next the "
        "observation that followed, the reward and done. The next observation of a step is the observation "
        "of the step after it. At the last step done is true and the next observation is the true last one.",
    )
    left, size = 14, 114
    page.text(left, 24, "one item a step", look="bold", at="start")
    page.text(466, 24, "time goes on to the right", look="small", fill="soft", at="end")
    for step in range(4):
        x = left + size * step
        page.box(x, 38, size - 8, 232, fill="none", edge="line", round=8)
        page.text(x + 53, 58, f"step {step}", look="small", fill="soft")
        page.box(x + 8, 68, size - 24, 28, fill="blue", edge="blue-ink", round=4)
        page.text(x + 53, 87, "observation", look="small", fill="blue-ink")
        page.box(x + 8, 102, size - 24, 28, fill="orange", edge="orange-ink", round=4)
        page.text(x + 53, 121, "action", look="small", fill="orange-ink")
        page.text(x + 53, 151, "next", look="bold small")
        page.line((x + 8, 146), (x + 32, 146))
        page.line((x + 74, 146), (x + 98, 146))
        page.box(x + 8, 158, size - 24, 28, fill="blue", edge="blue-ink", round=4)
        page.text(x + 53, 177, "observation", look="small", fill="blue-ink")
        page.text(x + 53, 210, "reward", look="small")
        last = step == 3
        page.box(
            x + 8,
            222,
            size - 24,
            38,
            fill="green" if last else "box",
            edge="green-ink" if last else "line",
            round=4,
        )
        page.text(x + 53, 238, "done", look="small")
        page.text(x + 53, 254, "True" if last else "False", look="code", fill="green-ink" if last else "soft")
    for step in range(3):
        x = left + size * step
        page.arrow((x + 98, 172), (x + 109, 172), (x + 109, 82), (x + size + 7, 82), edge="blue-ink", width=2)
    page.text(240, 294, "the arrows join what is one and the same frame:", look="small", fill="soft")
    page.text(240, 314, 'next_observation="derive" stores it once', look="code", fill="soft")
    return page


def costs() -> Canvas:
    """What calls cost, beside the fastest other library: the figures of docs/performance.md."""
    rows = [
        ("by priority, with update, B = 256", 47, 187, "tianshou"),
        ("by priority, with update, B = 4096", 337, 1132, "flashbax"),
        ("uniform, B = 256", 18, 70, "cpprb"),
        ("uniform, B = 4096", 107, 502, "flashbax"),
        ("images, B = 256", 957, 917, "flashbax"),
        ("slices of 8, B = 256, after a write", 86, 3390, "torchrl"),
        ("slices of 64, B = 4096, after a write", 193, 4166, "torchrl"),
        ("writing 1,000 steps", 25, 57, "cpprb"),
    ]
    page = Canvas(
        "costs",
        74 + 46 * len(rows) + 26,
        "Microseconds a call on a logarithmic scale, replaybank beside the fastest other library: "
        + "; ".join(f"{name}: {ours} against {other} ({who})" for name, ours, other, who in rows),
    )
    left, right = 24, 452

    def place(microseconds: float) -> float:
        return left + (right - left) * (log10(microseconds) - 1) / 3

    page.dot(30, 20, 6, fill="blue-ink", edge="blue-ink")
    page.text(42, 25, "replaybank", look="small bold", at="start")
    page.dot(140, 20, 6, fill="paper", edge="orange-ink")
    page.text(152, 25, "fastest other library", look="small", at="start")
    page.text(464, 25, "left is better", look="small", fill="soft", at="end")
    bottom = 60 + 46 * len(rows)
    for tick, name in ((10, "10 µs"), (100, "100 µs"), (1000, "1 ms"), (10000, "10 ms")):
        page.line((place(tick), 40), (place(tick), bottom), edge="line", width=0.7, dashed=True)
        page.text(
            place(tick), bottom + 20, name, look="small", fill="soft", at="end" if tick == 10000 else "middle"
        )
    for row, (name, ours, other, who) in enumerate(rows):
        y = 58 + 46 * row
        page.text(left + 5, y, name, look="small", at="start")
        times = other / ours
        factor = f"{times:.0f}x" if times >= 2.95 else f"{times:.1f}x"
        page.text(464, y, f"{factor}  {who}", look="small", fill="soft", at="end")
        page.line((place(ours), y + 15), (place(other), y + 15), edge="line", width=2)
        page.dot(place(other), y + 15, 6, fill="paper", edge="orange-ink")
        page.dot(place(ours), y + 15, 6, fill="blue-ink", edge="blue-ink")
    return page


def robot() -> Canvas:
    """From published files to batches."""
    page = Canvas(
        "robot",
        300,
        "RLDS folders, LeRobot datasets and tar shards are either streamed, with nothing stored, or "
        "converted once into memory-mapped arrays. Both give the same batches.",
    )
    for x, name, more in (
        (14, "RLDS", "TFRecord"),
        (170, "LeRobot", "Parquet, video"),
        (326, "tar shards", "of the hub"),
    ):
        page.box(x, 14, 140, 54)
        page.text(x + 70, 37, name, look="bold")
        page.text(x + 70, 56, more, look="small", fill="soft")
        page.line((x + 70, 68), (x + 70, 86))
    page.line((84, 86), (396, 86))
    page.arrow((124, 86), (124, 116))
    page.arrow((356, 86), (356, 116))
    page.box(14, 118, 220, 72, fill="blue", edge="blue-ink")
    page.text(124, 142, "stream", look="bold", fill="blue-ink")
    page.text(124, 161, "nothing stored, shuffled,", look="small")
    page.text(124, 179, "shared by ranks and workers", look="small")
    page.box(246, 118, 220, 72, fill="orange", edge="orange-ink")
    page.text(356, 142, "convert once", look="bold", fill="orange-ink")
    page.text(356, 161, "memory-mapped arrays,", look="small")
    page.text(356, 179, "any step at any time", look="small")
    page.line((124, 190), (124, 210), edge="blue-ink")
    page.line((356, 190), (356, 210), edge="orange-ink")
    page.line((124, 210), (240, 210), edge="blue-ink")
    page.line((356, 210), (240, 210), edge="orange-ink")
    page.arrow((240, 210), (240, 236), edge="violet-ink")
    page.box(90, 238, 300, 46, fill="violet", edge="violet-ink")
    page.text(240, 258, "the same batches", look="bold", fill="violet-ink")
    page.text(240, 276, "slices, steps or whole episodes", look="small")
    return page


PICTURES = [parts, trajectories, tree, ted, costs, robot]


def main() -> None:
    """Draw them all into the documentation, or into the folder that is named, laid out alike."""
    docs = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]
    for folder in (docs / "pictures", docs / "_static"):
        folder.mkdir(exist_ok=True)
    for picture in PICTURES:
        picture().save(docs / "pictures")
    (docs / "_static" / "pictures.css").write_text(css(), encoding="utf-8")


if __name__ == "__main__":
    main()
