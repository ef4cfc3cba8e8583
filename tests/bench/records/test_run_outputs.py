from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from edgewright.bench.records import PROFILE, TIMING, TRACE, read_run, write_outputs
from edgewright.bench.records import trace as trace_module
from edgewright.bench.records.energy import EnergyMeter
from edgewright.bench.records.environment import environment
from edgewright.bench.records.timing import columns
from edgewright.genie import read_profile
from run_rows import job, served, step, whole_jobs, write_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    steps = [
        step("A", 2, 10, ready=0, phase="prefill", tokens=100, padded=128),
        step("B", 10, 15, ready=1, done=16, weight=2.0),
        step("A", 15, 20, ready=10, index=1, held=100),
    ]
    jobs = [job("A", 0, 21, facts={"prompt_tokens": 100, "generated_tokens": 2}), job("B", 0, 16, ready=1)]
    return write_run(tmp_path / "case" / "r", {"A": "1:0", "B": "2:0,0:18"}, steps, jobs, simulated=True)


def test_the_trace_has_a_track_for_the_accelerator_and_for_each_dialog(folder: Path) -> None:
    write_outputs(folder)
    data = json.loads((folder / TRACE).read_text())
    assert data["otherData"] == {"case": "hand-made", "simulated": True, "steps": 3, "steps_left_out": 0}
    events = data["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {(1, 0): "accelerator", (1, 1): "A", (1, 2): "B"}
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["run 0 (simulated)"]
    slices = [(e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert slices == [
        (0, "A prefill", 2000, 8000), (1, "wait", 0, 2000), (1, "prefill", 2000, 8000),
        (0, "B decode", 10000, 5000), (2, "wait", 1000, 9000), (2, "decode", 10000, 5000), (2, "host", 15000, 1000),
        (0, "A decode", 15000, 5000), (1, "wait", 10000, 5000), (1, "decode", 15000, 5000),
    ]  # fmt: skip
    counters = [(e["name"], e["ts"], e["args"]["weight"]) for e in events if e["ph"] == "C"]
    assert counters == [("weight of A", 0, 1), ("weight of B", 0, 2), ("weight of B", 18000, 0)]
    # The accelerator does one thing at a time.
    on = sorted((start, start + length) for track, _, start, length in slices if track == 0)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(on))


def test_a_long_run_is_cut_and_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "MOST_STEPS", 2)
    write_outputs(folder)
    data = json.loads((folder / TRACE).read_text())
    assert data["otherData"]["steps_left_out"] == 1
    assert sum(e["ph"] == "X" and e["tid"] == 0 for e in data["traceEvents"]) == 2


def test_the_trace_of_nothing_is_json(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "c" / "r", {"A": "1:0"})
    write_outputs(folder)
    assert json.loads((folder / TRACE).read_text())["traceEvents"] == []


def test_the_profile_has_the_library_s_layout_and_biases(tmp_path: Path) -> None:
    """953 ms from the first of 21 tokens: the library says 22.036 tok/s."""
    steps = [step("A", 47.65 * i, 47.65 * i + 40, index=i) for i in range(21)]
    jobs = [
        job("A", 0, 993, facts={"prompt_tokens": 7}),
        job("B", 0, 993, finish="failed", error="no"),
        job("C", 0, 993, finish="stopped"),
    ]
    events = [
        {"event": "load", "models": ["m"], "dialogs": ["A", "B"], "start_ms": 1.0, "ms": 250.5, "error": None},
        {"event": "begin", "part": "run", "repeat": 0, "start_ms": 1000.0},
        {"event": "end", "how": "finished"},
    ]
    folder = write_run(tmp_path / "c" / "r", dict.fromkeys("ABC", "1:0"), steps, jobs, events)
    write_outputs(folder)
    profile = read_profile(folder / PROFILE)
    assert [(one.name, one.type) for one in profile.components] == [(f"dialog{i}", "dialog") for i in range(3)]
    create, query = profile.component("dialog0").events
    assert (create.type, create.start_us, create.duration_us) == ("GenieDialog_create", 1000, 250500)
    assert create.kpis == {"init-time": (250500, "us")}
    assert (query.type, query.start_us, query.duration_us) == ("GenieDialog_query", 1_000_000, 993_000)
    assert query.kpis["num-generated-tokens"] == (21, "")
    assert query.kpis["num-prompt-tokens"] == (7, "")
    assert query.kpis["time-to-first-token"] == (40_000, "us")
    assert query.kpis["token-generation-time"] == (953_000, "us")
    assert query.kpis["token-generation-rate"][0] == pytest.approx(22.036, abs=5e-4)
    # A query that failed leaves no event, one that was stopped leaves one without figures.
    assert profile.component("dialog1").queries == ()
    assert [event.kpis for event in profile.component("dialog2").queries] == [{}]


def test_repeats_follow_one_another_in_the_profile(tmp_path: Path) -> None:
    steps, jobs = [], []
    for repeat in (0, 1):
        rows = served("AA", {"A": 10.0}, repeat=repeat)
        steps, jobs = steps + rows, jobs + whole_jobs(rows, repeat=repeat)
    events = [{"event": "begin", "part": "run", "repeat": repeat, "start_ms": 100.0 * repeat} for repeat in (0, 1)]
    folder = write_run(tmp_path / "c" / "r", {"A": "1:0"}, steps, jobs, [*events, {"event": "end", "how": "finished"}])
    write_outputs(folder)
    queries = read_profile(folder / PROFILE).component("dialog0").queries
    assert [(one.start_us, one.duration_us) for one in queries] == [(0, 20_000), (100_000, 20_000)]
    assert all(one.kpis["num-generated-tokens"] == (2, "") for one in queries)


def test_timing_is_for_people(folder: Path) -> None:
    write_outputs(folder)
    text = (folder / TIMING).read_text()
    assert text.startswith("hand-made / r: complete, simulated: times are a cost model's, not a device's\n")
    row = next(line.split() for line in text.splitlines() if line.startswith("A "))
    assert row[:4] == ["A", "1/1", "10", "10"]
    assert "0-18 ms" in text
    assert "33.3 | 66.7 | 72.2" in text


def test_columns_are_aligned() -> None:
    assert columns(("a", "bb"), [("long", 1), ("x", 22)]) == "a     bb\nlong   1\nx     22"


def test_energy_is_counted_where_there_is_a_counter(tmp_path: Path) -> None:
    assert EnergyMeter(tmp_path).joules() is None
    for number, begin in ((0, 1_000_000), (1, 9_000_000)):
        package = tmp_path / f"intel-rapl:{number}"
        package.mkdir()
        (package / "name").write_text(f"package-{number}\n")
        (package / "energy_uj").write_text(f"{begin}\n")
        (package / "max_energy_range_uj").write_text("9999999\n")
    # A part of a package, which is in it already, and the whole machine, which holds the packages.
    for name, what in (("intel-rapl:0:0", "core"), ("intel-rapl:2", "psys")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text(f"{what}\n")
        (tmp_path / name / "energy_uj").write_text("5\n")
    meter = EnergyMeter(tmp_path)
    assert meter.joules() == 0.0
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("3500000")
    (tmp_path / "intel-rapl:2" / "energy_uj").write_text("7000000")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("500000")  # came to its end and began anew
    assert meter.joules() == 2.5 + 1.5
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("secret")
    assert meter.joules() is None


def test_an_environment_names_versions_and_machine() -> None:
    found = environment(simulated=True, threads=2)
    assert json.loads(json.dumps(found)) == found
    assert found["simulated"] is True
    assert found["threads"] == 2
    assert found["versions"].keys() >= {"edgewright", "python", "onnxruntime", "numpy"}
    assert found["machine"]["logical_cores"] >= 1


def test_a_run_can_be_read_after_all_was_written(folder: Path) -> None:
    made = write_outputs(folder)
    assert read_run(folder).summary == made


def test_a_cut_leaves_the_run_and_not_what_prepared_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "MOST_STEPS", 3)
    steps = [*served("AAA", {"A": 5.0}, part="solo:A"), *served("AA", {"A": 5.0})]
    folder = write_run(tmp_path / "c" / "r", {"A": "1:0"}, steps, whole_jobs(steps))
    write_outputs(folder)
    data = json.loads((folder / TRACE).read_text())
    names = {e["pid"]: e["args"]["name"] for e in data["traceEvents"] if e["name"] == "process_name"}
    drawn = [names[e["pid"]] for e in data["traceEvents"] if e["ph"] == "X" and e["tid"] == 0]
    assert sorted(drawn) == ["run 0", "run 0", "solo:A"]
    assert data["otherData"]["steps_left_out"] == 2
