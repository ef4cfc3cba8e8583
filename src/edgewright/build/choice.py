"""Engines by measurement: every stage is built for each of them, they run here in turns, and the better is taken."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edgewright.build.engines import DEFAULT_ENGINE, ENGINES, Engines, Optimize
from edgewright.build.key import STAGES
from edgewright.bundle import Manifest
from edgewright.errors import EdgewrightError, HostError
from edgewright.files import canonical_json, os_errors, scratch_folder
from edgewright.progress import Progress
from edgewright.runtime.engines.openvino import CACHE_VARIABLE
from edgewright.runtime.paired import PREFILL

#: Where a bundle has what was measured.
REPORT = "reports/engines.json"
#: How often each engine takes its turn, and how long one may take, in seconds.
ROUNDS, _TIMEOUT = 3, 1800
#: Another engine is taken only where it is better by so much: below that, the difference is the machine's.
MARGIN = 0.05
#: The two phases of a language model get engines of their own only where that wins so much: it holds weights twice.
PAIR_MARGIN = 0.10
_WORKER = "edgewright.bench.stage_worker"

#: Builds the stages with the engines of a mapping into a folder; raises the package's errors where one can't.
Build = Callable[[Path, Engines], Manifest]


@dataclass(frozen=True)
class Figures:
    """What was measured of a stage on an engine: medians of all turns. `peak_bytes` is a process's with it alone."""

    stage: str
    engine: str
    load_ms: float
    peak_bytes: int | None
    ms: Mapping[str, float]

    @property
    def total_ms(self) -> float:
        """The time of all phases."""
        return sum(self.ms.values())


@dataclass(frozen=True)
class Choice:
    """The engines that were chosen, what was measured, and in what words engines refused stages."""

    engines: dict[str, str]
    optimize: Optimize
    measured: Sequence[Figures]
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def note(self) -> str:
        """The choice in a line, with what a pair of engines costs."""
        line = ", ".join(f"{stage} on {engine}" for stage, engine in self.engines.items())
        line = f"engines measured where it was deployed, the better taken by {self.optimize}: {line}"
        return f"{line}; {self._cost}" if PREFILL in self.engines else line

    @property
    def _cost(self) -> str:
        """What the second engine of a language model takes."""
        peak = {figures.engine: figures.peak_bytes for figures in self.measured}[self.engines[PREFILL]]
        more = "memory that can't be measured here" if peak is None else f"up to {peak / 1e6:,.0f} MB of memory"
        return f"the pair holds the weights twice, which takes {more} besides"

    def to_json(self) -> dict[str, Any]:
        """Return the choice as JSON-compatible values."""
        return {
            "engines": self.engines,
            "optimize": self.optimize,
            "measured": [asdict(figures) for figures in self.measured],
            "refused": dict(self.refused),
        }

    def write(self, work: Path) -> None:
        """Write the report into a bundle."""
        path = work / REPORT
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(canonical_json(self.to_json()))


def choose(build: Build, output: Path, stages: Sequence[str], optimize: Optimize, progress: Progress) -> Choice:
    """Return the better engine of each stage, by latency or by memory.

    What is built for it is deleted again. An engine that refuses a stage is out for that stage. Raises HostError when
    memory can't be measured here or a stage runs nowhere, and what the first engine refuses as it refuses it.
    """
    with _scratch(output) as scratch:
        built, refused = _candidates(build, scratch, stages)
        with progress.step("measure engines"):
            measured, failed = _measured(built)
    refused |= failed
    if missing := [stage for stage in stages if not any(one.stage == stage for one in measured)]:
        words = "; ".join(refused.values())
        raise HostError(f"No engine runs the stage {missing[0]} here ({words}): deploy with --engine {DEFAULT_ENGINE}.")
    return Choice(picked(measured, optimize), optimize, measured, refused)


def picked(measured: Sequence[Figures], optimize: Optimize) -> dict[str, str]:
    """Return the engines for the stages that were measured, in their order; `prefill` where a pair is better.

    Raises HostError where memory decides and isn't known.
    """
    found: dict[str, str] = {}
    for stage in dict.fromkeys(figures.stage for figures in measured):
        ours = [figures for figures in measured if figures.stage == stage]
        if optimize == "memory":
            found[stage] = _least(ours, _peak, MARGIN).engine
        elif stage in STAGES:
            found |= _for_phases(ours, stage)
        else:
            found[stage] = _least(ours, lambda figures: figures.total_ms, MARGIN).engine
    return found


def _for_phases(ours: Sequence[Figures], stage: str) -> dict[str, str]:
    """Return one engine for both phases of a language model, or one for each where both win enough by that."""
    one = _least(ours, _both_phases, MARGIN)
    decode = _least(ours, lambda figures: figures.ms["decode"], PAIR_MARGIN)
    prefill = _least(ours, lambda figures: figures.ms["prefill"], PAIR_MARGIN)
    apart = decode.ms["decode"] < prefill.ms["decode"] * (1 - PAIR_MARGIN)
    apart = apart and prefill.ms["prefill"] < decode.ms["prefill"] * (1 - PAIR_MARGIN)
    return {stage: decode.engine, PREFILL: prefill.engine} if apart else {stage: one.engine}


def _both_phases(figures: Figures) -> float:
    """Weigh the phases alike: by the product of their times, in which their units don't matter."""
    return figures.ms["prefill"] * figures.ms["decode"]


def _peak(figures: Figures) -> float:
    if figures.peak_bytes is None:
        raise HostError("The memory of a process can't be measured on this system: use --optimize latency.")
    return figures.peak_bytes


def _least(ours: Sequence[Figures], cost: Callable[[Figures], float], margin: float) -> Figures:
    """Return the default engine unless another one costs less by the margin."""
    order = sorted(ours, key=lambda figures: list(ENGINES).index(figures.engine))
    best = order[0]
    for other in order[1:]:
        if cost(other) < cost(best) * (1 - margin):
            best = other
    return best


@contextmanager
def _scratch(output: Path) -> Iterator[Path]:
    with ExitStack() as stack:
        with os_errors("the engines to be measured"):
            output.parent.mkdir(parents=True, exist_ok=True)
            folder = stack.enter_context(scratch_folder(output.parent))
        yield folder


def _candidates(
    build: Build, scratch: Path, stages: Sequence[str]
) -> tuple[dict[tuple[str, str], Path], dict[str, str]]:
    """Build every stage for every engine; returns folders by stage and engine, and refusals.

    Where an engine refuses, each stage is tried by itself, the others being on the first engine.
    """
    found: dict[tuple[str, str], Path] = {}
    refused: dict[str, str] = {}
    for engine in ENGINES:
        folder = _made(scratch / engine)
        try:
            build(folder, dict.fromkeys(stages, engine))
            found |= {(stage, engine): folder for stage in stages}
        except EdgewrightError as error:
            if engine == DEFAULT_ENGINE:
                raise
            if len(stages) == 1:
                refused[f"{stages[0]} on {engine}"] = str(error)
                continue
            for stage in stages:
                alone = _made(scratch / f"{engine}-{stage}")
                try:
                    build(alone, {**dict.fromkeys(stages, DEFAULT_ENGINE), stage: engine})
                    found[stage, engine] = alone
                except EdgewrightError as own:
                    refused[f"{stage} on {engine}"] = str(own)
    return found, refused


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _measured(built: Mapping[tuple[str, str], Path]) -> tuple[list[Figures], dict[str, str]]:
    """Let all candidates take turns, each time in a fresh process, the order turned round every time."""
    turns: dict[tuple[str, str], list[dict[str, Any]]] = {key: [] for key in sorted(built, key=_order)}
    failed: dict[str, str] = {}
    for number in range(ROUNDS):
        for stage, engine in list(turns)[:: -1 if number % 2 else 1]:
            name = f"{stage} on {engine}"
            if name in failed:
                continue
            answer = run_worker(built[stage, engine], stage)
            if "error" in answer:
                failed[name] = str(answer["error"])
            else:
                turns[stage, engine].append(answer)
    kept = {key: answers for key, answers in turns.items() if " on ".join(key) not in failed}
    return [_figures(stage, engine, answers) for (stage, engine), answers in kept.items()], failed


def _order(key: tuple[str, str]) -> tuple[int, str]:
    stage, engine = key
    return list(ENGINES).index(engine), stage


def _figures(stage: str, engine: str, answers: Sequence[Mapping[str, Any]]) -> Figures:
    peaks = [answer["peak_bytes"] for answer in answers if answer["peak_bytes"] is not None]
    phases = {
        phase: round(statistics.median(ms for answer in answers for ms in answer["ms"][phase]), 4)
        for phase in answers[0]["ms"]
    }
    load = round(statistics.median(answer["load_ms"] for answer in answers), 2)
    return Figures(stage, engine, load, int(statistics.median(peaks)) if peaks else None, phases)


def run_worker(folder: Path, stage: str, threads: int | None = None) -> dict[str, Any]:
    """Measure a stage in a fresh process; what goes wrong there is the answer's `error`."""
    job = json.dumps({"folder": str(folder), "stage": stage, "threads": threads})
    command = [sys.executable, "-P", "-m", _WORKER]
    # What is measured is deleted: nothing of it belongs into the user's cache, and its loading is to be seen.
    variables = {name: value for name, value in os.environ.items() if name != CACHE_VARIABLE}
    try:
        done = subprocess.run(
            command, input=job, env=variables, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"measuring took longer than {_TIMEOUT} s"}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return {"error": f"its process ended with {done.returncode} ({last})"}
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def choice_lines(report: Mapping[str, Any]) -> list[str]:
    """Return what a bundle's report of engines says as lines of a table."""
    lines = [f"{'stage':8} {'engine':12} {'load ms':>9} {'peak MB':>9}  time"]
    chosen: Mapping[str, str] = report["engines"]
    for row in report["measured"]:
        peak = "-" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e6:,.0f}"
        times = ", ".join(f"{phase} {ms:,.2f} ms" for phase, ms in sorted(row["ms"].items(), reverse=True))
        whose = (row["stage"], PREFILL) if row["stage"] in STAGES else (row["stage"],)
        roles = [stage for stage in whose if chosen.get(stage) == row["engine"]]
        mark = f"  <- {' and '.join(roles)}" if roles else ""
        lines.append(f"{row['stage']:8} {row['engine']:12} {row['load_ms']:9,.0f} {peak:>9}  {times}{mark}")
    return [*lines, *(f"{what}: refused: {words}" for what, words in report["refused"].items())]
