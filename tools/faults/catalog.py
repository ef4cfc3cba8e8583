"""All planted faults: every generator over the golden cases, and the part of them that the scoreboard shows."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Sequence

import attention_faults as a
import layer_faults as b
from fault import GOLDENS, Fault
from inspect_case import Case, case_of

from edgewright.errors import EdgewrightError

GENERATORS: tuple[Callable[[Case], Iterator[Fault]], ...] = (
    a.windows,
    a.scales,
    a.softcaps,
    a.ropes,
    a.rope_tables,
    a.heads,
    a.caches,
    a.masks,
    b.biases,
    b.norms,
    b.activations,
    b.factors,
    b.weights,
    b.zero_points,
    b.routing,
    b.states,
    b.compilers,
)
#: The scoreboard takes so many faults of each class, by a digest of their names: results have no say in the choice.
PER_CLASS = 20


def cases() -> list[str]:
    """Return the names of all golden cases."""
    return sorted(path.name for path in GOLDENS.iterdir())


def faults(names: Sequence[str] | None = None) -> Iterator[Fault]:
    """Yield the faults of the cases (of all that can be built)."""
    for name in names or cases():
        try:
            case = case_of(name)
        except EdgewrightError:
            continue
        for generator in GENERATORS:
            yield from generator(case)


def families() -> list[str]:
    """Return the first golden case of each family, and those whose window or rope is of another kind."""
    found: dict[str, str] = {}
    for name in cases():
        found.setdefault(family_of(name), name)
    return sorted(found.values())


def family_of(case: str) -> str:
    """Return the `model_type` of a golden case, with what it says of window and rope."""
    config = json.loads((GOLDENS / case / "config.json").read_text(encoding="utf-8"))
    text = config.get("text_config") or config
    rope = text.get("rope_parameters") or {}
    inner = rope.get("full_attention", rope)
    return f"{config['model_type']} {inner.get('rope_type', '')} {bool(text.get('sliding_window'))}"


def scored(part: int = 0) -> list[Fault]:
    """Return the faults of the scoreboard; another `part` is another sample, as large where there are as many."""
    by_kind: dict[str, list[Fault]] = {}
    for fault in faults(families()):
        by_kind.setdefault(fault.kind, []).append(fault)
    chosen = []
    for kind in sorted(by_kind):
        ordered = sorted(by_kind[kind], key=lambda fault: zlib.crc32(fault.name.encode()))
        chosen += ordered[part * PER_CLASS : (part + 1) * PER_CLASS]
    return sorted(chosen, key=lambda fault: fault.name)
