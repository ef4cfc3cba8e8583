"""The dialect against NVIDIA's exporter: node for node, byte for byte; and what it refuses or does otherwise."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from conftest import changed, golden
from edgellm_cases import CASES, LAYOUT_SIZES, OTHERS, Case, checkpoint_of, layout_codes, read_golden
from edgellm_form import describe
from edgewright.build.llm import give_cache
from edgewright.checkpoint import Checkpoint, open_checkpoint
from edgewright.dialects.edgellm import CONFIG, lower
from edgewright.dialects.edgellm.packing import Int4Producer, halves, pack_fragments, pack_stripes
from edgewright.errors import UnsupportedFormatError
from edgewright.formats import pack
from edgewright.graph import Producer, Stage, TensorSpec
from edgewright.graph.writer import MODEL_FILE, WEIGHTS_FILE, write_stage
from edgewright.models import build_llm
from edgewright.quant.apply import quantize_stage
from edgewright.quant.recipe_file import load_recipe, parse_recipe
from edgewright.targets.edgellm.unpacking import from_fragments, from_stripes


def stage_of(checkpoint: Checkpoint, recipe: str = "stored") -> Stage:
    """Build and quantize a stage."""
    stage = build_llm(checkpoint)
    quantize_stage(stage, load_recipe(recipe))
    if checkpoint.quantization is not None:
        stage.cache = give_cache(stage, checkpoint, checkpoint.quantization)
    return stage


def written(case: Case, folder: Path) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """Lower a case as the exporter was asked to; returns its graph's lines and its config."""
    stage = stage_of(open_checkpoint(checkpoint_of(case, folder / "made")), case.recipe)
    lower(stage, fragments=case.plugin == 2)
    write_stage(stage, folder)
    return describe(folder / MODEL_FILE), json.loads(stage.graph.metadata_props[CONFIG])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_graph_is_the_exporters_own(case: Case, tmp_path: Path) -> None:
    theirs = read_golden(case.name)
    ours, config = written(case, tmp_path)
    assert ours["inputs"] == theirs["inputs"]
    assert ours["outputs"] == theirs["outputs"]
    assert ours["nodes"] == theirs["nodes"]
    told = theirs["config"]
    told.pop("eos_token_id", None)
    config.pop("eos_token_id", None)
    assert config == told


def other(name: str) -> Case:
    return next(case for case in OTHERS if case.name == name)


def test_zero_points_that_do_not_fit_are_kept(tmp_path: Path) -> None:
    """The exporter moves codes to the zero point 8 and clamps those that leave 0 to 15; here sums of inputs correct."""
    case = other("awq-g128")
    ours, _ = written(case, tmp_path)
    theirs = read_golden(case.name)
    count = {name: sum(f"::{name}(" in line for line in ours["nodes"]) for name in ("Int4GroupwiseGemmPlugin",)}
    assert count == {"Int4GroupwiseGemmPlugin": 6}
    assert sum(line.startswith("ReduceSum") for line in ours["nodes"]) == 3  # q, k and v share one, gate and up another
    assert not any(line.startswith("ReduceSum") for line in theirs["nodes"])
    packed = {"theirs": weights_of(theirs["nodes"]), "ours": weights_of(ours["nodes"])}
    assert not packed["theirs"] & packed["ours"]  # all of them were clamped


def weights_of(nodes: list[str]) -> set[str]:
    """Return the packed int4 weights of a graph."""
    return {line.split(", ")[1] + line.split(", ")[2] for line in nodes if "Int4Groupwise" in line}


def test_weights_alone_are_four_bits(tmp_path: Path) -> None:
    """Asked not to round inputs, the exporter still rounds those of queries, keys and values, with a scale of 1."""
    ours, _ = written(other("mo-nvfp4a16"), tmp_path)
    theirs = read_golden("mo-nvfp4a16")
    assert sum("FP4DynamicQuantize" in line for line in theirs["nodes"]) == 1
    assert not any("FP4DynamicQuantize" in line for line in ours["nodes"])
    weights = [
        {found for line in nodes for found in re.findall(r"FLOAT[48]\w+\[[^]]*\]#\w+", line)}
        for nodes in (ours["nodes"], theirs["nodes"])
    ]
    assert weights[0] == weights[1]
    assert len(weights[0]) == 10


def test_a_window_is_the_plugins(tmp_path: Path) -> None:
    """The exporter leaves the window of this family out."""
    ours, config = written(other("mistral_window"), tmp_path)
    theirs = read_golden("mistral_window")
    assert [line.replace("sliding_window_size=8", "sliding_window_size=-1") for line in ours["nodes"]] == theirs[
        "nodes"
    ]
    assert sum("sliding_window_size=8" in line for line in ours["nodes"]) == 3
    assert config.pop("sliding_window_size") == 8
    assert "sliding_window_size" not in theirs["config"]


def test_scaled_frequencies_are_spelled_out(tmp_path: Path) -> None:
    """The runtime takes llama3 for the plain rope; a longrope of the same divisors says what is meant."""
    ours, config = written(other("llama_rope_llama3"), tmp_path)
    theirs = read_golden("llama_rope_llama3")
    assert ours["nodes"] == theirs["nodes"]
    assert theirs["config"]["rope_scaling"]["type"] == "llama3"
    assert config["rope_scaling"]["type"] == "longrope"
    assert config["original_max_position_embeddings"] == config["max_position_embeddings"]
    stage = build_llm(golden("llama_rope_llama3").checkpoint)
    angles = np.arctan2(*(stage.weights[f"rope.{name}"].rows(0, 2)[1] for name in ("sin", "cos")))
    plain = config["rope_theta"] ** (-2 * np.arange(len(angles)) / config["head_dim"])
    np.testing.assert_allclose(plain / np.array(config["rope_scaling"]["long_factor"]), angles, rtol=1e-5)


def test_layers_without_a_rope_are_refused() -> None:
    """The exporter writes such a model as if every layer had one."""
    assert any("AttentionPlugin" in line for line in read_golden("smollm3")["nodes"])
    with pytest.raises(UnsupportedFormatError, match=r"layers\.\d\.self_attn: a layer without rope"):
        lower(stage_of(golden("smollm3").checkpoint, "float16"))


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("gemma3_text", "model.* has no form|multiply|Mul"),
        ("gpt2", r"a layer without rope"),
        ("phi", r"of a part of a head"),
        ("glm", r"neighbouring pairs, or of a part"),
        ("gpt_oss", "sinks beside its scores"),
        ("mamba2", "no language model with a key/value cache"),
        ("lfm2", "whose layers have a state"),
        ("qwen2_moe", r"mlp.*no form"),
        ("deepseek_v3", "no form"),
        ("granite", "no form"),
        ("llama_rope_dynamic", "rope of the type dynamic"),
        ("llama_rope_longrope", "depends on the length|longrope"),
        ("gemma2", "soft cap"),
        ("gemma4_text", "read by more than one table"),
    ],
)
def test_what_has_no_form_is_refused(case: str, words: str) -> None:
    with pytest.raises(UnsupportedFormatError, match=words):
        lower(stage_of(golden(case).checkpoint, "float32"))


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("awq-g32", r"q_proj: int4 in groups of 32 has no plug-in"),
        ("gptq-v1-8bit-channel", r"int8 in groups"),
        ("mo-fp8-channel", r"e4m3 weights with a scale for each channel"),
        ("ct-mxfp4", r"mxe2m1 weights"),
        ("fp8-block", r"e4m3 weights with a scale for each block"),
        ("ct-fp8-dynamic", "have no form|with scales that have no form"),
    ],
)
def test_formats_without_a_form_are_refused(case: str, words: str) -> None:
    checkpoint = open_checkpoint(Case(case, f"prequantized/{case}").path)
    with pytest.raises(UnsupportedFormatError, match=words):
        lower(stage_of(checkpoint))


def test_an_int4_head_is_refused() -> None:
    recipe = parse_recipe(
        "recipe: own\nbody: {format: stored}\nlm_head: {format: int4, group: 128, zero_point: false}\n"
        "embedding: {format: float16}\n",
        "own",
    )
    stage = build_llm(open_checkpoint(Case("c", "prequantized/mo-int4-awq").path))
    quantize_stage(stage, recipe, requantize=True)
    with pytest.raises(UnsupportedFormatError, match="lm_head: an int4 head"):
        lower(stage)


def test_an_int8_cache_is_refused() -> None:
    from edgewright.quant.kv import calibrated_cache, quantize_cache

    stage = stage_of(golden("llama").checkpoint, "float16")
    scales = {
        f"model.layers.{i}.self_attn": (np.full(1, 0.1, np.float32), np.full(1, 0.1, np.float32)) for i in range(3)
    }
    quantize_cache(stage, *calibrated_cache("int8", scales))
    with pytest.raises(UnsupportedFormatError, match="int8 cache has no form"):
        lower(stage)


@pytest.mark.parametrize("size", LAYOUT_SIZES, ids=str)
def test_layouts_are_the_exporters_and_are_read_back(size: tuple[int, int]) -> None:
    kept = read_golden("layouts")["x".join(map(str, size))]
    codes = layout_codes(*size)
    first, second = pack_stripes(codes), pack_fragments(codes)
    assert hashlib.sha256(first.tobytes()).hexdigest() == kept["first"]
    assert hashlib.sha256(second.tobytes()).hexdigest() == kept["second"]
    assert list(second.shape) == kept["shape"]
    np.testing.assert_array_equal(from_stripes(first, *size), codes)
    np.testing.assert_array_equal(from_fragments(second, *size), codes)


class Codes(Producer):
    """An int4 weight in memory, with zero points."""

    def __init__(self, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray, *, fails: bool = False) -> None:
        rows, width = codes.shape
        self.codes, self.scales, self.zeros, self.fails = codes, scales, zeros, fails
        self.specs = (
            TensorSpec("w.codes", "uint8", (rows, width // 128, 64)),
            TensorSpec("w.scales", "float32", (rows, width // 128)),
            TensorSpec("w.zero_points", "uint8", (rows, -(-width // 256))),
        )

    def chunks(self) -> Any:
        raise AssertionError

    def chunk(self, start: int, stop: int) -> tuple[np.ndarray, ...]:
        if self.fails and start:
            raise ValueError("a damaged weight")
        codes = pack(self.codes[start:stop], 4).reshape(stop - start, -1, 64)
        return codes, self.scales[start:stop], pack(self.zeros[start:stop], 4)


def int4(rows: int, zeros: int, low: int, high: int, **options: Any) -> Codes:
    rng = np.random.default_rng(5)
    codes = rng.integers(low, high, (rows, 256), dtype=np.uint8)
    scales = rng.uniform(0.01, 0.1, (rows, 2)).astype(np.float32)
    return Codes(codes, scales, np.full((rows, 2), zeros, np.uint8), **options)


def joined(producer: Producer) -> list[np.ndarray]:
    columns = zip(*[make() for make in producer.chunks()], strict=True)
    return [np.concatenate(column).reshape(s.shape) for column, s in zip(columns, producer.specs, strict=True)]


def test_zero_points_become_part_of_codes_or_corrections() -> None:
    fitting = int4(192, 6, 1, 14)
    folded = Int4Producer(fitting, "w", fragments=True, folded=True)
    assert folded.fits()
    weight, scales = joined(folded)
    np.testing.assert_array_equal(from_fragments(weight, 192, 256), fitting.codes + 2)
    np.testing.assert_array_equal(scales, fitting.scales.T.astype(np.float16))
    apart = int4(192, 3, 0, 16)
    assert not Int4Producer(apart, "w", fragments=False, folded=True).fits()
    kept = Int4Producer(apart, "w", fragments=False, folded=False)
    weight, scales, corrections = joined(kept)
    np.testing.assert_array_equal(from_stripes(weight, 192, 256), apart.codes)
    np.testing.assert_allclose(corrections, (5 * apart.scales).T, rtol=1e-6)


def test_a_weight_that_fails_ends_the_writing() -> None:
    """What is written at the end waits for all rows, those that fail as well."""
    makers = list(Int4Producer(int4(192, 8, 0, 16, fails=True), "w", fragments=True, folded=True).chunks())
    makers[0]()
    with pytest.raises(ValueError, match="damaged"):
        makers[1]()
    assert makers[2]()[1].shape == (2, 192)


def test_scales_that_float16_can_not_hold_are_refused_by_name() -> None:
    """Of int4 groups, of FP8 weights, and of inputs: none becomes infinite, and none that divides becomes zero."""
    large = int4(192, 8, 0, 16)
    large.scales[5, 1] = 1e6
    makers = list(Int4Producer(large, "layer.up_proj", fragments=True, folded=True).chunks())
    for make in makers[:2]:
        make()
    with pytest.raises(UnsupportedFormatError, match=r"layer.up_proj.scales has scales of 1e\+06.* keep the layer"):
        makers[2]()
    assert halves(np.array([1e-9]), "w").tolist() == [0]
    assert halves(np.array([0.25, 0]), "w", divides=True).tolist() == [0.25, 0]
    with pytest.raises(UnsupportedFormatError, match="w has scales of 1e-09"):
        halves(np.array([1e-9]), "w", divides=True)


@pytest.mark.parametrize("place", ["weight_scale", "input_scale"])
def test_scales_of_whole_tensors_that_float16_can_not_hold(place: str, tmp_path: Path) -> None:
    stage = stage_of(open_checkpoint(changed_scale(place, tmp_path / "made")))
    with pytest.raises(UnsupportedFormatError, match=rf"q_proj.{place}\S* has scales of 1e-09"):
        write_stage(lower(stage), tmp_path / "s")


def changed_scale(place: str, folder: Path) -> Path:
    """Write a golden FP8 checkpoint with a scale too small for float16."""
    shutil.copytree(Case("c", "prequantized/mo-fp8").path, folder)
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:8], "little")
    start, stop = json.loads(data[8 : 8 + size])[f"model.layers.0.self_attn.q_proj.{place}"]["data_offsets"]
    data[8 + size + start : 8 + size + stop] = np.float32(1e-9).tobytes()
    path.write_bytes(bytes(data))
    return folder


def test_the_same_bytes_again(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "mo-nvfp4")
    for name in ("a", "b"):
        written(case, tmp_path / name)
    for file in (MODEL_FILE, WEIGHTS_FILE):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert str(tmp_path) not in onnx.load(
        tmp_path / "a" / MODEL_FILE, load_external_data=False
    ).SerializeToString().decode("latin1")


def test_sizes_choose_the_plugin(tmp_path: Path) -> None:
    """Keys and values of 32 rows are no multiple of 64: the first plug-in reads them, the second one the others."""
    stage = stage_of(open_checkpoint(Case("c", "prequantized/mo-int4-awq").path))
    lower(stage)
    ops = {node.name: node.op_type for node in stage.graph if "Int4" in node.op_type}
    first = [name for name, op in ops.items() if op == "Int4GroupwiseGemmPlugin"]
    assert sorted(name.split(".")[-1].split("/")[0] for name in first) == ["k_proj", "v_proj"]
    assert len(ops) == 7
    with pytest.raises(UnsupportedFormatError, match="multiples of 64"):
        lower(stage_of(open_checkpoint(Case("c", "prequantized/mo-int4-awq").path)), fragments=True)


def test_a_table_is_outside_and_its_contract_stays() -> None:
    stage = lower(stage_of(changed(golden("qwen3").checkpoint), "float16"))
    assert stage.outside is not None
    names = [tensor.name for tensor in stage.contract.inputs]
    assert names[:3] == ["inputs_embeds", "past_lengths", "logit_positions"]
    assert stage.contract.kv_in_place
    assert "input_ids" not in {value.name for value in stage.graph.inputs}
