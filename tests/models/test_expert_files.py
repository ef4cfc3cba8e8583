"""Spellings of experts' tensors besides the goldens', and what files hold beside them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from conftest import ArrayTensor, MakeEngine, changed, golden, relative_error, with_tensors
from edgewright.checkpoint import Checkpoint
from edgewright.errors import ConfigError, TensorMismatchError
from edgewright.models import build_llm
from edgewright.runtime.session import Session


def stacked(checkpoint: Checkpoint, names: tuple[str, str, str]) -> Checkpoint:
    """Put numbered experts into `experts.gate_up_proj` and `experts.down_proj`, as transformers holds them."""
    found: dict[str, dict[str, dict[int, np.ndarray]]] = {}
    for name, tensor in checkpoint.tensors.items():
        if match := re.fullmatch(r"(.*\.experts\.)(\d+)\.(\w+)\.weight", name):
            found.setdefault(match[1], {}).setdefault(match[3], {})[int(match[2])] = tensor.read()
            checkpoint = with_tensors(checkpoint, **{name: ...})
    for prefix, parts in found.items():
        gate, up, down = (np.stack([parts[name][i] for i in range(len(parts[name]))]) for name in names)
        new = {f"{prefix}gate_up_proj": np.concatenate([gate, up], axis=1), f"{prefix}down_proj": down}
        checkpoint = with_tensors(checkpoint, **{name: ArrayTensor(name, values) for name, values in new.items()})
    return checkpoint


@pytest.mark.parametrize(
    "case", ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "phimoe", "deepseek_v2", "deepseek_v3", "hunyuan_v1_moe"]
)
def test_stacked_experts_are_the_same_model(case: str, make_engine: MakeEngine) -> None:
    reference = golden(case)
    names = ("w1", "w3", "w2") if case in ("mixtral", "phimoe") else ("gate_proj", "up_proj", "down_proj")
    session = Session(make_engine(stacked(reference.checkpoint, names)))
    assert relative_error(session.append(reference.ids, logits="all"), reference.logits) < 2e-5


@pytest.mark.parametrize("case", ["deepseek_v3", "glm4_moe"])
def test_layers_that_predict_further_tokens_are_left_out(case: str, make_engine: MakeEngine) -> None:
    reference = golden(case)
    checkpoint = reference.checkpoint
    layers = checkpoint.config["num_hidden_layers"]
    last = f"model.layers.{layers - 1}."
    names = ["eh_proj.weight", *(name[len(last) :] for name in checkpoint.tensors if name.startswith(last))]
    extra = {f"model.layers.{layers}.{name}": ArrayTensor(name, np.ones((2, 2), np.float32)) for name in names}
    stage = build_llm(with_tensors(checkpoint, **extra))
    assert any("further tokens" in note for note in stage.notes)
    session = Session(make_engine(with_tensors(checkpoint, **extra)))
    assert relative_error(session.append(reference.ids, logits="all"), reference.logits) < 2e-5
    # A layer too many that is a common one is a mismatch.
    del extra[f"model.layers.{layers}.eh_proj.weight"]
    with pytest.raises(TensorMismatchError):
        build_llm(with_tensors(checkpoint, **extra))


def test_gpt_oss_without_rope_keys_has_the_published_rope() -> None:
    checkpoint = golden("gpt_oss").checkpoint
    absent = changed(checkpoint, rope_parameters=...)
    yarn = {
        "rope_type": "yarn",
        "rope_theta": 150000.0,
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    }
    stages = [build_llm(c) for c in (absent, changed(checkpoint, rope_parameters=yarn))]
    first, second = (stage.weights["rope.cos"].rows(0, 64) for stage in stages)
    np.testing.assert_array_equal(first, second)


def test_hunyuan_takes_values_layer_by_layer(make_engine: MakeEngine) -> None:
    reference = golden("hunyuan_v1_moe")
    config = reference.checkpoint.config
    layers, inner = config["num_hidden_layers"], config["intermediate_size"]
    keys = {"moe_topk": [2] * layers, "moe_intermediate_size": [inner] * layers, "num_shared_expert": [1] * layers}
    session = Session(make_engine(changed(reference.checkpoint, **keys)))
    assert relative_error(session.append(reference.ids, logits="all"), reference.logits) < 2e-5
    with pytest.raises(ConfigError, match="num_shared_expert"):
        build_llm(changed(reference.checkpoint, num_shared_expert=[1, 2]))
