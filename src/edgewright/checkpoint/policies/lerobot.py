"""LeRobot's checkpoints: `config.json` with the policy's type, weights, and the processor files beside them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgewright.checkpoint.policies import processors, statistics
from edgewright.checkpoint.policies.description import (
    GEMMA,
    SENTENCEPIECE,
    TOKENIZER,
    Description,
    agreed,
    checked,
    delta_mask,
    find_tokenizer,
    own_names,
    read_tokenizer,
    required,
)
from edgewright.checkpoint.policies.keys import Keys
from edgewright.checkpoint.policies.lerobot_notes import notes_of
from edgewright.checkpoint.policies.options import PolicyOptions, option
from edgewright.checkpoint.policies.processors import POSTPROCESSOR, PREPROCESSOR, Pipeline
from edgewright.checkpoint.policies.sizes import PolicySizes, measure
from edgewright.checkpoint.tensor import StoredTensor
from edgewright.checkpoint.text import shown
from edgewright.errors import ConfigError
from edgewright.runtime.policy.spec import Kind, Norm, PolicySpec, Prompt, Resize, Statistics

KINDS: tuple[Kind, ...] = ("pi05", "pi0", "smolvla")
STATE, ACTION, IMAGES = "observation.state", "action", "observation.images"
VARIANTS = ("gemma_2b", "gemma_300m")
#: Keys about training, storage and speed, and those whose effect is masked (padding).
NO_EFFECT = frozenset({
    "device", "use_amp", "push_to_hub", "repo_id", "private", "tags", "license", "pretrained_path",
    "pretrained_revision", "dtype", "time_sampling_beta_alpha", "time_sampling_beta_beta", "time_sampling_scale",
    "time_sampling_offset", "rtc_config", "gradient_checkpointing", "compile_model", "compile_mode",
    "freeze_vision_encoder", "train_expert_only", "train_state_proj", "optimizer_lr", "optimizer_betas",
    "optimizer_eps", "optimizer_weight_decay", "optimizer_grad_clip_norm", "scheduler_warmup_steps",
    "scheduler_decay_steps", "scheduler_decay_lr", "load_vlm_weights", "prefix_length", "pad_language_to",
    "memory_frames", "memory_stride", "memory_temporal_attention_every",
})  # fmt: skip
#: Keys that must have the one value that is supported, and why.
FIXED: Mapping[str, tuple[Any, str]] = {
    "n_obs_steps": (1, "a policy sees one observation at a time."),
    "use_peft": (False, "merge the adapter into the policy first."),
    "min_period": (4e-3, "the time embedding has fixed periods."),
    "max_period": (4.0, "the time embedding has fixed periods."),
    "use_visual_memory": (False, "an observation memory is not supported."),
    "use_proprioceptive_memory": (False, "an observation memory is not supported."),
    "adapt_to_pi_aloha": (False, "converting Aloha joints is not supported."),
    "use_delta_joint_actions_aloha": (False, "LeRobot itself doesn't support it."),
    "add_image_special_tokens": (False, "tokens around images are not supported."),
    "use_cache": (True, "the prefix is always computed once."),
}
MAX_TOKENS: Mapping[Kind, int] = {"pi05": 200, "pi0": 48, "smolvla": 48}
NORMS: Mapping[Kind, Norm] = {"pi05": "quantile", "pi0": "mean-std", "smolvla": "mean-std"}
PROMPTS: Mapping[Kind, Prompt] = {"pi05": "state", "pi0": "text-newline", "smolvla": "text-newline"}
RESIZES: Mapping[Kind, Resize] = {"pi05": "torch-center", "pi0": "torch-center", "smolvla": "torch-left-top"}


def told_kind(config: Mapping[str, Any], folder: Path) -> Kind:
    """Return the kind of policy a config names; raises ConfigError for one that isn't supported."""
    kind = config.get("type")
    if kind not in KINDS:
        raise ConfigError(
            f"{folder} is a LeRobot policy of the type {shown(kind)}, which is not supported; those that are:"
            f" {', '.join(KINDS)}."
        )
    return KINDS[KINDS.index(kind)]


def describe(
    folder: Path, kind: Kind, tensors: Mapping[str, StoredTensor], config: Mapping[str, Any], options: PolicyOptions
) -> Description:
    """Return what the files beside the weights say of a policy.

    Raises ConfigError for what is missing, contradictory or unknown, naming the option that answers it.
    """
    keys = Keys(config, f"{folder}/config.json")
    keys.ignore({"type", *NO_EFFECT})
    for name, (value, why) in FIXED.items():
        keys.must(name, [value], why)
    if kind == "pi05" and options.discrete_state is False:
        raise ConfigError(
            f"LeRobot's pi0.5 always has the state in its prompt; leave out the {option('discrete_state')}."
        )
    if kind != "pi05" and options.discrete_state:
        raise ConfigError(f"LeRobot's {kind} takes the state as numbers; leave out the {option('discrete_state')}.")
    sizes = measure(kind, tensors, options.sizes, **_vlm(keys, kind))
    before, after = _pipelines(folder, keys, kind)
    features = processors.read_features(keys.inner("input_features"))
    given = processors.read_features(keys.inner("output_features"))
    state_dim = _dim(features, STATE, "STATE", keys.integer("max_state_dim", 32), kind, options.state_dim, keys)
    action_dim = _dim(given, ACTION, "ACTION", keys.integer("max_action_dim", 32), kind, options.action_dim, keys)
    _check_padded(keys, kind, sizes)
    if kind == "smolvla":
        _check_made(keys, sizes)
    cameras = _cameras(features, keys, before, options)
    real = tuple(name for name in cameras if not name.startswith(f"{IMAGES}.empty_camera_"))
    horizon = _horizon(keys, options)
    mask = _mask(keys, before, after, action_dim, options)
    stats, named = _statistics(folder, before, after, {"state": state_dim, "actions": action_dim}, options)
    tokenizer = find_tokenizer(folder, options, (TOKENIZER, *SENTENCEPIECE), (before.tokenizer or "tokenizer",))
    notes = notes_of(keys, kind, tokenizer, before, after, options)
    stated_steps = keys.integer("num_steps" if kind == "smolvla" else "num_inference_steps", 10)
    spec = PolicySpec(
        kind=kind,
        convention="lerobot",
        cameras=cameras,
        required_cameras=required(options, cameras, real if len(real) == 1 else ()),
        image_size=_image_size(keys, kind, sizes),
        image_tokens=sizes.image_tokens,
        resize=RESIZES[kind],
        state_dim=state_dim,
        action_dim=action_dim,
        model_state_dim=keys.integer("max_state_dim", 32),
        model_action_dim=sizes.action_dim,
        horizon=horizon,
        steps=stated_steps if options.steps is None else options.steps,
        schedule="float64-linear",
        prompt=PROMPTS[kind],
        max_tokens=_max_tokens(keys, kind, before, options),
        tokenizer=TOKENIZER,
        state_norm=before.norms["state"],
        action_norm=after.norms["actions"],
        delta_mask=delta_mask(mask, state_dim, action_dim),
        steps_to_run=keys.integer("n_action_steps", horizon),
        vocab=sizes.text.vocab,
        limits=options.limits,
        committed_actions=keys.integer("rtc_training_max_delay", 0, least=0),
    )
    keys.finish()
    used = [*before.files, *after.files, *([] if named else [*before.states, *after.states])]
    if tokenizer is not None:
        named["tokenizer"] = tokenizer
    return Description(
        spec=checked(spec),
        sizes=sizes,
        statistics=stats,
        config=config,
        files=tuple(dict.fromkeys([folder / "config.json", *used, *named.values()])),
        tokenizer=functools.cache(lambda: read_tokenizer(tokenizer, folder, GEMMA)),
        notes=notes,
        given=named,
    )


def _horizon(keys: Keys, options: PolicyOptions) -> int:
    if "chunk_size" in keys:
        return int(agreed("horizon", options.horizon, keys.integer("chunk_size"), keys.where))
    if options.horizon is None:
        raise ConfigError(
            f"{keys.where} does not say how many actions a chunk has (chunk_size), and the weights fit any number: give"
            f" the one of the training with the {option('horizon')}."
        )
    return options.horizon


def _vlm(keys: Keys, kind: Kind) -> dict[str, Any]:
    """Return what the config says of the model's making, and check its variants."""
    if kind != "smolvla":
        for name in ("paligemma_variant", "action_expert_variant"):
            keys.must(name, VARIANTS, f"known are {', '.join(VARIANTS)}.")
        return {}
    mode = keys.choice("attention_mode", ("cross_attn", "self_attn"), "cross_attn")
    every = keys.raw("self_attn_every_n_layers")
    every = 2 if every is None else every
    if type(every) is not int:
        raise ConfigError(f"{keys.where} has self_attn_every_n_layers = {shown(every)}, which must be an integer.")
    return {
        "vlm": keys.text("vlm_model_name", "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"),
        "self_attention_every": max(every, 0) if mode == "cross_attn" else 1,
    }


def _check_made(keys: Keys, sizes: PolicySizes) -> None:
    """Raise ConfigError where the config says that SmolVLA was made with other sizes than its tensors have."""
    layers, expert = keys.raw("num_vlm_layers"), keys.raw("num_expert_layers")
    share: Any = keys.raw("expert_width_multiplier")
    if isinstance(share, float | int) and abs(share) < 1e6:
        share = int(sizes.text.width * share)
    for name, stated, found in (
        ("num_vlm_layers", layers, sizes.text.layers),
        ("num_expert_layers", expert, sizes.expert.layers),
        ("expert_width_multiplier", share, sizes.expert.width),
    ):
        unsaid = stated is None or (type(stated) is int and stated <= 0 and name != "expert_width_multiplier")
        if not unsaid and stated != found:
            raise ConfigError(
                f"{keys.where} has {name} = {shown(keys.raw(name))}, but the tensors have {sizes.text.layers} and"
                f" {sizes.expert.layers} layers of width {sizes.text.width} and {sizes.expert.width}; give the config"
                " of this checkpoint."
            )


def _pipelines(folder: Path, keys: Keys, kind: Kind) -> tuple[Pipeline, Pipeline]:
    """Return what both processor files say; without them the config tells how to normalize."""
    stated = processors.read_modes(keys.inner("normalization_mapping"))
    norms = {"state": stated.get("state", NORMS[kind]), "actions": stated.get("actions", NORMS[kind])}
    there = [name for name in (PREPROCESSOR, POSTPROCESSOR) if (folder / name).is_file()]
    if not there:
        return Pipeline(norms=dict(norms)), Pipeline(norms=dict(norms))
    if len(there) == 1:
        raise ConfigError(f"{folder} has {there[0]} but not the other processor file; copy both from the training.")
    before, after = processors.read_preprocessor(folder, kind), processors.read_postprocessor(folder)
    # A feature whose type isn't in the map is left as it is.
    for pipeline in (before, after):
        pipeline.norms = {"state": "identity", "actions": "identity", **pipeline.norms}
    return before, after


def _dim(
    features: Mapping[str, tuple[str, tuple[int, ...]]],
    name: str,
    wanted: str,
    padded: int,
    kind: Kind,
    asked: int | None,
    keys: Keys,
) -> int:
    """Return how many numbers a feature has; pi0 and pi0.5 take all that fit where the config names no such feature."""
    found, shape = features.get(name, (wanted, (padded,) if kind != "smolvla" else ()))
    if found != wanted or len(shape) != 1:
        raise ConfigError(
            f"{keys.where} has no feature {name} that is a vector (type {wanted}, one size), which {kind} needs;"
            " correct its input_features and output_features."
        )
    if shape[0] > padded:
        raise ConfigError(
            f"{keys.where} has {shape[0]} numbers for {name}, but the policy takes {padded}; give the config of this"
            " checkpoint."
        )
    return int(agreed("state_dim" if wanted == "STATE" else "action_dim", asked, shape[0], keys.where))


def _check_padded(keys: Keys, kind: Kind, sizes: PolicySizes) -> None:
    actions, state = keys.integer("max_action_dim", 32), keys.integer("max_state_dim", 32)
    if actions != sizes.action_dim or (kind != "pi05" and state != sizes.state_dim):
        raise ConfigError(
            f"{keys.where} says that the policy takes {state} numbers of state and {actions} of actions, but its"
            f" weights take {sizes.state_dim} and {sizes.action_dim}; give the config of this checkpoint."
        )


def _cameras(
    features: Mapping[str, tuple[str, tuple[int, ...]]], keys: Keys, before: Pipeline, options: PolicyOptions
) -> tuple[str, ...]:
    """Return the names that a robot gives its cameras, in the model's order."""
    names = [name for name, (kind, _) in features.items() if kind == "VISUAL"]
    gray = [name for name in names if len(features[name][1]) != 3 or 3 not in features[name][1][::2]]
    if gray:
        raise ConfigError(
            f"{keys.where} has the camera {shown(gray[0])} of shape {list(features[gray[0]][1])}, which is no color"
            " image; remove it."
        )
    others = [name for name, (kind, _) in features.items() if kind != "VISUAL" and name != STATE]
    if others:
        raise ConfigError(
            f"{keys.where} has the input {shown(others[0])}, which none of these policies reads; remove it."
        )
    empty = keys.integer("empty_cameras", 0, least=0)
    if empty > 16:
        raise ConfigError(f"{keys.where} has {empty} empty cameras, but at most 16 are supported; correct it.")
    names += [f"{IMAGES}.empty_camera_{index}" for index in range(empty)]
    names = list(dict.fromkeys(names))
    if not names:
        raise ConfigError(f"{keys.where} has no camera among its input_features, but the policy needs one; add them.")
    missing = [new for new in before.renames.values() if new not in names]
    if missing:
        raise ConfigError(f"{before.files[0]} renames a camera to {shown(missing[0])}, which the policy doesn't have.")
    original = {new: old for old, new in before.renames.items()}
    cameras = [original.get(name, name) for name in names]
    twice = next((name for name in cameras if cameras.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"{before.files[0]} renames the camera {shown(twice)}, whose name the policy's own camera has; save the"
            " processors again."
        )
    if options.cameras is not None:
        own_names(options.cameras)
        wrong = [name for name in options.cameras if name not in cameras]
        if wrong or [name for name in cameras if name in options.cameras] != list(options.cameras):
            raise ConfigError(
                f"The {option('cameras')} is {', '.join(options.cameras)}, which must be some of {', '.join(cameras)}"
                " in this order, the one of the training."
            )
        cameras = list(options.cameras)
    return tuple(cameras)


def _image_size(keys: Keys, kind: Kind, sizes: PolicySizes) -> tuple[int, int]:
    """Return height and width that images are resized to, which must be what the vision tower has positions for."""
    edge = sizes.vision.image
    if kind != "smolvla":
        size = keys.integers("image_resolution", 2) if "image_resolution" in keys else (224, 224)
    elif "resize_imgs_with_padding" in keys:
        size = keys.integers("resize_imgs_with_padding", 2)[::-1]  # SmolVLA's is width and height
    else:
        raise ConfigError(
            f"{keys.where} has no resize_imgs_with_padding, so images keep the camera's size, which is not supported;"
            f" set it to [{edge}, {edge}]."
        )
    if size != (edge, edge):
        raise ConfigError(
            f"{keys.where} resizes images to {size[0]} x {size[1]} pixels, but the vision tower has positions for"
            f" {edge} x {edge}; give the config of this checkpoint."
        )
    return edge, edge


def _max_tokens(keys: Keys, kind: Kind, before: Pipeline, options: PolicyOptions) -> int:
    stated = keys.integer("tokenizer_max_length", MAX_TOKENS[kind])
    found = stated if before.max_tokens is None else before.max_tokens  # the processor is what LeRobot runs
    return int(agreed("max_tokens", options.max_tokens, found, keys.where))


def _mask(keys: Keys, before: Pipeline, after: Pipeline, action_dim: int, options: PolicyOptions) -> tuple[bool, ...]:
    """Return which dimensions of an action are relative to the state."""
    stated = keys.flag("use_relative_actions", False)
    excluded = keys.texts("relative_exclude_joints") if "relative_exclude_joints" in keys else ["gripper"]
    names = keys.texts("action_feature_names") if "action_feature_names" in keys else None
    keys.ignore(["relative_exclude_joints", "action_feature_names"])
    enabled = after.relative if after.files else stated
    if after.files and before.relative != after.relative:
        raise ConfigError(
            f"{PREPROCESSOR} and {POSTPROCESSOR} disagree about relative actions (enabled is {before.relative} and"
            f" {after.relative}); save the processors again."
        )
    if after.files:
        excluded, names = before.excluded, before.names
    mask = _relative(excluded, names, action_dim) if enabled else ()
    if options.delta_mask is not None and delta_mask(options.delta_mask, 1 << 30, 1 << 30) != delta_mask(
        mask, 1 << 30, 1 << 30
    ):
        raise ConfigError(
            f"The {option('delta_mask')} says something else than the checkpoint about which actions are relative;"
            " leave it out."
        )
    return mask


def _relative(excluded: list[str], names: list[str] | None, action_dim: int) -> tuple[bool, ...]:
    """Return LeRobot's mask: every dimension whose name has none of the excluded words in it, in any case."""
    words = [word.lower() for word in excluded if word]
    if not words or names is None:
        return (True,) * action_dim
    mask = [not any(word in name.lower() for word in words) for name in names[:action_dim]]
    return tuple(mask + [True] * (action_dim - len(mask)))


def _statistics(
    folder: Path, before: Pipeline, after: Pipeline, dims: Mapping[str, int], options: PolicyOptions
) -> tuple[Statistics, dict[str, Path]]:
    """Return the statistics, and the file they are from if the option named one, as `statistics`."""
    norms = {"state": before.norms["state"], "actions": after.norms["actions"]}
    if options.statistics is not None:
        path = Path(options.statistics)
        if not path.is_file():
            raise ConfigError(
                f"The statistics {path} do not exist; give a normalizer's safetensors file or a stats.json."
            )
        return statistics.fit(statistics.read_any(path), dims, norms, str(path)), {"statistics": path}
    _check_features(before, STATE, "STATE", dims["state"], PREPROCESSOR)
    _check_features(after, ACTION, "ACTION", dims["actions"], POSTPROCESSOR)
    groups = {"state": before.groups.get("state", {}), "actions": after.groups.get("actions", {})}
    return statistics.fit(groups, dims, norms, str(folder)), {}


def _check_features(pipeline: Pipeline, feature: str, kind: str, dim: int, name: str) -> None:
    """Raise ConfigError unless a processor normalizes a feature as config.json describes it."""
    found = pipeline.features.get(feature)
    if pipeline.files and found != (kind, (dim,)):
        what = "not at all" if found is None else f"as {found[0]} of shape {list(found[1])}"
        raise ConfigError(
            f"{name} normalizes {feature} {what}, but config.json says that it is {kind} of {dim} numbers; give the"
            " files of one policy."
        )
