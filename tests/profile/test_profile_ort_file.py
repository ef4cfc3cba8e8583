from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from profile_cases import GOLDENS, write_json

from edgewright.errors import ProfileError
from edgewright.profile.layers import own_times
from edgewright.profile.ort_file import read_onnxruntime


def node(name: str, start: int, length: int, **given: Any) -> dict[str, Any]:
    return {"cat": "Node", "ph": "X", "name": f"{name}_kernel_time", "ts": start, "dur": length, "args": given}


def run(start: int, length: int) -> dict[str, Any]:
    return {"cat": "Session", "ph": "X", "name": "model_run", "ts": start, "dur": length, "args": {}}


def test_the_golden_has_three_runs_of_two_sizes() -> None:
    profile = read_onnxruntime(GOLDENS / "ort.json")
    assert profile.engine == "onnxruntime"
    assert [one.rows for one in profile.runs] == [7, 1, 1]
    assert profile.runs[0].shape != profile.runs[1].shape == profile.runs[2].shape
    assert {len(one.events) for one in profile.runs} == {203}
    raw = json.loads((GOLDENS / "ort.json").read_text())
    wanted = sum(event["dur"] for event in raw if event["cat"] == "Node")
    # No node is inside of another here, so that nothing is taken off.
    assert sum(event.us for one in profile.runs for event in one.events) == wanted
    assert [one.us for one in profile.runs] == [event["dur"] for event in raw if event["name"] == "model_run"]
    first = profile.runs[0].events[0]
    assert (first.name, first.kind, first.place) == ("model.embed_tokens/Embedding", "Gather", 0)


def test_a_loop_leaves_the_time_of_its_body_to_the_nodes_in_it(tmp_path: Path) -> None:
    events = [run(100, 100), node("loop", 110, 50, op_name="Loop", node_index="3"),
              node("inner", 120, 20, op_name="Mul", node_index="0"), node("inner", 145, 10, op_name="Mul"),
              node("after", 165, 5, op_name="Add", node_index="4")]  # fmt: skip
    (found,) = read_onnxruntime(write_json(tmp_path / "p.json", events)).runs
    assert [(e.name, e.us, e.whole_us, e.place, e.inside) for e in found.events] == [
        ("loop", 20, 50, 3, -1),
        ("inner", 20, 20, -1, 0),
        ("inner", 10, 10, -1, 0),
        ("after", 5, 5, 4, -1),
    ]
    assert found.events[0].start_us == 10


def test_own_times_of_spans_in_spans() -> None:
    spans = [(0.0, 10.0), (1.0, 4.0), (2.0, 1.0), (6.0, 6.0), (12.0, 1.0)]
    assert own_times(spans) == ([2.0, 3.0, 1.0, 6.0, 1.0], [-1, 0, 1, 0, -1])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "holds no run"),
        ({"traceEvents": []}, "no list of trace events"),
        ([1, 2], "no list of trace events"),
        ([run(0, 10), node("a", 5, 10)], "ran outside of any run"),
        ([run(10, 10), node("a", 5, 2)], "ran outside of any run"),
        ([run(0, 10), node("a", -5, 2)], "no time"),
        ([run(0, 10), {**node("a", 1, 2), "dur": "2"}], "dur '2' where a number is needed"),
        ([run(0, 10), {**node("a", 1, 2), "dur": True}], "dur True"),
        ([run(0, 10), {**node("a", 1, 2), "name": "x" * 70_000 + "_kernel_time"}], "where a name is needed"),
    ],
)
def test_hostile_files(tmp_path: Path, data: object, words: str) -> None:
    with pytest.raises(ProfileError, match=words) as error:
        read_onnxruntime(write_json(tmp_path / "p.json", data))
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("text", ["", "{", "[1,", "[" * 100_000, '[{"a": NaN}', "\xff"])
def test_no_json(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ProfileError, match=r"p\.json"):
        read_onnxruntime(path)


def test_odd_facts_of_nodes_are_left_out(tmp_path: Path) -> None:
    odd = node("a", 1, 2, op_name=7, node_index="x", parameter_size="8", output_type_shape=[{"float": "no"}])
    data = [run(0, 10), odd, {"cat": "Node", "ph": "X", "name": 5}, {"ph": "B"}]
    (found,) = read_onnxruntime(write_json(tmp_path / "p.json", data)).runs
    assert (found.events[0].kind, found.events[0].place, found.rows, found.shape) == ("", -1, None, ())


def test_names_are_printable(tmp_path: Path) -> None:
    """No control character reaches a terminal, and no half of a pair a file that must be UTF-8."""
    spans = [
        {"ph": "X", "cat": "Session", "name": "model_run", "ts": 0, "dur": 50},
        {"ph": "X", "cat": "Node", "name": "a\x1b[2J_kernel_time", "ts": 0, "dur": 1, "args": {"op_name": "M\n"}},
        {"ph": "X", "cat": "Node", "name": "b\ud800_kernel_time", "ts": 2, "dur": 1},
    ]
    (run,) = read_onnxruntime(write_json(tmp_path / "p.json", spans)).runs
    assert [(event.name, event.kind) for event in run.events] == [(r"a\x1b[2J", r"M\n"), (r"b\ud800", "")]


def test_shapes_without_sense_tell_nothing(tmp_path: Path) -> None:
    for shape in ([1 << 60] * 9, [2] * 100_000, [-1, 3], ["n", 3]):
        args = {"parameter_size": "8", "output_type_shape": [{"float": shape}]}
        spans = [
            {"ph": "X", "cat": "Session", "name": "model_run", "ts": 0, "dur": 50},
            {"ph": "X", "cat": "Node", "name": "a_kernel_time", "ts": 0, "dur": 1, "args": args},
        ]
        (run,) = read_onnxruntime(write_json(tmp_path / "p.json", spans)).runs
        assert (run.rows, run.shape) == (None, ())


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    raw = json.loads((GOLDENS / "ort.json").read_text())
    cut = copy.deepcopy(raw[:300])  # the second run's end is missing
    with pytest.raises(ProfileError, match="outside of any run"):
        read_onnxruntime(write_json(tmp_path / "p.json", cut))
