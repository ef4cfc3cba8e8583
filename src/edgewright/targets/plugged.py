"""Another package's back end: what it is held to, and its defects as sentences that name it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from edgewright.errors import PluginError
from edgewright.files import canonical_json, changed, inside, standing
from edgewright.plugins import TARGETS, defects_named, package_of
from edgewright.runtime.plugged import PluggedEngine

if TYPE_CHECKING:
    from edgewright.bundle.manifest import StageEntry
    from edgewright.runtime.engine import Engine
    from edgewright.targets.backend import Backend, StageWork
    from edgewright.targets.platform import Platform

#: What a back end must have, and what of it must be a function.
_VALUES = ("name", "dialect", "options")
_FUNCTIONS = ("require", "compile", "stand_in")


class PluggedBackend:
    """A package's back end under the name of its entry point; raises PluginError where it isn't one.

    Errors of the toolkit go through as they are; any other, and a result that isn't what `Backend` says, is a
    PluginError.
    """

    def __init__(self, name: str, found: Any) -> None:
        self.name = name
        self._whose = f"The target {name} of the package {package_of(TARGETS, name)}"
        with self._named("when it was asked for its members"):
            self._require_members(found)
        self._found = cast("Backend", found)

    def _require_members(self, found: Any) -> None:
        if missing := [member for member in (*_VALUES, *_FUNCTIONS) if not hasattr(found, member)]:
            raise PluginError(f"{self._whose} lacks {', '.join(missing)}: update the package.")
        if odd := [member for member in _FUNCTIONS if not callable(getattr(found, member))]:
            raise PluginError(f"{self._whose} has {', '.join(odd)}, which is no function: update the package.")
        if found.name != self.name:
            raise PluginError(f"{self._whose} calls itself {found.name!r}: update the package.")
        if not isinstance(found.dialect, str) or not isinstance(found.options, Mapping):
            raise PluginError(f"{self._whose} has a dialect that is no text, or options that are none: update it.")
        if not all(isinstance(word, str) for pair in found.options.items() for word in pair):
            raise PluginError(f"{self._whose} has options that are not named and told in text: update the package.")

    @property
    def dialect(self) -> str:
        """The dialect whose graphs it compiles."""
        return self._found.dialect

    @property
    def options(self) -> Mapping[str, str]:
        """Its options and their help."""
        return self._found.options

    def require(self, platform: Platform | None, options: Mapping[str, str]) -> None:
        """Ask it; see `Backend.require`."""
        with self._named("when it was asked whether it can compile here"):
            self._found.require(platform, options)

    def decides(self, platform: Platform | None, options: Mapping[str, str]) -> Any:
        """Return what it says that decides over its work besides its package and options; {} where it says nothing."""
        with self._named("when it was asked what decides over its work"):
            told = self._found.decides(platform, options) if hasattr(self._found, "decides") else {}
            return json.loads(canonical_json(told))

    def compile(self, work: StageWork) -> StageEntry:
        """Let it compile; see `Backend.compile`."""
        before = standing(work.root)
        with self._named(f"on the stage {work.name}"):
            entry = self._found.compile(work)
        self._check_files(work, changed(before, standing(work.root)))
        with self._named(f"when its entry of the stage {work.name} was written down"):
            self._check(work, entry)
        return entry

    def stand_in(self, root: Path, entry: StageEntry, threads: int | None) -> tuple[Engine, str] | None:
        """Ask it for what can be checked here; see `Backend.stand_in`."""
        with self._named("when it was asked what can be checked here"):
            found = self._found.stand_in(root, entry, threads)
        if found is None:
            return None
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], str)):
            raise PluginError(
                f"{self._whose} gives as a stand-in what is no engine with a sentence: update the package."
            )
        return PluggedEngine(self._whose, found[0], entry.contract), found[1]

    def _check(self, work: StageWork, entry: object) -> None:
        from edgewright.bundle.manifest import StageEntry

        if not isinstance(entry, StageEntry):
            what = type(entry).__name__
            raise PluginError(f"{self._whose} gives {what} for a stage, where an entry is needed: update the package.")
        if entry.contract != work.contract or entry.dialect != self.dialect:
            raise PluginError(f"{self._whose} gives an entry of another contract or dialect: update the package.")
        for name in (entry.graph, *((entry.engine,) if entry.engine is not None else ())):
            own = isinstance(name, str) and name.startswith(f"{work.prefix}/")
            if not own or not inside(work.root, name).is_file():
                raise PluginError(
                    f"{self._whose} names the file {name!r}, which is not in the stage: update the package."
                )
        StageEntry.from_json(json.loads(canonical_json(entry.to_json())))

    def _check_files(self, work: StageWork, names: list[str]) -> None:
        """Raise PluginError unless what changed is files of the stage's engine."""
        for name in names:
            if not name.startswith((f"{work.prefix}/engine.", f"{work.prefix}/engine/")):
                raise PluginError(
                    f"{self._whose} made, changed or removed {name}, which is not of the engine of the stage "
                    f"{work.name}: update the package."
                )
            path = work.root / name
            if path.is_symlink() or not path.is_file() or not name.isprintable() or "\\" in name:
                raise PluginError(
                    f"{self._whose} left {name!r}, which is no plain file with a plain name: update the package."
                )

    def _named(self, when: str) -> AbstractContextManager[None]:
        return defects_named(self._whose, when)
