"""The store of finished steps: done once, taken over whole or not at all, bounded, never in the way of a build."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from conftest import TEXT_GOLDENS
from edgewright.build import pipeline, steps, store
from edgewright.build.pipeline import compile_bundle, deploy, export
from edgewright.build.store import Done, Store, entries, limit_bytes, read_entry, seal
from edgewright.bundle import check_files, read_manifest
from edgewright.errors import UsageError
from edgewright.files import LINKED_BYTES, cache_home, steps_home
from edgewright.locks import try_lock
from edgewright.progress import Advance, Progress
from edgewright.targets import cpu
from plugin_packages import describe

LLAMA = TEXT_GOLDENS / "llama"


class Told(Progress):
    """Remembers steps and notes."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.notes: list[str] = []

    @contextmanager
    def step(self, title: str, total: int = 0) -> Iterator[Advance]:
        self.steps.append(title)
        yield lambda amount: None

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("EDGEWRIGHT_CACHE_BYTES", str(10**8))


class Step:
    """A step that writes two files of seeded bytes, and counts how often it is done."""

    def __init__(self, seed: int = 0, size: int = 1000) -> None:
        self.count, self.seed, self.size = 0, seed, size

    def data(self, name: str) -> bytes:
        return np.random.default_rng([self.seed, len(name)]).bytes(self.size)

    def into(self, root: Path, told: Progress | None = None) -> Done:
        root.mkdir(exist_ok=True)

        def make() -> Any:
            self.count += 1
            (root / "inner").mkdir(exist_ok=True)
            for name in ("one", "inner/other"):
                (root / name).write_bytes(self.data(name))
            return {"seed": self.seed, "shape": (1, 2)}

        return Store(root, told or Told(), "model").step("step", {"seed": self.seed}, make)

    def check(self, root: Path) -> None:
        assert sorted(path.name for path in root.iterdir()) == ["inner", "one"]
        for name in ("one", "inner/other"):
            assert (root / name).read_bytes() == self.data(name)


def entry_folder() -> Path:
    (found,) = entries()
    return found.path


def test_a_step_is_done_once(tmp_path: Path) -> None:
    step = Step()
    first, second = (step.into(tmp_path / name) for name in ("a", "b"))
    assert step.count == 1
    assert (first.reused, second.reused) == (False, True)
    assert first.result == second.result == {"seed": 0, "shape": [1, 2]}
    assert first.files == second.files
    assert list(second.files) == ["inner/other", "one"]
    assert second.files["one"]["bytes"] == 1000
    for name in ("a", "b"):
        step.check(tmp_path / name)
    assert Step(seed=1).into(tmp_path / "c").reused is False
    assert len(entries()) == 2
    assert [entry.about for entry in entries()] == ["model", "model"]
    assert [path.name for path in cache_home().rglob("*") if "partial" in path.name] == []


def test_large_files_are_shared_and_small_ones_are_not(tmp_path: Path) -> None:
    """What people edit must not be a link; a weight file need not be on the disk twice."""
    for size, links in ((LINKED_BYTES - 1, 1), (LINKED_BYTES, 3)):
        step = Step(size, size)
        for name in ("a", "b"):
            step.into(tmp_path / f"{name}{size}")
        (entry,) = (entry for entry in entries() if entry.bytes == 2 * size)
        cloned = (tmp_path / f"a{size}/one").stat().st_ino != (entry.path / "files/one").stat().st_ino
        assert (tmp_path / f"b{size}/one").stat().st_nlink == (1 if cloned else links)


Damage = Callable[[Path], object]


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def forge(folder: Path, **changes: Any) -> None:
    """Seal an entry anew with other contents, as someone who knows the layout could."""
    body = json.loads((folder / "seal.json").read_bytes())
    seal(folder, body["step"], body["about"], Done(**{"result": body["result"], "files": body["files"], **changes}))


def replace_by_file(folder: Path) -> None:
    store.remove(folder)
    folder.write_text("x")


OUTSIDE = {"../../../stolen": {"bytes": 1, "sha256": "0" * 64}}
DAMAGES: dict[str, Damage] = {
    "byte": lambda folder: flip(folder / "files" / "one"),
    "inner byte": lambda folder: flip(folder / "files" / "inner" / "other"),
    "truncated": lambda folder: os.truncate(folder / "files" / "one", 10),
    "missing": lambda folder: (folder / "files" / "one").unlink(),
    "a folder instead": lambda folder: ((folder / "files/one").unlink(), (folder / "files/one").mkdir()),
    "no seal": lambda folder: (folder / "seal.json").unlink(),
    "seal": lambda folder: flip(folder / "seal.json"),
    "empty seal": lambda folder: (folder / "seal.json").write_bytes(b""),
    "a list": lambda folder: (folder / "seal.json").write_text("[1]"),
    "deep": lambda folder: (folder / "seal.json").write_text("[" * 100_000),
    "outside": lambda folder: forge(folder, files=OUTSIDE),
    "no digests": lambda folder: forge(folder, files={"one": {}}),
    "empty": lambda folder: [path.unlink() for path in folder.rglob("*") if path.is_file()],
    "a file": replace_by_file,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_dropped_with_a_note_and_made_anew(damage: str, tmp_path: Path) -> None:
    step, told = Step(), Told()
    step.into(tmp_path / "a")
    DAMAGES[damage](entry_folder())
    assert not step.into(tmp_path / "b", told).reused
    step.check(tmp_path / "b")
    assert told.notes == [
        "The cache's copy of a finished step (step) is damaged: it is dropped, and the step is done again."
    ]
    told = Told()
    assert step.into(tmp_path / "c", told).reused
    assert step.count == 2
    assert told.notes == []
    assert not (tmp_path / "stolen").exists()


def test_a_bundle_that_is_edited_in_place_spoils_no_other(tmp_path: Path) -> None:
    step = Step(size=LINKED_BYTES)
    for name in ("a", "b"):
        step.into(tmp_path / name)
    flip(tmp_path / "b" / "one")
    assert not step.into(tmp_path / "c").reused
    step.check(tmp_path / "c")


def test_a_step_that_fails_leaves_nothing(tmp_path: Path) -> None:
    tmp_path.joinpath("a").mkdir()

    def fail() -> None:
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        Store(tmp_path / "a", Told(), "model").step("step", {"seed": 0}, fail)
    assert entries() == []
    assert not Step().into(tmp_path / "a").reused  # and its lock is free


def test_a_step_that_rewrites_a_file_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "old").write_bytes(b"before")

    def make() -> None:
        (tmp_path / "a" / "old").write_bytes(b"after!")
        (tmp_path / "a" / "new").write_bytes(b"x")

    done = Store(tmp_path / "a", Told(), "model").step("step", {}, make)
    assert done.spoilt == ("old",)
    assert list(done.files) == ["new", "old"]
    assert entries() == []


def test_a_file_in_the_place_of_another_is_taken_over(tmp_path: Path) -> None:
    def into(root: Path) -> Done:
        root.mkdir()
        (root / "weights").write_bytes(b"before")

        def make() -> None:
            (root / "scratch").write_bytes(b"before and more")
            (root / "scratch").replace(root / "weights")

        return Store(root, Told(), "model").step("step", {}, make)

    first, second = (into(tmp_path / name) for name in ("a", "b"))
    assert (first.spoilt, first.reused, second.reused) == ((), False, True)
    assert first.files == second.files
    assert (tmp_path / "b" / "weights").read_bytes() == b"before and more"


@pytest.mark.parametrize("place", ["a file", "locked away"])
def test_a_cache_that_cant_be_used_costs_no_build(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if place == "a file":
        (tmp_path / "cache").write_text("mine")
    else:
        refused = PermissionError(errno.EACCES, os.strerror(errno.EACCES), "steps")
        monkeypatch.setattr(store, "new_folder", raiser(refused))
        monkeypatch.setattr(store, "held", raiser(refused))
    told, step = Told(), Step()
    for name in ("a", "b"):
        assert not step.into(tmp_path / name, told).reused
        step.check(tmp_path / name)
    assert len(told.notes) == 2  # each build says so once
    assert "can't be used (" in told.notes[0]
    assert "finished steps of this build are not kept" in told.notes[0]


def test_a_full_disk_costs_no_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "share_file", raiser(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    told, step = Told(), Step()
    made = Store(tmp_path, told, "model")
    for seed in (0, 1):
        made.step("nothing", {"seed": seed}, lambda: None)  # no files, so nothing to copy
        assert told.notes == []
    step.into(tmp_path / "a", told)
    step.check(tmp_path / "a")
    assert len(told.notes) == 1
    assert "No space is left" in told.notes[0]
    assert [path.name for path in steps_home().iterdir() if "partial" in path.name] == []


def test_a_cache_that_cant_be_read_costs_no_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that is whole, and whose second file fails when it is taken: what stood in the root still stands."""
    step, told = Step(), Told()
    step.into(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "one").write_bytes(b"before")
    share, seen = store.share_file, []

    def fail_second(source: Path, target: Path) -> None:
        assert (tmp_path / "b" / "one").read_bytes() == b"before"
        seen.append(target)
        if len(seen) == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        share(source, target)

    monkeypatch.setattr(store, "share_file", fail_second)
    assert not step.into(tmp_path / "b", told).reused
    step.check(tmp_path / "b")
    assert [note.partition(")")[0] for note in told.notes] == [
        f"The cache folder {cache_home()} can't be used (Input/output error"
    ]


def raiser(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_those_go_first_that_were_not_used_for_longest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEWRIGHT_CACHE_BYTES", "6500")
    for seed in range(3):
        Step(seed).into(tmp_path / f"made{seed}")
    for age, seed in ((300, 1), (200, 0), (100, 2)):
        (entry,) = (entry for entry in entries() if entry.result["seed"] == seed)
        os.utime(entry.path / "seal.json", (10**9 - age, 10**9 - age))
    assert [entry.result["seed"] for entry in entries()] == [1, 0, 2]
    assert Step(1).into(tmp_path / "used").reused
    Step(3).into(tmp_path / "more")
    assert sorted(entry.result["seed"] for entry in entries()) == [1, 2, 3]
    assert sum(entry.bytes for entry in entries()) <= 6500
    assert len(list(steps_home().glob("*.lock"))) == 3
    Step(4, size=4000).into(tmp_path / "large")  # 8000 bytes never fit, and nothing goes for them
    assert sorted(entry.result["seed"] for entry in entries()) == [1, 2, 3]


def test_an_entry_in_use_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEWRIGHT_CACHE_BYTES", "2500")
    Step(0).into(tmp_path / "a")
    folder = entry_folder()
    lock = try_lock(folder.with_name(f"{folder.name}.lock"))
    assert lock is not None
    with lock:
        Step(1).into(tmp_path / "b")
        assert [entry.result["seed"] for entry in entries()] == [0]
    Step(1).into(tmp_path / "c")
    assert [entry.result["seed"] for entry in entries()] == [1]


def test_entries_that_cant_be_read_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows their size, and nobody may ever ask for them again."""
    monkeypatch.setenv("EDGEWRIGHT_CACHE_BYTES", "6500")
    for seed in range(3):
        Step(seed).into(tmp_path / f"made{seed}")
        if seed:
            damaged = max(entries(), key=lambda entry: entry.result["seed"])
            (damaged.path / "seal.json").write_bytes(b"")
    Step(3).into(tmp_path / "more")
    assert sorted(entry.result["seed"] for entry in entries()) == [0, 3]
    assert len([path for path in steps_home().iterdir() if path.is_dir()]) == 2


def test_no_bytes_mean_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEWRIGHT_CACHE_BYTES", "0")
    step = Step()
    for name in ("a", "b"):
        assert not step.into(tmp_path / name).reused
    assert not steps_home().exists()


@pytest.mark.parametrize("text", ["many", "-1", "1e9", "20GB", "²"])
def test_a_limit_that_is_no_number(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEWRIGHT_CACHE_BYTES", text)
    with pytest.raises(UsageError, match=r"EDGEWRIGHT_CACHE_BYTES is .*: give a number of bytes"):
        limit_bytes()


def test_the_limit_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGEWRIGHT_CACHE_BYTES")
    for free, limit in ((10**9, 10**8), (10**13, 20 * 10**9)):
        monkeypatch.setattr(store.shutil, "disk_usage", lambda place, free=free: _Usage(free))
        assert limit_bytes() == limit


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free


# -- several at once, and killed ones ----------------------------------------------------------------------------------


def test_two_that_want_the_same_do_it_once(tmp_path: Path) -> None:
    started, go, done, told = threading.Event(), threading.Event(), [], Told()
    (tmp_path / "a").mkdir()

    def make() -> int:
        started.set()
        assert go.wait(20)
        (tmp_path / "a" / "file").write_bytes(b"x")
        return 7

    def second() -> None:
        (tmp_path / "b").mkdir()
        done.append(Store(tmp_path / "b", told, "model").step("step", {}, raiser(AssertionError("done twice"))))

    first = threading.Thread(target=lambda: done.append(Store(tmp_path / "a", Told(), "model").step("step", {}, make)))
    first.start()
    assert started.wait(20)
    other = threading.Thread(target=second)
    other.start()
    while "wait for another run of the same" not in told.steps:
        assert other.is_alive()
    go.set()
    first.join(20)
    other.join(20)
    assert [one.result for one in done] == [7, 7]
    assert (tmp_path / "b" / "file").read_bytes() == b"x"


def test_a_killed_holder_blocks_nobody(tmp_path: Path) -> None:
    read, write = os.pipe()
    step = Step()
    step.into(tmp_path / "a")
    folder = entry_folder()
    child = os.fork()
    if child == 0:
        kept = try_lock(folder.with_name(f"{folder.name}.lock"))
        (steps_home() / ".dead.partial-1").mkdir()
        os.write(write, b"held" if kept is not None else b"lost")
        signal.pause()
        os._exit(1)
    assert os.read(read, 4) == b"held"
    assert try_lock(folder.with_name(f"{folder.name}.lock")) is None
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert step.into(tmp_path / "b").reused
    assert not (steps_home() / ".dead.partial-1").exists()


def test_leftovers_are_swept(tmp_path: Path) -> None:
    steps_home().mkdir(parents=True)
    (steps_home() / "0123.lock").touch()
    stale, fresh = (cache_home() / f"digests-{pid}.tmp" for pid in (1, 2))
    for path in (stale, fresh):
        path.write_text("{}")
    os.utime(stale, (10**9, 10**9))
    Store(tmp_path, Told(), "model")
    assert not (steps_home() / "0123.lock").exists()
    assert (stale.exists(), fresh.exists()) == (False, True)


# -- builds ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often each costly step of a build was done."""
    counts = {"write_stage": 0, "write_outside": 0, "compile_stage": 0, "verify": 0}

    def count(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return function(*args, **kwargs)

        return counting

    from edgewright.build.llm import LlmMaker

    for owner, name in ((pipeline, "write_stage"), (pipeline, "write_outside"), (cpu, "compile_stage")):
        monkeypatch.setattr(owner, name, count(name, getattr(owner, name)))
    monkeypatch.setattr(LlmMaker, "verify", count("verify", LlmMaker.verify))
    return counts


def contents(folder: Path) -> Mapping[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def done_since(counts: dict[str, int]) -> list[str]:
    """Return the names of what was done, and begin to count anew."""
    done = [name for name, count in counts.items() if count]
    counts.update(dict.fromkeys(counts, 0))
    return done


def test_a_build_does_only_what_changed(counted: dict[str, int], tmp_path: Path) -> None:
    options: dict[str, Any] = {"recipe": "int8", "embeddings": "outside"}
    first = deploy(LLAMA, tmp_path / "a", **options)
    assert done_since(counted) == ["write_stage", "write_outside", "compile_stage", "verify"]
    again = deploy(LLAMA, tmp_path / "b", **options)
    assert done_since(counted) == []
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert first.manifest == again.manifest == read_manifest(tmp_path / "b")
    check_files(tmp_path / "b", again.manifest)
    # Without verification, exported, compiled from what was exported: the same steps.
    deploy(LLAMA, tmp_path / "c", verify=False, **options)
    exported = export(LLAMA, tmp_path / "d", dialect="onnxruntime", **options)
    assert done_since(counted) == []
    check_files(tmp_path / "d", exported.manifest)
    assert exported.manifest.files["stages/llm/weights.bin"] == first.manifest.files["stages/llm/weights.bin"]
    compiled = compile_bundle(tmp_path / "d", tmp_path / "e")
    assert done_since(counted) == []
    assert compiled.manifest.stages == first.manifest.stages
    check_files(tmp_path / "e", compiled.manifest)
    # Another dialect, another recipe, another context: other stages.
    export(LLAMA, tmp_path / "f", dialect="portable", **options)
    assert done_since(counted) == ["write_stage"]
    deploy(LLAMA, tmp_path / "g", verify=False, recipe="float16", embeddings="outside")
    assert done_since(counted) == ["write_stage", "write_outside", "compile_stage"]
    deploy(LLAMA, tmp_path / "h", verify=False, max_context=77, **options)
    assert done_since(counted) == ["write_stage", "write_outside", "compile_stage"]


def test_what_decides_over_a_step(counted: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(name: str) -> list[str]:
        deploy(LLAMA, tmp_path / name, recipe="float32", verify=False)
        return done_since(counted)

    assert build("first") == ["write_stage", "compile_stage"]
    assert build("same") == []
    monkeypatch.setattr(steps, "_program", lambda: "another program")
    assert build("program") == ["write_stage", "compile_stage"]
    monkeypatch.setattr(steps, "_packages", lambda: {"numpy": "9.9"})
    assert build("packages") == ["write_stage", "compile_stage"]
    monkeypatch.setattr(steps, "_plugins", lambda: {"other": "1"})
    assert build("plugins") == ["write_stage", "compile_stage"]
    assert build("same again") == []


@pytest.mark.parametrize("value", ["no_such_package:plug", ":plug", "..:plug", "a b:plug"])
def test_a_package_with_nonsense_for_an_entry_point_costs_no_build(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe(tmp_path / "site", "odd-package", "1.0", {"edgewright.targets": {"odd": value}})
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    steps._plugins.cache_clear()
    assert "1.0" in steps._plugins().values()
    steps._plugins.cache_clear()


class Compiler(cpu.CpuBackend):
    """A back end that takes an option, and may say what else decides over what it makes."""

    options: ClassVar[Mapping[str, str]] = {"calibration": "a file", "level": "a number"}


@pytest.mark.parametrize("says", [None, "tool 1", "nothing"])
def test_what_decides_over_an_engine(
    says: str | None, counted: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend: Any = Compiler()
    if says != "nothing":
        backend.decides = lambda platform, options: None if says is None else {"tool": says}
    monkeypatch.setattr(cpu, "BACKEND", backend)
    data, count = tmp_path / "data.bin", iter(range(100))
    data.write_bytes(b"1")

    def build(**options: str) -> list[str]:
        deploy(LLAMA, tmp_path / str(next(count)), recipe="float32", verify=False, options=options)
        return done_since(counted)

    build(calibration=str(data))
    always = ["compile_stage"] if says is None else []
    assert build(calibration=str(data)) == always
    assert build(calibration=str(data), level="2") == ["compile_stage"]
    data.write_bytes(b"2")
    assert build(calibration=str(data)) == ["compile_stage"]
    if says == "tool 1":
        backend.decides = lambda platform, options: {"tool": "tool 2"}
        assert build(calibration=str(data)) == ["compile_stage"]


def test_a_damaged_cache_heals_in_a_build(counted: dict[str, int], tmp_path: Path) -> None:
    deploy(LLAMA, tmp_path / "a", recipe="int8", embeddings="outside")
    done_since(counted)
    for entry in entries():
        for path in (entry.path / "files").rglob("*"):
            if path.is_file():
                flip(path)
    told = Told()
    deploy(LLAMA, tmp_path / "b", recipe="int8", embeddings="outside", progress=told)
    assert done_since(counted) == ["write_stage", "write_outside", "compile_stage"]
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert [note.partition(")")[0].partition("(")[2] for note in told.notes] == [
        "embedding table", "stage llm", "stage llm compiled for cpu",
    ]  # fmt: skip
    assert all(read_entry(entry.path) == entry for entry in entries())


def test_a_result_that_is_not_worth_it_is_not_kept(tmp_path: Path) -> None:
    for status, kept in (("partly checked", 0), ("passed", 1)):
        made = Store(tmp_path, Told(), "model")
        result = {"status": status}
        done = made.step("check", {}, lambda result=result: result, lambda found: bool(found["status"] == "passed"))
        assert done.result == result
        assert len(entries()) == kept


def test_a_failed_verification_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgewright.build.llm import LlmMaker
    from edgewright.errors import VerificationError

    class Failed:
        passed = False

        def reason(self) -> str:
            return "weights: wrong."

    for name in ("a", "b"):
        with monkeypatch.context() as patch:
            patch.setattr(LlmMaker, "verify", lambda *_: Failed())
            with pytest.raises(VerificationError, match="weights: wrong"):
                deploy(LLAMA, tmp_path / name, recipe="float32")
    assert "verification" not in {entry.title for entry in entries()}
    assert deploy(LLAMA, tmp_path / "c", recipe="float32").manifest.verdict["status"] == "passed"
