"""A reduced vocabulary on the command line: flags, what is printed, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgewright.bundle import read_manifest
from edgewright.cli import main

from .conftest import Cli
from .tiny import llama_folder, the_sentence


@pytest.fixture(scope="module")
def small(talker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A verified float32 bundle that keeps 300 of 400 tokens; not to be changed."""
    folder = tmp_path_factory.mktemp("small") / "bundle"
    arguments = ["deploy", str(talker), "-o", str(folder), "--recipe", "float32", "--vocab-size", "300", "--quiet"]
    assert main(arguments) == 0
    return folder


def test_deploy_says_what_was_saved(cli: Cli, talker: Path, tmp_path: Path) -> None:
    text, listed = tmp_path / "t.txt", tmp_path / "k.txt"
    text.write_text("the others are here")
    listed.write_text("399\n")
    flags = ["--vocab-size", "75%", "--vocab-text", text, text, "--vocab-inputs", text, "--vocab-keep", listed]
    result = cli("deploy", talker, "-o", tmp_path / "b", "--recipe", "int8", "--no-verify", *flags)
    assert result.code == 0, result.err
    record = read_manifest(tmp_path / "b").model["vocabulary"]
    assert record["kept"] == 300
    (line,) = [line for line in result.out.splitlines() if line.startswith("tokens")]
    assert line.startswith("tokens    300 of 400 kept (input-aware), tables of ")
    assert f"instead of {record['full_table_bytes'] / 1000:.3g} kB" in line
    again = cli("deploy", talker, "-o", tmp_path / "b", "--recipe", "int8", "--no-verify", *flags, "--json")
    data = json.loads(again.out)
    assert data["reused"]
    assert data["model"]["vocabulary"] == record
    other = cli("deploy", talker, "-o", tmp_path / "b", "--recipe", "int8", "--no-verify")
    assert other.code == 4
    the_sentence(other.err, "b exists already")


def test_inspect_shows_it(cli: Cli, small: Path) -> None:
    out = cli("inspect", small).out
    assert "vocab size   400" in out
    assert "kept tokens  300" in out
    assert "vocabulary frequency: 300 of 400 tokens; tables of " in out
    assert "  4 special\n" in out
    data = json.loads(cli("inspect", small, "--json").out)
    assert data["vocabulary"]["reasons"]["special"] == 4
    assert data["kept_tokens"] == 300
    verified = cli("verify", small)
    assert verified.code == 0
    assert "recorded  passed" in verified.out


def test_run_tells_of_tokens_it_spelled_otherwise(cli: Cli, small: Path, plain_bundle: Path) -> None:
    prompt = "another thing of the others, something else"
    told = cli("run", small, "--raw", "--prompt", prompt, "--max-tokens", "4")
    assert told.code == 0, told.err
    assert "note: tokens that the reduced vocabulary lacks were spelled in smaller ones" in told.err
    quiet = cli("run", small, "--raw", "--prompt", prompt, "--max-tokens", "4", "--quiet", "--json")
    assert quiet.err == ""
    assert json.loads(quiet.out)["respelled_tokens"] > 0
    plain = cli("run", small, "--raw", "--prompt", "x", "--max-tokens", "4", "--json")
    assert json.loads(plain.out)["respelled_tokens"] == 0
    assert "note" not in plain.err
    whole = cli("run", plain_bundle, "--prompt-ids", "1,2", "--max-tokens", "4", "--json")
    assert "respelled_tokens" not in json.loads(whole.out)


def test_ids_that_were_dropped_are_refused(cli: Cli, small: Path) -> None:
    kept = cli("run", small, "--prompt-ids", "5,6", "--max-tokens", "4", "--ids")
    assert kept.code == 0
    refused = cli("run", small, "--prompt-ids", "5,395", "--max-tokens", "4")
    assert refused.code == 3
    the_sentence(refused.err, "(id 395) is not among the 300 of 400", "--vocab-keep")


def test_chat_tells_of_a_token_once(cli: Cli, small: Path) -> None:
    lines = "another thing of the others\nanother thing of the others\n/quit\n"
    result = cli("chat", small, "--max-tokens", "3", stdin=lines)
    assert result.code == 0, result.err
    notes = [line for line in result.err.splitlines() if "spelled in smaller ones" in line]
    assert 1 <= len(notes) <= 2
    assert len(set(notes)) == len(notes)


def test_bench_draws_kept_tokens(cli: Cli, small: Path) -> None:
    flags = ["--prompt-tokens", "16", "--decode-tokens", "3", "--after", "8", "--repeats", "1", "--threads", "1"]
    result = cli("bench", small, *flags, "--json", "-")
    assert result.code == 0, result.err
    assert json.loads(result.out)["decode"][0]["tokens_per_s"]["median"] > 0


@pytest.mark.parametrize("size", ["0", "-3", "x", "%", "0%", "101%", "1.5", "nan%", "inf"])
def test_sizes_that_are_none(cli: Cli, size: str, talker: Path, tmp_path: Path) -> None:
    result = cli("deploy", talker, "-o", tmp_path / "b", f"--vocab-size={size}")
    assert result.code == 2
    the_sentence(result.err, "--vocab-size", f"{size!r} is neither a number of tokens such as 16000 nor a share")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", ["deploy", "export"])
def test_what_cannot_be_done_is_refused(cli: Cli, verb: str, talker: Path, tmp_path: Path) -> None:
    (tmp_path / "k.txt").write_text("the\n4000\n")
    cases = [
        (["--vocab-size", "401"], ("more than the 400 of the model",)),
        (["--vocab-size", "20"], ("that must stay", "256 bytes and characters", "ask for at least --vocab-size ")),
        (["--vocab-size", "350", "--vocab-keep", tmp_path / "k.txt"], ("k.txt, line 2", "no token 4000")),
        (["--vocab-size", "350", "--vocab-text", tmp_path / "none"], ("none can't be read",)),
        (["--vocab-text", tmp_path / "k.txt"], ("--vocab-text needs --vocab-size",)),
        (["--vocab-keep", tmp_path / "k.txt"], ("--vocab-keep needs --vocab-size",)),
    ]
    for flags, parts in cases:
        result = cli(verb, talker, "-o", tmp_path / "b", *flags)
        assert result.code == 2, result.err
        the_sentence(result.err, *parts)
    assert [path.name for path in tmp_path.iterdir()] == ["k.txt"]


def test_the_size_it_asks_for_is_enough(cli: Cli, talker: Path, tmp_path: Path) -> None:
    result = cli("export", talker, "-o", tmp_path / "b", "--vocab-size", "1")
    least = result.err.rsplit("--vocab-size ", 1)[1].rstrip(".\n")
    assert cli("export", talker, "-o", tmp_path / "b", "--vocab-size", least).code == 0
    assert read_manifest(tmp_path / "b").model["vocabulary"]["kept"] == int(least)


def test_padding_rows_go_first(cli: Cli, tmp_path: Path) -> None:
    source = llama_folder(tmp_path / "source", vocab=448)
    flags = ["--recipe", "float32", "--vocab-size", "400"]
    result = cli("deploy", source, "-o", tmp_path / "b", *flags)
    assert result.code == 0, result.err
    record = read_manifest(tmp_path / "b").model["vocabulary"]
    assert (record["kept"], record["full"], record["padding"]) == (400, 448, 48)
    more = cli("deploy", source, "-o", tmp_path / "c", "--vocab-size", "401")
    the_sentence(more.err, "more than the 400 of the model (448 ids, of which 48 have no token)")


def test_a_tokenizer_is_needed(cli: Cli, llama: Path, tmp_path: Path) -> None:
    result = cli("deploy", llama, "-o", tmp_path / "b", "--vocab-size", "50")
    assert result.code == 3
    the_sentence(result.err, "no tokenizer.json")
