"""Golden files of make_formats.py for int8 and int4 groups."""

import numpy as np
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils import calculate_qparams
from format_common import Arrays, write
from format_matrices import matrices
from modelopt.torch.quantization.qtensor import INT8QTensor
from onnxruntime.capi import _pybind_state as ort_kernels


def ort_int4(x: np.ndarray, group: int, symmetric: bool) -> Arrays:
    """Return what the quantizer of MatMulNBits makes of W [N, K], checked against its rule; nibbles unpacked."""
    rows, columns = x.shape
    groups = -(-columns // group)
    padded = np.pad(x, ((0, 0), (0, groups * group - columns)))
    packed = np.zeros((rows, groups, group // 2), np.uint8)
    zeros = np.zeros((rows, (groups + 1) // 2), np.uint8)
    scales = np.zeros((rows, groups), np.float32)
    weight = np.ascontiguousarray(padded.T)
    ort_kernels.quantize_matmul_4bits(packed, weight, scales, zeros, group, rows, columns, symmetric)
    unpacked = np.stack([packed & 15, packed >> 4], -1).reshape(rows, -1)[:, :columns]
    zero = np.stack([zeros & 15, zeros >> 4], -1).reshape(rows, -1)[:, :groups]
    zero = np.full_like(zero, 8) if symmetric else zero
    blocks = padded.reshape(rows, groups, group)
    if symmetric:
        low, high = blocks.min(-1), blocks.max(-1)
        scale = np.where(np.abs(high) > np.abs(low), high, low) / np.float32(-8)
    else:
        low, high = np.minimum(blocks.min(-1), 0), np.maximum(blocks.max(-1), 0)
        scale = (high - low) / np.float32(15)
    np.testing.assert_array_equal(scale, scales)
    with np.errstate(all="ignore"):
        inverse = np.where(scale != 0, np.float32(1) / scale, np.float32(0)).astype(np.float32)
        if not symmetric:
            wanted = np.where(scale != 0, np.clip(np.floor(-low / scale + np.float32(0.5)), 0, 15), 0)
            np.testing.assert_array_equal(wanted, zero)
    rule = np.clip(np.floor(blocks * inverse[..., None] + zero[..., None] + np.float32(0.5)), 0, 15)
    np.testing.assert_array_equal(rule.reshape(rows, -1)[:, :columns], unpacked)
    wide_zero, wide_scale = (np.repeat(part, group, 1)[:, :columns] for part in (zero, scales))
    values = (unpacked.astype(np.float32) - wide_zero) * wide_scale
    return {"codes": unpacked, "scale": scales, "zero": zero, "values": values.astype(np.float32)}


def integers() -> None:
    """Write int8 of ModelOpt, int4 groups of ONNX Runtime and compressed-tensors."""
    out: Arrays = {}
    for name, x in matrices("outliers", "zero_block", "groups", "one_sign", "int_ties", "odd").items():
        t = torch.tensor(x)
        for kind, axis in (("tensor", None), ("channel", 0)):
            tensor, scale = INT8QTensor.quantize(t.clone(), axis=axis)
            out |= {f"{name}.modelopt_int8_{kind}.codes": tensor._quantized_data.to(torch.int8)}
            out |= {f"{name}.modelopt_int8_{kind}.scale": scale}
        for group in (32, 64, 128):
            if (x.shape[1] < group and name != "odd") or (group == 64 and name != "groups"):
                continue
            for symmetric in (True, False):
                arrays = ort_int4(x, group, symmetric)
                key = f"{name}.ort_int4_g{group}_{'sym' if symmetric else 'asym'}"
                out |= {
                    f"{key}.{what}": value for what, value in arrays.items() if what != "values" or name == "groups"
                }
                if x.shape[1] % group == 0:
                    compressed_tensors_int4(out, name, t, group, symmetric)
    write("integers", out)


def compressed_tensors_int4(out: Arrays, name: str, t: torch.Tensor, group: int, symmetric: bool) -> None:
    """Add codes, scales and zero points of compressed-tensors' int4 groups."""
    args = QuantizationArgs(num_bits=4, type="int", strategy="group", group_size=group, symmetric=symmetric)
    low, high = torch.aminmax(t.unflatten(-1, (-1, group)), dim=-1)
    scale, zero = calculate_qparams(low, high, args)
    key = f"{name}.compressed_tensors_int4_g{group}_{'sym' if symmetric else 'asym'}"
    out |= {f"{key}.codes": quantize(t.clone(), scale, zero, args, dtype=torch.int8), f"{key}.scale": scale}
    out[f"{key}.zero"] = zero.to(torch.int8)
