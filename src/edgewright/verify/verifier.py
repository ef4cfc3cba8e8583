"""The verifier: levels, from cheap and exact to end to end, each with a verdict and figures.

`weights`: every shipped tensor against the checkpoint. `graph`, shown only when it differs: the shipped graph against
the one that checkpoint and recipe give anew. `ops`: every op of the engine recomputed from its own inputs.
`engine`: logits of the compiled engine against the portable float32 graph over the shipped weights: kernels, cache,
rope, fusions. `quality`: the same logits against the portable float32 graph of the checkpoint: what quantization cost.
When a level fails, the first op that differs is looked for, and the likely cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import metadata, resources
from pathlib import Path

import numpy as np

from edgewright._version import __version__
from edgewright.bundle import check_files, read_manifest
from edgewright.bundle.manifest import Manifest
from edgewright.checkpoint import Checkpoint
from edgewright.dialects import LOWERINGS
from edgewright.errors import BundleError, GenerationError
from edgewright.files import inside, sha256_of
from edgewright.graph import Stage
from edgewright.graph.writer import layout_size, plan_layout
from edgewright.models import build_llm
from edgewright.progress import SILENT, Progress
from edgewright.quant.apply import Applied, quantize_stage
from edgewright.quant.formats import FloatFormat, Format, IntFormat, StoredFormat
from edgewright.quant.recipe import Recipe, Rule
from edgewright.runtime.llm import LLM, llm_stage
from edgewright.runtime.session import Session
from edgewright.verify.localise import Candidate, describe, of_tensor
from edgewright.verify.locate import Locator
from edgewright.verify.metrics import Logits, compare, pool
from edgewright.verify.reference import Reference, reference_of, use_shipped_weights
from edgewright.verify.report import Level, Localisation, LogitsReport, OpsReport, Report
from edgewright.verify.scenarios import Scenario, Tokens, scenarios
from edgewright.verify.shipped import FreshTensors, ShippedTensors, leaves
from edgewright.verify.structure import GraphReport, check_graph
from edgewright.verify.tensors import WrongTensors
from edgewright.verify.thresholds import ENGINE, QUALITY, Threshold, coarsest, rounds_inputs
from edgewright.verify.weights import WeightsReport, check_weights

#: Longest text the scenarios use.
_TEXT_TOKENS = 320
#: The scenarios of the level `ops`: together they have every kind of call.
_OPS = ("decode", "two turns", "batch")


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
    return _Verification(root, manifest, checkpoint, threads, progress).run()


class _Verification:
    """One run of all levels."""

    def __init__(
        self, root: Path, manifest: Manifest, checkpoint: Checkpoint, threads: int | None, progress: Progress
    ) -> None:
        self._root, self._manifest, self._checkpoint = root, manifest, checkpoint
        self._threads, self._progress = threads, progress
        self._entry = llm_stage(manifest)
        self._context = self._entry.contract.bounds["capacity"][1]
        self._recipe = recipe_of(manifest)
        self._tensors = ShippedTensors(inside(root, self._entry.graph))
        self._levels: dict[str, Level] = {}
        self._place: Localisation | None = None
        self._failures: list[str] = []
        self._graph: GraphReport | None = None

    def run(self) -> Report:
        """Run the levels; after a failure, look for the place."""
        stage, applied = self._quantized()
        lowered = LOWERINGS[self._entry.dialect](stage)
        self._found = {leaf.producer.specs[0].name: leaf for leaf in leaves(lowered)}
        weights = self._weights = self._check_weights(lowered)
        self._levels["weights"] = weights
        versions = self._manifest.versions
        if all(versions.get(name) == version for name, version in writer_versions().items()):
            self._graph = check_graph(lowered, inside(self._root, self._entry.graph))
        if self._graph is not None:
            self._levels["graph"] = self._graph
        llm = LLM.load(self._root, threads=self._threads, check=False)
        self._scripts = scripts_for(llm)
        with self._progress.step("run engine"):
            given = {script.name: run_script(llm, script, self._failures) for script in self._scripts}
        del llm
        # When every weight is the checkpoint's, one reference serves all levels.
        one = weights.exact == weights.tensors
        with self._reference(build_llm(self._checkpoint, max_context=self._context), "float32 reference") as plain:
            wanted = logits_of(plain, self._scripts, self._threads)
            quality = compare_logits(given, wanted, QUALITY[coarsest(a.format for a in applied)])
            if one:
                self._same_weights(plain, given, wanted, applied)
                self._levels["quality"] = quality
                self._localise(plain)
        if not one:
            stage, _ = self._quantized()
            use_shipped_weights(stage, self._found, self._tensors if weights.passed else FreshTensors())
            with self._reference(stage, "reference over shipped weights") as same:
                self._same_weights(same, given, None, applied)
                self._levels["quality"] = quality
                self._localise(same)
        return Report(self._levels, self._place, remarks=tuple(self._failures))

    def _quantized(self) -> tuple[Stage, list[Applied]]:
        """Build the stage anew, in the formats the bundle has."""
        stage = build_llm(self._checkpoint, max_context=self._context)
        return stage, quantize_stage(stage, self._recipe)

    def _check_weights(self, lowered: Stage) -> WeightsReport:
        same_version = self._manifest.versions["edgewright"] == __version__
        with self._progress.step("compare weights", layout_size(plan_layout(lowered))) as advance:
            return check_weights(lowered, self._tensors, advance, same_version=same_version)

    @contextmanager
    def _reference(self, stage: Stage, title: str) -> Iterator[Reference]:
        with ExitStack() as stack:
            with self._progress.step(title, layout_size(plan_layout(stage))) as advance:
                reference = stack.enter_context(reference_of(stage, advance))
            yield reference

    def _same_weights(
        self,
        reference: Reference,
        given: Mapping[str, Logits],
        wanted: Mapping[str, Logits] | None,
        applied: Sequence[Applied],
    ) -> None:
        """Compare with the reference over the weights that are shipped (that should be, where those are wrong)."""
        self._ops(reference)
        if any(isinstance(a.format, IntFormat) for a in applied):
            wanted = wanted or logits_of(reference, self._scripts, self._threads)
            self._levels["engine"] = compare_logits(given, wanted, ENGINE[rounds_inputs(applied)])

    def _ops(self, reference: Reference) -> None:
        """Recompute every op from its own inputs: the logits leave room for small faults, this does not."""
        locator = self._locator(reference)
        with self._progress.step("compare ops"):
            found = locator.first([script.brief() for script in self._scripts if script.name in _OPS])
        fault = ""
        if found is not None:
            self._place = describe(found, locator, self._candidate, self._wrong)
            fault = self._place.sentence
        self._levels["ops"] = OpsReport(len(locator.taps), locator.calls, *locator.worst, fault)

    def _localise(self, reference: Reference) -> None:
        """Look for the place of a failure, in the scenarios that failed first."""
        if self._place is not None or Report(self._levels).passed:
            return
        logits = [level for level in self._levels.values() if isinstance(level, LogitsReport)]
        bad = {name for level in logits for name, d in level.by_scenario.items() if level.threshold.faults(d)}
        scripts = sorted(self._scripts, key=lambda script: script.name not in bad)
        with self._progress.step("look for the place"):
            locator = self._locator(reference)
            found = locator.first(scripts)
            if found is not None:
                self._place = describe(found, locator, self._candidate, self._wrong)
            elif pair := self._wrong.first():
                self._place = of_tensor(pair, reference.semantic)
            elif self._graph is not None:
                self._place = self._graph.localisation(Path(self._entry.graph).name)

    def _locator(self, reference: Reference) -> Locator:
        running = self._candidate.running()
        return Locator(reference.semantic, reference.graph(), running, self._entry.contract, self._threads)

    @property
    def _candidate(self) -> Candidate:
        return Candidate(self._root, self._entry)

    @property
    def _wrong(self) -> WrongTensors:
        return WrongTensors(self._weights.faults, self._found, self._tensors)


def writer_versions() -> dict[str, str]:
    """Return the versions that decide over the bytes of a graph, as a manifest spells them."""
    return {"edgewright": __version__, **{name: metadata.version(name) for name in ("onnx", "onnx-ir")}}


def run_script(llm: LLM, script: Scenario, failures: list[str]) -> Logits:
    """Run a scenario; an engine that fails gives logits that are no numbers, and its words go to `failures`."""
    session = llm.session(len(script.sequences))
    try:
        return script.run(session)
    except GenerationError as error:
        failures.append(f"{script.name}: {error}")
        return np.full((len(script.positions), session.vocab_size), np.nan, dtype=np.float32)


def logits_of(reference: Reference, scripts: Sequence[Scenario], threads: int | None) -> dict[str, Logits]:
    """Run a reference over each scenario's tokens in one piece; returns the rows to compare by scenario.

    The model is causal: a prefix of a text that was run has the same logits. Where rope frequencies change with the
    length, that holds on each side of the change.
    """
    engine = reference.engine(threads)
    limit = reference.contract.rope_switch
    seen: list[tuple[Tokens, Logits]] = []

    def run(tokens: Tokens) -> Logits:
        n = len(tokens)
        for longer, logits in seen:
            if np.array_equal(longer[:n], tokens) and (limit is None or (len(longer) > limit) == (n > limit)):
                return logits[:n]
        seen.append((tokens, Session(engine, first_capacity=n).append(tokens, logits="all")))
        return seen[-1][1]

    # The longest texts first, so that the others are their beginnings.
    texts = [tokens for script in scripts for tokens in script.sequences]
    if limit is not None:
        texts += [tokens[:limit] for tokens in texts]
    for tokens in sorted(texts, key=len, reverse=True):
        run(tokens)
    return {script.name: script.wanted(run) for script in scripts}


def compare_logits(given: Mapping[str, Logits], wanted: Mapping[str, Logits], threshold: Threshold) -> LogitsReport:
    """Compare logits scenario by scenario."""
    rows = {name: compare(logits, wanted[name]) for name, logits in given.items()}
    by_scenario = {name: part.summary() for name, part in rows.items()}
    return LogitsReport(threshold, by_scenario, pool(list(rows.values())).summary())


def scripts_for(llm: LLM) -> list[Scenario]:
    """Return the scenarios of a bundle: over a text where there is a tokenizer, else over seeded random ids."""
    session = llm.session()
    contract = llm_stage(llm.manifest).contract
    tokens = _tokens(llm, session.vocab_size)
    max_batch = contract.bounds["batch"][1]
    return list(scenarios(tokens, session.max_context, max_batch=max_batch, cut_back=not session.recurrent))


def _tokens(llm: LLM, vocab: int) -> Tokens:
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


def coarsest_of(manifest: Manifest) -> str:
    """Return the name of the coarsest weight format of a bundle, as QUALITY spells it."""
    return coarsest(rule.format for rule in recipe_of(manifest).rules if not isinstance(rule.format, StoredFormat))


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
