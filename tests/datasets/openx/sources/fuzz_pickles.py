"""Mutates pickles of episodes and reads each: a right value or an error, and nothing is run.

``python tests/.../fuzz_pickles.py 100000 [SEED]`` is the long run, a test does a short one.
"""

from __future__ import annotations

import io
import pickle
import random
import resource
import sys
import time
from collections import Counter
from typing import Any

import numpy as np

from replaybank.datasets.openx.sources.hub_columns import columns_of, field_spec, raw_episode
from replaybank.datasets.openx.sources.safe_pickle import loads
from replaybank.errors import DataFormatError

MEMORY = 192 << 20
"""Bytes beyond those of the process at the start; more is a MemoryError, which is a failure."""
FORBIDDEN = (
    "import",
    "exec",
    "compile",
    "open",
    "os.",
    "subprocess.",
    "socket.",
    "ctypes.",
    "pickle.find_class",
)
"""Audit events that reading a pickle must never cause."""

OPCODES = bytes(
    c for c in range(256) if c in b"(.012FIJKLMNPQRSTUVXabcdegh]il}joqrst)uGBC" or 0x80 <= c <= 0x98
)
BOMBS = (
    b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
    b"\x80\x04]\x94" + b"(h\x00h\x00h\x00h\x00e\x94" * 40 + b".",
    b"\x80\x04)\x94" + b"h\x00h\x00\x86\x94" * 200 + b".",
    b"\x80\x02r\xff\xff\xff\x7f.",
    b"\x80\x04\x8a\xff" + b"\xff" * 255 + b".",
    b"\x80\x05\x96\xff\xff\xff\xff\x00\x00\x00\x00.",
    b"]" * 5000 + b".",
    b"(" * 5000 + b"t" * 5000 + b".",
    b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR.",
    b"\x80\x02]\x94h\x00a.",
)


def _episodes() -> list[Any]:
    rng = np.random.default_rng(0)
    step = {
        "observation": {"image": b"\xff\xd8\xff" + rng.bytes(40), "state": rng.normal(size=4).astype("f4")},
        "action": {
            "world": rng.normal(size=3),
            "open": np.bool_(True),
            "big": rng.normal(size=2).astype(">f4"),
        },
        "is_first": np.bool_(False),
        "reward": np.float32(0.5),
        "text": b"pick up",
        "note": "gr\u00fc\u00dfe",
        "names": np.array([b"a"], dtype=object),
        "letters": np.array(["ab"]),
        "numbers": [1, 2.5, -(2**40)],
        "nothing": None,
        "fortran": np.asfortranarray(rng.normal(size=(2, 3))),
    }
    other = {"steps": [{"action": rng.normal(size=2)}], "episode_metadata": {"path": b"/x", "n": np.int64(3)}}
    made: list[Any] = [{"steps": [step, dict(step)]}, other]
    try:
        from PIL import Image
    except ImportError:
        return made
    picture = Image.fromarray(rng.integers(0, 255, (4, 5, 3), dtype=np.uint8))
    file = io.BytesIO()
    picture.save(file, "PNG")
    made.append({"steps": [{"action": 1, "observation": {"a": picture, "b": Image.open(file)}}]})
    return made


def mutated(raw: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """A pickle with one to six things wrong in it."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        if not data:
            break
        at = rng.randrange(len(data))
        what = rng.randrange(9)
        if what == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            data[at] = rng.choice(OPCODES)
        elif what == 2:
            data.insert(at, rng.choice(OPCODES))
        elif what == 3:
            del data[at : at + rng.choice((1, 2, 4, 16))]
        elif what == 4:
            data[at:at] = data[at : at + rng.randint(1, 64)] * rng.randint(1, 8)
        elif what == 5:
            other = rng.choice(others)
            start = rng.randrange(len(other))
            data[at:at] = other[start : start + rng.randint(1, 64)]
        elif what == 6:
            data[at : at + rng.choice((1, 4, 8))] = rng.choice((b"\xff", b"\x7f", b"\0")) * rng.choice(
                (1, 4, 8)
            )
        elif what == 7:
            name = rng.choice(
                (b"cos\nsystem\n", b"cbuiltins\neval\n", b"cnumpy\nload\n", b"cnumpy\nndarray\n")
            )
            data[at:at] = name + rng.choice((b"", b"(S'true'\ntR", b")R", b")\x81"))
        else:
            del data[at:]
    return bytes(data)


def fuzz(count: int, seed: int = 0) -> Counter[str]:
    """Read ``count`` mutated pickles; how often each kind of outcome came.

    Raises:
        AssertionError: one did something that only code does.
        Exception: one raised what is no error of a file.
    """
    rng = random.Random(seed)
    raws = [pickle.dumps(content, protocol) for content in _episodes() for protocol in range(6)]
    raws += BOMBS
    seen: list[str] = []
    watching = False

    def audit(event: str, arguments: object) -> None:
        if watching and event.startswith(FORBIDDEN):
            seen.append(f"{event} {arguments!r:.80}")

    sys.addaudithook(audit)
    outcomes: Counter[str] = Counter()
    _read(raws[0])  # whatever is imported at the first use is there now
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, hard))
    for number in range(count):
        raw = mutated(rng.choice(raws), raws, rng)
        started = time.process_time()
        watching = True
        outcome = _read(raw)
        watching = False
        assert not seen, (seed, number, raw, seen)
        took = time.process_time() - started
        assert took < 20, (seed, number, raw, took)
        outcomes[outcome] += 1
    return outcomes


def _read(raw: bytes) -> str:
    try:
        episode = raw_episode(loads(raw, "member"), len(raw))
        fields = {key: field_spec(key, values, "member") for key, values in episode.steps.items()}
        columns_of(episode, {key: spec for key, spec in fields.items() if spec is not None}, "member")
    except DataFormatError as error:
        return type(error).__name__ if len(str(error)) < 2000 else f"{error!r:.5000} is no message"
    return "read"


if __name__ == "__main__":
    print(dict(fuzz(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)))
