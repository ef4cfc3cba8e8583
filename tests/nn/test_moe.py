"""Mixture of experts: routing against what transformers chooses, and the block with its names.

CHOSEN is what the routers of transformers 5.24 return for LOGITS (weights an identity, in eval mode): the weight of
each chosen expert, by token. Scores all differ.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from conftest import ArrayTensor, run_graph
from edgewright.contract import StageContract, TensorContract
from edgewright.dialects import onnxruntime
from edgewright.dialects._ort_experts import lower_experts
from edgewright.graph import GraphBuilder, Stage
from edgewright.graph.weights import StoredWeight
from edgewright.nn.layers import GatedMLP
from edgewright.nn.module import Module
from edgewright.nn.moe import (
    Experts,
    FloatLinear,
    MoE,
    Router,
    Routing,
    sigmoid_groups,
    softmax_groups,
    softmax_top_k,
    sparse_mixer,
    top_k_softmax,
)
from edgewright.quant.apply import quantize_stage
from edgewright.quant.recipe_file import load_recipe
from expert_cases import Run, close, experts_np, sigmoid

LOGITS = [
    [-0.125, 0.5625, -1.1875, 0.125, 1.0, -0.4375, 2.4375, -2.375],
    [-0.0625, -0.4375, 0.375, -0.3125, 1.375, 0.3125, 0.875, 0.625],
    [0.375, 1.375, -0.75, -2.5, 1.5625, 0.8125, -0.25, 0.0625],
    [0.875, 3.375, 2.8125, -1.8125, 1.5, 0.6875, 3.625, -0.25],
]
CORRECTION = [0.375, 0.328125, 0.203125, -0.0625, -0.265625, -0.421875, 0.296875, 0.09375]
CHOSEN: dict[str, list[dict[int, float]]] = {
    "mixtral": [
        {4: 0.1919328, 6: 0.8080672},
        {4: 0.6224594, 6: 0.3775407},
        {1: 0.4532618, 4: 0.5467381},
        {1: 0.4378235, 6: 0.5621765},
    ],
    "qwen3_moe_False": [
        {1: 0.09248315, 4: 0.1432407, 6: 0.6030658},
        {4: 0.2960231, 6: 0.1795471, 7: 0.1398314},
        {1: 0.2666568, 4: 0.3216496, 5: 0.1519365},
        {1: 0.3135254, 2: 0.1786414, 6: 0.4025746},
    ],
    "qwen3_moe_True": [
        {1: 0.1102578, 4: 0.1707707, 6: 0.7189714},
        {4: 0.4810243, 6: 0.291756, 7: 0.2272198},
        {1: 0.3602288, 4: 0.4345189, 5: 0.2052522},
        {1: 0.350409, 2: 0.199657, 6: 0.449934},
    ],
    "qwen2_moe": [
        {1: 0.09248315, 3: 0.05971161, 4: 0.1432407, 6: 0.6030658},
        {2: 0.1089008, 4: 0.2960231, 6: 0.1795471, 7: 0.1398314},
        {0: 0.09809759, 1: 0.2666568, 4: 0.3216496, 5: 0.1519365},
        {1: 0.3135254, 2: 0.1786414, 4: 0.04808068, 6: 0.4025746},
    ],
    "olmoe": [
        {1: 0.1029305, 3: 0.0664569, 4: 0.1594218, 6: 0.6711909},
        {2: 0.1503527, 4: 0.408701, 6: 0.2478897, 7: 0.1930567},
        {0: 0.117014, 1: 0.318077, 4: 0.3836741, 5: 0.1812348},
        {1: 0.3325393, 2: 0.1894752, 4: 0.05099656, 6: 0.426989},
    ],
    "granitemoe": [
        {1: 0.1102578, 4: 0.1707707, 6: 0.7189714},
        {4: 0.4810243, 6: 0.291756, 7: 0.2272198},
        {1: 0.3602288, 4: 0.4345189, 5: 0.2052522},
        {1: 0.350409, 2: 0.199657, 6: 0.449934},
    ],
    "gpt_oss": [
        {1: 0.1029304, 3: 0.06645689, 4: 0.1594218, 6: 0.6711908},
        {2: 0.1503527, 4: 0.408701, 6: 0.2478897, 7: 0.1930567},
        {0: 0.117014, 1: 0.318077, 4: 0.3836741, 5: 0.1812348},
        {1: 0.3325393, 2: 0.1894752, 4: 0.05099656, 6: 0.426989},
    ],
    "deepseek_v3_False_1_1": [
        {0: 1.171977, 1: 1.592577, 6: 2.299106},
        {0: 1.21095, 2: 1.481667, 6: 1.764463},
        {0: 1.481667, 1: 1.995467, 6: 1.094559},
        {1: 2.417285, 2: 2.358369, 6: 2.435107},
    ],
    "deepseek_v3_False_4_2": [
        {0: 1.171977, 1: 1.592577, 6: 2.299106},
        {0: 1.21095, 6: 1.764463, 7: 1.628387},
        {0: 1.481667, 1: 1.995467, 6: 1.094559},
        {0: 1.764463, 1: 2.417285, 6: 2.435107},
    ],
    "deepseek_v3_False_2_1": [
        {0: 1.171977, 1: 1.592577, 3: 1.328024},
        {4: 1.995467, 6: 1.764463, 7: 1.628387},
        {0: 1.481667, 1: 1.995467, 2: 0.8020532},
        {0: 1.764463, 1: 2.417285, 2: 2.358369},
    ],
    "deepseek_v3_True_1_1": [
        {0: 0.5786213, 1: 0.7862777, 6: 1.135101},
        {0: 0.6792285, 2: 0.8310748, 6: 0.9896967},
        {0: 0.8102397, 1: 1.091208, 6: 0.5985523},
        {1: 0.8380827, 2: 0.8176562, 6: 0.8442613},
    ],
    "deepseek_v3_True_4_2": [
        {0: 0.5786213, 1: 0.7862777, 6: 1.135101},
        {0: 0.6575818, 6: 0.9581555, 7: 0.8842626},
        {0: 0.8102397, 1: 1.091208, 6: 0.5985523},
        {0: 0.6666546, 1: 0.913306, 6: 0.9200394},
    ],
    "deepseek_v3_True_2_1": [
        {0: 0.715916, 1: 0.9728448, 3: 0.8112392},
        {4: 0.9258303, 6: 0.818652, 7: 0.7555175},
        {0: 0.865624, 1: 1.165798, 2: 0.4685781},
        {0: 0.6744767, 1: 0.9240222, 2: 0.9015011},
    ],
    "glm4_moe": [
        {0: 0.4239298, 1: 0.5760702},
        {6: 0.5200533, 7: 0.4799468},
        {0: 0.4261172, 1: 0.5738828},
        {0: 0.4219438, 1: 0.5780562},
    ],
    "deepseek_v2_greedy_1": [
        {1: 0.1387247, 4: 0.214861, 6: 0.9045988},
        {4: 0.4440346, 6: 0.2693206, 7: 0.2097471},
        {1: 0.3999853, 4: 0.4824744, 5: 0.2279048},
        {1: 0.4702881, 2: 0.2679621, 6: 0.6038619},
    ],
    "deepseek_v2_group_limited_greedy_4": [
        {4: 0.214861, 5: 0.05103397, 6: 0.9045988},
        {4: 0.4440346, 6: 0.2693206, 7: 0.2097471},
        {1: 0.3999853, 4: 0.4824744, 5: 0.2279048},
        {0: 0.0386036, 1: 0.4702881, 6: 0.6038619},
    ],
    "deepseek_v2_group_limited_greedy_2": [
        {4: 0.214861, 5: 0.05103397, 6: 0.9045988},
        {4: 0.4440346, 6: 0.2693206, 7: 0.2097471},
        {4: 0.4824744, 5: 0.2279048, 7: 0.1076546},
        {4: 0.07212102, 5: 0.03200351, 6: 0.6038619},
    ],
    "phimoe_0.01": [{4: 1, 6: 1}, {4: 1, 6: 1}, {1: 1, 4: 1}, {1: 1, 6: 1}],
    "phimoe_0.2": [{4: 1, 6: 1}, {4: 0.6224594, 6: 0.5621765}, {1: 1, 4: 0.5467381}, {1: 0.6370308, 6: 0.449934}],
    "phimoe_0.5": [
        {4: 0.484846, 6: 0.6711909},
        {4: 0.3581191, 6: 0.3383964},
        {1: 0.4531431, 4: 0.3534182},
        {1: 0.5338249, 6: 0.4066848},
    ],
}

V3 = partial(sigmoid_groups, experts=8, top_k=3, scale=2.5)
V2 = partial(softmax_groups, experts=8, top_k=3, scale=1.5)
ROUTERS: dict[str, Routing] = {
    "mixtral": partial(softmax_top_k, top_k=2, renormalize=True),
    "qwen3_moe_False": partial(softmax_top_k, top_k=3),
    "qwen3_moe_True": partial(softmax_top_k, top_k=3, renormalize=True),
    "qwen2_moe": partial(softmax_top_k, top_k=4),
    "olmoe": partial(softmax_top_k, top_k=4, renormalize=True),
    "granitemoe": partial(top_k_softmax, top_k=3),
    "gpt_oss": partial(top_k_softmax, top_k=4),
    "deepseek_v3_False_1_1": partial(V3, renormalize=False),
    "deepseek_v3_False_4_2": partial(V3, renormalize=False, groups=4, top_groups=2),
    "deepseek_v3_False_2_1": partial(V3, renormalize=False, groups=2, top_groups=1),
    "deepseek_v3_True_1_1": V3,
    "deepseek_v3_True_4_2": partial(V3, groups=4, top_groups=2),
    "deepseek_v3_True_2_1": partial(V3, groups=2, top_groups=1),
    "glm4_moe": partial(sigmoid_groups, experts=8, top_k=2, groups=4, top_groups=1),
    "deepseek_v2_greedy_1": partial(softmax_top_k, top_k=3, scale=1.5),
    "deepseek_v2_group_limited_greedy_4": partial(V2, groups=4, top_groups=2),
    "deepseek_v2_group_limited_greedy_2": partial(V2, groups=2, top_groups=1),
    "phimoe_0.01": partial(sparse_mixer, jitter=0.01),
    "phimoe_0.2": partial(sparse_mixer, jitter=0.2),
    "phimoe_0.5": partial(sparse_mixer, jitter=0.5),
}


@pytest.mark.parametrize("name", sorted(CHOSEN))
def test_routing_is_that_of_transformers(name: str) -> None:
    corrected = isinstance(ROUTERS[name], partial) and ROUTERS[name].func is sigmoid_groups
    logits = np.asarray(LOGITS, dtype=np.float32).reshape(2, 2, 8)
    wanted = np.zeros((4, 8), dtype=np.float32)
    for row, chosen in zip(wanted, CHOSEN[name], strict=True):
        for expert, weight in chosen.items():
            row[expert] = weight

    def build(g: GraphBuilder, x: ir.Value) -> ir.Value:
        options = {"correction": g.constant(CORRECTION, np.float32)} if corrected else {}
        return ROUTERS[name](g, x, **options)

    for dialect in ("portable", "onnxruntime"):
        got = run_graph(build, {"logits": logits}, dialect=dialect)
        np.testing.assert_array_equal(got != 0, wanted.reshape(got.shape) != 0)
        close(got, wanted.reshape(2, 2, 8), 5e-7)
        assert run_graph(build, {"logits": logits[:, :0]}, dialect=dialect).shape == (2, 0, 8)


def test_sigmoid_scores_need_no_correction() -> None:
    logits = np.asarray(LOGITS, dtype=np.float32)[None]
    got = run_graph(lambda g, x: sigmoid_groups(g, x, experts=8, top_k=1, renormalize=False), {"logits": logits})
    best = logits[0].argmax(-1)
    np.testing.assert_allclose(got[0, range(4), best], sigmoid(logits[0, range(4), best]), rtol=1e-6)
    assert np.count_nonzero(got) == 4


# -- the block ---------------------------------------------------------------------------------------------------------

WIDTH, INNER, COUNT, TOP_K = 32, 64, 4, 2


def bind(module: Module, path: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Name the module's parameters and give them random values; returns these by name without the path."""
    rng = np.random.default_rng(seed)
    module.assign_names(path)
    arrays = {}
    for parameter in module.parameters():
        values = rng.standard_normal(parameter.shape) * (parameter.shape[-1] ** -0.5 if len(parameter.shape) > 1 else 1)
        arrays[parameter.name.removeprefix(f"{path}.")] = values.astype(np.float32)
        tensor = ArrayTensor(parameter.name, values.astype(np.float32))
        parameter.weight = StoredWeight(tensor, parameter.name)
    return arrays


def stage_of(module: Module) -> Stage:
    stage = Stage("test", ir.Graph([], [], nodes=[], name="test"), StageContract((), ()))
    g = GraphBuilder(stage)
    x = g.input(TensorContract("x", "float32", ("batch", "seq", WIDTH)))
    g.input(TensorContract("routing", "float32", ("batch", "seq", COUNT)))  # what `Run` feeds; not used
    g.output(module(g, x), TensorContract("y", "float32", ("batch", "seq", WIDTH)))
    return stage


def experts(**options: Any) -> Experts:
    return Experts(WIDTH, INNER, options.pop("activation", "silu"), experts=COUNT, top_k=TOP_K, **options)


def router(**options: Any) -> Router:
    return Router(WIDTH, COUNT, options.pop("choose", partial(softmax_top_k, top_k=TOP_K, renormalize=True)), **options)


BLOCKS: dict[str, tuple[Any, set[str]]] = {
    "mixtral": (lambda: MoE(router(), experts()), {"gate.weight"}),
    "qwen2_moe": (
        lambda: MoE(
            router(),
            experts(),
            shared=GatedMLP(WIDTH, 48, "silu"),
            shared_name="shared_expert",
            shared_gate=FloatLinear(WIDTH, 1),
        ),
        {
            "gate.weight",
            *(f"shared_expert.{name}_proj.weight" for name in ("gate", "up", "down")),
            "shared_expert_gate.weight",
        },
    ),
    "deepseek_v3": (
        lambda: MoE(
            router(choose=partial(sigmoid_groups, experts=COUNT, top_k=TOP_K, groups=2, top_groups=1), correction=True),
            experts(),
            shared=GatedMLP(WIDTH, 48, "silu"),
        ),
        {
            "gate.weight",
            "gate.e_score_correction_bias",
            *(f"shared_experts.{name}_proj.weight" for name in ("gate", "up", "down")),
        },
    ),
    "gpt_oss": (
        lambda: MoE(
            router(choose=partial(top_k_softmax, top_k=TOP_K), bias=True),
            experts(activation="swiglu_clamped", limit=1.5, alpha=1.702, bias=True),
            router_name="router",
        ),
        {
            "router.weight",
            "router.bias",
            *(f"experts.{name}_proj.bias" for name in ("gate", "up", "down")),
        },
    ),
    "granitemoe": (
        lambda: MoE(router(choose=partial(top_k_softmax, top_k=TOP_K)), experts(), router_name="router.layer"),
        {"router.layer.weight"},
    ),
    "nemotron_h": (lambda: MoE(router(), experts(activation="relu2", gated=False)), {"gate.weight"}),
}


def softmax(x: np.ndarray) -> np.ndarray:
    e: np.ndarray = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def routing_np(name: str, logits: np.ndarray, w: dict[str, np.ndarray]) -> np.ndarray:
    """The routing of BLOCKS, token by token."""
    routing = np.zeros_like(logits)
    for at in np.ndindex(logits.shape[:-1]):
        row = logits[at]
        if name == "deepseek_v3":
            choice = sigmoid(row) + w["gate.e_score_correction_bias"]
            best = choice.reshape(2, 2).sum(-1).argmax()
            chosen = [2 * best, 2 * best + 1]
            routing[at][chosen] = sigmoid(row)[chosen] / sigmoid(row)[chosen].sum()
        else:
            chosen = list(np.argsort(-row)[:TOP_K])
            routing[at][chosen] = softmax(row[chosen])  # a softmax of all, renormalised, is the same
    return routing


@pytest.mark.parametrize("name", sorted(BLOCKS))
@pytest.mark.parametrize("dialect", ["portable", "onnxruntime"])
def test_block(dialect: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(onnxruntime._RULES, "Experts", lower_experts)
    make, names = BLOCKS[name]
    block = make()
    w = bind(block, "model.layers.0.mlp")
    projections = ("up", "down") if name == "nemotron_h" else ("gate", "up", "down")
    assert w.keys() == names | {f"experts.{p}_proj.weight" for p in projections}
    assert w["experts.up_proj.weight"].shape == (COUNT * INNER, WIDTH)
    assert w["experts.down_proj.weight"].shape == (COUNT * WIDTH, INNER)
    run = Run(stage_of(block), tmp_path, dialect)
    x = np.random.default_rng(1).standard_normal((2, 5, WIDTH)).astype(np.float32)
    prefix = {"gpt_oss": "router", "granitemoe": "router.layer"}.get(name, "gate")
    logits = x.astype(np.float64) @ w[f"{prefix}.weight"].T + w.get(f"{prefix}.bias", 0)
    activation = {"gpt_oss": "swiglu_clamped", "nemotron_h": "relu2"}.get(name, "silu")
    mine = {n.removeprefix("experts."): a for n, a in w.items() if n.startswith("experts.")}
    wanted = experts_np(x, routing_np(name, logits, w), mine, activation)
    shared = {n.rsplit(".", 2)[-2]: a for n, a in w.items() if n.startswith(("shared_expert.", "shared_experts."))}
    if shared:
        gate = x @ shared["gate_proj"].T
        extra = (gate * sigmoid(gate) * (x @ shared["up_proj"].T)) @ shared["down_proj"].T
        wanted = wanted + (sigmoid(x @ w["shared_expert_gate.weight"].T) if name == "qwen2_moe" else 1) * extra
    close(run(x, np.zeros((2, 5, COUNT), dtype=np.float32)), wanted, 5e-6)


def test_router_and_shared_gate_stay_in_float32() -> None:
    block = BLOCKS["qwen2_moe"][0]()
    bind(block, "model.layers.0.mlp")
    stage = stage_of(block)
    applied = quantize_stage(stage, load_recipe("int4"))
    assert {a.module.removeprefix("model.layers.0.mlp.") for a in applied} == {
        f"{owner}.{p}_proj" for owner in ("experts", "shared_expert") for p in ("gate", "up", "down")
    }
    kept = {"model.layers.0.mlp.gate.weight", "model.layers.0.mlp.shared_expert_gate.weight"}
    assert kept == {name for name in stage.producers if name.endswith(".weight")}
