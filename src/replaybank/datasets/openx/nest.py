"""Entries by their path as nested TensorDicts, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, is_leaf_nontensor

from replaybank.storages._tensordict import build


def nest(entries: Mapping[tuple[str, ...], Any], lead: torch.Size) -> TensorDict:
    """A TensorDict of entries that are known to fit.

    Args:
        entries: values ``[*lead, ...]`` by path.
        lead: batch size.
    """
    tree: dict[str, Any] = {}
    for key, value in entries.items():
        node = tree
        for part in key[:-1]:
            node = node.setdefault(part, {})
        node[key[-1]] = value

    def make(node: dict[str, Any]) -> TensorDict:
        source = {name: make(value) if type(value) is dict else value for name, value in node.items()}
        return build(source, lead, None)

    return make(tree)


def unnest(data: TensorDictBase) -> dict[tuple[str, ...], Any]:
    """The entries of a TensorDict by path, texts included. O(entries)."""
    names = data.keys(True, True, is_leaf=is_leaf_nontensor)
    return {(name,) if isinstance(name, str) else tuple(name): data.get(name) for name in names}
