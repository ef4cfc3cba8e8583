"""ModelOpt's layout as it is written; the reader of `checkpoint.layouts.modelopt` says what is where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgewright._version import __version__
from edgewright.checkpoint.safetensors_writer import TensorSpec
from edgewright.checkpoint.tensor import StoredTensor
from edgewright.files import canonical_json
from edgewright.formats import ActivationFormat, Array, BlockFormat, IntFormat, MxFormat, Nvfp4Format, ScaledFormat
from edgewright.formats.cache import KVFormat
from edgewright.quantizer.layout_parts import Written, by_rows, codes_of, copied, distinct, floats, small

#: The version of the layout that is written.
VERSION = "0.47.0"
MIXED = "MIXED_PRECISION"
#: Algorithms by format of the weights and label of the inputs' format.
_ALGORITHMS = {
    ("fp8 tensor", "fp8 static tensor"): "FP8",
    ("fp8 channel", "fp8 dynamic token"): "FP8_PER_CHANNEL_PER_TOKEN",
    ("fp8 block 128", None): "FP8_PB_WO",
    ("int8 channel", None): "W8A16",
    ("int8 channel", "int8 static tensor"): "W8A8_SQ_PER_CHANNEL",
    ("nvfp4", None): "W4A16_NVFP4",
    ("nvfp4", "nvfp4 static block"): "NVFP4",
    ("mxfp8", "mxfp8 dynamic block"): "MXFP8",
    ("mxfp4", None): "mxfp4",
}
#: What those spell differently that have factors for their inputs.
_WITH_FACTORS = {"NVFP4": "NVFP4_AWQ", "W4A16_AWQ": "W4A16_AWQ", "W8A8_SQ_PER_CHANNEL": "W8A8_SQ_PER_CHANNEL"}
_GROUPS = {"NVFP4": 16, "W4A16_NVFP4": 16, "NVFP4_AWQ": 16, "MXFP8": 32}
#: Algorithms that the config describes by groups as well: bits, group, and whether inputs are rounded.
_DESCRIBED = {"FP8": (8, None, True), "NVFP4": (4, 16, True), "W4A16_NVFP4": (4, 16, False)}


def algorithm_of(fmt: BlockFormat, activation: ActivationFormat | None, *, multiply: bool) -> str | None:
    """Return the algorithm that stands for a format, or None where there is none."""
    if isinstance(fmt, IntFormat):
        fits = fmt.bits == 4 and not fmt.zero_point and activation is None
        name = "W4A16_AWQ" if fits else None
    else:
        name = _ALGORITHMS.get((fmt.label, None if activation is None else activation.label))
    return _WITH_FACTORS.get(name or "") if multiply else name


class _Layout:
    def refuses(
        self, fmt: BlockFormat, activation: ActivationFormat | None, shape: tuple[int, int], *, multiply: bool
    ) -> str | None:
        if algorithm_of(fmt, activation, multiply=multiply) is None:
            return "no algorithm of it has such weights" + (" with factors for their inputs" if multiply else "")
        rows, width = shape
        if isinstance(fmt, IntFormat) and (rows % 2 or width % fmt.group):
            return f"{rows} rows of {width} don't fill pairs of rows and blocks of {fmt.group}"
        if isinstance(fmt, Nvfp4Format | MxFormat) and width % fmt.columns:
            return f"its {width} inputs don't fill blocks of {fmt.columns}"
        return None

    def refuses_cache(self, fmt: KVFormat) -> str | None:
        return None if (fmt.dtype, fmt.per) == ("float8_e4m3", "tensor") else "it has FP8 with one scale a layer only"

    def tensors(self, module: Written) -> dict[str, TensorSpec]:
        fmt, parts = module.format, module.parts
        if isinstance(fmt, IntFormat):
            scale = by_rows(
                "float32",
                (module.shape[0], fmt.blocks(module.shape[1])),
                module.shape[0],
                4 * fmt.blocks(module.shape[1]),
                parts["scales"].rows,
            )
            found = {"weight": _pairs(module), "weight_scale": scale}
        else:
            found = {"weight": copied(parts["codes"]), "weight_scale": _scale(module)}
        if isinstance(fmt, Nvfp4Format):
            found["weight_scale_2"] = small(floats(parts["global_scale"]), "float32", ())
        if "scale" in module.inputs:
            found["input_scale"] = small(floats(module.inputs["scale"]), "float32", ())
        if "multiply" in module.inputs:
            found["pre_quant_scale"] = copied(module.inputs["multiply"])
        return {f"{module.name}.{suffix}": spec for suffix, spec in found.items()}

    def cache(self, attention: str, key: StoredTensor, value: StoredTensor) -> dict[str, TensorSpec]:
        return {
            f"{attention}.{side}_proj.{side}_scale": small(floats(tensor), "float32", ())
            for side, tensor in (("k", key), ("v", value))
        }

    def config(
        self, modules: Sequence[Written], plain: Sequence[str], kv: KVFormat | None
    ) -> tuple[dict[str, Any], dict[str, bytes]]:
        described = [_described(module) for module in modules]
        producer = {"name": "modelopt", "version": VERSION, "edgewright": __version__}
        cache = None if kv is None else "FP8"
        one = len(distinct(described)) == 1
        if one:
            inner: dict[str, Any] = {**described[0], "exclude_modules": list(plain)}
            layers = {}
        else:
            layers = {module.name: entry for module, entry in zip(modules, described, strict=True)}
            inner = {"quant_algo": MIXED, "quantized_layers": layers}
        inner["kv_cache_quant_algo"] = cache
        entry: dict[str, Any] = {
            "quant_method": "modelopt",
            "quant_algo": inner["quant_algo"],
            "producer": producer,
            "ignore": list(plain),
        }
        groups = _groups(modules, described)
        if groups is not None:
            entry["config_groups"] = groups
        if layers:
            entry["quantized_layers"] = layers
        if kv is not None:
            entry["kv_cache_scheme"] = {"dynamic": False, "num_bits": 8, "type": "float"}
        return entry, {"hf_quant_config.json": canonical_json({"producer": producer, "quantization": inner})}


def _described(module: Written) -> dict[str, Any]:
    """Return what the config says of a module."""
    name = algorithm_of(module.format, module.activation, multiply="multiply" in module.inputs)
    assert name is not None
    entry: dict[str, Any] = {"quant_algo": name}
    if isinstance(module.format, IntFormat):
        return {**entry, "group_size": module.format.group, "has_zero_point": False, "pre_quant_scale": True}
    return {**entry, "group_size": _GROUPS[name]} if name in _GROUPS else entry


def _groups(modules: Sequence[Written], described: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the config groups where all algorithms have some."""
    names = distinct(entry["quant_algo"] for entry in described)
    if not all(name in _DESCRIBED for name in names):
        return None
    groups = {}
    for index, name in enumerate(names):
        bits, size, inputs = _DESCRIBED[name]
        args: dict[str, Any] = {"dynamic": False, "num_bits": bits, "type": "float"}
        args |= {} if size is None else {"group_size": size}
        own = [m.name for m, entry in zip(modules, described, strict=True) if entry["quant_algo"] == name]
        targets = ["Linear"] if len(names) == 1 else own
        groups[f"group_{index}"] = {"weights": args, "targets": targets} | (
            {"input_activations": args} if inputs else {}
        )
    return groups


def _pairs(module: Written) -> TensorSpec:
    """Return 4-bit codes as signed numbers, row 2r in the low and row 2r + 1 in the high half of a byte."""
    rows, width = module.shape
    codes = codes_of(module)

    def make(start: int, stop: int) -> Array:
        signed = codes(start, stop) ^ np.uint8(8)
        paired: Array = signed[0::2] | (signed[1::2] << np.uint8(4))
        return paired

    return by_rows("uint8", (rows // 2, width), rows, width, make, multiple=2)


def _scale(module: Written) -> TensorSpec:
    fmt, scales = module.format, module.parts["scales"]
    if isinstance(fmt, MxFormat):
        return copied(scales, "uint8")
    if not isinstance(fmt, ScaledFormat):
        return copied(scales)
    tall, wide = scales.shape[0], scales.shape[-1]
    squeezed = {"tensor": (), "channel": (tall,), "block": () if tall == wide == 1 else (tall, 1, wide, 1)}
    return copied(scales, shape=squeezed[fmt.scope])


LAYOUT = _Layout()
