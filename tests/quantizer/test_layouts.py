"""Folders written for other tools: our own reader gives back what was quantized, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import golden
from edgewright.build.key import source_record
from edgewright.build.pipeline import deploy
from edgewright.build.quantized import quantize_checkpoint
from edgewright.calibration import Samples
from edgewright.checkpoint import Checkpoint, open_checkpoint
from edgewright.errors import RecipeError
from edgewright.formats import IntFormat, format_from_json
from edgewright.models import build_llm
from edgewright.quant.recipe_file import parse_recipe
from edgewright.quantizer import quantize, write_folder
from edgewright.quantizer.layouts import check_layout, write_layout
from llama_files import CONFIG, llama_tensors, write_checkpoint, write_llama

FLOATS = "lm_head: {format: float32, activations: none}\nembedding: {format: float32}"
HALF = "lm_head: {format: float16, activations: none}\nembedding: {format: float16}"
FP8_CACHE = "kv: {format: fp8, scope: tensor}"
RECIPES = {
    "int4": f"body: {{format: int4, group: 32}}\n{FLOATS}",
    "int4 half scales": f"body: {{format: int4, group: 32, scales: float16}}\n{FLOATS}",
    "int4 zero points": f"body: {{format: int4, group: 32, zero_point: true, algorithm: awq}}\n{FLOATS}",
    "int8 zero points": f"body: {{format: int8, group: 32, zero_point: true}}\n{HALF}\n"
    "kv: {format: int8, scope: tensor}",
    "int4 gptq": f"body: {{format: int4, group: 32, algorithm: gptq}}\n{HALF}",
    "two formats": "body: {format: int4, group: 32}\nlm_head: {format: int8, group: channel}\n"
    "embedding: {format: float16}",
    "int8 static": f"body: {{format: int8, group: channel}}\n{FLOATS}\nactivations: {{format: int8, mode: static}}",
    "int8 static zero point": f"body: {{format: int8, group: channel}}\n{FLOATS}\n"
    "activations: {format: int8, mode: static, zero_point: true}",
    "int8 smooth": f"body: {{format: int8, group: channel}}\n{FLOATS}\ntransforms: {{smoothing: 0.5}}\n"
    "activations: {format: int8, mode: dynamic, scope: token}",
    "int8 channel": f"body: {{format: int8, group: channel}}\n{FLOATS}",
    "int8 tensor": f"body: {{format: int8, group: tensor}}\n{FLOATS}",
    "fp8": f"body: {{format: fp8, group: tensor}}\n{HALF}\nactivations: {{format: fp8, mode: static}}\n{FP8_CACHE}",
    "fp8 channel": f"body: {{format: fp8, group: channel}}\n{HALF}\n"
    "activations: {format: fp8, mode: dynamic, scope: token}",
    "fp8 block": f"body: {{format: fp8, group: block}}\n{FLOATS}",
    "nvfp4": f"body: {{format: nvfp4}}\n{HALF}\nactivations: {{format: nvfp4, mode: static}}\n{FP8_CACHE}",
    "nvfp4 alone": f"body: {{format: nvfp4}}\n{HALF}",
    "mxfp8": f"body: {{format: mxfp8}}\n{HALF}\nactivations: {{format: mxfp8, mode: dynamic}}",
    "mxfp4": f"body: {{format: mxfp4}}\n{HALF}",
    "mxfp4 inputs": f"body: {{format: mxfp4}}\n{HALF}\nactivations: {{format: mxfp4, mode: dynamic}}",
}
NOT_IN = {
    "modelopt": {
        "int4 zero points",
        "int8 zero points",
        "int8 static zero point",
        "int8 smooth",
        "int8 tensor",
        "mxfp4 inputs",
    },
    "compressed-tensors": set(),
}
KEPT = [(layout, name) for layout, refused in NOT_IN.items() for name in RECIPES if name not in refused]
#: ModelOpt's scales of int4 are float32.
WIDENED = ("modelopt", "int4 half scales")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama") / "plain")


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama") / "tied", tie_word_embeddings=True)


def written(source: Path, folder: Path, layout: str, text: str) -> tuple[Checkpoint, Checkpoint]:
    """Quantize once and write twice; returns the folder in our own layout and the one in another, opened."""
    checkpoint, record, recipe = open_checkpoint(source), {"files": {}}, parse_recipe(text, "r.yaml")
    record = source_record(checkpoint)
    check_layout(layout, checkpoint, recipe)
    rng = np.random.default_rng(1)
    samples = Samples(tuple(rng.integers(0, 99, 24) for _ in range(4)), {"rows": 4}) if recipe.needs_data else None
    done = quantize(checkpoint, record, recipe, samples)
    data = {} if samples is None else samples.record
    for name in ("own", "other"):
        (folder / name).mkdir(parents=True)
    write_folder(folder / "own", checkpoint, record, recipe, done, data)
    write_layout(folder / "other", layout, checkpoint, record, recipe, done, data)
    done.work.remove()
    return open_checkpoint(folder / "own"), open_checkpoint(folder / "other")


def parameters(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Return the stored tensor of every parameter."""
    weights = build_llm(checkpoint, max_context=1).weights
    return {name: weight.tensor for name, weight in weights.items() if hasattr(weight, "tensor")}


def compare(own: Checkpoint, other: Checkpoint, *, nearly: bool) -> int:
    """Assert that two folders hold the same; returns the number of quantized modules."""
    first, second = parameters(own), parameters(other)
    assert first.keys() == second.keys()
    quantized = 0
    for name, tensor in first.items():
        twin = second[name]
        if tensor.encoding is None:
            assert twin.encoding is None
            assert np.array_equal(tensor.read(), twin.read()), name
            continue
        quantized += 1
        assert plain_format(tensor.encoding) == plain_format(twin.encoding)
        parts, copies = tensor.encoded(0, tensor.shape[0]), twin.encoded(0, twin.shape[0])
        assert parts.keys() == copies.keys()
        for kind, part in parts.items():
            if nearly and kind == "global_scale":
                assert np.allclose(part, copies[kind], rtol=2.0**-23, atol=0)
            else:
                assert np.array_equal(part.view(np.uint8), copies[kind].view(np.uint8)), (name, kind)
        assert (tensor.input is None) == (twin.input is None)
        if tensor.input is not None:
            assert tensor.input.activation == twin.input.activation
            for kind in ("multiply", "scale", "zero_point"):
                mine, theirs = getattr(tensor.input, kind), getattr(twin.input, kind)
                assert (mine is None) == (theirs is None), (name, kind)
                same = mine is None or np.array_equal(mine, theirs)
                assert same or (nearly and np.allclose(mine, theirs, rtol=2.0**-23, atol=0)), (name, kind)
    compare_caches(own, other)
    return quantized


def compare_caches(own: Checkpoint, other: Checkpoint) -> None:
    assert own.quantization is not None
    assert other.quantization is not None
    assert own.quantization.kv_dtype == other.quantization.kv_dtype
    assert own.quantization.kv_scales.keys() == other.quantization.kv_scales.keys()
    for module, pair in own.quantization.kv_scales.items():
        assert all(np.array_equal(a, b) for a, b in zip(pair, other.quantization.kv_scales[module], strict=True))


def plain_format(fmt: Any) -> Any:
    """Return a format without what only says how a kernel computes with it."""
    if isinstance(fmt, IntFormat):
        return format_from_json({**fmt.to_json(), "int8_activations": True})
    return fmt


@pytest.mark.parametrize(("layout", "name"), KEPT)
def test_our_reader_gives_back_what_was_written(llama: Path, tmp_path: Path, layout: str, name: str) -> None:
    own, other = written(llama, tmp_path, layout, RECIPES[name])
    if (layout, name) == WIDENED:
        first, second = parameters(own), parameters(other)
        assert all(np.array_equal(tensor.read(), second[key].read()) for key, tensor in first.items())
        return
    # The dividing scale of NVFP4 is a reciprocal, which isn't always undone by another.
    nearly = layout == "compressed-tensors" and name.startswith("nvfp4")
    assert compare(own, other, nearly=nearly) == (15 if name == "two formats" else 14)
    entry = json.loads((tmp_path / "other" / "config.json").read_text())["quantization_config"]
    assert entry["quant_method"] == layout


@pytest.mark.parametrize(("layout", "name"), [(layout, name) for layout in NOT_IN for name in sorted(NOT_IN[layout])])
def test_what_a_layout_has_no_place_for_is_refused_at_once(llama: Path, tmp_path: Path, layout: str, name: str) -> None:
    with pytest.raises(RecipeError, match=layout) as caught:
        check_layout(layout, open_checkpoint(llama), parse_recipe(RECIPES[name], "r.yaml"))
    assert "q_proj" in str(caught.value) or "cache" in str(caught.value)
    with pytest.raises(RecipeError):
        quantize_checkpoint(llama, tmp_path / "out", recipe=parse_recipe(RECIPES[name], "r.yaml"), layout=layout)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("layout", "text", "words"),
    [
        (
            "compressed-tensors",
            "body: {format: int4}\nlm_head: {format: int4}\nembedding: {format: int8}",
            "embed_tokens",
        ),
        ("compressed-tensors", f"body: {{format: int4, group: 128}}\n{FLOATS}", "don't fill blocks of 128"),
        ("compressed-tensors", f"body: {{format: int4}}\n{FLOATS}\nkv: {{format: fp8, scope: head}}", "per head"),
        (
            "compressed-tensors",
            f"body: {{format: int4}}\n{FLOATS}\ntransforms: {{bias_correction: true}}",
            "bias correction",
        ),
        ("modelopt", f"body: {{format: int4}}\n{FLOATS}\nkv: {{format: int8, scope: tensor}}", "one scale a layer"),
        ("modelopt", f"body: {{format: fp8, group: tensor}}\n{FLOATS}", "no algorithm"),
    ],
)
def test_refusals_name_module_and_reason(llama: Path, layout: str, text: str, words: str) -> None:
    with pytest.raises(RecipeError, match=layout) as caught:
        check_layout(layout, open_checkpoint(llama), parse_recipe(text, "r.yaml"))
    assert words in str(caught.value)


@pytest.mark.parametrize("case", ["phi3", "mixtral", "gpt2"])
def test_families_with_fused_stacked_or_transposed_tensors_are_refused(case: str) -> None:
    with pytest.raises(RecipeError, match="no tensor of its own"):
        check_layout(
            "compressed-tensors",
            golden(case).checkpoint,
            parse_recipe(f"body: {{format: int8, group: channel}}\n{FLOATS}", "r"),
        )


@pytest.mark.parametrize("layout", ["modelopt", "compressed-tensors"])
def test_a_tied_head_gets_a_tensor_of_its_own(tied: Path, tmp_path: Path, layout: str) -> None:
    text = "body: {format: int4, group: 32}\nlm_head: {format: int8, group: channel}\nembedding: {format: float32}"
    own, other = written(tied, tmp_path, layout, text)
    assert other.config["tie_word_embeddings"] is False
    assert compare(own, other, nearly=False) == 15
    table = open_checkpoint(tied).tensors["model.embed_tokens.weight"].read()
    assert np.array_equal(other.tensors["model.embed_tokens.weight"].read(), table)


def test_it_deploys(llama: Path, tmp_path: Path) -> None:
    written(llama, tmp_path, "modelopt", RECIPES["nvfp4"])
    manifest = deploy(tmp_path / "other", tmp_path / "bundle", recipe="stored").manifest
    assert manifest.verdict["status"] == "passed"
    assert manifest.recipe["kv"]["dtype"] == "float8_e4m3"


def test_names_of_a_wrapped_model_are_kept(tmp_path: Path) -> None:
    """The text part of a wrapper has other names in the file than in the network, its cache scales too."""
    checkpoint = golden("gemma3").checkpoint
    recipe = parse_recipe(f"body: {{format: int8, group: channel}}\n{FLOATS}\n{FP8_CACHE}", "r.yaml")
    check_layout("compressed-tensors", checkpoint, recipe)
    record: dict[str, Any] = {"files": {"case": "gemma3"}}
    vocab = build_llm(checkpoint, max_context=1).contract.outputs[0].shape[-1]
    samples = Samples(tuple(np.random.default_rng(i).integers(0, vocab, 9) for i in range(3)), {})
    done = quantize(checkpoint, record, recipe, samples)
    write_layout(tmp_path, "compressed-tensors", checkpoint, record, recipe, done, {})
    done.work.remove()
    other = open_checkpoint(tmp_path)
    assert other.tensors.keys() == checkpoint.tensors.keys()
    assert deploy(tmp_path, tmp_path / "bundle", recipe="stored").manifest.verdict["status"] == "passed"


def test_weights_that_stay_are_copied_byte_for_byte(tmp_path: Path) -> None:
    tensors = {name: array.astype(np.float16) for name, array in llama_tensors(CONFIG, seed=4).items()}
    source = write_checkpoint(tmp_path / "source", CONFIG, tensors)
    _, other = written(
        source, tmp_path / "made", "compressed-tensors", f"body: {{format: int8, group: channel}}\n{FLOATS}"
    )
    for name in ("model.norm.weight", "lm_head.weight", "model.embed_tokens.weight"):
        assert other.tensors[name].dtype == "float16"
        assert np.array_equal(np.asarray(other.tensors[name].read()), tensors[name].astype(np.float32))
