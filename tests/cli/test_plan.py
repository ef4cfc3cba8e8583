from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgewright.targets.platform import FOLDER_VARIABLE

from .conftest import Cli
from .tiny import GOLDENS, the_sentence

POLICY = GOLDENS / "policies" / "pi05" / "checkpoint"
BOARD = """\
title: My board
memory_bytes: 1100000
bandwidth_bytes_per_s: 1.0e+9
peak_ops_per_s: {float16: 1.0e+12}
float: float16
weights: [int4, int8]
activations: []
caches: [int8]
sources:
  memory_bytes: {title: "Its data sheet", confidence: datasheet}
  bandwidth_bytes_per_s: {title: "Its data sheet", confidence: datasheet}
  peak_ops_per_s: {title: "A blog", confidence: reported}
  formats: {title: "Tried out", confidence: reported}
"""


@pytest.fixture
def board(tmp_path: Path) -> Path:
    path = tmp_path / "my-board.yaml"
    path.write_text(BOARD, encoding="utf-8")
    return path


def test_a_table_and_a_verdict(cli: Cli, llama: Path) -> None:
    result = cli("plan", llama, "--for", "jetson-orin-nx", "--context", 64)
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == "llama (llama), recipe int4, on Jetson Orin NX 16 GB"
    assert lines[1].split(None, 1) == ["sizes", "context 64, batch 1, prompt tokens 64"]
    assert [line.split()[0] for line in lines[3:6]] == ["stage", "prefill", "decode"]
    assert "tokens/s" in lines[5]
    assert lines[5].endswith("bandwidth")
    assert "100 % of peak and bandwidth" in result.out
    assert lines[-1].startswith("verdict   fits:")
    assert "note: The GPU alone" in result.err
    assert cli("plan", llama, "--for", "jetson-orin-nx", "--context", 64, "--quiet").err == ""


def test_json_has_every_number_and_its_source(cli: Cli, llama: Path) -> None:
    plan = json.loads(cli("plan", llama, "--for", "orin", "--context", 64, "--recipe", "int8", "--json").out)
    assert (plan["kind"], plan["platform"], plan["recipe"]) == ("llama", "jetson-agx-orin-64gb", "int8")
    assert plan["fits"] is True
    assert plan["capacity_bytes"] == 64 << 30
    assert plan["sources"]["bandwidth_bytes_per_s"]["confidence"] == "datasheet"
    prefill, decode = plan["stages"]
    assert prefill["tokens_per_s"] > decode["tokens_per_s"] > 0
    parts = ("weight_bytes", "cache_bytes", "activation_bytes")
    assert decode["bytes"] == sum(decode[part] for part in parts)
    assert decode["latency_ms"] >= 1000 * decode["bytes"] / 204.8e9 * 0.999
    memory = plan["memory"]
    assert memory["total_bytes"] == sum(value for key, value in memory.items() if key != "total_bytes")
    half = json.loads(cli("plan", llama, "--for", "orin", "--context", 64, "--efficiency", 0.5, "--json").out)
    full = json.loads(cli("plan", llama, "--for", "orin", "--context", 64, "--json").out)
    assert half["stages"][1]["latency_ms"] == pytest.approx(2 * full["stages"][1]["latency_ms"])
    assert half["efficiency"] == 0.5


def test_what_does_not_fit_says_what_would(cli: Cli, llama: Path, board: Path) -> None:
    words = ("plan", llama, "--platform-file", board, "--context", 64, "--prompt-tokens", 8, "--recipe", "float32")
    result = cli(*words, "--memory", "0.0001")
    assert result.code == 1
    assert "verdict   does not fit:" in result.out
    assert "of 100 kB" in result.out
    assert "--embeddings outside: " in result.out
    assert ", not enough" in result.out
    assert result.out.splitlines()[-1] == "advice    --recipe int8"
    assert cli(*words[:-1], "int8", "--memory", "0.0001").code == 0
    nothing = cli(*words, "--memory", "0.000001")
    assert nothing.code == 1
    assert "nothing here makes it fit: take a platform with at least" in nothing.out
    assert cli(*words).code == 0


def test_the_largest_context_that_fits_is_one(cli: Cli, llama: Path, board: Path) -> None:
    words = ("plan", llama, "--platform-file", board, "--json", "--recipe", "int4", "--prompt-tokens", 8)
    whole = json.loads(cli(*words, "--context", 256).out)["memory"]["total_bytes"]
    memory = f"{(whole - 10_000) / 1e9:.9f}"
    plan = json.loads(cli(*words, "--context", 256, "--memory", memory).out)
    context = next(change["context"] for change in plan["changes"] if change["change"].startswith("--context"))
    assert cli(*words, "--context", context, "--memory", memory).code == 0
    # The rope's table is as long as the context as well, so that the number is a little too small at most.
    assert cli(*words, "--context", context + 5, "--memory", memory).code == 1


def test_a_policy(cli: Cli) -> None:
    result = cli("plan", POLICY, "--for", "jetson-thor", "--steps", 4)
    assert result.code == 0
    assert [line.split()[0] for line in result.out.splitlines()[4:7]] == ["vision", "prefix", "denoise"]
    assert "x 4" in result.out
    assert "recipe policy-int8" in result.out


def test_a_bundle(cli: Cli, llama: Path, tmp_path: Path) -> None:
    assert cli("export", llama, "-o", tmp_path / "b", "--dialect", "onnxruntime", "--recipe", "int4").code == 0
    result = cli("plan", tmp_path / "b", "--for", "cpu", "--bandwidth", 30)
    assert result.code == 0
    assert result.out.startswith("b (llama), recipe int4, on CPU")
    the_sentence(cli("plan", tmp_path / "b", "--for", "cpu", "--recipe", "int8").err, "is a bundle")
    the_sentence(cli("plan", tmp_path / "b", "--for", "cpu", "--steps", 3).err, "is a bundle")


def test_memory_that_nobody_knows_is_no_pass(cli: Cli, llama: Path) -> None:
    result = cli("plan", llama, "--for", "sa8775p")
    assert result.code == 1
    assert "verdict   not known: no public memory of Snapdragon SA8775P, give --memory" in result.out
    assert "not known" in result.out.splitlines()[4]
    assert cli("plan", llama, "--for", "sa8775p", "--memory", 8, "--bandwidth", 60).code == 0


@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        ((), 2, ("--for PLATFORM or --platform-file FILE",)),
        (("--for", "jetson-orinn"), 2, ("'jetson-orinn' is unknown", "did you mean jetson-orin")),
        (("--for", "cpu", "--platform-file", "x.yaml"), 2, ("give one of them",)),
        (("--platform-file", "nowhere.yaml"), 3, ("can't be read", "No such file")),
        (("--for", "orin", "--recipe", "fp8"), 3, ("fp8.yaml:3", "has no fp8 weights", "int4, int8 and floats")),
        (("--for", "orin", "--recipe", "int5"), 3, ("There is no recipe 'int5'",)),
        (("--for", "orin", "--context", "100000"), 3, ("context of 100000 tokens is outside", "1 to 256")),
        (("--for", "orin", "--context", "8", "--prompt-tokens", "9"), 2, ("9 tokens doesn't fit", "context of 8")),
        (("--for", "orin", "--context", "0"), 2, ("whole number from 1",)),
        (("--for", "orin", "--efficiency", "1.5"), 2, ("above 0 and up to 1",)),
        (("--for", "orin", "--efficiency", "nan"), 2, ("above 0 and up to 1",)),
        (("--for", "orin", "--memory", "-1"), 2, ("gigabytes above 0",)),
        (("--for", "orin", "--steps", "3"), 2, ("is not a robot policy",)),
    ],
)
def test_bad_words(cli: Cli, llama: Path, words: tuple[str, ...], code: int, parts: tuple[str, ...]) -> None:
    result = cli("plan", llama, *words)
    assert result.code == code
    assert result.out == ""
    the_sentence(result.err, *parts)


def test_bad_sources(cli: Cli, tmp_path: Path) -> None:
    result = cli("plan", tmp_path / "nowhere", "--for", "orin")
    assert result.code == 3
    the_sentence(result.err, "nowhere")
    (tmp_path / "manifest.json").write_text("{}")
    result = cli("plan", tmp_path, "--for", "orin")
    assert result.code == 3
    the_sentence(result.err)
    result = cli("plan", POLICY, "--for", "orin", "--context", 64)
    assert result.code == 2
    the_sentence(result.err, "is a robot policy", "--prompt-tokens")


def test_a_platform_of_the_user_is_checked_with_its_line(cli: Cli, llama: Path, board: Path) -> None:
    board.write_text(BOARD.replace("float: float16", "float: float17"), encoding="utf-8")
    result = cli("plan", llama, "--platform-file", board)
    assert result.code == 3
    the_sentence(result.err, "my-board.yaml:5", "'float17' is unknown")


def test_every_verb_that_builds_refuses_before_it_begins(
    cli: Cli, talker: Path, board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    for verb in ("deploy", "export", "quantize"):
        result = cli(verb, talker, "--recipe", "fp8", "--for", "jetson-orin", "-o", out)
        assert result.code == 3
        the_sentence(result.err, "fp8.yaml:3", "Jetson AGX Orin 64 GB has no fp8 weights")
        result = cli(verb, talker, "--recipe", "w8a8", "--platform-file", board, "-o", out)
        assert result.code == 3
        the_sentence(result.err, "My board has no int8 activations; it has floats")
        assert not out.exists()
    stored = GOLDENS / "prequantized" / "ct-fp8-dynamic"
    for verb in ("deploy", "export"):
        result = cli(verb, stored, "--recipe", "stored", "--for", "jetson-orin", "-o", out)
        assert result.code == 3
        the_sentence(result.err, "has fp8 weights as it is stored, and Jetson AGX Orin 64 GB has none")
    assert not out.exists()
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert cli("quantize", talker, "--recipe", "w8a8", "--for", "my-board", "-o", out).code == 3
    assert cli("export", talker, "--recipe", "int8", "--for", "my-board", "-o", out).code == 0
