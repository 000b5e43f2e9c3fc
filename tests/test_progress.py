"""Progress bars: late, at a terminal only, and gone at the end."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from patience import PATIENCE
from replaybank import LazyTensorStorage, ReplayBuffer, progress
from replaybank.progress import Bar, moved, watched_bytes

pytest.importorskip("tqdm", reason="tqdm is not installed")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error as a terminal, on which bars appear at once; no fixture, as pytest puts its own back."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "REDRAWN", 0.0)
    return screen


def test_a_bar_tells_how_far_it_is_and_how_fast_and_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_a_terminal(monkeypatch)
    with Bar("Reading", "episode", 4) as bar:
        bar.update(steps=10)
        bar.update(steps=10)
        shown = terminal.getvalue()
    assert "Reading:  50%" in shown
    assert "2/4" in shown
    assert "steps/s" in shown
    assert terminal.getvalue().endswith("\r")
    assert "\n" not in terminal.getvalue()


def test_a_bar_waits_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    now = [100.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    with Bar("Reading", "file", 10) as bar:
        now[0] += 1.9
        bar.update()
        assert screen.getvalue() == ""
        now[0] += 0.2
        bar.update()
        assert "Reading:  20%" in screen.getvalue()
    screen.truncate(0)
    with Bar("Reading", "file", 10) as bar:
        bar.update(10)
    assert screen.getvalue().strip("\0\r ") == ""


def test_bars_are_silent_elsewhere_and_where_nobody_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_a_terminal(monkeypatch)
    with Bar("Reading", "file", 2, show=False) as bar:
        bar.update()
        bar.reach(2, 2)
    assert terminal.getvalue() == ""
    plain = io.StringIO()
    for stream in (plain, None):
        monkeypatch.setattr(sys, "stderr", stream)
        with Bar("Reading", "file", 2) as bar:
            bar.update(steps=3)
    assert plain.getvalue() == ""
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "tqdm", None)
        without.setattr(sys, "stderr", terminal)
        with Bar("Reading", "file", 2) as bar:
            bar.update()
    assert terminal.getvalue() == ""


def test_a_bar_goes_away_with_an_error_and_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_a_terminal(monkeypatch)
    before = threading.active_count()

    def interrupted() -> None:
        with Bar("Reading", "file", 3) as bar:
            bar.update()
            assert "33%" in terminal.getvalue()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert terminal.getvalue().endswith("\r")
    assert threading.active_count() == before


def test_the_number_of_all_may_be_told_later(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_a_terminal(monkeypatch)
    with Bar("Reading", "part") as bar:
        bar.reach(1, 4)
        bar.reach(3, 4)
    assert "75%" in terminal.getvalue()


def test_bytes_are_told_of_from_all_threads_once(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_a_terminal(monkeypatch)
    moved(5)  # nobody watches
    with watched_bytes("Saving", True):
        with watched_bytes("Inner", True):
            moved(1500)
        moved(500)
    assert "Saving: 2.00kB" in terminal.getvalue()
    assert "Inner" not in terminal.getvalue()
    assert progress._watching.get() is None


def test_saving_and_loading_a_buffer_show_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = at_a_terminal(monkeypatch)
    buffer = ReplayBuffer(storage=LazyTensorStorage(3000))
    buffer.extend({"x": torch.zeros(3000, 1000), "y": torch.zeros(3000, 2, dtype=torch.int64)})
    buffer.dumps(tmp_path)
    shown = terminal.getvalue()
    assert "Saving: 12.1MB" in shown
    terminal.truncate(0)
    buffer.loads(tmp_path)
    assert "Loading: 24.1MB" in terminal.getvalue()  # checksums first
    terminal.seek(0)
    terminal.truncate(0)
    buffer.dumps(tmp_path / "other", progress=False)
    buffer.loads(tmp_path / "other", progress=False)
    assert terminal.getvalue() == ""


SCRIPT = """
import sys, time
from replaybank import progress
progress.DELAY = progress.REDRAWN = 0.0
from replaybank import cli
import replaybank.datasets.openx.verify
verify = sys.modules["replaybank.datasets.openx.verify"]  # the package has a function of that name
slow = verify._good_episodes
def slower(*given):
    for length in slow(*given):
        yield length
        if "--wait" in sys.argv:
            time.sleep(3600)
verify._good_episodes = slower
sys.exit(cli.run(["verify", sys.argv[1], *sys.argv[3:]]))
"""


@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals")
@pytest.mark.parametrize("how", ["shown", "quiet", "interrupted"])
def test_a_command_at_a_terminal_shows_a_bar_and_cleans_it_up(tmp_path: Path, how: str) -> None:
    import fcntl
    import pty
    import struct
    import termios

    from replaybank.demo.arm import write_arm_dataset

    folder = write_arm_dataset(tmp_path / "arm", episodes=3, shards=1)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    arguments = [
        str(folder),
        "--wait" if how == "interrupted" else "--go",
        *(["-q"] if how == "quiet" else []),
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments], stdout=subprocess.PIPE, stderr=theirs, text=True
    )
    os.close(theirs)
    late = threading.Timer(PATIENCE, process.kill)
    late.start()
    seen, sent = "", False
    try:
        while True:
            try:
                part = os.read(ours, 4096).decode()
            except OSError:  # how Linux says that nobody holds the other end
                break
            if not part:
                break
            seen += part
            if how == "interrupted" and "1/3" in seen and not sent:
                process.send_signal(signal.SIGINT)
                sent = True
        status = process.wait(PATIENCE)
        printed = process.stdout.read() if process.stdout else ""
    finally:
        late.cancel()
        process.kill()
        process.wait()
        os.close(ours)
        if process.stdout:
            process.stdout.close()
    if how == "quiet":
        assert (status, seen, printed) == (0, "", "")
        return
    assert "Verifying" in seen
    assert "3/3" in seen or how == "interrupted"
    if how == "interrupted":
        assert status == 130
        assert seen.rstrip("\r\n").rpartition("\r")[2] == "replaybank: interrupted"
    else:
        assert status == 0
        assert "3 episodes" in printed
        assert seen.rpartition("\r")[2] == "", "the bar is gone"
