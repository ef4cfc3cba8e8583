"""`edgewright bench profile`: the library's figures and the same without their biases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgewright.genie.profile import Component, Event, write_profile

from .conftest import Cli
from .tiny import GOLDENS, the_sentence

PROFILE = {
    "num-prompt-tokens": (273, ""),
    "time-to-first-token": (180_612, "us"),
    "prompt-processing-rate": (1512.859, "toks/sec"),
    "num-generated-tokens": (21, ""),
    "token-generation-rate": (22.036, "toks/sec"),
    "token-generation-time": (953_000, "us"),
}


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    queries = [Event("GenieDialog_query", 2000, 1_200_000, PROFILE), Event("GenieDialog_query", 2_000_000, 5)]
    events = (Event("GenieDialog_create", 0, 1500, {"init-time": (1500, "us")}), *queries)
    write_profile(tmp_path / "profile.json", [Component(f"dialog{index}", "dialog", events) for index in (10, 2)], 0)
    return tmp_path / "profile.json"


def test_figures_of_a_profile(profile: Path, cli: Cli) -> None:
    result = cli("bench", "profile", profile)
    assert result.code == 0
    rows = [line.split() for line in result.out.splitlines()]
    assert [row[0] for row in rows if "library" in row] == ["dialog2", "dialog10"]
    assert next(row[2:] for row in rows if "library" in row) == [
        "library",
        "273",
        "180.6",
        "1,512.9",
        "21",
        "953.0",
        "22.04",
    ]
    assert next(row for row in rows if "recomputed" in row) == [
        "recomputed",
        "273",
        "180.6",
        "1,511.5",
        "21",
        "953.0",
        "20.99",
    ]
    assert result.out.count("no figures: the query failed") == 2
    assert result.out.count("init-time 1500 us") == 2


def test_queries_with_other_figures_only(cli: Cli, tmp_path: Path) -> None:
    """Of another version, say: they are told, and each event is looked at once (20,000 of them took a minute)."""
    odd = [Event("GenieDialog_query", start, 5, {"new-figure": (start, "us")}) for start in range(4000)]
    failed = Event("GenieDialog_query", 9000, 5)
    write_profile(tmp_path / "p.json", [Component("dialog0", "dialog", (*odd, failed))], 0)
    result = cli("bench", "profile", tmp_path / "p.json")
    assert result.code == 0
    assert result.out.count("new-figure") == 4000
    assert result.out.count("the query failed") == 1


def test_a_run_folder_s_own_figures_stand_beside(profile: Path, cli: Cli) -> None:
    figures = {"ttft_ms": {"p50": 180.612}, "prefill_tokens_per_s": 1511.5, "decode_tokens_per_s": 20.9864}
    summary = {"dialogs": {"chat": figures, "seen": {"ttft_ms": None, "decode_tokens_per_s": None}}}
    profile.with_name("summary.json").write_text(json.dumps(summary))
    rows = [line.split() for line in cli("bench", "profile", profile.parent).out.splitlines()]
    assert rows[-2:] == [["dialog0", "chat", "180.6", "1,511.5", "20.99"], ["dialog1", "seen", "-", "-", "-"]]
    profile.with_name("summary.json").write_text("{}")
    assert "by timestamps" not in cli("bench", "profile", profile.parent).out


def test_a_profile_as_json(profile: Path, cli: Cli) -> None:
    found = json.loads(cli("bench", "profile", profile.parent, "--json").out)["profiles"][0]
    event = found["components"][0]["events"][1]
    assert found["components"][0]["name"] == "dialog2"
    assert event["library"]["token-generation-rate"] == [22.036, "toks/sec"]
    assert event["recomputed"]["token-generation-rate"] == [pytest.approx(20.9864, abs=1e-4), "toks/sec"]


def test_a_pipeline_of_the_library_s_own(cli: Cli) -> None:
    result = cli("bench", "profile", GOLDENS / "genie" / "node_profile.json")
    assert result.code == 0
    assert "pipeline0  GeniePipeline_execute" in result.out


def test_what_an_early_program_printed(cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("[END]\n\nPrompt processing: 2281999 us\nToken generation: 353360439 us, 0.464115 tokens/s\n")
    result = cli("bench", "profile", log)
    assert result.out.splitlines()[2].split()[:3] == ["dialog0", "0", "library"]
    assert "2,282.0" in result.out
    assert "164" in result.out


def test_files_without_figures(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("nothing")
    (tmp_path / "x.json").write_text("{}")
    for name in ("log.txt", "x.json", "missing"):
        result = cli("bench", "profile", tmp_path / name)
        assert result.code == 3
        the_sentence(result.err, name)
