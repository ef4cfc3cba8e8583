"""OpenVINO's own counters: how long each node of the compiled graph took, as a mean over all requests so far.

Means are whole microseconds. Those of the requests that count are the difference of two sums, each a mean times the
requests before it, so they are right to little more than one microsecond. A node that was fused with others says the
names of all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgewright.bundle import StageEntry, this_machine
from edgewright.contract import StageContract
from edgewright.profile.layers import Averages, EngineRun
from edgewright.profile.owners import EngineNode
from edgewright.runtime.engine import Array, Engine, model_file
from edgewright.runtime.engines.openvino import OpenVinoEngine


class OpenVinoRecorder:
    """OpenVINO with its counters on; it is the engine itself."""

    def __init__(self, folder: Path, entry: StageEntry, threads: int | None, *, share_cores: bool) -> None:
        if entry.machine is not None:
            entry.machine.require(this_machine(entry.machine.engine))
        self._runs: list[EngineRun] = []
        self._requests = 0
        self._last: Any = None
        self._marks: list[dict[str, tuple[str, float]]] = []
        self._engine = OpenVinoEngine(
            model_file(folder, entry),
            entry.contract,
            entry.settings,
            threads=threads,
            share_cores=share_cores,
            watch=self._take,
        )
        self.contract: StageContract = entry.contract
        self._originals = _originals(self._engine.compiled)

    @property
    def engine(self) -> Engine:
        """The engine to run."""
        return self

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        """Bind the engine; see `Engine.bind`."""
        call = self._engine.bind(inputs, outputs)

        def run() -> None:
            begin = time.perf_counter()
            call()
            self._runs.append(EngineRun(1e6 * (time.perf_counter() - begin), ()))

        return run

    def _take(self, request: Any) -> None:
        self._requests, self._last = self._requests + 1, request

    def mark(self) -> None:
        """Remember what every node has taken so far."""
        infos = () if self._last is None else self._last.profiling_info
        self._marks.append(
            {
                info.node_name: (info.node_type, self._requests * info.real_time.total_seconds() * 1000)
                for info in infos
                if info.real_time
            }
        )

    def averages(self, runs: int) -> Sequence[Averages]:
        """Return the means of nodes over the runs between the last two marks."""
        before, after = self._marks[-2:]
        found = []
        for name, (kind, total) in after.items():
            mean = (total - before.get(name, ("", 0.0))[1]) / runs
            if mean > 0:
                found.append(Averages(name, kind, mean, None, self._originals.get(name, ())))
        return found

    def finish(self) -> Sequence[EngineRun]:
        """Return every call since the engine was opened."""
        return self._runs

    def close(self) -> None:
        """Do nothing: it keeps all in memory."""

    def nodes(self) -> Sequence[EngineNode]:
        """Return the compiled graph, its values named after the nodes that make them."""
        return [
            EngineNode(
                node.get_friendly_name(),
                _fact(node, "layerType"),
                tuple(_value(node.input_value(place).get_node()) for place in range(node.get_input_size())),
                (_value(node),),
                self._originals.get(node.get_friendly_name(), ()),
            )
            for node in self._engine.compiled.get_runtime_model().get_ordered_ops()
        ]


def _value(node: Any) -> str:
    """Return a name for what a node gives that no value of the bundle's graph has."""
    return f"{node.get_friendly_name()}:"


def _originals(compiled: Any) -> dict[str, tuple[str, ...]]:
    """Return, by the name of a compiled graph's node, the names of those that were fused into it."""
    found = {}
    for node in compiled.get_runtime_model().get_ordered_ops():
        names = _fact(node, "originalLayersNames").split(",")
        found[node.get_friendly_name()] = tuple(name for name in names if name)
    return found


def _fact(node: Any, name: str) -> str:
    """Return what a compiled graph says of a node, nothing where it doesn't."""
    facts = node.get_rt_info()
    return str(facts[name].astype(str)) if name in facts else ""
