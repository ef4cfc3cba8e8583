"""Whether a platform has the formats of a recipe: asked before work starts, so that nothing is built in vain."""

from __future__ import annotations

from collections.abc import Iterator

from edgewright.errors import RecipeError
from edgewright.formats import FloatFormat, IntFormat, MxFormat, Nvfp4Format, Wanted
from edgewright.formats.cache import KVFormat
from edgewright.quant.recipe import Recipe
from edgewright.targets.platform import Platform, find_platform


def check_support(platform: str | Platform, recipe: Recipe) -> None:
    """Raise RecipeError, with the line, when a recipe asks for a format that the platform lacks.

    Raises UsageError for a name of a platform that is unknown, PlatformError for a file that can't be read.
    """
    found = find_platform(platform) if isinstance(platform, str) else platform
    for inner in (recipe, *recipe.stages.values()):
        for where, part, family in _wishes(inner):
            known: frozenset[str] = getattr(found, part)
            if family not in known:
                raise RecipeError(f"{where}: {found.title} has no {family} {part}; it has {_known(known)}.")


def check_stored(platform: Platform, module: str, part: str, family: str | None) -> None:
    """Raise RecipeError when weights, activations or a cache are stored in a format that the platform lacks."""
    known: frozenset[str] = getattr(platform, part)
    if family is not None and family not in known:
        raise RecipeError(
            f"{module} has {family} {part} as it is stored, and {platform.title} has none; it has {_known(known)}."
        )


def _known(formats: frozenset[str]) -> str:
    return f"{', '.join(sorted(formats))} and floats" if formats else "floats"


def asks_for_stored(recipe: Recipe) -> bool:
    """Tell whether a recipe takes any weight over as the checkpoint stores it."""
    wishes = [recipe.body, recipe.lm_head, recipe.embedding, *(rule.format for rule in recipe.rules)]
    return any(wish is not None and wish.label == "stored" for wish in wishes) or any(
        asks_for_stored(inner) for inner in recipe.stages.values()
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
