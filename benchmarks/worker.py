"""The process that runs one contender: `python worker.py MODE JOB`, with JOB a JSON object.

It runs inside the contender's own environment. The result is one JSON object, written to the file `job["result"]`,
because engines print to standard output as they like.
"""

import importlib
import json
import random
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from contenders import checkpoints, quality
from contenders.base import Engine
from contenders.reference import Reference

Job = dict[str, Any]

FIRST_ID, LAST_ID = 100, 49_000  # ordinary tokens of both models


def load(job: Job) -> tuple[type[Engine], Engine]:
    """Import the contender's module and load the model."""
    kind: type[Engine] = importlib.import_module("contenders." + job["peer"]).ENGINE
    return kind, kind(Path(job["path"]), job["options"], job["threads"], job["capacity"])


def peak_rss() -> float:
    """Return the peak resident memory of this process in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("no VmHWM in /proc/self/status")


def speed(job: Job) -> dict[str, Any]:
    """Load, warm up, time the prompt and the two decodes."""
    rng = random.Random(job["seed"])

    def ids(count: int) -> list[int]:
        return [rng.randrange(FIRST_ID, LAST_ID) for _ in range(count)]

    kind: type[Engine] = importlib.import_module("contenders." + job["peer"]).ENGINE
    for module in kind.modules:
        importlib.import_module(module)
    begin = time.perf_counter()
    engine = kind(Path(job["path"]), job["options"], job["threads"], job["capacity"])
    engine.generate(ids(1), 1)
    result: dict[str, Any] = {"load_s": time.perf_counter() - begin}
    engine.generate(ids(16), 8)
    count = job["decode"]
    for context in job["contexts"]:
        timing = engine.generate(ids(context), count + 1)
        result[f"decode_{context}"] = count / timing.rest
    prompt = job["prefill"]
    result["prefill"] = prompt / engine.generate(ids(prompt), 1).first
    return result | {"peak_rss_mb": peak_rss(), "versions": {name: version(name) for name in kind.packages}}


def measure_quality(job: Job) -> dict[str, Any]:
    """Compare the contender's logits with the stored reference."""
    job["options"] = job["options"] | {"logits_only": True}
    kind, engine = load(job)
    reference = np.load(job["reference"], mmap_mode="r")
    result = quality.compare(engine, np.load(job["ids"]), reference)
    return result | {"versions": {name: version(name) for name in kind.packages}}


def write_reference(job: Job) -> dict[str, Any]:
    """Store the token ids of the text and the float32 logits of each window's last `scored` tokens."""
    job["options"] = {}
    kind, engine = load(job)
    count, scored = job.get("windows", quality.WINDOWS), job.get("scored", quality.WINDOW)
    ids = quality.windows(Path(job["path"]), Path(job["text"]), count, at_most="windows" in job)
    np.save(job["ids"], ids)
    stored: np.ndarray | None = None
    surprises = []
    for index, row in enumerate(ids):
        logits = engine.logits(row.tolist())[-scored:]
        if stored is None:
            shape = (len(ids), *logits.shape)
            stored = np.lib.format.open_memmap(job["reference"], mode="w+", dtype=np.float32, shape=shape)
        stored[index] = logits
        surprises.append(quality.losses(quality.log_softmax(logits), row[-scored:]))
    versions = {name: version(name) for name in kind.packages}
    return {"perplexity": quality.perplexity(surprises), "windows": len(ids), "versions": versions}


def write_calibration(job: Job) -> dict[str, Any]:
    """Store the token ids of the calibration text."""
    ids = quality.windows(Path(job["path"]), Path(job["text"]), job["windows"], at_most=True)
    np.save(job["ids"], ids)
    return {"windows": len(ids)}


def write_importance(job: Job) -> dict[str, Any]:
    """Store the mean squares of every linear layer's inputs on the calibration text."""
    engine = Reference(Path(job["path"]), {}, job["threads"], 0)
    np.savez(job["importance"], **engine.mean_squares(np.load(job["ids"])))
    return {}


def contents(job: Job) -> dict[str, Any]:
    """Say what the prepared weights hold."""
    kind: type[Engine] = importlib.import_module("contenders." + job["peer"]).ENGINE
    return dict(kind.contents(Path(job["path"])))


def prepare(job: Job) -> dict[str, Any]:
    """Convert the checkpoint into the contender's format."""
    kind: type[Engine] = importlib.import_module("contenders." + job["peer"]).ENGINE
    kind.prepare(Path(job["checkpoint"]), Path(job["out"]), job["recipe"])
    return {"versions": {name: version(name) for name in kind.packages}}


def make_checkpoint(job: Job) -> dict[str, Any]:
    """Make the Hugging Face folder of a model."""
    out = Path(job["out"])
    if job["model"] == "qwen3-0.6b":
        checkpoints.make_qwen3(out, Path(job["tokenizer_from"]))
    else:
        CHECKPOINTS[job["model"]](out)
    return {}


CHECKPOINTS: dict[str, Callable[[Path], None]] = {
    "smollm2": checkpoints.make_smollm2,
    "gemma3-270m": checkpoints.make_gemma3,
    "trained": checkpoints.make_trained,
}

MODES: dict[str, Callable[[Job], dict[str, Any]]] = {
    "checkpoint": make_checkpoint,
    "prepare": prepare,
    "reference": write_reference,
    "calibration": write_calibration,
    "importance": write_importance,
    "contents": contents,
    "quality": measure_quality,
    "speed": speed,
}


def main() -> int:
    mode, job = sys.argv[1], json.loads(sys.argv[2])
    result = MODES[mode](job)
    Path(job["result"]).write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
