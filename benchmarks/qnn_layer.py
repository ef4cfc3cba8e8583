"""One full layer of SmolLM2-135M on Qualcomm's HTP, in its simulator: what codes cost against float32.

`python benchmarks/qnn_layer.py [MODEL] [--platform NAME] [--recipe NAME]`: the model is cut to its first layer,
compiled for the chip, run over the sample text, and compared with the same layer in float32 and with the same codes on
ONNX Runtime's CPU provider. It takes a few minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from edgewright.bundle.manifest import StageEntry
from edgewright.checkpoint import Checkpoint, open_checkpoint
from edgewright.dialects import LOWERINGS
from edgewright.graph.writer import write_stage
from edgewright.models import build_llm
from edgewright.quant.apply import quantize_stage
from edgewright.quant.recipe_file import load_recipe
from edgewright.runtime.engine import Engine
from edgewright.runtime.engines.qnn import QnnEngine, Run, describe, open_graphs
from edgewright.runtime.session import Session
from edgewright.targets.backend import StageWork
from edgewright.targets.platform import find_platform
from edgewright.targets.qnn import BACKEND
from edgewright.targets.qnn.calibrate import calibration_ids
from edgewright.verify.reference import reference_of

ROOT = Path(__file__).parents[1]
#: Tokens that are compared; the context has as many more.
TOKENS = 96


def one_layer(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint with its first layer alone."""
    kept = {n: t for n, t in checkpoint.tensors.items() if not re.search(r"\.layers\.[1-9]\d*\.", n)}
    return dataclasses.replace(checkpoint, config={**checkpoint.config, "num_hidden_layers": 1}, tensors=kept)


def on_cpu(root: Path, entry: StageEntry) -> QnnEngine:
    """Return an engine over the graphs in codes on ONNX Runtime's CPU provider."""
    folder, description = describe(root, entry)

    def opening(part: Mapping[str, Any], kind: str) -> Run:
        session = ort.InferenceSession(str(folder / part[kind]["graph"]), providers=["CPUExecutionProvider"])
        taken, given = ([v.name for v in values] for values in (session.get_inputs(), session.get_outputs()))
        return lambda feeds: dict(zip(given, session.run(given, {n: feeds[n] for n in taken}), strict=True))

    return QnnEngine(folder, description, entry.contract, opening)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default=str(ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"))
    parser.add_argument("--platform", default="snapdragon-8-gen-3")
    parser.add_argument("--recipe", default="int8")
    args = parser.parse_args()
    checkpoint = one_layer(open_checkpoint(args.model))
    recipe = load_recipe(args.recipe)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        stage = build_llm(checkpoint, max_context=2 * TOKENS)
        quantize_stage(stage, recipe, requantize=True)
        LOWERINGS["qnn"](stage)
        write_stage(stage, root / "stages" / "llm")
        (root / "sidecars").mkdir()
        for name, data in checkpoint.sidecars().items():
            (root / "sidecars" / name).write_bytes(data)
        work = StageWork("llm", root, "stages/llm", stage.contract, platform=find_platform(args.platform),
                         options={"ar": "32"})  # fmt: skip
        begin = time.perf_counter()
        entry = BACKEND.compile(work)
        binary = next((root / "stages" / "llm" / "engine" / "genie").glob("*.bin"))
        print(f"compiled in {time.perf_counter() - begin:.1f} s, {binary.stat().st_size / 1e6:.1f} MB")
        print(f"weights: {entry.settings['weights']}")
        vocab = stage.contract.outputs[0].shape[-1]
        assert isinstance(vocab, int)
        ids, said = calibration_ids(root / "sidecars", None, 4 * TOKENS, vocab)
        ids = ids[-TOKENS:]
        print(f"{TOKENS} tokens of {said}")
        plain = build_llm(checkpoint, max_context=2 * TOKENS)
        with reference_of(plain, lambda _: None) as reference:
            wanted = fed(reference.engine(1), ids)
        same = build_llm(checkpoint, max_context=2 * TOKENS)
        quantize_stage(same, recipe, requantize=True)
        with reference_of(same, lambda _: None) as reference:
            rounded = fed(reference.engine(1), ids)
        codes = fed(on_cpu(root, entry), ids)
        begin = time.perf_counter()
        simulated = fed(open_graphs(root, entry), ids)
        print(f"simulated in {time.perf_counter() - begin:.1f} s")
        report("float32, its recipe's weights", wanted, rounded)
        report("codes on the CPU", wanted, codes)
        report("codes on the simulated HTP", wanted, simulated)
        report("the same, against the recipe's weights", rounded, simulated)
        report("the same, against the codes on the CPU", codes, simulated)
    return 0


def fed(engine: Engine, ids: np.ndarray) -> np.ndarray:
    """Return the logits of ids, fed in two pieces and a single one."""
    session = Session(engine)
    pieces = (ids[: TOKENS // 2], ids[TOKENS // 2 : -1], ids[-1:])
    return np.concatenate([session.append(piece, "all") for piece in pieces])


def report(title: str, wanted: np.ndarray, got: np.ndarray) -> None:
    """Print how far logits are apart."""
    a, b = wanted.astype(np.float64), got.astype(np.float64)
    cosine = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
    logs = [x - x.max(-1, keepdims=True) for x in (a, b)]
    logs = [x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in logs]
    divergence = (np.exp(logs[0]) * (logs[0] - logs[1])).sum(-1)
    equal = (a.argmax(-1) == b.argmax(-1)).mean()
    print(f"{title}: KL {divergence.mean():.5f} nats, least cosine {cosine.min():.5f}, same first token {equal:.1%}")


if __name__ == "__main__":
    sys.exit(main())
