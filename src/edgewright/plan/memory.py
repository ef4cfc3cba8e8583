"""The memory a stage needs: its weights, its caches, and the activations that are there at the same time.

Activations are followed in the order of the nodes: a value is there from the node that makes it to the last one that
reads it. An attention node has the scores of all its heads besides, unless the engine is known to keep none. Engines
take more than that, by factors that were measured here. Sessions keep a cache for the whole context in every layer,
also where a window is smaller, and recurrent states twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from edgewright.contract import StageContract
from edgewright.graph import Stage
from edgewright.graph.builder import EW
from edgewright.graph.rewrite import module_of
from edgewright.plan.shapes import Facts
from edgewright.plan.work import Stored

#: What an engine takes besides, measured: ONNX Runtime's session and the tokenizer of SmolLM2.
ENGINE_BYTES = {"onnxruntime": 25_000_000}
#: What an engine's memory pool takes for the activations that are there at once: those of a semantic graph, and those
#: of the graph it runs. ONNX Runtime's pool has regions of powers of two, gives none back, and takes a second block for
#: shapes that it saw before: measured 6 to 9 times, and 4.6 to 5.1 times.
POOL = {"onnxruntime": (6, 5)}
#: Engines whose cached attention keeps no scores (measured: the same memory at 1,024 and at 4,096 tokens).
WITHOUT_SCORES = frozenset({"onnxruntime"})
#: Copies of a recurrent state: the one that is read and the one that is written.
STATE_COPIES = 2
#: Scores are float32 in every engine that keeps them.
_SCORE_BYTES = 4


@dataclass(frozen=True)
class Memory:
    """Bytes of what a model keeps and of what a run needs besides.

    `workspace` is the largest of one node, `engine` what is known of the engine itself.
    """

    weights: int
    cache: int
    activations: int
    workspace: int
    engine: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.cache + self.activations + self.workspace + self.engine

    def to_json(self) -> dict[str, int]:
        """Return the parts and their sum as JSON-compatible values."""
        return {
            "weights_bytes": self.weights,
            "cache_bytes": self.cache,
            "activation_bytes": self.activations,
            "workspace_bytes": self.workspace,
            "engine_bytes": self.engine,
            "total_bytes": self.total,
        }


def weight_bytes(stage: Stage, stored: Mapping[str, Stored], *, table_outside: bool = False) -> int:
    """Return the bytes of a stage's weights; a table and a head that are tied and stored alike are counted once.

    With `table_outside` a table that nothing but the look-up reads is left to its file.
    """
    kept: dict[tuple[str, str], int] = {}
    rest: set[str] = set()
    for node in stage.graph:
        for value in node.inputs:
            if value is None or value.name not in stage.producers:
                continue
            found = stored.get(f"{module_of(node)}:{value.name}")
            if found is None:
                rest.add(value.name)
            elif not (table_outside and node.op_type == "Embedding"):
                kept[value.name, found.format.label] = found.bytes
    loose = sum(spec.nbytes for name in rest for spec in stage.producers[name].specs if spec.name == name)
    return sum(kept.values()) + loose


def cache_bytes(contract: StageContract, *, batch: int, context: int, cache_width: int) -> int:
    """Return the bytes of a language model's caches for a context, and of its recurrent states."""
    row = sum(layer.kv_heads * (layer.head_dim + (layer.value_dim or layer.head_dim)) for layer in contract.kv)
    states = sum(math.prod(state.shape) for state in contract.state)
    return batch * (row * context * cache_width + states * 4 * STATE_COPIES)


@dataclass(frozen=True)
class Activations:
    """The activations of a run: the most of nodes without a workspace, and of every attention what it has besides.

    An attention is (bytes of activations, bytes of scores for a slot, slots without the tokens the cache holds, whether
    it reads a cache). `lowered` says that the graph is the one that an engine runs.
    """

    plain: int
    attentions: tuple[tuple[int, int, int, bool], ...]
    lowered: bool = False

    def at(self, past: int, engine: str | None) -> tuple[int, int]:
        """Return what an engine takes of activations and of workspace with `past` tokens held: the most of each.

        They are the most at different nodes; pools keep both.
        """
        most = max([self.plain, *(live for live, *_ in self.attentions)])
        scores = [
            per_slot * (slots + (past if cached else 0))
            for _, per_slot, slots, cached in self.attentions
            if not (cached and engine in WITHOUT_SCORES)
        ]
        return most * POOL.get(engine or "", (1, 1))[self.lowered], max(scores, default=0)


def activations_of(stage: Stage, facts: Facts, width: int) -> Activations:
    """Return what is there at every node of a run, an activation being `width` bytes."""
    nodes = list(stage.graph)
    last = {value: index for index, node in enumerate(nodes) for value in node.inputs if value is not None}
    kept = {value for value in stage.graph.outputs if str(value.name).startswith(("present_", "prefix_"))}
    last |= {value: len(nodes) for value in stage.graph.outputs if value not in kept}

    def size(value: ir.Value) -> int:
        return 0 if value in kept else width * math.prod(facts[value].shape)

    live = sum(size(value) for value in stage.graph.inputs if not str(value.name).startswith(("past_", "prefix_")))
    plain, attentions = live, []
    for index, node in enumerate(nodes):
        live += sum(size(value) for value in node.outputs if value in last)
        scores = _scores(node, facts)
        if scores is None:
            plain = max(plain, live)
        else:
            attentions.append((live, *scores))
        done = {value for value in node.inputs if value is not None and last[value] == index}
        live -= sum(size(value) for value in done if value.producer() is not None)
    return Activations(plain, tuple(attentions))


def _scores(node: ir.Node, facts: Facts) -> tuple[int, int, bool] | None:
    """Return the bytes of an attention's scores for a slot, its slots, and whether it is cached, or None."""
    if node.domain != EW or node.op_type not in ("Attention", "MixedAttention"):
        return None
    query, own = node.inputs[0], node.inputs[1]
    assert query is not None
    batch, seq, _ = facts[query].shape
    per_slot = batch * node.attributes["heads"].as_int() * seq * _SCORE_BYTES
    if node.op_type == "Attention":
        return per_slot, seq, True
    slots = facts[own].shape[1] if own is not None else 0
    prefix = node.inputs[3] if len(node.inputs) > 3 else None
    if prefix is not None:
        of_slot = batch * node.attributes["kv_heads"].as_int() * node.attributes["head_dim"].as_int()
        slots += math.prod(facts[prefix].shape) // of_slot if of_slot else 0
    return per_slot, slots, False
