"""From a path to a robot policy: openpi's and LeRobot's pi0.5 and pi0, LeRobot's SmolVLA."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgewright.checkpoint.folder import INDEX, inside, read_weights
from edgewright.checkpoint.layouts.quantization import Quantization
from edgewright.checkpoint.policies import lerobot, native, openpi
from edgewright.checkpoint.policies.description import TOKENIZER, Description
from edgewright.checkpoint.policies.options import PolicyOptions
from edgewright.checkpoint.policies.sizes import ExpertSizes, PolicySizes, TextSizes, VisionSizes
from edgewright.checkpoint.policies.statistics import NORM_STATS
from edgewright.checkpoint.policies.tensors import canonical, is_policy_tensor, tell_kind
from edgewright.checkpoint.safetensors import read_safetensors
from edgewright.checkpoint.tensor import StoredTensor
from edgewright.checkpoint.text import read_json_object, shown
from edgewright.errors import (
    CheckpointError,
    ConfigError,
    SourceNotFoundError,
    TensorMismatchError,
    UnsupportedFormatError,
)
from edgewright.files import canonical_json
from edgewright.runtime.policy.spec import Kind, PolicySpec, Statistics

__all__ = [
    "ExpertSizes",
    "PolicyCheckpoint",
    "PolicyOptions",
    "PolicySizes",
    "TextSizes",
    "VisionSizes",
    "is_policy",
    "open_policy",
]

#: Keys that openpi's config.json has and a language model's hasn't.
_OPENPI_KEYS = frozenset({"action_horizon", "paligemma_variant", "action_expert_variant"})
#: Keys that the config of any LeRobot policy has.
_LEROBOT_KEYS = frozenset({"input_features", "output_features"})
_ADAPTER = "adapter_config.json"


@dataclass(frozen=True)
class PolicyCheckpoint:
    """A robot policy as it was trained; opening one reads headers, configs and statistics only.

    `tensors` maps canonical names to lazily mapped tensors; `ignored` are (stored name, rule) of those that no result
    depends on. `config` is the content of `config.json`, empty where there is none; `files` are all files that were
    used; `notes` are what a reader of a report should know. `quantization` is there where `edgewright quantize` wrote
    it.
    """

    path: Path
    kind: Kind
    spec: PolicySpec
    sizes: PolicySizes
    statistics: Statistics
    tensors: Mapping[str, StoredTensor] = field(repr=False)
    ignored: tuple[tuple[str, str], ...]
    config: Mapping[str, Any]
    files: tuple[Path, ...]
    notes: tuple[str, ...]
    description: Description = field(repr=False, compare=False)
    quantization: Quantization | None = field(default=None, repr=False, compare=False)

    def sidecars(self) -> dict[str, bytes]:
        """Return the files that go beside the graphs, by name: `tokenizer.json` and `norm_stats.json`.

        Raises TokenizerError if there is no tokenizer or one that can't be rebuilt.
        """
        return {
            TOKENIZER: self.description.tokenizer(),
            NORM_STATS: canonical_json(self.statistics.to_json()),
        }


def is_policy(path: str | Path) -> bool:
    """Tell whether a path is the folder of a robot policy (supported or not), or a weight file in one; never raises."""
    try:
        folder = _folder(Path(path))
        config = folder / "config.json"
        if config.is_file():
            content = json.loads(config.read_bytes())
            if not isinstance(content, dict):
                return False
            is_lerobot = isinstance(content.get("type"), str) and bool(_LEROBOT_KEYS & content.keys())
            return is_lerobot or native.KEY in content or bool(_OPENPI_KEYS & content.keys())
        if (index := folder / INDEX).is_file():
            weight_map = json.loads(index.read_bytes()).get("weight_map", {})
            return isinstance(weight_map, dict) and any(map(is_policy_tensor, weight_map))
        weights = folder / "model.safetensors"
        return weights.is_file() and any(map(is_policy_tensor, read_safetensors(weights)))
    except (OSError, ValueError, AttributeError, RecursionError, CheckpointError):
        return False


def open_policy(path: str | Path, options: PolicyOptions | None = None) -> PolicyCheckpoint:
    """Open the folder of a robot policy, or the `.safetensors` file in one.

    Raises SourceNotFoundError if nothing is there, another CheckpointError if a file breaks its format, ConfigError if
    the policy is of another type, or if something is missing, unknown or has to be said with an option,
    TensorMismatchError if the tensors are not those of a policy.
    """
    try:
        return _open(Path(path), options or PolicyOptions())
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or path} can't be read ({error.strerror or error}); check its permissions and the disk."
        ) from None


def _open(path: Path, options: PolicyOptions) -> PolicyCheckpoint:
    folder = _folder(path)
    if not folder.is_dir() or not path.exists():
        raise SourceNotFoundError(f"{path} does not exist; give the folder of a policy with its model.safetensors.")
    if (folder / "pretrained_model").is_dir() and not (folder / "config.json").is_file():
        raise SourceNotFoundError(f"{folder} is a training checkpoint; give the folder pretrained_model in it.")
    if (folder / _ADAPTER).is_file():
        raise UnsupportedFormatError(f"{folder} holds an adapter ({_ADAPTER}); merge it into the policy first.")
    config = read_json_object(inside(folder, "config.json")) if (folder / "config.json").is_file() else {}
    if native.KEY in config:
        return _quantized(folder, config, options)
    is_lerobot = "type" in config
    told = lerobot.told_kind(config, folder) if is_lerobot else None
    stored, weights = read_weights(folder)
    if path.is_file() and path.name != INDEX and not any(path.samefile(file) for file in weights):
        raise UnsupportedFormatError(
            f"{path} is not part of the policy in its folder, which is made of {shown(weights[-1].name)}; give the"
            " folder, or move the file to one of its own."
        )
    found = canonical(stored, tied=not is_lerobot)
    kind = tell_kind(found.tensors)
    _check_kind(kind, told, options, folder)
    describe = lerobot.describe if is_lerobot else openpi.describe
    described = describe(folder, kind, found.tensors, config, options)
    return PolicyCheckpoint(
        path=folder,
        kind=kind,
        spec=described.spec,
        sizes=described.sizes,
        statistics=described.statistics,
        tensors=found.tensors,
        ignored=found.ignored,
        config=config,
        files=(*described.files, *weights),
        notes=described.notes,
        description=described,
    )


def _quantized(folder: Path, config: Mapping[str, Any], options: PolicyOptions) -> PolicyCheckpoint:
    """Return a policy that `edgewright quantize` wrote, which leaves nothing open."""
    stored, weights = read_weights(folder)
    described, tensors, found = native.read_native(folder, config, stored, options)
    return PolicyCheckpoint(
        path=folder,
        kind=described.spec.kind,
        spec=described.spec,
        sizes=described.sizes,
        statistics=described.statistics,
        tensors=tensors,
        ignored=(),
        config=config,
        files=(*described.files, *weights),
        notes=described.notes,
        description=described,
        quantization=found,
    )


def _folder(path: Path) -> Path:
    return path.parent if path.suffix == ".safetensors" or path.name == INDEX else path


def _check_kind(kind: Kind, told: Kind | None, options: PolicyOptions, folder: Path) -> None:
    if told is not None and told != kind:
        raise TensorMismatchError(
            f"{folder}/config.json says that the policy is {told}, but its tensors are those of {kind}; give config and"
            " weights of one policy."
        )
    if options.kind is not None and options.kind != kind:
        raise ConfigError(f"The option kind is {shown(options.kind)}, but {folder} holds {kind}; leave the option out.")
