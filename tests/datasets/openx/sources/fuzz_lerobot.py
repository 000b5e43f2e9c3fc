"""Damages metadata, tables and videos of LeRobot datasets, over and over, and reads what is left.

``PYTHONPATH=tests python tests/.../fuzz_lerobot.py 20000 [SEED]`` is the long run, a test does a short one.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from lerobot_files import write_lerobot
from replaybank.datasets.openx.sources.lerobot import LeRobotSource
from replaybank.errors import ReplaybankError

LENGTHS = (6, 9, 5)
ALLOWED = (ReplaybankError, FileNotFoundError, IndexError)
"""What reading damaged files may raise: ours, and a file that its damaged name does not find."""
MEMORY = 64 << 20
"""Bytes that reading a small damaged file may take."""
DAMAGED = (".json", ".jsonl", ".parquet", ".mp4")
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 10**30, 1e308, float("nan"), "", "a/../b", "/etc/passwd",
    "0:99999999999", "1:0", "{episode_index:99d}", "v3.0", "v2.0", "video", "image", "float64", "string",
    [], [-1], [2**31], [3, 64, 64], [1, 2, 3, 4, 5, 6, 7, 8, 9], {}, {"a": [1]},
)  # fmt: skip


def write_originals(folder: Path) -> list[Path]:
    """Datasets of each version, without and with videos, and with groups of rows."""
    notes = {"observation.note": lambda e, n: [f"note {i}" for i in range(n)]}
    return [
        write_lerobot(folder / "two", "v2.1", LENGTHS, None, extra=notes),
        write_lerobot(folder / "three", "v3.0", LENGTHS, None, row_group=4, extra=notes),
        write_lerobot(folder / "videos", "v3.0", LENGTHS),
    ]


def damage_json(value: Any, draw: random.Random) -> Any:
    """Replace, remove or repeat an entry somewhere in a JSON value."""
    if isinstance(value, dict) and value and draw.random() < 0.85:
        key = draw.choice(list(value))
        changed = dict(value)
        if draw.random() < 0.1:
            del changed[key]
        elif draw.random() < 0.1:
            changed[draw.choice(["action", "next.reward", "observation", "a.b", "../x", ""])] = changed.pop(
                key
            )
        else:
            changed[key] = damage_json(value[key], draw)
        return changed
    if isinstance(value, list) and value and draw.random() < 0.8:
        at = draw.randrange(len(value))
        return [*value[:at], damage_json(value[at], draw), *value[at + 1 :]]
    return draw.choice(VALUES)


def damage_bytes(content: bytes, draw: random.Random) -> bytes:
    """Flip, set, remove or repeat some bytes; of a Parquet file mostly in its description, at its end."""
    data = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        if not data:
            break
        last = len(data) - 1
        at = max(0, last - int(draw.expovariate(1 / 800))) if draw.random() < 0.7 else draw.randint(0, last)
        match draw.randrange(5):
            case 0:
                data[at] ^= 1 << draw.randrange(8)
            case 1:
                data[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
            case 2:
                del data[at : at + draw.randint(1, 8)]
            case 3:
                data[at:at] = data[at : at + draw.randint(1, 8)]
            case _:
                data[at : at + 4] = draw.randbytes(4)
    return bytes(data)


def damage(path: Path, draw: random.Random) -> bytes:
    """A damaged version of a file."""
    content = path.read_bytes()
    if path.suffix == ".json" and draw.random() < 0.8:
        return json.dumps(damage_json(json.loads(content), draw)).encode()
    if path.suffix == ".jsonl" and draw.random() < 0.7:
        lines = content.splitlines()
        at = draw.randrange(len(lines))
        lines[at] = json.dumps(damage_json(json.loads(lines[at]), draw)).encode()
        return b"\n".join(lines) + b"\n"
    return damage_bytes(content, draw)


def read(path: Path) -> int:
    """Read everything there is; the number of steps, once every column has been seen to have them."""
    steps = 0
    source = LeRobotSource(path, allow_missing=True, video_threads=1)
    for shard in source.shards():
        for episode in source.episodes(shard):
            assert episode.length >= 1
            assert set(episode.steps) | episode.missing == set(source.fields)
            for key, column in episode.steps.items():
                assert len(column) == episode.length, key
                spec = source.fields[key]
                if isinstance(column, list):
                    assert all(isinstance(text, str) for text in column)
                elif isinstance(column, np.ndarray):
                    assert column.dtype == spec.dtype
                    assert column.shape[1:] == spec.shape
                else:
                    assert len(column.decode(0, 3)) == min(3, episode.length)
            steps += episode.length
    return steps


def fuzz(originals: list[Path], rounds: int, seed: int) -> dict[str, int]:
    """Read so many damaged datasets; how often which error came, or none. Anything unforeseen is raised."""
    draw = random.Random(seed)
    found: dict[str, int] = {}
    files = {path: [f for f in path.rglob("*") if f.suffix in DAMAGED] for path in originals}
    for path in originals:
        read(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for number in range(rounds):
        path = draw.choice(originals)
        file = draw.choice(files[path])
        whole = file.read_bytes()
        broken = damage(file, draw)
        file.write_bytes(broken)
        try:
            read(path)
            outcome = "read"
        except ALLOWED as error:
            outcome = type(error).__name__
        except ValueError as error:
            if "has no split 'train'" not in str(error):  # it was renamed
                print(f"round {number} of seed {seed}: {file}")
                raise
            outcome = "no split"
        except BaseException:
            print(f"round {number} of seed {seed}: {file}")
            raise
        finally:
            file.write_bytes(whole)
        found[outcome] = found.get(outcome, 0) + 1
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if file.suffix == ".mp4":  # what a decoder takes is its own affair
            before = max(before, peak)
        elif peak - before > MEMORY + 2 * len(broken):
            raise AssertionError(f"round {number} of seed {seed}: {file} took {peak - before >> 20} MiB more")
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(fuzz(write_originals(Path(folder)), int(sys.argv[1]), int((sys.argv[2:] or ["0"])[0])))
