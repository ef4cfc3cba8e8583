"""A policy's stages as the loop runs them: bound to memory that is used again, their sizes checked before they run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edgewright.contract import Dim, StageContract, TensorContract
from edgewright.errors import BundleError, GenerationError
from edgewright.runtime.engine import array_dtype, zeros
from edgewright.runtime.policy.spec import PolicySpec

Array = npt.NDArray[Any]
#: A symbolic dimension's size, by its name.
Sizes = Mapping[str, int]

STAGES = ("vision", "prefix", "denoise")


class Buffers:
    """Memory by name. What a name gives is overwritten by its next use; it grows when more is asked for."""

    def __init__(self) -> None:
        self._memory: dict[str, npt.NDArray[np.uint8]] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an array of a contract's dtype; its content is whatever was there."""
        kind = array_dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        if name not in self._memory or self._memory[name].size < size:
            self._memory[name] = zeros((size,), np.uint8)
        return self._memory[name][:size].view(kind).reshape(shape)


class StageShape:
    """The shapes of a stage's tensors, and which of the sizes it was built for are fixed.

    `wanted` maps the inputs and outputs that the runtime knows to their shapes; a contract may have an integer where
    `wanted` has a symbol, and the stage then takes that size only. Raises BundleError when the contract has other
    tensors than `wanted`, or others shapes.
    """

    def __init__(self, name: str, contract: StageContract, wanted: Mapping[str, tuple[str, tuple[Dim, ...]]]) -> None:
        self.name, self.contract = name, contract
        self.tensors = {tensor.name: tensor for tensor in (*contract.inputs, *contract.outputs)}
        self.fixed: dict[str, int] = {}
        if odd := sorted(wanted.keys() ^ self.tensors.keys()):
            raise BundleError(
                f"The bundle's {name} stage and this runtime don't agree on {', '.join(odd)}: build the bundle again "
                "with this version of edgewright."
            )
        for key, (dtype, shape) in wanted.items():
            self._compare(self.tensors[key], dtype, shape)
        self.symbols = {dim for _, shape in wanted.values() for dim in shape if isinstance(dim, str)}

    def _compare(self, tensor: TensorContract, dtype: str, shape: tuple[Dim, ...]) -> None:
        fits = tensor.dtype == dtype and len(tensor.shape) == len(shape)
        for found, dim in zip(tensor.shape, shape, strict=False):
            if isinstance(dim, str) and isinstance(found, int):
                fits = fits and self.fixed.setdefault(dim, found) == found
            else:
                fits = fits and found == dim
        if not fits:
            raise BundleError(
                f"The bundle's {self.name} stage has {tensor.name} as {tensor.dtype} {list(tensor.shape)} where the "
                f"policy needs {dtype} {list(shape)}: build the bundle again."
            )

    def shape(self, tensor: str, sizes: Sizes) -> tuple[int, ...]:
        """Return a tensor's shape for the sizes of its symbolic dimensions."""
        return tuple(dim if isinstance(dim, int) else sizes[dim] for dim in self.tensors[tensor].shape)

    def largest(self, symbol: str) -> int | None:
        """Return the largest size that a dimension may have, None where nothing limits it."""
        if symbol in self.fixed:
            return self.fixed[symbol]
        return self.contract.bounds[symbol][1] if symbol in self.contract.bounds else None

    def require(
        self, sizes: Sizes, error: type[BundleError] | type[GenerationError], advice: str = "build it again"
    ) -> None:
        """Raise `error` unless the stage takes these sizes."""
        for symbol, size in sizes.items():
            if symbol not in self.symbols:
                continue
            low, high = self.contract.bounds.get(symbol, (size, size))
            if self.fixed.get(symbol, size) != size:
                raise error(
                    f"The bundle's {self.name} stage was built for {symbol} {self.fixed[symbol]} and {size} is needed: "
                    f"{advice}."
                )
            if not low <= size <= high:
                raise error(
                    f"The bundle's {self.name} stage was built for {symbol} {low} to {high} and {size} is needed: "
                    f"{advice}."
                )


def policy_shapes(
    spec: PolicySpec, contracts: Mapping[str, StageContract]
) -> tuple[StageShape, StageShape, StageShape]:
    """Return the shapes of vision, prefix and denoise; raises BundleError where they don't fit each other or the spec.

    What the runtime doesn't know of denoise must come from the prefix, under the same name; what of that nobody reads
    is not asked for.
    """
    if missing := [name for name in STAGES if name not in contracts]:
        raise BundleError(f"The bundle lacks the policy's stages {', '.join(missing)}: build it again.")
    vision, prefix, denoise = (contracts[name] for name in STAGES)
    width = _width(vision)
    images = {"images": ("float32", ("views", 3, *spec.image_size))}
    features = {"image_features": ("float32", ("views", spec.image_tokens, width))}
    shared = {t.name: t for t in prefix.outputs}
    read = {t.name: (shared[t.name].dtype, shared[t.name].shape) for t in denoise.inputs if t.name in shared}
    given: dict[str, tuple[str, tuple[Dim, ...]]] = {
        "image_features": ("float32", ("batch", "image_slots", width)),
        "token_ids": ("int64", ("batch", "text")),
        "prefix_mask": ("int64", ("batch", "prefix")),
    }
    state = {"state": ("float32", ("batch", spec.model_state_dim))}
    for name, (dtype, shape) in read.items():
        if dtype != prefix.kv_dtype:
            raise BundleError(
                f"The bundle's {name} is {dtype} where its prefix hands over {prefix.kv_dtype}: build it again."
            )
        if odd := {dim for dim in shape if isinstance(dim, str)} - {"batch", "prefix"}:
            raise BundleError(
                f"The bundle's {name} depends on {', '.join(sorted(odd))}, which a prefix doesn't have: build it again."
            )
    unread = {t.name: (t.dtype, t.shape) for t in prefix.outputs if t.name not in read}
    return (
        StageShape("vision", vision, {**images, **features}),
        StageShape("prefix", prefix, {**given, **_if_taken(prefix, state), **read, **unread}),
        StageShape("denoise", denoise, {**_flow(spec, denoise), **_if_taken(denoise, state), **read}),
    )


def _flow(spec: PolicySpec, denoise: StageContract) -> dict[str, tuple[str, tuple[Dim, ...]]]:
    """Return what a denoise stage has besides the prefix: one step, or the whole loop."""
    taken = {tensor.name: tensor for tensor in denoise.inputs}
    actions: tuple[str, tuple[Dim, ...]] = ("float32", ("batch", "horizon", spec.model_action_dim))
    mask: dict[str, tuple[str, tuple[Dim, ...]]] = {"prefix_mask": ("int64", ("batch", "prefix"))}
    if "noise" in taken:
        return {**mask, "noise": actions, "actions": actions}
    if "time_index" in taken:
        return {**mask, "x_t": actions, "velocity": actions, "time_index": ("int64", ("batch", "times"))}
    shape = taken["time_embedding"].shape if "time_embedding" in taken else (0,)
    time: tuple[str, tuple[Dim, ...]] = ("float32", ("batch", "times", shape[-1]))
    return {**mask, "x_t": actions, "velocity": actions, "time_embedding": time}


def _if_taken(
    contract: StageContract, tensors: Mapping[str, tuple[str, tuple[Dim, ...]]]
) -> Mapping[str, tuple[str, tuple[Dim, ...]]]:
    taken = {tensor.name for tensor in contract.inputs}
    return {name: tensor for name, tensor in tensors.items() if name in taken}


def _width(vision: StageContract) -> Dim:
    """Return the width of the image features; whatever is wrong with their shape is named later."""
    found = [tensor.shape[-1] for tensor in vision.outputs if tensor.name == "image_features" and tensor.shape]
    return found[0] if found else 0
