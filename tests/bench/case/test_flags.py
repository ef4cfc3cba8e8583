"""The options of genie-t2t-run: every rule of the program and of its concurrent mode."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from edgewright.bench.case.files import Registry
from edgewright.bench.case.flags import case_of, parse_flags, refuse_profile, registry_of
from edgewright.bench.case.spec import Case, InputSpec, ModelSpec, RunSpec, SchedulerSpec
from edgewright.bench.case.writer import to_yaml
from edgewright.errors import UsageError
from edgewright.runtime.encoding import EmbeddingFile, Encoding
from edgewright.runtime.scheduling.timeline import Timeline, segments

from .conftest import DIALOG

SCALE = "0.00031563572701998055"
#: The requirement's command, as a script has it.
REQUIREMENT = f"""
  --concurrent --priority 200 --log error --iterations 2 --profile profile.json
  -c llm.json --prompt_file prompt.txt
  -t embedding_table.bin,uint16,{SCALE},-32937
  --concurrent-config vlm.json --concurrent-embed inputs_embeds.bin,uint16,{SCALE},-32937
  --concurrent-config vlm.json --concurrent-embed inputs_embeds.bin,uint16,{SCALE},-32937
"""
TIMELINES = '--concurrent-stride0 "0:0,1:5000" --concurrent-stride1 "4:0,0:5000,4:20000" --concurrent-stride2 "1:0,0:5000,1:20000"'  # noqa: E501
TWO = "--concurrent -c a --prompt x --concurrent-config b --concurrent-embed e.bin"


def case(text: str, registry: Registry | None = None) -> Case:
    return case_of(parse_flags(shlex.split(text)), registry)


def test_the_requirements_command() -> None:
    found = case(REQUIREMENT)
    encoding = Encoding("uint16", float(SCALE), -32937)
    embeds = EmbeddingFile(Path("inputs_embeds.bin"), encoding, stated=True)
    assert [dialog.name for dialog in found.dialogs] == ["D0", "D1", "D2"]
    assert [dialog.model for dialog in found.dialogs] == ["llm", "vlm", "vlm"]
    assert [dialog.input for dialog in found.dialogs] == [
        InputSpec(prompt_file=Path("prompt.txt")),
        InputSpec(embedding=embeds),
        InputSpec(embedding=embeds),
    ]
    assert {(dialog.iterations, dialog.priority) for dialog in found.dialogs} == {(2, 200)}
    assert {dialog.timeline for dialog in found.dialogs} == {Timeline.constant(1)}
    assert found.scheduler.discipline == "weighted"
    assert found.run == RunSpec(warmup=0, solo=False)
    llm, vlm = found.models
    assert (llm.genie, llm.table) == (Path("llm.json"), "bundle")
    assert vlm.table == EmbeddingFile(Path("embedding_table.bin"), encoding, stated=True)


def test_the_requirements_weights() -> None:
    flat = case(f"{REQUIREMENT} --concurrent-stride 4,2,1")
    assert [dialog.timeline.at(0) for dialog in flat.dialogs] == [4, 2, 1]
    parts = segments([dialog.timeline for dialog in case(f"{REQUIREMENT} {TIMELINES}").dialogs])
    assert [(part.start_ns // 10**6, part.weights) for part in parts] == [
        (0, (0, 4, 1)),
        (5000, (1, 0, 0)),
        (20000, (1, 4, 1)),
    ]


def test_a_flat_weight_counts_where_there_is_no_timeline() -> None:
    mixed = case(f"{TWO} --concurrent-stride 4,2 --concurrent-stride1 3:0,0:100")
    assert [str(dialog.timeline) for dialog in mixed.dialogs] == ["4:0", "3:0,0:100"]
    alone = case(f"{TWO} --concurrent-stride1=0:0,2:7")
    assert [str(dialog.timeline) for dialog in alone.dialogs] == ["1:0", "0:0,2:7"]


def test_priorities_go_first_strictly() -> None:
    found = case(f"{TWO} --concurrent-priorities 100,200")
    assert ([d.priority for d in found.dialogs], found.scheduler.discipline) == ([100, 200], "priority")


def test_pairs_are_made_in_the_order_of_appearance() -> None:
    found = case(
        "--concurrent-config b --concurrent-config c --concurrent --concurrent-tokens_file t --prompt_file p -c a "
        "--concurrent-prompt 'a text'"
    )
    assert [(d.model, d.input) for d in found.dialogs] == [
        ("a", InputSpec(prompt_file=Path("p"))),
        ("b", InputSpec(tokens_file=Path("t"))),
        ("c", InputSpec(prompt="a text")),
    ]


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("-c a -p text", InputSpec(prompt="text")),
        ("--config a --prompt --hello", InputSpec(prompt="--hello")),
        ("-c a --prompt_file f", InputSpec(prompt_file=Path("f"))),
        ("-c a -tok f", InputSpec(tokens_file=Path("f"))),
        ("-c a --tokens_file f --embedding_query_output_type text", InputSpec(tokens_file=Path("f"))),
        ("-c a -e f", InputSpec(embedding=EmbeddingFile(Path("f")))),
        ("-c a -e f,int8,0.5,-3 -t t,int8,1,0", InputSpec(
            embedding=EmbeddingFile(Path("f"), Encoding("int8", 0.5, -3), stated=True))),
    ],
)  # fmt: skip
def test_one_dialog(words: str, asked: InputSpec) -> None:
    found = case(words)
    assert [dialog.input for dialog in found.dialogs] == [asked]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        # One dialog, in the program's order.
        ("-p x", "no model: give -c"),
        ("-c a -e f -p x", "--embedding_file and --prompt both say"),
        ("-c a -e f --prompt_file x", "--embedding_file and --prompt_file both say"),
        ("-c a -e f -tok x", "--embedding_file and --tokens_file both say"),
        ("-c a -t t -p x", "give them with --embedding_file."),
        ("-c a -t t", "give them with --embedding_file."),
        ("-c a -tok t -p x", "--tokens_file and --prompt both say"),
        ("-c a -tok t --prompt_file x", "--tokens_file and --prompt_file both say"),
        ("-c a", "has no input: give one of --embedding_file"),
        ("-c a -p x --prompt_file y", "--prompt and --prompt_file both say"),
        ("-c a -p ''", "--prompt is empty"),
        ("-c a -p x --log loud", "--log: 'loud' is none of error, warn, info, verbose"),
        ("-c a -p x --priority high", "--priority: 'high' is not an integer"),
        ("-c a -p x --priority 99999999999", "--priority: '99999999999' is not an integer"),
        ("-c a -p x --iterations 0", "--iterations: '0' is not a whole number from 1"),
        ("-c a -p x --iterations 1.5", "--iterations: '1.5' is not an integer"),
        ("-c a -p x --max-tokens -1", "--max-tokens: '-1' is not a whole number"),
        ("-c a -p x --embedding_query_output_type token", "'token' is none of text"),
        ("-c a -p x --run-id ../x", "--run-id: '../x' can't be a folder's name"),
        # Words.
        ("-c a -p x --concurent", "Unknown option: --concurent (did you mean --concurrent?)"),
        ("-c a -p x surplus", "Unknown option: 'surplus'"),
        ("-c a -p x -k key=value", "Unknown option: -k"),
        ("-c a -p", "Invalid parameter for argument: -p"),
        ("-c a --prompt_file --log error", "the next word is the option --log"),
        ("-c a -p x --concurrent=yes", "--concurrent: it takes no value"),
        ("-c a -c b -p x", "-c stands twice, and genie-t2t-run would take the last one"),
        ("-c a -p x --prompt y", "--prompt stands twice"),
        ("-c a -p x --pid --pid", "--pid stands twice"),
        (f"{TWO} --concurrent-stride1 1:0 --concurrent-stride01 1:0", "--concurrent-stride1 stands twice"),
        # Embedding arguments.
        ("-c a -e f,uint16", "Invalid embedding argument: 'f,uint16' has 2 fields"),
        ("-c a -e f,uint16,0.1", "Invalid embedding argument: 'f,uint16,0.1' has 3 fields"),
        ("-c a -e f,uint16,0.1,1,2", "Invalid embedding argument"),
        ("-c a -e f,,uint16,0.1,-3", "empty field, which genie-t2t-run would drop"),
        ("-c a -e f,uint32,0.1,-3", "invalid datatype 'uint32'"),
        ("-c a -e f,float32,1,0", "invalid datatype 'float32'"),
        ("-c a -e f,uint16,abc,-3", "Invalid quantization encodings: {uint16,abc,-3}"),
        ("-c a -e f,uint16,0.1abc,-3", "Invalid quantization encodings"),
        ("-c a -e f,uint16,nan,-3", "Invalid quantization encodings"),
        ("-c a -e f,uint16,0,-3", "Invalid quantization encodings"),
        ("-c a -e f,uint16,0.1,-32937.9", "Invalid quantization encodings"),
        ("-c a -e f -t t,uint16,0.1", "Invalid embedding argument: 't,uint16,0.1' has 3 fields"),
        # Several dialogs.
        ("-c a -p x --concurrent-config b --concurrent-embed e", "give --concurrent, too"),
        ("-c a -p x --concurrent-stride 1", "--concurrent-stride is an option of several dialogs"),
        ("-c a -p x --concurrent-stride0 1:0", "--concurrent-stride0 is an option of several dialogs"),
        ("--concurrent -c a -p x --concurrent-config b", "There are 1 --concurrent-config and 0 inputs"),
        (f"{TWO} --concurrent-embed e2", "There are 1 --concurrent-config and 2 inputs"),
        ("--concurrent -c a -p x -t t --concurrent-config b --concurrent-prompt y", "or --concurrent-embed."),
        ("--concurrent -c a -p x --concurrent-config b --concurrent-prompt ''", "--concurrent-prompt is empty"),
        ("--concurrent -c a --concurrent-config b --concurrent-embed e", "The first dialog has no input"),
        (f"{TWO} --concurrent-stride 1", "--concurrent-stride has 1 weights for 2 dialogs"),
        (f"{TWO} --concurrent-stride 1,2,3", "--concurrent-stride has 3 weights for 2 dialogs"),
        (f"{TWO} --concurrent-stride 1,-2", "The weight '-2' is not a decimal number"),
        (f"{TWO} --concurrent-stride 1,nan", "The weight 'nan' is not a decimal number"),
        (f"{TWO} --concurrent-stride 1,", "The weight '' is not a decimal number"),
        (f"{TWO} --concurrent-stride 4:0,1:5", "looks like a timeline"),
        (f"{TWO} --concurrent-priorities 1", "--concurrent-priorities has 1 priorities for 2 dialogs"),
        (f"{TWO} --concurrent-priorities 1,x", "--concurrent-priorities: 'x' is not an integer"),
        (f"{TWO} --concurrent-priorities 1,2 --priority 3", "--priority and --concurrent-priorities both say"),
        (f"{TWO} --concurrent-stride 1,2 --concurrent-priorities 1,2", "exclude each other"),
        (f"{TWO} --concurrent-stride0 1:0 --concurrent-priorities 1,2", "--concurrent-stride0 and --concurrent-prior"),
        (f"{TWO} --concurrent-stride2 1:0", "--concurrent-stride2 is of dialog 2, and there are 2 dialogs, 0 to 1"),
        (f"{TWO} --concurrent-stride0 4@0", "the separator is ':'"),
        (f"{TWO} --concurrent-stride0 4:5", "its first time must be 0"),
        (f"{TWO} --concurrent-stride0 4:0,1:5,2:5", "must increase"),
        (f"{TWO} --concurrent-stride0 4:0,1:5,2:3", "must increase"),
        (f"{TWO} --concurrent-stride0 4:0,1:5.5", "not a whole number of milliseconds"),
        (f"{TWO} --concurrent-stride-1 1:0", "Unknown option: --concurrent-stride-1"),
        (f"{TWO} --requantize floor", "--requantize: 'floor' is none of round, legacy-truncate"),
    ],
)  # fmt: skip
def test_wrong_command_lines(words: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        case(words)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "option",
    ["-l a", "--lora a", "-s d", "--save d", "-r d", "-w text", "--action ABORT", "--sleep 5", "--key k",
     "--engine_role primary", "--allow_engine_switch draft,e.json", "--add_example_sampler"],
)  # fmt: skip
def test_what_is_not_done_here_is_refused_by_name_and_passed_to_a_runner(option: str) -> None:
    with pytest.raises(UsageError, match=r"is not done here: .+, or run the program with --runner\."):
        case(f"-c a -p x {option}")
    runner = case(f"-c a -p x {option} --runner './t2t --x' --log info --pid").runner
    assert runner is not None
    assert runner.command == ("./t2t", "--x")
    assert runner.flags == (*option.split(), "--log", "info", "--pid")


def test_a_runner_takes_prompt_files_of_second_dialogs_as_the_script_gives_them() -> None:
    words = "--concurrent -c a -p x --concurrent-config b --concurrent-prompt_file f --runner ./t2t"
    runner = case(words).runner
    assert runner is not None
    assert runner.prompt_flag == "--concurrent-prompt_file"
    assert case(f"{TWO} --runner ./t2t --embedding_query_output_type token").runner is not None


def test_a_profile_that_exists_is_not_overwritten_by_chance(tmp_path: Path) -> None:
    there = tmp_path / "p.json"
    words = ["-c", "a", "-p", "x", "--profile", str(there)]
    refuse_profile(parse_flags(words))
    there.write_text("{}")
    with pytest.raises(UsageError, match=r"Invalid --profile argument\. Output file .*p\.json already exists"):
        refuse_profile(parse_flags(words))
    refuse_profile(parse_flags([*words, "--overwrite"]))
    for wrong in ("", str(tmp_path), str(tmp_path / "gone" / "p.json")):
        with pytest.raises(UsageError, match=r"Invalid --profile argument\. '.*' is no file in a folder that exists"):
            refuse_profile(parse_flags([*words[:-1], wrong, "--overwrite"]))


def test_no_words_ask_for_nothing_else_than_help() -> None:
    assert "--help" in parse_flags(["-h"]).values


def bundle_at(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")


def test_where_a_model_comes_from(tmp_path: Path) -> None:
    bundle_at(tmp_path / "one")
    bundle_at(tmp_path / "two")
    genie = tmp_path / "two" / "llm.json"
    registry = Registry({"named": ModelSpec(name="named", genie=tmp_path / "x" / ".." / "g.json", bundle=Path("b"))})
    found = case(
        f"--concurrent -c {tmp_path / 'one'} -p x --concurrent-config {genie} --concurrent-prompt y "
        f"--concurrent-config {tmp_path / 'g.json'} --concurrent-prompt z "
        f"--concurrent-config {tmp_path}/other/llm.json --concurrent-prompt z",
        registry,
    )
    one, beside, named, unknown = found.models
    assert (one.name, one.bundle, one.genie) == ("one", tmp_path / "one", None)
    assert (beside.name, beside.bundle, beside.genie) == ("llm", tmp_path / "two", genie)
    assert named == registry.models["named"]
    assert (unknown.name, unknown.bundle) == ("llm-2", None)


def test_what_the_registry_says_of_runs_holds() -> None:
    registry = Registry(scheduler=SchedulerSpec(discipline="fair-time", hold_ms=0), run=RunSpec(repeats=3))
    found = case(f"{TWO} --concurrent-stride 2,1 --threads 2", registry)
    assert (found.scheduler, found.run) == (registry.scheduler, RunSpec(repeats=3, threads=2))
    first = case(f"{TWO} --concurrent-priorities 2,1", registry)
    assert first.scheduler == SchedulerSpec(discipline="priority", hold_ms=0)


def genie_json(folder: Path, **dialog: Any) -> Path:
    path = folder / "llm.json"
    path.write_text(json.dumps({"dialog": {**DIALOG, **dialog}}))
    return path


LUT = {"version": 1, "size": 40, "type": "lut", "lut-path": "lut.bin", "datatype": "ufixed8",
       "quant-param": {"scale": 0.5, "offset": -107.10983274409456}}  # fmt: skip


def test_what_a_genie_configuration_says(tmp_path: Path) -> None:
    sampler = {"version": 1, "temp": 0.7, "top-k": 40, "top-p": 0.9, "seed": 42, "greedy": True,
               "token-penalty": {"version": 1, "penalize-last-n": 8, "repetition-penalty": 1.5,
                                 "presence-penalty": 0}}  # fmt: skip
    (tmp_path / "lut.bin").write_bytes(b"")
    path = genie_json(tmp_path, embedding=LUT, sampler=sampler, **{"max-num-tokens": 0, "stop-sequence": ["END"]})
    fed = case(f"-c {path} -e e.bin,uint8,1,0")
    [dialog] = fed.dialogs
    assert (dialog.max_tokens, dialog.stop) == (1, ("END",))
    assert dialog.sampling == {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "seed": 42, "repetition_penalty": 1.5}
    # The library keeps offsets as int32.
    assert fed.models[0].table == EmbeddingFile(tmp_path / "lut.bin", Encoding("uint8", 0.5, -107), stated=True)
    stated = case(f"-c {path} -e e.bin,uint8,1,0 -t t.bin,uint8,2,0 --max-tokens 5 --requantize legacy-truncate")
    assert stated.models[0].table == EmbeddingFile(Path("t.bin"), Encoding("uint8", 2.0, 0), stated=True)
    assert (stated.dialogs[0].max_tokens, stated.dialogs[0].requantize) == (5, "legacy-truncate")
    assert case(f"-c {path} -p x").models[0].table == "bundle"


@pytest.mark.parametrize(
    ("sampler", "sampling"),
    [
        (None, {}),
        ({"version": 1}, {"temperature": 0.1, "top_p": 0.8, "top_k": 0}),
        ({"version": 1, "temp": 0}, {}),
        ({"version": 1, "temp": 0.5, "top-k": 1}, {}),
    ],
)
def test_samplers(tmp_path: Path, sampler: dict[str, Any] | None, sampling: dict[str, Any]) -> None:
    said = {} if sampler is None else {"sampler": sampler}
    assert case(f"-c {genie_json(tmp_path, **said)} -p x").dialogs[0].sampling == sampling


def test_without_a_table_a_dialog_ends_with_its_first_token(tmp_path: Path) -> None:
    found = case(f"-c {genie_json(tmp_path)} -e e.bin")
    assert found.models[0].table == "none"
    assert found.dialogs[0].max_tokens is None


@pytest.mark.parametrize(
    ("dialog", "message"),
    [
        ({"embedding": {**LUT, "datatype": "native"}}, "in the engine's own encoding"),
        ({"embedding": {**LUT, "lut": 1}}, "lut"),
        ({"sampler": {"version": 1, "type": "custom", "callback-name": "f"}}, "a sampler of the type custom"),
        ({"sampler": {"version": 1, "temp": "hot"}}, "temp"),
        ({"tipe": 1}, "tipe"),
        ({"embedding": {**LUT, "lut-path": "a\0b"}}, "can't be the name of a file"),
        ({"embedding": {**LUT, "lut-path": "x" * 5000}}, "can't be the name of a file"),
        ({"embedding": {**LUT, "lut-path": ""}}, "can't be the name of a file"),
    ],
)
def test_configurations_that_cant_be_followed(tmp_path: Path, dialog: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        case(f"-c {genie_json(tmp_path, **dialog)} -e e.bin")


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    """The command line is wrong then, which has the exit code of that: 3 means that some dialogs failed."""
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(UsageError, match="dialog"):
        case(f"-c {tmp_path / 'a.json'} -p x")
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(UsageError, match=r"b\.json, line 1"):
        case(f"-c {tmp_path / 'b.json'} -p x")


def test_as_many_dialogs_as_a_case_file_may_have() -> None:
    words = ["--concurrent", "-c", "a", "-p", "x", *("--concurrent-config", "b", "--concurrent-prompt", "y") * 255]
    assert len(parse_flags(words).each) == 510
    with pytest.raises(UsageError, match="There are 257 dialogs, and a case has 256 at most"):
        parse_flags([*words, "--concurrent-config", "b", "--concurrent-prompt", "y"])


def test_words_that_are_no_text() -> None:
    with pytest.raises(UsageError, match=r"The word 'a\\udcff' is no text in UTF-8"):
        parse_flags(["-c", "x.json", "-p", "a\udcff"])


def test_the_registrys_paths_are_those_of_the_runners_machine(tmp_path: Path) -> None:
    models = tmp_path / "models.yaml"
    models.write_text("version: 1\nmodels: {m: {genie: g.json}}\n")
    for runner, path in (("adb shell t2t", Path("g.json")), ("./t2t", tmp_path / "g.json")):
        registry = registry_of(parse_flags(["-c", "a", "-p", "x", "--models", str(models), "--runner", runner]))
        assert registry is not None
        assert registry.models["m"].genie == path
    assert registry_of(parse_flags(["-c", "a", "-p", "x"])) is None


def test_with_a_runner_elsewhere_nothing_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("no JSON")
    found = case(f"-c {path} -e e.bin --runner 'adb shell /data/t2t'")
    assert found.models == (ModelSpec(name="a", genie=path),)
    assert to_yaml(found, tmp_path).count(str(path)) == 1  # the device's path, not one relative to the file
