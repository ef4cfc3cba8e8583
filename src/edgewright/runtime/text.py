"""Text to token ids and back, whole or token by token.

`Tokenizer` wraps `tokenizers` and adds what transformers 5 (`TokenizersBackend`) takes from `tokenizer_config.json`:
named special tokens, extra added tokens, the clean-up of spaces. What it does with the other keys:

- `add_bos_token` / `add_eos_token` have no effect, exactly as in transformers 5 when there is a `tokenizer.json`: the
  post-processor written in that file decides. (Transformers 4 rewrote it for the Llama classes.)
- `clean_up_tokenization_spaces` is honoured for every model but BPE, where transformers 5 ignores it too.
- Truncation and padding written in `tokenizer.json` are switched off: they are per-call settings.
- `tokenizer_class` has no effect. Transformers rebuilds the normalizer and pre-tokenizer for some classes (Llama's
  SentencePiece one, for instance) instead of taking them from the file; the file is taken here.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from edgewright.errors import GenerationError, TokenizerError

SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

_CLEAN_UP = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)
_CLEAN_UP_ALPHABET = frozenset("".join(pattern for pattern, _ in _CLEAN_UP))
_CONTEXT_TOKENS = 32


class Tokenizer:
    """A `tokenizers.Tokenizer` with the special tokens and decoding rules of its `tokenizer_config.json`.

    `special_tokens` maps `bos_token`, `eos_token`, ... to their strings, for those that are set: the variables that
    a chat template sees. Build it with `from_files`.
    """

    def __init__(self, backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
        self._backend = backend
        self.special_tokens: dict[str, str] = {}
        _add_configured_tokens(backend, config)
        for name, token in _named_tokens(config).items():
            self.special_tokens[name] = token if isinstance(token, str) else token.content
        self.bos_token = self.special_tokens.get("bos_token")
        self.eos_token = self.special_tokens.get("eos_token")
        self.pad_token = self.special_tokens.get("pad_token")
        self.unk_token = self.special_tokens.get("unk_token")
        self.special_ids = frozenset(
            token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self._cleans_up = bool(config.get("clean_up_tokenization_spaces", False)) and (
            type(backend.model).__name__ != "BPE"
            or bool(config.get("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", False))
        )
        backend.no_truncation()
        backend.no_padding()

    @classmethod
    def from_files(cls, tokenizer_json: Path | bytes, tokenizer_config: Mapping[str, Any] | None) -> Tokenizer:
        """Reads `tokenizer.json` (a path or its bytes); TokenizerError if it or the config is malformed."""
        name = "tokenizer.json"
        if isinstance(tokenizer_json, bytes):
            data = tokenizer_json
        else:
            name = str(tokenizer_json)
            try:
                data = Path(tokenizer_json).read_bytes()
            except OSError as error:
                raise TokenizerError(
                    f"{name} can't be read ({error.strerror}); give a checkpoint or bundle that holds a tokenizer.json."
                ) from error
        try:
            backend = tokenizers.Tokenizer.from_str(data.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise TokenizerError(f"{name} is not UTF-8 text at byte {error.start}; fetch the file again.") from error
        except BaseException as error:
            # `tokenizers` raises plain Exception, and a Rust panic arrives as a BaseException
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            reason = " ".join(str(error).split())[:300]
            raise TokenizerError(
                f"{name} can't be loaded by tokenizers {tokenizers.__version__} ({reason}); fetch the file again or "
                "update tokenizers."
            ) from error
        return cls(backend, tokenizer_config or {})

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @property
    def bos_token_id(self) -> int | None:
        """Id of `bos_token`, None if there is none."""
        return self._special_id(self.bos_token)

    @property
    def eos_token_id(self) -> int | None:
        """Id of `eos_token`, None if there is none."""
        return self._special_id(self.eos_token)

    @property
    def pad_token_id(self) -> int | None:
        """Id of `pad_token`, None if there is none."""
        return self._special_id(self.pad_token)

    @property
    def unk_token_id(self) -> int | None:
        """Id of `unk_token`, None if there is none."""
        return self._special_id(self.unk_token)

    def token_to_id(self, token: str) -> int | None:
        """The id of a token string, None if it isn't in the vocabulary."""
        found = self._backend.token_to_id(token)
        return None if found is None else int(found)

    def id_to_token(self, token_id: int) -> str | None:
        """The token string of an id, None if the vocabulary has no such id."""
        if not 0 <= token_id < 2**32:
            return None
        found = self._backend.id_to_token(token_id)
        return None if found is None else str(found)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; special tokens are added as the file's post-processor says."""
        try:
            return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)
        except (UnicodeEncodeError, TypeError) as error:  # lone surrogates, no string
            raise GenerationError(
                f"the text can't be tokenized ({error}); give a string without lone surrogates."
            ) from error

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`, as transformers decodes it; ids outside the vocabulary add nothing."""
        text = self.decode_raw(ids, skip_special_tokens=skip_special_tokens)
        return _clean_up(text) if self._cleans_up else text

    def decode_raw(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """`decode` without the clean-up of spaces."""
        try:
            return str(self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens))
        except (OverflowError, TypeError) as error:
            raise GenerationError(f"token ids can't be decoded ({error}); give integers from 0 upwards.") from error

    @property
    def cleans_up_spaces(self) -> bool:
        """Whether `decode` removes spaces before punctuation (`clean_up_tokenization_spaces`)."""
        return self._cleans_up

    def decoder_types(self) -> tuple[str, ...]:
        """Names of the decoder's steps as `tokenizer.json` spells them, empty without a decoder."""
        decoder = self._backend.decoder
        if decoder is None:
            return ()
        return tuple(_decoder_names(json.loads(decoder.__getstate__())))

    def _special_id(self, token: str | None) -> int | None:
        return None if token is None else self.token_to_id(token)


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
    """`_clean_up` on a stream: text is released up to the last character that no clean-up pattern contains.

    Every pass only deletes spaces, so such a character stays where it is and no match, now or in a later pass, can
    reach across it.
    """

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> str:
        cut = len(text)
        while cut and text[cut - 1] in _CLEAN_UP_ALPHABET:
            cut -= 1
        if not cut:
            self._held += text
            return ""
        ready, self._held = self._held + text[:cut], text[cut:]
        return _clean_up(ready)

    def flush(self) -> str:
        held, self._held = self._held, ""
        return _clean_up(held)


def _clean_up(text: str) -> str:
    """Transformers' `clean_up_tokenization`: its ten replacements, in its order."""
    for pattern, replacement in _CLEAN_UP:
        text = text.replace(pattern, replacement)
    return text


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


def _decoder_names(state: Mapping[str, Any]) -> Iterator[str]:
    if state.get("type") == "Sequence":
        for step in state.get("decoders", ()):
            yield from _decoder_names(step)
    else:
        yield str(state.get("type"))


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str | tokenizers.AddedToken]:
    """The named special tokens, and model-specific ones (`image_token`), in transformers' order."""
    tokens: dict[str, str | tokenizers.AddedToken] = {}
    extra = config.get("extra_special_tokens")
    named = {name: config.get(name) for name in SPECIAL_TOKEN_NAMES}
    named |= {key: value for key, value in config.items() if key.endswith("_token") and isinstance(value, str | dict)}
    if isinstance(extra, Mapping):
        named |= extra
    for name, value in named.items():
        if value is None or (isinstance(value, bool) and name not in SPECIAL_TOKEN_NAMES):
            continue
        if isinstance(value, str):
            tokens[name] = value
        else:
            tokens[name] = _added_token(name, value)
    return tokens


def _added_token(name: str, value: Any) -> tokenizers.AddedToken:
    if not isinstance(value, Mapping) or not isinstance(value.get("content"), str):
        raise TokenizerError(
            f"tokenizer_config.json gives {name} as {value!r}, which is no token; write a string or an object with "
            "a content string."
        )
    flags = {key: bool(value[key]) for key in ("single_word", "lstrip", "rstrip", "normalized") if key in value}
    return tokenizers.AddedToken(value["content"], special=bool(value.get("special", False)), **flags)


def _add_configured_tokens(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """Adds the config's tokens that `tokenizer.json` lacks, in transformers' order."""
    named = _named_tokens(config)
    named_strings = {token if isinstance(token, str) else token.content for token in named.values()}
    decoder = config.get("added_tokens_decoder") or {}
    if not isinstance(decoder, Mapping):
        raise TokenizerError("added_tokens_decoder of tokenizer_config.json is no object; write one of id to token.")
    try:
        configured = sorted((int(token_id), value) for token_id, value in decoder.items())
    except (TypeError, ValueError) as error:
        raise TokenizerError(
            f"added_tokens_decoder of tokenizer_config.json has a key that is no token id ({error}); write integers."
        ) from error
    wanted = [_added_token(f"token {token_id}", value) for token_id, value in configured]
    for token in wanted:
        token.special = token.special or token.content in named_strings
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    known |= {token.content for token in wanted}
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    listed = extra if isinstance(extra, list | tuple) else []
    more = [*named.values(), *(t if isinstance(t, str) else _added_token("extra_special_tokens", t) for t in listed)]
    for item in more:
        token = tokenizers.AddedToken(item, special=True, normalized=False) if isinstance(item, str) else item
        if token.content not in known:
            token.special = True
            known.add(token.content)
            wanted.append(token)
    backend.add_tokens(wanted)
