"""Runs a scenario on a graph with taps through the runtime's own session, and keeps what every call took and gave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import numpy.typing as npt

from edgewright.contract import StageContract
from edgewright.errors import GenerationError, first_line
from edgewright.quiet_ort import ort
from edgewright.runtime.embedding import INPUT, EmbeddingTable
from edgewright.runtime.engines.onnxruntime import share
from edgewright.runtime.session import Session
from edgewright.verify.graphs import Array, to_array
from edgewright.verify.scenarios import Scenario


@dataclass(frozen=True)
class Call:
    """One run of a graph: `feeds` by input name, `values` by output name, `starts` the first position `[batch]`."""

    phase: str
    starts: npt.NDArray[np.int64]
    feeds: dict[str, Array]
    values: dict[str, Array]

    @property
    def tokens(self) -> int:
        """Tokens fed to each sequence."""
        return int(self.feeds["input_ids"].shape[1])


@dataclass(frozen=True)
class Beside:
    """Embedding tables outside the graphs that are compared: the candidate's, and the reference's.

    `value` is the value of a reference with its table inside that the candidate takes.
    """

    table: EmbeddingTable | None = None
    value: str | None = None
    reference: EmbeddingTable | None = None


INSIDE = Beside()


class _Table:
    """An embedding table that remembers the ids it was last asked for."""

    def __init__(self, table: EmbeddingTable | None, ids: Array | None = None) -> None:
        self._table, self.ids = table, ids

    def rows(self, ids: Array) -> Array:
        """Return the rows of ids."""
        assert self._table is not None
        self.ids = ids.copy()
        return self._table.rows(ids)


class TappedEngine:
    """Runs a graph with taps for a `Session`; `calls` holds the runs since it was last emptied.

    Of a graph that takes rows of a `table`, calls have the ids these were picked by, too, and the rows among the
    values.
    """

    def __init__(
        self, session: ort.InferenceSession, contract: StageContract, table: EmbeddingTable | _Table | None = None
    ) -> None:
        self.session, self.contract = session, contract
        self.table = _Table(table) if isinstance(table, EmbeddingTable) else table
        self._outputs = [value.name for value in session.get_outputs()]
        self.calls: list[Call] = []

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        """Return a function that runs once with everything bound, and keeps inputs and outputs."""
        return lambda: self._run(inputs, outputs)

    def _run(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        binding = self.session.io_binding()
        kinds = {tensor.name: tensor.dtype for tensor in (*self.contract.inputs, *self.contract.outputs)}
        fed, given = ({n: share(a, kinds.get(n)) for n, a in arrays.items()} for arrays in (inputs, outputs))
        for name, value in fed.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in given.items():
            binding.bind_ortvalue_output(name, value)
        taps = [name for name in self._outputs if name not in given]
        for name in taps:
            binding.bind_output(name, "cpu")
        feeds = {name: to_array(value).copy() for name, value in fed.items()}
        if self.table is not None:
            assert self.table.ids is not None
            feeds["input_ids"] = self.table.ids
        try:
            self.session.run_with_iobinding(binding)
        except Exception as error:
            raise GenerationError(f"The engine failed ({first_line(error)}).") from None
        made = dict(zip([*given, *taps], binding.get_outputs(), strict=True))
        values = {name: to_array(value).copy() for name, value in made.items()}
        if INPUT in feeds:
            values[INPUT] = feeds[INPUT]
        starts = feeds["past_lengths"].astype(np.int64)
        self.calls.append(Call(_phase(feeds), starts, feeds, values))


def _phase(feeds: dict[str, Array]) -> str:
    batch, count = feeds["input_ids"].shape
    kind = "prefill" if not feeds["past_lengths"].any() else "decode" if count == 1 else "a later chunk"
    return f"{kind} of a batch" if batch > 1 else kind


def once(session: ort.InferenceSession, contract: StageContract, call: Call) -> Call:
    """Run a call again on another graph, with the same inputs and caches."""
    taken = {value.name for value in session.get_inputs()}
    engine = TappedEngine(session, contract, _Table(None, call.feeds["input_ids"]) if INPUT in taken else None)
    arrays = {name: a.copy() for name, a in call.feeds.items() if name in taken}
    outputs: dict[str, Array] = {}
    if contract.kv_in_place:
        for layer in contract.kv:
            outputs |= {layer.present_key: arrays[layer.past_key], layer.present_value: arrays[layer.past_value]}
    engine.bind(arrays, outputs)()
    return engine.calls[0]


def replay(engine: TappedEngine, scenario: Scenario) -> Iterator[Call]:
    """Yield the calls of a scenario, one after the other; each asks for all logits, so that every layer has its rows.

    A scenario ends where the graph fails.
    """
    table = cast(EmbeddingTable | None, engine.table)
    session = Session(engine, batch=len(scenario.sequences), table=table)
    for step in scenario.steps:
        try:
            replace(step, compared=True).feed(session)
            failed = False
        except GenerationError:
            failed = True
        calls, engine.calls = engine.calls, []
        yield from calls
        if failed:
            return
