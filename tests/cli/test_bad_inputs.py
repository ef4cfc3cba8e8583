"""What the user may get wrong: each ends in one sentence, an exit code and nothing left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgewright.bundle import SCHEMA

from .conftest import Cli
from .tiny import edit_json, edit_tensors, the_sentence

Spoil = Callable[[Path], object]
WEIGHTS = "model.safetensors"
GATE = "model.layers.1.mlp.gate_proj.weight"


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


CHECKPOINTS: dict[str, tuple[Spoil, tuple[str, ...]]] = {
    "no config": (lambda f: (f / "config.json").unlink(), ("has no config.json", "give a Hugging Face model folder")),
    "no weights": (lambda f: (f / WEIGHTS).unlink(), ("no weights", "model.safetensors")),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), ("config.json",)),
    "truncated weights": (lambda f: cut(f / WEIGHTS, 100_000), (WEIGHTS,)),
    "truncated header": (lambda f: cut(f / WEIGHTS, 7), (WEIGHTS,)),
    "near model type": (
        lambda f: edit_json(f / "config.json", model_type="lama"),
        ("'lama' isn't supported", "nearest known one is llama"),
    ),
    "far model type": (
        lambda f: edit_json(f / "config.json", model_type="xyz"),
        ("'xyz' isn't supported", "known are apertus, "),
    ),
    "no model type": (lambda f: edit_json(f / "config.json", model_type=...), ("has no model_type",)),
    "unknown key": (lambda f: edit_json(f / "config.json", new_gate=True), ("new_gate is unknown to this family",)),
    "wrong value": (lambda f: edit_json(f / "config.json", hidden_size="40"), ("hidden_size has the value '40'",)),
    "missing key": (lambda f: edit_json(f / "config.json", hidden_size=...), ("hidden_size is missing",)),
    "missing tensor": (lambda f: edit_tensors(f / WEIGHTS, **{GATE: ...}), (f"{GATE} is missing",)),
    "extra tensor": (
        lambda f: edit_tensors(f / WEIGHTS, extra=np.ones(3, np.float32)),
        ("extra is not used by the family",),
    ),
    "wrong shape": (
        lambda f: edit_tensors(f / WEIGHTS, **{GATE: np.ones((44, 39), np.float32)}),
        (f"{GATE} has the shape [44, 39] where [44, 40] is needed",),
    ),
}


@pytest.mark.parametrize("case", CHECKPOINTS)
@pytest.mark.parametrize("verb", ["deploy", "export"])
def test_bad_checkpoints(cli: Cli, verb: str, case: str, checkpoint: Path, tmp_path: Path) -> None:
    spoil, parts = CHECKPOINTS[case]
    spoil(checkpoint)
    result = cli(verb, checkpoint, "-o", tmp_path / "out")
    assert result.code == 3, result.err
    assert result.out == ""
    the_sentence(result.err, *parts)
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


def test_paths_that_are_no_checkpoint(cli: Cli, checkpoint: Path, tmp_path: Path) -> None:
    result = cli("deploy", checkpoint.with_name("sourc"), "-o", tmp_path / "out")
    assert result.code == 3
    the_sentence(result.err, "does not exist", "did you mean", str(checkpoint))
    (tmp_path / "short.gguf").write_bytes(b"GGUF" + bytes(33))
    result = cli("deploy", tmp_path / "short.gguf", "-o", tmp_path / "out")
    assert result.code == 3
    the_sentence(result.err, "short.gguf")
    (tmp_path / "text.txt").write_text("no model")
    result = cli("inspect", tmp_path / "text.txt")
    assert result.code == 3
    the_sentence(result.err, "neither a .gguf nor a .safetensors file")


RECIPE = """
recipe: mine
body: {format: int4, group: 32}
lm_head: {format: int8, group: 32}
embedding: {format: int8, group: 32}
"""
RECIPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "unknown format": (RECIPE.replace("int4", "int5"), ("mine.yaml:3", "'int5' is unknown", "int8, int4")),
    "bad group": (RECIPE.replace("32}", "48}", 1), ("mine.yaml:3", "48", "32, 64, 128")),
    "typo in a key": (RECIPE.replace("group", "groop", 1), ("mine.yaml:3", "'groop'", "did you mean group?")),
    "typo in a section": (RECIPE.replace("lm_head", "lm_hed"), ("mine.yaml:4", "'lm_hed'", "did you mean lm_head?")),
    "missing section": (RECIPE.replace("embedding: {format: int8, group: 32}", ""), ("'embedding' is missing",)),
    "no YAML": (RECIPE + "rules: [", ("mine.yaml:", "not valid YAML")),
    "pattern without match": (
        RECIPE + 'rules:\n  - {pattern: "model.layers.9.*", format: int8}\n',
        ("mine.yaml:7", "'model.layers.9.*' matches no module"),
    ),
    "rule without pattern": (RECIPE + "rules:\n  - {format: int8}\n", ("mine.yaml:7", "needs a pattern")),
}


@pytest.mark.parametrize("case", RECIPES)
def test_bad_recipes(cli: Cli, case: str, llama: Path, tmp_path: Path) -> None:
    text, parts = RECIPES[case]
    (tmp_path / "mine.yaml").write_text(text)
    result = cli("deploy", llama, "-o", tmp_path / "out", "--recipe", tmp_path / "mine.yaml")
    assert result.code == 3, result.err
    the_sentence(result.err, *parts)
    assert {path.name for path in tmp_path.iterdir()} == {"mine.yaml"}


def test_a_recipe_file_that_is_right(cli: Cli, llama: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(RECIPE + 'rules:\n  - {pattern: "model.layers.0.*", format: float32}\n')
    words = ("deploy", llama, "-o", tmp_path / "out", "--recipe", tmp_path / "mine.yaml", "--no-verify", "--json")
    recipe = json.loads(cli(*words).out)["recipe"]
    assert recipe["name"] == "mine"
    assert recipe["formats"] == {"float32": 7, "int4 group 32": 14, "int8 group 32": 2}


def test_an_unknown_recipe_name(cli: Cli, llama: Path, tmp_path: Path) -> None:
    result = cli("deploy", llama, "-o", tmp_path / "out", "--recipe", "int44")
    assert result.code == 3
    the_sentence(result.err, "no recipe 'int44'", "did you mean int4?", "float16, float32, fp8, int4")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def newer(path: Path) -> None:
    path.write_text(path.read_text().replace(f'"schema": {SCHEMA}', '"schema": 99'))


BUNDLES: dict[str, tuple[Spoil, tuple[str, ...]]] = {
    "flipped bit in the weights": (
        lambda f: flip(f / "stages/llm/weights.bin"),
        ("weights.bin was changed after it was written",),
    ),
    "flipped bit in the manifest": (lambda f: flip(f / "manifest.json"), ("manifest.json",)),
    "flipped bit in the tokenizer": (
        lambda f: flip(f / "sidecars/tokenizer.json"),
        ("sidecars/tokenizer.json was changed",),
    ),
    "missing weights": (lambda f: (f / "stages/llm/weights.bin").unlink(), ("weights.bin is missing",)),
    "missing engine": (lambda f: (f / "stages/llm/engine.onnx").unlink(), ("engine.onnx is missing",)),
    "short weights": (lambda f: cut(f / "stages/llm/weights.bin", 5000), ("weights.bin has 5000 bytes instead of",)),
    "newer schema": (lambda f: newer(f / "manifest.json"), ("99",)),
    "no manifest": (lambda f: (f / "manifest.json").unlink(), ("has no manifest.json",)),
}
USES = {
    "run": ["run", "{bundle}", "--prompt", "hello"],
    "chat": ["chat", "{bundle}"],
    "bench": ["bench", "{bundle}"],
    "verify": ["verify", "{bundle}"],
    "verify against a source": ["verify", "{bundle}", "--against", "{source}"],
    "compile": ["compile", "{bundle}", "-o", "{out}"],
}


@pytest.mark.parametrize("case", BUNDLES)
@pytest.mark.parametrize("use", USES)
def test_bad_bundles(cli: Cli, use: str, case: str, bundle: Path, talker: Path, tmp_path: Path) -> None:
    spoil, parts = BUNDLES[case]
    spoil(bundle)
    words = [word.format(bundle=bundle, source=talker, out=tmp_path / "out") for word in USES[use]]
    result = cli(*words, stdin="hello\n")
    assert result.code == 3, result.err
    assert result.out == ""
    the_sentence(result.err, *parts)
    assert {path.name for path in tmp_path.iterdir()} == {"bundle"}


@pytest.mark.parametrize("use", USES)
def test_no_bundle_at_all(cli: Cli, use: str, talker: Path, tmp_path: Path) -> None:
    words = [word.format(bundle=tmp_path / "nowhere", source=talker, out=tmp_path / "out") for word in USES[use]]
    result = cli(*words, stdin="hello\n")
    assert result.code == 3, result.err
    the_sentence(result.err, "nowhere does not exist")
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_for_another_machine(cli: Cli, plain_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import edgewright.runtime.engine
    from edgewright.bundle import Machine, this_machine

    here = this_machine()
    monkeypatch.setattr(
        edgewright.runtime.engine, "this_machine", lambda _: Machine("aarch64", here.features, here.version)
    )
    result = cli("run", plain_bundle, "--prompt-ids", "1")
    assert result.code == 3
    the_sentence(result.err, f"compiled for {here.arch} and this is aarch64", "edgewright compile")


def deployed(cli: Cli, checkpoint: Path, *options: object) -> Path:
    output = checkpoint.with_name("bundle")
    assert cli("deploy", checkpoint, "-o", output, "--recipe", "float32", "--no-verify", *options).code == 0
    return output


@pytest.mark.parametrize("verb", ["run", "chat"])
def test_a_prompt_longer_than_the_context(cli: Cli, verb: str, checkpoint: Path) -> None:
    bundle = deployed(cli, checkpoint, "--max-context", 48)
    result = cli(verb, bundle, stdin="hello " * 100)
    assert result.code == 3
    assert result.out == ""
    the_sentence(result.err, "48", "--max-context")


@pytest.mark.parametrize("verb", ["run", "chat"])
def test_a_missing_tokenizer(cli: Cli, verb: str, plain_bundle: Path) -> None:
    result = cli(verb, plain_bundle, stdin="hello")
    assert result.code == 3
    the_sentence(result.err, "no tokenizer" if verb == "run" else "no chat template")


@pytest.mark.parametrize("verb", ["run", "chat"])
def test_a_template_that_loops_for_ever(cli: Cli, verb: str, checkpoint: Path) -> None:
    (checkpoint / "chat_template.jinja").write_text(
        "{% for a in range(100000) %}{% for b in range(100000) %}{% set c = a * b %}{% endfor %}{% endfor %}"
    )
    bundle = deployed(cli, checkpoint)
    result = cli(verb, bundle, stdin="hello")
    assert result.code == 3
    the_sentence(result.err, "template")


def test_a_base_model_does_not_chat_but_continues(cli: Cli, checkpoint: Path) -> None:
    edit_json(checkpoint / "tokenizer_config.json", chat_template=...)
    bundle = deployed(cli, checkpoint)
    the_sentence(cli("chat", bundle, stdin="hello").err, "no chat template")
    the_sentence(cli("run", bundle, "--chat", "--prompt", "hello").err, "no chat template")
    assert cli("run", bundle, "--prompt", "hello", "--max-tokens", 2).code == 0
