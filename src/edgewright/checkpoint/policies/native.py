"""Our own layout of a quantized policy: `config.json` says all that the original's folder or its options did.

`config.json` has the key KEY, with `spec`, `sizes` and `notes`, and `quantization_config` as quantized language models
have it (`checkpoint/layouts/native.py`). Tensors have the names and shapes of the graphs' parameters. `tokenizer.json`
and `norm_stats.json` stand beside.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from edgewright.checkpoint.folder import inside
from edgewright.checkpoint.layouts import native as layout
from edgewright.checkpoint.layouts.quantization import Quantization
from edgewright.checkpoint.policies.description import TOKENIZER, Description, checked, read_tokenizer
from edgewright.checkpoint.policies.options import PolicyOptions, option
from edgewright.checkpoint.policies.sizes import ExpertSizes, PolicySizes, TextSizes, VisionSizes
from edgewright.checkpoint.policies.statistics import NORM_STATS
from edgewright.checkpoint.tensor import StoredTensor
from edgewright.checkpoint.text import read_json_object
from edgewright.errors import BundleError, CheckpointError, ConfigError
from edgewright.runtime.policy.spec import NEEDED, Limits, PolicySpec, Statistics

KEY = "edgewright_policy"
_KEYS = frozenset({"spec", "sizes", "notes"})
_MAY_BE_ZERO = frozenset({"state_dim", "self_attention_every", "text_epsilon", "vision_epsilon"})
_PARTS: Mapping[str, Any] = {"vision": VisionSizes, "text": TextSizes, "expert": ExpertSizes}


def policy_config(spec: PolicySpec, sizes: PolicySizes, notes: tuple[str, ...]) -> dict[str, Any]:
    """Return what `config.json` says of a policy, under KEY."""
    return {"spec": spec.to_json(), "sizes": asdict(sizes), "notes": list(notes)}


def read_native(
    folder: Path, config: Mapping[str, Any], stored: Mapping[str, StoredTensor], options: PolicyOptions
) -> tuple[Description, dict[str, StoredTensor], Quantization]:
    """Return a quantized policy's description, its tensors, and how it was quantized.

    Raises ConfigError on options, since everything is said already; CheckpointError where the folder was changed.
    """
    given = [name for name, value in vars(options).items() if value != vars(PolicyOptions())[name] and name != "limits"]
    if given:
        raise ConfigError(
            f"{folder} is a quantized policy, which says everything itself, so nothing may be said again: leave out the"
            f" {', the '.join(map(option, given))}."
        )
    data = config[KEY]
    try:
        if not isinstance(data, Mapping) or data.keys() != _KEYS:
            raise ValueError("its keys are others")
        spec, sizes = PolicySpec.from_json(data["spec"]), _sizes(data["sizes"])
        spec = spec if options.limits == Limits() else checked(replace(spec, limits=options.limits))
        if not isinstance(data["notes"], list) or not all(isinstance(note, str) for note in data["notes"]):
            raise ValueError("its notes are no list of texts")
        notes = tuple(data["notes"])
        statistics = Statistics.from_json(read_json_object(inside(folder, NORM_STATS)))
        quantized = config["quantization_config"]
        if not isinstance(quantized, Mapping) or quantized.get("quant_method") != layout.METHOD:
            raise ValueError("quantization_config is not ours")
        _check_fit(spec, sizes, statistics)
    except (AttributeError, KeyError, TypeError, ValueError, BundleError) as error:
        reason = str(error).split(", so ")[0]
        raise CheckpointError(
            f"{folder}/config.json doesn't describe a quantized policy ({reason}): quantize the original again."
        ) from None
    tensors, found = layout.read(quantized, stored)
    tokenizer = inside(folder, TOKENIZER)
    described = Description(
        spec=spec,
        sizes=sizes,
        statistics=statistics,
        config=config,
        files=(folder / "config.json", inside(folder, NORM_STATS), tokenizer),
        tokenizer=lambda: read_tokenizer(tokenizer, folder, ""),
        notes=(*notes, *found.notes),
    )
    return described, tensors, found


def _check_fit(spec: PolicySpec, sizes: PolicySizes, statistics: Statistics) -> None:
    """Raise ValueError where spec, sizes and statistics are not of one policy."""
    edge = (sizes.vision.image, sizes.vision.image)
    for name, found, wanted in (
        ("image_size", spec.image_size, edge),
        ("image_tokens", spec.image_tokens, sizes.image_tokens),
        ("model_action_dim", spec.model_action_dim, sizes.action_dim),
        ("model_state_dim", spec.model_state_dim, sizes.state_dim or spec.model_state_dim),
        ("vocab", spec.vocab, sizes.text.vocab),
        ("tokenizer", spec.tokenizer, TOKENIZER),
        (
            "self_attention_every",
            sizes.self_attention_every,
            1 if spec.kind != "smolvla" else sizes.self_attention_every,
        ),
    ):
        if found != wanted:
            raise ValueError(f"{name} is {found} where {wanted} is needed")
    for name, norm, group, dim in (
        ("state", spec.state_norm, statistics.state, spec.state_dim),
        ("actions", spec.action_norm, statistics.actions, spec.action_dim),
    ):
        missing = [key for key in NEEDED[norm] if dim and key not in group]
        if missing or any(vector.size != dim for vector in group.values()):
            raise ValueError(f"the statistics of {name} are not the {norm} ones of {dim} numbers")


def _sizes(data: Any) -> PolicySizes:
    """Build sizes; raises KeyError, TypeError or ValueError on other keys and values than `policy_config` writes."""
    if not isinstance(data, Mapping) or not all(isinstance(data.get(name), Mapping) for name in _PARTS):
        raise ValueError("its sizes are no object")
    values = {name: cls(**_numbers(data[name], cls)) for name, cls in _PARTS.items()}
    rest = {name: value for name, value in data.items() if name not in values}
    return PolicySizes(**values, **_numbers(rest, PolicySizes, but=frozenset(values)))


def _numbers(data: Mapping[str, Any], cls: Any, but: frozenset[str] = frozenset()) -> dict[str, Any]:
    kinds = {entry.name: entry.type for entry in fields(cls) if entry.name not in but}
    if data.keys() != kinds.keys():
        raise ValueError(f"the sizes are not {', '.join(kinds)}")
    for name, kind in kinds.items():
        value = data[name]
        least = 0 if name in _MAY_BE_ZERO else 1
        if type(value) not in ((int,) if kind == "int" else (int, float)) or not least <= value < 1 << 31:
            raise ValueError(f"the size {name} is {json.dumps(value)[:40]}")
    return {name: float(data[name]) if kind == "float" else data[name] for name, kind in kinds.items()}
