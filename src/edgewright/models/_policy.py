"""From a policy's checkpoint to its stages: `vision`, `prefix` and `denoise`, with their contracts."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import onnx_ir as ir

from edgewright.checkpoint.policies.sizes import PolicySizes
from edgewright.contract import Dim, StageContract, TensorContract
from edgewright.errors import UnknownModelTypeError
from edgewright.graph import GraphBuilder, Stage
from edgewright.models._policy_bind import bind
from edgewright.nn import Module, Prefix

#: The kinds that can be built; each is a module of this package.
POLICIES = ("pi0", "pi05", "smolvla")

Values = Mapping[str, ir.Value]


class Images(Protocol):
    """What building needs of a policy's spec: height and width of the images in pixels."""

    @property
    def image_size(self) -> tuple[int, int]: ...


class PolicyWeights(Protocol):
    """What building needs of a checkpoint: `tensors` maps canonical names to stored tensors."""

    @property
    def kind(self) -> str: ...
    @property
    def sizes(self) -> PolicySizes: ...
    @property
    def tensors(self) -> Mapping[str, Any]: ...
    @property
    def spec(self) -> Images: ...


@dataclass(frozen=True)
class PolicyBounds:
    """The largest sizes the stages are to take; `prefix` counts image tokens, text and what else stands there."""

    batch: int = 16
    views: int = 16
    prefix: int = 2048
    horizon: int = 256


class PolicyNetwork(Module, ABC):
    """A policy's modules, and how each stage is made of them."""

    #: Whether prefix and denoise take the robot's state.
    state_in_prefix = False
    state_in_suffix = False
    #: Whether what the expert makes of the prefix alone is made with the prefix.
    cross_once = False

    def __init__(self, source: PolicyWeights, image_tokens: int, prefix_layers: int) -> None:
        self.sizes, self.image_size = source.sizes, source.spec.image_size
        self.image_tokens, self.prefix_layers = image_tokens, prefix_layers

    @abstractmethod
    def vision(self, g: GraphBuilder, images: ir.Value) -> ir.Value:
        """Return the features of images `[views, 3, height, width]` as they stand in the prefix."""

    @abstractmethod
    def prefix(
        self, g: GraphBuilder, values: Values, *, transposed: bool, kv_only: bool
    ) -> tuple[ir.Value | None, list[Prefix]]:
        """Return the prefix's hidden states, None with `kv_only`, and each layer's keys and values."""

    @abstractmethod
    def denoise(self, g: GraphBuilder, values: Values, prefix: Sequence[Prefix]) -> ir.Value:
        """Return the velocity of `x_t`."""


class Family(Protocol):
    """What the module of a kind offers."""

    def network(self, source: PolicyWeights, bounds: PolicyBounds) -> PolicyNetwork: ...


def build_policy(
    source: PolicyWeights,
    *,
    kv_only: bool = True,
    kv_transposed: bool = False,
    cross_once: bool = False,
    bounds: PolicyBounds | None = None,
) -> dict[str, Stage]:
    """Build the stages of a policy's checkpoint, in the order they run in.

    `vision`: `images` float32 `[views, 3, height, width]` in -1..1 to `image_features` `[views, image_tokens, width]`.
    `prefix`: `image_features` `[batch, image_slots, width]`, `token_ids` int64 `[batch, text]`, `prefix_mask` int64
    `[batch, prefix]` and, where the state is one of its tokens, `state` `[batch, model_state_dim]` to `prefix_key.i`
    and `prefix_value.i` `[batch, kv_heads, prefix, head_dim]`; with `kv_transposed` the last two axes of keys are
    swapped, without `kv_only` the last layer is computed as well and gives `prefix_hidden` `[batch, prefix, width]`.
    `denoise`: `x_t` `[batch, horizon, action_dim]`, `time_embedding` `[batch, times, expert_width]` with `times` 1 or
    the horizon, `state` where it is one of its tokens, `prefix_mask` and the prefix to `velocity`, of x_t's shape.
    With `cross_once` what SmolVLA's expert makes of the prefix alone is made with it and given in the prefix's place.
    Raises TensorMismatchError (all mismatches listed at once), ConfigError, UnknownModelTypeError.
    """
    if source.kind not in POLICIES:
        raise UnknownModelTypeError(
            f"The policy {source.kind!r} isn't supported; known are {', '.join(POLICIES)}: convert the checkpoint."
        )
    limits = bounds or PolicyBounds()
    family: Family = importlib.import_module(f"edgewright.models.{source.kind}")
    network = family.network(source, limits)
    network.cross_once = cross_once
    network.assign_names()
    bind(network, source.tensors, getattr(source, "quantization", None))
    return {
        "vision": _vision(network, limits),
        "prefix": _prefix(network, limits, kv_only=kv_only, transposed=kv_transposed),
        "denoise": _denoise(network, limits, transposed=kv_transposed),
    }


def _stage(
    name: str,
    inputs: Sequence[TensorContract],
    outputs: Sequence[TensorContract],
    bounds: dict[str, tuple[int, int]],
    forward: Callable[[GraphBuilder, Values], Values],
) -> Stage:
    """Return a stage whose graph `forward` makes of its inputs, by name."""
    contract = StageContract(tuple(inputs), tuple(outputs), bounds)
    stage = Stage(name, ir.Graph([], [], nodes=[], name=name), contract)
    g = GraphBuilder(stage)
    results = forward(g, {tensor.name: g.input(tensor) for tensor in inputs})
    for tensor in outputs:
        g.output(results[tensor.name], tensor)
    stage.drop_unused()
    return stage


def _vision(network: PolicyNetwork, bounds: PolicyBounds) -> Stage:
    sizes = network.sizes
    stage = _stage(
        "vision",
        [_floats("images", "views", 3, *network.image_size)],
        [_floats("image_features", "views", network.image_tokens, sizes.text.width)],
        {"views": (1, bounds.views)},
        lambda g, values: {"image_features": network.vision(g, values["images"])},
    )
    stage.layers = sizes.vision.layers
    return stage


def _prefix(network: PolicyNetwork, bounds: PolicyBounds, *, kv_only: bool, transposed: bool) -> Stage:
    sizes = network.sizes
    inputs = [
        _floats("image_features", "batch", "image_slots", sizes.text.width),
        TensorContract("token_ids", "int64", ("batch", "text")),
        TensorContract("prefix_mask", "int64", ("batch", "prefix")),
    ]
    if network.state_in_prefix:
        inputs.append(_floats("state", "batch", sizes.state_dim))
    outputs = _prefix_tensors(network, transposed=transposed)
    if not kv_only:
        outputs.append(_floats("prefix_hidden", "batch", "prefix", sizes.text.width))

    def forward(g: GraphBuilder, values: Values) -> Values:
        hidden, read = network.prefix(g, values, transposed=transposed, kv_only=kv_only)
        results = {} if hidden is None else {"prefix_hidden": hidden}
        for index, layer in enumerate(read):
            results |= {f"prefix_key.{index}": layer.key, f"prefix_value.{index}": layer.value}
        return results

    limits = {
        "batch": (1, bounds.batch),
        "image_slots": (0, bounds.prefix),
        "text": (0, bounds.prefix),
        "prefix": (1, bounds.prefix),
    }
    stage = _stage("prefix", inputs, outputs, limits, forward)
    stage.layers = network.prefix_layers
    return stage


def _denoise(network: PolicyNetwork, bounds: PolicyBounds, *, transposed: bool) -> Stage:
    sizes = network.sizes
    actions: tuple[Dim, ...] = ("batch", "horizon", sizes.action_dim)
    inputs = [_floats("x_t", *actions), _floats("time_embedding", "batch", "times", sizes.expert.width)]
    if network.state_in_suffix:
        inputs.append(_floats("state", "batch", sizes.state_dim))
    inputs.append(TensorContract("prefix_mask", "int64", ("batch", "prefix")))
    inputs += _prefix_tensors(network, transposed=transposed)

    def forward(g: GraphBuilder, values: Values) -> Values:
        read = [
            Prefix(values[f"prefix_key.{i}"], values[f"prefix_value.{i}"], transposed)
            for i in range(network.prefix_layers)
        ]
        return {"velocity": network.denoise(g, values, read)}

    limits = {
        "batch": (1, bounds.batch),
        "horizon": (1, bounds.horizon),
        "times": (1, bounds.horizon),
        "prefix": (1, bounds.prefix),
    }
    stage = _stage("denoise", inputs, [_floats("velocity", *actions)], limits, forward)
    stage.layers = sizes.expert.layers
    return stage


def _prefix_tensors(network: PolicyNetwork, *, transposed: bool) -> list[TensorContract]:
    sizes = network.sizes.text
    heads, dim = sizes.kv_heads, sizes.head_dim
    key: tuple[Dim, ...] = ("batch", heads, dim, "prefix") if transposed else ("batch", heads, "prefix", dim)
    return [
        tensor
        for index in range(network.prefix_layers)
        for tensor in (
            _floats(f"prefix_key.{index}", *key),
            _floats(f"prefix_value.{index}", "batch", heads, "prefix", dim),
        )
    ]


def _floats(name: str, *shape: Dim) -> TensorContract:
    return TensorContract(name, "float32", shape)
