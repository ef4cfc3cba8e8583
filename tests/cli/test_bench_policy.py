"""`edgewright bench` on policies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Cli
from .tiny import the_sentence


def test_table(cli: Cli, policy_bundle: Path) -> None:
    result = cli("bench", policy_bundle, "--repeats", 3, "--cameras", 2)
    assert result.code == 0
    about, head, *rows = result.out.splitlines()
    assert about.startswith("pi05, 2 cameras, ")
    assert about.endswith(" tokens in the prefix, 3 chunks")
    assert head.split() == ["ms", "p50", "p95", "p99"]
    names = [row.split("  ")[0] for row in rows]
    assert names == [
        "prepare", "vision", "prefix", "denoise step", "denoise x 10", "total", "",
        "load", "bundle", "peak memory", "peak anonymous",
    ]  # fmt: skip
    assert [line.split(" ...")[0] for line in result.err.splitlines()] == ["load", "warm up", "3 chunks"]


def test_json(cli: Cli, policy_bundle: Path, tmp_path: Path) -> None:
    words = ("--repeats", 2, "--cameras", 1, "--prompt", "go home", "--seed", 3, "--threads", 1, "--steps", 10)
    printed = cli("bench", policy_bundle, *words, "--json", "-", "--quiet")
    assert printed.err == ""
    data = json.loads(printed.out)
    assert data["plan"] == {"repeats": 2, "steps": 10, "cameras": 1, "prompt": "go home", "seed": 3}
    assert data["cameras"] == ["observation.images.base_0_rgb"]
    assert data["prefix_tokens"] == data["prompt_tokens"] + 4
    assert data["threads"] == 1
    assert cli("bench", policy_bundle, *words, "--json", tmp_path / "bench.json").out.startswith("pi05, 1 camera, ")
    stored = json.loads((tmp_path / "bench.json").read_text())
    assert stored.keys() == data.keys()
    assert stored["plan"] == data["plan"]


def test_notes_of_the_chunks_are_told_once(cli: Cli, policy_bundle: Path) -> None:
    result = cli("bench", policy_bundle, "--repeats", 3, "--cameras", 1, "--prompt", "", "--json", "-")
    told = "the prompt is empty: the policy isn't told what to do"
    assert json.loads(result.out)["notes"] == [told]
    assert result.err.count(f"note: {told}\n") == 1


def test_what_can_not_be_measured(cli: Cli, policy_bundle: Path) -> None:
    result = cli("bench", policy_bundle, "--cameras", 4)
    assert result.code == 2
    the_sentence(result.err, "The policy has 3 cameras", "--cameras 4")
    result = cli("bench", policy_bundle, "--steps", 4)
    assert result.code == 3
    the_sentence(result.err, "built for 10 steps")


@pytest.mark.parametrize("flag", ["--prompt-tokens", "--decode-tokens", "--after"])
def test_flags_of_language_models_are_refused(cli: Cli, policy_bundle: Path, flag: str) -> None:
    result = cli("bench", policy_bundle, flag, 64)
    assert result.code == 2
    the_sentence(result.err, "holds a robot policy", f"{flag} has a meaning for language models only")


@pytest.mark.parametrize("flag", ["--steps", "--cameras", "--prompt"])
def test_flags_of_policies_are_refused(cli: Cli, plain_bundle: Path, flag: str) -> None:
    result = cli("bench", plain_bundle, flag, 2)
    assert result.code == 2
    the_sentence(result.err, "holds a language model", f"{flag} has a meaning for robot policies only")
