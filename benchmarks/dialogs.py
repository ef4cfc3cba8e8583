"""Three real dialogs on one accelerator: shares, the gaps between steps, and whether all say what they say alone.

    .venv/bin/python benchmarks/dialogs.py
    .venv/bin/python benchmarks/dialogs.py --scale 0.2 --json dialogs.json

One text dialog of SmolLM2 and two that are fed its embeddings, in 16 and in 8 bits, each with a requantization of its
own. First with the weights 4, 2, 1; then with the timeline in which the embedding-fed dialogs begin, the text dialog is
alone from 5 s to 20 s, and all three go on (`--scale` shortens it). Needs `make fetch`; bundles, raw files and run
folders are kept in `--work`. The exit code is 1 where a share is more than 3 % off or a token differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.bench.case.spec import Case, DialogSpec, InputSpec, ModelSpec, RunSpec, SchedulerSpec
from edgewright.bench.concurrent import run_case
from edgewright.bench.records import RUN, read_run, tables
from edgewright.bench.records.reader import Run
from edgewright.cli import main as edgewright
from edgewright.runtime.encoding import DType, EmbeddingFile, Encoding
from edgewright.runtime.llm import LLM
from edgewright.runtime.rawtable import write_raw
from edgewright.runtime.scheduling.timeline import Timeline

ROOT = Path(__file__).parents[1]
CHECKPOINT = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
STEPS, MOST_ERROR = 200, 0.03
TIMELINES = ("0:0,1:5000", "4:0,0:5000,4:20000", "1:0,0:5000,1:20000")
PROMPTS = {
    "chat": "Explain why the sky is blue, and why it is red in the evening.",
    "fine": "A picture shows a harbour with boats. Describe it for somebody who can't see it.",
    "coarse": "A picture shows a kitchen with a window. What is on the table?",
}


def bundle(work: Path, name: str, *words: str) -> Path:
    """Deploy SmolLM2 once."""
    folder = work / name
    if not folder.exists() and edgewright(["deploy", str(CHECKPOINT), "-o", str(folder), "--no-verify", *words]):
        raise SystemExit(f"{name} could not be deployed; is {CHECKPOINT} there (make fetch)?")
    return folder


def raw_files(work: Path, outside: Path) -> dict[str, EmbeddingFile]:
    """Write the prompts' embeddings in 16 and 8 bits, and tables of the same signedness."""
    llm = LLM.load(outside)
    low = min(float(block.min()) for block in llm.embedding_blocks())
    high = max(float(block.max()) for block in llm.embedding_blocks())
    kinds: dict[str, DType] = {"fine": "uint16", "coarse": "uint8", "table": "uint16"}
    found = {}
    for name, dtype in kinds.items():
        file = EmbeddingFile(work / f"{name}.bin", Encoding.of_range(dtype, low, high), stated=True)
        blocks = llm.embedding_blocks() if name == "table" else [llm.embed(llm.prompt_ids(PROMPTS[name]))]
        write_raw(file.path, file.encoding, blocks)
        found[name] = file
    return found


def case(
    name: str,
    work: Path,
    lines: tuple[str, ...],
    tokens: tuple[int, ...],
    hold_ms: float,
    iterations: int = 1,
    **run: Any,
) -> Case:
    """One text dialog and two of embeddings."""
    inside, outside = bundle(work, "inside"), bundle(work, "outside", "--embeddings", "outside")
    files = raw_files(work, outside)
    inputs = (
        InputSpec(prompt=PROMPTS["chat"]),
        InputSpec(embedding=files["fine"]),
        InputSpec(embedding=files["coarse"]),
    )
    return Case(
        name=name,
        models=(
            ModelSpec(name="llm", bundle=inside),
            ModelSpec(name="vlm", bundle=outside, table=files["table"]),
        ),
        dialogs=tuple(
            DialogSpec(
                name=dialog,
                model="llm" if dialog == "chat" else "vlm",
                input=asked,
                max_tokens=most,
                iterations=iterations,
                timeline=Timeline.parse(line),
                ignore_eos=True,
            )
            for dialog, asked, line, most in zip(PROMPTS, inputs, lines, tokens, strict=True)
        ),
        scheduler=SchedulerSpec(hold_ms=hold_ms),
        run=RunSpec(**run),
    )


def first_shares(run: Run) -> dict[str, float]:
    """Return each dialog's part of the first steps of the run."""
    steps = sorted((step for step in run.steps if step.part == RUN), key=lambda step: step.start_ns)[:STEPS]
    return {name: sum(step.dialog == name for step in steps) / len(steps) for name in run.dialogs}


def gaps_us(run: Run) -> np.ndarray:
    """Return how long the accelerator was idle before each step whose dialog was waiting already."""
    steps = sorted((step for step in run.steps if step.part == RUN), key=lambda step: step.start_ns)
    return np.array([(b.start_ns - a.end_ns) / 1000 for a, b in pairwise(steps) if b.ready_ns <= a.end_ns])


def weights(work: Path, hold_ms: float, threads: int | None) -> tuple[dict[str, Any], bool]:
    """Run with the weights 4, 2, 1 and judge it."""
    made = case("weights", work, ("4:0", "2:0", "1:0"), (150, 80, 45), hold_ms, threads=threads)
    result = run_case(made, work / "runs", run_id="latest", overwrite=True)
    print(tables(result.summary))
    run = read_run(result.folder)
    shares = first_shares(run)
    wanted = dict(zip(shares, (4 / 7, 2 / 7, 1 / 7), strict=True))
    error = max(abs(shares[name] - wanted[name]) for name in shares)
    same = {name: one["same_tokens_as_solo"] for name, one in result.summary["dialogs"].items()}
    gaps = gaps_us(run)
    p50, p99 = np.percentile(gaps, [50, 99])
    found = {"shares": shares, "error": error, "same": same, "gap_us": {"n": len(gaps), "p50": p50, "p99": p99}}
    print(f"shares of the first {STEPS} steps: " + ", ".join(f"{n} {100 * s:.1f} %" for n, s in shares.items()))
    print(f"largest error {100 * error:.2f} %; tokens as alone: {same}")
    print(f"gap before a step that waited, of {len(gaps)}: p50 {p50:.0f} us, p99 {p99:.0f} us")
    return found, error <= MOST_ERROR and all(same.values())


def timeline(work: Path, hold_ms: float, threads: int | None, scale: float) -> tuple[dict[str, Any], bool]:
    """Run the requirement's three segments and judge them."""
    lines = tuple(scaled(text, scale) for text in TIMELINES)
    options: dict[str, Any] = {"solo": False, "timeout_s": 30 * scale, "threads": threads, "iterations": 1000}
    result = run_case(
        case("timeline", work, lines, (100, 100, 100), hold_ms, **options),
        work / "runs",
        run_id="latest",
        overwrite=True,
    )
    print(tables(result.summary))
    segments = result.summary["segments"]
    return {"segments": segments}, all(one["error"] is not None and one["error"] <= MOST_ERROR for one in segments)


def scaled(text: str, scale: float) -> str:
    """Return a timeline with other times."""
    parts = (part.split(":") for part in text.split(","))
    return ",".join(f"{weight}:{round(int(time) * scale)}" for weight, time in parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=ROOT / ".peers" / "dialogs", help="where everything is kept")
    parser.add_argument("--scale", type=float, default=1.0, help="of the timeline's times (1: 30 s)")
    parser.add_argument("--hold-ms", type=float, default=SchedulerSpec.hold_ms)
    parser.add_argument("--threads", type=int, help="of the engines (default: the physical cores)")
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    first, good = weights(args.work, args.hold_ms, args.threads)
    second, well = timeline(args.work, args.hold_ms, args.threads, args.scale)
    if args.json:
        args.json.write_text(json.dumps({"weights": first, "timeline": second}, indent=1))
    print("all as it must be" if good and well else "NOT as it must be")
    return 0 if good and well else 1


if __name__ == "__main__":
    sys.exit(main())
