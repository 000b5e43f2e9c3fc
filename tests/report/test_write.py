"""The page as a file: whole, within its size, escaped, and written in one step."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from memory_source import FIELDS, Frames, MemorySource, episode
from patience import PATIENCE
from replaybank import ListStorage, ReplayBuffer
from replaybank.datasets.openx.sources.base import Episode
from replaybank.demo.arm import write_arm_dataset
from replaybank.report import write_report
from shared_data import bridge_path

HOSTILE = '</script><script>document.title="run"</script><img src=x onerror=alert(1)>"\'&{{7*7}}'


def hostile(number: int) -> Episode:
    one = episode(number, 3)
    return replace(
        one, steps={**one.steps, ("language_instruction",): [HOSTILE] * 3}, where=f"<b>{HOSTILE}</b>"
    )


def page_of(source: Any, tmp_path: Path, **options: Any) -> str:
    return write_report(source, tmp_path / "page.html", **options).read_text(encoding="utf-8")


@pytest.fixture
def source() -> MemorySource:
    return MemorySource([[episode(n, 4) for n in range(8)]])


def test_text_of_the_data_is_never_markup(tmp_path: Path) -> None:
    source = MemorySource([[hostile(n) for n in range(2)]], {**FIELDS})
    source.name = f"<i>{HOSTILE}"
    page = page_of(source, tmp_path)
    assert "<i>" not in page
    assert "<img" not in page
    assert "onerror=alert" in page  # it is shown, as text
    assert "{{" not in page.replace("{{7*7}}", "")
    assert "49" not in re.findall(r"&amp;(\w*)", page)
    # The page's own script, and the data of the players, which is no script to a browser.
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", page, flags=re.S)
    assert [attributes for attributes, _ in scripts] == [' type="application/json"'] * 2 + [""]
    for _, content in scripts[:2]:
        assert json.loads(content)["texts"][1] == [[0, HOSTILE]]


def test_only_the_pages_own_script_may_run_and_nothing_is_loaded(
    source: MemorySource, tmp_path: Path
) -> None:
    page = page_of(source, tmp_path)
    script = re.findall(r"<script>(.*?)</script>", page, flags=re.S)[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page
    )
    assert re.findall(r'(?:src|href)=(?!"#|"data:)', page.replace(script, "")) == []
    assert set(re.findall(r"url\((.{5})", page)) <= {"data:", "#p0-p"} | set(
        re.findall(r"url\((#p\d.{2})", page)
    )
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page


def test_the_page_is_never_larger_than_allowed(tmp_path: Path) -> None:
    noise = np.random.default_rng(0)
    fields = {
        **FIELDS,
        ("observation", "image"): replace(FIELDS["observation", "image"], shape=(96, 96, 3)),
    }

    def large(number: int) -> Episode:
        one = episode(number, 30)
        frames = noise.integers(0, 255, (30, 96, 96, 3)).astype(np.uint8)
        camera = Frames(frames)
        return replace(one, steps={**one.steps, ("observation", "image"): camera})

    source = MemorySource([[large(n) for n in range(3)]], fields)
    sizes = []
    for allowed in (8.0, 0.6, 0.16):
        written = write_report(source, tmp_path / "page.html", max_megabytes=allowed)
        sizes.append(written.stat().st_size)
        assert sizes[-1] <= allowed * 1e6
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[1] > sizes[2]
    assert sizes[1] > 0.3e6  # what is allowed is used
    with pytest.raises(ValueError, match=r"MB without any frame, more than the 0\.01 MB"):
        write_report(source, tmp_path / "page.html", max_megabytes=0.01)
    assert (tmp_path / "page.html").stat().st_size == sizes[-1]  # the page before is still there
    assert os.listdir(tmp_path) == ["page.html"]


def test_the_same_seed_gives_the_same_page(source: MemorySource, tmp_path: Path) -> None:
    first, again, other = (page_of(source, tmp_path, seed=seed, episodes=2) for seed in (0, 0, 1))
    assert first == again
    assert first != other


@pytest.mark.parametrize("episodes", [0, 1, 100])
def test_as_many_episodes_are_shown_as_asked_for(source: MemorySource, tmp_path: Path, episodes: int) -> None:
    assert page_of(source, tmp_path, episodes=episodes).count("<article") == min(episodes, 8)


def test_a_page_that_cannot_be_written_leaves_the_one_before(
    source: MemorySource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.html"
    page.write_text("before")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(source, page)
    assert page.read_text() == "before"
    assert os.listdir(tmp_path) == ["page.html"]


def test_what_makes_no_sense_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    class Unread:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

    unread: Any = Unread()
    with pytest.raises(IsADirectoryError, match=r"is a folder: give a file to write, such as .*report\.html"):
        write_report(unread, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there is no such folder to write page\.html into"):
        write_report(unread, tmp_path / "nothing" / "page.html")
    for options, name in (({"episodes": -1}, "episodes"), ({"max_megabytes": 0}, "max_megabytes")):
        with pytest.raises(ValueError, match=name):
            write_report(unread, tmp_path / "page.html", **options)  # type: ignore[arg-type]


def test_a_missing_package_is_told_with_what_to_install(
    source: MemorySource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("jinja2", "PIL") else there(name)
    )
    with pytest.raises(ImportError, match=r"needs Jinja2, Pillow: pip install 'replaybank\[report\]'"):
        write_report(source, tmp_path / "page.html")


def test_paths_that_hold_nothing_are_told(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    with pytest.raises(FileNotFoundError, match="there is no such file or folder"):
        write_report(tmp_path / "nothing", out)
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileNotFoundError, match=r"nor the checkpoint of a buffer \(CURRENT\)"):
        write_report(tmp_path / "folder", out)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="give the folder of a dataset or of a checkpoint"):
        write_report(tmp_path / "file", out)
    buffer = ReplayBuffer(storage=ListStorage(4), batch_size=1)
    buffer.add(torch.zeros(1))
    buffer.dumps(tmp_path / "saved")
    with pytest.raises(ValueError, match="has no splits"):
        write_report(tmp_path / "saved", out, split="test")
    assert not out.exists()


def test_progress_ends_where_it_said(source: MemorySource, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    page_of(source, tmp_path, episodes=2, on_progress=lambda done, of: told.append((done, of)))
    assert told == [(n, 10) for n in range(1, 11)]  # eight episodes, one camera of two


def test_an_arm_has_nothing_wrong_but_its_limits(tmp_path: Path) -> None:
    page = page_of(write_arm_dataset(tmp_path / "arm", episodes=5), tmp_path)
    titles = re.findall(r"<strong>(.*?)</strong><span", page)
    assert [re.sub(r"[\d,]+", "N", title) for title in titles] == [
        "Action numbers were cut off at a limit: N values lie exactly there."
    ]


def test_the_faults_of_the_bridge_sample_are_found(tmp_path: Path) -> None:
    page = page_of(bridge_path(), tmp_path)
    titles = re.findall(r"<strong>(.*?)</strong><span", page)
    assert titles == [
        "Camera observation/image_3 is black in all 25 episodes that were looked at.",
        "Every reward is zero: all 250 steps.",
        "No episode is marked as terminated: all 25 episodes ended by truncation.",
        "is_last is not set on the last step of an episode (25 times).",
    ]


def test_a_dataset_without_episodes_makes_a_page(tmp_path: Path) -> None:
    page = page_of(MemorySource([[]]), tmp_path)
    assert "all 0 episodes" in page
    assert "<article" not in page


def test_flags_and_whole_numbers_that_never_change_are_told(tmp_path: Path) -> None:
    def still(number: int) -> Episode:
        one = episode(number, 3)
        return replace(one, steps={**one.steps, ("action",): np.ones((3, 2), bool)})

    fields = {**FIELDS, ("action",): replace(FIELDS["action",], dtype=np.dtype(bool))}
    page = page_of(MemorySource([[still(n) for n in range(2)]], fields), tmp_path)
    assert "2 of 2 action numbers never change." in page


def test_values_whose_squares_are_no_numbers_are_told_and_left_out_of_plots(tmp_path: Path) -> None:
    length = 40
    huge = np.full((length, 2), 1.7e308)
    huge[::2] *= -1
    one = episode(1, length)
    steps = {**one.steps, ("action",): huge, ("reward",): np.full(length, 1.7e308)}
    fields = {**FIELDS, ("reward",): replace(FIELDS["reward",], dtype=np.dtype("float64"))}
    page = page_of(MemorySource([[replace(one, steps=steps), episode(2, 30)]], fields), tmp_path)
    assert "80 values are NaN, infinite or beyond 1e+100 in action" in page


def test_a_page_goes_into_what_is_no_file_and_through_links(source: MemorySource, tmp_path: Path) -> None:
    expected = page_of(source, tmp_path).encode()
    (tmp_path / "real").mkdir()
    (tmp_path / "real/page.html").touch()
    (tmp_path / "link.html").symlink_to("real/page.html")
    assert write_report(source, tmp_path / "link.html") == tmp_path / "link.html"
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "real/page.html").read_bytes() == expected
    os.mkfifo(tmp_path / "pipe")
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_bytes()), daemon=True)
    reader.start()
    write_report(source, tmp_path / "pipe")
    reader.join(PATIENCE)
    assert got == [expected]
    assert (tmp_path / "pipe").is_fifo()
    if Path("/dev/full").exists():
        (tmp_path / "full").symlink_to("/dev/full")
        with pytest.raises(OSError, match=r"No space left.*full"):
            write_report(source, tmp_path / "full")


def test_a_name_may_be_as_long_as_names_can_be(source: MemorySource, tmp_path: Path) -> None:
    name = "\N{LATIN SMALL LETTER E WITH ACUTE}" * 125 + ".html"
    assert write_report(source, tmp_path / name).stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == [name]
