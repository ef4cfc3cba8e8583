from __future__ import annotations

import io
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from edgewright import LLM
from edgewright.cli.chat import Dialog, _StopKey
from edgewright.errors import ContextOverflowError
from edgewright.runtime.sampling import SamplingParams

from .conftest import Cli
from .tiny import llama_folder, the_sentence


@pytest.fixture(scope="module")
def llm(talking_bundle: Path) -> LLM:
    return LLM.load(talking_bundle)


def answers(llm: LLM, questions: Sequence[str], count: int, system: str | None = None) -> list[str]:
    """Each answer from a fresh session over the whole dialog."""
    messages = [{"role": "system", "content": system}] if system else []
    found = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        found.append(llm.generate(messages, max_tokens=count).text)
        messages.append({"role": "assistant", "content": found[-1]})
    return found


def dialog_of(llm: LLM, count: int, system: str | None = None) -> Dialog:
    return Dialog(llm, SamplingParams(), system=system, max_tokens=count, stop=())


def ask(dialog: Dialog, question: str) -> str:
    return "".join(dialog.answer(question, _StopKey()))


def test_each_turn_answers_the_whole_dialog(cli: Cli, talking_bundle: Path, llm: LLM) -> None:
    questions = ["Hello!", "What is the capital of France?", "Why?"]
    wanted = answers(llm, questions, 9, "Be brief.")
    result = cli("chat", talking_bundle, "--max-tokens", 9, "--system", "Be brief.", stdin="\n".join(questions) + "\n")
    assert (result.code, result.err) == (0, "")
    assert result.out == "".join(f"{answer}\n" for answer in wanted)


def test_only_the_new_part_is_fed(llm: LLM) -> None:
    dialog = dialog_of(llm, 9)
    first = ask(dialog, "Hello!")
    whole = len(llm.encode_chat([{"role": "user", "content": "Hello!"}]))
    assert dialog.fed == whole
    ask(dialog, "What is the capital of France?")
    messages = [
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    assert 0 < dialog.fed < len(llm.encode_chat(messages)) - whole + 1


def test_a_long_message_is_fed_in_parts_with_the_same_result(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    question = "the cat sat on the mat " * 4
    wanted = answers(llm, [question, "And then?"], 6)
    monkeypatch.setattr("edgewright.cli.chat._CHUNK", 7)
    monkeypatch.setattr("edgewright.cli.chat._TAIL", 5)
    dialog = dialog_of(llm, 6)
    assert [ask(dialog, question), ask(dialog, "And then?")] == wanted


def test_reset_starts_over_and_quit_ends(cli: Cli, talking_bundle: Path, llm: LLM) -> None:
    hello, other = answers(llm, ["Hello!"], 5)[0], answers(llm, ["Who?"], 5)[0]
    lines = ["Hello!", "/reset", "", "Who?", "/help", "/unknown x", "/quit", "Hello!"]
    result = cli("chat", talking_bundle, "--max-tokens", 5, stdin="\n".join(lines))
    assert result.code == 0
    assert result.out == f"{hello}\n{other}\n"
    assert [line.split(":")[0] for line in result.err.splitlines()] == [
        "(a new dialog)",
        "/reset starts over, /quit ends (so does Ctrl-D), Ctrl-C stops an answer.",
        "unknown command /unknown",
    ]


def test_a_stopped_answer_is_kept_as_far_as_it_came(llm: LLM) -> None:
    dialog, key = dialog_of(llm, 30), _StopKey()
    with key:
        key.clear()
        said = []
        for piece in dialog.answer("Hello!", key):
            said.append(piece)
            if len(said) == 3:
                signal.raise_signal(signal.SIGINT)
        assert key
        assert len(said) == 3
        with pytest.raises(KeyboardInterrupt):  # the second press
            signal.raise_signal(signal.SIGINT)
    assert dialog.messages[1] == {"role": "assistant", "content": "".join(said)}
    # The next answer is that of a fresh session over the same messages.
    messages = [*dialog.messages, {"role": "user", "content": "Go on."}]
    assert ask(dialog, "Go on.") == llm.generate(messages, max_tokens=30).text


def test_a_stop_before_the_answer_takes_the_question_back(llm: LLM) -> None:
    dialog, key = dialog_of(llm, 30), _StopKey()
    key.clear()
    key._press(2, None)
    assert list(dialog.answer("Hello!", key)) == []
    assert dialog.messages == []


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose context has room for three tokens after "Hello!" in the template."""
    from edgewright.build.pipeline import deploy

    folder = tmp_path_factory.mktemp("short")
    source = llama_folder(folder / "source")
    return deploy(source, folder / "bundle", recipe="float32", max_context=42, verify=False).path


def test_a_full_context_says_so_and_a_reset_helps(cli: Cli, short: Path) -> None:
    result = cli("chat", short, stdin="Hello!\nHello again!\n")
    assert result.code == 3
    assert result.out.count("\n") == 1
    note, error = result.err.splitlines()
    assert note == "(the context is full: start over with /reset, or deploy with a larger --max-context)"
    the_sentence(error, "tokens and the context holds 42", "/reset")
    llm = LLM.load(short)
    dialog = dialog_of(llm, 100)
    first = ask(dialog, "Hello!")
    with pytest.raises(ContextOverflowError):
        ask(dialog, "Hello again!")
    assert [message["role"] for message in dialog.messages] == ["user", "assistant"]
    dialog.reset()
    assert ask(dialog, "Hello!") == first


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_person_sees_a_prompt_and_may_go_on_after_an_overflow(
    short: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from edgewright.cli import main

    lines = iter(["Hello!", "Hello again!", "/reset", "Hello!"])

    def typed(prompt: str) -> str:
        assert prompt == "> "
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr(sys, "stdin", Terminal())
    assert main(["chat", str(short)]) == 0
    out, err = capsys.readouterr()
    first, second = out.splitlines()
    assert first == second
    assert "source, 42 tokens of context" in err
    assert "edgewright: The dialog has " in err
