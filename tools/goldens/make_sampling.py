"""Write tests/runtime/data/sampling.json: what transformers' logits processors leave of random logits.

    HF_HUB_OFFLINE=1 python tools/goldens/make_sampling.py

Each case holds the logits (float32, exact as JSON), the parameters, the ids seen so far, and the probabilities that
survive as [id, probability] pairs, computed by the processors in the order of `generate`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.generation import logits_process as hf

OUT = Path(__file__).resolve().parents[2] / "tests" / "runtime" / "data" / "sampling.json"
VOCAB = 61
PARAMS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.7},
    {"temperature": 1.9, "top_k": 7},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 500},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 0.6, "top_p": 0.35},
    {"temperature": 1.0, "top_p": 1e-6},
    {"temperature": 1.0, "min_p": 0.08},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 1.3, "top_k": 20, "top_p": 0.8, "min_p": 0.1},
    {"temperature": 0.9, "repetition_penalty": 1.3},
    {"temperature": 0.9, "repetition_penalty": 0.8, "top_k": 15},
    {"temperature": 0.8, "repetition_penalty": 1.15, "top_k": 30, "top_p": 0.95, "min_p": 0.02},
]


def processors(params: dict[str, Any]) -> list[Any]:
    """Return the processors that `GenerationMixin._get_logits_processor` makes, in its order."""
    made: list[Any] = []
    if "repetition_penalty" in params:
        made.append(hf.RepetitionPenaltyLogitsProcessor(params["repetition_penalty"]))
    if params["temperature"] != 1.0:
        made.append(hf.TemperatureLogitsWarper(params["temperature"]))
    if "top_k" in params:
        made.append(hf.TopKLogitsWarper(params["top_k"]))
    if "top_p" in params:
        made.append(hf.TopPLogitsWarper(params["top_p"]))
    if "min_p" in params:
        made.append(hf.MinPLogitsWarper(params["min_p"]))
    return made


def case(params: dict[str, Any], seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0.0, 2.5, VOCAB).astype(np.float32)
    ids = rng.integers(0, VOCAB + 3, 11)  # some past the vocabulary, as a padded embedding has
    scores = torch.from_numpy(logits)[None]
    for processor in processors(params):
        scores = processor(torch.from_numpy(ids)[None], scores)
    probabilities = torch.softmax(scores, -1)[0].tolist()
    kept = [[token, p] for token, p in enumerate(probabilities) if scores[0, token] != float("-inf")]
    return {"params": params, "ids": ids.tolist(), "logits": logits.tolist(), "kept": kept}


def main() -> int:
    cases = [case(params, 100 * number + seed) for number, params in enumerate(PARAMS) for seed in (1, 2)]
    record = {"transformers": transformers.__version__, "torch": torch.__version__}
    lines = ",\n  ".join(json.dumps(each) for each in cases)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(record)[:-1] + ', "cases": [\n  ' + lines + "\n]}\n")
    print(OUT, OUT.stat().st_size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
