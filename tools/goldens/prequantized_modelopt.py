"""Checkpoints of NVIDIA ModelOpt (unified Hugging Face export)."""

import copy
import json
import shutil
from typing import Any

import modelopt
import modelopt.torch.quantization as mtq
import torch
import transformers
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.export.quant_utils import pack_int4_in_uint8, to_quantized_weight
from modelopt.torch.quantization.qtensor import MXFP4QTensor, MXFP8QTensor, NVFP4QTensor
from prequantized_common import OUT, WIDE, Golden, Shape, build_model, float_logits, token_ids, write_golden
from safetensors.torch import load_file

VERSIONS = {
    "nvidia-modelopt": modelopt.__version__,
    "transformers": transformers.__version__,
    "torch": torch.__version__,
}
TWO = Shape(layers=2)
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
QUANTIZER = "quantizer_name"


def base(name: str, *more: dict[str, Any], kv: str | None = None) -> dict[str, Any]:
    """Return one of the tool's configurations, with later rules and optionally a KV cache format added."""
    config = copy.deepcopy(getattr(mtq, name))
    config["quant_cfg"].extend(more)
    if kv:
        config["quant_cfg"].extend(copy.deepcopy(getattr(mtq, kv))["quant_cfg"])
    return config


def off(pattern: str) -> dict[str, Any]:
    """Return a rule that leaves layers out."""
    return {QUANTIZER: pattern, "enable": False}


FP8_RULE = {"num_bits": (4, 3), "axis": None}
MIXED = base(
    "NVFP4_DEFAULT_CFG",
    off("*self_attn*"),
    {QUANTIZER: "*self_attn*weight_quantizer", "cfg": FP8_RULE, "enable": True},
    {QUANTIZER: "*self_attn*input_quantizer", "cfg": FP8_RULE, "enable": True},
    off("*layers.1.mlp.down_proj*"),
    kv="FP8_KV_CFG",
)
HEAD = {QUANTIZER: "*lm_head*weight_quantizer", "cfg": FP8_RULE, "enable": True}
HEAD_IN = {QUANTIZER: "*lm_head*input_quantizer", "cfg": FP8_RULE, "enable": True}
AWQ = Shape(hidden=128, inner=128, heads=4, kv_heads=4, head_dim=32)
BLOCKS = Shape(hidden=128, inner=256, heads=2, kv_heads=1, head_dim=64)  # 2 x 1, 1 x 2 and partial blocks
CASES: dict[str, tuple[str, Shape, torch.dtype, dict[str, Any]]] = {
    "mo-fp8": ("FP8 per tensor, one layer left out", TWO, BF16, base("FP8_DEFAULT_CFG", off("*layers.1.mlp.*"))),
    "mo-fp8-kv": ("FP8, FP8 lm_head, FP8 KV cache", TWO, F16, base("FP8_DEFAULT_CFG", HEAD, HEAD_IN, kv="FP8_KV_CFG")),
    "mo-fp8-channel": ("FP8 per channel and token", Shape(), BF16, base("FP8_PER_CHANNEL_PER_TOKEN_CFG")),
    "mo-fp8-block": ("FP8 blocks of 128 x 128, weights only", BLOCKS, BF16, base("FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG")),
    "mo-nvfp4": ("NVFP4 with activations", Shape(), BF16, base("NVFP4_DEFAULT_CFG")),
    "mo-nvfp4a16": ("NVFP4 weights only, FP8 KV cache", Shape(), BF16, base("W4A16_NVFP4_CFG", kv="FP8_KV_CFG")),
    "mo-int4-awq": ("W4A16_AWQ, group 128, pre_quant_scale", WIDE, F16, base("INT4_AWQ_CFG")),
    "mo-int4-awq-mha": ("W4A16_AWQ where no two query heads share a value head", AWQ, BF16, base("INT4_AWQ_CFG")),
    "mo-w4a8-awq": ("W4A8_AWQ: int4 group 128, then FP8", WIDE, F16, base("W4A8_AWQ_BETA_CFG")),
    "mo-int8-sq": ("INT8 SmoothQuant", Shape(), F16, base("INT8_SMOOTHQUANT_CFG")),
    "mo-int8-wo": ("INT8 weights only", Shape(), BF16, base("INT8_WEIGHT_ONLY_CFG")),
    "mo-mxfp4": ("MXFP4", Shape(), BF16, base("MXFP4_DEFAULT_CFG")),
    "mo-mxfp8": ("MXFP8", Shape(), BF16, base("MXFP8_DEFAULT_CFG")),
    "mo-mixed": ("MIXED_PRECISION: FP8 attention, NVFP4 MLP, one layer left out, FP8 KV cache", TWO, BF16, MIXED),
}
FORMULAS = {
    "mo-fp8": "weight * weight_scale (scalar)",
    "mo-nvfp4": "e2m1 * (weight_scale * weight_scale_2); even in-features in the low nibble",
    "mo-int4": "code * weight_scale, code signed, two out-features a byte; the layer sees x * pre_quant_scale",
    "mo-w4a8": "as int4; the runtime rounds code * weight_scale / weight_scale_2 to FP8 once more",
    "mo-int8": "code * weight_scale (one per out-feature); the layer sees x * pre_quant_scale",
    "mo-mx": "element * 2 ** (weight_scale - 127), block 32",
    "mo-mixed": "per layer, see hf_quant_config.json",
}


def int4(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return float32 [out, in]; checked by packing it again with the tool's own function."""
    low, high = (packed & 15).to(torch.int8), (packed >> 4).to(torch.int8)
    codes = torch.stack((low, high), dim=1).reshape(2 * packed.shape[0], packed.shape[1])
    codes = torch.where(codes > 7, codes - 16, codes)
    group = codes.shape[1] // scale.shape[-1]
    value = codes.float() * scale.float().repeat_interleave(group, dim=1)
    if not torch.equal(pack_int4_in_uint8(value, scale.float(), group), packed):
        raise SystemExit("packing the dequantized int4 weight again gives other bytes")
    return value


def dequantized(local: dict[str, torch.Tensor], algo: str) -> torch.Tensor:
    """Return the float32 weight [out, in] of one layer from its exported tensors."""
    weight, scale = local["weight"], local["weight_scale"]
    shape = (weight.shape[0], 2 * weight.shape[1])
    if algo in ("NVFP4", "W4A16_NVFP4", "NVFP4_AWQ"):
        return NVFP4QTensor(shape, F32, weight).dequantize(
            F32, scale=scale, double_scale=local["weight_scale_2"], block_sizes={-1: 16}
        )
    if algo in ("W4A16_AWQ", "W4A8_AWQ"):
        return int4(weight, scale)
    if algo.upper() == "MXFP4":
        return MXFP4QTensor(shape, F32, weight).dequantize(F32, scale=scale.reshape(-1, 1), block_sizes={-1: 32})
    if algo == "MXFP8":
        return MXFP8QTensor(weight.shape, F32, weight).dequantize(F32, scale=scale, block_sizes={-1: 32})
    if algo.lower().startswith("fp8_pb"):
        blocks = (-(-weight.shape[0] // 128), -(-weight.shape[1] // 128))
        scale = scale.reshape(blocks)  # the exporter drops axes of length 1
        rows = scale.float().repeat_interleave(128, 0)[: weight.shape[0]]
        return weight.float() * rows.repeat_interleave(128, 1)[:, : weight.shape[1]]
    value = weight.float() * (scale.float() if scale.ndim == 0 else scale.float().reshape(-1, 1))
    kind = {torch.float8_e4m3fn: "fp8", torch.int8: "int8_sq"}[weight.dtype]
    again = to_quantized_weight(value, scale if scale.ndim == 0 or kind != "fp8" else scale.reshape(-1, 1), kind)
    if not torch.equal(again.view(torch.uint8), weight.view(torch.uint8)):
        raise SystemExit("quantizing the dequantized weight again gives other codes")
    return value


def quantize_model(case: str, seed: int) -> tuple[Any, torch.Tensor | None]:
    """Quantize, run the fake quantized model in float32 where it runs on the CPU, and export."""
    _, shape, dtype, config = CASES[case]
    model = build_model(shape, seed, F32)
    with torch.no_grad():  # outlier channels, so that AWQ and SmoothQuant find scales other than 1
        for name, parameter in model.named_parameters():
            if "layernorm" in name:
                parameter *= torch.exp(
                    0.9 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
                )
    model = model.to(dtype)
    data = token_ids(seed + 7, shape.vocab, 16, 32)
    mtq.quantize(model, config, lambda m: m(data))
    logits = None
    try:
        with torch.no_grad():
            logits = copy.deepcopy(model).float()(token_ids(seed, shape.vocab), use_cache=True).logits
    except (AssertionError, RuntimeError, ValueError) as error:
        print(f"{case}: no fake quantized forward here: {str(error)[:120]}")
    folder = OUT / case
    shutil.rmtree(folder, ignore_errors=True)
    with torch.inference_mode():
        export_hf_checkpoint(model, export_dir=folder)
    for extra in folder.iterdir():
        if extra.name not in ("config.json", "model.safetensors", "hf_quant_config.json"):
            extra.unlink()
    return model, logits


def make(case: str, seed: int) -> None:
    """Make one case."""
    about, shape, _, _ = CASES[case]
    _, tool_logits = quantize_model(case, seed)
    tensors = load_file(OUT / case / "model.safetensors")
    quantization = json.loads((OUT / case / "hf_quant_config.json").read_text())["quantization"]
    layers = quantization.get("quantized_layers", {})
    weights: dict[str, torch.Tensor] = {}
    plain = {k: v for k, v in tensors.items() if not k.endswith(("_scale", "_scale_2", "_bias"))}
    for name in [k.removesuffix(".weight_scale") for k in tensors if k.endswith(".weight_scale")]:
        local = {k.removeprefix(name + "."): v for k, v in tensors.items() if k.startswith(name + ".")}
        algo = layers.get(name, {}).get("quant_algo") or quantization["quant_algo"]
        weights[name] = dequantized(local, algo)
        plain[f"{name}.weight"] = weights[name] * local.get("pre_quant_scale", torch.ones(())).float()
    ids = token_ids(seed, shape.vocab)
    write_golden(
        Golden(
            case=case,
            tool="modelopt",
            versions=VERSIONS,
            about=about,
            formula=next(v for k, v in FORMULAS.items() if case.startswith(k)),
            seed=seed,
            shape=shape,
            weights=weights,
            ids=ids,
            logits=float_logits(shape, seed, plain, ids),
            tool_logits=tool_logits,
            notes=[
                "weights are those in the file; logits use weight * pre_quant_scale",
                "tool_logits: the fake quantized model before the export (which equalizes scales of q/k/v and gate/up)",
            ],
        )
    )
