"""What turns a robot's observation into a policy's arrays and its arrays into actions, as the manifest records it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from edgewright.errors import BundleError

Kind = Literal["pi05", "pi0", "smolvla"]
Convention = Literal["openpi", "lerobot"]
Resize = Literal["pil-center", "torch-center", "torch-left-top"]
Schedule = Literal["float32-sum", "float64-linear"]
Prompt = Literal["text", "text-newline", "state"]
Norm = Literal["quantile", "mean-std", "min-max", "identity"]
Fallback = Literal["hold", "last-chunk", "stop"]
Vector = npt.NDArray[np.float64]

#: The statistics that each way of normalising needs.
NEEDED: Mapping[Norm, tuple[str, ...]] = {
    "quantile": ("q01", "q99"),
    "mean-std": ("mean", "std"),
    "min-max": ("min", "max"),
    "identity": (),
}
STATISTICS = ("mean", "std", "q01", "q99", "min", "max")
#: No robot waits for more steps than this; a larger number is a mistake.
MAX_STEPS = 1000
#: The same of the actions of a chunk and the tokens of a prompt, which buffers are made for.
MAX_HORIZON = MAX_TOKENS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a robot may be sent; None is no limit.

    `minimum`, `maximum` are the bounds of each action dimension in the action's own unit; `rate` is the largest change
    from one step to the next, `jump` the largest change from the last action of a chunk to the first of the next one.
    `deadline_ms` is how long an inference may take; `fallback` is what is done when it is late or a guard refuses.
    """

    minimum: tuple[float, ...] | None = None
    maximum: tuple[float, ...] | None = None
    rate: tuple[float, ...] | None = None
    jump: tuple[float, ...] | None = None
    deadline_ms: float | None = None
    fallback: Fallback = "hold"

    def to_json(self) -> dict[str, Any]:
        """Return the limits as JSON-compatible values."""
        return _to_json(self)

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Build from a manifest; raises BundleError on an unknown or missing key or a wrong value."""
        return cls(**_from_json(cls, data, "policy.limits", _LIMITS))


@dataclass(frozen=True, kw_only=True)
class PolicySpec:
    """All that the runtime must know of a policy besides its graphs and its statistics.

    `cameras` are the names of the model's image slots, in order; a missing one that isn't in `required_cameras` is
    masked. `image_size` is height and width in pixels. `state_dim` and `action_dim` count the robot's numbers (0: the
    policy takes no state), `model_state_dim` and `model_action_dim` what the graphs take, padded with zeros. `horizon`
    is the number of actions in a chunk, `steps` the default number of denoise steps, `steps_to_run` how many actions of
    a chunk are meant to be executed. `delta_mask` marks the leading action dimensions that are relative to the state.
    `committed_actions` is how many actions of the last chunk it was trained to continue from (0: it was not). `vocab`
    is how many rows the embedding table has, which no token id may reach (0: not known).
    """

    kind: Kind
    convention: Convention
    cameras: tuple[str, ...]
    required_cameras: tuple[str, ...]
    image_size: tuple[int, int]
    image_tokens: int
    resize: Resize
    state_dim: int
    action_dim: int
    model_state_dim: int
    model_action_dim: int
    horizon: int
    steps: int
    schedule: Schedule
    prompt: Prompt
    max_tokens: int
    tokenizer: str
    state_norm: Norm
    action_norm: Norm
    steps_to_run: int
    bins: int = 256
    delta_mask: tuple[bool, ...] = ()
    committed_actions: int = 0
    vocab: int = 0
    limits: Limits = field(default_factory=Limits)

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON-compatible values."""
        return _to_json(self)

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Build from a manifest; raises BundleError on an unknown or missing key or a wrong value."""
        spec = cls(**_from_json(cls, data, "policy", _SPEC))
        spec.check()
        return spec

    def check(self) -> None:
        """Raise BundleError where two values contradict each other, or one is larger than any robot needs."""
        for name, most in (("horizon", MAX_HORIZON), ("max_tokens", MAX_TOKENS), ("steps", MAX_STEPS)):
            if getattr(self, name) > most:
                raise _wrong(f"policy.{name}", f"at most {most}")
        if len(set(self.cameras)) != len(self.cameras) or not set(self.required_cameras) <= set(self.cameras):
            raise _wrong("policy.required_cameras", "cameras that are all in policy.cameras, each once")
        if self.state_dim > self.model_state_dim or self.action_dim > self.model_action_dim:
            raise _wrong("policy.state_dim and policy.action_dim", "at most what the model takes")
        if self.steps_to_run > self.horizon:
            raise _wrong("policy.steps_to_run", f"at most the horizon of {self.horizon}")
        if self.committed_actions >= self.horizon:
            raise _wrong("policy.committed_actions", f"below the horizon of {self.horizon}")
        if sum(self.delta_mask) and len(self.delta_mask) > min(self.state_dim, self.action_dim):
            raise _wrong("policy.delta_mask", "at most one value for each number of state and action")
        for name in ("minimum", "maximum", "rate", "jump"):
            values = getattr(self.limits, name)
            if values is not None and len(values) != self.action_dim:
                raise _wrong(f"policy.limits.{name}", f"one number for each of the {self.action_dim} of an action")
        low, high = self.limits.minimum, self.limits.maximum
        if low is not None and high is not None:
            empty = inward(np.array(low), np.float32(np.inf)) > inward(np.array(high), np.float32(-np.inf))
            if empty.any():
                where = ", ".join(map(str, np.flatnonzero(empty)))
                raise _wrong("policy.limits.minimum", f"below policy.limits.maximum (it isn't at {where})")


@dataclass(frozen=True)
class Statistics:
    """What normalising needs of the data a policy was trained on.

    `state` and `actions` map the names in `STATISTICS`, those there are, to float64 vectors in the data's own unit.
    """

    state: Mapping[str, Vector]
    actions: Mapping[str, Vector]

    def to_json(self) -> dict[str, Any]:
        """Return the statistics as JSON-compatible values, which read back to the same bits."""
        return {
            name: {key: values.tolist() for key, values in group.items()}
            for name, group in (("state", self.state), ("actions", self.actions))
        }

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Build from `norm_stats.json` of a bundle; raises BundleError on unknown or missing keys or wrong values."""
        if not isinstance(data, Mapping) or set(data) != {"state", "actions"}:
            raise BundleError(
                "The statistics have other keys than state and actions, so they are not those of a policy: build the"
                " bundle again."
            )
        return cls(*(_vectors(data[name], f"statistics of {name}") for name in ("state", "actions")))


def _vectors(data: Any, where: str) -> dict[str, Vector]:
    if not isinstance(data, Mapping):
        raise _wrong(where, "an object of vectors")
    vectors: dict[str, Vector] = {}
    for key, values in data.items():
        if key not in STATISTICS:
            raise BundleError(
                f"The {where} hold the unknown key {key!r}: build the bundle again with this version of edgewright."
            )
        numbers = _each(_number)(values, f"{where}, {key},")
        vectors[key] = np.array(numbers, np.float64)
    if len({vector.size for vector in vectors.values()}) > 1:
        raise _wrong(where, "vectors of one length")
    if wrong := impossible(vectors):
        raise _wrong(where, f"some that data can have ({wrong})")
    return vectors


def impossible(group: Mapping[str, Vector]) -> str:
    """Return in words what no data has: a negative deviation, crossed bounds, beyond float32; empty if nothing is."""
    largest = float(np.finfo(np.float32).max)
    for key, vector in group.items():
        odd = (np.abs(vector) > largest) | ((vector < 0) & (key == "std"))
        if odd.any():
            at = int(np.argmax(odd))
            return f"{key} of dimension {at} is {vector[at]:g}"
    for low, high in (("q01", "q99"), ("min", "max")):
        if low in group and high in group and (crossed := group[low] > group[high]).any():
            at = int(np.argmax(crossed))
            return f"{low} of dimension {at} is above {high}, {group[low][at]:g} > {group[high][at]:g}"
    return ""


def inward(bounds: Vector, inner: np.float32) -> npt.NDArray[np.float32]:
    """Return float32 bounds that lie not outside the float64 ones; `inner` is the infinity on the inner side."""
    with np.errstate(over="ignore"):
        rounded = bounds.astype(np.float32)
    outside = rounded < bounds if inner > 0 else rounded > bounds
    result: npt.NDArray[np.float32] = np.where(outside, np.nextafter(rounded, inner), rounded)
    return result


Check = Callable[[Any, str], Any]


def _wrong(where: str, wanted: str) -> BundleError:
    return BundleError(f"The bundle's {where} must be {wanted}, so its manifest is refused: build the bundle again.")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(where, "a text")
    return value


def _one_of(choices: Any) -> Check:
    names = get_args(choices)

    def check(value: Any, where: str) -> Any:
        if not isinstance(value, str) or value not in names:
            raise _wrong(where, f"one of {', '.join(names)}")
        return value

    return check


def _integer(least: int) -> Check:
    def check(value: Any, where: str) -> int:
        if type(value) is not int or value < least:
            raise _wrong(where, f"an integer of at least {least}")
        return value

    return check


def _number(value: Any, where: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise _wrong(where, "a finite number")
    return float(value)


def _positive(value: Any, where: str) -> float:
    if _number(value, where) <= 0:
        raise _wrong(where, "a number above 0")
    return float(value)


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(where, "true or false")
    return value


def _each(check: Check, length: int | None = None) -> Check:
    def check_all(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or (length is not None and len(value) != length):
            raise _wrong(where, "a list" if length is None else f"a list of {length} values")
        return tuple(check(entry, f"{where}[{index}]") for index, entry in enumerate(value))

    return check_all


def _optional(check: Check) -> Check:
    return lambda value, where: None if value is None else check(value, where)


_LIMITS: Mapping[str, Check] = {
    "minimum": _optional(_each(_number)),
    "maximum": _optional(_each(_number)),
    "rate": _optional(_each(_positive)),
    "jump": _optional(_each(_positive)),
    "deadline_ms": _optional(_positive),
    "fallback": _one_of(Fallback),
}
_SPEC: Mapping[str, Check] = {
    "kind": _one_of(Kind),
    "convention": _one_of(Convention),
    "cameras": _each(_text),
    "required_cameras": _each(_text),
    "image_size": _each(_integer(1), 2),
    "image_tokens": _integer(1),
    "resize": _one_of(Resize),
    "state_dim": _integer(0),
    "action_dim": _integer(1),
    "model_state_dim": _integer(0),
    "model_action_dim": _integer(1),
    "horizon": _integer(1),
    "steps": _integer(1),
    "schedule": _one_of(Schedule),
    "prompt": _one_of(Prompt),
    "max_tokens": _integer(1),
    "tokenizer": _text,
    "state_norm": _one_of(Norm),
    "action_norm": _one_of(Norm),
    "steps_to_run": _integer(1),
    "bins": _integer(2),
    "delta_mask": _each(_flag),
    "committed_actions": _integer(0),
    "vocab": _integer(0),
    "limits": lambda value, where: Limits.from_json(value),
}


def _to_json(record: Limits | PolicySpec) -> dict[str, Any]:
    values = {entry.name: getattr(record, entry.name) for entry in fields(record)}
    return {
        name: value.to_json() if isinstance(value, Limits) else list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
    }


def _from_json(cls: type[Limits | PolicySpec], data: Any, where: str, checks: Mapping[str, Check]) -> dict[str, Any]:
    """Return the checked values of every field; a key that isn't there may only be one that is never missing."""
    if not isinstance(data, Mapping):
        raise _wrong(where, "an object")
    names = [entry.name for entry in fields(cls)]
    for problem, keys in (("lacks", [n for n in names if n not in data]), ("has the unknown", [*data.keys() - names])):
        if keys:
            raise BundleError(
                f"The bundle's {where} {problem} {', '.join(sorted(map(str, keys)))}, so it was written by another"
                " version: build the bundle again with this version of edgewright."
            )
    return {name: checks[name](data[name], f"{where}.{name}") for name in names}
