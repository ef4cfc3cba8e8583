from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import policy_goldens as goldens
from dialog_cases import Files, dialog, mixed_case, shared_files
from edgewright.bench.case.spec import Case, DialogSpec, InputSpec, ModelSpec, RunSpec
from edgewright.bench.concurrent import run_case
from edgewright.bench.policy import synthetic_observation
from edgewright.bench.records import read_run
from edgewright.build.pipeline import deploy
from edgewright.errors import OutputError
from edgewright.genie import read_profile
from edgewright.runtime.encoding import EmbeddingFile, Encoding, Requantizer
from edgewright.runtime.llm import LLM
from edgewright.runtime.policy import Policy
from edgewright.runtime.rawtable import LookUp, RawRows, RawTable, write_raw


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return shared_files(tmp_path_factory.getbasetemp())


def tokens_of(files: Files) -> dict[str, list[int]]:
    """What each dialog of the mixed case must say, by the runtime alone."""
    inside, outside = LLM.load(files.inside, threads=1), LLM.load(files.outside, threads=1)
    width = outside.embedding_width
    assert width is not None
    found = {"chat": inside.generate(list(range(1, 51)), max_tokens=24, ignore_eos=True).all_tokens()}
    table = RawTable(files.table.path, files.table.encoding, width)
    for name, rows, count in (("fine", files.fine, 12), ("coarse", files.coarse, 6)):
        look_up = LookUp(table, Requantizer(files.table.encoding, rows.encoding))
        generation = outside.generate(
            embeddings=RawRows(rows.path, rows.encoding, width), table=look_up, max_tokens=count, ignore_eos=True
        )
        found[name] = generation.all_tokens()
    return found


@pytest.fixture(scope="module")
def mixed(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = run_case(mixed_case(files, repeats=2), tmp_path_factory.mktemp("mixed"), run_id="a")
    assert (result.status, result.exit_code) == ("complete", 0)
    return result.folder


def test_tokens_are_those_of_the_dialogs_alone(mixed: Path, files: Files) -> None:
    """Two encodings at once: each dialog has its own, and all tokens are those that it says without the others."""
    wanted = tokens_of(files)
    jobs = read_run(mixed).jobs
    assert {tuple(job.facts["tokens"]) for job in jobs if job.part == "run" and job.dialog == "fine"} == {
        tuple(wanted["fine"])
    }
    for job in jobs:
        if job.part != "warmup":
            assert job.facts["tokens"] == wanted[job.dialog], (job.part, job.dialog)
    summary = json.loads((mixed / "summary.json").read_text())
    assert [one["same_tokens_as_solo"] for one in summary["dialogs"].values()] == [True, True, True]


def test_every_step_is_recorded(mixed: Path) -> None:
    run = read_run(mixed)
    assert run.notes == ()
    assert run.parts == [
        ("warmup", 0), ("solo:chat", 0), ("solo:fine", 0), ("solo:coarse", 0), ("run", 0), ("run", 1),
    ]  # fmt: skip
    counts = Counter((step.repeat, step.dialog, step.phase) for step in run.steps if step.part == "run")
    for repeat in (0, 1):
        # 50 and 40 rows in chunks of 16; the prompt's last chunk gives the first token.
        assert [counts[repeat, name, "prefill"] for name in ("chat", "fine", "coarse")] == [8, 6, 6]
        assert [counts[repeat, name, "decode"] for name in ("chat", "fine", "coarse")] == [46, 22, 10]
    for part, repeat in run.parts:
        steps = sorted((s for s in run.steps if (s.part, s.repeat) == (part, repeat)), key=lambda s: s.start_ns)
        assert all(before.end_ns <= after.start_ns for before, after in pairwise(steps)), "two at once"
    jobs = [job for job in run.jobs if job.part == "run"]
    assert Counter(job.dialog for job in jobs) == {"chat": 4, "fine": 4, "coarse": 4}
    assert {job.facts["prompt_tokens"] for job in jobs} == {50, 40}
    assert {job.facts["saturated"] for job in jobs if job.dialog != "chat"} == {0}


def test_the_files_of_a_run(mixed: Path) -> None:
    summary = json.loads((mixed / "summary.json").read_text())
    assert (summary["status"], summary["simulated"]) == ("complete", False)
    # A machine that is busy with other things may cost shares, nothing else.
    assert all(finding.startswith("From 0 ms") for finding in summary["findings"])
    assert [one["jobs"] for one in summary["dialogs"].values()] == [4, 4, 4]
    assert summary["repeats"]["system.makespan_ms"]["n"] == 2
    assert summary["system"]["peak_rss_bytes"] > 10_000_000
    (segment,) = summary["segments"]
    assert segment["weights"] == {"chat": 4.0, "fine": 2.0, "coarse": 1.0}
    # Who was active is counted step by step, so that what was asked for is what was there to be had.
    assert sum(segment["requested"].values()) == pytest.approx(1, abs=1e-5)
    assert sum(one["quanta"] for one in segment["achieved"].values()) == pytest.approx(1, abs=1e-5)
    profile = read_profile(mixed / "profile.json")
    assert [one.name for one in profile.dialogs] == ["dialog0", "dialog1", "dialog2"]
    assert [len(one.queries) for one in profile.dialogs] == [4, 4, 4]
    assert profile.component("dialog0").queries[0].kpis["num-generated-tokens"] == (24, "")
    assert json.loads((mixed / "trace.json").read_text())["otherData"]["steps_left_out"] == 0
    assert (mixed / "timing.txt").read_text().startswith("mixed / a: complete\n")
    log = (mixed / "dialogs" / "chat.log").read_text()
    assert "[run 1, iteration 1: complete; 24 tokens, length; ids " in log
    assert json.loads((mixed / "env.json").read_text())["threads"] == 1


def test_dialogs_share_what_is_loaded(mixed: Path) -> None:
    loads = [event for event in read_run(mixed).events if event["event"] == "load"]
    assert {(*load["models"], *load["dialogs"]) for load in loads} == {("llm", "chat"), ("vlm", "fine", "coarse")}
    assert loads[0]["bytes"] <= loads[1]["bytes"]


def test_an_existing_run_is_refused_or_replaced(files: Files, tmp_path: Path) -> None:
    case = replace(mixed_case(files, solo=False, warmup=0), dialogs=mixed_case(files).dialogs[:1])
    first = run_case(case, tmp_path, run_id="a")
    with pytest.raises(OutputError, match="--overwrite"):
        run_case(case, tmp_path, run_id="a")
    assert run_case(case, tmp_path, run_id="a", overwrite=True).folder == first.folder
    assert read_run(first.folder).parts == [("run", 0)]


def with_nan(files: Files, folder: Path) -> EmbeddingFile:
    """A prompt whose values are no numbers, which no look at the file's size finds."""
    width = LLM.load(files.outside).embedding_width
    write_raw(folder / "good.bin", Encoding(), [np.zeros((3, width or 0), np.float32)])
    values = np.fromfile(folder / "good.bin", np.float32)
    values[-1] = np.nan
    values.tofile(folder / "nan.bin")
    return EmbeddingFile(folder / "nan.bin", Encoding(), False)


def failing_case(files: Files, folder: Path, **run: object) -> Case:
    case = mixed_case(files, solo=False, warmup=0, **run)
    model = ModelSpec(name="plain", bundle=files.outside)
    bad = dialog("bad", "plain", embedding=with_nan(files, folder), max_tokens=4)
    return replace(case, models=(*case.models, model), dialogs=(*case.dialogs, bad))


def test_a_failing_dialog_leaves_the_others_alone(files: Files, tmp_path: Path) -> None:
    result = run_case(failing_case(files, tmp_path), tmp_path)
    assert (result.status, result.exit_code) == ("partial", 3)
    dialogs = result.summary["dialogs"]
    assert [one["complete"] for one in dialogs.values()] == [2, 2, 2, 0]
    assert dialogs["bad"]["failed"] == 1
    assert "not finite" in dialogs["bad"]["error"] or "NaN" in dialogs["bad"]["error"]
    wanted = tokens_of(files)
    for job in read_run(result.folder).jobs:
        if job.dialog != "bad":
            assert job.facts["tokens"] == wanted[job.dialog]
    assert any(finding.startswith("bad: 1 of 1 jobs failed.") for finding in result.summary["findings"])
    assert "failed" in (result.folder / "dialogs" / "bad.log").read_text()


def test_fail_fast_stops_all(files: Files, tmp_path: Path) -> None:
    case = failing_case(files, tmp_path, on_error="fail-fast", repeats=3)
    case = replace(case, dialogs=tuple(replace(one, iterations=1000) for one in case.dialogs[:3]) + case.dialogs[3:])
    result = run_case(case, tmp_path)
    assert (result.status, result.exit_code) == ("failed", 1)
    assert read_run(result.folder).repeats == [0]
    assert result.summary["dialogs"]["bad"]["failed"] == 1


def test_a_model_that_does_not_load(files: Files, tmp_path: Path) -> None:
    """Its bundle's manifest is whole, and a file of it was changed."""
    broken = tmp_path / "broken"
    deploy(Path(__file__).parents[2] / "goldens" / "text" / "llama", broken, recipe="float32", verify=False)
    weights = max((path for path in broken.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 255
    weights.write_bytes(data)
    case = mixed_case(files, solo=False, warmup=0)
    case = replace(
        case,
        models=(*case.models, ModelSpec(name="broken", bundle=broken)),
        dialogs=(*case.dialogs, dialog("lost", "broken", tokens_file=files.ids, max_tokens=3)),
    )
    result = run_case(case, tmp_path)
    assert result.exit_code == 3
    assert "was changed after it was written" in result.summary["dialogs"]["lost"]["error"]
    assert [one["complete"] for one in result.summary["dialogs"].values()] == [2, 2, 2, 0]
    failed = run_case(replace(case, run=replace(case.run, on_error="fail-fast")), tmp_path, run_id="b")
    assert (failed.status, failed.exit_code) == ("failed", 1)
    assert read_run(failed.folder).steps == []


def test_a_dialog_that_goes_on_until_its_context_is_full(files: Files, tmp_path: Path) -> None:
    """50 tokens and 24 more each time: the fourth query doesn't fit into 256. The other dialog comes to its end."""
    case = mixed_case(files, solo=False, warmup=0)
    long = replace(case.dialogs[0], reset="never", iterations=6)
    result = run_case(replace(case, dialogs=(long, case.dialogs[1])), tmp_path)
    assert result.exit_code == 3
    chat = result.summary["dialogs"]["chat"]
    assert (chat["complete"], chat["failed"]) == (3, 1)
    assert "context" in chat["error"]
    assert result.summary["dialogs"]["fine"]["complete"] == 2
    held = [step.held for step in read_run(result.folder).steps if step.dialog == "chat"]
    assert held == sorted(held), "what is held only grows"


def test_a_policy_beside_a_dialog(files: Files, tmp_path: Path) -> None:
    policy = deploy(
        goldens.POLICY_GOLDENS / "pi05" / "checkpoint", tmp_path / "policy", recipe="float32", verify=False
    ).path
    frames = observation(policy, tmp_path / "frame.npz")
    case = Case(
        name="robot",
        models=(ModelSpec(name="llm", bundle=files.inside), ModelSpec(name="pi", bundle=policy)),
        dialogs=(
            dialog("chat", "llm", tokens_file=files.ids, max_tokens=8),
            DialogSpec(name="arm", model="pi", input=InputSpec(observation=frames), iterations=2),
        ),
        run=RunSpec(threads=1, warmup=0),
    )
    result = run_case(case, tmp_path)
    assert result.exit_code == 0, result.summary["findings"]
    steps = [step for step in read_run(result.folder).steps if step.part == "run" and step.dialog == "arm"]
    phases = [step.phase for step in steps if step.iteration == 1]
    assert phases[0] == "vision"
    assert "prefix" in phases
    assert phases[-1] == "denoise"
    assert [step.emits for step in steps].count(True) == 2
    arm = result.summary["dialogs"]["arm"]
    assert arm["ttft_ms"]["n"] == 2
    assert arm["itl_ms"] is None
    assert arm["slowdown"]["total"] > 0


def observation(bundle: Path, path: Path) -> Path:
    """An observation of noise as a file of arrays."""
    policy = Policy.load(bundle)
    made = synthetic_observation(policy.spec, policy.statistics, np.random.default_rng(3), cameras=policy.spec.cameras)
    images = made.pop("images")
    np.savez(path, **images, **{name: np.array(value) for name, value in made.items()})
    return path
