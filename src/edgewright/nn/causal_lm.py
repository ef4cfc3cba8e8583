"""The decoder-only language model: embedding, layers, head, and the stage's inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from edgewright import ops
from edgewright.contract import KVLayer, StageContract, StateTensor, TensorContract
from edgewright.graph import GraphBuilder, Stage
from edgewright.nn.cache import Cache
from edgewright.nn.decoder_layer import DecoderLayer
from edgewright.nn.layers import Embedding, Linear, scaled
from edgewright.nn.module import Module


class Decoder(Module):
    """Embedding, layers, final norm. Families with more around them override `embed` or `finish`."""

    def __init__(self, embed_tokens: Embedding, layers: Sequence[DecoderLayer], norm: Module | None) -> None:
        self.embed_tokens = embed_tokens
        self.layers = list(layers)
        if norm is not None:
            self.norm = norm

    def embed(self, g: GraphBuilder, ids: ir.Value, positions: ir.Value) -> ir.Value:
        """Return the first hidden states of ids and positions `[batch, seq]`."""
        result: ir.Value = self.embed_tokens(g, ids)
        return result

    def finish(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        """Return what the head reads."""
        result: ir.Value = self.norm(g, x) if hasattr(self, "norm") else x
        return result


class CausalLM(Module):
    """A decoder and its head: `input_ids` in, float32 logits of the asked-for positions out.

    `lm_head` None ties the head to the embedding table. Logits are multiplied by `logit_scale`, then soft-capped.
    """

    def __init__(
        self,
        model: Decoder,
        lm_head: Linear | None,
        *,
        vocab: int,
        softcap: float | None = None,
        logit_scale: float | None = None,
    ) -> None:
        self.model = model
        table = model.embed_tokens.weight
        self.tied = lm_head is None or lm_head.weight is table
        self.lm_head = lm_head or Linear(table.shape[1], vocab, weight=table)
        self._vocab, self._softcap, self._logit_scale = vocab, softcap, logit_scale
        self.assign_names()

    def stage(self, *, max_context: int) -> Stage:
        """Build the `llm` stage; every parameter must be bound.

        Inputs: `input_ids` int64 `[batch, seq]`; `past_lengths` int64 `[batch]`, the tokens each sequence's cache
        holds; `logit_positions` int64 `[positions]`, the rows of `seq` whose logits are wanted; `total_lengths` int64
        `[batch]` where the rope depends on it; per layer `past_key.i`, `past_value.i`
        `[batch, kv_heads, capacity, head_dim]` or its states `past_<name>.i`. Outputs: `logits`
        `[batch, positions, vocab]` and the caches as `present_*`.
        """
        stage = Stage("llm", ir.Graph([], [], nodes=[], name="llm"), self._contract(max_context))
        stage.layers = len(self.model.layers)
        g = GraphBuilder(stage)
        values = {tensor.name: g.input(tensor) for tensor in stage.contract.inputs}
        ids, lengths, select = values["input_ids"], values["past_lengths"], values["logit_positions"]
        positions = _positions(g, ids, lengths)
        with g.scope("model.embed"):
            x = self.model.embed(g, ids, positions)
        results: dict[str, ir.Value] = {}
        last = len(self.model.layers) - 1
        caches: list[Cache] = []
        for index, layer in enumerate(self.model.layers):
            mixer = layer.mixing
            shared = mixer.kv_from if mixer is not None else None
            past = (
                {name: values[f"past_{name}.{index}"] for name, _ in _cached(layer)}
                if shared is None
                else caches[shared].present
            )
            cache = Cache(lengths, positions, values.get("total_lengths"), past)
            caches.append(cache)
            x = layer(g, x, cache, select if index == last else None)
            if shared is None:
                results.update({f"present_{name}.{index}": value for name, value in cache.present.items()})
        with g.scope("model"):
            x = self.model.finish(g, x)
        logits = self.lm_head(g, x)
        with g.scope("lm_head"):
            logits = scaled(g, logits, self._logit_scale)
            results["logits"] = ops.softcap(g, logits, cap=self._softcap) if self._softcap else logits
        for tensor in stage.contract.outputs:
            g.output(results[tensor.name], tensor)
        return stage

    def _contract(self, max_context: int) -> StageContract:
        kv: list[KVLayer] = []
        state: list[StateTensor] = []
        past: list[TensorContract] = []
        present: list[TensorContract] = []
        switches = set()
        for index, layer in enumerate(self.model.layers):
            for name, shape in _cached(layer):
                past.append(TensorContract(f"past_{name}.{index}", "float32", shape))
                present.append(TensorContract(f"present_{name}.{index}", "float32", shape))
            mixer = layer.mixing
            if mixer is None:
                continue
            if mixer.kv is not None:
                kv.append(
                    KVLayer(
                        past_key=f"past_key.{index}",
                        past_value=f"past_value.{index}",
                        present_key=f"present_key.{index}",
                        present_value=f"present_value.{index}",
                        kv_heads=mixer.kv.kv_heads,
                        head_dim=mixer.kv.head_dim,
                        window=mixer.kv.window,
                        value_dim=mixer.kv.value_dim,
                    )
                )
            state += [
                StateTensor(f"past_{name}.{index}", f"present_{name}.{index}", tuple(shape))
                for name, shape in mixer.states.items()
            ]
            if mixer.dual_rope is not None:
                switches.add(mixer.dual_rope)
        assert len(switches) <= 1, switches
        inputs = [
            TensorContract("input_ids", "int64", ("batch", "seq")),
            TensorContract("past_lengths", "int64", ("batch",)),
            TensorContract("logit_positions", "int64", ("positions",)),
        ]
        if switches:
            inputs.append(TensorContract("total_lengths", "int64", ("batch",)))
        return StageContract(
            inputs=(*inputs, *past),
            outputs=(TensorContract("logits", "float32", ("batch", "positions", self._vocab)), *present),
            bounds={
                "batch": (1, 64),
                "seq": (1, max_context),
                "positions": (0, max_context),
                "capacity": (1, max_context),
            },
            kv=tuple(kv),
            state=tuple(state),
            rope_switch=switches.pop() if switches else None,
        )


def _cached(layer: DecoderLayer) -> Iterator[tuple[str, tuple[int | str, ...]]]:
    """Yield (name, shape) of everything a layer keeps between calls."""
    mixer = layer.mixing
    if mixer is None:
        return
    if mixer.kv is not None:
        yield "key", ("batch", mixer.kv.kv_heads, "capacity", mixer.kv.head_dim)
        yield "value", ("batch", mixer.kv.kv_heads, "capacity", mixer.kv.value_dim)
    for name, shape in mixer.states.items():
        yield name, ("batch", *shape)


def _positions(g: GraphBuilder, ids: ir.Value, lengths: ir.Value) -> ir.Value:
    """int64 `[batch, seq]`: row i of sequence b stands at past_lengths[b] + i."""
    with g.scope("positions"):
        one, zero = g.constant(1, np.int64), g.constant(0, np.int64)
        seq = g.op("Squeeze", g.op("Shape", ids, start=1, end=2), g.constant([0], np.int64))
        steps = g.op("Range", zero, seq, one)
        base = g.op("Unsqueeze", lengths, g.constant([1], np.int64))
        result: ir.Value = g.op("Add", base, steps)
    return result
