"""Profiles: both forms, other names, missing figures, the order of names, and the way back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgewright.errors import GenieError, OutputError
from edgewright.genie.profile import Component, Event, Profile, natural, read_profile, write_profile

GOLDENS = Path(__file__).parent.parent / "goldens"
QUERY = {
    "num-prompt-tokens": (273, ""),
    "prompt-processing-rate": (1511.5, "toks/sec"),
    "time-to-first-token": (180_612, "us"),
    "num-generated-tokens": (21, ""),
    "token-generation-rate": (22.036, "toks/sec"),
    "token-generation-time": (953_000, "us"),
}


def dialog(name: str, queries: int = 1) -> Component:
    events = [Event("GenieDialog_create", 10, 90, {"init-time": (90, "us")})]
    events += [Event("GenieDialog_query", 100 + 2000 * index, 1500, QUERY) for index in range(queries)]
    return Component(name, "dialog", tuple(events))


def stored(folder: Path, data: Any) -> Path:
    path = folder / "profile.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def entry(name: str = "dialog0", kind: str = "dialog", **event: Any) -> dict[str, Any]:
    return {"components": [{"name": name, "type": kind, "events": [{"type": "GenieDialog_query", **event}]}]}


def test_the_layout_that_is_written(tmp_path: Path) -> None:
    write_profile(tmp_path / "p.json", [dialog("dialog0")], timestamp_us=7)
    data = json.loads((tmp_path / "p.json").read_text())
    version = {"major": 0, "minor": 1, "patch": 0}
    assert list(data) == ["header", "metadata", "components"]
    assert data["header"] == {"header_version": version, "version": version, "artifact_type": "GENIE_PROFILE"}
    assert data["metadata"] == {"timestamp": 7}
    query = data["components"][0]["events"][1]
    assert list(query)[:4] == ["type", "duration", "start", "stop"]
    assert (query["start"], query["duration"], query["stop"]) == (100, 1500, 1600)
    assert query["num-prompt-tokens"] == {"value": 273, "unit": ""}
    assert query["token-generation-rate"] == {"value": 22.036, "unit": "toks/sec"}


def test_eleven_dialogs_there_and_back(tmp_path: Path) -> None:
    components = [dialog(f"dialog{index}", queries=1 + index % 3) for index in range(11)]
    write_profile(tmp_path / "p.json", components, timestamp_us=3)
    names = [one["name"] for one in json.loads((tmp_path / "p.json").read_text())["components"]]
    assert names[:4] == ["dialog0", "dialog1", "dialog10", "dialog2"]
    profile = read_profile(tmp_path / "p.json")
    assert profile == Profile(tuple(components), 3)
    assert [len(one.queries) for one in profile.dialogs] == [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2]


def test_natural_order() -> None:
    assert sorted(["dialog10", "dialog2", "engine_dialog1", "dialog"], key=natural) == [
        "dialog", "dialog2", "dialog10", "engine_dialog1",
    ]  # fmt: skip
    long = "dialog" + "1" * 5000
    assert sorted([long + "2", "dialog²", long, "²", "dialog007", "8"], key=natural) == [
        "8", "dialog007", long, long + "2", "dialog²", "²",
    ]  # fmt: skip


def test_the_pipeline_form(tmp_path: Path) -> None:
    data = entry("pipeline0", "pipeline", start=5, duration=7, stop=12)
    data["components"][0]["events"][0]["type"] = "GeniePipeline_execute"
    data["components"].append({"name": "node0", "type": "node", "events": []})
    profile = read_profile(stored(tmp_path, data))
    assert [one.name for one in profile.components] == ["node0", "pipeline0"]
    (pipeline,) = profile.dialogs
    assert pipeline.queries == (Event("GeniePipeline_execute", 5, 7),)
    assert not pipeline.queries[0].complete


def test_names_that_drifted(tmp_path: Path) -> None:
    figures = {name: {"value": 5, "unit": "us"} for name in ("apply-engine-state-time", "lora-adapter-switch-time")}
    (event,) = read_profile(stored(tmp_path, entry(**figures))).components[0].events
    assert event.kpis == {"apply-engine-state": (5, "us"), "lora-adapter-switching-time": (5, "us")}


def test_a_query_that_failed_has_no_figures(tmp_path: Path) -> None:
    (event,) = read_profile(stored(tmp_path, entry(start=1, stop=4))).components[0].queries
    assert (event.duration_us, event.stop_us, event.complete) == (3, 4, False)


def test_events_are_found_by_type(tmp_path: Path) -> None:
    events = [{"type": f"GenieDialog_{name}"} for name in ("create", "applyLora", "query", "free")]
    data = {"components": [{"name": "dialog0", "type": "dialog", "events": events}]}
    component = read_profile(stored(tmp_path, data)).component("dialog0")
    assert [one.type for one in component.queries] == ["GenieDialog_query"]
    assert [one.type for one in component.of_type("GenieDialog_free")] == ["GenieDialog_free"]


def test_what_the_library_writes_before_there_is_a_component(tmp_path: Path) -> None:
    profile = read_profile(stored(tmp_path, {"metadata": {"timestamp": 13184656583}, "components": None}))
    assert profile == Profile((), 13184656583)
    write_profile(tmp_path / "empty.json", [], 1)
    assert json.loads((tmp_path / "empty.json").read_text())["components"] is None


def test_trace_events_and_figures_without_a_unit(tmp_path: Path) -> None:
    data = entry(start={"value": 4, "unit": "us"}, **{"num-prompt-tokens": 3}) | {"traceEvents": [{"ph": "X"}]}
    profile = read_profile(stored(tmp_path, data))
    assert profile.trace == ({"ph": "X"},)
    assert profile.components[0].events[0] == Event("GenieDialog_query", 4, 0, {"num-prompt-tokens": (3, "")})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "not a Genie profile"),
        ('{"dialog": {}}', "not a Genie profile"),
        ('{"components": [], "header": {"artifact_type": "OTHER"}}', "not a Genie profile"),
        ('{"components": [', "is no JSON"),
        ('{"components": NaN}', "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ('{"components": {}}', "components is not an array"),
        ('{"components": [3]}', r"components\[0\] is not an object"),
        ('{"components": [{"type": "dialog"}]}', r"components\[0\].name is not a string"),
        ('{"components": [{"name": "d\\ud800", "type": "dialog"}]}', r"\.name is not a string of printable"),
        ('{"components": [{"name": "d", "type": "\\u001b[2J"}]}', r"\.type is not a string of printable"),
        ('{"components": [{"name": "d", "type": "x", "events": [{"type": "q", "\\udfff": 1}]}]}', r"'.udfff' is not"),
        (
            '{"components": [{"name": "d", "type": "x", "events": [{"type": "q", "k": {"value": 1, "unit": "\\t"}}]}]}',
            r"\.k\.unit is not",
        ),
        ('{"components": [{"name": "d", "type": "dialog", "events": [{"type": 1}]}]}', r"events\[0\].type"),
        ('{"components": [{"name": "d", "type": "x", "events": [{"type": "q", "start": "soon"}]}]}', r"\.start"),
        ('{"components": [{"name": "d", "type": "x", "events": [{"type": "q", "stop": 4e18}]}]}', r"\.stop is not"),
        ('{"components": [{"name": "d", "type": "x", "events": [{"type": "q", "start": -1e17}]}]}', r"\.start is not"),
        ('{"components": [{"name": "d", "type": "x", "events": [{"type": "q", "k": {"value": "1"}}]}]}', r"\.k is not"),
    ],
)
def test_what_is_no_profile(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(GenieError, match=said):
        read_profile(path)


def test_a_missing_file_and_a_missing_component(tmp_path: Path) -> None:
    with pytest.raises(GenieError, match="can't be read"):
        read_profile(tmp_path / "nothing.json")
    with pytest.raises(GenieError, match="no component 'dialog1': it has dialog0"):
        Profile((dialog("dialog0"),)).component("dialog1")


def test_what_can_t_be_written(tmp_path: Path) -> None:
    with pytest.raises(GenieError, match="one name"):
        write_profile(tmp_path / "p.json", [dialog("dialog0"), dialog("dialog0")], 0)
    bad = Component("d", "dialog", (Event("q", 0, 0, {"rate": (float("inf"), "")}),))
    with pytest.raises(GenieError, match="'rate'"):
        write_profile(tmp_path / "p.json", [bad], 0)
    with pytest.raises(OutputError):
        write_profile(tmp_path / "no" / "folder.json", [], 0)


def test_a_profile_of_the_library_s_own() -> None:
    profile = read_profile(GOLDENS / "genie" / "node_profile.json")
    assert [(one.name, one.type) for one in profile.components] == [("node0", "node"), ("pipeline0", "pipeline")]
    node, pipeline = profile.components
    assert [event.type for event in node.events] == ["GenieNode_create", "GenieNode_execute"]
    (query,) = pipeline.queries
    assert query.kpis["node0"][1] == "us"
    assert query.complete
    assert profile.timestamp_us is not None
    assert profile.timestamp_us < node.events[0].start_us < node.events[0].stop_us <= query.start_us


def test_it_is_written_as_it_was_read(tmp_path: Path) -> None:
    path = GOLDENS / "genie" / "node_profile.json"
    profile = read_profile(path)
    write_profile(tmp_path / "p.json", profile.components, profile.timestamp_us or 0)
    assert (tmp_path / "p.json").read_text() == path.read_text()
