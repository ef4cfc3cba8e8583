"""Runs that are killed and interrupted: a process of its own, stopped when it has recorded something."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dialog_cases import Files, mixed_case, shared_files
from edgewright.bench.case.writer import to_yaml
from edgewright.bench.records import STEPS, read_run, summarize, write_outputs

ENOUGH_BYTES = 200_000


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return shared_files(tmp_path_factory.getbasetemp())


@contextmanager
def running(files: Files, folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """An endless run in another process, after it has recorded a good deal."""
    case = mixed_case(files, solo=False, warmup=0)
    endless = replace(case, dialogs=tuple(replace(one, iterations=1_000_000) for one in case.dialogs))
    (folder / "case.yaml").write_text(to_yaml(endless, folder))
    words = ["bench", "run", str(folder / "case.yaml"), "-o", str(folder / "out"), "--run-id", "a"]
    process = subprocess.Popen(
        [sys.executable, "-m", "edgewright", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    steps = folder / "out" / "mixed" / "a" / STEPS
    try:
        until = time.monotonic() + 120
        while not (steps.exists() and steps.stat().st_size > ENOUGH_BYTES):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until
            time.sleep(0.02)
        yield process, steps.parent
    finally:
        process.kill()
        process.wait()


def test_a_killed_run_can_be_read(files: Files, tmp_path: Path) -> None:
    with running(files, tmp_path) as (process, folder):
        process.send_signal(signal.SIGKILL)
        process.wait()
    run = read_run(folder)
    assert len(run.steps) > 400
    assert run.jobs
    found = summarize(folder)
    assert found["status"] == "interrupted"
    assert all(one["decode_tokens_per_s"] > 0 for one in found["dialogs"].values())
    assert not (folder / "summary.json").exists()
    assert write_outputs(folder)["status"] == "interrupted"
    assert json.loads((folder / "trace.json").read_text())["traceEvents"]


def test_an_interrupted_run_ends_well(files: Files, tmp_path: Path) -> None:
    with running(files, tmp_path) as (process, folder):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert str(folder) in out
    run = read_run(folder)
    assert run.notes == ()
    assert run.events[-1]["how"] == "interrupted"
    stopped = [job for job in run.jobs if job.finish == "stopped"]
    assert 0 < len(stopped) <= 3
    assert all(job.facts["generated_tokens"] <= 24 for job in stopped)
