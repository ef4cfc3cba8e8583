"""The SigLIP vision tower: patches, learned positions, pre-norm layers with biases, a last norm."""

from __future__ import annotations

from typing import Protocol, Self

import numpy as np
import onnx_ir as ir

from edgewright.graph import GraphBuilder
from edgewright.nn.layers import MLP, LayerNorm, Linear
from edgewright.nn.mixed_attention import MixedAttention
from edgewright.nn.module import Module, Parameter
from edgewright.nn.stored_part import StoredPart

CHANNELS = 3


class PatchEmbedding(Linear):
    """A convolution whose stride is its size, as the product it is: patches times `[width, 3 * patch * patch]`."""

    def __init__(self, width: int, patch: int) -> None:
        stored = (width, CHANNELS, patch, patch)
        weight = StoredPart(width, CHANNELS * patch * patch, stored_shape=stored)
        super().__init__(CHANNELS * patch * patch, width, bias=True, weight=weight)
        self._patch = patch

    def forward(self, g: GraphBuilder, images: ir.Value) -> ir.Value:
        """Return `[views, patches, width]` of images `[views, 3, height, width]`, patches row by row."""
        assert images.shape is not None
        size = self._patch
        high, wide = (int(images.shape[axis]) // size for axis in (2, 3))  # type: ignore[arg-type]
        cells = g.constant([-1, CHANNELS, high, size, wide, size], np.int64)
        rows = g.constant([-1, high * wide, CHANNELS * size * size], np.int64)
        cut = g.op("Transpose", g.op("Reshape", images, cells), perm=[0, 2, 4, 1, 3, 5])
        return super().forward(g, g.op("Reshape", cut, rows))


class PatchPositions(Module):
    """A learned row for each patch; `rows` picks them from a table of `stored` rows."""

    def __init__(
        self, patches: int, width: int, stored: int | None = None, rows: tuple[int, ...] | None = None
    ) -> None:
        self.weight = Parameter(patches, width)
        if stored is not None and rows is not None and rows != tuple(range(stored)):
            self.weight = StoredPart(patches, width, stored_shape=(stored, width), rows=rows)

    def forward(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        result: ir.Value = g.op("Add", x, self.weight.value(g))
        return result


class _Embeddings(Module):
    def __init__(self, width: int, patch: int, positions: PatchPositions) -> None:
        self.patch_embedding = PatchEmbedding(width, patch)
        self.position_embedding = positions


class SiglipLayer(Module):
    """x + attention(norm(x)), then the same with the MLP; every part has biases."""

    def __init__(self, width: int, heads: int, inner: int, epsilon: float) -> None:
        self.layer_norm1 = LayerNorm(width, epsilon)
        self.self_attn = MixedAttention(
            width, heads=heads, kv_heads=heads, head_dim=width // heads, bias=True, out="out_proj"
        )
        self.layer_norm2 = LayerNorm(width, epsilon)
        self.mlp = MLP(width, inner, "gelu_pytorch_tanh", bias=True, names=("fc1", "fc2"))

    def forward(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        x = g.op("Add", x, self.self_attn(g, self.layer_norm1(g, x)))
        result: ir.Value = g.op("Add", x, self.mlp(g, self.layer_norm2(g, x)))
        return result


class _Encoder(Module):
    def __init__(self, layers: list[SiglipLayer]) -> None:
        self.layers = layers


class TowerSizes(Protocol):
    """What a tower is made from: `patch` is the edge of a patch in pixels."""

    @property
    def width(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def inner(self) -> int: ...
    @property
    def patch(self) -> int: ...


class SiglipTower(Module):
    """Images `[views, 3, height, width]` in -1..1 to features `[views, patches, width]`."""

    @classmethod
    def of(cls, positions: PatchPositions, sizes: TowerSizes, epsilon: float) -> Self:
        """Return the tower of a policy's sizes."""
        return cls(
            positions,
            width=sizes.width,
            layers=sizes.layers,
            heads=sizes.heads,
            inner=sizes.inner,
            patch=sizes.patch,
            epsilon=epsilon,
        )

    def __init__(
        self, positions: PatchPositions, *, width: int, layers: int, heads: int, inner: int, patch: int, epsilon: float
    ) -> None:
        self.embeddings = _Embeddings(width, patch, positions)
        self.encoder = _Encoder([SiglipLayer(width, heads, inner, epsilon) for _ in range(layers)])
        self.post_layernorm = LayerNorm(width, epsilon)

    def forward(self, g: GraphBuilder, images: ir.Value) -> ir.Value:
        parts = self.embeddings
        x = parts.position_embedding(g, parts.patch_embedding(g, images))
        for layer in self.encoder.layers:
            x = layer(g, x)
        result: ir.Value = self.post_layernorm(g, x)
        return result


def pixel_shuffle(g: GraphBuilder, x: ir.Value, grid: tuple[int, int], width: int, factor: int) -> ir.Value:
    """Return each square of `factor` by `factor` patches as one row, `[views, patches / factor^2, width * factor^2]`.

    x `[views, high * wide, width]` of a grid `(high, wide)`. Within a row the patches stand row by row.
    """
    high, wide = (side // factor for side in grid)
    cells = g.constant([-1, high, factor, wide, factor, width], np.int64)
    rows = g.constant([-1, high * wide, width * factor * factor], np.int64)
    squares = g.op("Transpose", g.op("Reshape", x, cells), perm=[0, 1, 3, 2, 4, 5])
    result: ir.Value = g.op("Reshape", squares, rows)
    return result
