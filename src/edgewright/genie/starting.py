"""What the library takes in a dialog's configuration and stumbles over later, when it makes the dialog.

It says little then, or nothing: a dialog of which this module has something to say is not worth sending to a device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from edgewright.genie.blocks import STANDALONE_ENGINE
from edgewright.genie.document import Place
from edgewright.genie.schema import Problem

SHARED_ENGINE = STANDALONE_ENGINE.keys["engine"]
_MASK = re.compile(r"\s*\+?(0[xX][0-9a-fA-F]|\d)", re.ASCII)
#: What a scaling can't do without.
_FACTORS = {
    "llama3": ("factor", "low-freq-factor", "high-freq-factor", "original-max-position-embeddings"),
    "longrope": ("factor", "short-factor", "long-factor", "original-max-position-embeddings"),
}
#: The group that the library looks for.
_GROUP = "past_"


def stumbles(dialog: Mapping[str, Any], place: Place) -> Iterator[Problem]:
    """Yield what stops the library when it makes a dialog whose configuration it took."""
    size = dialog.get("accumulator-size", 0)
    if isinstance(size, bool) or not isinstance(size, int | float):
        yield Problem((*place, "accumulator-size"), "is no number: give one, or take it out")
    engine = dialog["engine"]
    for index, one in enumerate(engine if isinstance(engine, list) else [engine]):
        yield from _engine(one, (*place, "engine", index) if isinstance(engine, list) else (*place, "engine"))


def _engine(engine: Mapping[str, Any], place: Place) -> Iterator[Problem]:
    backend, model = engine["backend"], engine["model"]
    if backend["type"] != "QnnHtp":
        return
    htp, where = backend["QnnHtp"], (*place, "backend", "QnnHtp")
    if htp.get("shared-engine"):  # it is then judged as an engine of its own
        for problem in SHARED_ENGINE.problems(engine, place):
            yield Problem(problem.place, f"{problem.text}, since the engine is shared", problem.unknown)
    if "kv-dim" not in htp:
        yield Problem(where, "lacks 'kv-dim', the width of the heads: add it")
    if htp["cpu-mask"] and not _MASK.match(htp["cpu-mask"]):
        yield Problem((*where, "cpu-mask"), 'is no mask: give one as "0xe0"')
    positions = model.get("positional-encoding", [])
    if isinstance(positions, list):
        for index, one in enumerate(positions):
            yield from _positions(one, (*place, "model", "positional-encoding", index))
    else:
        yield from _positions(positions, (*place, "model", "positional-encoding"))
    longcontext = engine.get("longcontext", {})
    if longcontext.get("type") == "keydiff" and "keydiff" not in longcontext:
        yield Problem((*place, "longcontext"), "lacks 'keydiff', which its type needs: add it")
    groups = engine.get("cache-groups")
    if groups is not None and all(group["prefix"] != _GROUP for group in groups):
        yield Problem((*place, "cache-groups"), f"has no group with the prefix {_GROUP!r}, the default one: add it")


def _positions(block: Mapping[str, Any], place: Place) -> Iterator[Problem]:
    """What the library looks at where the block says that it is a rope; an empty one it crashes over."""
    if not block:
        yield Problem(place, "is empty: say its type, or take it out")
    if block.get("type") != "rope":
        return
    if "rope-dim" not in block:
        yield Problem(place, "lacks 'rope-dim', the number of pairs that are turned: add it")
    scaling = block.get("rope-scaling", {})
    for name in _FACTORS.get(scaling.get("rope-type", "default"), ()):
        value = scaling.get(name)
        if value is None:
            yield Problem((*place, "rope-scaling"), f"lacks {name!r}, which its type needs: add it")
        elif isinstance(value, list) and not all(isinstance(one, int | float) for one in value):
            yield Problem((*place, "rope-scaling", name), "holds what is no number: give numbers")
