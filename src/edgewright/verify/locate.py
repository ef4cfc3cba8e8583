"""Finds the first op of a graph that does not give what the reference gives for the same inputs.

Both sides are tapped at every value they have in common. The candidate runs the scenario; the reference then recomputes
every such value from the candidate's own values before it, so an error shows at the op that makes it and nowhere
else. Ops are judged in the order of the graph, calls in the order of the scenario.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import onnx

from edgewright.contract import StageContract
from edgewright.quiet_ort import ort
from edgewright.runtime.embedding import INPUT
from edgewright.verify.codes import CODE_BOUND, code_errors, is_codes
from edgewright.verify.graphs import AGAIN, FP8, Array, Fed, Graph, run
from edgewright.verify.names import Tap, match
from edgewright.verify.replay import INSIDE, Beside, Call, TappedEngine, once, replay
from edgewright.verify.rows import block_energy, blocks_of, row_errors
from edgewright.verify.scenarios import Scenario
from edgewright.verify.semantic import Op, Semantic

#: Largest relative error of an op in float32: of a row's largest difference to the row's largest magnitude.
FLOAT_BOUND = 3e-5
#: The same where a kernel rounds its inputs to int8, of root mean squares.
INT8_BOUND = 0.06
#: Tokens that are enough for trials.
_SHORT = 64
#: Taps are read in groups of layers of at most this many bytes a side.
BUDGET = 192 << 20

_WEIGHTED = ("Linear", "MatMul", "MoE", "Experts", "Embedding", "Gather", "Loop", "Gemm")
_INT8_KERNELS = {"QMoE", "MatMulInteger", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"}
_TYPES = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(int8)": np.dtype(np.int8),
    "tensor(float8e4m3fn)": FP8,
}
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks?|layer)\.(\d+)(?:\.|$)")


@dataclass(frozen=True)
class Check:
    """One value of one call: its error against the bound, float64 `[batch, rows]`; `first` is row 0's position."""

    value: str
    op: Op
    error: Array = field(repr=False)
    bound: float
    first: npt.NDArray[np.int64]
    judge: Callable[[Array, Array], Array] = field(repr=False)

    @property
    def worst(self) -> float:
        """The largest error."""
        return float(self.error.max(initial=0.0))

    @property
    def failed(self) -> bool:
        """Whether any position is above the bound."""
        return not self.worst <= self.bound

    @property
    def bad(self) -> npt.NDArray[np.bool_]:
        """Which rows are above the bound, `[batch, rows]`."""
        return ~np.asarray(self.error <= self.bound)

    def positions(self) -> list[int]:
        """Return the positions that are above the bound in any sequence."""
        rows = np.arange(self.error.shape[1])
        return sorted({int(p) for p in (self.first[:, None] + rows)[self.bad]})


@dataclass(frozen=True)
class Divergence:
    """The first op that differs: its failed checks in the call in which that shows, and all values of that call."""

    scenario: Scenario
    call: Call
    op: Op
    failed: tuple[Check, ...]
    checks: tuple[Check, ...]
    feeds: Mapping[str, Array] = field(repr=False)
    again: Mapping[str, Array] = field(repr=False)
    taps: Mapping[str, Tap] = field(repr=False)
    nodes: Sequence[str] = ()

    def candidate(self, value: str) -> Array:
        """Return what the candidate gave for a value of the reference."""
        return self.taps[value].read(self.call.values)


def layer_of(module: str) -> int | None:
    """Return the number of the layer a module path is in, or None."""
    found = _LAYER.search(module)
    return int(found[1]) if found else None


@dataclass(frozen=True)
class _Sessions:
    """The two sides, loaded with taps at `names`, which are compared, and `before`, which those are made from."""

    candidate: TappedEngine
    reference: ort.InferenceSession
    names: tuple[str, ...]
    before: tuple[str, ...]


class Locator:
    """Compares a candidate graph with the reference graph, whose ops `semantic` describes."""

    def __init__(
        self,
        semantic: Semantic,
        reference: Graph,
        candidate: Graph,
        contract: StageContract,
        threads: int | None,
        *,
        taps: Mapping[str, Tap] | None = None,
        coarse: float | None = None,
        bound: float = FLOAT_BOUND,
        beside: Beside = INSIDE,
    ) -> None:
        """`taps` are the common values where names don't tell; `coarse` is the bound of products whose weights have
        another format on each side, `bound` the one of float32 ops, `beside` embedding tables outside the graphs."""
        self.semantic, self.reference, self.candidate = semantic, reference, candidate
        self._contract, self._threads, self._coarse, self._bound = contract, threads, coarse, bound
        self._beside = beside
        self.taps = dict(taps) if taps is not None else match(semantic, candidate, beside.value)
        self._noisy = self._rounding()
        self._energy: dict[str, Array] = {}
        self.calls = 0
        #: The largest error so far as a share of its bound, and the value that has it.
        self.worst: tuple[float, str] = (0.0, "none")

    def first(self, scripts: Sequence[Scenario]) -> Divergence | None:
        """Return the first divergence over the scenarios, or None when every op is right in all of them."""
        for names in self._groups(scripts):
            sessions = self._load(names)
            for script in scripts:
                found = self._search(sessions, script)
                if found is not None:
                    return found
        return None

    def differs_in(self, found: Divergence, candidate: Graph) -> bool:
        """Tell whether another candidate gives wrong values for the op of a divergence, too, in the same call."""
        other = Locator(
            self.semantic,
            self.reference,
            candidate,
            self._contract,
            self._threads,
            bound=self._bound,
            beside=self._beside,
        )
        values = [check.value for check in found.failed if check.value in other.taps]
        if not values:
            return False
        before = [name for name in other._read_by(values) if name in other.taps]
        session = candidate.tapped({other.taps[name].name for name in (*values, *before)}, self._threads)
        fed = other._fed(session, [*before, *values])
        again = self.reference.cut({name: fed[name] for name in before if name in fed}, values, self._threads)
        call = once(session, self._contract, found.call)
        return other.judge(found.scenario, call, again, values, before) is not None

    def shortened(self, found: Divergence) -> Divergence:
        """Return a divergence of a first call over fewer tokens, enough to see what is wrong: trials are faster then.

        What comes later does not change what comes before, but for states, which stand after the last token.
        """
        call, n = found.call, found.call.tokens
        first = min(position for check in found.failed for position in check.positions())
        kept = max(_SHORT, first + _SHORT // 2)
        states = {state.present for state in self._contract.state}
        if call.starts.any() or kept >= n or states.intersection(found.op.outputs):
            return found
        caches = {n for layer in self._contract.kv for n in (layer.present_key, layer.present_value)}
        caches |= {n for layer in self._contract.kv for n in (layer.past_key, layer.past_value)}

        def cut(arrays: Mapping[str, Array]) -> dict[str, Array]:
            wide = {name for name, a in arrays.items() if a.ndim > 1 and a.shape[1] == n and name not in caches}
            return {name: a[:, :kept] if name in wide else a for name, a in arrays.items()}

        feeds = {**cut(call.feeds), "logit_positions": call.feeds["logit_positions"][:kept]}
        short = Call(call.phase, call.starts, feeds, cut(call.values))
        given, again = {**cut(found.feeds), **feeds}, cut(found.again)
        names = [check.value for check in found.checks]
        checks = tuple(self._check(name, given[name], again[name], short) for name in names)
        failed = tuple(check for check in checks if check.op is found.op and check.failed)
        if not failed:
            return found
        return replace(found, call=short, failed=failed, checks=checks, feeds=given, again=again)

    def _read_by(self, values: Sequence[str]) -> list[str]:
        """Return the tapped values that the ops between them and `values` read."""
        found: list[str] = []
        waiting, seen = list(values), set(values)
        while waiting:
            op = self.semantic.made.get(waiting.pop())
            for name in op.inputs if op is not None else ():
                if name and name not in seen:
                    seen.add(name)
                    (found if name in self.taps else waiting).append(name)
        return found

    def _load(self, names: Sequence[str]) -> _Sessions:
        # What the first of them read may belong to the group before.
        before = [name for name in self._read_by(names) if name in self.taps and name not in names]
        session = self.candidate.tapped({self.taps[name].name for name in (*before, *names)}, self._threads)
        cuts = self._fed(session, [*before, *names])
        compared = [name for name in names if name in cuts]
        again = self.reference.cut(cuts, compared, self._threads)
        fed = tuple(name for name in before if name in cuts)
        return _Sessions(TappedEngine(session, self._contract, self._beside.table), again, tuple(compared), fed)

    def _fed(self, session: ort.InferenceSession, names: Sequence[str]) -> dict[str, Fed]:
        """Return what is known of the values `names` from the outputs of a tapped candidate."""
        found = {value.name: value for value in (*session.get_inputs(), *session.get_outputs())}
        cuts = {}
        for name in names:
            tap = self.taps[name]
            value = found[tap.name]
            if value.type in _TYPES:
                width = (tap.columns[1] - tap.columns[0],) if tap.columns else tuple(value.shape[-1:])
                cuts[name] = Fed(_TYPES[value.type], (*value.shape[:-1], *width))
        return cuts

    def _search(self, sessions: _Sessions, script: Scenario) -> Divergence | None:
        for call in replay(sessions.candidate, script):
            if not call.feeds["logit_positions"].size:  # a cache that is filled anew; reference bodies need rows
                continue
            found = self.judge(script, call, sessions.reference, sessions.names, sessions.before)
            if found is not None:
                return found
        return None

    def judge(
        self,
        script: Scenario,
        call: Call,
        reference: ort.InferenceSession,
        names: Sequence[str],
        before: Sequence[str] = (),
    ) -> Divergence | None:
        """Compare the values `names` of one call with what the cut reference makes of those before them.

        `before` are values that are fed and not compared.
        """
        feeds = dict(call.feeds) | {name: self.taps[name].read(call.values) for name in (*names, *before)}
        if self._beside.reference is not None and INPUT not in feeds:
            feeds[INPUT] = self._beside.reference.rows(feeds["input_ids"])
        twins = {name.removesuffix(AGAIN): array for name, array in run(reference, feeds).items()}
        checks = tuple(self._check(name, feeds[name], twins[name], call) for name in names)
        self.calls += 1
        self.worst = max([self.worst, *((check.worst / check.bound, check.value) for check in checks)])
        bad = [check for check in checks if check.failed]
        if not bad:
            return None
        op = bad[0].op
        failed = tuple(check for check in bad if check.op is op)
        return Divergence(script, call, op, failed, checks, feeds, twins, self.taps, self._nodes(bad[0].value))

    def _check(self, name: str, given: Array, wanted: Array, call: Call) -> Check:
        noisy = name in self._noisy
        caches = {n for layer in self._contract.kv for n in (layer.present_key, layer.present_value)}
        batch, count = call.feeds["input_ids"].shape
        first = call.starts

        if name in caches:  # [batch, heads, slots, width]: only what is filled counts
            first = first * 0
            unfilled = np.arange(given.shape[2]) >= (call.starts + count)[:, None]

            def rows(array: Array) -> Array:
                filled = np.moveaxis(array, 2, 1).copy()
                filled[unfilled] = 0
                return filled[:, : int(call.starts.max()) + count]

        else:
            shape = (batch, count)
            if given.shape[:2] != shape and given.shape[:1] != (batch * count,):
                shape = (batch, 1) if given.shape[:1] == (batch,) else (1, 1)
                first = first[: shape[0]] + count - 1

            def rows(array: Array) -> Array:
                return array.reshape(*shape, -1) if array.size else np.zeros((*shape, 0))

        op = self.semantic.made[name]
        coded = name in caches and is_codes(given)
        bound = self._coarse or INT8_BOUND if noisy else CODE_BOUND if coded else self._bound

        def judge(given: Array, wanted: Array) -> Array:
            if coded and not noisy:
                return code_errors(rows(given), rows(wanted))
            if coded:  # of values with noise, the codes are values with noise themselves
                given, wanted = given.astype(np.float32), wanted.astype(np.float32)
            error = row_errors(rows(given), rows(wanted), mean=noisy)
            if noisy and not (error <= bound).all() and "Linear" in op.type:
                # Where large inputs meet small results, rounding may do more.
                error = error / np.maximum(1.0, self._rounding_noise(op, call, rows(wanted)) / bound)
            return error

        error = judge(given, wanted) if given.shape == wanted.shape else np.full((len(first), 1), np.inf)
        return Check(name, op, error, bound, first, judge)

    def _rounding_noise(self, op: Op, call: Call, wanted: Array) -> Array:
        """Return four times the noise of int8 inputs expected of a linear, relative like `row_errors`."""
        name = str(op.inputs[0])
        x = self.taps[name].read(call.values) if name in self.taps else call.feeds.get(name)
        if x is None or x.shape[:2] != wanted.shape[:2]:
            return np.ones(wanted.shape[:2])
        if op.name not in self._energy:
            weight = str(op.inputs[1])
            self._energy[op.name] = block_energy(self.semantic.initializer(weight))
        step = np.abs(blocks_of(x)).max(axis=-1) / 127
        noise = np.sqrt(np.square(step) / 12 @ self._energy[op.name])
        expected: Array = 4 * noise / np.maximum(np.sqrt(np.square(wanted).mean(axis=-1)), 1e-30)
        return expected

    def _groups(self, scripts: Sequence[Scenario]) -> Iterator[list[str]]:
        """Yield the values layer by layer in runs that fit the budget, estimated from their widths."""
        rows = max(sum(map(len, step.rows)) for script in scripts for step in script.steps)
        groups: list[list[str]] = []
        size, before = 0, -1
        for name in self.taps:
            layer = layer_of(self.semantic.made[name].module)
            if not groups or (size > BUDGET and layer != before):
                groups.append([])
                size = 0
            groups[-1].append(name)
            size += 4 * rows * (self.semantic.width(name) or 1024)
            before = layer if layer is not None else before
        yield from groups

    def _made_by(self, name: str) -> Iterator[onnx.NodeProto]:
        """Yield the candidate's nodes between a value of the reference and the taps before it."""
        ends = {tap.name for tap in self.taps.values()}
        waiting, seen = [self.taps[name].name], set[int]()
        while waiting:
            index = self.candidate.made.get(waiting.pop())
            if index is not None and index not in seen:
                seen.add(index)
                node = self.candidate.nodes[index]
                yield node
                waiting += [value for value in node.input if value not in ends]

    def _nodes(self, name: str) -> list[str]:
        """Return the candidate's nodes that make a value, as `type name`; nodes of a body have no names."""
        nodes = [f"{node.op_type} {node.name}".strip() for node in self._made_by(name) if node.op_type != "Constant"]
        return list(dict.fromkeys(nodes))[:8]

    def _rounding(self) -> set[str]:
        """Return the values of the reference that the candidate makes with a kernel that rounds its inputs to int8."""

        def rounds(node: onnx.NodeProto) -> bool:
            level = next((a.i for a in node.attribute if a.name == "accuracy_level"), 0)
            return node.op_type in _INT8_KERNELS or (node.op_type == "MatMulNBits" and level == 4)

        found = {name for name in self.taps if any(rounds(node) for node in self._made_by(name))}
        if self._coarse is not None:
            found |= {name for name in self.taps if any(w in self.semantic.made[name].type for w in _WEIGHTED)}
        return found
