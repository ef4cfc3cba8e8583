"""SentencePiece models in a Hugging Face folder: the protobuf, BPE and Unigram, and files that break the format."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_files import assert_one_sentence
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from edgewright.checkpoint import open_checkpoint
from edgewright.errors import EdgewrightError, MalformedHeaderError, TokenizerError, TruncatedFileError


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: int | float | bytes) -> bytes:
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def piece(text: str, score: float = 0.0, kind: int = 1) -> bytes:
    return field(1, field(1, text.encode()) + field(2, score) + (field(3, kind) if kind != 1 else b""))


SPECIALS = piece("<unk>", 0.0, 2) + piece("<s>", 0.0, 3) + piece("</s>", 0.0, 3)
BYTES = b"".join(piece(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256))
LETTERS = b"".join(piece(letter, -50.0 - n) for n, letter in enumerate("▁abcd"))
BPE = SPECIALS + BYTES + piece("bc", -1.0) + piece("ab", -2.0) + piece("▁a", -3.0) + piece("▁▁", 0.0, 4) + LETTERS
BPE_TRAINER = field(2, field(3, 2) + field(40, 0))
PLAIN = field(3, field(1, b"identity") + field(3, 1) + field(4, 0))


def folder(tmp_path: Path, model: bytes, settings: dict[str, Any] | None = None) -> Path:
    (tmp_path / "config.json").write_text("{}")
    save_file({"w": np.ones(2, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "tokenizer.model").write_bytes(model)
    if settings is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


def load(tmp_path: Path, model: bytes, settings: dict[str, Any] | None = None) -> Tokenizer:
    return Tokenizer.from_str(open_checkpoint(folder(tmp_path, model, settings)).sidecars()["tokenizer.json"].decode())


def test_bpe(tmp_path: Path) -> None:
    got = load(tmp_path, BPE + BPE_TRAINER + PLAIN)
    assert got.encode("abc").tokens == ["<s>", "▁a", "bc"]
    assert got.encode("d  d").tokens == ["<s>", "▁", "d", "▁▁", "d"]
    assert got.encode("é").tokens == ["<s>", "▁", "<0xC3>", "<0xA9>"]
    assert got.encode("a</s>b").tokens == ["<s>", "▁a", "</s>", "▁", "b"]
    assert got.decode(got.encode("abc  d é").ids) == "abc  d é"


def test_bpe_settings(tmp_path: Path) -> None:
    last = 3 + 256 + 4 + 5
    settings = {
        "add_bos_token": False,
        "add_eos_token": True,
        "add_prefix_space": False,
        "eos_token": {"content": "</s>"},
        "added_tokens_decoder": {str(last): {"content": "<|im|>", "special": True}},
    }
    got = load(tmp_path, BPE + BPE_TRAINER + PLAIN, settings)
    assert got.encode("abc<|im|>").tokens == ["a", "bc", "<|im|>", "</s>"]
    assert got.token_to_id("<|im|>") == last
    got = load(tmp_path, BPE + BPE_TRAINER + PLAIN, {"legacy": False})
    assert got.encode("a</s>b").tokens == ["<s>", "▁a", "</s>", "b"]


def test_unigram(tmp_path: Path) -> None:
    pieces = SPECIALS + piece("▁ab", -2.0) + piece("▁a", -1.5) + piece("bc", -1.0) + piece("▁", -9.0)
    pieces += b"".join(piece(letter, -5.0) for letter in "abc")
    got = load(tmp_path, pieces + field(2, field(3, 1)) + field(3, field(1, b"nmt")))
    assert got.encode("abc").tokens == ["▁a", "bc"]
    assert got.encode("  ab   ab ").tokens == ["▁ab", "▁ab"]
    assert got.decode(got.encode("abc ab").ids) == "abc ab"


def test_unigram_bytes_are_a_fallback_only(tmp_path: Path) -> None:
    pieces = SPECIALS + BYTES + b"".join(piece(letter, -5.0) for letter in "▁<0xC3>")
    got = load(tmp_path, pieces + field(2, field(3, 1)), {"add_bos_token": False})
    assert got.encode("<0xC3>").tokens == ["▁", "<", "0", "x", "C", "3", ">"]
    assert got.encode("é").tokens == ["▁", "<0xC3>", "<0xA9>"]
    assert got.decode(got.encode("é 3").ids) == "é 3"


def test_gemma_merges_by_id(tmp_path: Path) -> None:
    model = (
        SPECIALS + piece("ab", -9.0) + piece("bc", -1.0) + LETTERS + BPE_TRAINER + field(3, field(3, 0) + field(4, 0))
    )
    assert load(tmp_path, model, {"tokenizer_class": "GemmaTokenizer"}).encode("abc").tokens == ["<s>", "ab", "c"]
    assert load(tmp_path, model, {"tokenizer_class": "LlamaTokenizer"}).encode("abc").tokens == ["<s>", "a", "bc"]


@pytest.mark.parametrize(
    ("model", "error"),
    [
        (BPE + field(2, field(3, 3)), TokenizerError),
        (BPE + BPE_TRAINER + field(3, field(5, 0)), TokenizerError),
        (BPE + piece("bc", -8.0) + BPE_TRAINER, TokenizerError),
        (b"\x0a\xff\xff\xff\xff\x0f", TruncatedFileError),
        (b"\xff" * 30, TruncatedFileError),
        (b"\x0b", MalformedHeaderError),
        (field(1, 3), MalformedHeaderError),
        (field(1, field(1, b"\xff")), MalformedHeaderError),
        (BPE + field(2, field(3, b"x")), MalformedHeaderError),
    ],
)
def test_what_cant_be_read_is_refused(tmp_path: Path, model: bytes, error: type[EdgewrightError]) -> None:
    with pytest.raises(EdgewrightError) as caught:
        load(tmp_path, model)
    assert caught.type is error, caught.value
    assert_one_sentence(caught.value, "tokenizer.model")


def test_added_token_with_a_taken_id_is_refused(tmp_path: Path) -> None:
    settings = {"added_tokens_decoder": {"100000": {"content": "a", "special": False}}}
    with pytest.raises(TokenizerError) as caught:
        load(tmp_path, BPE + BPE_TRAINER, settings)
    assert_one_sentence(caught.value, "tokenizer.model", "'a'")


def test_mutated_models_raise_named_errors_only(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    original = SPECIALS + piece("ab", -1.0) + piece("▁a", -2.0) + LETTERS + BPE_TRAINER + PLAIN
    path = folder(tmp_path, original) / "tokenizer.model"
    refused = 0
    for _ in range(400):
        mutated = bytearray(original)
        for _ in range(rng.integers(1, 4)):
            mutated[rng.integers(0, len(mutated))] = rng.integers(0, 256)
        path.write_bytes(mutated)
        try:
            open_checkpoint(tmp_path).sidecars()
        except EdgewrightError as error:
            refused += 1
            assert_one_sentence(error)
    assert refused > 50
