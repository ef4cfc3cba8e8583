"""The whole plan: what it is of, its stages, its memory, the verdict, and what would make it fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewright.errors import UsageError
from edgewright.plan.changes import Change, changes
from edgewright.plan.estimate import Estimator, Request, StagePlan, sizes_of
from edgewright.plan.memory import Memory
from edgewright.plan.model import Model
from edgewright.plan.source import Checkpoint, open_stages, refuse_context
from edgewright.targets.platform import Platform
from edgewright.targets.support import check_support

if TYPE_CHECKING:
    from edgewright.checkpoint.policy import PolicyOptions


@dataclass(frozen=True)
class Plan:
    """An estimate. `capacity` is the device's memory and `fits` the verdict; both are None where that isn't known.

    `changes` are there where it does not fit, the cheapest first; `of_model` are notes of the model.
    """

    model: str
    kind: str
    platform: Platform
    recipe: str
    sizes: Mapping[str, int]
    stages: tuple[StagePlan, ...]
    memory: Memory
    capacity: int | None
    efficiency: float
    bandwidth: float | None
    changes: tuple[Change, ...] = ()
    of_model: tuple[str, ...] = ()

    @property
    def fits(self) -> bool | None:
        """Whether the memory is enough."""
        return None if self.capacity is None else self.memory.total <= self.capacity

    @property
    def cheapest(self) -> Change | None:
        """The first change that makes it fit."""
        return next((change for change in self.changes if change.fits), None)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know of the numbers."""
        unknown = sorted({dtype for stage in self.stages for dtype in stage.bound.unknown})
        found = [*self.platform.notes, *self.of_model]
        if unknown:
            found.append(
                f"no public peak of {', '.join(unknown)} on {self.platform.title}: such work is bounded by bytes alone"
            )
        if self.bandwidth is None:
            found.append(f"no public bandwidth of {self.platform.title}: no latencies without --bandwidth")
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON-compatible values."""
        return {
            "model": self.model,
            "kind": self.kind,
            "platform": self.platform.name,
            "recipe": self.recipe,
            "sizes": dict(self.sizes),
            "efficiency": self.efficiency,
            "bandwidth_bytes_per_s": self.bandwidth,
            "stages": [stage.to_json() for stage in self.stages],
            "memory": self.memory.to_json(),
            "capacity_bytes": self.capacity,
            "fits": self.fits,
            "changes": [change.to_json() for change in self.changes],
            "cheapest": None if self.cheapest is None else self.cheapest.to_json(),
            "sources": {key: dict(vars(source)) for key, source in self.platform.sources.items()},
            "notes": list(self.notes),
        }


def make_plan(model: Model, platform: Platform, request: Request) -> Plan:
    """Return the plan of a model on a platform; raises UsageError for sizes that have no meaning."""
    estimator = Estimator(model, platform, request)
    memory, capacity = estimator.memory(), estimator.capacity
    fits = capacity is None or memory.total <= capacity
    return Plan(
        model=model.path.name,
        kind=model.kind,
        platform=platform,
        recipe=model.recipe,
        sizes=sizes_of(estimator),
        stages=tuple(estimator.stages()),
        memory=memory,
        capacity=capacity,
        efficiency=request.efficiency,
        bandwidth=request.bandwidth or platform.bandwidth_bytes_per_s,
        changes=() if fits or capacity is None else tuple(changes(estimator, capacity)),
        of_model=model.notes,
    )


def open_model(
    path: str | Path,
    platform: Platform,
    *,
    recipe: str | None = None,
    context: int | None = None,
    options: PolicyOptions | None = None,
) -> Model:
    """Open a checkpoint, or a bundle or exported folder, to be planned; raises the errors of both.

    Raises RecipeError for formats that the platform lacks, and UsageError on what has no meaning.
    """
    if not (Path(path) / "manifest.json").is_file():
        opened = open_stages(path, context=context, options=options)
        chosen = opened.recipe(recipe)
        check_support(platform, chosen)
        return Checkpoint(opened, platform, chosen)
    if recipe is not None or options is not None:
        raise UsageError(
            f"{Path(path).name} is a bundle, whose weights are what they are: leave --recipe and the flags of policies "
            "out, or plan the checkpoint."
        )
    from edgewright.plan.bundle import Bundle

    bundle = Bundle(path, platform)
    if bundle.spec is not None:
        refuse_context(path, context)
    return bundle
