"""Splitting batches into trajectories."""

from __future__ import annotations

from itertools import compress
from typing import Any, TypeAlias, cast

import torch
from tensordict import (
    LazyStackedTensorDict,
    NonTensorStack,
    TensorDict,
    TensorDictBase,
    is_tensor_collection,
)
from torch import Tensor

from replaybank.errors import MissingKeyError
from replaybank.storages._tensordict import stack_of

NestedKey: TypeAlias = "str | tuple[str, ...]"


def split_trajectories(
    td: TensorDictBase,
    *,
    prefix: NestedKey | None = None,
    trajectory_key: NestedKey | None = None,
    done_key: NestedKey | None = None,
    as_nested: bool = False,
) -> TensorDictBase:
    """Turn a batch of trajectories laid end to end into one row a trajectory.

    A trajectory ends where its identity changes, or else where it is done; always at the end of the last
    dimension. Memory: ``trajectories * T_max`` steps, with ``as_nested`` as many as there are.

    Steps that an entry ``mask`` says are filled in, as those of a stream with ``pad`` or of rows that were
    split before, are of no trajectory: they are left out, and the steps on either side are kept apart.

    Args:
        td: ``[*batch, T]``, for instance a sample of a ``SliceSampler``, ``[B]``. It is not changed.
        prefix: under which key ``traj_ids`` are looked for and ``mask`` and ``traj_ids`` are written:
            ``"collector"`` if that is there, else none.
        trajectory_key: key of the identity of each step's trajectory; by default ``traj_ids`` under the
            prefix, if it is there and no ``done_key`` is named. ``mask`` is written beside it, and looked for
            there and at the root: bool ``[*batch, T]`` or ``[*batch, T, 1]``, anything else is data.
        done_key: name of the bool that ends trajectories, looked up under ``"next"``, then at the root. By
            default the truncated or done ones.
        as_nested: give nested (jagged) tensors ``[trajectories, *]`` instead of padded ones, without a mask.

    Returns:
        A new TensorDict ``[trajectories, T_max]``, zero where ``mask`` (bool, same shape) is False; entries
        that are no tensors repeat their last value there. ``traj_ids`` (int64) count the rows, unless the
        steps had an identity.

    Raises:
        KeyError: no key says where trajectories end; the keys there are are named.
        ValueError: ``td`` has no batch dimension or no steps, or all are filled in.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> done = torch.tensor([False, True, False, False, True])
        >>> td = TensorDict({"x": torch.arange(1, 6), "next": {"done": done}}, batch_size=[5])
        >>> split_trajectories(td)["x"].tolist()
        [[1, 2, 0], [3, 4, 5]]
        >>> split_trajectories(td)["mask"].tolist()
        [[True, True, False], [True, True, True]]
    """
    if td.ndim == 0 or td.batch_size.numel() == 0:
        raise ValueError(f"There are no steps to split in a TensorDict of batch size {list(td.batch_size)}.")
    root = _root(td, prefix) if trajectory_key is None else _path(trajectory_key)[:-1]
    ids_key = (*root, "traj_ids") if trajectory_key is None else _path(trajectory_key)
    ends, identified = _ends(td, ids_key, trajectory_key is not None, done_key)
    ends[..., -1] = True  # a row of the batch ends what is open in it
    ends = ends.reshape(-1)
    kept = _not_filled(td, root)
    if kept is not None:
        ends[:-1] |= ~kept[1:]
        ends = ends[kept]
    flat = (td.contiguous() if isinstance(td, LazyStackedTensorDict) else td).reshape(-1)
    texts = {} if as_nested else _texts(flat)
    if texts:
        flat = flat.exclude(*texts)
    if kept is not None:
        flat = flat[kept]
    if not identified:
        flat = flat.copy()
        flat.set(ids_key, ends.cumsum(0) - ends.to(torch.int64))
    last = ends.nonzero().squeeze(-1)
    lengths = torch.diff(last, prepend=last.new_tensor([-1]))
    if as_nested:
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        nested = flat.apply(
            lambda leaf: torch.nested.nested_tensor_from_jagged(leaf, offsets), batch_size=[len(lengths)]
        )
        return cast(TensorDictBase, nested)
    step = torch.arange(int(lengths.max()), device=ends.device)
    mask = step < lengths.unsqueeze(-1)
    rows: TensorDictBase
    if lengths.numel() * step.numel() == flat.numel():  # equally long: they lie as they are to lie
        rows = flat.reshape(mask.shape).clone()
    else:
        first = last + 1 - lengths
        rows = flat[(first.unsqueeze(-1) + step).minimum(last.unsqueeze(-1))]
        _zero(rows, ~mask)
    for key, values in texts.items():
        steps = values if kept is None else list(compress(values, kept.tolist()))
        rows.set(key, _rows_of(steps, lengths.tolist(), step.numel()))
    rows.set((*root, "mask"), mask)
    return rows


def _path(key: NestedKey) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)


def _root(td: TensorDictBase, prefix: NestedKey | None) -> tuple[str, ...]:
    if prefix is not None:
        return _path(prefix)
    return ("collector",) if is_tensor_collection(td.get("collector", None)) else ()


def _ends(
    td: TensorDictBase, ids_key: tuple[str, ...], ids_named: bool, done_key: NestedKey | None
) -> tuple[Tensor, bool]:
    """Whether a trajectory ends with each step, ``[*batch, T]``, and if that is from an identity."""
    ids = td.get(ids_key, None) if ids_named or done_key is None else None
    if ids is not None:
        ids = ids.reshape(*td.batch_size, -1)
        ends = torch.zeros(td.batch_size, dtype=torch.bool, device=ids.device)
        ends[..., :-1] = (ids[..., 1:, :] != ids[..., :-1, :]).any(-1)
        return ends, True
    asked: list[tuple[str, ...]] = []
    found: list[Tensor] = []
    if not ids_named or done_key is not None:
        for name in [("truncated",), ("done",)] if done_key is None else [_path(done_key)]:
            places = [("next", *name), name]
            asked += places
            values = [value for value in (td.get(place, None) for place in places) if value is not None]
            found += values[:1]
    if not found:
        there = sorted(map(str, td.keys(True, True)))
        raise MissingKeyError(
            f"Nothing says where trajectories end: there is none of {[ids_key, *asked]}; the keys are "
            f"{there}. Name one with trajectory_key or done_key."
        )
    parts = [(value != 0).reshape(*td.batch_size, -1).any(-1) for value in found]
    return torch.stack(parts).any(0), False


def _not_filled(td: TensorDictBase, root: tuple[str, ...]) -> Tensor | None:
    """Which steps are no filling, bool ``[steps]``; None: nothing says that any is."""
    for key in dict.fromkeys([(*root, "mask"), ("mask",)]):
        mask = td.get(key, None)
        if isinstance(mask, Tensor) and mask.dtype is torch.bool and mask.numel() == td.batch_size.numel():
            kept = mask.reshape(-1)
            if not kept.any():
                raise ValueError(f"There are no steps to split: {key} says that all of them are filled in.")
            return None if kept.all() else kept
    return None


def _texts(flat: TensorDictBase, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], list[Any]]:
    """Plain values that differ from step to step, by key: tensordict would copy each of them, for 20 us."""
    found = {}
    for name, entry in flat.items():
        if isinstance(entry, NonTensorStack):
            if entry.ndim == 1:
                found[(*path, name)] = list(entry.tensordicts)
        elif isinstance(entry, TensorDict):
            found.update(_texts(entry, (*path, name)))
    return found


def _rows_of(values: list[Any], lengths: list[int], longest: int) -> NonTensorStack:
    """Rows of values that lie end to end, the last one of each repeated up to the longest row's length."""
    rows, start = [], 0
    for length in lengths:
        row = values[start : start + length]
        rows.append(stack_of(row + row[-1:] * (longest - length)))
        start += length
    return NonTensorStack(*rows)


def _zero(td: TensorDictBase, where: Tensor) -> None:
    """Zero the tensors of a TensorDict at some of its places, in their own memory."""
    entry: Any
    for entry in td.values(True, True):
        if isinstance(entry, Tensor):
            entry[where] = 0
