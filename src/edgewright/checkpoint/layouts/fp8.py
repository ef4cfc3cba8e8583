"""The FP8 layout of DeepSeek, Qwen and transformers: E4M3 weights with a scale per block of 128 x 128, or one each.

Per quantized module: `weight` float8_e4m3fn `[rows, width]`; `weight_scale_inv`, the factor in spite of its name,
`[ceil(rows / 128), ceil(width / 128)]`, or one number (also `weight_scale`); `activation_scale` or `input_scale`, one
number, where inputs have a static scale. value = weight * scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgewright.checkpoint.encoded import EncodedTensor
from edgewright.checkpoint.layouts.listed import choice, left_out, need_converted
from edgewright.checkpoint.layouts.modules import Modules, needs_untying
from edgewright.checkpoint.layouts.quantization import Quantization
from edgewright.checkpoint.layouts.weights import FLOATS, need_matrix, scalar, scale_rows, scaled_weight
from edgewright.checkpoint.tensor import StoredTensor
from edgewright.errors import CheckpointError, UnsupportedFormatError
from edgewright.formats import ActivationFormat, LinearInput

LAYOUT = "FP8"
_CODES = "float8_e4m3fn"
_WEIGHT_SCALES = ("weight_scale_inv", "weight_scale")
_INPUT_SCALES = ("activation_scale", "input_scale")
_SUFFIXES = (*_WEIGHT_SCALES, *_INPUT_SCALES, "k_scale", "v_scale")
_SCALE_DTYPES = (*FLOATS, "float8_e8m0fnu")
_STATIC = ActivationFormat("fp8", static=True)
_TAKE = "take the unquantized checkpoint."


def read(
    config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]
) -> tuple[dict[str, StoredTensor], Quantization]:
    """Read a checkpoint of `quant_method` fp8; see `Reader`."""
    scope, static = _settings(config)
    listed = left_out(config, LAYOUT, "modules_to_not_convert", "ignored_layers")
    modules = Modules(tensors, LAYOUT, _SUFFIXES)
    stored = [name for name, tensor in tensors.items() if tensor.dtype == _CODES and name.endswith(".weight")]
    if odd := [n for n, t in tensors.items() if t.dtype == _CODES and n not in stored]:
        raise UnsupportedFormatError(
            f"The {LAYOUT} checkpoint holds {odd[0]}, which isn't the weight of a linear and can't be read: {_TAKE}"
        )
    for name in stored:
        module = name.removesuffix(".weight")
        need_converted(module, listed, LAYOUT)
        modules.result[name] = _weight(modules, tensors, module, scope, static=static)
    if not stored:
        raise CheckpointError(f"The config says that the checkpoint holds {LAYOUT} weights, but it has none.")
    modules.finish()
    note = "the tool rounds inputs to FP8 as they come; here they stay floats"
    label = "block 128" if scope == "block" else scope
    return modules.result, Quantization(
        f"fp8 ({label}{', static inputs' if static else ''})",
        untied=needs_untying(modules.result),
        notes=() if static else (note,),
    )


def _settings(config: Mapping[str, Any]) -> tuple[str, bool]:
    """Return who shares a scale, and whether inputs have static scales. Raises UnsupportedFormatError."""
    number, scheme = choice(config, "fmt", "e4m3"), choice(config, "activation_scheme", "dynamic")
    if number != "e4m3" or scheme not in ("dynamic", "static"):
        raise UnsupportedFormatError(
            f"The {LAYOUT} checkpoint has weights of {number!r} and inputs of the scheme {scheme!r}, where only e4m3 "
            f"with dynamic or static can be read: {_TAKE}"
        )
    block = config.get("weight_block_size")
    if block not in (None, [128, 128]):
        raise UnsupportedFormatError(
            f"The {LAYOUT} checkpoint has scales for blocks of {block!r}, of which only [128, 128] can be read: {_TAKE}"
        )
    return ("tensor" if block is None else "block"), scheme == "static"


def _weight(
    modules: Modules, tensors: Mapping[str, StoredTensor], module: str, scope: str, *, static: bool
) -> EncodedTensor:
    codes = modules.take(f"{module}.weight", _CODES)
    rows, width = need_matrix(codes)
    spelled = [kind for kind in _WEIGHT_SCALES if f"{module}.{kind}" in tensors]
    scale = modules.take(f"{module}.{spelled[0] if spelled else _WEIGHT_SCALES[0]}", _SCALE_DTYPES)
    given = None
    if static:
        spelled = [kind for kind in _INPUT_SCALES if f"{module}.{kind}" in tensors]
        factor = modules.take(f"{module}.{spelled[0] if spelled else _INPUT_SCALES[0]}", FLOATS)
        given = LinearInput(activation=_STATIC, scale=scalar(factor))
    return scaled_weight(
        codes, "e4m3", scope, scale_rows(scale, scope, rows, width), parts=(codes, scale), linear_input=given
    )
