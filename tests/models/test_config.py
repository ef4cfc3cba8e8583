"""Configs and tensors: consumed or refused, everything wrong listed at once, older and newer spellings agree."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import (
    ArrayTensor,
    arrays,
    changed,
    engine_of,
    golden,
    lowered,
    read_config,
    relative_error,
    with_tensors,
)
from edgewright.checkpoint import Checkpoint
from edgewright.errors import ConfigError, TensorMismatchError, UnknownModelTypeError
from edgewright.models import FAMILIES, build_llm, config_of
from edgewright.models._config import NO_EFFECT
from edgewright.nn.rope import RopeTable
from edgewright.runtime.session import Session

#: One golden a family, the one that uses most keys.
CASE = {
    "llama": "llama_bias",
    "mistral": "mistral_window",
    "qwen2": "qwen2_window",
    "qwen3": "qwen3",
    "gemma3_text": "gemma3_text_softcap",
    "smollm3": "smollm3_window",
}

#: Keys that stand in these configs without being in charge, and what is. They change nothing, or are refused.
SHADOWED = {
    "qwen2": {"max_window_layers": "layer_types"},
    "qwen3": {"max_window_layers": "layer_types", "sliding_window": "use_sliding_window", "use_sliding_window": "null"},
    "gemma3_text": {"_sliding_window_pattern": "layer_types", "attn_logit_softcapping": "as in transformers"},
    "smollm3": {"no_rope_layer_interval": "no_rope_layers", "use_sliding_window": "layer_types"},
}

#: Another valid value of a key, where doubling, halving or negating is none.
OTHER: dict[str, Any] = {
    "hidden_act": "gelu",
    "hidden_activation": "silu",
    "tie_word_embeddings": False,
    "sliding_window": 9,
    "no_rope_layers": [1, 1, 1, 1],
    "rope_type": "linear",
    "use_bidirectional_attention": True,
}


def other(key: str, value: Any, config: Mapping[str, Any]) -> Any:
    """Return another value of the same type."""
    if key in OTHER:
        return OTHER[key]
    if key == "layer_types":
        swap = {"full_attention": "sliding_attention", "sliding_attention": "full_attention"}
        return [*value[:-1], swap[value[-1]]]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value * 2
    assert isinstance(value, float), (key, value)
    return value * 1.5


def mutations(config: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Every single change of a used key, inside `rope_parameters` too: (dotted key, changed config)."""
    found = []
    for key, value in config.items():
        if key in NO_EFFECT:
            continue
        if isinstance(value, Mapping):
            found += [(f"{key}.{inner}", {**config, key: changed_value}) for inner, changed_value in mutations(value)]
        else:
            found.append((key, {**config, key: other(key, value, config)}))
    return found


def logits_of(checkpoint: Checkpoint, folder: Path) -> tuple[np.ndarray, int]:
    engine = engine_of(lowered(checkpoint, "onnxruntime"), folder)
    return Session(engine).append(golden("llama").ids % 90, logits="all"), engine.contract.bounds["capacity"][1]


@pytest.mark.parametrize("family", sorted(CASE))
def test_every_used_key_is_consumed_or_refused(family: str, tmp_path: Path) -> None:
    checkpoint = golden(CASE[family]).checkpoint
    shadowed = SHADOWED.get(family, {})
    before, context = logits_of(checkpoint, tmp_path / "before")
    ignored, refused, consumed = set(), set(), set()
    for number, (key, config) in enumerate(mutations(checkpoint.config)):
        try:
            after, bound = logits_of(dataclasses.replace(checkpoint, config=config), tmp_path / str(number))
        except (ConfigError, TensorMismatchError):
            refused.add(key)
            continue
        same = bound == context and relative_error(after, before) < 1e-5
        (ignored if same else consumed).add(key)
    assert ignored <= set(shadowed)
    assert {"vocab_size", "hidden_size", "num_hidden_layers", "tie_word_embeddings"} <= refused
    assert {"rms_norm_eps", "max_position_embeddings"} <= consumed


def test_shadowed_keys_take_charge_when_the_others_are_gone(tmp_path: Path) -> None:
    """The keys that the test above excuses do decide where nothing shadows them."""
    for case, hidden, key, value in (
        ("qwen2_window", "layer_types", "max_window_layers", 2),
        ("gemma3_text", "layer_types", "_sliding_window_pattern", 3),
        ("smollm3", "no_rope_layers", "no_rope_layer_interval", 3),
    ):
        checkpoint = changed(golden(case).checkpoint, **{hidden: ...})
        one, _ = logits_of(checkpoint, tmp_path / f"{case}1")
        two, _ = logits_of(changed(checkpoint, **{key: value}), tmp_path / f"{case}2")
        assert relative_error(two, one) > 1e-3, key


def test_keys_without_effect_have_none(tmp_path: Path) -> None:
    checkpoint = golden("llama").checkpoint
    noise = dict.fromkeys(sorted(NO_EFFECT.keys() - {"model_type"}), 12345)
    before, _ = logits_of(checkpoint, tmp_path / "a")
    after, _ = logits_of(changed(checkpoint, **noise), tmp_path / "b")
    np.testing.assert_array_equal(before, after)


def test_everything_wrong_with_a_config_is_listed_at_once() -> None:
    checkpoint = changed(
        golden("llama").checkpoint,
        hidden_size=...,
        vocab_size=None,
        rms_norm_eps="tiny",
        mlp_bias=1,
        num_hidden_layers=2.5,
        num_attention_heads=True,
        pretraining_tp=2,
        shiny_new_feature=3,
    )
    with pytest.raises(ConfigError) as error:
        build_llm(checkpoint)
    text = str(error.value)
    for part in (
        "hidden_size is missing",
        "vocab_size is null",
        "rms_norm_eps has the value 'tiny'",
        "mlp_bias has the value 1",
        "num_hidden_layers has the value 2.5",
        "num_attention_heads has the value True",
        "pretraining_tp is 2 where only 1 is supported",
        "shiny_new_feature is unknown to this family",
        "'llama'",
    ):
        assert part in text, text
    assert "intermediate_size" not in text


@pytest.mark.parametrize("family", sorted(CASE))
def test_an_unknown_key_is_refused_by_every_family(family: str) -> None:
    with pytest.raises(ConfigError, match=r"sparse_layers is unknown to this family"):
        build_llm(changed(golden(CASE[family]).checkpoint, sparse_layers=2))


def test_unknown_key_inside_a_text_config_is_refused() -> None:
    checkpoint = golden("gemma3").checkpoint
    with pytest.raises(ConfigError, match="sparse_layers"):
        build_llm(changed(checkpoint, text_config={**checkpoint.config["text_config"], "sparse_layers": 2}))
    with pytest.raises(ConfigError, match="no text_config"):
        build_llm(changed(checkpoint, text_config=...))


@pytest.mark.parametrize(
    ("case", "keys", "message"),
    [
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ("llama", {"num_key_value_heads": 3}, "4 attention heads don't share 3 key/value heads evenly"),
        ("llama", {"head_dim": 11}, "head_dim 11 is odd"),
        ("llama", {"hidden_act": "sillu"}, "hidden_act 'sillu' is none of silu, swish, gelu"),
        ("qwen2", {"layer_types": ["full_attention"] * 2}, "layer_types has 2 entries for 3 layers"),
        ("qwen2", {"layer_types": ["full_attention", "linear_attention", "full_attention"]}, "linear_attention"),
        ("qwen2", {"layer_types": ["full_attention", 3, "full_attention"]}, "layer_types has the value"),
        ("qwen2_window", {"sliding_window": None}, "sliding_window is not set"),
        ("smollm3", {"no_rope_layers": [1, 0, 1]}, "no_rope_layers has 3 entries for 4 layers"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ("mistral", {"attention_bias": True}, "attention_bias is unknown"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is unknown"),
        ("llama", {"quantization_config": {"quant_method": "awq"}}, "quantization_config is unknown"),
    ],
)
def test_values_that_cannot_be_honoured(case: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        build_llm(changed(golden(case).checkpoint, **keys))
    assert message in str(error.value)


def test_a_context_outside_the_model_is_refused() -> None:
    checkpoint = golden("llama").checkpoint
    for context in (0, -4, 257):
        with pytest.raises(ConfigError, match=rf"A context of {context} tokens is outside .* \(1 to 256\)"):
            build_llm(checkpoint, max_context=context)


def test_model_types() -> None:
    for kind, message in (
        ("lama", "nearest known one is llama"),
        ("qwen3_moe", "qwen3"),
        ("bert", ", ".join(FAMILIES)),
    ):
        with pytest.raises(UnknownModelTypeError) as error:
            config_of({"model_type": kind})
        assert message in str(error.value)
        assert repr(kind) in str(error.value)
    for config in ({}, {"model_type": None}, {"model_type": 3}):
        with pytest.raises(ConfigError, match="model_type"):
            config_of(config)


# -- rope -------------------------------------------------------------------------------------------------------------

OLD_ROPE: dict[str, dict[str, Any]] = {
    "llama": {"rope_theta": 5000.0},
    "llama_rope_linear": {"rope_theta": 5000.0, "rope_scaling": {"type": "linear", "factor": 2.5}},
    "llama_rope_yarn": {
        "rope_theta": 5000,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    },
}


@pytest.mark.parametrize("case", sorted(OLD_ROPE))
def test_both_rope_spellings_are_the_same_model(case: str, tmp_path: Path) -> None:
    checkpoint = golden(case).checkpoint
    new, _ = logits_of(checkpoint, tmp_path / "new")
    old, _ = logits_of(changed(checkpoint, rope_parameters=..., **OLD_ROPE[case]), tmp_path / "old")
    np.testing.assert_array_equal(old, new)


def test_conflicting_rope_spellings_are_refused() -> None:
    linear = golden("llama_rope_linear").checkpoint
    with pytest.raises(ConfigError, match=r"rope_theta is 5000\.0 but the config also says 7000"):
        build_llm(changed(linear, rope_theta=7000))
    with pytest.raises(ConfigError, match="rope_scaling"):
        build_llm(changed(linear, rope_scaling={"rope_type": "linear", "factor": 3.0}))
    with pytest.raises(ConfigError, match="rope_local_base_freq"):
        build_llm(changed(golden("gemma3_text").checkpoint, rope_local_base_freq=5.0))
    # Saying the same twice is no conflict.
    build_llm(changed(linear, rope_theta=5000, rope_scaling={"rope_type": "linear", "factor": 2.5}))


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su", "proportional", "axial"])
def test_unsupported_rope_scaling_is_refused_by_name(kind: str) -> None:
    parameters = {"rope_type": kind, "rope_theta": 5000.0, "factor": 2.0}
    with pytest.raises(ConfigError, match=rf"'{kind}' isn't supported; known types are default, linear, llama3, yarn"):
        build_llm(changed(golden("llama").checkpoint, rope_parameters=parameters))
    with pytest.raises(ConfigError, match=kind):
        build_llm(changed(golden("llama").checkpoint, rope_parameters=..., rope_scaling={"type": kind, "factor": 2.0}))


@pytest.mark.parametrize("case", ["llama_rope_linear", "llama_rope_llama3", "llama_rope_yarn"])
def test_unknown_and_missing_keys_of_rope_scaling_are_refused(case: str) -> None:
    checkpoint = golden(case).checkpoint
    parameters = checkpoint.config["rope_parameters"]
    with pytest.raises(ConfigError, match="aren't understood: short_factor"):
        build_llm(changed(checkpoint, rope_parameters={**parameters, "short_factor": [1.0]}))
    without = {key: value for key, value in parameters.items() if key != "factor"}
    with pytest.raises(ConfigError, match="lacks factor"):
        build_llm(changed(checkpoint, rope_parameters=without))


def test_rope_of_layer_kinds() -> None:
    checkpoint = golden("gemma3_text").checkpoint
    parameters = checkpoint.config["rope_parameters"]
    scaled = {**parameters, "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}
    with pytest.raises(ConfigError, match="sliding-attention layers isn't supported"):
        build_llm(changed(checkpoint, rope_parameters=scaled))
    with pytest.raises(ConfigError, match="mixes layer kinds and values"):
        build_llm(changed(checkpoint, rope_parameters={**parameters, "rope_theta": 5.0}))
    with pytest.raises(ConfigError, match="rope_local_base_freq is unknown"):
        build_llm(changed(golden("llama").checkpoint, rope_parameters=parameters))


def test_a_rope_table_refuses_its_scaling_when_it_is_made() -> None:
    for scaling in ({"rope_type": "dynamic", "factor": 2.0}, {"rope_type": "linear"}, {"rope_type": "linear", "x": 1}):
        with pytest.raises(ConfigError):
            RopeTable("rope", 8, 4, 1e4, scaling)


# -- tensors ----------------------------------------------------------------------------------------------------------


def test_every_tensor_that_does_not_fit_is_listed_at_once() -> None:
    checkpoint = with_tensors(
        golden("llama").checkpoint,
        **{
            "model.layers.0.mlp.up_proj.weight": ...,
            "model.norm.weight": ArrayTensor("model.norm.weight", np.ones(39)),
            "model.layers.1.self_attn.q_proj.weight": ArrayTensor("q", np.ones((40, 41))),
            "model.layers.3.mlp.up_proj.weight": ArrayTensor("up", np.ones((44, 40))),
            "model.layers.0.self_attn.q_proj.bias": ArrayTensor("b", np.ones(40)),
        },
    )
    with pytest.raises(TensorMismatchError) as error:
        build_llm(checkpoint)
    text = str(error.value)
    for part in (
        "model.layers.0.mlp.up_proj.weight is missing",
        "model.norm.weight has the shape [39] where [40] is needed",
        "model.layers.1.self_attn.q_proj.weight has the shape [40, 41] where [40, 40] is needed",
        "model.layers.3.mlp.up_proj.weight is not used by the family",
        "model.layers.0.self_attn.q_proj.bias is not used by the family",
    ):
        assert part in text, text
    assert text.count(";") == 4


def test_a_long_list_of_mismatches_is_cut_with_its_length() -> None:
    checkpoint = changed(golden("llama_bias").checkpoint, hidden_size=44)
    with pytest.raises(TensorMismatchError, match=r"; and \d+ more\."):
        build_llm(checkpoint)


@pytest.mark.parametrize("name", ["llama", "llama_bias", "qwen3", "gemma3_prefix", "smollm3"])
def test_each_tensor_is_needed(name: str) -> None:
    """Taking any one tensor away is refused by name, vision tensors of a wrapper excepted."""
    checkpoint = golden(name).checkpoint
    for tensor in checkpoint.tensors:
        if "vision_tower" in tensor or "multi_modal_projector" in tensor:
            build_llm(with_tensors(checkpoint, **{tensor: ...}))
            continue
        with pytest.raises(TensorMismatchError) as error:
            build_llm(with_tensors(checkpoint, **{tensor: ...}))
        assert f"{tensor.rsplit('language_model.', 1)[-1].removeprefix('model.')} is missing" in str(error.value)


def test_each_tensor_counts(tmp_path: Path) -> None:
    """Changing any one tensor changes the logits: nothing is bound and then not used."""
    for case in ("llama_bias", "gemma3_text"):
        checkpoint = golden(case).checkpoint
        # One layer is enough, and the tensors outside of layers.
        names = [name for name in checkpoint.tensors if ".layers." not in name or ".layers.0." in name]
        upper = {name: ... for name in checkpoint.tensors if name not in names}
        checkpoint = with_tensors(changed(checkpoint, num_hidden_layers=1, layer_types=...), **upper)
        before, _ = logits_of(checkpoint, tmp_path / case)
        for number, name in enumerate(names):
            values = checkpoint.tensors[name].read()
            # Not a common factor, which a norm would take out.
            factors = np.linspace(0.5, 1.5, values.size, dtype=np.float32).reshape(values.shape)
            other_tensor = ArrayTensor(name, values * factors + 0.01)
            after, _ = logits_of(with_tensors(checkpoint, **{name: other_tensor}), tmp_path / f"{case}{number}")
            # A bias on keys moves all scores of a query alike but for rope, so it counts a little only.
            assert relative_error(after, before) > 1e-4, name


def test_buffers_of_old_checkpoints_are_left_out_and_noted() -> None:
    extra = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": ArrayTensor("f", np.ones(5)) for i in range(3)}
    stage = build_llm(with_tensors(golden("llama").checkpoint, **extra))
    assert "3 stored buffers recomputed" in stage.notes
    assert not any("inv_freq" in name for name in stage.producers)


def test_tensors_of_other_stages_are_noted_and_prefixes_agree(tmp_path: Path) -> None:
    results = []
    for case in ("gemma3", "gemma3_prefix"):
        checkpoint = golden(case).checkpoint
        stage = build_llm(checkpoint)
        vision = sum("vision_tower" in name or "multi_modal_projector" in name for name in checkpoint.tensors)
        assert f"{vision} tensors of other stages left out" in stage.notes
        results.append(logits_of(checkpoint, tmp_path / case)[0])
    np.testing.assert_array_equal(*results)
    both = golden("gemma3").checkpoint
    twice = with_tensors(both, **{f"model.{k}": v for k, v in both.tensors.items() if k.startswith("language_model.")})
    twice = with_tensors(
        twice, **{k.replace("language_model.model.", "model.language_model."): v for k, v in both.tensors.items()}
    )
    with pytest.raises(TensorMismatchError, match="twice"):
        build_llm(twice)


# -- tied embeddings --------------------------------------------------------------------------------------------------

TABLE, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def test_tied_table_under_either_name_or_repeated_is_the_same_model(tmp_path: Path) -> None:
    checkpoint = golden("qwen2").checkpoint
    assert checkpoint.config["tie_word_embeddings"] is True
    assert HEAD not in checkpoint.tensors
    table = ArrayTensor(TABLE, arrays(checkpoint)[TABLE])
    before, _ = logits_of(checkpoint, tmp_path / "table")
    renamed = with_tensors(checkpoint, **{TABLE: ..., HEAD: table})
    repeated = with_tensors(checkpoint, **{TABLE: table, HEAD: ArrayTensor(HEAD, table.values.copy())})
    for name, twin, note in (("head", renamed, "stored as lm_head.weight"), ("both", repeated, "repeats the tied")):
        assert any(note in n for n in build_llm(twin).notes)
        after, _ = logits_of(twin, tmp_path / name)
        np.testing.assert_array_equal(after, before)


def test_tied_but_two_different_tensors_is_refused() -> None:
    checkpoint = golden("qwen2").checkpoint
    head = arrays(checkpoint)[TABLE]
    head[-1, -1] += 1e-3
    with pytest.raises(TensorMismatchError, match="two different tensors"):
        build_llm(with_tensors(checkpoint, **{HEAD: ArrayTensor(HEAD, head)}))
    with pytest.raises(TensorMismatchError, match="two different tensors"):
        build_llm(with_tensors(checkpoint, **{HEAD: ArrayTensor(HEAD, head[:-1])}))


def test_untied_needs_both() -> None:
    tied = changed(golden("qwen2").checkpoint, tie_word_embeddings=False)
    with pytest.raises(TensorMismatchError, match=r"lm_head\.weight is missing"):
        build_llm(tied)
    stage = build_llm(golden("llama").checkpoint)
    assert {TABLE, HEAD} <= stage.weights.keys()


def test_a_tie_given_beside_the_text_config_counts() -> None:
    checkpoint = golden("gemma3").checkpoint
    text = {k: v for k, v in checkpoint.config["text_config"].items() if k != "tie_word_embeddings"}
    with pytest.raises(TensorMismatchError, match=r"lm_head\.weight is missing"):
        build_llm(changed(checkpoint, text_config=text, tie_word_embeddings=False))
    build_llm(changed(checkpoint, text_config=text, tie_word_embeddings=True))


def test_goldens_configs_are_read_whole() -> None:
    """A sanity check on the tests above: the goldens' configs have the keys that matter."""
    keys = set().union(*(read_config(case) for case in CASE.values()))
    assert {"layer_types", "no_rope_layers", "query_pre_attn_scalar", "mlp_bias", "head_dim"} <= keys
