"""What the external program can't do is refused by name; what it decides by itself is noted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgewright.bench.case.spec import Case, InputSpec, ModelSpec, RunnerSpec, SchedulerSpec, SimulatedModel
from edgewright.bench.external.fit import notes, problems
from edgewright.runtime.encoding import EmbeddingFile
from edgewright.runtime.scheduling.timeline import Timeline

from .conftest import ENCODING, Desk, local

SEPARATE = local(process="dialog")


def said(case: Case, runner: RunnerSpec) -> list[str]:
    return [str(problem) for problem in problems(case, runner)]


@pytest.fixture
def case(desk: Desk) -> Case:
    return desk.case(desk.llm(), desk.vlm(), weights="4,2")


def changed(case: Case, number: int, **fields: Any) -> Case:
    dialogs = list(case.dialogs)
    dialogs[number] = replace(dialogs[number], **fields)
    return replace(case, dialogs=tuple(dialogs))


def remodelled(case: Case, name: str, **fields: Any) -> Case:
    return replace(case, models=tuple(replace(m, **fields) if m.name == name else m for m in case.models))


def test_a_case_that_fits(case: Case) -> None:
    assert said(case, local()) == []
    assert (
        said(changed(changed(case, 0, timeline=Timeline.constant(1)), 1, timeline=Timeline.constant(1)), SEPARATE) == []
    )


def test_iterations_that_no_records_could_hold(desk: Desk) -> None:
    for runner, most in ((local(), 100_000), (SEPARATE, 10_000)):
        assert said(desk.case(desk.llm(), iterations=most), runner) == []
        (text,) = said(desk.case(desk.llm(), iterations=most + 1), runner)
        assert text.startswith(f"dialogs.D0: at most {most:,} iterations with runner process {runner.process}")
    named = replace(local(), flags=("--concurrent-tokens_file", "x"))
    assert "its flags have --concurrent-tokens_file" in said(desk.case(desk.llm()), named)[0]


@pytest.mark.parametrize(
    ("number", "fields", "text"),
    [
        (0, {"start_ms": 5000}, 'dialogs.D0: start_ms can\'t be said to the program: write timeline "0:0,1:5000"'),
        (1, {"think_ms": 3}, "dialogs.D1: think_ms and period_ms"),
        (1, {"period_ms": 3.0}, "dialogs.D1: think_ms and period_ms"),
        (1, {"iterations": 2}, "dialogs: the program repeats all dialogs equally often"),
        (0, {"priority": 7}, "scheduler: the program takes weights or priorities, not both"),
        (0, {"timeline": Timeline.constant(0.5)}, "scheduler: the program's weights are whole numbers"),
        (0, {"input": InputSpec(prompt="")}, "dialogs.D0: its prompt is empty"),
        (0, {"input": InputSpec(prompt="a\0b")}, "dialogs.D0: its prompt has a NUL"),
        (0, {"input": InputSpec()}, "dialogs.D0: it has no input, or several"),
        (0, {"input": InputSpec(prompt="a", tokens_file=Path("b"))}, "dialogs.D0: it has no input, or several"),
        (0, {"input": InputSpec(prompt_tokens=5)}, "dialogs.D0: the program asks language models"),
        (0, {"input": InputSpec(prompt_file=Path("no.txt"))}, "dialogs.D0: no.txt is not a file here"),
        (1, {"input": InputSpec(prompt="a")}, "dialogs.D1: only the first dialog takes a prompt"),
        (1, {"input": InputSpec(tokens_file=Path("t"))}, "dialogs.D1: only the first dialog takes a prompt"),
        (
            1,
            {"input": InputSpec(prompt_file=Path("t"))},
            "dialogs.D1: by which flag a second dialog takes a prompt file",
        ),
    ],
)
def test_what_one_process_cant_do(case: Case, number: int, fields: dict[str, Any], text: str) -> None:
    assert any(one.startswith(text) for one in said(changed(case, number, **fields), local())), text


@pytest.mark.parametrize("process", ["run", "dialog"])
@pytest.mark.parametrize("discipline", ["fifo", "round-robin", "fair-time", "deadline"])
def test_disciplines_it_has_not(case: Case, process: Any, discipline: Any) -> None:
    found = said(replace(case, scheduler=SchedulerSpec(discipline=discipline)), local(process=process))
    assert [one for one in found if one.startswith("scheduler:") and discipline in one]


@pytest.mark.parametrize("discipline", ["priority", "free"])
def test_weights_without_weighing(case: Case, discipline: Any) -> None:
    found = said(replace(case, scheduler=SchedulerSpec(discipline=discipline)), local())
    assert found == [f"scheduler: weights mean nothing to discipline {discipline}: leave them out, or use weighted."]


def test_processes_of_their_own(case: Case) -> None:
    assert said(case, SEPARATE) == [
        "scheduler: weights mean nothing to processes of their own: leave them out, or use process: run."
    ]
    same = changed(changed(case, 0, timeline=Timeline.constant(2)), 1, timeline=Timeline.constant(2))
    free = changed(changed(same, 0, start_ms=5, think_ms=2, period_ms=9.0), 1, iterations=3, priority=7)
    assert said(free, SEPARATE) == []
    assert said(changed(free, 1, reset="never"), SEPARATE) == [
        "dialogs.D1: its iterations are processes of their own, which keep no context: leave out reset: never."
    ]


def test_models_it_cant_load(case: Case) -> None:
    assert said(remodelled(case, "llm", genie=None), local())[0].startswith(
        "dialogs.D0: its model llm names no Genie dialog configuration"
    )
    assert said(remodelled(case, "llm", genie=None, simulated=SimulatedModel()), local()) == [
        "dialogs.D0: the program asks language models with text, tokens or embeddings, nothing else."
    ]


def test_tables(desk: Desk, case: Case) -> None:
    table = desk.folder / "table.bin"
    float_table = remodelled(case, "vlm", table=EmbeddingFile.parse(str(table)))
    assert "State the encoding of both files, or of neither." in said(float_table, local())[0]
    signed = remodelled(case, "vlm", table=EmbeddingFile.parse(f"{table},int8,0.1,3"))
    assert said(signed, local()) == [
        "dialogs.D1: its table is int8 and its embeddings are uint16: the signedness of the two must agree."
    ]
    narrow = remodelled(case, "vlm", table=EmbeddingFile.parse(f"{table},uint8,0.1,-3"))
    assert said(narrow, local()) == []
    assert said(remodelled(case, "vlm", table="none"), local()) == []


def test_one_table_and_one_encoding_for_all(desk: Desk, case: Case) -> None:
    other = replace(desk.vlm("other"), table=EmbeddingFile.parse(f"{desk.folder / 'table.bin'},uint8,0.1,-3"))
    two = desk.case(desk.vlm(), other)
    assert said(two, local())[0].startswith("dialogs: the program has one embedding table for all dialogs")
    assert said(two, SEPARATE) == []
    embeds = InputSpec(embedding=EmbeddingFile.parse(f"{desk.folder / 'embeds.bin'},uint16,0.5,-32937"))
    encodings = changed(desk.case(desk.vlm(), desk.vlm()), 1, input=embeds)
    assert said(encodings, local())[0].startswith("dialogs: the program keeps one input encoding for all dialogs")
    assert said(encodings, SEPARATE) == []
    # Without a table nothing is converted, so the encodings may differ.
    assert said(remodelled(encodings, "vlm", table="none"), local()) == []


def test_paths_of_a_device_are_text_only(desk: Desk, case: Case) -> None:
    away = remodelled(case, "llm", genie=Path("/data/no/llm.json"))
    assert said(away, desk.adb()) == []
    assert said(away, desk.adb(check_files=True)) == [
        "dialogs.D0: /data/no/llm.json is not a file here: correct the path, or set the runner's check_files to false."
    ]
    assert said(away, local(check_files=False)) == []
    assert said(remodelled(case, "llm", genie=Path("/data/a\nb.json")), desk.adb()) == [
        "dialogs.D0: the path '/data/a\\nb.json' has control characters, so it is not sent to a device."
    ]


def test_a_comma_in_the_name_of_embeddings(case: Case) -> None:
    file = EmbeddingFile(Path("/data/a,b.bin"), EmbeddingFile.parse(f"x,{ENCODING}").encoding, stated=True)
    assert (
        "takes '/data/a,b.bin' apart at its comma"
        in said(changed(case, 1, input=InputSpec(embedding=file)), local())[0]
    )


def test_flags_that_the_case_says(case: Case) -> None:
    runner = local(flags=("--log", "error", "--profile", "p", "--concurrent-stride0", "1:0"))
    assert said(case, runner) == [
        "runner: its flags have --profile, --concurrent-stride0, which the case says: take them out."
    ]


def test_places_of_a_case_file_are_named(case: Case) -> None:
    placed = replace(changed(case, 0, start_ms=5), places={"dialogs.D0": "my.yaml:7"})
    assert said(placed, local())[0].startswith("my.yaml:7: start_ms")


def test_no_dialogs() -> None:
    assert said(Case(name="none", models=(), dialogs=()), local()) == ["dialogs: the case has no dialogs."]


def test_notes(desk: Desk, case: Case) -> None:
    assert notes(case, local()) == []
    ours = changed(case, 0, max_tokens=5, sampling={"temperature": 1.0}, deadline_ms=3.0)
    assert notes(ours, local()) == [
        "D0: max_tokens, sampling, deadline_ms had no effect, the Genie configuration decides."
    ]
    table = remodelled(case, "vlm", table=EmbeddingFile.parse(f"{desk.folder / 'table.bin'},uint8,0.1,-3"))
    assert notes(table, local()) == ["D1: the program requantizes by cutting toward zero, not by rounding."]
    assert notes(changed(table, 1, requantize="legacy-truncate"), local()) == []
    often = desk.case(desk.llm(), iterations=2)
    assert notes(often, local()) == [
        "Whether a dialog's context is emptied between iterations is the program's decision."
    ]
    assert notes(often, SEPARATE) == []
    settings = replace(case, scheduler=SchedulerSpec(prefill_chunk=7), run=replace(case.run, seed=3, threads=2))
    assert notes(settings, local()) == [
        "scheduler prefill_chunk, run seed, run threads had no effect: the program and its Genie configuration decide."
    ]
    assert notes(case, SEPARATE) == ["Nothing weighs processes of their own against each other: they ran freely."]


def test_models_of_text_dialogs_may_have_tables(desk: Desk) -> None:
    """A table is for embeddings: a text dialog's model may have any."""
    case = desk.case(desk.llm(), desk.vlm())
    text = replace(case, models=(replace(case.models[0], table=EmbeddingFile.parse("gone.bin")), case.models[1]))
    assert said(text, local()) == []


def test_models_of_other_cases_are_not_looked_at(case: Case) -> None:
    assert said(replace(case, models=(*case.models, ModelSpec(name="unused"))), local()) == []
