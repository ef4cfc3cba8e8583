"""Bundles of policies whose prefix KV is codes: with every feature, in every dialect, recorded, and faults found."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewright.build import sources
from edgewright.build.pipeline import _seal, deploy, export
from edgewright.build.quantized import quantize_checkpoint
from edgewright.bundle import read_manifest
from edgewright.calibration.arrays import TEXT, text_of
from edgewright.checkpoint.policy import PolicyCheckpoint, PolicyOptions, open_policy
from edgewright.cli import main
from edgewright.errors import BundleError, RecipeError
from edgewright.quant.recipe import Data
from edgewright.quant.recipe_file import parse_recipe
from edgewright.quantizer.policy_observations import load_policy_observations
from edgewright.runtime.policy import Policy
from edgewright.runtime.policy.stages import policy_shapes
from edgewright.verify.memory import Memory
from edgewright.verify.policy import verify_policy
from edgewright.verify.policy_against import verify_policy_against
from edgewright.verify.report import Report
from policy_builds import deploy_policy, request_for, source_of
from policy_goldens import OPTIONS, POLICY_GOLDENS, policy_checkpoint
from quantizer_policy_cases import relative, write_observations

FLOATS = "body: {format: float32}\nlm_head: {format: float32}\nembedding: {format: float32}\n"
INT8, FP8_HEAD = "{format: int8}", "{format: fp8, scope: head}"
#: How far actions may be off after the whole loop, as a share of their energy's root, by how the prefix KV is stored.
BOUNDS = {INT8: 0.02, FP8_HEAD: 0.05}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Quantized policies with float weights, made once: by golden and by how the prefix KV is stored."""
    made: dict[tuple[str, str], Path] = {}

    def folder(case: str, kv: str) -> Path:
        if (case, kv) not in made:
            root = tmp_path_factory.mktemp("quantized")
            data = Data(str(write_observations(root / "data", policy_checkpoint(case), 6)))
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
                recipe = parse_recipe(FLOATS + f"kv: {kv}\n", "r.yaml")
                options = PolicyOptions(**OPTIONS[case])
                quantize_checkpoint(source_of(case), root / "policy", recipe=recipe, data=data, policy=options)
            made[case, kv] = root / "policy"
        return made[case, kv]

    return folder


def seen(case: str, folder: Path, count: int = 3) -> list[dict[str, Any]]:
    """Observations other than those of calibration, of unlike prompts, so that a batch of them has padding."""
    checkpoint = policy_checkpoint(case)
    samples = load_policy_observations(checkpoint, Data(str(write_observations(folder, checkpoint, count, 7)))).samples
    return [{**{n: v for n, v in sample.items() if n != TEXT}, "task": text_of(sample)} for sample in samples]


def actions(policy: Policy, given: list[dict[str, Any]]) -> np.ndarray:
    shape = (len(given), policy.spec.horizon, policy.spec.model_action_dim)
    noise = np.random.default_rng(5).standard_normal(shape, np.float32)
    return np.stack([chunk.normalized for chunk in policy.infer_batch(given, noise)])


FEATURES: dict[str, Mapping[str, bool | str]] = {
    "default": {},
    "loop": {"loop": "graph"},
    "unrolled": {"loop": "unrolled"},
    "transposed": {"kv-transposed": True, "kv-only": False},
    "plain": {"time-table": False, "fused-projections": False, "prefix-compaction": False},
    "across": {"cross-once": False, "norm-folding": True},
}
CASES = [
    *(("pi05", INT8, name) for name in ("default", "unrolled", "transposed")),
    *(("pi0", FP8_HEAD, name) for name in ("default", "loop")),
    *(("smolvla", INT8, name) for name in ("loop", "plain", "across")),
    *(("smolvla", FP8_HEAD, name) for name in ("default", "transposed", "across")),
]


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], np.ndarray]:
    """The float policies' actions, made once."""
    made: dict[str, np.ndarray] = {}

    def of(case: str) -> np.ndarray:
        if case not in made:
            root = tmp_path_factory.mktemp("floats")
            deploy_policy(case, root / "b")
            made[case] = actions(Policy.load(root / "b", threads=1), seen(case, root / "seen"))
        return made[case]

    return of


@pytest.mark.parametrize(("case", "kv", "features"), CASES)
def test_every_feature(
    case: str,
    kv: str,
    features: str,
    folders: Callable[[str, str], Path],
    wanted: Callable[[str], np.ndarray],
    tmp_path: Path,
) -> None:
    asked, source = FEATURES[features], folders(case, kv)
    request = dataclasses.replace(request_for(case, asked), options=PolicyOptions())
    built = deploy(source, tmp_path / "b", recipe="stored", policy=request, verify=False)
    manifest = built.manifest
    dtype = "int8" if kv == INT8 else "float8_e4m3fn"
    for name in ("prefix", "denoise"):
        contract = manifest.stages[name].contract
        handed = [t for t in (*contract.inputs, *contract.outputs) if t.name.startswith(("prefix_key", "prefix_val"))]
        assert {t.dtype for t in handed} == {dtype} == {contract.kv_dtype}
    record = manifest.recipe["kv"]
    assert (record["dtype"], record["per"]) == (
        ("int8", "tensor") if kv == INT8 else ("float8_e4m3", "head" if case == "smolvla" else "tensor")
    )
    across = [module for module in record["layers"] if ".lm_expert." in module]
    assert len(across) == (2 if case == "smolvla" and asked.get("cross-once", True) else 0)
    policy, given = Policy.load(tmp_path / "b", threads=1), seen(case, tmp_path / "seen")
    made = actions(policy, given)
    assert 1e-4 < relative(made, wanted(case)) < BOUNDS[kv]
    np.testing.assert_array_equal(made, actions(policy, given))
    report = verify_policy(tmp_path / "b", open_policy(source), original=policy_checkpoint(case), threads=1)
    assert report.status == "passed", report.reason()
    stages = report.to_json()["levels"]["stages"]
    assert len(stages["saturated"]) == 2 * len(record["layers"])
    assert max(stages["saturated"].values()) < 0.02
    assert stages["compared"]["prefix_value.0"]["max_error"] > 1e-4  # codes were compared, and not the floats behind


@pytest.mark.parametrize("kv", BOUNDS)
@pytest.mark.parametrize("case", ["pi05", "smolvla"])
def test_every_dialect_computes_the_same(
    case: str, kv: str, folders: Callable[[str, str], Path], tmp_path: Path
) -> None:
    made, given = {}, seen(case, tmp_path / "seen", 2)
    for dialect in ("portable", "onnx-qdq", "onnxruntime"):
        export(folders(case, kv), tmp_path / dialect, recipe="stored", dialect=dialect)
        made[dialect] = actions(Policy.load(tmp_path / dialect, threads=1), given)
    for dialect in ("onnx-qdq", "onnxruntime"):
        # A number between two codes may be rounded either way.
        assert relative(made[dialect], made["portable"]) < 0.2 * BOUNDS[kv]


def test_a_recipe_calibrates_and_a_checkpoint_is_verified_against(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the original: a build calibrates it, verifies itself, and is found again by the original alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = write_observations(tmp_path / "data", policy_checkpoint("pi05"), 4)
    recipe = parse_recipe(f"extends: pi05-fp8+fp8-kv\ncalibration: {{data: {data}}}\n", "r.yaml")
    built = deploy_policy("pi05", tmp_path / "b", recipe, verify=True, embeddings="outside")
    assert built.manifest.verdict["status"] == "passed"
    assert built.manifest.recipe["kv"]["dtype"] == "float8_e4m3"
    assert verify_policy_against(tmp_path / "b", source_of("pi05"), threads=1).status == "passed"
    golden = verify_policy_against(tmp_path / "b", POLICY_GOLDENS / "pi05", threads=1)
    assert golden.status == "passed", golden.reason()
    assert main(["inspect", str(tmp_path / "b")]) == 0
    assert "prefix_key.0 to 2" in (shown := capsys.readouterr().out)
    assert "float8_e4m3fn" in shown
    assert main(["inspect", str(tmp_path / "b"), "--json"]) == 0
    json.loads(capsys.readouterr().out)


def scaled(factor: float, part: int) -> Callable[[PolicyCheckpoint], PolicyCheckpoint]:
    """A change of the scales of one layer's keys or values."""

    def change(checkpoint: PolicyCheckpoint) -> PolicyCheckpoint:
        found = checkpoint.quantization
        assert found is not None
        scales = dict(found.kv_scales)
        module = list(scales)[1]
        pair = list(scales[module])
        pair[part] = (pair[part] * np.float32(factor)).astype(np.float32)
        scales[module] = (pair[0], pair[1])
        return dataclasses.replace(checkpoint, quantization=dataclasses.replace(found, kv_scales=scales))

    return change


def failed(report: Report) -> set[str]:
    return {name for name, level in report.levels.items() if level.faults}


@pytest.mark.parametrize("part", [0, 1], ids=["keys", "values"])
def test_a_planted_scale_is_found(
    part: int, folders: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect of the build: the shipped scale is not the calibrated one."""
    source, change = folders("pi05", INT8), scaled(1.4, part)
    with monkeypatch.context() as patch:
        patch.setattr(sources, "open_policy", lambda path, options: change(open_policy(path, options)))
        deploy(source, tmp_path / "b", recipe="stored", verify=False)
    report = verify_policy(tmp_path / "b", open_policy(source), original=policy_checkpoint("pi05"), threads=1)
    assert {"weights", "spec"} <= failed(report)
    assert "the prefix KV are not those that the checkpoint was calibrated for" in report.reason()
    name = ("prefix_key.1", "prefix_value.1")[part]
    compared = report.to_json()["levels"]["stages"]["compared"]
    assert compared[name]["max_error"] > 0.2
    assert compared[name.replace("1", "0")]["max_error"] < 0.3  # of keys beyond the codes


@pytest.mark.parametrize(
    ("factor", "words"), [(0.2, "of its numbers are beyond the largest code"), (60.0, "cosine")], ids=["small", "large"]
)
def test_a_scale_that_was_calibrated_wrong_is_found(
    factor: float, words: str, folders: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """A defect of calibration: the checkpoint and the bundle agree, and both differ from the float policy."""
    source, change = folders("pi05", INT8), scaled(factor, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "open_policy", lambda path, options: change(open_policy(path, options)))
        deploy(source, tmp_path / "b", recipe="stored", verify=False)
    made = change(open_policy(source))
    report = verify_policy(tmp_path / "b", made, original=policy_checkpoint("pi05"), threads=1)
    assert "stages" in failed(report)
    assert not {"weights", "spec", "features"} & failed(report)
    faults = [fault for fault in report.levels["stages"].faults if words in fault]
    assert [fault.partition(":")[0] for fault in faults] == ["prefix_value.1"]


def test_a_policy_that_is_too_large_to_compare(
    folders: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Denoise alone is compared on a seeded prefix, which has to be one that the codes can hold."""
    source = folders("pi05", INT8)
    deploy(source, tmp_path / "b", recipe="stored", verify=False)
    answers = iter([True, False, True])  # all but the prefix
    monkeypatch.setattr(Memory, "holds", lambda self, needed: next(answers))
    report = verify_policy(tmp_path / "b", open_policy(source), original=policy_checkpoint("pi05"), threads=1)
    data = report.to_json()
    assert data["status"] == "partly checked"
    compared = data["levels"]["stages"]["compared"]
    steps = {name: figures for name, figures in compared.items() if name.startswith("velocity")}
    assert len(steps) == 3
    assert all(1e-5 < figures["max_error"] < 0.05 for figures in steps.values())


def test_stages_that_disagree_are_refused(folders: Callable[[str, str], Path], tmp_path: Path) -> None:
    manifest = deploy(folders("pi05", INT8), tmp_path / "b", recipe="stored", verify=False).manifest
    contracts = {name: entry.contract for name, entry in manifest.stages.items()}
    spec = policy_checkpoint("pi05").spec
    policy_shapes(spec, contracts)
    denoise = contracts["denoise"]
    floats = tuple(
        dataclasses.replace(t, dtype="float32") if t.name.startswith("prefix_key") else t for t in denoise.inputs
    )
    odd = {**contracts, "denoise": dataclasses.replace(denoise, inputs=floats)}
    with pytest.raises(BundleError, match=r"denoise stage has prefix_key\.\d as float32 .* needs int8"):
        policy_shapes(spec, odd)
    odd = {**contracts, "prefix": dataclasses.replace(contracts["prefix"], kv_dtype="float8_e4m3fn")}
    with pytest.raises(BundleError, match=r"is int8 where its prefix hands over float8_e4m3fn"):
        policy_shapes(spec, odd)


@pytest.mark.parametrize(
    "change",
    [
        lambda recipe: recipe.pop("kv"),
        lambda recipe: recipe.update(kv={"dtype": "int8"}),
        lambda recipe: recipe.update(kv={"dtype": "int4", "per": "tensor", "layers": {}}),
        lambda recipe: recipe.update(kv={**recipe["kv"], "dtype": "float8_e4m3"}),
        lambda recipe: recipe.update(kv=[1]),
    ],
)
def test_a_manifest_that_says_something_else_is_refused(
    change: Callable[[dict[str, Any]], object], folders: Callable[[str, str], Path], tmp_path: Path
) -> None:
    source = folders("pi05", INT8)
    deploy(source, tmp_path / "b", recipe="stored", verify=False)
    manifest = read_manifest(tmp_path / "b")
    recipe = dict(manifest.recipe)
    change(recipe)
    _seal(tmp_path / "b", dataclasses.replace(manifest, recipe=recipe))
    with pytest.raises(BundleError, match="prefix KV's scales are not those of a policy"):
        verify_policy(tmp_path / "b", open_policy(source), threads=1)


def test_a_checkpoint_without_the_scales_is_refused(folders: Callable[[str, str], Path], tmp_path: Path) -> None:
    def without(checkpoint: PolicyCheckpoint) -> PolicyCheckpoint:
        found = checkpoint.quantization
        assert found is not None
        scales = dict(list(found.kv_scales.items())[1:])
        return dataclasses.replace(checkpoint, quantization=dataclasses.replace(found, kv_scales=scales))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "open_policy", lambda path, options: without(open_policy(path, options)))
        with pytest.raises(RecipeError, match=r"keys and values of .*layers\.0\.self_attn have no scales"):
            deploy(folders("pi05", INT8), tmp_path / "b", recipe="stored", verify=False)
    assert not (tmp_path / "b").exists()
