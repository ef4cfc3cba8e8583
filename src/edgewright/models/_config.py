"""Reading a config: every key is a field of the family's dataclass, on a list of keys without effect, or an error."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Any, Self

from edgewright.errors import ConfigError
from edgewright.nn.rope import RopeTable
from edgewright.ops import ACTIVATIONS

#: Keys that change nothing about the forward pass of a text decoder, and why.
NO_EFFECT: dict[str, str] = {
    key: reason
    for reason, keys in {
        "identification": "_name_or_path _model_name_or_path name_or_path architectures auto_map model_type "
        "transformers_version _commit_hash "
        "quantization_config_source unsloth_fixed unsloth_version transformers.js_config is_llama_config",
        "storage dtype; the tensors say their own": "dtype torch_dtype",
        "training only": "attention_dropout hidden_dropout attention_probs_dropout_prob initializer_range "
        "use_cache gradient_checkpointing output_router_logits",
        "token ids, used by the runtime from the sidecars": "bos_token_id eos_token_id pad_token_id unk_token_id "
        "sep_token_id cls_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id",
        "output options of another library": "return_dict output_hidden_states output_attentions "
        "torchscript _attn_implementation _attn_implementation_autoset attn_implementation use_bfloat16 "
        "_flash_attn_2_enabled return_dict_in_generate cache_implementation",
        "generation defaults; sampling is a matter of the call": "do_sample temperature top_k top_p "
        "min_length max_length num_beams num_beam_groups diversity_penalty repetition_penalty length_penalty "
        "no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences early_stopping "
        "typical_p suppress_tokens begin_suppress_tokens exponential_decay_length_penalty remove_invalid_values "
        "output_scores",
        "how the training was spread over machines; products cut in pieces are the same": "pretraining_tp",
        "classification heads and task labels": "id2label label2id num_labels problem_type finetuning_task "
        "task_specific_params prefix tokenizer_class chunk_size_feed_forward pruned_heads tf_legacy_loss "
        "cross_attention_hidden_size tie_encoder_decoder",
    }.items()
    for key in keys.split()
}

#: No known model has as many layers; a larger number would only exhaust memory.
MAX_LAYERS = 4096
#: Nor as many heads, groups or experts.
MAX_PARTS = 1 << 16

#: Keys whose only understood value is this one.
FIXED: dict[str, Any] = {
    "is_encoder_decoder": False,
    "is_decoder": False,
    "add_cross_attention": False,
    "rope_interleaved": False,
}


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """What every decoder family has. A field without default must be in the config; `None` means the key was absent."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 2048
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None

    #: Further keys of the family without effect, with the reason; an inherited field among them is not read.
    no_effect: typing.ClassVar[Mapping[str, str]] = {}
    #: Further keys whose only understood value is given.
    fixed: typing.ClassVar[Mapping[str, Any]] = {}
    #: Other spellings of a field.
    aliases: typing.ClassVar[Mapping[str, str]] = {}
    #: Fields of this class that the family's model doesn't have: as keys they are unknown.
    absent: typing.ClassVar[frozenset[str]] = frozenset()
    #: The field that names the MLP's activation.
    activation: typing.ClassVar[str] = "hidden_act"
    #: Activations of the family besides those of `ops.ACTIVATIONS`.
    own_activations: typing.ClassVar[tuple[str, ...]] = ()
    #: Fields that list layers by their index.
    layer_lists: typing.ClassVar[tuple[str, ...]] = ("attn_layer_indices", "full_attn_idxs", "mlp_only_layers")
    #: Fields that may be zero or negative; every other number must be positive and finite.
    signed: typing.ClassVar[frozenset[str]] = frozenset()

    @property
    def kv_heads(self) -> int:
        """Key/value heads; as many as query heads when the config does not say."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        """Width of a head; hidden / heads when the config does not say."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def rotary_dim(self) -> int:
        """Width of a head's rotary part: all of it, or `partial_rotary_factor` of it where the family has that key."""
        factor: float = getattr(self, "partial_rotary_factor", 1.0)
        return int(self.head_size * factor)

    def rope(self, max_context: int, *, name: str = "rope") -> RopeTable:
        """Return the rope table of the config; raises ConfigError on a scaling that isn't understood."""
        limit = self.max_position_embeddings
        return RopeTable(name, max_context, self.rotary_dim, self.rope_theta, self.rope_scaling, limit)

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        """Read a config; raises ConfigError that lists everything that is missing, unknown or of a wrong value."""
        try:
            raw = _unaliased(flatten_rope(_plain(config)), cls.aliases)
        except RecursionError:
            raise ConfigError("The config is nested too deeply to be one: download it again.") from None
        fields = {f.name: f for f in dataclasses.fields(cls) if f.name not in cls.absent}
        hints = typing.get_type_hints(cls)
        problems: list[str] = []
        values: dict[str, Any] = {}
        fixed = {key: value for key, value in (FIXED | {**cls.fixed}).items() if key not in cls.no_effect}
        for key, value in raw.items():
            if key in fields and key not in cls.no_effect:
                if value is None and not _optional(hints[key]):
                    if fields[key].default is MISSING:
                        problems.append(f"{key} is null")
                elif not _fits(value, hints[key]):
                    problems.append(f"{key} has the value {value!r}")
                else:
                    try:
                        values[key] = _floats(value, hints[key])
                    except OverflowError:
                        problems.append(f"{key} is larger than any floating-point number")
            elif key in fixed:
                if value is not None and value != fixed[key]:
                    problems.append(f"{key} is {value!r} where only {fixed[key]!r} is supported")
            elif key not in NO_EFFECT and key not in cls.no_effect:
                problems.append(f"{key} is unknown to this family")
        problems += [f"{name} is missing" for name, f in fields.items() if name not in values and f.default is MISSING]
        if not problems:
            result = cls(**values)
            problems = result.problems()
            if not problems:
                return result
        raise ConfigError(
            f"The config can't be built as {config.get('model_type')!r} because {'; '.join(problems)}: "
            "check the checkpoint, or remove a key only if it truly has no effect."
        )

    def problems(self) -> list[str]:
        """Return what is wrong with values that are fine one by one."""
        found = [
            f"{f.name} is {value}"
            for f in dataclasses.fields(self)
            if isinstance(value := getattr(self, f.name), int | float)
            and not isinstance(value, bool)
            and f.name not in self.signed
            and not 0 < value < math.inf
        ]
        if self.num_hidden_layers > MAX_LAYERS:
            found.append(f"num_hidden_layers is {self.num_hidden_layers}, more than {MAX_LAYERS}")
        found += [
            f"{f.name} is {value}, more than {MAX_PARTS}"
            for f in dataclasses.fields(self)
            if any(word in f.name for word in ("heads", "experts", "groups"))
            and isinstance(value := getattr(self, f.name), int)
            and value > MAX_PARTS
        ]
        if found:
            return found
        for name in self.layer_lists:
            odd = [i for i in getattr(self, name, None) or () if not 0 <= i < self.num_hidden_layers]
            found += [f"{name} has {i}, which is none of the {self.num_hidden_layers} layers" for i in odd[:1]]
        if self.num_attention_heads % self.kv_heads:
            found.append(
                f"{self.num_attention_heads} attention heads don't share {self.kv_heads} key/value heads evenly"
            )
        if not self.head_size:
            found.append(f"{self.num_attention_heads} heads share a width of {self.hidden_size}")
        elif self.head_size % 2:
            found.append(f"head_dim {self.head_size} is odd")
        if hasattr(self, "partial_rotary_factor") and not 2 <= self.rotary_dim <= self.head_size:
            found.append(f"{self.rotary_dim} of a head's {self.head_size} elements are rotary")
        act = getattr(self, self.activation)
        if act not in ACTIVATIONS and act not in self.own_activations:
            known = (*ACTIVATIONS, *self.own_activations)
            found.append(f"{self.activation} {act!r} is none of {', '.join(known)}")
        return found


def because(reason: str, keys: str) -> dict[str, str]:
    """Return `no_effect` entries of one reason for keys separated by spaces."""
    return dict.fromkeys(keys.split(), reason)


def layer_windows(layer_types: list[str] | None, sliding_window: int | None, default: list[bool]) -> list[int | None]:
    """Return each layer's window: `layer_types` decides where given, else `default` (True: windowed)."""
    if layer_types is None:
        windowed = default
    else:
        known = {"full_attention", "sliding_attention"}
        if unknown := set(layer_types) - known:
            raise ConfigError(
                f"layer_types holds {', '.join(sorted(unknown))}; only {', '.join(sorted(known))} are known."
            )
        if len(layer_types) != len(default):
            raise ConfigError(f"layer_types has {len(layer_types)} entries for {len(default)} layers.")
        windowed = [kind == "sliding_attention" for kind in layer_types]
    if any(windowed) and sliding_window is None:
        raise ConfigError("Layers use sliding attention but sliding_window is not set.")
    return [sliding_window if w else None for w in windowed]


def layer_kinds(layer_types: Sequence[str], layers: int, known: Mapping[str, str]) -> list[str]:
    """Return each layer's kind; `known` maps the spellings of configs to the kinds."""
    if unknown := set(layer_types) - known.keys():
        raise ConfigError(f"layer_types holds {', '.join(sorted(unknown))}; only {', '.join(sorted(known))} are known.")
    if len(layer_types) != layers:
        raise ConfigError(f"layer_types has {len(layer_types)} entries for {layers} layers.")
    return [known[kind] for kind in layer_types]


def kind_rope_problems(scaling: Mapping[str, Any] | None) -> list[str]:
    """Return what of a scaling isn't understood in families whose kinds of layers have ropes of their own."""
    # transformers looks for the key beside the kinds, where it never stands, so it rounds in any case.
    odd = scaling is not None and scaling.get("truncate") is False
    return (
        ["the rope's truncate is false, which transformers doesn't see where kinds of layers have ropes"] if odd else []
    )


def flatten_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Bring the newer `rope_parameters` to the older keys: `rope_theta`, `rope_scaling`, `rope_local_base_freq`.

    Raises ConfigError when both spellings are present and disagree, or hold what isn't understood.
    """
    raw = dict(config)
    if raw.get("rope_scaling") is not None:
        raw["rope_scaling"] = _scaling(_mapping(raw["rope_scaling"], "rope_scaling"))
    parameters = raw.pop("rope_parameters", None)
    if parameters is None:
        return raw
    parameters = _mapping(parameters, "rope_parameters")
    new: dict[str, Any] = {}
    full = parameters
    if "full_attention" in parameters or "sliding_attention" in parameters:
        if set(parameters) - {"full_attention", "sliding_attention"}:
            raise ConfigError(f"rope_parameters mixes layer kinds and values: {', '.join(sorted(parameters))}.")
        full = _mapping(parameters.get("full_attention") or {}, "rope_parameters.full_attention")
        local = _mapping(parameters.get("sliding_attention") or {}, "rope_parameters.sliding_attention")
        if _scaling(local) is not None:
            raise ConfigError("Rope scaling on sliding-attention layers isn't supported.")
        if local.get("partial_rotary_factor") not in (None, 1.0):
            raise ConfigError("A partial_rotary_factor of sliding-attention layers isn't supported.")
        new["rope_local_base_freq"] = local.get("rope_theta")
    new["rope_theta"] = full.get("rope_theta")
    new["partial_rotary_factor"] = full.get("partial_rotary_factor")
    scaling = _scaling(full)
    if raw.get("rope_scaling") is not None and raw["rope_scaling"] != scaling:
        raise ConfigError(f"rope_parameters and rope_scaling disagree: {scaling} and {raw['rope_scaling']}.")
    raw["rope_scaling"] = scaling
    for key, value in new.items():
        if value is None:
            continue
        if raw.get(key) is not None and raw[key] != value:
            raise ConfigError(f"rope_parameters says {key} is {value!r} but the config also says {raw[key]!r}.")
        raw[key] = value
    return raw


def _plain(value: Any) -> Any:
    """Return a JSON value with infinite numbers, which transformers spells `{"__float__": "Infinity"}`, as floats."""
    if isinstance(value, Mapping):
        if set(value) == {"__float__"} and value["__float__"] in ("Infinity", "-Infinity"):
            return float(value["__float__"])
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} is {value!r} where a mapping is needed.")
    return value


def _scaling(parameters: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a scaling mapping with `rope_type` and its values only, or None for no scaling."""
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    known = {"rope_theta", "partial_rotary_factor", "type", "rope_type"}
    rest = {k: v for k, v in parameters.items() if k not in known and v is not None}
    if kind == "default" and rest:
        raise ConfigError(
            f"Rope parameters without scaling hold {', '.join(sorted(rest))}, which would have no effect."
        )
    return None if kind == "default" else {**rest, "rope_type": kind}


def _unaliased(raw: Mapping[str, Any], aliases: Mapping[str, str]) -> dict[str, Any]:
    """Return the config under the fields' own names; raises ConfigError when two spellings disagree."""
    result: dict[str, Any] = {}
    for key, value in raw.items():
        name = aliases.get(key, key)
        if name in result and result[name] != value:
            raise ConfigError(f"{key} is {value!r} but the config also says {result[name]!r} under another spelling.")
        result[name] = value
    return result


def _optional(hint: Any) -> bool:
    return type(None) in typing.get_args(hint)


def _floats(value: Any, hint: Any) -> Any:
    """Return whole numbers of a floating-point field as float; raises OverflowError."""
    if isinstance(value, int) and not isinstance(value, bool):
        options = typing.get_args(hint) or (hint,)
        return float(value) if float in options and int not in options else value
    if isinstance(value, list) and all(isinstance(v, int | float) for v in value):
        for number in value:
            float(number)
    return value


def _fits(value: Any, hint: Any) -> bool:
    """Tell whether a JSON value has the annotated type; a float field takes an int, a bool is no int."""
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if hint is type(None):
        return value is None
    if origin is list:
        (item,) = typing.get_args(hint)
        return isinstance(value, list) and all(_fits(v, item) for v in value)
    if origin is not None:
        return isinstance(value, origin)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)
