"""The output error of our AWQ and GPTQ against that of ModelOpt, GPTQModel and llm-compressor on the same layers."""

from __future__ import annotations

import numpy as np
import pytest

from algorithm_goldens import LAYERS, Layer, layer
from edgewright.formats import Array, IntFormat, ScaledFormat
from edgewright.quant.algorithms import awq_factors, damped, for_outputs, smoothing_factors, solve
from edgewright.quant.recipe import Algorithm

#: What float32 sums of the tools and ours may differ by.
SAME = 1e-5
PLAIN = ("plain", "plain_mse", "gptq")
ORDERED = (*PLAIN, "act_order", "static_groups_act_order", "group_aware", "group_aware_defaults", "gptq_act_order")
AWQ = ("awq", "awq_duo", "awq_lite", "awq_clip", "awq_full")


def theirs(golden: Layer, group: int, zero_point: bool, methods: tuple[str, ...]) -> tuple[str, float, float]:
    """Return the best result of any tool: its name, its error on the calibration data and on data held out."""
    kind = f"int4_g{group}_{'asym' if zero_point else 'sym'}"
    kinds = (kind,) if zero_point else (kind, f"int4_g{group}")
    found = [
        (key, float(result["error"]), float(result["held_out_error"]))
        for key, result in golden.results.items()
        if key.split(".")[1] in kinds and key.split(".")[2] in methods
    ]
    return min(found, key=lambda item: item[1], default=("none", np.inf, np.inf))


def judge(golden: Layer, title: str, values: Array, best: tuple[str, float, float]) -> None:
    """Print ours and theirs (calibration, held out, times 1000), and require ours not to be larger."""
    ours = golden.error(values)
    tool, error, held = best
    mine = golden.held_out_error(values)
    figures = " ".join(f"{1e3 * value:8.4f}" for value in (ours, mine, error, held))
    line = f"{golden.name:10} {title:22} {figures}  {tool}"
    print(f"\n{line}", end="")
    assert ours <= error * (1 + SAME), line


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("zero_point", [False, True])
@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("name", LAYERS)
def test_gptq_is_at_least_as_good(name: str, group: int, zero_point: bool, order: bool) -> None:
    golden, fmt = layer(name), IntFormat(4, group, zero_point)
    parts = solve(golden.weight, fmt, Algorithm("gptq", activation_order=order), golden.moments, name)
    values = fmt.decode(parts, golden.weight.shape[1])
    title = f"GPTQ g{group}{' zero' * zero_point}{' order' * order}"
    judge(golden, title, values, theirs(golden, group, zero_point, ORDERED if order else PLAIN))


@pytest.mark.parametrize("zero_point", [False, True])
@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("name", LAYERS)
def test_awq_is_at_least_as_good(name: str, group: int, zero_point: bool) -> None:
    golden, fmt = layer(name), IntFormat(4, group, zero_point)
    values = awq(golden, fmt)
    judge(golden, f"AWQ g{group}{' zero' * zero_point}", values, theirs(golden, group, zero_point, AWQ))


def awq(golden: Layer, fmt: IntFormat) -> Array:
    def rounder(weight: Array, second: Array) -> Array:
        return fmt.decode(for_outputs(weight, fmt, damped(second, 0.02), {}), weight.shape[1])

    factors, _ = awq_factors([golden.weight], golden.moments, [rounder], [fmt.group])
    scaled = golden.moments.scaled(1 / factors.astype(np.float64))
    width = golden.weight.shape[1]
    return fmt.decode(solve(golden.weight * factors, fmt, Algorithm("awq"), scaled, golden.name), width) / factors


@pytest.mark.parametrize("name", LAYERS)
def test_searching_on_doesnt_cost_on_data_held_out(name: str) -> None:
    golden, fmt = layer(name), IntFormat(4, 128, False)
    width = golden.weight.shape[1]
    for order in (False, True):
        plain, refitted = (
            golden.held_out_error(
                fmt.decode(
                    solve(
                        golden.weight, fmt, Algorithm("gptq", refit=refit, activation_order=order), golden.moments, name
                    ),
                    width,
                )
            )
            for refit in (False, True)
        )
        assert refitted <= plain


@pytest.mark.parametrize("name", LAYERS)
def test_gptq_is_at_least_as_good_on_data_held_out(name: str) -> None:
    golden = layer(name)
    for group, zero_point in ((32, False), (32, True), (128, False), (128, True)):
        fmt = IntFormat(4, group, zero_point)
        parts = solve(golden.weight, fmt, Algorithm("gptq"), golden.moments, name)
        _, _, held = theirs(golden, group, zero_point, ORDERED)
        assert golden.held_out_error(fmt.decode(parts, golden.weight.shape[1])) <= held


@pytest.mark.parametrize("name", LAYERS)
def test_mse_loses_less_of_the_weight_than_theirs(name: str) -> None:
    golden = layer(name)
    for group in (32, 128):
        fmt = IntFormat(4, group, False)
        values = fmt.decode(solve(golden.weight, fmt, Algorithm("mse"), None, name), golden.weight.shape[1])
        error = float(np.square(golden.weight - values).sum() / np.square(golden.weight).sum())
        tools = [
            result["weight_error"]
            for key, result in golden.results.items()
            if key.split(".")[1] in (f"int4_g{group}", f"int4_g{group}_sym")
            and key.split(".")[2] in ("mse", "mse_fine")
        ]
        assert tools
        assert error <= min(tools) * (1 + SAME)


@pytest.mark.parametrize("name", LAYERS)
def test_int8_per_channel_is_the_tools(name: str) -> None:
    golden, fmt = layer(name), ScaledFormat("int8", "channel")
    values = fmt.decode(solve(golden.weight, fmt, Algorithm("minmax"), None, name), golden.weight.shape[1])
    assert golden.error(values) == pytest.approx(golden.results["modelopt.int8_channel.max"]["error"], rel=2e-3)


@pytest.mark.parametrize("alpha", [0.5, 1.0])
@pytest.mark.parametrize("name", LAYERS)
def test_smoothing_factors_are_the_tools_times_a_number(name: str, alpha: float) -> None:
    golden = layer(name)
    stored = golden.arrays[f"modelopt.w8a8.smoothquant_{alpha}.pre_quant_scale"].astype(np.float64)
    ratio = smoothing_factors([golden.weight], golden.moments, alpha) * stored.reshape(-1)
    np.testing.assert_allclose(ratio / ratio[0], 1.0, rtol=2e-3)
