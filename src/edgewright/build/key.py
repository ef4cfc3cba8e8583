"""What a build depends on, as one digest; unchanged inputs need no second build.

Light on purpose: an up-to-date answer must not wait for heavy imports.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgewright._version import __version__
from edgewright.bundle import MANIFEST, Manifest, read_manifest, this_machine
from edgewright.checkpoint import Checkpoint
from edgewright.checkpoint.folder import ASSETS
from edgewright.checkpoint.policy import PolicyCheckpoint
from edgewright.errors import BundleError, CalibrationDataError, ConfigError, OutputError, UsageError
from edgewright.files import cache_home, canonical_json, inside, sha256_of
from edgewright.quant.recipe import Recipe
from edgewright.quant.recipe_file import load_recipe

#: The stages of each kind of model; a recipe may speak of others only in error.
STAGES = ("llm",)
POLICY_STAGES = ("vision", "prefix", "denoise")
#: The verdicts that a verified build is kept with; the second one is of a model that is too large to check all of here.
VERIFIED = ("passed", "partly checked")


def stage_recipe(recipe: Recipe) -> Recipe:
    """Return what a recipe says of a language model's one stage, without its section `stages`; raises RecipeError."""
    return replace(recipe.for_stage("llm", STAGES), stages={})


def policy_recipe(recipe: Recipe) -> Recipe:
    """Return a recipe for a policy, which keeps its section `stages`; raises RecipeError on a stage there isn't."""
    recipe.for_stage(POLICY_STAGES[0], POLICY_STAGES)
    return recipe


def checked_recipe(recipe: str | Recipe, *, allow_nonfinite: bool, requantize: bool, policy: bool = False) -> Recipe:
    """Return what a recipe says of the stages of a language model or a policy.

    Raises UsageError on options that it makes meaningless.
    """
    loaded = load_recipe(recipe) if isinstance(recipe, str) else recipe
    parsed = policy_recipe(loaded) if policy else stage_recipe(loaded)
    if parsed.needs_quantizer and allow_nonfinite:
        raise UsageError(
            f"The recipe {parsed.name} calibrates or searches, which weights that are not finite make impossible: "
            "leave out --allow-nonfinite, or take a recipe that only rounds, such as float32."
        )
    if parsed.needs_quantizer and requantize:
        raise UsageError(
            f"The recipe {parsed.name} calibrates or searches, which takes the original checkpoint, so that "
            "--requantize has no meaning: leave it out, or take a recipe that only rounds, such as int8."
        )
    return parsed


def source_record(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return name, kind and files (name, size, SHA-256) of a checkpoint; digests are remembered by inode and time."""
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    paths = list(checkpoint.files)
    if checkpoint.kind == "huggingface":
        paths += [folder / name for name in ASSETS if (folder / name).is_file()]
    return {
        "name": checkpoint.path.name,
        "kind": checkpoint.kind,
        "files": _digested({path.name: path for path in dict.fromkeys(paths)}),
    }


def policy_record(checkpoint: PolicyCheckpoint) -> dict[str, Any]:
    """Return the same of a policy.

    Its files have their path in the folder, those that an option names elsewhere are `statistics:NAME` and
    `tokenizer:NAME`. Raises ConfigError where two have one name.
    """
    options = {path: name for name, path in checkpoint.description.given.items()}
    names: dict[str, Path] = {}
    for path in dict.fromkeys(checkpoint.files):
        name = _name_in(checkpoint.path, path) or f"{options.get(path, 'other')}:{path.name}"
        if names.setdefault(name, path).resolve() != path.resolve():
            raise ConfigError(f"{path} and {names[name]} would both be recorded as {name}; rename one of them.")
    return {"name": checkpoint.path.resolve().name, "kind": checkpoint.spec.convention, "files": _digested(names)}


def _name_in(folder: Path, path: Path) -> str | None:
    """Return a file's path in a folder, None if it is elsewhere; links of a download cache count as the files."""
    for outer, inner in ((folder, path), (folder.resolve(), path.resolve())):
        if inner.is_relative_to(outer) and ".." not in (name := inner.relative_to(outer)).parts:
            return name.as_posix()
    return None


def _digested(paths: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    with DigestMemory() as memory:
        return {name: {"bytes": path.stat().st_size, "sha256": memory.digest(path)} for name, path in paths.items()}


def build_key(source: Mapping[str, Any], recipe: Recipe, **options: Any) -> str:
    """Return the digest of a build: source, recipe with its data, options, this program's and the engine's versions,
    this machine.

    The recipe is that of the stages, see `stage_recipe` and `policy_recipe`.
    """
    parts = {
        "source": source["files"],
        "recipe": recipe.to_json(),
        "data": data_digests(recipe),
        "options": options,
        "edgewright": __version__,
        "machine": this_machine().to_json(),
    }
    return hashlib.sha256(canonical_json(parts)).hexdigest()


def data_digests(recipe: Recipe) -> list[list[str]]:
    """Return names and SHA-256 of the files a recipe calibrates on; none for the text that ships, or without data.

    Raises CalibrationDataError when one can't be read.
    """
    if not recipe.needs_data or recipe.data.source == "english":
        return []
    path = Path(recipe.data.source)
    if not path.is_dir():
        files = [path]
    else:
        found = ((file.relative_to(path), file) for file in path.rglob("*"))
        files = sorted(file for name, file in found if not any(part.startswith(".") for part in name.parts))
    try:
        with DigestMemory() as memory:
            return [[str(file), memory.digest(file)] for file in files if file.is_file()]
    except OSError as error:
        raise CalibrationDataError(
            f"{error.filename or path} can't be read as calibration data ({error.strerror or error}): give files you "
            "may read."
        ) from None


def up_to_date(output: Path, key: str, *, verified: bool = False) -> Manifest | None:
    """Return the manifest of `output` when it is a complete bundle of this very build, else None.

    With `verified` its verdict must be one that a verified build is kept with. Raises OutputError when something else
    than a bundle stands there, so that nobody waits for a build that has no place.
    """
    if output.exists() and not (output / MANIFEST).is_file() and not (output.is_dir() and not any(output.iterdir())):
        raise OutputError(f"{output.name} exists and is no bundle: remove it, or choose another name.")
    try:
        manifest = read_manifest(output)
        good = manifest.key == key and (not verified or manifest.verdict["status"] in VERIFIED)
        same = good and all(
            inside(output, name).stat().st_size == entry["bytes"] for name, entry in manifest.files.items()
        )
    except (BundleError, OSError, KeyError, TypeError):
        return None
    return manifest if same else None


class DigestMemory:
    """Digests of files by device, inode, size and modification time, kept in the user's cache folder."""

    def __init__(self) -> None:
        self._path = cache_home() / "digests.json"
        self._known: dict[str, str] = {}
        self._changed = False

    def __enter__(self) -> DigestMemory:
        try:
            data = json.loads(self._path.read_text(encoding="ascii"))
            self._known = {str(k): str(v) for k, v in data.items()}
        except (OSError, ValueError, AttributeError):
            self._known = {}
        return self

    def digest(self, path: Path) -> str:
        """Return the file's SHA-256."""
        name = _identity(path)
        if name not in self._known:
            self._known[name] = sha256_of(path)
            self._changed = True
        return self._known[name]

    def remember(self, path: Path, digest: str) -> None:
        """Take a file's digest as known, whatever its times are now."""
        self._known[_identity(path)] = digest
        self._changed = True

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


def _identity(path: Path) -> str:
    """Return what changes whenever a file's bytes do."""
    stat = path.stat()
    return f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}"
