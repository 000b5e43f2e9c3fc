"""What users hand in, taken apart into leaves and put together again.

Four kinds of data: a tensor, a TensorDict, a tensorclass, and trees of dicts, tuples, lists and named tuples,
nested in each other in any way. NumPy arrays and numbers count as tensors.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, is_non_tensor
from torch import Tensor

from replaybank.errors import DataFormatError
from replaybank.storages import _tensordict
from replaybank.storages.layout import Key

Names = list[str | None]
"""Names of dimensions, as a TensorDict's ``names``."""


class Differs(Exception):
    """The data does not have the structure; :meth:`Structure.compare` says where."""


def is_leaf(value: object) -> bool:
    """Whether ``value`` becomes a tensor."""
    return isinstance(value, Tensor | np.ndarray | np.generic | bool | int | float | complex)


def as_tensor(value: Any, key: Key) -> Tensor:
    """A leaf as a tensor, sharing memory where it can.

    Raises:
        TypeError: it is no number or array of numbers; the key is named.
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc":
            raise TypeError(
                f"The array at {show(key)} has dtype {value.dtype}: only numbers and bools can be stored."
            )
        if not value.dtype.isnative:
            value = value.astype(value.dtype.newbyteorder("="))
        # from_numpy refuses negative strides and warns of read-only memory, which is only read from here.
        if not value.flags.writeable or any(stride < 0 for stride in value.strides):
            value = value.copy()
        return torch.from_numpy(value)
    if isinstance(value, bool | int | float | complex | np.generic):
        return torch.as_tensor(value)
    what = "a string" if isinstance(value, str) else f"of type {type(value).__name__}"
    raise TypeError(
        f"The value at {show(key)} is {what}: tensor storages hold numbers only. Drop or encode it, or use a "
        "ListStorage."
    )


def show(key: Key) -> str:
    """A key for an error message."""
    if not key:
        return "the root"
    return repr(key[0]) if len(key) == 1 else repr(key)


class _Node(ABC):
    """A part of the structure that holds others, or a leaf."""

    @abstractmethod
    def collect(self, data: Any, out: list[Any]) -> None:
        """Put the leaves of ``data`` at their numbers in ``out``; raise Differs if they are not these."""

    @abstractmethod
    def build(self, leaves: Sequence[Tensor], batch: torch.Size, device: torch.device | None) -> Any:
        """Put the leaves together."""

    @abstractmethod
    def to_json(self) -> Any:
        """The part as plain values."""


class _Leaf(_Node):
    def __init__(self, number: int) -> None:
        self.number = number

    def collect(self, data: Any, out: list[Any]) -> None:
        if not is_leaf(data):
            raise Differs
        out[self.number] = data

    def build(self, leaves: Sequence[Tensor], batch: torch.Size, device: torch.device | None) -> Any:
        return leaves[self.number]

    def to_json(self) -> Any:
        return self.number


class _Named(_Node):
    """Entries by name: dicts, TensorDicts and tensorclasses take each other's data."""

    def __init__(self, children: dict[Any, _Node]) -> None:
        self.children = children
        # Leaves are most of the entries: they are handled without a call each.
        self.leaves = [(name, node.number) for name, node in children.items() if isinstance(node, _Leaf)]
        self.inner = [(name, node) for name, node in children.items() if not isinstance(node, _Leaf)]

    def collect(self, data: Any, out: list[Any]) -> None:
        entries = entries_of(data)
        if entries is None or len(entries) != len(self.children):
            raise Differs
        try:
            for name, number in self.leaves:
                out[number] = entries[name]
            for name, node in self.inner:
                node.collect(entries[name], out)
        except KeyError:
            raise Differs from None


class _Dict(_Named):
    def build(self, leaves: Sequence[Tensor], batch: torch.Size, device: torch.device | None) -> Any:
        return {name: node.build(leaves, batch, device) for name, node in self.children.items()}

    def to_json(self) -> Any:
        if not all(isinstance(name, str | int) for name in self.children):
            raise TypeError(
                f"Only dicts whose keys are strings or ints can be saved, got {list(self.children)}."
            )
        return {"kind": "dict", "parts": [[name, node.to_json()] for name, node in self.children.items()]}


class _TensorDict(_Named):
    def __init__(
        self, children: dict[Any, _Node], extra: torch.Size, names: Names | None, cls: type | None
    ) -> None:
        super().__init__(children)
        self.extra = extra
        self.names = names  # of the dimensions ``extra``; None: they have none
        self.cls = cls

    def build(self, leaves: Sequence[Tensor], batch: torch.Size, device: torch.device | None) -> Any:
        source: dict[str, Any] = {name: leaves[number] for name, number in self.leaves}
        for name, node in self.inner:
            source[name] = node.build(leaves, batch, device)
        if self.names is None:
            data = _tensordict.build(source, batch + self.extra if self.extra else batch, device)
        else:
            names = [None] * len(batch) + self.names
            data = _tensordict.build(source, batch + self.extra, device, names)
        return data if self.cls is None else _tensordict.build_class(self.cls, data)

    def to_json(self) -> Any:
        return {
            "kind": "tensordict",
            "extra": list(self.extra),
            "names": self.names,
            "class": None if self.cls is None else _class_name(self.cls),
            "parts": [[name, node.to_json()] for name, node in self.children.items()],
        }


class _Sequence(_Node):
    def __init__(self, children: list[_Node], cls: type) -> None:
        self.children = children
        self.cls = cls

    def collect(self, data: Any, out: list[Any]) -> None:
        if not isinstance(data, tuple | list) or len(data) != len(self.children):
            raise Differs
        for value, node in zip(data, self.children, strict=True):
            node.collect(value, out)

    def build(self, leaves: Sequence[Tensor], batch: torch.Size, device: torch.device | None) -> Any:
        parts = [node.build(leaves, batch, device) for node in self.children]
        return self.cls(*parts) if hasattr(self.cls, "_fields") else self.cls(parts)

    def to_json(self) -> Any:
        named = hasattr(self.cls, "_fields")
        return {
            "kind": "named" if named else "list" if issubclass(self.cls, list) else "tuple",
            "class": _class_name(self.cls) if named else None,
            "parts": [[None, node.to_json()] for node in self.children],
        }


def _class_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _find_class(name: object) -> type:
    """A class of a module that has been imported already: reading a state imports nothing."""
    module, _, path = name.partition(":") if isinstance(name, str) else ("", "", "")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = vars(found).get(part) if found is not None else None
    if not isinstance(found, type) or not (
        _tensordict.is_tensorclass(found) or (issubclass(found, tuple) and hasattr(found, "_fields"))
    ):
        raise ValueError(
            f"The state holds items of the class {name!r:.200}, which is no tensorclass or named tuple of an "
            "imported module. Import it before loading, or load into a storage that holds such items already."
        )
    return found


def _node_from_json(value: Any) -> _Node:
    if isinstance(value, int) and not isinstance(value, bool):
        return _Leaf(value)
    if not isinstance(value, dict) or not isinstance(value.get("parts"), list):
        raise ValueError("The state's description of an item is damaged.")  # noqa: TRY004
    if not all(isinstance(part, list) and len(part) == 2 for part in value["parts"]):
        raise ValueError("The state's description of an item is damaged: a part is a name and what it holds.")
    parts = [(name, _node_from_json(part)) for name, part in value["parts"]]
    kind, cls = value.get("kind"), value.get("class")
    if kind == "dict":
        return _Dict(dict(parts))
    if kind == "tensordict":
        extra, names = torch.Size(value["extra"]), value.get("names")
        if names is not None and (
            len(names) != len(extra) or not all(name is None or isinstance(name, str) for name in names)
        ):
            raise ValueError(
                f"The state's items have the dimensions {list(extra)} with the names {names!r:.80}."
            )
        return _TensorDict(dict(parts), extra, names, None if cls is None else _find_class(cls))
    if kind in ("list", "tuple", "named"):
        sequence = list if kind == "list" else tuple if kind == "tuple" else _find_class(cls)
        names = getattr(sequence, "_fields", None)
        if kind == "named" and (names is None or len(names) != len(parts)):
            raise ValueError(f"The state's items have {len(parts)} parts, the class {cls!r:.200} others.")
        return _Sequence([part for _, part in parts], sequence)
    raise ValueError(f"The state's description of an item has the unknown kind {kind!r:.80}.")


def entries_of(data: Any) -> Mapping[Any, Any] | None:
    """Entries by name of a dict, TensorDict or tensorclass; None if it is something else."""
    if isinstance(data, dict):
        return data
    if type(data) is TensorDict:
        return _tensordict.entries(data)
    if _tensordict.is_tensor_collection(data):
        return {k: v for k, v in _tensordict.entries(data).items() if v is not None}
    return data if isinstance(data, Mapping) else None


def leaves_of(data: Any, path: Key = ()) -> Iterator[tuple[Key, Any]]:
    """All leaves with their keys, whatever they are."""
    entries = None if is_non_tensor(data) else entries_of(data)
    if entries is not None:
        for name, value in entries.items():
            yield from leaves_of(value, (*path, str(name)))
    elif isinstance(data, tuple | list):
        names = getattr(data, "_fields", None) or [str(i) for i in range(len(data))]
        for name, value in zip(names, data, strict=True):
            yield from leaves_of(value, (*path, name))
    else:
        yield path, data


def _leaf_nodes(node: _Node) -> Iterator[_Leaf]:
    if isinstance(node, _Leaf):
        yield node
    elif isinstance(node, _Named):
        for child in node.children.values():
            yield from _leaf_nodes(child)
    elif isinstance(node, _Sequence):
        for child in node.children:
            yield from _leaf_nodes(child)


class Structure:
    """How the leaves of an item are put together. Immutable, so safe in any thread.

    Args:
        root: the outermost part.
        keys: paths of the leaves, in the order of their numbers.
    """

    def __init__(self, root: _Node, keys: list[Key]) -> None:
        self._root = root
        self.keys = keys
        self.numbers = {key: number for number, key in enumerate(keys)}
        self._blank: list[Any] = [None] * len(keys)

    @classmethod
    def of(cls, data: Any, batch_dims: int, known: Sequence[Key] = ()) -> tuple[Structure, list[Tensor]]:
        """The structure of ``data`` and its leaves as tensors.

        Args:
            data: any of the four kinds.
            batch_dims: how many leading dimensions count items; the further ones of a TensorDict's batch
                size belong to the item.
            known: keys that have the first numbers already; all of them must be in the data.

        Raises:
            TypeError: a leaf is no tensor, array or number; its key is named.
            ValueError: there are no leaves, or two have one key, or a TensorDict has too few dimensions.
        """
        keys: list[Key] = list(known)
        found: dict[Key, Tensor] = {}

        def node(value: Any, path: Key) -> _Node:
            if is_non_tensor(value):
                raise TypeError(
                    f"The entry {show(path)} is no tensor (a {type(value).__name__}): tensor storages hold "
                    "numbers only. Drop or encode it, or use a ListStorage."
                )
            entries = entries_of(value)
            if entries is not None:
                children = {name: node(part, (*path, str(name))) for name, part in entries.items()}
                if not _tensordict.is_tensor_collection(value):
                    return _Dict(children)
                if len(value.batch_size) < batch_dims:
                    raise ValueError(
                        f"A {type(value).__name__} at {show(path)} has batch size {list(value.batch_size)}: "
                        f"its first {batch_dims} dimension(s) must count the items."
                    )
                extra = torch.Size(value.batch_size[batch_dims:])
                names = value.names[batch_dims:] if extra else []
                return _TensorDict(
                    children,
                    extra,
                    names if any(names) else None,
                    type(value) if _tensordict.is_tensorclass(value) else None,
                )
            if isinstance(value, tuple | list):
                fields = getattr(value, "_fields", None) or [str(i) for i in range(len(value))]
                return _Sequence(
                    [node(part, (*path, name)) for name, part in zip(fields, value, strict=True)], type(value)
                )
            if path in found:
                raise ValueError(f"Two entries have the key {show(path)} once keys are written as strings.")
            found[path] = as_tensor(value, path)
            if path not in known:
                keys.append(path)
            return _Leaf(keys.index(path))

        root = node(data, ())
        if not keys:
            raise ValueError(f"There is nothing to store in this {type(data).__name__}: it has no leaves.")
        return cls(root, keys), [found[key] for key in keys]

    def collect(self, data: Any) -> list[Any]:
        """The leaves of ``data`` in the order of ``keys``, not yet tensors. O(leaves).

        Raises:
            Differs: the data does not have this structure.
        """
        out = self._blank.copy()
        self._root.collect(data, out)
        return out

    def build(self, leaves: Sequence[Tensor], batch: torch.Size, device: torch.device | None) -> Any:
        """Put leaves ``[*batch, *shape]`` together. O(leaves)."""
        return self._root.build(leaves, batch, device)

    def to_json(self) -> Any:
        """The structure as plain values; classes by name."""
        return self._root.to_json()

    @classmethod
    def from_json(cls, value: Any, keys: Sequence[Key]) -> Structure:
        """The structure that :meth:`to_json` described. Imports nothing.

        Raises:
            ValueError: the description is damaged, or names a class that is not there.
        """
        try:
            structure = cls(_node_from_json(value), list(keys))
            numbers = sorted(leaf.number for leaf in _leaf_nodes(structure._root))
        except (LookupError, TypeError, OverflowError, RecursionError, RuntimeError) as error:
            raise DataFormatError(
                f"The state's description of an item is damaged: {type(error).__name__}: {error!s:.200}"
            ) from error
        if numbers != list(range(len(structure.keys))):
            raise DataFormatError(
                "The state's description of an item is damaged: its leaves do not match its keys."
            )
        return structure

    def compare(self, data: Any) -> tuple[list[Key], list[Key]]:
        """Keys that ``data`` lacks, and keys that it has on top. O(leaves)."""
        have = {key for key, _ in leaves_of(data)}
        mine = set(self.keys)
        return [key for key in self.keys if key not in have], sorted(have - mine)
