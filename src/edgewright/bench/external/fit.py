"""What of a case an external genie-t2t-run can do: the rest is refused by name, what it decides itself is noted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from edgewright.bench.case.problems import Problem
from edgewright.bench.case.spec import Case, DialogSpec, RunnerSpec, RunSpec, SchedulerSpec
from edgewright.bench.external.command import CONCURRENT, OWN, table_of
from edgewright.bench.external.prefix import Prefix
from edgewright.runtime.encoding import EmbeddingFile

#: Characters that no path of a device has on purpose, and that a log or a shell would take for something else.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SEPARATE = "run each dialog as a process of its own (runner process: dialog)"
#: Most iterations: each is a row of the records, and with `dialog` a process with a folder of its own.
_MOST = {"run": 100_000, "dialog": 10_000}
_DISCIPLINES = ("weighted", "priority", "free")
#: What is wrong, and with what: `runner`, `scheduler`, `dialogs.NAME`.
Found = Iterator[tuple[str, str]]


def problems(case: Case, runner: RunnerSpec) -> list[Problem]:
    """Return everything that keeps an external program from running a case; empty when it can.

    Raises UsageError when the runner itself can't be used.
    """
    prefix = Prefix(runner)
    look = not prefix.remote if runner.check_files is None else runner.check_files
    found = [("dialogs", "the case has no dialogs.")] if not case.dialogs else []
    ours = [flag for flag in runner.flags if flag in OWN or flag.startswith(CONCURRENT)]
    if ours:
        found.append(("runner", f"its flags have {', '.join(ours)}, which the case says: take them out."))
    for dialog in case.dialogs:
        found += [(f"dialogs.{dialog.name}", text) for text in _dialog(case, dialog, look)]
        if dialog.iterations > _MOST[runner.process]:
            most = f"at most {_MOST[runner.process]:,} iterations with runner process {runner.process}"
            found.append((f"dialogs.{dialog.name}", f"{most}: its {dialog.iterations:,} are more, repeat the run."))
    found += _together(case, runner) if runner.process == "run" else _apart(case)
    return [Problem(case.places.get(where, where), text) for where, text in dict.fromkeys(found)]


def notes(case: Case, runner: RunnerSpec) -> list[str]:
    """Return what a case says and the external program decides by itself, one sentence each."""
    found = []
    for dialog in case.dialogs:
        ours = [name for name, said in _without_effect(dialog) if said]
        if ours:
            found.append(f"{dialog.name}: {', '.join(ours)} had no effect, the Genie configuration decides.")
        if _requantizes(case, dialog) and dialog.requantize == "round":
            found.append(f"{dialog.name}: the program requantizes by cutting toward zero, not by rounding.")
    if runner.process == "run" and any(dialog.iterations > 1 for dialog in case.dialogs):
        found.append("Whether a dialog's context is emptied between iterations is the program's decision.")
    plain = SchedulerSpec()
    settings = [
        ("scheduler prefill_chunk", case.scheduler.prefill_chunk != plain.prefill_chunk),
        ("scheduler hold_ms", case.scheduler.hold_ms != plain.hold_ms),
        ("run seed", case.run.seed != RunSpec().seed),
        ("run threads", case.run.threads is not None),
    ]
    ours = [name for name, said in settings if said]
    if ours:
        found.append(f"{', '.join(ours)} had no effect: the program and its Genie configuration decide.")
    if runner.process == "dialog" and len(case.dialogs) > 1 and case.scheduler.discipline == "weighted":
        found.append("Nothing weighs processes of their own against each other: they ran freely.")
    return found


def _without_effect(dialog: DialogSpec) -> list[tuple[str, bool]]:
    return [
        ("max_tokens", dialog.max_tokens is not None),
        ("sampling", bool(dialog.sampling)),
        ("stop", bool(dialog.stop)),
        ("ignore_eos", dialog.ignore_eos),
        ("raw: false", not dialog.raw),
        ("deadline_ms", dialog.deadline_ms is not None),
    ]


def _dialog(case: Case, dialog: DialogSpec, look: bool) -> Iterator[str]:
    """Yield what is wrong with one dialog."""
    model = case.model_of(dialog)
    asked = dialog.input
    if asked.observation is not None or asked.prompt_tokens is not None or model.simulated is not None:
        yield "the program asks language models with text, tokens or embeddings, nothing else."
        return
    if model.genie is None:
        yield (
            f"its model {model.name} names no Genie dialog configuration, which is what the program loads: add "
            "`genie: FILE`."
        )
    inputs = [asked.prompt, asked.prompt_file, asked.tokens_file, asked.embedding]
    if sum(one is not None for one in inputs) != 1:
        yield "it has no input, or several: give one of prompt, prompt_file, tokens_file and embedding."
    if asked.prompt == "":
        yield "its prompt is empty, which the program's library refuses: give some text."
    if asked.prompt is not None and "\0" in asked.prompt:
        yield "its prompt has a NUL character, which no command line can hold: use prompt_file."
    table = model.table if asked.embedding is not None and isinstance(model.table, EmbeddingFile) else None
    if asked.embedding is not None and table is not None:
        yield from _encodings(asked.embedding, table)
    raw = [file.path for file in (asked.embedding, table) if file is not None]
    for path in raw:
        if "," in str(path):
            yield f"the program takes {str(path)!r} apart at its comma: rename the file."
    for known in (model.genie, asked.prompt_file, asked.tokens_file, *raw):
        if known is not None:
            yield from _path(known, look)


def _path(path: Path, look: bool) -> Iterator[str]:
    if _CONTROL.search(str(path)):
        yield f"the path {str(path)!r} has control characters, so it is not sent to a device."
    elif look and not path.is_file():
        yield f"{path} is not a file here: correct the path, or set the runner's check_files to false."


def _encodings(embedding: EmbeddingFile, table: EmbeddingFile) -> Iterator[str]:
    source, target = table.encoding.dtype, embedding.encoding.dtype
    if (source == "float32") != (target == "float32"):
        yield (
            f"its table is {source} and its embeddings are {target}: the program fails with such a pair after it has "
            "loaded the model. State the encoding of both files, or of neither."
        )
    elif source.startswith("u") != target.startswith("u"):
        yield f"its table is {source} and its embeddings are {target}: the signedness of the two must agree."


def _requantizes(case: Case, dialog: DialogSpec) -> bool:
    table, embedding = case.model_of(dialog).table, dialog.input.embedding
    return embedding is not None and isinstance(table, EmbeddingFile) and table.encoding != embedding.encoding


def _together(case: Case, runner: RunnerSpec) -> Found:
    """Yield what the concurrent program's flags can't say."""
    dialogs, discipline = case.dialogs, case.scheduler.discipline
    weights = [weight for dialog in dialogs for _, weight in dialog.timeline.changes]
    if discipline not in _DISCIPLINES:
        yield "scheduler", f"the program has no scheduling {discipline}: choose weighted, priority or free."
    if discipline == "weighted":
        if any(weight != int(weight) for weight in weights):
            yield "scheduler", "the program's weights are whole numbers: multiply all of them, only their ratio counts."
        if len({dialog.priority for dialog in dialogs}) > 1:
            yield "scheduler", "the program takes weights or priorities, not both: choose discipline priority, or one."
    elif len(set(weights)) > 1:
        yield "scheduler", f"weights mean nothing to discipline {discipline}: leave them out, or use weighted."
    if len({dialog.iterations for dialog in dialogs}) > 1:
        yield "dialogs", f"the program repeats all dialogs equally often: give one number, or {_SEPARATE}."
    for dialog in dialogs:
        where = f"dialogs.{dialog.name}"
        if dialog.start_ms:
            line = f'"0:0,1:{dialog.start_ms}"'
            yield where, f"start_ms can't be said to the program: write timeline {line}, or {_SEPARATE}."
        if dialog.think_ms or dialog.period_ms is not None:
            yield where, f"think_ms and period_ms can't be said to the program: {_SEPARATE}."
    yield from _other_inputs(case, runner)
    yield from _one_table(case)


def _other_inputs(case: Case, runner: RunnerSpec) -> Found:
    """Yield what the flags of second dialogs can't say: only that of embeddings is known."""
    for dialog in case.dialogs[1:]:
        where, asked = f"dialogs.{dialog.name}", dialog.input
        if asked.prompt is not None or asked.tokens_file is not None:
            yield where, f"only the first dialog takes a prompt or token ids in a flag: put it first, or {_SEPARATE}."
        elif asked.prompt_file is not None and runner.prompt_flag is None:
            yield (
                where,
                "by which flag a second dialog takes a prompt file isn't known: name it in the runner's prompt_flag, "
                f"put the dialog first, or {_SEPARATE}.",
            )


def _one_table(case: Case) -> Found:
    """Yield what the program's one table and one input encoding can't do."""
    inputs = [(dialog.input.embedding, case.model_of(dialog).table) for dialog in case.dialogs]
    fed = [(embedding, table) for embedding, table in inputs if embedding is not None]
    if len({table if isinstance(table, EmbeddingFile) else None for _, table in fed}) > 1:
        yield "dialogs", f"the program has one embedding table for all dialogs, and these have several: {_SEPARATE}."
    elif table_of(case) is not None and len({embedding.encoding for embedding, _ in fed}) > 1:
        yield (
            "dialogs",
            "the program keeps one input encoding for all dialogs, so the tokens of some would get wrong embeddings: "
            f"use one encoding, or {_SEPARATE}.",
        )


def _apart(case: Case) -> Found:
    """Yield what processes of their own can't do."""
    discipline = case.scheduler.discipline
    weights = {weight for dialog in case.dialogs for _, weight in dialog.timeline.changes}
    if discipline not in _DISCIPLINES:
        yield "scheduler", f"processes of their own can't be scheduled by {discipline}: choose priority or free."
    elif len(weights) > 1:
        yield "scheduler", "weights mean nothing to processes of their own: leave them out, or use process: run."
    for dialog in case.dialogs:
        if dialog.reset == "never" and dialog.iterations > 1:
            where = f"dialogs.{dialog.name}"
            yield where, "its iterations are processes of their own, which keep no context: leave out reset: never."
