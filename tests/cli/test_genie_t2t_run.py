"""`edgewright genie-t2t-run`: a script's command line runs on bundles here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from edgewright.cli import genie_t2t_run, main

from .conftest import Cli
from .tiny import GOLDENS, the_sentence

HIDDEN, VOCAB = 40, 97
HTP = {
    "version": 1, "spill-fill-bufsize": 0, "mmap-budget": 0, "use-mmap": True, "cpu-mask": "0xe0", "poll": True,
    "kv-dim": 64,
}  # fmt: skip
#: What Genie's library takes as the configuration of a dialog.
DIALOG = {
    "version": 1, "type": "basic", "tokenizer": {"version": 1, "path": "tokenizer.json"},
    "context": {"version": 1, "size": 64, "n-vocab": 97, "bos-token": 1, "eos-token": 2},
    "engine": {
        "version": 1, "n-threads": 3, "backend": {"version": 1, "type": "QnnHtp", "QnnHtp": HTP},
        "model": {"version": 1, "type": "binary", "binary": {"version": 1, "ctx-bins": ["a"]}},
    },
}  # fmt: skip


@pytest.fixture(scope="session")
def fed_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that takes embeddings, with a Genie configuration beside its manifest."""
    folder = tmp_path_factory.mktemp("fed") / "bundle"
    source = str(GOLDENS / "text" / "llama")
    options = ["--recipe", "float32", "--no-verify", "--quiet", "--embeddings", "outside"]
    assert main(["deploy", source, "-o", str(folder), *options]) == 0
    (folder / "vlm.json").write_text(json.dumps({"dialog": {**DIALOG, "max-num-tokens": 4}}))
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with token ids, embeddings and a table."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    (tmp_path / "ids.txt").write_text("3 4 5")
    rng.integers(0, 256, (3, HIDDEN)).astype("u1").tofile(tmp_path / "in.bin")
    rng.integers(0, 256, (VOCAB, HIDDEN)).astype("u1").tofile(tmp_path / "table.bin")
    return tmp_path


def test_several_dialogs(cli: Cli, folder: Path, plain_bundle: Path, fed_bundle: Path) -> None:
    words = [
        "--concurrent", "--priority", "200", "--log", "error", "--iterations", "2", "--profile", "profile.json",
        "-c", plain_bundle, "-tok", "ids.txt", "-t", "table.bin,uint8,0.02,-120", "--max-tokens", "4",
        "--concurrent-config", fed_bundle / "vlm.json", "--concurrent-embed", "in.bin,uint8,0.01,-128",
        "--concurrent-config", fed_bundle / "vlm.json", "--concurrent-embed", "in.bin,uint8,0.01,-128",
        "--concurrent-stride", "4,2,1", "-o", "runs", "--run-id", "first",
    ]  # fmt: skip
    result = cli("genie-t2t-run", *words)
    assert result.code == 0, result.err
    assert [line for line in result.out.splitlines() if line.startswith("== ")] == ["== D0", "== D1", "== D2"]
    assert "D1" in result.err  # the times
    run = folder / "runs" / "genie-t2t-run" / "first"
    jobs = [json.loads(line) for line in (run / "jobs.jsonl").read_text().splitlines()]
    assert [(job["dialog"], job["generated_tokens"]) for job in jobs if job["iteration"] == 1] != []
    assert {job["generated_tokens"] for job in jobs} == {4}
    assert len(jobs) == 6
    profile = json.loads((folder / "profile.json").read_text())
    assert [component["name"] for component in profile["components"]] == ["dialog0", "dialog1", "dialog2"]

    result = cli("genie-t2t-run", *words)
    assert result.code == 2
    the_sentence(result.err, "Invalid --profile argument. Output file profile.json already exists", "--overwrite")
    assert cli("genie-t2t-run", *words, "--overwrite").code == 0


def test_the_profile_is_there_even_if_the_reader_of_stdout_goes_away(
    cli: Cli, folder: Path, plain_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(result: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(genie_t2t_run, "_tell", gone)
    words = ("-c", plain_bundle, "-tok", "ids.txt", "--max-tokens", "2", "--profile", "p.json")
    assert cli("genie-t2t-run", *words).code == 141
    assert json.loads((folder / "p.json").read_text())["components"][0]["name"] == "dialog0"


def test_without_a_table_one_token_comes(cli: Cli, folder: Path, fed_bundle: Path) -> None:
    result = cli("genie-t2t-run", "-c", fed_bundle / "vlm.json", "-e", "in.bin,uint8,0.01,-128", "--pid", "--quiet")
    assert result.code == 0, result.err
    assert result.out.startswith("genie-t2t-run pid: ")
    [jobs] = (folder / "runs" / "genie-t2t-run").glob("*/jobs.jsonl")
    [job] = [json.loads(line) for line in jobs.read_text().splitlines()]
    assert (job["generated_tokens"], job["finish_reason"]) == (1, "no-table")


def test_a_registry_says_which_bundle_stands_for_a_configuration(cli: Cli, folder: Path, plain_bundle: Path) -> None:
    (folder / "models.yaml").write_text(f"version: 1\nmodels:\n  llm: {{genie: llm.json, bundle: {plain_bundle}}}\n")
    words = ["-c", "llm.json", "-tok", "ids.txt", "--max-tokens", "2"]
    result = cli("genie-t2t-run", *words)
    assert result.code == 2
    the_sentence(result.err, "names no bundle that runs here", "--models")
    assert cli("genie-t2t-run", *words, "--models", "models.yaml").code == 0


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["-c", "a"], "has no input"),
        (["-c", "a", "-p", "x", "--lora", "l"], "--lora is not done here"),
        (["-c", "a", "-p", "x", "--temp", "1"], "Unknown option: --temp"),
        (["-c", "gone", "-p", "x"], "names no bundle that runs here"),
        (["-c", "a", "-p", "x", "--models", "gone.yaml"], "gone.yaml can't be read"),
        (["-c", "a", "-p", "x", "--runner", "'"], "has no end"),
    ],
)
def test_wrong_command_lines(cli: Cli, folder: Path, words: list[str], part: str) -> None:
    result = cli("genie-t2t-run", *words)
    assert (result.code, result.out) == (2, "")
    the_sentence(result.err, part)
    assert not (folder / "runs").exists()


def test_all_problems_are_found_before_a_model_is_loaded(cli: Cli, folder: Path, fed_bundle: Path) -> None:
    (folder / "in.bin").write_bytes(bytes(HIDDEN + 1))
    result = cli(
        "genie-t2t-run", "-c", fed_bundle, "-e", "in.bin,uint8,0.01,-128", "-t", "table.bin,int8,0.01,0",
    )  # fmt: skip
    assert result.code == 2
    the_sentence(result.err, "D0", "Unsupported LUT requantization")
    assert not (folder / "runs").exists()


def test_an_external_program_gets_the_same_words(cli: Cli, folder: Path) -> None:
    program = Path(__file__).parent.parent / "bench" / "external" / "stand_in.py"
    for name in ("llm", "vlm"):
        dialog = {"version": 1, "type": "basic", "embedding": {"version": 1, "size": HIDDEN}}
        (folder / f"{name}.json").write_text(json.dumps({"dialog": dialog, "stand-in": {"tokens": 3}}))
    (folder / "prompt.txt").write_text("one two three")
    result = cli(
        "genie-t2t-run", "--concurrent", "-c", "llm.json", "--prompt_file", "prompt.txt", "--log", "error",
        "-t", "table.bin,uint8,0.02,-120", "--concurrent-config", "vlm.json",
        "--concurrent-embed", "in.bin,uint8,0.01,-128", "--concurrent-stride", "2,1", "--iterations", "2",
        "--profile", "profile.json", "--run-id", "one", "--runner", f"{sys.executable} -I -S {program}",
    )  # fmt: skip
    assert result.code == 0, result.err
    [command] = (folder / "runs" / "genie-t2t-run" / "one" / "executions").glob("*/command.txt")
    words = command.read_text().split()
    assert words[words.index("--log") + 1] == "error"
    assert words[words.index("--concurrent-stride") + 1] == "2,1"
    assert words[words.index("--concurrent-config") + 1] == "vlm.json"
    assert "[BEGIN]" in result.out
    profile = json.loads((folder / "profile.json").read_text())
    assert [component["name"] for component in profile["components"]] == ["dialog0", "dialog1"]


def test_help(cli: Cli) -> None:
    shown = cli("genie-t2t-run", "--help")
    assert shown.code == 0
    for option in ("--concurrent-strideN W:T", "-tok, --tokens_file FILE", "--concurrent-priorities P,P", "--lora"):
        assert option in shown.out
    assert cli("genie-t2t-run").out == shown.out
