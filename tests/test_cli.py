"""What a person types, and what comes back: one clear line for every error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import replaybank
from replaybank import cli
from replaybank.demo import arm

EPISODES = 4


@pytest.fixture(scope="module")
def arm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rlds") / arm.NAME / arm.VERSION
    return arm.write_arm_dataset(folder, episodes=EPISODES, shards=2)


@pytest.fixture
def broken_folder(arm_folder: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "broken"
    shutil.copytree(arm_folder, folder)
    shard = sorted(folder.glob("*tfrecord*"))[0]
    content = bytearray(shard.read_bytes())
    content[5000] ^= 1
    shard.write_bytes(content)
    return folder


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path, status: int) -> str:
    """The one line that a command that fails prints, once its exit status is seen to be right."""
    assert cli.run([str(argument) for argument in arguments]) == status
    printed = capsys.readouterr()
    assert printed.err.startswith("replaybank: error: ")
    assert printed.err.count("\n") == 1
    assert "Traceback" not in printed.err + printed.out
    return printed.err


def in_a_process(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [sys.executable, "-m", "replaybank", *arguments], capture_output=True, text=True, **options
    )


def test_version() -> None:
    result = CliRunner().invoke(cli.app, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"replaybank {replaybank.__version__}\n"


@pytest.mark.parametrize("command", ["demo", "convert", "info", "stats", "verify", "stream"])
def test_every_command_explains_itself(command: str) -> None:
    result = CliRunner().invoke(cli.app, [command, "--help"])
    assert result.exit_code == 0
    assert command in result.output


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([]) == cli.MISUSED
    assert "convert" in capsys.readouterr().out


def test_info_on_rlds_and_on_what_convert_made(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reaches = [arm.simulate(number) for number in range(EPISODES)]
    steps = sum(map(len, reaches))
    made = tmp_path / "made"
    assert cli.run(["convert", str(arm_folder), str(made)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out == f"{arm.NAME}: {EPISODES} episodes, {steps} steps in {made}\n"
    for path, form in ((arm_folder, "RLDS"), (made, "converted")):
        assert cli.run(["info", str(path)]) == 0
        out = capsys.readouterr().out
        for fact in (
            arm.NAME,
            form,
            str(EPISODES),
            str(steps),
            "observation/hand_image",
            "float32",
            "64 x 64",
        ):
            assert fact in out, fact
        assert any(reach.instruction in out for reach in reaches)


def test_convert_is_silent_when_asked(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["convert", str(arm_folder), str(tmp_path / "made"), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_convert_replaces_a_dataset_only_when_told(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = arm.write_arm_dataset(tmp_path / "other", episodes=2, seed=1, shards=1)
    made = tmp_path / "made"
    assert cli.run(["convert", str(arm_folder), str(made), "-q"]) == 0
    assert cli.run(["convert", str(other), str(made), "-q"]) in (cli.FAILED, cli.MISUSED)
    assert "replaybank: error: " in capsys.readouterr().err
    assert cli.run(["convert", str(other), str(made), "-q", "--overwrite"]) == 0
    assert cli.run(["info", str(made)]) == 0
    assert "episodes          2\n" in capsys.readouterr().out


def test_convert_never_replaces_a_folder_of_something_else(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "precious.txt").write_text("kept")
    assert cli.run(["convert", str(arm_folder), str(tmp_path), "--overwrite"]) in (cli.FAILED, cli.MISUSED)
    assert "replaybank: error: " in capsys.readouterr().err
    assert (tmp_path / "precious.txt").read_text() == "kept"


def test_a_corrupt_shard_is_named(
    broken_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (
        ("info", broken_folder),
        ("convert", broken_folder, tmp_path / "made"),
        ("demo", "--data", broken_folder, "--output", tmp_path / "out", "--quiet"),
    ):
        text = error_of(capsys, *arguments, status=cli.FAILED)
        assert "00000-of-00002: record 0 at byte 0: " in text


def test_a_corrupt_record_is_left_out_when_asked(
    broken_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    assert cli.run(["convert", str(broken_folder), str(made), "--on-error", "skip"]) == 0
    assert f"{EPISODES - 1} episodes" in capsys.readouterr().out


def test_paths_that_are_not_datasets(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, empty, nowhere = tmp_path / "file", tmp_path / "empty", tmp_path / "nowhere"
    file.write_text("hello")
    empty.mkdir()
    for command in (["info"], ["convert"], ["demo", "--output", tmp_path / "out", "--data"]):
        rest = [tmp_path / "made"] if command == ["convert"] else []
        assert str(nowhere) in error_of(capsys, *command, nowhere, *rest, status=cli.FAILED)
        assert str(file) in error_of(capsys, *command, file, *rest, status=cli.FAILED)
        assert str(empty) in error_of(capsys, *command, empty, *rest, status=cli.FAILED)
    assert str(file) in error_of(capsys, "convert", arm_folder, file, status=cli.FAILED)
    assert str(file) in error_of(capsys, "demo", "--output", file, status=cli.FAILED)
    assert file.read_text() == "hello"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="nothing is unreadable for root")
def test_an_unreadable_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0)
    try:
        assert str(locked) in error_of(capsys, "info", locked, status=cli.FAILED)
    finally:
        locked.chmod(0o700)


@pytest.mark.parametrize(
    "arguments",
    [
        ["inform"],
        ["info"],
        ["info", "--colour", "x"],
        ["convert", "a"],
        ["convert", "a", "b", "--on-error", "ignore"],
        ["demo", "--seconds", "soon"],
        ["demo", "--seconds", "-1"],
        ["demo", "--seed", "-1"],
    ],
)
def test_misuse_is_one_line_and_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    error_of(capsys, *arguments, status=cli.MISUSED)


def test_an_unknown_split_names_those_there_are(arm_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = error_of(capsys, "info", arm_folder, "--split", "test", status=cli.MISUSED)
    assert "'test'" in text
    assert "train" in text


def raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def summarise(*_: object) -> None:
        raise error

    monkeypatch.setattr("replaybank.datasets.openx.summary.summarise", summarise)


def test_permission_errors_name_the_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(PermissionError(13, "Permission denied", "/data/x"), monkeypatch)
    assert error_of(capsys, "info", "x", status=cli.FAILED).endswith("/data/x: Permission denied\n")


def test_an_unexpected_error_is_one_line_too_and_debug_shows_where(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(KeyError("gone"), monkeypatch)
    assert "unexpected KeyError: 'gone'" in error_of(capsys, "info", "x", status=cli.FAILED)
    assert cli.run(["--debug", "info", "x"]) == cli.FAILED
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert shown.endswith("(`replaybank --debug ...` shows where)\n")


def test_interrupting_is_one_quiet_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(KeyboardInterrupt(), monkeypatch)
    assert cli.run(["info", "x"]) == cli.INTERRUPTED
    assert capsys.readouterr().err == "replaybank: interrupted\n"

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    # The package has a function of the module's name.
    monkeypatch.setattr(sys.modules["replaybank.datasets.openx.convert"], "convert", interrupted)
    for options, more in (([], "; the same command goes on where it stopped"), (["--overwrite"], "")):
        assert cli.run(["convert", "x", "y", *options]) == cli.INTERRUPTED
        assert capsys.readouterr().err == f"replaybank: interrupted{more}\n"


def test_interrupting_while_the_command_is_imported_is_the_same_line() -> None:
    script = (
        "import sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from replaybank.__main__ import main\nsys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (cli.INTERRUPTED, "replaybank: interrupted\n")


def test_the_module_is_the_command_and_its_status_reaches_the_shell(tmp_path: Path) -> None:
    done = in_a_process("info", str(tmp_path))
    assert done.returncode == cli.FAILED
    assert done.stdout == ""
    assert done.stderr.startswith("replaybank: error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="pipes of a shell")
def test_a_reader_that_leaves_early_is_met_with_silence(arm_folder: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "replaybank", "info", str(arm_folder)],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == cli.FAILED
    assert done.stderr == ""


def test_without_typer_one_line_says_what_to_install() -> None:
    script = "import sys; sys.modules['typer'] = None\nfrom replaybank.__main__ import main\nsys.exit(main())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == cli.MISUSED
    assert done.stderr == "replaybank: error: the command line needs typer: pip install 'replaybank[openx]'\n"


def test_importing_the_package_does_not_import_the_command_line() -> None:
    # tqdm is not among them: torch itself imports it where it is installed.
    script = "import sys, replaybank; print({'typer', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_torch_waits_for_the_command_and_finds_the_environment_that_training_needs() -> None:
    script = """
import os, sys
os.environ.pop("OMP_WAIT_POLICY", None)
from replaybank.__main__ import main
for arguments, status in (["--version"], 0), (["convert", "a"], 2), (["convert", "a", ""], 2):
    sys.argv[1:] = arguments
    assert main() == status, arguments
    assert "torch" not in sys.modules, arguments
assert os.environ["OMP_WAIT_POLICY"] == "passive"
os.environ["OMP_WAIT_POLICY"] = "active"
main()
assert os.environ["OMP_WAIT_POLICY"] == "active"
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [["convert", "SRC"], ["demo", "--output"]])
@pytest.mark.parametrize("folder", ["", " ", "gs://bucket/x"])
def test_a_destination_that_is_no_folder_of_this_machine_is_refused(
    command: list[str],
    folder: str,
    arm_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [str(arm_folder) if word == "SRC" else word for word in command]
    text = error_of(capsys, *given, folder, status=cli.MISUSED)
    assert (folder if folder.strip() else "is empty") in text
    assert list(tmp_path.iterdir()) == []


def test_a_destination_that_is_a_file_is_called_one(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    assert f"{file} is a file" in error_of(capsys, "convert", arm_folder, file, status=cli.FAILED)
    assert file.read_text() == "kept"


def test_a_tilde_is_the_home_folder(
    arm_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree(arm_folder, tmp_path / "rlds")
    assert cli.run(["convert", "~/rlds", "~/made", "-q"]) == 0
    assert (tmp_path / "made").is_dir()
    assert cli.run(["info", "~/made"]) == 0
    assert str(tmp_path / "made") in capsys.readouterr().out


def test_converting_again_says_that_it_was_done(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    printed = []
    for options in ([], [], ["--overwrite"]):
        assert cli.run(["convert", str(arm_folder), str(made), *options]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[2]
    assert printed[1] == printed[0].replace(" in ", " already converted in ")
    text = error_of(capsys, "convert", made, tmp_path / "again", status=cli.MISUSED)
    assert f"{made} is a converted dataset already" in text


def test_episodes_that_a_shard_was_cut_off_before_are_counted(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cut"
    shutil.copytree(arm_folder, folder)
    shard = sorted(folder.glob("*tfrecord*"))[0]
    os.truncate(shard, 1000)  # in the first record of two
    assert cli.run(["convert", str(folder), str(tmp_path / "made"), "--on-error", "skip"]) == 0
    out = capsys.readouterr().out
    assert "2 episodes" in out
    assert f"2 of {EPISODES} declared episodes missing" in out


def test_info_names_the_split_that_was_converted(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    assert cli.run(["convert", str(arm_folder), str(made), "-q"]) == 0
    text = error_of(capsys, "info", made, "--split", "val", status=cli.MISUSED)
    assert "'val'" in text
    assert "'train'" in text
    assert cli.run(["info", str(made), "--split", "train"]) == 0


def test_info_shows_the_entries_of_episodes_on_either_side_of_a_conversion(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    assert cli.run(["convert", str(arm_folder), str(made), "-q"]) == 0
    shown = []
    for path in (arm_folder, made):
        assert cli.run(["info", str(path)]) == 0
        _, _, rest = capsys.readouterr().out.partition("Entries of an episode\n")
        shown.append([row.split()[:2] for row in rest.partition("\n\n")[0].splitlines()])
    assert len(shown[0]) > 1
    assert shown[0] == shown[1]


def test_a_package_that_reads_urls_is_named_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = ImportError("Please install gcsfs to access Google Storage")
    missing.__cause__ = ModuleNotFoundError("No module named 'gcsfs'", name="gcsfs")
    raising(missing, monkeypatch)
    text = error_of(capsys, "info", "gs://bucket/x", status=cli.FAILED)
    assert text.endswith("Please install gcsfs to access Google Storage: pip install gcsfs\n")
    assert "unexpected" not in text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_output_that_cannot_be_written_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "replaybank", "--version"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    expected = "replaybank: error: standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (cli.FAILED, expected)


@pytest.mark.skipif(os.name != "posix", reason="a shell's way to close the output")
def test_a_closed_output_is_one_line() -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m replaybank --version >&-"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (cli.FAILED, "replaybank: error: standard output is closed\n")


def test_no_progress_bar_flashes_up_before_an_error(
    broken_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for path in (broken_folder, tmp_path / "nowhere"):
        assert "Reading" not in error_of(capsys, "info", path, status=cli.FAILED)


def test_convert_keeps_encoded_frames_of_chosen_cameras(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, small = tmp_path / "raw", tmp_path / "small"
    assert cli.run(["convert", str(arm_folder), str(raw), "-q", "--workers", "1"]) == 0
    chosen = ["--images", "encoded", "--image-key", "hand_image", "--max-memory", "0.1"]
    assert cli.run(["convert", str(arm_folder), str(small), "-q", *chosen]) == 0
    assert capsys.readouterr() == ("", "")
    assert not list(small.glob("column-*"))
    assert (small / "frames-000.bin").stat().st_size < (raw / "column-000.bin").stat().st_size / 4
    assert cli.run(["info", str(small)]) == 0
    shown = capsys.readouterr().out
    assert "observation/hand_image" in shown
    assert "observation/image" not in shown


def test_a_camera_that_is_not_there_is_misuse(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["convert", str(arm_folder), str(tmp_path / "x"), "--image-key", "nose"]) == cli.MISUSED
    assert "'nose' is no camera of this dataset" in capsys.readouterr().err


def test_verify_names_what_is_wrong_and_its_status_tells(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    assert cli.run(["convert", str(arm_folder), str(made), "-q"]) == 0
    for path in (arm_folder, made):
        assert cli.run(["verify", str(path)]) == 0
        assert f"{path}: {EPISODES} episodes" in capsys.readouterr().out
    content = bytearray((made / "rows.bin").read_bytes())
    content[0] ^= 1
    (made / "rows.bin").write_bytes(content)
    assert cli.run(["verify", str(made), "--quiet"]) == cli.FAILED
    assert capsys.readouterr().out == f"{made / 'rows.bin'} episode 0: its content is not what was written\n"
    assert cli.run(["verify", str(made)]) == cli.FAILED
    assert "1 problem(s)" in capsys.readouterr().out


@pytest.mark.parametrize("options", [(), ("--batch-size", "16", "--slice-len", "4", "--workers", "1")])
def test_stream_shows_rate_and_memory(
    arm_folder: Path, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["stream", str(arm_folder), "--seconds", "0.05", *options]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    for word in ("steps/s", "slices/s", "decoded", "epochs", "first batch", "memory"):
        assert f"  {word}" in printed.out


def test_stream_says_what_is_wrong_with_the_data(
    broken_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "record 0 at byte 0" in error_of(capsys, "stream", broken_folder, "--seconds", "1", status=1)
    error_of(capsys, "stream", tmp_path / "nothing", status=1)
    odd = ("--batch-size", "9", "--slice-len", "2")
    assert "slice_len=2" in error_of(capsys, "stream", broken_folder, *odd, status=2)


def test_a_disk_without_room_is_one_line_that_names_the_folder(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: whole._replace(free=1000))
    assert cli.run(["convert", str(arm_folder), str(tmp_path / "made")]) == cli.FAILED
    said = capsys.readouterr().err
    assert said.startswith(f"replaybank: error: {tmp_path / 'made'}: ")
    assert "1000 bytes are free" in said


def test_stats_shows_a_line_for_each_number(
    arm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    assert cli.run(["convert", str(arm_folder), str(made), "-q"]) == 0
    assert cli.run(["stats", str(made), "--key", "action", "--key", "observation/hand_image"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line] == [
        *("action:", "number", "0", "1"),
        *("observation/hand_image:", "number", "0", "1", "2"),
    ]
    assert cli.run(["stats", str(made), "--key", "speed"]) == cli.MISUSED
    assert "--key speed: there is no such entry; there are" in capsys.readouterr().err
    assert cli.run(["stats", str(arm_folder)]) == cli.FAILED
    assert "holds no converted dataset" in capsys.readouterr().err


def test_stream_takes_what_is_there_where_it_is_told_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = arm.write_arm_dataset(tmp_path / "arm", episodes=4, shards=2)
    next(folder.glob("*00001-of-00002")).unlink()
    assert cli.run(["stream", str(folder), "--seconds", "0"]) == cli.FAILED
    assert "--allow-missing" in capsys.readouterr().err
    assert cli.run(["stream", str(folder), "--seconds", "0", "--allow-missing"]) == 0
    assert "steps/s" in capsys.readouterr().out
