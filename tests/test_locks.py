"""Folders that appear whole, what killed processes leave, and locks that end with their process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from edgewright import files
from edgewright.errors import OutputError
from edgewright.files import clear_leftovers, copy_files, new_folder, scratch_folder, share_file
from edgewright.locks import Held, sweep, try_lock


def killed(work: Callable[[], object]) -> None:
    """Do work in a process of its own, and kill that when it has said that it is done."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            kept = work()
            os.write(write, b"y")
            signal.pause()
            del kept
        finally:
            os._exit(1)
    os.close(write)
    assert os.read(read, 1) == b"y"
    os.close(read)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def entered(context: AbstractContextManager[Path]) -> AbstractContextManager[Path]:
    """Enter a context that nobody leaves."""
    context.__enter__()
    return context


def make(folder: Path, text: str, *, replace: bool = False) -> None:
    with new_folder(folder, replace=replace) as work:
        (work / "manifest.json").write_text(text)


def test_a_lock_is_had_once_and_ends_with_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    first = try_lock(path)
    assert first is not None
    assert try_lock(path) is None
    path.unlink()  # its holder may delete it: the next one makes another
    with first, (second := try_lock(path)) or pytest.fail("the new lock is free"):
        assert second is not None
        assert try_lock(path) is None
    killed(lambda: try_lock(path) or os._exit(2))
    with try_lock(path) or pytest.fail("its holder is dead"):
        pass


def test_only_what_nobody_holds_is_swept(tmp_path: Path) -> None:
    held, dead, outside = tmp_path / "held", tmp_path / "dead", tmp_path / "outside"
    holding = Held(held)
    for folder in (dead, outside):
        folder.mkdir()
        (folder / "file").write_text("x")
    (tmp_path / "link").symlink_to(outside)
    (tmp_path / "plain").write_text("x")
    sweep([held, dead, tmp_path / "link", tmp_path / "plain", tmp_path / "nowhere"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["held", "link", "outside", "plain"]
    assert (outside / "file").is_file()
    holding.release()
    sweep([held])
    assert not held.exists()


@pytest.mark.parametrize("moment", ["before it is opened", "before it is locked"])
def test_a_sweep_that_comes_between_making_and_holding(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, swept = tmp_path / "held", []
    opened = os.open

    def racing(path: Path, flags: int) -> int:
        descriptor = opened(path, flags) if moment == "before it is locked" or swept else None
        if not swept:
            swept.append(path)
            folder.rmdir()
        return opened(path, flags) if descriptor is None else descriptor

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", racing)
        held = Held(folder)
    assert swept == [folder]
    sweep([folder])
    assert folder.is_dir()
    held.release()


def test_many_at_once_take_nothing_from_each_other(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(40):
                with scratch_folder(tmp_path) as folder:
                    (folder / "file").write_text("x")
                    assert (folder / "file").read_text() == "x"
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    killed(lambda: entered(new_folder(folder)))
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".b.partial-")
    alive = Held(tmp_path / ".b.partial-1")
    make(folder, "one")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".b.partial-1", "b"]
    alive.release()
    clear_leftovers(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_two_at_once_have_a_folder_each(tmp_path: Path) -> None:
    """Threads have one process number, and so may processes in two containers with a folder in common."""
    with new_folder(tmp_path / "b", replace=True) as one:
        (one / "manifest.json").write_text("one")
        with new_folder(tmp_path / "b", replace=True) as other:
            (other / "manifest.json").write_text("other")
        assert (tmp_path / "b" / "manifest.json").read_text() == "other"
        assert (one / "manifest.json").read_text() == "one"
    assert (tmp_path / "b" / "manifest.json").read_text() == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


@pytest.mark.parametrize(("replace", "sentence"), [(False, "b exists already"), (True, "b exists and is no bundle")])
def test_what_came_meanwhile_is_not_replaced(replace: bool, sentence: str, tmp_path: Path) -> None:
    def work() -> None:
        with new_folder(tmp_path / "b", replace=replace) as folder:
            (folder / "manifest.json").write_text("mine")
            (tmp_path / "b").mkdir()
            (tmp_path / "b" / "letter").write_text("precious")

    with pytest.raises(OutputError, match=sentence):
        work()
    assert [path.name for path in tmp_path.rglob("*")] == ["b", "letter"]


def test_names_that_are_patterns_are_names(tmp_path: Path) -> None:
    (tmp_path / ".other.partial-1").mkdir()
    make(tmp_path / "*", "one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["*", ".other.partial-1"]


def test_a_folder_that_was_moved_away_comes_back(tmp_path: Path) -> None:
    """Killed between the two renames, where names can't be swapped."""
    make(tmp_path / ".b.old-77", "before")
    clear_leftovers(tmp_path / "b")
    assert (tmp_path / "b" / "manifest.json").read_text() == "before"
    make(tmp_path / ".b.old-78", "older")
    clear_leftovers(tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert (tmp_path / "b" / "manifest.json").read_text() == "before"


@pytest.mark.parametrize("swaps", [True, False])
def test_a_replaced_folder_is_there_at_every_moment(
    swaps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "b"
    make(folder, "one")
    if not swaps:
        monkeypatch.setattr(files, "_exchanged", lambda work, final: False)
    with pytest.raises(OutputError, match="b exists already"):
        make(folder, "two")
    missing = threading.Event()
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            if not (folder / "manifest.json").is_file():
                missing.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    for count in range(30):
        make(folder, f"text {count}", replace=True)
        assert (folder / "manifest.json").read_text() == f"text {count}"
    stop.set()
    watcher.join()
    assert not (swaps and missing.is_set())
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_temporary_folders_of_killed_processes_go(tmp_path: Path) -> None:
    killed(lambda: entered(scratch_folder(tmp_path)))
    assert len(list(tmp_path.iterdir())) == 1
    with scratch_folder(tmp_path) as one, scratch_folder(tmp_path) as two:
        assert sorted(tmp_path.iterdir()) == sorted([one, two])
        assert one.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []


def test_a_shared_file_has_its_bytes_and_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (10, files.LINKED_BYTES):
        source = tmp_path / f"source{size}"
        source.write_bytes(os.urandom(size))
        os.utime(source, (10**9, 10**9))
        share_file(source, tmp_path / f"shared{size}")
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("another disk")))
        share_file(source, tmp_path / f"copied{size}")
        monkeypatch.undo()
        for name in ("shared", "copied"):
            made = tmp_path / f"{name}{size}"
            assert made.read_bytes() == source.read_bytes()
            assert made.stat().st_mtime == 10**9
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("x")
    copy_files(tmp_path / "in", tmp_path / "out", ["a"])
    assert (tmp_path / "out" / "a").read_text() == "x"
