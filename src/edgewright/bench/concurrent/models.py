"""Loads the models of a case: each bundle once, however many dialogs share it, the smallest first."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgewright.bench.case.spec import Case, ModelSpec
from edgewright.bundle import read_manifest
from edgewright.errors import EdgewrightError, first_line
from edgewright.progress import Progress
from edgewright.runtime.llm import LLM
from edgewright.runtime.policy import Policy

Loaded = LLM | Policy
#: Is told of each loading: fields of the event.
Tell = Callable[..., None]


@dataclass(frozen=True)
class Models:
    """What was loaded by the model's name, and the errors of those that were not."""

    loaded: Mapping[str, Loaded]
    errors: Mapping[str, str]


def load_models(case: Case, progress: Progress, tell: Tell, clock: Callable[[], int]) -> Models:
    """Load the bundles that the case's dialogs use, one after the other.

    `tell` is given an event for each: model names, dialogs, when and how long in milliseconds of `clock` (nanoseconds),
    bytes, and the error where it failed; with on_error "fail-fast" the first failure is the last loading.
    """
    used = {dialog.model for dialog in case.dialogs}
    by_bundle: dict[Path, list[ModelSpec]] = {}
    for model in case.models:
        if model.bundle is not None and model.name in used:
            by_bundle.setdefault(model.bundle.resolve(), []).append(model)
    loaded: dict[str, Loaded] = {}
    errors: dict[str, str] = {}
    for bundle in sorted(by_bundle, key=_bundle_bytes):
        names = [model.name for model in by_bundle[bundle]]
        begin = clock()
        result, error = _load(bundle, names[0], case.run.threads, progress)
        tell(
            models=names,
            dialogs=[dialog.name for dialog in case.dialogs if dialog.model in names],
            start_ms=round(begin / 1e6, 3),
            ms=round((clock() - begin) / 1e6, 3),
            bytes=_bundle_bytes(bundle),
            error=error,
        )
        if result is not None:
            loaded |= dict.fromkeys(names, result)
        elif error is not None:
            errors |= dict.fromkeys(names, error)
            if case.run.on_error == "fail-fast":
                break
    return Models(loaded, errors)


def _load(bundle: Path, name: str, threads: int | None, progress: Progress) -> tuple[Loaded | None, str | None]:
    """Return a model, or the sentence that says why it can't be loaded."""
    with progress.step(f"load {name}"):
        try:
            if "policy" in read_manifest(bundle).model:
                return Policy.load(bundle, threads, share_cores=True), None
            return LLM.load(bundle, threads=threads, share_cores=True), None
        except EdgewrightError as error:
            return None, str(error)
        except (MemoryError, OSError) as error:
            return None, f"The model {name} can't be loaded ({type(error).__name__}: {first_line(error)})."


def _bundle_bytes(bundle: Path) -> int:
    """Return the size of a bundle's files, 0 where it can't be opened: that is said when it is loaded."""
    try:
        files: Mapping[str, Any] = read_manifest(bundle).files
        return sum(int(entry["bytes"]) for entry in files.values())
    except (EdgewrightError, OSError, KeyError, TypeError, ValueError):
        return 0


def elapsed() -> Callable[[], int]:
    """Return a clock of nanoseconds since now."""
    begin = time.perf_counter_ns()
    return lambda: time.perf_counter_ns() - begin
