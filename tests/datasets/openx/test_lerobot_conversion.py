"""LeRobot datasets on their whole way: from files to batches."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lerobot_files import CAMERA, CODECS, SIDE, TASKS, columns, shown_numbers, write_lerobot, write_video
from patience import PATIENCE
from replaybank import LeRobotSource, OpenXExperienceReplay, convert, verify
from replaybank.cli import run
from replaybank.datasets.openx.sources.open import open_source
from replaybank.datasets.openx.summary import summarise
from replaybank.errors import DataFormatError
from shared_data import lerobot_g1_path

LENGTHS = (70, 45, 91)
TOP = ("observation", "images", "top")


def shown(images: torch.Tensor) -> list[int]:
    """The numbers that images ``[n, C, H, W]`` show."""
    return shown_numbers(images.permute(0, 2, 3, 1).numpy())


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
@pytest.mark.parametrize("workers", [1, 4])
def test_a_converted_dataset_has_every_step_and_frame_in_its_place(
    version: str, workers: int, tmp_path: Path
) -> None:
    path = write_lerobot(tmp_path / "set", version, LENGTHS, CODECS["h264 long"])
    made = convert(path, tmp_path / "out", num_workers=workers)
    assert (made.episodes, made.steps, made.faults, made.missing) == (3, sum(LENGTHS), {}, {})
    replay = OpenXExperienceReplay("set", streaming=False, source=tmp_path / "out")
    first = 0
    for number, length in enumerate(LENGTHS):
        episode = replay.episode(number)
        wanted = columns(number, length, first)
        assert shown(episode[TOP]) == list(range(first, first + length))
        assert shown(episode[("next", *TOP)][:-1]) == list(range(first + 1, first + length))
        assert np.array_equal(episode["observation", "state"].numpy(), np.stack(wanted["observation.state"]))
        assert np.array_equal(episode["next", "reward"][:, 0].numpy(), wanted["next.reward"])
        assert episode["next", "done"][:, 0].tolist() == [False] * (length - 1) + [True]
        assert episode["next", "terminated"][-1].item() is (number % 2 == 0)
        assert episode["next", "truncated"][-1].item() is (number % 2 == 1)
        assert list(episode["task"]) == [TASKS[i] for i in wanted["task_index"]]
        assert replay.metadata(number)[("episode_index",)] == number
        first += length


def test_slices_have_the_frames_of_consecutive_steps(tmp_path: Path) -> None:
    path = write_lerobot(tmp_path / "set", "v3.0", LENGTHS, CODECS["av1"], video_files=(0, 0, 1))
    replay = OpenXExperienceReplay(
        "set",
        64,
        slice_len=8,
        streaming=False,
        source=path,
        root=tmp_path / "cache",
        generator=torch.Generator().manual_seed(0),
    )
    for _ in range(5):
        batch = replay.sample()
        numbers = torch.tensor(shown(batch[TOP])).view(8, 8)
        assert (numbers.diff(dim=1) == 1).all()
        starts = torch.tensor([0, 70, 115])[batch["episode"].long()]
        assert torch.equal(numbers.view(-1), starts + batch["step"])


def test_encoded_frames_of_a_video_are_jpegs_made_once(tmp_path: Path) -> None:
    path = write_lerobot(tmp_path / "set", "v2.1", (20, 11))
    with pytest.warns(UserWarning, match="encoded anew"):
        convert(path, tmp_path / "out", images="encoded")
    replay = OpenXExperienceReplay("set", streaming=False, source=tmp_path / "out")
    assert shown(replay.episode(1)[TOP]) == list(range(20, 31))
    assert verify(tmp_path / "out").problems == ()


def test_a_video_that_ends_early_stops_a_conversion_or_is_left_out_and_listed(tmp_path: Path) -> None:
    path = write_lerobot(tmp_path / "set", "v2.1", (20, 30, 10))
    write_video(path / f"videos/chunk-000/{CAMERA}/episode_000001.mp4", range(20, 45))
    with pytest.raises(DataFormatError, match=r"set: episode 1 .*step 25: .*has no frame"):
        convert(path, tmp_path / "out")
    made = convert(path, tmp_path / "out", on_error="skip")
    assert made.episodes == 2
    assert len(made.skipped) == 1
    assert "episode_000001.mp4" in made.skipped[0].reason
    replay = OpenXExperienceReplay("set", streaming=False, source=tmp_path / "out")
    assert shown(replay.episode(1)[TOP]) == list(range(50, 60))
    found = verify(path)
    assert (found.episodes, len(found.problems)) == (2, 1)
    assert "episode_000001.mp4" in found.problems[0].what


def test_what_is_declared_and_not_so_is_kept_with_the_conversion(tmp_path: Path) -> None:
    path = write_lerobot(tmp_path / "set", "v2.1", (20, 30), info={"total_frames": 7})
    (path / "data/chunk-000/episode_000001.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 2 episodes .*numbers 1\).*allow_missing=True"):
        convert(path, tmp_path / "out")
    made = convert(path, tmp_path / "out", allow_missing=True)
    assert made.episodes == 1
    missing, frames = made.faults
    assert missing.startswith("1 of 2 episodes of split 'train' are missing (numbers 1): there is no data/")
    assert frames == "total_frames: info.json declares 7, found 50 listed"
    for place in (path, tmp_path / "out"):
        notes = summarise(place).notes
        assert "total_frames: info.json declares 7, found 50 listed" in notes
        assert any("are missing (numbers 1)" in note for note in notes)
    problems = verify(path).problems
    assert [problem.where for problem in problems] == [str(path)] * 2


def test_a_source_is_opened_by_what_lies_there(tmp_path: Path) -> None:
    path = write_lerobot(tmp_path / "set", "v2.1", (5,), None)
    assert isinstance(open_source(path), LeRobotSource)
    with pytest.raises(FileNotFoundError, match=r"nor one of RLDS .*, LeRobot \(meta/info.json\)"):
        open_source(tmp_path)


def test_a_summary_names_the_codec_and_reads_no_frame_twice(tmp_path: Path) -> None:
    path = write_lerobot(tmp_path / "set", "v3.0", LENGTHS, CODECS["hevc open"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = summarise(path)
    assert (found.form, found.version, found.episodes, found.steps) == ("LeRobot", "v3.0", 3, sum(LENGTHS))
    (camera,) = found.images
    assert (camera.form, camera.height, camera.width, camera.channels) == ("HEVC", SIDE, SIDE, 3)
    video = path / f"videos/{CAMERA}/chunk-000/file-000.mp4"
    assert camera.bytes_per_frame == video.stat().st_size / sum(LENGTHS)
    assert found.texts[("task",)] == {TASKS[0]: 3, TASKS[1]: 3}
    assert found.notes == ()


def test_the_command_line_reads_lerobot_datasets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_lerobot(tmp_path / "set", "v2.1", (20, 30))
    (path / "data/chunk-000/episode_000001.parquet").unlink()
    assert run(["info", str(path)]) == 0
    assert "LeRobot" in capsys.readouterr().out
    assert run(["convert", str(path), str(tmp_path / "out")]) == 1
    assert "--allow-missing" in capsys.readouterr().err
    assert run(["convert", str(path), str(tmp_path / "out"), "--allow-missing"]) == 0
    assert "set: 1 episodes, 20 steps" in capsys.readouterr().out


def test_the_real_g1_files_become_a_dataset(tmp_path: Path) -> None:
    replay = OpenXExperienceReplay(
        "g1", 64, slice_len=8, streaming=False, source=lerobot_g1_path(), root=tmp_path, allow_missing=True
    )
    assert (replay.num_episodes, len(replay)) == (2, 587)
    batch: Any = replay.sample()
    assert batch["observation", "images", "cam_high"].shape == (64, 3, 480, 640)
    assert batch["observation", "state"].shape == (64, 26)
    assert set(batch["task"]) == {"Pick up the yellow bottle on the table."}
    manifest = json.loads((tmp_path / "g1/manifest.json").read_text())
    assert manifest["origin"]["kind"] == "LeRobotSource"


@pytest.mark.parametrize("threads", [0, 2])
def test_a_stream_has_every_frame_in_its_place(threads: int, tmp_path: Path) -> None:
    path = write_lerobot(tmp_path / "set", "v3.0", LENGTHS, CODECS["h264 long"], video_files=(0, 0, 1))
    stream = OpenXExperienceReplay("set", source=path, num_workers=threads)
    found = {int(episode["episode"][0]): shown(episode[TOP]) for episode in stream}
    firsts = np.cumsum([0, *LENGTHS]).tolist()
    assert found == {n: list(range(firsts[n], firsts[n + 1])) for n in range(len(LENGTHS))}
    (path / "videos" / CAMERA / "chunk-000/file-001.mp4").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 3 episodes .* \(numbers 2\)"):
        OpenXExperienceReplay("set", source=path)
    assert len(list(OpenXExperienceReplay("set", source=path, allow_missing=True))) == 2


LONG = """
import resource, sys, warnings
from pathlib import Path
import av, numpy as np
import google_crc32c, simplejpeg, pyarrow.parquet
from lerobot_files import CAMERA, info_json, write_lerobot
from replaybank import convert

folder, length, side = Path(sys.argv[1]), 1500, 256
info = info_json("v2.1", [length])
info["features"][CAMERA]["shape"] = [side, side, 3]
path = write_lerobot(folder / "set", "v2.1", [length], None, info={"features": info["features"]})
video = path / f"videos/chunk-000/{CAMERA}/episode_000000.mp4"
video.parent.mkdir(parents=True)
# Noise that stands still: small as a video, large as JPEG.
noise = np.random.default_rng(0).integers(0, 256, (side, side, 3)).astype(np.uint8)
options = {"preset": "ultrafast", "qp": "10", "threads": "1"}
with av.open(str(video), "w") as container:
    stream = container.add_stream("libx264", rate=30, options=options)
    stream.width = stream.height = side
    stream.pix_fmt = "yuv420p"
    for at in range(length):
        frame = av.VideoFrame.from_ndarray(noise, format="rgb24")
        frame.pts = at
        container.mux(stream.encode(frame))
    container.mux(stream.encode())

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

before = peak()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    made = convert(path, folder / "out", images="encoded", max_memory=64 << 20, progress=False)
print(made.steps, (folder / "out/frames-000.bin").stat().st_size, peak() - before)
"""


def test_a_long_video_is_encoded_anew_within_the_memory_allowed(tmp_path: Path) -> None:
    """Its JPEGs take 110 MB: held all at once they would not fit."""
    script = tmp_path / "long.py"
    script.write_text(LONG)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    steps, encoded, grown = map(int, done.stdout.split())
    assert steps == 1500
    assert encoded > 100 << 20
    assert grown < 64 << 20
