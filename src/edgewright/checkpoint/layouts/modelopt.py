"""The layout of NVIDIA ModelOpt's Hugging Face export: FP8, INT8, INT4 AWQ, NVFP4, MXFP8, MXFP4, and mixtures of them.

Per quantized module: `weight` and `weight_scale`, and by algorithm `weight_scale_2`, `input_scale`, `pre_quant_scale`;
`k_proj.k_scale` and `v_proj.v_scale` for the cache. INT4 codes are signed, two rows to a byte. The algorithm stands in
`hf_quant_config.json`, in config.json or in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgewright.checkpoint.encoded import EncodedTensor
from edgewright.checkpoint.layouts.modules import Modules, cache_scales, needs_untying
from edgewright.checkpoint.layouts.names import PatternList
from edgewright.checkpoint.layouts.quantization import Quantization
from edgewright.checkpoint.layouts.weights import (
    E8M0_DTYPES,
    FLOATS,
    int_weight,
    json_int,
    mx_weight,
    need_matrix,
    need_shape,
    nvfp4_weight,
    scalar,
    scale_rows,
    scaled_weight,
    stored_array,
)
from edgewright.checkpoint.tensor import StoredTensor
from edgewright.errors import CheckpointError, UnsupportedFormatError
from edgewright.formats import ActivationFormat, Array, LinearInput

LAYOUT = "ModelOpt"
#: Algorithms: how weights are stored, and what inputs are rounded to.
_FP8_STATIC = ActivationFormat("fp8", static=True)
_NVFP4 = ActivationFormat("nvfp4", static=True, scope="block")
ALGORITHMS: dict[str, tuple[str, ActivationFormat | None]] = {
    "FP8": ("fp8 tensor", _FP8_STATIC),
    "FP8_PER_CHANNEL_PER_TOKEN": ("fp8 channel", ActivationFormat("fp8", static=False, scope="token")),
    "FP8_PB_WO": ("fp8 block", None),
    "W8A16": ("int8", None),
    "W8A8_SQ_PER_CHANNEL": ("int8", ActivationFormat("int8", static=True)),
    "INT8_SQ": ("int8", ActivationFormat("int8", static=True)),
    "W4A16_AWQ": ("int4", None),
    "W4A8_AWQ": ("int4", _FP8_STATIC),
    "NVFP4": ("nvfp4", _NVFP4),
    "NVFP4_AWQ": ("nvfp4", _NVFP4),
    "W4A16_NVFP4": ("nvfp4", None),
    "MXFP8": ("mxfp8", ActivationFormat("mxfp8", static=False, scope="block")),
    "MXFP4": ("mxfp4", None),
}
MIXED = "MIXED_PRECISION"
_SUFFIXES = (
    "weight_scale",
    "weight_scale_2",
    "input_scale",
    "pre_quant_scale",
    "k_scale",
    "v_scale",
    "k_bias",
    "v_bias",
)
_NOTES = {
    "W4A8_AWQ": "inputs are rounded to FP8; the tool's second rounding of int4 weights to FP8 at run time isn't done",
    "MXFP4": "the layout doesn't say whether inputs are rounded to MXFP4: they stay floats",
}


@dataclass(frozen=True)
class Config:
    """The algorithm of every module, or the one of all that aren't left out, and that of the cache."""

    algorithm: str
    group: int | None
    excluded: PatternList
    layers: Mapping[str, tuple[str, int | None]] | None
    cache: str | None

    def algorithm_of(self, module: str) -> tuple[str, int | None] | None:
        """Return algorithm and group size of a module, or None for one that is left out."""
        if self.excluded.rank(module) is not None:
            return None
        return (self.algorithm, self.group) if self.layers is None else self.layers.get(module)


def read(
    config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]
) -> tuple[dict[str, StoredTensor], Quantization]:
    """Read a ModelOpt checkpoint; see `Reader`."""
    parsed = parse(config)
    modules = Modules(tensors, LAYOUT, _SUFFIXES)
    found: dict[str, int] = {}
    for module in modules.quantized("weight_scale"):
        asked = parsed.algorithm_of(module)
        if asked is None:
            raise CheckpointError(
                f"The config of the {LAYOUT} checkpoint leaves {module} out, but the file holds a scale for it."
            )
        algorithm, group = asked
        found[algorithm] = found.get(algorithm, 0) + 1
        modules.result[f"{module}.weight"] = _weight(modules, module, algorithm, group)
    for module in parsed.layers or ():
        if f"{module}.weight" not in modules.result:
            raise CheckpointError(
                f"The config of the {LAYOUT} checkpoint quantizes {module}, which has no weight_scale."
            )
    modules.need_no_plain(lambda name: parsed.algorithm_of(name) is not None, lambda name: False)
    notes = [note for algorithm, note in _NOTES.items() if algorithm in found]
    scales, dtype = _cache(modules, parsed, notes)
    modules.finish()
    producer = config.get("producer")
    version = producer.get("version") if isinstance(producer, Mapping) else None
    return modules.result, Quantization(
        f"{LAYOUT}{'' if version is None else f' {version}'} ({', '.join(sorted(found))})",
        kv_dtype=dtype,
        kv_scales=scales,
        untied=needs_untying(modules.result),
        notes=tuple(notes),
    )


def parse(config: Mapping[str, Any]) -> Config:
    """Return a parsed config, of config.json, of hf_quant_config.json (as its entry `quantization`) or of both."""
    inner = config.get("quantization", config)
    if not isinstance(inner, Mapping):
        raise CheckpointError(f"The quantization of the {LAYOUT} checkpoint is no mapping: take another copy.")
    outer = config.get("quant_algo")
    algorithm = _algorithm(inner.get("quant_algo", outer), mixed=True)
    if outer is not None and _algorithm(outer, mixed=True) != algorithm:
        raise CheckpointError(
            f"config.json says that the {LAYOUT} checkpoint is {outer}, hf_quant_config.json that it is {algorithm}: "
            "take another copy."
        )
    layers = None
    if algorithm == MIXED:
        given = inner.get("quantized_layers")
        if not isinstance(given, Mapping) or not all(isinstance(entry, Mapping) for entry in given.values()):
            raise CheckpointError(f"The {LAYOUT} checkpoint is {MIXED} but lists no quantized_layers.")
        layers = {
            str(module): (_algorithm(entry.get("quant_algo")), _group(entry.get("group_size")))
            for module, entry in given.items()
        }
    elif inner.get("quantized_layers"):
        raise CheckpointError(f"The {LAYOUT} checkpoint lists quantized_layers but is {algorithm} and not {MIXED}.")
    if inner.get("has_zero_point"):
        raise UnsupportedFormatError(f"The {LAYOUT} checkpoint has zero points, whose layout is unknown.")
    excluded = inner.get("exclude_modules", inner.get("ignore")) or []
    return Config(
        algorithm,
        _group(inner.get("group_size")),
        PatternList.parse(excluded, LAYOUT, regular=False),
        layers,
        _cache_algorithm(inner, config),
    )


def _group(value: Any) -> int | None:
    return None if value is None else json_int(value, "group_size")


def _algorithm(value: Any, *, mixed: bool = False) -> str:
    name = value.upper() if isinstance(value, str) else value
    if name in ALGORITHMS or (mixed and name == MIXED):
        return str(name)
    raise UnsupportedFormatError(
        f"The {LAYOUT} checkpoint has the algorithm {value!r}, which can't be read; known are {', '.join(ALGORITHMS)}: "
        "take the unquantized checkpoint."
    )


def _cache_algorithm(inner: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    """Return FP8, or None for a cache of floats."""
    named, scheme = inner.get("kv_cache_quant_algo"), config.get("kv_cache_scheme")
    if named is None and scheme is not None:
        fp8 = isinstance(scheme, Mapping) and (scheme.get("num_bits"), scheme.get("type")) == (8, "float")
        named = "FP8" if fp8 else str(scheme)
    if named not in (None, "FP8"):
        raise UnsupportedFormatError(
            f"The {LAYOUT} checkpoint has the cache as {named}, which can't be done here: take a checkpoint with an "
            "FP8 cache, or without."
        )
    return named


def _weight(modules: Modules, module: str, algorithm: str, group: int | None) -> EncodedTensor:
    kind, activation = ALGORITHMS[algorithm]
    given = _inputs(modules, module, activation)
    tensor = _stored(modules, module, algorithm, kind, group, given)
    if given is not None and given.multiply is not None and len(given.multiply) != tensor.shape[1]:
        raise CheckpointError(
            f"The tensor {module}.pre_quant_scale of the {LAYOUT} checkpoint has {len(given.multiply)} factors for "
            f"{tensor.shape[1]} inputs: take another copy."
        )
    return tensor


def _stored(
    modules: Modules, module: str, algorithm: str, kind: str, group: int | None, given: LinearInput | None
) -> EncodedTensor:
    name, scale_name = f"{module}.weight", f"{module}.weight_scale"
    if kind == "int4":
        return _int4(modules, module, algorithm, group, given)
    if kind == "nvfp4":
        _need_group(module, group, 16)
        whole = scalar(modules.take(f"{module}.weight_scale_2", FLOATS))
        packed, scale = modules.take(name, "uint8"), modules.take(scale_name, "float8_e4m3fn")
        return nvfp4_weight(name, packed, scale, whole, linear_input=given)
    if kind in ("mxfp4", "mxfp8"):
        _need_group(module, group, 32)
        element, dtype = ("e2m1", "uint8") if kind == "mxfp4" else ("e4m3", "float8_e4m3fn")
        codes, scale = modules.take(name, dtype), modules.take(scale_name, E8M0_DTYPES)
        return mx_weight(name, codes, scale, element, linear_input=given)
    element, scope = ("int8", "channel") if kind == "int8" else ("e4m3", kind.removeprefix("fp8 "))
    codes = modules.take(name, "int8" if element == "int8" else "float8_e4m3fn")
    scale = modules.take(scale_name, FLOATS)
    rows, width = need_matrix(codes)
    return scaled_weight(
        codes, element, scope, scale_rows(scale, scope, rows, width), parts=(codes, scale), linear_input=given
    )


def _need_group(module: str, group: int | None, wanted: int) -> None:
    if group not in (None, wanted):
        raise CheckpointError(f"The {LAYOUT} checkpoint gives {module} groups of {group} where {wanted} are needed.")


def _int4(modules: Modules, module: str, algorithm: str, group: int | None, given: LinearInput | None) -> EncodedTensor:
    """Return a weight of signed 4-bit codes: byte [r, c] holds row 2r low and row 2r + 1 high."""
    packed, scale = modules.take(f"{module}.weight", "uint8"), modules.take(f"{module}.weight_scale", FLOATS)
    if algorithm == "W4A8_AWQ":
        scalar(modules.take(f"{module}.weight_scale_2", FLOATS))
    half, width = need_matrix(packed)
    groups = need_matrix(scale)[1]
    group = -(-width // groups) if group is None else group
    need_shape(scale, (2 * half, -(-width // group)))

    def codes(start: int, stop: int) -> Array:
        stored = stored_array(packed, start // 2, -(-stop // 2))
        both = np.stack([stored & 15, stored >> 4], axis=1).reshape(2 * len(stored), width)
        # Flipping the highest bit adds 8.
        return both[start % 2 : start % 2 + stop - start] ^ np.uint8(8)

    return int_weight(
        f"{module}.weight",
        (2 * half, width),
        4,
        group,
        codes,
        scale.rows,
        None,
        parts=(packed, scale),
        linear_input=given,
    )


def _inputs(modules: Modules, module: str, activation: ActivationFormat | None) -> LinearInput | None:
    """Return what a module's input goes through: times pre_quant_scale where there is one, then rounded."""
    factors = modules.optional(f"{module}.pre_quant_scale", FLOATS)
    multiply = None
    if factors is not None:
        multiply = np.array(factors.read(), np.float32)
        if multiply.ndim != 1 or not np.isfinite(multiply).all() or not multiply.all():
            raise CheckpointError(f"The tensor {factors.name} isn't a row of finite numbers other than 0.")
    if activation is None:
        return None if multiply is None else LinearInput(multiply=multiply)
    if not activation.static:
        return modules.dynamic(activation) if multiply is None else LinearInput(None, multiply, activation)
    scale = scalar(modules.take(f"{module}.input_scale", FLOATS))
    return LinearInput(multiply=multiply, activation=activation, scale=scale)


def _cache(modules: Modules, parsed: Config, notes: list[str]) -> tuple[dict[str, tuple[Array, Array]], str | None]:
    """Return the scales of the cache and its dtype. A file that asks for an FP8 cache but has no scale says nothing."""
    if parsed.cache is None:
        return {}, None
    keys = modules.named("k_proj.k_scale")
    if not keys and not modules.named("v_proj.v_scale"):
        notes.append("the checkpoint asks for an FP8 cache but has no scales for it: the cache stays in floats")
        return {}, None
    for side in ("k", "v"):
        for name in modules.named(f"{side}_proj.{side}_scale"):
            modules.rename(name, f"{name.removesuffix(f'.{side}_proj.{side}_scale')}.{side}_scale")
    return cache_scales(modules, "k_scale", "v_scale"), "float8_e4m3"
