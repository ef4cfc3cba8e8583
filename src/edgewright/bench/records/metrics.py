"""What a dialog's rows say: samples of one part and repeat, which are pooled over repeats, and their figures.

Of a job whose steps gave tokens (or chunks of actions) at t_1 .. t_n: the time to the first token is t_1 - release, or
t_1 - eligible; the inter-token latencies are t_k - t_(k-1); TPOT is (t_n - t_1) / (n - 1), the decode rate its inverse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from edgewright.bench.records.columns import Counts, StepColumns
from edgewright.bench.records.part import Part
from edgewright.bench.records.rows import MOST, JobRow
from edgewright.bench.records.statistics import ratio, rounded, spread
from edgewright.bench.records.waits import waits

NS_PER_MS, NS_PER_S = 1e6, 1e9
_PREFILL = ("prefill", "prefix")


@dataclass
class Samples:
    """What is measured of a dialog. Lists have a number a job, but `itl_ms` a token and the step lists a step."""

    ttft_ms: list[float] = field(default_factory=list)
    ttft_eligible_ms: list[float] = field(default_factory=list)
    itl_ms: list[float] = field(default_factory=list)
    tpot_ms: list[float] = field(default_factory=list)
    job_ms: list[float] = field(default_factory=list)
    queue_ms: list[float] = field(default_factory=list)
    host_ms: list[float] = field(default_factory=list)
    step_ms: dict[str, list[float]] = field(default_factory=dict)
    paused_ms: float = 0.0
    #: Rows that prefill fed and computed, from its first step's start to its last one's end, and on the accelerator.
    prefill_tokens: int = 0
    prefill_padded: int = 0
    prefill_ns: int = 0
    prefill_busy_ns: int = 0
    #: Emissions after the first of their job, and the time from the first to the last.
    decode_tokens: int = 0
    decode_ns: int = 0
    emitted: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    jobs: int = 0
    complete: int = 0
    failed: int = 0
    stopped: int = 0
    deadlines: int = 0
    misses: int = 0
    saturated: int = 0
    worst_gap: int | None = None
    most_held: int = 0
    errors: list[str] = field(default_factory=list)

    def add(self, other: Samples) -> None:
        """Pool with the samples of another repeat."""
        for one in fields(self):
            mine, theirs = getattr(self, one.name), getattr(other, one.name)
            if one.name == "step_ms":
                for phase, values in theirs.items():
                    self.step_ms.setdefault(phase, []).extend(values)
            elif one.name in ("worst_gap", "most_held"):
                known = [value for value in (mine, theirs) if value is not None]
                setattr(self, one.name, max(known, default=None))
            else:
                setattr(self, one.name, mine + theirs)

    @property
    def decode_rate(self) -> float | None:
        """Tokens a second after the first ones: sum of n - 1 over the sum of their times."""
        return rounded(NS_PER_S * self.decode_tokens / self.decode_ns) if self.decode_ns else None


def samples(part: Part, dialog: str) -> Samples:
    """Return the samples of a dialog in a part."""
    found = Samples()
    steps = part.steps_of(dialog)
    ended = {job.iteration: job for job in part.jobs_of(dialog)}
    if len(steps):
        _count_steps(found, steps)
        _count_prefill(found, steps)
        _count_emissions(found, steps.take(steps.emits), ended)
    for job in ended.values():
        _count_job(found, job)
    waited = waits(part, dialog)
    found.queue_ms = (waited.queue_ns / NS_PER_MS).tolist()
    found.paused_ms = float(waited.paused_ns.sum()) / NS_PER_MS
    found.worst_gap = int(waited.passed.max()) if waited.passed.size else None
    return found


def _count_steps(found: Samples, steps: StepColumns) -> None:
    """Count what each step says by itself."""
    found.host_ms = ((steps.done_ns - steps.end_ns) / NS_PER_MS).tolist()
    on_device = (steps.end_ns - steps.start_ns) / NS_PER_MS
    found.step_ms = {str(phase): on_device[steps.phase == phase].tolist() for phase in np.unique(steps.phase)}
    found.most_held = int((steps.held + steps.tokens).max())


def _count_prefill(found: Samples, steps: StepColumns) -> None:
    """Count what prefill fed, and its time: of each job from its first step to its last."""
    steps = steps.take(np.isin(steps.phase, _PREFILL))
    if len(steps):
        first = steps.job_bounds
        found.prefill_tokens, found.prefill_padded = _total(steps.tokens), _total(steps.padded)
        begun, ended = np.minimum.reduceat(steps.start_ns, first), np.maximum.reduceat(steps.end_ns, first)
        found.prefill_ns = _total(ended - begun)
        found.prefill_busy_ns = _total(steps.end_ns - steps.start_ns)


def _count_emissions(found: Samples, steps: StepColumns, ended: Mapping[int, JobRow]) -> None:
    """Count the times between the emissions of each job, and up to its first one where it has ended."""
    found.emitted = len(steps)
    if not len(steps):
        return
    steps = steps.take(np.lexsort((steps.done_ns, steps.iteration)))
    times, first = steps.done_ns, steps.job_bounds
    between = np.ones(len(steps), np.bool_)
    between[first] = False
    found.itl_ms = (np.diff(times, prepend=0)[between] / NS_PER_MS).tolist()
    counts = np.diff(first, append=len(steps)) - 1
    lasted = times[first + counts] - times[first]
    found.tpot_ms = (lasted[counts > 0] / NS_PER_MS / counts[counts > 0]).tolist()
    found.decode_tokens, found.decode_ns = _total(counts), _total(lasted)
    for iteration, time in zip(steps.iteration[first].tolist(), times[first].tolist(), strict=True):
        job = ended.get(iteration)
        if job is not None:
            found.ttft_ms.append((time - job.release_ns) / NS_PER_MS)
            if job.eligible_ns is not None:
                found.ttft_eligible_ms.append((time - job.eligible_ns) / NS_PER_MS)


def _count_job(found: Samples, job: JobRow) -> None:
    found.jobs += 1
    late = False
    if job.deadline_ns is not None:
        late = job.finish != "complete" or job.end_ns > job.deadline_ns
        found.deadlines += 1
        found.misses += late
    if job.finish == "complete":
        found.complete += 1
        found.job_ms.append((job.end_ns - job.release_ns) / NS_PER_MS)
    elif job.finish == "failed":
        found.failed += 1
        found.errors.append(job.error or "it failed and said nothing")
    else:
        found.stopped += 1
    for name in ("saturated", "prompt_tokens", "generated_tokens"):
        setattr(found, name, getattr(found, name) + count_of(job.facts, name))


def figures(found: Samples) -> dict[str, Any]:
    """Return the figures of a dialog's samples: plain values, null where nothing was measured."""
    return {
        "ttft_ms": spread(found.ttft_ms),
        "ttft_eligible_ms": spread(found.ttft_eligible_ms),
        "itl_ms": spread(found.itl_ms),
        "tpot_ms": spread(found.tpot_ms),
        "job_ms": spread(found.job_ms),
        "decode_tokens_per_s": found.decode_rate,
        "prefill_tokens_per_s": _rate(found.prefill_tokens, found.prefill_ns),
        "prefill_padded_tokens_per_s": _rate(found.prefill_padded, found.prefill_ns),
        "prefill_accelerator_tokens_per_s": _rate(found.prefill_tokens, found.prefill_busy_ns),
        "queue_ms": spread(found.queue_ms),
        "paused_ms": rounded(found.paused_ms),
        "host_ms": spread(found.host_ms),
        "step_ms": {phase: spread(values) for phase, values in sorted(found.step_ms.items())},
        "quanta": sum(len(values) for values in found.step_ms.values()),
        "prompt_tokens": found.prompt_tokens,
        "generated_tokens": found.generated_tokens,
        "most_held": found.most_held,
        "worst_gap_quanta": found.worst_gap,
        "saturated": found.saturated,
        "deadlines": found.deadlines,
        "deadline_misses": found.misses,
        "jobs": found.jobs,
        "complete": found.complete,
        "failed": found.failed,
        "stopped": found.stopped,
        "error": found.errors[0] if found.errors else None,
    }


def slowdown(found: Samples, solo: Samples) -> dict[str, float | None]:
    """Return how many times slower than alone: `ttft` from eligibility, `itl`, and whole jobs; means over means."""
    return {
        "ttft": ratio(_mean(found.ttft_eligible_ms), _mean(solo.ttft_eligible_ms)),
        "itl": ratio(_mean(found.itl_ms), _mean(solo.itl_ms)),
        "total": ratio(_mean(found.job_ms), _mean(solo.job_ms)),
    }


def progress(slower: Mapping[str, float | None]) -> float | None:
    """Return a dialog's progress against its solo run: 1 over the slowdown of its tokens, or of its jobs."""
    value = slower["itl"] if slower["itl"] is not None else slower["total"]
    return ratio(1.0, value)


def _total(values: Counts) -> int:
    """Return a sum, which of damaged rows may have more digits than 64 bits."""
    return int(values.sum(dtype=np.float64))


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _rate(count: int, time_ns: int) -> float | None:
    return rounded(NS_PER_S * count / time_ns) if count and time_ns else None


def count_of(facts: Mapping[str, Any], name: str) -> int:
    """Return a count of a job's facts, 0 where it says none."""
    value = facts.get(name)
    return value if type(value) is int and 0 <= value <= MOST else 0
