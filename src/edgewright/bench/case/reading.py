"""Reads the cases of a file, whichever way they are written."""

from __future__ import annotations

from pathlib import Path

from edgewright.bench.case.files import SUFFIXES, read_case, read_registry
from edgewright.bench.case.spec import Case, RunnerSpec
from edgewright.bench.case.usecase import read_usecases
from edgewright.errors import UsageError


def read_cases(
    path: Path, *, models: Path | None = None, iterations: int | None = None, runner: RunnerSpec | None = None
) -> tuple[Case, ...]:
    """Return the cases of a file: the one of a case file (.yaml, .yml, .json), or one for each use-case line.

    `models` is a registry of models, which use-case lines need. `iterations` is how often dialogs are asked that don't
    say it themselves. `runner` takes the place of the file's. Raises CaseError with everything that is wrong with how
    it is written, UsageError for a file that can't be read; what the cases mean is for `check.problems`.
    """
    registry = None if models is None else read_registry(models, runner=runner)
    if path.suffix.lower() in SUFFIXES:
        return (read_case(path, registry, iterations=iterations, runner=runner),)
    if path.is_dir() or not path.exists():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UsageError(f"{path} {what}: give a case file ({', '.join(SUFFIXES)}), or a file of use-case lines.")
    if registry is None:
        raise UsageError(
            f"{path} has use-case lines, as every file that doesn't end in {', '.join(SUFFIXES)}; their roles are "
            "models of a registry: give it with --models."
        )
    return read_usecases(path, registry, iterations=iterations, runner=runner)
