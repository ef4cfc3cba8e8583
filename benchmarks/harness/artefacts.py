"""Checkpoints, the contenders' files made from them, and their quality: made once, kept in .peers/models/."""

import filecmp
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from harness.peers import BENCHMARKS, PEERS, REFERENCE_PEER, ROOT, ensure
from harness.roster import Entry
from harness.runner import run_worker

MODELS = PEERS / "models"
TEXT = BENCHMARKS / "data" / "text.txt"
QUALITY_MODEL = "smollm2"
"""The model with real weights; a divergence of random weights would say little."""
SHAPE_MODEL = "qwen3-0.6b"
"""The model with random weights."""
TRAINED_MODEL = "trained"
"""The one whose checkpoint is among the tests' golden files; everything is made anew when it has changed."""
TRAINED = ROOT / "tests" / "goldens" / "trained"
WEIGHTS = "model.safetensors"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def checkpoint(model: str, edgewright: Path) -> Path:
    """Return the Hugging Face folder of a model, made if missing."""
    out = MODELS / model
    if model == TRAINED_MODEL and _differs(out / "hf" / WEIGHTS, TRAINED / WEIGHTS):
        shutil.rmtree(out, ignore_errors=True)
    if (out / "hf" / "config.json").exists():
        return out / "hf"
    job: dict[str, Any] = {"model": model, "out": str(out.with_name(model + ".part"))}
    if model == SHAPE_MODEL:
        job["tokenizer_from"] = str(checkpoint(QUALITY_MODEL, edgewright))
    _say(f"making the checkpoint of {model}")
    shutil.rmtree(job["out"], ignore_errors=True)
    run_worker(ensure(REFERENCE_PEER, edgewright), "checkpoint", job)
    Path(job["out"]).rename(out)
    return out / "hf"


def _differs(made: Path, source: Path) -> bool:
    return made.exists() and source.exists() and not filecmp.cmp(made, source, shallow=False)


def forget(peer: str) -> None:
    """Make `prepared` and `quality` start anew for a peer."""
    for record in MODELS.glob(f"*/{peer}-*.json"):
        record.unlink()


def prepared(model: str, entry: Entry, edgewright: Path) -> Path:
    """Return the folder a contender loads, made if missing."""
    source = checkpoint(model, edgewright)
    out = MODELS / model / f"{entry.peer}-{entry.weights}"
    record = out.with_name(out.name + ".json")
    if record.exists() and json.loads(record.read_text())["recipe"] == entry.recipe:
        return out
    _say(f"preparing {entry.name} of {model}")
    for stale in [record, *out.parent.glob(out.name + ".quality-*.json")]:
        stale.unlink(missing_ok=True)
    shutil.rmtree(out, ignore_errors=True)
    job = {"peer": entry.peer, "checkpoint": str(source), "out": str(out), "recipe": entry.recipe}
    result = run_worker(ensure(entry.peer, edgewright), "prepare", job)
    record.write_text(json.dumps({"recipe": entry.recipe, "versions": result["versions"]}, indent=1))
    return out


def size_mb(folder: Path) -> float:
    """Return the size of everything in the folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def read_once(folder: Path) -> None:
    """Bring the files into the page cache, so that every contender loads from memory."""
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb", buffering=0) as stream:
                while stream.read(1 << 24):
                    pass


def quality(entry: Entry, edgewright: Path, threads: int) -> dict[str, Any]:
    """Return the entry's distance to the float32 reference on the fixed text, measured once per prepared folder."""
    folder = prepared(QUALITY_MODEL, entry, edgewright)
    settings = "-".join(f"{key}_{value}" for key, value in entry.options.items()) or "default"
    record = folder.with_name(f"{folder.name}.quality-{settings}.json")
    if not record.exists():
        _say(f"measuring the quality of {entry.name}")
        job = reference(edgewright, threads) | {
            "peer": entry.peer,
            "path": str(folder),
            "options": entry.options,
            "threads": threads,
            "capacity": 512,
        }
        result = run_worker(ensure(entry.peer, edgewright), "quality", job)
        record.write_text(json.dumps(result, indent=1))
    return json.loads(record.read_text())


def reference(edgewright: Path, threads: int) -> dict[str, str]:
    """Return the files with the token ids and the float32 logits of the text, made if missing."""
    folder = MODELS / QUALITY_MODEL
    files = {"ids": str(folder / "text-ids.npy"), "reference": str(folder / "text-logits.npy")}
    record = folder / "text-reference.json"
    if not record.exists():
        source = checkpoint(QUALITY_MODEL, edgewright)
        _say("computing the float32 reference")
        job = files | {"peer": "reference", "path": str(source), "text": str(TEXT), "threads": threads, "capacity": 0}
        result = run_worker(ensure("reference", edgewright), "reference", job)
        record.write_text(json.dumps(result, indent=1))
    return files


def reference_perplexity() -> float:
    """Return the perplexity of the float32 checkpoint on the text."""
    return json.loads((MODELS / QUALITY_MODEL / "text-reference.json").read_text())["perplexity"]
