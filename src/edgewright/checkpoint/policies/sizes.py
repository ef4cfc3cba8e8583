"""The sizes of a policy, read off the shapes of its tensors; what no shape tells is known, or asked for."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from edgewright.checkpoint.policies.options import size_flag, size_option
from edgewright.checkpoint.policies.tensors import EMBEDDING, EXPERT, PALIGEMMA
from edgewright.checkpoint.tensor import StoredTensor
from edgewright.errors import ConfigError, TensorMismatchError
from edgewright.runtime.policy.spec import Kind

#: Every PaliGemma of these policies has as many heads in its vision tower (So400m/14), every Gemma as many query heads.
PALIGEMMA_VISION_HEADS, GEMMA_HEADS = 16, 8
#: Heads of SmolVLM's vision towers, by width (base/16 and So400m/14).
SMOL_VISION_HEADS = {768: 12, 1152: 16}
#: The vision language models that SmolVLA is known to be made from; each has heads of 64 and this epsilon.
SMOL_VLMS = (
    "HuggingFaceTB/SmolVLM2-256M-Video-Instruct",
    "HuggingFaceTB/SmolVLM2-500M-Video-Instruct",
    "HuggingFaceTB/SmolVLM2-500M-Instruct",
    "HuggingFaceTB/SmolVLM2-2.2B-Instruct",
)
SMOL_HEAD_DIM = 64
SMOL_EPSILON = 1e-5
EPSILON = 1e-6
ROPE_BASE = 10000.0
#: What `PolicyOptions.sizes` may say of each policy: the numbers that no shape of it tells.
ASKED: Mapping[Kind, tuple[str, ...]] = {
    "pi05": ("vision.heads", "text.heads"),
    "pi0": ("vision.heads", "text.heads"),
    "smolvla": ("vision.heads", "text.head_dim", "text.epsilon"),
}


@dataclass(frozen=True, kw_only=True)
class VisionSizes:
    """The vision tower: `patch` and `image` are the edge lengths in pixels."""

    width: int
    layers: int
    heads: int
    inner: int
    patch: int
    image: int


@dataclass(frozen=True, kw_only=True)
class TextSizes:
    """The language model that makes the prefix."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int


@dataclass(frozen=True, kw_only=True)
class ExpertSizes:
    """The action expert; its heads are those of the language model."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int


@dataclass(frozen=True, kw_only=True)
class PolicySizes:
    """All sizes that the graphs are built from.

    `action_dim` and `state_dim` are what the graphs take (`state_dim` is 0 where they take no state). `pixel_shuffle`
    is the factor by which SmolVLA's connector folds patches into one token (1: none). `self_attention_every` n: each
    n-th layer of SmolVLA's expert attends to itself too, the others only to the prefix (0: all of them only to the
    prefix); it is 1 for pi0 and pi0.5. The epsilons are those of the norms, the expert's is the text's.
    """

    vision: VisionSizes
    text: TextSizes
    expert: ExpertSizes
    action_dim: int
    state_dim: int
    pixel_shuffle: int = 1
    self_attention_every: int = 1
    vision_epsilon: float = EPSILON
    text_epsilon: float = EPSILON
    rope_base: float = ROPE_BASE

    @property
    def image_tokens(self) -> int:
        """Tokens of one image after the projector."""
        return (self.vision.image // self.vision.patch // self.pixel_shuffle) ** 2


def measure(
    kind: Kind,
    tensors: Mapping[str, StoredTensor],
    asked: Mapping[str, float],
    *,
    vlm: str = "",
    self_attention_every: int = 1,
) -> PolicySizes:
    """Return the sizes of a policy.

    `asked` are the numbers of `PolicyOptions.sizes`, which win over what is known; `vlm` is the name of the model that
    SmolVLA was made from. Raises TensorMismatchError (tensors missing or of impossible shapes), ConfigError (a number
    that has to be asked for).
    """
    unknown = sorted(set(asked) - set(ASKED[kind]))
    if unknown:
        raise ConfigError(
            f"The sizes {', '.join(unknown)} can't be given for {kind}, of which nothing reads them: leave them out, or"
            f" give those that its tensors don't tell ({', '.join(map(size_flag, ASKED[kind]))})."
        )
    return (
        _Ruler(tensors, asked).smolvla(vlm, self_attention_every)
        if kind == "smolvla"
        else _Ruler(tensors, asked).pi(kind)
    )


class _Ruler:
    """Reads sizes off shapes, and says which tensor is missing or odd."""

    def __init__(self, tensors: Mapping[str, StoredTensor], asked: Mapping[str, float]) -> None:
        self._tensors, self._asked = tensors, asked

    def pi(self, kind: Kind) -> PolicySizes:
        """Return the sizes of pi0.5 or pi0."""
        heads = self._number("text.heads", GEMMA_HEADS)
        text = self._text(f"{PALIGEMMA}model.language_model.", EMBEDDING, "text.heads", heads=heads)
        expert = self._expert(f"{EXPERT}model.", text)
        if (expert.layers, expert.kv_heads) != (text.layers, text.kv_heads):
            raise TensorMismatchError(
                f"The action expert has {expert.layers} layers with {expert.kv_heads} key heads, the language model"
                f" {text.layers} with {text.kv_heads}, but each layer of one reads the other's; give an undamaged"
                " checkpoint."
            )
        vision = self._vision(f"{PALIGEMMA}model.vision_tower.vision_model.", PALIGEMMA_VISION_HEADS)
        state = self._shape("state_proj.weight", 2)[1] if kind == "pi0" else 0
        return PolicySizes(vision=vision, text=text, expert=expert, action_dim=self._actions(), state_dim=state)

    def smolvla(self, vlm: str, self_attention_every: int) -> PolicySizes:
        """Return the sizes of SmolVLA."""
        known = vlm in SMOL_VLMS
        head_dim = self._number("text.head_dim", SMOL_HEAD_DIM if known else None)
        model = "vlm_with_expert.vlm.model."
        text = self._text(
            f"{model}text_model.",
            f"{model}text_model.embed_tokens.weight",
            "text.head_dim",
            head_dim=head_dim,
        )
        expert = self._expert("vlm_with_expert.lm_expert.", text)
        if text.layers != expert.layers:
            raise TensorMismatchError(
                f"The action expert has {expert.layers} layers and the language model {text.layers}, but only policies"
                " with as many of both are supported (num_expert_layers not above 0)."
            )
        vision = self._vision(f"{model}vision_model.")
        folded = self._shape(f"{model}connector.modality_projection.proj.weight", 2)[1]
        side = vision.image // vision.patch
        factor = math.isqrt(folded // vision.width)
        if factor < 1 or factor * factor * vision.width != folded or side % factor:
            raise TensorMismatchError(
                f"The connector takes {folded} numbers, which is no square of whole patches of {vision.width}; give an"
                " undamaged checkpoint."
            )
        return PolicySizes(
            vision=vision,
            text=text,
            expert=expert,
            action_dim=self._actions(),
            state_dim=self._shape("state_proj.weight", 2)[1],
            pixel_shuffle=factor,
            self_attention_every=self_attention_every,
            text_epsilon=self._epsilon(SMOL_EPSILON if known else None),
        )

    def _vision(self, prefix: str, known: int | None = None) -> VisionSizes:
        width, _, patch, other = self._shape(f"{prefix}embeddings.patch_embedding.weight", 4)
        positions = self._shape(f"{prefix}embeddings.position_embedding.weight", 2)[0]
        side = math.isqrt(positions)
        heads = self._number("vision.heads", SMOL_VISION_HEADS.get(width) if known is None else known)
        if patch != other or side * side != positions or width % heads:
            raise TensorMismatchError(
                f"The vision tower has patches of {patch} x {other} pixels, {positions} positions and {heads} heads at"
                f" width {width}, which is no square image of whole patches and heads; check the checkpoint and the"
                f" {size_option('vision.heads')}."
            )
        layers = self._layers(f"{prefix}encoder.layers.")
        inner = self._shape(f"{prefix}encoder.layers.0.mlp.fc1.weight", 2)[0]
        return VisionSizes(width=width, layers=layers, heads=heads, inner=inner, patch=patch, image=side * patch)

    def _text(self, prefix: str, embedding: str, size: str, *, heads: int = 0, head_dim: int = 0) -> TextSizes:
        """Return the language model's sizes, of which the number of heads or their size is known, named `size`."""
        vocab, width = self._shape(embedding, 2)
        rows = self._shape(f"{prefix}layers.0.self_attn.q_proj.weight", 2)[0]
        known = f"heads of {head_dim}" if head_dim else f"{heads} heads"
        heads, head_dim = heads or rows // head_dim, head_dim or rows // heads
        keys = self._shape(f"{prefix}layers.0.self_attn.k_proj.weight", 2)[0]
        if head_dim < 2 or heads * head_dim != rows or keys % head_dim or not keys or heads % (keys // head_dim):
            raise TensorMismatchError(
                f"The language model projects to {rows} numbers for queries and {keys} for keys, which are not whole"
                f" heads ({known}); check the checkpoint and the {size_option(size)}."
            )
        return TextSizes(
            width=width,
            layers=self._layers(f"{prefix}layers."),
            heads=heads,
            kv_heads=keys // head_dim,
            head_dim=head_dim,
            inner=self._shape(f"{prefix}layers.0.mlp.gate_proj.weight", 2)[0],
            vocab=vocab,
        )

    def _expert(self, prefix: str, text: TextSizes) -> ExpertSizes:
        rows, width = self._shape(f"{prefix}layers.0.self_attn.q_proj.weight", 2)
        keys = self._shape(f"{prefix}layers.0.self_attn.k_proj.weight", 2)[0]
        if (
            rows != text.heads * text.head_dim
            or keys % text.head_dim
            or width != self._shape("action_in_proj.weight", 2)[0]
        ):
            raise TensorMismatchError(
                f"The action expert projects {width} numbers to {rows} for queries and {keys} for keys, which doesn't"
                f" fit its actions or the language model's {text.heads} heads of {text.head_dim}; give an undamaged"
                " checkpoint."
            )
        return ExpertSizes(
            width=width,
            layers=self._layers(f"{prefix}layers."),
            heads=text.heads,
            kv_heads=keys // text.head_dim,
            head_dim=text.head_dim,
            inner=self._shape(f"{prefix}layers.0.mlp.gate_proj.weight", 2)[0],
        )

    def _actions(self) -> int:
        taken, given = self._shape("action_in_proj.weight", 2)[1], self._shape("action_out_proj.weight", 2)[0]
        if taken != given:
            raise TensorMismatchError(
                f"action_in_proj takes {taken} numbers and action_out_proj gives {given}, which must be as many; give"
                " an undamaged checkpoint."
            )
        return taken

    def _shape(self, name: str, rank: int) -> tuple[int, ...]:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise TensorMismatchError(
                f"The checkpoint lacks the tensor {name}, which this policy has; download it again."
            )
        if len(tensor.shape) != rank or 0 in tensor.shape:
            raise TensorMismatchError(
                f"The tensor {name} has the shape {list(tensor.shape)}, which should have {rank} dimensions, none of"
                " them empty; download the checkpoint again."
            )
        return tensor.shape

    def _layers(self, prefix: str) -> int:
        """Return how many layers there are; raises TensorMismatchError when their numbers have a gap."""
        pattern = re.compile(re.escape(prefix) + r"(0|[1-9][0-9]{0,3})\.")
        numbers = {int(match[1]) for match in map(pattern.match, self._tensors) if match}
        gap = next(number for number in range(len(numbers) + 1) if number not in numbers)
        if not numbers or gap < len(numbers):
            raise TensorMismatchError(
                f"The checkpoint lacks the layer {prefix}{gap}, though it has later ones; download it again."
                if numbers
                else f"The checkpoint lacks the layers {prefix}*, which this policy has; download it again."
            )
        return len(numbers)

    def _number(self, name: str, known: int | None) -> int:
        value = self._asked.get(name, known)
        if value is None:
            raise ConfigError(
                f"No shape and no config tells {name} of this policy, which is not of a known size: give it with the"
                f" {size_option(name)}."
            )
        if not 1 <= value < 1 << 16 or value != int(value):
            raise ConfigError(f"The {size_option(name)} is {value:g}, which must be a positive integer.")
        return int(value)

    def _epsilon(self, known: float | None) -> float:
        value = self._asked.get("text.epsilon", known)
        if value is None:
            raise ConfigError(
                "No shape and no config tells the epsilon of the language model's norms: give it with the"
                f" {size_option('text.epsilon')}."
            )
        if not 0 <= value < 1:
            raise ConfigError(f"The {size_option('text.epsilon')} is {value:g}, which must be from 0 to below 1.")
        return float(value)
