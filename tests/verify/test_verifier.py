"""The verifier: good bundles pass; every kind of damage fails at its level, by name."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from conftest import MakeBundle, write_source
from edgewright.build.pipeline import _seal, deploy, export
from edgewright.bundle import check_files, read_manifest
from edgewright.checkpoint import Checkpoint, open_checkpoint
from edgewright.errors import BundleError, BundleTamperedError
from edgewright.formats import IntFormat
from edgewright.quant.recipe import Recipe
from edgewright.verify import Report, verify_bundle
from edgewright.verify.report import LogitsReport

STAGE = "stages/llm"


@pytest.fixture(scope="module")
def checkpoint(source: Path) -> Checkpoint:
    return open_checkpoint(source)


@pytest.mark.parametrize("recipe", ["float32", "float16", "int8", "int4"])
def test_good_bundles_pass(recipe: str, shared_bundle: MakeBundle, checkpoint: Checkpoint) -> None:
    report = verify_bundle(shared_bundle(recipe), checkpoint, threads=1)
    assert report.passed
    assert report.reason() == ""
    data = json.loads(json.dumps(report.to_json()))
    assert data["status"] == "passed"
    levels = ["weights", "ops", "quality"] if recipe.startswith("float") else ["weights", "ops", "engine", "quality"]
    assert list(data["levels"]) == levels
    assert all(level["status"] == "passed" for level in data["levels"].values())
    assert data["levels"]["weights"]["tensors"] == 2 * (7 + 4) + 2 + 1 + 1
    quality = data["levels"]["quality"]
    assert set(quality["scenarios"]) == {"prefill", "chunked prefill", "decode", "two turns", "batch"}
    assert quality["pooled"]["positions"] == sum(s["positions"] for s in quality["scenarios"].values())


@pytest.mark.parametrize(
    ("case", "dialect"), [("llama_bias", "portable"), ("gemma3", "onnxruntime"), ("smollm3_window", "onnxruntime")]
)
def test_exported_folders_of_other_families_pass(case: str, dialect: str, tmp_path: Path) -> None:
    source = write_source(tmp_path / "s", case)
    export(source, tmp_path / "b", recipe="int8", dialect=dialect)
    report = verify_bundle(tmp_path / "b", open_checkpoint(source), threads=1)
    assert report.passed, report.reason()


def test_inputs_kept_in_float32_are_held_to_the_tight_bound(
    source: Path, tmp_path: Path, checkpoint: Checkpoint
) -> None:
    fmt = IntFormat(4, 32, False, int8_activations=False)
    folder = deploy(
        source, tmp_path / "b", recipe=Recipe("exact", fmt, fmt, IntFormat(4, 32, False)), verify=False
    ).path
    report = verify_bundle(folder, checkpoint, threads=1)
    assert report.passed
    engine = logits_of(report, "engine")
    assert engine.threshold.max_error == 1e-4
    assert engine.pooled.max_error < 2e-5
    # Said of int8 inputs, the same claim is false, and the verifier notices.
    rounded = deploy(source, tmp_path / "r", recipe="int4", verify=False)
    modules = [{**m, "int8_activations": False} for m in rounded.manifest.recipe["modules"]]
    recipe = {**rounded.manifest.recipe, "modules": modules}
    _seal(rounded.path, dataclasses.replace(rounded.manifest, recipe=recipe, files={}))
    assert "engine" in failed_levels(verify_bundle(rounded.path, checkpoint, threads=1))


# -- damage to the weight file -----------------------------------------------------------------------------------------


def reseal(folder: Path) -> None:
    """Give the manifest the digests of what stands there now, so that only the verifier can notice."""
    _seal(folder, dataclasses.replace(read_manifest(folder), files={}))
    check_files(folder, read_manifest(folder))


def tensor_place(folder: Path, name: str) -> tuple[np.memmap, onnx.TensorProto]:
    """Return the bytes of a tensor of the weight file, mapped for writing, and its header."""
    model = onnx.load(folder / STAGE / "model.onnx", load_external_data=False)
    (tensor,) = [t for t in model.graph.initializer if t.name == name]
    entries = {entry.key: entry.value for entry in tensor.external_data}
    offset, length = int(entries["offset"]), int(entries["length"])
    mapped = np.memmap(folder / STAGE / "weights.bin", np.uint8, mode="r+", offset=offset, shape=(length,))
    return mapped, tensor


Change = Callable[[np.ndarray], None]


def scale_first(values: np.ndarray) -> None:
    values.view(np.float32)[0] *= 1.5


def flip_last_byte(values: np.ndarray) -> None:
    values[-1] ^= 0x88  # half the range for an 8-bit code and for both 4-bit codes


def shift_one(values: np.ndarray) -> None:
    values.view(np.float32)[5] += 0.25


def swap_rows(values: np.ndarray) -> None:
    table = values.view(np.float32).reshape(256, 16)
    table[[37, 38]] = table[[38, 37]]


def make_nan(values: np.ndarray) -> None:
    values.view(np.float32)[3] = np.nan


LAYER = "model.layers.1"

DAMAGES: list[tuple[str, str, str, Change]] = [
    ("int4", f"{LAYER}.self_attn.q_proj.scales", f"{LAYER}.self_attn.q_proj.codes is", scale_first),
    ("int4", f"{LAYER}.mlp.down_proj.scales", f"{LAYER}.mlp.down_proj.codes is", scale_first),
    ("int4", f"{LAYER}.mlp.down_proj.scales", f"{LAYER}.mlp.down_proj.codes has a scale that is not finite", make_nan),
    ("int4", f"{LAYER}.mlp.gate_proj+up_proj.codes", f"{LAYER}.mlp.up_proj.codes is", flip_last_byte),
    ("int8", f"{LAYER}.self_attn.v_proj.codes", f"{LAYER}.self_attn.v_proj.codes is", flip_last_byte),
    ("int8", "model.embed_tokens.codes.flat", "model.embed_tokens.codes is", flip_last_byte),
    ("int8", "model.embed_tokens.scales", "model.embed_tokens.codes is", scale_first),
    ("int4", f"{LAYER}.input_layernorm.weight", f"{LAYER}.input_layernorm.weight is", shift_one),
    ("float32", f"{LAYER}.self_attn.k_norm.weight", f"{LAYER}.self_attn.k_norm.weight is", shift_one),
    ("int4", "rope.sin", "rope.sin is", swap_rows),
    ("float16", "rope.cos", "rope.cos is", swap_rows),
    ("float32", "model.norm.weight", "model.norm.weight is nan", make_nan),
    ("float16", f"{LAYER}.self_attn.o_proj.float16", f"{LAYER}.self_attn.o_proj.float16 is", flip_last_byte),
]


@pytest.mark.parametrize(("recipe", "tensor", "words", "change"), DAMAGES, ids=lambda v: getattr(v, "__name__", str(v)))
def test_damaged_weights_fail_by_name(
    recipe: str, tensor: str, words: str, change: Change, own_bundle: MakeBundle, checkpoint: Checkpoint
) -> None:
    folder = own_bundle(recipe)
    mapped, _ = tensor_place(folder, tensor)
    change(mapped)
    mapped.flush()
    with pytest.raises(BundleTamperedError):
        verify_bundle(folder, checkpoint, threads=1)
    reseal(folder)
    report = verify_bundle(folder, checkpoint, threads=1)
    assert not report.passed
    level = report.to_json()["levels"]["weights"]
    assert level["status"] == "failed"
    (fault,) = level["faults"]
    assert fault.startswith(words)
    assert fault in report.reason()
    assert report.reason().startswith("weights: 1 of ")


@pytest.mark.parametrize("kind", ["q_proj", "mlp"])
def test_a_damaged_bias_fails_by_name(kind: str, tmp_path: Path) -> None:
    source = write_source(tmp_path / "s", "llama_bias")
    folder = deploy(source, tmp_path / "b", verify=False).path
    name, part, at = {
        "q_proj": (f"{LAYER}.self_attn.k_proj.bias", f"{LAYER}.self_attn.k_proj.bias", 3),
        "mlp": (f"{LAYER}.mlp.down_proj.bias", f"{LAYER}.mlp.down_proj.bias", 7),
    }[kind]
    mapped, _ = tensor_place(folder, name)
    mapped.view(np.float32)[at] += 0.5
    mapped.flush()
    reseal(folder)
    report = verify_bundle(folder, open_checkpoint(source), threads=1)
    assert not report.passed
    assert [fault.split(" ")[0] for fault in report.levels["weights"].faults] == [part]


# -- damage to the engine only -----------------------------------------------------------------------------------------


def engine(folder: Path) -> onnx.ModelProto:
    return onnx.load(folder / STAGE / "engine.onnx", load_external_data=False)


def save(folder: Path, model: onnx.ModelProto) -> None:
    (folder / STAGE / "engine.onnx").write_bytes(model.SerializeToString())
    reseal(folder)


def attribute(model: onnx.ModelProto, op_type: str, name: str, value: Any) -> None:
    """Set an attribute on the first node of a type."""
    node = next(n for n in model.graph.node if n.op_type == op_type)
    for old in [a for a in node.attribute if a.name == name]:
        node.attribute.remove(old)
    node.attribute.append(onnx.helper.make_attribute(name, value))


def own_rope_table(model: onnx.ModelProto) -> None:
    """The engine's cos table becomes one of its own, off by one position."""
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            node.input[7] = "my.cos"
    head = 32
    angles = np.arange(1, 257)[:, None] * 20000.0 ** (-np.arange(0, head, 2) / head)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.cos(angles).astype(np.float32), "my.cos"))


def swap_gate_and_up(model: onnx.ModelProto) -> None:
    node = [n for n in model.graph.node if n.op_type == "Split" and "gate_proj" in n.name][-1]
    node.output[0], node.output[1] = node.output[1], node.output[0]


def swap_k_norms(model: onnx.ModelProto) -> None:
    """Layer 1 uses layer 0's norm."""
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name == f"{LAYER}.input_layernorm.weight":
                node.input[index] = "model.layers.0.input_layernorm.weight"


ENGINES: dict[str, Callable[[onnx.ModelProto], None]] = {
    "rope table of its own": own_rope_table,
    "window": functools.partial(attribute, op_type="GroupQueryAttention", name="local_window_size", value=20),
    "scale": functools.partial(attribute, op_type="GroupQueryAttention", name="scale", value=0.5),
    "softcap": functools.partial(attribute, op_type="GroupQueryAttention", name="softcap", value=0.5),
    "no rotation": functools.partial(attribute, op_type="GroupQueryAttention", name="do_rotary", value=0),
    "pairs": functools.partial(attribute, op_type="GroupQueryAttention", name="rotary_interleaved", value=1),
    "epsilon": functools.partial(attribute, op_type="SkipSimplifiedLayerNormalization", name="epsilon", value=0.5),
    "gate and up": swap_gate_and_up,
    "norms": swap_k_norms,
}


#: The cause class of each.
KINDS = {
    "rope table of its own": "rope",
    "window": "window",
    "scale": "scale",
    "softcap": "soft cap",
    "no rotation": "rope",
    "pairs": "rope",
    "epsilon": "norm",
    "gate and up": "head layout",
    "norms": "norm",
}


def logits_of(report: Report, level: str) -> LogitsReport:
    found = report.levels[level]
    assert isinstance(found, LogitsReport)
    return found


def damaged(folder: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    model = engine(folder)
    before = model.SerializeToString(deterministic=True)
    change(model)
    assert model.SerializeToString(deterministic=True) != before
    save(folder, model)


def failed_levels(report: Report) -> list[str]:
    return [name for name, level in report.to_json()["levels"].items() if level["status"] == "failed"]


@pytest.mark.parametrize(
    ("recipe", "change"),
    [*(("int4", name) for name in sorted(ENGINES)), ("float32", "epsilon"), ("float32", "window"), ("int8", "scale")],
)
def test_wrong_engines_fail(recipe: str, change: str, own_bundle: MakeBundle, checkpoint: Checkpoint) -> None:
    """The weights are right, so the level `weights` passes, and the one that compares logits must not."""
    folder = own_bundle(recipe)
    damaged(folder, ENGINES[change])
    report = verify_bundle(folder, checkpoint, threads=1)
    levels = {"ops", "quality" if recipe == "float32" else "engine"}
    assert levels <= set(failed_levels(report))
    assert "weights" not in failed_levels(report)
    assert all(f"{level}: " in report.reason() for level in levels)
    assert report.localisation is not None
    assert report.localisation.origin == "engine.onnx"
    assert report.localisation.cause.kind == KINDS[change]


def test_an_engine_that_fails_only_after_a_growth_of_the_cache(own_bundle: MakeBundle, checkpoint: Checkpoint) -> None:
    """Right within 200 positions and wrong past them: a short check would not see it."""
    folder = own_bundle("int4")
    damaged(folder, functools.partial(attribute, op_type="GroupQueryAttention", name="local_window_size", value=200))
    report = verify_bundle(folder, checkpoint, threads=1)
    assert "ops" in failed_levels(report)
    assert logits_of(report, "engine").by_scenario["two turns"].kl < 0.01
    assert report.localisation is not None
    assert report.localisation.positions[0] == 200
    assert report.localisation.cause.kind == "window"


def test_an_engine_that_computes_nan_fails(own_bundle: MakeBundle, checkpoint: Checkpoint) -> None:
    def nan_scale(model: onnx.ModelProto) -> None:
        attribute(model, "GroupQueryAttention", "scale", float("nan"))

    for recipe in ("float32", "int4"):
        folder = own_bundle(recipe)
        damaged(folder, nan_scale)
        report = verify_bundle(folder, checkpoint, threads=1)
        assert not report.passed
        assert "KL inf" in report.reason()
        assert json.loads(json.dumps(report.to_json(), allow_nan=False))["status"] == "failed"


# -- the wrong checkpoint ----------------------------------------------------------------------------------------------


def test_another_checkpoint_is_refused(shared_bundle: MakeBundle, tmp_path: Path) -> None:
    other = write_source(tmp_path / "other", "llama_bias")
    with pytest.raises(BundleError, match=r"was not built from this checkpoint \(.*model\.safetensors.* differ"):
        verify_bundle(shared_bundle("int4"), open_checkpoint(other), threads=1)


def test_a_checkpoint_with_other_values_fails_or_is_refused(shared_bundle: MakeBundle, tmp_path: Path) -> None:
    """Same names, same sizes, one value changed: either is right, passing is not."""
    twin = write_source(tmp_path / "twin")
    raw = bytearray((twin / "model.safetensors").read_bytes())
    raw[-3] ^= 0x40
    (twin / "model.safetensors").write_bytes(raw)
    try:
        report = verify_bundle(shared_bundle("float32"), open_checkpoint(twin), threads=1)
    except BundleError:
        return
    assert not report.passed


def test_files_are_checked_first(own_bundle: MakeBundle, checkpoint: Checkpoint) -> None:
    folder = own_bundle("int4")
    (folder / "sidecars/tokenizer.json").write_text("{}")
    with pytest.raises(BundleTamperedError, match=r"tokenizer\.json"):
        verify_bundle(folder, checkpoint, threads=1)


def test_sequences_in_reports_are_plain(shared_bundle: MakeBundle, checkpoint: Checkpoint) -> None:
    """What goes into the manifest is JSON without a detour: no tuples, no NumPy numbers."""
    data = verify_bundle(shared_bundle("int8"), checkpoint, threads=1).to_json()

    def walk(value: Any) -> None:
        assert isinstance(value, dict | list | str | float | int | bool | None), type(value)
        children: Sequence[Any] = list(value.values()) if isinstance(value, dict) else value
        if isinstance(value, dict | list):
            for child in children:
                walk(child)

    walk(data)
