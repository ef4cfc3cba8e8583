"""A policy's tensors under one set of names, whoever wrote the file; tensors without effect are left out by rule.

The names are those of openpi's PyTorch model (pi0, pi0.5) and of LeRobot's SmolVLA without the prefix `model.`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from edgewright.checkpoint.tensor import FLOATING, StoredTensor
from edgewright.checkpoint.text import shown
from edgewright.errors import ConfigError, TensorMismatchError, UnsupportedFormatError
from edgewright.runtime.policy.spec import Kind

PALIGEMMA = "paligemma_with_expert.paligemma."
EXPERT = "paligemma_with_expert.gemma_expert."
EMBEDDING = f"{PALIGEMMA}model.language_model.embed_tokens.weight"
TIED_HEAD = f"{PALIGEMMA}lm_head.weight"
#: What marks each policy; all of its marks and none of another's are there.
MARKS: Mapping[Kind, tuple[str, ...]] = {
    "pi05": ("time_mlp_in.weight", f"{EXPERT}model.norm.dense.weight"),
    "pi0": ("state_proj.weight", "action_time_mlp_in.weight", f"{EXPERT}model.norm.weight"),
    "smolvla": (
        "state_proj.weight",
        "action_time_mlp_in.weight",
        "vlm_with_expert.vlm.model.text_model.embed_tokens.weight",
    ),
}
#: Tensors that no result depends on: a pattern of canonical names, and why.
DEAD: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(re.escape(EXPERT) + r"lm_head\.weight"), "the action expert predicts no tokens"),
    (re.compile(r"vlm_with_expert\.vlm\.lm_head\.weight"), "the language model predicts no tokens"),
    (re.compile(r"vlm_with_expert\.lm_expert\.lm_head\.weight"), "the action expert predicts no tokens"),
    (re.compile(r".*\.rotary_emb\.inv_freq"), "the frequencies follow from the head size"),
    (re.compile(r".*\.embeddings\.position_ids"), "the positions are 0, 1, 2 ..."),
)
_TOWER = re.compile(re.escape(f"{PALIGEMMA}model.vision_tower.") + r"(?=embeddings\.|encoder\.|post_layernorm\.)")
_OLD_STATISTICS = re.compile(r"(un)?normalize(_inputs|_outputs|_targets)?\..*|(in|out)put_normalizer\..*")
_BLOCK_BYTES = 4 << 20


@dataclass(frozen=True)
class PolicyTensors:
    """Tensors by canonical name, and (stored name, rule) of those left out."""

    tensors: Mapping[str, StoredTensor]
    ignored: tuple[tuple[str, str], ...]


def is_policy_tensor(name: str) -> bool:
    """Tell whether a stored name is that of a policy's tensor."""
    return name.removeprefix("model.").startswith(("paligemma_with_expert.", "vlm_with_expert."))


def canonical(stored: Mapping[str, StoredTensor], *, tied: bool) -> PolicyTensors:
    """Return the tensors under canonical names.

    `tied` says that the embedding and the language head are one tensor in the original (openpi), so that two different
    ones contradict each other; otherwise (LeRobot) the head is dead where the embedding is there. Raises
    TensorMismatchError (two names for one tensor, numbers that aren't floats), ConfigError (weights of a memory, old
    layouts).
    """
    _refuse_others(stored)
    found: dict[str, StoredTensor] = {}
    ignored: list[tuple[str, str]] = []
    for name, tensor in stored.items():
        short = _TOWER.sub(f"{PALIGEMMA}model.vision_tower.vision_model.", name.removeprefix("model."))
        rule = next((why for pattern, why in DEAD if pattern.fullmatch(short)), None)
        if rule is not None:
            ignored.append((name, rule))
        elif short in found:
            raise TensorMismatchError(
                f"The checkpoint holds {shown(short)} under two names ({shown(found[short].name)} and {shown(name)}),"
                " so which one counts is unclear; keep one of them."
            )
        else:
            found[short] = tensor
    _join_embeddings(found, ignored, tied=tied)
    wrong = [f"{name} ({tensor.dtype})" for name, tensor in found.items() if tensor.dtype not in FLOATING]
    if wrong:
        raise TensorMismatchError(
            f"The checkpoint holds tensors that are not floats: {_listed(wrong)}; give the policy as it was trained."
        )
    return PolicyTensors(found, tuple(ignored))


def _refuse_others(names: Iterable[str]) -> None:
    """Raise for tensors that say that the policy is of a form that isn't supported."""
    memory = [name for name in names if "proprio_history_proj" in name]
    if memory:
        raise ConfigError(
            f"The checkpoint holds the weights of an observation memory ({_listed(memory)}), which is not supported;"
            " train without use_proprioceptive_memory."
        )
    old = [name for name in names if _OLD_STATISTICS.fullmatch(name.removeprefix("model."))]
    if old:
        raise UnsupportedFormatError(
            f"The checkpoint keeps normalization statistics among its weights ({_listed(old)}), as LeRobot did before"
            " it had processor files; migrate it with LeRobot's migrate_policy_normalization first."
        )
    adapters = [name for name in names if ".lora_" in name or name.startswith("base_model.")]
    if adapters:
        raise UnsupportedFormatError(
            f"The checkpoint holds adapter weights ({_listed(adapters)}); merge them into the policy first."
        )


def _join_embeddings(found: dict[str, StoredTensor], ignored: list[tuple[str, str]], *, tied: bool) -> None:
    """Leave one tensor under the embedding's name, whichever of the pair the file has; LeRobot's embedding wins."""
    head = found.pop(TIED_HEAD, None)
    if head is None:
        return
    embedding = found.setdefault(EMBEDDING, head)
    if embedding is head:
        return
    if tied and not _same(embedding, head):
        raise TensorMismatchError(
            f"The checkpoint holds {embedding.name} and {head.name} with different values, though they are one tensor"
            " in openpi's model; save the policy again."
        )
    ignored.append((head.name, "the language head is not used where the file has the embedding too"))


def _same(one: StoredTensor, other: StoredTensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    step = max(1, _BLOCK_BYTES * max(one.row_count, 1) // max(one.nbytes, 1))
    starts = range(0, one.row_count, step)
    return all(
        np.array_equal(one.raw(start, stop), other.raw(start, stop))
        for start, stop in ((start, min(start + step, one.row_count)) for start in starts)
    )


def tell_kind(names: Iterable[str]) -> Kind:
    """Return which policy has tensors of these canonical names; raises TensorMismatchError."""
    there = set(names)
    marks = there & set().union(*MARKS.values())
    for kind, own in MARKS.items():
        if marks == set(own):
            return kind
    if any(name.startswith(PALIGEMMA) for name in there) and not any(name.startswith(EXPERT) for name in there):
        raise TensorMismatchError(
            "The checkpoint holds PaliGemma without an action expert, as pi0-FAST does, which is not supported; give a"
            " checkpoint of pi0.5, pi0 or SmolVLA."
        )
    raise TensorMismatchError(
        "The checkpoint's tensors are those of no known policy, or of two: of the tensors that mark pi0.5, pi0 and"
        f" SmolVLA it holds {_listed(sorted(marks)) or 'none'}; download it again, or give another checkpoint."
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
