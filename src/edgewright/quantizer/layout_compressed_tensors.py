"""The compressed-tensors layout as it is written; its reader in `checkpoint.layouts` says what is where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgewright.checkpoint.layouts.bits import dense_words, pack_words
from edgewright.checkpoint.safetensors_writer import TensorSpec, array_spec
from edgewright.checkpoint.tensor import StoredTensor
from edgewright.formats import (
    ActivationFormat,
    Array,
    BlockFormat,
    IntFormat,
    MxFormat,
    Nvfp4Format,
    ScaledFormat,
    unpack,
)
from edgewright.formats.cache import KVFormat
from edgewright.quantizer.layout_parts import Written, by_rows, codes_of, copied, distinct, floats, small

#: The version of the layout that is written.
VERSION = "0.19.0"
_ARGS: dict[str, Any] = {
    "actorder": None,
    "block_structure": None,
    "dynamic": False,
    "group_size": None,
    "num_bits": 8,
    "observer": None,
    "observer_kwargs": {},
    "scale_dtype": None,
    "strategy": "tensor",
    "symmetric": True,
    "type": "float",
    "zp_dtype": None,
}
_FP8, _U8 = "torch.float8_e4m3fn", "torch.uint8"


class _Layout:
    def refuses(
        self, fmt: BlockFormat, activation: ActivationFormat | None, shape: tuple[int, int], *, multiply: bool
    ) -> str | None:
        if multiply:
            return "it can't multiply inputs, and nothing before them takes the factors"
        if isinstance(fmt, ScaledFormat) and (
            fmt.scope == "row-block" or (fmt.element, fmt.scope) == ("int8", "block")
        ):
            return "it has no such blocks"
        if isinstance(fmt, IntFormat | Nvfp4Format | MxFormat) and shape[1] % fmt.columns:
            return f"its {shape[1]} inputs don't fill blocks of {fmt.columns}"
        if activation is None:
            return None
        if activation.name == "nvfp4" and not activation.static:
            return "NVFP4 inputs need a fixed global scale there"
        return None

    def refuses_cache(self, fmt: KVFormat) -> str | None:
        return None if fmt.per == "tensor" else "scales per head are stored differently from version to version"

    def tensors(self, module: Written) -> dict[str, TensorSpec]:
        fmt, name = module.format, module.name
        found = _integers(module) if isinstance(fmt, IntFormat) else _floats(module)
        if "scale" in module.inputs:
            scale = floats(module.inputs["scale"])
            assert module.activation is not None
            if module.activation.name == "nvfp4":
                found["input_global_scale"] = small(np.float32(1) / scale, "float32", (1,))
            else:
                found["input_scale"] = small(scale, "float32", (1,))
        if "zero_point" in module.inputs:
            found["input_zero_point"] = small(module.inputs["zero_point"].read(), "int8", (1,))
        return {f"{name}.{suffix}": spec for suffix, spec in found.items()}

    def cache(self, attention: str, key: StoredTensor, value: StoredTensor) -> dict[str, TensorSpec]:
        return {f"{attention}.{side}_scale": copied(tensor) for side, tensor in (("k", key), ("v", value))}

    def config(
        self, modules: Sequence[Written], plain: Sequence[str], kv: KVFormat | None
    ) -> tuple[dict[str, Any], dict[str, bytes]]:
        schemes = distinct(_scheme(module) for module in modules)
        targets = [[module.name for module in modules if _scheme(module) == scheme] for scheme in schemes]
        groups = {
            f"group_{i}": {**scheme, "targets": ["Linear"] if len(schemes) == 1 else names}
            for i, (scheme, names) in enumerate(zip(schemes, targets, strict=True))
        }
        formats = distinct(scheme["format"] for scheme in schemes)
        scheme = None
        if kv is not None:
            scheme = {**_ARGS, "type": "int" if kv.dtype == "int8" else "float"}
        entry = {
            "config_groups": groups,
            "format": formats[0] if len(formats) == 1 else "mixed-precision",
            "global_compression_ratio": None,
            "ignore": [name for name in plain if not name.endswith("embed_tokens")],
            "kv_cache_scheme": scheme,
            "quant_method": "compressed-tensors",
            "quantization_status": "compressed",
            "sparsity_config": {},
            "transform_config": {},
            "version": VERSION,
        }
        return entry, {}


def _integers(module: Written) -> dict[str, TensorSpec]:
    fmt = module.format
    assert isinstance(fmt, IntFormat)
    rows, width = module.shape
    codes = codes_of(module)
    found = {
        "weight_packed": by_rows(
            "int32",
            (rows, dense_words(width, fmt.bits)),
            rows,
            width,
            lambda a, b: pack_words(codes(a, b), fmt.bits),
        ),
        "weight_scale": copied(module.parts["scales"]),
        "weight_shape": small([rows, width], "int64"),
    }
    if fmt.zero_point:
        zeros: Array = unpack(module.parts["zero_points"].read(), fmt.bits)[:, : fmt.blocks(width)]
        found["weight_zero_point"] = array_spec(np.ascontiguousarray(pack_words(zeros.T, fmt.bits).T))
    return found


def _floats(module: Written) -> dict[str, TensorSpec]:
    fmt, parts = module.format, module.parts
    codes, scales = parts["codes"], parts["scales"]
    if isinstance(fmt, Nvfp4Format):
        whole = np.float32(1) / floats(parts["global_scale"])
        return {
            "weight_packed": copied(codes),
            "weight_scale": copied(scales),
            "weight_global_scale": small(whole, "float32", (1,)),
        }
    if isinstance(fmt, MxFormat):
        name = "weight" if fmt.element == "e4m3" else "weight_packed"
        return {name: copied(codes), "weight_scale": copied(scales, "uint8")}
    return {"weight": copied(codes), "weight_scale": copied(scales)}


def _scheme(module: Written) -> dict[str, Any]:
    weights, label = _weights(module.format, module.activation is not None)
    inputs = None if module.activation is None else _inputs(module.activation)
    return {"format": label, "input_activations": inputs, "output_activations": None, "weights": weights}


def _weights(fmt: BlockFormat, rounded_inputs: bool) -> tuple[dict[str, Any], str]:
    if isinstance(fmt, IntFormat):
        args = {**_ARGS, "type": "int", "num_bits": fmt.bits, "strategy": "group", "group_size": fmt.group}
        zero = {"symmetric": False, "zp_dtype": "torch.int8"} if fmt.zero_point else {}
        return {**args, **zero}, "pack-quantized"
    if isinstance(fmt, ScaledFormat):
        blocks = {"block_structure": [128, 128]} if fmt.scope == "block" else {}
        args = {**_ARGS, **blocks, "type": "int" if fmt.element == "int8" else "float", "strategy": fmt.scope}
        return args, "int-quantized" if fmt.element == "int8" else "float-quantized"
    if isinstance(fmt, Nvfp4Format):
        narrow = {"num_bits": 4, "strategy": "tensor_group", "group_size": 16, "scale_dtype": _FP8}
        return {**_ARGS, **narrow}, "nvfp4-pack-quantized"
    assert isinstance(fmt, MxFormat)
    bits = fmt.number.bits
    args = {**_ARGS, "num_bits": bits, "strategy": "group", "group_size": 32, "scale_dtype": _U8}
    return args, "mxfp4-pack-quantized" if bits == 4 else "mxfp8-quantized"


def _inputs(activation: ActivationFormat) -> dict[str, Any]:
    name = activation.name
    if name == "nvfp4":
        narrow = {"num_bits": 4, "strategy": "tensor_group", "group_size": 16, "scale_dtype": _FP8}
        return {**_ARGS, **narrow, "dynamic": "local"}
    if name in ("mxfp4", "mxfp8"):
        bits = int(name.removeprefix("mxfp"))
        args = {"num_bits": bits, "strategy": "group", "group_size": 32, "scale_dtype": _U8, "dynamic": True}
        return {**_ARGS, **args}
    kind = {"num_bits": 4 if name == "int4" else 8, "type": "float" if name == "fp8" else "int"}
    zero = {} if activation.symmetric else {"symmetric": False, "zp_dtype": "torch.int8"}
    return {**_ARGS, **kind, **zero, "dynamic": not activation.static, "strategy": activation.scope}


LAYOUT = _Layout()
