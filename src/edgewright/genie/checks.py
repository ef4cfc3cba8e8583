"""Whether the library would take a document, and what is wrong with it where it wouldn't."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, get_args

from edgewright.errors import GenieError
from edgewright.genie.blocks import CONTEXT, DIALOG, FLAG, SAMPLER, STANDALONE_ENGINE, VERSION
from edgewright.genie.document import Document, spelled
from edgewright.genie.encoders import EMBEDDING, NODES
from edgewright.genie.extensions import EXTENSIONS
from edgewright.genie.schema import Block, Problem, near
from edgewright.genie.starting import stumbles

Kind = Literal["dialog", "embedding", "engine", "sampler", "node", "profile", "extensions"]

#: The blocks a document may have at its top: exactly one of them. Extensions have no such block.
TOPS: Mapping[Kind, Mapping[str, Block]] = {
    "dialog": {"dialog": DIALOG},
    "embedding": {"embedding": EMBEDDING},
    "engine": {"standalone-engine": STANDALONE_ENGINE},
    "sampler": {
        "sampler": SAMPLER,
        "standalone-sampler": Block({**VERSION, "sampler!": SAMPLER, "context!": CONTEXT}),
    },
    "node": NODES,
    "profile": {"profile": Block({**VERSION, "trace": Block({**VERSION, "enable!": FLAG})})},
}


def kind_of(document: Document) -> Kind:
    """Return which kind a document is by its top keys; raises GenieError where they are of none."""
    value = document.value if isinstance(document.value, dict) else {}
    for kind, tops in TOPS.items():
        if value.keys() & tops.keys():
            return kind
    if value.keys() & EXTENSIONS.keys.keys():
        return "extensions"
    known = [*(name for tops in TOPS.values() for name in tops), *EXTENSIONS.keys]
    raise GenieError(f"{document.name} has none of the keys a Genie file begins with: {', '.join(known)}.")


def problems(document: Document, kind: Kind) -> list[Problem]:
    """Return what is wrong with a document of a kind, in the order of its lines; nothing where the library takes it.

    A node's top is the first key in the order of letters; the library doesn't look at others.
    """
    assert kind in get_args(Kind)
    found = list(_extensions(document) if kind == "extensions" else _problems(document, kind))
    return sorted(found, key=lambda problem: document.line_of(problem.place))


def require(document: Document, kind: Kind) -> None:
    """Raise GenieError with the first problem and the number of others, if there are any."""
    found = problems(document, kind)
    if found:
        first = found[0]
        more = f" ({len(found) - 1} more: {'; '.join(map(str, found[1:4]))})" if len(found) > 1 else ""
        raise GenieError(f"{document.name}, line {document.line_of(first.place)}: {first}.{more}")


def notes(document: Document, kind: Kind) -> list[str]:
    """Return what the library passes over and a reader should know.

    Keys written twice, what a dialog that was taken will stumble over when it is made, and unknown extensions.
    """
    found = [
        f"{document.name}, line {document.line_of(place)}: {spelled(place)} is written twice, the last one holds"
        for place in document.repeated
    ]
    if kind == "dialog" and not problems(document, kind):
        found += [
            f"{document.name}, line {document.line_of(problem.place)}: Genie takes this and fails when it makes the "
            f"dialog: {problem}"
            for problem in stumbles(document.value["dialog"], ("dialog",))
        ]
    if kind == "extensions" and isinstance(document.value, dict):
        found += [
            f"{document.name}, line {document.line_of(problem.place)}: {problem}"
            for problem in EXTENSIONS.problems(document.value, ())
            if problem.unknown and len(problem.place) > 1
        ]
    return found


def _extensions(document: Document) -> Iterator[Problem]:
    """What later versions of the back end may know inside its blocks is no problem."""
    for problem in EXTENSIONS.problems(document.value, ()):
        if not problem.unknown or len(problem.place) == 1:
            yield problem


def _problems(document: Document, kind: Kind) -> Iterator[Problem]:
    value, tops = document.value, TOPS[kind]
    names = " or ".join(repr(name) for name in tops)
    if not isinstance(value, dict):
        yield Problem((), f"is not an object: such a file holds {names}")
        return
    if kind == "node":
        value = dict(sorted(value.items())[:1])
    else:
        yield from (
            Problem(place, "is written twice at the top, which is refused: take one out")
            for place in document.repeated
            if len(place) == 1
        )
    if not any(name in value for name in tops):
        yield Problem((), f"has no {names}: give a file that has it")
    for name, one in value.items():
        if name in tops:
            yield from tops[name].problems(one, (name,))
        else:
            yield Problem((name,), f"is a key that is not known there{near(name, tops)}: such a file holds {names}")
