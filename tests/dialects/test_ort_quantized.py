"""Quantized linears in ONNX Runtime's dialect: int8 products, and scales in float16, against the reference bodies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewright.dialects import onnxruntime, portable
from edgewright.formats import ActivationFormat, BlockFormat, IntFormat, ScaledFormat, round_input
from edgewright.graph import Stage, TensorSpec
from edgewright.ops import decode, experts, linear
from edgewright.ops import round_input as append_round_input
from qdq_cases import ArraysProducer, encoded, kind_of, run_ort, stage_of, written

INPUTS = [
    ActivationFormat("int8", False, "token"),
    ActivationFormat("int8", False, "tensor"),
    ActivationFormat("int8", True),
    ActivationFormat("int8", True, symmetric=False),
]


class Vectors(ArraysProducer):
    """Small arrays as initializers."""

    def __init__(self, module: str, **arrays: np.ndarray) -> None:
        self.specs = tuple(TensorSpec(f"{module}.{n}", str(a.dtype), a.shape) for n, a in arrays.items())
        self._arrays = list(arrays.values())
        self._rows = self._step = max(1, *(len(a) for a in self._arrays))


def static_arrays(fmt: ActivationFormat, x: np.ndarray) -> dict[str, np.ndarray]:
    if not fmt.static:
        return {}
    found = {"scale": np.array([np.abs(x).max() / 100], np.float32)}
    return found if fmt.symmetric else {**found, "zero_point": np.array([23], np.int8)}


def product_stage(
    weights: list[np.ndarray], inputs: ActivationFormat, scope: str, x: np.ndarray, bias: np.ndarray | None
) -> Stage:
    """The sum of linears of one rounded input, all with weights of the same shape."""
    fmt = ScaledFormat("int8", scope)
    parts = [encoded(fmt, w) for w in weights]
    given_too = static_arrays(inputs, x)
    zeros = given_too.pop("zero_point", None)

    def build(g: Any, v: Any, **values: Any) -> Any:
        zero_point = g.constant(zeros, np.int8) if zeros is not None else None
        rounded = append_round_input(
            g, v, values.get("scale"), zero_point,
            kind=inputs.name, static=inputs.static, scope=inputs.scope,
        )  # fmt: skip
        total = None
        for number, w in enumerate(weights):
            kind, scope = kind_of(fmt)
            sizes = {"in_features": w.shape[1], "out_features": w.shape[0]}
            codes, scales = (values[f"{part}{number}"] for part in ("codes", "scales"))
            with g.scope(f"model.linear{number}"):
                weight = decode(g, codes, scales, kind=kind, scope=scope, **sizes)
                y = linear(g, rounded, weight, values.get("bias"))
            total = y if total is None else g.op("Add", total, y)
        return total

    producers = [Vectors("m", **given_too)] if given_too else []
    producers += [Vectors("m", **{f"{name}{i}": a for name, a in p.items()}) for i, p in enumerate(parts)]
    producers += [] if bias is None else [Vectors("m", bias=bias)]
    return stage_of(build, {"x": x}, producers, x.ndim)


@settings(max_examples=40, deadline=None)
@given(
    inputs=st.sampled_from(INPUTS),
    scope=st.sampled_from(["tensor", "channel"]),
    rows=st.sampled_from([1, 3, 17, 40]),
    width=st.sampled_from([1, 31, 64, 300]),
    lead=st.lists(st.integers(1, 5), min_size=1, max_size=2),
    biased=st.booleans(),
    seed=st.integers(0, 99),
)
def test_int8_products_are_those_of_the_rounded_numbers(
    inputs: ActivationFormat, scope: str, rows: int, width: int, lead: list[int], biased: bool, seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    x = (rng.standard_t(3, (*lead, width)) * 10.0 ** rng.integers(-3, 4)).astype(np.float32)
    weights = [rng.standard_normal((rows, width)).astype(np.float32) for _ in range(2)]
    bias = rng.standard_normal(rows).astype(np.float32) if biased else None
    folder = tmp_path_factory.mktemp("int8")
    path = written_ort(product_stage(weights, inputs, scope, x, bias), folder / "a")
    got = run_ort(path, {"x": x}, fold=seed % 2 == 0)
    fmt = ScaledFormat("int8", scope)
    v = round_input(x, inputs, **static_arrays(inputs, x)).astype(np.float64)
    decoded = [fmt.decode(encoded(fmt, w), width).astype(np.float64) for w in weights]
    wanted = sum(v @ w.T + (0 if bias is None else bias) for w in decoded)
    # The sums are exact: what is left are a few roundings of the result and of the scales' product.
    size = sum(np.abs(v) @ np.abs(w).T for w in decoded) + (0 if bias is None else 2 * np.abs(bias))
    assert (np.abs(got - wanted) <= 1e-6 * size + 1e-30).all()
    body = run_ort(written(portable.lower(product_stage(weights, inputs, scope, x, bias)), folder / "b"), {"x": x})
    assert (np.abs(got - body) <= 2e-6 * size + 1e-30).all()


def written_ort(stage: Stage, folder: Path) -> Path:
    """Lower to ONNX Runtime's dialect and write; its kernels are not ONNX's to check."""
    from edgewright.graph.writer import MODEL_FILE, write_stage

    write_stage(onnxruntime.lower(stage), folder)
    return folder / MODEL_FILE


def test_extreme_codes_do_not_saturate(tmp_path: Path) -> None:
    """Every product at its largest: 16-bit sums of pairs would overflow."""
    width = 96
    w = np.full((5, width), 3.0, np.float32)
    w[1::2] *= -1
    for number, inputs in enumerate(INPUTS):
        x = np.full((2, 3, width), 7.0, np.float32)
        x[1] *= -1
        path = written_ort(product_stage([w], inputs, "channel", x, None), tmp_path / str(number))
        v = round_input(x, inputs, **static_arrays(inputs, x)).astype(np.float64)
        np.testing.assert_allclose(run_ort(path, {"x": x}), v @ w.T.astype(np.float64), rtol=1e-6)


@pytest.mark.parametrize("inputs", INPUTS, ids=lambda f: f.label.replace(" ", "-"))
def test_the_graph_has_integer_products_and_rounds_an_input_once(inputs: ActivationFormat, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((1, 4, 32)).astype(np.float32)
    weights = [rng.standard_normal((8, 32)).astype(np.float32) for _ in range(3)]
    path = written_ort(product_stage(weights, inputs, "channel", x, None), tmp_path)
    model = onnx.load(path, load_external_data=False)
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("MatMulIntegerToFloat") == 3
    assert kinds.count("QuantizeLinear") + kinds.count("Round") == 1
    assert not {"RoundInput", "Decode", "FusedMatMul"} & set(kinds)
    # The codes are in the file once, a byte each.
    sizes = [
        int({e.key: e.value for e in t.external_data}["length"]) for t in model.graph.initializer if t.external_data
    ]
    assert sizes.count(8 * 32) == 3


def test_other_scopes_keep_their_bodies(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((2, 140)).astype(np.float32)
    w = np.random.default_rng(2).standard_normal((9, 140)).astype(np.float32)
    for scope in ("block", "row-block"):
        path = written_ort(product_stage([w], INPUTS[0], scope, x, None), tmp_path / scope)
        fmt = ScaledFormat("int8", scope)
        wanted = round_input(x, INPUTS[0]) @ fmt.decode(encoded(fmt, w), 140).T
        np.testing.assert_allclose(run_ort(path, {"x": x}), wanted, atol=1e-5 * np.abs(wanted).max())


HALVES = [IntFormat(b, 32, z, int8, "float16") for b in (4, 8) for z in (False, True) for int8 in (False, True)]


@pytest.mark.parametrize("fmt", HALVES, ids=lambda f: f.label.replace(" ", "-"))
@pytest.mark.parametrize("width", [64, 100])
def test_scales_in_float16(fmt: IntFormat, width: int, tmp_path: Path) -> None:
    """Linear and table: the kernels get what the float16 numbers widen to.

    MatMulNBits 1.32 with int8 inputs returns zeros when its scales are no constants, so they must be folded at load.
    """
    rng = np.random.default_rng(3)
    shape = (7, width)
    parts = encoded(fmt, rng.standard_normal(shape).astype(np.float32))
    assert parts["scales"].dtype == np.float16
    a = {"bits": fmt.bits, "group": fmt.group, "in_features": width, "out_features": 7, "scales": "float16",
         "int8_activations": int(fmt.int8_activations)}  # fmt: skip
    dense = fmt.decode(parts, width)
    x = rng.standard_normal((2, 3, width)).astype(np.float32)

    def product(g: Any, v: Any, codes: Any, scales: Any, zero_points: Any = None) -> Any:
        return g.ew("QuantLinear", v, codes, scales, zero_points, **a)

    def rows(g: Any, v: Any, codes: Any, scales: Any, zero_points: Any = None) -> Any:
        return g.ew("QuantEmbedding", v, codes, scales, zero_points, **a)

    path = written_ort(stage_of(product, {"x": x}, [ArraysProducer("m.w", fmt, shape, parts)], 3), tmp_path / "a")
    wanted = x @ dense.T
    noise = 0.02 if fmt.int8_activations else 1e-5
    assert np.abs(run_ort(path, {"x": x}, fold=True) - wanted).max() < noise * np.abs(wanted).max()
    types = {t.data_type for t in onnx.load(path, load_external_data=False).graph.initializer}
    assert onnx.TensorProto.FLOAT16 in types
    ids = np.array([[0, 6], [3, 3]])
    path = written_ort(stage_of(rows, {"x": ids}, [ArraysProducer("m.w", fmt, shape, parts)], 3), tmp_path / "b")
    for fold in (False, True):
        np.testing.assert_allclose(run_ort(path, {"x": ids}, fold=fold), dense[ids], rtol=2e-7, atol=1e-7)


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("zero_point", [False, True])
def test_experts_with_scales_in_float16(kernel: bool, zero_point: bool, tmp_path: Path) -> None:
    """In the kernel, and in the loop that takes what the kernel doesn't (gelu with a gate)."""
    count, hidden, inner = 4, 32, 64
    fmt: BlockFormat = IntFormat(4, 32, zero_point, False, "float16")
    rng = np.random.default_rng(5)
    shapes = {"gate": (count * inner, hidden), "up": (count * inner, hidden), "down": (count * hidden, inner)}
    all_parts = {name: encoded(fmt, rng.standard_normal(s).astype(np.float32)) for name, s in shapes.items()}
    x = rng.standard_normal((1, 5, hidden)).astype(np.float32)
    routing = np.where(rng.random((1, 5, count)) < 0.5, rng.random((1, 5, count)), 0).astype(np.float32)
    routing[..., 2:] = 0

    def build(g: Any, v: Any, r: Any, **values: Any) -> Any:
        made = []
        for name, shape in shapes.items():
            a = {"bits": 4, "group": 32, "in_features": shape[1], "out_features": shape[0], "scales": "float16",
                 "int8_activations": 0}  # fmt: skip
            tensors = [values.get(f"{name}_{part}") for part in ("codes", "scales", "zero_points")]
            made.append(g.ew("Dequantize", *tensors, **a))
        activation = "silu" if kernel else "gelu"
        return experts(g, v, r, *made, experts=count, top_k=2, activation=activation)

    def stage() -> Stage:
        producers = []
        for name, parts in all_parts.items():
            producer = ArraysProducer(f"m.{name}", fmt, shapes[name], parts)
            producer.specs = tuple(
                TensorSpec(f"m.{name}.{name}_{s.name.rsplit('.', 1)[-1]}", s.dtype, s.shape) for s in producer.specs
            )
            producers.append(producer)
        return stage_of(build, {"x": x, "routing": routing}, producers, 3)

    feeds = {"x": x, "routing": routing}
    wanted = run_ort(written(portable.lower(stage()), tmp_path / "a"), feeds)
    path = written_ort(stage(), tmp_path / "b")
    kinds = {node.op_type for node in onnx.load(path, load_external_data=False).graph.node}
    assert ("QMoE" in kinds) == kernel
    for fold in (False, True):
        assert np.abs(run_ort(path, feeds, fold=fold) - wanted).max() < 1e-5 * np.abs(wanted).max()
