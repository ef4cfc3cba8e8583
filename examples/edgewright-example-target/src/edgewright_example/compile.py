"""The example's compiler: one object that edgewright finds by the entry point `edgewright.targets`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from edgewright.bundle import this_machine
from edgewright.bundle.manifest import StageEntry
from edgewright.errors import UnsupportedFormatError, UsageError
from edgewright.graph.writer import MODEL_FILE
from edgewright.targets.backend import StageWork
from edgewright_example.container import write_container

if TYPE_CHECKING:
    from edgewright.targets.platform import Platform

ENGINE_FILE = "engine.example"
BOARD = "example-board"
_LEVEL = "6"


class ExampleBackend:
    """A back end; see `edgewright.targets.backend.Backend` for what each member must be."""

    name = "example"
    dialect = "example"
    options: Mapping[str, str] = {"level": "how small the compiled file is made, 0 to 9 (default 6)"}

    def require(self, platform: Platform | None, options: Mapping[str, str]) -> None:
        """Refuse, before any work is done, what can't be compiled here."""
        _level(options)
        if platform is not None and platform.name != BOARD:
            raise UsageError(f"The target example compiles for {BOARD}, not for {platform.title}: use another target.")

    def compile(self, work: StageWork) -> StageEntry:
        """Write `engine.example` beside the stage's graph."""
        if work.contract.kv_dtype not in ("float32", "int8"):
            raise UnsupportedFormatError(
                f"The example's engine has no {work.contract.kv_dtype} cache, which {work.name} has: choose another."
            )
        level = _level(work.options)
        write_container(work.folder / ENGINE_FILE, (work.folder / MODEL_FILE).read_bytes(), level)
        return StageEntry(
            graph=f"{work.prefix}/{MODEL_FILE}",
            dialect=self.dialect,
            contract=work.contract,
            settings={"level": level},
            engine=f"{work.prefix}/{ENGINE_FILE}",
            machine=this_machine("example"),
            runtime="example",
        )

    def stand_in(self, root: Path, entry: StageEntry, threads: int | None) -> None:
        """Return None: the engine runs here. One that doesn't gives another that does, and what that leaves open."""


def _level(options: Mapping[str, str]) -> int:
    text = options.get("level", _LEVEL)
    if text not in set("0123456789"):
        raise UsageError(f"--target-option level={text} is no number from 0 to 9.")
    return int(text)


BACKEND = ExampleBackend()
