"""LeRobot's processor files: what is done to an observation before the policy and to actions after it.

`policy_preprocessor.json` and `policy_postprocessor.json` list steps by their registered names, each with a config and
sometimes a safetensors file of state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgewright.checkpoint.folder import inside
from edgewright.checkpoint.policies.keys import Keys
from edgewright.checkpoint.policies.statistics import Groups, read_normalizer
from edgewright.checkpoint.text import read_json_object, shown
from edgewright.errors import ConfigError
from edgewright.runtime.policy.spec import Kind, Norm

PREPROCESSOR, POSTPROCESSOR = "policy_preprocessor.json", "policy_postprocessor.json"
MODES: Mapping[str, Norm] = {
    "QUANTILES": "quantile",
    "MEAN_STD": "mean-std",
    "MIN_MAX": "min-max",
    "IDENTITY": "identity",
}
NORMALIZED = {"STATE": "state", "ACTION": "actions"}
EPSILON = 1e-8
NORMALIZER, UNNORMALIZER = "normalizer_processor", "unnormalizer_processor"
STATE_PROMPT = "pi05_prepare_state_tokenizer_processor_step"
NEWLINES = ("pi0_new_line_processor", "smolvla_new_line_processor")
TOKENIZER = "tokenizer_processor"
#: The steps that each policy's preprocessor must have once.
NEEDED: Mapping[Kind, tuple[str, ...]] = {
    "pi05": (NORMALIZER, STATE_PROMPT, TOKENIZER),
    "pi0": (NORMALIZER, NEWLINES[0], TOKENIZER),
    "smolvla": (NORMALIZER, NEWLINES[1], TOKENIZER),
}


@dataclass
class Pipeline:
    """What a processor file says; the fields of steps that it hasn't keep their defaults.

    `files` is the file itself, `states` are those with the statistics that it names.
    """

    steps: list[str] = field(default_factory=list)
    norms: dict[str, Norm] = field(default_factory=dict)
    features: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    renames: dict[str, str] = field(default_factory=dict)
    groups: Groups = field(default_factory=dict)
    max_tokens: int | None = None
    tokenizer: str | None = None
    relative: bool = False
    excluded: list[str] = field(default_factory=list)
    names: list[str] | None = None
    files: list[Path] = field(default_factory=list)
    states: list[Path] = field(default_factory=list)


def read_preprocessor(folder: Path, kind: Kind) -> Pipeline:
    """Return what is done to an observation; raises ConfigError for steps or settings that aren't supported."""
    pipeline = _read(folder, PREPROCESSOR, _BEFORE)
    for name in NEEDED[kind]:
        if pipeline.steps.count(name) != 1:
            raise ConfigError(
                f"{folder / PREPROCESSOR} has the step {name} {pipeline.steps.count(name)} times, but {kind} needs it"
                " once; give the processor files of this policy."
            )
    foreign = [step for step in pipeline.steps if step in {STATE_PROMPT, *NEWLINES} - set(NEEDED[kind])]
    if foreign:
        raise ConfigError(
            f"{folder / PREPROCESSOR} has the step {foreign[0]}, which is another policy's than {kind}; give the"
            " processor files of this policy."
        )
    order = [step for step in pipeline.steps if step in NEEDED["pi05"]]
    if kind == "pi05" and order != list(NEEDED["pi05"]):
        raise ConfigError(
            f"{folder / PREPROCESSOR} writes the state into the prompt before it is normalized; save the"
            " processors again."
        )
    return pipeline


def read_postprocessor(folder: Path) -> Pipeline:
    """Return what is done to actions; raises ConfigError for steps or settings that aren't supported."""
    pipeline = _read(folder, POSTPROCESSOR, _AFTER)
    if pipeline.steps.count(UNNORMALIZER) != 1:
        raise ConfigError(f"{folder / POSTPROCESSOR} needs the step {UNNORMALIZER} once; save the processors again.")
    return pipeline


Step = Callable[[Keys, Pipeline], None]


def _read(folder: Path, name: str, known: Mapping[str, Step]) -> Pipeline:
    path = inside(folder, name)
    keys = Keys(read_json_object(path), str(path))
    keys.ignore(["name"])
    steps = keys.raw("steps")
    keys.finish()
    if not isinstance(steps, list):
        raise ConfigError(f"{path} has no list of steps; save the processors again.")
    pipeline = Pipeline(files=[path])
    for index, entry in enumerate(steps):
        _read_step(Keys(entry, f"{path}, step {index},"), folder, known, pipeline)
    return pipeline


def _read_step(step: Keys, folder: Path, known: Mapping[str, Step], pipeline: Pipeline) -> None:
    name = step.text("registry_name", "none" if "class" not in step else step.text("class"))
    if name not in known:
        raise ConfigError(
            f"{step.where} is {shown(name)}, which is not one of the steps that can be done at run time"
            f" ({', '.join(known)}); take it out of the pipeline if the policy doesn't need it."
        )
    pipeline.steps.append(name)
    config = step.inner("config")
    artifacts = step.inner("artifacts")
    if name == TOKENIZER and "tokenizer_name" in artifacts:
        pipeline.tokenizer = _plain(artifacts.text("tokenizer_name"), artifacts)
    artifacts.finish()
    if "state_file" in step and name in (NORMALIZER, UNNORMALIZER):
        state = inside(folder, _plain(step.text("state_file"), step))
        if not state.is_file():
            raise ConfigError(f"{step.where} names the file {shown(state.name)}, which is not in the folder; add it.")
        pipeline.states.append(state)
        pipeline.groups = read_normalizer(state)
    step.finish()
    known[name](config, pipeline)
    config.finish()


def _plain(name: str, keys: Keys) -> str:
    """Return a name of something directly in the folder; raises ConfigError for any other path."""
    if any(mark in name for mark in "/\\\0:") or name in (".", ".."):
        raise ConfigError(f"{keys.where} names {shown(name)}, which is not in the folder itself; put it there.")
    return name


def _nothing(config: Keys, pipeline: Pipeline) -> None:
    """A step that has no settings that matter here."""


def _device(config: Keys, pipeline: Pipeline) -> None:
    config.ignore(["device"])
    config.must("float_dtype", ["float32"], "observations are float32 here; save the processors without it.")


def _rename(config: Keys, pipeline: Pipeline) -> None:
    for old, new in config.inner("rename_map").items():
        if not isinstance(new, str):
            raise ConfigError(f"{config.where} renames {shown(old)} to {shown(new)}, which is not a name; correct it.")
        if not (old.startswith("observation.image") and new.startswith("observation.image")):
            raise ConfigError(f"{config.where} renames {shown(old)} to {shown(new)}, but only cameras may be renamed.")
        if new in pipeline.renames.values():
            raise ConfigError(f"{config.where} gives two cameras the name {shown(new)}; give each its own.")
        pipeline.renames[old] = new


def _normalize(config: Keys, pipeline: Pipeline) -> None:
    config.must("eps", [EPSILON], f"only {EPSILON:g} is supported, which all of LeRobot's policies use.")
    config.must("normalize_observation_keys", [], "normalizing only some features is not supported.")
    pipeline.norms = read_modes(config.inner("norm_map"))
    pipeline.features = read_features(config.inner("features"))


def _state_prompt(config: Keys, pipeline: Pipeline) -> None:
    config.ignore(["max_state_dim"])
    config.must("task_key", ["task"], "the prompt is always called task.")
    config.must("include_state_in_prompt", [True], "an observation memory is not supported.")


def _tokenize(config: Keys, pipeline: Pipeline) -> None:
    pipeline.max_tokens = config.integer("max_length")
    config.must("task_key", ["task"], "the prompt is always called task.")
    config.must("padding_side", ["right"], "prompts are cut and filled at their end.")
    config.must("truncation", [True], "prompts that are too long are always cut.")
    config.ignore(["padding", "tokenizer_name"])


def _relative(config: Keys, pipeline: Pipeline) -> None:
    pipeline.relative = config.flag("enabled", False)
    pipeline.excluded = config.texts("exclude_joints")
    pipeline.names = config.texts("action_names") if "action_names" in config else None
    config.ignore(["action_names"])


def _absolute(config: Keys, pipeline: Pipeline) -> None:
    pipeline.relative = config.flag("enabled", False)


_BEFORE: Mapping[str, Step] = {
    "rename_observations_processor": _rename,
    "to_batch_processor": _nothing,
    "relative_actions_processor": _relative,
    NORMALIZER: _normalize,
    STATE_PROMPT: _state_prompt,
    **dict.fromkeys(NEWLINES, _nothing),
    TOKENIZER: _tokenize,
    "device_processor": _device,
}
_AFTER: Mapping[str, Step] = {
    UNNORMALIZER: _normalize,
    "absolute_actions_processor": _absolute,
    "device_processor": _device,
}


def read_modes(keys: Keys) -> dict[str, Norm]:
    """Return how "state" and "actions" are normalized; images must not be."""
    norms: dict[str, Norm] = {}
    for name, mode in keys.items():
        if name == "VISUAL" and mode != "IDENTITY":
            raise ConfigError(
                f"{keys.where} normalizes images ({shown(mode)}), which these policies don't do; correct it."
            )
        if name in NORMALIZED:
            if not isinstance(mode, str) or mode not in MODES:
                raise ConfigError(
                    f"{keys.where} has {name} = {shown(mode)}, which is not supported ({', '.join(MODES)} are); train"
                    " with one of these."
                )
            norms[NORMALIZED[name]] = MODES[mode]
    return norms


def read_features(keys: Keys) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return type and shape of each feature."""
    features = {}
    for name, entry in keys.items():
        feature = Keys(entry, f"{keys.where.removesuffix(',')}, {shown(name)},")
        kind = feature.choice("type", ("STATE", "VISUAL", "ACTION", "ENV", "REWARD", "LANGUAGE"))
        shape: Any = feature.raw("shape")
        if not isinstance(shape, list) or not all(type(size) is int and 0 < size < 1 << 20 for size in shape):
            raise ConfigError(f"{feature.where} has the shape {shown(shape)}, not a list of sizes; correct it.")
        feature.finish()
        features[name] = (kind, tuple(shape))
    return features
