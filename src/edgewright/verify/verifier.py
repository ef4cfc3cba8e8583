"""The verifier: three levels, from cheap and exact to end to end, each with a verdict and figures.

`weights`: every shipped tensor against the checkpoint. `engine`: logits of the compiled engine against the portable
float32 graph over the shipped weights: kernels, cache, rope, fusions. `quality`: the same logits against the portable
float32 graph of the checkpoint: what quantization cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from edgewright._version import __version__
from edgewright.bundle import check_files, read_manifest
from edgewright.bundle.manifest import Manifest
from edgewright.checkpoint import Checkpoint
from edgewright.dialects import LOWERINGS
from edgewright.errors import BundleError
from edgewright.files import inside, sha256_of
from edgewright.graph import Stage
from edgewright.graph.writer import layout_size, plan_layout
from edgewright.models import build_llm
from edgewright.progress import SILENT, Progress
from edgewright.quant.apply import Applied, quantize_stage
from edgewright.quant.formats import FloatFormat, Format, IntFormat
from edgewright.quant.recipe import Recipe, Rule
from edgewright.runtime.llm import LLM, llm_stage
from edgewright.runtime.session import Session
from edgewright.verify.metrics import Distance, Logits, compare, pool
from edgewright.verify.reference import reference_engine, use_shipped_weights
from edgewright.verify.scenarios import Scenario, Tokens, scenarios
from edgewright.verify.shipped import ShippedTensors, leaves
from edgewright.verify.thresholds import ENGINE, QUALITY, Threshold, coarsest, rounds_inputs
from edgewright.verify.weights import WeightsReport, check_weights

#: Longest text the scenarios use.
_TEXT_TOKENS = 320


@dataclass(frozen=True)
class LogitsReport:
    """One comparison of logits: a distance per scenario, all rows pooled, and what exceeds the threshold."""

    threshold: Threshold
    by_scenario: Mapping[str, Distance]
    pooled: Distance

    @property
    def faults(self) -> list[str]:
        """Return in words what exceeds the threshold."""
        return [f"{name}: {', '.join(f)}" for name, d in self.by_scenario.items() if (f := self.threshold.faults(d))]

    def to_json(self) -> dict[str, Any]:
        """Return the level for the report."""
        d = self.pooled
        figures = (
            f"KL {d.kl:.3g} ± {d.kl_error:.2g} nats, top-1 {d.top1:.1%}, max error {d.max_error:.2g}, "
            f"cosine {d.cosine:.5f} over {d.positions} positions"
        )
        faults = self.faults
        return {
            "status": "failed" if faults else "passed",
            "summary": f"{'; '.join(faults)} ({figures})" if faults else figures,
            "threshold": vars(self.threshold),
            "pooled": d.to_json(),
            "scenarios": {name: value.to_json() for name, value in self.by_scenario.items()},
        }


@dataclass(frozen=True)
class Report:
    """The outcome of a verification."""

    weights: WeightsReport
    logits: Mapping[str, LogitsReport] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether every level passed."""
        return self.weights.passed and not any(level.faults for level in self.logits.values())

    def reason(self) -> str:
        """Return in one sentence why it failed; empty when it passed."""
        reasons = [] if self.weights.passed else [f"weights: {self.weights.to_json()['summary']}"]
        reasons += [f"{name}: {'; '.join(level.faults)}" for name, level in self.logits.items() if level.faults]
        return ". ".join(reasons) + "." if reasons else ""

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-compatible values: `status` and `levels`."""
        levels = {"weights": self.weights.to_json(), **{name: level.to_json() for name, level in self.logits.items()}}
        return {"status": "passed" if self.passed else "failed", "levels": levels}


def verify_bundle(
    folder: str | Path, checkpoint: Checkpoint, *, threads: int | None = None, progress: Progress = SILENT
) -> Report:
    """Verify a bundle or an exported folder against its checkpoint.

    Raises BundleError when files are damaged or the checkpoint is not the one it was built from.
    """
    root = Path(folder)
    manifest = read_manifest(root)
    with progress.step("check files"):
        check_files(root, manifest)
        _check_source(manifest, checkpoint)
    entry = llm_stage(manifest)
    context = entry.contract.bounds["capacity"][1]
    recipe = recipe_of(manifest)

    def semantic() -> tuple[Stage, list[Applied]]:
        stage = build_llm(checkpoint, max_context=context)
        return stage, quantize_stage(stage, recipe)

    stage, applied = semantic()
    lowered = LOWERINGS[entry.dialect](stage)
    tensors = ShippedTensors(inside(root, entry.graph))
    with progress.step("compare weights", layout_size(plan_layout(lowered))) as advance:
        weights = check_weights(lowered, tensors, advance, same_version=manifest.versions["edgewright"] == __version__)
    found = {leaf.producer.specs[0].name: leaf for leaf in leaves(lowered)}

    llm = LLM.load(root, threads=threads, check=False)
    scripts = list(scenarios(_tokens(llm), context))
    with progress.step("run engine"):
        candidate = {script.name: script.run(llm.session()) for script in scripts}
    plain = build_llm(checkpoint, max_context=context)
    wanted = _reference_logits(scripts, plain, threads, progress, "float32 reference")
    levels = {"quality": _compare(candidate, wanted, QUALITY[coarsest(applied)])}
    if any(isinstance(a.format, IntFormat) for a in applied):
        if weights.exact < weights.tensors:
            del wanted
            same, _ = semantic()
            use_shipped_weights(same, found, tensors)
            wanted = _reference_logits(scripts, same, threads, progress, "reference over shipped weights")
        levels = {"engine": _compare(candidate, wanted, ENGINE[rounds_inputs(applied)]), **levels}
    return Report(weights, levels)


def _reference_logits(
    scripts: list[Scenario], stage: Stage, threads: int | None, progress: Progress, title: str
) -> dict[str, Logits]:
    """Run `stage` in the portable dialect over each scenario's tokens in one piece; returns the rows to compare."""
    wanted: dict[str, Logits] = {}
    seen: list[tuple[Tokens, Logits]] = []
    size = layout_size(plan_layout(stage))
    with progress.step(title, size) as advance, reference_engine(stage, threads, advance) as engine:
        for script in sorted(scripts, key=lambda s: -len(s.tokens)):
            n = len(script.tokens)
            # The model is causal: a prefix of a text that was run has the same logits.
            known = next((logits for tokens, logits in seen if np.array_equal(tokens[:n], script.tokens)), None)
            if known is None:
                known = Session(engine, first_capacity=n).append(script.tokens, logits="all")
                seen.append((script.tokens, known))
            wanted[script.name] = known[script.first : n]
    return wanted


def _compare(candidate: Mapping[str, Logits], wanted: Mapping[str, Logits], threshold: Threshold) -> LogitsReport:
    rows = {name: compare(logits, wanted[name]) for name, logits in candidate.items()}
    by_scenario = {name: part.summary() for name, part in rows.items()}
    return LogitsReport(threshold, by_scenario, pool(list(rows.values())).summary())


def _tokens(llm: LLM) -> Tokens:
    """Return the scenario's tokens: a text where there is a tokenizer, else seeded random ids."""
    vocab = llm.session().vocab_size
    if "sidecars/tokenizer.json" in llm.manifest.files:
        text = (resources.files("edgewright.verify") / "data" / "sample.txt").read_text(encoding="utf-8")
        ids = [i for i in llm.tokenizer.encode(text) if i < vocab]
        if len(ids) >= 64:
            return np.resize(np.asarray(ids, dtype=np.int64), _TEXT_TOKENS)
    return np.random.default_rng(2026).integers(0, vocab, _TEXT_TOKENS)


def recipe_of(manifest: Manifest) -> Recipe:
    """Rebuild the recipe that was applied, module by module."""
    rules = []
    for module in manifest.recipe["modules"]:
        fmt: Format
        if "dtype" in module:
            fmt = FloatFormat(module["dtype"])
        else:
            fmt = IntFormat(module["bits"], module["group"], module["zero_point"], module["int8_activations"])
        rules.append(Rule(module["module"], fmt, "manifest"))
    keep = FloatFormat("float32")
    return Recipe(manifest.recipe["name"], keep, keep, keep, tuple(rules))


def _check_source(manifest: Manifest, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint with a file that is none of those the bundle was built from, by size and digest."""
    recorded = {entry["bytes"]: set[str]() for entry in manifest.source["files"].values()}
    for entry in manifest.source["files"].values():
        recorded[entry["bytes"]].add(entry["sha256"])
    odd = [
        path.name
        for path in checkpoint.files
        if path.stat().st_size not in recorded or sha256_of(path) not in recorded[path.stat().st_size]
    ]
    if odd:
        raise BundleError(
            f"The bundle was not built from this checkpoint ({', '.join(sorted(odd))} differ): "
            "give the one it was built from."
        )
