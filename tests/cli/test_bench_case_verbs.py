"""`bench plan`, `bench validate`, `bench convert`: three ways of writing a case, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgewright.bench.case import read_cases

from .conftest import Cli
from .tiny import the_sentence

GOOD = """\
version: 1
models:
  slow: {simulated: {prefill_ms: 20, decode_ms: 71}, prompt_tokens: 273, max_tokens: 64}
  fast: {simulated: {prefill_ms: 5, decode_ms: 14.6}, prompt_tokens: 33, max_tokens: 64}
"""
CASE = GOOD + "dialogs:\n  - {model: fast, weight: 4}\n  - {model: slow, timeline: '2:0,0:5000,2:20000'}\n"
LINES = "one: fast,slow,slow --iter 2 --concurrent-stride 4,2,1\ntwo: fast\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a case, a registry and use cases."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "case.yaml").write_text(CASE)
    (tmp_path / "models.yaml").write_text(GOOD)
    (tmp_path / "cases.txt").write_text(LINES)
    return tmp_path


def test_validate_finds_nothing(cli: Cli, folder: Path) -> None:
    result = cli("bench", "validate", "case.yaml")
    assert (result.code, result.out, result.err) == (0, "case: nothing is wrong\n", "")
    result = cli("bench", "validate", "cases.txt", "--models", "models.yaml", "--json")
    assert (result.code, json.loads(result.out)) == (0, {"cases": ["one", "two"], "problems": []})


def test_validate_lists_everything(cli: Cli, folder: Path) -> None:
    (folder / "case.yaml").write_text(CASE + "  - {model: fsat, weight: x}\nrun: {repeats: 0}\n")
    result = cli("bench", "validate", "case.yaml")
    assert result.code == 2
    assert [line.partition(" ")[0] for line in result.out.splitlines()] == [
        "case.yaml:8:",
        "case.yaml:8:",
        "case.yaml:9:",
    ]
    assert "did you mean fast?" in result.out
    (folder / "case.yaml").write_text(CASE + "  - {model: fast, max_tokens: 5000, weight: 0}\n")
    result = cli("bench", "validate", "case.yaml", "--json")
    assert result.code == 2
    found = json.loads(result.out)["problems"]
    assert [problem["where"] for problem in found] == ["case.yaml:6", "case.yaml:8"]
    assert "D2 is always 0" in found[0]["text"]
    assert "max_tokens 5000 need more than the model's context of 4096" in found[1]["text"]


def test_validate_of_a_command_line(cli: Cli, folder: Path) -> None:
    result = cli("bench", "validate", "--", "genie-t2t-run", "-c", "gone.json", "-p", "x")
    assert result.code == 2
    (line,) = result.out.splitlines()
    assert "gone.json is no file, and names no bundle that runs here" in line
    result = cli("bench", "validate", "--no-files", "--", "-c", "bundle", "-p", "x", "-e", "f")
    assert result.code == 2
    the_sentence(result.err, "--embedding_file and --prompt both say")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "Give a CASE, or the words of genie-t2t-run after --"),
        (["case.yaml", "--", "-c", "a", "-p", "x"], "Give a CASE, or the words"),
        (["cases.txt"], "give it with --models"),
        (["gone.txt"], "gone.txt does not exist: give a case file (.yaml"),
        (["."], ". is a folder: give a case file"),
        (["gone.txt", "--models", "models.yaml"], "gone.txt does not exist"),
        (["cases.txt", "--models", "models.yaml", "--only", "tow"], "no case 'tow' (did you mean two?)"),
        (["case.yaml", "--runner", "a 'b"], "a quote in"),
        (["case.yaml", "--iter", "0"], "'0' is not a whole number from 1"),
        (["case.yaml", "--modles", "x"], "did you mean --models?"),
        (["--models", "m", "--", "-c", "a", "-p", "x", "--models", "n"], "--models stands before and after --"),
        (["--runner", "m", "--", "-c", "a", "-p", "x", "--runner", "n"], "--runner stands before and after --"),
    ],
)
def test_wrong_arguments(cli: Cli, folder: Path, arguments: list[str], part: str) -> None:
    for action in ("validate", "plan", "convert"):
        result = cli("bench", action, *arguments)
        assert (result.code, result.out) == (2, "")
        the_sentence(result.err, part)


def test_plan_shows_dialogs_and_shares(cli: Cli, folder: Path) -> None:
    result = cli("bench", "plan", "case.yaml")
    assert (result.code, result.err) == (0, "")
    assert "case: 2 dialogs, weighted on a simulated device" in result.out
    assert "273 simulated tokens" in result.out
    assert [line.split() for line in result.out.splitlines() if " to " in line and "%" in line] == [
        ["0", "to", "5000", "4", "=", "66.7", "%", "2", "=", "33.3", "%"],
        ["5000", "to", "20000", "4", "=", "100.0", "%", "0", "=", "0.0", "%"],
        ["20000", "to", "the", "end", "4", "=", "66.7", "%", "2", "=", "33.3", "%"],
    ]


def test_plan_as_json(cli: Cli, folder: Path) -> None:
    plan = json.loads(cli("bench", "plan", "cases.txt", "--models", "models.yaml", "--only", "one", "--json").out)
    assert [dialog["iterations"] for dialog in plan["dialogs"]] == [2, 2, 2]
    assert [dialog["bound"] for dialog in plan["dialogs"]] == [2, 5, 12]
    both = json.loads(cli("bench", "plan", "cases.txt", "--models", "models.yaml", "--json", "--iter", "9").out)
    assert [[dialog["iterations"] for dialog in one["dialogs"]] for one in both] == [[2, 2, 2], [9]]


def test_plan_of_a_command_line_shows_encodings(cli: Cli, folder: Path) -> None:
    result = cli(
        "bench", "plan", "--no-files", "--runner", "adb shell t2t", "--", "-c", "vlm.json", "-e",
        "in.bin,uint16,0.00031563572701998055,-32937", "-t", "lut.bin,uint8,0.001585477963089943,-129",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert "1 dialog, weighted by adb shell t2t" in result.out
    assert "[-10.3961, 10.2891]" in result.out
    assert "5.02312579776 * code + 32289.0167721" in result.out


def test_plan_refuses_what_is_wrong(cli: Cli, folder: Path) -> None:
    (folder / "case.yaml").write_text(CASE.replace("weight: 4", "weight: 0"))
    result = cli("bench", "plan", "case.yaml")
    assert (result.code, result.out) == (2, "")
    the_sentence(result.err, "the weight of D0 is always 0")


def test_convert_use_cases_into_files(cli: Cli, folder: Path) -> None:
    result = cli("bench", "convert", "cases.txt", "--models", "models.yaml", "-o", "out")
    assert (result.code, result.out) == (0, "")
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["one.yaml", "two.yaml"]
    [case] = read_cases(folder / "out" / "one.yaml")
    assert [dialog.timeline.at(0) for dialog in case.dialogs] == [4, 2, 1]
    assert {dialog.iterations for dialog in case.dialogs} == {2}
    before = (folder / "out" / "one.yaml").read_bytes()
    again = cli("bench", "convert", "cases.txt", "--models", "models.yaml", "-o", "out", "--iter", "3")
    assert again.code == 4
    the_sentence(again.err, "one.yaml exists already", "--overwrite")
    assert (folder / "out" / "one.yaml").read_bytes() == before
    assert cli("bench", "convert", "out/one.yaml", "-o", "out/one.yaml", "--overwrite").code == 0
    assert (folder / "out" / "one.yaml").read_bytes() == before


def test_convert_a_command_line(cli: Cli, folder: Path) -> None:
    command = (
        "--concurrent --priority 200 --iterations 2 --profile p.json -c llm.json --prompt_file prompt.txt -t "
        "t.bin,uint16,0.5,-3 --concurrent-config vlm.json --concurrent-embed e.bin,uint16,0.25,-7 "
        "--concurrent-stride0 0:0,1:5000 --concurrent-stride1 4:0,0:5000,4:20000"
    )
    result = cli("bench", "convert", "--", "./genie-t2t-run", *command.split())
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "version: 1\n"
        "name: genie-t2t-run\n"
        "models:\n"
        "  llm: {genie: llm.json}\n"
        '  vlm: {genie: vlm.json, table: "t.bin,uint16,0.5,-3"}\n'
        "dialogs:\n"
        '  - {model: llm, input: {prompt_file: prompt.txt}, iterations: 2, priority: 200, timeline: "0:0,1:5000"}\n'
        '  - {model: vlm, input: {embedding: "e.bin,uint16,0.25,-7"}, iterations: 2, priority: 200, timeline: '
        '"4:0,0:5000,4:20000"}\n'
        "run: {warmup: 0, solo: false}\n"
    )
    assert cli("bench", "convert", "-o", "c.yaml", "--", *command.split()).code == 0
    assert (folder / "c.yaml").read_text() == result.out
    assert not list(folder.glob(".c*"))


def test_convert_to_json(cli: Cli, folder: Path) -> None:
    assert cli("bench", "convert", "case.yaml", "-o", "one.json").code == 0
    assert json.loads((folder / "one.json").read_text())["dialogs"][0] == {
        "model": "fast", "input": {"prompt_tokens": 33}, "max_tokens": 64, "weight": 4,
    }  # fmt: skip
    again = cli("bench", "convert", "one.json")
    assert (again.code, again.out) == (0, cli("bench", "convert", "case.yaml").out)


def test_convert_of_several_cases_needs_a_folder(cli: Cli, folder: Path) -> None:
    for output in ([], ["-o", "one.yaml"]):
        result = cli("bench", "convert", "cases.txt", "--models", "models.yaml", *output)
        assert result.code == 2
        the_sentence(result.err, "2 ", "a folder")


def test_bench_of_a_bundle_is_as_it_was(cli: Cli, folder: Path) -> None:
    result = cli("bench", "--help")
    assert "actions, for several dialogs on one accelerator" in result.out
    assert "usage: edgewright bench plan" in cli("bench", "plan", "--help").out
    the_sentence(cli("bench", "nowhere").err, "nowhere does not exist")
    result = cli("bench", "rn", "case.yaml")
    assert result.code == 2
    the_sentence(result.err, "'rn' is no action of bench (did you mean run?)", "validate, convert")
    the_sentence(cli("bench", "./plan").err, "plan does not exist")
