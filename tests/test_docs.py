"""What the documentation shows is so: pictures are those that the script draws, the README's examples run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from patience import PATIENCE
from replaybank.cli import app
from replaybank.demo.arm import write_arm_dataset

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)
PAGES = [ROOT / "README.md", *DOCS]


def test_the_pictures_are_those_that_the_script_draws(tmp_path: Path) -> None:
    script = ROOT / "docs" / "pictures" / "draw.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, timeout=PATIENCE)
    drawn = {path.relative_to(tmp_path): path.read_text("utf-8") for path in tmp_path.glob("*/*.*")}
    assert drawn == {path: (ROOT / "docs" / path).read_text("utf-8") for path in drawn}
    assert {path.name for path in script.parent.glob("*.svg")} <= {path.name for path in drawn}


def test_the_examples_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dataset = write_arm_dataset(tmp_path / "arm", episodes=2)
    examples = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert len(examples) == 2
    names: dict[str, object] = {}
    for example in examples:
        exec(example.replace("path/to/bridge_dataset/1.0.0", str(dataset)), names)
    batch = names["batch"]
    assert getattr(batch, "batch_size", None) == (256,)


def test_the_readme_gives_no_figure_that_the_page_on_costs_does_not() -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8").splitlines()
    costs = README[README.index("## What it costs") : README.index("## Where to go on")]
    rows = [line for line in costs.splitlines() if line.startswith("| ")]
    assert len(rows) > 3
    assert set(rows) <= set(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_from_page_to_page_lead_somewhere(page: Path) -> None:
    # Where to within a page is checked when the documentation is built.
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", text)
    local = [target for target in targets if "://" not in target]
    assert not [target for target in local if not (page.parent / target).exists()]


def test_the_page_on_the_command_line_has_a_row_for_every_command() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `replaybank (\w+)", page, re.MULTILINE))
    assert listed == set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
