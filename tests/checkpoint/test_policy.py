"""Opening policies: every golden's spec, sizes and tensors; names of tensors; folders that are wrong."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_files import assert_one_sentence
from policy_folders import (
    CONFIG,
    EMBEDDING,
    EXPERT,
    GOLDENS,
    HEAD,
    NEEDED,
    POST,
    PRE,
    TOKENIZERS,
    copy,
    edit,
    options,
    put,
    stats_file,
)
from safetensors.numpy import load_file, save_file

from edgewright.checkpoint.policy import PolicyCheckpoint, is_policy, open_policy
from edgewright.errors import (
    CheckpointError,
    ConfigError,
    EdgewrightError,
    MissingShardError,
    SourceNotFoundError,
    TensorMismatchError,
    UnsupportedFormatError,
)
from edgewright.runtime.policy.prompt import load_tokenizer, token_ids
from edgewright.runtime.policy.spec import PolicySpec, Statistics

LAYERS = {"pi05": 3, "pi05_libero": 3, "pi0": 2, "pi0_lerobot": 2, "smolvla": 4}


def opened(name: str, **more: Any) -> PolicyCheckpoint:
    return open_policy(GOLDENS / name / "checkpoint", options(name, **more))


def golden(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((GOLDENS / name / "golden.json").read_text())
    return content


@pytest.mark.parametrize("name", ["pi05", "pi05_libero", "pi0", "pi0_lerobot"])
def test_the_spec_is_what_the_golden_was_made_with(name: str) -> None:
    settings = golden(name)["settings"]
    spec = opened(name).spec
    is_lerobot = golden(name)["project"] == "lerobot"
    assert spec.kind == ("pi05" if settings["pi05"] else "pi0")
    assert (spec.horizon, spec.max_tokens) == (settings["horizon"], settings["max_tokens"])
    assert (spec.state_dim, spec.action_dim) == (settings["state_size"], settings["action_size"])
    assert (spec.model_state_dim, spec.model_action_dim) == (32, 32)
    assert spec.prompt == ("state" if settings["discrete_state"] else "text-newline")
    assert spec.state_norm == spec.action_norm == ("quantile" if settings["pi05"] else "mean-std")
    assert spec.convention == ("lerobot" if is_lerobot else "openpi")
    assert spec.schedule == ("float64-linear" if is_lerobot else "float32-sum")
    assert spec.resize == ("torch-center" if is_lerobot else "pil-center")
    names = settings.get("image_keys") or ["base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"]
    assert spec.cameras == tuple(names)
    assert spec.committed_actions == settings.get("config", {}).get("rtc_training_max_delay", 0)
    assert PolicySpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize("name", ["pi05", "pi05_libero", "pi0", "pi0_lerobot"])
def test_the_sizes_are_those_of_the_golden(name: str) -> None:
    facts = golden("pi0" if name == "pi0_lerobot" else name)["facts"]["sizes"]
    sizes = opened(name).sizes
    vision, text, expert = sizes.vision, sizes.text, sizes.expert
    assert (vision.image, vision.width, vision.layers, vision.inner, vision.patch, vision.heads) == (
        facts["image"], facts["vision_width"], facts["vision_layers"], facts["vision_mlp"], 14, 16,
    )  # fmt: skip
    assert (text.width, text.inner, text.layers, text.head_dim) == (
        facts["width"], facts["mlp"], facts["layers"], facts["head_dim"],
    )  # fmt: skip
    assert (expert.width, expert.inner, expert.layers) == (facts["expert_width"], facts["expert_mlp"], facts["layers"])
    assert (text.heads, text.kv_heads, expert.heads, expert.kv_heads, text.vocab) == (8, 1, 8, 1, 420)
    assert sizes.image_tokens == (facts["image"] // 14) ** 2
    assert (sizes.action_dim, sizes.state_dim) == (32, 0 if name.startswith("pi05") else 32)


def test_smolvla_is_read_like_its_language_models_config() -> None:
    policy = opened("smolvla")
    known = json.loads((GOLDENS / "smolvla/vlm/config.json").read_text())
    text, vision, sizes, spec = policy.sizes.text, policy.sizes.vision, policy.sizes, policy.spec
    assert (text.width, text.heads, text.kv_heads, text.head_dim, text.inner, text.vocab) == tuple(
        known["text_config"][key]
        for key in (
            "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size",
        )
    )  # fmt: skip
    assert (vision.width, vision.heads, vision.inner, vision.patch, vision.image) == tuple(
        known["vision_config"][key]
        for key in ("hidden_size", "num_attention_heads", "intermediate_size", "patch_size", "image_size")
    )
    assert (sizes.pixel_shuffle, sizes.image_tokens) == (known["scale_factor"], 16)
    assert (sizes.text_epsilon, sizes.vision_epsilon, sizes.rope_base) == (1e-5, 1e-6, 10000.0)
    assert (text.layers, sizes.expert.layers, sizes.expert.width, sizes.expert.inner) == (4, 4, 30, 256)
    assert (sizes.self_attention_every, sizes.state_dim, sizes.action_dim) == (2, 32, 32)
    assert spec.cameras == tuple(f"observation.images.{name}" for name in ("front", "wrist", "empty_camera_0"))
    assert (spec.horizon, spec.steps_to_run, spec.max_tokens, spec.state_dim, spec.action_dim) == (6, 5, 24, 6, 7)
    assert (spec.resize, spec.prompt, spec.image_size) == ("torch-left-top", "text-newline", (32, 32))
    assert policy.notes == ()


@pytest.mark.parametrize("name", list(NEEDED))
def test_tensors_have_the_values_of_the_file_under_canonical_names(name: str) -> None:
    policy = opened(name)
    stored = load_file(GOLDENS / name / "checkpoint" / "model.safetensors")
    dead = dict(policy.ignored)
    left = {key.removeprefix("model."): value for key, value in stored.items() if key not in dead}
    if HEAD in left:
        left[EMBEDDING] = left.pop(HEAD)
    assert set(policy.tensors) == set(left)
    for key, value in left.items():
        np.testing.assert_array_equal(policy.tensors[key].read(), value.astype(np.float32))
    assert {key.removeprefix("model.") for key in dead} == {
        "pi05": {f"{EXPERT}lm_head.weight", HEAD},
        "pi05_libero": {f"{EXPERT}lm_head.weight"},
        "pi0": {f"{EXPERT}lm_head.weight"},
        "pi0_lerobot": {f"{EXPERT}lm_head.weight", HEAD},
        "smolvla": {"vlm_with_expert.vlm.lm_head.weight"},
    }[name]
    assert all(path.is_file() for path in policy.files)
    assert policy.files[-1].name == "model.safetensors"


@pytest.mark.parametrize("name", ["pi05", "pi05_libero", "pi0", "smolvla"])
def test_sidecars_give_the_goldens_tokens_and_statistics(name: str) -> None:
    given = None if name in ("pi05", "smolvla") else TOKENIZERS
    policy = opened(name, tokenizer=given)
    sidecars = policy.sidecars()
    assert sorted(sidecars) == ["norm_stats.json", "tokenizer.json"]
    tokenizer = load_tokenizer(policy.spec, sidecars["tokenizer.json"])
    scenario = "two_cameras" if name == "smolvla" else "three_cameras"
    record = golden(name)["scenarios"]
    prompt = record[scenario]["prompt"][0] if name == "smolvla" else record[0]["prompts"][0]
    tensors = load_file(GOLDENS / name / "golden.safetensors")
    ids, mask = ("token_ids", "token_mask") if name == "smolvla" else ("tokens", "token_mask")
    state = tensors.get(f"{scenario}/state_normalized")
    found, notes = token_ids(policy.spec, tokenizer, prompt, None if state is None else state[0])
    expected = tensors[f"{scenario}/{ids}"][0][tensors[f"{scenario}/{mask}"][0].astype(bool)]
    assert found.tolist() == expected.tolist()
    assert notes == ()
    read = Statistics.from_json(json.loads(sidecars["norm_stats.json"]))
    for key, vector in policy.statistics.actions.items():
        np.testing.assert_array_equal(read.actions[key], vector)


def test_a_tokenizer_that_is_nowhere_is_asked_for() -> None:
    policy = opened("pi05_libero")
    assert any("paligemma_tokenizer.model" in note for note in policy.notes)
    with pytest.raises(EdgewrightError) as caught:
        policy.sidecars()
    assert_one_sentence(caught.value, "tokenizer", "option tokenizer")
    for given, message in ((Path("nowhere.model"), "does not exist"), (GOLDENS, "has no tokenizer")):
        with pytest.raises(ConfigError) as refused:
            opened("pi05_libero", tokenizer=given)
        assert_one_sentence(refused.value, message)


def test_a_tokenizer_beside_the_weights_is_found(tmp_path: Path) -> None:
    folder = copy("pi0", tmp_path)
    shutil.copy(TOKENIZERS / "paligemma_tokenizer.model", folder)
    policy = open_policy(folder, options("pi0"))
    assert folder / "paligemma_tokenizer.model" in policy.files
    assert policy.sidecars()["tokenizer.json"] == opened("pi0", tokenizer=TOKENIZERS).sidecars()["tokenizer.json"]


def test_each_project_reads_its_own_form_of_tokenizer(tmp_path: Path) -> None:
    both = tmp_path / "both"
    shutil.copytree(TOKENIZERS, both)
    written = GOLDENS / "pi05/checkpoint/tokenizer/tokenizer.json"
    shutil.copy(written, both)
    assert opened("pi0", tokenizer=both).files[-2] == both / "paligemma_tokenizer.model"
    assert opened("pi0_lerobot", tokenizer=both).files[-2] == both / "tokenizer.json"
    assert opened("pi0_lerobot", tokenizer=both).sidecars()["tokenizer.json"] == written.read_bytes()
    other = tmp_path / "mine.json"
    shutil.copy(written, other)
    assert opened("pi0", tokenizer=other).sidecars()["tokenizer.json"] == written.read_bytes()
    lerobot = json.loads(opened("pi0_lerobot", tokenizer=TOKENIZERS).sidecars()["tokenizer.json"])
    assert lerobot["model"]["vocab"] == json.loads(written.read_bytes())["model"]["vocab"]


# which paths are policies


def test_what_is_a_policy(tmp_path: Path) -> None:
    for name in NEEDED:
        assert is_policy(GOLDENS / name / "checkpoint")
        assert is_policy(GOLDENS / name / "checkpoint" / "model.safetensors")
    act = tmp_path / "act"
    act.mkdir()
    (act / CONFIG).write_text(json.dumps({"type": "act", "input_features": {}}))
    assert is_policy(act)
    assert not is_policy(GOLDENS)
    assert not is_policy(tmp_path / "nowhere")
    assert not is_policy(next((GOLDENS.parent / "text").glob("*/config.json")).parent)
    for index, text in enumerate(("[1]", "{", '{"type": 3, "input_features": {}}', "[" * 100_000, "\xff")):
        odd = tmp_path / str(index)
        odd.mkdir()
        (odd / CONFIG).write_bytes(text.encode("latin-1"))
        assert not is_policy(odd)
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "model.safetensors").write_bytes(b"not a safetensors file")
    assert not is_policy(bare)
    shutil.copy(GOLDENS / "pi0/checkpoint/model.safetensors", bare)
    assert is_policy(bare)


@pytest.mark.parametrize("kind", ["act", "diffusion", "pi0_fast", "vqbet", "tdmpc", "smolvla2", None, 3, ["pi05"]])
def test_another_policy_is_refused_by_name(tmp_path: Path, kind: Any) -> None:
    folder = copy("pi05", tmp_path)
    put(folder, CONFIG, "type", value=kind)
    with pytest.raises(ConfigError) as caught:
        open_policy(folder)
    assert_one_sentence(caught.value, repr(kind), "pi05, pi0, smolvla")


def test_config_and_option_must_name_the_kind_of_the_tensors(tmp_path: Path) -> None:
    folder = copy("pi05", tmp_path)
    put(folder, CONFIG, "type", value="pi0")
    with pytest.raises(TensorMismatchError, match=r"says that the policy is pi0, but its tensors are those of pi05"):
        open_policy(folder)
    with pytest.raises(ConfigError, match=r"option kind is 'pi0', but .* holds pi05"):
        opened("pi05", kind="pi0")
    assert opened("pi05", kind="pi05").kind == "pi05"


def test_paths_that_are_wrong(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError) as caught:
        open_policy(tmp_path / "nowhere")
    assert_one_sentence(caught.value, "does not exist")
    folder = copy("pi0", tmp_path)
    with pytest.raises(SourceNotFoundError):
        open_policy(folder / "other.safetensors", options("pi0"))
    save_file({"x": np.zeros(2, np.float32)}, folder / "other.safetensors")
    with pytest.raises(UnsupportedFormatError) as wrong:
        open_policy(folder / "other.safetensors", options("pi0"))
    assert_one_sentence(wrong.value, "not part of the policy")
    assert open_policy(folder / "model.safetensors", options("pi0")).kind == "pi0"
    training = tmp_path / "training"
    shutil.copytree(folder, training / "pretrained_model")
    with pytest.raises(SourceNotFoundError, match="pretrained_model"):
        open_policy(training)
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(UnsupportedFormatError, match="merge it"):
        open_policy(folder, options("pi0"))


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = copy("pi0", tmp_path)
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (folder / CONFIG).unlink()
    (folder / CONFIG).symlink_to(secret)
    with pytest.raises(CheckpointError, match="leads out of the folder"):
        open_policy(folder, options("pi0"))


# shards and hostile files


def shard(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {f"model-0000{i + 1}-of-00002.safetensors": names[i::2] for i in range(2)}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    index = {"metadata": {}, "weight_map": {name: file for file, part in parts.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("name", ["pi0", "pi05"])
def test_shards_are_read_like_one_file(tmp_path: Path, name: str) -> None:
    folder = copy(name, tmp_path)
    whole = open_policy(folder, options(name))
    values = {key: tensor.read() for key, tensor in whole.tensors.items()}
    shard(folder)
    parts = open_policy(folder, options(name))
    assert (parts.spec, parts.sizes, parts.tensors.keys()) == (whole.spec, whole.sizes, whole.tensors.keys())
    for key, value in values.items():
        np.testing.assert_array_equal(parts.tensors[key].read(), value)
    assert [path.name for path in parts.files[-3:]] == [
        "model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
    ]  # fmt: skip
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(MissingShardError):
        open_policy(folder, options(name))


JUNK = [None, True, -1, 0, 1.5, 1e300, "", "x", "../..", [], [1], [[1]], {}, {"x": 1}, 10**30, "\0"]


def mutate(value: Any, rng: random.Random) -> Any:
    """Return a JSON value with one place in it changed, taken away, or given a key more."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {other: entry for other, entry in value.items() if other != key}
        return {**value, key: mutate(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], mutate(value[at], rng), *value[at + 1 :]]
    return rng.choice(JUNK)


@pytest.mark.parametrize("name", list(NEEDED))
def test_any_json_opens_or_is_refused_by_a_named_error(tmp_path: Path, name: str) -> None:
    folder = copy(name, tmp_path)
    files = [CONFIG, PRE, POST] if (folder / PRE).exists() else [CONFIG, stats_file(folder)]
    rng = random.Random(len(name))
    outcomes = set()
    for _ in range(150):
        file = rng.choice(files)
        before = (folder / file).read_text()
        (folder / file).write_text(json.dumps(mutate(json.loads(before), rng)))
        try:
            spec = open_policy(folder, options(name)).spec
            assert PolicySpec.from_json(spec.to_json()) == spec
            outcomes.add("opened")
        except EdgewrightError as error:
            assert_one_sentence(error)
            outcomes.add("refused")
        (folder / file).write_text(before)
    assert outcomes == {"opened", "refused"}


def test_an_empty_edit_changes_nothing(tmp_path: Path) -> None:
    folder = copy("pi05", tmp_path)
    edit(folder, CONFIG, lambda content: None)
    assert open_policy(folder).spec == opened("pi05").spec
