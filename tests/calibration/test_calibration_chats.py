"""JSON lines: chats through the model's template, texts as they stand, and the number of the line that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from calibration_data import ASCII, TEMPLATE, golden_tokenizer, load, same, write_lines

from conftest import TOKENIZERS
from edgewright.errors import CalibrationDataError
from edgewright.runtime.template import ChatTemplate, encode_chat

HELLO = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]


def test_chats_go_through_the_template(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "a.jsonl", {"messages": HELLO, "id": 7}, "", {"text": "plain"}, {"messages": HELLO[:1]}
    )
    rows = load(path).rows
    texts = {ASCII.decode(row.tolist()) for row in rows}
    assert texts == {"[user]Hello[assistant]Hi", "plain", "[user]Hello"}
    assert load(path).record["kind"] == "chat"


def test_a_real_template_and_its_special_tokens(tmp_path: Path) -> None:
    tokenizer = golden_tokenizer("bpe_chatml")
    settings = json.loads((TOKENIZERS / "bpe_chatml" / "tokenizer_config.json").read_text(encoding="utf-8"))
    source = settings["chat_template"]
    template = ChatTemplate(source, special_tokens=tokenizer.special_tokens)
    path = write_lines(tmp_path / "a.jsonl", {"messages": HELLO})
    (row,) = load(path, tokenizer, template=template, vocab_size=tokenizer.vocab_size, length=200).rows
    assert row.tolist() == encode_chat(tokenizer, template, HELLO, False)


def test_tools_reach_the_template(tmp_path: Path) -> None:
    template = ChatTemplate("{{ tools[0].name }}:{{ messages[0].content }}", special_tokens={})
    path = write_lines(tmp_path / "a.jsonl", {"messages": HELLO, "tools": [{"name": "clock"}]})
    (row,) = load(path, template=template).rows
    assert ASCII.decode(row.tolist()) == "clock:Hello"


def test_the_seed_decides_which_lines(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", *({"text": f"line {n}"} for n in range(50)))
    assert same(load(path, sequences=5, seed=1), load(path, sequences=5, seed=1))
    assert not same(load(path, sequences=5, seed=1), load(path, sequences=5, seed=2))


def test_line_separators_inside_strings(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a\u2028b\x85c"}\r\n{"text": "de"}\r\n', encoding="utf-8")
    assert len(load(tmp_path / "a.jsonl").rows) == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{broken", r"is not valid JSON at column 2 \(Expecting property name"),
        ('{"text": "a"} {"text": "b"}', r"is not valid JSON at column 15 \(Extra data\)"),
        ("[" * 100_000, "nests brackets too deeply"),
        ('{"text": ' + "1" * 5000 + "}", "holds a number too long"),
        ("[1]", r"neither messages nor text \(it is \[1\]\)"),
        ("null", r"neither messages nor text \(it is None\)"),
        ({"conversations": []}, r"neither messages nor text \(it has the keys 'conversations'\)"),
        ({"messages": HELLO, "text": "a"}, "both messages and text"),
        ({"text": 3}, "a text that is 3"),
        ({"messages": []}, "messages that are no list of objects"),
        ({"messages": "hello"}, "messages that are no list of objects"),
        ({"messages": [{"content": "x"}]}, "a message without a role"),
        ({"messages": HELLO, "tools": 3}, "tools that are no list of objects"),
        ({"text": "\ud800"}, "does not fit the model: the text can't be tokenized"),
    ],
)
def test_a_wrong_line_is_named(line: Any, said: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"text": "good"}, "", line)
    with pytest.raises(CalibrationDataError, match=rf"^Line 3 of a\.jsonl .*{said}"):
        load(path)


def test_what_the_template_refuses(tmp_path: Path) -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", special_tokens={})
    path = write_lines(tmp_path / "a.jsonl", {"messages": HELLO})
    with pytest.raises(CalibrationDataError, match=r"Line 1 of a\.jsonl does not fit .*roles must alternate"):
        load(path, template=template)


def test_a_base_model_has_no_template(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"messages": HELLO})
    with pytest.raises(CalibrationDataError, match=r"Line 1 of a\.jsonl is a chat and the model has no chat template"):
        load(path, template=None)
    assert len(load(write_lines(path, {"text": "abc"}), template=None).rows) == 1
    assert TEMPLATE.source
