"""openpi's PyTorch checkpoints: weights, a small `config.json` (not from all of its scripts), `assets/<id>/`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgewright.checkpoint.policies import statistics
from edgewright.checkpoint.policies.description import (
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
from edgewright.checkpoint.policies.options import PolicyOptions, option
from edgewright.checkpoint.policies.sizes import PolicySizes, measure
from edgewright.checkpoint.tensor import StoredTensor
from edgewright.checkpoint.text import shown
from edgewright.errors import ConfigError
from edgewright.runtime.policy.spec import Kind, Norm, PolicySpec, Statistics

CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
VARIANTS = ("gemma_2b", "gemma_300m", "dummy")
#: Keys that are only about speed and storage.
NO_EFFECT = ("precision", "dtype", "pytorch_compile_mode")
MAX_TOKENS: Mapping[Kind, int] = {"pi05": 200, "pi0": 48}
STEPS = 10
NORM: Mapping[Kind, Norm] = {"pi05": "quantile", "pi0": "mean-std"}


def describe(
    folder: Path, kind: Kind, tensors: Mapping[str, StoredTensor], config: Mapping[str, Any], options: PolicyOptions
) -> Description:
    """Return what the files beside the weights say of a policy; `config` is empty where there is no `config.json`.

    Raises ConfigError for what is missing, contradictory or unknown, naming the option that answers it.
    """
    if kind == "smolvla":
        raise ConfigError(f"{folder} holds SmolVLA's weights without LeRobot's config.json; copy that file too.")
    keys = Keys(config, f"{folder}/config.json")
    sizes = measure(kind, tensors, options.sizes)
    stated = keys.integer("action_dim", sizes.action_dim)
    if stated != sizes.action_dim:
        raise ConfigError(
            f"{keys.where} has action_dim = {stated}, but action_in_proj takes {sizes.action_dim} numbers; give the"
            " config of this checkpoint."
        )
    keys.must("pi05", [kind == "pi05"], f"its tensors are those of {kind}; give the config of this checkpoint.")
    for name in ("paligemma_variant", "action_expert_variant"):
        keys.must(name, VARIANTS, f"known are {', '.join(VARIANTS)}; merge LoRA weights into the policy first.")
    horizon = _horizon(keys, options, folder)
    prompt = _prompt(keys, kind, options, folder)
    max_tokens = _max_tokens(keys, kind, options)
    keys.ignore(NO_EFFECT)
    keys.finish()
    cameras = CAMERAS if options.cameras is None else own_names(options.cameras)
    if not 1 <= len(cameras) <= len(CAMERAS):
        raise ConfigError(
            f"The {option('cameras')} has {len(cameras)} names, but the model has 1 to {len(CAMERAS)} image slots."
        )
    source, stats = _statistics(folder, kind, sizes, options)
    state_dim, action_dim = statistics.length(stats.state), statistics.length(stats.actions)
    spec = PolicySpec(
        kind=kind,
        convention="openpi",
        cameras=cameras,
        required_cameras=required(options, cameras, cameras[:1]),
        image_size=(sizes.vision.image, sizes.vision.image),
        image_tokens=sizes.image_tokens,
        resize="pil-center",
        state_dim=state_dim,
        action_dim=action_dim,
        model_state_dim=sizes.action_dim,
        model_action_dim=sizes.action_dim,
        horizon=horizon,
        steps=STEPS if options.steps is None else options.steps,
        schedule="float32-sum",
        prompt=prompt,
        max_tokens=max_tokens,
        tokenizer=TOKENIZER,
        state_norm=NORM[kind],
        action_norm=NORM[kind],
        delta_mask=delta_mask(options.delta_mask or (), state_dim, action_dim),
        steps_to_run=horizon,
        vocab=sizes.text.vocab,
        limits=options.limits,
    )
    tokenizer = find_tokenizer(folder, options, (*SENTENCEPIECE, TOKENIZER))
    files = [folder / "config.json"] if config else []
    given = {"statistics": source, **({"tokenizer": tokenizer} if tokenizer else {})}
    read = functools.cache(lambda: read_tokenizer(tokenizer, folder, ""))
    return Description(
        spec=checked(spec),
        sizes=sizes,
        statistics=stats,
        config=config,
        files=(*files, *given.values()),
        tokenizer=read,
        notes=_notes(config, options, tokenizer),
        given=given,
    )


def _horizon(keys: Keys, options: PolicyOptions, folder: Path) -> int:
    if "action_horizon" in keys:
        return int(agreed("horizon", options.horizon, keys.integer("action_horizon"), keys.where))
    if options.horizon is None:
        raise ConfigError(
            f"{folder} does not say how many actions a chunk has (no action_horizon in config.json), and the weights"
            f" fit any number: give the one of its training config with the {option('horizon')}."
        )
    return options.horizon


def _prompt(keys: Keys, kind: Kind, options: PolicyOptions, folder: Path) -> Any:
    """Return how the prompt is written; only pi0.5 may have the state in it, and its checkpoints don't say."""
    discrete = options.discrete_state
    if "discrete_state_input" in keys:
        discrete = agreed("discrete_state", discrete, keys.flag("discrete_state_input"), keys.where)
    if kind == "pi0":
        if discrete:
            raise ConfigError(
                f"{folder} is pi0, which takes the state as numbers; leave out the {option('discrete_state')}."
            )
        return "text-newline"
    if discrete is None:
        raise ConfigError(
            f"{folder} does not say whether the robot's state is part of the prompt (discrete_state_input in openpi's"
            " training config: true unless the config says otherwise, false for pi05_libero), and the weights fit both:"
            f" give it with the {option('discrete_state')}."
        )
    return "state" if discrete else "text-newline"


def _max_tokens(keys: Keys, kind: Kind, options: PolicyOptions) -> int:
    if "max_token_len" in keys:
        return int(agreed("max_tokens", options.max_tokens, keys.integer("max_token_len"), keys.where))
    return MAX_TOKENS[kind] if options.max_tokens is None else options.max_tokens


def _statistics(folder: Path, kind: Kind, sizes: PolicySizes, options: PolicyOptions) -> tuple[Path, Statistics]:
    """Return the statistics of exactly the robot's numbers, and their file."""
    asked = options.statistics
    given = asked is not None and (Path(asked).is_file() or Path(asked).suffix in (".json", ".safetensors"))
    path = Path(str(asked)) if given else statistics.find_openpi(folder, asked)
    if not path.is_file():
        raise ConfigError(f"The statistics {path} do not exist; give an asset id, or a {statistics.NORM_STATS}.")
    groups = statistics.read_any(path) if given else statistics.read_openpi(path)
    dims = {
        "state": _dim(groups["state"], "state_dim", options.state_dim, sizes, path),
        "actions": _dim(groups["actions"], "action_dim", options.action_dim, sizes, path),
    }
    groups = {name: statistics.cut(group, dims[name]) for name, group in groups.items()}
    return path, statistics.fit(groups, dims, {"state": NORM[kind], "actions": NORM[kind]}, str(path))


def _dim(group: statistics.Group, name: str, asked: int | None, sizes: PolicySizes, path: Path) -> int:
    """Return how many numbers of a group are the robot's: as many as have statistics, unless the rest is padding."""
    size = statistics.length(group)
    if not size:
        raise ConfigError(
            f"{path} has no statistics of {'state' if name == 'state_dim' else 'actions'}, which openpi always"
            f" computes; give the whole file with the {option('statistics')}."
        )
    if size > sizes.action_dim:
        raise ConfigError(
            f"{path} has statistics of {size} numbers, but the policy takes {sizes.action_dim}: they are those of"
            " another robot, give the ones the policy was trained with."
        )
    if asked is not None:
        if not 0 < asked <= size:
            raise ConfigError(
                f"The {option(name)} is {asked}, but {path} has statistics of {size} numbers, so they are those of"
                " another robot or the option is wrong."
            )
        return asked
    if size == sizes.action_dim and statistics.used(group) < size:
        raise ConfigError(
            f"{path} has statistics of all {size} numbers that the policy takes, and the last"
            f" {size - statistics.used(group)} of them are always zero, so the robot's are not told from padding: give"
            f" their count with the {option(name)}."
        )
    return size


def _notes(config: Mapping[str, Any], options: PolicyOptions, tokenizer: Path | None) -> tuple[str, ...]:
    notes = []
    if "max_token_len" not in config and options.max_tokens is None:
        notes.append("the longest prompt is openpi's default, the checkpoint doesn't say it")
    if options.delta_mask is None:
        notes.append(
            f"actions are taken as absolute: none are marked with the {option('delta_mask')}, and"
            " openpi's checkpoints don't say which are relative"
        )
    if tokenizer is None:
        notes.append(f"no tokenizer beside the weights: give {shown('paligemma_tokenizer.model')} before deploying")
    return tuple(notes)
