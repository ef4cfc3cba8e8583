"""The tensorrt dialect: standard ops whose types are all meant, the formats' values, what TensorRT lacks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.shape_inference
import pytest

from conftest import golden, relative_error
from edgewright.dialects import tensorrt
from edgewright.dialects._trt_weights import SignedProducer
from edgewright.errors import UnsupportedFormatError
from edgewright.formats import pack
from edgewright.graph import Producer, TensorSpec
from edgewright.graph.writer import MODEL_FILE, write_stage
from edgewright.models._policy import PolicyBounds, build_policy
from edgewright.models._policy_features import build_featured
from edgewright.quant.apply import quantize_stage
from edgewright.quant.recipe_file import load_recipe, parse_recipe
from policy_goldens import policy_checkpoint
from tensorrt_cases import HALF, RECIPES, checkpoint_of, emulated, in_float32, logits, reference, stage_in

Proto = onnx.TensorProto
BOUNDS = PolicyBounds(prefix=60, horizon=6)
#: Attention of every kind, experts, recurrences, tables added to scores, values narrower than keys, shared caches.
FAMILIES = ("llama", "gemma2", "falcon_alibi", "gpt_oss", "qwen3_next", "mamba2", "deepseek_v2", "gemma4_text")


@pytest.mark.parametrize("case", FAMILIES)
def test_families_give_the_golden_logits(case: str, tmp_path: Path) -> None:
    """In float32, where nothing but the spelling differs."""
    known = golden(case)
    stage = tensorrt.lower(stage_in(known.checkpoint, "float32", context=64))
    got = logits(emulated(stage, tmp_path), known.ids[:30])
    assert relative_error(got, known.logits[:30]) < 2e-5
    assert {node.domain for node in onnx.load(tmp_path / MODEL_FILE, load_external_data=False).graph.node} == {""}


@pytest.mark.parametrize("case", ["llama", "gemma2", "qwen3_next"])
def test_a_float16_body_has_float32_where_it_is_needed(case: str, tmp_path: Path) -> None:
    known = golden(case)
    stage = tensorrt.lower(stage_in(known.checkpoint, "float16", context=64))
    engine = emulated(stage, tmp_path)
    assert relative_error(logits(engine, known.ids[:30]), known.logits[:30]) < 0.01
    types = value_types(tmp_path / MODEL_FILE)
    model = onnx.load(tmp_path / MODEL_FILE, load_external_data=False)
    for node in model.graph.node:
        read = {types[name] for name in node.input if types.get(name) in (Proto.FLOAT, Proto.FLOAT16)}
        assert len(read) < 2, node.name
        if node.op_type == "MatMul" and ("/Linear/" in node.name or "/Attention/" in node.name):
            assert read == {Proto.FLOAT16}, node.name
        if node.op_type in ("Softmax", "ReduceMean", "Sqrt", "Exp", "Tanh"):
            assert read == {Proto.FLOAT}, node.name
        if "/Rope" in node.name and node.op_type in ("Mul", "Add", "Sub"):
            assert read == {Proto.FLOAT}, node.name
    assert types["logits"] == Proto.FLOAT
    assert stage.contract.kv_dtype == "float16"
    assert stage.contract.bounds["capacity"] == (64, 64)


def value_types(path: Path) -> dict[str, int]:
    """Infer the type of every value; raises where an op is given two types of floats."""
    model = onnx.load(path, load_external_data=False)
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True).graph
    found = {v.name: v.type.tensor_type.elem_type for v in (*inferred.value_info, *inferred.input, *inferred.output)}
    return {**found, **{tensor.name: tensor.data_type for tensor in inferred.initializer}}


@pytest.mark.parametrize("recipe", [name for name in RECIPES if "float" not in name])
def test_formats_have_the_values_of_the_reference(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes, scales, zero points, caches of codes, and TensorRT's own ops, computed in float32."""
    in_float32(monkeypatch)
    checkpoint = checkpoint_of(recipe)
    got = logits(emulated(tensorrt.lower(stage_in(checkpoint)), tmp_path / "trt"))
    wanted = logits(reference(stage_in(checkpoint), tmp_path / "portable"))
    # The head is a product of float16 where its weights are.
    assert relative_error(got, wanted) < (2e-3 if "float16" in RECIPES[recipe] else 2e-5)


@pytest.mark.parametrize(("recipe", "kind"), [("float16", "float16"), ("bfloat16", "bfloat16"), ("int4", "float16")])
def test_weights_say_what_the_body_computes_in(recipe: str, kind: str, tmp_path: Path) -> None:
    checkpoint = checkpoint_of(recipe)
    stage = tensorrt.lower(stage_in(checkpoint))
    got = logits(emulated(stage, tmp_path / "trt"))
    wanted = logits(reference(stage_in(checkpoint), tmp_path / "portable"))
    assert 1e-5 < relative_error(got, wanted) < (0.06 if kind == "bfloat16" else 0.01)
    assert stage.contract.kv_dtype == kind
    assert {tensor.dtype for tensor in stage.contract.inputs if tensor.name.startswith("past_key")} == {kind}


TYPES = {
    "int4": Proto.INT4,
    "int8": Proto.INT8,
    "fp8": Proto.FLOAT8E4M3FN,
    "nvfp4": Proto.FLOAT4E2M1,
    "mxfp8": Proto.FLOAT8E4M3FN,
}


@pytest.mark.parametrize("recipe", TYPES)
def test_ask_for_a_format_and_every_product_reads_it(recipe: str, tmp_path: Path) -> None:
    write_stage(tensorrt.lower(stage_in(checkpoint_of(recipe))), tmp_path / "s")
    model = onnx.load(tmp_path / "s" / MODEL_FILE, load_external_data=False)
    made = {name: node for node in model.graph.node for name in node.output}
    kinds = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    products = [node for node in model.graph.node if node.op_type == "MatMul" and "_proj/" in node.name]
    assert len(products) == 7
    for node in products:
        read = made[node.input[1]]
        while not read.op_type.endswith("DequantizeLinear"):
            read = made[read.input[0]]
        assert kinds[read.input[0]] == TYPES[recipe], node.name


def test_two_levels_of_nvfp4(tmp_path: Path) -> None:
    """E2M1 codes, E4M3 scales of blocks of 16, a float32 scale of the tensor; inputs by TensorRT's own op."""
    write_stage(tensorrt.lower(stage_in(checkpoint_of("nvfp4"))), tmp_path / "s")
    model = onnx.load(tmp_path / "s" / MODEL_FILE, load_external_data=False)
    made = {name: node for node in model.graph.node for name in node.output}
    kinds = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    decoded = [
        n for n in model.graph.node if n.op_type == "DequantizeLinear" and kinds.get(n.input[0]) == Proto.FLOAT4E2M1
    ]
    assert len(decoded) == 7
    for node in decoded:
        inner = made[node.input[1]]
        assert (inner.op_type, kinds[inner.input[0]], kinds[inner.input[1]]) == (
            "DequantizeLinear",
            Proto.FLOAT8E4M3FN,
            Proto.FLOAT,
        )
    rounded = [node for node in model.graph.node if node.op_type == "TRT_FP4DynamicQuantize"]
    assert rounded
    assert all(node.domain == "trt" and kinds[node.input[1]] == Proto.FLOAT for node in rounded)


class _Arrays(Producer):
    """A producer of arrays that are there already, in two chunks."""

    def __init__(self, **arrays: tuple[str, np.ndarray]) -> None:
        self._arrays = [array for _, array in arrays.values()]
        shapes = {name: array.shape for name, (_, array) in arrays.items()}
        self.specs = tuple(TensorSpec(f"w.{name}", dtype, shapes[name]) for name, (dtype, _) in arrays.items())

    def chunks(self):  # type: ignore[no-untyped-def]
        for rows in (slice(0, 2), slice(2, None)):
            yield lambda rows=rows: tuple(array[rows] for array in self._arrays)


@pytest.mark.parametrize("bits", [4, 8])
def test_signed_codes_with_corrections_are_the_same_numbers(bits: int) -> None:
    """code * scale + correction is (code - zero point) * scale + offset, by the definition of both."""
    rng = np.random.default_rng(bits)
    codes, points = rng.integers(0, 1 << bits, (5, 3, 32)), rng.integers(0, 1 << bits, (5, 3))
    scales = np.exp2(rng.integers(-6, 3, (5, 3))).astype(np.float32) * rng.choice([-1, 1], (5, 3)).astype(np.float32)
    scales[1, 1] = 0
    offsets = rng.integers(-9, 9, (5, 3)).astype(np.float32)
    packed = pack(codes.astype(np.uint8), 4) if bits == 4 else codes.astype(np.uint8)
    zeros = np.zeros((5, 4), np.uint8) if bits == 4 else points.astype(np.uint8)
    if bits == 4:
        zeros[:, :3] = points
        zeros = pack(zeros, 4)
    arrays = _Arrays(
        codes=("uint8", packed),
        scales=("float32", scales.astype(np.float32)),
        zero_points=("uint8", zeros),
        offsets=("float32", offsets),
    )
    made = SignedProducer(arrays, bits, 32, "float16", "layer")
    assert [spec.shape for spec in made.specs] == [(5, 96), (5, 3), (5, 3)]
    signed, narrow, rest = (np.concatenate(column) for column in zip(*(make() for make in made.chunks()), strict=True))
    if bits == 4:
        low, high = signed & 15, signed >> 4
        signed = np.stack([low, high], axis=-1).reshape(5, 96).astype(np.int16)
        signed = np.where(signed > 7, signed - 16, signed)
    got = signed.reshape(5, 3, 32) * narrow.astype(np.float64)[:, :, None] + rest.astype(np.float64)[:, :, None]
    wanted = (codes - points[:, :, None]) * scales.astype(np.float64)[:, :, None] + offsets[:, :, None]
    np.testing.assert_array_equal(got, wanted)
    assert made.specs[0].dtype == f"int{bits}"


def test_scales_that_float16_can_not_hold_are_refused_by_name() -> None:
    scales = np.full((3, 1), 1e6, np.float32)
    arrays = _Arrays(codes=("uint8", np.zeros((3, 1, 16), np.uint8)), scales=("float32", scales))
    made = SignedProducer(arrays, 4, 32, "float16", "model.layers.3.mlp.up_proj")
    with pytest.raises(UnsupportedFormatError, match=r"model.layers.3.mlp.up_proj has scales of 1e\+06"):
        [make() for make in made.chunks()]


REFUSED = {
    "body: {format: mxfp4}\n": r"layers.0.self_attn.q_proj/Linear_weight \(Decode\): TensorRT has no MXFP4 weights",
    "body: {format: int8, group: channel}\nactivations: {format: int8, mode: dynamic, scope: token}\n": (
        r"model.layers.0.self_attn.q_proj \(RoundInput\): TensorRT has no int8 activations with scales that are found"
    ),
    "body: {format: mxfp8}\nactivations: {format: mxfp8}\n": (
        r"q_proj \(RoundInput\): TensorRT has no mxfp8 activations of 40 columns, no multiple of 32"
    ),
    "body: {format: int8, group: channel}\nactivations: {format: int4, mode: dynamic, scope: token}\n": (
        r"q_proj \(RoundInput\): TensorRT has no int4 activations"
    ),
}


@pytest.mark.parametrize("recipe", REFUSED)
def test_what_tensorrt_lacks_is_refused_with_op_and_layer(recipe: str) -> None:
    stage = stage_in(golden("llama").checkpoint, parse_recipe(recipe + HALF, "r.yaml"))
    with pytest.raises(UnsupportedFormatError, match=REFUSED[recipe]):
        tensorrt.lower(stage)


@pytest.mark.parametrize("case", ["pi05", "smolvla"])
def test_stages_of_policies(case: str, tmp_path: Path) -> None:
    """Vision, prefix and denoise in float16, against the reference on the same inputs."""
    checkpoint = policy_checkpoint(case)
    stages = {kind: build_policy(checkpoint, bounds=BOUNDS) for kind in ("trt", "portable")}
    for name, stage in stages["trt"].items():
        other = stages["portable"][name]
        for made in (stage, other):
            quantize_stage(made, load_recipe("float16"))
        feeds = feeds_for(stage.contract)
        got = outputs_of(emulated(tensorrt.lower(stage), tmp_path / name), feeds)
        wanted = outputs_of(reference(other, tmp_path / f"{name}-portable"), feeds)
        for key, array in wanted.items():
            assert relative_error(got[key], array) < 0.01, (name, key)


def feeds_for(contract) -> dict[str, np.ndarray]:  # type: ignore[no-untyped-def]
    """Small inputs of a policy's stage: one image's rows, some tokens, a full mask."""
    sizes = {"batch": 1, "views": 1, "image_slots": 4, "text": 5, "horizon": 4, "times": 1}
    state = any(tensor.name == "state" for tensor in contract.inputs)
    sizes["prefix"] = 9 + (state and not any(t.name == "x_t" for t in contract.inputs))
    rng = np.random.default_rng(0)
    feeds = {}
    for tensor in contract.inputs:
        shape = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in tensor.shape)
        if tensor.dtype == "int64":
            feeds[tensor.name] = np.ones(shape, np.int64)
        else:
            feeds[tensor.name] = rng.standard_normal(shape).astype(np.float32)
    return feeds


def outputs_of(engine, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:  # type: ignore[no-untyped-def]
    names = [tensor.name for tensor in engine.contract.outputs]
    return dict(zip(names, engine.session.run(names, feeds), strict=True))


def test_a_loop_in_the_graph(tmp_path: Path) -> None:
    """TensorRT's parser takes no Loop without a condition; what is inside of it has its types, too."""
    checkpoint = policy_checkpoint("pi05")
    stages = {
        kind: build_featured(checkpoint, checkpoint.spec, {"loop": "graph"}, bounds=BOUNDS)[0]["denoise"]
        for kind in ("trt", "portable")
    }
    for stage in stages.values():
        quantize_stage(stage, load_recipe("float16"))
    engine = emulated(tensorrt.lower(stages["trt"]), tmp_path)
    loop = next(n for n in onnx.load(tmp_path / MODEL_FILE, load_external_data=False).graph.node if n.op_type == "Loop")
    assert loop.input[1] == "loop.going"
    feeds = feeds_for(engine.contract)
    wanted = outputs_of(reference(stages["portable"], tmp_path / "portable"), feeds)
    assert relative_error(outputs_of(engine, feeds)["actions"], wanted["actions"]) < 0.01
