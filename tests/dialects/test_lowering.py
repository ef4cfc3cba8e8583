"""What the dialects leave on disk: merged and fused nodes, nothing dangling, a file every checker accepts."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from conftest import CASES, changed, golden, lowered, run_graph, with_tensors
from edgewright import ops
from edgewright.checkpoint import Checkpoint
from edgewright.graph import Stage
from edgewright.graph.rewrite import merge_linears
from edgewright.graph.writer import write_stage
from edgewright.models import build_llm
from edgewright.quant.apply import quantize_stage
from edgewright.quant.recipe_file import load_recipe, parse_recipe

MICROSOFT = "com.microsoft"


def written(stage: Stage, folder: Path) -> onnx.ModelProto:
    write_stage(stage, folder)
    return onnx.load(folder / "model.onnx", load_external_data=False)


def nodes(model: onnx.ModelProto) -> Counter[str]:
    return Counter(f"{node.domain}.{node.op_type}".removeprefix(".") for node in model.graph.node)


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of the graphs inside them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from all_nodes(attribute.g)


# The case with heads of 16 is the one whose attention is fused.
LLAMA = "llama_rope_linear"


@pytest.mark.parametrize("recipe", ["float32", "int4"])
def test_llama_becomes_the_fused_nodes(recipe: str, tmp_path: Path) -> None:
    """Two layers: one product for q, k, v and one for gate and up; each residual addition joins the norm after it."""
    found = nodes(written(lowered(golden(LLAMA).checkpoint, "onnxruntime", recipe), tmp_path))
    product = f"{MICROSOFT}.FusedMatMul" if recipe == "float32" else f"{MICROSOFT}.MatMulNBits"
    assert found[product] == 2 * 4 + 1
    assert found[f"{MICROSOFT}.GroupQueryAttention"] == 2
    assert found[f"{MICROSOFT}.SkipSimplifiedLayerNormalization"] == 4
    assert found["SimplifiedLayerNormalization"] == 1
    assert found["Split"] == 2  # gate and up; q, k and v go into the attention as one
    assert not any(name.startswith("ew.") for name in found)


def test_packed_qkv_goes_into_the_attention_where_rope_is_taken_in(tmp_path: Path) -> None:
    model = written(lowered(golden(LLAMA).checkpoint, "onnxruntime"), tmp_path)
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            assert attributes["num_heads"] == 4
            assert attributes["kv_num_heads"] == 2
            assert attributes["scale"] == pytest.approx(16**-0.5)
            assert attributes["do_rotary"] == 1
            assert attributes["local_window_size"] == -1
            assert list(node.input[1:3]) == ["", ""]
            assert list(node.input[7:9]) == ["rope.cos", "rope.sin"]
    # Norms on q and k stand between the product and the attention, so nothing is packed there.
    model = written(lowered(golden("qwen3").checkpoint, "onnxruntime"), tmp_path / "qwen3")
    packed = [not node.input[1] for node in model.graph.node if node.op_type == "GroupQueryAttention"]
    assert packed == [False, False]


@pytest.mark.parametrize("case", [LLAMA, *(case for case in CASES if "_rope_" not in case)])
@pytest.mark.parametrize("dialect", ["portable", "onnxruntime"])
def test_written_stages_are_sound(case: str, dialect: str, tmp_path: Path) -> None:
    stage = lowered(golden(case).checkpoint, dialect, "int4")
    model = written(stage, tmp_path)
    # Every initializer is read, every value a node reads exists, every node of `ew` has its body.
    nodes_of_graph = list(all_nodes(model.graph))
    read = {name for node in nodes_of_graph for name in node.input} | {o.name for o in model.graph.output}
    initializers = [tensor.name for tensor in model.graph.initializer]
    assert len(set(initializers)) == len(initializers)
    assert not set(initializers) - read
    made = {name for node in nodes_of_graph for name in node.output if name}
    inside = {i.name for node in nodes_of_graph for a in node.attribute if a.HasField("g") for i in a.g.input}
    assert read - {""} <= made | inside | set(initializers) | {i.name for i in model.graph.input}
    bodies = {(f.domain, f.name, f.overload) for f in model.functions}
    used = {(n.domain, n.op_type, n.overload) for n in model.graph.node if n.domain == "ew"}
    assert used == {body for body in bodies if body[0] == "ew"}
    # Weights lie aligned and apart.
    size = (tmp_path / "weights.bin").stat().st_size
    places: dict[int, int] = {}
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            assert np.prod(tensor.dims) <= 8, tensor.name  # small constants only
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        assert entries["location"] == "weights.bin"
        offset, length = int(entries["offset"]), int(entries["length"])
        assert offset % (4096 if length >= 64 * 1024 else 64) == 0
        assert offset + length <= size
        places[offset] = max(length, places.get(offset, 0))
    order = sorted(places.items())
    assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(order))
    # The contract is the graph's.
    contract = stage.contract
    assert [i.name for i in model.graph.input] == [t.name for t in contract.inputs]
    assert [o.name for o in model.graph.output] == [t.name for t in contract.outputs]
    assert {o.domain: o.version for o in model.opset_import}[""] == 24


@pytest.mark.parametrize("case", ["gemma3_text", "qwen2_window", "llama_bias", "smollm3_window", LLAMA])
def test_models_pass_the_onnx_checker(case: str, tmp_path: Path) -> None:
    for recipe in ("float16", "int4"):
        written(lowered(golden(case).checkpoint, "portable", recipe), tmp_path / recipe)
        onnx.checker.check_model(str(tmp_path / recipe / "model.onnx"), full_check=True)
        folder = tmp_path / f"{recipe}-ort"
        model = written(lowered(golden(case).checkpoint, "onnxruntime", recipe), folder)
        # ONNX Runtime has this one kernel of its own under ONNX's domain; its twin in ONNX is RMSNormalization.
        for node in model.graph.node:
            if node.op_type == "SimplifiedLayerNormalization":
                node.op_type = "RMSNormalization"
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        onnx.checker.check_model(str(folder / "model.onnx"))


@pytest.mark.parametrize(("case", "fused"), [("llama", False), ("qwen3", True), ("gemma3", False), (LLAMA, True)])
def test_head_sizes_decide_over_the_kernel(case: str, fused: bool, tmp_path: Path) -> None:
    """Multiples of 8 take the kernel; others keep the body, and the notes say so. The cache is in place either way."""
    stage = lowered(golden(case).checkpoint, "onnxruntime")
    assert stage.contract.kv_in_place
    assert any("keeps its reference body" in note for note in stage.notes) is not fused
    found = nodes(written(stage, tmp_path))
    assert bool(found[f"{MICROSOFT}.GroupQueryAttention"]) is fused
    assert bool(found["ew.Attention"]) is not fused
    assert lowered(golden(case).checkpoint, "portable").contract.kv_in_place is False


# -- merging -----------------------------------------------------------------------------------------------------------


def semantic(checkpoint: Checkpoint, recipe: str = "float32") -> Stage:
    stage = build_llm(checkpoint)
    quantize_stage(stage, load_recipe(recipe))
    return stage


def linears(stage: Stage) -> list[str]:
    return [(node.name or "").rsplit("/", 1)[0] for node in stage.graph if node.op_type in ("Linear", "QuantLinear")]


def nodes_of(stage: Stage, *modules: str) -> list[Any]:
    by_name = {(node.name or "").rsplit("/", 1)[0]: node for node in stage.graph if "Linear" in node.op_type}
    return [by_name[f"model.layers.1.{module}"] for module in modules]


@pytest.mark.parametrize("recipe", ["float32", "int4"])
def test_linears_of_one_input_are_merged_with_their_biases(recipe: str) -> None:
    stage = semantic(golden("llama_bias").checkpoint, recipe)
    assert merge_linears(stage, nodes_of(stage, *(f"self_attn.{x}_proj" for x in "qkv")))
    assert merge_linears(stage, nodes_of(stage, "mlp.gate_proj", "mlp.up_proj"))
    layer = "model.layers.1"
    names = linears(stage)
    assert f"{layer}.self_attn.q_proj+k_proj+v_proj" in names
    assert f"{layer}.mlp.gate_proj+up_proj" in names
    assert len(names) == 3 * 7 + 1 - 3
    bias = stage.producers[f"{layer}.self_attn.q_proj+k_proj+v_proj.bias"]
    values = np.concatenate([chunk()[0] for chunk in bias.chunks()])
    tensors = golden("llama_bias").checkpoint.tensors
    wanted = [tensors[f"{layer}.self_attn.{x}_proj.bias"].read() for x in "qkv"]
    np.testing.assert_array_equal(values, np.concatenate(wanted))


def test_linears_of_different_formats_or_inputs_stay_apart() -> None:
    recipe = parse_recipe(
        "body: {format: int4}\nlm_head: {format: int8}\nembedding: {format: int8}\n"
        "rules:\n- {pattern: '*.v_proj', format: int8}\n- {pattern: '*.up_proj', format: float32}\n",
        "r.yaml",
    )
    stage = build_llm(golden("llama").checkpoint)
    quantize_stage(stage, recipe)
    before = linears(stage)
    assert not merge_linears(stage, nodes_of(stage, *(f"self_attn.{x}_proj" for x in "qkv")))
    assert not merge_linears(stage, nodes_of(stage, "mlp.gate_proj", "mlp.up_proj"))
    assert not merge_linears(stage, nodes_of(stage, "self_attn.q_proj", "mlp.gate_proj"))
    assert linears(stage) == before


@pytest.mark.parametrize(("case", "packed"), [("llama_rope_linear", True), ("qwen3", False)])
def test_q_k_v_are_packed_only_where_the_kernel_takes_them_so(case: str, packed: bool) -> None:
    stage = lowered(golden(case).checkpoint, "onnxruntime")
    names = {node.name or "" for node in stage.graph}
    assert any("q_proj+k_proj+v_proj" in name for name in names) is packed
    assert all("gate_proj+up_proj" in (node.name or "") for node in stage.graph if node.op_type == "Split")


def test_the_tied_head_is_never_merged_or_lost(tmp_path: Path) -> None:
    """One layer, tied: the table serves the look-up and the head, in float32 by one initializer."""
    checkpoint = golden("qwen2").checkpoint
    names = {n: ... for n in checkpoint.tensors if ".layers." in n and ".layers.0." not in n}
    one = with_tensors(changed(checkpoint, num_hidden_layers=1, layer_types=...), **names)
    model = written(lowered(one, "onnxruntime"), tmp_path)
    uses = [node.op_type for node in model.graph.node if "model.embed_tokens.weight" in node.input]
    assert sorted(uses) == ["FusedMatMul", "Gather"]


# -- single rules ------------------------------------------------------------------------------------------------------


def test_residual_norms_keep_a_sum_that_others_read() -> None:
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((2, 3, 10)).astype(np.float32) for name in "ab"}
    feeds["w"] = rng.standard_normal(10).astype(np.float32)

    def build(g: Any, a: Any, b: Any, w: Any) -> Any:
        total = g.op("Add", a, b)
        return g.op("Abs", ops.rms_norm(g, total, w, epsilon=1e-3)), g.op("Mul", total, total)

    for dialect in ("portable", "onnxruntime"):
        normed, square = run_graph(build, feeds, outputs=2, dialect=dialect)
        total = feeds["a"].astype(np.float64) + feeds["b"]
        wanted = total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-3) * feeds["w"]
        np.testing.assert_allclose(normed, np.abs(wanted), atol=3e-6)
        np.testing.assert_allclose(square, total**2, atol=3e-6)


def test_two_norms_of_one_sum() -> None:
    """Both norms read the same residual sum; whatever is fused, both are right."""
    rng = np.random.default_rng(1)
    feeds = {name: rng.standard_normal((1, 2, 6)).astype(np.float32) for name in "ab"}
    feeds |= {name: rng.standard_normal(6).astype(np.float32) for name in "vw"}

    def build(g: Any, a: Any, b: Any, v: Any, w: Any) -> Any:
        total = g.op("Add", a, b)
        return tuple(g.op("Neg", ops.rms_norm(g, total, weight, epsilon=1e-3)) for weight in (v, w))

    results = [run_graph(build, feeds, outputs=2, dialect=dialect) for dialect in ("portable", "onnxruntime")]
    for one, two in zip(*results, strict=True):
        np.testing.assert_allclose(one, two, atol=2e-6)
