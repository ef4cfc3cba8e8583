from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgewright.bundle import read_manifest

from .conftest import Cli
from .tiny import edit_json, edit_tensors, the_sentence

#: Of the golden `llama`: 97 tokens, width 40, 3 layers with 4 and 2 heads of 10, MLP 44, untied head.
PARAMETERS = 2 * 97 * 40 + 3 * (2 * 40 * 40 + 2 * 20 * 40 + 3 * 44 * 40 + 2 * 40) + 40


def test_a_checkpoint(cli: Cli, llama: Path) -> None:
    data = json.loads(cli("inspect", llama, "--json").out)
    assert data["kind"] == "checkpoint (huggingface)"
    assert data["model_type"] == "llama"
    assert data["parameters"] == PARAMETERS
    assert data["bytes"] == 4 * PARAMETERS
    assert data["bytes_by_dtype"] == {"float32": 4 * PARAMETERS}
    assert (data["layers"], data["hidden_size"], data["vocab_size"], data["max_context"]) == (3, 40, 97, 256)
    assert data["buildable"] == "yes"
    assert "tensors" not in data
    text = cli("inspect", llama).out
    assert f"parameters    {PARAMETERS:,}\n" in text
    assert "lm_head" not in text


def test_its_tensors(cli: Cli, llama: Path) -> None:
    tensors = json.loads(cli("inspect", llama, "--json", "--tensors").out)["tensors"]
    by_name = {tensor["name"]: tensor for tensor in tensors}
    assert by_name["lm_head.weight"] == {
        "name": "lm_head.weight",
        "dtype": "float32",
        "shape": [97, 40],
        "bytes": 97 * 40 * 4,
    }
    assert sum(tensor["bytes"] for tensor in tensors) == 4 * PARAMETERS
    assert (
        "lm_head.weight                                  float32  [97, 40]  15.5 kB"
        in cli("inspect", llama, "--tensors").out
    )


def test_several_dtypes_and_what_deploy_would_refuse(cli: Cli, checkpoint: Path) -> None:
    edit_tensors(checkpoint / "model.safetensors", extra=np.ones((2, 3), np.float16))
    edit_json(checkpoint / "config.json", model_type="llama")
    data = json.loads(cli("inspect", checkpoint, "--json").out)
    assert data["bytes_by_dtype"]["float16"] == 12
    assert data["buildable"] == "no: The checkpoint's tensors don't fit its config: extra is not used by the family."


def test_a_model_of_several_parts(cli: Cli, llama: Path) -> None:
    data = json.loads(cli("inspect", llama.with_name("gemma3"), "--json").out)
    assert (data["model_type"], data["layers"], data["vocab_size"]) == ("gemma3", 3, 97)


def test_a_bundle(cli: Cli, talker: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    cli("deploy", talker, "-o", bundle, "--no-verify")
    data = json.loads(cli("inspect", bundle, "--json").out)
    manifest = read_manifest(bundle)
    assert data["kind"] == "bundle"
    assert data["recipe"]["formats"] == manifest.recipe["summary"]["formats"]
    assert data["stages"]["llm"]["contract"] == json.loads(json.dumps(manifest.stages["llm"].contract.to_json()))
    assert data["verdict"] == {"status": "not checked"}
    assert data["files"] == manifest.files
    # The weight file is these tensors and the gaps that align them.
    weights = manifest.files["stages/llm/weights.bin"]["bytes"]
    assert 0.8 * weights < sum(data["bytes_by_dtype"].values()) <= weights * 1.02
    text = cli("inspect", bundle).out
    for part in (
        "recipe int4: 0 of 23 modules bit-exact",
        "KV cache: 3 layers x 2 x 2 heads x 10, float32, updated in place",
        "bounds: batch 1 to 64, capacity 1 to 256",
        "verdict   not checked",
        "stages/llm/weights.bin",
        "stage llm: onnxruntime graph stages/llm/model.onnx, engine stages/llm/engine.onnx",
    ):
        assert part in text, part


def test_an_exported_folder(cli: Cli, llama: Path, tmp_path: Path) -> None:
    cli("export", llama, "-o", tmp_path / "graph")
    data = json.loads(cli("inspect", tmp_path / "graph", "--json").out)
    assert (data["kind"], data["target"]) == ("exported folder", None)
    assert data["stages"]["llm"]["engine"] is None


def test_a_graph(cli: Cli, plain_bundle: Path) -> None:
    path = plain_bundle / "stages/llm/model.onnx"
    data = json.loads(cli("inspect", path, "--json", "--tensors").out)
    assert data["kind"] == "ONNX graph"
    assert data["operators"]["com.microsoft::QuickGelu"] == 3
    assert data["inputs"][0] == {"name": "input_ids", "dtype": "int64", "shape": ["batch", "seq"]}
    assert data["outputs"][0] == {"name": "logits", "dtype": "float32", "shape": ["batch", "positions", 97]}
    assert sum(data["bytes_by_dtype"].values()) == data["bytes"]
    assert data["bytes_by_dtype"]["float32"] >= 4 * PARAMETERS
    text = cli("inspect", path).out
    assert "past_key.0 to 2    float32  [batch, 2, capacity, 10]" in text


@pytest.mark.parametrize("content", [b"not a graph", b"", b"\xff" * 100])
def test_a_file_that_is_no_graph(cli: Cli, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    result = cli("inspect", tmp_path / "model.onnx")
    assert result.code == 3
    the_sentence(result.err, "model.onnx")


def test_nothing_there(cli: Cli, tmp_path: Path) -> None:
    result = cli("inspect", tmp_path / "gone")
    assert result.code == 3
    the_sentence(result.err, "gone does not exist")
