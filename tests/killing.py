"""Builds that are killed: a process of its own that forks one build after the other and lets each die at one moment.

Moments are counted: every file that is opened, renamed, linked or deleted, every lock, every flush, and every piece of
work that a build tells of is one. Run as a script it prints what it found as JSON.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from edgewright.build import steps, store
from edgewright.build.pipeline import compile_bundle, deploy
from edgewright.build.sources import PolicyRequest
from edgewright.checkpoint.policy import PolicyOptions
from edgewright.progress import Advance, Progress
from policy_goldens import OPTIONS

_EVENTS = ("open", "os.", "fcntl.", "shutil.")
#: So many builds are killed, each going on from the one before, until one is left to finish.
CHAIN = 2


class Moments(Progress):
    """Counts, and kills the process at a moment, if there is one to die at; only files below `place` count."""

    def __init__(self, last: int | None, place: str) -> None:
        self.count, self.last, self.place = itertools.count(1), last, place
        self.seen = 0

    def tick(self) -> None:
        self.seen = next(self.count)
        if self.seen == self.last:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        if event.startswith("fcntl.") or (event.startswith(_EVENTS) and str(args[0]).startswith(self.place)):
            self.tick()

    @contextmanager
    def step(self, title: str, total: int = 0) -> Iterator[Advance]:
        self.tick()
        yield lambda amount: self.tick()
        self.tick()


def forked(work: Callable[[Moments], Any], last: int | None, root: Path) -> int:
    """Do work in a process of its own that dies at a moment; returns its exit code, that of a signal below zero.

    What it counted, and the modules it had to import, are in files of the root.
    """
    child = os.fork()
    if child == 0:
        code = 70
        try:
            moments = Moments(last, str(root))
            os.fsync = lambda descriptor: moments.tick()  # the machine goes on: what was written is there
            sys.addaudithook(moments.hook)
            work(moments)
            (root / "moments").write_text(str(moments.seen))
            (root / "modules").write_text(" ".join(sorted(sys.modules)))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def digests(folder: Path) -> dict[str, str]:
    """Return the digests of all files of a folder by path."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def unsound() -> list[str]:
    """Return the names of entries of the store that aren't what their seals say."""
    bad = []
    for folder in sorted(path for path in store.steps_home().glob("[!.]*") if path.is_dir()):
        entry = store.read_entry(folder)
        files = None if entry is None else {name: file["sha256"] for name, file in entry.files.items()}
        if files is None or (digests(folder / "files") if files else {}) != files:
            bad.append(folder.name)
    return bad


class Case:
    """One kind of build, in a fresh folder with a fresh cache for each moment."""

    def __init__(self, root: Path, source: Path, kind: str, options: dict[str, Any]) -> None:
        self.root, self.source, self.kind, self.options = root, source, kind, options
        self.place = root / "none"

    def fresh(self, name: str) -> None:
        """Begin anew: a folder for the output, a cache, a folder for temporary files."""
        shutil.rmtree(self.place, ignore_errors=True)
        self.place = self.root / name
        for part in ("out", "cache", "tmp"):
            (self.place / part).mkdir(parents=True)
        os.environ["XDG_CACHE_HOME"] = str(self.place / "cache")
        tempfile.tempdir = str(self.place / "tmp")
        if self.kind == "replace":
            shutil.copytree(self.root / "before", self.place / "out" / "bundle")

    def build(self, moments: Moments) -> None:
        """Build."""
        output = self.place / "out" / "bundle"
        if self.kind == "compile":
            if output.exists():
                return  # it was killed when all was done; compiling again is refused
            compile_bundle(self.source, output, progress=moments)
            return
        asked = PolicyRequest(PolicyOptions(**OPTIONS[self.source.parent.name])) if self.kind == "policy" else None
        deploy(self.source, output, force=self.kind == "replace", policy=asked, progress=moments, **self.options)

    def left(self) -> list[str]:
        """Return what lies beside the output, and what is unfinished in the cache."""
        beside = [path.name for part in ("out", "tmp") for path in (self.place / part).iterdir()]
        unfinished = [path.name for path in (self.place / "cache").rglob("*") if ".partial-" in path.name]
        return sorted({*beside, *unfinished} - {"bundle"})


def kill_builds(case: Case, points: int, seed: int) -> dict[str, Any]:
    """Kill builds at so many random moments and finish each; returns what was wrong, and how many moments there are.

    A build that goes on from another has fewer moments, so one that was to die may end before: that is no kill.
    """
    root = case.root
    if case.kind == "replace":
        case.kind = "deploy"
        case.fresh("first")
        assert forked(lambda _: deploy(case.source, root / "before", recipe="float16", verify=False), None, root) == 0
        case.kind = "replace"
    case.fresh("whole")
    assert forked(case.build, None, root) == 0
    total, wanted = int((root / "moments").read_text()), digests(case.place / "out" / "bundle")
    before = digests(root / "before")  # nothing, where nothing is replaced
    # Every fork has what the first one had to import, and what a process finds out once.
    for name in (root / "modules").read_text().split():
        with suppress(ImportError):
            importlib.import_module(name)
    steps._surroundings()
    wrong, killed, taken, chain, output = [], 0, 0, 0, Path()
    for point in random.Random(seed).sample(range(1, total + 1), total):
        if killed == points:
            break
        if chain == 0:
            case.fresh(f"at-{point}")
            output = case.place / "out" / "bundle"
        code = forked(case.build, point, root)
        killed += code == -signal.SIGKILL
        chain += 1
        if digests(output) not in (wanted, before) or code not in (0, -signal.SIGKILL):
            wrong.append(f"{point}: the output is half made ({code})")
        if bad := unsound():
            wrong.append(f"{point}: the store holds {bad}")
        taken += len(store.entries())
        if code and chain < CHAIN and killed < points:
            continue
        chain = 0
        if forked(case.build, None, root) != 0 or digests(output) != wanted:
            wrong.append(f"{point}: the next build gives other bytes")
        if left := case.left():
            wrong.append(f"{point}: left behind: {left}")
        if bad := unsound():
            wrong.append(f"{point}: afterwards the store holds {bad}")
    return {"moments": total, "killed": killed, "kept": taken, "wrong": wrong}


def main() -> None:
    """Read the cases from the command line, print what was found, by the case's name."""
    root, cases = Path(sys.argv[1]), json.loads(sys.argv[2])
    gc.disable()
    found = {}
    for name, given in cases.items():
        (root / name).mkdir()
        case = Case(root / name, Path(given["source"]), given["kind"], given["options"])
        found[name] = kill_builds(case, given["points"], seed=2026)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
