"""The prefix stage of a policy whose table of tokens stands beside the graph: rows are looked up here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from edgewright.contract import StageContract, TensorContract
from edgewright.errors import BundleError
from edgewright.runtime.embedding import INPUT, EmbeddingTable
from edgewright.runtime.engine import Engine
from edgewright.runtime.policy.stages import Array

IDS = "token_ids"


class TableStage:
    """Takes token ids where the stage inside takes rows of the table; everything else is passed on."""

    def __init__(self, stage: Engine, table: EmbeddingTable) -> None:
        self._stage, self._table = stage, table
        inputs = tuple(_ids(tensor) if tensor.name == INPUT else tensor for tensor in stage.contract.inputs)
        self._contract = dataclasses.replace(stage.contract, inputs=inputs)

    @property
    def contract(self) -> StageContract:
        """That of a stage with the table inside."""
        return self._contract

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        """Return a function that looks the ids up as they then are and runs the stage.

        That raises BundleError for ids that the table has no rows for.
        """
        ids, table = inputs[IDS], self._table
        rows = np.zeros((*ids.shape, table.hidden), np.float32)
        given = {name: array for name, array in inputs.items() if name != IDS}
        inner = self._stage.bind({**given, INPUT: rows}, outputs)

        def run() -> None:
            if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < table.vocab:
                raise BundleError(
                    f"The bundle's tokenizer gives the token {int(ids.max())} and its table has {table.vocab} rows: "
                    "deploy again with the tokenizer the policy was trained with."
                )
            rows[...] = table.rows(ids)
            inner()

        return run


def _ids(rows: TensorContract) -> TensorContract:
    return TensorContract(IDS, "int64", rows.shape[:-1])
