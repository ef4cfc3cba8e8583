"""The outcome of a verification: levels with figures, and where, when and why where one failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from edgewright.verify.cause import Cause
from edgewright.verify.metrics import Distance
from edgewright.verify.thresholds import Threshold
from edgewright.verify.weights import WeightsReport


class Level(Protocol):
    """One comparison: what is wrong in words, empty when it passed, and its part of the report."""

    @property
    def faults(self) -> Sequence[str]: ...

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class LogitsReport:
    """One comparison of logits: a distance per scenario, all rows pooled, and what exceeds the threshold."""

    threshold: Threshold
    by_scenario: Mapping[str, Distance]
    pooled: Distance

    @property
    def faults(self) -> list[str]:
        """Return in words what exceeds the threshold."""
        return [f"{name}: {', '.join(f)}" for name, d in self.by_scenario.items() if (f := self.threshold.faults(d))]

    def to_json(self) -> dict[str, Any]:
        """Return the level for the report."""
        d = self.pooled
        figures = (
            f"KL {d.kl:.3g} ± {d.kl_error:.2g} nats, top-1 {d.top1:.1%}, max error {d.max_error:.2g}, "
            f"cosine {d.cosine:.5f} over {d.positions} positions"
        )
        faults = self.faults
        return {
            "status": "failed" if faults else "passed",
            "summary": f"{'; '.join(faults)} ({figures})" if faults else figures,
            "threshold": vars(self.threshold),
            "pooled": d.to_json(),
            "scenarios": {name: value.to_json() for name, value in self.by_scenario.items()},
        }


@dataclass(frozen=True)
class OpsReport:
    """Level `ops`: every op recomputed from its own inputs. `worst` is the largest error as a share of its bound."""

    values: int
    calls: int
    worst: float
    worst_value: str
    fault: str = ""

    @property
    def faults(self) -> list[str]:
        """Return in words which op is wrong."""
        return [self.fault] if self.fault else []

    def to_json(self) -> dict[str, Any]:
        """Return the level for the report."""
        figures = (
            f"{self.values} values in {self.calls} calls recomputed from their inputs, largest error "
            f"{self.worst:.2g} of its bound ({self.worst_value})"
        )
        return {
            "status": "failed" if self.fault else "passed",
            "summary": self.fault or figures,
            "values": self.values,
            "calls": self.calls,
            "worst": float(f"{self.worst:.3g}") if self.worst < float("inf") else None,
        }


@dataclass(frozen=True)
class Localisation:
    """Where, when and why two sides differ first.

    `place` is in words, `module` the path of the op's module, `layer` its number or None outside the layers. `phase`
    says in which kind of call, `positions` which positions of that call are wrong. `origin` is the file that has the
    fault. `errors` are the largest relative errors by position, `layers` the largest by layer, `bound` what is allowed.
    """

    place: str
    layer: int | None
    module: str
    op: str
    scenario: str
    phase: str
    positions: tuple[int, ...]
    cause: Cause
    tried: tuple[Cause, ...] = ()
    origin: str = ""
    nodes: tuple[str, ...] = ()
    error: float | None = None
    bound: float | None = None
    errors: tuple[tuple[int, float], ...] = ()
    layers: tuple[tuple[str, float], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def when(self) -> str:
        """Say from which position on, and in what kind of call."""
        if not self.positions:
            return "in every call" if not self.phase else f"in {self.phase}"
        start = self.positions[0]
        run = self.positions[-1] - start + 1 == len(self.positions)
        words = f"from position {start}" if run and len(self.positions) > 1 else f"at position {start}"
        words += "" if run else f" and {len(self.positions) - 1} more"
        return f"{words}, in {self.phase}" if self.phase else words

    @property
    def sentence(self) -> str:
        """Say where, when and why in one line."""
        return f"first wrong at {self.place}, {self.when}; likely {self.cause.kind}: {self.cause.words}"

    def to_json(self) -> dict[str, Any]:
        """Return the localisation for the report."""

        def short(value: float | None) -> float | None:
            return None if value is None or not value < float("inf") else float(f"{value:.3g}")

        return {
            "where": {
                "place": self.place,
                "layer": self.layer,
                "module": self.module,
                "op": self.op,
                "file": self.origin,
                "nodes": list(self.nodes),
            },
            "when": {
                "words": self.when,
                "scenario": self.scenario,
                "phase": self.phase,
                "first_position": self.positions[0] if self.positions else None,
                "positions": len(self.positions),
            },
            "cause": self.cause.to_json(),
            "tried": [cause.to_json() for cause in self.tried],
            "error": short(self.error),
            "bound": short(self.bound),
            "errors_by_position": [[position, short(value)] for position, value in self.errors],
            "errors_by_layer": [[name, short(value)] for name, value in self.layers],
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Report:
    """The outcome of a verification: levels by name, and the localisation when one failed.

    `against` says what was compared with, `remarks` what went wrong on the way in words.
    """

    levels: Mapping[str, Level]
    localisation: Localisation | None = None
    against: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every level passed, as far as it could be checked here."""
        return not any(level.faults for level in self.levels.values())

    @property
    def status(self) -> str:
        """The verdict: failed, passed, or partly checked."""
        if not self.passed:
            return "failed"
        unchecked = any(getattr(level, "unchecked", ()) for level in self.levels.values())
        return "partly checked" if unchecked else "passed"

    def reason(self) -> str:
        """Return in one sentence why it failed; empty when it passed."""
        reasons = []
        for name, level in self.levels.items():
            if level.faults:
                of_weights = isinstance(level, WeightsReport)
                more = f"; and {len(level.faults) - 1} more scenarios" if len(level.faults) > 1 else ""
                words = level.to_json()["summary"] if of_weights else level.faults[0] + more
                reasons.append(f"{name}: {words}")
        if self.localisation is not None and not any(self.localisation.sentence in reason for reason in reasons):
            reasons.append(self.localisation.sentence)
        return ". ".join(reasons) + "." if reasons else ""

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-compatible values: `status`, `levels` and, after a failure, `localisation`."""
        data: dict[str, Any] = {
            "status": self.status,
            "levels": {name: level.to_json() for name, level in self.levels.items()},
        }
        if self.against:
            data["against"] = dict(self.against)
        if self.remarks:
            data["remarks"] = list(self.remarks)
        if self.localisation is not None:
            data["localisation"] = self.localisation.to_json()
        return data
