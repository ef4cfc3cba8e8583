"""Load a quantized Hugging Face folder with the original tools and compare it with expected values.

    HF_HUB_OFFLINE=1 python tools/goldens/check_layouts.py FOLDER [EXPECTED.safetensors] [--tolerance 1e-4]

The layout is read from the folder: `compressed-tensors` needs the environment with transformers and compressed-tensors,
`modelopt` the one with ModelOpt (requirements-prequantized.txt). EXPECTED (default: FOLDER/expected.safetensors) holds
`weight.<module>` float32 [out, in] as in the file (before pre_quant_scale), `ids` int64 [1, L] and `logits` float32
[1, L, V] computed with the dequantized weights and no rounding of activations. Prints the greatest difference of every
weight and of the logits; the exit code is 1 when one is above the tolerance or nothing was compared.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

SCALES = ("_scale", "_scale_2", "_zero_point", "_global_scale", "_bias_value")


def read_folder(folder: Path) -> dict[str, torch.Tensor]:
    """Return every tensor of the folder's safetensors files."""
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        tensors |= load_file(path)
    return tensors


def local_tensors(tensors: dict[str, torch.Tensor], module: str) -> dict[str, torch.Tensor]:
    """Return the tensors of one module by their last name."""
    return {k.removeprefix(module + "."): v for k, v in tensors.items() if k.startswith(module + ".")}


def from_compressed_tensors(folder: Path, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return float32 weights by module; transformers decides which module has which scheme."""
    from prequantized_ct import dequantized

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    schemes = {name: getattr(module, "quantization_scheme", None) for name, module in model.named_modules()}
    return {
        name: dequantized(local_tensors(tensors, name), scheme)
        for name, scheme in schemes.items()
        if scheme is not None and scheme.weights is not None
    }


def from_modelopt(folder: Path, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return float32 weights by module with ModelOpt's unpacking; hf_quant_config.json and the tensors must agree."""
    from fnmatch import fnmatch

    from prequantized_modelopt import dequantized

    asked = json.loads((folder / "hf_quant_config.json").read_text())["quantization"]
    layers, excluded = asked.get("quantized_layers", {}), asked.get("exclude_modules", [])
    weights = {}
    for name in [k.removesuffix(".weight_scale") for k in tensors if k.endswith(".weight_scale")]:
        if any(fnmatch(name, pattern) for pattern in excluded) or (layers and name not in layers):
            raise SystemExit(f"{name} has a weight_scale but hf_quant_config.json leaves it out")
        algo = layers.get(name, {}).get("quant_algo") or asked["quant_algo"]
        weights[name] = dequantized(local_tensors(tensors, name), algo)
    if set(layers) - set(weights):
        raise SystemExit(f"no weight_scale for {sorted(set(layers) - set(weights))}")
    return weights


def dense_logits(folder: Path, tensors: dict[str, Any], weights: dict[str, Any], ids: torch.Tensor) -> torch.Tensor:
    """Return logits of the plain float32 model with the dequantized weights (times pre_quant_scale)."""
    plain = {k: v.float() for k, v in tensors.items() if not k.endswith(SCALES)}
    for name, weight in weights.items():
        local = local_tensors(tensors, name)
        for key in local:
            plain.pop(f"{name}.{key}", None)
        if "bias" in local:
            plain[f"{name}.bias"] = local["bias"].float()
        plain[f"{name}.weight"] = weight * local.get("pre_quant_scale", torch.ones(())).float()
    config = AutoConfig.from_pretrained(folder)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    missing, unexpected = model.load_state_dict(plain, strict=False)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if set(missing) - tied or unexpected:
        raise SystemExit(f"tensors that the model lacks: {unexpected}; tensors that the file lacks: {missing}")
    with torch.no_grad():
        return model(ids, use_cache=False).logits


def transformers_logits(folder: Path, ids: torch.Tensor) -> torch.Tensor:
    """Return logits of the model as transformers loads it (it rounds activations where the config asks for it)."""
    from transformers import CompressedTensorsConfig

    asked = CompressedTensorsConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=asked)
    with torch.no_grad():
        return model.eval().float()(ids).logits


def main() -> None:
    """Compare one folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("expected", type=Path, nargs="?")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder: Path = arguments.folder
    expected = load_file(arguments.expected or folder / "expected.safetensors")
    tensors = read_folder(folder)
    config = json.loads((folder / "config.json").read_text()).get("quantization_config", {})
    compressed = config.get("quant_method") == "compressed-tensors"
    weights = (from_compressed_tensors if compressed else from_modelopt)(folder, tensors)
    print(f"{'compressed-tensors' if compressed else 'modelopt'}: {len(weights)} quantized modules")
    worst, compared = 0.0, 0
    for name, weight in sorted(weights.items()):
        wanted = expected.get(f"weight.{name}")
        if wanted is not None:
            difference = float((weight - wanted).abs().max())
            worst, compared = max(worst, difference), compared + 1
            print(f"  {name}: {difference:.3g}")
    absent = sorted({k.removeprefix("weight.") for k in expected if k.startswith("weight.")} - set(weights))
    if "logits" in expected:
        logits = dense_logits(folder, tensors, weights, expected["ids"])
        difference = float((logits - expected["logits"]).abs().max())
        worst, compared = max(worst, difference), compared + 1
        print(f"  logits: {difference:.3g}")
        if compressed:
            try:
                difference = float((transformers_logits(folder, expected["ids"]) - expected["logits"]).abs().max())
                print(f"  logits as transformers runs the file (activations rounded if asked): {difference:.3g}")
            except RuntimeError as error:
                print(f"  transformers loads the file but cannot run it here: {str(error)[:120]}")
    print(f"worst {worst:.3g}, compared {compared}, expected but not quantized: {absent}")
    sys.exit(0 if compared and not absent and worst <= arguments.tolerance else 1)


if __name__ == "__main__":
    main()
