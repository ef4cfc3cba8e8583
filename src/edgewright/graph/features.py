"""The named features of a policy: exact rewrites of its graphs, and how its runtime feeds them, each on or off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from edgewright.errors import UsageError

Value = bool | str

ON_OFF = (True, False)
_WORDS = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


@dataclass(frozen=True)
class Feature:
    """`changes` says what it does with its default or another value; no value of it changes what is computed.

    `kinds` are the policies that can have it, empty for all. `requires` maps a value to the values that other features
    must then have, which their other values conflict with. `runtime`: it tells the runtime how to feed the stages, and
    leaves the graphs alone.
    """

    name: str
    changes: str
    default: Value = True
    values: tuple[Value, ...] = ON_OFF
    kinds: tuple[str, ...] = ()
    requires: Mapping[Value, Mapping[str, Value]] = field(default_factory=dict)
    runtime: bool = False


_ALL = (
    Feature(
        "time-table",
        "what depends on the time and on weights alone is computed when building and looked up by the number of the "
        "step; the number of steps is then fixed",
    ),
    Feature("kv-only", "the last layer of the prefix makes keys and values alone; off: prefix_hidden is an output"),
    Feature(
        "kv-transposed",
        "the prefix lays its keys out as the denoise step multiplies them, once a frame",
        default=False,
    ),
    Feature(
        "cross-once",
        "what the expert's layers that look across make of the prefix is made with the prefix, once a frame",
        kinds=("smolvla",),
    ),
    Feature("fused-projections", "linears that read one input (q, k, v; gate and up) are one product"),
    Feature(
        "norm-folding",
        "the weight of a norm, and its bias, are multiplied into the linears that read it",
        default=False,
    ),
    Feature(
        "loop",
        "step: the runtime runs every denoise step; graph: the denoise stage is the whole loop; unrolled: the same "
        "with its steps one after the other",
        default="step",
        values=("step", "graph", "unrolled"),
        requires={"graph": {"time-table": True}, "unrolled": {"time-table": True}},
    ),
    Feature("prefix-compaction", "masked tokens are left out of the prefix; off: they are masked", runtime=True),
    Feature("view-batching", "the images of all cameras are one run of the vision stage", runtime=True),
)
#: Every feature by name, in the order they are applied and shown in.
FEATURES: Mapping[str, Feature] = {feature.name: feature for feature in _ALL}


def parse_features(items: Iterable[str]) -> dict[str, Value]:
    """Return the values that `NAME=VALUE` texts ask for; on and off are those of a switch.

    Raises UsageError for an unknown name or value, and for a feature that is given twice.
    """
    asked: dict[str, Value] = {}
    for item in items:
        name, sign, text = item.partition("=")
        if not sign:
            raise UsageError(f"The feature {item!r} has no value: write it as NAME=VALUE, {shown(_known(item))}.")
        feature = _known(name)
        if name in asked:
            raise UsageError(f"The feature {name} is given twice: give it once.")
        value = _WORDS.get(text.lower(), text) if feature.values == ON_OFF else text
        asked[name] = _checked(feature, value)
    return asked


def resolve_features(asked: Mapping[str, Value], kind: str) -> dict[str, Value]:
    """Return the value of every feature for a kind of policy: what is asked for, else the default.

    Raises UsageError for unknown names and values, and for values that the kind or other features rule out.
    """
    for name, value in asked.items():
        _checked(_known(name), value)
    result: dict[str, Value] = {}
    for name, feature in FEATURES.items():
        fits = not feature.kinds or kind in feature.kinds
        if not fits and asked.get(name):
            raise UsageError(
                f"The feature {name} is for {', '.join(feature.kinds)} and can't be on for {kind}: leave it out."
            )
        result[name] = asked.get(name, feature.default) if fits else False
    for name, feature in FEATURES.items():
        for other, needed in feature.requires.get(result[name], {}).items():
            if result[other] != needed:
                raise UsageError(
                    f"The features {spelled(name, result[name])} and {spelled(other, result[other])} don't go together:"
                    f" {name} needs {spelled(other, needed)}, or one of "
                    f"{', '.join(spelled(name, v) for v in feature.values if v not in feature.requires)}."
                )
    return result


def spelled(name: str, value: Value) -> str:
    """Return a feature and its value as the command line takes it."""
    return f"{name}={_word(value)}"


def shown(feature: Feature) -> str:
    """Return the choices of a feature."""
    return f"{feature.name}={'|'.join(_word(value) for value in feature.values)}"


def _word(value: Value) -> str:
    return value if isinstance(value, str) else "on" if value else "off"


def _known(name: str) -> Feature:
    if name not in FEATURES:
        raise UsageError(f"The feature {name!r} is unknown; known are {', '.join(map(shown, FEATURES.values()))}.")
    return FEATURES[name]


def _checked(feature: Feature, value: Value) -> Value:
    if type(value) not in (bool, str) or value not in feature.values:
        raise UsageError(f"The feature {feature.name} can't be {value!r}; the choices are {shown(feature)}.")
    return value
