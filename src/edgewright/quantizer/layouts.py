"""Writes a quantized checkpoint as other tools read it: the names and dtypes of ModelOpt or compressed-tensors.

Every tensor keeps the name it has in the original, so a model whose file holds fused, transposed or stacked tensors
can't be written. What a layout has no place for is refused before any work is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.checkpoint import Checkpoint
from edgewright.checkpoint.layouts.names import module_class
from edgewright.checkpoint.safetensors_writer import TensorSpec, write_safetensors
from edgewright.checkpoint.tensor import DTYPES, StoredTensor
from edgewright.errors import RecipeError
from edgewright.files import canonical_json
from edgewright.formats import ActivationFormat, BlockFormat, FloatFormat, Format, format_from_json
from edgewright.graph.weights import StoredWeight, Weight
from edgewright.models import build_llm
from edgewright.quant.recipe import Recipe
from edgewright.quantizer import layout_compressed_tensors, layout_modelopt
from edgewright.quantizer.driver import Quantized
from edgewright.quantizer.folder import CONFIG, WEIGHTS
from edgewright.quantizer.layout_parts import NAMES, Again, Layout, Written, copied
from edgewright.quantizer.plan import Group, Target, plan_of
from edgewright.quantizer.report import REPORT

#: The layouts by the names of the command line.
WRITERS: dict[str, Layout] = {
    "modelopt": layout_modelopt.LAYOUT,
    "compressed-tensors": layout_compressed_tensors.LAYOUT,
}


def check_layout(layout: str, checkpoint: Checkpoint, recipe: Recipe) -> None:
    """Raise RecipeError when a layout has no place for what a recipe makes of a checkpoint; costs no calibration."""
    writer = WRITERS[layout]
    stage = build_llm(checkpoint, max_context=1)
    names = stored_names(checkpoint, stage.weights)
    changed = recipe.transforms
    if changed.rotation is not None or changed.bias_correction:
        what = "rotations" if changed.rotation is not None else "bias correction"
        raise RecipeError(
            f"The recipe {recipe.name} asks for {what}, which the layout {layout} has no place for: leave it out, or "
            "write the layout edgewright."
        )
    if recipe.kv is not None and (why := writer.refuses_cache(recipe.kv)) is not None:
        raise RecipeError(_no_place("The cache", recipe.kv.label, layout, why))
    for groups in plan_of(stage, recipe).groups:
        for group in groups:
            for target in group.targets:
                _check_target(writer, layout, recipe, group, target, names)


def _check_target(
    writer: Layout, layout: str, recipe: Recipe, group: Group, target: Target, names: Mapping[str, str]
) -> None:
    fmt, activation = target.choice.weight, target.choice.inputs.format
    if not isinstance(fmt, BlockFormat):
        if activation is not None and target.op == "Linear":
            what = f"{fmt.label} with inputs {activation.label}"
            raise RecipeError(_no_place(target.module, what, layout, "its weight has no codes"))
        return
    if target.taken is not None and "offsets" in target.taken():
        raise RecipeError(_no_place(target.module, f"stored as {target.stored}", layout, "its blocks have minima"))
    if target.weight not in names:
        raise RecipeError(_fused(target.weight, layout))
    if target.op != "Linear":
        raise RecipeError(
            _no_place(target.module, fmt.label, layout, f"it is no linear but of the class {target.kind}")
        )
    scaled = group.fold is None and not target.tied
    multiply = scaled and (
        target.choice.algorithm.name == "awq" or (recipe.transforms.smoothing is not None and activation is not None)
    )
    if (why := writer.refuses(fmt, activation, target.shape, multiply=multiply)) is not None:
        label = fmt.label + (f" with inputs {activation.label}" if activation else "")
        raise RecipeError(_no_place(target.module, label, layout, why))


def _no_place(module: str, label: str, layout: str, why: str) -> str:
    return (
        f"{module} is to be {label}, which the layout {layout} has no place for ({why}): choose another format, or "
        "write the layout edgewright."
    )


def _fused(weight: str, layout: str) -> str:
    return (
        f"{weight} is no tensor of its own in the original, which holds it fused, stacked or transposed, so the layout "
        f"{layout} can't be written: write the layout edgewright."
    )


def stored_names(checkpoint: Checkpoint, weights: Mapping[str, Weight]) -> dict[str, str]:
    """Return the stored name of every parameter that is a tensor of the checkpoint as it is."""
    by_tensor = {id(tensor): name for name, tensor in checkpoint.tensors.items()}
    return {
        name: by_tensor[id(weight.tensor)]
        for name, weight in weights.items()
        if isinstance(weight, StoredWeight) and id(weight.tensor) in by_tensor
    }


def write_layout(
    folder: Path,
    layout: str,
    checkpoint: Checkpoint,
    source: Mapping[str, Any],
    recipe: Recipe,
    done: Quantized,
    record: Mapping[str, Any],
) -> None:
    """Write the folder; `source` is the record of the original's files, `record` that of the calibration data.

    Raises RecipeError on what the layout has no place for; see `check_layout`.
    """
    writer = WRITERS[layout]
    collected = _Collected(layout, writer, checkpoint, done)
    config = dict(checkpoint.config)
    entry, files = writer.config(collected.modules, sorted(collected.plain), recipe.kv if collected.caches else None)
    config["quantization_config"] = entry
    if collected.untied:
        config["tie_word_embeddings"] = False
        if isinstance(config.get("text_config"), Mapping):
            config["text_config"] = {**config["text_config"], "tie_word_embeddings": False}
    tensors = {**collected.tensors}
    for module, pair in collected.caches.items():
        tensors |= writer.cache(module, *pair)
    write_safetensors(folder / WEIGHTS, tensors, {"format": "pt"})
    (folder / CONFIG).write_bytes(canonical_json(config))
    for name, data in (*checkpoint.sidecars().items(), *files.items()):
        (folder / name).write_bytes(data)
    report = {"recipe": recipe.name, "origin": dict(source), "calibration": dict(record)}
    modules = [report.to_json() for report in done.reports]
    (folder / REPORT).write_bytes(canonical_json({**report, "modules": modules}))


class _Collected:
    """Where every tensor of the folder comes from; `plain` are linears and tables that stay floats."""

    def __init__(self, layout: str, writer: Layout, checkpoint: Checkpoint, done: Quantized) -> None:
        self._layout, self._writer = layout, writer
        weights = build_llm(checkpoint, max_context=1).weights
        self._names = stored_names(checkpoint, weights)
        self.modules: list[Written] = []
        self.tensors: dict[str, TensorSpec] = {}
        self.caches: dict[str, tuple[StoredTensor, StoredTensor]] = {}
        self.untied = False
        floats: dict[str, FloatFormat] = {}
        changed: dict[str, StoredTensor] = {}
        for index, segment in enumerate(done.work.segments):
            found = done.work.tensors(index)
            if segment["biases"]:
                raise RecipeError(f"{segment['biases'][0]} got a bias, which the layout {layout} has no place for.")
            for module in segment["modules"]:
                fmt = format_from_json(module["format"])
                if isinstance(fmt, FloatFormat):
                    floats[module["weight"]] = fmt
                else:
                    self._add(module, fmt, found)
            changed |= {n.removeprefix("changed/"): t for n, t in found.items() if n.startswith("changed/")}
            for name in segment["caches"]:
                self.caches[self._attention(name)] = (found[f"cache/{name}/key"], found[f"cache/{name}/value"])
        encoded = {f"{module.name}.weight" for module in self.modules}
        changes = self._changes(weights, changed, floats, encoded)
        for name, tensor in checkpoint.tensors.items():
            if name not in encoded:
                self.tensors[name] = changes.get(name) or copied(tensor)
        for module in self.modules:
            self.tensors |= writer.tensors(module)
        linears = [n.removesuffix(".weight") for n, spec in self.tensors.items() if len(spec.shape) == 2]
        self.plain = {n for n in linears if f"{n}.weight" in self.tensors and f"{n}.weight" not in encoded}
        if not any(module.name == "lm_head" for module in self.modules):
            self.plain.add("lm_head")

    def _add(self, module: Mapping[str, Any], fmt: Format, tensors: Mapping[str, StoredTensor]) -> None:
        """Take over one module; a head whose table stays in floats gets a tensor of its own."""
        assert isinstance(fmt, BlockFormat)
        name = module["module"]
        if module["weight"] not in self._names:
            raise RecipeError(_fused(module["weight"], self._layout))
        stored = self._names[module["weight"]].removesuffix(".weight")
        if module["module"] == "lm_head" and module_class(stored) == "Embedding":
            self.untied, stored = True, "lm_head"
        inputs = {kind: tensors.get(f"{name}/input.{kind}") for kind in ("multiply", "scale", "zero_point")}
        activation = None if module["activation"] is None else ActivationFormat(**module["activation"])
        parts = {kind: tensors[f"{name}/{kind}"] for kind in fmt.specs(tuple(module["shape"]))}
        shape = (module["shape"][0], module["shape"][1])
        given = {kind: tensor for kind, tensor in inputs.items() if tensor is not None}
        why = self._writer.refuses(fmt, activation, shape, multiply="multiply" in given)
        if why is not None:
            raise RecipeError(_no_place(name, fmt.label, self._layout, why))
        self.modules.append(Written(stored, fmt, shape, activation, parts, given))

    def _attention(self, module: str) -> str:
        """Return the stored name of an attention module."""
        name = self._names.get(f"{module}.k_proj.weight")
        if name is None:
            raise RecipeError(_fused(f"{module}.k_proj.weight", self._layout))
        return name.removesuffix(".k_proj.weight")

    def _changes(
        self,
        weights: Mapping[str, Weight],
        changed: Mapping[str, StoredTensor],
        floats: Mapping[str, FloatFormat],
        encoded: set[str],
    ) -> dict[str, TensorSpec]:
        """Return the parameters that aren't what they were: with factors folded in, or in another float dtype."""
        specs = {}
        for name in (*changed, *floats):
            weight = weights.get(name)
            if not isinstance(weight, StoredWeight) or self._names.get(name) in encoded:
                continue
            dtype = floats[name].dtype if name in floats else "float32"
            if name not in changed and dtype in ("float32", weight.tensor.dtype):
                continue  # as it was stored
            if name not in self._names:
                raise RecipeError(_fused(name, self._layout))
            specs[self._names[name]] = _floats(weight, changed.get(name), dtype)
        return specs


def _floats(weight: StoredWeight, changed: StoredTensor | None, dtype: str) -> TensorSpec:
    """Return a parameter as floats, less what is added to it when it is read."""

    def chunks() -> Iterator[np.ndarray]:
        for start, stop in weight.blocks():
            values = weight.rows(start, stop) if changed is None else changed.rows(start, stop)
            values = values - weight.plus if weight.plus else values
            yield values.astype(DTYPES[dtype])

    return TensorSpec(NAMES[dtype], tuple(weight.shape), Again(chunks))


__all__ = ["WRITERS", "check_layout", "stored_names", "write_layout"]
