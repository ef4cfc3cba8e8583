"""The dry run's table is what quantizing does: the same formats, and bytes equal to those that are written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import TEXT_GOLDENS
from edgewright.build.quantized import quantize_checkpoint
from edgewright.checkpoint import open_checkpoint
from edgewright.errors import RecipeError
from edgewright.quant.recipe_file import load_recipe, parse_recipe
from edgewright.quantizer.preview import preview

ODD = """
body: {format: int4, group: 64, zero_point: true}
lm_head: {format: int8, group: channel}
embedding: {format: mxfp8}
activations: {format: int8, mode: dynamic}
rules:
  - {pattern: "*.down_proj", format: nvfp4}
  - {pattern: "*.k_proj", format: fp8, group: block}
  - {pattern: "*.layers.0.*.v_proj", format: float16}
  - {pattern: "*.layers.1.*.v_proj", format: int4, scales: float16}
"""


def written(folder: Path) -> int:
    """Return the bytes of all codes with what gives them their meaning, and of matrices kept as floats."""
    data = (folder / "model.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    total = 0
    for name, entry in header.items():
        if ".weight." in name or (name.endswith(".weight") and len(entry["shape"]) == 2):
            total += entry["data_offsets"][1] - entry["data_offsets"][0]
    return total


@pytest.mark.parametrize("case", ["llama", "qwen3", "gemma3_text", "phi3"])
@pytest.mark.parametrize("recipe", ["int4", "nvfp4-weights", "odd"])
def test_bytes_are_those_that_are_written(case: str, recipe: str, tmp_path: Path) -> None:
    texts = {"odd": ODD, "nvfp4-weights": "body: {format: nvfp4}\nlm_head: {format: mxfp4}\nembedding: {format: fp8}\n"}
    parsed = parse_recipe(texts[recipe], f"{recipe}.yaml") if recipe in texts else load_recipe(recipe)
    checkpoint = open_checkpoint(TEXT_GOLDENS / case)
    found = preview(checkpoint, parsed)
    done = quantize_checkpoint(TEXT_GOLDENS / case, tmp_path / "out", recipe=parsed)
    formats = {report.module: report.format for report in done.reports}
    assert {row["module"]: row["weight"] for row in found.rows} == formats
    assert found.bytes == sum(row["bytes"] for row in found.rows) == written(tmp_path / "out")
    assert found.summary().startswith(f"{len(found.rows)} modules, {found.bytes:,} bytes instead of ")
    for row, texts_of_row in zip(found.rows, found.table(), strict=True):
        assert texts_of_row[0] == row["module"]
        assert row["where"].startswith(f"{recipe}.yaml:")


def test_a_tied_table_counts_once(tmp_path: Path) -> None:
    found = preview(open_checkpoint(TEXT_GOLDENS / "gemma3_text"), load_recipe("int8"))
    shared = [row for row in found.rows if row["bytes"] == 0]
    assert [row["module"] for row in shared] == ["lm_head"]
    assert [row[5] for row in found.table() if row[0] == "lm_head"] == ["shared"]
    apart = parse_recipe("body: {format: int8}\nlm_head: {format: int8}\nembedding: {format: int4}\n", "apart.yaml")
    assert all(row["bytes"] for row in preview(open_checkpoint(TEXT_GOLDENS / "gemma3_text"), apart).rows)


def test_no_weight_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = open_checkpoint(TEXT_GOLDENS / "llama")
    for tensor in checkpoint.tensors.values():
        fail: Callable[..., None] = lambda *_: pytest.fail("a weight was read")  # noqa: E731
        for name in ("rows", "raw", "read"):
            monkeypatch.setattr(type(tensor), name, fail)
    assert preview(checkpoint, load_recipe("int4-gptq")).rows


def test_what_the_recipe_lacks_is_told_before() -> None:
    nothing = parse_recipe("extends: int4\nrules:\n  - {pattern: 'vision.*', format: int8}\n", "wrong.yaml")
    with pytest.raises(RecipeError, match=r"^wrong\.yaml:3: the pattern 'vision\.\*' matches no module"):
        preview(open_checkpoint(TEXT_GOLDENS / "llama"), nothing)


def test_cache_and_sums() -> None:
    found = preview(open_checkpoint(TEXT_GOLDENS / "llama"), load_recipe("mixed-edge"))
    assert found.kv == "int8/head"
    assert found.summary().endswith("; cache int8/head")
    assert found.float_bytes == sum(4 * row["shape"][0] * row["shape"][1] for row in found.rows)


def test_what_quantizing_refuses_is_refused(tmp_path: Path) -> None:
    int8 = "lm_head: {format: int8}\nembedding: {format: int8}\n"
    stored = parse_recipe("body: {format: stored}\n" + int8, "s.yaml")
    turned = parse_recipe("body: {format: int8}\ntransforms: {rotation: residual}\n" + int8, "t.yaml")
    cached = parse_recipe("extends: int8\nkv: {format: int8}\n", "kv.yaml")
    for case, recipe, words in (
        ("llama", stored, "model.layers.0.self_attn.q_proj can't be kept as stored while it is calibrated"),
        ("gpt2", turned, "can't be rotated: the model has several tables"),
    ):
        with pytest.raises(RecipeError, match=words):
            quantize_checkpoint(TEXT_GOLDENS / case, tmp_path / "out", recipe=recipe)
        with pytest.raises(RecipeError, match=words):
            preview(open_checkpoint(TEXT_GOLDENS / case), recipe)
    with pytest.raises(RecipeError, match=r"kv\.yaml:2: the model has no key/value cache"):
        preview(open_checkpoint(TEXT_GOLDENS / "mamba2"), cached)
    quantize_checkpoint(TEXT_GOLDENS / "llama", tmp_path / "once", recipe="int8")
    with pytest.raises(RecipeError, match=r"quantized already \(edgewright int8\)"):
        preview(open_checkpoint(tmp_path / "once"), load_recipe("int4"))
    with pytest.raises(RecipeError, match="no stage 'vision'"):
        preview(
            open_checkpoint(TEXT_GOLDENS / "llama"), parse_recipe("extends: int4\nstages: {vision: {}}\n", "v.yaml")
        )


def test_a_turned_model_has_its_head_apart() -> None:
    text = "body: {format: int8}\nlm_head: {format: int8}\nembedding: {format: int8}\n"
    for rotation, shared in (("none", ["lm_head"]), ("residual", [])):
        recipe = parse_recipe(f"{text}transforms: {{rotation: {rotation}}}\n", "r.yaml")
        rows = preview(open_checkpoint(TEXT_GOLDENS / "qwen3"), recipe).rows
        assert [row["module"] for row in rows if not row["bytes"]] == shared
