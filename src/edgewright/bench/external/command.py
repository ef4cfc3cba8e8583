"""The exact flags of genie-t2t-run: the stock program's for one dialog, the concurrent program's for a whole case."""

from __future__ import annotations

from edgewright.bench.case.spec import Case, DialogSpec, RunnerSpec
from edgewright.runtime.encoding import EmbeddingFile
from edgewright.runtime.scheduling.timeline import written

#: Flags that a case says already, beside those that begin with CONCURRENT.
OWN = frozenset(
    {
        "-c", "--config", "-p", "--prompt", "--prompt_file", "-e", "--embedding_file", "-t", "--embedding_table",
        "-tok", "--tokens_file", "--profile", "--priority", "--iterations",
    }
)  # fmt: skip
CONCURRENT = "--concurrent"
#: The stock program sets a priority only where it is another than this.
NORMAL = 100


def dialog_flags(case: Case, dialog: DialogSpec, runner: RunnerSpec, profile: str) -> list[str]:
    """Return the stock flags that ask one dialog once."""
    model = case.model_of(dialog)
    flags = [*runner.flags, "-c", str(model.genie), *_first_input(dialog)]
    if dialog.input.embedding is not None and isinstance(model.table, EmbeddingFile):
        flags += ["-t", spelled(model.table)]
    if dialog.priority != NORMAL:
        flags += ["--priority", str(dialog.priority)]
    return [*flags, "--profile", profile]


def case_flags(case: Case, runner: RunnerSpec, profile: str) -> list[str]:
    """Return the concurrent flags that run a whole case in one process; `fit.problems` must find nothing in it."""
    first, *others = case.dialogs
    flags = [CONCURRENT, *runner.flags, "--iterations", str(first.iterations), "--profile", profile]
    if case.scheduler.discipline != "priority" and first.priority != NORMAL:
        flags += ["--priority", str(first.priority)]
    flags += ["-c", str(case.model_of(first).genie), *_first_input(first)]
    table = table_of(case)
    if table is not None:
        flags += ["-t", spelled(table)]
    for dialog in others:
        flags += ["--concurrent-config", str(case.model_of(dialog).genie), *_other_input(dialog, runner)]
    return [*flags, *_sharing(case)]


def is_stock(case: Case) -> bool:
    """Whether the stock program, which knows no concurrent flags, can run a whole case in one process."""
    return (
        len(case.dialogs) == 1 and case.dialogs[0].iterations == 1 and case.dialogs[0].timeline.next_change(0) is None
    )


def table_of(case: Case) -> EmbeddingFile | None:
    """Return the one table that the dialogs fed with embeddings share, None where they have none."""
    models = [case.model_of(dialog) for dialog in case.dialogs if dialog.input.embedding is not None]
    return next((model.table for model in models if isinstance(model.table, EmbeddingFile)), None)


def spelled(file: EmbeddingFile) -> str:
    """Return `PATH`, or `PATH,TYPE,SCALE,OFFSET` where the encoding was stated."""
    encoding = file.encoding
    if encoding.dtype == "float32":
        return str(file.path)
    return f"{file.path},{encoding.dtype},{encoding.scale!r},{encoding.offset}"


def _first_input(dialog: DialogSpec) -> list[str]:
    asked = dialog.input
    if asked.embedding is not None:
        return ["-e", spelled(asked.embedding)]
    if asked.prompt is not None:
        return ["-p", asked.prompt]
    if asked.tokens_file is not None:
        return ["-tok", str(asked.tokens_file)]
    return ["--prompt_file", str(asked.prompt_file)]


def _other_input(dialog: DialogSpec, runner: RunnerSpec) -> list[str]:
    if dialog.input.embedding is not None:
        return ["--concurrent-embed", spelled(dialog.input.embedding)]
    return [str(runner.prompt_flag), str(dialog.input.prompt_file)]


def _sharing(case: Case) -> list[str]:
    """Return the flags of weights or of priorities."""
    if case.scheduler.discipline == "free":
        return []
    if case.scheduler.discipline == "priority":
        return ["--concurrent-priorities", ",".join(str(dialog.priority) for dialog in case.dialogs)]
    timelines = [dialog.timeline for dialog in case.dialogs]
    # A flat weight counts only where the dialog has no timeline, so the list always names every dialog.
    flags = ["--concurrent-stride", ",".join(written(timeline.at(0)) for timeline in timelines)]
    for index, timeline in enumerate(timelines):
        if timeline.next_change(0) is not None:
            flags += [f"--concurrent-stride{index}", str(timeline)]
    return flags
