from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgewright.checkpoint import open_checkpoint

from .conftest import Cli
from .tiny import edit_json, the_sentence

FEW = ("--sequences", 3, "--length", 24)


def test_dry_run_shows_every_module_and_writes_nothing(cli: Cli, talker: Path, tmp_path: Path) -> None:
    result = cli("quantize", talker, "--recipe", "mixed-edge", "--dry-run", "-o", tmp_path / "out")
    assert result.code == 0, result.err
    head, *rows, summary = result.out.splitlines()
    assert head.split() == ["module", "kind", "weight", "activations", "algorithm", "bytes", "saved", "decided", "at"]
    down = next(row for row in rows if "layers.0.mlp.down_proj" in row)
    assert "int8 group 32 float16 scales" in down
    assert "gptq" in down
    assert down.endswith("mixed-edge.yaml:6")
    assert summary.startswith(f"{len(rows)} modules, ")
    assert summary.endswith("; cache int8/head")
    assert not (tmp_path / "out").exists()
    data = json.loads(cli("quantize", talker, "--recipe", "mixed-edge", "--dry-run", "--json").out)
    assert [row["module"] for row in data["modules"]] == [row.split()[0] for row in rows]
    assert data["bytes"] == sum(row["bytes"] for row in data["modules"]) < data["float_bytes"]
    assert (data["recipe"], data["kv"]) == ("mixed-edge", "int8/head")


def test_a_quantized_checkpoint_with_its_report_and_page(cli: Cli, talker: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "out", tmp_path / "page.html"
    result = cli("quantize", talker, "--recipe", "int4-gptq", "-o", out, *FEW, "--worst", 2, "--page", page)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0].startswith(f"{out}: written, ")
    worst = next(place for place, line in enumerate(lines) if line.startswith("worst 2 by output error:"))
    assert len(lines) == worst + 4
    assert "calibration data" in result.err
    assert "3 sequences, 72 tokens" in page.read_text(encoding="utf-8")
    assert open_checkpoint(out).quantization is not None
    report = json.loads((out / "quantization_report.json").read_text())
    assert lines[worst + 2].split()[0] in {module["module"] for module in report["modules"]}
    shown = cli("inspect", out)
    assert (
        "calibrated on english.txt: 3 sequences, 72 tokens; 0 truncated by 0 tokens, 0 tokens of padding" in shown.out
    )

    bundle = tmp_path / "bundle"
    assert cli("deploy", out, "-o", bundle, "--recipe", "stored", "--no-verify").code == 0
    assert "calibrated on english.txt: 3 sequences, 72 tokens" in cli("inspect", bundle).out
    record = json.loads((bundle / "manifest.json").read_text())["recipe"]["quantized"]["calibration"]
    assert (record["truncated"], record["padding_dropped"]) == ({"sequences": 0, "tokens": 0}, 0)
    assert json.loads(cli("inspect", bundle, "--json").out)["calibration"] == record


def test_json_force_and_the_same_bytes_again(cli: Cli, talker: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("quantize", talker, "--recipe", "int4-awq", "-o", out, *FEW, "--seed", 4, "--json")
    first = cli(*arguments)
    data = json.loads(first.out)
    assert (data["path"], data["recipe"]) == (str(out), "int4-awq")
    assert data["calibration"]["seed"] == 4
    assert data["bytes"] == sum(path.stat().st_size for path in out.iterdir())
    for module in data["modules"]:
        assert "histogram" not in module
        assert module["bytes"] < module["float_bytes"]
    weights = (out / "model.safetensors").read_bytes()
    again = cli(*arguments)
    assert again.code == 4
    the_sentence(again.err, "out exists already")
    assert cli(*arguments, "--force", "--quiet").err == ""
    assert (out / "model.safetensors").read_bytes() == weights
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "mine.txt").write_text("keep")
    result = cli("quantize", talker, "--recipe", "int4", "-o", notes, "--force")
    assert result.code == 4
    assert (notes / "mine.txt").read_text() == "keep"


@pytest.mark.parametrize(
    ("recipe", "platform", "parts"),
    [
        ("fp8", "jetson-orin", ("fp8.yaml:3", "Jetson AGX Orin 64 GB has no fp8 weights", "int4, int8 and floats")),
        ("nvfp4", "rtx-ada", ("nvfp4.yaml:3", "no nvfp4 weights")),
        ("nvfp4+fp8-kv", "rtx-ada", ("no nvfp4 weights",)),
    ],
)
def test_formats_a_platform_lacks(
    cli: Cli, talker: Path, tmp_path: Path, recipe: str, platform: str, parts: tuple[str, ...]
) -> None:
    result = cli("quantize", talker, "--recipe", recipe, "--for", platform, "-o", tmp_path / "out")
    assert result.code == 3
    the_sentence(result.err, *parts)
    assert list(tmp_path.iterdir()) == []


def test_platforms_that_have_them(cli: Cli, talker: Path) -> None:
    for recipe, platform in (("fp8", "jetson-thor"), ("mixed-edge", "jetson-orin"), ("nvfp4+fp8-kv", "cpu")):
        assert cli("quantize", talker, "--recipe", recipe, "--for", platform, "--dry-run").code == 0
    result = cli("quantize", talker, "--recipe", "int4", "--for", "jetson-orinn", "--dry-run")
    assert result.code == 2
    the_sentence(
        result.err, "'jetson-orinn' is unknown", "did you mean jetson-orin or jetson-orin-nx or jetson-orin-nano?"
    )


def test_errors_leave_nothing_behind(cli: Cli, talker: Path, llama: Path, checkpoint: Path, tmp_path: Path) -> None:
    place = tmp_path / "work"
    place.mkdir()
    out = place / "out"
    recipe = place / "r.yaml"

    def refused(code: int, *arguments: object) -> str:
        result = cli("quantize", *arguments)
        assert result.code == code, result.err
        assert result.out == ""
        assert [path.name for path in place.iterdir() if path != recipe] == []
        return the_sentence(result.err)

    assert "-o FOLDER" in refused(2, talker, "--recipe", "int4")
    assert "did you mean int4-awq?" in refused(3, talker, "--recipe", "int4-awk", "-o", out)
    assert "has no tokenizer" in refused(3, llama, "--recipe", "int4-gptq", "-o", out)
    assert "do not exist" in refused(3, talker, "--recipe", "int4-gptq", "-o", out, "--data", place / "no.txt")
    assert "is a folder" in refused(2, talker, "--recipe", "int4", "-o", out, "--page", place)
    recipe.write_text("extends: int4\nrules:\n  - {pattern: 'nothing', format: int8}\n")
    assert "r.yaml:3: the pattern 'nothing' matches no module" in refused(3, talker, "--recipe", recipe, "-o", out)
    recipe.write_text("extends: int4\nrules:\n  - {pattern: '*', format: float32}\n")
    assert "r.yaml:3: the rules leave no module of the body" in refused(3, talker, "--recipe", recipe, "-o", out)
    recipe.write_text("extends: int4\nstages:\n  vision: {body: {format: int8}}\n")
    assert "r.yaml:3: the model has no stage 'vision'" in refused(3, talker, "--recipe", recipe, "-o", out)
    edit_json(checkpoint / "config.json", num_hidden_layers=99)
    refused(3, checkpoint, "--recipe", "int4", "-o", out)
    assert cli("quantize", talker, "--recipe", "int4", "-o", out, "--sequences", 0).code == 2


def test_what_is_quantized_already_is_refused(cli: Cli, talker: Path, tmp_path: Path) -> None:
    once = tmp_path / "once"
    assert cli("quantize", talker, "--recipe", "int8", "-o", once).code == 0
    result = cli("quantize", once, "--recipe", "int4", "-o", tmp_path / "twice")
    assert result.code == 3
    the_sentence(result.err, "quantized already (edgewright int8)", "'stored'")
    assert not (tmp_path / "twice").exists()


def test_the_data_of_the_command_line_reach_a_stage(cli: Cli, talker: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("extends: int8\nstages:\n  llm: {body: {format: int4, algorithm: awq}}\n")
    result = cli("quantize", talker, "--recipe", recipe, "-o", tmp_path / "out", *FEW, "--seed", 9, "--json")
    assert result.code == 0, result.err
    record = json.loads(result.out)["calibration"]
    assert (record["seed"], record["sequences"], record["length"]) == (9, 3, 24)


def test_data_that_nothing_looks_at_and_seeds_below_zero_are_refused(cli: Cli, talker: Path, tmp_path: Path) -> None:
    for flags, named in ((("--data", "english"), "--data"), (("--seed", 1, "--length", 9), "--length, --seed")):
        result = cli("quantize", talker, "--recipe", "int4", "-o", tmp_path / "out", *flags)
        assert result.code == 2
        the_sentence(result.err, f"The recipe int4 looks at no data, so that {named} would change nothing")
    for wrong in ("-1", "1.5", "x"):
        result = cli("quantize", talker, "--recipe", "int4-gptq", "-o", tmp_path / "out", f"--seed={wrong}")
        assert result.code == 2
        assert "is not a whole number from 0 upwards" in result.err
    assert list(tmp_path.iterdir()) == []


def test_force_never_takes_the_source_or_another_model(cli: Cli, checkpoint: Path, talker: Path) -> None:
    for source in (checkpoint, talker):
        result = cli("quantize", source, "--recipe", "int8", "-o", checkpoint, "--force")
        assert result.code == 4
        the_sentence(result.err, "so it is not replaced")
        assert open_checkpoint(checkpoint).tensors


def test_deploy_of_a_calibrating_recipe_refuses_what_means_nothing(cli: Cli, talker: Path, tmp_path: Path) -> None:
    for verb, flag in (("deploy", "--allow-nonfinite"), ("deploy", "--requantize"), ("export", "--requantize")):
        result = cli(verb, talker, "--recipe", "int4-gptq", "-o", tmp_path / "b", flag)
        assert result.code == 2
        the_sentence(result.err, "The recipe int4-gptq calibrates or searches", flag)
        assert "plan:" not in result.err


def test_a_dry_run_refuses_what_quantizing_would(cli: Cli, talker: Path, tmp_path: Path) -> None:
    once = tmp_path / "once"
    assert cli("quantize", talker, "--recipe", "int8", "-o", once).code == 0
    result = cli("quantize", once, "--recipe", "int4", "--dry-run")
    assert result.code == 3
    the_sentence(result.err, "quantized already (edgewright int8)")
