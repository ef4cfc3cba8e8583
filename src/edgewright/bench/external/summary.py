"""`summary.json` of a run by an external program: what its profiles say, and null for what they can't.

The library's own figures stand under `genie`, those of them that can be had without its rounding and its count of steps
under `recomputed`. There are no steps, so nothing is said about shares, waits and single tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgewright.bench.external.executions import executions_of, figures_of, is_number
from edgewright.bench.records.findings import findings
from edgewright.bench.records.reader import Run
from edgewright.bench.records.rows import RUN, SOLO, JobRow
from edgewright.bench.records.statistics import interval, jain, ratio, rounded, spread
from edgewright.bench.records.summary import Summary

#: Figures of a dialog that only steps tell; a count of nothing seen is not a count of 0.
_UNKNOWN = ("paused_ms", "quanta", "most_held", "worst_gap_quanta", "saturated", "deadlines", "deadline_misses")
_TTFT, _RATE = "time-to-first-token", "token-generation-rate"


def summary_of(run: Run) -> dict[str, Any]:
    """Return the summary of a run that an external program made."""
    data = Summary(run).to_json()
    executions = executions_of(run)
    for name, one in data["dialogs"].items():
        _dialog(run, name, one, executions)
    data["segments"] = []
    _system(run, data)
    unknown = ("segments.", "system.tokens_per_s", "system.busy", "system.held_ms")
    known = {name: value for name, value in data["repeats"].items() if not name.startswith(unknown)}
    data["repeats"] = {**known, **_intervals(run)}
    data["external"] = {**run.env.get("external", {}), "executions": executions}
    if data["status"] == "complete" and any(one.get("error") for one in executions if one.get("part") == RUN):
        data["status"] = "partial"
    told = findings(run, data)
    data["findings"] = [*told, *_failures(executions, told)]
    return data


def _dialog(run: Run, name: str, one: dict[str, Any], executions: list[Mapping[str, Any]]) -> None:
    """Replace what is not known of a dialog by null, and add what its profile says."""
    jobs = [job for job in run.jobs if job.dialog == name and job.part == RUN]
    alone = [job for job in run.jobs if job.dialog == name and job.part == SOLO + name and job.finish == "complete"]
    done = [job for job in jobs if job.finish == "complete"]
    one.update(dict.fromkeys(_UNKNOWN))
    for count in ("prompt_tokens", "generated_tokens"):
        known = [job.facts.get(count) for job in done]
        one[count] = sum(known) if known and all(type(value) is int for value in known) else None
    one["genie"], one["recomputed"] = _spreads(done, "genie"), _spreads(done, "recomputed")
    # A process loads once, however often it asks.
    loads = {str(job.facts.get("execution")): job.facts.get("load_ms") for job in jobs}
    one["load_ms"] = spread([float(load) for load in loads.values() if is_number(load)])
    one["slowdown"] = None
    if alone and done:
        one["slowdown"] = {
            "ttft": ratio(_mean(_figures(done, _TTFT)), _mean(_figures(alone, _TTFT))),
            "itl": None,
            "total": ratio(_mean(_times(done)), _mean(_times(alone))),
        }
    one["solo"] = {"genie": _spreads(alone, "genie"), "job_ms": spread(_times(alone))} if alone else None
    if one["error"] is None and len(done) < max(1, len(jobs)):
        mine = [event.get("error") for event in executions if name in event.get("dialogs", ()) and event.get("error")]
        one["error"] = mine[-1] if mine else None


def _system(run: Run, data: dict[str, Any]) -> None:
    """Replace what is not known of the system by null: rates come from the counts that the library gives."""
    system = data["system"]
    system.update(dict.fromkeys(("busy", "held_ms", "jain_service", "jain_raw", "peak_rss_bytes", "energy_j")))
    rates = []
    for repeat in run.repeats:
        jobs = [job for job in run.jobs if job.part == RUN and job.repeat == repeat]
        counts = [job.facts.get("generated_tokens") for job in jobs if job.finish == "complete"]
        end_ns = max((job.end_ns for job in jobs), default=0)
        known = [count for count in counts if type(count) is int]
        if known and len(known) == len(counts) and end_ns:
            rates.append(sum(known) / (end_ns / 1e9))
    system["tokens_per_s"] = rounded(sum(rates) / len(rates)) if rates and len(rates) == len(run.repeats) else None
    slower = [one["slowdown"]["total"] for one in data["dialogs"].values() if one["slowdown"] is not None]
    known_slower = [1 / value for value in slower if value]
    system["jain_progress"] = jain(known_slower) if len(known_slower) == len(data["dialogs"]) else None


def _intervals(run: Run) -> dict[str, Any]:
    """Return intervals over the repeats of the figures that each of them has."""
    found = {}
    for name in run.dialogs:
        for kind, figure in (("genie", _TTFT), ("recomputed", _RATE)):
            each = []
            for repeat in run.repeats:
                done = [job for job in run.jobs if (job.part, job.repeat, job.dialog) == (RUN, repeat, name)]
                value = _mean(_figures([job for job in done if job.finish == "complete"], figure, kind))
                each += [] if value is None else [value]
            if each and len(each) == len(run.repeats):
                found[f"dialogs.{name}.{kind}.{figure}"] = interval(each)
    return found


def _failures(executions: list[Mapping[str, Any]], told: list[str]) -> list[str]:
    """Return what went wrong with executions and isn't told of their dialogs: in a warm-up, or after good queries."""
    found = [(str(one.get("name")), str(one["error"])) for one in executions if one.get("error")]
    return [f"{name}: {error}" for name, error in found if not any(error in text for text in told)]


def _spreads(jobs: list[JobRow], kind: str) -> dict[str, Any]:
    """Return the spread over jobs of each figure that any of them has."""
    names = dict.fromkeys(name for job in jobs for name in figures_of(job, kind))
    return {name: spread(_figures(jobs, name, kind)) for name in names}


def _figures(jobs: list[JobRow], name: str, kind: str = "genie") -> list[float]:
    each = (figures_of(job, kind) for job in jobs)
    return [figures[name] for figures in each if name in figures]


def _times(jobs: list[JobRow]) -> list[float]:
    return [(job.end_ns - job.release_ns) / 1e6 for job in jobs]


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
