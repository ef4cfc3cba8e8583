"""What an execution leaves in a run folder: jobs of its dialogs, with the reason of each that failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from edgewright.bench.external.judge import Verdict
from edgewright.bench.external.mapping import CREATE, Query, components_of, queries_of, zero_us
from edgewright.bench.external.plan import Execution
from edgewright.bench.external.processes import Ended
from edgewright.genie import Component
from edgewright.runtime.scheduling.work import Finish, JobRecord

_NS_PER_US = 1000


@dataclass
class Outcome:
    """The jobs of an execution, with their dialogs' numbers, and what is odd about it."""

    jobs: list[JobRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def outcome_of(execution: Execution, ended: Ended, verdict: Verdict, *, one_process: bool) -> Outcome:
    """Return the jobs of an execution: those that its profile has, and a failed one for each that it lacks.

    Times are nanoseconds since the first query of the part where it is one process, since the start of its chains
    where it is several: then a query is placed by when its process started and by how long after its beginning, on the
    process's own clock, the query started.
    """
    found = Outcome()
    if verdict.profile is None:
        span = (ended.started_ns, ended.ended_ns)
        for dialog in execution.dialogs:
            found.jobs += [
                _failed(execution, dialog, k, ended, verdict.error, span) for k in range(execution.iterations)
            ]
        return found
    mapped = components_of(verdict.profile, len(execution.dialogs))
    found.notes += [f"{execution.name}: {text}" for text in mapped.notes]
    queries = [[] if one is None else queries_of(one) for one in mapped.components]
    if one_process:
        base = min((query.start_us for each in queries for query in each), default=0)
        shift = 0
        # What left nothing has no time on the program's clock: it lies where the others ended.
        last = max((query.stop_us - base for each in queries for query in each), default=0) * _NS_PER_US
    else:
        base, shift = zero_us(verdict.profile) or 0, ended.started_ns
        last = ended.ended_ns
    for dialog, component, asked in zip(execution.dialogs, mapped.components, queries, strict=True):
        why = verdict.error or mapped.error or _why_missing(component, asked, execution.iterations)
        loaded = None if component is None else _loaded_ms(component)
        jobs = [_job(execution, dialog, k, query, base, shift, loaded) for k, query in enumerate(asked)]
        found.jobs += jobs
        if len(asked) < execution.iterations:
            missing = range(len(asked), execution.iterations)
            at = jobs[-1].end_ns if jobs else last
            found.jobs += [_failed(execution, dialog, place, ended, why, (at, at)) for place in missing]
        elif len(asked) > execution.iterations:
            found.notes.append(
                f"{execution.name}: the profile has {len(asked)} queries of dialog number {dialog} for "
                f"{execution.iterations} iterations."
            )
    return found


def _why_missing(component: Component | None, asked: Sequence[Query], iterations: int) -> str:
    if component is None:
        return "The profile has no component of this dialog: it was not created."
    return f"The profile has {len(asked)} of {iterations} queries: one that the library gives up leaves nothing there."


def _job(
    execution: Execution, dialog: int, place: int, query: Query, base_us: int, shift_ns: int, loaded_ms: float | None
) -> JobRecord:
    start = (query.start_us - base_us) * _NS_PER_US + shift_ns
    finish: Finish = "complete" if query.error is None else "failed"
    return JobRecord(
        task=dialog,
        iteration=execution.iteration + place,
        release_ns=start,
        ready_ns=start,
        eligible_ns=None,
        end_ns=(query.stop_us - base_us) * _NS_PER_US + shift_ns,
        deadline_ns=None,
        finish=finish,
        error=query.error,
        facts={**query.facts, "load_ms": loaded_ms, "execution": execution.name},
    )


def _failed(
    execution: Execution, dialog: int, place: int, ended: Ended, error: str | None, span: tuple[int, int]
) -> JobRecord:
    """Return the job that came to nothing in a span of time: its process's, or a moment of the program's clock."""
    start, end = span
    return JobRecord(
        task=dialog,
        iteration=execution.iteration + place,
        release_ns=start,
        ready_ns=None,
        eligible_ns=None,
        end_ns=end,
        deadline_ns=None,
        finish="stopped" if ended.stopped in ("fail-fast", "interrupted") else "failed",
        error=error,
        facts={"prompt_tokens": None, "generated_tokens": None, "execution": execution.name},
    )


def _loaded_ms(component: Component) -> float | None:
    made = component.of_type(CREATE)
    return made[0].duration_us / 1000 if made else None
