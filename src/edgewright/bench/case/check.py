"""What keeps a case from being run, all of it, before any model is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edgewright.bench.case.check_inputs import dialog_problems
from edgewright.bench.case.facts import Facts, facts_of
from edgewright.bench.case.fields import DIALOG, RUN, SCHEDULER, Read, is_name, name_rule
from edgewright.bench.case.problems import CaseError, Problem, Problems
from edgewright.bench.case.spec import Case, DialogSpec, ModelSpec
from edgewright.nodes import Node
from edgewright.runtime.scheduling.timeline import NS_PER_MS, segments

#: Disciplines that look at weights only to see who is paused.
_EQUAL = ("fifo", "round-robin", "free")


def problems(case: Case, *, need_files: bool = True) -> list[Problem]:
    """Return everything that is wrong with a case, in the order of its parts; empty when it can be run.

    Bundles, tables, inputs and prompts are looked at where `need_files`; without, a case can be judged on a machine
    that doesn't have them. With an external runner its own rules hold instead of those of bundles.
    """
    found = Problems()
    _check_names(case, found)
    if not case.dialogs:
        found.add(_place(case, "dialogs", "case"), "there are no dialogs: give at least one.")
    known = {model.name: model for model in case.models}
    dialogs = [dialog for dialog in case.dialogs if dialog.model in known]
    for dialog in case.dialogs:
        if dialog.model not in known:
            found.add(_at(case, dialog), f"there is no model {dialog.model!r}: name one of {', '.join(known)}.")
    _check_numbers(case, found)
    _check_sharing(case, found)
    if case.runner is not None:
        _check_runner(case, found)
        return found.found
    used = [known[dialog.model] for dialog in dialogs]
    facts = _check_models(case, used, need_files, found)
    for dialog in dialogs:
        for text in dialog_problems(dialog, known[dialog.model], facts.get(dialog.model), need_files):
            found.add(_at(case, dialog), text)
    _check_mixture(case, used, found)
    return found.found


def require(case: Case, *, need_files: bool = True) -> None:
    """Raise CaseError when there is anything wrong with a case."""
    found = problems(case, need_files=need_files)
    if found:
        raise CaseError(found)


def _at(case: Case, dialog: DialogSpec) -> str:
    key = f"dialogs.{dialog.name}"
    if key in case.places or "case" not in case.places:
        return case.places.get(key, key)
    return f"{case.places['case']} ({dialog.name})"


def _place(case: Case, *keys: str) -> str:
    """Return where the first of some parts that stands anywhere does; the first one's name where none does."""
    return next((case.places[key] for key in keys if key in case.places), keys[0])


def _check_names(case: Case, found: Problems) -> None:
    if not is_name(case.name):
        found.add(_place(case, "name", "case"), name_rule("the case's name", case.name))
    seen: dict[str, str] = {}
    for dialog in case.dialogs:
        if not is_name(dialog.name):
            found.add(_at(case, dialog), name_rule("the dialog's name", dialog.name))
        key = dialog.name.lower()
        if key in seen:
            found.add(
                _at(case, dialog),
                f"two dialogs are called {dialog.name}, and both would write {seen[key]}.log: give each its own name.",
            )
        seen.setdefault(key, dialog.name)
    names = [model.name for model in case.models]
    for name in sorted({name for name in names if names.count(name) > 1}):
        found.add(_place(case, f"models.{name}", "case"), f"the model {name} stands twice: keep one.")


def _check_numbers(case: Case, found: Problems) -> None:
    """Check that numbers are as a case file may have them, wherever they come from: a run's folder has such a file."""
    parts: list[tuple[Any, Mapping[str, Read], str]] = [
        *((dialog, DIALOG, _at(case, dialog)) for dialog in case.dialogs),
        (case.scheduler, SCHEDULER, _place(case, "scheduler", "case")),
        (case.run, RUN, _place(case, "run", "case")),
    ]
    for part, reads, where in parts:
        for key, read in reads.items():
            value = getattr(part, key, None)
            if isinstance(value, int | float):
                with found.noted(where):
                    read(Node(value, where), key, Path(), found)


def _check_sharing(case: Case, found: Problems) -> None:
    where = _place(case, "scheduler", "dialogs", "case")
    discipline = case.scheduler.discipline
    for text in _pauses(case):
        found.add(_place(case, "dialogs", "case"), text)
    priorities = {dialog.priority for dialog in case.dialogs}
    if len(priorities) > 1 and discipline != "priority":
        found.add(
            where, f"priorities mean nothing to the discipline {discipline}: use priority, or give all the same one."
        )
    if discipline in _EQUAL:
        parts = segments([dialog.timeline for dialog in case.dialogs])
        if any(len({weight for weight in part.weights if weight}) > 1 for part in parts):
            found.add(where, f"weights mean nothing to the discipline {discipline}: use weighted or fair-time.")
    if discipline == "deadline" and not any(dialog.deadline_ms for dialog in case.dialogs):
        found.add(where, "the discipline deadline has no dialog with a deadline_ms: give one, or use weighted.")


def _pauses(case: Case) -> Iterator[str]:
    """Yield what a run would wait for without an end."""
    if not case.dialogs:
        return
    parts = segments([dialog.timeline for dialog in case.dialogs])
    last = parts[-1]
    if not any(last.weights):
        since = f"from {last.start_ns // NS_PER_MS} ms on " if len(parts) > 1 else ""
        yield (
            f"{since}all weights are 0 and none changes any more, so nothing would run: let a later weight be above 0."
        )
    for dialog in case.dialogs:
        if any(last.weights) and not any(weight for _, weight in dialog.timeline.changes):
            yield f"the weight of {dialog.name} is always 0, so it never runs: give it one above 0, or leave it out."


def _check_models(case: Case, used: list[ModelSpec], need_files: bool, found: Problems) -> dict[str, Facts]:
    facts: dict[str, Facts] = {}
    for model in dict.fromkeys(used):
        where = _place(case, f"models.{model.name}", "case")
        if model.bundle is not None and model.simulated is not None:
            found.add(where, "the model has both a bundle and simulated costs: keep one.")
        elif model.bundle is None and model.simulated is None and model.genie is not None:
            gone = need_files and not model.genie.is_file()
            found.add(
                where,
                f"the Genie configuration {model.genie}{' is no file, and' if gone else ''} names no bundle that runs "
                "here: give the model its bundle (--models for a command line), put the configuration beside a "
                "bundle's manifest.json, or give a runner.",
            )
            if gone:
                continue
        if need_files or model.simulated is not None or (model.bundle is None and model.genie is None):
            with found.noted(where):
                facts[model.name] = facts_of(model)
    return facts


def _check_mixture(case: Case, used: list[ModelSpec], found: Problems) -> None:
    simulated = {model.name for model in used if model.simulated is not None}
    if simulated and any(model.name not in simulated for model in used):
        found.add(
            _place(case, "models", "case"),
            f"{', '.join(sorted(simulated))} runs in simulated time and other models don't: simulate all or none.",
        )


def _check_runner(case: Case, found: Problems) -> None:
    from edgewright.bench.external.fit import problems as misfits

    assert case.runner is not None
    with found.noted(_place(case, "runner", "case")):
        for problem in misfits(case, case.runner):
            found.add(problem.where, problem.text)
