"""compressed-tensors checkpoints: the tool's own files give its weights bit for bit, and damaged ones are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from golden_cases import GOLDENS, Arrays, Change, arrays, case_json, cases, changed, digest, opened, weights
from safetensors.numpy import load_file

from conftest import MakeEngine, relative_error
from edgewright.build.pipeline import deploy
from edgewright.checkpoint import open_checkpoint
from edgewright.errors import CheckpointError, EdgewrightError, RecipeError
from edgewright.formats import ActivationFormat, IntFormat, LinearInput
from edgewright.runtime.session import Session
from llama_files import CONFIG, llama_tensors, write_checkpoint

CASES = cases("ct-")
#: Modules whose dividing NVFP4 scale is no factor of the same products.
NEARLY = {
    "ct-nvfp4": ("gate_proj", "up_proj"),
    "ct-nvfp4a16": ("down_proj", "o_proj"),
}
Q = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize("case", CASES)
def test_the_weights_of_the_tool(case: str) -> None:
    checkpoint = open_checkpoint(GOLDENS / case)
    wanted, found = case_json(case)["weights_sha256"], weights(checkpoint)
    assert found.keys() == wanted.keys()
    expected = load_file(GOLDENS / case / "expected.safetensors")
    for module, values in found.items():
        if module.endswith(NEARLY.get(case, ())):
            golden = expected.get(f"weight.{module}")
            assert golden is None or np.abs(values - golden).max() <= 2.0**-23 * np.abs(golden).max()
        else:
            assert digest(values) == wanted[module], module
    assert checkpoint.quantization is not None
    assert any("dividing" in note for note in checkpoint.quantization.notes) == (case in NEARLY)


@pytest.mark.parametrize("case", CASES)
def test_the_logits_of_the_tools_weights(case: str, make_engine: MakeEngine) -> None:
    expected = load_file(GOLDENS / case / "expected.safetensors")
    session = Session(make_engine(open_checkpoint(GOLDENS / case), "portable", "float32"))
    assert relative_error(session.append(expected["ids"][0], logits="all"), expected["logits"][0]) < 1e-5


@pytest.mark.parametrize("case", CASES)
def test_it_deploys_as_it_is_stored(case: str, tmp_path: Path) -> None:
    manifest = deploy(GOLDENS / case, tmp_path / "bundle", recipe="stored").manifest
    assert manifest.verdict["status"] == "passed"
    quantized = {module.removesuffix(".weight") for module in case_json(case)["weights_sha256"]}
    exact = {entry["module"] for entry in manifest.recipe["modules"] if entry["bit_exact"]}
    assert quantized <= exact
    assert (manifest.recipe.get("kv") is not None) == (case == "ct-fp8-kv")


def test_scales_of_the_cache_and_inputs() -> None:
    checkpoint = open_checkpoint(GOLDENS / "ct-fp8-kv")
    stored = arrays("ct-fp8-kv")
    assert checkpoint.quantization is not None
    assert checkpoint.quantization.kv_dtype == "float8_e4m3"
    for layer in range(2):
        module = f"model.layers.{layer}.self_attn"
        key, value = checkpoint.quantization.kv_scales[module]
        assert np.array_equal(key, stored[f"{module}.k_scale"])
        assert np.array_equal(value, stored[f"{module}.v_scale"])
    given = checkpoint.tensors[f"{Q}.weight"].input
    assert given is not None
    assert given.activation == ActivationFormat("fp8", static=True)
    assert np.array_equal(np.asarray(given.scale), stored[f"{Q}.input_scale"])
    static = open_checkpoint(GOLDENS / "ct-w8a8-static").tensors[f"{Q}.weight"].input
    assert static is not None
    assert static.activation == ActivationFormat("int8", static=True, symmetric=False)
    assert np.array_equal(np.asarray(static.zero_point), arrays("ct-w8a8-static")[f"{Q}.input_zero_point"])
    local = open_checkpoint(GOLDENS / "ct-nvfp4").tensors[f"{Q}.weight"].input
    assert local is not None
    divisor = arrays("ct-nvfp4")[f"{Q}.input_global_scale"]
    assert np.array_equal(np.asarray(local.scale), np.float32(1) / divisor)


@pytest.mark.parametrize(
    ("case", "share"), [("ct-fp8-tensor", 1e-5), ("ct-fp8-dynamic", 1e-5), ("ct-w8a8-static", 0.15)]
)
def test_rounded_inputs_give_the_logits_of_the_tools_own_model(
    case: str, share: float, make_engine: MakeEngine
) -> None:
    """The error is a share of what rounding the inputs does; ties of int8 with a zero point are rounded differently."""
    expected = load_file(GOLDENS / case / "expected.safetensors")
    session = Session(make_engine(open_checkpoint(GOLDENS / case), "onnxruntime", "stored"))
    found, wanted = session.append(expected["ids"][0], logits="all"), expected["tool_logits"][0]
    rounding = np.sqrt(np.mean((wanted - expected["logits"][0]) ** 2))
    assert np.sqrt(np.mean((found - wanted) ** 2)) < share * rounding


def config_of(tensors: Arrays, weights_args: dict[str, Any], fmt: str, **more: Any) -> dict[str, Any]:
    """Return a config for hand-made tensors; linears without codes are ignored."""
    group = {"targets": ["Linear"], "weights": weights_args, "format": fmt, **more}
    plain = [n.removesuffix(".weight") for n, a in tensors.items() if n.endswith(".weight") and a.dtype == np.float32]
    entry = {"quant_method": "compressed-tensors", "format": fmt, "config_groups": {"g": group}, "ignore": plain}
    return {**CONFIG, "quantization_config": entry}


def python_words(codes: list[int], bits: int) -> list[int]:
    """Pack codes by whole-number arithmetic: the independent reference."""
    stream = sum(code << (index * bits) for index, code in enumerate(codes))
    return [(stream >> (32 * i)) & 0xFFFFFFFF for i in range(-(-len(codes) * bits // 32))]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("bits", "group", "symmetric"),
    [
        *((1, 32, True), (2, 32, False), (3, 16, False), (4, 96, True), (5, 32, True)),
        *((6, None, False), (7, None, True), (8, None, False), (8, 32, False), (4, None, False)),
    ],
)
def test_integers_of_any_width(tmp_path: Path, bits: int, group: int | None, symmetric: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tensors = llama_tensors(CONFIG)
    module, (rows, width) = "model.layers.1.mlp.down_proj", (64, 96)
    del tensors[f"{module}.weight"]
    groups = 1 if group is None else width // group
    half = 1 << (bits - 1)
    codes = rng.integers(0, 2 * half, (rows, width))
    zeros = np.full((rows, groups), half) if symmetric else rng.integers(0, 2 * half, (rows, groups))
    scales = rng.normal(0, 1, (rows, groups)).astype(np.float16)
    words = np.array([python_words(row.tolist(), bits) for row in codes], np.uint32)
    tensors[f"{module}.weight_packed"] = words.view(np.int32)
    tensors[f"{module}.weight_scale"] = scales
    tensors[f"{module}.weight_shape"] = np.array([rows, width])
    if not symmetric:
        packed = np.array([python_words(column.tolist(), bits) for column in zeros.T], np.uint32).T
        tensors[f"{module}.weight_zero_point"] = np.ascontiguousarray(packed).view(np.int32)
    args = {"num_bits": bits, "type": "int", "symmetric": symmetric, "group_size": group}
    config = config_of(tensors, {**args, "strategy": "channel" if group is None else "group"}, "pack-quantized")
    found = weights(open_checkpoint(write_checkpoint(tmp_path / "c", config, tensors)))[module]
    steps = np.repeat((scales.astype(np.float32)), width // groups, axis=1)
    wanted = (codes - np.repeat(zeros, width // groups, axis=1)).astype(np.float32) * steps
    assert np.array_equal(found, wanted)


def test_loosely_packed_words_and_plain_zero_points_of_old_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    tensors = llama_tensors(CONFIG)
    module, (rows, width), bits = "model.layers.0.mlp.down_proj", (64, 96), 3
    del tensors[f"{module}.weight"]
    codes, zeros = rng.integers(0, 8, (rows, width)), rng.integers(-4, 4, (rows, 3))
    words = [[sum(int(c) << (3 * i) for i, c in enumerate(row[k : k + 10])) for k in range(0, 96, 10)] for row in codes]
    tensors[f"{module}.weight_packed"] = np.array(words, np.int32)
    tensors[f"{module}.weight_scale"] = np.full((rows, 3), 0.5, np.float32)
    tensors[f"{module}.weight_shape"] = np.array([rows, width], np.int32)
    tensors[f"{module}.weight_zero_point"] = zeros.astype(np.int8)
    args = {"num_bits": bits, "type": "int", "symmetric": False, "strategy": "group", "group_size": 32}
    config = config_of(tensors, args, "pack-quantized")
    found = weights(open_checkpoint(write_checkpoint(tmp_path / "c", config, tensors)))[module]
    assert np.array_equal(found, (codes - 4 - np.repeat(zeros, 32, axis=1)) * np.float32(0.5))


def test_half_precision_scales_stay_half() -> None:
    checkpoint = open_checkpoint(GOLDENS / "ct-int4-g32-asym")
    assert checkpoint.tensors["lm_head.weight"].encoding == IntFormat(4, 32, True, scales="float16")
    wide = open_checkpoint(GOLDENS / "ct-int4-g32-sym").tensors[f"{Q}.weight"].encoding
    assert wide == IntFormat(4, 32, False)


def test_the_activation_order_permutes_the_input() -> None:
    given = open_checkpoint(GOLDENS / "ct-int4-g32-actorder").tensors[f"{Q}.weight"].input
    assert isinstance(given, LinearInput)
    assert given.permutation is not None
    index = arrays("ct-int4-g32-actorder")[f"{Q}.weight_g_idx"]
    assert np.array_equal(index[given.permutation], np.arange(64) // 32)


def group_args(config: dict[str, Any]) -> dict[str, Any]:
    args: dict[str, Any] = config["quantization_config"]["config_groups"]["group_0"]["weights"]
    return args


def setting(key: str, value: Any) -> Change:
    return lambda config, _: group_args(config).__setitem__(key, value)


def top(key: str, value: Any) -> Change:
    return lambda config, _: config["quantization_config"].__setitem__(key, value)


def tensor(name: str, make: Any) -> Change:
    return lambda _, tensors: tensors.__setitem__(name, make(tensors[name]))


def drop(name: str) -> Change:
    def change(_: dict[str, Any], tensors: Arrays) -> None:
        del tensors[name]

    return change


def filled(value: float) -> Any:
    return lambda array: np.full_like(array, value)


def plain(config: dict[str, Any], tensors: Arrays) -> None:
    """Leave one module in floats that the config has quantized."""
    for name in [name for name in tensors if name.startswith(f"{Q}.")]:
        del tensors[name]
    tensors[f"{Q}.weight"] = np.zeros((64, 64), np.float32)


SYM, ASYM, FP8, NV, MX = "ct-int4-g32-sym", "ct-int4-g32-asym", "ct-fp8-tensor", "ct-nvfp4", "ct-mxfp8"


@pytest.mark.parametrize(
    ("case", "change", "words"),
    [
        (SYM, drop(f"{Q}.weight_scale"), f"{Q}.weight_scale"),
        (SYM, drop(f"{Q}.weight_shape"), f"{Q}.weight_shape"),
        (SYM, drop(f"{Q}.weight_packed"), f"{Q}.weight_packed"),
        (SYM, tensor(f"{Q}.weight_scale", lambda a: a.T.copy()), "where"),
        (SYM, tensor(f"{Q}.weight_shape", lambda a: a * 0), "which no weight has"),
        (SYM, tensor(f"{Q}.weight_shape", lambda a: a * np.array([1, 2])), "where"),
        (SYM, tensor(f"{Q}.weight_packed", lambda a: a.astype(np.int64)), "int64"),
        (SYM, setting("num_bits", 8), "where"),
        (SYM, setting("num_bits", 9), "makes no sense"),
        (SYM, setting("num_bits", "4"), "whole number"),
        (SYM, setting("group_size", 64), "where"),
        (SYM, setting("group_size", 0), "makes no sense"),
        (SYM, setting("strategy", "block"), "unknown"),
        (SYM, setting("symmetric", False), "weight_zero_point"),
        (SYM, setting("actorder", "group"), "weight_g_idx"),
        (SYM, setting("actorder", "sideways"), "sideways"),
        (SYM, setting("type", "float"), "mxfp4"),
        (SYM, top("ignore", ["lm_head", Q]), Q),
        (SYM, top("ignore", []), "lm_head"),
        (SYM, top("ignore", "lm_head"), "list of names"),
        (SYM, top("ignore", ["re:("]), "which is none"),
        (SYM, top("ignore", ["re:(a+)+$"]), "forever"),
        (SYM, top("config_groups", {}), "config_groups"),
        (SYM, top("config_groups", {"g": 3}), "no mapping"),
        (SYM, top("quantization_status", "frozen"), "frozen"),
        (SYM, top("sparsity_config", {"format": "sparse-24-bitmask"}), "sparse"),
        (SYM, top("transform_config", {"config_groups": {}, "x": 1}), "transform_config"),
        (SYM, top("kv_cache_scheme", {"num_bits": 8, "type": "float", "symmetric": True}), "no scale"),
        (SYM, top("kv_cache_scheme", {"num_bits": 4, "type": "float"}), "cache"),
        (SYM, plain, Q),
        (ASYM, setting("symmetric", True), "zero_point"),
        (ASYM, tensor(f"{Q}.weight_zero_point", lambda a: a[:-1]), "where"),
        (FP8, drop(f"{Q}.input_scale"), f"{Q}.input_scale"),
        (FP8, tensor(f"{Q}.input_scale", filled(0)), "positive"),
        (FP8, tensor(f"{Q}.weight_scale", filled(np.nan)), "positive"),
        (FP8, tensor(f"{Q}.weight_scale", filled(-1)), "positive"),
        (FP8, setting("strategy", "channel"), "where"),
        (FP8, tensor(f"{Q}.weight", lambda a: a.view(np.int8)), "int8"),
        (NV, tensor(f"{Q}.weight_global_scale", filled(0)), "positive"),
        (NV, tensor(f"{Q}.weight_global_scale", filled(1e-45)), "divide"),
        (NV, tensor(f"{Q}.weight_scale", lambda a: a[:, :-1].copy()), "where"),
        (NV, drop(f"{Q}.input_global_scale"), "input_global_scale"),
        (MX, tensor(f"{Q}.weight_scale", lambda a: a[:-1]), "where"),
        ("ct-fp8-kv", drop("model.layers.1.self_attn.v_scale"), "v_scale"),
        ("ct-fp8-kv", top("kv_cache_scheme", None), "k_scale"),
        ("ct-fp8-kv", tensor("model.layers.1.self_attn.k_scale", filled(0)), "positive"),
        ("ct-int4-g32-actorder", tensor(f"{Q}.weight_g_idx", lambda a: a * 0), "g_idx"),
        ("ct-fp8-block", setting("block_structure", [64, 64]), "no format"),
        ("ct-w8a8-static", tensor(f"{Q}.weight", lambda a: a.astype(np.float32)), "float32"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, case: str, change: Change, words: str) -> None:
    with pytest.raises(EdgewrightError) as caught:
        opened(tmp_path / "c", case, change)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("case", "change", "words"),
    [
        (SYM, tensor(f"{Q}.weight_scale", filled(np.nan)), "not finite"),
        (MX, tensor(f"{Q}.weight_scale", filled(255)), "not finite"),
        (
            MX,
            tensor(f"{Q}.weight", lambda a: np.full(a.shape, 0x7F, np.uint8).view(ml_dtypes.float8_e4m3fn)),
            "no number",
        ),
        (
            FP8,
            tensor(f"{Q}.weight", lambda a: np.full(a.shape, 0xFF, np.uint8).view(ml_dtypes.float8_e4m3fn)),
            "no number",
        ),
    ],
)
def test_what_is_no_number_is_refused_when_it_is_read(tmp_path: Path, case: str, change: Change, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        deploy(changed(tmp_path / "c", case, change), tmp_path / "b", recipe="stored")


def test_blocks_of_zeros_may_have_no_scale(tmp_path: Path) -> None:
    def change(_: dict[str, Any], tensors: Arrays) -> None:
        tensors[f"{Q}.weight_scale"][3, 1] = 0

    found = weights(opened(tmp_path / "c", SYM, change))[Q]
    assert not found[3, 32:].any()
    assert found[3, :32].any()


def test_another_format_is_a_second_rounding(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="a second time"):
        deploy(GOLDENS / SYM, tmp_path / "b", recipe="int8")
    manifest = deploy(GOLDENS / SYM, tmp_path / "b", recipe="int8", requantize=True).manifest
    assert manifest.verdict["status"] == "passed"
    records = {m["module"]: m["requantized"] for m in manifest.recipe["modules"] if "requantized" in m}
    assert records.keys() == case_json(SYM)["weights_sha256"].keys()
    assert all(r["from"] == "int4 group 32" and 0 < r["relative_rms"] < 0.01 for r in records.values())


def test_a_module_meant_by_name_comes_before_its_class(tmp_path: Path) -> None:
    def change(config: dict[str, Any], _: Arrays) -> None:
        groups = config["quantization_config"]["config_groups"]
        groups["group_2"] = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "tensor"}}
        config["quantization_config"]["config_groups"] = dict(reversed(groups.items()))

    found = weights(opened(tmp_path / "c", "ct-mixed", change))
    assert {m: digest(v) for m, v in found.items()} == case_json("ct-mixed")["weights_sha256"]
