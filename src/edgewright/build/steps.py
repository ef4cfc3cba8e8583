"""The steps of one build that cost time, each done once: what decides over each of them, and what it leaves.

A step that was finished before, by this build or another one, is taken over from the store. So an interrupted build
goes on where it was, and one that differs does only what differs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata, util
from pathlib import Path
from typing import Any

from edgewright.build.key import DigestMemory
from edgewright.build.store import Done, Store
from edgewright.bundle import MANIFEST, StageEntry, this_machine
from edgewright.files import sha256_of
from edgewright.plugins import DIALECTS, ENGINES, TARGETS
from edgewright.progress import Progress
from edgewright.targets import goal_key
from edgewright.targets.backend import Backend, StageWork
from edgewright.targets.platform import Platform

#: Packages that compute, compile or spell what a step leaves.
_PACKAGES = (
    "numpy", "ml_dtypes", "onnx", "onnx-ir", "onnxruntime", "onnxruntime-qnn", "openvino", "tensorrt-rtx-cu12-bindings",
    "tokenizers",
)  # fmt: skip
_SIDECARS = "sidecars/"
#: A plug-in's files are read up to this number; beyond that its version stands for it.
_MOST_FILES = 2000


class Steps:
    """The steps of a build in the folder `root` of the bundle that is being made.

    `about` names the model. `known` are size and digest of the files that are there already, by path. `files` are those
    of all files that a step left.
    """

    def __init__(
        self, root: Path, progress: Progress, about: str, known: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        self.root = root
        self.files = dict(known or {})
        self._store = Store(root, progress, about)

    def write(self, what: str, key: str, make: Callable[[], None]) -> bool:
        """Write files that follow from a checkpoint and what is asked of it, which `key` is the digest of.

        Tells whether they were taken over.
        """
        return self._step(what, {"key": key}, make).reused

    def compile(self, backend: Backend, work: StageWork) -> StageEntry:
        """Compile a stage whose files were written; raises what the back end raises."""
        done = self._step(
            f"stage {work.name} compiled for {backend.name}",
            self._compile_key(backend, work),
            lambda: backend.compile(work).to_json(),
        )
        return StageEntry.from_json(done.result)

    def verify(self, memory_bytes: int | None, make: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return the report that `make` gives of the sealed folder, or gave of the very same; raises what it raises.

        Only one that checked everything is kept: how much can be checked may depend on the memory that is free.
        """
        decides = {"manifest": sha256_of(self.root / MANIFEST), "memory": memory_bytes}
        report: Mapping[str, Any] = self._step(
            "verification", decides, lambda: dict(make()), lambda found: bool(found["status"] == "passed")
        ).result
        return report

    def _step(
        self,
        title: str,
        decides: Mapping[str, Any] | None,
        make: Callable[[], Any],
        worth: Callable[[Any], bool] = lambda result: True,
    ) -> Done:
        told = None if decides is None else {**decides, **_surroundings()}
        done = self._store.step(title, told, make, worth)
        for name in done.spoilt:
            self.files.pop(name, None)
        self.files.update(done.files)
        return done

    def _compile_key(self, backend: Backend, work: StageWork) -> dict[str, Any] | None:
        """Return what decides over a stage's engine; None where a back end can't say what does.

        A back end that depends on more than its package, its options and the files they name (a program on the path)
        says so in a function `decides(platform, options)`, which returns that as JSON values, or None.
        """
        more = getattr(backend, "decides", None)
        told = {} if more is None else more(work.platform, work.options)
        if told is None:
            return None
        return {
            "goal": goal_key(backend.name, work.platform, work.options),
            "platform": _platform(work.platform),
            "options": {name: _value(value) for name, value in work.options.items()},
            "more": told,
            "stage": [work.name, work.prefix, work.half_weights, work.contract.to_json()],
            "files": self._inputs(work.prefix),
        }

    def _inputs(self, prefix: str) -> dict[str, str]:
        """Return the digests of all that a back end may read: the stage's files and the sidecars."""
        found = {}
        with DigestMemory() as memory:
            for path in sorted(self.root.rglob("*")):
                name = path.relative_to(self.root).as_posix()
                if path.is_file() and name.startswith((f"{prefix}/", _SIDECARS)):
                    if name not in self.files:
                        self.files[name] = {"bytes": path.stat().st_size, "sha256": memory.digest(path)}
                    found[name] = str(self.files[name]["sha256"])
        return found


def _surroundings() -> dict[str, Any]:
    """Return what decides over every step: this program, the packages it stands on, plug-ins, and the machine."""
    return {
        "program": _program(),
        "packages": _packages(),
        "plugins": _plugins(),
        "machine": this_machine().to_json(),
    }


@cache
def _program() -> str:
    """Return the digest of this package's own files: a changed program may do every step otherwise."""
    return _folder_digest(Path(__file__).parents[1])


@cache
def _plugins() -> dict[str, str]:
    """Return the digests of the installed packages that bring targets, dialects or engines, by name."""
    found = {}
    for entry in (entry for group in (TARGETS, DIALECTS, ENGINES) for entry in metadata.entry_points(group=group)):
        name = entry.value.partition(":")[0].partition(".")[0]
        found[name] = entry.dist.version if entry.dist else ""
        # One that can't be found or read can't be imported either: whoever asks for it is told then.
        with suppress(ImportError, ValueError, OSError):
            spec = util.find_spec(name)
            place = Path(spec.origin) if spec is not None and spec.origin else None
            if place is not None:
                found[name] += f" {_folder_digest(place.parent) if place.name == '__init__.py' else sha256_of(place)}"
    return found


def _folder_digest(folder: Path) -> str:
    """Return the digest of a package's files, compiled ones left out; of a large package's first ones."""
    total = hashlib.sha256()
    paths = sorted(p for p in folder.rglob("*") if "__pycache__" not in p.parts and p.is_file())
    for path in paths[:_MOST_FILES]:
        total.update(f"{path.relative_to(folder).as_posix()}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


@cache
def _packages() -> dict[str, str]:
    """Return the versions of packages, those that are installed."""
    found = {}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _platform(platform: Platform | None) -> Any:
    """Return a platform's data as JSON values."""
    return None if platform is None else json.loads(json.dumps(dataclasses.asdict(platform), default=sorted))


def _value(value: str) -> Any:
    """Return an option's value, with the digests of the files where it names some."""
    path = Path(value)
    try:
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else []
    except OSError:
        files = []
    if not files:
        return value
    with DigestMemory() as memory:
        return [value, [[str(file), memory.digest(file)] for file in files]]
