"""ModelOpt checkpoints: the tool's own files give its weights bit for bit, and damaged ones are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_cases import GOLDENS, Arrays, Change, arrays, case_json, cases, changed, digest, opened, weights
from safetensors.numpy import load_file

from conftest import MakeEngine, relative_error
from edgewright.build.pipeline import deploy
from edgewright.checkpoint import open_checkpoint
from edgewright.errors import EdgewrightError
from edgewright.formats import ActivationFormat
from edgewright.runtime.session import Session
from llama_files import CONFIG, llama_tensors, write_checkpoint

CASES = cases("mo-")
Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"
STATIC_NVFP4 = ActivationFormat("nvfp4", static=True, scope="block")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("both", [True, False])
def test_the_weights_of_the_tool(case: str, both: bool, tmp_path: Path) -> None:
    """From both config files, and from hf_quant_config.json alone, as older exports have it."""
    folder = GOLDENS / case
    if not both:
        folder = changed(tmp_path / "c", case, lambda config, _: config.pop("quantization_config"))
        (folder / "hf_quant_config.json").write_bytes((GOLDENS / case / "hf_quant_config.json").read_bytes())
    checkpoint = open_checkpoint(folder)
    assert {m: digest(values) for m, values in weights(checkpoint).items()} == case_json(case)["weights_sha256"]
    assert any(path.name == "hf_quant_config.json" for path in checkpoint.files)
    assert "quantization_config" not in checkpoint.config


@pytest.mark.parametrize("case", CASES)
def test_the_logits_of_the_tools_weights(case: str, make_engine: MakeEngine) -> None:
    expected = load_file(GOLDENS / case / "expected.safetensors")
    session = Session(make_engine(open_checkpoint(GOLDENS / case), "portable", "float32"))
    # Outlier channels make some of these models sensitive to the order of sums.
    assert relative_error(session.append(expected["ids"][0], logits="all"), expected["logits"][0]) < 3e-5


@pytest.mark.parametrize("case", CASES)
def test_it_deploys_as_it_is_stored(case: str, tmp_path: Path) -> None:
    manifest = deploy(GOLDENS / case, tmp_path / "bundle", recipe="stored").manifest
    assert manifest.verdict["status"] == "passed"
    exact = {entry["module"] for entry in manifest.recipe["modules"] if entry["bit_exact"]}
    assert case_json(case)["weights_sha256"].keys() <= exact


@pytest.mark.parametrize(
    ("case", "module", "activation"),
    [
        ("mo-fp8", Q, ActivationFormat("fp8", static=True)),
        ("mo-fp8-channel", Q, ActivationFormat("fp8", static=False, scope="token")),
        ("mo-fp8-block", Q, None),
        ("mo-int8-sq", Q, ActivationFormat("int8", static=True)),
        ("mo-int8-wo", Q, None),
        ("mo-nvfp4", Q, STATIC_NVFP4),
        ("mo-nvfp4a16", Q, None),
        ("mo-mixed", Q, ActivationFormat("fp8", static=True)),
        ("mo-mixed", DOWN, STATIC_NVFP4),
        ("mo-mxfp8", Q, ActivationFormat("mxfp8", static=False, scope="block")),
        ("mo-w4a8-awq", DOWN, ActivationFormat("fp8", static=True)),
    ],
)
def test_what_inputs_go_through(case: str, module: str, activation: ActivationFormat | None) -> None:
    given = open_checkpoint(GOLDENS / case).tensors[f"{module}.weight"].input
    stored = arrays(case)
    assert (None if given is None else given.activation) == activation
    if given is not None and given.activation is not None and given.activation.static:
        assert np.array_equal(np.asarray(given.scale), stored[f"{module}.input_scale"].reshape(1))
    if f"{module}.pre_quant_scale" in stored:
        assert given is not None
        assert np.array_equal(np.asarray(given.multiply), stored[f"{module}.pre_quant_scale"].astype(np.float32))


@pytest.mark.parametrize("case", ["mo-fp8-kv", "mo-mixed", "mo-nvfp4a16"])
def test_scales_of_the_cache(case: str) -> None:
    quantization, stored = open_checkpoint(GOLDENS / case).quantization, arrays(case)
    assert quantization is not None
    assert quantization.kv_dtype == "float8_e4m3"
    for module, (key, value) in quantization.kv_scales.items():
        assert np.array_equal(key, stored[f"{module}.k_proj.k_scale"].reshape(1))
        assert np.array_equal(value, stored[f"{module}.v_proj.v_scale"].reshape(1))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("group", [16, 32, 96])
def test_int4_codes_of_any_rows(tmp_path: Path, group: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tensors = llama_tensors(CONFIG)
    module, (rows, width) = "model.layers.1.mlp.down_proj", (64, 96)
    codes = rng.integers(-8, 8, (rows, width))
    scales = rng.normal(0, 1, (rows, width // group)).astype(np.float32)
    pairs = [
        [(int(a) % 16) | (int(b) % 16) << 4 for a, b in zip(*two, strict=True)] for two in codes.reshape(-1, 2, width)
    ]
    tensors[f"{module}.weight"] = np.array(pairs, np.uint8)
    tensors[f"{module}.weight_scale"] = scales
    entry = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    entry["quantized_layers"] = {module: {"quant_algo": "W4A16_AWQ", "group_size": group}}  # type: ignore[assignment]
    folder = write_checkpoint(tmp_path / "c", {**CONFIG, "quantization_config": entry}, tensors)
    tensor = open_checkpoint(folder).tensors[f"{module}.weight"]
    wanted = codes.astype(np.float32) * np.repeat(scales, group, axis=1)
    assert np.array_equal(tensor.read(), wanted)
    assert np.array_equal(tensor.rows(5, 12), wanted[5:12])


def setting(key: str, value: Any) -> Change:
    return lambda config, _: config["quantization_config"].__setitem__(key, value)


def tensor(name: str, make: Callable[[np.ndarray], np.ndarray]) -> Change:
    return lambda _, tensors: tensors.__setitem__(name, make(tensors[name]))


def drop(*names: str) -> Change:
    def change(_: dict[str, Any], tensors: Arrays) -> None:
        for name in names:
            del tensors[name]

    return change


def filled(value: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: np.full_like(array, value)


def layer(module: str, value: Any) -> Change:
    return lambda config, _: config["quantization_config"]["quantized_layers"].__setitem__(module, value)


@pytest.mark.parametrize(
    ("case", "change", "words"),
    [
        ("mo-fp8", drop(f"{Q}.weight_scale"), Q),
        ("mo-fp8", drop(f"{Q}.input_scale"), f"{Q}.input_scale"),
        ("mo-fp8", tensor(f"{Q}.input_scale", filled(np.inf)), "positive"),
        ("mo-fp8", tensor(f"{Q}.weight_scale", filled(0)), "positive"),
        ("mo-fp8", tensor(f"{Q}.weight_scale", lambda a: np.repeat(a, 3)), "where"),
        ("mo-fp8", setting("quant_algo", "FP8_PER_CHANNEL_PER_TOKEN"), "where"),
        ("mo-fp8", setting("quant_algo", "NVFP4"), "weight_scale_2"),
        ("mo-fp8", setting("quant_algo", "NVFP4_SVD"), "NVFP4_SVD"),
        ("mo-fp8", setting("quant_algo", None), "None"),
        ("mo-fp8", setting("ignore", ["lm_head", "model.embed_tokens"]), "model.layers.1.mlp"),
        ("mo-fp8", setting("ignore", ["lm_head", "*"]), "leaves"),
        ("mo-fp8", setting("ignore", {"lm_head": 1}), "list of names"),
        ("mo-fp8", setting("kv_cache_scheme", {"num_bits": 4, "type": "float"}), "cache"),
        ("mo-fp8-kv", drop("model.layers.0.self_attn.v_proj.v_scale"), "v_scale"),
        ("mo-fp8-kv", setting("kv_cache_scheme", None), "k_scale"),
        ("mo-fp8-channel", tensor(f"{Q}.weight_scale", lambda a: a[1:]), "where"),
        ("mo-fp8-block", tensor(f"{DOWN}.weight", lambda a: a[:, :128].copy()), "where"),
        ("mo-nvfp4", drop(f"{Q}.weight_scale_2"), "weight_scale_2"),
        ("mo-nvfp4", tensor(f"{Q}.weight_scale_2", filled(0)), "positive"),
        ("mo-nvfp4", tensor(f"{Q}.weight", lambda a: a[:, 8:].copy()), "where"),
        ("mo-nvfp4", tensor(f"{Q}.weight", lambda a: a.astype(np.int32)), "int32"),
        ("mo-int4-awq", tensor(f"{Q}.weight", lambda a: a[1:]), "where"),
        ("mo-int4-awq", tensor(f"{DOWN}.pre_quant_scale", lambda a: a[1:]), "127 factors for 128 inputs"),
        ("mo-int4-awq", tensor(f"{DOWN}.pre_quant_scale", filled(0)), "other than 0"),
        ("mo-int4-awq", setting("group_size", 64), "where"),
        ("mo-int4-awq", setting("has_zero_point", True), "zero points"),
        ("mo-int8-sq", tensor(f"{Q}.weight", lambda a: a.view(np.uint8)), "uint8"),
        ("mo-mixed", layer("lm_head", {"quant_algo": "FP8"}), "lm_head"),
        ("mo-mixed", layer(Q, {"quant_algo": "W4A16_AWQ"}), Q),
        ("mo-mixed", layer(Q, "FP8"), "quantized_layers"),
        ("mo-mixed", layer(DOWN, {"quant_algo": "NVFP4", "group_size": 32}), "groups of 32"),
        ("mo-mixed", lambda config, _: config["quantization_config"]["quantized_layers"].pop(Q), Q),
        ("mo-mxfp4", setting("quant_algo", "MXFP8"), "float8_e4m3fn"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, case: str, change: Change, words: str) -> None:
    with pytest.raises(EdgewrightError) as caught:
        opened(tmp_path / "c", case, change)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_two_config_files_must_agree(tmp_path: Path) -> None:
    folder = changed(tmp_path / "c", "mo-fp8", lambda config, _: None)
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    with pytest.raises(EdgewrightError, match=r"hf_quant_config\.json"):
        open_checkpoint(folder)


def test_a_cache_without_any_scale_stays_in_floats(tmp_path: Path) -> None:
    names = [name for name in arrays("mo-fp8-kv") if name.endswith((".k_scale", ".v_scale"))]
    quantization = opened(tmp_path / "c", "mo-fp8-kv", drop(*names)).quantization
    assert quantization is not None
    assert quantization.kv_dtype is None
    assert any("cache stays in floats" in note for note in quantization.notes)
