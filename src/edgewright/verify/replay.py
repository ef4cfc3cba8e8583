"""Runs a scenario on a graph with taps through the runtime's own session, and keeps what every call took and gave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from edgewright.contract import StageContract
from edgewright.errors import GenerationError, first_line
from edgewright.runtime.embedding import INPUT, EmbeddingTable
from edgewright.runtime.engine import Engine
from edgewright.runtime.session import Session
from edgewright.verify.graphs import Array, to_array, to_value
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


class _Binding:
    """Stands in for an IOBinding and remembers what is bound."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self.real = session.io_binding()
        self.inputs: dict[str, ort.OrtValue] = {}
        self.outputs: dict[str, ort.OrtValue] = {}

    def bind_ortvalue_input(self, name: str, value: ort.OrtValue) -> None:
        self.inputs[name] = value
        self.real.bind_ortvalue_input(name, value)

    def bind_ortvalue_output(self, name: str, value: ort.OrtValue) -> None:
        self.outputs[name] = value
        self.real.bind_ortvalue_output(name, value)


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

    def binding(self) -> _Binding:
        """Return a new, empty binding."""
        return _Binding(self.session)

    def run(self, binding: Any) -> None:
        """Run once with everything bound, and keep inputs and outputs."""
        feeds = {name: to_array(value).copy() for name, value in binding.inputs.items()}
        if self.table is not None:
            assert self.table.ids is not None
            feeds["input_ids"] = self.table.ids
        taps = [name for name in self._outputs if name not in binding.outputs]
        for name in taps:
            binding.real.bind_output(name, "cpu")
        try:
            self.session.run_with_iobinding(binding.real)
        except Exception as error:
            raise GenerationError(f"The engine failed ({first_line(error)}).") from None
        given = dict(zip(self._bound(binding, taps), binding.real.get_outputs(), strict=True))
        values = {name: to_array(value).copy() for name, value in given.items()}
        if INPUT in feeds:
            values[INPUT] = feeds[INPUT]
        starts = feeds["past_lengths"].astype(np.int64)
        self.calls.append(Call(_phase(feeds), starts, feeds, values))

    def _bound(self, binding: _Binding, taps: list[str]) -> list[str]:
        """Return the names of the bound outputs in the order the binding gives them."""
        return [*binding.outputs, *taps]


def _phase(feeds: dict[str, Array]) -> str:
    batch, count = feeds["input_ids"].shape
    kind = "prefill" if not feeds["past_lengths"].any() else "decode" if count == 1 else "a later chunk"
    return f"{kind} of a batch" if batch > 1 else kind


def once(session: ort.InferenceSession, contract: StageContract, call: Call) -> Call:
    """Run a call again on another graph, with the same inputs and caches."""
    taken = {value.name for value in session.get_inputs()}
    engine = TappedEngine(session, contract, _Table(None, call.feeds["input_ids"]) if INPUT in taken else None)
    binding = engine.binding()
    arrays = {name: a.copy() for name, a in call.feeds.items() if name in taken}  # kept alive by this name
    shared = {name: to_value(array) for name, array in arrays.items()}
    for name, value in shared.items():
        binding.bind_ortvalue_input(name, value)
    if contract.kv_in_place:
        for layer in contract.kv:
            for past, present in ((layer.past_key, layer.present_key), (layer.past_value, layer.present_value)):
                binding.bind_ortvalue_output(present, shared[past])
    engine.run(binding)
    return engine.calls[0]


def replay(engine: TappedEngine, scenario: Scenario) -> Iterator[Call]:
    """Yield the calls of a scenario, one after the other; each asks for all logits, so that every layer has its rows.

    A scenario ends where the graph fails.
    """
    table = cast(EmbeddingTable | None, engine.table)
    session = Session(cast(Engine, engine), batch=len(scenario.sequences), table=table)
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
