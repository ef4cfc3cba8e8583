"""A stage with a reduced vocabulary: the choice, the cut, and what the manifest says of both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgewright.build.reduction import KeptVocabulary, VocabularyRequest, choose_vocabulary
from edgewright.checkpoint import Checkpoint
from edgewright.graph import Stage
from edgewright.graph.vocabulary import reduce_vocabulary, table_bytes
from edgewright.runtime.vocabulary import SIDECAR, sidecar_bytes


class Reduction:
    """The vocabulary of a stage that was just built, cut down; make one before the stage is quantized."""

    def __init__(self, stage: Stage, checkpoint: Checkpoint, request: VocabularyRequest) -> None:
        full = stage.contract.outputs[0].shape[-1]
        assert isinstance(full, int)
        self.kept: KeptVocabulary = choose_vocabulary(request, checkpoint.sidecars(), checkpoint.config, full)
        self._rows = reduce_vocabulary(stage, self.kept.ids)

    def finish(self, stage: Stage) -> None:
        """Record what was done in a stage that has its formats, for the manifest."""
        cut, full = table_bytes(stage, self._rows)
        tables = {"tables": list(self._rows), "table_bytes": cut, "full_table_bytes": full}
        stage.vocabulary = {"file": f"sidecars/{SIDECAR}", **self.kept.record, **tables}
        stage.notes.append(vocabulary_line(stage.vocabulary))

    def write(self, sidecars: Path) -> None:
        """Write the kept ids beside the tokenizer."""
        (sidecars / SIDECAR).write_bytes(sidecar_bytes(self.kept.ids))


def vocabulary_line(record: Mapping[str, Any]) -> str:
    """Say in a line what a manifest records of a reduced vocabulary."""
    cut, full = record["table_bytes"], record["full_table_bytes"]
    line = (
        f"vocabulary reduced to {record['kept']} of {record['full']} tokens ({record['method']}): its tables take "
        f"{cut / 1e6:.3g} MB instead of {full / 1e6:.3g} MB"
    )
    if record["coverage"] is not None:
        line += f", {record['coverage']:.2%} of the {record['counted_tokens']} tokens counted are kept"
    return line
