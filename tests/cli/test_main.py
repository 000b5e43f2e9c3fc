"""What a person types, and what comes back: one clear line for every error."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import replaybank
from command_line import error_of, in_a_process, raising
from patience import PATIENCE
from replaybank import cli


def test_version() -> None:
    result = CliRunner().invoke(cli.app, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"replaybank {replaybank.__version__}\n"


@pytest.mark.parametrize(
    "command", ["demo", "convert", "info", "stats", "verify", "report", "stream", "view"]
)
def test_every_command_explains_itself(command: str) -> None:
    result = CliRunner().invoke(cli.app, [command, "--help"])
    assert result.exit_code == 0
    assert command in result.output


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([]) == cli.MISUSED
    assert "convert" in capsys.readouterr().out


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
        *([command, ""] for command in ("info", "stats", "verify", "stream")),
        ["report", " ", "-o", "x.html"],
        ["report", "x", "-o", "https://x/page.html"],
        ["report", "x", "--max-size", "inf"],
        ["view", "", "--save", "x.rrd"],
        ["view", "x", "--save", ""],
        ["view", "x", "--save", "https://x/x.rrd"],
        ["convert", "", "x"],
        ["demo", "--data", ""],
    ],
)
def test_misuse_is_one_line_and_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    error_of(capsys, *arguments, status=cli.MISUSED)


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


@pytest.mark.parametrize("arguments", [[], ["--version"], ["--help"], ["info", "x"]])
def test_without_typer_one_line_says_what_to_install(arguments: list[str]) -> None:
    script = "import sys; sys.modules['typer'] = None\nfrom replaybank.__main__ import main\nsys.exit(main())"
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)
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


def test_a_package_that_reads_urls_is_named_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = ImportError("Please install gcsfs to access Google Storage")
    missing.__cause__ = ModuleNotFoundError("No module named 'gcsfs'", name="gcsfs")
    raising(missing, monkeypatch)
    text = error_of(capsys, "info", "gs://bucket/x", status=cli.FAILED)
    assert text.endswith("Please install gcsfs to access Google Storage: pip install gcsfs\n")
    assert "unexpected" not in text


@pytest.mark.parametrize(
    ("package", "advice"),
    [
        ("pyarrow", ": pip install 'replaybank[openx]'\n"),
        ("PIL", ": pip install 'replaybank[openx]'\n"),
        ("google_crc32c", ": pip install 'replaybank[openx]'\n"),
        ("rerun", ": pip install 'replaybank[view]'\n"),
        ("jinja2", ": pip install 'replaybank[report]'\n"),
        ("s3fs", ": pip install s3fs"),
        (
            "replaybank",
            "; this installation of replaybank is damaged: pip install --force-reinstall replaybank\n",
        ),
    ],
)
def test_what_cannot_be_imported_is_named_with_the_extra_that_has_it(
    package: str, advice: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(ImportError("it cannot be imported", name=f"{package}.part"), monkeypatch)
    assert f"be imported{advice}" in error_of(capsys, "info", "gs://bucket/x", status=cli.FAILED)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_output_that_cannot_be_written_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "replaybank", "--version"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    expected = "replaybank: error: standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (cli.FAILED, expected)


def test_a_full_disk_elsewhere_is_not_laid_to_the_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), monkeypatch)
    assert error_of(capsys, "info", ".", status=cli.FAILED) == "replaybank: error: No space left on device\n"


@pytest.mark.skipif(os.name != "posix", reason="a shell's way to close the output")
def test_a_closed_output_is_one_line() -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m replaybank --version >&-"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (cli.FAILED, "replaybank: error: standard output is closed\n")


@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"], ["info", "bridge"], ["--help"]])
def test_what_the_catalog_knows_is_told_without_torch(arguments: list[str]) -> None:
    script = f"""
import sys
from replaybank import cli
status = cli.run({arguments!r})
print([name for name in ("torch", "tensordict", "numpy") if name in sys.modules], file=sys.stderr)
sys.exit(status)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert len(done.stdout) > 400
