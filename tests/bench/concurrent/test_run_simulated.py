from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dialog_cases import Files, dialog, mixed_case, shared_files
from edgewright.bench.case import CaseError, read_cases
from edgewright.bench.case.spec import Case, ModelSpec, RunSpec, SchedulerSpec, SimulatedModel
from edgewright.bench.concurrent import is_simulated, resolved, run_case
from edgewright.bench.records import CASE, read_run
from edgewright.errors import UsageError
from edgewright.genie import read_profile
from edgewright.runtime.scheduling.timeline import Timeline

LLM = SimulatedModel(prefill_ms=30, decode_ms=14.6)
VLM = SimulatedModel(prefill_ms=180, decode_ms=71)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return shared_files(tmp_path_factory.getbasetemp())


def case(*weights: str, discipline: Any = "weighted", tokens: int = 3800, **run: Any) -> Case:
    """An LLM and VLMs with timelines."""
    return Case(
        name="sim",
        models=(ModelSpec(name="llm", simulated=LLM), ModelSpec(name="vlm", simulated=VLM)),
        dialogs=tuple(
            dialog(f"D{i}", "vlm" if i else "llm", prompt_tokens=273, max_tokens=tokens, timeline=Timeline.parse(text))
            for i, text in enumerate(weights)
        ),
        scheduler=SchedulerSpec(discipline=discipline),
        run=RunSpec(**run),
    )


def test_three_segments_have_their_shares(tmp_path: Path) -> None:
    """Two VLMs first, the LLM alone from 5 s to 20 s, then all three."""
    made = case("0:0,1:5000", "4:0,0:5000,4:20000", "1:0,0:5000,1:20000", timeout_s=40, solo=False)
    result = run_case(made, tmp_path, run_id="a", simulate=True)
    segments = result.summary["segments"]
    assert [(one["start_ms"], one["end_ms"]) for one in segments] == [(0, 5000), (5000, 20000), (20000, None)]
    wanted = [(0, 0.8, 0.2), (1, 0, 0), (1 / 6, 4 / 6, 1 / 6)]
    for segment, shares in zip(segments, wanted, strict=True):
        for name, share in zip(("D0", "D1", "D2"), shares, strict=True):
            assert segment["requested"][name] == pytest.approx(share, abs=1e-5)
            # Within one quantum, and the one that was running when the weights changed.
            assert abs(segment["achieved"][name]["quanta"] - share) * segment["quanta"] <= 2, (segment, name)
    # The LLM was released at 0 and paused for 5 s, which is no fault of the scheduler's.
    first = result.summary["dialogs"]["D0"]
    assert first["paused_ms"] == pytest.approx(5000, abs=200)
    assert result.summary["dialogs"]["D1"]["paused_ms"] == pytest.approx(15000, abs=200)
    # It was cut off after 40 s, so it is no whole run.
    assert (result.status, result.exit_code) == ("failed", 1)
    assert any("timeout_s" in finding for finding in result.summary["findings"])


def test_shares_by_count_are_no_shares_of_time(tmp_path: Path) -> None:
    """The table of rates: the LLM with the most weight has the smallest part of the time."""
    made = case("4:0", "2:0", "1:0", timeout_s=60)
    dialogs = run_case(made, tmp_path).summary["dialogs"]
    rates = [one["decode_tokens_per_s"] for one in dialogs.values()]
    assert rates == pytest.approx([14.74, 7.37, 3.68], rel=0.01)
    assert [one["slowdown"]["itl"] for one in dialogs.values()] == pytest.approx([4.65, 1.91, 3.82], rel=0.01)


def test_shares_by_time(tmp_path: Path) -> None:
    made = case("4:0", "2:0", "1:0", discipline="fair-time", timeout_s=60, solo=False)
    summary = run_case(made, tmp_path).summary
    (segment,) = summary["segments"]
    assert segment["unit"] == "time"
    assert [one["time"] for one in segment["achieved"].values()] == pytest.approx([4 / 7, 2 / 7, 1 / 7], abs=2e-3)
    rates = [one["decode_tokens_per_s"] for one in summary["dialogs"].values()]
    assert rates == pytest.approx([39.14, 4.02, 2.01], rel=0.02)


def test_a_simulation_says_so_everywhere_and_is_exact(tmp_path: Path) -> None:
    made = case("4:0", "2:0", tokens=40, repeats=2)
    one, two = (run_case(made, tmp_path, run_id=name) for name in "ab")
    assert (one.status, one.exit_code) == ("complete", 0)
    for name in ("steps.jsonl", "jobs.jsonl", "events.jsonl", "profile.json", "trace.json"):
        assert (one.folder / name).read_bytes() == (two.folder / name).read_bytes()
    assert json.loads((one.folder / "env.json").read_text())["simulated"] is True
    assert one.summary["simulated"] is True
    assert json.loads((one.folder / "trace.json").read_text())["otherData"]["simulated"] is True
    assert "simulated" in (one.folder / "timing.txt").read_text().splitlines()[0]
    assert one.summary["system"]["peak_rss_bytes"] is None
    assert one.summary["system"]["energy_j"] is None
    # The second repeat comes after the first, in the time that is simulated.
    profile = read_profile(one.folder / "profile.json")
    first, second = profile.component("dialog0").queries
    assert second.start_us >= first.start_us + first.duration_us
    assert first.start_us > 1_000_000, "the solo runs were before"
    # Nothing is cold in a simulation, so nothing is warmed up.
    assert {part for part, _ in read_run(one.folder).parts} == {"solo:D0", "solo:D1", "run"}
    # Three prefill chunks of 128 rows for 273 tokens.
    prefill = [s for s in read_run(one.folder).steps if s.part == "run" and s.phase == "prefill" and s.dialog == "D0"]
    assert [(s.tokens, s.padded) for s in prefill] == [(128, 128), (128, 128), (17, 128)] * 2


def test_repeats_of_costs_with_a_jitter_differ(tmp_path: Path) -> None:
    """Otherwise an interval over them would have no width, and say that all is certain."""
    made = case("2:0", "1:0", tokens=30, repeats=3, solo=False)
    models = tuple(replace(one, simulated=replace(one.simulated or LLM, jitter=0.2)) for one in made.models)
    found = [run_case(replace(made, models=models), tmp_path, run_id=name).summary["repeats"] for name in "ab"]
    assert found[0] == found[1]
    interval = found[0]["system.makespan_ms"]
    assert interval["low"] < interval["mean"] < interval["high"]


def test_worst_gaps_stay_within_their_bounds(tmp_path: Path) -> None:
    summary = run_case(case("4:0", "2:0", "1:0", "0.5:0", tokens=100, solo=False), tmp_path).summary
    for one in summary["dialogs"].values():
        assert 0 < one["worst_gap_quanta"] <= one["starvation_bound_quanta"]


def test_a_deadline_keeps_a_policy_s_period(tmp_path: Path) -> None:
    policy = SimulatedModel(stages=(("vision", 7, 1), ("prefix", 15, 1), ("denoise", 0.4, 10)))
    made = case("1:0", "1:0", discipline="deadline", timeout_s=10, solo=False)
    made = replace(made, dialogs=tuple(replace(one, model="llm") for one in made.dialogs))
    arm = dialog("arm", "pi", period_ms=100, deadline_ms=100, iterations=100, ignore_eos=False)
    made = replace(made, models=(*made.models, ModelSpec(name="pi", simulated=policy)), dialogs=(*made.dialogs, arm))
    summary = run_case(made, tmp_path).summary
    found = summary["dialogs"]["arm"]
    assert (found["complete"], found["deadline_misses"]) == (100, 0)
    assert found["job_ms"]["max"] <= 100
    assert summary["segments"][0]["requested"] is None
    assert summary["system"]["goodput_jobs_per_s"] == pytest.approx(10, rel=0.05)


def test_a_context_that_overflows(tmp_path: Path) -> None:
    made = case("1:0", "1:0", tokens=100, solo=False)
    small = replace(LLM, context=900)
    dialogs = (replace(made.dialogs[0], iterations=4, reset="never"), made.dialogs[1])
    models = (ModelSpec(name="llm", simulated=small), made.models[1])
    result = run_case(replace(made, dialogs=dialogs, models=models), tmp_path)
    assert result.exit_code == 3
    assert result.summary["dialogs"]["D0"]["failed"] == 1
    assert "context" in result.summary["dialogs"]["D0"]["error"]
    assert result.summary["dialogs"]["D1"]["complete"] == 1


def test_the_resolved_case_reads_back(tmp_path: Path) -> None:
    made = case("0:0,1:5000", "2.5:0", "1:0", discipline="fair-time", tokens=5, repeats=2, seed=7)
    folder = run_case(made, tmp_path).folder
    (again,) = read_cases(folder / CASE)
    assert again == replace(made, sources=(folder / CASE,))
    assert resolved(again, folder) == json.loads((folder / CASE).read_text())


def test_a_mixture_is_refused(tmp_path: Path) -> None:
    made = case("1:0", "1:0")
    real = replace(made, models=(made.models[0], ModelSpec(name="vlm", bundle=tmp_path / "nowhere")))
    with pytest.raises(CaseError):
        run_case(real, tmp_path / "out")
    with pytest.raises(UsageError, match="mixes simulated models with real ones"):
        is_simulated(real)
    assert not (tmp_path / "out").exists(), "nothing is made of a case that is refused"


def test_only_a_simulation_was_asked_for(files: Files, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only a simulation"):
        run_case(mixed_case(files), tmp_path / "out", simulate=True)
    assert not (tmp_path / "out").exists()
