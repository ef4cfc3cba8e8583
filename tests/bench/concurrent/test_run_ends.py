"""How runs end: Ctrl-C at any place, time limits, a full disk; what dialogs say, and what engines are told."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dialog_cases import Files, dialog, mixed_case, shared_files
from edgewright.bench.case.spec import Case, ModelSpec, RunSpec, SimulatedModel
from edgewright.bench.concurrent import run_case
from edgewright.bench.concurrent.logs import DialogLogs
from edgewright.bench.concurrent.models import elapsed, load_models
from edgewright.bench.records import DIALOGS, read_run, summarize, writer
from edgewright.errors import OutputError
from edgewright.progress import SILENT, Advance, Progress
from edgewright.runtime.llm import LLM
from edgewright.runtime.scheduling.work import JobRecord
from edgewright.runtime.session import Session
from edgewright.runtime.tasks import DialogTask, Rhythm


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return shared_files(tmp_path_factory.getbasetemp())


class CtrlC(Progress):
    """Presses it when a step of some title begins."""

    def __init__(self, title: str) -> None:
        self.title = title

    @contextmanager
    def step(self, title: str, total: int = 0) -> Iterator[Advance]:
        if title == self.title:
            raise KeyboardInterrupt
        yield lambda amount: None


def simulated(**run: object) -> Case:
    model = SimulatedModel(prefill_ms=1, decode_ms=1)
    asked = {"prompt_tokens": 5, "max_tokens": 20}
    return Case(
        name="sim",
        models=(ModelSpec(name="m", simulated=model),),
        dialogs=(dialog("a", "m", **asked), dialog("b", "m", **asked)),
        run=RunSpec(**{"repeats": 2, **run}),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("title", "parts"),
    [
        ("a alone", []),
        ("run 1 of 2", ["solo:a", "solo:b"]),
        ("run 2 of 2", ["solo:a", "solo:b", "run"]),
    ],
)
def test_what_was_recorded_before_an_interrupt_is_kept(tmp_path: Path, title: str, parts: list[str]) -> None:
    result = run_case(simulated(), tmp_path, progress=CtrlC(title))
    assert (result.status, result.exit_code) == ("interrupted", 130)
    run = read_run(result.folder)
    assert [part for part, _ in run.parts] == parts
    assert run.notes == ()
    assert result.summary["dialogs"]["a"]["complete"] == parts.count("run")
    assert (result.folder / "trace.json").exists()


def test_an_interrupt_while_models_are_loaded(files: Files, tmp_path: Path) -> None:
    result = run_case(mixed_case(files), tmp_path, progress=CtrlC("load llm"))
    assert result.exit_code == 130
    assert read_run(result.folder).steps == []


def test_a_time_limit_stops_real_dialogs(files: Files, tmp_path: Path) -> None:
    case = mixed_case(files, solo=False, warmup=0, timeout_s=0.3)
    endless = replace(case, dialogs=tuple(replace(one, iterations=1_000_000) for one in case.dialogs))
    result = run_case(endless, tmp_path)
    assert result.exit_code in (1, 3)  # by whether one query came to its end
    run = read_run(result.folder)
    assert {job.finish for job in run.jobs} <= {"complete", "stopped"}
    assert sum(job.finish == "stopped" for job in run.jobs) <= 3
    assert any("timeout_s" in finding for finding in result.summary["findings"])
    assert run.events[-1]["how"] == "finished"


def test_a_disk_that_fills_up(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written before can be read; the run says why it ended."""
    written = 0
    write = writer.LineFile.write

    def full(file: writer.LineFile, text: str) -> None:
        nonlocal written
        written += len(text)
        if written > 20_000:
            raise OutputError("No space is left while writing steps.jsonl: free some, or choose another disk.")
        write(file, text)

    monkeypatch.setattr(writer.LineFile, "write", full)
    with pytest.raises(OutputError, match="No space is left"):
        run_case(mixed_case(files, repeats=20), tmp_path, run_id="a")
    folder = tmp_path / "mixed" / "a"
    assert len(read_run(folder).steps) > 20
    assert summarize(folder)["status"] == "interrupted"


def test_logs_tag_what_is_said(tmp_path: Path) -> None:
    (tmp_path / DIALOGS).mkdir()
    with DialogLogs(tmp_path, ["a", "b"]) as logs:
        warm, run = logs.writer("a", "warmup", 0), logs.writer("a", "run", 1)
        warm(0, "Hi")
        logs.ended("a", "warmup", 0, JobRecord(0, 0, 0, 0, 0, 1, None, "complete"))
        run(3, "One ")
        run(3, "two.\nThree")
        facts = {"generated_tokens": 9, "finish_reason": "stop", "text": "One two.\nThree"}
        logs.ended("a", "run", 1, JobRecord(0, 3, 0, 0, 0, 1, None, "complete", None, facts))
        logs.ended("b", "solo:b", 0, JobRecord(1, 0, 0, 0, 0, 1, None, "failed", "It broke."))
        facts = {"generated_tokens": 4, "finish_reason": None}
        logs.ended("b", "run", 0, JobRecord(1, 1, 0, 0, 0, 1, None, "stopped", None, facts))
    assert (tmp_path / DIALOGS / "a.log").read_text() == (
        "[warmup, iteration 0]\nHi\n[warmup, iteration 0: complete]\n\n"
        "[run 1, iteration 3]\nOne two.\nThree\n[run 1, iteration 3: complete; 9 tokens, stop]\n\n"
    )
    assert (tmp_path / DIALOGS / "b.log").read_text() == (
        "[solo, iteration 0]\n\n[solo, iteration 0: failed, It broke.]\n\n"
        "[run 0, iteration 1]\n\n[run 0, iteration 1: stopped; 4 tokens]\n\n"
    )


def test_engines_leave_the_cores_to_each_other(files: Files) -> None:
    told: list[dict[str, object]] = []
    models = load_models(mixed_case(files), SILENT, lambda **fields: told.append(fields), elapsed())
    assert models.errors == {}
    assert len(told) == 2
    alone = LLM.load(files.inside, threads=1)
    key = "session.force_spinning_stop"
    for llm in models.loaded.values():
        assert isinstance(llm, LLM)
        assert llm._engine.session.get_session_options().get_session_config_entry(key) == "1"
    ids = list(range(1, 20))
    same = models.loaded["llm"]
    assert isinstance(same, LLM)
    assert same.generate(ids, max_tokens=9).all_tokens() == alone.generate(ids, max_tokens=9).all_tokens()


def test_sessions_are_gone_with_their_queries(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds a cache of megabytes, too much to wait for a collection of cycles."""
    llm = LLM.load(files.inside, threads=1)
    opened: list[weakref.ref[Session]] = []
    session = llm.session

    def remembered(batch: int = 1) -> Session:
        made = session(batch)
        opened.append(weakref.ref(made))
        return made

    monkeypatch.setattr(llm, "session", remembered)
    task = DialogTask("a", llm, [1, 2, 3], rhythm=Rhythm(iterations=4), max_tokens=3, ignore_eos=True)
    gc.disable()
    try:
        for job in task.jobs(lambda: 0):
            for quantum in job.quanta:
                quantum.run()
            assert job.facts()["generated_tokens"] == 3
        del job, quantum
        assert [one() is None for one in opened] == [True] * 4
    finally:
        gc.enable()
