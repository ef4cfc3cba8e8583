"""Tokenizers rebuilt from GGUF metadata: small vocabularies, encodings worked out by hand or by `tokenizers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_files import LLAMA, assert_one_sentence, llama_tensors, write_gguf
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from edgewright.checkpoint import open_checkpoint
from edgewright.errors import TokenizerError

TEXTS = [
    "the cat sat on the mat",
    "  two  spaces   three    ",
    "x1234567 3.14 ٣٤٥ ½",
    "don't I'LL we'VE",
    "naïve café 日本語 🙂👍🏽",
    "a\n\n\tb\r\n",
    "<s>the<|tool|> cat</s>",
    "e\u0301 é",
    "",
]
CORPUS = ["the cat sat on the mat", "don't we've I'll 1234 567 cafés naïve", "日本語 🙂 the  spaces   mat\n\n"] * 3


def rebuilt(tmp_path: Path, metadata: dict[str, Any], arch: str = "llama") -> tuple[Tokenizer, dict[str, bytes]]:
    values = {key.replace("llama.", f"{arch}.", 1) if key.startswith("llama.") else key: v for key, v in LLAMA.items()}
    values |= {"general.architecture": arch} | {f"tokenizer.{key}": value for key, value in metadata.items()}
    if arch == "gemma3":
        values["gemma3.attention.sliding_window"] = 8
    vocab = len(metadata.get("ggml.tokens", [])) or 4
    sidecars = open_checkpoint(
        write_gguf(tmp_path / "t.gguf", values, llama_tensors(np.random.default_rng(0), vocab))
    ).sidecars()
    return Tokenizer.from_str(sidecars["tokenizer.json"].decode()), sidecars


def trained(
    pre_tokenizer: Any, normalizer: Any = None, ignore_merges: bool = False
) -> tuple[Tokenizer, dict[str, Any]]:
    """A byte-level tokenizer and the GGUF metadata that llama.cpp's converter would make of it."""
    reference = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    reference.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        reference.normalizer = normalizer
    reference.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    reference.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=330, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
        ),
    )
    reference.add_tokens(["<|tool|>"])
    model = json.loads(reference.to_str())["model"]
    count = reference.get_vocab_size()
    tokens = [reference.id_to_token(index) for index in range(count)]
    return reference, {
        "ggml.model": "gpt2",
        "ggml.tokens": tokens,
        "ggml.token_type": [3, 3] + [1] * (count - 3) + [4],
        "ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "ggml.bos_token_id": 0,
        "ggml.eos_token_id": 1,
    }


def split(pattern: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FAMILIES: dict[str, tuple[Any, Any, bool, list[int]]] = {
    "default": (pre_tokenizers.ByteLevel(add_prefix_space=False), None, False, []),
    "gpt-2": (pre_tokenizers.ByteLevel(add_prefix_space=False), None, False, []),
    "smollm": (
        pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        ),
        None,
        False,
        [],
    ),
    "qwen2": (split(QWEN2), normalizers.NFC(), False, []),
    "llama-bpe": (split(QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")), None, True, [0]),
    "smaug-bpe": (split(QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")), None, False, []),
}


@pytest.mark.parametrize("pre", FAMILIES)
def test_byte_level_families(tmp_path: Path, pre: str) -> None:
    pre_tokenizer, normalizer, ignore_merges, bos = FAMILIES[pre]
    reference, metadata = trained(pre_tokenizer, normalizer, ignore_merges)
    got, _ = rebuilt(tmp_path, metadata | {"ggml.pre": pre})
    for text in TEXTS:
        expected = reference.encode(text)
        assert got.encode(text).ids == bos + expected.ids, text
        assert got.encode(text, add_special_tokens=False).ids == expected.ids
        assert got.decode(expected.ids) == reference.decode(expected.ids)
        assert got.decode(expected.ids, skip_special_tokens=False) == reference.decode(
            expected.ids, skip_special_tokens=False
        )


def test_flags_of_the_file_win_over_defaults(tmp_path: Path) -> None:
    _, metadata = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    (tmp_path / "a").mkdir()
    got, _ = rebuilt(tmp_path / "a", metadata | {"ggml.pre": "llama-bpe", "ggml.add_bos_token": False})
    assert got.encode("").ids == []
    got, _ = rebuilt(
        tmp_path, metadata | {"ggml.pre": "smollm", "ggml.add_bos_token": True, "ggml.add_eos_token": True}
    )
    assert got.encode("").ids == [0, 1]


def spm(scores: dict[str, float], specials: list[str], user: list[str], **extra: Any) -> dict[str, Any]:
    """GGUF metadata of a SentencePiece vocabulary: specials, all bytes, user-defined, then pieces with scores."""
    pieces = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), *user, *scores]
    types = [2] + [3] * (len(specials) - 1) + [6] * 256 + [4] * len(user) + [1] * len(scores)
    fixed = [0.0] * (len(specials) + 256) + [-1000.0] * len(user)
    return {
        "ggml.model": "llama",
        "ggml.tokens": pieces,
        "ggml.token_type": types,
        "ggml.scores": [*fixed, *scores.values()],
        "ggml.bos_token_id": 1,
        "ggml.eos_token_id": 2,
        "ggml.unknown_token_id": 0,
        **extra,
    }


SCORES = {"th": -1.0, "▁th": -3.0, "the": -2.0, "▁the": -4.0, "at": -5.0, "▁c": -6.0, "▁cat": -7.0}
SCORES |= {letter: -100.0 - index for index, letter in enumerate("▁theca.")}


def test_llama_sentencepiece(tmp_path: Path) -> None:
    got, sidecars = rebuilt(tmp_path, spm(SCORES, ["<unk>", "<s>", "</s>"], []))
    # th (-1) before the (-2) before ▁the (-4); at (-5) before ▁c (-6) before ▁cat (-7)
    assert got.encode("the cat").tokens == ["<s>", "▁the", "▁cat"]
    assert got.encode("  cat").tokens == ["<s>", "▁", "▁", "▁cat"]
    assert got.encode("é").tokens == ["<s>", "▁", "<0xC3>", "<0xA9>"]
    assert got.encode("a</s>").tokens == ["<s>", "▁", "a", "</s>"]
    for text in ("the cat", "é the", "cat\n🙂"):
        assert got.decode(got.encode(text).ids) == text
    assert json.loads(sidecars["generation_config.json"]) == {"bos_token_id": 1, "eos_token_id": 2}
    config = json.loads(sidecars["tokenizer_config.json"])
    assert (config["bos_token"], config["eos_token"], config["unk_token"]) == ("<s>", "</s>", "<unk>")


def test_merges_follow_scores_not_ids(tmp_path: Path) -> None:
    letters = dict.fromkeys("▁abc", -50.0)
    got, _ = rebuilt(tmp_path, spm({"ab": -9.0, "bc": -1.0} | letters, ["<unk>", "<s>", "</s>"], []))
    assert got.encode("abc", add_special_tokens=False).tokens == ["▁", "a", "bc"]


def test_gemma_sentencepiece(tmp_path: Path) -> None:
    user = ["\n", "\n\n", "  ", "   ", "<b>"]
    metadata = spm(SCORES, ["<unk>", "<bos>", "<eos>"], user, **{"ggml.add_space_prefix": False})
    got, _ = rebuilt(tmp_path, metadata, "gemma3")
    assert got.encode("the cat").tokens == ["<bos>", "the", "▁cat"]
    assert got.encode("a\n\n\nt").tokens == ["<bos>", "a", "\n\n", "\n", "t"]
    assert got.encode("a   t").tokens == ["<bos>", "a", "▁▁▁", "t"]
    assert got.encode("a<b>t").tokens == ["<bos>", "a", "<b>", "t"]
    for text in ("the cat", " the", "a   t\n\n🙂"):
        assert got.decode(got.encode(text).ids) == text


def test_turn_ends_become_a_list(tmp_path: Path) -> None:
    metadata = spm(SCORES, ["<unk>", "<s>", "</s>"], [])
    extra = {"ggml.eot_token_id": 3, "ggml.eom_token_id": 2, "ggml.padding_token_id": 0, "chat_template": "{{ x }}"}
    _, sidecars = rebuilt(tmp_path, metadata | extra)
    expected = {"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 0}
    assert json.loads(sidecars["generation_config.json"]) == expected
    assert sidecars["chat_template.jinja"] == b"{{ x }}"


def test_no_vocabulary_means_no_tokenizer(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "n.gguf", LLAMA, llama_tensors(np.random.default_rng(0)))
    assert list(open_checkpoint(path).sidecars()) == ["generation_config.json"]


def refusals() -> dict[str, tuple[dict[str, Any], str]]:
    return {
        "unknown rules": ({"ggml.pre": "made-up"}, "'made-up'"),
        "unknown model": ({"ggml.model": "rwkv"}, "'rwkv'"),
        "types too short": ({"ggml.token_type": [1, 1]}, "token_type"),
        "merge of one token": ({"ggml.merges": ["ab"]}, "'ab'"),
        "merge of three tokens": ({"ggml.merges": ["a b c"]}, "'a b c'"),
        "merge of unknown tokens": ({"ggml.merges": ["yy zz"]}, "yy"),
        "token twice": ({"ggml.tokens": ["<s>", "a", "b", "a"]}, "'a'"),
        "BOS outside": ({"ggml.bos_token_id": 4}, "4"),
        "tokens are numbers": ({"ggml.tokens": [1, 2]}, "tokens"),
    }


@pytest.mark.parametrize("case", refusals())
def test_what_cant_be_rebuilt_is_refused(tmp_path: Path, case: str) -> None:
    metadata: dict[str, Any] = {
        "ggml.model": "gpt2",
        "ggml.pre": "smollm",
        "ggml.tokens": ["<s>", "a", "b", "ab"],
        "ggml.token_type": [3, 1, 1, 1],
        "ggml.merges": ["a b"],
        "ggml.bos_token_id": 0,
    }
    assert rebuilt(tmp_path, metadata)[0].encode("ab").ids == [3]
    change, part = refusals()[case]
    with pytest.raises(TokenizerError) as caught:
        rebuilt(tmp_path, metadata | change)
    assert_one_sentence(caught.value, "t.gguf", part)
