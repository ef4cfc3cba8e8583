"""Whole runs against the stand-in, in both process modes, here and behind stand-ins of `adb` and `ssh`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edgewright.bench.case.problems import CaseError
from edgewright.bench.case.spec import InputSpec, RunnerSpec
from edgewright.bench.external import run_external
from edgewright.bench.records import RunResult, read_run, summarize, write_outputs
from edgewright.errors import OutputError
from edgewright.genie import read_profile
from edgewright.runtime.scheduling.timeline import Timeline

from .conftest import STAND_IN, Desk, jobs_of, local, runners, states_of, three

NASTY = 'it\'s "$(touch pwned)"; touch pwned & `touch pwned` \\ * ~ #'


def figures(result: RunResult, name: str, figure: str) -> list[float]:
    return [job["genie"][figure] for job in jobs_of(result.folder) if job["dialog"] == name]


@pytest.mark.parametrize("kind", ["local", "adb", "ssh"])
def test_a_whole_run_in_one_process(desk: Desk, out: Path, kind: str) -> None:
    here = kind == "local"
    case = three(desk, warmup=int(here), solo=here, repeats=2 if here else 1)
    result = run_external(case, runners(desk)[kind], out)
    assert (result.status, result.exit_code) == ("complete", 0)
    names = ("warmup-0", "solo-d0", "solo-d1", "solo-d2", "run-0", "run-1") if here else ("run-0",)
    assert states_of(result.folder) == dict.fromkeys(names, "complete")
    count = 2 * case.run.repeats
    for number, name in enumerate(("D0", "D1", "D2")):
        assert figures(result, name, "num-generated-tokens") == [3 + number] * count
        one = result.summary["dialogs"][name]
        assert (one["jobs"], one["complete"], one["generated_tokens"]) == (count, count, count * (3 + number))
        assert (one["slowdown"] is not None) == here
    assert result.summary["dialogs"]["D0"]["prompt_tokens"] == count * 3
    assert result.summary["dialogs"]["D1"]["prompt_tokens"] == count * 5
    first = result.folder / "executions" / "run-0"
    for name in ("profile.json", "stdout.txt", "stderr.txt"):
        assert (result.folder / name).read_bytes() == (first / name).read_bytes()
    profile = json.loads((result.folder / "profile.json").read_text())
    assert [component["name"] for component in profile["components"]] == ["dialog0", "dialog1", "dialog2"]
    assert (first / "stderr.txt").read_text().count(" us\n") == 6


def test_what_no_profile_tells_is_null(desk: Desk, out: Path) -> None:
    result = run_external(three(desk), local(), out)
    one, system = result.summary["dialogs"]["D1"], result.summary["system"]
    for name in ("ttft_ms", "itl_ms", "queue_ms", "host_ms", "decode_tokens_per_s", "worst_gap_quanta", "quanta"):
        assert one[name] is None, name
    for name in ("saturated", "deadlines", "deadline_misses", "most_held", "paused_ms", "solo", "slowdown"):
        assert one[name] is None, name
    for name in ("busy", "held_ms", "jain_service", "jain_raw", "jain_progress", "peak_rss_bytes", "energy_j"):
        assert system[name] is None, name
    assert result.summary["segments"] == []
    assert system["makespan_ms"] > 0
    assert system["tokens_per_s"] == pytest.approx(2 * (3 + 4 + 5) / system["makespan_ms"] * 1e3, rel=1e-4)


def test_the_librarys_rate_stands_beside_the_recomputed_one(desk: Desk, out: Path) -> None:
    result = run_external(desk.case(desk.llm(tokens=8, step_ms=4)), local(), out)
    (job,) = jobs_of(result.folder)
    spent = job["genie"]["token-generation-time"]
    assert job["genie"]["token-generation-rate"] == pytest.approx(1e6 / (spent // 8))
    assert job["recomputed"]["token-generation-rate"] == pytest.approx(7e6 / spent)
    one = result.summary["dialogs"]["D0"]
    assert one["genie"]["token-generation-rate"]["mean"] == pytest.approx(1e6 / (spent // 8), rel=1e-5)
    assert one["recomputed"]["token-generation-rate"]["mean"] == pytest.approx(7e6 / spent, rel=1e-5)
    timing = (result.folder / "timing.txt").read_text()
    assert "(n-1)/T" in timing
    assert f"{7e6 / spent:.4g}" in timing


@pytest.mark.parametrize("kind", ["local", "adb", "ssh"])
def test_a_process_for_each_dialog(desk: Desk, out: Path, kind: str) -> None:
    case = three(desk)
    dialogs = [replace(dialog, timeline=Timeline.constant(1)) for dialog in case.dialogs]
    dialogs[2] = replace(dialogs[2], iterations=1)
    result = run_external(replace(case, dialogs=tuple(dialogs)), runners(desk, "dialog")[kind], out)
    assert (result.status, result.exit_code) == ("complete", 0)
    assert sorted(states_of(result.folder)) == [
        *("run-0-d0-i0", "run-0-d0-i1", "run-0-d1-i0", "run-0-d1-i1", "run-0-d2-i0")
    ]
    jobs = {(job["dialog"], job["iteration"]): job for job in jobs_of(result.folder)}
    assert len(jobs) == 5
    assert jobs["D0", 0]["end_ns"] < jobs["D0", 1]["ready_ns"]
    # The answers are told apart, so the logs have them.
    log = (result.folder / "dialogs" / "D1.log").read_text()
    assert log.count(" w0 w1 w2 w3\n") == 2
    joined = read_profile(result.folder / "profile.json")
    assert [one.name for one in joined.components] == ["dialog0", "dialog1", "dialog2"]
    assert [len(one.queries) for one in joined.components] == [2, 2, 1]
    assert joined.components[1].queries[1].start_us == pytest.approx(jobs["D1", 1]["ready_ns"] / 1e3, abs=2)
    alone = read_profile(result.folder / "executions" / "run-0-d2-i0" / "profile.json")
    assert joined.components[2].queries[0].kpis == alone.components[0].queries[0].kpis


def test_processes_start_when_the_case_says(desk: Desk, out: Path) -> None:
    case = desk.case(desk.llm(tokens=1), desk.llm("second", tokens=1), iterations=2)
    late = replace(case.dialogs[1], start_ms=60, think_ms=30)
    result = run_external(replace(case, dialogs=(case.dialogs[0], late)), local(process="dialog"), out)
    told = {one["name"]: one for one in result.summary["external"]["executions"]}
    assert told["run-0-d1-i0"]["started_ms"] >= 60
    assert told["run-0-d1-i1"]["started_ms"] >= told["run-0-d1-i0"]["ended_ms"] + 30


@pytest.mark.parametrize("kind", ["local", "adb", "ssh"])
@pytest.mark.parametrize("process", ["run", "dialog"])
def test_hostile_words_reach_the_program_whole(desk: Desk, out: Path, kind: str, process: str, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(desk.folder)
    config = desk.config(f"{NASTY.replace('/', '')}.json", tokens=2)
    case = desk.case(replace(desk.llm(), genie=config))
    dialog = replace(case.dialogs[0], input=InputSpec(prompt=f"{NASTY}\nsecond line"))
    result = run_external(replace(case, dialogs=(dialog,)), runners(desk, process)[kind], out)
    assert result.status == "complete"
    (name,) = states_of(result.folder)
    spoken = (result.folder / "executions" / name / "stdout.txt").read_text()
    assert f"[PROMPT]: {NASTY}\nsecond line\n" in spoken
    assert not list(desk.folder.rglob("pwned"))


def test_the_run_folder_can_be_read(desk: Desk, out: Path) -> None:
    result = run_external(three(desk, solo=True), desk.adb(), out, run_id="r")
    assert result.folder == out / "case" / "r"
    run = read_run(result.folder)
    assert run.notes == ()
    assert run.dialogs == ("D0", "D1", "D2")
    assert run.case["runner"]["command"] == list(desk.adb().command)
    assert run.env["external"]["shells"] == 1
    assert run.summary == result.summary == summarize(result.folder)
    before = (result.folder / "profile.json").read_bytes()
    assert write_outputs(result.folder) == result.summary
    assert (result.folder / "profile.json").read_bytes() == before
    trace = json.loads((result.folder / "trace.json").read_text())
    queries = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(queries) == 3 + 6
    assert all(event["dur"] > 0 for event in queries)
    command = (result.folder / "executions" / "run-0" / "command.txt").read_text()
    assert " --concurrent --iterations 2 --profile " in command


def test_a_profile_on_the_device_is_no_reason_to_remove_it(desk: Desk, out: Path) -> None:
    case = desk.case(desk.llm())
    run_external(case, desk.adb(), out, run_id="r")
    (there,) = desk.device.iterdir()
    assert there.name == "edgewright-case-r-run-0.json"
    before = there.read_bytes()
    other = desk.folder / "elsewhere"
    with pytest.raises(OutputError, match=r"edgewright-case-r-run-0\.json already"):
        run_external(case, desk.adb(), other, run_id="r")
    assert not other.exists()
    result = run_external(case, desk.adb(), other, run_id="r", overwrite=True)
    assert result.status == "complete"
    assert there.read_bytes() == before
    assert len(list(desk.device.iterdir())) == 2
    # Without a chosen name each run has its own.
    run_external(case, desk.adb(), out)
    assert len(list(desk.device.iterdir())) == 3


def test_a_run_folder_is_not_replaced(desk: Desk, out: Path) -> None:
    case = desk.case(desk.llm())
    run_external(case, local(), out, run_id="r")
    with pytest.raises(OutputError, match="exists already"):
        run_external(case, local(), out, run_id="r")
    assert run_external(case, local(), out, run_id="r", overwrite=True).status == "complete"


def test_a_case_that_doesnt_fit_starts_nothing(desk: Desk, out: Path) -> None:
    case = desk.case(desk.llm(), desk.llm("second"))
    with pytest.raises(CaseError, match="by which flag a second dialog takes a prompt file"):
        run_external(case, local(), out)
    assert not out.exists()
    assert run_external(case, local(prompt_flag="--concurrent-prompt_file"), out).status == "complete"


def test_one_dialog_needs_no_concurrent_program(desk: Desk, out: Path) -> None:
    result = run_external(desk.case(desk.llm(tokens=2)), local(), out)
    assert "--concurrent" not in (result.folder / "executions" / "run-0" / "command.txt").read_text()
    assert "\n w0 w1\n" in (result.folder / "dialogs" / "D0.log").read_text()
    often = run_external(desk.case(desk.llm(tokens=2), iterations=2), local(), out)
    assert "--concurrent --iterations 2" in (often.folder / "executions" / "run-0" / "command.txt").read_text()
    assert (often.folder / "dialogs" / "D0.log").read_text().count("\n w0 w1\n") == 2


def test_no_tokens(desk: Desk, out: Path) -> None:
    result = run_external(desk.case(desk.llm(tokens=0)), local(), out)
    one = result.summary["dialogs"]["D0"]
    assert (result.status, one["generated_tokens"]) == ("complete", 0)
    assert "token-generation-rate" not in one["recomputed"]


def test_figures_on_stdout(desk: Desk, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "old-figures")
    result = run_external(desk.case(desk.llm()), local(), out)
    (one,) = result.summary["external"]["executions"]
    (job,) = jobs_of(result.folder)
    (printed,) = one["printed"]
    for name in ("time-to-first-token", "token-generation-time", "num-generated-tokens"):
        assert printed[name] == job["genie"][name]
    assert one["answers"] == 1


def test_a_profile_without_its_start(desk: Desk, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "no-zero")
    result = run_external(desk.case(desk.llm()), local(process="dialog"), out)
    (job,) = jobs_of(result.folder)
    (one,) = result.summary["external"]["executions"]
    assert job["ready_ns"] >= one["started_ms"] * 1e6


def test_words_besides_the_cases(desk: Desk, out: Path) -> None:
    result = run_external(desk.case(desk.llm()), local(flags=("--log", "error")), out)
    assert result.status == "complete"
    wrong = run_external(desk.case(desk.llm()), local(flags=("--log", "loud")), out)
    assert states_of(wrong.folder) == {"run-0": "usage"}
    assert "Invalid --log argument: loud" in wrong.summary["dialogs"]["D0"]["error"]


def test_a_pull_command_of_ones_own(desk: Desk, out: Path) -> None:
    runner = RunnerSpec(command=STAND_IN, pull=("cp", "{remote}", "{local}"), profile_dir=str(desk.device))
    result = run_external(desk.case(desk.llm()), runner, out)
    assert result.status == "complete"
    assert len(list(desk.device.iterdir())) == 1
