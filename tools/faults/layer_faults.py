"""Faults outside attention: biases, norms, activations, weights, routing, states, compilers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import mutate
import numpy as np
from attention_faults import layer
from fault import Fault
from inspect_case import Case

from edgewright.verify.locate import layer_of
from edgewright.verify.routing import routing_ops


def biases(case: Case) -> Iterator[Fault]:
    """A bias that is dropped, added twice, or another layer's."""
    with_bias = [op for op in case.linears() if len(op.inputs) > 2 and op.inputs[2]]
    if not with_bias:
        return
    first, last = with_bias[0], with_bias[-1]
    for recipe, form, op in (("int4", "bundle", last), ("float32", "portable", first)):
        title = f"no bias at {op.module.rsplit('.', 1)[-1]}"
        yield Fault(case.name, recipe, form, title, "bias", layer(op), stage=mutate.no_input(op.name, 2))
    twice = mutate.weight(str(last.inputs[2]), lambda a: a * 2)
    yield Fault(case.name, "float32", "bundle", "the bias twice", "bias", layer(last), stage=twice)
    alike = [op for op in with_bias if op.module.rsplit(".", 1)[-1] == last.module.rsplit(".", 1)[-1]]
    if alike[0] is not last:
        change = mutate.rewire(last.name, 2, str(alike[0].inputs[2]))
        title = f"the bias of layer {layer(alike[0])}"
        yield Fault(case.name, "int8", "bundle", title, "bias", layer(last), stage=change)


def norms(case: Case) -> Iterator[Fault]:
    """Norms without the one that is added, of another layer, with another epsilon, or left out."""
    ops = case.ops("RMSNorm", "LayerNorm")
    if not ops:
        return
    last, middle = ops[-1], ops[len(ops) // 2]
    weighted = [op for op in ops if len(op.inputs) > 1 and op.inputs[1]]
    if weighted:
        op = weighted[-1]
        bare = mutate.weight(str(op.inputs[1]), lambda a: a - 1)
        yield Fault(case.name, "int4", "bundle", "the one is not added", "norm", layer(op), stage=bare)
        shape, tail = case.semantic.shape(str(op.inputs[1])), op.module.rsplit(".", 1)[-1]
        alike = [o for o in weighted if o.module.rsplit(".", 1)[-1] == tail]
        alike = [o for o in alike if case.semantic.shape(str(o.inputs[1])) == shape]
        if alike[0] is not op:
            change = mutate.rewire(op.name, 1, str(alike[0].inputs[1]))
            title = f"the weight of layer {layer(alike[0])}"
            yield Fault(case.name, "float32", "portable", title, "norm", layer(op), stage=change)
        if len(op.inputs) > 2 and op.inputs[2]:
            change = mutate.no_input(op.name, 2)
            yield Fault(case.name, "float32", "portable", "no bias of the norm", "norm", layer(op), stage=change)
    change = mutate.attribute(middle.name, epsilon=float(middle.attributes["epsilon"]) * 50 + 0.02)
    yield Fault(case.name, "float32", "bundle", "another epsilon", "norm", layer(middle), stage=change)
    yield Fault(case.name, "float32", "portable", "no norm", "norm", layer(last), stage=mutate.passed(last.name))


def activations(case: Case) -> Iterator[Fault]:
    """Another activation, and gate and up exchanged."""
    routes = routing_ops(case.semantic)
    ops = [op for op in case.ops("GatedActivation", "Activation") if op.name not in routes]
    if ops:
        op = ops[-1]
        old = op.attributes["activation"]
        other = {"silu": "gelu_tanh", "gelu_tanh": "gelu", "gelu": "quick_gelu"}.get(old, "silu")
        for recipe, form, new in (
            ("float32", "bundle", other),
            ("int4", "portable", "relu" if old != "relu" else "silu"),
        ):
            change = mutate.attribute(op.name, activation=new)
            yield Fault(case.name, recipe, form, f"{new} instead of {old}", "activation", layer(op), stage=change)
    for op in case.ops("Experts")[-1:]:
        if op.attributes["activation"] == "silu":
            change = mutate.attribute(op.name, activation="gelu_tanh")
            yield Fault(case.name, "float32", "portable", "gelu instead of silu", "activation", layer(op), stage=change)


def factors(case: Case) -> Iterator[Fault]:
    """Factors of embedding, residual or logits that are left out."""
    seen: set[str] = set()
    routes = routing_ops(case.semantic)
    for op in case.semantic.ops:
        fixed = [i for i, n in enumerate(op.inputs) if n in case.semantic.initializers]
        if op.type != "Mul" or op.domain or len(fixed) != 1 or op.name in routes:
            continue
        number = case.semantic.initializer(str(op.inputs[fixed[0]]))
        kind = op.module.rsplit(".", 1)[-1]
        if number.size != 1 or kind in seen or abs(float(number.ravel()[0]) - 1) < 0.01:
            continue
        seen.add(kind)
        n = layer_of(op.module)
        change = mutate.constant(op.name, fixed[0], 1.0)
        yield Fault(case.name, "int4", "bundle", f"no factor at {op.name}", "scale", n, op.module, stage=change)
        more = mutate.constant(op.name, fixed[0], float(number.ravel()[0]) * 1.1)
        yield Fault(case.name, "float32", "portable", f"factor off at {op.name}", "scale", n, op.module, stage=more)


def weights(case: Case) -> Iterator[Fault]:
    """Transposed, moved, of another layer, with wrong codes, scales or zero points."""
    linears = [op for op in case.linears() if op.inputs[1] in case.semantic.initializers]
    if not linears:
        return
    last = linears[-1]
    n, name = layer(last), str(last.inputs[1])
    module = last.module
    square = [op for op in linears if len(set(case.semantic.shape(str(op.inputs[1])))) == 1]
    if square:
        op = square[-1]
        change = mutate.weight(str(op.inputs[1]), lambda a: a.T)
        yield Fault(case.name, "float32", "bundle", "a transposed weight", "weight bytes", layer(op), stage=change)
    alike = [op for op in linears if op.module.rsplit(".", 1)[-1] == module.rsplit(".", 1)[-1]]
    if alike[0] is not last and case.semantic.shape(str(alike[0].inputs[1])) == case.semantic.shape(name):
        title = f"the weight of layer {layer(alike[0])}"
        change = mutate.rewire(last.name, 1, str(alike[0].inputs[1]))
        yield Fault(case.name, "float32", "portable", title, "weight bytes", n, stage=change)
    scales = mutate.tensor([f"{module}.scales"], lambda a: _at(a, lambda v: v * 1.5))
    yield Fault(case.name, "int4", "bundle", "a scale off by half", "weight bytes", n, files=scales)
    codes = mutate.tensor([f"{module}.codes"], lambda a: (a >> 4) | (a << 4))
    yield Fault(case.name, "int4", "portable", "nibbles in the other order", "weight bytes", n, files=codes)
    moved = mutate.tensor([f"{module}.codes"], lambda a: np.roll(a, 1, axis=0))
    yield Fault(case.name, "int8", "bundle", "codes one row down", "weight bytes", n, files=moved)
    signed = mutate.tensor([f"{module}.float16"], lambda a: _at(a, lambda v: -v))
    yield Fault(case.name, "float16", "bundle", "one sign flipped", "weight bytes", n, files=signed)
    rows = mutate.weight(name, lambda a: a[::-1])
    yield Fault(case.name, "int4", "bundle", "rows in reverse order", "weight bytes", n, stage=rows)


def zero_points(case: Case) -> Iterator[Fault]:
    """The middle of the codes off by one, as for unsigned codes of another convention."""
    last = ("o_proj", "down_proj", "out_proj", "c_proj", "dense", "fc2", "dense_4h_to_h")
    for op in [op for op in case.linears() if op.module.endswith(last)][:1]:

        def off(a: np.ndarray) -> np.ndarray:
            low, high = a & 15, a >> 4
            return np.minimum(low + 1, 15) | (np.minimum(high + 1, 15) << 4)

        change = mutate.tensor([f"{op.module}.codes"], off)
        yield Fault(case.name, "int4", "bundle", "zero point off by one", "weight bytes", layer(op), files=change)


def _at(array: np.ndarray, edit) -> np.ndarray:  # type: ignore[no-untyped-def]
    new = array.copy()
    at = int(np.abs(new.astype(np.float32)).argmax())
    new.reshape(-1)[at] = edit(new.reshape(-1)[at])
    return new


def _next_expert(array: np.ndarray, experts: int) -> np.ndarray:
    return np.roll(array.reshape(experts, -1, array.shape[1]), 1, axis=0).reshape(array.shape)


def routing(case: Case) -> Iterator[Fault]:
    """Experts in another order, more or fewer of them, weights that don't add up."""
    for op in case.ops("Experts")[-1:]:
        n, count = layer(op), int(op.attributes["experts"])
        down = str(op.inputs[4])
        change = mutate.weight(down, partial(_next_expert, experts=count))
        yield Fault(case.name, "float32", "bundle", "down weights one expert late", "routing", n, stage=change)
        routes = routing_ops(case.semantic)
        mine = [o for o in case.of_layer(n, "TopK", "Div", "Softmax", "Sigmoid") if o.name in routes]
        for o in mine:
            readers = [r.type for r in case.semantic.ops if set(o.outputs) & set(r.inputs)]
            if o.type == "TopK" and o.inputs[1] in case.semantic.initializers and "Max" not in readers:
                old = int(case.semantic.initializer(str(o.inputs[1])).ravel()[0])
                change = mutate.constant(o.name, 1, [max(1, old - 1) if old > 1 else 2], np.int64)
                yield Fault(case.name, "float32", "portable", "another number of experts", "routing", n, stage=change)
            if o.type == "Div":
                change = mutate.passed(o.name)
                yield Fault(case.name, "float32", "bundle", "weights are not normalised", "routing", n, stage=change)
            if o.type == "Softmax":
                change = mutate.together(mutate.renamed_type(o.name, "Sigmoid"), mutate.attribute(o.name, axis=None))
                yield Fault(case.name, "float32", "portable", "sigmoid for softmax", "routing", n, stage=change)


def states(case: Case) -> Iterator[Fault]:
    """Recurrent states that are not carried on, convolutions without their activation or bias."""
    for kind, place in (("StateSpace", 6), ("GatedDelta", 5), ("CausalConv", 3)):
        for op in case.ops(kind)[-1:]:
            change = mutate.stale(op.name, 1, place)
            yield Fault(case.name, "float32", "bundle", f"the state of {kind} stays", "cache", layer(op), stage=change)
    for op in case.ops("CausalConv")[-1:]:
        if op.attributes.get("activation"):
            change = mutate.attribute(op.name, activation=None)
            yield Fault(case.name, "float32", "portable", "no activation", "activation", layer(op), stage=change)
        if op.inputs[2]:
            zero = mutate.weight(str(op.inputs[2]), lambda a: a * 0)
            yield Fault(case.name, "float32", "bundle", "the bias is zero", "bias", layer(op), stage=zero)


def compilers(case: Case) -> Iterator[Fault]:
    """Faults that only the compiled engine has."""
    for op in case.ops("Attention")[-1:]:
        if int(op.attributes["head_dim"]) % 8 or not op.inputs[1] or any(op.inputs[6:]):
            continue
        if op.attributes["value_dim"] != op.attributes["head_dim"]:
            continue
        n = layer(op)
        edit = mutate.engine_attribute(op.name, "local_window_size", 20)
        if not op.attributes.get("window"):
            yield Fault(case.name, "int8", "bundle", "window 20 in the engine", "window", n, files=edit)
        edit = mutate.engine_attribute(op.name, "scale", float(op.attributes["scale"]) * 2)
        yield Fault(case.name, "float32", "bundle", "scale times 2 in the engine", "scale", n, files=edit)
