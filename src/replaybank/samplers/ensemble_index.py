"""What an ensemble makes of its parts' indices and extras, and how it tells them apart again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import is_tensor_collection
from torch import Tensor

from replaybank.samplers.base import InfoKey
from replaybank.storages.ensemble import stacked

_NEUTRAL = {"priority_weight": 1}
"""What an extra counts for items of a part that does not give it; others count zero."""


def rows_of(found: list[Any]) -> list[Tensor]:
    """The indices of parts with one row an item, all ``[B]``, or all ``[B, D]`` if one is a tuple."""
    for index in found:
        if not isinstance(index, (Tensor, tuple)):
            raise TypeError(
                f"An ensemble's parts give tensors or tuples of them, got {type(index).__name__}."
            )
    width = max(len(index) if isinstance(index, tuple) else 0 for index in found)
    if width == 0:
        return found
    rows = [torch.stack(index if isinstance(index, tuple) else (index,), -1) for index in found]
    return [torch.nn.functional.pad(row, (0, width - row.shape[-1])) for row in rows]


def joined(infos: list[dict[InfoKey, Any]], lengths: list[int]) -> dict[InfoKey, Any]:
    """The extras of parts under all of their keys."""
    example = {key: value for info in reversed(infos) for key, value in info.items()}
    found: dict[InfoKey, Any] = {}
    for key in dict.fromkeys(key for info in infos for key in info):
        like = example[key]
        filler = _NEUTRAL.get(key if isinstance(key, str) else key[-1], 0)
        values = [
            info[key] if key in info else like.new_full((length, *like.shape[1:]), filler)
            for info, length in zip(infos, lengths, strict=True)
        ]
        found[key] = stacked(values)
    return found


def flat_of(values: Any) -> Tensor:
    """Numbers in any form as one flat tensor."""
    if isinstance(values, Tensor):
        parts = values.unbind() if values.is_nested else [values]
    else:
        parts = values if isinstance(values, (list, tuple)) and len(values) else [values]
    return torch.cat([torch.as_tensor(part).reshape(-1) for part in parts])


def items_of(index: Any, count: int | None) -> tuple[Tensor, Tensor]:
    """Of each item its part, and its place there. O(B).

    Args:
        index: a TensorDict or mapping. ``"buffer_ids"`` ``[K]`` with ``"index"`` ``[K, B]`` or ``[K, B, D]``,
            nested or not, as they are sampled; or one id an item, ``[*lead]`` with ``[*lead]`` or
            ``[*lead, D]``.
        count: number of items, if it is known: it tells ``[K, B]`` from ``[*lead, D]``.

    Returns:
        int64 ``[N]``, and int64 ``[N]`` or ``[N, D]``.

    Raises:
        TypeError: another form of index.
    """
    if not (is_tensor_collection(index) or isinstance(index, Mapping)) or "buffer_ids" not in set(
        index.keys()
    ):
        raise TypeError(
            f"An index into an ensemble has 'buffer_ids' and 'index', got a {type(index).__name__}: give "
            "what the sampler gave, or sample['index'] of a batch."
        )
    ids, places = index["buffer_ids"], index["index"]
    if places.is_nested:
        parts = places.unbind()
        lengths = torch.tensor([len(part) for part in parts], device=ids.device)
        return ids.repeat_interleave(lengths), torch.cat(parts)
    more = places.dim() - ids.dim()
    # One more is [K, B] with one number an item, unless there is an id an item.
    has_width = more > 1 or (more == 1 and (ids.dim() > 1 or (count == ids.numel() != places.numel())))
    lead = places.shape[:-1] if has_width else places.shape
    ids = ids.reshape(*ids.shape, *[1] * (len(lead) - ids.dim())).expand(lead).reshape(-1)
    return ids, places.reshape(len(ids), -1) if has_width else places.reshape(-1)
