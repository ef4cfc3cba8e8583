"""What a search may choose: formats as they are spelled, decisions over modules, and rounded weights on the disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from edgewright.checkpoint.layouts.native import part_bytes
from edgewright.checkpoint.safetensors import read_safetensors
from edgewright.checkpoint.safetensors_writer import array_spec, write_safetensors
from edgewright.checkpoint.tensor import DTYPES, StoredTensor
from edgewright.errors import CheckpointError, RecipeError, UsageError
from edgewright.formats import Array, BlockFormat, FloatFormat, Format
from edgewright.quant.algorithms import solve
from edgewright.quant.moments import Moments
from edgewright.quant.recipe import Algorithm, Recipe
from edgewright.quant.recipe_file import parse_recipe
from edgewright.quantizer.plan import Plan, Target

DEFAULT_FORMATS = "int4,int8"


@dataclass(frozen=True)
class Candidate:
    """A format and how a recipe spells it."""

    format: Format
    words: tuple[tuple[str, str | int | bool], ...]

    @classmethod
    def parse(cls, text: str) -> Candidate:
        """Read `int4`, `int4/128`, `int8/channel`, `fp8/block`, `float16` ...; raises UsageError.

        Integer formats in blocks get float16 scales, and blocks of 32 where none are given.
        """
        kind, slash, group = text.strip().partition("/")
        words: dict[str, str | int | bool] = {"format": kind}
        if slash or kind in ("int4", "int8"):
            words["group"] = int(group) if group.isascii() and group.isdigit() else group or 32
        if kind in ("int4", "int8") and isinstance(words["group"], int):
            words["scales"] = "float16"
        section = yaml.safe_dump(words, default_flow_style=True, sort_keys=False).strip()
        try:
            found = parse_recipe("".join(f"{s}: {section}\n" for s in ("body", "lm_head", "embedding")), "x.yaml").body
        except RecipeError as error:
            reason = str(error).partition(": ")[2] or str(error)
            raise UsageError(f"--formats {text.strip()!r} is no format: {reason}") from None
        if not isinstance(found, Format):
            raise UsageError("A search can't choose the format 'stored', which says nothing of the size: leave it out.")
        return cls(found, tuple(words.items()))


def parse_formats(text: str) -> tuple[Candidate, ...]:
    """Read formats with commas between; raises UsageError."""
    found = {candidate.format: candidate for candidate in map(Candidate.parse, text.split(","))}
    if len(found) < 2:
        raise UsageError(f"--formats {text!r} leaves nothing to choose: give two formats or more, as int4,int8.")
    return tuple(found.values())


@dataclass(frozen=True)
class Decision:
    """Modules that get one format: those that share a weight, and the experts of a layer.

    `options` are the formats from the smallest to the largest.
    """

    name: str
    targets: tuple[Target, ...]
    options: tuple[Candidate, ...]

    @property
    def weights(self) -> dict[str, Target]:
        """One module of every weight."""
        return {target.weight: target for target in reversed(self.targets)}

    def bytes(self, fmt: Format) -> int:
        """Return the size of its weights in a format."""
        return sum(part_bytes(fmt, target.shape) for target in self.weights.values())


def decisions_of(plan: Plan, candidates: Sequence[Candidate]) -> list[Decision]:
    """Return what is to be decided, in graph order."""
    members: dict[str, list[Target]] = {}
    for target in plan.targets:
        name = target.weight
        if target.kind == "experts":
            name = target.module.rpartition(".")[0]
        members.setdefault(name, []).append(target)
    found = []
    for targets in members.values():
        plain = Decision(targets[0].module, tuple(targets), tuple(candidates))
        order = sorted(candidates, key=lambda candidate: plain.bytes(candidate.format))
        found.append(Decision(plain.name, plain.targets, tuple(order)))
    return found


def algorithms_of(plan: Plan, base: Recipe | None) -> dict[str, Algorithm]:
    """Return how every module is rounded: as the base recipe says, by GPTQ without one.

    Nothing is known of the inputs of a table, nor of a head that shares its codes: they are rounded by least error.
    Raises RecipeError for a base whose result is more than the rounding of one module at a time.
    """
    if base is not None:
        _check_base(base, plan)
    chosen = {}
    for target in plan.targets:
        algorithm = Algorithm("gptq") if base is None else target.choice.algorithm
        blind = target.kind == "embedding" or target.tied
        plain = algorithm.name == "minmax" and target.kind == "lm_head"
        chosen[target.module] = Algorithm("mse") if blind or plain else algorithm
    return chosen


def _check_base(base: Recipe, plan: Plan) -> None:
    changes = base.transforms
    wrong = [
        what
        for what, there in (
            ("activations", any(target.choice.inputs.format is not None for target in plan.targets)),
            ("smoothing", changes.smoothing is not None),
            ("rotation", changes.rotation is not None),
            ("bias_correction", changes.bias_correction),
            ("sequential", changes.sequential),
            ("awq", any(target.choice.algorithm.name == "awq" for target in plan.targets)),
        )
        if there
    ]
    if wrong:
        raise RecipeError(
            f"The recipe {base.name} has {', '.join(wrong)}, whose effect depends on other modules' formats, so a "
            "search can't start from it: choose a base that rounds by minmax, percentile, mse or gptq."
        )


class Roundings:
    """Rounded weights, each made once and kept in a folder as the parts of its format."""

    def __init__(self, folder: Path, algorithms: Mapping[str, Algorithm]) -> None:
        self._folder, self._algorithms = folder, algorithms
        self._files: dict[tuple[str, Format], Path] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def rounded(self, target: Target, fmt: Format, weight: Array, moments: Moments | None) -> Array:
        """Return float32 `weight` as `fmt` holds it; raises CheckpointError for values that are not finite."""
        if isinstance(fmt, FloatFormat):
            return _as_float(weight, fmt)
        assert isinstance(fmt, BlockFormat)
        if (target.weight, fmt) not in self._files:
            try:
                parts = solve(weight, fmt, self._algorithms[target.module], moments, target.module)
            except FloatingPointError as error:
                raise CheckpointError(f"{target.module} can't be quantized: {error}.") from None
            path = self._folder / f"{len(self._files)}.safetensors"
            write_safetensors(path, {name: array_spec(np.ascontiguousarray(part)) for name, part in parts.items()})
            self._files[target.weight, fmt] = path
        return self.load(target, fmt, weight)

    def load(self, target: Target, fmt: Format, weight: Array) -> Array:
        """Return a weight that was rounded, given its float values."""
        if isinstance(fmt, FloatFormat):
            return _as_float(weight, fmt)
        assert isinstance(fmt, BlockFormat)
        stored = read_safetensors(self._files[target.weight, fmt])
        parts = {name: _raw(tensor) for name, tensor in stored.items()}
        return fmt.decode(parts, target.shape[1])


def _raw(tensor: StoredTensor) -> Array:
    values: Array = np.ascontiguousarray(tensor.raw(0, tensor.row_count)).reshape(-1).view(DTYPES[tensor.dtype])
    return values.reshape(tensor.shape)


def _as_float(weight: Array, fmt: FloatFormat) -> Array:
    if fmt.dtype == "float32":
        return weight
    with np.errstate(over="ignore"):
        return weight.astype(DTYPES[fmt.dtype]).astype(np.float32)
