"""`summary.json`, made from the other files of a run folder alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from edgewright.bench.records.findings import findings
from edgewright.bench.records.folder import SUMMARY, write_json
from edgewright.bench.records.metrics import NS_PER_MS, NS_PER_S, Samples, figures, progress, samples, slowdown
from edgewright.bench.records.part import Part
from edgewright.bench.records.reader import Run, read_run
from edgewright.bench.records.rows import RUN, SOLO, WARMUP
from edgewright.bench.records.shares import UNITS, Service, Unit, service
from edgewright.bench.records.statistics import Floats, interval, jain, rounded
from edgewright.runtime.scheduling.timeline import Timeline

SCHEMA_VERSION = 1
#: What the disciplines that promise shares count.
_PROMISED: Mapping[str, Unit] = {"weighted": "quanta", "round-robin": "quanta", "fair-time": "time"}


def summarize(folder: str | Path) -> dict[str, Any]:
    """Return the summary of a run folder. Raises UsageError where it is none."""
    run = read_run(folder)
    if run.env.get("external"):  # its figures are in the device's profiles
        from edgewright.bench.external.summary import summary_of

        return summary_of(run)
    return Summary(run).to_json()


def write_summary(folder: Path) -> dict[str, Any]:
    """Write the summary of a run folder and return it. Raises UsageError and OutputError."""
    data = summarize(folder)
    write_json(folder / SUMMARY, data)
    return data


class Summary:
    """What the rows of a run say."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.discipline = str(run.case.get("scheduler", {}).get("discipline", "weighted"))
        self.unit: Unit | None = _PROMISED.get(self.discipline)
        #: What service is counted in where it needs a unit.
        self._counted: Unit = self.unit or "quanta"
        self.repeats = run.repeats
        self._parts = [part_of(run, RUN, repeat, self._entitling()) for repeat in self.repeats]
        self._services = [service(part) for part in self._parts]
        self._samples = [{name: samples(part, name) for name in run.dialogs} for part in self._parts]
        #: What was measured of each dialog while all ran, the repeats pooled, and while it ran alone.
        self.together = {name: Samples() for name in run.dialogs}
        for one in self._samples:
            for name, mine in one.items():
                self.together[name].add(mine)
        self.alone = {name: solo_samples(run, name) for name in run.dialogs}

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON-compatible values."""
        dialogs = {name: self._dialog(name) for name in self.run.dialogs}
        data: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "case": self.run.name,
            "run": self.run.folder.name,
            "status": status_of(self.run, dialogs),
            "simulated": self.run.simulated,
            "scheduler": dict(self.run.case.get("scheduler", {})),
            "segments": self._segments(),
            "dialogs": dialogs,
            "system": self._system(dialogs),
            "repeats": self._intervals(),
        }
        return {**data, "findings": findings(self.run, data)}

    def _entitling(self) -> dict[str, Timeline]:
        """The weights that shares are asked by: round robin treats all alike that are not paused."""
        if self.discipline != "round-robin":
            return dict(self.run.timelines)
        return {
            name: Timeline(tuple((time, float(weight > 0)) for time, weight in line.changes))
            for name, line in self.run.timelines.items()
        }

    def _dialog(self, name: str) -> dict[str, Any]:
        """The figures of a dialog, its repeats pooled, beside those of its solo run."""
        pooled, solo = self.together[name], self.alone[name]
        slower = None if solo is None else slowdown(pooled, solo)
        found = figures(pooled)
        found["error"] = found["error"] or self._refusal(name)
        return {
            **found,
            "slowdown": slower,
            "solo": None if solo is None else figures(solo),
            "same_tokens_as_solo": None if solo is None else same_tokens(self.run, name),
            "starvation_bound_quanta": self._bounds.get(name),
            "cold_ttft_ms": cold_ttft_ms(self.run, name),
        }

    @cached_property
    def _bounds(self) -> Mapping[str, Any]:
        """What the discipline promised in the run; the parts that prepare it have another one."""
        ends = (self._part_event(repeat) for repeat in self.repeats)
        return next((event["bounds"] for event in ends if "bounds" in event), {})

    def _refusal(self, name: str) -> str | None:
        """Return what went wrong with a dialog outside its jobs, such as in loading its model; None of nothing."""
        errors = (event for event in self.run.events if event.get("error") and name in event.get("dialogs", ()))
        return next((str(event["error"]) for event in errors), None)

    def _segments(self) -> list[dict[str, Any]]:
        """The shares of each segment, the repeats' service added up."""
        found = []
        for same in zip(*self._services, strict=True):
            total = same[0]
            for other in same[1:]:
                total = total.plus(other)
            found.append(self._segment(total))
        return found

    def _segment(self, one: Service) -> dict[str, Any]:
        achieved = {unit: one.achieved(unit) for unit in UNITS}
        requested = None if self.unit is None else one.requested(self.unit)
        error = None
        if requested is not None and self.unit is not None and one.quanta:
            error = rounded(float(abs(achieved[self.unit] - requested).max()))
        return {
            "start_ms": one.start_ns / NS_PER_MS,
            "end_ms": None if one.end_ns is None else one.end_ns / NS_PER_MS,
            "weights": self._named(one.weights),
            "quanta": one.quanta,
            "unit": self.unit,
            "nominal": self._named(one.nominal),
            "requested": None if requested is None else self._named(requested),
            "achieved": {
                name: {unit: rounded(float(achieved[unit][number])) for unit in UNITS}
                for number, name in enumerate(self.run.dialogs)
            },
            "error": error,
        }

    def _named(self, values: Floats | tuple[float, ...]) -> dict[str, float]:
        return {name: rounded(float(value)) for name, value in zip(self.run.dialogs, values, strict=True)}

    def _system(self, dialogs: Mapping[str, Any]) -> dict[str, Any]:
        """The figures of the run as a whole: means over the repeats, fairness over all of them."""
        each = [self._system_of(number) for number in range(len(self.repeats))]
        system: dict[str, Any] = {name: _mean([one[name] for one in each]) for name in _SYSTEM}
        served = sum((one.served[self._counted] for one in self._all()), start=0.0)
        entitled = sum((one.entitled[self._counted] for one in self._all()), start=0.0)
        time = sum((one.served["time"] for one in self._all()), start=0.0)
        end = last_event(self.run, "end") or {}
        steps = [progress(one["slowdown"]) for one in dialogs.values() if one["slowdown"] is not None]
        return {
            **system,
            "jain_service": None if self.unit is None else jain(_parts(served, entitled)),
            "jain_raw": jain(_list(time)),
            "jain_progress": jain([one for one in steps if one is not None]),
            "peak_rss_bytes": end.get("peak_rss_bytes"),
        }

    def _all(self) -> list[Service]:
        return [one for repeat in self._services for one in repeat]

    def _system_of(self, number: int) -> dict[str, float | None]:
        """The figures of one repeat."""
        part, mine = self._parts[number], self._samples[number].values()
        event = self._part_event(self.repeats[number])
        seconds = part.end_ns / NS_PER_S
        met = sum(one.deadlines - one.misses for one in mine)
        return {
            "makespan_ms": part.end_ns / NS_PER_MS,
            "tokens_per_s": sum(one.emitted for one in mine) / seconds if seconds else None,
            "busy": part.busy_ns / part.end_ns if part.end_ns else None,
            "held_ms": None if event.get("held_ns") is None else event["held_ns"] / NS_PER_MS,
            "goodput_jobs_per_s": met / seconds if seconds and any(one.deadlines for one in mine) else None,
            "lost_turns": event.get("lost_turns"),
            "energy_j": event.get("energy_j"),
        }

    def _part_event(self, repeat: int) -> Mapping[str, Any]:
        same = (e for e in self.run.events if e.get("event") == "part" and e.get("part") == RUN)
        return next((e for e in same if e.get("repeat") == repeat), {})

    def _intervals(self) -> dict[str, Any]:
        """Confidence intervals over the repeats; a figure that one of them lacks is left out."""
        values: dict[str, list[float | None]] = {}
        for number in range(len(self.repeats)):
            for name, value in self._system_of(number).items():
                values.setdefault(f"system.{name}", []).append(value)
            for name, one in self._samples[number].items():
                for metric, value in _repeated(one).items():
                    values.setdefault(f"dialogs.{name}.{metric}", []).append(value)
            for place, segment in enumerate(self._services[number]):
                shares = segment.achieved(self._counted)
                for name, value in zip(self.run.dialogs, shares, strict=True):
                    values.setdefault(f"segments.{place}.{name}", []).append(float(value) if segment.quanta else None)
        known = {name: [value for value in found if value is not None] for name, found in values.items()}
        return {name: interval(found) for name, found in known.items() if len(found) == len(self.repeats)}


_SYSTEM = ("makespan_ms", "tokens_per_s", "busy", "held_ms", "lost_turns", "goodput_jobs_per_s", "energy_j")


def part_of(run: Run, part: str, repeat: int, timelines: Mapping[str, Timeline]) -> Part:
    """Return the rows of a part and repeat that are of the dialogs of `timelines`."""
    steps, jobs = run.rows_of(part, repeat)
    return Part(
        [row for row in steps if row.dialog in timelines], [row for row in jobs if row.dialog in timelines], timelines
    )


def last_event(run: Run, kind: str) -> Mapping[str, Any] | None:
    """Return the last event of a kind, None where there is none."""
    return next((event for event in reversed(run.events) if event.get("event") == kind), None)


def solo_samples(run: Run, name: str) -> Samples | None:
    """Return the samples of a dialog's solo run, None where there was none."""
    part = part_of(run, SOLO + name, 0, {name: Timeline.constant(1)})
    return samples(part, name) if part.steps else None


def same_tokens(run: Run, name: str) -> bool | None:
    """Whether each complete job of a dialog gave the tokens of its solo run; None where none can be compared."""
    alone = {job.iteration: job.facts.get("tokens") for job in run.jobs if job.part == SOLO + name}
    found = [
        job.facts["tokens"] == alone[job.iteration]
        for job in run.jobs
        if job.part == RUN
        and job.dialog == name
        and job.finish == "complete"
        and job.facts.get("tokens") is not None
        and alone.get(job.iteration) is not None
    ]
    return all(found) if found else None


def cold_ttft_ms(run: Run, name: str) -> float | None:
    """Return the time to the first token of the very first query of a dialog, the one that warms up; None without."""
    part = part_of(run, WARMUP, 0, {name: Timeline.constant(1)})
    times = samples(part, name).ttft_eligible_ms
    return rounded(times[0]) if times else None


def status_of(run: Run, dialogs: Mapping[str, Any]) -> str:
    """Return "complete", "partial", "failed", or "interrupted": also of a run that was killed and could not say so."""
    end = last_event(run, "end") or {"how": "interrupted"}
    if end.get("how") == "interrupted":
        return "interrupted"
    whole = [one["complete"] > 0 and one["complete"] == one["jobs"] and not one["error"] for one in dialogs.values()]
    if end.get("how") != "finished" or not any(one["complete"] for one in dialogs.values()):
        return "failed"
    return "complete" if all(whole) else "partial"


def _repeated(one: Samples) -> dict[str, float | None]:
    """The figures of a dialog in one repeat that get an interval."""
    found = figures(one)
    rates = ("decode_tokens_per_s", "prefill_tokens_per_s")
    spreads = (("ttft_ms", "mean"), ("itl_ms", "mean"), ("itl_ms", "p50"), ("itl_ms", "p99"), ("job_ms", "mean"))
    picked = {f"{name}.{part}": found[name][part] if found[name] else None for name, part in spreads}
    return {**picked, **{name: found[name] for name in rates}}


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return rounded(sum(known) / len(known)) if known and len(known) == len(values) else None


def _parts(served: Floats | float, entitled: Floats | float) -> list[float]:
    """Return what each had of what it was entitled to."""
    return [had / own for had, own in zip(_list(served), _list(entitled), strict=True) if own > 0]


def _list(values: Floats | float) -> list[float]:
    return [] if isinstance(values, float) else values.tolist()
