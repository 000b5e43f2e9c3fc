"""The public face: what ``replaybank`` exports, what importing it costs, and what is documented."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import replaybank
from patience import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = [name for name in replaybank.__all__ if not name.startswith("__")]

OPTIONAL = (
    *("av", "fsspec", "google_crc32c", "huggingface_hub", "PIL", "pyarrow", "requests", "rich", "simplejpeg"),
    *("jinja2", "matplotlib", "torchrl", "tqdm", "typer"),
)
"""What the core does without; only extras bring them."""

IN_A_NEW_PROCESS = """
import json, socket, sys

def refuse(*_):
    raise AssertionError("importing replaybank uses the network")

import torch, tensordict  # what they do is theirs
before = set(sys.modules)
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
import replaybank
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""


def test_all_names_what_can_be_imported_and_nothing_else() -> None:
    bound = {
        name
        for name in dir(replaybank)
        if not name.startswith("_") and not isinstance(getattr(replaybank, name), ModuleType)
    }
    assert bound - {"TYPE_CHECKING"} == set(PUBLIC)
    assert len(set(replaybank.__all__)) == len(replaybank.__all__)
    assert sorted(replaybank.__all__) == replaybank.__all__


def test_a_star_import_gives_every_public_name() -> None:
    names: dict[str, Any] = {}
    exec("from replaybank import *", names)
    assert set(PUBLIC) <= set(names)


def test_the_version_is_that_of_the_installed_package() -> None:
    assert replaybank.__version__ == metadata.version("replaybank")


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_says_what_it_is(name: str) -> None:
    thing = getattr(replaybank, name)
    assert thing.__module__.startswith("replaybank.")
    text = inspect.cleandoc(vars(thing).get("__doc__") or "" if isinstance(thing, type) else thing.__doc__)
    first = text.partition("\n")[0]
    assert first.endswith((".", ":")), f"{name} has the docstring {text!r:.80}"


@pytest.mark.parametrize("name", [name for name in PUBLIC if isinstance(getattr(replaybank, name), type)])
def test_every_public_method_says_what_it_does(name: str) -> None:
    silent = [
        member
        for base in getattr(replaybank, name).__mro__
        if base.__module__.startswith("replaybank.")
        for member, value in vars(base).items()
        if not member.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, (property, classmethod, staticmethod)))
        and not value.__doc__
    ]
    assert not silent


def test_importing_takes_no_optional_package_and_no_network() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_NEW_PROCESS], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert not set(json.loads(done.stdout)) & set(OPTIONAL)


def test_the_reference_lists_every_public_name_once() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    listed = re.findall(r"^\.\. auto(?:class|function|exception):: (\w+)$", page, re.MULTILINE)
    assert sorted(listed) == sorted(PUBLIC)


def test_packages_export_what_their_modules_have() -> None:
    for name in ("replaybank", "replaybank.datasets.openx", "replaybank.datasets.openx.sources"):
        package = importlib.import_module(name)
        assert all(hasattr(package, exported) for exported in package.__all__)


def test_importing_the_package_waits_with_torch_until_a_name_is_asked_for() -> None:
    script = """
import sys, replaybank
from replaybank import __version__, DataFormatError
import replaybank.errors
assert "torch" not in sys.modules
assert replaybank.weights.SumTree is replaybank.SumTree
assert "torch" in sys.modules
assert {"ReplayBuffer", "samplers", "__version__"} <= set(dir(replaybank))
try:
    replaybank.Nothing
except AttributeError as error:
    assert str(error) == "module 'replaybank' has no attribute 'Nothing'"
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "first",
    [
        "import replaybank.datasets.openx.convert",
        "from replaybank.datasets.openx.verify import verify",
        "import replaybank.datasets.openx as package; package.verify",
        "from replaybank import convert",
    ],
)
def test_a_function_hides_the_module_of_its_name(first: str) -> None:
    script = f"""
{first}
import replaybank.datasets.openx.convert
from replaybank.datasets.openx import convert, verify
import replaybank.datasets.openx.convert as again
import sys, types, replaybank
import replaybank.datasets.openx.verify
package = replaybank.datasets.openx
for name, found in (("convert", convert), ("verify", verify)):
    module = sys.modules["replaybank.datasets.openx." + name]
    assert type(found) is types.FunctionType and type(module) is types.ModuleType
    assert found is getattr(package, name) is getattr(module, name) is getattr(replaybank, name)
assert again is convert
assert "OpenXMixture" in dir(package) and "sources" in dir(package)
try:
    package.nothing
except AttributeError as error:
    assert str(error) == "module 'replaybank.datasets.openx' has no attribute 'nothing'"
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
