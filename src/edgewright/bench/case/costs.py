"""Makes the tasks of simulated models, whose steps have costs and compute nothing."""

from __future__ import annotations

from edgewright.bench.case.spec import DialogSpec, SimulatedModel
from edgewright.runtime.scheduling.rhythm import Rhythm
from edgewright.runtime.scheduling.simulated import DialogCosts, SimulatedDialog, SimulatedPolicy, Stage
from edgewright.runtime.scheduling.work import Task


def simulated_task(dialog: DialogSpec, model: SimulatedModel, seed: int) -> Task:
    """Return the task of a cost model: of a policy where it has stages. Raises UsageError for costs that can't be."""
    if model.stages:
        stages = [Stage(phase, cost, count) for phase, cost, count in model.stages]  # type: ignore[arg-type]
        return SimulatedPolicy(
            name=dialog.name,
            stages=stages,
            rhythm=rhythm_of(dialog),
            host_ms=model.host_ms,
            jitter=model.jitter,
            seed=seed,
        )
    costs = DialogCosts(
        prefill_ms=model.prefill_ms,
        decode_ms=model.decode_ms,
        host_ms=model.host_ms,
        jitter=model.jitter,
        chunk=model.chunk,
        context=model.context,
    )
    return SimulatedDialog(
        name=dialog.name,
        costs=costs,
        prompt_tokens=dialog.input.prompt_tokens or 1,
        max_tokens=dialog.max_tokens or 1,
        rhythm=rhythm_of(dialog),
        reset=dialog.reset,
        seed=seed,
    )


def rhythm_of(dialog: DialogSpec) -> Rhythm:
    """Return when a dialog's queries are released and due; raises UsageError for what can't be."""
    return Rhythm(
        iterations=dialog.iterations,
        start_ms=dialog.start_ms,
        think_ms=dialog.think_ms,
        period_ms=dialog.period_ms,
        deadline_ms=dialog.deadline_ms,
    )
