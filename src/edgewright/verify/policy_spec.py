"""Level `spec`: spec, schedule, statistics and tokenizer of a bundle against its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgewright.bundle.manifest import Manifest
from edgewright.checkpoint.policy import PolicyCheckpoint
from edgewright.errors import TokenizerError
from edgewright.files import inside, sha256_of
from edgewright.verify.policy_report import SpecReport

_SHOWN_CHARACTERS = 60


def check_spec(
    root: Path,
    manifest: Manifest,
    checkpoint: PolicyCheckpoint,
    schedule: Mapping[str, Any] | None,
    cache: Mapping[str, Any] | None = None,
) -> SpecReport:
    """Compare what a bundle says of its policy, and the files beside the graphs, with the checkpoint.

    `schedule` and `cache`, the record of a quantized prefix KV, are those of the graphs that were built anew.
    """
    wanted, found = checkpoint.spec.to_json(), manifest.model["policy"]
    faults = [
        f"{name} is {_short(found.get(name))} where the checkpoint says {_short(value)}"
        for name, value in wanted.items()
        if found.get(name) != value
    ]
    told = manifest.model.get("schedule")
    if told != (None if schedule is None else dict(schedule)):
        faults.append("the schedule of the denoise stage is not the one that the checkpoint's steps give")
    if manifest.recipe.get("kv") != (None if cache is None else dict(cache)):
        faults.append("the format or the scales of the prefix KV are not those that the checkpoint was calibrated for")
    unchecked: tuple[str, ...] = ()
    sidecars: Mapping[str, bytes] = {}
    try:
        sidecars = checkpoint.sidecars()
    except TokenizerError:
        unchecked = ("the tokenizer is not checked here: it isn't in the checkpoint's folder, give --tokenizer",)
    for name, data in sidecars.items():
        path = inside(root, f"sidecars/{name}")
        if not path.is_file() or path.read_bytes() != data:
            faults.append(f"the bundle's {name} is not the one that the checkpoint gives")
    return SpecReport(faults, len(wanted) + 2 + len(sidecars), unchecked)


def foreign_files(files: Mapping[str, Mapping[str, Any]], checkpoint: PolicyCheckpoint) -> list[str]:
    """Return the names of a checkpoint's files that are none of the recorded ones, by size and digest."""
    recorded = {(entry["bytes"], entry["sha256"]) for entry in files.values()}
    sizes = {size for size, _ in recorded}
    return sorted(
        path.name
        for path in checkpoint.files
        if path.stat().st_size not in sizes or (path.stat().st_size, sha256_of(path)) not in recorded
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."
