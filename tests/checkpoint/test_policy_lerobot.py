"""LeRobot's folders: config keys, processor files, cameras, relative actions, statistics."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_files import assert_one_sentence
from policy_folders import CONFIG, GOLDENS, POST, PRE, Tensors, copy, edit, options, put, rewrite
from safetensors.numpy import load_file

from edgewright.checkpoint.policy import PolicyOptions, open_policy
from edgewright.errors import ConfigError
from edgewright.runtime.policy.spec import Limits

NORMALIZER = "policy_preprocessor_step_3_normalizer_processor.safetensors"
UNNORMALIZER = "policy_postprocessor_step_0_unnormalizer_processor.safetensors"
CAMERAS = tuple(f"observation.images.{name}_0_rgb" for name in ("base", "left_wrist", "right_wrist"))


def refused(folder: Path, *words: str, given: PolicyOptions | None = None) -> None:
    with pytest.raises(ConfigError) as caught:
        open_policy(folder, given)
    assert_one_sentence(caught.value, *words)


def step(folder: Path, file: str, name: str) -> int:
    steps = json.loads((folder / file).read_text())["steps"]
    return next(index for index, entry in enumerate(steps) if entry["registry_name"] == name)


@pytest.fixture
def pi05(tmp_path: Path) -> Path:
    return copy("pi05", tmp_path)


def test_statistics_are_those_of_the_two_files(pi05: Path) -> None:
    before, after = load_file(pi05 / NORMALIZER), load_file(pi05 / UNNORMALIZER)
    statistics = open_policy(pi05).statistics
    assert sorted(statistics.state) == sorted(statistics.actions) == ["max", "mean", "min", "q01", "q99", "std"]
    for key, vector in statistics.state.items():
        assert vector.dtype == np.float64
        np.testing.assert_array_equal(vector, before[f"observation.state.{key}"].astype(np.float64))

    def change(tensors: Tensors) -> None:
        tensors["action.q99"] += 1

    rewrite(pi05, change, NORMALIZER)
    np.testing.assert_array_equal(open_policy(pi05).statistics.actions["q99"], after["action.q99"].astype(np.float64))
    rewrite(pi05, change, UNNORMALIZER)
    np.testing.assert_array_equal(open_policy(pi05).statistics.actions["q99"], (after["action.q99"] + 1).astype(float))


@pytest.mark.parametrize(
    ("file", "name", "value", "words"),
    [
        (NORMALIZER, "observation.state.q01", None, "no q01 of state"),
        (UNNORMALIZER, "action.q99", None, "no q99 of actions"),
        (NORMALIZER, "observation.state.q01", np.zeros(9, np.float32), "8 and 9 numbers"),
        (NORMALIZER, "observation.state.q01", np.zeros((8, 1), np.float32), "not a vector"),
        (NORMALIZER, "observation.state.q01", np.zeros(8, np.int32), "not a vector"),
        (NORMALIZER, "observation.state.q01", np.full(8, np.inf, np.float32), "not finite"),
        (NORMALIZER, "observation.state.variance", np.zeros(8, np.float32), "'observation.state.variance'"),
    ],
)
def test_statistics_that_are_wrong(pi05: Path, file: str, name: str, value: Any, words: str) -> None:
    def change(tensors: Tensors) -> Tensors:
        return {
            **{key: tensor for key, tensor in tensors.items() if key != name},
            **({} if value is None else {name: value}),
        }

    rewrite(pi05, change, file)
    refused(pi05, words)


def test_statistics_of_another_robot(pi05: Path) -> None:
    def cut(tensors: Tensors) -> Tensors:
        return {key: value[:6] if key.startswith("observation.state.") else value for key, value in tensors.items()}

    rewrite(pi05, cut, NORMALIZER)
    refused(pi05, "6 numbers for state", "has 8", "another robot")


def test_statistics_of_an_option_win(pi05: Path, tmp_path: Path) -> None:
    mine = {"observation.state": {"q01": [-1.0] * 8, "q99": [2.0] * 8}, "action": {"q01": [0.5] * 7, "q99": [1.5] * 7}}
    (tmp_path / "stats.json").write_text(json.dumps(mine))
    policy = open_policy(pi05, PolicyOptions(statistics=tmp_path / "stats.json"))
    assert policy.statistics.actions["q99"].tolist() == [1.5] * 7
    assert tmp_path / "stats.json" in policy.files
    refused(pi05, "do not exist", given=PolicyOptions(statistics="nowhere"))
    del mine["action"]["q01"]
    (tmp_path / "stats.json").write_text(json.dumps(mine))
    refused(pi05, "no q01 of actions", given=PolicyOptions(statistics=tmp_path / "stats.json"))


def test_without_processor_files_the_config_tells_how_to_normalize(pi05: Path, tmp_path: Path) -> None:
    (pi05 / POST).unlink()
    refused(pi05, "policy_preprocessor.json but not the other")
    (pi05 / PRE).unlink()
    refused(pi05, "no q01 and q99 of state", "option statistics")
    policy = open_policy(pi05, PolicyOptions(statistics=pi05 / NORMALIZER))
    assert policy.spec == open_policy(GOLDENS / "pi05/checkpoint").spec
    assert any("no processor files" in note for note in policy.notes)
    put(pi05, CONFIG, "normalization_mapping", "ACTION", value="MIN_MAX")
    put(pi05, CONFIG, "normalization_mapping", "STATE", value="IDENTITY")
    spec = open_policy(pi05, PolicyOptions(statistics=pi05 / NORMALIZER)).spec
    assert (spec.state_norm, spec.action_norm) == ("identity", "min-max")


def test_the_processors_modes_win_over_the_configs(pi05: Path) -> None:
    put(pi05, CONFIG, "normalization_mapping", "STATE", value="MIN_MAX")
    assert open_policy(pi05).spec.state_norm == "quantile"
    normalizer = step(pi05, PRE, "normalizer_processor")
    put(pi05, PRE, "steps", normalizer, "config", "norm_map", "STATE", value="MEAN_STD")
    put(pi05, POST, "steps", 0, "config", "norm_map", value={"VISUAL": "IDENTITY"})
    spec = open_policy(pi05).spec
    assert (spec.state_norm, spec.action_norm) == ("mean-std", "identity")
    for mode in ("QUANTILE10", "SOMETHING", 3, []):
        put(pi05, PRE, "steps", normalizer, "config", "norm_map", "STATE", value=mode)
        refused(pi05, "STATE = ", "QUANTILES, MEAN_STD, MIN_MAX, IDENTITY")


CHANGES: list[tuple[str, str, tuple[str | int, ...], Any, str]] = [
    (PRE, "rename_observations_processor", ("rename_map",), {"observation.state": "x"}, "only cameras"),
    (PRE, "rename_observations_processor", ("rename_map",), {"observation.images.a": 3}, "not a name"),
    (
        PRE,
        "rename_observations_processor",
        ("rename_map",),
        {"observation.images.a": "observation.images.b"},
        "'observation.images.b'",
    ),
    (PRE, "to_batch_processor", ("size",), 3, "'size'"),
    (PRE, "normalizer_processor", ("eps",), 1e-6, "eps = 1e-06"),
    (PRE, "normalizer_processor", ("normalize_observation_keys",), ["observation.state"], "only some features"),
    (PRE, "normalizer_processor", ("norm_map", "VISUAL"), "MEAN_STD", "normalizes images"),
    (PRE, "normalizer_processor", ("features", "observation.state", "shape"), [9], "as STATE of shape [9]"),
    (PRE, "normalizer_processor", ("features", "observation.state", "shape"), [0], "not a list of sizes"),
    (PRE, "normalizer_processor", ("features", "observation.state", "kind"), 1, "'kind'"),
    (PRE, "pi05_prepare_state_tokenizer_processor_step", ("include_state_in_prompt",), False, "memory"),
    (PRE, "pi05_prepare_state_tokenizer_processor_step", ("task_key",), "goal", "task"),
    (PRE, "tokenizer_processor", ("padding_side",), "left", "padding_side"),
    (PRE, "tokenizer_processor", ("truncation",), False, "truncation"),
    (PRE, "tokenizer_processor", ("max_length",), None, "no max_length"),
    (PRE, "tokenizer_processor", ("max_length",), "80", "max_length = '80'"),
    (PRE, "device_processor", ("float_dtype",), "bfloat16", "float_dtype"),
    (PRE, "relative_actions_processor", ("enabled",), True, "disagree about relative actions"),
    (PRE, "relative_actions_processor", ("enabled",), "no", "true or false"),
    (PRE, "relative_actions_processor", ("exclude_joints",), [1], "list of texts"),
    (POST, "unnormalizer_processor", ("eps",), 0.0, "eps"),
    (POST, "unnormalizer_processor", ("features", "action", "shape"), [6], "as ACTION of shape [6]"),
    (POST, "unnormalizer_processor", ("features",), {}, "not at all"),
    (PRE, "normalizer_processor", ("features", "observation.state", "type"), "ENV", "as ENV of shape [8]"),
    (POST, "absolute_actions_processor", ("enabled",), True, "disagree"),
    (POST, "absolute_actions_processor", ("mask",), [], "'mask'"),
]


@pytest.mark.parametrize(("file", "name", "keys", "value", "words"), CHANGES)
def test_settings_of_steps_that_are_not_supported(
    pi05: Path, file: str, name: str, keys: tuple[str | int, ...], value: Any, words: str
) -> None:
    put(pi05, file, "steps", step(pi05, file, name), "config", *keys, value=value)
    refused(pi05, words)


@pytest.mark.parametrize("file", [PRE, POST])
def test_steps_that_are_not_known_or_missing(pi05: Path, file: str) -> None:
    steps = json.loads((pi05 / file).read_text())["steps"]
    put(pi05, file, "steps", value=[*steps, {"registry_name": "image_crop_resize_processor", "config": {}}])
    refused(pi05, "image_crop_resize_processor", "run time")
    put(pi05, file, "steps", value=[*steps, {"class": "my.module.Step", "config": {}}])
    refused(pi05, "my.module.Step")
    put(pi05, file, "steps", value=[*steps, {"config": {}}])
    refused(pi05, "'none'")
    put(pi05, file, "steps", value=[*steps, 3])
    refused(pi05, "not a JSON object")
    needed = "normalizer_processor" if file == PRE else "unnormalizer_processor"
    put(pi05, file, "steps", value=[entry for entry in steps if entry["registry_name"] != needed])
    refused(pi05, needed, "once")
    put(pi05, file, "steps", value=steps * 2)
    refused(pi05, "once")
    put(pi05, file, "steps", value={})
    refused(pi05, "list of steps")
    put(pi05, file, "steps", value=steps)
    put(pi05, file, "more", value=1)
    refused(pi05, "'more'")


def test_the_state_is_normalized_before_it_is_written_into_the_prompt(pi05: Path) -> None:
    at = step(pi05, PRE, "normalizer_processor")

    def swap(content: Any) -> None:
        content["steps"][at], content["steps"][at + 1] = content["steps"][at + 1], content["steps"][at]

    edit(pi05, PRE, swap)
    refused(pi05, "before it is normalized")


def test_steps_of_another_policy(pi05: Path) -> None:
    edit(pi05, PRE, lambda content: content["steps"].append({"registry_name": "pi0_new_line_processor", "config": {}}))
    refused(pi05, "pi0_new_line_processor", "another policy's than pi05")


def test_state_files_stay_in_the_folder(pi05: Path) -> None:
    at = step(pi05, PRE, "normalizer_processor")
    for name in ("../x.safetensors", "/etc/passwd", "..", "a/b", "c\\d", "\0"):
        put(pi05, PRE, "steps", at, "state_file", value=name)
        refused(pi05, "not in the folder itself")
    put(pi05, PRE, "steps", at, "state_file", value="missing.safetensors")
    refused(pi05, "'missing.safetensors'", "not in the folder")
    shutil.copy(pi05 / NORMALIZER, pi05 / "other_name.safetensors")
    put(pi05, PRE, "steps", at, "state_file", value="other_name.safetensors")
    assert pi05 / "other_name.safetensors" in open_policy(pi05).files


def test_processors_of_older_versions_load(pi05: Path) -> None:
    """Without the steps of relative actions, and with a tokenizer that is only named."""
    for file in (PRE, POST):
        edit(pi05, file, lambda content: content.update(steps=[
            entry for entry in content["steps"] if "actions_processor" not in entry["registry_name"]
        ]))  # fmt: skip
    at = step(pi05, PRE, "tokenizer_processor")
    put(pi05, PRE, "steps", at, "config", "tokenizer_name", value="google/paligemma-3b-pt-224")
    edit(pi05, PRE, lambda content: content["steps"][at].pop("artifacts"))
    for name in ("rtc_training_max_delay", "use_relative_actions", "use_visual_memory", "pretrained_revision"):
        edit(pi05, CONFIG, lambda content, name=name: content.pop(name))
    expected = open_policy(GOLDENS / "pi05/checkpoint").spec
    spec = open_policy(pi05).spec
    assert spec.committed_actions == 0
    assert {**spec.to_json(), "committed_actions": 4} == expected.to_json()


# config keys


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("n_obs_steps", 2, "one observation"),
        ("use_peft", True, "adapter"),
        ("min_period", 4e-2, "periods"),
        ("max_period", True, "periods"),
        ("use_visual_memory", True, "memory"),
        ("use_proprioceptive_memory", True, "memory"),
        ("paligemma_variant", "gemma_7b", "gemma_7b"),
        ("image_resolution", [224, 224], "positions for 28 x 28"),
        ("image_resolution", [28], "2 positive integers"),
        ("max_action_dim", 33, "33 of actions"),
        ("max_state_dim", 7, "takes 7"),
        ("chunk_size", 0, "at least 1"),
        ("chunk_size", 11, "steps_to_run"),
        ("n_action_steps", 13, "steps_to_run"),
        ("rtc_training_max_delay", 12, "committed_actions"),
        ("empty_cameras", 1000, "at most 16"),
        ("input_features", {}, "no camera"),
        ("output_features", {"action": {"type": "ACTION", "shape": [7, 2]}}, "a vector"),
        ("output_features", {"action": {"type": "STATE", "shape": [7]}}, "a vector"),
        ("output_features", {"action": {"type": "OTHER", "shape": [7]}}, "one of STATE"),
        ("mystery", 1, "'mystery'"),
    ],
)
def test_config_keys_that_are_wrong(pi05: Path, key: str, value: Any, words: str) -> None:
    put(pi05, CONFIG, key, value=value)
    refused(pi05, words)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("adapt_to_pi_aloha", True, "Aloha"),
        ("use_delta_joint_actions_aloha", True, "LeRobot itself"),
        ("add_image_special_tokens", True, "tokens around images"),
        ("use_cache", False, "prefix"),
        ("resize_imgs_with_padding", None, "[32, 32]"),
        ("resize_imgs_with_padding", [512, 512], "512 x 512"),
        ("resize_imgs_with_padding", [32, 24], "24 x 32"),
        ("attention_mode", "else", "cross_attn, self_attn"),
        ("self_attn_every_n_layers", "2", "an integer"),
        ("max_state_dim", 31, "31 numbers of state"),
        ("num_vlm_layers", 5, "num_vlm_layers = 5"),
        ("num_vlm_layers", "4", "num_vlm_layers = '4'"),
        ("num_expert_layers", 2, "num_expert_layers = 2"),
        ("expert_width_multiplier", 0.5, "expert_width_multiplier = 0.5"),
        ("expert_width_multiplier", "x", "expert_width_multiplier = 'x'"),
        ("input_features", {"observation.images.a": {"type": "VISUAL", "shape": [3, 8, 8]}}, "observation.state"),
    ],
)
def test_smolvla_config_keys_that_are_wrong(tmp_path: Path, key: str, value: Any, words: str) -> None:
    folder = copy("smolvla", tmp_path)
    put(folder, CONFIG, key, value=value)
    refused(folder, words, given=options("smolvla"))


@pytest.mark.parametrize(
    ("mode", "every", "expected"),
    [("cross_attn", 2, 2), ("cross_attn", -1, 0), ("cross_attn", 0, 0), ("self_attn", 2, 1)],
)
def test_which_layers_of_smolvla_attend_to_themselves(tmp_path: Path, mode: str, every: int, expected: int) -> None:
    folder = copy("smolvla", tmp_path)
    put(folder, CONFIG, "attention_mode", value=mode)
    put(folder, CONFIG, "self_attn_every_n_layers", value=every)
    assert open_policy(folder, options("smolvla")).sizes.self_attention_every == expected


def test_keys_without_effect_change_nothing(pi05: Path) -> None:
    expected = open_policy(pi05).spec
    for key, value in (
        ("optimizer_lr", 3),
        ("rtc_config", {"mode": "guided"}),
        ("device", "cuda:1"),
        ("dtype", "bfloat16"),
    ):
        put(pi05, CONFIG, key, value=value)
    assert open_policy(pi05).spec == expected


def test_options_that_contradict(pi05: Path) -> None:
    refused(pi05, "always has the state", given=PolicyOptions(discrete_state=False))
    refused(pi05, "option horizon (--horizon) is 50", "12", given=PolicyOptions(horizon=50))
    refused(pi05, "option max_tokens (--max-prompt)", given=PolicyOptions(max_tokens=200))
    refused(pi05, "option state_dim", given=PolicyOptions(state_dim=7))
    refused(pi05, "option action_dim", given=PolicyOptions(action_dim=8))
    refused(pi05, "policy's steps", given=PolicyOptions(steps=0))
    agreeing = PolicyOptions(discrete_state=True, horizon=12, max_tokens=80, state_dim=8, action_dim=7, steps=3)
    assert open_policy(pi05, agreeing).spec.steps == 3
    refused(GOLDENS / "pi0_lerobot/checkpoint", "takes the state as numbers", given=PolicyOptions(discrete_state=True))


def test_steps_tokens_and_actions_to_run_come_from_the_files(pi05: Path) -> None:
    put(pi05, CONFIG, "num_inference_steps", value=4)
    put(pi05, CONFIG, "n_action_steps", value=5)
    put(pi05, PRE, "steps", step(pi05, PRE, "tokenizer_processor"), "config", "max_length", value=66)
    spec = open_policy(pi05).spec
    assert (spec.steps, spec.steps_to_run, spec.max_tokens) == (4, 5, 66)


# cameras and relative actions


def test_cameras_are_the_features_in_order(pi05: Path, tmp_path: Path) -> None:
    edit(pi05, CONFIG, lambda content: content.update(
        input_features=dict(reversed(content["input_features"].items())), empty_cameras=2
    ))  # fmt: skip
    policy = open_policy(pi05)
    empty = tuple(f"observation.images.empty_camera_{index}" for index in range(2))
    assert policy.spec.cameras == (*reversed(CAMERAS), *empty)
    assert policy.spec.required_cameras == ()
    two = open_policy(pi05, PolicyOptions(cameras=(CAMERAS[2], CAMERAS[0]), required_cameras=(CAMERAS[0],)))
    assert (two.spec.cameras, two.spec.required_cameras) == ((CAMERAS[2], CAMERAS[0]), (CAMERAS[0],))
    refused(pi05, "in this order", given=PolicyOptions(cameras=CAMERAS[:2]))
    refused(pi05, "some of", given=PolicyOptions(cameras=("top",)))
    refused(pi05, "'top'", given=PolicyOptions(required_cameras=("top",)))
    one = open_policy(pi05, PolicyOptions(cameras=(CAMERAS[1], empty[0])))
    assert one.spec.required_cameras == (CAMERAS[1],)


def test_a_camera_that_is_renamed_has_the_robots_name(pi05: Path) -> None:
    at = step(pi05, PRE, "rename_observations_processor")
    put(pi05, PRE, "steps", at, "config", "rename_map", value={"observation.images.front": CAMERAS[1]})
    assert open_policy(pi05).spec.cameras == (CAMERAS[0], "observation.images.front", CAMERAS[2])
    both = {"observation.images.front": CAMERAS[1], "observation.images.side": CAMERAS[1]}
    put(pi05, PRE, "steps", at, "config", "rename_map", value=both)
    refused(pi05, "two cameras")


@pytest.mark.parametrize("shape", [[1, 48, 64], [48, 64], [3, 48, 64, 2]])
def test_cameras_without_colors(pi05: Path, shape: list[int]) -> None:
    put(pi05, CONFIG, "input_features", CAMERAS[1], "shape", value=shape)
    refused(pi05, repr(CAMERAS[1]), "no color image")


def test_limits_are_given(pi05: Path) -> None:
    limits = Limits(maximum=(1.0,) * 7, deadline_ms=40.0, fallback="stop")
    assert open_policy(pi05, PolicyOptions(limits=limits)).spec.limits == limits
    refused(pi05, "limits.maximum", "each of the 7", given=PolicyOptions(limits=Limits(maximum=(1.0,) * 8)))


def test_inputs_that_no_policy_reads(pi05: Path) -> None:
    put(pi05, CONFIG, "input_features", "observation.environment_state", value={"type": "ENV", "shape": [3]})
    refused(pi05, "'observation.environment_state'")


@pytest.mark.parametrize(
    ("excluded", "names", "expected"),
    [
        (["gripper"], None, (True,) * 7),
        ([], ["a", "gripper"], (True,) * 7),
        (["Gripper"], ["x", "y", "z", "roll", "pitch", "yaw", "main_GRIPPER_pos"], (True,) * 6),
        (["y"], ["x", "y"], (True, False, True, True, True, True, True)),
        (["", "x"], ["x", "y", "z", "roll", "pitch", "yaw", "g"], (False,) + (True,) * 6),
        (["a", "x", "y", "z"], ["x", "y", "z", "ax", "ay", "az", "ag"], ()),
    ],
)
def test_which_actions_are_relative(
    pi05: Path, excluded: list[str], names: list[str] | None, expected: tuple[bool, ...]
) -> None:
    before, after = step(pi05, PRE, "relative_actions_processor"), step(pi05, POST, "absolute_actions_processor")
    put(
        pi05, PRE, "steps", before, "config", value={"enabled": True, "exclude_joints": excluded, "action_names": names}
    )
    put(pi05, POST, "steps", after, "config", "enabled", value=True)
    assert open_policy(pi05).spec.delta_mask == expected
    agreeing = PolicyOptions(delta_mask=(*expected, False))
    assert open_policy(pi05, agreeing).spec.delta_mask == expected
    refused(pi05, "delta_mask", given=PolicyOptions(delta_mask=(False, False, True)))


def test_without_processor_files_the_config_tells_which_actions_are_relative(pi05: Path) -> None:
    given = PolicyOptions(statistics=pi05 / NORMALIZER)
    for file in (PRE, POST):
        (pi05 / file).unlink()
    assert open_policy(pi05, given).spec.delta_mask == ()
    put(pi05, CONFIG, "use_relative_actions", value=True)
    assert open_policy(pi05, given).spec.delta_mask == (True,) * 7
    put(pi05, CONFIG, "action_feature_names", value=["x", "left_gripper", "y"])
    assert open_policy(pi05, given).spec.delta_mask == (True, False, *(True,) * 5)
    put(pi05, CONFIG, "relative_exclude_joints", value=["x", "y"])
    assert open_policy(pi05, given).spec.delta_mask == (False, True, False, *(True,) * 4)
    edit(pi05, CONFIG, lambda content: content.pop("relative_exclude_joints"))
    assert open_policy(pi05, given).spec.delta_mask == (True, False, *(True,) * 5)


def test_relative_actions_need_as_many_numbers_of_state(pi05: Path) -> None:
    for tensors, prefix in ((NORMALIZER, "observation.state."), (UNNORMALIZER, "observation.state.")):
        rewrite(pi05, lambda all_, p=prefix: {k: v[:6] if k.startswith(p) else v for k, v in all_.items()}, tensors)
    put(pi05, CONFIG, "input_features", "observation.state", "shape", value=[6])
    at = step(pi05, PRE, "normalizer_processor")
    put(pi05, PRE, "steps", at, "config", "features", "observation.state", "shape", value=[6])
    assert open_policy(pi05).spec.state_dim == 6
    put(pi05, PRE, "steps", step(pi05, PRE, "relative_actions_processor"), "config", "enabled", value=True)
    put(pi05, POST, "steps", step(pi05, POST, "absolute_actions_processor"), "config", "enabled", value=True)
    refused(pi05, "number 6", "6 numbers", "an action 7")
