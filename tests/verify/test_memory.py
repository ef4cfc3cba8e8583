"""How much memory a comparison may take: one default, within what machine and container have left."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgewright.verify import memory
from edgewright.verify.memory import DEFAULT_BYTES, Memory, free_bytes

GB = 1_000_000_000


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of a machine with 64 GB free, and without control groups."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {64 * GB // 1024} kB\n")
    (tmp_path / "own").write_text("0::/jobs/mine\n")
    (tmp_path / "groups").mkdir()
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_OWN_GROUP", tmp_path / "own")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "groups")
    return tmp_path


def group(folder: Path, limit: str, taken: int, stat: str = "", names: tuple[str, str] = memory._FILES[0]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{taken}\n")
    (folder / "memory.stat").write_text(stat)


def test_the_default_is_the_same_on_every_machine(system: Path) -> None:
    assert DEFAULT_BYTES == 4 * GB
    assert Memory().holds(4 * GB)
    assert not Memory().holds(4 * GB + 1)
    assert Memory(20 * GB).holds(20 * GB)
    assert not Memory(1000).holds(1001)


def test_what_is_free_is_a_limit(system: Path) -> None:
    (system / "meminfo").write_text(f"MemAvailable: {2 * GB // 1024} kB\n")
    assert Memory().holds(1.99 * GB)
    assert not Memory().holds(2.01 * GB)
    assert not Memory(20 * GB).holds(2.01 * GB)


@pytest.mark.parametrize("text", [None, "", "MemAvailable: many kB\n"])
def test_an_unknown_machine_is_a_small_one(system: Path, text: str | None) -> None:
    (system / "meminfo").unlink() if text is None else (system / "meminfo").write_text(text)
    assert free_bytes() == GB


@pytest.mark.parametrize("where", ["", "jobs", "jobs/mine"])
def test_the_limit_of_a_container(where: str, system: Path) -> None:
    stat = f"anon {GB}\ninactive_file {GB // 2}\nactive_file {GB // 4}\n"
    group(system / "groups" / where, str(3 * GB), 2 * GB, stat)
    assert free_bytes() == 3 * GB - 2 * GB + GB // 2 + GB // 4


def test_no_limit_of_a_container(system: Path) -> None:
    group(system / "groups" / "jobs", "max", 63 * GB)
    assert free_bytes() == 64 * GB // 1024 * 1024


def test_the_older_interface(system: Path) -> None:
    (system / "own").write_text("7:memory:/jobs\n3:cpu:/else\n")
    stat = f"inactive_file 1\ntotal_inactive_file {GB}\n"
    group(system / "groups/memory/jobs", str(5 * GB), 4 * GB, stat, memory._FILES[1])
    assert free_bytes() == 2 * GB
    (system / "own").write_text("7:memory:/../../etc\n")
    assert free_bytes() == 64 * GB // 1024 * 1024
