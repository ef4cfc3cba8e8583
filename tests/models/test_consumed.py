"""Consumed or refused, mechanically: every field of every family's config changes the output, or the build refuses.

For each field several other values are tried on the family's goldens, as they are and with the keys removed that take
charge of others. A field that is accepted with another value and never changes the logits is a key we would ignore
in silence.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import CASES, changed, engine_of, golden, read_config, relative_error
from edgewright.checkpoint import Checkpoint
from edgewright.dialects import LOWERINGS
from edgewright.errors import ConfigError, TensorMismatchError
from edgewright.graph import Stage
from edgewright.models import FAMILIES, build_llm, config_of
from edgewright.models._config import NO_EFFECT
from edgewright.ops import ACTIVATIONS
from edgewright.runtime.session import Session

#: Keys that, where present, decide in the place of others.
IN_CHARGE = (
    "layer_types", "no_rope_layers", "mlp_only_layers", "head_dim", "rope_parameters", "layers_block_type",
    "hidden_act", "hidden_activation", "hybrid_override_pattern", "mlp_layer_types", "attn_layer_indices",
)  # fmt: skip
#: Settings under which further keys count, tried where a family has all of them.
SETTINGS: tuple[dict[str, Any], ...] = (
    {"layer_types": ..., "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    {"layer_types": ..., "use_sliding_window": True, "sliding_window": 9, "no_rope_layers": ...},
    {"use_sliding_window": True, "sliding_window": 9},
    {"layer_types": ..., "full_attention_interval": 2},
    {"layer_types": ..., "full_attn_idxs": [1]},
)
#: Fields that are accepted with other values without effect, and why that is right.
EXCUSED: dict[str, dict[str, str]] = {
    "ernie4_5_moe": {
        "moe_layer_interval": "1 and 2 are the same for the golden's second layer, the only one of concern"
    },
    "qwen2_moe": {"intermediate_size": "the width of layers without experts, which some goldens don't have"},
    "qwen3_moe": {"intermediate_size": "the width of layers without experts, which some goldens don't have"},
    "falcon_h1": {"mamba_expand": "mamba_d_ssm decides where both are given"},
    "lfm2": {"block_multiple_of": "widths that are rounded up alike"},
    "phi3": {"original_max_position_embeddings": "counts for longrope only, whose parameters repeat it in the goldens"},
}
#: What differs less than this from the logits before has not changed.
CHANGE = 1e-6


@functools.cache
def rows_of(family: str) -> tuple[str, ...]:
    return tuple(case for case in CASES if read_config(case)["model_type"] == family)


def text_part(config: Mapping[str, Any]) -> str | None:
    """The key of a wrapper's text config."""
    return "text_config" if isinstance(config.get("text_config"), Mapping) else None


def with_keys(checkpoint: Checkpoint, **keys: Any) -> Checkpoint:
    """Set keys (`...`: remove) where the text model's config stands."""
    part = text_part(checkpoint.config)
    if part is None:
        return changed(checkpoint, **keys)
    inner = {**checkpoint.config[part], **keys}
    return changed(checkpoint, **{part: {k: v for k, v in inner.items() if v is not ...}})


def alternatives(value: Any, hint: Any) -> Iterator[Any]:
    """Yield other values of a field, likely and unlikely ones."""
    options = typing.get_args(hint) or (hint,)
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value * 2, max(1, value // 2), 1)
    elif isinstance(value, float):
        yield from (value * 1.5, value / 3, value + 0.25)
    elif isinstance(value, str):
        yield from (name for name in ("relu", "silu", "gelu") if name in ACTIVATIONS and name != value)
        yield f"not-{value}"
    elif isinstance(value, list):
        yield from _other_lists(value)
    elif isinstance(value, Mapping):
        yield from ({"rope_type": "linear", "factor": 3.0}, None)
    elif value is None:
        for option in options:
            yield from {
                int: (3, 2, 9), float: (0.5, 2.0), bool: (True,), str: ("relu",), dict: ({"rope_type": "nope"},),
            }.get(option, ())  # fmt: skip
        if any(typing.get_origin(option) is list for option in options):
            yield [1]
        if any(typing.get_origin(option) is not None for option in options):
            yield {"rope_type": "linear", "factor": 3.0}
    if value is not None and type(None) in options:
        yield None


def _other_lists(value: list[Any]) -> Iterator[list[Any]]:
    kinds = list(dict.fromkeys(value))
    if len(kinds) > 1:
        yield [kinds[(kinds.index(v) + 1) % len(kinds)] for v in value]
        yield value[::-1]
    elif value and isinstance(value[0], bool):
        yield [not value[0], *value[1:]]
    elif value and isinstance(value[0], int | float):
        yield [value[0] + 1, *value[1:]]
    elif value and isinstance(value[0], str):
        yield ["nothing_known", *value[1:]]
    yield value[:-1]
    yield [*value, max(value) + 5] if value and isinstance(value[0], int) else [*value, *value[-1:]]


def fingerprint(stage: Stage) -> bytes:
    """Everything a stage computes with but the checkpoint's tensors themselves."""
    parts: list[Any] = [stage.contract, sorted(stage.weights)]
    for node in stage.graph:
        attributes = sorted((name, str(a.value)) for name, a in node.attributes.items())
        parts.append((node.op_type, attributes, [v.name if v is not None else None for v in node.inputs]))
    for name, value in stage.graph.initializers.items():
        if name not in stage.producers:
            assert value.const_value is not None
            parts.append((name, value.const_value.numpy().tobytes()))
    for name, weight in sorted(stage.weights.items()):
        if weight.stored() is None:
            parts.append((name, weight.rows(0, weight.shape[0]).tobytes()))
    return repr(parts).encode()


class Probe:
    """Builds checkpoints and compares them, running a graph only when it differs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._logits: dict[bytes, np.ndarray] = {}

    def run(self, checkpoint: Checkpoint, ids: np.ndarray) -> tuple[bytes, np.ndarray, int] | None:
        """Return fingerprint, logits and context, or None when the build refuses."""
        try:
            stage = build_llm(checkpoint)
        except (ConfigError, TensorMismatchError):
            return None
        context = stage.contract.bounds["capacity"][1]
        key = fingerprint(stage)
        if key not in self._logits:
            self._count += 1
            engine = engine_of(LOWERINGS["onnxruntime"](stage), self._folder / str(self._count), "basic")
            self._logits[key] = Session(engine).append(ids[: min(len(ids), context)], logits="all")
        return key, self._logits[key], context


def verdict(family: str, field: dataclasses.Field[Any], hint: Any, folder: Path) -> str:
    """Return "consumed", "refused" or what was ignored.

    One golden in which no other value is accepted without effect is enough: in the others the key may belong to a part
    that they don't have.
    """
    ignored: list[str] = []
    for case in rows_of(family):
        reference = golden(case)
        probe = Probe(folder / case)
        part = text_part(reference.checkpoint.config)
        config = reference.checkpoint.config[part] if part else reference.checkpoint.config
        for setting in settings(family, config, field.name):
            checkpoint = with_keys(reference.checkpoint, **setting)
            before = probe.run(checkpoint, reference.ids)
            if before is None:
                continue
            _, read = config_of(checkpoint.config)
            current = getattr(read, field.name)
            refused, here = False, len(ignored)
            for value in alternatives(current, hint):
                if value == current:
                    continue
                keys = {spelling(family, config, field.name): value}
                if field.name in ("rope_theta", "rope_scaling", "partial_rotary_factor"):
                    keys = _rope_keys({} if "rope_parameters" in setting else config, field.name, value)
                after = probe.run(with_keys(checkpoint, **keys), reference.ids)
                if after is None:
                    refused = True
                elif after[2] != before[2] or relative_error(after[1], before[1]) > CHANGE:
                    return "consumed"
                elif value is not None:  # null is the default, which may be what stood there
                    ignored.append(f"{case} with {setting}: {field.name} = {value!r}")
            if refused and len(ignored) == here:
                return "refused"
    if ignored:
        return f"ignored: {ignored[:4]}"
    raise AssertionError(f"{family}.{field.name} was never tried")


def spelling(family: str, config: Mapping[str, Any], field: str) -> str:
    """Return the name under which a config has a field."""
    module, _ = config_of(read_config(rows_of(family)[0]))
    others = [key for key, name in module.Config.aliases.items() if name == field and key in config]
    return others[0] if others and field not in config else field


def settings(family: str, config: Mapping[str, Any], field: str) -> Iterator[dict[str, Any]]:
    """Yield key changes under which to try a field: none, those that hand over the charge, those that switch on."""
    yield {}
    for key in IN_CHARGE:
        if key in config and key != field:
            yield {key: ..., **({"rope_theta": 5000.0} if key == "rope_parameters" else {})}
    known = {f.name for f, _ in fields_of(family)}
    for setting in SETTINGS:
        if setting.keys() <= known:
            yield setting


def _rope_keys(config: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Set a rope field where the config spells it."""
    parameters = config.get("rope_parameters")
    if not isinstance(parameters, Mapping):
        return {name: value}
    inner: dict[str, Any] = dict(parameters.get("full_attention", parameters))
    if name == "rope_scaling":
        kept = {k: v for k, v in inner.items() if k in ("rope_theta", "partial_rotary_factor")}
        inner = kept | (dict(value) if value else {"rope_type": "default"})
    else:
        inner[name] = value
    return {"rope_parameters": {**parameters, "full_attention": inner} if "full_attention" in parameters else inner}


def fields_of(family: str) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    module, _ = config_of(read_config(rows_of(family)[0]))
    hints = typing.get_type_hints(module.Config)
    for field in dataclasses.fields(module.Config):
        if field.name not in module.Config.no_effect and field.name not in module.Config.absent:
            yield field, hints[field.name]


def test_every_family_has_goldens() -> None:
    assert {family for family in FAMILIES if not rows_of(family)} == set()
    assert {read_config(case)["model_type"] for case in CASES} == set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_is_consumed_or_refused(family: str, tmp_path: Path) -> None:
    found = {field.name: verdict(family, field, hint, tmp_path) for field, hint in fields_of(family)}
    ignored = {name: what for name, what in found.items() if what.startswith("ignored")}
    assert ignored.keys() <= EXCUSED.get(family, {}).keys(), ignored
    assert {"vocab_size", "num_hidden_layers"} <= {name for name, what in found.items() if what == "refused"}


@pytest.mark.parametrize("family", FAMILIES)
def test_no_key_is_both_used_and_without_effect(family: str) -> None:
    module, _ = config_of(read_config(rows_of(family)[0]))
    used = {field.name for field, _ in fields_of(family)} | set(module.Config.fixed)
    assert not set(module.Config.fixed) & set(module.Config.no_effect)
    assert not used & NO_EFFECT.keys()
    assert all(reason for reason in module.Config.no_effect.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_an_unknown_key_is_refused(family: str) -> None:
    with pytest.raises(ConfigError, match="sparse_layers is unknown to this family"):
        build_llm(with_keys(golden(rows_of(family)[0]).checkpoint, sparse_layers=2))


@pytest.mark.parametrize("family", FAMILIES)
def test_keys_without_effect_are_not_read(family: str) -> None:
    """Nonsense under every key that is said to have no effect gives the same graph."""
    checkpoint = golden(rows_of(family)[0]).checkpoint
    module, _ = config_of(checkpoint.config)
    before = fingerprint(build_llm(checkpoint))
    for key in module.Config.no_effect:
        if key in ("rope_scaling", "partial_rotary_factor"):
            continue  # two spellings of the rope that disagree are refused, whatever they are for
        assert fingerprint(build_llm(with_keys(checkpoint, **{key: "nonsense"}))) == before, key
