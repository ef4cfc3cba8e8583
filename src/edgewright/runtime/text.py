"""Text to token ids and back; `stream` has the way back token by token.

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

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
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
#: Every character of a clean-up pattern.
CLEAN_UP_ALPHABET = frozenset("".join(pattern for pattern, _ in _CLEAN_UP))


#: Decoders that join token strings without anything between them.
_JOINING = frozenset({"ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"})


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
        self.added_ids = frozenset(backend.get_added_tokens_decoder())
        #: What is done to the ids of a text before `encode` returns them.
        self.spell: Callable[[list[int]], list[int]] | None = None
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
            ids = list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)
        except (UnicodeEncodeError, TypeError) as error:  # lone surrogates, no string
            raise GenerationError(
                f"the text can't be tokenized ({error}); give a string without lone surrogates."
            ) from error
        return ids if self.spell is None else self.spell(ids)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`, as transformers decodes it; ids outside the vocabulary add nothing."""
        text = self.decode_raw(ids, skip_special_tokens=skip_special_tokens)
        return clean_up(text) if self._cleans_up else text

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

    @property
    def byte_fallback(self) -> bool:
        """Whether characters without a token become tokens of single bytes, `<0x0A>`."""
        return bool(getattr(self._backend.model, "byte_fallback", False)) and "ByteFallback" in self.decoder_types()

    @property
    def joins(self) -> bool:
        """Whether the text of tokens is that of their strings joined, so that a token can be cut into others."""
        model, decoders = self._backend.model, self.decoder_types()
        marks = [getattr(model, name, None) for name in ("continuing_subword_prefix", "end_of_word_suffix")]
        plain = type(model).__name__ in ("BPE", "Unigram") and not any(marks)
        return plain and bool(decoders) and set(decoders) <= _JOINING

    def _special_id(self, token: str | None) -> int | None:
        return None if token is None else self.token_to_id(token)


def clean_up(text: str) -> str:
    """Transformers' `clean_up_tokenization`: its ten replacements, in its order."""
    for pattern, replacement in _CLEAN_UP:
        text = text.replace(pattern, replacement)
    return text


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
