"""Reads recipes: built-in ones by name, YAML files by path; every mistake is answered with file and line.

```yaml
recipe: my-mix                       # a name for the manifest
extends: int4-awq                    # optional: a built-in recipe, or a file beside this one
body: {format: int4, group: 32}      # every linear that is not the head
lm_head: {format: int8, group: 32}
embedding: {format: int8, group: 32}
rules:                               # optional, in order, over module names
  - pattern: "model.layers.0.mlp.*"
    format: int8
```

Without `extends`, the three sections must stand. `docs/recipes.md` lists all keys.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from edgewright.errors import RecipeError
from edgewright.formats import (
    ACTIVATIONS,
    ActivationFormat,
    FloatFormat,
    IntFormat,
    MxFormat,
    Nvfp4Format,
    ScaledFormat,
    StoredFormat,
    Wanted,
)
from edgewright.formats.cache import KVFormat
from edgewright.nodes import shown
from edgewright.quant.recipe import KINDS, Algorithm, Data, Inputs, Range, Recipe, Rule, Transforms
from edgewright.quant.recipe_nodes import Node, read_yaml

SECTIONS = ("body", "lm_head", "embedding")
FORMATS = ("float32", "float16", "bfloat16", "int8", "int4", "fp8", "nvfp4", "mxfp8", "mxfp4", "stored")
#: Blocks along the input axis that integer formats may have, beside `channel` and `tensor` for int8.
GROUPS = (32, 64, 128)
_SCOPES = ("tensor", "channel")
_FP8_SCOPES = (*_SCOPES, "block", "row-block")
_FORMAT_KEYS = ("format", "group", "zero_point", "scales")
_WEIGHT_KEYS = (*_FORMAT_KEYS, "activations", "algorithm")
_ALGORITHMS = {
    "minmax": (),
    "percentile": ("percentile",),
    "mse": (),
    "awq": ("clip",),
    "gptq": ("damping", "activation_order", "refit"),
}
#: Characters of a recipe's name, of a file beside it, and of a pattern.
_LONGEST_NAME = 255
_STAGE = (*SECTIONS, "activations", "algorithm", "kv", "calibration", "transforms", "rules")
_TOP = ("recipe", "extends", *_STAGE, "stages")


def builtin_names() -> list[str]:
    """Return the names of the recipes that come with the package."""
    folder = resources.files("edgewright.quant") / "recipes"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_recipe(name_or_path: str) -> Recipe:
    """Load a built-in recipe by name or a YAML file by path; raises RecipeError."""
    return _load(name_or_path, ())


def _load(name_or_path: str, seen: tuple[str, ...]) -> Recipe:
    if name_or_path in builtin_names():
        resource = resources.files("edgewright.quant") / "recipes" / f"{name_or_path}.yaml"
        return _parse(resource.read_text(encoding="utf-8"), f"{name_or_path}.yaml", None, (*seen, name_or_path))
    path = Path(name_or_path)
    if not _is_file(path):
        near = difflib.get_close_matches(name_or_path, builtin_names(), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise RecipeError(
            f"There is no recipe {shown(name_or_path)}: {hint}Give a YAML file or one of {', '.join(builtin_names())}."
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path.name} can't be read as a recipe: {error}.") from None
    return _parse(text, path.name, path.parent, (*seen, str(path.resolve())))


def parse_recipe(text: str, source: str) -> Recipe:
    """Parse a recipe's YAML; `source` names it in messages. Raises RecipeError with the line."""
    return _parse(text, source, None, ())


def _parse(text: str, source: str, folder: Path | None, seen: tuple[str, ...]) -> Recipe:
    top = read_yaml(text, source)
    keys = top.mapping(_TOP)
    builtin = bool(seen) and seen[-1] in builtin_names()
    base = _base(keys["extends"], folder, seen) if "extends" in keys else None
    for section in SECTIONS:
        if base is None and section not in keys:
            raise RecipeError(f"{source}: the section {section!r} is missing; a recipe has {', '.join(SECTIONS)}.")
    name = keys["recipe"].text("the recipe's name", _LONGEST_NAME) if "recipe" in keys else Path(source).stem
    keep = FloatFormat("float32")
    recipe = _merge(base or Recipe(name, keep, keep, keep), keys, source)
    # What the file says at its top holds for the stages of the recipe it extends as well.
    stages = {} if base is None else {stage: _merge(inner, keys, source) for stage, inner in base.stages.items()}
    stages = {stage: replace(inner, name=name) for stage, inner in stages.items()}
    if "stages" in keys:
        for stage, node in keys["stages"].entries():
            stages[stage] = replace(_merge(stages.get(stage, recipe), node.mapping(_STAGE), source), name=name)
            stages[stage] = replace(stages[stage], lines={**stages[stage].lines, "stage": node.at})
    if builtin:
        recipe, stages = _as_builtin(recipe), {stage: _as_builtin(inner) for stage, inner in stages.items()}
    return replace(recipe, name=name, stages=stages)


def _as_builtin(recipe: Recipe) -> Recipe:
    return replace(recipe, rules=tuple(replace(rule, builtin=True) for rule in recipe.rules))


def _is_file(path: Path) -> bool:
    """Tell whether there is a file; there is none under a name that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _base(node: Node, folder: Path | None, seen: tuple[str, ...]) -> Recipe:
    wanted = node.text("the recipe that is extended", _LONGEST_NAME)
    beside = None if folder is None or wanted in builtin_names() else folder / wanted
    if folder is not None and beside is not None and not beside.resolve().is_relative_to(folder.resolve()):
        raise RecipeError(f"{node.at}: {shown(wanted)} lies outside the recipe's folder: put it beside this file.")
    path = str(beside) if beside is not None and _is_file(beside) else wanted
    if (path if path in builtin_names() else str(Path(path).resolve())) in seen:
        raise RecipeError(f"{node.at}: {shown(wanted)} extends itself.")
    try:
        return _load(path, seen)
    except RecipeError as error:
        raise RecipeError(f"{node.at}: extends {shown(wanted)}, which can't be read. {error}") from None


def _merge(base: Recipe, keys: Mapping[str, Node], source: str) -> Recipe:
    """Return `base` with what the keys say on top; rules come after its own."""
    changes: dict[str, Any] = {"lines": {**base.lines, **{key: node.at for key, node in keys.items()}}}
    algorithm = _algorithm(keys["algorithm"], base.algorithm) if "algorithm" in keys else base.algorithm
    inputs = _inputs(keys["activations"]) if "activations" in keys else base.inputs
    rules = [_outspoken(rule, keys) for rule in base.rules]
    for section in SECTIONS:
        if section not in keys:
            continue
        node = keys[section]
        fields = node.mapping(_WEIGHT_KEYS)
        wanted, own_inputs, own_algorithm = _weight(node, fields)
        if wanted is None:
            raise RecipeError(f"{node.at}: the section {section!r} needs a format, one of {', '.join(FORMATS)}.")
        changes[section] = wanted
        _check_activations(node, section, own_inputs)
        # A section's other parts hold for its modules; they stand as rules before all written ones.
        if own_inputs is not None or own_algorithm is not None:
            kinds = ("body", "experts") if section == "body" else (section,)
            rules += [Rule("*", None, node.at, own_inputs, own_algorithm, kind, section=True) for kind in kinds]
    if "rules" in keys:
        rules += [_rule(item) for item in keys["rules"].items("rules must be a list")]
        _refuse_repeats(rules)
    if "kv" in keys:
        changes["kv"] = _kv(keys["kv"])
    if "calibration" in keys:
        changes["data"] = _data(keys["calibration"], base.data)
    if "transforms" in keys:
        changes["transforms"] = _transforms(keys["transforms"], base.transforms)
    return replace(base, algorithm=algorithm, inputs=inputs, rules=tuple(rules), **changes)


def _outspoken(rule: Rule, keys: Mapping[str, Node]) -> Rule:
    """Return a base's rule; what its sections say of parts that are now said for all modules doesn't hold any more."""
    if not rule.section:
        return rule
    return replace(
        rule,
        inputs=None if "activations" in keys else rule.inputs,
        algorithm=None if "algorithm" in keys else rule.algorithm,
    )


def _rule(item: Node) -> Rule:
    fields = item.mapping(("pattern", "class", *_WEIGHT_KEYS))
    kind = fields["class"].one_of(KINDS, "the class") if "class" in fields else None
    pattern = fields["pattern"].value if "pattern" in fields else "*" if kind is not None else None
    if not isinstance(pattern, str) or not pattern.isprintable() or not 1 <= len(pattern) <= _LONGEST_NAME:
        raise RecipeError(f"{item.at}: a rule needs a pattern, a text such as 'model.layers.0.*', or a class.")
    wanted, inputs, algorithm = _weight(item, fields)
    _check_activations(item, kind, inputs)
    if wanted is None and inputs is None and algorithm is None:
        raise RecipeError(
            f"{item.at}: the rule {shown(pattern)} says nothing; give a format, activations or an algorithm."
        )
    return Rule(pattern, wanted, item.at, inputs, algorithm, kind)


def _check_activations(node: Node, kind: str | None, inputs: Inputs | None) -> None:
    if kind == "embedding" and inputs is not None and inputs.format is not None:
        raise RecipeError(f"{node.at}: the inputs of an embedding are token ids: remove its activations.")


def _refuse_repeats(rules: list[Rule]) -> None:
    """Refuse two rules for the same modules that contradict each other."""
    seen: dict[tuple[str, str | None, str], Rule] = {}
    for rule in rules:
        for part, value in rule.parts.items():
            key = (rule.pattern, rule.kind, part)
            first = seen.get(key)
            same_file = first is not None and first.where.rpartition(":")[0] == rule.where.rpartition(":")[0]
            if first is not None and same_file and first.parts[part] != value and not first.section:
                raise RecipeError(
                    f"{rule.where}: the rule {shown(rule.pattern)} contradicts the one at {first.where} in its {part}: "
                    "keep one of them."
                )
            seen[key] = rule


def _weight(node: Node, fields: Mapping[str, Node]) -> tuple[Wanted | None, Inputs | None, Algorithm | None]:
    """Read what a section or rule says on a weight, its inputs and its algorithm."""
    inputs = None
    kernel = "int8"
    if "activations" in fields:
        word = fields["activations"].value
        if isinstance(word, str) and word in ("int8", "float32", "none"):
            kernel = word  # how the kernel of an integer weight reads its inputs
            if word != "int8":
                inputs = Inputs(None)
        else:
            inputs = _inputs(fields["activations"])
            kernel = "float32"
    algorithm = _algorithm(fields["algorithm"], Algorithm()) if "algorithm" in fields else None
    if "format" not in fields:
        if surplus := {"group", "zero_point", "scales"} & fields.keys():
            raise RecipeError(f"{node.at}: {' and '.join(sorted(surplus))} need a format.")
        if "activations" in fields and inputs is None:
            raise RecipeError(f"{node.at}: activations: int8 belongs to an integer format; give the format as well.")
        return None, inputs, algorithm
    return _format(node, fields, kernel), inputs, algorithm


def _format(node: Node, fields: Mapping[str, Node], kernel: str) -> Wanted:
    kind = fields["format"].one_of(FORMATS, "the format")
    allowed = {"int4": {"group", "zero_point", "scales"}, "int8": {"group", "zero_point", "scales"}, "fp8": {"group"}}
    surplus = {"group", "zero_point", "scales"} & fields.keys() - allowed.get(kind, set())
    if kind in ("float32", "float16", "bfloat16", "stored"):
        word = fields["activations"].value if "activations" in fields else None
        surplus |= {"activations"} if word == "int8" else set()
        surplus |= {"algorithm"} & fields.keys()
    if surplus:
        raise RecipeError(f"{node.at}: {' and '.join(sorted(surplus))} have no meaning for {kind}.")
    if kind == "stored":
        return StoredFormat()
    if kind in ("float32", "float16", "bfloat16"):
        return FloatFormat(kind)
    if kind == "nvfp4":
        return Nvfp4Format()
    if kind in ("mxfp8", "mxfp4"):
        return MxFormat("e4m3" if kind == "mxfp8" else "e2m1")
    group = fields["group"].value if "group" in fields else "tensor" if kind == "fp8" else 32
    if kind == "fp8":
        if group not in _FP8_SCOPES:
            raise RecipeError(f"{node.at}: the group {shown(group)} is not one of {', '.join(_FP8_SCOPES)} for fp8.")
        return ScaledFormat("e4m3", group)
    zero_point = fields["zero_point"].value if "zero_point" in fields else False
    if not isinstance(zero_point, bool):
        raise RecipeError(f"{node.at}: zero_point must be true or false, not {shown(zero_point)}.")
    scales = fields["scales"].one_of(("float32", "float16"), "scales") if "scales" in fields else "float32"
    if kind == "int8" and group in _SCOPES:
        if zero_point or "scales" in fields:
            raise RecipeError(f"{node.at}: int8 per {group} has float32 scales and no zero points.")
        return ScaledFormat("int8", group)
    if group not in GROUPS or not isinstance(group, int) or isinstance(group, bool):
        more = f", {', '.join(_SCOPES)}" if kind == "int8" else ""
        raise RecipeError(f"{node.at}: the group {shown(group)} is not one of {', '.join(map(str, GROUPS))}{more}.")
    if "activations" in fields and isinstance(word := fields["activations"].value, str):
        fields["activations"].one_of(("int8", "float32", "none"), "activations")
        kernel = word
    return IntFormat(int(kind.removeprefix("int")), group, zero_point, kernel == "int8", scales)


def _algorithm(node: Node, base: Algorithm) -> Algorithm:
    if isinstance(node.value, str):
        return Algorithm(node.one_of(tuple(_ALGORITHMS), "the algorithm"))
    fields = node.mapping(("name", "percentile", "clip", "damping", "activation_order", "refit"))
    name = fields["name"].one_of(tuple(_ALGORITHMS), "the algorithm") if "name" in fields else base.name
    if odd := fields.keys() - {"name", *_ALGORITHMS[name]}:
        raise RecipeError(f"{node.at}: {' and '.join(sorted(odd))} have no meaning for {name}.")
    values: dict[str, Any] = {"name": name}
    for key in ("clip", "activation_order", "refit"):
        if key in fields:
            values[key] = fields[key].truth(key)
    if "percentile" in fields:
        values["percentile"] = fields["percentile"].number("percentile", 50, 100)
    if "damping" in fields:
        values["damping"] = fields["damping"].number("damping", 1e-6, 1)
    return Algorithm(**values)


def _inputs(node: Node) -> Inputs:
    """Read activations: `none`, or a mapping with format, mode, scope, zero_point and range."""
    if isinstance(node.value, str) and node.value in ("none", "float32"):
        return Inputs(None)
    fields = node.mapping(("format", "mode", "scope", "zero_point", "range", "percentile"))
    if "format" not in fields:
        raise RecipeError(f"{node.at}: activations need a format, one of {', '.join(ACTIVATIONS)}, or are 'none'.")
    name = fields["format"].one_of(ACTIVATIONS, "the activations' format")
    static = "mode" in fields and fields["mode"].one_of(("static", "dynamic"), "mode") == "static"
    blocked = name in ("nvfp4", "mxfp8", "mxfp4")
    default = "block" if blocked else "tensor" if static else "token"
    scope = fields["scope"].one_of(("tensor", "token", "block"), "scope") if "scope" in fields else default
    zero_point = fields["zero_point"].truth("zero_point") if "zero_point" in fields else False
    if (scope == "block") != blocked:
        raise RecipeError(f"{node.at}: {name} activations have the scope {default}, not {scope}.")
    if static and (scope == "token" or name in ("mxfp8", "mxfp4", "int4")):
        raise RecipeError(f"{node.at}: {name} activations per {scope} can't be static, each input makes its scales.")
    if not static and (scope == "tensor" or name == "nvfp4"):
        raise RecipeError(
            f"{node.at}: a scale over the whole input would make results depend on how a text is cut into chunks: use "
            f"{'mode static' if name == 'nvfp4' else 'the scope token, or mode static'}."
        )
    if zero_point and not (static and name == "int8"):
        raise RecipeError(f"{node.at}: only static int8 activations can have a zero point.")
    range_name = fields["range"].one_of(("minmax", "percentile", "mse"), "range") if "range" in fields else "minmax"
    if "range" in fields and not static:
        raise RecipeError(f"{node.at}: a range belongs to static activations.")
    if "percentile" in fields and range_name != "percentile":
        raise RecipeError(f"{fields['percentile'].at}: percentile has no meaning without 'range: percentile'.")
    percent = fields["percentile"].number("percentile", 50, 100) if "percentile" in fields else 99.99
    return Inputs(ActivationFormat(name, static, scope, not zero_point), Range(range_name, percent))


def _kv(node: Node) -> KVFormat | None:
    if node.value in ("none", "float32"):
        return None
    fields = node.mapping(("format", "scope"))
    if "format" not in fields:
        raise RecipeError(f"{node.at}: kv needs a format, int8 or fp8, or is 'none'.")
    kind = fields["format"].one_of(("int8", "fp8"), "the cache's format")
    per_head = "scope" in fields and fields["scope"].one_of(("tensor", "head"), "scope") == "head"
    return KVFormat("int8" if kind == "int8" else "float8_e4m3", "head" if per_head else "tensor")


def _data(node: Node, base: Data) -> Data:
    fields = node.mapping(("data", "sequences", "length", "seed"))
    values: dict[str, Any] = {}
    if "data" in fields:
        values["source"] = fields["data"].text("data")
    for key, low in (("sequences", 1), ("length", 2), ("seed", 0)):
        if key in fields:
            values[key] = fields[key].whole(key, low)
    return replace(base, **values)


def _transforms(node: Node, base: Transforms) -> Transforms:
    fields = node.mapping(("smoothing", "rotation", "bias_correction", "sequential"))
    values: dict[str, Any] = {}
    if "smoothing" in fields:
        off = fields["smoothing"].value in ("none", None)
        values["smoothing"] = None if off else fields["smoothing"].number("smoothing", 0, 1)
    if "rotation" in fields:
        word = fields["rotation"].one_of(("none", "values", "residual"), "rotation")
        values["rotation"] = None if word == "none" else word
    for key in ("bias_correction", "sequential"):
        if key in fields:
            values[key] = fields[key].truth(key)
    return replace(base, **values)
