"""Writes tar shards of pickled episodes as the hub has them."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from replaybank.datasets.openx.sources.images import encode_frame

SHAPE = (24, 32, 3)
"""Of the frames."""


def pixels(seed: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, SHAPE, dtype=np.uint8)


def hub_episode(number: int, length: int, **extra: Any) -> dict[str, Any]:
    """An episode whose numbers say which one it is, and which step; its frames are PNG."""
    return {
        "steps": [
            {
                "observation": {
                    "image": encode_frame(pixels(1000 * number + step), "png"),
                    "state": np.array([number, step], np.float32),
                },
                "action": np.full(3, step, np.float32),
                "language_instruction": f"do {number}".encode(),
                "is_first": np.bool_(step == 0),
                "is_last": np.bool_(step == length - 1),
                "is_terminal": np.bool_(step == length - 1),
                "reward": np.float32(step),
                **extra,
            }
            for step in range(length)
        ],
        "episode_metadata": {"file_path": f"/logs/{number}".encode(), "number": np.int64(number)},
    }


def write_tar(path: Path, contents: Sequence[Any], protocol: int = 4) -> Path:
    """Write one shard; ``bytes`` are written as they are, anything else is pickled."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for number, content in enumerate(contents):
            raw = content if isinstance(content, bytes) else pickle.dumps(content, protocol)
            info = tarfile.TarInfo(f"{path.stem}_{number}.data.pickle")
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return path


def write_hub(folder: Path, name: str = "arm", lengths: Sequence[Sequence[int]] = ((4, 3), (5,))) -> Path:
    """Write a dataset: a shard for each list of lengths."""
    number = 0
    for shard, of_shard in enumerate(lengths):
        episodes = [hub_episode(number + i, length) for i, length in enumerate(of_shard)]
        write_tar(folder / f"{name}_{shard:05d}.tar", episodes)
        number += len(of_shard)
    return folder
