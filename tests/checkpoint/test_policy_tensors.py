"""Tensors of policies: two sets of names, tied pairs, tensors without effect, missing and misshapen ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_files import assert_one_sentence
from policy_folders import CONFIG, EMBEDDING, EXPERT, HEAD, PALIGEMMA, Tensors, copy, options, put, rewrite

from edgewright.checkpoint.policy import PolicyOptions, open_policy
from edgewright.errors import ConfigError, EdgewrightError, TensorMismatchError, UnsupportedFormatError


def test_prefixed_names_and_plain_ones_are_the_same(tmp_path: Path) -> None:
    plain, prefixed = copy("pi0", tmp_path / "a"), copy("pi0", tmp_path / "b")
    rewrite(prefixed, lambda tensors: {f"model.{name}": tensor for name, tensor in tensors.items()})
    one, other = (open_policy(folder, options("pi0")) for folder in (plain, prefixed))
    assert one.tensors.keys() == other.tensors.keys()
    assert one.sizes == other.sizes
    np.testing.assert_array_equal(one.tensors[EMBEDDING].read(), other.tensors[EMBEDDING].read())


def test_one_tensor_under_two_names_is_refused(tmp_path: Path) -> None:
    folder = copy("pi0", tmp_path)
    rewrite(folder, lambda tensors: tensors | {"model.state_proj.bias": tensors["state_proj.bias"]})
    with pytest.raises(TensorMismatchError) as caught:
        open_policy(folder, options("pi0"))
    assert_one_sentence(caught.value, "state_proj.bias", "two names")


def test_the_embedding_under_either_name(tmp_path: Path) -> None:
    folder = copy("pi0", tmp_path)
    expected = open_policy(folder, options("pi0")).tensors[EMBEDDING].read()
    rewrite(folder, lambda tensors: tensors | {EMBEDDING: tensors.pop(HEAD)})
    policy = open_policy(folder, options("pi0"))
    np.testing.assert_array_equal(policy.tensors[EMBEDDING].read(), expected)
    assert HEAD not in policy.tensors
    assert [name for name, _ in policy.ignored] == [f"{EXPERT}lm_head.weight"]


def test_both_names_alike_are_one_tensor_and_different_ones_contradict_in_openpi(tmp_path: Path) -> None:
    folder = copy("pi0", tmp_path)
    rewrite(folder, lambda tensors: tensors | {EMBEDDING: tensors[HEAD].copy()})
    policy = open_policy(folder, options("pi0"))
    assert HEAD in dict(policy.ignored)
    assert HEAD not in policy.tensors

    def change(tensors: Tensors) -> None:
        tensors[EMBEDDING][-1, -1] += 1

    def shorten(tensors: Tensors) -> None:
        tensors[EMBEDDING] = tensors[HEAD][:-1].copy()

    for contradict in (change, shorten):
        rewrite(folder, contradict)
        with pytest.raises(TensorMismatchError) as caught:
            open_policy(folder, options("pi0"))
        assert_one_sentence(caught.value, "different values", EMBEDDING, HEAD)


def test_lerobots_embedding_wins_over_a_head_that_differs(tmp_path: Path) -> None:
    folder = copy("pi05", tmp_path)

    def change(tensors: Tensors) -> None:
        tensors[f"model.{HEAD}"] += 1

    before = open_policy(folder).tensors[EMBEDDING].read()
    rewrite(folder, change)
    policy = open_policy(folder)
    np.testing.assert_array_equal(policy.tensors[EMBEDDING].read(), before)
    assert f"model.{HEAD}" in dict(policy.ignored)
    rewrite(folder, lambda tensors: {name: value for name, value in tensors.items() if name != f"model.{EMBEDDING}"})
    np.testing.assert_array_equal(open_policy(folder).tensors[EMBEDDING].read(), before + np.float32(1))


def test_the_vision_tower_under_its_newer_name(tmp_path: Path) -> None:
    folder = copy("pi0", tmp_path)
    before = open_policy(folder, options("pi0"))
    rewrite(
        folder,
        lambda tensors: {n.replace("vision_tower.vision_model.", "vision_tower."): t for n, t in tensors.items()},
    )
    after = open_policy(folder, options("pi0"))
    assert after.tensors.keys() == before.tensors.keys()
    assert after.sizes == before.sizes


def test_buffers_are_left_out_and_listed(tmp_path: Path) -> None:
    folder = copy("pi0", tmp_path)
    names = [
        f"{PALIGEMMA}model.language_model.rotary_emb.inv_freq",
        f"{PALIGEMMA}model.vision_tower.vision_model.embeddings.position_ids",
    ]
    rewrite(folder, lambda tensors: tensors | {name: np.zeros(4, np.int64) for name in names})
    policy = open_policy(folder, options("pi0"))
    assert set(names) <= set(dict(policy.ignored))
    assert not set(names) & set(policy.tensors)


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("model.proprio_history_proj.weight", ConfigError, "memory"),
        ("proprio_history_proj.bias", ConfigError, "proprio_history_proj.bias"),
        ("normalize_inputs.buffer_observation_state.mean", UnsupportedFormatError, "migrate"),
        ("model.unnormalize_outputs.buffer_action.std", UnsupportedFormatError, "migrate"),
        ("base_model.model.action_in_proj.lora_A.weight", UnsupportedFormatError, "merge"),
    ],
)
def test_weights_of_forms_that_are_not_supported(
    tmp_path: Path, name: str, error: type[EdgewrightError], words: str
) -> None:
    folder = copy("pi05", tmp_path)
    rewrite(folder, lambda tensors: tensors | {name: np.zeros((2, 3), np.float32)})
    with pytest.raises(error) as caught:
        open_policy(folder)
    assert_one_sentence(caught.value, name, words)


def test_pi0_fast_and_strangers_are_told(tmp_path: Path) -> None:
    folder = copy("pi0", tmp_path)
    rewrite(folder, lambda tensors: {name: value for name, value in tensors.items() if name.startswith(PALIGEMMA)})
    with pytest.raises(TensorMismatchError) as caught:
        open_policy(folder, options("pi0"))
    assert_one_sentence(caught.value, "pi0-FAST")
    rewrite(folder, lambda tensors: {"lm.weight": np.zeros((2, 2), np.float32)})
    with pytest.raises(TensorMismatchError) as stranger:
        open_policy(folder, options("pi0"))
    assert_one_sentence(stranger.value, "no known policy", "none")
    mixed = copy("pi0", tmp_path / "mixed")
    rewrite(mixed, lambda tensors: tensors | {"time_mlp_in.weight": np.zeros((2, 2), np.float32)})
    with pytest.raises(TensorMismatchError) as both:
        open_policy(mixed, options("pi0"))
    assert_one_sentence(both.value, "time_mlp_in.weight", "state_proj.weight")


V = f"{PALIGEMMA}model.vision_tower.vision_model."
L = f"{PALIGEMMA}model.language_model.layers."
X = f"{EXPERT}model.layers."


def drop(*starts: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: value for name, value in tensors.items() if not name.startswith(starts)}


def shape(name: str, *sizes: int, dtype: Any = np.float32) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tensors | {name: np.ones(sizes, dtype)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop("action_out_proj.weight"), "lacks the tensor action_out_proj.weight"),
        (drop(f"{V}embeddings.patch_embedding.weight"), "patch_embedding.weight"),
        (drop(f"{L}0."), "layers.0.self_attn.q_proj.weight"),
        (drop(f"{V}encoder.layers.0."), "vision_model.encoder.layers.0, though it has later ones"),
        (drop(f"{V}encoder.layers."), "lacks the layers"),
        (drop(f"{X}1."), "has 1 layers with 1 key heads, the language model 2"),
        (shape("action_in_proj.weight", 24), "should have 2 dimensions"),
        (shape("action_in_proj.weight", 24, 31), "action_in_proj takes 31 numbers and action_out_proj gives 32"),
        (shape("action_in_proj.weight", 25, 32), "which doesn't fit"),
        (shape(f"{V}embeddings.position_embedding.weight", 5, 32), "no square image"),
        (shape(f"{V}embeddings.patch_embedding.weight", 32, 3, 14, 13), "14 x 13"),
        (shape(f"{V}embeddings.patch_embedding.weight", 36, 3, 14, 14), "at width 36"),
        (shape(f"{L}0.self_attn.q_proj.weight", 60, 20), "not whole heads"),
        (shape(f"{L}0.self_attn.k_proj.weight", 12, 20), "not whole heads"),
        (shape(f"{L}0.self_attn.k_proj.weight", 24, 20), "not whole heads"),
        (shape(f"{L}0.self_attn.k_proj.weight", 0, 20), "none of them empty"),
        (shape(f"{L}0.mlp.up_proj.weight", 36, 20, dtype=np.int8), "not floats"),
        (shape(f"{L}7.mlp.up_proj.weight", 36, 20), "language_model.layers.2, though it has later ones"),
    ],
)
def test_tensors_that_are_missing_or_misshapen(
    tmp_path: Path, change: Callable[[Tensors], Tensors], words: str
) -> None:
    folder = copy("pi0", tmp_path)
    rewrite(folder, change)
    with pytest.raises(TensorMismatchError) as caught:
        open_policy(folder, options("pi0"))
    assert_one_sentence(caught.value, words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (shape("model.vlm_with_expert.vlm.model.connector.modality_projection.proj.weight", 40, 25), "no square"),
        (shape("model.vlm_with_expert.vlm.model.connector.modality_projection.proj.weight", 40, 216), "no square"),
        (shape("model.vlm_with_expert.vlm.model.connector.modality_projection.proj.weight", 40, 23), "no square"),
        (
            drop("model.vlm_with_expert.lm_expert.layers.2.", "model.vlm_with_expert.lm_expert.layers.3."),
            "num_expert_layers",
        ),
        (drop("model.vlm_with_expert.vlm.model.text_model.layers.3."), "as many of both"),
    ],
)
def test_smolvla_tensors_that_do_not_fit(tmp_path: Path, change: Callable[[Tensors], Tensors], words: str) -> None:
    folder = copy("smolvla", tmp_path)
    rewrite(folder, change)
    with pytest.raises(TensorMismatchError) as caught:
        open_policy(folder, options("smolvla"))
    assert_one_sentence(caught.value, words)


def test_sizes_that_no_shape_tells_are_asked_for(tmp_path: Path) -> None:
    folder = copy("smolvla", tmp_path)
    with pytest.raises(TensorMismatchError) as caught:
        open_policy(folder)
    assert_one_sentence(caught.value, "text.head_dim")
    with pytest.raises(ConfigError) as heads:
        open_policy(folder, PolicyOptions(sizes={"text.head_dim": 14}))
    assert_one_sentence(heads.value, "vision.heads")
    put(folder, CONFIG, "vlm_model_name", value="someone/another-vlm")
    for sizes, asked in (
        ({}, "text.head_dim"),
        ({"text.head_dim": 14}, "vision.heads"),
        ({"text.head_dim": 14, "vision.heads": 3}, "text.epsilon"),
        ({"text.head_dim": float("nan")}, "positive integer"),
        ({"text.head_dim": 14.5}, "positive integer"),
        ({"expert.heads": 3}, "can't be given"),
    ):
        with pytest.raises(ConfigError) as one:
            open_policy(folder, PolicyOptions(sizes=sizes))
        assert_one_sentence(one.value, asked)
    given = {"text.head_dim": 14, "text.epsilon": 1e-6, "vision.heads": 3}
    assert open_policy(folder, PolicyOptions(sizes=given)).sizes.text_epsilon == 1e-6
