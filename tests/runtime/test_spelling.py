"""Dropped tokens spelled in kept ones: the same text, the fewest tokens, always the same, or refused by name."""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from conftest import TOKENIZERS
from edgewright.build.required import base_ids, special_ids
from edgewright.errors import GenerationError
from edgewright.runtime.spelling import Encoded, Speller, respelled
from edgewright.runtime.text import Tokenizer
from edgewright.runtime.vocabulary import Vocabulary

#: Byte-level; SentencePiece with tokens of single bytes, with a leading space and without.
NAMES = ("bpe_chatml", "sp_llama", "sp_legacy")


@functools.cache
def tokenizer_of(name: str) -> Tokenizer:
    folder = TOKENIZERS / name
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    return Tokenizer.from_files(folder / "tokenizer.json", config)


def vocabulary_of(tokenizer: Tokenizer, share: float, seed: int) -> Vocabulary:
    """Keep what must stay, and each other token with the probability `share`."""
    must = base_ids(tokenizer) | special_ids(tokenizer)
    drawn = np.random.default_rng(seed).random(tokenizer.vocab_size) < share
    return Vocabulary(np.union1d(np.flatnonzero(drawn), sorted(must)).astype(np.int64), tokenizer.vocab_size)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.text("the quick anothers.\n", max_size=60)


@given(name=st.sampled_from(NAMES), text=TEXT, share=st.sampled_from([0.0, 0.3, 0.8]), seed=st.integers(0, 3))
def test_the_text_stays_and_all_tokens_are_kept(name: str, text: str, share: float, seed: int) -> None:
    tokenizer = tokenizer_of(name)
    vocabulary = vocabulary_of(tokenizer, share, seed)
    ids = tokenizer.encode(text)
    spelled = Speller(tokenizer, vocabulary)(ids)
    assert all(i in vocabulary for i in spelled)
    assert tokenizer.decode(spelled) == tokenizer.decode(ids)
    assert spelled == Speller(tokenizer, vocabulary)(ids)
    lost = [i for i in ids if i not in vocabulary]
    assert spelled.respelled == {i: lost.count(i) for i in lost}
    assert respelled(spelled) == spelled.respelled
    if not lost:
        assert list(spelled) == ids


@pytest.mark.parametrize("name", NAMES)
def test_spellings_are_the_shortest_there_are(name: str) -> None:
    tokenizer = tokenizer_of(name)
    checked = 0
    for seed in range(4):
        vocabulary = vocabulary_of(tokenizer, 0.6, seed)
        speller = Speller(tokenizer, vocabulary)
        plain = {tokenizer.id_to_token(i): i for i in vocabulary.ids.tolist() if i not in tokenizer.added_ids}
        for token_id in range(tokenizer.vocab_size):
            token = tokenizer.id_to_token(token_id)
            if token_id in vocabulary or token is None or len(token) > 9 or not all(c in plain for c in token):
                continue
            spelled = speller.spell(token_id)
            assert "".join(tokenizer.id_to_token(i) or "" for i in spelled) == token
            for count in range(len(spelled) - 1):
                for cuts in itertools.combinations(range(1, len(token)), count):
                    pieces = [token[a:b] for a, b in itertools.pairwise((0, *cuts, len(token)))]
                    assert not all(piece in plain for piece in pieces), (token, pieces)
            checked += 1
    assert checked > 20


def test_of_equally_short_spellings_the_longest_first_token_wins() -> None:
    vocab = {piece: i for i, piece in enumerate(["a", "b", "c", "ab", "abc", "bcd", "d", "cd", "abcd"])}
    merges = [("a", "b"), ("ab", "c"), ("c", "d"), ("b", "cd"), ("ab", "cd")]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges))
    backend.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = Tokenizer(backend, {})
    kept = Vocabulary(np.array([0, 1, 2, 3, 4, 5, 6, 7]), 9)
    assert Speller(tokenizer, kept).spell(8) == (4, 6)  # abc d, not ab cd or a bcd
    assert Speller(tokenizer, Vocabulary(np.array([0, 1, 2, 3, 5, 6, 7]), 9)).spell(8) == (3, 7)


def test_characters_without_a_token_become_bytes() -> None:
    tokenizer = tokenizer_of("sp_llama")
    dropped = tokenizer.token_to_id("é") or tokenizer.token_to_id("e")
    assert dropped is not None
    must = base_ids(tokenizer) | special_ids(tokenizer)
    vocabulary = Vocabulary(np.array(sorted(must)), tokenizer.vocab_size)
    assert dropped not in vocabulary
    spelled = Speller(tokenizer, vocabulary).spell(dropped)
    names = [tokenizer.id_to_token(i) for i in spelled]
    assert names == [f"<0x{byte:02X}>" for byte in (tokenizer.id_to_token(dropped) or "").encode()]


def test_what_cannot_be_spelled_is_refused_by_name() -> None:
    tokenizer = tokenizer_of("bpe_chatml")
    vocabulary = Vocabulary(np.array([5, 6, 7]), tokenizer.vocab_size)
    speller = Speller(tokenizer, vocabulary)
    token_id = tokenizer.encode("the")[0]
    with pytest.raises(GenerationError, match=rf"The token '.+' \(id {token_id}\) is not among the 3 of 400"):
        speller([token_id])
    added = max(tokenizer.added_ids)
    with pytest.raises(GenerationError, match=rf"\(id {added}\) is not among"):
        speller([added])


@pytest.mark.parametrize("model", ["wordpiece", "suffix", "no decoder"])
def test_tokenizers_whose_tokens_do_not_join_refuse(model: str) -> None:
    vocab = {"a": 0, "b": 1, "ab": 2, "[UNK]": 3}
    if model == "wordpiece":
        backend = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab, unk_token="[UNK]"))
        backend.decoder = tokenizers.decoders.WordPiece()
    else:
        suffix = {"end_of_word_suffix": "</w>"} if model == "suffix" else {}
        backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [("a", "b")], **suffix))
        if suffix:
            backend.decoder = tokenizers.decoders.BPEDecoder()
    tokenizer = Tokenizer(backend, {})
    assert not tokenizer.joins
    with pytest.raises(GenerationError, match=r"The token 'ab' \(id 2\) is not among"):
        Speller(tokenizer, Vocabulary(np.array([0, 1, 3]), 4)).spell(2)


def test_ids_beyond_the_model_pass_and_are_refused_where_they_always_are() -> None:
    tokenizer = tokenizer_of("bpe_chatml")
    speller = Speller(tokenizer, Vocabulary(np.array([5, 6, 7]), 300))
    assert speller([5, 350]) == [5, 350]


def test_encode_spells(tmp_path: Path) -> None:
    folder = TOKENIZERS / "bpe_chatml"
    tokenizer = Tokenizer.from_files(folder / "tokenizer.json", None)
    plain = tokenizer.encode("the quick brown fox")
    assert not isinstance(plain, Encoded)
    assert respelled(plain) == {}
    vocabulary = vocabulary_of(tokenizer, 0.0, seed=0)
    tokenizer.spell = Speller(tokenizer, vocabulary)
    spelled = tokenizer.encode("the quick brown fox")
    assert isinstance(spelled, Encoded)
    assert spelled.respelled
    assert tokenizer.decode(spelled) == "the quick brown fox"
