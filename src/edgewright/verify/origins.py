"""Finds the checkpoint that a bundle was built from, by the digests in its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgewright.bundle.manifest import Manifest
from edgewright.checkpoint import Checkpoint, open_checkpoint
from edgewright.errors import BundleError, CheckpointError
from edgewright.files import quantized_home, sha256_of


def built_from(
    manifest: Manifest, checkpoint: Checkpoint, original: Checkpoint | None
) -> tuple[Checkpoint, Checkpoint | None]:
    """Return the checkpoint a bundle was built from and, for a quantized one, its original if that is at hand.

    Raises BundleError when the given one is neither.
    """
    odd = _foreign(manifest.source["files"], checkpoint)
    if not odd:
        return checkpoint, original
    origin = manifest.source.get("origin")
    if origin is None or _foreign(origin["files"], checkpoint):
        raise BundleError(
            f"The bundle was not built from this checkpoint ({', '.join(odd)} differ): give the one it was built from."
        )
    if (made := _kept(manifest)) is None:
        raise BundleError(
            f"The bundle was built from a quantized form of this checkpoint (recipe {manifest.recipe['name']}), which "
            "is not whole in the cache any more: give a folder that `edgewright quantize` made with that recipe, or "
            "run the same `edgewright deploy` again with --force, which makes it anew."
        )
    return made, checkpoint


def _kept(manifest: Manifest) -> Checkpoint | None:
    """Return the quantized checkpoint that a build kept, if it is there as it was."""
    folder = quantized_home() / Path(str(manifest.source.get("kept", ""))).name
    try:
        made = open_checkpoint(folder) if (folder / "config.json").is_file() else None
        return None if made is None or _foreign(manifest.source["files"], made) else made
    except (CheckpointError, OSError):
        return None


def _foreign(files: Mapping[str, Mapping[str, Any]], checkpoint: Checkpoint) -> list[str]:
    """Return the names of a checkpoint's files that are none of the recorded ones, by size and digest."""
    recorded = {entry["bytes"]: set[str]() for entry in files.values()}
    for entry in files.values():
        recorded[entry["bytes"]].add(entry["sha256"])
    return sorted(
        path.name
        for path in checkpoint.files
        if path.stat().st_size not in recorded or sha256_of(path) not in recorded[path.stat().st_size]
    )
