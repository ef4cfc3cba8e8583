"""Makes `tests/goldens/runs`: a simulated run and a real one of tiny models, as `bench run` records them.

Run it with the development environment; it needs nothing else: python tools/goldens/make_runs.py
The machine of the real run is replaced by a made-up one, and its folders by short names.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from dialog_cases import make_files, mixed_case  # noqa: E402
from edgewright.bench.case import Case, read_cases  # noqa: E402
from edgewright.bench.concurrent import run_case  # noqa: E402

GOLDENS = ROOT / "tests" / "goldens" / "runs"
SIMULATED = """\
version: 1
name: simulated
models:
  llm: {simulated: {prefill_ms: 40, chunk: 128, decode_ms: 14.6, host_ms: 1.5, jitter: 0.05}}
  vlm: {simulated: {prefill_ms: 180, chunk: 128, decode_ms: 71, host_ms: 2, jitter: 0.05}}
dialogs:
  - {name: chat, model: llm, input: {prompt_tokens: 64}, max_tokens: 90, timeline: "1:0,0:1500,4:3000"}
  - {name: camera, model: vlm, input: {prompt_tokens: 273}, max_tokens: 24, weight: 2}
  - {name: map, model: vlm, input: {prompt_tokens: 300}, max_tokens: 24, weight: 1, start_ms: 500}
scheduler: {discipline: weighted, hold_ms: 3}
"""
#: What is kept of a run folder: the rest is made of these.
KEPT = ("case.resolved.json", "env.json", "steps.jsonl", "jobs.jsonl", "events.jsonl", "summary.json")


def main() -> None:
    """Make both."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "case.yaml").write_text(SIMULATED)
        keep(read_cases(work / "case.yaml")[0], work)
        keep(mixed_case(make_files(work), repeats=3), work)


def keep(case: Case, work: Path) -> None:
    """Run a case and keep its files."""
    found = run_case(case, work / "out", run_id="golden").folder
    place = GOLDENS / case.name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for name in KEPT:
        text = (found / name).read_text().replace(str(work), "models")
        if name == "env.json":
            text = json.dumps(anonymous(json.loads(text)), indent=1) + "\n"
        (place / name).write_text(text)


def anonymous(env: dict) -> dict:
    """Return an environment without what only this machine has."""
    machine = {"system": "Linux", "release": "6.1.0", "arch": "x86_64", "cpu": "a made-up CPU", "features": ["avx2"],
               "logical_cores": 2, "usable_cores": 2, "memory_bytes": 8_000_000_000, "governor": None,
               "load": [0.1, 0.1, 0.1]}  # fmt: skip
    return {**env, "begun": "2026-12-01T10:00:00Z", "machine": machine}


if __name__ == "__main__":
    main()
