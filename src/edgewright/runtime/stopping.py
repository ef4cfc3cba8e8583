"""When a generation ends: stop strings over streamed text, and the end-of-sequence token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgewright.errors import GenerationError

if TYPE_CHECKING:
    from edgewright.runtime.text import Tokenizer


class StopStrings:
    """Watches streamed text for stop strings and holds back what may become one.

    The stop that is complete first wins; of several complete at the same character, the longest. So the result
    doesn't depend on how the text is cut into pieces. One Knuth-Morris-Pratt automaton per stop: constant work per
    character and stop, however long the held text is.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """GenerationError if a stop is empty or no string."""
        if isinstance(stops, str):
            raise GenerationError(f"stop strings are {stops!r}, a single string; give a list of strings.")
        for stop in stops:
            if not isinstance(stop, str) or not stop:
                raise GenerationError(f"stop string {stop!r} matches everywhere or nothing; give non-empty strings.")
        self._stops = tuple(dict.fromkeys(stops))
        self._failure = [_failure_table(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)  # per stop: length of its prefix that ends the text so far
        self._held = ""
        self.stopped = False

    def push(self, piece: str) -> tuple[str, bool]:
        """Returns the text that is safe to emit and whether a stop was found; nothing at or after a stop is emitted."""
        if self.stopped or not self._stops:
            return ("", True) if self.stopped else (piece, False)
        text = self._held + piece
        start = len(self._held)
        for index, char in enumerate(piece, start + 1):
            longest = self._advance(char)
            if longest:
                self.stopped, self._held = True, ""
                return text[: index - longest], True
        hold = max(self._matched)
        self._held = text[len(text) - hold :]
        return text[: len(text) - hold], False

    def flush(self) -> str:
        """Returns the held text when the stream ends without a stop; empty after a stop."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return held

    def _advance(self, char: str) -> int:
        """Feeds one character; returns the length of the longest stop it completes, or 0."""
        longest = 0
        for number, stop in enumerate(self._stops):
            matched, failure = self._matched[number], self._failure[number]
            while matched and stop[matched] != char:
                matched = failure[matched - 1]
            if stop[matched] == char:
                matched += 1
            if matched == len(stop):
                longest = max(longest, matched)
                matched = failure[matched - 1]
            self._matched[number] = matched
        return longest


def eos_token_ids(
    generation_config: Mapping[str, Any], model_config: Mapping[str, Any], tokenizer: Tokenizer | None
) -> tuple[int, ...]:
    """The ids that end a sequence, first source that has any: generation config, model config, tokenizer.

    As transformers: a list is kept whole and in order (Llama 3 and Gemma have several), repeats are dropped; a model
    config may keep the ids in its `text_config`. Empty if no source has one. GenerationError if a value is no id.
    """
    text_config = model_config.get("text_config")
    sources: list[tuple[str, Mapping[str, Any]]] = [
        ("generation_config.json", generation_config),
        ("config.json", model_config),
        ("config.json's text_config", text_config if isinstance(text_config, Mapping) else {}),
    ]
    for name, config in sources:
        value = config.get("eos_token_id")
        if value is None:
            continue
        ids = list(value) if isinstance(value, list | tuple) else [value]
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int) or token < 0:
                raise GenerationError(
                    f"eos_token_id of {name} holds {token!r}, which is no token id; give a non-negative integer or "
                    "a list of them."
                )
        if ids:
            return tuple(dict.fromkeys(ids))
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        return (tokenizer.eos_token_id,)
    return ()


def _failure_table(stop: str) -> list[int]:
    """Knuth-Morris-Pratt: for each prefix of `stop`, the length of its longest proper border."""
    table = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = table[length - 1]
        if stop[index] == stop[length]:
            length += 1
        table[index] = length
    return table
