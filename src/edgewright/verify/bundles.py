"""Two bundles of one model against each other: the same tokens through both, op by op where they disagree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from edgewright.bundle import Manifest, check_files, read_manifest
from edgewright.bundle.manifest import StageEntry
from edgewright.errors import BundleError
from edgewright.files import inside
from edgewright.progress import SILENT, Progress
from edgewright.runtime.embedding import INPUT, embedding_of
from edgewright.runtime.embedding import SIDECAR as EMBEDDING
from edgewright.runtime.llm import LLM, llm_stage
from edgewright.runtime.vocabulary import SIDECAR
from edgewright.verify.cause import Cause
from edgewright.verify.graphs import Array, Graph
from edgewright.verify.localise import Candidate, describe
from edgewright.verify.locate import Locator
from edgewright.verify.metrics import Logits
from edgewright.verify.replay import Beside
from edgewright.verify.report import Localisation, Report
from edgewright.verify.running import load_llm
from edgewright.verify.scenarios import Scenario
from edgewright.verify.semantic import Op, Semantic
from edgewright.verify.thresholds import CACHE_QUALITY, QUALITY, coarser, with_cache
from edgewright.verify.verifier import coarsest_of, compare_logits, fed, recipe_of, run_script, scripts_for

_TOKENIZER = "sidecars/tokenizer.json"
#: Bound of the error of one product when its weights have another format on each side, by the coarser format.
_PRODUCTS = {"float32": None, "float16": 5e-3, "int8": 0.08, "int4": 0.5}


def compare_bundles(root: Path, other: Path, *, threads: int | None = None, progress: Progress = SILENT) -> Report:
    """Compare a bundle with another one, which counts as right.

    Raises BundleError that names the difference when their tokenizers or contracts are not the same.
    """
    manifests = [read_manifest(folder) for folder in (root, other)]
    with progress.step("check files"):
        for folder, manifest in zip((root, other), manifests, strict=True):
            check_files(folder, manifest)
    if difference := difference_of(*manifests):
        raise BundleError(f"The bundles can't be compared: {difference}.")
    format_ = coarser([coarsest_of(manifest) for manifest in manifests])
    llms = [load_llm(folder, threads)[0] for folder in (root, other)]
    scripts = scripts_for(llms[0])
    failures: list[str] = []
    logits: list[dict[str, Logits]] = []
    for llm, title in zip(llms, ("run engine", "run the other engine"), strict=True):
        with progress.step(title):
            logits.append({script.name: run_script(llm, script, failures) for script in scripts})
    bound = with_cache(QUALITY[format_], CACHE_QUALITY, llm_stage(manifests[0]).contract.kv_dtype)
    level = compare_logits(logits[0], logits[1], bound)
    place = None
    if level.faults:
        bad = {name for name, d in level.by_scenario.items() if level.threshold.faults(d)}
        ordered = sorted(fed(scripts, llms[0].vocabulary), key=lambda script: script.name not in bad)
        with progress.step("look for the place"):
            place = _tables(llms, ordered) or _localise(root, other, manifests, format_, ordered, threads)
    return Report({"bundles": level}, place, remarks=tuple(failures))


def difference_of(a: Manifest, b: Manifest) -> str:
    """Return in words what keeps two bundles from being compared; empty when nothing does."""
    tokenizers = [m.files.get(_TOKENIZER, {}).get("sha256") for m in (a, b)]
    if tokenizers[0] != tokenizers[1]:
        if None in tokenizers:
            return "one has a tokenizer and the other has none"
        return f"their tokenizers differ ({_TOKENIZER})"
    kept = [m.files.get(f"sidecars/{SIDECAR}", {}).get("sha256") for m in (a, b)]
    if kept[0] != kept[1]:
        if None in kept:
            return "one has a reduced vocabulary and the other has the whole one"
        return f"their reduced vocabularies differ (sidecars/{SIDECAR})"
    # Whether a cache is written in place is a matter of the dialect.
    one, two = (_contract(llm_stage(m)) for m in (a, b))
    for key in one:
        if one[key] != two[key]:
            return f"their contracts differ in {key}: {_shown(one[key], two[key])}"
    return ""


def _contract(entry: StageEntry) -> dict[str, Any]:
    contract = {key: value for key, value in entry.contract.to_json().items() if key != "kv_in_place"}
    # Nor does it count where the embedding table is: both take token ids from outside.
    ids = {"name": "input_ids", "dtype": "int64", "shape": ("batch", "seq")}
    contract["inputs"] = [ids if tensor["name"] == INPUT else tensor for tensor in contract["inputs"]]
    return contract


def _shown(a: Any, b: Any) -> str:
    """Return the first difference of two JSON values, shortly."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in (*a, *(k for k in b if k not in a)):
            if a.get(key) != b.get(key):
                return f"{key} {_shown(a.get(key), b.get(key))}"
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        if len(a) != len(b):
            return f"{len(a)} entries and {len(b)}"
        return next(f"entry {i} {_shown(x, y)}" for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
    return f"{a} and {b}"


def _localise(
    root: Path, other: Path, manifests: list[Manifest], format_: str, scripts: list[Scenario], threads: int | None
) -> Localisation | None:
    candidate, right = (Candidate(f, llm_stage(m)) for f, m in zip((root, other), manifests, strict=True))
    same = recipe_of(manifests[0]).rules == recipe_of(manifests[1]).rules
    coarse = None if same else _PRODUCTS[format_]
    # The graphs before compiling first: their nodes have the names of modules.
    pairs = [(candidate.entry.graph, right.entry.graph)]
    pairs += [(candidate.entry.engine or pairs[0][0], right.entry.engine or pairs[0][1])]
    tables = [embedding_of(folder, manifest) for folder, manifest in zip((root, other), manifests, strict=True)]
    value = manifests[0].model["embedding"]["value"] if tables[0] is not None and tables[1] is None else None
    for name, wanted in dict.fromkeys(pairs):
        graph = right.graph(wanted)
        semantic = GraphSemantic(graph)
        beside = Beside(tables[0], value if value in semantic.made else None, tables[1])
        contract = candidate.entry.contract
        locator = Locator(semantic, graph, candidate.graph(name), contract, threads, coarse=coarse, beside=beside)
        found = locator.first(scripts)
        if found is not None:
            return describe(found, locator, candidate, lambda name: None, origin=name)
    return None


def _tables(llms: Sequence[LLM], scripts: Sequence[Scenario]) -> Localisation | None:
    """Return the place when both bundles have their embedding table outside and these give other rows."""
    one, two = (llm.table for llm in llms)
    if one is None or two is None or llms[0].manifest.recipe != llms[1].manifest.recipe:
        return None
    ids = np.unique(np.concatenate([row for script in scripts for row in script.sequences]))
    bad = ids[(one.rows(ids) != two.rows(ids)).any(axis=1)]
    if not bad.size:
        return None
    module = str(llms[0].manifest.model["embedding"]["module"])
    cause = Cause("weight bytes", f"row {bad[0]} and {bad.size - 1} more of the {ids.size} rows used are other ones")
    place = module.removeprefix("model.")
    return Localisation(place, None, module, "Embedding", "", "", (), cause, origin=EMBEDDING)


class GraphSemantic(Semantic):
    """A finished graph seen as a semantic one: its nodes are the ops, its weights are in its files."""

    has_attributes = False

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        model = graph.model
        self.ops = [_op(node) for node in model.graph.node]
        self._index({tensor.name for tensor in model.graph.initializer})
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].dims)

    def initializer(self, name: str) -> Array:
        tensor = self._tensors[name]
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            array: Array = onnx.numpy_helper.to_array(tensor)
            return array
        entries = {entry.key: entry.value for entry in tensor.external_data}
        path = inside(self._graph.folder, entries["location"])
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        offset, shape = int(entries.get("offset", 0)), tuple(tensor.dims)
        return np.array(np.memmap(path, dtype, mode="r", offset=offset, shape=shape))


def _op(node: onnx.NodeProto) -> Op:
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    inputs = tuple(name or None for name in node.input)
    return Op(node.name, node.domain, node.op_type, attributes, inputs, tuple(name for name in node.output if name))
