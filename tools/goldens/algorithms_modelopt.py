"""NVIDIA ModelOpt on one layer of make_algorithms.py: max, MSE, AWQ, GPTQ for int4 groups, SmoothQuant for int8."""

from importlib.metadata import version
from typing import Any

import modelopt.torch.quantization as mtq
import numpy as np
import torch


def versions() -> dict[str, str]:
    """Return the packages that decide the results."""
    return {name: version(name) for name in ("nvidia-modelopt", "torch", "numpy")}


def weight_config(settings: dict[str, Any], algorithm: Any) -> dict[str, Any]:
    """Return a ModelOpt configuration that quantizes weights alone."""
    return {
        "quant_cfg": [
            {"quantizer_name": "*", "enable": False},
            {"quantizer_name": "*weight_quantizer", "cfg": settings, "enable": True},
        ],
        "algorithm": algorithm,
    }


def int4_group(size: int) -> dict[str, Any]:
    """Return the settings of int4 with groups along the row."""
    return {"num_bits": 4, "block_sizes": {-1: size, "type": "static"}}


INT8_ROW = {"num_bits": 8, "axis": 0}


def cases() -> dict[str, dict[str, Any]]:
    """Return case to configuration."""
    out: dict[str, dict[str, Any]] = {}
    algorithms: dict[str, Any] = {
        "max": "max",
        "mse": {"method": "mse"},
        "mse_fine": {"method": "mse", "step_size": 0.02, "start_multiplier": 0.4, "stop_multiplier": 1.2},
        "awq_lite": {"method": "awq_lite", "alpha_step": 0.1, "debug": True},
        "awq_clip": {"method": "awq_clip"},
        "awq_full": {"method": "awq_full", "alpha_step": 0.1, "debug": True},
        "gptq": {"method": "gptq", "perc_damp": 0.01, "block_size": 128},
    }
    for size in (128, 32):
        for name, algorithm in algorithms.items():
            out[f"int4_g{size}.{name}"] = weight_config(int4_group(size), algorithm)
    out["int8_channel.max"] = weight_config(INT8_ROW, "max")
    out["int8_channel.mse"] = weight_config(INT8_ROW, {"method": "mse"})
    out["int4_channel.mse"] = weight_config({"num_bits": 4, "axis": 0}, {"method": "mse"})
    for alpha in (1.0, 0.5):
        config = weight_config(INT8_ROW, {"method": "smoothquant", "alpha": alpha})
        config["quant_cfg"].append({"quantizer_name": "*input_quantizer", "cfg": {"num_bits": 8}, "enable": True})
        out[f"w8a8.smoothquant_{alpha}"] = config
    plain = weight_config(INT8_ROW, "max")
    plain["quant_cfg"].append({"quantizer_name": "*input_quantizer", "cfg": {"num_bits": 8}, "enable": True})
    out["w8a8.max"] = plain
    return out


def run(layer: Any, arrays: dict[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Return case to errors and settings; adds the scales of AWQ and SmoothQuant to `arrays`."""
    results = {}
    for case, config in cases().items():
        model = torch.nn.Sequential(layer.linear())

        def feed(module: torch.nn.Module) -> None:
            for batch in layer.batches():
                module(batch[None])

        with torch.no_grad():
            model = mtq.quantize(model, config, feed)
            module: Any = model[0]
            quantized = module.weight_quantizer(module.weight) if "gptq" not in case else module.weight
            smooth = module.input_quantizer.pre_quant_scale
            effective = quantized if smooth is None else quantized * smooth.reshape(1, -1).float()
            result: dict[str, Any] = dict(layer.errors(effective))
            if smooth is not None:
                arrays[f"{layer.name}.{case}.pre_quant_scale"] = smooth.reshape(-1).float().numpy()
            search = getattr(module, "awq_lite", None)
            if search is not None:
                result |= {"alpha": float(search.best_alpha), "losses": {f"{k:.1f}": v for k, v in search.loss.items()}}
            if "w8a8" in case:
                for key, inputs in (("output_error", layer.inputs), ("held_out_output_error", layer.held_out)):
                    wanted = inputs.double() @ layer.weight.double().T
                    result[key] = float((module(inputs).double() - wanted).square().sum() / wanted.square().sum())
                result["input_amax"] = float(module.input_quantizer.amax)
        result["algorithm"] = config["algorithm"]
        results[case] = result
    return results
