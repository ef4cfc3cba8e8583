"""What is wrong with a case is found before any model is loaded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewright.bench.case import CaseError, require
from edgewright.bench.case.check import problems
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
from edgewright.runtime.encoding import EmbeddingFile, Encoding
from edgewright.runtime.scheduling.timeline import Timeline

from .conftest import CONTEXT, DIALOG, HIDDEN, VOCAB

UINT8, UINT16, INT16 = Encoding("uint8", 0.5, -3), Encoding("uint16", 0.25, -7), Encoding("int16", 0.25, 0)
SIMULATED = ModelSpec(name="m", simulated=SimulatedModel(prefill_ms=1, decode_ms=1, context=100))


def dialog(name: str = "D0", model: str = "m", **fields: Any) -> DialogSpec:
    return DialogSpec(**{"name": name, "model": model, "input": InputSpec(prompt_tokens=5), "max_tokens": 3, **fields})


def case(*dialogs: DialogSpec, models: tuple[ModelSpec, ...] = (SIMULATED,), **fields: Any) -> Case:
    return Case(**{"name": "case", "models": models, "dialogs": dialogs, **fields})


def of_bundle(bundle: Path, asked: InputSpec, **fields: Any) -> Case:
    """A case of one dialog of a bundle; `table` is the model's, the other fields are the dialog's."""
    table = fields.pop("table", "bundle")
    one = DialogSpec(**{"name": "D0", "model": "m", "input": asked, **fields})
    return case(one, models=(ModelSpec(name="m", bundle=bundle, table=table),))


def texts(found: Case, **options: Any) -> list[str]:
    return [str(problem) for problem in problems(found, **options)]


def the_problem(found: Case, *parts: str, **options: Any) -> None:
    """Check that a case has one problem, and what it says."""
    said = texts(found, **options)
    assert len(said) == 1, said
    for part in parts:
        assert part in said[0]


def test_nothing_is_wrong() -> None:
    assert texts(case(dialog(), dialog("D1", timeline=Timeline.parse("0:0,2:5")))) == []
    require(case(dialog()))


def test_all_problems_are_told_where_they_stand() -> None:
    wrong = case(
        dialog("a", model="x"),
        dialog("b", max_tokens=None),
        dialog("B", input=InputSpec()),
        name="../up",
        places={"dialogs.b": "c.yaml:4", "name": "c.yaml:1"},
    )
    assert texts(wrong) == [
        "c.yaml:1: the case's name '../up' can't be used: give a name of 1 to 64 letters, digits, '.', '_' and '-', "
        "the first a letter or a digit.",
        "dialogs.B: two dialogs are called B, and both would write b.log: give each its own name.",
        "dialogs.a: there is no model 'x': name one of m.",
        "c.yaml:4: its model is simulated, so it has no end of its own: give max_tokens.",
        "dialogs.B: it has no input: give prompt_tokens, in the dialog or as the model's usual one.",
    ]
    with pytest.raises(CaseError, match=r"c\.yaml:1: .* And 4 more"):
        require(wrong)


def test_a_case_of_one_line_names_the_dialog_beside_it() -> None:
    wrong = case(dialog("D0", max_tokens=None), dialog("D1", timeline=Timeline.constant(0)), places={"case": "c.txt:3"})
    said = texts(wrong)
    assert [text.partition(": ")[0] for text in said] == ["c.txt:3", "c.txt:3 (D0)"]


def test_names_and_numbers_of_parts() -> None:
    the_problem(case(), "there are no dialogs")
    the_problem(case(dialog("a b")), "the dialog's name 'a b' can't be used")
    twice = case(dialog(), models=(SIMULATED, replace(SIMULATED, simulated=SimulatedModel())))
    assert "models.m: the model m stands twice: keep one." in texts(twice)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["0:0"], "all weights are 0 and none changes any more"),
        (["1:0,0:50", "0:0,2:10,0:20"], "from 50 ms on all weights are 0"),
        (["0:0", "1:0"], "the weight of D0 is always 0"),
    ],
)
def test_weights_that_let_nothing_run(lines: list[str], message: str) -> None:
    dialogs = [dialog(f"D{i}", timeline=Timeline.parse(line)) for i, line in enumerate(lines)]
    the_problem(case(*dialogs), message)


def test_a_pause_that_ends_is_no_problem() -> None:
    both = [dialog(f"D{i}", timeline=Timeline.parse("1:0,0:50,1:60")) for i in range(2)]
    assert texts(case(*both)) == []
    assert texts(case(dialog(timeline=Timeline.parse("1:0,0:50")), dialog("D1"))) == []


@pytest.mark.parametrize(
    ("discipline", "fields", "message"),
    [
        ("fifo", {"timeline": Timeline.constant(2)}, "weights mean nothing to the discipline fifo"),
        ("round-robin", {"timeline": Timeline.parse("1:0,3:9")}, "weights mean nothing to the discipline round-robin"),
        ("free", {"timeline": Timeline.constant(2)}, "weights mean nothing to the discipline free"),
        ("weighted", {"priority": 200}, "priorities mean nothing to the discipline weighted"),
        ("deadline", {}, "no dialog with a deadline_ms"),
        ("fifo", {"timeline": Timeline.parse("1:0,0:9,1:20")}, None),
        ("priority", {"priority": 200, "timeline": Timeline.constant(2)}, None),
        ("fair-time", {"timeline": Timeline.constant(2)}, None),
        ("deadline", {"deadline_ms": 5.0, "timeline": Timeline.constant(2)}, None),
    ],
)
def test_what_a_discipline_looks_at(discipline: Any, fields: dict[str, Any], message: str | None) -> None:
    found = case(dialog(), dialog("D1", **fields), scheduler=SchedulerSpec(discipline=discipline))
    if message is None:
        assert texts(found) == []
    else:
        the_problem(found, message)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": InputSpec(prompt="x")}, "its model is simulated, so prompt can't be read by it"),
        ({"input": InputSpec(prompt_tokens=1, embedding=EmbeddingFile(Path("e")))}, "both say what it is asked"),
        ({"input": InputSpec(prompt_tokens=101)}, "its prompt has 101 tokens, and the model's context holds 100"),
        ({"input": InputSpec(prompt_tokens=98), "max_tokens": 4}, "of 98 tokens and max_tokens 4 need more than"),
        ({"period_ms": 5.0, "think_ms": 3}, "period_ms and think_ms both say"),
        ({"sampling": {"top_p": 3}}, "top_p"),
    ],
)
def test_dialogs_of_a_cost_model(fields: dict[str, Any], message: str) -> None:
    assert any(message in text for text in texts(case(dialog(**fields))))


def test_the_last_token_needs_no_room() -> None:
    assert texts(case(dialog(input=InputSpec(prompt_tokens=98), max_tokens=3))) == []


def test_policies_of_a_cost_model() -> None:
    model = ModelSpec(name="m", simulated=SimulatedModel(stages=(("prefix", 1.0, 1),)))
    assert texts(case(DialogSpec(name="p", model="m", input=InputSpec(), period_ms=10.0), models=(model,))) == []
    the_problem(case(dialog(max_tokens=None), models=(model,)), "robot policy, which has no use for prompt_tokens")


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        (SimulatedModel(decode_ms=1), "give prefill_ms and decode_ms, or each stage, more than 0 ms"),
        (SimulatedModel(prefill_ms=1), "give prefill_ms and decode_ms, or each stage, more than 0 ms"),
        (SimulatedModel(prefill_ms=1, decode_ms=1, jitter=1.0), "jitter from 0 up to 1, without 1"),
        (SimulatedModel(stages=(("prefix", 0.0, 1),)), "or each stage, more than 0 ms"),
        (SimulatedModel(stages=(("prefix", 1.0, 1),), context=9, decode_ms=1), "has no decode_ms or context"),
    ],
)
def test_costs_that_cant_be(costs: SimulatedModel, message: str) -> None:
    asked = InputSpec() if costs.stages else InputSpec(prompt_tokens=1)
    one = DialogSpec(name="D0", model="m", input=asked, max_tokens=None if costs.stages else 1)
    the_problem(case(one, models=(ModelSpec(name="m", simulated=costs),)), "models.m: ", message)


def test_numbers_are_those_of_a_case_file() -> None:
    found = case(
        dialog(iterations=0, start_ms=-1),
        dialog("D1", deadline_ms=0.0),
        scheduler=SchedulerSpec(prefill_chunk=0, hold_ms=-1),
        run=RunSpec(repeats=1001, threads=0),
    )
    assert texts(found) == [
        "dialogs.D0: iterations must be a whole number from 1 upwards, not 0.",
        "dialogs.D0: start_ms must be a whole number from 0 to 1000000000, not -1.",
        "dialogs.D1: deadline_ms must be above 0.",
        "scheduler: hold_ms must be a number from 0 to 1e+09, not -1.",
        "scheduler: prefill_chunk must be a whole number from 1 upwards, not 0.",
        "run: repeats must be a whole number from 1 to 1000, not 1001.",
        "run: threads must be a whole number from 1 to 1024, not 0.",
    ]


def test_kinds_of_models(talking: Path, tmp_path: Path) -> None:
    text = InputSpec(prompt="x")
    the_problem(of_bundle(tmp_path / "gone", text), "gone does not exist")
    the_problem(of_bundle(tmp_path, text), "is not a bundle")
    nothing = ModelSpec(name="m")
    the_problem(case(dialog(input=text), models=(nothing,)), "models.m: the model has neither a bundle nor")
    both = replace(SIMULATED, bundle=talking)
    the_problem(case(dialog(), models=(both,)), "both a bundle and simulated costs")
    the_problem(of_bundle(talking, InputSpec(prompt_tokens=3)), "prompt_tokens is for simulated models")
    the_problem(of_bundle(talking, InputSpec(observation=talking / "manifest.json")), "takes no observation")
    the_problem(of_bundle(talking, InputSpec()), "it has no input: give prompt, prompt_file, tokens_file or embedding")
    mixed = case(dialog(), dialog("D1", model="n", input=text), models=(SIMULATED, ModelSpec(name="n", bundle=talking)))
    the_problem(mixed, "m runs in simulated time and other models don't")


def test_genie_configurations_need_a_bundle_or_a_runner(tmp_path: Path) -> None:
    config = tmp_path / "llm.json"
    config.write_text(json.dumps({"dialog": DIALOG}))
    model = ModelSpec(name="m", genie=config)
    one = DialogSpec(name="D0", model="m", input=InputSpec(prompt="x"))
    the_problem(case(one, models=(model,)), "names no bundle that runs here", "--models")
    assert texts(case(one, models=(model,), runner=RunnerSpec(command=("./t2t",)))) == []
    gone = replace(model, genie=tmp_path / "gone.json")
    the_problem(case(one, models=(gone,)), "gone.json is no file, and names no bundle that runs here")


def test_an_external_runner_has_its_own_rules() -> None:
    one = DialogSpec(name="D0", model="m", input=InputSpec(prompt="x"), start_ms=5)
    runner = RunnerSpec(command=("adb", "shell", "t2t"))
    found = texts(case(one, models=(ModelSpec(name="m", bundle=Path("b")),), runner=runner))
    assert any("names no Genie dialog configuration" in text for text in found)
    assert any("start_ms can't be said" in text for text in found)
    model = ModelSpec(name="m", genie=Path("/data/llm.json"))
    assert texts(case(replace(one, start_ms=0), models=(model,), runner=runner)) == []


def rows(folder: Path, name: str, count: int, encoding: Encoding) -> EmbeddingFile:
    path = folder / name
    np.zeros((count, HIDDEN), encoding.numpy).tofile(path)
    return EmbeddingFile(path, encoding, stated=True)


def test_embeddings_and_tables(outside: Path, tmp_path: Path) -> None:
    fed = InputSpec(embedding=rows(tmp_path, "in.bin", 5, UINT8))
    table = rows(tmp_path, "table.bin", VOCAB, UINT16)
    assert texts(of_bundle(outside, fed, table=table)) == []
    assert texts(of_bundle(outside, fed, table=rows(tmp_path, "more.bin", VOCAB + 3, UINT8))) == []
    assert texts(of_bundle(outside, fed, table="none")) == []
    small = rows(tmp_path, "small.bin", VOCAB - 1, UINT8)
    the_problem(of_bundle(outside, fed, table=small), "has 96 rows and the model generates tokens up to 96")
    signed = rows(tmp_path, "signed.bin", VOCAB, INT16)
    the_problem(of_bundle(outside, fed, table=signed), "Unsupported LUT requantization: int16 -> uint8")
    the_problem(of_bundle(outside, fed, table=signed), "int16 -> uint8", need_files=False)
    implied = EmbeddingFile(table.path)
    said = texts(of_bundle(outside, fed, table=implied))
    assert any("float32 -> uint8" in text for text in said)


@pytest.mark.parametrize("size", [0, 1, 5 * HIDDEN - 1, 5 * HIDDEN + 1])
def test_files_that_are_no_whole_rows(outside: Path, tmp_path: Path, size: int) -> None:
    path = tmp_path / "in.bin"
    path.write_bytes(bytes(size))
    fed = InputSpec(embedding=EmbeddingFile(path, UINT8, stated=True))
    the_problem(of_bundle(outside, fed), f"has {size} bytes, which is no whole number of rows of {HIDDEN} uint8")
    good = InputSpec(embedding=rows(tmp_path, "good.bin", 2, UINT8))
    table = EmbeddingFile(path, UINT8, stated=True)
    the_problem(of_bundle(outside, good, table=table), f"embedding table {path} has {size} bytes")


def test_files_that_are_missing(outside: Path, tmp_path: Path) -> None:
    gone = EmbeddingFile(tmp_path / "gone.bin", UINT8, stated=True)
    here = rows(tmp_path, "in.bin", 5, UINT8)
    assert len(texts(of_bundle(outside, InputSpec(embedding=gone), table=gone))) == 2
    the_problem(of_bundle(outside, InputSpec(embedding=here), table=gone), "gone.bin")
    assert texts(of_bundle(outside, InputSpec(embedding=gone), table=gone), need_files=False) == []
    assert texts(of_bundle(tmp_path / "gone", InputSpec(prompt="x")), need_files=False) == []


def test_a_table_of_more_than_four_gigabytes(outside: Path, tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    width = HIDDEN * 4
    with path.open("wb") as file:
        file.truncate((2**32 // width + 1) * width)
    fed = InputSpec(embedding=EmbeddingFile(tmp_path / "in.bin"))
    rows(tmp_path, "in.bin", 3, Encoding())
    assert texts(of_bundle(outside, fed, table=EmbeddingFile(path))) == []
    with path.open("r+b") as file:
        file.truncate(2**32 + 4)
    the_problem(of_bundle(outside, fed, table=EmbeddingFile(path)), f"has {2**32 + 4} bytes, which is no whole number")


def test_a_bundle_that_looks_embeddings_up_itself(inside: Path, tmp_path: Path) -> None:
    fed = InputSpec(embedding=rows(tmp_path, "in.bin", 5, UINT8))
    the_problem(of_bundle(inside, fed), "deploy with --embeddings outside")


def test_contexts_of_bundles(outside: Path, tmp_path: Path) -> None:
    fed = InputSpec(embedding=rows(tmp_path, "in.bin", CONTEXT, UINT8))
    assert texts(of_bundle(outside, fed, max_tokens=1)) == []
    the_problem(of_bundle(outside, fed, max_tokens=2), "1 can be generated")
    more = InputSpec(embedding=rows(tmp_path, "more.bin", CONTEXT + 1, UINT8))
    the_problem(of_bundle(outside, more), f"its prompt has {CONTEXT + 1} tokens")
    ids = tmp_path / "ids.txt"
    ids.write_text(" 3" * (CONTEXT + 1))
    the_problem(of_bundle(outside, InputSpec(tokens_file=ids)), f"its prompt has {CONTEXT + 1} tokens")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no token ids"),
        (b" \n", "has no token ids"),
        (b"1 2 x", "has 'x' where token ids stand"),
        (b"1 -1", "has '-1' where token ids stand"),
        (b"1, 2", "has '1,' where token ids stand"),
        (b"1 97", "has the token 97, and the model's last one is 96"),
        (b"\xff", "it is no UTF-8 text"),
        (b"\xef\xbb\xbf5 96\n0", None),
    ],
)
def test_token_files(inside: Path, tmp_path: Path, content: bytes, message: str | None) -> None:
    path = tmp_path / "ids.txt"
    path.write_bytes(content)
    found = of_bundle(inside, InputSpec(tokens_file=path))
    if message is None:
        assert texts(found) == []
    else:
        the_problem(found, message)


def test_prompt_files(talking: Path, tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    the_problem(of_bundle(talking, InputSpec(prompt_file=path)), "prompt.txt can't be read (No such file")
    path.write_bytes(b"\xef\xbb\xbf")
    the_problem(of_bundle(talking, InputSpec(prompt_file=path)), "is empty")
    path.write_bytes(b"\xff")
    the_problem(of_bundle(talking, InputSpec(prompt_file=path)), "no UTF-8 text")
    path.write_text("hello")
    assert texts(of_bundle(talking, InputSpec(prompt_file=path))) == []


def test_texts(talking: Path, inside: Path, tmp_path: Path) -> None:
    """A token for each character, and for a chat those of the template around it."""
    whole = "x" * 200
    context = json.loads((talking / "manifest.json").read_text())["model"]["max_context"]
    fits = context - len(whole) + 1
    assert texts(of_bundle(talking, InputSpec(prompt=whole), max_tokens=fits)) == []
    the_problem(of_bundle(talking, InputSpec(prompt=whole), max_tokens=fits + 1), "its prompt of 200 tokens")
    the_problem(of_bundle(talking, InputSpec(prompt=whole), max_tokens=fits, raw=False), "its prompt of 209 tokens")
    (tmp_path / "long.txt").write_text("x" * (context + 1))
    the_problem(of_bundle(talking, InputSpec(prompt_file=tmp_path / "long.txt")), f"has {context + 1} tokens")
    the_problem(of_bundle(inside, InputSpec(prompt="x")), "has no tokenizer.json")
    the_problem(of_bundle(inside, InputSpec(prompt="x"), raw=False), "tokenizer")


def test_policies(policy: Path, tmp_path: Path) -> None:
    assert texts(of_bundle(policy, InputSpec(), period_ms=100.0)) == []
    the_problem(of_bundle(policy, InputSpec(observation=tmp_path / "gone.npz")), "gone.npz can't be read")
    (tmp_path / "junk.npz").write_text("junk")
    the_problem(of_bundle(policy, InputSpec(observation=tmp_path / "junk.npz")), "can't be read as a .npz file")
    said = texts(of_bundle(policy, InputSpec(prompt="x"), max_tokens=3, reset="never"))
    assert any("robot policy, which has no use for prompt and max_tokens and reset:" in text for text in said)
    fed = InputSpec(embedding=rows(tmp_path, "in.bin", 5, UINT8))
    the_problem(of_bundle(policy, fed), "robot policy, which has no use for embedding")
