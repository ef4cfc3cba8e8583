"""A policy's float stages as they are run for comparison: written when they are needed, one loaded at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgewright.bundle.settings import EngineSettings
from edgewright.contract import StageContract
from edgewright.dialects import find_lowering, portable
from edgewright.files import require_space
from edgewright.graph import Stage
from edgewright.graph.writer import MODEL_FILE, layout_size, plan_layout, write_stage
from edgewright.progress import Advance
from edgewright.runtime.engine import Engine
from edgewright.runtime.engines.onnxruntime import OnnxRuntimeEngine
from edgewright.verify.policy_report import Array
from edgewright.verify.reference import LEFT_OUT


@dataclass
class Call:
    """What a stage was given and gave."""

    inputs: dict[str, Array]
    outputs: dict[str, Array]


@dataclass
class FloatStage:
    """A float stage and where it is written; lowered to the portable dialect, or with the kernels of `dialect`."""

    stage: Stage
    folder: Path
    dialect: str = "portable"
    written: bool = False

    def __post_init__(self) -> None:
        """Lower it, which makes its contract final."""
        portably = self.dialect == "portable"
        lowered = portable.lower(self.stage, emulate=True) if portably else find_lowering(self.dialect)(self.stage)
        self.stage = lowered

    @property
    def nbytes(self) -> int:
        """The bytes of its weights."""
        return layout_size(plan_layout(self.stage))

    def load(self, threads: int | None, advance: Advance) -> Engine:
        """Write it if that wasn't done, and load it."""
        config = {"optimization.disable_specified_optimizers": LEFT_OUT}
        if not self.written:
            self.folder.mkdir(parents=True, exist_ok=True)
            require_space(self.folder, self.nbytes, "The reference")
            write_stage(self.stage, self.folder, progress=advance)
            self.written = True
        return OnnxRuntimeEngine(
            self.folder / MODEL_FILE, self.stage.contract, EngineSettings("all", config=config), threads=threads
        )


@dataclass
class Slot:
    """Holds the one engine that is loaded, and what the stages were called with where that is wanted."""

    threads: int | None
    advance: Advance
    calls: dict[str, list[Call]] | None = None
    _loaded: tuple[FloatStage, Engine] | None = field(default=None, repr=False)

    def engine(self, stage: FloatStage) -> Engine:
        """Return a stage's engine, in the place of the last one."""
        if self._loaded is None or self._loaded[0] is not stage:
            self._loaded = None
            self._loaded = stage, stage.load(self.threads, self.advance)
        return self._loaded[1]

    def close(self) -> None:
        """Let the engine go."""
        self._loaded = None


class SharedStage:
    """A stage that is loaded into a slot when it runs."""

    def __init__(self, name: str, stage: FloatStage, slot: Slot) -> None:
        self._name, self._stage, self._slot = name, stage, slot
        self._contract = stage.stage.contract

    @property
    def contract(self) -> StageContract:
        """The stage's."""
        return self._contract

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        """Return a function that runs the stage on these arrays."""
        bound: list[tuple[Engine, Callable[[], None]]] = []

        def run() -> None:
            engine = self._slot.engine(self._stage)
            if not bound or bound[0][0] is not engine:
                bound[:] = [(engine, engine.bind(inputs, outputs))]
            given = self._copied(inputs) if self._slot.calls is not None else {}
            bound[0][1]()
            if self._slot.calls is not None:
                made = {name: array.copy() for name, array in outputs.items()}
                self._slot.calls.setdefault(self._name, []).append(Call(given, made))
            bound.clear()  # no binding may keep an engine alive

        return run

    def _copied(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return copies of what is fed; what the prefix gave is copied once for all steps."""
        assert self._slot.calls is not None
        before = self._slot.calls.get(self._name)
        kept = before[0].inputs if before else {}
        return {n: kept[n] if n in kept and n.startswith("prefix_") else a.copy() for n, a in inputs.items()}


def run_once(engine: Any, inputs: Mapping[str, Array], outputs: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Run a stage on arrays; `outputs` are the shapes of what it gives, float32."""
    made: dict[str, Array] = {name: np.zeros(shape, np.float32) for name, shape in outputs.items()}
    engine.bind({n: np.ascontiguousarray(a) for n, a in inputs.items()}, made)()
    return made
