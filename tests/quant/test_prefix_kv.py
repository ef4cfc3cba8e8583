"""The pass that hands a prefix KV over as codes: what it changes in both stages, and whom it refuses by name."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from edgewright.contract import StageContract
from edgewright.errors import RecipeError
from edgewright.graph import Stage
from edgewright.graph.builder import EW
from edgewright.models._policy import build_policy
from edgewright.quant.kv import KVFormat, KVScales, cache_of_record, cache_record
from edgewright.quant.prefix_kv import prefix_layers, quantize_prefix
from kv_cases import FORMATS, INT8, INT8_HEAD
from plain_stages import BOUNDS
from policy_goldens import policy_checkpoint

READER = {
    "pi05": "paligemma_with_expert.paligemma.model.language_model.layers.{}.self_attn",
    "smolvla": "vlm_with_expert.vlm.model.text_model.layers.{}.self_attn",
}
ACROSS = "vlm_with_expert.lm_expert.layers.{}.self_attn"


def stages_of(case: str, **options: bool) -> dict[str, Stage]:
    return build_policy(policy_checkpoint(case), bounds=BOUNDS, **options)


def scales_for(stages: dict[str, Stage], fmt: KVFormat) -> dict[str, KVScales]:
    """Scales that are all different."""
    found = {}
    for index, layer in enumerate(prefix_layers(stages["prefix"])):
        n = layer.kv_heads if fmt.per == "head" else 1
        values = [np.arange(1, n + 1, dtype=np.float32) / np.float32(20 + 2 * index + part) for part in (0, 1)]
        found[layer.module] = KVScales(*values)
    return found


def handed(name: str) -> bool:
    return name.startswith(("prefix_key.", "prefix_value."))


def nodes(stage: Stage, kind: str) -> list[ir.Node]:
    return [node for node in stage.graph if node.domain == EW and node.op_type == kind]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.label)
def test_both_stages_agree(fmt: KVFormat, transposed: bool) -> None:
    stages = stages_of("smolvla", kv_transposed=transposed)
    before = {name: stage.contract for name, stage in stages.items()}
    given = scales_for(stages, fmt)
    applied = quantize_prefix(stages["prefix"], stages["denoise"], fmt, given)
    assert [a.module for a in applied] == list(given)
    assert stages["vision"].contract == before["vision"]
    for name in ("prefix", "denoise"):
        contract, old = stages[name].contract, before[name]
        assert contract.kv_dtype == fmt.cache_dtype
        assert StageContract.from_json(json.loads(json.dumps(contract.to_json()))) == contract
        for was, now in zip((*old.inputs, *old.outputs), (*contract.inputs, *contract.outputs), strict=True):
            assert now == dataclasses.replace(was, dtype=fmt.cache_dtype if handed(was.name) else was.dtype)
        graph = {value.name: value.dtype for value in (*stages[name].graph.inputs, *stages[name].graph.outputs)}
        kind = ir.DataType.INT8 if fmt.dtype == "int8" else ir.DataType.FLOAT8E4M3FN
        assert {n for n, dtype in graph.items() if dtype == kind} == {n for n in graph if handed(str(n))}
    rounds, reads = nodes(stages["prefix"], "CacheRound"), nodes(stages["denoise"], "CacheRead")
    assert len(rounds) == len(reads) == 2 * len(applied)
    for node in rounds:
        assert node.outputs[0].is_graph_output()
        assert not node.outputs[0].uses()  # the prefix itself goes on with floats
    for value in stages["denoise"].graph.inputs:
        if handed(str(value.name)):
            assert [use.node.op_type for use in value.uses()] == ["CacheRead"]
    for layer in prefix_layers_of(applied):
        for stage in (stages["prefix"], stages["denoise"]):
            for part, array in (("k_scale", given[layer].key), ("v_scale", given[layer].value)):
                weight = stage.weights[f"{layer}.{part}"]
                np.testing.assert_array_equal(weight.rows(0, len(array)), array)
    record = cache_record(applied)
    found_format, found = cache_of_record(json.loads(json.dumps(record)))
    assert found_format == fmt
    assert found.keys() == given.keys()


def prefix_layers_of(applied: list[Any]) -> list[str]:
    return [a.module for a in applied]


def test_a_layer_is_named_after_who_makes_its_keys() -> None:
    made = [[layer.module for layer in prefix_layers(stages_of(case)["prefix"])] for case in ("pi05", "smolvla")]
    assert made == [[READER[case].format(i) for i in range(len(m))] for case, m in zip(READER, made, strict=True)]
    once = [layer.module for layer in prefix_layers(stages_of("smolvla", cross_once=True)["prefix"])]
    assert once == [(READER["smolvla"] if i % 2 == 0 else ACROSS).format(i) for i in range(len(made[1]))]


def test_scales_of_the_other_form_of_the_graphs_may_be_there() -> None:
    """A quantized policy has those of the expert's projections, whether or not a build makes them with the prefix."""
    both = {**scales_for(stages_of("smolvla"), INT8), **scales_for(stages_of("smolvla", cross_once=True), INT8)}
    for once in (False, True):
        stages = stages_of("smolvla", cross_once=once)
        wanted = [layer.module for layer in prefix_layers(stages["prefix"])]
        applied = quantize_prefix(stages["prefix"], stages["denoise"], INT8, both)
        assert [a.module for a in applied] == wanted
        assert len(both) > len(wanted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop(READER["pi05"].format(1)), r"keys and values of .*layers\.1\.self_attn have no scales"),
        (lambda s: s.clear(), r"layers\.0\.self_attn, .* have no scales for int8/tensor"),
        (
            lambda s: s.update({READER["pi05"].format(7): s[READER["pi05"].format(0)]}),
            r"layers\.7\.self_attn, which the policy's stages don't have",
        ),
        (
            lambda s: s.update({READER["pi05"].format(0) + ".q_proj": s[READER["pi05"].format(0)]}),
            "which the policy's stages don't have",
        ),
        (
            lambda s: s.update({READER["pi05"].format(0): KVScales(np.ones(1, np.float32), np.ones(1))}),
            r"value scales of .*layers\.0\.self_attn are float64 \[1\]",
        ),
        (
            lambda s: s.update({READER["pi05"].format(2): KVScales(*(np.array([x], np.float32) for x in (0, 1)))}),
            r"The key scale of .*layers\.2\.self_attn is 0",
        ),
    ],
)
def test_scales_must_be_those_of_the_policy(change: Any, message: str) -> None:
    stages = stages_of("pi05")
    given = scales_for(stages, INT8)
    change(given)
    before = stages["prefix"].contract, stages["denoise"].contract
    with pytest.raises(RecipeError, match=message):
        quantize_prefix(stages["prefix"], stages["denoise"], INT8, given)
    assert (stages["prefix"].contract, stages["denoise"].contract) == before
    assert not nodes(stages["prefix"], "CacheRound")


def test_scales_of_heads_must_be_as_many_as_there_are_heads() -> None:
    stages = stages_of("smolvla")
    given = scales_for(stages, INT8)
    heads = prefix_layers(stages["prefix"])[0].kv_heads
    assert heads > 1
    with pytest.raises(RecipeError, match=rf"\[1\] where int8/head needs float32 \[{heads}\]"):
        quantize_prefix(stages["prefix"], stages["denoise"], INT8_HEAD, given)
