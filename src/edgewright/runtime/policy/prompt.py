"""The text a policy is given and its token ids.

What the text becomes before it is tokenized (clean: spaces at both ends removed, then "_" and line ends made spaces):

| prompt         | openpi                                                   | LeRobot                                  |
|----------------|----------------------------------------------------------|------------------------------------------|
| `text`         | BOS, clean text                                          | the text as it is                        |
| `text-newline` | BOS, clean text, then a line end tokenized on its own    | the text, a line end if it has none last |
| `state`        | `Task: <clean>, State: <bins>;` line end `Action: `, BOS | the same                                 |

A text of more than `max_tokens` is cut at its end, as both projects do, and a note says so: the end of the state and
"Action:" are then missing.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgewright.errors import GenerationError, ObservationError
from edgewright.runtime.policy.numbers import Floats, discretize
from edgewright.runtime.policy.spec import PolicySpec
from edgewright.runtime.text import Tokenizer

TokenIds = npt.NDArray[np.int64]


def load_tokenizer(spec: PolicySpec, tokenizer_json: Path | bytes) -> Tokenizer:
    """Return the policy's tokenizer from its `tokenizer.json`; raises TokenizerError if that is malformed.

    LeRobot reads a text as the file says. openpi reads it with the SentencePiece package, which takes control pieces
    (`<eos>`) in a text for plain characters, and user-defined ones (runs of spaces) for the longest that fit.
    """
    if spec.convention == "lerobot":
        return Tokenizer.from_files(tokenizer_json, None)
    data = tokenizer_json if isinstance(tokenizer_json, bytes) else _bytes(tokenizer_json)
    try:
        settings = json.loads(data)
        settings["added_tokens"] = [
            # after the normalizer, which spells spaces as the pieces do
            entry | {"normalized": True}
            for entry in settings["added_tokens"]
            if not entry["special"]
        ]
    except (ValueError, TypeError, KeyError, RecursionError):
        return Tokenizer.from_files(tokenizer_json, None)  # which names what is wrong
    return Tokenizer.from_files(json.dumps(settings).encode(), None)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def token_ids(
    spec: PolicySpec, tokenizer: Tokenizer, prompt: str, state: Floats | None = None
) -> tuple[TokenIds, tuple[str, ...]]:
    """Return the ids of a prompt, int64 [tokens] without padding, and notes on what was cut off.

    `state` [state_dim] is the normalized state before padding; only the prompt `state` reads it. Raises
    ObservationError where the text can't be tokenized, the embedding table has no row for a token, or the state is
    missing.
    """
    text = full_text(spec, prompt, state)
    try:
        ids = tokenizer.encode(text)
        if spec.convention == "openpi" and spec.prompt == "text-newline":
            ids += tokenizer.encode("\n", add_special_tokens=False)
    except GenerationError as error:
        raise ObservationError(f"The prompt can't be tokenized: {error}") from error
    beyond = [index for index in ids if spec.vocab and index >= spec.vocab]
    if beyond:
        raise ObservationError(
            f"The prompt has the token {tokenizer.id_to_token(beyond[0])!r} (id {beyond[0]}), but the policy knows"
            f" {spec.vocab} tokens: leave it out of the text."
        )
    if len(ids) <= spec.max_tokens:
        return np.array(ids, np.int64), ()
    note = f"the prompt has {len(ids)} tokens and was cut to {spec.max_tokens}: shorten the instruction"
    if spec.convention == "lerobot":
        ids = _cut(ids, tokenizer.encode(text, add_special_tokens=False), spec.max_tokens)
    return np.array(ids[: spec.max_tokens], np.int64), (note,)


def full_text(spec: PolicySpec, prompt: str, state: Floats | None) -> str:
    """Return the text that is tokenized, without what the tokenizer adds; ObservationError if the state is missing."""
    if spec.prompt == "state":
        if state is None:
            raise ObservationError("The policy's prompt holds the state, but the observation has none: send the state.")
        bins = " ".join(str(bin_) for bin_ in discretize(state, spec.bins).tolist())
        return f"Task: {clean(prompt)}, State: {bins};\nAction: "
    if spec.convention == "openpi":
        return clean(prompt)
    return prompt + "\n" if spec.prompt == "text-newline" and not prompt.endswith("\n") else prompt


def clean(text: str) -> str:
    """Return the instruction with spaces at both ends removed, "_" and line ends made spaces."""
    return text.strip().replace("_", " ").replace("\n", " ")


def _cut(ids: list[int], plain: list[int], most: int) -> list[int]:
    """Return the ids cut to `most` in front of what the tokenizer added behind the `plain` ids of the text."""
    added = len(ids) - len(plain)
    before = next((at for at in range(added + 1) if ids[at : at + len(plain)] == plain), added)
    after = ids[before + len(plain) :]
    return ids[: max(before, most - len(after))] + after
