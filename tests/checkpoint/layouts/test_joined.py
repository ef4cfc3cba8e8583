"""Families whose quantized matrices are cut or joined: codes stay where they can, else floats are exact."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from layout_cases import along, down, tensors

from conftest import ArrayTensor, MakeEngine, golden, relative_error
from edgewright.checkpoint import Checkpoint
from edgewright.checkpoint.layouts.gptq import read
from edgewright.errors import RecipeError, UnsupportedFormatError
from edgewright.formats import ActivationFormat, FloatFormat, IntFormat, LinearInput
from edgewright.models import build_llm
from edgewright.quant.apply import quantize_stage
from edgewright.quant.recipe import stored_recipe
from edgewright.quant.recipe_file import parse_recipe
from edgewright.runtime.session import Session

GROUP = 32


def quantized(
    case: str, bits: int, pattern: str, *, shuffled: bool, one_order: bool = False
) -> tuple[Checkpoint, Checkpoint]:
    """A golden with its linears packed by GPTQ with zero points, and one with the floats they stand for."""
    checkpoint, rng = golden(case).checkpoint, np.random.default_rng(7)
    packed: dict[str, np.ndarray] = {}
    plain = dict(checkpoint.tensors)
    kept = dict(checkpoint.tensors)
    top = (1 << bits) - 1
    for name, tensor in checkpoint.tensors.items():
        if not re.search(pattern, name):
            continue
        weight = tensor.read()
        rows, width = weight.shape
        index = np.arange(width) // GROUP
        if shuffled:
            index = (np.random.default_rng(3) if one_order else rng).permutation(index)
        scales, zeros = np.empty((index.max() + 1, rows), np.float16), np.empty((index.max() + 1, rows), np.int64)
        for group in range(len(scales)):
            part = weight[:, index == group]
            low, high = np.minimum(part.min(axis=1), 0), np.maximum(part.max(axis=1), 0)
            scales[group] = (high - low) / top
            zeros[group] = np.clip(np.rint(-low / scales[group].astype(np.float32)), 0, top)
        steps, offsets = scales[index].astype(np.float32), zeros[index]
        codes = np.clip(np.rint(weight.T / steps) + offsets, 0, top).astype(np.int64)
        module = name.removesuffix(".weight")
        packed[f"{module}.qweight"], packed[f"{module}.qzeros"] = down(codes, bits), along(zeros, bits)
        packed[f"{module}.scales"], packed[f"{module}.g_idx"] = scales, index.astype(np.int32)
        values = np.ascontiguousarray(((codes - offsets).astype(np.float32) * steps).T)
        plain[name] = ArrayTensor(name, values)
        del kept[name]
    config = {"bits": bits, "group_size": GROUP, "sym": False, "desc_act": shuffled, "checkpoint_format": "gptq_v2"}
    found, quantization = read(config, {**kept, **tensors(packed)})
    return (
        dataclasses.replace(checkpoint, tensors=found, quantization=quantization),
        dataclasses.replace(checkpoint, tensors=plain),
    )


def check_same_logits(made: Checkpoint, plain: Checkpoint, case: str, make_engine: MakeEngine) -> None:
    ids = golden(case).ids[:20]
    got, wanted = (Session(make_engine(c, "portable")).append(ids, logits="all") for c in (made, plain))
    assert relative_error(got, wanted) < 2e-6


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_joined_matrix_keeps_its_codes_when_it_is_cut(shuffled: bool, make_engine: MakeEngine) -> None:
    made, plain = quantized("phi3", 4, r"(qkv|gate_up)_proj\.weight$", shuffled=shuffled)
    check_same_logits(made, plain, "phi3", make_engine)
    applied = {a.module: a for a in quantize_stage(build_llm(made), stored_recipe("stored"))}
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
        module = applied[f"model.layers.0.{name}"]
        assert module.exact
        assert module.format == IntFormat(4, GROUP, True, scales="float16")
    assert not any("exact floats" in note for note in build_llm(made).notes)


@pytest.mark.parametrize("case", ["olmoe", "qwen3_moe"])
def test_experts_keep_their_codes_when_they_are_joined(case: str, make_engine: MakeEngine) -> None:
    made, plain = quantized(case, 8, r"\.experts\.", shuffled=False)
    check_same_logits(made, plain, case, make_engine)
    experts = [a for a in quantize_stage(build_llm(made), stored_recipe("stored")) if a.kind == "experts"]
    assert experts
    assert all(a.exact and isinstance(a.format, IntFormat) and a.format.zero_point for a in experts)


def test_experts_in_different_orders_become_exact_floats(make_engine: MakeEngine) -> None:
    made, plain = quantized("olmoe", 8, r"\.experts\.", shuffled=True)
    check_same_logits(made, plain, "olmoe", make_engine)
    stage = build_llm(made)
    assert any("exact floats" in note for note in stage.notes)
    experts = [a for a in quantize_stage(stage, stored_recipe("stored")) if a.kind == "experts"]
    # Down projections are one group wide here: nothing is out of order, so that their codes stay.
    kept = {a.module.rpartition(".")[2]: a for a in experts}
    assert kept["gate_proj"].format == kept["up_proj"].format == FloatFormat("float32")
    assert isinstance(kept["down_proj"].format, IntFormat)
    again = parse_recipe("body: {format: int8}\nlm_head: {format: float32}\nembedding: {format: float32}\n", "r.yaml")
    with pytest.raises(RecipeError, match="second"):
        quantize_stage(build_llm(made), again)


def test_experts_in_one_common_order_become_exact_floats(make_engine: MakeEngine) -> None:
    """The graph can't reorder what experts hold between their products."""
    made, plain = quantized("olmoe", 8, r"\.experts\.", shuffled=True, one_order=True)
    inputs = {id(t.input) for name, t in made.tensors.items() if name.endswith("up_proj.weight") and "layers.0" in name}
    assert len(inputs) == 1
    check_same_logits(made, plain, "olmoe", make_engine)


def test_parts_with_different_factors_are_refused() -> None:
    made, _ = quantized("olmoe", 8, r"\.experts\.", shuffled=False)
    name = "model.layers.0.mlp.experts.1.up_proj.weight"
    made.tensors[name].input = LinearInput(multiply=np.ones(40, np.float32), activation=ActivationFormat("int8", False))
    with pytest.raises(UnsupportedFormatError, match="different"):
        build_llm(made)
