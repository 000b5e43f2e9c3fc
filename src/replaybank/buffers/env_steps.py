"""What an environment gives at a step, as leaves ``[n, ...]`` under TED's keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from replaybank.storages.layout import Key
from replaybank.storages.structure import as_tensor, show

_FINAL_NAMES = ("final_obs", "final_observation")


def leaves_of(value: Any, key: Key, count: int, *, single: bool) -> dict[Key, Tensor]:
    """The arrays in an observation or action, by path. O(leaves).

    Entries of dicts keep their names, those of tuples are named by their numbers.

    Args:
        value: an array, a number, or dicts and tuples of them; each ``[n, ...]``, or one environment's.
        key: under which it is put.
        count: number of environments, n.
        single: it is one environment's, without a dimension that counts them.

    Raises:
        TypeError: there is something that is no number or array of numbers.
        ValueError: an array does not have n entries; or there is none at all.

    Example:
        >>> leaves = leaves_of({"position": np.zeros((4, 2)), "goals": (np.ones(4),)}, ("observation",), 4,
        ...                    single=False)
        >>> {path: list(leaf.shape) for path, leaf in leaves.items()}
        {('observation', 'position'): [4, 2], ('observation', 'goals', '0'): [4]}
    """
    found: dict[Key, Tensor] = {}
    if type(value) is np.ndarray and value.dtype.kind in "biufc":  # as most are
        found[key] = as_tensor(value, key)
    else:
        _collect(value, key, found)
    if not found:
        raise ValueError(f"There is nothing in {show(key)}: {value!r:.80}.")
    for path, leaf in found.items():
        if single:
            found[path] = leaf.unsqueeze(0)
        elif leaf.ndim == 0 or leaf.shape[0] != count:
            raise ValueError(
                f"{show(path)} has shape {list(leaf.shape)}: of {count} environments it must be "
                f"[{count}, ...]."
            )
    return found


def _collect(value: Any, key: Key, found: dict[Key, Tensor]) -> None:
    if isinstance(value, Mapping):
        for name, entry in value.items():
            _collect(entry, (*key, str(name)), found)
    elif isinstance(value, tuple):
        for number, entry in enumerate(value):
            _collect(entry, (*key, str(number)), found)
    else:
        if isinstance(value, list):
            value = np.asarray(value)
        try:
            found[key] = as_tensor(value, key)
        except TypeError as error:
            raise TypeError(
                f"{error} (Observations and actions of Text, Graph or Sequence spaces are no arrays: wrap "
                "the environment so that it gives numbers.)"
            ) from None


def flags_of(value: Any, name: str, count: int, *, single: bool) -> npt.NDArray[np.bool_]:
    """``terminated`` or ``truncated`` as bool ``[n]``.

    Raises:
        ValueError: it is not one a environment.
    """
    flags = np.asarray(value.cpu() if isinstance(value, Tensor) else value)
    if single:
        flags = flags.reshape(1) if flags.size == 1 else flags
    if flags.shape != (count,) or flags.dtype.kind not in "biu":
        raise ValueError(
            f"{name} must be bool [{count}], one an environment, got {flags.dtype} {list(flags.shape)}."
        )
    return flags.astype(np.bool_)


def rewards_of(value: Any, count: int, *, single: bool) -> Tensor:
    """Rewards as float32 ``[n, 1]``, or ``[n, k]`` where there are several.

    Raises:
        TypeError: they are no numbers.
        ValueError: there are not n of them.
    """
    rewards = leaves_of(
        np.asarray(value) if isinstance(value, list) else value, ("reward",), count, single=single
    )
    if list(rewards) != [("reward",)]:
        raise TypeError(f"reward must be an array of {count} numbers, got {value!r:.80}.")
    leaf = rewards["reward",].to(torch.float32)
    return leaf.unsqueeze(-1) if leaf.ndim == 1 else leaf


def with_final(
    after: dict[Key, Tensor], info: Any, ended: npt.NDArray[np.bool_], key: Key, *, single: bool
) -> dict[Key, Tensor]:
    """Observations after a step, with the true last ones where an environment has reset itself at once.

    Args:
        after: what the environment gave, ``[n, ...]`` each.
        info: with ``"final_obs"`` (before Gymnasium 1.0 ``"final_observation"``): an object array of
            observations, or arrays ``[n, ...]``; and its mask, ``"_final_obs"``.
        ended: which environments ended, bool ``[n]``.
        key: of the observations.
        single: ``info`` is that of one environment.

    Raises:
        ValueError: the last observation of an environment is not there, or does not fit the others.
    """
    name = next((name for name in _FINAL_NAMES if isinstance(info, Mapping) and name in info), None)
    if name is None:
        there = sorted(map(str, info)) if isinstance(info, Mapping) else type(info).__name__
        raise ValueError(
            f"Environment {int(ended.argmax())} ended and was reset in the same step, but info has no "
            f"'final_obs', only {there}: the last observation is lost. Say what the environment's autoreset "
            "mode is with autoreset=..., and give record() the info of the step."
        )
    mask = info.get(f"_{name}")
    merged = {path: leaf.clone() for path, leaf in after.items()}
    for env in np.flatnonzero(ended).tolist():
        last = None if mask is not None and not mask[env] else _of_env(info[name], env, single=single)
        if last is None:
            raise ValueError(
                f"Environment {env} ended and was reset in the same step, but info[{name!r}] has no "
                "observation for it: the last one is lost."
            )
        leaves = leaves_of(last, key, 1, single=True)
        if leaves.keys() != after.keys():
            raise ValueError(
                f"info[{name!r}] of environment {env} has the entries {list(leaves)}, observations have "
                f"{list(after)}."
            )
        for path, leaf in leaves.items():
            like = merged[path]
            if leaf.shape[1:] != like.shape[1:]:
                raise ValueError(
                    f"info[{name!r}] of environment {env}: {show(path)} has shape {list(leaf.shape[1:])}, "
                    f"observations have {list(like.shape[1:])}."
                )
            like[env] = leaf[0].to(like)
    return merged


def _of_env(value: Any, env: int, *, single: bool) -> Any:
    """One environment's part of what holds all."""
    if single:
        return value
    if isinstance(value, Mapping):
        return {name: _of_env(entry, env, single=False) for name, entry in value.items()}
    if isinstance(value, tuple):
        return tuple(_of_env(entry, env, single=False) for entry in value)
    return value[env]


def differing(one: Mapping[Key, Tensor], other: Mapping[Key, Tensor]) -> npt.NDArray[np.bool_]:
    """Which environments' leaves are not the same, byte for byte, bool ``[n]``. O(bytes).

    Raises:
        ValueError: they do not have the same keys, shapes and dtypes.
    """
    found: npt.NDArray[np.bool_] | None = None
    for path, leaf in one.items():
        like = other.get(path)
        if like is None or like.shape != leaf.shape or like.dtype is not leaf.dtype:
            was = "missing" if like is None else f"{like.dtype} {list(like.shape)}"
            raise ValueError(
                f"{show(path)} is {leaf.dtype} {list(leaf.shape)} in obs, and was {was} in the next_obs of "
                "the step before. Give both as the environment gives them."
            )
        count = leaf.shape[0]
        if not leaf.numel() or (leaf.data_ptr() == like.data_ptr() and leaf.stride() == like.stride()):
            differs = np.zeros(count, dtype=np.bool_)
        else:
            ours, theirs = (
                part.cpu().contiguous().view(torch.uint8).view(count, -1) for part in (leaf, like)
            )
            differs = (ours != theirs).any(-1).numpy()
        found = differs if found is None else found | differs
    assert found is not None  # leaves_of gives at least one
    return found
