"""Which number formats a platform has: asked before work starts, so that nothing is built that can't run there.

Sources: NVIDIA's support matrices of TensorRT and TensorRT Edge-LLM (Orin has neither FP8 nor FP4 tensor cores; Ada has
FP8; Thor and Blackwell have FP8, NVFP4 and MXFP8), Qualcomm's QNN HTP operator documentation.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from edgewright.errors import RecipeError, UsageError
from edgewright.formats import FloatFormat, IntFormat, MxFormat, Nvfp4Format, Wanted
from edgewright.formats.cache import KVFormat
from edgewright.quant.recipe import Recipe


@dataclass(frozen=True)
class Platform:
    """A platform's formats by family name: of weights, of activations, of the key/value cache (floats always go)."""

    title: str
    weights: frozenset[str]
    activations: frozenset[str]
    caches: frozenset[str]


def _platform(title: str, weights: str, activations: str, caches: str) -> Platform:
    return Platform(title, frozenset(weights.split()), frozenset(activations.split()), frozenset(caches.split()))


_ORIN = ("int4 int8", "int8", "int8")
_THOR = ("int4 int8 fp8 nvfp4 mxfp8", "int8 fp8 nvfp4 mxfp8", "int8 fp8")
#: Platforms by name.
PLATFORMS = {
    # The CPU target stores everything; what it has no kernel for it widens at load.
    "cpu": _platform("CPU", "int4 int8 fp8 nvfp4 mxfp8 mxfp4", "int8 fp8 int4 nvfp4 mxfp8 mxfp4", "int8 fp8"),
    "jetson-orin": _platform("Jetson Orin", *_ORIN),
    "jetson-thor": _platform("Jetson AGX Thor", *_THOR),
    "drive-thor": _platform("DRIVE Thor", *_THOR),
    "rtx-ada": _platform("RTX (Ada)", "int4 int8 fp8", "int8 fp8", "int8 fp8"),
    "rtx-blackwell": _platform("RTX (Blackwell)", *_THOR),
    "snapdragon-htp": _platform("Snapdragon HTP", "int4 int8", "int8", "int8"),
}


def check_support(name: str, recipe: Recipe) -> None:
    """Raise RecipeError, with the line, when a recipe asks for a format that the platform lacks.

    Raises UsageError for a platform that is unknown.
    """
    platform = PLATFORMS.get(name)
    if platform is None:
        near = difflib.get_close_matches(name, PLATFORMS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(PLATFORMS)}."
        raise UsageError(f"The platform {name!r} is unknown; {hint}")
    for inner in (recipe, *recipe.stages.values()):
        for where, part, family in _wishes(inner):
            known: frozenset[str] = getattr(platform, part)
            if family not in known:
                raise RecipeError(
                    f"{where}: {platform.title} has no {family} {part}; it has {', '.join(sorted(known))} and floats."
                )


def _wishes(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    """Yield (line, part, family) of every format a recipe names."""
    for section in ("body", "lm_head", "embedding"):
        if (family := family_of(getattr(recipe, section))) is not None:
            yield recipe.lines.get(section, recipe.name), "weights", family
    if recipe.inputs.format is not None:
        yield recipe.lines.get("activations", recipe.name), "activations", recipe.inputs.format.name
    if recipe.kv is not None:
        yield recipe.lines.get("kv", recipe.name), "caches", family_of_cache(recipe.kv)
    for rule in recipe.rules:
        if rule.format is not None and (family := family_of(rule.format)) is not None:
            yield rule.where, "weights", family
        if rule.inputs is not None and rule.inputs.format is not None:
            yield rule.where, "activations", rule.inputs.format.name


def family_of(wanted: Wanted) -> str | None:
    """Return the family of a weight format; None for floats and for what is kept as stored."""
    if isinstance(wanted, IntFormat):
        return f"int{wanted.bits}"
    if isinstance(wanted, Nvfp4Format | MxFormat):
        return wanted.label
    if isinstance(wanted, FloatFormat) or wanted.label == "stored":
        return None
    return "int8" if wanted.label.startswith("int8") else "fp8"


def family_of_cache(fmt: KVFormat) -> str:
    """Return the family of a cache format."""
    return "int8" if fmt.dtype == "int8" else "fp8"
