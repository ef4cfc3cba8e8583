"""Whatever a case, a line or a command line holds, the answer is a case or a named error."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewright.bench.case.check import problems
from edgewright.bench.case.files import Registry, read_case
from edgewright.bench.case.flags import case_of, parse_flags
from edgewright.bench.case.options import ALL
from edgewright.bench.case.plan import plan_case
from edgewright.bench.case.spec import Case, ModelSpec
from edgewright.bench.case.usecase import parse_usecase
from edgewright.bench.case.writer import to_yaml
from edgewright.errors import EdgewrightError

REGISTRY = Registry({"llm": ModelSpec(name="llm", bundle=Path("gone"), prompt="x"), "vlm": ModelSpec(name="vlm")})
OPTIONS = sorted({name for option in ALL for name in option.names} | {"--concurrent-stride0", "--concurrent-stride1"})
VALUES = st.one_of(
    st.sampled_from(
        ["a", "1", "1,2", "4:0,0:5", "4@0", "e.bin,uint8,0.5,-3", "e.bin,int16,1e400,0", "nan", "", "\0", "ü", "../.."]
    ),
    st.text(max_size=8),
)
#: Words of YAML: keys, values and pieces of syntax.
PIECES = st.sampled_from(
    ["version: 1\n", "models:\n", "  m: {bundle: b}\n", "  s: {simulated: {decode_ms: 1}, prompt_tokens: 3}\n",
     "dialogs:\n", "  - {model: m}\n", "  - {model: s, max_tokens: 4}\n", "  - model: s\n", "    timeline: '1:0,0:9'\n",
     "    weight: .nan\n", "    weight: 1e309\n", "run: {timeout_s: .inf}\n", "scheduler: {discipline: free}\n",
     "runner: {command: adb}\n", "runner: {command: [], shells: 3}\n", "runner: {command: x, pull: y}\n",
     "a: [", "}", ": ", "- ", "\t", "\0", "é", "&a 1\n", "!!binary x\n",
     "? {a: b}\n", "name: 2020-01-01\n", "name: {}\n"]
)  # fmt: skip


def follow(case: Case) -> None:
    """Do with a case what is done before it runs."""
    problems(case, need_files=False)
    problems(case)
    plan_case(case).to_json()
    to_yaml(case, Path("/cases"))


@given(st.lists(PIECES, max_size=14).map("".join))
def test_files(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("case.yaml", "case.json"):
            path = Path(folder) / name
            path.write_text(text, encoding="utf-8")
            try:
                case = read_case(path)
            except EdgewrightError:
                continue
            follow(case)


@given(st.lists(st.one_of(st.sampled_from(OPTIONS), VALUES), max_size=14))
def test_command_lines(words: list[str]) -> None:
    try:
        case = case_of(parse_flags(words), REGISTRY)
    except EdgewrightError:
        return
    except KeyError:
        assert {"-h", "--help"} & set(words)
        return
    follow(case)


@given(st.lists(st.one_of(st.sampled_from(OPTIONS), VALUES), max_size=6))
def test_command_lines_of_a_dialog(words: list[str]) -> None:
    try:
        case = case_of(parse_flags(["-c", "gone.json", "-p", "x", "--concurrent", *words]), REGISTRY)
    except EdgewrightError:
        return
    follow(case)


@given(st.text(max_size=10), st.lists(st.one_of(st.sampled_from(OPTIONS), VALUES), max_size=6))
def test_use_case_lines(start: str, words: list[str]) -> None:
    for line in (start, f"a: llm,vlm {' '.join(words)}", f"{start}: llm {start}"):
        try:
            case = parse_usecase(line, REGISTRY, "cases.txt:1")
        except EdgewrightError:
            continue
        if case is not None:
            follow(case)


@pytest.mark.parametrize("text", ["[" * 10_000, '{"a":' * 100_000, "- " * 5000, "a: " * 5000, "{" * 5000])
def test_deep_files(tmp_path: Path, text: str) -> None:
    for name in ("case.yaml", "case.json"):
        (tmp_path / name).write_text(text)
        with pytest.raises(EdgewrightError, match=r"case\.(yaml|json):1: not valid"):
            read_case(tmp_path / name)
