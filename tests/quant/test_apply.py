"""The quantization pass: which node becomes what, what is shared, and what a GGUF file's codes become."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import onnx
import pytest

from conftest import arrays, changed, engine_of, golden, lowered, relative_error
from edgewright.errors import RecipeError
from edgewright.formats import FloatFormat, Format, IntFormat, dequantize, pack, quantize
from edgewright.graph import Producer, Stage
from edgewright.graph.builder import EW
from edgewright.graph.writer import write_stage
from edgewright.models import build_llm
from edgewright.quant.apply import Applied, quantize_stage
from edgewright.quant.producers import ExactProducer, RoundingProducer
from edgewright.quant.recipe import Recipe
from edgewright.quant.recipe_file import load_recipe, parse_recipe
from edgewright.runtime.session import Session
from gguf_files import VOCAB, gguf_checkpoint

MIX = """\
body: {format: int4, group: 64, zero_point: true}
lm_head: {format: int8, group: 128}
embedding: {format: float16}
rules:
- {pattern: model.layers.0.self_attn.*, format: int8}
- {pattern: model.layers.1.*.gate_proj, format: float32}
"""


def quantized(case: str, recipe: str | Recipe) -> tuple[Stage, dict[str, Applied]]:
    stage = build_llm(golden(case).checkpoint)
    applied = quantize_stage(stage, load_recipe(recipe) if isinstance(recipe, str) else recipe)
    return stage, {a.module: a for a in applied}


def produced(producer: Producer) -> dict[str, np.ndarray]:
    """Run a producer; returns its tensors by the last part of their names."""
    chunks = [chunk() for chunk in producer.chunks()]
    columns = [np.concatenate(column) for column in zip(*chunks, strict=True)]
    for spec, array in zip(producer.specs, columns, strict=True):
        assert array.shape == spec.shape
        assert array.dtype == spec.numpy_dtype
    return {spec.name.rsplit(".", 1)[-1]: array for spec, array in zip(producer.specs, columns, strict=True)}


def values_of(producer: ExactProducer | RoundingProducer) -> np.ndarray:
    """What a producer's tensors stand for, as floats."""
    tensors, fmt, width = produced(producer), producer.format, producer.weight.shape[1]
    values = dequantize(tensors["codes"], tensors["scales"], tensors.get("zero_points"), fmt, width)
    if "offsets" in tensors:
        values = values + np.repeat(tensors["offsets"], fmt.group, axis=1)[:, :width]
    return values


def test_each_module_gets_what_the_recipe_says() -> None:
    stage, applied = quantized("llama_bias", parse_recipe(MIX, "mix.yaml"))
    assert len(applied) == 3 * 7 + 2
    assert {a.kind for a in applied.values()} == {"body", "lm_head", "embedding"}
    ops = {(node.name or "").rsplit("/", 1)[0]: node for node in stage.graph if node.domain == EW}
    for module, fmt in (
        ("model.layers.0.self_attn.k_proj", IntFormat(8, 32, False)),
        ("model.layers.2.mlp.down_proj", IntFormat(4, 64, True)),
        ("lm_head", IntFormat(8, 128, False)),
    ):
        assert applied[module].format == fmt
        attributes = {name: a.value for name, a in ops[module].attributes.items()}
        assert ops[module].op_type == "QuantLinear"
        assert (attributes["bits"], attributes["group"]) == (fmt.bits, fmt.group)
    assert ops["model.layers.1.mlp.gate_proj"].op_type == "Linear"
    assert ops["model.embed_tokens"].op_type == "Embedding"
    assert stage.producers["model.embed_tokens.float16"].specs[0].dtype == "float16"
    assert not any(a.exact for a in applied.values() if isinstance(a.format, IntFormat))


def test_exact_is_said_where_nothing_was_rounded() -> None:
    _, applied = quantized("llama", "float32")
    assert all(a.exact and a.stored == "float32" for a in applied.values())
    _, applied = quantized("llama", "float16")
    assert not any(a.exact for a in applied.values())


def test_bias_and_values_survive() -> None:
    stage, _ = quantized("llama_bias", "int8")
    module = "model.layers.1.mlp.up_proj"
    producer = stage.producers[f"{module}.codes"]
    assert isinstance(producer, RoundingProducer)
    weight = golden("llama_bias").checkpoint.tensors[f"{module}.weight"].read()
    codes, scales, _ = quantize(weight, IntFormat(8, 32, False))
    np.testing.assert_array_equal(produced(producer)["codes"], pack(codes, 8))
    np.testing.assert_array_equal(produced(producer)["scales"], scales)
    (node,) = [n for n in stage.graph if (n.name or "").startswith(f"{module}/")]
    assert node.inputs[-1] is not None
    assert node.inputs[-1].name == f"{module}.bias"
    assert f"{module}.weight" not in stage.graph.initializers
    assert f"{module}.weight" not in stage.producers


def test_a_rule_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(RecipeError, match=r"mix\.yaml:7: the pattern 'model\.layers\.9\.\*' matches no module"):
        quantized("llama", parse_recipe(MIX + "- {pattern: model.layers.9.*, format: int8}\n", "mix.yaml"))


# -- a tied head and table ---------------------------------------------------------------------------------------------


@functools.cache
def tied_recipe(head: str, table: str) -> Recipe:
    return parse_recipe(f"body: {{format: float32}}\nlm_head: {{{head}}}\nembedding: {{{table}}}\n", "tied.yaml")


@pytest.mark.parametrize("dialect", ["portable", "onnxruntime"])
def test_tied_head_and_table_of_one_format_share_their_bytes(dialect: str, tmp_path: Path) -> None:
    fmt = "format: int8, group: 32"
    checkpoint = golden("qwen3").checkpoint
    stage = lowered(checkpoint, dialect, tied_recipe(fmt, fmt))
    assert any("shares the codes" in note for note in stage.notes)
    write_stage(stage, tmp_path)
    assert not {"lm_head.codes", "lm_head.scales"} & initializers(tmp_path).keys()
    rows, width = checkpoint.tensors["model.embed_tokens.weight"].shape
    # The same bytes once: a file with the head split off is larger by codes and scales of the head.
    split = lowered(checkpoint, dialect, tied_recipe("format: int8, group: 64", fmt))
    write_stage(split, tmp_path / "split")
    found = {name.removesuffix(".flat") for name in initializers(tmp_path / "split")}
    assert {"lm_head.codes", "lm_head.scales"} <= found
    more = (tmp_path / "split" / "weights.bin").stat().st_size - (tmp_path / "weights.bin").stat().st_size
    assert rows * width <= more <= rows * (width + 4 * -(-width // 64)) + 256


def test_tied_head_and_table_of_different_formats_are_split(tmp_path: Path) -> None:
    stage = lowered(golden("qwen3").checkpoint, "onnxruntime", tied_recipe("format: int4", "format: float16"))
    write_stage(stage, tmp_path)
    names = initializers(tmp_path)
    assert {"lm_head.codes", "lm_head.scales", "model.embed_tokens.float16"} <= names.keys()
    assert "model.embed_tokens.weight" not in names


def test_tied_float_head_and_table_are_one_tensor(tmp_path: Path) -> None:
    for name in ("float32", "float16"):
        write_stage(lowered(golden("qwen3").checkpoint, "onnxruntime", name), tmp_path / name)
        tables = [n for n, t in initializers(tmp_path / name).items() if list(t.dims) == [97, 64]]
        assert len(tables) == 1, tables


def initializers(folder: Path) -> dict[str, onnx.TensorProto]:
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    return {tensor.name: tensor for tensor in model.graph.initializer}


# -- GGUF codes --------------------------------------------------------------------------------------------------------

#: GGUF tensors that keep their row order, and their modules.
PLAIN = {
    "blk.0.attn_v": "model.layers.0.self_attn.v_proj",
    "blk.0.ffn_up": "model.layers.0.mlp.up_proj",
    "blk.0.ffn_down": "model.layers.0.mlp.down_proj",
    "output": "lm_head",
    "token_embd": "model.embed_tokens",
}


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", ["Q4_0", "Q5_0", "Q8_0", "Q4_1", "Q5_1"])
def test_gguf_codes_go_in_bit_exactly_where_they_fit(kind: str, bits: int, tmp_path: Path) -> None:
    checkpoint, decoded = gguf_checkpoint(tmp_path / "m.gguf", kind, seed=bits + len(kind))
    fmt = IntFormat(bits, 32, False)
    stage = build_llm(checkpoint)
    applied = {a.module: a for a in quantize_stage(stage, Recipe("r", fmt, fmt, fmt))}
    fits = int(kind[1]) <= bits
    assert all(a.exact == fits and a.stored == kind for a in applied.values())
    for name, module in PLAIN.items():
        producer = stage.producers[f"{module}.codes"]
        assert isinstance(producer, ExactProducer if fits else RoundingProducer)
        values = values_of(producer)
        if not fits:
            assert 0 < np.abs(values - decoded[name]).max() < 1.0
        elif kind.endswith("_0"):
            np.testing.assert_array_equal(values.view(np.uint32), decoded[name].view(np.uint32))
        else:
            np.testing.assert_allclose(values, decoded[name], rtol=0, atol=2.0**-20 * np.abs(decoded[name]).max())
    # The permuted rows of q and k, too.
    for module in ("q_proj", "k_proj"):
        name = f"model.layers.0.self_attn.{module}"
        producer = stage.producers[f"{name}.codes"]
        assert isinstance(producer, ExactProducer | RoundingProducer)
        wanted = checkpoint.tensors[f"{name}.weight"].read()
        assert np.abs(values_of(producer) - wanted).max() <= (2.0**-20 * np.abs(wanted).max() if fits else 1.0)


@pytest.mark.parametrize("fmt", [IntFormat(4, 64, False), IntFormat(8, 64, False), IntFormat(4, 128, True)])
def test_other_groups_are_rounded_anew(fmt: IntFormat, tmp_path: Path) -> None:
    checkpoint, decoded = gguf_checkpoint(tmp_path / "m.gguf", "Q4_0", seed=3)
    stage = build_llm(checkpoint)
    applied = quantize_stage(stage, Recipe("r", fmt, fmt, fmt))
    assert not any(a.exact for a in applied)
    producer = stage.producers["model.layers.0.mlp.up_proj.codes"]
    assert isinstance(producer, RoundingProducer)
    codes, _, _ = quantize(decoded["blk.0.ffn_up"], fmt)
    np.testing.assert_array_equal(produced(producer)["codes"], pack(codes, fmt.bits))


@pytest.mark.parametrize(("kind", "bits"), [("Q4_0", 4), ("Q4_1", 4), ("Q4_0", 8), ("Q8_0", 8)])
def test_exact_engines_equal_the_float_model(kind: str, bits: int, tmp_path: Path) -> None:
    """End to end: the quantized portable graph of a GGUF file is the float32 graph of the same file."""
    checkpoint, _ = gguf_checkpoint(tmp_path / "m.gguf", kind, seed=9)
    ids = np.random.default_rng(1).integers(0, VOCAB, 20)
    fmt = IntFormat(bits, 32, False)
    exact = Recipe("exact", fmt, fmt, fmt)
    logits = {}
    for number, (dialect, recipe) in enumerate([("portable", "float32"), ("portable", exact), ("onnxruntime", exact)]):
        engine = engine_of(lowered(checkpoint, dialect, recipe), tmp_path / str(number))
        logits[number] = Session(engine).append(ids, logits="all")
    assert relative_error(logits[1], logits[0]) < 2e-5
    assert relative_error(logits[2], logits[0]) < 0.08  # activations in 8 bits


@pytest.mark.parametrize(
    ("kind", "fmt"),
    [
        ("Q4_0", IntFormat(4, 32, False)),
        ("Q4_1", IntFormat(4, 32, False)),
        ("Q5_1", IntFormat(8, 32, False)),
        ("Q8_0", IntFormat(8, 32, False)),
        ("F16", FloatFormat("float16")),
    ],
)
def test_stored_takes_every_matrix_over_as_it_is(kind: str, fmt: Format, tmp_path: Path) -> None:
    checkpoint, decoded = gguf_checkpoint(tmp_path / "m.gguf", kind, seed=5)
    stage = build_llm(checkpoint)
    applied = quantize_stage(stage, load_recipe("stored"))
    assert all(a.format == fmt and a.exact for a in applied)
    if isinstance(fmt, IntFormat):
        values = values_of(stage.producers["model.layers.0.mlp.up_proj.codes"])  # type: ignore[arg-type]
        wanted = decoded["blk.0.ffn_up"]
        np.testing.assert_allclose(values, wanted, rtol=0, atol=2.0**-20 * np.abs(wanted).max())


def test_stored_keeps_the_floats_of_a_folder() -> None:
    _, applied = quantized("qwen3", "stored")
    assert all(a.format == FloatFormat("float32") and a.exact for a in applied.values())
    _, applied = quantized("qwen3_bf16", "stored")
    assert {a.format for a in applied.values()} == {FloatFormat("float32")}  # bfloat16 fits into float32


@pytest.mark.parametrize("case", ["qwen3", "llama_bias"])
def test_inputs_kept_in_float32(case: str, tmp_path: Path) -> None:
    """Without int8 inputs the engine computes the rounded model as exactly as the portable graph does."""
    fmt = IntFormat(4, 32, False, int8_activations=False)
    table = IntFormat(4, 32, False)  # a look-up has no inputs to round, so the codes are still shared
    checkpoint = golden(case).checkpoint
    logits = {}
    for dialect in ("portable", "onnxruntime"):
        stage = lowered(checkpoint, dialect, Recipe("r", fmt, fmt, table))
        assert any("shares the codes" in note for note in stage.notes)
        engine = engine_of(stage, tmp_path / dialect)
        logits[dialect] = Session(engine).append(golden("qwen3").ids, logits="all")
    assert relative_error(logits["onnxruntime"], logits["portable"]) < 2e-5
    nodes = onnx.load(tmp_path / "onnxruntime" / "model.onnx", load_external_data=False).graph.node
    levels = [
        a.i for node in nodes if node.op_type == "MatMulNBits" for a in node.attribute if a.name == "accuracy_level"
    ]
    assert set(levels) == {1}
    mixed = lowered(checkpoint, "onnxruntime", Recipe("r", table, fmt, table))
    write_stage(mixed, tmp_path / "mixed")
    nodes = onnx.load(tmp_path / "mixed" / "model.onnx", load_external_data=False).graph.node
    by_name = {n.name: {a.name: a.i for a in n.attribute} for n in nodes if n.op_type == "MatMulNBits"}
    assert {name.startswith("lm_head"): a["accuracy_level"] for name, a in by_name.items()} == {True: 1, False: 4}


def test_an_unquantized_gguf_tensor_is_rounded(tmp_path: Path) -> None:
    checkpoint, _ = gguf_checkpoint(tmp_path / "m.gguf", "F16", seed=4)
    stage = build_llm(checkpoint)
    applied = quantize_stage(stage, load_recipe("int4"))
    assert {a.stored for a in applied} == {"float16"}
    assert not any(a.exact for a in applied)
    stage = build_llm(checkpoint)
    assert all(a.exact for a in quantize_stage(stage, load_recipe("float16")))


def test_quantizing_reads_nothing() -> None:
    """The pass is lazy: a checkpoint whose tensors can't be read is quantized and lowered all the same."""

    class Unreadable:
        def __init__(self, name: str, shape: tuple[int, ...]) -> None:
            self.name, self.shape, self.dtype = name, shape, "float32"

        def rows(self, start: int, stop: int) -> np.ndarray:
            raise AssertionError(f"{self.name} was read")

        raw = rows

    checkpoint = golden("llama").checkpoint
    tensors = {name: Unreadable(name, array.shape) for name, array in arrays(checkpoint).items()}
    checkpoint = changed(checkpoint)
    object.__setattr__(checkpoint, "tensors", tensors)
    for dialect in ("portable", "onnxruntime"):
        lowered(checkpoint, dialect, "int4")
