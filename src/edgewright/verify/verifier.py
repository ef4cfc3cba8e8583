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
from edgewright.dialects import find_lowering
from edgewright.errors import BundleError, GenerationError
from edgewright.files import inside
from edgewright.formats import ActivationFormat, BlockFormat, FloatFormat, format_from_json
from edgewright.graph import Stage
from edgewright.graph.outside import take_table_outside
from edgewright.graph.vocabulary import reduce_vocabulary
from edgewright.graph.writer import layout_size, plan_layout
from edgewright.models import build_llm
from edgewright.progress import SILENT, Progress
from edgewright.quant.apply import Applied, quantize_stage
from edgewright.quant.kv import KVFormat, KVScales, cache_of_record, quantize_cache
from edgewright.quant.recipe import MANIFEST, Inputs, Recipe, Rule
from edgewright.runtime.embedding import embedding_of
from edgewright.runtime.llm import LLM, llm_stage
from edgewright.runtime.session import Session
from edgewright.runtime.vocabulary import Vocabulary, vocabulary_of
from edgewright.verify.localise import Candidate, describe, of_tensor
from edgewright.verify.locate import Locator
from edgewright.verify.metrics import Logits, compare, pool
from edgewright.verify.origins import built_from
from edgewright.verify.prefill import TITLE, Prefill
from edgewright.verify.reference import Reference, reference_of, use_shipped_weights
from edgewright.verify.replay import Beside
from edgewright.verify.report import Level, Localisation, LogitsReport, OpsReport, Report
from edgewright.verify.running import HALVES, NotChecked, computes, load_llm
from edgewright.verify.scenarios import Scenario, Tokens, scenarios
from edgewright.verify.shipped import TABLE, FreshTensors, ShippedTensors, leaves
from edgewright.verify.structure import GraphReport, check_graph
from edgewright.verify.tensors import WrongTensors
from edgewright.verify.thresholds import (
    CACHE_ENGINE,
    CACHE_QUALITY,
    ENGINE,
    Threshold,
    coarsest,
    quality_of,
    rounds_inputs,
    with_cache,
    with_type,
)
from edgewright.verify.weights import WeightsReport, check_weights

#: Longest text the scenarios use.
_TEXT_TOKENS = 320
#: The scenarios of the level `ops`: together they have every kind of call.
_OPS = ("decode", "two turns", "batch")


def verify_bundle(
    folder: str | Path,
    checkpoint: Checkpoint,
    *,
    original: Checkpoint | None = None,
    threads: int | None = None,
    progress: Progress = SILENT,
) -> Report:
    """Verify a bundle or an exported folder against its checkpoint.

    Where the checkpoint is a quantized form of an `original`, that one judges the quality. The original may also be
    given as the checkpoint: its quantized form is then looked for where the build kept it. Raises BundleError when
    files are damaged or the checkpoint is not the one it was built from.
    """
    root = Path(folder)
    manifest = read_manifest(root)
    with progress.step("check files"):
        check_files(root, manifest)
        checkpoint, original = built_from(manifest, checkpoint, original)
    return _Verification(root, manifest, checkpoint, original, threads, progress).run()


class _Verification:
    """One run of all levels."""

    def __init__(
        self,
        root: Path,
        manifest: Manifest,
        checkpoint: Checkpoint,
        original: Checkpoint | None,
        threads: int | None,
        progress: Progress,
    ) -> None:
        self._root, self._manifest, self._checkpoint = root, manifest, checkpoint
        self._original = original or checkpoint
        self._threads, self._progress = threads, progress
        self._entry = llm_stage(manifest)
        # That of the graph: an engine of fixed size may have been compiled for less.
        self._context = int(manifest.model["max_context"])
        self._recipe, self._cache = recipe_of(manifest), cache_of(manifest)
        self._kv_dtype = self._entry.contract.kv_dtype
        self._vocabulary = vocabulary_of(root, manifest)
        self._beside = Beside(embedding_of(root, manifest), manifest.model.get("embedding", {}).get("value"))
        table = inside(root, TABLE) if self._beside.table is not None else None
        self._tensors = ShippedTensors(inside(root, self._entry.graph), table)
        self._prefill = Prefill.of(root, manifest, table)
        self._levels: dict[str, Level] = {}
        self._place: Localisation | None = None
        self._failures: list[str] = []
        self._graph: GraphReport | None = None

    def run(self) -> Report:
        """Run the levels; after a failure, look for the place."""
        stage, applied = self._semantic()
        lowered = find_lowering(self._entry.dialect)(stage)
        self._found = {leaf.name: leaf for leaf in leaves(lowered)}
        if TABLE in self._found:  # the reference has it inside
            self._found.setdefault(self._found[TABLE].producer.specs[0].name, self._found[TABLE])
        weights = self._weights = self._check_weights(lowered)
        self._levels["weights"] = weights
        versions = self._manifest.versions
        same_writer = all(versions.get(name) == version for name, version in writer_versions().items())
        if same_writer:
            self._graph = check_graph(lowered, inside(self._root, self._entry.graph))
        if self._graph is not None:
            self._levels["graph"] = self._graph
        if self._prefill is not None:
            with self._progress.step("compare weights of prefill", layout_size(plan_layout(lowered))) as advance:
                anew, _ = self._semantic()
                self._levels |= self._prefill.files(anew, advance, same_writer=same_writer)
        llm, unchecked = load_llm(self._root, self._threads)
        if unchecked:
            self._levels["device"] = NotChecked(unchecked)
        self._scripts = scripts_for(llm)
        with self._progress.step("run engine"):
            given = {script.name: run_script(llm, script, self._failures) for script in self._scripts}
        del llm
        # When every weight is the checkpoint's, one reference serves all levels.
        one = weights.exact == weights.tensors and self._vocabulary is None and self._cache is None
        one = one and self._original is self._checkpoint
        one = one and all(tensor.input is None for tensor in self._checkpoint.tensors.values())
        with self._reference(self._float(), "float32 reference") as plain:
            wanted = logits_of(plain, self._scripts, self._threads)
            if self._vocabulary is not None:  # the whole model judges the logits that were kept
                wanted = {name: logits[:, self._vocabulary.ids] for name, logits in wanted.items()}
            bound = with_cache(quality_of(applied), CACHE_QUALITY, self._kv_dtype)
            bound = with_type(bound, computes(self._entry))
            quality = compare_logits(given, wanted, bound)
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

    def _float(self) -> Stage:
        """Build the float model; that of a quantized checkpoint is what its codes stand for, inputs not rounded."""
        stage = build_llm(self._original, max_context=self._context)
        if self._original.quantization is not None:
            keep = FloatFormat("float32")
            quantize_stage(stage, Recipe("float32", keep, keep, keep))
        return stage

    def _semantic(self) -> tuple[Stage, list[Applied]]:
        """Build the stage anew as it is lowered: quantized, with an embedding table outside taken out."""
        stage, applied = self._quantized()
        if self._beside.table is not None:
            take_table_outside(stage)
        return stage, applied

    def _quantized(self) -> tuple[Stage, list[Applied]]:
        """Build the stage anew, with the tokens and in the formats the bundle has."""
        stage = build_llm(self._checkpoint, max_context=self._context)
        if self._vocabulary is not None:
            reduce_vocabulary(stage, self._vocabulary.ids)
        applied = quantize_stage(stage, self._recipe, requantize=True)
        if self._cache is not None:
            quantize_cache(stage, *self._cache)
        return stage, applied

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
        if self._cache is not None or any(isinstance(a.format, BlockFormat) for a in applied):
            wanted = wanted or logits_of(reference, self._fed, self._threads)
            bound = with_cache(ENGINE[rounds_inputs(applied)], CACHE_ENGINE, self._kv_dtype)
            bound = with_type(bound, computes(self._entry), applied)
            self._levels["engine"] = compare_logits(given, wanted, bound)

    def _ops(self, reference: Reference) -> None:
        """Recompute every op from its own inputs: the logits leave room for small faults, this does not."""
        candidates = {"ops": self._candidate}
        if self._prefill is not None:
            candidates[TITLE.format("ops")] = self._prefill.candidate
        for name, candidate in candidates.items():
            if (kind := computes(candidate.entry)) in HALVES:
                self._levels[name] = NotChecked((f"Ops can't be compared one by one: the graph computes in {kind}.",))
                continue
            locator = self._locator(reference, candidate)
            with self._progress.step(f"compare {name}"):
                found = locator.first([script.brief() for script in self._fed if script.name in _OPS])
            fault = ""
            if found is not None:
                place = describe(found, locator, candidate, self._wrong)
                self._place, fault = self._place or place, place.sentence
            self._levels[name] = OpsReport(len(locator.taps), locator.calls, *locator.worst, fault)

    def _localise(self, reference: Reference) -> None:
        """Look for the place of a failure, in the scenarios that failed first."""
        if self._place is not None or Report(self._levels).passed or computes(self._entry) in HALVES:
            return
        logits = [level for level in self._levels.values() if isinstance(level, LogitsReport)]
        bad = {name for level in logits for name, d in level.by_scenario.items() if level.threshold.faults(d)}
        scripts = sorted(self._fed, key=lambda script: script.name not in bad)
        with self._progress.step("look for the place"):
            locator = self._locator(reference)
            found = locator.first(scripts)
            if found is not None:
                self._place = describe(found, locator, self._candidate, self._wrong)
            elif pair := self._wrong.first():
                self._place = of_tensor(pair, reference.semantic)
            elif self._graph is not None:
                self._place = self._graph.localisation(Path(self._entry.graph).name)

    def _locator(self, reference: Reference, candidate: Candidate | None = None) -> Locator:
        running = (candidate or self._candidate).running()
        contract = self._entry.contract
        return Locator(reference.semantic, reference.graph(), running, contract, self._threads, beside=self._beside)

    @property
    def _fed(self) -> list[Scenario]:
        """The scenarios as the graph itself takes them."""
        return fed(self._scripts, self._vocabulary)

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
    tokens = _tokens(llm, int(llm.manifest.model["vocab_size"]))
    max_batch = contract.bounds["batch"][1]
    return list(scenarios(tokens, session.max_context, max_batch=max_batch, cut_back=not session.recurrent))


def _tokens(llm: LLM, vocab: int) -> Tokens:
    if "sidecars/tokenizer.json" in llm.manifest.files:
        text = (resources.files("edgewright.verify") / "data" / "sample.txt").read_text(encoding="utf-8")
        ids = [i for i in llm.tokenizer.encode(text) if i < vocab]
        if len(ids) >= 64:
            return np.resize(np.asarray(ids, dtype=np.int64), _TEXT_TOKENS)
    known = np.arange(vocab) if llm.vocabulary is None else llm.vocabulary.ids
    return known[np.random.default_rng(2026).integers(0, len(known), _TEXT_TOKENS)]


def fed(scripts: Sequence[Scenario], vocabulary: Vocabulary | None) -> list[Scenario]:
    """Return scenarios as a graph with a reduced vocabulary takes them: ids are places of the kept ones."""
    return [script if vocabulary is None else script.of(vocabulary.columns) for script in scripts]


def recipe_of(manifest: Manifest) -> Recipe:
    """Rebuild the recipe that was applied, module by module."""
    rules = []
    for module in manifest.recipe["modules"]:
        activation = module.get("activation")
        inputs = Inputs(None if activation is None else ActivationFormat(**activation))
        rules.append(Rule(module["module"], format_from_json(module), MANIFEST, inputs))
    keep = FloatFormat("float32")
    return Recipe(manifest.recipe["name"], keep, keep, keep, tuple(rules))


def cache_of(manifest: Manifest) -> tuple[KVFormat, dict[str, KVScales]] | None:
    """Return the format of a bundle's cache and its scales by module, or None where it holds floats.

    Raises BundleError when the manifest's record is not about the cache that its contract has.
    """
    record, dtype = manifest.recipe.get("kv"), llm_stage(manifest).contract.kv_dtype
    cache = cache_of_record(record) if record else None
    if dtype not in (("float32", *HALVES) if cache is None else (cache[0].cache_dtype,)):
        found = "no scales" if cache is None else f"scales of {cache[0].label}"
        raise BundleError(f"The manifest has {found} for a cache of {dtype}: build the bundle again.")
    return cache


def coarsest_of(manifest: Manifest) -> str:
    """Return the name of the coarsest weight format of a bundle, as QUALITY spells it."""
    return coarsest(format_from_json(module) for module in manifest.recipe["modules"])
