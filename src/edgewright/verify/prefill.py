"""The stage for long appends of a language model's bundle: its files are checked as those of the stage `llm` are."""

from __future__ import annotations

from pathlib import Path

from edgewright._version import __version__
from edgewright.bundle import Manifest
from edgewright.dialects import find_lowering
from edgewright.files import inside
from edgewright.graph import Stage
from edgewright.progress import Advance
from edgewright.runtime.paired import prefill_stage
from edgewright.verify.localise import Candidate
from edgewright.verify.report import Level
from edgewright.verify.shipped import ShippedTensors
from edgewright.verify.structure import check_graph
from edgewright.verify.weights import check_weights

#: What the levels of the stage are called: those of the stage llm with this before them.
TITLE = "prefill {}"


class Prefill:
    """The stage of a bundle; `table` is the file of an embedding table that isn't in the graph."""

    def __init__(self, root: Path, candidate: Candidate, table: Path | None, *, same_version: bool) -> None:
        self.candidate, self._same_version = candidate, same_version
        self._graph = inside(root, candidate.entry.graph)
        self._tensors = ShippedTensors(self._graph, table)

    @classmethod
    def of(cls, root: Path, manifest: Manifest, table: Path | None) -> Prefill | None:
        """Return the stage of a bundle, None where it has none; raises BundleError where it isn't described."""
        found = prefill_stage(manifest)
        same = manifest.versions["edgewright"] == __version__
        return None if found is None else cls(root, Candidate(root, found[0]), table, same_version=same)

    def files(self, anew: Stage, advance: Advance, *, same_writer: bool) -> dict[str, Level]:
        """Compare weights, and the graph where the writer is the same, with a stage that was built anew."""
        lowered = find_lowering(self.candidate.entry.dialect)(anew)
        weights = check_weights(lowered, self._tensors, advance, same_version=self._same_version)
        levels: dict[str, Level] = {TITLE.format("weights"): weights}
        graph = check_graph(lowered, self._graph) if same_writer else None
        return levels if graph is None else {**levels, TITLE.format("graph"): graph}
