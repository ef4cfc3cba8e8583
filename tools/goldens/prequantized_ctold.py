"""A checkpoint of an older compressed-tensors: activation order by group (weight_g_idx), which 0.19 no longer has."""

import json
import shutil

import compressed_tensors
import torch
import transformers
from compressed_tensors.compressors import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import quantize
from prequantized_common import OUT, Golden, Shape, build_model, float_logits, token_ids, write_golden
from safetensors.torch import save_file

VERSIONS = {
    "compressed-tensors": compressed_tensors.__version__,
    "transformers": transformers.__version__,
    "torch": torch.__version__,
}
CASES = {"ct-int4-g32-actorder": "pack-quantized, 4 bits, group 32, actorder group: weight_g_idx, columns in place"}


def make(case: str, seed: int) -> None:
    """Make one case."""
    shape = Shape()
    model = build_model(shape, seed)
    args = QuantizationArgs(num_bits=4, type="int", strategy="group", group_size=32, symmetric=True, actorder="group")
    compressor = PackedQuantizationCompressor()
    generator = torch.Generator().manual_seed(seed)
    tensors = dict(model.state_dict())
    weights: dict[str, torch.Tensor] = {}
    plain = dict(tensors)
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or name == "lm_head":
            continue
        weight = module.weight.data
        columns = weight.shape[1]
        index = (torch.arange(columns) // 32)[torch.randperm(columns, generator=generator)].to(torch.int32)
        scale = torch.stack([weight[:, index == g].abs().amax(1) / 7.5 for g in range(columns // 32)], 1)
        zero = torch.zeros_like(scale, dtype=torch.int8)
        local = compressor.compress_weight(
            weight=weight, scale=scale, zero_point=zero, g_idx=index, quantization_args=args
        )
        local |= {"weight_scale": scale, "weight_g_idx": index}
        codes = quantize(weight, scale, zero, args, dtype=torch.int8, g_idx=index)
        weights[name] = compressor.decompress_weight(local, args).float()
        if not torch.equal(weights[name], codes.float() * scale[:, index.long()]):
            raise SystemExit("the tool's weight isn't code * scale of the column's group")
        del tensors[f"{name}.weight"]
        tensors |= {f"{name}.{k}": v for k, v in local.items() if k not in ("weight_zero_point",)}
        plain[f"{name}.weight"] = weights[name]
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    quantization = QuantizationConfig(
        config_groups={"group_0": scheme}, ignore=["lm_head"], format="pack-quantized", quantization_status="compressed"
    )
    folder = OUT / case
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = model.config.to_dict() | {"quantization_config": json.loads(quantization.model_dump_json())}
    config["torch_dtype"] = "float32"
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    ids = token_ids(seed, shape.vocab)
    golden = Golden(
        case=case,
        tool="compressed-tensors",
        versions=VERSIONS,
        about=CASES[case],
        formula="code * weight_scale[out, weight_g_idx[in]]; codes are stored plus 8",
        seed=seed,
        shape=shape,
        weights=weights,
        ids=ids,
        logits=float_logits(shape, seed, plain, ids),
        notes=["g_idx random; codes, packing and dequantization by the tool"],
    )
    write_golden(golden)
