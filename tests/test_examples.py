"""Every script in ``examples/`` learns, also in its reduced form, which checks that by itself."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shared_data import bridge_path

FOLDER = Path(__file__).resolve().parents[1] / "examples"

# What each is run with. It raises SystemExit where it has learned too little; other seeds than those it has
# here do as well, so that rounding, which differs between machines, is of no account.
RUNS = [
    ("behaviour_cloning.py", ["--quick"]),
    ("behaviour_cloning.py", ["--quick", "--streaming"]),
    ("dqn_cartpole.py", ["--compare", "--quick"]),
    ("her_bitflip.py", ["--quick"]),
    ("recurrent.py", ["--quick"]),
    ("recurrent.py", ["--quick", "--memoryless"]),
    ("sac_pendulum.py", ["--quick"]),
]


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to run in; what a script does to torch is undone."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        yield tmp_path
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("script", "arguments"), RUNS, ids=[" ".join([name, *given]) for name, given in RUNS]
)
def test_an_example_learns_in_its_reduced_form(script: str, arguments: list[str], alone: Path) -> None:
    runpy.run_path(str(FOLDER / script))["main"](arguments)


def test_a_comparison_draws_its_curves(alone: Path) -> None:
    script = runpy.run_path(str(FOLDER / "dqn_cartpole.py"))
    curves = {"prioritized": [[(2000, 20.0), (4000, 480.0)]] * 2, "uniform": [[(2000, 20.0), (4000, 90.0)]]}
    script["plot"](curves, "curves.png")
    assert (alone / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_every_script_is_run() -> None:
    assert {path.name for path in FOLDER.glob("*.py")} == {script for script, _ in RUNS}


def test_behaviour_is_cloned_from_real_files_with_episodes_shorter_than_a_slice(
    alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = runpy.run_path(str(FOLDER / "behaviour_cloning.py"))
    script["main"](["--quick", "--data", str(bridge_path()), "--camera", "image_0", "--streaming"])
    assert "60 updates" in capsys.readouterr().out
