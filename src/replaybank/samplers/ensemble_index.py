"""What an ensemble makes of its parts' indices and extras, and how it tells them apart again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import is_tensor_collection
from torch import Tensor

from replaybank.errors import add_note
from replaybank.samplers.base import InfoKey
from replaybank.storages.ensemble import item_index, stacked

_NEUTRAL = {"priority_weight": 1}
"""What an extra counts for items of a part that does not give it; others count zero."""


def refuse_empty_parts(ids: Sequence[int], lengths: Sequence[int]) -> None:
    """See to it that all parts that a batch comes from hold something, before any is drawn from.

    Raises:
        RuntimeError: one does not.
    """
    for number in ids:
        if not lengths[number]:
            error = RuntimeError("Cannot sample from an empty storage.")
            add_note(
                error,
                f"It is that of part {number} of {len(lengths)}: write to it first, or give it a p of 0.",
            )
            raise error


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


def places_of(index: Any, dims: Sequence[int]) -> list[tuple[int, Any]]:
    """An index into an ensemble as numbers of parts, and an index into each. O(B).

    Args:
        index: as for :func:`items_of`; the items of a row are of one part, or the rows are single items.
        dims: number of dimensions of each part.

    Raises:
        TypeError: another form of index, or a row of several parts.
        IndexError: there is no such part.
    """
    ids, places = items_of(index, None)
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < len(dims):
        raise IndexError(f"There are parts 0 to {len(dims) - 1}, not {int(ids.min())} to {int(ids.max())}.")
    found = index["index"]
    if found.dim() == 1:
        return [(number, int(place)) for number, place in zip(ids.tolist(), places, strict=True)]
    rows = found.unbind()
    lengths = [len(row) for row in rows] if found.is_nested else [len(ids) // max(len(rows), 1)] * len(rows)
    pairs = []
    for of_row, row in zip(ids.split(lengths), places.split(lengths), strict=True):
        numbers = of_row.unique().tolist()
        if len(numbers) > 1:
            raise TypeError(f"A row of items of the parts {numbers}: give one of each part, or flat ids.")
        pairs += [(number, item_index(row, dims[number])) for number in numbers]
    return pairs
