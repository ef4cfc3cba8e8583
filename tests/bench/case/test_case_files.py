"""Case files and registries: what is read, and every mistake with its line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewright.bench.case import CaseError, read_cases
from edgewright.bench.case.files import read_case, read_registry
from edgewright.bench.case.spec import (
    Case,
    DialogSpec,
    InputSpec,
    ModelSpec,
    RunnerSpec,
    RunSpec,
    SchedulerSpec,
    SimulatedModel,
)
from edgewright.bench.case.writer import to_yaml
from edgewright.errors import UsageError
from edgewright.runtime.encoding import EmbeddingFile, Encoding
from edgewright.runtime.scheduling.timeline import Timeline

ENCODING = Encoding("uint16", 0.00031563572701998055, -32937)
GOOD = """\
version: 1
name: llm_2vlm
models:
  llm: {bundle: smollm2}
  vlm: {bundle: outside, table: "table.bin,uint16,0.00031563572701998055,-32937"}
dialogs:
  - {name: chat, model: llm, input: {prompt: "Hello"}, max_tokens: 64, weight: 4}
  - model: vlm
    input: {embedding: "in.bin,uint16,0.00031563572701998055,-32937"}
    timeline: "4:0,0:5000,4:20000"
scheduler: {discipline: weighted, hold_ms: 1.5, prefill_chunk: 64}
run: {warmup: 0, repeats: 3, on_error: fail-fast, solo: false, threads: 2}
"""


def written(folder: Path, text: str, name: str = "case.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def problems_of(path: Path) -> list[str]:
    with pytest.raises(CaseError) as caught:
        read_case(path)
    return [str(problem) for problem in caught.value.problems]


def test_a_case_file(tmp_path: Path) -> None:
    case = read_case(written(tmp_path, GOOD))
    assert (case.name, case.sources) == ("llm_2vlm", (tmp_path / "case.yaml",))
    llm, vlm = case.models
    assert (llm.bundle, llm.table) == (tmp_path / "smollm2", "bundle")
    assert vlm.table == EmbeddingFile(tmp_path / "table.bin", ENCODING, stated=True)
    chat, second = case.dialogs
    assert (chat.name, chat.input.prompt, chat.max_tokens) == ("chat", "Hello", 64)
    assert chat.timeline == Timeline.constant(4)
    assert (second.name, second.timeline) == ("D1", Timeline.parse("4:0,0:5000,4:20000"))
    assert second.input.embedding == EmbeddingFile(tmp_path / "in.bin", ENCODING, stated=True)
    assert case.scheduler == SchedulerSpec(discipline="weighted", hold_ms=1.5, prefill_chunk=64)
    assert case.run == RunSpec(warmup=0, repeats=3, on_error="fail-fast", solo=False, threads=2)
    assert case.places["dialogs.D1"] == "case.yaml:8"
    assert case.model_of(second) is vlm


def test_the_same_in_json(tmp_path: Path) -> None:
    import yaml

    path = written(tmp_path, json.dumps(yaml.safe_load(GOOD), indent=1), "case.json")
    assert replace(read_case(path), sources=()) == replace(read_case(written(tmp_path, GOOD)), sources=())


def test_all_mistakes_at_once_each_with_its_line(tmp_path: Path) -> None:
    text = """\
version: 2
nam: x
models:
  llm: {bundel: smollm2, bundle: 3}
  vlm: {bundle: a, table: "table.bin,uint16,nan,-32937"}
  vlm: {bundle: b}
dialogs:
  - {name: chat/x, model: lln, input: {prompt: ""}, max_tokens: 0, weight: 4, timeline: "4@0"}
  - {input: {embedding: "a,b,c"}, weight: -1}
  - 3
  - {model: llm, weight: 1, timeline: "1:0", sampling: {temperatur: 1}}
  - {model: llm, sampling: {top_p: 7}, timeline: "1:5"}
scheduler: {discipline: weigted, hold_ms: -2}
run: [1]
"""
    expected = [
        ":2: unknown key 'nam'; did you mean name?",
        ":1: the version 2 is unknown; this program reads version 1.",
        ":4: unknown key 'bundel'; did you mean bundle?",
        ":4: bundle must be text",
        ":5: Invalid quantization encodings: {uint16,nan,-32937}",
        ":6: the model 'vlm' stands twice",
        ":8: name 'chat/x' can't be used",
        ":8: prompt must be text of 1",
        ":8: max_tokens must be a whole number from 1",
        ":8: The weight timeline '4@0' has '@'",
        ":8: there is no model 'lln'; did you mean llm?",
        ":9: Invalid embedding argument",
        ":9: weight must be a number from 0",
        ":9: the dialog names no model",
        ":10: expected a mapping with the keys name, model",
        ":11: unknown key 'temperatur'; did you mean temperature?",
        ":11: the dialog has both a weight and a timeline",
        ":12: top_p",
        ":12: The weight timeline 1:5 begins at 5 ms",
        ":13: discipline 'weigted' is unknown",
        ":13: hold_ms must be a number from 0",
        ":14: expected a mapping with the keys warmup",
    ]
    found = problems_of(written(tmp_path, text))
    for part in expected:
        assert sum(f"case.yaml{part}" in line for line in found) == 1, (part, found)
    assert len(found) == len(expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a mapping with the keys version, name"),
        ("[1]", "expected a mapping"),
        ("version: 1\n", "there are no dialogs"),
        ("version: 1\ndialogs: {a: 1}\n", "case.yaml:2: dialogs must be a list"),
        ("version: 1\ndialogs: []\n", "case.yaml:2: there must be 1 to 256 dialogs"),
        ("version: 1\nversion: 1\ndialogs: []\n", "case.yaml:2: the key 'version' stands twice"),
        ("version: true\n", "the version True is unknown"),
        ("models: []\n", "models must be a mapping"),
        ("models: {a/b: {}}\n", "the model's name 'a/b' can't be used"),
        ("a: &x 1\nb: *x\n", "anchors, aliases and tags have no place here"),
        ("runner: {process: run}\n", "has no command"),
        ("runner: {command: 'a \"b'}\n", "has no end"),
        ("runner: {command: a, process: walk}\n", "process 'walk' is unknown; known are run, dialog"),
        ("runner: {command: [a, 1]}\n", "command must be text"),
        ("models: {s: {simulated: {stages: [[prefix, 1]]}}}\n", "a stage must be [phase, milliseconds, times]"),
        ("models: {s: {simulated: {stages: [[walk, 1, 1]]}}}\n", "the phase 'walk' is unknown"),
        ("models: {s: {simulated: {jitter: 2}}}\n", "jitter must be a number from 0 to 1"),
        ("dialogs: [{model: m, period_ms: 0}]\n", "period_ms must be above 0"),
        ("dialogs: [{model: m, raw: 1}]\n", "raw must be true or false"),
        ("dialogs: [{? [a] : 1}]\n", "a key must be a word"),
    ],
)
def test_files_that_are_no_case(tmp_path: Path, text: str, message: str) -> None:
    found = problems_of(written(tmp_path, text)) if text and not text.startswith("a:") else None
    if found is None:
        with pytest.raises(UsageError) as caught:
            read_case(written(tmp_path, text))
        found = [str(caught.value)]
    assert any(message in line for line in found), found


def test_files_that_cant_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.yaml can't be read \(No such file"):
        read_cases(tmp_path / "nowhere.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="no UTF-8 text"):
        read_cases(tmp_path / "bytes.yaml")
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(UsageError, match="can't be read"):
        read_cases(tmp_path / "folder.yaml")
    with (tmp_path / "large.yaml").open("wb") as file:
        file.truncate(17 << 20)
    with pytest.raises(UsageError, match="too large"):
        read_cases(tmp_path / "large.yaml")


def test_the_error_of_one_and_of_several(tmp_path: Path) -> None:
    with pytest.raises(CaseError) as caught:
        read_case(written(tmp_path, "version: 1\n"))
    assert "more" not in str(caught.value)
    with pytest.raises(CaseError, match=r"And 2 more: `edgewright bench validate` lists all\."):
        read_case(written(tmp_path, "version: 3\nx: 1\n"))


def test_the_registrys_models_and_settings_are_the_default(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    registry = read_registry(
        written(
            tmp_path / "models",
            "version: 1\n"
            "models:\n"
            "  llm: {bundle: b, prompt_file: p.txt, max_tokens: 9}\n"
            "  vlm: {bundle: c, embedding: in.bin}\n"
            "  unused: {bundle: d}\n"
            "run: {repeats: 5}\n"
            "scheduler: {discipline: fair-time}\n",
        )
    )
    text = (
        "version: 1\ndialogs:\n  - {model: llm}\n  - {model: vlm, input: {prompt: x}, max_tokens: 3, iterations: 2}\n"
    )
    case = read_case(written(tmp_path, text, "mine.yaml"), registry, iterations=4)
    assert [model.name for model in case.models] == ["llm", "vlm"]
    assert case.models[0].bundle == tmp_path / "models" / "b"
    one, two = case.dialogs
    assert one.input == InputSpec(prompt_file=tmp_path / "models" / "p.txt")
    assert two.input == InputSpec(prompt="x")
    assert [(d.max_tokens, d.iterations) for d in case.dialogs] == [(9, 4), (3, 2)]
    assert (case.name, case.run.repeats, case.scheduler.discipline) == ("mine", 5, "fair-time")
    assert case.sources == (tmp_path / "mine.yaml", tmp_path / "models" / "case.yaml")
    own = read_case(written(tmp_path, text + "models: {llm: {bundle: own}}\nrun: {}\n", "own.yaml"), registry)
    assert own.models[0].bundle == tmp_path / "own"
    assert own.run == RunSpec()


def test_a_registry_needs_models(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="there are no models"):
        read_registry(written(tmp_path, "version: 1\n"))
    with pytest.raises(CaseError, match="unknown key 'dialogs'"):
        read_registry(written(tmp_path, "version: 1\nmodels: {a: {bundle: b}}\ndialogs: []\n"))


def test_paths_of_another_machine_stay_as_they_are(tmp_path: Path) -> None:
    text = "version: 1\nmodels: {m: {genie: llm.json}}\ndialogs: [{model: m, input: {prompt_file: p}}]\n"
    here = read_case(written(tmp_path, text + "runner: {command: ./t2t}\n"))
    assert here.models[0].genie == tmp_path / "llm.json"
    there = read_case(written(tmp_path, text + 'runner: {command: "adb shell /data/t2t", flags: [--lora, a]}\n'))
    assert there.runner == RunnerSpec(command=("adb", "shell", "/data/t2t"), flags=("--lora", "a"))
    assert there.models[0].genie == Path("llm.json")
    assert there.dialogs[0].input.prompt_file == Path("p")
    again = read_case(written(tmp_path, to_yaml(there, tmp_path)))
    assert replace(again, name=there.name) == there


ENCODINGS = st.builds(
    Encoding,
    st.sampled_from(["int8", "uint8", "int16", "uint16"]),
    st.floats(1e-9, 1e9),
    st.integers(-(2**31), 2**31 - 1),
)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,12}", fullmatch=True)
PATHS = st.lists(st.sampled_from(["a", "b c", "bundle", "none", "ü", "no", "1"]), min_size=1, max_size=3).map(
    lambda parts: Path("/cases", *parts)
)
FILES = st.one_of(st.builds(EmbeddingFile, PATHS), st.builds(EmbeddingFile, PATHS, ENCODINGS, st.just(True)))
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)
INPUTS = st.one_of(
    st.builds(InputSpec, prompt=TEXTS),
    st.builds(InputSpec, prompt_file=PATHS),
    st.builds(InputSpec, tokens_file=PATHS),
    st.builds(InputSpec, embedding=FILES),
    st.builds(InputSpec, observation=PATHS),
    st.builds(InputSpec, prompt_tokens=st.integers(1, 10**6)),
)
WEIGHTS = st.one_of(st.just(0.0), st.floats(1e-6, 1e9))
TIMELINES = st.lists(st.tuples(st.integers(1, 10**6), WEIGHTS), max_size=3, unique_by=lambda pair: pair[0]).flatmap(
    lambda later: WEIGHTS.map(
        lambda first: Timeline(((0, first), *((ms * 10**6, weight) for ms, weight in sorted(later))))
    )
)
POSITIVE = st.none() | st.floats(1e-3, 1e6)
SIMULATED = st.builds(
    SimulatedModel,
    prefill_ms=st.floats(0, 100),
    chunk=st.integers(1, 500),
    jitter=st.floats(0, 1),
    stages=st.lists(
        st.tuples(st.sampled_from(["vision", "prefix", "denoise"]), st.floats(0, 100), st.integers(1, 10)), max_size=3
    ).map(tuple),
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    models = [
        draw(
            st.builds(
                ModelSpec,
                name=st.just(name),
                bundle=st.none() | PATHS,
                genie=st.none() | PATHS,
                simulated=st.none() | SIMULATED,
                table=st.sampled_from(["bundle", "none"]) | FILES,
                embedding=st.none() | FILES,
                max_tokens=st.none() | st.integers(1, 1000),
            )
        )
        for name in names
    ]
    dialogs: list[DialogSpec] = []
    for _ in range(draw(st.integers(1, 3))):
        model = draw(st.sampled_from(models))
        dialog = draw(
            st.builds(
                DialogSpec,
                name=NAMES,
                model=st.just(model.name),
                input=INPUTS,
                iterations=st.integers(1, 10),
                max_tokens=st.just(model.max_tokens) if model.max_tokens else st.none() | st.integers(1, 100),
                reset=st.sampled_from(["iteration", "never"]),
                start_ms=st.integers(0, 10**6),
                period_ms=POSITIVE,
                deadline_ms=POSITIVE,
                timeline=TIMELINES,
                priority=st.integers(-(2**31), 2**31 - 1),
                sampling=st.sampled_from([{}, {"temperature": 0.5, "seed": 3}]),
                requantize=st.sampled_from(["round", "legacy-truncate"]),
                ignore_eos=st.booleans(),
                raw=st.booleans(),
            )
        )
        dialogs.append(dialog)
    return Case(
        name=draw(NAMES),
        models=tuple(models),
        dialogs=tuple(dialogs),
        scheduler=draw(st.builds(SchedulerSpec, hold_ms=st.floats(0, 10))),
        run=draw(st.builds(RunSpec, repeats=st.integers(1, 9), timeout_s=POSITIVE, solo=st.booleans())),
        runner=draw(st.none() | st.just(RunnerSpec(command=("./a b", "c"), process="dialog", shells=0))),
    )


@given(cases())
def test_what_is_written_reads_back_to_an_equal_case(case: Case) -> None:
    import tempfile

    text = to_yaml(case, Path("/cases"))
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), text)
        back = read_case(path)
    moved: Any = eval_paths(back, Path(folder))
    assert replace(moved, sources=()) == case


def eval_paths(value: Any, folder: Path) -> Any:
    """Return the value with every path inside `folder` as one inside /cases."""
    if isinstance(value, Path):
        return Path("/cases") / value.relative_to(folder) if value.is_relative_to(folder) else value
    if isinstance(value, tuple):
        return tuple(eval_paths(item, folder) for item in value)
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, Timeline | Encoding):
        fields = [name for name, field in value.__dataclass_fields__.items() if field.init]
        return replace(value, **{name: eval_paths(getattr(value, name), folder) for name in fields})
    return value
