"""The named states of an execution."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgewright.bench.external.judge import judge
from edgewright.bench.external.processes import STDERR, STDOUT, Ended

TAKEN = "Using libGenie.so version 1.13.0\n"
GOOD = {"header": {"artifact_type": "GENIE_PROFILE"}, "metadata": {}, "components": []}
ABSENT, THERE = ("absent", "No such file"), ("there", "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / STDOUT).write_text("")
    (tmp_path / STDERR).write_text("")
    return tmp_path


def verdict(folder: Path, code: int | None, out: str = "", err: str = "", *, shells: int = 0, pulled=ABSENT, **more):  # type: ignore[no-untyped-def]
    (folder / STDOUT).write_text(out)
    (folder / STDERR).write_text(err)
    return judge(Ended(0, 1, code, **more), folder, pulled, shells=shells, timeout_s=3.0)


def test_complete(folder: Path) -> None:
    (folder / "profile.json").write_text(json.dumps(GOOD))
    found = verdict(folder, 0, pulled=THERE)
    assert (found.state, found.error) == ("complete", None)
    assert found.profile is not None


def test_a_model_may_write_what_looks_like_an_error(folder: Path) -> None:
    (folder / "profile.json").write_text(json.dumps(GOOD))
    assert verdict(folder, 0, f"{TAKEN}ERROR: Connection refused", pulled=THERE, shells=1).state == "complete"
    # The command line was taken: what comes then is no refusal.
    found = verdict(folder, 1, f"{TAKEN}[BEGIN]: ERROR: Invalid", "Failed to query.")
    assert (found.state, found.error) == ("exit-code", "The program failed with exit code 1: Failed to query.")


@pytest.mark.parametrize(
    ("code", "out", "err", "shells", "state", "text"),
    [
        (1, "Unknown option: --x\nUsage", "", 0, "usage", "refused its command line: Unknown option: --x."),
        (1, "", "ERROR:: a table needs an embedding file.\n", 0, "usage", "a table needs"),
        (1, "ERROR: Invalid --profile argument. Output file p already exists.", "", 0, "profile-exists", "--overwrite"),
        (
            1,
            "ERROR: Invalid --profile argument. Output file p already exists.\r\n",
            "",
            1,
            "profile-exists",
            "--overwrite",
        ),
        (1, TAKEN, "status 4", 0, "context-exceeded", "(status 4)"),
        (1, TAKEN, "GENIE_STATUS_WARNING_CONTEXT_EXCEEDED", 0, "context-exceeded", "context was exceeded"),
        (1, TAKEN, "Context limit of 4096 exceeded", 0, "context-exceeded", "context was exceeded"),
        (1, TAKEN, "status 40", 0, "exit-code", "status 40"),
        (1, f"{TAKEN}Query successfully aborted\n", "", 0, "aborted", "aborted"),
        (1, f"{TAKEN}Query Succesfully aborted\n", "", 0, "aborted", "aborted"),
        (7, "", "", 0, "exit-code", "exit code 7: it said nothing."),
        (-11, TAKEN, "", 0, "signal", "SIGSEGV"),
        (139, TAKEN, "Segmentation fault", 1, "signal", "SIGSEGV"),
        (139, TAKEN, "", 0, "exit-code", "exit code 139"),
        # What a model wrote is no reason of a crash.
        (-11, f"{TAKEN}[BEGIN]: My context was exceeded", "", 0, "signal", "SIGSEGV"),
        (134, f"{TAKEN}Query successfully aborted", "terminate called", 1, "signal", "SIGABRT: terminate called."),
        (-9, "", "", 0, "signal", "SIGKILL"),
        (127, "", "sh: g: not found", 1, "no-program", "exit code 127): sh: g: not found."),
        (126, "", "sh: g: Permission denied", 1, "no-program", "exit code 126"),
        (127, "", "", 0, "exit-code", "exit code 127"),
        (255, "", "kex_exchange: reset", 1, "connection", "kex_exchange: reset."),
        (255, "", "ssh: connect to host x port 22: Connection refused", 1, "connection", "Connection refused."),
        (1, "", "adb: no devices/emulators found", 1, "connection", "no devices/emulators found."),
        (1, "", "adb: device 'abc' not found", 1, "connection", "device 'abc' not found."),
        (1, "", "error: device offline", 1, "connection", "device offline."),
    ],
)
def test_states(folder: Path, code: int, out: str, err: str, shells: int, state: str, text: str) -> None:
    found = verdict(folder, code, out, err, shells=shells)
    assert found.state == state
    assert text in found.error
    assert "\n" not in found.error


def test_without_a_profile(folder: Path) -> None:
    assert verdict(folder, 0).state == "no-profile"
    found = verdict(folder, 0, pulled=("failed", "adb: connection reset"), shells=1)
    assert (found.state, "connection reset" in found.error) == ("pull-failed", True)


def test_a_torn_profile(folder: Path) -> None:
    (folder / "profile.json").write_text(json.dumps(GOOD)[:20])
    found = verdict(folder, 0, pulled=THERE)
    assert (found.state, found.profile) == ("torn-profile", None)
    (folder / "profile.json").write_text("[]")
    assert verdict(folder, 0, pulled=THERE).state == "torn-profile"


@pytest.mark.parametrize("event", ['"start": 1e400', '"start": 1, "num-prompt-tokens": {"value": 1e400}'])
def test_a_profile_with_numbers_that_are_none(folder: Path, event: str) -> None:
    event = f'{{"type": "GenieDialog_query", "duration": 1, {event}}}'
    text = f'{{"components": [{{"name": "dialog0", "type": "dialog", "events": [{event}]}}]}}'
    (folder / "profile.json").write_text(text)
    assert verdict(folder, 0, pulled=THERE).state == "torn-profile"
    (folder / "profile.json").write_text(text.replace("1e400", "14"))
    assert verdict(folder, 0, pulled=THERE).state == "complete"


def test_lost_exit_codes(folder: Path) -> None:
    """Old `adb shell` says 0 whatever happened: the words tell."""
    found = verdict(folder, 0, f"{TAKEN}\nFailed: status 4\n", shells=1)
    assert found.state == "context-exceeded"
    assert verdict(folder, 0, TAKEN, shells=1).state == "no-profile"


def test_a_profile_of_a_failed_run_is_kept(folder: Path) -> None:
    (folder / "profile.json").write_text(json.dumps(GOOD))
    found = verdict(folder, 1, TAKEN, "Failed.", pulled=THERE)
    assert found.state == "exit-code"
    assert found.profile is not None


def test_stops(folder: Path) -> None:
    found = verdict(folder, -15, stopped="timeout")
    assert (found.state, found.error) == ("timeout", "The program was stopped after 3 s, the run's timeout_s.")
    assert verdict(folder, -15, stopped="timeout", shells=1).error.endswith("It may still be running on the device.")
    assert verdict(folder, -15, stopped="interrupted").state == "interrupted"
    stuck = verdict(folder, None, error="it could not be ended", stopped="timeout")
    assert (stuck.state, stuck.error) == (
        "timeout",
        "The program had to be stopped (timeout) and goes on: its user may be another one, so end it.",
    )
    late = verdict(folder, None, error="it was not started", stopped="fail-fast", shells=1)
    assert (late.state, late.error) == (
        "fail-fast",
        "The program was not started, because another dialog failed (on_error: fail-fast).",
    )


def test_no_program(folder: Path) -> None:
    found = verdict(folder, None, error="No such file or directory")
    assert (found.state, found.error) == (
        "no-program",
        "The runner's command can't be started: No such file or directory.",
    )


def test_long_and_hostile_words(folder: Path) -> None:
    found = verdict(folder, 1, "x" * 1_000_000, "\x1b[31m" + "y" * 5000)
    assert found.state == "exit-code"
    assert len(found.error) < 500
    assert "\x1b" not in found.error
    (folder / STDOUT).unlink()
    (folder / STDERR).write_bytes(b"\xff\xfe")
    assert judge(Ended(0, 1, 1), folder, ABSENT, shells=0, timeout_s=None).state == "exit-code"
