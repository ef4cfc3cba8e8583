"""A found mix as a recipe file: sections with what most modules get, rules for the others, figures in comments."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from edgewright.quant.recipe import Algorithm, Data, Recipe
from edgewright.quantizer.search_run import Found

#: What a recipe says of a module: its keys and values.
Words = tuple[tuple[str, Any], ...]
_SECTION = {"body": "body", "experts": "body", "lm_head": "lm_head", "embedding": "embedding"}
_PARAMETERS = {"percentile": ("percentile",), "gptq": ("damping", "activation_order", "refit")}


@dataclass(frozen=True)
class _Entry:
    module: str
    section: str
    words: Words
    note: str


def recipe_text(found: Found, header: Sequence[str], base: Recipe | None, data: Data) -> str:
    """Return the YAML of a recipe that gives every module what was found; `header` are comment lines."""
    entries = _entries(found)
    names = [entry.module for entry in entries]
    lines = [*(f"# {line}" for line in header), "recipe: searched"]
    section_words: dict[str, Words] = {}
    for section in ("body", "lm_head", "embedding"):
        words = Counter(entry.words for entry in entries if entry.section == section)
        # A section without modules, as the head of a tied table, needs words all the same.
        section_words[section] = words.most_common(1)[0][0] if words else entries[0].words
        lines.append(f"{section}: {_flow(section_words[section])}")
    if base is not None and base.kv is not None:
        dtype = "int8" if base.kv.dtype == "int8" else "fp8"
        lines.append(f"kv: {{format: {dtype}, scope: {base.kv.per}}}")
    source = {"data": data.source, "sequences": data.sequences, "length": data.length, "seed": data.seed}
    lines.append(f"calibration: {_flow(tuple(source.items()))}")
    others = [entry for entry in entries if entry.words != section_words[entry.section]]
    if others:
        lines.append("rules:")
    for pattern, members in _grouped(others, names):
        lines += [f"  # {entry.module}: {entry.note}" for entry in members]
        lines.append(f"  - {_flow((('pattern', pattern), *members[0].words))}")
    lines += ["# the modules as the sections have them:"]
    lines += [f"# {entry.module}: {entry.note}" for entry in entries if entry not in others]
    return "\n".join([*lines, ""])


def _entries(found: Found) -> list[_Entry]:
    entries = []
    for decision in found.decisions:
        candidate, option = found.chosen[decision.name], found.options[decision.name]
        for index, target in enumerate(decision.targets):
            size = f"{decision.bytes(candidate.format):,} bytes, KL {option.kl:.3g}"
            note = size if index == 0 else f"with {decision.targets[0].module}"
            words = (*candidate.words, *_algorithm(candidate.format.label, found.algorithms[target.module]))
            entries.append(_Entry(target.module, _SECTION[target.kind], words, note))
    return entries


def _algorithm(label: str, algorithm: Algorithm) -> Words:
    """Return how the algorithm is written; floats need none."""
    if label in ("float32", "float16", "bfloat16"):
        return ()
    plain = Algorithm(algorithm.name)
    names = [n for n in _PARAMETERS.get(algorithm.name, ()) if getattr(algorithm, n) != getattr(plain, n)]
    if not names:
        return (("algorithm", algorithm.name),)
    values = {"name": algorithm.name, **{name: getattr(algorithm, name) for name in names}}
    return (("algorithm", _Flow(values)),)


class _Flow(dict[str, Any]):
    """A mapping that can stand in a set."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


def _flow(words: Words) -> str:
    values = {key: dict(value) if isinstance(value, _Flow) else value for key, value in words}
    return yaml.safe_dump(values, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True).strip()


def _grouped(entries: Sequence[_Entry], names: Sequence[str]) -> list[tuple[str, list[_Entry]]]:
    """Return patterns that together match exactly the entries: one for all layers where they agree, else names."""
    by_shape: dict[tuple[str, Words], list[_Entry]] = {}
    for entry in entries:
        by_shape.setdefault((re.sub(r"\.\d+\.", ".*.", entry.module), entry.words), []).append(entry)
    found: list[tuple[str, list[_Entry]]] = []
    for (pattern, _), members in by_shape.items():
        meant = {entry.module for entry in members}
        hit = {name for name in names if fnmatch.fnmatchcase(name, pattern)}
        if len(members) > 1 and hit == meant:
            found.append((pattern, members))
        else:
            found += [(entry.module, [entry]) for entry in members]
    return found


def summary(found: Found) -> Mapping[str, int]:
    """Return how many modules got which format."""
    count: Counter[str] = Counter()
    for decision in found.decisions:
        count[found.chosen[decision.name].format.label] += len(decision.targets)
    return dict(count)
