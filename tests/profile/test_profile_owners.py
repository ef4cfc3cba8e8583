from __future__ import annotations

import pytest
from profile_cases import graph_of

from edgewright.plan.work import Work
from edgewright.profile.groups import group_of, module_path
from edgewright.profile.owners import EngineNode, Owners, engine_nodes
from edgewright.profile.placing import Doer, place

#: Two layers: a product, a bias, an activation; attention as one node with two results; a product.
GRAPH = graph_of(
    [
        ("m.0.up/Linear", "MatMul", ["x", "w0"], ["u"]),
        ("m.0.up/Linear/bias", "Add", ["u", "b"], ["ub"]),
        ("m.0/Activation", "Gelu", ["ub"], ["act"]),
        ("m.1.attn/Attention", "Attention", ["act", "cache"], ["y", "present"]),
        ("m.1.down/Linear", "MatMul", ["y", "w1"], ["z"]),
    ]
)


def test_a_graph_s_own_nodes_are_themselves() -> None:
    owners = Owners(GRAPH, engine_nodes(GRAPH))
    assert [owners.of(name) for name in owners.order] == [(name,) for name in owners.order]
    assert owners.kind("m.0/Activation") == "Gelu"


def test_nodes_fused_between_known_values() -> None:
    """Bias and activation became one node of another name, which keeps the value it gives."""
    engine = [
        EngineNode("m.0.up/Linear", "MatMul", ("x", "w0"), ("u",)),
        EngineNode("BiasGelu", "BiasGelu", ("u", "b"), ("act",)),
        EngineNode("m.1.attn/Attention", "Attention", ("act", "cache"), ("y", "present")),
        EngineNode("m.1.down/Linear", "MatMul", ("y", "w1"), ("z",)),
    ]
    owners = Owners(GRAPH, engine)
    assert owners.of("BiasGelu") == ("m.0.up/Linear/bias", "m.0/Activation")
    assert owners.of("m.0.up/Linear") == ("m.0.up/Linear",)


def test_a_name_that_stays_covers_what_was_fused_into_it() -> None:
    engine = [
        EngineNode("m.0.up/Linear", "Gemm", ("x", "w0", "b"), ("ub",)),
        EngineNode("m.0/Activation", "Gelu", ("ub",), ("act",)),
    ]
    assert Owners(GRAPH, engine).of("m.0.up/Linear") == ("m.0.up/Linear", "m.0.up/Linear/bias")


def test_the_body_of_a_function_by_place_and_by_flow() -> None:
    """Nodes without a name, spelled by op and place, belong to the one whose results they lead to."""
    engine = [
        EngineNode("m.0/Activation", "Gelu", ("ub",), ("act",)),
        EngineNode("", "Shape", ("act",), ("i1",)),
        EngineNode("", "Reshape", ("act", "i1"), ("i2",)),
        EngineNode("", "Scatter", ("cache", "i2"), ("present",)),
        EngineNode("", "MatMul", ("i2", "present"), ("y",)),
        EngineNode("m.1.down/Linear", "MatMul", ("y", "w1"), ("z",)),
    ]
    owners = Owners(GRAPH, engine)
    for name, place_ in (("Shape_1", 1), ("Reshape_2", 2), ("Scatter_3", 3), ("MatMul_4", 4)):
        assert owners.of(name, place_) == ("m.1.attn/Attention",), name
    assert owners.of("Reshape_1", 1) == ()  # another op stands there
    assert owners.of("Gelu_9", 9) == ()


def test_names_that_an_engine_adds_to() -> None:
    owners = Owners(GRAPH)
    assert owners.of("m.0/Activation_3") == ("m.0/Activation",)
    assert owners.of("m.0/Activation/sub/Mul_1") == ("m.0/Activation",)
    assert owners.of("m.0/ActivationX") == ("m.0/Activation",)  # of the module m.0
    assert owners.of("z") == ("m.1.down/Linear",)  # a value's name
    assert owners.of("m.2.attn/Add") == ()
    assert owners.of("layer", originals=("m.0/Activation", "m.1.down/Linear")) == ("m.0/Activation", "m.1.down/Linear")


def test_a_range_is_all_on_the_ways_between() -> None:
    owners = Owners(GRAPH)
    assert owners.of("m.0.up/Linear/bias...m.1.attn/Attention") == (
        "m.0.up/Linear/bias", "m.0/Activation", "m.1.attn/Attention",
    )  # fmt: skip
    assert owners.of("m.1.down/Linear...m.0.up/Linear") == ("m.0.up/Linear", "m.1.down/Linear")  # no way: its ends


def test_an_engine_that_keeps_no_values() -> None:
    """By the module before the slash, then by what reads it, then by what makes it."""
    engine = [
        EngineNode("m.0/Activation", "Gelu", ("in:",), ("a:",)),
        EngineNode("Gather_5", "Gather", ("table:",), ("g:",)),
        EngineNode("m.1.attn/Sdpa_1", "ScaledDotProductAttention", ("a:", "g:"), ("s:",)),
        EngineNode("Assign_4", "Assign", ("s:",), ("as:",)),
    ]
    owners = Owners(GRAPH, engine)
    assert owners.of("m.1.attn/Sdpa_1") == ("m.1.attn/Attention",)
    assert owners.of("Gather_5") == ("m.1.attn/Attention",)
    assert owners.of("Assign_4") == ("m.1.attn/Attention",)


@pytest.mark.parametrize(
    ("module", "group"),
    [
        ("model.layers.0.self_attn.q_proj+k_proj+v_proj", "attention"),
        ("model.layers.0.self_attn.q_norm", "norm"),
        ("model.layers.0.input_layernorm", "norm"),
        ("model.layers.0.mlp.gate_proj+up_proj", "mlp"),
        ("model.layers.0.mlp.experts", "experts"),
        ("model.layers.3.mamba.in_proj", "recurrent"),
        ("model.layers.0.linear_attn.in_proj", "recurrent"),
        ("model.embed_tokens", "embedding"),
        ("lm_head", "head"),
        ("transformer.h.0.ln_1", "norm"),
        ("paligemma_with_expert.gemma_expert.model.layers.0.self_attn.o_proj", "attention"),
        ("paligemma_with_expert.gemma_expert.model.layers.0", "other"),
        ("lengths", "other"),
    ],
)
def test_parts_of_a_model(module: str, group: str) -> None:
    assert group_of(module) == group
    assert module_path(f"{module}/Linear/bias") == module


def kinds(node: str) -> str:
    return {"a/MatMul": "MatMul", "a/Attention": "Attention"}.get(node, "Mul")


def test_work_goes_to_the_layer_of_its_op() -> None:
    work = [
        Work("a", "MatMul", "int8", 10, 100),
        Work("a", "Softmax", "float", 0, 0, 5),
        Work("b", "MatMul", "float", 7),
    ]
    doers = [Doer(("a/MatMul",), "FullyConnected", 1.0), Doer(("a/Attention",), "Softmax", 5.0)]
    placed, left = place(work, doers, kinds)
    assert (placed[0].macs, placed[0].bytes) == ({"int8": 10}, 100)
    assert (placed[1].macs, placed[1].bytes) == ({}, 5)
    assert left == [work[2]]


def test_work_of_a_body_goes_in_order_or_to_the_longest() -> None:
    work = [Work("a", "MatMul", "float", 1), Work("a", "MatMul", "float", 2)]
    body = [Doer(("a/Attention",), kind, ms) for kind, ms in (("MatMul", 1.0), ("Softmax", 9.0), ("MatMul", 2.0))]
    placed, left = place(work, body, kinds)
    assert [one.macs.get("float") for one in placed] == [1, None, 2]
    placed, left = place(work, body[:1] + body[:1] + body[2:], kinds)
    assert [one.macs.get("float") for one in placed] == [None, None, 3]
    assert not left
