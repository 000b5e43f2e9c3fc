"""Writes datasets in RLDS form: what TFDS and :class:`RLDSSource` read."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from replaybank.datasets.openx.locks import FolderLock
from replaybank.datasets.openx.sources.base import FieldSpec, Key
from replaybank.datasets.openx.sources.example import DTYPE_CODES, serialize_example
from replaybank.datasets.openx.sources.features import (
    IMAGE_DTYPES,
    RAGGED_LENGTHS,
    RAGGED_VALUES,
    STEPS,
    UNKNOWN,
    StoredField,
    parse_features,
)
from replaybank.datasets.openx.sources.images import encode_frame, image_format
from replaybank.datasets.openx.sources.info import (
    DEFAULT_TEMPLATE,
    FEATURES_FILE,
    FILE_FORMAT,
    INFO_FILE,
    shard_name,
)
from replaybank.datasets.openx.sources.tfrecord import TFRecordWriter

Values: TypeAlias = "npt.NDArray[Any] | Sequence[Any] | None"
"""One field over an episode: numbers ``[T, ...]``, ``T`` strings (or lists of them), frames ``[T, H, W, C]``
or ``T`` encoded ones, ``T`` lists of differing length; None where this episode does not have the field."""


class RLDSWriter:
    """Writes episodes into the shards of one split of an RLDS dataset.

    Episodes go to the shards in turn. Everything is written under other names first: shards appear whole when
    the writer is closed, dataset_info.json last, so a dataset that was not finished cannot be taken for one.
    A split can be added to a dataset of the same fields. One writer a folder at a time. Not thread-safe.

    Args:
        path: folder to write in; made if needed.
        name: name of the dataset, the beginning of its files' names.
        version: version to declare.
        fields: fields of a step, by path. Where a shape has -1, episodes may differ; with ``ragged``, steps.
        metadata_fields: fields of an episode, by path, such as ``("episode_metadata", "file_path")``.
        split: name of the split.
        shards: number of files, at least 1.
        image_format: ``"jpeg"`` or ``"png"``, for frames given as arrays; those that are not uint8 are PNG.
        description: what the dataset is.

    Raises:
        FileExistsError: the dataset has this split already.
        BlockingIOError: another writer is at work in the folder.
        ValueError: a field or the number of shards cannot be written, or the dataset that is there has other
            fields.

    Example:
        >>> import tempfile, numpy as np
        >>> from replaybank.datasets.openx.sources.rlds import RLDSSource
        >>> folder = tempfile.mkdtemp()
        >>> reward = FieldSpec("tensor", (), np.dtype("float32"))
        >>> with RLDSWriter(folder, "demo", fields={("reward",): reward}) as writer:
        ...     writer.write({("reward",): np.array([0.0, 1.0])})
        >>> source = RLDSSource(folder)
        >>> [episode.steps[("reward",)].tolist() for episode in source.episodes(source.shards()[0])]
        [[0.0, 1.0]]
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str,
        *,
        version: str = "1.0.0",
        fields: Mapping[Key, FieldSpec],
        metadata_fields: Mapping[Key, FieldSpec] | None = None,
        split: str = "train",
        shards: int = 1,
        image_format: Literal["jpeg", "png"] = "jpeg",
        description: str = "",
    ) -> None:
        if shards < 1:
            raise ValueError(f"shards must be at least 1, got {shards}")
        if image_format not in ("jpeg", "png"):
            raise ValueError(f"image_format must be 'jpeg' or 'png', got {image_format!r}")
        metadata_fields = metadata_fields or {}
        if any(key[:1] == (STEPS,) for key in metadata_fields):
            raise ValueError(f"'{STEPS}' is where the steps lie; a field of the episode cannot be under it")
        self._image_format = image_format
        self._steps = [_stored(key, spec, in_steps=True) for key, spec in fields.items()]
        self._metadata = [_stored(key, spec, in_steps=False) for key, spec in metadata_fields.items()]
        self._features = _features_text(fields, metadata_fields, image_format)
        parse_features(self._features)  # what cannot be read back is refused now
        self._folder = Path(path)
        self._info = {
            "description": description,
            "fileFormat": FILE_FORMAT,
            "name": name,
            "splits": [],
            "version": version,
        }
        self._split = split
        self._names = [shard_name(DEFAULT_TEMPLATE, name, split, i, shards) for i in range(shards)]
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = FolderLock(self._folder, "another RLDSWriter")
        self._files: list[IO[bytes]] = []
        try:
            self._join_existing()
            self._partial = [self._folder / f".{shard}.partial" for shard in self._names]
            for partial in self._partial:
                self._files.append(partial.open("wb"))
        except BaseException:
            self._close_files()
            raise
        self._writers = [TFRecordWriter(file) for file in self._files]
        self._open = True
        self.episodes = 0
        """Episodes written."""

    def _join_existing(self) -> None:
        """Start from the dataset that is there, if there is one and it fits."""
        info = self._folder / INFO_FILE
        if not info.exists():
            return
        there = json.loads(info.read_text("utf-8"))
        if self._split in [split["name"] for split in there["splits"]]:
            raise FileExistsError(
                f"{self._folder} has a split '{self._split}' already; remove it or choose another"
            )
        for what in ("name", "version"):
            if there.get(what) != self._info[what]:
                raise ValueError(f"{self._folder} has {what} {there.get(what)!r}, not {self._info[what]!r}")
        features = self._folder / FEATURES_FILE
        if parse_features(features.read_bytes(), str(features)) != parse_features(self._features):
            raise ValueError(f"{self._folder} has other fields; a split must have those of its dataset")
        self._info = there

    def write(self, steps: Mapping[Key, Values], metadata: Mapping[Key, Any] | None = None) -> None:
        """Write one episode.

        Args:
            steps: every field of a step: numbers ``[T, ...]``; where lists differ in length, ``T`` of them; a
                list of ``T`` strings, or of as many lists of strings; frames as an array ``[T, H, W, C]`` or
                as ``T`` ``bytes`` that are JPEG or PNG. None: this episode has none.
            metadata: every field of the episode: a number or array, a string, a frame.

        Raises:
            ValueError: a field is missing, unknown, or not of the declared shape and dtype, or fields differ
                in steps; nothing is written.
            RuntimeError: the writer is closed.
            OSError: with ``errno.ENOSPC``, the disk is full; the folder is named.
        """
        if not self._open:
            raise RuntimeError("the writer is closed")
        metadata = {} if metadata is None else metadata
        _check_keys("steps", self._steps, steps)
        _check_keys("metadata", self._metadata, metadata)
        lengths = {field.key: len(value) for field in self._steps if (value := steps[field.key]) is not None}
        if len(set(lengths.values())) != 1 or 0 in lengths.values():
            raise ValueError(f"every field needs the same number of steps, at least 1, got {lengths}")
        features: dict[str, npt.NDArray[Any] | list[bytes]] = {}
        for field in self._steps:
            value = steps[field.key]
            if value is not None:
                features.update(self._encode(field, value))
        for field in self._metadata:
            if metadata[field.key] is not None:
                features.update(self._encode(field, [metadata[field.key]]))
        payload = serialize_example(dict(sorted(features.items())))
        with self._naming_a_full_disk():
            self._writers[self.episodes % len(self._writers)].write(payload)
        self.episodes += 1

    def _encode(self, field: StoredField, value: Any) -> dict[str, npt.NDArray[Any] | list[bytes]]:
        if field.levels:
            return _encode_lists(field, value)
        if field.spec.kind == "text":
            if field.spec.shape:
                value = _flat_texts(field, value)
            return {field.name: _encode_text(field, value)}
        if field.spec.kind == "image":
            return {field.name: _encode_frames(field, value, self._image_format)}
        array = _numbers(field, np.asarray(value))
        if not field.dynamic:
            return {field.name: array}
        shape = array.shape if field.in_steps else array.shape[1:]
        return dict(zip(field.features, (np.array(shape, dtype=np.int64), array), strict=True))

    def close(self) -> None:
        """Make the dataset appear: the shards, then features.json, then dataset_info.json."""
        if not self._open:
            return
        self._open = False
        try:
            with self._naming_a_full_disk():
                for file in self._files:
                    file.flush()
                    os.fsync(file.fileno())
                self._publish()
        finally:
            self._close_files()

    def _publish(self) -> None:
        for partial, name in zip(self._partial, self._names, strict=True):
            os.replace(partial, self._folder / name)
        split = {
            "filepathTemplate": DEFAULT_TEMPLATE,
            "name": self._split,
            "numBytes": str(sum(writer.payload_bytes for writer in self._writers)),
            "shardLengths": [str(writer.records) for writer in self._writers],
        }
        info = {**self._info, "splits": [*self._info["splits"], split]}
        _write_whole(self._folder / FEATURES_FILE, self._features)
        _write_whole(self._folder / INFO_FILE, json.dumps(info, indent=2) + "\n")

    def abort(self) -> None:
        """Give up: remove what was written."""
        if not self._open:
            return
        self._open = False
        for partial in self._partial:
            partial.unlink(missing_ok=True)
        self._close_files()

    def _close_files(self) -> None:
        try:
            # All of them, though one may find the disk full.
            with self._naming_a_full_disk(), contextlib.ExitStack() as closing:
                for file in self._files:
                    closing.callback(file.close)
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def _naming_a_full_disk(self) -> Iterator[None]:
        """A file that cannot be written does not say which one it is."""
        try:
            yield
        except OSError as error:
            if error.errno != errno.ENOSPC or error.filename is not None:
                raise
            raise OSError(errno.ENOSPC, "the disk is full", os.fspath(self._folder)) from error

    def __enter__(self) -> RLDSWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


def _write_whole(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    with open(partial, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def _stored(key: Key, spec: FieldSpec, *, in_steps: bool) -> StoredField:
    if not isinstance(key, tuple) or not key or not all(isinstance(part, str) and part for part in key):
        raise ValueError(f"a field's key is a tuple of names, got {key!r}")
    if spec.kind == "tensor" and spec.dtype not in DTYPE_CODES:
        raise ValueError(
            f"field {key}: dtype {spec.dtype} cannot be stored; one of {list(map(str, DTYPE_CODES))} can"
        )
    if spec.kind == "image" and (str(spec.dtype) not in IMAGE_DTYPES or len(spec.shape) != 3):
        raise ValueError(
            f"field {key}: images need shape (H, W, C) and a dtype of {sorted(IMAGE_DTYPES)}, "
            f"got {spec.shape} of {spec.dtype}"
        )
    if spec.kind == "text" and UNKNOWN in spec.shape:
        raise ValueError(f"field {key}: text of shape {spec.shape} cannot be stored; give it a known shape")
    if spec.ragged and (spec.kind != "tensor" or not in_steps):
        raise ValueError(f"field {key}: only numbers of a step can be lists of differing length")
    return StoredField(key, spec, in_steps=in_steps, levels=spec.shape[: spec.ragged])


def _check_keys(what: str, fields: list[StoredField], given: Mapping[Key, Any]) -> None:
    keys = {field.key for field in fields}
    if given.keys() != keys:
        missing, unknown = sorted(keys - given.keys()), sorted(map(str, given.keys() - keys))
        raise ValueError(f"{what}: missing {missing} (give None for an absent field), unknown {unknown}")


def _flat_texts(field: StoredField, value: Any) -> list[Any]:
    array = np.array(value, dtype=object)
    _check_shape(field, array.shape[1:])
    return list(array.reshape(-1))


def _encode_lists(field: StoredField, value: Any) -> dict[str, npt.NDArray[Any] | list[bytes]]:
    """Lists as TFDS stores them: flat, with the lengths of each level beside them."""
    assert field.spec.dtype is not None
    features: dict[str, npt.NDArray[Any] | list[bytes]] = {}
    rows: list[Any] = list(value)
    for level, declared in enumerate(field.levels):
        lengths = [len(row) for row in rows]
        if declared != UNKNOWN and any(length != declared for length in lengths):
            raise ValueError(
                f"field {field.key} needs lists of length {declared}, got {sorted(set(lengths))}"
            )
        features[f"{field.name}/{RAGGED_LENGTHS}{level}"] = np.array(lengths, dtype=np.int64)
        rows = [item for row in rows for item in row]
    inner = FieldSpec("tensor", field.spec.shape[len(field.levels) :], field.spec.dtype)
    array = np.asarray(rows) if rows else np.empty((0, *inner.shape), inner.dtype)
    features[f"{field.name}/{RAGGED_VALUES}"] = _numbers(StoredField(field.key, inner), array)
    return features


def _encode_text(field: StoredField, value: Any) -> list[bytes]:
    texts = value.tolist() if isinstance(value, np.ndarray) else list(value)
    if isinstance(value, str) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"field {field.key} needs one string a step")
    return [text.encode() for text in texts]


def _encode_frames(field: StoredField, value: Any, encoding: str) -> list[bytes]:
    frames = []
    for number, frame in enumerate(value):
        if isinstance(frame, bytes):
            if image_format(frame) is None:
                raise ValueError(f"field {field.key}, frame {number}: bytes that are neither JPEG nor PNG")
            frames.append(frame)
            continue
        pixels = np.asarray(frame)
        _check_shape(field, pixels.shape)
        if pixels.dtype != field.spec.dtype:
            raise ValueError(f"field {field.key} needs frames of {field.spec.dtype}, got {pixels.dtype}")
        frames.append(encode_frame(pixels, encoding))
    return frames


def _numbers(field: StoredField, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    _check_shape(field, array.shape[1:])
    dtype = field.spec.dtype
    assert dtype is not None
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise ValueError(f"field {field.key} needs {dtype}, got {array.dtype}")
    cast = array.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(cast, array):
        raise ValueError(f"field {field.key} has values beyond the range of {dtype}")
    return cast


def _check_shape(field: StoredField, shape: tuple[int, ...]) -> None:
    wanted = field.spec.shape
    if len(shape) != len(wanted) or any(w not in (UNKNOWN, s) for s, w in zip(shape, wanted, strict=True)):
        raise ValueError(f"field {field.key} needs values of shape {wanted}, got {shape}")


def _features_text(
    steps: Mapping[Key, FieldSpec], metadata: Mapping[Key, FieldSpec], image_format: str
) -> str:
    """The text of a features.json for these fields, numbers stored as lists."""
    tree = _dict_feature(_nest(metadata), image_format)
    sequence = {
        "pythonClassName": "tensorflow_datasets.core.features.dataset_feature.Dataset",
        "sequence": {"feature": _dict_feature(_nest(steps), image_format), "length": "-1"},
    }
    tree["featuresDict"]["features"] = {STEPS: sequence, **tree["featuresDict"]["features"]}
    return json.dumps(tree, indent=4) + "\n"


def _nest(fields: Mapping[Key, FieldSpec]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, spec in fields.items():
        node = tree
        for part in key[:-1]:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise ValueError(f"field {key} lies inside another field")  # noqa: TRY004  # not its type
        if key[-1] in node:
            raise ValueError(f"field {key} holds other fields or is given twice")
        node[key[-1]] = spec
    return tree


def _dict_feature(tree: Mapping[str, Any], image_format: str) -> dict[str, Any]:
    return {
        "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
        "featuresDict": {
            "features": {
                name: _dict_feature(value, image_format)
                if isinstance(value, dict)
                else _leaf_feature(value, image_format)
                for name, value in tree.items()
            }
        },
    }


def _leaf_feature(spec: FieldSpec, image_format: str) -> dict[str, Any]:
    prefix = "tensorflow_datasets.core.features"
    if spec.ragged:
        inner = FieldSpec("tensor", spec.shape[1:], spec.dtype, ragged=spec.ragged - 1)
        return {
            "pythonClassName": f"{prefix}.sequence_feature.Sequence",
            "sequence": {"feature": _leaf_feature(inner, image_format), "length": str(spec.shape[0])},
        }
    if spec.kind == "text" and not spec.shape:
        return {"pythonClassName": f"{prefix}.text_feature.Text", "text": {}}
    shape = {"dimensions": [str(size) for size in spec.shape]} if spec.shape else {}
    if spec.kind == "image":
        encoding = image_format if spec.dtype == np.uint8 else "png"
        body = {"shape": shape, "dtype": str(spec.dtype), "encodingFormat": encoding}
        return {"pythonClassName": f"{prefix}.image_feature.Image", "image": body}
    python_class = "tensor_feature.Tensor" if spec.shape else "scalar.Scalar"
    dtype = "string" if spec.kind == "text" else str(spec.dtype)
    body = {"shape": shape, "dtype": dtype, "encoding": "none"}
    return {"pythonClassName": f"{prefix}.{python_class}", "tensor": body}
