"""Where a run's files are: `OUT/<case>/<run>/`, its members, and who may replace what."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgewright.errors import OutputError, UsageError
from edgewright.files import os_errors

CASE, ENVIRONMENT = "case.resolved.json", "env.json"
STEPS, JOBS, EVENTS = "steps.jsonl", "jobs.jsonl", "events.jsonl"
SUMMARY, PROFILE, TRACE, TIMING = "summary.json", "profile.json", "trace.json", "timing.txt"
DIALOGS, FIGURES, PAGE = "dialogs", "figures", "page.html"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*", re.ASCII)
_LONGEST = 100


def new_run_folder(out: Path, case: str, run_id: str | None = None, *, overwrite: bool = False) -> Path:
    """Make the folder `out/case/run` and return it; the default of `run_id` is the date and time.

    `overwrite` replaces a folder that is a run folder, nothing else. Raises UsageError for names that can't be a
    folder's, OutputError where it exists or can't be written.
    """
    place = out / safe_name(case, "case")
    chosen = time.strftime("%Y%m%d-%H%M%S") if run_id is None else safe_name(run_id, "run")
    folder = place / chosen
    with os_errors(str(folder)):
        place.mkdir(parents=True, exist_ok=True)
        count = 1
        while run_id is None and _is_taken(folder):
            count += 1
            folder = place / f"{chosen}-{count}"
        if _is_taken(folder):
            check_run_folder(out, case, run_id, overwrite=overwrite)
            _remove(folder)
        folder.mkdir()
        (folder / DIALOGS).mkdir()
    return folder


def check_run_folder(out: Path, case: str, run_id: str | None, *, overwrite: bool) -> None:
    """Raise what `new_run_folder` would for names that can't be, or that are taken; makes and removes nothing."""
    place = out / safe_name(case, "case")
    if run_id is None:
        return
    folder = place / safe_name(run_id, "run")
    if not _is_taken(folder):
        return
    if not overwrite:
        raise OutputError(f"{folder} exists already: choose another --run-id, or pass --overwrite to replace that run.")
    if folder.is_symlink() or not is_run_folder(folder):
        raise OutputError(f"{folder} is no run folder, so it is not replaced: remove it, or choose another --run-id.")


def safe_name(name: str, what: str) -> str:
    """Return a name that can be a file's; raises UsageError for any other."""
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise UsageError(
            f"The {what} name {name!r} can't be a folder's or a file's: use up to {_LONGEST} letters, digits, '.', '_' "
            "and '-', and begin with a letter, a digit or '_'."
        )
    return name


def is_run_folder(folder: Path) -> bool:
    """Whether a run was recorded in a folder."""
    return (folder / CASE).is_file()


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write JSON so that the file is there as a whole or not at all; raises OutputError."""
    write_whole(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that it is there as a whole or not at all; raises OutputError."""
    work = path.with_name(f".{path.name}.partial-{os.getpid()}")
    with os_errors(path.name):
        try:
            work.write_text(text, encoding="utf-8")
            work.replace(path)
        finally:
            work.unlink(missing_ok=True)


def _is_taken(folder: Path) -> bool:
    return folder.exists() or folder.is_symlink()


def _remove(folder: Path) -> None:
    """Remove a run folder that is to be overwritten."""
    old = folder.with_name(f".{folder.name}.old-{os.getpid()}")
    folder.rename(old)
    shutil.rmtree(old)
