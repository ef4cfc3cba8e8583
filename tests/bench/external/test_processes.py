"""Chains of programs: what runs at once, what after another, and how they are stopped."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from edgewright.bench.external import processes
from edgewright.bench.external.processes import STDERR, STDOUT, Command, Ended, run_chains

PYTHON = (sys.executable, "-I", "-S", "-c")
HANG = "import time; print('on', flush=True); time.sleep(600)"


def command(folder: Path, name: str, code: str, **times: int) -> Command:
    place = folder / name
    place.mkdir()
    return Command((*PYTHON, code), place, **times)


def run(chains: list[list[Command]], **options: object) -> dict[tuple[int, int], Ended]:
    ended: dict[tuple[int, int], Ended] = {}
    run_chains(chains, lambda chain, place, result: ended.__setitem__((chain, place), result), **options)  # type: ignore[arg-type]
    return ended


def test_outputs_go_into_files(tmp_path: Path) -> None:
    one = command(
        tmp_path, "a", "import sys; print('out'); print('err', file=sys.stderr); print(repr(sys.stdin.read()))"
    )
    ended = run([[one]])[0, 0]
    assert (ended.returncode, ended.error, ended.stopped) == (0, None, None)
    assert ended.ended_ns > ended.started_ns >= 0
    assert (one.folder / STDOUT).read_text() == "out\n''\n"
    assert (one.folder / STDERR).read_text() == "err\n"


def test_a_chain_is_one_after_the_other_and_ends_at_a_failure(tmp_path: Path) -> None:
    good = [command(tmp_path, f"g{n}", "") for n in range(2)]
    bad = [command(tmp_path, "b0", "raise SystemExit(3)"), command(tmp_path, "b1", "")]
    ended = run([good, bad])
    assert set(ended) == {(0, 0), (0, 1), (1, 0)}
    assert ended[1, 0].returncode == 3
    assert ended[0, 1].started_ns >= ended[0, 0].ended_ns


def test_what_cant_be_ended_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of another user (sudo) takes no signal of ours: the time limit holds all the same."""
    monkeypatch.setattr(processes, "_signal", lambda *_: None)
    monkeypatch.setattr(processes, "_GRACE_NS", 100_000_000)
    go_on = tmp_path / "go on"
    text = f"import pathlib, time\nwhile not pathlib.Path({str(go_on)!r}).exists(): time.sleep(0.005)"
    chains = [[command(tmp_path, "a", text), command(tmp_path, "b", "")], [command(tmp_path, "c", "")]]
    ended = run(chains, timeout_s=0.3)
    go_on.touch()
    assert set(ended) == {(0, 0), (1, 0)}
    one = ended[0, 0]
    assert (one.returncode, one.error, one.stopped) == (None, processes.NOT_ENDED, "timeout")
    assert one.ended_ns > one.started_ns
    assert ended[1, 0].returncode == 0


def test_chains_run_at_once(tmp_path: Path) -> None:
    """Each of two programs waits for a file of the other."""
    text = (
        "import pathlib, time\npathlib.Path({0!r}).touch()\nwhile not pathlib.Path({1!r}).exists(): time.sleep(0.005)"
    )
    a, b = str(tmp_path / "x"), str(tmp_path / "y")
    ended = run([[command(tmp_path, "a", text.format(a, b))], [command(tmp_path, "b", text.format(b, a))]])
    assert [one.returncode for one in ended.values()] == [0, 0]


def test_a_command_waits_for_its_time(tmp_path: Path) -> None:
    chain = [command(tmp_path, "a", "", earliest_ns=50_000_000), command(tmp_path, "b", "", pause_ns=40_000_000)]
    ended = run([chain])
    assert ended[0, 0].started_ns >= 50_000_000
    assert ended[0, 1].started_ns >= ended[0, 0].ended_ns + 40_000_000


def test_what_cant_be_started(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    gone = run([[Command(("/no/such/program",), folder)]])[0, 0]
    assert (gone.returncode, gone.error, gone.stopped) == (None, "No such file or directory", None)
    (tmp_path / "b" / STDOUT).mkdir(parents=True)
    full = run([[Command((*PYTHON, ""), tmp_path / "b")]])[0, 0]
    assert (full.returncode, full.error) == (None, "Is a directory")
    long = run([[Command((*PYTHON, "#" * (1 << 18)), folder)]])[0, 0]
    assert (long.returncode, long.error) == (None, "Argument list too long")


def test_a_signal_is_told(tmp_path: Path) -> None:
    ended = run([[command(tmp_path, "a", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")]])[0, 0]
    assert (ended.returncode, ended.stopped) == (-signal.SIGKILL, None)


def when(path: Path) -> str:
    """Code of a program that fails once a file has something in it."""
    return (
        f"import pathlib, time\nfile = pathlib.Path({str(path)!r})\n"
        "while not (file.exists() and file.read_text().endswith('\\n')): time.sleep(0.005)\nraise SystemExit(1)"
    )


def test_a_time_limit_stops_all(tmp_path: Path) -> None:
    chains = [[command(tmp_path, "a", HANG), command(tmp_path, "a2", "")], [command(tmp_path, "b", HANG)]]
    ended = run(chains, timeout_s=0.2)
    assert set(ended) == {(0, 0), (1, 0)}
    assert {one.stopped for one in ended.values()} == {"timeout"}
    assert {one.returncode for one in ended.values()} == {-signal.SIGTERM}


def test_what_runs_below_a_program_is_stopped_with_it(tmp_path: Path) -> None:
    code = "import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    one = command(tmp_path, "a", f"{code}print(child.pid, flush=True)\nchild.wait()")
    ended = run([[one], [command(tmp_path, "b", when(one.folder / STDOUT))]], fail_fast=True)
    assert ended[0, 0].stopped == "fail-fast"
    child = int((tmp_path / "a" / STDOUT).read_text())
    for _ in range(500):
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        if "Z" in Path(f"/proc/{child}/stat").read_text().rpartition(")")[2][:3]:
            return
        time.sleep(0.01)
    pytest.fail("the program's child is still there")


def test_what_ignores_the_request_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgewright.bench.external.processes._GRACE_NS", 50_000_000)
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + HANG
    one = command(tmp_path, "a", code)
    ended = run([[one], [command(tmp_path, "b", when(one.folder / STDOUT))]], fail_fast=True)[0, 0]
    assert (ended.returncode, ended.stopped) == (-signal.SIGKILL, "fail-fast")
    assert (one.folder / STDOUT).read_text() == "on\n"


def test_fail_fast(tmp_path: Path) -> None:
    chains = [[command(tmp_path, "a", HANG)], [command(tmp_path, "b", "raise SystemExit(1)")]]
    ended = run(chains, fail_fast=True)
    assert (ended[0, 0].stopped, ended[1, 0].stopped, ended[1, 0].returncode) == ("fail-fast", None, 1)


def test_a_stop_while_one_waits_for_its_time(tmp_path: Path) -> None:
    late = command(tmp_path, "a", "print(1)", earliest_ns=600_000_000_000)
    ended = run([[late], [command(tmp_path, "b", "raise SystemExit(1)")]], fail_fast=True)
    assert (ended[0, 0].returncode, ended[0, 0].stopped) == (None, "fail-fast")
    assert not (tmp_path / "a" / STDOUT).read_text()


def test_an_interruption_stops_all_and_goes_on(tmp_path: Path) -> None:
    one = command(tmp_path, "a", HANG)
    ended: dict[int, Ended] = {}

    def interrupt() -> None:
        while not (one.folder / STDOUT).exists() or not (one.folder / STDOUT).read_text():
            time.sleep(0.005)
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run_chains([[one]], lambda chain, place, result: ended.__setitem__(chain, result))
    thread.join()
    assert ended[0].stopped == "interrupted"
