"""How much room there is."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from replaybank.storages import capacity


def test_a_containers_limit_counts_where_it_is_lower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "_CGROUP_ROOT", tmp_path)
    machine = capacity.available_memory()
    assert machine is not None
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert abs((capacity.available_memory() or 0) - machine) < machine / 2
    (tmp_path / "memory.max").write_text("5000\n")
    assert capacity.available_memory() == 4000
    (tmp_path / "memory.current").write_text("6000\n")
    assert capacity.available_memory() == 0


def test_the_older_form_of_limits_is_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "_CGROUP_ROOT", tmp_path)
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("5000")
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("1000")
    assert capacity.available_memory() == 4000
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text(str(2**63 - 4096))
    assert (capacity.available_memory() or 0) > 4000


def test_refusals_name_both_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "available_memory", lambda: 2048)
    with pytest.raises(MemoryError, match=r"This needs 3\.0 KiB of memory and 2\.0 KiB are available"):
        capacity.check_memory(3072, "This")
    capacity.check_memory(2048, "This")
    with pytest.raises(OSError, match=r"This needs 1024\.0 PiB in .* are free") as caught:
        capacity.check_disk(2**60, "This", tmp_path)
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(MemoryError):
        capacity.check_shared_memory(3072, "This")


def test_nothing_is_refused_where_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "available_memory", lambda: None)
    capacity.check_memory(2**80, "This")
