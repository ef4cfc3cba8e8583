from __future__ import annotations

import json
from pathlib import Path

from .conftest import Cli
from .tiny import the_sentence

FEW = ("--prompt-tokens", 40, "--decode-tokens", 6, "--after", "8,33", "--repeats", 3)


def test_table(cli: Cli, plain_bundle: Path) -> None:
    result = cli("bench", plain_bundle, *FEW)
    assert result.code == 0
    head, *rows = result.out.splitlines()
    assert "median [min..max] of 3" in head
    assert [row.split("  ")[0] for row in rows if row[0] != " "] == [
        "load",
        "prefill 40",
        "first token after 32",
        "decode 6 after 8",
        "decode 6 after 33",
        "bundle",
        "peak memory",
        "peak anonymous",
    ]
    assert [line.split(" ...")[0] for line in result.err.splitlines()] == [
        "load",
        "prefill",
        "first token",
        "decode after 8",
        "decode after 33",
    ]


def test_json(cli: Cli, plain_bundle: Path, tmp_path: Path) -> None:
    printed = cli("bench", plain_bundle, *FEW, "--json", "-", "--quiet")
    assert printed.err == ""
    data = json.loads(printed.out)
    assert data["plan"] == {"prompt_tokens": 40, "decode_tokens": 6, "after": [8, 33], "repeats": 3, "seed": 0}
    assert [decode["after"] for decode in data["decode"]] == [8, 33]
    result = cli("bench", plain_bundle, *FEW, "--json", tmp_path / "bench.json")
    assert result.out.startswith("figure ")
    stored = json.loads((tmp_path / "bench.json").read_text())
    assert stored.keys() == data.keys()
    assert stored["plan"] == data["plan"]


def test_a_plan_that_does_not_fit(cli: Cli, plain_bundle: Path, tmp_path: Path) -> None:
    result = cli("bench", plain_bundle, "--after", "255", "--decode-tokens", 2)
    assert result.code == 2
    the_sentence(result.err, "needs 512 tokens of context and the bundle has 256", "--prompt-tokens")
    result = cli("bench", plain_bundle, *FEW, "--json", tmp_path / "gone" / "bench.json")
    assert result.code == 4
    the_sentence(result.err, "bench.json")
