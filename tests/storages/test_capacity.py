"""How much room there is."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from replaybank.storages import capacity


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose control groups are files of the test."""
    monkeypatch.setattr(capacity, "_CGROUP_ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(capacity, "_OWN_CGROUPS", tmp_path / "own")
    (tmp_path / "own").write_text("0::/\n")
    (tmp_path / "cgroup").mkdir()
    return tmp_path / "cgroup"


def limited(folder: Path, most: int | str, used: int, stat: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(stat)


def test_a_containers_limit_counts_where_it_is_lower(groups: Path) -> None:
    machine = capacity.available_memory()
    assert machine is not None
    limited(groups, "max", 1000)
    assert abs((capacity.available_memory() or 0) - machine) < machine / 2
    limited(groups, 5000, 1000)
    assert capacity.available_memory() == 4000
    limited(groups, 5000, 6000)
    assert capacity.available_memory() == 0


def test_copies_of_files_that_were_read_do_not_count_as_used(groups: Path) -> None:
    limited(groups, 5000, 4900, "anon 1000\nfile 4400\nshmem 500\ninactive_file 3000\nactive_file 800\n")
    assert capacity.available_memory() == 3900
    limited(groups, 5000, 100, "inactive_file 3000\n")  # read a moment later
    assert capacity.available_memory() == 5000
    limited(groups, 5000, 1000, "what is this\n")
    assert capacity.available_memory() == 4000


def test_the_tightest_of_all_groups_around_the_process_counts(groups: Path) -> None:
    """As on a cluster, where the job's group is deep in the tree, and its user's above it."""
    (groups.parent / "own").write_text("0::/slurm/job_7/step_0\n")
    limited(groups / "slurm", 900_000, 0)
    limited(groups / "slurm" / "job_7", 5000, 1000)
    limited(groups / "slurm" / "job_7" / "step_0", "max", 1000)
    limited(groups / "slurm" / "job_8", 10, 10)
    assert capacity.available_memory() == 4000


def test_where_the_path_is_the_hosts_the_groups_that_are_seen_count(groups: Path) -> None:
    (groups.parent / "own").write_text("0::/docker/abc\n")
    limited(groups, 5000, 1000)
    assert capacity.available_memory() == 4000
    (groups.parent / "own").unlink()
    assert capacity.available_memory() == 4000


def test_the_older_form_of_limits_is_read_too(groups: Path) -> None:
    (groups.parent / "own").write_text("4:cpu,memory:/box\n2:pids:/\n0::/\n")
    box = groups / "memory" / "box"
    box.mkdir(parents=True)
    (box / "memory.limit_in_bytes").write_text("5000")
    (box / "memory.usage_in_bytes").write_text("1500")
    (box / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 500\n")
    assert capacity.available_memory() == 4000
    (box / "memory.limit_in_bytes").write_text(str(2**63 - 4096))
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
