"""Writes RLDS datasets feature by feature, as TFDS lays them down."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from replaybank.datasets.openx.sources.example import serialize_example
from replaybank.datasets.openx.sources.tfrecord import write_record

CLASSES = "tensorflow_datasets.core.features."


def tensor(shape: list[int], dtype: str, encoding: str = "none") -> dict[str, Any]:
    return {"tensor": {"shape": {"dimensions": list(map(str, shape))}, "dtype": dtype, "encoding": encoding}}


def sequence(feature: Any, length: int = -1) -> dict[str, Any]:
    return {"sequence": {"feature": feature, "length": str(length)}}


def dict_of(**features: Any) -> dict[str, Any]:
    return {"featuresDict": {"features": features}}


def write(folder: Path, steps: Mapping[str, Any], *episodes: Mapping[str, Any], **metadata: Any) -> Path:
    """A dataset with a scalar action beside ``steps``, of raw Example features."""
    folder.mkdir(parents=True, exist_ok=True)
    features = dict_of(steps=sequence(dict_of(action=tensor([], "float32"), **steps)), **metadata)
    (folder / "features.json").write_text(json.dumps(features))
    split = {"name": "train", "shardLengths": [str(len(episodes))]}
    info = {"name": "toy", "version": "0.1.0", "splits": [split]}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    records = b"".join(write_record(serialize_example(episode)) for episode in episodes)
    (folder / "toy-train.tfrecord-00000-of-00001").write_bytes(records)
    return folder


def ints(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, np.int64)


def action(steps: int) -> dict[str, Any]:
    return {"steps/action": np.zeros(steps, np.float32)}


def lists(name: str, *rows: list[float], dtype: str = "float32") -> dict[str, Any]:
    """One level of lists, as TFDS stores it."""
    flat = np.array([x for row in rows for x in row], dtype)
    return {
        f"steps/{name}/ragged_flat_values": flat,
        f"steps/{name}/ragged_row_lengths_0": ints(*map(len, rows)),
    }
