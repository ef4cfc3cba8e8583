"""Checkpoints of llm-compressor / compressed-tensors."""

import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import compressed_tensors
import llmcompressor
import torch
import transformers
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.config import CompressionFormat
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from prequantized_common import OUT, WIDE, Golden, Shape, build_model, float_logits, token_ids, write_golden
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, CompressedTensorsConfig, PreTrainedTokenizerFast

VERSIONS = {
    "compressed-tensors": compressed_tensors.__version__,
    "llmcompressor": llmcompressor.__version__,
    "transformers": transformers.__version__,
    "torch": torch.__version__,
}
TWO = Shape(layers=2)
ODD = Shape(hidden=160, inner=136, heads=2, kv_heads=1, head_dim=40)  # no multiple of 128
INT4 = {"num_bits": 4, "type": "int", "strategy": "group"}
ACTIVATION = {"num_bits": 8, "type": "int", "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "symmetric": True}
FORMULA_INT = "(code - zero_point) * weight_scale; pack-quantized codes and zero points are stored plus 2**(bits - 1)"


def group(targets: list[str], weights: dict[str, Any], activations: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return one config group."""
    return {"targets": targets, "weights": weights, "input_activations": activations}


def preset(name: str, ignore: list[str] | None = None, **more: Any) -> QuantizationModifier:
    """Return a modifier with one of the tool's own schemes on every linear layer."""
    return QuantizationModifier(targets="Linear", scheme=name, ignore=ignore or ["lm_head"], **more)


def own(weights: dict[str, Any], activations: dict[str, Any] | None = None, **more: Any) -> QuantizationModifier:
    """Return a modifier with one group on every linear layer."""
    ignore = more.pop("ignore", ["lm_head"])
    return QuantizationModifier(config_groups={"g0": group(["Linear"], weights, activations)}, ignore=ignore, **more)


def mixed() -> QuantizationModifier:
    """Return a modifier with int4 attention, FP8 MLP and one layer left out by a pattern."""
    groups = {
        "g0": group(["re:.*self_attn.(q|k|v|o)_proj$"], {**INT4, "group_size": 32, "symmetric": True}),
        "g1": group(["re:.*mlp.*"], {**FP8, "strategy": "channel"}, {**FP8, "strategy": "token", "dynamic": True}),
    }
    return QuantizationModifier(config_groups=groups, ignore=["lm_head", "re:.*layers.1.mlp.down_proj"])


KV = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
Entry = tuple[str, Shape, torch.dtype, Callable[[], Any]]
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
CASES: dict[str, Entry] = {
    "ct-int4-g32-sym": (
        "pack-quantized, 4 bits, group 32, symmetric",
        TWO,
        BF16,
        lambda: own({**INT4, "group_size": 32}),
    ),
    "ct-int4-g32-asym": (
        "pack-quantized, 4 bits, group 32, zero points packed along out-features; lm_head too, k_proj left out",
        Shape(vocab=99),
        F16,
        lambda: own({**INT4, "group_size": 32, "symmetric": False}, ignore=["re:.*k_proj"]),
    ),
    "ct-int4-g128-gptq": (
        "pack-quantized, 4 bits, group 128, GPTQ with actorder weight (no g_idx is stored)",
        WIDE,
        F32,
        lambda: GPTQModifier(
            config_groups={"g0": group(["Linear"], {**INT4, "group_size": 128, "actorder": "weight"})},
            ignore=["lm_head"],
        ),
    ),
    "ct-int8-channel": (
        "pack-quantized, 8 bits, per channel",
        Shape(),
        F32,
        lambda: own({"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}),
    ),
    "ct-int3-channel": (
        "pack-quantized, 3 bits: codes cross the int32 boundary; in-features 72 make a last word that is not full",
        Shape(hidden=72, inner=96, heads=2, head_dim=36),
        F32,
        lambda: own({"num_bits": 3, "type": "int", "strategy": "channel", "symmetric": True}),
    ),
    "ct-w8a8-dynamic": ("int-quantized W8A8, per channel and per token", TWO, BF16, lambda: preset("W8A8")),
    "ct-w8a8-static": (
        "int-quantized W8A8, static per tensor activations with zero point",
        Shape(),
        F32,
        lambda: own(
            {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
            {"num_bits": 8, "type": "int", "strategy": "tensor", "symmetric": False, "dynamic": False},
        ),
    ),
    "ct-fp8-tensor": ("float-quantized, per tensor, static activations", TWO, BF16, lambda: preset("FP8")),
    "ct-fp8-dynamic": ("float-quantized, per channel, dynamic per token", Shape(), F16, lambda: preset("FP8_DYNAMIC")),
    "ct-fp8-block": ("float-quantized, blocks of 128 x 128, sizes no multiple", ODD, BF16, lambda: preset("FP8_BLOCK")),
    "ct-fp8-kv": ("float-quantized with kv_cache_scheme FP8", TWO, F32, lambda: preset("FP8", kv_cache_scheme=KV)),
    "ct-nvfp4a16": ("nvfp4-pack-quantized, weights only", Shape(), BF16, lambda: preset("NVFP4A16")),
    "ct-nvfp4": ("nvfp4-pack-quantized with activations (input_global_scale)", Shape(), F32, lambda: preset("NVFP4")),
    "ct-mxfp4": ("mxfp4-pack-quantized, weights only", Shape(), BF16, lambda: preset("MXFP4A16")),
    "ct-mxfp8": ("mxfp8-quantized, weights only", Shape(), BF16, lambda: preset("MXFP8A16")),
    "ct-mixed": ("mixed-precision: int4 attention, FP8 MLP, a pattern in ignore", TWO, BF16, mixed),
}


def dequantized(local: dict[str, torch.Tensor], scheme: QuantizationScheme) -> torch.Tensor:
    """Return the float32 weight by the tool's own functions, with the scales cast to float32 first."""
    cast = {k: v.float() if v.dtype in (BF16, F16) else v for k, v in local.items()}
    compressor = BaseCompressor.get_value_from_registry(CompressionFormat(scheme.format).value)
    if "weight_packed" in cast and cast["weight_packed"].dtype == torch.uint8:
        rows, columns = cast["weight_packed"].shape
        codes = unpack_fp4_from_uint8(cast["weight_packed"], rows, 2 * columns, F32)
        scale = compressor._decompress_scale(cast["weight_scale"], F32)
        return dequantize(codes, scale, args=scheme.weights, dtype=F32, global_scale=cast.get("weight_global_scale"))
    return compressor.decompress(cast, scheme)["weight"].float()


def quantize_model(case: str, entry: Entry, seed: int) -> Any:
    """Quantize with llm-compressor and save; return the model with the schemes on its modules."""
    _, shape, dtype, recipe = entry
    with tempfile.TemporaryDirectory() as base:  # the tool reads the config of the original folder
        build_model(shape, seed, dtype).save_pretrained(base)
        model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype).eval()
        calibrate(model, recipe(), seed, shape.vocab)
        folder = OUT / case
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder, save_compressed=True)
    for extra in folder.iterdir():
        if extra.name not in ("config.json", "model.safetensors"):
            extra.unlink()
    return model


def calibrate(model: Any, recipe: Any, seed: int, vocab: int) -> None:
    """Run llm-compressor in place on 16 rows of 32 random tokens."""
    rows = token_ids(seed + 7, vocab, 16, 32).tolist()
    data = Dataset.from_dict({"input_ids": rows, "attention_mask": [[1] * 32] * 16})
    words = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2}, unk_token="<unk>"))
    processor = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<unk>", eos_token="</s>")
    oneshot(
        model=model,
        recipe=recipe,
        dataset=data,
        processor=processor,
        num_calibration_samples=16,
        max_seq_length=32,
    )


def tool_forward(case: str, ids: torch.Tensor) -> tuple[torch.Tensor | None, list[str]]:
    """Return the logits of transformers with compressed-tensors (activations and KV rounded), or none and why."""
    asked = CompressedTensorsConfig(dequantize=True)
    loaded = AutoModelForCausalLM.from_pretrained(OUT / case, dtype=F32, quantization_config=asked).eval().float()
    try:
        with torch.no_grad():
            return loaded(ids, use_cache=True).logits, []
    except RuntimeError as error:
        return None, [f"the tool's own forward fails: {error}"]


def make(case: str, seed: int) -> None:
    """Make one case."""
    entry = CASES[case]
    about, shape, _, _ = entry
    model = quantize_model(case, entry, seed)
    tensors = load_file(OUT / case / "model.safetensors")
    weights: dict[str, torch.Tensor] = {}
    plain = dict(tensors)
    for name, module in model.named_modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is None or scheme.weights is None:
            continue
        local = {k.removeprefix(name + "."): v for k, v in tensors.items() if k.startswith(name + ".")}
        weights[name] = dequantized(local, scheme)
        for key in local:
            plain.pop(f"{name}.{key}")
        plain[f"{name}.weight"] = weights[name]
    plain = {k: v for k, v in plain.items() if not k.endswith(("_scale", "_zero_point", "_global_scale"))}
    ids = token_ids(seed, shape.vocab)
    tool_logits, notes = tool_forward(case, ids)
    write_golden(
        Golden(
            case=case,
            tool="llm-compressor",
            versions=VERSIONS,
            about=about,
            formula=FORMULA_INT,
            seed=seed,
            shape=shape,
            weights=weights,
            ids=ids,
            logits=float_logits(shape, seed, plain, ids),
            tool_logits=tool_logits,
            notes=notes,
        )
    )
