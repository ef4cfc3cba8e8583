"""Kill builds of a model at random moments of the clock, go on each time, and compare what comes out.

    .venv/bin/python benchmarks/kill_builds.py models/SmolLM2-135M-Instruct.Q4_1.gguf --recipe int8 --kills 20

One build is left alone, in a cache of its own. Then builds are started and killed with SIGKILL after a random time of
at most 1.3 times what that one took, each going on from what the one before left, until one ends by itself: that is a
round. Its bundle must be the first one, byte for byte, nothing may lie beside it, and no entry of the cache may differ
from its seal. Rounds begin with an empty cache. They are printed as a table; the exit code is 1 where anything was
wrong.
"""

import argparse
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from edgewright.build.store import read_entry

#: What ONNX Runtime itself leaves where temporary files are.
_NOT_OURS = ".ses"
HEADER = "| round | kills | seconds of the last build | entries kept | wrong |\n|---|---|---|---|---|"


def digests(folder: Path) -> dict[str, str]:
    """Return the digests of a folder's files by path."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            found[path.relative_to(folder).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def unsound(cache: Path) -> tuple[int, list[str]]:
    """Return how many entries a cache has, and the names of those that aren't what their seals say."""
    folders = [path for path in sorted((cache / "edgewright" / "steps").glob("[!.]*")) if path.is_dir()]
    bad = []
    for folder in folders:
        entry = read_entry(folder)
        files = None if entry is None else {name: file["sha256"] for name, file in entry.files.items()}
        if files is None or (digests(folder / "files") if files else {}) != files:
            bad.append(folder.name)
    return len(folders), bad


class Builds:
    """Builds of one model into one folder, with one cache and one folder for temporary files."""

    def __init__(self, place: Path, words: list[str]) -> None:
        for name in ("out", "cache", "tmp"):
            (place / name).mkdir(parents=True)
        self.place, self.output, self.cache = place, place / "out" / "bundle", place / "cache"
        self._command = [sys.executable, "-m", "edgewright", "deploy", *words, "-o", str(self.output), "--quiet"]

    def environment(self) -> Mapping[str, str]:
        """Return the environment of a build."""
        own = {
            "XDG_CACHE_HOME": str(self.cache),
            "TMPDIR": str(self.place / "tmp"),
            "EDGEWRIGHT_CACHE_BYTES": str(10**11),
        }
        return {**os.environ, **own}

    def run(self, seconds: float | None) -> tuple[int, float]:
        """Build, and kill that after some seconds; returns the exit code and how long it took."""
        start = time.monotonic()
        process = subprocess.Popen(self._command, env=self.environment(), stdout=subprocess.DEVNULL)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        return code, time.monotonic() - start

    def left(self) -> list[str]:
        """Return what lies beside the output, and what is unfinished in the cache."""
        beside = [path.name for name in ("out", "tmp") for path in (self.place / name).iterdir()]
        return sorted({*beside, *(path.name for path in self.cache.rglob(".*.partial-*"))} - {"bundle", _NOT_OURS})


def main() -> int:
    """Build, kill, go on, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("--recipe", default="int8")
    parser.add_argument("--no-verify", action="store_true")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    words = [args.source, "--recipe", args.recipe, *(["--no-verify"] if args.no_verify else [])]
    rng, killed, faults = random.Random(args.seed), 0, 0
    with tempfile.TemporaryDirectory(prefix="kill-builds-") as folder:
        whole = Builds(Path(folder) / "whole", words)
        code, total = whole.run(None)
        if code:
            raise SystemExit(f"The build itself fails with exit code {code}.")
        wanted = digests(whole.output)
        print(f"one build: {total:.1f} s, {len(wanted)} files\n{HEADER}", flush=True)
        for number in range(1, args.kills + 1):
            builds, kills, wrong = Builds(Path(folder) / f"round-{number}", words), 0, []
            while True:
                limit = rng.uniform(0, 1.3 * total) if killed + kills < args.kills else None
                code, seconds = builds.run(limit)
                kept, bad = unsound(builds.cache)
                wrong += [f"unsound {name}" for name in bad]
                if digests(builds.output) not in ({}, wanted):
                    wrong.append("half a bundle")
                if code == 0:
                    break
                kills += 1
            wrong += [f"left {name}" for name in builds.left()]
            wrong += [] if digests(builds.output) == wanted else ["other bytes"]
            killed, faults = killed + kills, faults + len(wrong)
            print(f"| {number} | {kills} | {seconds:.1f} | {kept} | {', '.join(wrong) or 'nothing'} |", flush=True)
            shutil.rmtree(builds.place)
            if killed >= args.kills:
                break
    print(f"\n{killed} kills, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
