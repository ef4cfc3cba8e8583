"""Weights that are not finite: refused by name wherever they stand, taken only when asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from conftest import golden
from edgewright.build.pipeline import deploy, export
from edgewright.cli import main
from edgewright.errors import CheckpointError, UsageError
from edgewright.runtime.llm import LLM


def spoiled(folder: Path, case: str, tensor: str, value: float) -> Path:
    """Copy a golden's checkpoint with one value replaced."""
    folder.mkdir()
    for path in golden(case).checkpoint.files:
        (folder / path.name).write_bytes(path.read_bytes())
    data = load_file(folder / "model.safetensors")
    data[tensor] = data[tensor].copy()
    data[tensor].reshape(-1)[1] = value
    save_file(data, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("recipe", ["float32", "float16", "int8", "int4"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("case", "tensor"),
    [
        ("llama_bias", "model.layers.1.self_attn.q_proj.weight"),
        ("llama_bias", "model.layers.1.mlp.up_proj.bias"),
        ("llama_bias", "model.norm.weight"),
        ("llama_bias", "model.embed_tokens.weight"),
    ],
)
def test_the_tensor_is_named(case: str, tensor: str, value: float, recipe: str, tmp_path: Path) -> None:
    source = spoiled(tmp_path / "source", case, tensor, value)
    with pytest.raises(CheckpointError, match=tensor.replace(".", r"\.")):
        deploy(source, tmp_path / "bundle", recipe=recipe, verify=False)
    assert not (tmp_path / "bundle").exists()


def test_floats_are_taken_when_asked_for(tmp_path: Path) -> None:
    source = spoiled(tmp_path / "source", "llama_bias", "model.layers.1.mlp.up_proj.bias", np.nan)
    with pytest.raises(UsageError, match="use --no-verify as well"):
        deploy(source, tmp_path / "bundle", recipe="float32", allow_nonfinite=True)
    built = deploy(source, tmp_path / "bundle", recipe="float32", allow_nonfinite=True, verify=False)
    assert "weights that are not finite were allowed" in built.manifest.notes
    assert np.isnan(LLM.load(tmp_path / "bundle").session().append([1, 2], logits="all")).any()
    # Integer codes can't hold them, whatever is asked for.
    source = spoiled(tmp_path / "codes", "llama_bias", "model.layers.1.mlp.up_proj.weight", np.inf)
    with pytest.raises(CheckpointError, match=r"up_proj\.weight: it holds values that are not finite"):
        export(source, tmp_path / "graph", recipe="int4", allow_nonfinite=True)


def test_the_command_line_asks_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = spoiled(tmp_path / "source", "llama_bias", "model.norm.weight", np.inf)
    arguments = ["deploy", str(source), "-o", str(tmp_path / "bundle"), "--no-verify"]
    assert main(arguments) == 3
    assert "model.norm.weight" in capsys.readouterr().err
    assert main([*arguments, "--allow-nonfinite"]) == 0
