"""Products with signed weights: the same whole numbers, where the CPU computes them exactly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgewright.bundle.machine import Machine
from edgewright.targets.signed import sign_weights, takes_signed


def model(kind: str, *, extra: bool = False) -> onnx.ModelProto:
    """A product of uint8 inputs with int8 weights that are moved up by 128, as the dialect writes it."""
    rng = np.random.default_rng(5)
    codes = rng.integers(-127, 128, (7, 33)).astype(np.int8)  # extremes are among them
    codes[0], codes[1] = 127, -127
    weight = numpy_helper.from_array(codes.view(np.uint8), "codes")
    floats = [numpy_helper.from_array(np.float32(v), n) for n, v in (("one", 1), ("step", 0.01))]
    middle = numpy_helper.from_array(np.uint8(128), "middle")
    inputs = ["x", "turned", "middle", "middle"]
    domain = ""
    if kind == "MatMulIntegerToFloat":
        inputs, domain = ["x", "turned", "one", "step", "middle", "middle", "bias"], "com.microsoft"
        floats.append(numpy_helper.from_array(rng.standard_normal(7).astype(np.float32), "bias"))
    nodes = [
        helper.make_node("BitwiseXor", ["codes", "middle"], ["raised"]),
        helper.make_node("Transpose", ["raised"], ["turned"], perm=[1, 0]),
        helper.make_node(kind, inputs, ["y"], domain=domain),
    ]
    outputs = [
        helper.make_tensor_value_info(
            "y", TensorProto.INT32 if kind == "MatMulInteger" else TensorProto.FLOAT, [None, 7]
        )
    ]
    if extra:
        nodes.append(helper.make_node("Identity", ["raised"], ["also"]))
        outputs.append(helper.make_tensor_value_info("also", TensorProto.UINT8, [7, 33]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, ["rows", 33])],
        outputs,
        [weight, middle, *floats],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run(made: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(["y"], {"x": x})[0]
    return result


@pytest.mark.parametrize("kind", ["MatMulInteger", "MatMulIntegerToFloat"])
def test_the_numbers_stay_the_same(kind: str) -> None:
    made = model(kind)
    # Small enough that no pair of products saturates 16 bits on any CPU.
    x = np.random.default_rng(1).integers(118, 139, (5, 33)).astype(np.uint8)
    before = run(made, x)
    assert sign_weights(made) == 1
    assert not [node for node in made.graph.node if node.op_type == "BitwiseXor"]
    assert made.graph.initializer[0].data_type == TensorProto.INT8
    np.testing.assert_array_equal(run(made, x), before)
    assert sign_weights(made) == 0


def test_extremes_are_exact_where_signed_weights_are_taken() -> None:
    from edgewright.bundle.machine import this_machine

    if not takes_signed(this_machine()):
        pytest.skip("this CPU's products of unsigned and signed bytes saturate, so they are not used here")
    made = model("MatMulInteger")
    x = np.full((3, 33), 255, np.uint8)
    x[1] = 0
    before = run(made, x)
    sign_weights(made)
    np.testing.assert_array_equal(run(made, x), before)


def test_a_weight_that_something_else_reads_stays() -> None:
    made = model("MatMulInteger", extra=True)
    before = made.SerializeToString()
    assert sign_weights(made) == 0
    assert made.SerializeToString() == before


@pytest.mark.parametrize(
    ("arch", "features", "taken"),
    [
        ("x86_64", ("avx2", "fma"), False),
        ("x86_64", ("avx2", "avx512_vnni", "avx512f"), True),
        ("x86_64", ("avx2", "avx_vnni"), True),
        ("aarch64", ("asimddp",), False),
    ],
)
def test_only_machines_whose_kernels_are_exact(arch: str, features: tuple[str, ...], taken: bool) -> None:
    assert takes_signed(Machine(arch, features, "1.32.0")) is taken


def test_a_graph_without_such_products_is_left_alone(tmp_path: Path) -> None:
    made = model("MatMulInteger")
    del made.graph.node[0]
    made.graph.node[0].input[0] = "codes"
    assert sign_weights(made) == 0
