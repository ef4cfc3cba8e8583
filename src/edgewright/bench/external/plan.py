"""Which processes a case becomes: its parts, and in each part chains of executions that run at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from edgewright.bench.case.spec import Case, RunnerSpec
from edgewright.bench.external.command import case_flags, dialog_flags, is_stock
from edgewright.bench.records.rows import RUN, SOLO, WARMUP

_UNPLAIN = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)


@dataclass(frozen=True)
class Execution:
    """A process: the dialogs that it runs, by number, the iterations that it asks each of them, from the first on.

    `name` is that of its folder.
    """

    name: str
    part: str
    repeat: int
    dialogs: tuple[int, ...]
    iteration: int = 0
    iterations: int = 1


@dataclass(frozen=True)
class ExecutionPart:
    """A part of the run: the chains start together, the executions of a chain one after the other."""

    part: str
    repeat: int
    chains: tuple[tuple[Execution, ...], ...]


def parts_of(case: Case, runner: RunnerSpec) -> Iterator[ExecutionPart]:
    """Yield the parts in their order: warm-ups, each dialog alone, the repeats.

    A warm-up asks each dialog as often as one process does; a dialog alone is asked once, by the stock flags.
    """
    for number in range(case.run.warmup):
        yield _part(case, runner, WARMUP, number)
    if case.run.solo:
        for number, dialog in enumerate(case.dialogs):
            alone = Execution(f"solo-d{number}", SOLO + dialog.name, 0, (number,))
            yield ExecutionPart(alone.part, 0, ((alone,),))
    for number in range(case.run.repeats):
        yield _part(case, runner, RUN, number)


def _part(case: Case, runner: RunnerSpec, part: str, repeat: int) -> ExecutionPart:
    name = f"{part}-{repeat}"
    if runner.process == "run":
        everybody = tuple(range(len(case.dialogs)))
        one = Execution(name, part, repeat, everybody, iterations=case.dialogs[0].iterations)
        return ExecutionPart(part, repeat, ((one,),))
    chains = []
    for number, dialog in enumerate(case.dialogs):
        times = dialog.iterations if part == RUN else 1
        chains.append(tuple(Execution(f"{name}-d{number}-i{k}", part, repeat, (number,), k) for k in range(times)))
    return ExecutionPart(part, repeat, tuple(chains))


def flags_of(case: Case, runner: RunnerSpec, execution: Execution, profile: str) -> list[str]:
    """Return the program's flags of an execution that is to write `profile`."""
    if runner.process == "run" and not execution.part.startswith(SOLO) and not is_stock(case):
        return case_flags(case, runner, profile)
    return dialog_flags(case, case.dialogs[execution.dialogs[0]], runner, profile)


def profile_name(case: str, run: str, execution: Execution) -> str:
    """Return the name of an execution's profile on a device: plain letters, and no other run's."""
    return _UNPLAIN.sub("_", f"edgewright-{case}-{run}-{execution.name}.json")
