"""Datasets by their names, from servers laid out like the bucket and like the hub."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from http_server import WebServer, serving
from hub_shards import write_hub
from lerobot_files import write_lerobot
from patience import PATIENCE
from replaybank.cli import run
from replaybank.datasets.openx.convert import convert
from replaybank.datasets.openx.files import read_manifest
from replaybank.datasets.openx.replay import OpenXExperienceReplay
from replaybank.datasets.openx.sources import connection
from replaybank.datasets.openx.sources.base import FieldSpec, Key
from replaybank.datasets.openx.sources.download import KEPT_PART, DownloadedSource, download
from replaybank.datasets.openx.sources.hub_tar import HubTarSource, is_hub_tar
from replaybank.datasets.openx.sources.lerobot import LeRobotSource
from replaybank.datasets.openx.sources.open import open_source
from replaybank.datasets.openx.sources.origins import HUB_VARIABLE, RLDS_VARIABLE
from replaybank.datasets.openx.sources.rlds import RLDSSource
from replaybank.datasets.openx.sources.rlds_writer import RLDSWriter
from replaybank.errors import DataFormatError

NAME = "nyu_rot_dataset_converted_externally_to_rlds"
FIELDS: dict[Key, FieldSpec] = {
    ("observation", "image"): FieldSpec("image", (16, 16, 3), np.dtype("uint8")),
    ("action",): FieldSpec("tensor", (2,), np.dtype("float32")),
}
WRITTEN = (4, 3, 5, 2)
LENGTHS = (4, 5, 3, 2)
"""In the order of the shards."""


def write_rlds(folder: Path, shards: int = 2) -> Path:
    with RLDSWriter(folder, NAME, version="0.1.0", fields=FIELDS, shards=shards) as writer:
        for number, length in enumerate(WRITTEN):
            writer.write(
                {
                    ("observation", "image"): np.full((length, 16, 16, 3), 40 * number, np.uint8),
                    ("action",): np.full((length, 2), number, np.float32),
                }
            )
    return folder


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    served = tmp_path / "served"
    write_rlds(served / "robotics" / NAME / "0.1.0")
    write_hub(served / "datasets/jxu124/OpenX-Embodiment/resolve/main" / NAME, NAME)
    monkeypatch.setattr(connection, "pause", lambda seconds: None)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(served) as running:
        monkeypatch.setenv(RLDS_VARIABLE, f"{running.url}/robotics/")
        monkeypatch.setenv(HUB_VARIABLE, running.url)
        yield running


def stored(root: Path, **arguments: Any) -> OpenXExperienceReplay:
    return OpenXExperienceReplay(NAME, root=root, **arguments)


def test_a_dataset_is_downloaded_by_its_name(server: WebServer, tmp_path: Path) -> None:
    root = tmp_path / "root"
    replay = stored(root, download=True)
    assert [len(replay.episode(n)) for n in range(4)] == list(LENGTHS)
    assert replay.episode(1)["action"].unique().tolist() == [2.0]
    assert {path.name for path in root.iterdir()} == {NAME}  # the raw shards are gone
    direct = convert(RLDSSource(tmp_path / "served/robotics" / NAME / "0.1.0"), tmp_path / "direct")
    assert replay.dataset.manifest == direct
    for file in (tmp_path / "direct").iterdir():
        assert (root / NAME / file.name).read_bytes() == file.read_bytes()


def test_what_is_there_is_not_downloaded_again_unless_forced(server: WebServer, tmp_path: Path) -> None:
    stored(tmp_path / "root", download=True)
    asked = len(server.log)
    stored(tmp_path / "root", download=True)
    stored(tmp_path / "root", streaming=False)
    stored(tmp_path / "root", streaming=False, source="hub")
    assert len(server.log) == asked
    stored(tmp_path / "root", download="force")
    assert len(server.log) > asked


def test_the_hub_is_asked_until_a_number_is_not_there(server: WebServer, tmp_path: Path) -> None:
    replay = stored(tmp_path / "root", download=True, source="hub")
    assert replay.dataset.manifest.origin["kind"] == "HubTarSource"
    assert [len(replay.episode(n)) for n in range(3)] == [4, 3, 5]
    shard = f"/datasets/jxu124/OpenX-Embodiment/resolve/main/{NAME}/{NAME}_0000"
    assert {path for path, _ in server.log} >= {f"{shard}{n}.tar" for n in range(3)}
    assert not any(path.startswith(f"{shard}3") for path, _ in server.log)


def test_nothing_is_fetched_that_was_not_asked_for(server: WebServer, tmp_path: Path) -> None:
    for source in (None, "rlds", "hub"):
        with pytest.raises(FileNotFoundError, match="pass download=True"):
            stored(tmp_path / "root", streaming=False, source=source)
    assert server.log == []


@pytest.mark.parametrize("origin", ["rlds", "hub"])
def test_a_network_that_drops_stalls_and_refuses_changes_nothing(
    server: WebServer, tmp_path: Path, origin: str
) -> None:
    convert(origin, tmp_path / "calm", dataset_id=NAME)
    server.faults.drop, server.faults.drop_after = 4, 700
    server.faults.end_early = 2
    server.faults.busy = 2
    server.faults.delay = 0.001
    convert(origin, tmp_path / "stormy", dataset_id=NAME)
    for file in (tmp_path / "calm").iterdir():
        assert (tmp_path / "stormy" / file.name).read_bytes() == file.read_bytes()
    assert not (tmp_path / "stormy.download").exists()


def test_c82_a_download_that_was_given_up_is_never_taken_for_complete_and_goes_on(
    server: WebServer, tmp_path: Path
) -> None:
    server.faults.stuck = "-00001-of-00002"
    root = tmp_path / "root"
    with pytest.raises(ConnectionError, match=f"{server.url}/.*-00001-of-00002: the server answers 503"):
        stored(root, download=True)
    with pytest.raises(DataFormatError, match=r"was not finished \(1 of 2 shards"):
        stored(root, streaming=False)
    server.faults.stuck = None
    asked = len(server.log)
    assert stored(root, download=True).num_episodes == 4
    fetched = [path for path, wanted in server.log[asked:] if wanted != "bytes=0-0"]
    assert not any(path.endswith("-00000-of-00002") for path in fetched)  # it was done
    convert(NAME, tmp_path / "whole")
    for file in (tmp_path / "whole").iterdir():
        assert (root / NAME / file.name).read_bytes() == file.read_bytes()


def test_a_shard_whose_conversion_was_interrupted_is_not_fetched_again(
    server: WebServer, tmp_path: Path
) -> None:
    class Killed(RLDSSource):
        def episodes(self, shard: Any, start: int = 0) -> Any:
            for number, episode in enumerate(super().episodes(shard, start)):
                if number == 1:
                    raise KeyboardInterrupt
                yield episode

    folder = tmp_path / "out.download"
    killed = DownloadedSource(Killed(f"{server.url}/robotics/{NAME}/0.1.0"), folder)
    killed.kind = "RLDSSource"
    with pytest.raises(KeyboardInterrupt):
        convert(killed, tmp_path / "out")
    assert (folder / f"{NAME}-train.tfrecord-00000-of-00002").is_file()
    asked = len(server.log)
    convert(NAME, tmp_path / "out")
    paths = [path for path, wanted in server.log[asked:] if wanted != "bytes=0-0"]
    assert not any(path.endswith("00000-of-00002") for path in paths)
    assert not folder.exists()
    assert read_manifest(tmp_path / "out").episodes == 4


@pytest.mark.parametrize("origin", ["rlds", "hub", None])
def test_a_dataset_is_streamed_by_its_name_though_the_network_breaks(
    server: WebServer, tmp_path: Path, origin: str | None
) -> None:
    convert(origin or "rlds", tmp_path / NAME, dataset_id=NAME)
    whole = stored(tmp_path, streaming=False)
    expected = [whole.episode(number)["action"] for number in range(whole.num_episodes)]
    server.faults.drop, server.faults.drop_after = 3, 700
    server.faults.end_early = server.faults.busy = 2
    server.faults.delay = 0.001
    streamed = OpenXExperienceReplay(NAME, source=origin)
    for _ in range(2):
        given = sorted((batch["action"].tolist() for batch in streamed), key=repr)
        assert given == sorted((action.tolist() for action in expected), key=repr)
    assert not list(tmp_path.glob("*.download"))


def test_a_stream_whose_server_goes_away_names_the_url_and_goes_on_when_it_is_back(server: WebServer) -> None:
    streamed = OpenXExperienceReplay(NAME, 1, shuffle=False, prefetch=0, num_workers=0)
    server.faults.stuck = "00001-of-00002"
    given = [int(streamed.sample()["episode"]) for _ in range(2)]
    for _ in range(2):
        with pytest.raises(OSError, match=r"http://127.0.0.1:\d+/robotics/.*-00001-of-00002"):
            streamed.sample()
    server.faults.stuck = None
    given += [int(streamed.sample()["episode"]) for _ in range(2)]
    assert given == [0, 1, 2, 3]
    streamed.close()


def test_urls_of_datasets_are_read_where_they_are(server: WebServer) -> None:
    rlds = open_source(f"{server.url}/robotics/{NAME}/0.1.0")
    assert isinstance(rlds, RLDSSource)
    assert [episode.length for shard in rlds.shards() for episode in rlds.episodes(shard)] == list(LENGTHS)
    hub = f"{server.url}/datasets/jxu124/OpenX-Embodiment/resolve/main/{NAME}"
    for url, count, steps in ((hub, 2, 12), (f"{hub}/{NAME}_00001.tar", 1, 5)):
        source = open_source(url)
        assert isinstance(source, HubTarSource)
        assert (source.name, len(source.shards())) == (NAME, count)
        assert sum(e.length for shard in source.shards() for e in source.episodes(shard)) == steps
    assert isinstance(open_source("gs://gresearch/robotics/" + NAME + "/0.1.0"), RLDSSource)
    assert not is_hub_tar(f"{server.url}/robotics")


def test_a_lerobot_dataset_of_the_hub_goes_by_its_repository(server: WebServer, tmp_path: Path) -> None:
    folder = tmp_path / "served/datasets/user/push/resolve/main"
    write_lerobot(folder, "v3.0", LENGTHS)
    root = tmp_path / "root"
    with pytest.raises(FileNotFoundError, match="pass download=True"):
        OpenXExperienceReplay("user/push", root=root, source="lerobot", streaming=False)
    made = [
        OpenXExperienceReplay("user/push", root=root, source="lerobot", download=True),
        OpenXExperienceReplay("user/push", root=tmp_path / "by id alone", download=True),
        OpenXExperienceReplay("user/push", root=root, streaming=False),
    ]
    for replay in made:
        assert [len(replay.episode(n)) for n in range(len(LENGTHS))] == list(LENGTHS)
        assert replay.dataset.manifest == made[0].dataset.manifest
    assert made[0].dataset.manifest.name == "push"
    assert (root / "user/push/manifest.json").is_file()
    for place in ("user/push", str(folder), f"{server.url}/datasets/user/push/resolve/main"):
        source = open_source("lerobot", place)
        assert isinstance(source, LeRobotSource)
        assert sum(e.length for shard in source.shards() for e in source.episodes(shard)) == sum(LENGTHS)
    assert convert("lerobot", tmp_path / "direct", dataset_id="user/push").name == "push"
    assert run(["convert", "user/push", str(tmp_path / "typed"), "--origin", "lerobot", "--quiet"]) == 0


def test_names_that_are_none_are_errors_that_help(server: WebServer, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no .* dataset 'nyu_rot'; did you mean nyu_rot_data"):
        OpenXExperienceReplay("nyu_rot", root=tmp_path, download=True)
    with pytest.raises(ValueError, match=r"no LeRobot copy of bridge: .* repository \('user/name'\)"):
        open_source("lerobot", "bridge")
    with pytest.raises(ValueError, match=r"by its repository on the hub .* got 'pusht'"):
        open_source("lerobot", "pusht")
    with pytest.raises(FileNotFoundError, match="no LeRobot dataset at /nowhere/pusht"):
        open_source("lerobot", "/nowhere/pusht")
    with pytest.raises(FileNotFoundError, match=r"no LeRobot dataset at .*/user/nothing/resolve/main"):
        open_source("lerobot", "user/nothing")
    with pytest.raises(FileNotFoundError, match=r"user/nothing: .*source='lerobot', dataset_id='user"):
        open_source("user/nothing")
    for outside in ("../bridge", "a/b/c", "a/..", "/bridge"):
        with pytest.raises(ValueError, match="it is no path"):
            OpenXExperienceReplay(outside, root=tmp_path, source="lerobot", download=True)
    with pytest.raises(FileNotFoundError, match=r"brigde: there is no such file .* did you mean bridge"):
        open_source("brigde")
    with pytest.raises(ValueError, match="given by source="):
        open_source()
    with pytest.raises(FileNotFoundError, match=r"neither a converted .* nor one of RLDS .*, tar shards"):
        open_source(tmp_path)
    with pytest.raises(FileNotFoundError, match=f"{server.url}/nothing: it is neither"):
        open_source(f"{server.url}/nothing")
    with pytest.raises(ValueError, match="no split 'val'"):
        open_source(NAME, split="val")


def test_without_a_network_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(connection, "pause", lambda seconds: None)
    monkeypatch.setenv(RLDS_VARIABLE, "http://bucket.invalid/robotics")
    with pytest.raises(ConnectionError, match=r"http://bucket\.invalid/robotics/bridge/0\.1\.0/.*a network"):
        OpenXExperienceReplay("bridge", root=tmp_path, download=True)
    assert not (tmp_path / "bridge").exists()


def write_growing(folder: Path) -> Path:
    """Lists that are longer in the second of two shards than in the first."""
    values: dict[Key, FieldSpec] = {
        ("action",): FieldSpec("tensor", (2,), np.dtype("float32")),
        ("x",): FieldSpec("tensor", (-1,), np.dtype("float32"), ragged=1),
    }
    with RLDSWriter(folder, NAME, version="0.1.0", fields=values, shards=2) as writer:
        for number in range(4):
            lists = [np.arange(number + 1 + 3 * (number % 2), dtype=np.float32)] * 2
            writer.write({("action",): np.zeros((2, 2), np.float32), ("x",): lists})
    return folder


def bodies(server: WebServer) -> list[str]:
    """File names of what was fetched, beyond a first byte."""
    return [path.rpartition("/")[2] for path, wanted in server.log if wanted != "bytes=0-0"]


@pytest.mark.parametrize("as_source", [True, False])
def test_shards_that_are_looked_at_for_their_longest_list_are_fetched_once(
    server: WebServer, tmp_path: Path, as_source: bool
) -> None:
    path = write_growing(tmp_path / "served/growing")
    url = f"{server.url}/growing"
    convert(path, tmp_path / "local")
    made = convert(RLDSSource(url) if as_source else url, tmp_path / "out")
    assert made.episodes == 4
    fetched = [name for name in bodies(server) if "tfrecord" in name]
    assert sorted(fetched) == sorted(set(fetched))
    assert not (tmp_path / "out.download").exists()
    for file in (tmp_path / "local").glob("*.bin"):
        assert file.read_bytes() == (tmp_path / "out" / file.name).read_bytes()


def test_they_are_fetched_twice_where_the_disk_has_little_room(
    server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_growing(tmp_path / "served/growing")
    held: list[set[str]] = []
    size = max(file.stat().st_size for file in path.glob("*.tfrecord*"))
    free = shutil.disk_usage(tmp_path)._replace(free=KEPT_PART * size)
    real = DownloadedSource.episodes

    def noted(self: DownloadedSource, shard: Any, start: int = 0) -> Any:
        held.append({file.name for file in (tmp_path / "out.download").glob("*tfrecord*")})
        return real(self, shard, start)

    monkeypatch.setattr(DownloadedSource, "episodes", noted)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    convert(f"{server.url}/growing", tmp_path / "out")
    fetched = [name for name in bodies(server) if "tfrecord" in name]
    assert (len(fetched), len(set(fetched))) == (3, 2)
    assert max(map(len, held)) == 1


def test_a_conversion_that_goes_on_does_not_look_at_all_lists_again(
    server: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_growing(tmp_path / "served/growing")
    url = f"{server.url}/growing"
    convert(url, tmp_path / "whole")
    monkeypatch.setattr("replaybank.datasets.openx.conveyor.SAVE_SECONDS", -1.0)
    real = DownloadedSource.episodes
    calls = []

    def stopped(self: DownloadedSource, shard: Any, start: int = 0) -> Any:
        calls.append(shard.number)
        if calls == [0, 1, 0, 1]:  # both were looked at, the first is converted
            raise ConnectionError("gone")
        return real(self, shard, start)

    monkeypatch.setattr(DownloadedSource, "episodes", stopped)
    with pytest.raises(ConnectionError, match="gone"):
        convert(url, tmp_path / "out")
    calls.clear()
    server.log.clear()
    convert(url, tmp_path / "out")
    assert calls == [1]
    assert not [name for name in bodies(server) if "tfrecord" in name]  # it was kept
    for file in (tmp_path / "whole").glob("*.bin"):
        assert file.read_bytes() == (tmp_path / "out" / file.name).read_bytes()
    server.log.clear()
    convert(url, tmp_path / "out")  # it is done
    assert not [name for name in bodies(server) if "tfrecord" in name]


def test_the_shard_behind_the_one_that_is_read_is_on_its_way_already(
    server: WebServer, tmp_path: Path
) -> None:
    source = DownloadedSource(RLDSSource(f"{server.url}/robotics/{NAME}/0.1.0"), tmp_path / "ahead")
    shards = source.shards()
    with source.ahead():
        first = source.episodes(shards[0])
        next(first)
        following = source._following
        assert following is not None
        assert following._thread is not None
        following._thread.join(PATIENCE)
        assert (tmp_path / "ahead" / f"{NAME}-train.tfrecord-00001-of-00002").is_file()
        read = 1 + len(list(first)) + len(list(source.episodes(shards[1])))
    assert read == 4
    assert [name for name in bodies(server) if "tfrecord" in name].count(
        shards[1].path.rpartition("/")[2]
    ) == 1
    assert not list((tmp_path / "ahead").iterdir())


def test_a_download_that_is_given_up_goes_on_another_time(server: WebServer, tmp_path: Path) -> None:
    url = f"{server.url}/robotics/{NAME}/0.1.0/{NAME}-train.tfrecord-00000-of-00002"
    stop = threading.Event()
    stop.set()
    with pytest.raises(InterruptedError, match="is not fetched any further"):
        download(url, tmp_path / "shard", stop=stop)
    assert not (tmp_path / "shard").exists()
    assert download(url, tmp_path / "shard").stat().st_size > 0
