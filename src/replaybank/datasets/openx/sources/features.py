"""What features.json declares: the tree of an episode's fields and how each is stored.

The names of Python classes in that file are only looked up in a table here; nothing is ever imported by
them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import Any, Final, Literal

import numpy as np

from replaybank.datasets.openx.sources.base import FieldSpec, Key
from replaybank.errors import DataFormatError, UnsupportedFeatureError

STEPS: Final = "steps"
"""Name of the feature that holds the steps of an episode."""
UNKNOWN: Final = -1

MAX_VALUE_BYTES = 1 << 40
"""Of one value of a feature: no dataset has one; shapes beyond it are damage, or an attempt at something."""

CLASSES: Mapping[str, str] = {
    "FeaturesDict": "featuresDict",
    "Sequence": "sequence",
    "Dataset": "sequence",
    "Tensor": "tensor",
    "Scalar": "tensor",
    "Text": "text",
    "ClassLabel": "classLabel",
    "Image": "image",
    "BBoxFeature": "boundingBox",
    "Optional": "optional",
    "Video": "video",
    "Audio": "audio",
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
IMAGE_DIMENSIONS: Final = 3
"""``(H, W, C)``; one more of a video."""
IMAGE_DTYPES: Final = frozenset({"uint8", "uint16", "float32"})

MOST_TEXTS: Final = 256
"""Texts, or frames, that one field of a step may hold: each becomes an entry of its own."""
RAGGED_VALUES: Final = "ragged_flat_values"
RAGGED_LENGTHS: Final = "ragged_row_lengths_"


@dataclass(frozen=True)
class StoredField:
    """One field of the schema: what it is, and the feature or features that hold it.

    Args:
        key: path in the schema; parts may contain ``/``.
        spec: kind, shape of one value and dtype.
        encoding: ``"none"``: numbers in a list; ``"bytes"``: one little-endian string a value;
            ``"zlib"``: the same, compressed.
        in_steps: one value a step, rather than one an episode.
        levels: lengths of the sequences that it lies in within a step, the outermost first, -1 where they
            vary: the first dimensions of ``spec.shape``.
        lengths: for each level of numbers that varies, the column that tells the lengths.
    """

    key: Key
    spec: FieldSpec
    encoding: Encoding = "none"
    in_steps: bool = False
    levels: tuple[int, ...] = ()
    lengths: Mapping[int, Key] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        """Name of the feature in the payload: the key's parts joined by ``/``."""
        return "/".join((STEPS, *self.key) if self.in_steps else self.key)

    @property
    def dynamic(self) -> bool:
        """Whether shape and values are two features, ``<name>/shape`` and ``<name>/value``.

        So it is where more than one dimension is unknown; of what is no string of bytes, the number of steps
        is one of them.
        """
        if self.spec.kind == "image" or self.levels:
            return False
        unknown = self.spec.shape.count(UNKNOWN)
        return unknown > 1 or (unknown == 1 and self.in_steps and self.encoding == "none")

    @property
    def row_lengths(self) -> int:
        """Lists of lengths that may lie beside the values, one for each level."""
        return len(self.levels)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features in the payload that may hold this field."""
        if self.dynamic:
            return f"{self.name}/shape", f"{self.name}/value"
        if not self.row_lengths:
            return (self.name,)
        lists = (f"{self.name}/{RAGGED_LENGTHS}{level}" for level in range(self.row_lengths))
        return (self.name, f"{self.name}/{RAGGED_VALUES}", *lists)

    @property
    def entries(self) -> dict[Key, FieldSpec]:
        """The columns that this field of a step gives.

        Several texts or frames a step are as many columns, ``(*key, "0")``, ``(*key, "1")``, ..., or, of
        texts, one that holds them as a JSON list where their number varies. Sequences of numbers whose length
        varies are padded with zeros, and their lengths are a column of their own.
        """
        if self.spec.kind == "image" and self.levels:
            one = FieldSpec("image", self.spec.shape[len(self.levels) :], self.spec.dtype)
            return {(*self.key, *map(str, at)): one for at in product(*map(range, self.levels))}
        if self.spec.kind == "text":
            one = FieldSpec("text", (), None)
            if UNKNOWN in self.spec.shape:
                return {self.key: one}
            return {(*self.key, *map(str, at)): one for at in product(*map(range, self.spec.shape))}
        found = {self.key: self.spec}
        for level, key in self.lengths.items():
            found[key] = FieldSpec("tensor", self.levels[:level], np.dtype(np.int32), ragged=level)
        return found


@dataclass(frozen=True)
class Schema:
    """The fields of a dataset, in the order of its features.json.

    Args:
        steps: fields of a step; their keys are relative to ``steps``.
        metadata: fields of the whole episode.
        skipped: fields of the whole episode that cannot be read, and why; they are left out.
        labels: fields whose numbers have names, with the beginning of the name of the file that tells them.
    """

    steps: tuple[StoredField, ...]
    metadata: tuple[StoredField, ...]
    skipped: Mapping[Key, str] = field(default_factory=dict)
    labels: Mapping[Key, str] = field(default_factory=dict)

    @property
    def fields(self) -> dict[Key, FieldSpec]:
        """The columns of a step."""
        return {key: spec for stored in self.steps for key, spec in stored.entries.items()}


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
    for name, raw in walk.raw_children(root):
        if name != STEPS:
            metadata.extend(walk.of_episode((name,), raw))
            continue
        found = True
        inner = walk.step_features(walk.node((name,), raw))
        for step_name, step_child in walk.children(inner):
            steps.extend(walk.leaves((step_name,), step_child, in_steps=True))
    if not found:
        raise DataFormatError(f"{where} declares no '{STEPS}': it does not describe episodes (RLDS)")
    _refuse_huge_values(where, [*steps, *metadata])
    _refuse_shared_names(where, [*steps, *metadata])
    return Schema(tuple(_with_lengths(where, steps)), tuple(metadata), walk.skipped, walk.labels)


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
        return f"{self.content} (class {self.python_class or 'not named':.200})"


class _Walk:
    """Turns the document's nodes into fields, with its path for messages."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.skipped: dict[Key, str] = {}
        self.labels: dict[Key, str] = {}

    def unsupported(self, key: Key, python_class: str, encoding: str, reason: str) -> UnsupportedFeatureError:
        return UnsupportedFeatureError(
            f"{self.where}: feature '{'/'.join(key)}' of class {python_class or '(not named)':.200}, "
            f"encoding {encoding or 'none':.80}: {reason:.1000}"
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
        for name, raw in self.raw_children(node):
            yield name, self.node((*node.key, name), raw)

    def raw_children(self, node: _Node) -> Iterator[tuple[str, Any]]:
        features = node.body if node.old_form else node.body.get("features", {})
        if not isinstance(features, Mapping):
            raise DataFormatError(f"{self.where}: features of '{'/'.join(node.key)}' must be an object")
        yield from features.items()

    def of_episode(self, key: Key, raw: Any) -> Iterator[StoredField]:
        """The fields of an episode, without those that cannot be read: the steps can be had all the same."""
        try:
            node = self.node(key, raw)
            if node.content == "featuresDict":
                for name, child in self.raw_children(node):
                    yield from self.of_episode((*key, name), child)
            else:
                yield from list(self.leaves(key, node, in_steps=False))
        except UnsupportedFeatureError as error:
            self.skipped[key] = str(error)

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
        elif node.content == "optional":  # where it is absent, so is the feature that would hold it
            yield from self.leaves(key, self.node(node.key, node.body.get("feature")), in_steps=in_steps)
        elif node.content == "sequence":
            yield from self.sequence(key, node, in_steps=in_steps)
        else:
            yield self.leaf(key, node, in_steps=in_steps)

    def sequence(self, key: Key, node: _Node, *, in_steps: bool) -> Iterator[StoredField]:
        """What lies in a sequence has one more dimension."""
        length = self.dimension(key, node.body.get("length"))
        inner = self.node(node.key, node.body.get("feature"))
        for found in self.leaves(key, inner, in_steps=in_steps):
            shape = found.spec.shape
            if found.spec.kind == "image":
                yield self.several_frames(node, found, length)
                continue
            if UNKNOWN in shape[len(found.levels) :] or not (in_steps or found.encoding == "none"):
                raise self.unsupported(
                    node.key,
                    node.python_class,
                    found.encoding,
                    f"values of shape {shape} in this encoding are not read in a sequence",
                )
            levels = (length, *found.levels) if in_steps else ()
            ragged = len(levels) if in_steps and UNKNOWN in levels and found.spec.kind == "tensor" else 0
            spec = FieldSpec(found.spec.kind, (length, *shape), found.spec.dtype, ragged=ragged)
            yield self.few_texts(node, replace(found, spec=spec, levels=levels))

    def several_frames(self, node: _Node, found: StoredField, length: int) -> StoredField:
        """Frames in a sequence: each of a step becomes an entry, so their number must be known."""
        levels = (length, *found.levels)
        shown = " x ".join("?" if size == UNKNOWN else str(size) for size in levels)
        if found.in_steps and not 1 <= prod(levels) * (UNKNOWN not in levels) <= MOST_TEXTS:
            raise self.unsupported(
                node.key,
                node.python_class,
                "",
                f"{shown} frames a step are not read: each becomes an entry of its own, of a number that is "
                f"known, 1 to {MOST_TEXTS}",
            )
        if not found.in_steps and len(found.spec.shape) > IMAGE_DIMENSIONS:
            raise self.unsupported(node.key, node.python_class, "", "sequences of videos are not read")
        spec = replace(found.spec, shape=(length, *found.spec.shape))
        return replace(found, spec=spec, levels=levels if found.in_steps else ())

    def few_texts(self, node: _Node, found: StoredField) -> StoredField:
        """Refuse a step with more texts than anyone wants as entries."""
        shape = found.spec.shape
        if (
            found.spec.kind == "text"
            and found.in_steps
            and UNKNOWN not in shape
            and not (1 <= prod(shape) <= MOST_TEXTS)
        ):
            raise self.unsupported(
                node.key,
                node.python_class,
                "",
                f"text of shape {shape} is not read: each becomes an entry of its own, of 1 to {MOST_TEXTS}",
            )
        return found

    def leaf(self, key: Key, node: _Node, *, in_steps: bool) -> StoredField:
        if node.content == "text":
            return StoredField(key, FieldSpec("text", (), None), in_steps=in_steps)
        if node.content == "classLabel":
            self.labels[key] = "-".join((STEPS, *key) if in_steps else key)
            return StoredField(key, FieldSpec("tensor", (), np.dtype("int64")), in_steps=in_steps)
        if node.content == "video":
            return self.video(key, node, in_steps=in_steps)
        encoding = str(node.body.get("encoding") or "none").lower()
        shape = self.shape(node.key, node.body.get("shape"))
        dtype = str(node.body.get("dtype") or "").lower()
        if node.content == "boundingBox":
            shape, dtype = shape or (4,), dtype or "float32"
        if node.content == "audio":
            shape, dtype = shape or (UNKNOWN,), dtype or "int64"
            if node.body.get("lazyDecode") or node.body.get("lazy_decode"):
                raise self.unsupported(node.key, node.python_class, "", "files of sound are not read")
        if node.content == "image":
            dtype = dtype or "uint8"
            reason = None if dtype in IMAGE_DTYPES else f"images of dtype {dtype} are not read"
            spec = FieldSpec("image", shape or (UNKNOWN, UNKNOWN, 3), np.dtype(dtype)) if not reason else None
        elif encoding not in ENCODINGS:
            reason, spec = "the encoding is not known", None
        elif dtype in TEXT_DTYPES:
            reason = "text is not read in an encoding" if ENCODINGS[encoding] != "none" else None
            spec = FieldSpec("text", shape, None)
        elif dtype not in NUMBER_DTYPES:
            reason, spec = f"dtype {dtype or '(not named)'} is not read", None
        else:
            reason, spec = None, FieldSpec("tensor", shape, np.dtype(dtype))
        if reason or spec is None:
            raise self.unsupported(node.key, node.python_class, encoding, reason or "not read")
        stored = ENCODINGS[encoding] if spec.kind == "tensor" else "none"
        return self.few_texts(node, StoredField(key, spec, stored, in_steps))

    def video(self, key: Key, node: _Node, *, in_steps: bool) -> StoredField:
        """A sequence of encoded frames, as TFDS stores videos."""
        length, *frame = self.shape(node.key, node.body.get("shape")) or (UNKNOWN, UNKNOWN, UNKNOWN, 3)
        if len(frame) != IMAGE_DIMENSIONS:
            reason = f"a video has no shape {(length, *frame)}"
            raise self.unsupported(node.key, node.python_class, "", reason)
        dtype = str(node.body.get("dtype") or "uint8").lower()
        if dtype not in IMAGE_DTYPES:
            raise self.unsupported(node.key, node.python_class, "", f"videos of dtype {dtype} are not read")
        one = StoredField(key, FieldSpec("image", tuple(frame), np.dtype(dtype)), in_steps=in_steps)
        return self.several_frames(node, one, length)

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


def _with_lengths(where: str, fields: list[StoredField]) -> Iterator[StoredField]:
    """The fields, each with the keys of its lengths: its own with ``_length`` (``_length_1``, ...) behind."""
    taken = {key for stored in fields for key in stored.entries}
    if len(taken) != sum(len(stored.entries) for stored in fields):
        raise DataFormatError(f"{where}: one of a list of texts or frames has the name of another field")
    for stored in fields:
        lengths = {}
        for level, length in enumerate(stored.levels):
            if length != UNKNOWN or stored.spec.kind != "tensor":
                continue
            name = f"{stored.key[-1]}_length{f'_{level}' if level else ''}"
            while (*stored.key[:-1], name) in taken:
                name += "_"
            lengths[level] = (*stored.key[:-1], name)
            taken.add(lengths[level])
        yield replace(stored, lengths=lengths) if lengths else stored


def _refuse_huge_values(where: str, fields: list[StoredField]) -> None:
    for stored in fields:
        spec = stored.spec
        size = math.prod(dimension for dimension in spec.shape if dimension > 0)
        size *= 1 if spec.dtype is None else spec.dtype.itemsize
        if size > MAX_VALUE_BYTES:
            raise DataFormatError(
                f"{where}: feature '{'/'.join(stored.key)}' is of shape {spec.shape}: one value would take "
                f"{size:,} bytes"
            )


def _refuse_shared_names(where: str, fields: list[StoredField]) -> None:
    seen: dict[str, StoredField] = {}
    for stored in fields:
        for name in stored.features:
            other = seen.setdefault(name, stored)
            if other is not stored:
                raise DataFormatError(
                    f"{where}: {other.key} and {stored.key} are stored under one name, '{name}'"
                )
