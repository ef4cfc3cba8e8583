"""The exact flags of a case."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgewright.bench.case.spec import Case, DialogSpec, InputSpec, ModelSpec, RunnerSpec, SchedulerSpec
from edgewright.bench.external.command import case_flags, dialog_flags
from edgewright.runtime.encoding import EmbeddingFile
from edgewright.runtime.scheduling.timeline import Timeline

ENCODING = "uint16,0.00031563572701998055,-32937"
RUNNER = RunnerSpec(command=("./genie-t2t-run",))
TEXT = InputSpec(prompt_file=Path("prompt.txt"))
EMBEDS = InputSpec(embedding=EmbeddingFile.parse(f"inputs_embeds.bin,{ENCODING}"))


@pytest.fixture
def case() -> Case:
    """The case of the requirement's example: a text dialog and two that are fed with embeddings."""
    llm = ModelSpec(name="llm", genie=Path("llm.json"))
    vlm = ModelSpec(name="vlm", genie=Path("vlm.json"), table=EmbeddingFile.parse(f"embedding_table.bin,{ENCODING}"))
    dialogs = [("llm", TEXT, "4"), ("vlm", EMBEDS, "2"), ("vlm", EMBEDS, "1")]
    return Case(
        name="llm_2vlm",
        models=(llm, vlm),
        dialogs=tuple(
            DialogSpec(
                name=f"D{n}",
                model=model,
                input=asked,
                iterations=2,
                priority=200,
                timeline=Timeline.parse(f"{weight}:0"),
            )
            for n, (model, asked, weight) in enumerate(dialogs)
        ),
    )


def test_the_example_of_the_requirement(case: Case) -> None:
    assert case_flags(case, RUNNER, "profile.json") == [
        *("--concurrent", "--iterations", "2", "--profile", "profile.json", "--priority", "200"),
        *("-c", "llm.json", "--prompt_file", "prompt.txt", "-t", f"embedding_table.bin,{ENCODING}"),
        *("--concurrent-config", "vlm.json", "--concurrent-embed", f"inputs_embeds.bin,{ENCODING}"),
        *("--concurrent-config", "vlm.json", "--concurrent-embed", f"inputs_embeds.bin,{ENCODING}"),
        *("--concurrent-stride", "4,2,1"),
    ]


def test_timelines_stand_beside_the_flat_list(case: Case) -> None:
    lines = ["0:0,1:5000", "4:0,0:5000,4:20000", "1:0"]
    dialogs = tuple(
        replace(dialog, timeline=Timeline.parse(line)) for dialog, line in zip(case.dialogs, lines, strict=True)
    )
    assert case_flags(replace(case, dialogs=dialogs), RUNNER, "p")[-6:] == [
        *("--concurrent-stride", "0,4,1", "--concurrent-stride0", lines[0], "--concurrent-stride1", lines[1])
    ]


def test_priorities_take_the_place_of_weights(case: Case) -> None:
    dialogs = tuple(replace(dialog, priority=n) for n, dialog in enumerate(case.dialogs, 7))
    flags = case_flags(replace(case, dialogs=dialogs, scheduler=SchedulerSpec(discipline="priority")), RUNNER, "p")
    assert flags[-2:] == ["--concurrent-priorities", "7,8,9"]
    assert "--priority" not in flags
    assert "--concurrent-stride" not in flags
    free = case_flags(replace(case, scheduler=SchedulerSpec(discipline="free")), RUNNER, "p")
    assert free[-1] == f"inputs_embeds.bin,{ENCODING}"


def test_a_first_dialog_of_embeddings_and_a_second_of_text(case: Case) -> None:
    text, embeds, _ = case.dialogs
    runner = replace(RUNNER, prompt_flag="--concurrent-prompt_file", flags=("--log", "error"))
    flags = case_flags(replace(case, dialogs=(embeds, text)), runner, "p")
    assert flags[:3] == ["--concurrent", "--log", "error"]
    assert flags[flags.index("-e") + 1] == f"inputs_embeds.bin,{ENCODING}"
    assert flags[flags.index("--concurrent-config") :][:4] == [
        *("--concurrent-config", "llm.json", "--concurrent-prompt_file", "prompt.txt")
    ]


def test_stock_flags_of_one_dialog(case: Case) -> None:
    text, embeds, _ = case.dialogs
    assert dialog_flags(case, text, RUNNER, "p") == [
        *("-c", "llm.json", "--prompt_file", "prompt.txt", "--priority", "200", "--profile", "p")
    ]
    assert dialog_flags(case, replace(embeds, priority=100), replace(RUNNER, flags=("--log", "info")), "p") == [
        *("--log", "info", "-c", "vlm.json", "-e", f"inputs_embeds.bin,{ENCODING}"),
        *("-t", f"embedding_table.bin,{ENCODING}", "--profile", "p"),
    ]


@pytest.mark.parametrize(
    ("asked", "flags"),
    [
        (InputSpec(prompt="say 'hi'"), ["-p", "say 'hi'"]),
        (InputSpec(tokens_file=Path("t.txt")), ["-tok", "t.txt"]),
        (InputSpec(embedding=EmbeddingFile.parse("e.bin")), ["-e", "e.bin"]),
    ],
)
def test_inputs(case: Case, asked: InputSpec, flags: list[str]) -> None:
    found = dialog_flags(case, replace(case.dialogs[0], input=asked), RUNNER, "p")
    assert found[2:4] == flags


def test_a_text_dialog_gets_no_table(case: Case) -> None:
    """The stock program refuses a table without embeddings."""
    text = replace(case.dialogs[1], input=TEXT)
    assert "-t" not in dialog_flags(case, text, RUNNER, "p")
    assert "-t" not in case_flags(replace(case, dialogs=(case.dialogs[0], text)), RUNNER, "p")
