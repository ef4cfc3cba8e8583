"""Checkpoints in the FP8 block layout of DeepSeek and the MXFP4 layout of gpt-oss."""

import json
import shutil
from typing import Any

import compressed_tensors
import torch
import transformers
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize
from prequantized_common import OUT, Golden, Shape, build_model, float_logits, token_ids, write_golden
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, FineGrainedFP8Config, GptOssConfig, GptOssForCausalLM, Mxfp4Config
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

VERSIONS = {
    "compressed-tensors": compressed_tensors.__version__,
    "transformers": transformers.__version__,
    "torch": torch.__version__,
}
ODD = Shape(family="qwen3", hidden=160, inner=136, heads=2, kv_heads=1, head_dim=40, tied=True)
EVEN = Shape(hidden=128, inner=256, heads=2, kv_heads=1, head_dim=128, vocab=64)
BF16, F32 = torch.bfloat16, torch.float32
CASES: dict[str, tuple[str, Shape, Any]] = {
    "fp8-block": ("quant_method fp8, weight_block_size [128, 128], every size a multiple of 128", EVEN, None),
    "fp8-block-odd": ("quant_method fp8; last blocks are partial; tied head, one layer left out", ODD, ["o_proj"]),
    "mxfp4-gpt-oss": ("gpt_oss: expert weights as *_blocks and *_scales", Shape(family="gpt_oss"), None),
}


def quantize_block(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return F8_E4M3 [out, in] and float32 scales [ceil(out / 128), ceil(in / 128)], maximum of a block to 448."""
    rows, columns = weight.shape
    blocks = torch.zeros(-(-rows // 128) * 128, -(-columns // 128) * 128)
    blocks[:rows, :columns] = weight
    tiled = blocks.reshape(blocks.shape[0] // 128, 128, -1, 128)
    scale = tiled.abs().amax(dim=(1, 3)) / 448
    codes = (tiled / scale[:, None, :, None]).reshape(blocks.shape)[:rows, :columns]
    return codes.to(torch.float8_e4m3fn), scale


def make_block(case: str, seed: int) -> None:
    """Make a checkpoint in DeepSeek's layout; the expected weights come from compressed-tensors and transformers."""
    about, shape, left_out = CASES[case]
    model = build_model(shape, seed, BF16)
    skip = ["lm_head", *[f"model.layers.0.self_attn.{name}" for name in left_out or ()]]
    tensors = {k: v.clone() for k, v in model.state_dict().items() if not (shape.tied and k == "lm_head.weight")}
    args = QuantizationArgs(num_bits=8, type="float", strategy="block", block_structure=[128, 128])
    weights: dict[str, torch.Tensor] = {}
    plain = dict(tensors)
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or name in skip:
            continue
        codes, scale = quantize_block(module.weight.float())
        tensors[f"{name}.weight"], tensors[f"{name}.weight_scale_inv"] = codes, scale
        weights[name] = dequantize(codes, scale, args=args, dtype=F32)
        plain[f"{name}.weight"] = weights[name]
    config = model.config.to_dict()
    config["quantization_config"] = {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": skip,
    }
    write_folder(case, config, tensors)
    ids = token_ids(seed, shape.vocab)
    notes = ["codes and scales made by this script (maximum of a block to 448)"]
    tool_logits = None
    try:
        asked = FineGrainedFP8Config(dequantize=True, modules_to_not_convert=skip)
        loaded = AutoModelForCausalLM.from_pretrained(OUT / case, dtype=F32, quantization_config=asked).eval()
        with torch.no_grad():
            tool_logits = loaded(ids).logits
    except (ValueError, RuntimeError) as error:
        notes.append(f"transformers {transformers.__version__} does not load it: {str(error).splitlines()[0][:150]}")
    logits = float_logits(shape, seed, plain, ids)
    if tool_logits is not None and float((tool_logits - logits).abs().max()) > 1e-3:
        tool_logits = None
        notes.append(
            f"transformers {transformers.__version__} loads it silently wrong: it takes rows // scale_rows as the block"
            " size, which is not 128 where a block is partial"
        )
    golden = Golden(
        case=case,
        tool="transformers / compressed-tensors",
        versions=VERSIONS,
        about=about,
        formula="weight * weight_scale_inv of its 128 x 128 block",
        seed=seed,
        shape=shape,
        weights=weights,
        ids=ids,
        logits=logits,
        tool_logits=tool_logits,
        notes=notes,
    )
    write_golden(golden)


def write_folder(case: str, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Write config.json and model.safetensors."""
    folder = OUT / case
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors", {"format": "pt"})


def make_gpt_oss(case: str, seed: int) -> None:
    """Make a gpt_oss whose experts are random MXFP4 blocks; transformers dequantizes and runs it."""
    config = GptOssConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        vocab_size=96,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=16,
        max_position_embeddings=128,
        layer_types=["full_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=False,
        architectures=["GptOssForCausalLM"],
    )
    model = GptOssForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        vector = parameter.ndim == 1 or "bias" in name
        gain = 0.2 if vector else 1.0 if "embed" in name else 1.5 / parameter.shape[-1] ** 0.5
        parameter.data = (gain * noise + (1.0 if "norm" in name else 0.0)).to(BF16).float()
    tensors = {k: v.to(BF16) for k, v in model.state_dict().items()}
    extra, state = {}, model.state_dict()
    for name, rows, columns in (("gate_up_proj", 192, 64), ("down_proj", 64, 96)):
        key = f"model.layers.0.mlp.experts.{name}"
        blocks = torch.randint(0, 256, (4, rows, columns // 32, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(120, 126, (4, rows, columns // 32), generator=generator, dtype=torch.uint8)
        scales[0, 0, 0], scales[1, 1, 0] = 90, 127
        del tensors[key]
        tensors[f"{key}_blocks"], tensors[f"{key}_scales"] = blocks, scales
        state[key] = convert_moe_packed_tensors(blocks, scales, dtype=F32)
        extra[f"expert_weight.{key}"] = state[key][:2].clone()
    model.load_state_dict(state)
    ids = token_ids(seed, 96)
    with torch.no_grad():
        logits = model(ids).logits
    folder_config = config.to_dict()
    folder_config["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
    }
    write_folder(case, folder_config, tensors)
    asked = Mxfp4Config(dequantize=True)
    loaded = AutoModelForCausalLM.from_pretrained(OUT / case, dtype=F32, quantization_config=asked).eval().float()
    with torch.no_grad():
        tool_logits = loaded(ids).logits
    golden = Golden(
        case=case,
        tool="transformers",
        versions=VERSIONS,
        about=CASES[case][0],
        formula="e2m1 * 2 ** (scale - 127); blocks [expert, out, in / 32, 16], low nibble first",
        seed=seed,
        shape=Shape(family="gpt_oss", inner=96),
        weights={},
        ids=ids,
        logits=logits,
        tool_logits=tool_logits,
        extra=extra,
        notes=["expert_weight.*: float32 [2, in, out] of experts 0 and 1, as transformers lays them out"],
    )
    write_golden(golden)


def make(case: str, seed: int) -> None:
    """Make one case."""
    (make_gpt_oss if case.startswith("mxfp4") else make_block)(case, seed)
