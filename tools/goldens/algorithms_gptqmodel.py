"""GPTQModel on one layer of make_algorithms.py: GPTQ with and without activation order, symmetric and not."""

from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from gptqmodel.quantization import QuantizeConfig
from gptqmodel.quantization.gptq import GPTQ

ORDERS: dict[str, dict[str, Any]] = {
    "plain": {"desc_act": False, "act_group_aware": False},
    "act_order": {"desc_act": True, "act_group_aware": False},
    "static_groups_act_order": {"desc_act": True, "act_group_aware": False, "static_groups": True},
    "group_aware": {"desc_act": False, "act_group_aware": True},
}


def versions() -> dict[str, str]:
    """Return the packages that decide the results."""
    return {name: version(name) for name in ("gptqmodel", "torch", "numpy")}


def run(layer: Any, arrays: dict[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Return case to errors and settings; adds codes and scales of one case to `arrays`."""
    results = {}
    cases = [
        (group, sym, order, {"damp_percent": 0.01}) for group in (128, 32) for sym in (True, False) for order in ORDERS
    ]
    cases += [(128, True, "group_aware", {}), (32, True, "plain", {"damp_percent": 0.01, "mse": 2.4})]
    for group, sym, order, more in cases:
        settings = {"bits": 4, "group_size": group, "sym": sym, **ORDERS[order], **more}
        module = layer.linear()
        task = GPTQ(module, QuantizeConfig(**settings))
        task.quantizer.configure(perchannel=True)
        with torch.no_grad():
            for batch in layer.batches():
                task.add_batch(batch[None], module(batch[None]))
            quantized, scale, zero, g_idx, _, _, damp, _ = task.quantize()
        ending = "_mse" if "mse" in more else "" if more else "_defaults"
        case = f"int4_g{group}_{'sym' if sym else 'asym'}.{order}{ending}"
        result = {**layer.errors(quantized), "settings": settings, "damp_used": float(damp)}
        if layer.name == "gate_proj" and sym and group == 32 and case.endswith((".plain", "order")):
            codes = torch.round(quantized / scale[:, g_idx.long()] + zero[:, g_idx.long()])
            again = (codes - zero[:, g_idx.long()]) * scale[:, g_idx.long()]
            result["codes_times_scales_error"] = float((again - quantized).abs().max())
            packed = codes.numpy().astype(np.uint8)
            arrays[f"{layer.name}.{case}.packed"] = packed[:, 1::2] << 4 | packed[:, ::2]
            arrays[f"{layer.name}.{case}.scale"] = scale.numpy()
            arrays[f"{layer.name}.{case}.zero"] = zero.numpy().astype(np.uint8)
        results[case] = result
    return results
