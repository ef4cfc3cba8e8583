"""A decoder layer: a mixer (attention, state space ...) and a feed-forward network, with norms around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.nn.cache import Cache, KVShape
from edgewright.nn.layers import scaled
from edgewright.nn.module import Module


class Mixer(Protocol):
    """What mixes positions: it declares its caches, mixes, and projects the mixed values back."""

    kv: KVShape | None
    states: Mapping[str, tuple[int, ...]]
    kv_from: int | None
    dual_rope: int | None

    def __call__(self, g: GraphBuilder, x: ir.Value, cache: Cache) -> ir.Value: ...

    def project(self, g: GraphBuilder, mixed: ir.Value) -> ir.Value: ...


@dataclass(frozen=True)
class LayerNames:
    """The checkpoint's names of a layer's parts; a norm that is None isn't there."""

    mixer: str = "self_attn"
    mlp: str = "mlp"
    before_mixer: str | None = "input_layernorm"
    after_mixer: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None


#: A norm in front of mixer and MLP each.
PRE_NORM = LayerNames()
#: Four norms: in front of and behind mixer and MLP (Gemma 2 and 3).
SANDWICH = LayerNames(
    after_mixer="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)
#: Norms behind mixer and MLP only (OLMo 2).
POST_NORM = LayerNames(
    before_mixer=None,
    after_mixer="post_attention_layernorm",
    before_mlp=None,
    after_mlp="post_feedforward_layernorm",
)


class DecoderLayer(Module):
    """x + mixer(norm(x)), then the same with the MLP; either may be missing.

    `norm` makes each norm. With `parallel` the MLP reads the layer's input, through its own norm or the mixer's, and
    both results are added at once. `residual_scale` multiplies what is added.
    """

    def __init__(
        self,
        mixer: Module | None,
        mlp: Module | None,
        norm: Callable[[], Module],
        *,
        names: LayerNames = PRE_NORM,
        parallel: bool = False,
        residual_scale: float | None = None,
    ) -> None:
        self._names, self._parallel, self._scale = names, parallel, residual_scale
        parts = {names.mixer: mixer, names.mlp: mlp}
        for name in ((names.before_mixer, names.after_mixer) if mixer is not None else ()) + (
            (names.before_mlp, names.after_mlp) if mlp is not None else ()
        ):
            if name is not None and name not in parts:
                parts[name] = norm()
        for name, part in parts.items():
            if part is not None:
                setattr(self, name, part)

    @property
    def mixing(self) -> Mixer | None:
        """The part with caches."""
        return getattr(self, self._names.mixer, None)

    def forward(self, g: GraphBuilder, x: ir.Value, cache: Cache, select: ir.Value | None = None) -> ir.Value:
        """Return hidden states; with `select` `[n]` only those positions go past the mixer."""
        names = self._names
        mixer = self.mixing
        mlp: Module | None = getattr(self, names.mlp, None)
        normed = self._norm(g, names.before_mixer, x) if mixer is not None else x
        mixed = mixer(g, normed, cache) if mixer is not None else None
        if select is not None:
            if self._parallel and names.before_mlp is None:
                normed = g.op("Gather", normed, select, axis=1)
            x = g.op("Gather", x, select, axis=1)
            mixed = g.op("Gather", mixed, select, axis=1) if mixed is not None else None
        attended = None
        if mixer is not None and mixed is not None:
            attended = scaled(g, self._norm(g, names.after_mixer, mixer.project(g, mixed)), self._scale)
        if self._parallel and mlp is not None:
            inner = normed if names.before_mlp is None else self._norm(g, names.before_mlp, x)
            return self._add(g, self._add(g, x, self._feed(g, mlp, inner)), attended)
        x = self._add(g, x, attended)
        return x if mlp is None else self._with_mlp(g, x)

    def _with_mlp(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        """Return x + mlp(norm(x)). Families with more beside the MLP override this."""
        names = self._names
        return self._add(g, x, self._feed(g, getattr(self, names.mlp), self._norm(g, names.before_mlp, x)))

    def _feed(self, g: GraphBuilder, mlp: Module, x: ir.Value) -> ir.Value:
        return scaled(g, self._norm(g, self._names.after_mlp, mlp(g, x)), self._scale)

    def _norm(self, g: GraphBuilder, name: str | None, x: ir.Value) -> ir.Value:
        result: ir.Value = x if name is None else getattr(self, name)(g, x)
        return result

    def _add(self, g: GraphBuilder, x: ir.Value, y: ir.Value | None) -> ir.Value:
        if y is None:
            return x
        result: ir.Value = g.op("Add", x, y)
        return result
