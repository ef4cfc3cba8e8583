"""A checkpoint to be planned: its stages as they would be built, and how a recipe would store their weights.

Only headers are read. Nothing is rounded, so that recipes which calibrate can be planned as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.checkpoint import open_checkpoint
from edgewright.checkpoint.gguf_blocks import BLOCK_FORMATS
from edgewright.checkpoint.layouts.native import part_bytes
from edgewright.checkpoint.policy import PolicyOptions, is_policy, open_policy
from edgewright.errors import RecipeError, UsageError
from edgewright.formats import FloatFormat, Format, IntFormat, LinearInput, ScaledFormat
from edgewright.graph import Stage
from edgewright.models import build_llm
from edgewright.plan.memory import Activations, activations_of, weight_bytes
from edgewright.plan.model import AS_ASKED, FLOAT_BYTES, Model, Variant
from edgewright.plan.shapes import shapes_of
from edgewright.plan.work import SEMANTIC, Call, Stored, Work, count
from edgewright.quant.apply import Use, format_of, quantizable
from edgewright.quant.producers import held_exactly
from edgewright.quant.recipe import Choice, Recipe
from edgewright.quant.recipe_file import load_recipe
from edgewright.runtime.policy.spec import PolicySpec
from edgewright.targets.platform import Platform
from edgewright.targets.support import check_stored, check_support, family_of

#: The recipes that language models and policies get where none is asked for, as `deploy` gives them.
RECIPE, POLICY_RECIPE = "int4", "policy-int8"
#: The most observations at once that policies are built for, as `deploy` builds them.
POLICY_BATCH = 8
#: Recipes with fewer and fewer bits, for language models and for policies.
_NARROWER, _POLICY_NARROWER = ("int8", "int4"), ("policy-int8", "policy-int4")
#: The engine whose integer kernels round their inputs where a format allows it, and whose sessions cut long prompts
#: into as many tokens (`runtime.session.PREFILL_CHUNK`, which would bring the engine with it).
ROUNDING_ENGINE, PREFILL_CHUNK = "onnxruntime", 512

Formats = Mapping[str, Mapping[str, Stored]]


class Checkpoint(Model):
    """The stages of a checkpoint for one platform and recipe; raises RecipeError as a build would.

    `tabled` are modules that became a table: a recipe may name them. `quantized_cache` is the dtype of a cache that the
    checkpoint was calibrated for.
    """

    def __init__(self, opened: Opened, platform: Platform, recipe: Recipe) -> None:
        self.path, self.kind, self.spec, self.recipe = opened.path, opened.kind, opened.spec, recipe.name
        self.stages = opened.stages
        self._opened, self._platform = opened, platform
        self.contracts = {name: stage.contract for name, stage in opened.stages.items()}
        self.float_bytes = FLOAT_BYTES[platform.float]
        self.cut = PREFILL_CHUNK if platform.engine == ROUNDING_ENGINE else None
        inner = recipe if opened.spec is None else recipe.for_stage("prefix", tuple(opened.stages))
        coded = inner.kv is not None or opened.quantized_cache is not None
        self.cache_width = 1 if coded else self.float_bytes
        self.formats = formats_of(opened, recipe, platform.engine)
        self._check_stored()
        if self.cut is not None and (wide := self._decoded()):
            self.notes = (
                f"weights in {', '.join(wide)} become float32 when ONNX Runtime loads them, which takes more memory "
                "for a while than is planned",
            )

    def _check_stored(self) -> None:
        """Refuse formats of a quantized checkpoint that the platform lacks."""
        for stage in self.formats.values():
            for name, stored in stage.items():
                module = name.partition(":")[0]
                check_stored(self._platform, module, "weights", family_of(stored.format))
                if stored.rounded is not None:
                    check_stored(self._platform, module, "activations", stored.rounded)
        if (cache := self._opened.quantized_cache) is not None:
            check_stored(self._platform, "the key/value cache", "caches", "int8" if cache == "int8" else "fp8")

    def _decoded(self) -> list[str]:
        """Return the formats of codes that the engine has no kernel for."""
        kept = [stored.format for stage in self.formats.values() for stored in stage.values()]
        return sorted({fmt.label for fmt in kept if _widened(fmt) and not isinstance(fmt, FloatFormat)})

    def count(self, stage: str, call: Call) -> Sequence[Work]:
        """Return the work of a run of the semantic graph."""
        return count(self.stages[stage], call, self.formats[stage])[0]

    def activations(self, stage: str, call: Call) -> Activations:
        """Return what is there at every node of the semantic graph."""
        graph = self.stages[stage]
        return activations_of(graph, shapes_of(graph.graph, call.sizes, SEMANTIC), call.widths.activation)

    def weights(self, variant: Variant = AS_ASKED) -> int:
        """Return the bytes of all weights; raises RecipeError for a recipe that doesn't go."""
        formats = self.formats
        if variant.recipe is not None:
            formats = formats_of(self._opened, load_recipe(variant.recipe), self._platform.engine)
        return sum(
            weight_bytes(stage, formats[name], table_outside=variant.outside and name in ("llm", "prefix"))
            for name, stage in self.stages.items()
        )

    def variants(self) -> Iterator[tuple[str, Variant]]:
        """Yield what `deploy` has flags for, where it saves anything."""
        before = self.weights()
        if self.weights(Variant(outside=True)) < before:
            yield "--embeddings outside", Variant(outside=True)
        if self.cache_width > 1 and "int8" in self._platform.caches and self._has_cache():
            yield "an int8 key/value cache (kv: {format: int8} in a recipe)", Variant(cache_width=1)
        for name in _NARROWER if self.spec is None else _POLICY_NARROWER:
            if (taken := self._taken_by(name)) is not None and taken < before:
                before = taken
                yield f"--recipe {name}", Variant(recipe=name)

    def _has_cache(self) -> bool:
        return self.spec is not None or bool(self.contracts["llm"].kv)

    def _taken_by(self, name: str) -> int | None:
        """Return the bytes of weights by another recipe, None where platform or checkpoint have no place for it."""
        try:
            check_support(self._platform, load_recipe(name))
            return self.weights(Variant(recipe=name))
        except RecipeError:
            return None


class Opened:
    """A checkpoint with its stages built, before a recipe is chosen."""

    def __init__(
        self,
        path: Path,
        kind: str,
        stages: Mapping[str, Stage],
        spec: PolicySpec | None,
        quantized_cache: str | None,
        tabled: tuple[str, ...] = (),
    ) -> None:
        self.path, self.kind, self.stages, self.spec = path, kind, stages, spec
        self.quantized_cache, self.tabled = quantized_cache, tabled

    def recipe(self, name: str | None) -> Recipe:
        """Return a recipe, or the one that `deploy` would take; raises RecipeError."""
        return load_recipe(name or (RECIPE if self.spec is None else POLICY_RECIPE))


def open_stages(path: str | Path, *, context: int | None, options: PolicyOptions | None = None) -> Opened:
    """Open a checkpoint and build its stages; raises the errors of checkpoints, and UsageError on what has no meaning.

    `context` None is the model's own limit, at most 8192 tokens.
    """
    if not is_policy(path):
        if options is not None:
            raise UsageError(
                f"{Path(path).name} is not a robot policy, so the flags of policies have no meaning: leave them out."
            )
        checkpoint = open_checkpoint(path)
        stage = build_llm(checkpoint, max_context=context)
        found = checkpoint.quantization
        kind = str(checkpoint.config.get("model_type", "unknown"))
        return Opened(checkpoint.path, kind, {"llm": stage}, None, None if found is None else found.kv_dtype)
    refuse_context(path, context)
    from edgewright.models._policy_bounds import bounds_of_spec
    from edgewright.models._policy_features import build_featured

    policy = open_policy(path, options)
    stages, made = build_featured(policy, policy.spec, {}, bounds=bounds_of_spec(policy.spec, POLICY_BATCH))
    cache = None if policy.quantization is None else policy.quantization.kv_dtype
    return Opened(policy.path, policy.kind, stages, policy.spec, cache, made.tabled)


def refuse_context(path: str | Path, context: int | None) -> None:
    """Raise UsageError where a policy is given a context."""
    if context is not None:
        raise UsageError(
            f"{Path(path).name} is a robot policy, whose prefix is as long as its images and its prompt: leave "
            "--context out, or give --prompt-tokens."
        )


def formats_of(opened: Opened, recipe: Recipe, engine: str | None) -> Formats:
    """Return how every weight would be stored, by stage and `MODULE:NAME`; raises RecipeError as a build would."""
    uses = {name: quantizable(stage) for name, stage in opened.stages.items()}
    names = {name: [(use.module, use.kind) for use in found] for name, found in uses.items()}
    if opened.spec is None:
        choices: Mapping[str, Mapping[str, Choice]] = {
            "llm": recipe.for_stage("llm", tuple(opened.stages)).choices(names["llm"])
        }
    else:
        names["denoise"] += [(module, "projection") for module in opened.tabled]
        choices = recipe.stage_choices(names)
    rounds = engine == ROUNDING_ENGINE
    return {
        name: {f"{_reader(use)}:{use.weight.name}": _stored(use, choices[name][use.module], rounds) for use in found}
        for name, found in uses.items()
    }


def _reader(use: Use) -> str:
    return (use.node.name or "").rsplit("/", 1)[0]


def _stored(use: Use, choice: Choice, rounds: bool) -> Stored:
    fmt = format_of(use, choice)
    size = part_bytes(fmt, use.weight.shape) + _offset_bytes(use, fmt)
    if rounds and use.kind != "embedding" and _widened(fmt):
        size = 4 * math.prod(use.weight.shape)
    rounded = _rounded(use, choice, fmt)
    kernel = "int8" if rounds and isinstance(fmt, IntFormat) and fmt.int8_activations else "float"
    return Stored(fmt, size, (rounded or kernel) if use.kind != "embedding" else "float", rounded)


def _widened(fmt: Format) -> bool:
    """Tell whether ONNX Runtime, which has no kernel for a format, makes float32 of it when it loads a weight."""
    return not isinstance(fmt, IntFormat) and not (isinstance(fmt, ScaledFormat) and fmt.element == "int8")


def _offset_bytes(use: Use, fmt: Format) -> int:
    """Return the bytes of the float32 offsets, one a scale, that come with codes taken over from some GGUF types."""
    tensor = use.weight.stored()
    if tensor is None or not isinstance(fmt, IntFormat) or held_exactly(tensor, fmt) is None:
        return 0
    blocks = BLOCK_FORMATS[tensor.dtype]
    if blocks.split(np.zeros((1, blocks.block_bytes), np.uint8)).offsets is None:
        return 0
    return 4 * math.prod(fmt.specs(use.weight.shape)["scales"][1])


def _rounded(use: Use, choice: Choice, fmt: Format) -> str | None:
    """Return what the inputs of a product are rounded to, which it is then made of; None for floats."""
    gives: Any = getattr(use.weight.stored(), "input", None) or LinearInput()
    rounded = gives.activation or choice.inputs.format
    if rounded is None or isinstance(fmt, FloatFormat) or use.kind == "embedding":
        return None
    return str(rounded.name)
