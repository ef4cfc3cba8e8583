"""The vocabulary rule: config, tensors and tokenizer each say how many tokens there are.

Config and tensors must agree; binding the tensors sees to that. A tokenizer with fewer ids is usual (tables are
padded): the surplus rows are kept, and an id without a token decodes to nothing. A tokenizer with more ids is usual as
well (a text model that shares the tokenizer of a model with images): the bundle works, and a prompt that contains such
a token is refused when it is run. Both are noted in the manifest.
"""

from __future__ import annotations

import json
from typing import Any

from edgewright.errors import TokenizerError


def vocabulary_notes(tokenizer_json: bytes, vocab_size: int) -> list[str]:
    """Return in words how a `tokenizer.json` differs from the model's vocabulary.

    Raises TokenizerError when it is damaged.
    """
    try:
        data = json.loads(tokenizer_json)
        names = _ids(data)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        raise TokenizerError("tokenizer.json can't be read: download it again.") from None
    if not names:
        return []
    beyond = {i: name for i, name in names.items() if i >= vocab_size}
    notes = []
    if beyond:
        shown = ", ".join(f"{name} ({i})" for i, name in sorted(beyond.items())[:3])
        notes.append(
            f"the tokenizer has {len(beyond)} ids beyond the model's vocabulary of {vocab_size}, among them {shown}: "
            "prompts that contain them are refused"
        )
    lacking = vocab_size - len(names) + len(beyond)
    if lacking:
        notes.append(f"{lacking} of the model's {vocab_size} token ids have no token in the tokenizer")
    return notes


def _ids(data: dict[str, Any]) -> dict[int, str]:
    """Return id -> token of vocabulary and added tokens."""
    vocab = data["model"].get("vocab") or {}
    pairs = vocab.items() if isinstance(vocab, dict) else ((entry[0], i) for i, entry in enumerate(vocab))
    names = {int(i): str(token) for token, i in pairs}
    names.update((int(token["id"]), str(token["content"])) for token in data.get("added_tokens") or ())
    if any(i < 0 for i in names):
        raise ValueError("negative id")
    return names
