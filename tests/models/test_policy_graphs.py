"""How the stages of robot policies are made: contracts, names, what depends on the time alone, refused tensors."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from conftest import ArrayTensor
from edgewright.checkpoint.policy import PolicyCheckpoint
from edgewright.contract import StageContract
from edgewright.dialects import LOWERINGS
from edgewright.errors import ConfigError, TensorMismatchError, UnknownModelTypeError
from edgewright.graph import Stage
from edgewright.graph.rewrite import module_of
from edgewright.graph.writer import write_stage
from edgewright.models._policy import PolicyBounds, build_policy
from policy_goldens import POLICY_CASES, policy_checkpoint

each_case = pytest.mark.parametrize("case", POLICY_CASES)


def built(case: str, **options: Any) -> dict[str, Stage]:
    return build_policy(policy_checkpoint(case), **options)


def shapes(contract: StageContract) -> dict[str, tuple[Any, ...]]:
    return {tensor.name: (tensor.dtype, *tensor.shape) for tensor in (*contract.inputs, *contract.outputs)}


def depends(stage: Stage) -> dict[ir.Node, frozenset[str]]:
    """Return the names of the inputs that each node's results depend on."""
    inputs = {value.name for value in stage.graph.inputs}
    found: dict[ir.Node, frozenset[str]] = {}
    for node in stage.graph:
        names: set[str] = set()
        for value in node.inputs:
            if value is not None and value.name in inputs:
                names.add(str(value.name))
            elif value is not None and value.producer() is not None:
                names |= found[value.producer()]
        found[node] = frozenset(names)
    return found


@each_case
def test_contracts(case: str) -> None:
    stages = built(case, bounds=PolicyBounds(batch=2, views=3, prefix=99, horizon=7))
    assert list(stages) == ["vision", "prefix", "denoise"]
    checkpoint = policy_checkpoint(case)
    sizes, spec = checkpoint.sizes, checkpoint.spec
    width, kv, dim = sizes.text.width, sizes.text.kv_heads, sizes.text.head_dim
    caches = {}
    for i in range(sizes.expert.layers):
        caches |= dict.fromkeys((f"prefix_key.{i}", f"prefix_value.{i}"), ("float32", "batch", kv, "prefix", dim))
    state = {"state": ("float32", "batch", 32)}
    in_prefix, in_suffix = case == "smolvla", case in ("pi0", "pi0_lerobot")
    assert shapes(stages["vision"].contract) == {
        "images": ("float32", "views", 3, *spec.image_size),
        "image_features": ("float32", "views", spec.image_tokens, width),
    }
    assert shapes(stages["prefix"].contract) == {
        "image_features": ("float32", "batch", "image_slots", width),
        "token_ids": ("int64", "batch", "text"),
        "prefix_mask": ("int64", "batch", "prefix"),
        **(state if in_prefix else {}),
        **caches,
    }
    assert shapes(stages["denoise"].contract) == {
        "x_t": ("float32", "batch", "horizon", 32),
        "time_embedding": ("float32", "batch", "times", sizes.expert.width),
        **(state if in_suffix else {}),
        "prefix_mask": ("int64", "batch", "prefix"),
        **caches,
        "velocity": ("float32", "batch", "horizon", 32),
    }
    assert stages["vision"].contract.bounds == {"views": (1, 3)}
    assert stages["prefix"].contract.bounds["image_slots"] == (0, 99)
    assert stages["denoise"].contract.bounds["times"] == (1, 7)
    for stage in stages.values():
        assert StageContract.from_json(stage.contract.to_json()) == stage.contract
        assert [value.name for value in stage.graph.inputs] == [t.name for t in stage.contract.inputs]


@each_case
def test_every_weight_product_is_a_linear_of_the_checkpoints_name(case: str) -> None:
    """So that recipes find them; patches too. Each stage's weights are the checkpoint's, whole or as parts."""
    stored = policy_checkpoint(case).tensors
    used: set[str] = set()
    for stage in built(case, kv_only=False).values():
        linears = [node for node in stage.graph if node.op_type == "Linear"]
        for node in linears:
            path = module_of(node)
            assert node.inputs[1] is not None
            assert node.inputs[1].name == f"{path}.weight"
            plain = path.removesuffix(".actions").removesuffix(".time")
            assert f"{plain}.weight" in stored
        assert not any(node.op_type in ("MatMul", "Gemm", "Conv") for node in stage.graph)
        for name in stage.weights:
            used.add(name.replace("_in.actions.", "_in.").replace("_in.time.", "_in."))
        assert all(node.name for node in stage.graph)
        assert len({node.name for node in stage.graph}) == len(list(stage.graph))
    assert used - {"rope.cos", "rope.sin"} == set(stored)


@each_case
def test_the_last_layer_of_a_kv_only_prefix_makes_keys_and_values_alone(case: str) -> None:
    layers = policy_checkpoint(case).sizes.text.layers
    tower = "text_model" if case == "smolvla" else "language_model"
    for kv_only in (True, False):
        paths = {module_of(node) for node in built(case, kv_only=kv_only)["prefix"].graph if node.op_type == "Linear"}
        last = {path.rsplit(".", 1)[-1] for path in paths if f"{tower}.layers.{layers - 1}." in path}
        everything = {f"{x}_proj" for x in ("q", "k", "v", "o", "gate", "up", "down")}
        assert last == ({"k_proj", "v_proj"} if kv_only else everything)


def test_what_depends_on_the_time_alone() -> None:
    """The modulations, and the time's half of the product over actions and time, see nothing but the time."""
    for case in ("pi05", "pi05_libero"):
        stage = built(case)["denoise"]
        found = depends(stage)
        dense = [node for node in found if module_of(node).endswith(".dense")]
        assert Counter(node.op_type for node in dense)["Linear"] == 2 * policy_checkpoint(case).sizes.expert.layers + 1
        time_mlp = [node for node in found if module_of(node).startswith("time_mlp_")]
        assert time_mlp
        assert all(found[node] == {"time_embedding"} for node in (*dense, *time_mlp))
        for node in found:
            if node.op_type == "AdaRMSNorm":
                made = [value.producer() for value in node.inputs[1:] if value is not None]
                assert [found[maker] for maker in made if maker is not None] == [{"time_embedding"}] * 2
    for case in ("pi0", "smolvla"):
        found = depends(built(case)["denoise"])
        (half,) = (node for node in found if module_of(node) == "action_time_mlp_in.time")
        assert found[half] == {"time_embedding"}


def test_smolvla_can_make_what_it_looks_across_to_with_the_prefix() -> None:
    paths: dict[bool, dict[str, set[str]]] = {}
    for once in (False, True):
        stages = built("smolvla", cross_once=once)
        paths[once] = {n: {module_of(x) for x in s.graph if x.op_type == "Linear"} for n, s in stages.items()}
    moved = {f"vlm_with_expert.lm_expert.layers.{i}.self_attn.{x}_proj" for i in (1, 3) for x in "kv"}
    assert paths[False]["denoise"] - paths[True]["denoise"] == moved
    assert paths[True]["prefix"] - paths[False]["prefix"] == moved


@each_case
def test_the_onnxruntime_dialect_fuses(case: str, tmp_path: Path) -> None:
    """Products of one input are joined, nothing keeps its reference body, the mask is made once a kind."""
    sizes = policy_checkpoint(case).sizes
    joined = {"vision": sizes.vision.layers, "prefix": sizes.text.layers - 1, "denoise": sizes.expert.layers}
    for name, stage in built(case).items():
        lowered = LOWERINGS["onnxruntime"](stage)
        write_stage(lowered, tmp_path / name)
        model = onnx.load(tmp_path / name / "model.onnx", load_external_data=False)
        kinds = Counter(node.op_type for node in model.graph.node)
        assert not any(node.domain == "ew" for node in model.graph.node)
        qkv = sum("q_proj+k_proj+v_proj/" in node.name and node.op_type == "FusedMatMul" for node in model.graph.node)
        looking = sizes.expert.layers // 2 if case == "smolvla" and name == "denoise" else 0
        assert qkv == joined[name] - looking
        assert kinds["Attention" if name == "vision" else "Softmax"] == joined[name]
        masks = {"vision": 0, "prefix": 1, "denoise": 2 if case == "smolvla" else 1}
        assert kinds["Where"] == masks[name]
        if name != "vision":
            gates = sum("gate_proj+up_proj/" in n.name and n.op_type == "FusedMatMul" for n in model.graph.node)
            assert gates == joined[name]


@each_case
@pytest.mark.parametrize("dialect", ["portable", "onnxruntime"])
def test_stages_pass_the_onnx_checker(case: str, dialect: str, tmp_path: Path) -> None:
    for name, stage in built(case).items():
        write_stage(LOWERINGS[dialect](stage), tmp_path / name)
        path = tmp_path / name / "model.onnx"
        model = onnx.load(path, load_external_data=False)
        for node in model.graph.node:  # ONNX Runtime's own kernel under ONNX's domain; its twin is RMSNormalization
            if node.op_type == "SimplifiedLayerNormalization":
                node.op_type = "RMSNormalization"
        path.write_bytes(model.SerializeToString())
        onnx.checker.check_model(str(path), full_check=dialect == "portable")
        read = {value for node in model.graph.node for value in node.input}
        assert {tensor.name for tensor in model.graph.initializer} <= read


# -- what doesn't fit --------------------------------------------------------------------------------------------------


def with_tensors(checkpoint: PolicyCheckpoint, changes: Mapping[str, Any]) -> PolicyCheckpoint:
    """Return the checkpoint with other tensors; None takes one away."""
    tensors = {**checkpoint.tensors, **changes}
    return dataclasses.replace(checkpoint, tensors={n: t for n, t in tensors.items() if t is not None})


def test_all_mismatches_are_listed_at_once() -> None:
    checkpoint = policy_checkpoint("pi0")
    width = checkpoint.sizes.expert.width
    patch = "paligemma_with_expert.paligemma.model.vision_tower.vision_model.embeddings.patch_embedding.weight"
    whole = ArrayTensor("time_mlp_in.weight", np.zeros((3, 3), np.float32))
    changes = {
        "state_proj.bias": None,
        "action_time_mlp_in.weight": ArrayTensor("x", np.zeros((width, width), np.float32)),
        "time_mlp_in.weight": whole,
        "action_out_proj.weight": ArrayTensor("x", np.zeros((32, width), np.int64), "int64"),
        patch: ArrayTensor("x", np.zeros((32, 588), np.float32)),
    }
    with pytest.raises(TensorMismatchError) as caught:
        build_policy(with_tensors(checkpoint, changes))
    text = str(caught.value)
    for part in (
        "state_proj.bias is missing",
        "time_mlp_in.weight is not used by the policy",
        f"action_time_mlp_in.weight has the shape [{width}, {width}] where [{width}, {2 * width}] is needed",
        "action_out_proj.weight is stored as int64",
        "patch_embedding.weight has the shape [32, 588] where [32, 3, 14, 14] is needed",
    ):
        assert part in text
    assert text.count("action_time_mlp_in.weight") == 1


def test_long_lists_of_mismatches_are_cut() -> None:
    checkpoint = policy_checkpoint("pi05")
    with pytest.raises(TensorMismatchError, match=r"is missing; and \d+ more\.$"):
        build_policy(dataclasses.replace(checkpoint, tensors={}))


@pytest.mark.parametrize(
    ("size", "words"), [((28, 42), "28 x 42 pixels"), ((30, 30), "whole tokens of 14 pixels"), ((0, 0), "0 x 0")]
)
def test_odd_image_sizes_are_refused(size: tuple[int, int], words: str) -> None:
    checkpoint = policy_checkpoint("pi05")
    with pytest.raises(ConfigError, match=words):
        build_policy(dataclasses.replace(checkpoint, spec=dataclasses.replace(checkpoint.spec, image_size=size)))


def test_an_image_of_another_size_than_the_towers_is_refused_where_nothing_says_how_positions_follow() -> None:
    checkpoint = policy_checkpoint("pi05")
    spec = dataclasses.replace(checkpoint.spec, image_size=(42, 42))
    with pytest.raises(TensorMismatchError, match=r"position_embedding.weight has the shape \[4, 32\]"):
        build_policy(dataclasses.replace(checkpoint, spec=spec))


def test_towers_that_do_not_fit_each_other_are_refused() -> None:
    for case, part, values, words in (
        ("pi0", "expert", {"kv_heads": 2}, "kv_heads is 1 in the one that reads the prefix and 2 in the expert"),
        ("pi0", "vision", {"heads": 5}, "32 can't be cut into 5 heads"),
        ("smolvla", "expert", {"layers": 3}, "3 layers can't be spread over 4"),
        ("smolvla", "expert", {"layers": 2}, "don't go together"),
    ):
        checkpoint = policy_checkpoint(case)
        changed = dataclasses.replace(getattr(checkpoint.sizes, part), **values)
        sizes = dataclasses.replace(checkpoint.sizes, **{part: changed})
        with pytest.raises(ConfigError, match=words):
            build_policy(dataclasses.replace(checkpoint, sizes=sizes))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UnknownModelTypeError, match="'act' isn't supported; known are pi0, pi05, smolvla"):
        build_policy(dataclasses.replace(policy_checkpoint("pi05"), kind="act"))  # type: ignore[arg-type]
