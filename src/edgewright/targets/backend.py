"""What a compile back end is: one object per target, which takes a stage in its dialect and leaves its engine's files.

Another package brings one under the entry point group `edgewright.targets`; `docs/targets.md` says how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from edgewright.bundle.manifest import StageEntry
from edgewright.contract import StageContract

if TYPE_CHECKING:
    from edgewright.runtime.engine import Engine
    from edgewright.targets.platform import Platform


@dataclass(frozen=True)
class StageWork:
    """A stage to be compiled.

    `root` is the folder of the bundle that is being made, with its sidecars; `prefix` the stage's folder below it,
    which holds the graph and weights in the back end's dialect. `half_weights` says that stored weights of the graph
    are wider when they are used. `platform` is the one that was asked for. `options` are those of the back end's
    `options` that were given, by name.
    """

    name: str
    root: Path
    prefix: str
    contract: StageContract
    half_weights: bool = False
    platform: Platform | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The stage's folder."""
        return self.root / self.prefix


class Backend(Protocol):
    """A compile back end.

    Its products are kept in the user's cache and taken over where the stage's files, the sidecars, the platform, the
    options with the files that they name, this package and the one that brings the back end are the same. One that
    depends on more (a program on the path) has a function `decides(platform, options)` besides, which returns that as
    JSON values, or None where it can't be said: then nothing is taken over.
    """

    @property
    def name(self) -> str:
        """The target's name."""

    @property
    def dialect(self) -> str:
        """The dialect whose graphs it compiles."""

    @property
    def options(self) -> Mapping[str, str]:
        """The options it takes, by name, each with a sentence for the help."""

    def require(self, platform: Platform | None, options: Mapping[str, str]) -> None:
        """Raise, before any work is done, when it can't compile here for that platform with those options.

        MissingExtraError names the extra of a package that isn't there, ToolError a program; UsageError an option's
        value, or a platform that isn't one of its own.
        """

    def compile(self, work: StageWork) -> StageEntry:
        """Compile a stage, in its folder; returns its manifest entry, with paths below the work's prefix.

        Files it makes are called `engine.*`, or are in a folder `engine`: nothing else is left behind. The same stage
        and options give the same bytes. Raises UnsupportedFormatError naming op and layer of what it has no lowering
        for, ToolError where another vendor's compiler fails.
        """

    def stand_in(self, root: Path, entry: StageEntry, threads: int | None) -> tuple[Engine, str] | None:
        """Return what computes here, on the CPU, what a stage's own files say, and what is not checked by that.

        None where the engine itself runs here. The sentence goes into the verdict, which is then "partly checked".
        """
