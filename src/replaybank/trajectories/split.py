"""Splitting batches into trajectories."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, reduce
from itertools import compress
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
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
from replaybank.storages._tensordict import build, entries, entries_to_set, is_plain, stack_of
from replaybank.storages.torch_indexing import movable

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
    kept = _not_filled(td, root)
    texts: dict[tuple[str, ...], list[Any]] = {}
    plain = is_plain(td)
    if not plain:
        td = (td.contiguous() if isinstance(td, LazyStackedTensorDict) else td).reshape(-1)
        texts = {} if as_nested else _texts(td)
        if texts:
            td = td.exclude(*texts)
            plain = is_plain(td)
    if kept is not None:
        td = td.reshape(-1)[kept]
        ends = _ends_of_kept(ends, kept)
    lie = _Rows(ends)
    new = {} if identified else {ids_key: lie.numbers}
    if not plain:
        td = td.copy()
        for key, value in new.items():
            td.set(key, value)
    if as_nested:
        made, batch = lie.nested, torch.Size([lie.count])
    else:
        made, batch = lie.padded, lie.mask.shape
    if plain:
        rows = _each(td, made, batch, td.batch_dims)
        _set(rows, {key: made(value) for key, value in new.items()})
    elif as_nested:
        rows = cast(TensorDictBase, td.apply(made, batch_size=batch))
    else:
        rows = lie.indexed(td)
    for key, values in texts.items():
        steps = values if kept is None else list(compress(values, kept.tolist()))
        rows.set(key, _rows_of(steps, lie.lengths.tolist(), lie.mask.shape[1]))
    if not as_nested:
        _set(rows, {(*root, "mask"): lie.mask})
    return rows


class _Rows:
    """How the steps of a batch lie in rows, one a trajectory.

    The few numbers that say so are worked out in NumPy: torch would take longer for them than for the rows.

    Args:
        ends: bool ``[*batch, T]``, on any device: whether a trajectory ends with each step.
    """

    def __init__(self, ends: Tensor) -> None:
        flags = ends.cpu().numpy().copy()
        flags[..., -1] = True  # a row of the batch ends what is open in it
        last = np.flatnonzero(flags)
        self._first = np.concatenate([[0], last[:-1] + 1])
        self._last, self.lengths = last, last + 1 - self._first
        self.count = len(last)
        self.device = ends.device
        self._there = np.arange(int(self.lengths.max())) < self.lengths[:, None]
        self._even = self._there.size == flags.size  # equally long: steps lie as they are to lie
        self.mask = self._here(self._there)

    def _here(self, numbers: npt.NDArray[Any]) -> Tensor:
        found = torch.from_numpy(numbers)
        return found if self.device.type == "cpu" else found.to(self.device)

    @property
    def numbers(self) -> Tensor:
        """Of which trajectory each step is, int64 ``[steps]``."""
        return self._here(np.repeat(np.arange(self.count), self.lengths))

    @cached_property
    def _places(self) -> Tensor:
        return self._here(np.flatnonzero(self._there))

    @cached_property
    def _offsets(self) -> Tensor:
        return self._here(np.append(self._first, self._last[-1] + 1))

    def padded(self, leaf: Tensor) -> Tensor:
        """A leaf ``[steps, ...]`` in rows ``[S, T_max, ...]``, zero where there is no step. A copy."""
        shape = (*self._there.shape, *leaf.shape[1:])
        if self._even:
            return leaf.clone(memory_format=torch.contiguous_format).view(shape)
        steps = movable(leaf)
        places = self._places if leaf.device == self.device else self._places.to(leaf.device)
        rows = steps.new_zeros((self._there.size, *leaf.shape[1:])).index_copy_(0, places, steps)
        return (rows if steps is leaf else rows.view(leaf.dtype)).view(shape)

    def nested(self, leaf: Tensor) -> Tensor:
        """A leaf ``[steps, ...]`` as a jagged tensor ``[S, *, ...]``."""
        return torch.nested.nested_tensor_from_jagged(leaf, self._offsets)

    def indexed(self, flat: TensorDictBase) -> TensorDictBase:
        """The rows of any ``[steps]`` that can be indexed; what is no tensor repeats its last value."""
        if self._even:
            return flat.reshape(self.mask.shape).clone()
        step = np.arange(self._there.shape[1])
        rows = flat[self._here(np.minimum(self._first[:, None] + step, self._last[:, None]))]
        entry: Any
        for entry in rows.values(True, True):
            if isinstance(entry, Tensor):
                entry[~self.mask] = 0
        return rows


def _each(td: TensorDict, made: Callable[[Tensor], Tensor], batch: torch.Size, dims: int) -> TensorDict:
    """A plain TensorDict with something made of each of its leaves, whose first dimensions are made one."""
    source: dict[str, Any] = {}
    for name, value in entries(td).items():
        if type(value) is Tensor:
            source[name] = made(value if dims == 1 else value.flatten(0, dims - 1))
        else:
            source[name] = _each(value, made, batch, dims)
    return build(source, batch + td.batch_size[dims:], td.device)


def _set(td: TensorDictBase, values: Mapping[tuple[str, ...], Tensor]) -> None:
    among = entries_to_set(td)
    for key, value in values.items():
        name, *below = key
        if among is None or below or td.device not in (None, value.device):
            td.set(key, value)
        else:
            among[name] = value  # it fits; looking whether it does would take longer


def _path(key: NestedKey) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)


def _root(td: TensorDictBase, prefix: NestedKey | None) -> tuple[str, ...]:
    if prefix is not None:
        return _path(prefix)
    return ("collector",) if is_tensor_collection(_at(td, ("collector",))) else ()


def _at(td: TensorDictBase, path: tuple[str, ...]) -> Any:
    """The entry at a path, None if there is none; without the checks of ``td.get(path, None)``."""
    found: Any = td
    for part in path:
        if type(found) is not TensorDict:
            return td.get(path, None)
        found = entries(found).get(part)
    return found


def _ends(
    td: TensorDictBase, ids_key: tuple[str, ...], ids_named: bool, done_key: NestedKey | None
) -> tuple[Tensor, bool]:
    """Whether a trajectory ends with each step, ``[*batch, T]``, and if that is from an identity."""
    ids = _at(td, ids_key) if ids_named or done_key is None else None
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
            values = [value for value in (_at(td, place) for place in places) if value is not None]
            found += values[:1]
    if not found:
        there = sorted(map(str, td.keys(True, True)))
        raise MissingKeyError(
            f"Nothing says where trajectories end: there is none of {[ids_key, *asked]}; the keys are "
            f"{there}. Name one with trajectory_key or done_key."
        )
    flags = [_flags(value, td.batch_size) for value in found]
    return reduce(torch.logical_or, flags), False


def _flags(value: Tensor, batch: torch.Size) -> Tensor:
    flags = value if value.dtype is torch.bool else value != 0
    if flags.numel() == batch.numel():
        return flags.reshape(batch)
    return flags.reshape(*batch, -1).any(-1)


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


def _ends_of_kept(ends: Tensor, kept: Tensor) -> Tensor:
    """Whether a trajectory ends with each step that is no filling, ``[kept]``: before filling it does."""
    ends = ends.clone()
    ends[..., -1] = True  # a row of the batch ends what is open in it
    ends = ends.reshape(-1)
    ends[:-1] |= ~kept[1:]
    return ends[kept]
