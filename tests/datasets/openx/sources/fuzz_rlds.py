"""Mutates the files of an RLDS dataset and reads each: a right result or an error of ours.

``python tests/.../fuzz_rlds.py KIND COUNT [SEED]`` is the long run, with KIND one of ``tfrecord``,
``example``, ``features`` and ``info``; a test does short ones.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from replaybank.datasets.openx.sources.rlds import RLDSSource
from replaybank.datasets.openx.sources.rlds_writer import RLDSWriter
from replaybank.datasets.openx.sources.tfrecord import TFRecordWriter, read_records
from replaybank.datasets.openx.ted import settle_shapes, ted_leaves, to_ted, widen_shapes
from replaybank.errors import ReplaybankError

MEMORY = 64 << 20
"""Bytes beyond twice the files; more is a MemoryError, which is a failure."""
SECONDS = 10
"""Longer than this is a hang."""
ALLOWED = {"info": (ReplaybankError, FileNotFoundError, ValueError)}
"""What opening and reading may raise beside errors of the data: missing shards, a split not declared."""

VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1e308, 2**63, -(2**70), "", "\0", "-1", "9" * 40, [], {}, [[]], {"": {}}),
    *("float32", "object", "os.system", "zlib", "bytes", "steps", "a/b", "sequence", "featuresDict", "text"),
    *({"dimensions": ["-1", "-1", "-1"]}, {"dimensions": [str(2**31 - 1)] * 4}, {"dtype": "uint64"}),
)


def write(folder: Path) -> Path:
    """A small dataset with an entry of each kind."""
    from replaybank.datasets.openx.sources.base import FieldSpec, Key

    fields: dict[Key, FieldSpec] = {
        ("observation", "image"): FieldSpec("image", (4, 5, 3), np.dtype("uint8")),
        ("observation", "depth"): FieldSpec("image", (4, 5, 1), np.dtype("float32")),
        ("observation", "state"): FieldSpec("tensor", (3,), np.dtype("float32")),
        ("action",): FieldSpec("tensor", (-1,), np.dtype("float64")),
        ("reward",): FieldSpec("tensor", (), np.dtype("float32")),
        ("is_terminal",): FieldSpec("tensor", (), np.dtype("bool")),
        ("count",): FieldSpec("tensor", (2,), np.dtype("int64")),
        ("language_instruction",): FieldSpec("text", (), None),
        ("seen",): FieldSpec("tensor", (-1, -1, 2), np.dtype("int16"), ragged=2),
        ("words",): FieldSpec("text", (2,), None),
    }
    rng = np.random.default_rng(0)
    with RLDSWriter(folder, "small", fields=fields, shards=1, image_format="png") as writer:
        for length in (3, 1, 4):
            writer.write(
                {
                    ("observation", "image"): rng.integers(0, 255, (length, 4, 5, 3)).astype(np.uint8),
                    ("observation", "depth"): rng.normal(size=(length, 4, 5, 1)).astype(np.float32),
                    ("observation", "state"): rng.normal(size=(length, 3)).astype(np.float32),
                    ("action",): rng.normal(size=(length, 2)),
                    ("reward",): rng.normal(size=length).astype(np.float32),
                    ("is_terminal",): np.arange(length) == length - 1,
                    ("count",): rng.integers(-(2**40), 2**40, (length, 2)),
                    ("language_instruction",): ["pick up", "put", "gr\u00fcn", ""][:length],
                    ("seen",): [[[[t, 1]] * t, [[2, 3]]][:t] for t in range(length)],
                    ("words",): [["a", "b"]] * length,
                },
                {},
            )
    return folder


def mutated(raw: bytes, rng: random.Random) -> bytes:
    """Bytes with one to five things wrong in them."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        if not data:
            break
        at = rng.randrange(len(data))
        what = rng.randrange(7)
        if what == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            data[at] = rng.randrange(256)
        elif what == 2:
            del data[at : at + rng.choice((1, 2, 8, 64))]
        elif what == 3:
            data[at:at] = rng.randbytes(rng.choice((1, 2, 8)))
        elif what == 4:
            data[at:at] = data[at : at + rng.randint(1, 64)]
        elif what == 5:
            number = rng.choice((2**63, 2**63 - 1, 2**32, 2**31 - 1, 2**64 - 1, 1 << 40))
            data[at : at + 8] = number.to_bytes(8, "little")
        else:
            del data[at:]
    return bytes(data)


def mutated_json(document: Any, rng: random.Random) -> Any:
    """A document with one to four of its parts replaced, removed or moved."""
    document = json.loads(json.dumps(document))
    for _ in range(rng.choice((1, 1, 2, 4))):
        places: list[tuple[Any, Any]] = []

        def walk(node: Any, places: list[tuple[Any, Any]] = places) -> None:
            items = node.items() if isinstance(node, dict) else enumerate(node)
            for name, child in items:
                places.append((node, name))
                if isinstance(child, (dict, list)):
                    walk(child)

        walk(document)
        if not places:
            break
        node, name = rng.choice(places)
        what = rng.randrange(4)
        if what == 0:
            node[name] = json.loads(json.dumps(rng.choice(VALUES)))  # a copy: it may be mutated next
        elif what == 1:
            del node[name]
        elif what == 2 and isinstance(node, dict):
            node[rng.choice(["steps", "tensor", "image", "text", "sequence", "feature", "x/y", ""])] = (
                node.pop(name)
            )
        else:
            other, there = rng.choice(places)
            node[name] = json.loads(json.dumps(other[there]))
    return document


class Fuzz:
    """One small dataset, of which one file is changed at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = write(folder)
        self.shard = next(path for path in folder.iterdir() if "tfrecord" in path.name)
        self.whole = {path: path.read_bytes() for path in folder.iterdir()}
        self.payloads = [record.payload for record in read_records(str(self.shard))]

    def change(self, kind: str, rng: random.Random) -> None:
        """Make a file of the dataset another."""
        for path, content in self.whole.items():
            path.write_bytes(content)
        if kind == "tfrecord":
            self.shard.write_bytes(mutated(self.whole[self.shard], rng))
        elif kind == "example":  # with right lengths and checksums, so that the parser is reached
            payloads = [mutated(p, rng) if rng.random() < 0.6 else p for p in self.payloads]
            self.shard.unlink()
            with self.shard.open("wb") as file:
                writer = TFRecordWriter(file)
                for payload in payloads:
                    writer.write(payload)
        else:
            path = self.folder / {"features": "features.json", "info": "dataset_info.json"}[kind]
            if rng.random() < 0.3:
                path.write_bytes(mutated(self.whole[path], rng))
            else:
                path.write_text(json.dumps(mutated_json(json.loads(self.whole[path]), rng)))

    def read(self, kind: str) -> str:
        """Read all of it, frames and all."""
        try:
            source = RLDSSource(self.folder)
            leaves = ted_leaves(source.fields)
            number = 0
            for shard in source.shards():
                for episode in source.episodes(shard):
                    leaves = widen_shapes(settle_shapes(leaves, episode), episode)
                    ted = to_ted(episode, leaves, number, source.name)
                    number += 1
                    for column in ted.columns.values():
                        if not isinstance(column, (np.ndarray, list)):
                            column.decode()
        except ALLOWED.get(kind, ReplaybankError) as error:
            return type(error).__name__ if len(str(error)) < 3000 else f"{error!r:.5000} is no message"
        return "read"


def fuzz(kind: str, count: int, seed: int = 0) -> Counter[str]:
    """Read ``count`` mutated datasets; how often each kind of outcome came.

    Raises:
        Exception: reading one raised what is no error of a file, took too long, or too much memory.
    """
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        dataset = Fuzz(Path(folder) / "small")
        assert dataset.read(kind) == "read"  # and whatever is imported at the first use is there now
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        files = sum(map(len, dataset.whole.values()))
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY + 2 * files, hard))
        for number in range(count):
            dataset.change(kind, rng)
            signal.alarm(SECONDS)
            try:
                outcome = dataset.read(kind)
                assert "no message" not in outcome, outcome
                outcomes[outcome] += 1
            except BaseException:
                print(f"{kind}, seed {seed}, number {number}", file=sys.stderr)
                raise
            finally:
                signal.alarm(0)
    return outcomes


if __name__ == "__main__":
    print(dict(fuzz(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)))
