"""Measures one stage of a bundle in a process of its own: `python -m edgewright.bench.stage_worker`.

Reads a JSON object from stdin (`folder`, `stage`, `threads`) and writes one to stdout: milliseconds to load, peak
resident bytes, and the milliseconds of every repetition by phase. What is wrong with the bundle is an `error`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.bench.measure import decode_s, prefill_s
from edgewright.bench.memory import status_bytes
from edgewright.bundle import Manifest, read_manifest
from edgewright.contract import StageContract, TensorContract
from edgewright.errors import EdgewrightError
from edgewright.runtime.engine import Array, array_dtype, open_engine, zeros
from edgewright.runtime.llm import LLM
from edgewright.runtime.policy.policy import policy_spec
from edgewright.runtime.policy.spec import PolicySpec

#: What is measured of a language model: a prompt of so many tokens, and tokens after so many.
PROMPT_TOKENS, DECODE_AFTER, DECODE_TOKENS = 512, 32, 16
#: Repetitions of a phase: at least so many, and no further ones after so many seconds.
_LEAST, _MOST, _SECONDS = 2, 5, 2.0
#: Codes of eight bits that are small numbers in either format.
_SMALL_CODES = (1, 64)


def repeated(once: Callable[[], float]) -> list[float]:
    """Return the milliseconds that repetitions give, each in seconds; the first run only touches memory."""
    once()
    times: list[float] = []
    while len(times) < _LEAST or (len(times) < _MOST and sum(times) < 1000 * _SECONDS):
        times.append(1000 * once())
    return times


def measure_llm(folder: Path, threads: int | None) -> dict[str, Any]:
    """Measure prefill and decode of a language model's bundle."""
    start = time.perf_counter()
    llm = LLM.load(folder, threads=threads, check=False)
    load_ms = 1000 * (time.perf_counter() - start)
    prompt = min(PROMPT_TOKENS, llm.max_context - 1)
    after = max(1, min(DECODE_AFTER, llm.max_context - DECODE_TOKENS))
    count = min(DECODE_TOKENS, llm.max_context - after)
    kept = llm.vocabulary
    vocab = int(llm.manifest.model["vocab_size"]) if kept is None else len(kept)
    columns = np.random.default_rng(0).integers(0, vocab, prompt)
    ids = [int(token) for token in (columns if kept is None else kept.ids[columns])]
    phases = {
        "prefill": repeated(lambda: prefill_s(llm, ids)),
        "decode": repeated(lambda: float(np.median(decode_s(llm, ids[:after], count)))),
    }
    return {"load_ms": load_ms, "ms": phases}


def measure_stage(folder: Path, manifest: Manifest, stage: str, threads: int | None) -> dict[str, Any]:
    """Measure one run of a policy's stage, at the sizes that one observation has at most."""
    entry = manifest.stages[stage]
    start = time.perf_counter()
    engine = open_engine(folder, entry, threads=threads)
    load_ms = 1000 * (time.perf_counter() - start)
    sizes = sizes_of(policy_spec(manifest), entry.contract, manifest.stages["prefix"].contract)
    random = np.random.default_rng(0)
    call = engine.bind(
        {tensor.name: _input(tensor, sizes, random) for tensor in entry.contract.inputs},
        {tensor.name: zeros(_shape(tensor, sizes), array_dtype(tensor.dtype)) for tensor in entry.contract.outputs},
    )

    def once() -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return {"load_ms": load_ms, "ms": {"run": repeated(once)}}


def sizes_of(spec: PolicySpec, contract: StageContract, prefix: StageContract) -> dict[str, int]:
    """Return the sizes of a stage's symbolic dimensions for one observation with all cameras and the longest prompt."""
    slots = len(spec.cameras) * spec.image_tokens
    state = int(any(tensor.name == "state" for tensor in prefix.inputs))
    sizes = {
        "batch": 1,
        "views": len(spec.cameras),
        "image_slots": slots,
        "text": spec.max_tokens,
        "prefix": slots + spec.max_tokens + state,
        "horizon": spec.horizon,
        "times": 1,
    }
    return {name: min(size, contract.bounds.get(name, (0, size))[1]) for name, size in sizes.items()}


def _shape(tensor: TensorContract, sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple(dim if isinstance(dim, int) else sizes[dim] for dim in tensor.shape)


def _input(tensor: TensorContract, sizes: dict[str, int], random: np.random.Generator) -> Array:
    """Return what may stand in an input: numbers about 1, small codes, masks of ones, the first token and time."""
    kind = array_dtype(tensor.dtype)
    array = zeros(_shape(tensor, sizes), kind)
    if tensor.dtype in ("float32", "float16"):
        array[...] = random.standard_normal(array.shape)
    elif kind.itemsize == 1:
        array[...] = random.integers(*_SMALL_CODES, array.shape)
    else:
        array[...] = int(tensor.name.endswith("mask"))
    return array


def main() -> int:
    """Answer one request."""
    job = json.load(sys.stdin)
    folder = Path(job["folder"])
    try:
        manifest = read_manifest(folder)
        if job["stage"] == "llm":
            found = measure_llm(folder, job["threads"])
        else:
            found = measure_stage(folder, manifest, job["stage"], job["threads"])
    except EdgewrightError as error:
        found = {"error": str(error)}
    sys.stdout.write(json.dumps({**found, "peak_bytes": status_bytes("VmHWM")}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
