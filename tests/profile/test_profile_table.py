from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from profile_cases import decode_phase, layer, profile_of, write_json

from edgewright.errors import ProfileError
from edgewright.files import canonical_json
from edgewright.profile.diff import diff
from edgewright.profile.document import read_profile, to_json
from edgewright.profile.profile import Peaks
from edgewright.profile.table import OUTSIDE, VIEWS, percentiles, rows, total
from edgewright.profile.trace import chrome_trace

PEAKS = Peaks("here", 4e9, {"float": 1e9, "int8": 2e9})


def test_rows_by_hand() -> None:
    found = {row.label: row for row in rows(decode_phase(), PEAKS)}
    assert list(found) == ["attention", "no module", "norm", OUTSIDE]
    attention = found["attention"]
    assert (attention.mean_ms, attention.p50_ms, attention.layers, attention.calls) == (5.0, 5.0, 1, 1)
    assert attention.p95_ms == pytest.approx(4 + 0.95 * 2)
    assert attention.deviation_ms == pytest.approx(statistics.stdev([4.0, 6.0]))
    assert attention.share == pytest.approx(5 / 12)
    # 3 M multiply-adds and 8 MB in 5 ms; at the peaks 3 ms of int8 and 2 ms of bytes.
    assert attention.macs_per_s == pytest.approx(0.6e9)
    assert attention.bytes_per_s == pytest.approx(1.6e9)
    assert (attention.of_peak, attention.bound) == (pytest.approx(3 / 5), "compute")
    norm = found["norm"]
    assert (norm.of_peak, norm.bound) == (pytest.approx(400 / 4e9 / 1e-3), "bandwidth")
    assert norm.macs_per_s is None
    outside = found[OUTSIDE]
    assert (outside.mean_ms, outside.p50_ms) == (3.5, 3.5)  # 10 - 7 and 14 - 10
    assert outside.of_peak is None


@pytest.mark.parametrize("view", VIEWS)
def test_rows_add_up(view: str) -> None:
    phase = decode_phase()
    found = rows(phase, PEAKS, view)
    assert sum(row.mean_ms for row in found) == pytest.approx(phase.mean_ms)
    assert sum(row.share for row in found) == pytest.approx(1)
    whole = total(phase, PEAKS)
    assert (whole.macs, whole.bytes) == (3_000_000, 8_000_400)
    assert sum(row.macs for row in found) == whole.macs
    assert whole.p50_ms == 12.0


def test_labels_of_views() -> None:
    phase = decode_phase()
    fused = replace(phase.layers[0], modules=("a.x", "a.y", "a.z", "a.w"))
    phase = replace(phase, layers=(fused, *phase.layers[1:]))
    assert [row.label for row in rows(phase, PEAKS, "module")[:3]] == ["a.x + a.y + 2 more", "no module", "a.norm"]
    assert [row.label for row in rows(phase, PEAKS, "op")[:3]] == ["MatMul", "Copy", "RMSNorm"]
    assert [row.label for row in rows(phase, PEAKS, "layer")[:3]] == ["q/Linear", "copy", "n/RMSNorm"]


def test_peaks_that_are_not_known() -> None:
    (attention, *_) = rows(decode_phase(), Peaks("here", 4e9, {"float": 1e9}))
    assert (attention.of_peak, attention.bound) == (None, None)
    (attention, *_) = rows(decode_phase(), Peaks("here", None, {"int8": 1e9}))
    assert attention.of_peak is None


def test_means_alone() -> None:
    phase = decode_phase()
    means = tuple(replace(one, times_ms=(), median_ms=one.mean_ms / 2) for one in phase.layers)
    found = rows(replace(phase, layers=means, totals_ms=()), PEAKS)
    assert (found[0].mean_ms, found[0].p50_ms, found[0].p95_ms, found[0].deviation_ms) == (5.0, 2.5, None, None)
    assert found[-1].p50_ms is None
    mixed = rows(replace(phase, layers=means), PEAKS)  # whole runs are known one by one, layers are not
    assert mixed[-1].mean_ms == pytest.approx(3.5)
    assert mixed[-1].p50_ms is None
    assert total(replace(phase, layers=means), PEAKS).p50_ms == 12.0
    assert percentiles(()) == (None, None, None, None)
    assert percentiles((3.0,)) == (3.0, 3.0, 3.0, None)


def test_a_profile_comes_back_as_it_was(tmp_path: Path) -> None:
    profile = profile_of(decode_phase(), peaks=PEAKS)
    path = tmp_path / "p.json"
    path.write_bytes(canonical_json(to_json(profile)))
    assert read_profile(path) == profile
    data = to_json(profile)
    assert [row["label"] for row in data["phases"][0]["groups"]] == ["attention", "no module", "norm", OUTSIDE]


def changed(**keys: object) -> dict[str, object]:
    return {**to_json(profile_of(decode_phase(), peaks=PEAKS)), **keys}


def test_hostile_documents(tmp_path: Path) -> None:
    layers = changed()["phases"][0]["layers"]  # type: ignore[index]
    phase = changed()["phases"][0]  # type: ignore[index]
    cases = [
        ([], "is no profile"),
        ({"format": "edgewright-profile"}, "layout"),
        (changed(schema=2), "layout 2"),
        (changed(peaks={}), "lacks or misspells"),
        (changed(phases={}), "lacks or misspells a list"),
        (changed(phases=[5]), "lacks or misspells"),
        (changed(notes=[5]), "a text"),
        (changed(peak_rss_bytes=-1), "a count"),
        (changed(phases=[{**phase, "totals_ms": [1, 2, 3]}]), "times_ms"),
        (changed(phases=[{**phase, "mean_ms": -1}]), "a time"),
        (changed(phases=[{**phase, "timeline": [[9, 0, 0]]}]), "timeline"),
        (changed(phases=[{**phase, "timeline": [[0, 0]]}]), "lacks or misspells"),
        (changed(phases=[{**phase, "layers": [{**layers[0], "bytes": 1.5}]}]), "a count"),
        (changed(phases=[{**phase, "layers": [{**layers[0], "macs": {"int8": True}}]}]), "a count"),
    ]
    for data, words in cases:
        with pytest.raises(ProfileError, match=words):
            read_profile(write_json(tmp_path / "p.json", data))


def test_a_diff_by_hand() -> None:
    before = decode_phase()
    after = replace(
        before,
        layers=(layer("q/Linear", (8.0, 8.0), module="a.q_proj", group="attention"), before.layers[1],
                layer("new", (0.5, 0.7), module="a.new", group="mlp")),
        totals_ms=(12.0, 12.0), mean_ms=12.0,
    )  # fmt: skip
    (found,) = diff(profile_of(before), profile_of(after), "module")
    changes = {change.label: change for change in found.changes}
    assert list(changes) == ["a.q_proj", "no module", OUTSIDE, "a.new", "a.norm"]
    q = changes["a.q_proj"]
    assert (q.before_ms, q.after_ms, q.change_ms, q.relative) == (5.0, 8.0, 3.0, pytest.approx(0.6))
    # The mean of 4 and 6 has a standard error of 1, that of 8 and 8 none.
    assert q.noise_ms == pytest.approx(2.0)
    assert q.certain is True
    gone = changes["no module"]
    assert (gone.after_ms, gone.change_ms, gone.noise_ms) == (None, -2.5, pytest.approx(1.0))
    assert (changes["a.new"].before_ms, changes["a.new"].relative) == (None, None)
    assert (changes["a.norm"].change_ms, changes["a.norm"].certain) == (0.0, False)
    assert (found.total.change_ms, found.total.certain) == (0.0, False)
    assert sum(change.change_ms for change in found.changes) == pytest.approx(found.total.change_ms)


def test_what_can_t_be_compared() -> None:
    before = profile_of(decode_phase())
    with pytest.raises(ProfileError, match="no phase in common"):
        diff(before, profile_of(replace(decode_phase(), name="prefill")))
    with pytest.raises(ProfileError, match="other sizes"):
        diff(before, profile_of(replace(decode_phase(), sizes={"tokens": 1, "past": 64})))
    means = tuple(replace(one, times_ms=()) for one in decode_phase().layers)
    (found,) = diff(before, profile_of(replace(decode_phase(), layers=means)))
    assert all(change.certain is None for change in found.changes if change.label != OUTSIDE)
    assert found.total.certain is False


def test_the_trace() -> None:
    trace = chrome_trace(profile_of(decode_phase()))
    events = trace["traceEvents"]
    for event in events:
        assert event["ph"] in ("M", "X")
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            assert isinstance(event["cat"], str)
    assert [(e["name"], e["args"]["name"]) for e in events if e["ph"] == "M"] == [
        ("process_name", "decode (tokens 1, past 32)"),
        ("thread_name", "parts of the model"),
        ("thread_name", "layers"),
    ]
    spans = [(e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert spans == [
        (1, "attention", 100.0, 4000.0), (1, "norm", 4100.0, 1000.0), (1, "no module", 6000.0, 2000.0),
        (2, "q/Linear", 100.0, 4000.0), (2, "n/RMSNorm", 4100.0, 1000.0), (2, "copy", 6000.0, 2000.0),
    ]  # fmt: skip
    assert events[-3]["args"] == {"modules": ["a.q_proj"], "stage": "llm", "MACs": 3_000_000, "bytes": 8_000_000}


def test_a_trace_without_a_timeline_has_layers_one_after_the_other() -> None:
    trace = chrome_trace(profile_of(replace(decode_phase(), timeline=())))
    spans = [(e["name"], e["ts"], e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X" and e["tid"] == 2]
    assert spans == [("q/Linear", 0.0, 5000.0), ("n/RMSNorm", 5000.0, 1000.0), ("copy", 6000.0, 2500.0)]
