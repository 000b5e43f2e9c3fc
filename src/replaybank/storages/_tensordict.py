"""The one place that touches tensordict's privates, with the public way as the fallback.

The checked constructor of a nested TensorDict costs 6 microseconds, the unchecked one 1.5, setting the four
attributes that this one sets 0.5; a batch that was just gathered has nothing to check.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from tensordict import (
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictBase,
    is_tensor_collection,
    is_tensorclass,
)

__all__ = [
    "build",
    "build_class",
    "data_of",
    "entries",
    "entries_to_set",
    "is_plain",
    "is_tensor_collection",
    "is_tensorclass",
    "leaf_of",
    "set_leaves",
    "stack_of",
    "with_entry",
]


def _checked(
    source: dict[str, Any],
    batch_size: torch.Size,
    device: torch.device | None = None,
    names: list[str | None] | None = None,
    **_: Any,
) -> TensorDict:
    return TensorDict(source, batch_size=batch_size, device=device, names=cast(Any, names))


_make: Callable[..., TensorDict] = getattr(TensorDict, "_new_unsafe", _checked)
try:
    _make({}, batch_size=torch.Size([1]), device=None, names=["a"], nested=False)
except TypeError:  # another signature
    _make = _checked


def _entries_type() -> type[dict[str, Any]] | None:
    """The type of a TensorDict's entries, where it is made of the four attributes that ``build`` sets."""
    size, device = torch.Size([1]), torch.device("cpu")
    made = vars(_make({"x": torch.zeros(1)}, batch_size=size, device=device, nested=False))
    inner = made.get("_tensordict")
    known = {"_tensordict": inner, "_device": device, "_batch_size": size, "_td_dim_names": None}
    if _make is _checked or not isinstance(inner, dict) or list(inner) != ["x"] or made != known:
        return None
    return type(inner)


_new = TensorDict.__new__
_entries: Any = _entries_type()


def build(
    source: dict[str, Any],
    batch_size: torch.Size,
    device: torch.device | None,
    names: list[str | None] | None = None,
) -> TensorDict:
    """A TensorDict of values that are known to fit: tensors on ``device``, nested ones built already.

    It takes ``source`` over: the caller gives a dict of its own.
    """
    if names is not None:
        return _make(source, batch_size=batch_size, device=device, names=names, nested=False)
    if _entries is None or torch.compiler.is_compiling():
        return _make(source, batch_size=batch_size, device=device, nested=False)
    made: Any = _new(TensorDict)
    made._tensordict = source if _entries is dict else _entries(source)
    made._batch_size = batch_size
    made._device = device
    made._td_dim_names = None
    return cast(TensorDict, made)


def stack_of(values: list[NonTensorData]) -> NonTensorStack:
    """A stack of plain values of batch size ``[]``, which it takes over: a list of the caller's own.

    The checked constructor looks at each of them, though they may be one object many times.
    """
    if _flat is None or not values or torch.compiler.is_compiling():
        return NonTensorStack(*values)
    made: NonTensorStack = NonTensorStack.__new__(NonTensorStack)
    _flat(made, values)
    return made


def _flat_stack() -> Callable[[NonTensorStack, list[NonTensorData]], None] | None:
    """What makes such a stack without looking at its values, if it makes what the constructor does."""
    flat = getattr(sys.modules.get("tensordict.tensorclass"), "_init_flat", None)
    if flat is None:
        return None
    value = NonTensorData("x")
    try:
        made = NonTensorStack.__new__(NonTensorStack)
        flat(made, [value, value])
        wanted = NonTensorStack(value, value)
        same = vars(made).keys() == vars(wanted).keys() and made.batch_size == wanted.batch_size
        return flat if same and made.tolist() == wanted.tolist() else None
    except Exception:  # another release, whose insides are others
        return None


_flat = _flat_stack()


def data_of(text: str) -> NonTensorData:
    """A text as a value of batch size ``[]``, in a third of the constructor's time."""
    if _flat_data is None or torch.compiler.is_compiling():
        return NonTensorData(text)
    return _flat_data(text, None)


def _flat_value() -> Callable[[str, None], NonTensorData] | None:
    """What makes such a value without looking at its type, if it makes what the constructor does."""
    flat = getattr(sys.modules.get("tensordict.tensorclass"), "_flat_ntd", None)
    if flat is None:
        return None
    try:
        made, wanted = vars(flat("x", None)).copy(), vars(NonTensorData("x")).copy()
        inside = vars(made.pop("_tensordict")), vars(wanted.pop("_tensordict"))
        return flat if made == wanted and inside[0] == inside[1] else None
    except Exception:  # another release, whose insides are others
        return None


_flat_data = _flat_value()


def entries(data: TensorDictBase) -> Mapping[str, Any]:
    """The first-level entries of a TensorDict or tensorclass by name; not to be changed."""
    if type(data) is TensorDict:
        inner = getattr(data, "_tensordict", None)
        if isinstance(inner, dict):
            return inner
    return {str(key): value for key, value in data.items()}


def is_plain(data: Any) -> bool:
    """Whether it is made of tensors and nameless TensorDicts alone: :func:`entries` gives all it has."""
    if type(data) is not TensorDict or getattr(data, "_td_dim_names", None) is not None:
        return False
    return all(type(value) is torch.Tensor or is_plain(value) for value in entries(data).values())


def leaf_of(data: TensorDictBase, path: tuple[str, ...]) -> Any:
    """The entry at a path; ``data.get(path)`` without the checks of the path. O(parts)."""
    found: Any = data
    for part in path:
        inner = entries(found) if type(found) is TensorDict else None
        if inner is None or part not in inner:
            return data.get(path)
        found = inner[part]
    return found


def build_class(cls: type, source: TensorDict) -> Any:
    """The tensorclass ``cls`` over a TensorDict."""
    return cast(Any, cls).from_tensordict(source)


def with_entry(data: TensorDictBase, name: str, value: torch.Tensor) -> TensorDictBase:
    """``data`` with one more entry, the original untouched; the tensors are shared. O(entries)."""
    if type(data) is TensorDict:
        source = dict(entries(data))
        source[name] = value
        return build(source, data.batch_size, data.device, getattr(data, "_td_dim_names", None))
    return data.copy().set(name, value)


def entries_to_set(data: TensorDictBase) -> dict[str, Any] | None:
    """The first-level entries of an unlocked TensorDict, in which tensors that are seen to fit may be set."""
    if type(data) is TensorDict and not data.is_locked:
        inner = getattr(data, "_tensordict", None)
        if type(inner) is dict:
            return inner
    return None


def set_leaves(data: Any, values: Iterable[tuple[tuple[str, ...], Any]]) -> list[tuple[tuple[str, ...], Any]]:
    """Set entries of a batch where they are seen to fit. O(entries).

    Args:
        data: where; of use is an unlocked TensorDict ``[B]`` on the CPU.
        values: what, by path; of use are tensors ``[B, ...]`` there.

    Returns:
        What has not been set.
    """
    if type(data) is not TensorDict:
        return list(values)
    batch, device = data.batch_size, data.device
    if len(batch) != 1 or (device is not None and device.type != "cpu"):
        return list(values)
    left: list[tuple[tuple[str, ...], Any]] = []
    count, tensor = batch[0], torch.Tensor
    above: dict[tuple[str, ...], dict[str, Any] | None] = {(): entries_to_set(data)}
    for path, value in values:
        parent = path[:-1]
        found = above[parent] if parent in above else above.setdefault(parent, _entries_at(data, parent))
        shape = value.shape if found is not None and type(value) is tensor and value.is_cpu else ()
        if shape and shape[0] == count:  # a TensorDict's own checks take ten times as long
            found[path[-1]] = value  # type: ignore[index]
        else:
            left.append((path, value))
    return left


def _entries_at(data: TensorDict, path: tuple[str, ...]) -> dict[str, Any] | None:
    """The entries of a nested TensorDict of the same batch size and device, if they may be set."""
    inner: Any = data
    for part in path:
        inner = entries(inner).get(part)
        if type(inner) is not TensorDict or inner.batch_size != data.batch_size:
            return None
    return entries_to_set(inner) if inner.device == data.device else None
