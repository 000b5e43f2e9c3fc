"""Pickles: the same values as Python's own reader gives, and nothing is ever run."""

from __future__ import annotations

import io
import os
import pickle
import random
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from replaybank.datasets.openx.sources.pickle_instructions import HANDLERS
from replaybank.datasets.openx.sources.pickle_machine import Machine
from replaybank.datasets.openx.sources.pickled_values import Array, Picture, Refused
from replaybank.datasets.openx.sources.safe_pickle import loads
from replaybank.errors import DataFormatError, UnsafePickleError

PROTOCOLS = range(6)
PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)


def same(found: Any, given: Any) -> bool:
    """Whether two values are equal with all their types, dtypes and shapes."""
    if isinstance(given, np.ndarray):
        return (
            isinstance(found, np.ndarray)
            and found.dtype == given.dtype.newbyteorder("=")
            and found.shape == given.shape
            and found.tobytes() == given.astype(found.dtype).tobytes()
        )
    if type(found) is not type(given):
        return False
    if isinstance(given, dict):
        return found.keys() == given.keys() and all(same(found[key], given[key]) for key in given)
    if isinstance(given, (list, tuple)):
        return len(found) == len(given) and all(map(same, found, given))
    return bool(found == given) or (found != found and given != given)


NUMBERS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array([1.5, -2], ">f8"),
    np.array(3, np.int64),
    np.zeros((0, 3), np.uint8),
    np.array([True, False]),
    np.array(["ab", "c"]),
    np.array([b"x"]),
    np.array([1 + 2j], np.complex64),
    np.float16(0.5),
    np.uint8(200),
    np.bool_(True),
]
PLAIN = [
    None,
    True,
    0,
    -1,
    255,
    256,
    65536,
    -(2**31),
    2**40,
    -(2**63),
    1.5,
    b"",
    b"\x00\xff",
    "",
    "grün",
    "\n",
]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_values_read_as_python_reads_them(protocol: int) -> None:
    content = {"numbers": NUMBERS, "plain": PLAIN, "nested": {"a": [(1, (2,), ()), [], {}]}}
    assert same(loads(pickle.dumps(content, protocol), "x"), content)


plain = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.binary() | st.text()
trees = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4) | st.tuples(inner, inner)
    ),
    max_leaves=20,
)


@given(trees, st.sampled_from(PROTOCOLS))
def test_any_plain_value_reads_as_python_reads_it(value: Any, protocol: int) -> None:
    raw = pickle.dumps(value, protocol)
    expected = pickle.loads(raw)
    assert same(loads(raw, "x"), expected)


@pytest.mark.parametrize("protocol", [4, 5])
def test_sets_are_read(protocol: int) -> None:
    assert loads(pickle.dumps([{"a", "b"}, frozenset([b"c"])], protocol), "x") == [{"a", "b"}, {b"c"}]


def test_an_array_of_one_object_is_that_object() -> None:
    assert loads(pickle.dumps([np.array("up", object), np.array(["a", "b"], object)]), "x") == [
        "up",
        ["a", "b"],
    ]


def test_arrays_of_older_and_newer_numpys_are_one() -> None:
    raw = pickle.dumps(np.arange(3), 2)
    for core in (b"core", b"_core"):
        other = raw.replace(b"numpy._core.", b"numpy." + core + b".").replace(
            b"numpy.core.", b"numpy." + core + b"."
        )
        assert same(loads(other, "x"), np.arange(3))


def test_bytes_that_are_no_bools_are_true() -> None:
    raw = pickle.dumps(np.array([True, True]), 4).replace(b"C\x02\x01\x01", b"C\x02\x02\xff")
    found = loads(raw, "x")
    assert found.view(np.uint8).tolist() == [1, 1]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pillow_images_come_as_arrays_without_pillow(protocol: int) -> None:
    picture = Image.fromarray(PIXELS)
    stored = []
    for form in ("PNG", "JPEG"):
        file = io.BytesIO()
        picture.save(file, form)
        stored.append(Image.open(file))
    modes = [picture, *stored, *(picture.convert(mode) for mode in ("L", "RGBA", "P", "F", "I"))]
    found = loads(pickle.dumps(modes, protocol), "x")
    for array, image in zip(found, modes, strict=True):
        expected = np.asarray(image.convert("RGB") if image.mode == "P" else image)
        assert array.shape == (5, 7, expected.shape[2] if expected.ndim == 3 else 1)
        assert np.array_equal(array.reshape(expected.shape), expected)
    depth = Image.fromarray(np.arange(6, dtype=np.uint16).reshape(2, 3))
    assert loads(pickle.dumps(depth, protocol), "x")[:, :, 0].tolist() == [[0, 1, 2], [3, 4, 5]]


class Call:
    """Pickles as a call of something."""

    def __init__(self, called: Callable[..., Any], *arguments: Any) -> None:
        self.reduced = called, arguments

    def __reduce__(self) -> Any:
        return self.reduced


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("content", "name"),
    [
        (Call(os.system, "true"), r"(posix|nt)\.system"),
        (Call(eval, "1"), r"\w+\.eval"),
        (Call(np.load, "x"), r"numpy\S*\.load"),
        (subprocess.Popen, r"\w+\.Popen"),
        (Path("/x"), r"pathlib\S*\.\w+"),
        (bytearray, r"\w+\.bytearray"),
        (np.ma.masked_array([1]), r"numpy\.ma\.\S+"),
    ],
)
def test_c87_whatever_is_not_data_is_refused_by_its_name(protocol: int, content: Any, name: str) -> None:
    with pytest.raises(UnsafePickleError, match=rf"a\.pickle: the pickle names {name} at byte \d+"):
        loads(pickle.dumps({"steps": [content]}, protocol), "a.pickle")


def test_c87_a_pickle_that_names_os_system_is_refused_and_nothing_is_run(tmp_path: Path) -> None:
    made = tmp_path / "made"
    command = f"touch {made}".encode()
    raw = b"cos\nsystem\n(X" + len(command).to_bytes(4, "little") + command + b"tR."
    before = set(sys.modules)
    with pytest.raises(
        UnsafePickleError, match=r"the pickle names os\.system at byte \d+.*nothing of it was run"
    ):
        loads(raw, "a.pickle")
    assert not made.exists()
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    "raw",
    [
        b"P12\n.",
        b"\x80\x04K\x01Q.",
        b"\x80\x04\x82\x01.",
        b"\x80\x04\x83\x01\x00.",
        b"\x80\x05\x97.",
        b"\x80\x05N\x98.",
    ],
    ids=["persid", "binpersid", "ext1", "ext2", "buffer", "readonly"],
)
def test_whatever_lies_outside_the_pickle_is_refused(raw: bytes) -> None:
    with pytest.raises(UnsafePickleError, match="lies outside it"):
        loads(raw, "x")


def array_of(shape: Any, code: str = "f4", content: Any = b"\0" * 12, state: Any = None) -> bytes:
    """A pickle of an array whose state is as given."""

    class Hostile:
        def __reduce__(self) -> Any:
            made = np.zeros(0, np.float32).__reduce__()
            assert isinstance(made, tuple)
            return made[0], made[1], state or (1, shape, np.dtype(code), False, content)

    return pickle.dumps(Hostile(), 4)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (array_of((4,)), r"float32 and shape \(4\) over 12 bytes"),
        (array_of((-1, -3)), r"shape \(-1, -3\)"),
        (array_of((2**62, 2**62, 0)), "shape"),
        (array_of((1,) * 33), "shape"),
        (array_of((3.0,)), r"shape \(3\.0\)"),
        (array_of((3,), content=[1, 2, 3]), "an array over list"),
        (array_of((3,), code="O", content=b"123"), "without that many objects"),
        (array_of((1,), code="U3", content=b"\xff" * 12), "letters that do not exist"),
        (array_of((1,), code="M8[s]", content=b"\0" * 8), "numpy.dtype"),
        (array_of(None, state=(1, 2)), "the state"),
        (pickle.dumps(np.zeros(2, [("a", "f4")])), "numpy.dtype of 'V4'"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", "a value of 9223372036854775807 bytes"),
        (b"\x80\x05\x96\xff\xff\xff\xff\x00\x00\x00\x00.", "a value of 4294967295 bytes where 1 are left"),
        (b"\x8b\xff\xff\xff\x7f.", "an integer of 2147483647 bytes"),
        (b"L" + b"9" * 200 + b"\n.", "a number of 200 digits"),
        (b"r\xff\xff\xff\x7f.", "not there"),
        (b"]\x94h\x00a.", "a container that holds itself"),
        (b"]" * 100 + b"a" * 99 + b".", "more than 32 deep"),
        (b"]" * 2_000_000 + b".", "more objects than 2000001 bytes can stand for"),
        (b"}K\x01K\x02s.", "a key of type int"),
        (b"]K\x01K\x02s.", "items for a dict that is of type list"),
        (b"N(K\x01e.", "items for a list that is of type NoneType"),
        (b"h\x05.", "was not remembered"),
        (b"Np5\n.", "remembered under a number that 5 bytes do not need"),
        (b"Np-1\n.", "remembered under a number"),
        (b"Ng%d\n." % 2**100, "remembered under a number"),
        (b"t.", "no beginning"),
        (b"(\x85.", "not there"),
        (b"\x80\x09.", "protocol 9"),
        (b"\x80\x04N", "cut short"),
        (b"\x80\x04J\x01", "cut short"),
        (b"", "cut short"),
        (b"\xfe.", "0xfe"),
        (b"S'a'\n.", "0x53"),
        (b"NNb.", "a state for a value of type NoneType"),
        (b"N)R.", "a call of a NoneType"),
        (b"cnumpy\nndarray\n.", "a class or a dtype"),
        (b"cnumpy\nndarray\n)\x81.", "neither an array nor an image"),
        (b"cPIL.Image\nImage\n)\x81.", "never filled"),
        (b"V\\ud800\\u00\n.", "a text that cannot be read"),
    ],
)
def test_hostile_pickles_are_errors(raw: bytes, message: str) -> None:
    with pytest.raises(DataFormatError, match=rf"^x: the pickle holds .*{message}"):
        loads(raw, "x")


def test_numbers_of_remembered_values_cannot_be_made_to_collide() -> None:
    same_hash = [sys.hash_info.modulus * number for number in range(1, 50)]
    assert {hash(number) for number in same_hash} == {0}
    with pytest.raises(DataFormatError, match="remembered under a number"):
        loads(b"N" + b"".join(b"p%d\n" % number for number in same_hash) + b".", "member")


def test_a_value_that_is_referred_to_again_and_again_takes_no_time() -> None:
    doubled = b"\x80\x04)\x94" + b"".join(
        b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86\x94" for n in range(25)
    )
    value = loads(doubled + b".", "x")
    for _ in range(25):
        assert len(value) == 2
        value = value[0]
    assert value == ()


def test_a_thousand_mutated_pickles_run_nothing_and_crash_nothing() -> None:
    script = Path(__file__).with_name("fuzz_pickles.py")
    done = subprocess.run(
        [sys.executable, str(script), "3000", "7"], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in ("'read'", "'UnsafePickleError'", "'DataFormatError'"))
    assert "no message" not in done.stdout


def outcome(raw: bytes, *, native: bool) -> Any:
    """What a machine makes of a pickle: where it stands at the end, or what it says."""
    machine = Machine(raw, "x")
    try:
        value = machine.run(HANDLERS, native=native)
    except (Refused, UnsafePickleError) as error:
        return type(error), str(error).split(" at byte")[0]
    return describe(value, []), len(machine.stack), machine.floor, list(machine.memo)


def describe(value: Any, above: list[int]) -> Any:
    """A value by its types, with what stands for arrays by what they hold."""
    if id(value) in above or len(above) > 40:
        return "itself"
    above = [*above, id(value)]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [describe(item, above) for item in value]
    if isinstance(value, dict):
        return "dict", [(key, describe(item, above)) for key, item in value.items()]
    if isinstance(value, (Array, Picture)):
        return type(value).__name__, describe(value.value, above)
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return type(value).__name__, repr(value) if isinstance(value, (bool, int, float, str, bytes)) else ""


def test_the_native_loop_does_what_the_handlers_do() -> None:
    fuzz = runpy.run_path(str(Path(__file__).with_name("fuzz_pickles.py")))
    rng = random.Random(3)
    raws = [pickle.dumps(value, protocol) for value in fuzz["_episodes"]() for protocol in PROTOCOLS]
    kinds = set()
    for number in range(3000):
        raw = raws[number] if number < len(raws) else fuzz["mutated"](rng.choice(raws), raws, rng)
        found, wanted = outcome(raw, native=True), outcome(raw, native=False)
        assert found == wanted, raw
        kinds.add(found[0] if isinstance(found[0], type) else "read")
    assert kinds == {"read", Refused, UnsafePickleError}
