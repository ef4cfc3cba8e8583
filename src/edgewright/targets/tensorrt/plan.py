"""A build plan: all that a builder of TensorRT needs to know of a stage besides its graph, as data.

It is written beside the graph as `engine.plan.json`, so that any builder, here or on the device, makes the same engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from edgewright.contract import Dim, StageContract
from edgewright.errors import BundleError

#: Version of the layout below.
SCHEMA = 1
#: Files of a stage that a back end makes.
PLAN_FILE, ENGINE_FILE, REPORT_FILE = "engine.plan.json", "engine.trt", "engine.report.json"
#: What a classic builder measured, for the next build; TensorRT for RTX measures nothing before it runs.
TIMING_FILE = "engine.timing"
#: Longest run of rows that the runtime gives to a language model at once.
ROWS = 512

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Bounds:
    """The smallest, the usual and the largest shape of an input."""

    min: Shape
    opt: Shape
    max: Shape


@dataclass(frozen=True)
class Profile:
    """Shapes that an engine is made for: of every input with a dimension that isn't fixed, by name."""

    name: str
    shapes: Mapping[str, Bounds]


@dataclass(frozen=True)
class BuildPlan:
    """How an engine is made.

    `graph` and `weights` are files beside the plan. `capability` is the GPU's compute capability, "8.9". `plugins` are
    libraries beside the plan, loaded in this order before the graph is read. `workspace_bytes` None leaves it to the
    builder. `versions` are those of what made plan and engine, `sha256` the digests of the files it is made of.
    """

    stage: str
    capability: str
    profiles: tuple[Profile, ...]
    graph: str = "model.onnx"
    engine: str = ENGINE_FILE
    strongly_typed: bool = True
    workspace_bytes: int | None = None
    timing_cache: str = TIMING_FILE
    plugins: tuple[str, ...] = ()
    versions: Mapping[str, str] | None = None
    sha256: Mapping[str, str] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON-compatible values."""
        return {"schema": SCHEMA, **asdict(self)}


def plan_of(
    stage: str,
    contract: StageContract,
    capability: str,
    *,
    workspace_bytes: int | None = None,
    plugins: tuple[str, ...] = (),
    versions: Mapping[str, str] | None = None,
    sha256: Mapping[str, str] | None = None,
) -> BuildPlan:
    """Return the plan of a stage with that contract; raises BundleError for a dimension without bounds."""
    profiles = _dialog_profiles(contract) if _is_dialog(contract) else _frame_profiles(contract)
    return BuildPlan(
        stage,
        capability,
        profiles,
        workspace_bytes=workspace_bytes,
        plugins=plugins,
        versions=dict(versions or {}),
        sha256=dict(sha256 or {}),
    )


def within(contract: StageContract, batch: int | None) -> StageContract:
    """Return the contract of an engine that takes at most `batch` at once, and no more rows than the runtime gives."""
    bounds = dict(contract.bounds)
    if batch is not None and "batch" in bounds:
        low, high = bounds["batch"]
        bounds["batch"] = (low, max(low, min(batch, high)))
    if _is_dialog(contract):
        for name in ("seq", "positions"):
            if name in bounds:
                low, high = bounds[name]
                bounds[name] = (low, max(low, min(ROWS, high)))
    return replace(contract, bounds=bounds)


def _is_dialog(contract: StageContract) -> bool:
    """Tell whether it is the stage of a language model: it is told how many tokens it holds."""
    return any(tensor.name == "past_lengths" for tensor in contract.inputs)


def _dialog_profiles(contract: StageContract) -> tuple[Profile, ...]:
    """Return a profile for prompts, of up to all the rows, and one for tokens that come one by one."""
    bounds = _bounds(contract)
    one = {**bounds, "seq": (1, 1, 1)}
    if "positions" in bounds:
        low, _, high = bounds["positions"]
        one["positions"] = (low, min(1, high), min(1, high))
        bounds["positions"] = (low, min(1, high), high)
    return _profile(contract, "context", bounds), _profile(contract, "generation", one)


def _frame_profiles(contract: StageContract) -> tuple[Profile, ...]:
    profile = _profile(contract, "frame", _joined(contract, _bounds(contract)))
    return (profile,) if profile.shapes else ()


def _joined(contract: StageContract, bounds: dict[str, tuple[int, int, int]]) -> dict[str, tuple[int, int, int]]:
    """Let the usual sizes of a policy's prefix fit each other: its rows are those of images, text and state."""
    if not {"image_slots", "text", "prefix"} <= bounds.keys():
        return bounds
    own = sum(tensor.name == "state" for tensor in contract.inputs)
    most = bounds["prefix"][2]
    text = max(0, most - own) // 2
    rows = {"text": text, "image_slots": most - own - text}
    return {**bounds, **{name: (bounds[name][0], size, bounds[name][2]) for name, size in rows.items()}}


def _bounds(contract: StageContract) -> dict[str, tuple[int, int, int]]:
    """Return smallest, usual and largest value of every symbol: one at once, of the rest as much as there can be."""
    return {
        name: (low, max(low, 1) if name == "batch" else high, high) for name, (low, high) in contract.bounds.items()
    }


def _profile(contract: StageContract, name: str, bounds: Mapping[str, tuple[int, int, int]]) -> Profile:
    shapes = {}
    for tensor in contract.inputs:
        sizes = [_size(contract, tensor.name, dim, bounds) for dim in tensor.shape]
        if any(low != high for low, _, high in sizes) or any(isinstance(dim, str) for dim in tensor.shape):
            low, opt, high = zip(*sizes, strict=True)
            shapes[tensor.name] = Bounds(low, opt, high)
    return Profile(name, shapes)


def _size(
    contract: StageContract, tensor: str, dim: Dim, bounds: Mapping[str, tuple[int, int, int]]
) -> tuple[int, int, int]:
    if isinstance(dim, int):
        return dim, dim, dim
    if dim not in bounds:
        known = ", ".join(contract.bounds) or "none"
        raise BundleError(
            f"The input {tensor} has a dimension {dim} without bounds, which TensorRT needs (there are {known}): "
            "export the model again."
        )
    return bounds[dim]
