"""Hostile files of RLDS datasets: a right result or an error, and little more memory than they take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("kind", ["tfrecord", "example", "features", "info"])
def test_mutated_files_are_read_or_refused(kind: str) -> None:
    script = Path(__file__).with_name("fuzz_rlds.py")
    done = subprocess.run(
        [sys.executable, str(script), kind, "400", "7"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Error" in done.stdout
    assert ("'read'" in done.stdout) == (kind != "tfrecord")  # where every bit is under a checksum
