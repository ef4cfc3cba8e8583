"""Families with recurrent layers: the spellings of their checkpoints, and what of their configs is refused."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from conftest import ArrayTensor, MakeEngine, arrays, changed, golden, relative_error
from edgewright.checkpoint import Checkpoint
from edgewright.errors import ConfigError, TensorMismatchError
from edgewright.models import build_llm, config_of
from edgewright.models.lfm2 import Config as Lfm2
from edgewright.runtime.session import Session


def renamed(checkpoint: Checkpoint, old: str, new: str) -> Checkpoint:
    tensors = {name.replace(old, new): tensor for name, tensor in checkpoint.tensors.items()}
    return dataclasses.replace(checkpoint, tensors=tensors)


def test_infinite_numbers_in_both_spellings() -> None:
    checkpoint = golden("mamba2").checkpoint
    for limit in ([0.0, math.inf], [0.0, {"__float__": "Infinity"}], ...):
        _, config = config_of(changed(checkpoint, time_step_limit=limit).config)
        assert getattr(config, "time_step_limit", None) in (None, [0.0, math.inf])
    for limit in ([0.0], [0.6, 0.3], [-1.0, 1.0], [0.0, {"__float__": "NaN"}], [0.0, "inf"]):
        with pytest.raises(ConfigError, match="time_step_limit"):
            build_llm(changed(checkpoint, time_step_limit=limit))


@pytest.mark.parametrize(
    ("case", "keys", "text"),
    [
        ("mamba2", {"hidden_act": "gelu"}, "hidden_act is 'gelu' where only 'silu'"),
        ("mamba2", {"num_heads": 5}, "num_heads times head_dim isn't expand times hidden_size"),
        ("mamba2", {"n_groups": 4}, "6 heads don't share 4 groups evenly"),
        ("mamba2", {"rope_theta": 1e4}, "rope_theta is unknown"),
        ("bamba", {"mamba_d_head": "wide"}, "mamba_d_head is 'wide'"),
        ("bamba", {"mamba_n_heads": 7}, "7 heads of 16 aren't the mixer's 96"),
        ("bamba", {"mamba_n_groups": 4}, "6 mamba heads don't share 4 groups evenly"),
        ("falcon_h1", {"ssm_multipliers": [1.0]}, "ssm_multipliers has 1 values where 5 are needed"),
        ("falcon_h1", {"attn_layer_indices": [0]}, "attn_layer_indices"),
        ("granitemoehybrid", {"layer_types": ["mamba", "attention"]}, "2 entries for 3 layers"),
        ("granitemoehybrid", {"layer_types": ["mamba", "attention", "window"]}, "layer_types holds window"),
        ("granitemoehybrid", {"position_embedding_type": "alibi"}, "position_embedding_type is 'alibi'"),
        ("granitemoehybrid", {"num_experts_per_tok": 6}, "6 of 5 experts can't be chosen"),
        ("granitemoehybrid", {"num_experts_per_tok": 0}, "0 of 5 experts are chosen"),
        ("lfm2_moe", {"num_experts_per_tok": 7}, "7 of 6 experts can't be chosen"),
        ("nemotron_h", {"layers_block_type": ...}, "hybrid_override_pattern is None"),
        (
            "nemotron_h",
            {"layers_block_type": ..., "hybrid_override_pattern": "M-X"},
            "hybrid_override_pattern is 'M-X'",
        ),
        ("nemotron_h", {"num_hidden_layers": 5}, "4 entries for 5 layers"),
        ("nemotron_h", {"mamba_hidden_act": "gelu"}, "mamba_hidden_act"),
        ("nemotron_h_moe", {"n_group": 4}, "3 of 6 experts can't be chosen in 2 of 4 groups"),
        ("qwen3_next", {"num_experts_per_tok": 6}, "6 of 5 experts can't be chosen"),
        ("qwen3_5_text", {"hidden_act": "gelu"}, "hidden_act is 'gelu' where only 'silu'"),
        ("qwen3_5_text", {"attn_output_gate": False}, "attn_output_gate is False"),
        ("qwen3_5_text", {"linear_num_key_heads": 3}, "no multiple of linear_num_key_heads"),
    ],
)
def test_refused_by_name(case: str, keys: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        build_llm(changed(golden(case).checkpoint, **keys))


@pytest.mark.parametrize(
    ("case", "keys"),
    [
        ("lfm2", {"tie_word_embeddings": ..., "tie_embedding": True}),
        ("lfm2", {"layer_types": ..., "full_attn_idxs": [2], "intermediate_size": 3, "block_ff_dim": 54}),
        ("bamba", {"mamba_d_head": "auto", "num_logits_to_keep": 9}),
        ("bamba", {"attn_rotary_emb": 3}),
        ("falcon_h1", {"mamba_d_head": "auto", "mamba_expand": 9}),
        ("granitemoehybrid", {"layer_types": ..., "layers_block_type": ["mamba", "attention", "mamba"]}),
        ("nemotron_h", {"head_dim": ..., "attention_head_dim": 10, "rms_norm_eps": 0.5, "rope_theta": 5.0}),
        ("nemotron_h", {"layers_block_type": ["mamba", "mlp", "attention", "mamba"], "num_hidden_layers": 4}),
        ("nemotron_h", {"layers_block_type": ..., "hybrid_override_pattern": "M-*M"}),
        ("qwen3_next", {"layer_types": ..., "use_sliding_window": False}),
        ("qwen3_5_text", {"layer_types": ..., "mlp_only_layers": [], "mtp_num_hidden_layers": 1}),
    ],
)
def test_other_spellings_are_the_same_model(case: str, keys: dict[str, Any], make_engine: MakeEngine) -> None:
    reference = golden(case)
    session = Session(make_engine(changed(reference.checkpoint, **keys)))
    assert relative_error(session.append(reference.ids, "all"), reference.logits) < 2e-5


@pytest.mark.parametrize(
    ("case", "keys"),
    [
        ("mamba2", {"time_step_limit": [0.0, 0.1]}),
        ("nemotron_h", {"time_step_min": 0.5}),
        ("granitemoehybrid", {"position_embedding_type": "rope"}),
        ("qwen3_5_text", {"full_attention_interval": 4, "rms_norm_eps": 0.01}),
    ],
)
def test_keys_that_change_the_model(case: str, keys: dict[str, Any], make_engine: MakeEngine) -> None:
    reference = golden(case)
    session = Session(make_engine(changed(reference.checkpoint, **keys)))
    assert relative_error(session.append(reference.ids, "all"), reference.logits) > 1e-3


def test_the_oldest_name_of_mamba_2s_table(make_engine: MakeEngine) -> None:
    reference = golden("mamba2")
    old = renamed(reference.checkpoint, "backbone.embeddings.", "backbone.embedding.")
    session = Session(make_engine(old))
    assert relative_error(session.append(reference.ids, "all"), reference.logits) < 2e-5


@pytest.mark.parametrize("case", ["qwen3_next", "qwen3_5_moe_text"])
def test_experts_stored_in_one_piece(case: str, make_engine: MakeEngine) -> None:
    """As newer files have them: gate and up `[experts, 2 * inner, width]`, down `[experts, width, inner]`."""
    reference = golden(case)
    values = arrays(reference.checkpoint)
    stacked: dict[str, np.ndarray] = {}
    for name in values:
        if ".experts.0.down_proj" in name:
            layer = name.split("experts.0")[0] + "experts."
            parts = [[values[f"{layer}{e}.{p}_proj.weight"] for e in range(5)] for p in ("gate", "up", "down")]
            stacked[f"{layer}gate_up_proj"] = np.concatenate([np.stack(parts[0]), np.stack(parts[1])], axis=1)
            stacked[f"{layer}down_proj"] = np.stack(parts[2])
    kept = {name: value for name, value in values.items() if ".experts." not in name}
    tensors = {name: ArrayTensor(name, value) for name, value in (kept | stacked).items()}
    session = Session(make_engine(dataclasses.replace(reference.checkpoint, tensors=tensors)))
    assert relative_error(session.append(reference.ids, "all"), reference.logits) < 2e-5
    one = next(name for name in stacked if name.endswith("gate_up_proj"))
    tensors[one] = ArrayTensor(one, stacked[one][:4])
    with pytest.raises(TensorMismatchError, match=r"gate_up_proj has the shape \[80, 32\] where 100 rows are needed"):
        build_llm(dataclasses.replace(reference.checkpoint, tensors=tensors))


def test_layers_that_predict_further_tokens_are_left_out() -> None:
    checkpoint = golden("qwen3_next").checkpoint
    extra = {"mtp.fc.weight": ArrayTensor("mtp.fc.weight", np.zeros((2, 2), np.float32))}
    stage = build_llm(dataclasses.replace(checkpoint, tensors={**checkpoint.tensors, **extra}))
    assert any("1 tensors left out: they predict further tokens" in note for note in stage.notes)


def test_lfm2s_mlp_width() -> None:
    sizes = {"vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    for keys, width in (
        ({"intermediate_size": 12288}, 8192),
        ({"intermediate_size": 100}, 256),
        ({"intermediate_size": 100, "block_auto_adjust_ff_dim": False}, 100),
        ({"intermediate_size": 100, "block_ff_dim": 768}, 512),
        ({"intermediate_size": 1000, "block_ffn_dim_multiplier": None}, 666),
        ({"intermediate_size": 1000, "block_ffn_dim_multiplier": 1.5, "block_multiple_of": 10}, 1000),
    ):
        assert Lfm2(**sizes, **keys).mlp_width == width, keys  # type: ignore[arg-type]


def test_states_are_made_again_where_a_text_grows_past_the_first_rope(make_engine: MakeEngine) -> None:
    """Longrope has other frequencies for long texts: crossing over feeds the text again, from states of zero."""
    factors = {"short_factor": [1.0, 1.5, 2.0, 3.0, 4.0], "long_factor": [2.0, 3.0, 5.0, 7.0, 9.0]}
    rope = {"rope_type": "longrope", "rope_theta": 5000.0, "original_max_position_embeddings": 24, "factor": 4.0}
    reference = golden("lfm2")
    engine = make_engine(changed(reference.checkpoint, rope_parameters={**rope, **factors}))
    assert engine.contract.rope_switch == 24
    ids = [int(i) for i in reference.ids[:40]]
    whole = Session(engine).append(ids, logits="all")[24:]
    session = Session(engine)
    for token in ids[:24]:
        session.append([token], logits="none")
    assert relative_error(session.append(ids[24:], logits="all"), whole) < 1e-5
    session.rewind(20)
    session.append(ids[session.length :], logits="none")
    session.rewind(10)
    short = Session(engine).append(ids[:20], logits="last")
    assert relative_error(session.append(ids[session.length : 20], logits="last"), short) < 1e-5
