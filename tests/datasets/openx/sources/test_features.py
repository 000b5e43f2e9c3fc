from __future__ import annotations

import builtins
import importlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from replaybank.datasets.openx.sources.base import FieldSpec, Key
from replaybank.datasets.openx.sources.features import Schema, StoredField, parse_features
from replaybank.errors import DataFormatError, UnsupportedFeatureError
from shared_data import bridge_path


def dict_of(features: Mapping[str, Any]) -> dict[str, Any]:
    return {"featuresDict": {"features": features}}


def tensor(shape: list[str], dtype: str, encoding: str = "none") -> dict[str, Any]:
    return {
        "pythonClassName": "tensorflow_datasets.core.features.tensor_feature.Tensor",
        "tensor": {"shape": {"dimensions": shape}, "dtype": dtype, "encoding": encoding},
    }


def schema_of(steps: Mapping[str, Any], **metadata: Any) -> Schema:
    return parse_features(dict_of({"steps": {"sequence": {"feature": dict_of(steps)}}, **metadata}))


def numbers(shape: tuple[int, ...], dtype: str) -> FieldSpec:
    return FieldSpec("tensor", shape, np.dtype(dtype))


def test_the_real_file_gives_every_field_with_its_kind_shape_and_dtype() -> None:
    schema = parse_features((bridge_path() / "features.json").read_bytes())
    image = FieldSpec("image", (64, 64, 3), np.dtype("uint8"))
    steps: dict[Key, FieldSpec] = {
        ("action",): numbers((7,), "float32"),
        ("language_embedding",): numbers((512,), "float32"),
        ("is_terminal",): numbers((), "bool"),
        ("is_last",): numbers((), "bool"),
        ("is_first",): numbers((), "bool"),
        ("discount",): numbers((), "float32"),
        ("reward",): numbers((), "float32"),
        ("language_instruction",): FieldSpec("text", (), None),
        ("observation", "state"): numbers((7,), "float32"),
        **{("observation", f"image_{i}"): image for i in range(4)},
    }
    metadata: dict[Key, FieldSpec] = {
        **{("episode_metadata", f"has_image_{i}"): numbers((), "bool") for i in range(4)},
        ("episode_metadata", "has_language"): numbers((), "bool"),
        ("episode_metadata", "episode_id"): numbers((), "int32"),
        ("episode_metadata", "file_path"): FieldSpec("text", (), None),
    }
    assert {field.key: field.spec for field in schema.steps} == steps
    assert {field.key: field.spec for field in schema.metadata} == metadata


def test_names_with_slashes_stay_whole() -> None:
    schema = schema_of({"observation": dict_of({"present/xyz": tensor(["3"], "float32")})})
    (field,) = schema.steps
    assert field.key == ("observation", "present/xyz")
    assert field.name == "steps/observation/present/xyz"


def test_two_fields_under_one_stored_name_are_refused() -> None:
    with pytest.raises(
        DataFormatError, match=r"\('a', 'b'\) and \('a/b',\) are stored under one name, 'steps/a/b'"
    ):
        schema_of({"a": dict_of({"b": tensor([], "float32")}), "a/b": tensor([], "float32")})
    with pytest.raises(DataFormatError, match=r"\('x',\) and \('x/shape',\) are stored under one name"):
        schema_of({"x": tensor(["-1"], "float32"), "x/shape": tensor([], "int64")})


def test_every_kind_of_feature_that_is_read() -> None:
    prefix = "tensorflow_datasets.core.features."
    schema = schema_of(
        {
            "label": {"pythonClassName": prefix + "ClassLabel", "classLabel": {"numClasses": "4"}},
            "note": {"pythonClassName": prefix + "Text", "text": {}},
            "string": tensor([], "string"),
            "depth": {"image": {"shape": {"dimensions": ["-1", "-1", "1"]}, "dtype": "uint16"}},
            "any": {"pythonClassName": prefix + "Image", "image": {}},
            "packed": tensor(["3"], "float16", "zlib"),
            "raw": tensor(["3"], "int16", "bytes"),
            "ragged": tensor(["-1", "2"], "float64"),
        },
        list={"sequence": {"feature": tensor(["2"], "float32"), "length": "-1"}},
        four={"sequence": {"feature": dict_of({"x": tensor([], "int64")}), "length": "4"}},
    )
    image = FieldSpec("image", (-1, -1, 3), np.dtype("uint8"))
    assert schema.steps == (
        StoredField(("label",), numbers((), "int64"), in_steps=True),
        StoredField(("note",), FieldSpec("text", (), None), in_steps=True),
        StoredField(("string",), FieldSpec("text", (), None), in_steps=True),
        StoredField(("depth",), FieldSpec("image", (-1, -1, 1), np.dtype("uint16")), in_steps=True),
        StoredField(("any",), image, in_steps=True),
        StoredField(("packed",), numbers((3,), "float16"), "zlib", True),
        StoredField(("raw",), numbers((3,), "int16"), "bytes", True),
        StoredField(("ragged",), numbers((-1, 2), "float64"), in_steps=True),
    )
    assert [field.name for field in schema.steps if field.dynamic] == ["steps/ragged"]
    assert schema.metadata == (
        StoredField(("list",), numbers((-1, 2), "float32")),
        StoredField(("four", "x"), numbers((4,), "int64")),
    )


def old(python_class: str, content: Any) -> dict[str, Any]:
    return {
        "type": f"tensorflow_datasets.core.features.{python_class}",
        "content": content if isinstance(content, dict) and "as_dict" in content else json.dumps(content),
    }


def test_the_older_form_gives_the_same_schema() -> None:
    steps = {
        "action": old("tensor_feature.Tensor", {"shape": [7], "dtype": "float32", "encoding": "none"}),
        "done": old("scalar.Scalar", {"shape": [], "dtype": "bool"}),
        "image": old(
            "image_feature.Image", {"shape": [None, None, 3], "dtype": "uint8", "encoding_format": "png"}
        ),
        "note": old("text_feature.Text", {"use_encoder": False}),
    }
    inner = old("features_dict.FeaturesDict", steps)
    document = old(
        "features_dict.FeaturesDict",
        {"steps": old("dataset_feature.Dataset", {"feature": inner, "length": None})},
    )
    new = schema_of(
        {
            "action": tensor(["7"], "float32"),
            "done": tensor([], "bool"),
            "image": {"image": {"shape": {"dimensions": ["-1", "-1", "3"]}, "dtype": "uint8"}},
            "note": {"text": {}},
        }
    )
    assert parse_features(json.dumps(document)) == new


def test_a_class_that_is_not_ours_is_unknown_by_name_and_nothing_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C90."""
    imported: list[str] = []
    real = builtins.__import__

    def noted(name: str, *rest: Any, **more: Any) -> Any:
        imported.append(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(importlib, "import_module", noted)
    monkeypatch.setattr(builtins, "__import__", noted)
    for name in ("os.system", "os.Tensor", "tensorflow_datasets.core.features.Smell", "Tensor"):
        new: dict[str, Any] = {"pythonClassName": name, "tensor": {}}
        for feature in (new, {"type": name, "content": "{}"}):
            with pytest.raises(UnsupportedFeatureError) as error:
                schema_of({"bad": feature})
            assert f"feature 'steps/bad' of class {name}, encoding none: unknown class" in str(error.value)
    assert imported == []


@pytest.mark.parametrize(
    ("feature", "words"),
    [
        (tensor(["2"], "float32", "lzma"), "of class .*Tensor, encoding lzma: the encoding is not known"),
        (tensor(["2"], "complex64"), "dtype complex64 is not read"),
        (tensor(["2"], "string", "zlib"), "encoding zlib: text is not read in an encoding"),
        (tensor(["257"], "string"), r"text of shape \(257,\) is not read: .* of 1 to 256"),
        (tensor(["2147483647"] * 4, "string"), "text of shape"),
        ({"sequence": {"feature": tensor(["-1"], "int8")}}, r"values of shape \(-1,\) .* in a sequence"),
        ({"sequence": {"feature": {"image": {}}}}, r"\? frames a step are not read: .* known, 1 to 256"),
        ({"sequence": {"feature": {"image": {}}, "length": "257"}}, "257 frames a step are not read"),
        ({"sequence": {"feature": {"image": {}}, "length": "0"}}, "0 frames a step are not read"),
        ({"video": {}}, r"\? frames a step are not read"),
        ({"video": {"shape": {"dimensions": ["4", "8", "8"]}}}, r"a video has no shape \(4, 8, 8\)"),
        ({"video": {"dtype": "int64"}}, "videos of dtype int64 are not read"),
        ({"audio": {"lazyDecode": True}}, "files of sound are not read"),
        ({"image": {"dtype": "int64"}}, "images of dtype int64 are not read"),
        (
            {"smell": {}},
            r"of class \(not named\), encoding none: nothing known among its entries \['smell'\]",
        ),
    ],
)
def test_what_is_not_read_yet_is_named_with_its_class_and_encoding(feature: Any, words: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match="feature 'steps/bad'.*" + words):
        schema_of({"bad": feature})


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (b"\xff", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "feature '' must be an object"),
        (dict_of({}), "declares no 'steps'"),
        (dict_of({"steps": tensor([], "int8")}), "'steps' must be a sequence of dicts, got tensor"),
        (dict_of({"steps": {"sequence": {"feature": tensor([], "int8")}}}), "must be a sequence of dicts"),
        (dict_of({"steps": {"sequence": {}}}), "must be an object, got None"),
        (tensor([], "int8"), "the top must be a dict of features"),
        (dict_of({"x": tensor(["-2"], "int8")}), "a dimension of 'x' is '-2'"),
        (dict_of({"x": tensor(["99999999999999999999"], "int8")}), "a dimension of 'x'"),
        (dict_of({"x": tensor(["many"], "int8")}), "a dimension of 'x' is 'many'"),
    ],
)
def test_a_file_that_is_no_schema_of_episodes_is_refused(document: Any, words: str) -> None:
    with pytest.raises(DataFormatError, match=words):
        parse_features(document)


@pytest.mark.parametrize("size", [float("inf"), float("nan"), 1e400, "1e9", [], {}, -2, 1 << 40])
def test_a_dimension_that_is_no_size_is_an_error_of_the_file(size: object) -> None:
    leaf = {"tensor": {"shape": {"dimensions": [size]}, "dtype": "float32"}}
    steps = {"sequence": {"feature": {"featuresDict": {"features": {"x": leaf}}}}}
    with pytest.raises(DataFormatError, match="a dimension of"):
        parse_features({"featuresDict": {"features": {"steps": steps}}})


def test_a_value_beyond_every_memory_is_refused_before_anything_is_made_for_it() -> None:
    shape = {"dimensions": [str(2**31 - 1)] * 3}
    large = {"tensor": {"shape": shape, "dtype": "float32"}}
    inner = {"featuresDict": {"features": {"x": {"sequence": {"feature": large}}, "y": large}}}
    document = {"featuresDict": {"features": {"steps": {"sequence": {"feature": inner}}}}}
    with pytest.raises(DataFormatError, match=r"one value would take [0-9,]+ bytes"):
        parse_features(document)
