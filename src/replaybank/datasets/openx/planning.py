"""What a conversion will store: the leaves of its steps laid out, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from replaybank.datasets.openx.files import METADATA, STRINGS, Manifest, frames_name
from replaybank.datasets.openx.ted import Leaf
from replaybank.errors import DataFormatError
from replaybank.storages.layout import Key, LeafSpec, RowLayout


def plan(
    name: str, split: str, origin: Mapping[str, Any], leaves: Mapping[Key, Leaf], *, encoded: bool = False
) -> Manifest:
    """A conversion as a manifest with nothing done yet; ``encoded``: images are kept as JPEG or PNG bytes."""
    specs = {leaf.key: LeafSpec(leaf.key, torch_dtype(leaf), leaf.shape) for leaf in leaves.values()}
    kept = tuple(specs.pop(leaf.key) for leaf in leaves.values() if encoded and leaf.kind == "image")
    return Manifest(
        name=name,
        split=split,
        origin=origin,
        layout=RowLayout.plan(specs.values()),
        kinds={leaf.key: leaf.kind for leaf in leaves.values() if leaf.kind != "tensor"},
        file_sizes={STRINGS: 0, METADATA: 0, **{frames_name(number): 0 for number in range(len(kept))}},
        encoded=kept,
        label_names={leaf.key: leaf.labels for leaf in leaves.values() if leaf.labels},
        dim_names={leaf.key: leaf.names for leaf in leaves.values() if leaf.names},
    )


def torch_dtype(leaf: Leaf) -> torch.dtype:
    """Dtype a leaf is stored in; text as the number of its string."""
    if leaf.dtype is None:
        return torch.int32
    try:
        return torch.from_numpy(np.empty(0, leaf.dtype)).dtype
    except TypeError:
        raise DataFormatError(
            f"{'/'.join(leaf.key)} has dtype {leaf.dtype}, which torch does not have"
        ) from None
