"""What the steps of a build hand on: stages with what was done to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from edgewright.bundle import Manifest, StageEntry
from edgewright.formats import FloatFormat, Format, IntFormat
from edgewright.graph import Stage
from edgewright.progress import Progress
from edgewright.quant.apply import Applied


@dataclass(frozen=True)
class Part:
    """A lowered stage, the formats its modules got, and the manifest's entry once it is written."""

    stage: Stage
    applied: Sequence[Applied]
    entry: StageEntry | None = None

    @property
    def half_weights(self) -> bool:
        """Whether stored weights of the graph are widened at load."""
        beside = self.stage.outside.module if self.stage.outside else None
        return any(_widened(module.format) for module in self.applied if module.module != beside)


def _widened(fmt: Format) -> bool:
    if isinstance(fmt, IntFormat):
        return fmt.scales != "float32"
    return not (isinstance(fmt, FloatFormat) and fmt.dtype == "float32")


class Passed(Protocol):
    """The outcome of a verification."""

    @property
    def passed(self) -> bool: ...
    def reason(self) -> str: ...
    def to_json(self) -> dict[str, Any]: ...


class Maker(Protocol):
    """What a kind of model adds to the steps of a build; made from an opened source."""

    #: The folder of the checkpoint that was given.
    path: Path
    #: What is built from: name, kind and files.
    record: dict[str, Any]

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages it always has."""

    def key(self, **options: Any) -> str:
        """Return the digest of what is built from and of all that was asked, with `options`."""

    def lower(self, dialects: Mapping[str, str], progress: Progress) -> dict[str, Part]:
        """Return stages, each in its dialect, in the order they run in, with the formats of the recipe."""

    def write_sidecars(self, sidecars: Path, parts: Mapping[str, Part], progress: Progress) -> None:
        """Write what stands beside the graphs."""

    def manifest(self, parts: Mapping[str, Part], *, target: str | None, key: str) -> Manifest:
        """Return the manifest of stages that have their entries, not yet sealed nor checked."""

    def verify(self, folder: Path, progress: Progress) -> Passed:
        """Verify a finished folder."""
