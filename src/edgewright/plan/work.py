"""What one run of a stage does: multiply-adds, and the bytes that move, node by node of its semantic graph.

Counted are products of matrices, convolutions and recurrences; what works element by element is taken to be part of
them. A node's weights move once a run, of a table the rows that are looked up, of routed experts those that a run is
expected to reach where tokens choose evenly; small ones that several nodes share move once for all. A cache is read
once as far as the window reaches, and its new rows are written once. Activations are read and written once at every
node that is counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from edgewright.errors import ModelError
from edgewright.formats import Format
from edgewright.graph import Stage
from edgewright.graph.builder import EW
from edgewright.graph.rewrite import module_of
from edgewright.ops.experts import EXPERT_WEIGHTS
from edgewright.plan.shapes import Fact, Facts, Rule, Shape, View, shapes_of

#: The most bytes of a weight that stays in a processor's cache until the next node reads it.
STAYS = 1 << 19


@dataclass(frozen=True)
class Stored:
    """How a module's weight is kept: its bytes, and what numbers its product is made of, such as int8 or float.

    `rounded` is what a recipe or the checkpoint rounds its inputs to, or None.
    """

    format: Format
    bytes: int
    multiplies: str
    rounded: str | None = None


@dataclass(frozen=True)
class Widths:
    """Bytes of a number: of activations and states, and of the key/value cache."""

    activation: int
    cache: int


@dataclass(frozen=True)
class Call:
    """Sizes of a run: those of the symbolic dimensions, the tokens the caches hold, and how numbers are stored."""

    sizes: Mapping[str, int]
    past: int
    widths: Widths


@dataclass(frozen=True)
class Work:
    """What a node does: `multiplies` names the numbers of its products, `cached` is what its cache gives and takes."""

    module: str
    op: str
    multiplies: str = "float"
    macs: int = 0
    weight_bytes: int = 0
    cache_bytes: int = 0
    activation_bytes: int = 0

    @property
    def bytes(self) -> int:
        """All bytes that move."""
        return self.weight_bytes + self.cache_bytes + self.activation_bytes


def count(stage: Stage, call: Call, stored: Mapping[str, Stored]) -> tuple[list[Work], Facts]:
    """Return the work of every node that does any, in graph order, and the shapes of all values.

    `stored` says how weights are kept, by the name of their initializer and of the module that reads it, `MODULE:NAME`.
    Raises ModelError for a graph that can't be followed.
    """
    facts = shapes_of(stage.graph, call.sizes, SEMANTIC)
    counter = _Counter(stage, call, stored, facts)
    return [work for node in stage.graph if (work := counter.of(node)) is not None], facts


class _Counter:
    def __init__(self, stage: Stage, call: Call, stored: Mapping[str, Stored], facts: Facts) -> None:
        self._stage, self._call, self._stored, self._facts = stage, call, stored, facts
        self._read: set[str] = set()
        self._width, self._cache = call.widths.activation, call.widths.cache
        self._given = {value for value in stage.graph.inputs if str(value.name).startswith(("past_", "prefix_"))}
        self._results = {value for value in stage.graph.outputs if str(value.name).startswith(("present_", "prefix_"))}

    def of(self, node: ir.Node) -> Work | None:
        rule = _COUNTED.get(node.op_type) if node.domain == EW or node.op_type == "MatMul" else None
        view = View(node, self._facts)
        if not any(math.prod(self._facts[value].shape) for value in node.outputs):
            return None
        loose = self._loose_weights(node, view)
        written = self._prefix_bytes(node)
        if rule is None:
            return (
                Work(module_of(node), node.op_type, weight_bytes=loose, cache_bytes=written)
                if loose + written
                else None
            )
        found = rule(self, view)
        return Work(
            module_of(node),
            node.op_type,
            multiplies=found.multiplies,
            macs=found.macs,
            weight_bytes=found.weight_bytes + loose,
            cache_bytes=found.cache_bytes + written,
            activation_bytes=self._activations(node) if found.macs else 0,
        )

    def stored(self, node: ir.Node, place: int) -> Stored | None:
        """Return how a weight among a node's inputs is kept, or None for one that no recipe speaks of."""
        value = node.inputs[place] if place < len(node.inputs) else None
        return None if value is None else self._stored.get(f"{module_of(node)}:{value.name}")

    def _loose_weights(self, node: ir.Node, view: View) -> int:
        """Return the bytes that move of a node's weights that no recipe speaks of: norms, biases, tables."""
        total = 0
        for place, value in enumerate(node.inputs):
            if value is None or value.name not in self._stage.producers or self.stored(node, place) is not None:
                continue
            size = math.prod(view.shape(place))
            if node.op_type == "Gather" and not node.domain and place == 0:
                size = min(size, math.prod(self._facts[node.outputs[0]].shape))
            elif node.op_type == "Rope":  # rows of cosines and sines, by position
                size = min(size, math.prod(view.shape(1)) * view.shape(place)[-1])
            if value.name not in self._read or 4 * size > STAYS:
                total += 4 * size
            self._read.add(value.name)
        return total

    def _prefix_bytes(self, node: ir.Node) -> int:
        """Return the bytes of a prefix's keys and values that a node writes."""
        made = [value for value in node.outputs if value in self._results and str(value.name).startswith("prefix_")]
        return sum(math.prod(self._facts[value].shape) for value in made) * self._cache

    def _activations(self, node: ir.Node) -> int:
        graph = self._stage.graph
        read = [v for v in node.inputs if v is not None and v.name not in graph.initializers and v not in self._given]
        made = [value for value in node.outputs if value not in self._results]
        return self._width * sum(math.prod(self._facts[value].shape) for value in (*read, *made))

    def linear(self, view: View) -> Work:
        x, (rows, width) = view.shape(0), view.shape(1)
        kept = self.stored(view.node, 1)
        macs = math.prod(x[:-1]) * rows * width
        return Work("", "", kept.multiplies if kept else "float", macs, kept.bytes if kept else 0)

    def embedding(self, view: View) -> Work:
        ids, (rows, _) = math.prod(view.shape(0)), view.shape(1)
        kept = self.stored(view.node, 1)
        return Work("", "", weight_bytes=0 if kept is None else min(ids, rows) * kept.bytes // rows)

    def experts(self, view: View) -> Work:
        experts, chosen = view.attribute("experts"), view.attribute("top_k")
        tokens = math.prod(view.shape(0)[:-1])
        reached = experts * (1 - (1 - chosen / experts) ** tokens)
        macs, moved, multiplies = 0, 0, "float"
        for place in EXPERT_WEIGHTS:
            if not view.given(place):
                continue
            rows, width = view.shape(place)
            macs += tokens * chosen * rows * width // experts
            if (kept := self.stored(view.node, place)) is not None:
                moved += round(kept.bytes * reached / experts)
                multiplies = kept.multiplies
        return Work("", "", multiplies, macs, moved)

    def attention(self, view: View) -> Work:
        batch, seq, _ = view.shape(0)
        heads, kv_heads, head_dim, value_dim = (
            view.attribute(name) for name in ("heads", "kv_heads", "head_dim", "value_dim")
        )
        past, window = self._call.past, view.attribute("window")
        pairs, slots = visible(past, seq, window)
        row = batch * kv_heads * (head_dim + value_dim) * self._cache
        written = seq if view.given(1) else 0
        return Work("", "", "float", batch * heads * pairs * (head_dim + value_dim), 0, row * (slots + written))

    def mixed_attention(self, view: View) -> Work:
        batch, seq, _ = view.shape(0)
        heads, kv_heads, head_dim = (view.attribute(name) for name in ("heads", "kv_heads", "head_dim"))
        own = view.shape(1)[1] if view.given(1) else 0
        prefix = math.prod(view.shape(3)) // (batch * kv_heads * head_dim) if view.given(3) and batch else 0
        read = self._cache if view.given(3) and view.node.inputs[3] in self._given else 0
        macs = batch * heads * seq * (own + prefix) * 2 * head_dim
        return Work("", "", "float", macs, 0, 2 * batch * kv_heads * prefix * head_dim * read)

    def conv(self, view: View) -> Work:
        return Work("", "", "float", math.prod(view.shape(0)) * view.attribute("kernel"), 0, self._state(view, 3))

    def state_space(self, view: View) -> Work:
        batch, seq, _ = view.shape(0)
        size = view.attribute("heads") * view.attribute("head_dim") * view.attribute("state_size")
        return Work("", "", "float", 2 * batch * seq * size, 0, self._state(view, 6))

    def gated_delta(self, view: View) -> Work:
        batch, seq, _ = view.shape(0)
        size = view.attribute("heads") * view.attribute("key_dim") * view.attribute("value_dim")
        return Work("", "", "float", 3 * batch * seq * size, 0, self._state(view, 5))

    def matmul(self, view: View) -> Work:
        return Work("", "", "float", math.prod(self._facts[view.node.outputs[0]].shape) * view.shape(0)[-1])

    def _state(self, view: View, place: int) -> int:
        """Return the bytes of a recurrent state, which is read and written."""
        return 2 * self._width * math.prod(view.shape(place))


def visible(past: int, seq: int, window: int | None) -> tuple[int, int]:
    """Return how many (row, slot) pairs of causal attention there are, and how many slots any row sees."""
    if window is None or past + seq <= window:
        return seq * past + seq * (seq + 1) // 2, past + seq
    growing = max(0, min(seq, window - past))  # rows that see fewer slots than the window has
    pairs = growing * past + growing * (growing + 1) // 2 + (seq - growing) * window
    return pairs, min(past + seq, window + seq - 1)


_COUNTED: dict[str, Callable[[_Counter, View], Work]] = {
    "Attention": _Counter.attention,
    "CausalConv": _Counter.conv,
    "Embedding": _Counter.embedding,
    "Experts": _Counter.experts,
    "GatedDelta": _Counter.gated_delta,
    "Linear": _Counter.linear,
    "MatMul": _Counter.matmul,
    "MixedAttention": _Counter.mixed_attention,
    "StateSpace": _Counter.state_space,
}


def _like(*places: int) -> Rule:
    def rule(view: View) -> list[Fact]:
        return [Fact(view.shape(place)) for place in places]

    return rule


def _linear(view: View) -> list[Fact]:
    x, weight = view.shape(0), view.shape(1)
    if x[-1] != weight[1]:
        raise ModelError(f"{view.node.name} multiplies {x} by a weight {weight}: please report it.")
    return [Fact((*x[:-1], weight[0]))]


def _embedding(view: View) -> list[Fact]:
    return [Fact((*view.shape(0), view.shape(1)[1]))]


def _attention(view: View) -> list[Fact]:
    y: Shape = (*view.shape(0)[:2], view.attribute("heads") * view.attribute("value_dim"))
    return [Fact(y), Fact(view.shape(3)), Fact(view.shape(4))]


#: The shapes of the results of semantic ops.
SEMANTIC: dict[tuple[str, str], Rule] = {
    **{
        (EW, name): _like(0)
        for name in ("Activation", "AdaRMSNorm", "Experts", "GatedActivation", "LayerNorm", "MixedAttention", "RMSNorm",
                     "Rope", "RoundInput", "Softcap")
    },
    (EW, "Attention"): _attention,
    (EW, "CausalConv"): _like(0, 3),
    (EW, "Embedding"): _embedding,
    (EW, "GatedDelta"): _like(2, 5),
    (EW, "Linear"): _linear,
    (EW, "StateSpace"): _like(0, 6),
}  # fmt: skip
