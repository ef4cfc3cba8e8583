"""Token ids to text one at a time."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence

from edgewright.errors import GenerationError
from edgewright.runtime.text import CLEAN_UP_ALPHABET, Tokenizer, clean_up

_CONTEXT_TOKENS = 32


class StreamDecoder:
    """Turns token ids into text one at a time; the pieces and `flush()` together equal one `decode` of all ids.

    A piece holds only text that no later token can change: never a replacement character for a character whose
    bytes are still incomplete. With byte-level BPE the bytes go through an incremental UTF-8 decoder. Otherwise a
    short window is decoded again, with the tokens before it as context, so that a leading space is kept where there
    is text before it and stripped at the start, as `decode` does. SentencePiece byte tokens (`<0x0A>`) are held to the
    end of their run, since one bad byte makes the whole run unreadable. Amortised constant work per token.

    With `prompt_ids` the text continues that prompt: the pieces equal `decode(prompt + ids)` less `decode(prompt)`.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, prompt_ids: Sequence[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        types = tokenizer.decoder_types()
        self._steps: _ByteLevelSteps | _WindowSteps
        if types == ("ByteLevel",):
            self._steps = _ByteLevelSteps(tokenizer)
        else:
            self._steps = _WindowSteps(tokenizer, byte_fallback="ByteFallback" in types, guess="ByteLevel" in types)
        self._cleaner = _StreamCleaner() if tokenizer.cleans_up_spaces else None
        visible = [token for token in prompt_ids[-4 * _CONTEXT_TOKENS :] if token not in self._skipped]
        self._steps.start(visible[-_CONTEXT_TOKENS:])

    def push(self, token_id: int) -> str:
        """Adds one token; returns the text that became certain, often empty."""
        if token_id < 0:
            raise GenerationError(f"token id {token_id} is negative and so no token; give ids from 0 upwards.")
        token = None if token_id in self._skipped else self._tokenizer.id_to_token(token_id)
        if token is None:  # skipped, or outside the vocabulary: `decode` drops these before anything else
            return ""
        text = self._steps.push(token_id, token)
        return self._cleaner.push(text) if self._cleaner else text

    def flush(self) -> str:
        """Ends the stream: returns what is left, with replacement characters for bytes that stayed incomplete."""
        text = self._steps.flush()
        return self._cleaner.push(text) + self._cleaner.flush() if self._cleaner else text


class _ByteLevelSteps:
    """Byte-level BPE: each token is bytes in disguise; UTF-8 is decoded incrementally.

    Equal to the Rust decoder: a token with a character outside the byte alphabet (an added token) is its own UTF-8,
    and both sides replace an ill-formed sequence by one U+FFFD per maximal subpart (Unicode 16, section 3.9).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._token_of = tokenizer.id_to_token
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def start(self, context: Sequence[int]) -> None:
        for token_id in context:
            self.push(token_id, self._token_of(token_id) or "")

    def push(self, token_id: int, token: str) -> str:
        try:
            data = bytes(map(_BYTE_OF_CHAR.__getitem__, token))
        except KeyError:
            data = token.encode("utf-8")
        return self._utf8.decode(data)

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _WindowSteps:
    """Any other decoder: decode context + pending tokens, emit what comes after the context's text."""

    def __init__(self, tokenizer: Tokenizer, *, byte_fallback: bool, guess: bool) -> None:
        self._tokenizer = tokenizer
        self._byte_fallback = byte_fallback
        self._guess = guess  # byte-level inside an unknown chain: hold while the text ends in U+FFFD
        self._context: list[int] = []
        self._context_text = ""
        self._pending: list[int] = []

    def start(self, context: Sequence[int]) -> None:
        self._context = list(context)
        self._context_text = self._decode(self._context)

    def push(self, token_id: int, token: str) -> str:
        self._pending.append(token_id)
        if self._byte_fallback and _is_byte_token(token):
            return ""
        return self._emit(final=False)

    def flush(self) -> str:
        return self._emit(final=True) if self._pending else ""

    def _emit(self, *, final: bool) -> str:
        text = self._decode(self._context + self._pending)
        new = text[_common_length(self._context_text, text) :]
        if not new and not final:
            return ""
        if self._guess and not final and text.endswith("�") and len(self._pending) < _CONTEXT_TOKENS:
            return ""
        # a context whose text is only spaces could be stripped away whole, so then it is extended instead
        grows = not self._context_text.strip() and len(self._context) < _CONTEXT_TOKENS
        self._context = self._context + self._pending if grows else self._pending
        self._context_text = self._decode(self._context)
        self._pending = []
        return new

    def _decode(self, ids: Sequence[int]) -> str:
        # special tokens that are to be skipped never get here
        return self._tokenizer.decode_raw(ids, skip_special_tokens=False)


class _StreamCleaner:
    """`clean_up` on a stream: text is released up to the last character that no clean-up pattern contains.

    Every pass only deletes spaces, so such a character stays where it is and no match, now or in a later pass, can
    reach across it.
    """

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> str:
        cut = len(text)
        while cut and text[cut - 1] in CLEAN_UP_ALPHABET:
            cut -= 1
        if not cut:
            self._held += text
            return ""
        ready, self._held = self._held + text[:cut], text[cut:]
        return clean_up(ready)

    def flush(self) -> str:
        held, self._held = self._held, ""
        return clean_up(held)


def _byte_alphabet() -> Iterator[tuple[str, int]]:
    """GPT-2's `bytes_to_unicode`: printable Latin-1 stands for itself, the other bytes for U+0100 upwards."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = 0
    for byte in range(256):
        if byte in printable:
            yield chr(byte), byte
        else:
            yield chr(0x100 + moved), byte
            moved += 1


_BYTE_OF_CHAR = dict(_byte_alphabet())


def _is_byte_token(token: str) -> bool:
    """Whether the ByteFallback decoder takes the token as a byte: `<0x..>`, six characters."""
    if len(token) != 6 or not token.startswith("<0x") or not token.endswith(">"):
        return False
    return all(char in "0123456789abcdefABCDEF" for char in token[3:5])


def _common_length(left: str, right: str) -> int:
    if right.startswith(left):
        return len(left)
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
