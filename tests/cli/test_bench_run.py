from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dialog_cases import make_files, mixed_case
from edgewright.bench.case.spec import Case
from edgewright.bench.case.writer import to_yaml
from edgewright.bench.records import JOBS, STEPS, read_run
from edgewright.cli import bench_plot, bench_run
from edgewright.errors import OutputError

from .conftest import Cli
from .tiny import the_sentence

MODELS = """
version: 1
models:
  llm: {simulated: {prefill_ms: 30, decode_ms: 14.6}, prompt_tokens: 273, max_tokens: 40}
  vlm: {simulated: {prefill_ms: 180, decode_ms: 71}, prompt_tokens: 273, max_tokens: 40}
  short: {simulated: {prefill_ms: 1, decode_ms: 1, context: 64}, prompt_tokens: 50, max_tokens: 10}
"""
USECASES = """
# Three dialogs, and two.
llm_2vlm: llm,vlm,vlm --iter 2 --concurrent-stride 4,2,1
two: llm,vlm
"""
SIMULATED = """
version: 1
name: sim
models:
  llm: {simulated: {prefill_ms: 30, decode_ms: 14.6}}
dialogs:
  - {name: a, model: llm, input: {prompt_tokens: 10}, max_tokens: 70, weight: 3}
  - {name: b, model: llm, input: {prompt_tokens: 10}, max_tokens: 30}
"""
NEVER = """
version: 1
name: never
models:
  small: {simulated: {prefill_ms: 1, decode_ms: 1, context: 64}}
dialogs:
  - {model: small, input: {prompt_tokens: 50}, max_tokens: 10, iterations: 2, reset: never}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, text in {
        "models.yaml": MODELS,
        "cases.txt": USECASES,
        "sim.yaml": SIMULATED,
        "never.yaml": NEVER,
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_case_is_run_and_its_table_printed(cli: Cli, place: Path) -> None:
    result = cli("bench", "run", place / "sim.yaml", "-o", place / "out", "--run-id", "x")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0] == "sim / x: complete, simulated: times are a cost model's, not a device's"
    assert lines[-1] == str(place / "out" / "sim" / "x")
    rows = {line.split()[0]: line.split()[1] for line in lines if line[:2] in ("a ", "b ")}
    assert rows == {"a": "1/1", "b": "1/1"}
    assert "run ... " in result.err
    assert {path.name for path in (place / "out" / "sim" / "x").iterdir()} >= {
        STEPS,
        JOBS,
        "summary.json",
        "trace.json",
        "page.html",
    }
    assert {"accelerator.png", "shares.svg"} <= {path.name for path in (place / "out/sim/x/figures").iterdir()}


def test_a_run_is_as_good_without_figures(cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("bench", "run", place / "sim.yaml", "-o", place / "out", "--run-id")
    assert cli(*words, "none", "--no-figures").code == 0
    assert not (place / "out/sim/none/figures").exists()
    with monkeypatch.context() as patch:
        patch.setattr(bench_run, "find_spec", lambda name: None)
        result = cli(*words, "absent")
    assert result.code == 0
    assert "edgewright[report]" in result.err
    assert not (place / "out/sim/absent/figures").exists()

    def full(*_: object) -> None:
        raise OutputError("The disk is full.")

    monkeypatch.setattr(bench_plot, "draw", full)
    result = cli(*words, "full")
    assert result.code == 0
    assert "could not be drawn: The disk is full." in result.err


def test_json_is_the_summaries(cli: Cli, place: Path) -> None:
    result = cli("bench", "run", place / "sim.yaml", "-o", place / "out", "--json", "--quiet", "--no-figures")
    assert (result.code, result.err) == (0, "")
    (found,) = json.loads(result.out)
    assert found["status"] == "complete"
    folder = Path(found.pop("folder"))
    assert json.loads((folder / "summary.json").read_text()) == found


def test_use_cases_need_their_models(cli: Cli, place: Path) -> None:
    result = cli("bench", "run", place / "cases.txt", "-o", place / "out")
    assert result.code == 2
    the_sentence(result.err, "--models")
    assert not (place / "out").exists()


def test_use_cases_are_run_one_after_the_other(cli: Cli, place: Path) -> None:
    words = ("bench", "run", place / "cases.txt", "--models", place / "models.yaml", "-o", place / "out")
    result = cli(*words, "--run-id", "r", "--iter", "3", "--no-solo", "--repeats", "2", "--json", "--no-figures")
    assert result.code == 0, result.err
    first, second = json.loads(result.out)
    assert (first["case"], second["case"]) == ("llm_2vlm", "two")
    # A line's own iterations win over the command line's.
    assert [one["jobs"] for one in first["dialogs"].values()] == [4, 4, 4]
    assert [one["jobs"] for one in second["dialogs"].values()] == [6, 6]
    assert read_run(place / "out" / "two" / "r").parts == [("run", 0), ("run", 1)]
    assert first["segments"][0]["weights"] == {"D0": 4.0, "D1": 2.0, "D2": 1.0}


def test_only_some_cases(cli: Cli, place: Path) -> None:
    words = ("bench", "run", place / "cases.txt", "--models", place / "models.yaml", "-o", place / "out")
    assert cli(*words, "--only", "two", "--quiet", "--no-figures").code == 0
    assert [path.name for path in (place / "out").iterdir()] == ["two"]
    result = cli(*words, "--only", "tow")
    assert result.code == 2
    the_sentence(result.err, "'tow'", "two")


def test_an_existing_run(cli: Cli, place: Path) -> None:
    words = ("bench", "run", place / "sim.yaml", "-o", place / "out", "--run-id", "x", "--quiet", "--no-figures")
    assert cli(*words).code == 0
    before = (place / "out" / "sim" / "x" / STEPS).read_bytes()
    result = cli(*words)
    assert result.code == 4
    the_sentence(result.err, "exists already", "--overwrite")
    assert (place / "out" / "sim" / "x" / STEPS).read_bytes() == before
    assert cli(*words, "--overwrite").code == 0


def test_nothing_runs_where_one_case_is_wrong(cli: Cli, place: Path) -> None:
    (place / "cases.txt").write_text("good: llm,vlm\nbad: llm,short --concurrent-stride 0,0\n")
    result = cli("bench", "run", place / "cases.txt", "--models", place / "models.yaml", "-o", place / "out")
    assert result.code == 2
    the_sentence(result.err, "all weights are 0")
    assert not (place / "out").exists()


def test_a_run_that_fails(cli: Cli, place: Path) -> None:
    """Its one dialog answers once; the second query doesn't fit into its context."""
    result = cli("bench", "run", place / "never.yaml", "-o", place / "out")
    assert result.code == 3
    assert "D0: 1 of 2 jobs failed." in result.err
    (place / "never.yaml").write_text(NEVER.replace("name: never", "name: fast\nrun: {on_error: fail-fast}"))
    assert cli("bench", "run", place / "never.yaml", "-o", place / "out").code == 1


def test_a_bad_run_id(cli: Cli, place: Path) -> None:
    result = cli("bench", "run", place / "sim.yaml", "-o", place / "out", "--run-id", "../up")
    assert result.code == 2
    the_sentence(result.err, "run name")


def test_exit_codes_of_several_cases() -> None:
    assert bench_run.worst([0, 0]) == 0
    assert bench_run.worst([1, 1]) == 1
    assert bench_run.worst([0, 1]) == bench_run.worst([3, 0]) == bench_run.worst([1, 3]) == 3
    assert bench_run.worst([0, 130]) == 130


@pytest.mark.parametrize(("text", "part"), [("", "The runner has no command"), ("'unbalanced", "--runner: a quote in")])
def test_a_runner_without_words(cli: Cli, place: Path, text: str, part: str) -> None:
    result = cli("bench", "run", place / "sim.yaml", "--runner", text)
    assert result.code == 2
    the_sentence(result.err, part)


def test_the_options_of_genie_t2t_run_have_a_verb_of_their_own(cli: Cli, place: Path) -> None:
    result = cli("bench", "run", "--", "-c", place, "-p", "x")
    assert result.code == 2
    the_sentence(result.err, "edgewright genie-t2t-run", "bench convert -- ...")


def test_every_run_folder_is_looked_at_before_the_first_run(cli: Cli, place: Path) -> None:
    words = ("bench", "run", place / "cases.txt", "--models", place / "models.yaml", "-o", place / "out", "--run-id")
    assert cli(*words, "x", "--only", "two", "--no-figures").code == 0
    result = cli(*words, "x")
    assert (result.code, result.out) == (4, "")
    the_sentence(result.err, "two/x exists already")
    assert not (place / "out" / "llm_2vlm").exists()
    shutil.rmtree(place / "out" / "two" / "x")
    (place / "out" / "two" / "x").mkdir()
    result = cli(*words, "x", "--overwrite")
    assert result.code == 4
    the_sentence(result.err, "two/x is no run folder")
    assert not (place / "out" / "llm_2vlm").exists()


def test_json_has_the_cases_before_one_that_could_not_be_written(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgewright.bench import concurrent

    run_case = concurrent.run_case

    def full(case: Case, *args: Any, **options: Any) -> Any:
        if case.name == "two":
            raise OutputError("No space is left while writing steps.jsonl: free some, or choose another disk.")
        return run_case(case, *args, **options)

    monkeypatch.setattr(concurrent, "run_case", full)
    models = place / "models.yaml"
    result = cli("bench", "run", place / "cases.txt", "--models", models, "-o", place / "out", "--json", "--no-figures")
    assert result.code == 4
    the_sentence(result.err, "No space is left")
    assert [one["case"] for one in json.loads(result.out)] == ["llm_2vlm"]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--repeats", "1001"], "repeats must be a whole number from 1 to 1000, not 1001"),
        (["--iter", str(2**31)], "iterations must be a whole number from 1 upwards, not 2147483648"),
    ],
)
def test_numbers_of_the_command_line_are_those_of_a_case_file(
    cli: Cli, place: Path, options: list[str], part: str
) -> None:
    result = cli("bench", "run", place / "sim.yaml", "-o", place / "out", *options)
    assert result.code == 2
    the_sentence(result.err, part)
    assert not (place / "out").exists()


def test_real_dialogs(cli: Cli, tmp_path: Path) -> None:
    case = mixed_case(make_files(tmp_path / "files"), warmup=0)
    (tmp_path / "case.yaml").write_text(to_yaml(case, tmp_path))
    result = cli("bench", "run", tmp_path / "case.yaml", "-o", tmp_path / "out", "--json", "--no-solo", "--quiet")
    assert result.code == 0, result.err
    (found,) = json.loads(result.out)
    assert [one["generated_tokens"] for one in found["dialogs"].values()] == [48, 24, 12]
    assert found["simulated"] is False
