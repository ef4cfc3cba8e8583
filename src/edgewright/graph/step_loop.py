"""One denoise step becomes the whole loop: x + size * velocity, over and over, in one graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from edgewright.contract import TensorContract
from edgewright.graph.builder import make_node
from edgewright.graph.flow import input_named, reached_from
from edgewright.graph.rewrite import int64_constant, scalar_constant
from edgewright.graph.stage import Stage
from edgewright.graph.time_table import TIME_INDEX

X_T, VELOCITY, NOISE, ACTIONS = "x_t", "velocity", "noise", "actions"


@dataclass(frozen=True)
class StepLoop:
    """How often the step runs, and whether its steps stand one after the other instead of in an ONNX Loop."""

    steps: int
    unrolled: bool = False


def close_loop(stage: Stage) -> None:
    """Make a stage with `loop` set, one step in `x_t` and `time_index`, the loop from `noise` to `actions`, in place.

    It comes after lowering, so that kernels are chosen for the step. The step's index counts 0, 1, ... and x is summed
    up in float32 as the runtime does it. What depends on neither stays outside of the loop. Weights are there once.
    """
    loop, stage.loop = stage.loop, None
    if loop is None:
        return
    graph = stage.graph
    graph.sort()
    noise, index, velocity = input_named(graph, X_T), input_named(graph, TIME_INDEX), graph.outputs[0]
    moving = reached_from(graph, [noise, index], of_shape=[noise])
    nodes = [node for node in graph if any(value in moving for value in node.outputs)]
    step = _Step(stage, nodes, noise, index, velocity, np.float32(-1.0 / loop.steps))
    actions = step.unrolled(loop.steps) if loop.unrolled else step.looped(loop.steps)
    _rename(stage, index, actions)
    stage.drop_unused()


def _rename(stage: Stage, index: ir.Value, actions: ir.Value) -> None:
    """Give the loop's inputs and output their names, in graph and contract."""
    graph = stage.graph
    graph.inputs.remove(index)
    input_named(graph, X_T).name = NOISE
    taken = next(tensor for tensor in stage.contract.inputs if tensor.name == X_T)
    given = dataclasses.replace(taken, name=ACTIONS)
    actions.name, actions.shape, actions.type = ACTIONS, ir.Shape(given.shape), ir.TensorType(ir.DataType.FLOAT)
    graph.outputs.clear()
    graph.outputs.append(actions)
    inputs = [t for t in stage.contract.inputs if t.name != TIME_INDEX]
    renamed: tuple[TensorContract, ...] = tuple(
        dataclasses.replace(t, name=NOISE) if t.name == X_T else t for t in inputs
    )
    bounds = {name: limits for name, limits in stage.contract.bounds.items() if name != "times"}
    stage.contract = dataclasses.replace(stage.contract, inputs=renamed, outputs=(given,), bounds=bounds)


class _Step:
    """The nodes of one step, and the ways to run them over and over."""

    def __init__(
        self,
        stage: Stage,
        nodes: Sequence[ir.Node],
        noise: ir.Value,
        index: ir.Value,
        velocity: ir.Value,
        size: np.float32,
    ) -> None:
        self._stage, self._nodes = stage, nodes
        self._noise, self._index, self._velocity = noise, index, velocity
        self._size = scalar_constant(stage, size, np.float32, "loop.size")

    def looped(self, steps: int) -> ir.Value:
        """Move the nodes into the body of a Loop; returns what it gives."""
        scalar = ir.Shape(())
        count = ir.Value(name="loop.step", shape=scalar, type=ir.TensorType(ir.DataType.INT64))
        going = ir.Value(name="loop.going", shape=scalar, type=ir.TensorType(ir.DataType.BOOL))
        x = ir.Value(name="loop.x", shape=self._noise.shape, type=self._noise.type)
        graph, nodes = self._stage.graph, list(self._nodes)
        one = int64_constant(self._stage, [1, 1], "loop.shape")
        index = make_node("", "Reshape", [count, one], {}, name="loop/index")
        ahead = make_node("", "Identity", [going], {}, name="loop/going")
        for old, new in ((self._noise, x), (self._index, index.outputs[0])):
            for node, place in [(use.node, use.idx) for use in old.uses() if use.node in nodes]:
                node.replace_input_with(place, new)
        graph.outputs.clear()
        graph.remove(nodes)
        tail = self._moved(x, self._velocity, "loop")
        more, after = ahead.outputs[0], tail[-1].outputs[0]
        more.type, more.shape = going.type, scalar
        after.type, after.shape = x.type, x.shape
        body = ir.Graph([count, going, x], [more, after], nodes=[index, ahead, *nodes, *tail], name="step")
        trips = scalar_constant(self._stage, steps, np.int64, "loop.steps")
        node = make_node("", "Loop", [trips, None, self._noise], {"body": body}, name="loop/Loop")
        graph.append(node)
        return node.outputs[0]

    def unrolled(self, steps: int) -> ir.Value:
        """Put the nodes there `steps` times, one after the other; returns what the last gives."""
        graph = self._stage.graph
        graph.outputs.clear()
        x = self._noise
        for number in range(steps):
            tensor = ir.tensor(np.array([[number]], np.int64), name=f"loop.index_{number}")
            at = ir.Value(
                name=tensor.name, shape=ir.Shape((1, 1)), type=ir.TensorType(ir.DataType.INT64), const_value=tensor
            )
            graph.register_initializer(at)
            made = {self._noise: x, self._index: at}
            for node in self._nodes:
                graph.append(_copied(node, made, f"step_{number}"))
            tail = self._moved(x, made[self._velocity], f"step_{number}")
            graph.extend(tail)
            x = tail[-1].outputs[0]
        graph.remove(list(reversed(self._nodes)), safe=True)
        return x

    def _moved(self, x: ir.Value, velocity: ir.Value, name: str) -> list[ir.Node]:
        """Return the nodes of x + size * velocity, rounded where the runtime rounds."""
        change = make_node("", "Mul", [velocity, self._size], {}, name=f"{name}/change")
        return [change, make_node("", "Add", [x, change.outputs[0]], {}, name=f"{name}/x")]


def _copied(node: ir.Node, made: dict[ir.Value, ir.Value], name: str) -> ir.Node:
    """Return a node like `node` that reads what `made` has in the place of its inputs; adds its outputs to `made`."""
    outputs = [ir.Value(name=f"{name}/{value.name}" if value.name else "") for value in node.outputs]
    copy = ir.Node(
        node.domain,
        node.op_type,
        [None if value is None else made.get(value, value) for value in node.inputs],
        list(node.attributes.values()),
        overload=node.overload,
        outputs=outputs,
        name=f"{name}/{node.name}",
    )
    made.update(zip(node.outputs, outputs, strict=True))
    return copy
