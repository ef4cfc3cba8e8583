from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Cli
from .tiny import GOLDENS, the_sentence

FILES = GOLDENS / "profiles"
QUICK = ("--repeats", "2", "--no-memory", "--no-peaks")


def test_tables_of_a_bundle_and_the_files_beside(cli: Cli, plain_bundle: Path, tmp_path: Path) -> None:
    made = [tmp_path / name for name in ("p.json", "p.trace.json", "p.html")]
    result = cli(
        "profile", plain_bundle, *QUICK, "--tokens", 6, "--json", made[0], "--trace", made[1], "--page", made[2]
    )
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0].startswith("bundle (llama): llm on onnxruntime ")
    assert "prefill    tokens 6, past 0" in lines
    assert any(line.startswith("decode    tokens 1, past ") for line in lines)
    assert sum(line.startswith("  whole runs ") for line in lines) == 2
    heads = [line.split()[0] for line in lines if line]
    assert heads.count("attention") == heads.count("total") == heads.count("outside") == 2
    data = json.loads(made[0].read_text())
    assert [phase["name"] for phase in data["phases"]] == ["prefill", "decode"]
    assert data["peak_rss_bytes"] is None
    assert json.loads(made[1].read_text())["traceEvents"]
    assert made[2].read_text().startswith("<!doctype html>")
    assert "layers ... " in result.err
    by_op = cli("profile", plain_bundle, *QUICK, "--tokens", 6, "--by", "op", "--top", 1, "--quiet")
    assert " more " in by_op.out
    assert by_op.err == ""


def test_json_alone_and_a_platform_s_peaks(cli: Cli, plain_bundle: Path) -> None:
    shown = cli("profile", plain_bundle, "--file", FILES / "ort.json", "--kind", "ort", "--for", "orin", "--json", "-")
    data = json.loads(shown.out)
    assert data["peaks"]["title"] == "Jetson AGX Orin 64 GB"
    assert data["phases"][0]["groups"][0]["of_peak"] is not None
    assert "is assumed" in shown.err
    table = cli("profile", plain_bundle, "--file", FILES / "ort.json", "--kind", "ort", "--for", "orin", "--quiet")
    assert "peaks     Jetson AGX Orin 64 GB: 205 GB/s" in table.out


def test_a_file_without_a_bundle(cli: Cli) -> None:
    shown = cli("profile", "--file", FILES / "qnn.csv", "--kind", "qnn", "--by", "layer")
    assert shown.code == 0
    assert shown.out.splitlines()[0] == "run on qnn"
    assert "model.layers.0.mlp.up_proj/Linear" in shown.out
    assert "note: nodes come in cycles" in shown.err


def test_a_comparison(cli: Cli, plain_bundle: Path, tmp_path: Path) -> None:
    before, after = tmp_path / "a.json", tmp_path / "b.json"
    for path in (before, after):
        assert cli("profile", plain_bundle, *QUICK, "--tokens", 4, "--json", path, "--quiet").code == 0
    shown = cli("profile", "--diff", before, after)
    assert shown.code == 0
    assert shown.out.splitlines()[0].split()[:3] == ["prefill", "before", "ms"]
    assert shown.out.splitlines()[-1].split()[0] == "total"
    data = json.loads(cli("profile", "--diff", before, after, "--by", "group", "--json", "-").out)
    assert {change["label"] for change in data["phases"][0]["changes"]} >= {"attention", "mlp", "outside of layers"}
    data = json.loads(before.read_text())
    before.write_text(json.dumps({**data, "phases": data["phases"][1:]}))
    assert "note: only b.json has prefill\n" in cli("profile", "--diff", before, after).err
    the_sentence(cli("profile", "--diff", before, FILES / "ort.json").err, "ort.json is no profile")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "profile needs a BUNDLE, a --file or --diff"),
        (("{bundle}", "--kind", "ort"), "--kind belongs to a --file"),
        (("--file", "x"), "--file needs --kind"),
        (("--file", "x", "--kind", "ort", "--repeats", "2"), "--repeats belongs to runs on this machine"),
        (("--file", "x", "--kind", "qnn", "--times", "y"), "--layer-info and --times"),
        (("{bundle}", "--bandwidth", "5"), "--bandwidth belongs to a platform"),
        (("{bundle}", "--no-peaks", "--for", "orin"), "give one of them"),
        (("{bundle}", "--for", "orinn"), "orinn"),
        (("{bundle}", "--diff", "a", "b"), "--diff compares two files"),
        (("--diff", "a", "b", "--tokens", "4"), "--tokens belongs to a profile"),
        (("{bundle}", "--stage", "vision"), "no stage vision"),
        (("{bundle}", "--tokens", "9999"), "doesn't fit into the context"),
    ],
)
def test_what_is_asked_wrongly(cli: Cli, plain_bundle: Path, words: tuple[str, ...], told: str) -> None:
    result = cli("profile", *(word.replace("{bundle}", str(plain_bundle)) for word in words))
    assert result.code == 2
    the_sentence(result.err, told)


def test_bad_inputs(cli: Cli, plain_bundle: Path, policy_bundle: Path, tmp_path: Path) -> None:
    for words in (
        (tmp_path / "none",),
        ("--file", tmp_path / "none", "--kind", "ort"),
        ("--file", FILES / "qnn.csv", "--kind", "ort"),
        ("--file", FILES / "ort.json", "--kind", "trtexec"),
        ("--file", FILES / "ort.json", "--kind", "qnn"),
        ("--diff", tmp_path / "none", tmp_path / "none"),
    ):
        result = cli("profile", *words)
        assert result.code == 3, words
        the_sentence(result.err)
    foreign = cli("profile", policy_bundle, "--tokens", 4)
    assert foreign.code == 2
    the_sentence(foreign.err, "robot policy", "--tokens")
    nowhere = cli(
        "profile", plain_bundle, "--file", FILES / "ort.json", "--kind", "ort", "--json", tmp_path / "no" / "f"
    )
    assert nowhere.code == 4
    several = cli("profile", policy_bundle, "--file", FILES / "qnn.csv", "--kind", "qnn")
    the_sentence(several.err, "--stage", "vision")
