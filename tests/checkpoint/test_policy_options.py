"""What options of policies are checked for and how messages name them; what is noted where files are silent."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import assert_one_sentence
from policy_folders import CONFIG, POST, PRE, copy, edit, options, put, stats_file

from edgewright.checkpoint.policies.options import FLAGS, option
from edgewright.checkpoint.policy import PolicyOptions, is_policy, open_policy
from edgewright.cli._policy import add_policy
from edgewright.errors import ConfigError

RENAME = "rename_observations_processor"


def refused(folder: Path, given: PolicyOptions, *words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_policy(folder, given)
    assert_one_sentence(caught.value, *words)


def without(folder: Path, *names: str) -> None:
    edit(folder, CONFIG, lambda config: [config.pop(name) for name in names])


def test_every_option_that_has_a_flag_is_named_by_it() -> None:
    parser = argparse.ArgumentParser()
    add_policy(parser)
    known = {text for action in parser._actions for text in action.option_strings}
    assert set(FLAGS) == {entry.name for entry in fields(PolicyOptions)} - {"kind"}
    for flag in FLAGS.values():
        assert {word for word in flag.split() if word.startswith("--")} <= known
    assert option("delta_mask") == "option delta_mask (--delta-actions)"
    assert option("kind") == "option kind"


@pytest.mark.parametrize(
    ("case", "given", "flag"),
    [
        ("pi05", {"max_tokens": 9}, "option max_tokens (--max-prompt)"),
        ("pi05", {"delta_mask": (True,)}, "option delta_mask (--delta-actions)"),
        ("pi05", {"cameras": ("x",)}, "option cameras (--cameras)"),
        ("pi05", {"cameras": ("x", "x")}, "'x' twice"),
        ("pi05", {"required_cameras": ("x",)}, "option required_cameras (--required-cameras)"),
        ("pi05", {"discrete_state": False}, "(--discrete-state or --no-discrete-state)"),
        ("pi0", {"cameras": ("x", "x")}, "'x' twice"),
        ("pi0", {"delta_mask": (True,) * 15}, "option delta_mask (--delta-actions)"),
        ("pi0", {"sizes": {"text.heads": 0}}, "option sizes (--size text.heads=N)"),
        ("smolvla", {"sizes": {}}, "(--size text.head_dim=N)"),
    ],
)
def test_messages_name_the_flag(case: str, given: dict[str, Any], flag: str, tmp_path: Path) -> None:
    folder = copy(case, tmp_path)
    with pytest.raises(Exception, match=r"\.$") as caught:
        open_policy(folder, options(case, **given))
    assert_one_sentence(caught.value, flag)  # type: ignore[arg-type]
    assert ",," not in str(caught.value)


@pytest.mark.parametrize(
    ("case", "name"),
    [("pi05", "text.epsilon"), ("pi0", "text.head_dim"), ("smolvla", "text.heads"), ("pi0", "expert.heads")],
)
def test_sizes_that_nothing_reads_are_refused(case: str, name: str, tmp_path: Path) -> None:
    folder, given = copy(case, tmp_path), options(case)
    sizes = {**given.sizes, name: 1}
    refused(folder, options(case, sizes=sizes), name, f"can't be given for {case}", "--size vision.heads=N")


def test_one_comma_before_a_key_of_a_key(tmp_path: Path) -> None:
    folder = copy("pi0", tmp_path)
    put(folder, stats_file(folder), "norm_stats", "state", value=[1])
    refused(folder, options("pi0"), "norm_stats, state, is [1]")


# the tokenizer's file


@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_a_tokenizer_that_is_no_file_is_refused(kind: str, tmp_path: Path) -> None:
    """Reading one would never end."""
    path = Path("/dev/zero")
    if kind == "pipe":
        path = tmp_path / "tokenizer.model"
        os.mkfifo(path)
    refused(copy("pi0", tmp_path), options("pi0", tokenizer=path), "is no file")


# LeRobot's defaults and disagreements


def test_the_horizon_is_asked_for_where_lerobots_config_lacks_it(tmp_path: Path) -> None:
    folder = copy("pi05", tmp_path)
    without(folder, "chunk_size", "n_action_steps")
    refused(folder, PolicyOptions(), "chunk_size", "option horizon (--horizon)")
    spec = open_policy(folder, PolicyOptions(horizon=17)).spec
    assert (spec.horizon, spec.steps_to_run) == (17, 17)


def test_lerobots_defaults_are_noted(tmp_path: Path) -> None:
    folder = copy("pi05", tmp_path)
    assert open_policy(folder).notes == ()
    without(folder, "num_inference_steps", "n_action_steps")
    (note,) = open_policy(folder).notes
    assert note == "config.json lacks n_action_steps, num_inference_steps: LeRobot's defaults are taken"
    assert "num_inference_steps" not in open_policy(folder, PolicyOptions(steps=4)).notes[0]
    smol = copy("smolvla", tmp_path)
    without(smol, "self_attn_every_n_layers", "attention_mode")
    assert any(
        "attention_mode, self_attn_every_n_layers" in note for note in open_policy(smol, options("smolvla")).notes
    )


def test_where_config_and_processors_differ_the_ones_that_count_are_noted(tmp_path: Path) -> None:
    folder = copy("pi05", tmp_path)
    put(folder, CONFIG, "normalization_mapping", value={"STATE": "MEAN_STD", "ACTION": "QUANTILES"})
    put(folder, CONFIG, "tokenizer_max_length", value=99)
    put(folder, CONFIG, "use_relative_actions", value=True)
    policy = open_policy(folder)
    assert (policy.spec.state_norm, policy.spec.max_tokens, policy.spec.delta_mask) == ("quantile", 80, ())
    assert policy.notes == (
        "normalization of the state is 'mean-std' in config.json and 'quantile' in the processor files, which count",
        "tokenizer_max_length is 99 in config.json and 80 in the processor files, which count",
        "use_relative_actions is True in config.json and False in the processor files, which count",
    )


def test_a_camera_renamed_to_anothers_name_is_refused(tmp_path: Path) -> None:
    folder = copy("pi05", tmp_path)
    steps = json.loads((folder / PRE).read_text())["steps"]
    index = next(i for i, entry in enumerate(steps) if entry["registry_name"] == RENAME)
    renames = {"observation.images.left_wrist_0_rgb": "observation.images.base_0_rgb"}
    put(folder, PRE, "steps", index, "config", "rename_map", value=renames)
    refused(folder, PolicyOptions(), "renames the camera", "left_wrist_0_rgb")


def test_files_that_an_option_replaces_are_not_the_policys(tmp_path: Path) -> None:
    folder = copy("pi05", tmp_path)
    assert sum(path.suffix == ".safetensors" for path in open_policy(folder).description.files) == 2
    mine = {"observation.state": {"q01": [-1.0] * 8, "q99": [2.0] * 8}, "action": {"q01": [0.5] * 7, "q99": [1.5] * 7}}
    (tmp_path / "stats.json").write_text(json.dumps(mine))
    policy = open_policy(folder, PolicyOptions(statistics=tmp_path / "stats.json"))
    files = policy.description.files
    assert not any(path.suffix == ".safetensors" for path in files)
    assert {tmp_path / "stats.json", folder / PRE, folder / POST} <= set(files)
    assert policy.description.given["statistics"] == tmp_path / "stats.json"


# statistics that no data has


@pytest.mark.parametrize(
    ("key", "index", "value", "words"),
    [
        ("std", 2, -0.5, "std of dimension 2 is -0.5"),
        ("std", 1, 1e300, "std of dimension 1 is 1e+300"),
        ("mean", 3, -1e39, "mean of dimension 3 is -1e+39"),
        ("q01", 4, 1e6, "q01 of dimension 4 is above q99"),
    ],
)
def test_impossible_statistics_are_refused(key: str, index: int, value: float, words: str, tmp_path: Path) -> None:
    folder = copy("pi0", tmp_path)
    put(folder, stats_file(folder), "norm_stats", "actions", key, index, value=value)
    refused(folder, options("pi0"), "statistics of actions", words, "--statistics")


def test_crossed_extremes_are_refused(tmp_path: Path) -> None:
    one = {"q01": [0.0] * 8, "q99": [1.0] * 8, "min": [0.0] * 7 + [2.0], "max": [1.0] * 8}
    mine = {"observation.state": one, "action": {"q01": [0.5] * 7, "q99": [0.5] * 7}}
    (tmp_path / "stats.json").write_text(json.dumps(mine))
    given = PolicyOptions(statistics=tmp_path / "stats.json")
    refused(copy("pi05", tmp_path), given, "min of dimension 7 is above max, 2 > 1")


# shards without a config


@pytest.mark.parametrize("prefix", ["paligemma_with_expert.x", "model.paligemma_with_expert.x", "model.layers.0.x"])
def test_shards_without_a_config_are_a_policy_by_their_names(prefix: str, tmp_path: Path) -> None:
    index = {"weight_map": {"action_in_proj.weight": "model-00001-of-00001.safetensors", prefix: "other"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert is_policy(tmp_path) == ("paligemma" in prefix)
    for odd in ([], {"weight_map": 3}, {"weight_map": None}):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(odd))
        assert not is_policy(tmp_path)
