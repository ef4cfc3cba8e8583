"""The sizes of a stage's free dimensions: those that a tool takes fixed, and those that samples have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import onnx

from edgewright.contract import Dim, StageContract, TensorContract
from edgewright.errors import UsageError
from edgewright.graph.writer import MODEL_FILE
from edgewright.plugins import nearest
from edgewright.targets.external.tool import Tool

#: Sizes of a language model's samples where they are free.
_SIZES = {"batch": 1, "seq": 32, "capacity": 256, "positions": 1, "views": 1, "times": 1}


def fixed(contract: StageContract, shapes: Mapping[str, int]) -> StageContract:
    """Return a contract with numbers in the place of symbolic sizes; UsageError for one outside the bounds."""
    for symbol, size in shapes.items():
        low, high = contract.bounds.get(symbol, (size, size))
        if not low <= size <= high:
            raise UsageError(f"The size {symbol}={size} is outside the stage's bounds ({low} to {high}).")

    def tensors(of: tuple[TensorContract, ...]) -> tuple[TensorContract, ...]:
        return tuple(replace(t, shape=tuple(_dim(dim, shapes) for dim in t.shape)) for t in of)

    return replace(contract, inputs=tensors(contract.inputs), outputs=tensors(contract.outputs))


def _dim(dim: Dim, shapes: Mapping[str, int]) -> Dim:
    return dim if isinstance(dim, int) else shapes.get(dim, dim)


def symbols_of(contract: StageContract) -> list[str]:
    """Return the names of a contract's free sizes, sorted."""
    tensors = (*contract.inputs, *contract.outputs)
    return sorted({dim for tensor in tensors for dim in tensor.shape if isinstance(dim, str)})


def symbols_beside(folder: Path) -> set[str]:
    """Return the free sizes of all stages beside the one in `folder`."""
    found: set[str] = set()
    for path in folder.parent.glob(f"*/{MODEL_FILE}"):
        graph = onnx.load(path, load_external_data=False).graph
        for value in (*graph.input, *graph.output):
            found |= {dim.dim_param for dim in value.type.tensor_type.shape.dim if dim.dim_param}
    return found


def chosen_sizes(folder: Path, tool: Tool, contract: StageContract, asked: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes that a stage's free ones get: what was asked for, else the tool's own.

    Raises UsageError for a size that no stage has, and for one that is left free where the tool takes none.
    """
    symbols = symbols_of(contract)
    if odd := sorted(asked.keys() - symbols):
        known = symbols_beside(folder)
        if missing := [name for name in odd if name not in known]:
            raise UsageError(f"No stage has a free size {missing[0]}; {nearest(missing[0], sorted(known))}")
    sizes = {name: size for name, size in {**tool.shapes, **asked}.items() if name in symbols}
    if tool.static and (free := [name for name in symbols if name not in sizes]):
        most = all_sizes(contract, sizes)
        wanted = ",".join(f"{name}={most[name]}" for name in free)
        raise UsageError(
            f"The stage {folder.name} has the free sizes {', '.join(free)}, and {tool.title} takes fixed ones: add "
            f"--target-option shapes={wanted}, or other ones."
        )
    return sizes


def all_sizes(contract: StageContract, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return a size for each symbol: those that are fixed, else what suits samples.

    A policy's prefix is its images, its text and its state together; raises UsageError where fixed sizes say otherwise.
    """
    found = {**{name: _size(name, bounds) for name, bounds in contract.bounds.items()}, **sizes}
    if not {"image_slots", "text", "prefix"} <= contract.bounds.keys():
        return found
    state = int(any(tensor.name == "state" for tensor in contract.inputs))
    if "text" not in sizes:
        images = sizes.get("image_slots", found["prefix"] - state - max(found["prefix"] // 4, 1))
        found["text"] = found["prefix"] - state - images
    if "image_slots" not in sizes:
        found["image_slots"] = found["prefix"] - state - found["text"]
    if "prefix" not in sizes:
        found["prefix"] = found["image_slots"] + found["text"] + state
    if found["prefix"] != found["image_slots"] + found["text"] + state:
        raise UsageError(
            f"A prefix of {found['prefix']} is not image_slots {found['image_slots']} and text {found['text']}"
            f"{' and one of the state' if state else ''} together: correct --target-option shapes."
        )
    return found


def _size(name: str, bounds: tuple[int, int]) -> int:
    low, high = bounds
    return min(max(_SIZES.get(name, high), low), high)
