"""Recipes: what every weight, activation and cache is stored as and how its numbers are found; immutable values.

A recipe is YAML (see `docs/recipes.md`), read by `recipe_file`; rules stand in order over module names and classes, and
the last one that says something about a part of a module (its weight, its activations, its algorithm) wins.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from edgewright.errors import RecipeError
from edgewright.formats import ActivationFormat, FloatFormat, Format, StoredFormat, Wanted
from edgewright.formats.cache import KVFormat
from edgewright.nodes import shown

#: Kinds of modules; a rule's `class` is one of them. Experts belong to the section `body`; a policy's projections of
#: pixels, state, actions and time have no section and keep float32 unless a rule says something else.
KINDS = ("body", "experts", "lm_head", "embedding", "projection")


@dataclass(frozen=True)
class Algorithm:
    """How a weight's codes are found; `name` is minmax, percentile, mse, awq or gptq.

    `percentile` (percent of magnitudes kept) belongs to percentile; `clip` (search for a clip ratio) to awq; `damping`
    (share of the mean diagonal), `activation_order` and `refit` (scales fitted to the codes) to gptq.
    """

    name: str = "minmax"
    percentile: float = 99.99
    clip: bool = True
    damping: float = 0.02
    activation_order: bool = True
    refit: bool = True

    @property
    def needs_data(self) -> bool:
        """Whether it looks at activations."""
        return self.name in ("awq", "gptq")


@dataclass(frozen=True)
class Data:
    """What a recipe calibrates on: `source` is `english` (the text that ships) or a path."""

    source: str = "english"
    sequences: int = 64
    length: int = 512
    seed: int = 0


@dataclass(frozen=True)
class Transforms:
    """Changes of the float model before rounding, exact in float arithmetic.

    `smoothing` is SmoothQuant's alpha, or None; `rotation` turns vectors by Hadamard matrices ("values":
    each head's values, "residual": the residual stream as well); `bias_correction` adds the mean output error of a
    linear to its bias; `sequential` lets every layer see the rounded layers before it.
    """

    smoothing: float | None = None
    rotation: str | None = None
    bias_correction: bool = False
    sequential: bool = False


@dataclass(frozen=True)
class Range:
    """How the range of a static activation is found: minmax, percentile (of magnitudes) or mse."""

    name: str = "minmax"
    percentile: float = 99.99


@dataclass(frozen=True)
class Inputs:
    """A recipe's word on activations: a format, or none, and how a static range is found."""

    format: ActivationFormat | None
    range: Range = Range()


@dataclass(frozen=True)
class Choice:
    """What was resolved for one module; `where` says which lines decided, by part."""

    weight: Wanted
    inputs: Inputs
    algorithm: Algorithm
    where: Mapping[str, str] = field(compare=False)


@dataclass(frozen=True)
class Rule:
    """A pattern over names, or a class, and what it says; parts that are None are left as they are.

    `where` is file and line for messages.
    """

    pattern: str
    format: Wanted | None
    where: str
    inputs: Inputs | None = None
    algorithm: Algorithm | None = None
    kind: str | None = None
    #: Whether it stands for a section's own words, which need no effect.
    section: bool = False
    #: Whether it comes with the package: it holds for families that lack such modules, and others may override it.
    builtin: bool = False
    #: Whether it is about other stages as well, where it may have its effect.
    inherited: bool = False

    @property
    def optional(self) -> bool:
        """Whether it needs no effect on the modules at hand."""
        return self.section or self.builtin or self.inherited

    @property
    def parts(self) -> dict[str, Any]:
        """What it says, by part."""
        said = {"weight": self.format, "inputs": self.inputs, "algorithm": self.algorithm}
        return {part: value for part, value in said.items() if value is not None}

    def matches(self, name: str, kind: str) -> bool:
        """Tell whether a module is meant."""
        return self.kind in (None, kind) and fnmatch.fnmatchcase(name, self.pattern)


@dataclass(frozen=True)
class Recipe:
    """A parsed recipe; immutable. `lines` gives the line of every section for messages."""

    name: str
    body: Wanted
    lm_head: Wanted
    embedding: Wanted
    rules: tuple[Rule, ...] = ()
    inputs: Inputs = Inputs(None)
    algorithm: Algorithm = Algorithm()
    kv: KVFormat | None = None
    data: Data = Data()
    transforms: Transforms = Transforms()
    stages: Mapping[str, Recipe] = field(default_factory=dict)
    lines: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def needs_data(self) -> bool:
        """Whether activations must be seen before this recipe can be applied, in any stage."""
        if any(inner.needs_data for inner in self.stages.values()):
            return True
        rules = [*(rule.algorithm for rule in self.rules), self.algorithm]
        inputs = [*(rule.inputs for rule in self.rules), self.inputs]
        static = any(i is not None and i.format is not None and i.format.static for i in inputs)
        changed = self.transforms.smoothing is not None or self.transforms.bias_correction
        return static or changed or self.kv is not None or any(a is not None and a.needs_data for a in rules)

    @property
    def needs_quantizer(self) -> bool:
        """Whether more is asked for than rounding every weight as it is written, in any stage."""
        if any(inner.needs_quantizer for inner in self.stages.values()):
            return True
        algorithms = [*(rule.algorithm for rule in self.rules), self.algorithm]
        searched = any(a is not None and a.name != "minmax" for a in algorithms)
        return self.needs_data or searched or self.transforms.rotation is not None

    def for_stage(self, stage: str, known: Sequence[str]) -> Recipe:
        """Return what holds for one stage; raises RecipeError when it speaks of stages the model lacks."""
        for name, inner in self.stages.items():
            if name not in known:
                raise RecipeError(
                    f"{inner.lines['stage']}: the model has no stage {name!r}; it has {', '.join(known)}."
                )
        return self.stages.get(stage, self)

    def stage_choices(self, stages: Mapping[str, Sequence[tuple[str, str]]]) -> dict[str, dict[str, Choice]]:
        """Return what holds for every module of every stage, given each stage's (name, kind); see `choices`.

        Stages without a section of their own are one model: a rule has to match in one of them. So has a rule that a
        section takes over from the recipe around it. Raises RecipeError.
        """
        known = list(stages)
        found: dict[str, dict[str, Choice]] = {}
        common = [name for name in known if self.for_stage(name, known) is self]
        everywhere = [module for modules in stages.values() for module in modules]
        shared = self._beside([module for name in common for module in stages[name]], everywhere)
        for name, modules in stages.items():
            if name in common:
                names = {module for module, _ in modules}
                found[name] = {module: choice for module, choice in shared.items() if module in names}
                continue
            inner = self.stages[name]
            inherited = {(rule.pattern, rule.where) for rule in self.rules}
            rules = tuple(
                replace(rule, inherited=True) if (rule.pattern, rule.where) in inherited else rule
                for rule in inner.rules
            )
            found[name] = replace(inner, rules=rules).choices(modules)
        return found

    def _beside(self, modules: Sequence[tuple[str, str]], everywhere: Sequence[tuple[str, str]]) -> dict[str, Choice]:
        """Return the choices for some modules of a model; rules may be about its other modules only."""
        elsewhere = dict(everywhere).items() - dict(modules).items()
        rules = tuple(
            replace(rule, inherited=True) if any(rule.matches(*module) for module in elsewhere) else rule
            for rule in self.rules
        )
        return replace(self, rules=rules).choices(modules)

    def resolve(self, modules: Sequence[tuple[str, str]]) -> dict[str, Wanted]:
        """Return the weight format of every module; see `choices`."""
        return {name: choice.weight for name, choice in self.choices(modules).items()}

    def choices(self, modules: Sequence[tuple[str, str]]) -> dict[str, Choice]:
        """Return what holds for every module, given (name, kind) with a kind of KINDS.

        Raises RecipeError when a rule matches nothing, when later rules leave it no effect, or when rules take away all
        that the section `body` asks for.
        """
        # Of every part: what holds, the line that says so, and the place of the rule, -1 for a section.
        found: dict[str, dict[str, tuple[Any, str, int]]] = {}
        for name, kind in modules:
            section = {"experts": "body", "projection": "body"}.get(kind, kind)
            inputs = Inputs(None) if kind in ("embedding", "projection") else self.inputs
            found[name] = {
                "weight": (self._section(kind), self.lines.get(section, self.name), -1),
                "inputs": (inputs, self.lines.get("activations", self.name), -1),
                "algorithm": (self.algorithm, self.lines.get("algorithm", self.name), -1),
            }
        for index, rule in enumerate(self.rules):
            hits = [name for name, kind in modules if rule.matches(name, kind)]
            if not hits and not rule.optional:
                raise RecipeError(_no_match(rule, list(found)))
            for name in hits:
                found[name] |= {part: (value, rule.where, index) for part, value in rule.parts.items()}
        self._check_effects(modules, found)
        return {
            name: Choice(
                parts["weight"][0],
                parts["inputs"][0],
                parts["algorithm"][0],
                {part: where for part, (_, where, _) in parts.items()},
            )
            for name, parts in found.items()
        }

    def _section(self, kind: str) -> Wanted:
        """Return the format that a kind of modules has without any rule."""
        if kind == "projection":
            return self.body if isinstance(self.body, StoredFormat) else FloatFormat("float32")
        wanted: Wanted = getattr(self, "body" if kind == "experts" else kind)
        return wanted

    def _check_effects(
        self, modules: Sequence[tuple[str, str]], found: Mapping[str, Mapping[str, tuple[Any, str, int]]]
    ) -> None:
        """Refuse rules without effect and a body that rules for something else disabled."""
        deciding = {index for parts in found.values() for _, _, index in parts.values()}
        kinds = dict(modules)
        for index, rule in enumerate(self.rules):
            if rule.optional or rule.where == MANIFEST:
                continue
            hits = [name for name, kind in modules if rule.matches(name, kind)]
            if index not in deciding:
                later = [r.where for r in self.rules[index + 1 :] if any(r.matches(n, kinds[n]) for n in hits)]
                raise RecipeError(
                    f"{rule.where}: the rule {shown(rule.pattern)} has no effect, because the rules at "
                    f"{', '.join(later)} override it: remove it, or put it after them."
                )
            _check_meaning(rule, [(kinds[name], found[name]["weight"][0]) for name in hits])
        bodies = [name for name, kind in modules if kind in ("body", "experts")]
        if not bodies or isinstance(self.body, FloatFormat):
            return
        if all(isinstance(found[name]["weight"][0], FloatFormat) for name in bodies):
            lines = sorted({found[name]["weight"][1] for name in bodies} - {MANIFEST})
            if lines:
                raise RecipeError(
                    f"{lines[-1]}: the rules leave no module of the body in {self.body.label}, which {self.name} asks "
                    "for: narrow the pattern (a rule for the head alone is written 'lm_head'), or change the body."
                )

    def with_formats(self, formats: Mapping[str, Format]) -> Recipe:
        """Return a recipe that gives every named module its format and everything else float32."""
        keep = FloatFormat("float32")
        rules = tuple(Rule(name, fmt, MANIFEST) for name, fmt in formats.items())
        return Recipe(self.name, keep, keep, keep, rules)

    def to_json(self) -> dict[str, Any]:
        """Return all that decides over the result as JSON-compatible values, for a build's key and for the record."""

        def wanted(value: Wanted | None) -> Any:
            return None if value is None else value.to_json() if isinstance(value, Format) else value.label

        return {
            "name": self.name,
            **{section: wanted(getattr(self, section)) for section in ("body", "lm_head", "embedding")},
            "activations": asdict(self.inputs),
            "algorithm": asdict(self.algorithm),
            "kv": None if self.kv is None else asdict(self.kv),
            "calibration": asdict(self.data),
            "transforms": asdict(self.transforms),
            **({"stages": {name: inner.to_json() for name, inner in self.stages.items()}} if self.stages else {}),
            "rules": [
                {
                    "pattern": rule.pattern,
                    "class": rule.kind,
                    "format": wanted(rule.format),
                    "activations": None if rule.inputs is None else asdict(rule.inputs),
                    "algorithm": None if rule.algorithm is None else asdict(rule.algorithm),
                }
                for rule in self.rules
            ],
        }


#: The place of rules that were read back from a manifest.
MANIFEST = "manifest"


def stored_recipe(name: str) -> Recipe:
    """Return the recipe that takes every weight over as the checkpoint stores it."""
    stored = StoredFormat()
    return Recipe(name, stored, stored, stored)


def _no_match(rule: Rule, names: Sequence[str]) -> str:
    if rule.kind is not None:
        return f"{rule.where}: no module of the class {rule.kind} matches the pattern {shown(rule.pattern)}."
    near = difflib.get_close_matches(rule.pattern, names, n=1, cutoff=0.3)
    hint = f"; the nearest name is {near[0]}" if near else ""
    return f"{rule.where}: the pattern {shown(rule.pattern)} matches no module{hint}."


def _check_meaning(rule: Rule, hits: Sequence[tuple[str, Wanted]]) -> None:
    """Refuse what means nothing for any module (its kind, the format it gets) that a rule matches."""
    rounds = rule.inputs is not None and rule.inputs.format is not None
    if rounds and all(kind == "embedding" for kind, _ in hits):
        raise RecipeError(
            f"{rule.where}: the rule {shown(rule.pattern)} matches nothing but embeddings, whose inputs are token ids: "
            "remove its activations."
        )
    if rule.algorithm is not None and all(isinstance(weight, FloatFormat | StoredFormat) for _, weight in hits):
        raise RecipeError(
            f"{rule.where}: the rule {shown(rule.pattern)} has an algorithm, but all it matches keeps the numbers it "
            "has: remove the algorithm, or give a format that is rounded to."
        )
