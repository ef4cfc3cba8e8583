"""Generation: when it ends and why, the same text in pieces and whole, seeds, the full context."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import BOS, EOS, MakeBundle, MakeEngine, golden
from edgewright.errors import ContextOverflowError, GenerationError, TokenizerError
from edgewright.runtime.generation import Generation
from edgewright.runtime.llm import LLM
from edgewright.runtime.sampling import SamplingParams
from edgewright.runtime.session import Session

PROMPT = [40, 69, 76, 76, 79]
GREEDY = SamplingParams()
WARM = SamplingParams(temperature=1.5, seed=11)


@pytest.fixture(scope="module")
def llm(shared_bundle: MakeBundle) -> LLM:
    return LLM.load(shared_bundle("float32"), threads=1)


def by_hand(llm: LLM, count: int) -> list[int]:
    """Greedy decoding without a cache to go wrong: the whole sequence anew for every token."""
    ids = list(PROMPT)
    for _ in range(count):
        ids.append(int(llm.session().append(ids)[0].argmax()))
    return ids[len(PROMPT) :]


def text_of(ids: list[int]) -> str:
    return "".join(chr(i + 32) for i in ids if i < 95)


def test_greedy_tokens_are_the_largest_logits(llm: LLM) -> None:
    generation = llm.generate(PROMPT, max_tokens=12, ignore_eos=True)
    assert generation.all_tokens() == by_hand(llm, 12)
    assert generation.finish_reason == "length"


@pytest.mark.parametrize("count", [1, 2, 25])
def test_max_tokens(count: int, llm: LLM) -> None:
    generation = llm.generate(PROMPT, max_tokens=count, ignore_eos=True, sampling=WARM)
    assert generation.finish_reason is None
    assert len(generation.all_tokens()) == count
    assert generation.finish_reason == "length"
    # The last token needs no place in the cache.
    assert generation.session.length == len(PROMPT) + count - 1


def test_bad_requests(llm: LLM) -> None:
    for count in (0, -3):
        with pytest.raises(GenerationError, match=f"max_tokens must be at least 1, not {count}"):
            llm.generate(PROMPT, max_tokens=count)
    with pytest.raises(GenerationError, match="prompt is empty"):
        llm.generate([])
    with pytest.raises(GenerationError, match="prompt is empty"):
        llm.generate("")
    with pytest.raises(GenerationError, match="97 is outside the vocabulary"):
        llm.generate([97]).all_tokens()


def test_pieces_are_the_whole_text(llm: LLM) -> None:
    whole = llm.generate(PROMPT, max_tokens=60, sampling=WARM)
    text = whole.text
    pieces = list(llm.generate(PROMPT, max_tokens=60, sampling=WARM))
    assert "".join(pieces) == text
    assert len(pieces) > 1
    assert text == text_of(whole.tokens)
    # Half by half: what was iterated over does not come again.
    generation = llm.generate(PROMPT, max_tokens=60, sampling=WARM)
    first = next(iter(generation))
    assert first + generation.text == text
    assert generation.text == ""
    assert list(generation) == []
    assert generation.tokens == whole.tokens


def test_work_is_done_while_iterating(llm: LLM) -> None:
    generation = llm.generate(PROMPT, max_tokens=9, ignore_eos=True, sampling=WARM)
    assert generation.session.length == 0
    assert generation.tokens == []
    for count, _ in enumerate(generation, 1):
        assert len(generation.tokens) >= count
        if count == 3:
            break
    assert 3 <= len(generation.tokens) < 9


def test_seeds(llm: LLM) -> None:
    def tokens(seed: int | None) -> list[int]:
        sampling = SamplingParams(temperature=2.0, seed=seed)
        return llm.generate(PROMPT, max_tokens=30, sampling=sampling, ignore_eos=True).all_tokens()

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)
    assert tokens(None) != tokens(None)


# -- the end of a text -------------------------------------------------------------------------------------------------


class Scripted:
    """A session whose logits pick the tokens of a script, one a call; like Session where Generation looks."""

    vocabulary = None

    def __init__(self, script: list[int], max_context: int = 100) -> None:
        self.script, self.max_context, self.length, self.fed = script, max_context, 0, []

    def prefetch(self, ids: list[int]) -> None:
        assert ids

    def append(self, ids: list[int], logits: str = "last") -> np.ndarray:
        assert logits == "last"
        self.fed.append(list(ids))
        self.length += len(ids)
        assert self.length <= self.max_context
        row = np.zeros((1, 97), np.float32)
        row[0, self.script[len(self.fed) - 1]] = 9.0
        return row


def scripted(
    llm: LLM,
    text: str,
    end: tuple[int, ...] = (),
    stop: tuple[str, ...] = (),
    *,
    max_tokens: int | None = None,
    max_context: int = 100,
) -> Generation:
    script = [ord(c) - 32 for c in text] + [*end, *([1] * 200)]
    return Generation(
        Scripted(script, max_context),  # type: ignore[arg-type]
        PROMPT,
        tokenizer=llm.tokenizer,
        eos_ids=(EOS, BOS),
        sampling=GREEDY,
        stop=stop,
        max_tokens=max_tokens,
    )


@pytest.mark.parametrize("end", [EOS, BOS])
def test_each_eos_of_the_list_ends(end: int, llm: LLM) -> None:
    generation = scripted(llm, "The end", (end,), max_tokens=50)
    assert generation.text == "The end"
    assert generation.tokens[-1] == end
    assert len(generation.tokens) == 8
    assert generation.finish_reason == "stop"
    # The session holds everything but the EOS, so that a dialog can go on.
    assert generation.session.length == len(PROMPT) + 7


def test_an_eos_as_the_last_token_allowed_is_a_stop(llm: LLM) -> None:
    generation = scripted(llm, "abc", (EOS,), max_tokens=4)
    assert generation.text == "abc"
    assert generation.finish_reason == "stop"
    assert scripted(llm, "", (EOS,), max_tokens=9).text == ""


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (("STOP",), "one STO two "),
        ((" two",), "one STO"),
        (("zzz", "STO"), "one "),
        (("o",), ""),
        (("P three", "STOP th"), "one STO two "),
        (("nowhere",), "one STO two STOP three"),
    ],
)
def test_stop_strings(stop: tuple[str, ...], text: str, llm: LLM) -> None:
    generation = scripted(llm, "one STO two STOP three", (EOS,), stop, max_tokens=50)
    pieces = list(generation)
    assert "".join(pieces) == text
    assert generation.finish_reason == "stop"
    assert generation.all_tokens() is generation.tokens


def test_a_stop_string_that_never_completes_is_given_out_at_the_end(llm: LLM) -> None:
    generation = scripted(llm, "a half STO", stop=("STOP",), max_tokens=10)
    assert generation.text == "a half STO"
    assert generation.finish_reason == "length"
    generation = scripted(llm, "a half STO", (EOS,), ("STOP",), max_tokens=50)
    assert generation.text == "a half STO"
    assert generation.finish_reason == "stop"


def test_a_stop_string_with_the_last_token_allowed_is_a_stop(llm: LLM) -> None:
    generation = scripted(llm, "go STOP", stop=("STOP",), max_tokens=7)
    assert generation.text == "go "
    assert generation.finish_reason == "stop"


def test_stop_strings_need_a_tokenizer(shared_engine: MakeEngine) -> None:
    session = Session(shared_engine("qwen3"))
    with pytest.raises(TokenizerError, match="Stop strings need a tokenizer"):
        Generation(session, PROMPT, tokenizer=None, eos_ids=(), sampling=GREEDY, stop=("x",))
    plain = Generation(session, PROMPT, tokenizer=None, eos_ids=(), sampling=GREEDY, max_tokens=4)
    assert list(plain) == []
    assert len(plain.tokens) == 4


# -- the full context --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [0, 1, 6])
@pytest.mark.parametrize("max_tokens", [None, 3, 50])
def test_a_full_context_ends_the_text(room: int, max_tokens: int | None, llm: LLM) -> None:
    generation = scripted(
        llm, "x" * 90, max_context=len(PROMPT) + room, **({"max_tokens": max_tokens} if max_tokens else {})
    )
    assert len(generation.all_tokens()) == min(room + 1, max_tokens or 99)
    assert generation.finish_reason == "length"


def test_a_full_context_of_a_real_session(llm: LLM) -> None:
    session = llm.session()
    session.append(np.arange(240) % 90, logits="none")
    generation = llm.generate(PROMPT, session=session, ignore_eos=True)
    assert len(generation.all_tokens()) == 256 - 240 - 5 + 1
    assert generation.finish_reason == "length"
    assert session.length == 256
    with pytest.raises(ContextOverflowError, match="prompt of 5 tokens does not fit: 0 of the context's 256"):
        llm.generate(PROMPT, session=session)
    with pytest.raises(ContextOverflowError, match="prompt of 257 tokens"):
        llm.generate([1] * 257)
    assert len(llm.generate([1] * 256, ignore_eos=True).all_tokens()) == 1


def test_a_dialog_continues_in_its_session(llm: LLM) -> None:
    """Two turns in one session give what one prompt of all its tokens gives."""
    session = llm.session()
    first = llm.generate(PROMPT, max_tokens=6, session=session, ignore_eos=True).all_tokens()
    second = llm.generate([first[-1], 10, 11], max_tokens=6, session=session, ignore_eos=True).all_tokens()
    whole = llm.generate([*PROMPT, *first, 10, 11], max_tokens=6, ignore_eos=True).all_tokens()
    assert second == whole


def test_penalties_count_the_prompt_and_the_text(llm: LLM) -> None:
    sampling = SamplingParams(repetition_penalty=1e6)
    tokens = llm.generate(PROMPT, max_tokens=40, sampling=sampling, ignore_eos=True).all_tokens()
    positive = golden("qwen3").logits.max() > 0  # a repeated token's positive logit is divided to nothing
    assert positive
    assert len(set(tokens)) == len(tokens)
    assert not set(tokens) & set(PROMPT)
