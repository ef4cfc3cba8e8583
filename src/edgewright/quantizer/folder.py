"""Writes a quantized checkpoint as a folder in our own layout: config, one weight file, tokenizer, report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.checkpoint import Checkpoint
from edgewright.checkpoint.layouts.native import METHOD, VERSION, module_entry
from edgewright.checkpoint.safetensors_writer import TensorSpec, write_safetensors
from edgewright.checkpoint.tensor import DTYPES, StoredTensor
from edgewright.files import canonical_json
from edgewright.formats import ActivationFormat, BlockFormat, FloatFormat, LinearInput, format_from_json
from edgewright.formats.cache import KVFormat
from edgewright.graph import Weight
from edgewright.graph.weights import ComputedWeight
from edgewright.models import build_llm
from edgewright.quant.recipe import Recipe
from edgewright.quantizer.driver import Quantized, float_stage
from edgewright.quantizer.report import REPORT
from edgewright.quantizer.work import Work

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "uint8": "U8", "int8": "I8", "int64": "I64"}
_NAMES |= {"float8_e4m3fn": "F8_E4M3", "float8_e8m0fnu": "F8_E8M0"}


def write_folder(
    folder: Path, checkpoint: Checkpoint, source: Mapping[str, Any], recipe: Recipe, done: Quantized, record: Any
) -> None:
    """Write the folder; `source` is the record of the original's files, `record` that of the calibration data."""
    weights = float_stage(checkpoint, recipe, max_context=1).weights
    # A rotation gives a tied head a weight of its own.
    untied = "lm_head.weight" in weights.keys() - build_llm(checkpoint, max_context=1).weights.keys()
    writer = Writer(weights, done.work, untied=untied)
    report = {"recipe": recipe.name, "modules": [report.to_json() for report in done.reports]}
    writer.write(folder, checkpoint.config, checkpoint.sidecars(), source, recipe, record, report, recipe.kv)


class Writer:
    """Collects where every tensor of a folder comes from; `untied`: the head has a weight of its own already."""

    def __init__(self, weights: Mapping[str, Weight], work: Work, *, untied: bool = False) -> None:
        self._results = [work.tensors(index) for index in range(len(work.segments))]
        self._weights = weights
        self.modules: dict[str, Any] = {}
        self._tensors: dict[str, TensorSpec] = {}
        self.biases = [name for segment in work.segments for name in segment["biases"]]
        self.caches = [name for segment in work.segments for name in segment["caches"]]
        self.floats: dict[str, Any] = {}
        self.taken = [m["module"] for segment in work.segments for m in segment["modules"] if m["taken"]]
        self.notes = _notes([module for segment in work.segments for module in segment["modules"]])
        floats: dict[str, FloatFormat] = {}
        written: dict[str, str] = {}
        apart: dict[str, tuple[str, FloatFormat]] = {}
        encoded_weights: set[str] = set()
        self.untied = untied
        for tensors, segment in zip(self._results, work.segments, strict=True):
            for module in segment["modules"]:
                fmt = format_from_json(module["format"])
                tied = module["weight"] != f"{module['module']}.weight"
                if isinstance(fmt, FloatFormat):
                    same = floats.setdefault(module["weight"], fmt) == fmt
                    if tied and (module["weight"] in written or not same):
                        apart[module["module"]] = (module["weight"], fmt)  # of a table in another format
                        self._float(module["module"], module, fmt, tensors)
                    else:
                        self._float(module["weight"].removesuffix(".weight"), module, fmt, tensors)
                    continue
                assert isinstance(fmt, BlockFormat)
                if module["codes_of"] is not None:
                    self._share(module["codes_of"], module, tensors)
                    continue
                if tied and module["weight"] not in written:
                    self.untied = True  # of a table that stays in floats
                else:
                    encoded_weights.add(module["weight"])
                self._module(module, fmt, tensors, written)
        changed = {
            name.removeprefix("changed/"): tensor
            for tensors in self._results
            for name, tensor in tensors.items()
            if name.startswith("changed/")
        }
        for name, weight in self._weights.items():
            if not isinstance(weight, ComputedWeight) and name not in encoded_weights:
                self._plain(name, weight, changed.get(name), floats.get(name))
        for module, (name, fmt) in apart.items():
            self.untied = True
            self._plain(f"{module}.weight", self._weights[name], changed.get(name), fmt)
        for name in self.biases:
            self._tensors[f"{name}.bias"] = _spec(changed[f"{name}.bias"])
        for tensors in self._results:
            for name, tensor in tensors.items():
                if name.startswith("cache/"):
                    module, _, kind = name.removeprefix("cache/").rpartition("/")
                    self._tensors[f"{module}.{kind}_scale"] = _spec(tensor)

    def _module(
        self, module: Mapping[str, Any], fmt: BlockFormat, tensors: Mapping[str, StoredTensor], written: dict[str, str]
    ) -> None:
        """Take a module's parts over; a second module of one weight has codes of its own."""
        name, weight = module["module"], module["weight"]
        self.untied |= weight in written
        written.setdefault(weight, name)
        activation = None if module["activation"] is None else ActivationFormat(**module["activation"])
        given = None if activation is None else LinearInput(activation=activation)
        offsets = f"{name}/offsets" in tensors
        self.modules[name] = module_entry(fmt, tuple(module["shape"]), given, offsets=offsets)
        for kind in (*fmt.specs(tuple(module["shape"])), *(("offsets",) if offsets else ())):
            self._tensors[f"{name}.weight.{kind}"] = _spec(tensors[f"{name}/{kind}"])
        self._input(name, name, tensors)

    def _input(self, to: str, name: str, tensors: Mapping[str, StoredTensor]) -> None:
        for kind in ("multiply", "scale", "zero_point"):
            if f"{name}/input.{kind}" in tensors:
                self._tensors[f"{to}.input.{kind}"] = _spec(tensors[f"{name}/input.{kind}"])

    def _share(self, table: str, head: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> None:
        """Let a table's entry say what the input of the head goes through that reads its codes; a lookup has none."""
        if head["activation"] is not None:
            self.modules[table]["activation"] = head["activation"]
        self._input(table, head["module"], tensors)

    def _float(self, to: str, module: Mapping[str, Any], fmt: FloatFormat, tensors: Mapping[str, StoredTensor]) -> None:
        """Say that a module stays in floats, and what its input goes through; a table and its head are one entry."""
        entry = self.floats.setdefault(to, {"dtype": fmt.dtype})
        if module["activation"] is not None:
            entry["activation"] = module["activation"]
        self._input(to, module["module"], tensors)

    def _plain(self, name: str, weight: Weight, changed: StoredTensor | None, fmt: FloatFormat | None) -> None:
        """Write a parameter as floats: as it was stored, where nothing changed it."""
        stored, plus = getattr(weight, "tensor", None), getattr(weight, "plus", np.float32(0))
        wish = "float32" if fmt is None else fmt.dtype
        dtype = wish if stored is None or wish != "float32" else stored.dtype
        if changed is not None or dtype not in ("float32", "float16", "bfloat16"):
            dtype = wish

        def chunks() -> Iterator[np.ndarray]:
            for start, stop in weight.blocks():
                values = weight.rows(start, stop) if changed is None else changed.rows(start, stop)
                values = values - plus if plus else values
                yield values.astype(DTYPES[dtype])

        self._tensors[name] = TensorSpec(_NAMES[dtype], weight.shape, _Again(chunks))

    def write(
        self,
        folder: Path,
        config: Mapping[str, Any],
        sidecars: Mapping[str, bytes],
        source: Mapping[str, Any],
        recipe: Recipe,
        record: Any,
        report: Mapping[str, Any],
        kv: KVFormat | None,
    ) -> None:
        """Write the folder: the config with what was done added to it, the tensors, sidecars, and the report."""
        quantization = {
            "quant_method": METHOD,
            "version": VERSION,
            "modules": self.modules,
            "floats": self.floats,
            "taken": self.taken,
            "notes": self.notes,
            "untied": self.untied,
            "biases": self.biases,
            "kv_dtype": None if kv is None else kv.dtype,
            "kv_modules": self.caches,
            "recipe": recipe.to_json(),
            "origin": dict(source),
            "calibration": record,
        }
        write_safetensors(folder / WEIGHTS, self._tensors, {"format": "pt"})
        (folder / CONFIG).write_bytes(canonical_json({**config, "quantization_config": quantization}))
        for name, data in sidecars.items():
            (folder / name).write_bytes(data)
        (folder / REPORT).write_bytes(canonical_json(report))


def _notes(modules: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what is to be known of weights that another tool had quantized."""
    notes = []
    for taken, what in ((True, "codes taken over unchanged"), (False, "rounded a second time")):
        found = Counter(m["stored"] for m in modules if m["stored"] and m["encoded"] and m["taken"] == taken)
        notes += [f"{count} weights stored as {stored}: {what}" for stored, count in sorted(found.items())]
    return notes


class _Again:
    """Chunks that can be asked for whenever their turn comes."""

    def __init__(self, chunks: Any) -> None:
        self._chunks = chunks

    def __iter__(self) -> Iterator[np.ndarray]:
        result: Iterator[np.ndarray] = self._chunks()
        return result


def _spec(tensor: StoredTensor) -> TensorSpec:
    def chunks() -> Iterator[np.ndarray]:
        step = max(1, (1 << 20) * tensor.row_count // max(tensor.nbytes, 1))
        for start in range(0, tensor.row_count, step):
            yield tensor.raw(start, min(start + step, tensor.row_count))

    return TensorSpec(_NAMES[tensor.dtype], tuple(tensor.shape), _Again(chunks))
