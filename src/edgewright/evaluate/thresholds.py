"""What an evaluation must reach: bounds on its figures, from a YAML file or `figure=number` on the command line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgewright.checkpoint.text import shown
from edgewright.errors import UsageError

#: Figures of each policy that may be bounded, and whether the bound is the most (1) or the least (-1).
POLICY = {
    "mae": 1, "mse": 1, "rmse": 1, "max_error": 1, "run_mae": 1, "jerk": 1, "jerk_ratio": 1, "jump": 1, "max_jump": 1,
    "gripper_agreement": -1,
}  # fmt: skip
#: Figures of the comparison of two; `mae_increase` is bounded at the upper end of its interval.
PAIR = {"difference": 1, "difference_rms": 1, "max_difference": 1, "run_difference": 1, "mae_increase": 1}


@dataclass(frozen=True)
class Verdict:
    """`status` is passed, failed or not checked; `reasons` say what failed or could not be checked."""

    status: str
    reasons: tuple[str, ...]
    thresholds: Mapping[str, float]

    @property
    def passed(self) -> bool:
        """Whether everything asked for was checked and holds; true, too, when nothing was asked for."""
        return self.status == "passed" or not self.reasons

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON-compatible values."""
        return {"status": self.status, "reasons": list(self.reasons), "thresholds": dict(self.thresholds)}


def judge(
    thresholds: Mapping[str, float], policies: Sequence[tuple[str, Mapping[str, Any]]], pair: Mapping[str, Any] | None
) -> Verdict:
    """Compare the figures of each policy (name, figures), and of the pair, with bounds.

    Actions that aren't finite always fail. A figure that couldn't be measured is not checked, which is no pass.
    """
    failed = [
        f"{name}: {figures['not_finite']} chunks have actions that aren't finite"
        for name, figures in policies
        if figures["not_finite"]
    ]
    unknown = []
    for key, bound in thresholds.items():
        for name, figures in policies if key in POLICY else [("the pair", pair or {})]:
            value = figures.get(key)
            if key == "mae_increase" and value is not None:
                value = value["high"]
            sign = POLICY.get(key, 1)
            if value is None:
                unknown.append(f"{name}: {key} could not be measured here")
            elif not sign * value <= sign * bound:
                failed.append(f"{name}: {key} {value:.4g} {'>' if sign > 0 else '<'} {bound:g}")
    status = "failed" if failed else "not checked" if unknown or not thresholds else "passed"
    return Verdict(status, tuple(failed + unknown), dict(thresholds))


def read_thresholds(spec: str, *, pair: bool) -> dict[str, float]:
    """Return bounds from a YAML file of `figure: number` lines, or from `figure=number,figure=number`.

    `pair` tells whether two policies are compared. Raises UsageError for an unknown figure, one given twice, one that
    needs two policies, or a bound that is no number.
    """
    if "=" in spec and not Path(spec).is_file():
        pairs = [(key.strip(), value.strip()) for key, _, value in (part.partition("=") for part in spec.split(","))]
        where = "--thresholds"
    else:
        from edgewright.checkpoint.yaml_mapping import read_mapping

        pairs, where = list(read_mapping(Path(spec), "thresholds", texts=True).items()), Path(spec).name
    found: dict[str, float] = {}
    for key, text in pairs:
        if key not in POLICY and key not in PAIR:
            known = ", ".join([*POLICY, *PAIR])
            raise UsageError(f"{where} has a bound on the unknown figure {shown(key)}; the figures are {known}.")
        if key in found:
            raise UsageError(f"{where} has two bounds on {key}: keep one.")
        if key in PAIR and not pair:
            raise UsageError(f"{where} has a bound on {key}, which compares two bundles: give a second one.")
        found[key] = _number(text, key, where)
    return found


def _number(text: Any, key: str, where: str) -> float:
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{where} has {shown(str(text))} as bound on {key}: give a number.")
    return value
