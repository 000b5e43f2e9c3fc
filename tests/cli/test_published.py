"""The commands on datasets by name, and on every form of publication."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from http_server import serving
from hub_shards import hub_episode, write_hub, write_tar
from replaybank import cli
from replaybank.datasets.openx.catalog import datasets
from replaybank.datasets.openx.files import read_manifest
from replaybank.datasets.openx.sources import connection
from replaybank.datasets.openx.sources.origins import HUB_VARIABLE, RLDS_VARIABLE

NAME = "cmu_stretch"


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "pause", lambda seconds: None)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def test_list_shows_all_datasets_with_robot_rate_size_entries_and_defects(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run(["list"]) == 0
    out = capsys.readouterr().out
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert datasets().keys() <= lines.keys()
    for part in ("WidowX", " 5 ", "416.1 GB", "natural_language_instruction", "outdated copy of BridgeData"):
        assert part in lines["bridge"]
    assert "blue first" in lines["utaustin_mutex"]


def test_list_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["id"] for entry in found] == list(datasets())
    assert found[2]["splits"]["train"]["episodes"] == 25460


def test_info_of_an_id_shows_what_is_known_without_a_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["info", "bridge"]) == 0
    out = capsys.readouterr().out
    for part in ("WidowX", "0.1.0", "25,460", "world_vector float32[3]", "480x640x3", "resolve/main/bridge"):
        assert part in out


def test_info_verify_and_convert_read_tar_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_hub(tmp_path / "utaustin_mutex", "utaustin_mutex")
    assert cli.run(["info", str(folder)]) == 0
    out = capsys.readouterr().out
    for part in ("tar shards", "observation/image", "PNG", "32 x 24", "do 2", "image has blue first"):
        assert part in out
    assert cli.run(["verify", str(folder)]) == 0
    assert "3 episodes, 12 steps are whole; nothing is wrong" in capsys.readouterr().out
    assert cli.run(["convert", str(folder), str(tmp_path / "out"), "--last-step", "drop", "-q"]) == 0
    assert read_manifest(tmp_path / "out").origin["corrections"] == {
        "bgr": [["observation", "image"]],
        "last_step": "drop",
    }
    assert cli.run(["info", str(tmp_path / "out")]) == 0


def test_verify_names_the_member_that_is_not_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R."
    write_tar(tmp_path / "arm_00000.tar", [hub_episode(0, 3), evil])
    assert cli.run(["verify", str(tmp_path)]) == cli.FAILED
    out = capsys.readouterr().out
    assert "member arm_00000_1.data.pickle: the pickle names os.system" in out
    assert "1 episodes, 3 steps are whole; problems: 1" in out


def test_convert_fetches_an_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_hub(tmp_path / "served/datasets/jxu124/OpenX-Embodiment/resolve/main" / NAME, NAME)
    with serving(tmp_path / "served") as server:
        monkeypatch.setenv(HUB_VARIABLE, server.url)
        assert cli.run(["convert", NAME, str(tmp_path / "out"), "--origin", "hub"]) == 0
    assert capsys.readouterr().out == f"{NAME}: 3 episodes, 12 steps in {tmp_path / 'out'}\n"


def test_without_a_network_an_id_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(RLDS_VARIABLE, "http://bucket.invalid/robotics")
    assert cli.run(["convert", NAME, str(tmp_path / "out")]) == cli.FAILED
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert f"http://bucket.invalid/robotics/{NAME}/0.1.0/dataset_info.json: the name of the " in printed.err
    assert list(tmp_path.iterdir()) == []


def test_a_mistyped_id_names_the_nearest_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["convert", "cmu_strech", str(tmp_path / "out")], ["info", "cmu_strech"]):
        assert cli.run(command) == cli.FAILED
        error = capsys.readouterr().err
        assert "cmu_strech: there is no such file or folder" in error
        assert "did you mean cmu_stretch" in error
