"""Golden files of make_formats.py for E4M3, E2M1, E8M0, NVFP4, MXFP4, MXFP8 and FP8."""

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import fake_quantize, quantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from format_common import Arrays, plain, write
from format_matrices import cast_inputs, matrices
from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP4QTensor, MXFP8QTensor, NVFP4QTensor

SMALL = ("random", "outliers", "zero_block", "tiny_blocks", "odd")


def codes() -> None:
    """Write every code with its value, and casts of the same float32 inputs by torch, ml_dtypes and onnx."""
    every = np.arange(256, dtype=np.uint8)
    x = cast_inputs()
    t = torch.tensor(x)
    e4m3, e2m1, e8m0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e8m0fnu
    out: Arrays = {
        "e4m3.values": every.view(e4m3).astype(np.float32),
        "e2m1.values": every[:16].view(e2m1).astype(np.float32),
        "e8m0.values": every.view(e8m0).astype(np.float32),
        "cast.inputs": x,
        "cast.e4m3.ml_dtypes": x.astype(e4m3).view(np.uint8),
        "cast.e4m3.torch": t.to(torch.float8_e4m3fn),
        "cast.e4m3.onnx_saturate": onnx.numpy_helper.saturate_cast(x, e4m3).view(np.uint8),
        "cast.e2m1.ml_dtypes": x.astype(e2m1).view(np.uint8),
        "cast.e8m0.ml_dtypes": x.astype(e8m0).view(np.uint8),
        "cast.e8m0.torch": t.to(torch.float8_e8m0fnu),
    }
    torch_values = torch.tensor(every).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(torch_values, out["e4m3.values"])
    np.testing.assert_array_equal(torch.tensor(every).view(torch.float8_e8m0fnu).float().numpy(), out["e8m0.values"])
    write("codes", out)


def nvfp4_numpy(x: np.ndarray, scale_2: np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Return (E2M1 codes, E4M3 scale codes) by the rule stated for ModelOpt in nvfp4()."""
    blocks = x.reshape(x.shape[0], -1, 16)
    amax = np.abs(blocks).max(-1)
    with np.errstate(all="ignore"):
        scale = amax / (np.float32(6) * scale_2)
    scale = np.clip(np.where(scale == 0, np.float32(1), scale), np.float32(2**-9), np.float32(448))
    coded = scale.astype(ml_dtypes.float8_e4m3fn)
    divided = blocks / (coded.astype(np.float32) * scale_2)[..., None]
    elements = divided.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    elements = np.where((elements == 8) & ~(divided < 0), 0, elements)
    return elements.reshape(x.shape), coded.view(np.uint8)


def nvfp4() -> None:
    """Write ModelOpt's and compressed-tensors' NVFP4, also with a global scale that makes block scales overflow."""
    out: Arrays = {}
    args = QuantizationArgs(
        num_bits=4,
        type="float",
        strategy="tensor_group",
        group_size=16,
        symmetric=True,
        scale_dtype=torch.float8_e4m3fn,
    )
    for name, x in matrices(*SMALL, "ties", "boundary").items():
        if name == "odd":
            continue
        t = torch.tensor(x)
        for suffix, share in (("", 1.0), ("_small_global", 0.125)):
            scale_2 = NVFP4QTensor.get_weights_scaling_factor_2(t) * share
            tensor, scale, scale_2 = NVFP4QTensor.quantize(t.clone(), 16, None, scale_2)
            key = f"{name}.modelopt{suffix}"
            out |= {f"{key}.packed": tensor._quantized_data, f"{key}.scale": scale, f"{key}.scale_2": scale_2}
            out[f"{key}.values"] = tensor.dequantize(scale=scale, double_scale=scale_2, block_sizes={-1: 16})
            elements, coded = nvfp4_numpy(x, np.float32(scale_2.numpy()))
            np.testing.assert_array_equal(plain(scale), coded)
            np.testing.assert_array_equal(plain(tensor._quantized_data), elements[:, 1::2] << 4 | elements[:, ::2])
        low, high = torch.aminmax(t.unflatten(-1, (-1, 16)), dim=-1)
        gparam = generate_gparam(t.min(), t.max())
        scale, zero = calculate_qparams(low, high, args, global_scale=gparam)
        key = f"{name}.compressed_tensors"
        elements = quantize(t.clone(), scale, zero, args, global_scale=gparam)
        out |= {
            f"{key}.codes": elements.numpy().astype(ml_dtypes.float4_e2m1fn).view(np.uint8),
            f"{key}.scale": scale.to(torch.float8_e4m3fn),
            f"{key}.global_scale": gparam,
        }
        out[f"{key}.values"] = fake_quantize(t.clone(), scale, zero, args, global_scale=gparam)
    write("nvfp4", out)


def mx_numpy(x: np.ndarray, top: float) -> np.ndarray:
    """Return E8M0 codes by ModelOpt's rule ceil(log2(amax / top))."""
    amax = np.abs(x.reshape(x.shape[0], -1, 32)).max(-1)
    with np.errstate(divide="ignore"):
        exponent = np.ceil(np.maximum(np.log2(amax / np.float32(top)), np.float32(-127)))
    return (exponent + 127).astype(np.uint8)


def mx() -> None:
    """Write MXFP4 and MXFP8 of ModelOpt and compressed-tensors, whose exponent rules differ."""
    out: Arrays = {}
    for name, x in matrices(*SMALL, "ties", "boundary").items():
        t = torch.tensor(x)
        tensor8, scale8 = MXFP8QTensor.quantize(t.clone())
        key = f"{name}.modelopt_mxfp8"
        out |= {f"{key}.codes": tensor8._quantized_data, f"{key}.scale": scale8}
        out[f"{key}.values"] = tensor8.dequantize(scale=scale8)
        if name == "odd":  # MXFP4 of neither tool takes a short block
            continue
        np.testing.assert_array_equal(plain(scale8), mx_numpy(x, 448.0))
        tensor, scale = MXFP4QTensor.quantize(t.clone(), 32)
        scale = scale.reshape(x.shape[0], -1)
        np.testing.assert_array_equal(plain(scale), mx_numpy(x, 6.0))
        key = f"{name}.modelopt_mxfp4"
        out |= {f"{key}.packed": tensor._quantized_data, f"{key}.scale": scale}
        out[f"{key}.values"] = tensor.dequantize(scale=scale, block_sizes={-1: 32})
        for bits in (4, 8):
            compressed_tensors_mx(out, name, t, bits)
    write("mx", out)


def compressed_tensors_mx(out: Arrays, name: str, t: torch.Tensor, bits: int) -> None:
    """Add the scales and the fake-quantized values of compressed-tensors' MX format."""
    args = QuantizationArgs(
        num_bits=bits, type="float", strategy="group", group_size=32, symmetric=True, scale_dtype=torch.uint8
    )
    low, high = torch.aminmax(t.unflatten(-1, (-1, 32)), dim=-1)
    scale, zero = calculate_qparams(low, high, args)
    key = f"{name}.compressed_tensors_mxfp{bits}"
    out[f"{key}.scale"] = scale.float()
    out[f"{key}.values"] = fake_quantize(t.clone(), scale, zero, args)


def fp8() -> None:
    """Write FP8 E4M3 per tensor, per row, per block of 128 x 128 and per row block of 128."""
    out: Arrays = {}
    only = {"row_blocks": ("outliers", "odd"), "blocks": ("block",)}
    kinds: dict[str, tuple[Any, Any]] = {
        "tensor": (None, None),
        "channel": (0, None),
        "row_blocks": (None, {-1: 128}),
        "blocks": (None, {-1: 128, -2: 128}),
    }
    for name, x in matrices(*SMALL, "block").items():
        t = torch.tensor(x)
        for kind, (axis, sizes) in kinds.items():
            if name not in only.get(kind, SMALL):
                continue
            tensor, scale = FP8QTensor.quantize(t.clone(), axis=axis, block_sizes=sizes)
            key = f"{name}.modelopt_{kind}"
            out |= {f"{key}.codes": tensor._quantized_data, f"{key}.scale": scale}
            values = tensor.dequantize(scale=scale, **({"block_sizes": sizes} if sizes else {}))
            out[f"{key}.values"] = values if name != "block" else values[126:]
            wide = np.asarray(scale)
            for dim, size in (sizes or {}).items():
                wide = np.repeat(wide, size, axis=dim)
            wide = wide[: x.shape[0], : x.shape[1]] if wide.ndim == 2 else wide
            with np.errstate(all="ignore"):
                expected = (x / wide).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
            np.testing.assert_array_equal(plain(tensor._quantized_data)[x != 0], expected[x != 0])
        if name != "block":
            for strategy in ("tensor", "channel"):
                args = QuantizationArgs(num_bits=8, type="float", strategy=strategy, symmetric=True)
                low, high = (t.min(), t.max()) if strategy == "tensor" else torch.aminmax(t, dim=1, keepdim=True)
                scale, zero = calculate_qparams(low, high, args)
                key = f"{name}.compressed_tensors_{strategy}"
                out |= {
                    f"{key}.codes": quantize(t.clone(), scale, zero, args, dtype=torch.float8_e4m3fn),
                    f"{key}.scale": scale,
                }
    write("fp8", out)
