"""What fails: dialogs, programs, devices, copies, time limits; and what a run folder has of it all the same."""

from __future__ import annotations

import shlex
import signal
import threading
import time
from pathlib import Path

import pytest

from edgewright.bench.case.spec import RunnerSpec
from edgewright.bench.external import run_external
from edgewright.bench.records import summarize

from .conftest import STAND_IN, Desk, jobs_of, local, runners, states_of, three


@pytest.mark.parametrize(
    ("fail", "state", "text"),
    [
        ("create", "exit-code", "Failed to create the dialog"),
        ("context", "context-exceeded", "status 4"),
        ("throw", "exit-code", "Failed to query the dialog"),
        ("abort", "aborted", "Query successfully aborted"),
        ("segv", "signal", "SIGSEGV"),
    ],
)
def test_a_failing_dialog_of_its_own_process(desk: Desk, out: Path, fail: str, state: str, text: str) -> None:
    case = desk.case(desk.llm(), desk.llm("bad", fail=fail))
    result = run_external(case, local(process="dialog"), out)
    assert (result.status, result.exit_code) == ("partial", 3)
    assert states_of(result.folder) == {"run-0-d0-i0": "complete", "run-0-d1-i0": state}
    good, bad = (result.summary["dialogs"][name] for name in ("D0", "D1"))
    assert (good["complete"], good["error"]) == (1, None)
    assert (bad["complete"], bad["failed"]) == (0, 1)
    assert text in bad["error"]
    assert any(text in finding for finding in result.summary["findings"])


@pytest.mark.parametrize(("kind", "fail", "state"), [("adb", "segv", "signal"), ("ssh", "context", "context-exceeded")])
def test_a_failing_dialog_on_a_device(desk: Desk, out: Path, kind: str, fail: str, state: str) -> None:
    case = desk.case(desk.llm(), desk.llm("bad", fail=fail))
    result = run_external(case, runners(desk, "dialog")[kind], out)
    assert (result.status, result.exit_code) == ("partial", 3)
    assert states_of(result.folder) == {"run-0-d0-i0": "complete", "run-0-d1-i0": state}


@pytest.mark.parametrize("fail", ["context", "throw", "segv"])
def test_a_failing_dialog_takes_its_process_along(desk: Desk, out: Path, fail: str) -> None:
    """The stock program writes a profile on success only, so the others' results are lost with it."""
    result = run_external(desk.case(desk.llm(), desk.vlm(fail=fail)), local(), out)
    assert (result.status, result.exit_code) == ("failed", 1)
    assert not (result.folder / "profile.json").exists()
    assert (result.folder / "stdout.txt").read_text().startswith("Using libGenie")
    assert all(job["finish"] == "failed" and job["error"] for job in jobs_of(result.folder))
    assert result.summary["dialogs"]["D0"]["generated_tokens"] is None


def test_queries_that_the_profile_lacks(desk: Desk, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that isolates dialogs: a query that throws leaves no event, one that fails one without figures."""
    monkeypatch.setenv("STAND_IN", "isolate")
    models = desk.llm(), desk.vlm("throws", fail="throw"), desk.vlm("false", fail="false")
    result = run_external(desk.case(*models, iterations=2), desk.adb(), out)
    assert (result.status, result.exit_code) == ("partial", 3)
    rows = {(job["dialog"], job["iteration"]): job for job in jobs_of(result.folder)}
    assert [rows["D0", k]["finish"] for k in (0, 1)] == ["complete"] * 2
    assert [rows["D1", k]["error"] for k in (0, 1)] == [
        "The profile has 0 of 2 queries: one that the library gives up leaves nothing there."
    ] * 2
    assert [rows["D2", k]["error"] for k in (0, 1)] == ["The query failed: the profile has it without figures."] * 2
    assert rows["D2", 0]["generated_tokens"] is None


def test_what_left_nothing_has_no_time_of_another_clock(desk: Desk, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times in one process count from its first query; the process's own, with all its loading, are no such times."""
    monkeypatch.setenv("STAND_IN", "isolate")
    models = desk.llm(), desk.llm("throws", fail="throw")
    case = desk.case(*models, iterations=2)
    result = run_external(case, local(prompt_flag="--concurrent-prompt_file"), out)
    rows = {(job["dialog"], job["iteration"]): job for job in jobs_of(result.folder)}
    last = rows["D0", 1]["end_ns"]
    assert [(rows["D1", k]["release_ns"], rows["D1", k]["end_ns"]) for k in (0, 1)] == [(last, last)] * 2
    assert result.summary["system"]["makespan_ms"] == pytest.approx(last / 1e6, abs=1e-3)


def test_a_process_that_left_nothing_failed_each_query(desk: Desk, out: Path) -> None:
    result = run_external(desk.case(desk.llm(fail="throw"), iterations=3), local(), out)
    assert [(job["iteration"], job["finish"]) for job in jobs_of(result.folder)] == [(k, "failed") for k in range(3)]


def test_a_device_that_cant_be_asked_is_asked_once(desk: Desk, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question may take minutes where nobody answers."""
    asked: list[str] = []
    monkeypatch.setattr("edgewright.bench.external.runner.probe", lambda _, path: asked.append(path) or "failed")
    result = run_external(desk.case(desk.llm(), repeats=3), desk.adb(), out, run_id="r")
    assert (len(asked), result.status) == (1, "complete")


def test_dialogs_created_at_the_same_time(desk: Desk, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "parallel-create")
    result = run_external(desk.case(desk.llm(), desk.vlm()), local(), out)
    assert result.status == "complete"
    assert any("which component is which" in finding for finding in result.summary["findings"])


@pytest.mark.parametrize(("word", "state"), [("torn-profile", "torn-profile"), ("no-profile", "no-profile")])
def test_profiles_that_are_not_there(
    desk: Desk, out: Path, monkeypatch: pytest.MonkeyPatch, word: str, state: str
) -> None:
    monkeypatch.setenv("STAND_IN", word)
    result = run_external(desk.case(desk.llm(), desk.vlm()), desk.ssh(), out)
    assert (result.status, states_of(result.folder)) == ("failed", {"run-0": state})
    assert (result.folder / "profile.json").exists() == (word == "torn-profile")
    assert "[BEGIN]: " in (result.folder / "stdout.txt").read_text()


def test_a_profile_that_cant_be_copied(desk: Desk, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_DEVICE", "no-pull")
    result = run_external(desk.case(desk.llm()), desk.adb(), out)
    assert states_of(result.folder) == {"run-0": "pull-failed"}
    assert "connection reset" in result.summary["dialogs"]["D0"]["error"]
    assert len(list(desk.device.iterdir())) == 1


def test_old_devices_lose_exit_codes(desk: Desk, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_DEVICE", "old")
    assert run_external(desk.case(desk.llm(tokens=2)), desk.adb(), out).status == "complete"
    result = run_external(desk.case(desk.llm(fail="context")), desk.adb(), out)
    assert states_of(result.folder) == {"run-0": "context-exceeded"}
    assert run_external(desk.case(desk.llm(fail="segv")), desk.adb(), out).summary["status"] == "failed"


@pytest.mark.parametrize("kind", ["adb", "ssh"])
def test_a_device_that_is_gone(desk: Desk, out: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("FAKE_DEVICE", "gone")
    result = run_external(three(desk, warmup=1, repeats=5), runners(desk)[kind], out)
    # Nothing else is tried.
    assert states_of(result.folder) == {"warmup-0": "connection"}
    assert (result.status, result.exit_code) == ("failed", 1)
    assert "can't be reached" in result.summary["dialogs"]["D0"]["error"]


def test_a_device_that_goes_away(desk: Desk, out: Path) -> None:
    """The command is there for the first repeat, and then no more."""
    tool = Path(desk.tool("adb"))
    code = f"import os, subprocess, sys; code = subprocess.call(sys.argv[1:]); os.unlink({str(tool)!r}); sys.exit(code)"
    runner = RunnerSpec(
        command=(str(tool), "shell", *STAND_IN[:1], "-ISc", shlex.quote(code), *STAND_IN),
        profile_dir=str(desk.device),
        pull=("cp", "{remote}", "{local}"),
    )
    result = run_external(desk.case(desk.llm(), repeats=4), runner, out)
    assert states_of(result.folder) == {"run-0": "complete", "run-1": "no-program"}
    assert (result.status, result.exit_code) == ("partial", 3)
    assert any("the rest was left out" in finding for finding in result.summary["findings"])


def test_a_run_that_was_killed_can_be_summarized(desk: Desk, out: Path) -> None:
    result = run_external(three(desk), local(), out)
    events = (result.folder / "events.jsonl").read_text()
    (result.folder / "events.jsonl").write_text(events[: events.index('{"event":"end"') + 9])
    (result.folder / "summary.json").unlink()
    found = summarize(result.folder)
    assert (found["status"], found["dialogs"]["D2"]["generated_tokens"]) == ("interrupted", 10)


@pytest.mark.parametrize("kind", ["local", "adb"])
def test_a_program_that_is_not_there(desk: Desk, out: Path, kind: str) -> None:
    command = ("/no/such/genie",) if kind == "local" else (desk.tool("adb"), "shell", "/no/such/genie")
    runner = RunnerSpec(command=command, profile_dir=None if kind == "local" else str(desk.device))
    result = run_external(desk.case(desk.llm(), repeats=3), runner, out)
    assert states_of(result.folder) == {"run-0": "no-program"}
    assert result.exit_code == 1
    assert "can't be started" in result.summary["dialogs"]["D0"]["error"]


def test_a_time_limit(desk: Desk, out: Path) -> None:
    case = desk.case(desk.llm(fail="hang"), desk.llm("second", fail="hang"), timeout_s=0.3)
    result = run_external(case, desk.adb(process="dialog"), out)
    assert set(states_of(result.folder).values()) == {"timeout"}
    assert (result.status, result.exit_code) == ("failed", 1)
    assert "stopped after 0.3 s" in result.summary["dialogs"]["D1"]["error"]


def test_fail_fast(desk: Desk, out: Path) -> None:
    case = desk.case(desk.llm(fail="hang"), desk.llm("bad", fail="throw"), on_error="fail-fast", repeats=4)
    result = run_external(case, local(process="dialog"), out)
    assert states_of(result.folder) == {"run-0-d0-i0": "fail-fast", "run-0-d1-i0": "exit-code"}
    assert (result.status, result.exit_code) == ("failed", 1)
    assert [job["finish"] for job in jobs_of(result.folder)] == ["stopped", "failed"]


def test_an_interruption_keeps_what_is_there(desk: Desk, out: Path) -> None:
    case = desk.case(desk.llm(tokens=2), desk.llm("slow", fail="hang"))

    def interrupt() -> None:
        while not list(out.glob("case/*/executions/run-0-d0-i0/profile.json")) or not any(
            "[PROMPT]" in path.read_text() for path in out.glob("case/*/executions/run-0-d1-i0/stdout.txt")
        ):
            time.sleep(0.005)
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    result = run_external(case, local(process="dialog"), out)
    thread.join()
    assert (result.status, result.exit_code) == ("interrupted", 130)
    assert states_of(result.folder)["run-0-d1-i0"] == "interrupted"
    assert result.summary["dialogs"]["D1"]["stopped"] == 1
    assert any("interrupted" in finding for finding in result.summary["findings"])
