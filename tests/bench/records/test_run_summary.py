from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgewright.bench.records import summarize, write_outputs
from edgewright.bench.records.rows import JobRow, StepRow
from run_rows import job, served, step, whole_jobs, write_run

COSTS = {"A": 14.6, "B": 71.0, "C": 71.0}
LINES = {"A": "4:0", "B": "2:0", "C": "1:0"}


def solo_rows(name: str, count: int, **facts: object) -> tuple[list[StepRow], list[JobRow]]:
    steps = served(name * count, COSTS, part=f"solo:{name}")
    return steps, whole_jobs(steps, part=f"solo:{name}", facts=facts)


def test_a_whole_run(tmp_path: Path) -> None:
    steps = served("ABACABA" * 20, COSTS)
    jobs = whole_jobs(steps)
    for name in LINES:
        more, ends = solo_rows(name, 30)
        steps, jobs = steps + more, jobs + ends
    events = [
        {"event": "part", "part": "run", "repeat": 0, "held_ns": 3_000_000, "energy_j": None, "bounds": {"A": 3}},
        {"event": "end", "how": "finished", "peak_rss_bytes": 12345},
    ]
    found = summarize(write_run(tmp_path / "c" / "r", LINES, steps, jobs, events))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["schema_version"], found["case"], found["run"]) == (1, "hand-made", "r")
    assert (found["status"], found["simulated"], found["findings"]) == ("complete", False, [])
    (segment,) = found["segments"]
    assert segment["weights"] == {"A": 4.0, "B": 2.0, "C": 1.0}
    assert segment["requested"] == segment["nominal"] == pytest.approx({"A": 4 / 7, "B": 2 / 7, "C": 1 / 7}, rel=1e-5)
    assert segment["achieved"]["A"] == pytest.approx({"quanta": 4 / 7, "time": 0.215}, rel=1e-3)
    assert (segment["unit"], segment["error"], segment["quanta"]) == ("quanta", 0.0, 140)
    dialogs = found["dialogs"]
    assert [dialogs[name]["slowdown"]["itl"] for name in LINES] == pytest.approx([4.65, 1.91, 3.82], rel=0.04)
    assert [dialogs[name]["solo"]["decode_tokens_per_s"] for name in LINES] == pytest.approx(
        [68.5, 14.1, 14.1], rel=0.01
    )
    assert [dialogs[name]["worst_gap_quanta"] for name in LINES] == [1, 3, 6]
    assert dialogs["A"]["starvation_bound_quanta"] == 3
    assert dialogs["B"]["starvation_bound_quanta"] is None
    system = found["system"]
    makespan_s = 20 * 0.2714
    assert system["makespan_ms"] == pytest.approx(1000 * makespan_s)
    assert system["tokens_per_s"] == pytest.approx(140 / makespan_s, rel=1e-5)
    assert (system["busy"], system["held_ms"], system["peak_rss_bytes"]) == (1.0, 3.0, 12345)
    assert system["energy_j"] is None
    assert system["jain_service"] == 1.0
    assert system["jain_raw"] == pytest.approx(1 / (3 * (0.2152**2 + 0.5232**2 + 0.2616**2)), rel=1e-3)
    assert system["jain_progress"] == pytest.approx(0.858, abs=0.015)
    assert found["repeats"]["system.makespan_ms"]["n"] == 1


def test_bounds_are_those_of_the_run_and_not_of_what_prepared_it(tmp_path: Path) -> None:
    """A run that was killed has no end of its last part; alone, no other dialog can come between."""
    steps = served("ABAB", COSTS)
    alone = {"event": "part", "part": "solo:A", "repeat": 0, "bounds": {"A": 0}}
    killed = summarize(write_run(tmp_path / "c" / "r", {"A": "1:0", "B": "1:0"}, steps, [], [alone]))
    assert killed["dialogs"]["A"]["starvation_bound_quanta"] is None
    events = [alone, {**alone, "part": "run", "bounds": {"A": 4, "B": 4}}]
    whole = summarize(write_run(tmp_path / "d" / "r", {"A": "1:0", "B": "1:0"}, steps, [], events))
    assert whole["dialogs"]["A"]["starvation_bound_quanta"] == 4


def test_repeats_are_pooled_and_have_intervals(tmp_path: Path) -> None:
    steps, jobs = [], []
    for repeat, cost in enumerate((10.0, 12.0, 14.0)):
        rows = served("A" * 5, {"A": cost}, repeat=repeat)
        steps += rows
        jobs += whole_jobs(rows, repeat=repeat)
    found = summarize(write_run(tmp_path / "c" / "r", {"A": "1:0"}, steps, jobs))
    assert found["dialogs"]["A"]["itl_ms"]["n"] == 12
    assert found["dialogs"]["A"]["itl_ms"]["mean"] == 12.0
    assert found["dialogs"]["A"]["jobs"] == 3
    assert found["system"]["makespan_ms"] == 60.0
    assert found["repeats"]["dialogs.A.itl_ms.mean"] == {"mean": 12.0, "low": 7.03167, "high": 16.9683, "n": 3}
    assert found["repeats"]["system.makespan_ms"]["mean"] == 60.0
    assert found["repeats"]["segments.0.A"] == {"mean": 1.0, "low": 1.0, "high": 1.0, "n": 3}
    assert "dialogs.A.prefill_tokens_per_s" not in found["repeats"]


def test_warm_and_cold_are_kept_apart(tmp_path: Path) -> None:
    cold = [step("A", 0, 500, part="warmup")]
    warm = served("AAA", {"A": 10.0})
    jobs = [job("A", 0, 500, part="warmup"), *whole_jobs(warm)]
    found = summarize(write_run(tmp_path / "c" / "r", {"A": "1:0"}, cold + warm, jobs))["dialogs"]["A"]
    assert found["cold_ttft_ms"] == 500.0
    assert found["ttft_ms"]["max"] == 10.0
    assert found["jobs"] == 1
    assert found["solo"] is found["slowdown"] is found["same_tokens_as_solo"] is None


def test_tokens_against_the_solo_run(tmp_path: Path) -> None:
    steps, jobs = solo_rows("A", 2, tokens=[5, 6])
    others, ends = solo_rows("B", 2, tokens=[7, 8])
    rows = served("ABAB", COSTS)
    jobs += [*ends, job("A", 0, 180, facts={"tokens": [5, 6]}), job("B", 0, 180, facts={"tokens": [7, 9]})]
    found = summarize(write_run(tmp_path / "c" / "r", {"A": "1:0", "B": "1:0"}, steps + others + rows, jobs))
    assert found["dialogs"]["A"]["same_tokens_as_solo"] is True
    assert found["dialogs"]["B"]["same_tokens_as_solo"] is False
    assert found["findings"] == ["B: its tokens are not those of its solo run."]


FAILED = {"finish": "failed", "error": "The context is full."}


@pytest.mark.parametrize(
    ("ends", "how", "status"),
    [
        ([{}, {}], "finished", "complete"),
        ([{}, FAILED], "finished", "partial"),
        ([{}, {"finish": "stopped"}], "finished", "partial"),
        ([{}], "finished", "partial"),
        ([FAILED, FAILED], "finished", "failed"),
        ([], "finished", "failed"),
        ([{}, FAILED], "fail-fast", "failed"),
        ([{}, {}], "interrupted", "interrupted"),
        ([{}, {}], None, "interrupted"),
    ],
)
def test_the_status(tmp_path: Path, ends: list[dict[str, str]], how: str | None, status: str) -> None:
    jobs = [job(name, 0, 10, **other) for name, other in zip("AB", ends, strict=False)]
    events = [] if how is None else [{"event": "end", "how": how}]
    found = summarize(write_run(tmp_path / "c" / "r", {"A": "1:0", "B": "1:0"}, [], jobs, events))
    assert found["status"] == status
    assert bool(found["findings"]) == (status != "complete")


def test_a_model_that_was_not_loaded(tmp_path: Path) -> None:
    steps = served("AA", COSTS)
    events = [
        {"event": "load", "models": ["m"], "dialogs": ["B"], "error": "No bundle is there."},
        {"event": "end", "how": "finished"},
    ]
    folder = write_run(tmp_path / "c" / "r", {"A": "1:0", "B": "1:0"}, steps, whole_jobs(steps), events)
    found = summarize(folder)
    assert found["status"] == "partial"
    assert found["dialogs"]["B"]["error"] == "No bundle is there."
    assert found["findings"] == ["B: it did not run. No bundle is there."]


def test_disciplines_ask_for_different_shares(tmp_path: Path) -> None:
    steps = served("ABAB" * 20, {"A": 10.0, "B": 30.0})
    asked, fair = {}, {}
    for name in ("weighted", "round-robin", "fair-time", "fifo", "priority", "deadline", "free"):
        folder = write_run(tmp_path / name / "r", {"A": "3:0", "B": "1:0"}, steps, whole_jobs(steps), discipline=name)
        found = summarize(folder)
        (segment,) = found["segments"]
        fair[name] = found["system"]["jain_service"]
        asked[name] = segment["requested"]
        assert segment["achieved"]["B"] == {"quanta": 0.5, "time": 0.75}
    assert asked["weighted"] == asked["fair-time"] == {"A": 0.75, "B": 0.25}
    assert asked["round-robin"] == {"A": 0.5, "B": 0.5}
    assert [name for name, value in fair.items() if value is None] == ["fifo", "priority", "deadline", "free"]
    assert asked["fifo"] is asked["priority"] is asked["deadline"] is asked["free"] is None


def test_shares_that_were_missed_are_told(tmp_path: Path) -> None:
    steps = served("ABAB" * 20, {"A": 10.0, "B": 10.0})
    found = summarize(write_run(tmp_path / "c" / "r", {"A": "3:0", "B": "1:0"}, steps, whole_jobs(steps)))
    assert found["segments"][0]["error"] == 0.25
    assert found["findings"] == [
        "From 0 ms to the end, A had 50.0 % of the steps where 75.0 % was requested."
    ]  # fmt: skip
    assert found["system"]["jain_service"] == pytest.approx((2 / 3 + 2) ** 2 / (2 * (4 / 9 + 4)), rel=1e-5)


def test_goodput_and_deadlines(tmp_path: Path) -> None:
    jobs = [job("A", 0, 90, deadline=100), job("A", 100, 210, deadline=200, iteration=1)]
    found = summarize(write_run(tmp_path / "c" / "r", {"A": "1:0"}, [step("A", 0, 500)], jobs))
    assert found["system"]["goodput_jobs_per_s"] == 2.0
    assert found["findings"] == ["A: 1 of 2 deadlines were missed."]


def test_rows_of_unknown_dialogs_are_left_alone(tmp_path: Path) -> None:
    steps = [*served("AA", COSTS), step("ghost", 0, 5)]
    found = summarize(write_run(tmp_path / "c" / "r", {"A": "1:0"}, steps, whole_jobs(steps)))
    assert list(found["dialogs"]) == ["A"]


def test_the_energy_of_repeats(tmp_path: Path) -> None:
    events = [
        *(
            {"event": "part", "part": "run", "repeat": repeat, "energy_j": energy}
            for repeat, energy in ((0, 2), (1, 4))
        ),
        {"event": "end", "how": "finished"},
    ]
    jobs = [job("A", 0, 10, repeat=repeat) for repeat in (0, 1)]
    found = summarize(write_run(tmp_path / "c" / "r", {"A": "1:0"}, [], jobs, events))
    assert found["system"]["energy_j"] == 3.0
    assert found["repeats"]["system.energy_j"]["n"] == 2


def test_every_file_is_made_again_from_the_rows(tmp_path: Path) -> None:
    steps = served("ABAB", COSTS)
    folder = write_run(tmp_path / "c" / "r", {"A": "1:0", "B": "1:0"}, steps, whole_jobs(steps))
    made = write_outputs(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert {"summary.json", "timing.txt", "profile.json", "trace.json"} <= before.keys()
    assert json.loads(before["summary.json"]) == made
    assert write_outputs(folder) == made
    assert before == {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
