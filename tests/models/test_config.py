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
        is_decoder=True,
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
        "is_decoder is True where only False is supported",
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
        ("gemma", {"hidden_activation": "silu"}, "hidden_activation is 'silu'"),
        ("gemma2", {"sliding_window_size": 9}, "sliding_window_size is 9 but the config also says 7"),
        (
            "ministral3",
            {"rope_parameters": ...},
            "llama_4_scaling_beta of the rope_parameters is None",
        ),
        ("phi", {"rope_parameters": {"partial_rotary_factor": 1.5}}, "15 of a head's 10 elements are rotary"),
        ("phi3", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "the rope type is 'dynamic'"),
        ("phi3", {"full_attn_mod": 2}, "full_attn_mod is 2"),
        ("phi3_longrope", {"original_max_position_embeddings": 32}, "is 32 but 24 in the rope's parameters"),
        ("stablelm", {"head_dim": 8}, "4 heads of 8 don't make up 40"),
        ("starcoder2", {"norm_type": "rms"}, "norm_type is 'rms'"),
    ],
)
def test_values_that_cannot_be_honoured(case: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        build_llm(changed(golden(case).checkpoint, **keys))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("case", "keys"),
    [
        ("gemma", {"hidden_act": "gelu"}),
        ("gemma", {"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"}),
        ("gemma2", {"hidden_act": "relu", "sliding_window_size": 7}),
        ("phi3_longrope", {"rope_type": "su"}),
        ("phi3_longrope", {"rope_type": "yarn"}),
        ("phi3", {"attention_bias": False, "mlp_bias": False, "lm_head_bias": False, "full_attn_mod": 1}),
        ("ministral3", {"max_position_embeddings": 99}),
        ("starcoder2", {"layer_norm_epsilon": 0.1, "activation_function": "gelu", "norm_type": "layer_norm"}),
        ("smollm3", {"max_window_layers": 1, "pretraining_tp": 2}),
        ("llama", {"pretraining_tp": 2, "activation": "swiglu", "max_sequence_length": 7}),
        ("qwen2", {"use_mrope": False, "max_window_layers": 0, "dual_chunk_attention_config": {"chunk_size": 9}}),
        ("nemotron", {"rope_percent": 0.5}),
        ("ernie4_5", {"hidden_dropout_prob": 0.1, "use_flash_attention": True, "use_rmsnorm": True}),
        ("nemotron_h", {"num_query_groups": 2}),
        ("hunyuan_v1_moe", {"routed_scaling_factor": False, "n_group": False, "topk_group": False}),
    ],
)
def test_keys_of_public_checkpoints_that_change_nothing(case: str, keys: dict[str, Any], tmp_path: Path) -> None:
    reference = golden(case)
    parameters = reference.checkpoint.config.get("rope_parameters", {})
    if case in ("phi3_longrope", "ministral3"):  # the keys stand among the rope's
        keys = {"rope_parameters": {**parameters, **keys}}
    engines = [
        engine_of(lowered(checkpoint, "onnxruntime"), tmp_path / name)
        for name, checkpoint in (("before", reference.checkpoint), ("after", changed(reference.checkpoint, **keys)))
    ]
    before, after = (Session(engine).append(reference.ids, logits="all") for engine in engines)
    np.testing.assert_array_equal(after, before)


def test_the_published_gemma_3_4b_config_says_little() -> None:
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    _, config = config_of({"model_type": "gemma3", "text_config": text})
    sizes = (config.vocab_size, config.num_attention_heads, config.kv_heads, config.head_size)
    assert sizes == (262208, 8, 4, 256)


def test_gemma_3_with_vision_has_no_cap() -> None:
    checkpoint = golden("gemma3").checkpoint
    text = checkpoint.config["text_config"]
    build_llm(changed(checkpoint, text_config={**text, "final_logit_softcapping": None}))
    with pytest.raises(ConfigError, match=r"final_logit_softcapping is 30.0 where only None is supported"):
        build_llm(changed(checkpoint, text_config={**text, "final_logit_softcapping": 30.0}))


def test_helium_turns_slowly_where_nothing_is_said() -> None:
    """`HeliumConfig` has another default than most."""
    config = {k: v for k, v in read_config("helium").items() if k not in ("rope_parameters", "rope_theta")}
    assert config_of(config)[1].rope_theta == 100000.0


@pytest.mark.parametrize("case", ["gemma3_text", "olmo3"])
def test_truncate_is_refused_where_transformers_does_not_see_it(case: str) -> None:
    ropes = read_config(case)["rope_parameters"]
    yarn = {"rope_type": "yarn", "rope_theta": 7000.0, "factor": 4.0, "original_max_position_embeddings": 32}
    for truncate, fine in ((True, True), (False, False)):
        ropes = {**ropes, "full_attention": {**yarn, "truncate": truncate}}
        checkpoint = changed(golden(case).checkpoint, rope_parameters=ropes)
        if fine:
            build_llm(checkpoint)
            continue
        with pytest.raises(ConfigError, match="truncate is false"):
            build_llm(checkpoint)


def test_olmo3_takes_no_top_level_theta_of_windowed_layers() -> None:
    with pytest.raises(ConfigError, match="rope_local_base_freq is unknown to 'olmo3'"):
        build_llm(changed(golden("olmo3").checkpoint, rope_local_base_freq=1e4))


def test_a_zero_mscale_of_yarn_is_none() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    zero = RopeTable("rope", 64, 16, 5000.0, yarn | {"mscale": 1.0, "mscale_all_dim": 0.0})
    assert zero.angles()[1] == RopeTable("rope", 64, 16, 5000.0, yarn).angles()[1]
    with pytest.raises(ConfigError, match="a positive number or zero"):
        RopeTable("rope", 64, 16, 5000.0, yarn | {"mscale": -1.0})


def test_a_context_outside_the_model_is_refused() -> None:
    checkpoint = golden("llama").checkpoint
    for context in (0, -4, 257):
        with pytest.raises(ConfigError, match=rf"A context of {context} tokens is outside .* \(1 to 256\)"):
            build_llm(checkpoint, max_context=context)


def test_model_types() -> None:
    for kind, message in (
        ("lama", "nearest known one is llama"),
        ("qwen4_text", "qwen3_5_text"),
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


@pytest.mark.parametrize("kind", ["su", "axial", "Dynamic"])
def test_unsupported_rope_scaling_is_refused_by_name(kind: str) -> None:
    parameters = {"rope_type": kind, "rope_theta": 5000.0, "factor": 2.0}
    known = "default, linear, llama3, yarn, dynamic, longrope, proportional"
    with pytest.raises(ConfigError, match=rf"'{kind}' isn't supported; known types are {known}"):
        build_llm(changed(golden("llama").checkpoint, rope_parameters=parameters))
    with pytest.raises(ConfigError, match=kind):
        build_llm(changed(golden("llama").checkpoint, rope_parameters=..., rope_scaling={"type": kind, "factor": 2.0}))


def test_dynamic_rope_is_the_plain_one_within_the_models_context() -> None:
    dynamic, factor = RopeTable("rope", 8, 4, 1e4, {"rope_type": "dynamic", "factor": 2.0}).angles()
    plain, _ = RopeTable("rope", 8, 4, 1e4).angles()
    np.testing.assert_array_equal(dynamic, plain)
    assert factor == 1.0


def test_proportional_rope_turns_a_part_of_the_pairs() -> None:
    parameters = {"rope_type": "proportional", "partial_rotary_factor": 0.5, "factor": 2.0}
    angles, factor = RopeTable("rope", 8, 8, 1e4, parameters).angles()
    plain, _ = RopeTable("rope", 8, 8, 1e4).angles()
    np.testing.assert_array_equal(angles, [plain[0] / 2, plain[1] / 2, 0, 0])
    assert factor == 1.0


def test_longrope_has_a_set_of_frequencies_for_short_and_one_for_long_texts() -> None:
    checkpoint = golden("llama_rope_longrope").checkpoint
    original = checkpoint.config["rope_parameters"]["original_max_position_embeddings"]
    for context, switch in ((original, None), (original + 1, original), (256, original)):
        stage = build_llm(checkpoint, max_context=context)
        assert stage.contract.rope_switch == switch
        assert stage.weights["rope.cos"].shape == ((switch or 0) + context, 4)
    table = RopeTable("rope", 256, 8, 5000.0, checkpoint.config["rope_parameters"])
    plain, _ = RopeTable("rope", 256, 8, 5000.0).angles()
    for long, key in ((False, "short_factor"), (True, "long_factor")):
        angles, factor = table.angles(long=long)
        np.testing.assert_allclose(angles * checkpoint.config["rope_parameters"][key], plain, rtol=1e-6)
        assert factor == pytest.approx((1 + np.log(5) / np.log(original)) ** 0.5)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"short_factor": None}, "lacks short_factor"),
        ({"long_factor": None, "original_max_position_embeddings": None}, "lacks long_factor, original_max_position_"),
        ({"long_factor": [1.0, 2.0, 3.0]}, "3 values in long_factor where half the rotary width, 4, is needed"),
        ({"short_factor": [1.0, 2.0, 3.0, -1.0]}, "a list of positive numbers is needed"),
        ({"short_factor": 1.0}, "a list of positive numbers is needed"),
        ({"short_mscale": 1.2}, "aren't understood: short_mscale"),
    ],
)
def test_longrope_that_is_not_whole_is_refused(keys: dict[str, Any], message: str) -> None:
    checkpoint = golden("llama_rope_longrope").checkpoint
    with pytest.raises(ConfigError, match=message):
        build_llm(changed(checkpoint, rope_parameters={**checkpoint.config["rope_parameters"], **keys}))


@pytest.mark.parametrize("case", ["llama_rope_linear", "llama_rope_llama3", "llama_rope_yarn", "llama_rope_dynamic"])
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
    for scaling in ({"rope_type": "dynamic"}, {"rope_type": "linear"}, {"rope_type": "linear", "factor": 2.0, "x": 1}):
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


def test_a_tied_head_may_have_a_bias_of_its_own() -> None:
    checkpoint = golden("phi").checkpoint
    tied = with_tensors(changed(checkpoint, tie_word_embeddings=True), **{HEAD: ...})
    assert "lm_head.bias" in build_llm(tied).weights
    assert HEAD not in build_llm(tied).weights
    with pytest.raises(TensorMismatchError, match="two different tensors"):
        build_llm(changed(checkpoint, tie_word_embeddings=True))


def test_heads_of_a_stacked_norm_are_counted() -> None:
    checkpoint = golden("stablelm_qk_norm").checkpoint
    name = "model.layers.0.self_attn.q_layernorm.norms.2.weight"
    with pytest.raises(
        TensorMismatchError, match=r"q_layernorm\.weight has 3 parts where 4 are needed; number 2 is missing"
    ):
        build_llm(with_tensors(checkpoint, **{name: ...}))
    with pytest.raises(TensorMismatchError, match=r"k_layernorm\.weight has 2 parts where 1 are needed"):
        build_llm(changed(checkpoint, num_key_value_heads=1))


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


# -- hostile configs ---------------------------------------------------------------------------------------------------


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


HOSTILE: list[tuple[str, dict[str, Any], str]] = [
    ("mixtral", {"num_local_experts": 10**9}, "num_local_experts is 1000000000, more than"),
    ("olmoe", {"num_experts": 10**9}, "num_experts is 1000000000, more than"),
    ("qwen3_next", {"linear_num_key_heads": 10**9, "linear_num_value_heads": 10**9}, "more than"),
    ("falcon_new", {"num_attention_heads": 10**9}, "more than"),
    ("llama", {"rms_norm_eps": 10**400}, "rms_norm_eps is larger than any floating-point number"),
    ("granite", {"embedding_multiplier": 10**400}, "embedding_multiplier is larger than any"),
    ("gemma2", {"final_logit_softcapping": 10**400}, "final_logit_softcapping is larger than any"),
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 10**400}}, "rope_theta is larger than any"),
    ("llama", {"sparse": nested(3000)}, "nested too deeply"),
    (
        "llama_rope_longrope",
        {"rope_parameters": {"rope_type": "longrope", "rope_theta": 5e3, "short_factor": [1.0] * 5,
                             "long_factor": [1.0] * 5, "original_max_position_embeddings": 1}},
        "original_max_position_embeddings above 1",
    ),
    (
        "llama_rope_yarn",
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 5e3, "factor": 4.0, "beta_fast": 1e-308,
                             "original_max_position_embeddings": 32}},
        "can't be computed",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("case", "keys", "message"), HOSTILE)
def test_hostile_values_are_refused_at_once(case: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_llm(changed(golden(case).checkpoint, **keys))


def test_strange_numbers_of_experts_are_left_over() -> None:
    checkpoint = golden("mixtral").checkpoint
    name = "model.layers.0.block_sparse_moe.experts.{}.w1.weight"
    assert name.format(0) in checkpoint.tensors
    for odd in ("01", "\u0663", "9" * 5000):
        extra = with_tensors(checkpoint, **{name.format(odd): ArrayTensor("x", np.ones((3, 3)))})
        with pytest.raises(TensorMismatchError, match="not used by the family"):
            build_llm(extra)
    with pytest.raises(TensorMismatchError, match="number 0 is missing"):
        build_llm(with_tensors(checkpoint, **{name.format(0): ...}))


def test_matrices_of_whole_numbers_are_refused_through_views_as_well() -> None:
    checkpoint = golden("gpt2").checkpoint
    name = next(name for name in checkpoint.tensors if name.endswith("h.0.mlp.c_fc.weight"))
    shape = checkpoint.tensors[name].shape
    odd = ArrayTensor(name, np.ones(shape), "int64")
    with pytest.raises(TensorMismatchError, match="stored as int64"):
        build_llm(with_tensors(checkpoint, **{name: odd}))
