"""openpi's folders: what they say, what has to be asked for, statistics of robots."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_files import assert_one_sentence
from policy_folders import CONFIG, GOLDENS, copy, edit, options, put, stats_file
from safetensors.numpy import save_file

from edgewright.checkpoint.policy import PolicyOptions, open_policy
from edgewright.errors import ConfigError, MalformedHeaderError

STATS = "assets/trossen/norm_stats.json"


def refused(folder: Path, given: PolicyOptions, *words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_policy(folder, given)
    assert_one_sentence(caught.value, *words)


def read_stats(folder: Path) -> dict[str, dict[str, list[float]]]:
    content: dict[str, dict[str, list[float]]] = json.loads((folder / stats_file(folder)).read_text())["norm_stats"]
    return content


def test_whether_the_state_is_in_the_prompt_is_asked_for(tmp_path: Path) -> None:
    folder = copy("pi05_libero", tmp_path)
    refused(folder, PolicyOptions(), "option discrete_state", "pi05_libero")
    assert open_policy(folder, PolicyOptions(discrete_state=True)).spec.prompt == "state"
    assert open_policy(folder, PolicyOptions(discrete_state=False)).spec.prompt == "text-newline"
    put(folder, CONFIG, "discrete_state_input", value=True)
    assert open_policy(folder).spec.prompt == "state"
    refused(folder, PolicyOptions(discrete_state=False), "(--discrete-state or --no-discrete-state) is False", "True")
    put(folder, CONFIG, "discrete_state_input", value="yes")
    refused(folder, PolicyOptions(), "true or false")


def test_pi0_has_the_state_as_numbers(tmp_path: Path) -> None:
    folder = copy("pi0", tmp_path)
    refused(folder, options("pi0", discrete_state=True), "is pi0", "discrete_state")
    assert open_policy(folder, options("pi0", discrete_state=False)).spec.prompt == "text-newline"


def test_the_horizon_is_read_or_asked_for(tmp_path: Path) -> None:
    folder = copy("pi0", tmp_path)
    refused(folder, options("pi0", horizon=10), "option horizon (--horizon) is 10", "says 9")
    edit(folder, CONFIG, lambda config: config.pop("action_horizon"))
    refused(folder, options("pi0"), "option horizon", "action_horizon")
    spec = open_policy(folder, options("pi0", horizon=17)).spec
    assert (spec.horizon, spec.steps_to_run) == (17, 17)
    refused(folder, options("pi0", horizon=0), "policy's horizon", "at least 1")


def test_a_folder_of_openpis_trainer_has_no_config(tmp_path: Path) -> None:
    folder = copy("pi0", tmp_path)
    before = open_policy(folder, options("pi0"))
    (folder / CONFIG).unlink()
    (folder / "optimizer.pt").write_bytes(b"not read")
    after = open_policy(folder, options("pi0", horizon=9))
    assert (after.spec, after.sizes, after.config) == (before.spec, before.sizes, {})
    assert folder / CONFIG not in after.files


def test_keys_of_the_config(tmp_path: Path) -> None:
    folder = copy("pi0", tmp_path)
    put(folder, CONFIG, "precision", value="anything")
    put(folder, CONFIG, "pytorch_compile_mode", value=None)
    put(folder, CONFIG, "pi05", value=False)
    put(folder, CONFIG, "max_token_len", value=33)
    assert open_policy(folder, options("pi0", max_tokens=None)).spec.max_tokens == 33
    refused(folder, options("pi0"), "option max_tokens (--max-prompt) is 32", "33")
    put(folder, CONFIG, "pi05", value=True)
    refused(folder, options("pi0", max_tokens=None), "pi05 = True", "those of pi0")
    put(folder, CONFIG, "pi05", value=False)
    put(folder, CONFIG, "action_dim", value=31)
    refused(folder, options("pi0", max_tokens=None), "action_in_proj", "31", "32")
    put(folder, CONFIG, "action_dim", value=32)
    put(folder, CONFIG, "paligemma_variant", value="gemma_2b_lora")
    refused(folder, options("pi0", max_tokens=None), "gemma_2b_lora", "LoRA")
    put(folder, CONFIG, "paligemma_variant", value="gemma_2b")
    put(folder, CONFIG, "new_thing", value=1)
    put(folder, CONFIG, "other_thing", value=None)
    refused(folder, options("pi0", max_tokens=None), "'new_thing', 'other_thing'", "not known")


def test_options_without_an_answer_in_the_folder() -> None:
    folder = GOLDENS / "pi0/checkpoint"
    spec = open_policy(folder, options("pi0", steps=3, cameras=("base", "hand"), required_cameras=("hand",))).spec
    assert (spec.steps, spec.cameras, spec.required_cameras) == (3, ("base", "hand"), ("hand",))
    assert open_policy(folder, options("pi0")).spec.required_cameras == ("base_0_rgb",)
    refused(folder, options("pi0", steps=0), "policy's steps", "at least 1")
    refused(folder, options("pi0", cameras=()), "1 to 3")
    refused(folder, options("pi0", cameras=("a", "b", "c", "d")), "4 names")
    refused(folder, options("pi0", cameras=("a", "a")), "names 'a' twice", "--cameras")
    refused(folder, options("pi0", required_cameras=("x",)), "'x'", "base_0_rgb")


def test_which_actions_are_relative_is_an_option_and_noted() -> None:
    folder = GOLDENS / "pi0/checkpoint"
    plain = open_policy(folder, options("pi0"))
    assert plain.spec.delta_mask == ()
    assert any("delta_mask" in note for note in plain.notes)
    mask = (True,) * 6 + (False,) + (True,) * 6 + (False,)
    masked = open_policy(folder, options("pi0", delta_mask=mask))
    assert masked.spec.delta_mask == mask[:13]
    assert not any("delta_mask" in note for note in masked.notes)
    refused(folder, options("pi0", delta_mask=(True,) * 15), "number 14", "14 numbers")


# statistics


def test_statistics_are_those_of_the_robots_numbers(tmp_path: Path) -> None:
    folder = GOLDENS / "pi0/checkpoint"
    stored = read_stats(folder)
    assert len(stored["state"]["mean"]) == 16
    policy = open_policy(folder, options("pi0"))
    for key in ("mean", "std", "q01", "q99"):
        np.testing.assert_array_equal(policy.statistics.state[key], np.array(stored["state"][key])[:14])
        np.testing.assert_array_equal(policy.statistics.actions[key], np.array(stored["actions"][key]))
    assert open_policy(folder, options("pi0", state_dim=None)).spec.state_dim == 16
    refused(folder, options("pi0", state_dim=17), "(--state-dim) is 17", "16 numbers")
    refused(folder, options("pi0", action_dim=15), "(--action-dim) is 15", "14 numbers")
    refused(folder, options("pi0", state_dim=0), "(--state-dim) is 0")
    assert open_policy(folder, options("pi0", action_dim=7)).spec.action_dim == 7


def test_statistics_of_several_robots_are_asked_for_by_id(tmp_path: Path) -> None:
    folder = copy("pi0", tmp_path)
    other = folder / "assets/physical-intelligence/libero"
    other.mkdir(parents=True)
    shutil.copy(GOLDENS / "pi05_libero/checkpoint/assets/physical-intelligence/libero/norm_stats.json", other)
    refused(folder, options("pi0"), "'physical-intelligence/libero', 'trossen'", "option statistics")
    refused(folder, options("pi0", statistics="droid"), "'droid'", "'trossen'")
    chosen = open_policy(folder, options("pi0", statistics="physical-intelligence/libero", state_dim=None))
    assert (chosen.spec.state_dim, chosen.spec.action_dim) == (8, 7)
    assert other / "norm_stats.json" in chosen.files
    assert open_policy(folder, options("pi0", statistics="trossen")).spec.state_dim == 14


def test_statistics_are_looked_for_four_folders_deep_at_most(tmp_path: Path) -> None:
    folder = copy("pi0", tmp_path)
    deep = folder / "assets/a/b/c/d/e"
    deep.mkdir(parents=True)
    shutil.copy(folder / STATS, deep)
    assert open_policy(folder, options("pi0")).files[1] == folder / STATS
    shutil.copy(folder / STATS, deep.parent)
    refused(folder, options("pi0"), "'a/b/c/d', 'trossen'")


def test_statistics_of_a_file(tmp_path: Path) -> None:
    folder = copy("pi0", tmp_path)
    stored = read_stats(folder)
    elsewhere = tmp_path / "mine.json"
    shutil.copy(folder / STATS, elsewhere)
    shutil.rmtree(folder / "assets")
    refused(folder, options("pi0"), "no normalization statistics", "option statistics")
    policy = open_policy(folder, options("pi0", statistics=elsewhere))
    np.testing.assert_array_equal(policy.statistics.actions["std"], stored["actions"]["std"])
    lerobot = {"observation.state": stored["state"], "action": stored["actions"] | {"count": [9]}, "index": {}}
    elsewhere.write_text(json.dumps(lerobot))
    again = open_policy(folder, options("pi0", statistics=str(elsewhere)))
    np.testing.assert_array_equal(again.statistics.state["mean"], policy.statistics.state["mean"])
    tensors = {
        f"{feature}.{key}": np.array(values, np.float32)
        for feature, group in (("observation.state", stored["state"]), ("action", stored["actions"]))
        for key, values in group.items()
    }
    save_file(tensors, tmp_path / "normalizer.safetensors")
    third = open_policy(folder, options("pi0", statistics=tmp_path / "normalizer.safetensors"))
    np.testing.assert_array_equal(
        third.statistics.actions["mean"], np.array(stored["actions"]["mean"], np.float32).astype(np.float64)
    )
    elsewhere.write_text('{"something": 1}')
    refused(folder, options("pi0", statistics=elsewhere), "neither openpi's norm_stats nor")
    refused(folder, options("pi0", statistics=tmp_path / "no.json"), "do not exist")


def test_padding_in_statistics_is_not_guessed(tmp_path: Path) -> None:
    folder = copy("pi05_libero", tmp_path)

    def pad(content: Any) -> None:
        for group in content["norm_stats"].values():
            for key, values in group.items():
                # the quantiles of zeros are the edges of a bin that holds them
                group[key] = values + [1e-10 if key == "q99" else -1e-10 if key == "q01" else 0.0] * (32 - len(values))

    before = open_policy(folder, options("pi05_libero"))
    edit(folder, stats_file(folder), pad)
    refused(folder, options("pi05_libero"), "all 32 numbers", "the last 24", "option state_dim")
    refused(folder, options("pi05_libero", state_dim=8), "the last 25", "option action_dim")
    after = open_policy(folder, options("pi05_libero", state_dim=8, action_dim=7))
    assert after.spec == before.spec
    np.testing.assert_array_equal(after.statistics.state["q99"], before.statistics.state["q99"])


@pytest.mark.parametrize(
    ("keys", "value", "words"),
    [
        (("norm_stats", "state", "mean"), [1.0] * 15, "15 and 16 numbers"),
        (("norm_stats", "state", "mean"), [[1.0] * 16], "flat list"),
        (("norm_stats", "state", "mean"), [1.0] * 15 + [float("nan")], "not finite"),
        (("norm_stats", "state", "mean"), [1.0] * 15 + [10**400], "not finite"),
        (("norm_stats", "state", "mean"), [1.0] * 15 + [True], "flat list"),
        (("norm_stats", "state", "mean"), [], "flat list"),
        (("norm_stats", "state", "std"), None, "no std of state"),
        (("norm_stats", "state", "median"), [1.0], "'median'"),
        (("norm_stats", "gripper"), {}, "'gripper'"),
        (("norm_stats", "actions"), {}, "no statistics of actions"),
        (("norm_stats", "state"), None, "no statistics of state"),
        (("norm_stats", "actions"), [], "not a JSON object"),
        (("norm_stats",), 3, "not a JSON object"),
        (("version",), 3, "'version'"),
    ],
)
def test_statistics_that_are_wrong(tmp_path: Path, keys: tuple[str, ...], value: Any, words: str) -> None:
    folder = copy("pi0", tmp_path)
    put(folder, STATS, *keys, value=value)
    refused(folder, options("pi0", state_dim=None, action_dim=None), words)


def test_statistics_of_more_numbers_than_the_policy_takes(tmp_path: Path) -> None:
    folder = copy("pi0", tmp_path)

    def widen(content: Any) -> None:
        group = content["norm_stats"]["actions"]
        content["norm_stats"]["actions"] = {key: values * 3 for key, values in group.items()}

    edit(folder, STATS, widen)
    refused(folder, options("pi0"), "42 numbers", "takes 32", "another robot")


def test_files_that_break_their_format(tmp_path: Path) -> None:
    folder = copy("pi0", tmp_path)
    (folder / STATS).write_text('{"norm_stats": {}, "norm_stats": {}}')
    with pytest.raises(MalformedHeaderError, match="twice"):
        open_policy(folder, options("pi0"))
    (folder / STATS).write_bytes(b"[" * 100_000)
    with pytest.raises(MalformedHeaderError, match="too deeply"):
        open_policy(folder, options("pi0"))


def test_quantiles_that_are_null_are_missed_only_where_they_are_needed(tmp_path: Path) -> None:
    folder, libero = copy("pi0", tmp_path), copy("pi05_libero", tmp_path)
    for place in (folder, libero):
        for group in ("state", "actions"):
            put(place, stats_file(place), "norm_stats", group, "q01", value=None)
            put(place, stats_file(place), "norm_stats", group, "q99", value=None)
    assert sorted(open_policy(folder, options("pi0")).statistics.state) == ["mean", "std"]
    refused(libero, options("pi05_libero"), "no q01 and q99 of state", "quantile")


def test_smolvla_needs_lerobots_config(tmp_path: Path) -> None:
    folder = copy("smolvla", tmp_path)
    (folder / CONFIG).unlink()
    refused(folder, options("smolvla"), "SmolVLA", "config.json")
