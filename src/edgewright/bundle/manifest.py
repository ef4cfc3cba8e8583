"""The manifest: one JSON file, in one canonical spelling, that carries its own digest and every other file's."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from edgewright.bundle.machine import Machine
from edgewright.bundle.settings import EngineSettings
from edgewright.contract import StageContract
from edgewright.errors import BundleError, BundleSchemaError, BundleTamperedError, EdgewrightError
from edgewright.files import canonical_json, inside, sha256_of

Opened = TypeVar("Opened")
MANIFEST = "manifest.json"
#: Version of the layout below; a reader refuses newer ones. Since 3 a model may have a reduced vocabulary, since 4 a
#: stage names the engine that runs it, and a machine its engine.
SCHEMA = 4
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


@dataclass(frozen=True)
class StageEntry:
    """One stage: its graph, the dialect it is spelled in, the compiled engine if there is one, and how to run it.

    `runtime` is the kind of engine that runs it, which says what `settings` are: of ONNX Runtime an `EngineSettings`.
    `machine` is None for a stage that was exported and not compiled.
    """

    graph: str
    dialect: str
    contract: StageContract
    settings: Mapping[str, Any]
    engine: str | None = None
    machine: Machine | None = None
    runtime: str = "onnxruntime"

    def to_json(self) -> dict[str, Any]:
        """Return the entry as JSON-compatible values."""
        return {
            "graph": self.graph,
            "dialect": self.dialect,
            "contract": self.contract.to_json(),
            "settings": dict(self.settings),
            "engine": self.engine,
            "machine": self.machine.to_json() if self.machine else None,
            "runtime": self.runtime,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StageEntry:
        """Build from a manifest."""
        runtime, settings = data.get("runtime", "onnxruntime"), dict(data["settings"])
        for what, name in (("dialect", data["dialect"]), ("runtime", runtime)):
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise ValueError(f"the {what} {name!r}")
        return cls(
            graph=data["graph"],
            dialect=data["dialect"],
            contract=StageContract.from_json(data["contract"]),
            settings=EngineSettings.from_json(settings).to_json() if runtime == "onnxruntime" else settings,
            engine=data["engine"],
            machine=Machine.from_json(data["machine"]) if data["machine"] else None,
            runtime=runtime,
        )


@dataclass(frozen=True)
class Manifest:
    """What a bundle is.

    `model` describes the model (type, sizes, context), `source` the checkpoint's files and digests, `recipe` what was
    applied module by module, `versions` the tools, `verdict` the outcome of verification, `files` size and SHA-256 of
    every other file, `key` the digest of everything that went into the build.
    """

    model: Mapping[str, Any]
    source: Mapping[str, Any]
    recipe: Mapping[str, Any]
    stages: Mapping[str, StageEntry]
    versions: Mapping[str, str]
    verdict: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    target: str | None = None
    key: str = ""
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as JSON-compatible values, without its own digest."""
        return {
            "schema": SCHEMA,
            "model": dict(self.model),
            "source": dict(self.source),
            "recipe": dict(self.recipe),
            "stages": {name: stage.to_json() for name, stage in self.stages.items()},
            "versions": dict(self.versions),
            "verdict": dict(self.verdict),
            "notes": list(self.notes),
            "target": self.target,
            "key": self.key,
            "files": {name: dict(entry) for name, entry in self.files.items()},
        }


def file_entries(folder: Path, known: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Mapping[str, Any]]:
    """Return size and digest of every file below `folder` except the manifest; entries in `known` are taken over."""
    known = known or {}
    entries: dict[str, Mapping[str, Any]] = {}
    paths = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name in known:
            entries[name] = known[name]
        elif path.is_file() and name != MANIFEST:
            paths.append(path)
    with ThreadPoolExecutor(2) as pool:
        digests = list(pool.map(sha256_of, paths))
    for path, digest in zip(paths, digests, strict=True):
        entries[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "sha256": digest}
    return entries


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest with its own digest."""
    body = manifest.to_json()
    digest = hashlib.sha256(canonical_json(body)).hexdigest()
    (folder / MANIFEST).write_bytes(canonical_json({**body, "sha256": digest}))


def read_manifest(folder: Path) -> Manifest:
    """Read and check a bundle's manifest.

    Raises BundleError (no bundle), BundleSchemaError (newer schema), BundleTamperedError (a byte was changed).
    """
    path = folder / MANIFEST
    if not folder.exists():
        raise BundleError(f"{folder} does not exist: give the folder that deploy or export wrote.")
    if not path.is_file():
        raise BundleError(f"{folder} has no {MANIFEST}, so it is not a bundle: give the folder that deploy wrote.")
    raw = path.read_bytes()
    try:
        body = json.loads(raw)
        schema = body["schema"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BundleTamperedError(f"{path} is not a readable manifest: copy or build the bundle again.") from None
    if not isinstance(schema, int) or isinstance(schema, bool) or not 1 <= schema <= SCHEMA:
        raise BundleSchemaError(
            f"The bundle has manifest schema {schema} and this version reads 1 to {SCHEMA}: update edgewright."
        )
    digest = body.pop("sha256", None)
    try:
        found = hashlib.sha256(canonical_json(body)).hexdigest()
    except (ValueError, RecursionError):
        found = ""
    if digest != found:
        raise BundleTamperedError(f"{path} was changed after it was written: copy or build the bundle again.")
    try:
        return Manifest(
            model=body["model"],
            source=body["source"],
            recipe=body["recipe"],
            stages={_stage_name(name): StageEntry.from_json(entry) for name, entry in body["stages"].items()},
            versions=body["versions"],
            verdict=body["verdict"],
            notes=tuple(body["notes"]),
            target=body["target"],
            key=body["key"],
            files=body["files"],
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise BundleError(f"{path} lacks or misspells {error}: build the bundle again.") from None


def _stage_name(name: str) -> str:
    """Return a stage's name, which goes into sentences, file names and scripts."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"the stage {name!r}")
    return name


def opened_while_checked(folder: Path, manifest: Manifest, opened: Callable[[], Opened], *, check: bool) -> Opened:
    """Return what `opened` gives; with `check` the bundle's files are compared with the manifest meanwhile.

    Raises what either raises; a changed file explains a failed load better than the load does.
    """
    with ThreadPoolExecutor(1) as pool:
        checking = pool.submit(check_files, folder, manifest) if check else None
        try:
            found = opened()
        except EdgewrightError:
            if checking is not None:
                checking.result()
            raise
        if checking is not None:
            checking.result()
    return found


def check_files(folder: Path, manifest: Manifest) -> None:
    """Compare sizes and digests with the manifest; raises BundleError or BundleTamperedError naming the file."""
    names = list(manifest.files)
    for name in names:
        path = inside(folder, name)
        if not path.is_file():
            raise BundleError(f"The bundle's file {name} is missing: copy or build the bundle again.")
        size = path.stat().st_size
        if size != manifest.files[name]["bytes"]:
            wanted = manifest.files[name]["bytes"]
            raise BundleTamperedError(
                f"The bundle's file {name} has {size} bytes instead of {wanted}: copy the bundle again."
            )
    with ThreadPoolExecutor(2) as pool:
        digests = pool.map(lambda name: sha256_of(inside(folder, name)), names)
        for name, digest in zip(names, digests, strict=True):
            if digest != manifest.files[name]["sha256"]:
                raise BundleTamperedError(
                    f"The bundle's file {name} was changed after it was written: copy the bundle again."
                )
