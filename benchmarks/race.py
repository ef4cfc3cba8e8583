"""Race edgewright against llama.cpp, onnxruntime-genai and openvino-genai on this machine's CPU.

    python benchmarks/race.py --repeats 5 --json race.json --table race.md

Makes what is missing (environments, checkpoints, converted models), measures every contender's quality once, then its
speed in alternated fresh processes. Needs only the standard library, Linux and Python 3.11. See README.md beside it.
"""

import argparse
import fcntl
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import artefacts, report
from harness.machine import cpu_model, wait_until_quiet
from harness.peers import PEERS, ROOT, ensure
from harness.roster import ENTRIES, Entry, select
from harness.runner import WorkerError, run_worker

MODELS = ("smollm2", "qwen3-0.6b")
FULL = {"prefill": 512, "contexts": [32, 1024], "decode": 96}
QUICK = {"prefill": 64, "contexts": [16, 64], "decode": 8}

Settings = dict[str, Any]


@contextmanager
def only_one_race() -> Iterator[None]:
    """Two races at once would measure each other."""
    PEERS.mkdir(exist_ok=True)
    with (PEERS / "race.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit("another race is running") from None
        yield


class Race:
    """All runs of one race, and the file they are kept in."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.settings: Settings = {**(QUICK if args.quick else FULL), "threads": args.threads}
        self.lines: dict[str, list[dict[str, Any]]] = {}
        self.failures: list[str] = []

    def run(self) -> int:
        """Prepare everything, then race, then write the tables; return the exit code."""
        names = self.args.contenders.split(",") if self.args.contenders else None
        chosen = select(self.args.models.split(","), names)
        if self.args.fresh:
            artefacts.forget(self.args.fresh)
        for model in chosen:
            artefacts.checkpoint(model, self.args.edgewright_python)
        artefacts.reference(self.args.edgewright_python, self.args.threads)
        ready = {model: [e for e in entries if self._prepare(model, e)] for model, entries in chosen.items()}
        for model, entries in ready.items():
            if not self.args.prepare_only:
                self._speed(model, entries)
        if not self.args.prepare_only:
            self._write()
        for failure in self.failures:
            print(failure, file=sys.stderr)
        return 1 if self.failures else 0

    def _prepare(self, model: str, entry: Entry) -> bool:
        """Make the entry's files, measure its quality and open its line; False if the contender cannot take part."""
        ours = self.args.edgewright_python
        try:
            folder = artefacts.prepared(model, entry, ours)
            quality = artefacts.quality(entry, ours, self.args.threads)
        except (WorkerError, OSError) as error:
            self.failures.append(f"{entry.name} on {model}: {error}")
            return False
        line = {"name": entry.name, "disk_mb": artefacts.size_mb(folder), "quality": quality, "runs": []}
        self.lines.setdefault(model, []).append(line)
        return True

    def _speed(self, model: str, entries: list[Entry]) -> None:
        """Run every entry `repeats` times, forward, then backward, and so on."""
        order = list(zip(entries, self.lines.get(model, []), strict=True))
        for repeat in range(self.args.repeats):
            for entry, line in order if repeat % 2 == 0 else order[::-1]:
                try:
                    line["runs"].append(self._one(model, entry, repeat))
                except WorkerError as error:
                    self.failures.append(f"{entry.name} on {model}: {error}")
                self._save()

    def _one(self, model: str, entry: Entry, repeat: int) -> dict[str, Any]:
        """Return one run; a dirty one is tried again, and kept with its mark when the tries are used up."""
        folder = artefacts.prepared(model, entry, self.args.edgewright_python)
        python = ensure(entry.peer, self.args.edgewright_python)
        longest = max(self.settings["prefill"], *self.settings["contexts"]) + self.settings["decode"] + 1
        job = {"peer": entry.peer, "path": str(folder), "options": entry.options, **self.settings}
        job |= {"seed": repeat, "capacity": -(-longest // 256) * 256}
        attempts = 0
        while True:
            attempts += 1
            artefacts.read_once(folder)
            if self.args.wait:
                wait_until_quiet(self.args.wait)
            result = run_worker(python, "speed", job)
            print(_brief(model, entry, result), file=sys.stderr, flush=True)
            if not result["dirty"] or attempts > self.args.retries:
                return result | {"repeat": repeat, "attempts": attempts}

    def _save(self) -> None:
        """Keep what is known so far: a race takes an hour and may be interrupted."""
        if self.args.json:
            content = {"cpu": cpu_model(), "settings": self.settings, "models": self.lines, "failures": self.failures}
            self.args.json.write_text(json.dumps(content, indent=1) + "\n")

    def _write(self) -> None:
        self._save()
        tables = {model: [line for line in lines if line["runs"]] for model, lines in self.lines.items()}
        text = report.document(tables, self.settings)
        if self.args.table:
            self.args.table.write_text(text, encoding="utf-8")
        print(text)


def _brief(model: str, entry: Entry, result: dict[str, Any]) -> str:
    numbers = [f"{key} {value:.1f}" for key, value in result.items() if key.startswith(("prefill", "decode"))]
    mark = f"DIRTY foreign {result['foreign']:.0%} steal {result['steal']:.0%}" if result["dirty"] else ""
    return f"{model} {entry.name}: {', '.join(numbers)} {mark}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--models", default=",".join(MODELS), help="default: %(default)s")
    parser.add_argument("--contenders", help="parts of contender names, or peer names, with commas; default: all")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each contender (default: 5)")
    parser.add_argument("--retries", type=int, default=3, help="new tries of a run that others disturbed (default: 3)")
    parser.add_argument("--wait", type=float, default=60, help="seconds to wait for a quiet machine (default: 60)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run, as they come")
    parser.add_argument("--table", type=Path, metavar="FILE.md", help="write the tables (they are printed anyway)")
    parser.add_argument("--fresh", metavar="PEER", help="make this peer's models anew (edgewright, after a change)")
    parser.add_argument("--prepare-only", action="store_true", help="make the files, measure quality, do not race")
    parser.add_argument("--list", action="store_true", help="list the contenders")
    parser.add_argument("--quick", action="store_true", help="tiny, noisy numbers, to see that everything runs")
    default = ROOT / ".venv" / "bin" / "python"
    parser.add_argument("--edgewright-python", type=Path, default=default, help="default: .venv/bin/python")
    args = parser.parse_args()
    if args.quick:
        args.repeats, args.retries, args.wait = 1, 0, 0
    if unknown := set(args.models.split(",")) - set(MODELS):
        parser.error(f"unknown models {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    return args


def main() -> int:
    args = parse()
    if args.list:
        print("\n".join(f"{entry.peer:20} {entry.name}" for entry in ENTRIES))
        return 0
    with only_one_race():
        return Race(args).run()


if __name__ == "__main__":
    sys.exit(main())
