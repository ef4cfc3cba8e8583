"""The result of a closed loop: episodes as they went, and their figures as JSON-compatible values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgewright.evaluate.figures import bootstrap
from edgewright.evaluate.rates import paired, rate_of
from edgewright.evaluate.tasks import Task
from edgewright.runtime.policy.chunks import Chunking
from edgewright.serve import Answer


@dataclass
class Episode:
    """One episode: `distances` before the first action and after each; `images` of its beginning and its end."""

    number: int
    distances: list[float]
    images: list[dict[str, Any]]
    steps_to_success: int | None = None
    stopped: bool = False
    calls: int = 0
    refused: int = 0
    guard: Counter[str] = field(default_factory=Counter)
    chunks: Counter[str] = field(default_factory=Counter)
    latency_ms: list[float] = field(default_factory=list)
    policy_ms: list[float] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)

    def note(self, answer: Answer | None, took_ms: float) -> None:
        """Count an inference; None was refused."""
        self.calls += 1
        if answer is None:
            self.refused += 1
            return
        self.latency_ms.append(took_ms)
        self.notes.update(dict.fromkeys(answer.notes))
        inferred = answer.server_timings.get("infer_ms")
        if isinstance(inferred, int | float):
            self.policy_ms.append(float(inferred))

    def to_json(self) -> dict[str, Any]:
        """Return what depends on seed and policy alone: times are not in it."""
        return {
            "episode": self.number,
            "success": self.steps_to_success is not None,
            "steps_to_success": self.steps_to_success,
            "steps": len(self.distances) - 1,
            "start_distance": self.distances[0],
            "final_distance": self.distances[-1],
            "least_distance": min(self.distances),
            "stopped": self.stopped,
            "calls": self.calls,
            "refused": self.refused,
            "guard": dict(sorted(self.guard.items())),
            "chunks": dict(sorted(self.chunks.items())),
        }


@dataclass
class Run:
    """All episodes of one policy, and how its chunks were executed."""

    name: str
    cameras: Mapping[str, str]
    masked: Sequence[str]
    chunking: Chunking
    episodes: list[Episode]

    @property
    def successes(self) -> list[bool]:
        """Whether each episode succeeded."""
        return [one.steps_to_success is not None for one in self.episodes]

    def to_json(self, rate_hz: float) -> dict[str, Any]:
        """Return figures and episodes."""
        guard: Counter[str] = Counter()
        chunks: Counter[str] = Counter()
        for one in self.episodes:
            guard.update(one.guard)
            chunks.update(one.chunks)
        steps = [one.steps_to_success for one in self.episodes if one.steps_to_success is not None]
        return {
            "name": self.name,
            "cameras": dict(self.cameras),
            "masked": list(self.masked),
            "horizon": self.chunking.horizon,
            "run": self.chunking.steps_to_run,
            "success": rate_of(self.successes),
            "steps_to_success": _spread(steps),
            "seconds_to_success": _spread([step / rate_hz for step in steps]),
            "final_distance": _spread([one.distances[-1] for one in self.episodes]),
            "calls": sum(one.calls for one in self.episodes),
            "refused": sum(one.refused for one in self.episodes),
            "stopped": sum(one.stopped for one in self.episodes),
            "guard": dict(sorted(guard.items())),
            "chunks": dict(sorted(chunks.items())),
            "latency_ms": _latency([ms for one in self.episodes for ms in one.latency_ms]),
            "policy_ms": _latency([ms for one in self.episodes for ms in one.policy_ms]),
            "notes": list(dict.fromkeys(text for one in self.episodes for text in one.notes)),
            "episodes": [one.to_json() for one in self.episodes],
        }


@dataclass
class ClosedLoop:
    """The result: `runs` as they went, and the rest as `to_json` gives it."""

    task: dict[str, Any]
    seed: int
    delay: int
    policies: list[dict[str, Any]]
    comparison: dict[str, Any] | None
    notes: list[str]
    runs: list[Run]

    def to_json(self) -> dict[str, Any]:
        """Return everything but images as JSON-compatible values; all but latencies is the same in every run."""
        return {
            "task": self.task,
            "seed": self.seed,
            "delay": self.delay,
            "policies": self.policies,
            "comparison": self.comparison,
            "notes": self.notes,
        }


def result_of(task: Task, runs: Sequence[Run], seed: int, delay: int) -> ClosedLoop:
    """Return the result of one run, or of two on the same episodes."""
    rate_hz = task.spec.rate_hz
    policies = [run.to_json(rate_hz) for run in runs]
    described = {**task.spec.to_json(), "view": task.view, "versions": dict(task.versions())}
    comparison = _compare(runs[0], runs[1], seed) if len(runs) == 2 else None
    return ClosedLoop(described, seed, delay, policies, comparison, _notes(policies, delay, rate_hz), list(runs))


def _compare(first: Run, second: Run, seed: int) -> dict[str, Any]:
    """Return how the second run differs from the first, episode by episode."""
    pairs = list(zip(first.episodes, second.episodes, strict=True))
    numbers = [one.number for one, _ in pairs]
    farther = bootstrap([theirs.distances[-1] - mine.distances[-1] for mine, theirs in pairs], numbers, seed)
    later = [
        (mine.number, theirs.steps_to_success - mine.steps_to_success)
        for mine, theirs in pairs
        if mine.steps_to_success is not None and theirs.steps_to_success is not None
    ]
    steps = bootstrap([steps for _, steps in later], [number for number, _ in later], seed)
    return {
        "success": paired(first.successes, second.successes),
        "final_distance": None if farther is None else farther.to_json(),
        "steps_to_success": None if steps is None else steps.to_json(),
    }


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"mean": float(np.mean(values)), "median": float(np.median(values)), "max": float(np.max(values))}


def _latency(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    p50, p95, p99 = (float(value) for value in np.percentile(values, (50, 95, 99)))
    return {"mean": float(np.mean(values)), "p50": p50, "p95": p95, "p99": p99, "max": float(np.max(values))}


def _notes(policies: Sequence[Mapping[str, Any]], delay: int, rate_hz: float) -> list[str]:
    notes = []
    for policy in policies:
        if policy["masked"]:
            notes.append(f"{policy['name']}: no image for the cameras {', '.join(policy['masked'])}, which are masked")
        notes += [f"{policy['name']}: {text}" for text in policy["notes"]]
        if policy["refused"]:
            notes.append(f"{policy['name']}: {policy['refused']} of {policy['calls']} inferences were refused")
        if policy["stopped"]:
            notes.append(f"{policy['name']}: its guard stopped the robot in {policy['stopped']} episodes, which failed")
        if policy["latency_ms"] is not None:
            notes += _slowness(policy, delay, rate_hz)
    return notes


def _slowness(policy: Mapping[str, Any], delay: int, rate_hz: float) -> list[str]:
    """Say when a robot on this machine would have got its chunks later than the simulated one."""
    slow_ms = policy["latency_ms"]["p95"]
    periods = int(np.ceil(slow_ms * rate_hz / 1000))
    if periods <= max(delay, 1):
        return []
    mend = f"--delay {periods} shows what it costs" if periods < policy["horizon"] else "that is longer than a chunk"
    return [
        f"{policy['name']}: 95 % of the calls take up to {slow_ms:.3g} ms here, {periods} periods of the control rate, "
        f"and the robot had its chunks after {delay}: {mend}"
    ]
