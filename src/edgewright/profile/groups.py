"""What part of a model a module belongs to, by the names on its path: attention, mlp, norm, head, embedding ..."""

from __future__ import annotations

import re

OTHER, NONE = "other", "no module"
#: The innermost name on a module's path that one of these fits decides; of several that fit one name, the first.
_WORDS = (
    ("norm", re.compile(r"norm|(^|_)ln(_|\d|$)|layernorm")),
    ("embedding", re.compile(r"embed|(^|_)wte$|(^|_)wpe$|^time_table$|^patch")),
    ("head", re.compile(r"^lm_head$|^head$|^output$|_out_proj$|^logits$")),
    ("experts", re.compile(r"expert|(^|_)moe$|router|^gate$")),
    ("recurrent", re.compile(r"mamba|ssm|linear_attn|(^|_)conv|delta|recurrent|rglru")),
    ("attention", re.compile(r"att")),
    ("mlp", re.compile(r"mlp|ffn|feed_forward|^fc\d?$|_mlp_|^dense_")),
)
#: Names that say nothing of what is inside of them though they look like it: whole models.
_WHOLE = re.compile(r"^(?:paligemma_with_expert|gemma_expert|lm_expert|vlm_with_expert|action_expert|model|layers)$")


def module_path(node: str) -> str:
    """Return the module that a node of a graph was made for: its name up to the first slash."""
    return node.partition("/")[0]


def group_of(module: str) -> str:
    """Return the part of a model that a module belongs to."""
    for name in reversed(module.split(".")):
        if _WHOLE.match(name):
            continue
        for group, words in _WORDS:
            if words.search(name):
                return group
    return OTHER
