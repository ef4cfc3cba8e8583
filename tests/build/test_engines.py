"""Engines by stage: what may be asked for, and which one measurements pick."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from edgewright.build.choice import Choice, Figures, choice_lines, picked
from edgewright.build.engines import EngineRequest, engine_request
from edgewright.errors import HostError, UsageError

LLM = {"llm": "onnxruntime"}
POLICY = {"vision": "onnxruntime", "prefix": "onnxruntime", "denoise": "onnxruntime"}


@pytest.mark.parametrize(
    ("given", "llm", "policy"),
    [
        (None, LLM, POLICY),
        ("onnxruntime", LLM, POLICY),
        ("openvino", {"llm": "openvino"}, dict.fromkeys(POLICY, "openvino")),
        ("prefill=openvino", {**LLM, "prefill": "openvino"}, None),
        ("llm=openvino,prefill=onnxruntime", {"llm": "openvino", "prefill": "onnxruntime"}, None),
        ("denoise=openvino", None, {**POLICY, "denoise": "openvino"}),
    ],
)
def test_what_may_be_asked_for(
    given: str | None, llm: Mapping[str, str] | None, policy: Mapping[str, str] | None
) -> None:
    request = engine_request(given)
    for wanted, kind in ((llm, False), (policy, True)):
        if wanted is None:
            with pytest.raises(UsageError, match="There is no stage"):
                request.of(policy=kind)
        else:
            assert request.of(policy=kind) == wanted
            assert list(request.of(policy=kind)) == list(wanted)


@pytest.mark.parametrize(
    ("engine", "optimize", "words"),
    [
        ("openvin", None, "The engine 'openvin' is unknown; .*did you mean openvino"),
        ("llm=tensorflow", None, "The engine 'tensorflow' is unknown; known are onnxruntime, openvino"),
        ("prefill=auto", None, "The engine 'auto' is unknown"),
        ("llm=openvino,prefill", None, "is not of the form STAGE=ENGINE"),
        ("llm=openvino,llm=onnxruntime", None, "names the stage llm twice"),
        ("openvino", "latency", "--optimize says what --engine auto picks by"),
        (None, "memory", "--optimize says what --engine auto picks by"),
        ("auto", "speed", "--optimize is latency or memory, not 'speed'"),
    ],
)
def test_what_is_refused(engine: str | None, optimize: str | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        engine_request(engine, optimize)


def test_a_second_stage_on_the_same_engine_is_refused() -> None:
    with pytest.raises(UsageError, match="would be the stage llm once more"):
        engine_request("prefill=onnxruntime").of(policy=False)


def test_engines_are_part_of_the_key_of_a_build_unless_they_are_the_default() -> None:
    assert engine_request(None).key(policy=False) == engine_request("onnxruntime").key(policy=True) == {}
    one, two = (engine_request(f"{stage}=openvino").key(policy=False) for stage in ("llm", "prefill"))
    assert one["engines"] == {"llm": "openvino"}
    assert two["engines"] == {"llm": "onnxruntime", "prefill": "openvino"}
    assert one["engine_compilers"][0]["openvino"]
    keys = [engine_request("auto", by).key(policy=False)["engines"] for by in (None, "latency", "memory")]
    assert keys == ["auto latency", "auto latency", "auto memory"]
    assert engine_request("auto").used == ("onnxruntime", "openvino")
    assert EngineRequest({}) == engine_request(None)


def llm(engine: str, prefill: float, decode: float, peak: int | None = 100) -> Figures:
    return Figures("llm", engine, 5.0, peak, {"prefill": prefill, "decode": decode})


def stage(name: str, engine: str, ms: float, peak: int = 100) -> Figures:
    return Figures(name, engine, 5.0, peak, {"run": ms})


@pytest.mark.parametrize(
    ("openvino", "wanted"),
    [
        ((90.0, 9.0), {"llm": "openvino"}),
        ((110.0, 11.0), {"llm": "onnxruntime"}),
        ((99.0, 9.9), {"llm": "onnxruntime"}),  # not better by enough
        ((80.0, 12.0), {"llm": "onnxruntime", "prefill": "openvino"}),
        ((120.0, 8.0), {"llm": "openvino", "prefill": "onnxruntime"}),
        ((92.0, 12.0), {"llm": "onnxruntime"}),  # wins a phase, but not by enough for weights twice
        ((50.0, 10.5), {"llm": "openvino"}),
    ],
)
def test_latency_picks_an_engine_or_a_pair(openvino: tuple[float, float], wanted: Mapping[str, str]) -> None:
    measured = [llm("openvino", *openvino), llm("onnxruntime", 100.0, 10.0)]
    assert picked(measured, "latency") == wanted
    assert picked(measured[::-1], "latency") == wanted


def test_memory_never_picks_a_pair() -> None:
    measured = [llm("onnxruntime", 100.0, 10.0, 200), llm("openvino", 50.0, 20.0, 150)]
    assert picked(measured, "memory") == {"llm": "openvino"}
    assert picked([measured[0], llm("openvino", 50.0, 20.0, 195)], "memory") == {"llm": "onnxruntime"}
    with pytest.raises(HostError, match="can't be measured on this system"):
        picked([llm("onnxruntime", 1.0, 1.0, None), llm("openvino", 1.0, 1.0, None)], "memory")


def test_stages_of_a_policy_are_picked_one_by_one() -> None:
    measured = [
        *(stage(name, "onnxruntime", 10.0) for name in POLICY),
        stage("vision", "openvino", 8.0, 90),
        stage("prefix", "openvino", 12.0, 110),
    ]
    assert picked(measured, "latency") == {**POLICY, "vision": "openvino"}
    assert picked(measured, "memory") == {**POLICY, "vision": "openvino"}


def test_the_report_in_words() -> None:
    measured = [llm("onnxruntime", 100.0, 10.0, 300_000_000), llm("openvino", 50.0, 20.0, 400_000_000)]
    engines = picked(measured, "latency")
    choice = Choice(engines, "latency", measured, {"llm on other": "no form for it"})
    assert choice.note == (
        "engines measured where it was deployed, the better taken by latency: llm on onnxruntime, prefill on openvino; "
        "the pair holds the weights twice, which takes up to 400 MB of memory besides"
    )
    head, one, two, refused = choice_lines(choice.to_json())
    assert "peak MB" in head
    assert "prefill 100.00 ms, decode 10.00 ms" in one
    assert one.endswith("<- llm")
    assert two.endswith("<- prefill")
    assert refused == "llm on other: refused: no form for it"
    alone = Choice({"llm": "openvino"}, "memory", measured)
    assert alone.note.endswith("by memory: llm on openvino")
    assert choice_lines(alone.to_json())[2].endswith("<- llm")
