"""The tokenizer files that a GGUF file stands for, rebuilt from its metadata."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgewright.checkpoint.gguf import GgufFile, Strings
from edgewright.checkpoint.gguf_config import Metadata
from edgewright.checkpoint.text import shown
from edgewright.checkpoint.tokenizer_json import (
    SPACE,
    AddedToken,
    Json,
    Merges,
    assemble,
    bos_template,
    bpe_model,
    byte_level,
    index_tokens,
    merges_from_pieces,
    replace,
    sentencepiece_decoder,
    sequence,
)
from edgewright.errors import TokenizerError

# Token types of llama.cpp.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_REMEDY = "use a Hugging Face folder of the model"

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace("{1,3}", "")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class PreTokenizer:
    """How a family cuts text before byte-level BPE: `split` is its regex; without one GPT-2's own is used."""

    split: str | None = None
    single_digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False

    def steps(self) -> Json:
        """Return the pre_tokenizer entry."""
        if self.split is not None:
            split = {"type": "Split", "pattern": {"Regex": self.split}, "behavior": "Isolated", "invert": False}
            return sequence("pretokenizers", [split, byte_level(use_regex=False)])
        if self.single_digits:
            digits = {"type": "Digits", "individual_digits": True}
            return sequence("pretokenizers", [digits, byte_level(use_regex=True)])
        return byte_level(use_regex=True)


_GPT2_LIKE = PreTokenizer()
_DIGITS = PreTokenizer(single_digits=True)
_LLAMA3_LIKE = PreTokenizer(split=_LLAMA3, ignore_merges=True, add_bos=True)
PRE_TOKENIZERS = {
    "default": _GPT2_LIKE,
    "gpt-2": _GPT2_LIKE,
    "gpt2": _GPT2_LIKE,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "llama-bpe": _LLAMA3_LIKE,
    "llama3": _LLAMA3_LIKE,
    "llama-v3": _LLAMA3_LIKE,
    "smaug-bpe": PreTokenizer(split=_LLAMA3),
    "tekken": PreTokenizer(split=_TEKKEN, ignore_merges=True, add_bos=True),
    "qwen2": PreTokenizer(split=_QWEN2, nfc=True),
}


class Vocabulary:
    """The tokens of a GGUF file with their types and scores, checked against each other."""

    def __init__(self, file: GgufFile):
        self.meta = Metadata(file)
        self.where = str(file.path)
        self.tokens = self._strings("tokenizer.ggml.tokens")
        count = len(self.tokens)
        self.types: list[int] = self._numbers("tokenizer.ggml.token_type", count, "iu", _NORMAL)
        self.scores: list[float] = self._numbers("tokenizer.ggml.scores", count, "f", 0.0)

    def _strings(self, key: str) -> list[str]:
        value = self.meta.values.get(key)
        if not isinstance(value, Strings):
            raise TokenizerError(f"{self.where} has no strings as {shown(key)}; {_REMEDY}.")
        try:
            return [entry.decode() for entry in value.as_bytes()]
        except UnicodeDecodeError:
            raise TokenizerError(f"{self.where} has text that is not UTF-8 in {shown(key)}; {_REMEDY}.") from None

    def _numbers(self, key: str, count: int, kinds: str, default: float) -> list[Any]:
        value = self.meta.values.get(key)
        if value is None:
            return [default] * count
        if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds or len(value) != count:
            raise TokenizerError(f"{self.where} has {shown(key)} that doesn't fit its {count} tokens; {_REMEDY}.")
        if not np.isfinite(value).all():
            raise TokenizerError(f"{self.where} has {shown(key)} with a value that is no number; {_REMEDY}.")
        numbers: list[Any] = value.tolist()
        return numbers

    def merges(self) -> Merges:
        """Return the stored merges."""
        merges: Merges = []
        for line in self._strings("tokenizer.ggml.merges"):
            left, _, right = line.partition(" ")
            if not left or not right or " " in right:
                raise TokenizerError(f"{self.where} has the merge {shown(line)}, which is not two tokens; {_REMEDY}.")
            merges.append((left, right))
        return merges

    def named(self, name: str) -> tuple[str, int] | None:
        """Return text and id of a special token ("bos", "eos" ...), or None if the file has none."""
        index = self.meta.get(f"tokenizer.ggml.{name}_token_id", int)
        if index is None:
            return None
        if not 0 <= index < len(self.tokens):
            raise TokenizerError(
                f"{self.where} gives {name} the id {index}, but has {len(self.tokens)} tokens; use another conversion."
            )
        return self.tokens[index], index

    def added(self) -> list[AddedToken]:
        """Return the tokens that are found in text as they stand: control and unknown special, user-defined not."""
        return [
            AddedToken(index, self.tokens[index], kind != _USER_DEFINED)
            for index, kind in enumerate(self.types)
            if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        ]

    def used(self) -> list[int]:
        """Return the ids of all tokens but placeholders."""
        return [index for index, kind in enumerate(self.types) if kind != _UNUSED]

    def template(self, add_bos: bool) -> Json | None:
        """Return the post-processor: BOS if the file says so, else `add_bos`; EOS if the file says so."""
        bos = self.named("bos") if self.meta.get("tokenizer.ggml.add_bos_token", bool, add_bos) else None
        eos = self.named("eos") if self.meta.get("tokenizer.ggml.add_eos_token", bool, False) else None
        return bos_template(bos, eos)


def make_sidecars(file: GgufFile) -> dict[str, bytes]:
    """Return tokenizer, template and generation files for a GGUF file; without a vocabulary there is no tokenizer.

    Raises TokenizerError for a tokenizer model or pretokenizer that isn't known.
    """
    meta = Metadata(file)
    sidecars: dict[str, bytes] = {}
    model = meta.get("tokenizer.ggml.model", str, "no_vocab")
    if model not in ("no_vocab", "none"):
        builder = {"gpt2": _byte_level_bpe, "llama": _sentencepiece_bpe}.get(model)
        if builder is None:
            raise TokenizerError(
                f"{file.path} has a tokenizer of the kind {shown(model)}, but gpt2 and llama can be rebuilt; {_REMEDY}."
            )
        vocabulary = Vocabulary(file)
        sidecars["tokenizer.json"] = builder(vocabulary)
        sidecars["tokenizer_config.json"] = _dump(_tokenizer_config(vocabulary))
    template = meta.get("tokenizer.chat_template", str)
    if template is not None:
        sidecars["chat_template.jinja"] = template.encode()
    sidecars["generation_config.json"] = _dump(_generation_config(meta))
    return sidecars


def _byte_level_bpe(vocabulary: Vocabulary) -> bytes:
    pre = vocabulary.meta.get("tokenizer.ggml.pre", str, "default")
    family = PRE_TOKENIZERS.get(pre)
    if family is None:
        raise TokenizerError(
            f"{vocabulary.where} cuts text by the rules {shown(pre)}, but known are {', '.join(PRE_TOKENIZERS)};"
            f" {_REMEDY}."
        )
    # SmolLM3 has the rules of Smaug with Llama 3's vocabulary, where a whole word that is a token isn't merged.
    whole_words = family.ignore_merges or vocabulary.meta.get("general.architecture", str) == "smollm3"
    vocab = index_tokens(vocabulary.tokens, vocabulary.used(), vocabulary.where)
    return assemble(
        bpe_model(vocab, vocabulary.merges(), ignore_merges=whole_words),
        vocabulary.added(),
        vocabulary.where,
        normalizer={"type": "NFC"} if family.nfc else None,
        pre_tokenizer=family.steps(),
        post_processor=vocabulary.template(family.add_bos),
        decoder=byte_level(use_regex=True),
    )


def _sentencepiece_bpe(vocabulary: Vocabulary) -> bytes:
    types = vocabulary.types
    # The converter writes user-defined pieces with spaces, the vocabulary has them with the space mark.
    vocabulary.tokens = [
        token.replace(" ", SPACE) if kind == _USER_DEFINED else token
        for token, kind in zip(vocabulary.tokens, types, strict=True)
    ]
    tokens = vocabulary.tokens
    vocab = index_tokens(tokens, list(range(len(tokens))), vocabulary.where)
    # SentencePiece takes user-defined pieces before all others; their stored score says nothing.
    first = [index for index, kind in enumerate(types) if kind == _USER_DEFINED]
    rest = [index for index, kind in enumerate(types) if kind == _NORMAL]
    # Gemma's own tokenizer.json ranks merges by id; Llama's by score, as transformers' generate_merges does.
    is_gemma = vocabulary.meta.get("general.architecture", str, "").startswith("gemma")
    if not is_gemma:
        rest.sort(key=lambda index: -vocabulary.scores[index])
    merges = merges_from_pieces(vocab, [tokens[index] for index in first + rest], longer_left_first=not is_gemma)
    prefixed = vocabulary.meta.get("tokenizer.ggml.add_space_prefix", bool, True)
    unknown = vocabulary.named("unknown")
    return assemble(
        bpe_model(
            vocab,
            merges,
            unk_token=unknown[0] if unknown else None,
            fuse_unk=True,
            byte_fallback=_BYTE in types,
        ),
        vocabulary.added(),
        vocabulary.where,
        normalizer=sentencepiece_normalizer(prefixed),
        post_processor=vocabulary.template(True),
        decoder=sentencepiece_decoder(prefixed),
    )


def sentencepiece_normalizer(prefixed: bool) -> Json:
    """Return the normalizer that writes spaces as marks, and one before the text if `prefixed`."""
    if not prefixed:
        return replace(" ", SPACE)
    return sequence("normalizers", [{"type": "Prepend", "prepend": SPACE}, replace(" ", SPACE)])


def _tokenizer_config(vocabulary: Vocabulary) -> Json:
    config: Json = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for key, name in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = vocabulary.named(name)
        if token is not None:
            config[f"{key}_token"] = token[0]
    return config


def _generation_config(meta: Metadata) -> Json:
    """Return BOS, padding and every token that ends a turn: end of text, of turn, of message."""
    config: Json = {}
    ends: list[int] = []
    for name in ("eos", "eot", "eom"):
        token = meta.get(f"tokenizer.ggml.{name}_token_id", int)
        if token is not None and token not in ends:
            ends.append(token)
    bos = meta.get("tokenizer.ggml.bos_token_id", int)
    pad = meta.get("tokenizer.ggml.padding_token_id", int)
    if bos is not None:
        config["bos_token_id"] = bos
    if ends:
        config["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    if pad is not None:
        config["pad_token_id"] = pad
    return config


def _dump(value: Json) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=2).encode()
