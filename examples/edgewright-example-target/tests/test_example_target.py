"""The example target against ONNX Runtime's own, and what it refuses. Needs the package and edgewright[host]."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgewright import LLM
from edgewright.build.pipeline import deploy
from edgewright.errors import BundleError, UsageError
from edgewright.targets import find_target
from edgewright.targets.platform import find_platform
from edgewright_example.container import read_container, write_container

SIZES = {"hidden_size": 24, "intermediate_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1}
VOCAB, LAYERS = 61, 2


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with random weights."""
    folder = tmp_path_factory.mktemp("checkpoint")
    hidden, inner, heads = SIZES["hidden_size"], SIZES["intermediate_size"], SIZES["num_attention_heads"]
    shapes = {
        "model.embed_tokens.weight": (VOCAB, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (VOCAB, hidden),
    }
    for layer in (f"model.layers.{i}" for i in range(LAYERS)):
        shapes |= {f"{layer}.{norm}_layernorm.weight": (hidden,) for norm in ("input", "post_attention")}
        shapes |= {f"{layer}.self_attn.{name}_proj.weight": (hidden, hidden) for name in "qo"}
        shapes |= {f"{layer}.self_attn.{name}_proj.weight": (hidden // heads, hidden) for name in "kv"}
        shapes |= {f"{layer}.mlp.{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
        shapes[f"{layer}.mlp.down_proj.weight"] = (hidden, inner)
    generator = np.random.default_rng(3)
    header, data = {}, b""
    for name, shape in shapes.items():
        values = generator.normal(1.0 if name.endswith("norm.weight") else 0.0, 0.3, shape).astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    config = {
        **SIZES,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_it_computes_what_onnx_runtime_computes(checkpoint: Path, tmp_path: Path) -> None:
    logits = []
    for target, verify in (("cpu", False), ("example", True)):
        built = deploy(checkpoint, tmp_path / target, recipe="float32", target=target, verify=verify)
        assert built.manifest.verdict["status"] == ("passed" if verify else "not checked")
        session = LLM.load(built.path).session()
        parts = [session.append([5, 17, 3, 44, 9], logits="all"), session.append([8]), session.append([8, 60])]
        session.truncate(4)
        logits.append(np.concatenate([*parts, session.append([31])]))
    np.testing.assert_allclose(logits[1], logits[0], rtol=1e-4, atol=1e-4)
    assert np.ptp(logits[0]) > 1.0


def test_the_dialect_has_no_op_that_computes_nothing(checkpoint: Path, tmp_path: Path) -> None:
    built = deploy(checkpoint, tmp_path / "b", target="example", verify=False)
    graph = onnx.load(built.path / "stages" / "llm" / "model.onnx", load_external_data=False).graph
    assert "Identity" not in {node.op_type for node in graph.node}
    assert (
        read_container(built.path / "stages" / "llm" / "engine.example")
        == (built.path / "stages" / "llm" / "model.onnx").read_bytes()
    )


def test_what_it_refuses() -> None:
    target = find_target("example")
    target.require(find_platform("example-board-8gb"), {"level": "9"})
    with pytest.raises(UsageError, match="level=much is no number from 0 to 9"):
        target.require(None, {"level": "much"})
    with pytest.raises(UsageError, match="compiles for example-board, not for Horizon Journey 5"):
        target.require(find_platform("horizon-j5"), {})


def test_damaged_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "engine.example"
    write_container(path, b"graph" * 100, 6)
    assert read_container(path) == b"graph" * 100
    whole = path.read_bytes()
    for damaged in (b"", whole[:7], whole[:20], whole[:-9], b"x" + whole[1:], whole[:-9] + bytes(9)):
        path.write_bytes(damaged)
        with pytest.raises(BundleError, match=r"engine\.example is no whole file of the example's compiler"):
            read_container(path)
