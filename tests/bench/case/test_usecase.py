"""Use-case lines: one case each, by the registry's models; every mistake with its line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgewright.bench.case import CaseError, read_cases
from edgewright.bench.case.files import Registry
from edgewright.bench.case.spec import InputSpec, ModelSpec, RunnerSpec, RunSpec, SchedulerSpec
from edgewright.bench.case.usecase import parse_usecase, read_usecases
from edgewright.errors import UsageError
from edgewright.runtime.encoding import EmbeddingFile

EMBEDDING = EmbeddingFile(Path("in.bin"))
REGISTRY = Registry(
    {
        "llm": ModelSpec(name="llm", bundle=Path("a"), prompt="Hello", max_tokens=8),
        "vlm": ModelSpec(name="vlm", bundle=Path("b"), embedding=EMBEDDING),
    },
    run=RunSpec(repeats=2),
)


def written(folder: Path, text: str) -> Path:
    path = folder / "cases.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_requirements_line(tmp_path: Path) -> None:
    path = written(tmp_path, "llm_2vlm: llm,vlm,vlm --iter 2 --concurrent-stride 4,2,1\n")
    [case] = read_usecases(path, REGISTRY, iterations=9)
    assert (case.name, [model.name for model in case.models]) == ("llm_2vlm", ["llm", "vlm"])
    assert [(d.name, d.model, d.iterations, d.max_tokens, d.timeline.at(0)) for d in case.dialogs] == [
        ("D0", "llm", 2, 8, 4.0),
        ("D1", "vlm", 2, None, 2.0),
        ("D2", "vlm", 2, None, 1.0),
    ]
    assert [d.input for d in case.dialogs] == [InputSpec(prompt="Hello"), *[InputSpec(embedding=EMBEDDING)] * 2]
    assert (case.run, case.sources) == (RunSpec(repeats=2), (path,))


def test_several_lines_comments_and_blanks(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "# our cases\n\n"
        'a: llm, vlm --concurrent-stride1 "0:0,1:5000" # later\n'
        "  b : vlm --max-tokens 3 --priority 7\n"
        "c:llm,llm --concurrent-priorities 100,200\n",
    )
    a, b, c = read_usecases(path, REGISTRY, iterations=5)
    assert [str(d.timeline) for d in a.dialogs] == ["1:0", "0:0,1:5000"]
    assert [d.iterations for d in a.dialogs] == [5, 5]
    assert [(d.max_tokens, d.priority) for d in b.dialogs] == [(3, 7)]
    assert ([d.priority for d in c.dialogs], c.scheduler.discipline) == ([100, 200], "priority")
    assert c.places["case"] == "cases.txt:5"


def test_what_the_registry_says_of_scheduling_and_runner(tmp_path: Path) -> None:
    registry = replace(REGISTRY, scheduler=SchedulerSpec(discipline="fair-time"), runner=RunnerSpec(command=("x",)))
    [case] = read_usecases(written(tmp_path, "a: llm,vlm --concurrent-stride 2,1"), registry)
    assert (case.scheduler.discipline, case.runner) == ("fair-time", RunnerSpec(command=("x",)))
    mine = RunnerSpec(command=("y",))
    assert read_usecases(written(tmp_path, "a: llm"), registry, runner=mine)[0].runner is mine


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("llm,vlm", "there is no name and colon"),
        ("--iter 2", "there is no name and colon"),
        ("a/b: llm", "the name 'a/b' can't be used"),
        (": llm", "the name '' can't be used"),
        ("a:", "the roles '' have an empty one"),
        ("a: llm,,vlm", "the roles 'llm,,vlm' have an empty one"),
        ("a: llm,vml", "there is no model 'vml'; did you mean vlm?"),
        ("a: v lm", "there is no model 'v lm'; did you mean vlm?"),
        ("a: llm b: vlm", "there is no model 'llm b: vlm'"),
        ("a: llm --iter 0", "--iter: '0' is not a whole number from 1"),
        ("a: llm --iter", "--iter: its value is missing"),
        ("a: llm --iter 1 --iterations 2", "--iterations stands twice"),
        ("a: llm --profile p", "Unknown option: --profile"),
        ("a: llm --iter 2 vlm", "Unknown option: 'vlm'"),
        ("a: llm 'x", "a quote has no end"),
        ("a: llm,vlm --concurrent-stride 1", "has 1 weights for 2 dialogs"),
        ("a: llm,vlm --concurrent-stride0 1@0", "the separator is ':'"),
        ("a: llm,vlm --concurrent-stride 1,2 --concurrent-priorities 1,2", "exclude each other"),
        ("a: " + ",".join(["llm"] * 257), "there are more than 256 roles"),
    ],
)
def test_wrong_lines(line: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_usecase(line, REGISTRY, "cases.txt:1")
    assert message in str(caught.value)


def test_all_wrong_lines_are_told_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, "a: llm\nb: x\n\nA: vlm\nc: llm --iter z\n")
    with pytest.raises(CaseError) as caught:
        read_usecases(path, REGISTRY)
    assert [problem.where for problem in caught.value.problems] == ["cases.txt:2", "cases.txt:4", "cases.txt:5"]
    assert "both would write the same folder" in caught.value.problems[1].text


def test_files_without_use_cases(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="there is no use case in it"):
        read_usecases(written(tmp_path, "# nothing\n"), REGISTRY)
    with pytest.raises(UsageError, match="can't be read"):
        read_usecases(tmp_path / "nowhere.txt", REGISTRY)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UsageError, match="no UTF-8 text"):
        read_usecases(tmp_path / "bytes", REGISTRY)
    with pytest.raises(UsageError, match="give it with --models"):
        read_cases(written(tmp_path, "a: llm"))


def test_the_registry_is_read_from_its_file(tmp_path: Path) -> None:
    models = tmp_path / "models.yaml"
    models.write_text("version: 1\nmodels:\n  llm: {bundle: a, prompt: hi}\n")
    path = written(tmp_path, "a: llm")
    [case] = read_cases(path, models=models)
    assert case.sources == (path, models)
    assert case.models[0].bundle == tmp_path / "a"
    [there] = read_cases(path, models=models, runner=RunnerSpec(command=("ssh", "host", "t2t")))
    assert there.models[0].bundle == Path("a")
