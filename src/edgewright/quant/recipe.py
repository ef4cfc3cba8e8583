"""Recipes: which weight is stored how, as ordered name patterns in YAML; the last rule that matches wins.

```yaml
recipe: my-mix                       # a name for the manifest
body: {format: int4, group: 32}      # every linear that is not the head
lm_head: {format: int8, group: 32}
embedding: {format: int8, group: 32}
rules:                               # optional, in order, over module names
  - pattern: "model.layers.0.mlp.*"
    format: int8
```

`format` is float32, float16, int8, int4 or stored; int formats take `group` (32, 64 or 128; default 32), `zero_point`
(default false) and `activations` (int8, the default, or float32: slower, without the noise of rounded inputs).
`stored` keeps what the checkpoint has: GGUF blocks as integer codes, bit-exactly, and floats as float32 or float16.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from edgewright.errors import RecipeError
from edgewright.quant.formats import FloatFormat, IntFormat, StoredFormat, Wanted

FORMATS = ("float32", "float16", "int8", "int4", "stored")
GROUPS = (32, 64, 128)
_KEYS = ("format", "group", "zero_point", "activations")
_SECTIONS = ("body", "lm_head", "embedding")


@dataclass(frozen=True)
class Rule:
    """A name pattern and the format of what it matches; `where` is file and line for messages."""

    pattern: str
    format: Wanted
    where: str


@dataclass(frozen=True)
class Recipe:
    """A parsed recipe; immutable."""

    name: str
    body: Wanted
    lm_head: Wanted
    embedding: Wanted
    rules: tuple[Rule, ...] = ()

    def resolve(self, modules: Sequence[tuple[str, str]]) -> dict[str, Wanted]:
        """Return the format of every module, given (name, kind) with kind `body`, `lm_head` or `embedding`.

        Raises RecipeError when a rule matches nothing.
        """
        resolved = {name: getattr(self, kind) for name, kind in modules}
        for rule in self.rules:
            hits = [name for name in resolved if fnmatch.fnmatchcase(name, rule.pattern)]
            if not hits:
                near = difflib.get_close_matches(rule.pattern, list(resolved), n=1, cutoff=0.3)
                hint = f"; the nearest name is {near[0]}" if near else ""
                raise RecipeError(f"{rule.where}: the pattern {rule.pattern!r} matches no module{hint}.")
            for name in hits:
                resolved[name] = rule.format
        return resolved


def builtin_names() -> list[str]:
    """Return the names of the recipes that come with the package."""
    folder = resources.files("edgewright.quant") / "recipes"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_recipe(name_or_path: str) -> Recipe:
    """Load a built-in recipe by name or a YAML file by path; raises RecipeError."""
    if name_or_path in builtin_names():
        resource = resources.files("edgewright.quant") / "recipes" / f"{name_or_path}.yaml"
        return parse_recipe(resource.read_text(encoding="utf-8"), name_or_path)
    path = Path(name_or_path)
    if not path.is_file():
        near = difflib.get_close_matches(name_or_path, builtin_names(), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise RecipeError(
            f"There is no recipe {name_or_path!r}: {hint}Give a YAML file or one of {', '.join(builtin_names())}."
        )
    try:
        return parse_recipe(path.read_text(encoding="utf-8"), path.name)
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path.name} can't be read as a recipe: {error}.") from None


def parse_recipe(text: str, source: str) -> Recipe:
    """Parse a recipe's YAML; `source` names it in messages. Raises RecipeError with the line."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise RecipeError(f"{source}{line}: not valid YAML ({getattr(error, 'problem', error)}).") from None
    top = _mapping(root, source, ("recipe", *_SECTIONS, "rules"))
    formats = {}
    for section in _SECTIONS:
        if section not in top:
            raise RecipeError(f"{source}: the section {section!r} is missing; a recipe has {', '.join(_SECTIONS)}.")
        formats[section] = _format(top[section], source, extra=())
    rules = []
    if "rules" in top:
        node = top["rules"]
        if not isinstance(node, yaml.SequenceNode):
            raise RecipeError(f"{_at(node, source)}: rules must be a list.")
        for item in node.value:
            keys = _mapping(item, source, ("pattern", *_KEYS))
            pattern = _value(keys["pattern"]) if "pattern" in keys else None
            if not isinstance(pattern, str) or not pattern:
                raise RecipeError(f"{_at(item, source)}: a rule needs a pattern, a text such as 'model.layers.0.*'.")
            rules.append(Rule(pattern, _format(item, source, extra=("pattern",)), _at(item, source)))
    name = _value(top["recipe"]) if "recipe" in top else Path(source).stem
    if not isinstance(name, str):
        raise RecipeError(f"{_at(top['recipe'], source)}: the recipe's name must be text.")
    return Recipe(name, formats["body"], formats["lm_head"], formats["embedding"], tuple(rules))


def _at(node: Any, source: str) -> str:
    return f"{source}:{node.start_mark.line + 1}"


def _value(node: Any) -> Any:
    try:
        return yaml.SafeLoader("").construct_object(node, deep=True)
    except yaml.YAMLError as error:
        return f"unreadable value ({getattr(error, 'problem', error)})"


def _mapping(node: Any, source: str, allowed: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(node, yaml.MappingNode):
        where = _at(node, source) if node is not None else source
        raise RecipeError(f"{where}: expected a mapping with the keys {', '.join(allowed)}.")
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value)
        if key not in allowed:
            near = difflib.get_close_matches(key, allowed, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(allowed)}."
            raise RecipeError(f"{_at(key_node, source)}: unknown key {key!r}; {hint}")
        if key in result:
            raise RecipeError(f"{_at(key_node, source)}: the key {key!r} stands twice.")
        result[key] = value_node
    return result


def _format(node: Any, source: str, extra: tuple[str, ...]) -> Wanted:
    keys = _mapping(node, source, (*extra, *_KEYS))
    where = _at(node, source)
    kind = _value(keys["format"]) if "format" in keys else None
    if kind not in FORMATS:
        raise RecipeError(f"{where}: the format {kind!r} is unknown; known are {', '.join(FORMATS)}.")
    if kind in ("float32", "float16", "stored"):
        if surplus := {"group", "zero_point", "activations"} & keys.keys():
            raise RecipeError(f"{where}: {' and '.join(sorted(surplus))} have no meaning for {kind}.")
        return StoredFormat() if kind == "stored" else FloatFormat(kind)
    group = _value(keys["group"]) if "group" in keys else 32
    if group not in GROUPS or isinstance(group, bool):
        raise RecipeError(f"{where}: the group {group!r} is not one of {', '.join(map(str, GROUPS))}.")
    zero_point = _value(keys["zero_point"]) if "zero_point" in keys else False
    if not isinstance(zero_point, bool):
        raise RecipeError(f"{where}: zero_point must be true or false, not {zero_point!r}.")
    activations = _value(keys["activations"]) if "activations" in keys else "int8"
    if activations not in ("int8", "float32"):
        raise RecipeError(f"{where}: activations must be int8 or float32, not {activations!r}.")
    return IntFormat(int(kind.removeprefix("int")), group, zero_point, activations == "int8")
