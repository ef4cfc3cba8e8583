"""What a build depends on, as one digest; unchanged inputs need no second build.

Light on purpose: an up-to-date answer must not wait for heavy imports.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgewright._version import __version__
from edgewright.bundle import MANIFEST, Manifest, read_manifest, this_machine
from edgewright.checkpoint import Checkpoint
from edgewright.checkpoint.folder import ASSETS
from edgewright.errors import BundleError, OutputError
from edgewright.files import canonical_json, inside, sha256_of
from edgewright.quant.recipe import Recipe


def source_record(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return name, kind and files (name, size, SHA-256) of a checkpoint; digests are remembered by inode and time."""
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    paths = list(checkpoint.files)
    if checkpoint.kind == "huggingface":
        paths += [folder / name for name in ASSETS if (folder / name).is_file()]
    files = {}
    with _DigestMemory() as memory:
        for path in dict.fromkeys(paths):
            files[path.name] = {"bytes": path.stat().st_size, "sha256": memory.digest(path)}
    return {"name": checkpoint.path.name, "kind": checkpoint.kind, "files": files}


def build_key(source: Mapping[str, Any], recipe: Recipe, **options: Any) -> str:
    """Return the digest of a build: source, recipe, options, this program's and the engine's versions, this machine."""
    parts = {
        "source": source["files"],
        "recipe": {**asdict(recipe), "rules": [[rule.pattern, asdict(rule.format)] for rule in recipe.rules]},
        "options": options,
        "edgewright": __version__,
        "machine": this_machine().to_json(),
    }
    return hashlib.sha256(canonical_json(parts)).hexdigest()


def up_to_date(output: Path, key: str, *, verified: bool = False) -> Manifest | None:
    """Return the manifest of `output` when it is a complete bundle of this very build, else None.

    With `verified` its verdict must be a pass. Raises OutputError when something else than a bundle stands there, so
    that nobody waits for a build that has no place.
    """
    if output.exists() and not (output / MANIFEST).is_file() and not (output.is_dir() and not any(output.iterdir())):
        raise OutputError(f"{output.name} exists and is no bundle: remove it, or choose another name.")
    try:
        manifest = read_manifest(output)
        good = manifest.key == key and (not verified or manifest.verdict["status"] == "passed")
        same = good and all(
            inside(output, name).stat().st_size == entry["bytes"] for name, entry in manifest.files.items()
        )
    except (BundleError, OSError, KeyError, TypeError):
        return None
    return manifest if same else None


class _DigestMemory:
    """Digests of files by device, inode, size and modification time, kept in the user's cache folder."""

    def __init__(self) -> None:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")  # noqa: PTH111, PTH118
        self._path = Path(base) / "edgewright" / "digests.json"
        self._known: dict[str, str] = {}
        self._changed = False

    def __enter__(self) -> _DigestMemory:
        try:
            data = json.loads(self._path.read_text(encoding="ascii"))
            self._known = {str(k): str(v) for k, v in data.items()}
        except (OSError, ValueError, AttributeError):
            self._known = {}
        return self

    def digest(self, path: Path) -> str:
        """Return the file's SHA-256."""
        stat = path.stat()
        name = f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}"
        if name not in self._known:
            self._known[name] = sha256_of(path)
            self._changed = True
        return self._known[name]

    def __exit__(self, *_: object) -> None:
        if not self._changed:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            scratch = self._path.with_name(f"digests-{os.getpid()}.tmp")
            scratch.write_text(json.dumps(dict(list(self._known.items())[-1000:])), encoding="ascii")
            scratch.replace(self._path)
        except OSError:
            pass  # only a memory: a read-only home costs the time of hashing again
