"""Another package's engine: what it is held to, and its defects as sentences that name it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewright.contract import StageContract
from edgewright.errors import GenerationError, PluginError
from edgewright.plugins import ENGINES, defects_named, package_of

if TYPE_CHECKING:
    from edgewright.bundle import StageEntry
    from edgewright.runtime.engine import Array


class PluggedEngine:
    """A stage that a package's engine has loaded; raises PluginError where `found` isn't an engine of its contract."""

    def __init__(self, whose: str, found: Any, contract: StageContract) -> None:
        with defects_named(whose, "when its engine was asked for its members"):
            whole = callable(getattr(found, "bind", None)) and getattr(found, "contract", None) == contract
        if not whole:
            raise PluginError(
                f"{whose} gives {type(found).__name__}, which is no engine of this stage's contract with a function "
                "bind: update the package."
            )
        self.contract = contract
        self._whose, self._found = whose, found

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        """Return the engine's function; see `Engine.bind`. What it raises that is no error of ours is one then."""
        with defects_named(self._whose):
            call = self._found.bind(inputs, outputs)
        if not callable(call):
            raise PluginError(
                f"{self._whose} gives {type(call).__name__} where a function is needed: update the package."
            )

        def run() -> None:
            with defects_named(self._whose, kind=GenerationError):
                call()

        return run


def opener_of(name: str, found: Any) -> Callable[..., PluggedEngine]:
    """Return a package's opener as one whose engines are checked; raises PluginError where it is no function."""
    whose = f"The engine {name} of the package {package_of(ENGINES, name)}"
    if not callable(found):
        raise PluginError(f"{whose} is no function: update the package.")

    def opened(folder: Path, entry: StageEntry, *, threads: int | None, share_cores: bool) -> PluggedEngine:
        with defects_named(whose):
            engine = found(folder, entry, threads=threads, share_cores=share_cores)
        return PluggedEngine(whose, engine, entry.contract)

    return opened
