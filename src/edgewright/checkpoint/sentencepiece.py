"""SentencePiece `tokenizer.model` files: the protobuf read here, the tokenizer rebuilt as a `tokenizer.json`.

Field numbers are those of sentencepiece_model.proto; piece types are the ones GGUF took over.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgewright.checkpoint.text import MAX_JSON_BYTES, REMAKE, shown
from edgewright.checkpoint.tokenizer_json import (
    SPACE,
    AddedToken,
    Json,
    assemble,
    bos_template,
    bpe_model,
    index_tokens,
    merges_from_pieces,
    replace,
    sentencepiece_decoder,
    sequence,
)
from edgewright.errors import MalformedHeaderError, TokenizerError, TruncatedFileError

MAX_PIECES = 1 << 22
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
_UNIGRAM, _BPE = 1, 2
_BYTE_SCORE = -1e4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FLOAT = struct.Struct("<f")
_TRAINER = {3: "model_type", 24: "space_as_suffix", 40: "unk_id", 41: "bos_id", 42: "eos_id"}
_NORMALIZER = {3: "add_dummy_prefix", 4: "remove_extra_whitespaces", 5: "escape_whitespaces"}


@dataclass
class SentencePieceModel:
    """The content of a `tokenizer.model` that changes how text is encoded."""

    pieces: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    model_type: int = _UNIGRAM
    unk_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    space_as_suffix: bool = False
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Return the model in a `tokenizer.model` file; raises MalformedHeaderError or TruncatedFileError."""
    if path.stat().st_size > MAX_JSON_BYTES:
        raise MalformedHeaderError(f"{path} is larger than {MAX_JSON_BYTES >> 20} MiB; {REMAKE}.")
    model = SentencePieceModel()
    for number, value in _fields(memoryview(path.read_bytes()), path):
        if number == 1:
            _read_piece(model, _message(value, path), path)
        elif number == 2:
            for key, setting in _fields(_message(value, path), path):
                if key in _TRAINER:
                    setattr(model, _TRAINER[key], _integer(setting, path))
        elif number == 3:
            for key, setting in _fields(_message(value, path), path):
                if key == 2:
                    model.charsmap = bytes(_message(setting, path))
                elif key in _NORMALIZER:
                    setattr(model, _NORMALIZER[key], bool(_integer(setting, path)))
    return model


def _read_piece(model: SentencePieceModel, message: memoryview, path: Path) -> None:
    if len(model.pieces) >= MAX_PIECES:
        raise MalformedHeaderError(f"{path} has more than {MAX_PIECES} pieces; {REMAKE}.")
    text, score, kind = "", 0.0, _NORMAL
    for number, value in _fields(message, path):
        if number == 1:
            try:
                text = bytes(_message(value, path)).decode()
            except UnicodeDecodeError:
                raise MalformedHeaderError(f"{path} has a piece that is not UTF-8; {REMAKE}.") from None
        elif number == 2 and isinstance(value, float):
            score = value
        elif number == 3:
            kind = _integer(value, path)
    model.pieces.append(text)
    model.scores.append(score)
    model.types.append(kind)


def _fields(data: memoryview, path: Path) -> Iterator[tuple[int, int | float | memoryview]]:
    """Yield number and value of each field of a message: varints as int, 32-bit values as float, the rest as bytes."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at, path)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at, path)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at, path)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise MalformedHeaderError(f"{path} is not a SentencePiece model (wire type {kind}); {REMAKE}.")
        if size > end - at:
            raise TruncatedFileError(f"{path} ends inside a field of {size} bytes; {REMAKE}.")
        yield key >> 3, _FLOAT.unpack_from(data, at)[0] if kind == _FIXED32 else data[at : at + size]
        at += size


def _varint(data: memoryview, at: int, path: Path) -> tuple[int, int]:
    value = 0
    for index in range(min(10, len(data) - at)):
        byte = data[at + index]
        value |= (byte & 127) << (7 * index)
        if byte < 128:
            return value, at + index + 1
    raise TruncatedFileError(f"{path} ends inside a number or has one of more than 64 bits; {REMAKE}.")


def _message(value: int | float | memoryview, path: Path) -> memoryview:
    if not isinstance(value, memoryview):
        raise MalformedHeaderError(f"{path} has a number where a SentencePiece model has bytes; {REMAKE}.")
    return value


def _integer(value: int | float | memoryview, path: Path) -> int:
    if not isinstance(value, int):
        raise MalformedHeaderError(f"{path} has bytes where a SentencePiece model has a number; {REMAKE}.")
    return value - (1 << 64) if value >= 1 << 63 else value


def rebuild_tokenizer(path: Path, settings: Json, extra: dict[str, Any]) -> bytes:
    """Return a `tokenizer.json` for a SentencePiece model in a Hugging Face folder.

    `settings` is the content of tokenizer_config.json, `extra` of added_tokens.json. Raises TokenizerError for kinds of
    model other than BPE and Unigram.
    """
    model = read_sentencepiece(path)
    if model.model_type not in (_BPE, _UNIGRAM) or model.space_as_suffix or not model.escape_whitespaces:
        raise TokenizerError(
            f"{path} is a SentencePiece model that is neither BPE nor Unigram with the usual spaces; save the"
            " tokenizer as"
            " tokenizer.json with transformers."
        )
    added = _added_tokens(model, settings, extra, path)
    asked = settings.get("add_prefix_space")
    prefixed = asked if isinstance(asked, bool) else model.add_dummy_prefix
    is_bpe = model.model_type == _BPE
    modern = settings.get("legacy") is False
    template = bos_template(
        _edge(model, settings, "bos", model.bos_id, is_bpe), _edge(model, settings, "eos", model.eos_id, False)
    )
    marks = [] if modern or not is_bpe else [replace(" ", SPACE)]
    if marks and prefixed:
        marks.insert(0, {"type": "Prepend", "prepend": SPACE})
    scheme = ("first" if is_bpe else "always") if prefixed else "never"
    space = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": not is_bpe}
    return assemble(
        _bpe(model, settings, added, path) if is_bpe else _unigram(model),
        added,
        str(path),
        normalizer=sequence("normalizers", _cleaning(model) + marks),
        pre_tokenizer=None if marks else space,
        post_processor=template,
        decoder=sentencepiece_decoder(prefixed),
    )


def _added_tokens(model: SentencePieceModel, settings: Json, extra: dict[str, Any], path: Path) -> list[AddedToken]:
    """Return the tokens found in text as they stand: those of the model, then what the JSON files say of them."""
    found = {
        index: AddedToken(index, model.pieces[index], kind != _USER_DEFINED)
        for index, kind in enumerate(model.types)
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    }
    for content, index in extra.items():
        if type(index) is not int:
            raise TokenizerError(f"{path.with_name('added_tokens.json')} has no id for {shown(content)}; {REMAKE}.")
        found[index] = AddedToken(index, content, False)
    decoder = settings.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        decoder = {}
    for key, entry in decoder.items():
        text = entry.get("content") if isinstance(entry, dict) else None
        if not key.isdecimal() or not isinstance(text, str):
            raise TokenizerError(
                f"{path.with_name('tokenizer_config.json')} has a wrong added token {shown(key)}; {REMAKE}."
            )
        flags = {name: entry.get(name) is True for name in ("normalized", "lstrip", "rstrip", "single_word")}
        found[int(key)] = AddedToken(int(key), text, entry.get("special") is True, **flags)
    return [found[index] for index in sorted(found)]


def _edge(model: SentencePieceModel, settings: Json, name: str, index: int, default: bool) -> tuple[str, int] | None:
    """Return the BOS or EOS token if it is to be added to each text."""
    if settings.get(f"add_{name}_token", default) is not True:
        return None
    text = settings.get(f"{name}_token")
    if isinstance(text, dict):
        text = text.get("content")
    if isinstance(text, str) and text in model.pieces:
        return text, model.pieces.index(text)
    return (model.pieces[index], index) if 0 <= index < len(model.pieces) else None


def _bpe(model: SentencePieceModel, settings: Json, added: list[AddedToken], path: Path) -> Json:
    vocab = index_tokens(model.pieces, list(range(len(model.pieces))), str(path))
    # User-defined pieces are taken before all others; Gemma's own tokenizer.json ranks merges by id, Llama's by score.
    first = [index for index, kind in enumerate(model.types) if kind == _USER_DEFINED]
    rest = [index for index, kind in enumerate(model.types) if kind == _NORMAL]
    is_gemma = str(settings.get("tokenizer_class", "")).startswith("Gemma")
    if not is_gemma:
        rest.sort(key=lambda index: -model.scores[index])
    merges = merges_from_pieces(vocab, [model.pieces[index] for index in first + rest], longer_left_first=not is_gemma)
    for token in added:
        vocab.setdefault(token.content, token.id)
    unknown = model.pieces[model.unk_id] if 0 <= model.unk_id < len(model.pieces) else None
    return bpe_model(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=_BYTE in model.types)


def _unigram(model: SentencePieceModel) -> Json:
    # Bytes stand for what no piece covers, never for their own spelling: "<0x0A>" in a text must lose to its letters.
    scores = [_BYTE_SCORE if kind == _BYTE else s for s, kind in zip(model.scores, model.types, strict=True)]
    # Added tokens past the end of the vocabulary get the next ids; `assemble` checks that they are the right ones.
    return {
        "type": "Unigram",
        "unk_id": model.unk_id if 0 <= model.unk_id < len(model.pieces) else None,
        "vocab": list(zip(model.pieces, scores, strict=True)),
        "byte_fallback": _BYTE in model.types,
    }


def _cleaning(model: SentencePieceModel) -> list[Json]:
    """Return the normalizers before the space marks: character map, then runs of spaces."""
    steps: list[Json] = []
    if model.charsmap:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.charsmap).decode()})
    if model.remove_extra_whitespaces:
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    return steps
