"""What a policy's bundle is compared with, from what a path holds: a golden, or the checkpoint it was made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgewright.bundle import MANIFEST, read_manifest
from edgewright.bundle.manifest import Manifest
from edgewright.checkpoint.policy import PolicyCheckpoint, PolicyOptions, open_policy
from edgewright.errors import BundleError, CheckpointError, ConfigError, TokenizerError, UsageError
from edgewright.files import quantized_home
from edgewright.progress import SILENT, Progress
from edgewright.verify.policy import verify_policy
from edgewright.verify.policy_golden import compare_policy_golden, is_policy_golden
from edgewright.verify.policy_manifest import checked, options_of
from edgewright.verify.policy_spec import foreign_files
from edgewright.verify.report import Report


def verify_policy_against(
    folder: str | Path,
    against: str | Path,
    *,
    statistics: str | Path | None = None,
    tokenizer: Path | None = None,
    observations: Sequence[Mapping[str, Any]] | None = None,
    memory_bytes: int | None = None,
    threads: int | None = None,
    progress: Progress = SILENT,
) -> Report:
    """Verify a policy's bundle against a checkpoint or a golden; see `verify_policy`.

    What the checkpoint doesn't say is taken from the manifest, which has the build's options but no files: `statistics`
    and `tokenizer` are those that were given to the build. Raises the package's errors when the two don't belong
    together.
    """
    root, path = Path(folder), Path(against)
    manifest = read_manifest(root)
    if (path / MANIFEST).is_file():
        raise UsageError(
            f"{path.name} is a bundle: two policies are compared on a dataset, with `edgewright eval {root.name} "
            f"{path.name} --dataset FOLDER`."
        )
    if is_policy_golden(path):
        level = compare_policy_golden(root, path, threads=threads, progress=progress)
        return Report({"golden": level}, None, {"kind": "golden", "name": path.name})
    options = options_of(checked(manifest))
    named = replace(options, statistics=statistics or options.statistics, tokenizer=tokenizer)
    given = open_policy(path, named)
    checkpoint, original = _built_from(manifest, given)
    report = verify_policy(
        root,
        checkpoint,
        original=original,
        observations=observations,
        memory_bytes=memory_bytes,
        threads=threads,
        progress=progress,
    )
    return Report(report.levels, None, {"kind": "checkpoint", "name": path.name})


def _built_from(manifest: Manifest, given: PolicyCheckpoint) -> tuple[PolicyCheckpoint, PolicyCheckpoint | None]:
    """Return the checkpoint a bundle was built from and, where that is a quantized form of the given one, this one."""
    origin = manifest.source.get("origin")
    if origin is None or not foreign_files(manifest.source["files"], given) or foreign_files(origin["files"], given):
        return given, None  # whoever verifies refuses one that it wasn't built from
    folder = quantized_home() / Path(str(manifest.source.get("kept", ""))).name
    try:
        made = open_policy(folder, PolicyOptions(limits=given.spec.limits))
        if not foreign_files(manifest.source["files"], made):
            return made, given
    except (CheckpointError, ConfigError, TokenizerError, OSError):
        pass
    raise BundleError(
        f"The bundle was built from a quantized form of this checkpoint (recipe {manifest.recipe['name']}), which is "
        "not whole in the cache any more: give a folder that `edgewright quantize` made with that recipe, or run the "
        "same `edgewright deploy` again with --force, which makes it anew."
    )
