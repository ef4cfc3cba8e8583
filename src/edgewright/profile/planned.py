"""The plan's count of what was run: from the very graph that the bundle ships, at the sizes of each call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from edgewright.bundle import Manifest
from edgewright.errors import BundleError, EdgewrightError, ModelError, UsageError
from edgewright.files import inside
from edgewright.plan.bundle import FLOAT, cache_width
from edgewright.plan.lowered import LoweredStage
from edgewright.plan.model import Model
from edgewright.plan.plan import open_model
from edgewright.plan.work import Call, Widths, Work
from edgewright.profile.owners import EngineNode, Owners
from edgewright.profile.record import Called
from edgewright.runtime.paired import PREFILL
from edgewright.targets.platform import find_platform


class Graphs:
    """The graphs of a bundle's stages, read without weights.

    With `checkpoint`, the source of the bundle, work that can't be counted on a graph is counted on the model's own.
    """

    def __init__(self, folder: Path, manifest: Manifest, checkpoint: str | Path | None = None) -> None:
        self._folder, self._manifest, self._checkpoint = folder, manifest, checkpoint
        self._source: Model | None = None
        self._models: dict[str, ir.Model] = {}
        self._counted: dict[tuple[Any, ...], list[Work]] = {}

    def owners(self, stage: str, engine: Iterable[EngineNode] = ()) -> Owners:
        """Return what finds the nodes of a stage that layers run; `engine` is the graph of its engine."""
        return Owners(self._model(stage).graph, tuple(engine))

    def engine(self, stage: str) -> ir.Graph:
        """Return the graph that a stage was compiled to, where it is ONNX; raises BundleError."""
        return self._read(self._manifest.stages[stage].engine or self._manifest.stages[stage].graph, stage).graph

    def _model(self, stage: str) -> ir.Model:
        if stage not in self._models:
            self._models[stage] = self._read(self._manifest.stages[stage].graph, stage)
        return self._models[stage]

    def _read(self, name: str, stage: str) -> ir.Model:
        try:
            return ir.load(inside(self._folder, name))
        except EdgewrightError:
            raise
        except Exception as error:
            raise BundleError(
                f"The graph of the stage {stage} can't be read ({type(error).__name__}): build it again."
            ) from None

    def work(self, calls: Iterable[Called]) -> dict[str, list[Work]]:
        """Return the work of calls, by stage; raises ModelError for what can't be counted."""
        found: dict[str, list[Work]] = {}
        for call in calls:
            found.setdefault(call.stage, []).extend(self._count(call))
        return found

    def _count(self, call: Called) -> list[Work]:
        key = (call.stage, call.past, *sorted(call.sizes.items()))
        if key not in self._counted:
            entry = self._manifest.stages[call.stage]
            stage = LoweredStage(call.stage, self._model(call.stage), entry.contract, entry.dialect)
            asked = Call(_whole(call.sizes), call.past, Widths(FLOAT, cache_width(entry.contract)))
            try:
                self._counted[key] = stage.count(asked)
            except ModelError:
                if self._checkpoint is None:
                    raise
                self._counted[key] = list(self._semantic().count(_stage_of(call.stage), asked))
            except (KeyError, IndexError, TypeError, ValueError, AssertionError) as error:
                raise ModelError(
                    f"The work of the stage {call.stage} can't be counted ({type(error).__name__})."
                ) from None
        return self._counted[key]

    def _semantic(self) -> Model:
        """Return the model of the checkpoint, planned as the bundle was built; raises the errors of `open_model`."""
        if self._source is None:
            recipe = str(self._manifest.recipe["name"])
            self._source = open_model(str(self._checkpoint), find_platform("cpu"), recipe=recipe)
            kind = str(self._manifest.model["model_type"])
            if self._source.kind != kind:
                raise UsageError(f"The checkpoint is of {self._source.kind} and the bundle of {kind}: give its source.")
        return self._source


def _stage_of(stage: str) -> str:
    """Return the stage of the model that a bundle's stage is: long appends have one of their own there."""
    return "llm" if stage == PREFILL else stage


def _whole(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of a call, with those that the plan always asks for."""
    return {"batch": 1, "capacity": 1, **sizes}
