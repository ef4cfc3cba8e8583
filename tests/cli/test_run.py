from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgewright import LLM
from edgewright.cli._parser import Parser
from edgewright.cli._sampling import add_generation, sampling_of
from edgewright.runtime.sampling import SamplingParams

from .conftest import Cli
from .tiny import GOLDENS, the_sentence

QUESTION = "What is the capital of France?"
#: What `bpe_chatml`'s template makes of QUESTION.
CHAT = (
    "<|im_start|>system\nYou are a helpful keeper.<|im_end|>\n"
    f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def llm(talking_bundle: Path) -> LLM:
    return LLM.load(talking_bundle)


def greedy(llm: LLM, ids: list[int], count: int) -> list[int]:
    """The likeliest continuation, by the session alone."""
    session, found, feed = llm.session(), [], ids
    while len(found) < count and (not found or found[-1] not in llm.eos_ids):
        found.append(int(session.append(feed)[0].argmax()))
        feed = found[-1:]
    return found


@pytest.mark.parametrize("length", [1, 7, 30, 63])
def test_the_next_token_is_the_one_transformers_finds(cli: Cli, plain_bundle: Path, length: int) -> None:
    with np.load(GOLDENS / "text" / "llama" / "expected.npz") as expected:
        ids, logits = expected["ids"][0], expected["logits"]
    prompt = ",".join(map(str, ids[:length]))
    result = cli("run", plain_bundle, "--prompt-ids", prompt, "--ids", "--max-tokens", 1)
    assert (result.code, result.err) == (0, "")
    assert result.out == f"{logits[length - 1].argmax()}\n"


def test_a_prompt_is_a_chat_where_there_is_a_template(cli: Cli, talking_bundle: Path, llm: LLM) -> None:
    ids = llm.tokenizer.encode(CHAT, add_special_tokens=False)
    tokens = greedy(llm, ids, 12)
    result = cli("run", talking_bundle, "--prompt", QUESTION, "--max-tokens", 12)
    assert (result.code, result.err) == (0, "")
    assert result.out == llm.tokenizer.decode(tokens) + "\n"
    ids_only = cli("run", talking_bundle, "--prompt", QUESTION, "--max-tokens", 12, "--ids", "--chat")
    assert ids_only.out == " ".join(map(str, tokens)) + "\n"


def test_a_raw_prompt_is_continued(cli: Cli, talking_bundle: Path, llm: LLM) -> None:
    tokens = greedy(llm, llm.tokenizer.encode(QUESTION), 12)
    result = cli("run", talking_bundle, "--prompt", QUESTION, "--raw", "--max-tokens", 12, "--ids")
    assert result.out == " ".join(map(str, tokens)) + "\n"


def test_a_system_message_comes_first(cli: Cli, talking_bundle: Path, llm: LLM) -> None:
    text = CHAT.replace("You are a helpful keeper.", "Be brief.")
    tokens = greedy(llm, llm.tokenizer.encode(text, add_special_tokens=False), 8)
    words = ("--prompt", QUESTION, "--system", "Be brief.", "--max-tokens", 8, "--ids")
    assert cli("run", talking_bundle, *words).out == " ".join(map(str, tokens)) + "\n"
    result = cli("run", talking_bundle, *words, "--raw")
    assert result.code == 2
    the_sentence(result.err, "--system needs a chat")


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_the_prompt_may_come_from_a_file_or_a_pipe(cli: Cli, talking_bundle: Path, tmp_path: Path, ending: str) -> None:
    wanted = cli("run", talking_bundle, "--prompt", QUESTION, "--max-tokens", 6).out
    (tmp_path / "prompt.txt").write_bytes((QUESTION + ending).encode())
    assert cli("run", talking_bundle, "--prompt-file", tmp_path / "prompt.txt", "--max-tokens", 6).out == wanted
    for words in ([], ["--prompt", "-"], ["--prompt-file", "-"]):
        assert cli("run", talking_bundle, *words, "--max-tokens", 6, stdin=QUESTION + ending).out == wanted


def test_json_has_everything(cli: Cli, talking_bundle: Path, llm: LLM) -> None:
    ids = llm.tokenizer.encode(CHAT, add_special_tokens=False)
    tokens = greedy(llm, ids, 9)
    data = json.loads(cli("run", talking_bundle, "--prompt", QUESTION, "--max-tokens", 9, "--json").out)
    assert data["tokens"] == tokens
    assert data["text"] == llm.tokenizer.decode(tokens)
    assert data["prompt_tokens"] == len(ids)
    assert data["generated_tokens"] == len(tokens)
    assert data["finish_reason"] == "length"
    times = data["timings"]
    assert 0 < times["first_text_ms"] <= times["total_ms"]
    assert times["load_ms"] > 0
    assert times["decode_tokens_per_s"] > 0


def test_a_stop_string_ends_the_text(cli: Cli, talking_bundle: Path) -> None:
    whole = json.loads(cli("run", talking_bundle, "--prompt", QUESTION, "--max-tokens", 30, "--json").out)["text"]
    stop = whole[10:12]
    words = ("--prompt", QUESTION, "--max-tokens", 30, "--json", "--stop", stop, "--stop", "never said")
    data = json.loads(cli("run", talking_bundle, *words).out)
    assert data["text"] == whole[: whole.index(stop)]
    assert data["finish_reason"] == "stop"


def test_a_seed_repeats_a_draw(cli: Cli, talking_bundle: Path) -> None:
    def draw(seed: int, *words: object) -> str:
        options = ("--temperature", 1.5, "--seed", seed, "--max-tokens", 16, "--ids")
        return cli("run", talking_bundle, "--prompt", QUESTION, *options, *words).out

    assert draw(1) == draw(1)
    assert len({draw(seed) for seed in range(4)}) == 4
    greedy_ids = cli("run", talking_bundle, "--prompt", QUESTION, "--max-tokens", 16, "--ids").out
    assert draw(1, "--top-k", 1) == draw(2, "--top-p", 1e-9) == draw(3, "--min-p", 1.0) == greedy_ids


def test_every_sampling_flag_reaches_its_parameter() -> None:
    parser = Parser("edgewright run", "")
    add_generation(parser, max_tokens=7)
    assert sampling_of(parser.parse(["b"])) == SamplingParams()
    flags = "--temperature 0.5 --top-k 3 --top-p 0.75 --min-p 0.25 --repetition-penalty 1.5 --seed 9"
    more = "--presence-penalty -0.5 --frequency-penalty 0.125"
    assert sampling_of(parser.parse(["b", *flags.split(), *more.split()])) == SamplingParams(
        temperature=0.5,
        top_k=3,
        top_p=0.75,
        min_p=0.25,
        repetition_penalty=1.5,
        presence_penalty=-0.5,
        frequency_penalty=0.125,
        seed=9,
    )


def test_a_penalty_changes_the_answer(cli: Cli, talking_bundle: Path) -> None:
    words = ("--prompt-ids", "5,326,9", "--max-tokens", 8, "--ids")
    plain = cli("run", talking_bundle, *words).out.split()
    with_prompt_punished = cli("run", talking_bundle, *words, "--repetition-penalty", 1e6).out.split()
    assert len(set(with_prompt_punished)) == len(with_prompt_punished)
    assert len(plain) == 8


def test_values_out_of_range(cli: Cli, talking_bundle: Path) -> None:
    result = cli("run", talking_bundle, "--prompt", "x", "--temperature", -1)
    assert result.code == 3
    the_sentence(result.err, "temperature is -1.0")
    result = cli("run", talking_bundle, "--prompt-ids", 400)
    assert result.code == 3
    the_sentence(result.err, "Token id 400 is outside the vocabulary of 400")


def test_prompts_that_are_none(cli: Cli, talking_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = cli("run", talking_bundle, stdin="\n")
    assert result.code == 3
    the_sentence(result.err, "The prompt is empty")
    result = cli("run", talking_bundle, "--prompt-file", tmp_path / "nowhere.txt")
    assert result.code == 2
    the_sentence(result.err, "nowhere.txt can't be read (No such file or directory)")
    (tmp_path / "latin.txt").write_bytes("Straße".encode("latin-1"))
    result = cli("run", talking_bundle, "--prompt-file", tmp_path / "latin.txt")
    assert result.code == 2
    the_sentence(result.err, "latin.txt is not UTF-8 text at byte 4")


def test_stats_go_to_stderr(cli: Cli, talking_bundle: Path) -> None:
    result = cli("run", talking_bundle, "--prompt", QUESTION, "--max-tokens", 5, "--stats")
    assert result.err.startswith("stats: load 0.")
    assert ", 5 tokens generated at " in result.err
    assert result.err.endswith("tok/s, finish length\n")


def test_threads_do_not_change_the_answer(cli: Cli, talking_bundle: Path) -> None:
    def answer(threads: int) -> str:
        return cli("run", talking_bundle, "--prompt", QUESTION, "--max-tokens", 8, "--threads", threads, "--ids").out

    assert answer(1) == answer(2)
