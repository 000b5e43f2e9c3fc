"""What slice samplers share: where trajectories end, and what becomes of slices in a sample."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from replaybank.errors import MissingKeyError
from replaybank.samplers.arguments import batch_of, key_of, whole
from replaybank.samplers.base import FromItems, InfoKey, SampledStorage, unravel_columns
from replaybank.showing import Words
from replaybank.storages.write_log import LogMark, WriteLog
from replaybank.trajectories.index import Slices, TrajectoryIndex
from replaybank.trajectories.signals import ChangeSignal, DoneSignal, EndSignal, Key, comparable

_END_KEY = ("next", "done")
_TRAJ_KEY = "episode"


class Slicing:
    """Finds the trajectories of a storage, and turns slices of them into an index and its info.

    Not thread-safe: the buffer's lock guards it. Pickles without its trajectory index, which belongs to a
    storage of this process and is made anew where it is needed.

    Args:
        end_key: key of the bool that ends a trajectory, ``("next", "done")`` by default.
        traj_key: key of the trajectory's identity, ``"episode"`` by default.
        ends: bool ``[T, *columns]``, the ends of a full storage that does not change; instead of keys.
        trajectories: the same as identities.

    Raises:
        RuntimeError: ``ends`` or ``trajectories`` together, or with keys.
        TypeError: a key is no string or path of strings, ``ends`` or ``trajectories`` no tensor.
    """

    def __init__(
        self,
        end_key: InfoKey | None,
        traj_key: InfoKey | None,
        ends: Tensor | None,
        trajectories: Tensor | None,
    ) -> None:
        if ends is not None and trajectories is not None:
            raise RuntimeError("Give ends or trajectories, not both: either says where trajectories end.")
        if (ends is not None or trajectories is not None) and not (end_key is traj_key is None):
            raise RuntimeError(
                f"ends and trajectories take the place of keys, got end_key={end_key!r} and "
                f"traj_key={traj_key!r}: give the one or the other."
            )
        end_key = None if end_key is None else key_of("end_key", end_key)
        traj_key = None if traj_key is None else key_of("traj_key", traj_key)
        self.end_key: InfoKey = _END_KEY if end_key is None else end_key
        self.traj_key: InfoKey = _TRAJ_KEY if traj_key is None else traj_key
        self.ends = _given("ends", ends)
        self.trajectories = _given("trajectories", trajectories)
        self._signals = _candidates(end_key, traj_key)
        self.forget()

    def forget(self) -> None:
        """Forget the index: the storage was emptied or is another one. O(1)."""
        self._index: TrajectoryIndex | None = None
        # The storage's keys, and the log and its state for which they and the index's signal were looked up.
        self._keys: list[Key] = []
        self._log: WriteLog | None = None
        self._mark: LogMark | None = None

    def index_of(self, storage: SampledStorage) -> TrajectoryIndex:
        """The index for this storage, made anew if its keys call for another signal; not yet synced.

        Raises:
            KeyError: the storage has none of the keys asked for.
            RuntimeError: the storage gives no TensorDict; given ends do not describe it.
        """
        log = storage.log
        mark = log.mark()
        if self._index is not None and mark == self._mark and log is self._log:
            return self._index
        static = self.ends is not None or self.trajectories is not None
        try:
            # A write may bring a new key, which may be the one that counts.
            keys = storage.leaf_keys()
        except (AttributeError, NotImplementedError, TypeError) as error:
            if not static:
                raise _no_tensordict(storage) from error
            keys = []
        if static:
            self._index = self._static_index(storage)
        else:
            signal = self._signal_for(storage, keys)
            if self._index is None or self._index.signal != signal:
                self._index = TrajectoryIndex(signal)
        self._keys, self._log, self._mark = keys, log, mark
        return self._index

    def _signal_for(self, storage: SampledStorage, keys: list[Key]) -> EndSignal:
        for signal in self._signals:
            if signal.key in keys:
                return signal
        if not any(keys):
            raise _no_tensordict(storage)
        asked = " or ".join(str(_name(signal.key)) for signal in self._signals)
        raise MissingKeyError(
            f"The storage does not say where trajectories end: there is no {asked}; its keys are "
            f"{', '.join(str(_name(key)) for key in sorted(keys))}. Name one of them with end_key (a bool) "
            "or traj_key (an identity), or give ends or trajectories."
        )

    def _static_index(self, storage: SampledStorage) -> TrajectoryIndex:
        given = self.ends if self.ends is not None else self.trajectories
        assert given is not None
        name = "ends" if self.ends is not None else "trajectories"
        shape = storage.shape
        if given.dim() > len(shape) + (given.shape[-1] == 1):
            raise RuntimeError(
                f"Expected the end-of-trajectory signal to be {len(shape)}-dimensional as the storage is, "
                f"got {name} with {given.dim()} dimensions."
            )
        if given.shape != shape and given.shape != (*shape, 1):
            raise RuntimeError(
                f"{name} of shape {tuple(given.shape)} were given for a storage that holds {tuple(shape)} "
                "steps: they must describe every stored step."
            )
        log = storage.log
        if self._index is not None and log is self._log and self._index.length == shape[0]:
            return self._index
        values = comparable(given.detach().cpu()).reshape(shape[0], -1)
        if self.ends is not None:
            ends = values != 0
        else:
            kind = {1: torch.int8, 2: torch.int16, 4: torch.int32}.get(values.element_size(), torch.int64)
            parts = values.contiguous().view(kind).reshape(*values.shape, -1)
            ends = (parts != parts.roll(-1, 0)).any(-1)
        if shape[0] < log.rows:
            # The first row continues the last one in a full storage only.
            ends = ends.clone()
            ends[-1] = True
        return TrajectoryIndex.of_flags(ends)

    # ---- what goes into the sample

    def draw_of(
        self,
        storage: SampledStorage,
        index: TrajectoryIndex,
        slices: Slices,
        truncated_key: InfoKey | None,
    ) -> tuple[tuple[Tensor, ...], dict[InfoKey, Any]]:
        """Slices as what a sampler's ``draw`` gives. O(steps).

        Args:
            storage: where they lie.
            index: its index, current.
            slices: any of its trajectories' slices.
            truncated_key: key of the last steps in the info; ``None`` for no info.

        Returns:
            A tuple of int64 ``[B]``, one a dimension of the storage, and bools ``[B, 1]``, or what says how
            to take them from the items: under ``truncated_key`` the last step of each slice; under its
            sibling ``done`` that or the stored one; under its sibling ``terminated`` the stored one, False if
            there is none.
        """
        time, column, ends = index.expand(slices)
        where: tuple[Tensor, ...] = (time,)
        if storage.ndim > 1:
            if column is None:
                column = torch.zeros_like(time)
            where = (time, *unravel_columns(column, storage.columns))
        if truncated_key is None:
            return where, {}
        device = storage.device
        truncated = ends if device is None or device.type == "cpu" else ends.to(device)
        parent = () if isinstance(truncated_key, str) else truncated_key[:-1]
        done, terminated = (*parent, "done"), (*parent, "terminated")
        return where, {
            truncated_key: truncated,
            _like(truncated_key, "done"): FromItems(done, truncated)
            if done in self._keys
            else truncated.clone(),
            _like(truncated_key, "terminated"): FromItems(terminated, None)
            if terminated in self._keys
            else torch.zeros_like(truncated),
        }

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("_index", "_keys", "_log", "_mark"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.forget()


def slicing_of(sampler: Any) -> Slicing | None:
    """How a sampler finds trajectories, if it draws slices of them."""
    found = getattr(sampler, "_slicing", None)
    return found if isinstance(found, Slicing) else None


def slice_ends(sampler: Any, info: Mapping[InfoKey, Any]) -> Tensor | None:
    """Where the slices of a batch end, bool ``[B, 1]``; None if its steps were drawn one by one."""
    key = getattr(sampler, "truncated_key", None)
    found = None if key is None else info.get(key)
    return found if isinstance(found, Tensor) else None


def lengthened_info(
    sampler: Any, info: Mapping[InfoKey, Any], source: Tensor, count: int
) -> dict[InfoKey, Any]:
    """The info of slices with steps put before each. O(steps).

    Args:
        sampler: who drew the slices, with a ``truncated_key``.
        info: its info of them.
        source: int64 ``[K]``: for each step which of the slices' it is, or before which it was put.
        count: number of steps in the slices.

    Returns:
        Of a step that was put before a slice what the info says of its first step, and that it ends nothing.
    """
    truncated = sampler.truncated_key
    ends = {truncated, _like(truncated, "done"), _like(truncated, "terminated")}
    added = torch.zeros_like(source, dtype=torch.bool)
    added[:-1] = source[1:] == source[:-1]  # all but the last of those that go with one step

    def taken(value: Tensor, flags: bool) -> Tensor:
        values = value[source.to(value.device)]
        if flags:
            values[added.to(value.device)] = False
        return values

    made: dict[InfoKey, Any] = {}
    for key, value in info.items():
        if isinstance(value, FromItems):
            made[key] = FromItems(value.key, None if value.also is None else taken(value.also, True))
        elif isinstance(value, Tensor) and value.ndim and value.shape[0] == count:
            made[key] = taken(value, key in ends)
        else:
            made[key] = value
    return made


def sizes_of(num_slices: int | None, slice_len: int | None) -> tuple[int | None, int | None]:
    """Both as ints, of which a sampler is told exactly one.

    Raises:
        TypeError: not exactly one of them is given, or it is no int.
        ValueError: it is not positive.
    """
    if (num_slices is None) == (slice_len is None):
        raise TypeError(
            f"Give exactly one of num_slices and slice_len, got num_slices={num_slices}, "
            f"slice_len={slice_len}."
        )
    return (
        None if num_slices is None else whole("num_slices", num_slices),
        None if slice_len is None else whole("slice_len", slice_len),
    )


def shape_of(batch_size: int, num_slices: int | None, slice_len: int | None) -> tuple[int, int]:
    """Number of slices in a batch, and of steps in each.

    Raises:
        RuntimeError: the batch cannot be made of whole slices.
    """
    batch_size = batch_of(batch_size)
    name, divisor = ("num_slices", num_slices) if num_slices else ("slice_len", slice_len)
    assert divisor is not None  # sizes_of saw to it
    if batch_size % divisor or batch_size < divisor:
        raise RuntimeError(
            f"A batch of {batch_size} steps cannot be made of whole slices with {name}={divisor}: "
            f"give a multiple of {divisor}."
        )
    other = batch_size // divisor
    return (divisor, other) if num_slices else (other, divisor)


def none_long_enough(index: TrajectoryIndex, slice_len: int) -> RuntimeError:
    """What is wrong where no trajectory is eligible."""
    shortest, longest = index.length_range()
    return RuntimeError(
        f"No trajectory is long enough: slices of {slice_len} steps were asked for, and the "
        f"{index.n_trajectories} stored trajectories have {shortest} to {longest} steps. Ask for "
        "shorter slices, or pass strict_length=False."
    )


def pair_of(span: Any) -> tuple[bool | int, bool | int]:
    """A span as ``(left, right)``.

    Raises:
        TypeError: it is no bool or int, nor a pair of them.
        ValueError: it is negative.
    """
    sides = tuple(span) if isinstance(span, (tuple, list)) else (span, span)
    try:
        left, right = (
            bool(side) if isinstance(side, (bool, np.bool_)) else operator.index(side) for side in sides
        )
    except (TypeError, ValueError):
        raise TypeError(f"span={span!r}: give a bool or an int, or a (left, right) pair of them.") from None
    pair = (left, right)
    if any(side < 0 for side in pair):
        raise ValueError(f"span={span!r}: a window cannot stick out by a negative number of steps.")
    return pair


def reach_of(span: tuple[bool | int, bool | int], slice_len: int) -> tuple[int, int]:
    """How many steps a window may stick out by on each side.

    Raises:
        ValueError: no step might stay.
    """
    left, right = (slice_len - 1 if side is True else int(side) for side in span)
    if left >= slice_len or right >= slice_len:
        raise ValueError(
            f"span={span} with slices of {slice_len} steps: at least one step must stay, so give less than "
            f"{slice_len}, or True."
        )
    return left, right


def truncated_of(key: InfoKey | None) -> InfoKey | None:
    """A ``truncated_key``, checked."""
    return None if key is None else key_of("truncated_key", key)


def _given(name: str, value: Tensor | None) -> Tensor | None:
    if value is not None and not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}: give a tensor, one entry a stored step.")
    return value


def _path(key: InfoKey) -> Key:
    return (key,) if isinstance(key, str) else tuple(key)


def _name(key: Key) -> InfoKey:
    return key[0] if len(key) == 1 else key


def _like(key: InfoKey, name: str) -> InfoKey:
    """The sibling of a key."""
    return name if isinstance(key, str) else (*key[:-1], name)


def _no_tensordict(storage: SampledStorage) -> RuntimeError:
    return RuntimeError(
        f"Could not get a tensordict out of the storage: a {type(storage).__name__} with these items gives "
        "no tensors by key, and the sampler needs them to read where trajectories end. Keep TensorDicts (or "
        "dicts of tensors) in a LazyTensorStorage, or give ends or trajectories."
    )


def slices_told(
    num_slices: int | None, slice_len: int | None, slicing: Slicing, strict_length: bool
) -> dict[str, Any]:
    """What the repr of a sampler of slices tells."""
    told: dict[str, Any] = {"slice_len": slice_len} if slice_len else {"num_slices": num_slices}
    for name in ("ends", "trajectories"):
        given = getattr(slicing, name)
        if given is not None:
            told[name] = Words(f"{list(given.shape)} given")
    if slicing.ends is None and slicing.trajectories is None:
        named = {"end_key": (slicing.end_key, _END_KEY), "traj_key": (slicing.traj_key, _TRAJ_KEY)}
        told.update({name: key for name, (key, default) in named.items() if key != default})
    return told if strict_length else {**told, "strict_length": False}


def _candidates(end_key: InfoKey | None, traj_key: InfoKey | None) -> tuple[EndSignal, ...]:
    """The signals to look for, the one that counts first."""
    if end_key is None and traj_key is None:
        end_key, traj_key = _END_KEY, _TRAJ_KEY
    change = () if traj_key is None else (ChangeSignal(_path(traj_key)),)
    done = () if end_key is None else (DoneSignal(_path(end_key)),)
    return (*change, *done)
