"""Tokenizer and StreamDecoder: against transformers' goldens, and pieces against whole decodes."""

import json
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from edgewright.errors import GenerationError, TokenizerError
from edgewright.runtime.stream import StreamDecoder
from edgewright.runtime.text import Tokenizer

GOLDENS = Path(__file__).parents[1] / "goldens" / "tokenizers"
FOLDERS = sorted(path.parent for path in GOLDENS.glob("*/expected.json") if (path.parent / "tokenizer.json").exists())
TEXTS = ["Hello, world!", " two  spaces ", "I 🙂 你好 é\n", "a\tb\n\n", "naïve 👩‍👩‍👧 ﷽", "", "don't stop ."]
CORPUS = ["the quick brown fox jumps over the lazy dog", "Hello world, hello there", "naïve café 你好 世界", "a b c"]


@cache
def golden(folder: Path) -> tuple[Tokenizer, dict[str, Any]]:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    return Tokenizer.from_files(folder / "tokenizer.json", config), json.loads((folder / "expected.json").read_text())


@cache
def built(kind: str) -> Tokenizer:
    """A tokenizer made here: byte-level BPE, SentencePiece-like with byte fallback, WordPiece, or none of them."""
    if kind == "bytelevel":
        backend = Backend(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer: Any = trainers.BpeTrainer(
            vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
        )
    elif kind == "bytefallback":
        backend = Backend(models.BPE(byte_fallback=True, unk_token="<unk>"))
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        backend.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        tokens = ["<unk>", "<s>", "<|end|>", *(f"<0x{byte:02X}>" for byte in range(256))]
        trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=tokens, show_progress=False)
    elif kind == "metaspace":
        backend = Backend(models.Unigram())
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        backend.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=60, special_tokens=["<unk>", "<|end|>"], unk_token="<unk>", show_progress=False
        )
    else:
        backend = Backend(models.WordPiece(unk_token="<unk>"))
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece(cleanup=False)
        trainer = trainers.WordPieceTrainer(vocab_size=80, special_tokens=["<unk>", "<|end|>"], show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    if kind == "bytefallback":  # the byte pieces are ordinary tokens of the model, as in SentencePiece files
        state = json.loads(backend.to_str())
        state["added_tokens"] = [token for token in state["added_tokens"] if not token["content"].startswith("<0x")]
        backend = Backend.from_str(json.dumps(state))
    config = {"eos_token": "<|end|>", "clean_up_tokenization_spaces": kind == "wordpiece"}
    return Tokenizer.from_files(backend.to_str().encode(), config)


KINDS = ["bytelevel", "bytefallback", "metaspace", "wordpiece"]


def stream(tokenizer: Tokenizer, ids: Sequence[int], **options: Any) -> list[str]:
    decoder = StreamDecoder(tokenizer, **options)
    return [*(decoder.push(token) for token in ids), decoder.flush()]


# --- goldens of transformers ----------------------------------------------------------------------------------------


def test_there_are_goldens() -> None:
    assert FOLDERS, f"no tokenizer goldens in {GOLDENS}; run tools/goldens/make_tokenizers.py"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_ids_and_texts_equal_transformers(folder: Path) -> None:
    tokenizer, expected = golden(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token) == (expected["bos_token"], expected["eos_token"])
    for record in expected["encode"]:
        assert tokenizer.encode(record["text"]) == record["ids"]
        assert tokenizer.encode(record["text"], add_special_tokens=False) == record["ids_no_special"]
        assert tokenizer.decode(record["ids"], skip_special_tokens=False) == record["decoded"]
        assert tokenizer.decode(record["ids"]) == record["decoded_skip_special"]
    for record in expected["decode"]:
        assert tokenizer.decode(record["ids"], skip_special_tokens=False) == record["decoded"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_pieces_equal_transformers(folder: Path) -> None:
    tokenizer, expected = golden(folder)
    for record in expected["encode"]:
        assert "".join(stream(tokenizer, record["ids"], skip_special_tokens=False)) == record["decoded"]
        assert "".join(stream(tokenizer, record["ids"])) == record["decoded_skip_special"]
    for record in expected["decode"]:
        assert "".join(stream(tokenizer, record["ids"], skip_special_tokens=False)) == record["decoded"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_pieces_of_random_ids(folder: Path) -> None:
    tokenizer, _ = golden(folder)
    rng = random.Random(3)
    for _ in range(60):
        ids = [rng.randrange(tokenizer.vocab_size + 2) for _ in range(rng.randrange(25))]
        skip = rng.random() < 0.5
        assert "".join(stream(tokenizer, ids, skip_special_tokens=skip)) == tokenizer.decode(
            ids, skip_special_tokens=skip
        )


# --- streaming ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(text=st.text(max_size=30))
def test_pieces_of_any_text(kind: str, text: str) -> None:
    tokenizer = built(kind)
    ids = tokenizer.encode(text)
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(data=st.data(), skip=st.booleans())
def test_pieces_of_any_ids(kind: str, data: st.DataObject, skip: bool) -> None:
    tokenizer = built(kind)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 1), max_size=24))
    pieces = stream(tokenizer, ids, skip_special_tokens=skip)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", ["bytelevel", "bytefallback"])
def test_no_replacement_character_before_a_character_is_complete(kind: str) -> None:
    tokenizer = built(kind)
    ids = tokenizer.encode("x🙂y👍", add_special_tokens=False)
    decoder = StreamDecoder(tokenizer)
    pieces = [decoder.push(token) for token in ids]
    assert len(ids) >= 10
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces).startswith("x🙂y")
    assert "".join(pieces) + decoder.flush() == "x🙂y👍"


def test_byte_level_emits_a_character_with_its_last_byte() -> None:
    tokenizer = built("bytelevel")
    ids = tokenizer.encode("🙂", add_special_tokens=False)
    assert stream(tokenizer, ids) == ["", "", "", "🙂", ""]
    assert stream(tokenizer, ids[:3]) == ["", "", "", "\ufffd"]
    assert tokenizer.decode(ids[:3]) == "\ufffd"


def test_byte_fallback_run_is_held_until_it_ends() -> None:
    tokenizer = built("bytefallback")
    run = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in "🙂".encode()]
    letter = tokenizer.token_to_id("o")
    ids = [token for token in (letter, *run, letter) if token is not None]
    assert stream(tokenizer, ids) == ["o", "", "", "", "", "🙂o", ""]
    # one byte too many makes all five unreadable, which is why nothing of the run was certain before
    broken = [*ids[:5], ids[1], letter]
    assert tokenizer.decode(broken) == "o" + "\ufffd" * 5 + "o"  # type: ignore[arg-type]
    assert "".join(stream(tokenizer, broken)) == "o" + "\ufffd" * 5 + "o"  # type: ignore[arg-type]


def test_leading_space_is_stripped_at_the_start_only() -> None:
    tokenizer = built("bytefallback")
    ids = tokenizer.encode("hello", add_special_tokens=False)
    assert "".join(stream(tokenizer, ids)) == "hello"
    assert "".join(stream(tokenizer, ids + ids)) == "hello hello"
    assert "".join(stream(tokenizer, ids, prompt_ids=tokenizer.encode("say:"))) == " hello"
    end = tokenizer.eos_token_id
    assert end is not None
    assert "".join(stream(tokenizer, [*ids, end, end, *ids])) == "hello hello"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS)
def test_prompt_ids_continue_the_prompt(kind: str, text: str) -> None:
    tokenizer = built(kind)
    prompt = tokenizer.encode("the quick brown fox " * 9)
    ids = tokenizer.encode(text)
    whole = tokenizer.decode_raw(prompt + ids, skip_special_tokens=True)
    raw = whole[len(tokenizer.decode_raw(prompt, skip_special_tokens=True)) :]
    if not tokenizer.cleans_up_spaces:
        assert "".join(stream(tokenizer, ids, prompt_ids=prompt)) == raw


def test_work_per_token_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = built("bytefallback")
    ids = tokenizer.encode("the quick 你 brown   fox ") * 60
    lengths = []
    real = Tokenizer.decode_raw

    def counting(self: Tokenizer, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        lengths.append(len(ids))
        return real(self, ids, skip_special_tokens=skip_special_tokens)

    monkeypatch.setattr(Tokenizer, "decode_raw", counting)
    stream(tokenizer, ids)
    assert sum(lengths) < 10 * len(ids)
    assert max(lengths) < 20


def test_negative_id_is_refused() -> None:
    with pytest.raises(GenerationError, match="-1 is negative"):
        StreamDecoder(built("bytelevel")).push(-1)
    with pytest.raises(GenerationError, match="can't be decoded"):
        built("bytelevel").decode([-1])


# --- what tokenizer_config.json says --------------------------------------------------------------------------------


def test_special_tokens_as_strings_or_objects() -> None:
    base = built("bytelevel")
    data = base._backend.to_str().encode()
    config = {
        "bos_token": {"content": "<|end|>", "lstrip": False, "__type": "AddedToken"},
        "eos_token": "<|end|>",
        "pad_token": None,
        "unk_token": "<|new|>",
        "image_token": "<|image|>",
        "added_tokens_decoder": {"301": {"content": "<|plain|>", "special": False, "normalized": False}},
    }
    tokenizer = Tokenizer.from_files(data, config)
    assert tokenizer.special_tokens == {
        "bos_token": "<|end|>",
        "eos_token": "<|end|>",
        "unk_token": "<|new|>",
        "image_token": "<|image|>",
    }
    assert (tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.pad_token) == (0, None, None)
    plain, new = tokenizer.encode("<|plain|><|new|>")
    assert tokenizer.vocab_size == base.vocab_size + 3
    assert tokenizer.id_to_token(plain) == "<|plain|>"
    assert tokenizer.special_ids == {0, new, tokenizer.token_to_id("<|image|>")}
    assert tokenizer.decode([plain, new]) == "<|plain|>"
    assert tokenizer.id_to_token(10**6) is None
    assert tokenizer.id_to_token(-1) is None
    assert tokenizer.token_to_id("no such token") is None


def test_add_bos_token_has_no_effect_beside_a_tokenizer_json() -> None:
    tokenizer = Tokenizer.from_files(
        built("bytelevel")._backend.to_str().encode(), {"bos_token": "<|end|>", "add_bos_token": True}
    )
    assert 0 not in tokenizer.encode("hello")


def test_clean_up_of_spaces_is_for_all_models_but_bpe() -> None:
    word = built("wordpiece")
    letter, comma = word.token_to_id("a"), word.token_to_id(",")
    assert letter is not None
    assert comma is not None
    ids = [letter, comma, letter, letter]
    assert word.decode_raw(ids, skip_special_tokens=True) == "a , a a"
    assert word.decode(ids) == "a, a a"
    assert stream(word, ids) == ["a", "", ", a", " a", ""]
    bpe = Tokenizer.from_files(built("bytelevel")._backend.to_str().encode(), {"clean_up_tokenization_spaces": True})
    assert bpe.decode(bpe.encode("a . b")) == "a . b"


def test_padding_and_truncation_of_the_file_are_switched_off() -> None:
    state = json.loads(built("bytelevel")._backend.to_str())
    state["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    state["padding"] = {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|end|>",
    }
    tokenizer = Tokenizer.from_files(json.dumps(state).encode(), None)
    assert tokenizer.decode(tokenizer.encode("hello world, hello")) == "hello world, hello"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"model": {}}', b"\xff\xfe", b'{"version": "1.0"}'])
def test_malformed_files_are_refused(data: bytes) -> None:
    with pytest.raises(TokenizerError, match=r"^tokenizer\.json .*fetch the file again"):
        Tokenizer.from_files(data, None)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"nowhere\.json can't be read"):
        Tokenizer.from_files(tmp_path / "nowhere.json", None)


@pytest.mark.parametrize(
    "config",
    [
        {"bos_token": 3},
        {"eos_token": {"text": "x"}},
        {"added_tokens_decoder": {"x": {}}},
        {"added_tokens_decoder": [1]},
    ],
)
def test_malformed_config_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json"):
        Tokenizer.from_files(built("bytelevel")._backend.to_str().encode(), config)


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(GenerationError, match="lone surrogates"):
        built("bytelevel").encode("a\ud800")
