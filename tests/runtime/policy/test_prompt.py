"""Prompts: cleaning, the three forms, ids as the SentencePiece package has them, cutting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tokenizers
from policy_inputs import GOLDENS, spec_of, tokenizer_of

from edgewright.checkpoint.sentencepiece import rebuild_tokenizer
from edgewright.errors import ObservationError, TokenizerError
from edgewright.runtime.policy.prompt import clean, full_text, load_tokenizer, token_ids
from edgewright.runtime.text import Tokenizer

STATE = np.array([-1.5, -1.0, 0.0, 0.25, 1.0, 2.0])


def test_clean() -> None:
    assert clean("  put_the  red\ncup \n") == "put the  red cup"
    assert clean("\n_a_\n\nb_") == " a   b "
    assert clean("") == ""


def test_the_three_forms() -> None:
    text = " pick_up\nit "
    state = "Task: pick up it, State: -1 0 128 160 255 255;\nAction: "
    assert full_text(spec_of("pi05"), text, STATE) == state
    assert full_text(spec_of("pi05_openpi"), text, STATE) == state
    assert full_text(spec_of("pi0"), text, None) == "pick up it"
    assert full_text(spec_of("pi0", prompt="text"), text, None) == "pick up it"
    assert full_text(spec_of("pi0_lerobot"), text, None) == text + "\n"
    assert full_text(spec_of("smolvla"), "go\n", None) == "go\n"
    assert full_text(spec_of("smolvla", prompt="text"), text, None) == text
    coarse = spec_of("pi05", bins=4)
    assert full_text(coarse, "x", STATE) == "Task: x, State: -1 0 2 2 3 3;\nAction: "


def test_a_prompt_with_the_state_needs_one() -> None:
    with pytest.raises(ObservationError, match="prompt holds the state, but the observation has none"):
        token_ids(spec_of("pi05"), tokenizer_of("pi05"), "x")


def test_openpi_tokenizes_the_line_end_on_its_own() -> None:
    """`text-newline` is text and line end apart, so that no piece covers both."""
    tokenizer = tokenizer_of("pi0")
    bos, newline = 2, tokenizer.encode("\n", add_special_tokens=False)
    assert newline == [5]
    ids, notes = token_ids(spec_of("pi0"), tokenizer, "pick up ")
    assert ids.tolist() == [bos, *tokenizer.encode("pick up", add_special_tokens=False), *newline]
    assert ids.dtype == np.int64
    assert notes == ()
    without, _ = token_ids(spec_of("pi0", prompt="text"), tokenizer, "pick up ")
    assert without.tolist() == ids.tolist()[:-1]
    empty, _ = token_ids(spec_of("pi0"), tokenizer, "")
    assert empty.tolist() == [bos, *newline]


#: Texts and the ids that sentencepiece 0.2.3 gives them with the goldens' tokenizer.model.
SENTENCEPIECE: dict[str, list[int]] = {
    "": [],
    "pick up the red block": [369, 280, 379, 328, 270, 288, 357, 314],
    " leading": [309, 384, 392, 333],
    "trailing ": [380, 386, 384, 388, 387, 333, 379],
    "a  b   c    d      e": [384, 7, 394, 8, 391, 8, 379, 392, 8, 8, 381],
    "a\nb\n\nc\n\n\nd": [384, 5, 394, 6, 391, 6, 5, 392],
    "Task: x, State: 0 12 -1 255;\nAction: ": [
        339,
        403,
        379,
        419,
        400,
        350,
        403,
        379,
        404,
        379,
        401,
        402,
        379,
        417,
        401,
        379,
        402,
        405,
        405,
        408,
        5,
        349,
        403,
        379,
    ],
    "na\u00efve \u4f60\u597d \U0001f642": [
        385,
        384,
        207,
        187,
        304,
        379,
        240,
        201,
        172,
        241,
        177,
        201,
        379,
        252,
        171,
        165,
        142,
    ],
    "a\tb": [384, 21, 394],
    "<eos><bos> <unk>\n<pad>": [
        72,
        381,
        382,
        390,
        74,
        72,
        394,
        382,
        390,
        74,
        379,
        72,
        393,
        385,
        398,
        74,
        5,
        72,
        389,
        384,
        392,
        74,
    ],
    "<0x0A>": [72, 404, 419, 404, 413, 74],
    "\u2581\u2581x": [7, 419],
    "x\u00a0y": [419, 206, 172, 416],
    "Zq!@#$%^&*()": [102, 125, 45, 76, 47, 48, 49, 106, 50, 54, 52, 53],
    "1234567890": [401, 402, 409, 407, 405, 410, 411, 412, 418, 404],
    "<loc0000>y<mask>": [9, 416, 4],
}


@pytest.mark.parametrize("text", SENTENCEPIECE, ids=repr)
def test_openpi_ids_are_sentencepieces(text: str) -> None:
    assert tokenizer_of("pi0").encode(text, add_special_tokens=False) == SENTENCEPIECE[text]


def test_lerobot_reads_control_pieces_as_its_tokenizer_does() -> None:
    data = rebuild_tokenizer(GOLDENS / "tokenizer" / "tokenizer.model", {}, {})
    hugging_face = load_tokenizer(spec_of("pi05"), data)
    assert hugging_face.encode("<eos>", add_special_tokens=False) == [1]
    assert len(load_tokenizer(spec_of("pi0"), data).encode("<eos>", add_special_tokens=False)) > 1


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"added_tokens": 3}', b'{"added_tokens": [{}]}', b"\xff"])
def test_a_damaged_tokenizer_is_named(data: bytes) -> None:
    for name in ("pi05", "pi0"):
        with pytest.raises(TokenizerError):
            load_tokenizer(spec_of(name), data)


def test_a_missing_tokenizer_is_named(tmp_path: Any) -> None:
    for name in ("pi05", "pi0"):
        with pytest.raises(TokenizerError, match="can't be read"):
            load_tokenizer(spec_of(name), tmp_path / "tokenizer.json")


@pytest.mark.parametrize("name", ["pi05", "pi05_openpi", "pi0", "pi0_lerobot", "smolvla"])
@pytest.mark.parametrize("most", [1, 3, 11])
def test_a_long_prompt_is_cut_at_its_end(name: str, most: int) -> None:
    tokenizer, text = tokenizer_of(name), "pick up the red cup and put it on the table"
    whole, _ = token_ids(spec_of(name, max_tokens=500), tokenizer, text, STATE)
    ids, notes = token_ids(spec_of(name, max_tokens=most), tokenizer, text, STATE)
    assert ids.tolist() == whole.tolist()[:most]
    assert notes == (f"the prompt has {len(whole)} tokens and was cut to {most}: shorten the instruction",)
    exact, none = token_ids(spec_of(name, max_tokens=len(whole)), tokenizer, text, STATE)
    assert exact.tolist() == whole.tolist()
    assert none == ()


def test_lerobot_keeps_what_a_tokenizer_adds_at_the_end() -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "</s>": 1, "a": 2, "b": 3}, unk_token="b"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    tokenizer = Tokenizer(backend, {})
    ids, _ = token_ids(spec_of("smolvla", max_tokens=4), tokenizer, "a b a b a")
    assert ids.tolist() == [0, 2, 3, 1]
    # openpi cuts the list wherever it is too long
    assert token_ids(spec_of("pi0", prompt="text", max_tokens=4), tokenizer, "a b a b a")[0].tolist() == [0, 2, 3, 2]


def test_lone_surrogates_are_refused() -> None:
    for name in ("pi0", "smolvla"):
        with pytest.raises(ObservationError, match="prompt can't be tokenized"):
            token_ids(spec_of(name), tokenizer_of(name), "a\ud800b")


@pytest.mark.parametrize("name", ["pi05", "pi0"])
def test_a_token_without_a_row_in_the_table_is_refused_by_name(name: str) -> None:
    tokenizer, state = tokenizer_of(name), STATE if name == "pi05" else None
    ids, _ = token_ids(spec_of(name), tokenizer, "pick up the cup", state)
    largest = int(ids.max())
    same, _ = token_ids(spec_of(name, vocab=largest + 1), tokenizer, "pick up the cup", state)
    np.testing.assert_array_equal(same, ids)
    with pytest.raises(ObservationError, match=rf"\(id {largest}\), but the policy knows {largest} tokens") as caught:
        token_ids(spec_of(name, vocab=largest), tokenizer, "pick up the cup", state)
    assert repr(tokenizer.id_to_token(largest)) in str(caught.value)
