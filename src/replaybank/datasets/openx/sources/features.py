"""What features.json declares: the tree of an episode's fields and how each is stored.

The names of Python classes in that file are only looked up in a table here; nothing is ever imported by
them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from replaybank.datasets.openx.sources.base import FieldSpec, Key
from replaybank.errors import DataFormatError, UnsupportedFeatureError

STEPS: Final = "steps"
"""Name of the feature that holds the steps of an episode."""
UNKNOWN: Final = -1

CLASSES: Mapping[str, str] = {
    "FeaturesDict": "featuresDict",
    "Sequence": "sequence",
    "Dataset": "sequence",
    "Tensor": "tensor",
    "Scalar": "tensor",
    "Text": "text",
    "ClassLabel": "classLabel",
    "Image": "image",
}
"""Classes that this version reads, by the last part of their name, and the entry that describes them."""
CLASS_PREFIX: Final = "tensorflow_datasets."

Encoding = Literal["none", "bytes", "zlib"]
ENCODINGS: Mapping[str, Encoding] = {"": "none", "none": "none", "bytes": "bytes", "zlib": "zlib"}

NUMBER_DTYPES: Final = frozenset(
    f"{kind}{bits}"
    for kind, widths in (("int", (8, 16, 32, 64)), ("uint", (8, 16, 32, 64)))
    for bits in widths
) | {"bool", "float16", "float32", "float64"}
TEXT_DTYPES: Final = frozenset({"string", "object", "str", "bytes"})
IMAGE_DTYPES: Final = frozenset({"uint8", "uint16", "float32"})


@dataclass(frozen=True)
class StoredField:
    """One field of the schema: what it is, and the feature or features that hold it.

    Args:
        key: path in the schema; parts may contain ``/``.
        spec: kind, shape of one value and dtype.
        encoding: ``"none"``: numbers in a list; ``"bytes"``: one little-endian string a value;
            ``"zlib"``: the same, compressed.
        in_steps: one value a step, rather than one an episode.
    """

    key: Key
    spec: FieldSpec
    encoding: Encoding = "none"
    in_steps: bool = False

    @property
    def name(self) -> str:
        """Name of the feature in the payload: the key's parts joined by ``/``."""
        return "/".join((STEPS, *self.key) if self.in_steps else self.key)

    @property
    def dynamic(self) -> bool:
        """Whether shape and values are two features, ``<name>/shape`` and ``<name>/value``.

        So it is where more than one dimension is unknown, the number of steps being one.
        """
        if self.spec.kind != "tensor" or self.encoding != "none":
            return False
        return self.spec.shape.count(UNKNOWN) + self.in_steps > 1

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features in the payload that hold this field."""
        return (f"{self.name}/shape", f"{self.name}/value") if self.dynamic else (self.name,)


@dataclass(frozen=True)
class Schema:
    """The fields of a dataset, in the order of its features.json.

    Args:
        steps: fields of a step; their keys are relative to ``steps``.
        metadata: fields of the whole episode.
    """

    steps: tuple[StoredField, ...]
    metadata: tuple[StoredField, ...]


def parse_features(document: str | bytes | Mapping[str, Any], where: str = "features.json") -> Schema:
    """Read a features.json, new form or old.

    Args:
        document: its text, or what it holds as JSON.
        where: its path, for messages.

    Raises:
        UnsupportedFeatureError: a feature's class, dtype or encoding is not one this version reads.
        DataFormatError: the document is not a schema of episodes.

    >>> schema = parse_features({"featuresDict": {"features": {"steps": {"sequence": {"feature": {
    ...     "featuresDict": {"features": {"reward": {"tensor": {"shape": {}, "dtype": "float32"}}}}}}}}}})
    >>> schema.steps[0].name, schema.steps[0].spec
    ('steps/reward', FieldSpec(kind='tensor', shape=(), dtype=dtype('float32')))
    """
    if not isinstance(document, Mapping):
        try:
            document = json.loads(document)
        except (ValueError, RecursionError) as error:
            raise DataFormatError(f"{where} is not JSON: {error}") from error
    try:
        return _parse(_Walk(where), document)
    except RecursionError as error:
        raise DataFormatError(f"{where} nests too deeply") from error


def _parse(walk: _Walk, document: Any) -> Schema:
    where = walk.where
    root = walk.node((), document)
    if root.content != "featuresDict":
        raise DataFormatError(f"{where}: the top must be a dict of features, not {root.described}")
    steps: list[StoredField] = []
    metadata: list[StoredField] = []
    found = False
    for name, child in walk.children(root):
        if name != STEPS:
            metadata.extend(walk.leaves((name,), child, in_steps=False))
            continue
        found = True
        inner = walk.step_features(child)
        for step_name, step_child in walk.children(inner):
            steps.extend(walk.leaves((step_name,), step_child, in_steps=True))
    if not found:
        raise DataFormatError(f"{where} declares no '{STEPS}': it does not describe episodes (RLDS)")
    _refuse_shared_names(where, [*steps, *metadata])
    return Schema(tuple(steps), tuple(metadata))


@dataclass(frozen=True)
class _Node:
    """A feature of the document: which entry describes it, that entry, and the class it names."""

    key: Key
    content: str
    body: Mapping[str, Any]
    python_class: str
    old_form: bool

    @property
    def described(self) -> str:
        return f"{self.content} (class {self.python_class or 'not named'})"


class _Walk:
    """Turns the document's nodes into fields, with its path for messages."""

    def __init__(self, where: str) -> None:
        self.where = where

    def unsupported(self, key: Key, python_class: str, encoding: str, reason: str) -> UnsupportedFeatureError:
        return UnsupportedFeatureError(
            f"{self.where}: feature '{'/'.join(key)}' of class {python_class or '(not named)'}, "
            f"encoding {encoding or 'none'}: {reason}"
        )

    def node(self, key: Key, raw: Any) -> _Node:
        if not isinstance(raw, Mapping):
            raise DataFormatError(
                f"{self.where}: feature '{'/'.join(key)}' must be an object, got {raw!r:.200}"
            )
        old_form = "type" in raw and "content" in raw
        python_class = str(raw.get("type" if old_form else "pythonClassName", ""))
        content = self.content_of(key, python_class) if python_class else None
        if old_form:
            body = raw["content"]
            if isinstance(body, (str, bytes)):
                try:
                    body = json.loads(body) if body else {}
                except (ValueError, RecursionError) as error:
                    raise DataFormatError(
                        f"{self.where}: content of feature '{'/'.join(key)}' is not JSON: {error}"
                    ) from error
        else:
            if content is None:
                content = next((name for name in CLASSES.values() if name in raw), None)
            body = raw.get(content or "", {})
        if content is None:
            raise self.unsupported(
                key, python_class, "", f"nothing known among its entries {sorted(map(str, raw))!s:.200}"
            )
        if not isinstance(body, Mapping):
            body = {} if body is None else {"": body}
        return _Node(key, content, body, python_class, old_form)

    def content_of(self, key: Key, python_class: str) -> str:
        content = CLASSES.get(python_class.rpartition(".")[2])
        if content is None or not python_class.startswith(CLASS_PREFIX):
            known = ", ".join(CLASSES)
            raise self.unsupported(
                key, python_class, "", f"unknown class; known are {CLASS_PREFIX}*.({known})"
            )
        return content

    def children(self, node: _Node) -> Iterator[tuple[str, _Node]]:
        features = node.body if node.old_form else node.body.get("features", {})
        if not isinstance(features, Mapping):
            raise DataFormatError(f"{self.where}: features of '{'/'.join(node.key)}' must be an object")
        for name, raw in features.items():
            yield name, self.node((*node.key, name), raw)

    def step_features(self, steps: _Node) -> _Node:
        inner = self.node(steps.key, steps.body.get("feature")) if steps.content == "sequence" else steps
        if steps.content != "sequence" or inner.content != "featuresDict":
            raise DataFormatError(
                f"{self.where}: '{STEPS}' must be a sequence of dicts, got {inner.described}"
            )
        return inner

    def leaves(self, key: Key, node: _Node, *, in_steps: bool) -> Iterator[StoredField]:
        if node.content == "featuresDict":
            for name, child in self.children(node):
                yield from self.leaves((*key, name), child, in_steps=in_steps)
        elif node.content == "sequence":
            yield from self.sequence(key, node, in_steps=in_steps)
        else:
            yield self.leaf(key, node, in_steps=in_steps)

    def sequence(self, key: Key, node: _Node, *, in_steps: bool) -> Iterator[StoredField]:
        """A sequence of numbers in an episode is an array with one more dimension."""
        if in_steps:
            raise self.unsupported(node.key, node.python_class, "", "sequences inside steps are not read")
        length = self.dimension(key, node.body.get("length"))
        for field in self.leaves(key, self.node(node.key, node.body.get("feature")), in_steps=False):
            if field.spec.kind != "tensor" or field.encoding != "none" or UNKNOWN in field.spec.shape:
                raise self.unsupported(
                    node.key, node.python_class, field.encoding, "only numbers of known shape are read in it"
                )
            spec = FieldSpec("tensor", (length, *field.spec.shape), field.spec.dtype)
            yield StoredField(field.key, spec)

    def leaf(self, key: Key, node: _Node, *, in_steps: bool) -> StoredField:
        if node.content == "text":
            return StoredField(key, FieldSpec("text", (), None), in_steps=in_steps)
        if node.content == "classLabel":
            return StoredField(key, FieldSpec("tensor", (), np.dtype("int64")), in_steps=in_steps)
        encoding = str(node.body.get("encoding") or "none").lower()
        shape = self.shape(node.key, node.body.get("shape"))
        dtype = str(node.body.get("dtype") or ("uint8" if node.content == "image" else "")).lower()
        if node.content == "image":
            reason = None if dtype in IMAGE_DTYPES else f"images of dtype {dtype} are not read"
            spec = FieldSpec("image", shape or (UNKNOWN, UNKNOWN, 3), np.dtype(dtype)) if not reason else None
        elif encoding not in ENCODINGS:
            reason, spec = "the encoding is not known", None
        elif dtype in TEXT_DTYPES:
            reason = f"text of shape {shape} is not read" if shape or encoding != "none" else None
            spec = FieldSpec("text", (), None)
        elif dtype not in NUMBER_DTYPES:
            reason, spec = f"dtype {dtype or '(not named)'} is not read", None
        else:
            unknown = encoding != "none" and UNKNOWN in shape
            reason = f"the unknown dimensions of shape {shape} are not read" if unknown else None
            spec = FieldSpec("tensor", shape, np.dtype(dtype))
        if reason or spec is None:
            raise self.unsupported(node.key, node.python_class, encoding, reason or "not read")
        stored = ENCODINGS[encoding] if spec.kind == "tensor" else "none"
        return StoredField(key, spec, stored, in_steps)

    def shape(self, key: Key, raw: Any) -> tuple[int, ...]:
        dimensions = raw.get("dimensions", []) if isinstance(raw, Mapping) else raw or []
        if not isinstance(dimensions, (list, tuple)):
            raise DataFormatError(
                f"{self.where}: shape of '{'/'.join(key)}' must be a list, got {raw!r:.200}"
            )
        return tuple(self.dimension(key, value) for value in dimensions)

    def dimension(self, key: Key, raw: Any) -> int:
        if raw is None:
            return UNKNOWN
        try:
            size = int(raw)
        except (TypeError, ValueError, OverflowError):
            size = UNKNOWN - 1
        # Larger than any array: products of dimensions must stay within 64 bits.
        if not UNKNOWN <= size < 1 << 31:
            raise DataFormatError(f"{self.where}: a dimension of '{'/'.join(key)}' is {raw!r:.200}")
        return size


def _refuse_shared_names(where: str, fields: list[StoredField]) -> None:
    seen: dict[str, StoredField] = {}
    for field in fields:
        for name in field.features:
            other = seen.setdefault(name, field)
            if other is not field:
                raise DataFormatError(
                    f"{where}: {other.key} and {field.key} are stored under one name, '{name}'"
                )
