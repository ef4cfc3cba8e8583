"""Quantized experts: each projection is a module of its own, and what runs is what the recipe says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from conftest import ArrayTensor
from edgewright.dialects import LOWERINGS, onnxruntime
from edgewright.dialects._ort_experts import InterleavedProducer, lower_experts
from edgewright.errors import RecipeError
from edgewright.formats import FloatFormat, IntFormat, dequantize, pack, quantize
from edgewright.graph import Stage
from edgewright.graph.writer import MODEL_FILE, write_stage
from edgewright.quant.apply import Applied, quantize_stage
from edgewright.quant.recipe import Recipe, Rule
from edgewright.quant.recipe_file import parse_recipe
from edgewright.verify.reference import use_shipped_weights
from edgewright.verify.shipped import ShippedTensors, leaves
from edgewright.verify.weights import check_weights
from expert_cases import MODULE, Arrays, Run, close, experts_np, make_inputs, make_stage, make_weights, op_types

EXPERTS, HIDDEN, INNER = 5, 64, 96
#: Largest error where a kernel rounds its inputs to int8, relative to the largest output.
ROUNDED = 0.03
Fmt = IntFormat | FloatFormat


@pytest.fixture(autouse=True)
def _rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(onnxruntime._RULES, "Experts", lower_experts)


def recipe(body: Fmt, **others: Fmt) -> Recipe:
    """A recipe of one format, and of another for some projections."""
    keep = FloatFormat("float32")
    rules = tuple(Rule(f"{MODULE}.{name}", fmt, "test") for name, fmt in others.items())
    return Recipe("test", body, keep, keep, rules)


def stored(w: Arrays, chosen: Recipe) -> Arrays:
    """The weights as the formats hold them, biases untouched."""
    formats = chosen.resolve([(f"{MODULE}.{n.removesuffix('.weight')}", "body") for n in w if n.endswith(".weight")])
    result = dict(w)
    for name in w:
        fmt = formats.get(f"{MODULE}.{name.removesuffix('.weight')}")
        if isinstance(fmt, FloatFormat) and fmt.dtype == "float16":
            result[name] = w[name].astype(np.float16).astype(np.float32)
        elif isinstance(fmt, IntFormat):
            codes, scales, zeros = quantize(w[name], fmt)
            packed = None if zeros is None else pack(zeros, fmt.bits)
            result[name] = dequantize(pack(codes, fmt.bits), scales, packed, fmt, w[name].shape[1])
    return result


def quantized(w: Arrays, chosen: Recipe, activation: str = "silu", hidden: int = HIDDEN) -> tuple[Stage, list[Applied]]:
    stage = make_stage(w, activation, n=EXPERTS, hidden=hidden)
    return stage, quantize_stage(stage, chosen)


def int4(*, group: int = 32, zero_point: bool = False, rounds: bool = False) -> IntFormat:
    return IntFormat(4, group, zero_point, rounds)


def int8(*, group: int = 32, zero_point: bool = False, rounds: bool = False) -> IntFormat:
    return IntFormat(8, group, zero_point, rounds)


HALF = FloatFormat("float16")


def test_each_projection_is_a_module_and_takes_rules() -> None:
    mix = parse_recipe(
        "body: {format: int4}\nlm_head: {format: int8}\nembedding: {format: int8}\n"
        "rules:\n- {pattern: '*.experts.down_proj', format: int8}\n- {pattern: '*.experts.up_proj', format: float16}\n",
        "mix.yaml",
    )
    w = make_weights(1, n=EXPERTS, hidden=HIDDEN, inner=INNER, bias=True)
    stage, applied = quantized(w, mix)
    assert [(a.module, a.kind, a.format.label) for a in applied] == [
        (f"{MODULE}.gate_proj", "experts", "int4 group 32"),
        (f"{MODULE}.up_proj", "experts", "float16"),
        (f"{MODULE}.down_proj", "experts", "int8 group 32"),
    ]
    assert not any(a.exact for a in applied)
    assert all(a.stored == "float32" for a in applied)
    assert op_types(stage) == ["Dequantize", "Cast", "Dequantize", "Experts"]
    tensors = {f"{MODULE}.{name}" for name in ("gate_proj.codes", "gate_proj.scales", "up_proj.float16")}
    assert tensors <= stage.producers.keys()
    assert f"{MODULE}.gate_proj.bias" in stage.producers
    assert not any(name.endswith(".weight") for name in stage.producers)


def test_float32_changes_nothing() -> None:
    stage, applied = quantized(make_weights(1, n=EXPERTS, hidden=HIDDEN, inner=INNER), recipe(FloatFormat("float32")))
    assert op_types(stage) == ["Experts"]
    assert all(a.exact for a in applied)


def test_experts_without_a_gate_have_two_modules_and_a_rule_for_the_third_is_an_error() -> None:
    w = make_weights(1, n=EXPERTS, hidden=HIDDEN, inner=INNER, gated=False)
    _, applied = quantized(w, recipe(int4()), "relu2")
    assert [a.module for a in applied] == [f"{MODULE}.up_proj", f"{MODULE}.down_proj"]
    with pytest.raises(RecipeError, match="gate_proj"):
        quantized(w, recipe(int4(), gate_proj=int8()), "relu2")


KERNEL = [
    (recipe(int4()), 3e-6),
    (recipe(int4(zero_point=True)), 3e-6),
    (recipe(int4(), down_proj=int4(zero_point=True)), 3e-6),
    (recipe(int4(zero_point=True), down_proj=int4()), 3e-6),
    (recipe(int4(rounds=True)), ROUNDED),
    (recipe(int4(rounds=True, zero_point=True)), ROUNDED),
    (recipe(int8(rounds=True)), ROUNDED),
    (recipe(int8(rounds=True, zero_point=True)), ROUNDED),
]
FLOAT_KERNEL = [(recipe(HALF), 3e-6), (recipe(HALF, down_proj=FloatFormat("float32")), 3e-6)]
LOOP = [
    recipe(int8()),  # the kernel would round its inputs
    recipe(int8(zero_point=True)),
    recipe(int4(), down_proj=int8()),
    recipe(int4(), gate_proj=int8()),
    recipe(int4(), up_proj=int4(zero_point=True)),
    recipe(int4(), up_proj=HALF),
    recipe(HALF, gate_proj=FloatFormat("float32")),
    recipe(FloatFormat("float32"), down_proj=int4()),
    recipe(int4(group=64)),  # inner is no whole number of blocks
    recipe(int4(group=64, zero_point=True)),
    recipe(int4(rounds=True), down_proj=int4()),
]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("case", range(len(KERNEL + FLOAT_KERNEL) + len(LOOP)))
@pytest.mark.parametrize("dialect", ["portable", "onnxruntime"])
def test_values(dialect: str, case: int, bias: bool, tmp_path: Path) -> None:
    kernels = KERNEL + FLOAT_KERNEL
    chosen, tolerance = (kernels + [(r, 3e-6) for r in LOOP])[case]
    w = make_weights(2, n=EXPERTS, hidden=HIDDEN, inner=INNER, bias=bias)
    stage, _ = quantized(w, chosen)
    run = Run(stage, tmp_path, dialect)
    if dialect == "onnxruntime":
        op = "QMoE" if case < len(KERNEL) else "MoE" if case < len(kernels) else "Loop"
        assert op in op_types(run.stage)
    else:
        tolerance = 3e-6
    held = stored(w, chosen)
    for batch, seq in ((1, 1), (2, 5), (1, 0)):
        x, routing = make_inputs(3, batch, seq, n=EXPERTS, hidden=HIDDEN)
        close(run(x, routing), experts_np(x, routing, held, "silu"), tolerance)


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("zero_point", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_groups_and_rows_of_one_block(bits: int, zero_point: bool, group: int, tmp_path: Path) -> None:
    """Of one block (`hidden` = group), for which QMoE has another layout of zero points, and of several (`inner`)."""
    hidden, inner = group, 3 * group
    fmt = IntFormat(bits, group, zero_point, bits == 8)
    w = make_weights(4, n=EXPERTS, hidden=hidden, inner=inner)
    stage, _ = quantized(w, recipe(fmt), hidden=hidden)
    run = Run(stage, tmp_path, "onnxruntime")
    assert "QMoE" in op_types(run.stage)
    x, routing = make_inputs(5, 2, 3, n=EXPERTS, hidden=hidden)
    wanted = experts_np(x, routing, stored(w, recipe(fmt)), "silu")
    close(run(x, routing), wanted, ROUNDED if bits == 8 else 3e-6)


@pytest.mark.parametrize(("activation", "gated"), [("swiglu_clamped", True), ("relu", False), ("gelu_tanh", False)])
@pytest.mark.parametrize("bias", [False, True])
def test_other_activations_in_the_kernel(activation: str, gated: bool, bias: bool, tmp_path: Path) -> None:
    w = make_weights(6, n=EXPERTS, hidden=HIDDEN, inner=INNER, gated=gated, bias=bias)
    stage, _ = quantized(w, recipe(int4()), activation)
    run = Run(stage, tmp_path, "onnxruntime")
    assert "QMoE" in op_types(run.stage)
    x, routing = make_inputs(7, 2, 3, n=EXPERTS, hidden=HIDDEN)
    close(run(x, routing), experts_np(x, routing, stored(w, recipe(int4())), activation))


@pytest.mark.parametrize(
    ("fmt", "op", "tolerance"),
    [
        (int4(), "QMoE", 3e-6),
        (int4(zero_point=True), "QMoE", 3e-6),
        (int4(rounds=True), "QMoE", ROUNDED),
        (int8(rounds=True), "QMoE", ROUNDED),
        (int8(), "Loop", 3e-6),
        (HALF, "Loop", 3e-6),
    ],
)
@pytest.mark.parametrize("bias", [False, True])
def test_relu2_without_a_gate(fmt: Fmt, op: str, tolerance: float, bias: bool, tmp_path: Path) -> None:
    w = make_weights(8, n=EXPERTS, hidden=HIDDEN, inner=INNER, gated=False, bias=bias)
    stage, _ = quantized(w, recipe(fmt), "relu2")
    run = Run(stage, tmp_path, "onnxruntime")
    assert op in op_types(run.stage)
    x, routing = make_inputs(9, 2, 3, n=EXPERTS, hidden=HIDDEN)
    close(run(x, routing), experts_np(x, routing, stored(w, recipe(fmt)), "relu2"), tolerance)
    assert check_weights(run.stage, ShippedTensors(tmp_path / MODEL_FILE), lambda _: None).passed


# -- verification ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["portable", "onnxruntime"])
@pytest.mark.parametrize(
    "chosen", [recipe(int4(zero_point=True)), recipe(int8(rounds=True)), recipe(int8()), recipe(HALF)], ids=range(4)
)
def test_shipped_weights_are_found_and_checked(dialect: str, chosen: Recipe, tmp_path: Path) -> None:
    w = make_weights(10, n=EXPERTS, hidden=HIDDEN, inner=INNER, bias=True)
    stage, _ = quantized(w, chosen)
    low = LOWERINGS[dialect](stage)
    write_stage(low, tmp_path / "a")
    again, _ = quantized(w, chosen)
    low = LOWERINGS[dialect](again)
    report = check_weights(low, ShippedTensors(tmp_path / "a" / MODEL_FILE), lambda _: None)
    assert report.passed, report.faults
    tables = sum(name.startswith("zero_points_") for name in low.producers)
    assert report.tensors == 6 + tables  # three weights, three biases
    # A damaged row of up_proj is found by its name.
    data = np.memmap(tmp_path / "a" / "weights.bin", dtype=np.uint8, mode="r+")
    tensors = ShippedTensors(tmp_path / "a" / MODEL_FILE)
    leaf = next(leaf for leaf in leaves(low) if leaf.producer.specs[0].name.startswith(f"{MODULE}.up_proj."))
    spec, name, first = leaf.places[0]
    path, offset, _ = tensors._places[name if name in tensors._places else f"{name}.flat"]
    row = first + 7 * leaf.step
    data[offset + row * (spec.nbytes // spec.shape[0]) + 1] ^= 0x40
    data.flush()
    report = check_weights(low, ShippedTensors(path.parent / MODEL_FILE), lambda _: None)
    assert len(report.faults) == 1
    assert "up_proj" in report.faults[0]
    assert "row 7" in report.faults[0]


@pytest.mark.parametrize("dialect", ["portable", "onnxruntime"])
def test_the_reference_over_shipped_weights(dialect: str, tmp_path: Path) -> None:
    chosen = recipe(int8(rounds=True), down_proj=int4(zero_point=True))
    w = make_weights(11, n=EXPERTS, hidden=HIDDEN, inner=INNER, bias=True)
    for name, body in (("mixed", chosen), ("kernel", recipe(int8(rounds=True)))):
        stage, _ = quantized(w, body)
        low = LOWERINGS[dialect](stage)
        write_stage(low, tmp_path / name)
        found = {leaf.producer.specs[0].name: leaf for leaf in leaves(low)}
        same, _ = quantized(w, body)
        use_shipped_weights(same, found, ShippedTensors(tmp_path / name / MODEL_FILE))
        assert op_types(same) == ["Experts"]
        run = Run(same, tmp_path / f"{name}-reference", "portable")
        x, routing = make_inputs(12, 2, 3, n=EXPERTS, hidden=HIDDEN)
        close(run(x, routing), experts_np(x, routing, stored(w, body), "silu"))


def test_gate_and_up_alternate_by_row_in_one_tensor() -> None:
    w = make_weights(13, n=EXPERTS, hidden=HIDDEN, inner=INNER)
    stage, _ = quantized(w, recipe(int4(zero_point=True)))
    low = onnxruntime.lower(stage)
    (producer,) = {p for p in low.producers.values() if isinstance(p, InterleavedProducer)}
    names = [f"{MODULE}.gate_proj+up_proj.{kind}" for kind in ("codes", "scales", "zero_points")]
    assert [spec.name for spec in producer.specs] == names
    chunks = [maker() for maker in producer.chunks()]
    arrays = [np.concatenate(column) for column in zip(*chunks, strict=True)]
    for at, part in enumerate(producer.parts):
        alone = [np.concatenate(column) for column in zip(*[maker() for maker in part.chunks()], strict=True)]
        for joined, own in zip(arrays, alone, strict=True):
            np.testing.assert_array_equal(joined[at::2], own)


# -- codes with offsets, as GGUF files have them -----------------------------------------------------------------------


class BlockTensor(ArrayTensor):
    """A stored tensor of unsigned 4-bit codes in blocks of 32, each with a scale and an offset."""

    def __init__(self, name: str, rows: int, width: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.codes = rng.integers(0, 16, (rows, width // 32, 32), dtype=np.uint8)
        self.scales = (rng.uniform(0.5, 1, (rows, width // 32)) * 0.03).astype(np.float32)
        self.offsets = (-7.3 * self.scales).astype(np.float32)
        values = self.codes * self.scales[..., None] + self.offsets[..., None]
        super().__init__(name, values.reshape(rows, width).astype(np.float32), "Q4_1")
        self.format = SimpleNamespace(bits=4, group=32)

    def parts(self, start: int, stop: int) -> SimpleNamespace:
        rows = slice(start, stop)
        return SimpleNamespace(codes=self.codes[rows], scales=self.scales[rows], offsets=self.offsets[rows])


@pytest.mark.parametrize("dialect", ["portable", "onnxruntime"])
def test_stored_codes_with_offsets_are_taken_over(dialect: str, tmp_path: Path) -> None:
    shapes = {"gate_proj": (INNER, HIDDEN), "up_proj": (INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}
    tensors = {
        f"{name}.weight": BlockTensor(name, EXPERTS * rows, width, seed)
        for seed, (name, (rows, width)) in enumerate(shapes.items())
    }
    stage = make_stage({}, "silu", n=EXPERTS, hidden=HIDDEN, tensors=tensors)
    applied = quantize_stage(stage, recipe(int4()))
    assert all(a.exact for a in applied)
    run = Run(stage, tmp_path, dialect)
    x, routing = make_inputs(14, 2, 3, n=EXPERTS, hidden=HIDDEN)
    close(run(x, routing), experts_np(x, routing, {n: t.values for n, t in tensors.items()}, "silu"), 1e-5)
    report = check_weights(run.stage, ShippedTensors(tmp_path / MODEL_FILE), lambda _: None)
    assert report.passed, report.faults
