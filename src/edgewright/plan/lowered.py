"""What one run of a bundle's stage does, counted on the very graph it ships: kernels, and bodies of what has none.

A body is followed node by node, so that attention without a kernel counts hidden slots as well, as it runs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import onnx_ir as ir

from edgewright.contract import StageContract
from edgewright.errors import ModelError
from edgewright.graph.builder import EW
from edgewright.graph.rewrite import module_of
from edgewright.plan.lowered_shapes import LOWERED
from edgewright.plan.memory import Activations
from edgewright.plan.shapes import STANDARD, Fact, Facts, View, initializer_fact, input_fact
from edgewright.plan.whole import DIALECTS, MACS, SHAPES, cached_numbers
from edgewright.plan.work import STAYS, Call, Work, visible

_MICROSOFT = "com.microsoft"
#: MatMulNBits' `accuracy_level` for inputs rounded to int8.
_INT8_INPUTS = 4
_LOOK_UPS = ("Gather", "GatherBlockQuantized")
#: Where ops that turn queries and keys have their tables of cosines and sines, of which they read a row a position.
_TURNED = {"GroupQueryAttention": (7, 8), "RotaryEmbedding": (2, 3), "Rope": (2, 3)}
#: Semantic ops that look rows of their second input up.
_TABLES = ("Embedding", "QuantEmbedding")


class LoweredStage:
    """A stage of a bundle, its graph read without weights; raises ModelError where work can't be followed."""

    def __init__(self, name: str, model: ir.Model, contract: StageContract, dialect: str = "onnxruntime") -> None:
        self._name, self._model, self.contract = name, model, contract
        self._whole = dialect in DIALECTS
        graph = model.graph
        self._caches = {str(value.name) for value in graph.inputs if str(value.name).startswith(("past_", "prefix_"))}
        self._caches -= {"past_lengths", "prefix_mask"}
        self._kept = {value for value in graph.outputs if str(value.name).startswith(("present_", "prefix_"))}

    def count(self, call: Call) -> list[Work]:
        """Return the work of every node that does any, in graph order."""
        return _Run(self._model, call, self._caches, self._kept, whole=self._whole).work

    def activations(self, call: Call) -> Activations:
        """Return what is there at every node of a run; the values inside of bodies are left out."""
        run = _Run(self._model, call, self._caches, self._kept, whole=self._whole)
        nodes, facts, width = list(self._model.graph), run.facts, call.widths.activation
        last = {value: index for index, node in enumerate(nodes) for value in node.inputs if value is not None}
        outputs = [value for value in self._model.graph.outputs if value not in self._kept]
        last |= dict.fromkeys(outputs, len(nodes))

        def size(values: Iterable[ir.Value]) -> int:
            return width * sum(math.prod(facts[v].shape) for v in values if v in last and v not in self._kept)

        live = plain = 0
        attentions = []
        for index, node in enumerate(nodes):
            live += size(node.outputs)
            scores = run.scores.get(node)
            if scores is None:
                plain = max(plain, live)
            else:
                attentions.append((live, *scores))
            live -= size({v for v in node.inputs if v is not None and v.producer() and last[v] == index})
        return Activations(plain, tuple(attentions), lowered=True)


class _Run:
    """One walk over a graph: shapes and work together, with the bodies of functions and loops.

    `whole` tells that semantic ops which the graph has are run as they are.
    """

    def __init__(self, model: ir.Model, call: Call, caches: set[str], kept: set[ir.Value], *, whole: bool) -> None:
        self._model, self._call, self._cache_names, self._kept = model, call, caches, kept
        self._whole = SHAPES if whole else {}
        self.facts: Facts = {}
        self.work: list[Work] = []
        self.scores: dict[ir.Node, tuple[int, int, bool]] = {}
        self._weights: dict[ir.Value, int] = {}
        self._caches: set[ir.Value] = set()
        self._read: set[str] = set()
        for value in model.graph.inputs:
            self.facts[value] = input_fact(value, call.sizes)
            if value.name in caches:
                self._caches.add(value)
        self._take(model.graph)
        for node in model.graph:
            self._step(node, module_of(node), 1)

    def _take(self, graph: ir.Graph) -> None:
        for value in graph.initializers.values():
            self.facts[value] = initializer_fact(value)
            known = value.const_value
            self._weights[value] = 0 if known is None else int(known.nbytes)

    def _step(self, node: ir.Node, module: str, times: int) -> None:
        function = self._model.functions.get(node.op_identifier())
        if node.domain == EW and node.op_type in self._whole:
            self._plain(node, module, times)
        elif function is not None:
            self._body(node, function, module, times)
        elif node.op_type == "Scan" and not node.domain:
            self._scan(node, module, times)
        elif node.op_type == "Loop" and not node.domain:
            self._loop(node, module, times)
        else:
            self._plain(node, module, times)

    def _plain(self, node: ir.Node, module: str, times: int) -> None:
        rule = STANDARD.get(node.op_type) if not node.domain else None
        rule = LOWERED.get((node.domain, node.op_type), rule)
        rule = self._whole.get(node.op_type) if node.domain == EW else rule
        if rule is None:
            raise ModelError(
                f"The bundle's graph has {node.name} ({node.op_type}), whose work depends on data or isn't known: plan "
                "the checkpoint it was made of."
            )
        view = View(node, self.facts)
        for value, fact in zip(node.outputs, rule(view), strict=False):
            self.facts[value] = fact
        macs, multiplies = self._macs(view)
        work = Work(
            module,
            node.op_type,
            multiplies,
            times * macs,
            times * self._moved(node) if self._does(node) else 0,
            times * self._cached(view),
            times * self._activation(node) if macs else 0,
        )
        if work.macs or work.bytes:
            self.work.append(work)

    def _does(self, node: ir.Node) -> bool:
        return any(math.prod(self.facts[value].shape) for value in node.outputs if value in self.facts)

    def _macs(self, view: View) -> tuple[int, str]:
        if view.node.domain == EW:
            whole = MACS.get(view.node.op_type)
            return (0, "float") if whole is None else whole(view, self._call.past)
        counter = _MACS.get(view.node.op_type)
        return (0, "float") if counter is None else counter(self, view)

    def _moved(self, node: ir.Node) -> int:
        """Return the bytes of a node's weights that move: all, or of a table the rows that are looked up.

        Small ones that several nodes share move once: they stay in a processor's cache.
        """
        held = {value: self._weights[value] for value in node.inputs if value in self._weights}
        if node.domain == EW and node.op_type in _TABLES and node.inputs[1] in held:
            rows = max(1, self.facts[node.inputs[1]].shape[0])
            return sum(held.values()) * min(rows, math.prod(View(node, self.facts).shape(0))) // rows
        if node.op_type in _LOOK_UPS and node.inputs[0] in held and node.inputs[1] is not None:
            rows = max(1, self.facts[node.inputs[0]].shape[0])
            return sum(held.values()) * min(rows, math.prod(self.facts[node.inputs[1]].shape)) // rows
        turned = [node.inputs[place] for place in _TURNED.get(node.op_type, ()) if place < len(node.inputs)]
        for table in turned:
            if table in held:
                rows = max(1, self.facts[table].shape[0])
                held[table] = held[table] * min(rows, self._positions(node)) // rows
        fresh = sum(size for value, size in held.items() if value.name not in self._read or size > STAYS)
        self._read |= {str(value.name) for value in held}
        return fresh

    def _positions(self, node: ir.Node) -> int:
        """Return the positions of what a node turns: `[batch, positions, ...]`, or with heads before the positions."""
        assert node.inputs[0] is not None
        shape = self.facts[node.inputs[0]].shape
        return shape[0] * shape[2 if len(shape) == 4 else 1]

    def _cached(self, view: View) -> int:
        width, node = self._call.widths.cache, view.node
        if node.domain == EW and node.op_type in self._whole:
            return width * cached_numbers(view, self._call.past) if node.op_type == "Attention" else 0
        written = sum(math.prod(self.facts[v].shape) for v in node.outputs if v in self._kept and v in self.facts)
        if node.op_type == "GroupQueryAttention":
            batch, kv_heads, _, head_dim = view.shape(3)
            _, slots = visible(self._call.past, view.shape(0)[1], _window(view))
            return 2 * batch * kv_heads * head_dim * width * (slots + view.shape(0)[1])
        read = {v for v in node.inputs if v in self._caches} if node.op_type != "Shape" else set()
        moved = sum(math.prod(self.facts[v].shape) for v in read if v is not None)
        return width * (moved + (0 if read else written))

    def _activation(self, node: ir.Node) -> int:
        read = [v for v in node.inputs if v is not None and v not in self._weights and v not in self._caches]
        made = [v for v in node.outputs if v not in self._kept and v in self.facts]
        return self._call.widths.activation * sum(math.prod(self.facts[v].shape) for v in (*read, *made))

    def _body(self, node: ir.Node, function: ir.Function, module: str, times: int) -> None:
        """Walk the body of a function in a node's place."""
        for inner, outer in zip(function.inputs, node.inputs, strict=False):
            if outer is None:
                continue
            self.facts[inner] = self.facts[outer]
            self._weights.pop(inner, None)
            self._caches.discard(inner)
            if outer in self._weights:
                self._weights[inner] = self._weights[outer]
            if outer in self._caches:
                self._caches.add(inner)
        for step in function:
            self._step(step, module, times)
        for inner, outer in zip(function.outputs, node.outputs, strict=False):
            self.facts[outer] = self.facts[inner]

    def _graph(self, node: ir.Node) -> ir.Graph:
        graph = node.attributes["body"].value
        assert isinstance(graph, ir.Graph)
        self._take(graph)
        return graph

    def _scan(self, node: ir.Node, module: str, times: int) -> None:
        """Walk a Scan's body once and count it for every row of what it scans."""
        body, rows = self._graph(node), node.attributes["num_scan_inputs"].as_int()
        states = len(node.inputs) - rows
        count = 1
        for place, (inner, outer) in enumerate(zip(body.inputs, node.inputs, strict=True)):
            assert outer is not None
            shape = self.facts[outer].shape
            count = shape[0] if place >= states else count
            self.facts[inner] = Fact(shape[1:] if place >= states else shape)
        for step in body:
            self._step(step, module, times * count)
        for place, (inner, outer) in enumerate(zip(body.outputs, node.outputs, strict=True)):
            shape = self.facts[inner].shape
            self.facts[outer] = Fact((count, *shape) if place >= states else shape)

    def _loop(self, node: ir.Node, module: str, times: int) -> None:
        """Walk a Loop's body once and count it as often as it runs, which must be known."""
        trips = View(node, self.facts).ints(0)[0] if node.inputs[0] is not None else 1
        body = self._graph(node)
        self.facts[body.inputs[0]] = self.facts[body.inputs[1]] = Fact(())
        for inner, outer in zip(body.inputs[2:], node.inputs[2:], strict=True):
            assert outer is not None
            self.facts[inner] = Fact(self.facts[outer].shape)
        for step in body:
            self._step(step, module, times * trips)
        for inner, outer in zip(body.outputs[1:], node.outputs, strict=False):
            self.facts[outer] = Fact(self.facts[inner].shape)

    def grouped(self, view: View) -> tuple[int, str]:
        batch, seq, _ = view.shape(0)
        heads, head_dim = view.attribute("num_heads"), view.shape(3)[3]
        pairs, _ = visible(self._call.past, seq, _window(view))
        self.scores[view.node] = (batch * heads * seq * 4, seq, True)
        return 2 * batch * heads * head_dim * pairs, "float"

    def bits(self, view: View) -> tuple[int, str]:
        rounds = view.attribute("accuracy_level", 0) == _INT8_INPUTS
        size = math.prod(self.facts[view.node.outputs[0]].shape)
        return size * view.attribute("K"), "int8" if rounds else "float"

    def product(self, view: View) -> tuple[int, str]:
        shape = view.shape(0)
        depth = shape[-2] if view.attribute("transA", 0) else shape[-1]
        whole = view.node.op_type in ("MatMulInteger", "MatMulIntegerToFloat")
        return math.prod(self.facts[view.node.outputs[0]].shape) * depth, "int8" if whole else "float"

    def attention(self, view: View) -> tuple[int, str]:
        q, k, v = view.shape(0), view.shape(1), view.shape(2)
        heads = q[1] if len(q) == 4 else view.attribute("q_num_heads")
        if len(q) == 4:
            wide, slots, batch, seq = q[3] + v[3], k[2], q[0], q[2]
        else:
            wide = q[2] // heads + v[2] // view.attribute("kv_num_heads")
            batch, slots, seq = q[0], k[1], q[1]
        self.scores[view.node] = (batch * heads * seq * 4, slots, False)
        return batch * heads * seq * slots * wide, "float"

    def recurrent(self, view: View) -> tuple[int, str]:
        batch, seq, _ = view.shape(0)
        return 3 * batch * seq * math.prod(view.shape(3)[1:]), "float"


def _window(view: View) -> int | None:
    window = view.attribute("local_window_size", -1)
    return None if window < 0 else int(window)


_MACS: dict[str, Callable[[_Run, View], tuple[int, str]]] = {
    "Attention": _Run.attention,
    "FusedMatMul": _Run.product,
    "GroupQueryAttention": _Run.grouped,
    "LinearAttention": _Run.recurrent,
    "MatMul": _Run.product,
    "MatMulInteger": _Run.product,
    "MatMulIntegerToFloat": _Run.product,
    "MatMulNBits": _Run.bits,
}
