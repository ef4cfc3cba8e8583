"""Golden files of make_formats.py for the ONNX operators and for activations."""

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp
from format_common import Arrays, plain, write
from format_matrices import matrices
from modelopt.torch.quantization.config import QuantizerAttributeConfig
from modelopt.torch.quantization.nn import TensorQuantizer
from modelopt.torch.quantization.qtensor import NVFP4QTensor
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnxruntime import InferenceSession


def qdq_model(
    kind: int, shape: tuple[int, ...], scale: np.ndarray, zero: Any, attributes: dict[str, int], opset: int
) -> Any:
    """Return a model x -> QuantizeLinear -> (codes, DequantizeLinear -> values)."""
    scale_t = onnx.numpy_helper.from_array(scale, "scale")
    initializers, names = [scale_t], ["scale"]
    if zero is not None:
        initializers.append(onnx.numpy_helper.from_array(zero, "zero"))
        names.append("zero")
    forward = {} if zero is not None else {"output_dtype": kind}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *names], ["codes"], **attributes, **forward),
        helper.make_node("DequantizeLinear", ["codes", *names], ["values"], **attributes),
    ]
    infos = [helper.make_tensor_value_info("codes", kind, shape), helper.make_tensor_value_info("values", 1, shape)]
    graph = helper.make_graph(nodes, "qdq", [helper.make_tensor_value_info("x", 1, shape)], infos, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11 if opset > 22 else 10)


def run_qdq(out: Arrays, key: str, x: np.ndarray, model: Any) -> str:
    """Add what the reference evaluator and ONNX Runtime compute; return how they compare."""
    onnx.checker.check_model(model, full_check=True)
    codes, values = ReferenceEvaluator(model).run(None, {"x": x})
    codes = np.asarray(codes)
    small = codes.astype(np.int8) if codes.dtype.name in ("int4", "uint4") else codes.view(np.uint8)
    out |= {f"{key}.codes": codes if codes.dtype.name in ("int8", "uint8") else small, f"{key}.values": values}
    del model.graph.output[0]
    try:
        session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        got = session.run(["values"], {"x": x})[0]
    except Exception as error:
        return f"ONNX Runtime refuses: {str(error).splitlines()[0][:120]}"
    differing = int((got != values).sum() - (np.isnan(got) & np.isnan(values)).sum())
    if differing:
        out[f"{key}.ort_values"] = got
    return f"ONNX Runtime values differ in {differing}"


def onnx_qdq() -> None:
    """Write QuantizeLinear / DequantizeLinear of the reference evaluator and how ONNX Runtime compares."""
    out: Arrays = {}
    rules: dict[str, str] = {}
    for name, x in matrices("random", "zero_block", "ties", "odd").items():
        amax, rows = np.abs(x).max(), np.abs(x).max(1)
        rows = np.where(rows == 0, 1, rows).astype(np.float32)
        e4m3 = ml_dtypes.float8_e4m3fn
        cases: dict[str, tuple[int, np.ndarray, Any, dict[str, int]]] = {
            "int8_tensor": (TensorProto.INT8, np.float32(amax / 127), np.int8(0), {}),
            "uint8_tensor": (TensorProto.UINT8, np.float32((x.max() - x.min()) / 255), np.uint8(117), {}),
            "int8_channel": (
                TensorProto.INT8,
                (rows / 127).astype(np.float32),
                np.zeros(len(rows), np.int8),
                {"axis": 0},
            ),
            "fp8_tensor": (TensorProto.FLOAT8E4M3FN, np.float32(amax / 448), np.zeros((), e4m3), {}),
            "fp8_tensor_clipping": (TensorProto.FLOAT8E4M3FN, np.float32(amax / 1000), np.zeros((), e4m3), {}),
            "fp8_channel": (
                TensorProto.FLOAT8E4M3FN,
                (rows / 448).astype(np.float32),
                np.zeros(len(rows), e4m3),
                {"axis": 0},
            ),
        }
        if name != "odd":
            blocks = np.abs(x.reshape(x.shape[0], -1, 32)).max(-1)
            blocks = np.where(blocks == 0, 1, blocks).astype(np.float32)
            zero4 = np.full(blocks.shape, 3, ml_dtypes.int4)
            block = {"axis": 1, "block_size": 32}
            cases |= {
                "int4_blocks": (
                    TensorProto.INT4,
                    blocks / np.float32(7),
                    np.zeros(blocks.shape, ml_dtypes.int4),
                    block,
                ),
                "int4_blocks_zero_point": (TensorProto.INT4, blocks / np.float32(5), zero4, block),
                "uint4_blocks": (
                    TensorProto.UINT4,
                    blocks / np.float32(7),
                    np.full(blocks.shape, 8, ml_dtypes.uint4),
                    block,
                ),
                "fp4_blocks": (TensorProto.FLOAT4E2M1, blocks / np.float32(6), None, {**block, "axis": 1}),
                "fp8_blocks": (TensorProto.FLOAT8E4M3FN, blocks / np.float32(448), np.zeros(blocks.shape, e4m3), block),
            }
        for case, (kind, scale, zero, attributes) in cases.items():
            key = f"{name}.{case}"
            out[f"{key}.scale"] = np.asarray(scale)
            if zero is not None and np.asarray(zero).dtype.name.startswith(("int", "uint")):
                out[f"{key}.zero"] = np.asarray(zero).astype(np.int8 if case.startswith("int") else np.uint8)
            for opset in (21, 23, 25):
                if kind == TensorProto.FLOAT4E2M1 and opset < 23:
                    continue
                model = qdq_model(
                    kind, x.shape, np.asarray(scale), zero if zero is None else np.asarray(zero), attributes, opset
                )
                report = run_qdq(out, key, x, model)
                rules[f"{case}: {report}"] = rules.get(f"{case}: {report}", "") + f" {name}@{opset}"
        if name != "odd":
            rules[f"{name}.two_level"] = two_level(out, name, x)
    write("onnx_qdq", out, rules)


def two_level(out: Arrays, name: str, x: np.ndarray) -> str:
    """Check two DequantizeLinear nodes on ModelOpt's NVFP4 codes, against its own dequantization and ONNX Runtime."""
    tensor, scale, scale_2 = NVFP4QTensor.quantize(torch.tensor(x), 16)
    packed = plain(tensor._quantized_data)
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(x.shape).view(ml_dtypes.float4_e2m1fn)
    given = {"codes": codes, "scales": plain(scale).view(ml_dtypes.float8_e4m3fn), "global": scale_2.numpy()}
    tensors = [onnx.numpy_helper.from_array(value, key) for key, value in given.items()]
    nodes = [
        helper.make_node("DequantizeLinear", ["scales", "global"], ["s"]),
        helper.make_node("DequantizeLinear", ["codes", "s"], ["values"], axis=1, block_size=16),
    ]
    info = helper.make_tensor_value_info("values", 1, x.shape)
    graph = helper.make_graph(nodes, "two_level", [], [info], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    onnx.checker.check_model(model, full_check=True)
    values = ReferenceEvaluator(model).run(None, {})[0]
    own = tensor.dequantize(scale=scale, double_scale=scale_2, block_sizes={-1: 16}).numpy()
    np.testing.assert_array_equal(values, own)
    try:
        got = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {})[0]
    except Exception as error:
        return f"equal to ModelOpt; ONNX Runtime refuses: {str(error).splitlines()[0][:120]}"
    return f"equal to ModelOpt; ONNX Runtime differs in {int((got != values).sum())}"


def modelopt_fake(x: torch.Tensor, amax: Any = None, **settings: Any) -> torch.Tensor:
    """Return ModelOpt's fake quantization with a TensorQuantizer of these settings."""
    quantizer = TensorQuantizer(QuantizerAttributeConfig(**settings), amax=amax)
    return quantizer(x.clone())


def activations() -> None:
    """Write fake-quantized activations [tokens, channels]: static and dynamic int8, FP8, NVFP4, MXFP8."""
    out: Arrays = {}
    for name, x in matrices("random", "zero_block", "tiny_blocks", "ties", "odd").items():
        t = torch.tensor(x)
        amax = t.abs().max()
        for share in (1.0, 0.5):
            given = amax * share
            out[f"{name}.static_{share}.amax"] = given
            out[f"{name}.static_{share}.modelopt_int8"] = modelopt_fake(t, given, num_bits=8)
            out[f"{name}.static_{share}.modelopt_fp8"] = modelopt_fake(t, given, num_bits=(4, 3))
        out[f"{name}.token.modelopt_int8"] = modelopt_fake(t, num_bits=8, type="dynamic", axis=0)
        out[f"{name}.token.modelopt_fp8"] = modelopt_fake(t, num_bits=(4, 3), type="dynamic", axis=0)
        for kind in ("int", "float"):
            args = QuantizationArgs(num_bits=8, type=kind, strategy="token", symmetric=True, dynamic=True)
            scale, zero = compute_dynamic_scales_and_zp(t[None], args, torch.nn.Identity())
            key = f"{name}.token.compressed_tensors_{'int8' if kind == 'int' else 'fp8'}"
            out |= {f"{key}.scale": scale.reshape(-1), key: fake_quantize(t[None].clone(), scale, zero, args)[0]}
        graph = helper.make_graph(
            [helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])],
            "dynamic",
            [helper.make_tensor_value_info("x", 1, x.shape)],
            [helper.make_tensor_value_info(n, k, None) for n, k in (("y", 2), ("s", 1), ("z", 2))],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        codes, scale, zero = ReferenceEvaluator(model).run(None, {"x": x})
        out |= {
            f"{name}.dynamic_uint8.codes": codes,
            f"{name}.dynamic_uint8.scale": scale,
            f"{name}.dynamic_uint8.zero": zero,
        }
        session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        for ours, theirs in zip((codes, scale, zero), session.run(None, {"x": x}), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    write("activations", out)
