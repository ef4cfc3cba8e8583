"""llm-compressor on one layer of make_algorithms.py: GPTQ and AWQ for int4 groups of the compressed-tensors kind."""

from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    apply_quantization_config,
)
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import calculate_qparams
from llmcompressor.core import State, active_session
from llmcompressor.modifiers.gptq.gptq_quantize import quantize_weight
from llmcompressor.modifiers.gptq.helpers import accumulate_hessian, make_empty_hessian
from llmcompressor.modifiers.transform.awq import AWQMapping, AWQModifier
from llmcompressor.pipelines.cache import IntermediatesCache


class Gain(torch.nn.Module):
    """A scale per channel, what a norm is to AWQ."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x times the scale."""
        return x * self.weight


class Block(torch.nn.Module):
    """A gain, then the linear layer under test."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.gain = Gain(linear.in_features)
        self.linear = linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output."""
        return self.linear(self.gain(x))


class Model(torch.nn.Module):
    """One block."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.block = Block(linear)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        return self.block(x)


def versions() -> dict[str, str]:
    """Return the packages that decide the results."""
    return {name: version(name) for name in ("llmcompressor", "compressed-tensors", "torch", "numpy")}


def arguments(group: int, symmetric: bool, order: str | None = None) -> QuantizationArgs:
    """Return int4 groups."""
    return QuantizationArgs(
        num_bits=4, type="int", strategy="group", group_size=group, symmetric=symmetric, actorder=order
    )


def min_max(weight: torch.Tensor, args: QuantizationArgs) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scales and zero points of the groups from their extremes."""
    low, high = torch.aminmax(weight.unflatten(-1, (-1, args.group_size)), dim=-1)
    return calculate_qparams(low, high, args)


def gptq(layer: Any, args: QuantizationArgs) -> torch.Tensor:
    """Return the weight after GPTQ; scales come from the original weight, before any update."""
    module = layer.linear()
    hessian, count = make_empty_hessian(module), torch.zeros(())
    for batch in layer.batches():
        hessian, count = accumulate_hessian(batch[None], module, hessian, count)
    scale, zero = min_max(module.weight.data, args)
    weights = module.weight.data.clone()[None]
    done, _, fallback = quantize_weight(weights, (hessian / count)[None], scale[None], zero[None], None, args)
    assert not bool(fallback.any())
    return done[0]


def awq(layer: Any, args: QuantizationArgs, duo: Any) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Return the effective weight, the scales by channel and what the search reports."""
    IntermediatesCache.pin_memory = lambda _self, _index: None  # needs an accelerator; the values do not depend on it
    model = Model(layer.linear())
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    apply_quantization_config(model, QuantizationConfig(config_groups={"group": scheme}))
    model.block.linear.quantization_enabled = False
    modifier = AWQModifier(mappings=[AWQMapping("re:.*gain", ["re:.*linear"])], duo_scaling=duo)
    state = State(model=model)
    active_session().state.update(model=model)
    modifier.on_initialize(state)
    modifier.on_calibration_start(state, None)
    for batch in layer.batches():
        model(batch[None])
    modifier.on_sequential_epoch_end(state, None)
    weight = model.block.linear.weight.data
    scale, zero = min_max(weight, args)
    gain = model.block.gain.weight.data
    metric = {key: value for key, value in modifier._error_metrics[0].items() if isinstance(value, float)}
    return fake_quantize(weight, scale, zero, args) * gain, 1 / gain, metric


def run(layer: Any, arrays: dict[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Return case to errors and settings; adds the scales of AWQ to `arrays`."""
    results: dict[str, dict[str, Any]] = {}
    for group in (128, 32):
        if layer.weight.shape[1] % group:
            continue
        for symmetric in (True, False):
            name = f"int4_g{group}_{'sym' if symmetric else 'asym'}"
            args = arguments(group, symmetric)
            with torch.no_grad():
                scale, zero = min_max(layer.weight, args)
                results[f"{name}.max"] = layer.errors(fake_quantize(layer.weight.clone(), scale, zero, args))
                for order in (None, "static"):
                    errors = layer.errors(gptq(layer, arguments(group, symmetric, order)))
                    settings = {"block": 128, "damp": 0.01, "actorder": order}
                    results[f"{name}.gptq{'_act_order' if order else ''}"] = {**errors, "settings": settings}
                for duo in (True, False):
                    effective, scales, metric = awq(layer, args, duo)
                    case = f"{name}.awq{'_duo' if duo else ''}"
                    results[case] = {
                        **layer.errors(effective),
                        **metric,
                        "settings": {"n_grid": 20, "duo_scaling": duo},
                    }
                    arrays[f"{layer.name}.{case}.scales"] = scales.numpy()
    return results
