"""Building blocks of a `tokenizer.json`: byte-level BPE, SentencePiece BPE and Unigram, as Hugging Face writes them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from edgewright.checkpoint.text import shown
from edgewright.errors import TokenizerError

SPACE = "▁"
Json = dict[str, Any]
Merges = list[tuple[str, str]]


@dataclass(frozen=True)
class AddedToken:
    """A token that is found in the text before anything else; `special` ones are left out when decoding."""

    id: int
    content: str
    special: bool
    normalized: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


def assemble(model: Json, added: list[AddedToken], where: str, **parts: Json | None) -> bytes:
    """Return the bytes of a tokenizer.json, after the `tokenizers` library has accepted it.

    `parts` are the normalizer, pre_tokenizer, post_processor and decoder, those there are. Raises TokenizerError.
    """
    from tokenizers import Tokenizer

    document: Json = {"version": "1.0", "truncation": None, "padding": None}
    document["added_tokens"] = [
        {
            "id": token.id,
            "content": token.content,
            "single_word": token.single_word,
            "lstrip": token.lstrip,
            "rstrip": token.rstrip,
            "normalized": token.normalized,
            "special": token.special,
        }
        for token in sorted(added, key=lambda token: token.id)
    ]
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        document[name] = parts.get(name)
    document["model"] = model
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    try:
        tokenizer = Tokenizer.from_str(text)
    except BaseException as error:  # the library raises plain Exception, and its panics are not even that
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        reason = " ".join(str(error).split()).rstrip(".").replace(". ", ", ")
        raise TokenizerError(
            f"{where} holds a tokenizer that can't be rebuilt ({reason}); use a Hugging Face folder with a"
            " tokenizer.json."
        ) from None
    for token in added:
        if tokenizer.token_to_id(token.content) != token.id:
            raise TokenizerError(
                f"{where} gives the token {shown(token.content)} the id {token.id}, which its vocabulary has for"
                " another or"
                " doesn't reach; use a Hugging Face folder with a tokenizer.json."
            )
    return text.encode("utf-8", "surrogatepass")


def bpe_model(vocab: dict[str, int], merges: Merges, **settings: Any) -> Json:
    """Return the `model` entry of a BPE tokenizer; `settings` are the fields that differ from the defaults."""
    defaults: Json = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return {**defaults, **settings, "vocab": vocab, "merges": merges}


def index_tokens(tokens: list[str], ids: list[int], where: str) -> dict[str, int]:
    """Return the id of each token; raises TokenizerError if a token is there twice."""
    vocab = {tokens[index]: index for index in ids}
    if len(vocab) != len(ids):
        seen: set[str] = set()
        for index in ids:
            if tokens[index] in seen:
                raise TokenizerError(
                    f"{where} lists the token {shown(tokens[index])} twice, so text has no single encoding; use another"
                    " conversion of the model."
                )
            seen.add(tokens[index])
    return vocab


def merges_from_pieces(vocab: dict[str, int], ranked: list[str], longer_left_first: bool) -> Merges:
    """Return the BPE merges that a SentencePiece vocabulary stands for, best first.

    Every split of a piece of `ranked` (the best first) into two pieces of the vocabulary is a merge; among those of one
    piece the longer left part comes first, or last.
    """
    merges: Merges = []
    for piece in ranked:
        cuts = range(len(piece) - 1, 0, -1) if longer_left_first else range(1, len(piece))
        merges += [(left, right) for cut in cuts if (left := piece[:cut]) in vocab and (right := piece[cut:]) in vocab]
    return merges


def bos_template(bos: tuple[str, int] | None, eos: tuple[str, int] | None) -> Json | None:
    """Return a post-processor that adds the given tokens around each text, or None if there is nothing to add."""
    added = [token for token in (bos, eos) if token is not None]
    if not added:
        return None

    def around(name: str, kind: int) -> list[Json]:
        parts: list[Json] = [{"Sequence": {"id": name, "type_id": kind}}]
        if bos is not None:
            parts.insert(0, {"SpecialToken": {"id": bos[0], "type_id": kind}})
        if eos is not None:
            parts.append({"SpecialToken": {"id": eos[0], "type_id": kind}})
        return parts

    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": around("A", 0) + around("B", 1),
        "special_tokens": {text: {"id": text, "ids": [token], "tokens": [text]} for text, token in added},
    }


def sequence(kind: str, parts: list[Json]) -> Json:
    """Return a Sequence of normalizers, pretokenizers or decoders (`kind` names the field)."""
    return {"type": "Sequence", kind: parts}


def replace(pattern: str, content: str) -> Json:
    """Return a normalizer or decoder that replaces a string."""
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def byte_level(use_regex: bool, add_prefix_space: bool = False, trim_offsets: bool = True) -> Json:
    """Return the byte-level step (pretokenizer and decoder have the same fields)."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": trim_offsets,
        "use_regex": use_regex,
    }


def sentencepiece_decoder(prefixed: bool) -> Json:
    """Return the decoder of SentencePiece models with byte fallback; `prefixed` ones drop the first space."""
    parts = [replace(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    if prefixed:
        parts.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return sequence("decoders", parts)
